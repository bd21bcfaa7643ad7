"""Nasr et al.'s Figs. 1 and 6: gradient values, and the error of noise at an equal divergence.

    1   every coordinate of every record's gradient, after 5 epochs without privacy
    6   the l1 error of one noisy gradient, by the Renyi divergence of order 2 that it costs

Fig. 1: plain SGD (rate .1, batches of 64) on the first 10,000 images of MNIST; then the gradients
of 500 of these images. A Gaussian has 68.3 % of its values within one standard deviation, and an
excess kurtosis of 0. Fig. 6: one gradient of norm 1, clamped to the paper's codebook of 1,000
vectors (`exact`), without sampling. It needs no data and no seed: the mean of |noise| is exact.

The images are public, and nothing here is private.

Usage: python benchmarks/optimizers/distributions.py --data-root DIR
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import torch
from run import HERE, NETWORKS, SMALL, cells, network
from scipy.stats import kurtosis
from torch.nn import functional

from pasearch.accounting import densities
from pasearch.accounting.additive import additive_rdp
from pasearch.accounting.calibration import calibrate_scale
from pasearch.data.partitions import SealedArray
from pasearch.data.sources import load_dataset
from pasearch.runs.keys import Keys
from pasearch.spaces.candidate import read_candidate
from pasearch.training.encoded.codebook import Codebook
from pasearch.training.per_example import form_gradients

RESULTS = HERE / "results" / "distributions.jsonl"
EPOCHS, BATCH, RATE, MEASURED = 5, 64, 0.1, 500
GIVEN = {
    "dense 196-64-10": network("mnist", False),
    "convolutional": NETWORKS / "papernot-mnist.toml",
}
DIVERGENCES = (0.1, 0.5, 1.0, 2.0)
DENSITIES: dict[str, densities.Density] = {
    "Gaussian": densities.GaussianNoise(),
    "Student t(9)": densities.StudentT(freedom=9.0),
    "variance gamma, 2": densities.VarianceGamma(shape=2.0),
    "sech": densities.HyperbolicSecant(),
    "Laplace": densities.LaplaceNoise(),
    "Cauchy": densities.Cauchy(),
}
DIMENSION = 13_258
"""Parameters of 196-64-10."""


def gradients(data_root: str, network: str, seed: int) -> dict[str, Any]:
    """Train without privacy; return what the values of the gradients are like."""
    data = load_dataset("mnist", public=True, data_root=data_root)
    x, y = (torch.from_numpy(np.asarray(SealedArray(each)._array[:SMALL]))
            for each in (data.features, data.labels))  # fmt: skip
    candidate, y = read_candidate(GIVEN[network]), y.long()
    x = candidate.front_end.module(tuple(x.shape[1:]))(x.float() / 255.0)
    keys = Keys.from_seed(seed)
    weights = keys.stream("weights").generator()
    model = candidate.architecture.build(tuple(x.shape[1:]), 10, weights)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for epoch in range(EPOCHS):
        order = keys.stream("batch", epoch).generator().permutation(SMALL)
        for batch in torch.from_numpy(order).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    own = partial(functional.cross_entropy, target=y[:MEASURED], reduction="none")
    values = form_gradients(model, x[:MEASURED], own).numpy().ravel().astype(float)
    nonzero = values[values != 0]
    return {
        "parameters": len(values) // MEASURED,
        "zero": round(1 - len(nonzero) / len(values), 4),
        "within_one_deviation": round(float((np.abs(values) < values.std()).mean()), 4),
        "excess_kurtosis": round(float(kurtosis(values)), 1),
        "excess_kurtosis_nonzero": round(float(kurtosis(nonzero)), 1),
    }


def noise(density: str, divergence: float) -> dict[str, float | None]:
    """Return the least scale of a density, and its mean absolute noise in one coordinate."""
    shifts, law = Codebook.dense(DIMENSION).envelope(), DENSITIES[density]

    def cost(scale: float) -> float:
        return float(additive_rdp(law.with_scale(scale), shifts, 1.0, np.array([2.0]))[0])

    found = law.with_scale(calibrate_scale(cost, divergence))
    error = found.mean_absolute
    return {"scale": found.scale, "mean_absolute": error if np.isfinite(error) else None}


def measured(options: argparse.Namespace, figure: int, seed: int, **cell: Any) -> dict[str, Any]:
    """Measure one cell of a figure."""
    return gradients(options.data_root, seed=seed, **cell) if figure == 1 else noise(**cell)


def main() -> None:
    """Run what the results lack, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--seeds", type=int, default=5)
    cells.add_workers(parser)
    options = parser.parse_args()
    asked = [{"figure": 6, "seed": 0, "density": density, "divergence": divergence}
             for density in DENSITIES for divergence in DIVERGENCES]  # fmt: skip
    asked += [{"figure": 1, "seed": seed, "network": name}
              for seed in range(options.seeds) for name in GIVEN]  # fmt: skip
    lines = cells.measure(RESULTS, asked, measured, options, workers=cells.workers_of(options))
    print("\n| network | seeds | exactly 0 | within one deviation | excess kurtosis |")
    print("|---|---|---|---|---|")
    for name in GIVEN:
        own = [line for line in lines if line.get("network") == name]
        zero, within, excess = (
            f"{min(line[key] for line in own):g} to {max(line[key] for line in own):g}"
            for key in ("zero", "within_one_deviation", "excess_kurtosis")
        )
        print(f"| {name} | {len(own)} | {zero} | {within} | {excess} |")
    print("\n| mean absolute noise, Gaussian 1 | " + " | ".join(map(str, DIVERGENCES)) + " |")
    print("|---|" + "---|" * len(DIVERGENCES))
    error = {(line["density"], line["divergence"]): line["mean_absolute"]
             for line in lines if line["figure"] == 6}  # fmt: skip
    for name in DENSITIES:
        own = [error[name, each] for each in DIVERGENCES]
        gaussian = [error["Gaussian", each] for each in DIVERGENCES]
        row = [
            "infinite" if a is None else f"{a / b:.4f}" for a, b in zip(own, gaussian, strict=True)
        ]
        print(f"| {name} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
