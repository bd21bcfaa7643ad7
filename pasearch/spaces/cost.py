"""The work of a private training step, and the time that a plan expects for it.

For a record, by layer, a multiplication and an addition being two operations:

    forward                     2 m          m: multiplications, parameters times positions
    gradient of the inputs      2 m          not below the first layer that is trained
    sum of bounded gradients    2 m          of trained layers
    norms                       the lesser of 2 L^2 (inputs + outputs) and 4 parameters, L > 1
                                positions; inputs + outputs of a layer with one

Source: Bu et al. 2022 (the two forms of a norm); the rest is counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import dropwhile

from pasearch.spaces.architecture import Architecture
from pasearch.spaces.layers import Conv, Dense, Layer, Lstm, Pool, Shape


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What a plan reckons with, in seconds.

    Args:
        layer: Of a step, for each layer with weights.
        trained: Of a step, for each trained number: for its noise.
        operation: Of a record, for each operation.
        number: Of a record, for each number that is given or made.
    """

    layer: float
    trained: float
    operation: float
    number: float

    def seconds(self, work: StepWork, batch: float, share: float = 1.0) -> float:
        """Return those of a step, of whose records so large a share of the time counts."""
        of_record = work.operations * self.operation + work.numbers * self.number
        return work.layers * self.layer + work.trained * self.trained + batch * share * of_record


EAGER_STEP_TIMES = StepTimes(layer=8e-4, trained=1e-8, operation=8e-12, number=1.9e-9)
LINEAR_BACKEND_STEP_TIMES = StepTimes(layer=1e-4, trained=5e-9, operation=1.1e-11, number=7.5e-10)
"""Fitted to steps of the default recipe on made-up records: torch's on two cores of an AMD EPYC,
those of the linear backend on one core, of it and of an Intel Xeon."""

MIN_SAVED_SECONDS = 1.0
"""Seconds that a training must save for compiled code to be loaded: that takes half a second a
process, and some seconds where it has to be compiled."""

MIN_SHARED_NUMBERS = 2**20  # numbers of a batch from which the linear backend uses both cores
SHARED_TIME = 0.6  # fraction of the time on one core that the records of such a batch take on two

WINDOW_PASSES = 4
"""How often a convolution's step goes through all that its windows hold."""

GATE_PASSES = 24
"""How many numbers of each unit an LSTM goes through in each step of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """The work of one step, apart from what the machine can do.

    Args:
        operations: Of a record.
        plain: The same without privacy: no norms.
        held: Numbers of a record.
        numbers: Those, and the outputs of its layers; of a convolution also what its windows hold,
            `WINDOWS` times, and of an LSTM its gates', `GATES` a unit and step.
        layers: With weights.
        parameters: All of the network.
        trained: Those that are trained.
        is_linear: Whether only one linear layer is trained: `training.linear_backend` may do it.
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
    """Return about how long a training takes, from public numbers: for a plan, before any clock.

    Args:
        work: Of the network.
        batch: Records of a step.
        steps: Of the training: the linear backend is used for many.
    """
    by_torch = steps * EAGER_STEP_TIMES.seconds(work, batch)
    share = SHARED_TIME if batch * work.held >= MIN_SHARED_NUMBERS else 1.0
    linear = steps * LINEAR_BACKEND_STEP_TIMES.seconds(work, batch, share)
    return linear if work.is_linear and by_torch - linear >= MIN_SAVED_SECONDS else by_torch


def measure_step_work(architecture: Architecture, shape: Shape, outputs: int) -> StepWork:
    """Return the work of a step of this network on records of this shape."""
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
    """Whether a layer before all trained ones is gone through once a training: see `watched`."""
    if isinstance(layer, Conv):
        return not (layer.trainable or layer.weight_standardised)
    if isinstance(layer, Dense):
        return not (layer.trainable or layer.joined or layer.dropout)
    return isinstance(layer, Pool)


def count_positions(layer: Layer, shape: Shape) -> int:
    """Return at how many places of a record a layer's weights are used."""
    if isinstance(layer, Lstm):
        return shape[0]
    return math.prod(layer.output_shape(shape)[1:]) if isinstance(layer, Conv) else 1


def count_norm_operations(count: int, places: int) -> float:
    """Return the operations of one record's norm, of a layer of so many weights."""
    wide = 2.0 * math.sqrt(count)  # inputs and outputs together, at least
    return 2.0 * wide if places == 1 else min(2.0 * places**2 * wide, 4.0 * count)
