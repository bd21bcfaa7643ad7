"""Where records come from: every bad file gives one clear UsageError, and no value stops a load."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pasearch.data.partitions import Dataset
from pasearch.data.sources import BUILT_IN, from_arrays, load_dataset
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

    @pytest.mark.unit
    @pytest.mark.parametrize("declared", [{"bounds": (0.0, 1.0)}, {"classes": 3}], ids=str)
    @pytest.mark.parametrize("name", BUILT_IN)
    def test_a_built_in_set_has_its_own_schema(self, name: str, declared: dict):
        with pytest.raises(UsageError, match=r"for \.npz files"):
            load_dataset(name, **declared)


class TestUnknown:
    @pytest.mark.unit
    @pytest.mark.parametrize("source", ["magic", "", "data.csv", "digits.np", "../digits"])
    def test_the_message_names_what_there_is(self, source: str):
        with pytest.raises(UsageError, match="not known") as caught:
            load_dataset(source)
        assert all(name in str(caught.value) for name in (*BUILT_IN, ".npz"))


class TestArrays:
    @pytest.mark.unit
    @pytest.mark.parametrize("shape", [(6, 2), (6, 3, 3), (6, 1, 4, 4)], ids=str)
    @pytest.mark.parametrize("kind", ["f4", "f8", "f2", "i8", "u1", ">f8", "?"])
    def test_numbers_of_every_kind_are_taken(self, shape: tuple, kind: str):
        dataset = from_arrays(np.zeros(shape, kind), Y, bounds=(0, 1), classes=3)
        assert dataset.schema.shape == shape[1:]
        assert len(dataset.fingerprint()) == 64

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("kind", "bounds"), [("u1", (0.0, 255.0)), ("?", (0.0, 1.0))], ids=["bytes", "bits"]
    )
    def test_some_types_have_bounds(self, kind: str, bounds: tuple):
        schema = from_arrays(np.zeros((6, 2), kind), Y, classes=3).schema
        assert (schema.low, schema.high) == bounds

    @pytest.mark.unit
    def test_undeclared_bounds_are_never_read_from_records(self):
        with pytest.raises(UsageError, match="--bounds"):
            from_arrays(X, Y, classes=3)

    @pytest.mark.unit
    def test_undeclared_classes_are_never_counted(self):
        with pytest.raises(UsageError, match="--classes"):
            from_arrays(X, Y, bounds=(0, 1))

    @pytest.mark.unit
    @pytest.mark.parametrize("bounds", [(1,), (0, 1, 2), 5, "ab", (1, 0), (0, float("nan"))])
    def test_bad_bounds(self, bounds: object):
        with pytest.raises(UsageError, match=r"[Bb]ounds"):
            from_arrays(X, Y, bounds=bounds, classes=3)  # type: ignore[arg-type]

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("x", "y", "word"),
        [
            (X.tolist(), Y, "numpy"),
            (X, Y.tolist(), "numpy"),
            (X[:, 0], Y, "shape"),
            (np.zeros((6, 1, 1, 1, 1)), Y, "shape"),
            (X.astype(complex), Y, "complex"),
            (X.astype(object), Y, "object"),
            (X.astype("U"), Y, "numbers"),
            (X.astype("M8[s]"), Y, "numbers"),
            (X, Y.astype(float), "float"),
            (X, Y.astype(object), "object"),
            (X, Y.astype(bool), "bool"),
            (X, Y[:, None], "shape"),
            (X, Y[:5], "6 records and y has 5"),
            (X[:0], Y[:0], "no record"),
            (np.zeros((6, 0)), Y, "at least one feature"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_bad_form(self, x: np.ndarray, y: np.ndarray, word: str):
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
    def test_what_the_caller_declares_comes_first(self, path: Path):
        np.savez(path, x=X, y=Y, bounds=np.array([-1, 20]), classes=np.array(3))
        schema = load_dataset(str(path), bounds=(0.0, 5.0), classes=7).schema
        assert (schema.low, schema.high, schema.classes) == (0.0, 5.0, 7)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("extra", "word"),
        [
            ({"bounds": np.array([1.0])}, "bounds"),
            ({"bounds": np.array(["a", "b"])}, "bounds"),
            ({"bounds": np.array([1.0, np.nan]), "classes": np.array(3)}, "low < high"),
            ({"bounds": np.array([0, 1]), "classes": np.array([1, 2])}, "classes"),
            ({"bounds": np.array([0, 1]), "classes": np.array(2.5)}, "classes"),
            ({"bounds": np.array([0, 1]), "classes": np.array(1)}, "classes"),
            ({}, "--bounds"),
            ({"bounds": np.array([0, 1])}, "--classes"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_bad_declarations(self, path: Path, extra: dict, word: str):
        np.savez(path, x=X, y=Y, **extra)
        with pytest.raises(UsageError, match=word):
            load_dataset(str(path))

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("arrays", "word"),
        [
            ({"x": X}, "no array y"),
            ({"y": Y}, "no array x"),
            ({"a": X}, "no array x and no array y"),
            ({}, "nothing"),
            ({"x": X, "y": Y[:4]}, "6 records and y has 4"),
            ({"x": X.astype("U"), "y": Y}, "numbers"),
            ({"x": X, "y": Y.astype(float)}, "whole numbers"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_bad_arrays(self, path: Path, arrays: dict, word: str):
        np.savez(path, **arrays)
        with pytest.raises(UsageError, match=word):
            load_dataset(str(path), bounds=(0, 1), classes=3)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("content", "word"),
        [(None, "not there"), (b"", "empty"), (b"hello", r"\.npz"), (b"PK\x03\x04 cut", r"\.npz")],
        ids=["missing", "empty", "text", "half a zip"],
    )
    def test_no_archive(self, path: Path, content: bytes | None, word: str):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UsageError, match=word):
            load_dataset(str(path), bounds=(0, 1), classes=3)

    @pytest.mark.unit
    def test_a_lone_npy_is_no_archive(self, path: Path):
        with path.open("wb") as file:
            np.save(file, X)
        with pytest.raises(UsageError, match=r"\.npz"):
            load_dataset(str(path), bounds=(0, 1), classes=3)

    @pytest.mark.unit
    def test_a_folder_is_no_file(self, path: Path):
        path.mkdir()
        with pytest.raises(UsageError, match="is a folder"):
            load_dataset(str(path))

    @pytest.mark.unit
    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_a_file_cut_short(self, path: Path, save: Callable, share: float):
        save(path, x=X, y=Y)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
        with pytest.raises(UsageError, match=r"people\.npz"):
            load_dataset(str(path), bounds=(0, 1), classes=3)

    @pytest.mark.unit
    def test_damaged_bytes(self, path: Path):
        np.savez_compressed(path, x=np.arange(4000.0).reshape(-1, 2), y=np.zeros(2000, int))
        content = bytearray(path.read_bytes())
        content[200:260] = bytes(range(60))
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"people\.npz"):
            load_dataset(str(path), bounds=(0, 1), classes=3)

    @pytest.mark.unit
    def test_nothing_is_unpickled(self, path: Path, tmp_path: Path):
        trace = tmp_path / "trace"

        class Evil:
            def __reduce__(self):
                return os.mkdir, (str(trace),)

        np.savez(path, x=np.array([Evil()] * 6, object), y=Y)
        with pytest.raises(UsageError, match="arrays of objects, which are not read"):
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
        with pytest.raises(UsageError, match="--data-root") as caught:
            load_dataset("mnist", data_root=tmp_path)
        assert "train-images-idx3-ubyte" in str(caught.value)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("file", "damage", "word"),
        [
            ("train-images-idx3-ubyte", lambda raw: raw[:-1], "cut short"),
            ("train-images-idx3-ubyte", lambda raw: raw[:18], "cut short"),
            ("train-images-idx3-ubyte", lambda raw: raw[:9], "not an idx file"),
            ("train-images-idx3-ubyte", lambda raw: b"", "not an idx file"),
            ("t10k-images-idx3-ubyte", lambda raw: raw + b"x", "too long"),
            ("t10k-labels-idx1-ubyte", lambda raw: b"\0\0\x09" + raw[3:], "not an idx file"),
            ("t10k-labels-idx1-ubyte", lambda raw: b"\0\0\x08\x02" + raw[4:], "not an idx file"),
            ("t10k-labels-idx1-ubyte", lambda raw: b"<html>" * 9, "not an idx file"),
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
    @pytest.mark.parametrize("content", [b"", b"not packed", b"\x1f\x8b\x08"])
    def test_a_gz_that_is_none(self, tmp_path: Path, content: bytes):
        write_set(tmp_path, packed=True)
        path = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
        path.write_bytes(content)
        with pytest.raises(UsageError, match="train-labels-idx1-ubyte"):
            load_dataset("mnist", data_root=tmp_path)

    @pytest.mark.unit
    def test_a_gz_cut_short(self, tmp_path: Path):
        write_set(tmp_path, packed=True)
        path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(UsageError, match="cannot be read"):
            load_dataset("mnist", data_root=tmp_path)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("file", "array", "word"),
        [
            ("train-labels-idx1-ubyte", np.zeros(3), "do not belong together"),
            ("t10k-images-idx3-ubyte", np.zeros((4, 6, 6)), "one size"),
        ],
    )
    def test_files_that_do_not_belong_together(
        self, tmp_path: Path, file: str, array: np.ndarray, word: str
    ):
        write_set(tmp_path)
        write_idx(tmp_path / "MNIST" / "raw" / file, array)
        with pytest.raises(UsageError, match=word):
            load_dataset("mnist", data_root=tmp_path)

    @pytest.mark.unit
    def test_a_set_without_images(self, tmp_path: Path):
        write_set(tmp_path)
        write_idx(tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte", np.zeros((0, 5, 4)))
        write_idx(tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte", np.zeros(0))
        with pytest.raises(UsageError, match="at least one image"):
            load_dataset("mnist", data_root=tmp_path)

    @pytest.mark.unit
    def test_a_download_that_fails_says_what_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        from torchvision import datasets

        def refuse(root: Path, *, download: bool) -> None:
            raise RuntimeError("no network")

        monkeypatch.setattr(datasets, "MNIST", refuse)
        with pytest.raises(UsageError, match=r"no network.*--data-root"):
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


@pytest.mark.unit
def test_a_data_set_shows_its_form_only():
    x = np.full((6, 2), 7.25)
    dataset = from_arrays(x, Y, bounds=(0, 9), classes=3)
    assert isinstance(dataset, Dataset)
    assert "7.25" not in repr(dataset)
    assert dataset.features.shape == (6, 2)
    with pytest.raises(TypeError):
        dataset.features[0]  # type: ignore[index]
    assert set(dataset.public_form()) == {"name", "n", "shape", "low", "high", "classes"}
