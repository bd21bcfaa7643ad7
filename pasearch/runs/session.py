"""Counts of private fits and exact scores without a ledger, in a process and its worker processes.

`GridSearchCV(n_jobs=2)` fits in worker processes and refits in the process that started them. All
of them append to one file, in a folder whose path is in an environment variable. So each process
knows the fits of all.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
import warnings
from pathlib import Path

FOLDER_VARIABLE = "PASEARCH_SESSION"
"""Environment variable with the path of the session's folder; worker processes inherit it."""

if FOLDER_VARIABLE not in os.environ:
    os.environ[FOLDER_VARIABLE] = str(
        Path(tempfile.gettempdir()) / f"pasearch-{secrets.token_hex(16)}"
    )
    _OWNER = os.getpid()
else:
    _OWNER = 0


def session_folder() -> Path:
    """Create the folder of this process and its workers if it is missing, and return its path."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def record_fit(epsilon: float) -> list[float]:
    """Record a fit, and return the epsilon of every fit so far, including this one."""
    with open(session_folder() / "fits", "a+", encoding="utf-8") as file:
        file.write(f"{epsilon!r}\n")
        file.flush()
        file.seek(0)
        return [float(line) for line in file]


def warn_of_exact_score(remedy: str, stacklevel: int) -> None:
    """Warn that an exact score is outside the privacy guarantee.

    The warning is given once in this process, and once in all its workers together.

    Args:
        remedy: End of the sentence: what the user should do instead.
        stacklevel: Stack level for `warnings.warn`, counted from the caller.
    """
    marker = "scored" if _OWNER == os.getpid() else "scored-by-workers"
    try:
        (session_folder() / marker).touch(exist_ok=False)
    except FileExistsError:
        return
    warnings.warn(
        "This score is exact and was not charged, so on private records it is outside the "
        "guarantee, and so is a choice made by such scores, as in cross_val_score or GridSearchCV, "
        "which also makes one private fit, with its own epsilon, for each fold of each candidate "
        f"and one more for the refit: {remedy}.",
        UserWarning,
        stacklevel=stacklevel + 1,
    )


@atexit.register
def _remove_folder() -> None:
    """Delete the session's folder when the process that created it ends."""
    if _OWNER == os.getpid():
        shutil.rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)
