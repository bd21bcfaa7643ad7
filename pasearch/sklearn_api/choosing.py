"""The run behind a selector: plan, charge, choose. Nothing is kept but what was released.

The plan has no final model, so all of epsilon is for the choice.

Source: docs/rules.md, rules 1, 3, 12 and 13. Proof: docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pasearch.accounting.accountants import Price
from pasearch.api.features import choice_of, chosen_json
from pasearch.api.lifecycle import (
    Prepared,
    check_not_refused,
    check_total,
    estimate_schema,
    head,
    made_by,
    opened,
    tail,
)
from pasearch.api.request import FeatureRequest
from pasearch.api.resolve import assume_public, device_of, terms_of
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.split import VALIDATION_SHARE, Split
from pasearch.data.tables import TableSchema
from pasearch.features.chosen import Chosen
from pasearch.features.model import feature_names
from pasearch.features.plan import FeaturePlan, make_feature_plan
from pasearch.results import FEATURES, price_of
from pasearch.runs.folder import RunFolder
from pasearch.sklearn_api.fits import NAME, Array

MIDDLE = 0.5
"""Where a missing number stands within its bounds, scaled to [0, 1]."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The records of a fit, in the data's own units: private.

    Args:
        cells: (records, columns).
        labels: (records,).
        assumed: What their form takes as public.
    """

    cells: Array = field(repr=False)
    labels: Array = field(repr=False)
    assumed: tuple[str, ...] = ()

    def undeclared(self, table: TableSchema) -> Dataset:
        """Return them under what is declared."""
        return Dataset(
            name=NAME, schema=table, features=self.cells, labels=self.labels, assumed=self.assumed
        )

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
        cells = scaled(table, self.cells).astype(np.float32)
        return Dataset(
            name=NAME, schema=schema, features=cells, labels=labels, assumed=self.assumed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
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
            return units_of(self.table)
        features = len(self.owners)
        return np.zeros(features), np.ones(features)


def run(request: FeatureRequest, given: Given, table: TableSchema) -> Found:
    """Plan, charge and choose; the run's folder lives as long as that takes."""
    dataset, assumed = given.undeclared(_without_bins(table)), ()
    if request.assume_public_schema:
        dataset, assumed = assume_public(dataset, request.max_categories)
    known: Any = dataset.schema
    if known.complete:
        dataset = given.encodable(known)
    plan = _planned(request, dataset, assumed)
    check_total(request)
    prepared = Prepared(request=request, dataset=dataset, plan=plan)
    check_not_refused(prepared)
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
    prepared: Prepared[FeaturePlan], given: Given, table: TableSchema, folder: RunFolder
) -> Found:
    """Carry out a plan, each read under its charge; its keys are destroyed, whatever happens."""
    from pasearch.features.engine import FeatureSearch

    plan, dataset, device = prepared.plan, prepared.dataset, device_of(prepared.request)
    with opened(prepared, folder, device, resumed=False) as (ledger, keys):
        try:
            dataset.partition(plan.split, keys.stream("split").generator())
            if plan.estimates_schema:
                complete = estimate_schema(plan, dataset, ledger, keys, folder).schema
                assert isinstance(complete, TableSchema)
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
    return Found(chosen=chosen, table=table, document=document)


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


def units_of(table: TableSchema) -> tuple[Array, Array]:
    """Return each number's lower bound and the width of its bounds, (columns,)."""
    bounds = np.array([column.bounds for column in table.columns], np.float64)
    return bounds[:, 0], bounds[:, 1] - bounds[:, 0]


def scaled(table: TableSchema, cells: Array) -> Array:
    """Return numbers within their bounds, scaled to [0, 1], float64 (rows, columns)."""
    scaled = np.empty(cells.shape)
    for place, column in enumerate(table.columns):
        values, known = column.scale(cells[:, place])
        scaled[:, place] = np.where(known, values, MIDDLE)
    return scaled
