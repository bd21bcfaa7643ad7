"""Five lines: what data, what model, how good, at what price, and where the report is.

The same words before a run and after it: what was not measured is unknown.

Source: docs/glossary.md has the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pasearch.report.meaning import meaning
from pasearch.report.networks import parts_of, some

if TYPE_CHECKING:
    from pasearch.data.tables import AnySchema
    from pasearch.features.plan import FeaturePlan
    from pasearch.search.plan import Plan
    from pasearch.spaces.candidate import Candidate

Values = dict[str, Any]

DROWNED = "The noise is larger than the figure: this says nothing about the model."
"""What is said of a score that noise drowns."""


def network_line(candidate: Candidate) -> str:
    """Return a network in words.

    Args:
        candidate: The network with its front end.
    """
    *given, last = parts_of(candidate)
    if last == "linear":
        return f"a linear model{' on ' if given else ''}{', then '.join(given)}"
    return ", then ".join([*given, last])


def data_line(name: str, n: int, schema: AnySchema) -> str:
    """Return what the data are, and what is predicted of them.

    Args:
        name: What the run calls them.
        n: How many records.
        schema: Declared, estimated or still to be estimated.
    """
    target = getattr(getattr(schema, "target", None), "name", None)
    column = "" if target is None else f" (column {target!r} is predicted)"
    return f"{name}: {n:,} records, {schema.describe()}{column}"


def odds_line(told: Values | None) -> str:
    """Return what a price means of 100 people.

    Args:
        told: As `meaning` returns it; None where no accountant tells.
    """
    if told is None:
        return NOT_TOLD[0].upper() + NOT_TOLD[1:]
    begins = {
        "none": "That protects nobody", "little": "That is little protection", "": "That means",
    }  # fmt: skip
    return f"{begins[_degree(told)]}: {_found(told)}"


def protection_line(document: Values) -> str:
    """Return what a finished run protects, or why it protects nobody.

    Args:
        document: `result.json`.
    """
    if document["dataset"]["declared_public"]:
        return "none, because the data were declared public."
    if document["reproducible"]:
        return "none, because whoever knows the seed can take the noise away."
    told = meaning(document)
    if told is None:
        return NOT_TOLD
    found = ": ".join(each for each in (_degree(told), _found(told)) if each)
    return found + beside(document["assumed_public"])


def beside(assumed_public: Sequence[str]) -> str:
    """Return what a price says nothing of: what is taken as public; nothing where there is none."""
    if not assumed_public:
        return ""
    return (
        " That leaves out what was taken as public and not charged "
        f"({some(list(assumed_public))}): if it was read from these records, there is no bound on "
        "what it tells of them."
    )


NOT_TOLD = "no bound on what an attacker finds is known, beyond epsilon and delta themselves."
"""What is said of a price that no accountant turns into odds."""

MOST_RIGHT = 99.0
"""Of 100 people: an attacker who finds more of them finds everybody."""


def _degree(told: Values) -> str:
    """Return how little a price protects, in a word; nothing where it protects well."""
    if float(told["right"]) > MOST_RIGHT:
        return "none"
    return "little" if told["is_weak"] else ""


def _found(told: Values) -> str:
    """Return how many of 100 people an attacker finds."""
    return (
        "suppose somebody knows all other records, and says whose were used. If they are wrong "
        f"about {told['wrong']} of 100 people whose records were not, they are right about at most "
        f"{told['right']} of 100 whose records were (blind guessing: {told['wrong']})."
    )


def planned_meaning(plan: Plan | FeaturePlan) -> Values | None:
    """Return what a plan's price means, as `meaning` does; None for data declared public."""
    if plan.public:
        return None
    return meaning({"attack": plan.attack})


def score_line(document: Values, schema: AnySchema) -> tuple[str, str]:
    """Return the name of the test score, and how good it is or that this is unknown.

    Args:
        document: `result.json`.
        schema: That it describes.
    """
    from pasearch.report.quality import quality

    found, score = quality(document, schema), document["score"]
    exact = f"; exactly {score['exact']:.3f} (public data)" if "exact" in score else ""
    if found["value"] == "unknown":
        return found["name"], (
            f"unknown{exact}. {DROWNED} A larger epsilon would reduce the noise, and so would more "
            f"than {score['of']:,} test records."
        )
    unit = " of the target's range" if "scale" in score else ""
    value = " ".join([found["value"], *([found["unit"]] if found["unit"] else [])])
    more = [found["verdict"], *found["untold"][:1], *found["unread"]]
    return found["name"], (
        f"{value}{unit} on {score['of']:,} test records ({found['interval']}){exact}. "
        f"{' '.join(more)}"
    )


def features_line(document: Values) -> str:
    """Return which features the model of a feature selection is given."""
    best, method = document["best"], document["strategy"]["name"]
    chosen = best["features"]
    if best["directions"] is not None:
        return f"a linear model of {best['directions']} directions in all {best['of']} features"
    if len(chosen) == best["of"]:
        return f"a linear model of all {best['of']} features"
    return (
        f"a linear model of {len(chosen)} of {best['of']} features, chosen by {method}: "
        f"{some(chosen)}"
    )
