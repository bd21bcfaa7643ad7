"""The plan as text: what a person sees before a private record is read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pasearch.accounting.events import Event, RepeatAndSelect, WorstCase, describe_event
from pasearch.data.estimation import CLASS_DETECTION_PROBABILITY, find_undeclared_classes
from pasearch.data.frames import TYPES_DESCRIPTION
from pasearch.plan_warnings import NOISE_PHRASE
from pasearch.planning import TEST_LINE
from pasearch.report import wording
from pasearch.report.facts import CHOICE, SEARCH, TRAINING, summarize_attack
from pasearch.terminal_escaping import escape_text, format_duration, format_epsilon

if TYPE_CHECKING:
    from pasearch.features.plan import FeaturePlan
    from pasearch.runs.shared_ledger import Forecast
    from pasearch.search.plan import Plan

Detail = Literal["summary", "prices", "whole"]
"""Amount of detail of a plan."""

OVERHEAD_NOTE = "; some seconds more to begin, read and score"

MIN_MENTIONED_SECONDS = 1.0
"""Duration of a front end from which on the plan mentions it, seconds."""


def plan_text(
    plan: Plan, *, usual: bool = False, detail: Detail = "whole", report: str = "", ledger: str = ""
) -> str:
    """Render a plan, one subject per line: budget, summary of five lines, then the details.

    Args:
        plan: Solved plan.
        usual: Whether the user gave no epsilon, so that the default is announced.
        detail: "summary": model, expected quality and price; "prices": also each release; "whole":
            also the selection and the mechanism of each release.
        report: Path of the report; "" if no run follows.
        ledger: Effect of the run on the shared ledger (`describe_ledger`); "" without one.
    """
    task, whole = find_task(plan), detail == "whole"
    network = wording.describe_network(plan.space.candidate(plan.space.default_genotype()))
    only = plan.strategy.single_candidate(plan.space) is not None
    # The model: the one network, or the number of candidates.
    if task == CHOICE:
        model = f"{network}; only its recipe is chosen"
    elif only and plan.searched_on is None:
        why = "" if plan.auto is None else ": a search is not expected to pay here"
        model = f"{network}, fixed beforehand{why}"
    else:
        every, compared = plan.space.count(), plan.strategy.candidate_count
        few = compared is not None and compared < every
        among = f"{compared:,} of the {every:,}" if few else f"{every:,}"
        model = f"the best that the strategy {plan.strategy.name} finds among {among} candidates"
        if plan.searched_on is not None:
            model += f" on the public data {plan.searched_on}; trained once"
    lines = _summary_lines(plan, usual, model, report, ledger)
    if detail != "summary":
        lines += _partition_lines(plan)
        if any(plan.recipe_names):
            names = [name or "default" for name in plan.recipe_names]
            several = f"one of {len(names)}: " + "; ".join(name.split(":")[0] for name in names)
            lines.append(_format_row("Recipe", names[0] if len(names) == 1 else several))
        lines.append(_format_row("Time", time_text(plan)))
    if whole:
        lines += [] if task == TRAINING else _selection_lines(plan, task)
        fronts = [front.describe() for front in plan.strategy.front_ends(plan.space)]
        front = fronts[0] if len(fronts) == 1 else f"one of: {', '.join(fronts)}"
        lines += [
            _format_row("Training", _describe_training(plan, task)),
            _format_row("Input", front),
        ]
    lines += _cost_lines(plan, detail)
    if whole and plan.strategy.hides_trials and not plan.retrained and plan.auto is None:
        lines.append(
            "Hint: on few records one good default often beats a private search. `strategy=fixed` "
            "trains it; it is another run, with a price of its own."
        )
    return _join_lines([*lines, *_total_lines(plan, detail)])


def feature_plan_text(
    plan: FeaturePlan, *, usual: bool = False, detail: Detail = "whole", report: str = "",
    ledger: str = "",
) -> str:  # fmt: skip
    """Render the plan of a feature selection; the arguments are those of `plan_text`."""
    from pasearch.features.trainers import TRAINERS

    choice, name = plan.choice, plan.choice.selector.name
    model = f"a linear model of the features that the method {name} chooses"
    if name == "all":
        model = "a linear model of all features; none is left out"
    lines = _summary_lines(plan, usual, model, report, ledger)
    if detail != "summary":
        column = getattr(getattr(plan.schema, "target", None), "name", None)
        target = "y" if column is None else f"column {column!r}"
        on = plan.searched_on
        public = "" if on is None else f"; on the public data {on}, which costs nothing"
        lines += [
            *_partition_lines(plan),
            _format_row(
                "Target", f"{target}, {'a number' if plan.schema.regression else 'classes'}"
            ),
            _format_row("Method", f"{name}: {plan.selection_description}{public}"),
            _format_row("Training", TRAINERS[choice.trainer][0]),
            _format_row("Time", feature_time_text(plan)),
        ]
    if detail == "whole" and plan.auto is not None:
        lines.append(_format_row("Why", plan.auto["why"]))
    return _join_lines([*lines, *_cost_lines(plan, detail), *_total_lines(plan, detail)])


def find_task(plan: Plan) -> str:
    """Return the task of a run: a search, one training, or a choice among recipes."""
    if len(plan.recipe_names) > 1:
        return CHOICE
    chosen = plan.auto is not None or plan.searched_on is not None
    return SEARCH if chosen or plan.strategy.single_candidate(plan.space) is None else TRAINING


def describe_ledger(name: str, found: Forecast | None) -> str:
    """Describe the cost of a run in the shared ledger of its records, and the rest.

    Args:
        name: Name of the file.
        found: Effect of the run on the ledger; None if no total is known.
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
    parts = [before, f"this one costs {found.alone:.4g} alone"]
    if found.count:
        cost = "cost" if found.fits else "would cost"
        parts.append(f"together they {cost} {found.after:.4g}")
    after = "That is too much, so this run will be refused"
    if found.fits:
        left = (
            f"a run of about epsilon {found.left:.2g} still fits" if found.left else "no run fits"
        )
        after = f"After it {left}"
    return (
        f"{name}: {'; '.join(parts)}, of the total {found.total.epsilon:g}, all at delta "
        f"{found.total.delta:g}. {after}."
    )


def time_text(plan: Plan) -> str:
    """Estimate the duration of the trainings from public numbers."""
    usual, average, longest = plan.seconds_per_training()
    strategy, seconds = plan.strategy, plan.preprocessing_seconds()
    before = ""
    if seconds is None:
        before = "; how long its front end takes with all records before that is not known"
    elif seconds >= MIN_MENTIONED_SECONDS:
        before = (
            f"; about {format_duration(seconds)} before that, for what its front end makes of all "
        )
        before += "records"
    if strategy.expected_trainings == 1:
        return f"about {format_duration(usual)} of training on two CPU cores{before}{OVERHEAD_NOTE}"
    together = strategy.expected_work * average + plan.retrained * usual
    text = (
        f"about {format_duration(together)} of training on average, on two CPU cores: about "
        f"{format_duration(average)} each (the longest {format_duration(longest)})"
    )
    if strategy.selection_rule == "repeat-and-select":
        text += f", 99.9% of the time at most {strategy.quantile(0.999)} trainings"
    return f"{text}{before}{OVERHEAD_NOTE}"


def feature_time_text(plan: FeaturePlan) -> str:
    """Estimate the duration of a feature selection, or explain why it is unknown."""
    from pasearch.features.plan import FINAL_LINE

    seconds, selector = plan.seconds_of_steps(), plan.choice.selector
    if seconds is None:
        return (
            "unknown beforehand: models are solved for, not trained in steps, and how long that "
            "takes depends on records, features and noise"
        )
    trainings = (
        plan.has_line(FINAL_LINE)
        + plan.has_line(selector.training_line) * selector.expected_trainings
    )
    mean = " on average" if selector.selection_rule == "repeat-and-select" else ""
    together = f", {trainings:g} trainings{mean}" if trainings > 1 else ""
    public = "" if plan.searched_on is None else ", and the choice on public data"
    return f"about {format_duration(seconds)} of training on two CPU cores{together}{public}{OVERHEAD_NOTE}"


def _join_lines(lines: list[str]) -> str:
    """Join lines; a name in them can neither break a line nor begin one."""
    return "\n".join(map(escape_text, lines))


def _format_row(name: str, text: str) -> str:
    return f"{name:<10}{text}"


def _summary_lines(
    plan: Plan | FeaturePlan, usual: bool, model: str, report: str, ledger: str
) -> list[str]:
    """Return the budget, the summary of five lines, and the notes on the data."""
    told = " (none was given: `epsilon=` sets it)" if usual else ""
    protects = "The data are declared public, so it protects nobody in them."
    if not plan.public:
        protects = wording.describe_attack_bound(summarize_attack({"attack": plan.attack}))
        protects += wording.describe_uncovered(plan.assumed_public)
    # The expected score is never of these records: that of public data, for accuracy alone.
    noun, records = plan.score_metric.noun, f"{plan.split.test:,} test records"
    quality = f"test {noun} not yet measured (noisy, on {records})."
    drowned = any(NOISE_PHRASE in each for each in plan.warnings)
    if plan.score_metric.name == "accuracy" and plan.schema.outputs and not drowned:
        auto = plan.auto or {}
        for each in auto.get("expected") or []:
            if f"{each['strategy']}, {each['winner']}" == auto["chosen"]:
                quality += (
                    f" On other, public data such models reached {100 * each['expected']:.0f} % on "
                    "average; yours may be harder or easier."
                )
                break
    price = f"epsilon {format_epsilon(plan.price.epsilon)} at delta {plan.delta:g}. {protects}"
    data = wording.describe_data(plan.name, plan.split.n, plan.schema)
    none_yet = "none yet: this is only a plan, and the run writes the report"
    return [
        f"Budget: epsilon {plan.budget.epsilon:g}{told}, delta {plan.delta:g}, for everything this "
        "run reads and releases.",
        "",
        _format_row("Data", data + ("; declared public" if plan.public else "")),
        _format_row("Model", model),
        _format_row("Quality", quality),
        _format_row("Price", price),
        *([_format_row("Ledger", ledger)] if ledger else []),
        _format_row("Report", f"{report}, when the run is done" if report else none_yet),
        *([""] if plan.notes else []),
        *(_format_row("Note", wording.capitalize_first(note)) for note in plan.notes),
    ]


def _partition_lines(plan: Plan | FeaturePlan) -> list[str]:
    """Describe the partitions and the metric."""
    sizes = ", ".join(f"{size:,} {name}" for name, size in plan.split.sizes().items())
    unused = f"; {plan.split.unused:,} records are not used" if plan.split.unused else ""
    return [
        "",
        _format_row("Records", f"{sizes} (random split{unused})"),
        *([] if plan.metric is None else [_format_row("Metric", plan.score_metric.noun)]),
    ]


def _selection_lines(plan: Plan, task: str) -> list[str]:
    """Describe the strategy, the training of the winner, and the space."""
    strategy = plan.strategy
    if plan.searched_on is not None:
        winner = (
            f"searched on the public data {plan.searched_on}, which costs nothing; trained once"
        )
    elif strategy.look_share is not None:
        winner = "trained anew on the same records, with the privacy budget that is left"
    elif plan.retrained:
        winner = "retrained: the search reads records of its own; the winner is trained on `train`"
    elif strategy.scored:
        winner = "kept: the winner keeps the weights it was scored with"
    else:
        winner = "no candidate is compared with another"
    lines = [_format_row("Strategy", f"{strategy.name}: {strategy.describe()}")]
    if plan.auto is not None:
        lines.append(_format_row("Why", plan.auto["why"]))
    lines.append(_format_row("Winner", winner))
    if task == SEARCH:
        fixed = plan.space.candidate(plan.space.default_genotype()).describe_network()
        space = f"{plan.space.name}, {plan.space.count():,} combinations"
        if plan.space.count() == 1:
            space = f"one network: {fixed}"
        elif strategy.single_candidate(plan.space) is not None:
            space += f"; trained is its default, {fixed}"
        lines.append(_format_row("Space", space))
    return lines


def _describe_training(plan: Plan, task: str) -> str:
    """Describe the training: batches, clipping, optimizer and further stages."""
    recipe, slots, first = plan.recipe, plan.released_slots, ""
    if task == CHOICE:
        first = "by the first: "
    if task == SEARCH and len(plan.strategy.settings(plan.space)) > 1:
        first = "unless a candidate's settings say otherwise: "
    batch = f"all {slots:,} records"
    if recipe.expected_batch_size != slots:
        expected = "an expected " if recipe.sampling.sampled else ""
        sampling = recipe.make_batching(slots).describe()
        batch = f"{expected}{recipe.expected_batch_size:,} of {slots:,} records ({sampling})"
    words = [f"{wording.format_steps(recipe)} steps, each with {batch}"]
    if recipe.bounding is not None:
        words.append(f"each gradient {recipe.bounding.describe()}")
    words += [wording.describe_optimizer(recipe), *wording.describe_stages(recipe)]
    if plan.validated_on is not None:
        on = plan.validated_on
        words.append(f"the validation queries are of the public data {on}, which costs nothing")
    elif plan.validation_noise is not None:
        words.append("the validation queries are of the validation records, and each is charged")
    if plan.pick:
        words.append("one of its variants is picked on validation records")
    return first + "; ".join(words)


def _cost_lines(plan: Plan | FeaturePlan, detail: Detail) -> list[str]:
    """List the releases with their prices, the claims of papers, and the warnings."""

    def names(given: list[str]) -> str:
        return ", ".join(given) if detail == "whole" else wording.join_names(given)

    lines = [] if detail == "summary" else _release_lines(plan, brief=detail == "prices")
    claims = plan.claims() if detail == "whole" else []
    lines += [f"Beside: {each.describe()}" for each in claims if each.value is not None]
    lines += [f"Warning: {warning}" for warning in plan.warnings]
    if detail != "summary":
        lines += [
            f"Refused: {reason} Nothing would be charged; `force=True` runs it all the same."
            for reason in plan.refusals
        ]
    if plan.estimates_schema:
        others, estimated = list(plan.schema.undeclared), []
        if (classes := plan.class_estimate) is not None:
            aim = find_undeclared_classes(plan.schema)
            others.remove(str(aim))
            count = classes.category_mechanism.count_found(CLASS_DETECTION_PROBABILITY)
            estimated.append(
                f"the classes of {aim!r} from the training records (a class of "
                f"{math.ceil(count):,} records is found with "
                f"probability {CLASS_DETECTION_PROBABILITY:g})"
            )
        if others:
            estimated.append(f"{names(others)} from the {plan.estimate_partition} records")
        lines.append(
            "Undeclared, so estimated privately before the first training: "
            f"{', and '.join(estimated)}. A declared schema (`schema=`, `labels=`, `bounds=`, "
            "`classes=`) costs nothing and is better."
        )
    if plan.assumed_public:
        assumed = names(list(plan.assumed_public))
        lines.append(f"Warning: taken as public, so not charged: {assumed}.")
    if TYPES_DESCRIPTION in plan.assumed_public:
        lines.append(
            "Hint: pandas chooses types from the values, unless it is told them. Give the file "
            'itself, or read it with `dtype="str", keep_default_na=False`.'
        )
    return ["", *lines] if lines and detail == "summary" else lines


def _release_lines(plan: Plan | FeaturePlan, *, brief: bool) -> list[str]:
    """List the releases: the partition that each reads, and the price of that partition.

    Args:
        plan: Solved plan.
        brief: Whether to leave out the mechanism of each release and the accountant.
    """
    lines = ["", f"{'Released':<30}{'reads':<12}{'epsilon':>8}{'' if brief else '  by'}"]
    seen: set[Event] = set()
    last = {line.partition: line for line in plan.lines}
    for line in plan.lines:
        is_front_end = brief and line.name.startswith("front end ")  # without its settings
        name = "front end" if is_front_end else line.name
        name = wording.release_name(name, plan.score_metric.noun)
        name = name if line.count == 1 else f"{name}, {line.count} times"
        share = ""
        if last[line.partition] is line:
            price = plan.prices[1][line.partition]
            several = sum(other.partition == line.partition for other in plan.lines) > 1
            by = [*([] if brief else [price.accountant]), *(["together"] if several else [])]
            digits = "8.2g" if 0.0 < price.epsilon < 0.01 else "8.3f"
            share = f"{price.epsilon:{digits}}  {', '.join(by)}"
        lines.append(f"  {name:<27} {line.partition:<12}{share}".rstrip())
        if brief:
            continue
        noise = ["as above"] if line.event in seen else _mechanism_lines(line.event)
        lines += [f"      {text}" for text in noise]
        seen.add(line.event)
        if line.name == TEST_LINE and plan.schema.outputs and plan.test_metric.columns:
            cells = plan.test_metric.cells(plan.schema.outputs)
            lines.append(f"      on each of {cells:,} counts: a record is in one of them at most")
    return [*lines, ""]


def _mechanism_lines(event: Event) -> list[str]:
    """Describe the mechanism of a release, one line per part."""
    match event:
        case RepeatAndSelect(inner, law):
            return [f"the best of K runs, K {law.describe()}, each:", *_mechanism_lines(inner)]
        case WorstCase(events):
            return ["at worst:", *(describe_event(each) for each in events)]
    return [describe_event(event)]


def _total_lines(plan: Plan | FeaturePlan, detail: Detail) -> list[str]:
    """Return the price as the last line; the summary states it already."""
    if detail == "summary":
        return []
    by = f" ({plan.price.accountant})" if detail == "whole" else ""
    return [
        f"Price: epsilon {format_epsilon(plan.price.epsilon)} at delta {plan.delta:g}{by}. A "
        "record "
        "is in one part of the data alone, so the largest of these epsilons counts, not their sum."
    ]
