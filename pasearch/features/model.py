"""The released model of a feature selection as a scikit-learn estimator: weights and plain values.

    score = W e(record) + b,     e: the schema's encoding, behind max pooling where that was asked

`model.npz` holds W and b, and `result.json` the schema and the link; nothing is pickled.

Source: docs/result.md.
"""

from __future__ import annotations

import io
import math
from typing import Any, Self

import numpy as np
import torch
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from pasearch.data.arrays import find_stored_arrays
from pasearch.data.front_ends import MaxPool
from pasearch.data.tables import AnySchema
from pasearch.errors import UsageError
from pasearch.features.trainers import LINKS, Array


class _ReleasedModel(BaseEstimator):
    """What both kinds share: it is fitted already, and stays as it is.

    Args:
        schema: Of the records.
        weights: (outputs, features) of encoded records.
        intercept: (outputs,).
        link: One of `trainers.LINKS`.
        pool: Side of the pools, 0 for none.
    """

    def __init__(
        self, schema: AnySchema, weights: Array, intercept: Array, link: str, pool: int = 0
    ):
        self.schema = schema
        self.weights = weights
        self.intercept = intercept
        self.link = link
        self.pool = pool

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        outputs, features = self.weights.shape
        return f"{type(self).__name__}({features} features, {outputs} outputs)"

    @property
    def coef_(self) -> Array:
        """The weights, (outputs, features)."""
        return self.weights

    @property
    def intercept_(self) -> Array:
        """The intercept, (outputs,)."""
        return self.intercept

    @property
    def feature_names_(self) -> list[str]:
        """The names of the features of an encoded record."""
        return feature_names(self.schema, self.weights.shape[1])

    def fit(self, X: Any, y: Any = None) -> Self:
        """Refuse: it is trained already, and another training would need a budget.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "This model was trained privately and is released as it is: to train another one, "
            "call select_features with a budget of its own."
        )

    def _scores(self, X: Any) -> Array:
        x = self.schema.encode_new(X)
        if self.pool:
            x = MaxPool(size=self.pool).module(self.schema.shape)(torch.from_numpy(x)).numpy()
        return x.reshape(len(x), -1) @ self.weights.T + self.intercept


class ReleasedClassifier(ClassifierMixin, _ReleasedModel):
    """The released model, of classes."""

    @property
    def classes_(self) -> Array:
        """The classes, in the order of the scores."""
        return self.schema.decode_class(np.arange(self.schema.outputs))

    def decision_function(self, X: Any) -> Array:
        """Return scores: (rows,) of the second of two classes, else (rows, classes)."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities, (rows, classes)."""
        scores = self._scores(X)
        if self.link == "softmax":
            return softmax(scores, axis=1)
        each = np.maximum(expit(scores), 1e-300)
        return each / each.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> Array:
        """Return the class of each record, (rows,)."""
        return self.schema.decode_class(self._scores(X).argmax(axis=1))


class ReleasedRegressor(RegressorMixin, _ReleasedModel):
    """The released model, of a number."""

    def predict(self, X: Any) -> Array:
        """Return the number of each record, in its own unit and within its bounds, (rows,)."""
        return self.schema.decode_number(np.clip(self._scores(X)[:, 0], 0.0, 1.0))


def feature_names(schema: AnySchema, features: int) -> list[str]:
    """Return a name for each feature: the schema's, or numbers."""
    names = list(schema.names)
    return names if len(names) == features else [f"feature {i + 1}" for i in range(features)]


def pack_model(weights: Array, intercept: Array) -> bytes:
    """Return `model.npz`."""
    buffer = io.BytesIO()
    np.savez(buffer, weights=weights, intercept=intercept)
    return buffer.getvalue()


def load_model(schema: AnySchema, about: dict[str, Any], content: bytes) -> _ReleasedModel:
    """Return the model that `result.json` describes, from the content of `model.npz`.

    Raises:
        UsageError: It is no such file.
    """
    found, _ = find_stored_arrays(content, ("weights", "intercept"))
    shapes = {name: each.shape for name, each in found.items() if each.dtype.kind == "f"}
    match shapes:
        case {"weights": (rows, width), "intercept": (same,)} if rows == same:
            pass
        case _:
            raise UsageError(
                "model.npz does not hold weights (outputs, features) and an intercept: it was "
                "changed."
            )
    if rows != schema.outputs:
        raise UsageError(
            f"model.npz has {rows} outputs, and the schema says {schema.outputs}: it was changed."
        )
    shape = schema.shape
    if about["pool"]:
        shape = MaxPool(size=about["pool"]).output_shape(shape)
    if width != math.prod(shape):
        raise UsageError(
            f"model.npz has weights of {width:,} features, and a record has "
            f"{math.prod(shape):,}: it was changed."
        )
    weights, intercept = found["weights"].read(), found["intercept"].read()
    if about["link"] not in LINKS:
        raise UsageError(f"link {about['link']!r} is unknown: expected one of {', '.join(LINKS)}.")
    kind = ReleasedRegressor if schema.regression else ReleasedClassifier
    return kind(schema, weights, intercept, about["link"], about["pool"])
