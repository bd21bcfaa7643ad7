"""Privacy-aware AutoML: search under one (epsilon, delta) that pays for all the search reads.

    >>> from pasearch import Budget, search_architecture            # doctest: +SKIP
    >>> result = search_architecture("digits", budget=Budget(epsilon=2.0))   # doctest: +SKIP
    >>> result.price, result.model                                  # doctest: +SKIP

Names are imported on first use: torch alone takes seconds to load, and a plan needs none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pasearch.accounting.budget import Budget
    from pasearch.api import plan_architecture_search, resume_search, search_architecture
    from pasearch.errors import BudgetError, PasearchError, UsageError
    from pasearch.estimators import (
        PrivateArchitectureSearchClassifier,
        PrivateArchitectureSearchRegressor,
    )
    from pasearch.feature_selection import (
        plan_feature_selection,
        resume_selection,
        select_features,
    )
    from pasearch.results import FeatureResult, SearchResult, load, load_result
    from pasearch.selectors import PAFS, PrivateCFS, PrivatePCA
    from pasearch.verification import verify

_HOME = {
    "PAFS": "pasearch.selectors",
    "Budget": "pasearch.accounting.budget",
    "BudgetError": "pasearch.errors",
    "FeatureResult": "pasearch.results",
    "PasearchError": "pasearch.errors",
    "PrivateArchitectureSearchClassifier": "pasearch.estimators",
    "PrivateArchitectureSearchRegressor": "pasearch.estimators",
    "PrivateCFS": "pasearch.selectors",
    "PrivatePCA": "pasearch.selectors",
    "SearchResult": "pasearch.results",
    "UsageError": "pasearch.errors",
    "load": "pasearch.results",
    "load_result": "pasearch.results",
    "plan_architecture_search": "pasearch.api",
    "plan_feature_selection": "pasearch.feature_selection",
    "resume_search": "pasearch.api",
    "resume_selection": "pasearch.feature_selection",
    "search_architecture": "pasearch.api",
    "select_features": "pasearch.feature_selection",
    "verify": "pasearch.verification",
}

__all__ = [
    "PAFS",
    "Budget",
    "BudgetError",
    "FeatureResult",
    "PasearchError",
    "PrivateArchitectureSearchClassifier",
    "PrivateArchitectureSearchRegressor",
    "PrivateCFS",
    "PrivatePCA",
    "SearchResult",
    "UsageError",
    "load",
    "load_result",
    "plan_architecture_search",
    "plan_feature_selection",
    "resume_search",
    "resume_selection",
    "search_architecture",
    "select_features",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'pasearch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
