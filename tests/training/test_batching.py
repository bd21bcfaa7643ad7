"""Poisson sampling: every slot on its own, with the probability that is priced."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2, chisquare

from pasearch.accounting.events import Gaussian, PoissonGaussian
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.training.batching import Poisson

N, DRAWS = 30, 4000


def batches(q: float, n: int = N, draws: int = DRAWS) -> np.ndarray:
    """Return who is in each batch, bool, (draws, n)."""
    stream = Keys.from_seed(5).stream("test", "batch", str(q))
    chosen = np.zeros((draws, n), dtype=bool)
    for step in range(draws):
        chosen[step, Poisson(sampling_probability=q).indices(n, stream.generator(step))] = True
    return chosen


def slots_pvalue(chosen: np.ndarray, q: float) -> float:
    """Each slot's count against its own binomial law, all slots together."""
    draws, n = chosen.shape
    scores = (chosen.sum(axis=0) - draws * q) ** 2 / (draws * q * (1 - q))
    return float(chi2.sf(scores.sum(), n))


def pairs_pvalue(chosen: np.ndarray, q: float) -> float:
    """Covariances of all pairs of slots, which are 0 if slots are drawn apart."""
    draws, n = chosen.shape
    centred = chosen - q
    scores = (centred.T @ centred)[np.triu_indices(n, 1)] / (np.sqrt(draws) * q * (1 - q))
    return float(chi2.sf((scores**2).sum(), len(scores)))


def size_pvalue(chosen: np.ndarray, q: float) -> float:
    """The batch's size against the binomial law; cells below 10 expected draws are pooled."""
    draws, n = chosen.shape
    law = binom(n, q)
    low, high = (int(law.ppf(p)) for p in (0.01, 0.99))
    observed = np.bincount(np.clip(chosen.sum(axis=1), low, high) - low, minlength=high - low + 1)
    expected = law.pmf(np.arange(low, high + 1))
    expected[0], expected[-1] = law.cdf(low), law.sf(high - 1)
    return float(chisquare(observed, draws * expected).pvalue)


@pytest.mark.statistical
@pytest.mark.parametrize("q", [0.04, 0.2, 0.6])
def test_each_slot_is_in_with_the_priced_probability_and_other_ones_are_rejected(q: float):
    chosen = batches(q)
    assert slots_pvalue(chosen, q) > 1e-3
    assert slots_pvalue(chosen, q * 2 / 3) < 1e-9
    assert slots_pvalue(chosen, q * 3 / 2) < 1e-9


@pytest.mark.statistical
@pytest.mark.parametrize("q", [0.04, 0.2, 0.6])
def test_the_batch_size_is_binomial_and_other_probabilities_are_rejected(q: float):
    chosen = batches(q)
    assert size_pvalue(chosen, q) > 1e-3
    assert size_pvalue(chosen, q * 2 / 3) < 1e-9
    assert size_pvalue(chosen, q * 3 / 2) < 1e-9


@pytest.mark.statistical
@pytest.mark.parametrize("q", [0.04, 0.2, 0.6])
def test_slots_are_drawn_apart(q: float):
    assert pairs_pvalue(batches(q), q) > 1e-3


@pytest.mark.statistical
def test_neighbours_that_come_together_would_be_rejected():
    together = np.repeat(batches(0.2)[:, ::2], 2, axis=1)
    assert slots_pvalue(together, 0.2) > 1e-9
    assert pairs_pvalue(together, 0.2) < 1e-9


@pytest.mark.statistical
def test_batches_of_one_size_would_be_rejected():
    generator = np.random.default_rng(3)
    fixed = np.argsort(generator.random((DRAWS, N)), axis=1) < 6
    assert slots_pvalue(fixed, 0.2) > 1e-3
    assert size_pvalue(fixed, 0.2) < 1e-9


@pytest.mark.statistical
def test_one_slot_is_independent_from_step_to_step():
    chosen = batches(0.2)
    pairs = np.stack([chosen[:-1].ravel(), chosen[1:].ravel()], axis=1)
    both = int(pairs.all(axis=1).sum())
    law = binom(len(pairs), 0.04)
    assert law.cdf(both) > 1e-3
    assert law.sf(both) > 1e-3


@pytest.mark.property
@given(n=st.integers(1, 3000), q=st.floats(1e-9, 1.0), seed=st.integers(0, 2**31))
def test_chosen_slots_are_ascending_unique_and_in_range(n: int, q: float, seed: int):
    chosen = Poisson(sampling_probability=q).indices(n, np.random.default_rng(seed))
    assert chosen.dtype == np.int64
    assert (np.diff(chosen) > 0).all()
    assert ((chosen >= 0) & (chosen < n)).all()


@pytest.mark.unit
def test_probability_one_takes_every_slot():
    chosen = Poisson(sampling_probability=1.0).indices(7, np.random.default_rng(0))
    assert chosen.tolist() == list(range(7))


@pytest.mark.unit
@pytest.mark.parametrize("q", [1e-12, 1e-18, 1e-300, 5e-324])
@pytest.mark.parametrize("n", [1, 10, 10**6])
def test_a_tiny_probability_gives_empty_batches_and_no_overflow(n: int, q: float):
    generator = np.random.default_rng(1)
    sizes = [len(Poisson(sampling_probability=q).indices(n, generator)) for _ in range(200)]
    assert sizes == [0] * 200


@pytest.mark.unit
def test_a_probability_next_to_one_takes_nearly_every_slot():
    q = np.nextafter(1.0, 0.0)
    chosen = Poisson(sampling_probability=float(q)).indices(1000, np.random.default_rng(0))
    assert len(chosen) == 1000


@pytest.mark.unit
def test_the_first_and_the_last_slot_can_be_drawn():
    chosen = batches(0.2)
    assert chosen[:, 0].any()
    assert chosen[:, -1].any()


@pytest.mark.unit
def test_one_step_of_one_stream_draws_the_same_batch_again():
    sampling = Poisson(sampling_probability=0.3)

    def drawn(step: int, trial: int = 0) -> list[int]:
        stream = Keys.from_seed(1).stream("trial", trial, "batch")
        return sampling.indices(200, stream.generator(step)).tolist()

    assert drawn(4) == drawn(4)
    assert drawn(4) != drawn(5)
    assert drawn(4) != drawn(4, trial=1)


@pytest.mark.unit
def test_the_event_is_the_sampled_gaussian_of_the_same_probability():
    assert Poisson(sampling_probability=0.25).event(1.5) == PoissonGaussian(0.25, 1.5)
    assert Poisson(sampling_probability=1.0).event(1.5) == Gaussian(1.5)


@pytest.mark.unit
@pytest.mark.parametrize("q", [0.0, -0.1, 1.1, float("nan"), float("inf"), True, "0.5", None])
def test_what_is_no_probability_is_refused(q: object):
    with pytest.raises(UsageError, match="sampling_probability"):
        Poisson(sampling_probability=q)  # pyright: ignore[reportArgumentType]
