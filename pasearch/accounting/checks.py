"""Checks of every number that enters an event, a distribution, a budget or a cost.

A number of another type than float could silently change a privacy cost: with `sigma = 2` or
`np.float32(2)`, ten composed Gaussians under Poisson sampling would cost 1.59 instead of 13.72, and
`sigma = nan` would cost 0. So every check has positive form (NaN fails it), and returns a plain
Python float or int.
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
    """Check that a value is a finite number above 0, and return it as a Python float."""
    return _check_real(name, value, "a finite number above 0", lambda number: 0 < number < math.inf)


def check_nonnegative(name: str, value: object) -> float:
    """Check that a value is a finite number, 0 or above, and return it as a Python float."""
    return _check_real(
        name, value, "a finite number, 0 or above", lambda number: 0 <= number < math.inf
    )


def check_probability(name: str, value: object) -> float:
    """Check that a value is a number in (0, 1], and return it as a Python float."""
    return _check_real(name, value, "a number in (0, 1]", lambda number: 0 < number <= 1)


def check_fraction(name: str, value: object) -> float:
    """Check that a value is a number strictly between 0 and 1, and return it as a Python float."""
    return _check_real(
        name, value, "a number strictly between 0 and 1", lambda number: 0 < number < 1
    )


MAX_COUNT = 10**12
"""Maximum count of records, steps or candidates; a larger one is a typing error of the user."""


def check_positive_integer(
    name: str, value: object, *, most: int = MAX_COUNT, why: str = ""
) -> int:
    """Check that a value is an integer from 1 to `most`, and return it as a Python int.

    Floats are refused, also those with an integer value.

    Args:
        name: Name of the value in messages.
        value: Value to check.
        most: Maximum.
        why: Reason for this maximum, for the message.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not int(value) >= 1:
        raise _make_error(name, value, "an integer, 1 or above")
    if not int(value) <= most:
        reason = f", because {why}" if why else ""
        raise UsageError(f"{name} is {_format_value(value)}: expected at most {most:,}{reason}.")
    return int(value)


def check_nonnegative_integer(name: str, value: object) -> int:
    """Check that a value is an integer, 0 or above, and return it as a Python int."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not int(value) >= 0:
        raise _make_error(name, value, "an integer, 0 or above")
    return int(value)


def check_boolean(name: str, value: object) -> bool:
    """Check that a value is a Python bool, and return it."""
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
    """Make a `__post_init__` for a frozen dataclass that replaces fields by the results of checks.

    Args:
        checks: Check of each field: a function of its name and value that returns the new value.
    """

    def post_init(self: Any) -> None:
        for name, check in checks.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))

    return post_init


def resolve_named_type(
    noun: str, table: Mapping[str, type[Kind]], values: object
) -> tuple[type[Kind], dict[str, Any]]:
    """Find the dataclass that is named in JSON values, and the arguments to create an instance.

    Args:
        noun: Word for an entry of the table in messages, such as "density".
        table: Dataclasses by name.
        values: JSON values as written by `to_json`: a `name` and the fields. Fields with defaults
            are optional.

    Raises:
        UsageError: The values are not a mapping, the name is unknown, or a field is unknown or
            missing.
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
    """Check that a value is a real number with a property, and return it as a Python float."""
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
    """Format a value for an error message, shortened if it is very long."""
    if isinstance(value, int) and not -(2**64) <= value <= 2**64:
        return "an integer of more than 64 bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _make_error(name: str, value: object, expected: str) -> UsageError:
    """Create the error for a value that failed a check."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    kind = "" if number else f" ({type(value).__name__})"
    return UsageError(f"{name} is {_format_value(value)}{kind}: expected {expected}.")
