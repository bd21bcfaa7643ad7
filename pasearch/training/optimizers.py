"""The optimizer's step on a noisy mean gradient: post-processing, so none of it costs anything.

    sgd              w - r g                         momentum   w - (1 - m) r (g + m g' + ...)
    adam             w - r m / (sqrt(v) + e)
    adam-corrected   w - r m / sqrt(max(v - s^2, f^2)),   s the noise's standard deviation in g

m and v are Adam's moments, each divided by its bias from the start at 0. v contains g^2, whose
noise adds s^2 on average. Where that is most of v, Adam is SGD with momentum; subtracting s^2
restores Adam's scale. f keeps the divisor positive where v - s^2 is below 0.

The updates are not `torch.optim`'s because that imports torch's compiler, which takes longer than a
small run's whole training; the numbers are the same to the bit.

Source: Kingma and Ba 2015; Tang, Shpilevskiy and Lecuyer 2023 ("DP-AdamBC").
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pasearch.registry import Registry, Stage

if TYPE_CHECKING:
    from torch import Tensor

SECOND_MOMENT_DECAY = 0.999  # Adam's decay of the second moment
DIVISOR_FLOOR = 0.1  # f, as a fraction of the noise's standard deviation s
ADAM_EPSILON = 1e-8  # e


class UpdateRule:
    """Rule that moves parameters by their gradients, one call of `step` at a time.

    Args:
        parameters: Parameters; those with a `grad` are moved.
        rate: Learning rate, above 0.
    """

    share = 1.0
    """Factor on every `grad`, such as 1 over the batch size for a sum."""

    def __init__(self, parameters: Sequence[Tensor], rate: float):
        self.parameters, self.rate = list(parameters), rate
        self.states: list[dict[str, Any]] = [{} for _ in self.parameters]

    def step(self) -> None:
        """Move the weights by their gradients."""
        import torch

        with torch.no_grad():
            for parameter, state in zip(self.parameters, self.states, strict=True):
                if parameter.grad is not None:
                    self.move(parameter, parameter.grad, state)

    def move(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
        """Move one parameter and update its state."""
        raise NotImplementedError

    def snapshot(self) -> list[dict[str, Any]]:
        """Copy all states."""
        return copy.deepcopy(self.states)

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Restore a snapshot, which stays unchanged; tensors keep their memory."""
        for own, state in zip(self.states, states, strict=True):
            kept = {name: each for name, each in own.items() if name in state}
            own.clear()
            own |= copy.deepcopy(state)
            for name, value in kept.items():
                if hasattr(value, "copy_"):
                    own[name] = value.copy_(state[name])


class SgdUpdate(UpdateRule):
    """SGD, with momentum if it is above 0."""

    def __init__(self, parameters: Sequence[Tensor], rate: float, momentum: float = 0.0):
        super().__init__(parameters, rate)
        self.momentum = momentum

    def move(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
        """W - r (g + m g' + m^2 g'' + ...)."""
        rate = self.rate
        if not self.momentum:
            rate *= self.share
        elif state:
            gradient = state["sum"].mul_(self.momentum).add_(gradient, alpha=self.share)
        else:
            gradient = state["sum"] = gradient * self.share
        parameter.add_(gradient, alpha=-rate)


class AdamUpdate(UpdateRule):
    """Adam; `first` is beta_1.

    Args:
        noise_variance: s^2 of one coordinate of the mean gradient, to be set before every `step`;
            None leaves the second moment as it is.
    """

    noise_variance: float | None = None

    def __init__(self, parameters: Sequence[Tensor], rate: float, first: float):
        super().__init__(parameters, rate)
        self.first = first

    def move(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
        """W - r m / (sqrt(v) + e), or W - r m / sqrt(max(v - s^2, f^2))."""
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
        pace = -self.rate / (1.0 - self.first ** state["step"])
        parameter.addcdiv_(state["mean"], spread, value=pace)


class Optimizer(Stage):
    """Optimizer of a recipe; its fields are the recipe's fields of the same name."""

    __slots__ = ()

    default_rate: ClassVar[float | None] = None
    """Default learning rate for any noise; None if it depends on the noise."""
    subtracts_noise_variance: ClassVar[bool] = False
    """Whether it needs the noise variance: see `set_noise_variance`."""

    @abstractmethod
    def of(self, parameters: Sequence[Tensor], rate: float) -> UpdateRule:
        """Create the update rule of these parameters at a learning rate."""

    def set_noise_variance(self, optimizer: Any, variance: float) -> None:
        """Set, before a step, the noise variance of one coordinate of its mean gradient."""


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
    """SGD with momentum in [0, 1); its rate is scaled to have the same effect as without."""

    name: ClassVar[str] = "momentum"
    description_template: ClassVar[str] = "SGD with momentum {momentum:g}"
    momentum: float = 0.9

    def of(self, parameters: Sequence[Tensor], rate: float) -> UpdateRule:
        return SgdUpdate(parameters, rate * (1.0 - self.momentum), self.momentum)


@OPTIMIZERS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(Optimizer):
    """Adam, whose steps have the scale of the learning rate itself; its momentum is beta_1."""

    name: ClassVar[str] = "adam"
    description_template: ClassVar[str] = "Adam with momentum {momentum:g}"
    default_rate: ClassVar[float | None] = 1e-3
    momentum: float = 0.9

    def of(self, parameters: Sequence[Tensor], rate: float) -> UpdateRule:
        return AdamUpdate(parameters, rate, self.momentum)


@OPTIMIZERS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class AdamCorrected(Adam):
    """Adam with the noise's variance subtracted from its second moment."""

    name: ClassVar[str] = "adam-corrected"
    description_template: ClassVar[str] = f"{Adam.description_template}, noise variance subtracted"
    subtracts_noise_variance: ClassVar[bool] = True

    def of(self, parameters: Sequence[Tensor], rate: float) -> UpdateRule:
        update = AdamUpdate(parameters, rate, self.momentum)
        update.noise_variance = 0.0
        return update

    def set_noise_variance(self, optimizer: Any, variance: float) -> None:
        optimizer.noise_variance = variance
