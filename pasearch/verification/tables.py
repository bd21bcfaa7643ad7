"""Whether a test's table of counts is one that noise can have given.

    P(Z_1 + ... + Z_m > t)  <=  min over u in (0, epsilon) of (E e^(u Z))^m e^(-u t)
    E e^(u Z)               =   (1 - a)^2 / ((1 - a e^u) (1 - a e^-u)),    a = e^-epsilon

A table is released whole, and its headline made of it, so `remaking` makes the headline again;
here its counts, and their sums, are held against what so many test records can give.

Source: docs/guarantees/geometric-scores.md; Chernoff 1952.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pasearch.training.from_cells import Table, table_of
from pasearch.training.metrics import Metric

UNLIKELY = 1e-12
"""Noise is taken to be larger than this often only."""


def flat(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the counts of a table, row by row."""
    return [each for row in rows for each in row]


def reach(cells: int, epsilon: float, often: float = UNLIKELY) -> int:
    """Return how far the noise of so many counts together reaches, to either side.

    Args:
        cells: How many counts are added.
        epsilon: Of each one's noise.
        often: How often it may be more.
    """
    u = epsilon * np.linspace(0.001, 0.999, 999)
    both = -np.expm1(u - epsilon) * -np.expm1(-u - epsilon)
    grown = 2 * math.log(-math.expm1(-epsilon)) - np.log(both)
    return math.ceil(float(np.min((cells * grown - math.log(often / 2)) / u)))


def of_cells(score: dict[str, Any], metric: Metric) -> Iterator[str]:
    """Check a released table: its counts, the records of all classes, and the right answers.

    Args:
        score: The `score` of a `result.json`.
        metric: By what was tested, which makes its headline of a table.
    """
    table, epsilon = table_of(score), float(score["noise"]["epsilon"])
    if table is None:
        yield "score has no table of counts, and the plan's test releases one."
        return
    of, counts = score["of"], flat(score["cells"])
    alone = reach(1, epsilon, UNLIKELY / len(counts))
    together = reach(len(counts), epsilon)
    if not all(-alone <= each <= of + alone for each in counts):
        yield "score.cells has a count that no such test has: its noise never reaches so far."
    if not -together <= sum(counts) <= of + together:
        yield f"score.cells has {sum(counts)} records together, and the test has {of}."
    if "exact" in score and metric.name == "accuracy":
        yield from _of_exact(score, table, epsilon)


def _of_exact(score: dict[str, Any], table: Table, epsilon: float) -> Iterator[str]:
    """Check the right answers of public data, whose number is shown without noise."""
    exact, right = round(score["exact"] * score["of"]), int(table.right.sum())
    if not abs(score["points"] - exact) <= reach(right, epsilon):
        yield f"score.points is {score['points']}: its noise never reaches so far."
