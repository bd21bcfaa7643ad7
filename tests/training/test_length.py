"""How long a schedule lasts and how steep it may be: by sound prices, beside the paper's."""

from __future__ import annotations

from typing import Any

import pytest
from zcdp import epsilon_of_rho

from pasearch.accounting.accountants import price
from pasearch.accounting.budget import Budget
from pasearch.accounting.events import Gaussian
from pasearch.errors import BudgetError, UsageError
from pasearch.training import schedule_solver as length
from pasearch.training.recipe import Recipe
from pasearch.training.schedule_solver import ScheduleSolver, solve_schedule
from pasearch.training.schedules import (
    ExponentialDecay,
    PolynomialDecay,
    StepDecay,
    TimeDecay,
    UniformSchedule,
)

DELTA, RHO = 1e-5, 0.78125
YU: dict[str, Any] = {"noise_multiplier": 10.0, "batch": 600, "n": 60_000}
THEIRS = Budget(epsilon_of_rho(RHO, DELTA), DELTA)
TABLE_II = [
    (UniformSchedule(), 8.0, 100),
    (TimeDecay(rate=0.05), 10.0, 38),
    (StepDecay(rate=0.6, period=10), 10.0, 31),
    (ExponentialDecay(rate=0.01), 10.0, 71),
    (PolynomialDecay(power=3.0, end=0.2, period=100), 10.0, 44),
]


@pytest.mark.oracle
def test_a_tight_price_lasts_longer_than_the_papers_zcdp():
    """Reshuffled epochs compose as Gaussians: rho is exact for them, its conversion is not."""
    for schedule, sigma, epochs in TABLE_II:
        course = ScheduleSolver(
            **{**YU, "noise_multiplier": sigma}, batching="reshuffled", budget=THEIRS
        )
        found = course.solve_epochs(schedule)
        assert epochs <= found <= 1.35 * epochs
        assert course.price(schedule, found).epsilon <= THEIRS.epsilon
        assert course.price(schedule, found + 1).epsilon > THEIRS.epsilon


@pytest.mark.unit
def test_sampled_batches_last_as_long_as_their_recipe_says():
    course = ScheduleSolver(noise_multiplier=2.0, batch=100, n=1000, budget=Budget(3.0, DELTA))
    schedule = ExponentialDecay(rate=0.02)
    epochs = course.solve_epochs(schedule)

    def cost(count: int) -> float:
        recipe = Recipe(
            expected_batch_size=100, steps=10 * count, noise_multiplier=2.0, schedule=schedule
        )
        return price(recipe.event(1000), DELTA).epsilon

    assert cost(epochs) <= 3.0 < cost(epochs + 1)


@pytest.mark.unit
def test_the_rate_uses_the_budget_up_and_a_steeper_one_breaks_it():
    for kind, settings, steeper in [
        ("time", {}, lambda s: TimeDecay(rate=s.rate * 1.01)),
        ("exponential", {"every": 2}, lambda s: ExponentialDecay(rate=s.rate * 1.01, every=2)),
        ("step", {"period": 10}, lambda s: StepDecay(rate=s.rate * 0.99, period=10)),
        (
            "polynomial",
            {"end": 0.1, "period": 100},
            lambda s: PolynomialDecay(power=s.power * 1.01, end=0.1, period=100),
        ),
    ]:
        course = ScheduleSolver(**YU, batching="reshuffled", budget=Budget(7.0, DELTA))
        schedule = course.solve_rate(kind, 60, **settings)
        cost = course.price(schedule, 60).epsilon
        assert 0.995 * 7.0 < cost <= 7.0
        assert course.price(steeper(schedule), 60).epsilon > 7.0


@pytest.mark.oracle
def test_every_epoch_is_priced_when_the_batch_does_not_divide_the_records():
    """Of reshuffled batches: one Gaussian an epoch, all in one of sigma / sqrt(sum of 1/f^2)."""
    for batch in [30, 60, 99, 100]:
        course = ScheduleSolver(
            noise_multiplier=6.0,
            batch=batch,
            n=100,
            batching="reshuffled",
            budget=Budget(3.0, 1e-3),
        )
        for schedule in (UniformSchedule(), ExponentialDecay(rate=0.02)):
            weight = sum(schedule.factor(epoch) ** -2 for epoch in range(39))
            exact = price(Gaussian(6.0 / weight**0.5), 1e-3).epsilon
            assert course.price(schedule, 39).epsilon == pytest.approx(exact, rel=1e-3)
            found = course.solve_epochs(schedule)
            assert (
                course.recipe(schedule, found)
                .make_batching(100)
                .epoch(course.recipe(schedule, found).steps - 1)
                == found - 1
            )


@pytest.mark.unit
def test_an_uncharged_epoch_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    course = ScheduleSolver(**YU, batching="reshuffled", budget=THEIRS)
    right = course.solve_epochs(ExponentialDecay(rate=0.01))
    genuine = ScheduleSolver.event
    monkeypatch.setattr(
        length.ScheduleSolver, "event", lambda self, s, epochs: genuine(self, s, max(1, epochs - 1))
    )
    assert course.solve_epochs(ExponentialDecay(rate=0.01)) == right + 1


@pytest.mark.unit
def test_what_makes_no_sense_is_refused():
    for asked, words in [
        ({"kind": "cosine", "rate": 1.0}, "expected one of uniform, time"),
        ({"kind": "validation", "rate": 0.5}, "expected one of uniform, time"),
        ({"kind": "time"}, "exactly one of rate and epochs"),
        ({"kind": "time", "rate": 0.1, "epochs": 4}, "exactly one of rate and epochs"),
        ({"kind": "uniform", "rate": 0.1}, "uniform has no rate"),
        ({"kind": "step", "rate": 0.5}, "lacks period"),
        ({"kind": "time", "rate": 0.1, "period": 3}, "has no period"),
        ({"kind": "time", "rate": -1.0}, "rate is -1"),
        ({"kind": "time", "rate": 0.1, "batch": 70_000}, "batch"),
        ({"kind": "time", "rate": 0.1, "batching": "truncated"}, "poisson or reshuffled"),
        ({"kind": "step", "period": 10, "epochs": 3}, "for any decay"),
    ]:
        given = {**YU, "epsilon": 7.0, "batching": "reshuffled", **asked}
        with pytest.raises(UsageError, match=words):
            solve_schedule(given.pop("kind"), **given)


@pytest.mark.unit
def test_a_budget_for_less_than_an_epoch_is_told():
    with pytest.raises(BudgetError, match="too small"):
        solve_schedule("uniform", epsilon=0.1, batching="reshuffled", **YU)
    with pytest.raises(BudgetError, match="even if the noise stays"):
        solve_schedule("time", epochs=60, epsilon=1.0, batching="reshuffled", **YU)
