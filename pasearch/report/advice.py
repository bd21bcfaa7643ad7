"""What next: what a person does with a finished run, each with the command that does it."""

from __future__ import annotations

from typing import Any

from pasearch.data.frames import TYPES
from pasearch.results import FEATURES

Values = dict[str, Any]

COMMANDS = {"architecture search": "arch", "training": "train", FEATURES: "features"}


def next_steps(document: Values, is_known: bool) -> list[tuple[str, str]]:
    """Return (what for, command), the most urgent first; RUN and DATA stand for the user's own.

    Args:
        document: `result.json`.
        is_known: Whether the test score tells the model from a guess.
    """
    command, budget = COMMANDS.get(document["task"], "arch"), document["budget"]["epsilon"]
    table = document["dataset"]["schema"].get("kind") == "table"
    found = []
    if not is_known:
        found.append((
            "This model is not worth using yet. See what a larger budget would buy, before any of "
            "it is spent:",
            f"pasearch plan {command} DATA --eps {4 * budget:g}",
        ))  # fmt: skip
    if table and set(document["assumed_public"]) - {TYPES}:
        found.append((
            "What the columns may hold was read from the records, and no price covers that. Before "
            "a release, write down what you know without looking:",
            "pasearch check DATA --propose schema.toml",
        ))  # fmt: skip
    records = "new.csv" if table else "new.npz"
    if is_known:
        found.append(("Use the model:", f"pasearch predict RUN {records} --out predictions.csv"))
    found += [
        ("Prove the price to somebody else, who needs release/ alone:", "pasearch verify RUN"),
    ]
    if document.get("ledger") is None and not document["dataset"]["declared_public"]:
        found.append((
            "Another run on these records adds to this price. Runs that name one ledger are added "
            "up, and one too many is refused; this run is in none:",
            f"pasearch {command} DATA --eps {budget:g} --ledger people.ledger --ledger-budget "
            f"{2 * budget:g} 1e-5",
        ))  # fmt: skip
    return found
