"""Search on public data of the same kind, which leaves the whole budget to the final model.

Candidates are trained on the public records as the winner will be on the private records: with the
same number of steps, and with noise for the same signal-to-noise ratio mu n. So a candidate that is
sensitive to noise gets a low score here too. Scores are exact. Nothing private is read, so the
search, and the fit of feature extractors to the public records, have no privacy cost.

Source: docs/rules.md, rule 4 (only declared-public data are read without a charge).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pasearch.data.front_ends import FittedFrontEnd, FrontEnd, prepare_front_end
from pasearch.runs.keys import Keys, Stream
from pasearch.search.plan import make_candidate_recipe
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.space import Portfolio, Space

if TYPE_CHECKING:
    from pasearch.data.partitions import Dataset, Records
    from pasearch.runs.folder import RunFolder
    from pasearch.search.plan import Plan

DRAWN_CANDIDATES = 10
"""Number of candidates that are drawn from a space other than a portfolio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """Public data with the same schema as the private data, on which candidates are compared.

    Args:
        dataset: Declared-public data set with a complete schema.

    Raises:
        UnchargedReadError: The data were not declared public.
    """

    dataset: Dataset

    def find_best(self, plan: Plan, space: Space, *, device: str) -> Candidate:
        """Train candidates on the public records, and return the one with the best score.

        Args:
            plan: Plan of the single training on the private records.
            space: Search space.
            device: "cpu" or "cuda".

        Cost: none.
        """
        stream = Keys.from_seed(0).stream("proxy")
        if isinstance(space, Portfolio):
            candidates = list(space.entries)
        else:
            generator = stream.child("candidates").generator()
            drawn = [
                space.default_genotype(),
                *(space.draw(generator) for _ in range(DRAWN_CANDIDATES - 1)),
            ]
            candidates = [space.candidate(genotype) for genotype in drawn]
        every = {each.front_end for each in candidates}
        fits = {front: self.fit(front, device) for front in every}
        scores = []
        for number, candidate in enumerate(candidates):
            records = self.dataset.all_records(fits[candidate.front_end])
            stream_of_candidate = stream.child(number)
            scores.append(self._measure(plan, candidate, records, stream_of_candidate, device))
        return candidates[int(np.argmax(scores))]

    def fit(self, front_end: FrontEnd, device: str = "cpu") -> FittedFrontEnd:
        """Return a feature extractor, fitted to the public records if it needs a fit."""
        if not front_end.fitted:
            return prepare_front_end(front_end, self.dataset.schema.shape, device)
        before = None if front_end.first_stage is None else self.fit(front_end.first_stage, device)
        records = self.dataset.all_records(before)
        stream = Keys.from_seed(0).stream("proxy", front_end.text)
        form = self.dataset.schema.row_layout
        fitted = front_end.fit(records.x, records.valid, None, stream, form).compose_after(before)
        return FittedFrontEnd(front_end, fitted.module, device)

    def _measure(
        self, plan: Plan, candidate: Candidate, records: Records, stream: Stream, device: str
    ) -> float:
        """Train a candidate, and return its exact score count per held-out record."""
        from pasearch.engine import hold_out
        from pasearch.search.candidate_training import (
            compute_metric_counts,
            has_failed,
            train_candidate,
            training_streams,
        )

        kept, held = hold_out(len(records))
        train = records.take(kept[: plan.split.train])
        assert plan.trial_mu is not None
        signal = plan.trial_mu * plan.split.train / len(train)
        recipe = plan.recipe.within(len(train))
        schema = self.dataset.schema
        recipe = make_candidate_recipe(
            (recipe,), candidate, signal, len(train), outputs=schema.outputs
        )
        streams = training_streams(stream)
        network = train_candidate(candidate, train, schema, recipe, streams, device=device)
        if has_failed(network):
            return -np.inf
        metric = plan.score_metric
        found = compute_metric_counts(network, records.take(held), metric, device=device)
        return metric.compute_points(found, len(held)) / len(held)


def store_public_fits(plan: Plan, proxy: Proxy, folder: RunFolder, device: str) -> None:
    """Fit the feature extractors of a plan to public data, and store them in the run's folder.

    Args:
        plan: Plan of the run.
        proxy: Public data.
        folder: Folder of the run.
        device: Device of the trainings on the public data, so that transformed records are reused.

    Cost: none.
    """
    from pasearch.search.weights import front_end_path, save_weights

    for front_end in plan.space.front_ends():
        if front_end.fitted and not front_end_path(folder, front_end).exists():
            save_weights(
                proxy.fit(front_end, device).module, front_end_path(folder, front_end), folder
            )
