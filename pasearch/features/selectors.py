"""Selectors by name, as the command line and the API say them.

| method | what it reads to choose | charged as |
|---|---|---|
| all, max-pool | nothing | - |
| random | nothing | - |
| cfs-greedy, cfs-ga | all contingency tables, or entropies | one Gaussian; Pure, composed |
| top | class shares, then k picks by exact counts | Gaussian; k Pure |
| pca | the second moments | Gaussian |
| pafs | k l privately trained models, and their scores | all that are planned, composed |
| one-hot | two privately trained models, and their scores | both, composed |
| subsets | K privately trained models, and their scores | one repeat-and-select |
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pasearch.accounting.checks import kind_of
from pasearch.errors import UsageError
from pasearch.features.selector import SELECTORS, Choice, Selector, check_one_of


def selector(name: str, **settings: Any) -> Selector:
    """Return a selector.

    Args:
        name: One of `SELECTORS`.
        settings: Its fields; None leaves one as usual.

    Raises:
        UsageError: An unknown name, or a setting that the method has no use for.
    """
    check_one_of("method", name, SELECTORS)
    given = {setting: value for setting, value in settings.items() if value is not None}
    for setting in given:
        if setting == "size" and (why := SELECTORS[name].no_size):
            raise UsageError(f"Method {name!r} {why}: leave `k=` out.")
        if name not in (owners := takers(setting)):
            raise UsageError(
                f"`{setting}=` is of the method {' or '.join(owners)}, and method {name!r} has no "
                "use for it: leave it out, or name that method."
            )
    return SELECTORS[name](**given)


def choice_of(name: str, trainer: str = "dpsgd", **settings: Any) -> Choice:
    """Return a method, and how the model is trained; see `selector`."""
    return Choice(selector=selector(name, **settings), trainer=trainer)


def choice_from_json(values: object) -> Choice:
    """Read what a choice's `to_json` wrote.

    Raises:
        UsageError: An unknown method, a setting that it lacks, or a value that it refuses.
    """
    own = dict(values) if isinstance(values, dict) else {}
    trainer = own.pop("trainer", None)
    if own.get("size") is None:
        own.pop("size", None)
    kind, given = kind_of("method", SELECTORS.kinds(), own)
    return Choice(selector=kind(**given), trainer=trainer)  # pyright: ignore[reportArgumentType]


def takers(setting: str) -> list[str]:
    """Return the names of the methods that have a setting."""
    known = {name: fields(kind) for name, kind in SELECTORS.kinds().items()}  # pyright: ignore[reportArgumentType]
    return [name for name, own in known.items() if setting in [each.name for each in own]]


def settings() -> list[str]:
    """Return every setting that some method has, but for the number of features."""
    every = (each.name for kind in SELECTORS.kinds().values() for each in fields(kind))  # pyright: ignore[reportArgumentType]
    return [name for name in dict.fromkeys(every) if name != "size"]
