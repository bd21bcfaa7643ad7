"""Text of a plan, which the user sees before any private record is read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pasearch.accounting.attack import max_true_positive_rate
from pasearch.accounting.events import Event, RepeatAndSelect, WorstCase, describe_event
from pasearch.data.estimation import CLASS_DETECTION_PROBABILITY, find_undeclared_classes
from pasearch.data.frames import TYPES_DESCRIPTION
from pasearch.data.tables import TableSchema
from pasearch.plan_warnings import NOISE_PHRASE
from pasearch.planning import FALSE_POSITIVE_RATES, TEST_LINE, events_by_partition
from pasearch.report import wording
from pasearch.report.facts import RECIPE_CHOICE, SEARCH, TRAINING, summarize_attack
from pasearch.search.names import show_strategy
from pasearch.terminal_escaping import escape_text, format_duration, format_epsilon

if TYPE_CHECKING:
    from pasearch.features.plan import FeaturePlan
    from pasearch.runs.shared_ledger import Forecast
    from pasearch.search.plan import Plan

Detail = Literal["summary", "prices", "whole"]
"""Amount of detail of a plan's text, described in `plan_text`."""

FORCED_NOTE = "with `force=True`, "
"""Beginning of the duration of a run that would be refused."""

OVERHEAD_NOTE = "; plus some seconds for start, reading and scoring"
"""End of a sentence with an estimated duration, which covers the trainings only."""

MIN_MENTIONED_SECONDS = 1.0
"""Minimum duration of the preprocessing that the text mentions, in seconds."""


def plan_text(
    plan: Plan, *, usual: bool = False, detail: Detail = "whole", report: str = "", ledger: str = ""
) -> str:
    """Render a plan as text: the budget, a summary of five lines, then the details.

    Args:
        plan: Calibrated plan.
        usual: Whether epsilon is the default, because the user gave none.
        detail: "summary": model, score and privacy cost; "prices": also the cost of each release;
            "whole": also the selection and the mechanism of each release.
        report: Path of the report; "" if no run follows.
        ledger: Effect of the run on the shared ledger (`describe_ledger`); "" without one.
    """
    task, whole = find_task(plan), detail == "whole"
    model = wording.describe_network(plan.space.candidate(plan.space.default_genotype()))
    on = plan.searched_on
    if task == RECIPE_CHOICE:
        model += "; only the training configuration (recipe) is selected"
    elif on is None and plan.strategy.single_candidate(plan.space) is not None:
        reason = "" if plan.auto is None else "; no search: not predicted to improve accuracy"
        reason += "" if plan.auto is None else " at this budget"
        model += f" (data-independent choice{reason})"
    elif on is None and plan.space.count() == 1:
        strategy = show_strategy(plan.strategy.name)
        model += f" (the only candidate of the space, so strategy {strategy} compares nothing)"
    else:
        every, compared = plan.space.count(), plan.strategy.candidate_count
        is_part = compared is not None and compared < every
        among = f"{compared:,} of {every:,}" if is_part else f"{every:,}"
        among += " candidate" if every == 1 else " candidates"
        model = f"best of {among}, selected by strategy {show_strategy(plan.strategy.name)}"
        if on is not None:
            model += f" on the public data {on}; trained once on the private data"
    lines = _summary_lines(plan, usual, model, report, ledger)
    if detail != "summary":
        lines += _partition_lines(plan)
        if any(plan.recipe_names):
            names = [name or "default" for name in plan.recipe_names]
            several = f"one of {len(names)}: " + "; ".join(name.split(":")[0] for name in names)
            lines.append(_format_row("Recipe", names[0] if len(names) == 1 else several))
        lines.append(_format_row("Time", FORCED_NOTE * bool(plan.refusals) + time_text(plan)))
    if whole:
        lines += [] if task == TRAINING else _selection_lines(plan, task)
        fronts = [front.describe() for front in plan.strategy.front_ends(plan.space)]
        front = fronts[0] if len(fronts) == 1 else f"one of: {', '.join(fronts)}"
        lines.append(_format_row("Training", _describe_training(plan, task)))
        lines.append(_format_row("Input", front))
    lines += _cost_lines(plan, detail)
    if whole and plan.strategy.hides_trials and not plan.retrained and plan.auto is None:
        lines.append(
            "Hint: with few records, a good default often beats a private search. `strategy=fixed` "
            "trains the default, as a separate run with its own privacy cost."
        )
    return _join_lines([*_refusal_lines(plan, detail), *lines, *_total_lines(plan, detail)])


def feature_plan_text(
    plan: FeaturePlan, *, usual: bool = False, detail: Detail = "whole", report: str = "",
    ledger: str = "",
) -> str:  # fmt: skip
    """Render the plan of a feature selection as text; `plan_text` describes the arguments."""
    from pasearch.features.trainers import TRAINERS

    choice, name = plan.choice, plan.choice.selector.name
    model = f"linear model on the features selected by method {name}"
    if name == "all":
        model = "linear model on all features (no selection)"
    lines = _summary_lines(plan, usual, model, report, ledger)
    if detail != "summary":
        column = getattr(getattr(plan.schema, "target", None), "name", None)
        target = "y" if column is None else f"column {column!r}"
        kind = "regression" if plan.schema.regression else "classification"
        on = plan.searched_on
        public = "" if on is None else f"; on the public data {on} (no privacy cost)"
        lines += [
            *_partition_lines(plan),
            _format_row("Target", f"{target} ({kind})"),
            _format_row("Method", f"{name}: {plan.selection_description}{public}"),
            _format_row("Training", TRAINERS[choice.trainer][0]),
            _format_row("Time", FORCED_NOTE * bool(plan.refusals) + feature_time_text(plan)),
        ]
    if detail == "whole" and plan.auto is not None:
        lines.append(_format_row("Why", plan.auto["why"]))
    return _join_lines([*lines, *_cost_lines(plan, detail), *_total_lines(plan, detail)])


def find_task(plan: Plan) -> str:
    """Return the task of a run: `SEARCH`, `TRAINING` or `RECIPE_CHOICE`."""
    if len(plan.recipe_names) > 1:
        return RECIPE_CHOICE
    chosen = plan.auto is not None or plan.searched_on is not None
    return SEARCH if chosen or plan.strategy.single_candidate(plan.space) is None else TRAINING


def describe_ledger(name: str, found: Forecast | None) -> str:
    """Describe the effect of a run on its shared ledger, and the budget that remains.

    Args:
        name: Name of the ledger's file.
        found: Effect of the run on the ledger; None if the ledger does not exist yet.
    """
    if found is None:
        return (
            f"{name} does not exist yet. The first run creates it, and must set the total budget "
            "of all runs (`ledger_budget=`)."
        )
    before = "no previous run"
    if found.count:
        runs = "1 previous run" if found.count == 1 else f"{found.count} previous runs"
        before = f"{runs}: epsilon {found.before:.4g}"
    parts = [before, f"this run: {found.alone:.4g}"]
    if found.count:
        parts.append(f"total: {found.after:.4g}")
    after = "The total exceeds this budget: the run will be refused"
    if found.fits:
        left = f"a run of about epsilon {found.left:.2g}" if found.left else "none for another run"
        after = f"Remaining budget after this run: {left}"
    return (
        f"{name}: {'; '.join(parts)}. Budget of all runs: epsilon {found.total.epsilon:g} at delta "
        f"{found.total.delta:g}. {after}."
    )


def time_text(plan: Plan) -> str:
    """Return a phrase with the estimated duration of the trainings, from public numbers."""
    usual, average, longest = plan.seconds_per_training()
    strategy, seconds = plan.strategy, plan.preprocessing_seconds()
    before = ""
    if seconds is None:
        before = "; plus preprocessing of all records (duration unknown)"
    elif seconds >= MIN_MENTIONED_SECONDS:
        before = f"; plus about {format_duration(seconds)} for preprocessing all records"
    if strategy.expected_trainings == 1:
        return f"about {format_duration(usual)} of training on two CPU cores{before}{OVERHEAD_NOTE}"
    total = strategy.expected_work * average + plan.retrained * usual
    text = (
        f"about {format_duration(total)} of training on average on two CPU cores: about "
        f"{format_duration(average)} per training (at most {format_duration(longest)})"
    )
    if strategy.selection_rule == "repeat-and-select":
        text += f", at most {strategy.quantile(0.999)} trainings with probability 99.9%"
    return f"{text}{before}{OVERHEAD_NOTE}"


def feature_time_text(plan: FeaturePlan) -> str:
    """Return a phrase with the estimated duration of a selection, or why it is unknown."""
    from pasearch.features.plan import FINAL_LINE

    seconds, selector = plan.seconds_of_steps(), plan.choice.selector
    if seconds is None:
        return "unknown: the models are solved for, which depends on records, features and noise"
    trainings = (
        plan.has_line(FINAL_LINE)
        + plan.has_line(selector.training_line) * selector.expected_trainings
    )
    mean = " on average" if selector.selection_rule == "repeat-and-select" else ""
    several = f", {trainings:g} trainings{mean}" if trainings > 1 else ""
    public = "" if plan.searched_on is None else ", plus the selection on public data"
    details = f"{several}{public}{OVERHEAD_NOTE}"
    return f"about {format_duration(seconds)} of training on two CPU cores{details}"


def _join_lines(lines: list[str]) -> str:
    """Join lines; escaping prevents that a user's name starts a new line."""
    return "\n".join(map(escape_text, lines))


def _format_row(name: str, text: str) -> str:
    """Format a line of the plan: a name in a column of ten characters, then its text."""
    return f"{name:<10}{text}"


def _refusal_lines(plan: Plan | FeaturePlan, detail: Detail) -> list[str]:
    """Return the reasons why the run would be refused, which precede a plan printed alone."""
    reasons = plan.refusals if detail != "summary" else ()
    end = "Nothing is charged; `force=True` runs it anyway."
    return [*(f"Refused: {each} {end}" for each in reasons), *([""] if reasons else [])]


def _summary_lines(
    plan: Plan | FeaturePlan, usual: bool, model: str, report: str, ledger: str
) -> list[str]:
    """Return the summary: budget, data, model, score, privacy, shared ledger, report, notes."""
    default = " (default; `epsilon=` sets it)" if usual else ""
    protection = "No protection: the data were declared public."
    if not plan.public:
        protection = wording.describe_attack_bound(summarize_attack({"attack": plan.attack}))
        protection += wording.describe_assumed_public(plan.assumed_public)
    # The expected score is an accuracy, measured on public data and never on these records.
    score = f"test {plan.score_metric.noun}: not yet measured"
    score += f" (noisy, on {plan.split.test:,} test records)."
    is_noise = any(NOISE_PHRASE in each for each in plan.warnings)
    if plan.score_metric.name == "accuracy" and plan.schema.outputs and not is_noise:
        auto = plan.auto or {}
        for each in auto.get("expected") or []:
            if f"{each['strategy']}, {each['winner']}" == auto["chosen"]:
                score += (
                    f" Mean accuracy of such models on other, public data sets: "
                    f"{100 * each['expected']:.0f} % (yours may differ)."
                )
                break
    cost = f"epsilon {format_epsilon(plan.price.epsilon)}, delta {plan.delta:g}. {protection}"
    data = wording.describe_data(plan.name, plan.split.n, plan.schema)
    not_written = "not written yet: this is only a plan"
    return [
        f"Budget: epsilon {plan.budget.epsilon:g}{default}, delta {plan.delta:g}, for everything "
        "that this run reads and releases.",
        "",
        _format_row("Data", data + ("; declared public" if plan.public else "")),
        _format_row("Model", model),
        _format_row("Score", score),
        _format_row("Privacy", cost),
        *([_format_row("Ledger", ledger)] if ledger else []),
        _format_row(
            "Report", f"{report} (written at the end of the run)" if report else not_written
        ),
        *([""] if plan.notes else []),
        *(_format_row("Note", wording.capitalize_first(note)) for note in plan.notes),
    ]


def _partition_lines(plan: Plan | FeaturePlan) -> list[str]:
    """Return the lines on the partitions of the records and on the metric."""
    sizes = ", ".join(f"{size:,} {name}" for name, size in plan.split.sizes().items())
    unused = f"; {plan.split.unused:,} records unused" if plan.split.unused else ""
    return [
        "",
        _format_row("Records", f"{sizes} (random split{unused})"),
        *([] if plan.metric is None else [_format_row("Metric", plan.score_metric.noun)]),
    ]


def _selection_lines(plan: Plan, task: str) -> list[str]:
    """Return the lines on the strategy, the winner and the search space."""
    strategy = plan.strategy
    if plan.searched_on is not None:
        winner = f"searched on the public data {plan.searched_on} (no privacy cost); trained once"
    elif strategy.look_share is not None:
        winner = "retrained on the same records, with the remaining privacy budget"
    elif plan.retrained:
        winner = "retrained on `train`; the search reads a disjoint set of records"
    elif strategy.scored:
        winner = "kept: the weights that were scored are released"
    else:
        winner = "no comparison of candidates"
    lines = [_format_row("Strategy", f"{show_strategy(strategy.name)}: {strategy.describe()}")]
    if plan.auto is not None:
        lines.append(_format_row("Why", plan.auto["why"]))
    lines.append(_format_row("Winner", winner))
    if task == SEARCH:
        fixed = plan.space.candidate(plan.space.default_genotype()).describe_network()
        space = f"{plan.space.name}, {plan.space.count():,} combinations"
        if plan.space.count() == 1:
            space = f"one architecture: {fixed}"
        elif strategy.single_candidate(plan.space) is not None:
            space += f"; only its default is trained: {fixed}"
        lines.append(_format_row("Space", space))
    return lines


def _describe_training(plan: Plan, task: str) -> str:
    """Describe one training: steps, batch, clipping, optimizer and further stages."""
    recipe, records, first = plan.recipe, plan.released_slots, ""
    if task == RECIPE_CHOICE:
        first = "first recipe: "
    if task == SEARCH and len(plan.strategy.settings(plan.space)) > 1:
        first = "default of all candidates, whose settings may change it: "
    batch = f"all {records:,} records"
    if recipe.expected_batch_size != records:
        expected = "an expected " if recipe.sampling.sampled else ""
        sampling = recipe.make_batching(records).describe()
        batch = f"{expected}{recipe.expected_batch_size:,} of {records:,} records ({sampling})"
    words = [f"{wording.format_steps(recipe)} steps, each with {batch}"]
    if recipe.bounding is not None:
        words.append(f"each gradient {recipe.bounding.describe()}")
    words += [wording.describe_optimizer(recipe), *wording.describe_stages(recipe)]
    if plan.validated_on is not None:
        words.append(f"validation queries on the public data {plan.validated_on} (no privacy cost)")
    elif plan.validation_noise is not None:
        words.append("validation queries on the validation records, each charged")
    if plan.pick:
        words.append("post-training selection of a weight variant on the validation records")
    return first + "; ".join(words)


def _cost_lines(plan: Plan | FeaturePlan, detail: Detail) -> list[str]:
    """Return the table of releases, published bounds, warnings and assumptions."""

    def join(names: list[str]) -> str:
        return ", ".join(names) if detail == "whole" else wording.join_names(names)

    lines = [] if detail == "summary" else _release_lines(plan, brief=detail == "prices")
    claims = plan.list_published_bounds() if detail == "whole" else []
    lines += [
        f"Published bound (not used): {each.describe()}"
        for each in claims
        if each.value is not None
    ]
    lines += [f"Warning: {warning}" for warning in plan.warnings]
    if plan.estimates_schema:
        others, words = list(plan.schema.undeclared), []
        if (classes := plan.class_estimate) is not None:
            aim = find_undeclared_classes(plan.schema)
            others.remove(str(aim))
            count = classes.category_mechanism.compute_detectable_count(CLASS_DETECTION_PROBABILITY)
            words.append(
                f"The classes of {aim!r} will be estimated with DP from the training partition (a "
                f"class of {math.ceil(count):,} records is found with probability "
                f"{CLASS_DETECTION_PROBABILITY:g})."
            )
        if others:
            text = getattr(plan.schema, "token_column", None)
            what = "The vocabulary" if others == [text] else "Bounds and categories"
            words.append(
                f"{what} of {join(others)} will be estimated with DP from the "
                f"{plan.estimate_partition} partition."
            )
        given = "`bounds=`, `classes=`"
        if isinstance(plan.schema, TableSchema):
            given = "`schema=`, `labels=`" if classes is not None else "`schema=`"
        lines.append(
            f"Not declared: {' '.join(words)} A declaration ({given}) has no privacy cost and is "
            "more accurate."
        )
    if plan.assumed_public:
        assumed = join(list(plan.assumed_public))
        lines.append(f"Warning: assumed public, so not charged: {assumed}.")
    if TYPES_DESCRIPTION in plan.assumed_public:
        lines.append(
            "Hint: pandas inferred the column types from the values. Pass the file itself, or read "
            'it with `dtype="str", keep_default_na=False`.'
        )
    return ["", *lines] if lines and detail == "summary" else lines


def _release_lines(plan: Plan | FeaturePlan, *, brief: bool) -> list[str]:
    """Return the table of releases, without mechanisms and accountants if `brief`."""
    lines = ["", f"{'Release':<42}{'partition':<12}{'epsilon':>8}{'' if brief else '  accountant'}"]
    seen: set[Event] = set()
    last = {line.partition: line for line in plan.lines}
    is_text = getattr(plan.schema, "token_column", None) in plan.schema.undeclared
    for line in plan.lines:
        is_front_end = brief and line.name.startswith("front end ")  # omit its settings
        name = "front end" if is_front_end else line.name
        estimated = "vocabulary" if is_text and line.count == 1 else "schema"
        name = wording.release_name(name, plan.score_metric.noun, line.count, estimated)
        cost = ""
        if last[line.partition] is line:
            price = plan.prices[1][line.partition]
            several = sum(other.partition == line.partition for other in plan.lines) > 1
            by = [*([] if brief else [price.accountant]), *(["subtotal"] if several else [])]
            digits = "8.2g" if 0.0 < price.epsilon < 0.01 else "8.3f"
            cost = f"{price.epsilon:{digits}}  {', '.join(by)}"
        lines.append(f"  {name:<39} {line.partition:<12}{cost}".rstrip())
        if brief:
            continue
        noise = ["mechanism as above"] if line.event in seen else _mechanism_lines(line.event)
        lines += [f"      {text}" for text in noise]
        seen.add(line.event)
        if line.name == TEST_LINE and plan.schema.outputs and plan.test_metric.columns:
            counts = plan.test_metric.count_entries(plan.schema.outputs)
            lines.append(f"      on each of {counts:,} counts; each record changes at most one")
    return [*lines, ""]


def _mechanism_lines(event: Event) -> list[str]:
    """Describe the mechanism of a release, with one line per nested mechanism."""
    match event:
        case RepeatAndSelect(inner, law):
            return [f"the best of K runs, K {law.describe()}, each:", *_mechanism_lines(inner)]
        case WorstCase(events):
            return ["worst case of:", *(describe_event(each) for each in events)]
    return [describe_event(event)]


def _weak_partition_lines(plan: Plan | FeaturePlan) -> list[str]:
    """Return the membership inference bound of each partition, if that of the run is weak."""
    attack = None if plan.public else summarize_attack({"attack": plan.attack})
    events = events_by_partition(plan.lines)
    if attack is None or not attack["is_weak"] or len(events) < 2:
        return []
    rate = FALSE_POSITIVE_RATES[0]
    bounds = ", ".join(
        f"{name} {100 * max_true_positive_rate({name: event}, rate):.3g} %"
        for name, event in events.items()
    )
    return [
        f"Membership inference bound by partition: {bounds}. Each partition may use the whole "
        "epsilon, because each record is in one; the largest bound is that of the run."
    ]


def _total_lines(plan: Plan | FeaturePlan, detail: Detail) -> list[str]:
    """Return the line with the total privacy cost; none for a summary, which states it above."""
    if detail == "summary":
        return []
    by = f" ({plan.price.accountant})" if detail == "whole" else ""
    return [
        *_weak_partition_lines(plan),
        f"Privacy cost: epsilon {format_epsilon(plan.price.epsilon)}, delta {plan.delta:g}{by}. "
        "Each record is in exactly one partition, so the total is the maximum over partitions "
        "(parallel composition), not the sum.",
    ]
