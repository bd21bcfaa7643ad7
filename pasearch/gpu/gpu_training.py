"""A training on a GPU: steps in rounds, whose result is checked at the end of each round.

    a dense network    whole steps in the GPU kernels of `dense_steps`
    any other          PyTorch computes each sum without waiting for the device (`rounds`)

If the check finds a step that may be wrong, the weights are restored to those before the round, and
the steps are repeated from the same keys, with exact arithmetic where needed.

Source: docs/rules.md, rules 7, 11 and 14. Proof: docs/guarantees/floating-point.md ("On a GPU").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pasearch.gpu.bits import STEPS_PER_BLOCK
from pasearch.gpu.dense_steps import DenseSteps, TrainingGroup, can_use_gpu_steps, has_gpu_steps
from pasearch.gpu.rounds import MAX_STEPS_PER_ROUND, Rounds, can_use_rounds
from pasearch.runs.keys import Stream
from pasearch.training.one_step import TrainingState
from pasearch.training.optimizers import SgdUpdate
from pasearch.training.training_loop import Training

if TYPE_CHECKING:
    from pasearch.data.partitions import Records
    from pasearch.training.recipe import Recipe


class GpuTraining(Training):
    """A training whose steps run in rounds on a GPU.

    Guarantee: as for `Training`. No weights of an unchecked round are kept.

    Args, raises and cost: as for `Training`; a ValueError for a recipe that `can_use_rounds`
    refuses; and `together`, the trainings that share kernel calls (None: this one alone).
    """

    def __init__(
        self,
        network: nn.Module,
        records: Records,
        recipe: Recipe,
        streams: Mapping[str, Stream],
        *,
        device: str = "cuda",
        splits: bool = True,
        together: TrainingGroup | None = None,
    ):
        if not can_use_rounds(recipe):
            raise ValueError("Each step of this recipe waits for the device: use `Training`.")
        super().__init__(network, records, recipe, streams, device=device, splits=splits)
        self._together = together
        self._dense_steps = self._start_dense_steps(device)
        blocks = None if self._dense_steps is None else self._dense_steps.blocks
        self._rounds = Rounds(self._prepared, self._slots, recipe, streams, self._sums, blocks)
        self._before: _Snapshot | None = None

    def _choose_linear_backend(self) -> None:
        """Use no linear backend, because it computes on the CPU."""

    def _start_dense_steps(self, device: str) -> DenseSteps | None:
        """Create the steps in GPU kernels; None if they do not support the training."""
        optimizer, streams = self._optimizer, self._streams
        if not can_use_gpu_steps(self._prepared, self._slots, self._recipe, streams):
            return None
        if not has_gpu_steps(device) or not isinstance(optimizer, SgdUpdate):
            return None
        return DenseSteps(
            self._prepared, self._slots, self._recipe, streams, self._sums, self._weights[0],
            optimizer, next(iter(self._average.means), None), self._average.shares,
            self._together,
        )  # fmt: skip

    @property
    def max_round_steps(self) -> int:
        """Maximum number of steps in the next round."""
        return (
            MAX_STEPS_PER_ROUND
            if self._dense_steps is None
            else STEPS_PER_BLOCK - self._finished % STEPS_PER_BLOCK
        )

    def begin_steps(self, most: int) -> None:
        """Start at most `most` steps, in the current round or a new one; does not wait."""
        self._check_parameters_in_place()
        dense, most = self._dense_steps, min(most, self.max_round_steps)
        begins_block = dense is not None and self.max_round_steps == STEPS_PER_BLOCK
        if begins_block and self._before is not None:
            self.end_round()  # the inputs of a block must exist until its steps are checked
        self._before = self._snapshot() if self._before is None else self._before
        if dense is None:
            for _ in range(most):
                sigma = self._recipe.noise_multiplier_at(self._finished, len(self._slots.y))
                self._write_sum_within_memory(self._rounds.write_sum, sigma)
                self._update_weights()
            return
        if self._together is None:
            dense.start_steps(self._finished, most)
        else:
            self._together.add_steps(dense, self._finished, most)
        self._finished += most

    def end_round(self) -> int:
        """Wait for the current round; if a step is uncertain, go back, and repeat the round.

        The kernels of dense networks report the first uncertain step. Steps before it are repeated
        with equal results, this one is computed with all checks, and the later ones as usual.
        Without these kernels, all steps of the round are computed with all checks.

        Returns:
            Number of steps made.
        """
        if (before := self._before) is None:
            return 0
        many, dense = self._finished - before.finished, self._dense_steps
        if dense is None:
            right = 0 if self._rounds.pop_uncertain() else many
        elif self._together is not None and self._together.has_pending_steps(dense):
            raise RuntimeError("The steps to check were not started on the GPU.")
        else:
            right = dense.count_valid_steps(before.finished, many)
        if right < many:
            self._go_back(before)
        self._before = None
        if right == many:
            return many
        together, self._together = self._together, None
        end = before.finished + many
        while dense is not None and self._finished < before.finished + right:
            self.steps(before.finished + right - self._finished)
        self.step()
        while self._finished < end:
            self.step() if dense is None else self.steps(end - self._finished)
        self._together = together
        return many

    def undo_round(self) -> None:
        """Undo a round that was started and not ended; its steps have not been used."""
        if self._before is None:
            return
        try:
            if self._dense_steps is not None:
                if self._together is not None:
                    self._together.remove_pending_steps(self._dense_steps)
                self._dense_steps.wait_for_steps()
            self._go_back(self._before)
        except Exception:  # noqa: BLE001 - any error of a device that has failed
            with torch.no_grad():
                for parameter in self._network.parameters():
                    parameter.data = torch.full_like(parameter, math.nan, device="cpu")
        self._before = None

    def _write_sum(self, sigma: float | None) -> None:
        """Write the next step's noisy sum to the buffers, with all checks."""
        self._write_sum_within_memory(self._rounds.write_checked_sum, sigma)

    def _halve_rows(self) -> int | None:
        """Halve the number of rows that are processed at once; None if it cannot be halved."""
        recipe = self._recipe
        return min(self._slots.rows, recipe.chunk, recipe.expected_batch_size) // 2 or None

    def _limit_rows(self, rows: int) -> None:
        """Process at most `rows` rows at once from now on."""
        super()._limit_rows(rows)
        self._rounds.replace_records(self._slots)

    def _update_weights(self) -> None:
        """Update the weights and their average by the noisy sum in the buffers."""
        if self._dense_steps is None:
            super()._update_weights()
        else:  # by the kernel that updates in all steps: another would round differently
            self._dense_steps.update_from_stored_sum(self._finished)
            self._finished += 1

    def _snapshot(self) -> _Snapshot:
        """Copy everything that a step changes."""
        weights = [each.clone() for each in self._weights]
        optimizer, average = self._optimizer.snapshot(), self._average.snapshot()
        return _Snapshot(weights, optimizer, average, self._state, self._finished)

    def _go_back(self, before: _Snapshot) -> None:
        """Restore everything that a step changes."""
        for own, each in zip(self._weights, before.weights, strict=True):
            own.copy_(each)
        self._optimizer.restore(before.optimizer)
        self._average.restore(before.average)
        self._state, self._finished = before.state, before.finished


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Copy of everything that a step changes, made before a round."""

    weights: list[Tensor]
    optimizer: list[dict[str, Any]]
    average: list[Tensor]
    state: TrainingState
    finished: int
