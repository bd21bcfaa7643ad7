"""Grids of epsilons, as a user writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pasearch.errors import UsageError

GRID = re.compile(r"([0-9.e+-]+):([0-9.e+-]+):log([0-9]+)", re.IGNORECASE)


def grid_of(given: str | Sequence[float]) -> tuple[float, ...]:
    """Return a grid of epsilons, rising.

    Args:
        given: Numbers, with commas if they are text; or "low:high:logN".

    Raises:
        UsageError: It is not rising, not above 0, or of one epsilon.
    """
    expected = (
        "expected rising numbers above 0, two or more, such as .1,1,10, or low:high:logN, such as "
        ".1:10:log12"
    )
    if isinstance(given, str):
        if (match := GRID.fullmatch(given.strip())) is None:
            try:
                values = [float(each) for each in given.split(",")]
            except ValueError:
                raise UsageError(f"A grid of epsilons is {given!r}: {expected}.") from None
        else:
            try:
                low, high, count = float(match[1]), float(match[2]), int(match[3])
            except ValueError:
                raise UsageError(f"A grid of epsilons is {given!r}: {expected}.") from None
            if not (0.0 < low < high < math.inf and 2 <= count <= 1000):
                raise UsageError(f"A grid of epsilons is {given!r}: {expected}.")
            values = [float(f"{each:.4g}") for each in np.geomspace(low, high, count)]
    else:
        values = [float(each) for each in given]
    rising = all(a < b for a, b in pairwise(values))
    if not (len(values) >= 2 and rising and values[0] > 0.0 and math.isfinite(values[-1])):
        raise UsageError(f"A grid of epsilons is {given!r}: {expected}.")
    return tuple(values)
