"""A finished run's model as a scikit-learn estimator that is fitted already.

    load(run)  ->  TrainedClassifier or TrainedRegressor, whatever the run's task was

The same methods for a search, a training and a feature selection, of arrays, images and tables. It
is weights and JSON: nothing is pickled, and nothing private is read.

Source: docs/python.md; scikit-learn, "Developing scikit-learn estimators".
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_consistent_length

from pasearch.data.cells import DEFAULT_CELL_FORMAT, convert_to_numbers
from pasearch.data.schema import Schema
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.errors import UsageError
from pasearch.results import FeatureResult, SearchResult, load_result
from pasearch.runs.session import warn_of_exact_score

if TYPE_CHECKING:
    from pasearch.accounting.accountants import PrivacyCost

Array = np.ndarray[Any, Any]

_EXACT_SCORE_REMEDY = "the run's own test score, in `result`, is noisy and paid for"


class _TrainedEstimator(BaseEstimator):
    """What both kinds share: it is fitted already, and stays as it is.

    Args:
        result: The finished run, as of `load_result`.

    Attributes:
        n_features_in_: Number of columns of a table, the target left out; or of numbers of a
            record.
        feature_names_in_: Their names; of arrays x0, x1 ...
        coef_: (outputs, features), of a feature selection's linear model alone.
        intercept_: (outputs,), likewise.
    """

    def __init__(self, result: SearchResult | FeatureResult):
        self.result = result

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Self:
        """Return itself: a clone without its training would need a budget."""
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return f"{type(self).__name__}({self.result!r})"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.result._repr_html_()}

    @property
    def schema(self) -> AnySchema:
        """The schema of the records: declared, estimated privately or assumed public."""
        return self.result.schema

    @property
    def price(self) -> PrivacyCost:
        """What the whole run cost."""
        return self.result.price

    @property
    def model(self) -> Any:
        """The trained model itself: an nn.Module, or a feature selection's linear model."""
        return self.result.model

    @property
    def n_features_in_(self) -> int:
        schema = self.schema
        return len(schema.columns) if isinstance(schema, TableSchema) else math.prod(schema.shape)

    @property
    def feature_names_in_(self) -> Array:
        schema = self.schema
        if isinstance(schema, TableSchema):
            return np.array([column.name for column in schema.columns], object)
        return np.array([f"x{place}" for place in range(self.n_features_in_)], object)

    @property
    def coef_(self) -> Array:
        return self.model.coef_

    @property
    def intercept_(self) -> Array:
        return self.model.intercept_

    def fit(self, X: Any, y: Any = None) -> Self:
        """Refuse: it is trained already, and another training would need a budget.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "This model was trained privately and stays as it is: to train another one, call "
            "search_architecture, train or select_features with a budget of its own."
        )

    def predict(self, X: Any) -> Array:
        """Return the class of each new record, or its number, (rows,).

        Args:
            X: In the data's own units. Of a table: a pandas frame with its columns in any order
                (others are left out), or cells in the schema's order, (rows, n_features_in_).
                Of arrays: (rows, *shape), or flat, (rows, n_features_in_). Or a file of either.

        Raises:
            UsageError: A column is not there, or records of another shape.

        Cost: none; the model was paid for. What comes back is as private as X.
        """
        return self.result.predict(self._reshape_records(X))

    def _reshape_records(self, X: Any) -> Any:
        """Return flat records in the shape that the model takes; all else as it is."""
        schema = self.schema
        if not isinstance(schema, Schema) or isinstance(X, (str, Path)):
            return X
        cells = np.asarray(X)
        flat = cells.ndim == 2 and cells.shape[1] == math.prod(schema.shape)
        return cells.reshape(-1, *schema.shape) if flat else cells

    def _true_values(self, X: Any, y: Any) -> Any:
        """Return the true values of new records: those given, or the target's column of a frame."""
        if y is not None:
            return y
        name = getattr(getattr(self.schema, "target", None), "name", None)
        if name is not None and hasattr(X, "columns") and name in X.columns:
            return X[name]
        raise UsageError(
            "A score needs the true values: give them as y"
            + ("." if name is None else f", or a pandas frame that has the column {name!r}.")
        )


class TrainedClassifier(ClassifierMixin, _TrainedEstimator):
    """The trained model of a run that predicts classes."""

    @property
    def classes_(self) -> Array:
        """The classes, in the order of `predict_proba`: a table's by their names, texts."""
        return self.result.classes_

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each of `classes_`, (rows, classes); X as of `predict`."""
        return self.result.predict_proba(self._reshape_records(X))

    def decision_function(self, X: Any) -> Array:
        """Return scores, (rows, classes); of two classes, the second's lead, (rows,)."""
        result = self.result
        if isinstance(result, FeatureResult):
            return result.model.decision_function(result._cells(self._reshape_records(X)))
        scores = result.scores(self._reshape_records(X))
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the exact accuracy on new records.

        Args:
            X: As of `predict`.
            y: Their classes, (rows,), of any type: a table's are compared as texts. None: the
                target's column of a frame.
            sample_weight: Of each record.

        Cost: none is charged, and no noise is added: the number is as private as the records, and
            the first score of a process warns of that.
        """
        aims = self._true_values(X, y)
        warn_of_exact_score(_EXACT_SCORE_REMEDY, stacklevel=2)
        if isinstance(self.schema, TableSchema):
            classes, known = self.schema.encode_labels(np.asarray(aims))
            aims = np.where(known, self.schema.decode_class(classes), "")
        predicted = self.predict(X)
        check_consistent_length(aims, predicted)
        return float(np.average(np.asarray(aims) == predicted, weights=sample_weight))


class TrainedRegressor(RegressorMixin, _TrainedEstimator):
    """The trained model of a run that predicts a number."""

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return R squared on new records; arguments and cost as of `TrainedClassifier.score`."""
        schema = self.schema
        reading = schema.target.reading if isinstance(schema, TableSchema) else DEFAULT_CELL_FORMAT
        aims = convert_to_numbers(np.asarray(self._true_values(X, y)), reading)
        warn_of_exact_score(_EXACT_SCORE_REMEDY, stacklevel=2)
        return float(r2_score(aims, self.predict(X), sample_weight=sample_weight))


def load(path: str | Path) -> TrainedClassifier | TrainedRegressor:
    """Return the trained model of a finished run as a scikit-learn estimator, fitted already.

    Args:
        path: The run's folder, or its `release/` folder.

    Returns:
        TrainedClassifier | TrainedRegressor: With `predict`, `score`, `n_features_in_` and
        `feature_names_in_`; of classes also `predict_proba`, `decision_function` and `classes_`. It
        takes records in the data's own units, arrays, frames or files. `model` is the nn.Module, or
        the linear model of a feature selection; `result` is what `load_result` returns.

    Raises:
        UsageError: No result is there, of another version, or the model file was changed.

    Cost: none; the model was paid for.
    """
    result = load_result(path)
    _ = result.model  # a file that was changed is refused now, not at the first prediction
    return (TrainedRegressor if result.schema.regression else TrainedClassifier)(result)
