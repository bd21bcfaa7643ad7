"""`pasearch bench`: how fast this machine trains privately, and what a search would take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pasearch.cli.app import Json, app
from pasearch.cli.options import wrapped
from pasearch.cli.paths import check_new_file
from pasearch.shown import shown

Searched = Annotated[
    int | None,
    typer.Option(
        "--candidates", min=1, help="Trainings of a search whose time is told. [default: 60]"
    ),
]


@app.command()
def bench(
    spaces: Annotated[
        list[str] | None,
        typer.Option(
            "--space",
            help="A search space: fcn, images, tables, fcn-paper, fcn-rwt, cnn, cnn-paper, "
            "cnn-rwt, or a .toml; may be repeated. [default: all of these]",
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Of the processor. [default: all]")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.01, help="About how long it may measure.")
    ] = 20.0,
    candidates: Searched = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Of each of its trainings. [default: 50]")
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", min=1, help="Records that they read. [default: 60,000]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A new .json file for the figures.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how fast this machine trains privately, and say how long a search would take.

    It trains on made-up records and reads no data, so it costs nothing. The times of three typical
    searches are told; with --candidates, --epochs or --n that of one, the others by default.
    """
    check_new_file(out, "out")
    from pasearch.api.bench import SEARCHES
    from pasearch.api.bench import bench as measured

    def started(networks: int) -> None:
        told = (
            f"Training {networks} networks on made-up records for about {seconds:g} s (the first "
            "time half a minute more: machine code is compiled). No data is read, so this costs "
            "nothing.\n"
        )
        typer.echo(wrapped(told))

    a, b, c = SEARCHES[1]
    one = (candidates or a, epochs or b, n or c)  # none of them is 0
    found = measured(
        spaces=tuple(spaces or ()), device=device, threads=threads, seconds=seconds,
        searches=(one,) if candidates or epochs or n else SEARCHES,
        on_start=None if as_json else started,
    )  # fmt: skip
    figures = json.dumps(found.to_json(), indent=2)
    if out is not None:
        from pasearch.files import write_new

        write_new(out, figures + "\n")
    typer.echo(figures if as_json else found.describe())
    if out is not None and not as_json:
        typer.echo(wrapped(f"\nWritten: {shown(out)}"))
