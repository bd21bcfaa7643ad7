"""Neural architectures: a list of layers, with their shapes and numbers of parameters.

Shapes and counts are plain arithmetic, so a plan does not need PyTorch. The output layer,
Dense(classes) without activation, is implicit and always trained.

Source: Bao et al., Tables XI, XII and XIX to XXXI (layers and parameter counts).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from pasearch.accounting.checks import check_positive_integer
from pasearch.errors import UsageError
from pasearch.spaces.layers import (
    LAYERS,
    Conv,
    Dense,
    Embedding,
    Layer,
    Norm,
    Pool,
    Shape,
    check_activation,
)
from pasearch.spaces.user_modules import UserModule

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

MAX_LAYERS = 200
"""Maximum number of hidden layers."""

MAX_PARAMETERS = 2**28
"""Maximum number of parameters of a network; weights and gradients take 2 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Network architecture: a sequence of layers, without the output layer.

    Args:
        layers: Hidden layers, first to last.
    """

    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        kinds = tuple(LAYERS.values())
        if not isinstance(self.layers, tuple) or not all(isinstance(x, kinds) for x in self.layers):
            raise UsageError(
                f"An architecture has layers {self.layers!r}: expected a tuple of Dense, Conv, "
                "Pool, Norm, Embedding, Lstm and Gru, or one UserModule."
            )
        if len(self.layers) > 1 and any(isinstance(each, UserModule) for each in self.layers):
            raise UsageError("A network of layer 'module' is whole: expected no other layer.")
        if len(self.layers) > MAX_LAYERS:
            raise UsageError(
                f"An architecture has {len(self.layers):,} layers: expected at most {MAX_LAYERS}."
            )

    def shapes(self, input_shape: Shape) -> list[Shape]:
        """Compute the input shape of each layer, and the output shape of the last.

        Raises:
            UsageError: A window does not fit, or records are not images.
        """
        shapes = [tuple(input_shape)]
        for layer in self.layers:
            shapes.append(layer.output_shape(shapes[-1]))
        return shapes

    def list_all_layers(self, outputs: int) -> tuple[Layer, ...]:
        """List the layers with the output layer; a network of the user has its own."""
        if self.layers and isinstance(last := self.layers[-1], UserModule):
            return (replace(last, outputs=outputs),)
        return (*self.layers, Dense(units=outputs, activation="linear"))

    def parameters(self, input_shape: Shape, outputs: int) -> tuple[int, int]:
        """Return the numbers of all and of trainable parameters, the output layer's included.

        >>> Architecture(layers=(Dense(units=128),)).parameters((64,), 10)
        (9610, 9610)
        """
        shapes = self.shapes(input_shape)
        trained = fixed = 0
        for layer, shape in zip(self.list_all_layers(outputs), shapes, strict=False):
            if isinstance(layer, UserModule):
                trained, fixed = layer.count_parameters(shape)
                continue
            count = layer.parameters(shape)
            trained += count if getattr(layer, "trainable", True) else 0
            fixed += 0 if getattr(layer, "trainable", True) else count
        return trained + fixed, trained

    def learning_rate_factor(self) -> float:
        """Return the recommended learning rate relative to that of one layer of 128 tanh units.

        It is a product of three factors, measured on digits and MNIST without recurrent layers: 1,
        .7 or .6 for 1, 2, or 3 and more hidden layers, embeddings not counted; the fourth root of
        128 / width of the widest dense layer; 2 if there are sigmoids, because their gradients are
        small.
        """
        hidden = [each for each in self.layers if not isinstance(each, (Pool, Norm, Embedding))]
        widest = max((layer.units for layer in hidden if isinstance(layer, Dense)), default=128)
        depth = (1.0, 1.0, 0.7, 0.6)[min(len(hidden), 3)]
        sigmoid = any(getattr(layer, "activation", "") == "sigmoid" for layer in self.layers)
        return depth * (128 / widest) ** 0.25 * (2.0 if sigmoid else 1.0)

    def freeze_first(self, first: int) -> Architecture:
        """Return a copy whose first layers are frozen at their random start (RWT).

        Args:
            first: Number of hidden layers to freeze, 0 or more; pooling layers do not count.

        Raises:
            UsageError: Fewer layers than `first`.
        """
        places = [i for i, layer in enumerate(self.layers) if not isinstance(layer, Pool)]
        counted = isinstance(first, int) and not isinstance(first, bool)
        if not (counted and 0 <= first <= len(places)):
            raise UsageError(
                f"{first!r} frozen layers: expected an integer from 0 to {len(places)}, the number "
                f"of hidden layers with weights in {self.describe()!r}."
            )
        return self._replace_fields({"trainable": False}, places[:first])

    def train_last(self, count: int) -> Architecture:
        """Return a copy with all layers but the last `count` frozen at their random start (RWT).

        As in the paper, only the output layer and hidden layers that are neither pooling nor
        normalisation are counted. At least the first of these hidden layers is frozen.

        Args:
            count: Number of layers to train, the output layer included, 1 or more.

        Raises:
            UsageError: There is no hidden layer to freeze.

        Source: Bao et al., section VII-C.

        >>> table_xxix = Architecture(layers=tuple(Dense(units=each) for each in (1024, 512, 64)))
        >>> table_xxix.train_last(2).parameters((784,), 10)
        (1362122, 33482)
        """
        hidden = [i for i, each in enumerate(self.layers) if not isinstance(each, (Pool, Norm))]
        if not hidden:
            raise UsageError(
                f"{self.describe()!r} has no hidden layer to freeze: random weights training needs "
                "one. Give a network with hidden layers, or train all layers."
            )
        trained = min(check_positive_integer("count", count), len(hidden)) - 1
        end = hidden[-trained] if trained else hidden[-1] + 1
        return self.freeze_first(sum(not isinstance(each, Pool) for each in self.layers[:end]))

    def with_activation(self, name: str) -> Architecture:
        """Return a copy with another activation in every layer whose activation is not "linear"."""
        check_activation(name)
        activations = [getattr(layer, "activation", "linear") for layer in self.layers]
        places = [i for i, each in enumerate(activations) if each != "linear"]
        return self._replace_fields({"activation": name}, places)

    def _replace_fields(self, values: Mapping[str, Any], places: Sequence[int]) -> Architecture:
        """Return a copy with other field values in the layers at the given indices."""
        layers = enumerate(self.layers)
        changed = (replace(each, **values) if i in places else each for i, each in layers)
        return Architecture(layers=tuple(changed))

    def build(self, input_shape: Shape, outputs: int, generator: np.random.Generator | None = None):
        """Build the network, an `nn.Sequential` from (batch, *input_shape) to (batch, outputs).

        The initial weights of the output layer are 0 if its input includes the record itself. The
        loss of a linear model is convex, so random initial weights would only add noise.

        Args:
            input_shape: Shape of one record.
            outputs: Number of outputs.
            generator: Random generator of the initial weights; None: they are not initialised,
                because stored weights are loaded next.

        Raises:
            UsageError: A network that does not fit, or has more than `MAX_PARAMETERS`.
        """
        from torch import nn

        if (total := self.parameters(input_shape, outputs)[0]) > MAX_PARAMETERS:
            raise UsageError(
                f"The network has {total:,} parameters on records of shape {tuple(input_shape)}: "
                f"expected at most {MAX_PARAMETERS:,}."
            )
        shapes = self.shapes(input_shape)
        reaches_output = all(getattr(layer, "joined", False) for layer in self.layers)
        every = self.list_all_layers(outputs)
        if isinstance(every[0], UserModule):
            return nn.Sequential(*every[0].module(shapes[0], generator))
        last = every[-1]
        blocks: list[nn.Module] = []
        for layer, shape in zip(every, shapes, strict=True):
            assert not isinstance(layer, UserModule), "it is the only layer"
            modules = layer.module(shape)
            if len(shape) == 2 and isinstance(layer, (Conv, Pool, Norm)):
                blocks.append(nn.Unflatten(1, (1, shape[0])))
            for module in modules:
                trainable = getattr(layer, "trainable", True)
                module.requires_grad_(trainable)
                if layer is last and reaches_output:
                    for parameter in module.parameters():
                        nn.init.zeros_(parameter)
                elif generator is not None:
                    for part in module.modules():
                        _draw_weights(part, getattr(layer, "activation", "linear"), generator)
            blocks += [module for module in modules if not isinstance(module, nn.Identity)]
        return nn.Sequential(*blocks)

    def describe(self) -> str:
        """Describe the layers in one line, such as `dense 128 tanh - dense 64 relu (frozen)`."""
        return " - ".join(layer.describe() for layer in self.layers) or "linear"

    def to_json(self) -> list[dict[str, Any]]:
        """Return the kind and the fields of each layer as JSON-compatible values."""
        layers: list[dict[str, Any]] = []
        for layer in self.layers:
            if isinstance(layer, UserModule):
                layers.append(layer.to_json())
                continue
            values: dict[str, Any] = {"kind": layer.kind}
            for each in fields(layer):
                value = getattr(layer, each.name)
                if value != each.default or not each.metadata.get("unless_changed"):
                    values[each.name] = value
            layers.append(values)
        return layers

    @classmethod
    def from_json(cls, layers: object) -> Architecture:
        """Parse the result of `to_json`.

        Raises:
            UsageError: Not a list of known layers with known settings.
        """
        if not isinstance(layers, list):
            raise UsageError(f"An architecture is a list of layers, not {layers!r}.")
        if len(layers) > MAX_LAYERS:
            raise UsageError(f"There are {len(layers):,} layers: expected at most {MAX_LAYERS}.")
        return cls(layers=tuple(_layer_from_json(layer) for layer in layers))


def _layer_from_json(settings: object) -> Layer:
    """Parse the kind and the fields of a layer."""
    if not isinstance(settings, dict) or settings.get("kind") not in list(LAYERS):
        raise UsageError(f"Layer {settings!r} is not known: expected one of {', '.join(LAYERS)}.")
    kind = LAYERS[settings["kind"]]
    if kind is UserModule:
        return UserModule.from_json(settings)
    known = {field.name for field in fields(kind)}
    given = {name: value for name, value in settings.items() if name != "kind"}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if missing := needed - set(given):
        raise UsageError(f"Layer {settings['kind']!r} lacks {', '.join(sorted(missing))}: add it.")
    if unknown := set(given) - known:
        raise UsageError(
            f"Layer {settings['kind']!r} has no setting {', '.join(sorted(unknown))}: "
            f"expected {', '.join(sorted(known))}."
        )
    return kind(**given)


def _draw_weights(module: nn.Module, activation: str, generator: np.random.Generator) -> None:
    """Draw the initial weights of a module from N(0, gain^2 / inputs).

    The gain is 1, sqrt(2) before ReLU, and 4 before a sigmoid: its slope at 0 is 1/4, so otherwise
    the output of a deep network would be nearly constant. Biases are 0, except that of an LSTM's
    forget gate, which is 1 (Gers et al. 2000). Normalisation layers are unchanged.
    """
    import numpy as np
    import torch
    from torch import nn

    from pasearch.spaces.modules import Lstm, Recurrent, TokenEmbedding

    if not isinstance(module, (nn.Linear, nn.Conv2d, Recurrent, TokenEmbedding)):
        return
    gain = {"relu": math.sqrt(2.0), "sigmoid": 4.0}.get(activation, 1.0)
    inputs = module.weight[0].numel()
    weights = generator.standard_normal(tuple(module.weight.shape), dtype=np.float32)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(weights) * (gain / math.sqrt(inputs)))
        for name, bias in module.named_parameters(recurse=False):
            if name.endswith("bias"):
                bias.zero_()
        if isinstance(module, Lstm):
            module.bias[module.units : 2 * module.units] = 1.0
