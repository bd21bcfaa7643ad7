"""scikit-learn transformers: features chosen, or projected, under one budget, behind `fit`.

    fit(X, y)  ->  form of X and y  ->  schema (declared, estimated privately, or assumed public)
               ->  plan without a final model: all of epsilon is for the choice
               ->  charged, then read  ->  the support, or the components; nothing else is kept

    PrivateCFS    contingency tables with noise, CFS-Greedy on them          Algorithm 3
    PAFS          sets of columns evolve by privately trained models         Algorithm 4
    PrivatePCA    z = (x - mean) scale @ components^T, all three released    Analyze Gauss

What `bounds` mean for each kind of X is in `fits`; a number has no bins here. Where all columns are
numbers, a missing one stands in the middle of its bounds, and features are columns; otherwise a
record is encoded as the schema says, and a column is kept if any of its features was chosen.

`transform` reads released values and the rows it is given. It costs nothing, but on the records of
the fit its output is as private as they are.

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
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

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
from pasearch.sklearn_api.fits import DATASET_NAME, Array, Pair, PrivateFit, check_labels

SCALED_MISSING_VALUE = 0.5
"""Where a missing number stands within its bounds, scaled to [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSelection:
    """A finished choice as values: all that its fit has released, but for the arrays of a PCA.

    Args:
        document: Budget, price, events and what was chosen; a key means what it means in
            `result.json` (docs/result.md).
    """

    document: dict[str, Any] = field(repr=False)

    @property
    def price(self) -> PrivacyCost:
        """What the whole fit cost."""
        return parse_price(self.document)

    @property
    def statement(self) -> str:
        """What is promised, in one sentence."""
        price, document = self.price, self.document
        if document["reproducible"]:
            return "None: whoever knows random_state can subtract the noise."
        return (
            f"What this fit has released is ({price.epsilon:.4g}, {price.delta:g})-differentially "
            f"private for one record, under {document['price']['adjacency']}; bound by "
            f"{price.accountant}."
        )

    @property
    def card(self) -> str:
        """The privacy card of the fit, as Markdown."""
        from pasearch.report.card import card_markdown

        return card_markdown(self.document)


def run_selection(
    request: FeatureRequest, table: TableSchema, cells: Array, labels: Array, types: tuple[str, ...]
) -> tuple[SelectionResult, TableSchema, dict[str, Any]]:
    """Plan, charge and choose. The run's folder and its keys are destroyed, whatever happens.

    All records are for the choice, but a tenth for scores and for estimates.

    Args:
        request: Settings of the run.
        table: Declared schema.
        cells: Records in the data's own units, (records, columns): private.
        labels: What is predicted, (records,): private.
        types: What the form of the records takes as public.

    Returns:
        The choice, the complete schema without bins, and the document of `FitSelection`.
    """
    from pasearch.features.engine import FeatureSearch

    dataset, assumed = _make_dataset(_remove_bins(table), cells, labels, types), ()
    if request.assume_public_schema:
        dataset, assumed = assume_public(dataset, request.max_categories)
    known: Any = dataset.schema
    if known.complete:
        dataset = _prepare_dataset(known, cells, labels, types)
    # Without candidates it does not matter how they are trained.
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
                    # The same records in each partition, as the permutation sees no value.
                    dataset = _prepare_dataset(known, cells, labels, types)
                    dataset.partition(plan.split, keys.stream("split").generator())
                    plan = replace(plan, schema=dataset.schema)
                complete = _remove_bins(known)
                chosen = FeatureSearch(
                    plan=plan, dataset=dataset, ledger=ledger, keys=keys, device=device,
                    columns=_column_of_each_feature(complete),
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
    return Dataset(name=DATASET_NAME, schema=schema, features=cells, labels=labels, assumed=types)


def _prepare_dataset(
    table: TableSchema, cells: Array, labels: Array, types: tuple[str, ...]
) -> Dataset:
    """Prepare records for the choice: numbers alone, or a table encoded without bins.

    Guarantee: record by record, from public or released values.

    Args:
        table: Complete schema.
        cells: Records in the data's own units, (records, columns).
        labels: What is predicted, (records,).
        types: What the form of the records takes as public.
    """
    if not _has_only_numbers(table):
        return _make_dataset(_remove_bins(table), cells, labels, types)
    schema = Schema(
        shape=(len(table.columns),), low=0.0, high=1.0, classes=table.classes,
        target=table.target_bounds, regression=table.regression,
    )  # fmt: skip
    if not table.regression:
        # A label of no known class is -1: the null record.
        codes, valid = table.encode_labels(labels)
        labels = np.where(valid, codes, -1)
    return _make_dataset(schema, scale_columns(table, cells).astype(np.float32), labels, types)


def _make_document(
    prepared: Prepared[FeaturePlan],
    table: TableSchema,
    estimated: tuple[str, ...],
    chosen: SelectionResult,
    device: str,
    reproducible: bool,
) -> dict[str, Any]:
    """Return what a fit has released; see `FitSelection`."""
    plan, owners = prepared.plan, _column_of_each_feature(table)
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
    return all(column.kind == "number" for column in table.columns)


def _remove_bins(table: TableSchema) -> TableSchema:
    """Return the schema of the same columns, whose numbers have no bins."""
    columns = (replace(c, bins=0) if c.kind == "number" else c for c in table.columns)
    return replace(table, columns=tuple(columns))


def _column_of_each_feature(table: TableSchema) -> Array:
    """Return which column each feature belongs to, (d,); of numbers alone, features are columns."""
    widths = [1 if _has_only_numbers(table) else column.width for column in table.columns]
    return np.repeat(np.arange(len(widths)), widths)


def column_offsets_and_widths(table: TableSchema) -> tuple[Array, Array]:
    """Return each number's lower bound and the width of its bounds, (columns,)."""
    bounds = np.array([column.bounds for column in table.columns], np.float64)
    return bounds[:, 0], bounds[:, 1] - bounds[:, 0]


def scale_columns(table: TableSchema, cells: Array) -> Array:
    """Return numbers within their bounds, scaled to [0, 1], float64 (rows, columns)."""
    scaled = np.empty(cells.shape)
    for place, column in enumerate(table.columns):
        values, known = column.scale_numbers(cells[:, place])
        scaled[:, place] = np.where(known, values, SCALED_MISSING_VALUE)
    return scaled


class _PrivateChoice(PrivateFit):
    """What all three share."""

    METHOD: ClassVar[str]
    """One of `features.selector.SELECTORS`."""

    def _choose(
        self,
        columns: tuple[Column, ...],
        cells: Array,
        target: Column,
        labels: Array,
        **options: Any,
    ) -> tuple[SelectionResult, TableSchema]:
        """Run the choice, keep what it releases, and return it with the complete schema.

        Args:
            columns: What is declared of each.
            cells: (records, columns).
            target: What is declared of what is predicted.
            labels: (records,).
            options: Of the request, beside those that every selector has.
        """
        self._warn_of_random_state()
        request = FeatureRequest(
            data=DATASET_NAME, budget=Budget(self.epsilon, self.delta), method=self.METHOD,
            max_categories=self.max_categories, assume_public_schema=self.assume_public_schema,
            ledger=self.ledger, ledger_budget=self.ledger_budget, force=self.force,
            seed=self.random_state, **options,
        )  # fmt: skip
        if request.k is not None and not request.k <= len(columns):
            raise UsageError(
                f"{request.k} are to be kept of {len(columns)} columns: expected at most as many."
            )
        table = TableSchema(columns=columns, target=target, name=DATASET_NAME)
        chosen, complete, document = run_selection(request, table, cells, labels, self._types)
        self.result_ = FitSelection(document=document)
        self.price_ = self.result_.price
        self._count(self.price_)
        return chosen, complete


@dataclass(kw_only=True, eq=False, repr=False)
class _PrivateSelector(SelectorMixin, _PrivateChoice):
    """What the selectors of columns share."""

    classes: Iterable[Any] | None = None
    regression: bool = False
    target_bounds: Pair | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Choose columns.

        Args:
            X: (records, columns): numbers, truth values or texts, an array or a frame.
            y: (records,): labels; with `regression`, numbers.

        Raises:
            UsageError: A setting of bad form, or one that does not fit X.
            BudgetError: The budget is too small: for the plan, in the ledger (then nothing was
                read), or for any class to be found (then it was charged).
            ValueError: X or y of bad form; under `assume_public_schema` also y of one class.

        Cost: the budget; with a ledger, reserved there before a record is read.
        """
        # A y of None is refused there, as scikit-learn refuses it.
        kinds, cells = self._formed(X, **({"y": None} if y is None else {}))
        labels = column_or_1d(check_labels(y, read=bool(self.assume_public_schema)), warn=True)
        check_consistent_length(cells, labels)
        target, labels = self._target(self._target_name(y, cells.shape[1]), y, labels)
        columns = self._columns(kinds, cells)
        chosen, complete = self._choose(columns, cells, target, labels, **self._options())
        self.support_ = np.zeros(len(columns), bool)
        self.support_[_column_of_each_feature(complete)[list(chosen.order)]] = True
        return self

    def transform(self, X: Any) -> Any:
        """Return the columns that are kept, with their cells as they are; a frame stays a frame.

        Args:
            X: Records, as in the fit.

        Cost: none; but what comes back is as private as X.
        """
        if not hasattr(X, "iloc"):
            return super().transform(X)
        support = self.get_support()
        validate_data(self, X, reset=False, skip_check_array=True)
        return X.iloc[:, support]

    def _options(self) -> dict[str, Any]:
        """Return what this selector asks for, beside what all do."""
        raise NotImplementedError

    def _target(self, name: str, y: Any, labels: Array) -> tuple[Column, Array]:
        """Return what is declared of y, and it; its values only where they are assumed public."""
        if self.regression:
            if self.classes is not None:
                raise UsageError("classes are not for a number: leave them, or regression, out.")
            return self._number(name, labels, self.target_bounds)
        if self.target_bounds is not None:
            raise UsageError("target_bounds are of a number: say regression=True, or leave it out.")
        return self._class(name, y, labels, self.classes)[0], labels

    def _get_support_mask(self) -> Any:
        check_is_fitted(self, "support_")
        return self.support_


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateCFS(_PrivateSelector):
    """Keeps the columns that correlation-based selection chooses from noisy contingency tables.

    Guarantee: that of `PrivateFit`; what `transform` returns is not covered.

    Args:
        epsilon: Of a whole fit, above 0; all of it is for the choice.
        delta: Of a whole fit; None takes the largest power of ten below 1/n.
        k: How many columns are kept; None keeps those of the features that have the largest merit.
        merits: "tables" or "entropies"; see `features.cfs.CFSGreedy`.
        bounds: See `PrivateFit`, like `schema`, `assume_public_schema`, `max_categories`,
            `ledger`, `ledger_budget`, `force` and `random_state`.
        classes: The declared labels, two or more; None: estimated privately.
        regression: y is a number and not a class.
        target_bounds: Declared (low, high) of that number; None: estimated privately.

    Attributes:
        support_: Which columns are kept, (columns,) bool.
        result_: `FitSelection`: what was released, as plain values; the rest as of `PrivateFit`.

    Cost: epsilon and delta, each fit; `transform` costs nothing.

    Source: Bao et al., section VIII-B, Algorithm 3; docs/features.md.
    """

    METHOD = "cfs-greedy"

    k: int | None = None
    merits: str = "tables"

    def _options(self) -> dict[str, Any]:
        return {"k": self.k, "merits": self.merits, "regression": self.regression, "device": "cpu"}


@dataclass(kw_only=True, eq=False, repr=False)
class PAFS(_PrivateSelector):
    """Keeps the columns of the set whose privately trained model scored best: PAFS.

    Guarantee, Attributes, Cost: as of `PrivateCFS`. Every planned training and score is charged,
    population times generations of each, and what they scored is in `result_`.

    Args:
        population: Sets of columns a generation, 2 or more.
        generations: How many generations, 1 or more.
        trainer: How a set's linear model is trained: "objective" or "dpsgd"; see
            `features.trainers.TRAINERS`.
        bounds: As of `PrivateCFS`, like all that is not named here; what is not declared is
            estimated privately from the tenth of the records that scores are from.
        device: "auto", "cpu" or "cuda".

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
class PrivatePCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _PrivateChoice):
    """Projects records on principal components of noisy second moments.

        z = (x - mean_) scale_ @ components_^T

    x is a record of numbers within its bounds, a missing one in their middle; with other columns
    among them it is the record as the schema encodes it, in [0, 1]. Mean, scale and components are
    releases; `scale_` divides by the root of the deviation that the mean tells of, so that no bound
    decides what counts.

    Guarantee, Cost: as of `PrivateCFS`. y is ignored.

    Args:
        epsilon: Of a whole fit, above 0; a tenth of it is for the means.
        n_components: How many, at most as many as there are columns; None takes d^(2/3) of d.
        bounds: As of `PrivateCFS`, like all that is not named here.

    Attributes:
        components_: Orthonormal directions, (components, d), the first with the largest moment.
        mean_: (d,), in the data's own units.
        scale_: What is multiplied with what is centred, (d,), above 0.
        result_: `FitSelection`: what was released, as plain values; the rest as of `PrivateFit`.

    Source: docs/rules.md, "Sensitivities" (PCA); Dwork et al. 2014, "Analyze Gauss".
    """

    METHOD = "pca"

    n_components: int | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the components.

        Args:
            X: (records, columns): numbers, truth values or texts, an array or a frame.
            y: Ignored.

        Raises:
            UsageError: A setting of bad form, or one that does not fit X.
            BudgetError: The budget is too small, for the plan or in the ledger; nothing was read.
            ValueError: X of bad form.

        Cost: the budget; with a ledger, reserved there before a record is read.
        """
        kinds, cells = self._formed(X)
        # Nothing is predicted: every record has a 0 there.
        name = self._target_name(None, cells.shape[1])
        unused = Column(name=name, kind="number", low=0.0, high=1.0)
        chosen, self._table = self._choose(
            self._columns(kinds, cells), cells, unused, np.zeros(len(cells)), k=self.n_components,
            regression=True, device="cpu",
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
        """Return the projections, float64, (records, components).

        Args:
            X: Records, as in the fit.

        Cost: none; but what comes back is as private as X.
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
        """Return the records that projections stand for, float64, (records, columns).

        Args:
            X: Projections, (records, components).

        Raises:
            UsageError: The fit was on other columns than numbers, which no projection gives back.
        """
        check_is_fitted(self, "components_")
        if not _has_only_numbers(self._table):
            raise UsageError(
                "The components are of encoded categories or words: only numbers can be given back."
            )
        return np.asarray(X, np.float64) @ self.components_ / self.scale_ + self.mean_
