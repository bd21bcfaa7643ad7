"""Whether a GPU has kernels of our own (`kernels`), and what they are given of noise and masks.

A key serves a block of steps: the step is part of the counter, and so are 61 further secret bits of
noise. What a step draws follows from stream and step alone, whoever asks for it.

Kernels are compiled for the GPU that is there, by the Triton that is there. Before a process uses
them it tries them, on public numbers: their bits have to be Philox's, and their noise, of 2^20
numbers, that of exact arithmetic to the last bit. Where they fail, torch's are taken.

Proof: docs/guarantees/randomness.md, docs/guarantees/floating-point.md ("On a GPU").
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch import status_message
from pasearch.errors import describe_system_error
from pasearch.runs.keys import Stream, to_int64
from pasearch.runs.normals import count_pairs, grid_distance, normals_from_words

if TYPE_CHECKING:
    import torch

STEPS_PER_BLOCK = 1024
"""Steps that have one key."""

NO_TRITON_VARIABLE = "PASEARCH_NO_TRITON"
"""What switches kernels of our own off, if the environment has it."""

STEP_NUMBERS = 10
"""Numbers that are given of a step's noise: see `gpu.kernels.WIDE` and what follows."""

NO_STEP = 2**30
"""No step that may be wrong."""

PHILOX_TEST_WORDS = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
"""Philox's words of key 0 and counter 0, of 32 bits each: the test of its authors."""

TEST_NUMBERS = 2**20
"""Numbers whose noise is compared."""


def load_kernels(device: torch.device | str) -> ModuleType | None:
    """Return the kernels of a GPU; None on a processor, and where none can be used."""
    kind = device if isinstance(device, str) else device.type
    return _load_noise_kernels(kind, cuda_device_index(kind)) if kind == "cuda" else None


def cuda_device_index(device: str) -> int:
    """Return which GPU torch means by "cuda" here; -1 on a processor."""
    import torch

    there = torch.cuda.is_initialized() or torch.cuda.is_available()
    return torch.cuda.current_device() if device == "cuda" and there else -1


@cache
def _load_noise_kernels(kind: str, number: int) -> ModuleType | None:
    off = os.environ.get(NO_TRITON_VARIABLE, "0") != "0"
    if off or importlib.util.find_spec("triton") is None:
        return None
    return load_if_usable("pasearch.gpu.kernels", lambda code: _check_noise_kernels(code, kind))


def load_if_usable(module: str, agrees: Callable[[ModuleType], bool]) -> ModuleType | None:
    """Load kernels and try them; None, with a warning, if they cannot be compiled or used."""
    try:
        with status_message.show_status(status_message.COMPILING_STATUS):
            code = importlib.import_module(module)
            agreed = agrees(code)
        told = "they find other numbers than torch"
    except Exception as error:  # noqa: BLE001 - no compiler, no room for its files, another version
        code, agreed = None, False
        told = describe_system_error(error) or f"Triton ended with {type(error).__name__}"
    if agreed:
        return code
    warnings.warn(
        f"pasearch's own programs for this GPU cannot be used: {told}. Training goes on by "
        f"torch's, more slowly. {NO_TRITON_VARIABLE}=1 does without this attempt.",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _check_noise_kernels(code: Any, device: str) -> bool:
    """Whether bits are Philox's, noise is exact to the bit, and weights are moved as by numpy."""
    import torch

    drawn = [int(each) % 2**64 for each in code.philox_words(1, 0, 0, 0, device).tolist()]
    if drawn != [
        PHILOX_TEST_WORDS[1] << 32 | PHILOX_TEST_WORDS[0],
        PHILOX_TEST_WORDS[3] << 32 | PHILOX_TEST_WORDS[2],
    ]:
        return False
    stream, scale, rate, share = Stream(bytes(32)), 0.3, np.float32(0.7), np.float32(1 / 3)
    sums = torch.linspace(-40.0, 40.0, TEST_NUMBERS, device=device)
    exact, weights = sums.clone(), sums.flip(0).sin()
    before = weights.clone().cpu().numpy()
    key, begin, _ = noise_key(stream, 0)
    told = pack_noise_inputs([scale], key, begin)
    told.view(np.float64)[:, [2, 4]] = rate, share
    given, noted = torch.from_numpy(told).to(device), torch.full((), NO_STEP, dtype=torch.int32)
    noted, doubts = noted.to(device), code.allocate_doubts(TEST_NUMBERS, device)
    row = [*row_addresses(given, sums, noted, doubts, weights), TEST_NUMBERS, given.shape[1]]
    step = torch.zeros((), dtype=torch.int64, device=device)
    code.release(code.list_work(TEST_NUMBERS, device), torch.tensor([row], device=device), step)
    words = code.philox_words(count_pairs(TEST_NUMBERS), key, begin, 0, device)
    normals_from_words(words, TEST_NUMBERS, stream, 0).add_to(exact, scale)
    moved = before - sums.cpu().numpy() * share * rate
    alike = bool(torch.equal(sums, exact)) and np.array_equal(weights.cpu().numpy(), moved)
    return int(noted) == NO_STEP and alike


def row_addresses(
    given: torch.Tensor,
    sums: torch.Tensor,
    noted: torch.Tensor,
    doubts: torch.Tensor,
    weights: torch.Tensor | None = None,
) -> list[int]:
    """Return the first of a row of `release`, for a sum that moves weights at most."""
    moves = 0 if weights is None else weights.data_ptr()
    return [given.data_ptr(), sums.data_ptr(), moves, *4 * [0], noted.data_ptr(), doubts.data_ptr()]


def pack_noise_inputs(
    scales: list[float], key: int, begin: int, more: int = 0
) -> np.ndarray[Any, Any]:
    """Return what is given of the noise of a block's steps, int64, (steps, GIVEN + more).

    Args:
        scales: Standard deviations of the first steps; those behind have the last one's.
        key: Of `noise_key`.
        begin: See there.
        more: Further numbers of each step, 0 as yet.
    """
    if not scales:
        raise ValueError("There is no scale of the noise.")
    from pasearch.runs.compiled import (
        COMPILED_ERROR,  # with numba, which a processor may do without
    )

    given = np.zeros((STEPS_PER_BLOCK, STEP_NUMBERS + more), dtype=np.int64)
    for row, scale in enumerate(scales):
        wide, grain = scale / grid_distance(scale), grid_distance(scale)
        sure = np.nextafter(np.float32(0.5 - COMPILED_ERROR * wide), np.float32(0.0))
        given.view(np.float64)[row, [0, 1, 8, 9]] = wide, grain, sure, 1.0 / grain
    given[len(scales) :] = given[len(scales) - 1]
    given[:, 6:8] = to_int64(key), to_int64(begin)
    return given


def noise_key(stream: Stream, step: int) -> tuple[int, int, int]:
    """Return the key of a step's noise, where its counter begins, and the step of the block."""
    block, within = divmod(step, STEPS_PER_BLOCK)
    return *stream.child("blocks").seed_and_offset(block), within


def mask_key(stream: Stream, step: int) -> tuple[int, int]:
    """Return the key of a step's dropout masks, and the step of the block."""
    block, within = divmod(step, STEPS_PER_BLOCK)
    return stream.child("blocks").seed64(block), within
