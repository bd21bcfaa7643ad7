"""The tasks: `arch`, `features` and `train`, the plan of each, and `resume`, which finishes any."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasearch.api.request import FeatureRequest, Request, SearchRequest, TrainRequest
from pasearch.cli.app import Json, Quiet, Run, Sign, Verbose, app, plan_app
from pasearch.cli.options import Grouped, asks, with_flags, wrapped
from pasearch.errors import UsageError
from pasearch.shown import shown, shown_lines

if TYPE_CHECKING:
    from pasearch.api.lifecycle import Prepared
    from pasearch.results import Result

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]

TASKS: tuple[tuple[type[Request], str, str], ...] = (
    (
        SearchRequest,
        "pasearch.api.search",
        "Search for the best architecture and train it, under one budget that pays for everything.",
    ),
    (
        FeatureRequest,
        "pasearch.api.features",
        "Choose features and train a model on them, under one budget that pays for both.",
    ),
    (
        TrainRequest,
        "pasearch.api.train",
        "Train one network by one recipe, without a search, under one budget.\n\n"
        "Of several recipes (--recipe A --recipe B) one is chosen, by disjoint portions of the "
        "records. Without --architecture it is the first network of the portfolio.",
    ),
)
"""What each task is asked for, who does it, and its help."""


def do_task(
    module: str,
    asked: dict[str, Any],
    *,
    sign: Path | None = None,
    dry_run: bool = False,
    as_json: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> None:
    """Plan a task, say its price, and carry it out."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signed = _signing(sign)
    prepared = _prepared(module, asked, show=not (as_json or quiet))
    if dry_run:
        _show_plan(prepared, as_json=as_json, quiet=quiet, alone=True, verbose=verbose)
        return
    from pasearch.api.resolve import device_of
    from pasearch.progress import Bar

    device_of(prepared.request)
    _check_out(prepared.request.out)
    _show_plan(prepared, as_json=as_json, quiet=quiet, alone=False, verbose=verbose)
    with Bar(prepared.plan.trainings, show=not (quiet or as_json)) as bar:
        result = import_module(module).run(prepared, progress=bar)
    show_result(signed(result), as_json=as_json, quiet=quiet)


def _add_task(request: type[Request], module: str, about: str) -> None:
    """Add a task's command, and that of its plan."""

    @app.command(request.task, cls=Grouped, help=about)
    @asks(request, run=True)
    def run_task(
        asked: dict[str, Any],
        sign: Sign = None,
        dry_run: DryRun = False,
        as_json: Json = False,
        quiet: Quiet = False,
        verbose: Verbose = False,
    ) -> None:
        do_task(
            module, asked, sign=sign, dry_run=dry_run, as_json=as_json, quiet=quiet, verbose=verbose
        )

    @plan_app.command(request.task, cls=Grouped, help=f"Print the plan of `pasearch {request.task}`"
                      ": nothing is written, and no private record is read.")  # fmt: skip
    @asks(request, run=False)
    def plan_task(asked: dict[str, Any], as_json: Json = False, verbose: Verbose = False) -> None:
        prepared = _prepared(module, asked, show=not as_json)
        _show_plan(prepared, as_json=as_json, alone=True, verbose=verbose)


for _task in TASKS:
    _add_task(*_task)


@app.command()
def resume(path: Run, sign: Sign = None, as_json: Json = False, quiet: Quiet = False) -> None:
    """Finish a run that was interrupted, whatever its task, under the price it began with."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signed = _signing(sign)
    from pasearch.api.resume import resume as finish

    show_result(signed(finish(path)), as_json=as_json, quiet=quiet)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="One recipe, as a file to change.")] = None,
    as_json: Json = False,
) -> None:
    """List the recipes, what of them goes together, and why the rest does not; or show one."""
    from pasearch.training.presets import PRESETS, preset_json, preset_toml
    from pasearch.training.recipe import CONFLICTS

    if name is not None:
        typer.echo(json.dumps(preset_json(name), indent=2) if as_json else preset_toml(name))
        return
    if as_json:
        table = {
            name: {"about": each.about, "source": each.source} for name, each in PRESETS.items()
        }
        typer.echo(json.dumps({"recipes": table, "refused": list(CONFLICTS)}, indent=2))
        return
    width = max(map(len, PRESETS))
    typer.echo(
        "Recipes, for --recipe. `pasearch recipes NAME` shows one as a .toml to change, which "
        "--recipe takes too.\n"
    )
    for name, each in PRESETS.items():
        typer.echo(f"  {name:<{width}}  {each.about} [{each.source}]")
    typer.echo("\nStages go together freely, but:\n")
    for reason in CONFLICTS:
        typer.echo(f"  - {reason}")


@app.command()
def check(
    data: Annotated[Path, typer.Argument(help="A table: a .csv or the like, or a .parquet.")],
    target: Annotated[
        str | None, typer.Option("--target", help="Column to predict. [default: the last one]")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option("--schema", help="Declared columns, a .toml.")
    ] = None,
    quotes: Annotated[
        bool, typer.Option("--quotes/--no-quotes", help="Whether quotation marks enclose cells.")
    ] = True,
    columns: Annotated[
        str | None, typer.Option("--columns", help="Names of the columns, if there is no header.")
    ] = None,
    separator: Annotated[
        str | None, typer.Option("--separator", help="What stands between two cells.")
    ] = None,
    propose: Annotated[
        Path | None, typer.Option("--propose", help="Write the proposed schema to a new .toml.")
    ] = None,
) -> None:
    """For the curator: every problem with its row, and a schema to edit into public knowledge.

    What it prints is private: it shows values, and no budget pays for it.
    """
    from pasearch.data.check import check_table
    from pasearch.data.tables import TableSchema
    from pasearch.files import write_new

    declared = None if schema is None else TableSchema.from_toml(schema)
    if propose is not None and os.path.lexists(propose):
        raise UsageError(f"{propose} exists: name a new file for the proposed schema.")
    if propose is not None and not propose.absolute().parent.is_dir():
        raise UsageError(f"The folder of {propose} is not there: name one that is.")
    report = check_table(
        data, target, declared, quotes=quotes, columns=columns, separator=separator
    )
    typer.echo(shown_lines(report.text()))
    if propose is not None:
        write_new(propose, report.toml())
        typer.echo(f"Proposed schema: {shown(propose)}. Edit it into what is publicly known.")


class _OneLine(logging.Formatter):
    """What is said of work that takes seconds, in one line each."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


@contextmanager
def _told(*, show: bool) -> Iterator[None]:
    """Show on stderr what the package says of work that takes seconds, each sentence once."""
    handler, seen = logging.StreamHandler(sys.stderr), set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        before = len(seen)
        seen.add(record.getMessage())
        return len(seen) > before

    handler.addFilter(is_new)
    handler.setFormatter(_OneLine())
    logger = logging.getLogger("pasearch")
    level = logger.level
    if show:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _prepared(module: str, asked: dict[str, Any], *, show: bool) -> Prepared[Any]:
    """Make the plan that a command's options ask for; say what takes long, if it is to be shown."""
    with _told(show=show):
        return import_module(module).prepare(asked.pop("data"), **asked)


def _check_out(out: str | Path | None) -> None:
    """Refuse a folder that exists before anything is printed."""
    path = None if out is None else Path(out)
    if path is not None and (path.exists() or path.is_symlink()):
        begun = (path / "private").is_dir()
        finish = f", or finish the run that is there with `pasearch resume {path}`" if begun else ""
        raise UsageError(f"{path} exists: a run needs a folder of its own. Name a new one{finish}.")


def _show_plan(
    prepared: Prepared[Any],
    *,
    as_json: bool = False,
    quiet: bool = False,
    alone: bool,
    verbose: bool = False,
) -> None:
    """Print a plan: a summary before a run, or with each price, or as JSON, or its price alone."""
    from pasearch.report.plan import feature_plan_text, plan_text
    from pasearch.search.plan import Plan
    from pasearch.training.presets import said

    plan, usual = prepared.plan, prepared.request.budget is None
    if as_json and alone:
        planned = plan.to_json()
        if isinstance(plan, Plan):
            planned["recipe"] = said(planned["recipe"])
        typer.echo(json.dumps(planned, indent=2))
    elif quiet and alone:
        price = plan.price
        typer.echo(
            f"Price: epsilon {price.epsilon:.4f} at delta {price.delta:g} ({price.accountant})."
        )
    elif not (as_json or quiet):
        text: Any = plan_text if isinstance(plan, Plan) else feature_plan_text
        detail = "whole" if verbose else "prices" if alone else "summary"
        typer.echo(wrapped(with_flags(text(plan, usual=usual, detail=detail))) + "\n")
        if prepared.request.seed is not None:
            typer.echo("Warning: --seed makes the noise reproducible: this run is not private.")


def _signing(path: Path | None) -> Callable[[Result], Result]:
    """Return what signs a result, if a key was named; it is read now, before anything runs."""
    if path is None:
        return lambda result: result
    from pasearch.verification.signing import private_key, sign

    key = private_key(path)

    def signed(result: Result) -> Result:
        sign(result.path, key)
        return result

    return signed


def _features_words(document: dict[str, Any]) -> str:
    """Return what was chosen, in a line or two."""
    best, method = document["best"], document["strategy"]["name"]
    chosen = best["features"]
    if best["directions"] is not None:
        return f"Features: {best['directions']} directions in all {best['of']} features ({method})"
    if len(chosen) == best["of"]:
        return f"Features: all {best['of']} ({method})"
    shown = ", ".join(chosen[:8]) + (", ..." if len(chosen) > 8 else "")
    return f"Features: {len(chosen)} of {best['of']} ({method}): {shown}"


def _best_words(document: dict[str, Any]) -> str:
    """Return the released network, and how long it was trained where only the run could tell."""
    from pasearch.results import FEATURES

    if document["task"] == FEATURES:
        return _features_words(document)
    from pasearch.report.networks import parts_of
    from pasearch.report.stages import recipe_of, setting_words, steps_words
    from pasearch.spaces.candidate import Candidate

    best, recipe = document["best"], document["recipe"]
    total, trained = best["parameters"], best["trainable_parameters"]
    details = [f"{total:,} parameters, {'all' if total == trained else f'{trained:,}'} trained"]
    details += [f"{setting} {value}" for setting, value in setting_words(best["settings"])]
    if "steps_made" in recipe:
        details.append(f"{steps_words(recipe_of(recipe), recipe['steps_made'])} steps")
    network = ", then ".join(parts_of(Candidate.from_json(best)))
    return f"Model: {network} ({'; '.join(details)})"


def _score_words(result: Result) -> str:
    """Return how good the released model is, or that it is unknown."""
    from pasearch.report.quality import quality

    found, score = quality(result.document, result.schema), result.document["score"]
    value = "unknown" if found["value"] == "unknown" else f"{score['test']:.3f}"
    unit = " of the width of the target's bounds" if "scale" in score and value != "unknown" else ""
    exact = f"; exactly {score['exact']:.3f} (public data)" if "exact" in score else ""
    return (
        f"{found['name']}: {value}{unit} on {score['of']:,} records, {found['interval']}{exact}. "
        f"{found['verdict']}"
    )


def _meaning_words(document: dict[str, Any]) -> str:
    """Return what the price means of 100 people; nothing where no accountant tells."""
    from pasearch.report.meaning import meaning

    if (told := meaning(document)) is None:
        return "What it protects: see the report."
    return (
        "What it protects: an attacker who knows everyone else's record, and is wrong about "
        f"{told['wrong']} of 100 people, is right about at most {told['right']} of 100."
    )


def show_result(result: Result, *, as_json: bool, quiet: bool) -> None:
    """Say what a finished run found, and its price; or print its document."""
    from pasearch.results import useless

    document = result.document
    if as_json:
        typer.echo(json.dumps({**document, "path": str(result.path)}, indent=2))
        return
    if not quiet:
        typer.echo(shown(_best_words(document)))
        typer.echo(wrapped(shown(_score_words(result))))
        found = document.get("measured_crossover") or document.get("crossover") or {}
        if found.get("kind") == "measured":
            typer.echo(shown(found["sentence"]))
        for line in useless(document):
            typer.echo(wrapped(shown(line)))
        typer.echo(wrapped(_meaning_words(document)))
    price = document["price"]
    note = ""
    if document["reproducible"]:
        note = " (NOT PRIVATE: --seed makes the noise reproducible)"
    if document["dataset"]["declared_public"]:
        note = " (NOT PRIVATE: the data was declared public)"
    typer.echo(
        f"Price: epsilon {price['epsilon']:.4f}, delta {price['delta']:g}{note}. Report, model "
        f"and privacy card: {shown(result.path)}/release"
    )
