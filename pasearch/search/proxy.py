"""Search on public data of the same kind, which leaves the whole budget to the final model.

Candidates are trained on the public records like the winner on the private records: the same
steps, and noise for the same signal mu n. A candidate that is sensitive to noise therefore loses
here too. Scores are exact. Nothing private is read, so the search and the fit of a feature
extractor to the public records cost nothing.

Source: docs/rules.md, rule 4 (`public` has price 0, and only declared-public data enters it).
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
"""Number of candidates that are drawn from a space; all entries of a portfolio are trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """Public records with the same schema as the private records.

    Args:
        dataset: Declared-public data set with a complete schema.

    Raises:
        UnchargedReadError: Data that was not declared public.
    """

    dataset: Dataset

    def best(self, plan: Plan, space: Space, *, device: str) -> Candidate:
        """Return the candidate with the best score on the public records.

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
            scores.append(self._score(plan, candidate, records, stream.child(number), device))
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

    def _score(
        self, plan: Plan, candidate: Candidate, records: Records, stream: Stream, device: str
    ) -> float:
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
    """Fit the feature extractors of a plan to public data, and store them for the search.

    The device is that of the proxy's trainings, so that no record is transformed twice.

    Cost: none.
    """
    from pasearch.search.weights import front_end_path, save_weights

    for front_end in plan.space.front_ends():
        if front_end.fitted and not front_end_path(folder, front_end).exists():
            save_weights(
                proxy.fit(front_end, device).module, front_end_path(folder, front_end), folder
            )
