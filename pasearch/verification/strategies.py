"""What of a search's strategy follows from its plan, its space and the study, and is made again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from pasearch.documents import shown
from pasearch.runs.keys import Keys
from pasearch.search.ahead import Ahead, Insured, distinct, insured_by
from pasearch.search.auto import ranked_study, shares_of_looks
from pasearch.search.plan import Plan
from pasearch.spaces.portfolio import study_for
from pasearch.training.presets import PRESETS
from pasearch.training.recipe import Recipe
from pasearch.verification.remaking import declared_of

Document = dict[str, Any]

FOLLOWS = ("distinct", "returns", "trust", "handicaps", "least")
"""Settings of a strategy that are asked for, or follow from what is checked."""

OWN = r"portfolio of \w+ networks"
"""What the program's own spaces are called."""

CHANGED = ", as your options change it"
"""What stands behind that where options change some settings of its candidates."""


def of_strategy(document: Document, plan: Any) -> Iterator[str]:
    """Check what no request can set: it follows from the space, or from the plan and the study."""
    strategy = plan.strategy
    if strategy.within(plan.space) != strategy:
        yield "plan.strategy plans another number of candidates than the space has."
    insured = isinstance(strategy, Insured)
    follows = (*FOLLOWS, "looks", "scores") if insured else FOLLOWS
    if odd := [name for name in strategy.unusual() if name not in follows]:
        yield f"plan.strategy.{odd[0]} is not as usual, which nobody can ask for."
    if not insured:
        return
    declared = declared_of(document)
    public = declared, plan.budget, plan.split.n, plan.most
    study = ranked_study(declared, plan.name, *public[1:])
    bare = replace(
        plan, schema=declared, strategy=replace(strategy, trust=1.0, handicaps=None, least=0.0)
    )
    # A space of the user's own may be called as the program's are.
    ways = [False]
    own = [each.architecture for each in study.entries[: strategy.candidates]]
    if re.fullmatch(f"{OWN}({CHANGED})?", plan.space.name) and own == [
        each.architecture for each in plan.space.entries[: strategy.candidates]
    ]:
        ways = [True, False]

    def follows_from(ours: bool) -> bool:
        shares = shares_of_looks(study, *public, ours=ours)
        own = {name: getattr(strategy, name) for name in shares}
        return own == shares and insured_by(bare, study, ours=ours).strategy == strategy

    if not any(map(follows_from, ways)):
        yield (
            "plan.strategy's looks, scores, trust, handicaps or least do not follow from its plan "
            "and the study."
        )


def of_looks(plan: Any, trials: list[Document], scores: list[float]) -> Iterator[str]:
    """Check that looks are at the default and at different candidates, and then at the better."""
    space, strategy = plan.space, plan.strategy
    assert isinstance(strategy, Ahead)
    first = trials[: strategy.candidates]
    if first[0] != space.candidate(space.fixed()).to_json():
        yield "trials[0] is not the default, which is looked at first."
    if len(space.sizes) == 1 or space.count() <= strategy.candidates:
        stream = Keys.from_seed(0).stream("unused")  # such a space is gone through in order
        every = distinct(space, strategy.candidates, stream)
        if first != [space.candidate(each).to_json() for each in every]:
            yield "trials are not the candidates that are looked at."
    climbed = [place for rung in strategy.climbed(scores) for place in rung]
    if trials != [first[place] for place in climbed]:
        yield "trials of later rungs are not the better ones of those before."


def of_grid(plan: Any, trials: list[Document]) -> Iterator[str]:
    """Check that a grid trains every candidate at every level, in order."""
    space, strategy = plan.space, plan.strategy
    stream = Keys.from_seed(0).stream("unused")  # such a space is gone through in order
    level = [
        space.candidate(each).to_json()
        for each in distinct(space, strategy.candidates, stream)
        for _ in range(strategy.repeats)
    ]
    if trials != level * len(strategy.shares):
        yield "trials are not every model at every level of the grid."


def of_own_space(document: Document, plan: Plan) -> list[str]:
    """Check that a space with the name of the program's portfolio is that portfolio."""
    own, name = study_for(plan.schema, plan.name).portfolio(), document["space"]["name"]
    if not re.fullmatch(f"{OWN}({CHANGED})?", name):
        return []
    settled = name.endswith(CHANGED)

    def told(space: Any) -> list[str]:  # in any order: it depends on how much signal there is
        every = [each.to_json() for each in getattr(space, "entries", ())]
        if settled:
            every = [{**each, "settings": None} for each in every]
        return sorted(json.dumps(each, sort_keys=True) for each in every)

    if told(plan.space) == told(own) and name.removesuffix(CHANGED) == own.name:
        return []
    return [f"space is named {shown(name)}, and is not this version's for such data."]


FIELD = "|".join(sorted((*(each.name for each in fields(Recipe)), "bounding", "preset")))
LAW = r"[a-z-]+(?::[0-9.e+-]+)?"
NOISE = (
    rf"; noise (?:search|{LAW})"
    rf"(?:, of the least error at equal price \(next: {LAW}, [0-9.]+ times\))?"
)


def of_recipe_names(names: Sequence[str]) -> Iterator[str]:
    """Check that recipes are called as the program calls them: these words stand in the report."""
    presets = "|".join(re.escape(f"{name}: {each.about}") for name, each in PRESETS.items())
    changed = rf"(?:{presets})(?:; changed: (?:{FIELD})(?:, (?:{FIELD}))*)?"
    other = rf"(?:{'|'.join(PRESETS)}), but for its (?:{FIELD})(?: and (?:{FIELD}))*"
    for name in names:
        if not re.fullmatch(rf"(?:{changed}|{other})?(?:{NOISE})?", name):
            yield f"plan.recipe_names has {shown(name)}, which the program calls no recipe."
