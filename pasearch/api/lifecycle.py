"""Start, execution and end of a run of any task.

    request  ->  data set (metadata)   ->  plan (printed)  ->  folder, ledger, keys
             ->  search or selection (`Prepared.execute`)  ->  release/ (all at once)
             ->  keys destroyed

`run` starts a run; `carry_out` also finishes an interrupted one. `create_run` and `reopen_run`
yield its folder, and `open_ledger_and_keys` its ledger and keys. `publish` writes the release.

Source: docs/rules.md, rules 1, 10, 11 and 12; docs/result.md.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pasearch.accounting.budget import Budget
from pasearch.api.binding import check_surroundings, compute_fingerprint, list_versions
from pasearch.api.request import IN_MEMORY_NAME, Request, TrainRequest
from pasearch.api.resolve import choose_device
from pasearch.data.built_in import BUILT_IN_NAMES
from pasearch.data.partitions import Dataset
from pasearch.data.sources import is_path
from pasearch.data.tables import to_plain_json
from pasearch.errors import (
    BudgetError,
    ChargedError,
    InterruptedRunError,
    MachineError,
    PasearchError,
    UsageError,
    describe_system_error,
)
from pasearch.feature_effects import rank_model_effects
from pasearch.files import parse_json, read_json
from pasearch.plan_warnings import MIN_CLASSES
from pasearch.planning import CLASSES_LINE, SELECTION_RULES, events_by_partition
from pasearch.progress import Progress, resolve_progress
from pasearch.registry import describe_extensions, describe_source
from pasearch.report.facts import find_result_warnings
from pasearch.results import SCHEMA_VERSION, Result, compute_digest, model_file_name, restore_schema
from pasearch.runs.cluster import Cluster
from pasearch.runs.folder import RunFolder
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Ledger
from pasearch.runs.sums import SUM_ROUNDING
from pasearch.search.plan import Plan
from pasearch.spaces.user_modules import find_makers, name_maker
from pasearch.training.score_tables import table_to_json

if TYPE_CHECKING:
    from pasearch.features.plan import FeaturePlan
    from pasearch.runs.executors import Executor
    from pasearch.runs.journal import Journal
    from pasearch.runs.keys import Stream
    from pasearch.runs.shared_ledger import Forecast


AnyPlan = TypeVar("AnyPlan", bound="Plan | FeaturePlan")

DATA_SOURCE_FIELDS = ("search_on", "validate_on")
"""Fields of a request that name public data: a file or a built-in data set."""

PATH_FIELDS = ("data_root", "schema", "cache", "ledger")
"""Fields of a request that name other files or folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Resources of a run that is being executed.

    Args:
        folder: Folder of the run.
        ledger: Privacy ledger, opened with the plan's lines.
        keys: Secret randomness of the run.
        device: "cpu" or "cuda".
        progress: Receiver of progress reports.
        executor: Open execution backend.
        trials: Function that opens the store of finished trials, sealed with the run's keys.
    """

    folder: RunFolder
    ledger: Ledger
    keys: Keys
    device: str
    progress: Progress
    executor: Executor
    trials: Callable[[Stream], Journal]

    def engine_fields(self) -> dict[str, Any]:
        """Return the fields that the engines of both tasks use, by name."""
        names = ("folder", "ledger", "keys", "device", "progress", "executor")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class Prepared(Generic[AnyPlan]):
    """A request with its data set and calibrated plan; nothing private has been read.

    Args:
        request: Request of the user.
        dataset: Private or declared-public data set.
        plan: Calibrated plan.
        searched_on: Declared-public data set that the search reads at no cost, if any.
        validated_on: Declared-public data set of the validation queries, if any.
    """

    request: Request
    dataset: Dataset
    plan: AnyPlan
    searched_on: Dataset | None = None
    validated_on: Dataset | None = None

    def make_resume_fields(self) -> dict[str, Any]:
        """Return the fields of the request that are stored in another form than the user gave."""
        return {}

    def execute(self, session: Session) -> Result:
        """Execute the plan: search or select, train, test, publish; return the result."""
        raise NotImplementedError


def run(
    prepared: Prepared[Any],
    *,
    out: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> Any:
    """Run a prepared request in a new folder, and return the result of its task."""
    with create_run(prepared, out) as folder:
        return carry_out(prepared, folder, resumed=False, progress=progress)


def carry_out(
    prepared: Prepared[Any],
    folder: RunFolder,
    *,
    resumed: bool,
    progress: Progress | bool | None = None,
) -> Any:
    """Execute a plan from the start or from its interruption, and return the result."""
    from pasearch.api.trials import open_trials

    plan, dataset, request = prepared.plan, prepared.dataset, prepared.request
    device, cache = choose_device(request), folder.private / "cache"
    with (
        request.make_executor() as executor,
        open_trials(folder, request) as trials,
        open_ledger_and_keys(prepared, folder, device, resumed=resumed) as (ledger, keys),
    ):
        dataset.partition(plan.split, keys.stream("split").generator())
        dataset.workspace = cache
        if isinstance(request, TrainRequest):
            dataset.cache = Path(request.cache or cache)
        dataset.check_disk_space(*plan.front_ends, max_categories=plan.most)
        plan = estimate_schema(plan, dataset, ledger, keys, folder)
        result = replace(prepared, plan=plan).execute(
            Session(
                folder=folder, ledger=ledger, keys=keys, device=device, executor=executor,
                trials=trials,
                progress=resolve_progress(
                    request.progress if progress is None else progress, plan.trainings
                ),
            )
        )  # fmt: skip
        keys.destroy()
    shutil.rmtree(cache, ignore_errors=True)
    return result


def check_not_refused(prepared: Prepared[Any]) -> None:
    """Refuse a run that is certain to fail, unless the request forces it.

    Raises:
        BudgetError: Public facts show that it would fail; nothing was read or charged.
    """
    reasons = prepared.plan.refusals
    if not reasons or prepared.request.force:
        return
    first, *others = reasons
    raise BudgetError(
        f"This run is certain to fail, so nothing was read or charged: {first} To run it anyway, "
        "use `force=True`.",
        *others,
    )


@contextmanager
def create_run(prepared: Prepared, out: str | Path | None) -> Iterator[RunFolder]:
    """Create the folder of a run, and delete it if the run is refused before it is charged.

    Guarantee: afterwards no file time in `release/`, `private/` or the folder reveals when the run
    ended.

    Args:
        prepared: Request to run.
        out: New folder, if the request names none; None: runs/<name>-<number>.

    Raises:
        UsageError: No such device or folder, or a ledger without a total; nothing was written.
        BudgetError: The run is certain to fail and is not forced; nothing was written.
        InterruptedRunError: The user interrupted the run.
    """
    request = prepared.request
    check_not_refused(prepared)
    choose_device(request)
    if not prepared.plan.public:
        check_ledger_budget(request)
    kept = json.dumps(
        request_to_json(request, **prepared.make_resume_fields()), default=to_plain_json
    )
    out = request.out if out is None else out
    folder = RunFolder.create(out, prepared.dataset.name, {"request.json": kept})
    with _handle_errors(folder, new=True):
        yield folder


@contextmanager
def _handle_errors(folder: RunFolder, *, new: bool) -> Iterator[None]:
    """Hide the file times of a finished run; after an error, report whether the run is charged.

    Args:
        folder: Folder of the run.
        new: Whether the run is new; its folder is deleted if it is refused before it has spent.
    """
    try:
        with _report_lost_folder(folder):
            yield
            folder.hide_times()
    except KeyboardInterrupt:
        raise InterruptedRunError(folder.path) from None
    except PasearchError as error:  # its message states how to continue
        if new and isinstance(error, ChargedError):
            folder.hide_times()
        elif new and isinstance(error, (UsageError, BudgetError)):
            if not _has_begun(folder) or not _is_charged(folder):
                folder.discard()
        raise
    except Exception as error:
        then = f"Finished releases are kept: continue with `pasearch resume {folder.path}`."
        if new and not _has_begun(folder):
            folder.discard()
            then = "Nothing was read or charged: repeat the command."
        # The message of an unknown error may contain paths in `private/`, or values of records.
        words = describe_system_error(error)
        if words is None or isinstance(error, BrokenPipeError):
            error.add_note(then)
            raise
        raise MachineError(f"{words} {then}") from None


@contextmanager
def _report_lost_folder(folder: RunFolder) -> Iterator[None]:
    """Replace an error by a message that the run stays charged, if its folder is gone.

    Raises:
        MachineError: The folder was deleted or moved; this replaces the original error.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        if (folder.private / "run.json").exists():
            raise
        raise MachineError(
            f"The run's folder {folder.path} was deleted or moved during the run. The run stays "
            "charged: a shared ledger (`ledger=`) counts its whole plan. If the folder was moved, "
            f"move it back and finish the run with `pasearch resume {folder.path}`. If it is lost, "
            "the run cannot be finished; repeating the command starts another run, which is "
            "charged in addition."
        ) from None


def _has_begun(folder: RunFolder) -> bool:
    """Check whether a run may have read a record or reserved budget in a shared ledger.

    Keys are created before either, and destroyed at the end of the run.
    """
    return (folder.private / "keys").exists() or folder.finished


@contextmanager
def reopen_run(path: str | Path) -> Iterator[RunFolder]:
    """Open the folder of an interrupted run.

    Guarantee: afterwards no file time reveals when the run ended.

    Raises:
        UsageError: No run in the folder, or a finished one.
        InterruptedRunError: The user interrupted the run again.
    """
    path = Path(path)
    if path.name == "release" and (path.parent / "private").is_dir():
        path = path.parent
    if any((path / "release").glob("result.json")) and (path / "private" / "keys").exists():
        # The run was killed between publishing and destroying its keys.
        folder = RunFolder.open(path, finished=True)
        Keys.forget(folder.private / "keys")
        folder.hide_times()
    folder = RunFolder.open(path)
    with _handle_errors(folder, new=False):
        yield folder


def publish(folder: RunFolder, document: dict[str, Any], model: bytes) -> str:
    """Publish `result.json`, card, report and model in one atomic step; return the card's text.

    Args:
        folder: Folder of a run that has not published.
        document: Content of `result.json`; warnings, effects and hashes of files are added to it.
        model: Content of the file of weights.
    """
    document["warnings"] += find_result_warnings(document, restore_schema(document))
    if found := rank_model_effects(document, model):
        document["effects"] = found
    elapsed = round(time.time() - folder.started, 1)
    folder.atomic_write("timings.json", json.dumps({"seconds_since_start": elapsed}))
    # Rendered from the parsed file, so that `verify` renders the same texts.
    texts = render_release_files(parse_json(json.dumps(document), "result.json"))
    files = {
        **{name: text.encode() for name, text in texts.items()},
        model_file_name(document): model,
    }
    document["files"] = {name: compute_digest(content) for name, content in sorted(files.items())}
    folder.publish({**files, "result.json": json.dumps(document, indent=2) + "\n"})
    return texts["privacy-card.md"]


def render_release_files(document: dict[str, Any]) -> dict[str, str]:
    """Render the files of `release/` that depend on `result.json` alone; return texts by name."""
    from pasearch.report.card import card_json, card_markdown
    from pasearch.report.html import report_html

    told = {name: value for name, value in document.items() if name != "files"}  # their hashes
    return {
        "privacy-card.md": card_markdown(told),
        "privacy-card.json": json.dumps(card_json(told), indent=2) + "\n",
        "report.html": report_html(told),
    }


def make_result_head(plan: Plan | FeaturePlan, task: str) -> dict[str, Any]:
    """Make the first part of `result.json`: data, budget, privacy cost, selection rule.

    Args:
        plan: Plan of the run.
        task: Name of the task.
    """
    planned = plan.to_json()
    return {
        "schema_version": SCHEMA_VERSION,
        "task": task,
        "dataset": {
            "name": plan.name,
            "n": plan.split.n,
            "slots": plan.split.sizes(),
            "schema": plan.schema.to_json(),
            "declared_public": plan.public,
        },
        "budget": planned["budget"],
        "price": planned["price"],
        "price_by_partition": planned["price_by_partition"],
        "events": planned["lines"],
        "winner": planned["winner"],
        "selection": {
            "rule": plan.selection_rule,
            "law": plan.selection_description,
            "bound": plan.price.accountant,
            "formula": SELECTION_RULES[plan.selection_rule],
        },
        "strategy": planned["strategy"],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnvironment:
    """Environment of a run.

    Args:
        device: "cpu" or "cuda".
        reproducible: Whether the noise follows from a seed.
        secure_noise: Whether all random numbers are from AES-256.
        ledger: Total budget of the shared ledger, if the run has one.
        storage: Kind of the shared store of its trials, if the run has one.
        cluster: Whether a Ray cluster trained.
        data_root: Whether built-in data were read from a folder that the user named.
    """

    device: str
    reproducible: bool
    secure_noise: bool = False
    ledger: dict[str, float] | None = None
    storage: str | None = None
    cluster: bool = False
    data_root: bool = False


def make_result_tail(plan: Plan | FeaturePlan, made: RunEnvironment) -> dict[str, Any]:
    """Make the last part of `result.json`: attack bound, assumptions, warnings, environment."""
    if made.secure_noise:
        drawn = "all random numbers from AES-256"
    elif made.device == "cuda":
        drawn = "noise from CUDA's Philox (64 secret key bits, 61 offset bits), batches from Philox"
    else:
        drawn = "noise from AES-256, batches and candidates from Philox (128 bits)"
    randomness = (
        "derived from a seed: noise reproducible, not private"
        if made.reproducible
        else "a 256-bit key from the operating system, destroyed when the run ended; " + drawn
    )
    return {
        "attack": plan.attack,
        "sum_rounding": SUM_ROUNDING,
        "assumed_public": list(plan.assumed_public),
        "claims": [claim.to_json() for claim in plan.list_published_bounds()],
        "crossover": None,
        "auto": plan.auto,
        "ledger": made.ledger,
        "two_runs": None if plan.public or made.ledger else plan.two_runs,
        "device": made.device,
        "reproducible": made.reproducible,
        "secure_noise": made.secure_noise,
        "randomness": randomness,
        "warnings": list(plan.warnings),
        "versions": list_versions(cluster=made.cluster)
        | describe_extensions(plan.parts)
        | {name_maker(each): describe_source(each) for each in find_makers(plan)},
        **({} if made.storage is None else {"storage": made.storage}),
        **({"executor": Cluster.name} if made.cluster else {}),
        **({"data_root": True} if made.data_root else {}),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutput:
    """Output of a run that `result.json` states; everything else there follows from the plan.

    Args:
        test_points: Noisy score count of the test records.
        exact_points: Exact score count; declared-public data only.
        test_cells: Entries of the noisy confusion matrix, row by row, if one was released.
        sha256: SHA-256 of the model's file.
    """

    test_points: int
    exact_points: int | None
    sha256: str
    test_cells: Sequence[int] = ()

    def make_task_fields(self, plan: Any, score: dict[str, Any]) -> dict[str, Any]:
        """Make the fields of `result.json` that depend on the task: space, recipe, best, ...

        Args:
            plan: Plan of the run.
            score: Test score from `make_score_json`.
        """
        raise NotImplementedError


def make_result_document(
    plan: Plan | FeaturePlan, found: RunOutput, made: RunEnvironment
) -> dict[str, Any]:
    """Make `result.json`, without the fields that `publish` adds; docs/result.md describes it."""
    score = make_score_json(plan, found.test_points, found.exact_points, found.test_cells)
    own = found.make_task_fields(plan, score)
    return {
        **make_result_head(plan, own["task"]),
        "space": own["space"],
        "recipe": own["recipe"],
        "best": own["best"],
        "score": score,
        "model": own["model"],
        "estimated_privately": plan.estimated_privately(),
        "alternatives": [],
        "searched_on": plan.searched_on,
        "validated_on": plan.validated_on,
        **make_result_tail(plan, made),
        "plan": plan.basis,
        **own,
    }


def release_result(
    prepared: Prepared[Any],
    session: Session,
    found: RunOutput,
    model: bytes,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Publish the output of a run, and return the fields of its result.

    Args:
        prepared: Request of the run.
        session: Open run.
        found: Output of the run.
        model: Weights as bytes of a file.
        extra: Further fields of `result.json`.
    """
    made = describe_environment(prepared, session.device, session.keys.reproducible)
    document = make_result_document(prepared.plan, found, made) | dict(extra or {})
    card = publish(session.folder, document, model)
    return {"path": session.folder.path, "document": document, "card": card}


def make_score_json(
    plan: Plan | FeaturePlan, points: int, exact: int | None, cells: Sequence[int] = ()
) -> dict[str, Any]:
    """Make the field `score` of `result.json`: the noisy test score, exact too on public data.

    Args:
        plan: Plan of the run.
        points: Noisy score count; ignored if `cells` are given.
        exact: Exact score count; declared-public data only.
        cells: Entries of the noisy confusion matrix, row by row; empty without one.
    """
    tested, metric = plan.split.test, plan.test_metric if cells else plan.score_metric
    own, deviation = (
        list(cells) or [points],
        metric.make_noise(plan.test.epsilon).standard_deviation,
    )
    if cells:
        points = metric.compute_points(own, tested, deviation)
    spread = metric.estimate_spread(own, tested, deviation)

    def fraction_of(count: int) -> float:
        return metric.to_metric_value(min(1.0, max(0.0, count / (tested * metric.max_points))))

    score: dict[str, Any] = {
        "metric": metric.noun,
        "test": fraction_of(points),
        "points": points,
        "of": tested,
        "noise": {
            "mechanism": "two-sided geometric",
            "epsilon": plan.test.epsilon,
            "standard_deviation": metric.compute_slope(points / (tested * metric.max_points))
            * spread,
        },
    }
    if cells:
        score |= table_to_json(own, metric.columns)
    if plan.schema.regression:
        null = "are left out" if cells else "count as wrong by all"
        score["scale"] = f"of the width of the target's bounds; null records {null}"
    if exact is not None:
        score["exact"] = fraction_of(exact)
    return score


def name_data(data: object) -> str:
    """Return the path or name of data as a string; `IN_MEMORY_NAME` for data in memory."""
    return str(data) if isinstance(data, (str, Path)) else IN_MEMORY_NAME


def request_to_json(request: Request, **spelt_out: Any) -> dict[str, Any]:
    """Convert a request to plain values with absolute paths, for a resume from any folder.

    Args:
        request: Request of the user.
        spelt_out: Values that replace fields of the request, from `make_resume_fields`.
    """
    left = {"data", "budget", "progress", "out", *spelt_out}
    values = {each.name: getattr(request, each.name) for each in fields(request)}
    paths = {name: values.get(name) for name in (*DATA_SOURCE_FIELDS, *PATH_FIELDS)}
    absolute = {
        name: str(Path(path).absolute())
        for name, path in {**paths, "data": name_data(request.data)}.items()
        if isinstance(path, (str, Path)) and path != IN_MEMORY_NAME and is_path(str(path))
    }
    return {
        "task": request.task,
        "data": name_data(request.data),
        "epsilon": request.total.epsilon,
        "delta": request.total.delta,
        **{name: value for name, value in values.items() if name not in left},
        **spelt_out,
        **absolute,
    }


def read_request(private: Path, kinds: Mapping[str, type[Request]], data: Any = None) -> Request:
    """Read the stored request of a run.

    Args:
        private: Folder `private/` of the run.
        kinds: Request class of each task.
        data: The records of the run, if it was started with records in memory.

    Raises:
        UsageError: The run has not begun, or its data were in memory and are not given.
    """
    try:
        try:
            values: Any = read_json(private / "request.json", follow=False)
        except UsageError as error:
            raise ValueError(str(error)) from None
        kind, budget = kinds[values.pop("task")], Budget(values.pop("epsilon"), values.pop("delta"))
        for name in ("bounds", "ledger_budget"):
            values[name] = None if values[name] is None else tuple(values[name])
        if data is not None:
            values["data"] = data
        request = kind(budget=budget, **values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # Keys are created before any record is read.
        told = (
            f"{private.parent} stopped before it began ({type(error).__name__}): nothing was read."
        )
        if (private / "keys").exists():
            told = f"{private.parent} has a request that cannot be read ({type(error).__name__})."
        raise UsageError(f"{told} Start a new run.") from None
    if data is None and request.data == IN_MEMORY_NAME:
        raise UsageError(
            f"{private.parent} used records in memory: pass the same records as `data=`."
        )
    return request


@contextmanager
def open_ledger_and_keys(
    prepared: Prepared, folder: Any, device: str, *, resumed: bool
) -> Iterator[tuple[Ledger, Keys]]:
    """Open the ledger and keys of a new or resumed run, and reserve its plan in a shared ledger.

    Raises:
        UsageError: Inconsistent files, another environment (`check_surroundings`), or a ledger that
            another process uses.
        BudgetError: Data, plan or code have changed, or the shared ledger's budget is exhausted.
    """
    plan, request = prepared.plan, prepared.request
    public = (prepared.searched_on, prepared.validated_on)
    secure = request.secure_noise
    ledger_path, keys_path = folder.private / "ledger.sqlite", folder.private / "keys"
    begun, known = keys_path.exists(), ledger_path.exists()
    if resumed:  # earlier releases used a split that only the same keys reproduce
        made = ("trials.sqlite", "trials", "schema.json", "front_ends")
        released = any((folder.private / name).exists() for name in made)
        gone = [name for name, there in (("keys", begun), ("ledger", known)) if not there]
        if gone and (begun or released):
            raise UsageError(
                f"{folder.path} has begun, but its {' and '.join(gone)} are missing, so it cannot "
                "be finished within its privacy cost: start a new run."
            )
    # The ledger's lock comes first: two processes never hold the keys of one run.
    ledger = Ledger.open(ledger_path) if known else Ledger.create(ledger_path, plan.lines)
    with ledger:
        asked = folder.private / "request.json"
        kept = asked.read_bytes() if asked.exists() else b""
        check_surroundings(folder.private, device, plan, begun=resumed and begun)
        marks, parts = compute_fingerprint(prepared.dataset, plan, device, *public, request=kept)
        if resumed and begun:
            keys = Keys.open(keys_path, marks, parts, secure=secure)
        elif ledger.spent():
            raise UsageError(f"{folder.path} has spent, but its keys are missing: start a new run.")
        elif ledger.lines != plan.lines:
            raise UsageError(f"{folder.path} was made for another plan: start a new run.")
        else:
            seed = request.seed
            keys = Keys(secure=secure) if seed is None else Keys.from_seed(seed, secure=secure)
            keys.save(keys_path, marks, parts)
        _reserve_plan(prepared, folder, keys)
        yield ledger, keys


def _is_charged(folder: Any) -> bool:
    """Check whether a run is charged, in its ledger or in a shared ledger."""
    if _read_reservation(folder):
        return True
    path = folder.private / "ledger.sqlite"
    if not path.exists():
        return False
    with Ledger.open(path) as ledger:
        return bool(ledger.spent())


def describe_environment(prepared: Prepared, device: str, reproducible: bool) -> RunEnvironment:
    """Collect the facts about a run's environment that `result.json` states."""
    from pasearch.runs.shared_ledger import SharedLedger

    request, shared = prepared.request, None
    if request.ledger is not None and not prepared.plan.public:
        if not Path(request.ledger).exists():
            raise _make_lost_ledger_error(request.ledger, "is gone")
        total = SharedLedger.open(request.ledger).total()
        assert total.delta is not None
        shared = {"epsilon": total.epsilon, "delta": total.delta}
    return RunEnvironment(
        device="cuda" if request.gpus_per_worker else device,
        reproducible=reproducible,
        secure_noise=request.secure_noise,
        ledger=shared,
        storage=getattr(getattr(request, "storage", None), "kind", None),
        cluster=request.executor == Cluster.name,
        data_root=name_data(request.data) in BUILT_IN_NAMES
        and request.data_root != Request.data_root,
    )


def check_ledger_budget(request: Request) -> None:
    """Refuse a request that names a new shared ledger without its total budget."""
    if request.ledger is None or Path(request.ledger).exists() or request.ledger_budget is not None:
        return
    raise UsageError(
        f"{request.ledger} does not exist yet: give the total epsilon and delta of all runs on "
        "these data with `ledger_budget=`."
    )


def _reserve_plan(prepared: Prepared, folder: Any, keys: Keys) -> None:
    """Reserve the whole plan in the shared ledger, if the user named one."""
    from pasearch.runs.shared_ledger import SharedLedger

    request, plan = prepared.request, prepared.plan
    if request.ledger is None or plan.public:
        return
    check_ledger_budget(request)
    path, identity = Path(request.ledger), folder.private / "run-id"
    if not keys.reproducible:
        # Other keys make other releases, so they need a separate reservation.
        mark = keys.stream("run id")
        name = f"{mark.child(0).seed64():016x}{mark.child(1).seed64():016x}"
    else:
        if not identity.exists():
            folder.atomic_write(identity, secrets.token_hex(16))
        name = identity.read_text(encoding="utf-8")
    before = _read_reservation(folder)
    if before is not None and not path.exists():
        raise _make_lost_ledger_error(path, "is gone")
    if before and all(name != run for run, _, _ in SharedLedger.open(path).runs()):
        raise _make_lost_ledger_error(
            path, "does not hold this run, so it is not the file that did"
        )
    if before is None and path.exists():
        folder.atomic_write(RESERVATION_FILE, "")
    total = _resolve_ledger_budget(request, plan.split.n)
    SharedLedger.begin(path, total, name, events_by_partition(plan.lines), plan.split.n)
    folder.atomic_write(RESERVATION_FILE, name)


RESERVATION_FILE = "reserved"
"""File in `private/` with the run's name in a shared ledger. It is empty if the ledger existed and
the run is not known to be reserved in it."""


def _read_reservation(folder: RunFolder) -> str | None:
    """Return the content of `RESERVATION_FILE`; None if the run has no shared ledger."""
    path = folder.private / RESERVATION_FILE
    return path.read_text(encoding="utf-8") if path.exists() else None


def _make_lost_ledger_error(path: str | Path, what: str) -> BudgetError:
    return BudgetError(
        f"The shared ledger {path} {what}. It contained the spent budget of all runs on these "
        "data, and a new one would start at 0, so none is made. Restore its newest copy, then "
        "finish the run with `pasearch resume`. Without a copy, treat its whole budget as spent."
    )


def forecast_ledger(prepared: Prepared[Any]) -> Forecast | None:
    """Forecast the total of a shared ledger after a run; None without a ledger or its budget.

    Raises:
        UsageError: The ledger has another total, or cannot be used.

    Cost: none.
    """
    from pasearch.runs.shared_ledger import SharedLedger

    request, plan = prepared.request, prepared.plan
    total = _resolve_ledger_budget(request, plan.split.n)
    if request.ledger is None or plan.public or not (total or Path(request.ledger).exists()):
        return None
    return SharedLedger.forecast(
        request.ledger, total, events_by_partition(plan.lines), plan.split.n
    )


def _resolve_ledger_budget(request: Request, n: int) -> Budget | None:
    """Return the total budget of a shared ledger from the request; None if it states none."""
    named = "The delta of `ledger_budget=`"
    return Budget(*total).resolve(n, named) if (total := request.ledger_budget) else None


def estimate_schema(
    plan: AnyPlan, dataset: Dataset, ledger: Ledger, keys: Keys, folder: RunFolder
) -> AnyPlan:
    """Estimate the undeclared parts of the schema privately; return the plan with the full schema.

    Guarantee: the privacy cost and all lines of the plan are unchanged; they do not depend on the
    estimated schema.

    Args:
        plan: Plan; without undeclared items it is returned unchanged.
        dataset: Partitioned data set, which gets the complete schema.
        ledger: Privacy ledger, opened with the plan's lines.
        keys: Secret randomness of the run.
        folder: Folder of the run; `private/` stores the estimate, so that a resume reuses it.

    Raises:
        ChargedError: Fewer than two classes were found. The run ends, and stays charged.

    Cost: the plan's line "classes", on the training records, and its line "schema", on the
        validation records, or on the test records if there are none.
    """
    if not plan.estimates_schema:
        return plan
    schema, path = plan.schema, folder.private / "schema.json"
    if path.exists():
        estimated = type(schema).from_json(read_json(path, "a schema", follow=False))
    else:
        estimated = schema
        if (classes := plan.class_estimate) is not None:
            with ledger.charged(
                CLASSES_LINE, dataset["train"].labels(), key=CLASSES_LINE
            ) as labels:
                estimated = classes.estimate_classes(schema, labels, keys.stream(CLASSES_LINE))
        if (estimate := plan.schema_estimate) is not None:
            cells = dataset[plan.estimate_partition].cells()
            items = [f"item {number}" for number in range(len(estimated.undeclared))]
            with ledger.charged("schema", cells, key=items) as (features, labels):
                estimated = estimate.estimate(estimated, features, labels, keys.stream("schema"))
        folder.atomic_write("schema.json", json.dumps(estimated.to_json()))
    _check_classes_found(plan, estimated, keys)
    dataset.adopt_schema(estimated)
    return replace(plan, schema=estimated)


def _check_classes_found(plan: Plan | FeaturePlan, schema: Any, keys: Keys) -> None:
    """End a run with fewer than two estimated classes, because no model can be trained."""
    classes = None if schema.regression else getattr(schema.target, "categories", None)
    if classes is None or len(classes) >= MIN_CLASSES:
        return
    keys.destroy()
    found = f"only {classes[0]!r} was found" if classes else "no class was found"
    raise ChargedError(
        f"The classes of {schema.target.name!r} were estimated privately and {found}, so no model "
        f"was trained. The whole plan stays charged (epsilon {plan.price.epsilon:.4g}). Declare "
        "the classes in a new run (`labels=no,yes`, `classes` of an estimator, or a schema), or "
        "use `regression=True` for a numeric target. `pasearch check FILE` shows unreadable rows."
    )
