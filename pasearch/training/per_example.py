"""Sums of clipped per-example gradients, without forming the gradients.

One forward and one backward pass give, for every trainable layer, its input a and the gradient d of
the summed loss with respect to its output; row i of both belongs to record i alone. Norms and
weighted sums of per-example gradients follow from these, layer by layer (`layer_rules`).

A chain of modules (nested `nn.Sequential` and `SkipConcat`) is walked module by module, each by its
rule, so nothing is attached to it. Any other network is captured by forward hooks, which are
removed after the pass, and by autograd.

Source: Bu et al. 2022. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from pasearch.errors import UsageError
from pasearch.spaces.modules import SkipConcat, TemperedSigmoid
from pasearch.training.dense import DenseChain
from pasearch.training.layer_rules import (
    CapturedLayer,
    LayerRule,
    find_rule,
    make_layer_error,
    make_overwritten_error,
)
from pasearch.training.losses import RecordLoss
from pasearch.training.record_sums import BLOCK_RECORDS, SumBuffers

Loss = Callable[[Tensor], Tensor]
"""Function from the network's output, (batch, ...), to each record's own loss, (batch,)."""


class ClippingProtocol(Protocol):
    """Clipping method as a sum needs it: see `clipping.ClippingMethod`."""

    is_per_layer: ClassVar[bool]

    def factors(self, norms: Tensor) -> Tensor:
        """Compute the factors of gradients from their norms."""
        ...

    def within(self, norms: Tensor) -> Tensor | None:
        """Check which norms are within the clipping norm; None if that is not counted."""
        ...


def list_trainable_parameters(network: nn.Module) -> list[nn.Parameter]:
    """List the parameters that training changes, in the module's order."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def list_trainable_layers(network: nn.Module) -> list[nn.Module]:
    """List the modules that own a trainable parameter directly."""
    return [
        module
        for module in network.modules()
        if any(p.requires_grad for p in module.parameters(recurse=False))
    ]


class PreparedNetwork:
    """A network with what depends on it alone, computed once instead of at every step.

    Args:
        network: Accepted by `validate`; its layers, and which are trained, stay the same.

    Attributes:
        parameters: Trainable parameters, in the module's order.
        rules: Rule of each trainable layer, in the module's order.
        keyed: Functions that reseed modules with random masks.
        dense: The network as a chain of linear layers; None for any other network.
        checks_finite: Whether to check for records that are not finite, which waits for a GPU. If
            not, the sums of a batch with such a record may not be finite, and must not be used
            then.
    """

    __slots__ = ("_chain", "checks_finite", "dense", "keyed", "network", "parameters", "rules")

    def __init__(self, network: nn.Module):
        self.network = network
        self.checks_finite = True
        self.parameters = list_trainable_parameters(network)
        self.rules = {layer: find_rule(layer) for layer in list_trainable_layers(network)}
        reseeds = (getattr(module, "reseed", None) for module in network.modules())
        self.keyed = [each for each in reseeds if callable(each)]
        chain = list(_list_links(network))
        alone = [link for link in _flatten(chain) if link.module in self.rules]
        within = sum(len(list_trainable_layers(link.module)) for link in _flatten(chain))
        hooked = any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())
        # A layer within another module, or used twice, can only be captured by hooks.
        is_chain = len(alone) == within == len(self.rules) and not hooked
        self._chain = chain if is_chain else None
        dense = DenseChain.of([*_list_leaves(network)]) if type(network) is nn.Sequential else None
        trained = () if dense is None else {id(dense.weights[k]) for k in dense.trained}
        whole = dense is not None and len(trained) == len(dense.trained) == len(self.rules)
        self.dense = dense if whole else None

    @property
    def modules(self) -> list[nn.Module] | None:
        """Modules that a chain calls, in order; None for any other network."""
        return None if self._chain is None else [link.module for link in _flatten(self._chain)]

    @classmethod
    def of(cls, network: nn.Module | Self) -> Self:
        """Prepare a network, unless it is prepared already."""
        return network if isinstance(network, cls) else cls(network)  # pyright: ignore[reportArgumentType]

    @torch.no_grad()
    def capture(self, x: Tensor, loss: Loss, views: int = 1) -> list[CapturedLayer]:
        """Run forward and backward once, and capture every trainable layer that is used.

        Args:
            x: Rows, (batch, ...).
            loss: Each row's own loss.
            views: Rows per record; the losses are divided by it.

        Returns:
            What was captured, in the order of `rules`.

        Raises:
            UsageError: A layer whose rows are not the records, or whose tensors were overwritten.

        Cost: as much as a plain backward pass, without the gradients of the parameters.
        """
        if self._chain is None:
            found = self._capture_by_hooks(x, loss, views)
        else:
            tape: list[_Call] = []
            output = _run_forward(self._chain, x, tape)
            found: dict[nn.Module, CapturedLayer] = {}
            self._backward(tape, _differentiate_loss(loss, output, views), found, views)
            _check_calls([call for call in _flatten(tape) if call.module in self.rules], len(x))
        return [found[layer] for layer in self.rules if layer in found]

    def _backward(
        self, tape: list[_Call], d: Tensor, found: dict[nn.Module, CapturedLayer], views: int
    ) -> Tensor | None:
        """Go back through the calls; None as soon as every trainable layer is captured."""
        for call in reversed(tape):
            if call.inner is not None:  # SkipConcat: the input is part of its output
                width = call.input.shape[1]
                inner = self._backward(call.inner, d[:, width:].contiguous(), found, views)
                if inner is None:
                    return None
                d = inner + d[:, :width]  # a new tensor: a captured layer may hold `inner`
                continue
            if call.module in self.rules:
                seen = found[call.module] = CapturedLayer(call.module, call.input, d, views)
                seen.cache.update(call.rule.cached_values(call.module, d, call.saved))
                if len(found) == len(self.rules):
                    return None
            d = call.rule.backward(call.module, d, call.saved)
        return d

    def _capture_by_hooks(
        self, x: Tensor, loss: Loss, views: int
    ) -> dict[nn.Module, CapturedLayer]:
        calls: list[_Call] = []
        with torch.enable_grad():
            with _record_calls(self.rules, calls):
                output = self.network(x)
            losses = loss(output) / views
            _check_calls(calls, len(x))
            asked = [call.output for call in calls]
            gradients = torch.autograd.grad(losses.sum(), asked, allow_unused=True)
        return {
            call.module: CapturedLayer(
                call.module,
                call.input.detach(),
                torch.zeros_like(call.output) if d is None else d,
                views,
            )
            for call, d in zip(calls, gradients, strict=True)
        }

    @torch.no_grad()
    def calls(self, x: Tensor) -> list[tuple[nn.Module, Tensor, Tensor]]:
        """List every trainable layer that is used, with its input and output for such rows."""
        calls: list[_Call] = []
        with _record_calls(self.rules, calls):
            self.network(x)
        return [(call.module, call.input, call.output) for call in calls]

    def product(self, x: Tensor) -> float:
        """Count the operations of a record's largest matrix product, for records like these."""
        found = ((self.rules[layer].count_positions(output), getattr(layer, "weight", None))
                 for layer, _, output in self.calls(x))  # fmt: skip
        return max(
            (2.0 * positions * w.numel() for positions, w in found if w is not None), default=0.0
        )


@dataclass(frozen=True, slots=True)
class _Link:
    """A module of a chain and its rule; of a `SkipConcat`, the modules within."""

    module: nn.Module
    rule: LayerRule
    inner: list[_Link] | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a module; `versions` shows whether its tensors were overwritten later."""

    module: nn.Module
    rule: LayerRule
    input: Tensor
    output: Tensor
    versions: tuple[int, int]
    saved: Any = None
    inner: list[_Call] | None = None


def _list_links(module: nn.Module) -> Iterator[_Link]:
    for leaf in _list_leaves(module):
        inner = list(_list_links(nn.Sequential(*leaf))) if type(leaf) is SkipConcat else None
        yield _Link(leaf, find_rule(leaf), inner)


def _flatten(links: list[Any]) -> Iterator[Any]:
    for link in links:
        if link.inner is None:
            yield link
        else:
            yield from _flatten(link.inner)


def _list_leaves(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for child in module:
            yield from _list_leaves(child)
    else:
        yield module


def _run_forward(chain: list[_Link], x: Tensor, tape: list[_Call]) -> Tensor:
    """Compute the output of a chain, and record its calls."""
    for link in chain:
        inner, saved, before = None, None, x._version
        if link.inner is not None:
            inner = []
            output = torch.cat((x, _run_forward(link.inner, x, inner)), dim=1)
        else:
            output, saved = link.rule.forward(link.module, x)
            if not isinstance(output, Tensor):
                raise _make_tensor_error(link.module)
            output = output.detach()
        versions = before, output._version
        tape.append(_Call(link.module, link.rule, x, output, versions, saved, inner))
        x = output
    return x


def _differentiate_loss(loss: Loss, output: Tensor, views: int) -> Tensor:
    """Compute the gradient of the summed loss with respect to the output."""
    if isinstance(loss, RecordLoss):
        d = loss.gradient(output)
    else:
        with torch.enable_grad():
            given = output.requires_grad_()
            (d,) = torch.autograd.grad(loss(given).sum(), given, allow_unused=True)
        d = torch.zeros_like(output) if d is None else d
    return d if views == 1 else d / views


@contextmanager
def _record_calls(rules: dict[nn.Module, LayerRule], calls: list[_Call]) -> Iterator[None]:
    def record(
        layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        tensors = (*arguments, output)
        if len(tensors) != 2 or named or not all(isinstance(t, Tensor) for t in tensors):
            raise _make_tensor_error(layer)
        if any(layer is other.module for other in calls):
            raise make_layer_error(
                layer, "is used twice in one pass", "give each place its own layer"
            )
        versions = before[layer], output._version
        calls.append(_Call(layer, rules[layer], arguments[0], output, versions))

    def note_version(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        before[layer] = getattr(arguments[0], "_version", 0) if arguments else 0

    before: dict[nn.Module, int] = {}
    hooks = [layer.register_forward_pre_hook(note_version) for layer in rules]
    hooks += [layer.register_forward_hook(record, with_kwargs=True) for layer in rules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _make_tensor_error(layer: nn.Module) -> UsageError:
    return make_layer_error(
        layer, "does not map one tensor to one tensor", "wrap it so that it does"
    )


def _check_calls(calls: list[_Call], batch: int) -> None:
    if not calls:
        raise UsageError(
            "The network used none of its trainable layers: call them in `forward`, as modules."
        )
    for call in calls:
        if call.input.shape[:1] != (batch,) or call.output.shape[:1] != (batch,):
            raise make_layer_error(
                call.module, "has other rows than records", "keep records the first axis"
            )
        if call.versions != (call.input._version, call.output._version):
            raise make_overwritten_error(call.module)


FIXED_MODULE_TYPES = (nn.Linear, nn.Conv2d, nn.Tanh, nn.ReLU, nn.Sigmoid, TemperedSigmoid)
"""Modules that treat each record in the same way at every step, if not trained."""


def split_fixed_modules(network: nn.Module) -> tuple[nn.Sequential, nn.Module]:
    """Split a chain before its first module that is trained or differs from step to step.

    For any other network, the second part is the whole network.
    """
    if type(network) is not nn.Sequential:
        return nn.Sequential(), network
    modules = list(_list_leaves(network))
    first = next(place for place, each in enumerate([*modules, None]) if not _is_fixed(each))
    if any(each._forward_hooks or each._forward_pre_hooks for each in modules[:first]):
        return nn.Sequential(), network
    return nn.Sequential(*modules[:first]), nn.Sequential(*modules[first:])


def _is_fixed(module: nn.Module | None) -> bool:
    """Check that a module does the same to each record at every step, and keeps the first axis."""
    if type(module) is nn.Flatten:
        return module.start_dim == 1 and module.end_dim == -1
    if type(module) is nn.Unflatten:
        return isinstance(module.dim, int) and module.dim >= 1
    if isinstance(module, FIXED_MODULE_TYPES) and type(module) in FIXED_MODULE_TYPES:
        return not any(p.requires_grad for p in module.parameters())
    return type(module) in (nn.MaxPool2d, nn.AvgPool2d)


def capture_layers(
    network: nn.Module | PreparedNetwork, x: Tensor, loss: Loss
) -> list[CapturedLayer]:
    """Capture every trainable layer: see `PreparedNetwork.capture`."""
    return PreparedNetwork.of(network).capture(x, loss)


@torch.no_grad()
def clipped_sum_and_counts(
    network: nn.Module | PreparedNetwork,
    x: Tensor,
    loss: Loss,
    bounding: ClippingProtocol | None,
    mask: Tensor,
    *,
    views: int = 1,
    weights: Tensor | None = None,
    buffers: SumBuffers | None = None,
    counted: bool = True,
) -> tuple[list[Tensor], Tensor]:
    """Compute the sum over records of their clipped gradients, and count norms within the bounds.

    Guarantee: changing one record changes the sum by at most `bounding.sensitivity` in L2 norm, and
    each count by at most 1/2, if the record's mask is False in one of the two worlds. A record with
    a gradient that is not finite adds exactly 0 to the sum. The network's parameters and their
    `.grad` are not touched.

    Args:
        network: Accepted by `validate`.
        x: Rows, (batch * views, ...), at least one; those of one record side by side.
        loss: Each row's own loss.
        bounding: Clipping method; None sums the gradients as they are (declared-public data only).
        mask: Bool, (batch,); False for null records.
        views: Number of rows per record; its gradient is their mean, which is then clipped.
        weights: Factors from 0 to 1 that clipped gradients are multiplied by, (batch,); None: 1.
        buffers: Buffers of the sum, to whose float64 totals this one is added. None: new ones.
        counted: Whether the counts are needed; if not they are 0.

    Returns:
        Without buffers the sums, one tensor per trainable parameter, in the network's order; with
        buffers their views, which hold the last block alone. And the sum over records of
        [norm <= C] - 1/2: float64, (1,), or (layers,) if every layer has its own bound. Null
        records add 0, and one that is not finite adds -1/2.
    """
    if x.shape[0] != views * mask.shape[0]:
        raise ValueError(f"x has {len(x)} rows: expected {views} views of {len(mask)} records.")
    prepared = PreparedNetwork.of(network)
    given, buffers = buffers, SumBuffers(prepared.parameters) if buffers is None else buffers
    layered = bounding is not None and bounding.is_per_layer
    captured = prepared.capture(x, loss, views)
    rules = [prepared.rules[seen.layer] for seen in captured]
    squares = [rule.squared_norms(seen) for rule, seen in zip(rules, captured, strict=True)]
    total = squares[0] if len(squares) == 1 else torch.stack(squares).sum(dim=0)
    norms = (torch.stack(squares) if layered else total).sqrt()
    factors = torch.ones_like(norms) if bounding is None else bounding.factors(norms)
    if weights is not None:
        factors = factors * weights.clamp(0.0, 1.0)
    if prepared.checks_finite and math.isfinite(float(total.sum())):
        factors = torch.where(mask, factors, 0.0)
    else:
        finite = total < math.inf
        factors = torch.where(mask & finite, factors, 0.0)
        norms = norms.where(finite, math.inf)
        if prepared.checks_finite:  # 0 * NaN is NaN: set the rows to 0 first
            bad = (~finite).repeat_interleave(views)
            captured = [seen.without(bad) for seen in captured]
    own = factors if views == 1 else factors.repeat_interleave(views, dim=-1)
    size = BLOCK_RECORDS * views
    parts = zip(*(seen.split(size) for seen in captured), strict=True)
    for part, block in zip(own.split(size, dim=-1), parts, strict=True):
        left = dict(buffers.of)
        for place, (rule, seen) in enumerate(zip(rules, block, strict=True)):
            factor = part[place] if layered else part
            for parameter, value in rule.weighted_sum(seen, factor, buffers.of):
                view = left.pop(id(parameter))
                if value is not view:
                    view.copy_(value)
        for view in left.values():  # of a layer that was not used
            view.zero_()
        buffers.add_block()
    if given is None:
        buffers.end()
        buffers.write_back()
    inside = bounding.within(norms) if counted and bounding is not None else None
    if inside is None:
        return buffers.views, torch.zeros(len(norms) if layered else 1, dtype=torch.float64)
    centred = torch.where(mask, inside.double() - 0.5, 0.0)
    return buffers.views, centred.reshape(-1, len(mask)).sum(dim=1).cpu()


def form_gradients(network: nn.Module | PreparedNetwork, x: Tensor, loss: Loss) -> Tensor:
    """Form every record's gradient, (batch, parameters), parameters in the network's order.

    Memory: batch * parameters numbers. Noise on each record needs them; nothing else does.
    """
    prepared, found = PreparedNetwork.of(network), dict[int, Tensor]()
    for seen in prepared.capture(x, loss):
        own = dict(seen.layer.named_parameters(recurse=False))
        for name, gradient in prepared.rules[seen.layer].gradients(seen).items():
            found[id(own[name])] = gradient.flatten(1)
    rows = [
        found[id(p)] if id(p) in found else x.new_zeros(len(x), p.numel(), dtype=p.dtype)
        for p in prepared.parameters
    ]
    return torch.cat(rows, dim=1)


UNSUPPORTED_MODULES: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.modules.batchnorm._BatchNorm, "mixes records; use nn.GroupNorm or nn.LayerNorm"),
    (nn.modules.dropout._DropoutNd, "draws from torch's global state; use KeyedDropout"),
    (nn.RReLU, "draws from torch's global state; use nn.LeakyReLU"),
    (nn.FractionalMaxPool2d, "draws from torch's global state; use nn.MaxPool2d"),
    (nn.RNNBase, "maps to a pair; use pasearch.spaces.modules.Lstm"),
    (nn.MultiheadAttention, "has no rule for per-example gradients yet"),
    (nn.ParameterList, "holds parameters without a layer; put them into a layer"),
    (nn.ParameterDict, "holds parameters without a layer; put them into a layer"),
)


def validate(network: nn.Module) -> list[str]:
    """List every reason why the network cannot be trained record by record; empty is good.

    Each reason names the module's path, the problem and the replacement.

    >>> import torch
    >>> validate(torch.nn.Linear(2, 1))
    []
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
        problems += [f"{where}: {fault}" for fault in _find_faults(module, own)]
        for parameter in own:
            if id(parameter) in owners:
                problems.append(
                    f"{where}: shares a parameter with {owners[id(parameter)]}; copy it."
                )
            owners[id(parameter)] = where
    if not owners:
        problems.append("the network: has no trainable parameter; set trainable=True somewhere.")
    return problems


def _find_faults(module: nn.Module, own: list[nn.Parameter]) -> Iterator[str]:
    """Yield the problems of one module; `own` are its trainable parameters."""
    for kind, why in UNSUPPORTED_MODULES:
        if isinstance(module, kind):
            yield f"{why}."
    if getattr(module, "inplace", False):
        yield "overwrites the output of the previous layer; set inplace=False."
    if getattr(module, "max_norm", None) is not None:
        yield "rescales the weights that it reads, without noise; set max_norm=None."
    if getattr(module, "sparse", False) or getattr(module, "scale_grad_by_freq", False):
        yield "has unsupported gradients; set sparse=False, scale_grad_by_freq=False."
    norm = isinstance(module, (nn.GroupNorm, nn.LayerNorm))
    if norm and not bool(torch.tensor(module.eps, dtype=torch.float32) > 0):
        yield "divides by the standard deviation, which is 0 for a constant record; set eps=1e-5."
    for name, shape in find_rule(module).shapes(module).items():
        found = getattr(module, name)
        if found is not None and tuple(found.shape) != shape:
            yield (
                f"has a {name} of shape {tuple(found.shape)}, but its settings imply {shape}; "
                "create a new layer of the required size."
            )
    if any(True for _ in module.buffers(recurse=False)):
        yield "has buffers, which may store data of records; use parameters."
    if own and any(hasattr(child, "reseed") for child in [*module.modules()][1:]):
        yield "draws random numbers inside a layer with parameters; put KeyedDropout next to it."
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks
    if any(hooks) or module._backward_pre_hooks:
        yield "has hooks, which may change what it computes; remove them."
    if "forward" in vars(module):
        yield "overrides `forward` on the instance; define a class."
    if any(p.dtype not in (torch.float32, torch.float64) for p in own):
        yield "has low-precision parameters; use float32."
    if own and any(p.requires_grad for child in module.children() for p in child.parameters()):
        yield "has parameters in addition to its layers; put them into a layer."
