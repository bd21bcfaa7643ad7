"""The privacy card: the privacy guarantee, its conditions and its limits, on one page.

The card is a function of `result.json` alone and reads no record. Its JSON and Markdown have the
same sections.

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
from pasearch.search.names import show_strategy
from pasearch.terminal_escaping import escape_text

PUBLISHED_BOUNDS = "Published bounds (not used)"
ASSUMED_PUBLIC = "Assumed public (read without a charge)"

NOT_COVERED = [
    "Run time, file times and memory use. Under repeat-and-select, the run time reveals the number "
    "of trainings; files in release/ carry the start time of the run instead of their own time.",
    "Everything in private/: ledger, trials, losing candidates, keys. Do not publish it.",
    "Information learned from these records before this run, such as bounds, classes, a search "
    "space or a recipe chosen after looking at them.",
    "A person with several records: their protection is weaker than the privacy cost states (group "
    "privacy).",
]
"""Risks that the privacy cost of a run does not cover."""

NOT_COVERED_ON_A_CLUSTER = [
    "Observers of the Ray cluster that trained: they see the number of trainings, the start and "
    "end of each, and the amount of data sent. Under repeat-and-select, the number of trainings is "
    "secret to readers of release/.",
    "Anyone who can enter the cluster's machines, has its token or reads its network: the object "
    "store, its spill files and the network carry the training records. Treat the cluster as "
    "private/. Workers never had the ledger, the budget, or keys of other trainings.",
]
"""Further risks of a run whose trainings were on a Ray cluster."""

NOT_COVERED_BY_A_SELECTOR = [
    "Run time and memory use.",
    "The output of `transform`: it is as private as the records passed to it.",
    *NOT_COVERED[2:],
]
"""Risks that the privacy cost of a fitted selector does not cover; it writes no files."""


def card_json(document: dict[str, Any]) -> dict[str, Any]:
    """Build the card as plain values: title, privacy cost and sections.

    Args:
        document: `result.json`, or the document of a fitted selector, which has no recipe.
    """
    price, budget, data = document["price"], document["budget"], document["dataset"]
    events, selection, task = document["events"], document["selection"], document["task"]
    is_choice, of_features = "recipe" not in document, task == FEATURE_SELECTION
    sections: list[tuple[str, list[str]]] = []

    statement = []
    if data["declared_public"]:
        statement.append(
            "None. The data were declared public and exact values on them are released, so their "
            "records have no protection. The costs below are those of the plan's noise."
        )
    elif document["reproducible"]:
        statement.append(
            "None: anyone who knows the seed can subtract the noise. With secret keys from the "
            f"operating system, the same run would be ({price['epsilon']:.4f}, "
            f"{price['delta']:g})-differentially private."
        )
    else:
        table = ""
        if (document.get("score") or {}).get("cells"):
            table = ", noisy table of test counts"
        what = "features" if of_features else "architecture"
        released = f"everything in release/ ({what}, weights, test score{table})"
        if is_choice:
            released = "all attributes of the fitted selector"
        covered = (
            "the selection only (no model is trained)"
            if is_choice
            else "the model *and* the selection of its features"
            if of_features
            else "every access to a record"
            if task == TRAINING
            else "the model *and* the architecture search"
        )
        statement += [
            f"The joint release of {released} is "
            f"({price['epsilon']:.4f}, {price['delta']:g})-differentially private: for any two "
            f"data sets of n = {data['n']:,} records that differ in one record, which is the null "
            "record in one of them (zero-out adjacency), and any set S of outputs, "
            f"P[S] <= exp({price['epsilon']:.4f}) P'[S] + {price['delta']:g}, in both directions.",
            f"The statement covers {covered}: {', '.join(sorted({e['name'] for e in events}))}.",
        ]
    sections.append(("Formal statement", statement))

    slots = ", ".join(f"{name} {size:,}" for name, size in data["slots"].items())
    unused = document.get("plan", {}).get("unused", 0)
    unused = f"; {unused:,} records unused" if unused else ""
    setting = [
        "Central model: the curator's machine reads the records; only "
        f"{'the fitted selector' if is_choice else 'release/'} may leave it.",
        f"Unit of privacy: {price['unit']}. Adjacency: {price['adjacency']}.",
    ]
    if (elsewhere := document.get("searched_on")) is not None:
        setting.append(
            f"Features selected on {elsewhere}, declared public: the selection read no private "
            "record. It uses only the noisy feature means of the private data, which are charged."
            if of_features
            else f"Searched on {elsewhere}, declared public: the search read no private record."
        )
    setting += [
        f"Data: {data['name']}, n = {data['n']:,} records (public): {slots}; random "
        f"split{unused}. An unparseable record, or one outside the declared schema, is replaced by "
        "the null record, which counts as an error in every score.",
        f"Budget: epsilon {budget['epsilon']:g}, delta {budget['delta']:g}.",
        "No search: one data-independent network was trained once."
        if task == TRAINING
        else f"Strategy: {show_strategy(document['strategy']['name'])} ({selection['rule']}, "
        f"winner {document['winner']}): {selection['law']}.",
    ]
    sections.append(("Setting", setting))

    accesses = [
        f"{each['name']}: reads `{each['partition']}`, "
        f"{'once' if each['count'] == 1 else str(each['count']) + ' times'}."
        for each in events
    ]
    accesses += [
        f"`{name}` in total: epsilon {share['epsilon']:.4f} ({share['accountant']})."
        for name, share in document["price_by_partition"].items()
        if share["epsilon"] > 0
    ]
    accesses.append("Every access was logged on disk before the records were read.")
    sections.append(("Accesses covered", accesses))

    mechanisms = []
    for each in events:
        noise = "no noise (data declared public)"
        if each["event"]["type"] != "no-release":
            noise = describe_event(event_from_json(each["event"]))
        mechanisms.append(
            f"{each['name']}: {wording.describe_release_noise(document, each['name'], noise)}."
        )
    if not is_choice:
        mechanisms += _describe_released_model(document)
    sections.append(("Mechanisms", mechanisms))

    assumptions = [
        f"Accountant: {price['accountant']}. The privacy cost is the smallest proven upper bound "
        "for the plan, and the maximum over partitions at the same delta.",
        "The plan was fixed before any record was read. It is charged in full, even if the run "
        "stops early.",
    ]
    if not is_choice:
        values = document["recipe"]
        whole = values.get("trainer") == "objective" or values["sampling_probability"] == 1.0
        assumptions.append(
            "Every training uses independent noise."
            if whole
            else f"{restore_recipe(values).sampling.assumes}; every trial has independent "
            "batches and noise."
        )
    assumptions += [
        "Released scores are integer counts with two-sided geometric noise from an exact sampler.",
        f"Randomness: {document['randomness']}.",
        "Rounding: in floating point, one record changes a sum by at most "
        f"{document['sum_rounding']:.6f} times its exact contribution. Gaussian noise on sums is "
        "scaled by this factor.",
    ]
    if selection["rule"] == "repeat-and-select":
        assumptions.append(
            "The number of trainings was drawn from the stated distribution before the first "
            "training, and is secret. Candidates are independent; only the winner is released."
        )
    if document.get("variant") is not None:
        assumptions.append(
            "One of several variants of the weights was selected on the validation records, at the "
            "privacy cost of `variant pick`. The cost of the training covers all variants."
        )
    if selection["rule"] == "disjoint portions":
        assumptions.append(
            "Each candidate uses a disjoint subset of the records. An exact exponential mechanism "
            "selects one of them, and only that one is released."
        )
    sections.append(("Accountant and its assumptions", assumptions))

    claims = [wording.describe_claim(each) for each in document["claims"]]
    sections.append((PUBLISHED_BOUNDS, claims))
    estimated = list(document["estimated_privately"])
    sections.append(("Estimated with differential privacy", estimated))
    assumed = list(document["assumed_public"])
    sections.append((ASSUMED_PUBLIC, assumed))

    not_covered = [*(NOT_COVERED_BY_A_SELECTOR if is_choice else NOT_COVERED)]
    ledger = document.get("ledger")
    not_covered.append(
        "Other runs on the same data. Runs compose, but this run used no shared ledger: the cost "
        "covers this run only."
        if ledger is None
        else "Runs on the same data outside this run's shared ledger. All runs in the ledger cost "
        f"at most epsilon {ledger['epsilon']:g} at delta {ledger['delta']:g} in total."
    )
    if document["device"] == "cuda" and not document.get("secure_noise"):
        not_covered.append(
            "Attacks on CUDA's random number generator, Philox (125 secret bits, not a cipher). "
            "`secure_noise=True` uses AES-256."
        )
    if document.get("storage") in STORES:
        exact = selection["rule"] == "disjoint portions"
        not_covered.append(
            f"The {document['storage']} outside the run's folder that stores its trials. Treat it "
            "as private/: anyone who can read it, or its network, sees the "
            f"{'exact' if exact else 'noisy'} score of every candidate, their number and times."
        )
    if document.get("executor") == Cluster.name:
        not_covered += NOT_COVERED_ON_A_CLUSTER
    outside = [
        name for name, each in document["versions"].items() if each.startswith(EXTENSION_NOTE)
    ]
    if classes := [name for name in outside if ":" in name]:
        not_covered.append(
            f"What the code of the network {', '.join(classes)} does except computing an output, "
            "such as writing records to a file."
        )
    if outside := [name for name in outside if name not in classes]:
        not_covered.append(
            f"The proof and the privacy cost of components {EXTENSION_NOTE}: {', '.join(outside)}. "
            "pasearch has not checked the claims of their authors."
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
    """Describe the training of the released model in sentences."""
    values, items = document["recipe"], []
    if values.get("trainer") == "objective" and values["noise_multiplier"] is not None:
        items.append(
            "The released model: linear regression from second moments of records clipped to a "
            "public norm, with symmetric Gaussian noise."
        )
    elif values.get("trainer") == "objective":
        items.append(
            "The released model: regression by objective perturbation of records clipped to a "
            "public norm, minimised to 1e-12 or float64 rounding; the proof holds for the exact "
            "minimiser."
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
            *(f"{wording.capitalize_first(words)}." for words in wording.describe_stages(recipe)),
            *([f"Recipe: {values['name']}."] if values.get("name") else []),
        ]
    if document["task"] != FEATURE_SELECTION:
        items.append(
            f"Input of the network: {parse_front_end(document['best']['front_end']).describe()}."
        )
    return items


def card_markdown(document: dict[str, Any]) -> str:
    """Render the card as Markdown; names from the user or the data are escaped."""
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
            "> **Not private: the noise is reproducible.** Anyone who knows the seed of this run "
            "can subtract the noise. Use a seed for tests and benchmarks only.",
            "",
        ]
    if document["dataset"]["declared_public"]:
        lines += [
            "> **Not private: the data were declared public.** Nobody in the data is protected.",
            "",
        ]
    for section in card["sections"]:
        lines += [f"## {section['title']}", "", *(f"- {item}" for item in section["items"]), ""]
    return "\n".join(map(escape_text, lines))


def escape_markdown(text: str) -> str:
    """Escape a string of the user, so that Markdown shows it literally on one line."""
    return re.sub(r"([\\`*_\[\]<>|~&!])", r"\\\1", escape_text(" ".join(text.split())))
