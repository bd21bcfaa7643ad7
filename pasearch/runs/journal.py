"""Store of a run's finished trials: an Optuna study, which Optuna's dashboard and plots can read.

    private/trials.sqlite               SQLite file of this run only: the default
    postgresql://user@host/database     PostgreSQL, through psycopg; shared by many runs
    /shared/trials.log                  Optuna journal file on a shared disk; shared by many runs

Each finished trial is added once, in one transaction, and a resumed run reads all of them. The
exact record of a trial (any JSON parameters, an integer score) is one attribute of the Optuna
trial. In addition, its numbers are Optuna parameters named by their path ("layers.0.width"), and
its strings and Boolean values are attributes.

Under repeat-and-select no trial may be shown. In the last two stores each run is one study: anybody
who can read them sees the number of trials and every score (for disjoint subsets without noise). So
they must be protected like `private/`. The password of a database is never stored, shown or passed
to Optuna.

    seal of a trial  =  HMAC(key of the run, exact record)      128 bits

Anybody who can write to a shared store could change scores, and so the release. So a run accepts
only records whose seal belongs to its own keys. A trial that was deleted is computed again with the
same keys, so the result is equal.

Source: docs/rules.md, rules 10 and 11; docs/howto-cluster.md; Optuna's `Study.add_trial`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from pasearch.errors import DISK_FULL_ERRNOS, MachineError, UsageError, describe_system_error

if TYPE_CHECKING:
    from pasearch.runs.keys import Stream

DEFAULT_STUDY = "trials"
"""Name of the study in the run's own file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """Record of a finished trial.

    Args:
        number: Index of the trial in the run, from 0.
        parameters: Parameters of the trial, JSON values.
        value: Noisy score; higher is better. None: the trial failed.
        attributes: Further results, JSON values.
    """

    number: int
    parameters: dict[str, Any]
    value: float | int | None
    attributes: dict[str, Any]


class MissingStudyError(UsageError):
    """Error for a store that does not contain the run's trials."""


class Journal:
    """Finished trials of a run, in a store.

    Guarantee: a trial is stored entirely or not at all, and never replaced. A shared store contains
        it once, even if several processes try to add it. The run's own file has one writer, because
        the ledger of the run is locked.

    Args:
        place: Path of the run's SQLite file, created with mode 0600 if missing; or the address of a
            shared store.
        study: Name of the run in the store.
        new: Whether to create the study. If so, a shared store must not contain it.

    Raises:
        UsageError: The store is malformed, cannot be reached, or does not contain the study.
    """

    __slots__ = ("_place", "_records", "_seal", "_store", "_study")

    def __init__(
        self,
        place: str | os.PathLike[str] | Address,
        study: str = DEFAULT_STUDY,
        *,
        new: bool = True,
    ):
        self._place = place
        self._seal: Stream | None = None
        self._records: dict[int, TrialRecord] = {}
        with self._explain_open_errors(), _quiet_optuna() as optuna:
            self._store = open_store(place, optuna)
            try:
                with self._store.exclusive(study):
                    self._study = self._open_study(optuna, study, new)
                    self._read_records()
            except BaseException:
                self._store.close()
                raise

    def _open_study(self, optuna: Any, study: str, new: bool) -> Any:
        """Create or load the Optuna study."""
        storage, shared = self._store.storage, isinstance(self._place, Address)
        if new:
            try:
                return optuna.create_study(
                    storage=storage, study_name=study, direction="maximize",
                    load_if_exists=not shared,
                )  # fmt: skip
            except optuna.exceptions.DuplicatedStudyError:
                raise UsageError(f"{self._place} holds a study {study!r} already.") from None
        try:
            return optuna.load_study(storage=storage, study_name=study)
        except KeyError:
            raise MissingStudyError(
                f"{self._place} does not hold this run's trials ({study!r}). If they are "
                "elsewhere, name that store (`storage=`). If they are lost, name a new one: the "
                "trials are then repeated, at no further privacy cost."
            ) from None

    @contextmanager
    def _explain_open_errors(self) -> Iterator[None]:
        """Convert errors of the libraries to errors that tell the user what to do."""
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            own, then = None, "name another"
            if not isinstance(self._place, Address):
                own, then = Path(self._place), "start a new run"
            elif (own_error := storage_error(self._place, error)) is not None:
                raise own_error from None  # the cause may contain the password
            no_file = own is not None and (own.is_dir() or own.is_symlink())
            if describe_system_error(error) is not None and not no_file:  # for example a full disk
                raise
            raise UsageError(
                f"{self._place} is not a store of trials ({type(error).__name__}): {then}."
            ) from error

    def _read_records(self) -> None:
        """Read and check the records of the study, and their seals if there is a key."""
        found: dict[int, TrialRecord] = {}
        for trial in self._study.get_trials(deepcopy=False):
            record = TrialRecord(**trial.user_attrs["record"])
            tables = isinstance(record.parameters, dict) and isinstance(record.attributes, dict)
            counted = type(record.number) is int and record.number >= 0
            if not (tables and counted and type(record.value) in (int, float, type(None))):
                raise ValueError("a trial of another form")
            if found.setdefault(record.number, record) != record:
                raise ValueError("one trial, stored with two results")
            if self._seal is not None and not hmac.compare_digest(
                str(trial.user_attrs.get("seal")).encode(), self._seal_of(record).encode()
            ):
                raise UsageError(
                    f"{self._place} contains trials with keys of another run: it was altered, so "
                    "nothing more can be released from it. Start a new run."
                )
        self._records = found

    def sealed_by(self, seal: Stream) -> None:
        """Set the key of the seals, check the stored records with it, and seal new records.

        Args:
            seal: Random stream of the run's keys, used for nothing else.

        Raises:
            UsageError: The store was changed by somebody else, or belongs to another run.
        """
        self._seal = seal
        with self._explain_open_errors(), _quiet_optuna():
            self._read_records()

    def _seal_of(self, record: TrialRecord) -> str:
        assert self._seal is not None
        own = self._seal.child(json.dumps(asdict(record), sort_keys=True))
        return f"{own.child(0).seed64():016x}{own.child(1).seed64():016x}"

    def get(self, number: int) -> TrialRecord | None:
        """Get the record of a trial; None if the trial is not finished."""
        return self._records.get(number)

    def all(self) -> list[TrialRecord]:
        """List the records of all finished trials, by number."""
        return [self._records[number] for number in sorted(self._records)]

    def add(
        self,
        number: int,
        parameters: Mapping[str, Any],
        value: float | int | None,
        attributes: Mapping[str, Any],
    ) -> TrialRecord:
        """Store a finished trial; it is on disk when this returns.

        Raises:
            UsageError: The number is stored already, or JSON cannot represent a value (such as
                NaN).
            MachineError: The operating system refused, for example because the disk is full. The
                message does not contain the trial or its score.
        """
        content = {"number": number, "parameters": dict(parameters), "value": value,
                   "attributes": dict(attributes)}  # fmt: skip
        try:
            content = json.loads(json.dumps(content, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise UsageError(f"trial {number} cannot be stored as JSON ({error}).") from None
        record = TrialRecord(**content)
        try:
            with _quiet_optuna() as optuna, self._store.exclusive(self._study.study_name):
                if isinstance(self._place, Address):
                    self._read_records()
                if not (stored := number in self._records):
                    seal = None if self._seal is None else self._seal_of(record)
                    self._study.add_trial(_to_optuna_trial(optuna, record, seal))
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - its message could name the trial and its score
            refused = describe_system_error(error) or "A finished trial could not be stored."
            raise MachineError(
                f"{refused} No result that was paid for is lost: finish the run with `pasearch "
                "resume`."
            ) from None
        if stored:
            raise UsageError(
                "A finished trial is stored already, and is never replaced: another process runs "
                "this run, or a copy of it. Let one of them finish."
            )
        self._records[number] = record
        return record

    def forget_if_empty(self) -> bool:
        """Try to delete the study from a shared store if it has no trials; return if it succeeded.

        This is called after a run was refused. Errors are suppressed, because they would hide the
        reason of the refusal.
        """
        if isinstance(self._place, Address) and not self._records:
            with suppress(Exception), _quiet_optuna() as optuna:
                optuna.delete_study(study_name=self._study.study_name, storage=self._store.storage)
                return True
        return False

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _to_optuna_trial(optuna: Any, record: TrialRecord, seal: str | None) -> Any:
    """Convert a record to an Optuna trial.

    All numbers become float parameters, because a parameter of Optuna has the same type in all
    trials. Strings and Boolean values become attributes, because Optuna needs all choices of a
    categorical parameter in advance.
    """
    numbers, others = {}, {}
    for name, value in _flatten_values(record.parameters, ""):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        (numbers if number and abs(value) < 2**53 else others)[name] = value
    return optuna.trial.create_trial(
        state=getattr(optuna.trial.TrialState, "FAIL" if record.value is None else "COMPLETE"),
        value=record.value,
        params={name: float(value) for name, value in numbers.items()},
        distributions={
            name: optuna.distributions.FloatDistribution(float(value), float(value))
            for name, value in numbers.items()
        },
        user_attrs={**others, "seal": seal, "record": asdict(record)},
    )


def _flatten_values(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every value in nested dictionaries and lists."""
    match value:
        case dict():
            for key, each in value.items():
                yield from _flatten_values(each, f"{path}.{key}" if path else key)
        case list():
            for index, each in enumerate(value):
                yield from _flatten_values(each, f"{path}.{index}")
        case _:
            yield path, value


@contextmanager
def _quiet_optuna() -> Iterator[Any]:
    """Import Optuna, and suppress its messages and warnings within the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import optuna

        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            yield optuna
        finally:
            optuna.logging.set_verbosity(verbosity)


# --- stores ---

POSTGRES = "PostgreSQL database"
JOURNAL = "journal file"
STORES = (POSTGRES, JOURNAL)
"""Names of the kinds of shared stores, also on the privacy card."""

STORAGE_EXPECTATION = "expected postgresql://user@host/database, or a file whose name ends in .log"
"""Part of error messages: the expected values of the option `storage`."""
POSTGRES_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
"""Schemes of URLs of PostgreSQL databases."""
HOST_PATTERN = re.compile(r"[^@:\[\]\s]*(:\d+)?|\[[0-9a-fA-F:.]+\](:\d+)?")
"""Host and port in a URL of a database."""
JOURNAL_HEADER = b'{"op_code":'
"""First bytes of every journal file."""
CONNECT_TIMEOUT_SECONDS = 10
"""Seconds after which a database counts as unreachable."""
STORE_LOCK_SECONDS = 30
"""Maximum time to wait for a lock, and age at which a killed process's lock is removed, seconds."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a shared store; `parse_address` creates it.

    Args:
        text: URL without a password, or an absolute path.
        password: Password from the URL, in its encoded form.
    """

    text: str
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def kind(self) -> str:
        """Kind of the store: `POSTGRES` or `JOURNAL`."""
        return POSTGRES if "://" in self.text else JOURNAL

    def connect(self) -> Any:
        """Connect to the database. Without a password, libpq looks for PGPASSWORD or ~/.pgpass."""
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        given = {"connect_timeout": CONNECT_TIMEOUT_SECONDS, "application_name": "pasearch"}
        given |= conninfo_to_dict(self.text)
        if self.password is not None:
            given["password"] = unquote(self.password)
        return psycopg.connect(**given)


def parse_address(given: str | os.PathLike[str] | Address | None) -> Address | None:
    """Parse the option `storage`, the address of a shared store. None: the run's own file.

    Raises:
        UsageError: The address is neither a database nor a .log file. The message does not repeat
            it, because it may contain a password.
    """
    if given is None or isinstance(given, Address):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise UsageError(f"storage is of type {type(given).__name__}: {STORAGE_EXPECTATION}.")
    text = os.fspath(given)
    if "://" in text:
        return _parse_database_url(text)
    if Path(text).suffix != ".log" or "\0" in text or "password=" in text.casefold():
        raise UsageError(
            f"storage is not a shared store of trials: {STORAGE_EXPECTATION}. By default trials "
            "are stored in the folder of the run."
        )
    return Address(str(Path(text).absolute()))


def _parse_database_url(text: str) -> Address:
    """Parse the URL of a PostgreSQL database, and take the password out of it."""
    try:
        parts = urlsplit(text)
    except ValueError:
        raise UsageError(f"storage is a malformed URL: {STORAGE_EXPECTATION}.") from None
    if parts.scheme not in POSTGRES_SCHEMES:
        known = "expected postgresql://user@host/database"
        raise UsageError(f"storage is a URL of an unsupported store: {known}, or a .log file.")
    who, at, hosts = parts.netloc.rpartition("@")
    user, colon, password = who.partition(":")
    fits = all(HOST_PATTERN.fullmatch(host) for host in hosts.split(","))
    if not fits or parts.fragment or "@" in parts.path + parts.query:
        raise UsageError(
            "storage is a URL that can be read in two ways: write the special characters of its "
            "user and password as %40 for @, %3A for :, %2F for /, %3F for ?, %23 for #."
        )
    names = {name.casefold() for name, _ in parse_qsl(parts.query.replace(";", "&"))}
    if any("pass" in name and name != "passfile" for name in names) or "%3a" in user.casefold():
        raise UsageError(
            "storage has a password after its question mark: write it before the @, or better in "
            "the environment variable PGPASSWORD or the file ~/.pgpass."
        )
    if not parts.path.strip("/"):
        raise UsageError("storage names no database: expected postgresql://user@host/database.")
    query = f"?{parts.query}" if parts.query else ""
    return Address(
        f"postgresql://{user}{at}{hosts}{parts.path}{query}", password if colon else None
    )


class Store(NamedTuple):
    """Open store: the storage object of Optuna, and a function that locks a study exclusively."""

    storage: Any
    exclusive: Callable[[str], AbstractContextManager[None]]

    def close(self) -> None:
        """Close all connections to a database."""
        if hasattr(self.storage, "engine"):
            self.storage.remove_session()
            self.storage.engine.dispose()


def open_store(place: str | os.PathLike[str] | Address, optuna: Any) -> Store:
    """Open or create a store; errors of Optuna and the database driver are not converted."""
    if isinstance(place, Address):
        return (_open_postgres if place.kind == POSTGRES else _open_journal_file)(place, optuna)
    path = Path(place).absolute()
    _create_private_file(path)
    # The connection is made here, because a "?" in a path would end the path in a URL.
    storage = optuna.storages.RDBStorage(
        "sqlite:///trials",
        engine_kwargs={
            "hide_parameters": True,
            "creator": lambda: sqlite3.connect(path, check_same_thread=False),
        },
    )
    return Store(storage, lambda _: nullcontext())  # the lock of the ledger ensures one writer


def _create_private_file(path: Path) -> None:
    """Create a file with mode 0600 if it is missing."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))


def _open_postgres(address: Address, optuna: Any) -> Store:
    """Open a PostgreSQL database as a store."""

    @contextmanager
    def exclusive(name: str) -> Iterator[None]:
        """Hold an advisory lock, which the database releases if the process ends."""
        digest = hashlib.sha256(f"pasearch {name}".encode()).digest()
        with address.connect() as link:
            link.execute(f"SET LOCAL lock_timeout = '{STORE_LOCK_SECONDS}s'")
            number = int.from_bytes(digest[:8], "big", signed=True)
            link.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
            yield

    first: list[Any] = []

    def connected() -> Any:
        link = address.connect()
        first[:] = first or [link]
        return link

    with exclusive(""):  # so that two processes do not create the tables at once
        try:
            storage = optuna.storages.RDBStorage(
                "postgresql+psycopg://",
                engine_kwargs={
                    "hide_parameters": True, "pool_pre_ping": True, "creator": connected,
                },
            )  # fmt: skip
        except BaseException:
            for link in first:  # Optuna does not close it
                link.close()
            raise
    return Store(storage, exclusive)


class _ReentrantLock:
    """Lock of a journal file that one process may acquire several times.

    The lock of the study is held while Optuna itself locks the file.
    """

    def __init__(self, path: str, optuna: Any):
        self._lock = optuna.storages.journal.JournalFileSymlinkLock(path, STORE_LOCK_SECONDS)
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


def _open_journal_file(address: Address, optuna: Any) -> Store:
    """Open an Optuna journal file as a store."""
    path, journal = address.text, optuna.storages.journal
    _create_private_file(Path(path))
    lock = _ReentrantLock(path, optuna)

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
    return Store(storage, exclusive)


def _cut_torn_line(path: str) -> None:
    """Remove an incomplete last line, left by a crash or a full disk; its trial was not stored."""
    with open(path, "r+b") as file:
        if not JOURNAL_HEADER.startswith(file.read(len(JOURNAL_HEADER))):
            raise ValueError("not a journal of Optuna's")
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read() not in (b"", b"\n"):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            os.fsync(file.fileno())


def storage_error(address: Address, error: BaseException) -> UsageError | None:
    """Create the error for a shared store that cannot be used; None if the cause is another one."""
    if isinstance(error, ImportError):
        return UsageError(
            "A PostgreSQL database of trials needs psycopg: `pip install 'pasearch[postgres]'`."
        )
    if isinstance(error, OSError):
        if error.errno in DISK_FULL_ERRNOS:
            return None
        why = f"{error.strerror}: name a file in an existing writable folder"
        return UsageError(f"{address} cannot be a store of trials ({why}).")
    cause: BaseException | None = error  # the driver's error is a cause of SQLAlchemy's or Optuna's
    while cause is not None and not type(cause).__module__.startswith("psycopg"):
        cause = getattr(cause, "orig", None) or cause.__cause__
    if cause is None:
        return None
    lines = str(cause).splitlines() or [type(cause).__name__]
    words = lines[0] if address.password is None else lines[0].replace(address.password, "***")
    where = "The database of trials cannot be used"
    match getattr(cause, "sqlstate", None):
        case "42501" | "25006":
            todo = "its user needs the rights to create, read and write tables there"
        case "55P03":
            todo = "other processes have used it for too long: try again"
        case _:
            todo = (
                "check host, port, database and user; the password is taken from the URL, from "
                "PGPASSWORD or from ~/.pgpass, and is not kept for a resume"
            )
    return UsageError(f"{where}: {address} ({words.strip()}): {todo}.")
