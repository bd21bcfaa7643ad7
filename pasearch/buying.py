"""The first line of a plan carried out: what the schema leaves undeclared is bought.

Architecture searches and feature selections begin alike, with `data.purchase` and a charge.

Source: docs/rules.md, rules 12 and 13. Proof: docs/guarantees/bought-schema.md.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pasearch.files import read_json

if TYPE_CHECKING:
    from pasearch.data.partitions import Dataset
    from pasearch.features.plan import FeaturePlan
    from pasearch.plan import Plan
    from pasearch.runs.folder import RunFolder
    from pasearch.runs.keys import Keys
    from pasearch.runs.ledger import Ledger

    Solved = TypeVar("Solved", Plan, FeaturePlan)


def buy_schema(
    plan: Solved, dataset: Dataset, ledger: Ledger, keys: Keys, folder: RunFolder
) -> Solved:
    """Buy what the schema leaves undeclared, and return the plan with the complete schema.

    Guarantee: the price and every line of the plan stay as they are: they depend on no schema.

    Args:
        plan: With a purchase, or without (then nothing happens).
        dataset: Partitioned; it gets the complete schema.
        ledger: Opened with the plan's lines.
        keys: The run's secret randomness.
        folder: What was bought is kept in `private/`, so a resume buys nothing twice.

    Cost: the plan's line "schema", on the partition that has epsilon to spare.
    """
    purchase, schema = plan.purchase, plan.schema
    if purchase is None:
        return plan
    path = folder.private / "schema.json"
    if path.exists():
        bought = type(schema).from_json(read_json(path, "a bought schema", follow=False))
    else:
        cells = dataset[plan.purchase_partition].cells()
        items = [f"item {number}" for number in range(len(schema.undeclared))]
        with ledger.charged("schema", cells, key=items) as (features, labels):
            bought = purchase.buy(schema, features, labels, keys.stream("schema"))
        folder.atomic_write("schema.json", json.dumps(bought.to_json()))
    dataset.adopt(bought)
    return replace(plan, schema=bought)
