"""The plan as text: what a person sees before a private record is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from pasearch.accounting.events import Event, RepeatAndSelect, Worst, describe
from pasearch.cautions import MOSTLY_NOISE
from pasearch.data.estimation import CLASS_FOUND, undeclared_classes
from pasearch.data.frames import TYPES
from pasearch.planning import TEST
from pasearch.report import stages, summary
from pasearch.report.classes import release_name
from pasearch.report.networks import some
from pasearch.report.stages import CHOICE, SEARCH, TRAINING
from pasearch.shown import duration, epsilon_words, shown

if TYPE_CHECKING:
    from pasearch.features.plan import FeaturePlan
    from pasearch.runs.shared_ledger import Forecast
    from pasearch.search.plan import Plan

Detail = Literal["summary", "prices", "whole"]
"""How much of a plan is said."""

Names = Callable[[list[str]], str | list[str]]
"""What lists names: all of them, or some."""


def plan_text(
    plan: Plan, *, usual: bool = False, detail: Detail = "whole", report: str = "", ledger: str = ""
) -> str:
    """Return the plan, one subject a line: the budget, a summary of five lines, then the rest.

    Args:
        plan: Solved.
        usual: The user gave no epsilon, so that the usual one is announced.
        detail: "summary" says what is trained, how good that may be and what it costs; "prices"
            also each release; "whole" also how it was chosen and how each noise comes about.
        report: Where the report will be; nothing where no run follows.
        ledger: What the run does to the ledger of all runs (`ledger_words`); nothing without one.
    """
    recipe = [_row("Recipe", _recipes(plan))] if any(plan.recipe_names) else []
    more = [*recipe, _row("Time", time_text(plan))]
    mechanism = [*_chosen(plan), _row("Training", _training(plan)), _row("Input", _inputs(plan))]
    return _lines(
        *_head(plan, usual, _model(plan), report, ledger),
        *([] if detail == "summary" else [*_beside(plan), *more]),
        *(mechanism if detail == "whole" else []),
        *_priced(plan, detail),
        *(_hint(plan) if detail == "whole" else []),
        *_price(plan, detail),
    )


def feature_plan_text(
    plan: FeaturePlan, *, usual: bool = False, detail: Detail = "whole", report: str = "",
    ledger: str = "",
) -> str:  # fmt: skip
    """Return the plan of a feature selection, as `plan_text`."""
    from pasearch.features.trainers import TRAINERS

    choice, on = plan.choice, plan.searched_on
    public = "" if on is None else f"; on the public data {on}, which costs nothing"
    method = f"{choice.selector.name}: {plan.selection_words}{public}"
    trainer = TRAINERS[choice.trainer][0]
    why = [] if plan.auto is None else [_row("Why", plan.auto["why"])]
    more = [_row("Target", _target(plan)), _row("Method", method), _row("Training", trainer),
            _row("Time", feature_time_text(plan))]  # fmt: skip
    return _lines(
        *_head(plan, usual, _features_model(plan), report, ledger),
        *([] if detail == "summary" else [*_beside(plan), *more]),
        *(why if detail == "whole" else []),
        *_priced(plan, detail),
        *_price(plan, detail),
    )


def _lines(*lines: str) -> str:
    """Return lines; a name in them can neither break one nor begin one."""
    return "\n".join(map(shown, lines))


def _target(plan: FeaturePlan) -> str:
    target = getattr(plan.schema, "target", None)
    name = getattr(target, "name", None)
    kind = "a number" if plan.schema.regression else "classes"
    return f"{'y' if name is None else f'column {name!r}'}, {kind}"


def _head(plan: Plan | FeaturePlan, usual: bool, model: str, report: str, ledger: str) -> list[str]:
    """Return the budget, and the summary, with the notes on the data below it."""
    told = " (none was given: `epsilon=` sets it)" if usual else ""
    declared = "; declared public" if plan.public else ""
    protects = summary.odds_line(summary.planned_meaning(plan)) + summary.beside(
        plan.assumed_public
    )
    if plan.public:
        protects = "The data are declared public, so it protects nobody in them."
    price = f"epsilon {epsilon_words(plan.price.epsilon)} at delta {plan.delta:g}. {protects}"
    where = f"{report}, when the run is done" if report else NO_REPORT
    return [
        f"Budget: epsilon {plan.budget.epsilon:g}{told}, delta {plan.delta:g}, for everything this "
        "run reads and releases.",
        "",
        _row("Data", summary.data_line(plan.name, plan.split.n, plan.schema) + declared),
        _row("Model", model),
        _row("Quality", _expected(plan)),
        _row("Price", price),
        *([_row("Ledger", ledger)] if ledger else []),
        _row("Report", where),
        *([""] if plan.notes else []),
        *(_row("Note", note[0].upper() + note[1:]) for note in plan.notes),
    ]


def ledger_words(name: str, found: Forecast | None) -> str:
    """Return what a run costs in the ledger of all runs on its records, and what is left then.

    Args:
        name: Of the file.
        found: What the run would do to it; None where no total is known.
    """
    if found is None:
        return (
            f"{name} is not there yet. The first run makes it, and must say what all runs may cost "
            "together (`ledger_budget=`)."
        )
    before = "no run is in it yet"
    if found.count:
        runs = "the run before has" if found.count == 1 else f"the {found.count} runs before have"
        before = f"{runs} spent epsilon {found.before:.4g}"
    alone = f"this one costs {found.alone:.4g} alone"
    left = f"a run of about epsilon {found.left:.2g} still fits" if found.left else "no run fits"
    then = f"together they cost {found.after:.4g}" if found.count else ""
    if not found.fits:
        left, then = "so this run will be refused", then.replace("cost", "would cost")
    together = "; ".join([before, alone, *([then] if then else [])])
    after = f"After it {left}" if found.fits else f"That is too much, {left}"
    return (
        f"{name}: {together}, of the total {found.total.epsilon:g}, all at delta "
        f"{found.total.delta:g}. {after}."
    )


NO_REPORT = "none yet: this is only a plan, and the run writes the report"


def _beside(plan: Plan | FeaturePlan) -> list[str]:
    """Return into which parts the records are divided, and by what models are scored."""
    sizes = ", ".join(f"{size:,} {name}" for name, size in plan.split.sizes().items())
    unused = f"; {plan.split.unused:,} records are not used" if plan.split.unused else ""
    return [
        "",
        _row("Records", f"{sizes} (random split{unused})"),
        *([] if plan.metric is None else [_row("Metric", plan.scored_by.noun)]),
    ]


def _features_model(plan: FeaturePlan) -> str:
    """Return what model is trained on which features."""
    name = plan.choice.selector.name
    if name == "all":
        return "a linear model of all features; none is left out"
    return f"a linear model of the features that the method {name} chooses"


def _model(plan: Plan) -> str:
    """Return which network is trained, or among how many it is looked for."""
    if task_of(plan) == CHOICE:
        return f"{_named(plan)}; only its recipe is chosen"
    if plan.searched_on is not None:
        on = f"on the public data {plan.searched_on}; trained once"
        return f"the best that the strategy {plan.strategy.name} finds {_among(plan)} {on}"
    if plan.strategy.only(plan.space) is None:
        return f"the best that the strategy {plan.strategy.name} finds {_among(plan)}"
    why = "" if plan.auto is None else ": a search is not expected to pay here"
    return f"{_named(plan)}, fixed beforehand{why}"


def _among(plan: Plan) -> str:
    """Return among how many candidates one is looked for, and how many of them are compared."""
    every, compared = plan.space.count(), plan.strategy.compared
    if compared is None or compared >= every:
        return f"among {every:,} candidates"
    return f"among {compared:,} of the {every:,} candidates"


def _named(plan: Plan) -> str:
    """Return the one network in words."""
    return summary.network_line(plan.space.candidate(plan.space.fixed()))


def _expected(plan: Plan | FeaturePlan) -> str:
    """Return what is known of the score beforehand: never anything of these records.

    What public data let expect is accuracy, of as many classes as are declared.
    """
    tested = (
        f"test {plan.scored_by.noun} not yet measured (noisy, on {plan.split.test:,} test records)."
    )
    auto = plan.auto or {}
    drowned = any(MOSTLY_NOISE in each for each in plan.warnings)
    if plan.scored_by.name != "accuracy" or not plan.schema.outputs or drowned:
        return tested
    for each in auto.get("expected") or []:
        if f"{each['strategy']}, {each['winner']}" == auto["chosen"]:
            share = 100 * each["expected"]
            return (
                f"{tested} On other, public data such models reached {share:.0f} % on average; "
                "yours may be harder or easier."
            )
    return tested


def _priced(plan: Plan | FeaturePlan, detail: Detail) -> list[str]:
    """Return every release with what it costs, what papers claim, and warnings."""
    released = [] if detail == "summary" else _released(plan, brief=detail == "prices")
    claims = plan.claims() if detail == "whole" else []
    beside = [f"Beside: {each.describe()}" for each in claims if each.value is not None]
    names = list if detail == "whole" else some
    lines = [*released, *beside]
    lines += [f"Warning: {warning}" for warning in plan.warnings]
    lines += [
        f"Refused: {reason} Nothing would be charged; `force=True` runs it all the same."
        for reason in (plan.refusals if detail != "summary" else ())
    ]
    if plan.estimates_schema:
        lines.append(_estimated(plan, names))
    if plan.assumed_public:
        lines.append(
            f"Warning: taken as public, so not charged: {_listed(plan.assumed_public, names)}."
        )
    if TYPES in plan.assumed_public:
        lines.append(
            "Hint: pandas chooses types from the values, unless it is told them. Give the file "
            'itself, or read it with `dtype="str", keep_default_na=False`.'
        )
    return ["", *lines] if lines and detail == "summary" else lines


def _released(plan: Plan | FeaturePlan, *, brief: bool) -> list[str]:
    """Return a line a release: what it reads, and what that part of the records pays.

    Args:
        plan: Solved.
        brief: Without how each noise comes about, and by which accountant it is priced.
    """
    by_partition = plan.prices[1]
    lines = ["", f"{'Released':<30}{'reads':<12}{'epsilon':>8}{'' if brief else '  by'}"]
    seen: set[Event] = set()
    last = {line.partition: line for line in plan.lines}
    for line in plan.lines:
        name = line.name if not brief else _plain_name(line.name)
        name = release_name(name, plan.scored_by.noun)
        name = name if line.count == 1 else f"{name}, {line.count} times"
        price = by_partition[line.partition]
        several = sum(other.partition == line.partition for other in plan.lines) > 1
        by = [] if brief else [price.accountant]
        by = ", ".join([*by, *(["together"] if several else [])])
        share = f"{_share(price.epsilon)}  {by}" if last[line.partition] is line else ""
        lines.append(f"  {name:<27} {line.partition:<12}{share}".rstrip())
        if brief:
            continue
        told = line.event in seen
        lines += ["      as above"] if told else [f"      {text}" for text in _noise(line.event)]
        seen.add(line.event)
        if line.name == TEST and plan.schema.outputs and plan.tested_by.columns:
            cells = plan.tested_by.cells(plan.schema.outputs)
            lines.append(f"      on each of {cells:,} counts: a record is in one of them at most")
    return [*lines, ""]


def _share(epsilon: float) -> str:
    """Return what a part of the records pays, in a column."""
    return f"{epsilon:8.3f}" if not 0.0 < epsilon < 0.01 else f"{epsilon:8.2g}"


def _plain_name(name: str) -> str:
    """Return what a release is called, without the settings of a front end."""
    return "front end" if name.startswith("front end ") else name


def _hint(plan: Plan) -> list[str]:
    if not plan.strategy.hides_trials or plan.retrained or plan.auto is not None:
        return []
    return [
        "Hint: on few records one good default often beats a private search. `strategy=fixed` "
        "trains it; it is another run, with a price of its own."
    ]


def _price(plan: Plan | FeaturePlan, detail: Detail) -> list[str]:
    """Return the price as the last line; the summary has it already."""
    if detail == "summary":
        return []
    by = f" ({plan.price.accountant})" if detail == "whole" else ""
    return [
        f"Price: epsilon {epsilon_words(plan.price.epsilon)} at delta {plan.delta:g}{by}. A record "
        "is in one part of the data alone, so the largest of these epsilons counts, not their sum."
    ]


def task_of(plan: Plan) -> str:
    """Return what a run is: a search, or the training of one network that was fixed beforehand.

    If several recipes were given for that network, it is a choice among them.
    """
    if len(plan.recipe_names) > 1:
        return CHOICE
    chosen = plan.auto is not None or plan.searched_on is not None
    return SEARCH if chosen or plan.strategy.only(plan.space) is None else TRAINING


BEGIN = "; some seconds more to begin, read and score"

MENTIONED = 1.0
"""From how many seconds of front ends on they are told."""


def time_text(plan: Plan) -> str:
    """Return how long the trainings take, from public numbers."""
    usual, average, longest = plan.seconds_per_training()
    strategy, begin = plan.strategy, f"{_before_text(plan.seconds_before())}{BEGIN}"
    if strategy.expected_trainings == 1:
        return f"about {duration(usual)} of training on two CPU cores{begin}"
    together = strategy.expected_work * average + plan.retrained * usual
    text = (
        f"about {duration(together)} of training on average, on two CPU cores: about "
        f"{duration(average)} each (the longest {duration(longest)})"
    )
    if strategy.selection_rule == "repeat-and-select":
        most = strategy.quantile(0.999)
        text += f", 99.9% of the time at most {most} trainings"
    return text + begin


def _before_text(seconds: float | None) -> str:
    if seconds is None:
        return "; how long its front end takes with all records before that is not known"
    if seconds < MENTIONED:
        return ""
    return f"; about {duration(seconds)} before that, for what its front end makes of all records"


def feature_time_text(plan: FeaturePlan) -> str:
    """Return how long the trainings of a feature selection take, or why nobody knows."""
    from pasearch.features.plan import FINAL

    seconds, selector = plan.seconds_of_steps(), plan.choice.selector
    if seconds is None:
        return (
            "unknown beforehand: models are solved for, not trained in steps, and how long that "
            "takes depends on records, features and noise"
        )
    trainings = plan.has(FINAL) + plan.has(selector.training_line) * selector.expected_trainings
    mean = " on average" if selector.selection_rule == "repeat-and-select" else ""
    together = f", {trainings:g} trainings{mean}" if trainings > 1 else ""
    public = "" if plan.searched_on is None else ", and the choice on public data"
    return f"about {duration(seconds)} of training on two CPU cores{together}{public}{BEGIN}"


def _estimated(plan: Plan | FeaturePlan, names: Names) -> str:
    others = [name for name in plan.schema.undeclared]
    found = []
    if (classes := plan.class_estimate) is not None:
        aim = undeclared_classes(plan.schema)
        others.remove(str(aim))
        found.append(
            f"the classes of {aim!r} from the training records (a class of "
            f"{math.ceil(classes.counts.count_found(CLASS_FOUND)):,} records is found with "
            f"probability {CLASS_FOUND:g})"
        )
    if others:
        found.append(f"{_listed(others, names)} from the {plan.estimate_partition} records")
    return (
        "Undeclared, so estimated privately before the first training: "
        f"{', and '.join(found)}. A declared schema (`schema=`, `labels=`, `bounds=`, `classes=`) "
        "costs nothing and is better."
    )


def _listed(names: Iterable[str], told: Names) -> str:
    """Return names, all of them or some."""
    found = told(list(names))
    return found if isinstance(found, str) else ", ".join(found)


def _row(name: str, text: str) -> str:
    return f"{name:<10}{text}"


def _chosen(plan: Plan) -> list[str]:
    """Return how the network is found, and why so."""
    if task_of(plan) == TRAINING:
        return []
    why = [] if plan.auto is None else [_row("Why", plan.auto["why"])]
    space = [_row("Space", _space(plan))] if task_of(plan) == SEARCH else []
    return [
        _row("Strategy", f"{plan.strategy.name}: {plan.strategy.words()}"),
        *why,
        _row("Winner", _winner(plan)),
        *space,
    ]


def _recipes(plan: Plan) -> str:
    """Return what the user calls the recipe, or each of those that are chosen among."""
    names = [name or "default" for name in plan.recipe_names]
    if len(names) == 1:
        return names[0]
    return f"one of {len(names)}: " + "; ".join(name.split(":")[0] for name in names)


def _winner(plan: Plan) -> str:
    if plan.searched_on is not None:
        return f"searched on the public data {plan.searched_on}, which costs nothing; trained once"
    if plan.strategy.look_share is not None:
        return "trained anew on the same records, with the privacy budget that is left"
    if plan.retrained:
        return "retrained: the search reads records of its own; the winner is trained on `train`"
    if plan.strategy.scored:
        return "kept: the winner keeps the weights it was scored with"
    return "no candidate is compared with another"


def _training(plan: Plan) -> str:
    recipe, slots = plan.recipe, plan.kept_slots
    bound = recipe.bounding
    first = "by the first: " if task_of(plan) == CHOICE else ""
    if task_of(plan) == SEARCH and len(plan.strategy.settings(plan.space)) > 1:
        first = "unless a candidate's settings say otherwise: "
    expected = "an expected " if recipe.sampling.sampled else ""
    batch = (
        f"{expected}{recipe.expected_batch_size:,} of {slots:,} records "
        f"({recipe.batches(slots).words()})"
    )
    if recipe.expected_batch_size == slots:
        batch = f"all {slots:,} records"
    variants = ["one of its variants is picked on validation records"] if plan.pick else []
    return first + "; ".join(
        [
            f"{stages.steps_words(recipe)} steps, each with {batch}",
            *([] if bound is None else [f"each gradient {bound.words()}"]),
            stages.optimizer_words(recipe),
            *stages.stage_words(recipe),
            *_queries(plan),
            *variants,
        ]
    )


def _inputs(plan: Plan) -> str:
    """Return what networks are given, or may be."""
    words = [front.words() for front in plan.strategy.front_ends(plan.space)]
    return words[0] if len(words) == 1 else f"one of: {', '.join(words)}"


def _space(plan: Plan) -> str:
    if plan.space.count() == 1:
        return f"one network: {_fixed(plan)}"
    text = f"{plan.space.name}, {plan.space.count():,} combinations"
    if plan.strategy.only(plan.space) is not None:
        return f"{text}; trained is its default, {_fixed(plan)}"
    return text


def _fixed(plan: Plan) -> str:
    return plan.space.candidate(plan.space.fixed()).describe_network()


def _queries(plan: Plan) -> list[str]:
    if plan.validated_on is not None:
        on = plan.validated_on
        return [f"the validation queries are of the public data {on}, which costs nothing"]
    if plan.validation_noise is None:
        return []
    return ["the validation queries are of the validation records, and each is charged"]


def _noise(event: Event) -> list[str]:
    match event:
        case RepeatAndSelect(inner, law):
            return [f"the best of K runs, K {law.describe()}, each:", *_noise(inner)]
        case Worst(events):
            return ["at worst:", *(describe(each) for each in events)]
    return [describe(event)]
