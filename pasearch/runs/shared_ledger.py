"""The shared ledger of a data set (`ledger=`): one total (epsilon, delta) for all runs on it.

    SharedLedger.begin("adult.ledger", Budget(4.0, 1e-6), run_id, {"train": ..., "test": ...}, n)
    # or BudgetError: nothing was read, and nothing written

Each run is charged its whole plan before it reads a record. Runs are chosen adaptively, because the
user has seen the earlier results when planning the next run. The privacy cost of a plan that is
fixed in advance does not bound them. Instead, run i is bounded by its privacy profile, cut at a
failure probability d_i,

    t_i(e) = (delta_i(e) - d_i)+ / (1 - d_i),     d_i = delta / (4 i (i + 1)), summing to delta / 4
    r_i(a) = log(1 + a (a-1) int_0^inf (exp((a-1) e) + exp(-a e)) t_i(e) de) / (a-1)

    epsilon = min over orders a of sum r_i(a) + log(1 - 1/a) - log(a delta_a) / (a-1),
              the delta_a summing to 5 delta / 8; or sum r_i(inf), r_i(inf) where t_i ends

and the first run alone has its own privacy cost (at delta / 8 once there is a second run).

Sources: Feldman and Zrnic 2021 (the filter of one order), Rogers et al. 2016 (failures add up),
Sason and Verdu 2016 (moments of a profile). Proof: docs/guarantees/shared-ledger.md.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.special import logsumexp

from pasearch.accounting.accountants import PrivacyCost, compute_delta, price
from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import check_fraction, check_positive_integer
from pasearch.accounting.events import (
    Event,
    Gaussian,
    Geometric,
    NoRelease,
    WorstCase,
    count_atomic_releases,
    event_from_json,
    event_to_json,
)
from pasearch.accounting.profiles import Array, PrivacyProfile
from pasearch.errors import BudgetError, UsageError
from pasearch.files import parse_json
from pasearch.runs.folder import sync_folder
from pasearch.runs.ledger import LedgerFormat, append_only_triggers, connect, transaction

# --- the privacy cost of adaptively chosen runs ---

# Few orders, because they share delta: each further one costs log(count) / (order - 1).
RENYI_ORDERS: Array = np.array([1.5, 2, 3, 4, 6, 8, 11, 16, 23, 32, 64, 256])
FIRST_RUN_SHARE = 1 / 8  # fraction of delta for the cost of the first run alone
FAILURE_SHARE = 1 / 4  # fraction of delta for all failure probabilities; orders have the rest
PROFILE_SAMPLES = 120  # points of a privacy profile
INTEGRAL_CELLS = 2000  # cells of its integral
MAX_LOSS = 500.0  # largest epsilon whose exp() is still a number

TOTAL_MARGIN = 1.02
"""Factor by which `calibrate_total` exceeds the cost of the runs, for other runs of that budget."""

RunCost = tuple[Event, Array]
"""The event of one run, and its `loss_curve`."""


def worst_partition_event(events: Mapping[str, Event]) -> Event:
    """Return the event of a run's worst partition, independent of partition names and order."""
    by_text = {json.dumps(event_to_json(event), sort_keys=True): event for event in events.values()}
    private = [by_text[text] for text in sorted(by_text) if count_atomic_releases(by_text[text])]
    if len(private) < 2:
        return private[0] if private else NoRelease()
    return WorstCase(events=tuple(private))


def failure_probability(number: int, delta: float) -> float:
    """Return the failure probability d of run `number` = 1, 2, ...; the sum is delta/4."""
    return FAILURE_SHARE * delta / (number * (number + 1))


def adaptive_price(runs: list[RunCost], delta: float) -> PrivacyCost:
    """Compute the total privacy cost of adaptively chosen runs (fully adaptive composition).

    Guarantee: if runs continue only while this is at most a fixed epsilon, then all their releases
    together are (epsilon, delta)-DP.

    Args:
        runs: Event and `loss_curve` (at its failure probability) of each run, in order.
        delta: Delta of the total, in (0, 1).
    """
    if not runs:
        return PrivacyCost(epsilon=0.0, delta=delta, accountant="nothing released")
    first = runs[0][0]
    if len(runs) == 1:
        return price(first, delta)
    moments = (1 - FIRST_RUN_SHARE - FAILURE_SHARE) * delta / len(RENYI_ORDERS)
    curve = np.sum([curve for _, curve in runs], axis=0)
    epsilons = (
        curve[:-1]
        + np.log1p(-1 / RENYI_ORDERS)
        - np.log(moments * RENYI_ORDERS) / (RENYI_ORDERS - 1)
    )
    # The first run was admitted by its own price, so it needs a share of delta of its own.
    epsilon = max(
        price(first, FIRST_RUN_SHARE * delta).epsilon, min(float(np.min(epsilons)), curve[-1])
    )
    return PrivacyCost(
        epsilon=float(epsilon), delta=delta, accountant=f"Renyi filter over {len(runs)} runs"
    )


def loss_curve(event: Event, failure: float) -> Array:
    """Compute the Renyi divergences of a run, outside an event of probability `failure`.

    Guarantee: upper bounds in both directions: the profile is sampled from above, a chord is above
        a convex curve, and each cell of the integral uses its larger end.

    Args:
        event: Composition of all releases of the run.
        failure: Failure probability, in (0, 1).

    Returns:
        Array of shape (orders + 1,): bounds at `RENYI_ORDERS`, then a bound on the loss itself, all
        0 or above; infinite if the profile does not reach `failure`.
    """
    return _loss_curve(event, failure).copy()


def _next_run(event: Event, before: Sequence[RunCost], delta: float) -> RunCost:
    return event, loss_curve(event, failure_probability(len(before) + 1, delta))


@lru_cache(maxsize=256)  # a run, its resume and its check have the same curve
def _loss_curve(event: Event, failure: float) -> Array:
    if not count_atomic_releases(event):
        return np.zeros(len(RENYI_ORDERS) + 1)
    # Any epsilon at which the profile is at most `failure` may end the curve. The second share is
    # for a run that was made without a ledger: its additive delta may be 80 % of the first failure.
    ends = (price(event, share * failure).epsilon for share in (0.5, 0.95))
    top = next((each for each in ends if each < MAX_LOSS), math.inf)
    if not top > 0:
        return np.zeros(len(RENYI_ORDERS) + 1)
    if not top < MAX_LOSS:
        return np.full(len(RENYI_ORDERS) + 1, np.inf)
    profile = PrivacyProfile.sampled(
        lambda points: np.array([compute_delta(event, float(e)) for e in points]),
        np.linspace(0.0, top, PROFILE_SAMPLES),
    )
    if not profile.at(top) <= failure:  # delta is below the resolution of floats
        return np.full(len(RENYI_ORDERS) + 1, np.inf)
    ends = np.linspace(0.0, top, INTEGRAL_CELLS + 1)
    # The integral of r_i(a), for a profile that is at most `cut[i]` in cell i.
    cut = np.clip((profile.at(ends[:-1]) - failure) / (1 - failure), 0.0, 1.0)
    a, width = RENYI_ORDERS[:, None], np.diff(ends)
    with np.errstate(divide="ignore"):
        logs = np.log(cut)
    rising = (a - 1) * ends[1:] + np.log(-np.expm1(-(a - 1) * width) / (a - 1))
    falling = -a * ends[:-1] + np.log(-np.expm1(-a * width) / a)
    integral = logsumexp(np.concatenate([logs + rising, logs + falling], axis=1), axis=1)
    divergences = np.logaddexp(0.0, np.log(RENYI_ORDERS * (RENYI_ORDERS - 1)) + integral) / (
        RENYI_ORDERS - 1
    )
    return np.append(np.minimum(divergences, top), top)


def calibrate_total(runs: Sequence[Mapping[str, Event]], delta: float) -> float:
    """Return a total epsilon that admits these runs with a small margin.

    Guarantee: a shared ledger with that total admits the runs, one after another.

    Args:
        runs: Events of each run, by partition; at least one run.
        delta: Delta of the total, in (0, 1).

    Returns:
        Cost times `TOTAL_MARGIN`, rounded up to two digits; infinite if there is no bound.
    """
    curves: list[RunCost] = []
    for each in runs:
        curves.append(_next_run(worst_partition_event(each), curves, delta))
    epsilon = TOTAL_MARGIN * adaptive_price(curves, delta).epsilon
    if not 0.0 < epsilon < math.inf:
        return epsilon
    digit = 10.0 ** (math.floor(math.log10(epsilon)) - 1)
    return float(f"{math.ceil(epsilon / digit) * digit:.2g}")


# --- the file ---

LOCK_TIMEOUT_SECONDS = 30.0  # seconds to wait for another run's transaction

SHARED_LEDGER_FORMAT = LedgerFormat(
    application="PASA",
    tables=(
        "CREATE TABLE total (epsilon REAL NOT NULL, delta REAL NOT NULL)",
        """CREATE TABLE runs (
        number INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE, day TEXT NOT NULL,
        n INTEGER NOT NULL, events TEXT NOT NULL, curve TEXT NOT NULL) WITHOUT ROWID""",
    ),
    seal=(
        "CREATE TRIGGER fixed_total BEFORE INSERT ON total "
        "BEGIN SELECT RAISE(ABORT, 'the total is fixed'); END",
        "CREATE TRIGGER no_replacement BEFORE INSERT ON runs WHEN NEW.number IS NOT "
        "(SELECT count(*) + 1 FROM runs) OR EXISTS (SELECT 1 FROM runs WHERE run = NEW.run) "
        "BEGIN SELECT RAISE(ABORT, 'append only'); END",
        *append_only_triggers("total", "runs"),
    ),
)

SHARED_DELTA_NOTE = "The runs share this delta, so their epsilons add up only approximately. "
"""Reason why two runs together may cost slightly more than the sum of their separate costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The effect of a planned run on a shared ledger; nothing is reserved.

    Args:
        total: Budget of all runs.
        before: Epsilon spent by the earlier runs.
        count: Number of earlier runs.
        alone: Epsilon of this run alone, at the total's delta.
        after: Epsilon of all runs, including this one.
        left: Approximate epsilon of one more run that would still fit then; 0 if none does.
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
class SharedLedger:
    """The privacy cost of all runs on one data set: a file that any number of runs share.

    Guarantee: all releases of the reserved runs together are (epsilon, delta)-DP at the file's
        total, even if each run is planned after or while the results of others are seen. No run is
        reserved beyond it, and a reservation is on disk when `reserve` returns. Processes and
        threads may share the path; a copy of this value is the same ledger. One file is one data
        set: another path is another ledger, which does not know this one.

    Args:
        path: Path of the file. Use `open`, which creates or checks it.
    """

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).absolute())

    @classmethod
    def open(cls, path: str | os.PathLike[str], budget: Budget | None = None) -> SharedLedger:
        """Open a data set's shared ledger, or create it.

        Args:
            path: Path of the file, in an existing folder.
            budget: Total with a decided delta (`Budget.resolve`) for a new file; for an existing
                one the same total or None. A delta of None agrees with any.

        Raises:
            UsageError: A new file has no total, the total differs from the file's, or the file is
                not a shared ledger.

        Cost: nothing.
        """
        ledger = cls(path=Path(path))
        if not os.path.lexists(ledger.path):
            _create_file(ledger.path, _require_total(path, budget))
        total = ledger.total()
        if budget is not None and (
            budget.epsilon != total.epsilon or budget.delta not in (None, total.delta)
        ):
            raise UsageError(
                f"{ledger.path} has the total {_format_budget(total)}, and "
                f"{_format_budget(budget)} was given: "
                "the total of a ledger cannot change. Give that one, or none."
            )
        return ledger

    @classmethod
    def begin(
        cls, path: str | os.PathLike[str], budget: Budget | None, run_id: str,
        events: Mapping[str, Event], n: int, *, day: str | None = None,
    ) -> PrivacyCost:  # fmt: skip
        """Reserve a run's whole plan as `reserve` does; a missing file is created with it.

        Guarantee: that of `reserve`, and a file always contains a run: a first run that does not
            fit, or a crash, leaves no file.

        Args:
            path: Path of the file, in an existing folder.
            budget: Total budget, as for `open`.
            run_id: Name of the run, as for `reserve`.
            events: Everything that the run will be charged, by partition.
            n: Number of records, null records included.
            day: UTC date of a finished run, as for `reserve`.

        Raises:
            BudgetError: The conditions of `reserve`.
            UsageError: The conditions of `open` and `reserve`.

        Cost: that of `reserve`.
        """
        if not os.path.lexists(path):
            ledger, total = cls(path=Path(path)), _require_total(path, budget)
            plan, n = _encode_plan(run_id, events), check_positive_integer("n", n)
            _check_total(total, n, ledger.path)
            run = ledger._check_fit(worst_partition_event(events), [], total)
            if _create_file(ledger.path, total, _encode_row(1, run_id, day, n, plan, run)):
                return adaptive_price([run], check_fraction("delta", total.delta))
        return cls.open(path, budget).reserve(run_id, events, n, day=day)

    @classmethod
    def forecast(
        cls, path: str | os.PathLike[str], budget: Budget | None, events: Mapping[str, Event],
        n: int,
    ) -> Forecast:  # fmt: skip
        """Compute the effect of a run on the ledger, or on a new one; nothing is written.

        Args:
            path: Path of the file, in an existing folder.
            budget: Total budget, as for `open`.
            events: Everything that the run would be charged, by partition.
            n: Number of records, null records included.

        Raises:
            UsageError: The conditions of `open` and `reserve`.

        Cost: nothing.
        """
        runs: list[RunCost] = []
        if os.path.lexists(path):
            total, _, runs = cls.open(path, budget)._read_file()
        else:
            total = _require_total(path, budget)
        _check_total(total, check_positive_integer("n", n), Path(path))
        delta, event = check_fraction("delta", total.delta), worst_partition_event(events)
        run = _next_run(event, runs, delta)
        after = adaptive_price([*runs, run], delta).epsilon
        return Forecast(
            total=total, before=adaptive_price(runs, delta).epsilon, count=len(runs),
            alone=price(event, delta).epsilon, after=after,
            left=_remaining_epsilon([*runs, run], total) if after <= total.epsilon else 0.0,
        )  # fmt: skip

    def total(self) -> Budget:
        """Return the budget of all runs together."""
        return self._read_file()[0]

    def reserve(
        self, run_id: str, events: Mapping[str, Event], n: int, *, day: str | None = None
    ) -> PrivacyCost:
        """Reserve a run's whole plan, durably, before it reads a record.

        Args:
            run_id: Name of this run and no other, such as 128 random bits, not the name of a
                folder. The same id with the same plan is the resumed run, and costs nothing.
            events: Everything that the run will be charged, by partition.
            n: Number of records of its data, public; the total's delta must be below 1/n.
            day: UTC date (ISO 8601) on which a finished run began; None is a run that begins now.

        Returns:
            The cost of all runs now, at the total's delta.

        Raises:
            BudgetError: The run does not fit, or the id belongs to another plan. Nothing was
                reserved.
            UsageError: An argument is invalid, an event has no privacy cost, the file is in use, or
                it contains a run of a later day.

        Cost: the worst partition of the run, once per id, because a record is in one partition of a
            run.
        """
        plan, n = _encode_plan(run_id, events), check_positive_integer("n", n)
        with _exclusive_connection(self.path) as connection:
            total, rows, runs = _read_contents(connection, self.path)
            _check_total(total, n, self.path)
            stored = {row["run"]: (row["events"], row["n"]) for row in rows}
            if stored.get(run_id, (plan, n)) != (plan, n):
                raise BudgetError(
                    f"Run {run_id!r} is reserved in {self.path} with another plan: give a new "
                    "run its own id, or resume with the original plan."
                )
            if run_id not in stored:
                if day is not None and rows and day < rows[-1]["day"]:
                    raise UsageError(
                        f"The run began on {day}, and {self.path} holds a run of "
                        f"{rows[-1]['day']}: the cost of adaptively chosen runs requires their "
                        "order. Create another ledger, and add the finished runs from the oldest "
                        "to the newest."
                    )
                runs.append(self._check_fit(worst_partition_event(events), runs, total))
                row = _encode_row(len(runs), run_id, day, n, plan, runs[-1])
                connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", row)
            after = adaptive_price(runs, check_fraction("delta", total.delta))
        # Also for a resumed run: the process that inserted it may have died just before this.
        sync_folder(self.path.parent)
        return after

    def _check_fit(self, event: Event, before: list[RunCost], total: Budget) -> RunCost:
        delta = check_fraction("delta", total.delta)
        run = _next_run(event, before, delta)
        after = adaptive_price([*before, run], delta)
        if after.epsilon <= total.epsilon:
            return run
        earlier = together = ""
        if before:
            runs = "earlier run has" if len(before) == 1 else f"{len(before)} earlier runs have"
            earlier = f"the {runs} spent epsilon {adaptive_price(before, delta).epsilon:.4g}, "
            together = f"together they would cost {after.epsilon:.4g}, "
        left = _remaining_epsilon(before, total)
        room = "Almost nothing fits any more: use the results of earlier runs."
        if left:
            rest = "; or use the results of earlier runs." if before else "."
            room = f"A run of about epsilon {left:.2g} would still fit{rest}"
        raise BudgetError(
            f"This run does not fit into {self.path}: {earlier}this one costs "
            f"{price(event, delta).epsilon:.4g} alone, {together}and the total is "
            f"{total.epsilon:g} (all at delta {delta:g}). "
            f"{SHARED_DELTA_NOTE * bool(before)}Nothing was read. {room}"
        )

    def spent(self) -> PrivacyCost:
        """Return the cost of all reserved runs together, at the total's delta.

        The guarantee is the total. This number tells how much is left. It depends on the planned
        runs, so it is not an (epsilon, delta) that was promised in advance.
        """
        total, _, runs = self._read_file()
        return adaptive_price(runs, check_fraction("delta", total.delta))

    def remaining(self) -> float:
        """Return the approximate epsilon of one more run that still fits; 0 if none does."""
        total, _, runs = self._read_file()
        return _remaining_epsilon(runs, total)

    def runs(self) -> list[tuple[str, str, PrivacyCost]]:
        """Return (run id, UTC date, cost alone at the total's delta), in the order reserved."""
        total, rows, runs = self._read_file()
        return [
            (row["run"], row["day"], price(event, check_fraction("delta", total.delta)))
            for row, (event, _) in zip(rows, runs, strict=True)
        ]

    def _read_file(self) -> tuple[Budget, list[sqlite3.Row], list[RunCost]]:
        with _exclusive_connection(self.path) as connection:
            return _read_contents(connection, self.path)


def _remaining_epsilon(before: list[RunCost], total: Budget) -> float:
    """Return the epsilon of a run that still fits: a Gaussian training and a pure test score."""
    delta = check_fraction("delta", total.delta)
    fits, cost = 0.0, 0.0
    low, high = 1e-2, 1e4  # noise multipliers: the smaller, the more expensive
    for _ in range(12):
        sigma = math.sqrt(low * high)
        training = Gaussian(noise_multiplier=sigma)
        epsilon = max(price(training, delta).epsilon, 1e-9)  # a large delta may pay for all of it
        event = worst_partition_event({"training": training, "test": Geometric(epsilon=epsilon)})
        run = _next_run(event, before, delta)
        if adaptive_price([*before, run], delta).epsilon <= total.epsilon:
            high, fits, cost = sigma, sigma, epsilon
        else:
            low = sigma
    return cost * 0.95 if fits and cost >= 0.01 else 0.0


def _encode_plan(run_id: object, events: object) -> str:
    if not isinstance(run_id, str) or not run_id:
        raise UsageError(f"run_id is {run_id!r}: expected a name that no other run has.")
    named = isinstance(events, Mapping) and all(isinstance(x, str) and x for x in events)
    if not isinstance(events, Mapping) or not events or not named:
        raise UsageError(f"the run's events are {events!r}: expected them by partition's name.")
    return json.dumps(
        {name: event_to_json(event) for name, event in events.items()}, sort_keys=True
    )


def _read_contents(
    connection: sqlite3.Connection, path: Path
) -> tuple[Budget, list[sqlite3.Row], list[RunCost]]:
    try:
        rows = connection.execute("SELECT * FROM runs ORDER BY number").fetchall()
        if [row["number"] for row in rows] != list(range(1, len(rows) + 1)):
            raise ValueError("a run is missing")
        (found,) = connection.execute("SELECT epsilon, delta FROM total").fetchmany(2)
        total = replace(Budget(*found), delta=check_fraction("delta", found["delta"]))
        return total, rows, [_decode_run(row) for row in rows]
    except (UsageError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged_error(path, error) from None


def _decode_run(row: sqlite3.Row) -> RunCost:
    """Decode a run; a ValueError if its curve is malformed, because NaN would cost nothing."""
    stored = parse_json(row["events"], "a run's events")
    if not isinstance(stored, dict):
        raise ValueError("a run without events")
    event = worst_partition_event({name: event_from_json(each) for name, each in stored.items()})
    curve = np.array(parse_json(row["curve"], "a run's curve"), dtype=float)
    if curve.shape != (len(RENYI_ORDERS) + 1,) or not (curve >= 0).all():
        raise ValueError("a run whose divergences are not numbers, 0 or above")
    return event, curve


def _encode_row(
    number: int, run_id: str, day: str | None, n: int, plan: str, run: RunCost
) -> tuple[object, ...]:
    return number, run_id, day or _today(), n, plan, json.dumps(run[1].tolist())


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _format_budget(budget: Budget) -> str:
    delta = "" if budget.delta is None else f", delta {budget.delta!r}"
    return f"epsilon {budget.epsilon!r}{delta}"


def _damaged_error(path: Path, error: object) -> UsageError:
    return UsageError(
        f"{path} is damaged ({error}), so nothing was reserved. The cost of the earlier runs is "
        "unknown: do not create a new ledger for these data as if there had been no runs."
    )


def _check_total(total: Budget, n: int, path: Path) -> None:
    try:
        total.resolve(n)
    except UsageError:
        raise UsageError(
            f"The ledger {path} has a total delta of {total.delta:g}, which for {n:,} records must "
            f"be below 1/n = {1 / n:g}: create another ledger for them."
        ) from None


def _require_total(path: str | os.PathLike[str], budget: Budget | None) -> Budget:
    if isinstance(budget, Budget) and budget.delta is not None:
        return budget
    raise UsageError(
        f"{Path(path).absolute()} is missing, and {budget!r} decides no total for a new one: give "
        "the total epsilon and delta of the data set (Budget(...).resolve(n) decides delta)."
    )


def _create_file(path: Path, budget: Budget, first: tuple[object, ...] | None = None) -> bool:
    """Create the complete file; False if another process has created it meanwhile."""
    total = (budget.epsilon, budget.delta)
    try:
        SHARED_LEDGER_FORMAT.create(
            path, {"total": [total], "runs": [] if first is None else [first]}
        )
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
def _exclusive_connection(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file for one transaction; the connection, with its lock, ends with the block."""
    try:
        with (
            closing(connect(path, timeout=LOCK_TIMEOUT_SECONDS)) as connection,
            transaction(connection),
        ):
            connection.row_factory = sqlite3.Row
            if not SHARED_LEDGER_FORMAT.matches(connection):
                raise UsageError(
                    f"{path} is not a shared ledger of this version: give the file that `ledger=` "
                    "created for this data set."
                )
            try:
                SHARED_LEDGER_FORMAT.check(connection)
            except (UsageError, sqlite3.Error) as error:
                raise _damaged_error(path, error) from None
            yield connection
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:  # the charges are safe: with space the run can continue
            raise
        if code == sqlite3.SQLITE_BUSY:
            raise UsageError(
                f"{path} was in use by other runs for {LOCK_TIMEOUT_SECONDS:g} seconds, so nothing "
                "was reserved: try again later."
            ) from None
        raise UsageError(
            f"{path} cannot be used as a shared ledger ({error}), so nothing was reserved. The "
            "cost of earlier runs is unknown: restore the newest copy; without one, treat the "
            "whole budget as spent."
        ) from None
