"""What stands in for others in tests: for private records, and for networks of any kind."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from torch import Tensor, nn


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
