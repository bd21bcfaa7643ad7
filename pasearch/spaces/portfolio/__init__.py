"""The portfolio: the few candidates near-best on public data, and how well each did there.

A study on public data (benchmarks/portfolio) trained candidates of four kinds at many signals

    s = log10(mu n / outputs)        mu n: the whole training's signal to noise; outputs: classes

and `portfolio-1.json` keeps its curves: accuracy by signal, for every data set and entry. A data
set that the study used is left out when it is itself asked about, so no prediction is made from the
data it is about.

`fixed` trains the entry that is predicted to be best; `rs` draws from all of them. Both are known
before a record is read.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from pasearch.errors import UsageError
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.space import Portfolio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasearch.data.tables import AnySchema

STUDY_FILE = "portfolio-1.json"
"""The shipped study; a new one gets a new number."""

STUDY_ALIASES = {"cifar10": "cifar10-jpeg-q75", "CIFAR-10 (JPEG q75)": "cifar10-jpeg-q75"}
"""What data sets of the study are called elsewhere."""

PHOTO_CHANNELS = 3
"""Images of so many channels are photographs: mirrored, they are of the same class."""

MAX_EXTRAPOLATION = 0.5
"""How far a signal may lie outside what the study has measured, in powers of ten."""

ASSUMED_CATEGORIES = 12
"""How many categories an undeclared column is taken to have, to tell how wide a record is."""

MIN_IMAGE_SIDE = 16
"""The least side of what counts as an image: scattering needs as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What was measured for one kind of data.

    Args:
        kind: "image", "photo", "arrays", "table" or "regression".
        entries: The candidates.
        signals: By data set: the signals measured at, rising, (points,).
        accuracy: By data set: (entries, points).
        brier: By data set: likewise, the Brier score, which looks are judged by; empty where it was
            not measured, or a number is predicted.
        classes: By data set: how many there are; 1 where a number is predicted.
        features: By data set: how many numbers a record is, before any front end.
    """

    kind: str
    entries: tuple[Candidate, ...]
    signals: dict[str, np.ndarray] = field(repr=False)
    accuracy: dict[str, np.ndarray] = field(repr=False)
    brier: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    classes: dict[str, int] = field(default_factory=dict, repr=False)
    features: dict[str, int] = field(default_factory=dict, repr=False)

    def without_data_set(self, name: str) -> Study:
        """Return the study without a data set, unless it is the only one of its kind."""
        kept = [each for each in self.signals if each != name] or list(self.signals)
        own = {
            each: {name: getattr(self, each)[name] for name in kept if name in getattr(self, each)}
            for each in ("signals", "accuracy", "brier", "classes", "features")
        }
        return replace(self, **own)

    def rescale_to_classes(self, classes: int) -> Study:
        """Return the study with its accuracies as they would be among so many classes.

        What is above guessing stays the same share: (a - 1/C) / (1 - 1/C). Guessing has a Brier
        score of (1 - 1/C) / 2.
        """
        told, brier = dict(self.accuracy), dict(self.brier)
        for name, own in self.classes.items():
            if own > 1 and classes > 1 and name in told:
                above = (told[name] - 1 / own) / (1 - 1 / own)
                told[name] = 1 / classes + np.maximum(above, 0.0) * (1 - 1 / classes)
            if own > 1 and classes > 1 and name in brier:
                brier[name] = brier[name] * (1 - 1 / classes) / (1 - 1 / own)
        return replace(self, accuracy=told, brier=brier)

    def select_fitting(self, shape: tuple[int, ...]) -> Study:
        """Return the study with the entries that records of a shape can be given to.

        Large images have too many scattering coefficients to be whitened, and pixels no pairs.
        """
        return self._select_entries(
            [place for place, each in enumerate(self.entries) if _accepts_shape(each, shape)]
        )

    def select_flagged(self, kept: Sequence[bool]) -> Study:
        """Return the study with some of its entries: one flag an entry."""
        return self._select_entries([place for place, each in enumerate(kept) if each])

    def accuracy_at(self, signal: float) -> np.ndarray:
        """Return the accuracy of every entry on every data set, (data sets, entries).

        Between two measured signals it is interpolated; outside, the nearest one is taken.
        """
        return self._interpolate(signal, self.accuracy)

    def trial_score_at(self, signal: float) -> np.ndarray:
        """Return what looks are judged by, likewise: 1 - the Brier score; accuracy without it."""
        if set(self.brier) != set(self.signals):
            return self.accuracy_at(signal)
        return 1.0 - self._interpolate(signal, self.brier)

    def _interpolate(self, signal: float, curves: dict[str, np.ndarray]) -> np.ndarray:
        rows = [
            [np.interp(signal, self.signals[name], curve) for curve in curves[name]]
            for name in self.signals
        ]
        return np.array(rows).reshape(len(rows), len(self.entries))

    def describe_extrapolation(
        self, signal: float, outputs: int, features: int, beyond: float = MAX_EXTRAPOLATION
    ) -> str:
        """Return in one sentence what of a training nobody has measured; nothing if all was.

        Args:
            signal: Of the training.
            outputs: How many classes there are.
            features: How many numbers a record is.
            beyond: How far the signal may lie above what was measured, in powers of ten. Below
                what most data sets have nothing is known: curves end there, and fall steeply.
        """
        low = float(np.median([each[0] for each in self.signals.values()]))
        high = max(float(each[-1]) for each in self.signals.values())
        if signal < low:
            return (
                f"the signal to noise, {10**signal:.2g} a class, is weaker than on most of the "
                f"public data that were measured ({10**low:.2g} or more)."
            )
        if signal > high + beyond:
            return (
                f"the signal to noise, {10**signal:.2g} a class, is stronger than anything that "
                f"was measured on public data (up to {10**high:.2g})."
            )
        most = max(self.classes.values(), default=0)
        if most and outputs > max(2 * most, 2):
            return f"there are {outputs} classes, and at most {most} were measured on public data."
        most = max(self.features.values(), default=0)
        if most and features > 2 * most:
            made = " `pasearch features` is made for many." if self.kind == "table" else ""
            return (
                f"a record is {features:,} numbers, and at most {most:,} were measured on public "
                f"data.{made}"
            )
        return ""

    def sort_by_accuracy(self, signal: float) -> Study:
        """Return the study with its entries in order of their mean accuracy at a signal."""
        return self._select_entries(
            list(np.argsort(-self.accuracy_at(signal).mean(axis=0), kind="stable"))
        )

    def _select_entries(self, places: list[int]) -> Study:
        """Return the study of these entries, in this order."""
        return replace(
            self,
            entries=tuple(self.entries[place] for place in places),
            accuracy={name: curves[places] for name, curves in self.accuracy.items()},
            brier={name: curves[places] for name, curves in self.brier.items()},
        )

    def portfolio(self) -> Portfolio:
        """Return the entries as a space to draw from; the first is its default."""
        return Portfolio(name=f"portfolio of {self.kind} networks", entries=self.entries)


def data_kind_of(schema: AnySchema) -> str:
    """Return which kind of the study's data a schema describes."""
    if schema.regression:
        return "regression"
    shape = schema.max_shape(2)
    if len(shape) > 1 and min(shape[-2:]) >= MIN_IMAGE_SIDE:
        return "photo" if len(shape) == 3 and shape[0] == PHOTO_CHANNELS else "image"
    return "table" if schema.to_json()["kind"] == "table" else "arrays"


def compute_signal(mu: float, slots: int, outputs: int) -> float:
    """Return the signal of a training: log10 of mu n a class."""
    return math.log10(mu * slots / max(1, outputs))


def count_features(schema: AnySchema) -> int:
    """Return about how many numbers a record is: exactly, if all columns are declared."""
    return math.prod(schema.max_shape(ASSUMED_CATEGORIES))


def load_study(schema: AnySchema, name: str) -> Study:
    """Return what was measured on data of this kind, the data set of this name left out."""
    study = _read_studies()[data_kind_of(schema)].without_data_set(STUDY_ALIASES.get(name, name))
    return study.select_fitting(schema.max_shape(2))


def load_studies() -> tuple[Study, ...]:
    """Return what was measured, one study a kind of data."""
    return tuple(_read_studies().values())


def _accepts_shape(candidate: Candidate, shape: tuple[int, ...]) -> bool:
    try:
        candidate.front_end.output_shape(shape)
    except UsageError:
        return False
    return True


@lru_cache(maxsize=1)
def _read_studies() -> dict[str, Study]:
    text = files("pasearch.spaces.portfolio").joinpath(STUDY_FILE).read_text(encoding="utf-8")
    return {
        kind: Study(
            kind=kind,
            entries=tuple(Candidate.from_json(each) for each in values["entries"]),
            signals={name: np.array(data["signal"]) for name, data in values["data"].items()},
            accuracy={name: np.array(data["accuracy"]) for name, data in values["data"].items()},
            brier={
                name: np.array(data["brier"])
                for name, data in values["data"].items()
                if "brier" in data
            },
            classes={name: data.get("classes", 0) for name, data in values["data"].items()},
            features={name: data.get("features", 0) for name, data in values["data"].items()},
        )
        for kind, values in json.loads(text)["kinds"].items()
    }
