"""Shared ledger of a data set (`ledger=`): a file with one total (epsilon, delta) for all its runs.

    SharedLedger.begin("adult.ledger", Budget(4.0, 1e-6), run_id, {"train": ..., "test": ...}, n)
    # or BudgetError: nothing was read, and nothing was written

Each run is charged its whole plan before it reads a record. Runs are chosen adaptively, because the
user has seen the earlier results when planning the next run. So their total privacy cost is not
that of a plan that is fixed in advance. It is bounded as follows. The privacy profile delta_i(e) of
run i is reduced by a failure probability d_i,

    t_i(e) = (delta_i(e) - d_i)+ / (1 - d_i),     d_i = delta / (4 i (i + 1)), with sum delta / 4

and gives an upper bound of its Renyi divergence of order a,

    r_i(a) = log(1 + a (a-1) int_0^inf (exp((a-1) e) + exp(-a e)) t_i(e) de) / (a-1)

r_i(inf) is the smallest e with t_i(e) = 0. The total epsilon is the smallest of

    sum over i of r_i(inf),   and for each order a:
    sum over i of r_i(a) + log(1 - 1/a) - log(a delta_a) / (a-1),   the delta_a with sum 5 delta / 8

and at least the cost of the first run alone (at delta / 8 if there is a second run).

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

from pasearch.accounting.accountants import MAX_LOSS, PrivacyCost, compute_delta, price
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
from pasearch.runs.ledger import LedgerFormat, connect, make_append_only_triggers, transaction

# --- the privacy cost of adaptively chosen runs ---

RENYI_ORDERS: Array = np.array([1.5, 2, 3, 4, 6, 8, 11, 16, 23, 32, 64, 256])
"""Orders a at which divergences are bounded; few, because the orders share delta."""
FIRST_RUN_SHARE = 1 / 8
"""Fraction of delta for the cost of the first run alone."""
FAILURE_SHARE = 1 / 4
"""Fraction of delta for the sum of all failure probabilities; the orders share the rest."""
PROFILE_SAMPLES = 120
"""Number of values of epsilon at which a privacy profile is evaluated."""
INTEGRAL_CELLS = 2000
"""Number of cells in the numerical integral of a privacy profile."""

TOTAL_MARGIN = 1.02
"""Ratio of the result of `calibrate_total` to the cost of the runs, so that similar runs fit."""

RunCost = tuple[Event, Array]
"""Event of one run, and its `compute_loss_curve`."""


def make_worst_partition_event(events: Mapping[str, Event]) -> Event:
    """Make the event that costs as much as the worst partition; names and order do not matter."""
    by_text = {json.dumps(event_to_json(event), sort_keys=True): event for event in events.values()}
    private = [by_text[text] for text in sorted(by_text) if count_atomic_releases(by_text[text])]
    if len(private) < 2:
        return private[0] if private else NoRelease()
    return WorstCase(events=tuple(private))


def compute_failure_probability(number: int, delta: float) -> float:
    """Compute the failure probability d_i of run i = `number` >= 1; the sum over i is delta/4."""
    return FAILURE_SHARE * delta / (number * (number + 1))


def compute_adaptive_cost(runs: list[RunCost], delta: float) -> PrivacyCost:
    """Compute the total privacy cost of adaptively chosen runs (fully adaptive composition).

    Guarantee: if runs are made only as long as this cost is at most a fixed epsilon, then all their
    releases together are (epsilon, delta)-DP.

    Args:
        runs: Event of each run, in order, with its `compute_loss_curve` at its failure probability.
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
    # The first run was accepted by its cost alone, so a fraction of delta belongs to this cost.
    epsilon = max(
        price(first, FIRST_RUN_SHARE * delta).epsilon, min(float(np.min(epsilons)), curve[-1])
    )
    return PrivacyCost(
        epsilon=float(epsilon), delta=delta, accountant=f"Renyi filter over {len(runs)} runs"
    )


def compute_loss_curve(event: Event, failure: float) -> Array:
    """Compute upper bounds of a run's Renyi divergences, except with probability `failure`.

    Guarantee: bounds in both directions. The profile is evaluated from above, linear interpolation
        of a convex function is an upper bound, and each cell of the integral uses its larger end.

    Args:
        event: Composition of all releases of the run.
        failure: Failure probability, in (0, 1).

    Returns:
        Array of shape (orders + 1,), all 0 or above: bounds at `RENYI_ORDERS`, then a bound of the
        privacy loss itself. Infinite if the profile is never below `failure`.
    """
    return _cached_loss_curve(event, failure).copy()


def _make_run_cost(event: Event, before: Sequence[RunCost], delta: float) -> RunCost:
    """Compute the loss curve of the run that follows the runs `before`."""
    number = len(before) + 1
    return event, compute_loss_curve(event, compute_failure_probability(number, delta))


@lru_cache(maxsize=256)  # a run, its resume and its check have the same curve
def _cached_loss_curve(event: Event, failure: float) -> Array:
    """Compute `compute_loss_curve`; the caller must not change the result."""
    if not count_atomic_releases(event):
        return np.zeros(len(RENYI_ORDERS) + 1)
    # Any epsilon at which the profile is at most `failure` may end the curve. The second fraction
    # is for a run that was made without a ledger: 80 % of `failure` may be its additive delta.
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
    """Compute a total epsilon into which the runs fit, with a small margin.

    Guarantee: a shared ledger with this total accepts the runs, one after another.

    Args:
        runs: Events of each run, by partition; at least one run.
        delta: Delta of the total, in (0, 1).

    Returns:
        Cost times `TOTAL_MARGIN`, rounded up to two significant digits; infinite if there is no
        bound.
    """
    curves: list[RunCost] = []
    for each in runs:
        curves.append(_make_run_cost(make_worst_partition_event(each), curves, delta))
    epsilon = TOTAL_MARGIN * compute_adaptive_cost(curves, delta).epsilon
    if not 0.0 < epsilon < math.inf:
        return epsilon
    digit = 10.0 ** (math.floor(math.log10(epsilon)) - 1)
    return float(f"{math.ceil(epsilon / digit) * digit:.2g}")


# --- the file ---

LOCK_TIMEOUT_SECONDS = 30.0
"""Maximum time to wait for the transaction of another run, seconds."""

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
        *make_append_only_triggers("total", "runs"),
    ),
)

SHARED_DELTA_NOTE = "The runs share this delta, so their epsilons add up only approximately. "
"""Sentence that explains why runs together may cost slightly more than the sum of their costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Effect that a planned run would have on a shared ledger; nothing is reserved.

    Args:
        total: Budget of all runs together.
        before: Epsilon of the earlier runs together.
        count: Number of earlier runs.
        alone: Epsilon of this run alone, at the total's delta.
        after: Epsilon of all runs together, including this one.
        left: Approximate epsilon of a further run that would fit afterwards; 0 if none does.
    """

    total: Budget
    before: float
    count: int
    alone: float
    after: float
    left: float

    @property
    def fits(self) -> bool:
        """Whether the ledger would accept the run."""
        return self.after <= self.total.epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLedger:
    """Ledger of all runs on one data set: a file in which each run reserves its privacy cost.

    Guarantee: all releases of the reserved runs together are (epsilon, delta)-DP with the total of
        the file, even if a run is planned when the results of others are known. A run that would
        exceed the total is refused, and a reservation is on disk when `reserve` returns. Processes
        and threads may use the file at the same time. The user must use one file per data set:
        ledgers with different paths do not know each other.

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
            budget: For a new file, the total with a delta (`Budget.resolve`). For an existing file,
                the same total or None; a delta of None is not compared.

        Raises:
            UsageError: A new file is given no total, the total differs from the file's, or the file
                is not a shared ledger.

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
        """Reserve a run's whole plan as `reserve` does; a missing file is created.

        Guarantee: that of `reserve`. A file is created together with its first run: if this run
            does not fit, or after a crash, there is no file.

        Args:
            path: Path of the file, in an existing folder.
            budget: Total budget, as for `open`.
            run_id: Name of the run, as for `reserve`.
            events: All releases of the run's plan, by partition.
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
            run = ledger._check_fit(make_worst_partition_event(events), [], total)
            if _create_file(ledger.path, total, _encode_row(1, run_id, day, n, plan, run)):
                return compute_adaptive_cost([run], check_fraction("delta", total.delta))
        return cls.open(path, budget).reserve(run_id, events, n, day=day)

    @classmethod
    def forecast(
        cls, path: str | os.PathLike[str], budget: Budget | None, events: Mapping[str, Event],
        n: int,
    ) -> Forecast:  # fmt: skip
        """Compute the effect that a run would have on a ledger, or on a new one; writes nothing.

        Args:
            path: Path of the file, in an existing folder.
            budget: Total budget, as for `open`.
            events: All releases of the run's plan, by partition.
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
        delta, event = check_fraction("delta", total.delta), make_worst_partition_event(events)
        run = _make_run_cost(event, runs, delta)
        after = compute_adaptive_cost([*runs, run], delta).epsilon
        return Forecast(
            total=total, before=compute_adaptive_cost(runs, delta).epsilon, count=len(runs),
            alone=price(event, delta).epsilon, after=after,
            left=_remaining_epsilon([*runs, run], total) if after <= total.epsilon else 0.0,
        )  # fmt: skip

    def total(self) -> Budget:
        """Read the budget of all runs together."""
        return self._read_file()[0]

    def reserve(
        self, run_id: str, events: Mapping[str, Event], n: int, *, day: str | None = None
    ) -> PrivacyCost:
        """Reserve a run's whole plan, durably, before it reads a record.

        Args:
            run_id: Unique name of the run, such as 128 random bits, not the name of a folder. The
                same name with the same plan means that the run is resumed, and costs nothing.
            events: All releases of the run's plan, by partition.
            n: Number of records, null records included; public. The total's delta must be below
                1/n.
            day: UTC date (ISO 8601) on which a finished run began. None: the run begins now.

        Returns:
            Cost of all runs together, including this one, at the total's delta.

        Raises:
            BudgetError: The run does not fit, or its name was used with another plan. Nothing was
                reserved.
            UsageError: An argument is invalid, the cost of an event cannot be computed, the file is
                in use, or it contains a run of a later day.

        Cost: that of the run's worst partition, once per name, because a record is in one partition
            of a run.
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
                runs.append(self._check_fit(make_worst_partition_event(events), runs, total))
                row = _encode_row(len(runs), run_id, day, n, plan, runs[-1])
                connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", row)
            after = compute_adaptive_cost(runs, check_fraction("delta", total.delta))
        # Also for a resumed run: the process that inserted it may have ended just before this line.
        sync_folder(self.path.parent)
        return after

    def _check_fit(self, event: Event, before: list[RunCost], total: Budget) -> RunCost:
        """Check that a run fits into the total after the runs `before`, and return its cost."""
        delta = check_fraction("delta", total.delta)
        run = _make_run_cost(event, before, delta)
        after = compute_adaptive_cost([*before, run], delta)
        if after.epsilon <= total.epsilon:
            return run
        earlier = together = ""
        if before:
            runs = "earlier run has" if len(before) == 1 else f"{len(before)} earlier runs have"
            earlier = (
                f"the {runs} spent epsilon {compute_adaptive_cost(before, delta).epsilon:.4g}, "
            )
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
        """Compute the cost of all reserved runs together, at the total's delta.

        This number is for information; what is guaranteed is the total. The cost depends on the
        plans, which the user chose after seeing results, so it is not a guarantee in itself.
        """
        total, _, runs = self._read_file()
        return compute_adaptive_cost(runs, check_fraction("delta", total.delta))

    def remaining(self) -> float:
        """Compute the approximate epsilon of a further run that fits; 0 if none does."""
        total, _, runs = self._read_file()
        return _remaining_epsilon(runs, total)

    def runs(self) -> list[tuple[str, str, PrivacyCost]]:
        """List (run_id, UTC date, cost alone at the total's delta) of the runs, in their order."""
        total, rows, runs = self._read_file()
        return [
            (row["run"], row["day"], price(event, check_fraction("delta", total.delta)))
            for row, (event, _) in zip(rows, runs, strict=True)
        ]

    def _read_file(self) -> tuple[Budget, list[sqlite3.Row], list[RunCost]]:
        """Read the total, the rows and the costs of all runs, in a transaction."""
        with _exclusive_connection(self.path) as connection:
            return _read_contents(connection, self.path)


def _remaining_epsilon(before: list[RunCost], total: Budget) -> float:
    """Compute the approximate epsilon of a run that fits: a Gaussian training and a test score."""
    delta = check_fraction("delta", total.delta)
    fits, cost = 0.0, 0.0
    low, high = 1e-2, 1e4  # noise multipliers; a smaller one costs more
    for _ in range(12):
        sigma = math.sqrt(low * high)
        training = Gaussian(noise_multiplier=sigma)
        epsilon = max(price(training, delta).epsilon, 1e-9)  # a large delta may pay for all of it
        event = make_worst_partition_event(
            {"training": training, "test": Geometric(epsilon=epsilon)}
        )
        run = _make_run_cost(event, before, delta)
        if compute_adaptive_cost([*before, run], delta).epsilon <= total.epsilon:
            high, fits, cost = sigma, sigma, epsilon
        else:
            low = sigma
    return cost * 0.95 if fits and cost >= 0.01 else 0.0


def _encode_plan(run_id: object, events: object) -> str:
    """Check a run's name and events, and encode the events as JSON."""
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
    """Read and check the total, the rows and the costs of all runs."""
    try:
        rows = connection.execute("SELECT * FROM runs ORDER BY number").fetchall()
        if [row["number"] for row in rows] != list(range(1, len(rows) + 1)):
            raise ValueError("a run is missing")
        (found,) = connection.execute("SELECT epsilon, delta FROM total").fetchmany(2)
        total = replace(Budget(*found), delta=check_fraction("delta", found["delta"]))
        return total, rows, [_decode_run(row) for row in rows]
    except (UsageError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _make_damage_error(path, error) from None


def _decode_run(row: sqlite3.Row) -> RunCost:
    """Decode the event and the loss curve of a stored run.

    A malformed curve raises a ValueError: a NaN in it would make the run free.
    """
    stored = parse_json(row["events"], "a run's events")
    if not isinstance(stored, dict):
        raise ValueError("a run without events")
    event = make_worst_partition_event(
        {name: event_from_json(each) for name, each in stored.items()}
    )
    curve = np.array(parse_json(row["curve"], "a run's curve"), dtype=float)
    if curve.shape != (len(RENYI_ORDERS) + 1,) or not (curve >= 0).all():
        raise ValueError("a run whose divergences are not numbers, 0 or above")
    return event, curve


def _encode_row(
    number: int, run_id: str, day: str | None, n: int, plan: str, run: RunCost
) -> tuple[object, ...]:
    """Encode a run as a row of the table `runs`; without a day it is today."""
    day = day or datetime.datetime.now(datetime.UTC).date().isoformat()
    return number, run_id, day, n, plan, json.dumps(run[1].tolist())


def _format_budget(budget: Budget) -> str:
    """Format a budget for an error message."""
    delta = "" if budget.delta is None else f", delta {budget.delta!r}"
    return f"epsilon {budget.epsilon!r}{delta}"


def _make_damage_error(path: Path, error: object) -> UsageError:
    """Create the error for a damaged ledger."""
    return UsageError(
        f"{path} is damaged ({error}), so nothing was reserved. The cost of the earlier runs is "
        "unknown: do not create a new ledger for these data as if there had been no runs."
    )


def _check_total(total: Budget, n: int, path: Path) -> None:
    """Check that the total's delta is below 1/n."""
    try:
        total.resolve(n)
    except UsageError:
        raise UsageError(
            f"The ledger {path} has a total delta of {total.delta:g}, which for {n:,} records must "
            f"be below 1/n = {1 / n:g}: create another ledger for them."
        ) from None


def _require_total(path: str | os.PathLike[str], budget: Budget | None) -> Budget:
    """Check that a total with a delta is given for a new file, and return it."""
    if isinstance(budget, Budget) and budget.delta is not None:
        return budget
    raise UsageError(
        f"{Path(path).absolute()} is missing, and {budget!r} decides no total for a new one: give "
        "the total epsilon and delta of the data set (Budget(...).resolve(n) decides delta)."
    )


def _create_file(path: Path, budget: Budget, first: tuple[object, ...] | None = None) -> bool:
    """Create the complete file; return False if another process created it in the meantime."""
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
    """Open the file with an exclusive lock, check it, and run the block as one transaction."""
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
                raise _make_damage_error(path, error) from None
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
