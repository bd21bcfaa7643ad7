"""Where finished trials are kept: in a file of the run's own, or where several machines reach them.

    private/trials.sqlite               SQLite, the run's own: the default
    postgresql://user@host/database     PostgreSQL, through psycopg
    /shared/trials.log                  a journal file of Optuna's, on a disk that machines share

The last two hold many runs, each as one Optuna study. Whoever can read them sees every trial's
score (of disjoint portions the exact one) and how many there are, as in `private/`. Whoever can
write them can delete a trial, which is then trained again with the same keys; what they alter is
refused (`journal`: each record has a seal). A password is used and never kept, shown or handed to
Optuna.

Source: docs/howto-storage.md; docs/rules.md, rule 10.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pasearch.errors import FULL, UsageError

POSTGRES, JOURNAL = STORES = ("PostgreSQL database", "journal file")
"""What a store outside the run's folder is called, also on the privacy card."""

EXPECTED = "expected postgresql://user@host/database, or a file whose name ends in .log"
SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
HOSTS = re.compile(r"[^@:\[\]\s]*(:\d+)?|\[[0-9a-fA-F:.]+\](:\d+)?")
BEGINNING = b'{"op_code":'
"""Of every journal file."""
CONNECT_SECONDS = 10
"""After how long a database counts as one that cannot be reached."""
HOLD_SECONDS = 30
"""After how long the lock of a process that was killed is taken from it, or waiting is given up."""


@dataclass(frozen=True, slots=True)
class Address:
    """A store that several machines reach; `address_of` reads it.

    Args:
        text: A URL without a password, or an absolute path.
        password: As it stood in the URL.
    """

    text: str
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def kind(self) -> str:
        """One of `STORES`."""
        return POSTGRES if "://" in self.text else JOURNAL

    def connect(self) -> Any:
        """Return a connection to the database; without a password libpq looks for one itself."""
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        given = {"connect_timeout": CONNECT_SECONDS, "application_name": "pasearch"}
        given |= conninfo_to_dict(self.text)
        if self.password is not None:
            given["password"] = unquote(self.password)
        return psycopg.connect(**given)


def address_of(given: str | os.PathLike[str] | Address | None) -> Address | None:
    """Return the store that a user names; None is the run's own.

    Raises:
        UsageError: It is neither a database nor a file. What was given is not repeated: it may
            hold a password.
    """
    if given is None or isinstance(given, Address):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise UsageError(f"storage is of type {type(given).__name__}: {EXPECTED}.")
    text = os.fspath(given)
    if "://" in text:
        return _database(text)
    if Path(text).suffix != ".log" or "\0" in text or "password=" in text.casefold():
        raise UsageError(
            f"storage is no store of trials that several machines reach: {EXPECTED}. Without it "
            "trials are kept in the run's own folder."
        )
    return Address(str(Path(text).absolute()))


def _database(text: str) -> Address:
    """Return a database's address, its password apart."""
    try:
        parts = urlsplit(text)
    except ValueError:
        raise UsageError(f"storage is no URL that can be read: {EXPECTED}.") from None
    if parts.scheme not in SCHEMES:
        known = "expected postgresql://user@host/database"
        raise UsageError(f"storage is a URL of another kind of store: {known}, or a .log file.")
    who, at, hosts = parts.netloc.rpartition("@")
    user, colon, password = who.partition(":")
    fits = all(HOSTS.fullmatch(host) for host in hosts.split(","))
    if not fits or parts.fragment or "@" in parts.path + parts.query:
        raise UsageError(
            "storage is a URL that can be read in two ways: write the special characters of its "
            "user and password as %40 for @, %3A for :, %2F for /, %3F for ?, %23 for #."
        )
    names = {name.casefold() for name, _ in parse_qsl(parts.query.replace(";", "&"))}
    if any("pass" in name and name != "passfile" for name in names) or "%3a" in user.casefold():
        raise UsageError(
            "storage has a password behind its question mark: write it before the @, or better in "
            "the environment variable PGPASSWORD or the file ~/.pgpass."
        )
    if not parts.path.strip("/"):
        raise UsageError("storage names no database: expected postgresql://user@host/database.")
    query = f"?{parts.query}" if parts.query else ""
    return Address(
        f"postgresql://{user}{at}{hosts}{parts.path}{query}", password if colon else None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """An open store.

    Args:
        storage: What Optuna takes.
        exclusive: From a study's name to what one process at a time is inside of.
        close: Ends all connections.
    """

    storage: Any
    exclusive: Callable[[str], AbstractContextManager[None]]
    close: Callable[[], None]


def open_store(place: str | os.PathLike[str] | Address, optuna: Any) -> Store:
    """Open a store, made if it is missing; its errors are the library's own."""
    if not isinstance(place, Address):
        return _own_file(Path(place).absolute(), optuna)
    return (_postgres if place.kind == POSTGRES else _journal_file)(place, optuna)


def _own_file(path: Path, optuna: Any) -> Store:
    """Open the run's own SQLite file: it has one writer, by the ledger's lock."""
    _make(path)
    # A connection of our own: in a URL, a "?" in the path would end it.
    storage = optuna.storages.RDBStorage(
        "sqlite:///trials",
        engine_kwargs={
            "hide_parameters": True,
            "creator": lambda: sqlite3.connect(path, check_same_thread=False),
        },
    )
    return Store(storage=storage, exclusive=lambda _: nullcontext(), close=_closing(storage))


def _closing(storage: Any) -> Callable[[], None]:
    def close() -> None:
        storage.remove_session()
        storage.engine.dispose()

    return close


def _make(path: Path) -> None:
    """Make a file that its owner alone reads, if there is none; no link is followed."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))


def _postgres(address: Address, optuna: Any) -> Store:
    @contextmanager
    def exclusive(name: str) -> Iterator[None]:
        """Hold a lock that ends with its transaction, and so with the process."""
        digest = hashlib.sha256(f"pasearch {name}".encode()).digest()
        with address.connect() as link:
            link.execute(f"SET LOCAL lock_timeout = '{HOLD_SECONDS}s'")
            number = int.from_bytes(digest[:8], "big", signed=True)
            link.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
            yield

    first: list[Any] = []

    def connected() -> Any:
        link = address.connect()
        first[:] = first or [link]
        return link

    with exclusive(""):  # or two processes would make the tables at once
        try:
            storage = optuna.storages.RDBStorage(
                "postgresql+psycopg://",
                engine_kwargs={
                    "hide_parameters": True, "pool_pre_ping": True, "creator": connected,
                },
            )  # fmt: skip
        except BaseException:
            for link in first:  # Optuna leaves it open, in an engine that nobody has
                link.close()
            raise
    return Store(storage=storage, exclusive=exclusive, close=_closing(storage))


class _Lock:
    """Optuna's lock of a journal file, which a process that has it may take again."""

    def __init__(self, path: str, optuna: Any):
        self._lock = optuna.storages.journal.JournalFileSymlinkLock(path, HOLD_SECONDS)
        self._depth = 0

    def acquire(self) -> bool:
        if self._depth == 0:
            self._lock.acquire()
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._lock.release()


def _journal_file(address: Address, optuna: Any) -> Store:
    path, journal = address.text, optuna.storages.journal
    _make(Path(path))
    lock = _Lock(path, optuna)

    @contextmanager
    def exclusive(_: str) -> Iterator[None]:
        lock.acquire()
        try:
            _cut_torn_line(path)
            yield
        finally:
            lock.release()

    with exclusive(""):
        storage = optuna.storages.JournalStorage(journal.JournalFileBackend(path, lock))
    return Store(storage=storage, exclusive=exclusive, close=lambda: None)


def _cut_torn_line(path: str) -> None:
    """Take away the last line if a crash or a full disk cut it: it was never said to be stored.

    Raises:
        ValueError: It is another program's file.
    """
    with open(path, "r+b") as file:
        if not BEGINNING.startswith(file.read(len(BEGINNING))):
            raise ValueError("not a journal of Optuna's")
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read() not in (b"", b"\n"):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            os.fsync(file.fileno())


def refusal(address: Address, error: BaseException) -> UsageError | None:
    """Return what a user is told of a store that cannot be opened; None if it is not its fault."""
    if isinstance(error, ImportError):
        return UsageError(
            "A PostgreSQL database of trials needs psycopg: `pip install 'pasearch[postgres]'`."
        )
    if isinstance(error, OSError):
        if error.errno in FULL:
            return None
        why = f"{error.strerror}: name a file in a folder that is there and yours to write"
        return UsageError(f"{address} cannot be a store of trials ({why}).")
    told = _of_psycopg(error)
    if told is None:
        return None
    lines = str(told).splitlines() or [type(told).__name__]
    words = lines[0] if address.password is None else lines[0].replace(address.password, "***")
    where = "The database of trials cannot be used"
    match getattr(told, "sqlstate", None):
        case "42501" | "25006":
            todo = "its user needs the rights to create, read and write tables there"
        case "55P03":
            todo = "other processes have kept it busy too long: try again"
        case _:
            todo = (
                "check host, port, database and user; the password is taken from the URL, from "
                "PGPASSWORD or from ~/.pgpass, and is not kept for a resume"
            )
    return UsageError(f"{where}: {address} ({words.strip()}): {todo}.")


def _of_psycopg(error: BaseException | None) -> BaseException | None:
    """Return the driver's own error below those of SQLAlchemy and Optuna."""
    while error is not None and not type(error).__module__.startswith("psycopg"):
        error = getattr(error, "orig", None) or error.__cause__
    return error
