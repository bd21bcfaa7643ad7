"""The plan as text: what a person sees before a private record is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pasearch.accounting.events import Event, RepeatAndSelect, Worst, describe
from pasearch.report import stages
from pasearch.report.networks import parts_of
from pasearch.report.stages import CHOICE, SEARCH, TRAINING
from pasearch.shown import shown

if TYPE_CHECKING:
    from pasearch.features.plan import FeaturePlan
    from pasearch.search.plan import Plan

Detail = Literal["summary", "prices", "whole"]
"""How much of a plan is said."""


def plan_text(plan: Plan, *, usual: bool = False, detail: Detail = "whole") -> str:
    """Return the plan, one subject a line: first a summary, last the price.

    Args:
        plan: Solved.
        usual: The user gave no epsilon, so that the usual one is announced.
        detail: "summary" says what is trained, how good that may be and what it costs; "prices"
            also each release; "whole" also how it was chosen and how each noise comes about.
    """
    whole = detail == "whole"
    recipe = [_row("Recipe", _recipes(plan))] if any(plan.recipe_names) else []
    mechanism = [*_chosen(plan), _row("Training", _training(plan)), _row("Input", _inputs(plan))]
    return _lines(
        *_head(plan, usual),
        _row("Model", _model(plan)),
        *recipe,
        _row("Score", _expected(plan)),
        _row("Time", time_text(plan)),
        *(mechanism if whole else []),
        *_priced(plan, detail),
        *(_hint(plan) if whole else []),
        _price(plan),
    )


def feature_plan_text(plan: FeaturePlan, *, usual: bool = False, detail: Detail = "whole") -> str:
    """Return the plan of a feature selection, as `plan_text`."""
    from pasearch.features.trainers import TRAINERS

    choice, on = plan.choice, plan.searched_on
    public = "" if on is None else f"; on the public data {on}, which costs nothing"
    why = [] if plan.auto is None else [_row("Why", plan.auto["why"])]
    return _lines(
        *_head(plan, usual),
        _row("Target", _target(plan)),
        _row("Method", f"{choice.selector.name}: {plan.selection_words}{public}"),
        _row("Model", TRAINERS[choice.trainer][0]),
        _row("Score", _expected(plan)),
        *(why if detail == "whole" else []),
        *_priced(plan, detail),
        _price(plan),
    )


def _lines(*lines: str) -> str:
    """Return lines; a name in them can neither break one nor begin one."""
    return "\n".join(map(shown, lines))


def _target(plan: FeaturePlan) -> str:
    target = getattr(plan.schema, "target", None)
    name = getattr(target, "name", None)
    kind = "a number" if plan.schema.regression else "classes"
    return f"{'y' if name is None else f'column {name!r}'}, {kind}"


def _head(plan: Plan | FeaturePlan, usual: bool) -> list[str]:
    told = " (none was given: `epsilon=` sets it)" if usual else ""
    declared = "; declared public" if plan.public else ""
    sizes = ", ".join(f"{size:,} {name}" for name, size in plan.split.sizes().items())
    return [
        f"Budget: epsilon {plan.budget.epsilon:g}{told}, delta {plan.delta:g}, for everything this "
        "run reads and releases.",
        "",
        _row("Data", f"{plan.name}: {plan.schema.describe()}{declared}"),
        _row("Records", f"{plan.split.n:,}: {sizes} (random split)"),
        *([] if plan.metric is None else [_row("Metric", plan.scored_by.noun)]),
    ]


def _model(plan: Plan) -> str:
    """Return which network is trained, or among how many it is looked for."""
    if task_of(plan) == CHOICE:
        return f"{_named(plan)}; only its recipe is chosen"
    if plan.searched_on is not None:
        return f"the best of {_many(plan)} on the public data {plan.searched_on}; trained once"
    if plan.strategy.only(plan.space) is None:
        return f"the best of {_many(plan)} that {plan.strategy.name} finds"
    why = "nothing is searched" if plan.auto is None else "a search is not expected to pay here"
    return f"{_named(plan)}, fixed beforehand: {why}"


def _many(plan: Plan) -> str:
    return f"{plan.space.count():,} candidates"


def _named(plan: Plan) -> str:
    """Return the one network in words."""
    return ", then ".join(parts_of(plan.space.candidate(plan.space.fixed())))


def _expected(plan: Plan | FeaturePlan) -> str:
    """Return what is known of the score beforehand: never anything of these records."""
    tested = f"unknown until it is measured, with noise, on {plan.split.test:,} test records"
    auto = plan.auto or {}
    for each in auto.get("expected") or []:
        if f"{each['strategy']}, {each['winner']}" == auto["chosen"]:
            return f"{tested}; models like it reached about {each['expected']:.2f} on public data"
    return tested


def _priced(plan: Plan | FeaturePlan, detail: Detail) -> list[str]:
    """Return every release with what it costs, what papers claim, and warnings."""
    released = [] if detail == "summary" else _released(plan, brief=detail == "prices")
    claims = plan.claims() if detail == "whole" else []
    beside = [f"Beside: {each.describe()}" for each in claims if each.value is not None]
    lines = [*released, "", *beside]
    lines += [f"Warning: {warning}" for warning in plan.warnings]
    if plan.schema_estimate is not None:
        lines.append(_estimated(plan))
    if plan.assumed_public:
        lines.append(
            f"Warning: not charged, because you say it is public: {', '.join(plan.assumed_public)}."
        )
    return lines


def _released(plan: Plan | FeaturePlan, *, brief: bool) -> list[str]:
    """Return a line a release: what it reads, and what that part of the records pays."""
    by_partition = plan.prices[1]
    lines = ["", f"{'Released':<30}{'reads':<12}{'epsilon':>8}  by"]
    seen: set[Event] = set()
    last = {line.partition: line for line in plan.lines}
    for line in plan.lines:
        name = line.name if line.count == 1 else f"{line.name}, {line.count} times"
        price = by_partition[line.partition]
        several = sum(other.partition == line.partition for other in plan.lines) > 1
        share = f"{price.epsilon:8.3f}  {price.accountant}{', together' if several else ''}"
        shown_here = last[line.partition] is line
        lines.append(f"  {name:<27} {line.partition:<12}{share if shown_here else ''}".rstrip())
        if brief:
            continue
        told = line.event in seen
        lines += ["      as above"] if told else [f"      {text}" for text in _noise(line.event)]
        seen.add(line.event)
    return lines


def _hint(plan: Plan) -> list[str]:
    if not plan.strategy.hides_trials or plan.retrained or plan.auto is not None:
        return []
    return [
        "Hint: on few records one good default often beats a private search. `strategy=fixed` "
        "trains it; it is another run, with a price of its own."
    ]


def _price(plan: Plan | FeaturePlan) -> str:
    return (
        f"Price: epsilon {plan.price.epsilon:.4f} at delta {plan.delta:g} "
        f"({plan.price.accountant}): each record is in one part of the data, the dearest counts."
    )


def task_of(plan: Plan) -> str:
    """Return what a run is: a search, or the training of one network that was fixed beforehand.

    If several recipes were given for that network, it is a choice among them.
    """
    if len(plan.recipe_names) > 1:
        return CHOICE
    chosen = plan.auto is not None or plan.searched_on is not None
    return SEARCH if chosen or plan.strategy.only(plan.space) is None else TRAINING


def time_text(plan: Plan) -> str:
    """Return how long the trainings take, from public numbers."""
    typical, longest = plan.seconds_per_training()
    strategy = plan.strategy
    each = f"{_duration(typical)} a training (up to {_duration(longest)})"
    if strategy.expected_trainings == 1:
        return f"about {_duration(typical)} on this kind of CPU"
    work = strategy.expected_work + plan.retrained
    text = f"about {each}; {_duration(typical * work)} on average"
    if strategy.selection_rule == "repeat-and-select":
        most = strategy.quantile(0.999)
        text += f", with probability .999 at most {most} trainings"
    return text


def _estimated(plan: Plan | FeaturePlan) -> str:
    names = ", ".join(plan.schema.undeclared)
    return (
        f"Undeclared, so estimated privately on `{plan.estimate_partition}` before the first "
        f"training: {names}. A declared schema (`schema=`, `bounds=`, `classes=`) costs nothing "
        "and is better."
    )


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


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
