"""Bao et al.'s experiments on choosing features, one subcommand an item; `table.py` prints them.

    table-x     Table X: All, PAFS, CFS-Greedy, CFS-GA and Random on Breast Cancer, 13 epsilons
    figures     Figs. 3 and 4, and the crossovers of VI-C: the best set of each size by CFS-Greedy
    dp-sgd      Tables II and XVIII (captions swapped): a network of two units by DP-SGD
    one-hot     Table XVI: Adult with its categories, or with its numbers and sex alone
    pool        max pooling and principal components on MNIST, by `pasearch features`
    library     the law "library" of `setting` against diffprivlib itself

As in the paper, merits and PAFS's search are NOT charged, and epsilon is that of the last fit. PAFS
trains 600 sets a generation, ten generations, each different set once, and takes the fittest of the
last generation: by its accuracy on the *test* records as in the paper ("pafs"), or on the training
records ("pafs, by training records"). Random draws a set of CFS-GA's size for every repetition.

Every cell is the mean of so many repetitions of the noise, for each of a few splits (seeds). A
command does what the results lack, side by side (`--workers`), until its minutes are over: repeat
it. `dp-sgd` trains the networks of a split together, `library` is also timed: one by one.

Usage: python benchmarks/features/paper.py table-x --tables DIR [--law ours]
       ... figures breast-cancer | figures adult | dp-sgd | one-hot | library --tables DIR
       ... pool --data-root DIR          --full: the paper's 1000 repetitions
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import networks
import numpy as np
from setting import (
    LAWS,
    NO_PRIVACY,
    NUMBERS,
    Array,
    Part,
    Table,
    accuracies,
    cells,
    fit,
    mask_of,
    path_of,
    read,
    summary,
)

from pasearch.accounting.accountants import price
from pasearch.features.cfs import cfs_genetic, cfs_greedy
from pasearch.features.evolution import Evolution, find_unseen, label_masks, look_up_fitness
from pasearch.runs.keys import Keys
from pasearch.training.clipping import FlatClipping
from pasearch.training.recipe import Recipe

EPSILONS_X = (0.01, 0.1, 0.5, 1, 1.5, 2, 5, 10, 20, 25, 30, 35, 40)
POPULATION, GENERATIONS, PARENTS = 600, 10, 0.3
FIGURES: dict[str, dict[str, Any]] = {
    "breast-cancer": {
        "epsilons": (0.5, 1, 2, 5, 10, 20, 50, 60, 70, 100, NO_PRIVACY),
        "sizes": (1, 2, 3, 4, 5, 7, 9, 11, 13, 15, 20, 25, 30, 35, 40, 43),
        "repeats": 100,
    },
    "adult": {
        "epsilons": (0.1, 0.5, 1, 2, 5, 10, 20, 50, NO_PRIVACY),
        "sizes": (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 40, 60, 80, 108),
        "repeats": 10,
    },
}
NETWORKS: dict[str, dict[str, Any]] = {
    "breast-cancer": {"epsilons": (0.236, 0.014), "sizes": (2, 10, 20, 30, 40, 43), "rate": 0.5},
    "adult": {"epsilons": (0.0196, 0.00817), "sizes": (2, 28, 48, 68, 88, 108), "rate": 0.5},
}
DELTA, EPOCHS, BATCH = 1e-5, 40, 250
TABLE_II = 62
"""Test records of Breast Cancer without recurrence: its 65.26 % is 62 / 95."""
EPSILONS_ONE_HOT = (0.0001, 0.001, 0.01, 0.05, 0.1, NO_PRIVACY)
KEPT = (*NUMBERS["adult"][1:], "sex")
"""What Table XVI keeps without one-hot encoding: numbers but fnlwgt, and sex as two."""


@lru_cache(maxsize=1)
def split_of(path: Path, seed: int) -> tuple[Table, Part, Part]:
    """Return a table, and its records to train on and to test on; the last one stays in memory."""
    table = read(path)
    return table, *table.split(seed)


def table_x(options: argparse.Namespace) -> Iterator[cells.Line]:
    """Table X: one line an epsilon, arm and split."""
    arms = ("all", "cfs-greedy", "cfs-ga", "random", "pafs", "pafs, by training records")
    for seed, epsilon, arm in product(range(options.seeds), EPSILONS_X, arms):
        yield {"law": options.law, "epsilon": epsilon, "arm": arm, "seed": seed}


@lru_cache(maxsize=1)
def sets_of(path: Path, seed: int, repeats: int) -> dict[str, Array]:
    """Return the sets that an arm trains on, where they are the same at every epsilon."""
    table, train_part, _ = split_of(path, seed)
    correlations = table.correlations(train_part)
    generator = np.random.default_rng(seed)
    found = cfs_genetic(*correlations, generator=generator)
    size, d = len(found.selected), len(table.owners)
    return {
        "all": np.ones(d, bool),
        "cfs-greedy": mask_of(cfs_greedy(*correlations, size).selected, d),
        "cfs-ga": mask_of(found.selected, d),
        "random": np.stack([mask_of(generator.permutation(d)[:size], d) for _ in range(repeats)]),
    }


def of_table_x(
    options: argparse.Namespace, law: str, epsilon: float, arm: str, seed: int
) -> cells.Line:
    """Measure one line of Table X."""
    repeats, path = 1000 if options.full else 200, options.tables / "breast-cancer.csv"
    table, train_part, test = split_of(path, seed)
    mask = sets_of(path, seed, repeats).get(arm)
    start, more = time.process_time(), {}
    if mask is None:
        judges = test if arm == "pafs" else train_part
        mask, more = pafs(law, table, train_part, judges, epsilon, seed)
    masks = np.broadcast_to(mask, (repeats, len(table.owners)))
    weights = fit(law, table, train_part, masks, epsilon, (seed, arm))
    more["features"] = int(masks[0].sum())
    taken = round(time.process_time() - start, 1)
    return {**summary(accuracies(weights, test)), **more, "processor": taken}


def pafs(
    law: str, table: Table, train_part: Part, judges: Part, epsilon: float, seed: int
) -> tuple[Array, dict[str, Any]]:
    """Return the set that PAFS finds, and what it saw: each different set is trained once."""
    evolution = Evolution(population=POPULATION, alpha=PARENTS)
    generator = np.random.default_rng([seed, round(1000 * epsilon)])
    generation, known = evolution.first_generation(len(table.owners), generator), {}
    for number in range(GENERATIONS):
        if number:
            generation = evolution.tell(
                generation, look_up_fitness(generation.masks, known), generator
            )
        masks = generation.masks[find_unseen(generation.masks, known)]
        if len(masks):
            weights = fit(law, table, train_part, masks, epsilon, (seed, "pafs", number))
            scores = accuracies(weights, judges).tolist()
            known.update(zip(label_masks(masks), scores, strict=True))
    fitness = look_up_fitness(generation.masks, known)
    best = int(np.argmax(fitness))
    return generation.masks[best], {"seen": round(float(fitness[best]), 5), "trained": len(known)}


def figures(options: argparse.Namespace) -> Iterator[cells.Line]:
    """Figs. 3 and 4: one line an epsilon, size and split."""
    study = FIGURES[options.data]
    sizes = range(1, study["sizes"][-1] + 1) if options.full else study["sizes"]
    for seed, epsilon, size in product(range(options.seeds), study["epsilons"], sizes):
        if epsilon != NO_PRIVACY or options.law != "ours":
            yield {
                "data": options.data, "law": options.law, "epsilon": epsilon, "size": size,
                "seed": seed,
            }  # fmt: skip


@lru_cache(maxsize=1)
def order_of(path: Path, seed: int) -> tuple[int, ...]:
    """Return the features in the order of CFS-Greedy."""
    table, train_part, _ = split_of(path, seed)
    return tuple(cfs_greedy(*table.correlations(train_part)).features)


def of_figures(
    options: argparse.Namespace, data: str, law: str, epsilon: float, size: int, seed: int
) -> cells.Line:
    """Measure one point of Figs. 3 and 4."""
    path, repeats = options.tables / f"{data}.csv", FIGURES[data]["repeats"]
    if epsilon == NO_PRIVACY or options.full:
        repeats = 1 if epsilon == NO_PRIVACY else 1000
    table, train_part, test = split_of(path, seed)
    d = len(table.owners)
    masks = np.broadcast_to(mask_of(order_of(path, seed)[:size], d), (repeats, d))
    return summary(accuracies(fit(law, table, train_part, masks, epsilon, (seed, size)), test))


def one_hot(options: argparse.Namespace) -> Iterator[cells.Line]:
    """Table XVI: one line an epsilon, encoding and split."""
    arms = ("one-hot", "numbers and sex")
    for seed, arm, epsilon in product(range(options.seeds), arms, EPSILONS_ONE_HOT):
        if epsilon != NO_PRIVACY or options.law != "ours":
            yield {"law": options.law, "epsilon": epsilon, "arm": arm, "seed": seed}


def of_one_hot(
    options: argparse.Namespace, law: str, epsilon: float, arm: str, seed: int
) -> cells.Line:
    """Measure one line of Table XVI."""
    table, _, _ = split_of(options.tables / "adult.csv", seed)
    names = [item.name for item in table.attributes.items]
    few = np.flatnonzero(np.isin(table.owners, [names.index(name) for name in KEPT]))
    given = table if arm == "one-hot" else table.only(few)
    train_part, test = given.split(seed)
    repeats = 1 if epsilon == NO_PRIVACY else 1000 if options.full else 50
    masks = np.ones((repeats, len(given.owners)), bool)
    weights = fit(law, given, train_part, masks, epsilon, (seed, arm))
    return {**summary(accuracies(weights, test)), "features": masks.shape[1]}


def dp_sgd(options: argparse.Namespace) -> None:
    """Tables II and XVIII: one line an epsilon, size and split; epsilon None is SGD."""
    keys, end = Keys.from_seed(0), time.monotonic() + 60 * options.minutes
    for data, study in NETWORKS.items():
        table = read(options.tables / f"{data}.csv")
        d, repeats = len(table.owners), 10
        ways = (*study["epsilons"], None)
        for seed in range(options.seeds):
            every = (
                {"data": data, "epsilon": epsilon, "size": size, "seed": seed}
                for size in study["sizes"] for epsilon in ways
            )  # fmt: skip
            lacking = cells.open_cells(every, cells.stored(path_of("dp-sgd")))
            if not lacking or time.monotonic() > end:
                continue
            train_part, test = table.split(seed, TABLE_II)
            order = list(cfs_greedy(*table.correlations(train_part), d).features)
            recipes = {e: network_recipe(len(train_part.y), e, study["rate"]) for e in ways}
            found = []
            for each in range(repeats):
                made = [
                    networks.Cell(
                        size=key["size"], recipe=recipes[key["epsilon"]],
                        weights=keys.stream("weights", data, seed, key["size"], each),
                        noise=keys.stream("noise", *map(repr, key.values()), each),
                    )
                    for key in lacking
                ]  # fmt: skip
                batch = keys.stream("batch", data, seed, each)
                weights = networks.train_all(train_part.x[:, order], train_part.y, made, batch)
                found.append(networks.accuracies(weights, test.x[:, order], test.y))
            for key, values in zip(lacking, np.transpose(found), strict=True):
                recipe = recipes[key["epsilon"]]
                more = {"sigma": recipe.noise_multiplier, "steps": recipe.steps}
                line = key | summary(values) | more | {"date": date.today().isoformat()}
                cells.store(path_of("dp-sgd"), line)


def network_recipe(n: int, epsilon: float | None, rate: float) -> Recipe:
    """Return 40 epochs of DP-SGD in batches of 250 at most, with the least noise for epsilon."""
    batch = min(BATCH, n)
    recipe = Recipe(
        expected_batch_size=batch, steps=EPOCHS * round(n / batch), learning_rate=rate,
        optimizer="sgd", average=None,
        bounding=None if epsilon is None else FlatClipping(clip_norm=1.0),
    )  # fmt: skip
    if epsilon is None:
        return recipe
    low, high = 0.3, 1e6
    for _ in range(40):
        middle = (low * high) ** 0.5
        spent = price(recipe.with_noise(middle).event(n), DELTA).epsilon
        low, high = (middle, high) if spent > epsilon else (low, middle)
        if high / low < 1.001:
            break
    return recipe.with_noise(high)


POOLS: dict[str, dict[str, Any]] = {
    "all, 784": {"method": "all"},
    "max-pool 2, 196": {"method": "max-pool", "pool": 2},
    "max-pool 4, 49": {"method": "max-pool", "pool": 4},
    "pca 16": {"method": "pca", "k": 16},
    "pca 64": {"method": "pca", "k": 64},
    "pca 256": {"method": "pca", "k": 256},
}


def pool(options: argparse.Namespace) -> Iterator[cells.Line]:
    """Max pooling and PCA on MNIST: whole runs at a sound total, every release charged."""
    epsilons = (0.1, 0.25, 0.5, 1.0, 2.0) if options.full else (0.1, 0.5, 2.0)
    for epsilon, arm, seed in product(epsilons, POOLS, range(options.seeds)):
        yield {"data": "mnist", "epsilon": epsilon, "arm": arm, "seed": seed}


def of_pool(
    options: argparse.Namespace, data: str, epsilon: float, arm: str, seed: int
) -> cells.Line:
    """Measure one run on MNIST."""
    from pasearch import Budget
    from pasearch.api.features import select_features

    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found = select_features(
            data, budget=Budget(epsilon), data_root=options.data_root, seed=seed, trainer="dpsgd",
            out=f"{folder}/run", **POOLS[arm],
            force=True,  # at every epsilon of the study
        )  # fmt: skip
    taken = round(time.process_time() - start, 1)
    return {"accuracy": found.test_accuracy, "repeats": 1, "processor": taken}


def library(options: argparse.Namespace) -> Iterator[cells.Line]:
    """Compare accuracies of the law "library" with diffprivlib's, all features, one split."""
    for epsilon, arm in product((0.1, 0.5, 1, 2, 5, 10, 20, 40), ("diffprivlib", "batched")):
        yield {"epsilon": epsilon, "arm": arm, "seed": 0}


def of_library(options: argparse.Namespace, epsilon: float, arm: str, seed: int) -> cells.Line:
    """Measure one of both, and its time."""
    from diffprivlib.models import LogisticRegression

    warnings.simplefilter("ignore")  # that it stops at 5,000 steps, or below a tolerance of 0
    table, train_part, test = split_of(options.tables / "breast-cancer.csv", seed)
    d, repeats = len(table.owners), 300
    start = time.process_time()
    if arm == "batched":
        masks = np.ones((repeats, d), bool)
        found = accuracies(fit("library", table, train_part, masks, epsilon, (arm,)), test)
    else:
        found = np.array([
            LogisticRegression(
                epsilon=epsilon, data_norm=3.0, max_iter=5000, tol=1e-50, random_state=each
            ).fit(train_part.x, train_part.y).score(test.x, test.y)
            for each in range(repeats)
        ])  # fmt: skip
    each = round(1e3 * (time.process_time() - start) / repeats, 3)
    return {**summary(found), "milliseconds": each}


ITEMS: dict[str, tuple[Callable[..., Iterator[cells.Line]], Callable[..., cells.Line]]] = {
    "table-x": (table_x, of_table_x), "figures": (figures, of_figures),
    "one-hot": (one_hot, of_one_hot), "pool": (pool, of_pool), "library": (library, of_library),
}  # fmt: skip
"""Which cells an item has, and what measures one."""


def main() -> None:
    """Run what the results lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("item", choices=[*ITEMS, "dp-sgd"])
    parser.add_argument("data", nargs="?", choices=FIGURES, default="breast-cancer")
    parser.add_argument("--tables", type=Path, default=Path("data"))
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--law", choices=LAWS, default="library")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--full", action="store_true", help="the paper's number of repetitions")
    cells.add_workers(parser)
    options = parser.parse_args()
    if options.item == "dp-sgd":
        dp_sgd(options)
        return
    asked, by = ITEMS[options.item]
    cells.measure(
        path_of(options.item), asked(options), by, options, minutes=options.minutes,
        workers=1 if options.item == "library" else cells.workers_of(options),
    )  # fmt: skip


if __name__ == "__main__":
    main()
