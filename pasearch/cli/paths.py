"""Fast checks of all paths of a command before it plans a run, which may take minutes.

The file system may change before a path is used, so later code checks again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pasearch.errors import UsageError, suggest_name
from pasearch.terminal_escaping import escape_text


def check_paths(asked: Mapping[str, Any], *, run: bool) -> None:
    """Refuse paths of a task that cannot be read or written.

    Args:
        asked: Values of the options, by their Python names.
        run: Whether a run follows, which creates its folder.

    Raises:
        UsageError: The message names the option and the remedy.
    """
    from pasearch.data.sources import BUILT_IN_NAMES, is_path

    out = None if asked.get("out") is None else Path(asked["out"])
    if out is not None and os.path.lexists(out):
        begun = (out / "private").is_dir() and not any((out / "release").glob("*"))
        finish = f", or resume the run in it with `pasearch resume {out}`" if begun else ""
        raise UsageError(
            f"{escape_text(out)} exists: a run needs a new folder. Name another one "
            f"(`out=`){finish}."
        )
    if run:
        check_writable(Path("runs/new") if out is None else out, "out")
    for name in ("schema", "architecture"):
        if not isinstance(value := asked.get(name), (str, Path)):
            continue
        path = Path(value)
        if not path.is_file():
            why = "is a folder" if path.is_dir() else "does not exist"
            raise UsageError(f"{escape_text(path)} {why}: expected a .toml file (`{name}=`).")
        if not os.access(path, os.R_OK):
            raise UsageError(
                f"{escape_text(path)} is not readable: change its permissions, or name another "
                f"file (`{name}=`)."
            )
    if (ledger := asked.get("ledger")) is not None:
        check_ledger(Path(ledger), asked.get("ledger_budget"), run=run)
    if (cache := asked.get("cache")) is not None:
        check_writable(Path(cache, "new") if os.path.lexists(cache) else Path(cache), "cache")
    for name in ("search_on", "validate_on"):
        value = asked.get(name)
        if isinstance(value, (str, Path)) and is_path(str(value)) and not Path(value).exists():
            raise UsageError(
                f"{escape_text(value)} does not exist: expected a file, a folder of images, or one "
                f"of the built-in names (`{name}=`).{suggest_name(value, BUILT_IN_NAMES)}"
            )
    root = asked.get("data_root")
    if root is not None and Path(root).exists() and not Path(root).is_dir():
        raise UsageError(f"{escape_text(root)} is a file: expected a folder (`data_root=`).")


def check_new_file(path: Path | None, option: str = "") -> None:
    """Refuse a file that exists or cannot be created.

    Args:
        path: Path of the file; None if the option is not used.
        option: Python name of the option; "" for an argument.
    """
    if path is None:
        return
    named = f" (`{option}=`)" if option else ""
    if os.path.lexists(path):
        raise UsageError(f"{escape_text(path)} exists: name a new file{named}.")
    _check_folder_of(path, named)
    check_writable(path, option)


def _check_folder_of(path: Path, named: str) -> None:
    """Refuse a new file whose folder does not exist; `named` is a reference to its option."""
    folder = path.absolute().parent
    if not folder.is_dir():
        why = "is not a folder: " if os.path.lexists(folder) else "does not exist: create it, or "
        raise UsageError(
            f"{escape_text(path)} cannot be written, because {escape_text(path.parent)} {why}name "
            f"another file{named}."
        )


def check_writable(path: Path, option: str) -> None:
    """Refuse a path that cannot be created; missing parent folders may be created later.

    The check creates an empty folder in the nearest existing parent and removes it, because no
    other test works on every system.

    Args:
        path: Path of the file or folder to create.
        option: Python name of the option; "" for an argument.
    """
    above = path.absolute().parent
    while not os.path.lexists(above):
        above = above.parent
    try:
        with tempfile.TemporaryDirectory(dir=above, prefix=".pasearch-"):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        named = f" (`{option}=`)" if option else ""
        raise UsageError(
            f"{escape_text(path)} cannot be created, because {escape_text(above)} is not writable "
            f"({reason}): name another place{named}."
        ) from None


def check_ledger(path: Path, total: object, *, run: bool) -> None:
    """Refuse a shared ledger that cannot be created or used, or a new one without a total.

    Args:
        path: File of the shared ledger.
        total: Total budget of a new ledger; None for an existing one.
        run: Whether a missing ledger will be created.

    Raises:
        UsageError: The message names the option to change.
    """
    if path.is_dir():
        raise UsageError(f"{escape_text(path)} is a folder: name a file (`ledger=`).")
    if not path.exists():
        _check_folder_of(path, " (`ledger=`)")
        if run and total is None:
            raise UsageError(
                f"{escape_text(path)} does not exist yet: give the total epsilon and delta of all "
                "runs on these data (`ledger_budget=`)."
            )
        if run:
            check_writable(path, "ledger")
        return
    if not os.access(path, os.R_OK | os.W_OK):
        raise UsageError(
            f"{escape_text(path)} must be readable and writable: change its permissions "
            "(`ledger=`)."
        )
    # Opening the ledger later checks everything else. This check must come before, because closing
    # a file that SQLite has open would release the lock of SQLite.
    from pasearch.runs.shared_ledger import SHARED_LEDGER_FORMAT

    with path.open("rb") as file:
        head = file.read(72)
    if not (
        head.startswith(b"SQLite format 3\0")
        and head[68:] == SHARED_LEDGER_FORMAT.application.encode()
    ):
        raise UsageError(
            f"{escape_text(path)} is not a shared ledger: name the file that the first run on "
            "these data created, or a new one (`ledger=`)."
        )
