"""Arrays in a .npz: known by their heads, unpacked only when they are needed."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pasearch.data import array_file
from pasearch.data.arrays import MAX_HEADER_BYTES, StoredArray, find_stored_arrays
from pasearch.data.sources import load_dataset
from pasearch.data.split import Split
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys

X, Y = np.arange(4000.0).reshape(-1, 2), np.arange(2000) % 3


def npy(shape: object, dtype: str = "<f8", content: bytes = b"", version: int = 1) -> bytes:
    """An array as a file that announces anything."""
    head = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    size = struct.pack("<H" if version == 1 else "<I", len(head))
    return b"\x93NUMPY" + bytes([version, 0]) + size + head + content


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "people.npz"


@pytest.mark.unit
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "array",
    [X, X.astype(">f4"), np.asfortranarray(X), Y, np.array(3), np.array("name"), X[:0], X > 3],
    ids=range(8),
)
def test_what_was_written_is_read(path: Path, save: object, array: np.ndarray):
    save(path, x=array)  # type: ignore[operator]
    found, names = find_stored_arrays(path, ["x", "none"])
    assert names == ["x"]
    assert (found["x"].shape, found["x"].dtype) == (array.shape, array.dtype)
    assert (found["x"].read() == array).all()
    assert found["x"].read() is found["x"].read()


@pytest.mark.unit
@pytest.mark.parametrize(
    "x",
    [
        npy((10**9, 10**9)),
        npy((10**400, 2)),
        npy((-1, -16), content=bytes(128)),
        npy((2**62, 4)),
        npy((8, 2), content=bytes(127)),
        npy((8, 2), content=bytes(129)),
        npy((8, 2), dtype="|O", content=bytes(128)),
        npy((8, 2), dtype="nonsense", content=bytes(128)),
        npy("x" * MAX_HEADER_BYTES, content=bytes(128)),
        npy("(" * 5000, content=bytes(128)),
        npy((1,) * 40, content=bytes(8)),
        npy((16,), content=bytes(128), version=3),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(1000),
        b"\x93NUMPY",
        b"",
        b"hello, world",
    ],
    ids=range(16),
)
def test_a_head_that_makes_no_sense_is_refused(path: Path, x: bytes):
    archive(path, x=x, y=npy((8,), dtype="<i8", content=bytes(64)))
    with pytest.raises(UsageError, match=r"people\.npz is damaged"):
        load_dataset(str(path), bounds=(0, 1), classes=3)


@pytest.mark.unit
@pytest.mark.parametrize("name", ["bounds", "classes", "official_test", "name"])
def test_a_note_that_unpacks_to_much_is_refused(path: Path, name: str):
    np.savez_compressed(path, x=X, y=Y, **{name: np.zeros(10**6)})
    with pytest.raises(UsageError, match=f"`{name}` has 8,000,000 bytes"):
        load_dataset(str(path), bounds=(0, 1), classes=3)


class TestLarge:
    @pytest.fixture(autouse=True)
    def _all_are_large(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(array_file, "MAX_EAGER_BYTES", 1000)

    @pytest.mark.unit
    def test_a_form_unpacks_nothing(self, path: Path, monkeypatch: pytest.MonkeyPatch):
        np.savez_compressed(path, x=X, y=Y.astype(np.int16))

        def unpacked(self: StoredArray) -> np.ndarray:
            raise AssertionError("it was unpacked")

        monkeypatch.setattr(StoredArray, "read", unpacked)
        dataset = load_dataset(str(path), bounds=(0, 1), classes=3)
        assert (dataset.n, dataset.features.shape, len(dataset.labels)) == (2000, (2000, 2), 2000)
        assert dataset.labels.dtype == np.int64  # type: ignore[union-attr]
        assert "SealedArray" in repr(dataset.features)
        dataset.partition(Split(train=1000, test=1000), Keys().stream("split").generator())
        with pytest.raises(AssertionError, match="unpacked"):
            dataset.fingerprint()

    @pytest.mark.unit
    def test_it_is_the_same_data_set(self, path: Path, monkeypatch: pytest.MonkeyPatch):
        np.savez_compressed(path, x=X, y=Y)
        late = load_dataset(str(path), bounds=(0, 1), classes=3)
        monkeypatch.setattr(array_file, "MAX_EAGER_BYTES", 10**9)
        soon = load_dataset(str(path), bounds=(0, 1), classes=3)
        assert late.fingerprint() == soon.fingerprint()

    @pytest.mark.unit
    def test_damage_is_told_before_anything_is_charged(self, path: Path):
        """The fingerprint is taken before a charge, and reads everything."""
        np.savez(path, x=X, y=Y)
        content = bytearray(path.read_bytes())
        content[9000:9060] = bytes(range(60))
        path.write_bytes(content)
        dataset = load_dataset(str(path), bounds=(0, 1), classes=3)
        with pytest.raises(UsageError, match=r"people\.npz is damaged"):
            dataset.fingerprint()

    @pytest.mark.unit
    def test_a_file_that_was_changed_meanwhile_is_refused(self, path: Path):
        np.savez(path, x=X, y=Y)
        dataset = load_dataset(str(path), bounds=(0, 1), classes=3)
        np.savez(path, x=X[:-1], y=Y[:-1])
        with pytest.raises(UsageError, match="was changed"):
            dataset.fingerprint()


@pytest.mark.unit
def test_content_in_memory_is_read_alike():
    buffer = io.BytesIO()
    np.savez(buffer, x=X)
    assert (find_stored_arrays(buffer.getvalue(), ["x"])[0]["x"].read() == X).all()
    with pytest.raises(UsageError, match="is damaged"):
        find_stored_arrays(buffer.getvalue()[:100], ["x"])
