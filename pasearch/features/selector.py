"""What a selector is: one method of choosing features, a frozen value of its settings.

    lines     what the choice is charged, before a record is read: a name, a dial, a share each
    choose    the features, from what those lines let it read, or from public records

A selector reads through `Reads` alone: private records under the charge of one of its lines, with
the noise that the plan has solved for it; public ones free and exact. All else it does is
post-processing. So one file holds a method: its settings, price, words, JSON and claims.
One of your own is one file: docs/extending.md.

Source: docs/rules.md, rules 1, 4 and 13. Proof: docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pasearch.accounting.accountants import price
from pasearch.accounting.checks import whole
from pasearch.accounting.claims import Claim, eq8
from pasearch.data.front_ends import MaxPool
from pasearch.data.partitions import AnyRecords
from pasearch.data.split import Split
from pasearch.data.tables import AnySchema
from pasearch.errors import UsageError, nearest
from pasearch.features.chosen import Chosen
from pasearch.features.knobs import SCORE, DialledLine
from pasearch.features.trainers import TRAINERS, Array, LinearModel, Trainer
from pasearch.planning import check_rule
from pasearch.registry import Named, Registry
from pasearch.runs.keys import Stream

Compared = Callable[[Array, Sequence[str]], list[int]]
"""Gives the points of a model trained on each of some sets, (p, d), by the names of the trials."""

SELECTION_SHARE = 0.4
"""The share of epsilon that the choice of features takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
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
        return self.schema.widest_shape(self.most)

    @property
    def features(self) -> int:
        """How many features a record has, at most."""
        return math.prod(self.shape)


class Reads(ABC):
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
    def opened(self, line: str, *keys: str) -> AbstractContextManager[AnyRecords]:
        """Charge a line once for each key, without one once, and open what it reads."""

    @abstractmethod
    def noise(self, line: str) -> float:
        """Return the noise that the plan has solved for a line: see its `Knob`."""

    @abstractmethod
    def compared(self) -> Compared:
        """Return what trains a model on each of some sets and gives its (noisy) points."""

    @abstractmethod
    def trained(self, sets: Array, trials: Sequence[str], keys: Iterable[str]) -> list[LinearModel]:
        """Train a model on each set, (p, d), from randomness of its own, charged once a key."""

    @abstractmethod
    def scored(
        self, models: Sequence[LinearModel], trials: Sequence[str], keys: Iterable[str]
    ) -> list[int]:
        """Return a (noisy) score of each model, charged once a key."""


class Selector(Named, ABC):
    """A method of choosing features: a frozen dataclass of its settings. See the module."""

    does: ClassVar[str]
    """What it does, in words."""
    does_on_public: ClassVar[str] = ""
    """What it does on public records; empty if it has no use for them."""
    selection_rule: ClassVar[str] = "composition"
    """How the price of the choice comes about: one of `planning.SELECTION_RULES`."""
    no_size: ClassVar[str] = ""
    """Why it takes no number of features; empty if it does, as its field `size`."""
    training_line: ClassVar[str] = ""
    """The line that pays for the trainings of its candidates; empty if it trains none."""
    share: ClassVar[float | None] = None
    """Of the epsilon of the slots that the model is trained on; None if it shares no epsilon."""
    centred: ClassVar[bool] = False
    """Whether it is made on centred features, so that it needs their means."""
    searches: ClassVar[bool] = False
    """Whether slots may be set aside for it (`search_share=`)."""
    by_merit: ClassVar[bool] = False
    """Whether it releases how much each feature tells of the target, and the set's merit."""
    shows_trials: ClassVar[bool] = False
    """Whether every candidate may be shown, with its noisy score."""
    size: int | None = None
    """How many features; None leaves it to the method."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a rule that has no theorem."""
        super().__init_subclass__(**options)
        check_rule(cls)

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

    def check(self, form: Form) -> None:
        """Refuse data that it has no use for, with what to do instead."""

    def lines(self, form: Form, trainer: type[Trainer]) -> tuple[DialledLine, ...]:
        """Return what the choice is charged on private records, in the order of solving.

        Args:
            form: Of the data.
            trainer: How models are trained.
        """
        return ()

    @abstractmethod
    def choose(self, reads: Reads, stream: Stream) -> Chosen:
        """Return the chosen features.

        Args:
            reads: Private records under charge, or public ones.
            stream: All randomness of the choice.

        Cost: `lines`; of public records, nothing.
        """

    def words(self, *, public: bool = False) -> str:
        """Return it in words, with every setting that is not as usual."""
        return (self.does_on_public if public else self.does) + self.unusual("size")

    def unusual(self, *names: str) -> str:
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
        self, form: Form, trainer: type[Trainer], noises: Mapping[str, float], delta: float
    ) -> list[Claim]:
        """Return what the papers would charge for the choice on private records; never charged.

        Form and trainer are as of `lines`; noises are of each line, by its name; delta the run's.
        """
        return []

    def must_choose(self, features: int) -> int | None:
        """Return how many of so many features it chooses; None if that depends on the records."""
        return None

    def directions(self, features: int) -> int | None:
        """Return how many directions in the features the model is given; None: features."""
        return None

    def sets(self, schema: AnySchema) -> Array | None:
        """Return the only sets that it can choose, (p, d) bool; None if there may be any."""
        return None


SELECTORS = Registry(
    "method", Selector, "pasearch.features.all_features", "pasearch.features.random_features",
    "pasearch.features.cfs", "pasearch.features.top", "pasearch.features.pca",
    "pasearch.features.pafs", "pasearch.features.one_hot", "pasearch.features.subsets",
    "pasearch.features.max_pool",
)  # fmt: skip


class Sized(Selector):
    """What selectors of a given number of features share."""

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", whole("k", self.size))

    def count(self, features: int) -> int:
        """Return how many are chosen of so many: d^(2/3) of d, if no size was given."""
        usual = max(1, round(features ** (2 / 3)))
        return min(features, usual if self.size is None else self.size)


class Comparing(Selector):
    """What selectors share that train a model on each of their sets and compare noisy scores.

    Every planned training and score is charged, and all may be shown; the released model is trained
    anew, on what is left of epsilon. Second moments, once released, serve every set.
    """

    training_line: ClassVar[str] = "candidate training"
    share: ClassVar[float | None] = SELECTION_SHARE
    centred: ClassVar[bool] = True
    shows_trials: ClassVar[bool] = True
    printed: ClassVar[str] = ""

    def charged(self, trainer: type[Trainer]) -> int:
        """Return how many releases candidates are trained from: one each, if they share none."""
        return 1 if trainer.shared else self.trainings

    def lines(self, form: Form, trainer: type[Trainer]) -> tuple[DialledLine, ...]:
        """Return every planned training and score."""
        knob = trainer.knob(form.split.trial_slots, form.schema.regression)
        return (
            DialledLine(name=self.training_line, knob=knob, times=self.charged(trainer)),
            DialledLine(name="score", knob=SCORE, times=self.trainings, partition="validation"),
        )

    def claims(
        self, form: Form, trainer: type[Trainer], noises: Mapping[str, float], delta: float
    ) -> list[Claim]:
        """Return the paper's own price of the trainings (Eq. 8), which is for pure epsilon-DP.

        Trainings of (epsilon, delta)-DP enter with their epsilon at the run's delta. There is no
        claim for trainings that share one release: the paper has no such trainings.
        """
        if trainer.shared:
            return []
        noise = noises[self.training_line]
        event = trainer.knob(form.split.trial_slots, form.schema.regression).event(noise)
        one = noise if trainer.noise_name == "epsilon" else price(event, delta).epsilon
        claim = eq8(epsilon=one, runs=self.trainings, delta_prime=delta)
        return [claim.beside_printed(self.printed)]


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
        """Return plain values, from which `selectors.choice_from_json` makes it again."""
        selector = self.selector
        told = {"name": selector.name, "trainer": self.trainer, "size": selector.size}
        return {**told, **selector.settings()}


def check_one_of(name: str, value: str, known: Iterable[str]) -> None:
    """Refuse a setting that is none of some names."""
    if value not in known:
        names = list(known)
        raise UsageError(
            f"{name} is {value!r}: expected one of {', '.join(names)}.{nearest(value, names)}"
        )
