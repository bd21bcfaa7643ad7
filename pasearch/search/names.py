"""Names of strategies for users, where they differ from the names in code and `result.json`."""

SHOWN_NAMES = {"ahead": "successive-halving", "insured": "protected-halving"}
"""Name for users, by the name in code and `result.json`."""

ALIASES = {shown: name for name, shown in SHOWN_NAMES.items()}
"""Name in code and `result.json`, by the name for users."""


def show_strategy(name: str) -> str:
    """Return the name of a strategy for users.

    >>> show_strategy("insured"), show_strategy("rs")
    ('protected-halving', 'rs')
    """
    return SHOWN_NAMES.get(name, name)
