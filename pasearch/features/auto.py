"""What `auto` takes for a feature selection, from the schema's form alone, and why.

| columns | method |
|---|---|
| fewer than MANY, or pixels | all |
| MANY or more | top |

A feature that tells nothing costs little once it is centred and scaled, and a choice costs epsilon:
on Adult and Breast Cancer nothing beats all features at any epsilon (benchmarks/features). But
where most of many columns tell nothing picks do: of 200 numbers of which 5 matter they win .06 at
epsilon 1.

The trainer is DP-SGD on centred and scaled features: on both tables it is at least as good as
objective perturbation, and far better at small epsilon.

Source: docs/rules.md, rule 1 (auto reads schema, n, budget and device only).
"""

from __future__ import annotations

import math
from typing import Any

from pasearch.data.tables import AnySchema, TableSchema

MIN_COLUMNS_TO_SELECT = 50
"""From how many columns on most of them are expected to tell nothing."""


def choose_method(
    method: str, trainer: str, schema: AnySchema, k: int | None = None
) -> tuple[str, str, dict[str, Any] | None]:
    """Return the method and the trainer, and why, where `auto` was asked for.

    Args:
        method: One of `features.selector.SELECTORS`, or "auto".
        trainer: One of `features.trainers.TRAINERS`, or "auto".
        schema: Declared, or to be estimated privately.
        k: How many features are asked for: then they are picked.
    """
    if "auto" not in (method, trainer):
        return method, trainer, None
    columns = count_columns(schema)
    pixels = len(schema.max_shape(2)) > 1
    many = columns >= MIN_COLUMNS_TO_SELECT and not pixels
    chosen = method if method != "auto" else "top" if many or k is not None else "all"
    how = "dpsgd" if trainer == "auto" else trainer
    if method != "auto":
        why = "DP-SGD on centred and scaled features was measured to train best."
    elif k is not None:
        why = f"{k:,} features are asked for: private picks cost least for few of them."
    elif many:
        why = f"of {columns:,} columns most are expected to tell nothing, so a few are picked."
    elif pixels:
        why = "pixels tell little one by one, and each costs little once it is centred and scaled."
    else:
        why = (
            f"with {columns:,} columns selecting features is not expected to pay: it costs "
            "epsilon, and a feature that tells nothing costs little, centred and scaled. To have "
            "some chosen all the same, say how many (`k=`)."
        )
    return chosen, how, {"chosen": f"{chosen}, {how}", "why": why, "expected": []}


def count_columns(schema: AnySchema) -> int:
    """Return how many columns there are to choose from; of arrays, numbers."""
    if isinstance(schema, TableSchema):
        return sum(column.kind != "ignore" for column in schema.columns)
    return math.prod(schema.max_shape(2))
