"""The command line: `pasearch arch`, `features`, `train`, `plan`, `resume`, `verify` ...

It only converts options into calls of `pasearch.api`, and exceptions into exit codes: 0 success, 1
failure of the machine, 2 wrong usage or input, 3 budget too small, 130 interrupted.
"""

from __future__ import annotations

import io
import os
import re
import sys
from typing import Annotated, Any

import typer

from pasearch.api.request import SearchRequest, TrainRequest, list_options
from pasearch.cli import advise, finished, ledger, tasks, tools
from pasearch.cli.app import app
from pasearch.cli.options import flag_name, format_flags, wrap_lines
from pasearch.errors import PasearchError, UsageError, describe_system_error, find_closest_name
from pasearch.terminal_escaping import escape_lines, escape_text

__all__ = ["advise", "app", "finished", "ledger", "main", "tasks", "tools"]

INTERRUPTED_CODE = 130  # exit code after Ctrl-C or SIGTERM

SEARCH_ONLY_FLAGS = {flag_name(name) for name, _, _ in list_options(SearchRequest)} - {
    flag_name(name) for name, _, _ in list_options(TrainRequest)
}
"""Flags of `pasearch arch` that `pasearch train` does not have."""


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    # By default, waiting threads of torch use a core each, which doubles the time of a small
    # network. torch reads this variable when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        code = app(prog_name="pasearch", standalone_mode=False)
        if code == INTERRUPTED_CODE:
            _print_error(NOTHING_RAN_MESSAGE, fresh=True)
    except KeyboardInterrupt:
        code = INTERRUPTED_CODE
        _print_error(NOTHING_RAN_MESSAGE, fresh=True)
    except PasearchError as error:
        code = error.exit_code
        if code == INTERRUPTED_CODE:
            _print_error(str(error), fresh=True)
        else:
            _print_error(str(error), "Error: ")
    except SystemExit as ended:
        # Typer exits silently if the output is closed. After a run, its state is reported too.
        then = " ".join(getattr(ended.__context__, "__notes__", ()))
        if isinstance(ended.__context__, BrokenPipeError) and then:
            _print_error(f"The output was closed, as `head` does. {then}")
        raise
    except Exception as error:
        # Ctrl-C during an import raises an error of the module, with the interrupt as its cause.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            code = INTERRUPTED_CODE
            _print_error(NOTHING_RAN_MESSAGE, fresh=True)
        elif type(error).__module__.startswith(("click", "typer")):
            code = _report_click_error(error)
        elif (message := describe_system_error(error)) is not None:
            # The path is not shown, because a file name in private/ may reveal something.
            then = " ".join(getattr(error, "__notes__", ()))
            _print_error(f"{message} {then or RETRY_ADVICE}", "Error: ", fresh=True)
            code = 1
        else:
            raise
    if code == INTERRUPTED_CODE:
        # After a Ctrl-C inside `exec` of a string (as when a dataclass is created), `python -m`
        # would end by the signal instead of this exit code. Another `exec` prevents that.
        exec("")
    sys.exit(code if isinstance(code, int) else 0)


NOTHING_RAN_MESSAGE = "Interrupted. No run had started, so nothing was charged."
"""Message after an interrupt before a run."""

RETRY_ADVICE = "Then repeat the command."
"""Remedy after an error of the operating system before a run."""


def _print_error(text: str, prefix: str = "", *, fresh: bool = False) -> None:
    """Print a message on the standard error, with options in their command-line form.

    Args:
        text: One or more sentences.
        prefix: Text in front of the message.
        fresh: Whether to start a new line, because the current one may have progress or ^C.
    """
    if fresh and sys.stderr is not None and sys.stderr.isatty():
        typer.echo(err=True)
    typer.echo(wrap_lines(f"{prefix}{format_flags(text)}", sys.stderr), err=True)


def _report_click_error(error: Any) -> int:
    """Report an unknown option or command, or an unreadable value; return the exit code."""
    context, reported = getattr(error, "ctx", None), str(getattr(error, "message", ""))
    option, message = getattr(error, "option_name", None), None
    flags = getattr(getattr(error, "param", None), "opts", [])
    given = getattr(error.__cause__, "errors", list)()
    kind = "an integer" if "integer" in reported else "a number" if "number" in reported else ""
    if option is not None and hasattr(error, "possibilities") and context is not None:
        message = _describe_unknown_option(str(option), context)
    elif flags and given and kind:  # Typer's message does not contain the value
        if (count := getattr(error.param, "nargs", 1)) > 1:
            kind = f"{count} numbers, separated by spaces"
        message = f"{flags[0]} is {escape_text(repr(given[0]['input']))}: expected {kind}."
    elif option == "--separator" and "requires an argument" in reported:
        message = (
            "--separator has no value. A shell interprets ; | and tabs: use quotation marks, "
            "--separator ';', or write semicolon, pipe or tab."
        )
    if message is not None:
        _print_error(message, "Error: ")
        return UsageError.exit_code
    if callable(getattr(error, "show", None)):
        text = io.StringIO()
        error.show(file=text)
        message, path = (
            escape_lines(text.getvalue().rstrip("\n")),
            getattr(context, "command_path", ""),
        )
        found = re.search("No such command '(.*?)'", reported)
        if found and not path.endswith("account"):  # the command before the data may be missing
            from pasearch.data.sources import BUILT_IN_NAMES

            if found[1] in BUILT_IN_NAMES or os.path.exists(found[1]):
                message += (
                    f" Name a command before the data: `{path} arch {escape_text(found[1])}`."
                )
        typer.echo(wrap_lines(message, sys.stderr), err=True)
        return int(error.exit_code)
    _print_error(NOTHING_RAN_MESSAGE)
    return INTERRUPTED_CODE


def _describe_unknown_option(name: str, context: Any) -> str:
    """Return the message on an unknown option, with the command that has it, or a similar option.

    Args:
        name: Option as the user wrote it.
        context: Click context of the command.
    """
    command, root = context.command_path, context.find_root().command
    if name in SEARCH_ONLY_FLAGS and "train" in command:
        return (
            f"{name} is an option of a search, and `pasearch train` trains one network with one "
            "recipe (--architecture, --recipe). To search, use `pasearch arch`."
        )
    others = {each: root.get_command(context, each) for each in root.list_commands(context)}
    owners = [each for each, found in others.items() if name in _option_names(found, context)]
    plain = {each.lstrip("-"): each for each in _option_names(context.command, context)}
    if owners:
        hint = f" It is an option of `pasearch {owners[0]}`."
    elif name.lstrip("-") in others:
        hint = f" There is a command `pasearch {name.lstrip('-')}`."
    elif near := find_closest_name(name.lstrip("-"), plain):
        hint = f" Did you mean {plain[near]}?"
    else:
        hint = f" See `{command} --help`."
    return f"No such option: {escape_text(name)} (of `{command}`).{hint}"


def _option_names(command: Any, context: Any) -> list[str]:
    """List the long flags of a command."""
    return [
        name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)
        if name.startswith("--")
    ]  # fmt: skip


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from pasearch import __version__

        typer.echo(f"pasearch {__version__}")
        raise typer.Exit
