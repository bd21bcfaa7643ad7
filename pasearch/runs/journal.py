"""The store of finished trials: an Optuna study, which Optuna's dashboard and plots can read.

    private/trials.sqlite               SQLite, only for this run: the default
    postgresql://user@host/database     PostgreSQL, through psycopg
    /shared/trials.log                  an Optuna journal file, on a disk that machines share

Each finished trial is added once, in one transaction; a killed run finds all of them on resume. The
exact record (any JSON parameters, an integer score) is one attribute of the Optuna trial. Its
numbers are also Optuna parameters, named by their path ("layers.0.width"), and its strings and
Boolean values are attributes.

Under repeat-and-select no trial may be shown. The last two stores hold many runs, each as one
study: anybody who can read them sees every trial's score (the exact one for disjoint subsets) and
the number of trials, as in `private/`. A password is used, but never stored, shown or passed to
Optuna.

    seal  =  HMAC(the run's key for it, the exact record)      128 bits

Anybody who can write to a shared store could alter scores, and thereby the release. So a run
accepts a record only with the seal that its own keys give it; a record that was deleted is computed
again with the same keys, with an equal result.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """A finished trial.

    Args:
        number: Index of the trial in the run, from 0.
        parameters: Parameters of the trial, JSON values.
        value: Noisy score, higher is better; None if the trial failed.
        attributes: Further JSON values.
    """

    number: int
    parameters: dict[str, Any]
    value: float | int | None
    attributes: dict[str, Any]


class MissingStudyError(UsageError):
    """A store that does not contain a run's trials."""


class Journal:
    """The stored finished trials of a run.

    Guarantee: a trial is stored entirely or not at all, and never replaced. A shared store contains
        it once, however many processes add to the study. The lock of the ledger ensures that the
        file of a run has one writer.

    Args:
        place: Path of the run's SQLite file, created with mode 0600 if missing; or a shared store.
        study: Name of the run in the store.
        new: Whether to create the study; a shared store must not contain it then.

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
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            own, then = None, "name another"
            if not isinstance(self._place, Address):
                own, then = Path(self._place), "start a new run"
            elif (own_error := storage_error(self._place, error)) is not None:
                raise own_error from None  # what caused it may hold the password
            no_file = own is not None and (own.is_dir() or own.is_symlink())
            if describe_system_error(error) is not None and not no_file:  # a full disk, say
                raise
            raise UsageError(
                f"{self._place} is not a store of trials ({type(error).__name__}): {then}."
            ) from error

    def _read_records(self) -> None:
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
        """Read the records again, refuse those of other keys, and seal new ones.

        Args:
            seal: Stream of the run's keys, used for nothing else.

        Raises:
            UsageError: The store was altered, or belongs to another run.
        """
        self._seal = seal
        with self._explain_open_errors(), _quiet_optuna():
            self._read_records()

    def _seal_of(self, record: TrialRecord) -> str:
        assert self._seal is not None
        own = self._seal.child(json.dumps(asdict(record), sort_keys=True))
        return f"{own.child(0).seed64():016x}{own.child(1).seed64():016x}"

    def get(self, number: int) -> TrialRecord | None:
        """Return a trial; None if it is not finished."""
        return self._records.get(number)

    def all(self) -> list[TrialRecord]:
        """Return all finished trials, by number."""
        return [self._records[number] for number in sorted(self._records)]

    def add(
        self,
        number: int,
        parameters: Mapping[str, Any],
        value: float | int | None,
        attributes: Mapping[str, Any],
    ) -> TrialRecord:
        """Store a finished trial; it is on disk at return.

        Raises:
            UsageError: The number is stored already, or JSON cannot represent a value (such as
                NaN).
            MachineError: The system refused, such as for a full disk; trial and score are not
                named.
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
        except Exception as error:  # noqa: BLE001 - whatever it is names the trial and its score
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
        """Try to delete a study without trials from a shared store; return whether it was deleted.

        It is called after a refused run. Errors are suppressed, because they would hide the
        refusal.
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

    A number becomes a float parameter, because Optuna refuses a study in which one name has values
    of two types. A string or a Boolean value becomes an attribute, because a categorical parameter
    needs all its choices in advance.
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
    """Import Optuna (it takes a second) and silence it, without changing the user's settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import optuna

        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            yield optuna
        finally:
            optuna.logging.set_verbosity(verbosity)


# --- places ---

POSTGRES, JOURNAL = STORES = ("PostgreSQL database", "journal file")
"""Names of the stores outside the run's folder, also on the privacy card."""

STORAGE_EXPECTATION = "expected postgresql://user@host/database, or a file whose name ends in .log"
POSTGRES_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
HOST_PATTERN = re.compile(r"[^@:\[\]\s]*(:\d+)?|\[[0-9a-fA-F:.]+\](:\d+)?")
JOURNAL_HEADER = b'{"op_code":'
"""First bytes of every journal file."""
CONNECT_TIMEOUT_SECONDS = 10
"""Seconds after which a database counts as unreachable."""
STORE_LOCK_SECONDS = 30
"""Seconds after which the lock of a killed process is broken, or waiting for a lock ends."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a store that several machines reach; `parse_address` creates it.

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
        """Kind of the store, one of `STORES`."""
        return POSTGRES if "://" in self.text else JOURNAL

    def connect(self) -> Any:
        """Connect to the database; without a password libpq looks for one itself."""
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        given = {"connect_timeout": CONNECT_TIMEOUT_SECONDS, "application_name": "pasearch"}
        given |= conninfo_to_dict(self.text)
        if self.password is not None:
            given["password"] = unquote(self.password)
        return psycopg.connect(**given)


def parse_address(given: str | os.PathLike[str] | Address | None) -> Address | None:
    """Parse the address of a store; None is the run's own store.

    Raises:
        UsageError: The address is neither a database nor a file. It is not repeated in the message,
            because it may contain a password.
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
    """An open store: Optuna's storage, and an exclusive lock per study."""

    storage: Any
    exclusive: Callable[[str], AbstractContextManager[None]]

    def close(self) -> None:
        """End all connections to a database."""
        if hasattr(self.storage, "engine"):
            self.storage.remove_session()
            self.storage.engine.dispose()


def open_store(place: str | os.PathLike[str] | Address, optuna: Any) -> Store:
    """Open a store, or create it; errors are those of the library."""
    if isinstance(place, Address):
        return (_open_postgres if place.kind == POSTGRES else _open_journal_file)(place, optuna)
    path = Path(place).absolute()
    _create_private_file(path)
    # A connection of our own: in a URL, a "?" in the path would end it.
    storage = optuna.storages.RDBStorage(
        "sqlite:///trials",
        engine_kwargs={
            "hide_parameters": True,
            "creator": lambda: sqlite3.connect(path, check_same_thread=False),
        },
    )
    return Store(storage, lambda _: nullcontext())  # one writer, by the ledger's lock


def _create_private_file(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))


def _open_postgres(address: Address, optuna: Any) -> Store:
    @contextmanager
    def exclusive(name: str) -> Iterator[None]:
        """Hold a lock that ends with its transaction, and so with the process."""
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
    return Store(storage, exclusive)


class _ReentrantLock:
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
    """Remove a last line that a crash or a full disk truncated: its trial was not yet stored."""
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
    """Create the user's error for a store that cannot be opened; None for an internal error."""
    if isinstance(error, ImportError):
        return UsageError(
            "A PostgreSQL database of trials needs psycopg: `pip install 'pasearch[postgres]'`."
        )
    if isinstance(error, OSError):
        if error.errno in DISK_FULL_ERRNOS:
            return None
        why = f"{error.strerror}: name a file in an existing writable folder"
        return UsageError(f"{address} cannot be a store of trials ({why}).")
    cause: BaseException | None = error  # the driver's error is below SQLAlchemy's and Optuna's
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
