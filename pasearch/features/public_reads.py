"""What a choice of features reads of public records of the same form: exact, and for nothing.

Tables, points and second moments have no noise. Sets are compared as an architecture search on
public data compares networks: each by a model that is trained on the public records the way the
private one will be, with noise that gives the same signal (mu n, or epsilon n), and exact points on
records that it has not seen. So a set that noise hurts loses here too.

Source: docs/rules.md, rule 4 (`public` has price 0, and only declared-public data enters it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.features.contingency import attributes_of
from pasearch.features.merit import symmetrical_uncertainty
from pasearch.features.picking import ClassShares, class_tables, points_of_tables
from pasearch.features.trainers import Trainer, points_of_all
from pasearch.features.views import second_moments
from pasearch.planning import MU_RANGE
from pasearch.runs.keys import Keys

if TYPE_CHECKING:
    from pasearch.data.partitions import Dataset
    from pasearch.data.tables import AnySchema
    from pasearch.features.choosing import Compared
    from pasearch.features.views import View

Array = np.ndarray[Any, Any]

HELD_OUT = 0.2
"""The share of the public records that models are scored on."""


@dataclass(frozen=True, kw_only=True)
class PublicReads:
    """Declared-public records, and how the private model will be trained.

    Args:
        dataset: Declared public, of the private data's form.
        schema: The private data's, complete: it says what values mean.
        trainer: Of the final training.
        slots: How many private slots that reads.

    Raises:
        UnchargedReadError: Data that was not declared public.
    """

    dataset: Dataset
    schema: AnySchema
    trainer: Trainer
    slots: int

    @cached_property
    def _records(self) -> Any:
        return replace(self.dataset, schema=self.schema).all_records(None)

    def uncertainties(self) -> tuple[Array, Array, float]:
        """Return symmetrical uncertainties: with the target, with each other; noise shows none."""
        attributes = attributes_of(self.schema)
        return *symmetrical_uncertainty(attributes.counted(self._records), attributes), 0.0

    def ranked(self, size: int) -> list[int]:
        """Return the features most associated with the target, the first first."""
        attributes = attributes_of(self.schema)
        codes = attributes.codes_of(self._records)
        tables = reduce(add, (class_tables(each, attributes) for each in codes))
        target = attributes.items[-1].codes(self._records.y.numpy()[:, None])
        known = target[self._records.valid.numpy()]
        counted = np.maximum(np.bincount(known, minlength=attributes.sizes[-1]), 1.0)
        points = points_of_tables(tables, attributes, ClassShares.of(counted / counted.sum()))
        return np.argsort(-np.asarray(points, np.float64), kind="stable")[:size].tolist()

    def second_moments(self, view: View) -> Array:
        """Return X'X of rows as the view shows them, cut to norm 1."""
        return second_moments(view, self._records)

    def compared(self, means: Array) -> Compared:
        """Return what gives sets their exact points on held-out records."""
        order = np.random.default_rng(0).permutation(len(self._records))
        held = max(1, round(HELD_OUT * len(order)))
        train, test = self._records.take(order[held:]), self._records.take(order[:held])
        trainer, keys = self._as_strong(len(train)), Keys.from_seed(0)

        def compare(sets: Array, trials: Sequence[str]) -> list[int]:
            streams = [keys.stream("public", trial) for trial in trials]
            return points_of_all(trainer.fit_many(train, means, sets, streams), test)

        return compare

    def _as_strong(self, slots: int) -> Trainer:
        """Return the trainer whose signal on so many records is that of the final training."""
        trainer, factor = self.trainer, self.slots / slots
        return replace(
            trainer,
            epsilon=None if trainer.epsilon is None else trainer.epsilon * factor,
            sigma=None if trainer.sigma is None else trainer.sigma / factor,
            mu=None if trainer.mu is None else min(MU_RANGE[1], trainer.mu * factor),
        )
