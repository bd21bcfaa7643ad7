"""The Python API: plan a search, run it, resume it. The command line is a thin layer over this.

    request  ->  data set (form only)  ->  plan (printed)  ->  folder, ledger, keys  ->  search
             ->  release/ (all at once)  ->  keys destroyed

Source: docs/rules.md, rules 1, 11 and 12; docs/result.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import positive, whole
from pasearch.data.partitions import Dataset, Split, make_split
from pasearch.data.sources import from_arrays, load_dataset
from pasearch.errors import InterruptedRunError, UsageError
from pasearch.plan import Plan, make_plan
from pasearch.search.strategies import strategy as named_strategy
from pasearch.spaces.space import MOST_SCALE, SearchSpace
from pasearch.spaces.space import space as named_space
from pasearch.training.recipe import Recipe, default_recipe

if TYPE_CHECKING:
    import numpy as np

    from pasearch.results import SearchResult
    from pasearch.search.engine import Outcome, Progress
    from pasearch.search.strategy import Strategy

    Data = str | Path | tuple[np.ndarray, np.ndarray] | Dataset

TASK = "architecture search"
PRESETS = {"paas-paper": {"strategy": "paas", "score_epsilon": 0.02}}
"""Settings under one name; `paas-paper` has the paper's epsilon' of a score (Bao et al., IX-A)."""

DEVICES = ("auto", "cpu", "cuda")


class Options(TypedDict, total=False):
    """Everything that may be said about a search beside data and budget; see `Request`."""

    strategy: str
    space: str | Path | Mapping[str, Any] | SearchSpace
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
    data_is_public: bool
    bounds: tuple[float, float] | None
    classes: int | None
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
        strategy: One of `search.strategies.STRATEGIES`.
        space: A built-in space, a TOML path, or a dictionary.
        candidates: See `search.strategies.strategy`.
        generations: See there.
        law: See there.
        max_candidates: K is redrawn until it is at most this.
        preset: One of `PRESETS`.
        score_epsilon: Epsilon of one score, instead of the most that fits.
        batch: Expected batch size, instead of the default for n.
        steps: Number of steps, instead.
        learning_rate: Instead of the one tuned to the noise.
        split: None for shares .8, .1, .1; "paper"; or three shares "train,validation,test".
        search_share: Share of the training slots set aside for the search; 0 keeps the winner.
        data_is_public: The user declares every record public.
        bounds: Declared (low, high) of the features, for .npz files and arrays.
        classes: Declared number of classes, for .npz files and arrays.
        data_root: Folder of the image data sets.
        download: Let torchvision download what is missing.
        device: "auto", "cpu" or "cuda".
        seed: Makes the noise reproducible, and the run not private: tests and benchmarks only.
    """

    data: str
    epsilon: float
    delta: float | None = None
    strategy: str = "rs"
    space: Any = "fcn"
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
    data_is_public: bool = False
    bounds: tuple[float, float] | None = None
    classes: int | None = None
    data_root: str = "data"
    download: bool = False
    device: str = "auto"
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check what no other part checks."""
        Budget(self.epsilon, self.delta)
        for name in ("batch", "steps", "generations", "max_candidates"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        for name in ("candidates", "score_epsilon", "learning_rate"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if self.device not in DEVICES:
            raise UsageError(
                f"Device {self.device!r} is not known: expected one of {', '.join(DEVICES)}."
            )
        if self.preset is not None and self.preset not in PRESETS:
            raise UsageError(
                f"Preset {self.preset!r} is not known: expected one of {', '.join(PRESETS)}."
            )
        if self.learning_rate is not None and not self.learning_rate <= MOST_SCALE:
            raise UsageError(
                f"learning_rate is {self.learning_rate!r}: expected at most {MOST_SCALE:g}."
            )
        if type(self.data_is_public) is not bool:
            raise UsageError(f"data_is_public is {self.data_is_public!r}: expected True or False.")
        counted = isinstance(self.seed, Integral) and not isinstance(self.seed, bool)
        if self.seed is not None and not (counted and self.seed >= 0):
            raise UsageError(f"Seed is {self.seed!r}: expected a whole number, 0 or above.")

    def preset_applied(self) -> Request:
        """Return the request with its preset's settings."""
        settings: dict[str, Any] = PRESETS[self.preset] if self.preset else {}
        return replace(self, **settings)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request with its data set, strategy and solved plan; nothing private was read."""

    request: Request
    dataset: Dataset
    strategy: Strategy
    plan: Plan


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

    _destroy_left_keys(Path(path))
    folder = RunFolder.open(path)
    request = read_request(folder.private)
    if data is None and request.data == "arrays":
        raise UsageError(f"{path} began on arrays in memory: pass them again as `data`.")
    dataset = _dataset(request.data if data is None else data, request)
    try:
        return _run(_prepare(request, dataset), folder, resumed=True, progress=progress)
    except KeyboardInterrupt:
        raise InterruptedRunError(folder.path) from None


def _destroy_left_keys(path: Path) -> None:
    """Destroy the keys of a run that was killed between publishing and destroying them."""
    from pasearch.runs.folder import RunFolder
    from pasearch.runs.keys import Keys

    if any((path / "release").glob("result.json")) and (path / "private" / "keys").exists():
        Keys.forget(RunFolder.open(path, finished=True).private / "keys")


def prepare(data: Data, *, budget: Budget, **options: Unpack[Options]) -> Prepared:
    """Load the data's form and solve the plan; nothing is written."""
    name = str(data) if isinstance(data, (str, Path)) else "arrays"
    request = Request(data=name, epsilon=budget.epsilon, delta=budget.delta, **options)
    return _prepare(request, _dataset(data, request))


def run(prepared: Prepared, *, out: str | Path | None, progress: Progress | None) -> SearchResult:
    """Run a prepared search in a new folder."""
    from pasearch.runs.folder import RunFolder

    device_of(prepared.request)
    request = json.dumps(asdict(_anywhere(prepared)), default=_plain)
    folder = RunFolder.create(out, prepared.dataset.name)
    try:
        folder.atomic_write("request.json", request)
        return _run(prepared, folder, resumed=False, progress=progress)
    except KeyboardInterrupt:
        raise InterruptedRunError(folder.path) from None


def _anywhere(prepared: Prepared) -> Request:
    """Return the request as a resume from another working directory needs it."""
    request = prepared.request
    is_file = request.data.endswith(".npz")
    return replace(
        request,
        space=prepared.plan.space.to_json(),
        data=str(Path(request.data).absolute()) if is_file else request.data,
        data_root=str(Path(request.data_root).absolute()),
    )


def _plain(value: Any) -> Any:
    """Return a number of numpy's or a path as JSON can hold it."""
    return value.item() if hasattr(value, "item") else os.fspath(value)


def read_request(private: Path) -> Request:
    """Return what a run was asked for."""
    try:
        values = json.loads((private / "request.json").read_text(encoding="utf-8"))
        bounds = values["bounds"]
        return Request(**{**values, "bounds": None if bounds is None else tuple(bounds)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{private.parent} stopped before it had begun ({type(error).__name__}): nothing was "
            "read. Start a new run."
        ) from None


def device_of(request: Request) -> str:
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


def _dataset(data: Data, request: Request) -> Dataset:
    declared = {
        "public": request.data_is_public, "bounds": request.bounds, "classes": request.classes
    }  # fmt: skip
    if isinstance(data, Dataset):
        return replace(data, public=data.public or request.data_is_public)
    if isinstance(data, tuple):
        x, y = data
        return from_arrays(x, y, **declared)
    return load_dataset(
        str(data), data_root=request.data_root, download=request.download, **declared
    )


def _prepare(request: Request, dataset: Dataset) -> Prepared:
    effective = request.preset_applied()
    strategy = named_strategy(
        effective.strategy,
        candidates=effective.candidates,
        generations=effective.generations,
        law=effective.law,
        cap=effective.max_candidates,
    )
    plan = make_plan(
        name=dataset.name,
        schema=dataset.schema,
        public=dataset.public,
        budget=Budget(effective.epsilon, effective.delta),
        split=_split(effective, dataset, strategy),
        strategy=strategy,
        space=named_space(effective.space),
        make_recipe=_recipe_maker(effective),
        score_epsilon=effective.score_epsilon,
    )
    return Prepared(request=request, dataset=dataset, strategy=strategy, plan=plan)


def _split(request: Request, dataset: Dataset, strategy: Strategy) -> Split:
    if request.search_share and not (strategy.scored and strategy.private_trials):
        raise UsageError(
            f"--search-share sets slots aside for a private search; strategy {strategy.name!r} "
            "makes none. Leave it out, or take rs, mgrs or paas."
        )
    shares: Any = (0.8, 0.1, 0.1)
    if request.split not in (None, "paper"):
        try:
            shares = tuple(float(share) for share in request.split.split(","))
        except ValueError:
            shares = ()
        if len(shares) != 3:
            raise UsageError(
                f"--split is {request.split!r}: expected 'paper', or three shares "
                "'train,validation,test' such as 0.8,0.1,0.1."
            )
    return make_split(
        dataset.n,
        shares=shares,
        search_share=request.search_share,
        scored=strategy.scored,
        official_test=dataset.official_test,
        paper=request.split == "paper",
    )


def _recipe_maker(request: Request) -> Callable[[int], Recipe]:
    def make(slots: int) -> Recipe:
        recipe = default_recipe(
            slots, batch=request.batch, steps=request.steps, learning_rate=request.learning_rate
        )
        recipe.sampling_probability(slots)  # a batch larger than the partition is refused here
        return recipe

    return make


def _run(
    prepared: Prepared, folder: Any, *, resumed: bool, progress: Progress | None
) -> SearchResult:
    from pasearch.runs.journal import Journal
    from pasearch.runs.keys import Keys
    from pasearch.runs.ledger import Ledger
    from pasearch.search.engine import Progress as Silent
    from pasearch.search.engine import Search

    plan, dataset, request = prepared.plan, prepared.dataset, prepared.request
    device = device_of(request)
    ledger_path, keys_path = folder.private / "ledger.sqlite", folder.private / "keys"
    begun, known = keys_path.exists(), ledger_path.exists()
    if resumed:
        _check_whole(folder, keys=begun, ledger=known)
    # The ledger's lock comes first: two processes never hold the keys of one run.
    ledger = Ledger.open(ledger_path) if known else Ledger.create(ledger_path, plan.lines)
    with ledger:
        marks = fingerprint(dataset, plan, device)
        if resumed and begun:
            keys = Keys.open(keys_path, marks)
        elif ledger.spent():
            raise UsageError(f"{folder.path} has spent, but its keys are gone: start a new run.")
        elif ledger.lines != plan.lines:
            raise UsageError(f"{folder.path} was made for another plan: start a new run.")
        else:
            keys = Keys() if request.seed is None else Keys.from_seed(request.seed)
            keys.save(keys_path, marks)
        dataset.partition(plan.split, keys.stream("split").generator())
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
            ).run()
        finally:
            journal.close()
        elapsed = time.time() - folder.started
        result = _publish(prepared, outcome, folder, device, keys.reproducible, elapsed)
        keys.destroy()
    return result


def _check_whole(folder: Any, **parts: bool) -> None:
    """Refuse a run whose parts do not belong together: trials without the keys that made them."""
    trials = any((folder.private / name).exists() for name in ("trials.sqlite", "trials"))
    gone = [name for name, there in parts.items() if not there]
    if gone and (parts["keys"] or trials):
        raise UsageError(
            f"{folder.path} has begun, but its {' and '.join(gone)} are gone, so it cannot be "
            "finished under its price: start a new run."
        )


def fingerprint(dataset: Dataset, plan: Plan, device: str) -> str:
    """Return a hash of everything the run's releases depend on; it stays in `private/`."""
    import torch

    code = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        code.update(str(file.relative_to(Path(__file__).parent)).encode() + b"\0")
        code.update(file.read_bytes())
    parts = {
        "data": dataset.fingerprint(),
        "plan": plan.to_json(),
        "code": code.hexdigest(),
        "versions": versions(),
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of everything a result depends on."""
    names = ("dp-accounting", "torch", "numpy", "scipy", "scikit-learn", "deap", "optuna")
    found = {name: version(name) for name in names}
    return {"pasearch": version("pasearch"), "python": platform.python_version(), **found}


def _publish(
    prepared: Prepared,
    outcome: Outcome,
    folder: Any,
    device: str,
    reproducible: bool,
    elapsed: float,
) -> SearchResult:
    import io

    import torch

    from pasearch.report.card import card_json, card_markdown
    from pasearch.results import SearchResult

    buffer = io.BytesIO()
    torch.save(outcome.network.state_dict(), buffer)
    weights = buffer.getvalue()
    document = result_document(prepared, outcome, weights, device, reproducible)
    folder.atomic_write("timings.json", json.dumps({"seconds_since_start": round(elapsed, 1)}))
    card = card_markdown(document)
    folder.publish(
        {
            "result.json": json.dumps(document, indent=2) + "\n",
            "privacy-card.md": card,
            "privacy-card.json": json.dumps(card_json(document), indent=2) + "\n",
            "model.pt": weights,
        }
    )
    return SearchResult(path=folder.path, document=document, card=card, trials=outcome.trials)


def result_document(
    prepared: Prepared, outcome: Outcome, weights: bytes, device: str, reproducible: bool
) -> dict[str, Any]:
    """Return `result.json`; docs/result.md describes every field."""
    from pasearch.results import SCHEMA_VERSION, digest

    plan, strategy = prepared.plan, prepared.strategy
    planned = plan.to_json()
    candidate, schema = outcome.candidate, plan.schema
    total, trainable = candidate.architecture.parameters(schema.shape, schema.classes)
    recipe = plan.final_recipe(candidate) if plan.aside else plan.trial_recipe(candidate)
    tested = plan.split.test
    score: dict[str, Any] = {
        "metric": "accuracy",
        "test": min(1.0, max(0.0, outcome.test_correct / tested)),
        "correct": outcome.test_correct,
        "of": tested,
        "noise": {
            "mechanism": "two-sided geometric",
            "epsilon": plan.test.epsilon,
            "standard_deviation": plan.test.standard_deviation / tested,
        },
    }
    if outcome.exact_accuracy is not None:
        score["exact"] = outcome.exact_accuracy
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "task": TASK,
        "dataset": {
            "name": plan.name,
            "n": plan.split.n,
            "slots": plan.split.sizes(),
            "schema": schema.to_json(),
            "declared_public": plan.public,
        },
        "budget": planned["budget"],
        "price": planned["price"],
        "price_by_partition": planned["price_by_partition"],
        "events": planned["lines"],
        "way": planned["way"],
        "selection": _selection(plan, strategy),
        "strategy": planned["strategy"],
        "space": planned["space"],
        "recipe": {
            **recipe.to_json(),
            "sampling_probability": recipe.sampling_probability(plan.split.train),
        },
        "best": {
            **candidate.to_json(),
            "architecture": candidate.describe(),
            "parameters": total,
            "trainable_parameters": trainable,
        },
        "score": score,
        "model": {"file": "model.pt", "sha256": digest(weights)},
        "bought": [],
        "assumed_public": [],
        "claims": [claim.to_json() for claim in plan.claims()],
        "crossover": None,
        "device": device,
        "reproducible": reproducible,
        "randomness": _randomness(device, reproducible),
        "warnings": planned["warnings"],
        "versions": versions(),
    }
    if not strategy.hides_trials:
        document["trials"] = [
            {"parameters": trial.parameters, "noisy_correct": trial.value}
            for trial in outcome.trials
        ]
        document["unique_trials"] = outcome.unique_trials
    return document


def _selection(plan: Plan, strategy: Strategy) -> dict[str, Any]:
    """Return how the winner was chosen: the law of the number of trainings, never the number."""
    formulas = {
        "none": "nothing is compared",
        "composition": "every planned candidate run is composed",
        "repeat-and-select": "least of eps_Q(delta / E[K]) + log c (privacy profile) and the RDP "
        "bound of Papernot and Steinke 2022",
        "not private": "the search reads data that the user declared public",
    }
    return {
        "way": strategy.way,
        "law": strategy.describe(),
        "bound": plan.price.accountant,
        "formula": formulas[strategy.way],
    }


def _randomness(device: str, reproducible: bool) -> str:
    if reproducible:
        return "derived from --seed: noise reproducible, not private"
    bits = "64 bits of it for CUDA's Philox" if device == "cuda" else "128-bit Philox keys"
    return f"a 256-bit key from the operating system, {bits}, destroyed when the run ended"
