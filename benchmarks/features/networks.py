"""Many networks of two units by DP-SGD at once: Tables II and XVIII of Bao et al.

A record's gradient is r (-1, 1)' (x, 1), with r = p - y its residual: its norm is sqrt(2) |r| times
that of (x, 1), so records are clipped without being looked at one by one. Batches, first weights
and noise are those of `pasearch.training` for the same streams; networks that differ in features or
epsilon alone share the batches of a repetition.

Usage: python benchmarks/features/networks.py      compares with `pasearch.training.trainer.train`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pasearch.data.partitions import Records
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.normals import draw_normals
from pasearch.runs.sums import SUM_ROUNDING
from pasearch.spaces.architecture import Architecture
from pasearch.training.clipping import NORM_SLACK, FlatClipping
from pasearch.training.noise import Noise
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import train

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One network.

    Args:
        size: It has the first so many features.
        recipe: Plain steps, with one clip or without a bound; the same batches in all cells.
        weights: Stream of the first weights.
        noise: Stream of the noise.
    """

    size: int
    recipe: Recipe
    weights: Stream
    noise: Stream

    def start(self) -> torch.nn.Module:
        """Return the network before its first step."""
        return Architecture(layers=()).build((self.size,), 2, self.weights.generator())


def train_all(x: Array, y: Array, cells: Sequence[Cell], batch: Stream) -> Array:
    """Return all networks after their last step, (cells, 2, d + 1) float32, intercepts last.

    Args:
        x: (n, d) features, in the order in which sets take them.
        y: (n,) 0 or 1.
        cells: What to train.
        batch: Stream of the batches.
    """
    n, d = x.shape
    rows = np.concatenate([x, np.ones((n, 1))], axis=1).astype(np.float32)
    used = np.zeros((d + 1, len(cells)), np.float32)
    weights = np.zeros((d + 1, 2, len(cells)), np.float32)
    for place, cell in enumerate(cells):
        used[: cell.size, place] = used[-1, place] = 1.0
        weight, _ = (each.detach().numpy() for each in cell.start().parameters())
        weights[: cell.size, :, place] = weight.T
    lengths = np.sqrt(2 * (rows.astype(np.float64) ** 2 @ used)).astype(np.float32)
    bounds = [cell.recipe.bounding for cell in cells]
    clips = np.array(
        [b.clip_norm / NORM_SLACK if isinstance(b, FlatClipping) else np.inf for b in bounds]
    )
    first = cells[0].recipe
    rates = [(c.recipe.learning_rate or 0.0) / c.recipe.expected_batch_size for c in cells]
    batches = first.make_batching(n)
    for step in range(first.steps):
        chosen = batches.batch(n, batch, step)
        own = rows[chosen]
        z = np.tensordot(own, weights, 1)
        residual = 0.5 + 0.5 * np.tanh(0.5 * (z[:, 1] - z[:, 0])) - y[chosen, None]
        norms = np.abs(residual) * lengths[chosen]
        residual *= np.minimum(1.0, clips / np.maximum(norms, 1e-30))
        gradient = (own.T @ residual.astype(np.float32)) * used
        sums = np.stack([-gradient, gradient], axis=1)
        for place, cell in enumerate(cells):
            if (sigma := cell.recipe.noise_multiplier) is not None:
                own = np.concatenate([sums[: cell.size, :, place].T.ravel(), sums[-1, :, place]])
                noise = Noise(draw_normals(len(own), cell.noise, step))
                noise.add_to(
                    [torch.from_numpy(own)], sigma * clips[place] * NORM_SLACK * SUM_ROUNDING
                )
                sums[: cell.size, :, place] = own[:-2].reshape(2, -1).T
                sums[-1, :, place] = own[-2:]
        weights -= (np.array(rates) * sums).astype(np.float32)
    return weights.transpose(2, 1, 0)


def accuracies(weights: Array, x: Array, y: Array) -> Array:
    """Return each network's share of right answers, (cells,)."""
    rows = np.concatenate([x, np.ones((len(x), 1))], axis=1).astype(np.float32)
    z = np.tensordot(weights, rows, (2, 1))
    return ((z[:, 1] > z[:, 0]) == (y == 1)).mean(axis=1)


def by_trainer(x: Array, y: Array, cell: Cell, streams: Mapping[str, Stream]) -> Array:
    """Return one network as the project's own trainer makes it, (2, d + 1)."""
    network, found = cell.start(), np.zeros((2, x.shape[1] + 1), np.float32)
    records = Records(
        x=torch.from_numpy(x[:, : cell.size].astype(np.float32)), y=torch.from_numpy(y),
        valid=torch.ones(len(y), dtype=torch.bool), public=True,
    )  # fmt: skip
    train(network, records, cell.recipe, streams)
    weight, bias = (each.detach().numpy() for each in network.parameters())
    found[:, : cell.size], found[:, -1] = weight, bias
    return found


def main() -> None:
    """Compare both on a small case: with and without noise, all records and batches."""
    keys, generator = Keys.from_seed(0), np.random.default_rng(0)
    x = generator.random((60, 5))
    y = (x[:, 0] + 0.3 * generator.normal(size=60) > 0.5).astype(np.int64)
    for size in (60, 20):
        plain = Recipe(
            expected_batch_size=size, steps=40, learning_rate=0.5, optimizer="sgd", average=None,
            bounding=None,
        )  # fmt: skip
        private = Recipe(
            expected_batch_size=size, steps=40, learning_rate=0.5, optimizer="sgd", average=None,
            bounding=FlatClipping(clip_norm=1.0),
        ).with_noise(3.0)  # fmt: skip
        cells = [
            Cell(
                size=width, recipe=recipe, weights=keys.stream("weights", width),
                noise=keys.stream("noise", width),
            )
            for width in (2, 5) for recipe in (plain, private)
        ]  # fmt: skip
        batch = keys.stream("batch")
        for cell, weights in zip(cells, train_all(x, y, cells, batch), strict=True):
            streams = {"batch": batch, "noise": cell.noise, "dropout": keys.stream("dropout")}
            theirs = by_trainer(x, y, cell, streams)
            gap = np.abs(weights - theirs).max()
            print(size, cell.size, cell.recipe.noise_multiplier, f"{gap:.1e}")
            assert gap < 1e-4 * max(1.0, float(np.abs(theirs).max()))


if __name__ == "__main__":
    main()
