"""Importance of each column in a linear model: its largest effect on the prediction.

    reach of a column  =  max - min, over its values, of w . e(value)

e(value) are the encoded features of a value, and w their weights in one contrast of outputs. For
two classes the contrast is the second class minus the first. For more classes, the contrasts are
each class minus the mean of all, and the one with the largest reach counts. A number is evaluated
at both ends of every bin, a category at every declared value. "Missing" and "other" are excluded,
because their weight is pure noise if no record has them. The reach is in log-odds, or in the
target's unit. It is post-processing of released weights and has no privacy cost.

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
"""Maximum number of features of a network whose weights are computed from probes of it."""

MAX_LISTED_VALUES = 3  # maximum number of values of a column that are listed by name

EQUAL_EFFECT_TOLERANCE = 1e-6
"""Maximum difference of two effects that count as equal, as a fraction of the column's reach."""

PROBE_RECORDS = 8  # number of synthetic records at which a network is compared with an affine model

AFFINE_TOLERANCE = 1e-3
"""Maximum deviation of a network from an affine model, as a fraction of its outputs or of 1."""


def rank_effects(schema: AnySchema, weights: Array) -> list[Values] | None:
    """Rank the columns by their reach; None if the records have no columns.

    Args:
        schema: Complete schema.
        weights: Weights of the features of an encoded record, (outputs, features).

    Returns:
        One dictionary per column, the largest reach first: its name `column`; `reach`; `most` and
        `least`, the values with the highest and the lowest prediction; and `towards`, the class
        whose prediction they change (None for regression).
    """
    if not isinstance(schema, TableSchema) or weights.shape[1] != len(schema.names):
        return None
    classes: list[str] = []
    if not schema.regression:
        classes = [str(each) for each in schema.decode_class(np.arange(schema.outputs))]
    # Weights of each contrast, (contrasts, features).
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
        if not column.width or not np.isfinite(own).all():
            continue
        names, effects = _compute_value_effects(column, own)
        reach = effects.max(axis=1) - effects.min(axis=1)
        largest = int(reach.argmax())  # index of the contrast with the largest reach
        effect, same = effects[largest], EQUAL_EFFECT_TOLERANCE * reach[largest]
        found.append({
            "column": column.name,
            "reach": float(f"{reach[largest]:.4g}"),
            "most": _describe_values(column, names, effect >= effect.max() - same),
            "least": _describe_values(column, names, effect <= effect.min() + same),
            "towards": classes[1 if len(own) == 1 else largest] if classes else None,
        })  # fmt: skip
    ranked = sorted(found, key=lambda each: (-each["reach"], each["column"]))
    return [each for each in ranked[:MAX_LISTED_COLUMNS] if each["reach"] > 0]


def rank_model_effects(document: Values, content: bytes) -> list[Values] | None:
    """Rank the columns by their effect in a released model; None if it is not linear.

    Args:
        document: `result.json`.
        content: Content of the model file.

    Raises:
        UsageError: The content is not that of a model file.
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


def _describe_values(column: Column, names: list[str], among: Array) -> str:
    """Describe the values of a column that a mask selects, in a short phrase."""
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


def _compute_value_effects(column: Column, own: Array) -> tuple[list[str], Array]:
    """Return the names of a column's possible values, and their effects, (contrasts, values)."""
    names = column.feature_names()
    if column.kind == "number":
        edges = [0.0, *column.scaled_edges, 1.0]
        low, high = column.bounds or (0.0, 1.0)
        bins = own[:, 1:-1] if column.edges else np.zeros((len(own), 1))
        said, effects = [], []
        for place in range(len(edges) - 1):
            ends = [edges[place], edges[place + 1]]
            words = [f"{low + end * (high - low):.6g}" for end in ends]
            # Both ends are named after the bin, because its upper edge belongs to the next bin.
            said += [" to ".join(words)] * 2 if column.edges else words
            effects += [own[:, 0] * end + bins[:, place] for end in ends]
        return said, np.array(effects).T
    if column.kind == "category":
        kept = len(names) - 2  # the last two features are "other" and "missing"
        said = [name.partition(" = ")[2] for name in names[:kept]]
        return (said, own[:, :kept]) if kept else (["other"], own[:, :1])
    nothing = np.zeros((len(own), 1))
    return [*names[:-1], "none of its words"], np.hstack([own[:, :-1], nothing])
