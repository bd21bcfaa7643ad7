"""The kernels of a GPU, interpreted on a processor: what they compute, without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pasearch.gpu import bits as gpu
from pasearch.gpu import gpu_training

PAIRS = 512
"""Pairs of numbers that a program of `release` adds here; a GPU's adds 128."""


@contextmanager
def kernels() -> Iterator[Any]:
    """Let every device have kernels; where there is a GPU, they are not interpreted, nor tested so.

    Yields:
        The module `pasearch.gpu.kernels`.
    """
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels are compiled here, for a GPU")
    from triton.runtime import interpreter

    from pasearch.gpu import dense_kernels as training_kernels
    from pasearch.gpu import kernels as gpu_kernels

    patched: set[str] = set()

    def call(function: Any, *given: Any, **named: Any) -> Any:
        if function.fn.__module__ not in patched:
            interpreter._patch_lang(function.fn)
            patched.add(function.fn.__module__)
        return function.rewrite()(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        # Triton patches its language at each call of a function within a kernel: once is enough.
        patch.setattr(interpreter.InterpretedFunction, "__call__", call)
        # Programs are interpreted one after the other: the fewer there are, the less time it takes.
        patch.setattr(training_kernels, "FACTOR_RECORDS", 32)
        patch.setattr(training_kernels, "FACTOR_COLUMNS", 64)
        patch.setattr(gpu_kernels, "PAIRS_PER_PROGRAM", PAIRS)
        patch.setattr(gpu_kernels, "SETTLE_PROGRAMS", 2)
        patch.setattr(gpu, "load_kernels", lambda _: gpu_kernels)
        patch.setattr(gpu_training, "has_gpu_steps", lambda _: True)
        yield gpu_kernels
