"""Running a feature selection: buy the means, choose, train, test; each read under its charge.

The engine keeps no state: every release is a function of the run's keys and of the records, so a
resumed run computes the same again, and the ledger's keys make it cost nothing twice.

Source: Bao et al., sections V-B and VIII-B; docs/rules.md, rules 1, 8, 10 to 12. Proof:
docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pasearch.data.front_ends import MaxPool, ready
from pasearch.data.partitions import CompactRecords
from pasearch.features.choosing import (
    Chosen,
    best_of,
    by_merit,
    components,
    drawn,
    evolved,
    mask_of,
    places_of,
)
from pasearch.features.contingency import ContingencyTables, attributes_of
from pasearch.features.evolution import draw
from pasearch.features.merit import NoisyEntropies, symmetrical_uncertainty, uncertainties
from pasearch.features.picking import (
    ClassShares,
    GumbelTop,
    PermuteAndFlip,
    class_tables,
    points_of_tables,
)
from pasearch.features.plan import chosen_size, one_hot_sets, trainings_charged
from pasearch.features.public_reads import PublicReads
from pasearch.features.trainers import LinearModel, Trainer, points_of_all
from pasearch.features.views import FeatureMeans, View, row_bound, second_moments
from pasearch.progress import Progress
from pasearch.runs.sums import GaussianSum

if TYPE_CHECKING:
    from pasearch.data.front_ends import Fitted
    from pasearch.data.partitions import AnyRecords, Dataset, InParts
    from pasearch.features.choosing import Compared
    from pasearch.features.plan import FeaturePlan
    from pasearch.runs.keys import Keys, Stream
    from pasearch.runs.ledger import Ledger

Array = np.ndarray[Any, Any]
T = TypeVar("T")

BLANK = 0.95
"""Of features that tell nothing, the share that noise makes look less telling than `blank`."""

CURVE_POINTS = 8
"""At how many numbers of features a curve is drawn, on public data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureOutcome:
    """What a finished run hands over.

    Args:
        chosen: Which features, and how they were found.
        model: On encoded records, behind max pooling where that is the method.
        test_points: Noisy points on the test slots.
        exact_points: The same without noise; declared-public data only.
        curve: Accuracy by number of features, private and not; declared-public data only.
    """

    chosen: Chosen
    model: LinearModel
    test_points: int
    exact_points: int | None = None
    curve: tuple[dict[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSearch:
    """A plan and everything needed to run it.

    Args:
        plan: What may be done, with its noise solved; its schema is complete.
        dataset: Partitioned as the plan says.
        ledger: Opened with the plan's lines.
        keys: The run's secret randomness.
        device: "cpu" or "cuda".
        public: Declared-public data of the same form, to choose on for nothing; None chooses on the
            private records.
        columns: Which column each feature belongs to, (d,), where CFS-Greedy counts columns and
            PAFS searches for sets of whole ones; None where each feature is by itself.
        progress: What to report.
    """

    plan: FeaturePlan
    dataset: Dataset
    ledger: Ledger
    keys: Keys
    device: str
    public: Dataset | None = None
    columns: Array | None = None
    progress: Progress = field(default_factory=Progress)

    def run(self) -> FeatureOutcome:
        """Choose, train and test.

        Cost: the plan's lines, each charged before its partition is opened.
        """
        plan, means = self.plan, self._means()
        chosen = self._choose(means)
        model = chosen.model
        if model is None:
            self.progress.search(plan.choice.rounds, 0, 1)
            with self._open("final training", "train") as records:
                stream = self.keys.stream("final training")
                model = self._trainer("final").fit(
                    records, chosen.view, stream, on_step=self.progress.step
                )
        with self._open("test accuracy", "test") as records:
            exact = model.points(records)
            noisy = plan.test.release(exact, self.keys.stream("test"))
        return FeatureOutcome(
            chosen=chosen,
            model=model,
            test_points=noisy,
            exact_points=exact if plan.public else None,
            curve=self._curve(means, chosen) if plan.public else (),
        )

    def choose(self) -> Chosen:
        """Choose, and train no model: a plan without a final training.

        Cost: as of `run`.
        """
        return self._choose(self._means())

    def _means(self) -> Array:
        """Return the features' means; where none are planned, the middle of [0, 1] for each."""
        plan = self.plan
        if plan.means_sigma is None:
            return np.full(math.prod(plan.schema.shape), 0.5)
        bound, front = row_bound(plan.schema), self._front
        if front is not None:  # a pooled pixel is in [0, 1] too
            bound = math.sqrt(math.prod(front.front_end.output_shape(plan.schema.shape)))
        mechanism = FeatureMeans(noise_multiplier=plan.means_sigma, row_bound=bound)
        with self._open("feature means", "train") as records:
            return mechanism.release(records, self.keys.stream("feature means"))

    def _choose(self, means: Array) -> Chosen:
        stream, choice = self.keys.stream("selection"), self.plan.choice
        reads = self if self.public is None else self._public_reads(self.public)
        match choice.method:
            case "random":
                return drawn(choice, means, stream)
            case "cfs-greedy" | "cfs-ga":
                return by_merit(choice, means, self.columns, *reads.uncertainties(), stream)
            case "top":
                # No more than were planned: a bought schema has at most as many features.
                return Chosen.of(means, reads.ranked(chosen_size(choice, len(means))))
            case "pca":
                return components(choice, means, reads.second_moments(View.of(means)))
            case "pafs":
                return evolved(choice, means, self.columns, reads.compared(means), stream)
            case "one-hot":
                sets = one_hot_sets(self.plan.schema)
                trials = [f"trial {number}" for number in range(len(sets))]
                return best_of(means, sets, reads.compared(means)(sets, trials))
            case "subsets":
                return self._repeated(means, stream)
        return Chosen(view=View.of(means))

    def _public_reads(self, public: Dataset) -> PublicReads:
        self.progress.stage("choice on public data")
        return PublicReads(
            dataset=public,
            schema=self.plan.schema,
            trainer=self._trainer("final"),
            slots=self.plan.split.train,
        )

    @property
    def _selection(self) -> Stream:
        return self.keys.stream("selection")

    def uncertainties(self) -> tuple[Array, Array, float]:
        """Return noisy symmetrical uncertainties: with the target, with each other; noise alone.

        Cost: the line "contingency tables", or "entropies": the paper's way.
        """
        place = self.plan.trial_partition
        return (
            self._tables(place, self._selection)
            if self.plan.choice.merits == "tables"
            else self._entropies(place, self._selection)
        )

    def _tables(self, place: str, stream: Stream) -> tuple[Array, Array, float]:
        attributes = attributes_of(self.plan.schema)
        tables = ContingencyTables(noise_multiplier=_known(self.plan.selection_sigma))
        with self._open("contingency tables", place) as records:
            exact = attributes.counted(records)
            noisy = tables.release(exact, attributes, stream.child("tables"))
        # The same noise on tables that tell nothing, made of what was released: free.
        apart = noisy.independent(attributes, stream.child("independent").generator())
        blank = tables.release(apart, attributes, stream.child("blank"))
        shown = symmetrical_uncertainty(blank, attributes)[0]
        return *symmetrical_uncertainty(noisy, attributes), float(np.quantile(shown, BLANK))

    def _entropies(self, place: str, stream: Stream) -> tuple[Array, Array, float]:
        attributes = attributes_of(self.plan.schema)
        entropies = NoisyEntropies(epsilon=_known(self.plan.entropy_epsilon), attributes=attributes)
        with self._open("entropies", place) as records:
            exact = attributes.counted(records)
            released = entropies.release(exact, stream.child("entropies"))
        apart = stream.child("independent").generator()
        shown = entropies.of_noise(released, self.plan.split.trial_slots, apart)
        return *uncertainties(released), float(np.quantile(shown, BLANK))

    def ranked(self, size: int) -> Sequence[int]:
        """Return the picked features: class shares first, then k picks by points these define.

        Cost: the lines "class shares" and "picks".
        """
        stream = self._selection
        plan, place = self.plan, self.plan.trial_partition
        attributes = attributes_of(plan.schema)
        noise = GaussianSum(noise_multiplier=_known(plan.selection_sigma))
        with self._open("class shares", place) as records:
            codes = attributes.items[-1].codes(records.y.numpy()[:, None])
            exact = np.bincount(codes[records.valid.numpy()], minlength=attributes.sizes[-1])
            noisy = noise.release(exact.astype(np.float64), stream.child("class shares"))
        shares = ClassShares.of(np.maximum(noisy, 1.0) / np.maximum(noisy, 1.0).sum())
        kind = PermuteAndFlip if plan.choice.pick == "permute-and-flip" else GumbelTop
        picks = kind(epsilon=_known(plan.pick_epsilon), k=size, most=shares.most)
        with self._open("picks", place) as records:
            every = (class_tables(codes, attributes) for codes in attributes.codes_of(records))
            points = points_of_tables(reduce(add, every), attributes, shares)
            return picks.release(points, stream.child("picks"))

    def second_moments(self, view: View) -> Array:
        """Return noisy second moments of the features: symmetric noise (Analyze Gauss).

        Cost: the line of that name.
        """
        noise = GaussianSum(noise_multiplier=_known(self.plan.selection_sigma))
        with self._open("second moments", self.plan.trial_partition) as records:
            exact = second_moments(view, records)
            return noise.release_symmetric(exact, self._selection.child("second moments"))

    def compared(self, means: Array) -> Compared:
        """Return what trains a model on each of some sets, privately, and gives its noisy points.

        Cost: the lines "candidate training" and "score", once a set; second moments serve all.
        """
        moments = None
        if trainings_charged(self.plan.choice, self.plan.schema.regression) == 1:
            with self._open("candidate training", self.plan.trial_partition) as records:
                source = self.keys.stream("candidate", "all")
                moments = self._trainer("trial").moments(records, means, source)

        numbers = iter(range(self.plan.choice.rounds))

        def compare(sets: Array, trials: Sequence[str]) -> list[int]:
            self.progress.search(next(numbers), 0, 1)
            models = (
                self._trained("candidate training", means, sets, trials, trials)
                if moments is None
                else self._trainer("trial").solved(moments, means, sets)
            )
            return self._scored(models, trials, trials)

        return compare

    def _repeated(self, means: Array, stream: Stream) -> Chosen:
        """Repeat-and-select: K sets, independent, from a law fixed beforehand; the best is kept."""
        count = self.plan.choice.law_of().sample(stream.child("count").uniform())
        masks = draw(count, len(means), stream.child("sets").generator())
        trials = [f"trial {number}" for number in range(count)]
        models = self._trained("training", means, masks, trials, ["search"])
        scores = self._scored(models, trials, ["search"])
        ties = stream.child("ties").generator().random(count)
        best = max(range(count), key=list(zip(scores, ties, strict=True)).__getitem__)
        kept = None if self.plan.split.search else models[best]
        return Chosen.of(means, places_of(masks[best]), model=kept)

    def _trained(
        self, line: str, means: Array, masks: Array, trials: Sequence[str], keys: Iterable[str]
    ) -> list[LinearModel]:
        """Train a model on each set, from randomness of its own, charged once a key."""
        streams = [self.keys.stream("candidate", trial) for trial in trials]
        with self._open(line, self.plan.trial_partition, *keys) as records:
            trainer, on_step = self._trainer("trial"), self.progress.step
            return trainer.fit_many(records, means, masks, streams, on_step=on_step)

    def _scored(
        self, models: Sequence[LinearModel], trials: Sequence[str], keys: Iterable[str]
    ) -> list[int]:
        """Return a noisy score of each model, charged once a key."""
        noise = _known(self.plan.score)
        with self._open("score", "validation", *keys) as records:
            return [
                noise.release(points, self.keys.stream("score", trial))
                for points, trial in zip(points_of_all(models, records), trials, strict=True)
            ]

    def _open(self, line: str, partition: str, *keys: str) -> AbstractContextManager[AnyRecords]:
        """Charge a line once for each key, without one once, and open what it reads."""
        self.progress.stage(line)
        return self.ledger.charged(line, self._place(partition), key=keys or ("once",))

    def _place(self, partition: str) -> InParts:
        """Return a partition as this method sees it."""
        return self.dataset[partition].through(self._front).in_parts()

    @property
    def _front(self) -> Fitted | None:
        """What every record goes through: max pooling, where that is the method."""
        choice = self.plan.choice
        if choice.method != "max-pool":
            return None
        return ready(MaxPool(size=choice.pool), self.plan.schema.shape)

    def _trainer(self, kind: str) -> Trainer:
        plan = self.plan
        return Trainer(
            name=plan.choice.trainer,
            outputs=plan.schema.outputs,
            regression=plan.schema.regression,
            epsilon=plan.trial_epsilon if kind == "trial" else plan.final_epsilon,
            sigma=plan.trial_sigma if kind == "trial" else plan.final_sigma,
            mu=plan.trial_mu if kind == "trial" else plan.final_mu,
            device=self.device,
        )

    def _curve(self, means: Array, chosen: Chosen) -> tuple[dict[str, float], ...]:
        """Return accuracy by number of features, at this epsilon and without noise.

        Only of declared-public data: it looks at their records again, for nothing. Of so many that
        they are compact none is drawn: it would take many times as long as the run.
        """
        order = list(chosen.order)
        if not order or chosen.view.rotation is not None:
            order = np.argsort(-means * (1 - means), kind="stable").tolist()
        known = set(order)
        order += [each for each in range(len(means)) if each not in known]
        train, test = (self._place(name).public_records() for name in ("train", "test"))
        if isinstance(train, CompactRecords):
            return ()
        best = len(test) * self.plan.points_each
        trainer = self._trainer("trial" if chosen.model is not None else "final")
        found = []
        for size in np.unique(np.geomspace(1, len(order), CURVE_POINTS).round().astype(int)):
            view = View.of(means, mask_of(order[:size], len(means)))
            stream = self.keys.stream("curve", int(size))
            private, public = trainer.fit(train, view, stream), trainer.fit_public(train, view)
            found.append(
                {
                    "features": int(size),
                    "private": private.points(test) / best,
                    "without": public.points(test) / best,
                }
            )
        return tuple(found)


def _known(value: T | None) -> T:
    """Return what the plan has solved for this method."""
    assert value is not None
    return value
