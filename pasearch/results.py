"""What a finished run says: `result.json`, and the model behind its front end.

`result.json` is stable: `SCHEMA_VERSION` changes when its meaning does. Its `events` are the whole
plan, in the closed table of event types, so the price can be recomputed from it alone (`verify`).
Nothing here reads a private record.

Source: docs/result.md describes every field.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasearch.accounting.accountants import Price, price_partitions
from pasearch.accounting.events import Composed, Event, SelfComposed, from_json
from pasearch.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from pasearch.spaces.space import Candidate

SCHEMA_VERSION = 1
TOLERANCE = 1e-6
"""By how much two computations of one price may differ, relatively."""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """A finished architecture search.

    Args:
        path: The run's folder, or its `release/` folder.
        document: `result.json`.
        card: The privacy card, Markdown.
        trials: Every trial, where the strategy allows it to be shown; otherwise empty.
    """

    path: Path
    document: dict[str, Any]
    card: str
    trials: tuple[Any, ...] = ()

    @property
    def best(self) -> Candidate:
        """The architecture that won, with its settings."""
        from pasearch.spaces.space import Candidate

        return Candidate.from_json(self.document["best"])

    @property
    def price(self) -> Price:
        """What the whole run cost."""
        price = self.document["price"]
        return Price(epsilon=price["epsilon"], delta=price["delta"], accountant=price["accountant"])

    @property
    def test_accuracy(self) -> float:
        """The noisy accuracy on the test slots, in [0, 1]."""
        return float(self.document["score"]["test"])

    @property
    def model(self) -> nn.Module:
        """The trained network with its front end: records in the data's own units to logits."""
        return load(self.path)

    def __repr__(self) -> str:
        return (
            f"SearchResult({self.best.describe()}: test accuracy {self.test_accuracy:.3f} "
            f"for epsilon {self.price.epsilon:.4g}, in {self.path})"
        )


def release_of(path: str | Path) -> Path:
    """Return the `release/` folder of a run, given the run's folder or that folder itself.

    Raises:
        UsageError: No result is there.
    """
    path = Path(path)
    for folder in (path, path / "release"):
        if (folder / "result.json").is_file():
            return folder
    if (path / "private").is_dir():
        raise UsageError(f"{path} is not finished: resume it with `pasearch arch --resume {path}`.")
    raise UsageError(f"{path} holds no result.json: expected a run's folder, or its release/.")


def read_document(path: str | Path) -> dict[str, Any]:
    """Return a run's `result.json`.

    Raises:
        UsageError: No result, not JSON, or of another version.
    """
    file = release_of(path) / "result.json"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read as JSON: {error}.") from None
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{file} has schema_version {version!r}: this pasearch reads {SCHEMA_VERSION}. "
            "Use the version of pasearch that wrote it (see `versions` in the file)."
        )
    return document


def load_result(path: str | Path) -> SearchResult:
    """Return a finished run's result.

    Raises:
        UsageError: No result is there, of another version, or without its card.
    """
    document, file = read_document(path), release_of(path) / "privacy-card.md"
    try:
        card = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}.") from None
    return SearchResult(path=Path(path), document=document, card=card)


def load(path: str | Path) -> nn.Module:
    """Return the trained model of a finished run.

    Args:
        path: The run's folder, or its `release/` folder.

    Returns:
        nn.Sequential: In evaluation mode: clamps and rescales records in the data's own units,
        (batch, *shape), and gives logits, (batch, classes).

    Raises:
        UsageError: No result is there, of another version, or the model file was changed.

    Cost: none; the model was paid for.
    """
    import torch
    from torch import nn

    from pasearch.data.schema import Schema
    from pasearch.spaces.modules import Rescale
    from pasearch.spaces.space import Candidate

    release = release_of(path)
    document = read_document(path)
    file = release / document["model"]["file"]
    if not file.is_file() or digest(file.read_bytes()) != document["model"]["sha256"]:
        raise UsageError(f"{file} is missing or not the file that result.json describes.")
    schema = Schema.from_json(document["dataset"]["schema"])
    architecture = Candidate.from_json(document["best"]).architecture
    network = architecture.build(schema.shape, schema.classes)
    network.load_state_dict(torch.load(file, weights_only=True))
    return nn.Sequential(Rescale(schema.low, schema.high), network).eval()


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def events_of(document: dict[str, Any]) -> dict[str, Event]:
    """Return the composition of what each partition is charged, from `result.json`.

    Raises:
        UsageError: An event that is not in the closed table, or no events at all.
    """
    grouped: dict[str, list[Event]] = {}
    for line in document.get("events") or ():
        event = SelfComposed(event=from_json(line["event"]), count=line["count"])
        grouped.setdefault(str(line["partition"]), []).append(event)
    if not grouped:
        raise UsageError("result.json lists no events: there is nothing to price.")
    return {partition: Composed(events=tuple(events)) for partition, events in grouped.items()}


def verify(path: str | Path) -> tuple[Price, list[str]]:
    """Recompute a run's price from its `result.json` alone.

    Returns:
        The recomputed price, and every disagreement with what the file says; none is good.

    Raises:
        UsageError: No result is there, or it is not well formed.
    """
    document = read_document(path)
    try:
        stated, budget = document["price"], document["budget"]
        recomputed, by_partition = price_partitions(events_of(document), stated["delta"])
        problems = _disagreements(document, recomputed.epsilon)
        for name, price in by_partition.items():
            share = document["price_by_partition"][name]["epsilon"]
            if not _close(share, price.epsilon):
                problems.append(f"partition {name}: stated {share}, recomputed {price.epsilon}.")
        for name in sorted(set(document["price_by_partition"]) - set(by_partition)):
            problems.append(f"partition {name}: has a price, and no events.")
        if not stated["delta"] <= budget["delta"]:
            problems.append(f"delta {stated['delta']} exceeds the budget's {budget['delta']}.")
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"result.json is not well formed ({error!r}).") from None
    return recomputed, problems


def _disagreements(document: dict[str, Any], epsilon: float) -> list[str]:
    problems = []
    stated, budget = document["price"]["epsilon"], document["budget"]["epsilon"]
    if not _close(stated, epsilon):
        problems.append(f"price: stated {stated}, recomputed {epsilon}.")
    if not epsilon <= budget * (1 + TOLERANCE):
        problems.append(f"price {epsilon} exceeds the budget's {budget}.")
    sizes = document["dataset"]["slots"]
    for line in document["events"]:
        if line["partition"] not in sizes:
            problems.append(f"event {line['name']!r} is on no partition of the data.")
    return problems


def _close(stated: float, recomputed: float) -> bool:
    return abs(stated - recomputed) <= TOLERANCE * max(abs(recomputed), 1e-12)
