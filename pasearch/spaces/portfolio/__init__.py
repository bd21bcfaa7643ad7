"""Portfolio: candidates that were near-best on public data, with their measured accuracy.

A study on public data sets of several kinds (benchmarks/portfolio) trained candidates at many
*signals*, which combine privacy budget and data size:

    s = log10(mu n / outputs)    mu: Gaussian DP parameter of the training (CLT approximation),
                                 n: number of training records, outputs: number of classes, or 1

`portfolio-1.json` contains the accuracy by signal, for every data set and candidate. It is
interpolated to predict the accuracy of a candidate on other data. A prediction for a data set of
the study does not use the measurements on this data set.

Strategy `fixed` trains the candidate with the best prediction; `rs` draws from all of them. Neither
choice depends on the records.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from pasearch.data.front_ends import MIN_SCATTERING_SIDE
from pasearch.errors import UsageError
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.space import Portfolio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasearch.data.tables import AnySchema

STUDY_FILE = "portfolio-1.json"
"""File of the study in this package; the file of a new study has another number."""

STUDY_ALIASES = {"cifar10": "cifar10-jpeg-q75", "CIFAR-10 (JPEG q75)": "cifar10-jpeg-q75"}
"""Name in the study of data sets that have another name elsewhere."""

PHOTO_CHANNELS = 3
"""Number of channels of images that are counted as photographs, not as drawings or digits."""

MAX_EXTRAPOLATION = 0.5
"""Maximum distance of a signal above the study's range, in powers of ten."""

ASSUMED_CATEGORIES = 12
"""Assumed number of categories of an undeclared column, to predict the width of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Measured accuracies of all candidates on public data sets of one kind.

    Args:
        kind: Kind of data: "image", "photo", "arrays", "table" or "regression".
        entries: Candidates.
        signals: Signals of the measurements by data set, ascending, (points,).
        accuracy: Accuracy by data set, (entries, points).
        brier: Brier score by data set, (entries, points); empty if not measured, or for regression.
        classes: Number of classes by data set; 1 for regression.
        features: Number of values per record by data set, before any front end.
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
        """Return the study with accuracies and Brier scores rescaled to a number of classes.

        For an accuracy a with C classes, (a - 1/C) / (1 - 1/C) is unchanged: 0 for random guessing,
        1 for no error. Brier scores are unchanged relative to that of random guessing,
        (1 - 1/C) / 2.
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
        """Return the study with the candidates whose front end accepts records of this shape.

        For example, whitening does not accept large images, and pairwise interaction features
        require rows of a table.
        """
        places = []
        for place, candidate in enumerate(self.entries):
            with suppress(UsageError):
                candidate.front_end.output_shape(shape)
                places.append(place)
        return self._select_entries(places)

    def select_flagged(self, kept: Sequence[bool]) -> Study:
        """Return the study with the candidates whose flag is True."""
        return self._select_entries([place for place, each in enumerate(kept) if each])

    def accuracy_at(self, signal: float) -> np.ndarray:
        """Return the interpolated accuracies at a signal, (data sets, candidates).

        Outside the range of measured signals, the nearest measurement is used.
        """
        return self._interpolate(signal, self.accuracy)

    def trial_score_at(self, signal: float) -> np.ndarray:
        """Return the scores that rank short trials at a signal, (data sets, candidates).

        A score is 1 - the Brier score, or the accuracy if there are no Brier scores.
        """
        if set(self.brier) != set(self.signals):
            return self.accuracy_at(signal)
        return 1.0 - self._interpolate(signal, self.brier)

    def _interpolate(self, signal: float, curves: dict[str, np.ndarray]) -> np.ndarray:
        """Interpolate each curve at a signal, (data sets, candidates)."""
        rows = [
            [np.interp(signal, self.signals[name], curve) for curve in curves[name]]
            for name in self.signals
        ]
        return np.array(rows).reshape(len(rows), len(self.entries))

    def describe_extrapolation(
        self, signal: float, outputs: int, features: int, beyond: float = MAX_EXTRAPOLATION
    ) -> str:
        """Describe in which way a training is outside the range of the study; "" if it is inside.

        Below the range of signals there is no prediction, because accuracies fall steeply there.

        Args:
            signal: Signal of the training.
            outputs: Number of classes.
            features: Number of values per record.
            beyond: Maximum distance of the signal above the measured range, in powers of ten.
        """
        low = float(np.median([each[0] for each in self.signals.values()]))
        high = max(float(each[-1]) for each in self.signals.values())
        if signal < low:
            return (
                f"the signal-to-noise ratio per class, {10**signal:.2g}, is below the range of "
                f"most public data sets in the study ({10**low:.2g} or more)."
            )
        if signal > high + beyond:
            return (
                f"the signal-to-noise ratio per class, {10**signal:.2g}, is above the range of "
                f"all public data sets in the study (up to {10**high:.2g})."
            )
        most = max(self.classes.values(), default=0)
        if most and outputs > max(2 * most, 2):
            return f"there are {outputs} classes; the study has data sets with at most {most}."
        most = max(self.features.values(), default=0)
        if most and features > 2 * most:
            made = " For many columns, use `pasearch features`." if self.kind == "table" else ""
            return (
                f"a record has {features:,} values; the study has data sets with at most "
                f"{most:,}.{made}"
            )
        return ""

    def sort_by_accuracy(self, signal: float) -> Study:
        """Return the study with its candidates sorted by mean accuracy at a signal."""
        return self._select_entries(
            list(np.argsort(-self.accuracy_at(signal).mean(axis=0), kind="stable"))
        )

    def _select_entries(self, places: list[int]) -> Study:
        """Return the study with the selected candidates, in this order."""
        return replace(
            self,
            entries=tuple(self.entries[place] for place in places),
            accuracy={name: curves[places] for name, curves in self.accuracy.items()},
            brier={name: curves[places] for name, curves in self.brier.items()},
        )

    def portfolio(self) -> Portfolio:
        """Return the candidates as a search space; the first is its default."""
        return Portfolio(name=f"portfolio of {self.kind} networks", entries=self.entries)


def find_data_kind(schema: AnySchema) -> str:
    """Return the kind of data of a schema, one of the values of `Study.kind`."""
    if schema.regression:
        return "regression"
    shape = schema.max_shape(2)
    if len(shape) > 1 and min(shape[-2:]) >= MIN_SCATTERING_SIDE:
        return "photo" if len(shape) == 3 and shape[0] == PHOTO_CHANNELS else "image"
    return "table" if schema.to_json()["kind"] == "table" else "arrays"


def compute_signal(mu: float, slots: int, outputs: int) -> float:
    """Compute the signal of a training, log10(mu n / outputs).

    Args:
        mu: Gaussian DP parameter of the training, above 0.
        slots: Number of training records n, null records included.
        outputs: Number of classes, or 1 for regression.
    """
    return math.log10(mu * slots / max(1, outputs))


def count_features(schema: AnySchema) -> int:
    """Return the number of values of an encoded record; approximate if columns are undeclared."""
    return math.prod(schema.max_shape(ASSUMED_CATEGORIES))


def load_study(schema: AnySchema, name: str) -> Study:
    """Load the measurements for data with this schema.

    Args:
        schema: Schema of the data, which determines the kind and the candidates.
        name: Name of the data; a data set of the study with this name is excluded.
    """
    study = _read_studies()[find_data_kind(schema)].without_data_set(STUDY_ALIASES.get(name, name))
    return study.select_fitting(schema.max_shape(2))


def load_studies() -> tuple[Study, ...]:
    """Load all measurements: one study per kind of data."""
    return tuple(_read_studies().values())


@lru_cache(maxsize=1)
def _read_studies() -> dict[str, Study]:
    """Read all studies from `STUDY_FILE`, by kind of data."""
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
