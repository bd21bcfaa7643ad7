"""What the advice of a run is made from, and what it is made of: public numbers, and branches.

    Facts    the form of the data, the number of records, the budget, and what the plan says
    Branch   a question, its answer here, what to do, our evidence, the paper's, and whether
             they agree

Source: Bao et al., Fig. 11 (a flowchart), whose questions these are; docs/guide.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pasearch.cautions import LEAST_SIGNAL

YES, NO, PART = "yes", "no", "in part"
UNMEASURED, SILENT = "not measured by us", "the paper does not say"
AGREEMENTS = (YES, NO, PART, UNMEASURED, SILENT)
"""Whether what we measured agrees with what the paper says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured, or what a paper says.

    Args:
        says: In a sentence or two, with its figures.
        where: The file of this project that the figures stand in; or the paper's section or table.
    """

    says: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One question of the guide, answered for the data at hand.

    Args:
        name: One word, the same in every version.
        question: In plain words.
        answer: Yes, no or what, with its numbers.
        advice: What to do, in a sentence or two.
        ours: What we measured.
        paper: What Bao et al. say.
        agree: One of `AGREEMENTS`.
        because: Why, where they do not agree, or what the agreement leaves open.
    """

    name: str
    question: str
    answer: str
    advice: str
    ours: tuple[Evidence, ...]
    paper: Evidence
    agree: str
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakest:
    """The training with the weakest signal that was measured on public data of a kind.

    Args:
        data: The public data set.
        signal: Signal-to-noise per class (of a number: of all).
        accuracy: Of the best model, as a share; of numbers 1 minus the error.
        guessing: What guessing has, as a share; None of numbers.
    """

    data: str
    signal: float
    accuracy: float
    guessing: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that advice may depend on: public numbers, none of which is a value of a record.

    Args:
        name: Of the data.
        form: Of a record, and what is predicted, in words.
        kind: As the study on public data has it: table, regression, arrays, image or photo.
        epsilon: Of the whole run.
        delta: Of the whole run.
        records: n.
        outputs: Classes; 1 where a number is predicted. Where classes are not declared, the most
            that would be estimated privately.
        known: Whether the classes, or that a number is predicted, are declared.
        signal: Signal-to-noise of the planned training, per class.
        enough: The least epsilon of a few round ones that would have signal enough; None where
            none up to 10 has. The run's own where it has enough.
        columns: How many columns, or numbers of a record, there are to choose from.
        pixels: Whether records are images, or have more than one axis.
        table: Whether records are rows of a table.
        undeclared: What is estimated privately: columns, bounds, classes.
        poor: Whether it would be estimated from too few records to find much.
        public: What the public data of the same form are called; None: none were named.
        metric: By what the run is scored; None: the usual one.
        default: The model that the plan trains unless a look finds a better one, in words.
        front: What its front end makes of a record, in words; empty: nothing.
        hidden: How many hidden layers it has.
        rate: Its learning rate.
        batch: Records a step, in expectation.
        slots: Training records.
        steps: Of its training.
        compares: Whether the plan looks at other candidates too.
        why: What the plan says about that.
        outside: What of this training nobody has measured on public data; empty: nothing.
        weakest: See `Weakest`.
        reached: (model in words, mean accuracy at this signal on public data) of the study's
            models, the smallest model first.
        forecast: As of `crossover.forecast`; None where nothing like it was measured.
    """

    name: str
    form: str
    kind: str
    epsilon: float
    delta: float
    records: int
    outputs: int
    known: bool
    signal: float
    enough: float | None
    columns: int
    pixels: bool
    table: bool
    undeclared: tuple[str, ...]
    poor: bool
    public: str | None
    metric: str | None
    default: str
    front: str
    hidden: int
    rate: float
    batch: float
    slots: int
    steps: int
    compares: bool
    why: str
    outside: str
    weakest: Weakest
    reached: tuple[tuple[str, float], ...]
    forecast: dict[str, Any] | None = field(default=None, hash=False)

    @property
    def learns(self) -> bool:
        """Whether the signal is large enough to learn anything."""
        return self.signal >= LEAST_SIGNAL

    @property
    def of_numbers(self) -> bool:
        """Whether a number is predicted."""
        return self.kind == "regression"
