"""Full float32 precision of matrix products, whatever the user's settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable TF32, bfloat16 products, autocast and timed choices within the block."""
    switches = _precision_switches()
    saved = [getattr(place, name) for place, name, _ in switches]
    cast = any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
    if not cast and all(now == exact for now, (*_, exact) in zip(saved, switches, strict=True)):
        yield
        return
    for place, name, exact in switches:
        setattr(place, name, exact)
    try:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for (place, name, _), value in zip(switches, saved, strict=True):
            setattr(place, name, value)


@cache
def _precision_switches() -> list[tuple[Any, str, Any]]:
    """Return every switch that reduces the precision of float32 products, and its exact setting.

    The list includes the switch that chooses convolution algorithms by time, because a resumed run
    could round differently.
    """
    backends = torch.backends
    timed = (backends.cudnn, "benchmark", False)
    if not hasattr(backends.cuda.matmul, "fp32_precision"):  # torch before 2.9
        tf32 = [(place, "allow_tf32", False) for place in (backends.cuda.matmul, backends.cudnn)]
        return [*tf32, timed]
    places: list[Any] = [backends.cuda.matmul]
    for library in (backends.cudnn, backends.mkldnn):
        places += [
            getattr(library, kind) for kind in ("matmul", "conv", "rnn") if hasattr(library, kind)
        ]
    return [*((place, "fp32_precision", "ieee") for place in places), timed]
