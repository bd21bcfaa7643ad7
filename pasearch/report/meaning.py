"""What a price means to a person: how often the best attacker is right about one record.

Source: `accounting.attack`.
"""

from __future__ import annotations

import math
from typing import Any

from pasearch.accounting.attack import most_often_right
from pasearch.accounting.renyi import Unsupported
from pasearch.results import events_of

Values = dict[str, Any]

ACCUSED = (0.01, 0.1)
"""How often an attacker may be wrong, for what a price means."""


def meaning(document: Values) -> Values | None:
    """Return what the price means: how often the best attacker is right, of 100 people."""
    events = events_of(document)
    try:
        rates = [(100 * alpha, most_often_right(events, alpha)) for alpha in ACCUSED]
    except Unsupported:
        return None
    found = [(f"{wrong:g}", _up(100 * rate), _up(100 * rate / wrong)) for wrong, rate in rates]
    return {"wrong": found[0][0], "right": found[0][1], "odds": found[0][2], "rows": found}


def _up(value: float) -> str:
    """Return a number in three digits, rounded up."""
    digits = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / digits - 1e-9) * digits:.3g}"
