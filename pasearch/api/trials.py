"""Store of a run's finished trials: a file in its folder, or a shared store that the user named.

A shared store holds one study per run, with a random name. `private/` contains this name and the
address of the store without its password, so that a resume finds the study, also on another
machine.

Source: docs/howto-cluster.md; docs/rules.md, rule 10.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any

from pasearch.api.request import Request, TrainRequest
from pasearch.errors import BudgetError, UsageError
from pasearch.files import read_json
from pasearch.runs.folder import RunFolder
from pasearch.runs.journal import Address, Journal, MissingStudyError, parse_address
from pasearch.runs.keys import Stream

STUDY_FILE = "study.json"  # file in `private/` with the name and address of the run's study


@contextmanager
def open_trials(folder: RunFolder, request: Request) -> Iterator[Callable[[Stream], Journal]]:
    """Open the store of a run's trials, and yield a function that signs it with the run's keys.

    A shared store is opened at once, so that a run without access to it is refused before it has
    keys or a reservation. The store in the run's folder is opened when the function is called. If
    the run is refused, an empty study is removed.

    Raises:
        UsageError: The store cannot be reached, lacks rights, or does not hold this run's study.
    """
    address = parse_address(getattr(request, "storage", None))
    journal = None
    if address is not None and (folder.private / STUDY_FILE).exists():
        name, kept = _read_study(folder)
        journal = Journal(address if address.text == kept.text else kept, name, new=False)
    elif address is not None:
        name = f"{folder.path.name[:80]} {secrets.token_hex(16)}"
        journal = Journal(address, name)
        _write_study(folder, name, address)

    def sealed(seal: Stream) -> Journal:
        nonlocal journal
        journal = journal or Journal(folder.private / "trials.sqlite")
        journal.sealed_by(seal)
        return journal

    try:
        yield sealed
    except (UsageError, BudgetError):
        if journal is not None and journal.forget_if_empty():
            (folder.private / STUDY_FILE).unlink(missing_ok=True)
        raise
    finally:
        if journal is not None:
            journal.close()


def move_store(
    folder: RunFolder, request: Any, storage: str | PathLike[str] | Address
) -> TrainRequest:
    """Change the address of the store of an interrupted run; return the changed request.

    If the new store does not contain the run's study, all trials are repeated.

    Args:
        folder: Folder of the run.
        request: Request of the run.
        storage: New address, or the old one with its password.

    Raises:
        UsageError: The run stores its trials in another kind of store, or in its own folder.
    """
    address, before = parse_address(storage), getattr(request, "storage", None)
    assert address is not None
    if before is None or address.kind != before.kind:
        own = "its own folder" if before is None else f"a {before.kind}"
        raise UsageError(
            f"{folder.path} stores its trials in {own}: leave `storage=` out, or name such a store."
        )
    if (folder.private / STUDY_FILE).exists():
        name, _ = _read_study(folder)
        try:
            Journal(address, name, new=False).close()
            _write_study(folder, name, address)
        except MissingStudyError:
            (folder.private / STUDY_FILE).unlink()
    return replace(request, storage=address)


def _write_study(folder: RunFolder, name: str, address: Address) -> None:
    """Write the name and the address of the run's study to `private/`."""
    folder.atomic_write(STUDY_FILE, json.dumps({"study": name, "storage": address.text}))


def _read_study(folder: RunFolder) -> tuple[str, Address]:
    """Read the name and the address of the run's study from `private/`."""
    values = read_json(folder.private / STUDY_FILE, "where a run's trials are", follow=False)
    try:
        name, address = values["study"], parse_address(values["storage"])
    except (TypeError, KeyError, UsageError):
        name = address = None
    if not isinstance(name, str) or address is None:
        raise UsageError(f"{folder.private / STUDY_FILE} is damaged: start a new run.")
    return name, address
