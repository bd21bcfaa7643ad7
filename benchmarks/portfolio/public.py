"""A public data set as the study of the portfolio trains on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pasearch.api.resolve import assume_public
from pasearch.data.front_ends import FittedFrontEnd, prepare_front_end
from pasearch.data.partitions import Dataset, Records
from pasearch.planning import FRONT_END_SHARE
from pasearch.runs.keys import Keys
from pasearch.spaces.candidate import Candidate

MOST_TEST = 5000


class Public:
    """A public data set's records behind front ends, cut into training and test records."""

    def __init__(self, dataset: Dataset, seed: int):
        self.dataset, _ = assume_public(dataset, 32)
        n, tail = dataset.n, dataset.official_test
        order = np.random.default_rng(seed).permutation(n - tail)
        test = np.arange(n - tail, n) if tail else order[: max(50, n // 5)]
        self.head = order if tail else order[len(test) :]
        self.test = np.random.default_rng(seed).permutation(test)[:MOST_TEST]
        self.ready: dict[str, FittedFrontEnd] = {}

    def records(self, slots: np.ndarray, front: FittedFrontEnd | None) -> Records:
        """Return records behind a front end; the data are public."""
        return self.dataset._records("", slots, front)

    def front(
        self, candidate: Candidate, slots: np.ndarray, mu: float, seed: int
    ) -> FittedFrontEnd:
        """Return the candidate's front end; a fit to these slots has the noise a plan gives it."""
        front = candidate.front_end
        if not front.fitted:
            if front.text not in self.ready:
                self.ready[front.text] = prepare_front_end(front, self.dataset.schema.shape)
            return self.ready[front.text]
        before = (
            None
            if front.first_stage is None
            else self.front(replace(candidate, front_end=front.first_stage), slots, mu, seed)
        )
        records = self.records(slots, before)
        noise = 1.0 / (FRONT_END_SHARE * mu)
        stream, form = Keys.from_seed(seed).stream("front end"), self.dataset.schema.row_layout
        return front.fit(records.x, records.valid, noise, stream, form).compose_after(before)
