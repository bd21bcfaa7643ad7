"""What stands in for others in tests: for private records, and for networks of any kind."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from torch import Tensor, nn

from pasearch.gpu.gpu_training import GpuTraining
from pasearch.gpu.rounds import can_use_rounds
from pasearch.training.training_loop import Training


class Untouchable:
    """An array with a form, and no value that anyone could read."""

    def __init__(self, shape: tuple[int, ...], kind: str):
        self.shape, self.dtype, self.ndim = shape, np.dtype(kind), len(shape)

    def __len__(self) -> int:
        return self.shape[0]

    def _refuse(self, *arguments: object) -> NoReturn:
        raise AssertionError("a value was touched")

    __getitem__ = __array__ = __iter__ = __getattr__ = __eq__ = __lt__ = __add__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Hidden(nn.Module):
    """The same network, of which nothing is known but what it returns."""

    def __init__(self, within: nn.Module):
        super().__init__()
        self.within = within

    def forward(self, x: Tensor) -> Tensor:
        return self.within(x)


def start_training(*given: Any, in_rounds: bool) -> Training:
    """Start a training on the CPU: step by step, or in rounds if the recipe allows it on a GPU."""
    rounds = in_rounds and can_use_rounds(given[2])
    return GpuTraining(*given, device="cpu") if rounds else Training(*given)


def start_gpu_training(*given: Any, query: None = None, **named: Any) -> GpuTraining:
    """Start a training in rounds, whatever its device."""
    return GpuTraining(*given, **named)
