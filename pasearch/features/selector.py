"""What a selector is: one method of choosing features, a frozen value of its settings.

    lines     what the choice is charged, before a record is read: a name, a parameter, a share
    choose    the features, from what those lines let it read, or from public records

A selector reads through `RecordAccess` alone: private records under the charge of one of its lines,
with the noise that the plan has calibrated for it; public ones free and exact. All else it does is
post-processing. So one file holds a method: its settings, price, words, JSON and claims.
A selector is one file: docs/extending.md.

| method | what it reads to choose | charged as |
|---|---|---|
| all, max-pool, random | nothing | - |
| cfs-greedy, cfs-ga | all contingency tables, or entropies | one Gaussian; Pure, composed |
| top | class shares, then k picks by exact counts | Gaussian; k Pure |
| pca | the second moments | Gaussian |
| pafs | k l privately trained models, and their scores | all that are planned, composed |
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
from pasearch.planning import SCORE_NOISE, LineTemplate, check_selection_rule
from pasearch.registry import NamedComponent, Registry
from pasearch.runs.keys import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionResult:
    """Which features the model uses, and what was released on the way.

    Args:
        view: What the model is given of a record.
        to_class: Symmetrical uncertainty of each feature with the target, where released.
        blank: Above it are about one in ten features that tell nothing.
        order: Features in the order in which they were chosen, where there is one.
        merit: Of the chosen set, where there is one.
        trials: (features, points) of every candidate, where they may be shown.
        model: On encoded records, where the winner's weights are kept.
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
        """Return the choice of these features, in the order in which they were chosen."""
        return cls(view=View.of(means, make_mask(order, len(means))), order=tuple(order), **more)


def select_best(means: Array, sets: Array, points: Sequence[int]) -> SelectionResult:
    """Return the set of most points, the first of them, with all that were compared.

    Args:
        means: Of all features, (d,).
        sets: (p, d) bool.
        points: p of them.
    """
    chosen = [mask_to_indices(mask) for mask in sets]
    best = max(range(len(chosen)), key=points.__getitem__)
    shown = tuple(zip(map(tuple, chosen), points, strict=True))
    return SelectionResult.of(means, chosen[best], trials=shown)


def make_mask(places: Sequence[int], features: int) -> Array:
    """Return which features a set has, (features,) bool."""
    mask = np.zeros(features, bool)
    mask[list(places)] = True
    return mask


def mask_to_indices(mask: Array) -> list[int]:
    """Return the features of a set, rising."""
    return np.flatnonzero(mask).tolist()


SetScorer = Callable[[Array, Sequence[str]], list[int]]
"""Gives the points of a model trained on each of some sets, (p, d), by the names of the trials."""

SELECTION_SHARE = 0.4
"""The share of epsilon that the choice of features takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMetadata:
    """What is known of the data before a record is read.

    Args:
        schema: Declared, or to be estimated.
        split: Sizes of the partitions.
        most: The most categories that an undeclared column may be estimated with.
        public: Whether features are chosen on public records.
    """

    schema: AnySchema
    split: Split
    most: int
    public: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a record, at most."""
        return self.schema.max_shape(self.most)

    @property
    def features(self) -> int:
        """How many features a record has, at most."""
        return math.prod(self.shape)


class RecordAccess(ABC):
    """What a selector may read.

    Attributes:
        public: Whether records are declared public: exact, and for nothing.
        schema: Complete: it says what values mean.
        means: Of all features, (d,): released before, and charged.
        columns: Which column each feature belongs to, (d,), where whole columns are to be chosen.
        slots: How many records there are.
        retrained: Whether the model is trained on records that the choice does not read.
    """

    public: bool
    schema: AnySchema
    means: Array
    columns: Array | None
    slots: int
    retrained: bool

    @abstractmethod
    def open_line(self, line: str, *keys: str) -> AbstractContextManager[Records]:
        """Charge a line once for each key, without one once, and open what it reads."""

    @abstractmethod
    def noise(self, line: str) -> float:
        """Return the noise that the plan has solved for a line: see its `NoiseParameter`."""

    @abstractmethod
    def make_scorer(self) -> SetScorer:
        """Return what trains a model on each of some sets and gives its (noisy) points."""

    @abstractmethod
    def train_sets(
        self, sets: Array, trials: Sequence[str], keys: Iterable[str]
    ) -> list[LinearModel]:
        """Train a model on each set, (p, d), from randomness of its own, charged once a key."""

    @abstractmethod
    def score_models(
        self, models: Sequence[LinearModel], trials: Sequence[str], keys: Iterable[str]
    ) -> list[int]:
        """Return a (noisy) score of each model, charged once a key."""


class Selector(NamedComponent, ABC):
    """A method of choosing features: a frozen dataclass of its settings. See the module."""

    description: ClassVar[str]
    """What it does, in words."""
    public_description: ClassVar[str] = ""
    """What it does on public records; empty if it has no use for them."""
    selection_rule: ClassVar[str] = "composition"
    """How the price of the choice comes about: one of `planning.SELECTION_RULES`."""
    no_size_reason: ClassVar[str] = ""
    """Why it takes no number of features; empty if it does, as its field `size`."""
    training_line: ClassVar[str] = ""
    """The line that pays for the trainings of its candidates; empty if it trains none."""
    share: ClassVar[float | None] = None
    """Of the epsilon of the slots that the model is trained on; None if it shares no epsilon."""
    uses_means: ClassVar[bool] = False
    """Whether it is made on centred features, so that it needs their means."""
    accepts_search_share: ClassVar[bool] = False
    """Whether slots may be set aside for it (`search_share=`)."""
    uses_merit: ClassVar[bool] = False
    """Whether it releases how much each feature tells of the target, and the set's merit."""
    shows_trials: ClassVar[bool] = False
    """Whether every candidate may be shown, with its noisy score."""
    size: int | None = None
    """How many features; None leaves it to the method."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a rule that has no theorem."""
        super().__init_subclass__(**options)
        check_selection_rule(cls)

    @property
    def trains_candidates(self) -> bool:
        """Whether models are compared."""
        return bool(self.training_line)

    @property
    def keeps_winner(self) -> bool:
        """Whether the best candidate's weights are released, so that no model is trained again."""
        return False

    @property
    def trainings(self) -> int:
        """How many trainings are planned; where their number is secret, 0."""
        return 0

    @property
    def expected_trainings(self) -> float:
        """How many trainings are expected: a public constant."""
        return float(self.trainings)

    @property
    def rounds(self) -> int:
        """In how many rounds candidates are trained."""
        return int(self.trains_candidates)

    @property
    def pooling(self) -> MaxPool | None:
        """What every record goes through beforehand."""
        return None

    def check(self, form: DataMetadata) -> None:
        """Refuse data that it has no use for, with what to do instead."""

    def lines(self, form: DataMetadata, trainer: type[Trainer]) -> tuple[LineTemplate, ...]:
        """Return what the choice is charged on private records, in the order of solving.

        Args:
            form: Of the data.
            trainer: How models are trained.
        """
        return ()

    @abstractmethod
    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        """Return the chosen features.

        Args:
            reads: Private records under charge, or public ones.
            stream: All randomness of the choice.

        Cost: `lines`; of public records, nothing.
        """

    def describe(self, *, public: bool = False) -> str:
        """Return it in words, with every setting that is not as usual."""
        return (self.public_description if public else self.description) + self.describe_changes(
            "size"
        )

    def describe_changes(self, *names: str) -> str:
        """Return those of its settings that are not as usual, in words, behind semicolons."""
        usual = {each.name: each.default for each in fields(self)}  # pyright: ignore[reportArgumentType]
        own = [(name, getattr(self, name)) for name in names if name in usual]
        told = [("k" if name == "size" else name, v) for name, v in own if v != usual[name]]
        return "".join(f"; {name} {value:,g}" for name, value in told)

    def settings(self) -> dict[str, Any]:
        """Return its settings as plain values, but for the size."""
        names = [each.name for each in fields(self)]  # pyright: ignore[reportArgumentType]
        return {name: getattr(self, name) for name in names if name != "size"}

    def claims(
        self, form: DataMetadata, trainer: type[Trainer], noises: Mapping[str, float], delta: float
    ) -> list[PublishedBound]:
        """Return what the papers would charge for the choice on private records; never charged.

        Form and trainer are as of `lines`; noises are of each line, by its name; delta the run's.
        """
        return []

    def count_selected(self, features: int) -> int | None:
        """Return how many of so many features it chooses; None if that depends on the records."""
        return None

    def directions(self, features: int) -> int | None:
        """Return how many directions in the features the model is given; None: features."""
        return None

    def sets(self, schema: AnySchema) -> Array | None:
        """Return the only sets that it can choose, (p, d) bool; None if there may be any."""
        return None


SELECTORS = Registry(
    "method", Selector, "pasearch.features.independent", "pasearch.features.cfs",
    "pasearch.features.top_features", "pasearch.features.pca", "pasearch.features.wrappers",
)  # fmt: skip


class SizedSelector(Selector):
    """What selectors of a given number of features share."""

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", check_positive_integer("k", self.size))

    def count(self, features: int) -> int:
        """Return how many are chosen of so many: d^(2/3) of d, if no size was given."""
        usual = max(1, round(features ** (2 / 3)))
        return min(features, usual if self.size is None else self.size)


class ComparingSelector(Selector):
    """What selectors share that train a model on each of their sets and compare noisy scores.

    Every planned training and score is charged, and all may be shown; the released model is trained
    anew, on what is left of epsilon. Second moments, once released, serve every set.
    """

    training_line: ClassVar[str] = "candidate training"
    share: ClassVar[float | None] = SELECTION_SHARE
    uses_means: ClassVar[bool] = True
    shows_trials: ClassVar[bool] = True
    printed: ClassVar[str] = ""

    def count_charged_trainings(self, trainer: type[Trainer]) -> int:
        """Return how many releases candidates are trained from: one each, if they share none."""
        return 1 if trainer.shares_release else self.trainings

    def lines(self, form: DataMetadata, trainer: type[Trainer]) -> tuple[LineTemplate, ...]:
        """Return every planned training and score."""
        knob = trainer.knob(form.split.trial_size, form.schema.regression)
        return (
            LineTemplate(name=self.training_line, knob=knob, times=self.charged(trainer)),
            LineTemplate(
                name="score", knob=SCORE_NOISE, times=self.trainings, partition="validation"
            ),
        )

    def claims(
        self, form: DataMetadata, trainer: type[Trainer], noises: Mapping[str, float], delta: float
    ) -> list[PublishedBound]:
        """Return the paper's own price of the trainings (Eq. 8), which is for pure epsilon-DP.

        Trainings of (epsilon, delta)-DP enter with their epsilon at the run's delta. There is no
        claim for trainings that share one release: the paper has no such trainings.
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
    """How features are chosen, and how the model on them is trained.

    Args:
        selector: The method.
        trainer: One of `trainers.TRAINERS`.
    """

    selector: Selector
    trainer: str = "dpsgd"

    def __post_init__(self) -> None:
        check_one_of("trainer", self.trainer, TRAINERS)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, from which `choice_from_json` makes it again."""
        selector = self.selector
        told = {"name": selector.name, "trainer": self.trainer, "size": selector.size}
        return {**told, **selector.settings()}


def check_one_of(name: str, value: str, known: Iterable[str]) -> None:
    """Refuse a setting that is none of some names."""
    if value not in known:
        names = list(known)
        raise UsageError(
            f"{name} is {value!r}: expected one of {', '.join(names)}.{suggest_name(value, names)}"
        )


def make_choice(name: str, trainer: str = "dpsgd", **settings: Any) -> Choice:
    """Make a choice from the name of a selector and of a trainer.

    Args:
        name: One of `SELECTORS`.
        trainer: One of `trainers.TRAINERS`.
        settings: Fields of the selector; None keeps a field's default.

    Raises:
        UsageError: An unknown name, or a setting that the method has no use for.
    """
    check_one_of("method", name, SELECTORS)
    given = {setting: value for setting, value in settings.items() if value is not None}
    for setting in given:
        if setting == "size" and (why := SELECTORS[name].no_size_reason):
            raise UsageError(f"Method {name!r} {why}: leave `k=` out.")
        owners = [
            each
            for each, kind in SELECTORS.kinds().items()
            if setting in [own.name for own in fields(kind)]  # pyright: ignore[reportArgumentType]
        ]
        if name not in owners:
            raise UsageError(
                f"`{setting}=` is of the method {' or '.join(owners)}, and method {name!r} has no "
                "use for it: leave it out, or name that method."
            )
    return Choice(selector=SELECTORS[name](**given), trainer=trainer)


def choice_from_json(values: object) -> Choice:
    """Read what a choice's `to_json` wrote.

    Raises:
        UsageError: An unknown method, a setting that it lacks, or a value that it refuses.
    """
    own = dict(values) if isinstance(values, dict) else {}
    trainer = own.pop("trainer", None)
    if own.get("size") is None:
        own.pop("size", None)
    kind, given = resolve_named_type("method", SELECTORS.kinds(), own)
    return Choice(selector=kind(**given), trainer=trainer)  # pyright: ignore[reportArgumentType]


def setting_names() -> list[str]:
    """List the settings of all selectors, without the number of features."""
    every = (each.name for kind in SELECTORS.kinds().values() for each in fields(kind))  # pyright: ignore[reportArgumentType]
    return [name for name in dict.fromkeys(every) if name != "size"]
