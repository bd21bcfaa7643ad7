"""Measures computed from a released table of noisy test counts (post-processing).

    counts[c][j] = number of test records of class c with a prediction in column j, plus noise with
                   standard deviation s

| columns | meaning of a column |
|---|---|
| `log-odds` | two classes: interval of the log-odds of the second class, between 19 or 5 `edges` |
| `answer` | k classes: predicted class |
| `wrong, right` | k classes: whether the prediction is correct |
| `error` | numeric target: one of 10 intervals of the absolute error; rows: 8 intervals of y |

Each measure has a standard error. A fraction p = r / t has the sampling error sqrt(p (1 - p) / t).
If r is the sum of `right` entries of the table, and t the sum of these and `wrong` others, the
error by noise is

    sqrt(right (1 - p)^2 + wrong p^2) s / t

The standard error of the area under the ROC curve is that of Hanley and McNeil, plus the noise of
each entry times the derivative. A class is used only if its count exceeds the noise level
(`DETECTION_DEVIATIONS`).

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
"""Keys `value`, `error` (standard error) and `reason`. If the measure is not available, value and
error are None, and reason states why.
"""

LOG_ODDS_COLUMNS = "log-odds"  # value of `columns`: bins of the log-odds
PREDICTION_COLUMNS = "answer"  # value of `columns`: predicted classes
CORRECTNESS_COLUMNS = "wrong, right"  # value of `columns`: wrong and correct predictions
ERROR_COLUMNS = "error"  # value of `columns`: intervals of the absolute error

LOG_ODDS_EDGES = tuple(
    sign * each
    for sign, sizes in ((-1, (7.0, 5.0, 4.0, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5)),
                        (1, (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0)))
    for each in sizes
)  # fmt: skip
"""Edges of the log-odds bins, ascending; a bin includes its upper edge."""

COARSE_LOG_ODDS_EDGES = (-2.5, -1.0, 0.0, 1.0, 2.5)
"""Edges of six log-odds bins, for tests with few records: fewer entries have less total noise."""

EDGES_BY_BINS = {len(edges) + 1: edges for edges in (LOG_ODDS_EDGES, COARSE_LOG_ODDS_EDGES)}
"""Edges of log-odds bins, by number of bins. In the upper half, class two is predicted."""

ERROR_EDGES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.27, 0.4, 1.0)
"""Edges of the intervals of absolute errors, as a fraction of the target's range; an error counts
as the middle of its interval.
"""

TARGET_BINS = 8
"""Number of equal intervals of a numeric target: enough to estimate its median and variance."""

DETECTION_DEVIATIONS = 4.0
"""Minimum count of a class, in standard deviations of its noise, for the class to be used."""

MAX_GROUP_NOISE = 0.05
"""Maximum standard deviation, by noise, of the fraction in a calibration group."""
MIN_GROUP_RECORDS = 20
"""Minimum number of records in a calibration group."""
MAX_LOG_ODDS = 9.0
"""Assumed end of the outermost log-odds bins, for the mean of their probabilities."""

TOO_FEW_RECORDS = "the test has too few records of this class for the noise level"
"""Reason why a measure of a class is not available."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table of noisy counts of test records.

    Args:
        counts: Noisy counts by true class and column, (classes, columns).
        columns: Meaning of the columns, such as `LOG_ODDS_COLUMNS`.
        noise: Standard deviation of the noise of each count, records.
        of: Public number of test records, including null records, which are not in the table.
    """

    counts: Array
    columns: str
    noise: float
    of: int

    @cached_property
    def is_correct(self) -> Array:
        """Whether each entry counts correct predictions, bool, (classes, columns)."""
        classes, columns = self.counts.shape
        if self.columns == CORRECTNESS_COLUMNS:
            return np.tile([False, True], (classes, 1))
        return np.arange(classes)[:, None] == self.predicted_classes[None, :columns]

    @cached_property
    def predicted_classes(self) -> Array:
        """Index of the predicted class of each column, (columns,)."""
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
        """Whether the count of each class exceeds the noise level, bool, (classes,)."""
        return self.totals > max(
            DETECTION_DEVIATIONS * math.sqrt(self.counts.shape[1]) * self.noise, 0.5
        )


def read_table(score: dict[str, Any]) -> Table | None:
    """Read the table of a released score; None if a single number was released.

    Args:
        score: Value of the key `score` of a `result.json`.
    """
    if score.get("cells") is None:
        return None
    noise = NoisyCounts(epsilon=float(score["noise"]["epsilon"])).standard_deviation
    return Table(
        counts=np.array(score["cells"], np.float64), columns=str(score["columns"]), noise=noise,
        of=int(score["of"]),
    )  # fmt: skip


def table_to_json(cells: Sequence[int], columns: str) -> dict[str, Any]:
    """Convert a table to values of the key `score` of a `result.json`.

    Args:
        cells: Noisy counts, row by row.
        columns: Meaning of the columns, such as `LOG_ODDS_COLUMNS`.

    Returns:
        Keys `cells` (one list per class), `columns`, and `edges` of the intervals, if any.
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
    """Compute all measures of a table of classes, each with a standard error (sampling and noise).

    Returns:
        `accuracy`, `balanced_accuracy`, `auc` (None without log-odds): a `Measure`.
        `most_common`: `Measure` of the majority-class baseline, and the index `class`.
        `shares` (fraction of records), `recall`, `precision`: one `Measure` per class.
        `confusion`: counts, 0 or above, by true and predicted class; None if unknown.
        `confusion_error`: standard deviation of their noise.
        `calibration`: result of `compute_calibration`.
        `reasons`: why a measure is None, by its name.
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
    """Compute all measures of a released score, with the names of the `classes`.

    Args:
        score: Value of the key `score` of a `result.json`.
        schema: Complete schema of the records.

    Returns:
        Measures as JSON values; empty if a single number was released.
    """
    table = read_table(score)
    if table is None:
        return {}
    if table.columns == ERROR_COLUMNS:
        return compute_error_measures(table)
    names = schema.decode_class(np.arange(len(table.counts))).tolist()
    return {"classes": names, **compute_measures(table)}


def _explain_missing(found: dict[str, Any]) -> dict[str, str]:
    """List why measures are not available, by name of the measure."""
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
    """Make a `Measure`: a value with its standard error, or the reason why there is none."""
    return {"value": value, "error": error, "reason": reason}


def compute_share_error(share: float, of: float, right: float, wrong: float, noise: float) -> float:
    """Compute the standard error of a fraction r / t, by sampling and noise.

    Args:
        share: Fraction r / t, in [0, 1].
        of: Denominator t, records.
        right: Number of table entries whose sum is r.
        wrong: Number of further table entries whose sum with r is t; 0 if t is public.
        noise: Standard deviation of the noise of each entry, records.
    """
    sample = max(share * (1 - share), 1 / of) / of
    own = right * ((1 - share) ** 2 if wrong else 1.0) + wrong * share**2
    return math.sqrt(sample + own * (noise / of) ** 2)


def compute_wilson_interval(share: float, error: float, deviations: float) -> tuple[float, float]:
    """Compute Wilson's confidence interval of a fraction p with standard error e.

    The sample size is the number of records for which sampling alone has this error, n = max(p
    (1 - p) / e^2, 1 / e). Unlike p plus or minus a multiple of e, the interval is within [0, 1]
    and also valid near 0 and 1.

    Args:
        share: Measured fraction p, in [0, 1].
        error: Standard error e, above 0, by sampling and noise.
        deviations: Quantile of the normal distribution, such as 1.96 for 95 % confidence.

    Returns:
        Lower and upper end of the interval.

    >>> [round(end, 3) for end in compute_wilson_interval(0.85, 0.01, 1.96)]
    [0.829, 0.869]
    """
    n, square = max(share * (1 - share) / error**2, 1 / error), deviations**2
    middle = (share + square / (2 * n)) / (1 + square / n)
    reach = math.sqrt(share * (1 - share) / n + square / (4 * n**2)) * deviations / (1 + square / n)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def estimate_accuracy(table: Table) -> Measure:
    """Estimate the fraction of correct predictions; null records count as wrong."""
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
    # Number of table entries in each count.
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
    """Estimate the accuracy of the majority-class baseline; key `class` is its index."""
    best = int(np.argmax(table.totals))
    return {"class": best, **_estimate_class_share(table, best)}


def estimate_lead(table: Table) -> Measure:
    """Estimate the lead: the accuracy minus the accuracy of the majority-class baseline.

    Only records for which exactly one of the two is correct matter: for u records it is the model,
    for v records the baseline. All other entries, with their noise, cancel:

        lead   =  (u - v) / n
        error  =  sqrt(((u + v) / n - lead^2) / n + entries s^2 / n^2)

    The error is smaller than that of two independent accuracies, because both are measured on the
    same records.
    """
    most = np.arange(len(table.counts)) == int(np.argmax(table.totals))
    won, lost = table.is_correct & ~most[:, None], ~table.is_correct & most[:, None]
    for_it, against = (float(table.counts[each].sum()) / table.of for each in (won, lost))
    value, told = for_it - against, int(won.sum() + lost.sum())
    sample = max(for_it + against - value**2, 1 / table.of) / table.of
    return make_measure(value, math.sqrt(sample + told * (table.noise / table.of) ** 2))


def _estimate_class_share(table: Table, place: int) -> Measure:
    """Estimate the fraction of a class among all test records, also if the class is rare."""
    value = _clamp(float(table.totals[place]) / table.of)
    cells = table.counts.shape[1]
    return make_measure(value, compute_share_error(value, table.of, cells, 0, table.noise))


def compute_confusion_matrix(table: Table) -> tuple[Array, float] | None:
    """Compute the noisy confusion matrix, and the maximum standard deviation of its noise.

    The result is None if predicted classes are unknown: for the columns `wrong, right` with more
    than two classes.
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
    """Estimate the area under the ROC curve, which is 0.5 for random predictions."""
    first, second = table.counts
    if not table.has_enough_records.all():
        return make_measure(None, reason=f"one class is too rare: {TOO_FEW_RECORDS}")
    n, m = table.totals
    # Fraction of first-class records below a second-class record in each bin, and the reverse.
    beaten = (np.cumsum(first) - first / 2) / n
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
    """Compute the calibration curve of two classes: predicted probability and observed frequency.

    Adjacent bins of log-odds are merged to groups with enough records.

    Returns:
        One dictionary per group: `low` and `high` log-odds (None: unlimited), `predicted` (mean
        probability of the second class, from the edges), `share` (observed fraction of the second
        class) with its `error`, and the number of `records`. None if no group is large enough.
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
        chances = np.array([_compute_mean_probability(ends[each], ends[each + 1]) for each in bins])
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
    """Merge adjacent bins to groups with enough records; the last group includes the rest.

    Enough means `MIN_GROUP_RECORDS` records, and noise of at most `MAX_GROUP_NOISE`.
    """
    totals, groups, own = table.counts.sum(axis=0), [], []
    for place in range(len(totals)):
        own.append(place)
        few = max(MIN_GROUP_RECORDS, math.sqrt(2 * len(own)) * table.noise / MAX_GROUP_NOISE)
        if totals[own].sum() >= few:
            groups.append(own)
            own = []
    while own and groups:  # the rest has too few records: merge it with the last group
        own = groups.pop() + own
        if totals[own].sum() >= max(
            MIN_GROUP_RECORDS, math.sqrt(2 * len(own)) * table.noise / MAX_GROUP_NOISE
        ):
            groups.append(own)
            own = []
    return iter(groups)


def _compute_mean_probability(low: float | None, high: float | None) -> float:
    """Compute the mean probability if the log-odds are uniform between two ends."""
    low, high = -MAX_LOG_ODDS if low is None else low, MAX_LOG_ODDS if high is None else high
    return float((np.logaddexp(0.0, high) - np.logaddexp(0.0, low)) / (high - low))


def compute_error_measures(table: Table) -> dict[str, Measure]:
    """Compute the measures of a table for a numeric target, each with a standard error.

    Errors are fractions of the target's range, and means are over records that are not null. Each
    value is a ratio of sums of counts; the error by noise follows from its derivatives.

    Returns:
        `mean_absolute_error`: that of the model. `median`: mean absolute error of always predicting
        the median, which is at `at`. `lead`: `median` minus `mean_absolute_error`. `r2`: 1 -
        squared errors / variance. The values are None if the noise exceeds the number of records.
    """
    bins, total = table.counts.shape[0], float(table.counts.sum())
    levels = (np.array(ERROR_EDGES[1:]) + np.array(ERROR_EDGES[:-1])) / 2
    if not total > max(DETECTION_DEVIATIONS * math.sqrt(table.counts.size) * table.noise, 0.5):
        unknown = make_measure(None, reason="the test has too few records for the noise level")
        return {name: unknown for name in ("mean_absolute_error", "median", "lead", "r2")}
    rows = table.counts.sum(axis=1)
    middle = (np.arange(bins) + 0.5) / bins
    below = np.concatenate([[0.0], np.cumsum(np.maximum(rows, 0.0))])
    median = float(np.interp(below[-1] / 2, below, np.linspace(0.0, 1.0, bins + 1)))
    width = 1 / bins
    away = np.abs(middle - median)
    inside = away < width / 2  # this interval has values on both sides of the median
    away[inside] = ((width / 2) ** 2 + away[inside] ** 2) / width

    def mean_of(parts: Array, least: float = -math.inf) -> Measure:
        """Estimate the mean over records of a value that depends on the entry, (bins, levels)."""
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
    # The error of the ratio follows from the mean of (e^2 - (1 - R2) (y - mean)^2) / variance.
    slope = mean_of((errors**2 - (1.0 - explained) * spread[:, None]) / variance)
    return {
        "mean_absolute_error": mean_of(errors, least=0.0),  # noise could make it negative
        "median": {**mean_of(constant, least=0.0), "at": median},
        "lead": mean_of(constant - errors),
        "r2": make_measure(min(1.0, explained), slope["error"]),
    }


def _clamp(share: float) -> float:
    """Clamp a fraction to [0, 1]."""
    return min(1.0, max(0.0, share))
