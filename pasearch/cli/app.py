"""The command line's groups of commands, and the options that belong to no request.

    task        arch, features, train        what a request asks for, and how its run is shown
    plan TASK   the same, without the run
    on a run    resume, verify, report, predict, sign
    others      check, recipes, advise, crossover, compare, pretrain, key, account ...

Everything heavy is imported inside the commands, so that `--help` is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

ORDER = (
    "arch", "features", "train", "plan", "resume", "verify", "report", "predict", "export", "sign",
    "key", "check", "recipes", "advise", "crossover", "compare", "pretrain", "account", "bench",
)  # fmt: skip
"""In which commands are listed."""


class Ordered(TyperGroup):
    """The commands as a run goes: asked for, finished, read."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of `ORDER`."""
        return sorted(super().list_commands(ctx), key=ORDER.index)


app = typer.Typer(
    cls=Ordered,
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
