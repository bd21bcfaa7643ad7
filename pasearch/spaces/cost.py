"""Number of operations of a private training step, and a prediction of its time for plans.

Operations per record and layer; a multiplication and an addition are two operations:

    forward                     2 m          m: multiplications, parameters times positions
    gradient of the inputs      2 m          not before the first trained layer
    sum of clipped gradients    2 m          trained layers only
    norms                       the lesser of 2 L^2 (inputs + outputs) and 4 parameters, L > 1
                                positions; inputs + outputs for a layer with one position

Source: Bu et al. 2022 (both formulas of a norm); the other counts follow from the definitions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import dropwhile

from pasearch.spaces.architecture import Architecture
from pasearch.spaces.layers import Conv, Dense, Layer, Lstm, Pool, Shape


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of a training step's parts, in seconds.

    Args:
        layer: Time per step and layer with weights.
        trained: Time per step and trained parameter, for its noise.
        operation: Time per record and operation.
        number: Time per record and number that is read or written.
    """

    layer: float
    trained: float
    operation: float
    number: float

    def seconds(self, work: StepWork, batch: float, share: float = 1.0) -> float:
        """Predict the time of a step, seconds; `share` scales the time of the records."""
        of_record = work.operations * self.operation + work.numbers * self.number
        return work.layers * self.layer + work.trained * self.trained + batch * share * of_record


EAGER_STEP_TIMES = StepTimes(layer=8e-4, trained=1e-8, operation=8e-12, number=1.9e-9)
LINEAR_BACKEND_STEP_TIMES = StepTimes(layer=1e-4, trained=5e-9, operation=1.1e-11, number=7.5e-10)
"""Times fitted to steps of the default recipe on synthetic records: PyTorch on two cores of an AMD
EPYC, the linear backend on one core of it and of an Intel Xeon.
"""

MIN_SAVED_SECONDS = 1.0
"""Minimum saving of a training, seconds, to load compiled code: loading takes half a second per
process, and compilation some seconds.
"""

MIN_SHARED_NUMBERS = 2**20  # numbers of a batch from which the linear backend uses both cores
SHARED_TIME = 0.6  # fraction of the time on one core that the records of such a batch take on two

WINDOW_PASSES = 4
"""Number of passes of a convolution's step over the contents of its windows."""

GATE_PASSES = 24
"""Number of values per LSTM unit that are read or written in each step of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Operations of one step, independent of the machine.

    Args:
        operations: Operations per record.
        plain: Operations per record without privacy: no norms.
        held: Numbers of a record.
        numbers: Numbers of a record and of the layers' outputs; for a convolution also the contents
            of its windows, `WINDOW_PASSES` times, and for an LSTM `GATE_PASSES` per unit and step.
        layers: Number of layers with weights.
        parameters: Number of parameters of the network.
        trained: Number of trained parameters.
        is_linear: Whether only one linear layer is trained, so that `training.linear_backend` can
            be used.
    """

    operations: float
    plain: float
    held: int
    numbers: int
    layers: int
    parameters: int
    trained: int
    is_linear: bool = False


def estimate_seconds(work: StepWork, batch: float, steps: int) -> float:
    """Predict the time of a training, seconds, from public numbers.

    Args:
        work: Operations of a step of the network.
        batch: Records per step.
        steps: Number of steps; the linear backend is used if there are enough.
    """
    by_torch = steps * EAGER_STEP_TIMES.seconds(work, batch)
    share = SHARED_TIME if batch * work.held >= MIN_SHARED_NUMBERS else 1.0
    linear = steps * LINEAR_BACKEND_STEP_TIMES.seconds(work, batch, share)
    return linear if work.is_linear and by_torch - linear >= MIN_SAVED_SECONDS else by_torch


def measure_step_work(architecture: Architecture, shape: Shape, outputs: int) -> StepWork:
    """Count the operations of a step of this network on records of this shape."""
    shapes = architecture.shapes(shape)
    layers = (*architecture.layers, Dense(units=outputs))
    operations, plain, numbers, weighted = 0.0, 0.0, math.prod(shape), 0
    below = False  # whether a layer below is trained, so that a gradient has to reach it
    for layer, given in zip(layers, shapes, strict=True):
        trainable, count = getattr(layer, "trainable", True), layer.parameters(given)
        numbers += math.prod(layer.output_shape(given))
        if not count:
            continue
        places = count_positions(layer, given)
        weighted += 1
        if isinstance(layer, Conv):
            numbers += WINDOW_PASSES * places * count // layer.filters
        if isinstance(layer, Lstm):
            numbers += GATE_PASSES * places * layer.units
        products = 2.0 * count * places
        own = products * (1 + below + trainable)
        if isinstance(layer, Lstm) and trainable and not below:
            own += 8.0 * layer.units**2 * places  # a gradient goes back from step to step
        plain += own
        operations += own + trainable * count_norm_operations(count, places)
        below |= trainable
    total, trained = architecture.parameters(shape, outputs)
    rest = [*dropwhile(_runs_once_per_training, layers)]
    return StepWork(
        operations=operations, plain=plain, held=math.prod(shape), numbers=numbers,
        layers=weighted, parameters=total, trained=trained,
        is_linear=len(rest) == 1,
    )  # fmt: skip


def _runs_once_per_training(layer: Layer) -> bool:
    """Whether a layer before all trained ones runs once per training (cached activations)."""
    if isinstance(layer, Conv):
        return not (layer.trainable or layer.weight_standardised)
    if isinstance(layer, Dense):
        return not (layer.trainable or layer.joined or layer.dropout)
    return isinstance(layer, Pool)


def count_positions(layer: Layer, shape: Shape) -> int:
    """Count the positions of a record at which a layer's weights are used."""
    if isinstance(layer, Lstm):
        return shape[0]
    return math.prod(layer.output_shape(shape)[1:]) if isinstance(layer, Conv) else 1


def count_norm_operations(count: int, places: int) -> float:
    """Count the operations of one record's gradient norm, for a layer with `count` weights."""
    wide = 2.0 * math.sqrt(count)  # inputs and outputs together, at least
    return 2.0 * wide if places == 1 else min(2.0 * places**2 * wide, 4.0 * count)
