"""Private estimation of undeclared bounds, categories and classes of a schema.

Every undeclared item (the bounds of all features, a column, the target) is one release. Each item
has the same privacy cost, whatever the result is. The noise multipliers of its parts follow from
the noise multiplier sigma of the item:

    arrays   bounds of the features    bounds of the records' minima, and of their maxima: sigma
                                       sqrt(2) each
             target                    number of classes, or bounds of a regression target: sigma
    tables   column of unknown kind    noisy count of numbers: sigma / sqrt(.1); then as below, with
                                       sigma / sqrt(.9)
             column of known kind      bounds and bins, or categories: sigma
             vocabulary of a text      counts of words: sigma sqrt(16), because a record is counted
                                       for at most 16 words

An estimate is a release, so every later step may use it on any partition. It is computed from the
validation or the test records, whose epsilon is not used up otherwise. A class list is estimated
from the training records, because no model can be trained without it. They are most of the records,
so a rare class is found with a small part of their epsilon (`planning.PlanCalibrator`).

Source: docs/rules.md, rule 13. Proof: docs/guarantees/estimated-schema.md.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pasearch.accounting.checks import (
    check_fraction,
    check_positive,
    check_positive_integer,
    make_post_init,
)
from pasearch.accounting.events import Event
from pasearch.data.cells import ColumnCells, convert_to_numbers
from pasearch.data.column import (
    DEFAULT_BINS,
    MAX_COUNTED_WORDS,
    MAX_ESTIMATED_WORDS,
    Column,
)
from pasearch.data.schema import Schema
from pasearch.data.tables import AnySchema
from pasearch.runs.estimates import (
    CategoryCounts,
    ClassCount,
    NumberBins,
    NumberBounds,
    compute_exact_bin_edges,
    select_finite_values,
)
from pasearch.runs.keys import Stream
from pasearch.runs.sums import GaussianSum

RARE_CLASS_FRACTION = 0.01
"""Fraction of the training records of a class that should still be found. The noise of the class
list is not reduced further than this requires."""

CLASS_DETECTION_PROBABILITY = 0.99
"""Probability of finding a class with `RARE_CLASS_FRACTION` of the records, if the budget allows
it."""

KIND_TEST_FRACTION = 0.1
"""Fraction of a column's 1 / sigma^2 for the test whether the column is numeric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaEstimate:
    """Mechanism that privately estimates one undeclared item of a schema.

    Args:
        noise_multiplier: Noise multiplier of one item, in records, above 0.
        delta: Additive delta of one item, in (0, 1): the maximum probability of releasing a
            category that only one record has.
        most: Maximum number of categories of a column, 2 or more.

    Guarantee: `estimate` costs `event` once for each undeclared item, on the partition whose cells
    it receives, if float64 noise is Gaussian.
    """

    noise_multiplier: float
    delta: float
    most: int
    __post_init__ = make_post_init(
        noise_multiplier=check_positive,
        delta=check_fraction,
        most=lambda _, m: check_positive_integer("max_categories", m),
    )

    @property
    def event(self) -> Event:
        """Privacy event of one item: that of categories, because no other item costs more."""
        return self._make_category_mechanism(1.0).event

    @property
    def min_records(self) -> int:
        """Approximate minimum number of records of a category that is found."""
        return self._make_category_mechanism(1.0).threshold

    @property
    def category_mechanism(self) -> CategoryCounts:
        """Mechanism that finds the categories, or classes, of one item."""
        return self._make_category_mechanism(1.0)

    @property
    def vocabulary_mechanism(self) -> CategoryCounts:
        """Mechanism that finds the words of one item.

        A record changes at most k = `MAX_COUNTED_WORDS` counts by 1 each, so by sqrt(k) in L2 norm,
        and at most k words occur in this record only.
        """
        return CategoryCounts(
            noise_multiplier=self.noise_multiplier * math.sqrt(MAX_COUNTED_WORDS),
            delta=self.delta / MAX_COUNTED_WORDS,
            most=MAX_ESTIMATED_WORDS,
        )

    def estimate_classes(self, schema: AnySchema, labels: Any, stream: Stream) -> AnySchema:
        """Estimate the undeclared classes of a schema privately.

        Args:
            schema: Schema with undeclared classes (`find_undeclared_classes`).
            labels: Labels of the records, (records,).
            stream: Random stream of the release.

        Returns:
            Schema with released classes; other columns are unchanged.

        Cost: `event`, once.
        """
        if isinstance(schema, Schema):
            return replace(schema, classes=self._count_classes(labels, stream))
        target = self._estimate_column(schema.target, labels, True, True, stream)
        return schema.completed({target.name: target})

    def _count_classes(self, labels: Any, stream: Stream) -> int:
        """Release the number of classes of arrays, whose labels are integers from 0."""
        counted = ClassCount(noise_multiplier=self.noise_multiplier, most=self.most)
        return counted.release(labels, stream.child("target"))

    def estimate(self, schema: AnySchema, features: Any, labels: Any, stream: Stream) -> AnySchema:
        """Estimate all undeclared items of a schema privately.

        Args:
            schema: Schema with at least one undeclared item.
            features: Features of the records, (records, ...), in the original units.
            labels: Labels of the records, (records,).
            stream: Random stream of the releases.

        Returns:
            Complete schema: a release.

        Cost: `event`, once for every item of `schema.undeclared`.
        """
        if isinstance(schema, Schema):
            values: dict[str, Any] = {}
            if "bounds" in schema.undeclared:
                low, high = self._estimate_bounds(features, stream.child("bounds"))
                values |= {"low": low, "high": high}
            if "target" in schema.undeclared and schema.regression:
                mechanism = NumberBounds(noise_multiplier=self.noise_multiplier)
                values["target"] = mechanism.release(labels, stream.child("target"))
            elif "target" in schema.undeclared:
                values["classes"] = self._count_classes(labels, stream)
            return replace(schema, **values)
        estimated = {}
        for column, cells in schema.iterate_columns(features, labels):
            if column.is_declared:
                continue
            name = column.name
            own = stream.child("column", name)
            target = name == schema.target.name
            is_class = schema.is_class(name)
            estimated[name] = self._estimate_column(column, cells, is_class, target, own)
        return schema.completed(estimated)

    def _estimate_bounds(self, features: np.ndarray, stream: Stream) -> tuple[float, float]:
        """Release common bounds of all features, from each record's minimum and maximum."""
        flat = features.reshape(len(features), -1)
        ends = (flat.min(axis=1), flat.max(axis=1))
        usable = np.isfinite(ends[0]) & np.isfinite(ends[1])
        half = NumberBounds(noise_multiplier=self._compute_part_noise(0.5))
        minima, maxima = (
            half.release(each[usable], stream.child(side)) for side, each in enumerate(ends)
        )
        low, high = minima[0], maxima[1]
        # Noise may cause low >= high. All four numbers are released, so any of them may be used.
        return (low, high) if low < high else (min(*minima, *maxima), max(*minima, *maxima))

    def _estimate_column(
        self, column: Column, cells: ColumnCells, is_class: bool, target: bool, stream: Stream
    ) -> Column:
        """Estimate the undeclared kind, bounds, bins or categories of a column privately."""
        kind, share, numbers = column.kind, 1.0, convert_to_numbers(cells, column.cell_format)
        if kind is None and is_class:
            kind = "category"
        elif kind is None:  # a noisy count tests whether most cells are numbers
            mechanism = GaussianSum(noise_multiplier=self._compute_part_noise(KIND_TEST_FRACTION))
            count = np.array([np.count_nonzero(np.isfinite(numbers))], np.float64)
            noisy = mechanism.release(count, stream.child("kind"))
            kind = "number" if noisy[0] > len(numbers) / 2 else "category"
            share = 1.0 - KIND_TEST_FRACTION
        if kind == "number":
            own = stream.child("bounds")
            if target or not column.has_undeclared_edges:
                mechanism = NumberBounds(noise_multiplier=self._compute_part_noise(share))
                low, high = mechanism.release(numbers, own)
                return replace(column, kind=kind, low=low, high=high)
            binned = NumberBins(noise_multiplier=self._compute_part_noise(share), most=DEFAULT_BINS)
            low, high, edges = binned.release(numbers, own, column.bounds)
            return replace(column, kind=kind, low=low, high=high, bins=edges)
        if kind == "text":
            return replace(column, vocabulary=self._estimate_vocabulary(column, cells, stream))
        counts = column.count_categories(cells)
        found = self._make_category_mechanism(share).release(counts, stream.child("categories"))
        return replace(column, kind="category", categories=tuple(found))

    def _estimate_vocabulary(
        self, column: Column, cells: ColumnCells, stream: Stream
    ) -> tuple[str, ...]:
        """Estimate the most frequent words of a text column privately, most frequent first."""
        counts = column.count_words(cells)
        return tuple(self.vocabulary_mechanism.release(counts, stream.child("vocabulary")))

    def _compute_part_noise(self, share: float) -> float:
        """Return the noise multiplier of a part with this share of the item's 1 / sigma^2."""
        return self.noise_multiplier / math.sqrt(share)

    def _make_category_mechanism(self, share: float) -> CategoryCounts:
        """Make the mechanism for categories with this share of the item's 1 / sigma^2."""
        noise = self._compute_part_noise(share)
        return CategoryCounts(noise_multiplier=noise, delta=self.delta, most=self.most)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-compatible values."""
        return asdict(self)


def find_undeclared_classes(schema: AnySchema) -> str | None:
    """Return the name of the target as in `schema.undeclared`, if its classes are undeclared."""
    name = "target" if isinstance(schema, Schema) else schema.target.name
    return name if not schema.regression and name in schema.undeclared else None


def read_public_schema(schema: AnySchema, features: Any, labels: Any, most: int) -> AnySchema:
    """Complete a schema exactly from the records, without noise.

    Only if the user assumes the schema public (`assume_public_schema=`): no theorem covers this
    read, and the privacy card lists it.

    Args:
        schema: Schema with undeclared items.
        features: Features of the records, (records, ...), in the original units.
        labels: Labels of the records, (records,).
        most: Maximum number of categories of a column, 2 or more.
    """
    if isinstance(schema, Schema):
        values: dict[str, Any] = {}
        if "bounds" in schema.undeclared:
            low, high = _find_range(features)
            values |= {"low": low, "high": high}
        if "target" in schema.undeclared:
            if schema.regression:
                values["target"] = _find_range(labels)
            else:
                values["classes"] = max(2, int(labels.max()) + 1)
        return replace(schema, **values)
    read = {}
    for column, cells in schema.iterate_columns(features, labels):
        if not column.is_declared:
            name = column.name
            target = name == schema.target.name
            read[name] = _read_column(column, cells, most, schema.is_class(name), target)
    return schema.completed(read)


def _read_column(
    column: Column, cells: ColumnCells, most: int, is_class: bool, target: bool
) -> Column:
    """Read the undeclared kind, bounds, bins or categories of a column exactly from its cells."""
    numbers, kind = convert_to_numbers(cells, column.cell_format), column.kind
    if kind is None:
        many = np.isfinite(numbers).sum() > len(cells) / 2
        kind = "number" if many and not is_class else "category"
    if kind == "number":
        low, high = column.bounds or _find_range(numbers)
        bins = column.bins
        if not target and column.has_undeclared_edges:
            bins = compute_exact_bin_edges(numbers, low, high, DEFAULT_BINS)
        return replace(column, kind=kind, low=low, high=high, bins=bins)
    if kind == "text":
        words = column.count_words(cells)
        found = sorted(words, key=lambda word: (-words[word], word))[:MAX_ESTIMATED_WORDS]
        return replace(column, vocabulary=tuple(found))
    counts = column.count_categories(cells)
    common = sorted(counts, key=lambda name: (-counts[name], name))[:most]
    return replace(column, kind="category", categories=tuple(sorted(common)))


def _find_range(values: np.ndarray) -> tuple[float, float]:
    """Return the finite minimum and maximum, widened if they are equal."""
    known = select_finite_values(values)
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    return (low, high) if low < high else (low - 0.5, low + 0.5)
