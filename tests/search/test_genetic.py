"""PAAS's operators: DEAP's on plain lists, a multiset, and a global `random` that is given back."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasearch.errors import UsageError
from pasearch.runs.keys import Keys, Stream
from pasearch.search.genetic import (
    PrivacyAwareArchitectureSearch,
    StandardWorkflow,
    cross_genotypes,
    mutate,
    mutate_to_other_candidate,
    seed_global_random,
)


class Space:
    """What a strategy needs of a space: sizes, and a uniform draw."""

    def __init__(self, *sizes: int):
        self.sizes = sizes

    def count(self) -> int:
        return math.prod(self.sizes)

    def candidate(self, genotype: tuple[int, ...]) -> tuple[int, ...]:
        """The last gene of four has no effect, as that of a layer which is not there."""
        return genotype[:3] if len(genotype) == 4 else genotype

    def draw(self, generator: np.random.Generator) -> tuple[int, ...]:
        return tuple(int(generator.integers(size)) for size in self.sizes)


SPACE = Space(5, 3, 4, 2)
WIDE = Space(*[10**6] * 10)


def stream(*context: str | int) -> Stream:
    return Keys.from_seed(11).stream("test", *context)


def evolve(
    genotypes: list[tuple[int, ...]], scores: list[float], number: int = 0, **changes: float
) -> tuple[tuple[int, ...], ...]:
    search = PrivacyAwareArchitectureSearch(population=len(genotypes), **changes)  # type: ignore
    fitness = tuple((score, index) for index, score in enumerate(scores))
    return search.evolve(tuple(genotypes), fitness, WIDE, stream("evolve", number))  # type: ignore


class TestGlobalRandom:
    @pytest.mark.unit
    def test_is_the_same_before_and_after(self):
        random.seed(99)
        before = random.getstate()
        cross_genotypes((0,) * 50, (1,) * 50, stream())
        mutate((0,) * 4, SPACE, stream())  # type: ignore[arg-type]
        evolve([(n,) * 10 for n in range(10)], list(range(10)))
        assert random.getstate() == before

    @pytest.mark.unit
    def test_is_given_back_after_an_error(self):
        before = random.getstate()
        with pytest.raises(IndexError), seed_global_random(stream()):
            random.choice([])
        assert random.getstate() == before


class TestCrossover:
    @pytest.mark.oracle
    def test_is_deaps(self):
        from deap import tools

        first, second = tuple(range(40)), tuple(range(100, 140))
        for number in range(10):
            with seed_global_random(stream(number)):
                theirs, _ = tools.cxUniform(list(first), list(second), indpb=0.5)
            assert cross_genotypes(first, second, stream(number)) == tuple(theirs)

    @pytest.mark.property
    @settings(max_examples=50)
    @given(
        pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8),
        number=st.integers(0, 2**20),
    )
    def test_every_gene_is_a_parents(self, pairs: list[tuple[int, int]], number: int):
        first, second = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
        child = cross_genotypes(first, second, stream(number))
        assert isinstance(child, tuple)
        assert all(gene in pair for gene, pair in zip(child, pairs, strict=True))


class TestMutation:
    @pytest.mark.oracle
    def test_is_deaps(self):
        from deap import tools

        parent = (1, 2, 3, 0)
        for number in range(10):
            with seed_global_random(stream(number)):
                (theirs,) = tools.mutUniformInt(list(parent), [0] * 4, [4, 2, 3, 1], indpb=0.25)
            assert mutate(parent, SPACE, stream(number)) == tuple(theirs)  # type: ignore[arg-type]

    @pytest.mark.property
    @settings(max_examples=50)
    @given(sizes=st.lists(st.integers(1, 6), max_size=8), number=st.integers(0, 2**20))
    def test_stays_in_the_space(self, sizes: list[int], number: int):
        mutant = mutate((0,) * len(sizes), Space(*sizes), stream(number))  # type: ignore[arg-type]
        assert len(mutant) == len(sizes)
        assert all(0 <= gene < size for gene, size in zip(mutant, sizes, strict=True))

    @pytest.mark.unit
    def test_a_space_without_genes_has_nothing_to_mutate(self):
        assert mutate((), Space(), stream()) == ()  # type: ignore[arg-type]


class TestEvolve:
    @pytest.mark.unit
    def test_children_come_of_the_fittest(self):
        genotypes = [(n,) * 10 for n in range(10)]
        scores = [3.0, 9, 1, 8, 0, 7, 2, 6, 4, 5]
        genes = {g for n in range(50) for c in evolve(genotypes, scores, n, beta=0, mutation=0)
                 for g in c}  # fmt: skip
        assert genes == {1, 3, 5, 7}

    @pytest.mark.unit
    def test_a_share_of_the_others_are_parents_by_luck(self):
        genotypes = [(n,) * 10 for n in range(10)]
        seen = set()
        for number in range(60):
            children = evolve(genotypes, list(range(10)), number, mutation=0)
            lucky = {gene for child in children for gene in child} - {6, 7, 8, 9}
            assert len(lucky) <= 1
            seen |= lucky
        assert seen == {0, 1, 2, 3, 4, 5}

    @pytest.mark.unit
    def test_a_multiset_keeps_its_copies(self):
        # The paper's union of sets would loop for ever on a population of equal candidates.
        children = evolve([(4,) * 10] * 10, [1.0] * 10, mutation=0)
        assert children == ((4,) * 10,) * 10

    @pytest.mark.unit
    def test_failed_candidates_are_parents_only_when_there_are_no_others(self):
        genotypes = [(n,) * 10 for n in range(10)]
        scores = [-math.inf] * 6 + [0.0] * 4
        genes = {g for n in range(30) for c in evolve(genotypes, scores, n, beta=0, mutation=0)
                 for g in c}  # fmt: skip
        assert genes == {6, 7, 8, 9}
        assert len(evolve(genotypes, [-math.inf] * 10)) == 10

    @pytest.mark.unit
    def test_equal_scores_are_ranked_by_the_tie_break(self):
        search = PrivacyAwareArchitectureSearch(population=4, alpha=0.25, beta=0, mutation=0)
        fitness = ((5.0, 1), (5.0, 3), (5.0, 9), (5.0, 2))
        genotypes = tuple((n,) * 10 for n in range(4))
        assert set(search.evolve(genotypes, fitness, WIDE, stream())) == {(2,) * 10}  # type: ignore

    @pytest.mark.unit
    @pytest.mark.parametrize("population", [1, 2, 3])
    def test_the_smallest_populations_evolve(self, population: int):
        genotypes = [(n,) * 10 for n in range(population)]
        assert len(evolve(genotypes, [0.0] * population)) == population

    @pytest.mark.statistical
    def test_a_fifth_of_the_children_are_mutated(self):
        genotypes = [(0,) * 10] * 50
        mutated = total = 0
        for number in range(40):
            for child in evolve(genotypes, [0.0] * 50, number):
                mutated += any(child)
                total += 1
        # A mutated child has one changed gene or more with probability 1 - .9^10.
        expected = 0.2 * (1 - 0.9**10)
        assert abs(mutated / total - expected) < 5 * math.sqrt(expected * (1 - expected) / total)


class TestSettings:
    @pytest.mark.unit
    @pytest.mark.parametrize("kind", [PrivacyAwareArchitectureSearch, StandardWorkflow])
    @pytest.mark.parametrize(
        "change",
        [
            {"population": 0}, {"population": 2.5}, {"generations": 0}, {"alpha": 1.5},
            {"beta": -0.1}, {"mutation": math.nan}, {"returns": "first"}, {"distinct": 0},
        ],
        ids=str,
    )  # fmt: skip
    def test_bad_ones_are_refused(self, kind: type, change: dict):
        with pytest.raises(UsageError):
            kind(**change)

    @pytest.mark.unit
    @pytest.mark.parametrize(("returns", "winner"), [("best", (0, 0)), ("last", (1, 2))])
    def test_the_winner_is_of_all_generations_or_as_in_the_paper_of_the_last(
        self, returns: str, winner: tuple[int, int]
    ):
        search = PrivacyAwareArchitectureSearch(population=3, generations=2, returns=returns)
        state = search.init()
        for scores in ((100.0, 0.0, 0.0), (1.0, 2.0, 3.0)):
            asked = search.ask(state, SPACE, stream())  # type: ignore[arg-type]
            assert asked is not None
            state = search.tell(state, asked, tuple((score, 0) for score in scores))
        assert search.ask(state, SPACE, stream()) is None  # type: ignore[arg-type]
        assert search.best(state) == winner


class TestRepeats:
    @pytest.mark.unit
    def test_a_mutant_is_another_candidate(self):
        parent = (1, 1, 1, 1)
        mutants = [
            mutate_to_other_candidate(parent, SPACE, stream(number)) for number in range(200)
        ]  # type: ignore
        assert all(SPACE.candidate(each) != (1, 1, 1) for each in mutants)
        plain = [mutate(parent, SPACE, stream(number)) for number in range(200)]  # type: ignore
        assert any(SPACE.candidate(each) == (1, 1, 1) for each in plain)

    @pytest.mark.unit
    def test_where_there_is_one_candidate_it_stays(self):
        assert mutate_to_other_candidate((0,), Space(1), stream()) == (0,)  # type: ignore[arg-type]

    @pytest.mark.unit
    def test_no_candidate_is_trained_twice_while_others_are_left(self):
        search = PrivacyAwareArchitectureSearch(population=8, generations=4)
        state, seen = search.init(), []
        while (asked := search.ask(state, SPACE, stream())) is not None:  # type: ignore[arg-type]
            seen += [SPACE.candidate(each) for each in asked.genotypes]
            scores = tuple((float(sum(each)), 0) for each in asked.genotypes)
            state = search.tell(state, asked, scores)
        assert len(seen) == 32
        assert len(set(seen)) == 32

    @pytest.mark.unit
    def test_a_small_space_is_paid_once_a_candidate(self):
        few = PrivacyAwareArchitectureSearch().within(Space(5, 2))  # type: ignore[arg-type]
        assert (few.trainings, few.trials, few.expected_trainings) == (10, 60, 10.0)
        assert "10 candidates" in few.describe()
        idle = PrivacyAwareArchitectureSearch().within(Space(2, 2, 2, 50))  # type: ignore[arg-type]
        assert idle.trainings == 8  # the last gene has no effect
        for space in (WIDE, Space(60), Space(5, 3, 4, 2)):
            many = PrivacyAwareArchitectureSearch().within(space)  # type: ignore[arg-type]
            assert many.trainings == 60
            assert many == PrivacyAwareArchitectureSearch()
