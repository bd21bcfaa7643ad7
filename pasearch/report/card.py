"""The privacy card: the promise, its conditions, and what it does not cover, on one page.

It is made from the result document alone and computes nothing private. The JSON holds the same
sections as the Markdown.

Source: docs/rules.md, rules 2, 8, 10 to 15.
"""

from __future__ import annotations

import re
from typing import Any

from pasearch.accounting.events import describe_event, event_from_json
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.registry import EXTENSION_NOTE
from pasearch.report import wording
from pasearch.report.facts import TRAINING, restore_recipe
from pasearch.results import FEATURE_SELECTION
from pasearch.runs.cluster import Cluster
from pasearch.runs.journal import STORES
from pasearch.terminal_escaping import escape_text

NOT_COVERED = [
    "Run time, file times and memory use. Under repeat-and-select the run time tells the number of "
    "trainings; the files in release/ carry the run's start instead of their own time.",
    "Everything in private/: ledger, trials, losing candidates, keys. Do not publish it.",
    "What was learnt from these records before this run, such as bounds, classes, a space or a "
    "recipe that somebody chose by looking at them.",
    "A person with several records: they have less protection than the price says (k-record, or "
    "group, privacy).",
]
"""Lines on what no price covers."""

NOT_COVERED_ON_A_CLUSTER = [
    "What an observer of the Ray cluster that trained sees: how many trainings there were, when "
    "each began and ended, and how much was sent. Under repeat-and-select this is the number of "
    "trainings, which only readers of release/ do not learn.",
    "Whoever can enter the cluster's machines, has its token or reads its network: its object "
    "store, what it spills from there to disk, and its network carry the records that were trained "
    "on. The cluster counts as private/. No worker had the ledger, the budget, or other keys than "
    "those of the training that it made.",
]
"""Further lines for a run on a cluster."""

NOT_COVERED_BY_A_CHOICE = [
    "Run time and memory use.",
    "What `transform` returns: it is as private as the records that it was given.",
    *NOT_COVERED[2:],
]
"""The same for a selector's fit, which trains no model and leaves no files."""


def card_json(document: dict[str, Any]) -> dict[str, Any]:
    """Return the card as plain values: title, statement and sections.

    Args:
        document: `result.json`, or the document of a selector's fit, which has no recipe.
    """
    price, budget, data = document["price"], document["budget"], document["dataset"]
    events, selection, task = document["events"], document["selection"], document["task"]
    is_choice, of_features = "recipe" not in document, task == FEATURE_SELECTION
    sections: list[tuple[str, list[str]]] = []

    statement = []
    if data["declared_public"]:
        statement.append(
            "None. The data was declared public, and exact figures on it are released: nothing "
            "here protects its records. Prices below are what the noise of the plan would cost."
        )
    elif document["reproducible"]:
        statement.append(
            "None: whoever knows the seed can subtract the noise. With secret keys from the "
            f"operating system the same run would be ({price['epsilon']:.4f}, "
            f"{price['delta']:g})-differentially private."
        )
    else:
        table = ""
        if (document.get("score") or {}).get("cells"):
            table = ", the table of test counts that it follows from"
        what = "features" if of_features else "architecture"
        released = f"everything in release/ ({what}, weights, test score{table})"
        if is_choice:
            released = "everything that the fit left in the selector"
        covered = (
            "the choice, and no model"
            if is_choice
            else "the model *and* the choice of its features"
            if of_features
            else "whatever read a record"
            if task == TRAINING
            else "the model *and* the search that found it"
        )
        statement += [
            f"The joint release of {released} is "
            f"({price['epsilon']:.4f}, {price['delta']:g})-differentially private: for any two "
            f"data sets of n = {data['n']:,} records that differ in one place, which holds a "
            "record in one and the null record in the other, and any set S of outputs, "
            f"P[S] <= exp({price['epsilon']:.4f}) P'[S] + {price['delta']:g}, in both directions.",
            f"The statement covers {covered}: {', '.join(sorted({e['name'] for e in events}))}.",
        ]
    sections.append(("Formal statement", statement))

    slots = ", ".join(f"{name} {size:,}" for name, size in data["slots"].items())
    unused = document.get("plan", {}).get("unused", 0)
    unused = f"; {unused:,} records are in no part" if unused else ""
    setting = [
        f"Central model: the curator's machine sees the records; "
        f"{'what the selector holds' if is_choice else 'release/'} may leave it.",
        f"Unit of privacy: {price['unit']}. Adjacency: {price['adjacency']}.",
    ]
    if (elsewhere := document.get("searched_on")) is not None:
        setting.append(
            f"Chosen on {elsewhere}, declared public: the choice opened no private record, and "
            "what it may know of them, their features' means, was released and is charged."
            if of_features
            else f"Searched on {elsewhere}, declared public: no record of the private data was "
            "read for that."
        )
    setting += [
        f"Data: {data['name']}, n = {data['n']:,} records (public): {slots}; a random "
        f"split{unused}. A record that cannot be read or does not fit the declared schema is the "
        "null record, which counts as an error in every score.",
        f"Budget: epsilon {budget['epsilon']:g}, delta {budget['delta']:g}.",
        "Nothing was searched: one network, fixed beforehand, was trained once."
        if task == TRAINING
        else f"Strategy: {document['strategy']['name']} ({selection['rule']}, "
        f"winner {document['winner']}): {selection['law']}.",
    ]
    sections.append(("Setting", setting))

    accesses = [
        f"{each['name']}: reads `{each['partition']}`, "
        f"{'once' if each['count'] == 1 else str(each['count']) + ' times'}."
        for each in events
    ]
    accesses += [
        f"`{name}` in all: epsilon {share['epsilon']:.4f} ({share['accountant']})."
        for name, share in document["price_by_partition"].items()
        if share["epsilon"] > 0
    ]
    accesses.append("Every access was written to a ledger on disk before the records were opened.")
    sections.append(("Accesses covered", accesses))

    mechanisms = []
    for each in events:
        noise = "without noise, on data declared public"
        if each["event"]["type"] != "no-release":
            noise = describe_event(event_from_json(each["event"]))
        mechanisms.append(
            f"{each['name']}: {wording.describe_counts(document, each['name'], noise)}."
        )
    if not is_choice:
        mechanisms += _describe_released_model(document)
    sections.append(("Mechanisms", mechanisms))

    assumptions = [
        f"Accountant: {price['accountant']}. The price is the least of the upper bounds that are "
        "proved for the plan, and the maximum over partitions at the same delta.",
        "The plan was fixed before a record was read; it is charged in full, however the run went.",
    ]
    if not is_choice:
        values = document["recipe"]
        whole = values.get("trainer") == "objective" or values["sampling_probability"] == 1.0
        assumptions.append(
            "Every training has noise of its own."
            if whole
            else f"{restore_recipe(values).sampling.assumes}; every trial has its own batches "
            "and noise."
        )
    assumptions += [
        "Accuracies and scores that are released are whole numbers with two-sided geometric noise, "
        "drawn by an exact sampler.",
        f"Randomness: {document['randomness']}.",
        "Rounding: one record moves a sum, as computed in floating point, by at most "
        f"{document['sum_rounding']:.6f} times what it adds to the exact sum. Gaussian noise on "
        "sums is scaled by that factor.",
    ]
    if selection["rule"] == "repeat-and-select":
        assumptions.append(
            "The number of trainings was drawn from the stated law before the first one and is "
            "secret; candidates are independent; only the winner is released."
        )
    if document.get("variant") is not None:
        assumptions.append(
            "One of several variants of the weights was picked on the validation records, at the "
            "price of the line `variant pick`; all follow from iterates that the training's price "
            "covers."
        )
    if selection["rule"] == "disjoint portions":
        assumptions.append(
            "Each candidate has records of its own; one of them is picked by an exact exponential "
            "mechanism, and only that one is released."
        )
    sections.append(("Accountant and its assumptions", assumptions))

    claims = [wording.describe_claim(each) for each in document["claims"]]
    sections.append(("Claims of the papers, beside", claims))
    estimated = list(document["estimated_privately"])
    sections.append(("Estimated privately, with a part of the budget", estimated))
    assumed = list(document["assumed_public"])
    sections.append(("Assumed public, read without a charge", assumed))

    not_covered = [*(NOT_COVERED_BY_A_CHOICE if is_choice else NOT_COVERED)]
    ledger = document.get("ledger")
    not_covered.append(
        "Other runs on the same data. Two runs compose; nothing links their ledgers: this price is "
        "of this run only."
        if ledger is None
        else "Runs on the same data that do not name this run's ledger. All that do cost at most "
        f"epsilon {ledger['epsilon']:g} at delta {ledger['delta']:g} together."
    )
    if document["device"] == "cuda" and not document.get("secure_noise"):
        not_covered.append(
            "The strength of CUDA's generator, Philox: 125 secret bits, and no cipher. "
            "`secure_noise=True` takes AES-256."
        )
    if document.get("storage") in STORES:
        exact = selection["rule"] == "disjoint portions"
        not_covered.append(
            f"The {document['storage']} outside the run's folder that its trials were kept in. It "
            "counts as private/: whoever can read it, or the network to it, sees every candidate's "
            f"{'exact' if exact else 'noisy'} score, how many there were, and when."
        )
    if document.get("executor") == Cluster.name:
        not_covered += NOT_COVERED_ON_A_CLUSTER
    outside = [
        name for name, each in document["versions"].items() if each.startswith(EXTENSION_NOTE)
    ]
    if outside:
        not_covered.append(
            f"The proof and the price of what comes {EXTENSION_NOTE}: {', '.join(outside)}. They "
            "are "
            "their authors' word, which nothing here has checked."
        )
    sections.append(("Not covered", not_covered))
    versions = [f"{name} {version}" for name, version in document["versions"].items()]
    sections.append(("Versions", versions))
    return {
        "title": f"Privacy card: {task} on {data['name']}",
        "private": not data["declared_public"] and not document["reproducible"],
        "price": price,
        "sections": [{"title": title, "items": items} for title, items in sections if items],
    }


def _describe_released_model(document: dict[str, Any]) -> list[str]:
    """Describe the training of the released model, one sentence per stage."""
    values, items = document["recipe"], []
    if values.get("trainer") == "objective" and values["noise_multiplier"] is not None:
        items.append(
            "The released model: linear regression solved from second moments of records cut to a "
            "public norm, with symmetric Gaussian noise."
        )
    elif values.get("trainer") == "objective":
        items.append(
            "The released model: regression by objective perturbation, each record cut to a public "
            "norm, the minimiser found to 1e-7; the proof is for the exact minimiser."
        )
    if values["bounding"] is not None:
        recipe, probability = restore_recipe(values), values["sampling_probability"]
        assert recipe.bounding is not None
        sampled = "every record in every batch"
        if probability != 1.0:
            words = wording.describe_batching(recipe, values)
            sampled = f"each record in a batch with probability {probability:.5f} ({words})"
        items += [
            f"The released model: {wording.format_steps(recipe, values.get('steps_made'))} steps "
            f"of DP-SGD ({wording.describe_optimizer(recipe)}), noise multiplier "
            f"{wording.format_noise_multiplier(recipe)}, {sampled}, its gradient "
            f"{recipe.bounding.describe()}; sums divided by the public "
            f"{recipe.expected_batch_size:,}, never by the batch's realised size.",
            *(f"In it: {words}." for words in wording.describe_stages(recipe)),
            *([f"Its recipe is {values['name']}."] if values.get("name") else []),
        ]
    if document["task"] != FEATURE_SELECTION:
        items.append(
            f"The network is given {parse_front_end(document['best']['front_end']).describe()}."
        )
    return items


def card_markdown(document: dict[str, Any]) -> str:
    """Render the card as Markdown; names that a user or the data chose are escaped."""
    name, searched_on = document["dataset"]["name"], document.get("searched_on")
    card = card_json(
        {
            **document,
            "dataset": {**document["dataset"], "name": escape_markdown(name)},
            "searched_on": None if searched_on is None else escape_markdown(searched_on),
            "estimated_privately": [
                escape_markdown(each) for each in document["estimated_privately"]
            ],
            "assumed_public": [escape_markdown(each) for each in document["assumed_public"]],
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
    return "\n".join(map(escape_text, lines))


def escape_markdown(text: str) -> str:
    """Escape a user's string as one line of Markdown that shows it literally."""
    return re.sub(r"([\\`*_\[\]<>|~&!])", r"\\\1", escape_text(" ".join(text.split())))
