"""Recipe: the training configuration of one network, and the privacy event of its steps.

The privacy event of a training is computed only here. It is the composition over steps t of

    Gaussian noise:                             the event of the batching, with sigma_t;
                                                for Poisson: PoissonGaussian(q, sigma_t)
    non-Gaussian noise on encoded gradients:    AdditiveNoise(q, density_t, shifts)

A training step consists of stages (docs/architecture.md): batching, clipping, noise, optimizer and
others. Each stage declares the properties on which others depend, so that stages can be replaced
independently. Combinations without a proof are refused (`STAGE_CONFLICTS`). The validation queries
of screening and validation-driven schedules are charged elsewhere.

Source: Abadi et al. 2016 (DP-SGD); docs/rules.md, rules 2, 6 and 7. Proof: the pages of
docs/guarantees, dp-sgd.md first.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from pasearch.accounting import calibration
from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import (
    check_fraction,
    check_nonnegative,
    check_positive,
    check_positive_integer,
)
from pasearch.accounting.densities import (
    Density,
    GaussianNoise,
    check_known_density,
    density_from_json,
)
from pasearch.accounting.events import (
    AdditiveNoise,
    Composition,
    Event,
    FilteredReleases,
    NoisyRecords,
    SelfComposition,
)
from pasearch.accounting.published_bounds import PublishedBound
from pasearch.accounting.renyi import find_best_order
from pasearch.errors import UsageError
from pasearch.registry import Registry, Stage, TrainingSteps
from pasearch.runs.sums import SUM_ROUNDING
from pasearch.training.augmentation import AUGMENTATIONS, Augmentation
from pasearch.training.batching import BATCHINGS, Batching
from pasearch.training.clipping import CLIPPING_METHODS, ClippingMethod, FlatClipping
from pasearch.training.noise import DENOISINGS, Denoising
from pasearch.training.noise_before_clip import ORDERS, NoiseBeforeClip
from pasearch.training.optimizers import (
    LEARNING_RATE_SCHEDULES,
    OPTIMIZERS,
    LearningRateDecay,
    Optimizer,
)
from pasearch.training.schedules import SCHEDULES, Schedule, UniformSchedule
from pasearch.training.screening import SCREENINGS, Annealing

DEFAULT_CLIPPING = FlatClipping(clip_norm=0.25)
"""Clipping method of the default recipe."""
MAX_NOISE_LEVELS = 1000
"""Maximum number of different noise multipliers in one training; each has its own event."""

MAX_STEPS = 10_000_000
"""Maximum number of steps. For more, accounting would take minutes, and training months."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Training configuration: hyperparameters and stages of one training.

    Args:
        expected_batch_size: Expected number q n of records in a batch. Every sum is divided by this
            public number.
        steps: Number of steps, 1 or more.
        learning_rate: Learning rate, above 0. None: not tuned yet (`tune_recipe`).
        noise_multiplier: Noise multiplier sigma of the first step. None: no noise, for
            declared-public data only.
        batching: Sampling of batches: "poisson", "truncated" (at most `cap` records) or
            "reshuffled" (disjoint batches of `expected_batch_size`, without amplification).
        cap: Maximum batch size of "truncated". None: the minimum allowed, q n + 6 sqrt(q n).
        bounding: Clipping method. None: no clipping, only without noise.
        noise_before_clip: Settings of noise on each record's gradient, which is then clipped
            ("AC"). None: gradients are clipped, and noise is added to their sum ("CA").
        schedule: Noise schedule over epochs.
        screening: Rule that accepts or undoes updates. None: all are accepted.
        augmentation: Views of each record, whose gradients are averaged before clipping. None: one
            view.
        noise: Noise density, with any scale, for encoded gradients. None: Gaussian. With another
            density, sigma means noise with the Fisher information of N(0, (sigma C)^2).
        micro_batch: Number m of records in a micro-batch, whose mean gradient is encoded as one.
            Record i is always in micro-batch i mod (n / m), and micro-batches are sampled.
        denoising: Method that multiplies a noisy sum by a weight, from its distance to pure noise.
            None: no denoising.
        optimizer: Optimizer: "sgd", "momentum" (scaled by 1 - momentum, so that a learning rate has
            the same effect with and without it), "adam", or "adam-corrected" (subtracts the noise
            variance from the second moment).
        momentum: Momentum in [0, 1), or beta_1 of Adam.
        weight_decay: Weight decay d, 0 or above: each step multiplies the weights by
            1 - learning rate * d.
        learning_rate_schedule: Decrease of the learning rate over epochs. None: constant.
        average: Horizon of the moving average of weights, as a fraction of the steps. None: no
            averaging.
        temperature: Divisor of the logits, above 0, applied to the output layer after the last
            step; it changes no predicted label. None: not chosen yet (`tune_recipe`); training
            uses 1.
        class_weights: Weight of each class, 0 or above, in class order. A clipped gradient is
            multiplied by the weight of its class, divided by the largest weight. None: equal
            weights.
        chunk: Maximum number of rows in one forward pass, at least 32 if batch sizes vary. It
            affects only memory, and which views of a record are drawn.
    """

    expected_batch_size: int
    steps: int
    learning_rate: float | None = None
    noise_multiplier: float | None = None
    batching: str = "poisson"
    cap: int | None = None
    bounding: ClippingMethod | None = DEFAULT_CLIPPING
    noise_before_clip: NoiseBeforeClip | None = None
    schedule: Schedule = UniformSchedule()  # noqa: RUF009 - a frozen value
    screening: Annealing | None = None
    augmentation: Augmentation | None = None
    noise: Density | None = None
    micro_batch: int = 1
    denoising: Denoising | None = None
    optimizer: str = "momentum"
    momentum: float = 0.9
    weight_decay: float = 0.0
    learning_rate_schedule: LearningRateDecay | None = None
    average: float | None = 0.1
    temperature: float | None = None
    class_weights: tuple[float, ...] | None = None
    chunk: int = 4096

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            name: check_positive_integer(name, getattr(self, name))
            for name in ("expected_batch_size", "steps", "chunk", "micro_batch")
        }
        if checked["steps"] > MAX_STEPS:
            raise UsageError(f"steps is {checked['steps']:,}: expected at most {MAX_STEPS:,}.")
        for name in ("learning_rate", "noise_multiplier", "temperature"):
            if getattr(self, name) is not None:
                checked[name] = check_positive(name, getattr(self, name))
        for name in ("momentum", "weight_decay"):
            checked[name] = check_nonnegative(name, getattr(self, name))
        if self.average is not None:
            checked["average"] = check_fraction("average", self.average)
        if self.class_weights is not None:
            checked["class_weights"] = _check_class_weights(self.class_weights)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not self.momentum < 1.0:
            raise UsageError(f"momentum is {self.momentum}: expected a number in [0, 1).")
        for name, registry in NAMED_STAGES.items():
            if registry.find(value := getattr(self, name)) is None:
                names = ", ".join(registry.kinds())
                raise UsageError(f"{name} {value!r} is unknown: expected one of {names}.")
        for name, registry in TABLE_STAGES.items():
            if getattr(self, name) is not None or name == "schedule":
                registry.check(name, getattr(self, name))
        if self.noise is not None:
            check_known_density("noise", self.noise)
        if self.cap is not None and not self.sampling.has_cap:
            raise UsageError("cap requires batching 'truncated': set that, or leave cap out.")
        if self.noise_multiplier is not None and self.bounding is None:
            raise UsageError("Noise without clipping has no privacy guarantee: set bounding.")
        if problems := self.problems():
            raise UsageError("This recipe has no privacy proof. " + " ".join(problems))

    def problems(self) -> list[str]:
        """List the reasons why the stages cannot be combined; empty if they can."""
        return [reason for reason, conflict in STAGE_CONFLICTS.items() if conflict(self)]

    @property
    def sampling(self) -> type[Batching]:
        """Class of the sampling method; `make_batching` creates an instance for n records."""
        return BATCHINGS[self.batching]

    @property
    def optimizer_stage(self) -> Optimizer:
        """Optimizer with the settings of the recipe."""
        kind = OPTIMIZERS[self.optimizer]
        return kind(**{name: getattr(self, name) for name in kind.field_names()})

    def stages(self) -> list[Stage]:
        """List the optional stages that are set, in their order within a step."""
        given = (
            self.augmentation, self.noise_before_clip, self.noise, self.schedule, self.denoising,
            self.screening, self.learning_rate_schedule,
        )  # fmt: skip
        return [each for each in given if each is not None]

    def list_published_bounds(self, n: int, delta: float) -> list[PublishedBound]:
        """Evaluate the privacy formula of a paper for this training; it is shown, never charged."""
        if self.noise_multiplier is None or self.noise is not None:  # formulas for Gaussian noise
            return []
        steps = TrainingSteps(
            sampling_probability=self.sampling_probability(n),
            noise_multiplier=self.noise_multiplier,
            count=self.steps,
            noises=tuple((self.noise_multiplier * each, many) for each, many in self.levels(n)),
            sampled=self.sampling.independent,
            delta=delta,
        )
        # The formula of screening has priority, because it covers the whole step.
        found = (each.list_published_bounds(steps) for each in reversed(self.stages()))
        return next(filter(None, found), [])

    def sampling_probability(self, n: int) -> float:
        """Compute the sampling probability q.

        Args:
            n: Number of records, null records included.

        Raises:
            UsageError: The expected batch is larger than n.
        """
        if self.expected_batch_size > n:
            raise UsageError(
                f"The batch size is {self.expected_batch_size:,}, but the partition has only "
                f"{n:,} records: set `batch={n}` or less."
            )
        return self.expected_batch_size / n

    def make_batching(self, n: int) -> Batching:
        """Make the sampling method for n records, null records included."""
        self.sampling_probability(n)  # raises an error if the batch is larger than n
        if self.micro_batch == 1:
            return self.sampling.of(n, self.expected_batch_size, self.cap)
        return self.sampling.of(self.count_units(n), self.expected_units, self.cap)

    @property
    def expected_units(self) -> int:
        """Expected number of micro-batches in a batch, which is that of records if m is 1."""
        return max(1, self.expected_batch_size // self.micro_batch)

    def count_units(self, n: int) -> int:
        """Count the micro-batches of n records; the last ones may have a record less."""
        return math.ceil(n / self.micro_batch)

    def event(self, n: int, dimension: int | None = None) -> Event:
        """Compute the privacy event of the whole training.

        Args:
            n: Number of training records, null records included.
            dimension: Number of trainable parameter values; required for non-Gaussian noise.

        Raises:
            UsageError: There is no noise, or no clipping before it, so the cost would be infinite.

        Cost: the event is charged to the partition that the training reads.
        """
        if self.noise_multiplier is None:
            raise UsageError(
                "A recipe without noise has no privacy guarantee: use public data only."
            )
        parts = tuple(
            SelfComposition(self.release(n, self.noise_multiplier * factor, dimension), count)
            for factor, count in self.levels(n)
        )
        whole_plan = parts[0] if len(parts) == 1 else Composition(events=parts)
        if not self.schedule.is_validation_driven:
            return whole_plan
        # The filter uses only orders up to the best one. Higher orders would end the training
        # sooner, without a lower cost. The best order is that for the default delta of n records.
        delta = Budget(1.0).resolve(n).delta
        assert delta is not None
        return FilteredReleases(whole_plan, find_best_order(whole_plan, delta))

    def release(self, n: int, noise_multiplier: float, dimension: int | None = None) -> Event:
        """Compute the privacy event of one noisy sum: of a step, or of an epoch if reshuffled."""
        q = self.sampling_probability(n)
        if self.micro_batch > 1:
            # A record changes one encoded vector of norm C into another, in a revealed sample.
            return NoisyRecords(self.expected_units / self.count_units(n), noise_multiplier / 2.0)
        if self.noise is not None:
            assert self.bounding is not None
            if dimension is None:
                raise UsageError(
                    f"The privacy cost of {self.noise.name} noise depends on the number of "
                    "trainable parameters: pass dimension."
                )
            return AdditiveNoise(
                sampling_probability=q,
                density=self.density(noise_multiplier),
                shifts=self.bounding.shifts(dimension),
            )
        if self.noise_before_clip is None:
            return self.make_batching(n).event(noise_multiplier)
        if self.noise_before_clip.record_bound is None:
            raise UsageError(
                "Noise on unclipped gradients has no privacy guarantee (epsilon is infinite): set "
                "record_bound in noise_before_clip, or use declared-public data."
            )
        return NoisyRecords(q, noise_multiplier)

    def density(self, noise_multiplier: float) -> Density:
        """Compute the distribution of noise on one coordinate of a sum, as used for accounting.

        Its scale is in units of the sum. Its Fisher information is that of Gaussian noise with this
        noise multiplier.
        """
        assert self.bounding is not None
        unit = GaussianNoise() if self.noise is None else self.noise.unit
        spread = math.sqrt(unit.fisher_information)
        return unit.with_scale(noise_multiplier * self.bounding.sensitivity * spread)

    def drawn_density(self, noise_multiplier: float) -> Density:
        """Compute the distribution from which noise is drawn: `density` with its scale times R.

        R (`runs.sums.SUM_ROUNDING`) bounds the factor by which floating-point rounding increases
        the contribution of one record to a sum. So the cost is at most that of `density`.
        """
        accounted = self.density(noise_multiplier)
        return accounted.with_scale(accounted.scale * SUM_ROUNDING)

    def levels(self, n: int) -> list[tuple[float, int]]:
        """List the factors on sigma, in order, each with its number of releases."""
        batches = self.make_batching(n)
        if self.schedule.is_validation_driven or not self.schedule.varies:
            return [(1.0, batches.count_all_releases(self.steps))]
        last = batches.epoch(self.steps - 1)
        found: dict[float, int] = {}
        starts = _find_first_steps(batches, last, self.steps)
        for epoch, (start, end) in enumerate(zip(starts, [*starts[1:], self.steps], strict=True)):
            factor = self.schedule.factor(epoch)
            found[factor] = found.get(factor, 0) + batches.count_releases(int(end - start))
            if len(found) > MAX_NOISE_LEVELS:
                raise UsageError(
                    f"the schedule has more than {MAX_NOISE_LEVELS} different noises in "
                    f"{self.steps:,} steps: let it change every few epochs (`every`), or use fewer "
                    "steps."
                )
        return [(factor, count) for factor, count in found.items() if count]

    def count_validation_queries(self, n: int) -> int:
        """Compute the maximum number of validation queries of a training.

        Screening makes one query before the first step, and one after every `every` steps. A
        validation-driven schedule makes one query after every `every` epochs.
        """
        if self.screening is not None:
            return self.screening.count_validation_queries(self.steps)
        if not self.schedule.is_validation_driven:
            return 0
        return self.schedule.count_validation_queries(self.make_batching(n).epoch(self.steps))

    def compute_noise_multiplier_for_mu(self, mu: float, n: int) -> float:
        """Approximate the noise multiplier for a total mu (central limit theorem), for tuning."""
        levels = self.levels(n)
        q = self.sampling_probability(n)
        sampled = self.sampling.sampled
        on_records = self.noise_before_clip is not None or self.micro_batch > 1
        if len(levels) == 1 and sampled and not on_records:
            return calibration.compute_noise_multiplier_for_mu(mu, q, levels[0][1])
        weight = math.fsum(count / factor**2 for factor, count in levels)
        if not sampled:
            return math.sqrt(weight) / mu
        if on_records:
            return math.sqrt(q * weight) / mu * (2.0 if self.micro_batch > 1 else 1.0)
        low, high = 1e-3, 2.0 * math.sqrt(weight) * q / mu + 1e3
        for _ in range(100):
            middle = math.sqrt(low * high)
            squares = math.fsum(
                count * math.expm1(min(700.0, (middle * factor) ** -2)) for factor, count in levels
            )
            low, high = (middle, high) if q * math.sqrt(squares) > mu else (low, middle)
        return high

    def noise_multiplier_at(self, step: int, n: int) -> float | None:
        """Compute the noise multiplier of a step (from 0) for a data-independent schedule."""
        if self.noise_multiplier is None or not self.schedule.varies:
            return self.noise_multiplier
        return self.noise_multiplier * self.schedule.factor(self.make_batching(n).epoch(step))

    def learning_rate_factor_at(self, step: int, n: int) -> float:
        """Compute the factor of the learning rate schedule in a step, from 0."""
        if self.learning_rate_schedule is None:
            return 1.0
        return self.learning_rate_schedule.factor(self.make_batching(n).epoch(step))

    def within(self, n: int) -> Recipe:
        """Copy the recipe with an expected batch size of at most n."""
        return replace(self, expected_batch_size=min(self.expected_batch_size, n))

    def with_noise(self, noise_multiplier: float | None) -> Recipe:
        """Copy the recipe with a noise multiplier; None also removes clipping and denoising."""
        if noise_multiplier is not None:
            return replace(self, noise_multiplier=noise_multiplier)
        return replace(
            self, noise_multiplier=None, bounding=None, noise=None, denoising=None, micro_batch=1
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary of JSON values, without fields that old files do not have."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, usual in OMITTED_VALUES.items():
            if values[name] == usual:
                del values[name]
        return {
            name: value.to_json() if name in STAGE_READERS and value is not None else value
            for name, value in values.items()
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Recipe:
        """Create a recipe from the values of `to_json`.

        Raises:
            UsageError: An unknown field, a missing field or an invalid value.
        """
        if unknown := sorted(set(values) - {field.name for field in fields(cls)}):
            raise UsageError(f"A recipe has no {', '.join(unknown)}: leave that out.")
        if missing := sorted({"expected_batch_size", "steps"} - set(values)):
            raise UsageError(f"The recipe lacks {', '.join(missing)}: give it.")
        read: dict[str, Any] = {
            name: STAGE_READERS[name](value)
            if name in STAGE_READERS and value is not None
            else value
            for name, value in values.items()
        }
        return cls(**read)


def _check_class_weights(given: object) -> tuple[float, ...]:
    """Check class weights, and return them as a tuple."""
    if not isinstance(given, (list, tuple)) or len(given) < 2:
        raise UsageError(
            f"class_weights is {given!r}: expected one number a class, like [1.0, 4.0]."
        )
    weights = tuple(check_nonnegative("each of class_weights", value) for value in given)
    if not max(weights) > 0.0:
        raise UsageError("class_weights are all 0: at least one class must count.")
    return weights


def _find_first_steps(batches: Batching, last: int, steps: int) -> list[int]:
    """Find the first step of each epoch from 0 to `last`."""
    if last < steps // 64:
        # For few long epochs, a binary search for each takes less time than a list of all steps.
        return [bisect_left(range(steps), epoch, key=batches.epoch) for epoch in range(last + 1)]
    epochs = np.fromiter((batches.epoch(step) for step in range(steps)), np.int64, steps)
    return [int(start) for start in np.searchsorted(epochs, np.arange(last + 1))]


OMITTED_VALUES = {
    "micro_batch": 1,
    "temperature": 1.0,
    "weight_decay": 0.0,
    "learning_rate_schedule": None,
}
"""Values that the JSON of a recipe omits, by name of the field."""

NAMED_STAGES: dict[str, Registry[Any]] = {"batching": BATCHINGS, "optimizer": OPTIMIZERS}
"""Stages that are selected by name; their parameters are fields of the recipe."""

TABLE_STAGES: dict[str, Registry[Any]] = {
    "bounding": CLIPPING_METHODS,
    "noise_before_clip": ORDERS,
    "schedule": SCHEDULES,
    "screening": SCREENINGS,
    "augmentation": AUGMENTATIONS,
    "denoising": DENOISINGS,
    "learning_rate_schedule": LEARNING_RATE_SCHEDULES,
}
"""Stages that are tables in a recipe file, except for the noise density."""

STAGE_READERS: dict[str, Callable[[Any], Any]] = {
    **{name: registry.from_json for name, registry in TABLE_STAGES.items()},
    "noise": density_from_json,
}
"""Functions that create the stages of a recipe from JSON values, by name of the field."""


STAGE_CONFLICTS: dict[str, Callable[[Recipe], bool]] = {
    "A validation-driven schedule requires batching 'poisson' (its privacy filter needs a Renyi "
    "bound, and truncated batches have none).": lambda r: (
        r.schedule.is_validation_driven and not r.sampling.has_renyi_cost
    ),
    "A validation-driven schedule requires batching 'poisson' (reshuffled batches are charged by "
    "the epoch, and its privacy filter stops between steps).": lambda r: (
        r.schedule.is_validation_driven and not r.sampling.sampled
    ),
    "A validation-driven schedule requires a recipe without screening (the same validation queries "
    "would drive both, and there is no analysis of that).": lambda r: (
        r.schedule.is_validation_driven and r.screening is not None
    ),
    "'noise_before_clip' requires batching 'poisson' (its analysis assumes Poisson sampling).": (
        lambda r: r.noise_before_clip is not None and not r.sampling.independent
    ),
    "'noise_before_clip' requires bounding 'flat' (its analysis assumes one flat clip after the "
    "noise).": lambda r: (
        r.noise_before_clip is not None and r.bounding is not None and not r.bounding.clips_noise
    ),
    "'noise_before_clip' requires a data-independent schedule (there is no analysis of it with a "
    "privacy filter).": lambda r: (
        r.noise_before_clip is not None and r.schedule.is_validation_driven
    ),
    "'adam-corrected' requires a recipe without 'noise_before_clip' (the noise variance is unknown "
    "after the clip).": lambda r: (
        r.noise_before_clip is not None and r.optimizer_stage.subtracts_noise_variance
    ),
    "'noise_before_clip' requires a recipe without augmentation (it uses one gradient per "
    "record).": lambda r: r.noise_before_clip is not None and r.augmentation is not None,
    "'adam-corrected' requires noise; use 'adam' for non-private training.": (
        lambda r: r.optimizer_stage.subtracts_noise_variance and r.bounding is None
    ),
    "'adam-corrected' requires one clipping norm for all layers (it subtracts one noise variance, "
    "and layers with their own clipping norms have different ones).": lambda r: (
        r.optimizer_stage.subtracts_noise_variance
        and r.bounding is not None
        and not r.bounding.has_uniform_noise
    ),
    "Adaptive clipping requires batching 'poisson' (there is no proof for shuffled batches).": (
        lambda r: r.bounding is not None and r.bounding.is_adaptive and not r.sampling.sampled
    ),
    "Non-Gaussian noise requires bounding 'encoded' (its analysis needs a bound on every "
    "coordinate, not only on the norm).": lambda r: (
        r.noise is not None and r.bounding is not None and not r.bounding.limits_coordinates
    ),
    "Non-Gaussian noise requires batching 'poisson' (its analysis assumes Poisson sampling).": (
        lambda r: r.noise is not None and not r.sampling.independent
    ),
    "Non-Gaussian noise requires a data-independent schedule (there is no analysis of it with a "
    "privacy filter).": lambda r: r.noise is not None and r.schedule.is_validation_driven,
    "Bounding 'encoded' requires a recipe without augmentation (it uses one gradient per "
    "record).": lambda r: (
        r.augmentation is not None and r.bounding is not None and not r.bounding.takes_views
    ),
    "'adam-corrected' requires Gaussian noise without denoising (it subtracts the variance of the "
    "noise that was added).": lambda r: (
        r.optimizer_stage.subtracts_noise_variance
        and (r.noise is not None or r.denoising is not None)
    ),
    "Denoising requires a recipe without 'noise_before_clip' (it compares a sum with the noise "
    "distribution, which is unknown after the clip).": lambda r: (
        r.denoising is not None and r.noise_before_clip is not None
    ),
    "Denoising requires non-adaptive clipping (it compares all coordinates with one noise "
    "distribution, and adaptive clipping gives each layer its own).": lambda r: (
        r.denoising is not None and r.bounding is not None and r.bounding.is_adaptive
    ),
    "'class_weights' requires Gaussian noise added after clipping (the weights multiply clipped "
    "gradients).": lambda r: (
        r.class_weights is not None and (r.noise is not None or r.noise_before_clip is not None)
    ),
    "'class_weights' requires clipped gradients, not bounding 'encoded' (which replaces a gradient "
    "by one of a set of public vectors).": lambda r: (
        r.class_weights is not None and r.bounding is not None and not r.bounding.takes_views
    ),
    "'micro_batch' requires bounding 'encoded' with exact = true (it encodes the mean gradient of "
    "a micro-batch).": lambda r: (
        r.micro_batch > 1 and not (r.bounding is not None and getattr(r.bounding, "exact", False))
    ),
    "'micro_batch' requires batching 'poisson', Gaussian noise and a data-independent schedule "
    "(its analysis assumes them).": lambda r: (
        r.micro_batch > 1
        and (
            not r.sampling.independent
            or r.noise is not None
            or r.noise_before_clip is not None
            or r.schedule.is_validation_driven
        )
    ),
    "Denoising requires noise; leave it out for non-private training.": lambda r: (
        r.denoising is not None and r.bounding is None
    ),
}
"""Functions that check whether a recipe violates a requirement, by the text of the requirement."""


def make_default_recipe(
    slots: int, *, batch: int | None = None, steps: int | None = None, **settings: Any
) -> Recipe:
    """Make the default recipe for a partition, from public numbers only.

            expected batch = min(2048, n / 4)         steps = 5 sqrt(n), from 100 to 1500

    On digits (n about 1,600) and MNIST (n 60,000) at total epsilons from .5 to 4, the accuracy is
    nearly constant around these values.

    Args:
        slots: Number of training records n, null records included.
        batch: Expected batch size. None: by the formula.
        steps: Number of steps. None: by the formula.
        settings: Other fields of `Recipe`.
    """
    return Recipe(
        expected_batch_size=max(1, min(2048, slots // 4)) if batch is None else batch,
        steps=min(1500, max(100, round(5 * math.sqrt(slots)))) if steps is None else steps,
        **settings,
    )


MAX_SCREENED_STEP = 6.0
"""Maximum of learning rate times clipping norm with screening. Above it, most blocks of updates
increase the loss and are undone. Measured on MNIST with 50 and 150 steps
(benchmarks/optimizers/README.md).
"""


def tune_learning_rate(recipe: Recipe, mu: float | None, slots: int) -> float:
    """Compute a learning rate for the amount of noise, from public numbers only.

            learning rate * steps * C = 1.3 (mu n)^0.8

    mu n is the signal-to-noise ratio of the whole training, see
    `calibration.compute_noise_multiplier_for_mu`. The exponent was fitted on digits and MNIST at
    total epsilons from .5 to 4. Without noise the rate is 0.5. The steps of Adam have the size of
    the learning rate itself, 1e-3 here.

    With screening the learning rate is at most `MAX_SCREENED_STEP` / C. This is relevant for short
    trainings, in which several updates are accepted or undone together.

    Args:
        recipe: Training configuration.
        mu: Noise parameter mu of the whole training. None: no noise.
        slots: Number of training records n, null records included.
    """
    if (rate := recipe.optimizer_stage.default_rate) is not None:
        return rate
    if mu is None or recipe.bounding is None:
        return 0.5
    rate = 1.3 * (mu * slots) ** 0.8 / (recipe.steps * recipe.bounding.sensitivity)
    if recipe.screening is not None:
        rate = min(rate, MAX_SCREENED_STEP / recipe.bounding.sensitivity)
    return rate
