"""The typer applications, the order of commands in `--help`, and options of several commands.

Slow modules are imported inside the functions of commands, so that `--help` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

COMMAND_PANELS = {
    "Search": {
        "arch": "Search for an architecture, and train the best one.",
        "features": "Select features, and train a model on them.",
        "train": "Train one network with one recipe, without a search.",
        "plan": "Print the plan of a task and its privacy cost.",
        "resume": "Finish an interrupted run.",
        "advise": "Recommend a model and a command for data at a budget.",
        "recipes": "List the recipes (training configurations), or show one.",
        "spaces": "List the search spaces, or show one.",
    },
    "Use a result": {
        "report": "Show the result of a finished run.",
        "predict": "Predict new records with a finished run's model.",
        "export": "Export a finished run's model to ONNX.",
        "verify": "Check a finished run: privacy cost, files and signature.",
        "sign": "Sign a finished run.",
        "key": "Create a key pair for signing.",
    },
    "Data": {
        "check": "List every problem of a table, and propose a schema.",
        "pretrain": "Train a backbone on public images, without privacy.",
    },
    "Privacy tools": {
        "ledger": "Show a shared privacy ledger, or add a finished run to it.",
        "account": "Calculate privacy costs, without data.",
    },
    "Studies": {
        "crossover": "Measure the epsilon at which another model becomes better.",
        "compare": "Compare choosing a model with and without privacy.",
    },
}
"""Headings of `pasearch --help`, each with its commands and their summaries (80 columns)."""

COMMAND_SUMMARIES = {
    name: text for panel in COMMAND_PANELS.values() for name, text in panel.items()
}
"""Summary of each command, in the order of `COMMAND_PANELS`."""


class OrderedGroup(TyperGroup):
    """Group of commands that `--help` lists under the headings of `COMMAND_PANELS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of `COMMAND_PANELS`."""
        return sorted(super().list_commands(ctx), key=list(COMMAND_SUMMARIES).index)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command with its summary as short help; None if it does not exist."""
        if (found := super().get_command(ctx, cmd_name)) is not None:
            found.short_help = COMMAND_SUMMARIES[cmd_name]
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under their headings, which typer does for rich output only."""
        width = max(map(len, COMMAND_SUMMARIES))
        for panel, commands in COMMAND_PANELS.items():
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


app = typer.Typer(
    cls=OrderedGroup,
    name="pasearch",
    help="Differentially private AutoML: one total (epsilon, delta) covers search and training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
plan_app = typer.Typer(
    help="Print a plan: all releases and their privacy cost.", no_args_is_help=True
)
account_app = typer.Typer(help="Calculate privacy costs, without data.", no_args_is_help=True)
app.add_typer(plan_app, name="plan")
app.add_typer(account_app, name="account")

Run = Annotated[Path, typer.Argument(help="Folder of a run, or its release/.")]
Sign = Annotated[
    Path | None,
    typer.Option("--sign", help="Private key that signs the result (see `pasearch key`)."),
]


def _import_modules(names: list[str] | None) -> list[str] | None:
    """Import the modules that the user names, for networks whose classes they define."""
    if names:
        from pasearch.spaces.parsing import import_maker

        for name in names:
            import_maker(name)
    return names


Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        callback=_import_modules,
        metavar="<module>",
        help="Module to import and run, if the network is a class of your own: my_nets or "
        "my_nets:MyNet.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the last line only.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", help="Print the whole plan, with the calibration of each noise."),
]
