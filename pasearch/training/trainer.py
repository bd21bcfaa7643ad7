"""Training of one network by a recipe, step by step, from its own keys.

The same code trains privately and, on declared-public data, without noise and clipping. All
randomness is keyed by purpose and step: no two trials and no two steps share any.

Source: docs/rules.md, rules 7, 8, 11 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.data.mapping import full_precision
from pasearch.data.threads import use_threads
from pasearch.errors import UsageError
from pasearch.gpu.bits import STEPS_PER_BLOCK
from pasearch.gpu.dense_steps import GpuTraining, TrainingGroup, can_use_gpu_steps, has_gpu_steps
from pasearch.gpu.rounds import MAX_STEPS_PER_ROUND, Rounds, can_use_rounds
from pasearch.runs.keys import Stream
from pasearch.runs.processor import ThreadTeam
from pasearch.training.linear_backend import LinearBackend, accepts, count_threads
from pasearch.training.memory import is_out_of_memory, keep_freed_memory, limit_rows_in_memory
from pasearch.training.one_step import (
    DeviceRecords,
    TrainingState,
    compute_noisy_sum,
    halve_rows,
    reseed_dropout,
    scale_class_weights,
)
from pasearch.training.optimizers import SgdUpdate
from pasearch.training.per_example import PreparedNetwork, split_fixed_modules, validate
from pasearch.training.record_sums import SumBuffers, flatten_parameters
from pasearch.training.row_rounding import check_row_rounding
from pasearch.training.screening import UpdateScreening, ValidationDrivenNoise, ValidationQuery
from pasearch.training.temperature import divide_logits

if TYPE_CHECKING:
    from pasearch.data.partitions import Records
    from pasearch.training.recipe import Recipe


# Several threads are faster from this size of a step; below it they wait for each other longer than
# they save (benchmarks/speed).
MIN_SHARED_OPERATIONS = 1.4e8  # of the step's largest matrix product, by PyTorch
MIN_SHARED_LINEAR_OPERATIONS = 8e7  # the same, by the linear backend
MIN_SHARED_BATCH_NUMBERS = 2**20  # numbers of the batch's records


def train(
    network: nn.Module,
    records: Records,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    *,
    device: str = "cpu",
    on_step: Callable[[int], None] | None = None,
    looks: Callable[[int], bool] | None = None,
    query: ValidationQuery | None = None,
) -> None:
    """Train a network in place.

    Guarantee: with noise, the final weights cost `recipe.event(len(records.y))` on the partition,
    in addition to what the validation queries have released.

    Args:
        network: Network accepted by `per_example.validate`.
        records: Open partition, charged by the caller.
        recipe: Training configuration with a learning rate.
        streams: Random stream for each of "batch", "noise" and "dropout", used for nothing else.
        device: Device, "cpu" or "cuda"; the network stays there.
        on_step: Callback with the number of finished steps: after each, or on a GPU each round.
        looks: Function that tells whether `on_step` must run after a number of finished steps,
            because it evaluates the network; None: after each.
        query: Validation query of screening (a loss) or of a validation-driven schedule (an
            accuracy); only these need it.

    Raises:
        UsageError: A network whose per-example gradients cannot be separated; no noise on private
            data; no learning rate.

    Cost: charged by the caller before `records` was opened.
    """
    with full_precision():
        for _ in run_rounds(
            network, records, recipe, streams, device=device, on_step=on_step, looks=looks,
            query=query,
        ):  # fmt: skip
            pass


def run_rounds(
    network: nn.Module,
    records: Records,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    *,
    device: str = "cpu",
    on_step: Callable[[int], None] | None = None,
    looks: Callable[[int], bool] | None = None,
    query: ValidationQuery | None = None,
    splits: bool = True,
    together: TrainingGroup | None = None,
) -> Iterator[int]:
    """Train as `train` does, one round per iteration; a GPU works on it between iterations.

    Yields:
        Number of steps that were finished when a round began.

    Args, raises and cost: as for `train`; and `splits`, whether a step that runs out of memory is
    made again with fewer rows at once instead of raising the error.
    """
    training = Training(
        network, records, recipe, streams, device=device, query=query, splits=splits,
        together=together,
    )  # fmt: skip
    finished = 0
    try:
        while finished < recipe.steps:
            most = min(training.max_round_steps, recipe.steps - finished)
            if on_step is not None:
                ends = range(1, most)
                most = next((k for k in ends if looks is None or looks(finished + k)), most)
            training.begin_steps(most)
            yield finished
            if not (made := training.end()):
                break
            finished += made
            if on_step is not None:
                on_step(finished)
    except BaseException:
        training.abandon()
        raise
    training.finish()


class Training:
    """A training in progress: `train` in single steps, with the network usable between them.

    Guarantee: after t steps the weights, and their average, cost t steps of `recipe.event(n)`.

    Args, raises and cost: as for `train`; `splits` as for `run_rounds`; and `in_rounds`, whether
    steps are made as on a GPU (None: on a GPU only).
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
        in_rounds: bool | None = None,
        splits: bool = True,
        together: TrainingGroup | None = None,
    ):
        _check_training(network, records, recipe, query)
        assert recipe.learning_rate is not None, "checked"
        self._network, self._recipe, self._streams = network, recipe, streams
        network.to(device).train()
        if device == "cpu":
            keep_freed_memory()
            check_row_rounding()
        self._slots = DeviceRecords.move_to_device(device, records.x, records.y, records.valid)
        self._prepared = PreparedNetwork(network)
        _check_record_independence(self._prepared, self._slots.x)
        if recipe.augmentation is None:
            self._do_ahead()
        self._weights = flatten_parameters(self._prepared.parameters)
        self._sums = SumBuffers(self._prepared.parameters)
        self._optimizing = recipe.optimizer_stage
        self._optimizer = self._optimizing.of(self._weights, recipe.learning_rate)
        self._optimizer.share = 1.0 / recipe.expected_batch_size
        self._state = TrainingState.start(self._prepared, recipe)
        synthetic = _make_synthetic_records(self._slots.x)
        rows = limit_rows_in_memory(self._prepared, synthetic, device)
        shares = scale_class_weights(recipe.class_weights, self._slots.device)
        self._slots = replace(self._slots, rows=rows, shares=shares)
        self._splits, self._threads = splits, self._threads_of(synthetic, device)
        self._team = ThreadTeam(self._threads)
        self._average = _Average(self._weights, recipe)
        self._finished = 0
        self._pace = self._screen = None
        if query is not None and recipe.schedule.is_validation_driven:
            n = len(records.y)
            limit = None if recipe.noise_multiplier is None else recipe.event(n)
            self._pace = ValidationDrivenNoise(
                recipe.schedule, recipe.make_batching(n), limit, query
            )
        if query is not None and recipe.screening is not None:
            coins = streams["noise"].child("screening")
            self._screen = UpdateScreening(recipe.screening, network, self._optimizer, coins, query)
        self._rounds, self._on_gpu, self._together = None, None, together
        if (device != "cpu" if in_rounds is None else in_rounds) and can_use_rounds(recipe):
            self._on_gpu = self._gpu_code(device)
            blocks = None if self._on_gpu is None else self._on_gpu.blocks
            self._rounds = Rounds(self._prepared, self._slots, recipe, streams, self._sums, blocks)
        self._before: _Snapshot | None = None
        self._linear: LinearBackend | None = None
        if self._rounds is None:
            self._linear = LinearBackend.of(
                self._prepared, self._slots, recipe, streams, self._sums, self._weights,
                team=self._team,
            )  # fmt: skip

    def _gpu_code(self, device: str) -> GpuTraining | None:
        optimizer, streams = self._optimizer, self._streams
        if not can_use_gpu_steps(self._prepared, self._slots, self._recipe, streams):
            return None
        if not has_gpu_steps(device) or not isinstance(optimizer, SgdUpdate):
            return None
        return GpuTraining(
            self._prepared, self._slots, self._recipe, streams, self._sums, self._weights[0],
            optimizer, next(iter(self._average.means), None), self._average.shares,
            self._together,
        )  # fmt: skip

    def _threads_of(self, synthetic: Tensor, device: str) -> int:
        """Choose the number of threads of a step, from public numbers alone."""
        most, recipe = torch.get_num_threads(), self._recipe
        if device != "cpu":
            return most
        batch = recipe.expected_batch_size
        product = self._prepared.product(synthetic) * min(batch, recipe.chunk, self._slots.rows)
        moved = batch * synthetic[0].numel() >= MIN_SHARED_BATCH_NUMBERS
        if accepts(self._prepared, self._slots, recipe):
            shared = moved or product >= MIN_SHARED_LINEAR_OPERATIONS
            return count_threads(recipe, most if shared else 1)
        return most if moved or product >= MIN_SHARED_OPERATIONS else 1

    def _do_ahead(self) -> None:
        """Apply to all records, once, what the network does before its first trained layer.

        If the result would take much memory, the last modules are left to each step. So are layers
        with parameters, if the steps together have fewer records than the partition.
        """
        ahead, rest = split_fixed_modules(self._prepared.network)
        few = self._recipe.steps * self._recipe.expected_batch_size < len(self._slots.y)
        layers = (place for place, each in enumerate(ahead) if few and list(each.parameters()))
        with use_threads(1), full_precision():  # as in every process
            for many in range(next(layers, len(ahead)), 0, -1):
                if (done := self._slots.apply_modules(ahead[:many])) is not None:
                    assert isinstance(rest, nn.Sequential), "as something is before it"
                    left = nn.Sequential(*ahead[many:], *rest)  # `children` has each once
                    self._slots, self._prepared = done, PreparedNetwork(left)
                    return

    def step(self) -> bool:
        """Draw a batch, compute its noisy sum, and update the weights.

        Returns:
            False if a validation-driven schedule has no budget left for the step: then nothing was
            read.
        """
        sigma = self._recipe.noise_multiplier_at(self._finished, len(self._slots.y))
        if self._pace is not None and sigma is not None:
            if (sigma := self._pace.spend(sigma)) is None:
                return False
        self._check_place()
        if self._linear is not None:
            with use_threads(1):  # torch's threads would wait, and take the processor from others
                self._linear.sum(self._finished, sigma, self._state)
                self._move()
        else:
            with_care = self._with_care if self._rounds is None else self._rounds.sum_with_care
            self._sum(with_care, sigma)
            self._move()
        return True

    def _check_place(self) -> None:
        if self._prepared.parameters[0].data_ptr() != self._weights[0].data_ptr():
            raise UsageError(
                "The network's parameters were moved or replaced while it was trained."
            )

    @property
    def max_round_steps(self) -> int:
        """Maximum number of steps in the next round; 1 on a CPU."""
        return (
            MAX_STEPS_PER_ROUND
            if self._on_gpu is None
            else STEPS_PER_BLOCK - self._finished % STEPS_PER_BLOCK
        )

    def steps(self, most: int) -> int:
        """Make at most `most` steps: one on a CPU, a round of them on a GPU.

        Returns:
            Number of steps made; 0 where `step` returns False.
        """
        self.begin_steps(most)
        return self.end()

    def begin_steps(self, most: int) -> None:
        """Start at most `most` steps on a GPU, as a new round or more of one, without waiting."""
        if self._rounds is None:
            return
        self._check_place()
        if (
            self._on_gpu is not None
            and self._before is not None
            and self.max_round_steps == STEPS_PER_BLOCK
        ):
            self.end()  # the inputs of a block must exist until its steps are checked
        self._before = self._snapshot() if self._before is None else self._before
        if self._on_gpu is not None:
            self._begin_on_gpu(self._on_gpu, most)
            return
        for _ in range(min(most, MAX_STEPS_PER_ROUND)):
            sigma = self._recipe.noise_multiplier_at(self._finished, len(self._slots.y))
            self._sum(self._rounds.sum, sigma)
            self._move()

    def _begin_on_gpu(self, code: GpuTraining, most: int) -> None:
        most = min(most, self.max_round_steps)
        if self._together is None:
            code.make(self._finished, most)
        else:
            self._together.add(code, self._finished, most)
        self._finished += most

    def end(self) -> int:
        """Wait for the round in progress, correct it where needed, and return as `steps` does."""
        if self._rounds is None:
            return int(self.step())
        if (before := self._before) is None:
            return 0
        many = self._finished - before.finished
        if self._on_gpu is not None:
            self._end_on_gpu(self._on_gpu, before, many)
            return many
        if wrong := self._rounds.pop_uncertain():
            self._go_back(before)
        self._before = None
        for _ in range(many if wrong else 0):
            self.step()
        return many

    def _end_on_gpu(self, code: GpuTraining, before: _Snapshot, many: int) -> None:
        """Correct a round: repeat the steps before the first doubtful one, and make that with care.

        Repeated steps are identical to the bit. A round is checked once per doubtful step.
        """
        if self._together is not None and self._together.has_pending_steps(code):
            raise RuntimeError("The steps to check were not started on the GPU.")
        if (right := code.count_valid_steps(before.finished, many)) == many:
            self._before = None
            return
        self._go_back(before)
        self._before = None
        together, self._together = self._together, None
        end = before.finished + many
        while self._finished < before.finished + right:
            self.steps(before.finished + right - self._finished)
        self.step()
        while self._finished < end:
            self.steps(end - self._finished)
        self._together = together

    def abandon(self) -> None:
        """Undo a round that was started and not ended: nobody has used its steps."""
        if self._before is None:
            return
        try:
            if self._on_gpu is not None:
                if self._together is not None:
                    self._together.drop(self._on_gpu)
                self._on_gpu.wait()
            self._go_back(self._before)
        except Exception:  # noqa: BLE001 - any error of a device that has failed
            with torch.no_grad():
                for parameter in self._network.parameters():
                    parameter.data = torch.full_like(parameter, math.nan, device="cpu")
        self._before = None

    def _with_care(self, step: int, sigma: float | None, state: TrainingState) -> None:
        allowed = torch.get_num_threads()
        with use_threads(min(self._threads, allowed)):
            compute_noisy_sum(
                self._prepared, self._slots, self._recipe, self._streams, step,
                noise_multiplier=sigma, state=state, buffers=self._sums, team=self._team,
            )  # fmt: skip

    def _sum(
        self, of: Callable[[int, float | None, TrainingState], None], sigma: float | None
    ) -> None:
        """Write a step's noisy sum to its buffers; without memory for it, of fewer rows at once.

        A sum that was not finished is computed again from the same keys: it is one release.
        """
        while True:
            state = replace(self._state)
            try:
                with full_precision():
                    of(self._finished, sigma, state)
            except (MemoryError, RuntimeError) as error:
                own, many, rounds = self._slots, self._team.threads, self._rounds is not None
                rows = halve_rows(self._recipe, own, many, in_rounds=rounds)
                if not (self._splits and is_out_of_memory(error)) or rows is None:
                    raise
                self._slots = replace(self._slots, rows=rows)
                if self._rounds is not None:
                    self._rounds.split(self._slots)
                continue
            self._state = state
            return

    def _snapshot(self) -> _Snapshot:
        weights = [each.clone() for each in self._weights]
        optimizer, average = self._optimizer.snapshot(), self._average.snapshot()
        return _Snapshot(weights, optimizer, average, self._state, self._finished)

    def _go_back(self, before: _Snapshot) -> None:
        for own, each in zip(self._weights, before.weights, strict=True):
            own.copy_(each)
        self._optimizer.restore(before.optimizer)
        self._average.restore(before.average)
        self._state, self._finished = before.state, before.finished

    def _move(self) -> None:
        if self._on_gpu is not None:
            self._on_gpu.move(self._finished)
            self._finished += 1
            return
        for weights, total in zip(self._weights, self._sums.flats, strict=True):
            weights.grad = total
        deviation = self._state.noise_deviation / self._recipe.expected_batch_size
        self._optimizing.set_noise_variance(self._optimizer, deviation**2)
        self._optimizer.step()
        if self._screen is not None:
            self._screen.screen_updates(self._finished)
        self._average.update(self._finished)
        if self._pace is not None:
            self._pace.query_after_step(self._finished, self._network)
        self._finished += 1

    def finish(self) -> None:
        """Install the averaged weights, divide the logits by the temperature, detach the network.

        Its parameters leave the common buffer, which a saved network would contain.
        """
        self._average.install()
        for parameter in self._prepared.parameters:
            parameter.data = parameter.detach().clone()
        divide_logits(self._network.state_dict(), self._recipe.temperature)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Everything that a step changes, as it was before a round."""

    weights: list[Tensor]
    optimizer: list[dict[str, Any]]
    average: list[Tensor]
    state: TrainingState
    finished: int


def _check_training(
    network: nn.Module, records: Records, recipe: Recipe, query: ValidationQuery | None
) -> None:
    if recipe.noise_multiplier is None and records.public is not True:
        raise UsageError(
            "Training without noise requires data declared public (`data_is_public=True`)."
        )
    before = recipe.noise_before_clip
    unbounded = before is not None and before.record_bound is None
    if unbounded and records.public is not True:
        raise UsageError(
            "Noise on unclipped gradients requires data declared public: set record_bound in "
            "noise_before_clip."
        )
    if problems := validate(network):
        raise UsageError("This network cannot be trained privately: " + " ".join(problems))
    if recipe.class_weights is not None and records.y.is_floating_point():
        raise UsageError("class_weights require classes, but the target is numeric.")
    if recipe.learning_rate is None:
        raise UsageError(
            "The recipe has no learning rate: set `learning_rate`, for example to "
            "`tune_learning_rate(recipe, mu, n)`."
        )
    if (recipe.schedule.is_validation_driven or recipe.screening is not None) and query is None:
        raise UsageError(
            "This recipe requires a validation query, of public records or of charged noisy "
            "releases: its evaluations of private records would otherwise not be accounted for."
        )


@torch.no_grad()
def _check_record_independence(prepared: PreparedNetwork, x: Tensor) -> None:
    """Refuse a network where one record changes another's output, as a mean over the batch does.

    This is no proof: a network may mix records only for values that the synthetic ones do not have.
    """
    synthetic = _make_synthetic_records(x)
    changed = synthetic.clone()
    changed[1] = 0
    outputs = []
    for records in (synthetic, changed):
        reseed_dropout(prepared, None, 0)
        outputs.append(prepared.network(records)[::2])
    if not torch.allclose(*outputs, rtol=1e-4, atol=1e-5):
        raise UsageError(
            "This network cannot be trained privately: a record changes the output of another; "
            "a layer mixes records. Use layers that process each record alone, as nn.LayerNorm."
        )


def _make_synthetic_records(x: Tensor) -> Tensor:
    """Make three synthetic records of the same shape and dtype; no real one is read."""
    steps = np.linspace(-1.0, 1.0, 3 * math.prod(x.shape[1:]), dtype=np.float32)
    synthetic = torch.from_numpy(steps).reshape(3, *x.shape[1:]).to(x.device)
    return (synthetic if x.is_floating_point() else synthetic.abs() > 0.5).to(x.dtype)


class _Average:
    """Exponential moving average of the weights: post-processing, so it has no privacy cost.

    decay_t = min(1 - 1 / horizon, (1 + t) / (10 + t)): short at first, to forget the random start.
    A long average is updated every k = horizon / `LOOKS` steps with decay_t^k, because the weights
    move by a thousandth of its horizon between two updates.
    """

    LOOKS: ClassVar[int] = 1000

    def __init__(self, weights: list[Tensor], recipe: Recipe):
        self._weights = weights
        horizon = max(1.0, (recipe.average or 0.0) * recipe.steps)
        self._decay, self._every = 1.0 - 1.0 / horizon, max(1, int(horizon) // self.LOOKS)
        keep = recipe.average is not None
        self._means = [each.clone() for each in weights] if keep else []

    @property
    def means(self) -> list[Tensor]:
        """The averages; empty without averaging."""
        return self._means

    def shares(self, steps: Any) -> Any:
        """Compute the fraction of the weights that enters the average after some steps."""
        share = 1.0 - np.minimum(self._decay, (1 + steps) / (10 + steps)) ** self._every
        return np.where((steps + 1) % self._every == 0, share, 0.0)

    def update(self, step: int) -> None:
        if self._means and (weight := float(self.shares(step))):
            for mean, weights in zip(self._means, self._weights, strict=True):
                mean.lerp_(weights, weight)

    def snapshot(self) -> list[Tensor]:
        """Copy the means."""
        return [mean.clone() for mean in self._means]

    def restore(self, means: list[Tensor]) -> None:
        """Go back to a snapshot."""
        for mean, each in zip(self._means, means, strict=True):
            mean.copy_(each)

    def install(self) -> None:
        for weights, mean in zip(self._weights, self._means, strict=False):
            weights.copy_(mean)
