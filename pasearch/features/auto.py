"""Resolution of `auto` for a feature selection, from public metadata alone.

| columns | method |
|---|---|
| fewer than MIN_COLUMNS_TO_SELECT, or pixels | all |
| MIN_COLUMNS_TO_SELECT or more | top |

An irrelevant feature costs little once it is centred and scaled, and a selection costs epsilon.
On Adult and Breast Cancer, no method beats all features at any epsilon (benchmarks/features).
Private selection helps if most of many columns are irrelevant: with 200 columns of which 5 matter,
it gains .06 accuracy at epsilon 1.

The trainer is DP-SGD on centred and scaled features. On both tables it is at least as good as
objective perturbation, and far better at small epsilon.

Source: docs/rules.md, rule 1 (auto reads schema, n, budget and device only).
"""

from __future__ import annotations

import math
from typing import Any

from pasearch.data.tables import AnySchema, TableSchema

MIN_COLUMNS_TO_SELECT = 50
"""Minimum number of columns at which `auto` selects features: most are expected to be irrelevant.
"""


def choose_method(
    method: str, trainer: str, schema: AnySchema, k: int | None = None
) -> tuple[str, str, dict[str, Any] | None]:
    """Choose the method and the trainer, with the reason if one of them is `auto`.

    Args:
        method: Name in `features.selector.SELECTORS`, or "auto".
        trainer: Name in `features.trainers.TRAINERS`, or "auto".
        schema: Schema, declared or to be estimated privately.
        k: Number of requested features, 1 or above; a number selects method `top`.

    Returns:
        Name of the method, name of the trainer, and the values of `auto` for result.json (or None).
    """
    if "auto" not in (method, trainer):
        return method, trainer, None
    columns = count_columns(schema)
    pixels = len(schema.max_shape(2)) > 1
    many = columns >= MIN_COLUMNS_TO_SELECT and not pixels
    chosen = method if method != "auto" else "top" if many or k is not None else "all"
    how = "dpsgd" if trainer == "auto" else trainer
    if method != "auto":
        why = (
            "DP-SGD on centred and scaled features trained the most accurate models on public data."
        )
    elif k is not None:
        why = (
            f"{k:,} features are requested: private selection of few features costs little epsilon."
        )
    elif many:
        why = f"most of {columns:,} columns are expected to be irrelevant, so a few are selected."
    elif pixels:
        why = "a single pixel carries little information, and keeping it costs little accuracy."
    else:
        why = (
            f"with {columns:,} columns, selection is not predicted to improve accuracy: it costs "
            "epsilon, and an irrelevant feature costs little once it is centred and scaled. To "
            "select features anyway, pass their number (`k=`)."
        )
    return chosen, how, {"chosen": f"{chosen}, {how}", "why": why, "expected": []}


def count_columns(schema: AnySchema) -> int:
    """Return the number of columns that are not ignored; for arrays, of features per record."""
    if isinstance(schema, TableSchema):
        return sum(column.kind != "ignore" for column in schema.columns)
    return math.prod(schema.max_shape(2))
