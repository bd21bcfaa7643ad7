"""grid: what a crossover costs on private records, who wins, and what is said of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pasearch as api
from pasearch.accounting.accountants import price
from pasearch.accounting.budget import Budget
from pasearch.crossover.report import _compute_level_epsilons
from pasearch.errors import BudgetError, UsageError
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import PlannedRelease
from pasearch.search.grid import (
    MAX_SQUARED_SHARE,
    Grid,
    convert_epsilons_to_shares,
    make_default_shares,
)
from pasearch.spaces.parsing import make_space

TWO = make_space(
    {"family": "portfolio", "name": "two", "entries": [
        {"layers": []}, {"layers": [{"kind": "dense", "units": 8}]}]}
)  # fmt: skip


def played(search: Grid, *levels: list[float]) -> tuple[int, int]:
    """Return what a grid takes by these scores."""
    state, stream = search.init(), Keys.from_seed(0).stream("grid")
    for scores in levels:
        asked = search.ask(state, TWO, stream)
        assert asked is not None
        assert len(asked.genotypes) == len(scores)
        state = search.tell(state, asked, tuple((each, 0) for each in scores))
    assert search.ask(state, TWO, stream) is None
    return search.best(state)


@pytest.mark.unit
class TestGrid:
    def test_the_best_mean_of_the_last_level_wins(self):
        search = Grid(candidates=2, shares=(0.1, 0.2), repeats=2)
        number, index = played(search, [9.0, 9.0, 0.0, 0.0], [5.0, 5.0, 3.0, 8.0])
        assert (number, index // 2) == (1, 1), "5.5 is more than 5, whatever the first level said"
        assert search.possible_winners([9, 9, 0, 0, 5, 5, 3, 8]) == [7]
        assert search.possible_winners([9, 9, 0, 0, 5, 5, 3, 7]) == [5, 7]

    def test_a_failed_training_does_not_win(self):
        search = Grid(candidates=2, shares=(0.1, 0.2), repeats=2)
        _, index = played(search, [1.0] * 4, [-math.inf, 99.0, 1.0, 1.0])
        assert index // 2 == 1

    @pytest.mark.parametrize(
        "wrong",
        [{"candidates": 1}, {"candidates": 9}, {"repeats": 1}, {"repeats": 0}, {"shares": (0.1,)},
         {"shares": (0.2, 0.1)}, {"shares": (0.1, 0.1)}, {"shares": (0.0, 0.1)},
         {"shares": (0.5, 0.9)}, {"shares": (0.1, math.nan)}],
        ids=str,
    )  # fmt: skip
    def test_settings_that_are_none(self, wrong: dict[str, Any]):
        with pytest.raises(UsageError):
            Grid(**{"candidates": 2, "shares": (0.1, 0.2), "repeats": 2} | wrong)

    def test_usual_shares_leave_most_of_the_budget(self):
        for points in (4, 6, 16):
            shares = make_default_shares(points)
            assert points * sum(each**2 for each in shares) == pytest.approx(0.3, abs=1e-4)

    def test_a_grid_that_is_too_dear_says_what_would_do(self):
        budget = Budget(1.0).resolve(1000)
        with pytest.raises(BudgetError, match=r"total of ([0-9.]+)") as caught:
            convert_epsilons_to_shares((0.3, 1.0), budget, 4)
        least = float(str(caught.value).split("total of ")[1].split()[0])
        enough = replace(budget, epsilon=least)
        shares = convert_epsilons_to_shares((0.3, 1.0), enough, 4)
        assert 4 * sum(each**2 for each in shares) <= MAX_SQUARED_SHARE + 1e-6
        with pytest.raises(BudgetError):
            convert_epsilons_to_shares((0.3, 1.0), replace(budget, epsilon=0.97 * least), 4)


@pytest.mark.unit
class TestPlan:
    def planned(self, **more: Any) -> Any:
        given = {"strategy": "grid", "space": TWO, "steps": 20, "device": "cpu"} | more
        return api.plan_architecture_search("digits", budget=Budget(4.0), **given)

    def test_every_point_and_the_final_training_are_composed(self):
        plan = self.planned(eps_grid="0.3,0.6,1.2", repeats=2)
        train = [each for each in plan.lines if each.partition == "train"]
        assert [each.count for each in train] == [4, 4, 4, 1]
        alone = [price(each.event, plan.delta).epsilon for each in train]
        assert alone[:3] == pytest.approx([0.3, 0.6, 1.2], rel=0.12)
        assert alone[:3] == sorted(alone[:3])
        assert 1.2 < alone[3] < 4.0
        assert plan.price.epsilon <= 4.0
        scores = [each for each in plan.lines if each.name == "score"]
        assert [(each.partition, each.count) for each in scores] == [("validation", 12)]

    def test_of_the_programs_portfolio_it_compares_three(self):
        plan = self.planned(space="auto")
        assert plan.space.count() == 3
        assert plan.strategy.candidates == 3

    def test_a_large_space_is_refused(self):
        with pytest.raises(UsageError, match="at most 8 models"):
            self.planned(space="fcn")

    @pytest.mark.parametrize(
        "wrong",
        [{"eps_grid": "1"}, {"eps_grid": "2,1"}, {"eps_grid": "a"}, {"repeats": 1},
         {"strategy": "fixed", "eps_grid": "1,2", "space": "auto"},
         {"strategy": "rs", "crossover": True}, {"strategy": "auto", "repeats": 3}],
        ids=str,
    )  # fmt: skip
    def test_what_does_not_fit(self, wrong: dict[str, Any]):
        with pytest.raises(UsageError):
            self.planned(**wrong)

    def test_the_least_total_that_fits_is_named(self):
        with pytest.raises(BudgetError, match="use a total of"):
            self.planned(eps_grid="1,2,3", repeats=4)

    def test_crossover_takes_it_on_private_records(self):
        plan = self.planned(strategy="auto", crossover=True, space="auto")
        assert plan.strategy.name == "grid"


@pytest.mark.slow
class TestRun:
    def test_a_run_says_what_it_measured_and_is_verified(self, tmp_path: Path):
        result = api.search_architecture(
            "digits", budget=Budget(8.0), strategy="grid", space=TWO, eps_grid="0.1,0.5,2.0",
            seed=1, steps=60, out=tmp_path / "run", device="cpu",
        )  # fmt: skip
        assert not api.verify(tmp_path / "run")[1]
        found = result.document["crossover"]
        assert found["kind"] == "measured"
        assert found["epsilons"] == sorted(found["epsilons"])
        shares = np.array([each["accuracy"] for each in found["models"]])
        assert (shares[:, -1] > shares[:, 0] + 0.2).all(), "more epsilon, more accuracy"
        trials = np.array([value for _, value in
                           ((t.parameters, t.value) for t in result.trials)], float)  # fmt: skip
        means = trials.reshape(3, 2, 2).mean(axis=2).T / result.document["dataset"]["slots"][
            "validation"]  # fmt: skip
        assert np.allclose(np.sort(shares, axis=0), np.sort(means, axis=0), atol=1e-4)
        assert (
            "Measured on your records, and charged"
            in (result.path / "release/report.html").read_text()
        )

    def test_it_has_teeth_a_level_that_is_not_charged_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        lines_of = Grid.list_releases

        def fewer(self: Grid, price: Any, partition: str, noun: str) -> list[PlannedRelease]:
            found = lines_of(self, price, partition, noun)
            return found[:-1] if noun == "training" else found

        monkeypatch.setattr(Grid, "list_releases", fewer)
        with pytest.raises(UsageError, match="not one of its lines"):
            api.search_architecture(
                "digits", budget=Budget(8.0), strategy="grid", space=TWO, steps=4,
                out=tmp_path / "run", device="cpu",
            )  # fmt: skip

    def test_it_has_teeth_a_score_of_another_price_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """A line that prices less noise than is drawn is found before a record is scored."""
        from pasearch.accounting.events import Geometric

        lines_of = Grid.list_releases

        def cheap(self: Grid, price: Any, partition: str, noun: str) -> list[PlannedRelease]:
            found = lines_of(self, price, partition, noun)
            if noun == "training":
                return found
            return [replace(each, event=Geometric(epsilon=1e-6)) for each in found]

        monkeypatch.setattr(Grid, "list_releases", cheap)
        with pytest.raises(UsageError, match="not one of its lines"):
            api.search_architecture(
                "digits", budget=Budget(8.0), strategy="grid", space=TWO, steps=4,
                score_epsilon=5.0, out=tmp_path / "run", device="cpu",
            )  # fmt: skip


@pytest.mark.unit
def test_the_epsilon_of_a_point_pays_for_its_front_end_too():
    """Trained alone, a model would have needed it: no point is cheaper than its fit."""
    draw = np.random.default_rng(0)
    records = draw.random((3000, 4)), draw.integers(0, 2, 3000)
    found = {}
    for name, front in (("raw", "raw"), ("centred", "standardise")):
        entries = [{"front_end": front, "layers": []},
                   {"front_end": front, "layers": [{"kind": "dense", "units": 4}]}]  # fmt: skip
        plan = api.plan_architecture_search(
            records, budget=Budget(2.0), bounds=(0, 1), classes=2, strategy="grid",
            space={"family": "portfolio", "name": name, "entries": entries},
        )  # fmt: skip
        fits = [each.event for each in plan.lines if each.name.startswith("front end")]
        assert len(fits) == (name == "centred")
        found[name] = _compute_level_epsilons(plan)
        for fit in fits:
            assert min(found[name]) >= price(fit, plan.delta).epsilon * 0.995
    assert found["centred"][0] > found["raw"][0]
