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
    from pasearch.results import SearchResult, load, load_result, verify

_HOME = {
    "Budget": "pasearch.accounting.budget",
    "BudgetError": "pasearch.errors",
    "PasearchError": "pasearch.errors",
    "PrivateArchitectureSearchClassifier": "pasearch.estimators",
    "PrivateArchitectureSearchRegressor": "pasearch.estimators",
    "SearchResult": "pasearch.results",
    "UsageError": "pasearch.errors",
    "load": "pasearch.results",
    "load_result": "pasearch.results",
    "plan_architecture_search": "pasearch.api",
    "resume_search": "pasearch.api",
    "search_architecture": "pasearch.api",
    "verify": "pasearch.results",
}

__all__ = [
    "Budget",
    "BudgetError",
    "PasearchError",
    "PrivateArchitectureSearchClassifier",
    "PrivateArchitectureSearchRegressor",
    "SearchResult",
    "UsageError",
    "load",
    "load_result",
    "plan_architecture_search",
    "resume_search",
    "search_architecture",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'pasearch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
