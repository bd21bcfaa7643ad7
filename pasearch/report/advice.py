"""What next: what a person does with a finished run, each with the command that does it."""

from __future__ import annotations

from typing import Any

from pasearch.accounting.budget import Budget
from pasearch.data.frames import TYPES
from pasearch.doubts import without_classes
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
    found, blind = [], without_classes(document) is not None
    if blind:
        found.append((
            "This model tells nothing, as the classes were not found. Write them down without "
            "looking, and give that file with --schema:",
            "pasearch check DATA --propose schema.toml",
        ))  # fmt: skip
    elif not is_known:
        found.append((
            "This model is not worth using yet. See what a larger budget would buy, before any of "
            "it is spent:",
            f"pasearch plan {command} DATA --eps {4 * budget:g}",
        ))  # fmt: skip
    if table and not blind and set(document["assumed_public"]) - {TYPES}:
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
        found += _ledger_step(document, f"pasearch {command} DATA --eps {budget:g}")
    return found


def _ledger_step(document: Values, command: str) -> list[tuple[str, str]]:
    """Return how a ledger is begun, with a total that two runs like this one fit into.

    Nothing where no such total is known.
    """
    total, budget = document.get("two_runs"), document["budget"]
    if total is None:
        return []
    usual = budget["delta"] == Budget(budget["epsilon"]).resolve(document["dataset"]["n"]).delta
    own = "" if usual else f" --delta {budget['delta']!r}"
    return [(
        "Another run on these records adds to this price, and this run named no ledger that adds "
        "them up. To begin one, with room for two such runs:",
        f"{command}{own} --ledger people.ledger --ledger-budget {total['epsilon']:g} "
        f"{total['delta']!r}",
    )]  # fmt: skip
