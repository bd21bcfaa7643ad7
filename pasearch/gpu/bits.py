"""Loading and test of the GPU kernels (module `kernels`), and their inputs for random numbers.

One key serves a block of training steps. The counter of the generator contains the index of the
step in its block and, for noise, 61 further secret bits. So the random numbers of a step depend
only on the random stream and the step.

Triton compiles the kernels for the GPU in use. Each process tests them on public numbers first:
their bits must be those of Philox, and 2^20 noisy values must equal exact arithmetic in every bit.
If the test fails, PyTorch is used instead.

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
from pasearch.runs.normals import compute_grid_distance, count_pairs, normals_from_words

if TYPE_CHECKING:
    import torch

STEPS_PER_BLOCK = 1024
"""Number of steps that share one key."""

NO_TRITON_VARIABLE = "PASEARCH_NO_TRITON"
"""Environment variable that disables these kernels."""

STEP_NUMBERS = 10
"""Number of inputs of a step: the fields of `gpu.kernels` from `NOISE_SCALE` on."""

NO_STEP = 2**30
"""Value of "first step that may be wrong" if there is no such step."""

PHILOX_TEST_WORDS = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
"""32-bit words of Philox for key 0 and counter 0: the test case of its authors."""

TEST_NUMBERS = 2**20
"""Number of noisy values that the test compares with exact arithmetic."""


def load_kernels(device: torch.device | str) -> ModuleType | None:
    """Load and test the kernels once for a GPU; None on a CPU, or if they cannot be used."""
    kind = device if isinstance(device, str) else device.type
    return _load_noise_kernels(kind, cuda_device_index(kind)) if kind == "cuda" else None


def cuda_device_index(device: str) -> int:
    """Get the index of PyTorch's current CUDA device; -1 on a CPU."""
    import torch

    there = torch.cuda.is_initialized() or torch.cuda.is_available()
    return torch.cuda.current_device() if device == "cuda" and there else -1


@cache
def _load_noise_kernels(kind: str, number: int) -> ModuleType | None:
    """Load the noise kernels once per device index `number`."""
    off = os.environ.get(NO_TRITON_VARIABLE, "0") != "0"
    if off or importlib.util.find_spec("triton") is None:
        return None
    return load_if_usable("pasearch.gpu.kernels", lambda code: _are_noise_kernels_exact(code, kind))


def load_if_usable(module: str, agrees: Callable[[ModuleType], bool]) -> ModuleType | None:
    """Import a module of kernels, and test it; None, with a warning, if that fails.

    Args:
        module: Name of the module.
        agrees: Test function; True if the results of the module are correct.
    """
    try:
        with status_message.show_status(status_message.COMPILING_STATUS):
            code = importlib.import_module(module)
            agreed = agrees(code)
        reason = "their results differ from PyTorch's"
    except Exception as error:  # noqa: BLE001 - no compiler, no room for its files, another version
        code, agreed = None, False
        reason = describe_system_error(error) or f"Triton ended with {type(error).__name__}"
    if agreed:
        return code
    warnings.warn(
        f"The Triton kernels of pasearch cannot be used on this GPU: {reason}. Training continues "
        f"with PyTorch, more slowly. Set {NO_TRITON_VARIABLE}=1 to skip this test.",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _are_noise_kernels_exact(code: Any, device: str) -> bool:
    """Check that bits are those of Philox, noise is exact, and weight updates equal NumPy's."""
    import torch

    drawn = [int(each) % 2**64 for each in code.draw_philox_words(1, 0, 0, 0, device).tolist()]
    if drawn != [
        PHILOX_TEST_WORDS[1] << 32 | PHILOX_TEST_WORDS[0],
        PHILOX_TEST_WORDS[3] << 32 | PHILOX_TEST_WORDS[2],
    ]:
        return False
    stream, scale, rate, share = Stream(bytes(32)), 0.3, np.float32(0.7), np.float32(1 / 3)
    sums = torch.linspace(-40.0, 40.0, TEST_NUMBERS, device=device)
    exact, weights = sums.clone(), sums.flip(0).sin()
    before = weights.clone().cpu().numpy()
    key, begin, _ = derive_noise_key(stream, 0)
    packed = pack_noise_inputs([scale], key, begin)
    packed.view(np.float64)[:, [2, 4]] = rate, share
    given, noted = torch.from_numpy(packed).to(device), torch.full((), NO_STEP, dtype=torch.int32)
    noted, doubts = noted.to(device), code.allocate_doubts(TEST_NUMBERS, device)
    row = [*list_row_addresses(given, sums, noted, doubts, weights), TEST_NUMBERS, given.shape[1]]
    step = torch.zeros((), dtype=torch.int64, device=device)
    code.release(code.list_work(TEST_NUMBERS, device), torch.tensor([row], device=device), step)
    words = code.draw_philox_words(count_pairs(TEST_NUMBERS), key, begin, 0, device)
    normals_from_words(words, TEST_NUMBERS, stream, 0).add_to(exact, scale)
    moved = before - sums.cpu().numpy() * share * rate
    alike = bool(torch.equal(sums, exact)) and np.array_equal(weights.cpu().numpy(), moved)
    return int(noted) == NO_STEP and alike


def list_row_addresses(
    given: torch.Tensor,
    sums: torch.Tensor,
    noted: torch.Tensor,
    doubts: torch.Tensor,
    weights: torch.Tensor | None = None,
) -> list[int]:
    """List the address fields of one sum, as `kernels.release` reads them (`INPUTS_ADDRESS` ...).

    Args:
        given: Packed inputs of the steps.
        sums: Flat sum.
        noted: First step that may be wrong, int32, ().
        doubts: Buffer for values with uncertain rounding, from `kernels.allocate_doubts`.
        weights: Weights to update by the sum. None: none.
    """
    moves = 0 if weights is None else weights.data_ptr()
    return [given.data_ptr(), sums.data_ptr(), moves, *4 * [0], noted.data_ptr(), doubts.data_ptr()]


def pack_noise_inputs(
    scales: list[float], key: int, begin: int, more: int = 0
) -> np.ndarray[Any, Any]:
    """Pack the noise inputs of a block's steps, int64, (STEPS_PER_BLOCK, STEP_NUMBERS + more).

    Args:
        scales: Standard deviations of the noise of the first steps. Later steps use the last one.
        key: Key from `derive_noise_key`, 64 bits.
        begin: Counter start from `derive_noise_key`, 61 bits.
        more: Number of further fields per step, which are 0.
    """
    if not scales:
        raise ValueError("scales is empty: expected at least one standard deviation.")
    from pasearch.runs.compiled import (
        COMPILED_ERROR,  # imports numba, which a CPU may lack
    )

    given = np.zeros((STEPS_PER_BLOCK, STEP_NUMBERS + more), dtype=np.int64)
    for row, scale in enumerate(scales):
        wide, grain = scale / compute_grid_distance(scale), compute_grid_distance(scale)
        sure = np.nextafter(np.float32(0.5 - COMPILED_ERROR * wide), np.float32(0.0))
        given.view(np.float64)[row, [0, 1, 8, 9]] = wide, grain, sure, 1.0 / grain
    given[len(scales) :] = given[len(scales) - 1]
    given[:, 6:8] = to_int64(key), to_int64(begin)
    return given


def derive_noise_key(stream: Stream, step: int) -> tuple[int, int, int]:
    """Derive the noise key of a step, the counter start, and the step's index in its block."""
    block, within = divmod(step, STEPS_PER_BLOCK)
    return *stream.child("blocks").seed_and_offset(block), within


def derive_mask_key(stream: Stream, step: int) -> tuple[int, int]:
    """Derive the key of a step's dropout masks, and the step's index in its block."""
    block, within = divmod(step, STEPS_PER_BLOCK)
    return stream.child("blocks").seed64(block), within
