"""Contingency tables of all pairs of columns, in one noisy release, and dependence of features.

A column is a discrete variable, and every record falls in one cell of the table of each pair:

    n_ij(a, b) = number of records with code a in column i and code b in column j
    release      n_ij(a, b) + N(0, sigma^2 T) in every cell of all T tables      sensitivity sqrt(T)
    SU(x, y)   = 2 (H(x) + H(y) - H(x, y)) / (H(x) + H(y))                       0: one is constant

A feature of an encoded record is an indicator of one code, or a binned number. Its value is a
function of its column's code, so the tables of features are sums of cells. One release serves every
feature, every set of features and every merit. All later steps are post-processing:

1. The tables are adjusted to a common number of records and common marginals.
2. Noise looks like dependence: noise of standard deviation s in a cell of N records in total adds
   about s^2 / (2 ln 2 N n(a, b)) bits to the measured dependence of independent columns.
   Therefore deviations from independence are shrunk by the amount that the noise causes.

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
from pasearch.data.tables import AnySchema
from pasearch.errors import UsageError
from pasearch.runs.keys import Stream
from pasearch.runs.sums import GaussianRelease, GaussianSum


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """Public metadata of one column as a discrete variable.

    Args:
        name: Name of the column; for a text column, of the column and the word.
        size: Number of codes: 0 .. size - 1.
        encoding: Rule that computes a code from the column's encoded features. `one-hot`: index of
            the 1. `binned`: index of the 1 after the first feature, the scaled number. `cut`: bin
            of the scaled number, or the last code if it is missing. `flag`: 0 or 1. `class`: y.
            `target`: bin of y.
        features: Value of each feature of the column at each code, one tuple per feature in the
            order of an encoded record.
    """

    name: str
    size: int
    encoding: str
    features: tuple[tuple[int, ...], ...] = ()

    def codes(self, block: np.ndarray) -> np.ndarray:
        """Return the code of every record, 0 .. size - 1, (n,), whatever its values are.

        Args:
            block: The column's features of the encoded records, (n, features); for a target: y,
                (n, 1).
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
        items: Discrete variables, one per column or per word of a text column.
    """

    items: tuple[Attribute, ...]

    def __post_init__(self) -> None:
        if not len(self.items) > 1:
            raise UsageError(
                "The table has no column besides the target: at least one must not be ignored."
            )
        if not sum(self.sizes) <= MAX_CODES:
            raise UsageError(
                f"The columns have {sum(self.sizes):,} codes in total: expected at most "
                f"{MAX_CODES:,}, because the tables of all pairs have the square of it as cells. "
                "Ignore columns, or declare fewer categories, words or bins."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, (m,)."""
        return tuple(each.name for each in self.items)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each column, (m,)."""
        return tuple(each.size for each in self.items)

    @property
    def width(self) -> int:
        """Number of features of an encoded record, d."""
        return sum(len(each.features) for each in self.items)

    @cached_property
    def starts(self) -> np.ndarray:
        """Index of each column's first code among all codes, (m,)."""
        return np.cumsum((0, *self.sizes[:-1]))

    @cached_property
    def owners(self) -> np.ndarray:
        """Column index of each code, (S,)."""
        return np.repeat(np.arange(len(self.items)), self.sizes)

    def codes(self, x: Any, y: Any, valid: Any) -> np.ndarray:
        """Return the code of each record in each column.

        Guarantee: a record's codes depend on this record alone; all codes of a null record are -1.

        Args:
            x: Features in [0, 1], encoded without a front end, (n, d) or (n, *shape).
            y: Classes, or numbers in [0, 1], (n,).
            valid: False for a null record, (n,).

        Returns:
            int16 (n, m) for m columns, the target last.

        Raises:
            UsageError: Records of another width.
        """
        rows, last = np.asarray(x), np.asarray(y)[:, None]
        rows = rows.reshape(len(rows), -1)
        if rows.shape[1] != self.width:
            raise UsageError(
                f"The records have {rows.shape[1]} features: expected {self.width}, the schema's "
                "encoding without a front end."
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
        """Iterate over the codes of open records, part by part.

        Args:
            records: Records encoded without a front end.
        """
        for part in records.parts():
            yield self.codes(part.x, part.y, part.valid)

    def count_pairs(self, records: Records) -> JointCounts:
        """Count all tables of open records: private."""
        return reduce(add, (count_tables(codes, self) for codes in self.encode_parts(records)))


MAX_CODES = 2**14  # maximum number of codes of all columns: 2 GiB of tables


def make_attributes(schema: AnySchema) -> Attributes:
    """Describe every column as a discrete variable: public.

    Args:
        schema: Complete schema. Each feature of an array is a number with ten bins of equal width.
    """
    if isinstance(schema, Schema):
        names = schema.names or tuple(f"feature {i + 1}" for i in range(math.prod(schema.shape)))
        items = [
            Attribute(
                name=n, size=DEFAULT_BINS, encoding="cut", features=(tuple(range(DEFAULT_BINS)),)
            )
            for n in names
        ]
    else:
        items = [each for column in schema.pieces for each in _attributes_of_column(column)]
    name = "target" if isinstance(schema, Schema) else schema.target.name
    if schema.regression:
        target = Attribute(name=name, size=DEFAULT_BINS, encoding="target")
    else:
        target = Attribute(name=name, size=schema.outputs, encoding="class")
    return Attributes(items=(*items, target))


def _attributes_of_column(column: Column) -> list[Attribute]:
    """Describe a column as discrete variables: one, or one per word of a text column."""
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
    # A missing number has the encoding of the lower bound.
    low = int(np.searchsorted(edges, column.low or 0.0, side="right")) if edges else 0
    number = (*range(size - 1), low)
    indicators = _indicator_codes(size)
    return [
        Attribute(
            name=column.name,
            size=size,
            encoding="binned" if edges else "cut",
            features=(number, *(indicators if edges else indicators[-1:])),
        )
    ]


def _indicator_codes(size: int) -> tuple[tuple[int, ...], ...]:
    """Return the value of each code's indicator at each code: the rows of the identity matrix."""
    return tuple(tuple(row) for row in np.eye(size, dtype=int).tolist())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointCounts:
    """Contingency tables of all pairs of columns, in one matrix.

    Args:
        counts: (S, S) float64, symmetric, for S codes of all columns; the block of a column with
            itself is diagonal.
        slots: Number of counted records, null records included: public.
    """

    counts: Array
    slots: int

    def __add__(self, other: JointCounts) -> JointCounts:
        return JointCounts(counts=self.counts + other.counts, slots=self.slots + other.slots)

    def simulate_independent(
        self, attributes: Attributes, generator: np.random.Generator
    ) -> JointCounts:
        """Simulate the tables of independent columns with the marginals of these tables.

        The standard deviation of each cell is the square root of its expected count.
        """
        marginals = self.counts.diagonal()
        total = max(1.0, float(marginals[: attributes.sizes[0]].sum()))
        own = attributes.owners[:, None] == attributes.owners
        counts = np.outer(marginals, marginals) / total
        drawn = np.triu(generator.standard_normal(counts.shape))
        counts = counts + np.sqrt(counts) * (drawn + np.triu(drawn, 1).T)
        return JointCounts(counts=np.where(own, self.counts, counts), slots=self.slots)


def count_tables(codes: np.ndarray, attributes: Attributes) -> JointCounts:
    """Count all tables exactly.

    Guarantee: a record adds 1 to one cell of each table; a null record adds nothing.

    Args:
        codes: Codes of the records, (n, m), -1 for a null record: private.
        attributes: Columns of the codes.

    Cost: none by itself: the counts are as private as the records.
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
    """Gaussian release of all tables of pairs of columns.

    Guarantee: `release` costs `event` if float64 noise is Gaussian. A record is in one cell of each
    of T tables, so one record changes the tables / sqrt(T) by at most 1 in L2 norm. The noise of a
    cell has a standard deviation of noise_multiplier * sqrt(T) records.
    """

    __slots__ = ()

    def count_tables(self, attributes: Attributes) -> int:
        """Return the number of released tables, T."""
        m = len(attributes.items)
        return m * (m - 1) // 2

    def standard_deviation(self, attributes: Attributes) -> float:
        """Return the standard deviation of a cell's noise, in records."""
        return self.noise_multiplier * math.sqrt(self.count_tables(attributes))

    def release(self, joint: JointCounts, attributes: Attributes, stream: Stream) -> JointCounts:
        """Release the tables with noise, post-processed to be consistent, nonnegative and shrunk.

        Args:
            joint: Exact counts of all records: private.
            attributes: Columns of the counts.
            stream: Random stream of this release alone; the noise also depends on the counts.

        Cost: `event`, on every partition that was counted; charge it first.
        """
        cells = attributes.owners[:, None] < attributes.owners  # each table once
        scale = math.sqrt(self.count_tables(attributes))
        sums = GaussianSum(noise_multiplier=self.noise_multiplier)
        noisy = np.zeros_like(joint.counts)
        noisy[cells] = scale * sums.release(joint.counts[cells] / scale, stream)
        noisy += noisy.T
        deviation = self.standard_deviation(attributes)
        counts = _TableDenoiser(attributes).make_consistent(noisy, deviation, joint.slots)
        return JointCounts(counts=counts, slots=joint.slots)


FITTING_ROUNDS = 20  # number of rounds that scale rows, then columns, to the marginals

MAX_SPECTRAL_CODES = 2000
"""Maximum number of codes S for an eigendecomposition, whose time is proportional to S^3."""

MIN_KEPT_FRACTION = 0.1
"""Minimum factor of a table's deviations from independence. It is above 0 so that columns can be
ranked even if all tables are below the noise level.
"""


class _TableDenoiser:
    """Post-processing of noisy tables; reads no record."""

    __slots__ = ("_others", "_owners", "_sizes", "_starts")

    def __init__(self, attributes: Attributes):
        self._starts, self._owners = attributes.starts, attributes.owners
        self._sizes = np.array(attributes.sizes, float)
        self._others = 1.0 - np.eye(len(self._sizes))

    def make_consistent(self, noisy: Array, deviation: float, slots: int) -> Array:
        """Return tables with common marginals, nonnegative, shrunk towards independence.

        Args:
            noisy: Noisy tables, (S, S); 0 for a column with itself.
            deviation: Standard deviation of a cell's noise, records.
            slots: Number of records, null records included.
        """
        total, marginals = self._estimate_marginals(noisy, slots)
        independent = np.outer(marginals, marginals) / total
        own = np.diag(marginals) - independent
        beyond = np.where(self._diagonal_block_mask, own, self._centre_tables(noisy - independent))
        kept = np.where(self._diagonal_block_mask, own, self._shrink_tables(beyond, deviation))
        # Frechet bounds of a cell, from its row and column marginals.
        most = np.minimum(marginals[:, None], marginals)
        least = np.maximum(0.0, marginals[:, None] + marginals - total)
        tables = np.clip(independent + kept, least, most)
        for _ in range(FITTING_ROUNDS):
            tables = self._fit_rows(tables, marginals)
            tables = self._fit_rows(tables.T, marginals).T
        # Rounding makes the two halves differ; the upper one is used for both.
        tables = np.where(self._owners[:, None] < self._owners, tables, 0.0)
        return np.where(self._diagonal_block_mask, np.diag(marginals), tables + tables.T)

    @property
    def _diagonal_block_mask(self) -> np.ndarray:
        """True for entries of a column with itself, bool (S, S)."""
        return self._owners[:, None] == self._owners

    def _sum_by_column(self, entries: Array) -> Array:
        """Sum a matrix over the codes of each column, (rows, m)."""
        return np.add.reduceat(entries, self._starts, axis=1)

    def _sum_by_table(self, entries: Array) -> Array:
        """Sum each table, (m, m)."""
        return np.add.reduceat(self._sum_by_column(entries), self._starts, axis=0)

    def _expand_tables(self, tables: Array) -> Array:
        """Copy one number per table to all its cells, (S, S)."""
        return tables[self._owners][:, self._owners]

    def _estimate_marginals(self, noisy: Array, slots: int) -> tuple[float, Array]:
        """Estimate the number of records, and the number with each code.

        Each table estimates both; the estimates are averaged with weights 1 / variance. The
        variance is proportional to the number of cells that are summed.
        """
        weight = self._others / np.outer(self._sizes, self._sizes)
        total = float((weight * self._sum_by_table(noisy)).sum() / weight.sum())
        total = min(max(total, 1.0), float(max(slots, 1)))
        weight = (self._others / self._sizes)[self._owners]
        found = (weight * self._sum_by_column(noisy)).sum(axis=1) / weight.sum(axis=1)
        parts = np.split(found, self._starts[1:])
        return total, np.concatenate([_project_onto_simplex(part, total) for part in parts])

    def _centre_tables(self, entries: Array) -> Array:
        """Project each table onto tables whose rows and columns sum to 0."""
        rows = self._sum_by_column(entries) / self._sizes
        both = self._expand_tables(self._sum_by_table(entries) / np.outer(self._sizes, self._sizes))
        return entries - rows[:, self._owners] - rows.T[self._owners] + both

    def _shrink_tables(self, beyond: Array, deviation: float) -> Array:
        """Shrink the deviations from independence, `beyond`, by the expected noise, in two steps.

        Noise of standard deviation s adds (rows - 1) (columns - 1) s^2 to the sum of squares of a
        table, so each table gets a factor. All tables together form a covariance matrix of S
        indicators. It has no negative eigenvalue, and noise causes eigenvalues up to 2 s sqrt(S),
        so each eigenvalue gets a factor.
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

    def _fit_rows(self, tables: Array, marginals: Array) -> Array:
        """Scale each row of each table so that it sums to its marginal."""
        sums = self._sum_by_column(tables)
        aims = np.broadcast_to(marginals[:, None], sums.shape)
        scale = np.divide(aims, sums, out=np.zeros_like(sums), where=sums > 0)
        return tables * scale[:, self._owners]


def _project_onto_simplex(values: Array, total: float) -> Array:
    """Return the nearest nonnegative vector that sums to `total`."""
    falling = np.sort(values)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, len(values) + 1)
    return np.maximum(values - excess[np.flatnonzero(falling > excess)[-1]], 0.0)
