"""Resolution of a search request into a plan: recipes, public data, networks, strategy.

    request  ->  recipes  ->  public data  ->  network or space  ->  strategy  ->  plan

Source: docs/rules.md, rules 1 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pasearch.accounting.checks import check_positive_integer
from pasearch.accounting.densities import Density, GaussianNoise
from pasearch.api.lifecycle import Prepared
from pasearch.api.request import SearchRequest
from pasearch.api.resolve import (
    assume_public,
    choose_device,
    load_public_data,
    make_plan_terms,
    make_request_split,
)
from pasearch.crossover.curves import parse_epsilon_grid
from pasearch.data.column import FIRST_WORD_TOKEN
from pasearch.data.partitions import Dataset
from pasearch.data.split import Split
from pasearch.data.tables import AnySchema
from pasearch.errors import UsageError
from pasearch.planning import bound_network_form
from pasearch.search.auto import (
    FIXED_OPTION,
    StrategyOption,
    choose_look_settings,
    choose_strategy,
    rank_study,
)
from pasearch.search.grid import (
    DEFAULT_REPEATS,
    Grid,
    convert_epsilons_to_shares,
    make_default_shares,
)
from pasearch.search.names import ALIASES
from pasearch.search.plan import RECIPE_SETTING, Plan, make_plan
from pasearch.search.proxy import Proxy
from pasearch.search.strategy import Strategy, make_strategy
from pasearch.search.successive_halving import ProtectedHalving, set_prior_leads
from pasearch.spaces.candidate import Candidate, read_candidate
from pasearch.spaces.parsing import make_space as named_space
from pasearch.spaces.portfolio import Study
from pasearch.spaces.space import Portfolio, SearchSpace, Space, check_settings
from pasearch.training.presets import find_preset, read_recipe, resolve_preset, stretch_schedule
from pasearch.training.recipe import Recipe, make_default_recipe
from pasearch.training.settings import make_full_batch_settings

TUNING_FIELDS = {"expected_batch_size", "steps", "learning_rate", "average"}
"""Fields of a recipe that tune it without changing its method."""

OVERRIDING_FIELDS = {
    "learning_rate": "learning_rate", "learning_rate_scale": "learning_rate",
    "learning_rate_growth": "learning_rate", "learning_rate_most": "learning_rate",
    "steps": "steps", "steps_scale": "steps", "batch_share": "expected_batch_size",
    "average": "average", "clip_norm": "bounding", "momentum": "momentum",
    "batch": "expected_batch_size", "weight_decay": "weight_decay",
    "learning_rate_end": "learning_rate_schedule",
}  # fmt: skip
"""Recipe field that, if the user sets it, replaces each setting of a portfolio entry."""

GIVEN_SPACE_NAME = "given"  # name of the space of one given architecture

PUBLIC_WINNER_NAME = "found on public data"
"""Name of the space of the single candidate that a search on public data found."""

PRIVATE_QUERIES = 20
"""Approximate number of private validation queries of a screened training; each costs epsilon.
Without effect if the recipe sets `every`, or if the validation records are public.
"""

PAPER_STRATEGIES = {"paas-paper": {"strategy": "paas", "score_epsilon": 0.02, "returns": "last"}}
"""Strategies with a paper's settings (Bao et al., IX-A): the strategy, epsilon of a score, and
the generation whose best candidate is returned."""

STRATEGY_SETTINGS = (
    "candidates", "generations", "law", "max_candidates", "returns", "rungs", "eps_grid", "repeats",
)  # fmt: skip
"""Options of a request that a strategy may take."""


@dataclass(frozen=True, kw_only=True)
class PlannedSearch(Prepared[Plan]):
    """A search, or the training of one network, with its calibrated plan.

    Args:
        given: Network that the user gave, before recipes changed it; None if there is none.
    """

    given: Candidate | None = None


def expand_request(request: SearchRequest) -> SearchRequest:
    """Read the recipes of a request, and replace aliases and paper strategies by their meaning."""
    settings: dict[str, Any] = {"strategy": ALIASES.get(request.strategy, request.strategy)}
    settings |= PAPER_STRATEGIES.get(request.strategy, {})
    for name in ("score_epsilon", "returns"):
        if name in settings and getattr(request, name) is not None:
            raise UsageError(
                f"`strategy={request.strategy}` has the paper's value of `{name}=`: leave it out, "
                "or use `strategy=paas`."
            )
    return replace(request, **settings, recipe=[read_recipe(each) for each in request.recipes])


def prepare_search(asked: SearchRequest, dataset: Dataset) -> PlannedSearch:
    """Resolve a request into a search with a calibrated plan; no private value is read."""
    request = expand_request(asked)
    if request.crossover and not dataset.public:  # measured on private records by a grid
        if request.strategy not in ("auto", Grid.name):
            raise UsageError(
                "`crossover=` on private records requires strategy grid, but the request has "
                f"`strategy={request.strategy}`: leave one of them out."
            )
        request = replace(request, strategy=Grid.name)
    searched_on, validated_on, assumed = None, None, ()
    if request.search_on is not None:
        if request.strategy not in ("auto", "fixed"):
            raise UsageError(
                "`search_on=` searches on public data and trains once, so "
                f"`strategy={request.strategy}` cannot be used: leave it out."
            )
        _check_auto_options(request)
        source = str(request.search_on)
        searched_on, dataset, assumed = load_public_data("search_on", source, request, dataset)
    if request.assume_public_schema or dataset.public:
        dataset, read = assume_public(dataset, request.max_categories)
        assumed = (*assumed, *read)
    has_queries = _has_private_queries(replace(request, validate_on=None))
    if request.validate_on is not None:
        if not has_queries:
            raise UsageError(
                "`validate_on=` names public records for the validation queries of a recipe, but "
                "this recipe makes none: leave it out, or use sa-dpsgd or dynamic-validation."
            )
        source = str(request.validate_on)
        validated_on, dataset, read = load_public_data("validate_on", source, request, dataset)
        assumed = (*assumed, *read)
    study = partial(_rank_study, request, dataset)
    request, space, given = _resolve_networks(request, study, dataset.schema.regression)
    space = _match_vocabulary(space, dataset.schema)
    names = [_describe_recipe(each) for each in request.recipes]
    ours = _is_portfolio(request, space)
    if request.strategy == Grid.name and ours:  # three models of the built-in portfolio
        assert isinstance(space, Portfolio)
        form = bound_network_form(dataset.schema, request.max_categories)
        sizes = [each.parameters(*form)[0] for each in space.entries]
        places = dict.fromkeys((0, sizes.index(min(sizes)), sizes.index(max(sizes))))
        space = Portfolio(
            name=f"default, simplest and largest of the {space.name}",
            entries=tuple(space.entries[place] for place in places),
        )
    request, ranked = _resolve_noise_distribution(request, dataset, space)
    assembled = partial(assemble_plan, request, dataset, assumed)
    auto = None
    if searched_on is not None:
        if given is not None:
            raise UsageError(
                "`search_on=` searches for a network, but `architecture=`, several recipes, or a "
                "recipe that changes the network determine it: leave one of them out."
            )
        if has_queries:
            raise UsageError(
                "`search_on=` trains on the public data, where a recipe with validation queries "
                "has no validation records: use another recipe, or leave `search_on=` out."
            )
        if space.name != PUBLIC_WINNER_NAME:
            plan = assembled(space, FIXED_OPTION, free_front_ends=True)
            best = Proxy(dataset=searched_on).find_best(plan, space, device=choose_device(request))
            space = Portfolio(name=PUBLIC_WINNER_NAME, entries=(best,))
        plan = assembled(space, FIXED_OPTION, free_front_ends=True)
        plan = replace(plan, searched_on=searched_on.name)
    elif request.strategy == "auto":
        _check_auto_options(request)
        choice = choose_strategy(
            study() if ours else None, partial(assembled, space), count=space.count(),
            device=choose_device(request),
        )  # fmt: skip
        plan, auto = choice.plan, choice.to_json()
    else:
        plan = assembled(space, None)
    if isinstance(plan.strategy, ProtectedHalving):
        plan = set_prior_leads(plan, study(), ours=ours)
    return PlannedSearch(
        request=asked,
        dataset=dataset,
        plan=replace(plan, auto=auto, recipe_names=tuple(name + ranked for name in names)),
        searched_on=searched_on,
        validated_on=validated_on,
        given=given,
    )


def _describe_recipe(recipe: Mapping[str, Any]) -> str:
    """Describe a recipe for the plan: name, purpose and changed fields; empty for the default."""
    name = _preset_name(recipe)
    own = sorted(set(recipe) - {"preset"})
    if name == "default" and not own:
        return ""
    if not TUNING_FIELDS.issuperset(own):
        return f"{name}, but for its {' and '.join(own)}"
    changed = f"; changed: {', '.join(own)}" if own else ""
    return f"{name}: {find_preset(name).about}{changed}"


def _preset_name(recipe: Mapping[str, Any]) -> str:
    """Return the name of the preset that a recipe is based on."""
    return recipe.get("preset", "default")


def _resolve_networks(
    request: SearchRequest, study: Callable[[], Study], regression: bool
) -> tuple[SearchRequest, Space, Candidate | None]:
    """Resolve the networks of a request.

    Options of the request take precedence over the settings of a portfolio entry.

    Returns:
        The request; its space, with the changes that recipes make to a network; and the single
        network before these changes, None if a space is searched.
    """
    presets = [find_preset(_preset_name(each)) for each in request.recipes]
    several = len(presets) > 1
    changing = any(each.activation or each.trained_last or each.full_batches for each in presets)
    settled = partial(_apply_overrides, request=request, regression=regression)

    def entries_of(portfolio: Portfolio, *, apart: bool) -> tuple[Candidate, ...]:
        """Return the entries; on disjoint subsets, only those without a fitted front end."""
        free = tuple(each for each in portfolio.entries if not each.front_end.fitted)
        return free if apart and free else portfolio.entries

    if request.architecture is None and not changing and not several:
        if request.space != "auto":
            return request, named_space(request.space), None
        portfolio = study().portfolio()
        entries = entries_of(portfolio, apart=request.strategy == "portions")
        own = tuple(settled(each, request.recipes[0]) for each in entries)
        unchanged = own == portfolio.entries
        name = portfolio.name if unchanged else f"{portfolio.name}, as your options change it"
        return request, Portfolio(name=name, entries=own), None
    strategy = "portions" if several else "fixed"
    if request.strategy not in ("auto", strategy) or request.space != "auto":
        recipe = f"The recipe {request.recipes[0].get('preset')} changes"
        what = "`architecture=` gives" if request.architecture is not None else recipe
        raise UsageError(
            "Several recipes are compared on one network, each trained on a disjoint subset of the "
            "records: leave `strategy=` and `space=` out, or give one recipe."
            if several
            else f"{what} one network, so nothing is searched: leave `strategy=` and `space=` out, "
            "or take another recipe."
        )
    if request.architecture is None:
        candidate = entries_of(study().portfolio(), apart=several)[0]
    else:
        candidate = read_candidate(request.architecture)
        check_settings({name: each for name, each in candidate.settings if name != RECIPE_SETTING})
    entries = []
    for number, (recipe, preset) in enumerate(zip(request.recipes, presets, strict=True)):
        network = candidate.architecture
        if preset.activation:
            network = network.with_activation(preset.activation)
        if preset.trained_last:
            network = network.train_last(preset.trained_last)
        own = settled(replace(candidate, architecture=network), recipe)
        marked = ((RECIPE_SETTING, float(number)),) if number else ()
        entries.append(replace(own, settings=(*own.settings, *marked)))
    if several and request.candidates not in (None, len(presets)):
        raise UsageError(
            f"`candidates={request.candidates:g}`: {len(presets)} recipes are as many candidates: "
            "leave it out."
        )
    count = float(len(presets)) if several else request.candidates
    chosen = Portfolio(name=GIVEN_SPACE_NAME, entries=tuple(entries))
    return replace(request, strategy=strategy, candidates=count), chosen, candidate


def _apply_overrides(
    candidate: Candidate, recipe: Mapping[str, Any], *, request: SearchRequest, regression: bool
) -> Candidate:
    """Remove the settings of a candidate that an option or a recipe of the user replaces.

    A network that the user gave keeps all settings. The settings for full batches belong together:
    a recipe with another preset removes all of them.
    """
    preset, own = _preset_name(recipe), dict(candidate.settings)
    if find_preset(preset).full_batches:
        own = dict(make_full_batch_settings(regression))
    elif request.architecture is not None:
        return candidate
    elif "batch_share" in own and preset != "default":
        own = {}
    options = {
        "steps": request.steps, "expected_batch_size": request.batch,
        "learning_rate": request.learning_rate,
    }  # fmt: skip
    said = {*recipe, *(name for name, value in options.items() if value is not None)}
    kept = tuple(
        (name, value) for name, value in own.items() if OVERRIDING_FIELDS[name] not in said
    )
    return replace(candidate, settings=kept)


def _resolve_noise_distribution(
    request: SearchRequest, dataset: Dataset, space: Space
) -> tuple[SearchRequest, str]:
    """Set the noise distribution of all recipes; return the request and a phrase for the plan."""
    if request.noise is None:
        return request, ""
    from pasearch.training.encoded.noise_search import (
        SEARCH_NOISE_OPTION,
        format_density_name,
        parse_density,
    )

    if not isinstance(request.noise, str):
        raise UsageError(f"noise is {request.noise!r}: expected a name, such as 'student-t:9'.")
    law = None if request.noise == SEARCH_NOISE_OPTION else parse_density(request.noise)
    bounds = [resolve_preset(each).get("bounding") for each in request.recipes]
    if not all(bound is not None and bound.limits_coordinates for bound in bounds):
        raise UsageError(
            f"`noise={request.noise}`: the distribution of the noise can be chosen only if each "
            "coordinate of a gradient is bounded: use `recipe=encoded-gaussian`."
        )
    why = f"; noise {request.noise}"
    if law is None:
        law, why = _search_noise(request, dataset, space)
    chosen = None if format_density_name(law) == GaussianNoise.name else law.unit.to_json()
    return replace(request, recipe=[{**each, "noise": chosen} for each in request.recipes]), why


def _search_noise(request: SearchRequest, dataset: Dataset, space: Space) -> tuple[Density, str]:
    """Return the noise distribution with the least error, and a phrase that compares the next."""
    from pasearch.training.encoded.gradients import EncodedClipping
    from pasearch.training.encoded.noise_search import format_density_name, rank_densities

    if dataset.schema.undeclared:
        raise UsageError(
            "`noise=search` depends on the number of parameters, which is unknown without a "
            "declared schema: declare the schema, or leave `noise=` out."
        )
    once = replace(request, search_share=0.0)
    slots = _make_split(once, dataset, make_strategy("fixed")).train
    recipe = _make_recipe(request, request.recipes[0], slots)
    form = bound_network_form(dataset.schema, request.max_categories)
    assert isinstance(recipe.bounding, EncodedClipping)
    found = rank_densities(
        dimension=space.candidate(space.default_genotype()).parameters(*form)[1],
        sampling_probability=recipe.sampling_probability(slots),
        steps=recipe.steps,
        budget=request.total.resolve(dataset.n),
        bounding=recipe.bounding,
    )
    best, name = found[0], format_density_name(found[0].density)
    second = next(each for each in found if format_density_name(each.density) != name)
    rival = format_density_name(second.density)
    return best.density, (
        f"; noise {name}, of the least error at equal price (next: {rival}, "
        f"{second.l1 / best.l1:.3f} times)"
    )


def assemble_plan(
    request: SearchRequest, dataset: Dataset, assumed: tuple[str, ...], space: Space,
    option: StrategyOption | None, *, free_front_ends: bool = False,
) -> Plan:  # fmt: skip
    """Make the plan of a request.

    Args:
        request: Resolved request.
        dataset: Data set of the run.
        assumed: Names of items that were read without a charge.
        space: Search space.
        option: Strategy with settings that replace those of the request; None: the request's.
        free_front_ends: Whether front ends are fitted on public data, at no cost.
    """
    name, total = request.strategy, request.total.resolve(dataset.n)
    settings: dict[str, Any] = {each: getattr(request, each) for each in STRATEGY_SETTINGS}
    if name == Grid.name:
        repeats = check_positive_integer(
            "repeats", DEFAULT_REPEATS if request.repeats is None else request.repeats
        )
        points = space.count() * repeats  # number of trainings at each epsilon
        settings["eps_grid"] = (
            make_default_shares(points)
            if request.eps_grid is None
            else convert_epsilons_to_shares(parse_epsilon_grid(request.eps_grid), total, points)
        )
    if option is not None:
        name, settings = option.name, dict(option.settings)
    strategy = make_strategy(name, **settings).within(space)
    if isinstance(strategy, ProtectedHalving):
        known = (
            _rank_study(request, dataset), dataset.schema, total, dataset.n, request.max_categories,
        )  # fmt: skip
        strategy = replace(
            strategy, **choose_look_settings(*known, ours=_is_portfolio(request, space))
        )
    return make_plan(
        make_plan_terms(request, dataset, _make_split(request, dataset, strategy), assumed),
        strategy=strategy,
        space=space,
        make_recipes=lambda slots: tuple(_make_recipe(request, e, slots) for e in request.recipes),
        score_epsilon=request.score_epsilon if strategy.scored else None,
        free_front_ends=free_front_ends,
        validated_on=None if request.validate_on is None else Path(request.validate_on).stem,
        picks=_selects_variant(request, dataset, strategy),
    )


def _match_vocabulary(space: Space, schema: AnySchema) -> Space:
    """Size the embeddings of a space by a declared vocabulary, unless the space states a size."""
    columns = getattr(schema, "columns", ())
    known = [each.vocabulary for each in columns if each.length and each.vocabulary is not None]
    if not (known and isinstance(space, SearchSpace) and space.family == "rnn"):
        return space
    if "tokens" in space.genes:
        return space
    tokens = ("tokens", (FIRST_WORD_TOKEN + len(known[0]),))
    return replace(space, choices=(tokens, *space.choices))


def _is_portfolio(request: SearchRequest, space: Space) -> bool:
    """Check whether the space is the built-in portfolio."""
    return request.space == "auto" and space.name not in (GIVEN_SPACE_NAME, PUBLIC_WINNER_NAME)


def _rank_study(request: SearchRequest, dataset: Dataset) -> Study:
    """Return the study on public data, with its models ranked for this data set and budget."""
    budget = request.total.resolve(dataset.n)
    return rank_study(dataset.schema, dataset.name, budget, dataset.n, request.max_categories)


def _check_auto_options(request: SearchRequest) -> None:
    """Refuse options of a single strategy if the strategy is chosen automatically."""
    names = (
        "candidates", "generations", "law", "max_candidates", "search_share", "score_epsilon",
        "returns", "rungs", "eps_grid", "repeats",
    )  # fmt: skip
    given = {name: getattr(request, name) for name in names}
    given["search_share"] = request.search_share or None
    if named := [f"`{name}=`" for name, value in given.items() if value is not None]:
        listed = ", ".join(named)
        raise UsageError(
            f"{listed}: with strategy auto, the strategy and its settings are chosen "
            f"automatically. Name a strategy, such as `strategy=rs`, or leave {listed} out."
        )


def _make_split(request: SearchRequest, dataset: Dataset, strategy: Strategy) -> Split:
    """Make the split of a request for a strategy."""
    if request.search_share and not (strategy.scored and strategy.private_trials):
        raise UsageError(
            f"`search_share=` reserves records for a private search, but strategy "
            f"{strategy.name!r} makes none: leave it out, or use rs, mgrs or paas."
        )
    needs = strategy.needs_validation or _has_private_queries(request)
    return make_request_split(
        request,
        dataset,
        search_share=request.search_share,
        scored=needs or _selects_variant(request, dataset, strategy),
        portions=strategy.portions,
    )


def _selects_variant(request: SearchRequest, dataset: Dataset, strategy: Strategy) -> bool:
    """Check whether a variant of the trained model is selected: on request, or by default.

    The default is to select a decision threshold for two declared classes by balanced accuracy,
    because the threshold of the network suits equally frequent classes only.
    """
    if request.variants is not None:
        return request.variants
    free = (
        strategy.private_trials
        and not strategy.needs_validation
        and not _has_private_queries(request)
    )
    return free and request.metric == "balanced-accuracy" and dataset.schema.outputs == 2


def _has_private_queries(request: SearchRequest) -> bool:
    """Check whether a recipe makes validation queries on private records."""
    every = [resolve_preset(each) for each in request.recipes]
    queries = [
        s.get("screening") or getattr(s.get("schedule"), "is_validation_driven", False)
        for s in every
    ]
    return request.validate_on is None and any(queries)


def _make_recipe(request: SearchRequest, values: Mapping[str, Any], slots: int) -> Recipe:
    """Make a recipe for `slots` training records; options of the request replace its values."""
    settings = resolve_preset(values)
    if request.learning_rate is not None:
        settings["learning_rate"] = request.learning_rate
    own = (settings.pop("expected_batch_size", None), settings.pop("steps", None))
    batch, steps = request.batch or own[0], request.steps or own[1]
    recipe = make_default_recipe(slots, batch=batch, steps=steps, **settings)
    recipe.sampling_probability(slots)  # a batch larger than the partition is refused here
    recipe = stretch_schedule(recipe, values, slots)
    own = values.get("screening")
    sets_interval = "every" in own if isinstance(own, Mapping) else own is not None
    if recipe.screening is not None and request.validate_on is None and not sets_interval:
        every = max(1, recipe.steps // PRIVATE_QUERIES)
        recipe = replace(recipe, screening=replace(recipe.screening, every=every))
    return recipe
