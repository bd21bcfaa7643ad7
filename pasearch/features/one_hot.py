"""One-hot: all features, or the numbers alone, whichever trains the better model, privately.

Categories become many indicators, each with little signal; whether they pay is tried on two models.

Source: Bao et al., section C-D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pasearch.data.tables import AnySchema
from pasearch.errors import UsageError
from pasearch.features.chosen import Array, Chosen, best_of
from pasearch.features.selector import SELECTORS, Comparing, Form, Reads
from pasearch.runs.keys import Stream


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class OneHot(Comparing):
    """Compares two sets."""

    name: ClassVar[str] = "one-hot"
    does: ClassVar[str] = (
        "all features, or numbers alone: whichever trains the better model, privately"
    )
    does_on_public: ClassVar[str] = (
        "all features, or numbers alone: whichever trains the better model"
    )
    no_size: ClassVar[str] = "has two sets of its own"

    @property
    def trainings(self) -> int:
        return 2

    def check(self, form: Form) -> None:
        """Refuse records without categories, or without numbers."""
        if not getattr(form.schema, "columns", ()):
            raise UsageError(
                "Method 'one-hot' is for tables: records here are numbers already. "
                "Take `method=all`."
            )
        if not form.schema.undeclared and one_hot_sets(form.schema).all():
            raise UsageError(
                "Method 'one-hot' compares all features with numbers alone: this table has no "
                "number and no category of two, or nothing else. Take `method=all`."
            )

    def choose(self, reads: Reads, stream: Stream) -> Chosen:
        sets = one_hot_sets(reads.schema)
        trials = [f"trial {number}" for number in range(len(sets))]
        return best_of(reads.means, sets, reads.compared()(sets, trials))

    def sets(self, schema: AnySchema) -> Array:
        return one_hot_sets(schema)


def one_hot_sets(schema: AnySchema) -> np.ndarray:
    """Return the two sets, (2, d) bool: all features, and what is no indicator.

    Those are the numbers, scaled, without their bins, and the first category of two.

    Args:
        schema: Complete, or as far as it is declared.
    """
    plain = [np.zeros(0, bool)]
    for column in getattr(schema, "pieces", ()):
        own = np.zeros(column.width, bool)
        two = column.kind == "category" and len(column.categories or ()) == 2
        own[:1] = column.kind == "number" or two
        plain.append(own)
    numbers = np.concatenate(plain)
    return np.array([np.ones(len(numbers), bool), numbers if numbers.any() else ~numbers])
