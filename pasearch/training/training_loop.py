"""A training of one network with a recipe (training configuration), step by step.

The same code trains privately and, on declared-public data, without noise and clipping. Random
numbers come from a separate key for each trial, purpose and step. A step has one
formulation, `one_step.compute_noisy_sum`; the compiled linear kernel and the GPU compute the same
sum of the same batch with the same noise.

Source: docs/rules.md, rules 7, 8, 11 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.data.mapping import full_precision
from pasearch.data.threads import use_threads
from pasearch.errors import UsageError, is_out_of_memory
from pasearch.runs.keys import Stream
from pasearch.runs.processor import ThreadTeam
from pasearch.spaces.modules import spread_values
from pasearch.training.linear_backend import LinearBackend, can_use_linear_backend, count_threads
from pasearch.training.memory import keep_freed_memory, limit_rows_in_memory
from pasearch.training.one_step import (
    DeviceRecords,
    TrainingState,
    compute_noisy_sum,
    halve_rows,
    reseed_dropout,
    scale_class_weights,
)
from pasearch.training.per_example import PreparedNetwork, split_fixed_modules, validate
from pasearch.training.record_sums import SumBuffers, flatten_parameters
from pasearch.training.row_rounding import check_row_rounding
from pasearch.training.screening import UpdateScreening, ValidationDrivenNoise, ValidationQuery
from pasearch.training.temperature import divide_logits

if TYPE_CHECKING:
    from pasearch.data.partitions import Records
    from pasearch.training.recipe import Recipe


# Minimum size of a step for which several threads are faster than one (benchmarks/speed).
MIN_SHARED_OPERATIONS = 1.4e8  # operations of the step's largest matrix product, with PyTorch
MIN_SHARED_LINEAR_OPERATIONS = 8e7  # the same, with the linear backend
MIN_SHARED_BATCH_NUMBERS = 2**20  # count of numbers in the records of a batch


class Training:
    """Training in progress: makes single steps, with the network usable between them.

    Guarantee: after t steps, the privacy cost of the weights and of their average is that of t
    steps of `recipe.event(n)`.

    The arguments, errors and the cost are those of `trainer.start_training`. On a GPU,
    `gpu.gpu_training.GpuTraining` replaces this class for most recipes.
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
        splits: bool = True,
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
            self._apply_fixed_modules()
        self._weights = flatten_parameters(self._prepared.parameters)
        self._sums = SumBuffers(self._prepared.parameters)
        self._optimizing = recipe.optimizer_stage
        self._optimizer = self._optimizing.of(self._weights, recipe.learning_rate)
        self._optimizer.share = 1.0 / recipe.expected_units
        self._state = TrainingState.start(self._prepared, recipe)
        synthetic = _make_synthetic_records(self._slots.x)
        rows = limit_rows_in_memory(self._prepared, synthetic, device)
        shares = scale_class_weights(recipe.class_weights, self._slots.device)
        self._slots = replace(self._slots, rows=rows, shares=shares)
        self._splits, self._threads = splits, self._choose_thread_count(synthetic, device)
        self._team = ThreadTeam(self._threads)
        self._average = WeightAverage(self._weights, recipe)
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
        self._linear = self._choose_linear_backend()

    def _choose_linear_backend(self) -> LinearBackend | None:
        """Choose the compiled kernel of linear models; None if PyTorch computes the sums."""
        return LinearBackend.of(
            self._prepared, self._slots, self._recipe, self._streams, self._sums, self._weights,
            team=self._team,
        )  # fmt: skip

    def _choose_thread_count(self, synthetic: Tensor, device: str) -> int:
        """Choose the number of threads of a step, from public numbers only."""
        most, recipe = torch.get_num_threads(), self._recipe
        if device != "cpu":
            return most
        batch = recipe.expected_batch_size
        product = self._prepared.count_product_operations(synthetic) * min(
            batch, recipe.chunk, self._slots.rows
        )
        moved = batch * synthetic[0].numel() >= MIN_SHARED_BATCH_NUMBERS
        if can_use_linear_backend(self._prepared, self._slots, recipe):
            shared = moved or product >= MIN_SHARED_LINEAR_OPERATIONS
            return count_threads(recipe, most if shared else 1)
        return most if moved or product >= MIN_SHARED_OPERATIONS else 1

    def _apply_fixed_modules(self) -> None:
        """Apply the modules before the first trained layer to all records once, not in every step.

        If the result would take too much memory, the last of these modules remain in the network.
        So do layers with parameters, if all batches together have fewer records than the partition.
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
        """Make one step: draw a batch, compute the noisy sum of its gradients, update the weights.

        Returns:
            True; False if a validation-driven schedule has no budget left for the step. In this
            case no record was read.
        """
        sigma = self._recipe.noise_multiplier_at(self._finished, len(self._slots.y))
        if self._pace is not None and sigma is not None:
            if (sigma := self._pace.spend(sigma)) is None:
                return False
        self._check_parameters_in_place()
        self._write_sum(sigma)
        self._update_weights()
        return True

    def _check_parameters_in_place(self) -> None:
        """Check that the network's parameters are still views of the flat weights."""
        if self._prepared.parameters[0].data_ptr() != self._weights[0].data_ptr():
            raise UsageError(
                "The network's parameters were moved or replaced while it was trained."
            )

    @property
    def max_round_steps(self) -> int:
        """Maximum number of steps in the next round; 1 on a CPU."""
        return 1

    def steps(self, most: int) -> int:
        """Make a round of at most `most` steps on a GPU, or one step on a CPU.

        Returns:
            Number of steps made; 0 if `step` returned False.
        """
        self.begin_steps(most)
        return self.end_round()

    def begin_steps(self, most: int) -> None:
        """Start at most `most` steps on a GPU, in the current round or a new one; does not wait.

        On a CPU this does nothing; `end_round` makes the step.
        """

    def end_round(self) -> int:
        """Wait for the current round, and repeat its steps if one was uncertain.

        Returns:
            Number of steps made; on a CPU that is one step, made now.
        """
        return int(self.step())

    def undo_round(self) -> None:
        """Undo a round that was started and not ended; its steps have not been used."""

    def _write_sum(self, sigma: float | None) -> None:
        """Write the next step's noisy sum to the buffers, correct in every case."""
        if self._linear is None:
            self._write_sum_within_memory(self._write_torch_sum, sigma)
            return
        with use_threads(1):  # waiting threads of torch would block a processor core
            self._linear.write_sum(self._finished, sigma, self._state)

    def _write_torch_sum(self, step: int, sigma: float | None, state: TrainingState) -> None:
        """Write a step's noisy sum to the buffers, by PyTorch."""
        allowed = torch.get_num_threads()
        with use_threads(min(self._threads, allowed)):
            compute_noisy_sum(
                self._prepared, self._slots, self._recipe, self._streams, step,
                noise_multiplier=sigma, state=state, buffers=self._sums, team=self._team,
            )  # fmt: skip

    def _write_sum_within_memory(
        self, of: Callable[[int, float | None, TrainingState], None], sigma: float | None
    ) -> None:
        """Write a step's noisy sum to the buffers; after a memory error, with fewer rows at once.

        An interrupted sum is computed again from the same keys, so it is one release.

        Args:
            of: Function that writes the sum, of the step, the noise multiplier and the state.
            sigma: Noise multiplier of the step. None: no noise.
        """
        while True:
            state = replace(self._state)
            try:
                with full_precision():
                    of(self._finished, sigma, state)
            except (MemoryError, RuntimeError) as error:
                rows = self._halve_rows()
                if not (self._splits and is_out_of_memory(error)) or rows is None:
                    raise
                self._limit_rows(rows)
                continue
            self._state = state
            return

    def _halve_rows(self) -> int | None:
        """Halve the number of rows that are processed at once; None if it cannot be halved."""
        return halve_rows(self._recipe, self._slots, self._team.threads)

    def _limit_rows(self, rows: int) -> None:
        """Process at most `rows` rows at once from now on."""
        self._slots = replace(self._slots, rows=rows)

    def _update_weights(self) -> None:
        """Update the weights and their average by the noisy sum in the buffers."""
        for weights, total in zip(self._weights, self._sums.flats, strict=True):
            weights.grad = total
        deviation = self._state.noise_deviation * self._optimizer.share
        self._optimizing.set_noise_variance(self._optimizer, deviation**2)
        recipe = self._recipe
        pace = recipe.learning_rate_factor_at(self._finished, len(self._slots.y))
        decay = (recipe.learning_rate or 0.0) * pace * recipe.weight_decay
        self._optimizer.pace, self._optimizer.shrinkage = pace, max(0.0, 1.0 - decay)
        self._optimizer.step()
        if self._screen is not None:
            self._screen.screen_updates(self._finished)
        self._average.update(self._finished)
        if self._pace is not None:
            self._pace.query_after_step(self._finished, self._network)
        self._finished += 1

    def finish(self) -> None:
        """Finish the training: install averaged weights, divide logits by the temperature.

        The parameters are copied out of the flat buffer, so that a saved network does not contain
        it.
        """
        self._average.install()
        for parameter in self._prepared.parameters:
            parameter.data = parameter.detach().clone()
        divide_logits(self._network.state_dict(), self._recipe.temperature)


def _check_training(
    network: nn.Module, records: Records, recipe: Recipe, query: ValidationQuery | None
) -> None:
    """Check that the network can be trained with this recipe on these records."""
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
    """Refuse a network in which one record changes the output of another, on synthetic records.

    This is not a proof: a network could mix records only for other values than these.
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
    """Make three synthetic records of the shape and dtype of `x`, whose values are not read."""
    synthetic = spread_values(3, tuple(x.shape[1:])).to(x.device)
    return (synthetic if x.is_floating_point() else synthetic.abs() > 0.5).to(x.dtype)


class WeightAverage:
    """Exponential moving average of the weights: post-processing, so it has no privacy cost.

    decay_t = min(1 - 1 / horizon, (1 + t) / (10 + t)) is small at first, to forget the random
    initial weights. A long average is updated only every k = horizon / `UPDATES_PER_HORIZON` steps,
    with decay_t^k: the weights change little between two updates.
    """

    UPDATES_PER_HORIZON: ClassVar[int] = 1000

    def __init__(self, weights: list[Tensor], recipe: Recipe):
        self._weights = weights
        horizon = max(1.0, (recipe.average or 0.0) * recipe.steps)
        self._decay, self._every = (
            1.0 - 1.0 / horizon,
            max(1, int(horizon) // self.UPDATES_PER_HORIZON),
        )
        keep = recipe.average is not None
        self._means = [each.clone() for each in weights] if keep else []

    @property
    def means(self) -> list[Tensor]:
        """Averaged weights, one tensor per flat buffer; empty without averaging."""
        return self._means

    def shares(self, steps: Any) -> Any:
        """Compute the fraction of the new weights in the average, after each step number given."""
        share = 1.0 - np.minimum(self._decay, (1 + steps) / (10 + steps)) ** self._every
        return np.where((steps + 1) % self._every == 0, share, 0.0)

    def update(self, step: int) -> None:
        """Update the average after a step."""
        if self._means and (weight := float(self.shares(step))):
            for mean, weights in zip(self._means, self._weights, strict=True):
                mean.lerp_(weights, weight)

    def snapshot(self) -> list[Tensor]:
        """Copy the averages."""
        return [mean.clone() for mean in self._means]

    def restore(self, means: list[Tensor]) -> None:
        """Restore the averages of a snapshot."""
        for mean, each in zip(self._means, means, strict=True):
            mean.copy_(each)

    def install(self) -> None:
        """Replace the weights by their averages, if there are any."""
        for weights, mean in zip(self._weights, self._means, strict=False):
            weights.copy_(mean)
