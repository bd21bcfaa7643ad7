"""Disjoint portions: each candidate has records of its own, and the pick is the exact law."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pasearch.accounting.budget import Budget
from pasearch.accounting.events import PureDP, WorstCase
from pasearch.api import search as api
from pasearch.api.resume import resume
from pasearch.data.partitions import Dataset
from pasearch.data.split import Split, make_split
from pasearch.errors import BudgetError, InterruptedRunError, UsageError
from pasearch.planning import events_by_partition
from pasearch.results import trained_model
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Ledger
from pasearch.runs.mechanisms import ExponentialMechanism
from pasearch.search import engine
from pasearch.search.portions import DisjointPortions
from pasearch.verification.verify import verify

RECIPES = ["dynamic-uniform", "dynamic-time", "dynamic-exponential"]
POINTS = [60, 64, 57, 64]
SMALL: dict[str, Any] = {"steps": 6, "batch": 20, "device": "cpu", "seed": 3}


def law(points: list[int], epsilon: float, most: int = 1) -> np.ndarray:
    weights = np.exp(epsilon * (np.array(points) - max(points)) / (2 * most))
    return weights / weights.sum()


def picks(epsilon: float, count: int, points: list[int] = POINTS, most: int = 1) -> np.ndarray:
    stream, mechanism = (
        Keys.from_seed(5).stream("p"),
        ExponentialMechanism(epsilon=epsilon, most=most),
    )
    found = [mechanism.pick(points, stream.child(number)) for number in range(count)]
    return np.bincount(found, minlength=len(points))


class TestPick:
    @pytest.mark.statistical
    @pytest.mark.parametrize(("epsilon", "most"), [(0.5, 1), (2.0, 3)])
    def test_the_law_is_exact_and_other_epsilons_are_rejected(self, epsilon: float, most: int):
        seen = picks(epsilon, 20_000, most=most)

        def p_value(assumed: float) -> float:
            return float(stats.chisquare(seen, law(POINTS, assumed, most) * seen.sum()).pvalue)

        assert p_value(epsilon) > 1e-3
        assert max(p_value(epsilon * 2 / 3), p_value(epsilon * 3 / 2)) < 1e-9

    @pytest.mark.unit
    def test_no_record_moves_a_probability_by_more_than_its_epsilon(self):
        """Every data set of three records and three candidates, every record made null."""
        epsilon, worst = 0.7, 0.0
        answers = list(itertools.product((0, 1), repeat=3))
        for records in itertools.product(answers, repeat=3):
            table = np.array(records)
            for gone in range(3):
                there, null = table.sum(axis=0), np.delete(table, gone, axis=0).sum(axis=0)
                ratio = np.log(law(there.tolist(), epsilon) / law(null.tolist(), epsilon))
                worst = max(worst, float(np.abs(ratio).max()))
        # All points move one way, so half of what is charged is never used.
        assert 0.4 * epsilon < worst <= 0.5 * epsilon * (1 + 1e-12)

    @pytest.mark.statistical
    def test_two_worlds_stay_within_epsilon_and_twice_the_exponent_does_not(self):
        def lower_bound(epsilon: float, most: int) -> float:
            """Clopper-Pearson at 99.9 %: the least epsilon that the picks are compatible with."""
            here = picks(epsilon, 6000, [0, 3], most)[0]
            there = picks(epsilon, 6000, [3, 0], most)[0]
            high = stats.binomtest(int(there), 6000).proportion_ci(0.998).low
            low = stats.binomtest(int(here), 6000).proportion_ci(0.998).high
            return math.log(high / low)

        # One record worth 3 points to a candidate: `most` is 3. Assumed to be 1, it is caught.
        assert lower_bound(1.0, 3) <= 1.0
        assert lower_bound(1.0, 1) > 1.0

    @pytest.mark.unit
    def test_the_same_points_give_the_same_pick_and_others_draw_afresh(self):
        stream, mechanism = Keys.from_seed(1).stream("p"), ExponentialMechanism(epsilon=0.01)
        assert len({mechanism.pick([5, 5, 5], stream) for _ in range(5)}) == 1
        assert len({mechanism.pick([n, n, n], stream) for n in range(40)}) == 3
        assert mechanism.event == PureDP(0.01)

    @pytest.mark.unit
    def test_it_ends_however_far_the_others_are_behind(self):
        stream = Keys.from_seed(2).stream("p")
        assert ExponentialMechanism(epsilon=50.0).pick([0, 10**9, 3], stream) == 1

    @pytest.mark.unit
    @pytest.mark.parametrize("values", [{"epsilon": 0.0}, {"epsilon": math.nan}, {"most": 0}])
    def test_numbers_that_are_none_are_refused(self, values: dict[str, Any]):
        with pytest.raises(UsageError):
            ExponentialMechanism(**{"epsilon": 1.0, **values})


class TestSlots:
    @pytest.mark.property
    @pytest.mark.parametrize("share", [0.0, 0.3])
    @pytest.mark.parametrize("portions", [2, 3, 7])
    def test_portions_are_disjoint_and_equal_and_what_is_cut_is_no_partition(
        self, share: float, portions: int
    ):
        split = make_split(211, search_share=share, portions=portions)
        slots = split.draw_positions(np.random.default_rng(0))
        cut = split.trial_partition
        assert cut not in slots
        own = [slots[f"{cut} {number + 1}"] for number in range(portions)]
        assert {len(each) for each in own} == {split.trial_size}
        together = np.concatenate(list(slots.values()))
        assert len(set(together.tolist())) == len(together) > 211 - portions
        assert split.n == 211

    @pytest.mark.unit
    @pytest.mark.parametrize("portions", [0, -1, 1.5, 81])
    def test_numbers_of_portions_that_cannot_be_are_refused(self, portions: Any):
        with pytest.raises(UsageError, match=r"portions|disjoint subsets"):
            Split(train=80, test=10, portions=portions)


def planned(**options: Any):
    return api.plan_architecture_search(
        "digits", budget=Budget(2.0), **{"recipe": RECIPES, **SMALL, **options}
    )


class TestPrice:
    @pytest.mark.unit
    @pytest.mark.parametrize("share", [0.0, 0.3])
    def test_each_portion_has_one_training_and_the_validation_slots_one_pick(self, share: float):
        plan = planned(search_share=share)
        base = "search" if share else "train"
        places = [line.partition for line in plan.lines if line.name == "training"]
        assert places == [f"{base} {number}" for number in (1, 2, 3)]
        assert all(line.count == 1 for line in plan.lines)
        (pick,) = (line.event for line in plan.lines if line.name == "pick")
        assert isinstance(pick, PureDP)
        assert 1.9 < pick.epsilon <= 2.0
        assert 1.9 < plan.price.epsilon <= 2.0
        by_partition = plan.prices[1]
        assert {round(by_partition[place].epsilon, 9) for place in places} == {
            round(by_partition[places[0]].epsilon, 9)
        }

    @pytest.mark.unit
    def test_a_portion_is_charged_the_worst_of_the_recipes(self):
        plan = planned()
        event = events_by_partition(plan.lines)["train 1"]
        assert isinstance(event, WorstCase)
        assert len(event.events) == len(RECIPES)
        size = plan.split.trial_size
        candidates = [plan.space.candidate((number,)) for number in range(3)]
        recipes = [plan.trial_recipe(each) for each in candidates]
        assert {each.event(size) for each in recipes} == set(event.events)
        assert {each.schedule.name for each in recipes} == {"uniform", "time", "exponential"}

    @pytest.mark.unit
    def test_a_regression_picks_by_its_grid(self):
        x, y = np.random.default_rng(0).random((120, 3)), np.random.default_rng(1).random(120)
        plan = api.plan_architecture_search(
            (x, y), budget=Budget(2.0), recipe=RECIPES[:2], regression=True, bounds=(0, 1),
            assume_public_schema=True, **SMALL,
        )  # fmt: skip
        assert isinstance(plan.score, ExponentialMechanism)
        assert plan.score.most == 100


class TestRefusals:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"strategy": "rs"}, "on a disjoint subset"),
            ({"strategy": "fixed"}, "on a disjoint subset"),
            ({"candidates": 2}, "as many candidates"),
            ({"recipe": ["dpsgd", "no-such"]}, "is not known"),
            ({"recipe": ["dpsgd", "dynamic-validation"]}, "A recipe with validation queries"),
            ({"recipe": "dpsgd", "strategy": "portions", "candidates": 1}, "2 or more"),
            ({"recipe": "dpsgd", "strategy": "portions", "candidates": 2000}, "disjoint subsets"),
            ({"recipe": "dpsgd", "strategy": "portions", "generations": 2}, "generations="),
            (
                {"architecture": {"front_end": "pca:4", "layers": []}},
                "would read the records of all subsets",
            ),
        ],
    )
    def test_what_has_no_proof_or_no_sense_is_refused(self, options: dict[str, Any], words: str):
        with pytest.raises(UsageError, match=words):
            planned(**options)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> api.SearchResult:
    out = tmp_path_factory.mktemp("portions") / "run"
    return api.search_architecture("digits", budget=Budget(2.0), recipe=RECIPES, out=out, **SMALL)


class TestRun:
    @pytest.mark.unit
    def test_the_winner_is_told_and_no_loser_or_score(self, released: api.SearchResult):
        document = released.document
        assert document["task"] == "recipe choice"
        assert document["recipe"]["name"].split(":")[0] in RECIPES
        assert document["recipe"]["schedule"]["name"] in ("uniform", "time", "exponential")
        assert document["selection"]["rule"] == "disjoint portions"
        assert "trials" not in document
        assert released.trials == ()
        points = [trial.value for trial in _trials(released.path)]
        assert len(points) == 3
        shown = json.dumps(document)
        assert not any(f": {point}," in shown or f": {point}}}" in shown for point in points)

    @pytest.mark.unit
    def test_its_model_is_loaded_and_its_price_recomputed_from_its_file(
        self, released: api.SearchResult
    ):
        count = sum(each.numel() for each in trained_model(released.path).parameters())
        assert count == released.document["best"]["parameters"]
        price, problems = verify(released.path)
        assert problems == []
        assert price.epsilon == pytest.approx(released.document["price"]["epsilon"])
        sizes = released.document["dataset"]["slots"]
        assert list(sizes)[:3] == ["train 1", "train 2", "train 3"]
        assert sum(sizes.values()) <= released.document["dataset"]["n"] < sum(sizes.values()) + 3

    @pytest.mark.unit
    @pytest.mark.parametrize("recipes", [["rwt", "default"], ["default", "dpsgd-tanh"]])
    def test_a_resume_finds_the_network_that_each_recipe_changed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipes: list[str]
    ):
        architecture = {"layers": [{"kind": "dense", "units": 5, "activation": "relu"}]}
        given = {**SMALL, "recipe": recipes, "architecture": architecture}
        genuine, calls = engine.train_candidate, itertools.count()

        def once(*arguments: Any, **options: Any):
            if next(calls) == 1:
                raise KeyboardInterrupt
            return genuine(*arguments, **options)

        monkeypatch.setattr(engine, "train_candidate", once)
        with pytest.raises(InterruptedRunError):
            api.search_architecture("digits", budget=Budget(2.0), out=tmp_path / "x", **given)
        resumed = resume(tmp_path / "x").document
        whole = api.search_architecture(
            "digits", budget=Budget(2.0), out=tmp_path / "y", **given
        ).document
        assert resumed["best"] == whole["best"]
        assert resumed["model"] == whole["model"]

    @pytest.mark.unit
    def test_records_change_the_candidate_of_their_own_portion_only(self, tmp_path: Path):
        """Forty of them, because a batch takes one in twenty-four."""
        first, slots = _trained(tmp_path / "x", change=[])
        other, _ = _trained(tmp_path / "y", change=slots["train 2"][:40].tolist())
        moved = [not _same(a, b) for a, b in zip(first, other, strict=True)]
        assert moved == [False, True, False]

    @pytest.mark.unit
    def test_a_portion_cannot_be_read_on_another_ones_charge(self, tmp_path: Path):
        plan = planned()
        dataset = api.prepare("digits", budget=Budget(2.0), recipe=RECIPES, **SMALL).dataset
        dataset.partition(plan.split, np.random.default_rng(0))
        with Ledger.create(tmp_path / "ledger", plan.lines) as ledger:
            with ledger.charged("training", dataset["train 1"], key="portion 1"):
                pass
            with (
                pytest.raises(BudgetError),
                ledger.charged("training", dataset["train 1"], key="portion 2"),
            ):
                pytest.fail("a portion was read by two candidates")
            with pytest.raises(KeyError):
                dataset["train"]


def _trials(path: Path):
    from pasearch.runs.journal import Journal

    journal = Journal(path / "private" / "trials.sqlite")
    try:
        return journal.all()
    finally:
        journal.close()


def _same(one: dict, other: dict) -> bool:
    return all(bool((one[name] == other[name]).all()) for name in one)


def _trained(path: Path, change: list[int]) -> tuple[list[dict], dict[str, np.ndarray]]:
    """Return the weights of every candidate, when some slots hold something else."""
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    x, y = digits.data.copy(), digits.target
    x[change] = 16.0 - x[change]
    made = api.prepare(
        (x, y), budget=Budget(2.0), recipe=RECIPES, bounds=(0, 16), classes=10, **SMALL
    )
    slots: dict[str, np.ndarray] = {}
    genuine, weights = engine.train_candidate, []

    def kept(*arguments: Any, **options: Any):
        network = genuine(*arguments, **options)
        weights.append({n: v.clone() for n, v in network.state_dict().items()})
        return network

    patch = pytest.MonkeyPatch()
    patch.setattr(engine, "train_candidate", kept)
    patch.setattr(
        Dataset,
        "partition",
        lambda self, split, generator, inner=Dataset.partition: (
            inner(self, split, generator),
            slots.update({each.name: each._slots for each in self}),
        ),
    )
    try:
        api.run(made, out=path, progress=None)
    finally:
        patch.undo()
    return weights, slots


@pytest.mark.unit
def test_a_small_space_is_tried_whole_and_a_large_one_is_drawn_from():
    from pasearch.spaces.parsing import make_space

    three = make_space({"name": "three", "choices": {"units_1": [2, 4, 8]}})
    stream = Keys.from_seed(0).stream("s")
    strategy = DisjointPortions(candidates=3)
    asked = strategy.ask(strategy.init(), three, stream)
    assert asked is not None
    assert set(asked.genotypes) == {(0,), (1,), (2,)}
    more = DisjointPortions(candidates=5)
    drawn = more.ask(more.init(), three, stream)
    assert drawn is not None
    assert len(drawn.genotypes) == 5


@pytest.mark.unit
def test_the_winner_is_the_pick_and_not_the_fittest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    seen: list[list[int]] = []

    def worst(self: ExponentialMechanism, points: list[int], stream: Any) -> int:
        seen.append(points)
        return points.index(min(points))

    monkeypatch.setattr(ExponentialMechanism, "pick", worst)
    result = api.search_architecture(
        "digits", budget=Budget(2.0), recipe=RECIPES, out=tmp_path / "run", **SMALL
    )
    ((points),) = seen
    assert len(set(points)) == 3
    picked = RECIPES[points.index(min(points))]
    assert result.document["recipe"]["name"].startswith(picked)
