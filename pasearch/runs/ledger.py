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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

from pasearch.accounting.checks import whole
from pasearch.accounting.events import Event, from_json, to_json
from pasearch.errors import BudgetError, PasearchError, UsageError
from pasearch.files import MOST_JSON, parse_json
from pasearch.runs.folder import linked_draft, sync_folder

APPLICATION = int.from_bytes(b"PASL", "big")
VERSION = 1

_SCHEMA = (
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
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
)


def append_only(*tables: str) -> list[str]:
    """Return the triggers that let nobody change or delete a row of these tables."""
    return [
        f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'append only'); END"
        for table in tables
        for verb in ("UPDATE", "DELETE")
    ]


_SEAL = (
    "CREATE TRIGGER fixed_plan BEFORE INSERT ON lines "
    "BEGIN SELECT RAISE(ABORT, 'the plan is fixed'); END",
    *append_only("lines", "charges"),
)


class Receipt:
    """Proof that a partition was charged; a partition opens only while it is active."""

    __slots__ = ("_active", "_partition")

    def __init__(self, partition: str):
        self._partition = partition
        self._active = True

    @property
    def partition(self) -> str:
        """The name of the partition that was charged."""
        return self._partition

    @property
    def active(self) -> bool:
        """Whether the charge is still open."""
        return self._active

    def close(self) -> None:
        """End the charge: nothing opens under it any more."""
        self._active = False


class Partition(Protocol):
    """What can be charged: named records that open under a receipt."""

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
        object.__setattr__(self, "count", whole("count", self.count))


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
                event=from_json(parse_json(event, str(path))),
                count=count,
            )
            for name, partition, event, count in rows
        )

    @classmethod
    def create(cls, path: str | os.PathLike[str], lines: Iterable[Line]) -> Ledger:
        """Make a ledger of a plan's lines, in a new file.

        Guarantee: the file appears with its whole content, or not at all, so a process that is
        killed here leaves none.

        Raises:
            UsageError: The file exists, there is no line, or two have one name and partition.
        """
        rows = [(x.name, x.partition, json.dumps(to_json(x.event)), x.count) for x in lines]
        if not rows or len({row[:2] for row in rows}) < len(rows):
            raise UsageError("a ledger needs lines, each with a name and partition of its own.")
        path = Path(path).absolute()
        try:
            with linked_draft(path) as draft:
                connection = _connect(draft)
                try:
                    with transaction(connection):
                        for statement in _SCHEMA:
                            connection.execute(statement)
                        connection.executemany("INSERT INTO lines VALUES (?, ?, ?, ?)", rows)
                        for statement in _SEAL:
                            connection.execute(statement)
                finally:
                    connection.close()
        except FileExistsError:
            raise UsageError(f"{path} exists: a ledger is never replaced. Open it.") from None
        return cls(path, _connect(path))

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
        connection = _connect(path)
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_JSON)
            if kind_of_file(connection) != (APPLICATION, VERSION):
                raise UsageError("it is no ledger of this version")
            check_form(connection, (*_SCHEMA, *_SEAL))
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
            key: Which release of the line this is, such as "trial 3". The same key again (a resumed
                run, or further reads of one release) costs nothing more: the caller must then
                compute from the same inputs and streams. Several keys are as many releases,
                charged together: all of them, or none.

        Yields:
            What the partition's `open` returned; for several partitions a tuple.

        Raises:
            BudgetError: The plan has no such line for a partition, all its releases are charged, or
                the key was charged for other partitions. Nothing was opened.
            PasearchError: The disk is full, say: the charge was not written. Nothing was opened.

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
                receipt.close()

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


def _connect(path: Path) -> sqlite3.Connection:
    """Open an existing file, and lock it for as long as the connection lives.

    The lock is SQLite's own, of the process: it ends with it, however it ends. (This file must not
    be opened and closed by hand meanwhile: on POSIX that would drop the lock.)
    """
    uri = f"{path.as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0)
    try:
        for pragma in ("locking_mode = EXCLUSIVE", "synchronous = FULL", "fullfsync = ON"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("PRAGMA foreign_keys = ON")
        with transaction(connection):
            pass  # takes the lock
    except sqlite3.DatabaseError as error:
        connection.close()
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:  # make room, and it goes on
            raise
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise UsageError(
                f"{path} is in use by another process: a run has one writer. Wait for it to end."
            ) from None
        raise UsageError(f"{path} cannot be opened as a ledger ({error}).") from None
    return connection


def kind_of_file(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the application and the version that a database says it is of."""
    kinds = ("application_id", "user_version")
    application, version = (connection.execute(f"PRAGMA {k}").fetchone()[0] for k in kinds)
    return application, version


def check_form(connection: sqlite3.Connection, created: Iterable[str]) -> None:
    """Refuse a database that is damaged, or has other tables and triggers than were made.

    Without its triggers a ledger would keep no ceiling.

    Args:
        connection: To a file whose application and version are right.
        created: The statements that made it; others than CREATE are left alone.

    Raises:
        UsageError: A table or a trigger is missing, changed or added.
        sqlite3.Error: The file is damaged.
    """
    found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    expected = sorted(each for each in created if each.startswith("CREATE"))
    if sorted(str(row[0]) for row in found) != expected:
        raise UsageError("its tables or triggers are not those that were made")
    (told,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if told != "ok":
        raise UsageError("it is damaged")


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
