"""Wrapper methods: sets of features are compared by privately trained models.

    PAFS      k random sets;  l times: train and score each, then evolve the sets (Algorithm 4,
              `evolution`) unless it was the last;  the set with the highest score is selected
    one-hot   two sets: all features, or numbers only; indicators of categories have little signal
    subsets   K from a secret distribution;  K sets, independent and uniform;  the model with the
              best noisy score is released (repeat-and-select)

PAFS is charged for k l planned trainings, even if sets repeat, because the number of different sets
depends on the data. Method `subsets` is charged one repeat-and-select for the trainings and one for
the scores, with the same distribution of K. It releases the weights of the best model. If records
are reserved for the selection, a model is instead trained from scratch on the other records.

Source: Bao et al., sections VIII-B and VIII-C (PAFS), C-D (one-hot); Papernot and Steinke 2022.
Proof: docs/guarantees/feature-selection.md, docs/guarantees/repeat-and-select.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pasearch.accounting.checks import check_positive
from pasearch.accounting.events import Event, RepeatAndSelect
from pasearch.accounting.selection import RunCountDistribution
from pasearch.data.tables import AnySchema
from pasearch.errors import UsageError
from pasearch.features.evolution import (
    CROSSOVER_PROBABILITY,
    MUTATION_PROBABILITY,
    EvolvingSelector,
    draw_masks,
    find_unseen,
    label_masks,
    look_up_fitness,
    masks_from_labels,
)
from pasearch.features.selector import (
    SELECTORS,
    Array,
    ComparingSelector,
    DataMetadata,
    RecordAccess,
    SelectionResult,
    Selector,
    SetScorer,
    mask_to_indices,
    select_best,
)
from pasearch.features.trainers import Trainer
from pasearch.planning import SCORE_NOISE, ReleaseTemplate
from pasearch.runs.keys import Stream


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyAwareFeatureSelection(EvolvingSelector, ComparingSelector):
    """PAFS: genetic search over sets, with the scores of privately trained models.

    Args:
        population: Number of sets per generation, k, 2 or more; each set is charged.
        generations: Number of generations, l, 1 or more.
        alpha: Fraction of the fittest sets that become parents, in (0, 1].
        p_co: Probability of a crossover, in [0, 1].
        p_mu: Probability of a mutation; p_co + p_mu is at most 1.
    """

    name: ClassVar[str] = "pafs"
    description: ClassVar[str] = "a genetic search over sets, scored by privately trained models"
    public_description: ClassVar[str] = (
        "a genetic search over sets, scored by models trained as the private one will be"
    )
    no_size_reason: ClassVar[str] = "searches over sizes too"
    share: ClassVar[float | None] = 0.6
    printed: ClassVar[str] = (
        "the paper prints 49.63 for its settings; this formula gives 49.607 for 2,313 distinct "
        "sets at epsilon 0.1, a number that depends on the records, and 103.8 for all 6,000"
    )
    population: int = 20
    generations: int = 3
    alpha: float = 0.3
    p_co: float = CROSSOVER_PROBABILITY
    p_mu: float = MUTATION_PROBABILITY

    def describe(self, *, public: bool = False) -> str:
        return (self.public_description if public else self.description) + self.describe_evolution()

    @property
    def trainings(self) -> int:
        return self.population * self.generations

    @property
    def rounds(self) -> int:
        return self.generations

    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        return self.evolve_sets(reads.means, reads.columns, reads.make_scorer(), stream)

    def evolve_sets(
        self, means: Array, columns: Array | None, compared: SetScorer, stream: Stream
    ) -> SelectionResult:
        """Search for the set with the highest score by the genetic algorithm, and select it.

        Args:
            means: Means of all features, (d,).
            columns: Column index of each feature, (d,), if sets consist of whole columns; else
                None.
            compared: Function that scores sets; called once for each different set.
            stream: Random stream of the genetic algorithm.
        """
        columns = np.arange(len(means)) if columns is None else columns
        width = int(columns.max()) + 1
        generation = self.evolution.first_generation(width, stream.child("begin").generator())
        known: dict[str, int] = {}
        for number in range(self.generations):
            if number:
                fitness = look_up_fitness(generation.masks, known)
                source = stream.child("tell", number - 1).generator()
                generation = self.evolution.tell(generation, fitness, source)
            masks = generation.masks[find_unseen(generation.masks, known)]
            if len(masks):
                trials = [f"trial {len(known) + each}" for each in range(len(masks))]
                known |= zip(label_masks(masks), compared(masks[:, columns], trials), strict=True)
        sets = masks_from_labels(list(known), width)[:, columns]
        return select_best(means, sets, list(known.values()))


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class OneHotSelector(ComparingSelector):
    """Selector that compares two sets: all features, and numbers only (`make_one_hot_sets`)."""

    name: ClassVar[str] = "one-hot"
    description: ClassVar[str] = (
        "all features, or numbers alone: whichever trains the better model, privately"
    )
    public_description: ClassVar[str] = (
        "all features, or numbers alone: whichever trains the better model"
    )
    no_size_reason: ClassVar[str] = "compares two fixed sets"

    @property
    def trainings(self) -> int:
        return 2

    def check(self, form: DataMetadata) -> None:
        """Raise UsageError for records without categories, or without numbers."""
        if not getattr(form.schema, "columns", ()):
            raise UsageError(
                "Method 'one-hot' requires a table with columns; these records are number arrays. "
                "Use `method=all`."
            )
        if not form.schema.undeclared and make_one_hot_sets(form.schema).all():
            raise UsageError(
                "Method 'one-hot' compares all features with numbers only: here the two sets "
                "are equal. Use `method=all`."
            )

    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        sets = make_one_hot_sets(reads.schema)
        trials = [f"trial {number}" for number in range(len(sets))]
        return select_best(reads.means, sets, reads.make_scorer()(sets, trials))

    def candidate_sets(self, schema: AnySchema) -> Array:
        return make_one_hot_sets(schema)


def make_one_hot_sets(schema: AnySchema) -> np.ndarray:
    """Return the two sets of `OneHotSelector`, (2, d) bool: all features, and numbers only.

    The second set has each scaled number, without its bins, and one indicator of each category with
    two values.

    Args:
        schema: Schema, complete or partly declared.
    """
    plain = [np.zeros(0, bool)]
    for column in getattr(schema, "pieces", ()):
        own = np.zeros(column.width, bool)
        two = column.kind == "category" and len(column.categories or ()) == 2
        own[:1] = column.kind == "number" or two
        plain.append(own)
    numbers = np.concatenate(plain)
    return np.array([np.ones(len(numbers), bool), numbers if numbers.any() else ~numbers])


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSubsetsSelector(Selector):
    """Selector that trains on a secret number of random sets, and selects the best noisy score.

    Args:
        law: Distribution of the number of trainings: one of the supported names, such as
            "geometric".
        candidates: Expected number of trainings, above 0.
    """

    name: ClassVar[str] = "subsets"
    description: ClassVar[str] = (
        "random sets, each trained privately; the best is kept (repeat-and-select)"
    )
    selection_rule: ClassVar[str] = "repeat-and-select"
    no_size_reason: ClassVar[str] = "searches over sizes too"
    training_line: ClassVar[str] = "training"
    uses_means: ClassVar[bool] = True
    law: str = "geometric"
    candidates: float = 8.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", check_positive("candidates", self.candidates))
        self.trial_distribution()

    def trial_distribution(self) -> RunCountDistribution:
        """Return the distribution of the number of trainings."""
        return RunCountDistribution.from_name(self.law, mean=self.candidates)

    @property
    def expected_trainings(self) -> float:
        return self.candidates

    @property
    def keeps_winner(self) -> bool:
        """Whether the winner's weights are released: yes, the trainings are charged."""
        return True

    def describe(self, *, public: bool = False) -> str:
        law = self.trial_distribution().describe()
        return f"{self.description}; the number of trainings is secret, {law}"

    def list_releases(
        self, form: DataMetadata, trainer: type[Trainer]
    ) -> tuple[ReleaseTemplate, ...]:
        """Return the charges of repeat-and-select, one for the trainings and one for the scores."""
        law = self.trial_distribution()

        def selected(event: Event) -> Event:
            return RepeatAndSelect(event, law)

        knob = trainer.knob(form.split.trial_size, form.schema.regression)
        return (
            ReleaseTemplate(name=self.training_line, knob=knob, composed=selected),
            ReleaseTemplate(
                name="score", knob=SCORE_NOISE, composed=selected, partition="validation"
            ),
        )

    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        """Choose the set with the best score; ties are broken at random."""
        count = self.trial_distribution().sample(stream.child("count").uniform())
        masks = draw_masks(count, len(reads.means), stream.child("sets").generator())
        trials = [f"trial {number}" for number in range(count)]
        models = reads.train_sets(masks, trials, ["search"])
        scores = reads.score_models(models, trials, ["search"])
        ties = stream.child("ties").generator().random(count)
        best = max(range(count), key=list(zip(scores, ties, strict=True)).__getitem__)
        kept = None if reads.retrained else models[best]
        return SelectionResult.of(reads.means, mask_to_indices(masks[best]), model=kept)
