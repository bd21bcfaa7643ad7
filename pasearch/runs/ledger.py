"""Write-ahead ledger of a run: each charge is durably on disk *before* a private record is read.

    with ledger.charged("score", dataset["validation"], key="trial 3") as records: ...

A line is an item of the plan: a kind of release, the partition that it reads, its privacy event,
and the maximum number of releases. Lines are fixed when the ledger is created. A charge is checked
and written in one exclusive transaction and synced to disk. Only then are the partitions opened. So
after a crash at any time the ledger contains at least everything that was released. Triggers of the
database enforce the maximum numbers, and that rows are only appended, whatever the code does.

Source: docs/rules.md, rule 12. Proof: docs/guarantees/ledger.md.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

from pasearch.accounting.checks import check_positive_integer
from pasearch.accounting.events import Event, event_from_json, event_to_json
from pasearch.errors import BudgetError, PasearchError, UsageError
from pasearch.files import MAX_JSON_BYTES, parse_json
from pasearch.runs.folder import linked_draft, sync_folder


def make_append_only_triggers(*tables: str) -> list[str]:
    """Make the SQL statements of triggers that refuse to change or delete rows of the tables."""
    return [
        f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'append only'); END"
        for table in tables
        for verb in ("UPDATE", "DELETE")
    ]


@dataclass(frozen=True, slots=True)
class LedgerFormat:
    """File format of a ledger: an SQLite database with triggers.

    Args:
        application: Four letters in the header of the file.
        tables: SQL statements that create the tables.
        seal: SQL statements that create triggers after the first rows were inserted.
    """

    application: str
    tables: tuple[str, ...]
    seal: tuple[str, ...]

    def create(self, path: Path, rows: Mapping[str, Sequence[tuple[object, ...]]]) -> None:
        """Create a file with its first rows.

        Guarantee: the file is created with its whole content or not at all, even if the process is
            killed.

        Args:
            path: Path of the file, in an existing folder.
            rows: First rows of each table, by its name.

        Raises:
            FileExistsError: The path exists.
        """
        number = int.from_bytes(self.application.encode(), "big")
        with linked_draft(path) as draft, closing(connect(draft)) as connection:
            with transaction(connection):
                connection.execute(f"PRAGMA application_id = {number}")
                connection.execute("PRAGMA user_version = 1")
                for statement in self.tables:
                    connection.execute(statement)
                for table, each in rows.items():
                    for row in each:
                        values = ", ".join("?" * len(row))
                        connection.execute(f"INSERT INTO {table} VALUES ({values})", row)
                for statement in self.seal:
                    connection.execute(statement)

    def matches(self, connection: sqlite3.Connection) -> bool:
        """Check whether the header of a database contains this application and version 1."""
        (number,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        return (number, version) == (int.from_bytes(self.application.encode(), "big"), 1)

    def check(self, connection: sqlite3.Connection) -> None:
        """Check that a file is not damaged, and that its tables and triggers are unchanged.

        Without its triggers, a ledger would not limit the number of releases.

        Raises:
            UsageError: A table or a trigger is missing, changed or added.
            sqlite3.Error: The file is damaged.
        """
        found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        if sorted(str(row[0]) for row in found) != sorted((*self.tables, *self.seal)):
            raise UsageError("its tables or triggers are not those that were made")
        if connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
            raise UsageError("it is damaged")


def connect(path: Path, *, timeout: float = 0.0, lock: bool = False) -> sqlite3.Connection:
    """Open an existing database such that every commit is synced to disk.

    Args:
        path: Path of the file. No other code of the process may open and close the file in the
            meantime, because on POSIX systems this would release the lock of SQLite.
        timeout: Maximum time to wait for the lock of another process, seconds.
        lock: Whether to hold an exclusive lock until the connection is closed or the process ends.
    """
    uri = f"{path.as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=timeout)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_JSON_BYTES)
        for pragma in ("synchronous = FULL", "fullfsync = ON", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")
        if lock:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            with transaction(connection):
                pass  # acquires the lock
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run a block as one exclusive transaction: all of its changes are committed, or none."""
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


# --- the ledger of a run ---

_FORMAT = LedgerFormat(
    application="PASL",
    tables=(
        """CREATE TABLE lines (
        name TEXT NOT NULL, partition TEXT NOT NULL, event TEXT NOT NULL,
        count INTEGER NOT NULL CHECK (count >= 1), UNIQUE (name, partition))""",
        """CREATE TABLE charges (
        line TEXT NOT NULL, partition TEXT NOT NULL, key TEXT NOT NULL,
        UNIQUE (line, partition, key),
        FOREIGN KEY (line, partition) REFERENCES lines (name, partition))""",
        """CREATE TRIGGER ceiling BEFORE INSERT ON charges WHEN NOT
        (SELECT count(*) FROM charges WHERE line = NEW.line AND partition = NEW.partition)
        < (SELECT count FROM lines WHERE name = NEW.line AND partition = NEW.partition)
        BEGIN SELECT RAISE(ABORT, 'over the plan'); END""",
    ),
    seal=(
        "CREATE TRIGGER fixed_plan BEFORE INSERT ON lines "
        "BEGIN SELECT RAISE(ABORT, 'the plan is fixed'); END",
        *make_append_only_triggers("lines", "charges"),
    ),
)


@dataclass(slots=True, eq=False)
class Receipt:
    """Evidence that a partition was charged; the partition can be opened while it is active."""

    partition: str
    active: bool = True


class Partition(Protocol):
    """Partition of the records, which can be opened only with a receipt of its charge."""

    @property
    def name(self) -> str:
        """Name of the partition, such as "train"."""
        ...

    def open(self, receipt: Receipt) -> Any:
        """Get the records of the partition."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRelease:
    """Line of a plan: a kind of release, the partition that it reads, and its maximum number.

    Args:
        name: Name of the release. Lines with equal names, on several partitions, are charged
            together.
        partition: Name of the partition that the release reads.
        event: Privacy event of one release.
        count: Maximum number of releases, 1 or more.
    """

    name: str
    partition: str
    event: Event
    count: int

    def __post_init__(self) -> None:
        for field in ("name", "partition"):
            if not isinstance(value := getattr(self, field), str) or not value:
                raise UsageError(f"a line's {field} is {value!r}: expected a name.")
        if not isinstance(self.event, Event):
            raise UsageError(f"line {self.name!r}: {self.event!r} is not an event.")
        object.__setattr__(self, "count", check_positive_integer("count", self.count))


class Ledger:
    """Ledger of a run: a file with the lines of the plan and the charges so far, append only.

    Guarantee: a partition is opened only after its charge is on disk, and no line is charged more
    often than planned. Only one process at a time can open the file. The object cannot be copied or
    pickled, and a forked worker process cannot charge.
    """

    __slots__ = ("_connection", "_lines", "_owner", "_path")

    def __init__(self, path: Path, connection: sqlite3.Connection):
        self._path = path
        self._connection = connection
        self._owner = os.getpid()
        rows = connection.execute("SELECT name, partition, event, count FROM lines ORDER BY rowid")
        self._lines = tuple(
            PlannedRelease(
                name=name,
                partition=partition,
                event=event_from_json(parse_json(event, str(path))),
                count=count,
            )
            for name, partition, event, count in rows
        )

    @classmethod
    def create(cls, path: str | os.PathLike[str], lines: Iterable[PlannedRelease]) -> Ledger:
        """Create a new file with the lines of a plan, completely or not at all, and open it.

        Raises:
            UsageError: The file exists, there is no line, or two lines have the same name and
                partition.
        """
        rows = [(x.name, x.partition, json.dumps(event_to_json(x.event)), x.count) for x in lines]
        if not rows or len({row[:2] for row in rows}) < len(rows):
            raise UsageError("a ledger needs items, each with its own name and partition.")
        path = Path(path).absolute()
        try:
            _FORMAT.create(path, {"lines": rows})
        except FileExistsError:
            raise UsageError(
                f"{path} exists: a ledger is never replaced. Open it instead."
            ) from None
        return cls(path, _connect_exclusively(path))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Ledger:
        """Open the ledger of an existing run.

        Raises:
            UsageError: The file is missing, damaged, or in use by another process.
        """
        path = Path(path).absolute()
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            raise UsageError(
                f"{path} is missing, empty or not a regular file: give the folder of a started run."
            )
        connection = _connect_exclusively(path)
        try:
            if not _FORMAT.matches(connection):
                raise UsageError("it is not a ledger of this version")
            _FORMAT.check(connection)
            return cls(path, connection)
        except (sqlite3.Error, UsageError, TypeError, ValueError) as error:
            connection.close()
            reason = str(error) if isinstance(error, UsageError) else f"it is damaged ({error})"
            raise UsageError(
                f"{path} cannot be read as a ledger: {reason}. Start a new run; the budget spent "
                "by this run is not refunded."
            ) from None

    @property
    def lines(self) -> tuple[PlannedRelease, ...]:
        """Lines of the plan, fixed when the ledger was created."""
        return self._lines

    @contextmanager
    def charged(
        self, line: str, *partitions: Partition, key: str | list[str] | tuple[str, ...]
    ) -> Iterator[Any]:
        """Charge a release durably, then open the partitions that it reads, for a `with` block.

        Args:
            line: Name of the line.
            partitions: Partitions that the release reads; each is charged.
            key: Name of this release, unique within the line, such as "trial 3". A repeated key
                costs nothing (in a resumed run, or for further reads of one release); the caller
                must then use the same inputs and random streams. Several keys are several releases,
                charged together or not at all.

        Yields:
            Result of the partition's `open`; a tuple for several partitions.

        Raises:
            BudgetError: The plan has no such line for a partition, all releases of the line are
                charged, or the key was charged for other partitions. Nothing was opened.
            PasearchError: The charge could not be written, for example because the disk is full.
                Nothing was opened.

        Cost: the event of the line, once per key, charged to each partition before it is opened. An
            error in the block refunds nothing.
        """
        keys = list(key) if isinstance(key, (list, tuple)) else [key]
        self._charge(line, [partition.name for partition in partitions], keys)
        receipts = [Receipt(partition.name) for partition in partitions]
        try:
            opened = [p.open(receipt) for p, receipt in zip(partitions, receipts, strict=True)]
            yield opened[0] if len(opened) == 1 else tuple(opened)
        finally:
            for receipt in receipts:
                receipt.active = False

    def _charge(self, line: str, names: list[str], keys: list[Any]) -> None:
        """Check and write the charges of releases in one transaction, and sync them to disk."""
        if os.getpid() != self._owner:
            raise RuntimeError(
                "A worker process tried to charge: only the main process may do that."
            )
        known = keys and all(isinstance(key, str) and key for key in keys)
        if not known or not names or any(len(set(x)) < len(x) for x in (names, keys)):
            raise UsageError(f"charge to {line!r}: expected distinct keys and partitions.")
        limits = {each.partition: each.count for each in self._lines if each.name == line}
        for name in names:
            if name not in limits:
                planned = ", ".join(f"{each.name} ({each.partition})" for each in self._lines)
                raise BudgetError(
                    f"The plan has no line {line!r} for partition {name!r}, so nothing pays for "
                    f"this read. It has: {planned}."
                )
        try:
            with transaction(self._connection):
                for key in keys:
                    self._charge_one(line, names, key, limits)
        except sqlite3.Error as error:
            raise PasearchError(
                f"{self._path} cannot be written ({error}), so nothing was read. Earlier releases "
                "are safe: free some space, and finish the run with `pasearch resume`."
            ) from None
        sync_folder(self._path.parent)

    def _charge_one(self, line: str, names: list[str], key: str, limits: dict[str, int]) -> None:
        """Check and write the charge of one release, within a transaction."""
        rows = self._connection.execute(
            "SELECT partition FROM charges WHERE line = ? AND key = ?", (line, key)
        )
        before = {partition for (partition,) in rows}
        if before and before != set(names):
            raise BudgetError(
                f"Release {key!r} of line {line!r} was charged for {sorted(before)}, and now "
                f"asks for {sorted(names)}: a release with another input needs its own key."
            )
        for partition in () if before else names:
            try:
                row = (line, partition, key)
                self._connection.execute("INSERT INTO charges VALUES (?, ?, ?)", row)
            except sqlite3.IntegrityError:
                raise BudgetError(
                    f"Line {line!r} pays for {limits[partition]} releases on {partition!r} and all "
                    f"are charged; release {key!r} would exceed the budget. Nothing was read for "
                    "it."
                ) from None

    def is_charged(self, line: str, key: str) -> bool:
        """Check whether a release is charged already."""
        rows = self._connection.execute(
            "SELECT 1 FROM charges WHERE line = ? AND key = ?", (line, key)
        )
        return rows.fetchone() is not None

    def spent(self) -> list[tuple[str, str, Event, int]]:
        """List (line, partition, event, number of charged releases), in the order of the plan."""
        rows = self._connection.execute(
            "SELECT line, partition, count(*) FROM charges GROUP BY line, partition"
        )
        counts = {(line, partition): count for line, partition, count in rows}
        return [
            (line.name, line.partition, line.event, counts[line.name, line.partition])
            for line in self._lines
            if (line.name, line.partition) in counts
        ]

    def close(self) -> None:
        """Close the file, so that another process can open it."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "A ledger cannot be copied or pickled: a copy would spend the budget twice."
        )


def _connect_exclusively(path: Path) -> sqlite3.Connection:
    """Open a ledger with an exclusive lock, with errors that tell the user what to do."""
    try:
        return connect(path, lock=True)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:  # with free space the run can continue
            raise
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise UsageError(
                f"{path} is in use by another process: a run has one writer. Wait until it ends."
            ) from None
        raise UsageError(f"{path} cannot be opened as a ledger ({error}).") from None
