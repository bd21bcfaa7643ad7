"""`pasearch ledger`: show a shared ledger, or add a finished run to it."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasearch.cli.app import Imports, Json, app
from pasearch.cli.options import wrap_lines
from pasearch.cli.paths import check_ledger
from pasearch.errors import BudgetError, UsageError
from pasearch.terminal_escaping import escape_text, format_epsilon

if TYPE_CHECKING:
    from pasearch.accounting.budget import Budget


@app.command()
def ledger(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The shared ledger (--ledger).")],
    add: Annotated[
        Path | None,
        typer.Option("--add", help="Folder of a finished run to charge to the ledger, once."),
    ] = None,
    ledger_budget: Annotated[
        tuple[float, float] | None,
        typer.Option("--ledger-budget", help="Total epsilon and delta of a new ledger."),
    ] = None,
    same_data: Annotated[
        bool,
        typer.Option(
            "--same-data",
            help="Confirm that the run read the records of this ledger, after the runs in it.",
        ),
    ] = False,
    as_json: Json = False,
    imported: Imports = None,
) -> None:
    """Show a shared ledger: its budget, what is spent, what remains, and its runs.

    --add charges a finished run to the ledger, as if it had been run with --ledger.
    """
    from pasearch.accounting.budget import Budget
    from pasearch.runs.shared_ledger import SharedLedger

    total = None if ledger_budget is None else Budget(*ledger_budget)
    check_ledger(path, total, run=add is not None)
    added = None if add is None else add_run(path, add, total, same_data=same_data)
    if not path.exists():
        raise UsageError(
            f"{escape_text(path)} does not exist: its first run creates a ledger (`ledger=` and "
            "`ledger_budget=`), or --add does."
        )
    found = SharedLedger.open(path, total)
    budget, spent, runs = found.total(), found.spent(), found.runs()
    remaining = found.remaining()
    if as_json:
        document = {
            "ledger": str(path),
            "added": added,
            "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
            "spent": {"epsilon": spent.epsilon, "delta": spent.delta},
            "remaining": remaining,
            "runs": [
                {"run": run, "date": day, "epsilon": price.epsilon} for run, day, price in runs
            ],
        }
        typer.echo(json.dumps(document, indent=2))
        return
    left = f"about epsilon {remaining:.2g} for one more run" if remaining else "nothing"
    lines = [
        f"Ledger     {escape_text(path)}",
        f"Budget     epsilon {budget.epsilon:g} at delta {budget.delta:g}, all runs together",
        f"Spent      epsilon {format_epsilon(spent.epsilon)} ({spent.accountant})",
        f"Remaining  {left}",
        f"Runs       {len(runs)}",
        *(
            f"  {day}  {escape_text(run)}  epsilon {format_epsilon(price.epsilon)} alone"
            for run, day, price in runs
        ),
    ]
    if add is not None:
        lines.append(
            f"Added: {escape_text(add)}."
            if added
            else f"{escape_text(add)} was in this ledger already."
        )
    typer.echo("\n".join(map(wrap_lines, lines)))


def add_run(path: Path, run: Path, total: Budget | None, *, same_data: bool) -> bool:
    """Charge a finished run to a shared ledger, unless it is in the ledger already.

    Args:
        path: File of the shared ledger, which is created if it does not exist.
        run: Folder of the run.
        total: Total budget of a new ledger; None, or the same budget, for an existing one.
        same_data: Whether the user confirms that the run read the records of the ledger.

    Returns:
        Whether the run was added; False if it was in the ledger already.

    Raises:
        BudgetError: The run exceeds the total budget; the ledger is unchanged.
        UsageError: The run is not finished, fails verification, read public data, or is older than
            a run of the ledger; or the user has not confirmed that the records are the same.

    Cost: the run's whole privacy cost, charged to the ledger. No record is read.
    """
    from pasearch.accounting.accountants import price
    from pasearch.api.lifecycle import RESERVATION_FILE
    from pasearch.results import compose_events, compute_digest, read_document
    from pasearch.runs.folder import RunFolder
    from pasearch.runs.shared_ledger import SharedLedger, make_worst_partition_event
    from pasearch.verification.verify import verify

    folder = RunFolder.open(run.parent if run.name == "release" else run, finished=True)
    document = read_document(folder.path)
    if document["dataset"]["declared_public"]:
        raise UsageError(
            f"{escape_text(run)} read data that was declared public, so it has no cost."
        )
    if problems := verify(folder.path)[1]:
        raise UsageError(f"{escape_text(run)} failed verification, so it was not added:", *problems)
    # A run with --ledger has a name in its ledger. Another run is named by the hash of its result.
    reserved = folder.private / RESERVATION_FILE
    name = reserved.read_text(encoding="utf-8") if reserved.exists() else ""
    name = name or compute_digest((folder.release / "result.json").read_bytes())[:32]
    events, n = compose_events(document), document["dataset"]["n"]
    total = None if total is None else total.resolve(n, "The delta of `ledger_budget=`")
    if path.exists():
        ledger = SharedLedger.open(path, total)
        known = {each: cost for each, _, cost in ledger.runs()}
        if name in known:
            own = price(make_worst_partition_event(events), known[name].delta)
            # The same events may be grouped in another way, which rounds their cost differently.
            if not math.isclose(own.epsilon, known[name].epsilon, rel_tol=1e-6):
                raise BudgetError(
                    f"{escape_text(path)} contains a run of this name with epsilon "
                    f"{known[name].epsilon:.4g}, but {escape_text(run)} cost {own.epsilon:.4g}, so "
                    f"it is another run: its file private/{RESERVATION_FILE} was changed or copied "
                    "from another run."
                )
            return False
        if known and not same_data:
            raise UsageError(
                f"{escape_text(path)} contains runs already, but not which records they read: a "
                "fingerprint of the records would reveal private values without a charge. Use "
                "--same-data to confirm that this run read the same records, after the runs in "
                "the ledger."
            )
    found = SharedLedger.forecast(path, total, events, n)
    if not found.fits:
        raise BudgetError(
            f"{escape_text(run)} does not fit into {escape_text(path)}, so it was not added: all "
            f"runs together would cost epsilon {found.after:.4g}, and the total is "
            f"{found.total.epsilon:g}, at delta {found.total.delta:g}. This ledger does not cover "
            "what the run has released. Begin another ledger with a larger --ledger-budget, and "
            "add all finished runs to it, from the oldest to the newest."
        )
    day = datetime.fromtimestamp(folder.started, UTC).date().isoformat()
    SharedLedger.begin(path, total, name, events, n, day=day)
    return True
