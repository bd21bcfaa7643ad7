"""The papers' figures as the papers compute them, and never as a price."""

from __future__ import annotations

import math

import pytest
from papers import eq9_as_printed

from pasearch.accounting.accountants import price
from pasearch.accounting.events import PoissonGaussian, SelfComposition
from pasearch.accounting.published_bounds import (
    bao_equation_8,
    bao_equation_9_corrected,
    fu_theorem_1,
)
from pasearch.errors import UsageError

TABLE_VIII = {
    "acceptable_loss": 0.05,
    "validation_size": 5000,
    "failure_probability": 0.05,
    "runs": (400,),
    "epsilon": 2.11,
}


@pytest.mark.oracle
def test_eq8():
    value = bao_equation_8(epsilon=0.1, runs=2313, delta_prime=1e-6).value
    assert value == pytest.approx(49.607, abs=5e-4)


@pytest.mark.oracle
def test_eq8_is_useless_for_large_epsilon():
    value = bao_equation_8(epsilon=2.11, runs=60, delta_prime=1e-5).value
    assert value == pytest.approx(996, abs=0.5)


@pytest.mark.oracle
def test_eq9_corrected():
    found = bao_equation_9_corrected(**TABLE_VIII)
    assert found.value is not None
    assert (found.value - 2.11) / 8 == pytest.approx(0.17196, abs=5e-6)
    assert found.value == pytest.approx(3.486, abs=5e-4)


@pytest.mark.oracle
def test_eq9_is_summed_over_the_generations_of_mgrs():
    found = bao_equation_9_corrected(**{**TABLE_VIII, "runs": (40, 20, 10)})
    alone = [bao_equation_9_corrected(**{**TABLE_VIII, "runs": (k,)}).value for k in (40, 20, 10)]
    assert found.value == pytest.approx(sum(each or math.nan for each in alone))
    assert found.value == pytest.approx(9.419, abs=5e-4), "the paper prints 8.53"
    once = bao_equation_9_corrected(**{**TABLE_VIII, "runs": (70,)}).value
    assert once == pytest.approx(3.283, abs=5e-4), "Eq. 9 once is not the paper's rule"


def test_eq9_gives_no_figure_if_one_generation_has_none():
    settings = {**TABLE_VIII, "validation_size": 800}
    assert bao_equation_9_corrected(**{**settings, "runs": (1,)}).value is not None
    assert bao_equation_9_corrected(**{**settings, "runs": (1, 400)}).value is None


def test_eq9_as_printed_is_smaller_and_called_a_misprint():
    printed, corrected = eq9_as_printed(**TABLE_VIII), bao_equation_9_corrected(**TABLE_VIII)
    assert printed.value is not None
    assert corrected.value is not None
    assert printed.value < corrected.value
    assert "misprint" in printed.describe()


def test_eq9_gives_no_figure_where_none_holds():
    assert bao_equation_9_corrected(**{**TABLE_VIII, "validation_size": 50}).value is None
    assert (
        "no figure" in bao_equation_9_corrected(**{**TABLE_VIII, "validation_size": 50}).describe()
    )


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("sigma", "q", "most"),
    [(1.23, 512 / 60_000, 4698), (2.15, 2048 / 60_000, 1157), (1.54, 1024 / 50_000, 1435)],
)
def test_fu_theorem_1(sigma: float, q: float, most: int):
    def claimed(accepted: int) -> float:
        value = fu_theorem_1(
            sampling_probability=q, noise_multiplier=sigma, accepted=accepted, delta=1e-5
        ).value
        assert value is not None
        return value

    assert claimed(most) <= 3 < claimed(most + 1)
    # Were all iterations accepted, the price would be within the claim; ten times as many, and
    # the accepted ones charged only, and it is not.
    assert price(SelfComposition(PoissonGaussian(q, sigma), most), 1e-5).epsilon <= claimed(most)
    assert price(SelfComposition(PoissonGaussian(q, sigma), 10 * most), 1e-5).epsilon > claimed(
        most
    )


@pytest.mark.contract
def test_every_claim_is_labelled():
    for claim in [
        bao_equation_8(epsilon=0.1, runs=10, delta_prime=1e-6),
        bao_equation_9_corrected(**TABLE_VIII),
        eq9_as_printed(**TABLE_VIII),
        fu_theorem_1(sampling_probability=0.01, noise_multiplier=1.0, accepted=5, delta=1e-5),
    ]:
        assert claim.describe().startswith(f"claimed ({claim.source}): epsilon ")
        assert "not a valid bound" in claim.describe()
        assert claim.to_json()["text"] == claim.describe()
        assert claim.formula


def test_bad_numbers_are_refused():
    for make, wrong in [
        (bao_equation_8, {"epsilon": math.nan, "runs": 10, "delta_prime": 1e-6}),
        (bao_equation_8, {"epsilon": 0.1, "runs": 0, "delta_prime": 1e-6}),
        (bao_equation_8, {"epsilon": 0.1, "runs": 10, "delta_prime": 0}),
        (bao_equation_9_corrected, {**TABLE_VIII, "acceptable_loss": 2.0}),
        (bao_equation_9_corrected, {**TABLE_VIII, "validation_size": 0}),
        (eq9_as_printed, {**TABLE_VIII, "epsilon": -1}),
        (
            fu_theorem_1,
            {"sampling_probability": 2, "noise_multiplier": 1.0, "accepted": 5, "delta": 1e-5},
        ),
    ]:
        with pytest.raises(UsageError):
            make(**wrong)


def test_a_claim_too_large_for_a_float_gives_no_figure():
    assert bao_equation_8(epsilon=800.0, runs=10, delta_prime=1e-6).value is None
