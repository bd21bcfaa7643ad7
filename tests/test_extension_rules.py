"""What an extension cannot do: each door that the price depends on is checked by who opens it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from pasearch import Budget
from pasearch.api import search as api
from pasearch.api.features import select_features
from pasearch.api.resume import resume
from pasearch.data.array_file import from_arrays
from pasearch.data.source import SOURCES, Source
from pasearch.data.sources import load_dataset
from pasearch.errors import InterruptedRunError, UsageError
from pasearch.features.selector import SELECTORS
from pasearch.features.top_features import TopSelector
from pasearch.features.wrappers import RandomSubsetsSelector
from pasearch.planning import check_selection_rule
from pasearch.registry import Registry
from pasearch.runs.journal import Journal
from pasearch.runs.ledger import PlannedRelease
from pasearch.search.portions import DisjointPortions
from pasearch.search.randomized import RandomizedSearch
from pasearch.search.strategy import (
    FULL_ROUND,
    STRATEGIES,
    EventOfRound,
    FixedStrategy,
    RoundShape,
    TrialRound,
)
from pasearch.training.clipping import CLIPPING_METHODS, FlatClipping

GIVEN: dict[str, Any] = {
    "budget": Budget(4.0, 1e-4), "bounds": (0.0, 1.0), "classes": 2, "steps": 4, "batch": 20,
    "space": "fcn", "device": "cpu",
}  # fmt: skip


def arrays() -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).random((200, 3)), np.arange(200) % 2


@contextmanager
def registered(registry: Registry[Any], kind: type) -> Iterator[None]:
    before = registry.kinds()
    registry.register(kind)
    try:
        yield
    finally:
        registry._kinds = before


@pytest.mark.contract
def test_exact_points_of_portions_go_with_no_other_rule():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Loud(DisjointPortions):
        name: ClassVar[str] = "loud"
        selection_rule: ClassVar[str] = "composition"

    with (
        registered(STRATEGIES, Loud),
        pytest.raises(UsageError, match="several portions are for 'disjoint portions'"),
    ):
        api.prepare(arrays(), strategy="loud", **GIVEN)


@pytest.mark.contract
def test_a_round_is_trained_only_in_a_shape_that_was_priced(tmp_path: Path):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Cheap(FixedStrategy):
        name: ClassVar[str] = "cheap"

        def list_releases(
            self, price: EventOfRound, partition: str, noun: str
        ) -> list[PlannedRelease]:
            event = price(RoundShape(steps=0.5))
            return [PlannedRelease(name=noun, partition=partition, event=event, count=1)]

    with registered(STRATEGIES, Cheap):
        made = api.prepare(arrays(), strategy="cheap", **GIVEN)
        with pytest.raises(UsageError, match="do not account for"):
            api.run(made, out=tmp_path / "x")
    assert not (tmp_path / "x").exists(), "nothing was charged, so nothing is left"


@pytest.mark.contract
def test_validation_queries_of_one_training_pay_for_no_other():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Pair(FixedStrategy):
        name: ClassVar[str] = "pair"

        @property
        def expected_trainings(self) -> float:
            return 2.0

    with (
        registered(STRATEGIES, Pair),
        pytest.raises(UsageError, match="the queries of each candidate would be charged"),
    ):
        api.prepare(arrays(), strategy="pair", recipe="sa-dpsgd", **GIVEN)


@pytest.mark.contract
def test_rules_that_contradict_each_other():
    class Remembering:
        selection_rule, memoised = "repeat-and-select", True

    class Open:
        selection_rule, private_trials = "not private", True

    for kind, word in ((Remembering, "memoised"), (Open, "private_trials")):
        with pytest.raises(UsageError, match=word):
            check_selection_rule(kind)
    check_selection_rule(RandomizedSearch)


@pytest.mark.contract
def test_only_the_user_declares_records_public():
    class Loose(Source):
        name, kind, expected = "loose", "a loose", "loose:"
        is_path: ClassVar[bool] = False

        def takes(self, data: str) -> bool:
            return data == "loose:"

        def load(self, data: str, declared: Any) -> Any:
            return from_arrays(*arrays(), bounds=(0.0, 1.0), classes=2, public=True)

    with registered(SOURCES, Loose):
        assert load_dataset("loose:").public is False
        assert load_dataset("loose:", public=True).public is True


@pytest.mark.contract
def test_one_charge_pays_for_one_training(tmp_path: Path):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Twice(FixedStrategy):
        name: ClassVar[str] = "twice"
        selection_rule: ClassVar[str] = "composition"

        def ask(self, state: Any, space: Any, stream: Any) -> TrialRound | None:
            return (
                None
                if state.rounds
                else TrialRound(number=0, genotypes=(space.default_genotype(),) * 2)
            )

    with registered(STRATEGIES, Twice):
        made = api.prepare(arrays(), strategy="twice", **GIVEN)
        with pytest.raises(UsageError, match="charges trials 0 and 1 once"):
            api.run(made, out=tmp_path / "x")


def choose_by(kind: type, folder: Path) -> None:
    with registered(SELECTORS, kind):
        columns = np.random.default_rng(0).random((200, 3))
        select_features(
            (columns, np.arange(200) % 2), method=kind.name, budget=Budget(4.0, 1e-4), classes=2,
            bounds=(0.0, 1.0), out=folder, device="cpu", seed=5,
        )  # fmt: skip


@pytest.mark.contract
def test_one_charge_pays_for_one_set_of_features(tmp_path: Path):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class OnceForAll(RandomSubsetsSelector):
        name: ClassVar[str] = "once-for-all"
        selection_rule: ClassVar[str] = "composition"

    with pytest.raises(UsageError, match=r"charges \d+ candidates 1 times"):
        choose_by(OnceForAll, tmp_path / "x")


@pytest.mark.contract
def test_what_a_charge_opened_is_not_opened_again_for_it(tmp_path: Path):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Again(TopSelector):
        name: ClassVar[str] = "again"

        def choose(self, reads: Any, stream: Any) -> Any:
            TopSelector.choose(self, reads, stream)
            return TopSelector.choose(self, reads, stream)

    with pytest.raises(UsageError, match="charge 'once' of 'class shares' was used before"):
        choose_by(Again, tmp_path / "x")


@pytest.mark.contract
@pytest.mark.parametrize("line", ["feature means", "final training", "test accuracy"])
def test_a_choice_reads_under_lines_of_its_own(line: str, tmp_path: Path):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Peeking(TopSelector):
        name: ClassVar[str] = "peeking"

        def choose(self, reads: Any, stream: Any) -> Any:
            with reads.open_line(line) as records:
                pytest.fail(f"{len(records)} records were read for nothing")

    with pytest.raises(UsageError, match="did not declare"):
        choose_by(Peeking, tmp_path / "x")


@pytest.mark.contract
def test_another_set_of_reads_has_no_charges_of_its_own(tmp_path: Path):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Twofold(TopSelector):
        name: ClassVar[str] = "twofold"

        def choose(self, reads: Any, stream: Any) -> Any:
            TopSelector.choose(self, reads, stream)
            return TopSelector.choose(
                self, reads.search.open_access(reads.means), stream.child("again")
            )

    with pytest.raises(UsageError, match="was used before"):
        choose_by(Twofold, tmp_path / "x")


@pytest.mark.contract
def test_two_releases_share_no_name(tmp_path: Path):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Namesakes(RandomSubsetsSelector):
        name: ClassVar[str] = "namesakes"

        def choose(self, reads: Any, stream: Any) -> Any:
            sets = np.ones((2, len(reads.means)), bool)
            return reads.train_sets(sets, ["a", "a"], ["search"])

    with pytest.raises(UsageError, match="noise 'a' of 'candidate' was used before"):
        choose_by(Namesakes, tmp_path / "x")


def two_trials(name: str, line: str, place: str | None) -> type:
    """A search of two trials that charges the second to another line or partition."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Two(FixedStrategy):
        selection_rule: ClassVar[str] = "composition"

        def list_releases(
            self, price: EventOfRound, partition: str, noun: str
        ) -> list[PlannedRelease]:
            return [
                PlannedRelease(name=noun, partition=partition, event=price(FULL_ROUND), count=2)
            ]

        def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
            return (line, "test") if trial else (noun, f"trial {trial}")

        def partition_of_trial(self, partition: str, trial: int) -> str:
            return place if place and trial else partition

        def ask(self, state: Any, space: Any, stream: Any) -> TrialRound | None:
            return (
                None
                if state.rounds
                else TrialRound(number=0, genotypes=(space.default_genotype(),) * 2)
            )

    Two.name = name
    return Two


@pytest.mark.contract
@pytest.mark.parametrize(
    ("line", "place"),
    [("test accuracy", "test"), ("training", "test"), ("final training", None), ("else", None)],
)
def test_a_trial_is_charged_to_the_strategy_s_own_lines(
    line: str, place: str | None, tmp_path: Path
):
    kind = two_trials("two", line, place)
    with registered(STRATEGIES, kind):
        made = api.prepare(arrays(), strategy="two", **GIVEN)
        with pytest.raises(UsageError, match="not one of its lines there for"):
            api.run(made, out=tmp_path / "x")


@pytest.mark.contract
def test_one_score_pays_for_one_score_after_a_resume_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class OneScore(two_trials("one-score", "training", None)):  # type: ignore[misc]
        scored: ClassVar[bool] = True

        def list_releases(
            self, price: EventOfRound, partition: str, noun: str
        ) -> list[PlannedRelease]:
            count = 2 if noun == "training" else 1
            return [
                PlannedRelease(name=noun, partition=partition, event=price(FULL_ROUND), count=count)
            ]

        def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
            return (noun, f"trial {trial}") if noun == "training" else (noun, "only")

    honest, made = Journal.add, []

    def stopping(self: Journal, *trial: Any) -> Any:
        made.append(honest(self, *trial))
        raise KeyboardInterrupt

    with registered(STRATEGIES, OneScore):
        prepared = api.prepare(arrays(), strategy="one-score", **GIVEN)
        monkeypatch.setattr(Journal, "add", stopping)
        with pytest.raises(InterruptedRunError):
            api.run(prepared, out=tmp_path / "x")
        monkeypatch.setattr(Journal, "add", honest)
        assert len(made) == 1, "the first trial was kept"
        with pytest.raises(UsageError, match="charges trials 0 and 1 once"):
            resume(tmp_path / "x", data=arrays())


@pytest.mark.contract
def test_a_round_is_no_longer_than_its_own_line_has_priced(tmp_path: Path):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Longer(FixedStrategy):
        name: ClassVar[str] = "longer"

        def list_releases(
            self, price: EventOfRound, partition: str, noun: str
        ) -> list[PlannedRelease]:
            price(FULL_ROUND)  # asked for, and charged to nothing
            event = price(RoundShape(steps=0.5))
            return [PlannedRelease(name=noun, partition=partition, event=event, count=1)]

    with registered(STRATEGIES, Longer):
        made = api.prepare(arrays(), strategy="longer", **GIVEN)
        with pytest.raises(UsageError, match=r"not one of its lines there for RoundShape\(steps=1"):
            api.run(made, out=tmp_path / "x")


@pytest.mark.contract
@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("", "has no description"),
        ("cut to {bond:g}", "bond"),
        ("cut to {bound:g}", "power, which is 3"),
    ],
)
def test_what_says_too_little_is_refused_when_it_is_planned(template: str, told: str):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Terse(FlatClipping):
        name: ClassVar[str] = "terse"
        power: float = 2.0
        bound: float = 1.0

    Terse.description_template = template
    with registered(CLIPPING_METHODS, Terse):
        recipe = {"preset": "dpsgd", "bounding": {"name": "terse", "clip_norm": 1.0, "power": 3.0}}
        with pytest.raises(UsageError, match=told):
            api.prepare(arrays(), recipe=recipe, strategy="fixed", **GIVEN)
