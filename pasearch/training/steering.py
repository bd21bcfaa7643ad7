"""What validation queries decide in a training: the noise of later steps, and which steps stay.

Both are post-processing of what was released: every step is charged, and so is every query of
private records.

Source: docs/rules.md, rules 6 and 9. Proof: docs/guarantees/filters.md,
docs/guarantees/screening.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pasearch.accounting.events import Filtered
from pasearch.accounting.renyi import Filter
from pasearch.errors import BudgetError
from pasearch.training.per_example import trainable_parameters
from pasearch.training.screening import Annealing, coin

if TYPE_CHECKING:
    from pasearch.runs.keys import Stream
    from pasearch.training.recipe import Recipe
    from pasearch.training.updates import Update

ValidationQuery = Callable[[nn.Module, int], float]
"""From the network as it is, and how many queries came before, to a mean loss or an accuracy: of
public records, or a noisy release that its maker has charged."""


class Pace:
    """The noise of a schedule that is steered, and the filter that ends the training.

    Guarantee: the steps that are made cost `recipe.event(n)` together, whatever the queries say.
    """

    def __init__(self, recipe: Recipe, n: int, query: ValidationQuery):
        self._schedule, self._query, self._batches = recipe.schedule, query, recipe.batches(n)
        self._state = recipe.schedule.start()
        # Without noise there is nothing to limit: that is for public data.
        limit = None if recipe.noise_multiplier is None else recipe.event(n)
        self._filter = None
        if isinstance(limit, Filtered):
            self._filter = Filter(limit.event, limit.highest_order)
        self._asked = 0

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
        """Ask for an accuracy at the end of each epoch that the schedule names."""
        epoch = self._batches.epoch(step + 1)
        if epoch > self._batches.epoch(step) and self._schedule.asks_after(epoch):
            self._state = self._state.tell(self._query(network, self._asked))
            self._asked += 1
            network.train()


class Screen:
    """Annealed screening: the update stays, or weights and optimizer go back to the last ones.

    Post-processing of noisy sums that are all paid for, and of losses that the queries released.
    """

    def __init__(
        self,
        annealing: Annealing,
        network: nn.Module,
        optimizer: Update,
        coins: Stream,
        query: ValidationQuery,
    ):
        self._annealing, self._network, self._optimizer = annealing, network, optimizer
        self._coins, self._query = coins, query
        self._parameters = trainable_parameters(network)
        self._state = annealing.start(self._loss(0))
        self._kept = self._snapshot()
        self._asked = 1

    def after(self, step: int) -> None:
        """Take the updates since the last screening, or undo them."""
        if not self._annealing.screens(step + 1):
            return
        loss = self._loss(self._asked)
        self._asked += 1
        drawn = coin(self._coins, step)
        self._state, accepted = self._annealing.decide(self._state, loss, drawn)
        if accepted:
            self._kept = self._snapshot()
        else:
            self._restore()

    def _loss(self, asked: int) -> float:
        loss = self._query(self._network, asked)
        self._network.train()
        return loss

    def _snapshot(self) -> tuple[list[Tensor], list[dict[str, Any]]]:
        weights = [p.detach().clone() for p in self._parameters]
        return weights, self._optimizer.snapshot()

    @torch.no_grad()
    def _restore(self) -> None:
        weights, optimizer = self._kept
        for parameter, kept in zip(self._parameters, weights, strict=True):
            parameter.copy_(kept)
        self._optimizer.restore(optimizer)
