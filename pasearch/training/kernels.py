"""Norms and weighted sums of one layer's per-example gradients, without forming the gradients.

From the layer's input a and the gradient d of the summed loss with respect to its output, of which
row i belongs to record i alone:

    Linear, one row a record        ||g_i||^2 = (||a_i||^2 + 1) ||d_i||^2
                                    sum_i c_i g_i = (c * d)^T a
    Linear over L positions,        g_i = D_i A_i^T, A_i (inputs, L), D_i (outputs, L);
    Conv2d after unfolding          ||g_i||^2 from g_i itself, or sum((A_i^T A_i) * (D_i^T D_i)),
                                    whichever is cheaper (Bu et al. 2022)
    Lstm                            a Linear over its L steps: A_i holds [x_t, h_(t-1)], D_i the
                                    gradients of the gates
    GroupNorm, LayerNorm            weight: sum over positions of d * xhat; bias: of d
    Conv2d, weight-standardised     the Conv2d's g_i times the Jacobian of the filters, formed
    any other layer                 g_i by torch.func.vmap of the layer's vector-Jacobian product

The Gram form subtracts large numbers from each other, so it is computed in float64.

Source: Goodfellow 2015 (Linear), Bu et al. 2022 (Conv2d). Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from pasearch.errors import UsageError
from pasearch.spaces.modules import Lstm, WeightStandardisedConv2d
from pasearch.training import record_sums
from pasearch.training.norms import (
    FORMED,
    ROUNDINGS,
    Kept,
    at_least_norms,
    norms,
    norms_along,
    positions,
    row_squares,
    side_by_side,
    squares_of,
    weighted,
    zero_rows,
)
from pasearch.training.recurrence import Recurrence

UNFOLDED = {"cpu": 2**23, "cuda": 2**28}
"""Most numbers in one unfolded input of a convolution, by kind of device: 32 MiB and 1 GiB, so that
memory stays flat."""

NOWHERE: Mapping[int, Tensor] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Captured:
    """What one trainable layer saw and got back: all that its gradients depend on.

    Args:
        layer: The module that owns the parameters.
        input: a, (batch, ...).
        output_gradient: d, (batch, ...), gradient of the summed loss.
        kept: What a kernel has computed of these for the norms, and needs again for the sum: by
            name, (batch, ...) each.
    """

    layer: nn.Module
    input: Tensor
    output_gradient: Tensor
    kept: Kept = field(default_factory=dict, init=False, repr=False)

    def rows(self, rows: slice) -> Captured:
        """Return the same of some rows of the batch."""
        found = replace(
            self, input=self.input[rows], output_gradient=self.output_gradient[rows]
        )  # fmt: skip
        found.kept.update(
            (name, tuple(each[rows] for each in values)) for name, values in self.kept.items()
        )
        return found

    def without(self, bad: Tensor) -> Captured:
        """Return the same with the rows of the records marked in `bad`, (batch,), set to 0."""
        found = replace(
            self,
            input=zero_rows(self.input, bad),
            output_gradient=zero_rows(self.output_gradient, bad),
        )
        for name, values in self.kept.items():
            found.kept[name] = tuple(zero_rows(each, bad) for each in values)
        return found


def no_kernel(layer: nn.Module, fault: str, remedy: str) -> UsageError:
    """Return why a layer's per-example gradients cannot be had."""
    return UsageError(
        f"Layer {layer} {fault}, so a record's gradient cannot be told apart: {remedy}."
    )


class Kernel:
    """Norms and weighted sums of one layer type's per-example gradients."""

    names = frozenset({"weight", "bias"})
    """The parameters that the kernel knows of."""

    def forward(self, layer: nn.Module, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the layer's output, and what the kernel watches within it.

        The first of these gets a gradient, for `keep`.
        """
        return layer(x), ()

    def shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        """Return the shapes that a layer's settings give its parameters, where they are relied on.

        One that was replaced may have another, and torch may go by that: norms and sums would be
        of different numbers.
        """
        return {}

    def places(self, output: Tensor) -> int:
        """Return at how many places of a record one product takes the weight."""
        return 0

    def formed(self, layer: nn.Module, output: Tensor) -> int:
        """Return how many numbers of each record's gradient all stand in memory at once."""
        return sum(p.numel() for p in layer.parameters(recurse=False) if p.requires_grad)

    def keep(self, seen: Captured, inner: tuple[Tensor, ...], gradient: Tensor) -> None:
        """Let what was watched within a layer stand with what it saw."""

    def squared_norms(self, seen: Captured, views: int = 1) -> Tensor:
        """Return ||g_i||^2 of the layer's trainable parameters together, (batch / views,).

        Of several views, g_i is the sum of their rows' gradients: they are more positions.
        """
        raise NotImplementedError

    def weighted_sum(
        self,
        seen: Captured,
        factors: Tensor,
        into: Mapping[int, Tensor] = NOWHERE,
        *,
        views: int = 1,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each trainable parameter with sum_i c_i g_i, i over rows.

        Where a record has several positions or views their terms may cancel, and be far larger than
        what is left: such sums are in float64, lest they round away what other records add.
        What stands in `into`, by a parameter's id, may be overwritten and be what is yielded.
        """
        raise NotImplementedError

    def gradients(self, seen: Captured) -> dict[str, Tensor]:
        """Return g_i of each trainable parameter by its name, formed: (batch, ...)."""
        own = dict(seen.layer.named_parameters(recurse=False))
        trained = {name: p.detach() for name, p in own.items() if p.requires_grad}

        def gradient(a: Tensor, d: Tensor) -> dict[str, Tensor]:
            def output(parameters: dict[str, Tensor]) -> Tensor:
                return torch.func.functional_call(seen.layer, parameters, (a[None],))[0]

            pull_back = torch.func.vjp(output, trained)[1]
            return pull_back(d)[0]

        return torch.func.vmap(gradient)(seen.input, seen.output_gradient)


class LinearKernel(Kernel):
    """nn.Linear on (batch, inputs), or (batch, ..., inputs): the middle axes are positions."""

    def shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        assert isinstance(layer, nn.Linear)
        return {"weight": (layer.out_features, layer.in_features), "bias": (layer.out_features,)}

    def places(self, output: Tensor) -> int:
        return output[0].numel() // output.shape[-1]

    def formed(self, layer: nn.Module, output: Tensor) -> int:
        """None, where a record is one row."""
        return super().formed(layer, output) if output.ndim > 2 else 0

    def squared_norms(self, seen: Captured, views: int = 1) -> Tensor:
        """(||a||^2 + 1) ||d||^2, or the positions' form."""
        layer, a, d = seen.layer, seen.input, seen.output_gradient
        assert isinstance(layer, nn.Linear)
        if a.ndim > 2 or views > 1:
            a, d = (
                side_by_side(v.reshape(len(v), -1, v.shape[-1]).transpose(1, 2)[:, None], views)
                for v in (a, d)
            )
            return positions(layer.weight, layer.bias, a, d)
        squares = row_squares(a) if layer.weight.requires_grad else 0.0
        if layer.bias is not None and layer.bias.requires_grad:
            squares = squares + 1.0
        return squares * row_squares(d)

    def weighted_sum(
        self,
        seen: Captured,
        factors: Tensor,
        into: Mapping[int, Tensor] = NOWHERE,
        *,
        views: int = 1,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(c * d)^T a and the sum of c * d."""
        layer = seen.layer
        assert isinstance(layer, nn.Linear)
        a, d = seen.input, weighted(seen.output_gradient, factors)
        if a.ndim > 2 or views > 1:
            yield from record_sums.products(layer.weight, (layer.bias,), a, d)
            return
        if layer.weight.requires_grad:
            yield layer.weight, torch.mm(d.T, a, out=into.get(id(layer.weight)))
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, torch.sum(d, dim=0, out=into.get(id(layer.bias)))


class Conv2dKernel(Kernel):
    """nn.Conv2d with any kernel, stride, padding, groups and dilation."""

    def shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        assert isinstance(layer, nn.Conv2d)
        channels = layer.in_channels // layer.groups
        filters = (layer.out_channels, channels, *layer.kernel_size)
        return {"weight": filters, "bias": (layer.out_channels,)}

    def places(self, output: Tensor) -> int:
        return output[0, 0].numel()

    def formed(self, layer: nn.Module, output: Tensor) -> int:
        """None: see `UNFOLDED`."""
        return 0

    def squared_norms(self, seen: Captured, views: int = 1) -> Tensor:
        """Unfold the input, so that every output position is a row of a linear layer."""
        layer, d = seen.layer, seen.output_gradient
        assert isinstance(layer, nn.Conv2d)
        if d.ndim != 4:
            raise no_kernel(layer, "saw one image, not a batch", "keep records the first axis")
        a = _padded(layer, seen.input)
        taps = layer.weight[0].numel() * layer.groups
        numbers = max(taps * max(1, d[0, 0].numel()) * views, layer.weight.numel())
        rows = views * max(1, _unfolded(d) // numbers)
        parts = list(zip(a.split(rows), d.split(rows), strict=True))
        kept = seen.kept if len(parts) == views == 1 else {}
        squares = [self._unfolded_norms(layer, *part, views, kept) for part in parts]
        squares = squares[0] if len(squares) == 1 else torch.cat(squares)
        # A pixel that no patch holds, because a stride skips it, must not hide that it is NaN.
        return squares if layer.weight.requires_grad else squares + 0.0 * _image_norms(a, views)

    def _unfolded_norms(
        self, layer: nn.Conv2d, a: Tensor, d: Tensor, views: int, kept: Kept
    ) -> Tensor:
        patches = _patches(layer, a, d)
        return self._position_norms(
            layer,
            side_by_side(patches.unflatten(1, (layer.groups, -1)), views),
            side_by_side(d.flatten(2).unflatten(1, (layer.groups, -1)), views),
            _image_norms(a, views) * _patches_of_a_pixel(layer) ** 0.5,
            kept,
        )

    def _position_norms(
        self, layer: nn.Conv2d, a: Tensor, d: Tensor, a_norms: Tensor, kept: Kept
    ) -> Tensor:
        return positions(layer.weight, layer.bias, a, d, a_norms, kept)

    def _of_weight(self, layer: nn.Conv2d, gradient: Tensor) -> Tensor:
        """Return the weight's gradient, (..., *weight.shape), from that of the filters in use."""
        return gradient

    def weighted_sum(
        self,
        seen: Captured,
        factors: Tensor,
        into: Mapping[int, Tensor] = NOWHERE,
        *,
        views: int = 1,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The weight's gradient of an ordinary convolution, for the output gradient c * d.

        Or c times the g_i, where the norms formed them.
        """
        layer = seen.layer
        assert isinstance(layer, nn.Conv2d)
        if FORMED in seen.kept:
            for parameter, each in zip((layer.weight, layer.bias), seen.kept[FORMED], strict=True):
                if parameter is not None and parameter.requires_grad:
                    yield parameter, (factors @ each.flatten(1)).view_as(parameter)
            return
        d = weighted(seen.output_gradient, factors)
        if layer.weight.requires_grad:
            gradient = record_sums.of_filters(layer, _padded(layer, seen.input), d)
            yield layer.weight, self._of_weight(layer, gradient).to(layer.weight.dtype)
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, record_sums.over(d, 0, 2, 3)


class WeightStandardisedKernel(Conv2dKernel):
    """A convolution with filters v / s: its gradients, by the chain rule through them.

    With G the gradient with respect to v / s, all of one filter, and C what subtracts the mean,

        g = C G / s - v <v, G> / s^3,

    which is linear in G, so the weighted sum goes through it once. A norm needs every record's G:
    it is formed. A record's G may be far larger than its g, too: another reason for float64.
    """

    def _position_norms(
        self, layer: nn.Conv2d, a: Tensor, d: Tensor, a_norms: Tensor, kept: Kept
    ) -> Tensor:
        squares = positions(layer.weight.detach(), layer.bias, a, d)  # the bias alone
        squares = squares + 0.0 * a_norms
        if layer.weight.requires_grad:
            rows = max(1, _unfolded(d) // layer.weight.numel())
            parts = zip(a.split(rows), d.split(rows), strict=True)
            squares = squares + torch.cat([self._weight_squares(layer, *part) for part in parts])
        return squares

    def _weight_squares(self, layer: nn.Conv2d, a: Tensor, d: Tensor) -> Tensor:
        """The norms of g, with what the rounding of a sum over positions, of C and <v, G> hides."""
        assert isinstance(layer, WeightStandardisedConv2d)
        scale = layer.centred()[1].detach()
        taps, length = layer.weight[0].numel(), a.shape[3]
        formed = (d @ a.transpose(2, 3)).flatten(1, 2).unflatten(2, layer.weight.shape[1:])
        unit = ROUNDINGS * torch.finfo(a.dtype).eps
        hidden = unit * taps * norms(formed / scale)
        if length > 1:
            d_norms = norms(d.flatten(1, 2) / scale.view(-1, 1))
            hidden = hidden + unit * length * norms(a) * d_norms
        return (norms(self._of_weight(layer, formed)) + hidden).square()

    def _of_weight(self, layer: nn.Conv2d, gradient: Tensor) -> Tensor:
        assert isinstance(layer, WeightStandardisedConv2d)
        centred, scale = (each.detach() for each in layer.centred())
        own = (-3, -2, -1)  # of one filter
        along = (centred / scale * gradient).sum(dim=own, keepdim=True)
        middle = gradient - gradient.mean(dim=own, keepdim=True)
        return (middle - centred / scale * along) / scale


class NormKernel(Kernel):
    """nn.GroupNorm and nn.LayerNorm: the weight's gradient is the sum of d * xhat, the bias's of d.

    xhat is the input, normalised; the sums go over the positions that share a weight.
    """

    def shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        if isinstance(layer, nn.GroupNorm):
            return dict.fromkeys(self.names, (layer.num_channels,))
        assert isinstance(layer, nn.LayerNorm)
        return dict.fromkeys(self.names, tuple(layer.normalized_shape))

    def squared_norms(self, seen: Captured, views: int = 1) -> Tensor:
        """Sum over positions, too large by what rounding may hide, as `positions` is."""
        layer, (xhat, d) = seen.layer, self._laid_out(seen)
        assert isinstance(layer, (nn.GroupNorm, nn.LayerNorm))
        xhat, d = side_by_side(xhat, views), side_by_side(d, views)
        length = d.shape[2]
        rounding = ROUNDINGS * length * torch.finfo(d.dtype).eps if length > 1 else 0.0
        squares = torch.zeros(len(d), dtype=d.dtype, device=d.device)
        d_norms = norms_along(d, 2)
        if layer.weight.requires_grad:
            hidden = norms(norms_along(xhat, 2) * d_norms)
            squares = squares + (norms((xhat * d).sum(dim=2)) + rounding * hidden).square()
        if layer.bias is not None and layer.bias.requires_grad:
            hidden = length**0.5 * norms(d_norms)
            squares = squares + (norms(d.sum(dim=2)) + rounding * hidden).square()
        return squares

    def weighted_sum(
        self,
        seen: Captured,
        factors: Tensor,
        into: Mapping[int, Tensor] = NOWHERE,
        *,
        views: int = 1,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The same sums of c * d, over the records too."""
        layer, (xhat, d) = seen.layer, self._laid_out(seen)
        assert isinstance(layer, (nn.GroupNorm, nn.LayerNorm))
        d = weighted(d, factors)
        if layer.weight.requires_grad:
            yield layer.weight, record_sums.over(xhat * d, 0, 2).view_as(layer.weight)
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, record_sums.over(d, 0, 2).view_as(layer.bias)

    def _laid_out(self, seen: Captured) -> tuple[Tensor, Tensor]:
        """Return xhat and d as (batch, weights, positions)."""
        layer, x, d = seen.layer, seen.input, seen.output_gradient
        if isinstance(layer, nn.GroupNorm):
            xhat = functional.group_norm(x, layer.num_groups, eps=layer.eps)
            return xhat.reshape(*x.shape[:2], -1), d.reshape(*x.shape[:2], -1)
        assert isinstance(layer, nn.LayerNorm)
        axes = len(layer.normalized_shape)
        if x.ndim == axes:
            raise no_kernel(layer, "normalises over records", "keep records the first axis")
        xhat = functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
        shape = (len(x), -1, layer.weight.numel())
        return xhat.reshape(shape).transpose(1, 2), d.reshape(shape).transpose(1, 2)


class LstmKernel(Kernel):
    """A Linear over the steps, from [x_t, h_(t-1)] to the gates z_t, once d is known of each z_t.

    In a chain both are watched in the pass itself; elsewhere the layer is replayed for them, once a
    step, forward and backward.
    """

    names = frozenset({"weight", "bias", "second_bias"})

    def shapes(self, layer: nn.Module) -> dict[str, tuple[int, ...]]:
        assert isinstance(layer, Lstm)
        gates = 4 * layer.units
        weight = gates, layer.inputs + layer.units
        return {"weight": weight, "bias": (gates,), "second_bias": (gates,)}

    def places(self, output: Tensor) -> int:
        """One: a step waits for the one before it."""
        return 1

    def forward(self, layer: nn.Module, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Watch the gates' inputs and the states."""
        assert isinstance(layer, Lstm)
        layer.check(x)
        gates = layer.projected(x)
        states = Recurrence.apply(gates, layer.recurrent.detach())
        return states[:, -1], (gates, states)

    def keep(self, seen: Captured, inner: tuple[Tensor, ...], gradient: Tensor) -> None:
        """Keep what a replay would find."""
        seen.kept["replayed"] = _steps(seen.input, inner[1]), gradient

    def squared_norms(self, seen: Captured, views: int = 1) -> Tensor:
        """The positions' form; a second bias has the gradient of the first."""
        layer, (a, d) = seen.layer, self._replayed(seen)
        assert isinstance(layer, Lstm)
        a, d = (side_by_side(v.transpose(1, 2)[:, None], views) for v in (a, d))
        squares = positions(layer.weight, layer.bias, a, d)
        return squares + positions(layer.weight.detach(), layer.second_bias, a, d)

    def weighted_sum(
        self,
        seen: Captured,
        factors: Tensor,
        into: Mapping[int, Tensor] = NOWHERE,
        *,
        views: int = 1,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(c * d)^T a and the sum of c * d, over records and steps."""
        layer, (a, d) = seen.layer, self._replayed(seen)
        assert isinstance(layer, Lstm)
        # Step by step, as the pass has made them: nothing is copied.
        d, a = (v.transpose(0, 1) for v in (weighted(d, factors), a))
        yield from record_sums.products(layer.weight, (layer.bias, layer.second_bias), a, d)

    def gradients(self, seen: Captured) -> dict[str, Tensor]:
        """Form them from the gates' gradients: no pass a record."""
        a, d = self._replayed(seen)
        formed = {"weight": d.transpose(1, 2) @ a, "bias": d.sum(dim=1)}
        formed["second_bias"] = formed["bias"]
        own = dict(seen.layer.named_parameters(recurse=False))
        return {name: formed[name] for name, p in own.items() if p.requires_grad}

    def _replayed(self, seen: Captured) -> tuple[Tensor, ...]:
        """Return [x_t, h_(t-1)], (batch, steps, inputs + units), and d, (batch, steps, 4 units)."""
        if "replayed" not in seen.kept:
            seen.kept["replayed"] = self._replay(seen)
        return seen.kept["replayed"]

    def _replay(self, seen: Captured) -> tuple[Tensor, Tensor]:
        layer = seen.layer
        assert isinstance(layer, Lstm)
        with torch.enable_grad():
            gates = layer.projected(seen.input).detach().requires_grad_()
            states = Recurrence.apply(gates, layer.recurrent.detach())
            (d,) = torch.autograd.grad(states[:, -1], gates, seen.output_gradient)
        return _steps(seen.input, states), d


def _steps(x: Tensor, states: Tensor) -> Tensor:
    """Return [x_t, h_(t-1)] of every step: (batch, steps, inputs + units)."""
    before = functional.pad(states.detach().transpose(0, 1)[:-1], (0, 0, 0, 0, 1, 0))
    return torch.cat([x.transpose(0, 1), before], dim=2).transpose(0, 1)


class AnyKernel(Kernel):
    """Any layer from one tensor to one tensor that treats records apart: gradients are formed."""

    def squared_norms(self, seen: Captured, views: int = 1) -> Tensor:
        """Sum the squares of the formed gradients; over views, with what rounding may hide.

        The gradients are kept: a second pass over other rows may round, or draw, otherwise.
        """
        formed = seen.kept[FORMED] = tuple(self.gradients(seen).values())
        return torch.stack([squares_of(gradient, views) for gradient in formed]).sum(0)

    def weighted_sum(
        self,
        seen: Captured,
        factors: Tensor,
        into: Mapping[int, Tensor] = NOWHERE,
        *,
        views: int = 1,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Contract the formed gradients with the factors."""
        own = [p for p in seen.layer.parameters(recurse=False) if p.requires_grad]
        dropped = factors == 0.0
        for parameter, gradient in zip(own, seen.kept[FORMED], strict=True):
            # The layer may have no finite gradient where the record's input was set to 0.
            kept = zero_rows(gradient, dropped)
            wide = torch.float64 if views > 1 else factors.dtype
            found = torch.einsum("b,b...->...", factors.to(wide), kept.to(wide))
            yield parameter, found.to(factors.dtype)


KERNELS: dict[type[nn.Module], Kernel] = {
    nn.Linear: LinearKernel(),
    nn.Conv2d: Conv2dKernel(),
    WeightStandardisedConv2d: WeightStandardisedKernel(),
    nn.GroupNorm: NormKernel(),
    nn.LayerNorm: NormKernel(),
    Lstm: LstmKernel(),
}
ANY = AnyKernel()


def kernel_of(layer: nn.Module) -> Kernel:
    """Look the exact type up: a subclass, or a layer with more parameters, computes otherwise."""
    kernel = KERNELS.get(type(layer), ANY)
    names = {name for name, _ in layer.named_parameters(recurse=False)}
    return kernel if names <= kernel.names else ANY


def _patches(layer: nn.Conv2d, a: Tensor, d: Tensor) -> Tensor:
    """Return the patches of padded images, (rows, taps, positions), as `functional.unfold` does.

    One copy of a view: a third of the time that `unfold` takes on a CPU.
    """
    rows, channels, down, right = a.stride()
    strides = [step * pixel for step, pixel in zip(layer.stride, (down, right), strict=True)]
    taps = [apart * pixel for apart, pixel in zip(layer.dilation, (down, right), strict=True)]
    shape = (*a.shape[:2], *layer.kernel_size, *d.shape[2:])
    view = a.as_strided(shape, (rows, channels, *taps, *strides))
    return view.reshape(a.shape[0], -1, d[0, 0].numel())


def _image_norms(a: Tensor, views: int) -> Tensor:
    """||x_i|| of padded images, those of one record together: (batch,)."""
    return at_least_norms(a if views == 1 else a.unflatten(0, (-1, views)))


def _patches_of_a_pixel(layer: nn.Conv2d) -> int:
    """Return in how many patches a pixel lies at most, so that ||A_i||^2 <= that times ||x_i||^2.

    Along an axis, k taps that are e apart meet patches every s pixels: every s / gcd(s, e)-th tap.
    """
    axes = zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    return math.prod(math.ceil(k * math.gcd(s, e) / s) for k, s, e in axes)


def _padded(layer: nn.Conv2d, x: Tensor) -> Tensor:
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


def _unfolded(values: Tensor) -> int:
    return UNFOLDED.get(values.device.type, UNFOLDED["cpu"])
