"""What tests of feature selections share: small data, and a search that is ready to run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pasearch.accounting.budget import Budget
from pasearch.data.column import Column
from pasearch.data.partitions import Dataset, Partition
from pasearch.data.schema import Schema
from pasearch.data.split import make_split
from pasearch.data.tables import TableSchema
from pasearch.features.contingency import Attributes
from pasearch.features.engine import FeatureSearch
from pasearch.features.plan import FeaturePlan, make_feature_plan
from pasearch.features.selector import SELECTORS, make_choice
from pasearch.features.top_features import ClassShares, count_class_tables, score_tables
from pasearch.features.trainers import DpSgdTrainer, MomentsTrainer, ObjectiveTrainer
from pasearch.planning import PlanTerms
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Ledger, PlannedRelease, Receipt

NUMBERS = itertools.count()


def feature_points(codes: np.ndarray, attributes: Attributes, shares: ClassShares) -> list[int]:
    """Return the points of every feature of records that are coded in one part."""
    return score_tables(count_class_tables(codes, attributes), attributes, shares)


BUDGET = Budget(2.0, 1e-5)
FEW: dict[str, dict[str, Any]] = {
    "cfs-ga": {"population": 50, "generations": 2},
    "pafs": {"population": 4, "generations": 2},
    "subsets": {"candidates": 3.0},
    "top": {"size": 2},
    "pca": {"size": 2},
}
"""What makes a method small."""

METHODS = [
    name for name, kind in SELECTORS.kinds().items() if kind.__module__.startswith("pasearch.")
]
SHARED = [name for name in METHODS if SELECTORS[name].public_description]
SIZELESS = [name for name in METHODS if SELECTORS[name].no_size_reason]

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


COLUMNS = (
    Column(name="a", low=0.0, high=1.0, bins=4),
    Column(name="b", low=0.0, high=1.0, bins=0),
    Column(name="c", categories=("u", "v", "w")),
    Column(name="d", categories=("no", "yes")),
    Column(name="e", vocabulary=("one", "two")),
)
"""Of a table: a number in bins, one without, categories, two of them, and words."""

PLAIN = ("a", "b", "d = no")
"""Features of it that are no indicators, or the first of two."""


def table(n: int = 300, *, number: bool = False, seed: int = 0, public: bool = False) -> Dataset:
    """Return records of such columns, whose first two numbers tell the target."""
    x, y = arrays(n, number=number, seed=seed)
    cells = np.empty((n, len(COLUMNS)), object)
    cells[:, :2] = x[:, :2].round(3).astype(str)
    for place, known in ((2, ("u", "v", "w")), (3, ("no", "yes")), (4, ("one", "two", "one two"))):
        cells[:, place] = np.array(known, object)[(x[:, place] * len(known)).astype(int)]
    target = Column(name="y", low=0.0, high=1.0) if number else Column(
        name="y", categories=("0", "1")
    )  # fmt: skip
    return Dataset(
        name="table", schema=TableSchema(columns=COLUMNS, target=target), features=cells,
        labels=y.astype(str).astype(object), public=public,
    )  # fmt: skip


def dataset_for(method: str, n: int = 300, *, number: bool = False) -> Dataset:
    """Return what a method is for: a table, images, or arrays."""
    if method == "one-hot":
        return table(n, number=number)
    return dataset(n, image=method == "max-pool", number=number)


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
    choice = make_choice(method, trainer=trainer, **{**FEW.get(method, {}), **more})
    data = dataset_for(method, n, number=number)
    split = make_split(n, search_share=search_share, scored=choice.selector.trains_candidates)
    return planned(name="small", schema=data.schema, budget=budget, split=split, choice=choice)


def planned(**given: Any) -> FeaturePlan:
    """Return the plan of a selection from the fields of its terms, and what else is asked for."""
    terms = {name: given.pop(name) for name in PlanTerms.__dataclass_fields__ if name in given}
    return make_feature_plan(PlanTerms(**{"public": False, **terms}), **given)


def search_of(
    plan: FeaturePlan,
    folder: Path,
    *,
    lines: tuple[PlannedRelease, ...] | None = None,
    seed: int = 1,
    data: Dataset | None = None,
) -> FeatureSearch:
    """Return a search that carries a plan out, with a ledger of these lines (None: the plan's)."""
    if data is None:
        data = dataset_for(plan.choice.selector.name, plan.split.n, number=plan.schema.regression)
    data.partition(plan.split, np.random.Generator(np.random.PCG64(7)))
    path = folder / f"ledger-{next(NUMBERS)}.sqlite"
    ledger = Ledger.create(path, plan.lines if lines is None else lines)
    return FeatureSearch(
        plan=plan, dataset=data, ledger=ledger, keys=Keys.from_seed(seed), device="cpu"
    )


def watch_doors(patch: pytest.MonkeyPatch, tell: Callable[[str], object]) -> None:
    """Tell of every partition that is opened."""
    genuine = Partition.open

    def opening(part: Any, receipt: Receipt):
        tell(part.name)
        return genuine(part, receipt)

    patch.setattr(Partition, "open", opening)


def wrap_trainers(patch: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace a method of every linear trainer by what `wrap` makes of it."""
    for kind in (DpSgdTrainer, ObjectiveTrainer, MomentsTrainer):
        patch.setattr(kind, name, wrap(getattr(kind, name)))
