"""Training one network by a recipe, step by step, from keys of its own.

The same path trains privately and, on declared-public data, without noise and bound. All
randomness is keyed by purpose and step: no two trials and no two steps share any.

Source: docs/rules.md, rules 7, 8, 11 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pasearch.errors import UsageError
from pasearch.training.noise import GaussianNoise, draw
from pasearch.training.per_example import clipped_sum, trainable_parameters, validate

if TYPE_CHECKING:
    from pasearch.runs.keys import Stream
    from pasearch.training.recipe import Recipe


class Trainable(Protocol):
    """The records of an open partition."""

    @property
    def x(self) -> Tensor:
        """Features, float32, (slots, ...)."""
        ...

    @property
    def y(self) -> Tensor:
        """Classes, int64, (slots,); or numbers to predict, float32."""
        ...

    @property
    def valid(self) -> Tensor:
        """bool, (slots,); False marks a null record."""
        ...

    @property
    def public(self) -> bool:
        """Whether the user declared the data public."""
        ...


def train(
    network: nn.Module,
    records: Trainable,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    *,
    device: str = "cpu",
    on_step: Callable[[int], None] | None = None,
) -> None:
    """Train a network in place.

    Guarantee: with noise, the final weights cost `recipe.event(len(records.y))` on the partition.

    Args:
        network: Accepted by `per_example.validate`.
        records: The open partition, charged by the caller.
        recipe: With its learning rate known.
        streams: One stream each for "batch", "noise" and "dropout", used for nothing else.
        device: "cpu" or "cuda"; the network stays there.
        on_step: Called with the number of finished steps.

    Raises:
        UsageError: A network whose records cannot be told apart; no noise on private data; no
            learning rate.

    Cost: charged by the caller before `records` was opened.
    """
    training = Training(network, records, recipe, streams, device=device)
    try:
        for finished in range(1, recipe.steps + 1):
            training.step()
            if on_step is not None:
                on_step(finished)
        training.install_average()
    finally:
        training.forget_gradients()


class Training:
    """A training under way: `train` in single steps, for what must look between them.

    Guarantee: after t steps the weights, and their average, cost t steps of `recipe.event(n)`.

    Args, raises and cost: like `train`.
    """

    def __init__(
        self,
        network: nn.Module,
        records: Trainable,
        recipe: Recipe,
        streams: Mapping[str, Stream],
        *,
        device: str = "cpu",
    ):
        if recipe.noise_multiplier is None and records.public is not True:
            raise UsageError(
                "Training without noise is for data declared public (--data-is-public)."
            )
        if problems := validate(network):
            raise UsageError("This network cannot be trained privately: " + " ".join(problems))
        self._network, self._recipe, self._streams = network, recipe, streams
        self._parameters = trainable_parameters(network)
        self._optimizer = _optimizer(recipe, self._parameters)
        network.to(device).train()
        self._slots = _Slots(
            x=records.x.to(device), y=records.y.to(device), valid=records.valid.to(device)
        )
        _check_apart(network, self._slots.x)
        self._average = _Average(self._parameters, recipe)
        self._finished = 0

    def step(self) -> None:
        """Draw a batch, take its noisy sum, and move the weights by it."""
        with full_precision():
            sums = batch_sum(
                self._network, self._slots, self._recipe, self._streams, self._finished
            )
        for parameter, value in zip(self._parameters, sums, strict=True):
            parameter.grad = value.div_(self._recipe.expected_batch_size)
        self._optimizer.step()
        self._average.update(self._finished)
        self._finished += 1

    def install_average(self) -> None:
        """Let the network have its averaged weights, if the recipe averages."""
        self._average.install()

    def forget_gradients(self) -> None:
        """Leave no gradient on the network's parameters."""
        for parameter in self._parameters:
            parameter.grad = None


@dataclass(frozen=True, slots=True)
class _Slots:
    """The records on the training's device: moved once, not batch by batch."""

    x: Tensor
    y: Tensor
    valid: Tensor


def batch_sum(
    network: nn.Module,
    slots: _Slots,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    step: int,
) -> list[Tensor]:
    """Return one step's noisy sum of bounded gradients over a fresh Poisson batch."""
    n, parameters = len(slots.y), trainable_parameters(network)
    drawn = None
    if recipe.noise_multiplier is not None:
        count = sum(parameter.numel() for parameter in parameters)
        drawn = draw(count, slots.x.device, streams["noise"], step)
    chosen = torch.from_numpy(recipe.batching(n).indices(n, streams["batch"].generator(step)))
    _reseed_dropout(network, streams["dropout"], step)
    sums: list[Tensor] = []
    for part in chosen.to(slots.x.device).split(recipe.chunk):
        if len(part) == 0:
            break
        mask = slots.valid.index_select(0, part)
        # A null record's class is never read: whatever stands there, its loss is a number.
        loss = _Loss(slots.y.index_select(0, part).where(mask, 0))
        values = clipped_sum(network, slots.x.index_select(0, part), loss, recipe.bounding, mask)
        sums = [total.add_(v) for total, v in zip(sums, values, strict=True)] if sums else values
    sums = sums or [torch.zeros_like(parameter) for parameter in parameters]
    if recipe.noise_multiplier is not None:
        assert recipe.bounding is not None
        noise = GaussianNoise(noise_multiplier=recipe.noise_multiplier)
        noise.add_(sums, recipe.bounding.sensitivity, streams["noise"], step, drawn)
    return sums


@dataclass(frozen=True, slots=True)
class _Loss:
    """Each record's own loss, (batch,): cross entropy of a class, half the square of an error."""

    y: Tensor

    def __call__(self, outputs: Tensor) -> Tensor:
        if self.y.is_floating_point():
            return 0.5 * (outputs.squeeze(1) - self.y).square()
        return functional.cross_entropy(outputs, self.y, reduction="none")


@torch.no_grad()
def _check_apart(network: nn.Module, x: Tensor) -> None:
    """Refuse a network where one record changes another's output, as a mean over the batch does.

    Three made-up records of the right shape; no real one is looked at. A network that mixes records
    only where others lie gets past this, so it is no proof.
    """
    steps = np.linspace(-1.0, 1.0, 3 * math.prod(x.shape[1:]), dtype=np.float32)
    made_up = torch.from_numpy(steps).reshape(3, *x.shape[1:]).to(x.device)
    made_up = made_up if x.is_floating_point() else made_up.abs() > 0.5
    changed = made_up.clone()
    changed[1] = 0
    outputs = []
    for records in (made_up, changed):
        _reseed_dropout(network, None, 0)
        outputs.append(network(records.to(x.dtype))[::2])
    if not torch.allclose(*outputs, rtol=1e-4, atol=1e-5):
        raise UsageError(
            "This network cannot be trained privately: one record changes another's output, so "
            "some layer mixes records. Let each work on its own, as nn.LayerNorm does."
        )


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch TF32, bfloat16 products and autocast off, and give the user's settings back."""
    switches = _precision_switches()
    saved = [getattr(place, name) for place, name, _ in switches]
    for place, name, exact in switches:
        setattr(place, name, exact)
    try:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for (place, name, _), value in zip(switches, saved, strict=True):
            setattr(place, name, value)


def _precision_switches() -> list[tuple[Any, str, Any]]:
    """Return every switch that makes float32 products coarser, and its exact setting."""
    backends = torch.backends
    if not hasattr(backends.cuda.matmul, "fp32_precision"):  # torch before 2.9
        return [(backends.cuda.matmul, "allow_tf32", False), (backends.cudnn, "allow_tf32", False)]
    places: list[Any] = [backends.cuda.matmul]
    for library in (backends.cudnn, backends.mkldnn):
        places += [
            getattr(library, kind) for kind in ("matmul", "conv", "rnn") if hasattr(library, kind)
        ]
    return [(place, "fp32_precision", "ieee") for place in places]


def _optimizer(recipe: Recipe, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    rate = recipe.learning_rate
    if rate is None:
        raise UsageError(
            "The recipe has no learning rate: give `learning_rate`, or take "
            "`tuned_learning_rate(recipe, mu, n)`."
        )
    match recipe.optimizer:
        case "sgd":
            return torch.optim.SGD(parameters, lr=rate)
        case "momentum":
            return torch.optim.SGD(
                parameters, lr=rate * (1.0 - recipe.momentum), momentum=recipe.momentum
            )
    return torch.optim.Adam(parameters, lr=rate, betas=(recipe.momentum, 0.999))


def _reseed_dropout(network: nn.Module, stream: Stream | None, step: int) -> None:
    for place, module in enumerate(network.modules()):
        if callable(reseed := getattr(module, "reseed", None)):
            reseed(0 if stream is None else stream.child(place).seed64(step))


class _Average:
    """An exponential moving average of the weights: post-processing, so it costs nothing.

    decay_t = min(1 - 1 / (average * steps), (1 + t) / (10 + t)): short at first, so that the random
    start is forgotten.
    """

    def __init__(self, parameters: list[nn.Parameter], recipe: Recipe):
        self._parameters = parameters
        horizon = max(1.0, (recipe.average or 0.0) * recipe.steps)
        self._decay = 1.0 - 1.0 / horizon
        keep = recipe.average is not None
        self._means = [p.detach().clone() for p in parameters] if keep else []

    def update(self, step: int) -> None:
        if self._means:
            weight = 1.0 - min(self._decay, (1 + step) / (10 + step))
            for mean, parameter in zip(self._means, self._parameters, strict=True):
                mean.lerp_(parameter.detach(), weight)

    def install(self) -> None:
        for parameter, mean in zip(self._parameters, self._means, strict=False):
            parameter.detach().copy_(mean)
