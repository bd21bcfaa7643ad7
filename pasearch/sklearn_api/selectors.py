"""scikit-learn transformers: private feature selection or projection under one budget.

    fit(X, y)  ->  metadata of X and y  ->  schema (declared, estimated with DP, or assumed public)
               ->  plan without a final model: the selection has the whole epsilon
               ->  the plan is charged, then the records are read
               ->  support of the selected columns, or components; no record is stored

    PrivateCFS    contingency tables with noise, CFS-Greedy on them          Algorithm 3
    PAFS          sets of columns evolve by privately trained models         Algorithm 4
    PrivatePCA    z = (x - mean) scale @ components^T, all three released    Analyze Gauss

Module `fits` explains `bounds` for each kind of X. Numbers have no bins here. If all columns are
numbers, each column is one feature, and a missing number is replaced by the middle of its bounds.
Otherwise the schema encodes a record, and a column is selected if any of its features is selected.

`transform` reads released values and the rows passed to it. It costs nothing, but its output is as
private as these rows.

Source: Bao et al., sections V-B and VIII-B; docs/rules.md, rules 1, 3, 12 and 13; scikit-learn,
"Developing scikit-learn estimators". Proof: docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from pasearch.accounting.accountants import PrivacyCost
from pasearch.accounting.budget import Budget
from pasearch.api.features import make_selection_choice, selection_json
from pasearch.api.lifecycle import (
    Prepared,
    check_ledger_budget,
    check_not_refused,
    describe_environment,
    estimate_schema,
    make_result_head,
    make_result_tail,
    open_ledger_and_keys,
)
from pasearch.api.request import FeatureRequest
from pasearch.api.resolve import assume_public, choose_device, make_plan_terms
from pasearch.data.column import Column
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.split import VALIDATION_FRACTION, Split
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.errors import UsageError
from pasearch.features.model import feature_names
from pasearch.features.plan import FeaturePlan, make_feature_plan
from pasearch.features.selector import SelectionResult
from pasearch.results import FEATURE_SELECTION, parse_price
from pasearch.runs.folder import RunFolder
from pasearch.sklearn_api.fits import DATASET_NAME, Array, Pair, PrivateFit

SCALED_MISSING_VALUE = 0.5
"""Value that replaces a missing number, scaled to [0, 1]: the middle of its bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSelection:
    """Released values of a fitted selector, except the arrays of a PCA.

    Args:
        document: Budget, privacy cost, events and selected features; keys as in `result.json`
            (docs/result.md).
    """

    document: dict[str, Any] = field(repr=False)

    @property
    def price(self) -> PrivacyCost:
        """Privacy cost of the whole fit."""
        return parse_price(self.document)

    @property
    def statement(self) -> str:
        """Guarantee of the fit, in one sentence."""
        price, document = self.price, self.document
        if document["reproducible"]:
            return "None: whoever knows random_state can subtract the noise."
        return (
            f"The released values of this fit are ({price.epsilon:.4g}, {price.delta:g})-"
            f"differentially private for one record, under {document['price']['adjacency']}; "
            f"accountant: {price.accountant}."
        )

    @property
    def card(self) -> str:
        """Privacy card of the fit, Markdown."""
        from pasearch.report.card import card_markdown

        return card_markdown(self.document)


def run_selection(
    request: FeatureRequest, table: TableSchema, cells: Array, labels: Array, types: tuple[str, ...]
) -> tuple[SelectionResult, TableSchema, dict[str, Any]]:
    """Plan, charge and run a selection in a temporary folder, which is deleted with its keys.

    The selection reads all records. If it needs scores or estimates, these read a tenth of the
    records, and the selection reads the others.

    Args:
        request: Settings of the run.
        table: Declared schema.
        cells: Records in the data's units, (records, columns): private.
        labels: Targets, (records,): private.
        types: Names of data types that are assumed public.

    Returns:
        The selection, the complete schema without bins, and the document of `FitSelection`.
    """
    from pasearch.features.engine import FeatureSearch

    dataset, assumed = _make_dataset(_remove_bins(table), cells, labels, types), ()
    if request.assume_public_schema:
        dataset, assumed = assume_public(dataset, request.max_categories)
    known: Any = dataset.schema
    if known.complete:
        dataset = _prepare_dataset(known, cells, labels, types)
    # Methods that train no candidates ignore the trainer.
    trainer = "objective" if request.trainer == "auto" else request.trainer
    choice = make_selection_choice(request, request.method, trainer)
    scored = choice.selector.trains_candidates or bool(dataset.schema.undeclared)
    kept = max(1, round(dataset.n * VALIDATION_FRACTION)) if scored else 0
    split = Split(train=dataset.n - kept, validation=kept, test=0)
    terms = make_plan_terms(request, dataset, split, assumed)
    plan = make_feature_plan(terms, choice=choice, final=False)
    check_ledger_budget(request)
    prepared = Prepared(request=request, dataset=dataset, plan=plan)
    check_not_refused(prepared)
    device, estimated = choose_device(request), plan.schema.undeclared
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder.create(Path(temporary) / "run", DATASET_NAME)
        with open_ledger_and_keys(prepared, folder, device, resumed=False) as (ledger, keys):
            try:
                dataset.partition(plan.split, keys.stream("split").generator())
                if plan.estimates_schema:
                    known = estimate_schema(plan, dataset, ledger, keys, folder).schema
                    # Each partition gets the same records, as the split depends on n alone.
                    dataset = _prepare_dataset(known, cells, labels, types)
                    dataset.partition(plan.split, keys.stream("split").generator())
                    plan = replace(plan, schema=dataset.schema)
                complete = _remove_bins(known)
                chosen = FeatureSearch(
                    plan=plan, dataset=dataset, ledger=ledger, keys=keys, device=device,
                    columns=_list_column_indices(complete),
                ).choose()  # fmt: skip
                prepared = replace(prepared, plan=plan)
                document = _make_document(
                    prepared, complete, estimated, chosen, device, keys.reproducible
                )
            finally:
                keys.destroy()
    return chosen, complete, document


def _make_dataset(
    schema: AnySchema, cells: Array, labels: Array, types: tuple[str, ...]
) -> Dataset:
    """Make the data set of a fit."""
    return Dataset(name=DATASET_NAME, schema=schema, features=cells, labels=labels, assumed=types)


def _prepare_dataset(
    table: TableSchema, cells: Array, labels: Array, types: tuple[str, ...]
) -> Dataset:
    """Make the data set with a complete schema, in which numbers alone are scaled to [0, 1]."""
    if not _has_only_numbers(table):
        return _make_dataset(_remove_bins(table), cells, labels, types)
    schema = Schema(
        shape=(len(table.columns),), low=0.0, high=1.0, classes=table.classes,
        target=table.target_bounds, regression=table.regression,
    )  # fmt: skip
    if not table.regression:
        # A label of an unknown class becomes -1, which marks the null record.
        codes, valid = table.encode_labels(labels)
        labels = np.where(valid, codes, -1)
    return _make_dataset(schema, scale_columns(table, cells).astype(np.float32), labels, types)


def _make_document(
    prepared: Prepared[FeaturePlan], table: TableSchema, estimated: tuple[str, ...],
    chosen: SelectionResult, device: str, reproducible: bool,
) -> dict[str, Any]:  # fmt: skip
    """Make the document of `FitSelection`."""
    plan, owners = prepared.plan, _list_column_indices(table)
    names = feature_names(table, len(owners))
    if _has_only_numbers(table):
        names = [column.name for column in table.columns]
    best, shown = selection_json(chosen, names)
    document = make_result_head(plan, FEATURE_SELECTION)
    document["dataset"]["schema"] = table.to_json()
    columns = [table.columns[owners[place]].name for place in best["places"]]
    made = describe_environment(prepared, device, reproducible)
    return {
        **document,
        "best": {**best, "columns": list(dict.fromkeys(columns))},
        "estimated_privately": [
            column.describe()
            for column in (*table.columns, table.target)
            if column.name in estimated
        ],
        **make_result_tail(plan, made),
        **shown,
    }


def _has_only_numbers(table: TableSchema) -> bool:
    """Check whether all columns are numbers."""
    return all(column.kind == "number" for column in table.columns)


def _remove_bins(table: TableSchema) -> TableSchema:
    """Return the schema without bins of numbers."""
    columns = (replace(c, bins=0) if c.kind == "number" else c for c in table.columns)
    return replace(table, columns=tuple(columns))


def _list_column_indices(table: TableSchema) -> Array:
    """Return the index of the column of each feature, (features,)."""
    widths = [1 if _has_only_numbers(table) else column.width for column in table.columns]
    return np.repeat(np.arange(len(widths)), widths)


def column_offsets_and_widths(table: TableSchema) -> tuple[Array, Array]:
    """Return the lower bound, and the width of the bounds, of each number, (columns,) each."""
    bounds = np.array([column.bounds for column in table.columns], np.float64)
    return bounds[:, 0], bounds[:, 1] - bounds[:, 0]


def scale_columns(table: TableSchema, cells: Array) -> Array:
    """Scale numbers to [0, 1] by their bounds, float64 (rows, columns)."""
    scaled = np.empty(cells.shape)
    for place, column in enumerate(table.columns):
        values, known = column.scale_numbers(cells[:, place])
        scaled[:, place] = np.where(known, values, SCALED_MISSING_VALUE)
    return scaled


class _PrivateTransformer(PrivateFit):
    """Base class of the three transformers."""

    METHOD: ClassVar[str]
    """Name of the selection method, a key of `features.selector.SELECTORS`."""

    def _run_selection(
        self, columns: tuple[Column, ...], cells: Array, target: Column, labels: Array,
        **options: Any,
    ) -> tuple[SelectionResult, TableSchema]:  # fmt: skip
        """Run the selection, set the attributes of the fit, and return it with the full schema."""
        self._warn_of_random_state()
        request = FeatureRequest(
            data=DATASET_NAME, budget=Budget(self.epsilon, self.delta), method=self.METHOD,
            max_categories=self.max_categories, assume_public_schema=self.assume_public_schema,
            ledger=self.ledger, ledger_budget=self.ledger_budget, force=self.force,
            seed=self.random_state, **options,
        )  # fmt: skip
        if request.k is not None and not request.k <= len(columns):
            raise UsageError(
                f"k is {request.k}: expected at most {len(columns)}, the number of columns."
            )
        table = TableSchema(columns=columns, target=target, name=DATASET_NAME)
        chosen, complete, document = run_selection(request, table, cells, labels, self._types)
        self.result_ = FitSelection(document=document)
        self.price_ = self.result_.price
        self._count_fit(self.price_)
        return chosen, complete


@dataclass(kw_only=True, eq=False, repr=False)
class _PrivateSelector(SelectorMixin, _PrivateTransformer):
    """Base class of the selectors of columns."""

    classes: Iterable[Any] | None = None
    regression: bool = False
    target_bounds: Pair | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Select columns.

        Args:
            X: Records, (records, columns): numbers, booleans or strings, an array or a frame.
            y: Labels, (records,); with `regression`, numbers.

        Raises:
            UsageError: A setting of bad form, or one that does not fit X.
            BudgetError: The budget is too small: for the plan, in the ledger (then nothing was
                read), or to find any class (then it was charged).
            ValueError: X or y of bad form; with `assume_public_schema` also y of one class.

        Cost: the budget; with a ledger, reserved there before a record is read.
        """
        kinds, cells, labels = self._check_input(X, y)
        target, labels = self._make_target(self._target_name(y, cells.shape[1]), y, labels)
        columns = self._make_columns(kinds, cells)
        chosen, complete = self._run_selection(columns, cells, target, labels, **self._options())
        self.support_ = np.zeros(len(columns), bool)
        self.support_[_list_column_indices(complete)[list(chosen.order)]] = True
        return self

    def transform(self, X: Any) -> Any:
        """Return the selected columns with unchanged cells; a frame stays a frame.

        Args:
            X: Records with the columns of the fit.

        Cost: none. The result is as private as X.
        """
        if not hasattr(X, "iloc"):
            return super().transform(X)
        support = self.get_support()
        validate_data(self, X, reset=False, skip_check_array=True)
        return X.iloc[:, support]

    def _options(self) -> dict[str, Any]:
        """Return the options of the request that only this selector has."""
        raise NotImplementedError

    def _make_target(self, name: str, y: Any, labels: Array) -> tuple[Column, Array]:
        """Make the target column; return it and the targets in the form that the engine reads."""
        if self.regression:
            if self.classes is not None:
                raise UsageError(
                    "classes and regression=True exclude each other: remove one of them."
                )
            return self._make_number_target(name, labels, self.target_bounds)
        if self.target_bounds is not None:
            raise UsageError(
                "target_bounds require regression=True: set it, or remove target_bounds."
            )
        return self._make_class_target(name, y, labels, self.classes)[0], labels

    def _get_support_mask(self) -> Any:
        check_is_fitted(self, "support_")
        return self.support_


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateCFS(_PrivateSelector):
    """Selector of columns by CFS-Greedy on noisy contingency tables.

    Guarantee: all attributes that a fit sets are together (epsilon, delta)-DP under zero-out
    adjacency. The result of `transform` is as private as the records that are passed to it.

    Args:
        epsilon: Total epsilon of a fit, above 0, all for the selection.
        delta: Total delta of a fit; None: the largest power of ten below 1/n.
        k: Number of selected columns; None: the columns of the features with the largest merit.
        merits: Noisy statistics from which merits are computed: "tables" or "entropies"
            (`features.cfs.CFSGreedy`).
        bounds: Feature bounds, see `PrivateFit`; the same for `schema`, `assume_public_schema`,
            `max_categories`, `ledger`, `ledger_budget`, `force` and `random_state`.
        classes: Declared labels, two or more; None: estimated with DP.
        regression: Whether the targets are numbers instead of classes.
        target_bounds: Declared (low, high) of a numeric target; None: estimated with DP.

    Attributes:
        support_: True for a selected column, (columns,) bool.
        result_: `FitSelection` with the released values; other attributes see `PrivateFit`.

    Cost: epsilon and delta per fit; `transform` costs nothing.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> selector = PrivateCFS(epsilon=2.0, k=5, bounds=(0, 16), classes=range(10))
        >>> selector.fit_transform(x, y).shape
        (1797, 5)

    Source: Bao et al., section VIII-B, Algorithm 3; docs/features.md.
    """

    METHOD = "cfs-greedy"

    k: int | None = None
    merits: str = "tables"

    def _options(self) -> dict[str, Any]:
        return {"k": self.k, "merits": self.merits, "regression": self.regression, "device": "cpu"}


@dataclass(kw_only=True, eq=False, repr=False)
class PAFS(_PrivateSelector):
    """Selector of columns by PAFS: a genetic search for the set with the best private model.

    Guarantee, Attributes, Cost: same as `PrivateCFS`. The plan charges population x generations
    trainings and scores, and `result_` contains the noisy scores.

    Args:
        population: Number of sets per generation, 2 or more.
        generations: Number of generations, 1 or more.
        trainer: Training method of the linear model of a set, "objective" or "dpsgd"
            (`features.trainers.TRAINERS`).
        bounds: Feature bounds; this and all other parameters are as in `PrivateCFS`. Undeclared
            bounds are estimated with DP from the tenth of the records that the scores use.
        device: "auto", "cpu" or "cuda".

    Example:
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> declared = {"bounds": (0, 16), "classes": range(10)}
        >>> selector = PAFS(epsilon=2.0, population=2, generations=1, **declared)
        >>> selector.fit(x, y).support_.shape
        (64,)

    Source: Bao et al., section VIII-B, Algorithm 4; docs/features.md.
    """

    METHOD = "pafs"

    population: int = 20
    generations: int = 3
    trainer: str = "objective"
    device: str = "auto"

    def _options(self) -> dict[str, Any]:
        return {
            "population": self.population, "generations": self.generations,
            "trainer": self.trainer, "regression": self.regression, "device": self.device,
        }  # fmt: skip


@dataclass(kw_only=True, eq=False, repr=False)
class PrivatePCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _PrivateTransformer):
    """Projection of records on principal components of noisy second moments.

        z = (x - mean_) scale_ @ components_^T

    x is a record of numbers, clipped to the bounds; a missing number is replaced by their middle.
    If there are other columns, x is the record encoded by the schema, in [0, 1]. Mean, scale and
    components are released. `scale_` divides by the square root of the standard deviation that the
    mean implies, so that the components do not depend on the width of the bounds.

    Guarantee, Cost: same as `PrivateCFS`. y is ignored.

    Args:
        epsilon: Total epsilon of a fit, above 0; a tenth of it is for the means.
        n_components: Number of components, 1 to the number of columns; None: d^(2/3) for d columns.
        bounds: Feature bounds; this and all other parameters are as in `PrivateCFS`.

    Attributes:
        components_: Orthonormal directions, (components, d), by decreasing second moment.
        mean_: Noisy means, (d,), in the data's units.
        scale_: Factors by which the centred features are multiplied, (d,), above 0.
        result_: `FitSelection` with the released values; other attributes see `PrivateFit`.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> PrivatePCA(epsilon=2.0, n_components=8, bounds=(0, 16)).fit_transform(x).shape
        (1797, 8)

    Source: docs/rules.md, "Sensitivities" (PCA); Dwork et al. 2014, "Analyze Gauss".
    """

    METHOD = "pca"

    n_components: int | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Compute the components.

        Args:
            X: Records, (records, columns): numbers, booleans or strings, an array or a frame.
            y: Ignored.

        Raises:
            UsageError: A setting of bad form, or one that does not fit X.
            BudgetError: The budget is too small, for the plan or in the ledger; nothing was read.
            ValueError: X of bad form.

        Cost: the budget; with a ledger, reserved there before a record is read.
        """
        kinds, cells = self._check_columns(X)
        # The engine requires a target column, so all records get the target 0.
        name = self._target_name(None, cells.shape[1])
        unused = Column(name=name, kind="number", low=0.0, high=1.0)
        chosen, self._table = self._run_selection(
            self._make_columns(kinds, cells), cells, unused, np.zeros(len(cells)),
            k=self.n_components, regression=True, device="cpu",
        )  # fmt: skip
        view = chosen.view
        assert view.rotation is not None
        low, width = (
            column_offsets_and_widths(self._table) if _has_only_numbers(self._table) else (0.0, 1.0)
        )
        self.components_ = np.ascontiguousarray(view.rotation.T)
        self.mean_ = low + view.shift * width
        self.scale_ = view.scale / width
        return self

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def transform(self, X: Any) -> Array:
        """Project records, float64, (records, components).

        Args:
            X: Records with the columns of the fit.

        Cost: none. The result is as private as X.
        """
        check_is_fitted(self, "components_")
        cells = self._cells(X, reset=False)
        if _has_only_numbers(self._table):
            low, width = column_offsets_and_widths(self._table)
            rows = low + scale_columns(self._table, cells) * width
        else:
            rows = self._table.encode_new(cells).astype(np.float64)
        return (rows - self.mean_) * self.scale_ @ self.components_.T

    def inverse_transform(self, X: Any) -> Array:
        """Reconstruct records from their projections, float64, (records, columns).

        Args:
            X: Projections, (records, components).

        Raises:
            UsageError: The fit had columns other than numbers, which cannot be reconstructed.
        """
        check_is_fitted(self, "components_")
        if not _has_only_numbers(self._table):
            raise UsageError(
                "inverse_transform requires a fit on numbers only, without categories or words."
            )
        return np.asarray(X, np.float64) @ self.components_ / self.scale_ + self.mean_
