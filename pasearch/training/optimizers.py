"""Optimizers: updates of the weights by a noisy mean gradient (post-processing, without cost).

The new weights, for weights w, gradient g and learning rate r:

    sgd              w - r g
    momentum         w - (1 - b) r (g + b g' + b^2 g'' + ...), with momentum b, earlier gradients g'
    adam             w - r m / (sqrt(v) + e)
    adam-corrected   w - r m / sqrt(max(v - s^2, f^2)), with the standard deviation s of noise in g

With weight decay d, w is multiplied by 1 - r d first (decoupled from the gradient). A learning-rate
schedule multiplies r by a factor of the epoch, which is fixed before data are read.

m and v are the first and second moments of Adam, with bias correction. The noise adds s^2 to v on
average. If s^2 is most of v, Adam behaves like SGD with momentum; the subtraction of s^2 restores
the scaling of Adam. f is a lower limit of the divisor, because v - s^2 may be negative.

The results are bit-identical to those of `torch.optim`, which is not used because its import takes
longer than a small training.

Source: Kingma and Ba 2015; Tang, Shpilevskiy and Lecuyer 2023 ("DP-AdamBC"); Loshchilov and Hutter
2019 (decoupled weight decay); Yu et al., Fig. 10 (a linear decrease of the learning rate).
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pasearch.accounting.checks import check_fraction, check_positive, check_positive_integer
from pasearch.registry import FieldChecks, Registry, Stage
from pasearch.training.schedules import compute_polynomial_decay

if TYPE_CHECKING:
    from torch import Tensor

SECOND_MOMENT_DECAY = 0.999
"""Decay of the second moment of Adam per step."""
DIVISOR_FLOOR = 0.1
"""Minimum divisor f of corrected Adam, as a fraction of the noise's standard deviation s."""
ADAM_EPSILON = 1e-8
"""Constant e in the divisor of Adam."""


class UpdateRule:
    """Base class of update rules, which change parameters by their gradients.

    Args:
        parameters: Parameters; those with a `grad` are updated.
        rate: Learning rate, above 0.
    """

    share = 1.0
    """Factor on every `grad`; for sums over a batch, 1 / batch size."""
    pace = 1.0
    """Factor on the learning rate in the next step."""
    shrinkage = 1.0
    """Factor on every weight before the next update: 1 - learning rate * weight decay."""

    def __init__(self, parameters: Sequence[Tensor], rate: float):
        self.parameters, self.rate = list(parameters), rate
        self.states: list[dict[str, Any]] = [{} for _ in self.parameters]

    def step(self) -> None:
        """Update all parameters by their gradients."""
        import torch

        with torch.no_grad():
            for parameter, state in zip(self.parameters, self.states, strict=True):
                if parameter.grad is not None:
                    if self.shrinkage != 1.0:
                        parameter.mul_(self.shrinkage)
                    self.move(parameter, parameter.grad, state)

    def move(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
        """Update one parameter and its state by a gradient."""
        raise NotImplementedError

    def snapshot(self) -> list[dict[str, Any]]:
        """Copy the states of all parameters."""
        return copy.deepcopy(self.states)

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Restore the states of a snapshot; tensors keep their memory addresses."""
        for own, state in zip(self.states, states, strict=True):
            kept = {name: each for name, each in own.items() if name in state}
            own.clear()
            own |= copy.deepcopy(state)
            for name, value in kept.items():
                if hasattr(value, "copy_"):
                    own[name] = value.copy_(state[name])


class SgdUpdate(UpdateRule):
    """Update rule of SGD, with momentum if it is above 0."""

    def __init__(self, parameters: Sequence[Tensor], rate: float, momentum: float = 0.0):
        super().__init__(parameters, rate)
        self.momentum = momentum

    def move(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
        """Update one parameter: w - r (g + b g' + b^2 g'' + ...)."""
        rate = self.rate * self.pace
        if not self.momentum:
            rate *= self.share
        elif state:
            gradient = state["sum"].mul_(self.momentum).add_(gradient, alpha=self.share)
        else:
            gradient = state["sum"] = gradient * self.share
        parameter.add_(gradient, alpha=-rate)


class AdamUpdate(UpdateRule):
    """Update rule of Adam.

    Args:
        first: Decay beta_1 of the first moment.

    Attributes:
        noise_variance: Variance s^2 of the noise in one coordinate of the mean gradient, to be set
            before every `step`. None: nothing is subtracted from the second moment.
    """

    noise_variance: float | None = None

    def __init__(self, parameters: Sequence[Tensor], rate: float, first: float):
        super().__init__(parameters, rate)
        self.first = first

    def move(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
        """Update one parameter: w - r m / (sqrt(v) + e), or w - r m / sqrt(max(v - s^2, f^2))."""
        if not state:
            mean, square = (parameter.detach().clone().zero_() for _ in range(2))
            state.update(step=0, mean=mean, noise=0.0, square=square)
        state["step"] += 1
        gradient = gradient * self.share
        state["mean"].lerp_(gradient, 1.0 - self.first)
        state["square"].mul_(SECOND_MOMENT_DECAY).addcmul_(
            gradient, gradient, value=1.0 - SECOND_MOMENT_DECAY
        )
        started = 1.0 - SECOND_MOMENT_DECAY ** state["step"]
        if self.noise_variance is None:
            spread = state["square"].sqrt().div_(started**0.5).add_(ADAM_EPSILON)
        else:
            state["noise"] += (1.0 - SECOND_MOMENT_DECAY) * (self.noise_variance - state["noise"])
            noise = state["noise"] / started
            clean = state["square"].div(started).sub_(noise)
            spread = clean.clamp_(min=max(DIVISOR_FLOOR**2 * noise, 1e-16)).sqrt_()
        pace = -self.rate * self.pace / (1.0 - self.first ** state["step"])
        parameter.addcdiv_(state["mean"], spread, value=pace)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateDecay(Stage):
    """Decrease of the learning rate over epochs by `compute_polynomial_decay`.

    Args:
        end: Final factor, in (0, 1).
        period: Number of epochs until the factor is `end`, 1 or more.
        power: Exponent, above 0; 1 is linear.

    Cost: none, because the factor is data-independent.
    Source: Yu et al., Section VI-B ("Learning rate"), with power 1 and period 10.
    """

    name: ClassVar[str] = "decay"
    description_template: ClassVar[str] = (
        "learning rate falls to {end:g} of its start in {period:,} epochs, as the power {power:g} "
        "of the remaining fraction"
    )
    checks: ClassVar[FieldChecks] = {
        "end": check_fraction, "period": check_positive_integer, "power": check_positive,
    }  # fmt: skip
    end: float
    period: int
    power: float = 1.0

    def factor(self, epoch: int) -> float:
        """Compute the factor of an epoch, from 0, in (0, 1]."""
        return compute_polynomial_decay(epoch, self.period, self.power, self.end)


LEARNING_RATE_SCHEDULES = Registry(
    "learning_rate_schedule", LearningRateDecay, "pasearch.training.optimizers",
    default=LearningRateDecay.name, example="{ end = 0.1, period = 10 }",
)  # fmt: skip
LEARNING_RATE_SCHEDULES.register(LearningRateDecay)


class Optimizer(Stage):
    """Optimizer of a recipe. Its fields have the values of the recipe's fields with equal names."""

    __slots__ = ()

    default_rate: ClassVar[float | None] = None
    """Default learning rate. None: it is computed from the noise."""
    subtracts_noise_variance: ClassVar[bool] = False
    """Whether the optimizer uses the variance of the noise; see `set_noise_variance`."""

    @abstractmethod
    def of(self, parameters: Sequence[Tensor], rate: float) -> UpdateRule:
        """Make the update rule for parameters with a learning rate."""

    def set_noise_variance(self, optimizer: Any, variance: float) -> None:
        """Set the variance of the noise in one coordinate of the mean gradient, before a step."""


OPTIMIZERS = Registry("optimizer", Optimizer, "pasearch.training.optimizers", example='"adam"')


@OPTIMIZERS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd(Optimizer):
    """Plain SGD."""

    name: ClassVar[str] = "sgd"
    description_template: ClassVar[str] = "plain SGD"

    def of(self, parameters: Sequence[Tensor], rate: float) -> UpdateRule:
        return SgdUpdate(parameters, rate)


@OPTIMIZERS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum(Optimizer):
    """SGD with momentum b in [0, 1); the rate is multiplied by 1 - b, to have an equal effect."""

    name: ClassVar[str] = "momentum"
    description_template: ClassVar[str] = "SGD with momentum {momentum:g}"
    momentum: float = 0.9

    def of(self, parameters: Sequence[Tensor], rate: float) -> UpdateRule:
        return SgdUpdate(parameters, rate * (1.0 - self.momentum), self.momentum)


@OPTIMIZERS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(Optimizer):
    """Adam with beta_1 = momentum; its steps have about the size of the learning rate."""

    name: ClassVar[str] = "adam"
    description_template: ClassVar[str] = "Adam with momentum {momentum:g}"
    default_rate: ClassVar[float | None] = 1e-3
    momentum: float = 0.9

    def of(self, parameters: Sequence[Tensor], rate: float) -> UpdateRule:
        return AdamUpdate(parameters, rate, self.momentum)


@OPTIMIZERS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class AdamCorrected(Adam):
    """Adam with the variance of the noise subtracted from the second moment."""

    name: ClassVar[str] = "adam-corrected"
    description_template: ClassVar[str] = f"{Adam.description_template}, noise variance subtracted"
    subtracts_noise_variance: ClassVar[bool] = True

    def of(self, parameters: Sequence[Tensor], rate: float) -> UpdateRule:
        update = AdamUpdate(parameters, rate, self.momentum)
        update.noise_variance = 0.0
        return update

    def set_noise_variance(self, optimizer: Any, variance: float) -> None:
        optimizer.noise_variance = variance
