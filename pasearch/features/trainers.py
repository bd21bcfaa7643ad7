"""The linear models of a feature selection, and their training methods.

    dpsgd        a layer with one unit per class, by `training`: full batches, momentum, averages
    objective    logistic regression by objective perturbation, one against the rest; for
                 regression, linear regression from noisy second moments

Every model is returned for encoded records: the transformation of its view is part of its weights.

Source: Bao et al., sections VI-D and IX-B (both trainers). Proof: docs/guarantees/dp-sgd.md and
objective-perturbation.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.data.means import ROW_NORM
from pasearch.data.partitions import Records
from pasearch.data.shared_records import SharedRecords
from pasearch.data.threads import use_threads
from pasearch.errors import UsageError
from pasearch.features import linear, logistic
from pasearch.features.views import MAX_NORM_FACTOR, Array, View
from pasearch.planning import GAUSSIAN_NOISE, MU_RANGE, PURE_NOISE, NoiseParameter
from pasearch.runs.keys import Stream
from pasearch.spaces.architecture import Architecture
from pasearch.training.metrics import Metric
from pasearch.training.settings import make_linear_recipe
from pasearch.training.trainer import train

OptionalOnStep = Callable[[int, int], None] | None
"""Progress callback: (number of finished steps, number of all steps)."""
SetFitter = Callable[[Array], "list[LinearModel]"]
"""Function from sets of features, (p, d) bool, to p models."""
MODELS_PER_PRODUCT = 64  # number of models whose scores are computed in one product: a memory limit

LINKS = ("softmax", "one-vs-rest", "identity")
"""Names of the conversions of scores to class probabilities.

softmax: softmax over the classes. one-vs-rest: logistic function of each score, then divided by
their sum. identity: none, for regression.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearModel:
    """Linear model of encoded records.

    Args:
        weights: Weights, (outputs, features).
        intercept: Intercepts, (outputs,).
        link: Name in `LINKS`.
    """

    weights: Array
    intercept: Array
    link: str

    def compute_scores(self, x: Tensor) -> Tensor:
        """Compute the scores of encoded records, float32 (n, outputs)."""
        weights, intercept = (
            torch.from_numpy(np.asarray(each, np.float32))
            for each in (self.weights, self.intercept)
        )
        return x.flatten(1) @ weights.T + intercept

    def compute_counts(self, records: Records, metric: Metric) -> list[int]:
        """Compute the counts that a metric is computed from, on open records: private."""
        return count_for_models([self], records, metric)[0]


def scores_to_logits(scores: Tensor, link: str) -> Tensor:
    """Convert scores to logits whose softmax is the link's probabilities."""
    return nn.functional.logsigmoid(scores) if link == "one-vs-rest" else scores


def count_for_models(
    models: Sequence[LinearModel], records: Records, metric: Metric
) -> list[list[int]]:
    """Compute the metric's counts for each model on open records: private.

    The scores of up to `MODELS_PER_PRODUCT` models are one matrix product.
    """
    groups = [
        models[start : start + MODELS_PER_PRODUCT]
        for start in range(0, len(models), MODELS_PER_PRODUCT)
    ]
    stacked = [
        LinearModel(
            weights=np.concatenate([model.weights for model in group]),
            intercept=np.concatenate([model.intercept for model in group]),
            link="identity",
        )
        for group in groups
    ]
    found: list[Array] = []
    for part in records.parts():
        scores = [
            (own.link, each)
            for group, model in zip(groups, stacked, strict=True)
            for own, each in zip(
                group, model.compute_scores(part.x).chunk(len(group), dim=1), strict=True
            )
        ]
        if metric.needs_probabilities:
            scores = [(link, scores_to_logits(each, link)) for link, each in scores]
        counted = (metric.compute_counts(each, part.y, part.valid) for _, each in scores)
        found.append(np.array(list(counted), np.int64))
    return np.sum(found, axis=0).tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer(ABC):
    """Training method with a calibrated noise parameter.

    Args:
        noise: Noise parameter, see `noise_name`.
        outputs: Number of classes, or 1 for regression.
        regression: Whether the target is a number.
        device: "cpu" or "cuda".
    """

    noise_name: ClassVar[str]
    """Name of the parameter that `noise` is: "mu" (DP-SGD), "epsilon" or "noise_multiplier"."""
    shares_release: ClassVar[bool] = False
    """Whether one noisy release is enough to fit a model to every set of features."""
    holds_all_records: ClassVar[bool] = False
    """Whether all records are in memory at once."""
    trains_separately: ClassVar[bool] = False
    """Whether each set has an independent training, so that a worker can run it."""
    noise: float
    outputs: int
    regression: bool
    device: str = "cpu"

    @classmethod
    @abstractmethod
    def knob(cls, slots: int, regression: bool) -> NoiseParameter:
        """Return the noise parameter of one training on `slots` records, for calibration."""

    @classmethod
    def link(cls, outputs: int, regression: bool) -> str:
        """Return the conversion of a model's scores to probabilities: one of `LINKS`."""
        return "identity" if regression else "softmax"

    @abstractmethod
    def reduce_noise(self, factor: float) -> Self:
        """Return the trainer with noise that is lower by `factor`, for a smaller data set.

        Noise that is lower by n / m on m records has the same effect as the original on n records.
        """

    @abstractmethod
    def fit(
        self, records: Records, view: View, stream: Stream, *, on_step: OptionalOnStep = None
    ) -> LinearModel:
        """Train a model on an open partition.

        Args:
            records: Open partition.
            view: Input transformation of the model.
            stream: Random stream of this training alone.
            on_step: Progress callback; only DP-SGD calls it.

        Cost: one training's event at the trainer's noise, charged by the caller.
        """

    def fit_many(
        self, records: Records, means: Array, masks: Array, streams: Sequence[Stream],
        *, on_step: OptionalOnStep = None,
    ) -> list[LinearModel]:  # fmt: skip
        """Train a model for each set of features, each with a separate stream.

        Args:
            records: Open partition.
            means: Means of all features, (d,).
            masks: Sets of features, (p, d) bool.
            streams: Random stream of each set, p streams.
            on_step: Progress callback with the steps of all p trainings; only DP-SGD calls it.

        Cost: one training's event per set.
        """
        return [
            self.fit(
                records,
                View.of(means, mask),
                stream,
                on_step=_offset_progress(on_step, place, len(masks)),
            )
            for place, (mask, stream) in enumerate(zip(masks, streams, strict=True))
        ]

    def fit_all_sets(self, records: Records, means: Array, stream: Stream) -> SetFitter:
        """Make one release, and return the function that fits a model to each set of features.

        Only for trainers with `shares_release`.

        Cost: one training's event, once.
        """
        raise NotImplementedError

    def fit_public(self, records: Records, view: View) -> LinearModel:
        """Train the model without noise, on declared-public records.

        Raises:
            UsageError: Private records.
        """
        if records.public is not True:
            raise UsageError("Training without noise requires data declared public (public=True).")
        rows, y, valid = _transform_all(view, records)
        masks, norm = np.ones((1, view.width), bool), MAX_NORM_FACTOR * ROW_NORM
        if self.regression:
            moments = linear.compute_public_moments(rows, y, valid, data_norm=norm)
            return _model_from_solution(moments.fit_many(masks), view, "identity")
        found = logistic.fit_public(
            rows, y, valid, masks, data_norms=np.array([norm]), classes=self.outputs
        )
        return _model_from_solution(found[0], view, ObjectiveTrainer.link(self.outputs, False))


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSgdTrainer(Trainer):
    """DP-SGD on one linear layer with one unit per output, configured by `make_linear_recipe`."""

    noise_name: ClassVar[str] = "mu"
    trains_separately: ClassVar[bool] = True

    @classmethod
    def knob(cls, slots: int, regression: bool) -> NoiseParameter:
        return NoiseParameter(
            bounds=MU_RANGE, event=lambda mu: make_linear_recipe(slots, mu, regression).event(slots)
        )

    def reduce_noise(self, factor: float) -> Self:
        return replace(self, noise=min(MU_RANGE[1], self.noise * factor))

    def fit(
        self, records: Records, view: View, stream: Stream, *, on_step: OptionalOnStep = None
    ) -> LinearModel:
        network = Architecture(layers=()).build((view.width,), self.outputs)
        streams = {purpose: stream.child(purpose) for purpose in ("batch", "noise", "dropout")}
        recipe = make_linear_recipe(len(records), self.noise, self.regression, self.outputs)

        def finished(step: int) -> None:
            if on_step is not None:
                on_step(step, recipe.steps)

        seen = view.transform_records(records)
        train(
            network, seen, recipe, streams, device=self.device, on_step=finished,
            looks=lambda _: False,
        )  # fmt: skip
        weights, bias = (p.detach().cpu().numpy().astype(np.float64) for p in network.parameters())
        return _make_model(weights, bias, view, self.link(self.outputs, self.regression))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveTrainer(Trainer):
    """Logistic regression by objective perturbation."""

    noise_name: ClassVar[str] = "epsilon"
    holds_all_records: ClassVar[bool] = True

    @classmethod
    def knob(cls, slots: int, regression: bool) -> NoiseParameter:
        return PURE_NOISE

    @classmethod
    def link(cls, outputs: int, regression: bool) -> str:
        """Return the link of two classes, or of each class against the rest."""
        return "one-vs-rest" if outputs > 2 else "softmax"

    def reduce_noise(self, factor: float) -> Self:
        return replace(self, noise=self.noise * factor)

    def fit(
        self, records: Records, view: View, stream: Stream, *, on_step: OptionalOnStep = None
    ) -> LinearModel:
        rows, y, valid = _transform_all(view, records)
        masks = np.ones((1, view.width), bool)
        found = logistic.fit_many(rows, y, valid, masks, [self._make_mechanism(1.0)], [stream])
        return _model_from_solution(found[0], view, self.link(self.outputs, False))

    def fit_many(
        self, records: Records, means: Array, masks: Array, streams: Sequence[Stream],
        *, on_step: OptionalOnStep = None,
    ) -> list[LinearModel]:  # fmt: skip
        every = View.of(means)
        rows, y, valid = _transform_all(every, records)
        # A set's view is this one times a factor; the factor is applied to its norm bound instead.
        views = [View.of(means, mask) for mask in masks]
        ratios = [every.scale[view.columns[0]] / view.scale[0] for view in views]
        mechanisms = [self._make_mechanism(float(ratio)) for ratio in ratios]
        found = logistic.fit_many(
            rows, y, valid, masks, mechanisms, list(streams), device=self.device
        )
        return [
            _model_from_solution(weights, every, self.link(self.outputs, False))
            for weights in found
        ]

    def _make_mechanism(self, ratio: float) -> logistic.ObjectivePerturbation:
        """Make the mechanism for rows whose norm bound is `ratio` times a view's default."""
        return logistic.ObjectivePerturbation(
            epsilon=self.noise, data_norm=MAX_NORM_FACTOR * ROW_NORM * ratio, classes=self.outputs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentsTrainer(Trainer):
    """Linear regression from noisy second moments."""

    noise_name: ClassVar[str] = "noise_multiplier"
    shares_release: ClassVar[bool] = True

    @classmethod
    def knob(cls, slots: int, regression: bool) -> NoiseParameter:
        return GAUSSIAN_NOISE

    def reduce_noise(self, factor: float) -> Self:
        return replace(self, noise=self.noise / factor)

    def fit(
        self, records: Records, view: View, stream: Stream, *, on_step: OptionalOnStep = None
    ) -> LinearModel:
        moments = self._make_mechanism().release_parts(_iterate_arrays(view, records), stream)
        return _model_from_solution(
            moments.fit_many(np.ones((1, view.width), bool)), view, "identity"
        )

    def fit_many(
        self, records: Records, means: Array, masks: Array, streams: Sequence[Stream],
        *, on_step: OptionalOnStep = None,
    ) -> list[LinearModel]:  # fmt: skip
        every = View.of(means)
        # One matrix at a time: memory use must not reveal the number of sets.
        total = self._make_mechanism().sum_moments(_iterate_arrays(every, records))
        return [
            _model_from_solution(
                self._make_mechanism().add_noise(total, own).fit_many(mask[None]), every, "identity"
            )
            for mask, own in zip(masks, streams, strict=True)
        ]

    def fit_all_sets(self, records: Records, means: Array, stream: Stream) -> SetFitter:
        """Release second moments, and return the function that fits models from them for free."""
        every = View.of(means)
        moments = self._make_mechanism().release_parts(_iterate_arrays(every, records), stream)
        return lambda masks: [
            _model_from_solution(w[None], every, "identity") for w in moments.fit_many(masks)
        ]

    def _make_mechanism(self) -> linear.NoisyMoments:
        return linear.NoisyMoments(
            noise_multiplier=self.noise, data_norm=MAX_NORM_FACTOR * ROW_NORM
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTraining:
    """Training of one set's model in a worker process.

    Args:
        trainer: Training method with `trains_separately`.
        opened: Records, already charged.
        view: Input transformation of the set.
        stream: Random stream of this training alone.
        threads: Number of threads of the computation.
    """

    trainer: Trainer
    opened: SharedRecords
    view: View
    stream: Stream
    threads: int

    def __call__(self, arrays: dict[str, Array]) -> bytes:
        """Train on the opened records, and return weights and intercepts as float64 bytes."""
        with use_threads(self.threads):
            model = self.trainer.fit(self.opened.records(arrays), self.view, self.stream)
        return np.column_stack([model.weights, model.intercept]).astype("<f8").tobytes()

    def parse_model(self, found: bytes) -> LinearModel:
        """Parse the model from the bytes that a worker returned."""
        trainer = self.trainer
        both = np.frombuffer(found, "<f8").reshape(trainer.outputs, -1)
        link = trainer.link(trainer.outputs, trainer.regression)
        return LinearModel(weights=both[:, :-1], intercept=both[:, -1], link=link)


TRAINERS: dict[str, tuple[str, type[Trainer], type[Trainer]]] = {
    "dpsgd": (
        "a linear model by DP-SGD: full batches, momentum, averaged weights", DpSgdTrainer,
        DpSgdTrainer,
    ),
    "objective": (
        "logistic regression by objective perturbation, pure epsilon-DP; for regression, "
        "linear regression from noisy second moments", ObjectiveTrainer, MomentsTrainer,
    ),
}  # fmt: skip
"""Training methods: description, trainer for classification, trainer for regression."""


def select_trainer(name: str, regression: bool) -> type[Trainer]:
    """Select the trainer of this name for classification or regression."""
    _, of_classes, of_a_number = TRAINERS[name]
    return of_a_number if regression else of_classes


def _model_from_solution(solved: Array, view: View, link: str) -> LinearModel:
    """Make the model from the weights that a solver returns, (outputs, width + 1)."""
    weights, intercept = solved[:, :-1], solved[:, -1]
    if link == "softmax":  # two classes: one score is 0, and softmax is the logistic function
        weights = np.concatenate([np.zeros_like(weights), weights])
        intercept = np.append(0.0, intercept)
    return _make_model(weights, intercept, view, link)


def _make_model(weights: Array, intercept: Array, view: View, link: str) -> LinearModel:
    """Make the model of encoded records from a model of a view's inputs."""
    whole, shifted = view.compose_weights(weights, intercept)
    return LinearModel(weights=whole, intercept=shifted, link=link)


def _offset_progress(on_step: OptionalOnStep, place: int, of: int) -> OptionalOnStep:
    """Convert the steps of training number `place` of `of` to the steps of all trainings."""
    if on_step is None:
        return None
    return lambda finished, steps: on_step(place * steps + finished, of * steps)


def _iterate_arrays(view: View, records: Records) -> Iterator[tuple[Array, Array, Array]]:
    """Iterate over parts of the records: model inputs, targets, and False for null records."""
    for part in records.parts():
        yield (
            view.transform_features(part).numpy().astype(np.float64),
            part.y.numpy(),
            part.valid.numpy(),
        )


def _transform_all(view: View, records: Records) -> tuple[Array, Array, Array]:
    """Return the model inputs of all records, (n, width), their targets and valid flags, (n,).

    Raises:
        UsageError: The array would need too much memory.
    """
    logistic.check_objective_memory(len(records), view.width)
    rows, start = np.empty((len(records), view.width)), 0
    for part in records.parts():
        rows[start : start + len(part)] = view.transform_features(part).numpy()
        start += len(part)
    return rows, records.y.numpy(), records.valid.numpy()
