"""Records pass through a feature extractor in pieces of one size, each computed by one thread.

A matrix library rounds a product differently if it has fewer rows, or if more threads compute it. A
run has fewer threads per training in a round of many candidates, whose number may be secret, than
in its final training. In pieces of a fixed size, the output of a record is the same to the bit,
whatever the number of threads and the neighbouring records. The last piece is padded with zeros.

Source: docs/rules.md, rules 10, 11 and 14.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.data.threads import use_threads
from pasearch.runs.processor import ThreadTeam


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


# Number of records in a piece of small and of large records: multiples of 32, like the batches of a
# training (`training.one_step`). Each thread needs memory for a piece.
PIECE_SIZES = (128, 32)
# Size of a record from which it is large, numbers.
MIN_LARGE_NUMBERS = 2**14

PIECES_PER_CALL = 16
"""Number of pieces that callers request at a time."""


def choose_piece_size(shape: tuple[int, ...]) -> int:
    """Choose the number of records in a piece, from the shape of a record."""
    return PIECE_SIZES[math.prod(shape) > MIN_LARGE_NUMBERS]


def copy_to_device(module: nn.Module, device: str) -> nn.Module:
    """Copy a module to a device; its buffers of half precision become float32."""
    made = copy.deepcopy(module)
    for part in made.modules():
        for name, each in part.named_buffers(recurse=False):
            if each.dtype is torch.float16:
                setattr(part, name, each.float())
    return made.to(device)


def map_records(make: Callable[[Tensor], Tensor], x: Tensor, device: str = "cpu") -> np.ndarray:
    """Map records, float32 (records, ...).

    Args:
        make: Map of each record alone, on the device.
        x: Records, (records, *shape), in CPU memory.
        device: "cpu", where all threads of torch share the pieces, or "cuda".
    """
    many = choose_piece_size(tuple(x.shape[1:]))
    pieces = math.ceil(len(x) / many)
    found: list[np.ndarray] = [np.empty(0)] * pieces

    def map_pieces(_: int, start: int, end: int) -> None:
        with torch.no_grad():
            for place in range(start, end):
                piece = x[place * many : (place + 1) * many]
                if missing := many - len(piece):
                    piece = torch.cat([piece, piece.new_zeros(missing, *x.shape[1:])])
                found[place] = make(piece.to(device)).cpu().numpy()

    team = ThreadTeam(torch.get_num_threads() if device == "cpu" else 1)
    with use_threads(1), full_precision():
        team.run_divided(pieces, map_pieces)
    return np.concatenate(found)[: len(x)]
