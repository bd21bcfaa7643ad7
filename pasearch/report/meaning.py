"""What a price means to a person: how often the best attacker is right about one record.

Source: `accounting.attack`.
"""

from __future__ import annotations

import math
from typing import Any

Values = dict[str, Any]

WEAK = 0.2
"""How often an attacker who is wrong once in 100 is right where a price protects little."""


def meaning(document: Values) -> Values | None:
    """Return what the price means, of 100 people; None where a result does not say it."""
    given = document.get("attack")
    if not given:
        return None
    found = [(f"{100 * wrong:g}", _up(100 * rate), _up(rate / wrong)) for wrong, rate in given]
    return {
        "wrong": found[0][0],
        "right": found[0][1],
        "odds": found[0][2],
        "rows": found,
        "is_weak": given[0][1] > WEAK,
    }


def _up(value: float) -> str:
    """Return a number in three digits, rounded up."""
    digits = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / digits - 1e-9) * digits:.3g}"
