"""Importance of each column in a linear model: its coefficients, ranked.

    reach of a column  =  max - min, over its values, of w . e(value)

w are the weights of one output. For two classes, they are the second minus the first; for more, a
class minus the mean of all, for the class with the largest reach. A number is evaluated at both
ends of every bin, a category at every declared value. "Missing" and "other" are excluded, because
their weight is pure noise if no record has them. The reach is in log-odds, or in the target's unit.
It is post-processing of released weights and has no privacy cost.

Source: original to this project; docs/result.md, `effects`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.data.tables import AnySchema, TableSchema
from pasearch.results import FEATURE_SELECTION, build_network, restore_schema

if TYPE_CHECKING:
    from torch import nn

    from pasearch.data.column import Column

Values = dict[str, Any]
Array = np.ndarray[Any, Any]

MAX_LISTED_COLUMNS = 25  # maximum number of listed columns

MAX_PROBED_FEATURES = 4096
"""Maximum number of features of a network whose weights are found by probing it."""

MAX_LISTED_VALUES = 3  # maximum number of values listed by name

EQUAL_EFFECT_TOLERANCE = 1e-6
"""Difference of effects that counts as equal: fraction of the column's reach."""

PROBE_RECORDS = 8  # number of synthetic records at which a linear model must be affine

AFFINE_TOLERANCE = 1e-3
"""Largest deviation from an affine model, as a fraction of its outputs or of 1."""


def rank_effects(schema: AnySchema, weights: Array) -> list[Values] | None:
    """Rank the columns by their reach; None if the records have no columns.

    Args:
        schema: Complete schema.
        weights: Weights of an encoded record, shape (outputs, features).

    Returns:
        One dictionary per column: `column`, `reach`, and `most` and `least`, the values of the
        column with the highest and lowest prediction, for the class `towards` (None: regression).
    """
    if not isinstance(schema, TableSchema) or weights.shape[1] != len(schema.names):
        return None
    classes: list[str] = []
    if not schema.regression:
        classes = [str(each) for each in schema.decode_class(np.arange(schema.outputs))]
    # Weights whose effects are compared between the values of a column, (contrasts, features).
    if len(classes) == len(weights) == 2:
        contrasts = weights[1:] - weights[:1]
    elif len(classes) > 2:
        contrasts = weights - weights.mean(axis=0)
    else:
        bounds = schema.target.bounds if schema.regression else None
        contrasts = weights * (1.0 if bounds is None else bounds[1] - bounds[0])
    found, place = [], 0
    for column in schema.pieces:
        own = contrasts[:, place : place + column.width]
        place += column.width
        if column.width and np.isfinite(own).all():
            found.append(_column_effect(column, own, classes))
    ranked = sorted(found, key=lambda each: (-each["reach"], each["column"]))
    return [each for each in ranked[:MAX_LISTED_COLUMNS] if each["reach"] > 0]


def rank_model_effects(document: Values, content: bytes) -> list[Values] | None:
    """Rank the columns of a released model; None if it is not linear or has no columns.

    Args:
        document: `result.json`.
        content: Content of the model file.

    Raises:
        UsageError: the content is not that of a model file.
    """
    schema = restore_schema(document)
    if not isinstance(schema, TableSchema):
        return None
    if document["task"] == FEATURE_SELECTION:
        from pasearch.features.model import load_model

        return rank_effects(schema, load_model(schema, document["model"], content).weights)
    if document["best"]["layers"] or len(schema.names) > MAX_PROBED_FEATURES:
        return None
    weights = _affine_weights(build_network(document, content), len(schema.names))
    return None if weights is None else rank_effects(schema, weights)


def _affine_weights(model: nn.Module, features: int) -> Array | None:
    """Compute the weights of an affine model, (outputs, features); None if it is not affine."""
    import torch

    draws = np.random.default_rng(0).random((PROBE_RECORDS, features))
    with torch.no_grad():
        ends = torch.cat([torch.zeros(1, features), torch.eye(features)])
        start, *steps = model(ends).double().reshape(features + 1, -1).numpy()
        weights = np.array(steps).T - start[:, None]
        own = model(torch.from_numpy(draws).float()).double().reshape(PROBE_RECORDS, -1).numpy()
    gap = np.abs(own - (draws @ weights.T + start)).max()
    return weights if gap <= AFFINE_TOLERANCE * max(1.0, np.abs(own).max()) else None


def _column_effect(column: Column, own: Array, classes: list[str]) -> Values:
    """Describe the reach of a column, for the contrast with the largest one."""
    names, moved = _value_effects(column, own)
    reach = moved.max(axis=1) - moved.min(axis=1)
    place = int(reach.argmax())
    effect, same = moved[place], EQUAL_EFFECT_TOLERANCE * reach[place]
    towards = None
    if classes:
        towards = classes[1] if len(own) == 1 else classes[place]
    return {
        "column": column.name,
        "reach": float(f"{reach[place]:.4g}"),
        "most": _describe_values(column, names, effect >= effect.max() - same),
        "least": _describe_values(column, names, effect <= effect.min() + same),
        "towards": towards,
    }


def _describe_values(column: Column, names: list[str], among: Array) -> str:
    there = list(dict.fromkeys(name for name, one in zip(names, among, strict=True) if one))
    rest = list(dict.fromkeys(name for name in names if name not in there))
    if len(there) == 1:
        return there[0]
    if column.kind == "number":  # bins, in order
        low, high = there[0].partition(" to ")[0], there[-1].rpartition(" to ")[2]
        every = list(dict.fromkeys(names))
        apart = "" if every[every.index(there[0]) :][: len(there)] == there else ", in parts"
        return f"{low} to {high}{apart}"
    if len(there) <= MAX_LISTED_VALUES or not rest:
        return " or ".join(there)
    if len(rest) <= MAX_LISTED_VALUES:
        return f"all but {' and '.join(rest)}"
    return f"{', '.join(there[:MAX_LISTED_VALUES])} or {len(there) - MAX_LISTED_VALUES} more"


def _value_effects(column: Column, own: Array) -> tuple[list[str], Array]:
    """Return the possible values of a cell, and their effects, (contrasts, values)."""
    names = column.feature_names()
    if column.kind == "number":
        edges = [0.0, *column.scaled_edges, 1.0]
        low, high = column.bounds or (0.0, 1.0)
        bins = own[:, 1:-1] if column.edges else np.zeros((len(own), 1))
        said, moved = [], []
        for place in range(len(edges) - 1):
            ends = [edges[place], edges[place + 1]]
            words = [f"{low + end * (high - low):.6g}" for end in ends]
            # The name is the whole bin, because its upper edge belongs to the next one.
            said += [" to ".join(words)] * 2 if column.edges else words
            moved += [own[:, 0] * end + bins[:, place] for end in ends]
        return said, np.array(moved).T
    if column.kind == "category":
        kept = len(names) - 2  # the last two are other and missing
        said = [name.partition(" = ")[2] for name in names[:kept]]
        return (said, own[:, :kept]) if kept else (["other"], own[:, :1])
    nothing = np.zeros((len(own), 1))
    return [*names[:-1], "none of its words"], np.hstack([own[:, :-1], nothing])
