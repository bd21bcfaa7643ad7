"""Strategies by name, as the command line and the API say them.

| name | trainings by default |
|---|---|
| `fixed` | 1 |
| `rs` | K geometric, mean 10 |
| `mgrs` | K_1, K_2, K_3 geometric, means 40, 20, 10 (Bao et al., IX-A) |
| `paas` | 6 generations of 10 (Bao et al., IX-A) |
| `portions` | one a candidate of the space if it has so few, else 4 |
| `stw` | as paas, without privacy |
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pasearch.accounting.checks import kind_of, positive, whole
from pasearch.accounting.selection import MOST_RUNS, Law
from pasearch.errors import UsageError
from pasearch.search.genetic import PrivacyAwareArchitectureSearch, StandardWorkflow
from pasearch.search.multi_generation import MultiGenerationRandomizedSearch
from pasearch.search.portions import DisjointPortions
from pasearch.search.randomized import RandomizedSearch
from pasearch.search.strategy import Fixed, Strategy

STRATEGIES: tuple[str, ...] = ("fixed", "rs", "mgrs", "paas", "portions", "stw")
LAW = "geometric"


MOST_HALVINGS = 30
"""The most generations of mgrs: each has half of the trainings of the one before."""


def strategy(
    name: str,
    *,
    candidates: float | None = None,
    generations: int | None = None,
    law: str | None = None,
    cap: int | None = None,
) -> Strategy:
    """Return a strategy.

    Args:
        name: One of `STRATEGIES`.
        candidates: rs: mean of K. mgrs: mean of the first generation; every next one has half of
            the one before. paas, stw: candidates a generation. portions: their number.
        generations: mgrs, paas, stw: their number.
        law: rs, mgrs: "geometric", "logarithmic" or "poisson".
        cap: rs, mgrs: K is redrawn until it is at most this (priced).

    Raises:
        UsageError: An unknown name, or a setting that the strategy does not have.
    """
    given = {
        "candidates": candidates,
        "generations": generations,
        "law": law,
        "max-candidates": cap,
    }
    allowed = {
        "fixed": (),
        "rs": ("candidates", "law", "max-candidates"),
        "mgrs": ("candidates", "generations", "law", "max-candidates"),
        "paas": ("candidates", "generations"),
        "portions": ("candidates",),
        "stw": ("candidates", "generations"),
    }
    if name in ("rs", "mgrs") and candidates is not None and not 1 < candidates <= MOST_RUNS:
        raise UsageError(
            f"candidates is {candidates:g}: expected the mean number of trainings, above 1 (a "
            f"single one needs no selection: --strategy fixed) and at most {MOST_RUNS:,}."
        )
    if cap is not None and not cap >= 2:
        raise UsageError(
            f"max_candidates is {cap}: expected 2 or more; a single training needs no selection: "
            "--strategy fixed."
        )
    if name not in allowed:
        raise UsageError(
            f"Strategy {name!r} is not known: expected one of auto, {', '.join(STRATEGIES)}."
        )
    for setting, value in given.items():
        if value is not None and setting not in allowed[name]:
            has = ", ".join(f"--{each}" for each in allowed[name]) or "no settings"
            raise UsageError(f"Strategy {name!r} takes no --{setting}: it has {has}.")
    match name:
        case "fixed":
            return Fixed()
        case "rs":
            mean = 10.0 if candidates is None else candidates
            return RandomizedSearch(law=Law.named(law or LAW, mean=mean, cap=cap))
        case "mgrs":
            first = 40.0 if candidates is None else positive("candidates", candidates)
            count = 3
            if generations is not None:
                count = whole("generations", generations, most=MOST_HALVINGS)
            means = [first / 2**number for number in range(count)]
            if law != "poisson" and not means[-1] > 1:
                raise UsageError(
                    f"candidates is {first:g}: expected above {2 ** (count - 1)}, since its mean "
                    f"is halved in each of {count} generations and the last must be above 1."
                )
            laws = tuple(Law.named(law or LAW, mean=mean, cap=cap) for mean in means)
            return MultiGenerationRandomizedSearch(laws=laws)
        case "portions":
            return DisjointPortions(candidates=4 if candidates is None else _whole(candidates))
    kind = StandardWorkflow if name == "stw" else PrivacyAwareArchitectureSearch
    return kind(
        population=10 if candidates is None else _whole(candidates),
        generations=6 if generations is None else whole("generations", generations, most=MOST_RUNS),
    )


def _whole(candidates: float) -> int:
    number = positive("candidates", candidates)
    if not number.is_integer():
        raise UsageError(f"candidates is {candidates}: expected a whole number, 1 or above.")
    return whole("candidates", int(number), most=MOST_RUNS)


KINDS: dict[str, type[Strategy]] = {
    kind.name: kind
    for kind in (
        Fixed,
        RandomizedSearch,
        MultiGenerationRandomizedSearch,
        PrivacyAwareArchitectureSearch,
        DisjointPortions,
        StandardWorkflow,
    )
}

FIXED = ("alpha", "beta", "mutation")
"""What of a strategy nobody can set."""


def to_settings(given: Strategy) -> dict[str, Any]:
    """Return a strategy as plain values, from which `from_settings` makes it again."""
    names = [each.name for each in fields(given) if each.name not in FIXED]  # pyright: ignore[reportArgumentType]
    own = {name: getattr(given, name) for name in names}
    return {"name": given.name, **{name: _plain(value) for name, value in own.items()}}


def from_settings(values: object) -> Strategy:
    """Read what `to_settings` wrote.

    Raises:
        UsageError: An unknown strategy, a field it lacks, or a value that it refuses.
    """
    kind, given = kind_of("strategy", KINDS, values)
    if "law" in given:
        given["law"] = Law.from_json(given["law"])
    if "laws" in given:
        laws = given["laws"]
        if not isinstance(laws, list):
            raise UsageError(f"Strategy {kind.name!r} has laws {laws!r}: expected a list of laws.")
        given["laws"] = tuple(Law.from_json(each) for each in laws)
    if fixed := sorted(set(given) & set(FIXED)):
        raise UsageError(f"Strategy {kind.name!r}: {', '.join(fixed)} cannot be set: leave it out.")
    return kind(**given)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.to_json() if isinstance(value, Law) else value
