"""Advice before a run: which command to use, from the flowchart of Bao et al. and public numbers.

    request -> the plan that `pasearch plan arch` would print -> facts -> one branch per question

    no signal           ->  pasearch plan arch ...      spends nothing
    poor estimates      ->  pasearch check ...          a schema to edit into public knowledge
    many columns        ->  pasearch features ...
    otherwise           ->  pasearch arch ...           on public data first, if there are any

The table `advice.toml` contains the questions, answers and evidence: a measurement of this project
with its file, and the statement of the paper. Each answer states whether the two agree.

As for a plan, only metadata (names, shapes, types) and the number of records are read. If the user
names public data, these are read to complete the schema.

Cost: none.

Source: Bao et al., Fig. 11, which summarises sections V-C, VI-E and VII; docs/crossover.md (the
same rules as text); docs/rules.md, rule 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasearch.accounting.budget import Budget
from pasearch.api.request import DATA_OPTIONS, SearchRequest
from pasearch.api.resolve import load_public_data, resolve_dataset
from pasearch.api.search import prepare_run
from pasearch.crossover.forecast import (
    MeasuredModel,
    describe_model,
    describe_range,
    forecast_crossover,
)
from pasearch.data.front_ends import Raw
from pasearch.data.tables import AnySchema
from pasearch.errors import UsageError
from pasearch.features.auto import MIN_COLUMNS_TO_SELECT, count_columns
from pasearch.files import read_toml
from pasearch.plan_warnings import (
    MIN_GOOD_SIGNAL,
    MIN_SIGNAL,
    warn_of_rare_categories,
    warn_of_weak_signal,
)
from pasearch.planning import bound_network_form
from pasearch.spaces.portfolio import compute_signal, count_features, find_data_kind, load_study
from pasearch.training.metrics import find_default_metric

if TYPE_CHECKING:
    from pasearch.search.plan import Plan

STUDY_FILE = "pasearch/spaces/portfolio/portfolio-1.json"
"""Path of the study on public data (benchmarks/portfolio) in the package."""

MAX_EPSILON_FROZEN_CNN = 0.6
"""Largest epsilon at which random weights training wins for a CNN on MNIST (paper, Fig. 10)."""

MAX_EPSILON_FROZEN_FCN = 1.4  # largest epsilon at which it wins for a fully connected network

MIN_EPSILON_ONE_HOT = 0.05
"""Smallest epsilon at which one-hot encoded categories raise the accuracy on the data set Adult.

Source: Bao et al., Table XVI, and a measurement of this project."""

CANDIDATE_EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Epsilons to recommend if the signal is too small: the smallest that suffices."""

MAX_ALTERNATIVES = 2  # maximum number of commands besides the recommended one

AGREEMENTS = ("yes", "no", "in part", "not measured by us", "the paper does not say")
"""Possible values of `Branch.agree`: whether our measurements agree with the paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A measurement of this project, or a statement of a paper."""

    says: str  # statement in one or two sentences, with its numbers
    where: str  # source: a file of this project, or a section or table of the paper


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One question of the guide, answered for the data at hand."""

    name: str  # identifier of the question: one word, the same in every version
    question: str  # text of the question
    answer: str  # answer with its numbers
    advice: str  # recommendation in one or two sentences
    ours: tuple[Evidence, ...]  # measurements of this project
    paper: Evidence  # statement of Bao et al.
    agree: str  # one of `AGREEMENTS`
    because: str = ""  # reason of a difference, or limits of the agreement


_ADVICE_FILE = read_toml(Path(__file__).with_name("advice.toml"))
QUESTION_TABLE: list[dict[str, Any]] = _ADVICE_FILE["question"]
PROJECT_EVIDENCE = {about: Evidence(**each) for about, each in _ADVICE_FILE["ours"].items()}
"""Measurements of this project, by subject."""
PAPER_EVIDENCE = {each["name"]: Evidence(**each["paper"]) for each in QUESTION_TABLE}
"""Statements of Bao et al., by question."""
QUESTIONS: dict[str, str] = {each["name"]: each["text"] for each in QUESTION_TABLE}
"""All questions in the order in which they are asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Public facts on which the advice depends; none is a value of a record."""

    name: str  # name of the data
    form: str  # description of a record and the target
    kind: str  # kind of data: table, regression, arrays, image or photo
    epsilon: float  # total epsilon of the run
    delta: float  # total delta of the run
    records: int  # number of records
    outputs: int  # number of classes (the maximum, if they are undeclared); 1 for regression
    known: bool  # whether the classes, or a numeric target, are declared
    signal: float  # signal-to-noise ratio of the planned training, per class
    enough: float | None  # smallest epsilon of `CANDIDATE_EPSILONS` with enough signal, if any
    columns: int  # number of columns, or of values of an array record, to select from
    pixels: bool  # whether records are images, or have more than one axis
    table: bool  # whether records are rows of a table
    text: str = ""  # the only feature column of a table, if its kind is undeclared
    undeclared: tuple[str, ...]  # items to estimate privately: columns, bounds, classes
    poor: bool  # whether the records are too few for a useful estimate of these items
    public: str | None  # name of public data with the same schema, if the user named any
    metric: str | None  # metric of the run; None: the default
    default: str  # description of the planned model
    front: str  # description of its front end (preprocessing); empty if there is none
    hidden: int  # number of hidden layers of the planned model
    rate: float  # learning rate
    batch: float  # expected number of records per step
    slots: int  # number of training records
    steps: int  # number of training steps
    compares: bool  # whether the plan compares candidates
    why: str  # reason that the plan gives for comparing candidates or not
    outside: str  # difference from all trainings of the study on public data; empty if none
    weakest: str  # description of the study's training with the weakest signal on this kind of data
    reached: str  # models of the study, each with its mean accuracy at this signal
    forecast: dict[str, Any] | None = field(default=None, hash=False)  # from `forecast_crossover`

    @property
    def learns(self) -> bool:
        """Whether the signal is large enough to learn anything."""
        return self.signal >= MIN_SIGNAL

    @property
    def is_regression(self) -> bool:
        """Whether the target is a number."""
        return self.kind == "regression"

    @property
    def has_many_columns(self) -> bool:
        """Whether the number of columns is so large that selecting a few should be better."""
        return self.columns >= MIN_COLUMNS_TO_SELECT and not self.pixels

    def make_template_values(self) -> dict[str, Any]:
        """Return the values of the conditions and of the placeholders in `advice.toml`, by name."""
        found = self.forecast or {"crossings": (), "models": (), "epsilons": ()}
        sizes = {each["name"]: each["parameters"] for each in found["models"]}
        rises = [sizes[each["before"]] < sizes[each["after"]] for each in found["crossings"]]
        low, two = self.epsilon < MAX_EPSILON_FROZEN_FCN, self.outputs == 2 and self.known
        images = self.kind in ("image", "photo")
        sets = found.get("data_sets")
        first = ", ".join(self.undeclared[:5]) + (", ..." if len(self.undeclared) > 5 else "")
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "many columns": self.has_many_columns,
            "undeclared columns": self.table and bool(self.undeclared),
            "table at a low epsilon": self.table and self.epsilon < MIN_EPSILON_ONE_HOT,
            "no forecast": self.forecast is None,
            "no crossing": not rises,
            "larger above": all(rises),
            "larger above and below": any(rises),
            "linear": not self.hidden,
            "linear at a low epsilon": not self.hidden and low,
            "low epsilon": low,
            "parts": self.batch < self.slots,
            "scored for rare classes": not self.is_regression
            and self.metric in ("balanced-accuracy", "auc"),
            "classes": not self.is_regression,
            "learns": self.learns,
            "least": MIN_SIGNAL,
            "many": MIN_COLUMNS_TO_SELECT,
            "one hot": MIN_EPSILON_ONE_HOT,
            "frozen": MAX_EPSILON_FROZEN_FCN,
            "level": format_signal(self.signal),
            "ratio": "signal-to-noise" + ("" if self.is_regression else " per class"),
            "counted": ""
            if self.known
            else f"; the classes are not declared, so {self.outputs} count",
            "more_signal": "" if self.learns else suggest_more_signal(self),
            "search evidence": "backbones" if images else "a private search",
            "open": len(self.undeclared),
            "first open": first,
            "few": ", and from too few records to find much" if self.poor else "",
            "beyond": f". Of the networks: {self.outside}" if self.outside else "",
            "unknown": self.outside
            or "too few epsilons, or another metric, were measured at this number of records",
            "data sets": "one public data set" if sets == 1 else f"{sets} public data sets",
            "forecast": found.get("sentence"),
            "ranges": "".join(
                f" The change at epsilon {each['epsilon']:.2g} is "
                f"{describe_range(each, found['epsilons'])}."
                for each in found["crossings"]
            ),
            "frozen kinds": "networks of either kind"
            if self.epsilon < MAX_EPSILON_FROZEN_CNN
            else "fully connected ones",
            "threshold": " The threshold between the two classes is then moved privately."
            if two
            else "",
        }


def answer_questions(facts: Facts) -> tuple[Branch, ...]:
    """Answer every question of the guide that applies to the data.

    Args:
        facts: Public facts about the data and the planned run.

    Returns:
        One branch per answered question, in the order of `QUESTIONS`.

    Cost: none.

    Source: each row of `advice.toml` names its source.
    """
    terms, found = facts.make_template_values(), []
    for each in QUESTION_TABLE:
        cases = (case for case in each["case"] if "when" not in case or terms[case["when"]])
        if (case := next(cases, None)) is None:
            continue
        row = each | case
        says = [PROJECT_EVIDENCE[about.format_map(terms)] for about in row["ours"]]
        if "study" in row:
            says.append(Evidence(says=row["study"].format_map(terms), where=STUDY_FILE))
        found.append(
            Branch(
                name=each["name"],
                question=each["text"],
                answer=row["answer"].format_map(terms),
                advice=row["advice"].format_map(terms),
                ours=tuple(says),
                paper=PAPER_EVIDENCE[each["name"]],
                agree=row["agree"],
                because=row["because"],
            )
        )
    return tuple(found)


def format_signal(signal: float) -> str:
    """Format a signal-to-noise ratio with three digits, or as an integer from 100 on.

    >>> format_signal(4.5678), format_signal(1234.5)
    ('4.57', '1,234')
    """
    return f"{signal:,.0f}" if signal >= 100 else f"{signal:.3g}"


def suggest_more_signal(facts: Facts) -> str:
    """Return one sentence that lists the ways to a sufficient signal-to-noise ratio."""
    records = math.ceil(facts.records * MIN_SIGNAL / facts.signal)
    ways = [f"collect records (about {float(f'{records:.2g}'):,.0f} instead of {facts.records:,})"]
    if facts.enough is not None:
        ways.append(f"allow a larger epsilon (about {facts.enough:g})")
    merged = int(facts.signal * facts.outputs / MIN_SIGNAL)
    if facts.known and merged >= 2:
        ways.append(f"merge classes (into {merged} at most)")
    if not facts.known:
        two = format_signal(facts.signal * facts.outputs / 2)
        ways.insert(0, f"declare the classes (for two classes the ratio is {two} per class)")
    return f"Do not train yet: {', or '.join(ways)}."


CHECK_COMMAND = "check"  # name of the curator's command; its output is private

PYTHON_FUNCTIONS = {
    "arch": "search_architecture",
    "features": "select_features",
    "plan arch": "plan_architecture_search",
    "crossover": "measure_crossover",
    CHECK_COMMAND: "pasearch.curator.check.check_table",
}
"""Python function of each command."""

CHECK_OPTIONS = ("schema", "target", "quotes", "columns", "separator")
"""Options of `pasearch check` that describe the data."""

LIST_ALTERNATIVES = {
    "labels": "declare the classes of a table in a schema (`schema=`)",
    "classes": "leave them out, so that they are estimated privately",
    "columns": "name a .txt file with one column on a line",
}
"""Options that accept a list, each with what to do if a comma in an element rules out the flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A recommended command, with the reason to run it."""

    task: str  # subcommand of `pasearch`, such as "plan arch"
    data: str | None  # name or path of the data; None: the data were passed in memory
    # pairs (name of the argument in Python, value), including epsilon and delta
    options: tuple[tuple[str, Any], ...] = ()
    models: tuple[str, ...] = ()  # models of a comparison
    why: str = ""  # reason to run it, in a sentence

    def call(self) -> str:
        """Format the command as a Python call; in-memory data are called `data`."""
        given = dict(self.options)
        if self.task == CHECK_COMMAND:
            given = {name: given[name] for name in CHECK_OPTIONS[1:] if name in given}
        budget = {name: given.pop(name) for name in ("epsilon", "delta") if name in given}
        said = [f"{name}={value!r}" for name, value in given.items()]
        if budget:
            inside = ", ".join(f"{name}={value!r}" for name, value in budget.items())
            said.insert(0, f"budget=Budget({inside})")
        data = "data" if self.data is None else repr(self.data)
        models = [repr(list(self.models))] if self.models else []
        return f"{PYTHON_FUNCTIONS[self.task]}({', '.join([data, *models, *said])})"


CommandWriter = Callable[[Command], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Result of `advise`: a recommended command with reasons.

    Args:
        data: Name of the data.
        epsilon: Total epsilon of the planned run.
        delta: Total delta of the planned run.
        records: Number of records.
        summary: Four sentences: the data, the signal, the model, the search.
        command: Recommended command.
        alternatives: Other commands, at most two.
        branches: Answers to all questions of the guide.
        warnings: Warnings of the run's plan.
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
        """Return the answer to the question with this name, a key of `QUESTIONS`, or KeyError."""
        return {each.name: each for each in self.branches}[name]

    def text(self, line: CommandWriter = Command.call, *, whole: bool = True) -> str:
        """Format the advice as text: a summary, commands, and all questions.

        Args:
            line: Function that formats a command; `Command.call` writes Python.
            whole: Whether to include the questions with their evidence.
        """
        lines = [*self.summary, f"    {line(self.command)}", "", f"Why: {self.command.why}"]
        for each in self.alternatives:
            lines += [f"Alternative: {each.why}", f"    {line(each)}"]
        lines += [f"Warning: {each}" for each in self.warnings]
        for number, branch in enumerate(self.branches if whole else (), 1):
            lines += [
                "",
                f"{number}. {branch.question}",
                f"Answer  {_end_sentence(branch.answer)}",
                f"Advice  {_end_sentence(branch.advice)}",
                *(f"Ours    {each.says} [{each.where}]" for each in branch.ours),
                f"Paper   {branch.paper.says} [{branch.paper.where}]",
                f"Agree   {_end_sentence(f'{branch.agree}: {branch.because}')}",
            ]
        return "\n".join(lines)

    def to_json(self, line: CommandWriter = Command.call) -> dict[str, Any]:
        """Return plain values; `line` formats commands, as in `text`."""
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


def _end_sentence(text: str) -> str:
    """Add a full stop, unless the text ends in . or ! or ?"""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def advise(
    data: Any, *, epsilon: float, delta: float | None = None, public: str | Path | None = None,
    **options: Any,
) -> Advice:  # fmt: skip
    """Recommend the command to run for data at a budget, with evidence.

    Guarantee: only metadata and the number of records are read, as for a plan. Two data sets that
    differ only in their values get the same advice.

    Args:
        data: Name, path, pandas frame, or (x, y) arrays.
        epsilon: Total epsilon of the planned run, above 0.
        delta: Total delta of the planned run; None: the power of ten below 1/n.
        public: Name or path of public data with the same schema; these data are read.
        options: Description of the data: schema, target, quotes, columns, separator, regression,
            labels, metric, bounds, classes, image_side, grey, max_categories, split, data_root,
            download; the same as in `search_architecture`.

    Returns:
        Advice: A summary, the recommended command, and one branch per question.

    Raises:
        UsageError: Invalid data or options, or public data with another schema.
        BudgetError: No plan fits the budget; the message names the smallest that fits.

    Cost: none: nothing private is read.

    Example:
        >>> from pasearch import advise
        >>> advise("digits", epsilon=1.0).command.task
        'arch'

    Source: Bao et al., Fig. 11; `api/advice.toml` names a source with every answer.
    """
    if unknown := sorted(set(options) - set(DATA_OPTIONS)):
        raise UsageError(
            f"{', '.join(unknown)}: unknown option; expected epsilon, delta, public, or one of "
            f"{', '.join(DATA_OPTIONS)}."
        )
    request = SearchRequest(data, budget=Budget(epsilon, delta), **options)
    dataset = resolve_dataset(request.data, request)
    if public is not None:
        _, dataset, _ = load_public_data("public", str(public), request, dataset)
        request = replace(request, strategy="fixed")  # the search is made on the public data
    plan = prepare_run(request, dataset).plan
    facts = _collect_facts(plan, request, None if public is None else Path(str(public)).name)
    given: dict[str, Any] = {"epsilon": epsilon, "delta": delta}
    for name, value in options.items():
        if name in LIST_ALTERNATIVES and not isinstance(value, str | Path | Integral | None):
            value = [getattr(each, "tolist", lambda each=each: each)() for each in value]
        if value is not None and value != SearchRequest.__dataclass_fields__[name].default:
            given[name] = str(value) if isinstance(value, Path) else value
    command, *others = _choose_commands(
        facts, str(data) if isinstance(data, (str, Path)) else None, given,
        None if public is None else str(public),
    )  # fmt: skip
    # A weak signal has a branch of its own.
    weak = warn_of_weak_signal(plan.final_mu or plan.trial_mu, plan.split.train, facts.outputs)
    with_comma = [
        f"An element of `{name}=` contains a comma, so that only Python can pass it. On the "
        f"command line, {instead}."
        for name, instead in LIST_ALTERNATIVES.items()
        if isinstance(given.get(name), list) and any("," in str(each) for each in given[name])
    ]
    return Advice(
        data=facts.name, epsilon=facts.epsilon, delta=facts.delta, records=facts.records,
        summary=_summarize(facts), command=command, alternatives=tuple(others[:MAX_ALTERNATIVES]),
        branches=answer_questions(facts),
        warnings=(*(each for each in plan.warnings if each not in weak), *with_comma),
    )  # fmt: skip


def _find_only_column(schema: AnySchema) -> str:
    """Return the name of the only feature column of a table, if its kind is undeclared, or ""."""
    columns = getattr(schema, "columns", ())
    return columns[0].name if len(columns) == 1 and columns[0].kind is None else ""


def _collect_facts(plan: Plan, request: SearchRequest, public: str | None) -> Facts:
    """Collect the public facts of a planned run, and compare it with the study on public data."""
    schema, epsilon = plan.schema, plan.budget.epsilon
    shape, outputs = bound_network_form(schema, plan.most)
    mu = plan.final_mu or plan.trial_mu
    assert mu is not None
    default = plan.space.candidate(plan.space.default_genotype())
    signal = compute_signal(mu, plan.released_slots, outputs)
    study = load_study(schema, plan.name).rescale_to_classes(outputs)
    outside = study.describe_extrapolation(signal, outputs, count_features(schema))
    recipe = plan.final_recipe(default) if plan.retrained else plan.trial_recipe(default)
    usual = plan.score_metric is find_default_metric(schema.regression)
    found = None
    if usual and not outside:
        own = MeasuredModel(
            epsilon=epsilon, delta=plan.delta, mu=mu, slots=plan.released_slots, score=None,
            error=0.0,
        )  # fmt: skip
        found = forecast_crossover(schema, plan.name, own, default, outputs, plan.space.contains)
    enough = epsilon if mu * plan.released_slots >= MIN_SIGNAL * outputs else None
    if enough is None:
        factors = tuple(each / epsilon for each in CANDIDATE_EPSILONS if each > epsilon)
        for each in plan.alternatives(default, factors):
            other = each["signal_to_noise"]
            if other is not None and other >= MIN_SIGNAL * outputs:
                enough = float(f"{each['epsilon']:.3g}")
                break
    weakest = min(study.signals, key=lambda each: float(study.signals[each][0]))
    guess, classes = "", study.classes.get(weakest, 0)
    if study.kind != "regression" and classes:
        guess = f", random baseline {_format_fraction(1 / classes)}"
    means = study.accuracy_at(signal).mean(axis=0)
    sizes = [each.parameters(shape, outputs)[0] for each in study.entries]
    order = sorted(range(len(sizes)), key=lambda place: (sizes[place], place))
    return Facts(
        name=plan.name,
        form=schema.describe(),
        kind=find_data_kind(schema),
        epsilon=epsilon,
        delta=plan.delta,
        records=plan.split.n,
        outputs=outputs,
        known=bool(schema.outputs),
        signal=10**signal,
        enough=enough,
        columns=count_columns(schema),
        pixels=len(schema.max_shape(2)) > 1,
        table=schema.to_json()["kind"] == "table",
        text=_find_only_column(schema),
        undeclared=schema.undeclared,
        poor=bool(warn_of_rare_categories(plan.schema_estimate, plan.split, plan.schema)),
        public=public,
        metric=request.metric,
        default=describe_model(default),
        front="" if isinstance(default.front_end, Raw) else default.front_end.describe(),
        hidden=len(default.architecture.layers),
        rate=recipe.learning_rate or 0.0,
        batch=recipe.expected_batch_size,
        slots=plan.released_slots,
        steps=recipe.steps,
        compares=plan.strategy.scored,
        why="" if plan.auto is None else plan.auto["why"],
        outside=outside,
        weakest=f"{10 ** float(study.signals[weakest][0]):.2g} ({weakest}): the best model has "
        f"{_format_fraction(float(study.accuracy[weakest][:, 0].max()))}{guess}",
        reached=", ".join(
            f"{describe_model(study.entries[place])} {_format_fraction(float(means[place]))}"
            for place in order
        ),
        forecast=found,
    )


def _format_fraction(value: float) -> str:
    """Format a fraction without its leading 0, such as .913."""
    return f"{value:.3f}".removeprefix("0")


def _summarize(facts: Facts) -> tuple[str, ...]:
    """Return four lines of text: the data, the signal, the model and the search."""
    per = "" if facts.is_regression else " per class"
    enough = "Low: more records or a larger epsilon would improve accuracy much."
    if facts.signal >= MIN_GOOD_SIGNAL:
        enough = "Sufficient."
    if not facts.learns:
        enough = suggest_more_signal(facts)
    told = (
        "No measurement on public data." if facts.forecast is None else facts.forecast["sentence"]
    )
    model = f"{facts.default}. {told}"
    search = "none (one training of the default model)"
    if facts.compares:
        search = "low-budget evaluation of other candidates"
    if facts.public is not None:
        search = f"on the public data {facts.public}, at no cost; then one training"
    if facts.has_many_columns:
        model, search = (
            "linear model of a few columns.",
            f"selection among {facts.columns:,} columns",
        )
    return (
        f"Data: {facts.name}, {facts.records:,} records, {facts.form}; epsilon {facts.epsilon:g}, "
        f"delta {facts.delta:g}. No value was read, and nothing is charged.",
        f"Signal-to-noise ratio{per}: {format_signal(facts.signal)} (below {MIN_SIGNAL:g}, "
        f"accuracy is near chance). {enough}",
        f"Model: {model}",
        f"Search: {search}.",
    )


def _choose_commands(
    facts: Facts, data: str | None, given: Mapping[str, Any], public: str | None
) -> list[Command]:
    """Return the recommended command, then alternatives, the most useful first."""

    def make_command(task: str, why: str, **more: Any) -> Command:
        options = {**given, **more}
        chosen = tuple((name, value) for name, value in options.items() if value is not None)
        return Command(task=task, data=data, options=chosen, why=why)

    searched = {} if public is None else {"search_on": public}
    why = "train the model above under this budget."
    if public is not None:
        why = "search on the public data, then train once with privacy."
    first = [make_command("arch", why, **searched)]
    if facts.has_many_columns:
        named = {"method": "top", **searched} if searched else {}
        why = "select columns and train on them under this budget."
        first.insert(0, make_command("features", why, **named))
    if not facts.learns:
        first = [
            make_command(
                "plan arch",
                "print the releases of a run; nothing is read or spent. Train once the "
                "signal-to-noise ratio is sufficient.",
                epsilon=facts.enough or facts.epsilon,
            )
        ]
    checks, others = [], []
    if facts.text and facts.learns:
        why = f"if column {facts.text!r} is a text: read its words in order by a recurrent network."
        others.append(make_command("arch", why, text=facts.text, space="rnn"))
    if facts.table and facts.undeclared and data is not None:
        told = tuple((name, value) for name, value in given.items() if name in CHECK_OPTIONS)
        proposed = ("propose", Path(data).with_suffix(".toml").name)
        why = (
            "propose a schema (private output), edit it to public knowledge, and pass it as "
            "`schema=`."
        )
        checks = [Command(task=CHECK_COMMAND, data=data, options=(*told, proposed), why=why)]
    if public is not None:
        told = tuple((name, value) for name, value in given.items() if name in DATA_OPTIONS)
        frozen = ("fcn+rwt",) if facts.hidden and facts.epsilon < MAX_EPSILON_FROZEN_FCN else ()
        others.append(
            Command(
                task="crossover",
                data=data,
                models=("linear", "fcn", *frozen),
                options=(*told, ("proxy", public)),
                why="measure simple and complex models on the public data at your number of "
                "records; nothing is charged.",
            )
        )
    two = facts.outputs == 2 and facts.known and facts.metric is None
    if facts.learns and two and not facts.has_many_columns:
        others.append(
            make_command(
                "arch",
                "use balanced accuracy if some classes are rare.",
                metric="balanced-accuracy",
                **searched,
            )
        )
    if facts.learns:
        why = "print the privacy cost first; nothing is read or spent."
        others.append(make_command("plan arch", why))
    return [*checks, *first, *others] if facts.poor else [*first, *checks, *others]
