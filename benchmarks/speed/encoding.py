"""What encoded gradients and denoising add to a DP step.

The network and records of the row `fcn-2048`. Every way is one and the same step, with another sum
of bounded gradients, other noise, or a weight on the noisy sum; `plain` clips to a norm (Flat) and
adds Gaussian noise. Ways take turns inside every round, and a round's ratio is to the plain step of
the same round. `sorted` encodes by forming and sorting every gradient, of 1 in `--share` of the
records, and is scaled up.

Usage: python benchmarks/speed/encoding.py --threads 1
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peers import Step
from rows import CLIP, ROWS
from run import add_line, least
from torch import Tensor, nn

from pasearch.accounting.densities import Density, GaussianNoise, StudentT
from pasearch.data.partitions import Records
from pasearch.runs.keys import Keys
from pasearch.training.batching import Poisson
from pasearch.training.clipping import FlatClipping
from pasearch.training.encoded.gradients import EncodedClipping, encode_by_sorting
from pasearch.training.encoded.noise import KolmogorovSmirnov, begin_noise
from pasearch.training.per_example import Loss, form_gradients

ROW = ROWS["fcn-2048"]
Summed = Callable[..., list[Tensor]]
GAUSSIAN = GaussianNoise(scale=CLIP)


def flat(network: nn.Module, x: Tensor, loss: Loss, mask: Tensor) -> list[Tensor]:
    """Return the sum of clipped gradients."""
    return FlatClipping(clip_norm=CLIP).sums(network, x, loss, mask)[0]


def encoded(network: nn.Module, x: Tensor, loss: Loss, mask: Tensor, vectors: int) -> list[Tensor]:
    """Return the sum of encoded gradients."""
    return EncodedClipping(clip_norm=CLIP, vectors=vectors).sums(network, x, loss, mask)[0]


WAYS: dict[str, dict[str, Any]] = {
    "plain": {"summed": flat},
    "encoded": {"summed": partial(encoded, vectors=1000)},
    "encoded, one vector": {
        "summed": partial(encoded, vectors=1),
    },
    "student-t noise": {"noise": StudentT(scale=CLIP)},
    "denoised, histogram": {"denoising": KolmogorovSmirnov()},
    "denoised, exact": {"denoising": KolmogorovSmirnov(cells=None)},
    "denoised, student-t": {"noise": StudentT(scale=CLIP), "denoising": KolmogorovSmirnov()},
}


def step_of(
    records: Records,
    batch: int,
    device: str,
    *,
    summed: Summed = flat,
    noise: Density = GAUSSIAN,
    denoising: KolmogorovSmirnov | None = None,
) -> Step:
    """Return a step: draw the batch, sum bounded gradients, add noise, weigh, move the weights."""
    model = ROW.network().to(device)
    parameters = list(model.parameters())
    count = sum(p.numel() for p in parameters)
    sampler = Poisson(sampling_probability=batch / ROW.records)
    streams = {purpose: Keys().stream(purpose) for purpose in ("batch", "noise")}
    finished = 0

    def step() -> None:
        nonlocal finished
        chosen = torch.from_numpy(sampler.batch(ROW.records, streams["batch"], finished)).to(device)
        drawn = begin_noise(noise.unit, count, torch.device(device), streams["noise"], finished)
        x, mask = records.x.index_select(0, chosen), records.valid.index_select(0, chosen)
        loss = _loss(records.y.index_select(0, chosen))
        with torch.no_grad():
            flat = torch.cat([v.flatten() for v in summed(model, x, loss, mask=mask)])
            drawn().add_to([flat], noise.scale)
            if denoising is not None:
                flat *= denoising.weight(flat, noise)
            parts = flat.div_(batch).split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter -= 0.1 * part.view_as(parameter)
        finished += 1

    return step


def sorted_step(records: Records, rows: int, device: str) -> Step:
    """Return the encoding of so many records by sorting."""
    model, x = ROW.network().to(device), records.x[:rows]
    codebook = EncodedClipping(clip_norm=CLIP).codebook(sum(p.numel() for p in model.parameters()))
    return lambda: encode_by_sorting(
        form_gradients(model, x, _loss(records.y[:rows])), codebook
    ).sum(dim=0)


def _loss(y: Tensor):
    return lambda outputs: nn.functional.cross_entropy(outputs, y, reduction="none")


def main() -> None:
    """Measure, print the table, and append it to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--share", type=int, default=64)
    out = Path(__file__).parent / "results/encoding.jsonl"
    parser.add_argument("--out", type=Path, default=out)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    records = ROW.data(options.device)
    ways = {
        name: step_of(records, options.batch, options.device, **way) for name, way in WAYS.items()
    }
    ways["sorted"] = sorted_step(records, options.batch // options.share, options.device)
    for step in ways.values():
        least(step, 2, options.device)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, step in ways.items():
            factor = options.share if name == "sorted" else 1
            times[name].append(factor * least(step, options.repeats, options.device))
    print("| way | times a plain DP step: median (quartiles) | milliseconds |\n|---|---|---|")
    table = {}
    for name, values in times.items():
        ratios = [value / plain for value, plain in zip(values, times["plain"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        typical = 1000 * statistics.median(values)
        table[name] = {"median": middle, "quartiles": [low, high], "milliseconds": typical}
        print(f"| {name} | {middle:.2f} ({low:.2f}, {high:.2f}) | {typical:.1f} |")
    row = {
        "date": date.today().isoformat(),
        "command": f"encoding.py --device {options.device} --threads {options.threads}",
        "rounds": options.rounds,
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1),
        "ratios": table,
    }
    add_line(options.out, row)


if __name__ == "__main__":
    main()
