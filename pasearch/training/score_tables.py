"""Measures of a released table of noisy test counts (a noisy confusion matrix): post-processing.

    counts[c][j]  =  test records of class c with a prediction in column j, plus noise of sd s

| columns | meaning of a column |
|---|---|
| `log-odds` | two classes: interval of the log-odds of the second class, between 19 or 5 `edges` |
| `answer` | k classes: predicted class |
| `wrong, right` | k classes: whether the prediction is correct |
| `error` | numeric target: interval of the absolute error, 10 in all; rows are 8 intervals of y |

A fraction r / t has a sampling error sqrt(p (1 - p) / t) and an error from the noise of its
entries, of which `right` are counted in r and `wrong` only in t:

    sqrt(right (1 - p)^2 + wrong p^2) s / t

The error of the area under the curve is that of Hanley and McNeil, plus the noise times the slope
in each entry. A class is used if it has more records than its noise level (`DETECTION_DEVIATIONS`).

Source: docs/guarantees/geometric-scores.md; Hanley and McNeil 1982, "The meaning and use of the
area under a receiver operating characteristic (ROC) curve"; Wilson 1927, "Probable inference, the
law of succession, and statistical inference" (`compute_wilson_interval`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.runs.mechanisms import NoisyCounts

if TYPE_CHECKING:
    from pasearch.data.tables import AnySchema

Array = np.ndarray[Any, Any]
Measure = dict[str, Any]
"""`value` and `error`, both None if not available, and the `reason` why not, or None."""

LOG_ODDS_COLUMNS = "log-odds"
PREDICTION_COLUMNS = "answer"
CORRECTNESS_COLUMNS = "wrong, right"
ERROR_COLUMNS = "error"

LOG_ODDS_EDGES = tuple(
    sign * each
    for sign, sizes in ((-1, (7.0, 5.0, 4.0, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5)),
                        (1, (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0)))
    for each in sizes
)  # fmt: skip
"""Edges of the log-odds bins, ascending; a bin includes its upper edge."""

COARSE_LOG_ODDS_EDGES = (-2.5, -1.0, 0.0, 1.0, 2.5)
"""Edges of six bins, for small tests: fewer entries have less noise in total."""

EDGES_BY_BINS = {len(edges) + 1: edges for edges in (LOG_ODDS_EDGES, COARSE_LOG_ODDS_EDGES)}
"""Edges by number of bins. Half of the bins are above 0, where class two is predicted."""

ERROR_EDGES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.27, 0.4, 1.0)
"""Edges of the intervals of absolute errors, as a fraction of the target's range; an error counts
as the middle of its interval.
"""

TARGET_BINS = 8  # number of equal intervals of a numeric target: enough for its median and variance

DETECTION_DEVIATIONS = 4.0
"""Noise standard deviations that a class's count must exceed for the class to be used."""

MAX_GROUP_NOISE = 0.05  # maximum standard deviation, by noise, of a fraction in a calibration group
MIN_GROUP_RECORDS = 20  # minimum number of records in a calibration group
MAX_LOG_ODDS = 9.0  # end of the outermost bins of log-odds, for the mean of their probabilities

TOO_FEW_RECORDS = "the test has too few records of this class for the noise level"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table of noisy counts of test records.

    Args:
        counts: Noisy counts, (classes, columns), by true class and by column.
        columns: Meaning of the columns, such as `LOG_ODDS_COLUMNS`.
        noise: Standard deviation of each count's noise, records.
        of: Number of test records, public; records that cannot be read are in no entry.
    """

    counts: Array
    columns: str
    noise: float
    of: int

    @cached_property
    def is_correct(self) -> Array:
        """Whether an entry counts correct predictions, (classes, columns) bool."""
        classes, columns = self.counts.shape
        if self.columns == CORRECTNESS_COLUMNS:
            return np.tile([False, True], (classes, 1))
        return np.arange(classes)[:, None] == self.predicted_classes[None, :columns]

    @cached_property
    def predicted_classes(self) -> Array:
        """Predicted class of each column, (columns,)."""
        columns = self.counts.shape[1]
        if self.columns == LOG_ODDS_COLUMNS:
            return (np.arange(columns) >= columns // 2).astype(int)
        return np.arange(columns)

    @cached_property
    def totals(self) -> Array:
        """Noisy number of records of each class, (classes,)."""
        return self.counts.sum(axis=1)

    @cached_property
    def has_enough_records(self) -> Array:
        """Whether a class has more records than the noise level, (classes,) bool."""
        return self.totals > max(
            DETECTION_DEVIATIONS * math.sqrt(self.counts.shape[1]) * self.noise, 0.5
        )


def read_table(score: dict[str, Any]) -> Table | None:
    """Read the table that was released with a score; None for a single number.

    Args:
        score: Key `score` of a `result.json`.
    """
    if score.get("cells") is None:
        return None
    noise = NoisyCounts(epsilon=float(score["noise"]["epsilon"])).standard_deviation
    return Table(
        counts=np.array(score["cells"], np.float64), columns=str(score["columns"]), noise=noise,
        of=int(score["of"]),
    )  # fmt: skip


def table_to_json(cells: Sequence[int], columns: str) -> dict[str, Any]:
    """Convert a table to the values in `score`: `cells`, a list of counts per class, and so on.

    Args:
        cells: Noisy counts, row by row.
        columns: Meaning of the columns, such as `LOG_ODDS_COLUMNS`.
    """
    widths = {
        LOG_ODDS_COLUMNS: len(cells) // 2,
        CORRECTNESS_COLUMNS: 2,
        ERROR_COLUMNS: len(cells) // TARGET_BINS,
    }
    width = widths.get(columns) or math.isqrt(len(cells))
    rows = [list(cells[start : start + width]) for start in range(0, len(cells), width)]
    edges = {LOG_ODDS_COLUMNS: EDGES_BY_BINS.get(width, ()), ERROR_COLUMNS: ERROR_EDGES}.get(
        columns
    )
    return {"cells": rows, "columns": columns} | ({} if edges is None else {"edges": [*edges]})


def compute_measures(table: Table) -> dict[str, Any]:
    """Compute the measures of a table of classes, each with a standard error (sample and noise).

    Returns:
        `accuracy`, `balanced_accuracy`, `auc` (None without log-odds): a `Measure`. `most_common`:
        fraction of the most common `class`, which is the majority-class baseline. `shares`,
        `recall`, `precision`: one `Measure` per class. `confusion`: integers, 0 or above, rows are
        true classes and columns predictions, or None; `confusion_error`: standard deviation of
        their noise. `calibration`: see `compute_calibration`. `reasons`: why a measure is None.
    """
    confused = compute_confusion_matrix(table)
    found = {
        "accuracy": estimate_accuracy(table),
        "balanced_accuracy": estimate_balanced_accuracy(table),
        "auc": estimate_auc(table) if table.columns == LOG_ODDS_COLUMNS else None,
        "most_common": estimate_majority_baseline(table),
        "shares": [_estimate_class_share(table, each) for each in range(len(table.counts))],
        "recall": estimate_recalls(table),
        "precision": estimate_precisions(table),
        "confusion": None
        if confused is None
        else [[max(0, int(each)) for each in row] for row in confused[0]],
        "confusion_error": None if confused is None else confused[1],
        "calibration": compute_calibration(table) if table.columns == LOG_ODDS_COLUMNS else None,
    }
    return found | {"reasons": _explain_missing(found)}


def compute_score_measures(score: dict[str, Any], schema: AnySchema) -> dict[str, Any]:
    """Compute the measures of a score's table, with the names of its `classes`.

    Args:
        score: Key `score` of a `result.json`.
        schema: Complete schema of the records.

    Returns:
        Plain values; empty if a single number was released.
    """
    table = read_table(score)
    if table is None:
        return {}
    if table.columns == ERROR_COLUMNS:
        return compute_error_measures(table)
    names = schema.decode_class(np.arange(len(table.counts))).tolist()
    return {"classes": names, **compute_measures(table)}


def _explain_missing(found: dict[str, Any]) -> dict[str, str]:
    """Give the reason for each measure that is not available, by name."""
    whys = {
        "auc": "the test released predicted classes, without probabilities",
        "calibration": "the test released predicted classes without probabilities, or has too few "
        "records for the noise level",
        "confusion": "the test released correct and wrong counts, without predicted classes",
    }
    whys["precision"] = whys["confusion"]
    return {name: why for name, why in whys.items() if not found[name]}


def make_measure(
    value: float | None, error: float | None = None, reason: str | None = None
) -> Measure:
    """Create a value with its standard error, or the reason why there is none."""
    return {"value": value, "error": error, "reason": reason}


def compute_share_error(share: float, of: float, right: float, wrong: float, noise: float) -> float:
    """Compute the standard error of a fraction r / t.

    Args:
        share: The fraction, in [0, 1].
        of: Denominator t, records.
        right: Number of table entries that are counted in r.
        wrong: Number of table entries that are counted only in t; 0 if t is public.
        noise: Standard deviation of the noise of an entry.
    """
    sample = max(share * (1 - share), 1 / of) / of
    own = right * ((1 - share) ** 2 if wrong else 1.0) + wrong * share**2
    return math.sqrt(sample + own * (noise / of) ** 2)


def compute_wilson_interval(share: float, error: float, deviations: float) -> tuple[float, float]:
    """Compute Wilson's confidence interval for a fraction.

    Its sample size is the number of records that would have this error, n = max(p (1 - p) / e^2, 1
    / e). The interval stays within [0, 1] and is valid near 0 and 1, where p plus or minus e is
    not.

    Args:
        share: Measured fraction p, in [0, 1].
        error: Standard error e, above 0, of sample and noise.
        deviations: Quantile of the normal distribution: 1.96 for 95 % confidence.

    >>> [round(end, 3) for end in compute_wilson_interval(0.85, 0.01, 1.96)]
    [0.829, 0.869]
    """
    n, square = max(share * (1 - share) / error**2, 1 / error), deviations**2
    middle = (share + square / (2 * n)) / (1 + square / n)
    reach = math.sqrt(share * (1 - share) / n + square / (4 * n**2)) * deviations / (1 + square / n)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def estimate_accuracy(table: Table) -> Measure:
    """Estimate the fraction of correct predictions; an unreadable record counts as wrong."""
    value = _clamp(float(table.counts[table.is_correct].sum()) / table.of)
    cells = int(table.is_correct.sum())
    return make_measure(value, compute_share_error(value, table.of, cells, 0, table.noise))


def estimate_recalls(table: Table) -> list[Measure]:
    """Estimate the recall of each class."""
    found = []
    for counts, right, total, known in zip(
        table.counts, table.is_correct, table.totals, table.has_enough_records, strict=True
    ):
        if not known:
            found.append(make_measure(None, reason=TOO_FEW_RECORDS))
            continue
        value, cells = _clamp(float(counts[right].sum() / total)), int(right.sum())
        wrong = len(counts) - cells
        found.append(
            make_measure(value, compute_share_error(value, total, cells, wrong, table.noise))
        )
    return found


def estimate_balanced_accuracy(table: Table) -> Measure:
    """Estimate the mean recall of the classes with enough records."""
    told = [each for each in estimate_recalls(table) if each["value"] is not None]
    classes = len(table.counts)
    if not told:
        return make_measure(None, reason="every class has too few test records for the noise level")
    value = float(np.mean([each["value"] for each in told]))
    error = math.sqrt(sum(each["error"] ** 2 for each in told)) / len(told)
    reason = None if len(told) == classes else (
        f"mean over {len(told)} of {classes} classes: the others have too few test records"
    )  # fmt: skip
    return make_measure(value, error, reason)


def estimate_precisions(table: Table) -> list[Measure] | None:
    """Estimate the precision of each class; None without predicted classes."""
    confused, found = compute_confusion_matrix(table), []
    if confused is None:
        return None
    # How many cells each count is the sum of.
    each = table.counts.shape[1] // 2 if table.columns == LOG_ODDS_COLUMNS else 1
    for place, counts in enumerate(confused[0].T):
        total, cells = float(counts.sum()), each * len(counts)
        if not total > max(DETECTION_DEVIATIONS * math.sqrt(cells) * table.noise, 0.5):
            reason = "the model predicts this class too rarely for the noise level"
            found.append(make_measure(None, reason=reason))
            continue
        value = _clamp(float(counts[place]) / total)
        found.append(
            make_measure(value, compute_share_error(value, total, each, cells - each, table.noise))
        )
    return found


def estimate_majority_baseline(table: Table) -> Measure:
    """Estimate the accuracy of always predicting the most common class, and that `class`."""
    best = int(np.argmax(table.totals))
    return {"class": best, **_estimate_class_share(table, best)}


def estimate_lead(table: Table) -> Measure:
    """Estimate the accuracy minus that of the majority-class baseline.

    A record counts if exactly one of the two is correct: u records for the model, v for the
    baseline. Records that both predict correctly cancel, with the noise of their entries:

        lead   =  (u - v) / n
        error  =  sqrt(((u + v) / n - lead^2) / n + cells s^2 / n^2)

    The error is smaller than the errors of both accuracies combined, because the records are the
    same.
    """
    most = np.arange(len(table.counts)) == int(np.argmax(table.totals))
    won, lost = table.is_correct & ~most[:, None], ~table.is_correct & most[:, None]
    for_it, against = (float(table.counts[each].sum()) / table.of for each in (won, lost))
    value, told = for_it - against, int(won.sum() + lost.sum())
    sample = max(for_it + against - value**2, 1 / table.of) / table.of
    return make_measure(value, math.sqrt(sample + told * (table.noise / table.of) ** 2))


def _estimate_class_share(table: Table, place: int) -> Measure:
    """Estimate the fraction of a class among all test records; also for small classes."""
    value = _clamp(float(table.totals[place]) / table.of)
    cells = table.counts.shape[1]
    return make_measure(value, compute_share_error(value, table.of, cells, 0, table.noise))


def compute_confusion_matrix(table: Table) -> tuple[Array, float] | None:
    """Compute the noisy confusion matrix, and the largest standard deviation of its noise.

    None if predicted classes are unknown: columns `wrong, right` with more than two classes.
    """
    counts = table.counts
    if table.columns == LOG_ODDS_COLUMNS:
        half = counts.shape[1] // 2
        both = counts[:, :half].sum(axis=1), counts[:, half:].sum(axis=1)
        return np.stack(both, axis=1), math.sqrt(half) * table.noise
    if table.columns == CORRECTNESS_COLUMNS:
        if len(counts) != 2:
            return None
        return np.stack([counts[0, ::-1], counts[1]]), table.noise
    return counts, table.noise


def estimate_auc(table: Table) -> Measure:
    """Estimate the area under the ROC curve; random predictions have 0.5."""
    first, second = table.counts
    if not table.has_enough_records.all():
        return make_measure(None, reason=f"one class is too rare: {TOO_FEW_RECORDS}")
    n, m = table.totals
    beaten = (np.cumsum(first) - first / 2) / n  # by a record of the second class, bin by bin
    beats = 1.0 - (np.cumsum(second) - second / 2) / m
    raw = float(second @ beaten / m)
    value = _clamp(raw)
    one, two = value / (2 - value), 2 * value**2 / (1 + value)
    sample = (value * (1 - value) + (m - 1) * (one - value**2) + (n - 1) * (two - value**2)) / (
        n * m
    )
    slopes = np.concatenate([(beaten - raw) / m, (beats - raw) / n])
    noise = float(slopes @ slopes) * table.noise**2
    return make_measure(value, math.sqrt(max(sample, 0.25 / (n * m)) + noise))


def compute_calibration(table: Table) -> list[dict[str, Any]] | None:
    """Compute how often the second class occurs at each level of predicted probability.

    Returns:
        Adjacent bins, merged until the noise of `share` is at most `MAX_GROUP_NOISE`: `low` and
        `high` log-odds (None: unlimited), `predicted` (mean probability from the edges), `share` of
        the second class with its `error`, and `records`. None if no group is large enough.
    """
    groups = [*_group_bins(table)]
    if not groups:
        return None
    ends, found = (None, *EDGES_BY_BINS[table.counts.shape[1]], None), []
    for bins in groups:
        own = table.counts[:, bins]
        total, cells = float(own.sum()), len(bins)
        share = _clamp(float(own[1].sum()) / total)
        weights = np.maximum(own.sum(axis=0), 0.0)
        chances = np.array([_mean_probability(ends[each], ends[each + 1]) for each in bins])
        found.append(
            {
                "low": ends[bins[0]],
                "high": ends[bins[-1] + 1],
                "predicted": float(weights @ chances / weights.sum()),
                "share": share,
                "error": compute_share_error(share, total, cells, cells, table.noise),
                "records": max(0, round(total)),
            }
        )
    return found


def _group_bins(table: Table) -> Iterator[list[int]]:
    """Merge adjacent bins until each group has enough records; the last takes the rest."""
    totals, groups, own = table.counts.sum(axis=0), [], []
    for place in range(len(totals)):
        own.append(place)
        few = max(MIN_GROUP_RECORDS, math.sqrt(2 * len(own)) * table.noise / MAX_GROUP_NOISE)
        if totals[own].sum() >= few:
            groups.append(own)
            own = []
    while own and groups:  # too few records behind the last group: they join it
        own = groups.pop() + own
        if totals[own].sum() >= max(
            MIN_GROUP_RECORDS, math.sqrt(2 * len(own)) * table.noise / MAX_GROUP_NOISE
        ):
            groups.append(own)
            own = []
    return iter(groups)


def _mean_probability(low: float | None, high: float | None) -> float:
    """Compute the mean probability of log-odds that are uniform between two ends."""
    low, high = -MAX_LOG_ODDS if low is None else low, MAX_LOG_ODDS if high is None else high
    return float((np.logaddexp(0.0, high) - np.logaddexp(0.0, low)) / (high - low))


def compute_error_measures(table: Table) -> dict[str, Measure]:
    """Compute the measures of a numeric target, each with one standard error.

    All values are fractions of the target's range, over records with a readable target. Each value
    is a ratio of sums of counts, so the noise of a count is multiplied by the derivative.

    Returns:
        `mean_absolute_error` of the model; `median`: that of always predicting the median, `at`;
        `lead`: how much smaller the model's is; `r2`: 1 - squared errors / variance. All are None
        if the test has fewer such records than the noise level.
    """
    bins, total = table.counts.shape[0], float(table.counts.sum())
    levels = (np.array(ERROR_EDGES[1:]) + np.array(ERROR_EDGES[:-1])) / 2
    if not total > max(DETECTION_DEVIATIONS * math.sqrt(table.counts.size) * table.noise, 0.5):
        unknown = make_measure(None, reason="the test has too few records for the noise level")
        return {name: unknown for name in ("mean_absolute_error", "median", "lead", "r2")}
    rows = table.counts.sum(axis=1)
    middle = (np.arange(bins) + 0.5) / bins
    median, width = _interpolate_median(rows), 1 / bins
    away = np.abs(middle - median)
    inside = away < width / 2  # there values are on both sides of the median
    away[inside] = ((width / 2) ** 2 + away[inside] ** 2) / width

    def mean_of(parts: Array, least: float = -math.inf) -> Measure:
        """Estimate the mean over records of a value that each cell has, (bins, levels)."""
        value = max(least, float((table.counts * parts).sum() / total))
        off = np.broadcast_to(parts - value, table.counts.shape)
        sample = max(float((table.counts * off**2).sum()), 0.0) / total**2
        return make_measure(
            value, math.sqrt(sample + float((off**2).sum()) * (table.noise / total) ** 2)
        )

    errors, constant = levels[None], away[:, None]
    mean = float((rows * middle).sum() / total)
    spread = (middle - mean) ** 2 + width**2 / 12
    variance = max(float((rows * spread).sum() / total), width**2 / 12)
    squares = float((table.counts * levels**2).sum() / total)
    explained = 1.0 - squares / variance
    # The ratio's error by its derivative: the mean of (e^2 - (1 - R2) (y - mean)^2) / variance.
    slope = mean_of((errors**2 - (1.0 - explained) * spread[:, None]) / variance)
    return {
        "mean_absolute_error": mean_of(errors, least=0.0),  # noise alone may take it below 0
        "median": {**mean_of(constant, least=0.0), "at": median},
        "lead": mean_of(constant - errors),
        "r2": make_measure(min(1.0, explained), slope["error"]),
    }


def _interpolate_median(rows: Array) -> float:
    counts = np.maximum(rows, 0.0)
    below = np.concatenate([[0.0], np.cumsum(counts)])
    return float(np.interp(below[-1] / 2, below, np.linspace(0.0, 1.0, len(rows) + 1)))


def _clamp(share: float) -> float:
    return min(1.0, max(0.0, share))
