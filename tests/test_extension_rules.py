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
from pasearch.data.array_file import from_arrays
from pasearch.data.source import SOURCES, Source
from pasearch.data.sources import load_dataset
from pasearch.errors import UsageError
from pasearch.features.selector import SELECTORS
from pasearch.features.subsets import Subsets
from pasearch.features.top import Top
from pasearch.planning import check_rule
from pasearch.registry import Registry
from pasearch.runs.ledger import Line
from pasearch.search.portions import DisjointPortions
from pasearch.search.randomized import RandomizedSearch
from pasearch.search.strategy import STRATEGIES, Fixed, Round, RoundPrice, RoundShape

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
    class Cheap(Fixed):
        name: ClassVar[str] = "cheap"

        def lines(self, price: RoundPrice, partition: str, noun: str) -> list[Line]:
            event = price(RoundShape(steps=0.5))
            return [Line(name=noun, partition=partition, event=event, count=1)]

    with registered(STRATEGIES, Cheap):
        made = api.prepare(arrays(), strategy="cheap", **GIVEN)
        with pytest.raises(UsageError, match="have not priced"):
            api.run(made, out=tmp_path / "x")
    assert not (tmp_path / "x").exists(), "nothing was charged, so nothing is left"


@pytest.mark.contract
def test_validation_queries_of_one_training_pay_for_no_other():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Pair(Fixed):
        name: ClassVar[str] = "pair"

        @property
        def expected_trainings(self) -> float:
            return 2.0

    with (
        registered(STRATEGIES, Pair),
        pytest.raises(UsageError, match="every candidate would pay for its own"),
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
            check_rule(kind)
    check_rule(RandomizedSearch)


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
    class Twice(Fixed):
        name: ClassVar[str] = "twice"
        selection_rule: ClassVar[str] = "composition"

        def ask(self, state: Any, space: Any, stream: Any) -> Round | None:
            return None if state.rounds else Round(number=0, genotypes=(space.fixed(),) * 2)

    with registered(STRATEGIES, Twice):
        made = api.prepare(arrays(), strategy="twice", **GIVEN)
        with pytest.raises(UsageError, match="charges trials 0 and 1 once"):
            api.run(made, out=tmp_path / "x")


def choose_by(kind: type, folder: Path) -> None:
    with registered(SELECTORS, kind):
        columns = np.random.default_rng(0).random((200, 3))
        select_features(
            (columns, np.arange(200) % 2), method=kind.name, budget=Budget(4.0, 1e-4), classes=2,
            bounds=(0.0, 1.0), out=folder, device="cpu",
        )  # fmt: skip


@pytest.mark.contract
def test_one_charge_pays_for_one_set_of_features(tmp_path: Path):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class OnceForAll(Subsets):
        name: ClassVar[str] = "once-for-all"
        selection_rule: ClassVar[str] = "composition"

    with pytest.raises(UsageError, match=r"charges \d+ candidates 1 times"):
        choose_by(OnceForAll, tmp_path / "x")


@pytest.mark.contract
def test_what_a_charge_opened_is_not_opened_again_for_it(tmp_path: Path):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Again(Top):
        name: ClassVar[str] = "again"

        def choose(self, reads: Any, stream: Any) -> Any:
            Top.choose(self, reads, stream)
            return Top.choose(self, reads, stream)

    with pytest.raises(UsageError, match="was charged and read"):
        choose_by(Again, tmp_path / "x")
