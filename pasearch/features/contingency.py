"""Contingency tables of all pairs of columns, in one noisy release, and what features share.

A column is a discrete variable, and every record falls in one cell of the table of each pair:

    n_ij(a, b) = how many records have code a in column i and code b in column j
    release      n_ij(a, b) + N(0, sigma^2 T) in every cell of all T tables      sensitivity sqrt(T)
    SU(x, y)   = 2 (H(x) + H(y) - H(x, y)) / (H(x) + H(y))                       0: one is constant

A feature of an encoded record (an indicator of one code, or the number itself in its bins) is a
function of its column's code, so its tables are sums of cells: one release serves every feature,
every set of features and every merit. All that follows the release is post-processing:

1. The tables are made to agree on how many records there are and how many have each code.
2. Noise looks like dependence: independent columns with noise of deviation s in a cell have about
   s^2 / (2 ln 2 N n(a, b)) bits too much. What a table has beyond independence is shrunk by what
   noise of the known size would show.

Source: Bao et al. Section VIII-B (CFS); Hall 1999 (the measure); Barak et al. 2007 (consistent
tables). Proof: docs/guarantees/contingency-tables.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np

from pasearch.accounting.profiles import Array
from pasearch.data.column import DEFAULT_BINS, Column
from pasearch.data.partitions import Records
from pasearch.data.schema import Schema
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.errors import UsageError
from pasearch.runs.keys import Stream
from pasearch.runs.sums import GaussianRelease, GaussianSum


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """What is public about one column as a discrete variable.

    Args:
        name: Of the column; of a text's, the column and the word.
        size: How many codes there are: 0 .. size - 1.
        reads: How a code comes from the record: `one-hot` (the place of the 1), `binned` (the same,
            behind the scaled number), `cut` (the scaled number's bin, and whether it is missing),
            `flag` (0 or 1), `class` or `target` (of y).
        features: For each of its features, in the record's order, which value it has at each code.
    """

    name: str
    size: int
    encoding: str
    features: tuple[tuple[int, ...], ...] = ()

    def codes(self, block: np.ndarray) -> np.ndarray:
        """Return the code of every record, whatever stands in the block: one of 0 .. size - 1.

        Args:
            block: (n, features) of the encoded records; of a target (n, 1), y.
        """
        if self.encoding == "one-hot":
            return block.argmax(axis=1)
        if self.encoding == "binned":
            return block[:, 1:].argmax(axis=1)
        if self.encoding == "flag":
            return (block[:, 0] > 0.5).astype(np.int64)
        if self.encoding == "class":
            return np.clip(block[:, 0], 0, self.size - 1).astype(np.int64)
        scaled = np.clip(np.nan_to_num(block[:, 0]), 0.0, 1.0)
        tenths = np.minimum(scaled * DEFAULT_BINS, DEFAULT_BINS - 1).astype(np.int64)
        missing = block.shape[1] == 2
        return np.where(block[:, 1] > 0.5, DEFAULT_BINS, tenths) if missing else tenths


@dataclass(frozen=True, kw_only=True)
class Attributes:
    """All columns as discrete variables, the target last: public.

    Args:
        items: One for each column, or word of a text.
    """

    items: tuple[Attribute, ...]

    def __post_init__(self) -> None:
        if not len(self.items) > 1:
            raise UsageError("There is no column beside the target: expected one that is used.")
        if not sum(self.sizes) <= MAX_CODES:
            raise UsageError(
                f"The columns have {sum(self.sizes):,} codes together: expected at most "
                f"{MAX_CODES:,}, as the tables of all pairs have that many squared. Ignore "
                "columns, or declare fewer categories, words or bins."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, (m,)."""
        return tuple(each.name for each in self.items)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many codes each column has, (m,)."""
        return tuple(each.size for each in self.items)

    @property
    def width(self) -> int:
        """How many features an encoded record has, d."""
        return sum(len(each.features) for each in self.items)

    @cached_property
    def starts(self) -> np.ndarray:
        """Where the codes of each column begin among all codes, (m,)."""
        return np.cumsum((0, *self.sizes[:-1]))

    @cached_property
    def owners(self) -> np.ndarray:
        """Which column each code belongs to, (S,)."""
        return np.repeat(np.arange(len(self.items)), self.sizes)

    def codes(self, x: Any, y: Any, valid: Any) -> np.ndarray:
        """Return the codes of encoded records.

        Guarantee: a record's codes depend on itself alone, and a null record's are all -1.

        Args:
            x: (n, d) or (n, *shape) in [0, 1], as `Records` holds them behind no front end.
            y: (n,) classes, or numbers in [0, 1].
            valid: (n,) False marks a null record.

        Returns:
            (n, m) int16, the target last.

        Raises:
            UsageError: Records of another width.
        """
        rows, last = np.asarray(x), np.asarray(y)[:, None]
        rows = rows.reshape(len(rows), -1)
        if rows.shape[1] != self.width:
            raise UsageError(
                f"The records have {rows.shape[1]} features: expected {self.width}, as the schema "
                "encodes them, behind no front end."
            )
        found, start = np.empty((len(rows), len(self.items)), np.int16), 0
        for place, each in enumerate(self.items[:-1]):
            end = start + len(each.features)
            found[:, place] = each.codes(rows[:, start:end])
            start = end
        found[:, -1] = self.items[-1].codes(last)
        found[~np.asarray(valid, bool)] = -1
        return found

    def encode_parts(self, records: Records) -> Iterator[np.ndarray]:
        """Go through the codes of open records, part by part.

        Args:
            records: Behind no front end.
        """
        for part in records.parts():
            yield self.codes(part.x, part.y, part.valid)

    def count_pairs(self, records: Records) -> JointCounts:
        """Return all tables of open records: private."""
        return reduce(add, (count_tables(codes, self) for codes in self.encode_parts(records)))


MAX_CODES = 2**14
"""The most codes of all columns: 2 GiB of tables."""


def make_attributes(schema: AnySchema) -> Attributes:
    """Return what is public about every column as a discrete variable.

    Args:
        schema: Complete. Of arrays, each feature is a number with `BINS` bins of equal width.
    """
    if isinstance(schema, Schema):
        names = schema.names or tuple(f"feature {i + 1}" for i in range(math.prod(schema.shape)))
        items = [
            Attribute(name=n, size=DEFAULT_BINS, encoding="cut", features=(_IDENTITY_CODES,))
            for n in names
        ]
    else:
        items = [each for column in schema.pieces for each in _attributes_of_column(column)]
    return Attributes(items=(*items, _attribute_of_target(schema)))


_IDENTITY_CODES = tuple(range(DEFAULT_BINS))


def _attributes_of_column(column: Column) -> list[Attribute]:
    if column.kind == "ignore":
        return []
    if column.kind == "text":
        flags = column.feature_names()
        return [Attribute(name=n, size=2, encoding="flag", features=((0, 1),)) for n in flags]
    if column.kind == "category":
        size = column.width
        return [
            Attribute(
                name=column.name, size=size, encoding="one-hot", features=_indicator_codes(size)
            )
        ]
    edges = column.edges
    size = len(edges) + 2 if edges else DEFAULT_BINS + 1
    # A missing number is encoded as the lower bound is.
    low = int(np.searchsorted(edges, column.low or 0.0, side="right")) if edges else 0
    number = (*range(size - 1), low)
    told = _indicator_codes(size)
    return [
        Attribute(
            name=column.name,
            size=size,
            encoding="binned" if edges else "cut",
            features=(number, *(told if edges else told[-1:])),
        )
    ]


def _attribute_of_target(schema: Schema | TableSchema) -> Attribute:
    name = "target" if isinstance(schema, Schema) else schema.target.name
    if schema.regression:
        return Attribute(name=name, size=DEFAULT_BINS, encoding="target")
    return Attribute(name=name, size=schema.outputs, encoding="class")


def _indicator_codes(size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in np.eye(size, dtype=int).tolist())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointCounts:
    """How many records have each pair of codes: the tables of all pairs of columns in one matrix.

    Args:
        counts: (S, S) float64, symmetric, S codes of all columns; a column's block with itself is
            diagonal.
        slots: How many records were looked at, null ones included: public.
    """

    counts: Array
    slots: int

    def __add__(self, other: JointCounts) -> JointCounts:
        return JointCounts(counts=self.counts + other.counts, slots=self.slots + other.slots)

    def simulate_independent(
        self, attributes: Attributes, generator: np.random.Generator
    ) -> JointCounts:
        """Return tables of columns with these marginals that tell nothing of each other.

        As many records are drawn, about: each cell has a deviation of the root of its count.
        """
        marginals = self.counts.diagonal()
        total = max(1.0, float(marginals[: attributes.sizes[0]].sum()))
        own = attributes.owners[:, None] == attributes.owners
        counts = np.outer(marginals, marginals) / total
        drawn = np.triu(generator.standard_normal(counts.shape))
        counts = counts + np.sqrt(counts) * (drawn + np.triu(drawn, 1).T)
        return JointCounts(counts=np.where(own, self.counts, counts), slots=self.slots)


def count_tables(codes: np.ndarray, attributes: Attributes) -> JointCounts:
    """Return all tables at once, exact.

    Guarantee: a record adds 1 to one cell of each table; a null record adds nothing.

    Args:
        codes: (n, m), as `Attributes.codes` returns them: private.
        attributes: Their columns.

    Cost: nothing by itself: the counts are as private as the records.
    """
    sizes, starts = attributes.sizes, attributes.starts.tolist()
    counts = np.zeros((sum(sizes), sum(sizes)))
    filled = codes[(codes >= 0).all(axis=1)]
    columns = np.ascontiguousarray(filled.T, np.int64)
    for i, first in enumerate(columns):
        rows = slice(starts[i], starts[i] + sizes[i])
        for j in range(i, len(columns)):
            size = sizes[i] * sizes[j]
            table = np.bincount(first * sizes[j] + columns[j], minlength=size)
            block = slice(starts[j], starts[j] + sizes[j])
            counts[rows, block] = table.reshape(sizes[i], sizes[j])
            counts[block, rows] = counts[rows, block].T
    return JointCounts(counts=counts, slots=len(codes))


class ContingencyTables(GaussianRelease):
    """All tables of pairs of columns, with Gaussian noise: one release.

    Guarantee: `release` costs `event` for the counts of records, as far as float64 noise is
    Gaussian: a record is in one cell of each of T tables, so the tables / sqrt(T) move by 1 in L2.
    The noise multiplier is the noise's standard deviation / sqrt(T), in records.
    """

    __slots__ = ()

    def tables(self, attributes: Attributes) -> int:
        """Return how many tables are released, T."""
        m = len(attributes.items)
        return m * (m - 1) // 2

    def standard_deviation(self, attributes: Attributes) -> float:
        """Return the noise of one cell, in records."""
        return self.noise_multiplier * math.sqrt(self.tables(attributes))

    def release(self, joint: JointCounts, attributes: Attributes, stream: Stream) -> JointCounts:
        """Return the tables with noise, made consistent, nowhere negative, and shrunk.

        Args:
            joint: Of all records, exact: private.
            attributes: Their columns.
            stream: The release's own randomness; the noise's key contains the counts.

        Cost: `event`, on every partition that was counted; charge it first.
        """
        cells = attributes.owners[:, None] < attributes.owners  # each table once
        scale = math.sqrt(self.tables(attributes))
        sums = GaussianSum(noise_multiplier=self.noise_multiplier)
        noisy = np.zeros_like(joint.counts)
        noisy[cells] = scale * sums.release(joint.counts[cells] / scale, stream)
        noisy += noisy.T
        deviation = self.standard_deviation(attributes)
        counts = _TableDenoiser(attributes).make_consistent(noisy, deviation, joint.slots)
        return JointCounts(counts=counts, slots=joint.slots)


FITTING_ROUNDS = 20
"""How often rows and columns are fitted to the marginals in turn."""

MAX_SPECTRAL_CODES = 2000
"""The most codes for which eigenvalues are taken: their time grows as the cube."""

MIN_KEPT_FRACTION = 0.1
"""What is kept of a table that noise alone would explain: so much that columns keep an order."""


class _TableDenoiser:
    """Post-processing of noisy tables; no record is looked at."""

    __slots__ = ("_others", "_owners", "_sizes", "_starts")

    def __init__(self, attributes: Attributes):
        self._starts, self._owners = attributes.starts, attributes.owners
        self._sizes = np.array(attributes.sizes, float)
        self._others = 1.0 - np.eye(len(self._sizes))

    def make_consistent(self, noisy: Array, deviation: float, slots: int) -> Array:
        """Return tables with common marginals, nowhere negative, shrunk towards independence.

        The noisy ones, (S, S), are 0 of a column with itself; a cell's noise has the deviation.
        """
        total, marginals = self._estimate_marginals(noisy, slots)
        independent = np.outer(marginals, marginals) / total
        own = np.diag(marginals) - independent
        beyond = np.where(self._is_diagonal, own, self._centre_tables(noisy - independent))
        kept = np.where(self._is_diagonal, own, self._shrink_tables(beyond, deviation))
        # No cell can hold more records than its row or column, nor fewer than both leave over.
        most = np.minimum(marginals[:, None], marginals)
        least = np.maximum(0.0, marginals[:, None] + marginals - total)
        fitted = self._fit_marginals(np.clip(independent + kept, least, most), marginals)
        return np.where(self._is_diagonal, np.diag(marginals), fitted)

    @property
    def _is_diagonal(self) -> np.ndarray:
        """Which entries are of a column with itself, bool (S, S)."""
        return self._owners[:, None] == self._owners

    def _sum_by_column(self, entries: Array) -> Array:
        """Return the sums of a matrix over the codes of each column, (rows, m)."""
        return np.add.reduceat(entries, self._starts, axis=1)

    def _sum_by_table(self, entries: Array) -> Array:
        """Return the sum of each table, (m, m)."""
        return np.add.reduceat(self._sum_by_column(entries), self._starts, axis=0)

    def _expand_tables(self, tables: Array) -> Array:
        """Return a number of each table in all its cells, (S, S)."""
        return tables[self._owners][:, self._owners]

    def _estimate_marginals(self, noisy: Array, slots: int) -> tuple[float, Array]:
        """Return how many records there are, and how many have each code.

        Each table tells both, the smaller the better (its noise is that of as many cells as are
        added up): means, weighted by 1 / variance.
        """
        weight = self._others / np.outer(self._sizes, self._sizes)
        total = float((weight * self._sum_by_table(noisy)).sum() / weight.sum())
        total = min(max(total, 1.0), float(max(slots, 1)))
        weight = (self._others / self._sizes)[self._owners]
        found = (weight * self._sum_by_column(noisy)).sum(axis=1) / weight.sum(axis=1)
        parts = np.split(found, self._starts[1:])
        return total, np.concatenate([_project_onto_simplex(part, total) for part in parts])

    def _centre_tables(self, entries: Array) -> Array:
        """Return the tables with rows and columns that add up to 0: the nearest such tables."""
        rows = self._sum_by_column(entries) / self._sizes
        both = self._expand_tables(self._sum_by_table(entries) / np.outer(self._sizes, self._sizes))
        return entries - rows[:, self._owners] - rows.T[self._owners] + both

    def _shrink_tables(self, beyond: Array, deviation: float) -> Array:
        """Return what the tables have beyond independence, less what noise would show.

        Twice. A table's sum of squares is larger by (rows - 1) (columns - 1) s^2 with noise of
        deviation s than without. And all tables are one covariance matrix of S indicators: it has
        no eigenvalue below 0, and noise makes eigenvalues up to 2 s sqrt(S).
        """
        noise = deviation**2 * np.outer(self._sizes - 1, self._sizes - 1)
        squares = self._sum_by_table(beyond**2)
        excess = 1 - np.divide(noise, squares, out=np.ones_like(noise), where=squares > 0)
        share = self._expand_tables(np.maximum(np.sqrt(np.maximum(excess, 0.0)), MIN_KEPT_FRACTION))
        if len(self._owners) > MAX_SPECTRAL_CODES:
            return beyond * share
        values, vectors = np.linalg.eigh(beyond)
        edge = deviation**2 * len(values)
        values = np.maximum(values, 0.0)
        values *= values**2 / (values**2 + edge)
        return (vectors * values) @ vectors.T * share

    def _fit_marginals(self, tables: Array, marginals: Array) -> Array:
        """Return the tables with the marginals, by iterative proportional fitting."""
        upper = self._owners[:, None] < self._owners
        for _ in range(FITTING_ROUNDS):
            tables = self._fit_rows(tables, marginals)
            tables = self._fit_rows(tables.T, marginals).T
        tables = np.where(upper, tables, 0.0)
        return tables + tables.T

    def _fit_rows(self, tables: Array, marginals: Array) -> Array:
        sums = self._sum_by_column(tables)
        aims = np.broadcast_to(marginals[:, None], sums.shape)
        scale = np.divide(aims, sums, out=np.zeros_like(sums), where=sums > 0)
        return tables * scale[:, self._owners]


def _project_onto_simplex(values: Array, total: float) -> Array:
    """Return the nearest numbers, 0 or above, that add up to the total."""
    falling = np.sort(values)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, len(values) + 1)
    return np.maximum(values - excess[np.flatnonzero(falling > excess)[-1]], 0.0)
