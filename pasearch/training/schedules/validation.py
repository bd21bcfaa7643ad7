"""A schedule that is steered by validation queries: the noise falls when the accuracy stops rising.

The rule alone, which sees accuracies only; `schedule` says what it costs.

Source: Yu et al., Section IV-A2. Proof: docs/guarantees/schedules.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from pasearch.accounting.checks import fraction, nonnegative, whole
from pasearch.errors import UsageError
from pasearch.training.schedules.schedule import SCHEDULES, Schedule, bounded


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Validation(Schedule):
    """The noise falls when the accuracy stops rising.

        at every `period`-th accuracy:  S = mean of the last m;  if S - S_before <= threshold,
                                        factor *= k;  S_before = S          S_before = 0 at first

    Args:
        rate: k, in (0, 1).
        threshold: delta; a rise of no more than that counts as none. 0 or above.
        average: m, 1 or more; the paper's moving average.
        period: Accuracies from one comparison to the next, m or more; None takes m.
        every: Epochs from one accuracy to the next, 1 or more; the paper has 1.

    Cost: none of its own. Each accuracy is from declared-public records, or charged; and the noise
    depends on what was released, so the trainer keeps a filter (`accounting.renyi`).
    """

    name: ClassVar[str] = "validation"
    steered: ClassVar[bool] = True
    rate: float
    threshold: float
    average: int = 1
    period: int | None = None
    every: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", fraction("rate", self.rate))
        object.__setattr__(self, "threshold", nonnegative("threshold", self.threshold))
        object.__setattr__(self, "average", whole("average", self.average))
        period = self.average if self.period is None else whole("period", self.period)
        object.__setattr__(self, "period", period)
        object.__setattr__(self, "every", whole("every", self.every))
        if period < self.average:
            raise UsageError(
                f"period is {period}: expected average ({self.average}) or above, so that no "
                "accuracy is in two of the means that are compared."
            )

    def start(self) -> ValidationState:
        return ValidationState(rule=self)

    def factor(self, epoch: int) -> float:
        """Return 1: planned is the same noise throughout, and the filter keeps to that."""
        return 1.0

    def validation_queries(self, epochs: int) -> int:
        """Return how many: at the end of every `every`-th epoch."""
        return max(1, epochs // self.every)

    def asks_after(self, epoch: int) -> bool:
        return epoch % self.every == 0

    def words(self) -> str:
        mean = "" if self.average == 1 else f"the mean of the last {self.average:,}, "
        when = "after every epoch" if self.every == 1 else f"every {self.every:,} epochs"
        return (
            f"noise times {self.rate:g} when the accuracy of the validation queries ({mean}"
            f"compared every {self.period:,} queries) rises by {self.threshold:g} or less; a "
            f"validation query {when}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationState:
    """Where a validation-driven schedule stands.

    Guarantee: a function of the rule and of the accuracies that it was told.

    Args:
        rule: What it follows.
        factor: sigma_t / sigma_0 from now on, in (0, 1].
        recent: The last m accuracies, at most.
        told: Accuracies since the last comparison.
        before: The mean at the last comparison.
    """

    rule: Validation
    factor: float = 1.0
    recent: tuple[float, ...] = ()
    told: int = 0
    before: float = 0.0

    def tell(self, accuracy: float) -> ValidationState:
        """Return the next state, after a share of right answers; a noisy one may be outside [0, 1].

        Raises:
            UsageError: No finite number.
        """
        recent = (*self.recent, _accuracy(accuracy))[-self.rule.average :]
        told = self.told + 1
        factor, before = self.factor, self.before
        if told == self.rule.period:
            mean = math.fsum(recent) / self.rule.average
            if mean - before <= self.rule.threshold:
                factor = bounded(factor * self.rule.rate)
            told, before = 0, mean
        return ValidationState(
            rule=self.rule, factor=factor, recent=recent, told=told, before=before
        )


def _accuracy(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise UsageError(f"accuracy is {value!r}; expected a finite number, a share.")
    return float(value)
