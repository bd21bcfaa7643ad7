"""Differentially private AutoML: architecture search, feature selection and training with DP-SGD.

One total (epsilon, delta) covers everything that a run reads.

    >>> from pasearch import Budget, search_architecture
    >>> result = search_architecture("digits", budget=Budget(epsilon=2.0))
    >>> labels = result.predict([[[0.0] * 8] * 8])

Public names are imported on first use, because importing torch takes seconds and a plan does not
need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pasearch import notebooks
from pasearch.runs.processor import set_consistent_rounding

__version__ = "0.2.0.dev0"

set_consistent_rounding()

notebooks.MODULE_LOADERS.update(
    displays=lambda: import_module("pasearch.displays"),
    report=lambda: import_module("pasearch.report.notebook"),
)

if TYPE_CHECKING:
    from pasearch.accounting.budget import Budget
    from pasearch.api.advise import Advice, advise
    from pasearch.api.compare import Comparison, compare_workflows
    from pasearch.api.crossover import measure_crossover
    from pasearch.api.features import plan_feature_selection, select_features
    from pasearch.api.pretrain import pretrain
    from pasearch.api.resume import resume
    from pasearch.api.search import (
        plan_architecture_search,
        plan_training,
        search_architecture,
        train,
    )
    from pasearch.crossover.report import CrossoverReport
    from pasearch.data.tables import TableSchema as Schema
    from pasearch.errors import BudgetError, PasearchError, UsageError
    from pasearch.estimator import TrainedClassifier, TrainedRegressor, load
    from pasearch.results import FeatureResult, SearchResult, load_result
    from pasearch.sklearn_api.estimators import (
        PrivateArchitectureSearchClassifier,
        PrivateArchitectureSearchRegressor,
    )
    from pasearch.sklearn_api.selectors import PAFS, PrivateCFS, PrivatePCA
    from pasearch.spaces.module_space import module_space
    from pasearch.verification.verify import verify

_MODULE_OF_NAME = {  # module that defines each public name
    "Advice": "pasearch.api.advise",
    "PAFS": "pasearch.sklearn_api.selectors",
    "Budget": "pasearch.accounting.budget",
    "BudgetError": "pasearch.errors",
    "Comparison": "pasearch.api.compare",
    "CrossoverReport": "pasearch.crossover.report",
    "FeatureResult": "pasearch.results",
    "PasearchError": "pasearch.errors",
    "PrivateArchitectureSearchClassifier": "pasearch.sklearn_api.estimators",
    "PrivateArchitectureSearchRegressor": "pasearch.sklearn_api.estimators",
    "PrivateCFS": "pasearch.sklearn_api.selectors",
    "PrivatePCA": "pasearch.sklearn_api.selectors",
    "Schema": "pasearch.data.tables",
    "SearchResult": "pasearch.results",
    "TrainedClassifier": "pasearch.estimator",
    "TrainedRegressor": "pasearch.estimator",
    "UsageError": "pasearch.errors",
    "advise": "pasearch.api.advise",
    "compare_workflows": "pasearch.api.compare",
    "load": "pasearch.estimator",
    "load_result": "pasearch.results",
    "measure_crossover": "pasearch.api.crossover",
    "module_space": "pasearch.spaces.module_space",
    "plan_architecture_search": "pasearch.api.search",
    "plan_feature_selection": "pasearch.api.features",
    "plan_training": "pasearch.api.search",
    "pretrain": "pasearch.api.pretrain",
    "resume": "pasearch.api.resume",
    "search_architecture": "pasearch.api.search",
    "select_features": "pasearch.api.features",
    "train": "pasearch.api.search",
    "verify": "pasearch.verification.verify",
}

_ORIGINAL_NAMES = {"Schema": "TableSchema"}
"""Names of objects in their modules, by public name, if the two differ."""

__all__ = [
    "PAFS",
    "Advice",
    "Budget",
    "BudgetError",
    "Comparison",
    "CrossoverReport",
    "FeatureResult",
    "PasearchError",
    "PrivateArchitectureSearchClassifier",
    "PrivateArchitectureSearchRegressor",
    "PrivateCFS",
    "PrivatePCA",
    "Schema",
    "SearchResult",
    "TrainedClassifier",
    "TrainedRegressor",
    "UsageError",
    "advise",
    "compare_workflows",
    "load",
    "load_result",
    "measure_crossover",
    "module_space",
    "plan_architecture_search",
    "plan_feature_selection",
    "plan_training",
    "pretrain",
    "resume",
    "search_architecture",
    "select_features",
    "train",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in _MODULE_OF_NAME:
        return getattr(import_module(_MODULE_OF_NAME[name]), _ORIGINAL_NAMES.get(name, name))
    raise AttributeError(f"module 'pasearch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
