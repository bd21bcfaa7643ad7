"""The Python API: plan a search, run it, resume it. The command line is a thin layer over this.

    request  ->  data set (form only)  ->  plan (printed)  ->  folder, ledger, keys  ->  search
             ->  release/ (all at once)  ->  keys destroyed

Source: docs/rules.md, rules 1, 11 and 12; docs/result.md.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from pasearch.accounting import calibration
from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import positive, whole
from pasearch.accounting.densities import GaussianNoise
from pasearch.accounting.events import Gaussian
from pasearch.data.images import BUILT_IN
from pasearch.data.partitions import Dataset, Split, make_split
from pasearch.data.sources import BELONGS, from_arrays, load_dataset, useful
from pasearch.errors import InterruptedRunError, PasearchError, UsageError
from pasearch.plan import (
    PURCHASE_DELTA,
    RECIPE,
    Plan,
    Settings,
    events_by_partition,
    make_plan,
    planned_form,
)
from pasearch.search.auto import Option, choose
from pasearch.search.proxy import Proxy
from pasearch.search.strategies import strategy as named_strategy
from pasearch.spaces.portfolio import signal_of, study_for
from pasearch.spaces.space import BUILT_IN as SPACES
from pasearch.spaces.space import MOST_SCALE, Portfolio, Space, read_candidate
from pasearch.spaces.space import space as named_space
from pasearch.training.presets import fitted, preset_of, read_recipe, settings_of
from pasearch.training.recipe import Recipe, default_recipe
from pasearch.training.schedules import Validation

if TYPE_CHECKING:
    import numpy as np

    from pasearch.accounting.densities import Density
    from pasearch.feature_selection import Prepared as PreparedSelection
    from pasearch.feature_selection import Request as Selection
    from pasearch.features.plan import FeaturePlan
    from pasearch.results import SearchResult
    from pasearch.runs.keys import Keys
    from pasearch.runs.ledger import Ledger
    from pasearch.search.engine import Outcome, Progress
    from pasearch.search.strategy import Strategy
    from pasearch.spaces.portfolio import Study
    from pasearch.spaces.space import Candidate
    from pasearch.training.presets import Preset

    Data = str | Path | tuple[np.ndarray, np.ndarray] | Dataset

PRESETS = {"paas-paper": {"strategy": "paas", "score_epsilon": 0.02}}
"""Settings under one name; `paas-paper` has the paper's epsilon' of a score (Bao et al., IX-A)."""

DEVICES = ("auto", "cpu", "cuda")


class Options(TypedDict, total=False):
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
    split: str | None
    search_share: float
    search_on: str | Path | None
    ledger: str | Path | None
    ledger_budget: tuple[float, float] | None
    data_is_public: bool
    bounds: tuple[float, float] | None
    classes: int | None
    regression: bool
    target: str | None
    schema: str | Path | None
    image_side: int | None
    grey: bool
    max_categories: int
    assume_public_schema: bool
    cache: str | Path | None
    data_root: str
    download: bool
    device: str
    seed: int | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks for, as plain values: kept in `private/` so that a run can be resumed.

    Args:
        data: A built-in name, a path, or "arrays" for records in memory.
        epsilon: Of the whole run.
        delta: Of the whole run; None takes the largest power of ten below 1/n.
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
        split: None for the data's own test set, or shares .8, .1, .1; "paper"; or three shares
            "train,validation,test".
        search_share: Share of the training slots set aside for the search; 0 keeps the winner.
        search_on: Declared-public data of the same form, to search on for nothing; the whole budget
            then goes to one training on the private data.
        ledger: A file that adds up all runs on these data, and refuses one that is too much.
        ledger_budget: (epsilon, delta) of all runs together, for a ledger that is not there yet.
        data_is_public: The user declares every record public.
        bounds: Declared (low, high) of the features, for .npz files and arrays.
        classes: Declared number of classes, for .npz files and arrays.
        regression: A number is to be predicted, not a class; for .npz files, arrays and tables.
        target: The column to predict, for tables; None takes the last one.
        schema: Path of the declared schema of a table, TOML.
        image_side: Pixels that the images of a folder are scaled to.
        grey: Images of a folder get one channel.
        max_categories: The most categories that an undeclared column is bought with.
        assume_public_schema: What is not declared is read from the records for nothing.
        cache: A private folder for what costly front ends make, kept for other runs on the same
            data; None keeps it in `private/` until the run ends.
        data_root: Folder of the image data sets.
        download: Let torchvision download what is missing.
        device: "auto", "cpu" or "cuda".
        seed: Makes the noise reproducible, and the run not private: tests and benchmarks only.
    """

    data: str
    epsilon: float
    delta: float | None = None
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
    split: str | None = None
    search_share: float = 0.0
    search_on: str | Path | None = None
    ledger: str | Path | None = None
    ledger_budget: tuple[float, float] | None = None
    data_is_public: bool = False
    bounds: tuple[float, float] | None = None
    classes: int | None = None
    regression: bool = False
    target: str | None = None
    schema: str | Path | None = None
    image_side: int | None = None
    grey: bool = False
    max_categories: int = 32
    assume_public_schema: bool = False
    cache: str | Path | None = None
    data_root: str = "data"
    download: bool = False
    device: str = "auto"
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check what no other part checks."""
        Budget(self.epsilon, self.delta)
        for name in ("batch", "steps", "generations", "max_candidates", "image_side"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        for name in ("candidates", "score_epsilon", "learning_rate"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if self.device not in DEVICES:
            raise UsageError(
                f"Device {self.device!r} is not known: expected one of {', '.join(DEVICES)}."
            )
        if self.ledger_budget is not None and self.ledger is None:
            raise UsageError("--ledger-budget is the total of a ledger: name its file, --ledger.")
        if self.preset is not None and self.preset not in PRESETS:
            raise UsageError(
                f"Preset {self.preset!r} is not known: expected one of {', '.join(PRESETS)}."
            )
        if self.learning_rate is not None and not self.learning_rate <= MOST_SCALE:
            raise UsageError(
                f"learning_rate is {self.learning_rate!r}: expected at most {MOST_SCALE:g}."
            )
        if not whole("max_categories", self.max_categories) >= 2:
            raise UsageError(f"max_categories is {self.max_categories}: expected 2 or more.")
        for name in ("data_is_public", "regression", "grey", "assume_public_schema"):
            if type(value := getattr(self, name)) is not bool:
                raise UsageError(f"{name} is {value!r}: expected True or False.")
        counted = isinstance(self.seed, Integral) and not isinstance(self.seed, bool)
        if self.seed is not None and not (counted and self.seed >= 0):
            raise UsageError(f"Seed is {self.seed!r}: expected a whole number, 0 or above.")

    def preset_applied(self) -> Request:
        """Return the request with its preset's settings, and its recipe read."""
        settings: dict[str, Any] = PRESETS[self.preset] if self.preset else {}
        return replace(self, **settings, recipe=[read_recipe(each) for each in self.recipes])

    @property
    def recipes(self) -> list[Any]:
        """The recipes, as a list: one, if nothing is to be chosen."""
        return list(self.recipe) if isinstance(self.recipe, (list, tuple)) else [self.recipe]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request with its data set, strategy and solved plan; nothing private was read."""

    request: Request
    dataset: Dataset
    strategy: Strategy
    plan: Plan
    proxy: Proxy | None = None
    energy: Dataset | None = None
    given: Candidate | None = None


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
    from pasearch.runs.folder import RunFolder

    destroy_left_keys(Path(path))
    folder = RunFolder.open(path)
    request = read_request(folder.private)
    if data is None and request.data == "arrays":
        raise UsageError(f"{path} began on arrays in memory: pass them again as `data`.")
    dataset = dataset_of(request.data if data is None else data, request)
    try:
        return _run(_prepare(request, dataset), folder, resumed=True, progress=progress)
    except KeyboardInterrupt:
        raise InterruptedRunError(folder.path) from None


def destroy_left_keys(path: Path) -> None:
    """Destroy the keys of a run that was killed between publishing and destroying them."""
    from pasearch.runs.folder import RunFolder
    from pasearch.runs.keys import Keys

    if any((path / "release").glob("result.json")) and (path / "private" / "keys").exists():
        Keys.forget(RunFolder.open(path, finished=True).private / "keys")


def prepare(data: Data, *, budget: Budget, **options: Unpack[Options]) -> Prepared:
    """Load the data's form and solve the plan; nothing is written."""
    if not isinstance(budget, Budget):
        raise UsageError(f"budget is {budget!r}: expected Budget(epsilon=..., delta=...).")
    if unknown := sorted(set(options) - set(Options.__annotations__)):
        raise UsageError(
            f"{', '.join(unknown)}: no such option: expected one of "
            f"{', '.join(Options.__annotations__)}."
        )
    name = str(data) if isinstance(data, (str, Path)) else "arrays"
    request = Request(data=name, epsilon=budget.epsilon, delta=budget.delta, **options)
    return _prepare(request, dataset_of(data, request))


def run(prepared: Prepared, *, out: str | Path | None, progress: Progress | None) -> SearchResult:
    """Run a prepared search in a new folder."""
    from pasearch.runs.folder import RunFolder

    device_of(prepared.request)
    if not prepared.plan.public:
        check_total(prepared.request)
    request = json.dumps(asdict(_anywhere(prepared)), default=plain_json)
    folder = RunFolder.create(out, prepared.dataset.name)
    try:
        folder.atomic_write("request.json", request)
        return _run(prepared, folder, resumed=False, progress=progress)
    except PasearchError:
        if not has_spent(folder):
            shutil.rmtree(folder.path)
        raise
    except KeyboardInterrupt:
        raise InterruptedRunError(folder.path) from None


def has_spent(folder: Any) -> bool:
    """Return whether a run that was refused had charged anything."""
    from pasearch.runs.ledger import Ledger

    path = folder.private / "ledger.sqlite"
    if not path.exists():
        return False
    with Ledger.open(path) as ledger:
        return bool(ledger.spent())


def _anywhere(prepared: Prepared) -> Request:
    """Return the request as a resume from another working directory needs it."""
    request = prepared.request
    paths: dict[str, Any] = {
        name: str(Path(path).absolute())
        for name in ("data_root", "schema", "cache", "ledger")
        if (path := getattr(request, name)) is not None
    }
    named = isinstance(request.space, str) and request.space in ("auto", *SPACES)
    if not named or prepared.plan.searched_on is not None:
        paths["space"] = prepared.plan.space.to_json()
    if prepared.given is not None:
        paths["architecture"] = prepared.given.to_json()
    paths["recipe"] = [read_recipe(each) for each in request.recipes]
    for name in ("data", "search_on", "energy_on"):
        given = getattr(request, name)
        if given is not None and given not in ("arrays", *BUILT_IN):
            paths[name] = str(Path(given).absolute())
    return replace(request, **paths)


def plain_json(value: Any) -> Any:
    """Return a number of numpy's or a path as JSON can hold it."""
    return value.item() if hasattr(value, "item") else os.fspath(value)


def unreadable(private: Path, error: Exception) -> UsageError:
    """Return the refusal of a run whose request cannot be read; keys are made before any read."""
    told = (
        f"{private.parent} stopped before it had begun ({type(error).__name__}): nothing was read."
    )
    if (private / "keys").exists():
        told = f"{private.parent} has a request that cannot be read ({type(error).__name__})."
    return UsageError(f"{told} Start a new run.")


def read_request(private: Path) -> Request:
    """Return what a run was asked for."""
    try:
        values = json.loads((private / "request.json").read_text(encoding="utf-8"))
        if "kind" in values:
            raise UsageError(
                f"{private.parent} is a feature selection: finish it with `pasearch features "
                f"--resume {private.parent}`."
            )
        bounds = values["bounds"]
        return Request(**{**values, "bounds": None if bounds is None else tuple(bounds)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise unreadable(private, error) from None


def device_of(request: Request | Selection) -> str:
    """Return "cpu" or "cuda".

    Raises:
        UsageError: A GPU is demanded and there is none.
    """
    if request.device == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if request.device == "cuda":
        raise UsageError(
            "Device 'cuda' was demanded, but torch finds no CUDA GPU here: "
            "take --device cpu, or --device auto."
        )
    return "cpu"


def dataset_of(data: Data, request: Request | Selection) -> Dataset:
    """Return the data that a request names, or was given: its form is looked at, no value."""
    if isinstance(data, Dataset):
        return replace(data, public=data.public or request.data_is_public)
    if not isinstance(data, (str, Path)) and not (isinstance(data, tuple) and len(data) == 2):
        # Its type only: to show it would be to print records.
        raise UsageError(
            f"data is a {type(data).__name__}: expected a name, a path, or a pair (x, y) of "
            "arrays. Save a table as .csv first, or take an estimator, which fits frames."
        )
    if isinstance(data, tuple):
        return from_arrays(*data, **_said(request, tuple(BELONGS)))
    return _load(str(data), request, tuple(BELONGS))


def _load(source: str, request: Request | Selection, declared: tuple[str, ...]) -> Dataset:
    return load_dataset(source, **_said(request, declared))


def _said(request: Request | Selection, declared: tuple[str, ...]) -> dict[str, Any]:
    """Return what the user says about data, as `Declared` takes it."""
    said = {name: getattr(request, name) for name in (*declared, "data_root", "download")}
    return {**said, "public": request.data_is_public}


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
    from pasearch.training.encoding import Encoded
    from pasearch.training.noise_search import SEARCH, law_of, name_of

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
    from pasearch.training.encoding import Encoded
    from pasearch.training.noise_search import name_of, ranking

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
        budget=Budget(request.epsilon, request.delta).resolve(dataset.n),
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
    """Return the public records that a recipe looks at while it trains; see `_public`."""
    if not _looks(replace(request, energy_on=None)):
        raise UsageError(
            "--energy-on names public records for a recipe that looks at some while it trains, and "
            "this one does not: leave it out, or take sa-dpsgd or dynamic-validation."
        )
    return _public("--energy-on", str(request.energy_on), request, dataset)


def _public(
    option: str, source: str, request: Request, dataset: Dataset
) -> tuple[Dataset, Dataset, tuple[str, ...]]:
    """Return public data, the private data with its schema completed by them, and what that is."""
    public = _load(source, replace(request, data_is_public=True), useful(source))
    _check_elsewhere(option, source, public, dataset)
    public, _ = assume_public(public, request.max_categories)
    assumed: tuple[str, ...] = ()
    if dataset.schema.undeclared:
        assumed = (f"everything undeclared, from the public data {public.name}",)
        dataset = replace(dataset, schema=dataset.schema.completed_by(public.schema))
    Proxy(dataset=public).check(dataset.schema, option)
    return public, dataset, assumed


def _check_elsewhere(option: str, source: str, public: Dataset, private: Dataset) -> None:
    """Refuse public data that may be the private ones: by the number of records alone."""
    itself = source in BUILT_IN and source == private.name and not private.public
    if itself or (source not in BUILT_IN and public.n == private.n):
        # Whether the records are equal, no answer may tell.
        raise UsageError(
            f"{option} {source}: it has as many records as the private data, {public.n:,}, so "
            "it is taken for the private data themselves, which are not public. Name public data "
            "of the same kind; if these are, leave one record out."
        )


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
        budget=Budget(request.epsilon, request.delta),
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
    budget = Budget(request.epsilon, request.delta).resolve(dataset.n)
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
    public, dataset, assumed = _public("--search-on", str(request.search_on), request, dataset)
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


LEDGER_LEAK = 1e-3
"""The share of delta for bought categories where runs share a ledger: it must do for all."""

GIVEN = "given"
"""What the space of one given architecture is called."""

PAID_LOOKS = 20
"""How often a training with charged energies is screened, about: every look costs epsilon."""

FOUND = "found on public data"
"""The name of a space of the one candidate that a search on public data found."""


def assume_public(dataset: Dataset, most: int) -> tuple[Dataset, tuple[str, ...]]:
    """Return the data set with everything undeclared read from its records, and its names."""
    from pasearch.data.purchase import read_free

    names = dataset.schema.undeclared
    if not names:
        return dataset, ()
    return dataset.completed(lambda schema, x, y: read_free(schema, x, y, most)), names


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


def shares_of(split: str | None) -> Any:
    """Return the shares of train, validation and test that `--split` names; None without any.

    Raises:
        UsageError: Not three numbers.
    """
    if split in (None, "paper"):
        return None
    try:
        shares = tuple(float(share) for share in str(split).split(","))
    except ValueError:
        shares = ()
    if len(shares) != 3:
        raise UsageError(
            f"--split is {split!r}: expected 'paper', or three shares 'train,validation,test' such "
            "as 0.8,0.1,0.1."
        )
    return shares


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
    from pasearch.buying import buy_schema
    from pasearch.runs.journal import Journal
    from pasearch.search.engine import Progress as Silent
    from pasearch.search.engine import Search, place_fits

    plan, dataset, request = prepared.plan, prepared.dataset, prepared.request
    device = device_of(request)
    with opened(prepared, folder, device, prepared.proxy, prepared.energy, resumed=resumed) as (
        ledger,
        keys,
    ):
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
                progress=progress or Silent(),
                public=prepared.energy,
            ).run()
        finally:
            journal.close()
        elapsed = time.time() - folder.started
        extra = _on_public(prepared, outcome, folder, progress)
        result = _publish(prepared, outcome, folder, device, keys.reproducible, elapsed, extra)
        keys.destroy()
    if request.cache is None:
        shutil.rmtree(folder.private / "cache", ignore_errors=True)
    return result


@contextmanager
def opened(
    prepared: Prepared | PreparedSelection,
    folder: Any,
    device: str,
    proxy: Proxy | None = None,
    energy: Dataset | None = None,
    *,
    resumed: bool,
) -> Iterator[tuple[Ledger, Keys]]:
    """Open a run's ledger and keys, made anew or found again, its plan reserved.

    Raises:
        UsageError: Parts that do not belong together; another process has the ledger.
        BudgetError: Data, plan, code, versions or device differ from the run that began; the
            ledger of the data set has no room for the plan.
    """
    from pasearch.runs.keys import Keys
    from pasearch.runs.ledger import Ledger

    plan, request = prepared.plan, prepared.request
    ledger_path, keys_path = folder.private / "ledger.sqlite", folder.private / "keys"
    begun, known = keys_path.exists(), ledger_path.exists()
    if resumed:
        check_whole(folder, keys=begun, ledger=known)
    # The ledger's lock comes first: two processes never hold the keys of one run.
    ledger = Ledger.open(ledger_path) if known else Ledger.create(ledger_path, plan.lines)
    with ledger:
        marks = fingerprint(prepared.dataset, plan, device, proxy, energy)
        if resumed and begun:
            keys = Keys.open(keys_path, marks)
        elif ledger.spent():
            raise UsageError(f"{folder.path} has spent, but its keys are gone: start a new run.")
        elif ledger.lines != plan.lines:
            raise UsageError(f"{folder.path} was made for another plan: start a new run.")
        else:
            keys = Keys() if request.seed is None else Keys.from_seed(request.seed)
            keys.save(keys_path, marks)
        reserve(prepared, folder, keys)
        yield ledger, keys


def shared_ledger(prepared: Prepared | PreparedSelection) -> dict[str, float] | None:
    """Return the budget of all runs that share the ledger, if the user named one."""
    from pasearch.runs.allowance import Allowance

    if prepared.request.ledger is None or prepared.plan.public:
        return None
    total = Allowance.open(prepared.request.ledger).total()
    assert total.delta is not None
    return {"epsilon": total.epsilon, "delta": total.delta}


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


def check_total(request: Request | Selection) -> None:
    """Refuse a ledger that is not there yet and has no budget."""
    if request.ledger is None or Path(request.ledger).exists() or request.ledger_budget is not None:
        return
    raise UsageError(
        f"{request.ledger} is not there yet: say what all runs on these data may cost together, "
        "with --ledger-budget EPSILON DELTA."
    )


def reserve(prepared: Prepared | PreparedSelection, folder: Any, keys: Keys) -> None:
    """Reserve the whole plan in the ledger of the data set, if the user named one."""
    from pasearch.runs.allowance import Allowance

    request, plan = prepared.request, prepared.plan
    if request.ledger is None or plan.public:
        return
    check_total(request)
    path, identity = Path(request.ledger), folder.private / "run-id"
    if not keys.reproducible:
        # Other keys make other releases: what they reserve must be a reservation of their own.
        mark = keys.stream("run id")
        name = f"{mark.child(0).seed64():016x}{mark.child(1).seed64():016x}"
    else:
        if not identity.exists():
            folder.atomic_write(identity, secrets.token_hex(16))
        name = identity.read_text(encoding="utf-8")
    total = None
    if request.ledger_budget is not None:
        total = Budget(*request.ledger_budget).resolve(plan.split.n)
    allowance = Allowance.open(path, total)
    events = events_by_partition(plan.lines)
    allowance.reserve(name, events, plan.split.n)


def check_whole(folder: Any, **parts: bool) -> None:
    """Refuse a run whose parts do not belong together: trials without the keys that made them."""
    trials = any((folder.private / name).exists() for name in ("trials.sqlite", "trials"))
    gone = [name for name, there in parts.items() if not there]
    if gone and (parts["keys"] or trials):
        raise UsageError(
            f"{folder.path} has begun, but its {' and '.join(gone)} are gone, so it cannot be "
            "finished under its price: start a new run."
        )


def fingerprint(
    dataset: Dataset,
    plan: Plan | FeaturePlan,
    device: str,
    proxy: Proxy | None = None,
    energy: Dataset | None = None,
) -> str:
    """Return a hash of everything the run's releases depend on; it stays in `private/`."""
    import threadpoolctl
    import torch

    code = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        code.update(str(file.relative_to(Path(__file__).parent)).encode() + b"\0")
        code.update(file.read_bytes())
    parts = {
        "data": dataset.fingerprint(),
        "public data": None if proxy is None else proxy.dataset.fingerprint(),
        "energies": None if energy is None else energy.fingerprint(),
        "plan": plan.to_json(),
        "code": code.hexdigest(),
        "versions": versions(),
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        # A sum's last bit may change with them, and its noise is drawn by the sum.
        "libraries": sorted(map(str, threadpoolctl.threadpool_info())),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of everything a result depends on."""
    names = (
        "dp-accounting", "diffprivlib", "torch", "numpy", "scipy", "scikit-learn", "deap", "optuna",
    )  # fmt: skip
    found = {name: version(name) for name in names}
    return {"pasearch": version("pasearch"), "python": platform.python_version(), **found}


def _publish(
    prepared: Prepared,
    outcome: Outcome,
    folder: Any,
    device: str,
    reproducible: bool,
    elapsed: float,
    extra: dict[str, Any],
) -> SearchResult:
    import io

    import torch

    from pasearch.report.card import card_json, card_markdown
    from pasearch.report.html import report_html
    from pasearch.results import SearchResult

    buffer = io.BytesIO()
    torch.save(torch.nn.Sequential(outcome.front.module, outcome.network).state_dict(), buffer)
    weights = buffer.getvalue()
    document = result_document(prepared, outcome, weights, device, reproducible) | extra
    folder.atomic_write("timings.json", json.dumps({"seconds_since_start": round(elapsed, 1)}))
    card = card_markdown(document)
    folder.publish(
        {
            "result.json": json.dumps(document, indent=2) + "\n",
            "privacy-card.md": card,
            "privacy-card.json": json.dumps(card_json(document), indent=2) + "\n",
            "report.html": report_html(document),
            "model.pt": weights,
        }
    )
    return SearchResult(path=folder.path, document=document, card=card, trials=outcome.trials)


def result_document(
    prepared: Prepared, outcome: Outcome, weights: bytes, device: str, reproducible: bool
) -> dict[str, Any]:
    """Return `result.json`; docs/result.md describes every field."""
    from pasearch.report.plan import task_of
    from pasearch.results import SCHEMA_VERSION, digest

    plan, strategy = prepared.plan, prepared.strategy
    planned = plan.to_json()
    candidate, schema = outcome.candidate, plan.schema
    total, trainable = candidate.parameters(schema.shape, schema.outputs)
    recipe = plan.final_recipe(candidate) if plan.aside else plan.trial_recipe(candidate)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "task": task_of(plan),
        "dataset": data_json(plan),
        "budget": planned["budget"],
        "price": planned["price"],
        "price_by_partition": planned["price_by_partition"],
        "events": planned["lines"],
        "way": planned["way"],
        "selection": selection_json(strategy.way, strategy.describe(), plan.price.accountant),
        "strategy": planned["strategy"],
        "space": planned["space"],
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
        "score": score_json(plan, outcome.test_points, outcome.exact_points),
        "model": {"file": "model.pt", "sha256": digest(weights)},
        "bought": list(outcome.bought),
        "assumed_public": list(plan.assumed_public),
        "claims": [claim.to_json() for claim in plan.claims()],
        "crossover": None,
        "alternatives": plan.alternatives(),
        "auto": plan.auto,
        "searched_on": plan.searched_on,
        "judged_on": plan.judged_on,
        "ledger": shared_ledger(prepared),
        "device": device,
        "reproducible": reproducible,
        "randomness": randomness_words(device, reproducible),
        "warnings": planned["warnings"],
        "versions": versions(),
    }
    if isinstance(recipe.schedule, Validation):
        document["recipe"]["steps_made"] = outcome.steps_made
    if not strategy.hides_trials:
        document["trials"] = [
            {"parameters": trial.parameters, "noisy_correct": trial.value}
            for trial in outcome.trials
        ]
        document["unique_trials"] = outcome.unique_trials
    return document


def data_json(plan: Plan | FeaturePlan) -> dict[str, Any]:
    """Return what `result.json` says of the data."""
    return {
        "name": plan.name,
        "n": plan.split.n,
        "slots": plan.split.sizes(),
        "schema": plan.schema.to_json(),
        "declared_public": plan.public,
    }


def score_json(plan: Plan | FeaturePlan, points: int, exact: int | None) -> dict[str, Any]:
    """Return what the released model does on the test slots: noisy, and exact on public data."""
    tested, most = plan.split.test, plan.points_each

    def share(of: int) -> float:
        right = min(1.0, max(0.0, of / (tested * most)))
        return 1.0 - right if plan.schema.regression else right

    score: dict[str, Any] = {
        "metric": "mean absolute error" if plan.schema.regression else "accuracy",
        "test": share(points),
        "points": points,
        "of": tested,
        "noise": {
            "mechanism": "two-sided geometric",
            "epsilon": plan.test.epsilon,
            "standard_deviation": plan.test.standard_deviation / (tested * most),
        },
    }
    if plan.schema.regression:
        score["scale"] = "of the width of the target's bounds; a null record counts as wrong by all"
    if exact is not None:
        score["exact"] = share(exact)
    return score


def selection_json(way: str, law: str, bound: str) -> dict[str, Any]:
    """Return how the winner was chosen: the law of the number of trainings, never the number."""
    formulas = {
        "none": "nothing is compared",
        "composition": "every planned candidate run is composed",
        "disjoint portions": "the maximum over portions, each with records of its own; the pick by "
        "the exponential mechanism, P ~ e^(epsilon points / (2 points of one record))",
        "repeat-and-select": "least of eps_Q(delta / E[K]) + log c (privacy profile) and the RDP "
        "bound of Papernot and Steinke 2022",
        "not private": "the search reads data that the user declared public",
    }
    return {
        "way": way,
        "law": law,
        "bound": bound,
        "formula": formulas[way],
    }


def randomness_words(device: str, reproducible: bool) -> str:
    """Return where a run's noise came from."""
    if reproducible:
        return "derived from --seed: noise reproducible, not private"
    bits = "64 bits of it for CUDA's Philox" if device == "cuda" else "128-bit Philox keys"
    return f"a 256-bit key from the operating system, {bits}, destroyed when the run ended"
