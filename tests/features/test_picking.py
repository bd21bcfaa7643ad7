"""Picking features privately: points of bounded sensitivity, and both laws exactly."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from selections import feature_points

from pasearch.accounting.accountants import price
from pasearch.accounting.events import PureDP, SelfComposition
from pasearch.data.column import Column
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError
from pasearch.features import top_features as top
from pasearch.features.contingency import Attribute, Attributes, make_attributes
from pasearch.features.top_features import (
    ClassShares,
    GumbelTop,
    PermuteAndFlip,
    TopMechanism,
    score_association,
)
from pasearch.runs.keys import Keys

WAYS = [GumbelTop, PermuteAndFlip]
POINTS = [60, 64, 58, 62]
Law = dict[tuple[int, ...], float]


def coins(points: list[int], epsilon: float, most: int) -> np.ndarray:
    return np.exp(epsilon * (np.array(points) - max(points)) / (2 * most))


def exponential(points: list[int], epsilon: float, most: int) -> np.ndarray:
    return coins(points, epsilon, most) / coins(points, epsilon, most).sum()


def permuted(points: list[int], epsilon: float, most: int) -> np.ndarray:
    """Permute and flip by its definition: the mean over all orders."""
    heads, law = coins(points, epsilon, most), np.zeros(len(points))
    orders = list(itertools.permutations(range(len(points))))
    for order in orders:
        still = 1.0
        for index in order:
            law[index] += still * heads[index] / len(orders)
            still *= 1 - heads[index]
    return law


LAWS: dict[type[TopMechanism], Callable[[list[int], float, int], np.ndarray]] = {
    GumbelTop: exponential,
    PermuteAndFlip: permuted,
}


def top_law(
    way: type[TopMechanism], points: list[int], epsilon: float, k: int, most: int = 1
) -> Law:
    """The probability of every ordered choice of k, from one pick's law."""
    law: Law = {(): 1.0}
    for _ in range(k):
        longer: Law = {}
        for chosen, chance in law.items():
            left = [i for i in range(len(points)) if i not in chosen]
            for i, p in zip(left, LAWS[way]([points[i] for i in left], epsilon, most), strict=True):
                longer[(*chosen, i)] = chance * float(p)
        law = longer
    return law


def released(way: type[TopMechanism], epsilon: float, k: int, count: int, most: int = 1) -> Counter:
    stream, mechanism = Keys.from_seed(5).stream("p"), way(epsilon=epsilon, k=k, sensitivity=most)
    return Counter(mechanism.release(POINTS, stream.child(n)) for n in range(count))


def p_value(seen: Counter, law: Law) -> float:
    assert set(seen) <= set(law)
    expected = np.array(list(law.values())) * seen.total()
    assert expected.min() > 5
    return float(stats.chisquare([seen[choice] for choice in law], expected).pvalue)


class Undecided(Exception):
    """The mechanism drew more than it was given: the probabilities of what may come next."""


def enumerated(run: Callable[[Callable], Any]) -> dict[Any, float]:
    """The probability of each result of `run(draw)`, over all that `draw` may answer."""
    law: dict[Any, float] = defaultdict(float)
    stack: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while stack:
        path, chance = stack.pop()
        fed = iter(path)

        def draw(chances: list[float], fed: Iterator[int] = fed) -> int:
            for index in fed:
                return index
            raise Undecided(chances)

        try:
            law[run(draw)] += chance
        except Undecided as asked:
            branches = [chance * p for p in asked.args[0]]
            stack += [((*path, i), p) for i, p in enumerate(branches) if p > 0]
    return dict(law)


def law_of_code(
    monkeypatch: pytest.MonkeyPatch, points: list[int], epsilon: float, k: int, most: int
) -> Law:
    """Permute and flip as written, over every integer and coin it may draw."""

    def run(draw: Callable) -> tuple[int, ...]:
        def decays(gamma: Fraction, _: object) -> bool:
            heads = math.exp(-gamma)
            return draw([1 - heads, heads]) == 1

        class Source:
            def child(self, *_: object) -> Source:
                return self

            def integers(self) -> Source:
                return self

            def draw_below(self, bound: int) -> int:
                return draw([1 / bound] * bound)

        monkeypatch.setattr(top, "draw_bernoulli_exp", decays)
        mechanism = PermuteAndFlip(epsilon=epsilon, k=k, sensitivity=most)
        return mechanism.release(points, Source())  # type: ignore[arg-type]

    return enumerated(run)


def one_column(size: int, classes: int, *features: tuple[int, ...]) -> Attributes:
    column = Attribute(name="x", size=size, encoding="one-hot", features=features)
    return Attributes(items=(column, Attribute(name="y", size=classes, encoding="class")))


class TestPoints:
    @pytest.mark.unit
    def test_are_the_formula(self):
        # Code 0: one record of each class; code 1: two of class 1. Shares 1/4, 3/4.
        points = score_association(np.array([[1, 1], [0, 2]]), ClassShares(thousandths=(250, 750)))
        assert points == abs(1000 - 500) + abs(1000 - 1500) + abs(0 - 500) + abs(2000 - 1500)

    @pytest.mark.property
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 1)), max_size=30),
        st.lists(st.integers(0, 9), min_size=2, max_size=2).filter(any),
        st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=3),
    )
    def test_are_a_plain_loop_over_each_features_own_cells(
        self, records: list[tuple[int, int]], shares: list[int], features: list[tuple[int, ...]]
    ):
        """A feature is any function of its column's code."""
        rounded = ClassShares.of(shares)
        slow = []
        for feature in features:
            cells = Counter((feature[v], c) for v, c in records if v >= 0)
            whole = Counter(v for v, _ in cells.elements())
            slow.append(
                sum(
                    abs(1000 * cells[v, c] - share * whole[v])
                    for v in range(4)
                    for c, share in enumerate(rounded.thousandths)
                )
            )
        codes = np.array(records, dtype=np.int16).reshape(-1, 2)
        codes[codes[:, 0] < 0] = -1
        assert feature_points(codes, one_column(4, 2, *features), rounded) == slow

    @pytest.mark.oracle
    def test_one_record_moves_them_by_most_and_no_more(self):
        """Every data set of up to four records, three codes, each class; every record nulled."""
        for shares in [(250, 750), (500, 500), (0, 1000), (100, 300, 600)]:
            of, column = (
                ClassShares(thousandths=shares),
                one_column(3, len(shares), (0, 1, 2), (1, 0, 0)),
            )
            kinds, moved = list(itertools.product(range(3), range(len(shares)))), [0, 0]
            for size in range(1, 5):
                for records in itertools.combinations_with_replacement(kinds, size):
                    codes = np.array(records)
                    here = feature_points(codes, column, of)
                    for gone in range(size):
                        null = codes.copy()
                        null[gone] = -1
                        there = feature_points(null, column, of)
                        moved = [
                            max(m, abs(a - b)) for m, a, b in zip(moved, here, there, strict=True)
                        ]
            assert moved == [of.sensitivity] * 2
            assert of.sensitivity == 2 * (1000 - min(shares))

    @pytest.mark.unit
    def test_what_tells_nothing_has_none_and_what_tells_all_has_most(self):
        schema = TableSchema(
            columns=tuple(
                Column(name=name, kind="category", categories=("a", "b"))
                for name in ("same", "other", "class")
            ),
            target=Column(name="y", kind="category", categories=("n", "p")),
        )
        attributes = make_attributes(schema)
        number = np.arange(100)
        codes = np.stack([0 * number, number // 50, number % 2, number % 2], axis=1)
        points = feature_points(codes, attributes, ClassShares(thousandths=(500, 500)))
        assert len(points) == len(schema.names)
        assert max(points[:8]) == 0
        assert points[8:10] == [100_000, 100_000]

    @pytest.mark.unit
    def test_null_records_are_in_no_cell(self):
        column, shares = one_column(2, 2, (0, 1)), ClassShares(thousandths=(500, 500))
        codes = np.array([[1, 1], [-1, -1], [0, 0]])
        assert feature_points(codes, column, shares) == [2000]
        assert feature_points(codes[1:2], column, shares) == [0]

    @pytest.mark.unit
    def test_other_shapes_are_refused(self):
        column = one_column(2, 2, (0, 1))
        with pytest.raises(UsageError, match="shape"):
            feature_points(np.zeros((3, 3), int), column, ClassShares.of([1, 1]))
        with pytest.raises(UsageError, match="2 shares"):
            feature_points(np.zeros((3, 2), int), column, ClassShares.of([1, 1, 1]))


class TestShares:
    @pytest.mark.property
    @given(st.lists(st.floats(0, 1e9), min_size=2, max_size=8).filter(lambda s: sum(s) > 1e-9))
    def test_add_up_and_are_within_a_thousandth(self, shares: list[float]):
        rounded = np.array(ClassShares.of(shares).thousandths)
        assert rounded.sum() == 1000
        assert np.abs(rounded - 1000 * np.array(shares) / sum(shares)).max() <= 1 + 1e-6

    @pytest.mark.unit
    def test_other_shares_are_refused(self):
        for shares in [[], [1.0], [0, 0], [-1, 2], [math.nan, 1], [math.inf, 1]]:
            with pytest.raises(UsageError, match="expected"):
                ClassShares.of(shares)

    @pytest.mark.unit
    def test_other_thousandths_are_refused(self):
        for thousandths in [(1000,), (500, 499), (-1, 1001), (500.0, 500), (True, 999)]:
            with pytest.raises(UsageError, match="sum to 1000"):
                ClassShares(thousandths=thousandths)


class TestLaw:
    @pytest.mark.statistical
    def test_is_exact_and_others_are_rejected(self):
        """4,000 ordered pairs of four features; half of epsilon, 2/3 and 3/2 of it have p < 1e-9.

        Power: the least noncentrality of the rejected laws is 284, where p = 1e-9 is at 66.
        """
        for way in WAYS:
            epsilon, seen = 0.6, released(way, 1.2, 2, 4000, most=2)
            assert p_value(seen, top_law(way, POINTS, epsilon, 2)) > 1e-3
            for factor in (0.5, 2 / 3, 1.5):
                assert p_value(seen, top_law(way, POINTS, factor * epsilon, 2)) < 1e-9
            other = WAYS[1 - WAYS.index(way)]
            assert p_value(seen, top_law(other, POINTS, epsilon, 2)) < 1e-9

    @pytest.mark.oracle
    @pytest.mark.parametrize(
        ("points", "k"),
        [([3, 5, 4], 1), ([3, 5, 4], 2), ([7, 7, 0, 6], 2), ([2, 1], 2), ([0, 9, 9], 3)],
    )
    def test_permute_and_flip_is_exact_by_enumeration(
        self, points: list[int], k: int, monkeypatch: pytest.MonkeyPatch
    ):
        """The code itself, over every order and coin."""
        ours, law = (
            law_of_code(monkeypatch, points, 0.8, k, 2),
            top_law(PermuteAndFlip, points, 0.8, k, 2),
        )
        assert sum(ours.values()) == pytest.approx(1.0, abs=1e-12)
        assert ours == pytest.approx(law, abs=1e-12)

    @pytest.mark.oracle
    def test_no_record_moves_a_choice_by_more_than_k_epsilon(self):
        """Points of four features, all neighbours that differ by up to most 2: it is neared.

        Were `most` 1 assumed for them, it would be exceeded.
        """
        for k in [1, 2]:
            for way in WAYS:
                epsilon, worst = 0.9, {1: 0.0, 2: 0.0}
                for base in ([0, 0, 40, 40], [0, 40, 40, 40], [5, 5, 5, 5], [3, 1, 4, 2]):
                    for most in worst:
                        here = top_law(way, base, epsilon, k, most)
                        for moved in itertools.product((-2, -1, 0, 2), repeat=4):
                            neighbour = [p + m for p, m in zip(base, moved, strict=True)]
                            there = top_law(way, neighbour, epsilon, k, most)
                            ratio = max(
                                abs(math.log(here[choice] / there[choice])) for choice in here
                            )
                            worst[most] = max(worst[most], ratio)
                assert 0.9 * k * epsilon < worst[2] <= k * epsilon * (1 + 1e-9) < worst[1]


class TestRelease:
    @pytest.mark.unit
    def test_picks_the_best_in_order_when_epsilon_is_large(self):
        for way in WAYS:
            points = [0, 10**9, 3, 10**6, 500]
            mechanism = way(epsilon=500.0, k=3, sensitivity=1)
            assert mechanism.release(points, Keys.from_seed(2).stream("p")) == (1, 3, 4)

    @pytest.mark.unit
    def test_the_same_points_give_the_same_and_others_draw_afresh(self):
        for way in WAYS:
            stream, mechanism = Keys.from_seed(1).stream("p"), way(epsilon=0.01, k=2, sensitivity=1)
            assert len({mechanism.release([5, 5, 5], stream) for _ in range(5)}) == 1
            assert mechanism.release(np.array([5, 5, 5]), stream) == mechanism.release(  # type: ignore
                [5, 5, 5], stream
            )
            assert len({mechanism.release([n, n, n], stream) for n in range(80)}) == 6

    @pytest.mark.unit
    def test_costs_k_picks(self):
        for way in WAYS:
            event = way(epsilon=0.3, k=7, sensitivity=1500).event
            assert event == SelfComposition(PureDP(0.3), 7)
            assert price(event, 1e-6).epsilon <= 7 * 0.3 * (1 + 1e-4)

    @pytest.mark.unit
    def test_other_numbers_are_refused(self):
        for way in WAYS:
            for values in [
                {"epsilon": 0},
                {"epsilon": math.nan},
                {"k": 0},
                {"k": 2.0},
                {"sensitivity": 0},
                {"sensitivity": -1},
            ]:
                with pytest.raises(UsageError):
                    way(**{"epsilon": 1.0, "k": 2, "sensitivity": 1, **values})

    @pytest.mark.unit
    def test_other_points_are_refused_and_not_named(self):
        for way in WAYS:
            mechanism, stream = way(epsilon=1.0, k=2, sensitivity=1), Keys().stream("p")
            with pytest.raises(UsageError, match="at most the 1 features"):
                mechanism.release([7531], stream)
            for points in ([7531.0, 1], [True, 7531], ["7531", 2]):
                with pytest.raises(TypeError, match="points must be integers") as caught:
                    mechanism.release(points, stream)  # type: ignore[arg-type]
                assert "7531" not in str(caught.value)
