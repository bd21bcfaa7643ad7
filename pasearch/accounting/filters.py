"""A Renyi filter: releases chosen as the run goes, under a limit that is fixed before it.

    spend(e)  only if  for every kept order a:  eps_1(a) + ... + eps_k(a) + eps_e(a)  <=  B(a)

The claim is the conversion of B, the limit, at its best order: never that of what was spent, which
depends on the data. Each order by itself is a valid filter, so all of them hold together, and the
whole curve B does. Loss distributions have no such theorem, so a filter is priced by RDP only.

Source: Feldman and Zrnic 2021, Theorem 4.3; Lecuyer 2021; docs/rules.md, rule 6. Proof:
docs/guarantees/filters.md.
"""

from __future__ import annotations

from threading import Lock
from typing import NoReturn

import numpy as np

from pasearch.accounting.events import MOST_ORDER, Event, Filtered, describe
from pasearch.accounting.profiles import Array
from pasearch.accounting.renyi import Unsupported, filter_limit, monotone, rdp
from pasearch.errors import BudgetError


class Filter:
    """What releases may still be made, on one partition.

    Guarantee: whatever is spent, and however it was chosen from earlier releases, all of it costs
    `claim` at most. Never copied or pickled: two copies would spend twice.

    Args:
        limit: B, as an event that is fixed before a record is read.
        highest_order: The highest kept order, fixed as early: nothing is claimed above it, and
            nothing must fit there.

    Raises:
        Unsupported: the limit has no RDP bound at any order, or it leaks.

    Cost: `claim`, at once and whole, even if less is spent.
    """

    __slots__ = ("_limit", "_lock", "_most", "_spent")

    def __init__(self, limit: Event, highest_order: float = MOST_ORDER):
        self._limit = Filtered(limit, highest_order)
        self._most = filter_limit(limit, self._limit.highest_order)
        if not np.isfinite(self._most).any():
            raise Unsupported(
                f"RDP bounds [{describe(limit)}] at no order, so it limits nothing: take one that "
                "has a price by RDP."
            )
        self._spent = np.zeros_like(self._most)
        self._lock = Lock()

    @property
    def claim(self) -> Filtered:
        """What the whole costs, whatever was spent."""
        return self._limit

    @property
    def spent(self) -> Array:
        """An upper bound on the sum of what was spent, at each order of the grid: not for show.

        It depends on what was chosen; only `claim` is a price.
        """
        return self._spent.copy()

    def spend(self, event: Event) -> None:
        """Spend an event; release it after that.

        Args:
            event: Chosen from public numbers and earlier releases only.

        Raises:
            BudgetError: It does not fit: nothing is spent, and nothing may be released.
            Unsupported: the event has no RDP bound, or it leaks: nothing is spent.
        """
        with self._lock:
            total = self._with(event)
            if not self._fits(total):
                raise BudgetError(
                    f"[{describe(event)}] does not fit into what is left of "
                    f"[{describe(self._limit.event)}]: stop here, or take a cheaper release. "
                    "Nothing was spent."
                )
            self._spent = total

    def _with(self, event: Event) -> Array:
        """Return the sum with one event more, rounded up."""
        added = monotone(rdp(event))
        return np.where(added == 0, self._spent, np.nextafter(self._spent + added, np.inf))

    def _fits(self, total: Array) -> bool:
        return bool(np.all(total <= self._most))  # a NaN is not: `rdp` has none, and it would fail

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("A Filter is never copied or pickled: two copies would spend twice.")
