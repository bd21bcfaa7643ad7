"""Strategies by name, as the command line and the API say them.

| name | trainings by default |
|---|---|
| `fixed` | 1 |
| `rs` | K geometric, mean 10 |
| `mgrs` | K_1, K_2, K_3 geometric, means 40, 20, 10 (Bao et al., IX-A) |
| `paas` | 6 generations of 10 (Bao et al., IX-A) |
| `portions` | one a candidate of the space if it has so few, else 4 |
| `ahead`, `insured` | 4 looks with a small part of the squared budget, one with the rest |
| `grid` | every candidate twice at each epsilon of a grid, one with the rest |
| `stw` | as paas, without privacy |
"""

from __future__ import annotations

from typing import Any

from pasearch.accounting.checks import kind_of
from pasearch.errors import UsageError, nearest
from pasearch.search.strategy import STRATEGIES, Strategy


def strategy(name: str, **settings: Any) -> Strategy:
    """Return a strategy.

    Args:
        name: One of `STRATEGIES`.
        settings: candidates, generations, rungs, law, max_candidates, shares and repeats, where the
            strategy takes them; None leaves one as usual.

    Raises:
        UsageError: An unknown name, or a setting that the strategy does not have.
    """
    if (kind := STRATEGIES.find(name)) is None:
        raise UsageError(
            f"Strategy {name!r} is not known: expected one of auto, {', '.join(STRATEGIES)}, "
            f"paas-paper.{nearest(name, ('auto', *STRATEGIES, 'paas-paper'))}"
        )
    given = {setting: value for setting, value in settings.items() if value is not None}
    if unknown := [setting for setting in given if setting not in kind.takes]:
        has = ", ".join(f"`{each}=`" for each in kind.takes) or "no settings"
        raise UsageError(f"Strategy {name!r} takes no `{unknown[0]}=`: it has {has}.")
    return kind.asked(**given)


def from_json(values: object) -> Strategy:
    """Read what a strategy's `to_json` wrote.

    Raises:
        UsageError: An unknown strategy, a field it lacks, or a value that it refuses.
    """
    kind, given = kind_of("strategy", STRATEGIES.kinds(), values)
    return kind.from_values(**given)
