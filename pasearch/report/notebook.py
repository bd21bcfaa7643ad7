"""What a notebook shows of a result: a few lines, and all trials as a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from pasearch.errors import UsageError
from pasearch.report.networks import most_points, parts_of
from pasearch.spaces.candidate import Candidate

if TYPE_CHECKING:
    from pasearch.data.tables import AnySchema

Values = dict[str, Any]

SECRET = ("repeat-and-select", "disjoint portions")
"""Selection rules under which trials are secret."""

COLUMNS = ("trial", "network", "parameters", "settings", "score", "released")


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
    most = most_points(document)
    rows = [_row(document, number, each, most, schema) for number, each in
            enumerate(document.get("trials") or [], 1)]  # fmt: skip
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    ranked = frame.sort_values("score", ascending=False, kind="stable", na_position="last")
    return ranked.reset_index(drop=True)


def _row(
    document: Values, number: int, trial: Values, most: int | None, schema: AnySchema
) -> Values:
    candidate, best = Candidate.from_json(trial["parameters"]), document["best"]
    points = trial["noisy_correct"]
    return {
        "trial": number,
        "network": ", then ".join(parts_of(candidate)),
        "parameters": candidate.parameters(schema.shape, schema.outputs)[0],
        "settings": dict(candidate.settings),
        "score": None if points is None or not most else points / most,
        "released": all(trial["parameters"].get(key) == best.get(key)
                        for key in ("front_end", "layers", "settings")),
    }  # fmt: skip


def summary_html(document: Values, line: str) -> Markup:
    """Return what a notebook shows of a result: what it is, how good, at what price.

    Args:
        document: `result.json`.
        line: What the result says of itself.
    """
    score, price = document["score"], document["price"]
    private = not (document["dataset"]["declared_public"] or document["reproducible"])
    rows = [
        ("Data", f"{document['dataset']['name']}, {document['dataset']['n']:,} records"),
        (f"Test {score['metric']}", f"{score['test']:.3f} on {score['of']:,} records"),
        ("Price", f"epsilon {price['epsilon']:.4f} at delta {price['delta']:g}"
                  + ("" if private else " (NOT PRIVATE)")),
        ("Strategy", document["strategy"]["name"]),
    ]  # fmt: skip
    cells = Markup("").join(
        Markup("<tr><th style='text-align:left'>{}</th><td style='text-align:left'>{}</td></tr>")
        .format(name, value)
        for name, value in rows
    )  # fmt: skip
    return Markup("<table>{}</table><p><small>{}</small></p>").format(cells, escape(line))
