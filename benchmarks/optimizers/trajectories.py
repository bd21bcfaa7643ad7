"""Fu et al.'s Fig. 1: DP-SGD with and without screening, on a linear regression of two parameters.

The paper shows a picture: near the minimum, updates of DP-SGD raise the loss, and screening avoids
them. It states no data and no settings. Here: 1,000 records, y = .2 + .6 x + N(0, .05^2) with x
uniform in [0, 1]; 200 steps of 100 records in expectation, C 1, Q0 10 and mu0 10 as in Table 2. The
losses are small near the minimum, so Q0 10 rejects few updates; Q0 1000 rejects most that raise it.
Screening reads the exact mean loss of the records, which are synthetic and public.

Both arms of a seed have the same records, batches and noise, so an equal cost: rejected updates are
charged too. `raised` is the fraction of the noisy updates of the last 100 steps that raise the loss
(for the screened arm: of those that were accepted), `excess` the final loss minus the smallest one.

Usage: python benchmarks/optimizers/trajectories.py
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from run import HERE, cells
from torch import nn

from pasearch.data.partitions import Records
from pasearch.runs.keys import Keys
from pasearch.training.clipping import FlatClipping
from pasearch.training.losses import compute_mean_loss
from pasearch.training.recipe import Recipe
from pasearch.training.screening import Annealing
from pasearch.training.trainer import start_training

RESULTS = HERE / "results" / "trajectories.jsonl"
N, BATCH, STEPS, LAST = 1000, 100, 200, 100
SCREENINGS = {
    "dpsgd": None,
    "sa-dpsgd, Q0 10": Annealing(q0=10.0, mu0=10),
    "sa-dpsgd, Q0 1000": Annealing(q0=1000.0, mu0=10),
}
RATES, SIGMAS = (0.3, 1.0), (1.0, 4.0)


def trained(_: argparse.Namespace, arm: str, rate: float, sigma: float, seed: int) -> cells.Line:
    """Train once; return how the losses went."""
    keys = Keys.from_seed(seed)
    draw = keys.stream("data").generator()
    x = draw.random((N, 1)).astype(np.float32)
    y = (0.2 + 0.6 * x[:, 0] + 0.05 * draw.normal(size=N)).astype(np.float32)
    records = Records(
        x=torch.from_numpy(x), y=torch.from_numpy(y), valid=torch.ones(N, dtype=torch.bool),
        public=True,
    )  # fmt: skip
    design = np.c_[x, np.ones(N)].astype(float)
    solution = np.linalg.lstsq(design, y.astype(float), rcond=None)[0]
    smallest = float(0.5 * np.mean((design @ solution - y) ** 2))
    network = nn.Sequential(nn.Linear(1, 1))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    recipe = Recipe(
        expected_batch_size=BATCH, steps=STEPS, learning_rate=rate, noise_multiplier=sigma,
        bounding=FlatClipping(clip_norm=1.0), optimizer="sgd", momentum=0.0, average=None,
        screening=SCREENINGS[arm],
    )  # fmt: skip
    streams = {name: keys.stream(name) for name in ("batch", "noise", "dropout")}

    def query(model: nn.Module, asked: int) -> float:
        return compute_mean_loss(model, records)

    training = start_training(network, records, recipe, streams, query=query)
    losses = [compute_mean_loss(network, records)]
    for _step in range(STEPS):
        training.step()
        losses.append(compute_mean_loss(network, records))
    moves = np.diff(losses[-LAST - 1 :])
    return {
        "excess": losses[-1] - smallest,
        "raised": float((moves > 0).sum() / max(1, (moves != 0).sum())),
        "steps": STEPS,
    }


def main() -> None:
    """Run what the results lack, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    cells.add_workers(parser)
    options = parser.parse_args()
    asked: list[dict[str, Any]] = [
        {"arm": arm, "rate": rate, "sigma": sigma, "seed": seed}
        for seed in range(options.seeds) for rate in RATES for sigma in SIGMAS
        for arm in SCREENINGS
    ]  # fmt: skip
    lines = cells.measure(RESULTS, asked, trained, options, workers=cells.workers_of(options))
    print(
        "| rate | sigma | arm | seeds | raised, median | excess loss, median (least to largest) |"
    )
    print("|---|---|---|---|---|---|")
    for rate in RATES:
        for sigma in SIGMAS:
            for arm in SCREENINGS:
                own = [e for e in lines if (e["arm"], e["rate"], e["sigma"]) == (arm, rate, sigma)]
                excess = np.array([e["excess"] for e in own])
                raised = np.median([e["raised"] for e in own])
                print(
                    f"| {rate:g} | {sigma:g} | {arm} | {len(own)} | {raised:.2f} | "
                    f"{np.median(excess):.2e} ({excess.min():.1e} to {excess.max():.1e}) |"
                )


if __name__ == "__main__":
    main()
