"""Records go through a front end in pieces of one size, each computed by one thread.

A library rounds a product's rows otherwise where there are fewer of them, or more threads: and a
run has fewer threads in a round of many candidates, whose number may be secret, than in its final
training. In pieces, a record's numbers are the same to the bit however many threads map them, and
whoever lies beside it. The last piece is filled up with zeros.

Source: docs/rules.md, rules 10, 11 and 14.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.data.precision import full_precision
from pasearch.data.threads import use_threads
from pasearch.runs.processor import ThreadTeam

PIECE_SIZES, MIN_LARGE_NUMBERS = (128, 32), 2**14
"""Records of a piece: a multiple of 32, as of a training's products (`training.one_step.EVEN`); the
second where a record has more numbers than `LARGE`, as each thread has room for a piece."""

PIECES_PER_CALL = 16
"""Pieces that are asked for at a time."""


def choose_piece_size(shape: tuple[int, ...]) -> int:
    """Return how many records of a shape a piece has."""
    return PIECE_SIZES[math.prod(shape) > MIN_LARGE_NUMBERS]


def copy_to_device(module: nn.Module, device: str) -> nn.Module:
    """Return a copy on a device, whose numbers of half precision are float32 once and for all."""
    made = copy.deepcopy(module)
    for part in made.modules():
        for name, each in part.named_buffers(recurse=False):
            if each.dtype is torch.float16:
                setattr(part, name, each.float())
    return made.to(device)


def map_records(make: Callable[[Tensor], Tensor], x: Tensor, device: str = "cpu") -> np.ndarray:
    """Return what a map makes of records, float32 (records, ...).

    Args:
        make: Maps each record alone; lies on the device.
        x: Records, (records, *shape), on the processor.
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
