"""Base of both engines: a plan with everything needed to run it, the test, and public records.

`search.engine` searches for a network, `features.engine` for a set of features. Each reads private
records inside `with ledger.charged(...)` alone, and keeps no state: every release is a function of
the run's keys and of the records, so that a resumed run costs nothing twice.

Source: docs/rules.md, rules 1, 8, 10, 11 and 12.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pasearch.data.partitions import Dataset, Records
from pasearch.progress import Progress
from pasearch.runs.executors import AutomaticExecutor, Executor
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Ledger
from pasearch.training.metrics import Metric, Score

HELD_OUT = 0.2
"""Fraction of declared-public records that candidates are scored on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A plan and everything needed to run it.

    Args:
        plan: What may be done, with its noise solved; its schema is complete.
        dataset: Partitioned as the plan says.
        ledger: Opened with the plan's lines.
        keys: The run's secret randomness.
        device: "cpu" or "cuda".
        public: Declared-public records of the same form: a selection chooses on them, a search
            asks its validation queries of them. None: the private ones.
        progress: What to report.
        executor: Who trains what needs nothing of this process; open while this runs.
    """

    plan: Any
    dataset: Dataset
    ledger: Ledger
    keys: Keys
    device: str
    public: Dataset | None = None
    progress: Progress = field(default_factory=Progress)
    executor: Executor = field(default_factory=AutomaticExecutor)

    def release_test(
        self,
        charged: AbstractContextManager[Any],
        counts_of: Callable[[Records, Metric], list[int]],
    ) -> tuple[Score, int | None]:
        """Release the score of the model on the test partition.

        Args:
            charged: Opens the test partition under the charge of its line.
            counts_of: Counts of the model's predictions, as a metric has them.

        Returns:
            The noisy score, and the exact points; None for private records.
        """
        metric, stream = self.plan.test_metric, self.keys.stream("test")
        noise = metric.noise(self.plan.test.epsilon)
        with charged as records:
            found, slots = counts_of(records, metric), len(records)
            exact = metric.points(found, slots) if records.public is True else None
            return Score.of(metric, found, noise, slots, stream), exact


def hold_out(records: int) -> tuple[np.ndarray, np.ndarray]:
    """Split public records at random; the same number is always split in the same way.

    Returns:
        Indices of the records to train on, and of those to score with.
    """
    order = np.random.default_rng(0).permutation(records)
    held = max(1, round(HELD_OUT * len(order)))
    return order[held:], order[:held]
