"""Execution of a feature selection: release means, select, train, test; each read is charged first.

Every release is a function of the run's keys and of the records. Therefore a resumed run computes
the same values, and the keys in the ledger prevent a second charge.

A selection on public records with the same metadata is exact and free. For each compared set, a
model is trained on public records with noise, as the private model will be. The noise is scaled to
the number of public records, so that it has the same effect as on the private ones. Models are
scored exactly on held-out public records, so a set scores low if it needs less noise.

Source: Bao et al., sections V-B and VIII-B; docs/rules.md, rules 1, 4, 8, 10 to 12. Proof:
docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from pasearch.data.front_ends import FittedFrontEnd, prepare_front_end
from pasearch.data.means import FeatureMeans
from pasearch.data.partitions import Dataset, Partition, Records
from pasearch.data.rows import CompactRows, Rows
from pasearch.data.shared_records import SharedRecords, create_records_folder
from pasearch.data.tables import AnySchema
from pasearch.data.threads import divide_threads, use_threads
from pasearch.engine import Engine, hold_out
from pasearch.errors import UsageError
from pasearch.features.plan import FINAL_LINE, MEANS_LINE, SCORES_LINE, FeaturePlan
from pasearch.features.selector import (
    DataMetadata,
    RecordAccess,
    SelectionResult,
    SetScorer,
    make_mask,
)
from pasearch.features.trainers import Array, LinearModel, SetTraining, Trainer, count_for_models
from pasearch.features.views import View
from pasearch.planning import TEST_LINE
from pasearch.runs.executors import Work
from pasearch.runs.folder import RunFolder
from pasearch.runs.keys import Keys, Stream
from pasearch.training.metrics import Metric, Score, find_default_metric


@dataclass(frozen=True, kw_only=True)
class PublicRecordAccess(RecordAccess):
    """Access to declared-public records; candidates are trained as the private model will be.

    Args:
        dataset: Declared-public records with the metadata of the private data.
        schema: Complete schema of the private data, which encodes the public records.
        means: Released means of the private records' features, (d,).
        columns: Column index of each feature, (d,), if whole columns are selected; else None.
        trainer: Training method of the final model.
        slots: Number of private training records, null records included.
        metric: Metric of the models' scores.

    Raises:
        UnchargedReadError: Data that was not declared public.
    """

    dataset: Dataset
    schema: AnySchema
    means: Array
    columns: Array | None = None
    trainer: Trainer
    slots: int
    metric: Metric
    public = True
    retrained = True

    @cached_property
    def _records(self) -> Any:
        return replace(self.dataset, schema=self.schema).all_records(None)

    def open_line(self, line: str, *keys: str) -> AbstractContextManager[Records]:
        """Open all records; public records are not charged."""
        return nullcontext(self._records)

    def noise(self, line: str) -> float:
        """Raise AssertionError: public records have no noise."""
        raise AssertionError(f"{line} has no noise on public records")

    def train_sets(
        self, sets: Array, trials: Sequence[str], keys: Iterable[str]
    ) -> list[LinearModel]:
        """Train a model on each set, with noise scaled to the number of public records."""
        train, _ = self._held_out
        source = Keys.from_seed(0)
        streams = [source.stream("public", trial) for trial in trials]
        trainer = self.trainer.reduce_noise(self.slots / len(train))
        return trainer.fit_many(train, self.means, sets, streams)

    def score_models(
        self, models: Sequence[LinearModel], trials: Sequence[str], keys: Iterable[str]
    ) -> list[int]:
        """Return the exact score count of each model on held-out records."""
        seen = self._held_out[1]
        counts = count_for_models(models, seen, self.metric)
        return [self.metric.compute_points(own, len(seen)) for own in counts]

    def make_scorer(self) -> SetScorer:
        """Make the function that scores feature sets exactly on held-out public records."""
        return lambda sets, trials: self.score_models(self.train_sets(sets, trials, ()), trials, ())

    @cached_property
    def _held_out(self) -> tuple[Any, Any]:
        train, held = hold_out(len(self._records))
        return self._records.take(train), self._records.take(held)


CURVE_POINTS = 8  # maximum number of points of an accuracy curve over the number of features


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureOutcome:
    """Result of a finished run.

    Args:
        chosen: Selected features, and the values released by the selection.
        model: Model on encoded records (after max pooling for method `max-pool`).
        test: Noisy score on the test records.
        exact_points: Exact score count; declared-public data only.
        curve: Points {"features", "private", "without"}: number of features, and accuracy with and
            without DP; declared-public data only.
    """

    chosen: SelectionResult
    model: LinearModel
    test: Score
    exact_points: int | None = None
    curve: tuple[dict[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSearch(Engine):
    """Engine of a feature selection.

    Args:
        plan: Calibrated plan of the run.
        columns: Column index of each feature, (d,), if whole columns are selected; else None.
        folder: Folder of the run, which stores the records for worker processes; None: no workers.
    """

    plan: FeaturePlan
    folder: RunFolder | None = None
    columns: Array | None = None
    _used: set[tuple[str, ...]] = field(default_factory=set, init=False, repr=False)

    def run(self) -> FeatureOutcome:
        """Select, train and test.

        Cost: the plan's lines, each charged before its partition is opened.
        """
        self._used.clear()
        plan, means = self.plan, self._release_means()
        chosen = self._choose(means)
        model = chosen.model
        if model is None:
            self.progress.search(plan.choice.selector.rounds, 0, 1)
            with self._open_line(FINAL_LINE, "train") as records:
                stream = self.keys.stream("final training")
                model = self._make_trainer(FINAL_LINE).fit(
                    records, chosen.view, stream, on_step=self.progress.step
                )
        test, exact = self.release_test(self._open_line(TEST_LINE, "test"), model.compute_counts)
        return FeatureOutcome(
            chosen=chosen,
            model=model,
            test=test,
            exact_points=exact,
            curve=self._measure_curve(means, chosen) if plan.public else (),
        )

    def choose(self) -> SelectionResult:
        """Select features without training a final model.

        Cost: the plan's lines, each charged before its partition is opened.
        """
        self._used.clear()
        return self._choose(self._release_means())

    def _release_means(self) -> Array:
        """Release the features' means; without a planned line, return 0.5 for each."""
        plan = self.plan
        if not plan.has_line(MEANS_LINE):
            return np.full(math.prod(plan.schema.shape), 0.5)
        bound, front = plan.schema.row_bound, self._fitted_front_end
        if front is not None:  # a pooled pixel is in [0, 1] too
            bound = math.sqrt(math.prod(front.front_end.output_shape(plan.schema.shape)))
        mechanism = FeatureMeans(noise_multiplier=plan.noise(MEANS_LINE), row_bound=bound)
        with self._open_line(MEANS_LINE, "train") as records:
            return mechanism.release(records, self.keys.stream("feature means"))

    def _choose(self, means: Array) -> SelectionResult:
        return self.plan.choice.selector.choose(
            self.open_access(means), self.keys.stream("selection")
        )

    def open_access(self, means: Array) -> RecordAccess:
        """Make the record access of the selection: private records under charge, or public ones."""
        schema, split = self.plan.schema, self.plan.split
        if self.public is None:
            return PrivateRecordAccess(
                search=self, schema=schema, means=means, columns=self.columns,
                slots=split.trial_size, retrained=bool(split.search),
            )  # fmt: skip
        self.progress.stage("choice on public data")
        return PublicRecordAccess(
            dataset=self.public, schema=schema, means=means, columns=self.columns,
            trainer=self._make_trainer(FINAL_LINE), slots=split.train,
            metric=self.plan.score_metric,
        )  # fmt: skip

    def _open_line(self, line: str, partition: str, *keys: str) -> AbstractContextManager[Records]:
        """Charge a line once per key, or once without keys, and open its partition.

        Raises:
            UsageError: The line was opened under one of these keys before. The ledger would not
                charge the second read.
        """
        self._check_unused("charge", *((line, key) for key in keys or ("once",)))
        self.progress.stage(line)
        return self.ledger.charged(line, self._select_partition(partition), key=keys or ("once",))

    def _check_unused(self, purpose: str, *names: tuple[str, str]) -> None:
        """Record names as used for a purpose; raise UsageError if one was used before."""
        for name in names:
            if (purpose, *name) in self._used:
                raise UsageError(
                    f"The {purpose} {' of '.join(map(repr, reversed(name)))} was used before: a "
                    "second read or release needs another key, another name and a planned line."
                )
            self._used.add((purpose, *name))

    def _select_partition(self, partition: str) -> Partition:
        return self.dataset[partition].with_front_end(self._fitted_front_end)

    @property
    def _fitted_front_end(self) -> FittedFrontEnd | None:
        pooling = self.plan.choice.selector.pooling
        return None if pooling is None else prepare_front_end(pooling, self.plan.schema.shape)

    def _make_trainer(self, line: str) -> Trainer:
        schema = self.plan.schema
        return self.plan.trainer(
            noise=self.plan.noise(line), outputs=schema.outputs, regression=schema.regression,
            device=self.device,
        )  # fmt: skip

    def _measure_curve(self, means: Array, chosen: SelectionResult) -> tuple[dict[str, float], ...]:
        """Measure accuracy by number of features, with this run's noise and without noise.

        Only for declared-public data, because the records are read again without a charge. The
        curve of compact records is empty: it would take many times as long as the run.
        """
        order = list(chosen.order)
        if not order or chosen.view.rotation is not None:
            order = np.argsort(-means * (1 - means), kind="stable").tolist()
        known = set(order)
        order += [each for each in range(len(means)) if each not in known]
        train, test = (self._select_partition(name).public_records() for name in ("train", "test"))
        if isinstance(train.x, Rows):
            return ()
        metric = find_default_metric(self.plan.schema.regression)
        best = len(test) * metric.max_points
        line = FINAL_LINE if chosen.model is None else self.plan.choice.selector.training_line
        trainer = self._make_trainer(line)
        found = []
        for size in np.unique(np.geomspace(1, len(order), CURVE_POINTS).round().astype(int)):
            view = View.of(means, make_mask(order[:size], len(means)))
            stream = self.keys.stream("curve", int(size))
            models = trainer.fit(train, view, stream), trainer.fit_public(train, view)
            private, without = (model.compute_counts(test, metric)[0] / best for model in models)
            found.append({"features": int(size), "private": private, "without": without})
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateRecordAccess(RecordAccess):
    """Access to private records; each read is charged to one of the plan's lines.

    Args:
        search: Engine with plan, records, keys and ledger.
        schema: Complete schema of the records.
        means: Released means of all features, (d,).
        columns: Column index of each feature, (d,), if whole columns are selected; else None.
        slots: Number of records, null records included.
        retrained: Whether the final model is trained on records that the selection does not read.
    """

    search: FeatureSearch
    schema: AnySchema
    means: Array
    columns: Array | None
    slots: int
    retrained: bool
    public = False

    def open_line(self, line: str, *keys: str) -> AbstractContextManager[Records]:
        """Charge a line, and open its partition.

        Raises:
            UsageError: A line that the method does not list, or one that was opened under these
                keys before.
        """
        plan = self.search.plan
        form = DataMetadata(schema=plan.schema, split=plan.split, most=plan.most)
        own = [each.name for each in plan.choice.selector.list_releases(form, plan.trainer)]
        if line not in own:
            raise UsageError(
                f"Method {plan.choice.selector.name!r} opens line {line!r}, which it did not "
                f"declare: expected one of {', '.join(own)}."
            )
        return self.search._open_line(line, plan.partition_of(line), *keys)

    def noise(self, line: str) -> float:
        return self.search.plan.noise(line)

    def make_scorer(self) -> SetScorer:
        """Make the function that trains a model per feature set with DP, and scores it with noise.

        Cost: the lines of trainings and of scores, once per set. A trainer with `shares_release` is
            charged once for all sets.
        """
        search, solved = self.search, None
        selector = search.plan.choice.selector
        trainer = search._make_trainer(selector.training_line)
        if trainer.shares_release:
            with self.open_line(selector.training_line) as records:
                source = search.keys.stream("candidate", "all")
                solved = trainer.fit_all_sets(records, self.means, source)
        numbers = iter(range(selector.rounds))

        def compare(sets: Array, trials: Sequence[str]) -> list[int]:
            search.progress.search(next(numbers), 0, 1)
            models = self.train_sets(sets, trials, trials) if solved is None else solved(sets)
            return self.score_models(models, trials, trials)

        return compare

    def train_sets(
        self, sets: Array, trials: Sequence[str], keys: Iterable[str]
    ) -> list[LinearModel]:
        search, line = self.search, self.search.plan.choice.selector.training_line
        keys = self._check_keys("candidate", trials, keys)
        streams = [search.keys.stream("candidate", trial) for trial in trials]
        trainer, at_hand = search._make_trainer(line), torch.get_num_threads()
        threads, parallel = (
            divide_threads(len(sets), at_hand)
            if trainer.trains_separately and len(sets)
            else (at_hand, 1)
        )
        with self.open_line(line, *keys) as records, use_threads(threads):
            # Worker processes cannot train on compact records.
            delegated = (
                trainer.trains_separately
                and not isinstance(records.x, CompactRows)
                and search.folder is not None
                and (search.device == "cpu" or search.executor.is_remote)
                and search.executor.accepts(len(sets), long=False)
            )
            if delegated:
                return self._train_in_workers(records, trainer, sets, streams, threads, parallel)
            on_step = search.progress.step
            return trainer.fit_many(records, self.means, sets, streams, on_step=on_step)

    def _train_in_workers(
        self, records: Records, trainer: Trainer, sets: Array, streams: Sequence[Stream],
        threads: int, parallel: int,
    ) -> list[LinearModel]:  # fmt: skip
        """Train a model on each set in worker processes, `parallel` of them at the same time."""
        search = self.search
        assert search.folder is not None
        device = "cuda" if search.executor.gpus else "cpu"
        with create_records_folder(search.folder.private) as folder:
            opened = SharedRecords.of(records, folder)
            fits = [
                SetTraining(trainer=replace(trainer, device=device), opened=opened,
                    view=View.of(self.means, mask), stream=stream, threads=threads)
                for mask, stream in zip(sets, streams, strict=True)
            ]  # fmt: skip
            works = [
                Work(key=f"set {place}", do=fit, reads=(opened,)) for place, fit in enumerate(fits)
            ]
            found = search.executor.run_in_order(works, threads, parallel)
            return [fit.parse_model(own) for fit, own in zip(fits, found, strict=True)]

    def score_models(
        self, models: Sequence[LinearModel], trials: Sequence[str], keys: Iterable[str]
    ) -> list[int]:
        noise = self.search.plan.score
        assert noise is not None, "the plan has no line for scores"
        with self.open_line(SCORES_LINE, *self._check_keys("score", trials, keys)) as records:
            metric, slots = self.search.plan.score_metric, len(records)
            counts = count_for_models(models, records, metric)
            streams = (self.search.keys.stream("score", trial) for trial in trials)
            return [
                Score.of(metric, own, noise, slots, stream).points
                for own, stream in zip(counts, streams, strict=True)
            ]

    def _check_keys(
        self, purpose: str, trials: Sequence[str], keys: Iterable[str]
    ) -> tuple[str, ...]:
        """Return the keys of the charges after two checks.

        Two releases must not use the same trial name, because it determines the noise. There must
        be one key per trial, except for repeat-and-select, which charges all trials together.
        """
        self.search._check_unused("noise", *((purpose, trial) for trial in trials))
        keys, selector = tuple(keys), self.search.plan.choice.selector
        if len(keys) != len(trials) and selector.selection_rule != "repeat-and-select":
            raise UsageError(
                f"Method {selector.name!r} charges {len(trials)} candidates {len(keys)} times. "
                f"Selection rule {selector.selection_rule!r} requires one charge per candidate: "
                "give each a different key."
            )
        return keys
