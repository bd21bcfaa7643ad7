"""What selectors share that train a model on each of their sets and compare noisy scores.

Every planned training and score is charged, and all may be shown; the released model is trained
anew, on what is left of epsilon. Second moments, once released, serve every set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pasearch.accounting.claims import Claim, eq8
from pasearch.features.knobs import SCORE, DialledLine
from pasearch.features.selector import SELECTION_SHARE, Form, Selector
from pasearch.features.trainers import Trainer


class Comparing(Selector):
    """A selector whose candidates are compared under composition."""

    training_line: ClassVar[str] = "candidate training"
    share: ClassVar[float | None] = SELECTION_SHARE
    centred: ClassVar[bool] = True
    shows_trials: ClassVar[bool] = True

    def charged(self, trainer: type[Trainer]) -> int:
        """Return how many releases candidates are trained from: one each, if they share none."""
        return 1 if trainer.shared else self.trainings

    def lines(self, form: Form, trainer: type[Trainer]) -> tuple[DialledLine, ...]:
        """Return every planned training and score."""
        knob = trainer.knob(form.split.trial_slots, form.schema.regression)
        return (
            DialledLine(name=self.training_line, knob=knob, times=self.charged(trainer)),
            DialledLine(name="score", knob=SCORE, times=self.trainings, partition="validation"),
        )

    def claims(
        self, form: Form, trainer: type[Trainer], noises: Mapping[str, float], delta: float
    ) -> list[Claim]:
        """Return the paper's own price of the trainings (Eq. 8), which is for pure epsilon-DP."""
        if trainer.noise_name != "epsilon":
            return []
        one = noises[self.training_line]
        return [eq8(epsilon=one, runs=self.trainings, delta_prime=delta)]
