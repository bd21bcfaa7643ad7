"""Which noise is least at equal price: the arithmetic behind Nasr et al.'s Fig. 6.

    l1 = E|z|        l2 = sqrt(E z^2)        of one coordinate, at the scale that costs the target

For small shifts the price depends on the Fisher information J of the location alone, as
a (a-1) q^2 J ||psi||^2 / 2 in A_a. There the Gaussian has the least l2 (Cramer and Rao), and no
density has an l1 below .9921 of its: that is of Airy's function, squared. Where a record adds to a
few coordinates only, others can have less of both.

Source: Nasr, Shokri and Houmansadr 2020, Section 5. Proof: docs/guarantees/encoding.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import minimize_scalar

from pasearch.accounting.additive import ORDERS, Shifts, additive_rdp, epsilon_of, least_scale
from pasearch.accounting.checks import positive, whole
from pasearch.accounting.densities import Density
from pasearch.accounting.profiles import Array

Cost = Callable[[Density], float]
Error = Literal["mean_absolute", "standard_deviation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a density's noise is like at the scale at which it costs what the others cost.

    Args:
        density: At that scale.
        price: Epsilon at delta, or the divergence at one order.
    """

    density: Density
    price: float

    @property
    def scale(self) -> float:
        """The density's."""
        return self.density.scale

    @property
    def mean_absolute(self) -> float:
        """The l1 error of a coordinate; `inf` if there is none."""
        return self.density.mean_absolute

    @property
    def standard_deviation(self) -> float:
        """The l2 error of a coordinate; `inf` if there is none."""
        return self.density.standard_deviation

    @property
    def fisher_information(self) -> float:
        """Of the location."""
        return self.density.fisher_information

    def to_json(self) -> dict[str, Any]:
        """Return plain values; null for an error that is infinite."""
        names = ("price", "mean_absolute", "standard_deviation", "fisher_information")
        numbers = {name: getattr(self, name) for name in names}
        finite = {name: v if math.isfinite(v) else None for name, v in numbers.items()}
        return {"density": self.density.to_json(), **finite}


def compare(
    densities: Iterable[Density],
    shifts: Shifts | Sequence[Shifts],
    sampling_probability: float,
    steps: int,
    epsilon: float,
    delta: float,
    *,
    orders: Array = ORDERS,
) -> list[Comparison]:
    """Return the densities at equal price, least l1 error first.

    Args, raises: as of `additive.scale_for`.
    """
    cost = _price(shifts, sampling_probability, steps, delta, orders)
    return _sorted(_at_cost(each, cost, positive("epsilon", epsilon)) for each in densities)


def compare_divergence(
    densities: Iterable[Density],
    shifts: Shifts | Sequence[Shifts],
    sampling_probability: float,
    order: int,
    divergence: float,
) -> list[Comparison]:
    """Return the densities at equal Renyi divergence of one step, least l1 error first.

    Source: Nasr et al., Fig. 6 (order 2).
    """
    orders = np.array([float(whole("order", order))])

    def cost(density: Density) -> float:
        return float(additive_rdp(density, shifts, sampling_probability, orders)[0])

    return _sorted(_at_cost(each, cost, positive("divergence", divergence)) for each in densities)


def best_of_family(
    family: Callable[[float], Density],
    low: float,
    high: float,
    shifts: Shifts | Sequence[Shifts],
    sampling_probability: float,
    steps: int,
    epsilon: float,
    delta: float,
    *,
    error: Error = "mean_absolute",
    orders: Array = ORDERS,
) -> Comparison:
    """Return the member of a family that has the least error at this price, about.

    Args:
        family: From its parameter to a density, such as `lambda p: GeneralisedNormal(power=p)`.
        low: The least parameter, above 0; both ends are tried too.
        high: The largest.
        shifts: And what follows: as of `additive.scale_for`.
        sampling_probability: q, in (0, 1].
        steps: How many are composed.
        epsilon: Above 0.
        delta: In (0, 1).
        error: Which error.
        orders: (m,) above 1.
    """
    cost = _price(shifts, sampling_probability, steps, delta, orders)
    seen: dict[float, Comparison] = {}

    def loss(dial: float) -> float:
        parameter = min(high, max(low, math.exp(dial)))
        seen[parameter] = _at_cost(family(parameter), cost, epsilon)
        value: float = getattr(seen[parameter], error)
        return min(value, 1e300)  # the search knows no infinity

    ends = math.log(positive("low", low)), math.log(positive("high", high))
    for end in ends:
        loss(end)
    minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 0.02, "maxiter": 16})
    return min(seen.values(), key=lambda row: getattr(row, error))


def _price(
    shifts: Shifts | Sequence[Shifts], q: float, steps: int, delta: float, orders: Array
) -> Cost:
    return lambda density: epsilon_of(density, shifts, q, steps, delta, orders)


def _at_cost(density: Density, cost: Cost, target: float) -> Comparison:
    scale = least_scale(lambda scale: cost(density.with_scale(scale)), target)
    at = density.with_scale(scale)
    return Comparison(density=at, price=cost(at))


def _sorted(rows: Iterable[Comparison]) -> list[Comparison]:
    return sorted(rows, key=lambda row: row.mean_absolute)
