"""What the studies of Bao et al.'s feature selection share: data, splits, two laws of a fit, files.

    Breast Cancer   9 columns, every category of the file with "?" an indicator     43 features
                    191 to train, 95 to test, of which 67 have no recurrence as in the whole file
                    (62 for Table II, whose 65.26 % is 62 / 95)
    Adult           8 such columns (102 indicators) and 6 numbers, scaled to [0, 1] 108 features
                    22,750 to train, 9,750 to test, of the file's first 32,561

Categories, ranges and correlations are read from the file for nothing, as the paper does: nothing
here is charged, so epsilon is that of one fit alone.

    library     diffprivlib's LogisticRegression at its C = 1: what the paper ran
    ours        pasearch.features.logistic.ObjectivePerturbation at its usual regularisation

Both by the batched solver. The library's noise and regularisation are drawn here as its `Vector`
does; its intercept has almost no regularisation, which a scaled intercept column gives. A record's
norm is bounded by the root of how many columns a set touches.
"""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pasearch.features import logistic
from pasearch.features.cfs import compute_symmetrical_uncertainty
from pasearch.features.contingency import Attribute, Attributes, count_tables
from pasearch.features.logistic import solve_in_chunks
from pasearch.runs.keys import Keys

sys.path.append(str(Path(__file__).parents[1]))
import cells

RESULTS = Path(__file__).parent / "results"
BINS = 10
NUMBERS = {
    "breast-cancer": (),
    "adult": ("fnlwgt", "age", "education-num", "capital-gain", "capital-loss", "hours-per-week"),
}
"""Columns that are one feature, and ten bins for merits; every other column is categories."""
TRAIN = {"breast-cancer": 191, "adult": 22_750}
TEST = {"breast-cancer": 95, "adult": 9_750}
OFFICIAL = 32_561
"""Records of Adult's own training part."""
COMMON = 67
"""Test records of Breast Cancer without recurrence: 201 / 286 of 95."""
NO_PRIVACY = 1e9
"""The epsilon that stands for no privacy, as in the paper."""
INTERCEPT = 16.0
"""The intercept's column, where the library has no regularisation of it: 1/256 of the weights'."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Records of one side of a split, encoded.

    Args:
        x: (n, d) features in [0, 1].
        y: (n,) 0 or 1.
        codes: (n, m) of columns, the class last.
    """

    x: Array
    y: Array
    codes: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A file, encoded.

    Args:
        name: Of the data set.
        every: All its records.
        attributes: Its columns as discrete variables.
        owners: (d,) which column a feature is of.
    """

    name: str
    every: Part
    attributes: Attributes
    owners: Array

    def split(self, seed: int, common: int = COMMON) -> tuple[Part, Part]:
        """Return records to train on and to test on.

        Args:
            seed: Which split.
            common: Of Breast Cancer, test records without recurrence.
        """
        generator = np.random.default_rng(seed)
        train, test = TRAIN[self.name], TEST[self.name]
        if self.name == "adult":
            order = generator.permutation(OFFICIAL)[: train + test]
            return self._taken(order[:train]), self._taken(order[train:])
        classes = [generator.permutation(np.flatnonzero(self.every.y == c)) for c in (0, 1)]
        held = np.concatenate([classes[0][:common], classes[1][: test - common]])
        rest = np.concatenate([classes[0][common:], classes[1][test - common :]])
        return self._taken(rest), self._taken(held)

    def _taken(self, rows: Array) -> Part:
        every = self.every
        return Part(x=every.x[rows], y=every.y[rows], codes=every.codes[rows])

    def correlations(self, part: Part) -> tuple[Array, Array]:
        """Return symmetrical uncertainty with the class and between features; not charged."""
        return compute_symmetrical_uncertainty(
            count_tables(part.codes, self.attributes), self.attributes
        )

    def norms(self, masks: Array) -> Array:
        """Return the largest norm of a record on each set: the root of the columns it touches."""
        touched = masks.astype(np.float64) @ (self.owners[:, None] == np.unique(self.owners))
        return np.sqrt((touched > 0).sum(axis=1))

    def only(self, features: Array) -> Table:
        """Return the table with these features alone."""
        every = self.every
        return Table(
            name=self.name,
            every=Part(x=every.x[:, features], y=every.y, codes=every.codes),
            attributes=self.attributes,
            owners=self.owners[features],
        )


def read(path: str | Path) -> Table:
    """Return Breast Cancer or Adult, by the file's name; its last column is the class."""
    table = Path(path).stem
    with Path(path).open(newline="") as file:
        header, *rows = list(csv.reader(file))
    items, codes, blocks, owners = [], [], [], []
    for place, (name, column) in enumerate(zip(header, np.array(rows).T, strict=True)):
        values, code = np.unique(column, return_inverse=True)
        if name in NUMBERS[table]:
            numbers = column.astype(float)
            scaled = (numbers - numbers.min()) / np.ptp(numbers)
            code, block = np.minimum(BINS * scaled, BINS - 1).astype(int), scaled[:, None]
            size, features = BINS, (tuple(range(BINS)),)
        else:
            size, block = len(values), np.eye(len(values))[code]
            features = tuple(map(tuple, np.eye(size, dtype=int).tolist()))
        last = name == header[-1]
        items.append(
            Attribute(name=name, size=size, encoding="", features=() if last else features)
        )
        codes.append(code)
        if not last:
            blocks.append(block)
            owners += [place] * block.shape[1]
    return Table(
        name=table,
        every=Part(
            x=np.concatenate(blocks, axis=1),
            y=codes[-1].astype(np.int64),
            codes=np.stack(codes, axis=1).astype(np.int16),
        ),
        attributes=Attributes(items=tuple(items)),
        owners=np.array(owners),
    )


LAWS = ("library", "ours")


def fit(
    law: str, table: Table, train: Part, masks: Array, epsilon: float, seed: tuple[int | str, ...]
) -> Array:
    """Return a model of each set, (p, d + 1), each with noise of its own.

    Args:
        law: One of `LAWS`.
        table: What the records are of.
        train: Records.
        masks: (p, d) bool.
        epsilon: Of each fit.
        seed: What names this call's randomness.
    """
    norms, key = table.norms(masks), Keys.from_seed(0).stream(law, repr(epsilon), *seed)
    if law == "ours":
        made = [logistic.ObjectivePerturbation(epsilon=epsilon, data_norm=n) for n in norms]
        streams = [key.child("fit", i) for i in range(len(masks))]
        valid = np.ones(len(train.x), bool)
        return logistic.fit_many(train.x, train.y, valid, masks, made, streams)[:, 0]
    found = np.empty((len(masks), masks.shape[1] + 1))
    for norm in np.unique(norms):
        own = norms == norm
        generator = key.child("norm", repr(float(norm))).generator()
        found[own] = _library(train, masks[own], epsilon, float(norm), generator)
    return found


def library_terms(epsilon: float, norm: float) -> tuple[float, float, float]:
    """Return the noise's rate, and what weights and intercept are regularised with, at C = 1.

    Of diffprivlib 0.6.6, mechanisms/vector.py: an epsilon of 2 log(1 + norm / 4) goes to curvature;
    where nothing would be left, half of epsilon does, bought by more regularisation of everything.
    """
    left = epsilon - 2 * math.log1p(0.25 * norm)
    if left > 0:
        return left / (2 * norm), 1.0, 0.0
    ridge = 0.25 * norm / math.expm1(epsilon / 4)
    return epsilon / (4 * norm), ridge, ridge - 1.0


def _library(
    train: Part, masks: Array, epsilon: float, norm: float, generator: np.random.Generator
) -> Array:
    rate, ridge, own = library_terms(epsilon, norm)
    stretch = INTERCEPT if own <= 0 else min(INTERCEPT, math.sqrt(ridge / own))
    rows, hot = logistic._prepare_problem(train.x, train.y, np.ones(len(train.x), bool), 2)
    rows[:, -1] = stretch
    columns = np.pad(masks, ((0, 0), (0, 1)), constant_values=True)
    noise = generator.standard_normal(columns.shape) * columns
    lengths = generator.gamma(columns.sum(axis=1), 1 / rate)
    noise *= (lengths / np.linalg.norm(noise, axis=1))[:, None]
    noise[:, -1] *= stretch
    bounds, ridges = np.full(len(masks), norm * (1 + 1e-9)), np.full(len(masks), ridge)
    found = solve_in_chunks(rows, hot, masks, bounds, ridges, noise[:, None], "cpu")[:, 0]
    found[:, -1] *= stretch
    return found


def accuracies(weights: Array, part: Part) -> Array:
    """Return the share of right answers of each model, (p,)."""
    right = np.empty(len(weights))
    for start in range(0, len(weights), 256):
        some = slice(start, start + 256)
        says = part.x @ weights[some, :-1].T + weights[some, -1] > 0
        right[some] = (says == (part.y == 1)[:, None]).mean(axis=0)
    return right


def mask_of(chosen: Any, features: int) -> Array:
    """Return a set as a mask, (d,)."""
    mask = np.zeros(features, bool)
    mask[list(chosen)] = True
    return mask


def path_of(name: str) -> Path:
    """Return the file of a study's lines."""
    return RESULTS / f"{name}.jsonl"


def rows_of(name: str) -> list[cells.PlannedRelease]:
    """Return the lines of a study."""
    return cells.stored(path_of(name))


def summary(values: Array) -> dict[str, Any]:
    """Return the mean of repetitions, their standard deviation, and how many there are."""
    return {
        "accuracy": round(float(np.mean(values)), 5),
        "deviation": round(float(np.std(values)), 5),
        "repeats": len(values),
    }
