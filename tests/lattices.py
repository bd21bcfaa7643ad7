"""An attack on noise by its lattice: which sums could have led to what was released?

The attacker knows both candidate sums, with a record and without it, and what is computed from the
noise on: forward(z, s) gives what is released for the noise z. Floating-point samplers and
multiplications leave gaps: values that no z of the sampler leads to. For each candidate the
attacker counts the coordinates whose released value has no such z near by. Without gaps, or where
they say nothing of the candidates, the difference of the two counts is the same in both worlds.

In the tail of numpy's ziggurat, 3.4493 < |z| < 3.6542, two of its layers meet:

    z = k v / (f(r) 2^b)  or  k r / 2^b,     k whole, b = 23 (float32) or 52 (float64)

so of all floats there only some three in four are ever drawn.

Sources: Mironov 2012; Holohan and Braghin 2021; Marsaglia and Tsang 2000 (r and v, the constants of
the ziggurat).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

Array = np.ndarray
Forward = Callable[[Array, Array], Array]
"""From noise at scale 1 and a sum to what is released, number by number."""

R, V = 3.6541528853610088, 0.00492867323399
INNER = 3.4492782985
STEPS = 4
"""How many floats to either side of the likely noise are tried."""


@dataclass(frozen=True)
class Attack:
    """Who counts impossible coordinates.

    Args:
        forward: What the old sampler's numbers go through.
        slope: By how much what is released grows with z, about.
        kind: float32 or float64: of the old sampler's numbers.
        ziggurat: Whether its gaps in the tail are used too.
    """

    forward: Forward
    slope: float
    kind: type = np.float32
    ziggurat: bool = True

    def impossible(self, released: Array, total: Array) -> int:
        """Count the coordinates that no noise leads to, if this was the sum."""
        start = self.forward(np.zeros(len(total), dtype=self.kind), total).astype(float)
        likely = ((released.astype(float) - start) / self.slope).astype(self.kind)
        found = np.zeros(len(total), dtype=bool)
        for move in range(-STEPS, STEPS + 1):
            z = _moved(likely, move)
            usable = self._drawn(z) if self.ziggurat else True
            found |= (self.forward(z, total) == released) & usable
        return int((~found).sum())

    def _drawn(self, z: Array) -> Array:
        """Whether numpy's ziggurat ever draws these numbers; True outside of its tail."""
        sizes, bits = np.abs(z), 23 if self.kind is np.float32 else 52
        hit = ~((sizes > INNER + 1e-6) & (sizes < R - 1e-6))
        tail = np.flatnonzero(~hit)
        size = sizes[tail]
        for width in (V / math.exp(-R * R / 2), R):
            unit = self.kind(width / 2**bits)
            k = np.rint(size.astype(np.longdouble) / unit)
            for near in (k - 1, k, k + 1):
                hit[tail] |= near.astype(self.kind) * unit == size
        return hit


def _moved(values: Array, steps: int) -> Array:
    bits = values.view(np.int32 if values.dtype == np.float32 else np.int64)
    return (bits + steps).view(values.dtype)


def advantage(
    attack: Attack, release: Callable[[bool, int], Array], sums: tuple[Array, Array], runs: int
) -> tuple[int, int]:
    """Attack so many releases of either world; return how many hits, and how many false alarms.

    The guess is "with the record" where the candidate without it has more impossible coordinates
    than in half of as many other runs, which are attacked first.

    Args:
        attack: Who.
        release: From whether the record is there, and a run's number, to what is released.
        sums: Without the record, and with it.
        runs: In each world.
    """

    def score(present: bool, run: int) -> int:
        seen = release(present, run)
        return attack.impossible(seen, sums[0]) - attack.impossible(seen, sums[1])

    others = range(runs, runs + max(10, runs // 10))
    threshold = np.median([score(present, run) for run in others for present in (False, True)])
    hits, alarms = (
        sum(score(present, run) > threshold for run in range(runs)) for present in (True, False)
    )
    return hits, alarms


def lower_bound(hits: int, alarms: int, runs: int, delta: float, level: float = 0.05) -> float:
    """Return an epsilon that the releases exceed, by Clopper and Pearson, for either guess."""
    found = 0.0
    for right, wrong in ((hits, alarms), (runs - alarms, runs - hits)):
        low = float(beta.ppf(level / 4, right, runs - right + 1)) if right else 0.0
        high = float(beta.isf(level / 4, wrong + 1, runs - wrong)) if wrong < runs else 1.0
        if low > delta:
            found = max(found, math.log((low - delta) / high))
    return found
