"""Temperature: the factor by which a trained classifier is overconfident, from public numbers.

    p(class | record) = softmax(logits / T)              T > 0 changes no label and no AUC

Clipping is why T is above 1. A clipped gradient says which way the probability is wrong, and not by
how much: the sum of clipped gradients vanishes at probabilities that are too near to 0 and 1,
however little noise there is. The factor depends on the training configuration and on the number of
classes, hardly on data, n or epsilon, so a constant that was fitted on public tables serves others.

The trainer divides the output layer by T after the last step. Nothing else divides: predictions,
ONNX, model files, log loss, Brier score and calibration tables all read the divided layer.

Cost: none, because T is a function of public numbers.

Source: Guo, Pleiss, Sun and Weinberger 2017 (temperature scaling); constants: benchmarks/models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

TWO_CLASS_EXCESS = 1.15
"""Excess over 1 of the temperature of two classes."""

EXCESS_DECAY = 0.8
"""Exponent by which the excess falls with the number of classes."""

WEAK_SIGNAL = 130.0
"""Signal mu n below which the noise of the weights dominates the logits."""

WEAK_FACTOR = 1.6
"""Factor on the temperature below `WEAK_SIGNAL`; it falls to 1 as the square of the signal."""


def compute_temperature(classes: int, signal: float) -> float:
    """Return the temperature of a clipped training.

    Args:
        classes: Number of classes, 2 or more.
        signal: mu n, the signal to noise of the whole training, above 0.

    Returns:
        (1 + `TWO_CLASS_EXCESS` / (classes - 1)^`DECAY`) times a factor from 1, where the signal is
        strong, to `WEAK_FACTOR`.
    """
    weak = (WEAK_FACTOR - 1.0) * min(1.0, WEAK_SIGNAL / signal) ** 2
    return (1.0 + TWO_CLASS_EXCESS * (classes - 1) ** -EXCESS_DECAY) * (1.0 + weak)


def divide_logits(weights: Mapping[str, Tensor], temperature: float | None) -> None:
    """Divide the output layer by a temperature, in place.

    Args:
        weights: State of a network. Its last two tensors are the weight (outputs, inputs) and the
            bias (outputs,) of the output layer.
        temperature: Above 0; None leaves the weights as they are.

    Raises:
        ValueError: The last two tensors are others, so labels would change.
    """
    if temperature is None:
        return
    weight, bias = list(weights.values())[-2:]
    if bias.ndim != 1 or weight.shape[:1] != bias.shape:
        raise ValueError("The last two tensors are no output layer's weight and bias.")
    for each in (weight, bias):
        each.detach().div_(temperature)
