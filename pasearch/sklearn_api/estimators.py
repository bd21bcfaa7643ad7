"""scikit-learn estimators, whose `fit` runs an architecture search under one budget.

    fit(X, y)  ->  metadata of X and y  ->  schema (declared, estimated with DP, or assumed public)
               ->  `search_architecture`, charged before it reads  ->  document, card and weights

Module `fits` explains `bounds` for each kind of X. Each number has ten bins, unless one (low, high)
is given for all numbers.

With a ledger, `score` is charged before the labels are read, and its result is noisy:

| estimator | released, with two-sided geometric noise | result |
|---|---|---|
| classifier | number of correct predictions, epsilon | accuracy |
| regressor | sums of squared error, target and squared target, epsilon / 3 each | R squared |

Targets and predictions are scaled to [0, 1] by the target's bounds. A missing target contributes 0
to the sums.

Source: docs/rules.md, rules 1, 3, 9, 12 and 13; scikit-learn, "Developing scikit-learn estimators".
Proof: docs/guarantees/geometric-scores.md.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy.special import softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import nn

from pasearch.accounting.accountants import PrivacyCost
from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import check_positive
from pasearch.accounting.events import PureDP
from pasearch.api.search import search_architecture
from pasearch.data.cells import convert_to_numbers
from pasearch.data.column import Column
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.errors import InterruptedRunError, UsageError
from pasearch.results import SearchResult, build_network, find_release, parse_price, restore_schema
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.mechanisms import NoisyCount
from pasearch.runs.session import warn_of_exact_score
from pasearch.runs.shared_ledger import SharedLedger
from pasearch.runs.sums import NoisySum
from pasearch.sklearn_api.fits import (
    DATASET_NAME,
    Array,
    Pair,
    PrivateFit,
    check_labels,
    make_array_schema,
    names_to_labels,
    parse_all_bounds,
)

SCORE_STEPS = 10_000
"""Number of steps from 0 to 1, to which scaled numbers are rounded before they are summed."""


def charge_score(ledger: str | Path, epsilon: float, n: int) -> Stream:
    """Charge a score to a ledger, and return the random stream of its noise.

    Raises:
        BudgetError: The score exceeds the remaining budget of the ledger; nothing was read.

    Cost: epsilon, charged to the ledger.
    """
    SharedLedger.open(ledger).reserve(secrets.token_hex(16), {"score": PureDP(epsilon=epsilon)}, n)
    return Keys().stream("score")


def noisy_accuracy(correct: Array, epsilon: float, stream: Stream) -> float:
    """Return the noisy fraction of correct predictions, which may be below 0 or above 1.

    Args:
        correct: Mask of the correct predictions, bool (n,): private.
        epsilon: Privacy cost, charged already.
        stream: Random stream of the noise.
    """
    noisy = NoisyCount(epsilon=epsilon).release(int(correct.sum()), stream)
    return noisy / len(correct)


def noisy_r_squared(target: Array, predicted: Array, epsilon: float, stream: Stream) -> float:
    """Return R squared, computed from noisy sums; it may be outside its range.

    Args:
        target: Targets scaled to [0, 1], NaN if missing, float (n,): private.
        predicted: Predictions scaled to [0, 1], float (n,).
        epsilon: Privacy cost, charged already.
        stream: Random stream of the noise.
    """
    noise = NoisySum(epsilon=epsilon / 3, most=SCORE_STEPS)
    error, total, squares = (
        noise.release(int(np.rint(SCORE_STEPS * np.nan_to_num(each)).sum()), stream.child(name))
        / SCORE_STEPS
        for name, each in (
            ("error", (target - predicted) ** 2), ("total", target), ("squares", target**2),
        )
    )  # fmt: skip
    deviation = squares - total**2 / len(target)
    return 1.0 - error / max(deviation, 1.0 / SCORE_STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """Released values of a fitted estimator, independent of the run's folder.

    Args:
        document: Content of `result.json`; docs/result.md describes every field.
        card: Privacy card, Markdown.
        weights: Content of `model.pt`.
    """

    document: dict[str, Any]
    card: str
    weights: bytes = field(repr=False)

    @classmethod
    def from_result(cls, result: SearchResult) -> FitResult:
        """Copy the released values of a finished run."""
        weights = find_release(result.path) / result.document["model"]["file"]
        return cls(document=result.document, card=result.card, weights=weights.read_bytes())

    @property
    def price(self) -> PrivacyCost:
        """Privacy cost of the whole run."""
        return parse_price(self.document)

    @property
    def schema(self) -> AnySchema:
        """Schema of the records: declared, estimated with DP, or assumed public."""
        return restore_schema(self.document)

    def network(self) -> nn.Module:
        """Load the network with its feature extractor; its input are encoded records."""
        return build_network(self.document, self.weights)

    def outputs(self, cells: Array) -> Array:
        """Compute the network's outputs for new records, float64, (rows, schema.outputs).

        Args:
            cells: Records, (rows, features), in the data's units; a non-finite value is missing.
        """
        import torch

        schema = self.schema
        if isinstance(schema, Schema) and cells.dtype.kind not in "iufb":
            cells = np.column_stack([convert_to_numbers(column) for column in cells.T])
        with torch.no_grad():
            outputs = self.network()(torch.from_numpy(schema.encode_new(cells)))
        return outputs.numpy().astype(np.float64)


@dataclass(kw_only=True, eq=False, repr=False)
class _PrivateArchitectureSearch(PrivateFit):
    """Base class of both estimators."""

    strategy: str = "auto"
    space: Any = "auto"
    candidates: float | None = None
    search_share: float = 0.0
    steps: int | None = None
    batch: int | None = None
    metric: str | None = None
    device: str = "auto"
    secure_noise: bool = False
    out: str | Path | None = None
    score_epsilon: float | None = None

    def _search(
        self, kinds: list[str | None], cells: Array, labels: Array, target: Column
    ) -> AnySchema:
        """Run the search, set the attributes of the fit, and return the complete schema."""
        self._warn_of_random_state()
        pairs, alike = parse_all_bounds(self.bounds, len(kinds))
        known = target.kind == "number" or target.is_declared
        schema: AnySchema
        if self.schema is None and alike and cells.dtype.kind in "iufb" and known:
            low, high = pairs[0] or (None, None)
            schema = make_array_schema(cells.shape[1], low, high, target)
            if target.kind == "category":
                # A label of an undeclared class becomes -1, which marks the null record.
                codes, valid = TableSchema(columns=(), target=target).encode_labels(labels)
                labels = np.where(valid, codes, -1)
        else:
            columns = self._make_columns(kinds, cells)
            schema = TableSchema(columns=columns, target=target, name=DATASET_NAME)
        dataset = Dataset(
            name=DATASET_NAME, schema=schema, features=cells, labels=labels, assumed=self._types
        )
        folder = tempfile.TemporaryDirectory() if self.out is None else nullcontext()
        with folder as temporary:
            try:
                result = search_architecture(
                    dataset, budget=Budget(self.epsilon, self.delta),
                    out=self.out if temporary is None else Path(temporary) / "run",
                    strategy=self.strategy, space=self.space, candidates=self.candidates,
                    assume_public_schema=self.assume_public_schema,
                    max_categories=self.max_categories, ledger=self.ledger,
                    ledger_budget=self.ledger_budget, search_share=self.search_share,
                    steps=self.steps, batch=self.batch, metric=self.metric, device=self.device,
                    secure_noise=self.secure_noise, force=self.force, seed=self.random_state,
                    progress=False,
                )  # fmt: skip
            except InterruptedRunError:
                if temporary is None:
                    raise
                # The message would name the temporary folder, which is deleted.
                raise KeyboardInterrupt from None
            self.result_ = FitResult.from_result(result)
        self.price_ = self.result_.price
        self._count_fit(self.price_)
        return self.result_.schema

    def _begin_score(self, n: int, sample_weight: Any) -> tuple[float, Stream] | None:
        """Charge a score; return its epsilon and the stream of its noise, None without a ledger."""
        if self.ledger is None:
            warn_of_exact_score(
                "with a ledger (`ledger=`) scores are noisy and charged", stacklevel=3
            )
            return None
        if sample_weight is not None:
            raise UsageError(
                "sample_weight requires a score without a ledger: remove it, or the ledger."
            )
        given = self.epsilon / 10 if self.score_epsilon is None else self.score_epsilon
        epsilon = check_positive("score_epsilon", given)
        return epsilon, charge_score(self.ledger, epsilon, n)

    def _compute_outputs(self, X: Any) -> Array:
        """Check the metadata of X, and compute the network's outputs, (rows, outputs)."""
        check_is_fitted(self, "result_")
        return self.result_.outputs(self._cells(X, reset=False))


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateArchitectureSearchClassifier(ClassifierMixin, _PrivateArchitectureSearch):
    """Classifier whose architecture is searched and trained under one (epsilon, delta).

    Guarantee: all attributes that a fit sets are together (epsilon, delta)-DP under zero-out
    adjacency. Predictions are members of `classes_`, and cost nothing.

    Args:
        epsilon: Total epsilon of a fit, above 0.
        delta: Total delta of a fit; None: the largest power of ten below 1/n.
        strategy: Search strategy: a name in `search.strategy.STRATEGIES`, or "auto".
        space: Search space: a built-in name, a TOML path, a dictionary, or "auto".
        bounds: Feature bounds, see `PrivateFit`; the same for `schema`, `assume_public_schema`,
            `max_categories`, `ledger`, `ledger_budget`, `force` and `random_state`.
        classes: Declared labels, two or more. None: the labels of the schema's target, or labels
            estimated with DP; labels of dtype object are then predicted as strings.
        candidates: Number of candidates of the strategy; None: its default.
        search_share: Fraction of the training records reserved for the search, in [0, 1).
        steps: Number of training steps; None: the default for n.
        batch: Expected batch size; None: the default for n.
        metric: Metric for ranking candidates and for the test score: accuracy, balanced-accuracy,
            auc, log-loss or brier; for regression mae or rmse. None: accuracy, or mae.
        device: "auto", "cpu" or "cuda".
        score_epsilon: Epsilon of one `score` with a ledger, above 0; None: a tenth of epsilon.
        secure_noise: Whether AES-256 generates all random numbers, including batches and
            candidates.
        out: New folder of the run, which rules out cross-validation; None: a temporary folder,
            which is deleted after the fit.

    Attributes:
        classes_: Class labels, sorted.
        result_: `FitResult` with document, card and weights; other attributes see `PrivateFit`.

    Cost: epsilon and delta per fit; with a ledger `score_epsilon` per `score`; predictions cost
        nothing.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> declared = {"bounds": (0, 16), "classes": range(10)}
        >>> model = PrivateArchitectureSearchClassifier(epsilon=2.0, **declared).fit(x, y)
        >>> model.predict(x[:3]).shape
        (3,)
    """

    classes: Iterable[Any] | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Search and train.

        Args:
            X: Records, (records, features): numbers, booleans or strings, an array or a frame.
            y: Labels, (records,).

        Raises:
            UsageError: A setting of bad form, or one that does not fit X.
            BudgetError: The budget is too small: for the plan, in the ledger (then nothing was
                read), or to find any class (then it was charged).
            ValueError: X or y of bad form; with `assume_public_schema` also y of one class.

        Cost: the budget; with a ledger, reserved there before a record is read.
        """
        kinds, cells, labels = self._check_input(X, y)
        name = self._target_name(y, cells.shape[1])
        target, known, dtype = self._make_class_target(name, y, labels, self.classes)
        schema = self._search(kinds, cells, labels, target)
        names: Any = target.categories
        if isinstance(schema, TableSchema):
            names = schema.target.categories
        found = names_to_labels(names, known, dtype)
        self._target = replace(target, name="y", categories=tuple(names))
        self._order = np.argsort(found)
        self.classes_ = found[self._order]
        return self

    def _compute_logits(self, X: Any) -> Array:
        """Compute the logits of the records, (records, classes), in the order of `classes_`."""
        return self._compute_outputs(X)[:, self._order]

    def predict(self, X: Any) -> Array:
        """Predict the most likely class of each record, (records,)."""
        best = self._compute_logits(X).argmax(axis=1)  # refuses an unfitted estimator
        return self.classes_[best]

    def predict_proba(self, X: Any) -> Array:
        """Compute the probability of each class, (records, classes)."""
        return softmax(self._compute_logits(X), axis=1)

    def decision_function(self, X: Any) -> Array:
        """Compute logits, (records, classes); for two classes their difference, (records,)."""
        logits = self._compute_logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the accuracy: noisy and charged with a ledger, otherwise exact.

        Guarantee: with a ledger, the result is `score_epsilon`-differentially private for one
        scored record, and may be below 0 or above 1. Without a ledger there is no guarantee, and
        the first score of a process warns.

        Args:
            X: Records, with the columns of the fit.
            y: Labels, (records,), of any type; compared with `classes_` by value.
            sample_weight: Weight of each record, (records,); must be None with a ledger.

        Raises:
            BudgetError: The score exceeds the ledger's remaining budget; no label was read.

        Cost: `score_epsilon` per call, on the ledger.
        """
        outputs = self._compute_outputs(X)
        labels = column_or_1d(check_labels(y, read=False))
        check_consistent_length(outputs, labels)
        charged = self._begin_score(len(labels), sample_weight)
        codes, known = TableSchema(columns=(), target=self._target).encode_labels(labels)
        correct = known & (codes == outputs.argmax(axis=1))
        if charged is None:
            return float(np.average(correct, weights=sample_weight))
        return noisy_accuracy(correct, *charged)


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateArchitectureSearchRegressor(RegressorMixin, _PrivateArchitectureSearch):
    """Regressor whose architecture is searched and trained under one (epsilon, delta).

    Guarantee, Args, Attributes, Cost: same as `PrivateArchitectureSearchClassifier`, without
    `classes` and `classes_`.

    Args:
        target_bounds: Declared (low, high) of the target; values outside are clipped. None:
            estimated with DP.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> x, y = load_diabetes(return_X_y=True)
        >>> declared = {"bounds": (-0.2, 0.2), "target_bounds": (0, 400)}
        >>> model = PrivateArchitectureSearchRegressor(epsilon=4.0, **declared).fit(x, y)
        >>> model.predict(x[:3]).shape
        (3,)
    """

    target_bounds: Pair | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Search and train.

        Args:
            X: Records, (records, features): numbers, booleans or strings, an array or a frame.
            y: Targets, numbers (records,).

        Raises:
            UsageError: A setting of bad form, or one that does not fit X.
            BudgetError: The budget is too small, for the plan or in the ledger; nothing was read.
            ValueError: X or y of bad form; with `assume_public_schema` also a non-finite y.

        Cost: the budget; with a ledger, reserved there before a record is read.
        """
        kinds, cells, labels = self._check_input(X, y)
        name = self._target_name(y, cells.shape[1])
        target, numbers = self._make_number_target(name, labels, self.target_bounds)
        self._search(kinds, cells, numbers, target)
        return self

    def predict(self, X: Any) -> Array:
        """Predict the target of each record, float64, (records,)."""
        outputs = self._compute_outputs(X)
        return self.result_.schema.decode_number(outputs[:, 0])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute R squared: noisy and charged with a ledger, otherwise exact.

        Guarantee: with a ledger, the result is `score_epsilon`-differentially private for one
        scored record; targets are clipped to the target's bounds. Without a ledger there is no
        guarantee, and the first score of a process warns.

        Args:
            X: Records, with the columns of the fit.
            y: Targets, numbers (records,).
            sample_weight: Weight of each record, (records,); must be None with a ledger.

        Raises:
            BudgetError: The score exceeds the ledger's remaining budget; no target was read.

        Cost: `score_epsilon` per call, on the ledger.
        """
        predicted = self.predict(X)
        labels = column_or_1d(check_labels(y, read=False))
        check_consistent_length(predicted, labels)
        charged = self._begin_score(len(labels), sample_weight)
        numbers = convert_to_numbers(labels)
        if charged is None:
            return float(r2_score(numbers, predicted, sample_weight=sample_weight))
        low = self.result_.schema.decode_number(np.zeros(1))[0]
        width = self.result_.schema.decode_number(np.ones(1))[0] - low
        target, answer = (np.clip((each - low) / width, 0.0, 1.0) for each in (numbers, predicted))
        return noisy_r_squared(target, answer, *charged)
