"""How much the compiled functions err, over every U and V there is: what a proof rests on.

    python benchmarks/floating_point/exhaustive.py        what results/exhaustive.json holds

A radius comes from 31 bits of U, a cosine and a sine from 32 of V. Each is compared with float64's,
which errs by 2^-50 at most. The operations are IEEE's in a fixed order, so that another machine
finds the same.
"""

from __future__ import annotations

import json
import math
from typing import Any

from numba import njit

from pasearch.runs import compiled
from pasearch.runs.compiled import MAX_U_BITS, MIN_U_BITS, int32

radius: Any = compiled._box_muller_radius
cosine_and_sine: Any = compiled._cosine_and_sine


@njit
def of_radii(low, high):
    """Return the largest error, and that with the bits of U that are not drawn included."""
    worst, whole_worst = 0.0, 0.0
    for length in range(low, high + 1):
        found = radius(int32(length))
        middle = math.sqrt(-2.0 * math.log((length + 0.5) * 2.0**-31))
        worst = max(worst, abs(found - middle))
        for end in (length, length + 1):
            exact = math.sqrt(-2.0 * math.log(end * 2.0**-31))
            whole_worst = max(whole_worst, abs(found - exact))
    return worst, whole_worst


@njit
def of_turns(low, high):
    """Return the largest error of a cosine and of a sine."""
    first, second = 0.0, 0.0
    for turn in range(low, high):
        cosine, sine = cosine_and_sine(int32(turn))
        angle = math.pi * 2.0**-31 * turn
        first = max(first, abs(cosine - math.cos(angle)))
        second = max(second, abs(sine - math.sin(angle)))
    return first, second


def main() -> None:
    """Try all, and print a line of JSON."""
    worst, with_rest = of_radii(MIN_U_BITS, MAX_U_BITS)
    cosine, sine = of_turns(-(2**31), 2**31)
    print(json.dumps({
        "radii": MAX_U_BITS - MIN_U_BITS + 1, "radius": worst, "radius_and_rest": with_rest,
        "turns": 2**32, "cosine": cosine, "sine": sine,
        "log2": {name: round(math.log2(each), 2) for name, each in
                 (("radius_and_rest", with_rest), ("cosine", cosine), ("sine", sine))},
    }))  # fmt: skip


if __name__ == "__main__":
    main()
