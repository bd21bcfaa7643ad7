"""The linear models of a feature selection, and the ways to train them.

    dpsgd        a layer of one unit a class, by `training`: full batches, momentum, averages
    objective    logistic regression, one against the rest, or linear, by objective perturbation

Every model is handed over on encoded records: what a view does to them is part of its weights.

Source: Bao et al., sections VI-D and IX-B (both trainers). Proof: docs/guarantees/dp-sgd.md and
objective-perturbation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.data.partitions import Records
from pasearch.errors import UsageError
from pasearch.features import linear, logistic
from pasearch.features.plan import REACH, ROW_NORM, linear_recipe
from pasearch.features.size import check_objective
from pasearch.features.views import View
from pasearch.training.scoring import points_of
from pasearch.training.trainer import train

if TYPE_CHECKING:
    from pasearch.data.partitions import AnyRecords
    from pasearch.runs.keys import Stream

Array = np.ndarray[Any, Any]

OnStep = Callable[[int, int], None]
TOGETHER = 64
"""How many models' scores are held at a time."""

LINKS = ("softmax", "one-vs-rest", "identity")
"""How scores become probabilities: exp, normalised; logistic each, normalised; not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearModel:
    """A linear model of encoded records.

    Args:
        weights: (outputs, features).
        intercept: (outputs,).
        link: One of `LINKS`.
    """

    weights: Array
    intercept: Array
    link: str

    def scores(self, x: Tensor) -> Tensor:
        """Return what it says of encoded records, float32 (n, outputs)."""
        weights, intercept = (
            torch.from_numpy(np.asarray(each, np.float32))
            for each in (self.weights, self.intercept)
        )
        return x.flatten(1) @ weights.T + intercept

    def points(self, records: AnyRecords) -> int:
        """Return its points on open records: private."""
        return points_of_all([self], records)[0]


def points_of_all(models: Sequence[LinearModel], records: AnyRecords) -> list[int]:
    """Return each model's points on open records, from one product for many models."""
    groups = [models[start : start + TOGETHER] for start in range(0, len(models), TOGETHER)]
    stacked = [
        LinearModel(
            weights=np.concatenate([model.weights for model in group]),
            intercept=np.concatenate([model.intercept for model in group]),
            link="identity",
        )
        for group in groups
    ]
    found = np.zeros(len(models), np.int64)
    for part in records.parts():
        found += [
            points_of(scores, part.y, part.valid)
            for group, model in zip(groups, stacked, strict=True)
            for scores in model.scores(part.x).chunk(len(group), dim=1)
        ]
    return found.tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """One way to train, at a solved price.

    Args:
        name: One of `features.plan.TRAINERS`.
        outputs: Classes, or 1 for a number.
        regression: Whether a number is predicted.
        epsilon: Of one training by objective perturbation.
        sigma: Noise multiplier of one release of second moments.
        mu: The dial of one training by DP-SGD.
        device: "cpu" or "cuda".
    """

    name: str
    outputs: int
    regression: bool
    epsilon: float | None = None
    sigma: float | None = None
    mu: float | None = None
    device: str = "cpu"

    def fit(
        self, records: AnyRecords, view: View, stream: Stream, *, on_step: OnStep | None = None
    ) -> LinearModel:
        """Return a model trained on an open partition.

        Args:
            records: The partition.
            view: What the model is given of a record.
            stream: Of this training alone.
            on_step: Called with how many steps are finished, of how many; by DP-SGD alone.

        Cost: `Pure(epsilon)`, `Gaussian(sigma)`, or the event of `features.plan.linear_recipe`,
            charged by the caller.
        """
        if self.name == "dpsgd":
            return self._by_steps(records, view, stream, on_step)
        if self.regression:
            moments = self._moments().release_parts(_parts(view, records), stream)
            return self._model(moments.fit_many(np.ones((1, view.width), bool)), view)
        rows, y, valid = _whole(view, records)
        return self._model(logistic.fit_one(rows, y, valid, self._mechanism(1.0), stream), view)

    def fit_many(
        self, records: AnyRecords, means: Array, masks: Array, streams: Sequence[Stream],
        *, on_step: OnStep | None = None,
    ) -> list[LinearModel]:  # fmt: skip
        """Return a model for each set of features, each from a stream of its own.

        Args:
            records: An open partition.
            means: Of all features, (d,).
            masks: Sets, (p, d) bool.
            streams: p of them.
            on_step: Called with how many steps of all p are finished; by DP-SGD alone.

        Cost: as `fit`, once for each set.
        """
        views = [View.of(means, mask) for mask in masks]
        if self.name == "dpsgd":
            told = [_share(on_step, place, len(views)) for place in range(len(views))]
            each = zip(views, streams, told, strict=True)
            return [self._by_steps(records, *one) for one in each]
        every = View.of(means)
        if self.regression:
            # One matrix at a time: how much memory is taken must not tell how many sets there are.
            total = self._moments().total(_parts(every, records))
            return [
                self._model(self._moments().noised(total, s).fit_many(mask[None]), every)
                for mask, s in zip(masks, streams, strict=True)
            ]
        rows, y, valid = _whole(every, records)
        # A set's own view is this one times a factor, which its bound takes instead.
        ratios = [every.scale[view.columns[0]] / view.scale[0] for view in views]
        mechanisms = [self._mechanism(float(ratio)) for ratio in ratios]
        found = logistic.fit_many(
            rows, y, valid, masks, mechanisms, list(streams), device=self.device
        )
        return [self._model(weights, every) for weights in found]

    def moments(self, records: AnyRecords, means: Array, stream: Stream) -> linear.Moments:
        """Return second moments that serve every set of features.

        Cost: `Gaussian(sigma)`, once.
        """
        return self._moments().release_parts(_parts(View.of(means), records), stream)

    def solved(self, moments: linear.Moments, means: Array, masks: Array) -> list[LinearModel]:
        """Return a model for each set of features from released moments: for nothing."""
        every = View.of(means)
        return [self._model(weights[None], every) for weights in moments.fit_many(masks)]

    def fit_public(self, records: AnyRecords, view: View) -> LinearModel:
        """Return the model without noise, of declared-public records.

        Raises:
            UsageError: Private records.
        """
        if records.public is not True:
            raise UsageError("Training without noise is for data declared public.")
        rows, y, valid = _whole(view, records)
        masks, norm = np.ones((1, view.width), bool), REACH * ROW_NORM
        if self.regression:
            moments = linear.public_moments(rows, y, valid, data_norm=norm)
            return self._model(moments.fit_many(masks), view)
        norms = np.array([norm])
        found = logistic.fit_public(rows, y, valid, masks, data_norms=norms, classes=self.outputs)
        return self._model(found[0], view)

    def _by_steps(
        self, records: AnyRecords, view: View, stream: Stream, on_step: OnStep | None = None
    ) -> LinearModel:
        assert self.mu is not None

        def finished(step: int) -> None:
            if on_step is not None:
                on_step(step, recipe.steps)

        network = nn.Linear(view.width, self.outputs)
        for parameter in network.parameters():
            nn.init.zeros_(parameter)  # convex: a random start would only be noise
        streams = {purpose: stream.child(purpose) for purpose in ("batch", "noise", "dropout")}
        recipe = linear_recipe(len(records), self.mu, self.regression)
        seen = view.seen(records)
        train(network, seen, recipe, streams, device=self.device, on_step=finished)
        weights, bias = (
            p.detach().cpu().numpy().astype(np.float64) for p in (network.weight, network.bias)
        )
        return self._composed(weights, bias, view, "identity" if self.regression else "softmax")

    def _mechanism(self, ratio: float) -> logistic.ObjectivePerturbation:
        """Return the mechanism whose rows are `ratio` times as long as a view's usually are."""
        assert self.epsilon is not None
        return logistic.ObjectivePerturbation(
            epsilon=self.epsilon, data_norm=REACH * ROW_NORM * ratio, classes=self.outputs
        )

    def _moments(self) -> linear.NoisyMoments:
        assert self.sigma is not None
        return linear.NoisyMoments(noise_multiplier=self.sigma, data_norm=REACH * ROW_NORM)

    def _model(self, solved: Array, view: View) -> LinearModel:
        """Return a model from weights with the intercept last, (1 or outputs, width + 1)."""
        weights, intercept = solved[:, :-1], solved[:, -1]
        if self.regression:
            return self._composed(weights, intercept, view, "identity")
        if len(weights) == 1:  # two classes: one score is 0, and softmax is the logistic function
            weights = np.concatenate([np.zeros_like(weights), weights])
            return self._composed(weights, np.append(0.0, intercept), view, "softmax")
        return self._composed(weights, intercept, view, "one-vs-rest")

    def _composed(self, weights: Array, intercept: Array, view: View, link: str) -> LinearModel:
        whole, shifted = view.composed(weights, intercept)
        return LinearModel(weights=whole, intercept=shifted, link=link)


def _share(on_step: OnStep | None, place: int, of: int) -> OnStep | None:
    """Return what tells of one training's steps as of so many trainings'."""
    if on_step is None:
        return None
    return lambda finished, steps: on_step(place * steps + finished, of * steps)


def _parts(view: View, records: AnyRecords) -> Iterator[tuple[Array, Array, Array]]:
    """Go through records as `linear` takes them."""
    for part in records.parts():
        yield view.rows(part).numpy().astype(np.float64), part.y.numpy(), part.valid.numpy()


def _whole(view: View, records: AnyRecords) -> tuple[Array, Array, Array]:
    """Return records as `logistic` takes them: one array.

    Raises:
        UsageError: Its form is more than memory should hold.
    """
    check_objective(len(records), view.width)
    if isinstance(records, Records):
        return next(_parts(view, records))
    rows, start = np.empty((len(records), view.width)), 0
    for part in records.parts():
        rows[start : start + len(part)] = view.rows(part).numpy()
        start += len(part)
    return rows, records.y.numpy(), records.valid.numpy()
