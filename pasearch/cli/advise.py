"""`pasearch advise`: what to do with data at a budget, before anything is read or charged."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasearch.cli.app import Json, app
from pasearch.cli.options import DATA_HELP, flag_of, with_flags, wrapped
from pasearch.shown import shown

if TYPE_CHECKING:
    from pasearch.crossover.advice import Command

Data = Annotated[str, typer.Argument(help=DATA_HELP)]
Epsilon = Annotated[
    float, typer.Option("--eps", "--epsilon", help="Of the whole run that is thought of.")
]
Delta = Annotated[
    float | None, typer.Option("--delta", help="Of that run. [default: power of ten below 1/n]")
]
PublicData = Annotated[
    str | None, typer.Option("--public", help="Public data of the same form, if there are any.")
]
SchemaFile = Annotated[Path | None, typer.Option("--schema", help="A table's declared columns.")]
Target = Annotated[str | None, typer.Option("--target", help="Column to predict.")]
Quotes = Annotated[
    bool, typer.Option("--quotes/--no-quotes", help="Whether quotation marks enclose cells.")
]
Columns = Annotated[
    str | None, typer.Option("--columns", help="Names of the columns, if there is no header.")
]
Separator = Annotated[
    str | None, typer.Option("--separator", help="What stands between two cells: ';', tab ...")
]
Regression = Annotated[bool, typer.Option("--regression", help="A number is predicted.")]
Metric = Annotated[str | None, typer.Option("--metric", help="By what it is scored, as of `arch`.")]
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
Side = Annotated[int | None, typer.Option("--image-side", help="Of a folder of images.")]
Grey = Annotated[bool, typer.Option("--grey", help="A folder of images: one channel.")]
Root = Annotated[Path | None, typer.Option("--data-root", help="torchvision's folder.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Every question behind it too, with the evidence.")
]

COPIED = "    pasearch "
"""How the line of a command begins: it is not broken, so that it can be copied."""


@app.command()
def advise(
    data: Data,
    eps: Epsilon,
    delta: Delta = None,
    public: PublicData = None,
    schema: SchemaFile = None,
    target: Target = None,
    quotes: Quotes = True,
    columns: Columns = None,
    separator: Separator = None,
    regression: Regression = False,
    metric: Metric = None,
    bounds: Bounds = None,
    labels: Labels = None,
    classes: Classes = None,
    image_side: Side = None,
    grey: Grey = False,
    data_root: Root = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Say what to do with data at a budget; with --verbose, the evidence: ours, and the paper's.

    Nothing is charged: of the data only the form and the number of records are read.
    """
    from pasearch.api.advise import advise as advised

    given: dict[str, Any] = {
        "schema": schema, "target": target, "metric": metric, "bounds": bounds, "labels": labels,
        "classes": classes, "image_side": image_side,
        "data_root": None if data_root is None else str(data_root),
        "regression": regression or None, "grey": grey or None,
        "quotes": None if quotes else False, "columns": columns, "separator": separator,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    found = advised(data, epsilon=eps, delta=delta, public=public, **given)
    if as_json:
        typer.echo(json.dumps(found.to_json(shell), indent=2))
        return
    for line in found.text(shell, whole=verbose).split("\n"):
        line = shown(line)
        typer.echo(line if line.startswith(COPIED) else wrapped(with_flags(line)))
    if not verbose:
        count = len(found.branches)
        typer.echo(wrapped(f"\nThe {count} questions behind it, with the evidence: --verbose."))


def shell(command: Command) -> str:
    """Return a command as a line of a shell, to copy."""
    words = ["pasearch", *command.task.split(), str(command.data), *command.models]
    for name, value in command.options:
        flag = flag_of(name)
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [flag, *(_number(each) for each in values)]
    return shlex.join(words)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
