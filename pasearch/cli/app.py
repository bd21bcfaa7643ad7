"""The command line's groups of commands, and the options that belong to no request.

    task        arch, features, train        what a request asks for, and how its run is shown
    plan TASK   the same, without the run
    on a run    resume, verify, report, predict, sign
    others      ledger, check, recipes, advise, crossover, compare, pretrain, key, account ...

Everything heavy is imported inside the commands, so that `--help` is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

COMMAND_SUMMARIES = {
    "arch": "Search for the best architecture, and train it.",
    "features": "Choose features, and train a model on them.",
    "train": "Train one network by one recipe, without a search.",
    "plan": "Say what a run would release, and its price.",
    "resume": "Finish a run that was interrupted.",
    "verify": "Recompute a finished run's price, and check its files.",
    "report": "Say what a finished run found, and at what price.",
    "predict": "Predict new records with a finished run's model.",
    "export": "Write a finished run's model as an ONNX file.",
    "sign": "Sign a finished run.",
    "key": "Make a pair of keys to sign with.",
    "ledger": "Show a shared ledger, or add a finished run to it.",
    "check": "Find every problem of a table, and propose a schema.",
    "recipes": "List the recipes of training, or show one.",
    "advise": "Say what to do with data at a budget.",
    "crossover": "Measure at which epsilon another model becomes better.",
    "compare": "Choose a model with privacy in mind, and without.",
    "pretrain": "Train a backbone on public images, without privacy.",
    "account": "Calculate prices; no data is read.",
}
"""The commands in the order in which they are listed, each with a line that 80 columns hold."""


class OrderedGroup(TyperGroup):
    """The commands as a run goes: asked for, finished, read."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of `SUMMARIES`."""
        return sorted(super().list_commands(ctx), key=list(COMMAND_SUMMARIES).index)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command with the line that it is listed by."""
        if (found := super().get_command(ctx, cmd_name)) is not None:
            found.short_help = COMMAND_SUMMARIES[cmd_name]
        return found


app = typer.Typer(
    cls=OrderedGroup,
    name="pasearch",
    help="Privacy-aware AutoML: search under one (epsilon, delta) that pays for the search too.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
plan_app = typer.Typer(
    help="Print a plan: what would be released, and its price.", no_args_is_help=True
)
account_app = typer.Typer(help="A calculator of prices; it reads no data.", no_args_is_help=True)
app.add_typer(plan_app, name="plan")
app.add_typer(account_app, name="account")

Run = Annotated[Path, typer.Argument(help="A run's folder, or its release/.")]
Sign = Annotated[
    Path | None,
    typer.Option("--sign", help="Sign the result with this private key (see `pasearch key`)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the last line only.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Print the whole plan: how each noise comes about.")
]
