"""Steps on a GPU in rounds: the processor waits for the device once a round, and in no step.

    in a round    a step takes it that every record is finite, that no rounding needs further bits,
                  and that the batch fits its padding; on the device it notes where that was wrong
    at its end    the note is fetched. Nearly always there is none: then all its steps were right.
                  Else the weights go back to where they were, and its steps are made with care
    with care     each step looks: at records that are not finite, at roundings in doubt, at all of
                  the batch

Both ways have the same batch and the same noise, by the same keys, so a step that was right is the
one that care would have made, and what an undone one computed is never used: there is one release
a step, and one price. Steps of one shape are captured once, as a CUDA graph, and replayed.

Source: docs/rules.md, rules 7, 11 and 14. Proof: docs/guarantees/floating-point.md ("On a GPU").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pasearch.runs.keys import Stream
from pasearch.runs.normals import Alone, of_words, pairs
from pasearch.training.blocks import Blocks, filled_up
from pasearch.training.clipping import ClippingMethod
from pasearch.training.gpu_noise import Release
from pasearch.training.noise import words_on
from pasearch.training.one_step import (
    Chosen,
    Slots,
    State,
    bounded_sum,
    denoise,
    most_rows,
    reseed_dropout,
)
from pasearch.training.per_example import PreparedNetwork
from pasearch.training.recipe import Recipe
from pasearch.training.record_sums import SumBuffers

ROUND = 64
"""Most steps of a round. A note comes once in 20,000 steps or less, from padding: such a round is
twice."""


def fits_rounds(recipe: Recipe) -> bool:
    """Whether a recipe's steps may be made in rounds.

    Bounds that follow released counts, encoded gradients, noise of other laws and noise on each
    record ask the device in every step.
    """
    bounding = recipe.bounding
    known = bounding is None or (not bounding.adapts and type(bounding).sums is ClippingMethod.sums)
    asked = recipe.screening is not None or recipe.schedule.steered
    return known and not asked and recipe.noise is None and recipe.noise_before_clip is None


class Rounds:
    """The sums of a training's steps, with care or without.

    Args:
        prepared: The network.
        slots: The records, on the device.
        recipe: One that `fits_rounds`.
        streams: As for `trainer.train`.
        buffers: Where sums go.
        blocks: The batches, if they are drawn otherwise than usual.
    """

    def __init__(
        self,
        prepared: PreparedNetwork,
        slots: Slots,
        recipe: Recipe,
        streams: Mapping[str, Stream],
        buffers: SumBuffers,
        blocks: Blocks | None = None,
    ):
        self._prepared, self._recipe, self._streams, self._buffers = (
            prepared,
            recipe,
            streams,
            buffers,
        )
        self.slots = slots
        n = len(slots.y)
        self._blocks = blocks or Blocks(recipe.batches(n), n, streams["batch"], slots.device)
        noisy = recipe.noise_multiplier is not None
        self._release = (
            Release.of(recipe, n, streams["noise"], buffers, self._blocks.width) if noisy else None
        )
        self._count = sum(flat.numel() for flat in buffers.flats)
        self._wrong = torch.zeros((), dtype=torch.bool, device=slots.device)
        fixed = not prepared.keyed and recipe.augmentation is None
        self._graphs = _Graphs() if fixed and slots.device.type == "cuda" else None

    def sum(self, step: int, sigma: float | None, state: State) -> None:
        """Write a step's noisy sum to the buffers, and note on the device if it may be wrong."""
        padded = self._blocks.at(step)
        self._wrong |= padded.more
        given = (padded.places, padded.real, *self._words(step, sigma))

        def make(places: Tensor, real: Tensor, *words: Tensor) -> None:
            self._make((places, real), words, step, sigma, state, careful=False)

        self._prepared.checks_finite = False
        try:
            if self._graphs is None:
                make(*given)
            else:
                self._graphs.make(sigma, make, given)
        finally:
            self._prepared.checks_finite = True
        self._finish(sigma, state)

    def sum_with_care(self, step: int, sigma: float | None, state: State) -> None:
        """Leave the same sum in the buffers, right in any case."""
        chosen, words = self._blocks.whole(step), self._words(step, sigma)
        self._make(chosen, words, step, sigma, state, careful=True)
        self._finish(sigma, state)

    def wrong(self) -> bool:
        """Return whether a step since the last call may be wrong: waits for the device."""
        if self._release is not None:
            self._wrong |= self._release.noted()
        found = bool(self._wrong)
        self._wrong.zero_()
        return found

    def split(self, slots: Slots) -> None:
        """Go on with the same records, fewer at once."""
        self.slots = slots
        if self._graphs is not None:
            self._graphs = _Graphs()

    def _words(self, step: int, sigma: float | None) -> tuple[Tensor, ...]:
        """Return the bits of a step's noise, if it has any; or which of a block's it is."""
        if sigma is None:
            return ()
        if self._release is not None:
            return (self._release.at(step),)
        return (words_on(self.slots.device, 2 * pairs(self._count), self._streams["noise"], step),)

    def _make(
        self,
        chosen: Chosen,
        words: tuple[Tensor, ...],
        step: int,
        sigma: float | None,
        state: State,
        *,
        careful: bool,
    ) -> None:
        recipe = self._recipe
        part = min(most_rows(recipe, self.slots.rows), self._blocks.width)
        if len(chosen[0]) % part:
            chosen = filled_up(chosen[0], part, chosen[1])
        reseed_dropout(self._prepared, self._streams["dropout"], step, self.slots.device)
        bounded_sum(
            self._prepared, self.slots, recipe, self._streams["batch"], chosen, step, state,
            self._buffers, part,
        )  # fmt: skip
        if not words:
            self._buffers.write_back()
            for flat in () if careful else self._buffers.flats:
                self._wrong |= ~flat.isfinite().all()
            return
        assert recipe.bounding is not None
        assert sigma is not None
        scale, start = sigma * recipe.bounding.computed_sensitivity, 0
        if self._release is not None:
            self._buffers.write_back()
            if careful:
                self._release.normals(step).add_to(self._buffers.flats[0], scale)
            else:
                self._release.add(words[0])
            return
        exact = of_words(words[0], self._count, self._streams["noise"], step) if careful else None
        alone = None if careful else Alone.of(words[0], self._count)
        for total in self._buffers.totals:
            if exact is not None:
                exact.add_to(total, scale, start=start)
            if alone is not None:
                self._wrong |= alone.add_to(total, scale, start=start)
            start += total.numel()
        self._buffers.write_back()

    def _finish(self, sigma: float | None, state: State) -> None:
        recipe = self._recipe
        if sigma is None or recipe.bounding is None:
            return
        state.noise_deviation = sigma * recipe.bounding.computed_sensitivity
        if recipe.denoising is not None:
            denoise(self._buffers.flats, recipe.denoising, recipe.drawn_density(sigma), state)


_Make = Callable[..., None]


class _Graphs:
    """One captured step, replayed as long as the noise multiplier stays what it was."""

    def __init__(self) -> None:
        self._last: object = None
        self._captured: object = None
        self._given: tuple[Tensor, ...] = ()
        self._graph: torch.cuda.CUDAGraph | None = None
        self.replayed = 0

    def make(self, sigma: float | None, make: _Make, given: tuple[Tensor, ...]) -> None:
        """Make a step: replayed, or as it is the first time a noise multiplier comes."""
        again, self._last = (sigma,) == self._last, (sigma,)
        if not again:
            make(*given)
            return
        if self._captured != (sigma,):
            self._capture(sigma, make, given)
        assert self._graph is not None
        for own, each in zip(self._given, given, strict=True):
            own.copy_(each)
        self._graph.replay()
        self.replayed += 1

    def _capture(self, sigma: float | None, make: _Make, given: tuple[Tensor, ...]) -> None:
        self._given = tuple(each.clone() for each in given)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=torch.cuda.Stream()):  # of the GPU that is chosen
            make(*self._given)
        self._captured = (sigma,)
