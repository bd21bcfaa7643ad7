"""What a choice of features reads of public records of the same form: exact, and for nothing.

Tables, points and second moments have no noise. Sets are compared as an architecture search on
public data compares networks: each by a model that is trained on the public records the way the
private one will be, with noise that gives the same signal (mu n, or epsilon n), and exact points on
records that it has not seen. So a set that noise hurts loses here too.

Source: docs/rules.md, rule 4 (`public` has price 0, and only declared-public data enters it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pasearch.data.partitions import AnyRecords, Dataset
from pasearch.data.tables import AnySchema
from pasearch.features.selector import Compared, Reads
from pasearch.features.trainers import Array, LinearModel, Trainer, counts_of_all
from pasearch.runs.keys import Keys
from pasearch.training.metrics import Metric

HELD_OUT = 0.2
"""The share of the public records that models are scored on."""


@dataclass(frozen=True, kw_only=True)
class PublicReads(Reads):
    """Declared-public records, and how the private model will be trained.

    Args:
        dataset: Declared public, of the private data's form.
        schema: The private data's, complete: it says what values mean.
        means: Of the private records, released; see `Reads`.
        columns: See there.
        trainer: Of the final training.
        slots: How many private slots that reads.
        metric: By what models are scored.

    Raises:
        UnchargedReadError: Data that was not declared public.
    """

    dataset: Dataset
    schema: AnySchema
    means: Array
    columns: Array | None = None
    trainer: Trainer
    slots: int
    metric: Metric
    public = True
    retrained = True

    @cached_property
    def _records(self) -> Any:
        return replace(self.dataset, schema=self.schema).all_records(None)

    def opened(self, line: str, *keys: str) -> AbstractContextManager[AnyRecords]:
        """Return all records: there is nothing to charge."""
        return nullcontext(self._records)

    def noise(self, line: str) -> float:
        """Refuse: there is none."""
        raise AssertionError(f"{line} has no noise on public records")

    def trained(self, sets: Array, trials: Sequence[str], keys: Iterable[str]) -> list[LinearModel]:
        """Return a model on each set, as strong as the private one will be."""
        train, _ = self._held_out
        source = Keys.from_seed(0)
        streams = [source.stream("public", trial) for trial in trials]
        trainer = self.trainer.strengthened(self.slots / len(train))
        return trainer.fit_many(train, self.means, sets, streams)

    def scored(
        self, models: Sequence[LinearModel], trials: Sequence[str], keys: Iterable[str]
    ) -> list[int]:
        """Return the models' exact points on records that they have not seen."""
        seen = self._held_out[1]
        counts = counts_of_all(models, seen, self.metric)
        return [self.metric.points(own, len(seen)) for own in counts]

    def compared(self) -> Compared:
        """Return what gives sets their exact points on held-out records."""
        return lambda sets, trials: self.scored(self.trained(sets, trials, ()), trials, ())

    @cached_property
    def _held_out(self) -> tuple[Any, Any]:
        """Return the records to train on, and those to score with."""
        order = np.random.default_rng(0).permutation(len(self._records))
        held = max(1, round(HELD_OUT * len(order)))
        return self._records.take(order[held:]), self._records.take(order[:held])
