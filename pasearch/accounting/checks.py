"""Validate every number that enters an event, a distribution, a budget or a cost.

A wrong number type silently changes a privacy cost: with `sigma = 2` or `np.float32(2)`, ten
composed Gaussians under Poisson sampling cost 1.59 instead of 13.72, and `sigma = nan` costs 0. So
every check has positive form (NaN fails it), and returns a plain Python float or int.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import MISSING, fields
from numbers import Integral, Real
from typing import Any, TypeVar

from pasearch.errors import UsageError

Kind = TypeVar("Kind")


def check_positive(name: str, value: object) -> float:
    """Return a finite number above 0 as a Python float."""
    return _check_real(name, value, "a finite number above 0", lambda number: 0 < number < math.inf)


def check_nonnegative(name: str, value: object) -> float:
    """Return a finite number, 0 or above, as a Python float."""
    return _check_real(
        name, value, "a finite number, 0 or above", lambda number: 0 <= number < math.inf
    )


def check_probability(name: str, value: object) -> float:
    """Return a number in (0, 1] as a Python float."""
    return _check_real(name, value, "a number in (0, 1]", lambda number: 0 < number <= 1)


def check_fraction(name: str, value: object) -> float:
    """Return a number strictly between 0 and 1 as a Python float."""
    return _check_real(
        name, value, "a number strictly between 0 and 1", lambda number: 0 < number < 1
    )


MAX_COUNT = 10**12
"""Largest count of records, steps or candidates: a larger one is a typing error."""


def check_positive_integer(
    name: str, value: object, *, most: int = MAX_COUNT, why: str = ""
) -> int:
    """Return an integer of at least 1 as a Python int; floats are refused, even integral ones.

    Args:
        name: Name of the count in messages.
        value: Count to check.
        most: Largest accepted count.
        why: Reason for this maximum, for the message.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not int(value) >= 1:
        raise _make_error(name, value, "an integer, 1 or above")
    if not int(value) <= most:
        reason = f", because {why}" if why else ""
        raise UsageError(f"{name} is {_format_value(value)}: expected at most {most:,}{reason}.")
    return int(value)


def check_nonnegative_integer(name: str, value: object) -> int:
    """Return an integer, 0 or above, as a Python int."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not int(value) >= 0:
        raise _make_error(name, value, "an integer, 0 or above")
    return int(value)


def check_boolean(name: str, value: object) -> bool:
    """Return true or false as a Python bool."""
    if type(value) is not bool:
        raise UsageError(f"{name} is {value!r}: expected true or false.")
    return value


def convert_to_plain_list(values: Any) -> Any:
    """Convert an array, range, set, index or generator to a list; return other values unchanged.

    A setting that is given as an array is then validated, stored and compared like a list.

    >>> convert_to_plain_list(range(3)), convert_to_plain_list("no,yes"), convert_to_plain_list({1})
    ([0, 1, 2], 'no,yes', [1])
    """
    if isinstance(values, str | bytes | Mapping | list | tuple):
        return values
    if hasattr(values, "tolist"):
        return values.tolist()
    if isinstance(values, Set):  # its order differs between processes
        return sorted(values, key=str)
    return list(values) if isinstance(values, Iterable) else values


def make_post_init(**checks: Callable[[str, Any], Any]) -> Callable[[Any], None]:
    """Create a `__post_init__` that replaces each field by its check's result."""

    def post_init(self: Any) -> None:
        for name, check in checks.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))

    return post_init


def resolve_named_type(
    noun: str, table: Mapping[str, type[Kind]], values: object
) -> tuple[type[Kind], dict[str, Any]]:
    """Find the dataclass that JSON values name, and the fields to build it with.

    Args:
        noun: Noun for one entry of the table, for messages.
        table: Dataclass by name.
        values: JSON values that `to_json` wrote: the `name` and the fields; fields with defaults
            are optional.

    Raises:
        UsageError: The values have another form, an unknown name, or an unknown or missing field.
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
            f"{title} {name!r} has no {', '.join(unknown)}: omit it. Its parameters "
            f"are: {', '.join(names) or 'none'}."
        )
    if missing := [f.name for f in known if f.default is MISSING and f.name not in given]:
        raise UsageError(f"{title} {name!r} lacks {', '.join(missing)}: add it.")
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
    """Format a value for an error message; very long numbers are not written out."""
    if isinstance(value, int) and not -(2**64) <= value <= 2**64:
        return "an integer of more than 64 bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _make_error(name: str, value: object, expected: str) -> UsageError:
    number = isinstance(value, Real) and not isinstance(value, bool)
    kind = "" if number else f" ({type(value).__name__})"
    return UsageError(f"{name} is {_format_value(value)}{kind}: expected {expected}.")
