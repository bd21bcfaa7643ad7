"""Interface of a selector: a feature selection method with its settings, a frozen dataclass.

    lines     lists the charges of the selection, before a record is read; each line of the plan has
              a name, a noise parameter and a fraction of epsilon
    choose    selects features, from private records that are charged to those lines, or from public
              records

A selector reads records only through `RecordAccess`. To read private records, it names one of its
lines: the line is charged, and its noise is calibrated by the plan. Public records are free and
exact. The rest is post-processing. See docs/extending.md to add a method.

| method | reads | charged as |
|---|---|---|
| all, max-pool, random | nothing | - |
| cfs-greedy, cfs-ga | all contingency tables, or entropies | one Gaussian; Pure, composed |
| top | class shares, then k picks by exact counts | Gaussian; k Pure |
| pca | the second moments | Gaussian |
| pafs | k l privately trained models, and their scores | all planned trainings, composed |
| one-hot | two privately trained models, and their scores | both, composed |
| subsets | K privately trained models, and their scores | one repeat-and-select |

Source: docs/rules.md, rules 1, 4 and 13. Proof: docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from pasearch.accounting.accountants import price
from pasearch.accounting.checks import check_positive_integer, resolve_named_type
from pasearch.accounting.published_bounds import PublishedBound, bao_equation_8
from pasearch.data.front_ends import MaxPool
from pasearch.data.partitions import Records
from pasearch.data.split import Split
from pasearch.data.tables import AnySchema
from pasearch.errors import UsageError, suggest_name
from pasearch.features.trainers import TRAINERS, Array, LinearModel, Trainer
from pasearch.features.views import View
from pasearch.planning import SCORE_NOISE, ReleaseTemplate, check_selection_rule
from pasearch.registry import NamedComponent, Registry
from pasearch.runs.keys import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionResult:
    """Result of a feature selection: the selected features, and the values that it released.

    Args:
        view: Transformation of records to the selected, scaled features.
        to_class: Symmetrical uncertainty of each feature with the target, (d,), if released.
        blank: Uncertainty that one in twenty irrelevant features exceeds; None if not released.
        order: Indices of the selected features, in the order of selection; () if there is none.
        merit: Merit of the selected set; None if the method has none.
        trials: Pairs (features, score count) of every candidate, if they may be shown.
        model: Best candidate's model, if its weights are released; None: a model is trained later.
    """

    view: View
    to_class: Array | None = field(default=None, repr=False)
    blank: float | None = None
    order: tuple[int, ...] = ()
    merit: float | None = None
    trials: tuple[tuple[tuple[int, ...], int], ...] = ()
    model: LinearModel | None = None

    @classmethod
    def of(cls, means: Array, order: Sequence[int], **more: Any) -> SelectionResult:
        """Make the result of selecting the features in `order`.

        Args:
            means: Means of all features, (d,).
            order: Indices of the selected features, in the order of selection.
            more: Other fields of the result.
        """
        return cls(view=View.of(means, make_mask(order, len(means))), order=tuple(order), **more)


def select_best(means: Array, sets: Array, points: Sequence[int]) -> SelectionResult:
    """Make the result of selecting the set with the highest score, the first of equals.

    Args:
        means: Means of all features, (d,).
        sets: Compared sets, (p, d) bool.
        points: Score count of each set, p integers.
    """
    chosen = [mask_to_indices(mask) for mask in sets]
    best = max(range(len(chosen)), key=points.__getitem__)
    shown = tuple(zip(map(tuple, chosen), points, strict=True))
    return SelectionResult.of(means, chosen[best], trials=shown)


def make_mask(places: Sequence[int], features: int) -> Array:
    """Return a bool mask, (features,), True at the given indices."""
    mask = np.zeros(features, bool)
    mask[list(places)] = True
    return mask


def mask_to_indices(mask: Array) -> list[int]:
    """List the feature indices of a mask, ascending."""
    return np.flatnonzero(mask).tolist()


SetScorer = Callable[[Array, Sequence[str]], list[int]]
"""Function (sets, trial names) that trains a model on each of p sets and returns p score counts.

Sets are (p, d) bool. The random streams of training and score depend on the trial's name.
"""

SELECTION_SHARE = 0.4  # default fraction of epsilon for the selection


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMetadata:
    """Public facts about the data, before a record is read.

    Args:
        schema: Schema, declared or to be estimated.
        split: Sizes of the partitions.
        most: Maximum number of estimated categories of an undeclared column.
        public: Whether features are selected on public records.
    """

    schema: AnySchema
    split: Split
    most: int
    public: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Maximum shape of an encoded record."""
        return self.schema.max_shape(self.most)

    @property
    def features(self) -> int:
        """Maximum number of features of an encoded record."""
        return math.prod(self.shape)


class RecordAccess(ABC):
    """Access of a selector to the records: charges private ones before each read.

    Attributes:
        public: Whether records are declared public, so that reads are free and exact.
        schema: Complete schema of the records.
        means: Released means of all features, (d,).
        columns: Column index of each feature, (d,), if whole columns are selected; else None.
        slots: Number of records, null records included.
        retrained: Whether the final model is trained on records that the selection does not read.
    """

    public: bool
    schema: AnySchema
    means: Array
    columns: Array | None
    slots: int
    retrained: bool

    @abstractmethod
    def open_line(self, line: str, *keys: str) -> AbstractContextManager[Records]:
        """Charge a line of the plan and open its records.

        Args:
            line: Name of the line.
            keys: Names of the charges; the line is charged once per key, or once without keys.
        """

    @abstractmethod
    def noise(self, line: str) -> float:
        """Return the calibrated noise parameter of a line."""

    @abstractmethod
    def make_scorer(self) -> SetScorer:
        """Make the function that trains a model per feature set and scores it."""

    @abstractmethod
    def train_sets(
        self, sets: Array, trials: Sequence[str], keys: Iterable[str]
    ) -> list[LinearModel]:
        """Train a model on each set of features, with a separate random stream.

        Args:
            sets: Sets of features, (p, d) bool.
            trials: Name of each training, p different names.
            keys: Names of the charges, one charge each.
        """

    @abstractmethod
    def score_models(
        self, models: Sequence[LinearModel], trials: Sequence[str], keys: Iterable[str]
    ) -> list[int]:
        """Return the score count of each model, with noise on private records.

        Args:
            models: Models to score.
            trials: Name of each model, all different.
            keys: Names of the charges, one charge each.
        """


class Selector(NamedComponent, ABC):
    """Feature selection method with its settings, a frozen dataclass."""

    description: ClassVar[str]  # one-line description
    public_description: ClassVar[str] = ""
    """One-line description on public records; empty if the method does not use them."""
    selection_rule: ClassVar[str] = "composition"
    """Composition rule of the selection: one of `planning.SELECTION_RULES`."""
    no_size_reason: ClassVar[str] = ""
    """Reason why `size` cannot be set, a verb phrase; empty if it can be set."""
    training_line: ClassVar[str] = ""
    """Name of the line that trainings of candidates are charged to; empty if none are trained."""
    share: ClassVar[float | None] = None
    """Fraction of the training records' epsilon; None if the selection reads none of them."""
    uses_means: ClassVar[bool] = False
    """Whether the selection uses standardised features, so that it needs their means."""
    accepts_search_share: ClassVar[bool] = False
    """Whether records may be reserved for the selection (`search_share=`)."""
    uses_merit: ClassVar[bool] = False
    """Whether it releases the uncertainty of each feature with the target, and a set's merit."""
    shows_trials: ClassVar[bool] = False
    """Whether every candidate may be shown with its noisy score."""
    size: int | None = None  # number of features; None leaves it to the method

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise an error if the class has an unknown selection rule."""
        super().__init_subclass__(**options)
        check_selection_rule(cls)

    @property
    def trains_candidates(self) -> bool:
        """Whether candidate models are trained and compared."""
        return bool(self.training_line)

    @property
    def keeps_winner(self) -> bool:
        """Whether the best candidate's weights are released without another training."""
        return False

    @property
    def trainings(self) -> int:
        """Number of planned trainings; 0 if their number is secret."""
        return 0

    @property
    def expected_trainings(self) -> float:
        """Expected number of trainings: a public constant."""
        return float(self.trainings)

    @property
    def rounds(self) -> int:
        """Number of rounds in which candidates are trained."""
        return int(self.trains_candidates)

    @property
    def pooling(self) -> MaxPool | None:
        """Max pooling of every record before the selection; None for no pooling."""
        return None

    def check(self, form: DataMetadata) -> None:
        """Raise UsageError for data that the method cannot use, and name an alternative."""

    def list_releases(
        self, form: DataMetadata, trainer: type[Trainer]
    ) -> tuple[ReleaseTemplate, ...]:
        """List the charges of the selection on private records, in the order of calibration.

        Args:
            form: Public metadata of the data.
            trainer: Training method of the candidates.
        """
        return ()

    @abstractmethod
    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        """Choose the features.

        Args:
            reads: Private records under charge, or public ones.
            stream: Random stream of the whole selection.

        Cost: the releases of `list_releases` on private records; none on public records.
        """

    def describe(self, *, public: bool = False) -> str:
        """Describe the method, and every setting that differs from its default."""
        return (self.public_description if public else self.description) + self.describe_changes(
            "size"
        )

    def describe_changes(self, *names: str) -> str:
        """Describe the named settings that differ from their defaults, each after a semicolon."""
        usual = {each.name: each.default for each in fields(self)}  # pyright: ignore[reportArgumentType]
        own = [(name, getattr(self, name)) for name in names if name in usual]
        told = [("k" if name == "size" else name, v) for name, v in own if v != usual[name]]
        return "".join(f"; {name} {value:,g}" for name, value in told)

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values, without the size."""
        names = [each.name for each in fields(self)]  # pyright: ignore[reportArgumentType]
        return {name: getattr(self, name) for name in names if name != "size"}

    def list_published_bounds(
        self, form: DataMetadata, trainer: type[Trainer], noises: Mapping[str, float], delta: float
    ) -> list[PublishedBound]:
        """Compute published privacy bounds of the selection; shown for comparison, never charged.

        Args:
            form: Public metadata of the data.
            trainer: Training method of the candidates.
            noises: Calibrated noise parameter of each line, by its name.
            delta: Delta of the run, in (0, 1).
        """
        return []

    def count_selected(self, features: int) -> int | None:
        """Return the number of selected features; None if it depends on the records."""
        return None

    def count_components(self, features: int) -> int | None:
        """Return the number of components that the model uses; None: it uses features."""
        return None

    def candidate_sets(self, schema: AnySchema) -> Array | None:
        """Return the sets that the method chooses from, (p, d) bool; None if it can choose any."""
        return None


SELECTORS = Registry(
    "method", Selector, "pasearch.features.independent", "pasearch.features.cfs",
    "pasearch.features.top_features", "pasearch.features.pca", "pasearch.features.wrappers",
)  # fmt: skip


class SizedSelector(Selector):
    """Selector of a given number of features."""

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", check_positive_integer("k", self.size))

    def resolve_size(self, features: int) -> int:
        """Return the number of selected features: the size, or d^(2/3) of d features by default."""
        usual = max(1, round(features ** (2 / 3)))
        return min(features, usual if self.size is None else self.size)


class ComparingSelector(Selector):
    """Base class of selectors that train a model on each of several sets and compare noisy scores.

    Every planned training and score is charged, and all may be shown. The released model is trained
    from scratch with the remaining epsilon. A trainer with `shares_release` is charged only once
    for all sets.
    """

    training_line: ClassVar[str] = "candidate training"
    share: ClassVar[float | None] = SELECTION_SHARE
    uses_means: ClassVar[bool] = True
    shows_trials: ClassVar[bool] = True
    printed: ClassVar[str] = ""  # sentence about the privacy cost that the paper prints

    def count_charged_trainings(self, trainer: type[Trainer]) -> int:
        """Return the number of charged trainings: 1 if one release serves all sets."""
        return 1 if trainer.shares_release else self.trainings

    def list_releases(
        self, form: DataMetadata, trainer: type[Trainer]
    ) -> tuple[ReleaseTemplate, ...]:
        """List every planned training and score."""
        knob = trainer.knob(form.split.trial_size, form.schema.regression)
        return (
            ReleaseTemplate(
                name=self.training_line, knob=knob, times=self.count_charged_trainings(trainer)
            ),
            ReleaseTemplate(
                name="score", knob=SCORE_NOISE, times=self.trainings, partition="validation"
            ),
        )

    def list_published_bounds(
        self, form: DataMetadata, trainer: type[Trainer], noises: Mapping[str, float], delta: float
    ) -> list[PublishedBound]:
        """Compute the paper's bound of the trainings (Eq. 8), which is for pure epsilon-DP.

        The formula uses the epsilon of one training, at the run's delta if it is not pure DP. The
        list is empty if one release serves all sets, because the paper has no such trainings.
        """
        if trainer.shares_release:
            return []
        noise = noises[self.training_line]
        event = trainer.knob(form.split.trial_size, form.schema.regression).event(noise)
        one = noise if trainer.noise_name == "epsilon" else price(event, delta).epsilon
        claim = bao_equation_8(epsilon=one, runs=self.trainings, delta_prime=delta)
        return [claim.with_printed_figure(self.printed)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Selection method and training method of a run.

    Args:
        selector: Selection method.
        trainer: Name in `trainers.TRAINERS`.
    """

    selector: Selector
    trainer: str = "dpsgd"

    def __post_init__(self) -> None:
        check_one_of("trainer", self.trainer, TRAINERS)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; `choice_from_json` is the inverse."""
        selector = self.selector
        told = {"name": selector.name, "trainer": self.trainer, "size": selector.size}
        return {**told, **selector.settings()}


def check_one_of(name: str, value: str, known: Iterable[str]) -> None:
    """Raise UsageError if a setting is not one of the known names."""
    if value not in known:
        names = list(known)
        raise UsageError(
            f"{name} is {value!r}: expected one of {', '.join(names)}.{suggest_name(value, names)}"
        )


def make_choice(name: str, trainer: str = "dpsgd", **settings: Any) -> Choice:
    """Make a choice from the name of a selector and of a trainer.

    Args:
        name: Name in `SELECTORS`.
        trainer: Name in `trainers.TRAINERS`.
        settings: Fields of the selector; None keeps a field's default.

    Raises:
        UsageError: An unknown name, or a setting of another method.

    >>> make_choice("cfs-greedy", size=5).selector.size
    5
    """
    check_one_of("method", name, SELECTORS)
    given = {setting: value for setting, value in settings.items() if value is not None}
    for setting in given:
        if setting == "size" and (why := SELECTORS[name].no_size_reason):
            raise UsageError(f"k cannot be set: method {name!r} {why}. Remove `k=`.")
        owners = [
            each
            for each, kind in SELECTORS.kinds().items()
            if setting in [own.name for own in fields(kind)]  # pyright: ignore[reportArgumentType]
        ]
        if name not in owners:
            raise UsageError(
                f"`{setting}=` requires method {' or '.join(owners)}, not {name!r}: remove it, or "
                "change the method."
            )
    return Choice(selector=SELECTORS[name](**given), trainer=trainer)


def choice_from_json(values: object) -> Choice:
    """Parse the result of a choice's `to_json`.

    Raises:
        UsageError: An unknown method, a missing setting, or a value out of range.
    """
    own = dict(values) if isinstance(values, dict) else {}
    trainer = own.pop("trainer", None)
    if own.get("size") is None:
        own.pop("size", None)
    kind, given = resolve_named_type("method", SELECTORS.kinds(), own)
    return Choice(selector=kind(**given), trainer=trainer)  # pyright: ignore[reportArgumentType]


def list_setting_names() -> list[str]:
    """List the names of the settings of all selectors, without the number of features."""
    every = (each.name for kind in SELECTORS.kinds().values() for each in fields(kind))  # pyright: ignore[reportArgumentType]
    return [name for name in dict.fromkeys(every) if name != "size"]
