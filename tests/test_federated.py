"""The simulation of several sites equals the training in one place, and hides what it says."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pasearch import Budget
from pasearch.accounting.accountants import price
from pasearch.errors import BudgetError
from pasearch.runs.keys import Keys
from pasearch.runs.normals import compute_grid_distance

FILE = Path(__file__).parent.parent / "examples" / "federated.py"
BUDGET = Budget(3.0, 1e-5)


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("federated_example", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


Sites = Callable[..., tuple[Any, list[Any], Any]]


@pytest.fixture
def sites(example: Any, tmp_path: Path) -> Iterator[Sites]:
    """Three sites of unequal size, their plan and an aggregator."""
    made: list[Any] = []

    def build(**settings: Any) -> tuple[Any, list[Any], Any]:
        parts, _ = example.digits(3)
        given = {"q": 0.05, "steps": 6, "size": (64, 8, 10), "sigma": 1.5} | settings
        plan = example.Plan(n=tuple(len(y) for _, y in parts), **given)
        folder = tmp_path / str(len(made))
        folder.mkdir()
        found = [
            example.Site(
                number=number, x=x, y=y, folder=folder, budget=Budget(50.0, 1e-5),
                keys=Keys.from_seed(number),
            )
            for number, (x, y) in enumerate(parts)
        ]  # fmt: skip
        made.extend(found)
        return plan, found, example.Aggregator(plan=plan, keys=Keys.from_seed(9))

    yield build
    for site in made:
        if hasattr(site, "ledger"):
            site.ledger.close()


@pytest.mark.oracle
def test_the_sites_train_what_one_place_trains(example: Any, sites: Sites):
    plan, every, aggregator = sites(steps=20)
    apart = example.federated(plan, every, aggregator)
    together = example.central(plan, every, aggregator)
    rounding = plan.steps * plan.rate * len(every) * example.GRID / (plan.q * sum(plan.n))
    assert abs(apart - together).max() <= 100 * rounding
    assert abs(apart - example.started(plan)).max() > 0.01, "it has moved"
    batches = [sum(len(site.chosen(plan, step)) for site in every) for step in range(plan.steps)]
    assert len(set(batches)) > 5, "every step has coins of its own"


@pytest.mark.oracle
def test_a_sum_that_is_given_without_noise_is_the_central_one(example: Any, sites: Sites):
    """To the rounding: the noise would hide a message that is lost or counted twice."""
    plan, every, _ = sites()
    for site in every:
        site.join(plan, {each.number: each.public_key for each in every})
    weights = example.started(plan)
    messages = [site.answer(plan, 0, weights) for site in every]
    total = example.decoded(np.sum(messages, axis=0, dtype=np.uint64))
    own = [(site.x[chosen], site.y[chosen]) for site in every for chosen in [site.chosen(plan, 0)]]
    x, y = (np.concatenate(each) for each in zip(*own, strict=True))
    exact = example.bounded_sum(plan, weights, x, y)
    assert abs(total - exact).max() <= len(every) * example.GRID
    alone = [example.bounded_sum(plan, weights, x[i : i + 1], y[i : i + 1]) for i in range(9)]
    assert max(np.linalg.norm(each) for each in alone) <= plan.clip_norm


@pytest.mark.contract
@pytest.mark.parametrize("change", [{"q": 1.0}, {"clip_norm": 500.0}, {"sigma": 1e-6}])
def test_a_plan_that_was_not_agreed_to_is_not_answered(
    example: Any, sites: Sites, change: dict[str, float]
):
    plan, every, _ = sites()
    for site in every:
        site.join(plan, {each.number: each.public_key for each in every})
    with pytest.raises(BudgetError, match="not the plan that it has joined"):
        every[0].answer(replace(plan, **change), 0, example.started(plan))
    assert every[0].ledger.spent() == []


@pytest.mark.statistical
def test_a_message_alone_is_uniform_and_two_hide_the_third(example: Any, sites: Sites):
    plan, every, _ = sites()
    for site in every:
        site.join(plan, {each.number: each.public_key for each in every})
    messages = [site.answer(plan, 0, example.started(plan)) for site in every]
    for seen in (*messages, messages[0] + messages[1]):
        bits = np.unpackbits(seen.view(np.uint8))
        assert stats.binomtest(int(bits.sum()), len(bits)).pvalue > 1e-6
        assert stats.kstest(seen / 2.0**64, "uniform").pvalue > 1e-6
    plain = example.encoded(example.bounded_sum(plan, example.started(plan), every[0].x[:9],
                                                every[0].y[:9]))  # fmt: skip
    assert stats.kstest(plain / 2.0**64, "uniform").pvalue < 1e-6, "the test sees one without"


@pytest.mark.property
def test_sums_wrap_around_and_come_back(example: Any):
    values = np.array([0.0, -1.5, 2.0**21, -(2.0**21), 3 * example.GRID, -example.GRID])
    assert (example.decoded(example.encoded(values)) == values).all()
    parts = [values * 0.25] * 4
    mask = np.random.default_rng(0).integers(2**64, size=len(values), dtype=np.uint64)
    total = example.encoded(parts[0]) + mask
    for part in parts[1:]:
        total = total + example.encoded(part)
    assert (example.decoded(total - mask) == [0, -1.5, 2.0**21, -(2.0**21), *[4 * v for v in
            np.rint(values[4:] / 4 / example.GRID) * example.GRID]]).all()  # fmt: skip


@pytest.mark.property
def test_rounding_moves_a_sum_no_more_than_the_sensitivity_says(example: Any, sites: Sites):
    plan, _, _ = sites()
    generator = np.random.default_rng(0)
    worst = 0.0
    for _ in range(200):
        total = generator.normal(size=plan.dimension) * 3
        record = generator.normal(size=plan.dimension)
        record *= plan.clip_norm / np.linalg.norm(record)
        both = [example.decoded(example.encoded(each)) for each in (total, total + record)]
        worst = max(worst, float(np.linalg.norm(both[1] - both[0])))
    assert worst <= plan.sensitivity
    unit = example.GRID
    a, b = np.full(4, 0.49 * unit), np.full(4, 0.51 * unit)  # near, and on two sides of a middle
    moved = example.decoded(example.encoded(b)) - example.decoded(example.encoded(a))
    assert np.linalg.norm(moved) > 40 * np.linalg.norm(b - a)
    assert np.linalg.norm(moved) <= np.linalg.norm(b - a) + unit * math.sqrt(4)


@pytest.mark.unit
def test_each_site_has_its_own_ledger_and_answers_a_step_once(example: Any, sites: Sites):
    plan, every, aggregator = sites(steps=3)
    example.federated(plan, every, aggregator)
    weights = example.started(plan)
    for site in every:
        [(line, partition, event, count)] = site.ledger.spent()
        assert (line, partition, count) == ("training", "train", 3)
        assert event == plan.step_event
        with pytest.raises(BudgetError, match="asked twice for step 1"):
            site.answer(plan, 1, weights)
        with pytest.raises(BudgetError, match="all are charged"):
            site.answer(plan, 3, weights)


@pytest.mark.unit
def test_a_site_whose_budget_is_too_small_does_not_take_part(example: Any, sites: Sites):
    plan, every, aggregator = sites()
    every[1].budget = Budget(0.01, 1e-5)
    with pytest.raises(BudgetError, match="Site 1: this plan costs its records epsilon"):
        example.federated(plan, every, aggregator)
    assert not hasattr(every[1], "ledger")


@pytest.mark.unit
def test_a_step_that_a_site_misses_is_lost_and_paid(example: Any, sites: Sites):
    plan, every, aggregator = sites(steps=3)
    missed = example.federated(plan, every, aggregator, absent=[(1, 2)])
    assert [site.ledger.spent()[0][3] for site in every] == [3, 3, 2]
    plan_, again, aggregator = sites(steps=3)
    assert not np.array_equal(missed, example.federated(plan_, again, aggregator))
    assert np.isfinite(missed).all()
    assert abs(missed).max() < 50, "masks that stay would be numbers up to 2^23"


@pytest.mark.oracle
def test_noise_in_shares_costs_what_a_message_alone_costs(example: Any, sites: Sites):
    plan, _, _ = sites(shares=True, colluding=1, sigma=2.0)
    assert plan.step_event.noise_multiplier == pytest.approx(2.0 / math.sqrt(2))
    aimed = price(plan.aim(), 1e-5).epsilon
    assert plan.price(1e-5).epsilon > aimed
    whole = replace(plan, shares=False, colluding=0)
    assert whole.price(1e-5).epsilon == aimed
    solved = example.solved(BUDGET, n=plan.n, q=0.05, steps=6, size=plan.size)
    assert 0.98 * 3 < solved.price(1e-5).epsilon <= 3
    with pytest.raises(AssertionError):
        replace(plan, n=(5_000_000,))


@pytest.mark.statistical
@pytest.mark.parametrize("colluding", [0, 1])
def test_shares_add_up_to_the_noise_that_is_left_without_colluding_sites(
    example: Any, sites: Sites, colluding: int
):
    plan, every, _ = sites(shares=True, colluding=colluding, size=(64, 60, 10))
    for site in every:
        site.join(plan, {each.number: each.public_key for each in every})
    weights = example.started(plan)
    messages = [site.answer(plan, 0, weights) for site in every]
    noisy = example.decoded(np.sum(messages, axis=0, dtype=np.uint64))
    points = noisy / compute_grid_distance(plan.scale * plan.share)
    assert (points == np.rint(points)).all(), "low bits of the sums show beside the noise"
    noise = noisy - sum(
        example.bounded_sum(plan, weights, site.x[own], site.y[own])
        for site in every for own in [site.chosen(plan, 0)]
    )  # fmt: skip
    expected = plan.scale * math.sqrt(3 / (3 - colluding))
    found, spread = noise.std() / expected, 1 / math.sqrt(2 * len(noise))
    assert abs(found - 1) < 5 * spread
    assert 5 * spread < math.sqrt(3 / 2) - 1, "it would see one share that is missing"


@pytest.mark.contract
@pytest.mark.parametrize("noise", ["central", "shares"])
def test_the_command_says_what_was_paid_and_what_is_not_claimed(
    example: Any, noise: str, capsys: pytest.CaptureFixture[str]
):
    example.main(["--sites", "3", "--steps", "4", "--eps", "3", noise])
    out = capsys.readouterr().out
    assert out.count("4 steps in its ledger") == 3
    epsilon = float(out.partition("any site: epsilon ")[2].split(",")[0])
    if noise == "central":
        assert 2.9 < epsilon <= 3
        assert float(out.rpartition(" ")[2]) < 1e-9
    else:
        assert epsilon > 3
        assert "Aimed at: epsilon 3. Not claimed" in out
    with pytest.raises(SystemExit):
        example.main(["--sites", "3", "--colluding", "2"])
