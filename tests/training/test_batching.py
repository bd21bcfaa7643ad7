"""Batches: drawn as they are priced, whichever of the three ways it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom, chi2, chisquare

from pasearch.accounting.accountants import price
from pasearch.accounting.events import (
    Gaussian,
    PoissonGaussian,
    SelfComposition,
    TruncatedPoissonGaussian,
)
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys, Stream
from pasearch.training.batching import Poisson, Reshuffled, TruncatedPoisson, compute_min_cap

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
def test_each_slot_is_in_with_the_priced_probability_and_other_ones_are_rejected():
    for q in [0.04, 0.2, 0.6]:
        chosen = batches(q)
        assert slots_pvalue(chosen, q) > 1e-3
        assert slots_pvalue(chosen, q * 2 / 3) < 1e-9
        assert slots_pvalue(chosen, q * 3 / 2) < 1e-9


@pytest.mark.statistical
def test_the_batch_size_is_binomial_and_other_probabilities_are_rejected():
    for q in [0.04, 0.2, 0.6]:
        chosen = batches(q)
        assert size_pvalue(chosen, q) > 1e-3
        assert size_pvalue(chosen, q * 2 / 3) < 1e-9
        assert size_pvalue(chosen, q * 3 / 2) < 1e-9


@pytest.mark.statistical
def test_slots_are_drawn_apart():
    for q in [0.04, 0.2, 0.6]:
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
def test_a_tiny_probability_gives_empty_batches_and_no_overflow():
    for q in [1e-12, 1e-18, 1e-300, 5e-324]:
        for n in [1, 10, 10**6]:
            generator = np.random.default_rng(1)
            sizes = [len(Poisson(sampling_probability=q).indices(n, generator)) for _ in range(200)]
            assert sizes == [0] * 200


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
def test_what_is_no_probability_is_refused():
    for q in [0.0, -0.1, 1.1, float("nan"), float("inf"), True, "0.5", None]:
        with pytest.raises(UsageError, match="sampling_probability"):
            Poisson(sampling_probability=q)  # pyright: ignore[reportArgumentType]


def stream(name: str = "batch", seed: int = 5) -> Stream:
    return Keys.from_seed(seed).stream("test", name)


def presence(batching: TruncatedPoisson | Reshuffled, steps: int, n: int) -> np.ndarray:
    """Return who is in each step's batch, bool, (steps, n)."""
    chosen, keyed = np.zeros((steps, n), dtype=bool), stream()
    for step in range(steps):
        chosen[step, batching.batch(n, keyed, step)] = True
    return chosen


@pytest.mark.unit
def test_epochs_of_sampled_batches_are_n_drawn_slots():
    third = Poisson(sampling_probability=1 / 3)
    assert [third.epoch(step) for step in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    capped = TruncatedPoisson(n=300, expected_batch_size=100)
    assert [capped.epoch(step) for step in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert third.count_releases(7) == capped.count_releases(7) == 7


@pytest.mark.property
@given(n=st.integers(1, 10_000), share=st.floats(1e-3, 1.0), epoch=st.integers(0, 500))
def test_an_epoch_begins_with_the_first_step_that_has_drawn_n_slots(
    n: int, share: float, epoch: int
):
    batch = max(1, math.ceil(share * n))
    first = -(-epoch * n // batch)
    sampling = Poisson(sampling_probability=batch / n)
    assert sampling.epoch(first) == (first * batch) // n


# --- truncated


def tight(n: int, expected: int, cap: int) -> TruncatedPoisson:
    """Return what the constructor refuses: a cap that is met often enough to be tested."""
    made = TruncatedPoisson(n=n, expected_batch_size=expected)
    object.__setattr__(made, "cap", cap)
    return made


@pytest.mark.property
@given(
    n=st.integers(1, 2000), share=st.floats(1e-3, 1.0), cap=st.integers(1, 2000),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_a_truncated_batch_is_never_above_its_cap(n: int, share: float, cap: int, seed: int):
    made = tight(n, max(1, round(share * n)), cap)
    chosen, whole = (each.batch(n, stream(seed=seed), 3) for each in (made, made.poisson))
    assert len(chosen) == min(cap, len(whole))
    assert set(chosen) <= set(whole)
    assert (np.diff(chosen) > 0).all()
    assert chosen.dtype == np.int64


CAPPED = tight(N, 12, 9)
KEPT = float(binom(N, 0.4).expect(lambda size: np.minimum(size, 9))) / N


@pytest.mark.statistical
def test_the_slots_that_a_cap_keeps_are_a_uniform_subset():
    chosen = presence(CAPPED, DRAWS, N)
    at_cap = int((chosen.sum(axis=1) == 9).sum())
    assert binom(DRAWS, binom(N, 0.4).sf(8)).cdf(at_cap) > 1e-3
    assert binom(DRAWS, binom(N, 0.4).sf(8)).sf(at_cap) > 1e-3
    assert slots_pvalue(chosen, KEPT) > 1e-3
    truncated = chosen[chosen.sum(axis=1) == 9]
    together = truncated.T.astype(float) @ truncated / len(truncated)
    apart = together[np.triu_indices(N, 1)]
    expected = 9 * 8 / (N * (N - 1))  # of two slots in a uniform subset of 9
    error = math.sqrt(expected * (1 - expected) / len(truncated))
    assert abs(apart - expected).max() < 5 * error


@pytest.mark.statistical
def test_a_cap_that_prefers_some_slots_would_be_rejected():
    for kept in ["first", "last", "null slots dropped first"]:
        chosen = presence(tight(N, 12, N), DRAWS, N)
        for row in chosen:
            there = np.flatnonzero(row)
            if kept == "last":
                there = there[::-1]
            elif kept != "first":  # the last five slots are null
                there = np.random.default_rng(int(there.sum())).permutation(there)
                there = there[np.argsort(there >= N - 5, kind="stable")]
            row[there[9:]] = False
        assert (chosen.sum(axis=1) <= 9).all()
        assert slots_pvalue(chosen, KEPT) < 1e-9


@pytest.mark.statistical
def test_truncated_batches_without_the_cap_are_poisson():
    chosen = presence(TruncatedPoisson(n=N, expected_batch_size=6), DRAWS, N)
    assert slots_pvalue(chosen, 0.2) > 1e-3
    assert pairs_pvalue(chosen, 0.2) > 1e-3
    assert size_pvalue(chosen, 0.2) > 1e-3


@pytest.mark.unit
def test_too_tight_a_cap_is_refused():
    for cap in [1, 100, 150, 159]:
        with pytest.raises(UsageError, match="expected at least 160 for batches of 100"):
            TruncatedPoisson(n=1000, expected_batch_size=100, cap=cap)


@pytest.mark.unit
def test_a_cap_that_is_no_count_is_refused():
    for cap in [0, -1, 200.0, True, "200", math.nan]:
        with pytest.raises(UsageError, match="cap"):
            TruncatedPoisson(n=1000, expected_batch_size=100, cap=cap)  # pyright: ignore


@pytest.mark.unit
def test_the_cap_is_six_standard_deviations_above_the_expected_batch():
    assert compute_min_cap(100) == 160
    assert compute_min_cap(7) == math.ceil(7 + 6 * math.sqrt(7))
    assert TruncatedPoisson(n=1000, expected_batch_size=100).cap == 160
    assert TruncatedPoisson(n=1000, expected_batch_size=100, cap=160).cap == 160
    assert TruncatedPoisson(n=1000, expected_batch_size=100, cap=170).cap == 170
    # Where n slots are fewer than that, a cap of n cuts nothing off.
    assert TruncatedPoisson(n=50, expected_batch_size=40).cap == 50


@pytest.mark.unit
def test_the_event_is_that_of_the_cap():
    made = TruncatedPoisson(n=1000, expected_batch_size=100)
    assert made.event(1.5) == TruncatedPoissonGaussian(1000, 0.1, 160, 1.5)
    assert CAPPED.event(2.0) == TruncatedPoissonGaussian(N, 0.4, 9, 2.0)
    assert TruncatedPoisson(n=50, expected_batch_size=40).event(1.5) == PoissonGaussian(0.8, 1.5)
    assert TruncatedPoisson(n=50, expected_batch_size=50).event(1.5) == Gaussian(1.5)


# --- reshuffled


def faults(batches: list[list[np.ndarray]], n: int) -> list[str]:
    """Return what is wrong with the batches, by epoch and step, that the proof needs."""
    found = []
    for epoch in batches:
        drawn = np.concatenate(epoch)
        if len(np.unique(drawn)) != len(drawn):
            found.append("not disjoint")
        if set(drawn.tolist()) != set(range(n)):
            found.append("not all slots")
    if len({tuple(map(tuple, epoch)) for epoch in batches}) != len(batches):
        found.append("an epoch again")
    return sorted(set(found))


def shuffled(made: Reshuffled, epochs: int, keyed: Stream | None = None) -> list[list[np.ndarray]]:
    length, keyed = made.steps_per_epoch, keyed or stream()
    return [
        [made.batch(made.n, keyed, epoch * length + place) for place in range(length)]
        for epoch in range(epochs)
    ]


@pytest.mark.property
@given(n=st.integers(1, 300), share=st.floats(1e-3, 1.0), seed=st.integers(0, 2**31))
def test_the_batches_of_an_epoch_are_disjoint_and_cover_all_slots(n: int, share: float, seed: int):
    made = Reshuffled(n=n, batch_size=max(1, round(share * n)))
    for epoch in shuffled(made, 3, stream(seed=seed)):
        assert not faults([epoch], n)
        assert {len(batch) for batch in epoch[:-1]} <= {made.batch_size}
        assert 1 <= len(epoch[-1]) <= made.batch_size
        assert all((np.diff(batch) > 0).all() for batch in epoch)


@pytest.mark.unit
def test_every_epoch_has_another_permutation():
    assert not faults(shuffled(Reshuffled(n=60, batch_size=7), 40), 60)


@pytest.mark.unit
def test_batches_that_break_the_proof_are_found(monkeypatch: pytest.MonkeyPatch):
    made = Reshuffled(n=60, batch_size=7)
    honest = Stream.generator
    with monkeypatch.context() as patch:
        patch.setattr(Stream, "generator", lambda self, step: honest(self, 0))
        assert faults(shuffled(made, 3), 60) == ["an epoch again"]

    def by_the_step(self: Reshuffled, n: int, keyed: Stream, step: int) -> np.ndarray:
        order = keyed.generator(step).permutation(n)
        place = step % self.steps_per_epoch
        return np.sort(order[place * self.batch_size : (place + 1) * self.batch_size])

    with monkeypatch.context() as patch:
        patch.setattr(Reshuffled, "batch", by_the_step)
        assert faults(shuffled(made, 3), 60) == ["not all slots", "not disjoint"]
    short = [epoch[:-1] for epoch in shuffled(made, 3)]
    assert faults(short, 60) == ["not all slots"]


def places_pvalue(made: Reshuffled, epochs: list[list[np.ndarray]]) -> float:
    """In which batch of an epoch each slot is, against the uniform law."""
    counts = np.zeros((made.n, made.steps_per_epoch))
    for epoch in epochs:
        for place, batch in enumerate(epoch):
            counts[batch, place] += 1
    share = np.array([len(batch) for batch in epochs[0]]) / made.n
    expected = len(epochs) * share
    scores = (counts - expected) ** 2 / expected
    # Rows and columns both have fixed sums.
    freedom = (made.n - 1) * (made.steps_per_epoch - 1)
    return float(chi2.sf(scores.sum() * (made.n - 1) / made.n, freedom))


@pytest.mark.statistical
def test_every_slot_is_in_every_batch_alike_and_a_rotation_would_be_rejected():
    made = Reshuffled(n=12, batch_size=4)
    epochs = shuffled(made, 2000)
    assert places_pvalue(made, epochs) > 1e-3
    order = np.arange(12)
    ordered = [[order[i : i + 4] for i in (0, 4, 8)] for _ in range(2000)]
    assert places_pvalue(made, ordered) < 1e-9
    together = np.mean([any({0, 1} <= set(batch) for batch in epoch) for epoch in epochs])
    assert together == pytest.approx(3 / 11, abs=5 * math.sqrt(3 / 11 * 8 / 11 / 2000))


@pytest.mark.unit
def test_epochs_and_charges_of_reshuffled_batches():
    made = Reshuffled(n=10, batch_size=4)
    assert made.steps_per_epoch == 3
    assert [made.epoch(step) for step in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert [made.count_releases(steps) for steps in range(4)] == [0, 1, 1, 1]
    assert Reshuffled(n=8, batch_size=4).steps_per_epoch == 2
    assert Reshuffled(n=3, batch_size=4).steps_per_epoch == 1


@pytest.mark.contract
def test_reshuffled_batches_never_have_the_poisson_price():
    for batch in [1, 3, 100, 10_000]:
        made = Reshuffled(n=10_000, batch_size=batch)
        assert made.event(1.5) == Gaussian(1.5)


def audited(made: Reshuffled, sigma: float, runs: int = 150, level: float = 0.01) -> float:
    """Return an epsilon that one epoch exceeds at delta .05, to who knows the order.

    Slot 0 adds 1 or nothing. The guess: all sums of its batches are above half of that, in sum.
    """
    n, steps = 100, 100
    hits = []
    for present in (0.0, 1.0):
        found = 0
        for run in range(runs):
            keyed = Keys.from_seed(2 * run + int(present)).stream("trial", 0)
            drawn = [made.batch(n, keyed.child("batch"), step) for step in range(steps)]
            noise = sigma * keyed.child("noise").generator().standard_normal(steps)
            there = np.array([0 in batch for batch in drawn])
            found += bool(there.any()) and float((present + noise)[there].sum()) > 2 * sigma
        hits.append(found)
    low = float(beta.ppf(level, hits[1], runs - hits[1] + 1))
    high = float(beta.isf(level, hits[0] + 1, runs - hits[0]))
    return math.log((low - 0.05) / high)


@pytest.mark.statistical
def test_an_audit_of_an_epoch_passes_at_its_price_and_catches_the_poisson_price():
    made = Reshuffled(n=100, batch_size=1)
    sampled = SelfComposition(PoissonGaussian(0.01, 0.5), 100)
    found = audited(made, 0.5)
    assert found <= price(made.event(0.5), 0.05).epsilon
    assert found > 2 * price(sampled, 0.05).epsilon


@pytest.mark.unit
def test_what_is_no_count_of_slots_is_refused():
    for value in [0, -3, 1.5, True, None, "4"]:
        for names in ({"n": value, "batch_size": 4}, {"n": 4, "batch_size": value}):
            with pytest.raises(UsageError, match="integer"):
                Reshuffled(**names)  # pyright: ignore
        for names in (
            {"n": value, "expected_batch_size": 4},
            {"n": 4, "expected_batch_size": value},
        ):
            with pytest.raises(UsageError, match="integer"):
                TruncatedPoisson(**names)  # pyright: ignore


@pytest.mark.oracle
def test_a_data_loader_reshuffles_and_poisson_batches_do_not():
    """Yu et al.'s Table I: batches of 1 of ten records, so one epoch has ten steps."""
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(torch.arange(10), batch_size=1, shuffle=True)
    epochs = [[int(each) for each in loader] for _ in range(5)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5
    sampled = batches(0.1, n=10, draws=10)
    assert set(sampled.sum(axis=1)) - {1} != set()  # sizes of batches
    assert set(sampled.sum(axis=0)) - {1} != set()  # times that a record is used
