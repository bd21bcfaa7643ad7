"""Whether a GPU draws random bits by kernels of our own, and the keys that it is given.

A key serves a block of steps: the step is part of the counter, and so are 61 further secret bits of
noise. What a step draws follows from stream and step alone, whoever asks for it.

Proof: docs/guarantees/randomness.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from pasearch import busy
from pasearch.runs.keys import Stream

if TYPE_CHECKING:
    import torch

BLOCK = 256
"""Steps that have one key."""

OFF = "PASEARCH_NO_TRITON"
"""What switches kernels of our own off, if the environment has it."""

KNOWN = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
"""Philox's first words of key 0 and counter 0 (Random123's own test)."""


def kernels(device: torch.device | str) -> ModuleType | None:
    """Return the kernels of a GPU; None on a processor, or without Triton."""
    kind = device if isinstance(device, str) else device.type
    return _loaded(kind) if kind == "cuda" else None


@cache
def _loaded(kind: str) -> ModuleType | None:
    off = os.environ.get(OFF, "0") != "0"
    if off or importlib.util.find_spec("triton") is None:
        return None
    with busy.at(busy.COMPILING):
        code = importlib.import_module("pasearch.runs.gpu_kernels")
        u, v = (int(each) % 2**64 for each in code.words(1, 0, 0, 0, kind).tolist())
    if (u, v) != (KNOWN[1] << 32 | KNOWN[0], KNOWN[3] << 32 | KNOWN[2]):
        raise RuntimeError("Triton's Philox is another one here.")
    return code


def noise_key(stream: Stream, step: int) -> tuple[int, int, int]:
    """Return the key of a step's noise, where its counter begins, and the step of the block."""
    block, within = divmod(step, BLOCK)
    return *stream.child("blocks").seed_and_offset(block), within


def mask_key(stream: Stream, step: int) -> tuple[int, int]:
    """Return the key of a step's dropout masks, and the step of the block."""
    block, within = divmod(step, BLOCK)
    return stream.child("blocks").seed64(block), within
