"""Bao et al.'s experiments on simple and complex models, one study an item; `table.py` prints them.

    table-iii   Table III, Fig. 5: one task, 10 to 1000 inputs; accuracy and cosine distance to SGD
    fig-6       epsilon to reach 85 % on MNIST against n; fit of eps = ln(alpha + beta / n)
    fig-7       the paper's complex (STW) and simple (PAW) FCN, epsilon .1 to 10^5, three data sets
    fig-8       MNIST: logistic regression, FCN, CNN
    fig-10      MNIST: random weights training against all weights, FCN and CNN (Tables VI and VII)
    table-vi    Tables VI and VII at the paper's length for epsilon .34, by learning rate: FCN
    table-vi-cnn  the same for the CNN: hours
    fig-12      width 4 to 2048 and depth 1 to 12, with and without privacy (Fig. 1)
    table-iv    LeNet-5 against the paper's two CNNs, MNIST, epsilon 1.09
    table-v     with and without principal components
    table-ix    the networks that the paper's random search found
    rates       Fig. 9: learning rates .01, .1 and one for each model
    clipping    C-E: SGD, SGD that clips, and DP-SGD at a very large epsilon

The paper trains 300 or 500 epochs at batch 100. Small (the default): batches of 512 and a few
hundred steps, every model at the same sound price; learning rates follow the noise by one rule
(`tune_learning_rate`), where the paper tunes them by hand. `--full`: batch 100 and 500 epochs, for
a GPU. Principal components and chosen models are not charged, as in the paper. SVHN is absent:
CIFAR-10 (JPEG q75) in grey stands for it.

The records are public: accuracies are exact, on the official test images, and repeats of one number
share nothing between models but records. A command does what the results lack: repeat it.

Usage: python benchmarks/crossover/run.py fig-8 --data-root DIR [--cifar NPZ] [--seeds 5]
       [--workers N] [--minutes M] [--full] [--device cuda]
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pasearch.accounting import calibration
from pasearch.accounting.accountants import price
from pasearch.accounting.budget import Budget
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.data.partitions import Records, SealedArray
from pasearch.data.sources import load_dataset
from pasearch.runs.keys import Keys
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.layers import Conv, Dense, Layer, Pool
from pasearch.training.clipping import FlatClipping
from pasearch.training.recipe import Recipe, tune_learning_rate
from pasearch.training.trainer import start_training

sys.path.append(str(Path(__file__).parents[1]))
import cells

RESULTS = Path(__file__).parent / "results" / "runs.jsonl"
DELTA = 1e-5
MNIST, FASHION, CIFAR = "mnist", "fashion-mnist", "cifar10-grey"
PLAIN, CLIPPED = "sgd", "clipped sgd"
"""Training without privacy, and the same with clipped gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A model as it is trained.

    Args:
        layers: Without the output layer.
        data: Whose records.
        components: How many principal components records become; 0 leaves images.
        rate: Learning rate; None: by the noise.
        steps: Of one training; None: the study's.
        batch: Expected; None: the study's.
        sigma: The noise multiplier, where epsilon does not say it.
        target: Training ends when this accuracy is reached; None: at the last step.
        n: Records, drawn with replacement; 0: all.
        plain: Whether SGD has neither momentum nor averaged weights, as in the paper.
    """

    layers: tuple[Layer, ...]
    data: str = MNIST
    components: int = 0
    rate: float | None = None
    steps: int | None = None
    batch: int | None = None
    sigma: float | None = None
    target: float | None = None
    n: int = 0
    plain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Arms, each at every epsilon and seed.

    Args:
        arms: By name.
        epsilons: Or `PLAIN`, or `CLIPPED`.
        seeds: How many are done by default.
        steps: Of one training.
        batch: Expected.
    """

    arms: dict[str, Arm]
    epsilons: tuple[float | str, ...]
    seeds: int = 5
    steps: int = 300
    batch: int = 512


def dense(*units: int, activation: str = "tanh", frozen: int = 0) -> tuple[Layer, ...]:
    """Return fully connected layers, the first `frozen` of them as drawn."""
    return tuple(
        Dense(units=size, activation=activation, trainable=place >= frozen)
        for place, size in enumerate(units)
    )


def cnn(filters: int, units: int) -> tuple[Layer, ...]:
    """Return Table XII's network of two blocks: 16 and 64 is Table XXVI's."""
    return (
        Pool(size=2), Conv(filters=filters, kernel=5, activation="relu"), Pool(size=2),
        Conv(filters=2 * filters, kernel=3, padding="same", activation="relu"),
        *dense(units, activation="relu"),
    )  # fmt: skip


def table_xxx(frozen: bool) -> tuple[Layer, ...]:
    """Return Table XXX's network, its convolutions as drawn or trained."""
    return (
        Conv(filters=32, kernel=5, activation="relu", trainable=not frozen), Pool(size=2),
        Conv(filters=64, kernel=3, activation="relu", trainable=not frozen), Pool(size=2),
        *dense(64, activation="relu"),
    )  # fmt: skip


LENET = (
    Conv(filters=6, kernel=5, padding="same"), Pool(size=2, average=True),
    Conv(filters=16, kernel=5), Pool(size=2, average=True), *dense(120, 84),
)  # fmt: skip

PAIRS = {
    MNIST: (dense(512, 64), dense(128)), FASHION: (dense(512), dense(128)),
    CIFAR: (dense(2048), dense(64)),
}  # fmt: skip
"""Table I's complex and simple FCN."""
COMPONENTS = {MNIST: 64, FASHION: 64, CIFAR: 300}
"""Of how many principal components they are."""

FIG_10 = {
    "fcn": Arm(layers=dense(1024, 512, 64)), "fcn rwt": Arm(layers=dense(1024, 512, 64, frozen=2)),
    "simple fcn": Arm(layers=dense(512, 64)),
    "cnn": Arm(layers=table_xxx(frozen=False), steps=120, batch=256),
    "cnn rwt": Arm(layers=table_xxx(frozen=True), steps=120, batch=256),
}  # fmt: skip


def at_paper_rates(*names: str) -> dict[str, Arm]:
    """Return arms of Fig. 10 at the length, batch and noise of Tables VI and VII for epsilon .34.

    10,400 steps of 100 at a noise multiplier of 2 cost .341, as printed; the paper names no rate.
    """
    return {
        f"{name}, rate {rate}": replace(
            FIG_10[name], steps=10_400, batch=100, sigma=2.0, rate=rate, plain=True
        )
        for name in names for rate in (0.03, 0.1, 0.2)
    }  # fmt: skip


STUDIES = {
    "fig-6": Study(
        arms={
            f"{name}, n {n}": Arm(
                layers=layers, n=n, sigma=2.0, batch=250, target=0.85, steps=3000, rate=rate
            )
            for name, layers, rate in (("simple", dense(128), 0.5), ("complex",
                                       dense(2048, 256, 64), 0.5))
            for n in (10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)
        },
        epsilons=("sigma 2",), seeds=5,
    ),
    "fig-7": Study(
        arms={
            f"{data}, {name}": Arm(layers=layers, data=data, components=COMPONENTS[data])
            for data, pair in PAIRS.items()
            for name, layers in zip(("complex", "simple"), pair, strict=True)
        },
        epsilons=(0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, PLAIN), steps=600,
    ),
    "fig-8": Study(
        arms={
            "logistic regression": Arm(layers=()), "fcn": Arm(layers=dense(64)),
            "cnn": Arm(layers=cnn(16, 64)),
        },
        epsilons=(0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, PLAIN), steps=480, seeds=10,
    ),
    "fig-10": Study(
        arms=FIG_10, epsilons=(0.02, 0.05, 0.1, 0.34, 0.6, 1.0, 2.11, 6.0), steps=120, seeds=4,
    ),
    "table-vi": Study(
        arms=at_paper_rates("fcn", "fcn rwt", "simple fcn"), epsilons=("sigma 2",), seeds=5,
    ),
    "table-vi-cnn": Study(
        arms=at_paper_rates("cnn", "cnn rwt"), epsilons=("sigma 2",), seeds=5,
    ),
    "fig-12": Study(
        arms={
            **{f"width {w}": Arm(layers=dense(w), data=CIFAR)
               for w in (4, 16, 64, 256, 512, 1024, 2048)},
            **{f"depth {d}": Arm(layers=dense(*[128] * d), data=CIFAR)
               for d in (1, 2, 3, 5, 8, 12)},
        },
        epsilons=(2.58, PLAIN), seeds=3,
    ),
    "table-iv": Study(
        arms={
            "complex": Arm(layers=cnn(48, 64)), "simple": Arm(layers=cnn(16, 64)),
            "LeNet-5": Arm(layers=LENET),
        },
        epsilons=(1.09, PLAIN), seeds=3, steps=240, batch=256,
    ),
    "table-v": Study(
        arms={
            f"{'pca 300' if k else 'images'}, {name}": Arm(layers=layers, data=CIFAR, components=k)
            for k in (300, 0) for name, layers in (("complex", dense(512, 128)),
                                                   ("simple", dense(64)))
        },
        epsilons=(2.58, PLAIN), seeds=5, steps=600,
    ),
    "table-ix": Study(
        arms={
            "complex, third layer frozen": Arm(
                layers=(*dense(2048, 256), Dense(units=64, activation="tanh", trainable=False)),
                components=64,
            ),
            "simple": Arm(layers=dense(128), components=64),
            "wide, frozen": Arm(layers=dense(1024, frozen=1), components=64),
        },
        epsilons=(0.34, 2.11, PLAIN), seeds=5,
    ),
    "rates": Study(
        arms={
            f"{name}, rate {rate or 'by the noise'}": Arm(
                layers=PAIRS[CIFAR][place], data=CIFAR, components=300, rate=rate
            )
            for place, name in enumerate(("complex", "simple"))
            for rate in (0.01, 0.1, None)
        },
        epsilons=(0.5, 2.58, 10.0),
    ),
    "clipping": Study(
        arms={"simple": Arm(layers=dense(64), data=CIFAR, components=300, steps=1000),
              "simple, rate 2": Arm(layers=dense(64), data=CIFAR, components=300, steps=1000,
                                    rate=2.0)},
        epsilons=(PLAIN, CLIPPED, 1e5),
    ),
}  # fmt: skip


@lru_cache(maxsize=1)
def images(data: str, root: str, cifar: str) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return images in [0, 1], labels, and how many of the last are the test's."""
    if data == CIFAR:
        with np.load(cifar) as file:
            grey = file["x"].astype(np.float32).mean(axis=1, keepdims=True) / 255.0
            return torch.from_numpy(grey), torch.from_numpy(file["y"]), 10_000
    found = load_dataset(data, data_root=root, public=True)
    x, y = (np.asarray(SealedArray(each)._array) for each in (found.features, found.labels))
    made = torch.from_numpy(x.astype(np.float32) / 255.0)
    made = made if made.ndim == 4 else made[:, None]
    return made, torch.from_numpy(y.astype(np.int64)), 10_000


@lru_cache(maxsize=2)
def records(arm: Arm, root: str, cifar: str) -> tuple[Records, Records]:
    """Return the arm's training and test records."""
    x, y, held = images(arm.data, root, cifar)
    if arm.components:
        valid = torch.ones(len(x), dtype=torch.bool)
        fitted = parse_front_end(f"pca:{arm.components}").fit(
            x[:-held], valid[:-held], None, Keys.from_seed(0).stream("pca")
        )
        with torch.no_grad():
            x = torch.cat([fitted.module(part) for part in x.split(4096)])
    elif all(isinstance(each, Dense) for each in arm.layers):
        x = x.flatten(1)
    made = [
        Records(x=a, y=b, valid=torch.ones(len(b), dtype=torch.bool), public=True)
        for a, b in ((x[:-held], y[:-held]), (x[-held:], y[-held:]))
    ]
    return made[0], made[1]


@torch.no_grad()
def accuracy(network: nn.Module, own: Records, most: int = 10_000) -> float:
    """Return the share of right answers on the first records."""
    network.eval()
    right = [
        (network(x).argmax(dim=1) == y).sum()
        for x, y in zip(own.x[:most].split(2048), own.y[:most].split(2048), strict=True)
    ]
    network.train()
    return float(sum(right)) / min(most, len(own.y))


@lru_cache(maxsize=512)
def noise_of(epsilon: float, n: int, batch: int, steps: int) -> float:
    """Return the least noise multiplier of a training that costs at most epsilon."""
    recipe = Recipe(expected_batch_size=batch, steps=steps, noise_multiplier=1.0)
    return calibration.calibrate_min(
        lambda sigma: replace(recipe, noise_multiplier=sigma).event(n), Budget(epsilon, DELTA),
        1e-3, 1e5,
    )  # fmt: skip


def recipe_of(study: Study, arm: Arm, epsilon: float | str, n: int) -> tuple[Recipe, float]:
    """Return how an arm is trained, and the rate for 128 tanh units."""
    batch, steps = arm.batch or study.batch, arm.steps or study.steps
    recipe = Recipe(
        expected_batch_size=batch, steps=steps, average=None if arm.target else 0.1,
        bounding=None if epsilon == PLAIN else FlatClipping(clip_norm=1.0),
    )  # fmt: skip
    if arm.plain:
        recipe = replace(recipe, optimizer="sgd", average=None)
    if arm.sigma is not None:
        recipe = recipe.with_noise(arm.sigma)
    elif isinstance(epsilon, float):
        recipe = recipe.with_noise(noise_of(epsilon, n, batch, steps))
    if arm.rate is not None:
        return recipe, arm.rate
    if recipe.noise_multiplier is None:
        return recipe, 0.5 if epsilon == PLAIN else 4.0
    mu = batch / n * math.sqrt(steps * math.expm1(min(700.0, recipe.noise_multiplier**-2)))
    return recipe, tune_learning_rate(recipe, min(mu, 40.0), n)


def measured(
    options: argparse.Namespace, study: str, arm: str, epsilon: float | str, seed: int, full: bool
) -> dict[str, Any]:
    """Train one arm; return its accuracy and what it cost."""
    return trained(study_of(study, full), arm, epsilon, seed, options)


def trained(
    study: Study, arm_name: str, epsilon: float | str, seed: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the accuracy of an arm of a study."""
    arm = study.arms[arm_name]
    own, held = records(replace(arm, rate=None, target=None, n=0, sigma=None, plain=False),
                        str(options.data_root), str(options.cifar))  # fmt: skip
    n = arm.n or len(own)
    if arm.n:
        own = own.take(np.random.default_rng(seed).integers(len(own), size=n))
    keys = Keys.from_seed(seed)
    recipe, rate = recipe_of(study, arm, epsilon, n)
    architecture = Architecture(layers=arm.layers)
    factor = architecture.learning_rate_factor() if arm.rate is None else 1.0
    recipe = replace(recipe, learning_rate=min(rate * factor, 10.0))
    start = time.perf_counter()
    network = architecture.build(
        tuple(own.x.shape[1:]), 10, keys.stream("weights", arm_name).generator()
    )
    streams = {p: keys.stream(p, arm_name, str(epsilon)) for p in ("batch", "noise", "dropout")}
    training = start_training(network, own, recipe, streams, device=options.device)
    done = 0
    for done in range(1, recipe.steps + 1):
        training.step()
        if (
            arm.target is not None
            and done % 10 == 0
            and (accuracy(network, held, 2000) >= arm.target)
        ):
            break
    training.finish()
    test = accuracy(network, held)
    row = {
        "test": round(test, 4),
        "parameters": sum(p.numel() for p in network.parameters()),
        "trainable": sum(p.numel() for p in network.parameters() if p.requires_grad),
        "n": n, "steps": done, "batch": recipe.expected_batch_size,
        "sigma": recipe.noise_multiplier, "rate": recipe.learning_rate,
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    if arm.sigma is not None:
        row["spent"] = round(price(replace(recipe, steps=done).event(n), DELTA).epsilon, 4)
    if arm.target is not None:
        row["reached"] = test >= arm.target - 0.01
    return row


def study_of(name: str, full: bool) -> Study:
    """Return a study: small, or at the paper's own length."""
    study = STUDIES[name]
    if not full:
        return study
    arms = {k: replace(arm, batch=100, steps=300_000) for k, arm in study.arms.items()}
    return replace(study, arms=arms)


def main() -> None:
    """Run what the results lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=[*STUDIES, "table-iii"])
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--cifar", default="cifar10-jpeg-q75.npz")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--full", action="store_true")
    cells.add_workers(parser)
    options = parser.parse_args()
    if options.study == "table-iii":
        import inputs

        inputs.main(options, RESULTS)
        return
    study = study_of(options.study, options.full)
    asked = (
        {"study": options.study, "arm": arm, "epsilon": epsilon, "seed": seed,
         "full": options.full}
        for seed, epsilon, arm in product(
            range(options.seeds or study.seeds), study.epsilons, study.arms
        )
    )  # fmt: skip
    cells.measure(
        RESULTS, asked, measured, options, workers=cells.workers_of(options),
        minutes=options.minutes, lines=[{"full": False} | line for line in cells.stored(RESULTS)],
    )  # fmt: skip


if __name__ == "__main__":
    main()
