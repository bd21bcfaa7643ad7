"""Where records come from: every bad file gives one clear UsageError, and no value stops a load."""

from __future__ import annotations

import gzip
import os
import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from pasearch.data.array_file import from_arrays
from pasearch.data.built_in import BUILT_IN_NAMES
from pasearch.data.source import DataDeclaration
from pasearch.data.sources import DECLARATIONS, describe_kinds_with, load_dataset
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def raw(sealed: object) -> np.ndarray:
    return sealed._array  # type: ignore[attr-defined]


def write_idx(path: Path, array: np.ndarray, *, packed: bool = False) -> None:
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content += array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def write_set(root: Path, *, name: str = "MNIST", packed: bool = False) -> dict[str, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(3))
    arrays = {}
    for part, count in (("train", 12), ("t10k", 4)):
        arrays[f"{part}-images-idx3-ubyte"] = generator.integers(0, 256, (count, 5, 4))
        arrays[f"{part}-labels-idx1-ubyte"] = generator.integers(0, 10, count)
    for file, array in arrays.items():
        write_idx(root / name / "raw" / file, array, packed=packed)
    return arrays


class TestDigits:
    @pytest.mark.unit
    def test_are_eight_by_eight_with_ten_classes(self):
        dataset = load_dataset("digits")
        assert (dataset.name, dataset.n, dataset.schema.shape) == ("digits", 1797, (8, 8))
        assert (dataset.schema.low, dataset.schema.high, dataset.schema.classes) == (0, 16, 10)
        assert dataset.official_test == 0
        assert not dataset.public

    @pytest.mark.unit
    def test_are_public_only_when_declared(self):
        assert load_dataset("digits", public=True).public


SAID = {
    "columns": ("a", "b"), "separator": ";",
    "bounds": (0.0, 1.0), "classes": 3, "regression": True, "target": "a", "schema": "a.toml",
    "text": "a",
    "image_side": 8, "grey": True, "quotes": False, "labels": "no,yes",
}  # fmt: skip
FOR_ARRAYS = {"bounds", "classes", "regression", "labels"}
FOR_PARQUET = {"target", "text", "schema", "regression", "labels"}
FOR_TABLES = FOR_PARQUET | {"quotes", "columns", "separator"}
FOR_FOLDERS = {"image_side", "grey"}


class TestMisplaced:
    """What the user says about data that has no use for it is refused before a file is opened."""

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("source", "useful"),
        [
            *[(name, set()) for name in BUILT_IN_NAMES],
            ("people.npz", FOR_ARRAYS),
            ("people.csv", FOR_TABLES),
            ("people.CSV", FOR_TABLES),
            ("people.tsv.gz", FOR_TABLES),
            ("people.data", FOR_TABLES),
            ("people.parquet", FOR_PARQUET),
            (".", FOR_FOLDERS),
        ],
    )
    def test_is_refused_and_its_use_is_named(
        self, source: str, useful: set, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        accepted = set()
        for name, value in SAID.items():
            message = (
                rf"`{name}=\w*` is for {describe_kinds_with(name)} and does not apply to '{source}'"
            )
            with pytest.raises(UsageError) as caught:
                load_dataset(source, **{name: value})
            if re.search(message, str(caught.value)) is None:
                accepted.add(name)
        assert accepted == useful & set(SAID)

    @pytest.mark.contract
    def test_every_declaration_of_some_data_is_tried(self):
        everywhere = {"public", "data_root", "download"}
        assert (
            set(DECLARATIONS) == set(SAID) == {f.name for f in fields(DataDeclaration)} - everywhere
        )

    @pytest.mark.unit
    def test_an_unknown_declaration_is_an_error(self):
        with pytest.raises(TypeError, match="clases"):
            load_dataset("digits", clases=3)


class TestUnknown:
    @pytest.mark.unit
    def test_the_message_names_what_there_is(self):
        for source in ["magic", "", "digits.np", "../digits", "people.feather"]:
            with pytest.raises(UsageError, match="not known") as caught:
                load_dataset(source)
            assert all(
                name in str(caught.value) for name in (*BUILT_IN_NAMES, ".npz", ".csv", "folder")
            )


class TestTables:
    """That a table is a data set; what is in one is tested with its schema."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        file = tmp_path / "people.csv"
        file.write_text("age,town,paid\n30,Ulm,yes\n40,Bonn,no\n?,Ulm,yes\n")
        return file

    @pytest.mark.unit
    def test_nothing_is_declared_about_its_values(self, path: Path):
        dataset = load_dataset(str(path))
        assert (dataset.name, dataset.n, dataset.public) == ("people", 3, False)
        assert isinstance(dataset.schema, TableSchema)
        assert dataset.schema.undeclared == ("age", "town", "paid")
        assert raw(dataset.labels).tolist() == ["yes", "no", "yes"]

    @pytest.mark.unit
    def test_a_schema_beside_it(self, path: Path, tmp_path: Path):
        toml = tmp_path / "people.toml"
        toml.write_text(
            'target = "paid"\nofficial_test = 1\n[columns]\n'
            'paid = {categories = ["no", "yes"]}\nage = {low = 0, high = 99}\n'
        )
        dataset = load_dataset(str(path), schema=toml, public=True)
        assert dataset.schema.undeclared == ("town",)
        assert (dataset.official_test, dataset.public) == (1, True)
        with pytest.raises(UsageError, match="declares column 'paid' as a category"):
            load_dataset(str(path), schema=toml, regression=True)


class TestArrays:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("kind", "bounds"), [("u1", (0.0, 255.0)), ("?", (0.0, 1.0))], ids=["bytes", "bits"]
    )
    def test_some_types_have_bounds(self, kind: str, bounds: tuple):
        schema = from_arrays(np.zeros((6, 2), kind), Y, classes=3).schema
        assert (schema.low, schema.high) == bounds

    @pytest.mark.unit
    def test_undeclared_bounds_and_classes_are_never_read_from_records(self):
        for kind in ["f4", "f8", "i8", "i1", "u2"]:
            schema = from_arrays(X.astype(kind), Y).schema
            assert schema.undeclared == ("bounds", "target")
            assert schema == from_arrays(X.astype(kind) * 0, Y * 0).schema
            assert from_arrays(X, Y, classes=3).schema.undeclared == ("bounds",)
            assert from_arrays(X, Y, bounds=(0, 1)).schema.undeclared == ("target",)

    @pytest.mark.unit
    def test_a_number_to_predict(self):
        for kind in ["f4", "f8", "f2", "i8", "u1", ">f8"]:
            dataset = from_arrays(X, Y.astype(kind), regression=True, bounds=(0, 9))
            assert dataset.schema.regression
            assert dataset.schema.undeclared == ("target",)
            assert np.array_equal(raw(dataset.labels), Y)

    @pytest.mark.unit
    def test_bad_bounds(self):
        for bounds in [(1,), (0, 1, 2), 5, "ab", (1, 0), (0, float("nan"))]:
            with pytest.raises(UsageError, match=r"[Bb]ounds"):
                from_arrays(X, Y, bounds=bounds, classes=3)  # type: ignore[arg-type]

    @pytest.mark.unit
    def test_bad_form(self):
        for x, y, word in [
            (X.tolist(), Y, "numpy"),
            (X[:, 0], Y, "shape"),
            (X.astype(complex), Y, "complex"),
            (X.astype(object), Y, "object"),
            (X.astype("U"), Y, "numbers"),
            (X, Y.astype(float), "float"),
            (X, Y.astype(bool), "bool"),
            (X, Y[:5], "6 records and y has 5"),
            (X[:0], Y[:0], "no record"),
            (np.zeros((6, 0)), Y, "at least one feature"),
        ]:
            with pytest.raises(UsageError, match=word):
                from_arrays(x, y, bounds=(0, 1), classes=3)

    @pytest.mark.unit
    def test_no_value_stops_a_load(self):
        x = np.full((6, 2), np.nan)
        y = np.array([2**64 - 1, 0, 1, 2**63, 7, 3], np.uint64)
        assert from_arrays(x, y, bounds=(0, 1), classes=3).n == 6


class TestNpz:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "people.npz"

    @pytest.mark.unit
    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_is_read(self, path: Path, save: Callable):
        save(path, x=X, y=Y, bounds=np.array([-1, 20]), classes=np.array(3), other=X)
        dataset = load_dataset(str(path))
        assert (dataset.name, dataset.n) == ("people", 6)
        schema = dataset.schema
        assert (schema.low, schema.high, schema.classes, schema.shape) == (-1.0, 20.0, 3, (2,))
        assert (raw(dataset.features) == X).all()
        assert (raw(dataset.labels) == Y).all()

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("extra", "word"),
        [
            ({"bounds": np.array([1.0])}, "bounds"),
            ({"bounds": np.array([1.0, np.nan]), "classes": np.array(3)}, "low < high"),
            ({"bounds": np.array([0, 1]), "classes": np.array([1])}, "classes"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_bad_declarations(self, path: Path, extra: dict, word: str):
        np.savez(path, x=X, y=Y, **extra)
        with pytest.raises(UsageError, match=word):
            load_dataset(str(path))

    @pytest.mark.unit
    def test_its_name_and_its_official_test_set(self, path: Path):
        np.savez(path, x=X, y=Y, name=np.array("census"), official_test=np.array(2))
        dataset = load_dataset(str(path))
        assert (dataset.name, dataset.official_test, dataset.n) == ("census", 2, 6)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "tail", [np.array(6), np.array(-1), np.array(2.0), np.array("2"), np.array([1, 2])], ids=str
    )
    def test_an_official_test_set_that_cannot_be(self, path: Path, tail: np.ndarray):
        np.savez(path, x=X, y=Y, official_test=tail)
        with pytest.raises(UsageError, match="`official_test` is"):
            load_dataset(str(path))

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("content", "word"),
        [
            (None, "does not exist"),
            (b"", "empty"),
            (b"hello", r"\.npz"),
            (b"PK\x03\x04 cut", r"\.npz"),
        ],
        ids=["missing", "empty", "text", "half a zip"],
    )
    def test_no_archive(self, path: Path, content: bytes | None, word: str):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UsageError, match=word):
            load_dataset(str(path), bounds=(0, 1), classes=3)

    @pytest.mark.unit
    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_a_file_cut_short(self, path: Path, save: Callable, share: float):
        save(path, x=X, y=Y)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
        with pytest.raises(UsageError, match=r"people\.npz"):
            load_dataset(str(path), bounds=(0, 1), classes=3)

    @pytest.mark.unit
    def test_nothing_is_unpickled(self, path: Path, tmp_path: Path):
        trace = tmp_path / "trace"

        class Evil:
            def __reduce__(self):
                return os.mkdir, (str(trace),)

        np.savez(path, x=np.array([Evil()] * 6, object), y=Y)
        with pytest.raises(UsageError, match="arrays of objects, which are not supported"):
            load_dataset(str(path), bounds=(0, 1), classes=3)
        path.write_bytes(pickle.dumps(Evil()))
        with pytest.raises(UsageError, match=r"\.npz"):
            load_dataset(str(path), bounds=(0, 1), classes=3)
        assert not trace.exists()


class TestIdx:
    @pytest.mark.unit
    @pytest.mark.parametrize("packed", [False, True], ids=["raw", "gz"])
    @pytest.mark.parametrize(
        ("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")]
    )
    def test_train_comes_first_then_the_official_test(
        self, tmp_path: Path, name: str, folder: str, packed: bool
    ):
        arrays = write_set(tmp_path, name=folder, packed=packed)
        dataset = load_dataset(name, data_root=tmp_path)
        assert (dataset.name, dataset.n, dataset.official_test) == (name, 16, 4)
        assert dataset.schema.shape == (5, 4)
        assert (dataset.schema.low, dataset.schema.high) == (0.0, 255.0)
        images = [arrays[f"{part}-images-idx3-ubyte"] for part in ("train", "t10k")]
        labels = [arrays[f"{part}-labels-idx1-ubyte"] for part in ("train", "t10k")]
        assert (raw(dataset.features) == np.concatenate(images)).all()
        assert (raw(dataset.labels) == np.concatenate(labels)).all()

    @pytest.mark.unit
    def test_missing_files_say_where_to_put_them(self, tmp_path: Path):
        with pytest.raises(UsageError, match="data_root=") as caught:
            load_dataset("mnist", data_root=tmp_path)
        assert "train-images-idx3-ubyte" in str(caught.value)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("file", "damage", "word"),
        [
            ("train-images-idx3-ubyte", lambda raw: raw[:-1], "cut short"),
            ("train-images-idx3-ubyte", lambda raw: raw[:9], "not an idx file"),
            ("t10k-images-idx3-ubyte", lambda raw: raw + b"x", "too long"),
        ],
    )
    @pytest.mark.parametrize("packed", [False, True], ids=["raw", "gz"])
    def test_damaged_files(
        self, tmp_path: Path, file: str, damage: Callable, word: str, packed: bool
    ):
        write_set(tmp_path, packed=packed)
        path = tmp_path / "MNIST" / "raw" / (file + ".gz" * packed)
        content = path.read_bytes()
        if packed:
            path.write_bytes(gzip.compress(damage(gzip.decompress(content))))
        else:
            path.write_bytes(damage(content))
        with pytest.raises(UsageError, match=word):
            load_dataset("mnist", data_root=tmp_path)

    @pytest.mark.unit
    def test_a_download_that_fails_says_what_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        from torchvision import datasets

        def refuse(root: Path, *, download: bool) -> None:
            raise RuntimeError("no network")

        monkeypatch.setattr(datasets, "MNIST", refuse)
        with pytest.raises(UsageError, match=r"no network.*data_root="):
            load_dataset("mnist", data_root=tmp_path, download=True)

    @pytest.mark.oracle
    def test_real_mnist_is_what_torchvision_reads(self, mnist_root: Path, tmp_path: Path):
        from torchvision.datasets.mnist import read_image_file, read_label_file

        dataset = load_dataset("mnist", data_root=mnist_root)
        assert (dataset.n, dataset.official_test, dataset.schema.shape) == (
            70_000,
            10_000,
            (28, 28),
        )
        raw_folder = mnist_root / "MNIST" / "raw"
        for file in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
            plain, packed = raw_folder / file, raw_folder / f"{file}.gz"
            content = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
            (tmp_path / file).write_bytes(content)
        images = read_image_file(str(tmp_path / "t10k-images-idx3-ubyte")).numpy()
        labels = read_label_file(str(tmp_path / "t10k-labels-idx1-ubyte")).numpy()
        assert (raw(dataset.features)[60_000:] == images).all()
        assert (raw(dataset.labels)[60_000:] == labels).all()
