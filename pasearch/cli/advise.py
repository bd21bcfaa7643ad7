"""`pasearch advise`: what to do with data at a budget, before anything is read or charged."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasearch.api.request import DATA_OPTIONS
from pasearch.cli.app import Json, app
from pasearch.cli.options import Data, Delta, flag_of, takes_options, with_flags, wrapped
from pasearch.shown import shown

if TYPE_CHECKING:
    from pasearch.api.advise import Command


@app.command()
@takes_options(DATA_OPTIONS)
def advise(
    data: Data,
    eps: Annotated[
        float, typer.Option("--eps", "--epsilon", help="Epsilon of the whole run that is planned.")
    ],
    given: dict[str, Any],
    delta: Delta = None,
    public: Annotated[
        str | None, typer.Option("--public", help="Public data of the same form, if there are any.")
    ] = None,
    as_json: Json = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Every question behind it too, with the evidence.")
    ] = False,
) -> None:
    """Say what to do with data at a budget; with --verbose, the evidence: ours, and the paper's.

    Nothing is charged: of the data only the form and the number of records are read.
    """
    from pasearch.api.advise import advise as advised

    found = advised(data, epsilon=eps, delta=delta, public=public, **given)
    if as_json:
        typer.echo(json.dumps(found.to_json(shell), indent=2))
        return
    for line in found.text(shell, whole=verbose).split("\n"):
        line = shown(line)
        # A command is not broken into lines, so that it can be copied.
        typer.echo(line if line.startswith("    pasearch ") else wrapped(with_flags(line)))
    if not verbose:
        count = len(found.branches)
        typer.echo(wrapped(f"\nThe {count} questions behind it, with the evidence: --verbose."))


def shell(command: Command) -> str:
    """Return a command as a line of a shell, to copy.

    A list of which an element contains a comma has no form there and is left out.
    """
    words = ["pasearch", *command.task.split(), str(command.data), *command.models]
    for name, value in command.options:
        flag = flag_of(name)
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, list):
            parts = [str(each) for each in value]
            words += [] if any("," in each for each in parts) else [f"{flag}={','.join(parts)}"]
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [flag, *(_number(each) for each in values)]
    return shlex.join(words)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
