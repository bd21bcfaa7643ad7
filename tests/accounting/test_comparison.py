"""Noise at equal price: rows, the search over a family, and what no density can gain."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from scipy.special import airy, airye

from pasearch.accounting import calibration as comparison
from pasearch.accounting.additive import ORDERS, Shifts, additive_rdp
from pasearch.accounting.calibration import (
    CalibratedDensity,
    calibrate_scale,
    compare_densities,
    compute_epsilon,
)
from pasearch.accounting.densities import (
    Cauchy,
    Density,
    GaussianNoise,
    GeneralisedNormal,
    HyperbolicSecant,
    LaplaceNoise,
    Logistic,
    StudentT,
    Tabulated,
    VarianceGamma,
    tabulate_density,
)
from pasearch.errors import BudgetError, UsageError

FEW = ORDERS[:31]
MANY = ORDERS[:63]
ONE = Shifts(values=(1.0,), counts=(1,))
EACH: list[Density] = [
    GaussianNoise(),
    StudentT(),
    StudentT(freedom=30.0),
    LaplaceNoise(),
    HyperbolicSecant(),
    Logistic(),
    GeneralisedNormal(power=1.5),
    GeneralisedNormal(power=1.75),
    VarianceGamma(),
]


def airy_squared() -> Tabulated:
    """The density of least E|z| at a given Fisher information: Ai(|x| - 1.0188) squared."""

    def logs(x: np.ndarray) -> np.ndarray:
        y = np.abs(x) - 1.018792971647471
        far = np.maximum(y, 1.0)
        near = np.log(airy(np.minimum(y, 1.0))[0])
        return 2 * np.where(y < 1, near, np.log(airye(far)[0]) - 2 / 3 * far**1.5)

    return tabulate_density(logs, reach=8.0, knots=60)


def compare_divergence(
    densities: Iterable[Density], shifts: Shifts, q: float, order: int, divergence: float
) -> list[CalibratedDensity]:
    """Return the densities at equal Renyi divergence of one step: Nasr et al., Fig. 6 (order 2)."""

    def cost(density: Density) -> float:
        return float(additive_rdp(density, shifts, q, np.array([float(order)]))[0])

    rows = []
    for each in densities:
        at = each.with_scale(
            calibrate_scale(lambda scale, d=each: cost(d.with_scale(scale)), divergence)
        )
        rows.append(CalibratedDensity(density=at, price=cost(at)))
    return sorted(rows, key=lambda row: row.mean_absolute)


@pytest.mark.unit
def test_rows_cost_the_same_and_come_by_their_l1_error():
    rows = compare_densities(
        [Cauchy(), LaplaceNoise(), GaussianNoise()], ONE, 0.1, 20, 2.0, 1e-5, orders=FEW
    )
    assert [row.density.name for row in rows][-1] == "cauchy"
    for row in rows:
        assert 2.0 * 0.999 < row.price <= 2.0
        assert row.mean_absolute == row.density.mean_absolute
    assert rows[-1].to_json()["standard_deviation"] is None
    assert rows[0].to_json()["density"]["name"] == rows[0].density.name


@pytest.mark.unit
def test_student_s_t_does_not_beat_the_gaussian_where_shifts_are_small():
    """Nasr et al., Fig. 6 says so: at 10^5 coordinates l1 is the same, and l2 is 3.5 % more."""
    shifts = Shifts(values=(10**-2.5,), counts=(100_000,))
    found = compare_divergence([GaussianNoise(), StudentT()], shifts, 0.1, 2, 0.01)
    by_name = {row.density.name: row for row in found}
    t, gaussian = by_name["student-t"], by_name["gaussian"]
    assert t.price == pytest.approx(gaussian.price, rel=1e-3)
    assert t.standard_deviation == pytest.approx(1.035 * gaussian.standard_deviation, rel=1e-3)
    assert t.mean_absolute == pytest.approx(0.999 * gaussian.mean_absolute, rel=1e-3)


@pytest.mark.unit
def test_no_law_gains_much_l1_where_shifts_are_small():
    """Least E|z| sqrt(J) of any density: .79160 (Airy's, squared), for .79788 of the Gaussian."""
    shifts = Shifts(values=(1e-2,), counts=(10_000,))
    rows = compare_divergence([*EACH, airy_squared()], shifts, 0.1, 2, 0.01)
    gaussian = next(row for row in rows if row.density.name == "gaussian")
    assert rows[0].density.name == "tabulated"
    assert rows[0].mean_absolute == pytest.approx(0.9922 * gaussian.mean_absolute, rel=5e-4)
    assert rows[0].mean_absolute < rows[1].mean_absolute
    for row in rows:
        assert row.mean_absolute >= 0.9917 * gaussian.mean_absolute
        assert row.standard_deviation >= (1 - 1e-3) * gaussian.standard_deviation


@pytest.mark.unit
def test_bad_targets_are_refused():
    for target in [0.0, float("nan"), -1.0]:
        with pytest.raises(UsageError, match="epsilon"):
            compare_densities([GaussianNoise()], ONE, 0.5, 1, target, 1e-5)


@pytest.mark.unit
class TestTheScale:
    @pytest.mark.parametrize("density", [GaussianNoise(), StudentT(), LaplaceNoise()], ids=repr)
    def test_the_scale_is_the_least_that_costs_no_more(self, density: Density):
        scale = compare_densities([density], ONE, 0.05, 100, 2.0, 1e-5, orders=MANY)[
            0
        ].density.scale

        def cost(scale: float) -> float:
            return compute_epsilon(density.with_scale(scale), ONE, 0.05, 100, 1e-5, MANY)

        assert cost(scale) <= 2.0
        assert cost(scale / 1.001) > 2.0

    def test_a_budget_that_no_scale_meets_is_refused(self, monkeypatch):
        monkeypatch.setattr(comparison, "compute_epsilon", lambda *_: math.inf)
        with pytest.raises(BudgetError, match="No scale"):
            compare_densities([GaussianNoise()], ONE, 0.5, 1, 1.0, 1e-5)

    def test_bad_numbers_are_refused(self):
        for changes in [
            {"steps": 0},
            {"epsilon": 0.0},
            {"epsilon": math.nan},
            {"delta": 1.0},
            {"delta": math.nan},
        ]:
            good = {"sampling_probability": 0.5, "steps": 1, "epsilon": 1.0, "delta": 1e-5}
            with pytest.raises(UsageError):
                compare_densities([GaussianNoise()], ONE, **{**good, **changes})
