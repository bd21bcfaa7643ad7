"""What a run cost, and what that covers: the price in words, by part of the records, and its edges.

    mu  =  sqrt(sum over Gaussian releases of 1 / sigma^2), where nothing else reads the records

Source: Dong, Roth and Su 2022, Corollary 3.3 (mu); docs/result.md, `price`, `attack`, `events`.
"""

from __future__ import annotations

import math
from typing import Any

from pasearch.accounting.events import describe, from_json
from pasearch.report import classes, figures
from pasearch.report.networks import some
from pasearch.results import FEATURES

Values = dict[str, Any]


def covered(document: Values) -> str:
    """Return in one sentence what the price covers."""
    what = "features" if document["task"] == FEATURES else "architecture"
    would = "would cover" if document["dataset"]["declared_public"] else "covers"
    read = "whatever was read to find them"
    if assumed := document["assumed_public"]:
        read += f", but for what was taken as public and not charged ({some(assumed)})"
    return (
        f"The price {would} everything in release/ together: {what}, weights, test score, and "
        f"{read}."
    )


def not_covered(document: Values, card: Values) -> list[str]:
    """Return what is not covered in brief: the first sentence of each of the card's lines."""
    lines = [
        line.split(". ")[0].rstrip(".")
        for section in card["sections"]
        if section["title"] == "Not covered"
        for line in section["items"]
    ]
    if assumed := document["assumed_public"]:
        lines.insert(0, f"What is taken as public, and was not charged: {some(assumed)}")
    return lines


def partitions(document: Values) -> list[Values]:
    """Return every partition with its price, bar and lines; the dearest is the price."""
    shares = document["price_by_partition"]
    budget = document["budget"]["epsilon"]
    most = max(share["epsilon"] for share in shares.values())
    scale = max(budget, most)
    dearest = next(name for name, share in shares.items() if share["epsilon"] == most)
    found = []
    for name, share in shares.items():
        epsilon, is_price = share["epsilon"], name == dearest
        words = f"Partition {name}: epsilon {epsilon:.4f} of a budget of {budget:g}"
        words += ": this is the price." if is_price else "."
        tone = "accent" if is_price else "plain"
        own = [each for each in document["events"] if each["partition"] == name]
        mu = gaussian_mu([(each["event"], each["count"]) for each in own])
        found.append({
            "name": name, "slots": document["dataset"]["slots"].get(name, 0),
            "epsilon": f"{epsilon:.4f}", "accountant": share["accountant"], "is_price": is_price,
            "bar": figures.bar(epsilon / scale, words, tone=tone, mark=budget / scale),
            "lines": [_line(document, each) for each in own],
            "mu": None if mu is None else f"{mu:.3g}",
        })  # fmt: skip
    return found


def gaussian_mu(events: list[tuple[Values, int]]) -> float | None:
    """Return mu of Gaussian DP, where every release is Gaussian and so mu says all; else None.

    Args:
        events: (event, count) of everything that reads some records.
    """
    squares = [_square(event) for event, _ in events]
    if not squares or None in squares:
        return None
    total = sum(count * (each or 0.0) for (_, count), each in zip(events, squares, strict=True))
    return math.sqrt(total) if total > 0 else None


def _square(event: Values) -> float | None:
    """Return mu squared of an event that is made of Gaussian releases alone."""
    match event:
        case {"type": "no-release"}:
            return 0.0
        case {"type": "gaussian", "noise_multiplier": float() | int() as sigma} if sigma > 0:
            return 1.0 / sigma**2
        case {"type": "self-composed", "event": dict() as inner, "count": int() as count}:
            one = _square(inner)
            return None if one is None else count * one
        case {"type": "composed", "events": list() as inner}:
            found = [_square(each) for each in inner]
            return None if None in found else sum(each or 0.0 for each in found)
    return None


def _line(document: Values, line: Values) -> Values:
    noise = describe(from_json(line["event"]))
    noise = classes.counts_words(document, line["name"], noise)
    # Its description says already that the best of K is released.
    selected = line["event"]["type"] == "repeat-and-select" and line["count"] == 1
    name = classes.release_name(line["name"], (document.get("score") or {}).get("metric", ""))
    return {"name": name.strip(), "times": "" if selected else _times(line), "noise": noise}


def _times(line: Values) -> str:
    """Return how often a line reads its partition; how often a selection does is secret."""
    count = line["count"]
    if line["event"]["type"] != "repeat-and-select":
        return "once" if count == 1 else f"{count:,} times"
    return f"{f'{count:,} times ' if count > 1 else ''}the best of a secret number"
