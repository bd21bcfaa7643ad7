"""Strategies and selectors that are added from outside: the files of `examples/extensions`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pasearch.features.selector import SELECTORS
from pasearch.search.strategy import STRATEGIES

FOLDER = Path(__file__).parent.parent / "examples" / "extensions"


@contextmanager
def extended(name: str) -> Iterator[ModuleType]:
    """Load a file; what it registers is known until the end."""
    known = [(each, each.kinds()) for each in (STRATEGIES, SELECTORS)]
    spec = importlib.util.spec_from_file_location(f"extension_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]
        for registry, before in known:
            registry._kinds = before
