"""Do other cheap things pay, beside looks? Three proxies of a search, each at a twentieth of mu^2.

    python benchmarks/search_pays/proxies.py columns rates synthetic --tables DIR [--seeds 3]
    python benchmarks/search_pays/proxies.py --print

    columns     one noisy release of X'y (X the encoded records, norm 5; y the classes); columns
                whose part of it is larger than its noise is kept, then the default with the rest
    rates       the default at its own rate and at a third and three times of it, chosen by looks
                (a noisy loss each, as HyFreeDP probes it) and by an oracle that sees held-out
                records
    synthetic   each class's records drawn from noisy histograms of its columns; the portfolio is
                trained on them with the noise of the final training, and the best is taken

A prototype: noise is drawn from numpy and prices are those of Gaussians, mu^2 added up. Each is
compared with the default that has all of mu, on the same held-out records. A gain here is what a
real implementation could reach at most.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from pasearch.data.sources import load_dataset
from pasearch.runs.keys import Keys
from pasearch.search.candidate_training import (
    compute_metric_counts,
    train_candidate,
    training_streams,
)
from pasearch.search.plan import make_candidate_recipe
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.portfolio import compute_signal, load_study
from pasearch.training.metrics import METRICS
from pasearch.training.recipe import make_default_recipe

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "portfolio"))
import cells
from insurance import NAMES, cut  # the same tables
from public import Public  # the same trainings as the portfolio's

RESULTS = Path(__file__).parent / "results" / "proxies.jsonl"
SHARE = 0.05
MUS = {0.5: 0.146, 1.0: 0.27, 3.0: 0.73}
"""About the mu of a total epsilon, at delta 1e-5."""
USUAL = ("magic", "online-shoppers", "nursery", "eeg-eye-state", "interaction", "wide")
NORM = 5.0


class Table:
    """A table's records in memory: those of a run and those held out."""

    def __init__(self, name: str, folder: Path):
        rest, held, target, schema = cut(name, folder)
        self.name, self.target = name, target
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary)
            (path / "schema.toml").write_text(schema)
            pd.concat([rest, held]).to_csv(path / "table.csv", index=False)
            source = load_dataset(str(path / "table.csv"), schema=path / "schema.toml", public=True)
            self.every = Public(source, 0)
        self.schema = self.every.dataset.schema
        self.slots, self.held = np.split(np.arange(len(rest) + len(held)), [len(rest)])

    def trained(
        self, candidate: Candidate, mu: float, seed: int, kept: np.ndarray | None = None
    ) -> tuple[float, float]:
        """Return (accuracy on held-out records, Brier score on the others) of one training."""
        front = self.every.front(candidate, self.slots, mu, seed)
        own, held = (self.every.records(each, front) for each in (self.slots, self.held))
        return self.of(candidate, own, held, mu, seed, kept)

    def of(
        self, candidate: Candidate, own: Any, held: Any, mu: float, seed: int,
        kept: np.ndarray | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        """Return the same of a training on some records; without `kept` columns all are used."""
        if kept is not None:
            for each in (own, held):
                x = torch.where(torch.tensor(kept), each.x, torch.zeros(()))
                each.x[:] = NORM * x / x.norm(dim=1, keepdim=True).clamp(min=1e-9)
        recipe = make_candidate_recipe(
            (make_default_recipe(len(own)),), candidate, mu, len(own), outputs=self.schema.outputs
        )
        streams = training_streams(Keys.from_seed(seed).stream("proxy", str(mu)))
        network = train_candidate(candidate, own, self.schema, recipe, streams, device="cpu")
        accuracy = compute_metric_counts(network, held, METRICS["accuracy"], device="cpu")[0] / len(
            held
        )
        brier = compute_metric_counts(network, own, METRICS["brier"], device="cpu")[0] / (
            1000 * len(own)
        )
        return accuracy, brier

    def entries(self, mu: float) -> tuple[Candidate, ...]:
        """Return the portfolio without this table, the default first."""
        study = load_study(self.schema, self.name)
        return study.sort_by_accuracy(
            compute_signal(mu, len(self.slots), self.schema.outputs)
        ).entries


def columns(table: Table, mu: float, seed: int) -> dict[str, float]:
    """Return what the default reaches on the columns that a noisy X'y shows."""
    plain = Candidate.from_json({"front_end": "raw", "layers": [], "settings": {}})
    x = table.every.records(table.slots, table.every.front(plain, table.slots, mu, 0)).x
    y = table.every.records(table.slots, None).y
    rows = NORM * x / x.norm(dim=1, keepdim=True).clamp(min=1e-9)
    hot = torch.nn.functional.one_hot(y.long(), table.schema.outputs).float()
    total = (rows.T @ (hot - 1 / table.schema.outputs)).numpy()
    draw = np.random.default_rng(seed)
    sigma = NORM / (mu * np.sqrt(SHARE))
    noisy = total + sigma * draw.standard_normal(total.shape)
    sizes = [each.width for each in table.schema.columns if each.name != table.target]
    edges = np.cumsum([0, *sizes])
    energy = np.array([np.sum(noisy[a:b] ** 2) / ((b - a) * noisy.shape[1])
                       for a, b in pairwise(edges)])  # fmt: skip
    deviation = sigma**2 * np.sqrt(2 / (np.diff(edges) * noisy.shape[1]))
    shown = energy > sigma**2 + 2 * deviation
    kept = np.repeat(shown if shown.any() else np.ones_like(shown), np.diff(edges))
    default = table.entries(mu)[0]
    linear = next(each for each in table.entries(mu)
                  if each.front_end.text == "raw" and not each.architecture.layers)  # fmt: skip
    left = mu * np.sqrt(1 - SHARE)
    return {
        "default": table.trained(default, mu, seed)[0],
        "linear": table.trained(linear, mu, seed)[0],
        "proxy": table.trained(linear, left, seed, kept)[0],
        "kept": int(shown.sum()),
        "of": len(shown),
    }


def rates(table: Table, mu: float, seed: int) -> dict[str, float]:
    """Return what the default reaches at the rate that probes, or an oracle, choose."""
    default, own = table.entries(mu)[0], dict(table.entries(mu)[0].settings)
    scaled = [
        replace(default, settings=tuple(
            {**own, **{name: own[name] * factor for name in own if name in
                       ("learning_rate_scale", "learning_rate_most")}}.items()))
        for factor in (1.0, 1 / 3, 3.0)
    ]  # fmt: skip
    probe = mu * np.sqrt(SHARE / len(scaled))
    draw, n = np.random.default_rng(seed), len(table.slots)
    noise = np.sqrt(2) / (probe * n)
    seen = [table.trained(each, probe, seed)[1] + noise * draw.standard_normal() for each in scaled]
    left = mu * np.sqrt(1 - 2 * SHARE)
    reached = [table.trained(each, left, seed)[0] for each in scaled]
    return {
        "default": table.trained(default, mu, seed)[0],
        "proxy": reached[int(np.argmax(seen))],
        "oracle": max(reached),
        "chosen": int(np.argmax(seen)),
    }


def synthetic(table: Table, mu: float, seed: int) -> dict[str, float]:
    """Return what the candidate reaches that is best on made-up records."""
    plain = Candidate.from_json({"front_end": "raw", "layers": [], "settings": {}})
    own = table.every.records(table.slots, table.every.front(plain, table.slots, mu, 0))
    draw, k = np.random.default_rng(seed), table.schema.outputs
    sizes = [each.width for each in table.schema.columns if each.name != table.target]
    edges = np.cumsum([0, *sizes])
    x, y = own.x.numpy(), own.y.numpy().astype(int)
    sigma = np.sqrt(len(sizes) / SHARE) / mu
    made_y = draw.choice(k, size=len(y), p=np.bincount(y, minlength=k) / len(y))
    made = np.zeros_like(x)
    for a, b in pairwise(edges):
        cell = np.abs(x[:, a:b]).argmax(1)
        value = np.abs(x[:, a:b]).max()
        for of in range(k):
            table_ = np.bincount(cell[y == of], minlength=b - a)
            chance = np.maximum(table_ + sigma * draw.standard_normal(b - a), 0.1)
            rows = np.flatnonzero(made_y == of)
            made[rows, a + draw.choice(b - a, size=len(rows), p=chance / chance.sum())] = value
    left, best = mu * np.sqrt(1 - SHARE), []
    cut_at = len(y) * 4 // 5
    for each in table.entries(mu)[:5]:
        fake = replace_records(own, made[:cut_at], made_y[:cut_at])
        held = replace_records(own, made[cut_at:], made_y[cut_at:])
        front = each.front_end
        if front.fitted:
            fit = front.fit(fake.x, fake.valid, 1.0 / (0.1 * mu), Keys.from_seed(seed).stream("f"),
                            table.schema.row_layout)  # fmt: skip
            fake, held = (replace(part, x=fit.module(part.x)) for part in (fake, held))
        best.append(table.of(each, fake, held, left, seed)[0])
    chosen = int(np.argmax(best))
    return {
        "default": table.trained(table.entries(mu)[0], mu, seed)[0],
        "proxy": table.trained(table.entries(mu)[chosen], left, seed)[0],
        "oracle": max(table.trained(each, left, seed)[0] for each in table.entries(mu)[:5]),
        "chosen": chosen,
    }


def replace_records(like: Any, x: np.ndarray, y: np.ndarray) -> Any:
    """Return records of other values."""
    return replace(
        like, x=torch.tensor(x), y=torch.tensor(y, dtype=like.y.dtype),
        valid=torch.ones(len(y), dtype=torch.bool),
    )  # fmt: skip


@lru_cache(maxsize=1)
def table_of(name: str, folder: Path) -> Table:
    """Return a table; the last one stays in memory."""
    return Table(name, folder)


def measured(folder: Path, what: str, data: str, epsilon: float, seed: int) -> dict[str, float]:
    """Return what a proxy reaches, beside the default."""
    found = WHAT[what](table_of(data, folder), MUS[epsilon], seed)
    return {key: round(value, 5) for key, value in found.items()}


WHAT = {"columns": columns, "rates": rates, "synthetic": synthetic}


def show() -> None:
    """Print medians over seeds."""
    rows = cells.stored(RESULTS)
    for what in WHAT:
        own = [row for row in rows if row["what"] == what]
        if not own:
            continue
        print(f"\n| {what}: table | epsilon | seeds | default | with it | gain | oracle |")
        print("|---|---|---|---|---|---|---|")
        for name, epsilon in dict.fromkeys((r["data"], r["epsilon"]) for r in own):
            here = [r for r in own if (r["data"], r["epsilon"]) == (name, epsilon)]
            middle = {each: statistics.median(r[each] for r in here)
                      for each in ("default", "proxy", "oracle") if each in here[0]}  # fmt: skip
            gain = statistics.mean(r["proxy"] - r["default"] for r in here)
            oracle = f"{middle['oracle']:.3f}" if "oracle" in middle else ""
            print(f"| {name} | {epsilon:g} | {len(here)} | {middle['default']:.3f} | "
                  f"{middle['proxy']:.3f} | {gain:+.3f} | {oracle} |")  # fmt: skip


def main() -> None:
    """Run what is asked for and not there, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", choices=[*WHAT, []])
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--names", nargs="+", default=USUAL, choices=NAMES)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--print", action="store_true", dest="only_print")
    cells.add_workers(parser)
    asked = parser.parse_args()
    if asked.only_print:
        show()
        return
    wanted = (
        {"what": what, "data": name, "epsilon": epsilon, "seed": seed}
        for name in asked.names
        for what in asked.what
        for epsilon in asked.epsilons
        for seed in range(1, asked.seeds + 1)
    )
    cells.measure(RESULTS, wanted, measured, asked.tables, workers=cells.workers_of(asked))


if __name__ == "__main__":
    main()
