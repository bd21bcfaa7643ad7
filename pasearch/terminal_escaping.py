"""Escaping of control characters in everything that a terminal, a report or a card shows.

A name from a user's file may contain an escape sequence that controls the terminal, a line break
that fakes another line, or a mark that reverses the writing direction. `escape_text` replaces such
characters by Python escapes. Every name is shown through it or a function that calls it.
"""

from __future__ import annotations

import re
from typing import Any

_CONTROL_CHARACTERS = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0 and C1: escape sequences, line breaks
    "\xad\u180e\u200b\u2060-\u2064\ufeff"  # characters without width
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # writing direction
    "\u2028\u2029"  # line breaks too
    "\ufff9-\ufffb\U000e0000-\U000e007f"  # annotations and tags
    "\ud800-\udfff"  # bytes of a file name that are not UTF-8
    "]"
)


def escape_text(text: object) -> str:
    r"""Convert a value to one line of text in which control characters are Python escapes.

    >>> print(escape_text("age\x1b[2J\nPrice: 0"))
    age\x1b[2J\nPrice: 0
    """
    return _CONTROL_CHARACTERS.sub(
        lambda found: found[0].encode("unicode_escape").decode(), str(text)
    )


def format_epsilon(epsilon: float) -> str:
    """Format an epsilon: four decimals, or three significant digits if it is below 0.01.

    >>> format_epsilon(1.99941), format_epsilon(0.000001)
    ('1.9994', '1e-06')
    """
    return f"{epsilon:.4f}" if not 0.0 < epsilon < 0.01 else f"{epsilon:.3g}"


def format_duration(seconds: float) -> str:
    """Format a duration with at most two digits, in seconds, minutes, hours or days.

    >>> [format_duration(each) for each in (0.0004, 0.28, 21, 360, 4300, 19_000, 720_000)]
    ['0.01 s', '0.3 s', '21 s', '6 min', '72 min', '5.3 h', '8 days']
    """
    for unit, size, most in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 172_800)):
        if seconds < most:
            scaled = max(0.01, seconds / size)
            digits = ".1g" if scaled < 0.995 else ".2g" if scaled < 9.95 else ".0f"
            return f"{scaled:{digits}} {unit}"
    return f"{seconds / 86_400:.0f} days"


def escape_lines(text: object) -> str:
    """Escape control characters except line breaks."""
    return "\n".join(map(escape_text, str(text).split("\n")))


def escape_values(value: Any, breaks: str | None = None) -> Any:
    """Escape every string in plain values, such as those of a `result.json`.

    Args:
        value: String, number, or list or dictionary of them.
        breaks: Replacement of line breaks and tabs. None escapes them.
    """
    match value:
        case str():
            return escape_text(value if breaks is None else re.sub(r"[\n\r\t]", breaks, value))
        case dict():
            return {
                escape_values(key, breaks): escape_values(each, breaks)
                for key, each in value.items()
            }
        case list() | tuple():
            return [escape_values(each, breaks) for each in value]
    return value
