"""Chains of linear layers: the networks that compiled kernels on CPU and GPU support.

    h_l = phi(h_(l-1) W_l^T + b_l)              phi: tanh, ReLU, sigmoid or identity

Dropout may follow phi. In a joined chain the input of the second layer is [x, h_1].
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from pasearch.spaces.modules import KeyedDropout, SkipConcat, TemperedSigmoid
from pasearch.training.layer_rules import compute_norms_along

ACTIVATION_CODES: dict[type[nn.Module] | None, int] = {
    None: 0,
    nn.Tanh: 1,
    nn.ReLU: 2,
    nn.Sigmoid: 3,
}
"""Integer that stands for each activation in the GPU kernels; None: identity."""

FLATTEN_REPR = repr(nn.Flatten())
"""Text form of a flattening layer with default settings."""


class DenseChain:
    """Chain of linear layers with activations and dropout.

    Args:
        layers: Linear layers, in order.
        activations: Type of the activation after each layer, a key of `ACTIVATION_CODES`; None:
            identity.
        dropouts: Dropout before the first layer, then after each activation; None: no dropout.
        flattened: Whether records are flattened before the first layer.
        joined: Whether the input of the second layer is [input, output] of the first one.
    """

    def __init__(
        self,
        layers: Sequence[nn.Linear],
        activations: Sequence[type[nn.Module] | None],
        dropouts: Sequence[KeyedDropout | None],
        flattened: bool,
        joined: bool = False,
    ):
        self.flattened, self.joined = flattened, joined
        self.weights = [layer.weight for layer in layers]
        self.biases = [layer.bias for layer in layers]
        self.activations, self.dropouts = list(activations), list(dropouts)
        self.trained = [k for k, each in enumerate(self.weights) if each.requires_grad]

    @classmethod
    def of(cls, chain: Sequence[nn.Module]) -> DenseChain | None:
        """Make a `DenseChain` from modules in order; None if they are not such a chain."""
        first = next((k for k, each in enumerate(chain) if not is_flatten(each)), len(chain))
        inner = _list_inner_layers(chain[first]) if first < len(chain) else None
        if inner is not None:
            outer, behind = chain[first], chain[first + 1 : first + 2]
            if outer._forward_hooks or outer._forward_pre_hooks:
                return None
            if not behind or type(behind[0]) is not nn.Linear:
                return None  # something else than a linear layer changes [x, h_1]
            chain = [*chain[:first], *inner, *chain[first + 1 :]]
        if any(each._forward_hooks or each._forward_pre_hooks for each in chain):
            return None
        layers: list[nn.Linear] = []
        activations: list[type[nn.Module] | None] = []
        dropouts: list[KeyedDropout | None] = [None]
        for module in chain[first:]:
            if type(module) is nn.Linear:
                given = layers[-1].out_features if layers else module.in_features
                if inner is not None and len(layers) == 1:
                    given += layers[0].in_features
                if (
                    not has_expected_parameters(module, given)
                    or len(module.weight) != module.out_features
                ):
                    return None
                layers.append(module)
                activations.append(None)
                dropouts.append(None)
            elif dropouts[-1] is not None:
                return None
            elif type(module) is KeyedDropout:
                dropouts[-1] = module
            elif (bent := activation_of(module)) and activations and activations[-1] is None:
                activations[-1] = bent
            else:
                return None
        kinds = {(p.dtype, p.device) for each in layers for p in each.parameters()}
        known = len(kinds) == 1 and any(each.weight.requires_grad for each in layers)
        known &= has_distinct_masks(dropouts)
        return cls(layers, activations, dropouts, first > 0, inner is not None) if known else None

    @property
    def widths(self) -> list[int]:
        """Number of inputs of each layer, and as the last entry the number of outputs."""
        return [*(weight.shape[1] for weight in self.weights), self.outputs]

    @property
    def outputs(self) -> int:
        """Number of outputs of the last layer."""
        return len(self.weights[-1])

    def takes(self, x: Tensor) -> bool:
        """Check whether each row of x is one input of the first layer."""
        return len(x.shape) == 2 or self.flattened

    def squares_of_inputs(self, x: Tensor) -> Tensor:
        """Compute the squared norms of the first layer's inputs, (batch,)."""
        return compute_norms_along(x.flatten(1), 1).square_()


def find_offset(parameter: Tensor, weights: Tensor) -> int:
    """Compute the index at which a parameter begins in the flat vector of all weights."""
    return (parameter.data_ptr() - weights.data_ptr()) // parameter.element_size()


def check_buffer_parts(parts: Sequence[tuple[int, int]], count: int) -> None:
    """Check that parts (offset, number of values) fill a flat buffer without gap or overlap.

    Compiled kernels do not check array bounds. With wrong sizes they would add gradients of one
    layer to those of another.

    Raises:
        ValueError: A gap, an overlap or a wrong total.
    """
    behind = 0
    for place, numbers in sorted(parts):
        if place != behind:
            raise ValueError(f"A layer's numbers begin at {place}: expected {behind}.")
        behind = place + numbers
    if behind != count:
        raise ValueError(f"The layers have {behind} numbers: expected {count}.")


def activation_of(module: nn.Module) -> type[nn.Module] | None:
    """Get the `ACTIVATION_CODES` key of a module; None for any other module.

    The default tempered sigmoid, 2 sigmoid(2 x) - 1, is the hyperbolic tangent.
    """
    if type(module) is TemperedSigmoid:
        is_tanh = (module.scale, module.temperature, module.offset) == (2.0, 2.0, 1.0)
        return nn.Tanh if is_tanh else None
    return type(module) if type(module) in ACTIVATION_CODES else None


def _list_inner_layers(module: nn.Module) -> list[nn.Module] | None:
    """List the modules in a `SkipConcat` if the first one, and no other, is linear; else None."""
    if type(module) is not SkipConcat:
        return None
    inner = list(module)
    linear = [type(each) is nn.Linear for each in inner]
    return inner if linear[:1] == [True] and sum(linear) == 1 else None


def has_distinct_masks(dropouts: Sequence[KeyedDropout | None]) -> bool:
    """Check that no dropout module occurs twice, because each call would draw another mask."""
    there = [id(each) for each in dropouts if each is not None]
    return len(set(there)) == len(there)


def is_flatten(module: nn.Module) -> bool:
    """Check whether a module only flattens each record to one row."""
    return type(module) is nn.Flatten and repr(module) == FLATTEN_REPR


def has_expected_parameters(layer: nn.Module, inputs: int, *sides: int) -> bool:
    """Check that a layer has exactly the parameters that its settings imply.

    Args:
        layer: Linear layer, or convolution without groups.
        inputs: Number of input features or channels.
        sides: Sides of the convolution kernel.
    """
    own, weight, bias = list(layer.parameters()), layer.weight, layer.bias
    told = [each for each in (weight, bias) if each is not None]
    if not all(isinstance(each, nn.Parameter) for each in told) or len(own) != len(told):
        return False  # kernels would ignore further parameters, and tensors that are no parameters
    assert isinstance(weight, Tensor)
    shaped = weight.shape[1:] == (inputs, *sides)
    shaped &= bias is None or (isinstance(bias, Tensor) and bias.shape == weight.shape[:1])
    return shaped and len({each.requires_grad for each in own}) == 1
