"""The write-ahead ledger: what was charged, durably on disk *before* a private record is read.

    with ledger.charged("score", dataset["validation"], key="trial 3") as records: ...

The plan's lines are fixed when the ledger is made. A charge is checked and written in one
exclusive transaction, synced to disk, and only then are the partitions opened; so after a crash at
any instant the ledger shows at least what was released. Ceilings and "append only" are triggers of
the database: no code path gets around them.

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


def append_only_triggers(*tables: str) -> list[str]:
    """Return the triggers that let nobody change or delete a row of these tables."""
    return [
        f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'append only'); END"
        for table in tables
        for verb in ("UPDATE", "DELETE")
    ]


@dataclass(frozen=True, slots=True)
class LedgerFormat:
    """The SQLite file of a ledger.

    Args:
        application: Four letters in the file's header.
        tables: Statements that make the tables.
        seal: Statements that make triggers when the first rows are in.
    """

    application: str
    tables: tuple[str, ...]
    seal: tuple[str, ...]

    def create(self, path: Path, rows: Mapping[str, Sequence[tuple[object, ...]]]) -> None:
        """Make a file with its first rows, by table.

        Guarantee: the file appears with its whole content, or not at all, so a process that is
        killed here leaves none.

        Raises:
            FileExistsError: A file is there.
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
        """Check whether a database's header has this application and version 1."""
        (number,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        return (number, version) == (int.from_bytes(self.application.encode(), "big"), 1)

    def check(self, connection: sqlite3.Connection) -> None:
        """Refuse a file that is damaged, or has other tables and triggers than were made.

        Without its triggers a ledger would keep no ceiling.

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
    """Open an existing database whose commits are synced in full.

    Args:
        path: The file. It must not be opened and closed by hand in the same process meanwhile: on
            POSIX that would drop SQLite's lock.
        timeout: Seconds to wait for another process.
        lock: Keep the lock until the connection ends, however it ends.
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
                pass  # takes the lock
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Commit all of a block, or nothing of it."""
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
        *append_only_triggers("lines", "charges"),
    ),
)


@dataclass(slots=True, eq=False)
class Receipt:
    """Proof that a partition was charged; a partition opens only while it is active."""

    partition: str
    active: bool = True


class Partition(Protocol):
    """Named records that can be charged, and that open under a receipt."""

    @property
    def name(self) -> str:
        """The partition's name."""
        ...

    def open(self, receipt: Receipt) -> Any:
        """Return the records."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a plan: what may be charged to a partition, and how often.

    Args:
        name: What the release is; lines of one name on several partitions are charged together.
        partition: The partition it reads.
        event: What one release costs.
        count: How many releases the plan pays for, 1 or more.
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
            raise UsageError(f"line {self.name!r}: {self.event!r} is no event.")
        object.__setattr__(self, "count", check_positive_integer("count", self.count))


class Ledger:
    """The run's charges: one file, one writer, append only.

    Guarantee: a partition opens only after its charge is on disk; no line is charged more often
    than the plan says. One process at a time has the file; it refuses to be copied or pickled, and
    to spend in a forked worker.
    """

    __slots__ = ("_connection", "_lines", "_owner", "_path")

    def __init__(self, path: Path, connection: sqlite3.Connection):
        self._path = path
        self._connection = connection
        self._owner = os.getpid()
        rows = connection.execute("SELECT name, partition, event, count FROM lines ORDER BY rowid")
        self._lines = tuple(
            Line(
                name=name,
                partition=partition,
                event=event_from_json(parse_json(event, str(path))),
                count=count,
            )
            for name, partition, event, count in rows
        )

    @classmethod
    def create(cls, path: str | os.PathLike[str], lines: Iterable[Line]) -> Ledger:
        """Make a ledger of a plan's lines, in a new file, whole or not at all.

        Raises:
            UsageError: The file exists, there is no line, or two have one name and partition.
        """
        rows = [(x.name, x.partition, json.dumps(event_to_json(x.event)), x.count) for x in lines]
        if not rows or len({row[:2] for row in rows}) < len(rows):
            raise UsageError("a ledger needs lines, each with a name and partition of its own.")
        path = Path(path).absolute()
        try:
            _FORMAT.create(path, {"lines": rows})
        except FileExistsError:
            raise UsageError(f"{path} exists: a ledger is never replaced. Open it.") from None
        return cls(path, _connect_exclusively(path))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Ledger:
        """Open a run's ledger again.

        Raises:
            UsageError: No ledger there, a damaged one, or another process has it.
        """
        path = Path(path).absolute()
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            raise UsageError(
                f"{path} is missing, empty or no plain file: give the folder of a run that began."
            )
        connection = _connect_exclusively(path)
        try:
            if not _FORMAT.matches(connection):
                raise UsageError("it is no ledger of this version")
            _FORMAT.check(connection)
            return cls(path, connection)
        except (sqlite3.Error, UsageError, TypeError, ValueError) as error:
            connection.close()
            reason = str(error) if isinstance(error, UsageError) else f"it is damaged ({error})"
            raise UsageError(
                f"{path} cannot be read as a ledger: {reason}. Start a new run; what this one has "
                "spent stays spent."
            ) from None

    @property
    def lines(self) -> tuple[Line, ...]:
        """The plan's lines, as fixed when the ledger was made."""
        return self._lines

    @contextmanager
    def charged(
        self, line: str, *partitions: Partition, key: str | list[str] | tuple[str, ...]
    ) -> Iterator[Any]:
        """Charge a release, durably, then open what it reads, for the length of a `with` block.

        Args:
            line: The line's name.
            partitions: What the release reads; each is charged.
            key: Name of this release among those of the line, such as "trial 3". The same key again
                (a resumed run, or further reads of one release) costs nothing more: the caller must
                then compute from the same inputs and streams. Several keys are that many releases,
                charged together: all of them, or none.

        Yields:
            What the partition's `open` returned; for several partitions a tuple.

        Raises:
            BudgetError: The plan has no such line for a partition, all its releases are charged, or
                the key was charged for other partitions. Nothing was opened.
            PasearchError: The charge was not written (a full disk, say). Nothing was opened.

        Cost: the line's event, once per key, to each partition, before anything is opened. An error
            inside the block takes nothing back.
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
        """Check and write releases, in one transaction; return when they are on disk."""
        if os.getpid() != self._owner:
            raise RuntimeError("A worker process tried to spend: charge in the process that began.")
        known = keys and all(isinstance(key, str) and key for key in keys)
        if not known or not names or any(len(set(x)) < len(x) for x in (names, keys)):
            raise UsageError(f"charge to {line!r}: expected distinct keys and distinct partitions.")
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
                f"{self._path} cannot be written ({error}), so nothing was read. What was released "
                "before is safe: make room, and finish the run with `pasearch resume`."
            ) from None
        sync_folder(self._path.parent)

    def _charge_one(self, line: str, names: list[str], key: str, limits: dict[str, int]) -> None:
        rows = self._connection.execute(
            "SELECT partition FROM charges WHERE line = ? AND key = ?", (line, key)
        )
        before = {partition for (partition,) in rows}
        if before and before != set(names):
            raise BudgetError(
                f"Release {key!r} of line {line!r} was charged for {sorted(before)}, and now "
                f"asks for {sorted(names)}: another input is another release, with its own key."
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

    def holds(self, line: str, key: str) -> bool:
        """Return whether this release is charged already."""
        rows = self._connection.execute(
            "SELECT 1 FROM charges WHERE line = ? AND key = ?", (line, key)
        )
        return rows.fetchone() is not None

    def spent(self) -> list[tuple[str, str, Event, int]]:
        """Return (line, partition, event, number of releases charged), in the plan's order."""
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
        """Close the file and let another process have it."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("A ledger is never copied or pickled: a copy would spend the budget twice.")


def _connect_exclusively(path: Path) -> sqlite3.Connection:
    """Open a run's ledger and keep other processes out of it."""
    try:
        return connect(path, lock=True)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:  # make room, and it goes on
            raise
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise UsageError(
                f"{path} is in use by another process: a run has one writer. Wait for it to end."
            ) from None
        raise UsageError(f"{path} cannot be opened as a ledger ({error}).") from None
