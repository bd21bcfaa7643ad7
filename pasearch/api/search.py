"""The Python API of architecture searches: plan one, run it, resume it.

The command line is a thin layer over this; `asking` and `running` are what all runs share.

Source: docs/rules.md, rules 1, 11 and 12; docs/result.md.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from pasearch.accounting import calibration
from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import positive, whole
from pasearch.accounting.densities import GaussianNoise
from pasearch.accounting.events import Gaussian
from pasearch.api import lifecycle as running
from pasearch.api import request as asking
from pasearch.api.lifecycle import (
    LEDGER_LEAK,
    Made,
    found_run,
    head,
    made_by,
    new_run,
    opened,
    publish,
    score_json,
    tail,
)
from pasearch.api.request import (
    MEMORY,
    anywhere,
    assume_public,
    check_options,
    dataset_of,
    device_of,
    name_of,
    public_data,
    read_request,
    shares_of,
)
from pasearch.data.partitions import Dataset, Split, make_split
from pasearch.errors import UsageError
from pasearch.planning import PURCHASE_DELTA, planned_form
from pasearch.search.auto import Option, choose
from pasearch.search.plan import RECIPE, Plan, make_plan
from pasearch.search.proxy import Proxy
from pasearch.search.strategies import strategy as named_strategy
from pasearch.search.strategies import to_settings
from pasearch.search.strategy import Settings
from pasearch.spaces.portfolio import signal_of, study_for
from pasearch.spaces.space import BUILT_IN as SPACES
from pasearch.spaces.space import MOST_SCALE, Portfolio, Space, read_candidate
from pasearch.spaces.space import space as named_space
from pasearch.training.presets import fitted, preset_of, read_recipe, settings_of
from pasearch.training.recipe import Recipe, default_recipe
from pasearch.training.schedules import Validation

if TYPE_CHECKING:
    from pasearch.accounting.densities import Density
    from pasearch.api.request import Data
    from pasearch.progress import Progress
    from pasearch.results import SearchResult
    from pasearch.runs.folder import RunFolder
    from pasearch.search.engine import Outcome
    from pasearch.search.strategy import Strategy
    from pasearch.spaces.portfolio import Study
    from pasearch.spaces.space import Candidate
    from pasearch.training.presets import Preset

MOST_SCORE_EPSILON = 100.0
"""The largest epsilon of one score."""

COMMAND = "arch"
"""What finishes a search that was interrupted."""

PRESETS = {"paas-paper": {"strategy": "paas", "score_epsilon": 0.02}}
"""Settings under one name; `paas-paper` has the paper's epsilon' of a score (Bao et al., IX-A)."""


class Options(asking.Options, TypedDict, total=False):
    """Everything that may be said about a search beside data and budget; see `Request`."""

    strategy: str
    space: str | Path | Mapping[str, Any] | Space
    recipe: str | Path | Mapping[str, Any] | Sequence[str | Path | Mapping[str, Any]]
    architecture: str | Path | Mapping[str, Any] | None
    energy_on: str | Path | None
    noise: str | None
    candidates: float | None
    generations: int | None
    law: str | None
    max_candidates: int | None
    preset: str | None
    score_epsilon: float | None
    batch: int | None
    steps: int | None
    learning_rate: float | None
    search_on: str | Path | None
    target: str | None
    cache: str | Path | None


@dataclass(frozen=True, kw_only=True)
class Request(asking.Request):
    """What a search is asked for, beside what every run is.

    Args:
        strategy: One of `search.strategies.STRATEGIES`, or "auto" for the one predicted best.
        space: A built-in space, a TOML path, a dictionary, or "auto" for the portfolio.
        recipe: How networks are trained: one of `training.presets.PRESETS`, a TOML path, or a
            dictionary of fields of `training.recipe.Recipe`, `preset` among them. A list of such
            is chosen among by disjoint portions (`search.portions`).
        architecture: The one network to train, with the strategy `fixed`: a TOML path or a
            dictionary; None leaves it to space and strategy.
        energy_on: Declared-public data of the same form, for recipes that look at records while
            they train; None looks at validation records, and pays.
        noise: The noise's law on encoded gradients, such as "student-t:9", or "search" for the one
            of least error at equal price; None leaves it to the recipe.
        candidates: See `search.strategies.strategy`.
        generations: See there.
        law: See there.
        max_candidates: K is redrawn until it is at most this.
        preset: One of `PRESETS`.
        score_epsilon: Epsilon of one score, instead of the most that fits.
        batch: Expected batch size, instead of the default for n.
        steps: Number of steps, instead.
        learning_rate: Instead of the one tuned to the noise.
        search_on: Declared-public data of the same form, to search on for nothing; the whole budget
            then goes to one training on the private data.
        cache: A private folder for what costly front ends make, kept for other runs on the same
            data; None keeps it in `private/` until the run ends.
    """

    strategy: str = "auto"
    space: Any = "auto"
    recipe: Any = "default"
    architecture: Any = None
    energy_on: str | Path | None = None
    noise: str | None = None
    candidates: float | None = None
    generations: int | None = None
    law: str | None = None
    max_candidates: int | None = None
    preset: str | None = None
    score_epsilon: float | None = None
    batch: int | None = None
    steps: int | None = None
    learning_rate: float | None = None
    search_on: str | Path | None = None
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        """Check what no other part checks."""
        super().__post_init__()
        for name in ("batch", "steps", "generations", "max_candidates"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        for name in ("candidates", "score_epsilon", "learning_rate"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if self.score_epsilon is not None and not self.score_epsilon <= MOST_SCORE_EPSILON:
            raise UsageError(
                f"score_epsilon is {self.score_epsilon!r}: expected at most "
                f"{MOST_SCORE_EPSILON:g}: above, a score has no noise that anybody could measure."
            )
        if self.preset is not None and self.preset not in PRESETS:
            raise UsageError(
                f"Preset {self.preset!r} is not known: expected one of {', '.join(PRESETS)}."
            )
        if self.learning_rate is not None and not self.learning_rate <= MOST_SCALE:
            raise UsageError(
                f"learning_rate is {self.learning_rate!r}: expected at most {MOST_SCALE:g}."
            )

    def preset_applied(self) -> Request:
        """Return the request with its preset's settings, and its recipe read."""
        settings: dict[str, Any] = PRESETS[self.preset] if self.preset else {}
        return replace(self, **settings, recipe=[read_recipe(each) for each in self.recipes])

    @property
    def recipes(self) -> list[Any]:
        """The recipes, as a list: one, if nothing is to be chosen."""
        return list(self.recipe) if isinstance(self.recipe, (list, tuple)) else [self.recipe]


@dataclass(frozen=True, kw_only=True)
class Prepared(running.Prepared):
    """A request with its data set, strategy and solved plan; nothing private was read."""

    request: Request
    strategy: Strategy
    plan: Plan
    proxy: Proxy | None = None
    energy: Dataset | None = None
    given: Candidate | None = None

    @property
    def trainings(self) -> float | None:
        """How many trainings are planned; None where that is secret."""
        if self.strategy.way == "repeat-and-select":
            return None
        return round(self.strategy.expected_trainings) + self.plan.aside


def plan_architecture_search(
    data: Data = "digits", *, budget: Budget, **options: Unpack[Options]
) -> Plan:
    """Return the plan of a search: what it would release, with its noise solved, and the price.

    Args:
        data: `digits`, `mnist`, `fashion-mnist`, the path of a .npz, (x, y) arrays, or a data set.
        budget: Epsilon and delta of the whole run.
        options: See `Request`.

    Raises:
        UsageError: Data, space or settings of bad form.
        BudgetError: The budget is too small; the message names the smallest that would do.

    Cost: none: it depends on n, shapes and declared bounds only.
    """
    return prepare(data, budget=budget, **options).plan


def search_architecture(
    data: Data = "digits",
    *,
    budget: Budget,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> SearchResult:
    """Search for the best architecture under one budget, and return its trained model.

    Guarantee: everything in the run's `release/` folder together is (epsilon, delta)-DP under
    zero-out adjacency, as the privacy card states.

    Args:
        data: `digits`, `mnist`, `fashion-mnist`, the path of a .npz, (x, y) arrays, or a data set.
        budget: Epsilon and delta of the whole run.
        out: The run's folder, which must not exist; None takes runs/<name>-<number>.
        progress: What to report while it runs.
        options: See `Request`.

    Returns:
        SearchResult: The model, its price and its card.

    Raises:
        UsageError: Data, space or settings of bad form; nothing was written.
        BudgetError: The budget is too small; nothing was written.

    Cost: the budget, at most: `plan_architecture_search` gives the price beforehand.
    """
    prepared = prepare(data, budget=budget, **options)
    return run(prepared, out=out, progress=progress)


def resume_search(
    path: str | Path,
    *,
    data: Data | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Finish a run that was interrupted; what it has paid for is not paid for again.

    Args:
        path: The run's folder.
        data: The same records again, if they were arrays in memory.
        progress: What to report.

    Raises:
        UsageError: No run there, or a finished one.
        BudgetError: Data, plan, code, versions or device differ from the run that began.
    """
    with found_run(path, COMMAND) as folder:
        request = read_request(folder.private, Request, COMMAND)
        if data is None and request.data == MEMORY:
            raise UsageError(f"{path} began on arrays in memory: pass them again as `data`.")
        dataset = dataset_of(request.data if data is None else data, request)
        return _run(_prepare(request, dataset), folder, resumed=True, progress=progress)


def prepare(data: Data, *, budget: Budget, **options: Unpack[Options]) -> Prepared:
    """Load the data's form and solve the plan; nothing is written."""
    check_options(budget, options, Options.__annotations__)
    request = Request(data=name_of(data), epsilon=budget.epsilon, delta=budget.delta, **options)
    return _prepare(request, dataset_of(data, request))


def run(prepared: Prepared, *, out: str | Path | None, progress: Progress | None) -> SearchResult:
    """Run a prepared search in a new folder."""
    with new_run(prepared, out, _anywhere(prepared), COMMAND) as folder:
        return _run(prepared, folder, resumed=False, progress=progress)


def _anywhere(prepared: Prepared) -> Request:
    """Return the request as a resume from another working directory needs it."""
    request = prepared.request
    found: dict[str, Any] = {"recipe": [read_recipe(each) for each in request.recipes]}
    named = isinstance(request.space, str) and request.space in ("auto", *SPACES)
    if not named or prepared.plan.searched_on is not None:
        found["space"] = prepared.plan.space.to_json()
    if prepared.given is not None:
        found["architecture"] = prepared.given.to_json()
    return replace(anywhere(request), **found)


def _prepare(request: Request, dataset: Dataset) -> Prepared:
    effective = request.preset_applied()
    proxy, assumed = None, ()
    if effective.search_on is not None:
        proxy, dataset, assumed = _proxy(effective, dataset)
    if effective.assume_public_schema or dataset.public:
        dataset, read = assume_public(dataset, effective.max_categories)
        assumed = (*assumed, *read)
    energy = None
    if effective.energy_on is not None:
        energy, dataset, read = _energy(effective, dataset)
        assumed = (*assumed, *read)
    study = functools.partial(_study, effective, dataset)
    effective, space, given = _given(effective, study)
    if given is not None and proxy is not None:
        raise UsageError(
            "--search-on searches, and --architecture, several recipes, or a recipe that changes "
            "the network leave one network to train: leave one of them out."
        )
    names = [_recipe_name(each) for each in effective.recipes]
    effective, ranked = _noised(effective, dataset, space)
    assembled = functools.partial(_assemble, effective, dataset, assumed)
    auto = None
    if proxy is not None:
        if _looks(replace(effective, energy_on=None)):
            raise UsageError(
                "--search-on trains on the public data, and a recipe that looks at records while "
                "it trains has none to look at there: take another recipe, or leave it out."
            )
        plan, strategy = _searched_on(effective, proxy, space, assembled)
    elif effective.strategy == "auto":
        _check_auto(effective)
        choice = choose(study(), lambda option: assembled(space, option), device=device_of(request))
        plan, strategy, auto = choice.plan, choice.strategy, choice.to_json()
    else:
        plan, strategy = assembled(space, None)
    plan = replace(plan, auto=auto, recipe_names=tuple(name + ranked for name in names))
    return Prepared(
        request=request,
        dataset=dataset,
        strategy=strategy,
        plan=plan,
        proxy=proxy,
        energy=energy,
        given=given,
    )


def _recipe_name(recipe: Mapping[str, Any]) -> str:
    """Return the recipe's name and what it does, for the plan; nothing for the default."""
    name = recipe.get("preset", "default")
    own = sorted(set(recipe) - {"preset"})
    if name == "default" and not own:
        return ""
    changed = f"; changed: {', '.join(own)}" if own else ""
    return f"{name}: {preset_of(name).about}{changed}"


def _given(request: Request, study: Callable[[], Study]) -> tuple[Request, Space, Candidate | None]:
    """Return the request, its space, and the network if one is given or changed by a recipe.

    The network is as it was given; in the space each recipe has changed it.
    """
    presets = [preset_of(each.get("preset", "default")) for each in request.recipes]
    several = len(presets) > 1
    changing = [each for each in presets if each.activation or each.frozen]
    if request.architecture is None and not changing and not several:
        space = study().portfolio() if request.space == "auto" else named_space(request.space)
        return request, space, None
    strategy = "portions" if several else "fixed"
    if request.strategy not in ("auto", strategy) or request.space != "auto":
        recipe = f"The recipe {request.recipes[0].get('preset')} changes"
        what = "--architecture gives" if request.architecture is not None else recipe
        raise UsageError(
            "Several recipes are chosen among for one network, by disjoint portions: leave "
            "--strategy and --space out, or give one recipe."
            if several
            else f"{what} one network, so nothing is searched: leave --strategy and --space out, "
            "or take another recipe."
        )
    if request.architecture is None:
        candidate = study().portfolio().entries[0]
    else:
        candidate = read_candidate(request.architecture)
    entries = tuple(
        replace(_changed(candidate, preset), settings=_with_recipe(candidate, number))
        for number, preset in enumerate(presets)
    )
    if several and request.candidates not in (None, len(presets)):
        raise UsageError(
            f"--candidates {request.candidates:g}: {len(presets)} recipes are as many candidates: "
            "leave it out."
        )
    count = float(len(presets)) if several else request.candidates
    chosen = Portfolio(name=GIVEN, entries=entries if several else entries[:1])
    return replace(request, strategy=strategy, candidates=count), chosen, candidate


def _noised(request: Request, dataset: Dataset, space: Space) -> tuple[Request, str]:
    """Return the request with its recipes' noise of the law asked for, and why, in words."""
    if request.noise is None:
        return request, ""
    from pasearch.training.encoded.gradients import Encoded
    from pasearch.training.encoded.noise_search import SEARCH, law_of, name_of

    if not isinstance(request.noise, str):
        raise UsageError(f"noise is {request.noise!r}: expected a name, such as 'student-t:9'.")
    law = None if request.noise == SEARCH else law_of(request.noise)
    bounds = [settings_of(each).get("bounding") for each in request.recipes]
    if not all(isinstance(bound, Encoded) for bound in bounds):
        raise UsageError(
            f"--noise {request.noise}: the law of the noise can be chosen where every coordinate "
            "is bounded: take --recipe encoded-gaussian."
        )
    why = f"; noise {request.noise}"
    if law is None:
        law, why = _least_noise(request, dataset, space)
    chosen = None if name_of(law) == GaussianNoise.name else law.unit.to_json()
    return replace(request, recipe=[{**each, "noise": chosen} for each in request.recipes]), why


def _least_noise(request: Request, dataset: Dataset, space: Space) -> tuple[Density, str]:
    """Return the law of least error at the request's price, and why, in words."""
    from pasearch.training.encoded.gradients import Encoded
    from pasearch.training.encoded.noise_search import name_of, ranking

    if dataset.schema.undeclared:
        raise UsageError(
            "--noise search depends on the network's size, which an undeclared schema leaves open: "
            "declare the schema, or leave --noise out."
        )
    once = replace(request, search_share=0.0)
    slots = _split(once, dataset, named_strategy("fixed")).train
    recipe = _recipe_maker(request)(slots)[0]
    form = planned_form(dataset.schema, request.max_categories)
    assert isinstance(recipe.bounding, Encoded)
    found = ranking(
        dimension=space.candidate(space.fixed()).parameters(*form)[1],
        sampling_probability=recipe.sampling_probability(slots),
        steps=recipe.steps,
        budget=request.budget.resolve(dataset.n),
        bounding=recipe.bounding,
    )
    best, name = found[0], name_of(found[0].density)
    second = next(each for each in found if name_of(each.density) != name)
    return best.density, (
        f"; noise {name}, of the least error at equal price (next: {name_of(second.density)}, "
        f"{second.l1 / best.l1:.3f} times)"
    )


def _changed(candidate: Candidate, preset: Preset) -> Candidate:
    """Return the network as a preset wants it."""
    network = candidate.architecture
    if preset.activation:
        network = network.with_activation(preset.activation)
    if preset.frozen:
        network = network.frozen(preset.frozen)
    return replace(candidate, architecture=network)


def _with_recipe(candidate: Candidate, number: int) -> Settings:
    """Return a candidate's settings when it has this one of the plan's recipes."""
    chosen = ((RECIPE, float(number)),) if number else ()
    return (*candidate.settings, *chosen)


def _energy(request: Request, dataset: Dataset) -> tuple[Dataset, Dataset, tuple[str, ...]]:
    """Return the public records that a recipe looks at while it trains; see `public_data`."""
    if not _looks(replace(request, energy_on=None)):
        raise UsageError(
            "--energy-on names public records for a recipe that looks at some while it trains, and "
            "this one does not: leave it out, or take sa-dpsgd or dynamic-validation."
        )
    return public_data("--energy-on", str(request.energy_on), request, dataset)


def _assemble(
    request: Request,
    dataset: Dataset,
    assumed: tuple[str, ...],
    space: Space,
    option: Option | None,
    *,
    free_front_ends: bool = False,
) -> tuple[Plan, Strategy]:
    """Return the plan and the strategy of a request, or of an option that auto compares."""
    settings: dict[str, Any] = {
        "candidates": request.candidates,
        "generations": request.generations,
        "law": request.law,
        "cap": request.max_candidates,
    }
    name = request.strategy
    if option is not None:
        name, settings = option.name, dict(option.settings)
        request = replace(request, search_share=option.search_share)
    strategy = named_strategy(name, **settings)
    plan = make_plan(
        name=dataset.name,
        schema=dataset.schema,
        public=dataset.public,
        budget=request.budget,
        split=_split(request, dataset, strategy),
        strategy=strategy,
        space=space,
        make_recipes=_recipe_maker(request),
        score_epsilon=request.score_epsilon if strategy.scored else None,
        most_categories=request.max_categories,
        assumed_public=assumed,
        free_front_ends=free_front_ends,
        leak_share=PURCHASE_DELTA if request.ledger is None else LEDGER_LEAK,
        judged_on=None if request.energy_on is None else Path(request.energy_on).stem,
    )
    return plan, strategy


def _study(request: Request, dataset: Dataset) -> Study:
    """Return the study of this kind of data, in order of what is best at about this signal."""
    budget = request.budget.resolve(dataset.n)
    sigma = calibration.smallest(lambda value: Gaussian(noise_multiplier=value), budget, 0.02, 1e7)
    outputs = planned_form(dataset.schema, request.max_categories)[1]
    study = study_for(dataset.schema, dataset.name)
    return study.ordered(signal_of(1.0 / sigma, dataset.n, outputs))


def _check_auto(request: Request) -> None:
    """Refuse what only one strategy has, when auto is to choose the strategy."""
    given = {
        "--candidates": request.candidates, "--generations": request.generations,
        "--law": request.law, "--max-candidates": request.max_candidates,
        "--search-share": request.search_share or None, "--score-eps": request.score_epsilon,
    }  # fmt: skip
    if named := [name for name, value in given.items() if value is not None]:
        raise UsageError(
            f"{', '.join(named)}: auto chooses the strategy and its settings. Name a strategy, "
            "such as --strategy rs, or leave that out."
        )


def _proxy(request: Request, dataset: Dataset) -> tuple[Proxy, Dataset, tuple[str, ...]]:
    """Return the public data to search on, and the private data, its schema completed by it."""
    if request.strategy not in ("auto", "fixed"):
        raise UsageError(
            f"--search-on searches on public data and trains once: --strategy {request.strategy} "
            "has no place there. Leave it out."
        )
    _check_auto(request)
    public, dataset, assumed = public_data("--search-on", str(request.search_on), request, dataset)
    return Proxy(dataset=public), dataset, assumed


def _searched_on(
    request: Request, proxy: Proxy, space: Space, assembled: Callable[..., tuple[Plan, Strategy]]
) -> tuple[Plan, Strategy]:
    """Return the plan of one training of the candidate that does best on the public data."""
    once = Option(name="fixed")
    plan, _ = assembled(space, once, free_front_ends=True)
    if isinstance(space, Portfolio) and space.name == FOUND:
        best = space.entries[0]
    else:
        best = proxy.best(plan, space, device=device_of(request))
    found = Portfolio(name=FOUND, entries=(best,))
    plan, strategy = assembled(found, once, free_front_ends=True)
    return replace(plan, searched_on=proxy.dataset.name), strategy


GIVEN = "given"
"""What the space of one given architecture is called."""

PAID_LOOKS = 20
"""How often a training with charged energies is screened, about: every look costs epsilon."""

FOUND = "found on public data"
"""The name of a space of the one candidate that a search on public data found."""


def _split(request: Request, dataset: Dataset, strategy: Strategy) -> Split:
    if request.search_share and not (strategy.scored and strategy.private_trials):
        raise UsageError(
            f"--search-share sets slots aside for a private search; strategy {strategy.name!r} "
            "makes none. Leave it out, or take rs, mgrs or paas."
        )
    return make_split(
        dataset.n,
        shares=shares_of(request.split),
        search_share=request.search_share,
        scored=strategy.scored or _looks(request),
        official_test=dataset.official_test,
        paper=request.split == "paper",
        portions=strategy.portions,
    )


def _looks(request: Request) -> bool:
    """Return whether a recipe looks at validation slots while it trains."""
    every = [settings_of(each) for each in request.recipes]
    looks = [isinstance(s.get("schedule"), Validation) or s.get("screening") for s in every]
    return request.energy_on is None and any(looks)


def _recipe_maker(request: Request) -> Callable[[int], tuple[Recipe, ...]]:
    return lambda slots: tuple(_made(request, each, slots) for each in request.recipes)


def _made(request: Request, values: Mapping[str, Any], slots: int) -> Recipe:
    """Return one of the request's recipes, for so many slots."""
    settings = settings_of(values)
    if request.learning_rate is not None:
        settings["learning_rate"] = request.learning_rate
    own = (settings.pop("expected_batch_size", None), settings.pop("steps", None))
    batch, steps = request.batch or own[0], request.steps or own[1]
    recipe = default_recipe(slots, batch=batch, steps=steps, **settings)
    recipe.sampling_probability(slots)  # a batch larger than the partition is refused here
    recipe = fitted(recipe, values, slots)
    if recipe.screening is not None and request.energy_on is None:
        every = max(recipe.screening.every, recipe.steps // PAID_LOOKS)
        recipe = replace(recipe, screening=replace(recipe.screening, every=every))
    return recipe


def _run(
    prepared: Prepared, folder: Any, *, resumed: bool, progress: Progress | None
) -> SearchResult:
    from pasearch.api.lifecycle import buy_schema
    from pasearch.progress import heard
    from pasearch.runs.journal import Journal
    from pasearch.search.engine import Search, place_fits

    plan, dataset, request = prepared.plan, prepared.dataset, prepared.request
    device = device_of(request)
    public = (None if prepared.proxy is None else prepared.proxy.dataset, prepared.energy)
    with opened(prepared, folder, device, *public, resumed=resumed) as (ledger, keys):
        dataset.partition(plan.split, keys.stream("split").generator())
        dataset.cache = Path(request.cache or folder.private / "cache")
        plan = buy_schema(plan, dataset, ledger, keys, folder)
        if prepared.proxy is not None:
            place_fits(plan, prepared.proxy, folder)
        prepared = replace(prepared, plan=plan)
        journal = Journal(folder.private / "trials.sqlite")
        try:
            outcome = Search(
                plan=plan,
                strategy=prepared.strategy,
                dataset=dataset,
                ledger=ledger,
                journal=journal,
                keys=keys,
                folder=folder,
                device=device,
                progress=heard(progress, prepared.trainings),
                public=prepared.energy,
            ).run()
        finally:
            journal.close()
        extra = _on_public(prepared, outcome, folder, progress)
        result = _publish(prepared, outcome, folder, device, keys.reproducible, extra)
        keys.destroy()
    if request.cache is None:
        shutil.rmtree(folder.private / "cache", ignore_errors=True)
    return result


def _on_public(
    prepared: Prepared, outcome: Outcome, folder: Any, progress: Progress | None
) -> dict[str, Any]:
    """Return what may be shown of public data only: curves, and `fixed` at the same total."""
    plan = prepared.plan
    if not plan.public:
        return {}
    accuracy = [round(value, 4) for _, value in outcome.curve]
    curve = {"name": "released network", "steps": [s for s, _ in outcome.curve]}
    shown: dict[str, Any] = {"curves": [{**curve, "accuracy": accuracy}]} if accuracy else {}
    if prepared.strategy.name == "fixed":
        return shown
    request = replace(prepared.request.preset_applied(), score_epsilon=None)
    made = _assemble(
        request, prepared.dataset, plan.assumed_public, plan.space, Option(name="fixed")
    )
    beside = replace(prepared, plan=made[0], strategy=made[1], proxy=None)
    place = folder.private / "fixed"
    shutil.rmtree(place, ignore_errors=True)
    fixed = run(beside, out=place, progress=progress).document
    shown["compared"] = {
        "this": {
            "name": prepared.strategy.name,
            **score_json(plan, outcome.test_points, outcome.exact_points),
        },
        "fixed": {"name": "fixed", **fixed["score"]},
    }
    beside_it = [{**each, "name": "fixed"} for each in fixed.get("curves", ())]
    shown["curves"] = shown.get("curves", []) + beside_it
    return shown


def _publish(
    prepared: Prepared,
    outcome: Outcome,
    folder: RunFolder,
    device: str,
    reproducible: bool,
    extra: dict[str, Any],
) -> SearchResult:
    import io

    import torch

    from pasearch.results import SearchResult, digest

    buffer = io.BytesIO()
    torch.save(torch.nn.Sequential(outcome.front.module, outcome.network).state_dict(), buffer)
    weights = buffer.getvalue()
    found = Found(
        candidate=outcome.candidate,
        test_points=outcome.test_points,
        exact_points=outcome.exact_points,
        sha256=digest(weights),
        trials=tuple((trial.parameters, trial.value) for trial in outcome.trials),
        steps_made=outcome.steps_made,
    )
    made = made_by(prepared, device, reproducible)
    document = result_document(prepared.plan, prepared.strategy, found, made) | extra
    card = publish(folder, document, weights)
    return SearchResult(path=folder.path, document=document, card=card, trials=outcome.trials)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What only the run can tell: everything else in `result.json` follows from its plan.

    Args:
        candidate: The winner.
        test_points: Noisy points on the test slots.
        exact_points: The same without noise; declared-public data only.
        sha256: Of the model's file.
        trials: (parameters, noisy points) of every trial, where they may be shown.
        steps_made: How many steps the released network's training made.
    """

    candidate: Candidate
    test_points: int
    exact_points: int | None
    sha256: str
    trials: tuple[tuple[dict[str, Any], float | int | None], ...] = ()
    steps_made: int = 0


def result_document(plan: Plan, strategy: Strategy, found: Found, made: Made) -> dict[str, Any]:
    """Return `result.json`, but for what is made of it; docs/result.md describes every field."""
    from pasearch.report.plan import task_of

    candidate, schema = found.candidate, plan.schema
    total, trainable = candidate.parameters(schema.shape, schema.outputs)
    recipe = plan.final_recipe(candidate) if plan.aside else plan.trial_recipe(candidate)
    document: dict[str, Any] = {
        **head(plan, task_of(plan), strategy.way, strategy.describe()),
        "space": plan.space.to_json(),
        "recipe": {
            **recipe.to_json(),
            "sampling_probability": recipe.sampling_probability(plan.kept_slots),
            "name": plan.recipe_name(candidate),
        },
        "best": {
            **candidate.to_json(),
            "architecture": candidate.describe(),
            "parameters": total,
            "trainable_parameters": trainable,
        },
        "score": score_json(plan, found.test_points, found.exact_points),
        "model": {"file": "model.pt", "sha256": found.sha256},
        "bought": plan.bought(),
        "alternatives": plan.alternatives(),
        "searched_on": plan.searched_on,
        "judged_on": plan.judged_on,
        **tail(plan, made),
        "plan": {
            **plan.basis,
            "strategy": to_settings(strategy),
            "recipe_names": list(plan.recipe_names),
        },
    }
    if isinstance(recipe.schedule, Validation):
        document["recipe"]["steps_made"] = found.steps_made
    if not strategy.hides_trials:
        document["trials"] = [
            {"parameters": parameters, "noisy_correct": value} for parameters, value in found.trials
        ]
        document["unique_trials"] = len({repr(parameters) for parameters, _ in found.trials})
    return document
