"""Simple or complex, and what else to decide before a run: Bao et al.'s flowchart as rules.

    facts (form, number of records, budget, plan)  ->  a branch a question, in this order

Every rule has a question, an answer for the data at hand, and the evidence: a figure of ours with
the file that it stands in, and what the paper says. Where these differ the branch says so. Nothing
here reads a record: the facts are public.

Cost: none.

Source: Bao et al., Fig. 11 (a picture: what it distils is in sections V-C, VI-E and VII). The
figures are those of `crossover.evidence`; docs/guide.md has the rules for a reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pasearch.cautions import LEAST_SIGNAL
from pasearch.crossover.evidence import (
    FIT,
    FROZEN_CNN,
    FROZEN_FCN,
    ONE_HOT,
    OURS,
    PAPER,
    STUDY,
)
from pasearch.crossover.facts import NO, PART, SILENT, UNMEASURED, YES, Branch, Evidence, Facts
from pasearch.crossover.forecast import range_words
from pasearch.crossover.theory import records_needed
from pasearch.features.auto import MANY

QUESTIONS = {
    "signal": "Is the signal large enough to learn anything?",
    "public": "Are there public data of the same form?",
    "declared": "Is everything declared that is publicly known of the columns?",
    "features": "Are there so many columns that features should be chosen?",
    "one-hot": "Should each category become a column of its own (one-hot)?",
    "front": "Should a front end stand between the record and the network?",
    "complexity": "Simple or complex: which model is the best at this epsilon?",
    "frozen": "Should hidden layers keep their random start (random weights training)?",
    "recipe": "How should it be trained: learning rate, batches, recipe?",
    "search": "Should candidates be compared on the private records?",
    "rare": "Are some classes rare?",
}
"""What is asked, in this order."""


def branches(facts: Facts) -> tuple[Branch, ...]:
    """Return every question that has a meaning for the data, answered.

    Args:
        facts: Public numbers alone.

    Cost: none.

    Source: with each rule's evidence.
    """
    found = (rule(facts) for rule in RULES)
    return tuple(each for each in found if each is not None)


def many_columns(facts: Facts) -> bool:
    """Return whether most columns are expected to tell nothing, so that a few are chosen."""
    return facts.columns >= MANY and not facts.pixels


def level(signal: float) -> str:
    """Return a signal in figures: 4.56, or 1,234.

    >>> level(4.5678), level(1234.5)
    ('4.57', '1,234')
    """
    return f"{signal:,.0f}" if signal >= 100 else f"{signal:.3g}"


def sets(count: int) -> str:
    """Return how many public data sets there are, in words."""
    return "one public data set" if count == 1 else f"{count} public data sets"


def more_signal(facts: Facts) -> str:
    """Return what would make the signal large enough: a sentence."""
    records = math.ceil(facts.records * LEAST_SIGNAL / facts.signal)
    ways = [f"collect records (about {float(f'{records:.2g}'):,.0f} instead of {facts.records:,})"]
    if facts.enough is not None:
        ways.append(f"allow a larger epsilon (about {facts.enough:g})")
    merged = int(facts.signal * facts.outputs / LEAST_SIGNAL)
    if facts.known and merged >= 2:
        ways.append(f"merge classes (into {merged} at most)")
    if not facts.known:
        two = level(facts.signal * facts.outputs / 2)
        ways.insert(0, f"declare the classes (of two, the signal is {two} each)")
    return f"Do not train yet: {', or '.join(ways)}."


def _branch(name: str, **said: Any) -> Branch:
    return Branch(name=name, question=QUESTIONS[name], **said)


def _share(value: float) -> str:
    """Return a share as the tables have it: .913."""
    return f"{value:.3f}".removeprefix("0")


def _signal(facts: Facts) -> Branch:
    per = "signal-to-noise" if facts.of_numbers else "signal-to-noise per class"
    counted = "" if facts.known else f"; the classes are not declared, so {facts.outputs} count"
    weakest, said = facts.weakest, PAPER["signal"]
    guess = "" if weakest.guessing is None else f", guessing {_share(weakest.guessing)}"
    return _branch(
        "signal",
        answer=f"{YES if facts.learns else NO}: {per} {level(facts.signal)} (below "
        f"{LEAST_SIGNAL:g} a model guesses{counted})",
        advice="Go on." if facts.learns else more_signal(facts),
        ours=(
            Evidence(
                says=f"The weakest signal measured on public data of this kind is "
                f"{weakest.signal:.2g} ({weakest.data}): the best model has "
                f"{_share(weakest.accuracy)}{guess}.",
                where=STUDY,
            ),
        ),
        paper=Evidence(
            says=f"{said.says}: at epsilon 1 it gives {records_needed(1.0, *FIT):,.0f} records.",
            where=said.where,
        ),
        agree=PART,
        because="both say that records stand in for epsilon; how many are enough depends on the "
        "task, so the fit is not used here.",
    )


def _public(facts: Facts) -> Branch:
    answer = "not known: `public=` names them, if there are any"
    advice = (
        "Look for some: a search on them costs nothing, and `pasearch crossover` tells which model "
        "wins there at which epsilon."
    )
    if facts.public is not None:
        answer = f"{YES}: {facts.public}"
        advice = (
            "Search on them, which costs nothing (`search_on=`), and give the whole budget to one "
            "training on the private records; `pasearch crossover` with `proxy=` measures simple "
            "against complex there, at your number of records."
        )
    images = facts.kind in ("image", "photo")
    return _branch(
        "public",
        answer=answer,
        advice=advice,
        ours=(OURS["backbones" if images else "a private search"],),
        paper=PAPER["public"],
        agree=UNMEASURED,
        because="that a search there is free is a fact; what it gains depends on how alike the "
        "data are.",
    )


def _declared(facts: Facts) -> Branch:
    open_ = len(facts.undeclared)
    answer, advice = f"{YES}: nothing has to be estimated privately", "Go on."
    if open_:
        named = ", ".join(facts.undeclared[:5]) + (", ..." if open_ > 5 else "")
        few = ", and from too few records to find much" if facts.poor else ""
        answer = f"{NO}: {open_} to be estimated privately ({named}){few}"
        advice = "Declare bounds and classes: it costs nothing."
        if facts.table:
            advice = (
                "Declare what is publicly known, in a schema: it costs nothing. `pasearch check` "
                "proposes one to edit."
            )
    return _branch(
        "declared",
        answer=answer,
        advice=advice,
        ours=(OURS["declared"],),
        paper=PAPER["declared"],
        agree=SILENT,
        because="what reading bounds and categories reveals is in none of its prices.",
    )


def _features(facts: Facts) -> Branch:
    if many_columns(facts):
        beyond = f". Of the networks: {facts.outside}" if facts.outside else ""
        answer = f"{YES}: {facts.columns:,} columns ({MANY} or more){beyond}"
        advice = (
            "Take `pasearch features`: it picks the columns that tell most, privately, and trains "
            "a linear model on them."
        )
        about, agree = "many columns", YES
        because = "where most of many columns tell nothing, a few chosen ones win."
    elif facts.pixels:
        answer, advice = f"{NO}: pixels tell little one by one", "Keep all."
        about, agree = "pixels", PART
        because = "it says that pooling costs no privacy (VIII-C), without a figure."
    else:
        answer = f"{NO}: {facts.columns:,} columns (fewer than {MANY})"
        advice = "Keep all: a column that tells nothing costs little once it is centred and scaled."
        about, agree = "few columns", NO
        because = (
            "by objective perturbation, as the paper trains, few features win here too; by DP-SGD "
            "on centred and scaled features they do not, and all features have more."
        )
    return _branch(
        "features",
        answer=answer,
        advice=advice,
        ours=(OURS[about],),
        paper=PAPER["features"],
        agree=agree,
        because=because,
    )


def _one_hot(facts: Facts) -> Branch | None:
    if not facts.table:
        return None
    answer = f"{YES}: epsilon {facts.epsilon:g} is {ONE_HOT:g} or more"
    advice = "Go on: every task here encodes categories so."
    if facts.epsilon < ONE_HOT:
        answer = f"perhaps not: epsilon {facts.epsilon:g} is below {ONE_HOT:g}"
        advice = (
            'Leave columns of categories out of the schema (kind = "ignore") if you know that '
            "numbers tell enough; `pasearch features` with `method=one-hot` compares, and pays for "
            "both."
        )
    return _branch(
        "one-hot",
        answer=answer,
        advice=advice,
        ours=(OURS["one-hot"],),
        paper=PAPER["one-hot"],
        agree=PART,
        because="so trained the crossover is the paper's, .01 to .05; with the library that the "
        "paper used, numbers alone still win at .1 here.",
    )


def _front(facts: Facts) -> Branch:
    return _branch(
        "front",
        answer=f"{YES}: {facts.front}" if facts.front else f"{NO}: the record as it is",
        advice="Leave it to the plan, which takes what was best on public data of this kind.",
        ours=(OURS[f"front of {facts.kind}"], OURS["components"]),
        paper=PAPER["front"],
        agree=PART,
        because="better inputs do help a private model most, but those that no private record is "
        "read for, not components that must be paid for.",
    )


def _complexity(facts: Facts) -> Branch:
    if facts.forecast is None:
        outside = facts.outside or (
            "too few epsilons, or another metric, were measured at this number of records"
        )
        return _branch(
            "complexity",
            answer=f"not known: {outside}",
            advice=f"Train the default ({facts.default}), or measure both on public data with "
            "`pasearch crossover`.",
            ours=(Evidence(says="Nothing like this training was measured.", where=STUDY),),
            paper=PAPER["complexity"],
            agree=UNMEASURED,
            because="the paper's rule is the safer one then: the simpler model.",
        )
    agree, because = _agreement(facts.forecast)
    ranges = "".join(
        f" The change at epsilon {each['epsilon']:.2g} is "
        f"{range_words(each, facts.forecast['epsilons'])}."
        for each in facts.forecast["crossings"]
    )
    return _branch(
        "complexity",
        answer=f"{facts.forecast['sentence']}{ranges}",
        advice=f"Train the {facts.default}: the command does so by itself.",
        ours=(_levels(facts),),
        paper=PAPER["complexity"],
        agree=agree,
        because=because,
    )


def _agreement(found: dict[str, Any]) -> tuple[str, str]:
    """Return whether the simpler model is better below a crossing, as in the paper, and why."""
    sizes = {each["name"]: each["parameters"] for each in found["models"]}
    rises = [sizes[each["before"]] < sizes[each["after"]] for each in found["crossings"]]
    if not rises:
        return PART, (
            "no model is clearly better than the planned one at any epsilon that was measured "
            "here: a good input matters more than the size."
        )
    if all(rises):
        return YES, "the simpler model is better below, the larger one above."
    if any(rises):
        return PART, "the size of the best model rises and falls with epsilon."
    return NO, "here the larger model is better below: training matters more than size."


def _levels(facts: Facts) -> Evidence:
    """Return the accuracy of the study's models at this signal, the smallest first."""
    assert facts.forecast is not None
    levels = ", ".join(f"{name} {_share(value)}" for name, value in facts.reached)
    return Evidence(
        says=f"On {sets(facts.forecast['data_sets'])} of this kind, at this signal, on average, "
        f"the smallest model first: {levels}.",
        where=STUDY,
    )


def _frozen(facts: Facts) -> Branch:
    small = facts.epsilon < FROZEN_FCN
    low = (
        "in our short trainings on MNIST it gains for a convolutional network up to about 2.9, and "
        "hardly for others; not measured at the paper's length."
    )
    answer, advice = f"{NO}: epsilon {facts.epsilon:g} is {FROZEN_FCN:g} or more", "Train all."
    if not facts.hidden:
        answer, advice = f"{NO}: a linear model has no hidden layer", "Go on."
    elif small:
        of = "networks of either kind" if facts.epsilon < FROZEN_CNN else "fully connected ones"
        answer = (
            f"perhaps: epsilon {facts.epsilon:g} is in the range where the paper advises it for "
            f"{of}"
        )
        advice = (
            "Measure it on public data before you take it: `pasearch crossover` compares fcn with "
            "fcn+rwt."
        )
    above = "in our short trainings a fully connected network is better with all weights, too."
    return _branch(
        "frozen",
        answer=answer,
        advice=advice,
        ours=(OURS["frozen"], OURS["frozen-low"]),
        paper=PAPER["frozen"],
        agree=PART if small else YES,
        because=low if small else above,
    )


def _recipe(facts: Facts) -> Branch:
    batches = f"all {facts.slots:,} training records at every step"
    reason = "all records are in every step because the noise is then least for each of them."
    if facts.batch < facts.slots:
        batches = f"about {facts.batch:,.0f} of {facts.slots:,} training records at every step"
        reason = "this network learns from a random part of the records at every step."
    return _branch(
        "recipe",
        answer=f"learning rate {facts.rate:.2g}, {batches}, {facts.steps:,} steps; all follow from "
        "the budget and the number of records",
        advice=f"Leave them to the plan: the rate follows the noise, and {reason}",
        ours=(OURS["rates"], OURS["recipes"]),
        paper=PAPER["recipe"],
        agree=YES,
        because="here the rate follows from the noise by a rule, so no run is spent on tuning it.",
    )


def _search(facts: Facts) -> Branch:
    answer = f"{NO}. {facts.why}"
    if facts.compares:
        answer = f"{YES}, by looks that take a small part of the budget. {facts.why}"
    if facts.public is not None:
        answer = f"{NO}: the search is made on {facts.public}"
    return _branch(
        "search",
        answer=answer,
        advice="Leave `strategy=auto`, which decides this from public numbers; a full search of "
        "private records rarely wins back what it costs.",
        ours=(OURS["looks"], OURS["searches"]),
        paper=PAPER["search"],
        agree=NO,
        because="the paper compares at one epsilon for each training, we at one total: so compared "
        "a search must win back what it costs.",
    )


def _rare(facts: Facts) -> Branch | None:
    if facts.of_numbers:
        return None
    answer = "not known: how many records a class has is private, but you may know"
    if facts.metric in ("balanced-accuracy", "auc"):
        answer = f"{YES}: the run is scored by {facts.metric}"
    two = facts.outputs == 2 and facts.known
    moved = " The threshold between the two classes is then moved privately." if two else ""
    return _branch(
        "rare",
        answer=answer,
        advice=f"If some are, take `metric=balanced-accuracy`.{moved}",
        ours=(OURS["rare"],),
        paper=PAPER["rare"],
        agree=SILENT,
        because="what noise does to rare classes is in none of its tables.",
    )


RULES: tuple[Callable[[Facts], Branch | None], ...] = (
    _signal, _public, _declared, _features, _one_hot, _front, _complexity, _frozen, _recipe,
    _search, _rare,
)  # fmt: skip
"""Every rule, in the order of `QUESTIONS`."""
