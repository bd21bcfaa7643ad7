"""An architecture: a frozen, hashable list of layers that knows its shapes and parameter counts.

One class a layer, each with three short methods: `output_shape`, `parameters` (both plain
arithmetic, so that a plan needs no torch) and `module`. The output layer, Dense(classes) without
activation, is always there and always trained.

Source: Bao et al., Tables XI, XII and XIX to XXXI (layers and parameter counts).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pasearch.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

Shape = tuple[int, ...]

UNLESS_CHANGED = {"unless_changed": True}
"""Marks a field that is younger than stored results: its default is not written, so that an old
architecture is the same JSON as ever."""

ACTIVATIONS = ("linear", "relu", "sigmoid", "tanh", "tempered_sigmoid")


def activation_module(name: str) -> nn.Module:
    """Return the activation called `name`; `tempered_sigmoid:s,T,o` sets its parameters."""
    from torch import nn

    from pasearch.spaces.modules import TemperedSigmoid

    kind, _, arguments = name.partition(":")
    match kind:
        case "linear":
            return nn.Identity()
        case "relu":
            return nn.ReLU()
        case "sigmoid":
            return nn.Sigmoid()
        case "tanh":
            return nn.Tanh()
        case "tempered_sigmoid":
            return TemperedSigmoid(*_three(arguments)) if arguments else TemperedSigmoid()
    raise UsageError(_unknown_activation(name))


def _unknown_activation(name: object) -> str:
    return (
        f"Activation {name!r} is not known: expected one of {', '.join(ACTIVATIONS)}, "
        "or 'tempered_sigmoid:scale,temperature,offset' with three numbers."
    )


def _three(arguments: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in arguments.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != 3 or not all(math.isfinite(number) for number in numbers):
        raise UsageError(_unknown_activation(f"tempered_sigmoid:{arguments}"))
    return numbers


def check_activation(name: object) -> None:
    """Refuse an activation that `activation_module` does not know."""
    kind, colon, arguments = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind not in ACTIVATIONS or (colon and kind != "tempered_sigmoid"):
        raise UsageError(_unknown_activation(name))
    if colon:
        _three(arguments)


MOST_WIDE = 2**20
"""The most of anything in a layer: neurons, filters, pixels."""

MOST_LAYERS = 200
"""The most layers."""

MOST_PARAMETERS = 2**28
"""The largest network that may be drawn: its weights and their gradients take 2 GiB."""


def _check(layer: object, **numbers: object) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or not value > 0:
            raise UsageError(
                f"{type(layer).__name__}: {name} is {value!r}: expected a whole number above 0."
            )
        if not value <= MOST_WIDE:
            raise UsageError(f"{type(layer).__name__}: {name} is above {MOST_WIDE:,}: take less.")


def _check_flag(layer: object, name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{type(layer).__name__}: {name} is {value!r}: expected true or false.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A fully connected layer; an input with more than one axis is flattened first.

    Args:
        units: Number of neurons.
        activation: One of `ACTIVATIONS`.
        trainable: False freezes it at its random start (random weights training, RWT).
        dropout: Rate of the dropout behind it, in [0, 1).
    """

    kind: ClassVar[str] = "dense"
    units: int
    activation: str = "tanh"
    trainable: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _check(self, units=self.units)
        check_activation(self.activation)
        _check_flag(self, "trainable", self.trainable)
        if not (type(self.dropout) in (int, float) and 0.0 <= self.dropout < 1.0):
            raise UsageError(f"Dense: dropout is {self.dropout!r}: expected a rate in [0, 1).")

    def output_shape(self, shape: Shape) -> Shape:
        """Return (units,)."""
        return (self.units,)

    def parameters(self, shape: Shape) -> int:
        """Return (inputs + 1) * units."""
        return (math.prod(shape) + 1) * self.units

    def module(self, shape: Shape) -> list[nn.Module]:
        """Return the torch modules, uninitialised."""
        from torch import nn

        from pasearch.spaces.modules import KeyedDropout

        flatten = [nn.Flatten()] if len(shape) > 1 else []
        drop = [KeyedDropout(self.dropout)] if self.dropout else []
        # Torch's own start would draw from its global generator.
        linear = nn.utils.skip_init(nn.Linear, math.prod(shape), self.units)
        return [*flatten, linear, activation_module(self.activation), *drop]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """A two-dimensional convolution over (channels, height, width).

    Args:
        filters: Number of output channels.
        kernel: Side of the square kernel, pixels.
        stride: Pixels between two positions.
        padding: "valid" (none), "same" (output as large as the input; stride 1), or pixels.
        groups: Groups of channels that do not mix.
        dilation: Pixels between two taps of the kernel.
        activation: One of `ACTIVATIONS`.
        trainable: False freezes it at its random start.
        weight_standardised: Whether filters have mean 0 and norm 1 when used (Qiao et al. 2019);
            put a `Norm` behind it.
    """

    kind: ClassVar[str] = "conv"
    filters: int
    kernel: int = 3
    stride: int = 1
    padding: str | int = "valid"
    groups: int = 1
    dilation: int = 1
    activation: str = "relu"
    trainable: bool = True
    weight_standardised: bool = field(default=False, metadata=UNLESS_CHANGED)

    def __post_init__(self) -> None:
        _check(self, filters=self.filters, kernel=self.kernel, stride=self.stride)
        _check(self, groups=self.groups, dilation=self.dilation)
        check_activation(self.activation)
        _check_flag(self, "trainable", self.trainable)
        _check_flag(self, "weight_standardised", self.weight_standardised)
        whole = isinstance(self.padding, int) and not isinstance(self.padding, bool)
        if self.padding not in ("valid", "same") and not (
            whole and 0 <= int(self.padding) <= MOST_WIDE
        ):
            raise UsageError(
                f"Conv: padding is {self.padding!r}: expected 'valid', 'same' or pixels."
            )
        if self.padding == "same" and self.stride != 1:
            raise UsageError("Conv: padding 'same' goes with stride 1 only.")

    def output_shape(self, shape: Shape) -> Shape:
        """Return (filters, height, width) of the output."""
        channels, *sides = _image(self, shape)
        if channels % self.groups or self.filters % self.groups:
            raise UsageError(
                f"Conv: {channels} channels and {self.filters} filters do not divide into "
                f"{self.groups} groups."
            )
        if self.weight_standardised and channels // self.groups * self.kernel**2 == 1:
            raise UsageError(
                "Conv: a filter of one weight, less its mean, is 0: take weight_standardised = "
                "false, or a larger kernel."
            )
        if self.padding == "same":
            return (self.filters, *sides)
        padding = 0 if self.padding == "valid" else int(self.padding)
        reach = self.dilation * (self.kernel - 1) + 1
        return (self.filters, *(_slide(self, s + 2 * padding, reach, self.stride) for s in sides))

    def parameters(self, shape: Shape) -> int:
        """Return filters * (channels / groups * kernel^2 + 1)."""
        return self.filters * (_image(self, shape)[0] // self.groups * self.kernel**2 + 1)

    def module(self, shape: Shape) -> list[nn.Module]:
        """Return the torch modules, uninitialised."""
        from torch import nn

        from pasearch.spaces.modules import WeightStandardisedConv2d

        convolution = nn.utils.skip_init(
            WeightStandardisedConv2d if self.weight_standardised else nn.Conv2d,
            _image(self, shape)[0],
            self.filters,
            self.kernel,
            stride=self.stride,
            padding=self.padding,
            groups=self.groups,
            dilation=self.dilation,
        )
        return [convolution, activation_module(self.activation)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Max or average pooling over square windows.

    Args:
        size: Side of the window, pixels.
        average: True takes the mean, False the maximum.
        stride: Pixels between two windows; None is as many as the side, so they do not overlap.
    """

    kind: ClassVar[str] = "pool"
    size: int = 2
    average: bool = False
    stride: int | None = field(default=None, metadata=UNLESS_CHANGED)

    def __post_init__(self) -> None:
        _check(self, size=self.size)
        if self.stride is not None:
            _check(self, stride=self.stride)
        _check_flag(self, "average", self.average)

    def output_shape(self, shape: Shape) -> Shape:
        """Return (channels, height, width) of the output; a remainder is dropped."""
        channels, *sides = _image(self, shape)
        stride = self.size if self.stride is None else self.stride
        return (channels, *(_slide(self, side, self.size, stride) for side in sides))

    def parameters(self, shape: Shape) -> int:
        """Return 0."""
        return 0

    def module(self, shape: Shape) -> list[nn.Module]:
        """Return the torch module."""
        from torch import nn

        pool = nn.AvgPool2d if self.average else nn.MaxPool2d
        return [pool(self.size, self.stride)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Group normalisation: every record on its own, each group of channels to mean 0, variance 1.

    In front of its activation stands a `Conv` or `Dense` with the activation "linear".

    Args:
        groups: Number of groups, which the channels (of a vector: its numbers) divide into.
        activation: One of `ACTIVATIONS`, behind it.
        trainable: False freezes the weights at 1 and the biases at 0.

    Source: Wu and He 2018.
    """

    kind: ClassVar[str] = "norm"
    groups: int = 1
    activation: str = "linear"
    trainable: bool = True

    def __post_init__(self) -> None:
        _check(self, groups=self.groups)
        check_activation(self.activation)
        _check_flag(self, "trainable", self.trainable)

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape as it is, an image's channel included."""
        same = shape if len(shape) == 1 else _image(self, shape)
        if same[0] % self.groups:
            raise UsageError(
                f"Norm: {same[0]} channels do not divide into {self.groups} groups: expected a "
                "divisor."
            )
        if math.prod(same) == self.groups:
            raise UsageError(
                f"Norm: groups of one number each are all 0, normalised. Take fewer than "
                f"{self.groups} groups."
            )
        return same

    def parameters(self, shape: Shape) -> int:
        """Return 2 * channels."""
        return 2 * self.output_shape(shape)[0]

    def module(self, shape: Shape) -> list[nn.Module]:
        """Return the torch modules: weights start at 1 and biases at 0."""
        from torch import nn

        norm = nn.GroupNorm(self.groups, self.output_shape(shape)[0])
        return [norm, activation_module(self.activation)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lstm:
    """A long short-term memory over the rows of a record, to its last state.

    A row is a step: of (steps, inputs), or of all channels of (channels, height, width).

    Args:
        units: Numbers in the state.
        biases: Biases a gate: 1, or 2 as torch's LSTM has.
        trainable: False freezes it at its random start.

    Source: Hochreiter and Schmidhuber 1997; Bao et al., Tables XXVII and XXVIII (one bias).
    """

    kind: ClassVar[str] = "lstm"
    units: int
    biases: int = 1
    trainable: bool = True

    def __post_init__(self) -> None:
        _check(self, units=self.units, biases=self.biases)
        if self.biases > 2:
            raise UsageError(f"Lstm: biases is {self.biases}: expected 1 or 2.")
        _check_flag(self, "trainable", self.trainable)

    def output_shape(self, shape: Shape) -> Shape:
        """Return (units,)."""
        self._inputs(shape)
        return (self.units,)

    def parameters(self, shape: Shape) -> int:
        """Return 4 * units * (inputs + units + biases)."""
        return 4 * self.units * (self._inputs(shape) + self.units + self.biases)

    def module(self, shape: Shape) -> list[nn.Module]:
        """Return the torch modules, uninitialised."""
        from torch import nn

        from pasearch.spaces import modules

        rows = [modules.Rows()] if len(shape) == 3 else []
        inputs = self._inputs(shape)
        return [*rows, nn.utils.skip_init(modules.Lstm, inputs, self.units, self.biases)]

    def _inputs(self, shape: Shape) -> int:
        if len(shape) not in (2, 3):
            raise UsageError(
                "Lstm needs records of rows, (steps, inputs) or (channels, height, width); these "
                f"have shape {shape}. Take a space of family 'fcn'."
            )
        return math.prod(shape) // shape[-2]


Layer = Dense | Conv | Pool | Norm | Lstm
LAYERS: Mapping[str, type[Layer]] = {layer.kind: layer for layer in (Dense, Conv, Pool, Norm, Lstm)}


def _image(layer: object, shape: Shape) -> Shape:
    """Read (height, width) as one channel; anything else must be (channels, height, width)."""
    image = (1, *shape) if len(shape) == 2 else shape
    if len(image) != 3:
        raise UsageError(
            f"{type(layer).__name__} needs images, (height, width) or (channels, height, width) "
            f"a record; these records have shape {shape}. Take a space of family 'fcn'."
        )
    return image


def _slide(layer: object, side: int, reach: int, stride: int) -> int:
    positions = (side - reach) // stride + 1
    if not positions > 0:
        raise UsageError(
            f"{type(layer).__name__}: a window of {reach} pixels does not fit into a side of "
            f"{side}. Take fewer blocks, smaller kernels, or a space of family 'fcn'."
        )
    return positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A stack of layers, without its output layer.

    Args:
        layers: The hidden layers, first to last.
    """

    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        kinds = tuple(LAYERS.values())
        if not isinstance(self.layers, tuple) or not all(isinstance(x, kinds) for x in self.layers):
            raise UsageError(
                f"An architecture has layers {self.layers!r}: expected a tuple of Dense, Conv, "
                "Pool, Norm and Lstm."
            )
        if len(self.layers) > MOST_LAYERS:
            raise UsageError(
                f"An architecture has {len(self.layers):,} layers: expected at most {MOST_LAYERS}."
            )

    def shapes(self, input_shape: Shape) -> list[Shape]:
        """Return the shape that enters each layer, and last the one that leaves.

        Raises:
            UsageError: A window does not fit, or records are not images.
        """
        shapes = [tuple(input_shape)]
        for layer in self.layers:
            shapes.append(layer.output_shape(shapes[-1]))
        return shapes

    def parameters(self, input_shape: Shape, outputs: int) -> tuple[int, int]:
        """Return the number of (all, trainable) parameters, the output layer's included.

        >>> Architecture(layers=(Dense(units=128),)).parameters((64,), 10)
        (9610, 9610)
        """
        shapes = self.shapes(input_shape)
        counts = [
            layer.parameters(shape) for layer, shape in zip(self.layers, shapes[:-1], strict=True)
        ]
        last = Dense(units=outputs).parameters(shapes[-1])
        frozen = sum(
            count
            for layer, count in zip(self.layers, counts, strict=True)
            if not getattr(layer, "trainable", True)
        )
        total = sum(counts) + last
        return total, total - frozen

    def rate_factor(self) -> float:
        """Return by how much this architecture's learning rate differs from 128 tanh units'.

        (1, .7, .6) for 1, 2, 3 or more hidden layers; the fourth root of 128 / the widest dense
        layer; 2 for sigmoids, whose gradients are small. Measured on digits and MNIST, without
        `Lstm`, which counts as a layer.
        """
        hidden = [layer for layer in self.layers if not isinstance(layer, (Pool, Norm))]
        widest = max((layer.units for layer in hidden if isinstance(layer, Dense)), default=128)
        depth = (1.0, 1.0, 0.7, 0.6)[min(len(hidden), 3)]
        sigmoid = any(getattr(layer, "activation", "") == "sigmoid" for layer in self.layers)
        return depth * (128 / widest) ** 0.25 * (2.0 if sigmoid else 1.0)

    def frozen(self, first: int) -> Architecture:
        """Return the same with its first layers frozen (random weights training).

        Args:
            first: How many, of those with weights: pooling layers have none and do not count.

        Raises:
            UsageError: There are not so many.
        """
        places = [i for i, layer in enumerate(self.layers) if not isinstance(layer, Pool)]
        counted = isinstance(first, int) and not isinstance(first, bool)
        if not (counted and 0 <= first <= len(places)):
            raise UsageError(
                f"{first!r} frozen layers: expected a whole number, 0 to {len(places)}: the "
                f"hidden layers with weights of {self.describe()!r}."
            )
        chosen = set(places[:first])
        return self._with({"trainable": False}, lambda i, _: i in chosen)

    def with_activation(self, name: str) -> Architecture:
        """Return the same with one activation at every layer that has one other than "linear"."""
        check_activation(name)
        return self._with(
            {"activation": name},
            lambda _, layer: getattr(layer, "activation", "linear") != "linear",
        )

    def _with(
        self, values: Mapping[str, Any], chosen: Callable[[int, Layer], bool]
    ) -> Architecture:
        layers = (
            replace(layer, **values) if chosen(i, layer) else layer
            for i, layer in enumerate(self.layers)
        )
        return Architecture(layers=tuple(layers))

    def build(self, input_shape: Shape, outputs: int, generator: np.random.Generator | None = None):
        """Return the network as an `nn.Sequential`.

        Args:
            input_shape: Shape of one record.
            outputs: Number of classes.
            generator: Where the initial weights are drawn from; None leaves them uninitialised
                (for a state that is loaded next).

        Returns:
            nn.Sequential: Maps (batch, *input_shape) to (batch, outputs).

        Raises:
            UsageError: It does not fit, or has more than `MOST_PARAMETERS`.
        """
        from torch import nn

        if (total := self.parameters(input_shape, outputs)[0]) > MOST_PARAMETERS:
            raise UsageError(
                f"The network has {total:,} parameters on records of shape {tuple(input_shape)}: "
                f"expected at most {MOST_PARAMETERS:,}."
            )
        shapes = self.shapes(input_shape)
        last = Dense(units=outputs, activation="linear")
        blocks: list[nn.Module] = []
        if len(input_shape) == 2 and isinstance((*self.layers, last)[0], (Conv, Pool, Norm)):
            blocks.append(nn.Unflatten(1, (1, input_shape[0])))
        for layer, shape in zip((*self.layers, last), shapes, strict=True):
            modules = layer.module(shape)
            for module in modules:
                trainable = getattr(layer, "trainable", True)
                module.requires_grad_(trainable)
                if generator is not None:
                    _initialise(module, getattr(layer, "activation", "linear"), generator)
            blocks += [module for module in modules if not isinstance(module, nn.Identity)]
        return nn.Sequential(*blocks)

    def describe(self) -> str:
        """Return one readable line, such as `dense 128 tanh - dense 64 relu (frozen)`."""
        return " - ".join(_describe(layer) for layer in self.layers) or "linear"

    def to_json(self) -> list[dict[str, Any]]:
        """Return the layers as plain values."""
        return [_layer_to_json(layer) for layer in self.layers]

    @classmethod
    def from_json(cls, layers: object) -> Architecture:
        """Read what `to_json` wrote.

        Raises:
            UsageError: Not a list of known layers with known settings.
        """
        if not isinstance(layers, list):
            raise UsageError(f"An architecture is a list of layers, not {layers!r}.")
        if len(layers) > MOST_LAYERS:
            raise UsageError(f"There are {len(layers):,} layers: expected at most {MOST_LAYERS}.")
        return cls(layers=tuple(_layer_from_json(layer) for layer in layers))


def _layer_to_json(layer: Layer) -> dict[str, Any]:
    values: dict[str, Any] = {"kind": layer.kind}
    for each in fields(layer):
        value = getattr(layer, each.name)
        if value != each.default or not each.metadata.get("unless_changed"):
            values[each.name] = value
    return values


def _layer_from_json(settings: object) -> Layer:
    if not isinstance(settings, dict) or settings.get("kind") not in list(LAYERS):
        raise UsageError(f"Layer {settings!r} is not known: expected one of {', '.join(LAYERS)}.")
    kind = LAYERS[settings["kind"]]
    known = {field.name for field in fields(kind)}
    given = {name: value for name, value in settings.items() if name != "kind"}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if missing := needed - set(given):
        raise UsageError(f"Layer {settings['kind']!r} lacks {', '.join(sorted(missing))}: give it.")
    if unknown := set(given) - known:
        raise UsageError(
            f"Layer {settings['kind']!r} has no setting {', '.join(sorted(unknown))}: "
            f"expected {', '.join(sorted(known))}."
        )
    return kind(**given)


def _describe(layer: Layer) -> str:
    frozen = "" if getattr(layer, "trainable", True) else " (frozen)"
    match layer:
        case Dense():
            return f"dense {layer.units} {layer.activation}{frozen}"
        case Conv():
            side, how = layer.kernel, "weight-standardised " * layer.weight_standardised
            return f"{how}conv {layer.filters} of {side}x{side} {layer.activation}{frozen}"
        case Pool():
            stride = "" if layer.stride is None else f" stride {layer.stride}"
            return f"{'average' if layer.average else 'max'} pool {layer.size}{stride}"
        case Norm():
            return f"group norm {layer.groups} {layer.activation}{frozen}"
        case Lstm():
            return f"lstm {layer.units}{' two biases' if layer.biases == 2 else ''}{frozen}"


def _initialise(module: nn.Module, activation: str, generator: np.random.Generator) -> None:
    """Draw weights N(0, gain^2 / inputs): gain 1, sqrt(2) before ReLU, 4 before a sigmoid.

    A sigmoid has slope 1/4 at 0, so a gain of 4 keeps a deep stack from collapsing to a constant.
    The bias starts at 0, but that of an LSTM's forget gate at 1, so that it remembers (Gers et al.
    2000). A norm starts as it is made.
    """
    import numpy as np
    import torch
    from torch import nn

    from pasearch.spaces.modules import Lstm as Memory

    if not isinstance(module, (nn.Linear, nn.Conv2d, Memory)):
        return
    gain = {"relu": math.sqrt(2.0), "sigmoid": 4.0}.get(activation, 1.0)
    inputs = module.weight[0].numel()
    weights = generator.standard_normal(tuple(module.weight.shape), dtype=np.float32)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(weights) * (gain / math.sqrt(inputs)))
        for name, bias in module.named_parameters(recurse=False):
            if name.endswith("bias"):
                bias.zero_()
        if isinstance(module, Memory):
            module.bias[module.units : 2 * module.units] = 1.0
