"""scikit-learn transformers: features chosen, or projected, under one budget, behind `fit`.

    fit(X, y)  ->  form of X and y  ->  schema (declared, estimated privately, or assumed public)
               ->  plan without a final model: all of epsilon is for the choice
               ->  charged, then read  ->  the support, or the components; nothing else is kept

    PrivateCFS    contingency tables with noise, CFS-Greedy on them          Algorithm 3
    PAFS          sets of columns evolve by privately trained models         Algorithm 4
    PrivatePCA    z = (x - mean) scale @ components^T, all three released    Analyze Gauss

Only the form is looked at outside a charge, and the columns are told apart and declared, as in
`estimators`: its table says what `bounds` mean. A number has no bins here. Where all columns are
numbers, a missing one stands in the middle of its bounds, and features are columns; otherwise a
record is encoded as the schema says, and a column is kept if any of its features was chosen.

`transform` reads released values and the rows it is given. It costs nothing, but on the records of
the fit its output is as private as they are.

Source: Bao et al., sections V-B and VIII-B; docs/rules.md, rules 1, 3, 12 and 13; scikit-learn,
"Developing scikit-learn estimators". Proof: docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import assert_all_finite, check_consistent_length
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from pasearch.accounting.accountants import Price
from pasearch.accounting.budget import Budget
from pasearch.api.features import choice_of, chosen_json
from pasearch.api.lifecycle import (
    Prepared,
    check_total,
    estimate_schema,
    head,
    made_by,
    opened,
    tail,
)
from pasearch.api.request import FeatureRequest
from pasearch.api.resolve import assume_public, device_of, terms_of
from pasearch.data.cells import as_numbers, as_text
from pasearch.data.column import Column
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.split import VALIDATION_SHARE, Split
from pasearch.data.tables import TableSchema
from pasearch.errors import BudgetError, UsageError
from pasearch.features.model import feature_names
from pasearch.features.plan import make_feature_plan
from pasearch.results import FEATURES, price_of
from pasearch.runs.folder import RunFolder
from pasearch.sklearn_api.estimators import NAME
from pasearch.sklearn_api.inputs import (
    ALIKE,
    column_of,
    declared_labels,
    formed,
    formed_labels,
    kind_of,
    kinds_of_frame,
    mixed,
    names_of,
    pair_of,
    pairs_of,
    read_labels,
)

if TYPE_CHECKING:
    from pasearch.features.chosen import Chosen
    from pasearch.features.plan import FeaturePlan

Array = np.ndarray[Any, Any]
Pair = tuple[float, float]

MIDDLE = 0.5
"""Where a missing number stands within its bounds, scaled to [0, 1]."""

UNUSED = Column(name="target", kind="number", low=0.0, high=1.0)
"""What is predicted where nothing is: every record has a 0 there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptChoice:
    """A finished choice as values: all that its fit has released, but for the arrays of a PCA.

    Args:
        document: Budget, price, events and what was chosen; a key means what it means in
            `result.json` (docs/result.md).
    """

    document: dict[str, Any] = field(repr=False)

    @property
    def price(self) -> Price:
        """What the whole fit cost."""
        return price_of(self.document)

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


class _PrivateChoice(BaseEstimator):
    """What all three share. The constructor stores its arguments; `fit` checks them."""

    METHOD: str
    """One of `features.selector.SELECTORS`."""

    epsilon: float
    delta: float | None
    bounds: Any
    assume_public_schema: bool
    max_categories: int
    ledger: str | Path | None
    ledger_budget: tuple[float, float] | None
    random_state: int | None
    result_: KeptChoice
    price_: Price

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags

    def _cells(self, X: Any, **form: Any) -> Array:
        """Return X as an array, checked by its form alone."""
        bounds = self.bounds if form.get("reset", True) else None
        X = mixed(X) if self.assume_public_schema else formed(X, bounds=bounds)
        cells: Any = validate_data(self, X, dtype=None, ensure_all_finite=False, **form)
        return cells

    def _checked(self, X: Any, **form: Any) -> tuple[list[Column], Array]:
        """Return what is declared about each column, and the cells; no value is looked at."""
        kinds = kinds_of_frame(X)
        cells = self._cells(X, ensure_min_samples=2, **form)
        if kinds is None:
            kinds = [kind_of(cells.dtype)] * cells.shape[1]
        pairs, alike = pairs_of(self.bounds, len(kinds))
        lone = cells.dtype.kind not in "iufb" and len(set(kinds)) == 1
        columns = [
            column_of(name, kind, pair, alike=alike, lone=lone)
            for name, kind, pair in zip(names_of(self, len(kinds)), kinds, pairs, strict=True)
        ]
        return columns, cells

    def _choose(
        self, columns: list[Column], cells: Array, target: Column, labels: Array, **options: Any
    ) -> _Found:
        """Run the choice, keep what it releases, and return it.

        Args:
            columns: What is declared of each.
            cells: (records, columns).
            target: What is declared of what is predicted.
            labels: (records,).
            options: Of the request, beside those that every selector has.
        """
        if self.random_state is not None:
            warnings.warn(
                "random_state makes the noise reproducible, so the fit is not private: leave it "
                "out for private data.",
                UserWarning,
                stacklevel=3,
            )
        request = FeatureRequest(
            data=NAME, budget=Budget(self.epsilon, self.delta), method=self.METHOD,
            max_categories=self.max_categories, assume_public_schema=self.assume_public_schema,
            ledger=self.ledger, ledger_budget=self.ledger_budget, seed=self.random_state, **options,
        )  # fmt: skip
        if request.k is not None and not request.k <= len(columns):
            raise UsageError(
                f"{request.k} are to be kept of {len(columns)} columns: expected at most as many."
            )
        while target.name in [column.name for column in columns]:
            target = replace(target, name=target.name + "_")
        table = TableSchema(columns=tuple(columns), target=target, name=NAME)
        found = _run(request, _Given(cells=cells, labels=labels), table)
        self.result_ = KeptChoice(document=found.document)
        self.price_ = self.result_.price
        return found


class _PrivateSelector(SelectorMixin, _PrivateChoice):
    """What the selectors of columns share."""

    classes: Iterable[Any] | None
    regression: bool
    target_bounds: Pair | None
    support_: Array

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
        given = {"y": None} if y is None else {}  # refused, as scikit-learn refuses it
        columns, cells = self._checked(X, **given)
        labels = column_or_1d(formed_labels(y, read=bool(self.assume_public_schema)), warn=True)
        check_consistent_length(cells, labels)
        found = self._choose(columns, cells, *self._target(y, labels), **self._options())
        kept = found.owners[list(found.chosen.order)]
        self.support_ = np.zeros(len(columns), bool)
        self.support_[kept] = True
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

    def _target(self, y: Any, labels: Array) -> tuple[Column, Array]:
        """Return what is declared of y, and it; its values only where they are assumed public."""
        name = getattr(y, "name", None)
        name = name if isinstance(name, str) and name else UNUSED.name
        if self.regression:
            return self._number(name, labels)
        if self.target_bounds is not None:
            raise UsageError("target_bounds are of a number: say regression=True, or leave it out.")
        if labels.dtype.kind not in (*ALIKE, "O"):
            raise ValueError(f"Unknown label type: y is of type {labels.dtype}.")
        names: Any = None
        if self.classes is not None:
            names = tuple(as_text(declared_labels(self.classes, labels.dtype)))
        elif self.assume_public_schema is True:
            read_labels(labels)
        return Column(name=name, kind="category", categories=names), labels

    def _number(self, name: str, labels: Array) -> tuple[Column, Array]:
        if self.classes is not None:
            raise UsageError("classes are not for a number: leave them, or regression, out.")
        if labels.dtype.kind not in "iufbO":
            raise ValueError(f"y is of type {labels.dtype}: expected numbers.")
        numbers = as_numbers(labels)
        low, high = None, None
        if self.target_bounds is not None:
            low, high = pair_of("target_bounds", self.target_bounds)
        elif self.assume_public_schema is True:
            assert_all_finite(numbers, input_name="y")
        return Column(name=name, kind="number", low=low, high=high), numbers

    def _get_support_mask(self) -> Any:
        check_is_fitted(self, "support_")
        return self.support_


class PrivateCFS(_PrivateSelector):
    """Keeps the columns that correlation-based selection chooses from noisy contingency tables.

    Guarantee: everything a fit leaves in the selector, together, is (epsilon, delta)-DP under
    zero-out adjacency; with a `ledger`, all fits that share it are together so at the ledger's
    total. Without one, each fit states its own price, and it is for the caller to add them up. Not
    covered: `random_state`, what `assume_public_schema` reads, and what `transform` returns.

    Args:
        epsilon: Of a whole fit, above 0; all of it is for the choice.
        delta: Of a whole fit; None takes the largest power of ten below 1/n.
        k: How many columns are kept; None keeps those of the features that have the largest merit.
        merits: "tables" or "entropies"; see `features.cfs.CFSGreedy`.
        bounds: Declared (low, high) of all numbers, or a sequence with a (low, high) or None for
            each column. What is not declared is estimated privately from a tenth of the records.
        classes: The declared labels, two or more; None: estimated privately.
        regression: y is a number and not a class.
        target_bounds: Declared (low, high) of that number; None: estimated privately.
        assume_public_schema: What is not declared is read from the records for nothing.
        max_categories: The most categories, or classes, that are estimated privately for a column.
        ledger: A file that adds up all fits on one data set, and refuses one that is too much; a
            clone has it too.
        ledger_budget: (epsilon, delta) of them all together, for a ledger that is not there yet.
        random_state: Makes the noise reproducible, and the fit not private: tests only.

    Attributes:
        support_: Which columns are kept, (columns,) bool.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, if X was a frame.
        result_: `KeptChoice`: what was released, as plain values.
        price_: What the fit cost.

    Cost: epsilon and delta, each fit; `transform` costs nothing.

    Source: Bao et al., section VIII-B, Algorithm 3; docs/features-search.md.
    """

    METHOD = "cfs-greedy"

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        k: int | None = None,
        merits: str = "tables",
        bounds: Any = None,
        classes: Iterable[Any] | None = None,
        regression: bool = False,
        target_bounds: Pair | None = None,
        assume_public_schema: bool = False,
        max_categories: int = 32,
        ledger: str | Path | None = None,
        ledger_budget: Pair | None = None,
        random_state: int | None = None,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.k = k
        self.merits = merits
        self.bounds = bounds
        self.classes = classes
        self.regression = regression
        self.target_bounds = target_bounds
        self.assume_public_schema = assume_public_schema
        self.max_categories = max_categories
        self.ledger = ledger
        self.ledger_budget = ledger_budget
        self.random_state = random_state

    def _options(self) -> dict[str, Any]:
        return {"k": self.k, "merits": self.merits, "regression": self.regression, "device": "cpu"}


class PAFS(_PrivateSelector):
    """Keeps the columns of the set whose privately trained model scored best: PAFS.

    Guarantee, Attributes, Cost: as of `PrivateCFS`. Every planned training and score is charged,
    population times generations of each, and what they scored is in `result_`.

    Args:
        epsilon: Of a whole fit, above 0; all of it is for the choice.
        delta: Of a whole fit; None takes the largest power of ten below 1/n.
        population: Sets of columns a generation, 2 or more.
        generations: How many generations, 1 or more.
        trainer: How a set's linear model is trained: "objective" or "dpsgd"; see
            `features.trainers.TRAINERS`.
        bounds: As of `PrivateCFS`; what is not declared is estimated privately from the tenth of
            the records that scores are from.
        classes: As of `PrivateCFS`, like everything below.
        regression: See there.
        target_bounds: See there.
        assume_public_schema: See there.
        max_categories: See there.
        ledger: See there.
        ledger_budget: See there.
        device: "auto", "cpu" or "cuda".
        random_state: See there.

    Source: Bao et al., section VIII-B, Algorithm 4; docs/features-search.md.
    """

    METHOD = "pafs"

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        population: int = 20,
        generations: int = 3,
        trainer: str = "objective",
        bounds: Any = None,
        classes: Iterable[Any] | None = None,
        regression: bool = False,
        target_bounds: Pair | None = None,
        assume_public_schema: bool = False,
        max_categories: int = 32,
        ledger: str | Path | None = None,
        ledger_budget: Pair | None = None,
        device: str = "auto",
        random_state: int | None = None,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.population = population
        self.generations = generations
        self.trainer = trainer
        self.bounds = bounds
        self.classes = classes
        self.regression = regression
        self.target_bounds = target_bounds
        self.assume_public_schema = assume_public_schema
        self.max_categories = max_categories
        self.ledger = ledger
        self.ledger_budget = ledger_budget
        self.device = device
        self.random_state = random_state

    def _options(self) -> dict[str, Any]:
        return {
            "population": self.population, "generations": self.generations,
            "trainer": self.trainer, "regression": self.regression, "device": self.device,
        }  # fmt: skip


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
        delta: Of a whole fit; None takes the largest power of ten below 1/n.
        n_components: How many, at most as many as there are columns; None takes d^(2/3) of d.
        bounds: As of `PrivateCFS`, like everything below.
        assume_public_schema: See there.
        max_categories: See there.
        ledger: See there.
        ledger_budget: See there.
        random_state: See there.

    Attributes:
        components_: Orthonormal directions, (components, d), the first with the largest moment.
        mean_: (d,), in the data's own units.
        scale_: What is multiplied with what is centred, (d,), above 0.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, if X was a frame.
        result_: `KeptChoice`: what was released, as plain values.
        price_: What the fit cost.

    Source: docs/rules.md, "Sensitivities" (PCA); Dwork et al. 2014, "Analyze Gauss".
    """

    METHOD = "pca"

    components_: Array
    mean_: Array
    scale_: Array

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        n_components: int | None = None,
        bounds: Any = None,
        assume_public_schema: bool = False,
        max_categories: int = 32,
        ledger: str | Path | None = None,
        ledger_budget: Pair | None = None,
        random_state: int | None = None,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.n_components = n_components
        self.bounds = bounds
        self.assume_public_schema = assume_public_schema
        self.max_categories = max_categories
        self.ledger = ledger
        self.ledger_budget = ledger_budget
        self.random_state = random_state

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
        columns, cells = self._checked(X)
        found = self._choose(
            columns, cells, UNUSED, np.zeros(len(cells)), k=self.n_components, regression=True,
            device="cpu",
        )  # fmt: skip
        view = found.chosen.view
        assert view.rotation is not None
        low, width = found.units
        self._table = found.table
        self._numbers = found.numbers
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
        if self._numbers:
            low, width = _units(self._table)
            rows = low + _scaled(self._table, cells) * width
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
        if not self._numbers:
            raise UsageError(
                "The components are of encoded categories or words: only numbers can be given back."
            )
        return np.asarray(X, np.float64) @ self.components_ / self.scale_ + self.mean_


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """The records of a fit, in the data's own units: private.

    Args:
        cells: (records, columns).
        labels: (records,).
    """

    cells: Array = field(repr=False)
    labels: Array = field(repr=False)

    def undeclared(self, table: TableSchema) -> Dataset:
        """Return them under what is declared."""
        return Dataset(name=NAME, schema=table, features=self.cells, labels=self.labels)

    def encodable(self, table: TableSchema) -> Dataset:
        """Return them as features are chosen: numbers alone, or encoded without bins.

        Guarantee: record by record, from public or released values.

        Args:
            table: Complete.
        """
        if not _only_numbers(table):
            return self.undeclared(_without_bins(table))
        schema = Schema(
            shape=(len(table.columns),), low=0.0, high=1.0, classes=table.classes,
            target=table.target_bounds, regression=table.regression,
        )  # fmt: skip
        labels = self.labels
        if not table.regression:
            # A label of no known class is -1: the null record.
            codes, valid = table.encode_labels(labels)
            labels = np.where(valid, codes, -1)
        cells = _scaled(table, self.cells).astype(np.float32)
        return Dataset(name=NAME, schema=schema, features=cells, labels=labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What a run hands over.

    Args:
        chosen: By the engine.
        table: The complete schema, without bins.
        document: See `KeptChoice`.
    """

    chosen: Chosen
    table: TableSchema
    document: dict[str, Any]

    @property
    def numbers(self) -> bool:
        """Whether features are columns, all of them numbers."""
        return _only_numbers(self.table)

    @property
    def owners(self) -> Array:
        """Which column each feature belongs to, (d,)."""
        return _owners(self.table)

    @property
    def units(self) -> tuple[Array, Array]:
        """Where each feature begins, and how far it reaches: (d,) each, in the data's own units."""
        if self.numbers:
            return _units(self.table)
        features = len(self.owners)
        return np.zeros(features), np.ones(features)


def _run(request: FeatureRequest, given: _Given, table: TableSchema) -> _Found:
    """Plan, charge and choose; the run's folder lives as long as that takes."""
    dataset, assumed = given.undeclared(table), ()
    if request.assume_public_schema:
        dataset, assumed = assume_public(dataset, request.max_categories)
    known: Any = dataset.schema
    if known.complete:
        dataset = given.encodable(known)
    plan = _planned(request, dataset, assumed)
    check_total(request)
    prepared = Prepared(request=request, dataset=dataset, plan=plan)
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder.create(Path(temporary) / "run", NAME)
        return _charged(prepared, given, known, folder)


def _planned(request: FeatureRequest, dataset: Dataset, assumed: tuple[str, ...]) -> FeaturePlan:
    """Return the plan: all slots for the choice, but a tenth for scores and for estimates."""
    choice = choice_of(request, request.method, _trainer(request))
    scored = choice.selector.trains_candidates or bool(dataset.schema.undeclared)
    kept = max(1, round(dataset.n * VALIDATION_SHARE)) if scored else 0
    split = Split(train=dataset.n - kept, validation=kept, test=0)
    terms = terms_of(request, dataset, split, assumed)
    return make_feature_plan(terms, choice=choice, final=False)


def _charged(
    prepared: Prepared[FeaturePlan], given: _Given, table: TableSchema, folder: RunFolder
) -> _Found:
    """Carry out a plan, each read under its charge; its keys are destroyed, whatever happens."""
    from pasearch.features.engine import FeatureSearch

    plan, dataset, device = prepared.plan, prepared.dataset, device_of(prepared.request)
    with opened(prepared, folder, device, resumed=False) as (ledger, keys):
        try:
            dataset.partition(plan.split, keys.stream("split").generator())
            if plan.schema_estimate is not None:
                complete = estimate_schema(plan, dataset, ledger, keys, folder).schema
                assert isinstance(complete, TableSchema)
                _check_classes(complete)
                # The same slots, as the permutation sees no value.
                table, dataset = complete, given.encodable(complete)
                dataset.partition(plan.split, keys.stream("split").generator())
                plan = replace(plan, schema=dataset.schema)
            table = _without_bins(table)
            chosen = FeatureSearch(
                plan=plan, dataset=dataset, ledger=ledger, keys=keys, device=device,
                columns=_owners(table),
            ).choose()  # fmt: skip
            estimated = prepared.plan.schema.undeclared
            prepared = replace(prepared, plan=plan)
            document = _document(prepared, table, estimated, chosen, device, keys.reproducible)
        finally:
            keys.destroy()
    return _Found(chosen=chosen, table=table, document=document)


def _document(
    prepared: Prepared[FeaturePlan],
    table: TableSchema,
    estimated: tuple[str, ...],
    chosen: Chosen,
    device: str,
    reproducible: bool,
) -> dict[str, Any]:
    """Return what a fit has released; see `KeptChoice`."""
    plan, owners = prepared.plan, _owners(table)
    names = feature_names(table, len(owners))
    if _only_numbers(table):
        names = [column.name for column in table.columns]
    best, shown = chosen_json(chosen, names)
    document = head(plan, FEATURES, plan.selection_rule, plan.selection_words)
    document["dataset"]["schema"] = table.to_json()
    columns = [table.columns[owners[place]].name for place in best["places"]]
    made = made_by(prepared, device, reproducible)
    return {
        **document,
        "best": {**best, "columns": list(dict.fromkeys(columns))},
        "estimated_privately": [
            column.describe()
            for column in (*table.columns, table.target)
            if column.name in estimated
        ],
        **tail(plan, made),
        **shown,
    }


def _check_classes(table: TableSchema) -> None:
    """Refuse to go on where an estimate has found no class."""
    if not table.regression and not table.target.categories:
        raise BudgetError(
            "No class was frequent enough to be estimated privately at this budget, and the fit "
            "was charged: declare `classes`, or take a larger epsilon."
        )


def _trainer(request: FeatureRequest) -> str:
    """Return how candidates are trained; where there are none, it does not matter how."""
    return "objective" if request.trainer == "auto" else request.trainer


def _only_numbers(table: TableSchema) -> bool:
    return all(column.kind == "number" for column in table.columns)


def _without_bins(table: TableSchema) -> TableSchema:
    """Return the schema of the same columns, whose numbers have no bins."""
    columns = (replace(c, bins=0) if c.kind == "number" else c for c in table.columns)
    return replace(table, columns=tuple(columns))


def _owners(table: TableSchema) -> Array:
    """Return which column each feature belongs to, (d,); of numbers alone, features are columns."""
    widths = [1 if _only_numbers(table) else column.width for column in table.columns]
    return np.repeat(np.arange(len(widths)), widths)


def _units(table: TableSchema) -> tuple[Array, Array]:
    """Return each number's lower bound and the width of its bounds, (columns,)."""
    bounds = np.array([(column.low, column.high) for column in table.columns], np.float64)
    return bounds[:, 0], bounds[:, 1] - bounds[:, 0]


def _scaled(table: TableSchema, cells: Array) -> Array:
    """Return numbers within their bounds, scaled to [0, 1], float64 (rows, columns)."""
    scaled = np.empty(cells.shape)
    for place, column in enumerate(table.columns):
        values, known = column.scale(cells[:, place])
        scaled[:, place] = np.where(known, values, MIDDLE)
    return scaled
