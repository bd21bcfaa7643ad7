"""How weights move, in place: the formulas of `training.optimizers`.

These are ours and not `torch.optim`'s because that imports torch's compiler, which takes longer
than a small run's whole training; the numbers are the same to the bit.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

SECOND = 0.999
"""Adam's beta_2."""

FLOOR = 0.1
"""f, as a share of the noise's standard deviation s."""

GUARD = 1e-8
"""What Adam adds to its divisor."""


class Update:
    """What moves parameters by their gradients, one call of `step` at a time.

    Args:
        parameters: They move where they have a `grad`.
        rate: The learning rate.
    """

    share = 1.0
    """What every `grad` is multiplied by first, such as 1 over the batch's size for a sum."""

    def __init__(self, parameters: Sequence[Tensor], rate: float):
        self.parameters, self.rate = list(parameters), rate
        self.states: list[dict[str, Any]] = [{} for _ in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Move the weights by their gradients."""
        for parameter, state in zip(self.parameters, self.states, strict=True):
            if parameter.grad is not None:
                self.move(parameter, parameter.grad, state)

    def move(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
        """Move one parameter; what is remembered of it stands in its state."""
        raise NotImplementedError

    def snapshot(self) -> list[dict[str, Any]]:
        """Return a copy of all that is remembered."""
        return copy.deepcopy(self.states)

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Go back to a snapshot, which stays as it is; tensors stay where they are."""
        for own, state in zip(self.states, states, strict=True):
            kept = {name: each for name, each in own.items() if name in state}
            own.clear()
            own |= copy.deepcopy(state)
            for name, value in kept.items():
                if isinstance(value, Tensor):
                    own[name] = value.copy_(state[name])


class Descent(Update):
    """SGD, with momentum where it is above 0."""

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


class AdamUpdate(Update):
    """Adam; `first` is beta_1, and beta_2 is `SECOND`."""

    def __init__(self, parameters: Sequence[Tensor], rate: float, first: float):
        super().__init__(parameters, rate)
        self.first = first

    def move(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
        """W - r m / (sqrt(v) + e)."""
        self._average(parameter, gradient, state)
        spread = state["square"].sqrt().div_((1.0 - SECOND ** state["step"]) ** 0.5).add_(GUARD)
        parameter.addcdiv_(state["mean"], spread, value=self._pace(state))

    def _average(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
        if not state:
            state.update(step=0, mean=torch.zeros_like(parameter), noise=0.0)
            state["square"] = torch.zeros_like(parameter)
        state["step"] += 1
        gradient = gradient * self.share
        state["mean"].lerp_(gradient, 1.0 - self.first)
        state["square"].mul_(SECOND).addcmul_(gradient, gradient, value=1.0 - SECOND)

    def _pace(self, state: dict[str, Any]) -> float:
        return -self.rate / (1.0 - self.first ** state["step"])


class CorrectedAdam(AdamUpdate):
    """Adam whose second moment has the noise's variance taken off.

    Set `noise_variance` before every `step`: s^2, of one coordinate of the mean gradient.
    """

    noise_variance = 0.0

    def move(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
        """W - r m / sqrt(max(v - s^2, f^2))."""
        self._average(parameter, gradient, state)
        state["noise"] += (1.0 - SECOND) * (self.noise_variance - state["noise"])
        started = 1.0 - SECOND ** state["step"]
        noise = state["noise"] / started
        least = max(FLOOR**2 * noise, 1e-16)
        clean = state["square"].div(started).sub_(noise).clamp_(min=least)
        parameter.addcdiv_(state["mean"], clean.sqrt_(), value=self._pace(state))
