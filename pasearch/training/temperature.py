"""Temperature: the factor by which a trained classifier is overconfident, from public numbers.

    p(class | record) = softmax(logits / T)              T > 0 changes no label and no AUC

T is above 1 because of clipping. A clipped gradient gives the direction of an error of the
probability, not its size. So the sum of clipped gradients vanishes at probabilities too near 0 and
1, however small the noise. The factor depends on the training configuration and the number of
classes, hardly on data, n or epsilon. So a constant fitted on public tables is used for others.

The trainer divides the output layer by T after the last step. Predictions, ONNX, model files, log
loss, Brier score and calibration tables all use the divided layer.

Cost: none, because T is a function of public numbers.

Source: Guo, Pleiss, Sun and Weinberger 2017 (temperature scaling); constants: benchmarks/models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

TWO_CLASS_EXCESS = 1.15  # excess over 1 of the temperature of two classes
EXCESS_DECAY = 0.8  # exponent by which the excess falls with the number of classes
WEAK_SIGNAL = 130.0  # signal mu n below which the noise of the weights dominates the logits

WEAK_FACTOR = 1.6
"""Factor on the temperature below `WEAK_SIGNAL`; it falls to 1 as the square of the signal."""


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
    """Divide the output layer by a temperature, in place.

    Args:
        weights: State of a network; its last two tensors are the weight (outputs, inputs) and the
            bias (outputs,) of the output layer.
        temperature: Temperature, above 0; None changes nothing.

    Raises:
        ValueError: The last two tensors are not such a weight and bias.
    """
    if temperature is None:
        return
    weight, bias = list(weights.values())[-2:]
    if bias.ndim != 1 or weight.shape[:1] != bias.shape:
        raise ValueError("The last two tensors are no output layer's weight and bias.")
    for each in (weight, bias):
        each.detach().div_(temperature)
