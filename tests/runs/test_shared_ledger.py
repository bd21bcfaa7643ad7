"""The shared ledger of a data set: all runs reserve in it first, durably, within one total."""

from __future__ import annotations

import copy
import datetime
import functools
import math
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from pasearch.accounting.accountants import price
from pasearch.accounting.budget import Budget
from pasearch.accounting.calibration import calibrate_min
from pasearch.accounting.events import (
    Composition,
    DiscreteGaussian,
    Event,
    Gaussian,
    Geometric,
    NoRelease,
    PoissonGaussian,
    SelfComposition,
    TruncatedPoissonGaussian,
)
from pasearch.accounting.renyi import rdp_curve
from pasearch.errors import BudgetError, UsageError
from pasearch.runs import folder
from pasearch.runs import shared_ledger as module
from pasearch.runs.shared_ledger import (
    RENYI_ORDERS,
    SharedLedger,
    compute_adaptive_cost,
    compute_failure_probability,
    compute_loss_curve,
)

ROOT = Path(__file__).resolve().parents[2]
DELTA = 1e-5
N = 1000
TRAIN = SelfComposition(
    event=PoissonGaussian(sampling_probability=0.01, noise_multiplier=1.155), count=200
)
PLAN = {"train": TRAIN, "test": Geometric(epsilon=1.0)}
SMALL = {"train": Geometric(epsilon=0.4), "test": Geometric(epsilon=0.4)}


@pytest.fixture(scope="module", autouse=True)
def priced_once() -> Iterator[None]:
    before = module.compute_loss_curve
    module.compute_loss_curve = functools.cache(before)
    yield
    module.compute_loss_curve = before


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "adult.ledger"


@pytest.fixture
def shared(path: Path) -> SharedLedger:
    return SharedLedger.open(path, Budget(1.0, DELTA))


def reserved(path: Path) -> list[str]:
    """Read the file as it lies there, without the code of the ledger."""
    with sqlite3.connect(path) as connection:
        found = [run for (run,) in connection.execute("SELECT run FROM runs ORDER BY number")]
    connection.close()
    return found


def priced(events: list[Event], delta: float = DELTA) -> float:
    runs = [
        (e, module.compute_loss_curve(e, compute_failure_probability(i + 1, delta)))
        for i, e in enumerate(events)
    ]
    return compute_adaptive_cost(runs, delta).epsilon


# --- the file ---


@pytest.mark.contract
def test_a_first_run_that_does_not_fit_leaves_no_file_and_no_total(path: Path):
    with pytest.raises(BudgetError, match=r"does not fit.*Nothing was read"):
        SharedLedger.begin(path, Budget(0.5, DELTA), "a", PLAN, N)
    with pytest.raises(UsageError, match="create another ledger"):
        SharedLedger.begin(path, Budget(0.5, 0.5), "a", PLAN, N)
    assert not list(path.parent.iterdir())
    SharedLedger.begin(path, Budget(2.5, DELTA), "a", PLAN, N)
    assert SharedLedger.open(path).total() == Budget(2.5, DELTA)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.contract
def test_a_file_has_its_first_run_from_its_first_instant(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    linked, synced, link = [], [], folder.os.link

    def watched(draft: Path, to: Path) -> None:
        linked.append(reserved(draft))
        link(draft, to)

    monkeypatch.setattr(folder.os, "link", watched)
    monkeypatch.setattr(folder, "sync_folder", lambda _: synced.append(reserved(path)))
    first = SharedLedger.begin(path, Budget(2.5, DELTA), "a", PLAN, N)
    assert linked == synced == [["a"]]
    assert first == SharedLedger.open(path).spent()
    assert SharedLedger.begin(path, None, "a", PLAN, N) == first, "resumed"
    assert SharedLedger.begin(path, None, "b", PLAN, N) == SharedLedger.open(path).spent()
    assert reserved(path) == ["a", "b"]


@pytest.mark.property
@pytest.mark.parametrize(("dies", "left"), [("link", False), ("sync_folder", True)])
def test_a_process_that_dies_while_it_begins_leaves_a_whole_file_or_none(
    path: Path, dies: str, left: bool
):
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from pasearch.accounting.budget import Budget\n"
        "from pasearch.accounting.events import Geometric\n"
        "from pasearch.runs import shared_ledger as module, folder\n"
        f"setattr({'os' if dies == 'link' else 'folder'}, {dies!r}, lambda *_: os._exit(9))\n"
        f"module.SharedLedger.begin(Path({str(path)!r}), Budget(1.0, 1e-5), 'a',\n"
        "                       {'test': Geometric(epsilon=0.6)}, 1000)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 9
    assert path.exists() is left
    if left:
        assert reserved(path) == ["a"]


@pytest.mark.property
def test_of_two_that_begin_at_once_one_total_stays_and_both_are_reserved_or_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The other run made the file between the look for it and the link."""
    link, beside = module.os.link, []

    def slow(draft: Path, to: Path) -> None:
        if not beside:
            beside.append("b")
            SharedLedger.begin(path, Budget(1.5, DELTA), "b", PLAN, N)
        link(draft, to)

    monkeypatch.setattr(module.os, "link", slow)
    with pytest.raises(BudgetError, match="does not fit"):
        SharedLedger.begin(path, Budget(1.5, DELTA), "a", PLAN, N)
    assert reserved(path) == ["b"]


@pytest.mark.unit
def test_a_forecast_is_what_a_reservation_gives_and_writes_nothing(path: Path):
    total = Budget(2.5, DELTA)
    new = SharedLedger.forecast(path, total, PLAN, N)
    assert not list(path.parent.iterdir())
    assert (new.before, new.count, new.fits, new.alone) == (0.0, 0, True, new.after)
    first = SharedLedger.begin(path, total, "a", PLAN, N)
    assert first.epsilon == new.after
    second = SharedLedger.forecast(path, None, PLAN, N)
    assert (second.total, second.before, second.count) == (total, first.epsilon, 1)
    assert second.after == SharedLedger.begin(path, None, "b", PLAN, N).epsilon
    third = SharedLedger.forecast(path, total, PLAN, N)
    assert not third.fits
    assert third.left == 0.0
    left = Geometric(epsilon=second.left * 0.9)
    assert SharedLedger.begin(path, None, "c", {"test": left}, N).epsilon <= total.epsilon
    with pytest.raises(UsageError, match="total"):
        SharedLedger.forecast(path, Budget(9.0, DELTA), PLAN, N)


@pytest.mark.contract
@pytest.mark.parametrize("delta", [1e-4, DELTA])
def test_two_runs_fit_into_their_total_and_a_third_does_not(path: Path, delta: float):
    total = module.calibrate_total([PLAN, PLAN], delta)
    assert float(f"{total:.2g}") == total
    for run in ("a", "b"):
        SharedLedger.begin(path, Budget(total, delta), run, PLAN, N)
    with pytest.raises(BudgetError):
        SharedLedger.begin(path, None, "c", PLAN, N)
    assert total < 1.15 * SharedLedger.open(path).spent().epsilon


@pytest.mark.unit
def test_a_new_file_needs_a_whole_total(path: Path):
    for budget in [None, Budget(1.0)]:
        with pytest.raises(UsageError, match="is missing"):
            SharedLedger.open(path, budget)
        assert not list(path.parent.iterdir())


@pytest.mark.unit
def test_another_total_is_refused_and_both_are_named(shared: SharedLedger):
    for budget in [Budget(2.0, DELTA), Budget(1.0, 1e-6), Budget(2.0)]:
        with pytest.raises(UsageError, match=f"epsilon 1.0, delta 1e-05.*epsilon {budget.epsilon}"):
            SharedLedger.open(shared.path, budget)
        assert shared.total() == Budget(1.0, DELTA)


@pytest.mark.unit
def test_other_files_and_folders_are_refused(tmp_path: Path):
    for name, content in (("empty", b""), ("text", b"something else " * 100)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match="shared ledger"):
            SharedLedger.open(tmp_path / name, Budget(1.0, DELTA))
        assert (tmp_path / name).read_bytes() == content
    with pytest.raises(UsageError, match="cannot be made"):
        SharedLedger.open(tmp_path / "missing" / "file", Budget(1.0, DELTA))
    with pytest.raises(UsageError, match="cannot be used"):
        SharedLedger.open(tmp_path, Budget(1.0, DELTA))
    with pytest.raises(UsageError, match="cannot be used"):
        SharedLedger(path=tmp_path / "gone").spent()


@pytest.mark.unit
def test_a_copy_is_the_same_shared(shared: SharedLedger):
    from sklearn.base import clone

    copies = [
        copy.deepcopy(shared),
        pickle.loads(pickle.dumps(shared)),
        clone(shared, safe=False),
    ]
    for number, each in enumerate(copies):
        assert each == shared
        if number < 2:
            each.reserve(f"run {number}", SMALL, N)
        else:
            with pytest.raises(BudgetError):
                each.reserve(f"run {number}", SMALL, N)
    assert reserved(shared.path) == ["run 0", "run 1"]


# --- reserving ---


@pytest.mark.unit
def test_runs_add_up_until_one_is_refused_without_a_trace(shared: SharedLedger):
    first = shared.reserve("a", SMALL, N)
    second = shared.reserve("b", SMALL, N)
    assert first.epsilon == pytest.approx(0.4, rel=1e-3)
    assert second.epsilon == pytest.approx(0.8, rel=1e-3)
    with pytest.raises(BudgetError) as refusal:
        shared.reserve("c", SMALL, N)
    for part in (
        "This run does not fit",
        "2 earlier runs",
        "spent epsilon 0.8,",
        "costs 0.4 alone",
        "cost 1.2,",
        "total is 1 ",
    ):
        assert part in str(refusal.value)
    assert reserved(shared.path) == ["a", "b"]
    assert shared.spent() == second
    shared.reserve("d", {"test": Geometric(epsilon=0.1)}, N)
    assert reserved(shared.path) == ["a", "b", "d"]


@pytest.mark.unit
def test_a_resumed_run_costs_nothing(shared: SharedLedger):
    shared.reserve("a", SMALL, N)
    both = shared.reserve("b", SMALL, N)
    for run in ("a", "b"):
        assert shared.reserve(run, dict(reversed(SMALL.items())), N) == both
    assert reserved(shared.path) == ["a", "b"]


@pytest.mark.unit
def test_an_id_cannot_change_its_plan(shared: SharedLedger):
    shared.reserve("a", SMALL, N)
    changes = (
        (SMALL | {"test": Geometric(epsilon=0.1)}, N),
        ({"train": SMALL["train"]}, N),
        (SMALL, N + 1),
    )
    for events, n in changes:
        with pytest.raises(BudgetError, match="another plan"):
            shared.reserve("a", events, n)
    assert reserved(shared.path) == ["a"]


@pytest.mark.unit
def test_arguments_are_checked(shared: SharedLedger):
    for run, events, n in [
        ("", SMALL, N), (None, SMALL, N), (3, SMALL, N), ("a", {}, N), ("a", {"": TRAIN}, N),
        ("a", {3: TRAIN}, N), ("a", [TRAIN], N), ("a", {"train": "gaussian"}, N),
        ("a", SMALL, 0), ("a", SMALL, 1e3), ("a", SMALL, True), ("a", SMALL, 10**5),
    ]:  # fmt: skip
        with pytest.raises(UsageError):
            shared.reserve(run, events, n)  # type: ignore[arg-type]
        assert reserved(shared.path) == []


@pytest.mark.unit
def test_a_run_without_a_price_is_refused(shared: SharedLedger):
    pair = Composition(
        events=(
            DiscreteGaussian(sigma=9.0, sensitivity=1.0),
            TruncatedPoissonGaussian(
                dataset_size=N,
                sampling_probability=0.01,
                truncated_batch_size=50,
                noise_multiplier=4.0,
            ),
        )
    )
    with pytest.raises(UsageError, match="no bound for"):
        shared.reserve("a", {"train": pair}, N)
    assert reserved(shared.path) == []


@pytest.mark.unit
def test_runs_are_listed_with_the_day_and_no_time(shared: SharedLedger):
    shared.reserve("a", SMALL, N)
    shared.reserve("b", {"test": Geometric(epsilon=0.2)}, N)
    days = {datetime.datetime.now(datetime.UTC).date().isoformat()}
    listed = shared.runs()
    assert [run for run, *_ in listed] == ["a", "b"]
    assert {day for _, day, _ in listed} == days
    assert [each.epsilon for *_, each in listed] == pytest.approx([0.4, 0.2], rel=1e-3)
    assert {each.delta for *_, each in listed} == {DELTA}


@pytest.mark.unit
def test_the_database_itself_refuses(shared: SharedLedger):
    before = shared.reserve("a", SMALL, N)
    for statement in (
        "UPDATE total SET epsilon = 100",
        "DELETE FROM total",
        "INSERT INTO total VALUES (100, 0.1)",
        "INSERT OR REPLACE INTO total (rowid, epsilon, delta) VALUES (1, 100, 0.1)",
        "UPDATE runs SET curve = '[]'",
        "UPDATE OR REPLACE runs SET run = 'b' WHERE run = 'a'",
        "DELETE FROM runs",
        "INSERT OR REPLACE INTO runs SELECT number, run, day, n, events, '[0]' FROM runs",
        "INSERT OR REPLACE INTO runs SELECT 2, run, day, n, events, '[0]' FROM runs",
        "INSERT INTO runs SELECT 1, 'x', day, n, events, curve FROM runs",
        "INSERT INTO runs SELECT 3, 'x', day, n, events, curve FROM runs",
    ):
        connection = sqlite3.connect(shared.path)
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(statement)
        connection.close()
    assert shared.spent() == before
    assert shared.total() == Budget(1.0, DELTA)


# --- durable, and one at a time ---


@pytest.mark.unit
def test_it_is_committed_and_the_folder_synced_before_it_returns(
    shared: SharedLedger, monkeypatch: pytest.MonkeyPatch
):
    seen: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(module, "sync_folder", lambda at: seen.append((at, reserved(path))))
    path = shared.path
    shared.reserve("a", SMALL, N)
    assert seen == [(path.parent, ["a"])]
    shared.reserve("a", SMALL, N)  # resumed: whoever inserted it may not have synced
    assert len(seen) == 2


@pytest.mark.unit
def test_every_connection_syncs_in_full(shared: SharedLedger):
    with module._exclusive_connection(shared.path) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
        assert connection.execute("PRAGMA fullfsync").fetchone()[0] == 1


@pytest.mark.unit
def test_it_waits_for_another_run_and_then_says_so(
    shared: SharedLedger, monkeypatch: pytest.MonkeyPatch
):
    assert module.LOCK_TIMEOUT_SECONDS == 30
    monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 0.05)
    with module._exclusive_connection(shared.path):
        for action in (lambda: shared.reserve("a", SMALL, N), shared.spent, shared.runs):
            with pytest.raises(UsageError, match=r"in use by other runs for 0\.05 seconds"):
                action()
    shared.reserve("a", SMALL, N)


@pytest.mark.unit
def test_an_error_inside_leaves_nothing(shared: SharedLedger, monkeypatch: pytest.MonkeyPatch):
    def fails(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "compute_adaptive_cost", fails)
        with pytest.raises(KeyboardInterrupt):
            shared.reserve("a", SMALL, N)
    assert reserved(shared.path) == []
    shared.reserve("a", SMALL, N)


CHILD = """
import os, sys
from pasearch.accounting.events import Geometric
from pasearch.runs import shared_ledger as module

path, instant, run = sys.argv[1:]
if instant == "before commit":
    count = module.compute_adaptive_cost
    module.compute_adaptive_cost = lambda runs, delta, calls=[]: (
        calls.append(1), os._exit(9) if len(calls) == 2 else None, count(runs, delta))[2]
if instant == "after commit":
    module.sync_folder = lambda path: os._exit(9)
if instant == "forgetful":  # the planted bug: each run is priced as if it were the only one
    total = module.compute_adaptive_cost
    module.compute_adaptive_cost = lambda runs, delta: total(runs[-1:], delta)
print("ready", flush=True)
if instant in ("race", "forgetful"):
    sys.stdin.readline()
try:
    module.SharedLedger.open(path).reserve(run, {"test": Geometric(epsilon=0.6)}, 1000)
    print("won", flush=True)
except module.BudgetError:
    print("refused", flush=True)
os._exit(9)
"""


def child(path: Path, instant: str, run: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), instant, run],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.property
@pytest.mark.parametrize(
    ("instant", "said", "left"),
    [("before commit", "", []), ("after commit", "", ["a"]), ("after", "won\n", ["a"])],
)
def test_a_process_that_dies_leaves_what_it_reserved(
    shared: SharedLedger, instant: str, said: str, left: list[str]
):
    process = child(shared.path, instant, "a")
    assert process.communicate(timeout=600)[0] == "ready\n" + said
    assert process.returncode == 9
    again = SharedLedger.open(shared.path)
    assert [run for run, *_ in again.runs()] == left
    if left:
        with pytest.raises(BudgetError):
            again.reserve("b", {"test": Geometric(epsilon=0.6)}, N)
    again.reserve("a", {"test": Geometric(epsilon=0.6)}, N)
    assert reserved(again.path) == ["a"]


def race(path: Path, instant: str) -> list[str]:
    racers = [child(path, instant, run) for run in ("a", "b")]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    return sorted(racer.communicate(timeout=600)[0].strip() for racer in racers)


@pytest.mark.property
def test_of_two_processes_one_has_the_room(shared: SharedLedger):
    assert race(shared.path, "race") == ["refused", "won"]
    assert len(reserved(shared.path)) == 1


@pytest.mark.property
def test_forgetting_the_other_runs_would_be_caught(shared: SharedLedger):
    """The test above has teeth."""
    assert race(shared.path, "forgetful") == ["won", "won"]


@pytest.mark.property
def test_pricing_before_the_lock_is_caught(shared: SharedLedger, monkeypatch: pytest.MonkeyPatch):
    """A planted bug: what was reserved is read before the lock is taken, and another run comes."""
    with module._exclusive_connection(shared.path) as connection:
        stale = module._read_contents(connection, shared.path)
    event = {"test": Geometric(epsilon=0.6)}
    shared.reserve("a", event, N)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_read_contents", lambda *_: stale)
        with pytest.raises(UsageError, match="append only"):
            shared.reserve("b", event, N)
    assert reserved(shared.path) == ["a"]


@pytest.mark.property
def test_threads_share_it(shared: SharedLedger):
    outcomes: list[str] = []

    def one(number: int) -> None:
        try:
            shared.reserve(f"run {number}", SMALL, N)
            outcomes.append("won")
        except BudgetError:
            outcomes.append("refused")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 6 + ["won"] * 2
    assert len(reserved(shared.path)) == 2


MENU: list[dict[str, Event]] = [
    SMALL,
    {"train": Gaussian(noise_multiplier=8.0)},
    {"train": Gaussian(noise_multiplier=4.0), "test": Geometric(epsilon=0.3)},
    {"test": Geometric(epsilon=0.05)},
    {"train": NoRelease()},
    {"train": Geometric(epsilon=3.0)},
]
STEPS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(range(len(MENU)))), max_size=9)


@pytest.mark.property
@settings(max_examples=25)
@given(steps=STEPS, total=st.sampled_from([0.3, 1.0, 2.5]))
def test_no_sequence_exceeds_the_total(steps: list[tuple[int, int]], total: float):
    with tempfile.TemporaryDirectory() as folder:
        shared = SharedLedger.open(Path(folder) / "a", Budget(total, DELTA))
        plans: dict[str, int] = {}
        for number, choice in steps:
            run = f"run {number}"
            before = reserved(shared.path)
            try:
                after = shared.reserve(run, MENU[choice], N)
            except BudgetError:
                assert reserved(shared.path) == before == list(plans)
                fits = priced(
                    [
                        *map(
                            module.make_worst_partition_event,
                            (MENU[c] for c in [*plans.values(), choice]),
                        )
                    ]
                )
                assert plans.get(run, choice) != choice or fits > total
            else:
                assert plans.setdefault(run, choice) == choice
                assert after.epsilon <= total
                assert after == shared.spent()
            assert reserved(shared.path) == list(plans)
        events = [module.make_worst_partition_event(MENU[choice]) for choice in plans.values()]
        assert priced(events) <= total
        # What is reserved is at least what a plan fixed in advance would cost.
        assert not events or price(Composition(events=tuple(events)), DELTA).epsilon <= total * 1.03


# --- the price ---


@pytest.mark.unit
def test_the_shares_of_delta_add_up_to_it():
    """Each order's share is read off the price of runs that have a bound at that order only."""
    event = Geometric(epsilon=1e-3)
    shares = [compute_failure_probability(number, DELTA) for number in range(1, 10_000)]
    shares.append(module.FIRST_RUN_SHARE * DELTA)
    for index, a in enumerate(RENYI_ORDERS):
        curve = np.full(len(RENYI_ORDERS) + 1, np.inf)
        curve[index] = 1.0
        excess = 2.0 - compute_adaptive_cost([(event, curve), (event, curve)], DELTA).epsilon
        shares.append(math.exp((a - 1) * excess) * (1 - 1 / a) ** (a - 1) / a)
    assert 0.99 * DELTA < sum(shares) <= DELTA * (1 + 1e-9)


@pytest.mark.unit
def test_the_largest_losses_add_up_without_a_share():
    curve = np.append(np.full(len(RENYI_ORDERS), np.inf), 0.7)
    run = (Geometric(epsilon=0.1), curve)
    assert compute_adaptive_cost([run, run], DELTA).epsilon == pytest.approx(1.4)


@pytest.mark.unit
def test_the_first_run_keeps_its_share_of_delta():
    first = Gaussian(noise_multiplier=3.0)
    nothing = np.zeros(len(RENYI_ORDERS) + 1)
    runs = [
        (first, compute_loss_curve(first, compute_failure_probability(1, DELTA)) * 0),
        (NoRelease(), nothing),
    ]
    assert compute_adaptive_cost(runs[:1], DELTA).epsilon == price(first, DELTA).epsilon
    assert compute_adaptive_cost(runs, DELTA).epsilon == price(first, DELTA / 8).epsilon


@pytest.mark.oracle
@pytest.mark.parametrize("sigma", [0.5, 2.0, 20.0])
def test_a_curve_bounds_the_exact_moments_of_a_gaussian(sigma: float):
    mu, d = 1 / sigma, 1e-7

    def cut(e: float) -> float:
        delta = norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)
        return max(0.0, (delta - d) / (1 - d))

    top = price(Gaussian(noise_multiplier=sigma), d).epsilon
    curve = compute_loss_curve(Gaussian(noise_multiplier=sigma), d)
    assert curve[-1] == price(Gaussian(noise_multiplier=sigma), d / 2).epsilon
    for a, found in zip(RENYI_ORDERS, curve[:-1], strict=True):
        if (a - 1) * top > 300:
            continue
        moment, _ = quad(
            lambda e, a=a: (math.exp((a - 1) * e) + math.exp(-a * e)) * cut(e),
            0, top, limit=200, epsabs=0,
        )  # fmt: skip
        exact = math.log1p(a * (a - 1) * moment) / (a - 1)
        assert exact <= found <= exact * 1.02 + 1e-6
    assert np.all(curve[:-1] <= RENYI_ORDERS / (2 * sigma**2) * 1.02 + 1e-6)


@pytest.mark.oracle
def test_a_curve_of_a_noisy_count_is_its_two_valued_law():
    for epsilon in [0.01, 0.3, 1.0, 5.0]:
        curve = compute_loss_curve(Geometric(epsilon=epsilon), 1e-9)[:-1]
        exact = rdp_curve(Geometric(epsilon=epsilon), RENYI_ORDERS)
        assert np.all(curve >= exact * (1 - 1e-4))
        assert np.all(curve <= exact * 1.02 + 1e-6)
        assert np.all(curve <= epsilon * (1 + 1e-6))


@pytest.mark.unit
def test_a_curve_without_a_bound_is_infinite():
    assert np.all(np.isinf(compute_loss_curve(Gaussian(noise_multiplier=1.0), 1e-16)))
    assert np.all(np.isinf(compute_loss_curve(Gaussian(noise_multiplier=0.01), 1e-6)))
    assert np.all(compute_loss_curve(Gaussian(noise_multiplier=1e9), 1e-6) == 0)


def gaussian_delta(mu: float, e: np.ndarray) -> np.ndarray:
    return norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu)


def count_delta(epsilon: float, e: np.ndarray) -> np.ndarray:
    p, q = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    return np.maximum(p - np.exp(e) * q, 0) + np.maximum(q - np.exp(e) * p, 0)


def largest(fits: Callable[[float], bool], low: float = 0.01, high: float = 4.0) -> float:
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def adaptive_delta(rule: Callable[[list[Event]], float], epsilon: float) -> float:
    """The exact delta at epsilon of a curator who looks at a first release, then picks the second.

    The second is the Gaussian or the noisy count, each the largest that the rule lets in.
    """
    first = Gaussian(noise_multiplier=6.0)
    mu = largest(lambda mu: rule([first, Gaussian(noise_multiplier=1 / mu)]) <= epsilon)
    count = largest(lambda size: rule([first, Geometric(epsilon=size)]) <= epsilon)
    y = np.linspace(-12, 12, 20_001)
    loss = y / 6 + 1 / 72
    second = np.maximum(gaussian_delta(mu, epsilon - loss), count_delta(count, epsilon - loss))
    return float(np.sum(norm.pdf(y) * second) * (y[1] - y[0]))


@pytest.mark.oracle
def test_a_curator_who_looks_first_stays_within_delta():
    assert adaptive_delta(priced, 1.5) <= DELTA


@pytest.mark.oracle
def test_the_price_of_a_fixed_plan_would_be_no_bound_for_such_a_curator():
    """Why runs are not priced as a composition by loss distributions."""
    assert (
        adaptive_delta(lambda events: price(Composition(events=tuple(events)), DELTA).epsilon, 1.5)
        > 1.5 * DELTA
    )


@pytest.mark.oracle
def test_the_price_is_above_the_exact_one_of_gaussians():
    for count in [2, 5, 20]:
        found = priced([Gaussian(noise_multiplier=8.0)] * count)
        mu = math.sqrt(count) / 8
        assert gaussian_delta(mu, np.array(found)) <= DELTA
        exact = largest(lambda e, mu=mu: bool(gaussian_delta(mu, np.array(e)) > DELTA))
        assert exact < found < 1.45 * exact


@pytest.mark.contract
@pytest.mark.parametrize(("total", "before"), [(2.3, (1.0, 1.0)), (5.0, (1.0, 2.0)), (1.2, (0.5,))])
def test_a_run_that_trains_and_scores_fits_where_that_is_said(
    total: float, before: tuple[float, ...], tmp_path: Path
):
    def events(epsilon: float) -> dict[str, Event]:
        sigma = calibrate_min(lambda value: Gaussian(value), Budget(epsilon, 1e-4), 0.1, 1e3)
        return {"training": Gaussian(sigma), "test": Geometric(epsilon=epsilon)}

    shared = SharedLedger.open(tmp_path / "all", Budget(total, 1e-4))
    for place, epsilon in enumerate(before):
        shared.reserve(f"run {place}", events(epsilon), 3000)
    with pytest.raises(BudgetError, match=r"about epsilon [0-9.]+ would still fit") as refused:
        shared.reserve("too much", events(50.0), 3000)
    told = float(str(refused.value).partition("about epsilon ")[2].split()[0])
    for share, fits in ((1.0, True), (1.25, False)):
        found = SharedLedger.forecast(shared.path, None, events(share * told), 3000)
        assert found.fits is fits


OF_0_1 = Path(__file__).parent / "fixtures" / "ledger-0.1.0.sqlite"
"""A shared ledger of version 0.1.0 with a total of (12, 1e-5); made by `make_ledger.py`."""

SPENT_AT_0_1 = [0.1999818125270783, 0.4308170003179294, 0.528204695316861, 1.3846851085976641,
                1.5673978735220815]  # fmt: skip
"""Total epsilon after each run, as version 0.1.0 printed it."""


class TestALedgerOf01:
    @pytest.fixture
    def old(self, tmp_path: Path) -> SharedLedger:
        shutil.copy(OF_0_1, tmp_path / "old.ledger")
        return SharedLedger.open(tmp_path / "old.ledger")

    @pytest.mark.contract
    def test_it_is_read_and_its_spent_total_is_not_smaller(self, old: SharedLedger):
        assert old.total() == Budget(12.0, DELTA)
        assert old.spent().epsilon >= SPENT_AT_0_1[-1] * (1 - 1e-12)
        names, days, _ = zip(*old.runs(), strict=True)
        assert names == ("poisson", "truncated", "selected", "sums", "worst")
        assert set(days) == {"2026-11-27"}

    @pytest.mark.contract
    def test_a_run_of_it_is_resumed_for_nothing_under_its_own_plan_alone(self, old: SharedLedger):
        sums = {
            "train": Composition((Gaussian(5.0), DiscreteGaussian(sigma=40.0, sensitivity=4.0)))
        }
        before = old.spent()
        assert old.reserve("sums", sums, N) == before
        with pytest.raises(BudgetError, match="another plan"):
            old.reserve("sums", {"train": Gaussian(50.0)}, N)
        assert old.spent() == before

    @pytest.mark.contract
    def test_a_new_run_is_charged_in_addition(self, old: SharedLedger):
        with sqlite3.connect(OF_0_1.as_uri() + "?mode=ro", uri=True) as connection:
            rows = connection.execute("SELECT * FROM runs ORDER BY number").fetchall()
        after = old.reserve("new", {"train": Geometric(epsilon=0.4)}, N)
        assert after.epsilon > SPENT_AT_0_1[-1] + 0.1
        assert SharedLedger.open(old.path).spent() == after
        with sqlite3.connect(old.path) as connection:
            kept = connection.execute("SELECT * FROM runs ORDER BY number").fetchall()
        assert kept[:-1] == rows
        with pytest.raises(BudgetError, match="does not fit"):
            old.reserve("too much", {"train": Geometric(epsilon=12.0)}, N)
        assert old.spent() == after
