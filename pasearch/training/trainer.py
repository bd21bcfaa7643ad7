"""Training one network by a recipe, step by step, from keys of its own.

The same path trains privately and, on declared-public data, without noise and bound. All
randomness is keyed by purpose and step: no two trials and no two steps share any.

Source: privacy.md, rules 7, 8, 11 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from pasearch.errors import UsageError
from pasearch.training.noise import GaussianNoise
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
        """Classes, int64, (slots,)."""
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
        UsageError: A network whose records cannot be told apart; no noise on private data.

    Cost: charged by the caller before `records` was opened.
    """
    if problems := validate(network):
        raise UsageError("This network cannot be trained privately: " + " ".join(problems))
    if recipe.noise_multiplier is None and records.public is not True:
        raise UsageError("Training without noise is for data declared public (--data-is-public).")
    assert recipe.learning_rate is not None
    network.to(device).train()
    parameters = trainable_parameters(network)
    optimizer = _optimizer(recipe, parameters)
    average = _Average(parameters, recipe)
    with full_precision():
        for step in range(recipe.steps):
            sums = batch_sum(network, records, recipe, streams, step, device)
            for parameter, value in zip(parameters, sums, strict=True):
                parameter.grad = value.div_(recipe.expected_batch_size)
            optimizer.step()
            average.update(step)
            if on_step is not None:
                on_step(step + 1)
    average.install()
    for parameter in parameters:
        parameter.grad = None


def batch_sum(
    network: nn.Module,
    records: Trainable,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    step: int,
    device: str,
) -> list[Tensor]:
    """Return one step's noisy sum of bounded gradients over a fresh Poisson batch."""
    batching = recipe.batching(len(records.y))
    chosen = torch.from_numpy(batching.indices(len(records.y), streams["batch"].generator(step)))
    _reseed_dropout(network, streams["dropout"], step)
    sums = [torch.zeros_like(parameter) for parameter in trainable_parameters(network)]
    for part in chosen.split(recipe.chunk) if len(chosen) else ():
        x, y = records.x[part].to(device), records.y[part].to(device)
        mask = records.valid[part].to(device)

        def loss(outputs: Tensor, y: Tensor = y) -> Tensor:
            return functional.cross_entropy(outputs, y, reduction="none")

        for total, value in zip(
            sums, clipped_sum(network, x, loss, recipe.bounding, mask), strict=True
        ):
            total.add_(value)
    if recipe.noise_multiplier is not None:
        assert recipe.bounding is not None
        noise = GaussianNoise(noise_multiplier=recipe.noise_multiplier)
        noise.add_(sums, recipe.bounding.sensitivity, streams["noise"], step)
    return sums


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch TF32 off, and give the user's settings back: norms need all of float32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    saved = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = saved


def _optimizer(recipe: Recipe, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    rate = recipe.learning_rate
    assert rate is not None
    match recipe.optimizer:
        case "sgd":
            return torch.optim.SGD(parameters, lr=rate)
        case "momentum":
            return torch.optim.SGD(
                parameters, lr=rate * (1.0 - recipe.momentum), momentum=recipe.momentum
            )
    return torch.optim.Adam(parameters, lr=rate, betas=(recipe.momentum, 0.999))


def _reseed_dropout(network: nn.Module, stream: Stream, step: int) -> None:
    for place, module in enumerate(network.modules()):
        if callable(reseed := getattr(module, "reseed", None)):
            reseed(stream.child(place).seed64(step))


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
            torch._foreach_lerp_(self._means, [p.detach() for p in self._parameters], weight)

    def install(self) -> None:
        for parameter, mean in zip(self._parameters, self._means, strict=False):
            parameter.detach().copy_(mean)
