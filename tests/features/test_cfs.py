"""CFS-Greedy and CFS-GA: equal to brute force, and about as good as each other."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasearch.errors import UsageError
from pasearch.features.cfs import cfs_genetic, cfs_greedy
from pasearch.features.evolution import Evolution

FEW: dict[str, Any] = {"population": 60, "generations": 8, "alpha": 0.2, "p_co": 0.7, "p_mu": 0.2}


def eq7(members: tuple[int, ...], to_class: np.ndarray, between: np.ndarray) -> float:
    """Eq. 7 as printed: means over members, and over pairs of them."""
    k = len(members)
    pairs = [between[i, j] for i, j in itertools.combinations(members, 2)]
    mean = sum(pairs) / len(pairs) if pairs else 0.0
    return k * (sum(to_class[i] for i in members) / k) / math.sqrt(k + k * (k - 1) * mean)


@st.composite
def correlations(draw: st.DrawFn, most: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Random ones in 64ths: sums of them are exact, so equal merits are equal."""
    d = draw(st.integers(1, most))
    parts = st.integers(0, 8) if draw(st.booleans()) else st.integers(0, 64)
    to_class = np.array(draw(st.lists(parts, min_size=d, max_size=d))) / 64
    square = np.array(draw(st.lists(parts, min_size=d * d, max_size=d * d))).reshape(d, d)
    between = np.triu(square, 1) / 64
    return to_class, between + between.T + np.eye(d)


def random_correlations(d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three groups of features that repeat each other, as one-hot columns do."""
    generator = np.random.default_rng(seed)
    group = generator.integers(3, size=d)
    between = np.where(group[:, None] == group, 0.7, 0.1) * generator.random((d, d))
    between = np.maximum(np.triu(between, 1), np.triu(between, 1).T)
    return generator.random(d) ** 2, between + np.eye(d)


class TestGreedy:
    @pytest.mark.property
    @settings(max_examples=150, deadline=None)
    @given(correlations())
    def test_every_step_is_the_best_by_brute_force(self, given_: tuple[np.ndarray, np.ndarray]):
        """Eq. 7 anew for every candidate of every step; of equals the first."""
        order = cfs_greedy(*given_)
        chosen: tuple[int, ...] = ()
        for step in range(len(given_[0])):
            values = {
                i: eq7((*chosen, i), *given_) for i in range(len(given_[0])) if i not in chosen
            }
            best = max(values.values())
            equal = [i for i, value in values.items() if value == pytest.approx(best, abs=1e-12)]
            assert order.features[step] == equal[0]
            assert order.merits[step] == pytest.approx(best, abs=1e-12)
            chosen = order.features[: step + 1]
        assert sorted(chosen) == list(range(len(given_[0])))

    @pytest.mark.property
    @settings(max_examples=60, deadline=None)
    @given(correlations())
    def test_chooses_as_many_as_have_the_largest_merit(self, given_: tuple[np.ndarray, np.ndarray]):
        order = cfs_greedy(*given_)
        best = [value == pytest.approx(max(order.merits), abs=1e-12) for value in order.merits]
        assert best.index(True) == order.size - 1 == len(order.selected) - 1
        assert order.merit == order.merits[order.size - 1]

    @pytest.mark.property
    @settings(max_examples=60, deadline=None)
    @given(correlations())
    def test_until_no_gain_stops_at_the_first_step_that_raises_nothing(
        self, given_: tuple[np.ndarray, np.ndarray]
    ):
        order = cfs_greedy(*given_, until_no_gain=True)
        upto = order.merits[: order.size]
        assert all(later > earlier for earlier, later in itertools.pairwise(upto))
        last = order.size == len(order.merits)
        assert last or order.merits[order.size] <= order.merit * (1 + 1e-12)

    @pytest.mark.unit
    def test_the_two_ways_to_stop_differ_where_merit_rises_again(self):
        """By two features the merit is .75, as by one; by all three .775."""
        to_class, between = np.array([0.75, 0.375, 0.375]), np.full((3, 3), 0.125)
        assert cfs_greedy(to_class, between).merits == pytest.approx((0.75, 0.75, 0.6**0.5))
        assert cfs_greedy(to_class, between).size == 3
        assert cfs_greedy(to_class, between, until_no_gain=True).size == 1

    @pytest.mark.unit
    def test_equal_merits_are_equal_however_they_were_summed(self):
        """With 0, 1 and 2 have the same merit: in floating point 2 is ahead by 1.1e-16."""
        to_class = np.array([40, 8, 14]) / 64
        between = np.array([[64, 0, 17], [0, 64, 0], [17, 0, 64]]) / 64
        assert eq7((0, 1), to_class, between) == pytest.approx(eq7((0, 2), to_class, between))
        assert cfs_greedy(to_class, between).features == (0, 1, 2)
        swapped = np.array([0, 2, 1])
        given_ = to_class[swapped], between[np.ix_(swapped, swapped)]
        assert cfs_greedy(*given_).features == (0, 1, 2)

    @pytest.mark.unit
    def test_a_size_is_kept(self):
        for size in [1, 3, 9]:
            given_ = random_correlations(9, 1)
            assert cfs_greedy(*given_, size).selected == cfs_greedy(*given_).features[:size]

    @pytest.mark.unit
    def test_other_sizes_are_refused(self):
        for size in [0, 10, -1, 2.0, math.nan]:
            with pytest.raises(UsageError, match="size is"):
                cfs_greedy(*random_correlations(9, 1), size)

    @pytest.mark.unit
    def test_a_size_beside_until_no_gain_is_refused(self):
        with pytest.raises(UsageError, match="Remove one of them"):
            cfs_greedy(*random_correlations(9, 1), 3, until_no_gain=True)

    @pytest.mark.unit
    def test_where_nothing_tells_anything_one_feature_is_chosen(self):
        order = cfs_greedy(np.zeros(4), np.zeros((4, 4)))
        assert (order.selected, order.merit) == ((0,), 0.0)


class TestGenetic:
    @pytest.mark.oracle
    def test_is_mostly_as_good_as_greedy_and_never_better_than_all_sets(self):
        """Thirty seeds; a search among sixty random sets alone is as good less often."""
        for d in [6, 10]:
            as_good = optimal = drawn = 0
            for seed in range(30):
                to_class, between = random_correlations(d, seed)
                best = max(
                    eq7(members, to_class, between)
                    for k in range(1, d + 1)
                    for members in itertools.combinations(range(d), k)
                )
                found = cfs_genetic(to_class, between, generator=np.random.default_rng(seed), **FEW)
                assert found.merit == pytest.approx(
                    eq7(found.selected, to_class, between), abs=1e-12
                )
                assert found.merit <= best + 1e-12
                goal = cfs_greedy(to_class, between).merit - 1e-12
                as_good += found.merit >= goal
                optimal += found.merit >= best - 1e-12
                drawn += found.best[0] >= goal
            assert as_good >= 27
            assert optimal >= 24
            assert drawn < as_good

    @pytest.mark.property
    @settings(max_examples=60, deadline=None)
    @given(correlations(), st.integers(0, 2**32), st.floats(0, 1), st.floats(0, 1))
    def test_the_set_is_never_empty(
        self, given_: tuple[np.ndarray, np.ndarray], seed: int, p_co: float, p_mu: float
    ):
        found = cfs_genetic(
            *given_, generator=np.random.default_rng(seed), population=5, generations=6, alpha=0.5,
            p_co=p_co, p_mu=p_mu * (1 - p_co),
        )  # fmt: skip
        assert len(found.selected) >= 1
        assert list(found.selected) == sorted(set(found.selected))
        assert found.merit == pytest.approx(eq7(found.selected, *given_), abs=1e-12)

    @pytest.mark.unit
    def test_evolves_as_often_as_there_are_generations_and_returns_the_last_ones_best(self):
        """The operators, told the same merits step by step, end where it ends."""
        to_class, between = random_correlations(9, 4)
        found = cfs_genetic(to_class, between, generator=np.random.default_rng(7), **FEW)
        source = np.random.default_rng(7)
        evolution = Evolution(**{name: v for name, v in FEW.items() if name != "generations"})
        generation, best, members = evolution.first_generation(9, source), [], []
        for number in range(FEW["generations"] + 1):
            members = [tuple(np.flatnonzero(mask).tolist()) for mask in generation.masks]
            fitness = np.array([eq7(each, to_class, between) for each in members])
            best.append(float(fitness.max()))
            assert generation.number == number
            # Rounded, so that equal merits rank alike however they were summed.
            if number < FEW["generations"]:
                generation = evolution.tell(generation, fitness.round(12), source)
        assert found.best == pytest.approx(best, abs=1e-12)
        assert found.selected in members

    @pytest.mark.unit
    def test_other_numbers_are_refused(self):
        for values in [{"p_co": 0.9}, {"generations": 0}, {"population": 1}]:
            with pytest.raises(UsageError, match="expected"):
                cfs_genetic(
                    *random_correlations(4, 1), generator=np.random.default_rng(0), **FEW | values
                )


class TestBoth:
    @pytest.mark.unit
    def test_other_correlations_are_refused(self):
        for to_class, between in [
            (np.zeros(3), np.zeros((2, 2))),
            (np.zeros(3), np.zeros(3)),
            (np.zeros((3, 1)), np.zeros((3, 3))),
            (np.zeros(0), np.zeros((0, 0))),
            (np.array([0.1, math.nan]), np.zeros((2, 2))),
            (np.zeros(2), np.array([[1.0, math.inf], [math.inf, 1.0]])),
        ]:
            with pytest.raises(UsageError, match="of one feature or more"):
                cfs_greedy(to_class, between)
            with pytest.raises(UsageError, match="of one feature or more"):
                cfs_genetic(to_class, between, generator=np.random.default_rng(0), **FEW)
