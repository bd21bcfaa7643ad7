"""Advice before a run: Bao et al.'s flowchart as rules, and the command that follows from them.

    facts (form, number of records, budget, plan)  ->  one branch per question, in this order

    no signal           ->  pasearch plan arch ...      nothing is spent: see what it would be
    poor estimates      ->  pasearch check ...          a schema to edit into public knowledge
    many columns        ->  pasearch features ...
    otherwise           ->  pasearch arch ...           on public data first, if there are any

Every rule has a question, an answer for the data at hand, and the evidence: a figure of ours with
the file that contains it, and the statement of the paper (`evidence.json`; tests look up each
figure of ours in its file). If these differ, the branch states it. The facts are public: nothing
here reads a record.

Cost: none.

Source: Bao et al., Fig. 11 (a picture: what it distils is in sections V-C, VI-E and VII);
docs/guide.md has the rules for a reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pasearch.cautions import LEAST_SIGNAL, LITTLE_SIGNAL
from pasearch.crossover.forecast import range_words
from pasearch.crossover.theory import records_needed
from pasearch.features.auto import MANY
from pasearch.files import read_json

STUDY = "pasearch/spaces/portfolio/portfolio-1.json"
"""The study on public data (benchmarks/portfolio), as it is shipped."""

FIT = (1.1, 8922.4)
"""The paper's alpha and beta of eps = ln(alpha + beta / n), its simple model on MNIST, VI-B."""

FROZEN_CNN, FROZEN_FCN = 0.6, 1.4
"""Below which epsilon random weights training wins on MNIST in the paper (Fig. 10)."""

ONE_HOT = 0.05
"""From which epsilon on one-hot categories pay on Adult (Table XVI, and ours)."""

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


_EVIDENCE: dict[str, dict[str, dict[str, str]]] = read_json(Path(__file__).parent / "evidence.json")
OURS = {about: Evidence(**each) for about, each in _EVIDENCE["ours"].items()}
"""Measurements of ours, by subject."""
PAPER = {question: Evidence(**each) for question, each in _EVIDENCE["paper"].items()}
"""Statements of Bao et al., by question."""

QUESTIONS = {
    "signal": "Is the signal large enough to learn anything?",
    "public": "Are there public data of the same form?",
    "declared": "Is everything declared that is publicly known of the columns?",
    "features": "Are there so many columns that features should be chosen?",
    "one-hot": "Should each category become a column of its own (one-hot)?",
    "front": "Should a front end stand between the record and the network?",
    "complexity": "Simple or complex: which model is the best at this epsilon?",
    "frozen": "Should hidden layers keep their random start (random weights training)?",
    "recipe": "How should it be trained: learning rate, batches, recipe?",
    "search": "Should candidates be compared on the private records?",
    "rare": "Are some classes rare?",
}
"""What is asked, in this order."""


def branches(facts: Facts) -> tuple[Branch, ...]:
    """Return every question that has a meaning for the data, answered.

    Args:
        facts: Public numbers alone.

    Cost: none.

    Source: with each rule's evidence.
    """
    found = (rule(facts) for rule in RULES)
    return tuple(each for each in found if each is not None)


def many_columns(facts: Facts) -> bool:
    """Return whether most columns are expected to tell nothing, so that a few are chosen."""
    return facts.columns >= MANY and not facts.pixels


def level(signal: float) -> str:
    """Return a signal in figures: 4.56, or 1,234.

    >>> level(4.5678), level(1234.5)
    ('4.57', '1,234')
    """
    return f"{signal:,.0f}" if signal >= 100 else f"{signal:.3g}"


def sets(count: int) -> str:
    """Return how many public data sets there are, in words."""
    return "one public data set" if count == 1 else f"{count} public data sets"


def more_signal(facts: Facts) -> str:
    """Return what would make the signal large enough: a sentence."""
    records = math.ceil(facts.records * LEAST_SIGNAL / facts.signal)
    ways = [f"collect records (about {float(f'{records:.2g}'):,.0f} instead of {facts.records:,})"]
    if facts.enough is not None:
        ways.append(f"allow a larger epsilon (about {facts.enough:g})")
    merged = int(facts.signal * facts.outputs / LEAST_SIGNAL)
    if facts.known and merged >= 2:
        ways.append(f"merge classes (into {merged} at most)")
    if not facts.known:
        two = level(facts.signal * facts.outputs / 2)
        ways.insert(0, f"declare the classes (of two, the signal is {two} each)")
    return f"Do not train yet: {', or '.join(ways)}."


def _branch(name: str, **said: Any) -> Branch:
    return Branch(name=name, question=QUESTIONS[name], **said)


def _share(value: float) -> str:
    """Return a share as the tables have it: .913."""
    return f"{value:.3f}".removeprefix("0")


def _signal(facts: Facts) -> Branch:
    per = "signal-to-noise" if facts.of_numbers else "signal-to-noise per class"
    counted = "" if facts.known else f"; the classes are not declared, so {facts.outputs} count"
    weakest, said = facts.weakest, PAPER["signal"]
    guess = "" if weakest.guessing is None else f", guessing {_share(weakest.guessing)}"
    return _branch(
        "signal",
        answer=f"{YES if facts.learns else NO}: {per} {level(facts.signal)} (below "
        f"{LEAST_SIGNAL:g} a model guesses{counted})",
        advice="Go on." if facts.learns else more_signal(facts),
        ours=(
            Evidence(
                says=f"The weakest signal measured on public data of this kind is "
                f"{weakest.signal:.2g} ({weakest.data}): the best model has "
                f"{_share(weakest.accuracy)}{guess}.",
                where=STUDY,
            ),
        ),
        paper=Evidence(
            says=f"{said.says}: at epsilon 1 it gives {records_needed(1.0, *FIT):,.0f} records.",
            where=said.where,
        ),
        agree=PART,
        because="both say that records stand in for epsilon; how many are enough depends on the "
        "task, so the fit is not used here.",
    )


def _public(facts: Facts) -> Branch:
    answer = "not known: `public=` names them, if there are any"
    advice = (
        "Look for some: a search on them costs nothing, and `pasearch crossover` tells which model "
        "wins there at which epsilon."
    )
    if facts.public is not None:
        answer = f"{YES}: {facts.public}"
        advice = (
            "Search on them, which costs nothing (`search_on=`), and give the whole budget to one "
            "training on the private records; `pasearch crossover` with `proxy=` measures simple "
            "against complex there, at your number of records."
        )
    images = facts.kind in ("image", "photo")
    return _branch(
        "public",
        answer=answer,
        advice=advice,
        ours=(OURS["backbones" if images else "a private search"],),
        paper=PAPER["public"],
        agree=UNMEASURED,
        because="that a search there is free is a fact; what it gains depends on how alike the "
        "data are.",
    )


def _declared(facts: Facts) -> Branch:
    open_ = len(facts.undeclared)
    answer, advice = f"{YES}: nothing has to be estimated privately", "Go on."
    if open_:
        named = ", ".join(facts.undeclared[:5]) + (", ..." if open_ > 5 else "")
        few = ", and from too few records to find much" if facts.poor else ""
        answer = f"{NO}: {open_} to be estimated privately ({named}){few}"
        advice = "Declare bounds and classes: it costs nothing."
        if facts.table:
            advice = (
                "Declare what is publicly known, in a schema: it costs nothing. `pasearch check` "
                "proposes one to edit."
            )
    return _branch(
        "declared",
        answer=answer,
        advice=advice,
        ours=(OURS["declared"],),
        paper=PAPER["declared"],
        agree=SILENT,
        because="what reading bounds and categories reveals is in none of its prices.",
    )


def _features(facts: Facts) -> Branch:
    if many_columns(facts):
        beyond = f". Of the networks: {facts.outside}" if facts.outside else ""
        answer = f"{YES}: {facts.columns:,} columns ({MANY} or more){beyond}"
        advice = (
            "Take `pasearch features`: it picks the columns that tell most, privately, and trains "
            "a linear model on them."
        )
        about, agree = "many columns", YES
        because = "where most of many columns tell nothing, a few chosen ones win."
    elif facts.pixels:
        answer, advice = f"{NO}: pixels tell little one by one", "Keep all."
        about, agree = "pixels", PART
        because = "it says that pooling costs no privacy (VIII-C), without a figure."
    else:
        answer = f"{NO}: {facts.columns:,} columns (fewer than {MANY})"
        advice = "Keep all: a column that tells nothing costs little once it is centred and scaled."
        about, agree = "few columns", NO
        because = (
            "by objective perturbation, as the paper trains, few features win here too; by DP-SGD "
            "on centred and scaled features they do not, and all features have more."
        )
    return _branch(
        "features",
        answer=answer,
        advice=advice,
        ours=(OURS[about],),
        paper=PAPER["features"],
        agree=agree,
        because=because,
    )


def _one_hot(facts: Facts) -> Branch | None:
    if not facts.table:
        return None
    answer = f"{YES}: epsilon {facts.epsilon:g} is {ONE_HOT:g} or more"
    advice = "Go on: every task here encodes categories so."
    if facts.epsilon < ONE_HOT:
        answer = f"perhaps not: epsilon {facts.epsilon:g} is below {ONE_HOT:g}"
        advice = (
            'Leave columns of categories out of the schema (kind = "ignore") if you know that '
            "numbers tell enough; `pasearch features` with `method=one-hot` compares, and pays for "
            "both."
        )
    return _branch(
        "one-hot",
        answer=answer,
        advice=advice,
        ours=(OURS["one-hot"],),
        paper=PAPER["one-hot"],
        agree=PART,
        because="so trained the crossover is the paper's, .01 to .05; with the library that the "
        "paper used, numbers alone still win at .1 here.",
    )


def _front(facts: Facts) -> Branch:
    return _branch(
        "front",
        answer=f"{YES}: {facts.front}" if facts.front else f"{NO}: the record as it is",
        advice="Leave it to the plan, which takes what was best on public data of this kind.",
        ours=(OURS[f"front of {facts.kind}"], OURS["components"]),
        paper=PAPER["front"],
        agree=PART,
        because="better inputs do help a private model most, but those that no private record is "
        "read for, not components that must be paid for.",
    )


def _complexity(facts: Facts) -> Branch:
    if facts.forecast is None:
        outside = facts.outside or (
            "too few epsilons, or another metric, were measured at this number of records"
        )
        return _branch(
            "complexity",
            answer=f"not known: {outside}",
            advice=f"Train the default ({facts.default}), or measure both on public data with "
            "`pasearch crossover`.",
            ours=(Evidence(says="Nothing like this training was measured.", where=STUDY),),
            paper=PAPER["complexity"],
            agree=UNMEASURED,
            because="the paper's rule is the safer one then: the simpler model.",
        )
    sizes = {each["name"]: each["parameters"] for each in facts.forecast["models"]}
    rises = [sizes[each["before"]] < sizes[each["after"]] for each in facts.forecast["crossings"]]
    if not rises:
        agree, because = (
            PART,
            (
                "no model is clearly better than the planned one at any epsilon that was measured "
                "here: a good input matters more than the size."
            ),
        )
    elif all(rises):
        agree, because = YES, "the simpler model is better below, the larger one above."
    elif any(rises):
        agree, because = PART, "the size of the best model rises and falls with epsilon."
    else:
        agree, because = (
            NO,
            ("here the larger model is better below: training matters more than size."),
        )
    levels = ", ".join(f"{name} {_share(value)}" for name, value in facts.reached)
    ranges = "".join(
        f" The change at epsilon {each['epsilon']:.2g} is "
        f"{range_words(each, facts.forecast['epsilons'])}."
        for each in facts.forecast["crossings"]
    )
    return _branch(
        "complexity",
        answer=f"{facts.forecast['sentence']}{ranges}",
        advice=f"Train the {facts.default}: the command does so by itself.",
        ours=(
            Evidence(
                says=f"On {sets(facts.forecast['data_sets'])} of this kind, at this signal, on "
                f"average, the smallest model first: {levels}.",
                where=STUDY,
            ),
        ),
        paper=PAPER["complexity"],
        agree=agree,
        because=because,
    )


def _frozen(facts: Facts) -> Branch:
    small = facts.epsilon < FROZEN_FCN
    low = (
        "in our short trainings on MNIST it gains for a convolutional network up to about 2.9, and "
        "hardly for others; not measured at the paper's length."
    )
    answer, advice = f"{NO}: epsilon {facts.epsilon:g} is {FROZEN_FCN:g} or more", "Train all."
    if not facts.hidden:
        answer, advice = f"{NO}: a linear model has no hidden layer", "Go on."
    elif small:
        of = "networks of either kind" if facts.epsilon < FROZEN_CNN else "fully connected ones"
        answer = (
            f"perhaps: epsilon {facts.epsilon:g} is in the range where the paper advises it for "
            f"{of}"
        )
        advice = (
            "Measure it on public data before you take it: `pasearch crossover` compares fcn with "
            "fcn+rwt."
        )
    above = "in our short trainings a fully connected network is better with all weights, too."
    return _branch(
        "frozen",
        answer=answer,
        advice=advice,
        ours=(OURS["frozen"], OURS["frozen-low"]),
        paper=PAPER["frozen"],
        agree=PART if small else YES,
        because=low if small else above,
    )


def _recipe(facts: Facts) -> Branch:
    batches = f"all {facts.slots:,} training records at every step"
    reason = "all records are in every step because the noise is then least for each of them."
    if facts.batch < facts.slots:
        batches = f"about {facts.batch:,.0f} of {facts.slots:,} training records at every step"
        reason = "this network learns from a random part of the records at every step."
    return _branch(
        "recipe",
        answer=f"learning rate {facts.rate:.2g}, {batches}, {facts.steps:,} steps; all follow from "
        "the budget and the number of records",
        advice=f"Leave them to the plan: the rate follows the noise, and {reason}",
        ours=(OURS["rates"], OURS["recipes"]),
        paper=PAPER["recipe"],
        agree=YES,
        because="here the rate follows from the noise by a rule, so no run is spent on tuning it.",
    )


def _search(facts: Facts) -> Branch:
    answer = f"{NO}. {facts.why}"
    if facts.compares:
        answer = f"{YES}, by looks that take a small part of the budget. {facts.why}"
    if facts.public is not None:
        answer = f"{NO}: the search is made on {facts.public}"
    return _branch(
        "search",
        answer=answer,
        advice="Leave `strategy=auto`, which decides this from public numbers; a full search of "
        "private records rarely wins back what it costs.",
        ours=(OURS["looks"], OURS["searches"]),
        paper=PAPER["search"],
        agree=NO,
        because="the paper compares at one epsilon for each training, we at one total: so compared "
        "a search must win back what it costs.",
    )


def _rare(facts: Facts) -> Branch | None:
    if facts.of_numbers:
        return None
    answer = "not known: how many records a class has is private, but you may know"
    if facts.metric in ("balanced-accuracy", "auc"):
        answer = f"{YES}: the run is scored by {facts.metric}"
    two = facts.outputs == 2 and facts.known
    moved = " The threshold between the two classes is then moved privately." if two else ""
    return _branch(
        "rare",
        answer=answer,
        advice=f"If some are, take `metric=balanced-accuracy`.{moved}",
        ours=(OURS["rare"],),
        paper=PAPER["rare"],
        agree=SILENT,
        because="what noise does to rare classes is in none of its tables.",
    )


RULES: tuple[Callable[[Facts], Branch | None], ...] = (
    _signal, _public, _declared, _features, _one_hot, _front, _complexity, _frozen, _recipe,
    _search, _rare,
)  # fmt: skip
"""Every rule, in the order of `QUESTIONS`."""

CHECK = "check"
"""The curator's own command: what it prints is private."""

FUNCTIONS = {
    "arch": "search_architecture",
    "features": "select_features",
    "plan arch": "plan_architecture_search",
    "crossover": "measure_crossover",
    CHECK: "pasearch.curator.check.check_table",
}
"""What does a command's work in Python."""

OF_CROSSOVER = ("schema", "bounds", "labels", "classes", "regression", "data_root")
"""What `pasearch crossover` may be told of the data."""

OF_CHECK = ("schema", "target", "quotes", "columns", "separator")
"""What `pasearch check` may be told of the data."""

MOST_ALTERNATIVES = 2

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to copy, and when to run it.

    Args:
        task: Its words behind `pasearch`.
        data: A name or path; None: the data were handed over in memory.
        models: Of a comparison.
        options: (name as in Python, value); epsilon and delta are the budget's.
        why: In a sentence.
    """

    task: str
    data: str | None
    options: tuple[tuple[str, Any], ...] = ()
    models: tuple[str, ...] = ()
    why: str = ""

    @property
    def call(self) -> str:
        """As a call in Python; data that were handed over in memory are called `data` there."""
        if self.task == CHECK:
            given = {name: value for name, value in self.options if name in OF_CHECK[1:]}
            budget = {}
        else:
            given = dict(self.options)
            budget = {name: given.pop(name) for name in ("epsilon", "delta") if name in given}
        said = [f"{name}={value!r}" for name, value in given.items()]
        if budget:
            inside = ", ".join(f"{name}={value!r}" for name, value in budget.items())
            said.insert(0, f"budget=Budget({inside})")
        data = "data" if self.data is None else repr(self.data)
        models = [repr(list(self.models))] if self.models else []
        return f"{FUNCTIONS[self.task]}({', '.join([data, *models, *said])})"


def called(command: Command) -> str:
    """Return a command as a call in Python."""
    return command.call


Line = Callable[[Command], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do with data of a form, at a budget, before anything is read or charged.

    Args:
        data: What the data are called.
        epsilon: Of the whole run.
        delta: Of the whole run.
        records: Their number.
        summary: Four sentences: the data, the signal, the model, the search.
        command: The one to run.
        alternatives: Others, at most two.
        branches: Every question of the guide, answered.
        warnings: What the plan of the run warns of.
    """

    data: str
    epsilon: float
    delta: float
    records: int
    summary: tuple[str, ...]
    command: Command
    alternatives: tuple[Command, ...]
    branches: tuple[Branch, ...]
    warnings: tuple[str, ...] = ()

    def branch(self, name: str) -> Branch:
        """Return the branch of a name, as in `crossover.advice.QUESTIONS`; KeyError without one."""
        return {each.name: each for each in self.branches}[name]

    def text(self, line: Line = called, *, whole: bool = True) -> str:
        """Return it for a terminal: five lines that sum it up, other commands, then every question.

        Args:
            line: From a command to how it is written.
            whole: Whether the questions are answered too, each with its evidence.
        """
        lines = [*self.summary, f"    {line(self.command)}", "", f"Why: {self.command.why}"]
        for each in self.alternatives:
            lines += [f"Or: {each.why}", f"    {line(each)}"]
        lines += [f"Warning: {each}" for each in self.warnings]
        for number, branch in enumerate(self.branches if whole else (), 1):
            assert branch.agree in AGREEMENTS
            agree = branch.agree if not branch.because else f"{branch.agree}: {branch.because}"
            lines += [
                "",
                f"{number}. {branch.question}",
                f"Answer  {_ended(branch.answer)}",
                f"Advice  {_ended(branch.advice)}",
                *(f"Ours    {each.says} [{each.where}]" for each in branch.ours),
                f"Paper   {branch.paper.says} [{branch.paper.where}]",
                f"Agree   {_ended(agree)}",
            ]
        return "\n".join(lines)

    def to_json(self, line: Line = called) -> dict[str, Any]:
        """Return plain values; `line` as of `text`."""
        values = {name: getattr(self, name) for name in ("data", "epsilon", "delta", "records")}
        return {
            **values,
            "summary": list(self.summary),
            "command": line(self.command),
            "why": self.command.why,
            "alternatives": [{"command": line(e), "why": e.why} for e in self.alternatives],
            "branches": [asdict(each) for each in self.branches],
            "warnings": list(self.warnings),
        }


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def advised(
    facts: Facts, *, data: str | None, said: Options, warnings: tuple[str, ...] = ()
) -> Advice:
    """Return the advice for data of which public numbers are known.

    Args:
        facts: See `Facts`.
        data: The data's name or path; None: they were handed over in memory.
        said: What the user said: epsilon, delta, what the data are, and `public`.
        warnings: Of the plan.

    Cost: none.
    """
    command, *others = _commands(facts, data, said)
    return Advice(
        data=facts.name,
        epsilon=facts.epsilon,
        delta=facts.delta,
        records=facts.records,
        summary=_summary(facts),
        command=command,
        alternatives=tuple(others[:MOST_ALTERNATIVES]),
        branches=branches(facts),
        warnings=warnings,
    )


def _summary(facts: Facts) -> tuple[str, ...]:
    """Return the data, the signal, the model and the search, a line each."""
    per = "" if facts.of_numbers else " per class"
    little = "Little to learn from: more records, or a larger epsilon, would give far more."
    enough = "Enough to learn from." if facts.signal >= LITTLE_SIGNAL else little
    enough = enough if facts.learns else more_signal(facts)
    strength = f"{level(facts.signal)}{per} (below {LEAST_SIGNAL:g} a model guesses)"
    found = facts.forecast
    told = "Not measured on public data." if found is None else found["sentence"]
    search = (
        "look at other candidates too" if facts.compares else "one training, no other candidate"
    )
    if facts.public is not None:
        search = f"on {facts.public}, for nothing; then one training"
    chosen = f"{facts.default}. {told}"
    if many_columns(facts):
        chosen, search = "a linear model of a few columns.", f"which of {facts.columns:,} columns"
    return (
        f"Data: {facts.name}, {facts.records:,} records, {facts.form}; epsilon {facts.epsilon:g}, "
        f"delta {facts.delta:g}. No value was read, nothing is charged.",
        f"Signal-to-noise: {strength}. {enough}",
        f"Model: {chosen}",
        f"Search: {search}.",
    )


def _commands(facts: Facts, data: str | None, said: Options) -> list[Command]:
    """Return the command to run, then others, the most useful first."""
    known = {name: value for name, value in said.items() if name != "public"}
    public = said.get("public")

    def of(task: str, why: str, **more: Any) -> Command:
        given = {**known, **more}
        options = tuple((name, value) for name, value in given.items() if value is not None)
        return Command(task=task, data=data, options=options, why=why)

    searched = {} if public is None else {"search_on": str(public)}
    arch = of("arch", "it trains the model above under this budget.", **searched)
    if public is not None:
        arch = of("arch", "it searches on the public data and trains once, privately.", **searched)
    first: list[Command] = [arch]
    if many_columns(facts):
        named = {"method": "top", **searched} if searched else {}
        why = "it chooses columns and trains on them under this budget."
        first = [of("features", why, **named), arch]
    if not facts.learns:
        first = [
            of(
                "plan arch",
                "it prints what a run would release; nothing is read or spent. Train when the "
                "signal is large enough.",
                epsilon=facts.enough or facts.epsilon,
            )
        ]
    checks, others = [], []
    if facts.table and facts.undeclared and data is not None:
        told = tuple((n, v) for n, v in known.items() if n in OF_CHECK)
        proposed = ("propose", Path(data).with_suffix(".toml").name)
        why = (
            "it proposes a schema, for you alone: edit it into what is publicly known, and give it "
            "as `schema=`."
        )
        checks = [Command(task=CHECK, data=data, options=(*told, proposed), why=why)]
    if public is not None and "target" not in known:
        told = tuple((name, value) for name, value in known.items() if name in OF_CROSSOVER)
        frozen = ("fcn+rwt",) if facts.hidden and facts.epsilon < FROZEN_FCN else ()
        others.append(
            Command(
                task="crossover",
                data=data,
                models=("linear", "fcn", *frozen),
                options=(*told, ("proxy", str(public))),
                why="it measures simple against complex on the public data, at your number of "
                "records; nothing is charged.",
            )
        )
    two = facts.outputs == 2 and facts.known and facts.metric is None
    if facts.learns and two and not many_columns(facts):
        others.append(
            of("arch", "if some classes are rare.", metric="balanced-accuracy", **searched)
        )
    if facts.learns:
        others.append(of("plan arch", "to see the price first; nothing is read or spent."))
    return [*checks, *first, *others] if facts.poor else [*first, *checks, *others]
