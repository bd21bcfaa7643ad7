"""Temperature: a divisor of the logits that corrects overconfident probabilities.

    p(class | record) = softmax(logits / T)              T > 0 changes no label and no AUC

Training with clipping gives overconfident classifiers, so T is above 1. A clipped gradient contains
the direction of an error, but not its size. So the sum of clipped gradients is 0 at probabilities
that are too close to 0 and 1, also without noise. The best T depends on the training configuration
and the number of classes, and very little on data, n or epsilon. So constants that were fitted on
public tables are used for all data.

The output layer is divided by T after the last training step. So predictions, ONNX files, model
files, log loss, Brier score and calibration tables are all computed with T.

Cost: none, because T is a function of public numbers.

Source: Guo, Pleiss, Sun and Weinberger 2017 (temperature scaling); constants: benchmarks/models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

TWO_CLASS_EXCESS = 1.15
"""Temperature for two classes, minus 1."""
EXCESS_DECAY = 0.8
"""Exponent with which the temperature minus 1 decreases with the number of classes."""
WEAK_SIGNAL = 130.0
"""Signal mu n below which the noise of the weights dominates the logits."""

WEAK_FACTOR = 1.6
"""Factor on the temperature below `WEAK_SIGNAL`; above, it falls to 1 with the squared signal."""


def compute_temperature(classes: int, signal: float) -> float:
    """Compute the temperature of a training with clipping.

    Args:
        classes: Number of classes, 2 or more.
        signal: Signal-to-noise ratio mu n of the whole training, above 0.

    Returns:
        (1 + `TWO_CLASS_EXCESS` / (classes - 1)^`EXCESS_DECAY`) times a factor, which is 1 for a
        strong signal and at most `WEAK_FACTOR`.
    """
    weak = (WEAK_FACTOR - 1.0) * min(1.0, WEAK_SIGNAL / signal) ** 2
    return (1.0 + TWO_CLASS_EXCESS * (classes - 1) ** -EXCESS_DECAY) * (1.0 + weak)


def divide_logits(weights: Mapping[str, Tensor], temperature: float | None) -> None:
    """Divide weight and bias of the output layer by a temperature, in place.

    Args:
        weights: State of a network. The last two tensors must be the weight, (outputs, inputs), and
            the bias, (outputs,), of the output layer.
        temperature: Temperature, above 0. None: nothing is changed.

    Raises:
        ValueError: The last two tensors have other shapes.
    """
    if temperature is None:
        return
    weight, bias = list(weights.values())[-2:]
    if bias.ndim != 1 or weight.shape[:1] != bias.shape:
        raise ValueError("The last two tensors are no output layer's weight and bias.")
    for each in (weight, bias):
        each.detach().div_(temperature)
