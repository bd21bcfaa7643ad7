"""scikit-learn estimators: an architecture search under one budget, behind `fit` and `predict`.

    fit(X, y)  ->  form of X and y  ->  schema (declared, bought, or assumed public)
               ->  `search_architecture`, charged before it reads  ->  document, card and weights

Only the *form* of X and y (shape, number types, names of columns) is looked at outside a charge,
so a value neither stops a fit nor is named: one that cannot be used is missing, or makes its record
the null record. Under `assume_public_schema` what is not declared is read for nothing, and then y
is also checked as other estimators check it.

| X | without `bounds` | bounds=(low, high) | bounds a feature |
|---|---|---|---|
| numbers | range bought, ten bins | as declared, no bins | as declared, ten bins |
| truth values | categories False and True | the same; an array: as numbers | the same |
| texts, categories | categories bought | the same | the same |

What all fits on one data set cost together is kept in a file, `ledger`, never in the estimator: a
clone has the path, so it is refused where the original would be.

Source: docs/rules.md, rules 1, 3, 12 and 13; scikit-learn, "Developing scikit-learn estimators".
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite, check_consistent_length
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from pasearch.accounting.accountants import Price
from pasearch.accounting.budget import Budget
from pasearch.api.search import search_architecture
from pasearch.data.cells import as_numbers, as_text
from pasearch.data.column import Column
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.tables import TableSchema
from pasearch.errors import BudgetError, InterruptedRunError
from pasearch.results import network_of, price_of, release_of, schema_of
from pasearch.sklearn_api.inputs import (
    ALIKE,
    array_schema,
    column_of,
    declared_labels,
    formed,
    formed_labels,
    kind_of,
    kinds_of_frame,
    labels_of,
    mixed,
    names_of,
    pair_of,
    pairs_of,
    read_labels,
)

if TYPE_CHECKING:
    from torch import nn

    from pasearch.data.tables import AnySchema
    from pasearch.results import SearchResult

NAME = "arrays"
"""What plan and card call the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResult:
    """A finished search as values, which outlive the run's folder.

    Args:
        document: `result.json`; docs/result.md describes every field.
        card: The privacy card, Markdown.
        weights: `model.pt`.
    """

    document: dict[str, Any]
    card: str
    weights: bytes = field(repr=False)

    @classmethod
    def of(cls, result: SearchResult) -> KeptResult:
        """Return what a finished run has released."""
        weights = release_of(result.path) / result.document["model"]["file"]
        return cls(document=result.document, card=result.card, weights=weights.read_bytes())

    @property
    def price(self) -> Price:
        """What the whole run cost."""
        return price_of(self.document)

    @property
    def schema(self) -> AnySchema:
        """The schema of the records: declared, bought or assumed public."""
        return schema_of(self.document)

    def network(self) -> nn.Module:
        """Return front end and network: they take records as the schema encodes them."""
        return network_of(self.document, self.weights)

    def outputs(self, cells: np.ndarray) -> np.ndarray:
        """Return what the network says of new records, float64, (rows, schema.outputs).

        Args:
            cells: (rows, features), in the data's own units; one not finite is missing.
        """
        import torch

        schema = self.schema
        if isinstance(schema, Schema) and cells.dtype.kind not in "iufb":
            cells = np.column_stack([as_numbers(column) for column in cells.T])
        with torch.no_grad():
            outputs = self.network()(torch.from_numpy(schema.encode_new(cells)))
        return outputs.numpy().astype(np.float64)


class _PrivateArchitectureSearch(BaseEstimator):
    """What both estimators share. The constructor stores its arguments; `fit` checks them."""

    result_: KeptResult
    price_: Price

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float | None,
        strategy: str,
        space: Any,
        bounds: Any,
        assume_public_schema: bool,
        max_categories: int,
        ledger: str | Path | None,
        ledger_budget: tuple[float, float] | None,
        candidates: float | None,
        search_share: float,
        steps: int | None,
        batch: int | None,
        device: str,
        secure_noise: bool,
        random_state: int | None,
        out: str | Path | None,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.strategy = strategy
        self.space = space
        self.bounds = bounds
        self.assume_public_schema = assume_public_schema
        self.max_categories = max_categories
        self.ledger = ledger
        self.ledger_budget = ledger_budget
        self.candidates = candidates
        self.search_share = search_share
        self.steps = steps
        self.batch = batch
        self.device = device
        self.secure_noise = secure_noise
        self.random_state = random_state
        self.out = out

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags

    def _checked(self, X: Any, y: Any) -> tuple[list[str | None], np.ndarray, np.ndarray]:
        """Return each feature's kind, the cells and the labels; no value is looked at."""
        kinds = kinds_of_frame(X)
        y = y if y is None else formed_labels(y, read=bool(self.assume_public_schema))
        # A y of None is refused there; any other is checked below, by its form alone.
        given = {"y": None} if y is None else {}
        cells = self._cells(X, ensure_min_samples=2, **given)
        labels = column_or_1d(y, warn=True)
        check_consistent_length(cells, labels)
        if kinds is None:
            kinds = [kind_of(cells.dtype)] * cells.shape[1]
        return kinds, cells, labels

    def _search(
        self, kinds: list[str | None], cells: np.ndarray, labels: np.ndarray, target: Column
    ) -> AnySchema:
        """Run the search, keep what it releases, and return the complete schema."""
        if self.random_state is not None:
            warnings.warn(
                "random_state makes the noise reproducible, so the fit is not private: leave it "
                "out for private data.",
                UserWarning,
                stacklevel=3,
            )
        dataset = self._dataset(kinds, cells, labels, target)
        folder = tempfile.TemporaryDirectory() if self.out is None else nullcontext()
        with folder as temporary:
            try:
                result = search_architecture(
                    dataset,
                    budget=Budget(self.epsilon, self.delta),
                    out=self.out if temporary is None else Path(temporary) / "run",
                    strategy=self.strategy,
                    space=self.space,
                    assume_public_schema=self.assume_public_schema,
                    max_categories=self.max_categories,
                    ledger=self.ledger,
                    ledger_budget=self.ledger_budget,
                    candidates=self.candidates,
                    search_share=self.search_share,
                    steps=self.steps,
                    batch=self.batch,
                    device=self.device,
                    secure_noise=self.secure_noise,
                    seed=self.random_state,
                )
            except InterruptedRunError:
                if temporary is None:
                    raise
                # Its message names a folder to resume, and that one is going away.
                raise KeyboardInterrupt from None
            self.result_ = KeptResult.of(result)
        self.price_ = self.result_.price
        return self.result_.schema

    def _dataset(
        self, kinds: list[str | None], cells: np.ndarray, labels: np.ndarray, target: Column
    ) -> Dataset:
        """Return the records under the schema that is declared; see the table above."""
        pairs, alike = pairs_of(self.bounds, len(kinds))
        numbers = cells.dtype.kind in "iufb"
        known = target.kind == "number" or target.declared
        if alike and numbers and known:
            low, high = pairs[0] or (None, None)
            schema = array_schema(cells.shape[1], low, high, target)
            if target.kind == "category":
                # A label of no declared class is -1: the null record.
                codes, valid = TableSchema(columns=(), target=target).encode_labels(labels)
                labels = np.where(valid, codes, -1)
            return Dataset(name=NAME, schema=schema, features=cells, labels=labels)
        names = names_of(self, len(kinds))
        columns = tuple(
            column_of(name, kind, pair, alike=alike, lone=not numbers and len(set(kinds)) == 1)
            for name, kind, pair in zip(names, kinds, pairs, strict=True)
        )
        table = TableSchema(columns=columns, target=target, name=NAME)
        return Dataset(name=NAME, schema=table, features=cells, labels=labels)

    def _target_name(self, y: Any, features: int) -> str:
        """Return the name of y if it has one, and no feature has it."""
        name, taken = getattr(y, "name", None), names_of(self, features)
        name = name if isinstance(name, str) and name else "target"
        while name in taken:
            name += "_"
        return name

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "result_")
        return self.result_.outputs(self._cells(X, reset=False))

    def _cells(self, X: Any, **form: Any) -> np.ndarray:
        """Return X as an array, checked by its form alone."""
        bounds = self.bounds if form.get("reset", True) else None
        X = mixed(X) if self.assume_public_schema else formed(X, bounds=bounds)
        cells: Any = validate_data(self, X, dtype=None, ensure_all_finite=False, **form)
        return cells


class PrivateArchitectureSearchClassifier(ClassifierMixin, _PrivateArchitectureSearch):
    """A classifier whose architecture is searched, and trained, under one (epsilon, delta).

    Guarantee: everything a fit leaves in the estimator, together, is (epsilon, delta)-DP under
    zero-out adjacency, as `result_.card` states; with a `ledger`, all fits that share it are
    together so at the ledger's total. Not covered: `random_state`, and what
    `assume_public_schema` reads. Predictions are members of `classes_`.

    Args:
        epsilon: Of a whole fit, above 0.
        delta: Of a whole fit; None takes the largest power of ten below 1/n.
        strategy: One of `search.strategy.STRATEGIES`, or "auto".
        space: A built-in space, a TOML path, a dictionary, or "auto".
        bounds: Declared (low, high) of all features, or a sequence with a (low, high) or None for
            each. What is not declared is bought from the records.
        classes: The declared labels, two or more. None: bought; labels of dtype object then come
            back as texts.
        assume_public_schema: What is not declared is read from the records for nothing.
        max_categories: The most categories, or classes, that are bought for a column.
        ledger: A file that adds up all fits on one data set, and refuses one that is too much.
        ledger_budget: (epsilon, delta) of them all together, for a ledger that is not there yet.
        candidates: See `search.strategies.strategy`.
        search_share: Share of the training slots set aside for the search.
        steps: Number of steps, instead of the default for n.
        batch: Expected batch size, instead.
        device: "auto", "cpu" or "cuda".
        secure_noise: Everything random comes from AES-256: batches and candidates too.
        random_state: Makes the noise reproducible, and the fit not private: tests only.
        out: Folder of the run, which must not exist (so not for cross-validation); None takes a
            temporary one, deleted after the fit.

    Attributes:
        classes_: The class labels, sorted.
        n_features_in_: Number of features.
        feature_names_in_: Their names, if X was a frame.
        result_: `KeptResult`: the document, the card and the weights.
        price_: What the fit cost.

    Cost: epsilon and delta, each fit; predictions cost nothing.
    """

    classes_: np.ndarray

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        strategy: str = "auto",
        space: Any = "auto",
        bounds: Any = None,
        classes: Iterable[Any] | None = None,
        assume_public_schema: bool = False,
        max_categories: int = 32,
        ledger: str | Path | None = None,
        ledger_budget: tuple[float, float] | None = None,
        candidates: float | None = None,
        search_share: float = 0.0,
        steps: int | None = None,
        batch: int | None = None,
        device: str = "auto",
        secure_noise: bool = False,
        random_state: int | None = None,
        out: str | Path | None = None,
    ):
        super().__init__(
            epsilon=epsilon, delta=delta, strategy=strategy, space=space, bounds=bounds,
            assume_public_schema=assume_public_schema, max_categories=max_categories,
            ledger=ledger, ledger_budget=ledger_budget, candidates=candidates,
            search_share=search_share, steps=steps, batch=batch, device=device,
            secure_noise=secure_noise, random_state=random_state, out=out,
        )  # fmt: skip
        self.classes = classes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Search and train.

        Args:
            X: (records, features): numbers, truth values or texts, an array or a frame.
            y: (records,): labels.

        Raises:
            UsageError: A setting of bad form, or one that does not fit X.
            BudgetError: The budget is too small: for the plan, in the ledger (then nothing was
                read), or for any class to be found (then it was charged).
            ValueError: X or y of bad form; under `assume_public_schema` also y of one class.

        Cost: the budget; with a ledger, reserved there before a record is read.
        """
        kinds, cells, labels = self._checked(X, y)
        if labels.dtype.kind not in (*ALIKE, "O"):
            raise ValueError(f"Unknown label type: y is of type {labels.dtype}.")
        name = self._target_name(y, cells.shape[1])
        known: np.ndarray | None = None
        names: Any = None
        if self.classes is not None:
            known = declared_labels(self.classes, labels.dtype)
            names = tuple(as_text(known))
        elif self.assume_public_schema is True:
            known = read_labels(labels)
        # Names that are None or not different are refused by the column.
        target = Column(name=name, kind="category", categories=names)
        schema = self._search(kinds, cells, labels, target)
        if isinstance(schema, TableSchema):
            names = schema.target.categories
        if not names:
            raise BudgetError(
                "No class was frequent enough to be bought at this budget, and the fit was "
                "charged: declare `classes`, or take a larger epsilon."
            )
        found = labels_of(names, known, labels.dtype)
        self._order = np.argsort(found)
        self.classes_ = found[self._order]
        return self

    def _scores(self, X: Any) -> np.ndarray:
        """Return a score for each of `classes_`, (records, classes)."""
        outputs = self._outputs(X)
        return outputs[:, self._order]

    def predict(self, X: Any) -> np.ndarray:
        """Return the most likely of `classes_` for each record, (records,)."""
        scores = self._scores(X)
        return self.classes_[scores.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each of `classes_`, (records, classes)."""
        return softmax(self._scores(X), axis=1)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return scores, (records, classes); of two classes, the second's lead, (records,)."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores


class PrivateArchitectureSearchRegressor(RegressorMixin, _PrivateArchitectureSearch):
    """A regressor whose architecture is searched, and trained, under one (epsilon, delta).

    Guarantee, Args, Attributes, Cost: as of `PrivateArchitectureSearchClassifier`, without
    `classes` and `classes_`.

    Args:
        target_bounds: Declared (low, high) of what is predicted; values outside are clamped. None:
            bought.
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        strategy: str = "auto",
        space: Any = "auto",
        bounds: Any = None,
        target_bounds: tuple[float, float] | None = None,
        assume_public_schema: bool = False,
        max_categories: int = 32,
        ledger: str | Path | None = None,
        ledger_budget: tuple[float, float] | None = None,
        candidates: float | None = None,
        search_share: float = 0.0,
        steps: int | None = None,
        batch: int | None = None,
        device: str = "auto",
        secure_noise: bool = False,
        random_state: int | None = None,
        out: str | Path | None = None,
    ):
        super().__init__(
            epsilon=epsilon, delta=delta, strategy=strategy, space=space, bounds=bounds,
            assume_public_schema=assume_public_schema, max_categories=max_categories,
            ledger=ledger, ledger_budget=ledger_budget, candidates=candidates,
            search_share=search_share, steps=steps, batch=batch, device=device,
            secure_noise=secure_noise, random_state=random_state, out=out,
        )  # fmt: skip
        self.target_bounds = target_bounds

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Search and train.

        Args:
            X: (records, features): numbers, truth values or texts, an array or a frame.
            y: (records,): numbers.

        Raises:
            UsageError: A setting of bad form, or one that does not fit X.
            BudgetError: The budget is too small, for the plan or in the ledger; nothing was read.
            ValueError: X or y of bad form; under `assume_public_schema` also a y not finite.

        Cost: the budget; with a ledger, reserved there before a record is read.
        """
        kinds, cells, labels = self._checked(X, y)
        if labels.dtype.kind not in "iufbO":
            raise ValueError(f"y is of type {labels.dtype}: expected numbers.")
        numbers = as_numbers(labels)
        low, high = None, None
        if self.target_bounds is not None:
            low, high = pair_of("target_bounds", self.target_bounds)
        elif self.assume_public_schema is True:
            assert_all_finite(numbers, input_name="y")
        name = self._target_name(y, cells.shape[1])
        target = Column(name=name, kind="number", low=low, high=high)
        self._search(kinds, cells, numbers, target)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted number of each record, float64, (records,)."""
        outputs = self._outputs(X)
        return self.result_.schema.decode_number(outputs[:, 0])
