"""Sums of clipped per-example gradients, computed without storing the gradients.

One forward and one backward pass give, for every trainable layer, its input a and the gradient d of
the summed loss with respect to its output; row i of both depends on record i only. The module
`layer_rules` computes norms and weighted sums of per-example gradients from a and d. "Capturing" a
layer means to collect its a and d.

A chain of modules (nested `nn.Sequential` and `SkipConcat`) is run module by module, each by its
layer rule. Layers of any other network are captured by forward hooks, which are removed after the
pass, and by autograd.

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
from pasearch.spaces.modules import PerRecord, SkipConcat, TemperedSigmoid
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
from pasearch.training.recordwise import (
    REFUSED_MODULES,
    RecordwiseCapture,
    find_module_problems,
)

Loss = Callable[[Tensor], Tensor]
"""Function from the network's output, (batch, ...), to the loss of each record, (batch,)."""


class ClippingProtocol(Protocol):
    """Part of `clipping.ClippingMethod` that the sum of clipped gradients uses."""

    is_per_layer: ClassVar[bool]

    def factors(self, norms: Tensor) -> Tensor:
        """Compute the factor of each gradient from its norm, in the same shape."""
        ...

    def within(self, norms: Tensor) -> Tensor | None:
        """Mark the norms that are at most the clipping norm; None if the method counts none."""
        ...


def list_trainable_parameters(network: nn.Module) -> list[nn.Parameter]:
    """List the trainable parameters, in the network's order."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def list_trainable_layers(network: nn.Module) -> list[nn.Module]:
    """List the modules that own a trainable parameter directly."""
    return [
        module
        for module in network.modules()
        if any(p.requires_grad for p in module.parameters(recurse=False))
    ]


class PreparedNetwork:
    """Network with its layer rules and structure, found once instead of at every step.

    Args:
        network: Network accepted by `validate`. Its layers, and which of them are trainable, must
            not change later.

    Attributes:
        parameters: Trainable parameters, in the network's order.
        rules: Rule of each trainable layer, in the network's order.
        keyed: `reseed` methods of the modules that draw random masks.
        dense: The network as a chain of linear layers; None for any other network.
        checks_finite: Whether to set records with gradients that are not finite to 0. The check
            waits for a GPU. If False, a sum with such a record may not be finite, and the caller
            must discard it.
    """

    __slots__ = (
        "_chain", "_recordwise", "checks_finite", "dense", "keyed", "network", "parameters",
        "rules",
    )  # fmt: skip

    def __init__(self, network: nn.Module):
        self.network = network
        self.checks_finite = True
        self.parameters = list_trainable_parameters(network)
        self._recordwise = RecordwiseCapture.of(network)
        self.rules = (
            {layer: find_rule(layer) for layer in list_trainable_layers(network)}
            if self._recordwise is None
            else self._recordwise.rules
        )
        reseeds = (getattr(module, "reseed", None) for module in network.modules())
        self.keyed = [each for each in reseeds if callable(each)]
        chain = list(_list_links(network))
        alone = [link for link in _flatten(chain) if link.module in self.rules]
        within = sum(len(list_trainable_layers(link.module)) for link in _flatten(chain))
        hooked = any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())
        # A layer within another module, or used twice, can only be captured by hooks.
        is_chain = len(alone) == within == len(self.rules) and not hooked
        is_chain = is_chain and self._recordwise is None
        self._chain = chain if is_chain else None
        dense = DenseChain.of([*_list_leaves(network)]) if type(network) is nn.Sequential else None
        trained = () if dense is None else {id(dense.weights[k]) for k in dense.trained}
        whole = dense is not None and len(trained) == len(dense.trained) == len(self.rules)
        self.dense = dense if whole else None

    @property
    def modules(self) -> list[nn.Module] | None:
        """Modules of a chain, in the order of their calls; None for any other network."""
        return None if self._chain is None else [link.module for link in _flatten(self._chain)]

    @classmethod
    def of(cls, network: nn.Module | Self) -> Self:
        """Prepare a network; return a `PreparedNetwork` unchanged."""
        return network if isinstance(network, cls) else cls(network)  # pyright: ignore[reportArgumentType]

    @torch.no_grad()
    def capture(self, x: Tensor, loss: Loss, views: int = 1) -> list[CapturedLayer]:
        """Run one forward and one backward pass, and capture every trainable layer that is used.

        The time is that of a backward pass without the gradients of the parameters.

        Args:
            x: Rows, (batch, ...).
            loss: Loss of each row.
            views: Number of rows per record; losses are divided by it.

        Returns:
            Captured layers, in the order of `rules`.

        Raises:
            UsageError: The rows of a layer are not the records, or its tensors were overwritten.
        """
        if self._recordwise is not None:
            found = self._recordwise.capture(
                x, lambda output: _differentiate_loss(loss, output, views), views
            )
        elif self._chain is None:
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
        """Run the backward pass through the calls, and add captured layers to `found`.

        Returns the gradient with respect to the first input; None if it is not needed, because
        every trainable layer is captured.
        """
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
                seen.cache.update(call.rule.compute_cached_values(call.module, d, call.saved))
                if len(found) == len(self.rules):
                    return None
            d = call.rule.backward(call.module, d, call.saved)
        return d

    def _capture_by_hooks(
        self, x: Tensor, loss: Loss, views: int
    ) -> dict[nn.Module, CapturedLayer]:
        """Capture the layers of a network that is not a chain, by hooks and autograd."""
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

    def select_observed(self, x: Tensor) -> Tensor:
        """Select the rows of x with which `run_observed` runs: one for a `PerRecord`, or all."""
        return x if self._recordwise is None else x[:1]

    def run_observed(self, x: Tensor) -> None:
        """Run the network so that hooks get plain tensors, not those of `torch.func.vmap`."""
        run = self.network if self._recordwise is None else self._recordwise.run_alone
        run(self.select_observed(x))

    def count_loose_values(self) -> int:
        """Count the values of the parameters of a `PerRecord` whose gradients are formed."""
        return sum(p.numel() for p in self._recordwise.loose.values()) if self._recordwise else 0

    @torch.no_grad()
    def calls(self, x: Tensor) -> list[tuple[nn.Module, Tensor, Tensor]]:
        """List (layer, input, output) of every trainable layer that is used, for the rows x."""
        calls: list[_Call] = []
        with _record_calls(self.rules, calls):
            self.run_observed(x)
        return [(call.module, call.input, call.output) for call in calls]

    def count_product_operations(self, x: Tensor) -> float:
        """Count the operations per record of the largest matrix product, for rows like x."""
        found = ((self.rules[layer].count_positions(output), getattr(layer, "weight", None))
                 for layer, _, output in self.calls(x))  # fmt: skip
        return max(
            (2.0 * positions * w.numel() for positions, w in found if w is not None), default=0.0
        )


@dataclass(frozen=True, slots=True)
class _Link:
    """Module of a chain with its rule; `inner` holds the modules of a `SkipConcat`."""

    module: nn.Module
    rule: LayerRule
    inner: list[_Link] | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a module in the forward pass.

    `versions` are the version counters of input and output at the time of the call: they differ
    later if a tensor was overwritten. `saved` is the second result of `LayerRule.forward`.
    """

    module: nn.Module
    rule: LayerRule
    input: Tensor
    output: Tensor
    versions: tuple[int, int]
    saved: Any = None
    inner: list[_Call] | None = None


def _list_links(module: nn.Module) -> Iterator[_Link]:
    """Yield the modules of nested `nn.Sequential`, in order, with their rules."""
    for leaf in _list_leaves(module):
        inner = list(_list_links(nn.Sequential(*leaf))) if type(leaf) is SkipConcat else None
        yield _Link(leaf, find_rule(leaf), inner)


def _flatten(links: list[Any]) -> Iterator[Any]:
    """Yield links or calls, with each `SkipConcat` replaced by its inner ones."""
    for link in links:
        if link.inner is None:
            yield link
        else:
            yield from _flatten(link.inner)


def _list_leaves(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of nested `nn.Sequential`, in order."""
    if type(module) is nn.Sequential:
        for child in module:
            yield from _list_leaves(child)
    else:
        yield module


def _run_forward(chain: list[_Link], x: Tensor, tape: list[_Call]) -> Tensor:
    """Compute the output of a chain, and append its calls to `tape`."""
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
    """Append every call of the layers in `rules` to `calls`, by temporary forward hooks."""

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
    """Create the error for a layer that does not map one tensor to one tensor."""
    return make_layer_error(
        layer, "does not map one tensor to one tensor", "wrap it so that it does"
    )


def _check_calls(calls: list[_Call], batch: int) -> None:
    """Raise an error if a layer's rows are not the records, or its tensors were overwritten."""
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
"""Types of modules without random numbers: their output is the same at every step if not trained.
"""


def split_fixed_modules(network: nn.Module) -> tuple[nn.Sequential, nn.Module]:
    """Split a network into a part with the same output at every step, and the rest.

    The split is before the first module that is trained or draws random numbers. If the network is
    not an `nn.Sequential`, the first part is empty.
    """
    if type(network) is not nn.Sequential:
        return nn.Sequential(), network
    modules = list(_list_leaves(network))
    first = next(place for place, each in enumerate([*modules, None]) if not _is_fixed(each))
    if any(each._forward_hooks or each._forward_pre_hooks for each in modules[:first]):
        return nn.Sequential(), network
    return nn.Sequential(*modules[:first]), nn.Sequential(*modules[first:])


def _is_fixed(module: nn.Module | None) -> bool:
    """Check that a module's output for a record is the same at every step."""
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
    """Capture every trainable layer that is used; see `PreparedNetwork.capture`."""
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
    """Compute the sum of clipped per-example gradients, and count the norms within the clip norm.

    Guarantee: if one record becomes the null record (its mask becomes False), the sum changes by at
    most `bounding.sensitivity` in L2 norm, and each count by at most 1/2. A record whose gradient
    is not finite adds exactly 0 to the sum. The network's parameters and their `.grad` are not
    changed.

    Args:
        network: Network accepted by `validate`.
        x: Rows, (batch * views, ...), at least one; the rows of one record are adjacent.
        loss: Loss of each row.
        bounding: Clipping method. None: no clipping (declared-public data only).
        mask: Bool, (batch,); False for null records.
        views: Number of rows per record. The mean of their gradients is clipped.
        weights: Factors in [0, 1] by which clipped gradients are multiplied, (batch,). None: 1.
        buffers: Buffers to whose float64 totals the sum is added. None: new buffers.
        counted: Whether to count; if False the counts are 0.

    Returns:
        The sums, one tensor per trainable parameter, in the network's order. If `buffers` are
        given: their views instead, which hold the sum of the last block only; the sum is in
        `buffers.totals`.
        The counts, float64: the sum over records of [norm <= C] - 1/2, shape (1,), or (layers,) for
        per-layer clipping. Null records add 0, and records with a norm that is not finite -1/2.
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
            captured = [seen.with_zero_rows(bad) for seen in captured]
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
        for view in left.values():  # parameters of layers that were not used
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
    """Compute every record's gradient, (batch, number of parameters), in the network's order.

    The result needs a lot of memory; it is used only for noise on each record.
    """
    prepared, found = PreparedNetwork.of(network), dict[int, Tensor]()
    for seen in prepared.capture(x, loss):
        own = dict(seen.layer.named_parameters(recurse=False))
        for name, gradient in prepared.rules[seen.layer].form_gradients(seen).items():
            found[id(own[name])] = gradient.flatten(1)
    rows = [
        found[id(p)] if id(p) in found else x.new_zeros(len(x), p.numel(), dtype=p.dtype)
        for p in prepared.parameters
    ]
    return torch.cat(rows, dim=1)


UNSUPPORTED_MODULES: tuple[tuple[type[nn.Module], str], ...] = (
    *REFUSED_MODULES,
    (nn.RNNBase, "maps to a pair; use pasearch.spaces.modules.Lstm or Gru"),
    (nn.MultiheadAttention, "has no rule for per-example gradients yet"),
    (nn.ParameterList, "holds parameters without a layer; put them into a layer"),
    (nn.ParameterDict, "holds parameters without a layer; put them into a layer"),
)


def validate(network: nn.Module) -> list[str]:
    """List the reasons why per-example gradients of a network are not supported; empty if none.

    Each reason names the module's path, the problem and a remedy.

    >>> import torch
    >>> validate(torch.nn.Linear(2, 1))
    []
    """
    problems = []
    owners: dict[int, str] = {}
    paths: dict[int, str] = {}
    alone = {n: m for n, m in network.named_modules() if isinstance(m, PerRecord)}
    if alone:
        return [problem for module in alone.values() for problem in find_module_problems(module)]
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
    """Yield the problems of one module with the trainable parameters `own`."""
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
    for name, shape in find_rule(module).list_parameter_shapes(module).items():
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
