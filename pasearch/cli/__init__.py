"""The command line: `pasearch arch`, `features`, `train`, `plan`, `resume`, `verify` ...

Thin: it turns options into calls of `api`, and errors into exit codes (0 done, 2 bad usage or
input, 3 budget, 130 interrupted).
"""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer

from pasearch.api.request import SearchRequest, TrainRequest, options_of
from pasearch.cli import account, advise, compare, crossover, finished, pretrain, tasks
from pasearch.cli.app import app
from pasearch.cli.options import flag_of, with_flags
from pasearch.errors import PasearchError, UsageError
from pasearch.shown import shown_lines

__all__ = [
    "account", "advise", "app", "compare", "crossover", "finished", "main", "pretrain", "tasks",
]  # fmt: skip

INTERRUPTED = 130

OF_SEARCHES = {flag_of(name) for name, _, _ in options_of(SearchRequest)} - {
    flag_of(name) for name, _, _ in options_of(TrainRequest)
}
"""Options of a search, which the training of one network lacks."""


def main() -> None:
    """Run the command line."""
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:
            typer.echo("Interrupted; no run was under way.", err=True)
    except PasearchError as error:
        prefix = "" if error.exit_code == INTERRUPTED else "Error: "
        typer.echo(f"{prefix}{with_flags(str(error))}", err=True)
        code = error.exit_code
    except OSError as error:
        # Its path is not shown: in private/ even a file's name may tell the number of trainings.
        typer.echo(
            f"Error: the system refused a file operation ({error.strerror}). If the run had begun, "
            "nothing is lost: make room, and finish it with `pasearch resume`.",
            err=True,
        )
        code = 1
    except Exception as error:
        if not type(error).__module__.startswith(("click", "typer")):
            raise
        code = _click_error(error)
    sys.exit(code if isinstance(code, int) else 0)


def _click_error(error: Any) -> int:
    """Report an unknown option, or a number that is none, as click would; return the exit code."""
    if getattr(error, "option_name", None) in OF_SEARCHES and "train" in error.ctx.command_path:
        typer.echo(
            f"Error: {error.option_name} belongs to a search, and `pasearch train` trains one "
            "network by one recipe (--architecture, --recipe) without any. To search, take "
            "`pasearch arch`, which has it.",
            err=True,
        )
        return UsageError.exit_code
    if callable(getattr(error, "show", None)):
        text = io.StringIO()
        error.show(file=text)
        typer.echo(shown_lines(text.getvalue().rstrip("\n")), err=True)
        return int(error.exit_code)
    return INTERRUPTED


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from pasearch import __version__

        typer.echo(f"pasearch {__version__}")
        raise typer.Exit
