"""What tests of feature selections share: small data, and a search that is ready to run."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pasearch.accounting.budget import Budget
from pasearch.data.partitions import Dataset, make_split
from pasearch.data.schema import Schema
from pasearch.features.engine import FeatureSearch
from pasearch.features.plan import METHODS, Choice, FeaturePlan, make_feature_plan
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Ledger, Line

NUMBERS = itertools.count()
BUDGET = Budget(2.0, 1e-5)
FEW: dict[str, dict[str, Any]] = {
    "pafs": {"population": 4, "generations": 2},
    "subsets": {"mean": 3.0},
    "top": {"size": 2},
    "pca": {"size": 2},
}
"""What makes a method small."""

WAYS: list[tuple[str, dict[str, Any]]] = [
    *((method, {}) for method in METHODS),
    ("cfs-greedy", {"merits": "entropies"}),
    ("top", {"pick": "gumbel"}),
]
"""Every method, and what more than one way there is of it."""


def arrays(n: int = 300, *, image: bool = False, number: bool = False, seed: int = 0):
    """Return records of six features, or of 4 x 4 pixels, whose first two tell the target."""
    generator = np.random.Generator(np.random.PCG64(seed))
    x = generator.random((n, 16 if image else 6))
    score = 0.7 * x[:, 0] + 0.3 * x[:, 1]
    y = score if number else (score > 0.5).astype(int)
    return (x.reshape(n, 4, 4) if image else x), y


def dataset(n: int = 300, *, image: bool = False, number: bool = False) -> Dataset:
    """Return them as a data set whose schema is declared."""
    x, y = arrays(n, image=image, number=number)
    task: dict[str, Any] = {"regression": True, "target": (0.0, 1.0)} if number else {"classes": 2}
    schema = Schema(shape=x.shape[1:], low=0.0, high=1.0, **task)
    return Dataset(name="small", schema=schema, features=x, labels=y)  # type: ignore[arg-type]


@cache
def plan_of(
    method: str,
    trainer: str = "objective",
    *,
    n: int = 300,
    number: bool = False,
    search_share: float = 0.0,
    budget: Budget = BUDGET,
    **more: Any,
) -> FeaturePlan:
    """Return the plan of a small selection."""
    choice = Choice(method=method, trainer=trainer, **{**FEW.get(method, {}), **more})
    data = dataset(n, image=method == "max-pool", number=number)
    split = make_split(n, search_share=search_share, scored=choice.trains_candidates)
    return make_feature_plan(
        name="small", schema=data.schema, public=False, budget=budget, split=split, choice=choice
    )


def search_of(
    plan: FeaturePlan,
    folder: Path,
    *,
    lines: tuple[Line, ...] | None = None,
    seed: int = 1,
    data: Dataset | None = None,
) -> FeatureSearch:
    """Return a search that carries a plan out, with a ledger of these lines (None: the plan's)."""
    if data is None:
        image, number = plan.choice.method == "max-pool", plan.schema.regression
        data = dataset(plan.split.n, image=image, number=number)
    data.partition(plan.split, np.random.Generator(np.random.PCG64(7)))
    path = folder / f"ledger-{next(NUMBERS)}.sqlite"
    ledger = Ledger.create(path, plan.lines if lines is None else lines)
    return FeatureSearch(
        plan=plan, dataset=data, ledger=ledger, keys=Keys.from_seed(seed), device="cpu"
    )
