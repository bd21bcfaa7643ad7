"""Summaries of a plan and of a result for a notebook, and the trials as a data frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from pasearch.accounting.events import event_to_json
from pasearch.errors import UsageError
from pasearch.report.facts import describe_trial_scores, list_trials, ranking_metric
from pasearch.report.plan import feature_plan_text, plan_text
from pasearch.report.score import describe_quality, format_measures
from pasearch.report.wording import describe_parts, join_names
from pasearch.search.names import show_strategy
from pasearch.spaces.candidate import Candidate

if TYPE_CHECKING:
    from pasearch.data.tables import AnySchema
    from pasearch.features.plan import FeaturePlan
    from pasearch.search.plan import Plan

Values = dict[str, Any]

REPEAT_AND_SELECT_EVENT = "repeat-and-select"
"""Event type of a selection whose number of trainings is secret."""


def make_leaderboard(document: Values, schema: AnySchema) -> Any:
    """Convert the trials in `result.json` to a pandas data frame, the best score first.

    Args:
        document: `result.json`.
        schema: Schema that the document describes.

    Raises:
        UsageError: the trials are secret, or pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise UsageError("A leaderboard requires pandas: `pip install pandas`.") from None
    if document["selection"]["rule"] in (REPEAT_AND_SELECT_EVENT, "disjoint portions"):
        raise UsageError(
            "The trials are secret under this strategy: its privacy cost does not cover losing "
            "trials or their number. Use `strategy='grid'`, 'paas' or a "
            "successive-halving strategy to see them."
        )
    of_features, rows = "features" in document["best"], []
    columns = ["trial", "network", "parameters", "settings", "score", "released", "metric"]
    if of_features:
        columns = ["trial", "features", "size", "score", "released", "metric"]
    for number, trial in enumerate(list_trials(document), 1):
        row = {"trial": number, "score": trial.score, "released": trial.released,
               "metric": describe_trial_scores(document)}  # fmt: skip
        if of_features:
            names = trial.values["features"]
            row |= {"features": ", ".join(names), "size": len(names)}
        else:
            candidate = Candidate.from_json(trial.values["parameters"])
            row |= {
                "network": ", then ".join(describe_parts(candidate)),
                "parameters": candidate.parameters(schema.shape, schema.outputs)[0],
                "settings": dict(candidate.settings),
            }
        rows.append(row)
    frame = pd.DataFrame(rows, columns=columns)
    metric = ranking_metric(document)
    lower = metric.to_metric_value(1.0) < metric.to_metric_value(0.0)
    ranked = frame.sort_values("score", ascending=lower, kind="stable", na_position="last")
    return ranked.reset_index(drop=True)


def format_plan(plan: Plan | FeaturePlan) -> str:
    """Render a plan as text, with the privacy cost of each release."""
    if hasattr(plan, "choice"):
        return feature_plan_text(plan, detail="prices")  # type: ignore[arg-type]
    return plan_text(plan, detail="prices")  # type: ignore[arg-type]


def plan_html(plan: Plan | FeaturePlan) -> Markup:
    """Render a calibrated plan as HTML: budget, privacy cost and releases."""
    sizes = ", ".join(f"{name} {size:,}" for name, size in plan.split.sizes().items())
    budget = f"epsilon {plan.budget.epsilon:g} at delta {plan.delta:g}"
    price = f"epsilon {plan.price.epsilon:.4f} at delta {plan.delta:g} ({plan.price.accountant})"
    rows = [
        ("Data", f"{plan.name}: {plan.schema.describe()}"),
        ("Records", f"{plan.split.n:,}: {sizes}"),
        ("Budget", budget + (" (declared public)" if plan.public else "")),
        ("Privacy cost", price + ": maximum over partitions (each record is in exactly one)"),
    ]
    warned = [*(f"Refused: {each}" for each in plan.refusals), *plan.warnings]
    if plan.assumed_public:
        warned.append(f"Assumed public, so not charged: {', '.join(plan.assumed_public)}.")
    if plan.estimates_schema:
        warned.append(
            f"No schema given, so estimated with DP: {', '.join(plan.schema.undeclared)}."
        )
    notes = Markup("").join(Markup("<li>{}</li>").format(each) for each in warned)
    return Markup(
        "<p><b>Plan</b>: no private record was read, and nothing is charged yet.</p>{}{}{}"
        "<details><summary>The plan as text</summary><pre>{}</pre></details>"
    ).format(
        _render_table(rows),
        _release_table(
            (e.name, e.partition, e.count, event_to_json(e.event)["type"]) for e in plan.lines
        ),
        Markup("<ul>{}</ul>").format(notes) if warned else "",
        format_plan(plan),
    )


def summary_html(document: Values, line: str, schema: AnySchema) -> Markup:
    """Render a result as HTML: data, model, score and privacy cost.

    Args:
        document: `result.json`.
        line: One-line description of the result.
        schema: Schema that the document describes.
    """
    score, price, budget = document["score"], document["price"], document["budget"]
    private = not (document["dataset"]["declared_public"] or document["reproducible"])
    best = document["best"]
    found = (
        "Network",
        f"{best.get('architecture')} ({best.get('trainable_parameters', 0):,} trained)",
    )
    if "features" in best:
        chosen = f"{len(best['features']):,} of {best['of']:,}: {join_names(best['features'])}"
        found = "Features", chosen
    more = format_measures(document, schema)
    rows = [
        ("Data", f"{document['dataset']['name']}, {document['dataset']['n']:,} records"),
        (f"Test {score['metric']}", f"{score['test']:.3f} on {score['of']:,} records"),
        *([("Other test measures", more)] if more else []),
        ("Verdict", describe_quality(document, schema)["verdict"]),
        ("Budget", f"epsilon {budget['epsilon']:g} at delta {budget['delta']:g}"),
        ("Privacy cost", f"epsilon {price['epsilon']:.4f} at delta {price['delta']:g}"
                  + ("" if private else " (NOT PRIVATE)")),
        ("Strategy", show_strategy(document["strategy"]["name"])),
        found,
    ]  # fmt: skip
    releases = _release_table(
        (each["name"], each["partition"], each["count"], each["event"]["type"])
        for each in document["events"]
    )
    return Markup("{}{}<p><small>{}</small></p>").format(_render_table(rows), releases, line)


def _release_table(lines: Iterable[tuple[str, str, int, str]]) -> Markup:
    """Render the table of releases, without the number of trainings of a selection (secret)."""
    rows = [
        (
            name,
            partition,
            "the best of a secret number" if kind == REPEAT_AND_SELECT_EVENT else f"{count:,}",
        )
        for name, partition, count, kind in lines
    ]
    return _render_table(rows, ("Release", "partition", "count"))


def _render_table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> Markup:
    """Render rows of cells below a head; without a head, the first cell of each row is bold."""

    def render_row(cells: Sequence[str], names: int) -> Markup:
        tags = ["th"] * names + ["td"] * (len(cells) - names)
        return Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup(f"<{tag} style='text-align:left'>{{}}</{tag}>").format(cell)
                for tag, cell in zip(tags, cells, strict=True)
            )
        )

    top = [render_row(head, len(head))] if head else []
    every = [*top, *(render_row(each, 0 if head else 1) for each in rows)]
    return Markup("<table>{}</table>").format(Markup("").join(every))
