"""The ledger: charged first, once, durably, within the plan, whatever crashes."""

from __future__ import annotations

import copy
import os
import pickle
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pasearch.accounting.events import Gaussian, Geometric, PoissonGaussian, SelfComposition
from pasearch.errors import BudgetError, PasearchError, UsageError
from pasearch.runs import ledger as module
from pasearch.runs.ledger import Ledger, PlannedRelease, Receipt

ROOT = Path(__file__).resolve().parents[2]
STEP = SelfComposition(
    event=PoissonGaussian(sampling_probability=0.01, noise_multiplier=1.5), count=100
)
SCORE = Geometric(epsilon=0.1)
LINES = (
    PlannedRelease(name="training", partition="train", event=STEP, count=2),
    PlannedRelease(name="score", partition="validation", event=SCORE, count=3),
    PlannedRelease(name="pca", partition="train", event=Gaussian(noise_multiplier=9.0), count=1),
    PlannedRelease(name="pca", partition="search", event=Gaussian(noise_multiplier=9.0), count=1),
)


class Partition:
    """A partition that opens like the real one, and counts how often it did."""

    def __init__(self, name: str):
        self.name = name
        self.receipts: list[Receipt] = []

    def open(self, receipt: Receipt) -> str:
        assert receipt.active is True
        assert receipt.partition == self.name
        self.receipts.append(receipt)
        return f"records of {self.name}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.create(path, LINES) as made:
        yield made


def keys_charged(path: Path) -> set[str]:
    """Read the file as it lies there, without the ledger's code."""
    with sqlite3.connect(path) as connection:
        found = {key for (key,) in connection.execute("SELECT key FROM charges")}
    connection.close()
    return found


@pytest.mark.unit
def test_a_charge_opens_its_partition_for_the_block(ledger: Ledger):
    train = Partition("train")
    with ledger.charged("training", train, key="trial 0") as records:
        assert records == "records of train"
        assert [receipt.active for receipt in train.receipts] == [True]
    assert [receipt.active for receipt in train.receipts] == [False]
    assert ledger.spent() == [("training", "train", STEP, 1)]


@pytest.mark.unit
def test_the_charge_is_committed_and_synced_before_anything_opens(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    order = []
    connection = ledger._connection
    connection.set_trace_callback(order.append)
    monkeypatch.setattr(module, "sync_folder", lambda path: order.append(f"sync {path.name}"))
    train = Partition("train")
    train.open = lambda receipt: order.append("open")  # type: ignore[method-assign]
    with ledger.charged("training", train, key="trial 0"):
        order.append("inside")
    inserted = next(i for i, entry in enumerate(order) if entry.startswith("INSERT"))
    assert order[0] == "BEGIN EXCLUSIVE"
    assert order[inserted + 1 :][-4:] == [
        "COMMIT",
        f"sync {ledger._path.parent.name}",
        "open",
        "inside",
    ]
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA locking_mode").fetchone() == ("exclusive",)


@pytest.mark.unit
def test_several_keys_are_as_many_releases_all_or_none(ledger: Ledger, path: Path):
    late = Partition("validation")
    with ledger.charged("score", late, key=["trial 0", "trial 1"]):
        assert len(late.receipts) == 1
    with (
        pytest.raises(BudgetError, match="all are charged"),
        ledger.charged("score", late, key=["trial 2", "trial 3"]),
    ):
        pytest.fail("opened")
    assert ledger.spent() == [("score", "validation", SCORE, 2)]
    with ledger.charged("score", late, key=("trial 1", "trial 2")):
        pass
    ledger.close()
    assert keys_charged(path) == {"trial 0", "trial 1", "trial 2"}


@pytest.mark.unit
def test_a_release_beyond_the_plan_is_refused_unopened(ledger: Ledger, path: Path):
    for number in range(3):
        with ledger.charged("score", Partition("validation"), key=f"trial {number}"):
            pass
    late = Partition("validation")
    with (
        pytest.raises(BudgetError, match="all are charged"),
        ledger.charged("score", late, key="trial 3"),
    ):
        pytest.fail("opened")
    assert not late.receipts
    with ledger.charged("score", late, key="trial 1"):
        assert len(late.receipts) == 1
    assert ledger.spent() == [("score", "validation", SCORE, 3)]
    ledger.close()
    assert keys_charged(path) == {"trial 0", "trial 1", "trial 2"}


@pytest.mark.unit
def test_a_partition_outside_the_line_is_refused(ledger: Ledger):
    for line, names in [
        ("training", ["validation"]),
        ("score", ["train"]),
        ("pca", ["train", "validation"]),
        ("pca", ["test"]),
        ("unknown", ["train"]),
    ]:
        partitions = [Partition(name) for name in names]
        with (
            pytest.raises(BudgetError, match="The plan has no line"),
            ledger.charged(line, *partitions, key="k"),
        ):
            pytest.fail("opened")
        assert not any(partition.receipts for partition in partitions)
        assert ledger.spent() == []


@pytest.mark.unit
def test_all_partitions_are_charged_or_none(ledger: Ledger):
    with ledger.charged("pca", Partition("search"), key="one"):
        pass
    with (
        pytest.raises(BudgetError, match="all are charged"),
        ledger.charged("pca", Partition("train"), Partition("search"), key="two"),
    ):
        pytest.fail("opened")
    assert [(line, name) for line, name, *_ in ledger.spent()] == [("pca", "search")]


@pytest.mark.unit
def test_a_key_cannot_change_its_partitions(ledger: Ledger):
    with ledger.charged("pca", Partition("search"), key="pca"):
        pass
    for names in (["train"], ["train", "search"]):
        with (
            pytest.raises(BudgetError, match="another input"),
            ledger.charged("pca", *map(Partition, names), key="pca"),
        ):
            pytest.fail("opened")


@pytest.mark.unit
def test_empty_charges_are_refused(ledger: Ledger):
    train = Partition("train")
    for partitions, key in (
        ([], "k"), ([train], ""), ([train, train], "k"), ([train], None), ([train], []),
        ([train], ["k", "k"]), ([train], ["k", ""]),
    ):  # fmt: skip
        with (
            pytest.raises(UsageError, match="distinct keys and partitions"),
            ledger.charged(
                "training",
                *partitions,
                key=key,  # type: ignore[arg-type]
            ),
        ):
            pytest.fail("opened")
    assert not train.receipts


@pytest.mark.unit
def test_an_error_inside_keeps_the_charge_and_closes_the_receipt(ledger: Ledger):
    train = Partition("train")
    with pytest.raises(KeyboardInterrupt), ledger.charged("training", train, key="trial 0"):
        raise KeyboardInterrupt
    assert not train.receipts[0].active
    assert ledger.spent() == [("training", "train", STEP, 1)]


@pytest.mark.unit
def test_an_error_while_opening_keeps_the_charge(ledger: Ledger):
    train, search = Partition("train"), Partition("search")
    search.open = lambda receipt: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError), ledger.charged("pca", train, search, key="pca"):
        pytest.fail("opened")
    assert not train.receipts[0].active
    assert len(ledger.spent()) == 2


@pytest.mark.unit
def test_a_failed_commit_opens_nothing(path: Path):
    """A full disk, for instance: the file may not grow."""
    lines = [PlannedRelease(name="score", partition="validation", event=SCORE, count=10**6)]
    with Ledger.create(path, lines) as ledger:
        pages = ledger._connection.execute("PRAGMA page_count").fetchone()[0]
        ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
        validation = Partition("validation")

        def fill() -> None:
            for number in range(10_000):
                with ledger.charged("score", validation, key=f"{number} {'x' * 100}"):
                    pass

        with pytest.raises(PasearchError, match=r"full.*nothing was read"):
            fill()
        assert ledger.spent()[0][3] == len(validation.receipts)


@pytest.mark.unit
def test_it_opens_again_as_it_was(ledger: Ledger, path: Path):
    with ledger.charged("training", Partition("train"), key="trial 0"):
        pass
    before = ledger.spent()
    ledger.close()
    with Ledger.open(path) as again:
        assert again.lines == LINES
        assert again.spent() == before
        with again.charged("training", Partition("train"), key="trial 0"):
            pass
        assert again.spent() == before


@pytest.mark.unit
def test_the_database_itself_refuses(ledger: Ledger, path: Path):
    with ledger.charged("pca", Partition("search"), key="pca"):
        pass
    before = ledger.spent()
    ledger.close()
    for statement in (
        "UPDATE charges SET key = 'other'",
        "DELETE FROM charges",
        "UPDATE lines SET count = 100",
        "DELETE FROM lines",
        "INSERT INTO lines VALUES ('x', 'train', '{}', 5)",
        "INSERT INTO charges VALUES ('pca', 'search', 'second')",
        "INSERT OR REPLACE INTO charges VALUES ('pca', 'search', 'pca')",
        "INSERT INTO charges VALUES ('unknown', 'search', 'x')",
    ):
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA foreign_keys = ON")
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(statement)
        connection.close()
    with Ledger.open(path) as again:
        assert again.spent() == before
        assert again.lines == LINES


@pytest.mark.unit
def test_it_is_never_copied(ledger: Ledger):
    from sklearn.base import clone

    for action in (
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        lambda value: clone(value, safe=False),
        lambda value: copy.deepcopy({"ledger": value}),
    ):
        with pytest.raises(TypeError, match="cannot be copied"):
            action(ledger)


@pytest.mark.unit
def test_a_second_writer_is_refused(ledger: Ledger, path: Path):
    with pytest.raises(UsageError, match="in use by another process"):
        Ledger.open(path)
    code = f"from pasearch.runs.ledger import Ledger; Ledger.open({str(path)!r})"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "UsageError" in result.stderr
    assert "in use by another process" in result.stderr
    ledger.close()
    Ledger.open(path).close()


@pytest.mark.unit
def test_a_worker_cannot_spend(ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "getpid", lambda: ledger._owner + 1)
    train = Partition("train")
    with pytest.raises(RuntimeError, match="worker"), ledger.charged("training", train, key="x"):
        pytest.fail("opened")
    assert not train.receipts


@pytest.mark.unit
def test_the_file_is_the_owners(ledger: Ledger, path: Path):
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.unit
def test_a_plan_needs_distinct_lines(path: Path):
    for lines in [(), (LINES[0], LINES[0])]:
        with pytest.raises(UsageError, match="needs items"):
            Ledger.create(path, lines)
        assert not path.exists()


CHILD = """
import os, sys
from pathlib import Path
from pasearch.runs import ledger as module
from pasearch.runs.ledger import Ledger

path, instant = Path(sys.argv[1]), sys.argv[2]
opened = open(path.with_name("opened"), "a", buffering=1)

class Partition:
    name = "train"
    def open(self, receipt):
        opened.write(self.key + "\\n")
        if instant == "reading": os._exit(9)

ledger, partition, sync = Ledger.open(path), Partition(), module.sync_folder
if instant == "backwards":  # the planted bug: read first, then charge
    charge = Ledger._charge
    def late(self, line, names, key):
        partition.open(None)
        charge(self, line, names, key)
    Ledger._charge = late
if instant == "before commit":
    charge_one = Ledger._charge_one
    Ledger._charge_one = lambda *arguments: (charge_one(*arguments), os._exit(9))
if instant == "after commit":
    module.sync_folder = lambda path: os._exit(9)
print("ready", flush=True)
for number in range(100_000):
    partition.key = f"{instant} {number}"
    with ledger.charged("training", partition, key=partition.key):
        if instant == "inside": os._exit(9)
"""


def child(path: Path, instant: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), instant],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def uncharged(path: Path) -> set[str]:
    """Return the releases that were opened and that the ledger does not show."""
    opened = path.with_name("opened")
    lines = set(opened.read_text().split("\n")[:-1]) if opened.exists() else set()
    with Ledger.open(path) as ledger:
        spent = sum(count for *_, count in ledger.spent())
    charged = keys_charged(path)
    assert spent == len(charged)
    return lines - charged


@pytest.fixture
def long_ledger(path: Path) -> Path:
    lines = [PlannedRelease(name="training", partition="train", event=STEP, count=10**6)]
    Ledger.create(path, lines).close()
    return path


@pytest.mark.property
@pytest.mark.parametrize(
    ("instant", "charged"),
    [("before commit", 0), ("after commit", 1), ("reading", 1), ("inside", 1)],
)
def test_a_crash_never_shows_less_than_was_opened(long_ledger: Path, instant: str, charged: int):
    with child(long_ledger, instant) as process:
        assert process.wait(30) == 9
    assert uncharged(long_ledger) == set()
    assert len(keys_charged(long_ledger)) == charged


@pytest.mark.property
def test_a_kill_at_any_instant_never_shows_less_than_was_opened(long_ledger: Path):
    generator = random.Random(5)
    for attempt in range(4):
        with child(long_ledger, f"kill {attempt}") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(generator.uniform(0.02, 0.2))
            process.send_signal(signal.SIGKILL)
        assert uncharged(long_ledger) == set()
    assert len(keys_charged(long_ledger)) > 0


@pytest.mark.property
def test_reading_before_charging_would_be_caught(long_ledger: Path):
    """The two tests above have teeth: a ledger that charges late fails them."""
    found = set()
    for delay in (0.0, 0.013, 0.031, 0.05, 0.071, 0.1):
        with child(long_ledger, "backwards") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        found |= uncharged(long_ledger)
    assert found


RACER = """
import sys, time
from pasearch.errors import BudgetError, UsageError
from pasearch.runs.ledger import Ledger

class Partition:
    name = "train"
    def open(self, receipt): print("won", flush=True)

while True:
    try:
        ledger = Ledger.open(sys.argv[1])
        break
    except UsageError:
        time.sleep(0.001)
try:
    with ledger.charged("training", Partition(), key=sys.argv[2]): pass
except BudgetError:
    print("refused", flush=True)
"""


@pytest.mark.property
def test_of_two_processes_one_has_the_last_unit(path: Path):
    Ledger.create(
        path, [PlannedRelease(name="training", partition="train", event=STEP, count=1)]
    ).close()
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(path), name],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    assert sorted(racer.communicate(timeout=600)[0] for racer in racers) == ["refused\n", "won\n"]
    assert len(keys_charged(path)) == 1
