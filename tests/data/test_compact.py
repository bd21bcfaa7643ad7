"""Compact records: the same numbers as one tensor, block by block, in memory that tells nothing."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pasearch.data import rows as kept_rows
from pasearch.data.column import Column
from pasearch.data.csv_file import read_table
from pasearch.data.partitions import Dataset, Records, UnchargedReadError
from pasearch.data.rows import CompactRows, pack_table
from pasearch.data.split import make_split
from pasearch.data.tables import TableSchema
from pasearch.runs.ledger import Receipt

WORDS = ("free", "offer", "win", "now", "money", "call", "best", "click", "here")
COLUMNS = (
    Column(name="age", low=20, high=60, bins=(30.0, 40.0)),
    Column(name="pay", low=0, high=1, bins=0),
    Column(name="id", kind="ignore"),
    Column(name="town", categories=tuple(f"t{i}" for i in range(300))),
    Column(name="work", categories=("a", "b", "c")),
    Column(name="edge", categories=tuple(f"e{i}" for i in range(253))),
    Column(name="next", categories=tuple(f"e{i}" for i in range(254))),
    Column(name="note", vocabulary=WORDS),
    Column(name="half", low=-1.0, high=1.0),
)
SCHEMA = TableSchema(columns=COLUMNS, target=Column(name="y", categories=("no", "yes")))
N = 900


def rows(n: int = N, seed: int = 0) -> list[list[str] | None]:
    """Lines of every kind of cell; some are missing, junk, or null records."""
    rng = np.random.default_rng(seed)
    made: list[list[str] | None] = []
    for i in range(n):
        row = [
            f"{rng.uniform(10, 70):.2f}", f"{rng.normal():.5f}", str(i), f"t{rng.integers(310)}",
            str(rng.choice(["a", "b", "c", "d"])), f"e{rng.integers(254)}", f"e{rng.integers(255)}",
            " ".join(rng.choice([*WORDS, "other"], 3)), f"{rng.uniform(-1, 1):.8f}",
            str(rng.choice(["no", "yes"])),
        ]  # fmt: skip
        for place in np.flatnonzero(rng.random(10) < 0.05):
            row[place] = str(rng.choice(["", "?", "junk", "1e999", "nan"]))
        made.append(None if i % 97 == 5 else row)
    return made


def objects(made: list[list[str] | None]) -> np.ndarray:
    cells = np.empty((len(made), 10), object)
    for place, row in enumerate(made):
        cells[place] = [None] * 10 if row is None else row
    return cells


def of_objects(n: int = N, **more: Any) -> Dataset:
    cells = objects(rows(n))
    return Dataset(
        name="people", schema=SCHEMA, features=cells[:, :-1], labels=cells[:, -1], **more
    )


def of_file(folder: Path) -> Dataset:
    header = ",".join([*(each.name for each in COLUMNS), "y"])
    lines = ["one" if row is None else ",".join(row) for row in rows()]
    path = folder / "people.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    schema, features, labels = read_table(path, schema=SCHEMA)
    return Dataset(name="people", schema=schema, features=features, labels=labels)


def parted(dataset: Dataset) -> Dataset:
    dataset.partition(make_split(dataset.n, scored=False), np.random.default_rng(3))
    return dataset


def opened(dataset: Dataset, name: str = "train") -> Records:
    found = dataset[name].open(Receipt(name))
    assert isinstance(found.x, CompactRows)
    return found


def dense(dataset: Dataset, name: str = "train") -> Records:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_rows, "MAX_TENSOR_NUMBERS", 2**27)
        return dataset[name].open(Receipt(name))


@pytest.fixture(autouse=True)
def all_are_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_rows, "MAX_TENSOR_NUMBERS", 0)


@pytest.fixture(params=["as they are", "small"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, and what is written at a time, of usual and of small sizes."""
    if request.param == "small":
        monkeypatch.setattr(kept_rows, "BLOCK_NUMBERS", 70 * SCHEMA.shape[0])
        monkeypatch.setattr("pasearch.data.rows.CACHED_NUMBERS", 8 * SCHEMA.shape[0])


class TestNumbers:
    @pytest.mark.oracle
    @pytest.mark.usefixtures("sizes")
    @pytest.mark.parametrize("kept", ["objects", "file"])
    @pytest.mark.parametrize("name", ["train", "test"])
    def test_are_those_of_one_tensor_bit_for_bit(self, kept: str, name: str, tmp_path: Path):
        dataset = parted(of_objects() if kept == "objects" else of_file(tmp_path))
        whole, found = dense(dataset, name), opened(dataset, name)
        parts = list(found.parts())
        x = torch.cat([part.x for part in parts])
        assert x.numpy().tobytes() == whole.x.numpy().tobytes()
        assert found.x[:].numpy().tobytes() == whole.x.numpy().tobytes()
        for field in ("y", "valid"):
            want = getattr(whole, field)
            assert torch.equal(getattr(found, field), want)
            assert torch.equal(torch.cat([getattr(part, field) for part in parts]), want)
        assert found.x.shape == tuple(whole.x.shape)
        assert len(found) == len(found.x) == sum(map(len, parts)) == len(whole)
        assert {len(part) for part in parts[:-1]} <= {found.x.block}
        # There is something to see: nulls, several parts, cells of every kind.
        assert 0 < int((~found.valid).sum()) < len(found) / 2
        assert bool((x.sum(dim=0) > 0).float().mean() > 0.25)

    @pytest.mark.property
    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_of_any_places_and_features_are_the_tensors(self, data: st.DataObject):
        found, whole = TABLE
        d = whole.shape[1]
        features = np.array(sorted(data.draw(st.sets(st.integers(0, d - 1), min_size=1))))
        start = data.draw(st.integers(0, len(whole)))
        stop = data.draw(st.integers(0, len(whole) + 50))
        places = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=30)), int)
        some = found.select_features(features)
        assert some.shape == (len(whole), len(features))
        for where in (slice(start, stop), places, np.arange(start, max(start, len(whole) - 1))):
            want = whole[where][:, features]
            assert some[where].numpy().tobytes() == want.tobytes()

    @pytest.mark.unit
    def test_of_a_null_record_are_0_whatever_its_cells_hold(self):
        cells = objects(rows())
        cells[:, -1] = "no class"
        dataset = parted(
            Dataset(name="p", schema=SCHEMA, features=cells[:, :-1], labels=cells[:, -1])
        )
        found = opened(dataset)
        assert not bool(found.valid.any())
        assert not bool(found.x[:].any())
        assert not bool(found.y.any())

    @pytest.mark.unit
    def test_to_predict_may_be_numbers(self):
        cells, pay = objects(rows()), Column(name="y", low=0, high=1)
        schema = TableSchema(columns=COLUMNS, target=pay)
        given_ = Dataset(name="p", schema=schema, features=cells[:, :-1], labels=cells[:, 1])
        whole, found = dense(parted(given_)), opened(given_)
        assert found.y.dtype == torch.float32
        assert torch.equal(found.y, whole.y)
        assert torch.equal(found.x[:], whole.x)


def table() -> tuple[CompactRows, np.ndarray]:
    """Return records, compact and as one array."""
    cells = objects(rows(200, seed=1))[:, :-1]
    whole = np.zeros((len(cells), *SCHEMA.shape), np.float32)
    whole[~SCHEMA.encode(cells, out=whole)] = 0.0
    kept = pack_table(SCHEMA, cells.__getitem__, np.ones(len(cells), bool))
    return CompactRows.of(SCHEMA, kept), whole


TABLE = table()


class TestMemory:
    @pytest.mark.unit
    def test_is_a_bit_a_feature_and_4_bytes_a_number_whatever_the_cells_hold(self):
        def kept(made: list[list[str] | None]) -> tuple[Any, ...]:
            cells = objects(made)
            dataset = Dataset(name="p", schema=SCHEMA, features=cells[:, :-1], labels=cells[:, -1])
            own = opened(parted(dataset)).x.kept
            return own["bits"].shape, own["numbers"].shape, own.dtype.itemsize

        bits = -(-SCHEMA.shape[0] // 8)
        assert kept(rows()) == ((810, bits), (810, 3), bits + 3 * 4)
        assert kept([None] * N) == kept(rows())

    @pytest.mark.unit
    def test_of_reading_and_going_through_is_far_below_the_tensors(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(kept_rows, "BLOCK_NUMBERS", 2**16)
        columns = tuple(Column(name=f"c{i}", categories=("a", "b", "c")) for i in range(20))
        schema = TableSchema(columns=columns, target=SCHEMA.target)
        cells = np.random.default_rng(0).choice(np.array(["a", "b", "x"], object), (20_000, 20))
        labels = np.full(20_000, "no", object)
        dataset = parted(Dataset(name="p", schema=schema, features=cells, labels=labels))
        tracemalloc.start()
        for _ in opened(dataset).parts():
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 18_000 * schema.shape[0] * 4 / 2

    @pytest.mark.unit
    def test_is_a_tensors_where_slots_and_width_are_few(self, monkeypatch: pytest.MonkeyPatch):
        dataset = parted(of_objects())
        numbers = len(dataset["train"]) * SCHEMA.shape[0]
        monkeypatch.setattr(kept_rows, "MAX_TENSOR_NUMBERS", numbers)
        found = dataset["train"].open(Receipt("train"))
        assert isinstance(found.x, torch.Tensor)
        assert list(found.parts()) == [found]
        monkeypatch.setattr(kept_rows, "MAX_TENSOR_NUMBERS", numbers - 1)
        assert isinstance(dataset["train"].open(Receipt("train")).x, CompactRows)
        assert isinstance(dataset["test"].open(Receipt("test")).x, torch.Tensor)


class TestDoor:
    @pytest.mark.contract
    @pytest.mark.parametrize("name", ["test", "search", ""])
    def test_opens_under_a_charge_of_its_own_only(self, name: str):
        dataset = parted(of_objects())
        with pytest.raises(UnchargedReadError):
            dataset["train"].open(Receipt(name))
        closed = Receipt("train")
        closed.active = False
        with pytest.raises(UnchargedReadError):
            dataset["train"].open(closed)

    @pytest.mark.contract
    def test_opens_again_only_under_a_charge(self):
        """What was made of the records is kept for the next charge, behind the same door."""
        dataset = parted(of_objects())
        first = opened(dataset)
        assert opened(dataset) is first
        with pytest.raises(UnchargedReadError):
            dataset["train"].open(Receipt("test"))
        with pytest.raises(UnchargedReadError):
            dataset["train"].public_records()

    @pytest.mark.unit
    def test_what_is_kept_is_forgotten_with_the_partitions_and_with_the_schema(self):
        dataset = parted(of_objects())
        first = opened(dataset)
        dataset.partition(make_split(N, scored=False), np.random.default_rng(4))
        second = opened(dataset)
        assert not torch.equal(second.x[:], first.x[:])
        wider = Column(name="age", low=0, high=100, bins=(30.0, 40.0))
        dataset.adopt_schema(SCHEMA.completed({"age": wider}))
        assert not torch.equal(opened(dataset).x[:], second.x[:])

    @pytest.mark.contract
    def test_shows_no_value(self):
        dataset = parted(of_objects())
        part, found = dataset["train"], opened(dataset)
        assert repr(part) == "Partition('train', 810 records)"
        assert repr(found) == "Records(public=False)"
        assert repr(found.x) == "CompactRows((810, 847))"
        assert len(part) == 810
