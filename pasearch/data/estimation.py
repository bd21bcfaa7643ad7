"""What a schema leaves undeclared, estimated privately (bounds, categories, classes) or read free.

Every undeclared item (the bounds of all features, a column, the target) is one release of the same
price, noise multiplier sigma and a leak delta, whatever it turns out to be:

    arrays   bounds:  of the records' minima and of their maxima, sigma sqrt(2) each
             target:  how many classes its labels are, or the bounds of its numbers, sigma
    tables   a column whose kind is not declared: is it numbers? (a noisy count, sigma / sqrt(.1));
             then its bounds and bins or its categories (sigma / sqrt(.9)). Otherwise those alone

An estimate is a release: every later step, on any partition, may use it. It is made from the slots
of scores or of the test, which have epsilon to spare. A class list is made from the training slots,
because without it no model can be trained: they are most of the records, so that a rare class is
found at a small part of their epsilon (`planning.Solver`).

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
from pasearch.data.column import BINS, Column
from pasearch.data.schema import Schema
from pasearch.data.tables import AnySchema
from pasearch.runs.estimates import CategoryCounts, ClassCount, NumberBounds, finite
from pasearch.runs.keys import Stream
from pasearch.runs.quantiles import NumberBins, bins_of
from pasearch.runs.sums import GaussianSum

RARE_CLASS = 0.01
"""The share of the training records that a class shall need to be found: the noise of the class
list is no smaller than that takes."""

CLASS_FOUND = 0.99
"""The probability with which a class of that share is found, if the budget allows it."""

KIND_SHARE = 0.1
"""The share of a column's price, 1 / sigma^2, that asks whether it holds numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaEstimate:
    """How an undeclared item is estimated privately.

    Args:
        noise_multiplier: Of one item, in records, above 0.
        delta: Of one item, in (0, 1): the most probability with which a category of one record is
            released.
        most: The most categories that a column may have, 2 or more.

    Guarantee: `estimate` costs `event`, once for each undeclared item, on the partition whose cells
    it is given, as far as float64 noise is Gaussian.
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
        """What one item costs: as much as categories do, and no other kind costs more."""
        return self._categories(1.0).event

    @property
    def least(self) -> int:
        """How many slots must hold a category, about, for it to be estimated privately."""
        return self._categories(1.0).threshold

    @property
    def counts(self) -> CategoryCounts:
        """The mechanism that finds the categories, or classes, of one item."""
        return self._categories(1.0)

    def estimate_classes(self, schema: AnySchema, labels: Any, stream: Stream) -> AnySchema:
        """Return the schema with its undeclared classes estimated privately from these slots.

        Args:
            schema: With undeclared classes: see `undeclared_classes`.
            labels: Of the slots, (slots,).
            stream: The release's own randomness.

        Returns:
            The schema with its classes, which are a release; other columns stay as they are.

        Cost: `event`, once.
        """
        if isinstance(schema, Schema):
            return replace(schema, classes=self._count_classes(labels, stream))
        target = self._of_column(schema.target, labels, True, True, stream)
        return schema.completed({target.name: target})

    def _count_classes(self, labels: Any, stream: Stream) -> int:
        """Return the number of classes of arrays: their labels are whole numbers from 0."""
        counted = ClassCount(noise_multiplier=self.noise_multiplier, most=self.most)
        return counted.release(labels, stream.child("target"))

    def estimate(self, schema: AnySchema, features: Any, labels: Any, stream: Stream) -> AnySchema:
        """Return the schema with everything undeclared estimated privately from these slots.

        Args:
            schema: With something undeclared.
            features: Of the slots, in the data's own units, (slots, ...).
            labels: Of the slots, (slots,).
            stream: The releases' own randomness.

        Returns:
            The complete schema: a release.

        Cost: `event`, once for every item of `schema.undeclared`.
        """
        if isinstance(schema, Schema):
            return self._of_arrays(schema, features, labels, stream)
        estimated = {}
        for column, cells in schema.each(features, labels):
            if column.declared:
                continue
            name = column.name
            own = stream.child("column", name)
            target = name == schema.target.name
            estimated[name] = self._of_column(column, cells, schema.is_class(name), target, own)
        return schema.completed(estimated)

    def _of_arrays(
        self, schema: Schema, features: np.ndarray, labels: np.ndarray, stream: Stream
    ) -> Schema:
        values: dict[str, Any] = {}
        if "bounds" in schema.undeclared:
            low, high = self._common_bounds(features, stream.child("bounds"))
            values |= {"low": low, "high": high}
        if "target" in schema.undeclared and schema.regression:
            values["target"] = self._bounds(1.0).release(labels, stream.child("target"))
        elif "target" in schema.undeclared:
            values["classes"] = self._count_classes(labels, stream)
        return replace(schema, **values)

    def _common_bounds(self, features: np.ndarray, stream: Stream) -> tuple[float, float]:
        """Return bounds of all features: a record has one minimum and one maximum."""
        flat = features.reshape(len(features), -1)
        ends = (flat.min(axis=1), flat.max(axis=1))
        usable = np.isfinite(ends[0]) & np.isfinite(ends[1])
        half = self._bounds(0.5)
        minima, maxima = (
            half.release(each[usable], stream.child(side)) for side, each in enumerate(ends)
        )
        low, high = minima[0], maxima[1]
        # Noise may put the largest minimum above the largest maximum; all four edges are public.
        return (low, high) if low < high else (min(*minima, *maxima), max(*minima, *maxima))

    def _of_column(
        self, column: Column, cells: ColumnCells, is_class: bool, target: bool, stream: Stream
    ) -> Column:
        kind, share, numbers = column.kind, 1.0, convert_to_numbers(cells, column.reading)
        if kind is None and is_class:
            kind = "category"
        elif kind is None:
            many = self._mostly(np.isfinite(numbers), stream.child("kind"))
            kind, share = "number" if many else "category", 1.0 - KIND_SHARE
        if kind == "number":
            own = stream.child("bounds")
            if target or not column.open_bins:
                low, high = self._bounds(share).release(numbers, own)
                return replace(column, kind=kind, low=low, high=high)
            binned = NumberBins(noise_multiplier=self._sigma(share), most=BINS)
            low, high, edges = binned.release(numbers, own, column.bounds)
            return replace(column, kind=kind, low=low, high=high, bins=edges)
        counts = column.count(cells)
        found = self._categories(share).release(counts, stream.child("categories"))
        return replace(column, kind="category", categories=tuple(found))

    def _mostly(self, true: np.ndarray, stream: Stream) -> bool:
        """Return whether more than half of the slots are, by a noisy count."""
        count = np.array([np.count_nonzero(true)], np.float64)
        noisy = GaussianSum(noise_multiplier=self._sigma(KIND_SHARE)).release(count, stream)
        return bool(noisy[0] > len(true) / 2)

    def _sigma(self, share: float) -> float:
        """Return the noise of a share of one item's 1 / sigma^2; the shares add up to 1."""
        return self.noise_multiplier / math.sqrt(share)

    def _bounds(self, share: float) -> NumberBounds:
        return NumberBounds(noise_multiplier=self._sigma(share))

    def _categories(self, share: float) -> CategoryCounts:
        return CategoryCounts(noise_multiplier=self._sigma(share), delta=self.delta, most=self.most)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def undeclared_classes(schema: AnySchema) -> str | None:
    """Return the item of a schema's `undeclared` that is its class list; None without one."""
    name = "target" if isinstance(schema, Schema) else schema.target.name
    return name if not schema.regression and name in schema.undeclared else None


def read_free(schema: AnySchema, features: Any, labels: Any, most: int) -> AnySchema:
    """Return the schema with everything undeclared read from the records, as if it were public.

    Only for `assume_public_schema=`: no theorem covers it, and the card lists it.
    """
    if isinstance(schema, Schema):
        values: dict[str, Any] = {}
        if "bounds" in schema.undeclared:
            low, high = _range(features)
            values |= {"low": low, "high": high}
        if "target" in schema.undeclared:
            if schema.regression:
                values["target"] = _range(labels)
            else:
                values["classes"] = max(2, int(labels.max()) + 1)
        return replace(schema, **values)
    read = {}
    for column, cells in schema.each(features, labels):
        if not column.declared:
            name = column.name
            target = name == schema.target.name
            read[name] = _read_column(column, cells, most, schema.is_class(name), target)
    return schema.completed(read)


def _read_column(
    column: Column, cells: ColumnCells, most: int, is_class: bool, target: bool
) -> Column:
    numbers, kind = convert_to_numbers(cells, column.reading), column.kind
    if kind is None:
        many = np.isfinite(numbers).sum() > len(cells) / 2
        kind = "number" if many and not is_class else "category"
    if kind == "number":
        low, high = column.bounds or _range(numbers)
        bins = column.bins
        if not target and column.open_bins:
            bins = bins_of(numbers, low, high, BINS)
        return replace(column, kind=kind, low=low, high=high, bins=bins)
    counts = column.count(cells)
    common = sorted(counts, key=lambda name: (-counts[name], name))[:most]
    return replace(column, kind="category", categories=tuple(sorted(common)))


def _range(values: np.ndarray) -> tuple[float, float]:
    """Return the finite minimum and maximum, apart."""
    known = finite(values)
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    return (low, high) if low < high else (low - 0.5, low + 0.5)
