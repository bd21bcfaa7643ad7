"""An architecture: a frozen, hashable list of layers that knows its shapes and parameter counts.

One class a layer, each with three short methods: `output_shape`, `parameters` (both plain
arithmetic, so that a plan needs no torch) and `module`. The output layer, Dense(classes) without
activation, is always there and always trained.

Source: Bao et al., Tables XI, XII and XIX to XXX (layers and parameter counts).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from pasearch.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

Shape = tuple[int, ...]

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


def _check(layer: object, **numbers: object) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or not value > 0:
            raise UsageError(
                f"{type(layer).__name__}: {name} is {value!r}: expected a whole number above 0."
            )


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

    def __post_init__(self) -> None:
        _check(self, filters=self.filters, kernel=self.kernel, stride=self.stride)
        _check(self, groups=self.groups, dilation=self.dilation)
        check_activation(self.activation)
        _check_flag(self, "trainable", self.trainable)
        whole = isinstance(self.padding, int) and not isinstance(self.padding, bool)
        if self.padding not in ("valid", "same") and not (whole and int(self.padding) >= 0):
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

        convolution = nn.utils.skip_init(
            nn.Conv2d,
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
    """Max or average pooling over square windows that do not overlap.

    Args:
        size: Side of the window and the stride, pixels.
        average: True takes the mean, False the maximum.
    """

    kind: ClassVar[str] = "pool"
    size: int = 2
    average: bool = False

    def __post_init__(self) -> None:
        _check(self, size=self.size)
        _check_flag(self, "average", self.average)

    def output_shape(self, shape: Shape) -> Shape:
        """Return (channels, height, width) of the output; a remainder is dropped."""
        channels, *sides = _image(self, shape)
        return (channels, *(_slide(self, side, self.size, self.size) for side in sides))

    def parameters(self, shape: Shape) -> int:
        """Return 0."""
        return 0

    def module(self, shape: Shape) -> list[nn.Module]:
        """Return the torch module."""
        from torch import nn

        return [nn.AvgPool2d(self.size) if self.average else nn.MaxPool2d(self.size)]


Layer = Dense | Conv | Pool
LAYERS: Mapping[str, type[Layer]] = {layer.kind: layer for layer in (Dense, Conv, Pool)}


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
                f"An architecture has layers {self.layers!r}: expected a tuple of Dense, Conv and "
                "Pool."
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
        layer; 2 for sigmoids, whose gradients are small. Measured on digits and MNIST.
        """
        hidden = [layer for layer in self.layers if not isinstance(layer, Pool)]
        widest = max((layer.units for layer in hidden if isinstance(layer, Dense)), default=128)
        depth = (1.0, 1.0, 0.7, 0.6)[min(len(hidden), 3)]
        sigmoid = any(layer.activation == "sigmoid" for layer in hidden)
        return depth * (128 / widest) ** 0.25 * (2.0 if sigmoid else 1.0)

    def build(self, input_shape: Shape, outputs: int, generator: np.random.Generator | None = None):
        """Return the network as an `nn.Sequential`.

        Args:
            input_shape: Shape of one record.
            outputs: Number of classes.
            generator: Where the initial weights are drawn from; None leaves them uninitialised
                (for a state that is loaded next).

        Returns:
            nn.Sequential: Maps (batch, *input_shape) to (batch, outputs).
        """
        from torch import nn

        shapes = self.shapes(input_shape)
        last = Dense(units=outputs, activation="linear")
        blocks: list[nn.Module] = []
        if len(input_shape) == 2 and not isinstance((*self.layers, last)[0], Dense):
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
        return [{"kind": layer.kind, **asdict(layer)} for layer in self.layers]

    @classmethod
    def from_json(cls, layers: object) -> Architecture:
        """Read what `to_json` wrote.

        Raises:
            UsageError: Not a list of known layers with known settings.
        """
        if not isinstance(layers, list):
            raise UsageError(f"An architecture is a list of layers, not {layers!r}.")
        return cls(layers=tuple(_layer_from_json(layer) for layer in layers))


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
            side = layer.kernel
            return f"conv {layer.filters} of {side}x{side} {layer.activation}{frozen}"
        case Pool():
            return f"{'average' if layer.average else 'max'} pool {layer.size}"


def _initialise(module: nn.Module, activation: str, generator: np.random.Generator) -> None:
    """Draw weights N(0, gain^2 / inputs): gain 1, sqrt(2) before ReLU, 4 before a sigmoid.

    A sigmoid has slope 1/4 at 0, so a gain of 4 keeps a deep stack from collapsing to a constant.
    The bias starts at 0.
    """
    import numpy as np
    import torch
    from torch import nn

    if not isinstance(module, (nn.Linear, nn.Conv2d)):
        return
    gain = {"relu": math.sqrt(2.0), "sigmoid": 4.0}.get(activation, 1.0)
    inputs = module.weight[0].numel()
    weights = generator.standard_normal(tuple(module.weight.shape), dtype=np.float32)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(weights) * (gain / math.sqrt(inputs)))
        if module.bias is not None:
            module.bias.zero_()
