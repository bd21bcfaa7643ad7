"""Post-training model selection: variants of one training's weights, one selected privately.

The privacy cost of a DP-SGD training covers every iterate, not only the last one. Checkpoints,
averages of iterates, and functions of them therefore cost nothing on the training records. They are
compared on the validation records, at the cost of a separate epsilon:

    selection   if the metric is a sum over records: exponential mechanism,
                P(variant) ~ e^(epsilon points / (2 G)) with the score count of the variant
    thresholds  for two classes and balanced accuracy: one noisy histogram of the log-odds by class,
                with public edges. The balanced accuracy of the threshold at each edge is computed
                from it, and the best edge is selected

| variant | weights |
|---|---|
| as trained | those of the recipe: its average, or its last iterate |
| after a quarter, a half, three quarters of the steps | the iterate |
| the last iterate | |
| the mean of the last tenth, of the last half | iterates |
| odds shifted by -1 ... 1 | two classes: another threshold |
| a third, two thirds pruned | the smallest weights are 0 |
| 8 bits, 4 bits | quantised weights |

Source: original to this project; Dong, Roth and Su 2022 (composition covers all iterates);
McSherry and Talwar 2007.
Proof: docs/guarantees/composition-and-partitions.md, "Variants".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pasearch.accounting.events import Event, Geometric, PureDP
from pasearch.errors import UsageError
from pasearch.runs.ledger import PlannedRelease
from pasearch.runs.mechanisms import ExponentialMechanism, NoisyCounts
from pasearch.training.metrics import Metric
from pasearch.training.score_tables import LOG_ODDS_EDGES

VARIANT_LINE = "variant pick"  # name of the line for the selection

AS_TRAINED = "as trained"  # name of the variant with unchanged weights

CHECKPOINT_NAMES = {
    0.25: "after a quarter of the steps", 0.5: "after half of the steps",
    0.75: "after three quarters of the steps", 1.0: "the last iterate",
}  # fmt: skip
"""Names of the checkpoints, by the fraction of the steps after which they are taken."""

AVERAGE_NAMES = {0.1: "the mean of the last tenth", 0.5: "the mean of the last half"}
"""Names of the averages of iterates, by the fraction of the steps that they cover."""

LOG_ODDS_SHIFTS = (-1.0, -0.5, -0.25, 0.25, 0.5, 1.0)  # shifts of the decision threshold, log-odds
PRUNING_NAMES = {1 / 3: "a third pruned", 2 / 3: "two thirds pruned"}
"""Names of the pruned variants, by the fraction of the weights that are set to 0."""

QUANTISATION_BITS = (8, 4)  # numbers of bits of the quantised variants


def list_variant_names(metric: Metric, outputs: int) -> tuple[str, ...]:
    """List the names of the variants of a network, which depend on public facts only.

    Args:
        metric: Metric by which variants are compared.
        outputs: Number of outputs of the network.

    Raises:
        UsageError: The metric cannot compare variants.
    """
    if not metric.is_sum:
        _check_thresholds(metric, outputs)
        return tuple(_name_shift(-each) for each in list_thresholds())
    shifts = tuple(map(_name_shift, LOG_ODDS_SHIFTS)) if outputs == 2 else ()
    bits = tuple(f"{each} bits" for each in QUANTISATION_BITS)
    return (
        AS_TRAINED, *CHECKPOINT_NAMES.values(), *AVERAGE_NAMES.values(), *shifts,
        *PRUNING_NAMES.values(), *bits,
    )  # fmt: skip


def _name_shift(by: float) -> str:
    """Name the variant whose log-odds are shifted."""
    return f"odds shifted by {by:g}" if by else AS_TRAINED


def _check_thresholds(metric: Metric, outputs: int) -> None:
    """Refuse a metric by which thresholds cannot be compared."""
    if metric.name != "balanced-accuracy" or outputs != 2:
        raise UsageError(
            "`variants=` requires metric accuracy, log-loss, brier, mae or rmse, or, for two "
            "declared classes, balanced-accuracy: use such a metric, or leave `variants=` out."
        )


def make_lines_of_epsilon(metric: Metric, outputs: int) -> Callable[[float], list[PlannedRelease]]:
    """Make the function from epsilon to the plan line of the selection."""
    if not metric.is_sum:
        _check_thresholds(metric, outputs)

    def make_lines(epsilon: float) -> list[PlannedRelease]:
        event: Event = PureDP(epsilon) if metric.is_sum else Geometric(epsilon)
        return [PlannedRelease(name=VARIANT_LINE, partition="validation", event=event, count=1)]

    return make_lines


def make_mechanism(metric: Metric, epsilon: float) -> ExponentialMechanism | NoisyCounts:
    """Make the mechanism that selects a variant with the epsilon of its line."""
    if metric.is_sum:
        return ExponentialMechanism(epsilon=epsilon, most=metric.max_points)
    return NoisyCounts(epsilon=epsilon)


def list_thresholds() -> tuple[float, ...]:
    """Return the compared decision thresholds in ascending order, as log-odds."""
    return LOG_ODDS_EDGES


def choose_threshold(noisy: Sequence[int]) -> int:
    """Return the index of the threshold with the largest balanced accuracy (post-processing).

    Args:
        noisy: Noisy histogram of the log-odds of the first class, between the thresholds, followed
            by that of the second class.
    """
    first, second = np.split(np.maximum(np.asarray(noisy, float), 0.0), 2)
    below = np.cumsum(first)[:-1] / max(first.sum(), 1.0)
    above = 1.0 - np.cumsum(second)[:-1] / max(second.sum(), 1.0)
    balanced = below + above
    near = np.abs(list_thresholds())  # if thresholds tie, the one nearest to 0 is chosen
    return int(np.lexsort((near, -np.round(balanced, 9)))[0])
