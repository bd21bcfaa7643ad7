"""The privacy card: what was promised, for what, and what is not covered, on one page.

Built from the plan and the result document alone; it computes nothing private. The JSON holds the
same sections as the Markdown.

Source: docs/rules.md, rules 2, 8, 10 to 15.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pasearch.accounting.events import describe, from_json
from pasearch.data.front_ends.parsing import front_end
from pasearch.registry import OUTSIDE
from pasearch.report import classes, stages
from pasearch.results import FEATURES
from pasearch.runs.cluster import Cluster
from pasearch.runs.stores import STORES
from pasearch.shown import shown

if TYPE_CHECKING:
    from pasearch.training.recipe import Recipe

Section = tuple[str, list[str]]

NOT_COVERED = [
    "Run time, file times and memory use. Under repeat-and-select the run time tells the number of "
    "trainings; the files in release/ carry the run's start instead of their own time.",
    "Everything in private/: ledger, trials, losing candidates, keys. Do not publish it.",
    "What was learnt from these records before this run, such as bounds, classes, a space or a "
    "recipe that somebody chose by looking at them.",
    "A person with several records: they have less protection than the price says (k-record, or "
    "group, privacy).",
]
ON_A_CLUSTER = [
    "What an observer of the Ray cluster that trained sees: how many trainings there were, when "
    "each began and ended, and how much was sent. Under repeat-and-select this is the number of "
    "trainings, which only readers of release/ do not learn.",
    "Whoever can enter the cluster's machines, has its token or reads its network: its object "
    "store, what it spills from there to disk, and its network carry the records that were trained "
    "on. The cluster counts as private/. No worker had the ledger, the budget, or other keys than "
    "those of the training that it made.",
]
"""The same of a run on a cluster."""

OF_A_CHOICE = [
    "Run time and memory use.",
    "What `transform` returns: it is as private as the records that it was given.",
    *NOT_COVERED[2:],
]
"""The same of a fit that chose and trained no model: it leaves no files."""


def card_json(document: dict[str, Any]) -> dict[str, Any]:
    """Return the card as plain values: title, statement and sections."""
    sections: list[Section] = [
        ("Formal statement", _statement(document)),
        ("Setting", _setting(document)),
        ("Accesses covered", _accesses(document)),
        ("Mechanisms", _mechanisms(document)),
        ("Accountant and its assumptions", _assumptions(document)),
        ("Claims of the papers, beside", [stages.claim_words(x) for x in document["claims"]]),
        ("Estimated privately, with a part of the budget", list(document["estimated_privately"])),
        ("Assumed public, read without a charge", list(document["assumed_public"])),
        ("Not covered", _not_covered(document)),
        ("Versions", [f"{name} {version}" for name, version in document["versions"].items()]),
    ]
    return {
        "title": f"Privacy card: {document['task']} on {document['dataset']['name']}",
        "private": not document["dataset"]["declared_public"] and not document["reproducible"],
        "price": document["price"],
        "sections": [{"title": title, "items": items} for title, items in sections if items],
    }


def card_markdown(document: dict[str, Any]) -> str:
    """Return the card as Markdown; names that a user or the data chose are escaped."""
    name, searched_on = document["dataset"]["name"], document.get("searched_on")
    card = card_json(
        {
            **document,
            "dataset": {**document["dataset"], "name": escaped(name)},
            "searched_on": None if searched_on is None else escaped(searched_on),
            "estimated_privately": [escaped(each) for each in document["estimated_privately"]],
            "assumed_public": [escaped(each) for each in document["assumed_public"]],
        }
    )
    lines = [f"# {card['title']}", ""]
    if document["reproducible"]:
        lines += [
            "> **Noise reproducible: not private.** This run was given a seed, so anyone who "
            "knows the seed can subtract the noise. For tests and benchmarks only.",
            "",
        ]
    if document["dataset"]["declared_public"]:
        lines += ["> **Declared public: not private.** The price protects nobody in it.", ""]
    for section in card["sections"]:
        lines += [f"## {section['title']}", "", *(f"- {item}" for item in section["items"]), ""]
    return "\n".join(map(shown, lines))


def escaped(text: str) -> str:
    """Return text of a user's as one line of Markdown that shows it as it is."""
    return re.sub(r"([\\`*_\[\]<>|~&!])", r"\\\1", shown(" ".join(text.split())))


def _statement(document: dict[str, Any]) -> list[str]:
    price = document["price"]
    names = sorted({line["name"] for line in document["events"]})
    if document["dataset"]["declared_public"]:
        return [
            "None. The data was declared public, and exact figures on it are released: nothing "
            "here protects its records. Prices below are what the noise of the plan would cost."
        ]
    if document["reproducible"]:
        return [
            "None: whoever knows the seed can subtract the noise. With secret keys from the "
            f"operating system the same run would be ({price['epsilon']:.4f}, "
            f"{price['delta']:g})-differentially private."
        ]
    return [
        f"The joint release of {_released(document)} is "
        f"({price['epsilon']:.4f}, {price['delta']:g})-differentially private: for any two data "
        f"sets of n = {document['dataset']['n']:,} records that differ in one place, which holds a "
        "record in one and the null record in the other, and any set S of outputs, "
        f"P[S] <= exp({price['epsilon']:.4f}) P'[S] + {price['delta']:g}, in both directions.",
        f"The statement covers {_covered(document)}: {', '.join(names)}.",
    ]


def _is_choice(document: dict[str, Any]) -> bool:
    """Whether no model was trained: a selector's fit."""
    return "recipe" not in document


def _released(document: dict[str, Any]) -> str:
    if _is_choice(document):
        return "everything that the fit left in the selector"
    what = "features" if document["task"] == FEATURES else "architecture"
    table = ", the table of test counts that it follows from" if _has_table(document) else ""
    return f"everything in release/ ({what}, weights, test score{table})"


def _has_table(document: dict[str, Any]) -> bool:
    """Whether the test released a table of counts."""
    return bool((document.get("score") or {}).get("cells"))


def _covered(document: dict[str, Any]) -> str:
    if _is_choice(document):
        return "the choice, and no model"
    if document["task"] == FEATURES:
        return "the model *and* the choice of its features"
    if document["task"] == stages.TRAINING:
        return "whatever read a record"
    return "the model *and* the search that found it"


def _setting(document: dict[str, Any]) -> list[str]:
    data, price, budget = document["dataset"], document["price"], document["budget"]
    selection = document["selection"]
    slots = ", ".join(f"{name} {size:,}" for name, size in data["slots"].items())
    unused = document.get("plan", {}).get("unused", 0)
    unused = f"; {unused:,} records are in no part" if unused else ""
    leaves = "what the selector holds" if _is_choice(document) else "release/"
    return [
        f"Central model: the curator's machine sees the records; {leaves} may leave it.",
        f"Unit of privacy: {price['unit']}. Adjacency: {price['adjacency']}.",
        *_searched_on(document),
        f"Data: {data['name']}, n = {data['n']:,} records (public): {slots}; a random "
        f"split{unused}. A record that cannot be read or does not fit the declared schema is the "
        "null record, which counts as an error in every score.",
        f"Budget: epsilon {budget['epsilon']:g}, delta {budget['delta']:g}.",
        "Nothing was searched: one network, fixed beforehand, was trained once."
        if document["task"] == stages.TRAINING
        else f"Strategy: {document['strategy']['name']} ({selection['rule']}, "
        f"winner {document['winner']}): {selection['law']}.",
    ]


def _searched_on(document: dict[str, Any]) -> list[str]:
    name = document.get("searched_on")
    if name is None:
        return []
    if document["task"] == FEATURES:
        return [
            f"Chosen on {name}, declared public: the choice opened no private record, and what it "
            "may know of them, their features' means, was released and is charged."
        ]
    return [
        f"Searched on {name}, declared public: no record of the private data was read for that."
    ]


def _accesses(document: dict[str, Any]) -> list[str]:
    shares = document["price_by_partition"]
    items = []
    for line in document["events"]:
        times = "once" if line["count"] == 1 else f"{line['count']} times"
        items.append(f"{line['name']}: reads `{line['partition']}`, {times}.")
    items += [
        f"`{name}` in all: epsilon {share['epsilon']:.4f} ({share['accountant']})."
        for name, share in shares.items()
        if share["epsilon"] > 0
    ]
    return [*items, "Every access was written to a ledger on disk before the records were opened."]


def _mechanisms(document: dict[str, Any]) -> list[str]:
    items = [
        f"{line['name']}: {classes.counts_words(document, line['name'], _mechanism(line))}."
        for line in document["events"]
    ]
    if _is_choice(document):
        return items
    recipe = document["recipe"]
    if recipe.get("trainer") == "objective" and recipe["noise_multiplier"] is not None:
        items.append(
            "The released model: linear regression solved from second moments of records cut to a "
            "public norm, with symmetric Gaussian noise."
        )
    elif recipe.get("trainer") == "objective":
        items.append(
            "The released model: regression by objective perturbation, each record cut to a public "
            "norm, the minimiser found to 1e-7; the proof is for the exact minimiser."
        )
    if recipe["bounding"] is not None:
        items += _released_training(recipe)
    if document["task"] != FEATURES:
        items.append(f"The network is given {front_end(document['best']['front_end']).words()}.")
    return items


def _released_training(values: dict[str, Any]) -> list[str]:
    """Return how the released model was trained, stage by stage."""
    recipe = stages.recipe_of(values)
    assert recipe.bounding is not None
    steps = stages.steps_words(recipe, values.get("steps_made"))
    return [
        f"The released model: {steps} steps of DP-SGD ({stages.optimizer_words(recipe)}), noise "
        f"multiplier {stages.noise_words(recipe)}, {_sampled(recipe, values)}, its gradient "
        f"{recipe.bounding.words()}; sums divided by the public {recipe.expected_batch_size:,}, "
        "never by the batch's realised size.",
        *(f"In it: {words}." for words in stages.stage_words(recipe)),
        *([f"Its recipe is {values['name']}."] if values.get("name") else []),
    ]


def _sampled(recipe: Recipe, values: dict[str, Any]) -> str:
    share = values["sampling_probability"]
    if share == 1.0:
        return "every record in every batch"
    words = stages.batching_words(recipe, values)
    return f"each record in a batch with probability {share:.5f} ({words})"


def _mechanism(line: dict[str, Any]) -> str:
    if line["event"]["type"] == "no-release":
        return "without noise, on data declared public"
    return describe(from_json(line["event"]))


def _assumptions(document: dict[str, Any]) -> list[str]:
    price = document["price"]
    items = [
        f"Accountant: {price['accountant']}. The price is the least of the upper bounds that are "
        "proved for the plan, and the maximum over partitions at the same delta.",
        "The plan was fixed before a record was read; it is charged in full, however the run went.",
        *(() if _is_choice(document) else [_trainings(document["recipe"])]),
        "Accuracies and scores that are released are whole numbers with two-sided geometric noise, "
        "drawn by an exact sampler.",
        f"Randomness: {document['randomness']}.",
        "Rounding: one record moves a sum, as computed in floating point, by at most "
        f"{document['sum_rounding']:.6f} times what it adds to the exact sum. Gaussian noise on "
        "sums is scaled by that factor.",
    ]
    if document["selection"]["rule"] == "repeat-and-select":
        items.append(
            "The number of trainings was drawn from the stated law before the first one and is "
            "secret; candidates are independent; only the winner is released."
        )
    if document.get("variant") is not None:
        items.append(
            "One of several variants of the weights was picked on the validation records, at the "
            "price of the line `variant pick`; all follow from iterates that the training's price "
            "covers."
        )
    if document["selection"]["rule"] == "disjoint portions":
        items.append(
            "Each candidate has records of its own; one of them is picked by an exact exponential "
            "mechanism, and only that one is released."
        )
    return items


def _trainings(recipe: dict[str, Any]) -> str:
    if recipe.get("trainer") == "objective" or recipe["sampling_probability"] == 1.0:
        return "Every training has noise of its own."
    assumes = stages.recipe_of(recipe).sampling.assumes
    return f"{assumes}; every trial has its own batches and noise."


def _other_runs(document: dict[str, Any]) -> str:
    """Say what is promised about several runs on the same data."""
    ledger = document.get("ledger")
    if ledger is None:
        return (
            "Other runs on the same data. Two runs compose; nothing links their ledgers: this "
            "price is of this run only."
        )
    return (
        f"Runs on the same data that do not name this run's ledger. All that do cost at most "
        f"epsilon {ledger['epsilon']:g} at delta {ledger['delta']:g} together."
    )


def _not_covered(document: dict[str, Any]) -> list[str]:
    items = [*(OF_A_CHOICE if _is_choice(document) else NOT_COVERED), _other_runs(document)]
    if document["device"] == "cuda" and not document.get("secure_noise"):
        items.append(
            "The strength of CUDA's generator, Philox: 125 secret bits, and no cipher. "
            "`secure_noise=True` takes AES-256."
        )
    if document.get("storage") in STORES:
        exact = document["selection"]["rule"] == "disjoint portions"
        items.append(
            f"The {document['storage']} outside the run's folder that its trials were kept in. It "
            "counts as private/: whoever can read it, or the network to it, sees every candidate's "
            f"{'exact' if exact else 'noisy'} score, how many there were, and when."
        )
    if document.get("executor") == Cluster.name:
        items += ON_A_CLUSTER
    outside = [name for name, each in document["versions"].items() if each.startswith(OUTSIDE)]
    if outside:
        items.append(
            f"The proof and the price of what comes {OUTSIDE}: {', '.join(outside)}. They are "
            "their authors' word, which nothing here has checked."
        )
    return items
