"""How much each column moves the answer of a linear model: its coefficients, ranked.

    reach of a column  =  max - min, over its values, of w . e(value)

w are the weights of one output (of two classes: of the second less the first; of more: of a class
less the mean of all, and the class of the largest reach counts). Of a number both ends of every bin
are looked at, and the bin is named; of a category every declared value. "Missing" and "other" are
left out, because where no record had them their weight is the noise alone. The reach is in
log-odds, or in the target's own unit. It is made of released weights: post-processing, which costs
nothing.

Source: ours; docs/result.md, `effects`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.data.tables import AnySchema, TableSchema
from pasearch.results import FEATURES, network_of, schema_of

if TYPE_CHECKING:
    from torch import nn

    from pasearch.data.column import Column

Values = dict[str, Any]
Array = np.ndarray[Any, Any]

MOST = 25
"""How many columns are listed."""

MOST_PROBED = 4096
"""The most features of a network whose weights are found by probing it."""

FEW, SAME = 3, 1e-6
"""How many values are listed by name, and how near to the end of a reach they have to move the
answer to be told together, as a share of it."""

PROBES, CLOSE = 8, 1e-3
"""At how many made-up records, and how closely, a model has to be affine to count as linear."""


def effects(schema: AnySchema, weights: Array) -> list[Values] | None:
    """Return the columns that move the answer most; None where records have no columns.

    Args:
        schema: Complete.
        weights: (outputs, features) of an encoded record.

    Returns:
        A list of `column`, `reach`, and `most` and `least`: at which of its values the answer is
        moved most and least towards `towards`, a class; of a number to predict that is None.
    """
    if not isinstance(schema, TableSchema) or weights.shape[1] != len(schema.names):
        return None
    classes = [] if schema.regression else [str(each) for each in _classes(schema)]
    contrasts = _contrasts(weights, len(classes), _width(schema))
    found, place = [], 0
    for column in schema.pieces:
        own = contrasts[:, place : place + column.width]
        place += column.width
        if column.width and np.isfinite(own).all():
            found.append(_effect(column, own, classes))
    ranked = sorted(found, key=lambda each: (-each["reach"], each["column"]))
    return [each for each in ranked[:MOST] if each["reach"] > 0]


def effects_of(document: Values, content: bytes) -> list[Values] | None:
    """Return the effects of a released model; None where it is not linear, or has no columns.

    Args:
        document: `result.json`.
        content: Of the model's file.

    Raises:
        UsageError: It is no such file.
    """
    schema = schema_of(document)
    if not isinstance(schema, TableSchema):
        return None
    if document["task"] == FEATURES:
        from pasearch.features.model import model_of

        return effects(schema, model_of(schema, document["model"], content).weights)
    if document["best"]["layers"] or len(schema.names) > MOST_PROBED:
        return None
    weights = _affine(network_of(document, content), len(schema.names))
    return None if weights is None else effects(schema, weights)


def _affine(model: nn.Module, features: int) -> Array | None:
    """Return the weights, (outputs, features), of a model that is affine; None of any other."""
    import torch

    draws = np.random.default_rng(0).random((PROBES, features))
    with torch.no_grad():
        ends = torch.cat([torch.zeros(1, features), torch.eye(features)])
        start, *steps = model(ends).double().reshape(features + 1, -1).numpy()
        weights = np.array(steps).T - start[:, None]
        own = model(torch.from_numpy(draws).float()).double().reshape(PROBES, -1).numpy()
    gap = np.abs(own - (draws @ weights.T + start)).max()
    return weights if gap <= CLOSE * max(1.0, np.abs(own).max()) else None


def _classes(schema: TableSchema) -> Array:
    return schema.decode_class(np.arange(schema.outputs))


def _width(schema: TableSchema) -> float:
    """Return how wide the bounds of the number to predict are; 1 of classes."""
    bounds = schema.target.bounds if schema.regression else None
    return 1.0 if bounds is None else bounds[1] - bounds[0]


def _contrasts(weights: Array, classes: int, width: float) -> Array:
    """Return what is compared between a column's values, (contrasts, features)."""
    if classes == 2 and len(weights) == 2:
        return weights[1:] - weights[:1]
    if classes > 2:
        return weights - weights.mean(axis=0)
    return weights * width


def _effect(column: Column, own: Array, classes: list[str]) -> Values:
    """Return a column's reach, by the contrast where it is the largest."""
    names, moved = _values(column, own)
    reach = moved.max(axis=1) - moved.min(axis=1)
    place = int(reach.argmax())
    towards = None
    if classes:
        towards = classes[1] if len(own) == 1 else classes[place]
    return {
        "column": column.name,
        "reach": float(f"{reach[place]:.4g}"),
        "most": _told(column, names, moved[place] >= moved[place].max() - SAME * reach[place]),
        "least": _told(column, names, moved[place] <= moved[place].min() + SAME * reach[place]),
        "towards": towards,
    }


def _told(column: Column, names: list[str], among: Array) -> str:
    """Return in words the values of a column that are in a set: all that move the answer alike."""
    there = list(dict.fromkeys(name for name, one in zip(names, among, strict=True) if one))
    rest = list(dict.fromkeys(name for name in names if name not in there))
    if len(there) == 1:
        return there[0]
    if column.kind == "number":  # bins, in order
        low, high = there[0].partition(" to ")[0], there[-1].rpartition(" to ")[2]
        every = list(dict.fromkeys(names))
        apart = "" if every[every.index(there[0]) :][: len(there)] == there else ", in parts"
        return f"{low} to {high}{apart}"
    if len(there) <= FEW or not rest:
        return " or ".join(there)
    return f"all but {' and '.join(rest)}" if len(rest) <= FEW else _first(there)


def _first(names: list[str]) -> str:
    return f"{', '.join(names[:FEW])} or {len(names) - FEW} more"


def _values(column: Column, own: Array) -> tuple[list[str], Array]:
    """Return what a cell may be, in words, and what each moves, (contrasts, values)."""
    names = column.feature_names()
    if column.kind == "number":
        edges = [0.0, *column.scaled_edges, 1.0]
        low, high = column.bounds or (0.0, 1.0)
        bins = own[:, 1:-1] if column.edges else np.zeros((len(own), 1))
        said, moved = [], []
        for place in range(len(edges) - 1):
            ends = [edges[place], edges[place + 1]]
            words = [f"{low + end * (high - low):.6g}" for end in ends]
            # A bin is told whole: its upper edge itself belongs to the next one.
            said += [" to ".join(words)] * 2 if column.edges else words
            moved += [own[:, 0] * end + bins[:, place] for end in ends]
        return said, np.array(moved).T
    if column.kind == "category":
        kept = len(names) - 2  # the last two are other and missing
        said = [name.partition(" = ")[2] for name in names[:kept]]
        return (said, own[:, :kept]) if kept else (["other"], own[:, :1])
    nothing = np.zeros((len(own), 1))
    return [*names[:-1], "none of its words"], np.hstack([own[:, :-1], nothing])
