"""Training one network by a recipe, step by step, from keys of its own.

The same path trains privately and, on declared-public data, without noise and bound. All
randomness is keyed by purpose and step: no two trials and no two steps share any.

Source: docs/rules.md, rules 7, 8, 11 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pasearch.accounting.density import Density
from pasearch.accounting.events import Filtered
from pasearch.accounting.filters import Filter
from pasearch.errors import BudgetError, UsageError
from pasearch.runs.normals import normals
from pasearch.training.bounding import AdaptiveQuantile, Flat
from pasearch.training.encoded.denoising import KolmogorovSmirnov, begin_noise
from pasearch.training.encoded.gradients import Encoded, encoded_sum
from pasearch.training.noise import GaussianNoise, add_scaled, draw
from pasearch.training.noise_first import noise_first_sum
from pasearch.training.optimizers import CorrectedAdam, optimizer_of
from pasearch.training.per_example import (
    clipped_sum_and_counts,
    trainable_layers,
    trainable_parameters,
    validate,
)
from pasearch.training.schedules import Validation
from pasearch.training.screening import Annealing, coin

if TYPE_CHECKING:
    from pasearch.runs.keys import Stream
    from pasearch.training.recipe import Recipe

Judge = Callable[[nn.Module, int], float]
"""From the network as it is, and how often it was asked before, to an energy or an accuracy: of
public records, or a noisy release that its maker has charged."""


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
    judge: Judge | None = None,
) -> None:
    """Train a network in place.

    Guarantee: with noise, the final weights cost `recipe.event(len(records.y))` on the partition,
    beside what `judge` has released.

    Args:
        network: Accepted by `per_example.validate`.
        records: The open partition, charged by the caller.
        recipe: With its learning rate known.
        streams: One stream each for "batch", "noise" and "dropout", used for nothing else.
        device: "cpu" or "cuda"; the network stays there.
        on_step: Called with the number of finished steps.
        judge: Of screening (an energy, less is better) or of a validation-driven schedule (an
            accuracy); needed by these two alone.

    Raises:
        UsageError: A network whose records cannot be told apart; no noise on private data; no
            learning rate.

    Cost: charged by the caller before `records` was opened.
    """
    training = Training(network, records, recipe, streams, device=device, judge=judge)
    try:
        for finished in range(1, recipe.steps + 1):
            if not training.step():
                break
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
        judge: Judge | None = None,
    ):
        if recipe.noise_multiplier is None and records.public is not True:
            raise UsageError(
                "Training without noise is for data declared public (--data-is-public)."
            )
        unbounded = recipe.order is not None and recipe.order.record_bound is None
        if unbounded and records.public is not True:
            raise UsageError(
                "Noise on gradients that were not bounded first is for data declared public: give "
                "the order a record_bound."
            )
        if problems := validate(network):
            raise UsageError("This network cannot be trained privately: " + " ".join(problems))
        self._network, self._recipe, self._streams = network, recipe, streams
        self._parameters = trainable_parameters(network)
        self._optimizer = optimizer_of(recipe, self._parameters)
        self._state = State.start(network, recipe)
        network.to(device).train()
        self._slots = _Slots(
            x=records.x.to(device), y=records.y.to(device), valid=records.valid.to(device)
        )
        _check_apart(network, self._slots.x)
        self._average = _Average(self._parameters, recipe)
        self._finished = 0
        self._pace = _Pace.of(recipe, len(records.y), judge)
        self._screen = _Screen.of(self, judge)

    def step(self) -> bool:
        """Draw a batch, take its noisy sum, and move the weights by it.

        Returns:
            False if the step did not fit into what is left of a validation-driven schedule: then
            nothing was read.
        """
        recipe, n = self._recipe, len(self._slots.y)
        sigma = recipe.noise_at(self._finished, n)
        if self._pace is not None and sigma is not None:
            if (sigma := self._pace.spend(sigma)) is None:
                return False
        with full_precision():
            sums = batch_sum(
                self._network, self._slots, recipe, self._streams, self._finished,
                noise_multiplier=sigma, state=self._state,
            )  # fmt: skip
        for parameter, value in zip(self._parameters, sums, strict=True):
            parameter.grad = value.div_(recipe.expected_batch_size)
        if isinstance(self._optimizer, CorrectedAdam):
            deviation = self._state.noise_deviation / recipe.expected_batch_size
            self._optimizer.noise_variance = deviation**2
        self._optimizer.step()
        if self._screen is not None:
            self._screen.after(self._finished)
        self._average.update(self._finished)
        if self._pace is not None:
            self._pace.after(self._finished, self._network)
        self._finished += 1
        return True

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


@dataclass(slots=True)
class State:
    """What a training carries from step to step beside the weights: all of it post-processing.

    Args:
        bounds: The bounds of an adaptive bounding, from released counts; empty for others.
        noise_deviation: Of one coordinate of the last sum.
        weights: The sum of the weights of a denoising, and how many there were.
    """

    bounds: tuple[float, ...] = ()
    noise_deviation: float = 0.0
    weights: tuple[Tensor | float, int] = (0.0, 0)

    @classmethod
    def start(cls, network: nn.Module, recipe: Recipe) -> State:
        """Return the state before the first step."""
        if isinstance(recipe.bounding, AdaptiveQuantile):
            return cls(bounds=recipe.bounding.start(len(trainable_layers(network))))
        return cls()


def batch_sum(
    network: nn.Module,
    slots: _Slots,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    step: int,
    *,
    noise_multiplier: float | None = None,
    state: State | None = None,
) -> list[Tensor]:
    """Return one step's noisy sum of bounded gradients over a fresh batch.

    Args:
        network: Accepted by `validate`.
        slots: The records, on the training's device.
        recipe: How.
        streams: "batch", "noise" and "dropout".
        step: Which, from 0.
        noise_multiplier: sigma_t; None takes what the recipe has at this step.
        state: Read and moved on; None starts afresh.
    """
    n, state = len(slots.y), state or State.start(network, recipe)
    sigma = recipe.noise_at(step, n) if noise_multiplier is None else noise_multiplier
    chosen = torch.from_numpy(recipe.batches(n).batch(n, streams["batch"], step))
    chosen = chosen.to(slots.x.device)
    _reseed_dropout(network, streams["dropout"], step)
    if recipe.order is not None and sigma is not None:
        return _noise_first(network, slots, recipe, streams["noise"], step, chosen, sigma)
    parameters = trainable_parameters(network)
    drawn = None
    if sigma is not None:
        count = sum(parameter.numel() for parameter in parameters)
        if recipe.noise is None:
            drawn = draw(count, slots.x.device, streams["noise"], step)
        else:
            drawn = begin_noise(recipe.noise.unit, count, slots.x.device, streams["noise"], step)
    bounding = recipe.bounding
    if isinstance(bounding, AdaptiveQuantile):
        bounding = bounding.at(state.bounds)
    sums: list[Tensor] = []
    counts = torch.zeros(len(state.bounds), dtype=torch.float64)
    views = recipe.augmentation
    for place, part in enumerate(chosen.split(_rows(recipe))):
        if len(part) == 0:
            break
        mask = slots.valid.index_select(0, part)
        # A null record's class is never read: whatever stands there, its loss is a number.
        y, x = slots.y.index_select(0, part).where(mask, 0), slots.x.index_select(0, part)
        if views is not None:
            generator = streams["batch"].child("views", place).generator(step)
            x, y = views.apply(x, generator), y.repeat_interleave(views.views)
        if isinstance(bounding, Encoded):
            values, found = encoded_sum(network, x, _Loss(y), mask, bounding), counts
        else:
            values, found = clipped_sum_and_counts(
                network, x, _Loss(y), bounding, mask, views=1 if views is None else views.views
            )
        if state.bounds:
            counts += found
        sums = [total.add_(v) for total, v in zip(sums, values, strict=True)] if sums else values
    sums = sums or [torch.zeros_like(parameter) for parameter in parameters]
    if sigma is not None:
        assert bounding is not None
        assert drawn is not None
        bounds = state.bounds
        if bounds:
            sigma = _adapt(recipe, state, sigma, counts, streams["noise"], step)
        if recipe.noise is None:
            GaussianNoise(noise_multiplier=sigma).add_(
                sums, bounding.sensitivity, streams["noise"], step, drawn
            )
        else:
            add_scaled(sums, drawn(), recipe.density(sigma).scale)
        state.noise_deviation = sigma * bounding.sensitivity
        if recipe.denoising is not None:
            _denoise(sums, recipe.denoising, recipe.density(sigma), state)
        if bounds:
            _rescale(network, recipe, state, sums, bounds)
    return sums


def _denoise(
    sums: list[Tensor], denoising: KolmogorovSmirnov, density: Density, state: State
) -> None:
    """Weigh the noisy sum by its distance from pure noise: post-processing.

    The weight stays on the device, which is not waited for.
    """
    weight = denoising.weight(torch.cat([each.flatten() for each in sums]), density).double()
    if denoising.relative:
        total, count = state.weights[0] + weight, state.weights[1] + 1
        state.weights = (total, count)
        weight = torch.where(total > 0, weight * count / total, weight)
    for each in sums:
        each.mul_(weight)


def _rows(recipe: Recipe) -> int:
    views = 1 if recipe.augmentation is None else recipe.augmentation.views
    return max(1, recipe.chunk // views)


def _adapt(
    recipe: Recipe, state: State, sigma: float, counts: Tensor, stream: Stream, step: int
) -> float:
    """Release the step's counts, move the bounds, and return the gradients' noise multiplier."""
    adaptive = recipe.bounding
    assert isinstance(adaptive, AdaptiveQuantile)
    gradients, deviation = adaptive.noises(sigma, len(state.bounds))
    noisy = counts.clone().numpy()
    normals(len(noisy), stream.child("counts"), step).add_to(noisy, deviation)
    state.bounds = adaptive.moved(state.bounds, tuple(noisy.tolist()), recipe.expected_batch_size)
    return gradients


def _rescale(
    network: nn.Module, recipe: Recipe, state: State, sums: list[Tensor], bounds: tuple[float, ...]
) -> None:
    """Multiply each layer's noisy sum by C_0 / C_t, so that one learning rate fits every bound.

    Post-processing: the bounds are released.
    """
    adaptive, layers = recipe.bounding, trainable_layers(network)
    assert isinstance(adaptive, AdaptiveQuantile)
    factors = [first / now for first, now in zip(adaptive.start(len(layers)), bounds, strict=True)]
    state.noise_deviation *= factors[0]
    each = factors if adaptive.per_layer else factors * len(layers)
    of = {id(p): f for layer, f in zip(layers, each, strict=True)
          for p in layer.parameters(recurse=False)}  # fmt: skip
    for parameter, value in zip(trainable_parameters(network), sums, strict=True):
        value.mul_(of[id(parameter)])


def _noise_first(
    network: nn.Module,
    slots: _Slots,
    recipe: Recipe,
    stream: Stream,
    step: int,
    chosen: Tensor,
    sigma: float,
) -> list[Tensor]:
    """Return the sum of clipped noisy gradients."""
    order, clip = recipe.order, recipe.bounding
    assert order is not None
    assert isinstance(clip, Flat), "noise on each record needs a clip after it"
    if not len(chosen):
        return [torch.zeros_like(parameter) for parameter in trainable_parameters(network)]
    mask = slots.valid.index_select(0, chosen)
    y = slots.y.index_select(0, chosen).where(mask, 0)
    return noise_first_sum(
        network,
        slots.x.index_select(0, chosen),
        lambda part: _Loss(y[part]),
        mask,
        order=order,
        clip=clip,
        standard_deviation=sigma * (order.record_bound or clip.clip_norm),
        stream=stream,
        step=step,
    )


class _Pace:
    """The noise of a validation-driven schedule, and the filter that ends the training.

    Guarantee: the steps that are made cost `recipe.event(n)` together, whatever the judge says.
    """

    def __init__(self, recipe: Recipe, n: int, judge: Judge):
        assert isinstance(recipe.schedule, Validation)
        self._recipe, self._judge, self._batches = recipe, judge, recipe.batches(n)
        self._state = recipe.schedule.start()
        # Without noise there is nothing to limit: that is for public data.
        limit = None if recipe.noise_multiplier is None else recipe.event(n)
        self._filter = None
        if isinstance(limit, Filtered):
            self._filter = Filter(limit.event, limit.highest_order)
        self._asked = 0

    @classmethod
    def of(cls, recipe: Recipe, n: int, judge: Judge | None) -> _Pace | None:
        if not isinstance(recipe.schedule, Validation):
            return None
        if judge is None:
            raise UsageError(
                "a validation-driven schedule asks for accuracies: give a judge, from public "
                "records or from charged releases."
            )
        return cls(recipe, n, judge)

    def spend(self, first: float) -> float | None:
        """Return sigma of the next step, charged to the filter; None if it does not fit.

        Args:
            first: sigma of the first step.
        """
        assert self._filter is not None
        sigma = first * self._state.factor
        try:
            self._filter.spend(self._batches.event(sigma))
        except BudgetError:
            return None
        return sigma

    def after(self, step: int, network: nn.Module) -> None:
        """Ask for an accuracy at the end of each epoch that the schedule looks at."""
        schedule = self._recipe.schedule
        assert isinstance(schedule, Validation)
        epoch = self._batches.epoch(step + 1)
        if epoch > self._batches.epoch(step) and epoch % schedule.every == 0:
            self._state = self._state.tell(self._judge(network, self._asked))
            self._asked += 1
            network.train()


class _Screen:
    """Annealed screening: the update stays, or weights and optimizer go back to the last ones.

    Post-processing of noisy sums that are all paid for, and of energies that the judge has charged.
    """

    def __init__(self, training: Training, annealing: Annealing, judge: Judge):
        self._training, self._annealing, self._judge = training, annealing, judge
        self._coins = training._streams["noise"].child("screening")
        self._state = annealing.start(self._energy(0))
        self._kept = self._snapshot()
        self._asked = 1

    @classmethod
    def of(cls, training: Training, judge: Judge | None) -> _Screen | None:
        annealing = training._recipe.screening
        if annealing is None:
            return None
        if judge is None:
            raise UsageError(
                "screening asks for energies: give a judge, from public records or from charged "
                "releases. Un-noised energies of private records would have no price."
            )
        return cls(training, annealing, judge)

    def after(self, step: int) -> None:
        """Take the updates since the last screening, or undo them."""
        if not self._annealing.screens(step + 1):
            return
        energy = self._energy(self._asked)
        self._asked += 1
        drawn = coin(self._coins, step)
        self._state, accepted = self._annealing.decide(self._state, energy, drawn)
        if accepted:
            self._kept = self._snapshot()
        else:
            self._restore()

    def _energy(self, asked: int) -> float:
        energy = self._judge(self._training._network, asked)
        self._training._network.train()
        return energy

    def _snapshot(self) -> tuple[list[Tensor], dict[str, Any]]:
        weights = [p.detach().clone() for p in self._training._parameters]
        return weights, copy.deepcopy(self._training._optimizer.state_dict())

    @torch.no_grad()
    def _restore(self) -> None:
        weights, optimizer = self._kept
        for parameter, kept in zip(self._training._parameters, weights, strict=True):
            parameter.copy_(kept)
        self._training._optimizer.load_state_dict(copy.deepcopy(optimizer))


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
