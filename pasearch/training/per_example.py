"""Sums of bounded per-example gradients, without forming the gradients.

One forward and one backward pass give, for every trainable layer, its input a and the gradient d of
the summed loss with respect to its output; row i of both belongs to record i alone. From these

    Linear, one row a record        ||g_i||^2 = (||a_i||^2 + 1) ||d_i||^2
                                    sum_i c_i g_i = (c * d)^T a
    Linear over L positions,        g_i = D_i A_i^T, A_i (inputs, L), D_i (outputs, L);
    Conv2d after unfolding          ||g_i||^2 from g_i itself, or sum((A_i^T A_i) * (D_i^T D_i)),
                                    whichever is cheaper (Bu et al. 2022)
    Lstm                            a Linear over its L steps: A_i holds [x_t, h_(t-1)], D_i the
                                    gradients of the gates, from one replay of the layer
    GroupNorm, LayerNorm            weight: sum over positions of d * xhat; bias: of d
    Conv2d, weight-standardised     the Conv2d's g_i times the Jacobian of the filters, formed
    any other layer                 g_i by torch.func.vmap of the layer's vector-Jacobian product

No hook stays on a module and no attribute on a tensor. The Gram form subtracts large numbers from
each other, so it is computed in float64.

Source: Goodfellow 2015 (Linear), Bu et al. 2022 (Conv2d). Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from pasearch.errors import UsageError
from pasearch.spaces.modules import Lstm, WeightStandardisedConv2d
from pasearch.training.bounding import AdaptiveQuantile, Bounding, Flat, PerLayer

UNFOLDED = 2**23
"""Most numbers in one unfolded input of a convolution: 32 MiB, so that memory stays flat."""

ROUNDINGS = 2.0
"""How many roundings a term of a sum over positions meets, in units of a float's own: the product
and the sum, in the norm and again in the weighted sum, half a unit each."""

PIECE = 256
"""A longer norm is that of the norms of its pieces."""

Loss = Callable[[Tensor], Tensor]
"""From the network's output, (batch, ...), to each record's own loss, (batch,)."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What one trainable layer saw and got back: all that its gradients depend on.

    Args:
        layer: The module that owns the parameters.
        input: a, (batch, ...).
        output_gradient: d, (batch, ...), gradient of the summed loss.
    """

    layer: nn.Module
    input: Tensor
    output_gradient: Tensor

    def without(self, bad: Tensor) -> Captured:
        """Return the same with the rows of the records marked in `bad`, (batch,), set to 0."""
        return replace(
            self,
            input=_zero_rows(self.input, bad),
            output_gradient=_zero_rows(self.output_gradient, bad),
        )


def clipped_sum(
    network: nn.Module, x: Tensor, loss: Loss, bounding: Bounding | None, mask: Tensor
) -> list[Tensor]:
    """Return the sum over records of their bounded gradients.

    Guarantee: changing one record changes the sum by at most `bounding.sensitivity` in L2 norm if
    the record's mask is False in one of the two worlds. A record with a gradient that is not finite
    adds exactly 0. The network's parameters and their `.grad` are not touched.

    Args:
        network: Accepted by `validate`.
        x: Records, (batch, ...); at least one.
        loss: Each record's own loss.
        bounding: None sums the gradients as they are (declared-public data only).
        mask: bool, (batch,); False for null records.

    Returns:
        list[Tensor]: Like `trainable_parameters(network)`, in their order.
    """
    return clipped_sum_and_counts(network, x, loss, bounding, mask)[0]


def clipped_sum_and_counts(
    network: nn.Module,
    x: Tensor,
    loss: Loss,
    bounding: Bounding | None,
    mask: Tensor,
    *,
    views: int = 1,
) -> tuple[list[Tensor], Tensor]:
    """Return `clipped_sum`, and how many norms lie within the bound, about one half each.

    Guarantee: changing one record, as there, changes each count by at most 1/2.

    Args:
        network: As there.
        x: Rows, (batch * views, ...), those of one record side by side.
        loss: Each row's own loss.
        bounding: As there.
        mask: bool, (batch,).
        views: How many rows a record has; its gradient is their mean, which is then bounded.

    Returns:
        The sums, and the sum over records of [norm <= C] - 1/2: float64, (1,), or (layers,) where
        every layer has its own bound. Null records add 0, and one that is not finite adds -1/2.
    """
    if isinstance(bounding, AdaptiveQuantile):
        raise UsageError("an adaptive bound has no factors of its own: give its `at(bounds)`.")
    if len(x) != views * len(mask):
        raise ValueError(f"x has {len(x)} rows: expected {views} views of {len(mask)} records.")
    mean = loss if views == 1 else lambda outputs: loss(outputs) / views
    captured = _in_order(network, capture(network, x, mean))
    squares = torch.stack([_kernel(each.layer).squared_norms(each, views) for each in captured])
    layered = isinstance(bounding, PerLayer)
    norms = (squares if layered else squares.sum(dim=0)).sqrt()
    finite = torch.isfinite(squares.sum(dim=0))
    factors = torch.ones_like(norms) if bounding is None else bounding.factors(norms)
    factors = torch.where(mask & finite, factors, torch.zeros_like(factors))
    counts = torch.zeros(len(captured) if layered else 1, dtype=torch.float64)
    if isinstance(bounding, (Flat, PerLayer)):
        centred = torch.where(mask, (bounding.within(norms) & finite).double() - 0.5, 0.0)
        counts = centred.reshape(-1, len(mask)).sum(dim=1).cpu()
    if not bool(finite.all()):
        bad = ~finite.repeat_interleave(views)
        captured = [each.without(bad) for each in captured]  # 0 * NaN is NaN: mask first
    factors = factors.repeat_interleave(views, dim=-1)
    sums: dict[int, Tensor] = {}
    for place, each in enumerate(captured):
        own = factors[place] if layered else factors
        for parameter, value in _kernel(each.layer).weighted_sum(each, own):
            sums[id(parameter)] = value
    return [
        sums[id(parameter)] if id(parameter) in sums else torch.zeros_like(parameter)
        for parameter in trainable_parameters(network)
    ], counts


def formed_gradients(network: nn.Module, x: Tensor, loss: Loss) -> Tensor:
    """Return every record's gradient, formed: (batch, parameters), as `trainable_parameters` go.

    Memory: batch * parameters numbers. `clipped_sum` never needs it; noise on each record does.
    """
    found: dict[int, Tensor] = {}
    for each in capture(network, x, loss):
        own = dict(each.layer.named_parameters(recurse=False))
        for name, gradient in _kernel(each.layer).gradients(each).items():
            found[id(own[name])] = gradient.flatten(1)
    rows = [
        found[id(p)] if id(p) in found else x.new_zeros(len(x), p.numel(), dtype=p.dtype)
        for p in trainable_parameters(network)
    ]
    return torch.cat(rows, dim=1)


def _in_order(network: nn.Module, captured: list[Captured]) -> list[Captured]:
    """Return what layers saw in the order of `trainable_layers`; one that was not used is left out.

    A layer's own bound and count belong to its place in the network, not in the forward pass.
    """
    by_layer = {id(each.layer): each for each in captured}
    return [by_layer[id(x)] for x in trainable_layers(network) if id(x) in by_layer]


def trainable_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that training changes, in the module's order."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def capture(network: nn.Module, x: Tensor, loss: Loss) -> list[Captured]:
    """Run forward and backward once; return what every trainable layer saw.

    Raises:
        UsageError: A layer whose rows are not the records, or whose tensors were overwritten.

    Cost: as much as a plain backward pass, less the parameters' gradients.
    """
    with _recorded(network) as seen, torch.enable_grad():
        losses = loss(network(x))
        _check_seen(seen, len(x))
        outputs = [each.output for each in seen]
        gradients = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
    return [
        Captured(
            each.layer,
            each.input.detach(),
            torch.zeros_like(each.output) if gradient is None else gradient,
        )
        for each, gradient in zip(seen, gradients, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Seen:
    layer: nn.Module
    input: Tensor
    output: Tensor
    versions: tuple[int, int]


@contextmanager
def _recorded(network: nn.Module) -> Iterator[list[_Seen]]:
    seen: list[_Seen] = []

    def record(
        layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        tensors = (*arguments, output)
        if len(tensors) != 2 or named or not all(isinstance(t, Tensor) for t in tensors):
            raise _refused(
                layer, "does not map one tensor to one tensor", "wrap it so that it does"
            )
        if any(layer is other.layer for other in seen):
            raise _refused(layer, "is used twice in one pass", "give each place its own layer")
        value = arguments[0]
        seen.append(_Seen(layer, value, output, (value._version, output._version)))

    hooks = [
        layer.register_forward_hook(record, with_kwargs=True) for layer in trainable_layers(network)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _check_seen(seen: list[_Seen], batch: int) -> None:
    if not seen:
        raise UsageError(
            "The network used none of its trainable layers: call them in `forward`, as modules."
        )
    for each in seen:
        if each.input.shape[:1] != (batch,) or each.output.shape[:1] != (batch,):
            raise _refused(each.layer, "has other rows than records", "keep records the first axis")
        if each.versions != (each.input._version, each.output._version):
            raise _refused(
                each.layer, "saw a tensor that was then overwritten", "work out of place"
            )


def _refused(layer: nn.Module, fault: str, remedy: str) -> UsageError:
    return UsageError(
        f"Layer {layer} {fault}, so a record's gradient cannot be told apart: {remedy}."
    )


def trainable_layers(network: nn.Module) -> list[nn.Module]:
    """Return the modules that own a trainable parameter directly."""
    return [
        module
        for module in network.modules()
        if any(p.requires_grad for p in module.parameters(recurse=False))
    ]


REFUSED: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.modules.batchnorm._BatchNorm, "mixes records; use nn.GroupNorm or nn.LayerNorm"),
    (nn.modules.dropout._DropoutNd, "draws from torch's global state; use KeyedDropout"),
    (nn.RReLU, "draws from torch's global state; use nn.LeakyReLU"),
    (nn.FractionalMaxPool2d, "draws from torch's global state; use nn.MaxPool2d"),
    (nn.RNNBase, "maps to a pair; use pasearch.spaces.modules.Lstm"),
    (nn.MultiheadAttention, "owns layers whose products cannot be told apart yet"),
    (nn.ParameterList, "holds parameters that no layer of its own uses; give them a layer"),
    (nn.ParameterDict, "holds parameters that no layer of its own uses; give them a layer"),
)


def validate(network: nn.Module) -> list[str]:
    """Return every reason why the network cannot be trained record by record; none is good.

    Each names the module's path, what is wrong and what to use instead.
    """
    problems = []
    owners: dict[int, str] = {}
    paths: dict[int, str] = {}
    for path, module in network.named_modules(remove_duplicate=False):
        where = f"{path or 'the network'} ({type(module).__name__})"
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if id(module) in paths:
            if own:
                problems.append(f"{where}: is {paths[id(module)]} again; give each place its own.")
            continue
        paths[id(module)] = where
        problems += [f"{where}: {fault}" for fault in _faults(module, own)]
        for parameter in own:
            if id(parameter) in owners:
                problems.append(
                    f"{where}: shares a parameter with {owners[id(parameter)]}; copy it."
                )
            owners[id(parameter)] = where
    if not owners:
        problems.append("the network: has no trainable parameter; set trainable=True somewhere.")
    return problems


def _faults(module: nn.Module, own: list[nn.Parameter]) -> Iterator[str]:
    """Yield what is wrong with one module, whose own trainable parameters are given."""
    for kind, why in REFUSED:
        if isinstance(module, kind):
            yield f"{why}."
    if getattr(module, "inplace", False):
        yield "works in place on what the layer before saw; inplace=False."
    if getattr(module, "max_norm", None) is not None:
        yield "rescales the weights it reads, without noise; max_norm=None."
    if getattr(module, "sparse", False) or getattr(module, "scale_grad_by_freq", False):
        yield "has gradients of another form; sparse=False, scale_grad_by_freq=False."
    norm = isinstance(module, (nn.GroupNorm, nn.LayerNorm))
    if norm and not bool(torch.tensor(module.eps, dtype=torch.float32) > 0):
        yield "divides by a deviation, which is 0 of a record that is constant; eps=1e-5."
    if any(True for _ in module.buffers(recurse=False)):
        yield "keeps buffers, which records could reach; use parameters."
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        yield "has hooks, which may change what it computes; remove them."
    if any(p.dtype not in (torch.float32, torch.float64) for p in own):
        yield "has parameters too coarse for a norm; use float32."
    if own and any(p.requires_grad for child in module.children() for p in child.parameters()):
        yield "has parameters beside its layers; give them a layer."


class Kernel:
    """Norms and weighted sums of one layer type's per-example gradients."""

    names = frozenset({"weight", "bias"})
    """The parameters that the kernel knows of."""

    def squared_norms(self, seen: Captured, views: int = 1) -> Tensor:
        """Return ||g_i||^2 of the layer's trainable parameters together, (batch / views,).

        Of several views, g_i is the sum of their rows' gradients: they are more positions.
        """
        raise NotImplementedError

    def weighted_sum(self, seen: Captured, factors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each trainable parameter with sum_i c_i g_i, i over rows."""
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

    def squared_norms(self, seen: Captured, views: int = 1) -> Tensor:
        """(||a||^2 + 1) ||d||^2, or the positions' form."""
        layer, a, d = seen.layer, seen.input, seen.output_gradient
        assert isinstance(layer, nn.Linear)
        if a.ndim > 2 or views > 1:
            inputs, positions = (
                _side_by_side(v.reshape(len(v), -1, v.shape[-1]).transpose(1, 2)[:, None], views)
                for v in (a, d)
            )
            return _positions(layer.weight, layer.bias, inputs, positions)
        squares = _row_squares(a) if layer.weight.requires_grad else 0.0
        if layer.bias is not None and layer.bias.requires_grad:
            squares = squares + 1.0
        return squares * _row_squares(d)

    def weighted_sum(self, seen: Captured, factors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(c * d)^T a and the sum of c * d."""
        layer = seen.layer
        assert isinstance(layer, nn.Linear)
        d = _weighted(seen.output_gradient, factors).flatten(0, -2)
        if layer.weight.requires_grad:
            yield layer.weight, d.T @ seen.input.flatten(0, -2)
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, d.sum(dim=0)


class Conv2dKernel(Kernel):
    """nn.Conv2d with any kernel, stride, padding, groups and dilation."""

    summed_in: torch.dtype | None = None
    """What the sum over records is added up in; None for the layer's own."""

    def squared_norms(self, seen: Captured, views: int = 1) -> Tensor:
        """Unfold the input, so that every output position is a row of a linear layer."""
        layer, d = seen.layer, seen.output_gradient
        assert isinstance(layer, nn.Conv2d)
        if d.ndim != 4:
            raise _refused(layer, "saw one image, not a batch", "keep records the first axis")
        a = _padded(layer, seen.input)
        taps = layer.weight[0].numel() * layer.groups
        rows = views * max(1, UNFOLDED // (taps * max(1, d[0, 0].numel()) * views))
        parts = zip(a.split(rows), d.split(rows), strict=True)
        squares = torch.cat([self._unfolded_norms(layer, *part, views) for part in parts])
        # A pixel that no patch holds, because a stride skips it, must not hide that it is NaN.
        return squares + 0.0 * a.reshape(len(squares), -1).sum(dim=1)

    def _unfolded_norms(self, layer: nn.Conv2d, a: Tensor, d: Tensor, views: int) -> Tensor:
        patches = functional.unfold(
            a,
            layer.kernel_size,  # pyright: ignore[reportArgumentType]
            dilation=layer.dilation,  # pyright: ignore[reportArgumentType]
            stride=layer.stride,  # pyright: ignore[reportArgumentType]
        )
        return self._position_norms(
            layer,
            _side_by_side(patches.unflatten(1, (layer.groups, -1)), views),
            _side_by_side(d.flatten(2).unflatten(1, (layer.groups, -1)), views),
        )

    def _position_norms(self, layer: nn.Conv2d, a: Tensor, d: Tensor) -> Tensor:
        return _positions(layer.weight, layer.bias, a, d)

    def _of_weight(self, layer: nn.Conv2d, gradient: Tensor) -> Tensor:
        """Return the weight's gradient, (..., *weight.shape), from that of the filters in use."""
        return gradient

    def weighted_sum(self, seen: Captured, factors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The weight's gradient of an ordinary convolution, for the output gradient c * d."""
        layer = seen.layer
        assert isinstance(layer, nn.Conv2d)
        d = _weighted(seen.output_gradient, factors)
        if layer.weight.requires_grad:
            gradient = conv2d_weight(
                _padded(layer, seen.input).to(self.summed_in),
                layer.weight.shape,
                d.to(self.summed_in),
                stride=layer.stride,  # pyright: ignore[reportArgumentType]
                dilation=layer.dilation,  # pyright: ignore[reportArgumentType]
                groups=layer.groups,
            )
            yield layer.weight, self._of_weight(layer, gradient).to(layer.weight.dtype)
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, d.sum(dim=(0, 2, 3))


class WeightStandardisedKernel(Conv2dKernel):
    """A convolution with filters v / s: its gradients, by the chain rule through them.

    With G the gradient with respect to v / s, all of one filter, and C what subtracts the mean,

        g = C G / s - v <v, G> / s^3,

    which is linear in G, so the weighted sum goes through it once. A norm needs every record's G:
    it is formed. A record's G may be far larger than its g; the sum of all G is in float64, so that
    it does not round away what the others add.
    """

    summed_in = torch.float64

    def _position_norms(self, layer: nn.Conv2d, a: Tensor, d: Tensor) -> Tensor:
        squares = _positions(layer.weight.detach(), layer.bias, a, d)  # the bias alone
        if layer.weight.requires_grad:
            rows = max(1, UNFOLDED // layer.weight.numel())
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
        hidden = unit * taps * _norms(formed / scale)
        if length > 1:
            d_norms = _norms(d.flatten(1, 2) / scale.view(-1, 1))
            hidden = hidden + unit * length * _norms(a) * d_norms
        return (_norms(self._of_weight(layer, formed)) + hidden).square()

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

    def squared_norms(self, seen: Captured, views: int = 1) -> Tensor:
        """Sum over positions, too large by what rounding may hide, as `_positions` is."""
        layer, (xhat, d) = seen.layer, self._laid_out(seen)
        assert isinstance(layer, (nn.GroupNorm, nn.LayerNorm))
        xhat, d = _side_by_side(xhat, views), _side_by_side(d, views)
        length = d.shape[2]
        rounding = ROUNDINGS * length * torch.finfo(d.dtype).eps if length > 1 else 0.0
        squares = torch.zeros(len(d), dtype=d.dtype, device=d.device)
        d_norms = _norms_along(d, 2)
        if layer.weight.requires_grad:
            hidden = _norms(_norms_along(xhat, 2) * d_norms)
            squares = squares + (_norms((xhat * d).sum(dim=2)) + rounding * hidden).square()
        if layer.bias is not None and layer.bias.requires_grad:
            hidden = length**0.5 * _norms(d_norms)
            squares = squares + (_norms(d.sum(dim=2)) + rounding * hidden).square()
        return squares

    def weighted_sum(self, seen: Captured, factors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The same sums of c * d, over the records too."""
        layer, (xhat, d) = seen.layer, self._laid_out(seen)
        assert isinstance(layer, (nn.GroupNorm, nn.LayerNorm))
        d = _weighted(d, factors)
        if layer.weight.requires_grad:
            yield layer.weight, (xhat * d).sum(dim=(0, 2)).view_as(layer.weight)
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, d.sum(dim=(0, 2)).view_as(layer.bias)

    def _laid_out(self, seen: Captured) -> tuple[Tensor, Tensor]:
        """Return xhat and d as (batch, weights, positions)."""
        layer, x, d = seen.layer, seen.input, seen.output_gradient
        if isinstance(layer, nn.GroupNorm):
            xhat = functional.group_norm(x, layer.num_groups, eps=layer.eps)
            return xhat.reshape(*x.shape[:2], -1), d.reshape(*x.shape[:2], -1)
        assert isinstance(layer, nn.LayerNorm)
        axes = len(layer.normalized_shape)
        if x.ndim == axes:
            raise _refused(layer, "normalises over records", "keep records the first axis")
        xhat = functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
        shape = (len(x), -1, layer.weight.numel())
        return xhat.reshape(shape).transpose(1, 2), d.reshape(shape).transpose(1, 2)


class LstmKernel(Kernel):
    """A Linear over the steps, from [x_t, h_(t-1)] to the gates z_t, once d is known of each z_t.

    The layer is replayed for that, forward and backward, for all records at once.
    """

    names = frozenset({"weight", "bias", "second_bias"})

    def squared_norms(self, seen: Captured, views: int = 1) -> Tensor:
        """The positions' form; a second bias has the gradient of the first."""
        layer, (a, d) = seen.layer, self._replayed(seen)
        assert isinstance(layer, Lstm)
        a, d = (_side_by_side(v.transpose(1, 2)[:, None], views) for v in (a, d))
        squares = _positions(layer.weight, layer.bias, a, d)
        return squares + _positions(layer.weight.detach(), layer.second_bias, a, d)

    def weighted_sum(self, seen: Captured, factors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(c * d)^T a and the sum of c * d, over records and steps."""
        layer, (a, d) = seen.layer, self._replayed(seen)
        assert isinstance(layer, Lstm)
        d = _weighted(d, factors).flatten(0, 1)
        if layer.weight.requires_grad:
            yield layer.weight, d.T @ a.flatten(0, 1)
        for bias in (layer.bias, layer.second_bias):
            if bias is not None and bias.requires_grad:
                yield bias, d.sum(dim=0)

    def gradients(self, seen: Captured) -> dict[str, Tensor]:
        """Form them from the gates' gradients: no pass a record."""
        a, d = self._replayed(seen)
        formed = {"weight": d.transpose(1, 2) @ a, "bias": d.sum(dim=1)}
        formed["second_bias"] = formed["bias"]
        own = dict(seen.layer.named_parameters(recurse=False))
        return {name: formed[name] for name, p in own.items() if p.requires_grad}

    def _replayed(self, seen: Captured) -> tuple[Tensor, Tensor]:
        """Return [x_t, h_(t-1)], (batch, steps, inputs + units), and d, (batch, steps, 4 units)."""
        layer = seen.layer
        assert isinstance(layer, Lstm)
        with torch.enable_grad():
            gates = layer.projected(seen.input).detach().requires_grad_()
            states = layer.states(gates)
            (d,) = torch.autograd.grad(states[:, -1], gates, seen.output_gradient)
        before = functional.pad(states.detach()[:, :-1], (0, 0, 1, 0))
        return torch.cat([seen.input, before], dim=2), d


class AnyKernel(Kernel):
    """Any layer from one tensor to one tensor that treats records apart: gradients are formed."""

    def squared_norms(self, seen: Captured, views: int = 1) -> Tensor:
        """Sum the squares of the formed gradients; over views, with what rounding may hide."""
        return torch.stack([_squares(g, views) for g in self.gradients(seen).values()]).sum(0)

    def weighted_sum(self, seen: Captured, factors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Contract the formed gradients with the factors."""
        own = dict(seen.layer.named_parameters(recurse=False))
        dropped = factors == 0.0
        for name, gradient in self.gradients(seen).items():
            # The layer may have no finite gradient where the record's input was set to 0.
            kept = _zero_rows(gradient, dropped)
            yield own[name], torch.einsum("b,b...->...", factors, kept)


KERNELS: dict[type[nn.Module], Kernel] = {
    nn.Linear: LinearKernel(),
    nn.Conv2d: Conv2dKernel(),
    WeightStandardisedConv2d: WeightStandardisedKernel(),
    nn.GroupNorm: NormKernel(),
    nn.LayerNorm: NormKernel(),
    Lstm: LstmKernel(),
}
ANY = AnyKernel()


def _kernel(layer: nn.Module) -> Kernel:
    """Look the exact type up: a subclass, or a layer with more parameters, computes otherwise."""
    kernel = KERNELS.get(type(layer), ANY)
    names = {name for name, _ in layer.named_parameters(recurse=False)}
    return kernel if names <= kernel.names else ANY


def _positions(weight: Tensor, bias: Tensor | None, a: Tensor, d: Tensor) -> Tensor:
    """||g_i||^2 of a layer applied at L positions, too large by what rounding may hide.

    Terms at different positions may cancel: then g_i is small, and the rounding of the sum over
    positions, here or in `weighted_sum`, is not. It is at most u L ||A_i|| ||D_i|| for the weight
    and u L sqrt(L) ||D_i|| for the bias (Higham 2002, section 3.1), so that much is added.

    Args:
        weight: The layer's weight.
        bias: The layer's bias.
        a: (batch, groups, inputs, L).
        d: (batch, groups, outputs, L).
    """
    squares = torch.zeros(len(a), dtype=a.dtype, device=a.device)
    inputs, length = a.shape[2:]
    rounding = ROUNDINGS * length * torch.finfo(a.dtype).eps if length > 1 else 0.0
    d_norms = _norms_along(d.flatten(1), 1)
    if weight.requires_grad:
        if inputs * d.shape[2] <= 2 * length**2:
            gradient = d @ a.transpose(2, 3)
            computed = _norms_along(gradient.flatten(1), 1)
        else:
            a64, d64 = a.double(), d.double()
            gram = (a64.transpose(2, 3) @ a64) * (d64.transpose(2, 3) @ d64)
            computed = gram.sum(dim=(1, 2, 3)).clamp(min=0.0).sqrt().to(squares.dtype)
        a_norms = _norms_along(a.flatten(1), 1)
        squares = squares + (computed + rounding * a_norms * d_norms).square()
    if bias is not None and bias.requires_grad:
        computed = _norms_along(d.sum(dim=3).flatten(1), 1)
        squares = squares + (computed + rounding * length**0.5 * d_norms).square()
    return squares


def _squares(gradients: Tensor, views: int) -> Tensor:
    """||g_i||^2 of formed gradients, (batch * views, ...), with what a sum over views may hide."""
    if views == 1:
        return gradients.flatten(1).square().sum(dim=1)
    parts = gradients.flatten(1).unflatten(0, (-1, views))
    sizes = _norms_along(parts, 2).sum(dim=1)
    hidden = ROUNDINGS * views * torch.finfo(parts.dtype).eps * sizes
    return (_norms(parts.sum(dim=1)) + hidden).square()


def _side_by_side(values: Tensor, views: int) -> Tensor:
    """(batch * views, ..., L) to (batch, ..., views * L): the views of a record as positions."""
    if views == 1:
        return values
    return values.unflatten(0, (-1, views)).movedim(1, -2).flatten(-2)


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


def _norms_along(values: Tensor, axis: int) -> Tensor:
    """||v|| along one axis, right to 1e-6 of itself at any length.

    On a CPU torch adds the squares up in few float32 numbers: the norm of a million equal ones is
    too small by 1e-3. Of pieces it is by 5e-7, a tenth of the time that float64 takes.
    """
    length, norm = values.shape[axis], torch.linalg.vector_norm
    if length <= PIECE:
        return norm(values, dim=axis)
    whole = length - length % PIECE
    pieces = values.narrow(axis, 0, whole).unflatten(axis, (-1, PIECE))
    rest = values.narrow(axis, whole, length - whole)
    found = [norm(pieces, dim=axis + 1), norm(rest, dim=axis, keepdim=True)]
    return _norms_along(torch.cat(found, dim=axis), axis)


def _norms(values: Tensor) -> Tensor:
    """||v_i||, (batch,), of whatever lies behind the first axis."""
    return _norms_along(values.flatten(1), 1)


def _row_squares(values: Tensor) -> Tensor:
    """||v_i||^2, (batch,), too large by what squares of tiny numbers may lose to underflow."""
    lost = 2 * values.shape[1] * torch.finfo(values.dtype).tiny
    return _norms_along(values, 1).square() + lost


def _weighted(d: Tensor, factors: Tensor) -> Tensor:
    return d * factors.view(-1, *(1 for _ in d.shape[1:]))


def _zero_rows(values: Tensor, bad: Tensor) -> Tensor:
    # A copy of the same layout: sums over another are rounded otherwise.
    return values.clone().masked_fill_(bad.view(-1, *(1 for _ in values.shape[1:])), 0)
