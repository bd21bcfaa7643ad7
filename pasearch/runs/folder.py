"""The folder of a run: `release/` is safe to publish at the stated price, `private/` is not.

    runs/<name>-<number>/     0700: only the curator sees when it changed
      release/                empty until the run ends, then complete, by one rename
      private/                0700: ledger, trials, keys, weights of the trials

Under repeat-and-select the run time tells the number of runs, which the price does not cover. So
every published file and folder carries the run's *start* as its modification time, and so do the
run's folder and `private/` itself, when the run is over: what is last done there is to destroy the
keys. Files below `private/` keep their times. Unix cannot set the change time (`ctime`): hence 0700
around all of it, and one publishes a copy of `release/`.

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

VERSION = 1
RUNS_FOLDER = Path("runs")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def sync_folder(path: Path) -> None:
    """Make the folder's entries durable: files created, renamed or removed in it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write(path: Path, data: bytes | str, *, mode: int = 0o600) -> None:
    """Write a file so that a crash at any instant leaves the old content or the new, never a part.

    Args:
        path: Where to; its folder exists. A symbolic link there is replaced, not followed.
        data: Bytes, or text to be encoded as UTF-8.
        mode: The file's permissions, whatever the umask.
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
    """Give an empty file to fill, and link it to its place at the end: nobody sees a part of it.

    A link fails where a rename would replace the file that another process has just made.

    Args:
        path: The file's place; its folder exists.

    Raises:
        FileExistsError: A file, or a link, is there.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        draft = Path(folder) / "draft"
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield draft
        os.link(draft, path)
    sync_folder(path.parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """A run's folder on disk. Make it with `create`, find it again with `open`.

    Guarantee: what is not published lies below `private/`, which nobody but the owner can enter;
    `release/` is empty or complete, and its times tell nothing but the run's start.

    Args:
        path: The folder, absolute.
        started: When the run started, seconds since 1970; survives a resume.
        above: The folders around it that were made for it, the innermost first.
    """

    path: Path
    started: int
    above: tuple[Path, ...] = field(default=(), compare=False, repr=False)

    @property
    def release(self) -> Path:
        """What may be published, at the stated price."""
        return self.path / "release"

    @property
    def private(self) -> Path:
        """What stays with the curator."""
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
        """Make the folder of a new run.

        Guarantee: the folder appears with all its files, by one rename. A process that is killed
        before that leaves at most a hidden draft, and the same command can be given again.

        Args:
            path: Where; it must not exist. None takes runs/<name>-<next number>.
            name: What the run is of. Only letters, digits, `.`, `_` and `-` of it are used, so it
                cannot lead to another folder.
            files: Content of further private files, by file name.

        Raises:
            UsageError: The path exists or cannot be made; nothing was written.
            OSError: The disk is full, say; nothing is left of it.
        """
        started = int(time.time())
        about = json.dumps({"version": VERSION, "name": name, "started": started})
        private = {"run.json": about, **(files or {})}
        make = (
            _create_numbered_folder(name, private)
            if path is None
            else _create_folder(Path(path), private)
        )
        return cls(path=make[0].resolve(), started=started, above=make[1])

    def discard(self) -> None:
        """Take the folder away, and those around it that were made for it and hold nothing else."""
        shutil.rmtree(self.path, ignore_errors=True)
        _remove_empty(self.above)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, finished: bool = False) -> RunFolder:
        """Find a run again.

        Args:
            path: The run's folder.
            finished: False to resume a run, True to read one that is done.

        Raises:
            UsageError: No run is there, or it is finished when it should not be, or the reverse.
        """
        root = Path(path)
        started = -1
        try:
            about = read_json(root / "private" / "run.json", follow=False)
            if about["version"] == VERSION and type(about["started"]) is int:
                started = about["started"]
        except (UsageError, OSError, ValueError, KeyError, TypeError):
            pass
        possible = 0 <= started < 2**33  # no clock has shown another, and a file can have this one
        if not possible or (root / "private").is_symlink() or not (root / "release").is_dir():
            if not os.path.lexists(root):
                raise UsageError(f"{root} is not there: give the folder that the run printed.")
            raise UsageError(
                f"{root} is no run of this version of pasearch: expected a folder with release/ "
                "and private/run.json. Give the folder that the run printed."
            )
        folder = cls(path=root.resolve(), started=started)
        if folder.finished and not finished:
            raise UsageError(
                f"{root} is finished: its keys are destroyed and its results are in "
                f"{folder.release}. Start a new run, with a budget of its own."
            )
        if finished and not folder.finished:
            raise UsageError(f"{root} is not finished: resume it first (`pasearch resume {root}`).")
        return folder

    def atomic_write(self, path: str | os.PathLike[str], data: bytes | str) -> None:
        """Write a private file; a crash leaves the old content or the new.

        Args:
            path: Below `private/`; a relative path starts there. Its folder exists.
            data: Bytes, or text.

        Raises:
            UsageError: The path lies elsewhere; a release is written by `publish`, at the end.
        """
        target = self.private / path
        parent = target.parent.resolve()
        if not parent.is_relative_to(self.private.resolve()) or target.name in ("", "..", "."):
            raise UsageError(
                f"{path} is not below {self.private}: while a run lasts it writes only there; "
                "results are published together at its end."
            )
        atomic_write(parent / target.name, data)

    def publish(self, files: Mapping[str, bytes | str]) -> None:
        """Put the results into `release/`, all at once, with the run's start as their time.

        Args:
            files: Content by plain file name; at least one.

        Raises:
            UsageError: A name that is not plain, no file at all, or a run that has published.
        """
        bad = [name for name in files if not _PLAIN_NAME.fullmatch(name)]
        if bad or not files:
            raise UsageError(
                f"release files are {sorted(files)}: expected one or more plain file names "
                "(letters, digits, '.', '_' and '-', no folders)."
            )
        if self.finished:
            raise UsageError(f"{self.release} is published already: a run publishes once.")
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
        """Give `release/`, `private/` and the folder around them the run's start as their time.

        The last thing that a run does: whatever is made or deleted in a folder sets its time.
        """
        folders = (self.release, self.private, self.path)
        self._set_times(folders)
        for folder in folders:
            sync_folder(folder)

    def _set_times(self, paths: Iterable[Path]) -> None:
        for path in paths:
            os.utime(path, (self.started, self.started))


def _create_folder(path: Path, private: Mapping[str, bytes | str]) -> tuple[Path, tuple[Path, ...]]:
    """Make a run's folder as a draft next to its place, then rename it.

    Args:
        path: The folder. A symbolic link there, even a dangling one, counts as existing.
        private: Content of its private files, by file name.

    Returns:
        The folder, and those around it that were made, the innermost first.
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
            os.rename(draft, path)  # a run that another process has made meanwhile is not replaced
    except BaseException:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
        _remove_empty(above)
        raise
    sync_folder(path.parent)
    return path, above


@contextmanager
def _naming_folder_in_errors(path: Path) -> Iterator[None]:
    """Name the folder in the error if it cannot be made."""
    try:
        yield
    except (OSError, ValueError) as error:
        if os.path.lexists(path):
            raise UsageError(
                f"{path} exists: a run needs a folder of its own. Name a new one, or resume the "
                f"run that is there with `pasearch resume {path}`."
            ) from None
        raise UsageError(f"{path} cannot be made ({error}): name a folder you can write.") from None


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, the innermost first, as far as they are there and empty."""
    for each in folders:
        with suppress(OSError):
            each.rmdir()


def _create_numbered_folder(
    name: str, private: Mapping[str, bytes | str]
) -> tuple[Path, tuple[Path, ...]]:
    """Make the first folder after the last number; two runs at once get two numbers."""
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
