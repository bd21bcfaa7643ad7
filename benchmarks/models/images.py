"""Images: what the default trains, and public backbones made here.

    python benchmarks/models/images.py --data-root DIR --cifar FILE.npz --cache DIR [--seeds 3]
    python benchmarks/models/images.py ... --transfer [--seeds 5]
    python benchmarks/models/images.py --print

The first trains `search_architecture(strategy="fixed")` on all training images, at totals 1 and 3.
`--transfer` takes a data set's first 5,000 training images at total 1, and trains a linear model on

    whitened     whitened scattering coefficients: nothing but made-up images
    backbone     what `pretrain` made of another data set's training images (`--epochs`)
    untrained    the same backbone at its random start

Accuracy on the data set's own 10,000 test images, exact; the whole total pays for everything read,
the noisy test score included. A line an arm, data set, epsilon and seed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pasearch import Budget, pretrain, search_architecture, train
from pasearch.data.backbones import build_backbone_module
from pasearch.data.sources import load_dataset

sys.path.append(str(Path(__file__).parents[1]))
import cells

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "images.jsonl"
NAMES = ("mnist", "fashion-mnist", "cifar10-jpeg-q75")
PAIRS = (
    ("fashion-mnist", "mnist"),
    ("cifar10-jpeg-q75", "mnist"),
    ("cifar10-jpeg-q75", "fashion-mnist"),
    ("mnist", "fashion-mnist"),
    ("fashion-mnist", "cifar10-jpeg-q75"),
)
FEW, TEST = 5000, 10_000


def given(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Return a data set as the API takes it."""
    if name == "cifar10-jpeg-q75":
        return {"data": str(asked.cifar)}
    return {"data": name, "data_root": asked.data_root}


def arrays(name: str, asked: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return all images and classes of a data set, which is public."""
    found: list[np.ndarray] = []
    values = given(name, asked)
    dataset = load_dataset(values.pop("data"), **values, public=True)
    dataset.completed(lambda schema, x, y: (found.extend((x, y)), schema)[1])
    return found[0], found[1]


def whole(name: str, epsilon: float, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Return what the default reaches on all images."""
    x, y = arrays(name, asked)
    with tempfile.TemporaryDirectory() as temporary:
        start = time.perf_counter()
        result = search_architecture(
            **given(name, asked), strategy="fixed", seed=seed, budget=Budget(epsilon, 1e-5),
            out=Path(temporary) / "run", device="cpu", cache=asked.cache,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        right = float(np.mean(result.predict(x[-TEST:]) == y[-TEST:]))
    return {"accuracy": right, "minutes": seconds / 60, "network": result.best.describe_network()}


def few(
    source: str, target: str, arm: str, seed: int, asked: argparse.Namespace
) -> dict[str, float]:
    """Return what a linear model reaches on a data set's first images, behind a front end."""
    x, y = arrays(target, asked)
    kept = np.r_[:FEW, len(x) - TEST : len(x)]
    front: Any = "whitened_centred"
    if arm != "whitened":
        front = {"weights": str(backbone(source, arm, asked)), "module": "small"}
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary)
        np.savez(path / "few.npz", x=x[kept], y=y[kept], classes=10, official_test=TEST)
        result = train(
            str(path / "few.npz"), architecture={"front_end": front, "layers": []}, seed=seed,
            recipe="full-batches", budget=Budget(1.0, 1e-5), out=path / "run", device="cpu",
        )  # fmt: skip
        return {"accuracy": float(np.mean(result.predict(x[-TEST:]) == y[-TEST:]))}


def backbone(source: str, arm: str, asked: argparse.Namespace) -> Path:
    """Return the weights of a backbone made of a data set, or of its random start."""
    path = asked.cache / f"{source if arm == 'backbone' else 'untrained'}-{asked.epochs}.pt"
    if arm == "untrained" and not path.exists():
        torch.manual_seed(0)
        torch.save(build_backbone_module("small").state_dict(), path)
    if not path.exists():
        values = given(source, asked)
        made = pretrain(values.pop("data"), **values, out=path, epochs=asked.epochs, device="cpu")
        print(f"{source}: accuracy {made.accuracy:.3f}", flush=True)
    return path


def measured(
    asked: argparse.Namespace, data: str, arm: str, seed: int, **job: Any
) -> dict[str, Any]:
    """Return what a measurement reaches."""
    if "few" in job:
        found = few(job.get("source", ""), data, arm, seed, asked)
    else:
        found = whole(data, job["epsilon"], seed, asked)
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}


def jobs(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Return what identifies each measurement that is asked for."""
    for seed in range(1, asked.seeds + 1):
        if not asked.transfer:
            for name in NAMES:
                for epsilon in (1.0, 3.0):
                    yield {"data": name, "arm": "fixed", "epsilon": epsilon, "seed": seed}
            continue
        for target in dict.fromkeys(target for _, target in PAIRS):
            yield {"data": target, "arm": "whitened", "few": FEW, "seed": seed}
            yield {"data": target, "arm": "untrained", "few": FEW, "seed": seed}
        for source, target in PAIRS:
            own = {"source": source, "few": FEW, "seed": seed, "epochs": asked.epochs}
            yield {"data": target, "arm": "backbone", **own}


def show() -> None:
    """Print medians over seeds with their range."""
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in cells.stored(RESULTS):
        what = (
            f"backbone of {row['source']}, {row['epochs']} epochs"
            if "source" in row
            else row["arm"]
        )
        key = row["data"], what, row.get("few", "all"), row.get("epsilon", 1.0)
        rows.setdefault(key, []).append(row)
    print(
        "| images | records | epsilon | front end | seeds | accuracy |\n|---|---|---|---|---|---|"
    )
    for (data, what, records, epsilon), found in sorted(rows.items(), key=str):
        right = [row["accuracy"] for row in found]
        span = f"{statistics.median(right):.3f} ({min(right):.3f}, {max(right):.3f})"
        print(f"| {data} | {records} | {epsilon:g} | {what} | {len(right)} | {span} |")


def main() -> None:
    """Run what is asked for and not there, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path, help="torchvision's folder")
    parser.add_argument("--cifar", type=Path, help="what benchmarks/prepare.py made")
    parser.add_argument("--cache", type=Path, help="a folder for transformed images and weights")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--transfer", action="store_true")
    parser.add_argument("--epochs", type=int, default=2, help="of a backbone's training")
    parser.add_argument("--print", action="store_true", dest="only_print")
    cells.add_workers(parser)
    asked = parser.parse_args()
    if asked.only_print:
        show()
        return
    if asked.transfer:  # before: what several cells read is made once
        for source in dict.fromkeys(source for source, _ in PAIRS):
            backbone(source, "backbone", asked)
        backbone("", "untrained", asked)
    cells.measure(RESULTS, jobs(asked), measured, asked, workers=cells.workers_of(asked))


if __name__ == "__main__":
    main()
