"""Running a plan: ask, train, score, tell, until the strategy is done; then the final model.

Every private read below stands inside `with ledger.charged(...)`. The engine keeps no state of
its own: a resumed run replays the strategy from the same keys and takes finished trials from the
journal, so that an interruption costs no release twice.

Source: docs/rules.md, rules 1, 8, 10, 11 and 12; docs/result.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from pasearch.errors import UsageError
from pasearch.search.fitness import WORST, correct, failed, mark_failed, train_candidate
from pasearch.search.strategy import Fitness, Round, Strategy

if TYPE_CHECKING:
    from pasearch.data.partitions import Dataset
    from pasearch.plan import Plan
    from pasearch.runs.folder import RunFolder
    from pasearch.runs.journal import Journal, TrialRecord
    from pasearch.runs.keys import Keys, Stream
    from pasearch.runs.ledger import Ledger
    from pasearch.spaces.space import Candidate
    from pasearch.training.recipe import Recipe


class Progress:
    """What the engine reports while it runs. The default is silent."""

    def search(self, number: int, finished: int, total: int) -> None:
        """Called before each trial of a round, with how many of its trials are finished."""

    def final(self) -> None:
        """Called before the final training, when there is one."""

    def step(self, finished: int, total: int) -> None:
        """Called after each step of a training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a finished search hands over.

    Args:
        candidate: The winner.
        network: Its trained network, on the CPU.
        test_correct: Noisy number of correct answers on the test slots.
        exact_accuracy: Share of correct answers without noise; declared-public data only.
        trials: Every trial, where the strategy allows it to be shown; otherwise empty.
        unique_trials: Number of different candidates trained, where it may be shown.
    """

    candidate: Candidate
    network: nn.Module
    test_correct: int
    exact_accuracy: float | None
    trials: tuple[TrialRecord, ...]
    unique_trials: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A plan and everything needed to run it.

    Args:
        plan: What may be done, with its noise solved.
        strategy: Who is tried.
        dataset: Partitioned as the plan says.
        ledger: Opened with the plan's lines.
        journal: The store of finished trials.
        keys: The run's secret randomness.
        folder: The run's folder; trial weights go to `private/`.
        device: "cpu" or "cuda".
        progress: What to report.
    """

    plan: Plan
    strategy: Strategy
    dataset: Dataset
    ledger: Ledger
    journal: Journal
    keys: Keys
    folder: RunFolder
    device: str
    progress: Progress

    def run(self) -> Outcome:
        """Search, train the final model if the plan has one, and measure it.

        Cost: the plan's lines, each charged before its partition is opened.
        """
        candidate, network = self._winner()
        if self.plan.aside:
            network = self._train_final(candidate)
        test_correct, exact = self._test(network)
        shown = () if self.strategy.hides_trials else tuple(self.journal.all())
        unique = None if self.strategy.hides_trials else len({repr(t.parameters) for t in shown})
        return Outcome(
            candidate=candidate,
            network=network.to("cpu").eval(),
            test_correct=test_correct,
            exact_accuracy=exact,
            trials=shown,
            unique_trials=unique,
        )

    def _winner(self) -> tuple[Candidate, nn.Module]:
        strategy, space = self.strategy, self.plan.space
        stream = self.keys.stream("strategy")
        state = strategy.init()
        while (asked := strategy.ask(state, space, stream)) is not None:
            before = sum(len(round.genotypes) for round in state.rounds)
            fitness = tuple(self._run_trials(asked, before))
            state = strategy.tell(state, asked, fitness)
        number, index = strategy.best(state)
        trial = sum(len(round.genotypes) for round in state.rounds[:number]) + index
        candidate = space.candidate(state.rounds[number].genotypes[index])
        return candidate, self._load(candidate, self._weights_of(trial))

    def _run_trials(self, asked: Round, before: int) -> Iterator[Fitness]:
        for index, genotype in enumerate(asked.genotypes):
            self.progress.search(asked.number, index, len(asked.genotypes))
            candidate = self.plan.space.candidate(genotype)
            record = self._trial(asked.number, before + index, candidate)
            score = WORST if record.value is None else float(record.value)
            yield score, int(record.attributes["tie_break"])

    def _trial(self, number: int, trial: int, candidate: Candidate) -> TrialRecord:
        """Return a finished trial: from the journal, from an equal trial, or by running it."""
        stream = self.keys.stream("trial", trial)
        mark = f"{stream.child('mark').seed64():016x}"
        if (done := self.journal.get(trial)) is not None:
            self._check_own(done, candidate, mark, number)
            return done
        tie_break = int(stream.child("tie-break").generator().integers(2**62))
        same = self._equal_trial(candidate) if self.strategy.memoised else None
        if same is not None:
            attributes = {**same.attributes, "tie_break": tie_break, "mark": mark}
            attributes["same_as"] = same.number
            return self.journal.add(trial, candidate.to_json(), same.value, attributes)
        suffix, key = self.strategy.charge(number, trial)
        recipe = self.plan.trial_recipe(candidate)
        line = f"training{suffix}"
        network = self._train(candidate, recipe, stream, line, self.plan.trial_partition, key)
        weights = self.folder.private / "trials" / f"{trial}.pt"
        self._save(network, weights)
        score = self._score(network, f"score{suffix}", key, stream)
        attributes = {"tie_break": tie_break, "mark": mark, "weights": weights.name}
        return self.journal.add(trial, candidate.to_json(), score, attributes)

    def _check_own(self, done: TrialRecord, candidate: Candidate, mark: str, number: int) -> None:
        """Refuse a stored trial that these keys did not make, or that this ledger does not hold.

        Under other keys the slots were split otherwise: a record that an old trial was trained on
        could then be among those it is scored with.
        """
        suffix, key = self.strategy.charge(number, done.number)
        paid = "same_as" in done.attributes or self.ledger.holds(f"training{suffix}", key)
        ours = done.attributes.get("mark") == mark and done.parameters == candidate.to_json()
        if not (paid and ours):
            raise UsageError(
                f"{self.folder.private} holds trials of other keys or without a charge: it was "
                "altered, so nothing more can be released from it. Start a new run."
            )

    def _train(
        self,
        candidate: Candidate,
        recipe: Recipe,
        stream: Stream,
        line: str,
        partition: str,
        key: str,
    ) -> nn.Module:
        """Charge and train; without the memory for it, the network is a failed one."""
        schema = self.plan.schema
        with self.ledger.charged(line, self.dataset[partition], key=key) as records:
            try:
                return train_candidate(
                    candidate, records, schema, recipe, stream, device=self.device,
                    on_step=lambda finished: self.progress.step(finished, recipe.steps),
                )  # fmt: skip
            except (MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
                network = candidate.architecture.build(
                    schema.shape, schema.classes, stream.child("weights").generator()
                )
                return mark_failed(network)

    def _equal_trial(self, candidate: Candidate) -> TrialRecord | None:
        wanted = candidate.to_json()
        return next((t for t in self.journal.all() if t.parameters == wanted), None)

    def _score(self, network: nn.Module, line: str, key: str, stream: Stream) -> int | None:
        noise = self.plan.score
        if noise is None:
            return 0
        with self.ledger.charged(line, self.dataset["validation"], key=key) as records:
            if failed(network):
                return None
            hits = correct(network, records, device=self.device)
            return noise.release(hits, stream.child("score"))

    def _train_final(self, candidate: Candidate) -> nn.Module:
        weights = self.folder.private / "trials" / "final.pt"
        if weights.exists():
            return self._load(candidate, weights)
        recipe = self.plan.final_recipe(candidate)
        self.progress.final()
        stream = self.keys.stream("final")
        network = self._train(candidate, recipe, stream, "final training", "train", "final")
        self._save(network, weights)
        return network

    def _test(self, network: nn.Module) -> tuple[int, float | None]:
        with self.ledger.charged("test accuracy", self.dataset["test"], key="test") as records:
            hits = 0 if failed(network) else correct(network, records, device=self.device)
            exact = hits / len(records) if records.public is True else None
            return self.plan.test.release(hits, self.keys.stream("test")), exact

    def _weights_of(self, trial: int) -> Path:
        record = self.journal.get(trial)
        assert record is not None
        return self.folder.private / "trials" / str(record.attributes["weights"])

    def _save(self, network: nn.Module, path: Path) -> None:
        """Write weights so that a crash leaves either all of them or none."""
        import io

        buffer = io.BytesIO()
        torch.save({k: v.cpu() for k, v in network.state_dict().items()}, buffer)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self.folder.atomic_write(path, buffer.getvalue())

    def _load(self, candidate: Candidate, path: Path) -> nn.Module:
        schema = self.plan.schema
        network = candidate.architecture.build(schema.shape, schema.classes)
        network.load_state_dict(torch.load(path, weights_only=True))
        return network


def _is_out_of_memory(error: Exception) -> bool:
    """On a CPU torch raises a plain RuntimeError when memory cannot be had."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate" in str(error)
