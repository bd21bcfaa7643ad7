"""Sums of bounded per-example gradients, without forming the gradients.

One forward and one backward pass give, for every trainable layer, its input a and the gradient d of
the summed loss with respect to its output; row i of both belongs to record i alone. Norms and
weighted sums of gradients follow from these, layer by layer (`kernels`).

No hook stays on a module and no attribute on a tensor.

Source: Bu et al. 2022. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from pasearch.training.kernels import Captured, kernel_of
from pasearch.training.losses import LossOf
from pasearch.training.norms import Factors, bounded
from pasearch.training.record_sums import BLOCK, SumBuffers
from pasearch.training.watched import Loss, Watched, capture


def clipped_sum_and_counts(
    network: nn.Module | Watched,
    x: Tensor,
    loss: Loss,
    bounding: Factors | None,
    mask: Tensor,
    *,
    views: int = 1,
    weights: Tensor | None = None,
    room: SumBuffers | None = None,
    counted: bool = True,
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
        room: Buffers of the sum, to whose float64 totals this one is added. None: new ones.
        counted: Whether anybody wants the counts; else they are 0.

    Returns:
        Without a room the sums, one tensor per trainable parameter, in the network's order; with a
        room its views, which hold the last block alone. And the sum over records of
        [norm <= C] - 1/2: float64, (1,), or (layers,) if every layer has its own bound. Null
        records add 0, and one that is not finite adds -1/2.
    """
    if x.shape[0] != views * mask.shape[0]:
        raise ValueError(f"x has {len(x)} rows: expected {views} views of {len(mask)} records.")
    watched = Watched.of(network)
    given, room = room, SumBuffers(watched.parameters) if room is None else room
    layered = bounding is not None and bounding.layered
    dense = watched.dense if views == 1 and not layered else None
    if dense is not None and isinstance(loss, LossOf) and dense.takes(x):
        norms = dense.sums(x, loss, bounding, mask, weights, room, look=watched.look)
    else:
        norms = _summed(watched, x, loss, bounding, mask, views, weights, room)
    if given is None:
        room.end()
        room.write_back()
    inside = bounding.within(norms) if counted and bounding is not None else None
    if inside is None:
        return room.views, torch.zeros(len(norms) if layered else 1, dtype=torch.float64)
    centred = torch.where(mask, inside.double() - 0.5, 0.0)
    return room.views, centred.reshape(-1, len(mask)).sum(dim=1).cpu()


def _summed(
    watched: Watched,
    x: Tensor,
    loss: Loss,
    bounding: Factors | None,
    mask: Tensor,
    views: int,
    weights: Tensor | None,
    room: SumBuffers,
) -> Tensor:
    """Add the sum to the room's totals, of any network; return the norms.

    A norm that is not finite is returned as infinity.

    They are (batch,), or (layers, batch) where every layer has its own bound.
    """
    mean = loss if views == 1 else lambda outputs: loss(outputs) / views
    captured = _in_order(watched, capture(watched, x, mean))
    squares = [watched.kernels[each.layer].squared_norms(each, views) for each in captured]
    total = squares[0] if len(squares) == 1 else torch.stack(squares).sum(dim=0)
    layered = bounding is not None and bounding.layered
    norms = (torch.stack(squares) if layered else total).sqrt()
    factors, norms, bad = bounded(norms, total, bounding, mask, weights, look=watched.look)
    if bad is not None:  # 0 * NaN is NaN: mask first
        captured = [each.without(bad.repeat_interleave(views)) for each in captured]
    if views > 1:
        factors = factors.repeat_interleave(views, dim=-1)
    for low in range(0, len(x), BLOCK * views):
        block = slice(low, low + BLOCK * views)
        left = dict(room.of)
        for place, each in enumerate(captured):
            own = factors[place, block] if layered else factors[block]
            kernel = watched.kernels[each.layer]
            for parameter, value in kernel.weighted_sum(
                each.rows(block), own, room.of, views=views
            ):
                view = left.pop(id(parameter))
                if value is not view:
                    view.copy_(value)
        for view in left.values():  # of a layer that was not used
            view.zero_()
        room.add_block()
    return norms


def formed_gradients(network: nn.Module | Watched, x: Tensor, loss: Loss) -> Tensor:
    """Return every record's gradient, formed: (batch, parameters), as `trainable_parameters` go.

    Memory: batch * parameters numbers, which noise on each record needs, and no other sum.
    """
    watched, found = Watched.of(network), dict[int, Tensor]()
    for each in capture(watched, x, loss):
        own = dict(each.layer.named_parameters(recurse=False))
        for name, gradient in kernel_of(each.layer).gradients(each).items():
            found[id(own[name])] = gradient.flatten(1)
    rows = [
        found[id(p)] if id(p) in found else x.new_zeros(len(x), p.numel(), dtype=p.dtype)
        for p in watched.parameters
    ]
    return torch.cat(rows, dim=1)


def _in_order(watched: Watched, captured: list[Captured]) -> list[Captured]:
    """Return what layers saw in the order of `trainable_layers`; one that was not used is left out.

    A layer's own bound and count belong to its place in the network, not in the forward pass.
    """
    by_layer = {id(each.layer): each for each in captured}
    return [by_layer[id(x)] for x in watched.kernels if id(x) in by_layer]


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
    for name, shape in kernel_of(module).shapes(module).items():
        found = getattr(module, name)
        if found is not None and tuple(found.shape) != shape:
            yield (
                f"has a {name} of shape {tuple(found.shape)}, where its settings say {shape}; make "
                "a new layer of the size that you want."
            )
    if any(True for _ in module.buffers(recurse=False)):
        yield "keeps buffers, which records could reach; use parameters."
    if own and any(hasattr(child, "reseed") for child in [*module.modules()][1:]):
        yield "draws within a layer that has parameters; put KeyedDropout beside the layer."
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks
    if any(hooks) or module._backward_pre_hooks:
        yield "has hooks, which may change what it computes; remove them."
    if "forward" in vars(module):
        yield "has a `forward` of its own, beside its class's; make a class of it."
    if any(p.dtype not in (torch.float32, torch.float64) for p in own):
        yield "has parameters too coarse for a norm; use float32."
    if own and any(p.requires_grad for child in module.children() for p in child.parameters()):
        yield "has parameters beside its layers; give them a layer."
