"""The training of one network by one recipe, without a search: plan it, or run it.

Source: docs/rules.md, rules 1, 11 and 12; docs/result.md.
"""

from __future__ import annotations

from dataclasses import fields

from pasearch.api import search
from pasearch.api.lifecycle import Prepared
from pasearch.api.request import SearchRequest, TrainRequest, takes
from pasearch.results import SearchResult
from pasearch.search.plan import Plan

run = search.run


@takes(TrainRequest)
def plan_training(request: TrainRequest) -> Plan:
    """Return the plan of a training: what it would release, with its noise solved, and the price.

    Returns:
        Plan: `print` shows it as text, a notebook as a table; `price`, `lines` and `plot()`.

    Cost: none: it depends on n, shapes and declared bounds only.

    Example:
        >>> from pasearch import Budget, plan_training
        >>> schema = {"target": "income", "columns": {"age": {"low": 17, "high": 90}}}
        >>> plan = plan_training(frame, schema=schema, budget=Budget(1.0))
        >>> print(plan)
    """
    return prepared(request).plan


@takes(TrainRequest)
def train(request: TrainRequest) -> SearchResult:
    """Train one network by one recipe under one budget; of several recipes one is chosen.

    Without `architecture` it is the first network of the portfolio for this kind of data. Several
    recipes are compared on disjoint portions of the records.

    Guarantee: everything in the run's `release/` folder together is (epsilon, delta)-DP under
    zero-out adjacency, as the privacy card states.

    Returns:
        SearchResult: The model, its price and its card.

    Cost: the budget, at most: `plan_training` gives the price beforehand.

    Example:
        >>> from pasearch import Budget, train
        >>> schema = {"target": "income", "columns": {"age": {"low": 17, "high": 90}}}
        >>> result = train(frame, schema=schema, budget=Budget(1.0))
        >>> result.price, result.test_score, result.predict(new)
    """
    return run(prepared(request))


def prepared(request: TrainRequest) -> Prepared[Plan]:
    """Load the data's form and solve the plan; nothing is written."""
    values = {each.name: getattr(request, each.name) for each in fields(request)}
    strategy = "auto" if len(request.recipes) > 1 else "fixed"
    return search.prepared(SearchRequest(**values, strategy=strategy))


prepare = takes(TrainRequest)(prepared)
