"""Paths, looked at before anything is planned: what cannot be read or written is said at once.

Each check is the cheapest that tells. What is there may change before it is used, so whoever reads
or writes it checks again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pasearch.errors import UsageError, nearest
from pasearch.shown import shown

READ = ("schema", "architecture")
"""Options that name a file that is read."""

OTHER_DATA = ("search_on", "validate_on")
"""Options that name data: a file, a folder, or one of the built-in names."""


def check_paths(asked: Mapping[str, Any], *, run: bool) -> None:
    """Refuse what a task is asked to read or write and cannot.

    Args:
        asked: The options, by the names that Python has for them.
        run: Whether a run follows, so that its folder is made.

    Raises:
        UsageError: It says which option, and what to name instead.
    """
    out = asked.get("out")
    if out is not None:
        _check_new_run(Path(out))
    if run:
        check_writable(Path("runs/new") if out is None else Path(out), "out")
    for name in READ:
        if isinstance(value := asked.get(name), (str, Path)):
            _check_file(Path(value), name)
    if (ledger := asked.get("ledger")) is not None:
        check_ledger(Path(ledger), asked.get("ledger_budget"), run=run)
    if (cache := asked.get("cache")) is not None:
        check_writable(Path(cache, "new") if os.path.lexists(cache) else Path(cache), "cache")
    _check_data(asked)


def check_new_file(path: Path | None, option: str = "") -> None:
    """Refuse a file that is there, or cannot be made where it is named.

    Args:
        path: Of the file; None is no file at all.
        option: The option's name in Python; nothing for an argument.
    """
    if path is None:
        return
    if os.path.lexists(path):
        raise UsageError(f"{shown(path)} exists: name a new file{_named(option)}.")
    _check_folder_of(path, option)
    check_writable(path, option)


def _check_folder_of(path: Path, option: str) -> None:
    """Refuse a file whose folder is not there."""
    folder = path.absolute().parent
    if not folder.is_dir():
        why = "is no folder: " if os.path.lexists(folder) else "is not there: make that folder, or "
        raise UsageError(
            f"{shown(path)} cannot be written, because {shown(path.parent)} {why}name another file"
            f"{_named(option)}."
        )


def _check_new_run(path: Path) -> None:
    """Refuse a folder that exists."""
    if not os.path.lexists(path):
        return
    begun = (path / "private").is_dir() and not any((path / "release").glob("*"))
    finish = f", or finish the run that is there with `pasearch resume {path}`" if begun else ""
    raise UsageError(
        f"{shown(path)} exists: a run needs a folder of its own. Name a new one (`out=`){finish}."
    )


def check_writable(path: Path, option: str) -> None:
    """Refuse a path below which nothing can be made; folders that are missing will be made.

    An empty folder is made in the nearest one that is there, and taken away again: nothing else
    tells on every system.

    Args:
        path: What will be made.
        option: The option's name in Python; nothing for an argument.
    """
    above = path.absolute().parent
    while not os.path.lexists(above):
        above = above.parent
    try:
        with tempfile.TemporaryDirectory(dir=above, prefix=".pasearch-"):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{shown(path)} cannot be made, because {shown(above)} cannot be written to "
            f"({reason}): name a place of your own{_named(option)}."
        ) from None


def _check_file(path: Path, option: str) -> None:
    """Refuse a file that is not there or may not be read."""
    if not path.is_file():
        why = "is a folder" if path.is_dir() else "is not there"
        raise UsageError(f"{shown(path)} {why}: expected a .toml file (`{option}=`).")
    if not os.access(path, os.R_OK):
        raise UsageError(
            f"{shown(path)} may not be read: change its permissions, or name another file "
            f"(`{option}=`)."
        )


def check_ledger(path: Path, total: object, *, run: bool) -> None:
    """Refuse a ledger that cannot be kept where it is named, or has no total.

    Args:
        path: The shared ledger.
        total: The total for a new file; None leaves an existing one's.
        run: Whether the file is made if it is not there.

    Raises:
        UsageError: It names the option to change.
    """
    if path.is_dir():
        raise UsageError(f"{shown(path)} is a folder: name a file (`ledger=`).")
    if path.exists():
        if not os.access(path, os.R_OK | os.W_OK):
            raise UsageError(
                f"{shown(path)} may not be read and written: a ledger needs both (`ledger=`)."
            )
        if not _is_ledger(path):
            raise UsageError(
                f"{shown(path)} is no ledger of runs: name the file that the first run on these "
                "data made, or a new one (`ledger=`)."
            )
        return
    _check_folder_of(path, "ledger")
    if run and total is None:
        raise UsageError(
            f"{shown(path)} is not there yet: say what all runs on these data may cost together, "
            "epsilon and delta, with `ledger_budget=`."
        )
    if run:
        check_writable(path, "ledger")


def _is_ledger(path: Path) -> bool:
    """Return whether a file's first bytes are those of a shared ledger; its reader checks the rest.

    Before it is used: closing a file that SQLite holds open would drop its lock.
    """
    from pasearch.runs.shared_ledger import FORMAT

    with path.open("rb") as file:
        head = file.read(72)
    return head.startswith(b"SQLite format 3\0") and head[68:] == FORMAT.application.encode()


def _check_data(asked: Mapping[str, Any]) -> None:
    """Refuse other data that are not there, and a folder of image sets that is none."""
    from pasearch.data.sources import BUILT_IN, is_path

    for name in OTHER_DATA:
        value = asked.get(name)
        if isinstance(value, (str, Path)) and is_path(str(value)) and not Path(value).exists():
            raise UsageError(
                f"{shown(value)} is not there: expected a file, a folder of images, or one of the "
                f"built-in names (`{name}=`).{nearest(value, BUILT_IN)}"
            )
    root = asked.get("data_root")
    if root is not None and Path(root).exists() and not Path(root).is_dir():
        raise UsageError(f"{shown(root)} is a file: expected a folder (`data_root=`).")


def _named(option: str) -> str:
    return f" (`{option}=`)" if option else ""
