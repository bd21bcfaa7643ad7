"""What next: what a person does with a finished run, each with the command that does it."""

from __future__ import annotations

import shlex
from typing import Any

from pasearch.accounting.budget import Budget
from pasearch.data.built_in import BUILT_IN
from pasearch.data.frames import TYPES
from pasearch.results import FEATURES

Values = dict[str, Any]

COMMANDS = {"architecture search": "arch", "training": "train", FEATURES: "features"}


def next_steps(document: Values, is_known: bool) -> list[tuple[str, str]]:
    """Return (purpose, command), the most urgent first.

    RUN, DATA, SCHEMA and DATA_ROOT stand for the user's own paths.

    Args:
        document: `result.json`.
        is_known: Whether the model is told apart from the baseline.
    """
    command, budget = COMMANDS.get(document["task"], "arch"), document["budget"]["epsilon"]
    data = data_arguments(document)
    table = document["dataset"]["schema"].get("kind") == "table"
    found = []
    if not is_known:
        found.append((
            "This model is not worth using yet. Plan a larger budget, before any of it is spent:",
            f"pasearch plan {command} {data} --eps {4 * budget:g}",
        ))  # fmt: skip
    if table and set(document["assumed_public"]) - {TYPES}:
        found.append((
            "Bounds and categories were read from the records, and no privacy cost covers that. "
            "Before a release, declare them from public knowledge:",
            "pasearch check DATA --propose schema.toml",
        ))  # fmt: skip
    records = "new.csv" if table else "new.npz"
    if is_known:
        found.append(("Use the model:", f"pasearch predict RUN {records} --out predictions.csv"))
    found += [
        ("Let somebody else check the privacy cost, with release/ alone:", "pasearch verify RUN"),
    ]
    if document.get("ledger") is None and not document["dataset"]["declared_public"]:
        found += _ledger_step(document, f"pasearch {command} {data} --eps {budget:g}")
    return found


def data_arguments(document: Values) -> str:
    """Return DATA with the options that describe it, as a command line takes them."""
    declared = (document.get("plan") or {}).get("declared") or {}
    words = ["DATA"]
    if declared.get("kind") == "table":
        target, columns = declared.get("target") or {}, declared.get("columns") or []
        labels = target.get("categories")
        known = {"name", "kind"} | ({"categories"} if _fit_an_option(labels) else set())
        if any(len(each) > 1 for each in columns) or set(target) - known:
            words.append("--schema SCHEMA")
        else:
            words += [f"--target {shlex.quote(str(target['name']))}"] * ("name" in target)
            words += ["--regression"] * (target.get("kind") == "number")
            words += [f"--labels {_joined(labels)}"] if labels else []
    elif declared.get("kind") == "arrays" and document["dataset"]["name"] not in BUILT_IN:
        low, high, classes = (declared.get(name) for name in ("low", "high", "classes"))
        words += ["--regression"] * bool(declared.get("regression"))
        if low is not None and high is not None:
            words.append(f"--bounds {low:g} {high:g}")
        if (labels := declared.get("labels")) is not None:
            words.append(f"--labels {_joined(labels)}")
        elif classes is not None:
            words.append(f"--classes {classes}")
    words += ["--data-root DATA_ROOT"] * ("data_root" in document)
    return " ".join(words)


def _fit_an_option(labels: list[str] | None) -> bool:
    """Return whether the option that takes labels with commas between can hold these."""
    return labels is not None and len(labels) > 1 and not any("," in each for each in labels)


def _joined(labels: list[Any]) -> str:
    return shlex.quote(",".join(map(str, labels)))


def _ledger_step(document: Values, command: str) -> list[tuple[str, str]]:
    """Return how to begin a shared ledger with this run in it, and how to use it."""
    total, budget = document.get("two_runs"), document["budget"]
    if total is None:
        return []
    default = budget["delta"] == Budget(budget["epsilon"]).resolve(document["dataset"]["n"]).delta
    delta = "" if default else f" --delta {budget['delta']!r}"
    return [
        (
            "Each further run on these records adds to the privacy cost. This run used no shared "
            "ledger. To begin one with this run in it, and room for one more such run:",
            f"pasearch ledger people.ledger --add RUN --ledger-budget {total['epsilon']:g} "
            f"{total['delta']!r}",
        ),
        (
            "Then name that ledger in every further run on these records, such as:",
            f"{command}{delta} --ledger people.ledger",
        ),
    ]
