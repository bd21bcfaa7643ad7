"""From a search's request to its plan: recipes, public data, network or space, strategy.

    request  ->  recipes read  ->  public data  ->  network or space  ->  strategy  ->  plan

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
from pasearch.data.partitions import Dataset
from pasearch.data.split import Split
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
from pasearch.spaces.portfolio import Study
from pasearch.spaces.space import Portfolio, Space, check_settings
from pasearch.spaces.space import make_space as named_space
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
}  # fmt: skip
"""Recipe field that overrides each setting of a portfolio entry, if the user sets it."""

GIVEN_SPACE_NAME = "given"  # name of the space of one given architecture

PUBLIC_WINNER_NAME = "found on public data"
"""Name of the space of the single candidate that a search on public data found."""

PRIVATE_QUERIES = 20
"""Approximate number of private validation queries of a training; each costs epsilon."""

PAPER_STRATEGIES = {"paas-paper": {"strategy": "paas", "score_epsilon": 0.02, "returns": "last"}}
"""Strategies with a paper's settings: epsilon' of a score (Bao et al., IX-A); and which one of all
candidates is returned."""

STRATEGY_SETTINGS = (
    "candidates", "generations", "law", "max_candidates", "returns", "rungs", "eps_grid", "repeats",
)  # fmt: skip
"""Options of a request that a strategy may take."""


@dataclass(frozen=True, kw_only=True)
class PlannedSearch(Prepared[Plan]):
    """A search, or the training of one network, with its solved plan.

    Args:
        given: The one network that the user gave, as it was given.
    """

    given: Candidate | None = None


def expand_request(request: SearchRequest) -> SearchRequest:
    """Return the request with its recipes read, and a paper's strategy as what it stands for."""
    settings: dict[str, Any] = {"strategy": ALIASES.get(request.strategy, request.strategy)}
    settings |= PAPER_STRATEGIES.get(request.strategy, {})
    for name in ("score_epsilon", "returns"):
        if name in settings and getattr(request, name) is not None:
            raise UsageError(
                f"`strategy={request.strategy}` has the paper's own: leave `{name}=` out, or take "
                "`strategy=paas`."
            )
    return replace(request, **settings, recipe=[read_recipe(each) for each in request.recipes])


def prepare_search(asked: SearchRequest, dataset: Dataset) -> PlannedSearch:
    """Return a search with its solved plan; nothing private was read."""
    request = expand_request(asked)
    if request.crossover and not dataset.public:  # measured on private records by a grid
        if request.strategy not in ("auto", Grid.name):
            raise UsageError(
                f"`crossover=` measures by strategy grid, and `strategy={request.strategy}` is "
                "another: leave one of them out."
            )
        request = replace(request, strategy=Grid.name)
    searched_on, validated_on, assumed = None, None, ()
    if request.search_on is not None:
        if request.strategy not in ("auto", "fixed"):
            raise UsageError(
                "`search_on=` searches on public data and trains once: "
                f"`strategy={request.strategy}` has no place there. Leave it out."
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
                "`validate_on=` names public records for a recipe's validation queries, and this "
                "one makes none: leave it out, or take sa-dpsgd or dynamic-validation."
            )
        source = str(request.validate_on)
        validated_on, dataset, read = load_public_data("validate_on", source, request, dataset)
        assumed = (*assumed, *read)
    study = partial(_rank_study, request, dataset)
    request, space, given = _resolve_networks(request, study, dataset.schema.regression)
    names = [_describe_recipe(each) for each in request.recipes]
    ours = _is_portfolio(request, space)
    if request.strategy == Grid.name and ours:  # of the program's portfolio, three are compared
        assert isinstance(space, Portfolio)
        form = bound_network_form(dataset.schema, request.max_categories)
        sizes = [each.parameters(*form)[0] for each in space.entries]
        places = dict.fromkeys((0, sizes.index(min(sizes)), sizes.index(max(sizes))))
        space = Portfolio(
            name=f"default, simplest and largest of the {space.name}",
            entries=tuple(space.entries[place] for place in places),
        )
    request, ranked = _resolve_noise(request, dataset, space)
    assembled = partial(assemble_plan, request, dataset, assumed)
    auto = None
    if searched_on is not None:
        if given is not None:
            raise UsageError(
                "`search_on=` searches, and `architecture=`, several recipes, or a recipe that "
                "changes the network leave one network to train: leave one of them out."
            )
        if has_queries:
            raise UsageError(
                "`search_on=` trains on the public data, and a recipe with validation queries has "
                "no validation records there: take another recipe, or leave it out."
            )
        if space.name != PUBLIC_WINNER_NAME:
            plan = assembled(space, FIXED_OPTION, free_front_ends=True)
            best = Proxy(dataset=searched_on).best(plan, space, device=choose_device(request))
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
    """Return the recipe's name and what it does, for the plan; nothing for the default."""
    name = _preset_name(recipe)
    own = sorted(set(recipe) - {"preset"})
    if name == "default" and not own:
        return ""
    if not TUNING_FIELDS.issuperset(own):
        return f"{name}, but for its {' and '.join(own)}"
    changed = f"; changed: {', '.join(own)}" if own else ""
    return f"{name}: {find_preset(name).about}{changed}"


def _preset_name(recipe: Mapping[str, Any]) -> str:
    return recipe.get("preset", "default")


def _resolve_networks(
    request: SearchRequest, study: Callable[[], Study], regression: bool
) -> tuple[SearchRequest, Space, Candidate | None]:
    """Return the request, its space, and the network if one is given or changed by a recipe.

    The network is as it was given; in the space each recipe has changed it. The request says more
    than an entry of the study's portfolio does.
    """
    presets = [find_preset(_preset_name(each)) for each in request.recipes]
    several = len(presets) > 1
    changing = any(each.activation or each.trained_last or each.full_batches for each in presets)
    settled = partial(_apply_overrides, request=request, regression=regression)

    def entries_of(portfolio: Portfolio, *, apart: bool) -> tuple[Candidate, ...]:
        """Return the entries; where portions stay apart, no fit reads all their records."""
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
            "Several recipes are chosen among for one network, by disjoint portions: leave "
            "`strategy=` and `space=` out, or give one recipe."
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
    """Return a candidate whose settings leave alone what the user says.

    A network that the user gives keeps its own settings. Those of a portfolio's entry give way to
    options and to a recipe; those of full batches go together, so another preset has none of them.
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


def _resolve_noise(
    request: SearchRequest, dataset: Dataset, space: Space
) -> tuple[SearchRequest, str]:
    """Return the request with its recipes' noise of the law asked for, and why, in words."""
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
            f"`noise={request.noise}`: the law of the noise can be chosen where every coordinate "
            "is bounded: take `recipe=encoded-gaussian`."
        )
    why = f"; noise {request.noise}"
    if law is None:
        law, why = _search_noise(request, dataset, space)
    chosen = None if format_density_name(law) == GaussianNoise.name else law.unit.to_json()
    return replace(request, recipe=[{**each, "noise": chosen} for each in request.recipes]), why


def _search_noise(request: SearchRequest, dataset: Dataset, space: Space) -> tuple[Density, str]:
    from pasearch.training.encoded.gradients import EncodedClipping
    from pasearch.training.encoded.noise_search import format_density_name, rank_densities

    if dataset.schema.undeclared:
        raise UsageError(
            "`noise=search` depends on the network's size, which an undeclared schema leaves open: "
            "declare the schema, or leave `noise=` out."
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
    """Return the plan of a request, or of an option that auto compares."""
    name, total = request.strategy, request.total.resolve(dataset.n)
    settings: dict[str, Any] = {each: getattr(request, each) for each in STRATEGY_SETTINGS}
    if name == Grid.name:
        repeats = check_positive_integer(
            "repeats", DEFAULT_REPEATS if request.repeats is None else request.repeats
        )
        points = space.count() * repeats  # of each level
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


def _is_portfolio(request: SearchRequest, space: Space) -> bool:
    return request.space == "auto" and space.name not in (GIVEN_SPACE_NAME, PUBLIC_WINNER_NAME)


def _rank_study(request: SearchRequest, dataset: Dataset) -> Study:
    budget = request.total.resolve(dataset.n)
    return rank_study(dataset.schema, dataset.name, budget, dataset.n, request.max_categories)


def _check_auto_options(request: SearchRequest) -> None:
    """Refuse what only one strategy has, when auto is to choose the strategy."""
    names = (
        "candidates", "generations", "law", "max_candidates", "search_share", "score_epsilon",
        "returns", "rungs", "eps_grid", "repeats",
    )  # fmt: skip
    given = {name: getattr(request, name) for name in names}
    given["search_share"] = request.search_share or None
    if named := [f"`{name}=`" for name, value in given.items() if value is not None]:
        raise UsageError(
            f"{', '.join(named)}: auto chooses the strategy and its settings. Name a strategy, "
            "such as `strategy=rs`, or leave that out."
        )


def _make_split(request: SearchRequest, dataset: Dataset, strategy: Strategy) -> Split:
    if request.search_share and not (strategy.scored and strategy.private_trials):
        raise UsageError(
            f"`search_share=` keeps records for a private search; strategy {strategy.name!r} makes "
            "none. Leave it out, or take rs, mgrs or paas."
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
    """Return whether one of the training's variants is picked: as asked, or where it always pays.

    By balanced accuracy a network's own threshold is the wrong one wherever a class is rarer.
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
    every = [resolve_preset(each) for each in request.recipes]
    queries = [
        s.get("screening") or getattr(s.get("schedule"), "is_validation_driven", False)
        for s in every
    ]
    return request.validate_on is None and any(queries)


def _make_recipe(request: SearchRequest, values: Mapping[str, Any], slots: int) -> Recipe:
    settings = resolve_preset(values)
    if request.learning_rate is not None:
        settings["learning_rate"] = request.learning_rate
    own = (settings.pop("expected_batch_size", None), settings.pop("steps", None))
    batch, steps = request.batch or own[0], request.steps or own[1]
    recipe = make_default_recipe(slots, batch=batch, steps=steps, **settings)
    recipe.sampling_probability(slots)  # a batch larger than the partition is refused here
    recipe = stretch_schedule(recipe, values, slots)
    if recipe.screening is not None and request.validate_on is None:
        every = max(recipe.screening.every, recipe.steps // PRIVATE_QUERIES)
        recipe = replace(recipe, screening=replace(recipe.screening, every=every))
    return recipe
