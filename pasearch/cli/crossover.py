"""`pasearch crossover`: at which epsilon one model becomes better than another, on public data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasearch.accounting.budget import Budget
from pasearch.api.request import SearchRequest, options_of
from pasearch.cli.app import Json, Quiet, app
from pasearch.cli.options import wrapped
from pasearch.cli.paths import check_writable
from pasearch.errors import InterruptedRunError, UsageError
from pasearch.shown import shown

if TYPE_CHECKING:
    from pasearch.crossover.report import CrossoverReport

Data = Annotated[str, typer.Argument(help="As of `arch`: a name, a .csv, a .npz or a folder.")]
Models = Annotated[
    list[str],
    typer.Argument(
        help="Two or more: linear, fcn, cnn or a network's .toml; behind a +, a front end, rwt, "
        "full-batches, recipe:NAME, or which features it is given: cfs:6, random:6, "
        "columns:age,sex, numbers. Such as linear+scattering."
    ),
]
Grid = Annotated[
    str | None,
    typer.Option(
        "--eps-grid",
        help="low:high:logN, or epsilons with commas. [default: .1:10:log12; five on private data]",
    ),
]
Repeats = Annotated[
    int | None,
    typer.Option(
        "--repeats",
        help="Trainings of each model at each epsilon. [default: 10; 2 on private data]",
    ),
]
Eps = Annotated[
    float | None,
    typer.Option(
        "--eps", help="DATA is private: total epsilon of the whole grid and of a final model."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --eps: print the plan and stop.")]
Delta = Annotated[
    float | None, typer.Option("--delta", help="Of each. [default: power of ten below 1/n]")
]
ProxyData = Annotated[
    str | None,
    typer.Option("--proxy", help="Public data of the same form; DATA is private, not read."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="A new folder: crossover.html, crossover.json; with --eps, a run."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with an interrupted comparison in --out.")
]
SAID = {name: option.words for name, _, option in options_of(SearchRequest)}
"""What `arch` says of its options: of who trains, this command means the same."""
Workers = Annotated[int | None, typer.Option("--workers", help=SAID["workers"])]
Executors = Annotated[str, typer.Option("--executor", help=SAID["executor"])]
RayAddress = Annotated[str | None, typer.Option("--ray-address", help=SAID["ray_address"])]
Gpus = Annotated[float | None, typer.Option("--gpus-per-worker", help=SAID["gpus_per_worker"])]
Public = Annotated[bool, typer.Option("--data-is-public", help="You declare the records public.")]
SchemaFile = Annotated[Path | None, typer.Option("--schema", help="A table's schema.")]
Bounds = Annotated[
    tuple[float, float] | None, typer.Option("--bounds", help="Of arrays: low high.")
]
Labels = Annotated[
    str | None, typer.Option("--labels", help="Declared classes, with commas between: no,yes.")
]
Classes = Annotated[
    str | None,
    typer.Option(
        "--classes", help="Of arrays: their number if labels are 0, 1 ..., or all labels."
    ),
]
Regression = Annotated[bool, typer.Option("--regression", help="A number is predicted.")]
Root = Annotated[Path | None, typer.Option("--data-root", help="torchvision's folder.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Of one training.")]
Batch = Annotated[int | None, typer.Option("--batch", help="Expected batch size.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Force = Annotated[bool, typer.Option("--force", help=SAID["force"])]
Seed = Annotated[int, typer.Option("--seed", help="Of splits and noise.")]


@app.command()
def crossover(
    data: Data,
    models: Models,
    eps_grid: Grid = None,
    repeats: Repeats = None,
    eps: Eps = None,
    delta: Delta = None,
    dry_run: DryRun = False,
    proxy: ProxyData = None,
    out: Out = None,
    resume: Resume = False,
    data_is_public: Public = False,
    schema: SchemaFile = None,
    bounds: Bounds = None,
    labels: Labels = None,
    classes: Classes = None,
    regression: Regression = False,
    data_root: Root = None,
    steps: Steps = None,
    batch: Batch = None,
    device: Device = "auto",
    executor: Executors = "auto",
    workers: Workers = None,
    ray_address: RayAddress = None,
    gpus_per_worker: Gpus = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure at which epsilon one model becomes better than another.

    On public data nothing is charged. For private data, give public ones of the same form as
    `--proxy`: they stand for yours, at your number of records. Or measure on the private records
    themselves (`--eps`): the whole grid is planned and paid for under that total, and what is left
    of it trains the best model.
    """
    given: dict[str, Any] = {
        "schema": schema, "bounds": bounds, "labels": labels, "classes": classes,
        "data_root": data_root, "steps": steps, "batch": batch, "regression": regression or None,
        "executor": executor, "workers": workers, "ray_address": ray_address,
        "gpus_per_worker": gpus_per_worker, "device": device,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if eps is not None:
        _paid(
            data, models, given,
            {"eps_grid": eps_grid, "repeats": repeats, "out": out, "force": force or None},
            Budget(eps, delta),
            free={"proxy": proxy, "data_is_public": data_is_public, "resume": resume, "seed": seed},
            how={"dry_run": dry_run, "as_json": as_json, "quiet": quiet},
        )  # fmt: skip
        return
    _check_out(out, resume)
    from pasearch.api.crossover import measure_crossover

    with _kept(out) as store:
        found = measure_crossover(
            data, models, epsilons=eps_grid or ".1:10:log12", store=store, seed=seed,
            repeats=10 if repeats is None else repeats, delta=delta, proxy=proxy, **given,
            data_is_public=data_is_public, on_training=None if quiet or as_json else _told,
        )  # fmt: skip
    _tell(found, out, as_json=as_json, quiet=quiet)


@contextmanager
def _kept(out: Path | None) -> Iterator[Path | None]:
    """Yield where trainings are kept; if they are interrupted, say how to go on."""
    store = None if out is None else out / "trainings.jsonl"
    try:
        yield store
    except KeyboardInterrupt:
        if store is None or not store.is_file():
            raise
        raise InterruptedRunError(store.parent, "the same command and `resume=`") from None


def _tell(found: CrossoverReport, out: Path | None, *, as_json: bool, quiet: bool) -> None:
    """Print a report, and write its page if a folder was named."""
    values = found.to_json()
    if out is not None:
        from pasearch.files import write_new
        from pasearch.report.html import crossover_html

        page = crossover_html(values)
        write_new(out / "crossover.html", page)
        write_new(out / "crossover.json", json.dumps(values, indent=2) + "\n")
    if as_json:
        typer.echo(json.dumps(values, indent=2))
        return
    typer.echo(wrapped(found.sentence() if quiet else found.table()))
    if found.assumes:
        typer.echo(wrapped(f"This was {found.assumes}."))
    if out is not None:
        typer.echo(f"Page: {shown(out / 'crossover.html')}")


def _paid(
    data: str,
    models: list[str],
    given: dict[str, Any],
    grid: dict[str, Any],
    budget: Budget,
    *,
    free: dict[str, Any],
    how: dict[str, Any],
) -> None:
    """Measure on private records, under one total: a search whose strategy is the grid."""
    from pasearch.api.crossover import grid_options
    from pasearch.cli.tasks import do_task

    if named := [name for name, value in free.items() if value]:
        raise UsageError(
            f"`eps=` measures on private records, and pays for it: leave `{named[0]}=` out."
            + (" It is finished by `pasearch resume RUN`." if "resume" in named else "")
        )
    asked = grid_options(data, models, **given)
    asked |= {name: value for name, value in grid.items() if value is not None}
    do_task("pasearch.api.search", {"data": data, "budget": budget, **asked}, **how)


def _check_out(out: Path | None, resume: bool) -> None:
    """Refuse a folder that is there, unless it is of this comparison and not finished."""
    if resume:
        if out is None or not (out / "trainings.jsonl").is_file():
            raise UsageError("`resume=` goes on in a folder of such a comparison: name it, `out=`.")
        if (out / "crossover.json").exists():
            raise UsageError(f"{shown(out)} is finished: nothing is left to do.")
    elif out is not None and out.exists():
        raise UsageError(
            f"{shown(out)} is there already: give a new folder, or go on in it (`resume=`)."
        )
    elif out is not None:
        check_writable(out, "out")


def _told(done: int, every: int) -> None:
    if done % max(1, every // 20) == 0:
        typer.echo(f"Trained {done:,} of {every:,}", err=True)
