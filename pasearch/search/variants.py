"""Post-training model selection: variants of one training's weights, one selected privately.

A DP-SGD training releases every iterate at the privacy cost of the last one. Averages of iterates,
checkpoints, and functions of them therefore cost nothing on the training records. They are compared
on the validation records, which have a separate epsilon:

    selection   P(variant) ~ e^(epsilon points / (2 G)), the exponential mechanism, if points are a
                sum over records
    thresholds  for two classes by balanced accuracy: one release of a noisy histogram of the
                log-odds by class, with public edges. The balanced accuracy of every threshold
                follows from it, and the best edge is chosen

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
from pasearch.runs.ledger import Line
from pasearch.runs.mechanisms import ExponentialMechanism, NoisyCounts
from pasearch.training.metrics import Metric
from pasearch.training.score_tables import LOG_ODDS_EDGES

VARIANT_LINE = "variant pick"  # name of the line that the selection is charged to

AS_TRAINED = "as trained"
CHECKPOINT_NAMES = {
    0.25: "after a quarter of the steps", 0.5: "after half of the steps",
    0.75: "after three quarters of the steps", 1.0: "the last iterate",
}  # fmt: skip
AVERAGE_NAMES = {0.1: "the mean of the last tenth", 0.5: "the mean of the last half"}
LOG_ODDS_SHIFTS = (-1.0, -0.5, -0.25, 0.25, 0.5, 1.0)
PRUNING_NAMES = {1 / 3: "a third pruned", 2 / 3: "two thirds pruned"}
QUANTISATION_BITS = (8, 4)


def list_variant_names(metric: Metric, outputs: int) -> tuple[str, ...]:
    """List the names of the variants of a network; the list is public.

    Args:
        metric: Metric that compares them.
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
    return f"odds shifted by {by:g}" if by else AS_TRAINED


def _check_thresholds(metric: Metric, outputs: int) -> None:
    if metric.name != "balanced-accuracy" or outputs != 2:
        raise UsageError(
            "`variants=` requires metric accuracy, log-loss, brier, mae or rmse, or, for two "
            "declared classes, balanced-accuracy: use such a metric, or leave `variants=` out."
        )


def make_lines_of_epsilon(metric: Metric, outputs: int) -> Callable[[float], list[Line]]:
    """Return the function from epsilon to the selection's line on the validation records."""
    if not metric.is_sum:
        _check_thresholds(metric, outputs)

    def of(epsilon: float) -> list[Line]:
        event: Event = PureDP(epsilon) if metric.is_sum else Geometric(epsilon)
        return [Line(name=VARIANT_LINE, partition="validation", event=event, count=1)]

    return of


def make_mechanism(metric: Metric, epsilon: float) -> ExponentialMechanism | NoisyCounts:
    """Return the mechanism that releases the selection, at the epsilon of its line."""
    if metric.is_sum:
        return ExponentialMechanism(epsilon=epsilon, most=metric.max_points)
    return NoisyCounts(epsilon=epsilon)


def list_thresholds() -> tuple[float, ...]:
    """Return the rising log-odds of all tried thresholds."""
    return LOG_ODDS_EDGES


def choose_threshold(noisy: Sequence[int]) -> int:
    """Return the index of the edge with the largest balanced accuracy (post-processing).

    Args:
        noisy: Noisy histogram of the first class between rising edges, then of the second class.
    """
    first, second = np.split(np.maximum(np.asarray(noisy, float), 0.0), 2)
    below = np.cumsum(first)[:-1] / max(first.sum(), 1.0)
    above = 1.0 - np.cumsum(second)[:-1] / max(second.sum(), 1.0)
    balanced = below + above
    near = np.abs(list_thresholds())  # of equal ones the nearest to the network's own
    return int(np.lexsort((near, -np.round(balanced, 9)))[0])
