"""An audit of the training itself: it passes as it is, and catches bugs planted on purpose.

Two worlds differ in one record, the canary, which is there or null. The attacker sees the weights
before and after a step, turns them into the step's sum, and projects it on the canary's gradient:

    s = <sum, direction> / (sigma C) - what the other records add

so that s has mean 0 without the canary and at most 1 / sigma with it. "s exceeds t" is then a guess
of the world. Any (epsilon, delta)-DP training has TPR <= e^epsilon FPR + delta, and the same for
the opposite guess: with Clopper-Pearson bounds of the rates, this gives an epsilon that the
training surely exceeds. The thresholds are fixed here, before a score is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta
from torch import Tensor, nn

from pasearch.accounting.accountants import price
from pasearch.accounting.events import SelfComposition
from pasearch.accounting.gdp_approximation import compute_gaussian_epsilon
from pasearch.data.partitions import Records
from pasearch.runs.keys import Keys, Stream
from pasearch.training import one_step, per_example
from pasearch.training.clipping import AutoSClipping, FlatClipping
from pasearch.training.noise import Noise
from pasearch.training.one_step import compute_noisy_sum
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import train

N = 8
MANY, SOME, FEW = 1000, 600, 300  # runs in each world: few are enough for a coarse bug
DELTA, CONFIDENCE = 0.05, 0.95
THRESHOLDS = (0.9, 4 / 3)
CLIP = 0.5


@cache
def records(present: bool, opposed: bool = False) -> Records:
    """The canary in slot 0, and others whose gradients are orthogonal or opposed to its own."""
    x = torch.zeros(N, 3)
    x[0, 0] = 1000.0
    x[1:, 0 if opposed else 1] = 1000.0
    y = torch.ones(N, dtype=torch.int64)
    y[0] = 0
    valid = torch.ones(N, dtype=torch.bool)
    valid[0] = present
    return Records(x=x * valid[:, None], y=y, valid=valid, public=False)


@cache
def slots(present: bool, opposed: bool = False) -> one_step.DeviceRecords:
    data = records(present, opposed)
    return one_step.DeviceRecords(x=data.x, y=data.y, valid=data.valid)


def network(certain: bool = False, chain: bool = True) -> nn.Module:
    """A linear classifier, as a chain (`training.dense`) or as any network (`per_example`).

    A certain one has no gradient left for the canary.
    """
    layer = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        layer.weight.zero_()
        if certain:
            layer.weight[:, 0] = torch.tensor([1.0, -1.0])
    return nn.Sequential(layer) if chain else layer


def recipe(
    *,
    batch: int = N,
    steps: int = 1,
    sigma: float = 1.0,
    bounding: FlatClipping | AutoSClipping | None = None,
) -> Recipe:
    return Recipe(
        expected_batch_size=batch,
        steps=steps,
        learning_rate=0.01,
        noise_multiplier=sigma,
        bounding=bounding or FlatClipping(clip_norm=CLIP),
        optimizer="sgd",
        average=None,
    )


def streams(run: int, candidate: int = 0) -> dict[str, Stream]:
    trial = Keys.from_seed(run).stream("trial", candidate)
    return {name: trial.child(name) for name in ("batch", "noise", "dropout")}


def score(total: Tensor, made: Recipe) -> float:
    """Project a sum of gradients on the canary's, in units of the noise."""
    assert made.noise_multiplier is not None
    assert made.bounding is not None
    projected = float(total[1, 0] - total[0, 0]) / math.sqrt(2)
    return projected / (made.noise_multiplier * made.bounding.sensitivity)


def by_sum(
    present: bool, run: int, made: Recipe, opposed: bool = False, chain: bool = True
) -> float:
    """One noisy sum, straight from the step."""
    total = compute_noisy_sum(network(chain=chain), slots(present, opposed), made, streams(run), 0)[
        0
    ]
    return score(total, made) + (N - 1) * opposed


def by_weights(present: bool, run: int, made: Recipe) -> float:
    """All steps together, from what training did to the weights."""
    model = network()
    train(model, records(present), made, streams(run))
    assert made.learning_rate is not None
    moved = -next(model.parameters()).detach() / made.learning_rate * made.expected_batch_size
    return score(moved, made) / math.sqrt(made.steps)


def candidates(present: bool, run: int, made: Recipe) -> float:
    """The difference of two candidates' sums, of which one has nothing to learn."""
    sums = [
        compute_noisy_sum(network(certain), slots(present), made, streams(run, number), 0)[0]
        for number, certain in enumerate((False, True))
    ]
    return score(sums[0] - sums[1], made)


def two_steps(present: bool, run: int, made: Recipe) -> float:
    """The difference of the first two steps' sums."""
    sums = [
        compute_noisy_sum(network(), slots(present), made, streams(run), step)[0] for step in (0, 1)
    ]
    return score(sums[0] - sums[1], made)


def audited(release: Callable[..., float], *arguments: object, runs: int = FEW) -> float:
    """Return an epsilon that the release exceeds with this confidence, at DELTA."""
    worlds = [
        np.array([release(present, 2 * run + present, *arguments) for run in range(runs)])
        for present in (False, True)
    ]
    return lower_bound(*worlds)


def lower_bound(null: np.ndarray, present: np.ndarray) -> float:
    """Clopper-Pearson at every threshold and for both guesses, by the union bound."""
    level = (1 - CONFIDENCE) / (4 * len(THRESHOLDS))
    found = 0.0
    for threshold in THRESHOLDS:
        for first, second in ((present > threshold, null > threshold), (null, present)):
            if first.dtype != bool:
                first, second = first <= threshold, second <= threshold
            hits, misses = int(first.sum()), int(second.sum())
            low = float(beta.ppf(level, hits, len(first) - hits + 1)) if hits else 0.0
            full = misses == len(second)
            high = 1.0 if full else float(beta.isf(level, misses + 1, len(second) - misses))
            if low > DELTA:
                found = max(found, math.log((low - DELTA) / high))
    return found


def paid(made: Recipe, releases: int = 1) -> float:
    return price(SelfComposition(made.event(N), releases), DELTA).epsilon


@pytest.mark.statistical
def test_the_bound_is_exact_for_gaussians_and_never_above_their_price():
    generator = np.random.default_rng(0)
    null, far = generator.standard_normal((2, 100_000))
    for mu in (0.5, 1.0, 2.0):
        exact = compute_gaussian_epsilon(mu, DELTA)
        assert 0.4 * exact < lower_bound(null, far + mu) <= exact
    assert lower_bound(null, far) == 0.0
    assert lower_bound(null[:100] - 100, null[:100] + 100) == pytest.approx(
        math.log((0.00625 ** (1 / 100) - DELTA) / (1 - 0.00625 ** (1 / 100)))
    )


@pytest.mark.statistical
def test_one_full_step_passes_and_the_audit_is_not_idle():
    for bounding in [FlatClipping(clip_norm=CLIP), AutoSClipping()]:
        for chain in [True, False]:
            made = recipe(bounding=bounding)
            exact = compute_gaussian_epsilon(1.0, DELTA)
            assert paid(made) == pytest.approx(exact, abs=1e-2)
            assert 0.4 * exact < audited(by_sum, made, False, chain, runs=SOME) <= exact


@pytest.mark.statistical
def test_one_sampled_step_passes_and_its_price_is_below_that_of_a_full_one():
    made = recipe(batch=6, sigma=0.8)
    found = audited(by_sum, made)
    assert 0.3 * paid(made) < found <= paid(made)
    assert paid(made) < compute_gaussian_epsilon(1 / 0.8, DELTA)


@pytest.mark.statistical
def test_a_whole_training_passes():
    made = recipe(batch=6, steps=2, sigma=1.0)
    assert 0.0 < audited(by_weights, made, runs=250) <= paid(made)


@pytest.mark.statistical
def test_others_that_oppose_the_canary_change_nothing():
    made = recipe()
    assert 0.4 * paid(made) < audited(by_sum, made, True, runs=SOME) <= paid(made)


@pytest.mark.statistical
def test_two_candidates_pass_at_the_price_of_two():
    made = recipe()
    assert audited(candidates, made) <= paid(made, 2)


@pytest.mark.statistical
def test_two_steps_pass_at_the_price_of_two():
    made = recipe(batch=4)
    assert audited(two_steps, made) <= paid(made, 2)


def forget_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Noise, "add_to", lambda *_: None)


def forget_clipping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FlatClipping, "factors", lambda _, norms: torch.ones_like(norms))


def shrink_noise(patch: pytest.MonkeyPatch) -> None:
    honest = Noise.add_to
    patch.setattr(Noise, "add_to", lambda self, sums, scale, *_: honest(self, sums, scale * 2 / 3))


def clip_to_twice_the_bound(patch: pytest.MonkeyPatch) -> None:
    honest = FlatClipping.factors
    patch.setattr(FlatClipping, "factors", lambda self, norms: 2.0 * honest(self, norms))


@pytest.mark.statistical
def test_a_wrong_sum_is_caught(monkeypatch: pytest.MonkeyPatch):
    for plant, runs in [
        (forget_noise, FEW),
        (forget_clipping, FEW),
        (shrink_noise, MANY),
        (clip_to_twice_the_bound, MANY),
    ]:
        for chain in [True, False]:
            made = recipe()
            plant(monkeypatch)
            assert audited(by_sum, made, False, chain, runs=runs) > paid(made)


@pytest.mark.statistical
def test_a_wrong_training_is_caught_in_the_weights(monkeypatch: pytest.MonkeyPatch):
    for plant in [forget_noise, forget_clipping]:
        made = recipe()
        plant(monkeypatch)
        assert audited(by_weights, made, runs=200) > paid(made)


@pytest.mark.statistical
def test_a_mean_over_the_records_that_are_there_is_caught(monkeypatch: pytest.MonkeyPatch):
    honest = per_example.clipped_sum_and_counts

    def mean(
        network: nn.Module,
        x: Tensor,
        loss: object,
        bounding: FlatClipping,
        mask: Tensor,
        **way: Any,
    ):
        found = honest(network, x, loss, bounding, mask, **way)  # pyright: ignore
        for total in way["buffers"].totals:
            total *= N / int(mask.sum())
        return found

    monkeypatch.setattr(per_example, "clipped_sum_and_counts", mean)
    made = recipe()
    assert audited(by_sum, made, True) > paid(made)


@pytest.mark.statistical
def test_sampling_that_always_takes_the_canary_is_caught(monkeypatch: pytest.MonkeyPatch):
    made = recipe(batch=1, sigma=0.5)
    assert audited(by_sum, made) <= paid(made)
    monkeypatch.setattr("pasearch.training.batching.Poisson.indices", lambda *_: np.arange(2))
    assert audited(by_sum, made) > paid(made)


@pytest.mark.statistical
def test_candidates_that_share_batch_and_noise_are_caught(monkeypatch: pytest.MonkeyPatch):
    made = recipe()
    honest = Keys.stream
    monkeypatch.setattr(Keys, "stream", lambda self, *context: honest(self, context[0]))
    assert audited(candidates, made) > paid(made, 2)


@pytest.mark.statistical
def test_noise_that_is_used_for_two_steps_is_caught(monkeypatch: pytest.MonkeyPatch):
    made = recipe(batch=4)
    honest = one_step.begin_gaussian_noise
    monkeypatch.setattr(
        one_step,
        "begin_gaussian_noise",
        lambda count, device, stream, *_, **__: honest(count, device, stream, 0),
    )
    assert audited(two_steps, made) > paid(made, 2)
