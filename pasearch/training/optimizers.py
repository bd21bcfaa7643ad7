"""The optimizer's step on a noisy mean gradient: post-processing, so none of it costs anything.

    sgd              w - r g                         momentum   w - (1 - m) r (g + m g' + ...)
    adam             w - r m / (sqrt(v) + e)
    adam-corrected   w - r m / sqrt(max(v - s^2, f^2)),   s the noise's standard deviation in g

m and v are Adam's moments, each divided by what their start at 0 takes away. v holds g^2, whose
noise adds s^2 on average; where that is most of v, Adam is SGD with momentum, and taking it off
gives Adam's own scale back. f keeps the division from blowing up where v - s^2 is below 0.

Source: Kingma and Ba 2015; Tang, Shpilevskiy and Lecuyer 2023 ("DP-AdamBC").
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pasearch.registry import Registry, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pasearch.training.updates import Update


class Optimizer(Stage):
    """How weights are moved; its fields are those of the recipe with the same name."""

    __slots__ = ()

    usual_rate: ClassVar[float | None] = None
    """The learning rate that suits any noise; None where it follows the noise."""
    takes_noise_off: ClassVar[bool] = False
    """Whether it needs the variance of the noise: see `tell_noise`."""

    @abstractmethod
    def of(self, parameters: Sequence[Tensor], rate: float) -> Update:
        """Return what moves these parameters, at this learning rate."""

    def tell_noise(self, optimizer: Any, variance: float) -> None:
        """Say, before a step, the variance of the noise on one coordinate of its mean gradient."""


OPTIMIZERS = Registry("optimizer", Optimizer, "pasearch.training.optimizers", example='"adam"')


@OPTIMIZERS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd(Optimizer):
    """Plain SGD."""

    name: ClassVar[str] = "sgd"
    phrase: ClassVar[str] = "plain SGD"

    def of(self, parameters: Sequence[Tensor], rate: float) -> Update:
        from pasearch.training.updates import Descent

        return Descent(parameters, rate)


@OPTIMIZERS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum(Optimizer):
    """SGD with momentum, in [0, 1); its rate is scaled so that it means the same without."""

    name: ClassVar[str] = "momentum"
    phrase: ClassVar[str] = "SGD with momentum {momentum:g}"
    momentum: float = 0.9

    def of(self, parameters: Sequence[Tensor], rate: float) -> Update:
        from pasearch.training.updates import Descent

        return Descent(parameters, rate * (1.0 - self.momentum), self.momentum)


@OPTIMIZERS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(Optimizer):
    """Adam, whose steps have the scale of the learning rate itself; its momentum is beta_1."""

    name: ClassVar[str] = "adam"
    phrase: ClassVar[str] = "Adam with momentum {momentum:g}"
    usual_rate: ClassVar[float | None] = 1e-3
    momentum: float = 0.9

    def of(self, parameters: Sequence[Tensor], rate: float) -> Update:
        from pasearch.training.updates import AdamUpdate

        return AdamUpdate(parameters, rate, self.momentum)


@OPTIMIZERS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class AdamCorrected(Adam):
    """Adam, the noise's variance taken off its second moment."""

    name: ClassVar[str] = "adam-corrected"
    phrase: ClassVar[str] = f"{Adam.phrase}, the noise's variance taken off"
    takes_noise_off: ClassVar[bool] = True

    def of(self, parameters: Sequence[Tensor], rate: float) -> Update:
        from pasearch.training.updates import CorrectedAdam

        return CorrectedAdam(parameters, rate, self.momentum)

    def tell_noise(self, optimizer: Any, variance: float) -> None:
        """Say what is taken off."""
        optimizer.noise_variance = variance
