"""Per-example gradients of a user's module, one record at a time by `torch.func.vmap`.

    output_i = f(x_i, parameters)      f sees one record, so nothing in it can mix records

The gradient of <d_i, output_i>, with d_i the gradient of the loss in output i, is computed with
respect to two kinds of variables in one pass:

    a layer with a closed form    zeros e_i added to its output: their gradient is the output
                                  gradient of `layer_rules`, and the layer's input is captured
    any other parameter           the parameter itself: the per-example gradient is formed

A layer has its closed form only if no other layer has one of its parameters, the module calls it
once, with one tensor whose first axis is the record, and the closed form gives the gradient of
autograd on a synthetic record at random weights. All other parameters are "loose".

Guarantee: row i of everything that is captured depends on record i alone. So norms and sums have
the properties of `layer_rules`.

Source: docs/rules.md, rules 11 and 14. Proof: docs/guarantees/dp-sgd.md ("Modules of the user").
"""

from __future__ import annotations

import copy
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from pasearch.errors import UsageError
from pasearch.spaces.modules import KeyedDropout, PerRecord, make_synthetic_records, spread_values
from pasearch.training.layer_rules import (
    GENERAL_RULE,
    RULES,
    CapturedLayer,
    LayerRule,
    find_rule,
)


class LooseParameters(nn.Module):
    """Parameters of a user's module whose gradients are formed, as one layer."""

    def __init__(self, parameters: list[nn.Parameter]):
        super().__init__()
        for place, parameter in enumerate(parameters):
            self.register_parameter(str(place), parameter)


class LooseRule(LayerRule):
    """Rule of `LooseParameters`: the captured output gradients are the per-example gradients."""

    def accepts(self, names: set[str]) -> bool:
        return True

    def form_gradients(self, captured: CapturedLayer) -> dict[str, Tensor]:
        own = dict(captured.layer.named_parameters(recurse=False))
        parts = captured.output_gradient.split([each.numel() for each in own.values()], dim=1)
        return {
            name: part.reshape(len(part), *own[name].shape)
            for name, part in zip(own, parts, strict=True)
        }


RULES[LooseParameters] = LooseRule()


class RecordwiseCapture:
    """Capture of the trainable layers of a network that contains a `PerRecord`.

    Args:
        network: `PerRecord`, or an `nn.Sequential` with one; no other module is trainable.

    Attributes:
        rules: Rule of each layer with a closed form, and of the loose parameters, if any.
        loose: Loose parameters, by name in the user's module.
    """

    def __init__(self, network: nn.Module):
        self._links = [*network] if isinstance(network, nn.Sequential) else [network]
        self._whole = network
        self._alone = next(each for each in self._links if isinstance(each, PerRecord))
        module = self._alone.module
        self._keyed = [each for each in module.modules() if isinstance(each, KeyedDropout)]
        self.loose = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self._layers, self._zeros = self._list_layers_called_once()
        self._layers = self._check_closed_forms() if self._layers else []
        covered = {id(p) for layer in self._layers for p in layer.parameters(recurse=False)}
        self.loose = {n: p for n, p in self.loose.items() if id(p) not in covered}
        self.rules: dict[nn.Module, LayerRule] = {each: find_rule(each) for each in self._layers}
        if self.loose:
            self._loose_layer = LooseParameters(list(self.loose.values()))
            self.rules[self._loose_layer] = find_rule(self._loose_layer)

    @classmethod
    def of(cls, network: nn.Module) -> Self | None:
        """Make the capture of a network; None if the network has no `PerRecord`."""
        found = any(isinstance(each, PerRecord) for each in network.modules())
        return cls(network) if found else None

    def run_alone(self, record: Tensor, loose: dict[str, Tensor] | None = None) -> Tensor:
        """Compute the output, (1, outputs), of one record, (1, ...), outside or inside of vmap.

        Args:
            record: The record.
            loose: Tensors that replace parameters of the user's module, by name.
        """
        for link in self._links:
            if link is not self._alone:
                record = link(record)
            elif loose:
                record = torch.func.functional_call(self._alone.module, loose, (record,))
            else:
                record = self._alone.module(record)
        return record

    def capture(
        self, x: Tensor, differentiate: Callable[[Tensor], Tensor], views: int
    ) -> dict[nn.Module, CapturedLayer]:
        """Capture all layers of `rules`.

        Args:
            x: Rows, (batch, ...).
            differentiate: Function from the outputs to the gradient of the summed loss in them.
            views: Number of rows per record.
        """
        draws = [each.draws for each in self._keyed]
        d = differentiate(self._whole(x))
        for each, drawn in zip(self._keyed, draws, strict=True):  # the same masks again
            each.enter_record(None, 0, drawn)
        gradients, formed, inputs = self._differentiate_records(x, d)
        found = {
            layer: CapturedLayer(layer, inputs[key].squeeze(1), gradients[key].squeeze(1), views)
            for layer, key in zip(self._layers, gradients, strict=True)
        }
        if self.loose:
            rows = torch.cat([formed[name].flatten(1) for name in self.loose], dim=1)
            found[self._loose_layer] = CapturedLayer(self._loose_layer, x[:, :0], rows, views)
        return found

    def _differentiate_records(self, x: Tensor, d: Tensor) -> Any:
        """Compute gradients in layer outputs and loose parameters, and inputs of layers, by vmap.

        Returns:
            Output gradients by key of `_zeros`, (batch, 1, ...); gradients of loose parameters by
            name, (batch, ...); inputs of layers by key, (batch, 1, ...).
        """
        zeros = {key: self._zeros[layer] for key, layer in _number_layers(self._layers).items()}
        loose = {name: each.detach() for name, each in self.loose.items()}

        def weigh_output(variables: Any, record: Tensor, own: Tensor) -> tuple[Tensor, Any]:
            inputs: dict[str, Tensor] = {}
            with _add_to_outputs(self._layers, variables[0], inputs):
                output = self.run_alone(record[None], variables[1])
            return (output[0] * own).sum(), inputs

        def differentiate(record: Tensor, own: Tensor) -> Any:
            return torch.func.grad(weigh_output, has_aux=True)((zeros, loose), record, own)

        (gradients, formed), inputs = self._alone.map_records(differentiate, x, d)
        return gradients, formed, inputs

    def _list_layers_called_once(self) -> tuple[list[nn.Module], dict[nn.Module, Tensor]]:
        """List the layers with a closed form that are called once, and zeros like their outputs."""
        calls: list[tuple[nn.Module, tuple[Any, ...], Any]] = []
        module = self._alone.module
        uses = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
        layers = [
            layer
            for layer in module.modules()
            if any(p.requires_grad for p in layer.parameters(recurse=False))
            and all(uses[id(p)] == 1 for p in layer.parameters(recurse=False))
            and find_rule(layer) is not GENERAL_RULE
        ]
        with _hook_calls(layers, lambda *call: calls.append(call)), torch.no_grad():
            self.run_alone(make_synthetic_records(self._alone, 1))
        called = [layer for layer, *_ in calls]
        zeros = {
            layer: torch.zeros_like(output)
            for layer, given, output in calls
            if called.count(layer) == len(given) == 1
            and all(isinstance(t, Tensor) and t.shape[:1] == (1,) for t in (*given, output))
        }
        return [layer for layer in layers if layer in zeros], zeros

    def _check_closed_forms(self) -> list[nn.Module]:
        """List the layers whose closed form is the gradient on a synthetic record.

        It is not, for example, if the module uses the layer's weight outside of the layer, too. The
        weights are random here, because a gradient is 0 if a later layer starts at 0.
        """
        record = make_synthetic_records(self._alone, 1)
        with torch.no_grad(), _use_random_weights(list(self.loose.values())):
            output = self.run_alone(record)
            d = torch.linspace(1.0, 2.0, output.numel()).to(output).view_as(output)
            gradients, formed, inputs = self._differentiate_records(record, d)
            true = {id(p): formed[name] for name, p in self.loose.items()}
            return [
                layer
                for layer, key in zip(self._layers, gradients, strict=True)
                if _has_closed_form(layer, inputs[key].squeeze(1), gradients[key].squeeze(1), true)
            ]


def _has_closed_form(layer: nn.Module, a: Tensor, d: Tensor, true: dict[int, Tensor]) -> bool:
    """Compare closed forms with gradients by id of parameter; a gradient of 0 shows nothing."""
    own = dict(layer.named_parameters(recurse=False))
    formed = find_rule(layer).form_gradients(CapturedLayer(layer, a, d))
    pairs = [(g, true[id(own[name])], float(g.abs().max())) for name, g in formed.items()]
    return all(size > 0.0 and torch.allclose(g, t, rtol=1e-3, atol=1e-4 * size)
               for g, t, size in pairs)  # fmt: skip


@contextmanager
def _use_random_weights(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Give parameters random values from a fixed seed, and their own at the end of the block."""
    own = [each.detach().clone() for each in parameters]
    generator = torch.Generator().manual_seed(0)
    try:
        for each in parameters:
            drawn = torch.randn(each.shape, generator=generator)
            each.copy_(drawn / max(1, each[0].numel() if each.ndim else 1) ** 0.5)
        yield
    finally:
        for each, value in zip(parameters, own, strict=True):
            each.copy_(value)


def _number_layers(layers: list[nn.Module]) -> dict[str, nn.Module]:
    return {f"{place:06d}": layer for place, layer in enumerate(layers)}


@contextmanager
def _hook_calls(layers: list[nn.Module], note: Callable[..., Any]) -> Iterator[None]:
    """Call `note` with (layer, arguments, output) after each call of the layers."""
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _add_to_outputs(
    layers: list[nn.Module], added: dict[str, Tensor], inputs: dict[str, Tensor]
) -> Iterator[None]:
    """Add a tensor to the output of each layer, and store the layer's input, by its key."""
    keys = {layer: key for key, layer in _number_layers(layers).items()}

    def add(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if keys[layer] in inputs:
            raise UsageError(f"Layer {layer} was called twice for one record, and once before.")
        (inputs[keys[layer]],) = given
        return output + added[keys[layer]]

    with _hook_calls(layers, add):
        yield


# --- problems of a user's module ---

REFUSED_MODULES: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.modules.batchnorm._BatchNorm, "mixes records; use nn.GroupNorm or nn.LayerNorm"),
    (nn.modules.dropout._DropoutNd, "draws from torch's global state; use KeyedDropout"),
    (nn.RReLU, "draws from torch's global state; use nn.LeakyReLU"),
    (nn.FractionalMaxPool2d, "draws from torch's global state; use nn.MaxPool2d"),
)
"""Types of modules that no network may contain, each with the reason and the replacement."""

VMAP_ERRORS = (
    ("data-dependent control flow", "has control flow that depends on a record; use torch.where"),
    (".item()", "converts a value of a record to a Python number; compute with tensors"),
    ("dynamic shape", "selects by values, so a shape depends on a record; use torch.where"),
    ("data pointer", "converts a record to numpy or a list; compute with tensors"),
    ("in-place", "writes a record into a tensor or buffer; use a local tensor"),
    ("inplace", "writes a record into a tensor or buffer; use a local tensor"),
    ("broadcast shape", "writes a record into a tensor or buffer; use a local tensor"),
    ("accessing `data`", "reads `.data` of a record; use the tensor itself"),
    ("random operation", "draws from torch's global state; use KeyedDropout"),
    ("Batching rule not implemented", "has no rule for one record at a time; use another layer"),
    ("generate_vmap_rule", "is an autograd.Function; set generate_vmap_rule = True in it"),
)
"""Words of an error under vmap, with the problem and the fix."""

SHAPE_ERRORS = (RuntimeError, IndexError, ValueError)
"""Types of errors of a module that expects another shape than (batch, *shape)."""

CHECKED_RECORDS = 4
"""Number of synthetic records with which a user's module is checked first."""


@torch.no_grad()
def find_module_problems(alone: PerRecord) -> list[str]:
    """List the reasons why a user's module cannot be trained, all at once; no record is read.

    Each names the path of the submodule, the problem and a fix.

    >>> find_module_problems(PerRecord(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), (2,), 3))
    ['1 (BatchNorm1d): mixes records; use nn.GroupNorm or nn.LayerNorm.']
    """
    module, modes = alone.module, [(each, each.training) for each in alone.modules()]
    problems: list[str] = []
    for path, each in module.named_modules():
        problems += (f"{_describe_place(path, each)}: {fault}." for fault in _find_faults(each))
    if not any(p.requires_grad for p in module.parameters()):
        problems.append("the network: has no trainable parameter; set requires_grad somewhere.")
        return problems
    if problems:  # run the rest of the module without the refused parts
        alone = PerRecord(
            _without_refused(copy.deepcopy(module).float()), alone.shape, alone.outputs
        )
    alone.raises = True
    try:
        for training in (True, False):
            alone.train(training)
            if found := [*_run_checks(alone)]:
                return problems + found
    finally:
        alone.raises = False
        for each, mode in modes:
            each.training = mode
    return problems


def _without_refused(module: nn.Module) -> nn.Module:
    """Replace submodules of `REFUSED_MODULES` by identities, in place."""
    for name, child in module.named_children():
        refused = isinstance(child, tuple(kind for kind, _ in REFUSED_MODULES))
        setattr(module, name, nn.Identity() if refused else _without_refused(child))
    return module


def _find_faults(module: nn.Module) -> Iterator[str]:
    """Yield the problems of one submodule that are visible without running it."""
    yield from (why for kind, why in REFUSED_MODULES if isinstance(module, kind))
    if isinstance(module, nn.RNNBase):
        yield "has no rule for one record at a time; use pasearch.spaces.modules.Lstm or Gru"
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.dtype != torch.float32:
            yield f"has {name} of type {parameter.dtype}; use float32: `.float()`"
    if getattr(module, "max_norm", None) is not None:
        yield "rescales the weights that it reads, without noise; set max_norm=None"
    if getattr(module, "sparse", False) or getattr(module, "scale_grad_by_freq", False):
        yield "has unsupported gradients; set sparse=False, scale_grad_by_freq=False"
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks
    if any(hooks) or module._backward_pre_hooks:
        yield "has hooks, which may change what it computes; remove them"


def _run_checks(alone: PerRecord) -> Iterator[str]:
    """Yield the problems that are found by running a user's module on synthetic records."""
    module, x = alone.module, make_synthetic_records(alone, CHECKED_RECORDS)
    others = spread_values(3, alone.shape)  # those of the check at the start of a training
    others = torch.cat([others.to(x), torch.zeros_like(x[:1])])
    before = _list_mapped_tensors()
    entered: list[tuple[str, nn.Module]] = []
    hooks = []
    for path, each in module.named_modules():
        note = (path, each)
        hooks.append(each.register_forward_pre_hook(lambda *_, note=note: entered.append(note)))
        hooks.append(each.register_forward_hook(lambda *_: (entered.pop(), None)[1]))
    try:
        rows = alone(x)
        alone(others)
    except UsageError as error:  # a state that changed
        yield str(error)
        return
    except Exception as error:  # noqa: BLE001 - the user's code may raise any exception
        fault = next((told for words, told in VMAP_ERRORS if words in str(error)), None)
        shape = (1, *alone.shape)
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        place = _describe_place(*entered[-1]) if entered else "the network"
        told = f"fails on one record of shape {shape} ({type(error).__name__}: {told})"
        is_size = "shapes cannot be multiplied" in told
        advice = "use nn.Flatten, then nn.LazyLinear" if is_size else "take and return batches"
        fault = fault or told + f"; {advice}" * isinstance(error, SHAPE_ERRORS)
        yield f"{place}: {fault}."
        return
    finally:
        for hook in hooks:
            hook.remove()
    if _list_mapped_tensors() - before:
        gc.collect()  # frees those to which only a circle of objects refers
    if _list_mapped_tensors() - before:
        yield "the network: keeps a tensor of a record after a call; store nothing between calls."
        return
    if not isinstance(rows, Tensor) or rows.shape != (CHECKED_RECORDS, alone.outputs):
        shape = tuple(getattr(rows, "shape", ()))[1:]
        yield (
            f"the network: maps a record to shape {shape}; expected ({alone.outputs},), one "
            "value per class, or one for a numeric target. Declare a parameter `outputs: int`."
        )
        return
    keyed = [each for each in module.modules() if isinstance(each, KeyedDropout)]

    def run_again() -> Tensor:
        for each in keyed:
            each.reseed(0)
        return alone(x)

    if not torch.equal(run_again(), run_again()):
        yield "the network: gives two outputs for the same record; remove what is random."
    if any(each.training for each in keyed):
        return  # masks differ by row; the following checks run without dropout
    if not _are_close(alone(x.flip(0)).flip(0), rows):
        yield "the network: its output depends on earlier calls; store nothing between calls."
    yield from _find_mixing(module, x)
    yield from _find_unreached(alone)
    try:
        RecordwiseCapture(alone).capture(x, torch.ones_like, 1)
    except Exception as error:  # noqa: BLE001 - the user's code may raise any exception
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        yield (
            f"the network: its gradients cannot be computed record by record ({told}); use another "
            "function."
        )


def _find_mixing(module: nn.Module, x: Tensor) -> Iterator[str]:
    """Yield the innermost submodule whose output for a record differs in a batch.

    Training and prediction use one record at a time, so this is no leak. But the module would
    compute something else than its author expects.
    """
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(each: nn.Module, given: tuple[object, ...], output: object) -> None:
        if given and isinstance(given[0], Tensor) and isinstance(output, Tensor):
            calls.append((each, given[0].clone(), output.clone()))

    runs = []
    with _hook_calls([*module.modules()], note):
        for records in (x, *x.split(1)):
            calls = []
            try:
                module(records.clone())
            except Exception:  # noqa: BLE001 - a module for one record at a time
                return
            runs.append(calls)
    batch, *alone = runs

    def equals_alone(place: int, part: int) -> bool:
        one, joined = batch[place][part], torch.cat([run[place][part] for run in alone])
        # Another shape: the records are not the first axis here, which is no problem in itself.
        return one.shape != joined.shape or _are_close(one, joined)

    if len({len(run) for run in runs}) > 1 or equals_alone(len(batch) - 1, 2):
        return
    paths = {each: path for path, each in module.named_modules()}
    places = range(len(batch))
    where = next((k for k in places if equals_alone(k, 1) and not equals_alone(k, 2)), -1)
    yield (
        f"{_describe_place(paths[batch[where][0]], batch[where][0])}: mixes records, because its "
        "output for a record changes with the other records of a batch; compute over the axes "
        "after the first."
    )


def _find_unreached(alone: PerRecord) -> Iterator[str]:
    """Yield the trainable parameters on which the output does not depend."""
    named = {n: p for n, p in alone.module.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        try:
            total = alone.module(make_synthetic_records(alone, 1)).sum()
        except Exception:  # noqa: BLE001 - it keeps a tensor, which is reported already
            return
        if not total.requires_grad:
            yield "the network: its output depends on no trainable parameter; remove `detach`."
            return
        found = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    for name, gradient in zip(named, found, strict=True):
        if gradient is None:
            yield f"{name}: does not reach the output; remove it, or set requires_grad=False."


def _list_mapped_tensors() -> set[int]:
    """List the ids of all tensors of calls under vmap that still exist, wherever they are kept."""
    is_batched = torch._C._functorch.is_batchedtensor  # pyright: ignore[reportAttributeAccessIssue]
    every = (each for each in gc.get_objects() if issubclass(type(each), Tensor))
    return {id(each) for each in every if is_batched(each)}


def _are_close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def _describe_place(path: str, module: nn.Module) -> str:
    return f"{path or 'the network'} ({type(module).__name__})"
