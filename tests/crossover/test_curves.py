"""Definition 2 on a grid, its interval, the envelope, and the cost of privacy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pasearch.crossover.curves import (
    estimate_mean_and_half_width,
    find_crossover,
    find_simplest_models,
)

GRID = tuple(float(each) for each in np.geomspace(0.1, 10, 12))
NAMES = ("simple", "complex")


def made(cross: float, repeats: int = 10, noise: float = 0.0, seed: int = 0) -> tuple:
    """Errors of two models, of which the simple one is the better one up to `cross`."""
    draw = np.random.default_rng(seed)
    logs = np.log(np.array(GRID))[:, None]
    shared = noise * draw.standard_normal((len(GRID), repeats))
    simple = 0.3 + shared + noise * draw.standard_normal((len(GRID), repeats))
    other = 0.3 - 0.05 * (logs - math.log(cross)) + shared
    return simple, other + noise * draw.standard_normal((len(GRID), repeats))


class TestDefinition2:
    @pytest.mark.oracle
    def test_it_is_where_two_lines_cross(self):
        for cross in [0.13, 0.5, 1.0, 7.0]:
            found = find_crossover(*made(cross), GRID, NAMES)
            assert found.epsilon == pytest.approx(cross)
            assert found.every == pytest.approx((cross,))

    @pytest.mark.unit
    def test_a_simple_model_that_never_wins_or_always_does(self):
        never, always = (
            find_crossover(*made(0.01), GRID, NAMES),
            find_crossover(*made(99.0), GRID, NAMES),
        )
        assert (never.epsilon, always.epsilon) == (0.0, math.inf)
        assert never.text(GRID) == "< 0.1 (in every resample)"
        assert always.text(GRID) == "> 10 (in every resample)"

    @pytest.mark.unit
    def test_of_several_crossings_it_is_the_last_and_all_are_told(self):
        lead = np.array([-1, 1, -1, -1, 1, 1, 1, 1, 1, 1, 1, 1], float)[:, None] * np.ones((1, 3))
        found = find_crossover(lead, np.zeros_like(lead), GRID, NAMES)
        assert len(found.every) == 3
        assert found.epsilon == pytest.approx(max(found.every))
        assert GRID[3] < found.epsilon < GRID[4]

    @pytest.mark.unit
    def test_one_repeat_has_no_interval_of_its_own(self):
        found = find_crossover(*made(1.0, repeats=1), GRID, NAMES)
        assert (found.low, found.high) == (0.0, math.inf), "nothing is known of its spread"

    def test_in_words(self):
        found = find_crossover(*made(1.0, noise=1e-5), GRID, NAMES)
        assert found.sentence(GRID).startswith(
            "simple is better than complex up to epsilon 1 (95 %"
        )
        never = find_crossover(*made(GRID[0] / 10, noise=1e-5), GRID, NAMES)
        assert "complex is better than simple at every epsilon (" in never.sentence(GRID)
        always = find_crossover(*made(GRID[-1] * 10, noise=1e-5), GRID, NAMES)
        assert "simple is better than complex at every epsilon (" in always.sentence(GRID)


@pytest.mark.statistical
def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    """Made-up curves with a known crossing: 90 to 99 % of 95 % intervals hold it."""
    for repeats in [5, 20]:
        tries, held = 150, 0
        for seed in range(tries):
            found = find_crossover(
                *made(1.0, repeats, noise=0.03, seed=seed), GRID, NAMES, seed=seed
            )
            held += found.low <= 1.0 <= found.high
        assert 0.90 <= held / tries <= 0.99


@pytest.mark.oracle
def test_a_band_is_students_interval():
    means, halves = estimate_mean_and_half_width(np.array([[1.0, 2.0, 3.0]]))
    assert means.tolist() == [2.0]
    assert halves[0] == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert estimate_mean_and_half_width(np.array([[1.0]]))[1].tolist() == [0.0]


@pytest.mark.statistical
def test_equal_models_differ_significantly_in_one_of_twenty_comparisons_at_most():
    """Three equal models, 12 epsilons, 5 repeats: 36 two-sided tests, one conclusion."""
    draw, tries = np.random.default_rng(0), 1000
    errors = 0.2 + 0.01 * draw.standard_normal((tries, 3, len(GRID), 5))
    assert sum(any(find_simplest_models(each)) for each in errors) / tries <= 0.06
