"""Sums of bounded per-example gradients, without forming the gradients.

One forward and one backward pass give, for every trainable layer, its input a and the gradient d of
the summed loss with respect to its output; row i of both belongs to record i alone. From these

    Linear, one row a record        ||g_i||^2 = (||a_i||^2 + 1) ||d_i||^2
                                    sum_i c_i g_i = (c * d)^T a
    Linear over L positions,        g_i = D_i A_i^T, A_i (inputs, L), D_i (outputs, L);
    Conv2d after unfolding          ||g_i||^2 from g_i itself, or sum((A_i^T A_i) * (D_i^T D_i)),
                                    whichever is cheaper (Bu et al. 2022)
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
from pasearch.training.bounding import Bounding

UNFOLDED = 2**23
"""Most numbers in one unfolded input of a convolution: 32 MiB, so that memory stays flat."""

ROUNDINGS = 2.0
"""How many roundings a term of a sum over positions meets, in units of a float's own: the product
and the sum, in the norm and again in the weighted sum, half a unit each."""

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
    captured = capture(network, x, loss)
    squares = torch.stack([_kernel(each.layer).squared_norms(each) for each in captured])
    norms = squares.sum(dim=0).sqrt()
    finite = torch.isfinite(norms)
    factors = torch.ones_like(norms) if bounding is None else bounding.factors(norms)
    factors = torch.where(mask & finite, factors, torch.zeros_like(factors))
    if not bool(finite.all()):
        captured = [each.without(~finite) for each in captured]  # 0 * NaN is NaN: mask first
    sums: dict[int, Tensor] = {}
    for each in captured:
        for parameter, value in _kernel(each.layer).weighted_sum(each, factors):
            sums[id(parameter)] = value
    return [
        sums[id(parameter)] if id(parameter) in sums else torch.zeros_like(parameter)
        for parameter in trainable_parameters(network)
    ]


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
    (nn.RNNBase, "maps to a pair; no closed form yet"),
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

    def squared_norms(self, seen: Captured) -> Tensor:
        """Return ||g_i||^2 of the layer's trainable parameters together, (batch,)."""
        raise NotImplementedError

    def weighted_sum(self, seen: Captured, factors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each trainable parameter with sum_i c_i g_i."""
        raise NotImplementedError


class LinearKernel(Kernel):
    """nn.Linear on (batch, inputs), or (batch, ..., inputs): the middle axes are positions."""

    def squared_norms(self, seen: Captured) -> Tensor:
        """(||a||^2 + 1) ||d||^2, or the positions' form."""
        layer, a, d = seen.layer, seen.input, seen.output_gradient
        assert isinstance(layer, nn.Linear)
        if a.ndim > 2:
            positions = d.flatten(1, -2).transpose(1, 2)[:, None]
            inputs = a.flatten(1, -2).transpose(1, 2)[:, None]
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

    def squared_norms(self, seen: Captured) -> Tensor:
        """Unfold the input, so that every output position is a row of a linear layer."""
        layer, d = seen.layer, seen.output_gradient
        assert isinstance(layer, nn.Conv2d)
        if d.ndim != 4:
            raise _refused(layer, "saw one image, not a batch", "keep records the first axis")
        a = _padded(layer, seen.input)
        taps = layer.weight[0].numel() * layer.groups
        rows = max(1, UNFOLDED // (taps * max(1, d[0, 0].numel())))
        parts = zip(a.split(rows), d.split(rows), strict=True)
        squares = torch.cat([self._unfolded_norms(layer, *part) for part in parts])
        # A pixel that no patch holds, because a stride skips it, must not hide that it is NaN.
        return squares + 0.0 * a.flatten(1).sum(dim=1)

    def _unfolded_norms(self, layer: nn.Conv2d, a: Tensor, d: Tensor) -> Tensor:
        patches = functional.unfold(
            a,
            layer.kernel_size,  # pyright: ignore[reportArgumentType]
            dilation=layer.dilation,  # pyright: ignore[reportArgumentType]
            stride=layer.stride,  # pyright: ignore[reportArgumentType]
        )
        return _positions(
            layer.weight,
            layer.bias,
            patches.unflatten(1, (layer.groups, -1)),
            d.flatten(2).unflatten(1, (layer.groups, -1)),
        )

    def weighted_sum(self, seen: Captured, factors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The weight's gradient of an ordinary convolution, for the output gradient c * d."""
        layer = seen.layer
        assert isinstance(layer, nn.Conv2d)
        d = _weighted(seen.output_gradient, factors)
        if layer.weight.requires_grad:
            gradient = conv2d_weight(
                _padded(layer, seen.input),
                layer.weight.shape,
                d,
                stride=layer.stride,  # pyright: ignore[reportArgumentType]
                dilation=layer.dilation,  # pyright: ignore[reportArgumentType]
                groups=layer.groups,
            )
            yield layer.weight, gradient
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, d.sum(dim=(0, 2, 3))


class AnyKernel(Kernel):
    """Any layer from one tensor to one tensor that treats records apart: gradients are formed."""

    def squared_norms(self, seen: Captured) -> Tensor:
        """Sum the squares of the formed gradients."""
        gradients = self._gradients(seen)
        return torch.stack([g.flatten(1).square().sum(dim=1) for g in gradients.values()]).sum(0)

    def weighted_sum(self, seen: Captured, factors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Contract the formed gradients with the factors."""
        own = dict(seen.layer.named_parameters(recurse=False))
        dropped = factors == 0.0
        for name, gradient in self._gradients(seen).items():
            # The layer may have no finite gradient where the record's input was set to 0.
            kept = _zero_rows(gradient, dropped)
            yield own[name], torch.einsum("b,b...->...", factors, kept)

    def _gradients(self, seen: Captured) -> dict[str, Tensor]:
        own = dict(seen.layer.named_parameters(recurse=False))
        trained = {name: p.detach() for name, p in own.items() if p.requires_grad}

        def gradient(a: Tensor, d: Tensor) -> dict[str, Tensor]:
            def output(parameters: dict[str, Tensor]) -> Tensor:
                return torch.func.functional_call(seen.layer, parameters, (a[None],))[0]

            pull_back = torch.func.vjp(output, trained)[1]
            return pull_back(d)[0]

        return torch.func.vmap(gradient)(seen.input, seen.output_gradient)


KERNELS: dict[type[nn.Module], Kernel] = {nn.Linear: LinearKernel(), nn.Conv2d: Conv2dKernel()}
ANY = AnyKernel()


def _kernel(layer: nn.Module) -> Kernel:
    """Look the exact type up: a subclass, or a layer with more parameters, computes otherwise."""
    usual = {name for name, _ in layer.named_parameters(recurse=False)} <= {"weight", "bias"}
    return KERNELS.get(type(layer), ANY) if usual else ANY


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
    d_norms = torch.linalg.vector_norm(d.flatten(1), dim=1)
    if weight.requires_grad:
        if inputs * d.shape[2] <= 2 * length**2:
            gradient = d @ a.transpose(2, 3)
            computed = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
        else:
            a64, d64 = a.double(), d.double()
            gram = (a64.transpose(2, 3) @ a64) * (d64.transpose(2, 3) @ d64)
            computed = gram.sum(dim=(1, 2, 3)).clamp(min=0.0).sqrt().to(squares.dtype)
        a_norms = torch.linalg.vector_norm(a.flatten(1), dim=1)
        squares = squares + (computed + rounding * a_norms * d_norms).square()
    if bias is not None and bias.requires_grad:
        computed = torch.linalg.vector_norm(d.sum(dim=3).flatten(1), dim=1)
        squares = squares + (computed + rounding * length**0.5 * d_norms).square()
    return squares


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


def _row_squares(values: Tensor) -> Tensor:
    """||v_i||^2, (batch,), too large by what squares of tiny numbers may lose to underflow."""
    lost = values.shape[1] * torch.finfo(values.dtype).tiny
    return torch.linalg.vector_norm(values, dim=1).square() + lost


def _weighted(d: Tensor, factors: Tensor) -> Tensor:
    return d * factors.view(-1, *(1 for _ in d.shape[1:]))


def _zero_rows(values: Tensor, bad: Tensor) -> Tensor:
    return values.masked_fill(bad.view(-1, *(1 for _ in values.shape[1:])), 0)
