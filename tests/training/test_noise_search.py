"""Ranking laws of the noise at equal price, and what a run does with the first of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shortcuts import rdp_price

from pasearch import Budget
from pasearch.accounting.accountants import price
from pasearch.accounting.densities import (
    Cauchy,
    GaussianNoise,
    LaplaceNoise,
    StudentT,
    density_from_json,
)
from pasearch.accounting.events import AdditiveNoise, PoissonGaussian, SelfComposition
from pasearch.api import search as api
from pasearch.errors import BudgetError, UsageError
from pasearch.training.encoded import noise_search
from pasearch.training.encoded.gradients import EncodedClipping
from pasearch.training.encoded.noise_search import (
    DEFAULT_DENSITIES,
    RankedDensity,
    format_density_name,
    parse_density,
    rank_densities,
)

DIMENSION, Q, STEPS = 300, 0.2, 12
BUDGET = Budget(2.0, 1e-4)
BOUND = EncodedClipping(clip_norm=0.5, vectors=4)
FEW = (GaussianNoise(), StudentT(freedom=9.0), LaplaceNoise(), Cauchy())


@pytest.fixture(scope="module")
def rows() -> list[RankedDensity]:
    return rank_densities(
        dimension=DIMENSION, sampling_probability=Q, steps=STEPS, budget=BUDGET, bounding=BOUND,
        laws=FEW,
    )  # fmt: skip


def recomputed(row: RankedDensity) -> float:
    """Return the price of all steps, from the event alone."""
    if row.accountant == "PLD":
        sigma = row.density.scale / BOUND.sensitivity
        return price(SelfComposition(PoissonGaussian(Q, sigma), STEPS), 1e-4).epsilon
    shifts = BOUND.codebook(DIMENSION).envelope()
    return rdp_price(SelfComposition(AdditiveNoise(Q, row.density, shifts), STEPS), 1e-4).epsilon


@pytest.mark.unit
def test_every_row_costs_the_budget_and_no_more(rows: list[RankedDensity]):
    assert len(rows) == len(FEW) + 1
    for row in rows:
        assert row.price <= BUDGET.epsilon
        found = recomputed(row)
        assert 0.99 * BUDGET.epsilon < found <= BUDGET.epsilon


@pytest.mark.unit
def test_two_thirds_of_a_row_s_noise_costs_more_than_the_budget(rows: list[RankedDensity]):
    for row in rows:
        less = row.density.with_scale(row.density.scale * 2 / 3)
        louder = replace(row, row=replace(row.row, density=less))
        assert recomputed(louder) > 1.1 * BUDGET.epsilon


@pytest.mark.unit
def test_the_gaussian_is_cheaper_by_loss_distributions_than_by_orders(rows: list[RankedDensity]):
    gaussians = {row.accountant: row for row in rows if isinstance(row.density, GaussianNoise)}
    assert set(gaussians) == {"PLD", "RDP"}
    assert gaussians["PLD"].density.scale < gaussians["RDP"].density.scale
    assert gaussians["PLD"].l1 == gaussians["PLD"].l2 == 1.0
    assert gaussians["RDP"].l1 == pytest.approx(gaussians["RDP"].l2) != 1.0
    assert [row.accountant for row in rows].count("PLD") == 1


@pytest.mark.unit
def test_the_least_mean_error_comes_first(rows: list[RankedDensity]):
    errors = [row.density.mean_absolute for row in rows]
    assert errors == sorted(errors)
    best = next(row for row in rows if row.accountant == "PLD").density
    for row in rows:
        assert row.l1 == pytest.approx(row.density.mean_absolute / best.mean_absolute)
        assert row.l2 == pytest.approx(row.density.standard_deviation / best.standard_deviation)
    assert isinstance(rows[-1].density, Cauchy)
    assert rows[-1].l1 == rows[-1].l2 == math.inf


@pytest.mark.unit
def test_rows_are_plain_values_without_an_infinity(rows: list[RankedDensity]):
    for row in rows:
        values = json.loads(json.dumps(row.to_json(), allow_nan=False))
        assert density_from_json(values["density"]) == row.density
        assert values["l1"] == (row.l1 if math.isfinite(row.l1) else None)
        assert row.describe().startswith(
            f"{format_density_name(row.density)} ({row.accountant}): l1 "
        )


@pytest.mark.unit
def test_a_budget_that_no_noise_meets_is_refused():
    with pytest.raises(BudgetError):
        rank_densities(
            dimension=20, sampling_probability=1.0, steps=10, budget=Budget(1e-9, 1e-9),
            bounding=BOUND, laws=(),
        )  # fmt: skip


# --- names


@pytest.mark.unit
def test_a_law_is_read_from_its_name():
    for law in DEFAULT_DENSITIES:
        assert parse_density(format_density_name(law)) == law
        assert parse_density(format_density_name(law.with_scale(3.0))) == law, (
            "a name says no scale"
        )


@pytest.mark.unit
def test_other_names_are_refused():
    for name, words in [
        ("", "noise is ''"),
        ("search", "noise is 'search'"),
        ("airy", "noise is 'airy'"),
        ("Gaussian", "noise is 'Gaussian'"),
        ("tabulated", "noise is 'tabulated'"),
        ("gaussian:2", "noise is 'gaussian:2'"),
        ("cauchy:1", "noise is 'cauchy:1'"),
        ("student-t:nine", "noise is 'student-t:nine'"),
        ("student-t:9:2", "noise is 'student-t:9:2'"),
        ("student-t:nan", "freedom"),
        ("student-t:-9", "freedom"),
        ("student-t:inf", "freedom"),
        ("generalised-normal:0.5", "power"),
        ("variance-gamma:0", "shape"),
    ]:
        with pytest.raises(UsageError, match=words):
            parse_density(name)


# --- a run's search


def planned(noise: str | None) -> api.Plan:
    recipe = {"preset": "encoded-gaussian", "bounding": {"name": "encoded", "vectors": 3}}
    return api.prepare(
        "digits", budget=BUDGET, strategy="fixed", space="fcn", recipe=recipe, noise=noise,
        steps=4, batch=300,
    ).plan  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a ranking was asked, and its rows; of two laws, to be quick."""
    seen: list[dict[str, Any]] = []

    def spy(**settings: Any) -> list[RankedDensity]:
        found = rank_densities(**settings, laws=FEW[:2])
        seen.append({**settings, "rows": found})
        return found

    monkeypatch.setattr(noise_search, "rank_densities", spy)
    return seen


@pytest.mark.unit
def test_a_search_asks_with_the_plan_s_own_numbers_and_takes_the_first(
    asked: list[dict[str, Any]],
):
    plan = planned("search")
    (given,) = asked
    size = plan.space.candidate(plan.space.default_genotype()).parameters(
        plan.schema.shape, plan.schema.outputs
    )
    assert given["dimension"] == size[1]
    assert given["sampling_probability"] == plan.recipe.sampling_probability(plan.split.train)
    assert given["steps"] == plan.recipe.steps == 4
    assert given["budget"] == BUDGET
    assert given["bounding"] == plan.recipe.bounding
    first = given["rows"][0].density
    # The Gaussian is the recipe's own noise, for which loss distributions have a price.
    assert isinstance(first, GaussianNoise)
    assert plan.recipe.noise is None
    assert plan.lines == planned(None).lines
    assert "noise gaussian, of the least error" in plan.recipe_names[0]


@pytest.mark.unit
def test_a_search_takes_another_law_where_that_is_first(monkeypatch: pytest.MonkeyPatch):
    def reversed_ranking(**settings: Any) -> list[RankedDensity]:
        rows = rank_densities(**settings, laws=(StudentT(freedom=5.0),))
        return rows[::-1]

    monkeypatch.setattr(noise_search, "rank_densities", reversed_ranking)
    plan = planned("search")
    assert plan.recipe.noise == StudentT(freedom=5.0)
    assert plan.lines == planned("student-t:5").lines
    assert "noise student-t:5, of the least error" in plan.recipe_names[0]


# --- the command line


ACCOUNT = (
    "account", "noise", "--n", 1000, "--batch", 200, "--steps", 4, "--vectors", 3,
)  # fmt: skip


@pytest.mark.contract
def test_the_command_line_ranks_as_text_and_json(
    run: Callable[..., tuple[int, str, str]], asked: list[dict[str, Any]], tmp_path: Path
):
    given = (*ACCOUNT, "--eps", 2, "--dimension", 300)
    code, out, _ = run(*given, "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["l1"] for row in rows] == sorted(row["l1"] for row in rows)
    assert rows == [json.loads(json.dumps(row.to_json())) for row in asked[0]["rows"]]
    assert asked[0]["budget"] == Budget(2.0).resolve(1000)
    assert asked[0]["sampling_probability"] == 0.2
    assert asked[0]["bounding"] == EncodedClipping(vectors=3)
    code, out, _ = run(*given)
    assert code == 0
    assert all(row.describe() in out for row in asked[1]["rows"])
    assert not list(tmp_path.iterdir())


@pytest.mark.contract
@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--eps", 2, "--dimension", 0), 2, "dimension"),
        (("--eps", 2, "--dimension", 2**24), 2, "fewer than"),
        (("--eps", -1, "--dimension", 300), 2, "--eps is -1"),
        (("--eps", 2, "--dimension", 300, "--batch", 2000), 2, "1,000 records"),
        (("--eps", 2, "--dimension", 300, "--delta", 1.5), 2, "delta"),
        (("--eps", 2), 2, "--dimension"),
    ],
    ids=str,
)
def test_bad_numbers_are_refused(
    run: Callable[..., tuple[int, str, str]], more: tuple[object, ...], code: int, words: str
):
    found, _, err = run(*ACCOUNT, *more)
    assert found == code
    assert words in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err
