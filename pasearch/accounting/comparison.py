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
from typing import Any

from pasearch.accounting.additive import ORDERS, Shifts, additive_rdp
from pasearch.accounting.checks import fraction, positive, whole
from pasearch.accounting.density import Density
from pasearch.accounting.profiles import Array
from pasearch.accounting.renyi import epsilon_from_rdp
from pasearch.errors import BudgetError, UsageError

ACCURACY = 1e-4
"""How much larger than the least a solved scale may be, relatively."""


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
    def mean_absolute(self) -> float:
        """The l1 error of a coordinate; `inf` if there is none."""
        return self.density.mean_absolute

    @property
    def standard_deviation(self) -> float:
        """The l2 error of a coordinate; `inf` if there is none."""
        return self.density.standard_deviation

    def to_json(self) -> dict[str, Any]:
        """Return plain values; null for an error that is infinite."""
        names = ("mean_absolute", "standard_deviation", "fisher_information")
        numbers = {"price": self.price} | {name: getattr(self.density, name) for name in names}
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

    Guarantee: the price of each was computed, and is at most epsilon.

    Args:
        densities: Of the noise, at any scale.
        shifts: See `additive_rdp`.
        sampling_probability: q, in (0, 1].
        steps: How many are composed.
        epsilon: Above 0.
        delta: In (0, 1).
        orders: (m,) above 1: fewer are faster and may cost more.

    Raises:
        BudgetError: No scale within reach is cheap enough.
    """
    target = positive("epsilon", epsilon)

    def cost(density: Density) -> float:
        return epsilon_of(density, shifts, sampling_probability, steps, delta, orders)

    def at_cost(density: Density) -> Comparison:
        at = density.with_scale(least_scale(lambda scale: cost(density.with_scale(scale)), target))
        return Comparison(density=at, price=cost(at))

    return sorted(map(at_cost, densities), key=lambda row: row.mean_absolute)


def epsilon_of(
    density: Density,
    shifts: Shifts | Sequence[Shifts],
    sampling_probability: float,
    steps: int,
    delta: float,
    orders: Array = ORDERS,
) -> float:
    """Return the price at delta of so many steps, by RDP at these orders; args as of `compare`."""
    values = whole("steps", steps) * additive_rdp(density, shifts, sampling_probability, orders)
    return epsilon_from_rdp(values, fraction("delta", delta), orders)


def least_scale(cost: Callable[[float], float], target: float) -> float:
    """Return the least scale whose cost is at most the target, or at most `ACCURACY` more.

    Guarantee: the cost at the returned scale was computed, and is at most the target.

    Args:
        cost: From a scale to what falls as it grows.
        target: Above 0.

    Raises:
        BudgetError: No scale up to 10^9 is cheap enough.
        UsageError: A scale of 10^-9 is cheap enough.
    """
    low, high = 1.0, 1.0
    while not cost(high) <= target:
        low, high = high, high * 2
        if not high < 1e9:
            raise BudgetError(
                f"No scale up to {high:g} costs at most {target:g}: raise epsilon, or plan less."
            )
    while low == high or cost(low) <= target:
        high, low = low, low / 2
        if not low > 1e-9:
            raise UsageError(f"Noise of scale {low:g} costs less than {target:g}: lower epsilon.")
    while high > low * (1 + ACCURACY):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= target else (middle, high)
    assert cost(high) <= target
    return high
