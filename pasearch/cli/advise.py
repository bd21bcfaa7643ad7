"""Commands that help to choose before a run: `advise`, `crossover` and `compare`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasearch.accounting.budget import Budget
from pasearch.api.request import DATA_OPTIONS, SearchRequest, list_options
from pasearch.cli.app import Json, Quiet, app
from pasearch.cli.options import (
    Data,
    Delta,
    add_search_options,
    flag_name,
    format_flags,
    wrap_lines,
)
from pasearch.cli.paths import check_new_file, check_writable
from pasearch.errors import InterruptedRunError, UsageError
from pasearch.terminal_escaping import escape_text

if TYPE_CHECKING:
    from pasearch.api.advise import Command

Seed = Annotated[
    int, typer.Option("--seed", help="Seed of splits, candidates and noise (not private).")
]
SPACE_HELP = next(option.help for name, _, option in list_options(SearchRequest) if name == "space")


@app.command()
@add_search_options(DATA_OPTIONS)
def advise(
    data: Data,
    eps: Annotated[
        float, typer.Option("--eps", "--epsilon", help="Total epsilon of the planned run.")
    ],
    given: dict[str, Any],
    delta: Delta = None,
    public: Annotated[
        str | None,
        typer.Option("--public", help="Public data with the same columns or shape, if available."),
    ] = None,
    as_json: Json = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print every decision with its evidence.")
    ] = False,
) -> None:
    """Recommend a model and a command for data at a budget; --verbose adds the evidence.

    No budget is charged: only the shape, the columns and the number of records are read.
    """
    from pasearch.api.advise import advise as advised

    found = advised(data, epsilon=eps, delta=delta, public=public, **given)
    if as_json:
        typer.echo(json.dumps(found.to_json(format_shell_command), indent=2))
        return
    for line in found.text(format_shell_command, whole=verbose).split("\n"):
        line = escape_text(line)
        # A command stays on one line, so that it can be copied.
        typer.echo(line if line.startswith("    pasearch ") else wrap_lines(format_flags(line)))
    if not verbose:
        count = len(found.branches)
        typer.echo(wrap_lines(f"\nUse --verbose for the {count} decisions and their evidence."))


@app.command()
@add_search_options((
    *DATA_OPTIONS, "data_is_public", "steps", "batch", "device", "executor", "workers",
    "ray_address", "gpus_per_worker", "force",
))  # fmt: skip
def crossover(
    data: Data,
    models: Annotated[
        list[str],
        typer.Argument(
            help="Two or more models: linear, fcn, cnn or a network's .toml. Add options with +: a "
            "front end (feature extractor), rwt, full-batches, recipe:NAME, or the features: "
            "cfs:6, random:6, columns:age,sex, numbers. Example: linear+scattering."
        ),
    ],
    given: dict[str, Any],
    eps_grid: Annotated[
        str | None,
        typer.Option(
            "--eps-grid",
            help="Epsilons: low:high:logN, or a list with commas. [default: .1:10:log12; five on "
            "private data]",
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            "--repeats",
            help="Number of trainings per model and epsilon. [default: 10; 2 on private data]",
        ),
    ] = None,
    eps: Annotated[
        float | None,
        typer.Option(
            "--eps", help="Total epsilon of the grid and the final model, for private DATA."
        ),
    ] = None,
    delta: Delta = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --eps: print the plan and stop.")
    ] = False,
    proxy: Annotated[
        str | None,
        typer.Option("--proxy", help="Public data like DATA, which is then private and not read."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="New folder for crossover.html and crossover.json; with --eps, for the run.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted comparison in --out.")
    ] = False,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the epsilon at which one model becomes better than another.

    On public data nothing is charged. For private data there are two ways. `--proxy` measures on
    public data of the same shape, at your number of records. `--eps` measures on the private
    records: the total epsilon covers the whole grid and a final training of the best model.
    """
    if eps is not None:
        free = {"proxy": proxy, "data_is_public": given.get("data_is_public"), "resume": resume,
                "seed": seed}  # fmt: skip
        if named := [name for name, value in free.items() if value]:
            raise UsageError(
                f"`eps=` measures on private records, which `{named[0]}=` does not support: leave "
                "it out." + (" Resume such a run with `pasearch resume RUN`." * ("resume" in named))
            )
        from pasearch.api.crossover import make_grid_options
        from pasearch.cli.tasks import plan_and_run

        grid = {"eps_grid": eps_grid, "repeats": repeats, "out": out}
        asked = {
            "data": data,
            "budget": Budget(eps, delta),
            **make_grid_options(data, models, **given),
        }
        asked |= {name: value for name, value in grid.items() if value is not None}
        plan_and_run(
            "pasearch.api.search", SearchRequest, asked, dry_run=dry_run, as_json=as_json,
            quiet=quiet,
        )  # fmt: skip
        return
    store = None if out is None else out / "trainings.jsonl"
    if resume:
        if out is None or store is None or not store.is_file():
            raise UsageError("`resume=` requires the folder of an interrupted comparison (`out=`).")
        if (out / "crossover.json").exists():
            raise UsageError(f"{escape_text(out)} is already finished.")
    elif out is not None and out.exists():
        raise UsageError(
            f"{escape_text(out)} exists: name a new folder, or resume that comparison (`resume=`)."
        )
    elif out is not None:
        check_writable(out, "out")
    from pasearch.api.crossover import measure_crossover

    try:
        found = measure_crossover(
            data, models, epsilons=eps_grid or ".1:10:log12", store=store, seed=seed, proxy=proxy,
            repeats=10 if repeats is None else repeats, delta=delta,
            on_training=None if quiet or as_json else _show_progress, **given,
        )  # fmt: skip
    except KeyboardInterrupt:
        if store is None or not store.is_file():
            raise
        raise InterruptedRunError(store.parent, "the same command and `resume=`") from None
    values = found.to_json()
    if out is not None:
        from pasearch.files import write_new_file
        from pasearch.report.html import crossover_html

        write_new_file(out / "crossover.html", crossover_html(values))
        write_new_file(out / "crossover.json", json.dumps(values, indent=2) + "\n")
    if as_json:
        typer.echo(json.dumps(values, indent=2))
        return
    typer.echo(wrap_lines(found.sentence() if quiet else found.table()))
    if found.assumes:
        typer.echo(wrap_lines(f"This was {found.assumes}."))
    if out is not None:
        typer.echo(f"Page: {escape_text(out / 'crossover.html')}")


@app.command()
@add_search_options((
    *DATA_OPTIONS, "data_is_public", "steps", "batch", "learning_rate", "device", "workers",
    "force",
))  # fmt: skip
def compare(
    data: Data,
    given: dict[str, Any],
    space: Annotated[str, typer.Option("--space", help=SPACE_HELP)] = "fcn-paper",
    candidates: Annotated[
        int, typer.Option("--candidates", help="Number of candidates of both workflows.")
    ] = 10,
    eps: Annotated[
        float, typer.Option("--eps", "--epsilon", help="Epsilon of each private training.")
    ] = 2.0,
    delta: Delta = None,
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats", help="Number of private and of non-private trainings per winner."
        ),
    ] = 5,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="New .json file for the comparison.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare a model chosen without privacy with one chosen under privacy.

    Only for public data, so nothing is charged. Both workflows train the same candidates, one
    without privacy and one with it. Each selects its best candidate, which is tested in both ways.
    """
    check_new_file(out, "out")
    from pasearch.api.compare import compare_workflows

    found = compare_workflows(
        data, space=space, epsilon=eps, delta=delta, candidates=candidates, repeats=repeats,
        seed=seed, on_training=None if quiet or as_json else _show_progress, **given,
    )  # fmt: skip
    text = json.dumps(found.to_json(), indent=2)
    if out is not None:
        from pasearch.files import write_new_file

        write_new_file(out, text + "\n")
    if as_json:
        typer.echo(text)
        return
    typer.echo(wrap_lines(format_flags(escape_text(found.sentence()) if quiet else found.table())))
    if out is not None and not quiet:
        typer.echo(f"Written: {escape_text(out)}")


def _show_progress(done: int, every: int) -> None:
    """Print the number of finished trainings, about 20 times."""
    if done % max(1, every // 20) == 0:
        typer.echo(f"Trained {done:,} of {every:,}", err=True)


def format_shell_command(command: Command) -> str:
    """Format a command as a shell line that can be copied.

    A list is left out if an element contains a comma, because an option cannot express it.
    """
    words = ["pasearch", *command.task.split(), str(command.data), *command.models]
    for name, value in command.options:
        flag = flag_name(name)
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, list):
            parts = [str(each) for each in value]
            words += [] if any("," in each for each in parts) else [f"{flag}={','.join(parts)}"]
        else:
            values = value if isinstance(value, tuple) else (value,)
            words.append(flag)
            for each in values:
                is_short = isinstance(each, float) and float(f"{each:g}") == each
                words.append(f"{each:g}" if is_short else str(each))
    return shlex.join(words)
