"""Number of operations of a private training step, and a prediction of its time for plans.

Operations per record and layer, where a multiplication and an addition are two operations:

    forward pass                2 m, with m = parameters * positions
    gradient of the inputs      2 m, except in the first trained layer and those before it
    sum of clipped gradients    2 m, only in trained layers
    norm of the gradient        the smaller of 2 L^2 (inputs + outputs) and 4 parameters for L > 1
                                positions; inputs + outputs for one position; only in trained layers

Source: Bu et al. 2022 (both formulas of a norm); the other counts follow from the definitions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import dropwhile

from pasearch.spaces.architecture import Architecture
from pasearch.spaces.layers import Conv, Dense, Embedding, Layer, Pool, Recurrent, Shape


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of the parts of a training step, in seconds.

    Args:
        layer: Time per layer with weights.
        trained: Time per trained parameter, for its noise.
        operation: Time per operation of a record.
        number: Time per number of a record that is read or written.
    """

    layer: float
    trained: float
    operation: float
    number: float

    def seconds(self, work: StepWork, batch: float, share: float = 1.0) -> float:
        """Predict the time of one step, seconds.

        Args:
            work: Operations of the step.
            batch: Number of records of the batch.
            share: Factor of the time that depends on the records, below 1 for two cores.
        """
        of_record = work.operations * self.operation + work.numbers * self.number
        return work.layers * self.layer + work.trained * self.trained + batch * share * of_record


EAGER_STEP_TIMES = StepTimes(layer=8e-4, trained=1e-8, operation=8e-12, number=1.9e-9)
LINEAR_BACKEND_STEP_TIMES = StepTimes(layer=1e-4, trained=5e-9, operation=1.1e-11, number=7.5e-10)
"""Times fitted to steps of the default recipe on synthetic records. PyTorch ran on two cores of an
AMD EPYC, the linear backend on one core of it and of an Intel Xeon.
"""

MIN_SAVED_SECONDS = 1.0
"""Minimum time that the linear backend must save in a training, seconds. Loading its compiled code
takes half a second per process, and compilation some seconds.
"""

MIN_SHARED_NUMBERS = 2**20  # minimum numbers of a batch for which the linear backend uses two cores
SHARED_TIME = 0.6  # time of a batch's records on two cores, as a fraction of the time on one core

WINDOW_NUMBERS_MOVED = 4
"""Number of values per value of a convolution's windows that a step reads or writes."""

GATE_NUMBERS_MOVED = 24
"""Number of values per unit of a recurrent layer that are read or written for each element of a
sequence.
"""

EMBEDDING_NUMBERS_MOVED = 8
"""Number of values per output of an embedding that are read or written, forward and in its sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Amount of computation of one training step, independent of the machine.

    Args:
        operations: Number of operations per record.
        nonprivate_operations: Number of operations per record without privacy, that is, without
            norms of gradients.
        features: Number of features of a record.
        numbers: Number of values per record that are read or written: features, outputs of layers,
            `WINDOW_NUMBERS_MOVED` times the windows of a convolution, and `GATE_NUMBERS_MOVED` per
            unit and element of a recurrent layer.
        layers: Number of layers with weights.
        parameters: Number of parameters of the network.
        trained: Number of trained parameters.
        is_linear: Whether only one linear layer is trained, so that `training.linear_backend` can
            be used.
    """

    operations: float
    nonprivate_operations: float
    features: int
    numbers: int
    layers: int
    parameters: int
    trained: int
    is_linear: bool = False


def estimate_seconds(work: StepWork, batch: float, steps: int) -> float:
    """Predict the time of a training, seconds, from public numbers.

    Args:
        work: Amount of computation of a step.
        batch: Number of records per step.
        steps: Number of steps. The linear backend is used if it saves `MIN_SAVED_SECONDS`.
    """
    by_torch = steps * EAGER_STEP_TIMES.seconds(work, batch)
    share = SHARED_TIME if batch * work.features >= MIN_SHARED_NUMBERS else 1.0
    linear = steps * LINEAR_BACKEND_STEP_TIMES.seconds(work, batch, share)
    return linear if work.is_linear and by_torch - linear >= MIN_SAVED_SECONDS else by_torch


def measure_step_work(architecture: Architecture, shape: Shape, outputs: int) -> StepWork:
    """Return the amount of computation of a training step of a network.

    Args:
        architecture: Network.
        shape: Shape of one record.
        outputs: Number of outputs of the network.
    """
    shapes = architecture.shapes(shape)
    layers = architecture.list_all_layers(outputs)
    operations, nonprivate, numbers, weighted = 0.0, 0.0, math.prod(shape), 0
    below = False  # whether an earlier layer is trained, which needs this layer's input gradient
    for layer, given in zip(layers, shapes, strict=False):
        trainable, count = getattr(layer, "trainable", True), layer.parameters(given)
        numbers += math.prod(layer.output_shape(given))
        if not count:
            continue
        weighted += 1
        if isinstance(layer, Embedding):  # rows are copied and added, without products
            numbers += EMBEDDING_NUMBERS_MOVED * math.prod(layer.output_shape(given))
            below |= trainable
            continue
        places = count_positions(layer, given)
        if isinstance(layer, Conv):
            numbers += WINDOW_NUMBERS_MOVED * places * count // layer.filters
        if isinstance(layer, Recurrent):
            numbers += GATE_NUMBERS_MOVED * places * layer.units
        products = 2.0 * count * places
        own = products * (1 + below + trainable)
        if isinstance(layer, Recurrent) and trainable and not below:
            # The gradient of the state goes from each element of the sequence to the one before.
            own += 2.0 * layer.gates * layer.units**2 * places
        nonprivate += own
        operations += own + trainable * count_norm_operations(count, places)
        below |= trainable
    total, trained = architecture.parameters(shape, outputs)
    rest = [*dropwhile(_runs_once_per_training, layers)]
    return StepWork(
        operations=operations, nonprivate_operations=nonprivate,
        features=math.prod(shape), numbers=numbers,
        layers=weighted, parameters=total, trained=trained,
        is_linear=len(rest) == 1 and isinstance(rest[0], Dense),
    )  # fmt: skip


def _runs_once_per_training(layer: Layer) -> bool:
    """Whether the activations of a layer before all trained ones are cached for the training."""
    if isinstance(layer, Conv):
        return not (layer.trainable or layer.weight_standardised)
    if isinstance(layer, Dense):
        return not (layer.trainable or layer.joined or layer.dropout)
    return isinstance(layer, Pool)


def count_positions(layer: Layer, shape: Shape) -> int:
    """Return the number of positions of a record at which a layer's weights are used."""
    if isinstance(layer, Recurrent):
        return shape[-2]
    return math.prod(layer.output_shape(shape)[1:]) if isinstance(layer, Conv) else 1


def count_norm_operations(count: int, places: int) -> float:
    """Return the number of operations for the norm of one record's gradient in a layer.

    Args:
        count: Number of parameters of the layer.
        places: Number of positions at which they are used, 1 or more.
    """
    wide = 2.0 * math.sqrt(count)  # minimum of inputs + outputs
    return 2.0 * wide if places == 1 else min(2.0 * places**2 * wide, 4.0 * count)
