"""Search engine: it trains and scores the rounds of a strategy, then trains the final model.

Every private read is inside `with ledger.charged(...)`. A resumed run starts the strategy again
with the same keys, and reads finished trials from the journal, so that no release is made twice.

Source: docs/rules.md, rules 1, 8, 10, 11 and 12; docs/result.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pasearch.accounting.events import Event, Geometric, PureDP
from pasearch.data.front_ends import FittedFrontEnd, FrontEnd, prepare_front_end
from pasearch.data.shared_records import SharedRecords, create_records_folder
from pasearch.data.threads import divide_threads, use_threads
from pasearch.engine import Engine
from pasearch.errors import UsageError
from pasearch.files import read_json
from pasearch.planning import TEST_LINE
from pasearch.runs.folder import RunFolder
from pasearch.runs.keys import Stream
from pasearch.runs.mechanisms import ExponentialMechanism, NoisyCounts
from pasearch.search import variants
from pasearch.search.candidate_training import (
    FAILED_SCORE,
    MIN_SECONDS_FOR_PROCESSES,
    TrainingHistory,
    TrainingJob,
    compute_metric_counts,
    compute_score_count,
    has_failed,
    train_candidate,
    train_in_parallel,
    train_interleaved,
    train_or_mark_failed,
    training_streams,
)
from pasearch.search.plan import VALIDATION_QUERY_LINE, Plan
from pasearch.search.strategy import PORTIONS_RULE, Fitness, RoundShape, Strategy, TrialRound
from pasearch.search.variants import VARIANT_LINE
from pasearch.search.weights import (
    Trajectory,
    front_end_path,
    load_weights,
    read_weights,
    save_weights,
    set_threshold,
    write_weights,
)
from pasearch.spaces.candidate import Candidate
from pasearch.training.losses import compute_mean_loss, points_to_mean_loss, sum_loss_points
from pasearch.training.metrics import METRICS, Metric, Score, find_default_metric
from pasearch.training.recipe import Recipe
from pasearch.training.screening import ValidationQuery

if TYPE_CHECKING:
    from pasearch.runs.journal import Journal, TrialRecord


ENGINE_LINES = (
    "final training", TEST_LINE, "schema", "front end", VALIDATION_QUERY_LINE, VARIANT_LINE,
)  # fmt: skip
"""Beginnings of the names of lines to which a strategy may not charge its trials."""

NetworkOfTrial = Callable[[int], tuple[nn.Module, TrainingHistory] | None]
"""Function from a trial's index to its trained network, or None; trials must come in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """Output of a finished search.

    Args:
        candidate: Winning candidate.
        network: Trained network of the winner, on the CPU.
        front: Fitted feature extractor of the winner.
        test: Noisy score of the test records.
        exact_points: Exact score count of the test records; declared-public data only.
        trials: All trials, if they may be shown; otherwise empty.
        curve: Pairs (steps, accuracy) during the training of the released network; declared-public
            data only.
        steps_made: Number of steps of that training.
        variant: Name of the released variant, if one was selected.
    """

    candidate: Candidate
    network: nn.Module
    front: FittedFrontEnd
    test: Score
    exact_points: int | None
    trials: tuple[TrialRecord, ...]
    curve: tuple[tuple[int, float], ...] = ()
    steps_made: int = 0
    variant: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEngine(Engine):
    """Engine of an architecture search, or of the training of one network.

    Args:
        plan: Plan of the search.
        folder: Folder of the run; weights of trials are written to `private/`.
        strategy: Search strategy.
        journal: Store of finished trials.
    """

    plan: Plan
    folder: RunFolder
    strategy: Strategy
    journal: Journal
    _charged_for: dict[tuple[str, str], int] = field(default_factory=dict, init=False, repr=False)

    def run(self) -> SearchOutcome:
        """Search, train the final model if the plan has one, and measure it.

        Cost: the plan's lines, each charged before its partition is opened.
        """
        for front_end in self.plan.front_ends:
            # Stored before anything is charged, so that a resumed run uses the same features.
            for each in (front_end, front_end.first_stage):
                if each is not None and each.learned:
                    self._fit_front_end(each)
        candidate, network, history = self._search_winner()
        if self.plan.retrained:
            network, history = self._train_final(candidate)
        variant = None if self.plan.pick is None else self._pick_variant(candidate, network)
        test, exact = self._release_test_score(candidate, network)
        shown = () if self.strategy.hides_trials else tuple(self.journal.all())
        return SearchOutcome(
            candidate=candidate, network=network.to("cpu").eval(),
            front=self._fit_front_end(candidate.front_end), test=test, exact_points=exact,
            trials=shown, curve=tuple(history.curve), steps_made=history.steps, variant=variant,
        )  # fmt: skip

    def _pick_variant(self, candidate: Candidate, network: nn.Module) -> str:
        """Select a variant privately, load its weights into the network, and return its name."""
        metric, noise, stream = (
            self.plan.score_metric,
            self.plan.pick,
            self.keys.stream(VARIANT_LINE),
        )
        names = variants.list_variant_names(metric, self.plan.schema.outputs)
        opened = self.dataset["validation"].with_front_end(self._fit_front_end(candidate.front_end))
        every = read_weights(self._variants_path)
        with self.ledger.charged(VARIANT_LINE, opened, key="pick") as records:
            if isinstance(noise, NoisyCounts):
                found = [0] * METRICS["auc"].count_entries(2)
                if not has_failed(network):
                    found = compute_metric_counts(
                        network, records, METRICS["auc"], device=self.device
                    )
                place = variants.choose_threshold(noise.release(found, stream))
                network.load_state_dict(set_threshold(every[0], place))
                return names[place]
            assert isinstance(noise, ExponentialMechanism)
            reached = []
            for weights in every:
                network.load_state_dict(weights)
                own = 0 if has_failed(network) else compute_metric_counts(
                    network, records, metric, device=self.device
                )[0]  # fmt: skip
                reached.append(own)
            place = noise.pick(reached, stream)
        network.load_state_dict(every[place])
        return names[place]

    @property
    def _variants_path(self) -> Path:
        """File with the weights of the variants of the released network."""
        return self.folder.private / "trials" / "variants.pt"

    def _search_winner(self) -> tuple[Candidate, nn.Module, TrainingHistory]:
        """Run all rounds of the strategy; return the winner with its network and history."""
        strategy, space = self.strategy, self.plan.space
        stream = self.keys.stream("strategy")
        state = strategy.init()
        while (asked := strategy.ask(state, space, stream)) is not None:
            self._check_round(asked)
            before = sum(len(round.genotypes) for round in state.rounds)
            candidates = [space.candidate(genotype) for genotype in asked.genotypes]
            order = self.plan.sort_longest_first(candidates, asked.shape)
            trials = {before + index: candidates[index] for index in order}
            found: dict[int, Fitness] = {}
            with self._train_round(asked, trials) as trained:
                for trial, candidate in trials.items():
                    self.progress.search(asked.number, len(found), len(trials))
                    record = self._run_trial(asked, trial, candidate, trained)
                    score = FAILED_SCORE if record.value is None else float(record.value)
                    found[trial] = score, int(record.attributes["tie_break"])
            fitness = tuple(found[trial] for trial in sorted(found))
            state = strategy.tell(state, asked, fitness)
        number, index = strategy.best(state)
        if isinstance(self.plan.score, ExponentialMechanism):
            right = [
                max(0, round(score)) if score > FAILED_SCORE else 0 for score, _ in state.fitness[0]
            ]
            index = self.plan.score.pick(right, self.keys.stream("pick"))
        trial = sum(len(round.genotypes) for round in state.rounds[:number]) + index
        candidate = space.candidate(state.rounds[number].genotypes[index])
        record = self.journal.get(trial)
        assert record is not None
        network = self._load_network(
            candidate, self.folder.private / "trials" / str(record.attributes["weights"])
        )
        return candidate, network, TrainingHistory(**record.attributes["course"])

    def _check_round(self, asked: TrialRound) -> None:
        """Refuse a round that the plan does not account for.

        Its shape must be planned, and a strategy with disjoint subsets has a single round.
        """
        shapes = set[RoundShape]()

        def price(shape: RoundShape) -> Event:
            shapes.add(shape)
            return Geometric(epsilon=1.0)

        self.strategy.list_releases(price, self.plan.trial_partition, "training")
        unpriced = self.strategy.private_trials and asked.shape not in shapes
        if unpriced or (asked.number and self.plan.split.portions > 1):
            raise UsageError(
                f"Strategy {self.strategy.name!r} asks for a round of {asked.shape} that its lines "
                "do not account for: nothing was trained for it."
            )

    @contextmanager
    def _train_round(
        self, asked: TrialRound, trials: dict[int, Candidate]
    ) -> Iterator[NetworkOfTrial]:
        """Train the networks of a round in parallel, and yield a function that returns them.

        The function returns None for trials that must be trained one at a time.
        """
        turns = self._interleaves_trainings()
        each, room = divide_threads(len(trials), torch.get_num_threads())
        long = len(trials) * self.plan.seconds_per_training()[0] >= MIN_SECONDS_FOR_PROCESSES
        with use_threads(each) if self.device == "cpu" and not turns else nullcontext():
            if not (turns or self.executor.accepts(len(trials), long=long)):
                yield lambda trial: None
                return
            with create_records_folder(self.folder.private) as folder, ExitStack() as charges:
                jobs = dict(self._charge_jobs(asked, trials, charges, folder))
                every = [*jobs.values()]
                found = train_interleaved(every, self.device) if turns else (
                    train_in_parallel(every, each, room, self.executor)
                )  # fmt: skip
                with closing(found):
                    yield lambda trial: next(found) if trial in jobs else None

    def _interleaves_trainings(self) -> bool:
        """Check whether the trainings of a round run interleaved on a GPU of this machine."""
        return self.device != "cpu" and not self.executor.is_remote

    def _charge_jobs(
        self, asked: TrialRound, trials: dict[int, Candidate], charges: ExitStack, folder: Path
    ) -> Iterator[tuple[int, TrainingJob]]:
        """Charge the trainings of a round that a worker can run; yield pairs (trial, job).

        All are charged before the first one starts. Finished trials, repeats of an equal trial, and
        trainings that must run in this process are omitted.
        """
        steps, known = asked.shape.steps, set[str]()
        for trial, candidate in trials.items():
            recipe, name = self.plan.trial_recipe(candidate, asked.shape), repr(candidate.to_json())
            same = self.strategy.memoised and (
                name in known or self._find_equal_trial(candidate, steps) is not None
            )
            if same or self.journal.get(trial) is not None:
                continue
            line, key = self._check_charge("training", asked, trial)
            if self._needs_coordinator(recipe, key):
                continue
            known.add(name)
            partition = self.strategy.partition_of_trial(self.plan.trial_partition, trial)
            stream = self.keys.stream("trial", trial)
            yield (
                trial,
                self._charge_job(
                    candidate, recipe, stream, line, partition, key, charges=charges, folder=folder
                ),
            )

    def _needs_coordinator(self, recipe: Recipe, key: str) -> bool:
        """Check whether a training must run in this process, which has the ledger."""
        return (
            recipe.screening is not None
            or recipe.schedule.is_validation_driven
            or self._has_variants(key)
        )

    def _has_variants(self, key: str) -> bool:
        """Check whether a variant of the network of this training is selected."""
        return self.plan.pick is not None and (key == "final") == self.plan.retrained

    def _charge_job(
        self, candidate: Candidate, recipe: Recipe, stream: Stream, line: str, partition: str,
        key: str, *, charges: ExitStack, folder: Path,
    ) -> TrainingJob:  # fmt: skip
        """Charge a training, and return it as a job with its opened records."""
        front = self._fit_front_end(candidate.front_end)
        opened = self.dataset[partition].with_front_end(front).with_files(folder)
        records = charges.enter_context(self.ledger.charged(line, opened, key=key))
        seen = None
        if self.plan.public:
            shown = self.dataset["test"].with_front_end(front).with_files(folder)
            seen = SharedRecords(shown.public_records(), public=True)
        return TrainingJob(
            candidate=candidate, schema=self.plan.schema, recipe=recipe,
            streams=training_streams(stream),
            records=SharedRecords(records, public=self.plan.public), seen=seen,
            device=self.executor.device or self.device,
        )  # fmt: skip

    def _run_trial(
        self, asked: TrialRound, trial: int, candidate: Candidate, trained: NetworkOfTrial
    ) -> TrialRecord:
        """Return a finished trial from the journal, from an equal trial, or by running it."""
        steps, stream = asked.shape.steps, self.keys.stream("trial", trial)
        mark = f"{stream.child('mark').seed64():016x}"
        if (done := self.journal.get(trial)) is not None:
            self._check_stored_trial(done, candidate, mark, asked)
            return done
        tie_break = int(stream.child("tie-break").generator().integers(2**62))
        same = self._find_equal_trial(candidate, steps) if self.strategy.memoised else None
        if same is not None:
            attributes = {**same.attributes, "tie_break": tie_break, "mark": mark}
            attributes["same_as"] = same.number
            return self.journal.add(trial, candidate.to_json(), same.value, attributes)
        line, key = self._check_charge("training", asked, trial)
        recipe = self.plan.trial_recipe(candidate, asked.shape)
        partition = self.strategy.partition_of_trial(self.plan.trial_partition, trial)
        network, history = trained(trial) or self._train(
            candidate, recipe, stream, line, partition, key
        )
        weights = self.folder.private / "trials" / f"{trial}.pt"
        save_weights(network, weights, self.folder)
        score: int | None = 0
        if self.strategy.scored:
            line, key = self._check_charge("score", asked, trial)
            score = self._release_score(candidate, network, line, key, stream)
        attributes = {"tie_break": tie_break, "mark": mark, "weights": weights.name}
        attributes |= {"course": history.to_json(), "steps": steps}
        return self.journal.add(trial, candidate.to_json(), score, attributes)

    def _check_charge(self, noun: str, asked: TrialRound, trial: int) -> tuple[str, str]:
        """Return the line and the key to which the strategy charges a trial, after checks.

        One charge for several trials is refused, unless the selection rule allows it. The line must
        be planned for the partition, with the event of the round's shape.
        """
        line, key = self.strategy.charge(noun, asked.number, trial)
        rule, place = self.strategy.selection_rule, self.strategy.scored_on
        partition = place if noun == "score" else self.plan.trial_partition
        marks: dict[RoundShape, Geometric] = {}

        def price(shape: RoundShape) -> Event:
            return marks.setdefault(shape, Geometric(epsilon=math.pi + len(marks)))

        planned = self.strategy.list_releases(price, partition, noun)
        if noun == "training":
            place = self.strategy.partition_of_trial(partition, trial)
        events = [each.event for each in planned if (each.name, each.partition) == (line, place)]
        mark = marks.get(asked.shape)
        if self.strategy.private_trials:
            wanted: list[Event] = [mark] if noun == "training" and mark is not None else []
            if noun == "score":  # a private selection of the scores costs their epsilon
                wanted = [e for m in marks.values() for e in (m, PureDP(m.epsilon))]
            events = [each for each in events if any(_contains_event(own, each) for own in wanted)]
        if not events or line.startswith(ENGINE_LINES):
            raise UsageError(
                f"Strategy {self.strategy.name!r} charges the {noun} of trial {trial} on {place!r} "
                f"to {line!r}, which is not one of its lines there for {asked.shape}: nothing was "
                "read."
            )
        paid_together = rule == "repeat-and-select" or (rule == PORTIONS_RULE and noun == "score")
        other = self._charged_for.setdefault((line, key), trial)
        if other != trial and not paid_together:
            raise UsageError(
                f"Strategy {self.strategy.name!r} charges trials {other} and {trial} once, to "
                f"{line!r} as {key!r}, but its selection rule {rule!r} accounts for one of them: "
                "use a separate key for each trial."
            )
        return line, key

    def _check_stored_trial(
        self, done: TrialRecord, candidate: Candidate, mark: str, asked: TrialRound
    ) -> None:
        """Refuse a stored trial that was made with other keys, or is not charged in the ledger.

        Other keys split the records differently, so a network could be scored on its training
        records.
        """
        line, key = self._check_charge("training", asked, done.number)
        if self.strategy.scored:
            self._check_charge("score", asked, done.number)
        paid = "same_as" in done.attributes or self.ledger.is_charged(line, key)
        ours = done.attributes.get("mark") == mark and done.parameters == candidate.to_json()
        if not (paid and ours):
            raise UsageError(
                f"{self.folder.private} contains trials of other keys or without a charge: it was "
                "altered, so nothing more can be released from it. Start a new run."
            )

    def _train(
        self, candidate: Candidate, recipe: Recipe, stream: Stream, line: str, partition: str,
        key: str,
    ) -> tuple[nn.Module, TrainingHistory]:  # fmt: skip
        """Charge and run a training; if memory does not suffice, mark its network as failed."""
        schema = self.plan.schema
        if self.executor.accepts(1, long=False) and not self._needs_coordinator(recipe, key):
            with create_records_folder(self.folder.private) as folder, ExitStack() as charges:
                job = self._charge_job(
                    candidate, recipe, stream, line, partition, key, charges=charges, folder=folder
                )
                (found,) = train_in_parallel([job], torch.get_num_threads(), 1, self.executor)
            return found
        front = self._fit_front_end(candidate.front_end)
        opened = self.dataset[partition].with_front_end(front)
        history, kept = TrainingHistory(), Trajectory(recipe.steps, recipe.temperature)
        seen = (
            self.dataset["test"].with_front_end(front).public_records()
            if self.plan.public
            else None
        )
        record_step, needs_network = history.make_step_callback(recipe.steps, seen, self.device)

        def call_back(finished: int, network: nn.Module) -> None:
            if self._has_variants(key):
                kept.record(finished, network)
            self.progress.step(finished, recipe.steps)
            record_step(finished, network)

        query = self._make_validation_query(recipe, front, stream, key)
        streams = training_streams(stream)
        with self.ledger.charged(line, opened, key=key) as records:

            def train() -> nn.Module:
                return train_candidate(
                    candidate, records, schema, recipe, streams, device=self.device,
                    on_step=call_back,
                    looks=None if self._has_variants(key) else needs_network,
                    query=query,
                )  # fmt: skip

            network = train_or_mark_failed(train, candidate, schema, streams)
        if self._has_variants(key):
            every = kept.make_variants(network, schema.outputs)
            write_weights(every, self._variants_path, self.folder)
        return network, history

    def _make_validation_query(
        self, recipe: Recipe, front: FittedFrontEnd, stream: Stream, training: str
    ) -> ValidationQuery | None:
        """Make the function of a training's validation queries; None if the recipe makes none.

        A query returns a mean loss for screening, or an accuracy in [0, 1] for a schedule. It is
        exact on public records. On private records it is noisy, and each query of each training is
        charged with a separate key.
        """
        screening = recipe.screening is not None
        if not screening and not recipe.schedule.is_validation_driven:
            return None
        if self.public is not None:
            seen = self.public.all_records(front)

            def query_public_records(network: nn.Module, asked: int) -> float:
                if screening:
                    return compute_mean_loss(network, seen, device=self.device)
                return compute_score_count(
                    network, seen, device=self.device
                ) / self._max_score_count(len(seen))

            return query_public_records
        noise = self.plan.validation_noise
        opened = self.dataset["validation"].with_front_end(front)
        assert noise is not None, "the plan has no noise for validation queries"
        measure = sum_loss_points if screening else compute_score_count

        def query_private_records(network: nn.Module, asked: int) -> float:
            key = f"query {asked}" if training == "only" else f"query {asked} of {training}"
            with self.ledger.charged(VALIDATION_QUERY_LINE, opened, key=key) as records:
                found = measure(network, records, device=self.device)
                # The stream keeps its name, so that a seed gives the same noise in all versions.
                noisy = noise.release(found, stream.child("look", asked))
            if screening:
                return points_to_mean_loss(noisy, records.y)
            return noisy / self._max_score_count(self.plan.split.validation)

        return query_private_records

    def _max_score_count(self, slots: int) -> int:
        """Return the maximum score count on `slots` records by the default metric."""
        return slots * find_default_metric(self.plan.schema.regression).max_points

    def _fit_front_end(self, front_end: FrontEnd) -> FittedFrontEnd:
        """Return a fitted feature extractor; the fit is charged once for all candidates."""
        shape, path = self.plan.schema.shape, front_end_path(self.folder, front_end)
        if path.exists():
            module = front_end.module(shape)
            load_weights(module, path)
            return FittedFrontEnd(front_end, module, self.device)
        if not front_end.fitted:
            found = prepare_front_end(front_end, shape, self.device)
            if front_end.learned:
                save_weights(found.module, path, self.folder)
            return found
        before = (
            None if front_end.first_stage is None else self._fit_front_end(front_end.first_stage)
        )
        line, noise = f"front end {front_end.text}", dict(self.plan.front_noise)[front_end.text]
        stream = self.keys.stream("front end", front_end.text)
        opened = self.dataset[self.plan.trial_partition].with_front_end(before)
        with self.ledger.charged(line, opened, key="fit") as records:
            form = self.plan.schema.row_layout
            fitted = front_end.fit(records.x, records.valid, noise, stream, form).compose_after(
                before
            )
        save_weights(fitted.module, path, self.folder)
        return FittedFrontEnd(front_end, fitted.module, self.device)

    def _find_equal_trial(self, candidate: Candidate, steps: float) -> TrialRecord | None:
        """Return the finished trial of an equal candidate with equal steps; None without one."""
        wanted = candidate.to_json(), steps
        trials = ((t, (t.parameters, t.attributes["steps"])) for t in self.journal.all())
        return next((trial for trial, own in trials if own == wanted), None)

    def _release_score(
        self, candidate: Candidate, network: nn.Module, line: str, key: str, stream: Stream
    ) -> int | None:
        """Charge and release the score count of a trial; None if its training failed."""
        noise = self.plan.score
        if noise is None:
            return 0
        place = self.strategy.scored_on
        opened = self.dataset[place].with_front_end(self._fit_front_end(candidate.front_end))
        with self.ledger.charged(line, opened, key=key) as records:
            if has_failed(network):
                return None
            metric = self.plan.ranking_metric
            found = compute_metric_counts(network, records, metric, device=self.device)
            if isinstance(noise, ExponentialMechanism):
                return found[0]  # stays in `private/`: only the selected index is released
            return Score.of(metric, found, noise, len(records), stream.child("score")).points

    def _train_final(self, candidate: Candidate) -> tuple[nn.Module, TrainingHistory]:
        """Train the winner with the final recipe, or read the result of this training."""
        weights = self.folder.private / "trials" / "final.pt"
        kept = weights.with_suffix(".json")
        if not weights.exists():
            recipe = self.plan.final_recipe(candidate)
            self.progress.final()
            stream = self.keys.stream("final")
            network, history = self._train(
                candidate, recipe, stream, "final training", "train", "final"
            )
            weights.parent.mkdir(mode=0o700, exist_ok=True)
            self.folder.atomic_write(kept, json.dumps(history.to_json()))
            save_weights(network, weights, self.folder)
        # Read from the files, as a resumed run does, so that no tensors share memory.
        values = read_json(kept, "the history of a training", follow=False)
        try:
            history = TrainingHistory(**values)
        except TypeError:
            raise UsageError(f"{kept} is damaged: start a new run.") from None
        return self._load_network(candidate, weights), history

    def _release_test_score(
        self, candidate: Candidate, network: nn.Module
    ) -> tuple[Score, int | None]:
        """Charge and release the test score; return it with the exact count on public data."""
        opened = self.dataset["test"].with_front_end(self._fit_front_end(candidate.front_end))

        def compute_counts(records: Any, metric: Metric) -> list[int]:
            if has_failed(network):
                return [0] * metric.count_entries(self.plan.schema.outputs)
            return compute_metric_counts(network, records, metric, device=self.device)

        return self.release_test(self.ledger.charged(TEST_LINE, opened, key="test"), compute_counts)

    def _load_network(self, candidate: Candidate, path: Path) -> nn.Module:
        """Build the network of a candidate, and load its weights."""
        schema = self.plan.schema
        network = candidate.build(schema.shape, schema.outputs)
        load_weights(network, path)
        return network


def _contains_event(part: Event, event: Event) -> bool:
    """Check whether an event is, or contains at any depth, the event `part`."""
    inside = (getattr(event, each.name) for each in fields(event))  # type: ignore[arg-type]
    every = (each for held in inside for each in (held if isinstance(held, tuple) else (held,)))
    return part == event or any(isinstance(e, Event) and _contains_event(part, e) for e in every)
