"""The one gate through which a number enters an event, a law, a budget or a price.

A wrong number type silently changes a price: `sigma = 2` or `np.float32(2)` lets ten composed
Gaussians under Poisson sampling cost 1.59 where 13.72 is right, and `sigma = nan` costs 0. So every
check is positive-form (NaN fails it), and what comes out is a plain Python float or int.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from numbers import Integral, Real
from typing import Any, TypeVar

from pasearch.errors import UsageError

Kind = TypeVar("Kind")


def check_positive(name: str, value: object) -> float:
    """A finite number above 0, as a Python float."""
    return _check_real(name, value, "a finite number above 0", lambda number: 0 < number < math.inf)


def check_nonnegative(name: str, value: object) -> float:
    """A finite number that is 0 or above, as a Python float."""
    return _check_real(
        name, value, "a finite number, 0 or above", lambda number: 0 <= number < math.inf
    )


def check_probability(name: str, value: object) -> float:
    """A number in (0, 1], as a Python float."""
    return _check_real(name, value, "a number in (0, 1]", lambda number: 0 < number <= 1)


def check_fraction(name: str, value: object) -> float:
    """A number strictly between 0 and 1, as a Python float."""
    return _check_real(
        name, value, "a number strictly between 0 and 1", lambda number: 0 < number < 1
    )


MAX_COUNT = 10**12
"""The most of anything that is counted: records, steps, candidates. More is a slip of the hand."""


def check_positive_integer(
    name: str, value: object, *, most: int = MAX_COUNT, why: str = ""
) -> int:
    """A count of at least 1, as a Python int; a float is refused even when it is whole.

    Args:
        name: What is counted, for the message.
        value: The count.
        most: The largest that is taken.
        why: The reason for that, for the message.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not int(value) >= 1:
        raise _make_error(name, value, "a whole number, 1 or above")
    if not int(value) <= most:
        reason = f", because {why}" if why else ""
        raise UsageError(f"{name} is {_format_value(value)}: expected at most {most:,}{reason}.")
    return int(value)


def check_nonnegative_integer(name: str, value: object) -> int:
    """An integer that is 0 or above, as a Python int."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not int(value) >= 0:
        raise _make_error(name, value, "a whole number, 0 or above")
    return int(value)


def check_boolean(name: str, value: object) -> bool:
    """True or false, as a Python bool."""
    if type(value) is not bool:
        raise UsageError(f"{name} is {value!r}: expected true or false.")
    return value


def make_post_init(**checks: Callable[[str, Any], Any]) -> Callable[[Any], None]:
    """Return a frozen dataclass's `__post_init__`: each field becomes what its check returns."""

    def post_init(self: Any) -> None:
        for name, check in checks.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))

    return post_init


def resolve_named_type(
    noun: str, table: Mapping[str, type[Kind]], values: object
) -> tuple[type[Kind], dict[str, Any]]:
    """Return which dataclass of a table plain values name, and the fields to build it with.

    Args:
        noun: What the table holds, for messages.
        table: Dataclasses by name.
        values: What one's `to_json` wrote: its `name`, and fields; those with defaults may lack.

    Raises:
        UsageError: No such values; an unknown name; a field unknown or missing.
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"{noun} is {values!r}: expected what `to_json` wrote.")
    given = {str(key): value for key, value in values.items() if key != "name"}
    name, title = values.get("name"), noun.capitalize()
    if not isinstance(name, str) or name not in table:
        raise UsageError(
            f"{title} {name!r} (its `name`) is unknown: expected one of {', '.join(table)}."
        )
    known = fields(table[name])  # pyright: ignore[reportArgumentType]
    names = [field.name for field in known]
    if unknown := sorted(set(given) - set(names)):
        raise UsageError(
            f"{title} {name!r} has no {', '.join(unknown)}: leave that out. It has "
            f"{', '.join(names) or 'no numbers'}."
        )
    if missing := [f.name for f in known if f.default is MISSING and f.name not in given]:
        raise UsageError(f"{title} {name!r} lacks {', '.join(missing)}: give it.")
    return table[name], given


def _check_real(name: str, value: object, expected: str, holds: Callable[[float], bool]) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _make_error(name, value, expected)
    try:
        number = float(value)
    except OverflowError:
        raise _make_error(name, value, expected) from None
    if not holds(number):
        raise _make_error(name, value, expected)
    return number


def _format_value(value: object) -> str:
    """Return a value as an error shows it: a number of a thousand digits is not spelt out."""
    if isinstance(value, int) and not -(2**64) <= value <= 2**64:
        return "a whole number of more than 64 bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _make_error(name: str, value: object, expected: str) -> UsageError:
    number = isinstance(value, Real) and not isinstance(value, bool)
    kind = "" if number else f" ({type(value).__name__})"
    return UsageError(f"{name} is {_format_value(value)}{kind}: expected {expected}.")
