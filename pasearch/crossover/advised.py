"""Advice as a whole: a summary, the one command to run, at most two others, and every branch.

    no signal           ->  pasearch plan arch ...      nothing is spent: see what it would be
    poor estimates      ->  pasearch check ...          a schema to edit into public knowledge
    many columns        ->  pasearch features ...
    otherwise           ->  pasearch arch ...           on public data first, where there are any

Cost: none.

Source: Bao et al., Fig. 11; ours where `crossover.advice` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pasearch.cautions import LEAST_SIGNAL, LITTLE_SIGNAL
from pasearch.crossover.advice import branches, level, many_columns, more_signal
from pasearch.crossover.evidence import FROZEN_FCN
from pasearch.crossover.facts import AGREEMENTS, Branch, Facts

CHECK = "check"
"""The curator's own command: what it prints is private."""

FUNCTIONS = {
    "arch": "search_architecture",
    "features": "select_features",
    "plan arch": "plan_architecture_search",
    "crossover": "measure_crossover",
    CHECK: "pasearch.data.check.check_table",
}
"""What does a command's work in Python."""

OF_CROSSOVER = ("schema", "bounds", "classes", "regression", "data_root")
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
            lines += ["", f"{number}. {branch.question}", *_rows(branch)]
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


def _rows(branch: Branch) -> list[str]:
    """Return a branch for a terminal, a subject a line."""
    assert branch.agree in AGREEMENTS
    agree = branch.agree if not branch.because else f"{branch.agree}: {branch.because}"
    ours = [f"Ours    {each.says} [{each.where}]" for each in branch.ours]
    return [
        f"Answer  {_ended(branch.answer)}",
        f"Advice  {_ended(branch.advice)}",
        *ours,
        f"Paper   {branch.paper.says} [{branch.paper.where}]",
        f"Agree   {_ended(agree)}",
    ]


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
    checks = _checks(facts, data, known)
    first = [*checks, *first] if facts.poor else [*first, *checks]
    return [*first, *_others(facts, data, known, public, of)]


def _checks(facts: Facts, data: str | None, known: Options) -> list[Command]:
    """Return the command that proposes a schema, for a file of which something is undeclared."""
    if not (facts.table and facts.undeclared and data is not None):
        return []
    path = Path(data)
    told = tuple((n, v) for n, v in known.items() if n in OF_CHECK)
    proposed = ("propose", path.with_suffix(".toml").name)
    why = (
        "it proposes a schema, for you alone: edit it into what is publicly known, and give it as "
        "`schema=`."
    )
    return [Command(task=CHECK, data=data, options=(*told, proposed), why=why)]


def _others(facts: Facts, data: str | None, known: Options, public: Any, of: Any) -> list[Command]:
    """Return what else may be worth running."""
    found = []
    if public is not None and "target" not in known:
        told = tuple((name, value) for name, value in known.items() if name in OF_CROSSOVER)
        frozen = ("fcn+rwt",) if facts.hidden and facts.epsilon < FROZEN_FCN else ()
        found.append(
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
        found.append(
            of("arch", "if some classes are rare.", metric="balanced-accuracy",
               **({} if public is None else {"search_on": str(public)}))
        )  # fmt: skip
    if facts.learns:
        found.append(of("plan arch", "to see the price first; nothing is read or spent."))
    return found
