"""Folder of a run: `release/` may be published at the stated privacy cost, `private/` may not.

    runs/<name>-<number>/     mode 0700: accessible to the curator only
      release/                empty until the run ends, then complete, by one rename
      private/                mode 0700: ledger, trials, keys, weights of the trials

Under repeat-and-select, the duration of the run reveals the number of trainings, which the privacy
cost does not cover. So every published file and folder gets the *start* of the run as its
modification time. At the end of the run, the run's folder and `private/` get this time, too. Files
in `private/` keep their times. Unix systems do not allow a program to set the change time (`ctime`)
of a file. Therefore other users cannot read the folder, and a copy of `release/` is published.

Source: docs/rules.md, rule 10; docs/result.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pasearch.errors import UsageError
from pasearch.files import read_json

VERSION = 1  # of the folder's layout
RUNS_FOLDER = Path("runs")  # default parent folder of run folders
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # file names in `release/`


def sync_folder(path: Path) -> None:
    """Sync a folder to disk, so that created, renamed and deleted entries survive a crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write(path: Path, data: bytes | str, *, mode: int = 0o600) -> None:
    """Write a file such that after a crash it has the old content or the new, never a part.

    Args:
        path: Path of the file, in an existing folder. A symbolic link is replaced, not followed.
        data: Bytes, or text to be encoded as UTF-8.
        mode: Permissions of the file, independent of the umask.
    """
    content = data.encode() if isinstance(data, str) else data
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def linked_draft(path: Path) -> Iterator[Path]:
    """Yield an empty temporary file; after the block, it gets its final path, with its content.

    The final path is made by a hard link, because a rename could replace a file that another
    process has just created.

    Args:
        path: Final path of the file, in an existing folder.

    Raises:
        FileExistsError: The path exists.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        draft = Path(folder) / "draft"
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield draft
        os.link(draft, path)
    sync_folder(path.parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Folder of a run on disk. `create` makes a new folder, `open` opens an existing one.

    Guarantee: unpublished content is in `private/`, which only the owner can enter. `release/` is
        empty or complete, and its file times reveal only the start of the run.

    Args:
        path: Absolute path of the folder.
        started: Start of the run, seconds since 1970; unchanged by a resume.
        above: Parent folders that were created for this folder, the innermost first.
    """

    path: Path
    started: int
    above: tuple[Path, ...] = field(default=(), compare=False, repr=False)

    @property
    def release(self) -> Path:
        """Folder that may be published at the stated privacy cost."""
        return self.path / "release"

    @property
    def private(self) -> Path:
        """Folder that must not be published."""
        return self.path / "private"

    @property
    def finished(self) -> bool:
        """Whether the run has published its results."""
        return any(self.release.iterdir())

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str] | None,
        name: str,
        files: Mapping[str, bytes | str] | None = None,
    ) -> RunFolder:
        """Create the folder of a new run.

        Guarantee: the folder is created with all its files, by one rename. If the process is killed
            before, at most a hidden draft is left, and the same command can be repeated.

        Args:
            path: Path of the folder, which must not exist. None: runs/<name>-<next number>.
            name: Name of the data. Only its letters, digits, `.`, `_` and `-` are used, so that it
                cannot be a path to another folder.
            files: Content of further private files, by file name.

        Raises:
            UsageError: The path exists or cannot be created; nothing was written.
            OSError: The operating system refused, for example because the disk is full; nothing is
                left on disk.
        """
        started = int(time.time())
        about = json.dumps({"version": VERSION, "name": name, "started": started})
        private = {"run.json": about, **(files or {})}
        if path is None:
            made, above = _create_numbered_folder(name, private)
        else:
            made, above = _create_folder(Path(path), private)
        return cls(path=made.resolve(), started=started, above=above)

    def discard(self) -> None:
        """Delete the folder, and those parent folders that were created for it, if empty."""
        shutil.rmtree(self.path, ignore_errors=True)
        _remove_empty(self.above)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, finished: bool = False) -> RunFolder:
        """Open the folder of an existing run.

        Args:
            path: Folder of the run.
            finished: False to resume a run, True to read a finished one.

        Raises:
            UsageError: The folder is not the folder of a run, or `finished` is not as stated.
        """
        root = Path(path)
        started = -1
        try:
            about = read_json(root / "private" / "run.json", follow=False)
            if about["version"] == VERSION and type(about["started"]) is int:
                started = about["started"]
        except (UsageError, OSError, ValueError, KeyError, TypeError):
            pass
        possible = 0 <= started < 2**33  # plausible, and a possible time of a file
        if not possible or (root / "private").is_symlink() or not (root / "release").is_dir():
            if not os.path.lexists(root):
                raise UsageError(f"{root} does not exist: give the folder that the run printed.")
            raise UsageError(
                f"{root} is not a run of this version of pasearch: expected a folder with release/ "
                "and private/run.json. Give the folder that the run printed."
            )
        folder = cls(path=root.resolve(), started=started)
        if folder.finished and not finished:
            raise UsageError(
                f"{root} is finished: its keys are destroyed and its results are in "
                f"{folder.release}. Start a new run, with its own budget."
            )
        if finished and not folder.finished:
            raise UsageError(f"{root} is not finished: resume it first (`pasearch resume {root}`).")
        return folder

    def atomic_write(self, path: str | os.PathLike[str], data: bytes | str) -> None:
        """Write a private file; after a crash it has the old content or the new.

        Args:
            path: Path in `private/`, or relative to it, in an existing folder.
            data: Bytes, or text to be encoded as UTF-8.

        Raises:
            UsageError: The path is outside `private/`; `publish` writes the release at the end.
        """
        target = self.private / path
        parent = target.parent.resolve()
        if not parent.is_relative_to(self.private.resolve()) or target.name in ("", "..", "."):
            raise UsageError(
                f"{path} is not in {self.private}: a run writes only there until it publishes all "
                "results at its end."
            )
        atomic_write(parent / target.name, data)

    def publish(self, files: Mapping[str, bytes | str]) -> None:
        """Write all results to `release/` by one rename, with the start of the run as their time.

        Args:
            files: Content by file name; at least one. Names consist of letters, digits, ".", "_"
                and "-".

        Raises:
            UsageError: A name has other characters, there is no file, or the run has already
                published.
        """
        bad = [name for name in files if not _PLAIN_NAME.fullmatch(name)]
        if bad or not files:
            raise UsageError(
                f"release files are {sorted(files)}: expected one or more plain file names "
                "(letters, digits, '.', '_' and '-', no folders)."
            )
        if self.finished:
            raise UsageError(f"{self.release} is published already: a run publishes only once.")
        staging = self.private / "publishing"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o755)
        staging.chmod(0o755)
        for name in sorted(files):
            atomic_write(staging / name, files[name], mode=0o644)
        self._set_times([*staging.iterdir(), staging])
        os.rename(staging, self.release)
        self.hide_times()

    def hide_times(self) -> None:
        """Set the times of `release/`, `private/` and the run's folder to the start of the run.

        This is the last action of a run, because every created or deleted file changes the time of
        its folder.
        """
        folders = (self.release, self.private, self.path)
        self._set_times(folders)
        for folder in folders:
            sync_folder(folder)

    def _set_times(self, paths: Iterable[Path]) -> None:
        """Set access and modification times to the start of the run."""
        for path in paths:
            os.utime(path, (self.started, self.started))


def _create_folder(path: Path, private: Mapping[str, bytes | str]) -> tuple[Path, tuple[Path, ...]]:
    """Create a run's folder under a temporary name, then rename it.

    Returns:
        Path of the folder, and the parent folders that were created.
    """
    above = tuple(each for each in path.absolute().parents if not os.path.lexists(each))
    draft = None
    try:
        with _naming_folder_in_errors(path):
            if os.path.lexists(path):
                raise FileExistsError
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=".run."))
        for name, mode in (("private", 0o700), ("release", 0o755)):
            (draft / name).mkdir()
            (draft / name).chmod(mode)
        for name, content in private.items():
            atomic_write(draft / "private" / name, content)
        sync_folder(draft)
        with _naming_folder_in_errors(path):
            os.rename(draft, path)  # fails if another process has created a run there
    except BaseException:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
        _remove_empty(above)
        raise
    sync_folder(path.parent)
    return path, above


@contextmanager
def _naming_folder_in_errors(path: Path) -> Iterator[None]:
    """Convert errors of the block to errors that name the folder and tell the user what to do."""
    try:
        yield
    except (OSError, ValueError) as error:
        if os.path.lexists(path):
            raise UsageError(
                f"{path} exists: a run needs a new folder. Name another one, or resume the run in "
                f"it with `pasearch resume {path}`."
            ) from None
        raise UsageError(f"{path} cannot be created ({error}): name a writable folder.") from None


def _remove_empty(folders: Iterable[Path]) -> None:
    """Delete folders if they are empty."""
    for each in folders:
        with suppress(OSError):
            each.rmdir()


def _create_numbered_folder(
    name: str, private: Mapping[str, bytes | str]
) -> tuple[Path, tuple[Path, ...]]:
    """Create a run's folder with the next free number; simultaneous runs get different numbers."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-_")[:80] or "run"
    pattern = re.compile(re.escape(stem) + r"-(\d{1,9})")
    seen = (
        pattern.fullmatch(entry)
        for entry in (os.listdir(RUNS_FOLDER) if RUNS_FOLDER.is_dir() else ())
    )
    number = max((int(match[1]) for match in seen if match), default=0)
    while True:
        number += 1
        path = RUNS_FOLDER / f"{stem}-{number}"
        if not os.path.lexists(path):
            try:
                return _create_folder(path, private)
            except UsageError:
                # Another run took the number in between; any other refusal is final.
                if not os.path.lexists(path):
                    raise
