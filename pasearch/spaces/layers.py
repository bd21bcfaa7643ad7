"""Layers of a network: one frozen dataclass per kind of layer.

Each has an output shape, a number of parameters, PyTorch modules and a description. Only the
modules require PyTorch, so a plan does not need it.

Source: Bao et al., Tables XI, XII and XIX to XXXI (layers and parameter counts).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pasearch.errors import UsageError
from pasearch.spaces.user_modules import UserModule

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, ...]

OMITTED_BY_DEFAULT = {"unless_changed": True}
"""Metadata of a field whose default is not written to JSON, so that the JSON of an architecture
stored before the field existed is unchanged.
"""

ACTIVATIONS = ("linear", "relu", "sigmoid", "tanh", "tempered_sigmoid")


def make_activation(name: str) -> nn.Module:
    """Make the module of an activation, such as "relu" or "tempered_sigmoid:2,2,1"."""
    from torch import nn

    from pasearch.spaces.modules import TemperedSigmoid

    kind, _, arguments = name.partition(":")
    if kind == "tempered_sigmoid":
        return TemperedSigmoid(*_parse_three_numbers(arguments)) if arguments else TemperedSigmoid()
    plain = {"linear": nn.Identity, "relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}
    if kind in plain:
        return plain[kind]()
    raise UsageError(_describe_unknown_activation(name))


def _describe_unknown_activation(name: object) -> str:
    """Return the error message for an activation that is not supported."""
    return (
        f"Activation {name!r} is not known: expected one of {', '.join(ACTIVATIONS)}, "
        "or 'tempered_sigmoid:scale,temperature,offset' with three numbers."
    )


def _parse_three_numbers(arguments: str) -> tuple[float, ...]:
    """Parse scale, temperature and offset of a tempered sigmoid; raise UsageError if invalid."""
    try:
        numbers = tuple(float(part) for part in arguments.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != 3 or not all(math.isfinite(number) for number in numbers):
        raise UsageError(_describe_unknown_activation(f"tempered_sigmoid:{arguments}"))
    return numbers


def check_activation(name: object) -> None:
    """Raise UsageError if `make_activation` does not support an activation."""
    kind, colon, arguments = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind not in ACTIVATIONS or (colon and kind != "tempered_sigmoid"):
        raise UsageError(_describe_unknown_activation(name))
    if colon:
        _parse_three_numbers(arguments)


MAX_LAYER_SIZE = 2**20
"""Maximum number of neurons, filters or pixels of a layer."""


def _check_sizes(layer: object, **numbers: object) -> None:
    """Raise UsageError if a number is not an integer from 1 to `MAX_LAYER_SIZE`."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or not value > 0:
            raise UsageError(
                f"{type(layer).__name__}: {name} is {value!r}: expected an integer above 0."
            )
        if not value <= MAX_LAYER_SIZE:
            raise UsageError(
                f"{type(layer).__name__}: {name} is {value:,}: expected at most {MAX_LAYER_SIZE:,}."
            )


def _check_flag(layer: object, name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{type(layer).__name__}: {name} is {value!r}: expected true or false.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """Fully connected layer; an input with more than one axis is flattened first.

    Args:
        units: Number of neurons.
        activation: Activation, one of `ACTIVATIONS`.
        trainable: False freezes the layer at its random start (random weights training, RWT).
        dropout: Rate of the dropout after the layer, in [0, 1).
        joined: Whether the next layer receives the input of this layer too, concatenated with its
            output. In a network with one hidden layer, this is "wide and deep" learning (Cheng et
            al. 2016).
    """

    kind: ClassVar[str] = "dense"
    units: int
    activation: str = "tanh"
    trainable: bool = True
    dropout: float = 0.0
    joined: bool = field(default=False, metadata=OMITTED_BY_DEFAULT)

    def __post_init__(self) -> None:
        _check_sizes(self, units=self.units)
        check_activation(self.activation)
        _check_flag(self, "trainable", self.trainable)
        _check_flag(self, "joined", self.joined)
        if not (type(self.dropout) in (int, float) and 0.0 <= self.dropout < 1.0):
            raise UsageError(f"Dense: dropout is {self.dropout!r}: expected a rate in [0, 1).")

    def output_shape(self, shape: Shape) -> Shape:
        """Return (units,), or (inputs + units,) if `joined`."""
        return (self.units + math.prod(shape) * self.joined,)

    def parameters(self, shape: Shape) -> int:
        """Return (inputs + 1) * units."""
        return (math.prod(shape) + 1) * self.units

    def module(self, shape: Shape) -> list[nn.Module]:
        """Return the layer's PyTorch modules, without initial weights."""
        from torch import nn

        from pasearch.spaces.modules import KeyedDropout, SkipConcat

        flatten = [nn.Flatten()] if len(shape) > 1 else []
        drop = [KeyedDropout(self.dropout)] if self.dropout else []
        # PyTorch's default initial weights would be drawn from its global generator.
        linear = nn.utils.skip_init(nn.Linear, math.prod(shape), self.units)
        layers = [linear, make_activation(self.activation), *drop]
        return [*flatten, *([SkipConcat(*layers)] if self.joined else layers)]

    def describe(self) -> str:
        """Describe the layer, such as `dense 128 tanh`."""
        beside = " with its input" if self.joined else ""
        return f"dense {self.units} {self.activation}{beside}{_frozen_suffix(self.trainable)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """Two-dimensional convolution over (channels, height, width).

    Args:
        filters: Number of output channels.
        kernel: Side of the square kernel, pixels.
        stride: Distance of two positions of the kernel, pixels.
        padding: "valid" (none), "same" (the output is as large as the input; stride 1), or a number
            of pixels.
        groups: Number of groups of channels; each output channel uses one group of input channels.
        dilation: Distance of two inputs of the kernel, pixels.
        activation: Activation, one of `ACTIVATIONS`.
        trainable: False freezes the layer at its random start (random weights training, RWT).
        weight_standardised: Whether filters are standardised to mean 0 and norm 1 when used (Qiao
            et al. 2019); a `Norm` layer should follow.
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
    weight_standardised: bool = field(default=False, metadata=OMITTED_BY_DEFAULT)

    def __post_init__(self) -> None:
        _check_sizes(self, filters=self.filters, kernel=self.kernel, stride=self.stride)
        _check_sizes(self, groups=self.groups, dilation=self.dilation)
        check_activation(self.activation)
        _check_flag(self, "trainable", self.trainable)
        _check_flag(self, "weight_standardised", self.weight_standardised)
        whole = isinstance(self.padding, int) and not isinstance(self.padding, bool)
        if self.padding not in ("valid", "same") and not (
            whole and 0 <= int(self.padding) <= MAX_LAYER_SIZE
        ):
            raise UsageError(
                f"Conv: padding is {self.padding!r}: expected 'valid', 'same' or pixels."
            )
        if self.padding == "same" and self.stride != 1:
            raise UsageError(f"Conv: padding 'same' requires stride 1, not {self.stride}.")

    def output_shape(self, shape: Shape) -> Shape:
        """Return (filters, height, width) of the output."""
        channels, *sides = _as_image_shape(self, shape)
        if channels % self.groups or self.filters % self.groups:
            raise UsageError(
                f"Conv: {channels} channels and {self.filters} filters do not divide into "
                f"{self.groups} groups."
            )
        if self.weight_standardised and channels // self.groups * self.kernel**2 == 1:
            raise UsageError(
                "Conv: weight_standardised requires filters of more than one weight: set it to "
                "false, or use a larger kernel."
            )
        if self.padding == "same":
            return (self.filters, *sides)
        padding = 0 if self.padding == "valid" else int(self.padding)
        reach = self.dilation * (self.kernel - 1) + 1
        return (
            self.filters,
            *(_count_positions(self, s + 2 * padding, reach, self.stride) for s in sides),
        )

    def parameters(self, shape: Shape) -> int:
        """Return filters * (channels / groups * kernel^2 + 1)."""
        return self.filters * (_as_image_shape(self, shape)[0] // self.groups * self.kernel**2 + 1)

    def module(self, shape: Shape) -> list[nn.Module]:
        """Return the layer's PyTorch modules, without initial weights."""
        from torch import nn

        from pasearch.spaces.modules import WeightStandardisedConv2d

        convolution = nn.utils.skip_init(
            WeightStandardisedConv2d if self.weight_standardised else nn.Conv2d,
            _as_image_shape(self, shape)[0], self.filters, self.kernel, stride=self.stride,
            padding=self.padding, groups=self.groups, dilation=self.dilation,
        )  # fmt: skip
        return [convolution, make_activation(self.activation)]

    def describe(self) -> str:
        """Describe the layer, such as `conv 16 of 5x5 relu`."""
        how, side = "weight-standardised " * self.weight_standardised, self.kernel
        what = f"{how}conv {self.filters} of {side}x{side} {self.activation}"
        return what + _frozen_suffix(self.trainable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Max or average pooling over square windows.

    Args:
        size: Side of the window, pixels.
        average: True for the mean of a window, False for its maximum.
        stride: Distance of two windows, pixels; None: the side, so that windows do not overlap.
    """

    kind: ClassVar[str] = "pool"
    size: int = 2
    average: bool = False
    stride: int | None = field(default=None, metadata=OMITTED_BY_DEFAULT)

    def __post_init__(self) -> None:
        _check_sizes(self, size=self.size)
        if self.stride is not None:
            _check_sizes(self, stride=self.stride)
        _check_flag(self, "average", self.average)

    def output_shape(self, shape: Shape) -> Shape:
        """Return (channels, height, width) of the output; a remainder is dropped."""
        channels, *sides = _as_image_shape(self, shape)
        stride = self.size if self.stride is None else self.stride
        return (channels, *(_count_positions(self, side, self.size, stride) for side in sides))

    def parameters(self, shape: Shape) -> int:
        """Return 0: a pooling layer has no parameters."""
        return 0

    def module(self, shape: Shape) -> list[nn.Module]:
        """Return the layer's PyTorch module."""
        from torch import nn

        pool = nn.AvgPool2d if self.average else nn.MaxPool2d
        return [pool(self.size, self.stride)]

    def describe(self) -> str:
        """Describe the layer, such as `max pool 2`."""
        stride = "" if self.stride is None else f" stride {self.stride}"
        return f"{'average' if self.average else 'max'} pool {self.size}{stride}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Group normalisation: every group of channels of a record is scaled to mean 0 and variance 1.

    The `Conv` or `Dense` layer before it should have the activation "linear".

    Args:
        groups: Number of groups; a divisor of the number of channels (for a vector, of its length).
        activation: Activation after the normalisation, one of `ACTIVATIONS`.
        trainable: False freezes the weights at 1 and the biases at 0.

    Source: Wu and He 2018.
    """

    kind: ClassVar[str] = "norm"
    groups: int = 1
    activation: str = "linear"
    trainable: bool = True

    def __post_init__(self) -> None:
        _check_sizes(self, groups=self.groups)
        check_activation(self.activation)
        _check_flag(self, "trainable", self.trainable)

    def output_shape(self, shape: Shape) -> Shape:
        """Return the input shape; (height, width) becomes (1, height, width)."""
        same = shape if len(shape) == 1 else _as_image_shape(self, shape)
        if same[0] % self.groups:
            raise UsageError(
                f"Norm: {same[0]} channels do not divide into {self.groups} groups: expected a "
                "divisor."
            )
        if math.prod(same) == self.groups:
            raise UsageError(
                f"Norm: groups of one number each are normalised to 0. Use fewer than "
                f"{self.groups} groups."
            )
        return same

    def parameters(self, shape: Shape) -> int:
        """Return 2 * channels."""
        return 2 * self.output_shape(shape)[0]

    def module(self, shape: Shape) -> list[nn.Module]:
        """Return the layer's PyTorch modules, with weights 1 and biases 0."""
        from torch import nn

        norm = nn.GroupNorm(self.groups, self.output_shape(shape)[0])
        return [norm, make_activation(self.activation)]

    def describe(self) -> str:
        """Describe the layer, such as `group norm 4 relu`."""
        return f"group norm {self.groups} {self.activation}{_frozen_suffix(self.trainable)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """One trained vector per token of a text; the input is a record of token numbers.

    Padding is the vector 0 and is not trained; its row is counted as a parameter, as in the paper.

    Args:
        tokens: Number of tokens: padding, the unknown word, and `tokens` - 2 words; 2 or more.
            Further words of the vocabulary are read as the unknown word.
        units: Length of each vector.
        trainable: False freezes the layer at its random start.

    Source: Bao et al., Tables XXVII, XXVIII and XXXI.

    >>> Embedding(tokens=1000, units=50).parameters((150,))
    50000
    """

    kind: ClassVar[str] = "embedding"
    tokens: int = 1000
    units: int = 50
    trainable: bool = True

    def __post_init__(self) -> None:
        _check_sizes(self, tokens=self.tokens, units=self.units)
        if self.tokens < 2:
            raise UsageError("Embedding: tokens is 1: expected 2 or more (padding and unknown).")
        _check_flag(self, "trainable", self.trainable)

    def output_shape(self, shape: Shape) -> Shape:
        """Return (length, units)."""
        if len(shape) != 1:
            raise UsageError(
                f"Embedding needs records of token numbers, (length,); these have shape {shape}. "
                "It must be the first layer, and the records texts."
            )
        return (*shape, self.units)

    def parameters(self, shape: Shape) -> int:
        """Return tokens * units."""
        return self.tokens * self.units

    def module(self, shape: Shape) -> list[nn.Module]:
        """Return the layer's PyTorch module, without initial weights."""
        from torch import nn

        from pasearch.spaces import modules

        return [nn.utils.skip_init(modules.TokenEmbedding, self.tokens, self.units)]

    def describe(self) -> str:
        """Describe the layer, such as `embedding 1000 x 50`."""
        return f"embedding {self.tokens} x {self.units}{_frozen_suffix(self.trainable)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """Recurrent layer over the rows of a record; the output is its last state, or all states.

    The steps of the sequence are the rows of a record (steps, inputs), or the rows of an image with
    all its channels.

    Args:
        units: Number of values in the state.
        biases: Number of bias vectors per gate: 1, or 2 as in PyTorch's LSTM.
        trainable: False freezes the layer at its random start.
        sequence: Whether the output is the states of all steps, (steps, units), so that another
            recurrent layer can follow.
    """

    kind: ClassVar[str]
    gates: ClassVar[int]
    units: int
    biases: int = 1
    trainable: bool = True
    sequence: bool = field(default=False, metadata=OMITTED_BY_DEFAULT)

    def __post_init__(self) -> None:
        _check_sizes(self, units=self.units, biases=self.biases)
        if self.biases > 2:
            raise UsageError(f"{type(self).__name__}: biases is {self.biases}: expected 1 or 2.")
        _check_flag(self, "trainable", self.trainable)
        _check_flag(self, "sequence", self.sequence)

    def output_shape(self, shape: Shape) -> Shape:
        """Return (units,), or (steps, units) if `sequence`."""
        self._count_inputs(shape)
        return (shape[-2], self.units) if self.sequence else (self.units,)

    def parameters(self, shape: Shape) -> int:
        """Return gates * units * (inputs + units + biases)."""
        return self.gates * self.units * (self._count_inputs(shape) + self.units + self.biases)

    def module(self, shape: Shape) -> list[nn.Module]:
        """Return the layer's PyTorch modules, without initial weights."""
        from torch import nn

        from pasearch.spaces import modules

        rows = [modules.RowSequence()] if len(shape) == 3 else []
        made = {"lstm": modules.Lstm, "gru": modules.Gru}[self.kind]
        sizes = self._count_inputs(shape), self.units, self.biases, self.sequence
        return [*rows, nn.utils.skip_init(made, *sizes)]

    def _count_inputs(self, shape: Shape) -> int:
        """Return the number of values in one step; raise UsageError if records have no rows."""
        if len(shape) not in (2, 3):
            raise UsageError(
                f"{type(self).__name__} needs records of rows, (steps, inputs) or (channels, "
                f"height, width); these have shape {shape}. Take a space of family 'fcn'."
            )
        return math.prod(shape) // shape[-2]

    def describe(self) -> str:
        """Describe the layer, such as `lstm 32`."""
        biases = " two biases" if self.biases == 2 else ""
        states = " all states" if self.sequence else ""
        return f"{self.kind} {self.units}{biases}{states}{_frozen_suffix(self.trainable)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lstm(Recurrent):
    """Long short-term memory (LSTM): a recurrent layer with four gates.

    Source: Hochreiter and Schmidhuber 1997; Bao et al., Tables XXVII and XXVIII (one bias).
    """

    kind: ClassVar[str] = "lstm"
    gates: ClassVar[int] = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Gru(Recurrent):
    """Gated recurrent unit (GRU): a recurrent layer with three gates.

    Source: Cho et al. 2014 (reset gate before the product).
    """

    kind: ClassVar[str] = "gru"
    gates: ClassVar[int] = 3


Layer = Dense | Conv | Pool | Norm | Embedding | Lstm | Gru | UserModule
LAYERS: Mapping[str, type[Layer]] = {
    layer.kind: layer for layer in (Dense, Conv, Pool, Norm, Embedding, Lstm, Gru, UserModule)
}


def _frozen_suffix(trainable: bool) -> str:
    return "" if trainable else " (frozen)"


def _as_image_shape(layer: object, shape: Shape) -> Shape:
    """Return (channels, height, width) for an image's shape; raise UsageError for another shape."""
    image = (1, *shape) if len(shape) == 2 else shape
    if len(image) != 3:
        raise UsageError(
            f"{type(layer).__name__} needs images, (height, width) or (channels, height, width) "
            f"a record; these records have shape {shape}. Use a space of family 'fcn'."
        )
    return image


def _count_positions(layer: object, side: int, reach: int, stride: int) -> int:
    """Return the number of positions of a window of `reach` pixels on a side, 1 or more."""
    positions = (side - reach) // stride + 1
    if not positions > 0:
        raise UsageError(
            f"{type(layer).__name__}: a window of {reach} pixels does not fit into a side of "
            f"{side}. Use fewer blocks, smaller kernels, or a space of family 'fcn'."
        )
    return positions
