"""How a network is trained, and the only place that says what its steps cost.

docs/architecture.md goes through a step, stage by stage, and says where each stands.

    price = sum over t of [batching.event(sigma_t)],   Poisson: PoissonGaussian(q, sigma_t)
            noise of another density, on encoded gradients:    Additive(q, density_t, shifts)

A choice at one stage never changes another stage's code: each stage says of itself what the others
must know, and what has no proof together is refused (`CONFLICTS`). Screening and schedules that are
steered by validation queries pay for these elsewhere.

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
from pasearch.training.optimizers import OPTIMIZERS, Optimizer
from pasearch.training.schedules import SCHEDULES, Schedule, UniformSchedule
from pasearch.training.screening import SCREENINGS, Annealing

DEFAULT_CLIPPING = FlatClipping(clip_norm=0.25)
MAX_NOISE_LEVELS = 1000
"""How many different noises one training may have: each is priced on its own."""

MAX_STEPS = 10_000_000
"""The longest training: pricing more takes minutes, and training it months."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A frozen recipe of one training.

    Args:
        expected_batch_size: q n, records; the divisor of every sum, a public constant.
        steps: Number of steps, 1 or more.
        learning_rate: Above 0; None until the noise is known (`tune_recipe`).
        noise_multiplier: sigma, of the first step; None trains without privacy, on declared-public
            data only.
        batching: "poisson", "truncated" (at most `cap` slots) or "reshuffled" (disjoint batches of
            `expected_batch_size`, without amplification).
        cap: Of "truncated"; None takes the least, q n + 6 sqrt(q n).
        bounding: How a record's gradient is bounded; None only without noise.
        noise_before_clip: None bounds each record and adds noise to the sum ("CA"); otherwise
            noise is added to each record, which is then clipped ("AC").
        schedule: How the noise changes from epoch to epoch.
        screening: Which updates are taken; None takes all.
        augmentation: Views of each record, averaged before the bound; None for one.
        noise: The noise's density, of any scale, on encoded gradients; None for Gaussian. sigma
            then stands for its information: that of N(0, (sigma C)^2).
        denoising: How a noisy sum is weighed by its distance from pure noise; None does not.
        optimizer: "sgd", "momentum" (which takes (1 - momentum) times the learning rate, so that
            the rate means the same with and without it), "adam", or "adam-corrected" (the noise's
            variance is taken off the second moment).
        momentum: In [0, 1); Adam's beta_1 too.
        average: Horizon of the weights' moving average, as a share of the steps; None for none.
        temperature: Divisor of the logits, above 0: the output layer is divided by it after the
            last step, which changes no label. None until the classes are known
            (`tune_recipe`), which is trained as 1.
        class_weights: One a class, 0 or above, in the classes' order; a record's bounded gradient
            is multiplied by its class's share of the largest. None: all count alike.
        chunk: Most rows in one forward pass, but 32 at least where the sizes of batches vary. Only
            memory depends on it, and which views of a record are drawn.
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
    denoising: Denoising | None = None
    optimizer: str = "momentum"
    momentum: float = 0.9
    average: float | None = 0.1
    temperature: float | None = None
    class_weights: tuple[float, ...] | None = None
    chunk: int = 4096

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            name: check_positive_integer(name, getattr(self, name))
            for name in ("expected_batch_size", "steps", "chunk")
        }
        if checked["steps"] > MAX_STEPS:
            raise UsageError(f"steps is {checked['steps']:,}: expected at most {MAX_STEPS:,}.")
        for name in ("learning_rate", "noise_multiplier", "temperature"):
            if getattr(self, name) is not None:
                checked[name] = check_positive(name, getattr(self, name))
        checked["momentum"] = check_nonnegative("momentum", self.momentum)
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
            raise UsageError("cap goes with batching 'truncated': set that, or leave the cap out.")
        if self.noise_multiplier is not None and self.bounding is None:
            raise UsageError("noise without a bound has no guarantee: give a bounding, like Flat.")
        if problems := self.problems():
            raise UsageError("This recipe has no proof: " + " ".join(problems))

    def problems(self) -> list[str]:
        """Return every reason why the stages do not go together; none is good."""
        return [reason for reason, conflict in STAGE_CONFLICTS.items() if conflict(self)]

    @property
    def sampling(self) -> type[Batching]:
        """How batches are drawn, whatever n is."""
        return BATCHINGS[self.batching]

    @property
    def optimizer_stage(self) -> Optimizer:
        """How weights are moved, with the recipe's own numbers."""
        kind = OPTIMIZERS[self.optimizer]
        return kind(**{name: getattr(self, name) for name in kind.field_names()})

    def stages(self) -> list[Stage]:
        """Return the stages beside batches, bound and optimizer, in the order of a step."""
        given = (
            self.augmentation, self.noise_before_clip, self.noise, self.schedule, self.denoising,
            self.screening,
        )  # fmt: skip
        return [each for each in given if each is not None]

    def claims(self, n: int, delta: float) -> list[PublishedBound]:
        """Return what a paper's own formula would charge for this training; never charged here."""
        if self.noise_multiplier is None or self.noise is not None:  # they are for Gaussian noise
            return []
        steps = TrainingSteps(
            sampling_probability=self.sampling_probability(n),
            noise_multiplier=self.noise_multiplier,
            count=self.steps,
            noises=tuple((self.noise_multiplier * each, many) for each, many in self.levels(n)),
            sampled=self.sampling.independent,
            delta=delta,
        )
        # A screening's theorem is about all of a step, whatever the schedule of its noise.
        found = (each.claims(steps) for each in reversed(self.stages()))
        return next(filter(None, found), [])

    def sampling_probability(self, n: int) -> float:
        """Return q for n slots.

        Raises:
            UsageError: The expected batch is larger than n.
        """
        if self.expected_batch_size > n:
            raise UsageError(
                f"The batch size is {self.expected_batch_size:,}, but the partition has only "
                f"{n:,} records: take `batch={n}` or less."
            )
        return self.expected_batch_size / n

    def make_batching(self, n: int) -> Batching:
        """Return how a step's records are drawn from n slots."""
        self.sampling_probability(n)  # a batch larger than n is refused here
        return self.sampling.of(n, self.expected_batch_size, self.cap)

    def event(self, n: int, dimension: int | None = None) -> Event:
        """Return what the whole training costs the partition of n slots that it reads.

        Args:
            n: Slots.
            dimension: The network's trainable numbers; needed by noise of another law than
                Gaussian alone.

        Raises:
            UsageError: There is no noise, or no bound before it, so there is no price.
        """
        if self.noise_multiplier is None:
            raise UsageError("a recipe without noise has no price: it is for public data only.")
        parts = tuple(
            SelfComposition(self.release(n, self.noise_multiplier * factor, dimension), count)
            for factor, count in self.levels(n)
        )
        whole_plan = parts[0] if len(parts) == 1 else Composition(events=parts)
        if not self.schedule.is_validation_driven:
            return whole_plan
        # Orders above the one that sets the price would only end the training sooner. Which one
        # that is depends on delta: of the default one, which n fixes.
        delta = Budget(1.0).resolve(n).delta
        assert delta is not None
        return FilteredReleases(whole_plan, find_best_order(whole_plan, delta))

    def release(self, n: int, noise_multiplier: float, dimension: int | None = None) -> Event:
        """Return what one sum costs at this noise: of a step, or of an epoch if reshuffled."""
        q = self.sampling_probability(n)
        if self.noise is not None:
            assert self.bounding is not None
            if dimension is None:
                raise UsageError(
                    f"{self.noise.name} noise is priced for one size of network: say how many "
                    "numbers are trained."
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
                "noise on gradients that were not bounded first has no guarantee, epsilon inf: "
                "give noise_before_clip a record_bound. Without, it is for declared-public data."
            )
        return NoisyRecords(q, noise_multiplier)

    def density(self, noise_multiplier: float) -> Density:
        """Return the law of the noise on one coordinate of a step's sum, in the sum's own unit.

        Its Fisher information is that of a Gaussian of this noise multiplier.
        """
        assert self.bounding is not None
        unit = GaussianNoise() if self.noise is None else self.noise.unit
        spread = math.sqrt(unit.fisher_information)
        return unit.with_scale(noise_multiplier * self.bounding.sensitivity * spread)

    def drawn_density(self, noise_multiplier: float) -> Density:
        """Return the distribution of the noise that is drawn: the accounted one, times R.

        R is the largest factor by which rounding enlarges what one record adds to a sum
        (`runs.sums.SUM_ROUNDING`), so the drawn noise costs what the accounted one costs.
        """
        accounted = self.density(noise_multiplier)
        return accounted.with_scale(accounted.scale * SUM_ROUNDING)

    def levels(self, n: int) -> list[tuple[float, int]]:
        """Return the factors on sigma, in order, and how many releases each has."""
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
        """Return how many validation queries a training makes, at most.

        Screening asks before the first step and at every `every`-th; a validation-driven schedule
        at the end of every `every`-th epoch.
        """
        if self.screening is not None:
            return self.screening.count_validation_queries(self.steps)
        if not self.schedule.is_validation_driven:
            return 0
        return self.schedule.count_validation_queries(self.make_batching(n).epoch(self.steps))

    def noise_multiplier_for_mu(self, mu: float, n: int) -> float:
        """Return sigma for the whole training's mu, by the central limit rule: a dial, no price."""
        levels = self.levels(n)
        q = self.sampling_probability(n)
        sampled, on_records = self.sampling.sampled, self.noise_before_clip is not None
        if len(levels) == 1 and sampled and not on_records:
            return calibration.noise_multiplier_for_mu(mu, q, levels[0][1])
        weight = math.fsum(count / factor**2 for factor, count in levels)
        if not sampled:
            return math.sqrt(weight) / mu
        if on_records:
            return math.sqrt(q * weight) / mu
        low, high = 1e-3, 2.0 * math.sqrt(weight) * q / mu + 1e3
        for _ in range(100):
            middle = math.sqrt(low * high)
            squares = math.fsum(
                count * math.expm1(min(700.0, (middle * factor) ** -2)) for factor, count in levels
            )
            low, high = (middle, high) if q * math.sqrt(squares) > mu else (low, middle)
        return high

    def noise_multiplier_at(self, step: int, n: int) -> float | None:
        """Return sigma_t of a step, both counted from 0, of a schedule fixed before the data."""
        if self.noise_multiplier is None or not self.schedule.varies:
            return self.noise_multiplier
        return self.noise_multiplier * self.schedule.factor(self.make_batching(n).epoch(step))

    def within(self, n: int) -> Recipe:
        """Return the recipe with a batch that n slots can fill."""
        return replace(self, expected_batch_size=min(self.expected_batch_size, n))

    def with_noise(self, noise_multiplier: float | None) -> Recipe:
        """Return the recipe with this noise; without noise nothing is bounded either."""
        if noise_multiplier is not None:
            return replace(self, noise_multiplier=noise_multiplier)
        return replace(self, noise_multiplier=None, bounding=None, noise=None, denoising=None)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; a temperature of 1 is left out, as in files of earlier versions."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.temperature == 1.0:
            del values["temperature"]
        return {
            name: value.to_json() if name in STAGE_READERS and value is not None else value
            for name, value in values.items()
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Recipe:
        """Read what `to_json` wrote.

        Raises:
            UsageError: A field that a recipe lacks, or a value that it refuses.
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
    """Return weights as Python floats; a list is what a file has."""
    if not isinstance(given, (list, tuple)) or len(given) < 2:
        raise UsageError(
            f"class_weights is {given!r}: expected one number a class, like [1.0, 4.0]."
        )
    weights = tuple(check_nonnegative("each of class_weights", value) for value in given)
    if not max(weights) > 0.0:
        raise UsageError("class_weights are all 0: at least one class must count.")
    return weights


def _find_first_steps(batches: Batching, last: int, steps: int) -> list[int]:
    """Return the first step of each epoch, 0 to last."""
    if last < steps // 64:
        # Few long epochs: looking each one up takes less time than going through the steps.
        return [bisect_left(range(steps), epoch, key=batches.epoch) for epoch in range(last + 1)]
    epochs = np.fromiter((batches.epoch(step) for step in range(steps)), np.int64, steps)
    return [int(start) for start in np.searchsorted(epochs, np.arange(last + 1))]


NAMED_STAGES: dict[str, Registry[Any]] = {"batching": BATCHINGS, "optimizer": OPTIMIZERS}
"""Stages that a recipe names, and whose numbers are the recipe's own."""

TABLE_STAGES: dict[str, Registry[Any]] = {
    "bounding": CLIPPING_METHODS,
    "noise_before_clip": ORDERS,
    "schedule": SCHEDULES,
    "screening": SCREENINGS,
    "augmentation": AUGMENTATIONS,
    "denoising": DENOISINGS,
}
"""Stages that are tables in a recipe, but for the law of the noise."""

STAGE_READERS: dict[str, Callable[[Any], Any]] = {
    **{name: registry.from_json for name, registry in TABLE_STAGES.items()},
    "noise": density_from_json,
}


STAGE_CONFLICTS: dict[str, Callable[[Recipe], bool]] = {
    "a cap on the batch has no Renyi bound, which the filter of a validation-driven schedule "
    "needs: take batching 'poisson'.": lambda r: (
        r.schedule.is_validation_driven and not r.sampling.has_renyi_cost
    ),
    "reshuffled batches are charged by the epoch, and the filter of a validation-driven schedule "
    "stops between steps: take batching 'poisson'.": lambda r: (
        r.schedule.is_validation_driven and not r.sampling.sampled
    ),
    "screening and a validation-driven schedule would both steer by the same releases, which is "
    "not priced: take one of them.": lambda r: (
        r.schedule.is_validation_driven and r.screening is not None
    ),
    "noise on each record is priced on a Poisson sample whose coins are revealed: take batching "
    "'poisson'.": lambda r: r.noise_before_clip is not None and not r.sampling.independent,
    "noise on each record is followed by one flat clip: take bounding 'flat'.": lambda r: (
        r.noise_before_clip is not None and r.bounding is not None and not r.bounding.clips_noise
    ),
    "noise on each record and a filter are not priced together: take another schedule.": lambda r: (
        r.noise_before_clip is not None and r.schedule.is_validation_driven
    ),
    "noise on each record is clipped after it, so its variance is not known: take another "
    "optimizer than 'adam-corrected'.": lambda r: (
        r.noise_before_clip is not None and r.optimizer_stage.subtracts_noise_variance
    ),
    "noise on each record takes one gradient a record: leave the augmentation out.": lambda r: (
        r.noise_before_clip is not None and r.augmentation is not None
    ),
    "'adam-corrected' takes the noise off, and without noise there is none: take 'adam'.": (
        lambda r: r.optimizer_stage.subtracts_noise_variance and r.bounding is None
    ),
    "bounds of their own give the layers different noise, and 'adam-corrected' takes off one "
    "variance: take another optimizer, or one bound.": lambda r: (
        r.optimizer_stage.subtracts_noise_variance
        and r.bounding is not None
        and not r.bounding.has_uniform_noise
    ),
    "an adaptive bound is released with the noise of its step, and reshuffled steps are charged by "
    "the epoch, so a record's count and gradient are one release there too; the quantile then "
    "follows disjoint records and has no proof here: take batching 'poisson'.": lambda r: (
        r.bounding is not None and r.bounding.is_adaptive and not r.sampling.sampled
    ),
    "noise of another law than Gaussian is priced where every coordinate is bounded, and a bound "
    "on the norm alone does not: take bounding 'encoded'.": lambda r: (
        r.noise is not None and r.bounding is not None and not r.bounding.limits_coordinates
    ),
    "noise of another law than Gaussian is priced on a Poisson sample: take batching 'poisson'.": (
        lambda r: r.noise is not None and not r.sampling.independent
    ),
    "noise of another law than Gaussian and a filter are not priced together: take another "
    "schedule.": lambda r: r.noise is not None and r.schedule.is_validation_driven,
    "encoding takes one gradient a record: leave the augmentation out.": lambda r: (
        r.augmentation is not None and r.bounding is not None and not r.bounding.takes_views
    ),
    "'adam-corrected' takes off the variance of Gaussian noise as it was added: take another "
    "optimizer with other noise, or with denoising.": lambda r: (
        r.optimizer_stage.subtracts_noise_variance
        and (r.noise is not None or r.denoising is not None)
    ),
    "denoising compares a sum with the law of the noise on each coordinate, and noise on each "
    "record is clipped after it: leave one of them out.": lambda r: (
        r.denoising is not None and r.noise_before_clip is not None
    ),
    "denoising compares all coordinates with one law, and adaptive bounds give each layer its own: "
    "take another bounding.": lambda r: (
        r.denoising is not None and r.bounding is not None and r.bounding.is_adaptive
    ),
    "class weights multiply gradients that were bounded, and noise on each record, or on encoded "
    "gradients, comes before that: leave class_weights out.": lambda r: (
        r.class_weights is not None and (r.noise is not None or r.noise_before_clip is not None)
    ),
    "class weights multiply gradients that were bounded, and bounding 'encoded' chooses among "
    "public vectors instead: leave class_weights out.": lambda r: (
        r.class_weights is not None and r.bounding is not None and not r.bounding.takes_views
    ),
    "denoising takes noise off, and without noise there is none: leave it out.": lambda r: (
        r.denoising is not None and r.bounding is None
    ),
}
"""Why stages do not go together, and when."""


def make_default_recipe(
    slots: int, *, batch: int | None = None, steps: int | None = None, **settings: Any
) -> Recipe:
    """Return the recipe for a partition of so many slots, from public numbers only.

        expected batch = min(2048, n / 4)         steps = 5 sqrt(n), from 100 to 1500

    Measured on digits (n about 1,600) and MNIST (n 60,000) at totals from .5 to 4: the best
    accuracy is flat around these.

    n is `slots`, of the partition that is trained on; `batch` and `steps` stand instead of these
    numbers, and `settings` are other fields of `Recipe`.
    """
    return Recipe(
        expected_batch_size=max(1, min(2048, slots // 4)) if batch is None else batch,
        steps=min(1500, max(100, round(5 * math.sqrt(slots)))) if steps is None else steps,
        **settings,
    )


MAX_SCREENED_STEP = 6.0
"""Largest tuned learning rate times clipping norm of a screened training; above it most blocks of
updates raise the loss and are undone. Measured on MNIST with 50 and 150 steps
(benchmarks/optimizers/README.md)."""


def tune_learning_rate(recipe: Recipe, mu: float | None, slots: int) -> float:
    """Return a learning rate for this amount of noise, from public numbers only.

        learning rate * steps * C = 1.3 (mu n)^0.8

    mu n is the whole training's signal to noise (mu: `calibration.noise_for_mu`). The exponent was
    fitted on digits and MNIST at totals from .5 to 4. Without noise: 0.5. Adam's steps have the
    scale of the learning rate itself: 1e-3.

    With screening the learning rate is at most `MAX_SCREENED_STEP` / C, which binds in trainings
    that are shorter than the default: several updates in a row are taken or undone together.
    """
    if (rate := recipe.optimizer_stage.default_rate) is not None:
        return rate
    if mu is None or recipe.bounding is None:
        return 0.5
    rate = 1.3 * (mu * slots) ** 0.8 / (recipe.steps * recipe.bounding.sensitivity)
    if recipe.screening is not None:
        rate = min(rate, MAX_SCREENED_STEP / recipe.bounding.sensitivity)
    return rate
