"""Command-line options of a task, made from the fields of its request, and texts for the terminal.

Source: `api.request`, which defines each option once.
"""

from __future__ import annotations

import functools
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection
from dataclasses import fields
from typing import Annotated, Any, TextIO, get_type_hints

import typer
from typer.core import TyperCommand

from pasearch.accounting.budget import Budget
from pasearch.api import request as requests
from pasearch.api.request import (
    BUDGET,
    DATA,
    DEFAULT_EPSILON,
    GROUPS,
    Option,
    Request,
    list_options,
)
from pasearch.errors import OPTION_REFERENCE

DATA_HELP = (
    "Data: digits, mnist, fashion-mnist, cifar10, svhn, svhn-grey, purchase-100; a table (.csv, "
    ".tsv, .data, also compressed as .gz, .bz2, .xz or .zst; .parquet, or a folder of .parquet "
    "files); a .npz with arrays x and y; a folder with x.npy and y.npy; or a folder of images."
)
Data = Annotated[str, typer.Argument(help=DATA_HELP, rich_help_panel=DATA)]
EPSILON = Option(
    "Total epsilon of the run; smaller is more private.",
    BUDGET,
    default_text=f"{DEFAULT_EPSILON:g}",
)
DELTA = Option("Total delta of the run.", BUDGET, default_text="power of ten below 1/n")
Delta = Annotated[
    float | None, typer.Option("--delta", help="Total delta. [default: power of ten below 1/n]")
]
REQUESTS = (requests.SearchRequest, requests.FeatureRequest)
FLAGS = {"epsilon": "--eps", "delta": "--delta"} | {
    name: option.flag.split("/")[0]
    for kind in REQUESTS
    for name, _, option in list_options(kind)
    if option.flag
}
"""Flags of the request's fields that differ from the field's name with dashes."""

OPTION_NAMES = {name for kind in REQUESTS for name, _, _ in list_options(kind)} | {
    "epsilon", "delta", "sigma", "n", "steps", "batch", "vectors", "dimension"
}  # fmt: skip
"""Names of options which `format_flags` replaces by flags at the start of a message."""

METAVARS = {"tuple[float, float] | None": "<float> <float>", "list[str]": "<str>"}
"""Placeholders in `--help` for options with several values, by type."""


class GroupedCommand(TyperCommand):
    """Command whose `--help` shows its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of each group in the order of `GROUPS`, then the other options."""
        shown: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            if (record := each.get_help_record(ctx)) is not None:
                group = getattr(each, "rich_help_panel", None) or "Output"
                shown.setdefault(group, []).append(record)
        for group in sorted(shown, key=lambda name: [*GROUPS, "Output"].index(name)):
            with formatter.section(group):
                formatter.write_dl(shown[group])


def flag_name(name: str) -> str:
    """Return the command-line flag of a request's field."""
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


MIN_WIDTH = 60  # minimum line width, characters; a narrower terminal wraps lines itself
MAX_WIDTH = 110  # maximum line width, characters; longer lines are hard to read


def wrap_lines(text: str, stream: TextIO | None = None) -> str:
    """Wrap long lines at the width of the terminal; for a file or a pipe, return them unchanged.

    In a row with a label ("Model     linear ..."), continuation lines are indented to the text.

    Args:
        text: One or more lines.
        stream: Stream that the text will be written to; None is the standard output.
    """
    stream = stream or sys.stdout
    if stream is None or not stream.isatty():
        return text
    width = min(MAX_WIDTH, max(MIN_WIDTH, shutil.get_terminal_size().columns))
    found: list[str] = []
    for line in text.split("\n"):
        row = re.match(r"[A-Z][a-z]+ {2,}", line)
        indent = len(row[0]) if row else len(line) - len(line.lstrip()) + 2
        whole = textwrap.wrap(
            line, width, subsequent_indent=" " * indent, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
        found += [each.rstrip() for each in whole] or [""]
    return "\n".join(found)


def format_flags(message: str) -> str:
    """Replace the references to options in a message by command-line flags.

    >>> format_flags("leave `search_share=` out, or take `strategy='rs'`")
    'leave --search-share out, or take --strategy rs'
    """

    def format_flag(found: re.Match[str]) -> str:
        name, value = flag_name(found[1]), found[2].strip("'\"")
        if value == "False":
            return name.replace("--", "--no-", 1)
        return name if value in ("", "True") else f"{name} {value}"

    message = OPTION_REFERENCE.sub(format_flag, message)
    name, is_, rest = message.partition(" is ")
    names = name.split(" + ")
    if is_ and OPTION_NAMES.issuperset(names):
        name = " + ".join(map(flag_name, names))
    return f"{name}{is_}{rest}"


def add_request_options(
    request: type[Request], *, run: bool
) -> Callable[[Any], Callable[..., None]]:
    """Make a decorator that replaces a command's parameter `asked` by the options of a request.

    The command receives the values of all options in `asked`, by name, with the budget.

    Args:
        request: Request class of the task.
        run: Whether the command starts a run, so that it has `--out`.
    """
    options = [
        _make_parameter("data", "digits", Data),
        _make_parameter("eps", None, _annotate(float | None, EPSILON, "--eps", "--epsilon")),
        _make_parameter("delta", None, _annotate(float | None, DELTA, "--delta")),
        *_option_parameters(request, lambda name: run or name != "out"),
    ]

    def with_budget(asked: dict[str, Any]) -> dict[str, Any]:
        eps, delta = asked.pop("eps"), asked.pop("delta")
        if eps is not None or delta is not None:
            asked["budget"] = Budget(DEFAULT_EPSILON if eps is None else eps, delta)
        return asked

    return lambda command: _replace_parameter(command, "asked", options, with_budget)


def add_search_options(names: Collection[str]) -> Callable[[Any], Callable[..., None]]:
    """Make a decorator that replaces a command's parameter `given` by some options of a search.

    The command receives the values that differ from the defaults in `given`, by name.

    Args:
        names: Fields of `SearchRequest`.
    """
    options = _option_parameters(requests.SearchRequest, names.__contains__)

    def select_changed(given: dict[str, Any]) -> dict[str, Any]:
        return {each.name: given[each.name] for each in options if given[each.name] != each.default}

    return lambda command: _replace_parameter(command, "given", options, select_changed)


def _replace_parameter(
    command: Callable[..., None],
    replaced: str,
    options: list[inspect.Parameter],
    convert: Callable[[dict[str, Any]], dict[str, Any]],
) -> Callable[..., None]:
    """Replace one parameter of a command by options; it receives their values after `convert`."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(command).parameters.values():
        own = each.name != replaced
        parameters += [each.replace(annotation=hints[each.name])] if own else options

    @functools.wraps(command)
    def run_command(**given: Any) -> None:
        values = {each.name: given.pop(each.name, each.default) for each in options}
        command(**{replaced: convert(values)}, **given)

    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {each.name: each.annotation for each in parameters}
    return run_command


def _option_parameters(
    request: type[Request], chosen: Callable[[str], bool]
) -> list[inspect.Parameter]:
    """Make typer parameters for the options of a request whose names satisfy `chosen`."""
    types = {each.name: str(each.type) for each in fields(request)}
    found = []
    for name, default, option in list_options(request):
        if option.flag is None or not chosen(name):
            continue
        kind = option.reads
        if kind is None:
            kind = eval(types[name], dict(vars(requests)))
        elif default is None:
            kind = kind | None
        if kind == list[str]:
            default = [default]
        shown = str(default[0]) if isinstance(default, list) else default is not None
        annotated = _annotate(
            kind, option, option.flag or flag_name(name), metavar=METAVARS.get(str(kind)),
            show_default=shown,
        )  # fmt: skip
        found.append(_make_parameter(name, default, annotated))
    return found


def _annotate(kind: Any, option: Option, *flags: str, **more: Any) -> Any:
    """Annotate the type of a parameter with its help and flags, for typer."""
    annotated = typer.Option(*flags, help=option.help_text, rich_help_panel=option.group, **more)
    return Annotated[kind, annotated]


def _make_parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    """Make a parameter of a command's signature."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
