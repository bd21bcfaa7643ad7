"""The commands `arch`, `features`, `train`, `plan` and `resume`."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasearch.api.request import FeatureRequest, Request, SearchRequest, TrainRequest
from pasearch.cli.app import Imports, Json, Quiet, Run, Sign, Verbose, app, plan_app
from pasearch.cli.options import GroupedCommand, add_request_options, format_flags, wrap_lines
from pasearch.cli.paths import check_paths
from pasearch.errors import BudgetError
from pasearch.terminal_escaping import escape_text, format_epsilon

if TYPE_CHECKING:
    from pasearch.api.lifecycle import Prepared
    from pasearch.results import Result

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]

TASKS: tuple[tuple[type[Request], str, str], ...] = (
    (
        SearchRequest,
        "pasearch.api.search",
        "Search for an architecture and train the best one, under one total privacy budget.",
    ),
    (
        FeatureRequest,
        "pasearch.api.features",
        "Select features and train a model on them, under one total privacy budget.",
    ),
    (
        TrainRequest,
        "pasearch.api.search",
        "Train one network with one recipe, without a search, under one total privacy budget.\n\n"
        "Several recipes (--recipe A --recipe B) are compared on disjoint subsets of the records, "
        "and one is selected. --architecture defaults to the first network of the portfolio.",
    ),
)
"""Request class of each task, the name of the module that runs it, and the help of its command."""


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt within the block on Ctrl-C and on SIGTERM.

    Python ignores an exception that is raised while an object is deleted, such as in the callback
    of a weak reference. An interrupt at that moment would be lost, so it is repeated every second.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {each: signal.signal(each, interrupt) for each in signals}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for each, handler in before.items():
            signal.signal(each, handler)


@raise_on_signals()
def plan_and_run(
    module: str, request: type[Request], asked: dict[str, Any], *, sign: Path | None = None,
    dry_run: bool = False, as_json: bool = False, quiet: bool = False, verbose: bool = False,
) -> None:  # fmt: skip
    """Plan a task, print the plan, run it, and print the result.

    Args:
        module: Name of the module that runs the task.
        request: Request class of the task.
        asked: Values of the options, by their Python names.
        sign: File with the private key that signs the result; None: no signature.
        dry_run: Whether to stop after the plan.
        as_json: Whether to print JSON.
        quiet: Whether to print only the last line of the result.
        verbose: Whether to print the whole plan.
    """
    check_paths(asked, run=not dry_run)
    signed = _make_signer(sign)
    prepared = _prepare(module, request, asked, show=not (as_json or quiet))
    if dry_run:
        _show_plan(prepared, as_json=as_json, quiet=quiet, alone=True, verbose=verbose)
        _exit_if_refused(prepared)
        return
    from pasearch.api.lifecycle import check_not_refused
    from pasearch.api.resolve import choose_device
    from pasearch.progress import show_progress

    choose_device(prepared.request)
    check_not_refused(prepared)
    with _note_broken_pipe("The run was not started."):
        _show_plan(prepared, as_json=as_json, quiet=quiet, alone=False, verbose=verbose)
    with show_progress(prepared.plan.trainings, show=not (quiet or as_json)) as bar:
        result = import_module(module).run(prepared, progress=bar)
    show_finished(signed(result), as_json=as_json, quiet=quiet)


def show_finished(result: Result, *, as_json: bool, quiet: bool) -> None:
    """Print the result of a run that has just finished, as `show_result`."""
    with _note_broken_pipe(f"The run is finished: `pasearch report {result.path}` shows it."):
        show_result(result, as_json=as_json, quiet=quiet)


@contextmanager
def _note_broken_pipe(otherwise: str) -> Iterator[None]:
    """Add the state of the run to the exception if the output was closed, as by `head`."""
    try:
        yield
    except BrokenPipeError as error:
        error.add_note(otherwise)
        raise


def _add_task(request: type[Request], module: str, about: str) -> None:
    """Add the command of a task, and its subcommand of `pasearch plan`."""

    @app.command(request.task, cls=GroupedCommand, help=about)
    @add_request_options(request, run=True)
    def run_task(
        asked: dict[str, Any], sign: Sign = None, dry_run: DryRun = False, as_json: Json = False,
        quiet: Quiet = False, verbose: Verbose = False,
    ) -> None:  # fmt: skip
        plan_and_run(
            module, request, asked, sign=sign, dry_run=dry_run, as_json=as_json, quiet=quiet,
            verbose=verbose,
        )  # fmt: skip

    @plan_app.command(
        request.task, cls=GroupedCommand,
        short_help=f"Print the plan of `pasearch {request.task}`.",
        help=f"Print the plan of `pasearch {request.task}`: nothing is written, and no private "
        "record is read.",
    )  # fmt: skip
    @add_request_options(request, run=False)
    def plan_task(asked: dict[str, Any], as_json: Json = False, verbose: Verbose = False) -> None:
        check_paths(asked, run=False)
        prepared = _prepare(module, request, asked, show=not as_json)
        _show_plan(prepared, as_json=as_json, alone=True, verbose=verbose)
        _exit_if_refused(prepared)


for _task in TASKS:
    _add_task(*_task)


@app.command()
def resume(
    path: Run,
    sign: Sign = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            help="Store of the trials, if its address has changed or needs a password. [default: "
            "that of the run]",
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray-address",
            help="Address of the Ray cluster, if it has changed; local starts one on this machine. "
            "[default: that of the run]",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    imported: Imports = None,
) -> None:
    """Finish an interrupted run of any task, at the privacy cost that was planned."""
    signed = _make_signer(sign)
    from pasearch.api.resume import resume as finish

    progress = False if quiet or as_json else None
    with raise_on_signals():
        found = signed(finish(path, storage=storage, ray_address=ray_address, progress=progress))
    show_finished(found, as_json=as_json, quiet=quiet)


def _prepare(
    module: str, request: type[Request], asked: dict[str, Any], *, show: bool
) -> Prepared[Any]:
    """Make the request and the plan of a command.

    With `show`, log messages of the package about long computations are printed, each once.
    """
    handler, seen = logging.StreamHandler(sys.stderr), set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        before = len(seen)
        seen.add(record.getMessage())
        return len(seen) > before

    handler.addFilter(is_new)
    handler.format = lambda record: escape_text(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("pasearch")
    level = logger.level
    if show:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        return import_module(module).prepare_run(request(asked.pop("data"), **asked))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _show_plan(
    prepared: Prepared[Any], *, as_json: bool = False, quiet: bool = False, alone: bool,
    verbose: bool = False,
) -> None:  # fmt: skip
    """Print a plan: a summary before a run, or the whole plan if it is printed alone."""
    from pasearch.api.lifecycle import forecast_ledger
    from pasearch.report.plan import describe_ledger, feature_plan_text, plan_text
    from pasearch.runs.folder import RUNS_FOLDER
    from pasearch.search.plan import Plan
    from pasearch.training.presets import select_settable_fields

    plan, usual = prepared.plan, prepared.request.budget is None
    if as_json and alone:
        planned = plan.to_json()
        if isinstance(plan, Plan):
            planned["recipe"] = select_settable_fields(planned["recipe"])
        typer.echo(json.dumps(planned, indent=2))
    elif quiet and alone:
        price = plan.price
        typer.echo(
            f"Privacy cost: epsilon {format_epsilon(price.epsilon)}, delta {price.delta:g} "
            f"({price.accountant})."
        )
    elif not (as_json or quiet):
        text: Any = plan_text if isinstance(plan, Plan) else feature_plan_text
        detail = "whole" if verbose else "prices" if alone else "summary"
        report = ledger = ""
        if not alone:
            out = prepared.request.out
            folder = f"{RUNS_FOLDER}/{prepared.dataset.name}-<number>" if out is None else str(out)
            report = f"{folder}/release/report.html"
        if prepared.request.ledger is not None and not plan.public:
            ledger = describe_ledger(str(prepared.request.ledger), forecast_ledger(prepared))
        message = format_flags(text(plan, usual=usual, detail=detail, report=report, ledger=ledger))
        typer.echo(wrap_lines(message) + "\n")
        if prepared.request.seed is not None:
            typer.echo("Warning: this run is not private, because --seed makes the noise known.")
        if (store := getattr(prepared.request, "storage", None)) is not None:
            exact = plan.strategy.selection_rule == "disjoint portions"
            message = (
                f"Trials: stored in {store}. Anybody who can read this {store.kind} sees the "
                f"number and times of trials and their {'exact' if exact else 'noisy'} scores, "
                "which the privacy cost does not cover. Protect it like the private folder of "
                "the run."
            )
            typer.echo(wrap_lines(escape_text(message)) + "\n")
        if prepared.request.executor == "ray":
            message = (
                "Trainings: on a Ray cluster. Anybody who can observe it sees the number and times "
                "of trainings, which the privacy cost does not cover; anybody who can log in to "
                "its machines can read the records. Protect it like the private folder of the run."
            )
            typer.echo(wrap_lines(message) + "\n")


def _exit_if_refused(prepared: Prepared[Any]) -> None:
    """Exit after a plan with the code of its run, if the run would be refused."""
    if prepared.plan.refusals and not prepared.request.force:
        raise typer.Exit(BudgetError.exit_code)


def _make_signer(path: Path | None) -> Callable[[Result], Result]:
    """Read the private key, and return a function that signs a result and returns it.

    Without a key, the function only returns the result.
    """
    if path is None:
        return lambda result: result
    from pasearch.verification.signing import read_private_key, sign

    key = read_private_key(path)

    def sign_result(result: Result) -> Result:
        sign(result.path, key)
        return result

    return sign_result


def _describe_best(document: dict[str, Any]) -> str:
    """Describe the released model of a finished run in one line."""
    from pasearch.report.wording import describe_features, describe_network
    from pasearch.results import FEATURE_SELECTION

    if document["task"] == FEATURE_SELECTION:
        return describe_features(document)
    from pasearch.report.facts import restore_recipe
    from pasearch.report.wording import format_settings, format_steps
    from pasearch.spaces.candidate import Candidate

    best, recipe = document["best"], document["recipe"]
    total, trained = best["parameters"], best["trainable_parameters"]
    details = [f"{total:,} parameters, {'all' if total == trained else f'{trained:,}'} trained"]
    details += [f"{setting} {value}" for setting, value in format_settings(best["settings"])]
    if "steps_made" in recipe:
        details.append(f"{format_steps(restore_recipe(recipe), recipe['steps_made'])} steps")
    return f"{describe_network(Candidate.from_json(best))} ({'; '.join(details)})"


def show_result(result: Result, *, as_json: bool, quiet: bool) -> None:
    """Print the result of a finished run: five lines, its `result.json`, or only the last line."""
    from pasearch.report.facts import find_result_warnings
    from pasearch.report.score import describe_score
    from pasearch.report.wording import describe_data, describe_protection

    document = result.document
    if as_json:
        typer.echo(json.dumps({**document, "path": str(result.path)}, indent=2))
        return
    if not quiet:
        data = document["dataset"]
        name, score = describe_score(document, result.schema)
        lines = [
            f"Data: {describe_data(data['name'], data['n'], result.schema)}",
            f"Model: {_describe_best(document)}",
            f"{name}: {score}",
            describe_protection(document),
        ]
        found = document.get("measured_crossover") or document.get("crossover") or {}
        measured = [found["sentence"]] if found.get("kind") == "measured" else []
        for line in [*lines, *measured, *find_result_warnings(document, result.schema)]:
            typer.echo(wrap_lines(format_flags(escape_text(line))))
    price = document["price"]
    note = ""
    if document["reproducible"]:
        note = " (NOT PRIVATE: --seed makes the noise known)"
    if document["dataset"]["declared_public"]:
        note = " (NOT PRIVATE: the data was declared public)"
    release = result.path if result.path.name == "release" else result.path / "release"
    last = (
        f"Privacy cost: epsilon {format_epsilon(price['epsilon'])}, delta {price['delta']:g}{note}"
        f". Report, model and privacy card: {escape_text(release)}"
    )
    typer.echo(last if quiet else wrap_lines(last))
