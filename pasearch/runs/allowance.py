"""The allowance of a data set: one total (epsilon, delta) that all runs on it share, in one file.

    Allowance.begin("adult.allowance", Budget(4.0, 1e-6), run_id, {"train": ..., "test": ...}, n)
    # or BudgetError: nothing was read, and nothing written

Each run is charged its whole plan before it reads a record, and `runs.adaptive` prices them
together. A file is made with its first run in it, so a total without a run is never left behind.

Proof: docs/guarantees/allowance.md.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pasearch.accounting.accountants import Price, price
from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import fraction, whole
from pasearch.accounting.events import Event, Gaussian, Geometric, from_json, to_json
from pasearch.accounting.profiles import Array
from pasearch.errors import BudgetError, UsageError
from pasearch.files import MOST_JSON, parse_json
from pasearch.runs.adaptive import ORDERS, Run, adaptive_price, failure, loss_curve, worst
from pasearch.runs.folder import linked_draft, sync_folder
from pasearch.runs.ledger import append_only, check_form, kind_of_file

APPLICATION = int.from_bytes(b"PASA", "big")
VERSION = 1
PATIENCE = 30.0  # seconds to wait for another run's transaction

_SCHEMA = (
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
    "CREATE TABLE total (epsilon REAL NOT NULL, delta REAL NOT NULL)",
    """CREATE TABLE runs (
        number INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE, day TEXT NOT NULL,
        n INTEGER NOT NULL, events TEXT NOT NULL, curve TEXT NOT NULL) WITHOUT ROWID""",
)
_SEAL = (
    "CREATE TRIGGER fixed_total BEFORE INSERT ON total "
    "BEGIN SELECT RAISE(ABORT, 'the total is fixed'); END",
    "CREATE TRIGGER no_replacement BEFORE INSERT ON runs WHEN NEW.number IS NOT "
    "(SELECT count(*) + 1 FROM runs) OR EXISTS (SELECT 1 FROM runs WHERE run = NEW.run) "
    "BEGIN SELECT RAISE(ABORT, 'append only'); END",
    *append_only("total", "runs"),
)

SHARED = "The runs share that delta, so their epsilons add up only roughly. "
"""Why two runs together may cost a little more than the sum of what each costs alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a planned run would do to an allowance; nothing is reserved.

    Args:
        total: Of all runs.
        before: What the runs before have spent.
        count: How many they are.
        alone: What this run costs alone, at the total's delta.
        after: What all cost with it.
        left: About the epsilon of one more run that would still fit then; 0 where none does.
    """

    total: Budget
    before: float
    count: int
    alone: float
    after: float
    left: float

    @property
    def fits(self) -> bool:
        """Whether the run would be reserved."""
        return self.after <= self.total.epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What all runs on one data set may cost together: a file, which any number of them share.

    Guarantee: all releases of the runs reserved here, together, are (epsilon, delta)-DP at the
    file's total, though each run is planned after seeing the ones before or while they go on; no
    run is reserved beyond it; a reservation is on disk when `reserve` returns. Processes and
    threads may share the path; a copy of this value is the same allowance. One file is one data
    set: another path is another allowance, which knows nothing of this one.

    Args:
        path: The file. Use `open`, which makes or checks it.
    """

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).absolute())

    @classmethod
    def open(cls, path: str | os.PathLike[str], budget: Budget | None = None) -> Allowance:
        """Open a data set's allowance; make it if there is none.

        Args:
            path: The file, in a folder that exists.
            budget: The total, delta decided (`Budget.resolve`), for a new file; for an old one the
                same total or None, which takes the file's. A delta of None agrees with any.

        Raises:
            UsageError: A new file without a total, another total than the file's, or no such file.

        Cost: nothing.
        """
        allowance = cls(path=Path(path))
        if not os.path.lexists(allowance.path):
            _create(allowance.path, _decided(path, budget))
        total = allowance.total()
        if budget is not None and (
            budget.epsilon != total.epsilon or budget.delta not in (None, total.delta)
        ):
            raise UsageError(
                f"{allowance.path} has the total {_shown(total)}, and {_shown(budget)} was given: "
                "a total is fixed when the file is made. Give that one, or none."
            )
        return allowance

    @classmethod
    def begin(
        cls, path: str | os.PathLike[str], budget: Budget | None, run_id: str,
        events: Mapping[str, Event], n: int,
    ) -> Price:  # fmt: skip
        """Reserve a run's whole plan, as `reserve`; where there is no file, make one that holds it.

        Guarantee: as of `reserve`, and a file of a total always has a run in it: a first run that
            does not fit, or a crash, leaves none.

        Args:
            path: See `open`, like budget.
            budget: The total.
            run_id: See `reserve`, like events and n.
            events: Everything the run will be charged.
            n: The number of slots.

        Raises:
            BudgetError: As of `reserve`.
            UsageError: As of `open` and `reserve`.

        Cost: as of `reserve`.
        """
        if not os.path.lexists(path):
            allowance, total = cls(path=Path(path)), _decided(path, budget)
            plan, n = _plan(run_id, events), whole("n", n)
            _check_total(total, n, allowance.path)
            run = allowance._fitting(worst(events), [], total)
            if _create(allowance.path, total, _row(1, run_id, n, plan, run)):
                return adaptive_price([run], _delta(total))
        return cls.open(path, budget).reserve(run_id, events, n)

    @classmethod
    def forecast(
        cls, path: str | os.PathLike[str], budget: Budget | None, events: Mapping[str, Event],
        n: int,
    ) -> Forecast:  # fmt: skip
        """Return what a run would do to the allowance, or to a new one; nothing is written.

        Args:
            path: See `open`, like budget.
            budget: The total.
            events: See `reserve`, like n.
            n: The number of slots.

        Raises:
            UsageError: As of `open` and `reserve`.

        Cost: nothing.
        """
        runs: list[Run] = []
        if os.path.lexists(path):
            with _exclusive(cls.open(path, budget).path) as connection:
                total, _, runs = _contents(connection, Path(path))
        else:
            total = _decided(path, budget)
        _check_total(total, whole("n", n), Path(path))
        delta, event = _delta(total), worst(events)
        run = event, loss_curve(event, failure(len(runs) + 1, delta))
        after = adaptive_price([*runs, run], delta).epsilon
        return Forecast(
            total=total, before=adaptive_price(runs, delta).epsilon, count=len(runs),
            alone=price(event, delta).epsilon, after=after,
            left=_room([*runs, run], total) if after <= total.epsilon else 0.0,
        )  # fmt: skip

    def total(self) -> Budget:
        """Return what all runs may cost together."""
        with _exclusive(self.path) as connection:
            return _contents(connection, self.path)[0]

    def reserve(self, run_id: str, events: Mapping[str, Event], n: int) -> Price:
        """Reserve a run's whole plan, durably, before it reads a record.

        Args:
            run_id: Names this run and no other: 128 random bits drawn for it, say, not a folder's
                name. The same id with the same plan is the run resumed, and costs nothing.
            events: Everything the run will be charged, by partition.
            n: The number of slots of its data, public; the total's delta must be below 1/n.

        Returns:
            What all runs cost now, at the total's delta.

        Raises:
            BudgetError: It does not fit, or the id stands for another plan. Nothing was reserved.
            UsageError: An argument has no meaning, an event no price, or the file is in use.

        Cost: the worst partition of the run, once per id: a record is in one partition of a run.
        """
        plan, n = _plan(run_id, events), whole("n", n)
        with _exclusive(self.path) as connection:
            total, rows, runs = _contents(connection, self.path)
            _check_total(total, n, self.path)
            stored = {row["run"]: (row["events"], row["n"]) for row in rows}
            if stored.get(run_id, (plan, n)) != (plan, n):
                raise BudgetError(
                    f"Run {run_id!r} is reserved in {self.path} with another plan: give a new run "
                    "an id of its own, or resume with the plan it began with."
                )
            if run_id not in stored:
                runs.append(self._fitting(worst(events), runs, total))
                connection.execute(_INSERT, _row(len(runs), run_id, n, plan, runs[-1]))
            after = adaptive_price(runs, _delta(total))
        # Also for a resumed run: the process that inserted it may have died just before this.
        sync_folder(self.path.parent)
        return after

    def _fitting(self, event: Event, before: list[Run], total: Budget) -> Run:
        """The run with its curve; a BudgetError if the total has no room for it."""
        delta = _delta(total)
        run = event, loss_curve(event, failure(len(before) + 1, delta))
        after = adaptive_price([*before, run], delta)
        if after.epsilon <= total.epsilon:
            return run
        raise BudgetError(
            f"This run does not fit into {self.path}: {_before_words(before, delta)}this one "
            f"costs {price(event, delta).epsilon:.4g} alone, {_together_words(before, after)}and "
            f"the total is {total.epsilon:g} (all at delta {delta:g}). {SHARED * bool(before)}"
            f"Nothing was read. {_room_words(before, total)}"
        )

    def spent(self) -> Price:
        """Return what all reserved runs cost together, at the total's delta.

        The guarantee is the total. This figure tells what is left; as it depends on which runs were
        planned, it is not itself an (epsilon, delta) that was promised in advance.
        """
        with _exclusive(self.path) as connection:
            total, _, runs = _contents(connection, self.path)
            return adaptive_price(runs, _delta(total))

    def runs(self) -> list[tuple[str, str, Price]]:
        """Return (run id, UTC date, price alone at the total's delta), in the order reserved."""
        with _exclusive(self.path) as connection:
            total, rows, runs = _contents(connection, self.path)
        delta = _delta(total)
        return [
            (row["run"], row["day"], price(event, delta))
            for row, (event, _) in zip(rows, runs, strict=True)
        ]


def _before_words(before: list[Run], delta: float) -> str:
    """Return what the runs before have spent, and a comma; nothing if there is none."""
    if not before:
        return ""
    runs = "the run before has" if len(before) == 1 else f"the {len(before)} runs before have"
    return f"{runs} spent epsilon {adaptive_price(before, delta).epsilon:.4g}, "


def _together_words(before: list[Run], after: Price) -> str:
    return f"together they would cost {after.epsilon:.4g}, " if before else ""


def _room(before: list[Run], total: Budget) -> float:
    """Return about the epsilon of a run that still fits; 0 if none.

    It is taken to train like one Gaussian release, and to score its test by a pure one: with the
    runs before, the second costs up to twice as much as the first.
    """
    delta = _delta(total)
    fits, cost = 0.0, 0.0
    low, high = 1e-2, 1e4  # noise multipliers: the smaller, the dearer
    for _ in range(12):
        sigma = math.sqrt(low * high)
        training = Gaussian(noise_multiplier=sigma)
        epsilon = max(price(training, delta).epsilon, 1e-9)  # a large delta may pay for all of it
        event = worst({"training": training, "test": Geometric(epsilon=epsilon)})
        run = event, loss_curve(event, failure(len(before) + 1, delta))
        if adaptive_price([*before, run], delta).epsilon <= total.epsilon:
            high, fits, cost = sigma, sigma, epsilon
        else:
            low = sigma
    return cost * 0.95 if fits and cost >= 0.01 else 0.0


def _room_words(before: list[Run], total: Budget) -> str:
    """Return about how much still fits, in words."""
    left = _room(before, total)
    if not left:
        return "Hardly anything fits any more: use what earlier runs have released."
    rest = "; or use what earlier runs have released." if before else "."
    return f"A run of about epsilon {left:.2g} would still fit{rest}"


def _plan(run_id: object, events: object) -> str:
    """The run's events as text, after a look at the arguments."""
    if not isinstance(run_id, str) or not run_id:
        raise UsageError(f"run_id is {run_id!r}: expected a name that no other run has.")
    if not (isinstance(events, Mapping) and events and all(map(_named, events))):
        raise UsageError(f"the run's events are {events!r}: expected them by partition's name.")
    return json.dumps({name: to_json(event) for name, event in events.items()}, sort_keys=True)


def _named(name: object) -> bool:
    return isinstance(name, str) and name != ""


def _event(row: sqlite3.Row) -> Event:
    stored = parse_json(row["events"], "a run's events")
    if not isinstance(stored, dict):
        raise ValueError("a run without events")
    return worst({name: from_json(event) for name, event in stored.items()})


def _curve(row: sqlite3.Row) -> Array:
    """The run's divergences; a ValueError where they are none, for NaN would cost nothing."""
    curve = np.array(parse_json(row["curve"], "a run's curve"), dtype=float)
    if curve.shape != (len(ORDERS) + 1,) or not (curve >= 0).all():
        raise ValueError("a run whose divergences are no numbers, 0 or above")
    return curve


def _contents(
    connection: sqlite3.Connection, path: Path
) -> tuple[Budget, list[sqlite3.Row], list[Run]]:
    """The total, the rows of the runs, and what they say; a UsageError if it makes no sense."""
    try:
        rows = _rows(connection)
        if [row["number"] for row in rows] != list(range(1, len(rows) + 1)):
            raise ValueError("a run is missing")
        return _total(connection), rows, [(_event(row), _curve(row)) for row in rows]
    except (UsageError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(path, error) from None


def _rows(connection: sqlite3.Connection) -> list[sqlite3.Row]:
    return connection.execute("SELECT * FROM runs ORDER BY number").fetchall()


def _damaged(path: Path, error: object) -> UsageError:
    return UsageError(
        f"{path} is damaged ({error}), so nothing was reserved. What the runs before have spent "
        "can no longer be told from it: do not begin a new file for these data as if there had "
        "been none."
    )


def _check_total(total: Budget, n: int, path: Path) -> None:
    """Refuse a total whose delta is 1/n or more for this data."""
    try:
        total.resolve(n)
    except UsageError:
        raise UsageError(
            f"The ledger {path} has a total delta of {total.delta:g}, which for {n:,} records must "
            f"be below 1/n = {1 / n:g}: begin another ledger for them."
        ) from None


def _total(connection: sqlite3.Connection) -> Budget:
    (row,) = connection.execute("SELECT epsilon, delta FROM total").fetchmany(2)
    return replace(Budget(*row), delta=fraction("delta", row["delta"]))


def _delta(total: Budget) -> float:
    """The total's delta, which is decided when the file is made."""
    return fraction("delta", total.delta)


def _today() -> str:
    """The UTC date: the day says nothing that a card does not."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _shown(budget: Budget) -> str:
    delta = "" if budget.delta is None else f", delta {budget.delta!r}"
    return f"epsilon {budget.epsilon!r}{delta}"


_INSERT = "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)"


def _row(number: int, run_id: str, n: int, plan: str, run: Run) -> tuple[object, ...]:
    return number, run_id, _today(), n, plan, json.dumps(run[1].tolist())


def _decided(path: str | os.PathLike[str], budget: Budget | None) -> Budget:
    """Return the total of a new file, which must be whole."""
    if isinstance(budget, Budget) and budget.delta is not None:
        return budget
    raise UsageError(
        f"{Path(path).absolute()} is missing, and {budget!r} decides no total for a new one: give "
        "the total epsilon and delta of the data set (Budget(...).resolve(n) decides delta)."
    )


def _create(path: Path, budget: Budget, first: tuple[object, ...] | None = None) -> bool:
    """Make the file, complete.

    Args:
        path: Of the file.
        budget: The total.
        first: The row of the run that it is made with; None makes it without.

    Returns:
        bool: False, if another process has made it meanwhile: then that one stays.
    """
    try:
        with linked_draft(path) as draft, _exclusive(draft, checked=False) as connection:
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO total VALUES (?, ?)", (budget.epsilon, budget.delta))
            if first is not None:
                connection.execute(_INSERT, first)
            for statement in _SEAL:
                connection.execute(statement)
    except FileExistsError:
        sync_folder(path.parent)
        return False
    except OSError as error:
        raise UsageError(
            f"{path} cannot be made ({error.strerror}): give a file in a folder of yours, on a "
            "local disk."
        ) from None
    return True


@contextmanager
def _exclusive(path: Path, *, checked: bool = True) -> Iterator[sqlite3.Connection]:
    """Open the file, alone, for a block; commit all of the block, or nothing of it.

    The connection is the block's own, so no lock outlives it. (The file must not be opened and
    closed by hand in a process that uses it: on POSIX that would drop the lock.)
    """
    connection = None
    try:
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=PATIENCE
        )
        connection.row_factory = sqlite3.Row
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_JSON)
        for pragma in ("synchronous = FULL", "fullfsync = ON"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN EXCLUSIVE")
        if checked:
            _check(connection, path)
        yield connection
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:  # what was spent is safe: make room, and it goes on
            raise
        if code == sqlite3.SQLITE_BUSY:
            raise UsageError(
                f"{path} was in use by other runs for {PATIENCE:g} seconds, so nothing was "
                "reserved: try again when they have planned."
            ) from None
        raise UsageError(
            f"The ledger {path} cannot be used as an allowance ({error}). What was spent is not "
            "known, so nothing was reserved: put back its newest copy. If there is none, treat "
            "its whole budget as spent."
        ) from None
    finally:
        if connection is not None:
            connection.close()  # rolls back what was not committed


def _check(connection: sqlite3.Connection, path: Path) -> None:
    if kind_of_file(connection) != (APPLICATION, VERSION):
        raise UsageError(
            f"{path} is no allowance of this version: expected a ledger of runs, as `ledger=` "
            "makes it. Give the file that was made for this data set."
        )
    try:
        check_form(connection, (*_SCHEMA, *_SEAL))
    except (UsageError, sqlite3.Error) as error:
        raise _damaged(path, error) from None
