"""Where a plan's noise stands: solved against the budget, or as a result states it.

A plan is arithmetic on public numbers but for one thing: how far each dial of noise was turned.
`Dials` turns them and remembers where they stand, so that a result can state it. `StatedDials`
takes what a result states, without solving, and says where that is not what solving gives: a
release that costs more than its part of the budget, or one that leaves some of it over.

Source: docs/verify.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pasearch.accounting import calibration
from pasearch.accounting.accountants import price
from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import positive
from pasearch.accounting.events import Event
from pasearch.errors import UsageError

LEFT_OVER = 0.01
"""The share of its budget that a solved dial may leave; `calibration.ACCURACY` is usual."""

ROUNDING = 1e-6
"""How much two computations of one price may differ, relatively."""

Priced = Callable[[float], Event]
"""From where a dial stands to what that costs."""


class Dials:
    """Turns each dial as far as its budget goes, and remembers where it stands, by name."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def largest(
        self, name: str, make_event: Priced, budget: Budget, low: float, high: float
    ) -> float:
        """Return the largest value whose event costs at most the budget; see `calibration`."""
        self.values[name] = calibration.largest(make_event, budget, low, high)
        return self.values[name]

    def smallest(
        self, name: str, make_event: Priced, budget: Budget, low: float, high: float
    ) -> float:
        """Return the smallest value whose event costs at most the budget; see `calibration`."""
        self.values[name] = calibration.smallest(make_event, budget, low, high)
        return self.values[name]


class StatedDials(Dials):
    """Takes where each dial stands from a result, and checks it.

    Args:
        stated: Where each dial stands, by name, as a file has it.
    """

    def __init__(self, stated: Mapping[str, Any]) -> None:
        super().__init__()
        self.stated = stated
        self.problems: list[str] = []

    def largest(
        self, name: str, make_event: Priced, budget: Budget, low: float, high: float
    ) -> float:
        """Return the stated value, which must use the budget up or be `high`."""
        return self._taken(name, make_event, budget, low, high, last=high)

    def smallest(
        self, name: str, make_event: Priced, budget: Budget, low: float, high: float
    ) -> float:
        """Return the stated value, which must use the budget up or be `low`."""
        return self._taken(name, make_event, budget, low, high, last=low)

    def unknown(self) -> list[str]:
        """Return the names of dials that the plan does not have."""
        return sorted(set(self.stated) - set(self.values))

    def _taken(
        self, name: str, make_event: Priced, budget: Budget, low: float, high: float, *, last: float
    ) -> float:
        if name not in self.stated:
            raise UsageError(f"the plan does not state how large the noise of {name!r} is.")
        value = positive(f"the noise of {name!r}", self.stated[name])
        if not low * (1 - ROUNDING) <= value <= high * (1 + ROUNDING):
            raise UsageError(
                f"the noise of {name!r} stands at {value:g}: expected {low:g} to {high:g}."
            )
        self.values[name] = value
        assert budget.delta is not None
        cost = price(make_event(value), budget.delta).epsilon
        if not cost <= budget.epsilon * (1 + ROUNDING):
            self.problems.append(
                f"{name}: its noise costs epsilon {cost:.4g}, and its part of the budget is "
                f"{budget.epsilon:.4g}."
            )
        at_end = abs(value - last) <= ROUNDING * last
        if not (cost >= budget.epsilon * (1 - LEFT_OVER) or at_end):
            self.problems.append(
                f"{name}: its noise costs epsilon {cost:.4g} only; a plan uses up its part of the "
                f"budget, {budget.epsilon:.4g}."
            )
        return value
