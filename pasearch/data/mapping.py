"""Application of a feature extractor to records, in pieces of a fixed size, one thread per piece.

A matrix library rounds a product differently if it has fewer rows, or if more threads compute it.
If many candidates are trained at the same time, each training has fewer threads, and the number of
candidates may be secret. With pieces of a fixed size, the output of a record is the same, bit for
bit, for any number of threads and any neighbouring records. The last piece is padded with zeros.

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
    """Disable reduced precision of float32 products, and timed choices of algorithms, in the block.

    This includes TF32, bfloat16 products and autocast.
    """
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
    """Return torch's settings of the precision of float32 products: object, attribute, exact value.

    The list includes the setting that chooses convolution algorithms by their time, because a
    resumed run could then round differently.
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


# Number of records in a piece: for small records, and for large ones because of the memory. Both
# are multiples of 32, like the batches of a training (`training.one_step`).
PIECE_SIZES = (128, 32)
# Maximum size of a small record, numbers.
MAX_SMALL_NUMBERS = 2**14

PIECES_PER_CALL = 16
"""Number of pieces for which callers read records at a time."""


def choose_piece_size(shape: tuple[int, ...]) -> int:
    """Return the number of records in a piece for records of this shape."""
    return PIECE_SIZES[math.prod(shape) > MAX_SMALL_NUMBERS]


def copy_to_device(module: nn.Module, device: str) -> nn.Module:
    """Return a copy of a module on a device, with float16 buffers converted to float32."""
    made = copy.deepcopy(module)
    for part in made.modules():
        for name, each in part.named_buffers(recurse=False):
            if each.dtype is torch.float16:
                setattr(part, name, each.float())
    return made.to(device)


def map_records(make: Callable[[Tensor], Tensor], x: Tensor, device: str = "cpu") -> np.ndarray:
    """Return a function's output for all records, float32 (records, ...).

    Args:
        make: Function of a batch on the device that transforms each record alone.
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
