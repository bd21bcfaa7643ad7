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
command does what the results lack, until its minutes are over: repeat it.

Usage: OMP_NUM_THREADS=1 python benchmarks/features/paper.py table-x --tables DIR [--law ours]
       ... figures breast-cancer | figures adult | dp-sgd | one-hot | library --tables DIR
       ... pool --data-root DIR          --full: the paper's 1000 repetitions
"""

from __future__ import annotations

import argparse
import time
import warnings
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
    Store,
    Table,
    accuracies,
    fit,
    mask_of,
    read,
    summary,
)

from pasearch.accounting.accountants import price
from pasearch.features.cfs import genetic, greedy
from pasearch.features.evolution import Evolution, labels, recalled, unseen
from pasearch.runs.keys import Keys
from pasearch.training.bounding.flat import Flat
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


def table_x(options: argparse.Namespace) -> None:
    """Table X: one line an epsilon, arm and split."""
    table = read(options.tables / "breast-cancer.csv")
    store, repeats = Store("table-x", options.minutes), 1000 if options.full else 200
    for seed in range(options.seeds):
        train_part, test = table.split(seed)
        correlations = table.correlations(train_part)
        generator = np.random.default_rng(seed)
        found = genetic(*correlations, generator=generator)
        size, d = len(found.chosen), len(table.owners)
        sets = {
            "all": np.ones(d, bool),
            "cfs-greedy": mask_of(greedy(*correlations, size).chosen, d),
            "cfs-ga": mask_of(found.chosen, d),
            "random": np.stack(
                [mask_of(generator.permutation(d)[:size], d) for _ in range(repeats)]
            ),
        }
        for epsilon in EPSILONS_X:
            for arm in (*sets, "pafs", "pafs, by training records"):
                key = {"law": options.law, "epsilon": epsilon, "arm": arm, "seed": seed}
                if not store.fresh(**key):
                    continue
                start, more = time.process_time(), {}
                mask = sets.get(arm)
                if mask is None:
                    judges = test if arm == "pafs" else train_part
                    mask, more = pafs(options.law, table, train_part, judges, epsilon, seed)
                masks = np.broadcast_to(mask, (repeats, d))
                weights = fit(options.law, table, train_part, masks, epsilon, (seed, arm))
                more["features"] = int(masks[0].sum())
                taken = round(time.process_time() - start, 1)
                store.add(**key, **summary(accuracies(weights, test)), **more, processor=taken)


def pafs(
    law: str, table: Table, train_part: Part, judges: Part, epsilon: float, seed: int
) -> tuple[Array, dict[str, Any]]:
    """Return the set that PAFS finds, and what it saw: each different set is trained once."""
    evolution = Evolution(population=POPULATION, alpha=PARENTS)
    generator = np.random.default_rng([seed, round(1000 * epsilon)])
    generation, known = evolution.begin(len(table.owners), generator), {}
    for number in range(GENERATIONS):
        if number:
            generation = evolution.tell(generation, recalled(generation.masks, known), generator)
        masks = generation.masks[unseen(generation.masks, known)]
        if len(masks):
            weights = fit(law, table, train_part, masks, epsilon, (seed, "pafs", number))
            scores = accuracies(weights, judges).tolist()
            known.update(zip(labels(masks), scores, strict=True))
    fitness = recalled(generation.masks, known)
    best = int(np.argmax(fitness))
    return generation.masks[best], {"seen": round(float(fitness[best]), 5), "trained": len(known)}


def figures(options: argparse.Namespace) -> None:
    """Figs. 3 and 4: one line an epsilon, size and split."""
    study = FIGURES[options.data]
    table, d = read(options.tables / f"{options.data}.csv"), study["sizes"][-1]
    store = Store("figures", options.minutes)
    for seed in range(options.seeds):
        train_part, test = table.split(seed)
        order = greedy(*table.correlations(train_part)).features
        for epsilon in study["epsilons"]:
            public = epsilon == NO_PRIVACY
            repeats = 1 if public else 1000 if options.full else study["repeats"]
            for size in range(1, d + 1) if options.full else study["sizes"]:
                key = {
                    "data": options.data, "law": options.law, "epsilon": epsilon, "size": size,
                    "seed": seed,
                }  # fmt: skip
                if (public and options.law == "ours") or not store.fresh(**key):
                    continue
                masks = np.broadcast_to(mask_of(order[:size], d), (repeats, d))
                weights = fit(options.law, table, train_part, masks, epsilon, (seed, size))
                store.add(**key, **summary(accuracies(weights, test)))


def one_hot(options: argparse.Namespace) -> None:
    """Table XVI: one line an epsilon, encoding and split."""
    table, store = read(options.tables / "adult.csv"), Store("one-hot", options.minutes)
    names = [item.name for item in table.attributes.items]
    few = np.flatnonzero(np.isin(table.owners, [names.index(name) for name in KEPT]))
    for seed in range(options.seeds):
        for arm, given in (("one-hot", table), ("numbers and sex", table.only(few))):
            train_part, test = given.split(seed)
            for epsilon in EPSILONS_ONE_HOT:
                key = {"law": options.law, "epsilon": epsilon, "arm": arm, "seed": seed}
                public = epsilon == NO_PRIVACY
                if (public and options.law == "ours") or not store.fresh(**key):
                    continue
                repeats = 1 if public else 1000 if options.full else 50
                masks = np.ones((repeats, len(given.owners)), bool)
                weights = fit(options.law, given, train_part, masks, epsilon, (seed, arm))
                store.add(**key, **summary(accuracies(weights, test)), features=masks.shape[1])


def dp_sgd(options: argparse.Namespace) -> None:
    """Tables II and XVIII: one line an epsilon, size and split; epsilon None is SGD."""
    store, keys = Store("dp-sgd", options.minutes), Keys.from_seed(0)
    for data, study in NETWORKS.items():
        table = read(options.tables / f"{data}.csv")
        d, repeats = len(table.owners), 10
        ways = (*study["epsilons"], None)
        for seed in range(options.seeds):
            lacking = [
                key
                for size in study["sizes"] for epsilon in ways
                if store.fresh(
                    **(key := {"data": data, "epsilon": epsilon, "size": size, "seed": seed})
                )
            ]  # fmt: skip
            if not lacking:
                continue
            train_part, test = table.split(seed, TABLE_II)
            order = list(greedy(*table.correlations(train_part), d).features)
            recipes = {e: network_recipe(len(train_part.y), e, study["rate"]) for e in ways}
            found = []
            for each in range(repeats):
                cells = [
                    networks.Cell(
                        size=key["size"], recipe=recipes[key["epsilon"]],
                        weights=keys.stream("weights", data, seed, key["size"], each),
                        noise=keys.stream("noise", *map(repr, key.values()), each),
                    )
                    for key in lacking
                ]  # fmt: skip
                batch = keys.stream("batch", data, seed, each)
                weights = networks.train_all(train_part.x[:, order], train_part.y, cells, batch)
                found.append(networks.accuracies(weights, test.x[:, order], test.y))
            for key, values in zip(lacking, np.transpose(found), strict=True):
                recipe = recipes[key["epsilon"]]
                more = {"sigma": recipe.noise_multiplier, "steps": recipe.steps}
                store.add(**key, **summary(values), **more)


def network_recipe(n: int, epsilon: float | None, rate: float) -> Recipe:
    """Return 40 epochs of DP-SGD in batches of 250 at most, with the least noise for epsilon."""
    batch = min(BATCH, n)
    recipe = Recipe(
        expected_batch_size=batch, steps=EPOCHS * round(n / batch), learning_rate=rate,
        optimizer="sgd", average=None, bounding=None if epsilon is None else Flat(clip_norm=1.0),
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


def pool(options: argparse.Namespace) -> None:
    """Max pooling and PCA on MNIST: whole runs at a sound total, every release charged."""
    from pasearch import Budget
    from pasearch.api.features import select_features

    store = Store("pool", options.minutes)
    for epsilon in (0.1, 0.25, 0.5, 1.0, 2.0) if options.full else (0.1, 0.5, 2.0):
        for arm, way in POOLS.items():
            for seed in range(options.seeds):
                key = {"data": "mnist", "epsilon": epsilon, "arm": arm, "seed": seed}
                if not store.fresh(**key):
                    continue
                start = time.process_time()
                found = select_features(
                    "mnist", budget=Budget(epsilon), data_root=options.data_root, seed=seed,
                    trainer="dpsgd", **way,
                )  # fmt: skip
                taken = round(time.process_time() - start, 1)
                store.add(**key, accuracy=found.test_accuracy, repeats=1, processor=taken)


def library(options: argparse.Namespace) -> None:
    """Compare accuracies of the law "library" with diffprivlib's, all features, one split."""
    from diffprivlib.models import LogisticRegression

    warnings.simplefilter("ignore")  # that it stops at 5,000 steps, or below a tolerance of 0
    table = read(options.tables / "breast-cancer.csv")
    store, (train_part, test) = Store("library", options.minutes), table.split(0)
    d, repeats = len(table.owners), 300
    for epsilon in (0.1, 0.5, 1, 2, 5, 10, 20, 40):
        for arm in ("diffprivlib", "batched"):
            key = {"epsilon": epsilon, "arm": arm, "seed": 0}
            if not store.fresh(**key):
                continue
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
            store.add(**key, **summary(found), milliseconds=each)


ITEMS = {
    "table-x": table_x, "figures": figures, "dp-sgd": dp_sgd, "one-hot": one_hot, "pool": pool,
    "library": library,
}  # fmt: skip


def main() -> None:
    """Run what the results lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("item", choices=ITEMS)
    parser.add_argument("data", nargs="?", choices=FIGURES, default="breast-cancer")
    parser.add_argument("--tables", type=Path, default=Path("data"))
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--law", choices=LAWS, default="library")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--full", action="store_true", help="the paper's number of repetitions")
    options = parser.parse_args()
    ITEMS[options.item](options)


if __name__ == "__main__":
    main()
