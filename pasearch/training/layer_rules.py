"""Layer rules: forward, backward, and norms and weighted sums of per-example gradients.

A rule belongs to one module type. `LayerRule` is the general rule: it holds for any layer from one
tensor to one tensor that processes records separately, by autograd and `torch.func.vmap`. Its
subclasses replace parts of it by closed forms.

Let a be the input of a layer and d the gradient of the summed loss in its output; row i of d
depends only on record i. Then record i's gradient g_i, its norm and weighted sums are:

    Linear, one row per record      ||g_i||^2 = (||a_i||^2 + 1) ||d_i||^2
                                    sum_i c_i g_i = (c * d)^T a
    Linear over L positions,        g_i = D_i A_i^T, A_i (inputs, L), D_i (outputs, L);
    Conv2d after unfolding          ||g_i||^2 from g_i itself, or sum((A_i^T A_i) * (D_i^T D_i)),
                                    whichever is cheaper (Bu et al. 2022)
    Lstm                            a Linear over its L steps: A_i holds [x_t, h_(t-1)], D_i the
                                    gradients of the gates
    GroupNorm, LayerNorm            weight: sum over positions of d * xhat; bias: of d
    Conv2d, weight-standardised     the Conv2d's g_i times the Jacobian of the filters, formed
    any other layer                 g_i by torch.func.vmap of the layer's vector-Jacobian product

Every squared norm is at least the exact one, up to the `NORM_SLACK` of the clipping methods. The
Gram form subtracts large numbers from each other, so it is computed in float64.

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

from pasearch.errors import UsageError
from pasearch.spaces.modules import (
    KeyedDropout,
    Lstm,
    TemperedSigmoid,
    WeightStandardisedConv2d,
    sigmoid,
    sigmoid_,
)

MAX_UNFOLDED = {"cpu": 2**23, "cuda": 2**28}
"""Maximum numbers in one unfolded input of a convolution, by device: 32 MiB and 1 GiB."""
MAX_FLOAT64 = {"cpu": 2**22, "cuda": 2**27}
"""Maximum numbers that are converted to float64 at once, by device, to bound memory."""
MIN_POOLED_CHANNELS = 4
"""Number of channels from which max pooling is faster with the channels innermost."""
ROUNDINGS_PER_TERM = 2.0
"""Roundings of a term of a sum over positions, in machine epsilons: the product and the sum, in the
norm and again in the weighted sum, half a unit each.
"""
NORM_PIECE = 256  # maximum length of one norm; a longer norm is the norm of the norms of its pieces
FORMED_GRADIENTS = "formed"
"""Key of `CapturedLayer.cache` for the per-example gradients that the norms formed."""

CachedValues = dict[str, tuple[Tensor, ...]]
Buffers = Mapping[int, Tensor]
ParameterSums = Iterator[tuple[Tensor, Tensor]]
NO_BUFFERS: Buffers = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CapturedLayer:
    """Input and output gradient of one trainable layer, which determine its gradients.

    Args:
        layer: Module that owns the parameters.
        input: Input a, (batch, ...).
        output_gradient: Gradient d of the summed loss in the output, (batch, ...).
        views: Number of rows per record, adjacent in the batch.
        cache: Tensors of (batch, ...), by name, that a rule computed for the norms and needs for
            the sums.
    """

    layer: nn.Module
    input: Tensor
    output_gradient: Tensor
    views: int = 1
    cache: CachedValues = field(default_factory=dict, init=False, repr=False)

    def split(self, rows: int) -> list[CapturedLayer]:
        """Split the batch into blocks of `rows` rows; the last one may have fewer."""
        blocks = [
            CapturedLayer(self.layer, a, d, self.views)
            for a, d in zip(self.input.split(rows), self.output_gradient.split(rows), strict=True)
        ]
        for name, values in self.cache.items():
            parts = zip(*(each.split(rows) for each in values), strict=True)
            for block, part in zip(blocks, parts, strict=True):
                block.cache[name] = part
        return blocks

    def without(self, bad: Tensor) -> CapturedLayer:
        """Copy this with the rows marked in `bad`, bool of (batch,), set to 0."""
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
    """General rule of a module: by autograd, with formed per-example gradients.

    Subclasses override parts with closed forms. Rules have no state.
    """

    names = frozenset({"weight", "bias"})
    """Names of the parameters that the rule covers."""

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Any, Any]:
        """Compute the module's output, and what `backward` needs."""
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
        """Compute the gradient with respect to the input from d, that of the output."""
        given, output = saved
        if not output.requires_grad:
            return torch.zeros_like(given)
        (found,) = torch.autograd.grad(output, given, d, allow_unused=True)
        return torch.zeros_like(given) if found is None else found

    def cached_values(self, module: nn.Module, d: Tensor, saved: Any) -> CachedValues:
        """Compute the first `CapturedLayer.cache`; called before `backward`."""
        return {}

    def shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        """Compute the parameter shapes implied by a layer's settings, if the rule relies on them.

        With a replaced parameter of another shape, norms and sums would be of different numbers.
        """
        return {}

    def count_positions(self, output: Tensor) -> int:
        """Count the positions of a record at which one product uses the weight."""
        return 0

    def count_formed_numbers(self, layer: nn.Module, output: Tensor) -> int:
        """Count the numbers of each record's gradient that are in memory at once."""
        return sum(p.numel() for p in layer.parameters(recurse=False) if p.requires_grad)

    def squared_norms(self, seen: CapturedLayer) -> Tensor:
        """Compute ||g_i||^2 of the layer's trainable parameters together, (records,).

        If a record has several rows (views), g_i is the sum of their gradients: they count as
        positions. Formed gradients are cached: a second pass over other rows may round, or draw,
        differently.
        """
        formed = seen.cache[FORMED_GRADIENTS] = tuple(self.gradients(seen).values())
        return torch.stack([bound_formed_norms(gradient, seen.views) for gradient in formed]).sum(0)

    def weighted_sum(
        self, seen: CapturedLayer, factors: Tensor, into: Buffers = NO_BUFFERS
    ) -> ParameterSums:
        """Yield each trainable parameter with sum_i c_i g_i, i over rows.

        With several positions or views, the terms of a record may cancel and be far larger than
        their sum. Such sums are float64, so that they do not round away digits of other records.

        Args:
            seen: Captured layer.
            factors: Factor c of each row, (batch,).
            into: Buffers by a parameter's id; they may be overwritten and yielded.
        """
        own = [p for p in seen.layer.parameters(recurse=False) if p.requires_grad]
        dropped = factors == 0.0
        for parameter, gradient in zip(own, seen.cache[FORMED_GRADIENTS], strict=True):
            # The gradient may not be finite where the record's input was set to 0.
            kept = zero_rows(gradient, dropped)
            wide = torch.float64 if seen.views > 1 else factors.dtype
            found = torch.einsum("b,b...->...", factors.to(wide), kept.to(wide))
            yield parameter, found.to(factors.dtype)

    def gradients(self, seen: CapturedLayer) -> dict[str, Tensor]:
        """Form g_i of each trainable parameter, by its name: (batch, ...)."""
        own = dict(seen.layer.named_parameters(recurse=False))
        trained = {name: p.detach() for name, p in own.items() if p.requires_grad}

        def gradient(a: Tensor, d: Tensor) -> dict[str, Tensor]:
            def output(parameters: dict[str, Tensor]) -> Tensor:
                return torch.func.functional_call(seen.layer, parameters, (a[None],))[0]

            pull_back = torch.func.vjp(output, trained)[1]
            return pull_back(d)[0]

        return torch.func.vmap(gradient)(seen.input, seen.output_gradient)


class FlattenRule(LayerRule):
    """nn.Flatten."""

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
    """TemperedSigmoid: s / 2 tanh(T x / 2) + s / 2 - o."""

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(module, TemperedSigmoid)
        bent = torch.tanh(0.5 * module.temperature * x)
        half = 0.5 * module.scale
        return bent * half + (half - module.offset), bent

    def backward(self, module: nn.Module, d: Tensor, saved: Tensor) -> Tensor:
        assert isinstance(module, TemperedSigmoid)
        return tanh_backward(d, saved) * (0.25 * module.scale * module.temperature)


class DropoutRule(LayerRule):
    """KeyedDropout: the next mask of its step."""

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
        assert isinstance(module, KeyedDropout)
        mask = module.draw_mask(x)
        return module.apply_mask(x, mask), mask

    def backward(self, module: nn.Module, d: Tensor, saved: Tensor | None) -> Tensor:
        assert isinstance(module, KeyedDropout)
        return module.apply_mask(d, saved)


class MaxPoolRule(LayerRule):
    """nn.MaxPool2d on a CPU: identical results, 2.5 times as fast with many channels.

    torch finds the maxima of one channel after another; with the channels innermost it processes
    many at once. The backward pass is faster in the default layout.
    """

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Any, Any]:
        assert isinstance(module, nn.MaxPool2d)
        few = x.ndim != 4 or x.shape[1] < MIN_POOLED_CHANNELS
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
    """nn.Linear on (batch, inputs), or (batch, ..., inputs): the middle axes are positions."""

    def shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
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

    def count_formed_numbers(self, layer: nn.Module, output: Tensor) -> int:
        """Count none if a record is one row."""
        return super().count_formed_numbers(layer, output) if output.ndim > 2 else 0

    def squared_norms(self, seen: CapturedLayer) -> Tensor:
        """Compute (||a||^2 + 1) ||d||^2, or the form for several positions."""
        layer, a, d = seen.layer, seen.input, seen.output_gradient
        assert isinstance(layer, nn.Linear)
        if a.ndim > 2 or seen.views > 1:
            rows = (v.reshape(len(v), -1, v.shape[-1]).transpose(1, 2)[:, None] for v in (a, d))
            a, d = (views_to_positions(each, seen.views) for each in rows)
            return bound_position_norms(layer.weight, layer.bias, a, d)
        squares = bound_row_squares(a) if layer.weight.requires_grad else 0.0
        if layer.bias is not None and layer.bias.requires_grad:
            squares = squares + 1.0
        return squares * bound_row_squares(d)

    def weighted_sum(
        self, seen: CapturedLayer, factors: Tensor, into: Buffers = NO_BUFFERS
    ) -> ParameterSums:
        """Compute (c * d)^T a and the sum of c * d."""
        layer = seen.layer
        assert isinstance(layer, nn.Linear)
        a, d = seen.input, multiply_rows(seen.output_gradient, factors)
        if a.ndim > 2 or seen.views > 1:
            yield from sum_outer_products(layer.weight, (layer.bias,), a, d)
            return
        if layer.weight.requires_grad:
            yield layer.weight, torch.mm(d.T, a, out=into.get(id(layer.weight)))
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, torch.sum(d, dim=0, out=into.get(id(layer.bias)))


class Conv2dRule(LayerRule):
    """nn.Conv2d with any kernel, stride, padding, groups and dilation."""

    def shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        assert isinstance(layer, nn.Conv2d)
        channels = layer.in_channels // layer.groups
        filters = (layer.out_channels, channels, *layer.kernel_size)
        return {"weight": filters, "bias": (layer.out_channels,)}

    def count_positions(self, output: Tensor) -> int:
        return output[0, 0].numel()

    def count_formed_numbers(self, layer: nn.Module, output: Tensor) -> int:
        """Count none: `MAX_UNFOLDED` limits the gradients that are formed at once."""
        return 0

    def squared_norms(self, seen: CapturedLayer) -> Tensor:
        """Unfold the input, so that each output position is a row of a linear layer."""
        layer, d = seen.layer, seen.output_gradient
        assert isinstance(layer, nn.Conv2d)
        if d.ndim != 4:
            raise make_layer_error(
                layer, "saw one image, not a batch", "keep records the first axis"
            )
        a = _pad_input(layer, seen.input)
        taps = layer.weight[0].numel() * layer.groups
        numbers = max(taps * max(1, d[0, 0].numel()) * seen.views, layer.weight.numel())
        rows = seen.views * max(1, _memory_limit(MAX_UNFOLDED, d) // numbers)
        parts = list(zip(a.split(rows), d.split(rows), strict=True))
        cache = seen.cache if len(parts) == seen.views == 1 else {}
        squares = [self._unfolded_norms(layer, *part, seen.views, cache) for part in parts]
        squares = squares[0] if len(squares) == 1 else torch.cat(squares)
        # A pixel that no patch holds, because a stride skips it, must not hide that it is NaN.
        if layer.weight.requires_grad:
            return squares
        return squares + 0.0 * _bound_image_norms(a, seen.views)

    def _unfolded_norms(
        self, layer: nn.Conv2d, a: Tensor, d: Tensor, views: int, cache: CachedValues
    ) -> Tensor:
        patches = _extract_patches(layer, a, d)
        return self._position_norms(
            layer,
            views_to_positions(patches.unflatten(1, (layer.groups, -1)), views),
            views_to_positions(d.flatten(2).unflatten(1, (layer.groups, -1)), views),
            _bound_image_norms(a, views) * _count_patches_per_pixel(layer) ** 0.5,
            cache,
        )

    def _position_norms(
        self, layer: nn.Conv2d, a: Tensor, d: Tensor, a_norms: Tensor, cache: CachedValues
    ) -> Tensor:
        return bound_position_norms(layer.weight, layer.bias, a, d, a_norms, cache)

    def _of_weight(self, layer: nn.Conv2d, gradient: Tensor) -> Tensor:
        """Map a gradient of the filters in use to that of the weight, (..., *weight.shape)."""
        return gradient

    def weighted_sum(
        self, seen: CapturedLayer, factors: Tensor, into: Buffers = NO_BUFFERS
    ) -> ParameterSums:
        """Compute an ordinary convolution's gradient for the output gradient c * d.

        If the norms formed the g_i, sum c times those.
        """
        layer = seen.layer
        assert isinstance(layer, nn.Conv2d)
        if FORMED_GRADIENTS in seen.cache:
            for parameter, each in zip(
                (layer.weight, layer.bias), seen.cache[FORMED_GRADIENTS], strict=True
            ):
                if parameter is not None and parameter.requires_grad:
                    yield parameter, (factors @ each.flatten(1)).view_as(parameter)
            return
        d = multiply_rows(seen.output_gradient, factors)
        if layer.weight.requires_grad:
            gradient = sum_filter_gradients(layer, _pad_input(layer, seen.input), d)
            yield layer.weight, self._of_weight(layer, gradient).to(layer.weight.dtype)
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, sum_in_float64(d, 0, 2, 3)


class WeightStandardisedRule(Conv2dRule):
    """Convolution with filters v / s: its gradients, by the chain rule through them.

    With G the gradient in v / s of one filter, and C the operator that subtracts the mean,

        g = C G / s - v <v, G> / s^3,

    which is linear in G, so the weighted sum is mapped once. A norm needs every record's G, which
    is formed. G may be far larger than g: another reason for float64.
    """

    def _position_norms(
        self, layer: nn.Conv2d, a: Tensor, d: Tensor, a_norms: Tensor, cache: CachedValues
    ) -> Tensor:
        squares = bound_position_norms(layer.weight.detach(), layer.bias, a, d)  # the bias alone
        squares = squares + 0.0 * a_norms
        if layer.weight.requires_grad:
            rows = max(1, _memory_limit(MAX_UNFOLDED, d) // layer.weight.numel())
            parts = zip(a.split(rows), d.split(rows), strict=True)
            squares = squares + torch.cat([self._weight_squares(layer, *part) for part in parts])
        return squares

    def _weight_squares(self, layer: nn.Conv2d, a: Tensor, d: Tensor) -> Tensor:
        """Compute ||g||^2, enlarged by what rounding of positions, C and <v, G> hides."""
        assert isinstance(layer, WeightStandardisedConv2d)
        scale = layer.centred()[1].detach()
        taps, length = layer.weight[0].numel(), a.shape[3]
        formed = (d @ a.transpose(2, 3)).flatten(1, 2).unflatten(2, layer.weight.shape[1:])
        unit = ROUNDINGS_PER_TERM * torch.finfo(a.dtype).eps
        hidden = unit * taps * compute_row_norms(formed / scale)
        if length > 1:
            d_norms = compute_row_norms(d.flatten(1, 2) / scale.view(-1, 1))
            hidden = hidden + unit * length * compute_row_norms(a) * d_norms
        return (compute_row_norms(self._of_weight(layer, formed)) + hidden).square()

    def _of_weight(self, layer: nn.Conv2d, gradient: Tensor) -> Tensor:
        assert isinstance(layer, WeightStandardisedConv2d)
        centred, scale = (each.detach() for each in layer.centred())
        own = (-3, -2, -1)  # of one filter
        along = (centred / scale * gradient).sum(dim=own, keepdim=True)
        middle = gradient - gradient.mean(dim=own, keepdim=True)
        return (middle - centred / scale * along) / scale


class NormRule(LayerRule):
    """nn.GroupNorm and nn.LayerNorm: sums of d * xhat (weight) and of d (bias).

    xhat is the normalised input; the sums go over the positions that share a weight.
    """

    def shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        if isinstance(layer, nn.GroupNorm):
            return dict.fromkeys(self.names, (layer.num_channels,))
        assert isinstance(layer, nn.LayerNorm)
        return dict.fromkeys(self.names, tuple(layer.normalized_shape))

    def squared_norms(self, seen: CapturedLayer) -> Tensor:
        """Compute norms of sums over positions, enlarged by a rounding bound."""
        layer, (xhat, d) = seen.layer, self._laid_out(seen)
        assert isinstance(layer, (nn.GroupNorm, nn.LayerNorm))
        xhat, d = views_to_positions(xhat, seen.views), views_to_positions(d, seen.views)
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
        self, seen: CapturedLayer, factors: Tensor, into: Buffers = NO_BUFFERS
    ) -> ParameterSums:
        """Compute the same sums of c * d, over records and positions."""
        layer, (xhat, d) = seen.layer, self._laid_out(seen)
        assert isinstance(layer, (nn.GroupNorm, nn.LayerNorm))
        d = multiply_rows(d, factors)
        if layer.weight.requires_grad:
            yield layer.weight, sum_in_float64(xhat * d, 0, 2).view_as(layer.weight)
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, sum_in_float64(d, 0, 2).view_as(layer.bias)

    def _laid_out(self, seen: CapturedLayer) -> tuple[Tensor, Tensor]:
        """Reshape xhat and d to (batch, weights, positions)."""
        layer, x, d = seen.layer, seen.input, seen.output_gradient
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


class LstmRule(LayerRule):
    """Lstm: a Linear over the steps, from [x_t, h_(t-1)] to the gates z_t."""

    names = frozenset({"weight", "bias", "second_bias"})

    def forward(self, module: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
        assert isinstance(module, Lstm)
        module.check(x)
        states, tape = run_lstm_forward(module.projected(x), module.recurrent)
        return states[:, -1], {"x": x, "states": states, "tape": tape}

    def backward(self, module: nn.Module, d: Tensor, saved: dict[str, Any]) -> Tensor:
        assert isinstance(module, Lstm)
        return self._gate_gradients(d, saved) @ module.weight[:, : module.inputs]

    def cached_values(self, module: nn.Module, d: Tensor, saved: dict[str, Any]) -> CachedValues:
        """Compute [x_t, h_(t-1)] and the gradients of the gates, (batch, steps, ...) each."""
        before = functional.pad(saved["states"].transpose(0, 1)[:-1], (0, 0, 0, 0, 1, 0))
        a = torch.cat([saved["x"].transpose(0, 1), before], dim=2).transpose(0, 1)
        return {"steps": (a, self._gate_gradients(d, saved))}

    def shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        assert isinstance(layer, Lstm)
        gates = 4 * layer.units
        weight = gates, layer.inputs + layer.units
        return {"weight": weight, "bias": (gates,), "second_bias": (gates,)}

    def count_positions(self, output: Tensor) -> int:
        """Count one: a step waits for the one before it."""
        return 1

    def squared_norms(self, seen: CapturedLayer) -> Tensor:
        """Use the form of positions; a second bias has the gradient of the first."""
        layer, (a, d) = seen.layer, self._steps(seen)
        assert isinstance(layer, Lstm)
        a, d = (views_to_positions(v.transpose(1, 2)[:, None], seen.views) for v in (a, d))
        squares = bound_position_norms(layer.weight, layer.bias, a, d)
        return squares + bound_position_norms(layer.weight.detach(), layer.second_bias, a, d)

    def weighted_sum(
        self, seen: CapturedLayer, factors: Tensor, into: Buffers = NO_BUFFERS
    ) -> ParameterSums:
        """Compute (c * d)^T a and the sum of c * d, over records and steps."""
        layer, (a, d) = seen.layer, self._steps(seen)
        assert isinstance(layer, Lstm)
        # Steps first, as they are in memory: nothing is copied.
        d, a = (v.transpose(0, 1) for v in (multiply_rows(d, factors), a))
        yield from sum_outer_products(layer.weight, (layer.bias, layer.second_bias), a, d)

    def gradients(self, seen: CapturedLayer) -> dict[str, Tensor]:
        """Form them from the gradients of the gates."""
        a, d = self._steps(seen)
        formed = {"weight": d.transpose(1, 2) @ a, "bias": d.sum(dim=1)}
        formed["second_bias"] = formed["bias"]
        own = dict(seen.layer.named_parameters(recurse=False))
        return {name: formed[name] for name, p in own.items() if p.requires_grad}

    def _steps(self, seen: CapturedLayer) -> tuple[Tensor, ...]:
        """Get `cached_values`; a layer captured by hooks needs a separate pass."""
        if "steps" not in seen.cache:
            with torch.no_grad():
                saved = self.forward(seen.layer, seen.input)[1]
                seen.cache.update(self.cached_values(seen.layer, seen.output_gradient, saved))
        return seen.cache["steps"]

    def _gate_gradients(self, d: Tensor, saved: dict[str, Any]) -> Tensor:
        if "gates" not in saved:
            d_states = torch.zeros_like(saved["states"])
            d_states[:, -1] = d
            saved["gates"] = run_lstm_backward(saved["tape"], d_states)
        return saved["gates"]


def run_lstm_forward(projected: Tensor, recurrent: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run the steps of an LSTM in place, in buffers that are allocated once.

        z_t = p_t + h_(t-1) R                    i, f, g, o: sigmoid, sigmoid, tanh, sigmoid of z_t
        c_t = f c_(t-1) + i g                    h_t = o tanh(c_t)

    Args:
        projected: Projected inputs p, (batch, steps, 4 units).
        recurrent: Recurrent weights R, (units, 4 units).

    Returns:
        States h, (batch, steps, units), and the inputs of `run_lstm_backward`.

    Source: Hochreiter and Schmidhuber 1997; Gers et al. 2000.
    """
    # Steps first, so that each is contiguous; a copy, which is overwritten.
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
    """Compute the gradients of p, (batch, steps, 4 units), from those of h, (batch, steps, units).

    From the last step to the first, d_t being the gradient with respect to h_t alone:

        e_t = d_t + dz_(t+1) R^T             dc_t = e_t o (1 - tanh(c_t)^2) + f_(t+1) dc_(t+1)
        do = e_t tanh(c_t),   di = dc_t g,   df = dc_t c_(t-1),   dg = dc_t i

    and dz_t through the gates' own derivatives.
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
    """Look up the rule of a module's exact type.

    A subclass, or a layer with more parameters, computes something else: it has the general rule.
    """
    rule = RULES.get(type(module), GENERAL_RULE)
    names = {name for name, _ in module.named_parameters(recurse=False)}
    return rule if names <= rule.names else GENERAL_RULE


def _extract_patches(layer: nn.Conv2d, a: Tensor, d: Tensor) -> Tensor:
    """Make the patches of padded images, (rows, taps, positions), as `functional.unfold` does.

    One copy of a view: a third of the time that `unfold` takes on a CPU.
    """
    rows, channels, down, right = a.stride()
    strides = [step * pixel for step, pixel in zip(layer.stride, (down, right), strict=True)]
    taps = [apart * pixel for apart, pixel in zip(layer.dilation, (down, right), strict=True)]
    shape = (*a.shape[:2], *layer.kernel_size, *d.shape[2:])
    view = a.as_strided(shape, (rows, channels, *taps, *strides))
    return view.reshape(a.shape[0], -1, d[0, 0].numel())


def _bound_image_norms(a: Tensor, views: int) -> Tensor:
    """Compute upper bounds of ||x_i|| of padded images, views together: (batch,)."""
    return bound_norms(a if views == 1 else a.unflatten(0, (-1, views)))


def _count_patches_per_pixel(layer: nn.Conv2d) -> int:
    """Count the patches that contain a pixel, at most: ||A_i||^2 <= that count * ||x_i||^2.

    Along an axis, k taps that are e apart meet patches every s pixels: every s / gcd(s, e)-th tap.
    """
    axes = zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    return math.prod(math.ceil(k * math.gcd(s, e) / s) for k, s, e in axes)


def _pad_input(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Pad as the layer does, so that what follows needs no padding."""
    if layer.padding == "valid":
        return x
    if layer.padding == "same":
        totals = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        pairs = [(total // 2, total - total // 2) for total in totals]
    else:
        pairs = [(int(side), int(side)) for side in layer.padding]
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return functional.pad(x, (*pairs[1], *pairs[0]), mode=mode)


def _memory_limit(of_device: Mapping[str, int], values: Tensor) -> int:
    return of_device.get(values.device.type, of_device["cpu"])


def bound_position_norms(
    weight: Tensor,
    bias: Tensor | None,
    a: Tensor,
    d: Tensor,
    a_norms: Tensor | None = None,
    cache: CachedValues | None = None,
) -> Tensor:
    """Compute ||g_i||^2 of a layer at L positions, enlarged by a bound of the rounding error.

    Terms at different positions may cancel: then g_i is small, but the rounding error of the sum
    over positions, here or in `weighted_sum`, is not. It is at most u L ||A_i|| ||D_i|| for the
    weight and u L sqrt(L) ||D_i|| for the bias (Higham 2002, section 3.1), so this is added.

    Args:
        weight: Weight, (outputs, inputs, ...).
        bias: Bias, (outputs,), or None.
        a: Inputs, (batch, groups, inputs, L).
        d: Output gradients, (batch, groups, outputs, L).
        a_norms: Norms ||A_i|| or upper bounds, (batch,); None: computed.
        cache: Receives formed g_i of weight and bias, as `FORMED_GRADIENTS`.
    """
    squares = torch.zeros(len(a), dtype=a.dtype, device=a.device)
    inputs, length = a.shape[2:]
    rounding = ROUNDINGS_PER_TERM * length * torch.finfo(a.dtype).eps if length > 1 else 0.0
    biased = bias is not None and bias.requires_grad
    d_norms = bound_norms(d) if weight.requires_grad or biased else squares
    if weight.requires_grad:
        if formed_is_cheaper(inputs, d.shape[2], length):
            # Of three axes: of four, `matmul` takes half as long again.
            gradient = torch.bmm(d.flatten(0, 1), a.flatten(0, 1).transpose(1, 2))
            gradient = gradient.unflatten(0, a.shape[:2])
            computed = compute_norms_along(gradient.flatten(1), 1)
            if cache is not None:
                cache[FORMED_GRADIENTS] = gradient, d.sum(dim=3)
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


def formed_is_cheaper(inputs: int, outputs: int, length: int) -> bool:
    """Check if g_i takes less time than two Gram matrices in float64, which count double.

    Forming a number of g_i, or converting one to float64, takes as long as about eight products.
    """
    formed = (length + 8) * inputs * outputs
    return formed <= 2 * (length + 8) * length * (inputs + outputs)


def bound_formed_norms(gradients: Tensor, views: int) -> Tensor:
    """Compute ||g_i||^2 of formed gradients, enlarged by a rounding bound for the sum over views.

    Args:
        gradients: Per-row gradients, (records * views, ...).
        views: Number of rows per record.
    """
    rows = gradients.reshape(len(gradients), -1)
    if views == 1:
        return rows.square().sum(dim=1)
    parts = rows.unflatten(0, (-1, views))
    sizes = compute_norms_along(parts, 2).sum(dim=1)
    hidden = ROUNDINGS_PER_TERM * views * torch.finfo(parts.dtype).eps * sizes
    return (compute_row_norms(parts.sum(dim=1)) + hidden).square()


def views_to_positions(values: Tensor, views: int) -> Tensor:
    """Reshape (batch * views, ..., L) to (batch, ..., views * L): views become positions."""
    if views == 1:
        return values
    return values.unflatten(0, (-1, views)).movedim(1, -2).flatten(-2)


def compute_norms_along(values: Tensor, axis: int, out: Tensor | None = None) -> Tensor:
    """Compute ||v|| along one axis, with a relative error below 1e-6 at any length.

    On a CPU torch adds the squares up in few float32 numbers: the norm of a million equal ones is
    too small by 1e-3. Of pieces it is by 5e-7, a tenth of the time that float64 takes.
    """
    length, norm = values.shape[axis], torch.linalg.vector_norm
    if length <= NORM_PIECE:
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
    equal = max(each for each in range(1, NORM_PIECE + 1) if length % each == 0)
    return equal if equal >= NORM_PIECE // 4 else NORM_PIECE


def bound_norms(values: Tensor) -> Tensor:
    """Bound ||v_i|| from above, (batch,), in one pass.

    A sum of n squares errs by n roundings at most, and the norm by half of that.
    """
    axes, many = tuple(range(1, values.ndim)), values[0].numel()  # no `flatten`, which may copy
    norms = torch.linalg.vector_norm(values, dim=axes)
    return norms * (1.0 + many * torch.finfo(values.dtype).eps)


def compute_row_norms(values: Tensor) -> Tensor:
    """Compute ||v_i||, (batch,), over all axes after the first."""
    return compute_norms_along(values.flatten(1), 1)


def bound_row_squares(values: Tensor) -> Tensor:
    """Compute ||v_i||^2, (batch,), enlarged by the possible underflow of squares."""
    lost = 2 * values.shape[1] * torch.finfo(values.dtype).tiny
    return compute_norms_along(values, 1).square() + lost


def multiply_rows(d: Tensor, factors: Tensor) -> Tensor:
    """Multiply rows by their factors."""
    return d * factors.view(-1, *(1 for _ in d.shape[1:]))


def zero_rows(values: Tensor, bad: Tensor) -> Tensor:
    """Copy values with the marked rows set to 0."""
    # A copy of the same layout: sums over another are rounded otherwise.
    return values.clone().masked_fill_(bad.view(-1, *(1 for _ in values.shape[1:])), 0)


def sum_outer_products(
    weight: Tensor, biases: Sequence[Tensor | None], a: Tensor, d: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a weight with d^T a, and biases with the sum of d.

    Args:
        weight: Weight, (outputs, inputs); like the biases, left out if it is not trained.
        biases: Biases, (outputs,) each, or None.
        a: Inputs, (..., inputs).
        d: Output gradients, (..., outputs).
    """
    rows = a.flatten(0, -2), d.flatten(0, -2)
    if weight.requires_grad:
        found = torch.zeros(weight.shape, dtype=torch.float64, device=d.device)
        for own_a, own_d in _float64_parts(*rows):
            found.addmm_(own_d.T, own_a)
        yield weight, found.to(d.dtype)
    for bias in biases:
        if bias is not None and bias.requires_grad:
            yield bias, sum_in_float64(rows[1], 0)


def sum_filter_gradients(layer: nn.Conv2d, x: Tensor, d: Tensor) -> Tensor:
    """Compute the gradient of a convolution's filters, float64, shaped as its weight.

    Args:
        layer: Convolution of any stride, groups and dilation.
        x: Padded input, (batch, channels, height, width).
        d: Gradient of its output, (batch, outputs, ...).
    """
    found = torch.zeros(layer.weight.shape, dtype=torch.float64, device=d.device)
    unfolded = layer.weight[0].numel() * layer.groups * d[0, 0].numel()  # torch does, in float64
    for own_x, own_d in _float64_parts(x, d, more=unfolded):
        found += conv2d_weight(
            own_x, layer.weight.shape, own_d,
            stride=layer.stride,  # pyright: ignore[reportArgumentType]
            dilation=layer.dilation,  # pyright: ignore[reportArgumentType]
            groups=layer.groups,
        )  # fmt: skip
    return found


def sum_in_float64(values: Tensor, *axes: int) -> Tensor:
    """Sum over axes in float64."""
    return values.sum(dim=axes, dtype=torch.float64).to(values.dtype)


def _float64_parts(*values: Tensor, more: int = 0) -> Iterator[tuple[Tensor, ...]]:
    """Iterate over parts of the rows as float64; a row takes `more` further numbers of memory."""
    of_row = more + sum(each[:1].numel() for each in values)
    rows = max(1, _memory_limit(MAX_FLOAT64, values[0]) // max(1, of_row))
    for part in zip(*(each.split(rows) for each in values), strict=True):
        yield tuple(each.double() for each in part)
