"""The noisy count: its law is exact, and a wrong scale would be seen."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare

from pasearch.accounting.events import Geometric
from pasearch.errors import UsageError
from pasearch.runs.keys import ExactIntegers, Keys
from pasearch.runs.mechanisms import NoisyCount, draw_bernoulli_exp_below_1, draw_discrete_laplace

DRAWS = 20_000


def draws(epsilon: float, size: int = DRAWS) -> np.ndarray:
    below = Keys.from_seed(11).stream("test", str(epsilon)).integers().draw_below
    return np.array([draw_discrete_laplace(Fraction(epsilon), below) for _ in range(size)])


def pvalue(sample: np.ndarray, epsilon: float) -> float:
    """Chi-square against the exact probabilities; cells below 10 expected draws are pooled."""
    edge = 0
    while len(sample) * _pmf(edge + 1, epsilon) >= 10:
        edge += 1
    cells = np.arange(-edge, edge + 1)
    expected = np.array([_pmf(z, epsilon) for z in cells])
    expected[[0, -1]] = math.exp(-epsilon * edge) / (1 + math.exp(-epsilon)) if edge else 1.0
    observed = np.bincount(np.clip(sample, -edge, edge) + edge, minlength=len(cells))
    return float(chisquare(observed, expected * len(sample)).pvalue)


def _pmf(z: int, epsilon: float) -> float:
    return -math.expm1(-epsilon) / (1 + math.exp(-epsilon)) * math.exp(-epsilon * abs(z))


@pytest.mark.statistical
def test_the_law_is_right_and_other_scales_are_rejected():
    for epsilon in [0.05, 0.3, 1.0, 2.5]:
        sample = draws(epsilon)
        assert pvalue(sample, epsilon) > 1e-3
        assert pvalue(sample, epsilon * 1.5) < 1e-9
        assert pvalue(sample, epsilon / 1.5) < 1e-9


@pytest.mark.oracle
@pytest.mark.statistical
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_the_law_is_diffprivlibs(epsilon: float):
    mechanisms = pytest.importorskip("diffprivlib.mechanisms")

    def theirs(value: float) -> np.ndarray:
        mechanism = mechanisms.Geometric(epsilon=value, random_state=5)
        return np.array([mechanism.randomise(0) for _ in range(DRAWS)])

    def same(first: np.ndarray, second: np.ndarray) -> float:
        edge = int(np.quantile(np.abs(first), 0.99))
        table = [np.bincount(np.clip(s, -edge, edge) + edge, minlength=1) for s in (first, second)]
        return float(chi2_contingency(np.array(table)).pvalue)

    ours = draws(epsilon)
    assert same(ours, theirs(epsilon)) > 1e-3
    assert same(ours, theirs(epsilon * 1.5)) < 1e-9
    assert same(ours, theirs(epsilon / 1.5)) < 1e-9


class Restart(Exception):
    """The sampler rejected an attempt and began anew."""


class Undecided(Exception):
    """The sampler asked for more than it was given: the probabilities of what may come next."""


def enumerate_runs(run: Callable, least: float) -> dict[Any, Any]:
    """Return the probability of each result of `run(draw)`, over all that `draw` may answer.

    `draw(probabilities)` answers an index; what is rarer than `least` is not followed.
    """
    law: dict[Any, Any] = defaultdict(int)
    stack: list[tuple[tuple[int, ...], Any]] = [((), Fraction(1))]
    while stack:
        path, probability = stack.pop()
        fed = iter(path)

        def draw(probabilities: list, fed: Iterator[int] = fed) -> int:
            for index in fed:
                return index
            raise Undecided(probabilities)

        try:
            law[run(draw)] += probability
        except Restart:
            law["restart"] += probability
        except Undecided as asked:
            branches = [probability * p for p in asked.args[0]]
            stack += [((*path, i), p) for i, p in enumerate(branches) if p > least]
    return law


@pytest.mark.oracle
@pytest.mark.parametrize("gamma", [Fraction(0), Fraction(1, 7), Fraction(2, 3), Fraction(1)])
def test_the_coin_is_exact_by_enumeration(gamma: Fraction):
    """Algorithm 1, over every integer it may draw, in exact fractions."""

    def run(draw: Callable) -> bool:
        def below(bound: int) -> int:
            # The sampler only asks whether the integer lies below the numerator: two cases.
            chance = gamma.numerator / Fraction(bound)
            return 0 if draw([chance, 1 - chance]) == 0 and gamma else gamma.numerator

        return draw_bernoulli_exp_below_1(gamma.numerator, gamma.denominator, below)

    law = enumerate_runs(run, 1e-14)
    assert float(law[True]) == pytest.approx(math.exp(-gamma), abs=1e-12)
    assert float(law[False]) == pytest.approx(-math.expm1(-gamma), abs=1e-12)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "epsilon", [Fraction(1), Fraction(2), Fraction(1, 2), Fraction(3, 2), Fraction(2, 7)]
)
def test_the_law_is_exact_by_enumeration(epsilon: Fraction, monkeypatch: pytest.MonkeyPatch):
    """Algorithm 2, over every integer and coin of one attempt; rejected attempts start anew."""

    def run(draw: Callable) -> int:
        asked = []

        def below(bound: int) -> int:
            asked.append(bound)
            if len(asked) == 3:
                raise Restart
            return draw([Fraction(1, bound)] * bound)

        def coin(numerator: int, denominator: int, _: object) -> bool:
            chance = math.exp(-numerator / denominator)
            heads = draw([1 - chance, chance]) == 1
            if not heads and numerator < denominator:
                raise Restart
            return heads

        monkeypatch.setattr("pasearch.runs.mechanisms.draw_bernoulli_exp_below_1", coin)
        return draw_discrete_laplace(epsilon, below)

    law = enumerate_runs(run, 1e-13)
    accepted = 1 - law.pop("restart")
    for z in range(-6, 7):
        assert law[z] / accepted == pytest.approx(_pmf(z, float(epsilon)), rel=1e-8)


@pytest.mark.unit
@pytest.mark.parametrize("epsilon", [1e-300, 1e-9, 0.1, 1.0, 50.0, 1e6])
def test_any_epsilon_takes_few_uniform_numbers(epsilon: float, monkeypatch: pytest.MonkeyPatch):
    noise, keys, drawn = NoisyCount(epsilon=epsilon), Keys.from_seed(1), []
    genuine = ExactIntegers.draw_below
    monkeypatch.setattr(ExactIntegers, "draw_below", lambda s, n: drawn.append(n) or genuine(s, n))
    released = [noise.release(10, keys.stream("x", i)) for i in range(100)]
    assert 100 <= len(drawn) < 2000
    assert all(type(value) is int for value in released)
    if epsilon >= 50:
        assert set(released) == {10}


@pytest.mark.statistical
def test_the_standard_deviation_is_the_laws():
    for epsilon in [0.05, 1.0, 3.0]:
        cells = np.arange(-4000, 4001)
        exact = math.sqrt(sum(_pmf(z, epsilon) * z * z for z in cells.tolist()))
        assert NoisyCount(epsilon=epsilon).standard_deviation == pytest.approx(exact, rel=1e-9)
        assert draws(epsilon).std() == pytest.approx(exact, rel=0.05)
        assert NoisyCount(epsilon=2000.0).standard_deviation == 0.0


@pytest.mark.unit
def test_the_same_release_is_the_same_and_another_is_not():
    noise, stream = NoisyCount(epsilon=0.01), Keys.from_seed(1).stream("score")
    assert noise.release(100, stream) == noise.release(100, stream)
    assert noise.release(100, stream) == noise.release(np.int64(100), stream)
    assert noise.release(100, stream) != noise.release(100, stream.child("other"))


@pytest.mark.statistical
def test_two_counts_under_one_key_do_not_share_their_noise():
    """If they did, the difference of two releases would be the exact difference of the counts."""
    noise, keys = NoisyCount(epsilon=0.05), Keys.from_seed(1)
    streams = [keys.stream("score", i) for i in range(500)]
    first, second = (
        np.array([noise.release(count, s) for s in streams]) - count for count in (7, 8)
    )
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2
    assert np.std(first - second) > noise.standard_deviation


@pytest.mark.unit
def test_other_counts_are_refused_and_not_named():
    for count in [True, 7531.0, np.float64(7531), np.bool_(True), "7531", None]:
        with pytest.raises(TypeError, match="a count is an int") as caught:
            NoisyCount(epsilon=1.0).release(count, Keys().stream("x"))  # type: ignore[arg-type]
        assert "7531" not in str(caught.value)


@pytest.mark.unit
def test_other_epsilons_are_refused():
    for epsilon in [0, -1.0, math.nan, math.inf, True, "1", None]:
        with pytest.raises(UsageError, match="epsilon is"):
            NoisyCount(epsilon=epsilon)  # type: ignore[arg-type]


@pytest.mark.unit
def test_the_event_is_the_mechanisms():
    assert NoisyCount(epsilon=0.5).event == Geometric(epsilon=0.5)
    assert type(NoisyCount(epsilon=2).epsilon) is float
    assert NoisyCount(epsilon=np.float32(0.5)) == NoisyCount(epsilon=0.5)
