"""Names of strategies in the interface; code and `result.json` keep the shorter names."""

SHOWN_NAMES = {"ahead": "successive-halving", "insured": "protected-halving"}
"""Name in the interface of each strategy that has another name in the code."""

ALIASES = {shown: name for name, shown in SHOWN_NAMES.items()}
"""Name in the code of each name that only the interface has."""


def show_strategy(name: str) -> str:
    """Return the name of a strategy in the interface.

    >>> show_strategy("insured"), show_strategy("rs")
    ('protected-halving', 'rs')
    """
    return SHOWN_NAMES.get(name, name)
