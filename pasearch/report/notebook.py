"""What a notebook shows of a plan or a result: a few lines, what is released; trials as a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from pasearch.errors import UsageError
from pasearch.report.classes import one_line
from pasearch.report.networks import judged_by, parts_of, score_name, shown_score, some
from pasearch.report.plan import feature_plan_text, plan_text
from pasearch.report.quality import quality
from pasearch.spaces.candidate import Candidate

if TYPE_CHECKING:
    from pasearch.data.tables import AnySchema
    from pasearch.features.plan import FeaturePlan
    from pasearch.search.plan import Plan

Values = dict[str, Any]

SECRET = ("repeat-and-select", "disjoint portions")
"""Selection rules under which trials are secret."""

COLUMNS = ("trial", "network", "parameters", "settings", "score", "released", "metric")
OF_FEATURES = ("trial", "features", "size", "score", "released", "metric")
"""The columns of a leaderboard: of networks, and of sets of features."""


def leaderboard(document: Values, schema: AnySchema) -> Any:
    """Return the trials of `result.json` as a pandas frame, the best score first.

    Args:
        document: `result.json`.
        schema: That it describes.

    Raises:
        UsageError: Trials are secret, or pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise UsageError("A leaderboard is a pandas frame: `pip install pandas`.") from None
    if document["selection"]["rule"] in SECRET:
        raise UsageError(
            "Trials are secret under this strategy: its price holds only if the losing ones, and "
            "how many there were, are not shown. Take `strategy='insured'`, ahead, grid or paas to "
            "see them."
        )
    rows = [
        _row(document, number, each, schema)
        for number, each in enumerate(document.get("trials") or [], 1)
    ]
    columns = OF_FEATURES if "features" in document["best"] else COLUMNS
    frame = pd.DataFrame(rows, columns=list(columns))
    metric = judged_by(document)
    lower = metric.shown(1.0) < metric.shown(0.0)
    ranked = frame.sort_values("score", ascending=lower, kind="stable", na_position="last")
    return ranked.reset_index(drop=True)


def _row(document: Values, number: int, trial: Values, schema: AnySchema) -> Values:
    best = document["best"]
    score = shown_score(document, trial["noisy_correct"])
    scored = {"score": score, "metric": score_name(document)}
    if "features" in trial:
        names = trial["features"]
        return {
            "trial": number, "features": ", ".join(names), "size": len(names),
            "released": names == best["features"], **scored,
        }  # fmt: skip
    candidate = Candidate.from_json(trial["parameters"])
    return {
        "trial": number,
        "network": ", then ".join(parts_of(candidate)),
        "parameters": candidate.parameters(schema.shape, schema.outputs)[0],
        "settings": dict(candidate.settings),
        **scored,
        "released": all(trial["parameters"].get(key) == best.get(key)
                        for key in ("front_end", "layers", "settings")),
    }  # fmt: skip


def text_of(plan: Plan | FeaturePlan) -> str:
    """Return a plan as text, in brief."""
    if hasattr(plan, "choice"):
        return feature_plan_text(plan, detail="prices")  # type: ignore[arg-type]
    return plan_text(plan, detail="prices")  # type: ignore[arg-type]


def plan_html(plan: Plan | FeaturePlan) -> Markup:
    """Return what a notebook shows of a plan: the budget, the price, what is released of what.

    Args:
        plan: Solved.
    """
    sizes = ", ".join(f"{name} {size:,}" for name, size in plan.split.sizes().items())
    budget = f"epsilon {plan.budget.epsilon:g} at delta {plan.delta:g}"
    price = f"epsilon {plan.price.epsilon:.4f} at delta {plan.delta:g} ({plan.price.accountant})"
    rows = [
        ("Data", f"{plan.name}: {plan.schema.describe()}"),
        ("Records", f"{plan.split.n:,}: {sizes}"),
        ("Budget", budget + (" (declared public)" if plan.public else "")),
        ("Price", price + ": the largest of the partitions, because each record is in one"),
    ]
    lines = [(each.name, each.partition, each.count, each.event.__class__.__name__)
             for each in plan.lines]  # fmt: skip
    warned = [*(f"Refused: {each}" for each in plan.refusals), *plan.warnings]
    if plan.assumed_public:
        warned.append(f"Taken as public, so not charged: {', '.join(plan.assumed_public)}.")
    if plan.estimates_schema:
        warned.append(f"Estimated privately, as undeclared: {', '.join(plan.schema.undeclared)}.")
    notes = Markup("").join(Markup("<li>{}</li>").format(each) for each in warned)
    return Markup("<p><b>Plan</b>: no private record was read, nothing is charged yet.</p>{}{}{}"
                  "<details><summary>The plan as text</summary><pre>{}</pre></details>").format(
        _table(rows), _released(lines), Markup("<ul>{}</ul>").format(notes) if warned else "",
        text_of(plan),
    )  # fmt: skip


def summary_html(document: Values, line: str, schema: AnySchema) -> Markup:
    """Return what a notebook shows of a result: what it is, how good, at what price.

    Args:
        document: `result.json`.
        line: What the result says of itself.
        schema: That the document describes.
    """
    score, price, budget = document["score"], document["price"], document["budget"]
    private = not (document["dataset"]["declared_public"] or document["reproducible"])
    rows = [
        ("Data", f"{document['dataset']['name']}, {document['dataset']['n']:,} records"),
        (f"Test {score['metric']}", f"{score['test']:.3f} on {score['of']:,} records"),
        *([("More about the test", more)] if (more := one_line(document, schema)) else []),
        ("Verdict", quality(document, schema)["verdict"]),
        ("Budget", f"epsilon {budget['epsilon']:g} at delta {budget['delta']:g}"),
        ("Price", f"epsilon {price['epsilon']:.4f} at delta {price['delta']:g}"
                  + ("" if private else " (NOT PRIVATE)")),
        ("Strategy", document["strategy"]["name"]),
        _found(document["best"]),
    ]  # fmt: skip
    lines = [(each["name"], each["partition"], each["count"], str(each["event"]["type"]))
             for each in document["events"]]  # fmt: skip
    return Markup("{}{}<p><small>{}</small></p>").format(
        _table(rows), _released(lines), escape(line)
    )


def _found(best: Values) -> tuple[str, str]:
    """Return what was found: the network, or the features."""
    if "features" in best:
        return "Features", f"{len(best['features']):,} of {best['of']:,}: {some(best['features'])}"
    return "Network", f"{best['architecture']} ({best['trainable_parameters']:,} trained)"


LEFT = Markup("text-align:left")


def _table(rows: list[tuple[str, str]]) -> Markup:
    """Return names and values, a pair a row."""
    cells = Markup("").join(
        Markup("<tr><th style='{}'>{}</th><td style='{}'>{}</td></tr>").format(LEFT, name, LEFT, v)
        for name, v in rows
    )
    return Markup("<table>{}</table>").format(cells)


def _released(lines: list[tuple[str, str, int, str]]) -> Markup:
    """Return a table of what is released.

    Args:
        lines: Name, partition, how often, and the type of the event.
    """
    rows = Markup("").join(
        Markup("<tr><td style='{}'>{}</td><td style='{}'>{}</td><td>{}</td></tr>").format(
            LEFT, name, LEFT, place, _times(count, kind)
        )
        for name, place, count, kind in lines
    )
    return Markup("<table><tr><th style='{}'>Released</th><th style='{}'>reads</th>"
                  "<th>times</th></tr>{}</table>").format(LEFT, LEFT, rows)  # fmt: skip


def _times(count: int, kind: str) -> str:
    """Return how often something is released; of a selection that is secret."""
    secret = kind.replace("-", "").lower() == "repeatandselect"
    return "the best of a secret number" if secret else f"{count:,}"
