"""Sums of bounded per-example gradients, without forming the gradients.

One forward and one backward pass give, for every trainable layer, its input a and the gradient d of
the summed loss with respect to its output; row i of both belongs to record i alone. From these

    Linear, one row a record        ||g_i||^2 = (||a_i||^2 + 1) ||d_i||^2
                                    sum_i c_i g_i = (c * d)^T a
    Linear over L positions,        g_i = D_i A_i^T, A_i (inputs, L), D_i (outputs, L);
    Conv2d after unfolding          ||g_i||^2 from g_i itself, or as sum((A_i^T A_i) * (D_i^T D_i)),
                                    whichever is cheaper (Bu et al. 2022)
    any other layer                 g_i by torch.func.vmap of the layer's own vector-Jacobian product

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

from pasearch.errors import UsageError
from pasearch.training.bounding import Bounding

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
    keep = mask & torch.isfinite(norms)
    factors = torch.ones_like(norms) if bounding is None else bounding.factors(norms)
    factors = torch.where(keep, factors, torch.zeros_like(factors))
    if not bool(keep.all()):
        captured = [each.without(~keep) for each in captured]  # 0 * NaN is NaN: mask first
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

    Cost: as much as a plain backward pass, less the parameters' gradients.
    """
    with _recorded(network) as seen, torch.enable_grad():
        losses = loss(network(x))
        outputs = [output for _, _, output in seen]
        gradients = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
    return [
        Captured(layer, value.detach(), torch.zeros_like(output) if grad is None else grad)
        for (layer, value, output), grad in zip(seen, gradients, strict=True)
    ]


@contextmanager
def _recorded(network: nn.Module) -> Iterator[list[tuple[nn.Module, Tensor, Tensor]]]:
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def record(layer: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if len(arguments) != 1 or not isinstance(output, Tensor):
            raise UsageError(
                f"Layer {type(layer).__name__} does not map one tensor to one tensor, so a "
                "record's gradient cannot be told apart: wrap it in a module that does."
            )
        if any(layer is other for other, _, _ in seen):
            raise UsageError(
                f"Layer {type(layer).__name__} is used twice in one pass: give each place a layer "
                "of its own."
            )
        seen.append((layer, arguments[0], output))

    hooks = [layer.register_forward_hook(record) for layer in trainable_layers(network)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


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
    (nn.RNNBase, "maps to a pair; no closed form yet"),
    (nn.MultiheadAttention, "owns layers whose products cannot be told apart yet"),
)


def validate(network: nn.Module) -> list[str]:
    """Return every reason why the network cannot be trained record by record; none is good.

    Each names the module's path, what is wrong and what to use instead.
    """
    problems = []
    owners: dict[int, str] = {}
    for path, module in network.named_modules():
        where = f"{path or 'the network'} ({type(module).__name__})"
        problems += [f"{where}: {why}." for kind, why in REFUSED if isinstance(module, kind)]
        if getattr(module, "inplace", False):
            problems.append(f"{where}: works in place on what the layer before saw; inplace=False.")
        if any(True for _ in module.buffers(recurse=False)):
            problems.append(f"{where}: keeps buffers, which records could reach; use parameters.")
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if own and any(p.requires_grad for child in module.children() for p in child.parameters()):
            problems.append(f"{where}: has parameters beside its layers; give them a layer.")
        for parameter in own:
            if id(parameter) in owners:
                problems.append(f"{where}: shares a parameter with {owners[id(parameter)]}; copy it.")
            owners[id(parameter)] = where
    if not owners:
        problems.append("the network: has no trainable parameter; set trainable=True somewhere.")
    return problems


class Kernel:
    """Norms and weighted sums of one layer type's per-example gradients."""

    def squared_norms(self, seen: Captured) -> Tensor:
        """Return ||g_i||^2 of the layer's trainable parameters together, (batch,)."""
        raise NotImplementedError

    def weighted_sum(
        self, seen: Captured, factors: Tensor
    ) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield each trainable parameter with sum_i c_i g_i."""
        raise NotImplementedError


class LinearKernel(Kernel):
    """nn.Linear on (batch, inputs), or on (batch, ..., inputs) with the middle axes as positions."""

    def squared_norms(self, seen: Captured) -> Tensor:
        """(||a||^2 + 1) ||d||^2, or the positions' form."""
        layer, a, d = seen.layer, seen.input, seen.output_gradient
        assert isinstance(layer, nn.Linear)
        if a.ndim > 2:
            positions = d.flatten(1, -2).transpose(1, 2)[:, None]
            inputs = a.flatten(1, -2).transpose(1, 2)[:, None]
            return _positions(layer.weight, layer.bias, inputs, positions)
        squares = torch.linalg.vecdot(a, a) if layer.weight.requires_grad else 0.0
        if layer.bias is not None and layer.bias.requires_grad:
            squares = squares + 1.0
        return squares * torch.linalg.vecdot(d, d)

    def weighted_sum(
        self, seen: Captured, factors: Tensor
    ) -> Iterator[tuple[nn.Parameter, Tensor]]:
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
        layer = seen.layer
        assert isinstance(layer, nn.Conv2d)
        a, d = seen.input, seen.output_gradient.flatten(2)
        patches = functional.unfold(
            _padded(layer, a),
            layer.kernel_size,  # pyright: ignore[reportArgumentType]
            dilation=layer.dilation,  # pyright: ignore[reportArgumentType]
            stride=layer.stride,  # pyright: ignore[reportArgumentType]
        )
        return _positions(
            layer.weight,
            layer.bias,
            patches.unflatten(1, (layer.groups, -1)),
            d.unflatten(1, (layer.groups, -1)),
        )

    def weighted_sum(
        self, seen: Captured, factors: Tensor
    ) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """The weight's gradient of an ordinary convolution, for the output gradient c * d."""
        layer = seen.layer
        assert isinstance(layer, nn.Conv2d)
        d = _weighted(seen.output_gradient, factors)
        if layer.weight.requires_grad:
            yield (
                layer.weight,
                torch.nn.grad.conv2d_weight(
                    _padded(layer, seen.input), layer.weight.shape, d,
                    stride=layer.stride, dilation=layer.dilation, groups=layer.groups,
                ),
            )  # fmt: skip
        if layer.bias is not None and layer.bias.requires_grad:
            yield layer.bias, d.sum(dim=(0, 2, 3))


class AnyKernel(Kernel):
    """Any layer from one tensor to one tensor that treats records apart: gradients are formed."""

    def squared_norms(self, seen: Captured) -> Tensor:
        """Sum the squares of the formed gradients."""
        gradients = self._gradients(seen)
        return torch.stack([g.flatten(1).square().sum(dim=1) for g in gradients.values()]).sum(0)

    def weighted_sum(
        self, seen: Captured, factors: Tensor
    ) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Contract the formed gradients with the factors."""
        own = dict(seen.layer.named_parameters(recurse=False))
        for name, gradient in self._gradients(seen).items():
            yield own[name], torch.einsum("b,b...->...", factors, gradient)

    def _gradients(self, seen: Captured) -> dict[str, Tensor]:
        own = dict(seen.layer.named_parameters(recurse=False))
        trained = {name: p.detach() for name, p in own.items() if p.requires_grad}

        def gradient(a: Tensor, d: Tensor) -> dict[str, Tensor]:
            def output(parameters: dict[str, Tensor]) -> Tensor:
                return torch.func.functional_call(seen.layer, parameters, (a[None],))[0]

            _, pull_back = torch.func.vjp(output, trained)
            return pull_back(d)[0]

        return torch.func.vmap(gradient)(seen.input, seen.output_gradient)


KERNELS: dict[type[nn.Module], Kernel] = {nn.Linear: LinearKernel(), nn.Conv2d: Conv2dKernel()}
ANY = AnyKernel()


def _kernel(layer: nn.Module) -> Kernel:
    """Look the exact type up: a subclass may compute something else."""
    return KERNELS.get(type(layer), ANY)


def _positions(weight: nn.Parameter, bias: Tensor | None, a: Tensor, d: Tensor) -> Tensor:
    """||g_i||^2 of a layer applied at L positions.

    Args:
        weight: The layer's weight.
        bias: The layer's bias.
        a: (batch, groups, inputs, L).
        d: (batch, groups, outputs, L).
    """
    squares = torch.zeros(len(a), device=a.device)
    if weight.requires_grad:
        inputs, length = a.shape[2:]
        if inputs * d.shape[2] <= 2 * length**2:
            gradient = d @ a.transpose(2, 3)
            squares = squares + gradient.square().sum(dim=(1, 2, 3))
        else:
            a64, d64 = a.double(), d.double()
            gram = (a64.transpose(2, 3) @ a64) * (d64.transpose(2, 3) @ d64)
            squares = squares + gram.sum(dim=(1, 2, 3)).clamp(min=0.0).to(squares.dtype)
    if bias is not None and bias.requires_grad:
        squares = squares + d.sum(dim=3).square().sum(dim=(1, 2))
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


def _weighted(d: Tensor, factors: Tensor) -> Tensor:
    return d * factors.view(-1, *(1 for _ in d.shape[1:]))


def _zero_rows(values: Tensor, bad: Tensor) -> Tensor:
    return values.masked_fill(bad.view(-1, *(1 for _ in values.shape[1:])), 0)
