"""What privacy costs in time: one DP step against plain SGD and against Opacus with hooks.

A network 784 - 300 - 128 - 10 with tanh, 60,000 made-up records, batches of 2048. Every way takes
the whole step with the same optimizer, SGD: gather the batch, forward, backward, update. Ours adds
the draw of the Poisson batch, norms, clipped sums and noise (drawn in a thread beside); `default`
is ours with what the default recipe has more: momentum and the average of the weights.

The ways take turns inside every round, so what else the machine does meets all of them alike; a
round's ratio compares neighbours in time. Usage: python benchmarks/dp_step/run.py --threads 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from pasearch.runs.keys import Keys
from pasearch.training.bounding.flat import Flat
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import Training

RECORDS, FEATURES, CLASSES = 60_000, 784, 10
Step = Callable[[], object]


def network() -> nn.Module:
    """Return the studied network, always with the same weights."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(FEATURES, 300), nn.Tanh(), nn.Linear(300, 128), nn.Tanh(), nn.Linear(128, CLASSES)
    )


def our_step(records: SimpleNamespace, batch: int, device: str, *, secure: bool = False) -> Step:
    """Return the library's step with plain SGD."""
    return _library_step(records, batch, device, secure=secure, optimizer="sgd", average=None)


def default_step(records: SimpleNamespace, batch: int, device: str) -> Step:
    """Return the library's step as the default recipe has it: momentum, averaged weights."""
    return _library_step(records, batch, device)


def made_up_records(device: str = "cpu") -> SimpleNamespace:
    """Return the studied records."""
    return SimpleNamespace(
        x=torch.rand(RECORDS, FEATURES, device=device),
        y=torch.randint(CLASSES, (RECORDS,), device=device),
        valid=torch.ones(RECORDS, dtype=torch.bool, device=device),
        public=False,
    )


def _library_step(
    records: SimpleNamespace, batch: int, device: str, *, secure: bool = False, **settings: Any
) -> Step:
    recipe = Recipe(
        expected_batch_size=batch, steps=1000, learning_rate=0.1, noise_multiplier=1.0,
        bounding=Flat(clip_norm=0.25), **settings,
    )  # fmt: skip
    keys = Keys(secure=secure)
    streams = {purpose: keys.stream(purpose) for purpose in ("batch", "noise", "dropout")}
    return Training(network(), records, recipe, streams, device=device).step


def sgd_step(records: SimpleNamespace, batch: int, device: str) -> Step:
    """Return plain PyTorch's step on a batch of fixed size, without momentum."""
    model = network().to(device)
    return _torch_step(model, torch.optim.SGD(model.parameters(), lr=0.1), records, batch, device)


def opacus_step(records: SimpleNamespace, batch: int, device: str) -> Step:
    """Return Opacus' step: gradients of every record by hooks, then its DPOptimizer."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(network().to(device))
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=0.25,
        expected_batch_size=batch,
    )
    return _torch_step(model, optimizer, records, batch, device)


def _torch_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    records: SimpleNamespace,
    batch: int,
    device: str,
) -> Step:
    def step() -> None:
        chosen = torch.randint(RECORDS, (batch,), device=device)
        outputs = model(records.x.index_select(0, chosen))
        nn.functional.cross_entropy(outputs, records.y.index_select(0, chosen)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(step: Step, repeats: int, device: str) -> float:
    """Return the least time of one step among a few: what the others on the machine add is left."""
    times = []
    for _ in range(repeats):
        _synchronize(device)
        start = time.perf_counter()
        step()
        _synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def compare(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return every round's time of each way, in seconds."""
    records = made_up_records(options.device)
    makers = {"ours": our_step, "default": default_step, "sgd": sgd_step, "opacus": opacus_step}
    ways = {name: make(records, options.batch, options.device) for name, make in makers.items()}
    for step in ways.values():
        seconds(step, 2, options.device)
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, step in ways.items():
            repeats = options.repeats if name != "opacus" else max(1, options.repeats // 4)
            rounds[name].append(seconds(step, repeats, options.device))
    return rounds


def summary(values: list[float]) -> dict[str, float]:
    """Return the median, and the quartiles as spread."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 3), "low": round(low, 3), "high": round(high, 3)}


def main() -> None:
    """Run the study and append one line to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=8, help="Steps of each way in a round.")
    parser.add_argument("--out", type=Path, help="A .jsonl file to append to.")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    rounds = compare(options)
    line = {
        "date": date.today().isoformat(),
        "command": f"python benchmarks/dp_step/run.py --device {options.device} "
        f"--threads {options.threads} --batch {options.batch} --rounds {options.rounds} "
        f"--repeats {options.repeats}",
        "torch": torch.__version__,
        "threads": options.threads,
        "ours / sgd": summary([a / b for a, b in zip(rounds["ours"], rounds["sgd"], strict=True)]),
        "default / sgd": summary(
            [a / b for a, b in zip(rounds["default"], rounds["sgd"], strict=True)]
        ),
        "opacus / ours": summary(
            [a / b for a, b in zip(rounds["opacus"], rounds["ours"], strict=True)]
        ),
        "milliseconds": {way: summary([1e3 * t for t in times]) for way, times in rounds.items()},
    }
    text = json.dumps(line)
    print(text)
    if options.out:
        with options.out.open("a") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
