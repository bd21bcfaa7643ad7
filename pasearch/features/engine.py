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
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pasearch.data.front_ends import MaxPool, ready
from pasearch.features.cfs import genetic, greedy
from pasearch.features.contingency import ContingencyTables, attributes_of, count
from pasearch.features.evolution import Evolution, draw, labels, masks_of, recalled, unseen
from pasearch.features.merit import NoisyEntropies, symmetrical_uncertainty, uncertainties
from pasearch.features.picking import ClassShares, GumbelTop, PermuteAndFlip, feature_points
from pasearch.features.plan import REACH, ROW_NORM, chosen_size, trainings_charged
from pasearch.features.trainers import LinearModel, Trainer, points_of_all
from pasearch.features.views import FeatureMeans, View, row_bound
from pasearch.runs.sums import GaussianSum, bounded_rows

if TYPE_CHECKING:
    from pasearch.data.front_ends import Fitted
    from pasearch.data.partitions import Dataset, Partition, Records
    from pasearch.features.plan import FeaturePlan
    from pasearch.runs.keys import Keys, Stream
    from pasearch.runs.ledger import Ledger

Array = np.ndarray[Any, Any]
T = TypeVar("T")

CFS_POPULATION, CFS_GENERATIONS = 5000, 10
"""k and l of CFS-GA, as in the paper: its sets cost nothing."""

PARENTS = 0.3
"""The share of a generation of PAFS that become parents; its generations are small."""

CURVE_POINTS = 8
"""At how many numbers of features a curve is drawn, on public data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which features the model uses, and what was released on the way.

    Args:
        view: What the model is given of a record.
        to_class: Noisy symmetrical uncertainty of each feature with the target, where released.
        order: Features in the order in which they were chosen, where there is one.
        merit: Of the chosen set, where there is one.
        trials: (features, noisy points) of every candidate, where they may be shown.
        model: On encoded records, where the winner's weights are kept.
    """

    view: View
    to_class: Array | None = field(default=None, repr=False)
    order: tuple[int, ...] = ()
    merit: float | None = None
    trials: tuple[tuple[tuple[int, ...], int], ...] = ()
    model: LinearModel | None = None

    @classmethod
    def of(cls, means: Array, order: Sequence[int], **more: Any) -> Chosen:
        """Return the choice of these features, in the order in which they were chosen."""
        return cls(view=View.of(means, mask_of(order, len(means))), order=tuple(order), **more)


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
        columns: Which column each feature belongs to, (d,), where PAFS searches for sets of whole
            columns; None where each feature is by itself.
    """

    plan: FeaturePlan
    dataset: Dataset
    ledger: Ledger
    keys: Keys
    device: str
    columns: Array | None = None

    def run(self) -> FeatureOutcome:
        """Choose, train and test.

        Cost: the plan's lines, each charged before its partition is opened.
        """
        plan, means = self.plan, self._means()
        chosen = self._choose(means)
        model = chosen.model
        if model is None:
            with self._open("final training", "train") as records:
                stream = self.keys.stream("final training")
                model = self._trainer("final").fit(records, chosen.view, stream)
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
        match choice.method:
            case "random":
                size = chosen_size(choice, len(means))
                order = stream.generator().permutation(len(means))[:size].tolist()
                return Chosen.of(means, order)
            case "cfs-greedy" | "cfs-ga":
                return self._by_merit(means, stream)
            case "top":
                return self._picked(means, stream)
            case "pca":
                return self._components(means, stream)
            case "pafs":
                return self._evolved(means, stream)
            case "subsets":
                return self._repeated(means, stream)
        return Chosen(view=View.of(means))

    def _by_merit(self, means: Array, stream: Stream) -> Chosen:
        """CFS: noisy tables, or noisy entropies; everything after them is post-processing."""
        choice, place = self.plan.choice, self.plan.trial_partition
        to_class, between = (
            self._tables(place, stream)
            if choice.merits == "tables"
            else self._entropies(place, stream)
        )
        if choice.method == "cfs-greedy":
            size = None if choice.size is None else chosen_size(choice, len(means))
            found = greedy(to_class, between, size)
        else:
            found = genetic(
                to_class, between, generator=stream.child("genetic").generator(),
                population=CFS_POPULATION, generations=CFS_GENERATIONS,
            )  # fmt: skip
        return Chosen.of(means, found.chosen, to_class=to_class, merit=found.merit)

    def _tables(self, place: str, stream: Stream) -> tuple[Array, Array]:
        attributes = attributes_of(self.plan.schema)
        tables = ContingencyTables(noise_multiplier=_known(self.plan.selection_sigma))
        with self._open("contingency tables", place) as records:
            exact = count(attributes.codes(records.x, records.y, records.valid), attributes)
            noisy = tables.release(exact, attributes, stream.child("tables"))
        return symmetrical_uncertainty(noisy, attributes)

    def _entropies(self, place: str, stream: Stream) -> tuple[Array, Array]:
        attributes = attributes_of(self.plan.schema)
        entropies = NoisyEntropies(epsilon=_known(self.plan.entropy_epsilon), attributes=attributes)
        with self._open("entropies", place) as records:
            exact = count(attributes.codes(records.x, records.y, records.valid), attributes)
            released = entropies.release(exact, stream.child("entropies"))
        return uncertainties(released)

    def _picked(self, means: Array, stream: Stream) -> Chosen:
        """Top k: class shares first, then k picks by points that those shares define."""
        plan, place = self.plan, self.plan.trial_partition
        attributes = attributes_of(plan.schema)
        noise = GaussianSum(noise_multiplier=_known(plan.selection_sigma))
        with self._open("class shares", place) as records:
            codes = attributes.codes(records.x, records.y, records.valid)[:, -1]
            exact = np.bincount(codes[codes >= 0], minlength=attributes.sizes[-1])
            noisy = noise.release(exact.astype(np.float64), stream.child("class shares"))
        shares = ClassShares.of(np.maximum(noisy, 1.0) / np.maximum(noisy, 1.0).sum())
        kind = PermuteAndFlip if plan.choice.pick == "permute-and-flip" else GumbelTop
        # No more than were planned: the bought schema has at most as many features as that one.
        size = chosen_size(plan.choice, len(means))
        picks = kind(epsilon=_known(plan.pick_epsilon), k=size, most=shares.most)
        with self._open("picks", place) as records:
            codes = attributes.codes(records.x, records.y, records.valid)
            order = picks.release(feature_points(codes, attributes, shares), stream.child("picks"))
        return Chosen.of(means, order)

    def _components(self, means: Array, stream: Stream) -> Chosen:
        """PCA: symmetric noise on X'X of rows of norm at most 1 (Analyze Gauss)."""
        view = View.of(means)
        noise = GaussianSum(noise_multiplier=_known(self.plan.selection_sigma))
        with self._open("second moments", self.plan.trial_partition) as records:
            rows = view.rows(records).numpy() / (REACH * ROW_NORM)
            rows = bounded_rows(rows, records.valid.numpy())
            noisy = noise.release_symmetric(rows.T @ rows, stream.child("second moments"))
        size = chosen_size(self.plan.choice, len(means))
        directions = np.linalg.eigh(noisy)[1][:, ::-1][:, :size]
        return Chosen(view=view.rotated(np.ascontiguousarray(directions)))

    def _evolved(self, means: Array, stream: Stream) -> Chosen:
        """PAFS: sets evolve by the noisy scores of models that were trained on them, privately."""
        choice = self.plan.choice
        moments = None
        if trainings_charged(choice, self.plan.schema.regression) == 1:
            # Released once, they serve every set of every generation.
            with self._open("candidate training", self.plan.trial_partition) as records:
                source = self.keys.stream("candidate", "all")
                moments = self._trainer("trial").moments(records, means, source)
        evolution = Evolution(population=choice.population, alpha=PARENTS)
        columns = np.arange(len(means)) if self.columns is None else self.columns
        width = int(columns.max()) + 1
        generation = evolution.begin(width, stream.child("begin").generator())
        known: dict[str, int] = {}
        for number in range(choice.generations):
            if number:
                fitness = recalled(generation.masks, known)
                source = stream.child("tell", number - 1).generator()
                generation = evolution.tell(generation, fitness, source)
            masks = generation.masks[unseen(generation.masks, known)]
            if len(masks):
                trials = [f"trial {len(known) + each}" for each in range(len(masks))]
                sets = masks[:, columns]
                models = (
                    self._trained("candidate training", means, sets, trials, trials)
                    if moments is None
                    else self._trainer("trial").solved(moments, means, sets)
                )
                scores = self._scored(models, trials, trials)
                known |= zip(labels(masks), scores, strict=True)
        chosen = [_places(mask[columns]) for mask in masks_of(list(known), width)]
        shown = tuple(zip(map(tuple, chosen), known.values(), strict=True))
        best = max(range(len(chosen)), key=list(known.values()).__getitem__)
        return Chosen.of(means, chosen[best], trials=shown)

    def _repeated(self, means: Array, stream: Stream) -> Chosen:
        """Repeat-and-select: K sets, independent, from a law fixed beforehand; the best is kept."""
        # An odd multiple of 2^-53, as in an architecture search: never 0 or 1.
        uniform = (int(stream.child("count").generator().integers(2**52)) + 0.5) / 2.0**52
        count = self.plan.choice.law_of().sample(uniform)
        masks = draw(count, len(means), stream.child("sets").generator())
        trials = [f"trial {number}" for number in range(count)]
        models = self._trained("training", means, masks, trials, ["search"])
        scores = self._scored(models, trials, ["search"])
        ties = stream.child("ties").generator().random(count)
        best = max(range(count), key=list(zip(scores, ties, strict=True)).__getitem__)
        kept = None if self.plan.split.search else models[best]
        return Chosen.of(means, _places(masks[best]), model=kept)

    def _trained(
        self, line: str, means: Array, masks: Array, trials: Sequence[str], keys: Iterable[str]
    ) -> list[LinearModel]:
        """Train a model on each set, from randomness of its own, charged once a key."""
        streams = [self.keys.stream("candidate", trial) for trial in trials]
        with self._open(line, self.plan.trial_partition, *keys) as records:
            return self._trainer("trial").fit_many(records, means, masks, streams)

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

    def _open(self, line: str, partition: str, *keys: str) -> AbstractContextManager[Records]:
        """Charge a line once for each key, without one once, and open what it reads."""
        return self.ledger.charged(line, self._place(partition), key=keys or ("once",))

    def _place(self, partition: str) -> Partition:
        """Return a partition as this method sees it."""
        return self.dataset[partition].through(self._front)

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

        Only of declared-public data: it looks at their records again, for nothing.
        """
        order = list(chosen.order)
        if not order or chosen.view.rotation is not None:
            order = np.argsort(-means * (1 - means), kind="stable").tolist()
        known = set(order)
        order += [each for each in range(len(means)) if each not in known]
        train, test = (self._place(name).public_records() for name in ("train", "test"))
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


def mask_of(places: Sequence[int], features: int) -> Array:
    """Return which features a set has, (features,) bool."""
    mask = np.zeros(features, bool)
    mask[list(places)] = True
    return mask


def _places(mask: Array) -> list[int]:
    return np.flatnonzero(mask).tolist()


def _known(value: T | None) -> T:
    """Return what the plan has solved for this method."""
    assert value is not None
    return value
