"""What every trainable layer of a network saw and got back, from one forward and backward pass.

A chain (nested `nn.Sequential`) is walked module by module, so nothing is hung on it; any other
network is watched by forward hooks that are gone when the pass is over. What depends on the network
alone is found once: see `Watched`.

Source: Bu et al. 2022. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from pasearch.errors import UsageError
from pasearch.spaces.modules import TemperedSigmoid, sigmoid
from pasearch.training.dense import ACTIVATIONS, Dense
from pasearch.training.kernels import Captured, Kernel, kernel_of, no_kernel
from pasearch.training.losses import LossOf
from pasearch.training.pooling import pooled

Loss = Callable[[Tensor], Tensor]
"""From the network's output, (batch, ...), to each record's own loss, (batch,)."""


def trainable_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that training changes, in the module's order."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def trainable_layers(network: nn.Module) -> list[nn.Module]:
    """Return the modules that own a trainable parameter directly."""
    return [
        module
        for module in network.modules()
        if any(p.requires_grad for p in module.parameters(recurse=False))
    ]


class Watched:
    """A network, with what depends on it alone: found once, and not at every step.

    Args:
        network: Accepted by `per_example.validate`; its layers and what is trained stay the same.
    """

    __slots__ = (
        "_chain", "_plain", "dense", "kernels", "keyed", "look", "network", "parameters",
    )  # fmt: skip

    def __init__(self, network: nn.Module):
        self.network = network
        self.look = True  # for records that are not finite: see `norms.bounded`
        self.parameters = trainable_parameters(network)
        self.kernels = {layer: kernel_of(layer) for layer in trainable_layers(network)}
        reseeds = (getattr(module, "reseed", None) for module in network.modules())
        self.keyed = [each for each in reseeds if callable(each)]
        self._chain = _chain(network, self.kernels)
        self._plain = self._chain is not None and all(type(m) in PULLS for m, _ in self._chain)
        self.dense = _dense(network, self.kernels)

    @property
    def modules(self) -> list[nn.Module] | None:
        """What a chain calls one after another; None of another network."""
        return None if self._chain is None else [module for module, _ in self._chain]

    @classmethod
    def of(cls, network: nn.Module | Self) -> Self:
        """Return a network as it is watched, or what is watched already."""
        return network if isinstance(network, cls) else cls(network)  # pyright: ignore[reportArgumentType]

    def captured(self, x: Tensor, loss: Loss) -> list[Captured]:
        """Run forward and backward once; return what every trainable layer saw, as they are used.

        Raises:
            UsageError: A layer whose rows are not the records, or whose tensors were overwritten.

        Cost: as much as a plain backward pass, less the parameters' gradients.
        """
        if self._plain and isinstance(loss, LossOf):
            return self._pulled_back(x, loss)
        with torch.enable_grad():
            seen: list[_Seen] = []
            if self._chain is not None:
                output = _walked(self._chain, x, seen)
            else:
                with _hooked(list(self.kernels), seen):
                    output = self.network(x)
            losses = loss(output)
            _check_seen(seen, x.shape[0])
            asked = [each.output for each in seen]
            inner = [each.inner[0] for each in seen if each.inner]
            found = torch.autograd.grad(losses.sum(), [*asked, *inner], allow_unused=True)
        gradients, rest = found[: len(asked)], iter(found[len(asked) :])
        return [
            self._captured(each, gradient, next(rest) if each.inner else None)
            for each, gradient in zip(seen, gradients, strict=True)
        ]

    @torch.no_grad()
    def inputs(self, x: Tensor) -> list[tuple[nn.Module, Tensor, Tensor]]:
        """Return every trainable layer that is used, its input and its output, for such records."""
        seen: list[_Seen] = []
        with _hooked(list(self.kernels), seen):
            self.network(x)
        return [(each.layer, each.input, each.output) for each in seen]

    def product(self, x: Tensor) -> float:
        """Return how many operations of a record its largest product has, on records like these."""
        found = ((self.kernels[layer].places(output), getattr(layer, "weight", None))
                 for layer, _, output in self.inputs(x))  # fmt: skip
        return max((2.0 * places * w.numel() for places, w in found if w is not None), default=0.0)

    def _captured(self, seen: _Seen, gradient: Tensor | None, inner: Tensor | None) -> Captured:
        if gradient is None:
            gradient = torch.zeros_like(seen.output)
        captured = Captured(seen.layer, seen.input.detach(), gradient)
        if inner is not None:
            self.kernels[seen.layer].keep(captured, seen.inner, inner)
        return captured

    @torch.no_grad()
    def _pulled_back(self, x: Tensor, loss: LossOf) -> list[Captured]:
        """Do what autograd would, where every module's own derivative is known."""
        assert self._chain is not None
        inputs = [x]
        for module, _ in self._chain:
            inputs.append(_through(module, inputs[-1]))
        seen: list[_Seen] = []
        gradient, left = loss.gradient(inputs[-1]), len(self.kernels)
        captured: list[Captured] = []
        for place in reversed(range(len(self._chain))):
            (module, kernel), (a, output) = self._chain[place], inputs[place : place + 2]
            if kernel is not None:
                seen.append(_Seen(module, a, output, (a._version, output._version)))
                captured.append(Captured(module, a, gradient))
                left -= 1
            if left == 0:
                break
            gradient = PULLS[type(module)](module, gradient, a, output)
        _check_seen(seen, x.shape[0])
        return captured[::-1]


def _of_linear(module: nn.Module, d: Tensor, x: Tensor, output: Tensor) -> Tensor:
    assert isinstance(module, nn.Linear)
    return d @ module.weight


PULLS: dict[type[nn.Module], Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]] = {
    nn.Linear: _of_linear,
    nn.Flatten: lambda _, d, x, output: d.reshape(x.shape),
    nn.Tanh: lambda _, d, x, output: ACTIVATIONS[nn.Tanh][1](d, output),
    nn.ReLU: lambda _, d, x, output: ACTIVATIONS[nn.ReLU][1](d, output),
    nn.Sigmoid: lambda _, d, x, output: ACTIVATIONS[nn.Sigmoid][1](d, output),
}
"""From a module's output's gradient, its input and its output to its input's gradient."""


def capture(network: nn.Module | Watched, x: Tensor, loss: Loss) -> list[Captured]:
    """Return what every trainable layer saw: see `Watched.captured`."""
    return Watched.of(network).captured(x, loss)


@dataclass(frozen=True, slots=True)
class _Seen:
    layer: nn.Module
    input: Tensor
    output: Tensor
    versions: tuple[int, int]
    inner: tuple[Tensor, ...] = ()
    """What the layer's kernel watches inside it; the first has a gradient."""


SAME = (nn.Linear, nn.Conv2d, nn.Tanh, nn.ReLU, nn.Sigmoid, TemperedSigmoid)
"""Modules that do the same to each record at every step, where they are not trained."""


def parted(network: nn.Module) -> tuple[nn.Sequential, nn.Module]:
    """Return what a chain does before its first trained layer, at every step alike, and the rest.

    Another network is all rest.
    """
    if type(network) is not nn.Sequential:
        return nn.Sequential(), network
    modules = list(_leaves(network))
    first = next(place for place, each in enumerate([*modules, None]) if not _fixed(each))
    if any(each._forward_hooks or each._forward_pre_hooks for each in modules[:first]):
        return nn.Sequential(), network
    return nn.Sequential(*modules[:first]), nn.Sequential(*modules[first:])


def _fixed(module: nn.Module | None) -> bool:
    """Whether a module does to each record the same at every step, and leaves the first axis."""
    if type(module) is nn.Flatten:
        return module.start_dim == 1 and module.end_dim == -1
    if type(module) is nn.Unflatten:
        return isinstance(module.dim, int) and module.dim >= 1
    if isinstance(module, SAME) and type(module) in SAME:
        return not any(p.requires_grad for p in module.parameters())
    return type(module) in (nn.MaxPool2d, nn.AvgPool2d)


_Link = tuple[nn.Module, Kernel | None]


def _chain(network: nn.Module, kernels: dict[nn.Module, Kernel]) -> list[_Link] | None:
    """Return the modules that a network calls one after another; None if it may do otherwise."""
    links = [(module, kernels.get(module)) for module in _leaves(network)]
    within = sum(len(trainable_layers(module)) for module, _ in links)
    # Of a layer within a module, or in two places, only the hooks know.
    alone = sum(kernel is not None for _, kernel in links) == within == len(kernels)
    return links if type(network) is nn.Sequential and alone else None


def _dense(network: nn.Module, kernels: dict[nn.Module, Kernel]) -> Dense | None:
    """Return a network as a chain of linear layers, each in one place; None if it is another."""
    dense = Dense.of([*_leaves(network)]) if type(network) is nn.Sequential else None
    if dense is None:
        return None
    trained = {id(dense.weights[place]) for place in dense.trained}
    return dense if len(trained) == len(dense.trained) == len(kernels) else None


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for child in module:
            yield from _leaves(child)
    else:
        yield module


def _through(module: nn.Module, x: Tensor) -> Tensor:
    """Return what a module without parameters makes of x; some otherwise than torch would."""
    if type(module) is nn.Sigmoid:
        return sigmoid(x)
    return pooled(module, x) if type(module) is nn.MaxPool2d else module(x)


def _walked(chain: list[_Link], x: Tensor, seen: list[_Seen]) -> Tensor:
    """Return the output of a chain, and note what its layers saw."""
    for module, kernel in chain:
        if kernel is None:
            x = _through(module, x)
            continue
        output, inner = kernel.forward(module, x)
        if not isinstance(output, Tensor):
            raise _no_tensor(module)
        seen.append(_Seen(module, x, output, (x._version, output._version), inner))
        x = output
    return x


@contextmanager
def _hooked(layers: list[nn.Module], seen: list[_Seen]) -> Iterator[None]:
    def record(
        layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        tensors = (*arguments, output)
        if len(tensors) != 2 or named or not all(isinstance(t, Tensor) for t in tensors):
            raise _no_tensor(layer)
        if any(layer is other.layer for other in seen):
            raise no_kernel(layer, "is used twice in one pass", "give each place its own layer")
        value = arguments[0]
        seen.append(_Seen(layer, value, output, (value._version, output._version)))

    hooks = [layer.register_forward_hook(record, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _no_tensor(layer: nn.Module) -> UsageError:
    return no_kernel(layer, "does not map one tensor to one tensor", "wrap it so that it does")


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
