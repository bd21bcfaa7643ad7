"""Training one network by a recipe, step by step, from keys of its own.

The same path trains privately and, on declared-public data, without noise and bound. All
randomness is keyed by purpose and step: no two trials and no two steps share any.

Source: docs/rules.md, rules 7, 8, 11 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.accounting.density import Density
from pasearch.data.threads import threads
from pasearch.errors import UsageError
from pasearch.runs.keys import Stream
from pasearch.runs.normals import normals
from pasearch.training.bounding.bound import Bound
from pasearch.training.denoising import Denoising
from pasearch.training.losses import LossOf
from pasearch.training.noise import Drawn, draw
from pasearch.training.noise_before_clip import noise_before_clip_sum
from pasearch.training.per_example import clipped_sum_and_counts, validate
from pasearch.training.steering import Pace, Screen, ValidationQuery
from pasearch.training.watched import Room, Watched, flattened, parted

if TYPE_CHECKING:
    from pasearch.data.partitions import Records
    from pasearch.training.recipe import Recipe


SHARED, MOVED = 1.4e8, 2**20
"""From how many operations of a step's largest product on several threads pay, or from how many
numbers of its records: below, they wait for each other longer than they save (benchmarks/speed)."""

AHEAD = 4096
"""Records that go at once through what comes before a network's first layer."""


def train(
    network: nn.Module,
    records: Records,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    *,
    device: str = "cpu",
    on_step: Callable[[int], None] | None = None,
    query: ValidationQuery | None = None,
) -> None:
    """Train a network in place.

    Guarantee: with noise, the final weights cost `recipe.event(len(records.y))` on the partition,
    beside what the validation queries have released.

    Args:
        network: Accepted by `per_example.validate`.
        records: The open partition, charged by the caller.
        recipe: With its learning rate known.
        streams: One stream each for "batch", "noise" and "dropout", used for nothing else.
        device: "cpu" or "cuda"; the network stays there.
        on_step: Called with the number of finished steps.
        query: The validation query of screening (a loss), or of a schedule that is steered (an
            accuracy); needed by these two alone.

    Raises:
        UsageError: A network whose records cannot be told apart; no noise on private data; no
            learning rate.

    Cost: charged by the caller before `records` was opened.
    """
    training = Training(network, records, recipe, streams, device=device, query=query)
    with full_precision():
        for finished in range(1, recipe.steps + 1):
            if not training.step():
                break
            if on_step is not None:
                on_step(finished)
    training.finish()


class Training:
    """A training under way: `train` in single steps, for what must see the network between them.

    Guarantee: after t steps the weights, and their average, cost t steps of `recipe.event(n)`.

    Args, raises and cost: like `train`.
    """

    def __init__(
        self,
        network: nn.Module,
        records: Records,
        recipe: Recipe,
        streams: Mapping[str, Stream],
        *,
        device: str = "cpu",
        query: ValidationQuery | None = None,
    ):
        if recipe.noise_multiplier is None and records.public is not True:
            raise UsageError(
                "Training without noise is for data declared public (`data_is_public=True`)."
            )
        before = recipe.noise_before_clip
        unbounded = before is not None and before.record_bound is None
        if unbounded and records.public is not True:
            raise UsageError(
                "Noise on gradients that were not bounded first is for data declared public: give "
                "noise_before_clip a record_bound."
            )
        if problems := validate(network):
            raise UsageError("This network cannot be trained privately: " + " ".join(problems))
        if recipe.class_weights is not None and records.y.is_floating_point():
            raise UsageError("class_weights are for classes, and here a number is predicted.")
        if recipe.learning_rate is None:
            raise UsageError(
                "The recipe has no learning rate: give `learning_rate`, or take "
                "`tuned_learning_rate(recipe, mu, n)`."
            )
        self._network, self._recipe, self._streams = network, recipe, streams
        network.to(device).train()
        self._slots = _Slots.on(device, records.x, records.y, records.valid)
        self._watched = Watched(network)
        _check_apart(self._watched, self._slots.x)
        if recipe.augmentation is None:
            self._do_ahead()
            self._slots = self._slots.known_to(self._watched)
        self._weights = flattened(self._watched.parameters)
        self._sums = Room(self._watched.parameters)
        self._optimizing = recipe.optimizing
        self._optimizer = self._optimizing.of(self._weights, recipe.learning_rate)
        self._optimizer.share = 1.0 / recipe.expected_batch_size
        self._state = State.start(self._watched, recipe)
        self._small = device == "cpu" and self._is_small()
        self._average = _Average(self._weights, recipe)
        self._finished = 0
        self._pace = self._screen = None
        if (recipe.schedule.steered or recipe.screening is not None) and query is None:
            raise UsageError(
                "this recipe asks how good the network is: give a validation query, of public "
                "records or of charged releases. Without noise, what it tells of private records "
                "would have no price."
            )
        if query is not None and recipe.schedule.steered:
            self._pace = Pace(recipe, len(records.y), query)
        if query is not None and recipe.screening is not None:
            coins = streams["noise"].child("screening")
            self._screen = Screen(recipe.screening, network, self._optimizer, coins, query)

    def _is_small(self) -> bool:
        """Whether a step is so small that one thread is faster: from public numbers alone."""
        made_up, batch = _made_up(self._slots.x), self._recipe.expected_batch_size
        product = self._watched.product(made_up) * min(batch, self._recipe.chunk)
        return product < SHARED and batch * made_up[0].numel() < MOVED

    def _do_ahead(self) -> None:
        """Do to all records, once, what the network does to them before its first layer.

        Where that would take much memory it is done at every step.
        """
        ahead, rest = parted(self._watched.network)
        done = self._slots.after(ahead) if len(ahead) else None
        if done is not None:
            self._slots, self._watched = done, Watched(rest)

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
        if self._watched.parameters[0].data_ptr() != self._weights[0].data_ptr():
            raise UsageError(
                "The network's parameters were moved or replaced while it was trained."
            )
        allowed = torch.get_num_threads()
        with full_precision(), threads(1 if self._small else allowed):
            spare = allowed > 1 and self._slots.y.device.type == "cpu"
            batch_sum(
                self._watched, self._slots, recipe, self._streams, self._finished,
                noise_multiplier=sigma, state=self._state, room=self._sums, spare=spare,
            )  # fmt: skip
        for weights, total in zip(self._weights, self._sums.flats, strict=True):
            weights.grad = total
        deviation = self._state.noise_deviation / recipe.expected_batch_size
        self._optimizing.tell_noise(self._optimizer, deviation**2)
        self._optimizer.step()
        if self._screen is not None:
            self._screen.after(self._finished)
        self._average.update(self._finished)
        if self._pace is not None:
            self._pace.after(self._finished, self._network)
        self._finished += 1
        return True

    def finish(self) -> None:
        """Let the network have its averaged weights, if the recipe averages, and be on its own.

        Its parameters no longer lie in one buffer, which a file of the network would hold.
        """
        self._average.install()
        for parameter in self._watched.parameters:
            parameter.data = parameter.detach().clone()


_Part = tuple[Tensor, LossOf, Tensor]


@dataclass(frozen=True, slots=True)
class _Slots:
    """The records on the training's device: moved once, not batch by batch."""

    x: Tensor
    y: Tensor
    valid: Tensor
    squares: Tensor | None = None

    @classmethod
    def on(cls, device: str, x: Tensor, y: Tensor, valid: Tensor) -> _Slots:
        """Return records on a device, each null one's class a number that a loss takes."""
        return cls(x=x.to(device), y=y.where(valid, 0).to(device), valid=valid.to(device))

    def after(self, ahead: nn.Sequential) -> _Slots | None:
        """Return the same with their x as the modules leave it; None if that takes much memory."""
        if type(self.x) is not Tensor:
            return None
        with torch.no_grad():
            first = self.x[:1]
            done = ahead(first)
            if done.data_ptr() == first.data_ptr():  # another shape, and no copy
                return replace(self, x=ahead(self.x))
            if 2 * done.nbytes > first.nbytes:
                return None
            return replace(self, x=torch.cat([ahead(part) for part in self.x.split(AHEAD)]))

    def known_to(self, watched: Watched) -> _Slots:
        """Return the same with what a dense network asks of its input, computed once."""
        if watched.dense is None or type(self.x) is not Tensor or not watched.dense.takes(self.x):
            return self
        return replace(self, squares=watched.dense.squares_of_inputs(self.x))

    def at(self, places: Tensor) -> _Part:
        """Return x, the loss and the mask of these slots."""
        squares = None if self.squares is None else self.squares.index_select(0, places)
        loss = LossOf(self.y.index_select(0, places), squares)
        return self.x.index_select(0, places), loss, self.valid.index_select(0, places)


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
    def start(cls, network: nn.Module | Watched, recipe: Recipe) -> State:
        """Return the state before the first step."""
        layers = len(Watched.of(network).kernels)
        return cls(bounds=() if recipe.bounding is None else recipe.bounding.start(layers))


def batch_sum(
    network: nn.Module | Watched,
    slots: _Slots,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    step: int,
    *,
    noise_multiplier: float | None = None,
    state: State | None = None,
    room: Room | None = None,
    spare: bool = False,
) -> list[Tensor]:
    """Return one step's noisy sum of bounded gradients over a fresh batch; steps begin with 0.

    The noise multiplier is sigma_t; None takes what the recipe has at this step. The state is read
    and moved on; None starts afresh. The sum lies in the room, if one is given. Where a thread is
    spare, noise is drawn in it.
    """
    watched = Watched.of(network)
    n, state = len(slots.y), state or State.start(watched, recipe)
    room = Room(watched.parameters) if room is None else room
    sigma = recipe.noise_at(step, n) if noise_multiplier is None else noise_multiplier
    chosen = torch.from_numpy(recipe.batches(n).batch(n, streams["batch"], step))
    chosen = chosen.to(slots.x.device)
    _reseed_dropout(watched, streams["dropout"], step)
    if recipe.noise_before_clip is not None and sigma is not None:
        _noise_before_clip(watched, recipe, slots.at(chosen), streams["noise"], step, sigma, room)
        return room.views
    if sigma is None:
        _bounded_sum(watched, slots, recipe, streams["batch"], chosen, step, state, room)
        return room.views
    # Drawn while the gradients are computed.
    drawn = _begin_noise(room, recipe, streams["noise"], step, spare)
    counts = _bounded_sum(watched, slots, recipe, streams["batch"], chosen, step, state, room)
    assert recipe.bounding is not None
    bounds = state.bounds
    sensitivity = recipe.bounding.at(bounds).sensitivity
    if bounds:
        sigma = _adapt(recipe, state, sigma, counts, streams["noise"], step)
    state.noise_deviation = sigma * sensitivity
    scale = state.noise_deviation if recipe.noise is None else recipe.density(sigma).scale
    drawn().add_to(room.flats, scale)
    if recipe.denoising is not None:
        _denoise(room.flats, recipe.denoising, recipe.density(sigma), state)
    if bounds:
        _rescale(watched, recipe.bounding, state, room.views, bounds)
    return room.views


def _begin_noise(room: Room, recipe: Recipe, stream: Stream, step: int, spare: bool) -> Drawn:
    """Begin to draw a step's noise, at scale 1."""
    count, device = sum(flat.numel() for flat in room.flats), room.flats[0].device
    if recipe.noise is None:
        return draw(count, device, stream, step, spare=spare)
    from pasearch.training.encoded.laws import begin_noise  # which plain DP-SGD does without

    return begin_noise(recipe.noise.unit, count, device, stream, step, spare=spare)


def _bounded_sum(
    watched: Watched,
    slots: _Slots,
    recipe: Recipe,
    stream: Stream,
    chosen: Tensor,
    step: int,
    state: State,
    room: Room,
) -> Tensor:
    """Sum the chosen slots' bounded gradients in the room; return the counts of a bound's norms."""
    bounding = None if recipe.bounding is None else recipe.bounding.at(state.bounds)
    summed = partial(clipped_sum_and_counts, bounding=None) if bounding is None else bounding.sums
    counts = torch.zeros(len(state.bounds), dtype=torch.float64)
    shares = _class_shares(recipe, slots.x.device)
    views = recipe.augmentation
    many = 1 if views is None else views.views
    if chosen.numel() == 0:
        room.clear()
        return counts
    most = max(1, recipe.chunk // many)
    for place, part in enumerate(chosen.split(most) if chosen.numel() > most else (chosen,)):
        x, loss, mask = slots.at(part)
        weights = None if shares is None else shares[loss.y.clamp(max=len(shares) - 1)]
        if views is not None:
            generator = stream.child("views", place).generator(step)
            x, loss = views.apply(x, generator), LossOf(loss.y.repeat_interleave(views.views))
        values, found = summed(
            watched, x, loss, mask=mask, views=many, weights=weights,
            room=None if place else room, counted=bool(state.bounds),
        )  # fmt: skip
        if state.bounds:
            counts += found
        for view, value in zip(room.views, values, strict=True):
            if place:
                view += value
            elif value is not view:
                view.copy_(value)
    return counts


def _class_shares(recipe: Recipe, device: torch.device) -> Tensor | None:
    """Return each class's weight as a share of the largest, which bounded gradients keep."""
    if recipe.class_weights is None:
        return None
    most = max(recipe.class_weights)
    return torch.tensor([each / most for each in recipe.class_weights], device=device)


def _denoise(sums: Sequence[Tensor], denoising: Denoising, density: Density, state: State) -> None:
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


def _adapt(
    recipe: Recipe, state: State, sigma: float, counts: Tensor, stream: Stream, step: int
) -> float:
    """Release the step's counts, move the bounds, and return the gradients' noise multiplier."""
    adaptive = recipe.bounding
    assert adaptive is not None
    gradients, deviation = adaptive.noises(sigma, len(state.bounds))
    noisy = counts.clone().numpy()
    normals(len(noisy), stream.child("counts"), step).add_to(noisy, deviation)
    state.bounds = adaptive.moved(state.bounds, tuple(noisy.tolist()), recipe.expected_batch_size)
    return gradients


def _rescale(
    watched: Watched, adaptive: Bound, state: State, sums: list[Tensor], bounds: tuple[float, ...]
) -> None:
    """Multiply each layer's noisy sum by C_0 / C_t, so that one learning rate fits every bound.

    Post-processing: the bounds are released.
    """
    layers = list(watched.kernels)
    factors = [first / now for first, now in zip(adaptive.start(len(layers)), bounds, strict=True)]
    state.noise_deviation *= factors[0]
    each = factors if len(factors) == len(layers) else factors * len(layers)
    of = {id(p): f for layer, f in zip(layers, each, strict=True)
          for p in layer.parameters(recurse=False)}  # fmt: skip
    for parameter, value in zip(watched.parameters, sums, strict=True):
        value.mul_(of[id(parameter)])


def _noise_before_clip(
    watched: Watched,
    recipe: Recipe,
    part: _Part,
    stream: Stream,
    step: int,
    sigma: float,
    room: Room,
) -> None:
    """Sum clipped noisy gradients in the room."""
    order, clip = recipe.noise_before_clip, recipe.bounding
    assert order is not None
    assert clip is not None, "noise on each record needs a clip after it"
    x, loss, mask = part
    room.clear()
    if len(x):
        noise_before_clip_sum(
            watched, x, lambda part: LossOf(loss.y[part]), mask, order=order, clip=clip,
            standard_deviation=sigma * (order.record_bound or clip.sensitivity), stream=stream,
            step=step, room=room,
        )  # fmt: skip


@torch.no_grad()
def _check_apart(watched: Watched, x: Tensor) -> None:
    """Refuse a network where one record changes another's output, as a mean over the batch does.

    A network that mixes records only where others than the made-up ones lie gets past this, so it
    is no proof.
    """
    made_up = _made_up(x)
    changed = made_up.clone()
    changed[1] = 0
    outputs = []
    for records in (made_up, changed):
        _reseed_dropout(watched, None, 0)
        outputs.append(watched.network(records)[::2])
    if not torch.allclose(*outputs, rtol=1e-4, atol=1e-5):
        raise UsageError(
            "This network cannot be trained privately: one record changes another's output, so "
            "some layer mixes records. Let each work on its own, as nn.LayerNorm does."
        )


def _made_up(x: Tensor) -> Tensor:
    """Return three made-up records of the shape and kind of these; no real one is looked at."""
    steps = np.linspace(-1.0, 1.0, 3 * math.prod(x.shape[1:]), dtype=np.float32)
    made_up = torch.from_numpy(steps).reshape(3, *x.shape[1:]).to(x.device)
    return (made_up if x.is_floating_point() else made_up.abs() > 0.5).to(x.dtype)


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch TF32, bfloat16 products and autocast off, and give the user's settings back."""
    switches = _precision_switches()
    saved = [getattr(place, name) for place, name, _ in switches]
    cast = any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
    if not cast and all(now == exact for now, (*_, exact) in zip(saved, switches, strict=True)):
        yield
        return
    for place, name, exact in switches:
        setattr(place, name, exact)
    try:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for (place, name, _), value in zip(switches, saved, strict=True):
            setattr(place, name, value)


@cache
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


def _reseed_dropout(watched: Watched, stream: Stream | None, step: int) -> None:
    for place, reseed in watched.keyed:
        reseed(0 if stream is None else stream.child(place).seed64(step))


class _Average:
    """An exponential moving average of the weights: post-processing, so it costs nothing.

    decay_t = min(1 - 1 / (average * steps), (1 + t) / (10 + t)): short at first, so that the random
    start is forgotten.
    """

    def __init__(self, weights: list[Tensor], recipe: Recipe):
        self._weights = weights
        horizon = max(1.0, (recipe.average or 0.0) * recipe.steps)
        self._decay = 1.0 - 1.0 / horizon
        keep = recipe.average is not None
        self._means = [each.clone() for each in weights] if keep else []

    def update(self, step: int) -> None:
        if self._means:
            weight = 1.0 - min(self._decay, (1 + step) / (10 + step))
            for mean, weights in zip(self._means, self._weights, strict=True):
                mean.lerp_(weights, weight)

    def install(self) -> None:
        for weights, mean in zip(self._weights, self._means, strict=False):
            weights.copy_(mean)
