"""Metrics: scores that rank candidates, and the test score of the released model.

A score is an integer, the sum of the "points" of the records: more points are better. A record has
from 0 to G points, so n records have at most G n.

| metric | points of a record | G |
|---|---|---|
| `accuracy` | 1 if the largest output is the record's class | 1 |
| `log-loss` | round(G (1 - min(L, loss) / L)), L = 5 nats | 1,000 |
| `brier` | round(G (1 - sum over classes of (p - [own])^2 / 2)), p the probabilities | 1,000 |
| `mae` | floor(G (1 - min(1, abs(error)))), relative to the width of the target's bounds | 100 |
| `rmse` | round(G (1 - min(1, error^2))) | 10,000 |
| `balanced-accuracy` | table of 2 k counts: class (k), and whether the prediction is correct | 1 |
| `auc` | table of 40 counts: class (2), and interval of the log-odds (20) | 1 |

The first five are noisy sums: one record changes the sum by at most G. The last two are tables of
noisy counts: a record belongs to one entry, so it changes one count by 1. Balanced accuracy (mean
over classes of correct / all) and the area under the curve (ties count half) are computed from the
noisy counts, which is post-processing. A null record has no points and belongs to no entry.

The test score for `accuracy` or `mae` is computed from such a table, too, if the noise is small
enough (`choose_test_metric`). Then the score, the baseline and the further measures of the table
(`score_tables`) are post-processing.

Source: Bao et al., section VIII-A (accuracy); docs/rules.md, rule 9; otherwise original to this
project. Proof: docs/guarantees/geometric-scores.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pasearch.errors import UsageError, suggest_name
from pasearch.runs.mechanisms import NoisyCount, NoisyCounts
from pasearch.runs.sums import NoisySum
from pasearch.training.score_tables import (
    CORRECTNESS_COLUMNS,
    DETECTION_DEVIATIONS,
    EDGES_BY_BINS,
    ERROR_COLUMNS,
    ERROR_EDGES,
    LOG_ODDS_COLUMNS,
    LOG_ODDS_EDGES,
    PREDICTION_COLUMNS,
    TARGET_BINS,
    Table,
    compute_error_measures,
    compute_measures,
    read_table,
)

if TYPE_CHECKING:
    from torch import Tensor

    from pasearch.runs.keys import Stream

Array = np.ndarray[Any, Any]

SumNoise = NoisyCount | NoisySum
ScoreNoise = SumNoise | NoisyCounts

MAX_LOG_LOSS = 5.0
"""Maximum log loss of one record, nats: the loss for a predicted probability of .0067."""
NOISE_SIMULATIONS = 400
"""Number of simulated noise draws for the standard deviation of a ratio of counts."""

MAX_FINE_TABLE_NOISE = 0.04
"""Maximum noise variance of an accuracy from the table of 20 bins, times the number of records: a
quarter of the sampling variance of an accuracy of .8.
"""

MAX_TABLE_NOISE = 0.16
"""Maximum noise variance of an accuracy from other tables, times the number of records: equal to
the sampling variance of an accuracy of .8.
"""

MAX_ERROR_NOISE = 0.025
"""Maximum standard deviation by noise of a mean absolute error from a table, as a fraction of the
target's range: a quarter of an error of .1.
"""

MAX_TABLE_CLASSES = 50  # maximum number of classes of a table of predictions


class Metric(ABC):
    """Metric: private counts of the records, the noise added to them, and the reported value.

    The "fraction of points" is the number of points divided by its maximum G n, in [0, 1].
    """

    name: ClassVar[str]
    noun: ClassVar[str]
    """Name of the metric in reports."""
    max_points: ClassVar[int] = 1
    """Maximum points G of a record: the sensitivity of the sum, or of one count."""
    worst: ClassVar[float] = 1.0
    """Reported value of a model without points, for metrics that report a loss."""
    is_for_regression: ClassVar[bool] = False
    """Whether the metric is for regression targets instead of classes."""
    unit: ClassVar[str] = ""
    """Text after the reported value: its unit."""
    needs_probabilities: ClassVar[bool] = False
    """Whether the metric depends on predicted probabilities, not only on predicted classes."""
    is_sum: ClassVar[bool] = True
    """Whether points are a noisy sum over records; if not, they are computed from a table."""
    columns: ClassVar[str] = ""
    """Meaning of the columns of the released table, whose rows are classes; empty for a sum."""

    @abstractmethod
    def compute_counts(self, answers: Tensor, y: Tensor, valid: Tensor) -> list[int]:
        """Compute the private counts to which noise is added, `count_entries` integers.

        Guarantee: replacing a record by the null record changes one count, by at most
        `max_points`. Each record's part is rounded to an integer before the sum.

        Args:
            answers: Outputs of the model, (n, outputs): log-probabilities up to a constant per
                record, or predictions of a regression target scaled to [0, 1].
            y: True classes, or scaled regression targets, (n,).
            valid: Bool, (n,); False for null records.
        """

    def count_entries(self, outputs: int) -> int:
        """Get the number of private counts for a model with `outputs` outputs; 1 for a sum."""
        return 1

    def make_noise(self, epsilon: float) -> ScoreNoise:
        """Make the noise mechanism of the counts for a given epsilon."""
        if self.max_points == 1:
            return NoisyCount(epsilon=epsilon)
        return NoisySum(epsilon=epsilon, most=self.max_points)

    def add_noise(self, counts: list[int], noise: ScoreNoise, stream: Stream) -> list[int]:
        """Release the counts with noise.

        Cost: `noise.event`, charged by the caller, before, to each partition of the records.
        """
        assert not isinstance(noise, NoisyCounts)
        return [noise.release(counts[0], stream)]

    def compute_points(self, counts: list[int], slots: int, noise: float = 0.0) -> int:
        """Compute the points from counts, with or without noise: post-processing.

        Args:
            counts: Result of `compute_counts` or `add_noise`.
            slots: Number of records n, null records included; public.
            noise: Standard deviation of each count's noise.
        """
        return counts[0]

    def estimate_spread(self, counts: list[int], slots: int, noise: float) -> float:
        """Estimate the standard deviation of the fraction of points that is due to the noise.

        Args:
            counts: Noisy counts.
            slots: Number of records n, null records included; public.
            noise: Standard deviation of each count's noise.
        """
        return noise / (slots * self.max_points)

    def to_metric_value(self, share: float) -> float:
        """Convert the fraction of points, in [0, 1], to the reported value."""
        return share

    def to_share(self, shown: float) -> float:
        """Convert a reported value to the fraction of points."""
        return shown

    def compute_slope(self, share: float) -> float:
        """Compute |d reported value / d fraction of points|."""
        return 1.0


class MeanLoss(Metric):
    """Metric that reports a mean loss, from 0 (all points) to `worst` (no points)."""

    def to_metric_value(self, share: float) -> float:
        return self.worst * (1.0 - share)

    def to_share(self, shown: float) -> float:
        return 1.0 - shown / self.worst

    def compute_slope(self, share: float) -> float:
        return self.worst


class Accuracy(Metric):
    """Fraction of correct predictions."""

    name = noun = "accuracy"

    def compute_counts(self, answers: Tensor, y: Tensor, valid: Tensor) -> list[int]:
        return [int((answers.argmax(dim=1) == y)[valid].sum())]


class LogLoss(MeanLoss):
    """Mean negative log-probability of the true class, in nats, at most 5 per record."""

    name, noun = "log-loss", "log loss"
    max_points, worst, needs_probabilities = 1000, MAX_LOG_LOSS, True
    unit = f" nats, {MAX_LOG_LOSS:g} at most a record,"

    def compute_counts(self, answers: Tensor, y: Tensor, valid: Tensor) -> list[int]:
        right = y.long().clamp(min=0, max=answers.shape[1] - 1)[:, None]
        loss = -answers.double().log_softmax(dim=1).gather(1, right).squeeze(1)
        kept = 1.0 - loss.nan_to_num(nan=MAX_LOG_LOSS, posinf=MAX_LOG_LOSS) / MAX_LOG_LOSS
        return [int((self.max_points * kept.clamp(0.0, 1.0)).round().long()[valid].sum())]


class Brier(MeanLoss):
    """Brier score: mean over records of sum over classes (p - [true class])^2 / 2, in [0, 1].

    For two classes it is the mean squared difference of predicted probability and outcome. It
    distinguishes models of equal accuracy, so low-budget evaluations use it.
    """

    name, noun = "brier", "Brier score"
    max_points, needs_probabilities = 1000, True

    def compute_counts(self, answers: Tensor, y: Tensor, valid: Tensor) -> list[int]:
        chances = answers.double().softmax(dim=1)
        right = y.long().clamp(min=0, max=answers.shape[1] - 1)[:, None]
        loss = (chances.square().sum(1) - 2 * chances.gather(1, right).squeeze(1) + 1.0) / 2
        kept = (1.0 - loss.nan_to_num(nan=1.0)).clamp(0.0, 1.0)
        return [int((self.max_points * kept).round().long()[valid].sum())]


class AbsoluteError(MeanLoss):
    """Mean absolute error, as a fraction of the width of the target's bounds."""

    name, noun = "mae", "mean absolute error"
    max_points, is_for_regression = 100, True

    def compute_counts(self, answers: Tensor, y: Tensor, valid: Tensor) -> list[int]:
        error = (_clamp_predictions(answers.squeeze(1)) - y).abs().nan_to_num(nan=1.0)
        return [int((self.max_points * (1.0 - error.clamp(max=1.0))).floor().long()[valid].sum())]


class SquaredError(Metric):
    """Root mean squared error, as a fraction of the width of the target's bounds."""

    name, noun = "rmse", "root mean squared error"
    max_points, is_for_regression = 10_000, True

    def compute_counts(self, answers: Tensor, y: Tensor, valid: Tensor) -> list[int]:
        error = (_clamp_predictions(answers.squeeze(1).double()) - y).abs().nan_to_num(nan=1.0)
        kept = 1.0 - error.clamp(max=1.0) ** 2
        return [int((self.max_points * kept).round().long()[valid].sum())]

    def to_metric_value(self, share: float) -> float:
        return math.sqrt(max(0.0, 1.0 - share))

    def to_share(self, shown: float) -> float:
        return 1.0 - shown**2

    def compute_slope(self, share: float) -> float:
        return 0.5 / max(self.to_metric_value(share), 0.01)


def _clamp_predictions(answers: Tensor) -> Tensor:
    """Clamp scaled predictions to [0, 1]; values that are not finite become NaN."""
    return answers.clamp(0.0, 1.0).where(answers.isfinite(), math.nan)


class CountMetric(Metric):
    """Metric that releases a table of noisy counts; each record belongs to one entry."""

    is_sum = False

    def make_noise(self, epsilon: float) -> ScoreNoise:
        return NoisyCounts(epsilon=epsilon)

    def add_noise(self, counts: list[int], noise: ScoreNoise, stream: Stream) -> list[int]:
        assert isinstance(noise, NoisyCounts)
        return noise.release(counts, stream)


class CountRatioMetric(CountMetric):
    """Metric that is a fraction computed from noisy counts, rounded to a multiple of 1 / n."""

    @abstractmethod
    def combine_counts(self, counts: Array, noise: float) -> float:
        """Compute the fraction, in [0, 1], from counts with noise of this standard deviation."""

    def compute_points(self, counts: list[int], slots: int, noise: float = 0.0) -> int:
        return round(slots * self.combine_counts(np.array(counts, np.float64), noise))

    def estimate_spread(self, counts: list[int], slots: int, noise: float) -> float:
        draws = np.random.default_rng(0).standard_normal((NOISE_SIMULATIONS, len(counts))) * noise
        return float(
            np.std([self.combine_counts(each + np.array(counts), noise) for each in draws])
        )


class BalancedAccuracy(CountRatioMetric):
    """Mean recall over classes; 1 / classes for random predictions."""

    name, noun = "balanced-accuracy", "balanced accuracy"
    columns = CORRECTNESS_COLUMNS

    def count_entries(self, outputs: int) -> int:
        return 2 * outputs

    def compute_counts(self, answers: Tensor, y: Tensor, valid: Tensor) -> list[int]:
        right = (answers.argmax(dim=1) == y).long()
        cells = (2 * y.long() + right)[valid & (y >= 0) & (y < answers.shape[1])]
        return cells.bincount(minlength=self.count_entries(answers.shape[1])).tolist()

    def combine_counts(self, counts: Array, noise: float) -> float:
        """Compute the mean recall over the classes whose counts exceed the noise level."""
        wrong, right = counts[::2], counts[1::2]
        known = wrong + right > max(DETECTION_DEVIATIONS * math.sqrt(2.0) * noise, 0.5)
        if not known.any():
            return 0.0
        return float(np.clip(right[known] / (wrong + right)[known], 0.0, 1.0).mean())


class AreaUnderCurve(CountRatioMetric):
    """Area under the ROC curve: P[score of a record of class two > score of one of class one]."""

    name, noun = "auc", "area under the ROC curve"
    needs_probabilities = True
    columns = LOG_ODDS_COLUMNS

    def count_entries(self, outputs: int) -> int:
        return 2 * (len(LOG_ODDS_EDGES) + 1)

    def compute_counts(self, answers: Tensor, y: Tensor, valid: Tensor) -> list[int]:
        return _count_by_log_odds(answers, y, valid)

    def combine_counts(self, counts: Array, noise: float) -> float:
        """Compute the area from binned counts; .5 if a class has fewer records than the noise."""
        first, second = np.split(counts, 2)
        if not min(first.sum(), second.sum()) > max(
            DETECTION_DEVIATIONS * math.sqrt(len(first)) * noise, 0.5
        ):
            return 0.5
        below = np.cumsum(first) - first / 2
        return float(np.clip(second @ below / (first.sum() * second.sum()), 0.0, 1.0))


class AccuracyTable(CountMetric):
    """Accuracy computed from a table of counts; used for the test score only."""

    name = noun = "accuracy"

    @abstractmethod
    def select_correct(self, counts: list[int]) -> list[int]:
        """Select the counts of correct predictions."""

    def compute_points(self, counts: list[int], slots: int, noise: float = 0.0) -> int:
        return sum(self.select_correct(counts))

    def estimate_spread(self, counts: list[int], slots: int, noise: float) -> float:
        return math.sqrt(len(self.select_correct(counts))) * noise / slots


@dataclass(frozen=True, slots=True)
class AccuracyByLogOdds(AccuracyTable):
    """Accuracy for two classes, from a table of class by bin of the log-odds.

    Args:
        bins: Number of bins, a key of `EDGES_BY_BINS`.
    """

    bins: int = len(LOG_ODDS_EDGES) + 1
    needs_probabilities: ClassVar[bool] = True
    columns: ClassVar[str] = LOG_ODDS_COLUMNS

    def count_entries(self, outputs: int) -> int:
        return 2 * self.bins

    def select_correct(self, counts: list[int]) -> list[int]:
        half = self.bins // 2
        return [*counts[:half], *counts[self.bins + half :]]

    def compute_counts(self, answers: Tensor, y: Tensor, valid: Tensor) -> list[int]:
        return _count_by_log_odds(answers, y, valid, EDGES_BY_BINS[self.bins])


class AccuracyByPrediction(AccuracyTable):
    """Accuracy from a table of true by predicted class (confusion matrix)."""

    columns = PREDICTION_COLUMNS

    def count_entries(self, outputs: int) -> int:
        return outputs**2

    def select_correct(self, counts: list[int]) -> list[int]:
        return list(counts[:: math.isqrt(len(counts)) + 1])

    def compute_counts(self, answers: Tensor, y: Tensor, valid: Tensor) -> list[int]:
        outputs = answers.shape[1]
        cells = (outputs * y.long() + answers.argmax(dim=1))[valid & (y >= 0) & (y < outputs)]
        return cells.bincount(minlength=self.count_entries(outputs)).tolist()


class ErrorTable(MeanLoss, CountMetric):
    """Mean absolute error from a table of target bin by error bin; used for the test score only.

    A null record belongs to no entry, and the mean is over the other records.
    """

    name, noun = "mae", "mean absolute error"
    max_points, is_for_regression = AbsoluteError.max_points, True
    columns = ERROR_COLUMNS

    def count_entries(self, outputs: int) -> int:
        return TARGET_BINS * (len(ERROR_EDGES) - 1)

    def compute_counts(self, answers: Tensor, y: Tensor, valid: Tensor) -> list[int]:
        import torch

        error = (_clamp_predictions(answers.squeeze(1)) - y).abs().nan_to_num(nan=1.0).double()
        edges = torch.tensor(ERROR_EDGES[1:-1], dtype=torch.float64)
        row = (TARGET_BINS * y.double()).nan_to_num(nan=0.0).long().clamp(0, TARGET_BINS - 1)
        cells = row * (len(ERROR_EDGES) - 1) + torch.bucketize(error, edges)
        return cells[valid].bincount(minlength=self.count_entries(1)).tolist()

    def compute_points(self, counts: list[int], slots: int, noise: float = 0.0) -> int:
        value = self._estimate_error(counts, slots, noise)["value"]
        return 0 if value is None else round(self.max_points * slots * (1.0 - value))

    def estimate_spread(self, counts: list[int], slots: int, noise: float) -> float:
        edges = np.array(ERROR_EDGES)
        levels, value = (
            (edges[1:] + edges[:-1]) / 2,
            self._estimate_error(counts, slots, noise)["value"],
        )
        if value is None:
            return 1.0
        return noise / sum(counts) * math.sqrt(TARGET_BINS * float(((levels - value) ** 2).sum()))

    def _estimate_error(self, counts: list[int], slots: int, noise: float) -> dict[str, Any]:
        """Estimate the mean absolute error: keys "value" and "error", None if unknown."""
        rows = np.array(counts, np.float64).reshape(TARGET_BINS, -1)
        table = Table(counts=rows, columns=ERROR_COLUMNS, noise=noise, of=slots)
        return compute_error_measures(table)["mean_absolute_error"]


def _count_by_log_odds(
    answers: Tensor, y: Tensor, valid: Tensor, edges: tuple[float, ...] = LOG_ODDS_EDGES
) -> list[int]:
    """Count the records of each of two classes in each bin of the log-odds, flat, class by class.

    The bin of a record agrees with its predicted class, in spite of rounding near log-odds of 0.
    """
    import torch

    if answers.shape[1] == 1:  # fewer than two classes were estimated: all predict the first
        answers = torch.nn.functional.pad(answers, (0, 1), value=-math.inf)
    odds = (answers[:, 1].double() - answers[:, 0]).nan_to_num(nan=0.0)
    bins, width = torch.bucketize(odds, torch.tensor(edges, dtype=torch.float64)), len(edges) + 1
    second = answers[:, :2].argmax(dim=1) == 1
    bins = torch.where(second, bins.clamp(min=width // 2), bins.clamp(max=width // 2 - 1))
    cells = (y.long() * width + bins)[valid & (y >= 0) & (y <= 1)]
    return cells.bincount(minlength=2 * width).tolist()


METRICS: dict[str, Metric] = {
    each.name: each
    for each in (
        Accuracy(), BalancedAccuracy(), AreaUnderCurve(), LogLoss(), Brier(), AbsoluteError(),
        SquaredError(),
    )
}  # fmt: skip
"""All metrics by the name that the option `metric` has."""


def find_metric_by_noun(noun: str) -> Metric:
    """Find a metric by its name in reports and results (`Metric.noun`).

    Raises:
        UsageError: The name is unknown.
    """
    for metric in METRICS.values():
        if metric.noun == noun:
            return metric
    raise UsageError(
        f"Metric {noun!r} is unknown: expected {', '.join(m.noun for m in METRICS.values())}."
    )


MAX_SHARE_ERROR = 0.5  # largest standard deviation of a number in [0, 1]


def compute_score_error(score: dict[str, Any]) -> float:
    """Compute the standard error of a released test score, from sampling and noise together.

    For a sum, the sampling variance is bounded by p (1 - p) / n, with p the fraction of points. For
    a metric from a table of counts, the table determines the standard error. Without the table, or
    if one class of it is too rare, only the noise is included; without noise, `MAX_SHARE_ERROR`.

    Args:
        score: Value of the key `score` of a `result.json`.

    Returns:
        Standard error in the unit of the reported value.
    """
    metric, count, noise = find_metric_by_noun(score["metric"]), score["of"], score["noise"]
    table = read_table(score)
    if table is not None and table.columns == ERROR_COLUMNS:
        error = compute_error_measures(table)["mean_absolute_error"]["error"]
        return metric.worst if error is None else error
    if not metric.is_sum:
        told = {} if table is None else compute_measures(table)[metric.name.replace("-", "_")]
        error = (told or {}).get("error")
        if error is None:  # without a table, or one class of it is too rare
            return noise["standard_deviation"] or MAX_SHARE_ERROR
        return error
    rate = min(1.0, max(0.0, metric.to_share(score["test"])))
    sample = metric.compute_slope(rate) * math.sqrt(max(rate * (1 - rate), 1 / count) / count)
    return math.hypot(sample, noise["standard_deviation"])


def make_default_noise(regression: bool, epsilon: float) -> SumNoise:
    """Make the noise mechanism of the default metric for a given epsilon."""
    noise = find_default_metric(regression).make_noise(epsilon)
    assert not isinstance(noise, NoisyCounts)
    return noise


def find_default_metric(regression: bool) -> Metric:
    """Find the default metric: accuracy, or for regression the mean absolute error."""
    return METRICS["mae" if regression else "accuracy"]


def choose_test_metric(metric: Metric, *, outputs: int, slots: int, epsilon: float) -> Metric:
    """Choose how the released model is tested: by a table of counts if its noise is small.

    A table has the same privacy cost as one count, because a record belongs to one entry, and it
    contains the baseline and further measures. But an accuracy that is the sum of R entries has R
    times the noise variance. The most informative table is chosen whose noise is small enough:

        two classes     class by 20 bins of the log-odds (noise at most `MAX_FINE_TABLE_NOISE`), or
                        by 6 bins (at most `MAX_TABLE_NOISE`), or true by predicted class (if the
                        size of a class exceeds the noise level)
        more classes    true by predicted class (at most `MAX_TABLE_NOISE`)
        regression      target by error (at most `MAX_ERROR_NOISE`)

    The choice uses only public numbers.

    Args:
        metric: Metric of the run.
        outputs: Number of classes, declared or estimated privately.
        slots: Number of test records n, null records included.
        epsilon: Epsilon of the test score.

    Returns:
        Metric with a table, or `metric` itself.
    """
    deviation = NoisyCounts(epsilon=epsilon).standard_deviation
    if isinstance(metric, AbsoluteError):
        table = ErrorTable()
        example = [0] * table.count_entries(1)
        example[len(ERROR_EDGES) // 2] = slots  # all errors are about .1
        small = table.estimate_spread(example, slots, deviation) <= MAX_ERROR_NOISE
        return table if small else metric
    if not isinstance(metric, Accuracy) or not 2 <= outputs <= MAX_TABLE_CLASSES:
        return metric
    added = deviation**2 / slots
    if outputs > 2:
        return AccuracyByPrediction() if outputs * added <= MAX_TABLE_NOISE else metric
    for bins, limit in zip(
        sorted(EDGES_BY_BINS, reverse=True), (MAX_FINE_TABLE_NOISE, MAX_TABLE_NOISE), strict=True
    ):
        if bins * added <= limit:
            return AccuracyByLogOdds(bins)
    return (
        AccuracyByPrediction()
        if slots / 2 > DETECTION_DEVIATIONS * math.sqrt(2.0) * deviation
        else metric
    )


def find_metric(name: str | None, *, regression: bool, outputs: int | None) -> Metric:
    """Find a metric by the name that the option `metric` has.

    Args:
        name: Key of `METRICS`. None: the default metric.
        regression: Whether the target is numeric.
        outputs: Number of classes. None: unknown.

    Raises:
        UsageError: The name is unknown, or the metric is for another task.
    """
    if name is None:
        return find_default_metric(regression)
    able = [each for each, metric in METRICS.items() if metric.is_for_regression == regression]
    if name not in able:
        what = "a regression target" if regression else "classes"
        other = " For a regression target set `regression=True`." if name in METRICS else ""
        raise UsageError(
            f"metric is {name!r}: for {what} expected one of {', '.join(able)}."
            + ("" if regression else other)
            + suggest_name(name, able)
        )
    if name == AreaUnderCurve.name and outputs is not None and outputs > 2:
        raise UsageError(
            f"metric 'auc' requires two classes, and these data have {outputs}: use "
            "'balanced-accuracy', 'log-loss' or 'accuracy'."
        )
    return METRICS[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Released noisy score of a model on some records.

    Args:
        points: Noisy points.
        spread: Estimated standard deviation of the fraction of points, by noise.
        cells: Released table of noisy counts, flat; empty for a sum.
    """

    points: int
    spread: float
    cells: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, metric: Metric, counts: list[int], noise: ScoreNoise, slots: int, stream: Stream
    ) -> Score:
        """Release a score with noise.

        Args:
            metric: Metric of the score.
            counts: Private counts of the metric.
            noise: Noise mechanism.
            slots: Number of records n, null records included; public.
            stream: Random stream of this release.

        Cost: `noise.event`, charged by the caller, before, to each partition of the records.
        """
        noisy, deviation = metric.add_noise(counts, noise, stream), noise.standard_deviation
        return cls(
            points=metric.compute_points(noisy, slots, deviation),
            spread=metric.estimate_spread(noisy, slots, deviation),
            cells=tuple(noisy) if metric.columns else (),
        )
