"""Subsets: random sets of features, a model trained on each, and the best model is released.

    K ~ law (drawn once, kept secret);  K sets, independent and uniform;  the best noisy score wins

Repeat-and-select, once for the trainings and once for the scores, under one law. The winner's
weights are kept, unless the choice has records of its own: then it is trained anew on the others.

Source: Papernot and Steinke 2022. Proof: docs/guarantees/repeat-and-select.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pasearch.accounting.checks import positive
from pasearch.accounting.events import Event, RepeatAndSelect
from pasearch.accounting.selection import Law
from pasearch.features.chosen import Chosen, places_of
from pasearch.features.evolution import draw
from pasearch.features.knobs import SCORE, DialledLine
from pasearch.features.selector import SELECTORS, Form, Reads, Selector
from pasearch.features.trainers import Trainer
from pasearch.runs.keys import Stream


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Subsets(Selector):
    """Compares random sets.

    Args:
        law: Of the number of trainings: one of `Law.NAMES`.
        candidates: Its mean.
    """

    name: ClassVar[str] = "subsets"
    does: ClassVar[str] = (
        "random sets, each trained privately; the best is kept (repeat-and-select)"
    )
    selection_rule: ClassVar[str] = "repeat-and-select"
    no_size: ClassVar[str] = "searches over sizes too"
    training_line: ClassVar[str] = "training"
    centred: ClassVar[bool] = True
    law: str = "geometric"
    candidates: float = 8.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", positive("candidates", self.candidates))
        self.count_law()

    def count_law(self) -> Law:
        """Return the law of the number of trainings."""
        return Law.named(self.law, mean=self.candidates)

    @property
    def expected_trainings(self) -> float:
        return self.candidates

    @property
    def keeps_winner(self) -> bool:
        """Its weights are paid for."""
        return True

    def words(self, *, public: bool = False) -> str:
        return f"{self.does}; the number of trainings is secret, {self.count_law().describe()}"

    def lines(self, form: Form, trainer: type[Trainer]) -> tuple[DialledLine, ...]:
        """Return one repeat-and-select of trainings, and one of scores."""
        law = self.count_law()

        def selected(event: Event) -> Event:
            return RepeatAndSelect(event, law)

        knob = trainer.knob(form.split.trial_slots, form.schema.regression)
        return (
            DialledLine(name=self.training_line, knob=knob, composed=selected),
            DialledLine(name="score", knob=SCORE, composed=selected, partition="validation"),
        )

    def choose(self, reads: Reads, stream: Stream) -> Chosen:
        """Return the set of the best score; each run draws its own tie-break."""
        count = self.count_law().sample(stream.child("count").uniform())
        masks = draw(count, len(reads.means), stream.child("sets").generator())
        trials = [f"trial {number}" for number in range(count)]
        models = reads.trained(masks, trials, ["search"])
        scores = reads.scored(models, trials, ["search"])
        ties = stream.child("ties").generator().random(count)
        best = max(range(count), key=list(zip(scores, ties, strict=True)).__getitem__)
        kept = None if reads.retrained else models[best]
        return Chosen.of(reads.means, places_of(masks[best]), model=kept)
