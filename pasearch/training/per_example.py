"""Sums of bounded per-example gradients, without forming the gradients.

One forward and one backward pass give, for every trainable layer, its input a and the gradient d of
the summed loss with respect to its output; row i of both belongs to record i alone. Norms and
weighted sums of gradients follow from these, layer by layer (`kernels`).

No hook stays on a module and no attribute on a tensor.

Source: Bu et al. 2022. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from pasearch.errors import UsageError
from pasearch.training.kernels import Captured, kernel_of, no_kernel

Loss = Callable[[Tensor], Tensor]
"""From the network's output, (batch, ...), to each record's own loss, (batch,)."""


class Factors(Protocol):
    """What a sum takes of a bound: see `bounding.bound`."""

    layered: ClassVar[bool]
    """Whether every layer's norm has a factor of its own."""

    def factors(self, norms: Tensor) -> Tensor:
        """Return what gradients are multiplied by, from their norms."""
        ...

    def within(self, norms: Tensor) -> Tensor | None:
        """Return whether each norm is within the bound; None where that is not counted."""
        ...


def clipped_sum_and_counts(
    network: nn.Module,
    x: Tensor,
    loss: Loss,
    bounding: Factors | None,
    mask: Tensor,
    *,
    views: int = 1,
    weights: Tensor | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Return the sum over records of their bounded gradients, and how many norms are within bounds.

    Guarantee: changing one record changes the sum by at most `bounding.sensitivity` in L2 norm, and
    each count by at most 1/2, if the record's mask is False in one of the two worlds. A record with
    a gradient that is not finite adds exactly 0 to the sum. The network's parameters and their
    `.grad` are not touched.

    Args:
        network: Accepted by `validate`.
        x: Rows, (batch * views, ...), at least one; those of one record side by side.
        loss: Each row's own loss.
        bounding: None sums the gradients as they are (declared-public data only).
        mask: bool, (batch,); False for null records.
        views: How many rows a record has; its gradient is their mean, which is then bounded.
        weights: (batch,), 0 to 1, which bounded gradients are multiplied by; None: 1.

    Returns:
        The sums, like `trainable_parameters(network)`, in their order; and the sum over records of
        [norm <= C] - 1/2: float64, (1,), or (layers,) where every layer has its own bound. Null
        records add 0, and one that is not finite adds -1/2.
    """
    if len(x) != views * len(mask):
        raise ValueError(f"x has {len(x)} rows: expected {views} views of {len(mask)} records.")
    mean = loss if views == 1 else lambda outputs: loss(outputs) / views
    captured = _in_order(network, capture(network, x, mean))
    squares = torch.stack([kernel_of(each.layer).squared_norms(each, views) for each in captured])
    layered = bounding is not None and bounding.layered
    norms = (squares if layered else squares.sum(dim=0)).sqrt()
    finite = torch.isfinite(squares.sum(dim=0))
    factors = torch.ones_like(norms) if bounding is None else bounding.factors(norms)
    own = 1.0 if weights is None else weights.clamp(0.0, 1.0)
    factors = torch.where(mask & finite, factors * own, torch.zeros_like(factors))
    counts = torch.zeros(len(captured) if layered else 1, dtype=torch.float64)
    inside = None if bounding is None else bounding.within(norms)
    if inside is not None:
        centred = torch.where(mask, (inside & finite).double() - 0.5, 0.0)
        counts = centred.reshape(-1, len(mask)).sum(dim=1).cpu()
    if not bool(finite.all()):
        bad = ~finite.repeat_interleave(views)
        captured = [each.without(bad) for each in captured]  # 0 * NaN is NaN: mask first
    factors = factors.repeat_interleave(views, dim=-1)
    sums: dict[int, Tensor] = {}
    for place, each in enumerate(captured):
        bound = factors[place] if layered else factors
        for parameter, value in kernel_of(each.layer).weighted_sum(each, bound):
            sums[id(parameter)] = value
    return [
        sums[id(parameter)] if id(parameter) in sums else torch.zeros_like(parameter)
        for parameter in trainable_parameters(network)
    ], counts


def formed_gradients(network: nn.Module, x: Tensor, loss: Loss) -> Tensor:
    """Return every record's gradient, formed: (batch, parameters), as `trainable_parameters` go.

    Memory: batch * parameters numbers, which noise on each record needs, and no other sum.
    """
    found: dict[int, Tensor] = {}
    for each in capture(network, x, loss):
        own = dict(each.layer.named_parameters(recurse=False))
        for name, gradient in kernel_of(each.layer).gradients(each).items():
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
            raise no_kernel(
                layer, "does not map one tensor to one tensor", "wrap it so that it does"
            )
        if any(layer is other.layer for other in seen):
            raise no_kernel(layer, "is used twice in one pass", "give each place its own layer")
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
            raise no_kernel(
                each.layer, "has other rows than records", "keep records the first axis"
            )
        if each.versions != (each.input._version, each.output._version):
            raise no_kernel(
                each.layer, "saw a tensor that was then overwritten", "work out of place"
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
