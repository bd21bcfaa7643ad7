"""One training step: the noisy sum of the clipped gradients of a batch.

    noisy sum = sum over the batch of clipped g_i + noise,       denoised, if the recipe says so

The sum is float64 when the noise is added (`record_sums`). The standard deviation of the noise is
proportional to R times the sensitivity, by which one record changes the computed sum at most
(`runs.sums.SUM_ROUNDING`). Random numbers come from a separate key for each purpose and step.

Source: docs/rules.md, rules 7, 8, 11 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pasearch.accounting.densities import Density
from pasearch.gpu import bits as gpu
from pasearch.runs.keys import Stream
from pasearch.runs.normals import draw_normals
from pasearch.runs.processor import ThreadTeam
from pasearch.training.clipping import ClippingMethod
from pasearch.training.losses import RecordLoss
from pasearch.training.noise import Denoising, NoiseSource, begin_gaussian_noise
from pasearch.training.noise_before_clip import sum_noisy_clipped_gradients
from pasearch.training.per_example import PreparedNetwork, clipped_sum_and_counts
from pasearch.training.record_sums import SumBuffers

if TYPE_CHECKING:
    from pasearch.training.recipe import Recipe


MAX_RECORDS_AHEAD = 4096
"""Number of records to which the modules before the first trained layer are applied at once."""
MAX_BYTES_AHEAD = 2**27
"""Maximum size of the results of these modules, bytes; larger ones are kept only if they are
smaller than the records.
"""
ROW_MULTIPLE = 32
"""The number of rows of a matrix product is a multiple of this number, for which a library rounds
all rows in the same way.
"""

_Part = tuple[Tensor, RecordLoss, Tensor]
"""Records x, their losses, and the mask of records that are not null."""

BatchIndices = tuple[Tensor, Tensor | None]
"""Record indices of a step, int64, (rows,); and flags of rows that are not padding, bool, (rows,),
or None if no row is padding.
"""


@dataclass(frozen=True, slots=True)
class DeviceRecords:
    """Records of a partition on the device of the training.

    Args:
        x: Features, (n, ...).
        y: Classes or regression targets, (n,).
        valid: Bool, (n,); False for null records.
    """

    x: Tensor
    y: Tensor
    valid: Tensor
    shares: Tensor | None = None
    """Class weights from `scale_class_weights`, if already computed."""
    rows: int = sys.maxsize
    """Maximum number of rows that are processed at once, to limit memory."""

    @property
    def device(self) -> torch.device:
        """Device of the records."""
        return self.y.device

    @classmethod
    def move_to_device(cls, device: str, x: Tensor, y: Tensor, valid: Tensor) -> DeviceRecords:
        """Move records to a device; the targets of null records become 0."""
        own = valid.to(device).contiguous()
        return cls(x=x.to(device), y=y.where(valid, 0).to(device).contiguous(), valid=own)

    def apply_modules(self, ahead: nn.Sequential) -> DeviceRecords | None:
        """Apply modules to all records, once for all steps; None if it would take much memory."""
        if type(self.x) is not Tensor or not len(self.x):
            return None
        with torch.no_grad():
            first = self.x[:1]
            done = ahead(first)
            if done.data_ptr() == first.data_ptr():  # the result is a view with another shape
                return replace(self, x=ahead(self.x))
            if done.nbytes * len(self.x) > MAX_BYTES_AHEAD and 2 * done.nbytes > first.nbytes:
                return None
            return replace(
                self, x=torch.cat([ahead(part) for part in self.x.split(MAX_RECORDS_AHEAD)])
            )

    def at(self, places: Tensor, real: Tensor | None = None) -> _Part:
        """Select records by index: their features, loss and mask; the mask of padding is False."""
        mask = self.valid.index_select(0, places)
        mask = mask if real is None else mask & real
        loss = RecordLoss(self.y.index_select(0, places))
        return self.x.index_select(0, places), loss, mask


@dataclass(slots=True)
class TrainingState:
    """State of a training in addition to its weights; it depends on released values only.

    Args:
        bounds: Adaptive clipping norms, from released counts; empty if clipping is not adaptive.
        noise_deviation: Standard deviation of the noise in one coordinate of the last sum.
        weights: Sum of the denoising weights so far, and their number.
    """

    bounds: tuple[float, ...] = ()
    noise_deviation: float = 0.0
    weights: tuple[Tensor | float, int] = (0.0, 0)

    @classmethod
    def start(cls, network: nn.Module | PreparedNetwork, recipe: Recipe) -> TrainingState:
        """Make the state before the first step."""
        layers = len(PreparedNetwork.of(network).rules)
        return cls(bounds=() if recipe.bounding is None else recipe.bounding.start(layers))


def compute_noisy_sum(
    network: nn.Module | PreparedNetwork,
    slots: DeviceRecords,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    step: int,
    *,
    noise_multiplier: float | None = None,
    state: TrainingState | None = None,
    buffers: SumBuffers | None = None,
    team: ThreadTeam | None = None,
) -> list[Tensor]:
    """Draw a batch, and compute the noisy sum of its clipped gradients.

    Args:
        network: Network accepted by `per_example.validate`.
        slots: Records of the partition.
        recipe: Training configuration.
        streams: Random streams "batch", "noise" and "dropout".
        step: Index of the step, from 0.
        noise_multiplier: Noise multiplier of the step. None: that of the recipe.
        state: State of the training, which is updated. None: a new state.
        buffers: Buffers for the sum. None: new buffers.
        team: Threads. If there are several, one draws noise while the gradients are computed, or
            all add noise.

    Returns:
        Noisy sums, one tensor per trainable parameter, in the network's order.
    """
    prepared = PreparedNetwork.of(network)
    n, state = len(slots.y), state or TrainingState.start(prepared, recipe)
    buffers = SumBuffers(prepared.parameters) if buffers is None else buffers
    sigma = recipe.noise_multiplier_at(step, n) if noise_multiplier is None else noise_multiplier
    batches, units = recipe.make_batching(n), recipe.count_units(n)
    places = torch.from_numpy(batches.batch(units, streams["batch"], step)).to(slots.device)
    reseed_dropout(prepared, streams["dropout"], step, slots.device)
    if recipe.noise_before_clip is not None and sigma is not None:
        _sum_with_record_noise(
            prepared, recipe, slots.at(places), streams["noise"], step, sigma, buffers
        )
        return buffers.views
    part = choose_part_rows(recipe, n, slots.rows, 1 if team is None else team.threads)
    chosen, stream = (
        pad_if_needed(places, part, recipe.make_batching(n).sizes_vary),
        streams["batch"],
    )
    if sigma is None:
        sum_clipped_gradients(prepared, slots, recipe, stream, chosen, step, state, buffers, part)
        buffers.write_back()
        return buffers.views
    drawn = _begin_noise(buffers, recipe, streams["noise"], step, team)
    counts = sum_clipped_gradients(
        prepared, slots, recipe, stream, chosen, step, state, buffers, part
    )
    assert recipe.bounding is not None
    bounds = state.bounds
    sensitivity = recipe.bounding.at(bounds).computed_sensitivity
    if bounds:
        sigma = _update_clip_norms(recipe, state, sigma, counts, streams["noise"], step)
    state.noise_deviation = sigma * sensitivity
    scale = state.noise_deviation if recipe.noise is None else recipe.drawn_density(sigma).scale
    drawn().add_to(buffers.totals, scale, team)
    buffers.write_back()
    if recipe.denoising is not None:
        denoise(buffers.flats, recipe.denoising, recipe.drawn_density(sigma), state)
    if bounds:
        _rescale_layer_sums(prepared, recipe.bounding, state, buffers.views, bounds)
    return buffers.views


def _begin_noise(
    buffers: SumBuffers, recipe: Recipe, stream: Stream, step: int, team: ThreadTeam | None
) -> NoiseSource:
    """Start to draw the noise of a step, with scale 1; call the returned function to get it."""
    spare = team is not None and team.threads > 1
    count, device = sum(flat.numel() for flat in buffers.flats), buffers.flats[0].device
    if recipe.noise is None:
        return begin_gaussian_noise(count, device, stream, step, spare=spare)
    from pasearch.training.encoded.noise import begin_noise  # not needed by plain DP-SGD

    return begin_noise(recipe.noise.unit, count, device, stream, step, spare=spare)


def choose_part_rows(recipe: Recipe, n: int, rows: int, threads: int = 1) -> int:
    """Choose the number of records that a network processes at once (a part), for all steps.

    For another number of rows, a library may use other code for a matrix product, which rounds each
    row differently. So if the number depended on the batch size, one record would influence the
    contributions of others. Therefore all parts have the same size, a multiple of `ROW_MULTIPLE`.

    Args:
        recipe: Training configuration.
        n: Number of records of the partition, null records included.
        rows: Maximum number of rows, as for `limit_rows`.
        threads: Number of threads. If memory allows, each gets the same multiple of `ROW_MULTIPLE`
            rows.
    """
    most = limit_rows(recipe, rows)
    if not recipe.make_batching(n).sizes_vary:
        return most
    each = ROW_MULTIPLE // math.gcd(ROW_MULTIPLE, count_views(recipe))
    even = each if most < each * threads else each * threads
    expected = recipe.expected_units
    usual = even * math.ceil((expected + 2.0 * math.sqrt(expected)) / even)
    return min(usual, even * max(1, most // even))


def halve_rows(recipe: Recipe, slots: DeviceRecords, threads: int) -> int | None:
    """Compute a smaller maximum number of rows after a memory error; None if there is none.

    Args:
        recipe: Training configuration.
        slots: Records of the partition.
        threads: Number of threads that share the rows.
    """
    n, expected = len(slots.y), recipe.expected_units
    part = choose_part_rows(recipe, n, slots.rows, threads)
    half = min(part, expected) * count_views(recipe) // 2
    return half if choose_part_rows(recipe, n, half, threads) < part else None


def count_views(recipe: Recipe) -> int:
    """Count the rows of a record (views), or of a micro-batch (records)."""
    return recipe.micro_batch if recipe.augmentation is None else recipe.augmentation.views


def limit_rows(recipe: Recipe, rows: int) -> int:
    """Compute the maximum number of records that a network processes at once.

    Args:
        recipe: Training configuration.
        rows: Maximum number of rows (views of records).
    """
    return max(1, min(recipe.chunk, rows) // count_views(recipe))


def pad_to_parts(places: Tensor, part: int, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Pad record indices to a multiple of the part size, with index 0.

    Args:
        places: Record indices, int64, (rows,).
        part: Number of records of a part.
        real: Flags of rows that are not padding, bool, (rows,). None: no row is padding.

    Returns:
        Indices, and flags of rows that are not padding.
    """
    missing = -len(places) % part
    real = torch.ones_like(places, dtype=torch.bool) if real is None else real
    behind = places.new_zeros(missing)
    return torch.cat([places, behind]), torch.cat([real, behind.bool()])


def pad_if_needed(places: Tensor, part: int, vary: bool) -> BatchIndices:
    """Pad record indices to whole parts of `part` rows if batch sizes vary."""
    return pad_to_parts(places, part) if vary and len(places) % part else (places, None)


def sum_clipped_gradients(
    prepared: PreparedNetwork,
    slots: DeviceRecords,
    recipe: Recipe,
    stream: Stream,
    chosen: BatchIndices,
    step: int,
    state: TrainingState,
    buffers: SumBuffers,
    part: int,
) -> Tensor:
    """Write the sum of the clipped gradients of a batch to the float64 totals of `buffers`.

    Args:
        prepared: Prepared network.
        slots: Records of the partition.
        recipe: Training configuration.
        stream: Random stream of the batches; augmentation uses a child of it.
        chosen: Indices of the records of the batch, and flags of rows that are not padding.
        step: Index of the step, from 0.
        state: State of the training; only its adaptive clipping norms are used.
        buffers: Buffers of the sum; they are reset first.
        part: Number of records that the network processes at once, from `choose_part_rows`.

    Returns:
        Sum over records of [norm <= C] - 1/2, float64, (number of adaptive clipping norms,).
    """
    places, real = chosen
    bounding = None if recipe.bounding is None else recipe.bounding.at(state.bounds)
    summed = partial(clipped_sum_and_counts, bounding=None) if bounding is None else bounding.sums
    counts = torch.zeros(len(state.bounds), dtype=torch.float64)
    shares = slots.shares
    if shares is None:
        shares = scale_class_weights(recipe.class_weights, slots.device)
    views, many = recipe.augmentation, count_views(recipe)
    buffers.reset()
    for place, low in enumerate(range(0, len(places), part)):
        own = slice(low, low + part)
        chosen_rows = places[own], None if real is None else real[own]
        if recipe.micro_batch > 1:
            chosen_rows = expand_micro_batches(*chosen_rows, recipe, len(slots.y))
        x, loss, mask = slots.at(*chosen_rows)
        weights = None if shares is None else shares[loss.y.clamp(max=len(shares) - 1)]
        if views is not None:
            generator = stream.child("views", place).generator(step)
            x, loss = views.apply(x, generator), RecordLoss(loss.y.repeat_interleave(views.views))
        found = summed(
            prepared, x, loss, mask=mask, views=many, weights=weights, buffers=buffers,
            counted=bool(state.bounds),
        )[1]  # fmt: skip
        if state.bounds:
            counts += found
    buffers.end()
    return counts


def expand_micro_batches(
    units: Tensor, real: Tensor | None, recipe: Recipe, n: int
) -> tuple[Tensor, Tensor]:
    """List the records of micro-batches, adjacent, and flags of rows that are records.

    Args:
        units: Indices of micro-batches, int64, (units,).
        real: Flags of micro-batches that are not padding. None: none is padding.
        recipe: Training configuration with micro-batches of m records.
        n: Number of records of the partition.

    Returns:
        Record indices, (units * m,), and flags, bool, (units * m,).
    """
    steps = torch.arange(recipe.micro_batch, device=units.device) * recipe.count_units(n)
    rows = units[:, None] + steps
    inside = rows < n if real is None else (rows < n) & real[:, None]
    return rows.where(inside, 0).flatten(), inside.flatten()


def scale_class_weights(weights: tuple[float, ...] | None, device: torch.device) -> Tensor | None:
    """Divide class weights by the largest one, so that they do not increase clipped gradients."""
    if weights is None:
        return None
    shares = [each / max(weights) for each in weights]
    return torch.tensor(shares, dtype=torch.float32, device=device)


def denoise(
    sums: Sequence[Tensor], denoising: Denoising, density: Density, state: TrainingState
) -> None:
    """Multiply a noisy sum by its denoising weight, in place (post-processing).

    The weight stays on the device, so the CPU does not wait for it.
    """
    weight = denoising.weight(torch.cat([each.flatten() for each in sums]), density).double()
    if denoising.relative:
        total, count = state.weights[0] + weight, state.weights[1] + 1
        state.weights = (total, count)
        weight = torch.where(total > 0, weight * count / total, weight)
    for each in sums:
        each.mul_(weight)


def _update_clip_norms(
    recipe: Recipe, state: TrainingState, sigma: float, counts: Tensor, stream: Stream, step: int
) -> float:
    """Release the counts of a step, and update the adaptive clipping norms.

    Returns the noise multiplier of the gradients, after a part of the noise is used for the counts.
    """
    adaptive = recipe.bounding
    assert adaptive is not None
    gradients, deviation = adaptive.noises(sigma, len(state.bounds))
    noisy = counts.clone().numpy()
    draw_normals(len(noisy), stream.child("counts"), step).add_to(noisy, deviation)
    state.bounds = adaptive.update_clip_norms(
        state.bounds, tuple(noisy.tolist()), recipe.expected_batch_size
    )
    return gradients


def _rescale_layer_sums(
    prepared: PreparedNetwork,
    adaptive: ClippingMethod,
    state: TrainingState,
    sums: list[Tensor],
    bounds: tuple[float, ...],
) -> None:
    """Multiply the noisy sum of each layer by C_0 / C_t, so that the learning rate fits all norms.

    This is post-processing, because the clipping norms C_t depend on released counts only.
    """
    layers = list(prepared.rules)
    factors = [first / now for first, now in zip(adaptive.start(len(layers)), bounds, strict=True)]
    state.noise_deviation *= factors[0]
    each = factors if len(factors) == len(layers) else factors * len(layers)
    of = {id(p): f for layer, f in zip(layers, each, strict=True)
          for p in layer.parameters(recurse=False)}  # fmt: skip
    for parameter, value in zip(prepared.parameters, sums, strict=True):
        value.mul_(of[id(parameter)])


def _sum_with_record_noise(
    prepared: PreparedNetwork,
    recipe: Recipe,
    part: _Part,
    stream: Stream,
    step: int,
    sigma: float,
    buffers: SumBuffers,
) -> None:
    """Write the sum of gradients with noise on each record to the buffers."""
    order, clip = recipe.noise_before_clip, recipe.bounding
    assert order is not None
    assert clip is not None, "noise before the clip requires a clip"
    x, loss, mask = part
    for view in buffers.views:
        view.zero_()
    if len(x):
        sum_noisy_clipped_gradients(
            prepared, x, lambda part: RecordLoss(loss.y[part]), mask, order=order, clip=clip,
            standard_deviation=sigma * (order.record_bound or clip.sensitivity), stream=stream,
            step=step, buffers=buffers,
        )  # fmt: skip


def reseed_dropout(
    prepared: PreparedNetwork, stream: Stream | None, step: int, device: torch.device | None = None
) -> None:
    """Seed the dropout masks of a step.

    With the GPU kernels, a block of steps has one key, and the masks depend on the step number.

    Args:
        prepared: Prepared network.
        stream: Random stream of the dropout masks. None: a public seed.
        step: Index of the step, from 0.
        device: Device of the masks. None: the CPU.
    """
    kernels = None if device is None else gpu.load_kernels(device)
    for place, reseed in enumerate(prepared.keyed):
        own = None if stream is None else stream.child(place)
        if own is None:
            reseed(0)
        elif kernels is not None:
            reseed(*gpu.derive_mask_key(own, step), kernels.uniform)
        else:
            reseed(own.seed64(step))
