"""Loops in machine code are tried on public numbers before anything is computed with them.

Source: docs/rules.md, rule 11 (a resumed release is computed as it was).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from types import ModuleType

from pasearch import busy
from pasearch.errors import MachineError, system_words

GROUP = 32
"""Pairs of normal numbers whose first members are adjacent, followed by their second members."""

OFF = "NUMBA_DISABLE_JIT"
"""What switches machine code off, if the environment has it."""


def loaded(module: str, agrees: Callable[[ModuleType], bool]) -> ModuleType | None:
    """Load loops and try them on public numbers; None where numba is missing or switched off.

    Raises:
        MachineError: They cannot be loaded, or find other sums. Torch's do not take over then: a
            run that is resumed, or whose candidates are trained in several processes, has to have
            the same sums everywhere.
    """
    if os.environ.get(OFF, "0") != "0" or importlib.util.find_spec("numba") is None:
        return None
    try:
        with busy.at(busy.COMPILING):
            code = importlib.import_module(module)
            agreed = agrees(code)
        if agreed:
            return code
        told = "It finds other numbers than torch."
    except Exception as error:  # noqa: BLE001 - no room for its files, or damaged ones
        told = system_words(error) or f"numba ended with {type(error).__name__}."
    raise MachineError(
        f"The machine code of pasearch cannot be used here. {told} If its files are "
        "the reason, name a folder that can be written to in NUMBA_CACHE_DIR; then give the same "
        f"command again, or resume the run. A new run with {OFF}=1 does without, more slowly."
    )
