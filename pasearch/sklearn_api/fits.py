"""What estimators and selectors share: the settings of a fit, and the form of X and y.

Only the *form* of X and y (shape, number types, names of columns) is looked at outside a charge,
so a value neither stops a fit nor is named: one that cannot be used is missing, or makes its record
the null record. Under `assume_public_schema` what is not declared is read for nothing, and then y
is also checked as other estimators check it.

| X | without `bounds` | bounds=(low, high) | bounds a feature |
|---|---|---|---|
| numbers | range estimated privately | as declared | as declared |
| truth values | categories False and True | the same; an array: as numbers | the same |
| texts, categories | categories estimated privately | the same | the same |

A `schema` declares columns by name, and the target: what it says of a column counts before the
table above.

What all fits on one data set cost together is kept in a file, `ledger`, never in the estimator: a
clone has the path, so it is refused where the original would be. With a ledger `score` is noisy and
charged there, too; without one it is exact, and warns of that.

Source: docs/rules.md, rules 1, 3, 12 and 13; scikit-learn, "Developing scikit-learn estimators".
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import validate_data

from pasearch.accounting.accountants import Price
from pasearch.data.cells import as_numbers, as_text
from pasearch.data.column import Column
from pasearch.data.declared import schema_of_given
from pasearch.data.frames import TYPES
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError
from pasearch.runs.session import record_fit
from pasearch.sklearn_api.inputs import (
    ALIKE,
    LABEL_TYPES,
    column_of,
    common_label_type,
    declared_columns,
    declared_label_type,
    declared_labels,
    formed,
    kind_of,
    kinds_of_frame,
    labels_read,
    mixed,
    names_of,
    pair_of,
    pairs_of,
    read_labels,
)

Array = np.ndarray[Any, Any]
Pair = tuple[float, float]

NAME = "arrays"
"""What plan and card call the data."""


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateFit(BaseEstimator):
    """A fit under one (epsilon, delta). The constructor stores its arguments; `fit` checks them.

    Guarantee: everything a fit leaves in the object, together, is (epsilon, delta)-DP under
    zero-out adjacency, as `result_.card` states; with a `ledger`, all fits that share it are
    together so at the ledger's total. Without one, each fit states its own price, and it is for the
    caller to add them up. Not covered: `random_state`, and what `assume_public_schema` reads.

    Args:
        epsilon: Of a whole fit, above 0.
        delta: Of a whole fit; None takes the largest power of ten below 1/n.
        bounds: Declared (low, high) of all numbers, or a sequence with a (low, high) or None for
            each column. What is not declared is estimated privately from the records.
        schema: Declared columns and target: a dict with the keys of a schema's file, such as
            {"target": "income", "columns": {"age": {"low": 17, "high": 90}}}, a `pasearch.Schema`,
            or the path of a .toml. Names are those of a frame's columns, or x0, x1 ...; the target
            is y, whatever y is called.
        assume_public_schema: What is not declared is read from the records for nothing.
        max_categories: The most categories, or classes, that are estimated privately for a column.
        ledger: A file that adds up all fits on one data set, and refuses one that is too much; a
            clone has it too.
        ledger_budget: (epsilon, delta) of them all together, for a ledger that is not there yet.
        force: Fit and charge even if public facts show that the model can only guess.
        random_state: Makes the noise reproducible, and the fit not private: tests only.

    Attributes:
        result_: What the fit released, as plain values; its `card` is the privacy card.
        price_: What the fit cost.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, if X was a frame.

    Cost: epsilon and delta, each fit; what is done with the result costs nothing.
    """

    epsilon: float = 1.0
    delta: float | None = None
    bounds: Any = None
    schema: Any = None
    assume_public_schema: bool = False
    max_categories: int = 32
    ledger: str | Path | None = None
    ledger_budget: Pair | None = None
    force: bool = False
    random_state: int | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags

    def _warn_of_random_state(self) -> None:
        """Say, to who called `fit`, that a known seed is no noise."""
        if self.random_state is not None:
            warnings.warn(
                "random_state makes the noise reproducible, so the fit is not private: leave it "
                "out for private data.",
                UserWarning,
                stacklevel=4,
            )

    def _count(self, price: Price) -> None:
        """Count a fit without a ledger; from the second one on, warn what they cost together."""
        if self.ledger is not None or self.random_state is not None:  # of the latter `fit` warns
            return
        spent = record_fit(price.epsilon)
        if len(spent) > 1:
            warnings.warn(
                f"{len(spent)} private fits so far in this process and its workers, and no ledger "
                "adds them up: on the same people's records, as in cross-validation or a grid "
                f"search with its refit, they cost epsilon {math.fsum(spent):.3g} together, not "
                f"{price.epsilon:.3g}, and scikit-learn's scores of them are exact (`ledger=` "
                "charges all of it to one file).",
                UserWarning,
                stacklevel=4,
            )

    def _cells(self, X: Any, **form: Any) -> Array:
        """Return X as an array, checked by its form alone."""
        bounds = self.bounds if form.get("reset", True) else None
        X = mixed(X) if self.assume_public_schema else formed(X, bounds=bounds)
        cells: Any = validate_data(self, X, dtype=None, ensure_all_finite=False, **form)
        return cells

    def _formed(self, X: Any, **form: Any) -> tuple[list[str | None], Array]:
        """Return each column's kind, and the cells; no value is looked at."""
        kinds = kinds_of_frame(X)
        self._types = (TYPES,) if any(kinds or ()) else ()
        cells = self._cells(X, ensure_min_samples=2, **form)
        return kinds or [kind_of(cells.dtype)] * cells.shape[1], cells

    def _columns(self, kinds: list[str | None], cells: Array) -> tuple[Column, ...]:
        """Return what is declared about each column."""
        pairs, alike = pairs_of(self.bounds, len(kinds))
        lone = cells.dtype.kind not in "iufb" and len(set(kinds)) == 1
        names = names_of(self, len(kinds))
        declared = declared_columns(self._schema(), names)
        return tuple(
            declared.get(name) or column_of(name, kind, pair, alike=alike, lone=lone)
            for name, kind, pair in zip(names, kinds, pairs, strict=True)
        )

    def _schema(self) -> TableSchema | None:
        """Return what `schema` declares.

        Raises:
            UsageError: It makes no sense, it was read from the records and nobody edited it, or it
                says which rows are the test set.
        """
        if self.schema is None:
            return None
        schema = schema_of_given(self.schema)
        if schema.proposed and not self.assume_public_schema:
            raise UsageError(
                "The schema says `proposed = true`: its bounds and categories were read from the "
                "records, so they are as private as these. Edit them into what is publicly known "
                "and delete that line."
            )
        if schema.official_test:
            raise UsageError(
                "The schema says `official_test`: fit keeps no rows of X as a test set. Leave that "
                "key out, or call search_architecture with the whole table."
            )
        return schema

    def _target_of_schema(self) -> Column | None:
        """Return what `schema` declares of y; None where it declares nothing."""
        schema = self._schema()
        if schema is None:
            return None
        if schema.target.name in names_of(self, getattr(self, "n_features_in_", 0)):
            raise UsageError(
                f"X has the column {schema.target.name!r}, which the schema says is predicted: "
                "leave it out of X, and give it as y."
            )
        return schema.target if schema.target.declared else None

    def _target_name(self, y: Any, features: int) -> str:
        """Return the name of y if it has one, and no feature has it."""
        name, taken = getattr(y, "name", None), names_of(self, features)
        name = name if isinstance(name, str) and name else "target"
        while name in taken:
            name += "_"
        return name

    def _class(
        self, name: str, y: Any, labels: Array, classes: Any
    ) -> tuple[Column, Array | None, np.dtype[Any]]:
        """Return what is declared of a class, the labels if declared or public, and their type.

        The type that y declares is form, and an error may name it. The type of a list, or of
        objects, is that of most labels: it only decides how predicted labels are written.
        """
        dtype = declared_label_type(y, labels)
        if dtype.kind not in (*ALIKE, "O"):
            raise ValueError(f"Unknown label type: y is of type {dtype}.")
        known, names = None, None
        aim = self._target_of_schema()
        if aim is not None:
            if aim.categories is None:
                raise UsageError(
                    f"The schema declares the target {aim.name!r} as a number, and classes are "
                    "predicted here: take a regressor, or `regression=True`."
                )
            if classes is not None:
                raise UsageError(
                    "The classes are declared twice, by `classes` and by the schema's target: "
                    "leave one out."
                )
            known = labels_read(aim.categories, dtype)
            names = tuple(as_text(known))
        elif classes is not None:
            known = declared_labels(classes, dtype)
            names = tuple(as_text(known))
        elif self.assume_public_schema is True:
            known = read_labels(labels)
        if dtype.kind == "O" and classes is None and (known is None or aim is not None):
            known, dtype = None, common_label_type(labels)
            self._types += (LABEL_TYPES,) if dtype.kind != "O" else ()
        # Names that are None or not different are refused by the column.
        column = Column(name=name, kind="category", categories=names)  # type: ignore[arg-type]
        return column, known, dtype

    def _number(self, name: str, labels: Array, bounds: Pair | None) -> tuple[Column, Array]:
        """Return what is declared of a number that is predicted, and its values."""
        if labels.dtype.kind not in "iufbO":
            raise ValueError(f"y is of type {labels.dtype}: expected numbers.")
        numbers = as_numbers(labels)
        low, high = None, None
        aim = self._target_of_schema()
        if aim is not None:
            if aim.bounds is None:
                raise UsageError(
                    f"The schema declares the target {aim.name!r} as classes, and a number is "
                    "predicted here: take a classifier, or leave `regression` out."
                )
            if bounds is not None:
                raise UsageError(
                    "The target's bounds are declared twice, by `target_bounds` and by the "
                    "schema: leave one out."
                )
            low, high = aim.bounds
        elif bounds is not None:
            low, high = pair_of("target_bounds", bounds)
        elif self.assume_public_schema is True:
            assert_all_finite(numbers, input_name="y")
        return Column(name=name, kind="number", low=low, high=high), numbers
