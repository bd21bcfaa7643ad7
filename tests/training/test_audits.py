"""Audits of every mechanism of the DP step: what is released has the law that its event charges.

    residual = noisy sum (the code's own) - noise-free sum (by closed formulas, in float64)
    residual / (the event's noise multiplier * the stated sensitivity)      must be N(0, 1)

The code runs as it does in a training. Each audit is shown to have teeth: with noise of 2/3 or 3/2
of what is charged it rejects (p < 1e-12), where the right noise has p > 1e-6. So do the audits of
who is drawn, of looks at private records, and of how much one record can move a sum.

Power, exact and tested below: 352 coordinates a release and six releases or more, above 1 - 1e-9;
400 counts of an adaptive bound, above 1 - 1e-4; 700 looks, above 1 - 1e-3. Keys are fixed, so what
passes once passes always.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audits import (
    ACCEPT,
    REJECT,
    WRONG,
    gaussian_power,
    gaussian_pvalue,
    geometric_power,
    geometric_pvalue,
    noise_multipliers,
    scale_pvalue,
)
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.stats import binomtest
from torch import Tensor, nn

from pasearch import Budget
from pasearch.accounting.accountants import price
from pasearch.accounting.events import Event, count_atomic_releases
from pasearch.accounting.renyi import PrivacyFilter
from pasearch.api.search import prepare
from pasearch.data.partitions import Dataset, Records
from pasearch.data.schema import Schema
from pasearch.progress import Progress
from pasearch.runs import mechanisms, normals, sums
from pasearch.runs.folder import RunFolder
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.ledger import Ledger
from pasearch.runs.normals import Normals, compute_grid_distance
from pasearch.runs.sums import SUM_ROUNDING
from pasearch.search.candidate_training import compute_score_count
from pasearch.search.engine import SearchEngine
from pasearch.search.plan import VALIDATION_QUERY_LINE
from pasearch.training import losses, metrics, noise, one_step, per_example, screening
from pasearch.training.augmentation import Augmentation
from pasearch.training.batching import Poisson, Reshuffled, TruncatedPoisson
from pasearch.training.clipping import (
    AdaptiveClipping,
    AutoSClipping,
    ClippingMethod,
    FlatClipping,
    PerLayerClipping,
)
from pasearch.training.losses import sum_loss_points
from pasearch.training.noise_before_clip import NoiseBeforeClip
from pasearch.training.one_step import TrainingState, compute_noisy_sum
from pasearch.training.recipe import Recipe
from pasearch.training.schedules import (
    ExponentialDecay,
    PolynomialDecay,
    StepDecay,
    TimeDecay,
    UniformSchedule,
    ValidationSchedule,
)
from pasearch.training.screening import Annealing
from pasearch.training.trainer import Training

N, BATCH, SIDES, CLASSES = 200, 50, (5, 8), 4  # q = 1/4: four steps an epoch
FEATURES, UNITS = SIDES[0] * SIDES[1], 8
SIGMA, WIDE = 1.2, 1e6

Plant = Callable[[pytest.MonkeyPatch, float], None]


def records() -> Records:
    """Return records of which about half have a gradient within the bounds below."""
    generator = torch.Generator().manual_seed(2)
    valid = torch.ones(N, dtype=torch.bool)
    valid[::7] = False
    return Records(
        x=0.25 * torch.randn(N, *SIDES, generator=generator),
        y=torch.randint(0, CLASSES, (N,), generator=generator),
        valid=valid,
        public=False,
    )


def network() -> nn.Module:
    torch.manual_seed(4)
    first, second = nn.Linear(FEATURES, UNITS, bias=False), nn.Linear(UNITS, CLASSES, bias=False)
    return nn.Sequential(nn.Flatten(), first, second)


def recipe(**changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "expected_batch_size": BATCH,
        "steps": 6,
        "learning_rate": 0.05,
        "noise_multiplier": SIGMA,
        "bounding": FlatClipping(clip_norm=0.8),
        "optimizer": "sgd",
        "average": None,
    }
    return Recipe(**{**settings, **changes})


def streams(trial: int = 0) -> dict[str, Stream]:
    own = Keys.from_seed(16).stream("trial", trial)
    return {name: own.child(name) for name in ("batch", "noise", "dropout")}


# --- the noise-free sum, by closed formulas


def gradients(weights: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Return each layer's gradient of each record's cross entropy, (records, weights)."""
    first, second = weights
    hidden = x @ first.T
    outputs = hidden @ second.T
    errors = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    errors /= errors.sum(axis=1, keepdims=True)
    errors[np.arange(len(y)), y] -= 1.0
    each = (errors @ second)[:, :, None] * x[:, None], errors[:, :, None] * hidden[:, None]
    return [part.reshape(len(x), -1) for part in each]


def limits(bounding: ClippingMethod, bounds: tuple[float, ...]) -> tuple[float, ...]:
    """Return what a record's norm is held to: one number, or one a layer."""
    match bounding:
        case AdaptiveClipping():
            return bounds
        case PerLayerClipping():
            assert bounding.clip_norms is not None
            return bounding.clip_norms
        case AutoSClipping():
            return (bounding.bound,)
    return (bounding.clip_norm,)


def sensitivity(bounding: ClippingMethod, bounds: tuple[float, ...] = ()) -> float:
    """Return what is stated of the sum: C, R, or the root of the sum of C_l^2."""
    return math.sqrt(sum(each**2 for each in limits(bounding, bounds)))


def norms(rows: list[np.ndarray], layered: bool) -> np.ndarray:
    """Return (1, records), or (layers, records)."""
    each = np.array([np.linalg.norm(part, axis=1) for part in rows])
    return each if layered else np.linalg.norm(each, axis=0, keepdims=True)


def clean_sum(
    bounding: ClippingMethod, rows: list[np.ndarray], bounds: tuple[float, ...] = ()
) -> list[np.ndarray]:
    """Return the sum of bounded gradients, by layer."""
    most = np.array(limits(bounding, bounds))[:, None]
    found = norms(rows, len(most) > 1)
    if isinstance(bounding, AutoSClipping):
        factors = most / (found + bounding.gamma)
    else:
        factors = np.minimum(1.0, most / found)
    each = np.broadcast_to(factors, (len(rows), factors.shape[1]))
    return [factor @ part for factor, part in zip(each, rows, strict=True)]


# --- what a training released, standardised by what it was charged


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Of every step.

    Args:
        normals: Residuals of the sums, in units of the charged noise, (steps, coordinates).
        counts: Of the counts of an adaptive bound, likewise, (steps, counts).
        adam: The noise's variance that corrected Adam took off, in units of the charged.
    """

    normals: np.ndarray
    counts: np.ndarray
    adam: list[float]


def shares(bounding: AdaptiveClipping, z: float, counts: int) -> tuple[float, float]:
    """Return z_g and s_b of z: z^-2 = z_g^-2 + counts (2 s_b)^-2, the counts taking their share."""
    return (
        ((1.0 - bounding.count_share) * z**-2) ** -0.5,
        0.5 * (bounding.count_share * z**-2 / counts) ** -0.5,
    )


def released_counts(
    bounding: AdaptiveClipping, before: TrainingState, after: TrainingState
) -> np.ndarray:
    """Return the noisy counts, from how the bounds moved."""
    moved = np.log(np.array(after.bounds) / np.array(before.bounds))
    return (bounding.quantile - moved / bounding.rate - 0.5) * BATCH


def observe(
    made: Recipe, charged: Sequence[float], query: screening.ValidationQuery | None = None
) -> Seen:
    """Run a training, and standardise each step's residuals.

    Args:
        made: The recipe.
        charged: The noise multiplier of every step; it may grow while the training runs.
        query: Of screening, or of a validation-driven schedule.
    """
    model, data, own = network(), records(), streams()
    training = Training(model, data, made, own, query=query)
    parameters = list(model.parameters())
    x, y = data.x.flatten(1).double().numpy(), data.y.numpy()
    bounding, batch = made.bounding, made.expected_batch_size
    assert bounding is not None
    normals, counts, adam, generator = [], [], [], np.random.default_rng(0)
    for step in range(made.steps):
        weights = [p.detach().double().numpy().copy() for p in parameters]
        before = replace(training._state)
        if not training.step():
            break
        z = charged[step]
        chosen = made.make_batching(N).batch(N, own["batch"], step)
        there = chosen[data.valid.numpy()[chosen]]
        rows = gradients(weights, x[there], y[there])
        noisy = [total.double().numpy().ravel() for total in training._sums.views]
        if made.noise_before_clip is not None:
            assert made.noise_before_clip.record_bound is not None
            kind = FlatClipping(clip_norm=made.noise_before_clip.record_bound)
            deviations = [z * sensitivity(kind) * math.sqrt(len(chosen))] * 2
            exact = clean_sum(kind, rows)
        else:
            exact = clean_sum(bounding, rows, before.bounds)
            scales = [1.0, 1.0]
            if isinstance(bounding, AdaptiveClipping):
                first, moved = bounding.start(2), before.bounds
                scales = [a / b for a, b in zip(first, moved, strict=True)] * (2 // len(moved))
                within = norms(rows, len(moved) > 1) <= np.array(moved)[:, None]
                found = released_counts(bounding, before, training._state)
                z, deviation = shares(bounding, z, len(moved))
                # What the rounding to a grid has taken off, or else a residual may be exactly 0.
                found += compute_grid_distance(deviation) * generator.uniform(
                    -0.5, 0.5, size=found.shape
                )
                counts.append((found - (within - 0.5).sum(axis=1)) / deviation)
            exact = [scale * part for scale, part in zip(scales, exact, strict=True)]
            deviations = [z * sensitivity(bounding, before.bounds) * scale for scale in scales]
        each = zip(noisy, exact, deviations, strict=True)
        normals.append(np.concatenate([(a - b) / c for a, b, c in each]))
        if made.optimizer == "adam-corrected":
            taken = training._optimizer.noise_variance  # type: ignore[attr-defined]
            adam.append(taken / (deviations[0] / batch) ** 2)
    return Seen(normals=np.array(normals), counts=np.array(counts), adam=adam)


# --- noise other than it is charged


def noise_on_sums(patch: pytest.MonkeyPatch, share: float) -> None:
    honest = noise.Noise.add_to
    patch.setattr(
        noise.Noise,
        "add_to",
        lambda self, sums, scale, *rest: honest(self, sums, share * scale, *rest),
    )


def noise_on_records(patch: pytest.MonkeyPatch, share: float) -> None:
    honest = one_step.sum_noisy_clipped_gradients

    def other(*arguments: Any, standard_deviation: float, **settings: Any) -> list[Tensor]:
        return honest(*arguments, standard_deviation=share * standard_deviation, **settings)

    patch.setattr(one_step, "sum_noisy_clipped_gradients", other)


def noise_of_steps(patch: pytest.MonkeyPatch, share: float) -> None:
    honest = Recipe.noise_multiplier_at

    def other(self: Recipe, step: int, n: int) -> float:
        sigma = honest(self, step, n)
        assert sigma is not None
        return share * sigma

    patch.setattr(Recipe, "noise_multiplier_at", other)


def noise_of_gradients(patch: pytest.MonkeyPatch, share: float) -> None:
    honest = AdaptiveClipping.noises

    def other(self: AdaptiveClipping, z: float, counts: int) -> tuple[float, float]:
        z_g, s_b = honest(self, z, counts)
        return share * z_g, s_b

    patch.setattr(AdaptiveClipping, "noises", other)


def noise_of_counts(patch: pytest.MonkeyPatch, share: float) -> None:
    honest = AdaptiveClipping.noises

    def other(self: AdaptiveClipping, z: float, counts: int) -> tuple[float, float]:
        z_g, s_b = honest(self, z, counts)
        return z_g, share * s_b

    patch.setattr(AdaptiveClipping, "noises", other)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A mechanism, and how its noise could be another than it is charged."""

    stages: dict[str, Any] = field(default_factory=dict)
    plant: Plant = noise_on_sums

    @property
    def made(self) -> Recipe:
        return recipe(**self.stages)


FIRST = {
    "noise_before_clip": NoiseBeforeClip(record_bound=0.8),
    "bounding": FlatClipping(clip_norm=WIDE),
}
LONG = {"steps": 16}
CASES = {
    "flat": Case(),
    "flat, steps": Case(plant=noise_of_steps),
    "flat, in chunks": Case(stages={"chunk": 7}),
    "auto-s": Case(stages={"bounding": AutoSClipping(bound=0.4)}),
    "per layer": Case(stages={"bounding": PerLayerClipping(clip_norms=(0.8, 0.3))}),
    "adaptive": Case(
        stages={"bounding": AdaptiveClipping(clip_norm=0.8, count_share=0.2)},
        plant=noise_of_gradients,
    ),
    "adaptive per layer": Case(
        stages={"bounding": AdaptiveClipping(clip_norm=0.8, per_layer=True, count_share=0.2)},
        plant=noise_of_gradients,
    ),
    "noise first": Case(stages=FIRST, plant=noise_on_records),
    "noise first, falling": Case(
        stages={**FIRST, **LONG, "schedule": TimeDecay(rate=0.5)}, plant=noise_of_steps
    ),
    "corrected adam": Case(stages={"optimizer": "adam-corrected"}),
    # So little noise that a sum of views, where their mean is bounded, would show.
    "views": Case(
        stages={"augmentation": Augmentation(views=3, shift=0), "noise_multiplier": 0.02}
    ),
    "screened": Case(stages={"screening": Annealing(q0=5.0, mu0=3)}),
    "uniform": Case(stages={**LONG, "schedule": UniformSchedule()}, plant=noise_of_steps),
    "time": Case(stages={**LONG, "schedule": TimeDecay(rate=0.3)}, plant=noise_of_steps),
    "exponential": Case(
        stages={**LONG, "schedule": ExponentialDecay(rate=0.4)}, plant=noise_of_steps
    ),
    "step": Case(stages={**LONG, "schedule": StepDecay(rate=0.6, period=2)}, plant=noise_of_steps),
    "polynomial": Case(
        stages={**LONG, "schedule": PolynomialDecay(power=2, end=0.2, period=3)},
        plant=noise_of_steps,
    ),
    "truncated": Case(stages={"batching": "truncated"}),
    "reshuffled": Case(stages={"batching": "reshuffled", "steps": 9}),
    "reshuffled, falling": Case(
        stages={"batching": "reshuffled", **LONG, "schedule": ExponentialDecay(rate=0.4)},
        plant=noise_of_steps,
    ),
}
each_case = pytest.mark.parametrize("name", CASES)
each_share = pytest.mark.parametrize("share", WRONG, ids=["2/3", "3/2"])


def charged_by_step(made: Recipe) -> list[float]:
    """Return each step's noise multiplier: of its own release, or of its epoch if reshuffled."""
    found = noise_multipliers(made.event(N))
    if made.batching == "reshuffled":
        each = math.ceil(N / made.expected_batch_size)
        return [z for z in found for _ in range(each)][: made.steps]
    return found


def seen(made: Recipe) -> Seen:
    return observe(made, charged_by_step(made), query=lambda _, asked: float(asked % 3))


@pytest.mark.statistical
def test_the_noise_is_what_the_event_charges():
    for name in CASES:
        made = CASES[name].made
        charged = charged_by_step(made)
        found = seen(made)
        assert len(found.normals) == len(charged) == made.steps
        assert gaussian_pvalue(found.normals) > ACCEPT
        if made.optimizer == "adam-corrected":
            assert found.adam == pytest.approx([SUM_ROUNDING**2] * made.steps)


@pytest.mark.statistical
@each_case
@each_share
def test_noise_that_is_not_what_was_charged_is_caught(
    name: str, share: float, monkeypatch: pytest.MonkeyPatch
):
    CASES[name].plant(monkeypatch, share)
    assert gaussian_pvalue(seen(CASES[name].made).normals) < REJECT


@pytest.mark.statistical
def test_noise_drawn_in_a_thread_is_what_the_event_charges(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(noise, "MIN_THREAD_NUMBERS", 1)
    assert gaussian_pvalue(seen(recipe()).normals) > ACCEPT


@pytest.mark.statistical
def test_noise_that_is_used_for_two_steps_is_caught(monkeypatch: pytest.MonkeyPatch):
    honest = noise.draw_device_normals

    def half(device: torch.device, count: int, stream: Stream, step: int) -> Normals:
        return honest(device, count, stream, step // 2)

    monkeypatch.setattr(noise, "draw_device_normals", half)
    assert gaussian_pvalue(seen(recipe()).normals) < REJECT


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["time", "exponential", "step", "polynomial"])
def test_noise_that_falls_an_epoch_too_early_is_caught(name: str, monkeypatch: pytest.MonkeyPatch):
    honest = Recipe.noise_multiplier_at
    monkeypatch.setattr(
        Recipe, "noise_multiplier_at", lambda self, step, n: honest(self, step + N // BATCH, n)
    )
    assert gaussian_pvalue(seen(CASES[name].made).normals) < REJECT


@pytest.mark.unit
def test_the_power_of_the_audits():
    for share in WRONG:
        assert gaussian_power((FEATURES + CLASSES) * UNITS * 6, share, 9) > 1 - 1e-9
        assert gaussian_power(COUNTS, share, 1) > 1 - 1e-4
        for epsilon in (0.008, 1.0):
            assert geometric_power(LOOKS, epsilon, share) > 1 - 1e-3


# --- the counts of an adaptive bound

COUNTS = 400


def adaptive(per_layer: bool) -> Recipe:
    """Return a recipe whose training releases 400 counts, of one or two bounds."""
    bounding = AdaptiveClipping(clip_norm=0.8, per_layer=per_layer, count_share=0.2)
    return recipe(bounding=bounding, steps=COUNTS // (1 + per_layer))


each_bound = pytest.mark.parametrize("per_layer", [False, True], ids=["flat", "per layer"])


@pytest.mark.statistical
def test_gradients_and_counts_together_have_the_noise_that_is_charged():
    """The last line needs no share: z^-2 = z_g^-2 + counts (2 s_b)^-2, by what was observed."""
    for per_layer in [False, True]:
        made = adaptive(per_layer)
        found, (z, *_) = seen(made), noise_multipliers(made.event(N))
        assert gaussian_pvalue(found.normals) > ACCEPT
        assert gaussian_pvalue(found.counts) > ACCEPT
        assert isinstance(made.bounding, AdaptiveClipping)
        bounds = found.counts.shape[1]
        z_g, s_b = shares(made.bounding, z, bounds)
        together = (z_g * found.normals.std()) ** -2 + bounds * (2 * s_b * found.counts.std()) ** -2
        error = made.bounding.count_share * math.sqrt(2 / COUNTS)
        assert abs(together * z**2 - 1) < 5 * error
        for share in WRONG:  # of the counts alone
            assert abs(share**-2 - 1) * made.bounding.count_share > 7 * error


@pytest.mark.statistical
@each_bound
@each_share
def test_counts_with_other_noise_are_caught(
    per_layer: bool, share: float, monkeypatch: pytest.MonkeyPatch
):
    noise_of_counts(monkeypatch, share)
    assert scale_pvalue(seen(adaptive(per_layer)).counts) < REJECT


# --- a validation-driven schedule, and its filter


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What the filter was asked to spend, and did."""
    found: list[Event] = []
    honest = PrivacyFilter.spend

    def spend(self: PrivacyFilter, event: Event) -> None:
        honest(self, event)
        found.append(event)

    monkeypatch.setattr(PrivacyFilter, "spend", spend)
    return found


class Sigmas(Sequence[float]):
    """The noise multipliers of events that are still coming."""

    def __init__(self, events: list[Event]):
        self._events = events

    def __getitem__(self, step: Any) -> Any:
        return noise_multipliers(self._events[step])[0]

    def __len__(self) -> int:
        return len(self._events)


def driven_recipe() -> Recipe:
    return recipe(
        schedule=ValidationSchedule(rate=0.8, threshold=0.1, average=1, every=1), steps=24
    )


def driven(spent: list[Event]) -> Seen:
    return observe(driven_recipe(), Sigmas(spent), query=lambda *_: 0.5)


def exceeded(spent: list[Event]) -> bool:
    """Return whether what was spent, priced by dp_accounting alone, costs more than is charged."""
    accountant, sigmas = RdpAccountant([k / 10 for k in range(20, 120)]), list(Sigmas(spent))
    for sigma in sorted(set(sigmas)):
        step = PoissonSampledDpEvent(BATCH / N, GaussianDpEvent(sigma))
        accountant.compose(step, sigmas.count(sigma))
    charged = driven_recipe().event(N)
    deltas = (1e-3, 1e-5, 1e-8)
    return any(accountant.get_epsilon(d) > price(charged, d).epsilon for d in deltas)


@pytest.mark.statistical
def test_a_schedule_that_follows_accuracies_has_the_noise_it_spends_and_stays_in_its_limit(
    spent: list[Event],
):
    found = driven(spent)
    assert 8 <= len(found.normals) == len(spent) < 24
    assert len(set(Sigmas(spent))) > 2
    assert gaussian_pvalue(found.normals) > ACCEPT
    assert not exceeded(spent)


@pytest.mark.statistical
@each_share
def test_noise_that_was_not_spent_is_caught(
    share: float, spent: list[Event], monkeypatch: pytest.MonkeyPatch
):
    honest = screening.ValidationDrivenNoise.spend

    def other(self: screening.ValidationDrivenNoise, first: float) -> float | None:
        sigma = honest(self, first)
        return None if sigma is None else share * sigma

    monkeypatch.setattr(screening.ValidationDrivenNoise, "spend", other)
    assert gaussian_pvalue(driven(spent).normals) < REJECT


@pytest.mark.unit
def test_a_filter_that_lets_everything_pass_is_caught(
    spent: list[Event], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(PrivacyFilter, "_fits", lambda *_: True)
    driven(spent)
    assert len(spent) == 24
    assert exceeded(spent)


# --- who is in a batch


def presence(made: Recipe) -> np.ndarray:
    """Return who is in each step's batch, bool, (steps, slots), from the released sums.

    Each record has a feature of its own, so its gradient stands in a column of its own; the noise
    is next to nothing.
    """
    model = nn.Linear(N, 2, bias=False)
    nn.init.zeros_(model.weight)
    everyone = torch.ones(N, dtype=torch.bool)
    slots = one_step.DeviceRecords(
        x=torch.eye(N), y=torch.zeros(N, dtype=torch.int64), valid=everyone
    )
    own, found = streams(), []
    for step in range(made.steps):
        (total,) = compute_noisy_sum(model, slots, made, own, step)
        sizes = (total[1] - total[0]) / math.sqrt(2)
        found.append(torch.abs(sizes).numpy() > 0.25)
    return np.array(found)


def drawn(**stages: Any) -> Recipe:
    return recipe(noise_multiplier=0.01, bounding=FlatClipping(clip_norm=0.5), **stages)


def release(made: Recipe) -> Any:
    """Return the one kind of release that the recipe charges."""
    (atom,) = count_atomic_releases(made.event(N))
    return atom


def inclusion_pvalue(made: Recipe) -> float:
    """Two-sided binomial, of the sampling probability that the event states."""
    chosen, q = presence(made), release(made).sampling_probability
    return float(binomtest(int(chosen.sum()), chosen.size, q).pvalue)


SAMPLED = {
    "poisson": {"steps": 25},
    "truncated": {"steps": 25, "batching": "truncated"},
    "noise first": {"steps": 25, "noise_before_clip": NoiseBeforeClip(record_bound=0.5)},
}


@pytest.mark.statistical
def test_a_record_is_in_with_the_probability_that_the_event_states():
    for name in SAMPLED:
        assert inclusion_pvalue(drawn(**SAMPLED[name])) > ACCEPT


@pytest.mark.statistical
@pytest.mark.parametrize("name", SAMPLED)
@each_share
def test_a_record_that_is_in_with_another_probability_is_caught(
    name: str, share: float, monkeypatch: pytest.MonkeyPatch
):
    honest = Poisson.indices

    def other(self: Poisson, n: int, generator: np.random.Generator) -> np.ndarray:
        q = share * self.sampling_probability
        return honest(Poisson(sampling_probability=q), n, generator)

    monkeypatch.setattr(Poisson, "indices", other)
    assert inclusion_pvalue(drawn(**SAMPLED[name])) < REJECT


def largest_batch(made: Recipe) -> tuple[int, int]:
    """Return the largest batch where sampling takes everyone, and the cap of the event."""
    return int(presence(made).sum(axis=1).max()), release(made).truncated_batch_size


@pytest.mark.unit
def test_no_batch_is_above_the_cap_that_the_event_states(monkeypatch: pytest.MonkeyPatch):
    made = drawn(batching="truncated", cap=95)
    monkeypatch.setattr(Poisson, "indices", lambda self, n, generator: np.arange(n))
    assert largest_batch(made) == (95, 95)
    monkeypatch.setattr(
        TruncatedPoisson, "batch", lambda self, n, own, step: self.poisson.indices(n, own)
    )
    assert largest_batch(made) == (N, 95)


def epochs_are_whole(made: Recipe) -> bool:
    """Return whether every slot is in one batch of each epoch, and each epoch is charged once."""
    each = math.ceil(N / made.expected_batch_size)
    epochs = presence(made).reshape(-1, each, N).sum(axis=1)
    return bool((epochs == 1).all()) and len(epochs) == len(noise_multipliers(made.event(N)))


@pytest.mark.unit
@pytest.mark.parametrize(("batch", "steps"), [(50, 12), (60, 12)])
def test_reshuffled_slots_are_in_one_batch_of_every_charged_epoch(
    batch: int, steps: int, monkeypatch: pytest.MonkeyPatch
):
    made = drawn(batching="reshuffled", steps=steps, expected_batch_size=batch)
    assert epochs_are_whole(made)
    sampled = Poisson(sampling_probability=batch / N)
    monkeypatch.setattr(Reshuffled, "batch", lambda self, n, own, step: sampled.batch(n, own, step))
    assert not epochs_are_whole(made)


# --- how far one record moves a sum

FEW = 12
LARGE = (0.0, 0.1, 1.0, 1e4, 1e8, math.inf)


def crowd(size: float, present: bool) -> one_step.DeviceRecords:
    """Return records that all pull one way, and one in slot 0 that pulls the other way."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, *SIDES, generator=generator).repeat(FEW, 1, 1)
    y = torch.zeros(FEW, dtype=torch.int64)
    x[0] *= size
    y[0] = 1
    valid = torch.ones(FEW, dtype=torch.bool)
    valid[0] = present
    return one_step.DeviceRecords(x=x, y=y, valid=valid)


def own_norms(layered: bool) -> tuple[float, ...]:
    """Return the norms of the record in slot 0, at size 1, a grain larger."""
    weights = [p.detach().double().numpy() for p in network().parameters()]
    x = crowd(1.0, True).x[:1].flatten(1).double().numpy()
    found = norms(gradients(weights, x, np.array([1])), layered)
    return tuple(float(each) * (1 + 1e-3) for each in found[:, 0])


def influence(made: Recipe) -> float:
    """Return how far one record moves what a step releases, in units of the noise it was charged.

    Both worlds have the same noise, so their difference has none. Sizes are from 0 to infinity; the
    bound of an adaptive step is one that the record just meets.
    """
    model, bounding, worst = network(), made.bounding, 0.0
    assert bounding is not None
    (z,) = set(noise_multipliers(made.event(FEW)))
    for size in LARGE:
        worlds, counts = [], []
        for present in (False, True):
            state = TrainingState()
            if isinstance(bounding, AdaptiveClipping):
                state.bounds = own_norms(bounding.per_layer)
            before = replace(state)
            found = compute_noisy_sum(model, crowd(size, present), made, streams(), 0, state=state)
            worlds.append([part.double().numpy().ravel() for part in found])
            if isinstance(bounding, AdaptiveClipping):
                counts.append(released_counts(bounding, before, state) * FEW / BATCH)
        moved = [b - a for a, b in zip(*worlds, strict=True)]
        stated = sensitivity(
            FlatClipping(clip_norm=made.noise_before_clip.record_bound)
            if made.noise_before_clip
            else bounding
        )  # type: ignore[arg-type]
        deviation, far = z * stated, 0.0
        if isinstance(bounding, AdaptiveClipping):
            bounds = before.bounds
            z_g, s_b = shares(bounding, z, len(bounds))
            back = [b / a for a, b in zip(bounding.start(2), bounds, strict=True)]
            moved = [m * b for m, b in zip(moved, back * (2 // len(back)), strict=True)]
            deviation = z_g * sensitivity(bounding, bounds)
            far = float((((counts[1] - counts[0]) / s_b) ** 2).sum())
        far += sum(float((m**2).sum()) for m in moved) / deviation**2
        worst = max(worst, math.sqrt(far) * z)
    return worst


def loose(patch: pytest.MonkeyPatch) -> None:
    for kind in (FlatClipping, AutoSClipping, PerLayerClipping):
        honest = kind.factors

        def other(self: Any, norms: Tensor, honest: Any = honest) -> Tensor:
            return 1.5 * honest(self, norms)

        patch.setattr(kind, "factors", other)


def plain_counts(patch: pytest.MonkeyPatch) -> None:
    """Count 0 and 1, where -1/2 and 1/2 are priced."""
    honest = per_example.clipped_sum_and_counts

    def other(network: nn.Module, x: Tensor, loss: Any, bounding: Any, mask: Tensor, **way: Any):
        found, counts = honest(network, x, loss, bounding, mask, **way)
        return found, counts + 0.5 * int(mask.sum())

    patch.setattr(per_example, "clipped_sum_and_counts", other)


FULL = {"expected_batch_size": FEW, "noise_multiplier": 0.3}
MOVED: dict[str, dict[str, Any]] = {
    "flat": {},
    "auto-s": {"bounding": AutoSClipping(bound=0.4)},
    "per layer": {"bounding": PerLayerClipping(clip_norms=(0.8, 0.3))},
    "adaptive": {"bounding": AdaptiveClipping(clip_norm=0.8, count_share=0.2)},
    "adaptive per layer": {
        "bounding": AdaptiveClipping(clip_norm=0.8, per_layer=True, count_share=0.2)
    },
    "noise first": {
        "noise_before_clip": NoiseBeforeClip(record_bound=0.5),
        "bounding": FlatClipping(clip_norm=WIDE),
    },
    "views": {"augmentation": Augmentation(views=3, shift=2, flip=True)},
}


def moved(name: str) -> float:
    return influence(recipe(**{**FULL, **MOVED[name]}))


@pytest.mark.unit
@pytest.mark.parametrize("name", MOVED)
def test_no_record_moves_a_sum_by_more_than_is_stated_and_one_that_is_loose_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    # Two sums with the same noise are compared: the grid that they are rounded to must be finer.
    monkeypatch.setattr(normals, "GRID_LOG2", 30)
    assert 0.95 < moved(name) <= 1 + 1e-5
    loose(monkeypatch)
    assert moved(name) > 1.3


@pytest.mark.unit
@pytest.mark.parametrize("name", ["adaptive", "adaptive per layer"])
def test_counts_of_0_and_1_are_caught(name: str, monkeypatch: pytest.MonkeyPatch):
    plain_counts(monkeypatch)
    assert moved(name) > 1.2


# --- looks at private records while training

PEOPLE, LOOKS = 200, 700
QUERYING = {
    "energies": ("sa-dpsgd", False),
    "accuracies": ("dynamic-validation", False),
    "errors": ("dynamic-validation", True),
}
each_look = pytest.mark.parametrize("name", QUERYING)


@dataclass(frozen=True, kw_only=True)
class Looking:
    """An engine that answers a network which always says 0, and what it was charged."""

    search: SearchEngine
    exact: int
    unit: float
    epsilon: float
    most: int

    def residuals(self, count: int, search: SearchEngine | None = None) -> np.ndarray:
        """Return the noise of so many looks, whole numbers, each with a key of its own."""
        search = search or self.search
        candidate = search.plan.space.candidate((0,))
        model = silent(self.search)
        front = search._fit_front_end(candidate.front_end)
        found = []
        for trial in range(count):
            query = search._make_validation_query(
                search.plan.recipe, front, Keys.from_seed(9).stream("t", trial), "only"
            )
            assert query is not None
            found.append(query(model, 0) / self.unit - self.exact)
        whole = np.round(found)
        assert np.allclose(found, whole, atol=1e-6)
        return whole.astype(int)


def silent(search: SearchEngine) -> nn.Module:
    schema = search.plan.schema
    model = search.plan.space.candidate((0,)).build(schema.shape, schema.outputs)
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    return model


@contextmanager
def looking(name: str, path: Path) -> Iterator[Looking]:
    preset, regression = QUERYING[name]
    own = {"target": (0.0, 1.0), "regression": True} if regression else {"classes": 4}
    y = np.arange(PEOPLE) % 4
    data = Dataset(
        name="people",
        schema=Schema(shape=(3,), low=-1.0, high=1.0, **own),  # type: ignore[arg-type]
        features=np.random.default_rng(0).uniform(-1, 1, (PEOPLE, 3)),
        labels=y / 4 if regression else y,
    )
    prepared = prepare(
        data, budget=Budget(4.0, 1e-4), recipe=preset, steps=4, batch=160, seed=1,
        architecture={"layers": [{"kind": "dense", "units": 2}]},
    )  # fmt: skip
    plan, keys = prepared.plan, Keys.from_seed(3)
    folder = RunFolder.create(path, "test")
    data.partition(plan.split, keys.stream("split").generator())
    slots = data["validation"]._slots
    (line,) = (each for each in plan.lines if each.name == VALIDATION_QUERY_LINE)
    exact, unit, most = {
        # The cross entropy of four equal outputs is log 4, of at most 4 nats; an energy is a mean.
        "energies": (round(100 * math.log(4) / 4) * len(slots), 4 / (100 * len(slots)), 100),
        "accuracies": (int((y[slots] == 0).sum()), 1 / len(slots), 1),
        "errors": (int((100 - 25 * y[slots]).sum()), 1 / (100 * len(slots)), 100),
    }[name]
    with Ledger.create(folder.private / "ledger.sqlite", plan.lines) as ledger:
        search = SearchEngine(
            plan=plan, strategy=plan.strategy, dataset=data, ledger=ledger, keys=keys,
            journal=None, folder=folder, device="cpu", progress=Progress(),  # type: ignore[arg-type]
        )  # fmt: skip
        yield Looking(
            search=search, exact=exact, unit=unit, most=most,
            epsilon=line.event.epsilon,  # type: ignore[attr-defined]
        )  # fmt: skip


@pytest.mark.statistical
@each_look
def test_looks_have_the_noise_of_the_charged_epsilon(name: str, tmp_path: Path):
    with looking(name, tmp_path / "run") as looks:
        found = looks.residuals(LOOKS)
    scale = looks.epsilon / looks.most
    assert geometric_pvalue(found, scale) > ACCEPT
    for share in WRONG:
        assert geometric_pvalue(found, scale * share) < REJECT


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "share"), [("energies", 2 / 3), ("accuracies", 3 / 2)])
def test_looks_with_other_noise_are_caught(
    name: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for module in (mechanisms, sums):
        honest = module.draw_discrete_laplace

        def other(epsilon: Any, below: Any, honest: Any = honest) -> int:
            return honest(epsilon / Fraction(share).limit_denominator(3), below)

        monkeypatch.setattr(module, "draw_discrete_laplace", other)
    with looking(name, tmp_path / "run") as looks:
        found = looks.residuals(LOOKS)
    assert geometric_pvalue(found, looks.epsilon / looks.most) < REJECT


EXTREME = (-math.inf, -1e30, -1.0, 0.0, 1.0, 1e30, math.inf, math.nan)


def one_query(measure: Callable[..., int], numbers: bool) -> int:
    """Return how far one record moves a query: over extreme values and both labels."""
    worst = 0
    for value in EXTREME:
        for label in (0, 1):
            x = torch.full((3, 1), 1.0)
            x[0] = value
            y = torch.tensor([label, 0, 1], dtype=torch.float32 if numbers else torch.int64)
            model = nn.Linear(1, 1 if numbers else 2)
            with torch.no_grad():
                model.bias.zero_()
                model.weight.zero_()[0] = 1.0
            found = [
                measure(
                    model, Records(x=x, y=y, valid=torch.tensor([there, True, True]), public=False),
                    device="cpu",
                )
                for there in (False, True)
            ]  # fmt: skip
            worst = max(worst, abs(found[1] - found[0]))
    return worst


@pytest.mark.unit
def test_no_record_moves_a_query_by_more_than_its_noise_is_for(monkeypatch: pytest.MonkeyPatch):
    assert one_query(sum_loss_points, numbers=False) == 100
    assert one_query(sum_loss_points, numbers=True) == 100
    assert one_query(compute_score_count, numbers=True) == 100
    assert one_query(compute_score_count, numbers=False) == 1
    monkeypatch.setattr(losses, "MAX_LOSS_POINTS", 150)
    monkeypatch.setattr(metrics.AbsoluteError, "max_points", 150)
    assert one_query(sum_loss_points, numbers=False) == 150
    assert one_query(sum_loss_points, numbers=True) == 150
    assert one_query(compute_score_count, numbers=True) == 150
