"""The model of a finished run as a fitted scikit-learn estimator.

    load(run)  ->  TrainedClassifier or TrainedRegressor

The methods are the same for searches, trainings and feature selections, on arrays, images and
tables. A run stores weights and JSON: nothing is pickled, and no private record is read.

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

_EXACT_SCORE_REMEDY = "the test score of the run, in `result`, is noisy and charged"
"""End of the warning about a score on new records, which is exact."""


class _TrainedEstimator(BaseEstimator):
    """Base class of the fitted estimators, which cannot be fitted again.

    Args:
        result: Result of the finished run (`load_result`).

    Attributes:
        n_features_in_: Number of columns of a table without the target; or of values per record.
        feature_names_in_: Names of the columns; x0, x1 ... for arrays.
        coef_: Coefficients, (outputs, features); only of the linear model of a feature selection.
        intercept_: Intercepts, (outputs,); only of the linear model of a feature selection.
    """

    def __init__(self, result: SearchResult | FeatureResult):
        self.result = result

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Self:
        """Return the estimator itself, because training a clone would need a budget."""
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
        """Schema of the records: declared, estimated with DP, or assumed public."""
        return self.result.schema

    @property
    def price(self) -> PrivacyCost:
        """Total privacy cost of the run: epsilon, delta and accountant."""
        return self.result.price

    @property
    def model(self) -> Any:
        """Trained model: an nn.Module, or the linear model of a feature selection."""
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
        """Refuse to train again, because another training would need a budget.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "This model is already trained with differential privacy. To train another one, call "
            "search_architecture, train or select_features with a new budget."
        )

    def predict(self, X: Any) -> Array:
        """Predict the class or the value of each new record, (rows,).

        Args:
            X: New records in the original units. For tables: a pandas data frame with its columns
                in any order (others are ignored), or cells in schema order, (rows, n_features_in_).
                For arrays: (rows, *shape) or (rows, n_features_in_). Or a file of either.

        Raises:
            UsageError: A column is missing, or the records have another shape.

        Cost: none (post-processing). The predictions are as private as X.
        """
        return self.result.predict(self._reshape_records(X))

    def _reshape_records(self, X: Any) -> Any:
        """Restore the shape of flattened array records; return others unchanged."""
        schema = self.schema
        if not isinstance(schema, Schema) or isinstance(X, (str, Path)):
            return X
        cells = np.asarray(X)
        flat = cells.ndim == 2 and cells.shape[1] == math.prod(schema.shape)
        return cells.reshape(-1, *schema.shape) if flat else cells

    def _get_true_values(self, X: Any, y: Any) -> Array:
        """Return the true values of new records, (rows,): `y`, or a data frame's target column."""
        name = getattr(getattr(self.schema, "target", None), "name", None)
        if y is None and name is not None and hasattr(X, "columns") and name in X.columns:
            y = X[name]
        if y is None:
            raise UsageError(
                "A score requires the true values: pass them as y"
                + ("." if name is None else f", or a pandas data frame with the column {name!r}.")
            )
        values = np.asarray(y)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1:
            raise UsageError(
                f"y has shape {values.shape}: expected one value for each record, (rows,)."
            )
        return values


class TrainedClassifier(ClassifierMixin, _TrainedEstimator):
    """Trained model of a classification run."""

    @property
    def classes_(self) -> Array:
        """Classes in the order of `predict_proba`; those of a table are strings."""
        return self.result.classes_

    def predict_proba(self, X: Any) -> Array:
        """Predict the probability of each of `classes_`, (rows, classes)."""
        return self.result.predict_proba(self._reshape_records(X))

    def decision_function(self, X: Any) -> Array:
        """Compute logits, (rows, classes); for two classes their difference, (rows,)."""
        result = self.result
        if isinstance(result, FeatureResult):
            return result.model.decision_function(result._cells(self._reshape_records(X)))
        scores = result.scores(self._reshape_records(X))
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Compute the exact accuracy on new records.

        Args:
            X: New records, like those of `predict`.
            y: True classes, (rows,), of any type; those of a table are compared as strings. None:
                target column of the data frame X.
            sample_weight: Weight of each record, (rows,).

        Cost: nothing is charged and no noise is added. The score is as private as the records; the
            first call in a process warns of that.
        """
        aims = self._get_true_values(X, y)
        warn_of_exact_score(_EXACT_SCORE_REMEDY, stacklevel=2)
        schema = self.schema
        labels = () if isinstance(schema, TableSchema) else schema.labels or ()
        if isinstance(schema, TableSchema) or any(isinstance(each, str) for each in labels):
            classes, known = schema.encode_labels(aims)
            aims = np.where(known, schema.decode_class(classes), "")
        predicted = self.predict(X)
        check_consistent_length(aims, predicted)
        return float(np.average(aims == predicted, weights=sample_weight))


class TrainedRegressor(RegressorMixin, _TrainedEstimator):
    """Trained model of a regression run."""

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Compute the exact R squared on new records.

        Args:
            X: New records, like those of `predict`.
            y: True values, (rows,). None: target column of the data frame X.
            sample_weight: Weight of each record, (rows,).

        Cost: nothing is charged and no noise is added. The score is as private as the records.
        """
        schema = self.schema
        reading = (
            schema.target.cell_format if isinstance(schema, TableSchema) else DEFAULT_CELL_FORMAT
        )
        aims = convert_to_numbers(self._get_true_values(X, y), reading)
        warn_of_exact_score(_EXACT_SCORE_REMEDY, stacklevel=2)
        return float(r2_score(aims, self.predict(X), sample_weight=sample_weight))


def load(path: str | Path) -> TrainedClassifier | TrainedRegressor:
    """Load the trained model of a finished run as a fitted scikit-learn estimator.

    Args:
        path: Folder of the run, or its `release/` folder.

    Returns:
        TrainedClassifier | TrainedRegressor: With `predict`, `score`, `n_features_in_` and
        `feature_names_in_`; a classifier also has `predict_proba`, `decision_function` and
        `classes_`. Records are arrays, data frames or files, in the original units. `model` is the
        nn.Module, or the linear model of a feature selection; `result` is that of `load_result`.

    Raises:
        UsageError: There is no result, it has another version, or the model file was changed.

    Cost: none (post-processing of the released model).

    Example:
        >>> from pasearch import Budget, load, train
        >>> run = train("digits", budget=Budget(epsilon=2.0), steps=10)
        >>> load(run.path).n_features_in_
        64
    """
    result = load_result(path)
    _ = result.model  # refuses a changed file now instead of at the first prediction
    return (TrainedRegressor if result.schema.regression else TrainedClassifier)(result)
