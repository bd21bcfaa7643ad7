"""Verification of a finished run from its `release/` folder alone.

    cost        recomputed from the privacy events
    document    reconstructed from its plan (`reconstruction`), and compared field by field
    release     hashes of all files; card and report rendered again, byte for byte; the model file
    signature   of `result.json`, if there is one

A forger who makes up all numbers of a run, and a consistent document from them, passes every check
except that of the signature.

A noisy count, or a sum of m noisy counts, is refused if noise of its size has a probability of at
most MAX_TAIL_PROBABILITY. Z is the noise of one count:

    P(Z_1 + ... + Z_m > t)  <=  min over u in (0, epsilon) of (E e^(u Z))^m e^(-u t)
    E e^(u Z)               =   (1 - a)^2 / ((1 - a e^u) (1 - a e^-u)),    a = e^-epsilon

Source: docs/verify.md (the meaning and limits of each check);
docs/guarantees/geometric-scores.md; Chernoff 1952.
"""

from __future__ import annotations

import io
import json
import math
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from pasearch import documents, results
from pasearch.accounting.accountants import PrivacyCost, price_partitions
from pasearch.accounting.calibration import COST_TOLERANCE
from pasearch.api.binding import list_versions
from pasearch.api.lifecycle import render_release_files
from pasearch.api.request import MAX_CATEGORIES
from pasearch.documents import check_fields, malformed_error, require_well_formed, short_repr
from pasearch.errors import PasearchError, UsageError
from pasearch.feature_effects import rank_model_effects
from pasearch.features.auto import choose_method
from pasearch.features.plan import FeaturePlan
from pasearch.files import MAX_JSON_BYTES, read_bytes
from pasearch.planning import ESTIMATE_DELTA, LEDGER_ESTIMATE_DELTA
from pasearch.registry import EXTENSION_NOTE
from pasearch.results import FEATURE_SELECTION
from pasearch.runs.cluster import Cluster
from pasearch.runs.keys import Keys
from pasearch.search import variants
from pasearch.search.auto import FIXED_OPTION, StrategyOption, choose_look_settings, rank_study
from pasearch.search.grid import Grid
from pasearch.search.plan import Plan
from pasearch.search.strategy import strategy_from_json
from pasearch.search.successive_halving import (
    ProtectedHalving,
    SuccessiveHalving,
    draw_distinct_genotypes,
    set_prior_leads,
)
from pasearch.spaces.portfolio import load_study
from pasearch.spaces.user_modules import ClassError, describe_changed_class
from pasearch.training.metrics import Metric
from pasearch.training.presets import PRESETS
from pasearch.training.recipe import Recipe
from pasearch.training.score_tables import read_table
from pasearch.verification.reconstruction import (
    Reconstruction,
    declared_schema,
    read_candidate,
    reconstruct,
)
from pasearch.verification.signing import (
    SIGNATURE_FILE,
    list_signature_problems,
    read_public_key,
)

Document = dict[str, Any]

MAX_LISTED_DIFFERENCES = 3
"""Maximum number of reported differences between two lists."""

MAX_RELEASES = 1_000_000
"""Maximum number of releases whose privacy cost is composed; no run has more."""

MAX_TAIL_PROBABILITY = 1e-12
"""Maximum probability that genuine noise exceeds the accepted range."""

BUILT_IN_SPACE_NAME = r"portfolio of \w+ networks"
"""Pattern of the names of built-in spaces."""

CHANGED_SPACE_SUFFIX = ", as your options change it"
"""End of the name of a built-in space if options changed settings of its candidates."""


def verify(path: str | Path, public: str | Path | None = None) -> tuple[PrivacyCost, list[str]]:
    """Check everything in a finished run's `release/` folder that can be recomputed.

    Args:
        path: Folder of the run, its `release/` folder, or a copy of it.
        public: File with the signer's public key; None requires no signature.

    Returns:
        The recomputed privacy cost, and one sentence for each disagreement; the list is empty if
        all checks pass. If the stated events differ from those of the plan, the cost is that of the
        plan. If no plan can be reconstructed, the cost is the stated one.

    Raises:
        UsageError: There is no result, it is malformed, `public` is not a key, or the class of its
            network is not imported or has changed.

    Cost: none, because it reads `release/` alone.

    Example:
        >>> from pasearch import Budget, train, verify
        >>> run = train("digits", budget=Budget(epsilon=2.0), steps=10)
        >>> price, disagreements = verify(run.path)
        >>> price == run.price, disagreements
        (True, [])
    """
    signer = None if public is None else read_public_key(public)
    release = results.find_release(path)
    file = release / "result.json"
    content = read_bytes(file, "a result", most=MAX_JSON_BYTES, follow=False)
    document = results.parse_document(content, file)
    check_fields(document, documents.VERIFY_FIELDS)
    of_features = document["task"] == FEATURE_SELECTION
    fields_of_task = documents.VERIFY_NETWORK_FIELDS
    check_fields(document, documents.VERIFY_FEATURE_FIELDS if of_features else fields_of_task)
    results.compose_events(document)  # refuses events of unknown types
    problems = []
    if content != (json.dumps(document, indent=2) + "\n").encode():
        problems.append(
            "result.json is not formatted by pasearch (a duplicate field, or other spaces)."
        )
    with np.errstate(all="ignore"):  # forged numbers may overflow
        try:
            with require_well_formed():
                _check_release_count(document)
                if changed := describe_changed_class(document):
                    raise ClassError(changed)
                again = reconstruct(document)
        except ClassError as error:
            raise UsageError(f"{path} cannot be verified here. {error}") from None
        except PasearchError as error:
            again, price = None, results.parse_price(document)
            problems += [f"the plan cannot be reconstructed, so no cost was computed: {error}"]
        else:
            if list_differences(again.document["events"], document["events"], "events"):
                with require_well_formed():
                    charged = {each["partition"] for each in document["events"]}
                    problems += _check_partitions(document, charged)
                price = again.plan.price
            else:
                price, found = check_price(document)
                problems += found
            problems += check_document(document, again)
        problems += check_files(release, document, None if again is None else again.plan)
    problems += list_signature_problems(release, signer, content)
    return price, list(dict.fromkeys(problems))


def _check_release_count(document: Document) -> None:
    """Refuse a document with more than `MAX_RELEASES` releases, whose composition would be slow."""
    counts: list[float] = [
        sum(each["count"] * _count_releases(each["event"]) for each in document["events"])
    ]
    if not document["dataset"]["declared_public"] and document["task"] != FEATURE_SELECTION:
        basis = document["plan"]
        steps = sum(each["steps"] for each in (*basis["recipes"], *basis["finals"]))
        counts.append(steps * max(1, strategy_from_json(basis["strategy"]).expected_trainings))
    if not max(counts) <= MAX_RELEASES:
        raise malformed_error(f"it has more than {MAX_RELEASES:,} releases, which no run has")


def _count_releases(event: Any) -> int:
    """Count the elementary releases in the plain values of an event."""
    inside = [*event.get("events", ()), *([event["event"]] if "event" in event else [])]
    if event.get("type") == "no-release":
        return 0
    return abs(event.get("count", 1)) * (sum(map(_count_releases, inside)) if inside else 1)


def check_price(document: Document) -> tuple[PrivacyCost, list[str]]:
    """Recompute the privacy cost from the stated events.

    Returns:
        The cost, and one sentence for each disagreement with the stated costs and the budget.

    Raises:
        UsageError: The events cannot be composed.
    """
    with require_well_formed():
        stated, budget = document["price"], document["budget"]
        price, by_partition = price_partitions(results.compose_events(document), stated["delta"])
    problems, shares = [], document["price_by_partition"]
    if not is_equal_rounded(stated["epsilon"], price.epsilon):
        problems.append(
            f"price.epsilon is {stated['epsilon']}, and the events cost {price.epsilon}."
        )
    if not price.epsilon <= budget["epsilon"] * (1 + COST_TOLERANCE):
        problems.append(
            f"the events cost epsilon {price.epsilon}, and the budget is {budget['epsilon']}."
        )
    if not stated["delta"] <= budget["delta"]:
        problems.append(f"price.delta {stated['delta']} exceeds the budget's {budget['delta']}.")
    if not stated["delta"] * document["dataset"]["n"] < 1:
        problems.append(f"price.delta {stated['delta']} is not below 1/n.")
    for name, share in by_partition.items():
        claimed = shares.get(name, {"epsilon": None})["epsilon"]
        if claimed is None or not is_equal_rounded(claimed, share.epsilon):
            problems.append(
                f"partition {short_repr(name)} states epsilon {claimed}, but costs {share.epsilon}."
            )
    for name in sorted(set(shares) - set(by_partition)):
        problems.append(f"partition {short_repr(name)} has a privacy cost but no events.")
    problems += _check_partitions(document, set(by_partition))
    return price, problems


def _check_partitions(document: Document, charged: set[str]) -> Iterator[str]:
    """Compare the partitions with records and those with events (`charged`)."""
    slots, n = document["dataset"]["slots"], document["dataset"]["n"]
    for name, size in slots.items():
        if not size > 0:
            yield f"dataset.slots.{short_repr(name)} is {size}: a partition has one record or more."
    if not sum(slots.values()) <= n:
        yield f"the partitions have more than {n} records together."
    for name in sorted(charged - set(slots)):
        yield f"partition {short_repr(name)} has events but no records."
    for name in sorted(set(slots) - charged):
        yield f"partition {short_repr(name)} has records but no events."
    for line in document["events"]:
        free = line["event"].get("type") == "no-release"
        if free and not document["dataset"]["declared_public"]:
            yield f"event {short_repr(line['name'])} releases private data without a privacy cost."


def check_document(document: Document, again: Reconstruction) -> list[str]:
    """List the differences from the reconstructed document, and values that no run can have."""
    try:
        with require_well_formed():
            problems = [*again.problems, *list_differences(again.document, document)]
            problems += _check_basis(document)
            if not list_differences(again.document["events"], document["events"]):
                problems += _check_ledger_total(document)
            score, plan = document["score"], again.plan
            if plan.test_metric.columns:
                problems += check_cells(score, plan.test_metric)
            else:
                most = plan.max_count_per_record
                reached = _max_noise(most, plan.test.epsilon)
                low, high = 0, score["of"] * most
                if "exact" in score:
                    low = high = round(plan.score_metric.to_share(score["exact"]) * high)
                if not low - reached <= score["points"] <= high + reached:
                    problems.append(
                        f"score.points is {score['points']}: its noise never reaches so far."
                    )
            problems += _check_auto(document)
            if document["task"] == FEATURE_SELECTION:
                problems += _check_choice(document, again)
            else:
                problems += _check_search(document, again)
    except PasearchError as error:
        return [f"the document cannot be compared with its plan: {error}"]
    return problems


def list_differences(again: Any, stated: Any, where: str = "") -> list[str]:
    """List the differences between a document and its reconstruction, except rounding errors.

    Args:
        again: Reconstructed value.
        stated: Value in the document.
        where: Path of the value in the document, such as `best.layers[0]`.
    """
    found: list[str] = []
    kinds = {type(again), type(stated)}
    if kinds == {dict}:
        for name in [*again, *(set(stated) - set(again))]:
            inside = f"{where}.{name}" if where else str(name)
            if name not in stated:
                found.append(f"{inside} is missing.")
            elif name not in again:
                found.append(f"{short_repr(inside)} is not a field of this result.")
            else:
                found += list_differences(again[name], stated[name], inside)
    elif kinds == {list} and len(again) != len(stated):
        found.append(f"{where} has {len(stated)} entries: expected {len(again)}.")
    elif kinds == {list}:
        for place, pair in enumerate(zip(again, stated, strict=True)):
            found += list_differences(*pair, f"{where}[{place}]")
        if more := found[MAX_LISTED_DIFFERENCES:]:
            found[MAX_LISTED_DIFFERENCES:] = [f"{where} differs in {len(more)} more places."]
    else:
        numbers = kinds in ({int, float}, {float})
        same = is_equal_rounded(stated, again) if numbers else len(kinds) == 1 and again == stated
        if not same:
            found.append(
                f"{where} is {short_repr(stated)}, and {short_repr(again)} follows from the rest."
            )
    return found


def is_equal_rounded(stated: float, recomputed: float) -> bool:
    """Check whether two numbers are equal up to rounding errors; NaN is not equal to anything."""
    return abs(stated - recomputed) <= COST_TOLERANCE * max(abs(recomputed), 1e-12)


def _check_basis(document: Document) -> Iterator[str]:
    """Check inputs of the plan that the reconstruction uses without comparing them."""
    basis = document["plan"]
    allowed = [ESTIMATE_DELTA if document["ledger"] is None else LEDGER_ESTIMATE_DELTA]
    if document["dataset"]["declared_public"]:
        allowed.append(LEDGER_ESTIMATE_DELTA)
    if not 2 <= basis["most_categories"] <= MAX_CATEGORIES:
        yield f"plan.most_categories is {basis['most_categories']}: no run has that."
    if basis["leak_share"] not in allowed:
        yield f"plan.leak_share is {basis['leak_share']}: no run has that."
    if basis.get("free_front_ends", False) != (
        document["searched_on"] is not None and document["task"] != FEATURE_SELECTION
    ):
        yield "plan.free_front_ends contradicts searched_on."
    wrote, own = document["versions"], list_versions()
    ours = {name for name, version in wrote.items() if not version.startswith(EXTENSION_NOTE)}
    listed = {*own, *([Cluster.name] if document.get("executor") == Cluster.name else [])}
    if wrote.get("pasearch") in (None, own["pasearch"]) and ours != listed:
        yield "versions differs from the list of this version."
    for name in ("searched_on", "validated_on"):
        if not isinstance(document[name], (str, type(None))):
            yield f"{name} is {short_repr(document[name])}: expected a name, or null."


def _check_ledger_total(document: Document) -> list[str]:
    """Check that the run fits the total budget of its shared ledger."""
    ledger = document["ledger"]
    if ledger is None:
        return []
    if set(ledger) != {"epsilon", "delta"}:
        return ["ledger has fields other than epsilon and delta."]
    # The ledger may have another delta than the run, so the cost is recomputed for this delta.
    together, _ = price_partitions(results.compose_events(document), ledger["delta"])
    if together.epsilon <= ledger["epsilon"] * (1 + COST_TOLERANCE):
        return []
    return ["the privacy cost exceeds the total of its shared ledger."]


def _check_auto(document: Document) -> list[str]:
    """Check that the automatic choice names what was run."""
    auto = document["auto"]
    if auto is None:
        return []
    check_fields(auto, {"chosen": documents.STRING, "why": documents.STRING, "expected": [{}]})
    if set(auto) != {"chosen", "why", "expected"}:
        return ["auto has fields other than chosen, why and expected."]
    name = document["strategy"]["name"]
    if document["task"] != FEATURE_SELECTION:
        chosen = auto["chosen"]
        ways = [
            f"{each.name}, {each.winner}"
            for each in (FIXED_OPTION, StrategyOption(name=ProtectedHalving.name))
        ]
        if chosen in ways and chosen.partition(",")[0] == name:
            return []
        return [f"auto.chosen is {short_repr(chosen)}, but {name!r} was run."]
    choice, schema = document["plan"]["choice"], declared_schema(document)
    asked = [("auto", "auto"), ("auto", choice["trainer"]), (name, "auto")]
    made = [choose_method(method, trainer, schema, choice["size"]) for method, trainer in asked]
    if (name, choice["trainer"], auto) in made:
        return []
    return ["auto is not the automatic choice for these data."]


def _check_search(document: Document, again: Reconstruction) -> Iterator[str]:
    """Check the space, the strategy, the trials and the winner of a run with networks."""
    plan: Any = again.plan
    best, trials = document["best"], document.get("trials")
    plain = read_candidate(best).to_json()
    yield from check_built_in_space(document, plan)
    yield from check_recipe_names(document["plan"]["recipe_names"])
    if not plan.strategy.scored and document["plan"]["score_epsilon"] is not None:
        yield "plan.score_epsilon is given, but nothing is scored."
    yield from check_strategy(document, plan)
    if not plan.space.contains(read_candidate(best)):
        yield "best is not a candidate of the space."
    picked: tuple[Any, ...] = (None,)
    if plan.pick is not None:
        picked = variants.list_variant_names(plan.score_metric, plan.schema.outputs)
    if document.get("variant") not in picked:
        yield f"variant is {short_repr(document.get('variant'))}, which is not in the plan."
    made = document["recipe"].get("steps_made", 0)
    if not 0 <= made <= document["recipe"]["steps"]:
        yield f"recipe.steps_made is {made}: the plan has {document['recipe']['steps']}."
    if document["dataset"]["declared_public"] and plan.strategy.scored:
        compared = document.get("compared")
        if compared is None:
            yield "compared is missing: a search on public data is compared with one training."
        else:
            this = {"name": plan.strategy.name, **document["score"]}
            fixed = {**compared["fixed"], "name": "fixed"}
            fixed |= {each: document["score"][each] for each in ("metric", "of")}
            yield from list_differences(this, compared["this"], "compared.this")
            yield from list_differences(fixed, compared["fixed"], "compared.fixed")
    if trials is None:
        return
    planned = plan.strategy.trials
    if len(trials) != planned:
        yield f"trials has {len(trials)} entries, and {planned} were planned."
        return
    low, high = _score_count_range(plan)
    known: dict[str, Any] = {}
    for place, trial in enumerate(trials):
        if not plan.space.contains(read_candidate(trial["parameters"])):
            yield f"trials[{place}] is not a candidate of the space."
        value = trial["noisy_correct"]
        if value is not None and not (type(value) is int and low <= value <= high):
            yield f"trials[{place}].noisy_correct is {short_repr(value)}: no trial has that."
        if known.setdefault(repr(trial["parameters"]), value) != value and plan.strategy.memoised:
            yield f"trials[{place}] has another score count than an equal trial."
    points = [each["noisy_correct"] for each in trials]
    scores = [-math.inf if each is None else float(each) for each in points]  # None: failed trial
    if isinstance(plan.strategy, Grid):
        yield from check_grid(plan, [each["parameters"] for each in trials])
    if isinstance(plan.strategy, SuccessiveHalving):
        yield from check_low_budget_trials(plan, [each["parameters"] for each in trials], scores)
    winners = plan.strategy.possible_winners(scores)
    if plain not in [trials[place]["parameters"] for place in winners]:
        yield "best is not the trial that the strategy selects by these score counts."


def _max_noise(most: int, epsilon: float) -> int:
    """Return the maximum plausible noise of a count; a record contributes `most` at most."""
    return math.ceil(-math.log(MAX_TAIL_PROBABILITY) * most / epsilon)


def _score_count_range(plan: Any) -> tuple[float, float]:
    """Return the minimum and maximum plausible noisy score count of a trial."""
    if plan.score is None:
        return 0, 0
    most = plan.ranking_metric.max_points
    reach = _max_noise(most, plan.score.epsilon) if plan.ranking_metric.is_sum else 0
    return -reach, plan.score_slots * most + reach


def _check_choice(document: Document, again: Reconstruction) -> Iterator[str]:
    """Check the selected features against the method and its released values."""
    plan: Any = again.plan
    choice, best = plan.choice, document["best"]
    count, every = len(best["places"]), best["of"]
    selector = choice.selector
    if selector.uses_merit:  # the features were selected by these released numbers
        relevances = [each["uncertainty"] for each in document["relevance"]]
        if not all(0 <= each <= 1 for each in [*relevances, document["relevance_of_noise"]]):
            yield "relevance and relevance_of_noise must be in [0, 1]."
        if not 0 <= best["merit"] <= math.sqrt(count):
            yield f"best.merit is {short_repr(best['merit'])}: no set has that."
        greedy = document["strategy"]["name"] == "cfs-greedy"
        if greedy and relevances[best["places"][0]] < max(relevances):
            yield "best does not begin with the most relevant feature."
    wanted = selector.count_selected(every)
    if wanted is not None and count != wanted:
        yield f"best has {count} features, but the method selects {wanted}."
    directions = selector.count_components(every)
    if best["directions"] != directions:
        yield f"best.directions is {short_repr(best['directions'])}: expected {directions}."
    if (best["merit"] is not None) != selector.uses_merit:
        yield "best.merit is only for methods that select by merit, such as cfs-greedy."
    if selector.shows_trials:
        trials, planned = document["trials"], selector.trainings
        trained = [tuple(each["features"]) for each in trials]
        if not 1 <= len(trained) <= planned:
            yield f"trials has {len(trained)} entries, and at most {planned} were planned."
        if len(set(trained)) != len(trained):
            yield "trials has a set of features twice."
        low, high = _score_count_range(plan)
        for place, value in enumerate(each["noisy_correct"] for each in trials):
            if plan.score is not None and not low <= value <= high:
                yield f"trials[{place}].noisy_correct is {short_repr(value)}: no trial has that."
        highest = max(each["noisy_correct"] for each in trials)
        winners = [each["features"] for each in trials if each["noisy_correct"] == highest]
        if best["features"] not in winners:
            yield "best is not the set with the highest score count."
    sets = selector.candidate_sets(plan.schema)
    if sets is not None and best["places"] not in [np.flatnonzero(s).tolist() for s in sets]:
        yield "best is not one of the sets that the method compares."


# --- parameters of the strategy that the plan, the space and the study determine


def check_strategy(document: Document, plan: Any) -> Iterator[str]:
    """Check the parameters of the strategy that no option sets.

    They must equal the values computed from the space, the plan and the study on public data.
    """
    strategy = plan.strategy
    if strategy.within(plan.space) != strategy:
        yield "plan.strategy has another number of candidates than the space."
    insured = isinstance(strategy, ProtectedHalving)
    follows = ["distinct", "returns", "trust", "handicaps", "least"]  # options, or checked below
    follows += ["looks", "scores"] if insured else []
    if odd := [name for name in strategy.changed_settings() if name not in follows]:
        yield f"plan.strategy.{odd[0]} differs from its default, and no option sets it."
    if not insured:
        return
    declared = declared_schema(document)
    public = declared, plan.budget, plan.split.n, plan.most
    study = rank_study(declared, plan.name, *public[1:])
    bare = replace(
        plan, schema=declared, strategy=replace(strategy, trust=1.0, handicaps=None, least=0.0)
    )
    # A space of the user may have the name of a built-in one.
    ways = [False]
    own = [each.architecture for each in study.entries[: strategy.candidates]]
    if re.fullmatch(f"{BUILT_IN_SPACE_NAME}({CHANGED_SPACE_SUFFIX})?", plan.space.name) and own == [
        each.architecture for each in plan.space.entries[: strategy.candidates]
    ]:
        ways = [True, False]

    def is_consistent(ours: bool) -> bool:
        shares = choose_look_settings(study, *public, ours=ours)
        own = {name: getattr(strategy, name) for name in shares}
        return own == shares and set_prior_leads(bare, study, ours=ours).strategy == strategy

    if not any(map(is_consistent, ways)):
        yield (
            "looks, scores, trust, handicaps or least of plan.strategy do not follow from the plan "
            "and the study."
        )


def check_low_budget_trials(
    plan: Any, trials: list[Document], scores: list[float]
) -> Iterator[str]:
    """Check which candidates each successive-halving round evaluated.

    Args:
        plan: Reconstructed plan.
        trials: Parameters of all trials, in order.
        scores: Noisy score count of each trial, -inf if it failed.
    """
    space, strategy = plan.space, plan.strategy
    assert isinstance(strategy, SuccessiveHalving)
    first = trials[: strategy.candidates]
    if first[0] != space.candidate(space.default_genotype()).to_json():
        yield "trials[0] is not the default candidate, which is evaluated first."
    if len(space.sizes) == 1 or space.count() <= strategy.candidates:
        stream = Keys.from_seed(0).stream("unused")  # small spaces are enumerated, not sampled
        every = draw_distinct_genotypes(space, strategy.candidates, stream)
        if first != [space.candidate(each).to_json() for each in every]:
            yield "trials are not the candidates of the first round."
    climbed = [place for rung in strategy.trace_rounds(scores) for place in rung]
    if trials != [first[place] for place in climbed]:
        yield "trials of later rounds are not the better ones of the round before."


def check_grid(plan: Any, trials: list[Document]) -> Iterator[str]:
    """Check that strategy grid trained every candidate at every noise level, in order."""
    space, strategy = plan.space, plan.strategy
    stream = Keys.from_seed(0).stream("unused")  # small spaces are enumerated, not sampled
    level = [
        space.candidate(each).to_json()
        for each in draw_distinct_genotypes(space, strategy.candidates, stream)
        for _ in range(strategy.repeats)
    ]
    if trials != level * len(strategy.shares):
        yield "trials are not every model at every level of the grid."


def check_built_in_space(document: Document, plan: Plan) -> list[str]:
    """Check that a space with the name of the built-in portfolio is that portfolio."""
    own, name = load_study(plan.schema, plan.name).portfolio(), document["space"]["name"]
    if not re.fullmatch(f"{BUILT_IN_SPACE_NAME}({CHANGED_SPACE_SUFFIX})?", name):
        return []
    settled = name.endswith(CHANGED_SPACE_SUFFIX)

    def sort_entries(space: Any) -> list[str]:  # the order of entries depends on the signal
        every = [each.to_json() for each in getattr(space, "entries", ())]
        if settled:
            every = [{**each, "settings": None} for each in every]
        return sorted(json.dumps(each, sort_keys=True) for each in every)

    if (
        sort_entries(plan.space) == sort_entries(own)
        and name.removesuffix(CHANGED_SPACE_SUFFIX) == own.name
    ):
        return []
    return [f"space is named {short_repr(name)}, but is not this version's space for such data."]


def check_recipe_names(names: Sequence[str]) -> Iterator[str]:
    """Check that names of recipes are those that pasearch writes, because the report has them."""
    field = "|".join(sorted((*(each.name for each in fields(Recipe)), "bounding", "preset")))
    law = r"[a-z-]+(?::[0-9.e+-]+)?"
    noise = (
        rf"; noise (?:search|{law})"
        rf"(?:, of the least error at equal price \(next: {law}, [0-9.]+ times\))?"
    )
    presets = "|".join(re.escape(f"{name}: {each.about}") for name, each in PRESETS.items())
    changed = rf"(?:{presets})(?:; changed: (?:{field})(?:, (?:{field}))*)?"
    other = rf"(?:{'|'.join(PRESETS)}), but for its (?:{field})(?: and (?:{field}))*"
    for name in names:
        if not re.fullmatch(rf"(?:{changed}|{other})?(?:{noise})?", name):
            yield f"plan.recipe_names has {short_repr(name)}, which is not the name of a recipe."


# --- the table of test counts


def flatten_cells(rows: Sequence[Sequence[int]]) -> list[int]:
    """Concatenate the rows of a matrix."""
    return [each for row in rows for each in row]


def noise_reach(cells: int, epsilon: float, often: float = MAX_TAIL_PROBABILITY) -> int:
    """Return the maximum plausible absolute noise of the sum of several counts.

    Args:
        cells: Number of counts in the sum.
        epsilon: Epsilon of the noise of each count.
        often: Probability that the noise is larger.
    """
    u = epsilon * np.linspace(0.001, 0.999, 999)
    both = -np.expm1(u - epsilon) * -np.expm1(-u - epsilon)
    grown = 2 * math.log(-math.expm1(-epsilon)) - np.log(both)
    return math.ceil(float(np.min((cells * grown - math.log(often / 2)) / u)))


def check_cells(score: dict[str, Any], metric: Metric) -> Iterator[str]:
    """Check a noisy table of test counts: its entries and their sum.

    Args:
        score: Field `score` of `result.json`.
        metric: Metric of the test, which is computed from the table.
    """
    table, epsilon = read_table(score), float(score["noise"]["epsilon"])
    if table is None:
        yield "score has no noisy confusion matrix, but the plan's test releases one."
        return
    of, counts = score["of"], flatten_cells(score["cells"])
    alone = noise_reach(1, epsilon, MAX_TAIL_PROBABILITY / len(counts))
    together = noise_reach(len(counts), epsilon)
    if not all(-alone <= each <= of + alone for each in counts):
        yield "score.cells has a count beyond the range of the noise."
    if not -together <= sum(counts) <= of + together:
        yield f"score.cells has {sum(counts)} records in total, but the test has {of}."
    if "exact" in score and metric.name == "accuracy":
        # For public data, the exact number of correct predictions is released too.
        exact, right = round(score["exact"] * score["of"]), int(table.is_correct.sum())
        if not abs(score["points"] - exact) <= noise_reach(right, epsilon):
            yield f"score.points is {score['points']}: its noise never reaches so far."


# --- the files


def check_files(
    release: Path, document: Document, plan: Plan | FeaturePlan | None
) -> Iterator[str]:
    """Check every file in `release/`: hashes, rendered texts and the bytes of the model.

    Args:
        release: Folder with the files.
        document: Content of `result.json`.
        plan: Reconstructed plan; None if there is none.
    """
    listed, model = document["files"], results.model_file_name(document)
    wanted = {"privacy-card.md", "privacy-card.json", "report.html", model}
    yield from (f"files does not list {name}." for name in sorted(wanted - set(listed)))
    yield from (
        f"files lists {short_repr(name)}: no run has that." for name in set(listed) - wanted
    )
    for each in sorted(release.iterdir()):
        if each.name not in {*wanted, "result.json", SIGNATURE_FILE}:
            yield f"{short_repr(each.name)} is in the folder, but no run writes it."
    contents: dict[str, bytes | None] = {}
    for name in sorted(wanted):
        content = None
        try:
            about = (release / name).lstat()
            if stat.S_ISREG(about.st_mode) and about.st_size <= results.MAX_MODEL_BYTES:
                content = read_bytes(
                    release / name, "a file of a run", most=results.MAX_MODEL_BYTES, follow=False
                )
        except (OSError, UsageError):
            pass
        contents[name] = content
        if content is None:
            yield f"{name} is missing, not a regular file, or too large."
        elif name in listed and results.compute_digest(content) != listed[name]:
            yield f"{name} does not have the hash in result.json."
    try:
        with require_well_formed():
            texts = render_release_files(document)
    except UsageError as error:
        yield f"card and report cannot be rendered again: {error}"
        texts = {}
    wrote, own = document["versions"].get("pasearch"), list_versions()["pasearch"]
    note = (
        f" It was written by pasearch {short_repr(wrote)}, and this is {own}: verify it with that "
    )
    other = "" if wrote == own else f"{note}version."
    for name, text in texts.items():
        if contents[name] is not None and contents[name] != text.encode():
            yield f"{name} does not follow from result.json.{other}"
    weights = contents[model]
    if document["model"]["sha256"] != listed.get(model):
        yield "model.sha256 and files do not agree."
    if weights is None:
        return
    try:
        with require_well_formed():
            if document["task"] == FEATURE_SELECTION:
                problems = _check_feature_weights(document, weights)
            else:
                problems = [*_check_network_file(document, weights, plan)]
            problems = problems or list_differences(
                rank_model_effects(document, weights) or None, document.get("effects"), "effects"
            )
    except UsageError as error:
        problems = [str(error)]
    yield from problems


def _check_network_file(
    document: Document, weights: bytes, plan: Plan | FeaturePlan | None
) -> Iterator[str]:
    """Check that the file has the weights of the described network, and nothing else."""
    import torch

    state, again = results.build_network(document, weights).state_dict(), io.BytesIO()
    torch.save(state, again)
    if again.getvalue() != weights:
        wrote, own = document["versions"].get("torch"), list_versions()["torch"]
        other = "" if wrote == own else f" torch {short_repr(wrote)} wrote it, and this is {own}."
        yield f"model.pt contains more than its network.{other}"
    if plan is not None and not all(bool(each.isfinite().all()) for each in state.values()):
        # The network of a failed training is released, but counts as wrong on all records.
        reach = _max_noise(plan.max_count_per_record, plan.test.epsilon)
        cells = flatten_cells(document["score"].get("cells") or [[document["score"]["points"]]])
        if max(cells) > reach:
            yield "model.pt has non-finite weights but a score above the noise."


def _check_feature_weights(document: Document, weights: bytes) -> list[str]:
    """Check that the file has finite weights of the selected features, and nothing else."""
    from pasearch.features.model import load_model, pack_model

    best, schema = document["best"], results.restore_schema(document)
    model = load_model(schema, document["model"], weights)
    found = model.weights
    if found.dtype != np.float64 or pack_model(found, model.intercept) != weights:
        return ["model.npz contains more than its weights."]
    if not (np.isfinite(found).all() and np.isfinite(model.intercept).all()):
        return ["model.npz has non-finite weights."]
    if found.shape[1] != best["of"]:
        return [f"model.npz has {found.shape[1]} features, and best.of is {best['of']}."]
    chosen = np.zeros(best["of"], bool)
    chosen[best["places"]] = True
    return ["model.npz uses features that were not selected."] if found[:, ~chosen].any() else []
