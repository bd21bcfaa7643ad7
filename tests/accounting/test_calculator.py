from __future__ import annotations

import pytest

from pasearch.accounting.accountants import price
from pasearch.accounting.calculator import RUN_COUNT_NAMES, solve
from pasearch.accounting.events import Gaussian, PoissonGaussian, SelfComposition
from pasearch.errors import BudgetError, UsageError

NUMBERS = {"delta": 1e-5, "sigma": 1.5, "steps": 400, "batch": 256, "n": 10_000}


@pytest.fixture(scope="module")
def epsilon() -> float:
    (answer,) = solve(**NUMBERS)
    return answer.epsilon


def test_epsilon_is_the_price_of_the_training(epsilon: float):
    event = SelfComposition(PoissonGaussian(256 / 10_000, 1.5), 400)
    assert epsilon == price(event, 1e-5).epsilon


@pytest.mark.contract
@pytest.mark.parametrize("wanted", sorted(NUMBERS))
def test_any_number_from_the_rest(wanted: str, epsilon: float):
    given = {name: value for name, value in NUMBERS.items() if name != wanted}
    (answer,) = solve(epsilon=epsilon, **given)
    assert answer.solved == wanted
    assert answer.epsilon <= epsilon
    assert getattr(answer, wanted) == pytest.approx(NUMBERS[wanted], rel=2e-2)
    assert answer.describe().startswith(wanted)
    assert answer.to_json()[wanted] == getattr(answer, wanted)


def test_the_most_candidates_that_fit():
    for law in RUN_COUNT_NAMES:
        (answer,) = solve(epsilon=3.0, law=law, **NUMBERS)
        assert answer.solved == "candidates"
        assert answer.candidates is not None
        assert answer.epsilon <= 3.0
        assert answer.candidates >= 2
        (again,) = solve(law=law, candidates=answer.candidates, **NUMBERS)
        assert again.epsilon == pytest.approx(answer.epsilon)


def test_without_a_law_every_one_is_priced_cheapest_first():
    answers = solve(candidates=10, **NUMBERS)
    assert {answer.law for answer in answers} == set(RUN_COUNT_NAMES)
    costs = [answer.epsilon for answer in answers]
    assert costs == sorted(costs)


def test_sigma_for_a_search(epsilon: float):
    (answer,) = solve(**{**NUMBERS, "sigma": None}, epsilon=epsilon, candidates=10, law="geometric")
    assert answer.epsilon <= epsilon
    assert answer.sigma > NUMBERS["sigma"]


def test_a_whole_batch_has_no_sampling():
    (answer,) = solve(delta=1e-5, sigma=9.0, steps=4, batch=100, n=100)
    assert answer.epsilon == price(SelfComposition(Gaussian(9.0), 4), 1e-5).epsilon


def test_what_cannot_be_solved_is_refused():
    for numbers, message in [
        ({}, "omitted: epsilon, delta, sigma, steps, batch, n"),
        ({**NUMBERS, "epsilon": 1.0}, "omitted: nothing"),
        ({**NUMBERS, "law": "uniform", "candidates": 3}, "law 'uniform' is unknown"),
        ({**NUMBERS, "batch": 10_001}, "at most n"),
        ({**NUMBERS, "sigma": -1.0}, "sigma"),
        ({**NUMBERS, "delta": 1.0}, "delta"),
        ({**NUMBERS, "steps": 0}, "steps"),
        ({**NUMBERS, "candidates": 2.5, "law": "composed"}, "an integer"),
        ({**NUMBERS, "candidates": 1, "law": "geometric"}, "mean"),
    ]:
        with pytest.raises(UsageError, match=message):
            solve(**numbers)


def test_what_no_value_can_pay_is_a_budget_error():
    with pytest.raises(BudgetError, match="too small"):
        solve(epsilon=1e-4, **{**NUMBERS, "steps": None})
