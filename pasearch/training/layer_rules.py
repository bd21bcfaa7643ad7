"""Layer rules: forward, backward, and norms and weighted sums of per-example gradients.

A layer rule serves one module type. The general rule, `LayerRule`, uses autograd and
`torch.func.vmap`. It holds for any layer that maps one tensor to one tensor and processes records
separately. Subclasses replace parts of it by closed formulas.

Let a be the input of a layer, and d the gradient of the summed loss with respect to its output; row
i of d depends on record i only. The gradient g_i of record i, its norm, and weighted sums with
factors c_i are:

    Linear, one row per record      ||g_i||^2 = (||a_i||^2 + 1) ||d_i||^2
                                    sum_i c_i g_i = (c * d)^T a
    Linear over L positions,        g_i = D_i A_i^T, A_i (inputs, L), D_i (outputs, L);
    Conv2d after unfolding          ||g_i||^2 from g_i itself, or sum((A_i^T A_i) * (D_i^T D_i)),
                                    whichever is cheaper (Bu et al. 2022)
    Lstm                            a Linear over its L steps: A_i holds [x_t, h_(t-1)], D_i the
                                    gradients of the gates
    Gru                             the same; two Linears, of [x_t, h_(t-1)] and [x_t, r h_(t-1)]
    TokenEmbedding                  d summed over the positions of each token, except padding;
                                    ||g_i||^2 is the sum of the squares of these sums
    GroupNorm, LayerNorm            weight: sum over positions of d * xhat; bias: of d
    Conv2d, weight-standardised     the Conv2d's g_i times the Jacobian of the filters, formed
    any other layer                 g_i by torch.func.vmap of the layer's vector-Jacobian product

A position is an index at which a layer applies the same weights: a pixel, a time step. "Formed"
gradients are the g_i themselves, as tensors in memory.

Every squared norm is at least the exact one, up to the `NORM_SLACK` of the clipping methods. The
product of Gram matrices subtracts large numbers from each other, so it is computed in float64.

Source: Goodfellow 2015 (Linear), Bu et al. 2022 (Conv2d), Higham 2002, section 3.1 (rounding).
Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from pasearch.data.column import PADDING_TOKEN
from pasearch.errors import UsageError
from pasearch.spaces.modules import (
    Gru,
    KeyedDropout,
    Lstm,
    Recurrent,
    TemperedSigmoid,
    TokenEmbedding,
    WeightStandardisedConv2d,
    sigmoid,
    sigmoid_,
)

MAX_UNFOLDED_VALUES = {"cpu": 2**23, "cuda": 2**28}
"""Maximum count of numbers in an unfolded input of a convolution, by device: 32 MiB and 1 GiB."""
MAX_FLOAT64_VALUES = {"cpu": 2**22, "cuda": 2**27}
"""Maximum count of numbers converted to float64 at once, by device, to limit memory."""
MIN_CHANNELS_FOR_INNERMOST_POOLING = 4
"""Minimum number of channels for which max pooling is faster in the channels-last layout."""
ROUNDINGS_PER_TERM = 2.0
"""Rounding error of each term of a sum over positions, in machine epsilons: half of one for the
product and half for the addition, in the norm and again in the weighted sum.
"""
MAX_NORM_PIECE_LENGTH = 256
"""Maximum number of values in one float32 norm; longer vectors are divided into pieces."""
FORMED_GRADIENTS_KEY = "formed"
"""Key of `CapturedLayer.cache` for the per-example gradients that the norms formed."""

CachedValues = dict[str, tuple[Tensor, ...]]
Buffers = Mapping[int, Tensor]
ParameterSums = Iterator[tuple[Tensor, Tensor]]
NO_BUFFERS: Buffers = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CapturedLayer:
    """Input and output gradient of one trainable layer in one backward pass.

    Args:
        layer: Module that owns the parameters.
        input: Input a, (batch, ...).
        output_gradient: Gradient d of the summed loss in the output, (batch, ...).
        views: Number of rows per record (augmented copies), adjacent in the batch.
        cache: Intermediate results of the rule, by name, (batch, ...) each: computed for the norms
            and used again for the sums.
    """

    layer: nn.Module
    input: Tensor
    output_gradient: Tensor
    views: int = 1
    cache: CachedValues = field(default_factory=dict, init=False, repr=False)

    def split(self, rows: int) -> list[CapturedLayer]:
        """Split the batch into blocks of `rows` rows each; the last block may have fewer."""
        blocks = [
            CapturedLayer(self.layer, a, d, self.views)
            for a, d in zip(self.input.split(rows), self.output_gradient.split(rows), strict=True)
        ]
        for name, values in self.cache.items():
            parts = zip(*(each.split(rows) for each in values), strict=True)
            for block, part in zip(blocks, parts, strict=True):
                block.cache[name] = part
        return blocks

    def with_zero_rows(self, bad: Tensor) -> CapturedLayer:
        """Copy this with the rows set to 0 that are marked in `bad`, bool, (batch,)."""
        found = replace(
            self,
            input=zero_rows(self.input, bad),
            output_gradient=zero_rows(self.output_gradient, bad),
        )
        for name, values in self.cache.items():
            found.cache[name] = tuple(zero_rows(each, bad) for each in values)
        return found


def make_layer_error(layer: nn.Module, fault: str, remedy: str) -> UsageError:
    """Create the error for a layer without separable per-example gradients."""
    return UsageError(
        f"Layer {layer} {fault}, so per-example gradients cannot be separated: {remedy}."
    )


def make_overwritten_error(layer: nn.Module) -> UsageError:
    """Create the error for a layer whose captured tensor was overwritten."""
    return make_layer_error(layer, "saw a tensor that was then overwritten", "work out of place")


class LayerRule:
    """General rule, for any layer: autograd, and per-example gradients in memory.

    Subclasses override methods with closed formulas. Rules have no state.
    """

    parameter_names = frozenset({"weight", "bias"})
    """Names of the parameters that the rule supports."""

    def accepts(self, names: set[str]) -> bool:
        """Check whether the rule supports a layer with parameters of these names."""
        return names <= self.parameter_names

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Any, Any]:
        """Compute the module's output, and the values that `backward` needs (its `saved`)."""
        with torch.enable_grad():
            given = x.detach()
            if x.is_floating_point():
                given.requires_grad_()
            try:
                output = module(given.view_as(given))
            except RuntimeError as error:
                if "in-place operation" not in str(error):
                    raise
                raise make_overwritten_error(module) from error
        return output, (given, output)

    def backward(self, module: nn.Module, d: Tensor, saved: Any) -> Tensor:
        """Compute the gradient with respect to the input from the output gradient d."""
        given, output = saved
        if not output.requires_grad:
            return torch.zeros_like(given)
        (found,) = torch.autograd.grad(output, given, d, allow_unused=True)
        return torch.zeros_like(given) if found is None else found

    def compute_cached_values(self, module: nn.Module, d: Tensor, saved: Any) -> CachedValues:
        """Compute the initial `CapturedLayer.cache`; called before `backward`."""
        return {}

    def list_parameter_shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        """List the parameter shapes that the layer's settings imply, by name.

        Empty if the rule does not depend on them. If a user had replaced a parameter by one of
        another shape, norms and sums would belong to different gradients.
        """
        return {}

    def count_positions(self, output: Tensor) -> int:
        """Count the positions of a record that one matrix product with the weight processes."""
        return 0

    def count_formed_gradient_values(self, layer: nn.Module, output: Tensor) -> int:
        """Count the numbers of each record's formed gradient; 0 if it is never formed whole."""
        return sum(p.numel() for p in layer.parameters(recurse=False) if p.requires_grad)

    def squared_norms(self, captured: CapturedLayer) -> Tensor:
        """Compute ||g_i||^2 over all trainable parameters of the layer, (records,).

        If a record has several rows (views), g_i is the sum of their gradients. Formed gradients
        are cached for `weighted_sum`: a second computation could round differently, or draw other
        random numbers.
        """
        formed = captured.cache[FORMED_GRADIENTS_KEY] = tuple(
            self.form_gradients(captured).values()
        )
        return torch.stack(
            [bound_squared_formed_norms(gradient, captured.views) for gradient in formed]
        ).sum(0)

    def weighted_sum(
        self, captured: CapturedLayer, factors: Tensor, into: Buffers = NO_BUFFERS
    ) -> ParameterSums:
        """Yield pairs of a trainable parameter and its sum of c_i g_i over rows i.

        With several positions or views, the terms of one record may be far larger than their sum.
        Such sums are computed in float64; in float32 these terms would change the rounding of other
        records' terms.

        Args:
            captured: Captured layer.
            factors: Factor c of each row, (batch,).
            into: Output buffers by id of the parameter; a rule may write its sum there and yield
                the buffer.
        """
        own = [p for p in captured.layer.parameters(recurse=False) if p.requires_grad]
        dropped = factors == 0.0
        for parameter, gradient in zip(own, captured.cache[FORMED_GRADIENTS_KEY], strict=True):
            # The gradient may not be finite where the record's input was set to 0.
            kept = zero_rows(gradient, dropped)
            wide = torch.float64 if captured.views > 1 else factors.dtype
            found = torch.einsum("b,b...->...", factors.to(wide), kept.to(wide))
            yield parameter, found.to(factors.dtype)

    def form_gradients(self, captured: CapturedLayer) -> dict[str, Tensor]:
        """Compute g_i for each trainable parameter, by its name, (batch, ...)."""
        own = dict(captured.layer.named_parameters(recurse=False))
        trained = {name: p.detach() for name, p in own.items() if p.requires_grad}

        def gradient(a: Tensor, d: Tensor) -> dict[str, Tensor]:
            def output(parameters: dict[str, Tensor]) -> Tensor:
                return torch.func.functional_call(captured.layer, parameters, (a[None],))[0]

            pull_back = torch.func.vjp(output, trained)[1]
            return pull_back(d)[0]

        return torch.func.vmap(gradient)(captured.input, captured.output_gradient)


class FlattenRule(LayerRule):
    """Rule of nn.Flatten."""

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Tensor, torch.Size]:
        return module(x), x.shape

    def backward(self, module: nn.Module, d: Tensor, saved: torch.Size) -> Tensor:
        return d.reshape(saved)


class ActivationRule(LayerRule):
    """Rule of an activation whose derivative is a function of its output.

    Args:
        function: Function from input to output.
        derivative: Function from the output's gradient and the output to the input's gradient.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        derivative: Callable[[Tensor, Tensor], Tensor],
    ):
        self._function, self._derivative = function, derivative

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        output = self._function(x)
        return output, output

    def backward(self, module: nn.Module, d: Tensor, saved: Tensor) -> Tensor:
        return self._derivative(d, saved)


class TemperedSigmoidRule(LayerRule):
    """Rule of TemperedSigmoid: s / 2 tanh(T x / 2) + s / 2 - o."""

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(module, TemperedSigmoid)
        bent = torch.tanh(0.5 * module.temperature * x)
        half = 0.5 * module.scale
        return bent * half + (half - module.offset), bent

    def backward(self, module: nn.Module, d: Tensor, saved: Tensor) -> Tensor:
        assert isinstance(module, TemperedSigmoid)
        return tanh_backward(d, saved) * (0.25 * module.scale * module.temperature)


class DropoutRule(LayerRule):
    """Rule of KeyedDropout: forward draws the module's next mask, backward applies it."""

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
        assert isinstance(module, KeyedDropout)
        mask = module.draw_mask(x)
        return module.apply_mask(x, mask), mask

    def backward(self, module: nn.Module, d: Tensor, saved: Tensor | None) -> Tensor:
        assert isinstance(module, KeyedDropout)
        return module.apply_mask(d, saved)


class MaxPoolRule(LayerRule):
    """Rule of nn.MaxPool2d: on a CPU 2.5 times as fast as torch, with identical results.

    In the default layout torch processes one channel after another; in the channels-last layout
    many at once. The backward pass is faster in the default layout.
    """

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Any, Any]:
        assert isinstance(module, nn.MaxPool2d)
        few = x.ndim != 4 or x.shape[1] < MIN_CHANNELS_FOR_INNERMOST_POOLING
        if few or x.device.type != "cpu" or module.return_indices:
            return super().forward(module, x)
        sizes = module.kernel_size, module.stride, module.padding, module.dilation
        window = [[each, each] if isinstance(each, int) else list(each) for each in sizes]
        window = (*window, module.ceil_mode)
        innermost = x.contiguous(memory_format=torch.channels_last)
        pool: Any = functional.max_pool2d_with_indices
        maxima, indices = pool(innermost, *window)
        return maxima.contiguous(), (x, indices.contiguous(), window)

    def backward(self, module: nn.Module, d: Tensor, saved: Any) -> Tensor:
        if len(saved) == 2:
            return super().backward(module, d, saved)
        x, indices, window = saved
        return torch.ops.aten.max_pool2d_with_indices_backward(
            d.contiguous(), x.contiguous(), *window, indices
        )


class LinearRule(LayerRule):
    """Rule of nn.Linear on (batch, inputs) or (batch, ..., inputs); middle axes are positions."""

    def list_parameter_shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        assert isinstance(layer, nn.Linear)
        return {"weight": (layer.out_features, layer.in_features), "bias": (layer.out_features,)}

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Tensor, None]:
        assert isinstance(module, nn.Linear)
        return functional.linear(x, module.weight, module.bias), None

    def backward(self, module: nn.Module, d: Tensor, saved: None) -> Tensor:
        assert isinstance(module, nn.Linear)
        return d @ module.weight

    def count_positions(self, output: Tensor) -> int:
        return output[0].numel() // output.shape[-1]

    def count_formed_gradient_values(self, layer: nn.Module, output: Tensor) -> int:
        """Count the numbers of each record's formed gradient; 0 if a record has one position."""
        return super().count_formed_gradient_values(layer, output) if output.ndim > 2 else 0

    def squared_norms(self, captured: CapturedLayer) -> Tensor:
        """Compute (||a||^2 + 1) ||d||^2, or `bound_squared_position_norms`, (records,)."""
        layer, a, d = captured.layer, captured.input, captured.output_gradient
        assert isinstance(layer, nn.Linear)
        if a.ndim > 2 or captured.views > 1:
            rows = (v.reshape(len(v), -1, v.shape[-1]).transpose(1, 2)[:, None] for v in (a, d))
            a, d = (views_to_positions(each, captured.views) for each in rows)
            return bound_squared_position_norms(layer.weight, layer.bias, a, d)
        squares = bound_squared_row_norms(a) if layer.weight.requires_grad else 0.0
        if layer.bias is not None and layer.bias.requires_grad:
            squares = squares + 1.0
        return squares * bound_squared_row_norms(d)

    def weighted_sum(
        self, captured: CapturedLayer, factors: Tensor, into: Buffers = NO_BUFFERS
    ) -> ParameterSums:
        """Yield the weight with (c * d)^T a and the bias with the sum of c * d."""
        layer = captured.layer
        assert isinstance(layer, nn.Linear)
        a, d = captured.input, multiply_rows(captured.output_gradient, factors)
        if a.ndim > 2 or captured.views > 1:
            yield from sum_outer_products(layer.weight, (layer.bias,), (a, d))
            return
        if layer.weight.requires_grad:
            yield layer.weight, torch.mm(d.T, a, out=into.get(id(layer.weight)))
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, torch.sum(d, dim=0, out=into.get(id(layer.bias)))


class Conv2dRule(LayerRule):
    """Rule of nn.Conv2d with any kernel, stride, padding, groups and dilation."""

    def list_parameter_shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        assert isinstance(layer, nn.Conv2d)
        channels = layer.in_channels // layer.groups
        filters = (layer.out_channels, channels, *layer.kernel_size)
        return {"weight": filters, "bias": (layer.out_channels,)}

    def count_positions(self, output: Tensor) -> int:
        return output[0, 0].numel()

    def count_formed_gradient_values(self, layer: nn.Module, output: Tensor) -> int:
        """Return 0: `MAX_UNFOLDED_VALUES` limits the memory of formed gradients."""
        return 0

    def squared_norms(self, captured: CapturedLayer) -> Tensor:
        """Compute ||g_i||^2, (records,): the unfolded convolution is a linear layer.

        Each output position of the convolution is one position of that layer.
        """
        layer, d = captured.layer, captured.output_gradient
        assert isinstance(layer, nn.Conv2d)
        if d.ndim != 4:
            raise make_layer_error(
                layer, "saw one image, not a batch", "keep records the first axis"
            )
        a = _pad_input(layer, captured.input)
        taps = layer.weight[0].numel() * layer.groups
        numbers = max(taps * max(1, d[0, 0].numel()) * captured.views, layer.weight.numel())
        rows = captured.views * max(1, _find_device_limit(MAX_UNFOLDED_VALUES, d) // numbers)
        parts = list(zip(a.split(rows), d.split(rows), strict=True))
        cache = captured.cache if len(parts) == captured.views == 1 else {}
        squares = [self._unfolded_norms(layer, *part, captured.views, cache) for part in parts]
        squares = squares[0] if len(squares) == 1 else torch.cat(squares)
        # A stride may skip a pixel. If such a pixel is NaN, the norm must be NaN, too.
        if layer.weight.requires_grad:
            return squares
        return squares + 0.0 * _bound_image_norms(a, captured.views)

    def _unfolded_norms(
        self, layer: nn.Conv2d, a: Tensor, d: Tensor, views: int, cache: CachedValues
    ) -> Tensor:
        """Compute ||g_i||^2 of records whose patches fit into memory, (records,)."""
        patches = _extract_patches(layer, a, d)
        return self._squared_position_norms(
            layer,
            views_to_positions(patches.unflatten(1, (layer.groups, -1)), views),
            views_to_positions(d.flatten(2).unflatten(1, (layer.groups, -1)), views),
            _bound_image_norms(a, views) * _count_patches_per_pixel(layer) ** 0.5,
            cache,
        )

    def _squared_position_norms(
        self, layer: nn.Conv2d, a: Tensor, d: Tensor, a_norms: Tensor, cache: CachedValues
    ) -> Tensor:
        return bound_squared_position_norms(layer.weight, layer.bias, a, d, a_norms, cache)

    def _map_to_weight_gradient(self, layer: nn.Conv2d, gradient: Tensor) -> Tensor:
        """Map gradients with respect to the filters to gradients of the weight: unchanged here."""
        return gradient

    def weighted_sum(
        self, captured: CapturedLayer, factors: Tensor, into: Buffers = NO_BUFFERS
    ) -> ParameterSums:
        """Yield weight and bias with the convolution's gradient for the output gradient c * d.

        If `squared_norms` formed the g_i, yield the sums of c_i g_i.
        """
        layer = captured.layer
        assert isinstance(layer, nn.Conv2d)
        if FORMED_GRADIENTS_KEY in captured.cache:
            for parameter, each in zip(
                (layer.weight, layer.bias), captured.cache[FORMED_GRADIENTS_KEY], strict=True
            ):
                if parameter is not None and parameter.requires_grad:
                    yield parameter, (factors @ each.flatten(1)).view_as(parameter)
            return
        d = multiply_rows(captured.output_gradient, factors)
        if layer.weight.requires_grad:
            gradient = sum_filter_gradients(layer, _pad_input(layer, captured.input), d)
            yield layer.weight, self._map_to_weight_gradient(layer, gradient).to(layer.weight.dtype)
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, sum_in_float64(d, 0, 2, 3)


class WeightStandardisedRule(Conv2dRule):
    """Rule of a convolution with standardised filters v / s (v centred weights, s their scale).

    With G the gradient with respect to one filter v / s, and C the operator that subtracts the
    mean, the gradient with respect to the weights is

        g = C G / s - v <v, G> / s^3.

    This is linear in G, so the weighted sum of G is mapped once. A norm needs every record's G in
    memory. G may be far larger than g: another reason for float64.
    """

    def _squared_position_norms(
        self, layer: nn.Conv2d, a: Tensor, d: Tensor, a_norms: Tensor, cache: CachedValues
    ) -> Tensor:
        squares = bound_squared_position_norms(
            layer.weight.detach(), layer.bias, a, d
        )  # the bias alone
        squares = squares + 0.0 * a_norms
        if layer.weight.requires_grad:
            rows = max(1, _find_device_limit(MAX_UNFOLDED_VALUES, d) // layer.weight.numel())
            parts = zip(a.split(rows), d.split(rows), strict=True)
            squares = squares + torch.cat([self._weight_squares(layer, *part) for part in parts])
        return squares

    def _weight_squares(self, layer: nn.Conv2d, a: Tensor, d: Tensor) -> Tensor:
        """Compute ||g||^2 of the weight, enlarged by a bound of its rounding error, (records,).

        Rounding happens in the sum over positions, in C and in <v, G>.
        """
        assert isinstance(layer, WeightStandardisedConv2d)
        scale = layer.centred()[1].detach()
        taps, length = layer.weight[0].numel(), a.shape[3]
        formed = (d @ a.transpose(2, 3)).flatten(1, 2).unflatten(2, layer.weight.shape[1:])
        unit = ROUNDINGS_PER_TERM * torch.finfo(a.dtype).eps
        hidden = unit * taps * compute_row_norms(formed / scale)
        if length > 1:
            d_norms = compute_row_norms(d.flatten(1, 2) / scale.view(-1, 1))
            hidden = hidden + unit * length * compute_row_norms(a) * d_norms
        return (compute_row_norms(self._map_to_weight_gradient(layer, formed)) + hidden).square()

    def _map_to_weight_gradient(self, layer: nn.Conv2d, gradient: Tensor) -> Tensor:
        assert isinstance(layer, WeightStandardisedConv2d)
        centred, scale = (each.detach() for each in layer.centred())
        own = (-3, -2, -1)  # of one filter
        along = (centred / scale * gradient).sum(dim=own, keepdim=True)
        middle = gradient - gradient.mean(dim=own, keepdim=True)
        return (middle - centred / scale * along) / scale


class NormRule(LayerRule):
    """Rule of nn.GroupNorm and nn.LayerNorm: sums of d * xhat (weight) and of d (bias).

    xhat is the normalised input. The sums are over the positions that share a weight.
    """

    def list_parameter_shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        if isinstance(layer, nn.GroupNorm):
            return dict.fromkeys(self.parameter_names, (layer.num_channels,))
        assert isinstance(layer, nn.LayerNorm)
        return dict.fromkeys(self.parameter_names, tuple(layer.normalized_shape))

    def squared_norms(self, captured: CapturedLayer) -> Tensor:
        """Compute ||g_i||^2, enlarged by a bound of the rounding error, (records,)."""
        layer, (xhat, d) = captured.layer, self._reshape_to_positions(captured)
        assert isinstance(layer, (nn.GroupNorm, nn.LayerNorm))
        xhat, d = views_to_positions(xhat, captured.views), views_to_positions(d, captured.views)
        length = d.shape[2]
        rounding = ROUNDINGS_PER_TERM * length * torch.finfo(d.dtype).eps if length > 1 else 0.0
        squares = torch.zeros(len(d), dtype=d.dtype, device=d.device)
        d_norms = compute_norms_along(d, 2)
        if layer.weight.requires_grad:
            hidden = compute_row_norms(compute_norms_along(xhat, 2) * d_norms)
            squares = (
                squares + (compute_row_norms((xhat * d).sum(dim=2)) + rounding * hidden).square()
            )
        if layer.bias is not None and layer.bias.requires_grad:
            hidden = length**0.5 * compute_row_norms(d_norms)
            squares = squares + (compute_row_norms(d.sum(dim=2)) + rounding * hidden).square()
        return squares

    def weighted_sum(
        self, captured: CapturedLayer, factors: Tensor, into: Buffers = NO_BUFFERS
    ) -> ParameterSums:
        """Yield the weight with the sum of c * d * xhat and the bias with the sum of c * d."""
        layer, (xhat, d) = captured.layer, self._reshape_to_positions(captured)
        assert isinstance(layer, (nn.GroupNorm, nn.LayerNorm))
        d = multiply_rows(d, factors)
        if layer.weight.requires_grad:
            yield layer.weight, sum_in_float64(xhat * d, 0, 2).view_as(layer.weight)
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, sum_in_float64(d, 0, 2).view_as(layer.bias)

    def _reshape_to_positions(self, captured: CapturedLayer) -> tuple[Tensor, Tensor]:
        """Compute xhat; return it and d as (batch, weights, positions)."""
        layer, x, d = captured.layer, captured.input, captured.output_gradient
        if isinstance(layer, nn.GroupNorm):
            xhat = functional.group_norm(x, layer.num_groups, eps=layer.eps)
            return xhat.reshape(*x.shape[:2], -1), d.reshape(*x.shape[:2], -1)
        assert isinstance(layer, nn.LayerNorm)
        axes = len(layer.normalized_shape)
        if x.ndim == axes:
            raise make_layer_error(layer, "normalises over records", "keep records the first axis")
        xhat = functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
        shape = (len(x), -1, layer.weight.numel())
        return xhat.reshape(shape).transpose(1, 2), d.reshape(shape).transpose(1, 2)


class EmbeddingRule(LayerRule):
    """Rule of TokenEmbedding: the gradient of a token's row is the sum of d over its positions.

    No gradient of vocabulary times units per record is formed. A record of L positions has at most
    L distinct tokens; the sum of each is kept at the first position of that token, (batch, L,
    units). Padding has no gradient.
    """

    parameter_names = frozenset({"weight"})

    def list_parameter_shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        assert isinstance(layer, TokenEmbedding)
        return {"weight": (layer.tokens, layer.units)}

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Tensor, None]:
        return module(x), None

    def backward(self, module: nn.Module, d: Tensor, saved: None) -> Tensor:
        """Return 0: token numbers have no gradient."""
        return d.new_zeros(d.shape[:-1])

    def count_formed_gradient_values(self, layer: nn.Module, output: Tensor) -> int:
        """Count the float64 sums of tokens, (L, units), and the equal pairs, (L, L) bytes."""
        return 2 * output[0].numel() + output.shape[1] ** 2 // 2

    def squared_norms(self, captured: CapturedLayer) -> Tensor:
        """Compute the sum of squares of the tokens' sums, (records,), with a rounding bound.

        The factor c rounds each term of the weighted sum, by u ||d|| for one position. For a token
        with m positions, these errors add up to at most u sqrt(m) times the norm of its terms.
        """
        numbers, d = self._list_terms(captured, captured.views)
        length = numbers.shape[1]
        # Index of the first position with the same token, for each position.
        first = (numbers[:, :, None] == numbers[:, None, :]).byte().argmax(dim=2)
        sums = torch.zeros_like(d, dtype=torch.float64)
        sums.scatter_add_(1, first[..., None].expand_as(d), d.double())
        rounding = ROUNDINGS_PER_TERM * torch.finfo(d.dtype).eps * length**0.5
        rounding = rounding if length > 1 else 0.0
        norms = sums.flatten(1).norm(dim=1) + rounding * d.double().flatten(1).norm(dim=1)
        return norms.square().to(d.dtype)

    def weighted_sum(
        self, captured: CapturedLayer, factors: Tensor, into: Buffers = NO_BUFFERS
    ) -> ParameterSums:
        """Yield the weight with c * d added to the rows of its tokens, in float64."""
        layer, (numbers, d) = captured.layer, self._list_terms(captured, 1)
        assert isinstance(layer, TokenEmbedding)
        found = torch.zeros(layer.weight.shape, dtype=torch.float64, device=d.device)
        terms = multiply_rows(d, factors)
        if d.device.type == "cpu":  # a GPU would have to wait for the number of words
            words = numbers != PADDING_TOKEN
            numbers, terms = numbers[words], terms[words]
        # Without atomic additions, so that a GPU adds in the same order in each run.
        found.index_put_((numbers,), terms.double(), accumulate=True)
        yield layer.weight, found.to(d.dtype)

    def form_gradients(self, captured: CapturedLayer) -> dict[str, Tensor]:
        """Compute g_i, (batch, tokens, units): much memory, used for noise on each record only."""
        layer, (numbers, d) = captured.layer, self._list_terms(captured, 1)
        assert isinstance(layer, TokenEmbedding)
        found = d.new_zeros(len(d), *layer.weight.shape)
        return {"weight": found.scatter_add_(1, numbers[..., None].expand_as(d), d)}

    def _list_terms(self, captured: CapturedLayer, views: int) -> tuple[Tensor, Tensor]:
        """List token numbers, (records, L), and gradients, (records, L, units); padding has 0."""
        layer, d = captured.layer, captured.output_gradient
        assert isinstance(layer, TokenEmbedding)
        if d.ndim != 3:
            raise make_layer_error(layer, "saw no batch of texts", "give it (batch, length)")
        numbers, kept = layer.find_tokens(captured.input)
        d = d * kept[..., None]
        numbers = numbers.unflatten(0, (-1, views)).flatten(1, 2)
        return numbers, d.unflatten(0, (-1, views)).flatten(1, 2)


class RecurrentRule(LayerRule):
    """Base rule of recurrent layers: Linears to the gates z_t, with time steps as positions."""

    parameter_names = frozenset({"weight", "bias", "second_bias"})

    def run_forward(self, module: Recurrent, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Compute the states, (batch, steps, units), and a tape for `run_backward`."""
        raise NotImplementedError

    def run_backward(self, tape: tuple[Tensor, ...], d_states: Tensor) -> Tensor:
        """Compute the gradient of z_t, (batch, steps, gates * units), from that of the states."""
        raise NotImplementedError

    def list_linears(self, x: Tensor, before: Tensor, saved: dict[str, Any]) -> list[Tensor]:
        """List the inputs of the Linears, each (steps, batch, ...), by rows of the weight.

        Args:
            x: Inputs, (steps, batch, inputs).
            before: States h_(t-1), (steps, batch, units).
            saved: Second result of `forward`.
        """
        return [torch.cat([x, before], dim=2)]

    def count_linear_outputs(self, units: int) -> list[int]:
        """List the numbers of outputs of the Linears; their sum is gates * units."""
        raise NotImplementedError

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
        assert isinstance(module, Recurrent)
        module.check(x)
        states, tape = self.run_forward(module, x)
        return module.select_output(states), {"x": x, "states": states, "tape": tape}

    def backward(self, module: nn.Module, d: Tensor, saved: dict[str, Any]) -> Tensor:
        assert isinstance(module, Recurrent)
        return self._gate_gradients(module, d, saved) @ module.weight[:, : module.inputs]

    def compute_cached_values(
        self, module: nn.Module, d: Tensor, saved: dict[str, Any]
    ) -> CachedValues:
        """Compute the inputs of the Linears and the gates' gradients, each (batch, steps, ...)."""
        before = functional.pad(saved["states"].transpose(0, 1)[:-1], (0, 0, 0, 0, 1, 0))
        inputs = self.list_linears(saved["x"].transpose(0, 1), before, saved)
        gates = self._gate_gradients(module, d, saved)
        return {"steps": (*(each.transpose(0, 1) for each in inputs), gates)}

    def list_parameter_shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        assert isinstance(layer, Recurrent)
        gates = layer.gates * layer.units
        weight = gates, layer.inputs + layer.units
        return {"weight": weight, "bias": (gates,), "second_bias": (gates,)}

    def count_positions(self, output: Tensor) -> int:
        """Return 1: each time step is a separate product, because it needs the step before."""
        return 1

    def squared_norms(self, captured: CapturedLayer) -> Tensor:
        """Compute `bound_squared_position_norms`; both biases have the same gradient."""
        layer, squares = captured.layer, []
        assert isinstance(layer, Recurrent)
        for pair in self._list_pairs(captured):
            a, d = (views_to_positions(v.transpose(1, 2)[:, None], captured.views) for v in pair)
            squares += [
                bound_squared_position_norms(layer.weight, layer.bias, a, d),
                bound_squared_position_norms(layer.weight.detach(), layer.second_bias, a, d),
            ]
        return torch.stack(squares).sum(dim=0)

    def weighted_sum(
        self, captured: CapturedLayer, factors: Tensor, into: Buffers = NO_BUFFERS
    ) -> ParameterSums:
        """Yield the weight with (c * d)^T a and each bias with the sum of c * d."""
        layer = captured.layer
        assert isinstance(layer, Recurrent)
        # The step axis is first in memory, so nothing is copied.
        pairs = [
            (a.transpose(0, 1), multiply_rows(d, factors).transpose(0, 1))
            for a, d in self._list_pairs(captured)
        ]
        yield from sum_outer_products(layer.weight, (layer.bias, layer.second_bias), *pairs)

    def form_gradients(self, captured: CapturedLayer) -> dict[str, Tensor]:
        """Compute g_i from the gradients of the gates, by parameter name, (batch, ...)."""
        pairs = self._list_pairs(captured)
        formed = {
            "weight": torch.cat([d.transpose(1, 2) @ a for a, d in pairs], dim=1),
            "bias": torch.cat([d.sum(dim=1) for _, d in pairs], dim=1),
        }
        formed["second_bias"] = formed["bias"]
        own = dict(captured.layer.named_parameters(recurse=False))
        return {name: formed[name] for name, p in own.items() if p.requires_grad}

    def _list_pairs(self, captured: CapturedLayer) -> list[tuple[Tensor, Tensor]]:
        """List a and d of each Linear from the cache; compute them if hooks captured the layer."""
        layer = captured.layer
        assert isinstance(layer, Recurrent)
        if "steps" not in captured.cache:
            with torch.no_grad():
                saved = self.forward(layer, captured.input)[1]
                captured.cache.update(
                    self.compute_cached_values(layer, captured.output_gradient, saved)
                )
        *inputs, gates = captured.cache["steps"]
        parts = gates.split(self.count_linear_outputs(layer.units), dim=2)
        return list(zip(inputs, parts, strict=True))

    def _gate_gradients(self, module: nn.Module, d: Tensor, saved: dict[str, Any]) -> Tensor:
        """Compute the gradients of the gates once, (batch, steps, gates * units)."""
        assert isinstance(module, Recurrent)
        if "gates" not in saved:
            d_states = d
            if not module.sequence:
                d_states = torch.zeros_like(saved["states"])
                d_states[:, -1] = d
            saved["gates"] = self.run_backward(saved["tape"], d_states)
        return saved["gates"]


class LstmRule(RecurrentRule):
    """Rule of Lstm: one Linear from [x_t, h_(t-1)] to all gates."""

    def run_forward(self, module: Recurrent, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return run_lstm_forward(module.projected(x), module.recurrent)

    def run_backward(self, tape: tuple[Tensor, ...], d_states: Tensor) -> Tensor:
        return run_lstm_backward(tape, d_states)

    def count_linear_outputs(self, units: int) -> list[int]:
        return [4 * units]


class GruRule(RecurrentRule):
    """Rule of Gru: Linears from [x_t, h_(t-1)] to r and u, and from [x_t, r h_(t-1)] to n."""

    def run_forward(self, module: Recurrent, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return run_gru_forward(module.projected(x), module.recurrent)

    def run_backward(self, tape: tuple[Tensor, ...], d_states: Tensor) -> Tensor:
        return run_gru_backward(tape, d_states)

    def list_linears(self, x: Tensor, before: Tensor, saved: dict[str, Any]) -> list[Tensor]:
        reset = saved["tape"][1]
        return [torch.cat([x, before], dim=2), torch.cat([x, reset], dim=2)]

    def count_linear_outputs(self, units: int) -> list[int]:
        return [2 * units, units]


def run_gru_forward(projected: Tensor, recurrent: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute all states of a GRU by the formulas of `Gru`.

    Args:
        projected: Projected inputs, (batch, steps, 3 units).
        recurrent: Recurrent weights, (units, 3 units).

    Returns:
        States, (batch, steps, units), and the inputs of `run_gru_backward`: the gates (r, u, n) and
        r h_(t-1), the states before each step, all (steps, batch, ...), and the recurrent weights.
    """
    gates = projected.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    steps, batch, units = *gates.shape[:2], len(recurrent)
    resets, states = gates.new_empty(steps, batch, units), gates.new_zeros(steps + 1, batch, units)
    early, late = (each.contiguous() for each in recurrent.split([2 * units, units], dim=1))
    for step, z in enumerate(gates):
        both, n = z.split([2 * units, units], dim=1)
        both += states[step] @ early
        r, u = sigmoid_(both).split(units, dim=1)
        torch.mul(r, states[step], out=resets[step])
        n += resets[step] @ late
        torch.mul(u, states[step], out=states[step + 1]).addcmul_(1.0 - u, n.tanh_())
    return states[1:].transpose(0, 1), (gates, resets, states[:-1], recurrent)


def run_gru_backward(tape: tuple[Tensor, ...], d_states: Tensor) -> Tensor:
    """Compute the gradient with respect to the projected inputs, (batch, steps, 3 units).

    Args:
        tape: Second result of `run_gru_forward`.
        d_states: Gradient with respect to the states, (batch, steps, units).

    The recursion goes from the last step to the first, with e the gradient of h_t, and R_n, R_ru
    the recurrent weights of n and of both other gates:

        dn = e (1 - u),   du = e (h_(t-1) - n),   dr = (dz_n R_n^T) h_(t-1)
        e of the step before = d_(t-1) + e u + (dz_n R_n^T) r + dz_ru R_ru^T

    dz follows by the derivatives of sigmoid and tanh.
    """
    gates, _, before, recurrent = tape
    units = len(recurrent)
    found = torch.empty_like(gates)
    early, late = (each.T.contiguous() for each in recurrent.split([2 * units, units], dim=1))
    sigmoid_back = torch.ops.aten.sigmoid_backward
    later = gates.new_zeros(gates.shape[1], units)
    given = d_states.transpose(0, 1)
    for step in range(len(gates) - 1, -1, -1):
        e = given[step] + later
        r, u, n = gates[step].split(units, dim=1)
        to_r, to_u, to_n = found[step].split(units, dim=1)
        to_n.copy_(tanh_backward(e * (1.0 - u), n))
        to_u.copy_(sigmoid_back(e * (before[step] - n), u))
        of_reset = to_n @ late
        to_r.copy_(sigmoid_back(of_reset * before[step], r))
        later = (e * u).addcmul_(of_reset, r).addmm_(found[step][:, : 2 * units], early)
    return found.transpose(0, 1)


def run_lstm_forward(projected: Tensor, recurrent: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute all states of an LSTM, in buffers that are allocated once.

        z_t = p_t + h_(t-1) R                    i, f, g, o: sigmoid, sigmoid, tanh, sigmoid of z_t
        c_t = f c_(t-1) + i g                    h_t = o tanh(c_t)

    Args:
        projected: Projected inputs p, (batch, steps, 4 units).
        recurrent: Recurrent weights R, (units, 4 units).

    Returns:
        States h, (batch, steps, units), and the inputs of `run_lstm_backward`.

    Source: Hochreiter and Schmidhuber 1997; Gers et al. 2000.
    """
    # The step axis is first, so that each step is contiguous. The copy is overwritten.
    gates = projected.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    steps, batch, units = *gates.shape[:2], len(recurrent)
    states, memories, bent = gates.new_empty(3, steps, batch, units)
    state = memory = gates.new_zeros(batch, units)
    for step, z in enumerate(gates):
        z.addmm_(state, recurrent)
        i, f, g, o = z.split(units, dim=1)
        sigmoid_(z[:, : 2 * units])
        g.tanh_()
        sigmoid_(o)
        memory = torch.mul(f, memory, out=memories[step]).addcmul_(i, g)
        torch.tanh(memory, out=bent[step])
        state = torch.mul(o, bent[step], out=states[step])
    return states.transpose(0, 1), (gates, memories, bent, recurrent)


def run_lstm_backward(tape: tuple[Tensor, ...], d_states: Tensor) -> Tensor:
    """Compute the gradient with respect to the projected inputs, (batch, steps, 4 units).

    Args:
        tape: Second result of `run_lstm_forward`.
        d_states: Gradient with respect to the states, (batch, steps, units).

    The recursion goes from the last step to the first; d_t is step t of `d_states`:

        e_t = d_t + dz_(t+1) R^T             dc_t = e_t o (1 - tanh(c_t)^2) + f_(t+1) dc_(t+1)
        do = e_t tanh(c_t),   di = dc_t g,   df = dc_t c_(t-1),   dg = dc_t i

    dz_t follows by the derivatives of sigmoid and tanh.
    """
    gates, memories, bent, recurrent = tape
    steps, batch, units = bent.shape
    back = recurrent.T.contiguous()
    found = torch.empty_like(gates)
    of_memory, start, scratch, later = gates.new_zeros(4, batch, units)
    given = d_states.transpose(0, 1)
    tanh_back, sigmoid_back = torch.ops.aten.tanh_backward, torch.ops.aten.sigmoid_backward
    for step in range(steps - 1, -1, -1):
        of_state = given[step]
        if step + 1 < steps:
            of_state = torch.addmm(of_state, found[step + 1], back, out=later)
        i, f, g, o = gates[step].split(units, dim=1)
        to_i, to_f, to_g, to_o = found[step].split(units, dim=1)
        of_memory += tanh_back(torch.mul(of_state, o, out=scratch), bent[step])
        before = memories[step - 1] if step else start
        sigmoid_back.grad_input(torch.mul(of_memory, g, out=scratch), i, grad_input=to_i)
        sigmoid_back.grad_input(torch.mul(of_memory, before, out=scratch), f, grad_input=to_f)
        tanh_back.grad_input(torch.mul(of_memory, i, out=scratch), g, grad_input=to_g)
        sigmoid_back.grad_input(torch.mul(of_state, bent[step], out=scratch), o, grad_input=to_o)
        of_memory *= f
    return found.transpose(0, 1)


tanh_backward = torch.ops.aten.tanh_backward.default

GENERAL_RULE = LayerRule()
RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: LinearRule(),
    nn.Conv2d: Conv2dRule(),
    WeightStandardisedConv2d: WeightStandardisedRule(),
    nn.GroupNorm: NormRule(),
    nn.LayerNorm: NormRule(),
    Lstm: LstmRule(),
    Gru: GruRule(),
    TokenEmbedding: EmbeddingRule(),
    nn.Flatten: FlattenRule(),
    nn.Tanh: ActivationRule(torch.tanh, tanh_backward),
    nn.ReLU: ActivationRule(
        torch.relu, lambda d, h: torch.ops.aten.threshold_backward.default(d, h, 0.0)
    ),
    nn.Sigmoid: ActivationRule(sigmoid, torch.ops.aten.sigmoid_backward.default),
    TemperedSigmoid: TemperedSigmoidRule(),
    KeyedDropout: DropoutRule(),
    nn.MaxPool2d: MaxPoolRule(),
}


def find_rule(module: nn.Module) -> LayerRule:
    """Find the rule of a module's exact type; `GENERAL_RULE` if there is none.

    A subclass, or a layer with further parameters, may compute something else than its type, so it
    gets the general rule.
    """
    rule = RULES.get(type(module), GENERAL_RULE)
    names = {name for name, _ in module.named_parameters(recurse=False)}
    return rule if rule.accepts(names) else GENERAL_RULE


def _extract_patches(layer: nn.Conv2d, a: Tensor, d: Tensor) -> Tensor:
    """Extract the patches of padded images, (rows, patch size, positions).

    The result is that of `functional.unfold`, in a third of the time on a CPU.
    """
    rows, channels, down, right = a.stride()
    strides = [step * pixel for step, pixel in zip(layer.stride, (down, right), strict=True)]
    taps = [apart * pixel for apart, pixel in zip(layer.dilation, (down, right), strict=True)]
    shape = (*a.shape[:2], *layer.kernel_size, *d.shape[2:])
    view = a.as_strided(shape, (rows, channels, *taps, *strides))
    return view.reshape(a.shape[0], -1, d[0, 0].numel())


def _bound_image_norms(a: Tensor, views: int) -> Tensor:
    """Compute upper bounds of the norms of padded images, (records,), over all views."""
    return bound_norms(a if views == 1 else a.unflatten(0, (-1, views)))


def _count_patches_per_pixel(layer: nn.Conv2d) -> int:
    """Compute the maximum number of patches that contain one pixel.

    With it, ||A_i||^2 <= count * ||x_i||^2. Along one axis, let the kernel have k taps at a
    distance (dilation) of e pixels, and a stride of s. Then a pixel is read by every
    s / gcd(s, e)-th tap at most.
    """
    axes = zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    return math.prod(math.ceil(k * math.gcd(s, e) / s) for k, s, e in axes)


def _pad_input(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Pad the input as the layer does, so that later operations need no padding."""
    if layer.padding == "valid":
        return x
    if layer.padding == "same":
        totals = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        pairs = [(total // 2, total - total // 2) for total in totals]
    else:
        pairs = [(int(side), int(side)) for side in layer.padding]
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return functional.pad(x, (*pairs[1], *pairs[0]), mode=mode)


def _find_device_limit(limits: Mapping[str, int], values: Tensor) -> int:
    """Find the limit of the tensor's device type; that of a CPU for unknown devices."""
    return limits.get(values.device.type, limits["cpu"])


def bound_squared_position_norms(
    weight: Tensor,
    bias: Tensor | None,
    a: Tensor,
    d: Tensor,
    a_norms: Tensor | None = None,
    cache: CachedValues | None = None,
) -> Tensor:
    """Compute ||g_i||^2 of a layer with L positions, enlarged by a bound of the rounding error.

    Terms of different positions may cancel. Then g_i is small, but the rounding error of the sum
    over positions, here or in `weighted_sum`, is not. With machine epsilon u, the error is at most
    u L ||A_i|| ||D_i|| for the weight and u L sqrt(L) ||D_i|| for the bias (Higham 2002, section
    3.1). This bound is added to the norm.

    Args:
        weight: Weight, (outputs, inputs, ...).
        bias: Bias, (outputs,), or None.
        a: Inputs, (batch, groups, inputs, L).
        d: Output gradients, (batch, groups, outputs, L).
        a_norms: Norms ||A_i|| or upper bounds, (batch,). None: computed here.
        cache: Output dictionary for formed g_i of weight and bias, under `FORMED_GRADIENTS_KEY`.

    Returns:
        Upper bounds of ||g_i||^2, (batch,).
    """
    squares = torch.zeros(len(a), dtype=a.dtype, device=a.device)
    inputs, length = a.shape[2:]
    rounding = ROUNDINGS_PER_TERM * length * torch.finfo(a.dtype).eps if length > 1 else 0.0
    biased = bias is not None and bias.requires_grad
    d_norms = bound_norms(d) if weight.requires_grad or biased else squares
    if weight.requires_grad:
        if is_forming_cheaper(inputs, d.shape[2], length):
            # `bmm` on three axes: `matmul` on four axes takes 1.5 times as long.
            gradient = torch.bmm(d.flatten(0, 1), a.flatten(0, 1).transpose(1, 2))
            gradient = gradient.unflatten(0, a.shape[:2])
            computed = compute_norms_along(gradient.flatten(1), 1)
            if cache is not None:
                cache[FORMED_GRADIENTS_KEY] = gradient, d.sum(dim=3)
        else:
            a64, d64 = a.double(), d.double()
            gram = (a64.transpose(2, 3) @ a64) * (d64.transpose(2, 3) @ d64)
            computed = gram.sum(dim=(1, 2, 3)).clamp(min=0.0).sqrt().to(squares.dtype)
        a_norms = bound_norms(a) if a_norms is None else a_norms
        squares = squares + (computed + rounding * a_norms * d_norms).square()
    if biased:
        computed = compute_norms_along(d.sum(dim=3).flatten(1), 1)
        squares = squares + (computed + rounding * length**0.5 * d_norms).square()
    return squares


def is_forming_cheaper(inputs: int, outputs: int, length: int) -> bool:
    """Check whether forming g_i takes less time than two Gram matrices in float64.

    A float64 product takes as long as two float32 products. Writing one number of g_i, or
    converting one to float64, takes as long as about eight products.
    """
    formed = (length + 8) * inputs * outputs
    return formed <= 2 * (length + 8) * length * (inputs + outputs)


def bound_squared_formed_norms(gradients: Tensor, views: int) -> Tensor:
    """Compute ||g_i||^2 of formed gradients, enlarged by a bound of the rounding error.

    Args:
        gradients: Gradient of each row, (records * views, ...); g_i is the sum over views.
        views: Number of rows per record.

    Returns:
        Upper bounds of ||g_i||^2, (records,).
    """
    rows = gradients.reshape(len(gradients), -1)
    if views == 1:
        return rows.square().sum(dim=1)
    parts = rows.unflatten(0, (-1, views))
    sizes = compute_norms_along(parts, 2).sum(dim=1)
    hidden = ROUNDINGS_PER_TERM * views * torch.finfo(parts.dtype).eps * sizes
    return (compute_row_norms(parts.sum(dim=1)) + hidden).square()


def views_to_positions(values: Tensor, views: int) -> Tensor:
    """Reshape (batch * views, ..., L) to (batch, ..., views * L), so views become positions."""
    if views == 1:
        return values
    return values.unflatten(0, (-1, views)).movedim(1, -2).flatten(-2)


def compute_norms_along(values: Tensor, axis: int, out: Tensor | None = None) -> Tensor:
    """Compute L2 norms along one axis, with a relative error below 1e-6 for any length.

    On a CPU, torch sums squares in a few float32 accumulators: the norm of a million equal values
    is too small by a factor of 1e-3. Norms of pieces have an error of 5e-7, in a tenth of the time
    of float64.
    """
    length, norm = values.shape[axis], torch.linalg.vector_norm
    if length <= MAX_NORM_PIECE_LENGTH:
        return norm(values, dim=axis, out=out)
    piece = _find_equal_piece(length)
    whole = length - length % piece
    pieces = values if whole == length else values.narrow(axis, 0, whole)
    found = norm(pieces.unflatten(axis, (-1, piece)), dim=axis + 1)
    if whole < length:
        rest = values.narrow(axis, whole, length - whole)
        found = torch.cat([found, norm(rest, dim=axis, keepdim=True)], dim=axis)
    return compute_norms_along(found, axis, out)


@cache
def _find_equal_piece(length: int) -> int:
    """Find the piece length that divides a vector evenly, if it is not too short."""
    equal = max(each for each in range(1, MAX_NORM_PIECE_LENGTH + 1) if length % each == 0)
    return equal if equal >= MAX_NORM_PIECE_LENGTH // 4 else MAX_NORM_PIECE_LENGTH


def bound_norms(values: Tensor) -> Tensor:
    """Compute upper bounds of ||v_i||, (batch,), in one pass.

    A sum of n squares has at most n rounding errors, and its square root half of their size.
    """
    axes, many = tuple(range(1, values.ndim)), values[0].numel()  # no `flatten`, which may copy
    norms = torch.linalg.vector_norm(values, dim=axes)
    return norms * (1.0 + many * torch.finfo(values.dtype).eps)


def compute_row_norms(values: Tensor) -> Tensor:
    """Compute ||v_i||, (batch,), over all axes after the first."""
    return compute_norms_along(values.flatten(1), 1)


def bound_squared_row_norms(values: Tensor) -> Tensor:
    """Compute upper bounds of ||v_i||^2, (batch,); squares may underflow, so this is added."""
    lost = 2 * values.shape[1] * torch.finfo(values.dtype).tiny
    return compute_norms_along(values, 1).square() + lost


def multiply_rows(d: Tensor, factors: Tensor) -> Tensor:
    """Multiply row i by factor i."""
    return d * factors.view(-1, *(1 for _ in d.shape[1:]))


def zero_rows(values: Tensor, bad: Tensor) -> Tensor:
    """Copy values, with the marked rows set to 0."""
    # The copy has the same memory layout, because sums over another layout round differently.
    return values.clone().masked_fill_(bad.view(-1, *(1 for _ in values.shape[1:])), 0)


def sum_outer_products(
    weight: Tensor, biases: Sequence[Tensor | None], *pairs: tuple[Tensor, Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the weight with d^T a, and each bias with the sum of d; only those that are trained.

    Args:
        weight: Weight, (outputs, inputs).
        biases: Biases, each (outputs,) or None.
        pairs: Inputs a, (..., inputs), and output gradients d, (..., outputs); several pairs are
            those of consecutive rows of the weight.
    """
    flat = [(a.flatten(0, -2), d.flatten(0, -2)) for a, d in pairs]
    dtype = flat[0][1].dtype
    if weight.requires_grad:
        found = torch.zeros(weight.shape, dtype=torch.float64, device=weight.device)
        for (a, d), own in zip(flat, found.split([d.shape[1] for _, d in flat]), strict=True):
            for own_a, own_d in _iterate_float64_parts(a, d):
                own.addmm_(own_d.T, own_a)
        yield weight, found.to(dtype)
    for bias in biases:
        if bias is not None and bias.requires_grad:
            yield bias, torch.cat([sum_in_float64(d, 0) for _, d in flat])


def sum_filter_gradients(layer: nn.Conv2d, x: Tensor, d: Tensor) -> Tensor:
    """Compute the gradient of a convolution's weight, in float64 and in the weight's shape.

    Args:
        layer: Convolution of any stride, groups and dilation.
        x: Padded input, (batch, channels, height, width).
        d: Gradient of its output, (batch, outputs, ...).
    """
    found = torch.zeros(layer.weight.shape, dtype=torch.float64, device=d.device)
    unfolded = layer.weight[0].numel() * layer.groups * d[0, 0].numel()  # torch does, in float64
    for own_x, own_d in _iterate_float64_parts(x, d, more=unfolded):
        found += conv2d_weight(
            own_x, layer.weight.shape, own_d,
            stride=layer.stride,  # pyright: ignore[reportArgumentType]
            dilation=layer.dilation,  # pyright: ignore[reportArgumentType]
            groups=layer.groups,
        )  # fmt: skip
    return found


def sum_in_float64(values: Tensor, *axes: int) -> Tensor:
    """Sum over axes in float64, and round the sum to the dtype of the values."""
    return values.sum(dim=axes, dtype=torch.float64).to(values.dtype)


def _iterate_float64_parts(*values: Tensor, more: int = 0) -> Iterator[tuple[Tensor, ...]]:
    """Yield parts of the rows, converted to float64; each row needs `more` further numbers."""
    of_row = more + sum(each[:1].numel() for each in values)
    rows = max(1, _find_device_limit(MAX_FLOAT64_VALUES, values[0]) // max(1, of_row))
    for part in zip(*(each.split(rows) for each in values), strict=True):
        yield tuple(each.double() for each in part)
