"""How a network is trained, and the only place that says what its steps cost.

    step t:  batch     each slot with probability q = expected_batch_size / n      batching.py
             bound     each record's gradient, to sensitivity C                    bounding.py
             noise     + N(0, (sigma C)^2) on the sum                              noise.py
             step      optimizer, on the sum / expected_batch_size                 torch.optim
             average   weights, with a horizon of `average * steps` steps          trainer.py

    price = steps x [PoissonGaussian(q, sigma)]

Source: Abadi et al. 2016 (DP-SGD); docs/rules.md, rules 2 and 7. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from pasearch.accounting.checks import fraction, nonnegative, positive, whole
from pasearch.accounting.events import Event, SelfComposed
from pasearch.errors import UsageError
from pasearch.training.batching import Poisson
from pasearch.training.bounding import Bounding, Flat, bounding_from_json

OPTIMIZERS = ("sgd", "momentum", "adam")
USUAL_BOUNDING = Flat(clip_norm=0.25)


MOST_STEPS = 10_000_000
"""The longest training: pricing more takes minutes, and training it months."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A frozen recipe of one training.

    Args:
        expected_batch_size: q n, records; the divisor of every sum, a public constant.
        steps: Number of steps, 1 or more.
        learning_rate: Above 0; None until the noise is known (`tuned`).
        noise_multiplier: sigma; None trains without privacy, on declared-public data only.
        bounding: How a record's gradient is bounded; None only without noise.
        optimizer: "sgd", "momentum" (which takes (1 - momentum) times the learning rate, so that
            the rate means the same with and without it) or "adam".
        momentum: In [0, 1); Adam's beta_1 too.
        average: Horizon of the weights' moving average, as a share of the steps; None for none.
        chunk: Most records in one forward pass; only memory depends on it.
    """

    expected_batch_size: int
    steps: int
    learning_rate: float | None = None
    noise_multiplier: float | None = None
    bounding: Bounding | None = USUAL_BOUNDING
    optimizer: str = "momentum"
    momentum: float = 0.9
    average: float | None = 0.1
    chunk: int = 4096

    def __post_init__(self) -> None:
        """Check every field, and refuse what has no proof."""
        checked: dict[str, Any] = {
            name: whole(name, getattr(self, name))
            for name in ("expected_batch_size", "steps", "chunk")
        }
        if checked["steps"] > MOST_STEPS:
            raise UsageError(f"steps is {checked['steps']:,}: expected at most {MOST_STEPS:,}.")
        for name in ("learning_rate", "noise_multiplier"):
            if getattr(self, name) is not None:
                checked[name] = positive(name, getattr(self, name))
        checked["momentum"] = nonnegative("momentum", self.momentum)
        if self.average is not None:
            checked["average"] = fraction("average", self.average)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not self.momentum < 1.0:
            raise UsageError(f"momentum is {self.momentum}: expected a number in [0, 1).")
        if self.optimizer not in OPTIMIZERS:
            raise UsageError(
                f"optimizer {self.optimizer!r} is unknown: expected one of {', '.join(OPTIMIZERS)}."
            )
        if self.bounding is not None and not isinstance(self.bounding, Bounding):
            raise UsageError(f"bounding is {self.bounding!r}: expected Flat, AutoS or None.")
        if self.noise_multiplier is not None and self.bounding is None:
            raise UsageError("noise without a bound has no guarantee: give a bounding, like Flat.")

    def sampling_probability(self, n: int) -> float:
        """Return q for n slots.

        Raises:
            UsageError: The expected batch is larger than n.
        """
        if self.expected_batch_size > n:
            raise UsageError(
                f"The batch size is {self.expected_batch_size:,}, but the partition has only "
                f"{n:,} records: take --batch {n} or less."
            )
        return self.expected_batch_size / n

    def batching(self, n: int) -> Poisson:
        """Return how a step's records are drawn from n slots."""
        return Poisson(sampling_probability=self.sampling_probability(n))

    def event(self, n: int) -> Event:
        """Return what the whole training costs the partition of n slots that it reads.

        Raises:
            UsageError: There is no noise, so there is no price.
        """
        if self.noise_multiplier is None:
            raise UsageError("a recipe without noise has no price: it is for public data only.")
        return SelfComposed(self.batching(n).event(self.noise_multiplier), self.steps)

    def within(self, n: int) -> Recipe:
        """Return the recipe with a batch that n slots can fill."""
        return replace(self, expected_batch_size=min(self.expected_batch_size, n))

    def with_noise(self, noise_multiplier: float | None) -> Recipe:
        """Return the recipe with this noise; without noise nothing is bounded either."""
        bounding = None if noise_multiplier is None else self.bounding
        return replace(self, noise_multiplier=noise_multiplier, bounding=bounding)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        values = {name: value for name, value in asdict(self).items() if name != "bounding"}
        return {**values, "bounding": None if self.bounding is None else self.bounding.to_json()}

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
        if values.get("bounding") is None:
            return cls(**values)
        return cls(**{**values, "bounding": bounding_from_json(values["bounding"])})


def default_recipe(
    slots: int, *, batch: int | None = None, steps: int | None = None, **settings: Any
) -> Recipe:
    """Return the recipe for a partition of so many slots, from public numbers only.

        expected batch = min(2048, n / 4)         steps = 5 sqrt(n), from 100 to 1500

    Measured on digits (n about 1,600) and MNIST (n 60,000) at totals from .5 to 4: the best
    accuracy is flat around these.

    Args:
        slots: n of the partition that is trained on.
        batch: The expected batch size, instead.
        steps: The number of steps, instead.
        settings: Other fields of `Recipe`.
    """
    return Recipe(
        expected_batch_size=max(1, min(2048, slots // 4)) if batch is None else batch,
        steps=min(1500, max(100, round(5 * math.sqrt(slots)))) if steps is None else steps,
        **settings,
    )


def tuned_learning_rate(recipe: Recipe, mu: float | None, slots: int) -> float:
    """Return a learning rate for this amount of noise, from public numbers only.

        learning rate * steps * C = 1.3 (mu n)^0.8

    mu n is the whole training's signal to noise (mu: `calibration.noise_for_mu`). The exponent was
    fitted on digits and MNIST at totals from .5 to 4. Without noise: 0.5. Adam's steps have the
    scale of the learning rate itself: 1e-3.
    """
    if recipe.optimizer == "adam":
        return 1e-3
    if mu is None or recipe.bounding is None:
        return 0.5
    return 1.3 * (mu * slots) ** 0.8 / (recipe.steps * recipe.bounding.sensitivity)
