"""Records on disk are those of memory, to the bit; what they take is bounded, private and gone."""

from __future__ import annotations

import gc
import stat
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pasearch import Budget, search_architecture, select_features
from pasearch.data import disk
from pasearch.data.array_file import from_arrays
from pasearch.data.disk import compute_record_bytes, write_in_order
from pasearch.data.front_ends import FittedFrontEnd, prepare_front_end
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.data.partitions import Dataset, Records, UnchargedReadError
from pasearch.data.rows import CompactRows, ComputedRows, Rows
from pasearch.data.sources import load_dataset
from pasearch.data.split import Split
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Receipt
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import train

N = 700
COLUMNS = {
    "age": {"low": 20, "high": 60, "bins": [30, 40]},
    "pay": {"low": 0, "high": 1, "bins": 0},
    "town": {"categories": [f"t{i}" for i in range(300)]},
    "work": {"categories": ["a", "b", "c"]},
    "note": {"vocabulary": ["free", "win", "now"]},
    "since": {"lower": "2020-01-01", "upper": "2021-12-31"},
    "id": {"kind": "ignore"},
}
SCHEMA = {"target": "y", "columns": {**COLUMNS, "y": {"categories": ["no", "yes"]}}}
SPLIT = Split(search=40, train=400, validation=100, test=160)
PAIRS, PCA = "centred_pairs:8", "pca:5"


def frame(seed: int = 0) -> pd.DataFrame:
    """Rows of every kind of cell; some are missing, junk, or of no declared class."""
    draw = np.random.default_rng(seed)
    some = draw.random(N) < 0.1
    return pd.DataFrame(
        {
            "age": np.where(some, np.nan, draw.uniform(10, 70, N)),
            "pay": draw.normal(size=N).astype("float32"),
            "town": [f"t{i}" for i in draw.integers(0, 310, N)],
            "work": draw.choice(["a", "b", "c", "?", "", "junk", None], N),
            "note": draw.choice(["win now", "free", "nothing", None], N),
            "since": pd.Timestamp("2019-12-01") + pd.to_timedelta(draw.integers(0, 800, N), "D"),
            "id": np.arange(N),
            "y": draw.choice(["no", "yes", "yes", "perhaps"], N),
        }
    )


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, buckets and steps so small that there are several of each."""
    monkeypatch.setattr("pasearch.data.parquet_files.BLOCK_ROWS", 90)
    monkeypatch.setattr(disk, "BUCKET_BYTES", 6_000)
    monkeypatch.setattr("pasearch.data.arrays.BLOCK_BYTES", 999)
    monkeypatch.setattr("pasearch.data.disk.BLOCK_BYTES", 999)
    monkeypatch.setattr("pasearch.data.disk.MIN_DISK_NUMBERS", 1)
    monkeypatch.setattr("pasearch.data.rows.CACHED_NUMBERS", 9_000)
    monkeypatch.setattr("pasearch.data.mapping.PIECE_SIZES", (32, 32))
    monkeypatch.setattr("pasearch.data.mapping.PIECES_PER_CALL", 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    frame().to_parquet(tmp_path / "people.parquet", row_group_size=250)
    return tmp_path / "people.parquet"


def loaded(path: Path, monkeypatch: pytest.MonkeyPatch, *, large: bool, **said: Any) -> Dataset:
    monkeypatch.setattr("pasearch.data.parquet_file.MAX_EAGER_CELLS", 0 if large else 2**40)
    return load_dataset(str(path), **{"schema": SCHEMA, **said})


def parted(made: Dataset, split: Split = SPLIT) -> Dataset:
    made.partition(split, np.random.default_rng(3))
    return made


@pytest.fixture
def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Dataset, Dataset]:
    """The same table in memory, and on disk."""
    here, there = (parted(loaded(path, monkeypatch, large=each)) for each in (False, True))
    return here, there


def read(made: Dataset, name: str = "train", front: FittedFrontEnd | None = None) -> Records:
    return made[name].with_front_end(front).open(Receipt(name))


def assert_equal(here: Records, there: Records) -> None:
    assert isinstance(there.x, Rows)
    assert not isinstance(here.x, Rows)
    assert there.x.shape == here.x.shape
    assert there.x[:].numpy().tobytes() == here.x.numpy().tobytes()
    for name in ("y", "valid"):
        assert torch.equal(getattr(here, name), getattr(there, name))
    rising = torch.from_numpy(np.sort(np.random.default_rng(0).permutation(len(here))[:90]))
    for places in (rising, rising.flip(0), rising[:0], torch.arange(5, min(60, len(here)))):
        own = here.x.index_select(0, places)
        assert torch.equal(there.x.index_select(0, places), own)
    assert torch.equal(there.x[7:300], here.x[7:300])


class TestTable:
    @pytest.mark.oracle
    @pytest.mark.parametrize("name", ["search", "train", "validation", "test"])
    def test_records_are_those_of_memory_bit_for_bit(self, both: Any, name: str):
        here, there = (read(made, name) for made in both)
        assert_equal(here, there)
        assert 0 < there.valid.sum() < len(there)
        assert not there.x[:][~there.valid].any()

    @pytest.mark.oracle
    @pytest.mark.parametrize("text", ["standardise", "centred", PAIRS, PCA, "raw"])
    def test_so_are_those_behind_a_front_end(self, both: Any, text: str):
        own, fits = parse_front_end(text), []
        for made in both:
            records = read(made)
            stream, form = Keys.from_seed(0).stream("fit"), made.schema.row_layout
            fits.append(
                own.fit(records.x, records.valid, 1.0, stream, form)
                if own.fitted
                else prepare_front_end(own, made.schema.shape)
            )
        assert fits[0].digest == fits[1].digest
        here, there = (read(made, "test", fits[0]) for made in both)
        assert_equal(here, there)

    @pytest.mark.oracle
    @pytest.mark.parametrize("batch", [40, 400])
    def test_so_is_what_is_trained_on_them(self, both: Any, batch: int):
        recipe = Recipe(expected_batch_size=batch, steps=4, noise_multiplier=1.0, learning_rate=0.1)
        weights = []
        for made in both:
            records, keys = read(made), Keys.from_seed(1)
            network = torch.nn.Linear(records.x.shape[1], 2)
            for each in network.parameters():
                torch.nn.init.zeros_(each)
            streams = {name: keys.stream(name) for name in ("batch", "noise", "dropout")}
            train(network, records, recipe, streams)
            weights.append(network.weight.detach().numpy().tobytes())
        assert weights[0] == weights[1]
        assert any(weights[0])

    @pytest.mark.oracle
    def test_a_selection_sees_the_same_parts(self, both: Any, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("pasearch.data.rows.MAX_TENSOR_NUMBERS", 0)
        here, there = (made["train"].open(Receipt("train")) for made in both)
        assert isinstance(here.x, CompactRows)
        assert isinstance(there.x, CompactRows)
        assert torch.equal(here.x[:], there.x[:])
        some = np.array([0, 3, 4, 9, 200, 309])
        places = np.arange(0, 400, 7)
        assert torch.equal(here.x[:][:, some], there.x.select_features(some)[:])
        assert torch.equal(
            here.x.select_features(some)[places], there.x.select_features(some)[places]
        )

    @pytest.mark.oracle
    def test_what_is_estimated_is_read_a_column_at_a_time(self, path: Path, monkeypatch: Any):
        found = []
        for large in (False, True):
            made = parted(loaded(path, monkeypatch, large=large, schema=None, target="y"))
            features, labels = made["validation"].cells().open(Receipt("validation"))
            cells = [made.schema.find(c.name, features, labels)[1] for c in made.schema.columns]
            found.append([each.tolist() for each in (*cells, labels)])
        assert found[0] == found[1]

    @pytest.mark.unit
    def test_all_records_of_public_data_come_in_their_order(self, path: Path, monkeypatch: Any):
        here, there = (
            parted(loaded(path, monkeypatch, large=each, public=True)) for each in (False, True)
        )
        assert_equal(here.all_records(None), there.all_records(None))
        assert_equal(here["test"].public_records(), there["test"].public_records())

    @pytest.mark.oracle
    def test_a_folder_of_files_is_one_table(self, path: Path, monkeypatch: pytest.MonkeyPatch):
        folder = path.parent / "people"
        folder.mkdir()
        for part, start in enumerate(range(0, N, 300)):
            frame()[start : start + 300].to_parquet(folder / f"{part}.parquet", index=False)
        (folder / "notes.txt").write_text("no part of it")
        whole = parted(loaded(path, monkeypatch, large=False))
        for large in (False, True):
            made = parted(loaded(folder, monkeypatch, large=large))
            assert made.n == N
            records = read(made)
            assert torch.equal(records.x[:], read(whole).x)
        (folder / "more.csv").write_text("rows that would be left out")
        with pytest.raises(UsageError, match=r"holds Parquet files and more\.csv"):
            load_dataset(str(folder))
        (folder / "more.csv").unlink()
        frame().rename(columns={"age": "years"}).to_parquet(folder / "9.parquet")
        with pytest.raises(UsageError, match=r"9\.parquet has other columns than"):
            load_dataset(str(folder))
        frame().astype({"pay": "float64"}).to_parquet(folder / "9.parquet")
        with pytest.raises(UsageError, match=r"column 'pay' has type double, and in .* float"):
            load_dataset(str(folder))


class TestDoor:
    @pytest.mark.contract
    def test_nothing_is_read_without_a_charge(self, both: Any, path: Path):
        with pytest.raises(UnchargedReadError):
            both[1]["train"].open(Receipt("test"))
        with pytest.raises(UnchargedReadError):
            both[1].all_records(None)
        assert "t1" not in repr(both[1].features) + repr(read(both[1]))

    @pytest.mark.contract
    def test_files_are_private_and_go_with_the_data(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        made = parted(loaded(path, monkeypatch, large=True))
        made.workspace = path.parent / "private" / "cache"
        fit = parse_front_end(PAIRS).fit(
            read(made).x, read(made).valid, None, Keys.from_seed(0).stream("f"),
            made.schema.row_layout,
        )  # fmt: skip
        records = read(made, "test", fit)
        assert isinstance(records.x, ComputedRows)
        kept = [made.workspace, *made.workspace.rglob("*")]
        modes = {stat.S_IMODE(each.stat().st_mode) & 0o077 for each in kept}
        assert modes == {0}
        assert [each.suffix for each in kept if each.is_file()] == ["", ""]  # no bucket is left
        del made
        gc.collect()
        assert records.x[:].any()  # whoever holds records holds their files
        del records
        gc.collect()  # a data set and its partitions know each other
        assert not [*(path.parent / "private" / "cache").iterdir()]

    @pytest.mark.unit
    def test_what_a_killed_run_left_is_deleted(self, path: Path, monkeypatch: Any):
        made = parted(loaded(path, monkeypatch, large=True))
        made.workspace = path.parent / "private"
        left = made.workspace / "records-0-abc"
        left.mkdir(parents=True)
        read(made)
        assert not left.exists()

    @pytest.mark.unit
    def test_a_file_that_changes_is_refused(self, path: Path, monkeypatch: pytest.MonkeyPatch):
        made = parted(loaded(path, monkeypatch, large=True))
        first = made.fingerprint()
        assert loaded(path, monkeypatch, large=True).fingerprint() == first
        frame(1).to_parquet(path, row_group_size=250)
        with pytest.raises(UsageError, match="was changed since it was opened"):
            read(made)
        assert loaded(path, monkeypatch, large=True).fingerprint() != first

    @pytest.mark.unit
    def test_a_small_disk_is_found_before_anything_is_done(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        made = parted(loaded(path, monkeypatch, large=True))
        kept = compute_record_bytes(made.schema, np.dtype(object), max_categories=32)
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: _Usage(free=2 * N * kept + 6000))
        made.check_disk_space(parse_front_end("standardise"), max_categories=32)
        with pytest.raises(UsageError, match=r"700 encoded records .* on the disk of .*out="):
            made.check_disk_space(parse_front_end("pca:4000"), max_categories=32)
        parted(loaded(path, monkeypatch, large=False)).check_disk_space(
            parse_front_end("pca:4000"), max_categories=32
        )


class _Usage:
    def __init__(self, free: int):
        self.free = free


class TestOrder:
    @pytest.mark.property
    @pytest.mark.parametrize("rows", [1, 2, 999, 5000])
    def test_is_the_one_asked_for(self, rows: int, tmp_path: Path):
        order = np.random.default_rng(rows).permutation(rows)
        kept = np.zeros(rows, [("x", "<f4", (3,)), ("k", "u1")])
        kept["x"], kept["k"] = np.arange(3 * rows).reshape(rows, 3), np.arange(rows) % 251

        def blocks() -> Iterator[np.ndarray]:
            yield from np.array_split(kept, 7)

        found = write_in_order(tmp_path / "rows", blocks(), order)
        assert found.tobytes() == kept[order].tobytes()
        assert [each.name for each in tmp_path.iterdir()] == ["rows"]

    @pytest.mark.unit
    def test_takes_memory_for_a_heap_not_for_the_rows(self, tmp_path: Path, monkeypatch: Any):
        monkeypatch.setattr(disk, "BUCKET_BYTES", 2**18)
        rows, width = 2**14, 500
        order = np.random.default_rng(0).permutation(rows)
        blocks = (np.zeros(512, [("x", "u1", (width,))]) for _ in range(rows // 512))
        tracemalloc.start()
        write_in_order(tmp_path / "rows", blocks, order)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < rows * width / 4


class TestArrays:
    X = np.random.default_rng(0).integers(0, 255, (N, 1, 6, 6)).astype(np.uint8)
    Y = np.random.default_rng(1).integers(-1, 3, N)

    @pytest.mark.oracle
    @pytest.mark.parametrize("kind", ["npz", "compressed", "npy", "mapped"])
    def test_of_a_file_are_those_of_memory(
        self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("pasearch.data.array_file.MAX_EAGER_BYTES", 0)
        here = parted(from_arrays(self.X, self.Y, classes=3))
        path = tmp_path / "x.npz"
        if kind == "npz":
            np.savez(path, x=self.X, y=self.Y)
        elif kind == "compressed":
            np.savez_compressed(path, x=self.X, y=self.Y)
        else:
            path = tmp_path
            np.save(path / "x.npy", self.X)
            np.save(path / "y.npy", self.Y)
        if kind == "mapped":
            x = np.load(path / "x.npy", mmap_mode="r")
            there = parted(from_arrays(x, self.Y, classes=3))
        else:
            there = parted(load_dataset(str(path), classes=3))
        assert_equal(read(here), read(there))
        assert there.fingerprint() == here.fingerprint()
        fit = prepare_front_end(parse_front_end("max_pool:2"), (1, 6, 6))
        assert_equal(read(here, "test", fit), read(there, "test", fit))
        fit = parse_front_end("standardise").fit(
            read(there).x, read(there).valid, None, Keys.from_seed(0).stream("f")
        )
        assert_equal(read(here, "test", fit), read(there, "test", fit))

    @pytest.mark.unit
    def test_what_is_not_declared_or_not_in_rows_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("pasearch.data.array_file.MAX_EAGER_BYTES", 0)
        np.save(tmp_path / "x.npy", np.asfortranarray(self.X.reshape(N, -1)))
        np.save(tmp_path / "y.npy", self.Y)
        made = parted(load_dataset(str(tmp_path)))
        with pytest.raises(UsageError, match="declare `bounds=` and `classes=`"):
            made.check_disk_space(max_categories=32)
        made = parted(load_dataset(str(tmp_path), classes=3))
        with pytest.raises(UsageError, match="stored column by column"):
            read(made)


@pytest.mark.contract
@pytest.mark.parametrize("run", [search_architecture, select_features])
def test_a_run_on_a_large_table_is_that_of_memory(
    run: Any, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = []
    how = {"strategy": "fixed", "steps": 5} if run is search_architecture else {"method": "top"}
    for large in (False, True):
        monkeypatch.setattr("pasearch.data.parquet_file.MAX_EAGER_CELLS", 0 if large else 2**40)
        out = tmp_path / f"run-{large}"
        result = run(
            str(path), schema=TableSchema.from_dict(SCHEMA), budget=Budget(3.0), seed=1, out=out,
            device="cpu", **how,
        )  # fmt: skip
        found.append((result.document["score"], result.document["price"], _weights(out)))
        assert not (out / "private" / "cache").exists()
    assert found[0] == found[1]


def _weights(out: Path) -> list[bytes]:
    (path,) = (out / "release").glob("model.*")
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return [arrays[name].tobytes() for name in sorted(arrays)]
    return [value.numpy().tobytes() for value in torch.load(path, weights_only=True).values()]
