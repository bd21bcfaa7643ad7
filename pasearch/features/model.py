"""The released model of a feature selection as a scikit-learn estimator: weights and plain values.

    score = W e(record) + b,     e: encoding of the schema, after max pooling if requested

`model.npz` stores W and b, and `result.json` the schema and the link; nothing is pickled.

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
    """Base class of released linear models: scikit-learn estimators that cannot be fitted again.

    Args:
        schema: Schema of the records.
        weights: Weights, (outputs, features of an encoded record).
        intercept: Intercepts, (outputs,).
        link: Name in `trainers.LINKS`.
        pool: Side of the pools, pixels; 0 for no pooling.
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
        """Weights, (outputs, features)."""
        return self.weights

    @property
    def intercept_(self) -> Array:
        """Intercepts, (outputs,)."""
        return self.intercept

    @property
    def feature_names_(self) -> list[str]:
        """Names of the features of an encoded record."""
        return feature_names(self.schema, self.weights.shape[1])

    def fit(self, X: Any, y: Any = None) -> Self:
        """Raise UsageError always: a private model cannot be fitted again without a budget."""
        raise UsageError(
            "This model was trained privately and cannot be fitted again. To train another model, "
            "call select_features with another budget."
        )

    def _scores(self, X: Any) -> Array:
        x = self.schema.encode_new(X)
        if self.pool:
            x = MaxPool(size=self.pool).module(self.schema.shape)(torch.from_numpy(x)).numpy()
        return x.reshape(len(x), -1) @ self.weights.T + self.intercept


class ReleasedClassifier(ClassifierMixin, _ReleasedModel):
    """Linear classifier that a feature selection released."""

    @property
    def classes_(self) -> Array:
        """Class labels, in the order of the scores."""
        return self.schema.decode_class(np.arange(self.schema.outputs))

    def decision_function(self, X: Any) -> Array:
        """Compute scores, (rows, classes); for two classes, second minus first, (rows,)."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> Array:
        """Compute class probabilities, (rows, classes)."""
        scores = self._scores(X)
        if self.link == "softmax":
            return softmax(scores, axis=1)
        each = np.maximum(expit(scores), 1e-300)
        return each / each.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> Array:
        """Predict the class of each record, (rows,)."""
        return self.schema.decode_class(self._scores(X).argmax(axis=1))


class ReleasedRegressor(RegressorMixin, _ReleasedModel):
    """Linear regressor that a feature selection released."""

    def predict(self, X: Any) -> Array:
        """Predict the target of each record in its own unit, clamped to its bounds, (rows,)."""
        return self.schema.decode_number(np.clip(self._scores(X)[:, 0], 0.0, 1.0))


def feature_names(schema: AnySchema, features: int) -> list[str]:
    """Return the schema's name of each feature, or numbered names if it has none."""
    names = list(schema.names)
    return names if len(names) == features else [f"feature {i + 1}" for i in range(features)]


def pack_model(weights: Array, intercept: Array) -> bytes:
    """Return the content of `model.npz`."""
    buffer = io.BytesIO()
    np.savez(buffer, weights=weights, intercept=intercept)
    return buffer.getvalue()


def load_model(schema: AnySchema, about: dict[str, Any], content: bytes) -> _ReleasedModel:
    """Load the model that `result.json` describes, from the content of `model.npz`.

    Args:
        schema: Complete schema of the records.
        about: Values of "model" in result.json.
        content: Bytes of `model.npz`.

    Raises:
        UsageError: The content does not fit the schema or the description.
    """
    found, _ = find_stored_arrays(content, ("weights", "intercept"))
    shapes = {name: each.shape for name, each in found.items() if each.dtype.kind == "f"}
    match shapes:
        case {"weights": (rows, width), "intercept": (same,)} if rows == same:
            pass
        case _:
            raise UsageError(
                "model.npz does not contain weights (outputs, features) and an intercept: the file "
                "was changed after the run."
            )
    if rows != schema.outputs:
        raise UsageError(
            f"model.npz has {rows} outputs, expected {schema.outputs}: the file was changed."
        )
    shape = schema.shape
    if about["pool"]:
        shape = MaxPool(size=about["pool"]).output_shape(shape)
    if width != math.prod(shape):
        raise UsageError(
            f"model.npz has weights of {width:,} features, expected {math.prod(shape):,}: the file "
            "was changed."
        )
    weights, intercept = found["weights"].read(), found["intercept"].read()
    if about["link"] not in LINKS:
        raise UsageError(f"link {about['link']!r} is unknown: expected one of {', '.join(LINKS)}.")
    kind = ReleasedRegressor if schema.regression else ReleasedClassifier
    return kind(schema, weights, intercept, about["link"], about["pool"])
