"""Lin et al.'s factors: order of noise and clip, optimizer, bounding, noise, clip, network, data.

Two comparisons of the same trainings:

    as printed     their sigma (.1, .5) and C (.8, 1.4): Tables 3 to 6 and 8 to 11; C from .001 to
                   100: Table 12; adaptive clipping: Table 7. Each has its own price: "AC", noise
                   and then clip, has none (null, for infinite); "AC private" bounds each gradient
                   to C first.
    at one price   every arm's noise is what epsilon 3 allows: both optimizers, five ways to bound.

Small (the default): the first 10,000 training images and the first 2,000 test images; images of
half the side (max-pooled); batches of 64, 60 steps; 8 and 16 filters and 64 units where theirs has
32, 64 and 1,024, and 64 LSTM units where theirs has 128: 13,354 and 20,874 parameters. Noise on
every coordinate of every record's gradient is what takes the time, so neither n nor the test set
counts much. `--full`: their networks (examples/architectures), all images, batches of 128, 4,000
steps, for a GPU. The paper states neither steps nor learning rates. SVHN is replaced by
Fashion-MNIST; CIFAR-10 is cut to the middle 28 x 28 pixels, in grey, as theirs.

A learning rate is the best of three with a seed of its own (`pilot` in the results): for the
printed settings, without noise, one a data set, network and optimizer, which both orders share; at
one price one an arm, network and optimizer, found on MNIST.

The weights start from the seed, and so do batches: arms of one seed are paired. TPVD compares
matrices with the training without noise of the same seed; `tpvd_other_seed`, of a training without
noise, compares it with that of the next seed.

The records are public: accuracy and loss are exact, on official test images, and nothing is charged
for them. Noise comes from a seed: these are benchmarks, not private.

Usage: python benchmarks/factors/run.py --data-root DIR --cifar cifar10-jpeg-q75.npz
       python benchmarks/factors/run.py --data-root DIR --cifar FILE --full --device cuda
       python benchmarks/factors/table.py
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from tpvd import tpvd

from pasearch.accounting import calibration
from pasearch.accounting.accountants import price
from pasearch.accounting.budget import Budget
from pasearch.data.partitions import Records, SealedArray
from pasearch.data.sources import load_dataset
from pasearch.runs.keys import Keys
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import read_candidate
from pasearch.training.clipping import (
    AdaptiveClipping,
    ClippingMethod,
    FlatClipping,
    PerLayerClipping,
)
from pasearch.training.noise_before_clip import NoiseBeforeClip
from pasearch.training.per_example import form_gradients, list_trainable_layers
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import train

sys.path.append(str(Path(__file__).parents[1]))
from cells import Line, add_workers, measure, stored, workers_of

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "runs.jsonl"
CIFAR = "cifar10-jpeg-q75"
DATA = ("mnist", "fashion-mnist", CIFAR)
NETWORKS = ("cnn", "lstm")
OPTIMIZERS = ("sgd", "adam")
SIGMAS, CLIPS = (0.1, 0.5), (0.8, 1.4)
SCALES = (1.0, 10.0, 1000.0)
SWEEP = (0.001, 0.04, 1.4, 10.0, 100.0)
BOUNDINGS: dict[str, Any] = {
    "flat": lambda clip: FlatClipping(clip_norm=clip),
    "per-layer": lambda clip: PerLayerClipping(clip_norm=clip),
    "adaptive flat": lambda clip: AdaptiveClipping(clip_norm=clip),
    "adaptive per-layer": lambda clip: AdaptiveClipping(clip_norm=clip, per_layer=True),
}
EPSILON = 3.0
PILOT_SEED = 1000
RATES = {"sgd": (0.25, 1.0, 4.0), "adam": (0.001, 0.004, 0.016)}
PLAIN_RATES = {"sgd": (0.1, 0.3, 1.0), "adam": RATES["adam"]}
NOISY_RATES = (1.0, 4.0, 16.0)
"""Of sgd after "AC private": the clip leaves of a gradient what the noise's norm lets through."""

POOL = {"kind": "pool", "size": 2}
CONV = {"kind": "conv", "kernel": 5, "padding": "same"}
SMALL: dict[str, list[dict[str, Any]]] = {
    "cnn": [
        POOL, {**CONV, "filters": 8}, POOL, {**CONV, "filters": 16}, POOL,
        {"kind": "dense", "units": 64, "activation": "relu"},
    ],
    "lstm": [POOL, {"kind": "lstm", "units": 64}],
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training of the study, but for its seed.

    Args:
        data: One of `DATA`.
        network: "cnn" or "lstm".
        optimizer: "sgd" or "adam".
        order: "CA", "AC", "AC private" or "none", without noise.
        bounding: One of `BOUNDINGS`; None without noise.
        clip: C.
        sigma: The noise, in units of C; None where epsilon says it, or there is none.
        epsilon: The price; None where sigma says it, or there is none.
    """

    data: str
    network: str
    optimizer: str
    order: str = "none"
    bounding: str | None = None
    clip: float | None = None
    sigma: float | None = None
    epsilon: float | None = None


def printed() -> Iterator[Cell]:
    """Return Tables 3 to 5: the plain trainings and 96 cells, and on MNIST "AC private" too."""
    for data, network, optimizer in product(DATA, NETWORKS, OPTIMIZERS):
        of = Cell(data=data, network=network, optimizer=optimizer)
        yield of
        for order, sigma, clip in product(("CA", "AC", "AC private"), SIGMAS, CLIPS):
            if order != "AC private" or (data, optimizer) == ("mnist", "adam"):
                yield replace(of, order=order, bounding="flat", clip=clip, sigma=sigma)


def sweep() -> Iterator[Cell]:
    """Return Table 12: C from .001 to 100, with Adam, on MNIST."""
    for network, order, clip in product(NETWORKS, ("CA", "AC"), SWEEP):
        yield Cell(
            data="mnist", network=network, optimizer="adam", order=order, bounding="flat",
            clip=clip, sigma=0.5,
        )  # fmt: skip


def adaptive() -> Iterator[Cell]:
    """Return Table 7: adaptive clipping beside AC at C .04 and 1.4."""
    for data in DATA:
        of = Cell(data=data, network="cnn", optimizer="adam", order="CA", clip=1.0, sigma=0.5)
        yield replace(of, bounding="adaptive per-layer")
        yield replace(of, bounding="adaptive flat")
        for clip in (0.04, 1.4):
            yield replace(of, order="AC", bounding="flat", clip=clip)


def priced() -> Iterator[Cell]:
    """Return every arm at one price."""
    for data, network, optimizer in product(DATA, NETWORKS, OPTIMIZERS):
        of = Cell(data=data, network=network, optimizer=optimizer, clip=1.0, epsilon=EPSILON)
        for bounding in BOUNDINGS:
            yield replace(of, order="CA", bounding=bounding)
        yield replace(of, order="AC private", bounding="flat")


PARTS = {"printed": printed, "sweep": sweep, "adaptive": adaptive, "priced": priced}


def cells(parts: Iterable[str]) -> list[Cell]:
    """Return each cell of these parts once."""
    return list(dict.fromkeys(cell for part in parts for cell in PARTS[part]()))


def rates(cell: Cell) -> tuple[float, ...]:
    """Return the learning rates that the pilot tries for a cell."""
    if cell.order == "none":
        return PLAIN_RATES[cell.optimizer]
    noisy = cell.order == "AC private" and cell.optimizer == "sgd"
    return NOISY_RATES if noisy else RATES[cell.optimizer]


def plain_of(cell: Cell) -> Cell:
    """Return the training without noise that a cell is compared with."""
    return Cell(data=cell.data, network=cell.network, optimizer=cell.optimizer)


def pilot_of(cell: Cell) -> Cell:
    """Return the cell whose best rate this one takes."""
    if cell.epsilon is None:
        return plain_of(cell)
    return replace(cell, data="mnist")


def clipped_as_printed(norms: torch.Tensor) -> torch.Tensor:
    """Return each layer's norm after `PerlayerClip` as printed: C(j) = (norm of all) / m.

    Source: Lin et al., Algorithm 2, lines 14 to 18.
    """
    return torch.minimum(norms, norms.norm() / len(norms))


class Study:
    """The data, networks and lengths of one size of the study, small or full.

    Args:
        full: Which size.
        device: "cpu" or "cuda".
        data_root: Torchvision's folder.
        cifar: What benchmarks/prepare.py wrote.
    """

    def __init__(self, full: bool, device: str, data_root: str, cifar: str):
        self._full, self._device = full, device
        self._data_root, self._cifar = data_root, cifar
        self._batch, self._steps = (128, 4000) if full else (64, 60)
        self._train, self._test = (None, None) if full else (10_000, 2000)
        self._data = cache(self._load)
        self._plain = cache(self._plain_weights)
        self._noise = cache(self._noise_at_price)
        self._price = cache(lambda event, delta: price(event, delta).epsilon)

    def measure(
        self, cell: Cell, seed: int, rate: float, plain_rate: float | None
    ) -> dict[str, Any]:
        """Train once; return what came of it.

        Args:
            cell: Which training.
            seed: Of weights, batches and noise.
            rate: The learning rate.
            plain_rate: That of the training without noise, which is compared with; None: a pilot.
        """
        train_on, test = self._data(cell.data)
        start = time.process_time()
        recipe = self._recipe(cell, rate, len(train_on))
        network = self._trained(cell, recipe, seed)
        seconds = time.process_time() - start
        accuracy, loss = self._judge(network, test)
        found: dict[str, Any] = {
            "accuracy": round(accuracy, 4),
            "loss": round(loss, 4) if math.isfinite(loss) else None,
            "noise_multiplier": recipe.noise_multiplier,
            "price": None,
            "parameters": sum(p.numel() for p in network.parameters()),
            "batch": self._batch,
            "steps": self._steps,
        }
        if cell.order in ("CA", "AC private"):
            found["price"] = self._price(recipe.event(len(train_on)), self._delta(len(train_on)))
        if plain_rate is not None:
            plain = plain_of(cell)
            own = self._plain(plain, seed, plain_rate)
            if cell == plain:
                other = self._plain(plain, seed + 1, rate)
                found["tpvd_other_seed"] = round(tpvd(own, other), 4)
                found["median_norm"] = round(self._median_norm(cell, seed), 4)
            else:
                found["tpvd"] = round(tpvd(own, _matrices(network)), 4)
        return {**found, "n": len(train_on), "delta": self._delta(len(train_on)),
                "cpu_seconds": round(seconds, 1)}  # fmt: skip

    def unbounded(self, network_name: str, seed: int, scale: float) -> dict[str, float]:
        """Return what the printed per-layer clip makes of one record's gradient, made larger."""
        records, _ = self._data("mnist")
        network = self._network("mnist", network_name, seed)
        norms = self._layer_norms(network, records, scale, 1)[:, 0]
        ours = PerLayerClipping(clip_norm=1.0).factors(norms[:, None])[:, 0] * norms
        return {
            "gradient": float(norms.norm()),
            "as_printed": float(clipped_as_printed(norms).norm()),
            "per_layer": float(ours.norm()),
        }

    def _load(self, name: str) -> tuple[Records, Records]:
        cifar = name == CIFAR
        said = {} if cifar else {"data_root": self._data_root}
        data = load_dataset(self._cifar if cifar else name, public=True, **said)
        x, y = (np.asarray(SealedArray(each)._array) for each in (data.features, data.labels))
        if cifar:
            x = x[:, :, 2:30, 2:30].mean(axis=1)
        tests = data.official_test or 10_000
        first = len(x) - tests
        end = len(x) if self._test is None else first + self._test
        return self._records(x, y, 0, self._train or first), self._records(x, y, first, end)

    def _records(self, x: np.ndarray, y: np.ndarray, start: int, end: int) -> Records:
        images = torch.from_numpy(x[start:end].astype(np.float32) / 255.0)
        classes = torch.from_numpy(y[start:end].astype(np.int64))
        valid = torch.ones(end - start, dtype=torch.bool)
        return Records(x=images, y=classes, valid=valid, public=True)

    def _delta(self, n: int) -> float:
        return Budget(EPSILON).resolve(n).delta or 0.0

    def _network(self, data: str, name: str, seed: int) -> nn.Sequential:
        if self._full:
            path = HERE.parents[1] / "examples" / "architectures" / f"lin-{name}.toml"
            architecture = read_candidate(path).architecture
        else:
            architecture = Architecture.from_json(SMALL[name])
        shape = tuple(self._data(data)[0].x.shape[1:])
        return architecture.build(shape, 10, Keys.from_seed(seed).stream("weights").generator())

    def _recipe(self, cell: Cell, rate: float, n: int) -> Recipe:
        bounding: ClippingMethod | None = None
        order = None
        if cell.bounding is not None:
            bounding = BOUNDINGS[cell.bounding](cell.clip)
        if cell.order.startswith("AC"):
            order = NoiseBeforeClip(record_bound=cell.clip if cell.order == "AC private" else None)
        recipe = Recipe(
            expected_batch_size=self._batch, steps=self._steps, learning_rate=rate,
            noise_multiplier=None if cell.order == "none" else cell.sigma or 1.0,
            bounding=bounding, noise_before_clip=order, optimizer=cell.optimizer, average=None,
        )  # fmt: skip
        if cell.epsilon is None:
            return recipe
        return recipe.with_noise(self._noise(order, cell.epsilon, n))

    def _noise_at_price(self, order: NoiseBeforeClip | None, epsilon: float, n: int) -> float:
        recipe = Recipe(
            expected_batch_size=self._batch, steps=self._steps, noise_multiplier=1.0,
            bounding=FlatClipping(clip_norm=1.0), noise_before_clip=order,
        )  # fmt: skip
        budget = Budget(epsilon, self._delta(n))
        return calibration.calibrate_min(
            lambda z: recipe.with_noise(z).event(n), budget, 0.2, 100.0
        )

    def _trained(self, cell: Cell, recipe: Recipe, seed: int) -> nn.Sequential:
        keys = Keys.from_seed(seed)
        network = self._network(cell.data, cell.network, seed)
        streams = {name: keys.stream(name) for name in ("batch", "noise", "dropout")}
        train(network, self._data(cell.data)[0], recipe, streams, device=self._device)
        return network.cpu().eval()

    def _plain_weights(self, plain: Cell, seed: int, rate: float) -> list[torch.Tensor]:
        recipe = self._recipe(plain, rate, len(self._data(plain.data)[0]))
        return _matrices(self._trained(plain, recipe, seed))

    @torch.no_grad()
    def _judge(self, network: nn.Module, test: Records) -> tuple[float, float]:
        outputs = torch.cat([network(part) for part in test.x.split(2000)])
        accuracy = (outputs.argmax(dim=1) == test.y).double().mean()
        return float(accuracy), float(functional.cross_entropy(outputs, test.y))

    def _median_norm(self, cell: Cell, seed: int) -> float:
        records, _ = self._data(cell.data)
        network = self._network(cell.data, cell.network, seed)
        norms = self._layer_norms(network, records, 1.0, 64)
        return float(norms.norm(dim=0).median())

    def _layer_norms(
        self, network: nn.Module, records: Records, scale: float, count: int
    ) -> torch.Tensor:
        """Return the gradient's norm of each layer, (layers, count), the loss times `scale`."""
        y = records.y[:count]

        def loss(outputs: torch.Tensor) -> torch.Tensor:
            return scale * functional.cross_entropy(outputs, y, reduction="none")

        sizes = [
            sum(p.numel() for p in layer.parameters(recurse=False))
            for layer in list_trainable_layers(network)
        ]
        rows = form_gradients(network, records.x[:count], loss)
        return torch.stack([part.norm(dim=1) for part in rows.split(sizes, dim=1)])


def _matrices(network: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in network.parameters() if p.dim() > 1]


def read(full: bool) -> list[Line]:
    """Return the results of one size of the study."""
    return [line for line in stored(RESULTS) if line["full"] == full]


def best_rate(rows: list[Line], cell: Cell) -> float:
    """Return the pilot's best learning rate for a cell: the least of those that are as good."""
    of = asdict(pilot_of(cell))
    tried = [r for r in rows if r["kind"] == "pilot" and all(r[k] == v for k, v in of.items())]
    return max(tried, key=lambda row: (row["accuracy"], -row["rate"]))["rate"]


study_of = lru_cache(maxsize=1)(Study)


def measured(
    given: tuple[argparse.Namespace, dict[tuple[Any, ...], float]], full: bool, kind: str,
    seed: int, **at: Any,
) -> Line:  # fmt: skip
    """Measure one line.

    Args:
        given: The options, and the best rate of a cell that is run, by its values.
        full: Of which size.
        kind: "pilot", "per-layer clip" or "run".
        seed: Of everything random.
        at: The cell, and what else names the line.
    """
    options, best = given
    study = study_of(full, options.device, options.data_root, options.cifar)
    if kind == "per-layer clip":
        return study.unbounded(at["network"], seed, at["scale"])
    if kind == "pilot":
        rate = at.pop("rate")
        return study.measure(Cell(**at), seed, rate, None)
    cell = Cell(**at)
    rate = best[astuple(cell)]
    return {"rate": rate, **study.measure(cell, seed, rate, best[astuple(plain_of(cell))])}


def main() -> None:
    """Run what the results lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--cifar", required=True, help="what benchmarks/prepare.py wrote")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add_workers(parser)
    options = parser.parse_args()
    every, workers, of = cells(options.parts), workers_of(options), {"full": options.full}
    plain = [plain_of(cell) for cell in every]
    pilots = (
        {**of, "kind": "pilot", **asdict(cell), "seed": PILOT_SEED, "rate": rate}
        for cell in map(pilot_of, every + plain)
        for rate in rates(cell)
    )
    measure(RESULTS, pilots, measured, (options, {}), workers=workers)
    rows = read(options.full)
    best = {astuple(cell): best_rate(rows, cell) for cell in every + plain}
    clips = (
        {**of, "kind": "per-layer clip", "network": network, "seed": seed, "scale": scale}
        for seed, network, scale in product(range(options.seeds), NETWORKS, SCALES)
    )
    runs = (
        {**of, "kind": "run", **asdict(cell), "seed": seed}
        for seed, cell in product(range(options.seeds), every)
    )
    measure(RESULTS, [*clips, *runs], measured, (options, best), workers=workers)


if __name__ == "__main__":
    main()
