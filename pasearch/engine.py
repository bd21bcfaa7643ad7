"""Base class of both engines, which execute a plan: the plan, its resources, and the test.

`search.engine` searches for a network, `features.engine` for a set of features. Each reads private
records only inside `with ledger.charged(...)`. Every release is a function of the run's keys and of
the records, so a resumed run repeats a release exactly and charges nothing twice.

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

HELD_OUT_FRACTION = 0.2  # fraction of declared-public records for scoring candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A plan with the resources that its execution needs.

    Args:
        plan: Plan with calibrated noise and complete schema.
        dataset: Data set, partitioned as planned.
        ledger: Privacy ledger, opened with the plan's lines.
        keys: Secret randomness of the run.
        device: "cpu" or "cuda".
        public: Declared-public records with the same schema, for a feature selection or for the
            validation queries of a search. None: these read the private records.
        progress: Receiver of progress reports.
        executor: Open execution backend for trainings that do not need this process.
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
            charged: Context that charges the test line and opens the test partition.
            counts_of: Function that counts the model's predictions for a metric.

        Returns:
            The noisy score, and the exact score count (None for private records).
        """
        metric, stream = self.plan.test_metric, self.keys.stream("test")
        noise = metric.make_noise(self.plan.test.epsilon)
        with charged as records:
            found, slots = counts_of(records, metric), len(records)
            exact = metric.compute_points(found, slots) if records.public is True else None
            return Score.of(metric, found, noise, slots, stream), exact


def hold_out(records: int) -> tuple[np.ndarray, np.ndarray]:
    """Split public records at random; the split depends on their number alone.

    Returns:
        Indices of the training records, and of the records for scoring.
    """
    order = np.random.default_rng(0).permutation(records)
    held = max(1, round(HELD_OUT_FRACTION * len(order)))
    return order[held:], order[:held]
