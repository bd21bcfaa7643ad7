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

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pasearch.errors import UsageError

if TYPE_CHECKING:
    from pasearch.training.recipe import Recipe

SECOND = 0.999
"""Adam's beta_2."""

FLOOR = 0.1
"""f, as a share of the noise's standard deviation s."""


def optimizer_of(recipe: Recipe, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the recipe's optimizer.

    Raises:
        UsageError: No learning rate is known.
    """
    rate = recipe.learning_rate
    if rate is None:
        raise UsageError(
            "The recipe has no learning rate: give `learning_rate`, or take "
            "`tuned_learning_rate(recipe, mu, n)`."
        )
    match recipe.optimizer:
        case "sgd":
            return torch.optim.SGD(parameters, lr=rate)
        case "momentum":
            return torch.optim.SGD(
                parameters, lr=rate * (1.0 - recipe.momentum), momentum=recipe.momentum
            )
        case "adam-corrected":
            return CorrectedAdam(parameters, rate, recipe.momentum)
    return torch.optim.Adam(parameters, lr=rate, betas=(recipe.momentum, SECOND))


class CorrectedAdam(torch.optim.Optimizer):
    """Adam whose second moment has the noise's variance taken off.

    Set `noise_variance` before every `step`: s^2, of one coordinate of the mean gradient.
    """

    def __init__(self, parameters: list[nn.Parameter], rate: float, first: float):
        super().__init__(parameters, {"lr": rate, "beta": first})
        self.noise_variance = 0.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Move the weights by their gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group["lr"], group["beta"])

    def _move(self, parameter: nn.Parameter, gradient: torch.Tensor, rate: float, beta: float):
        state = self.state[parameter]
        if not state:
            state.update(step=0, mean=torch.zeros_like(parameter), square=0.0, noise=0.0)
            state["square"] = torch.zeros_like(parameter)
        state["step"] += 1
        state["mean"].lerp_(gradient, 1.0 - beta)
        state["square"].mul_(SECOND).addcmul_(gradient, gradient, value=1.0 - SECOND)
        state["noise"] += (1.0 - SECOND) * (self.noise_variance - state["noise"])
        started = 1.0 - SECOND ** state["step"]
        noise = state["noise"] / started
        least = max(FLOOR**2 * noise, 1e-16)
        clean = state["square"].div(started).sub_(noise).clamp_(min=least)
        parameter.addcdiv_(
            state["mean"], clean.sqrt_(), value=-rate / (1.0 - beta ** state["step"])
        )
