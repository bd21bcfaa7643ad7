"""Sets that evolve: Algorithm 4's operators, as explicit state that is never empty."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pasearch.errors import UsageError
from pasearch.features.evolution import (
    Evolution,
    Generation,
    crossover,
    draw_masks,
    find_unseen,
    label_masks,
    look_up_fitness,
    masks_from_labels,
    mutate,
)

SHARES = st.floats(0, 1)


def generator(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def some_masks(count: int, features: int, seed: int = 5) -> np.ndarray:
    return draw_masks(count, features, generator(seed))


class TestDraw:
    @pytest.mark.statistical
    def test_is_uniform_among_the_sets_that_are_not_empty(self):
        """8,000 sets of 7; feature by feature with probability .45 is rejected (p < 1e-9)."""
        weights = 2 ** np.arange(3)
        seen = np.bincount(draw_masks(8000, 3, generator()) @ weights, minlength=8)
        assert seen[0] == 0
        assert stats.chisquare(seen[1:]).pvalue > 1e-3
        skewed = (generator().random((8000, 3)) < 0.45) @ weights
        assert stats.chisquare(np.bincount(skewed, minlength=8)[1:]).pvalue < 1e-9


class TestOperators:
    @pytest.mark.statistical
    def test_crossover_takes_each_feature_from_either_parent(self):
        """Where parents agree the child agrees; elsewhere it has either's with probability 1/2."""
        first, second = some_masks(2000, 12, 1), some_masks(2000, 12, 2)
        child = crossover(first, second, generator())
        same = first == second
        assert (child[same] == first[same]).all()
        from_first = (child == first)[~same]
        assert stats.binomtest(int(from_first.sum()), from_first.size).pvalue > 1e-3
        # Each feature by a coin of its own: two neighbours agree in half of the children.
        both = ~same[:, :-1] & ~same[:, 1:]
        agree = ((child == first)[:, :-1] == (child == first)[:, 1:])[both]
        assert stats.binomtest(int(agree.sum()), agree.size).pvalue > 1e-3

    @pytest.mark.statistical
    @pytest.mark.parametrize("features", [4, 50])
    def test_mutation_flips_one_feature_on_average(self, features: int):
        """Flips are Binomial(d, 1/d); rates of 3/2 and .7 are rejected (p < 1e-9)."""
        masks = some_masks(4000, features)
        flips = (mutate(masks, generator()) != masks).sum(axis=1)
        seen = np.bincount(np.minimum(flips, 3), minlength=4)

        def p_value(rate: float) -> float:
            few = stats.binom.pmf([0, 1, 2], features, rate / features)
            return float(stats.chisquare(seen, 4000 * np.append(few, 1 - few.sum())).pvalue)

        assert p_value(1.0) > 1e-3
        assert max(p_value(1.5), p_value(0.7)) < 1e-9


class TestTell:
    @pytest.mark.property
    @settings(max_examples=100, deadline=None)
    @given(
        st.integers(2, 60),
        st.integers(1, 9),
        st.floats(0.01, 1),
        SHARES,
        SHARES,
        st.integers(0, 2**32),
    )
    def test_no_set_is_ever_empty(
        self, k: int, features: int, alpha: float, p_co: float, p_mu: float, seed: int
    ):
        rest = max(0.0, 1 - p_co)
        evolution = Evolution(population=k, alpha=alpha, p_co=p_co, p_mu=p_mu * rest)
        source = generator(seed)
        generation = evolution.first_generation(features, source)
        for number in range(1, 6):
            # The smaller a set the fitter: all parents soon have one feature.
            generation = evolution.tell(generation, -generation.masks.sum(axis=1), source)
            assert generation.number == number
            assert generation.masks.shape == (k, features)
            assert generation.masks.any(axis=1).all()

    @pytest.mark.unit
    def test_a_child_without_features_is_its_first_parent(self):
        """Of {0} and {1} a crossover is empty with probability 1/4: then it is S1."""
        masks = np.eye(2, dtype=bool)
        evolution = Evolution(population=4000, alpha=1.0, p_co=1.0, p_mu=0.0)
        start = Generation(0, np.tile(masks, (2000, 1)))
        children = evolution.tell(start, np.zeros(4000), generator()).masks
        sizes = np.bincount(children.sum(axis=1), minlength=3)
        # Half of the pairs are equal; of the others 1/4 are both, 1/2 one, 1/4 empty.
        expected = np.array([0.875, 0.125]) * 4000
        assert sizes[0] == 0
        assert stats.chisquare(sizes[1:], expected).pvalue > 1e-3

    @pytest.mark.unit
    def test_children_descend_from_the_fittest_alone(self):
        masks = np.zeros((100, 40), dtype=bool)
        masks[np.arange(100), np.arange(100) % 40] = True
        fitness = np.zeros(100)
        fitness[[7, 31, 12]] = 1.0, 3.0, 2.0
        evolution = Evolution(population=100, alpha=0.03, p_co=0.7, p_mu=0.0)
        children = evolution.tell(Generation(0, masks), fitness, generator()).masks
        assert set(np.flatnonzero(children.any(axis=0)).tolist()) == {7, 31, 12}

    @pytest.mark.unit
    def test_of_equals_the_earlier_are_parents_and_a_failed_set_is_none(self):
        masks = np.eye(6, dtype=bool)
        evolution = Evolution(population=6, alpha=0.5, p_co=0.0, p_mu=0.0)
        fitness = [-math.inf, 0, 0, 0, 0, 0]
        children = evolution.tell(Generation(0, masks), fitness, generator()).masks
        assert not children[:, [0, 4, 5]].any()

    @pytest.mark.statistical
    def test_parents_are_distinct_and_a_child_is_one_thing_by_its_probability(self):
        """Two parents with disjoint features tell crossover, mutation and copy apart."""
        parents = np.zeros((2, 64), dtype=bool)
        parents[0, :32] = parents[1, 32:] = True
        k = 4000
        start = Generation(0, np.concatenate([parents, np.ones((k - 2, 64), dtype=bool)]))
        fitness = np.zeros(k)
        fitness[:2] = 1.0
        evolution = Evolution(population=k, alpha=2 / k, p_co=0.5, p_mu=0.3)
        children = evolution.tell(start, fitness, generator()).masks
        nearest = np.minimum(*((children != parent).sum(axis=1) for parent in parents))
        crossed, copied = (nearest > 8).sum(), (nearest == 0).sum()
        # Were the two parents equal, a crossover would be a copy: all are 32 coins of their own.
        law = np.array([0.5, 0.3 * (1 - 1 / 64) ** 64 + 0.2])
        expected = k * np.append(law, 1 - law.sum())
        assert stats.chisquare([crossed, copied, k - crossed - copied], expected).pvalue > 1e-3
        from_first = (children[nearest == 0] == parents[0]).all(axis=1)
        assert stats.binomtest(int(from_first.sum()), from_first.size).pvalue > 1e-3

    @pytest.mark.unit
    def test_other_fitness_is_refused(self):
        for fitness in [[1.0, 2.0], [1.0, math.nan, 2.0], [[1.0, 2.0, 3.0]]]:
            evolution = Evolution(population=3)
            with pytest.raises(UsageError, match="a number for each of 3 sets"):
                evolution.tell(evolution.first_generation(4, generator()), fitness, generator())


class TestNumbers:
    @pytest.mark.unit
    def test_probabilities_above_one_together_are_refused_in_words(self):
        with pytest.raises(UsageError, match=r"p_co \+ p_mu is 0.7 \+ 0.4 = 1.1: expected at most"):
            Evolution(p_co=0.7, p_mu=0.4)

    @pytest.mark.unit
    def test_probabilities_that_add_up_to_one_are_not(self):
        for p_co in [0.1, 0.3, 0.7, 0.9]:
            assert Evolution(p_co=p_co, p_mu=round(1 - p_co, 1)).p_co == p_co

    @pytest.mark.unit
    def test_other_numbers_are_refused(self):
        for values in [
            {"population": 1},
            {"population": 10.0},
            {"alpha": 0.0},
            {"alpha": 1.1},
            {"alpha": math.nan},
            {"p_co": -0.1},
            {"p_mu": math.nan},
            {"p_co": 1.0, "p_mu": 1e-9},
        ]:
            with pytest.raises(UsageError, match="expected"):
                Evolution(**values)

    @pytest.mark.unit
    def test_so_many_become_parents(self):
        for population, alpha, parents in [
            (5000, 0.03, 150),
            (2, 0.01, 2),
            (10, 0.21, 3),
            (600, 0.05, 30),
            (7, 1.0, 7),
        ]:
            assert Evolution(population=population, alpha=alpha).parents == parents


class TestState:
    @pytest.mark.unit
    def test_a_generation_cannot_be_changed(self):
        masks = np.ones((2, 3), dtype=bool)
        generation = Generation(0, masks)
        masks[0, 0] = False
        assert generation.masks.all()
        with pytest.raises(ValueError, match="read-only"):
            generation.masks[0, 0] = False


class TestMemory:
    @pytest.mark.unit
    def test_a_label_names_its_set_and_no_other(self):
        masks = some_masks(200, 13)
        named = label_masks(masks)
        assert (masks_from_labels(named, 13) == masks).all()
        assert len(set(named)) == len(np.unique(masks, axis=0))

    @pytest.mark.unit
    def test_a_set_is_scored_once(self):
        masks = np.array([[1, 0], [0, 1], [1, 0], [1, 1]], dtype=bool)
        known = {label_masks(masks)[1]: 5.0}
        fresh = find_unseen(masks, known)
        assert fresh.tolist() == [0, 3]
        known |= dict(zip(label_masks(masks[fresh]), [7.0, 9.0], strict=True))
        assert find_unseen(masks, known).tolist() == []
        assert look_up_fitness(masks, known).tolist() == [7.0, 5.0, 7.0, 9.0]
        assert json.loads(json.dumps(known)) == known
