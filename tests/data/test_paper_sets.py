"""SVHN in grey and Purchase-100, from made-up files of their form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from pasearch.data.partitions import Dataset
from pasearch.data.sources import load_dataset
from pasearch.errors import UsageError


def raw(sealed: object) -> np.ndarray:
    return sealed._array  # type: ignore[attr-defined]


@pytest.fixture
def svhn(tmp_path: Path) -> Callable[..., Path]:
    def write(part: str, count: int, **other: object) -> Path:
        generator = np.random.default_rng(count)
        x = generator.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        y = (np.arange(count)[:, None] % 10 + 1).astype(np.uint8)
        file = tmp_path / f"{part}_32x32.mat"
        savemat(file, {"X": x, "y": y, **other})
        return file

    return write


class TestGreySvhn:
    @pytest.mark.unit
    def test_train_comes_first_in_grey_and_class_10_is_the_digit_0(
        self, svhn: Callable, tmp_path: Path
    ):
        from scipy.io import loadmat

        files = svhn("train", 12), svhn("test", 3)
        dataset = load_dataset("svhn-grey", data_root=tmp_path)
        assert (dataset.name, dataset.n, dataset.official_test) == ("svhn-grey", 15, 3)
        assert (dataset.schema.shape, dataset.schema.classes) == ((32, 32), 10)
        labels = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 1, 2, 3]
        assert raw(dataset.labels).tolist() == labels
        images = [loadmat(file)["X"].transpose(3, 0, 1, 2) for file in files]
        grey = [np.asarray(Image.fromarray(each).convert("L")) for part in images for each in part]
        assert np.array_equal(raw(dataset.features), grey)

    @pytest.mark.unit
    def test_a_missing_or_wrong_file_is_named(self, svhn: Callable, tmp_path: Path):
        with pytest.raises(UsageError, match=r"train_32x32\.mat does not exist: copy"):
            load_dataset("svhn-grey", data_root=tmp_path)
        svhn("train", 2)
        for other, words in (
            ({"X": np.zeros((32, 32, 2))}, r"X of shape \(32, 32, 2\) and type float64"),
            ({"y": np.zeros((3, 1))}, r"y of shape \(3, 1\)"),
        ):
            svhn("test", 2, **other)
            with pytest.raises(UsageError, match=words):
                load_dataset("svhn-grey", data_root=tmp_path)
        (tmp_path / "test_32x32.mat").write_bytes(b"<html>not found</html>" * 20)
        with pytest.raises(UsageError, match="cannot be read as a MATLAB file"):
            load_dataset("svhn-grey", data_root=tmp_path)


def purchase_line(label: object, seed: int = 0) -> str:
    cells = np.random.default_rng(seed).integers(0, 2, 600)
    return ",".join(map(str, (label, *cells)))


class TestPurchase:
    def load(self, folder: Path, *lines: str) -> Dataset:
        (folder / "dataset_purchase").write_text("\n".join(lines) + "\n")
        return load_dataset("purchase-100", data_root=folder)

    @pytest.mark.unit
    def test_classes_begin_at_1_in_the_file(self, tmp_path: Path):
        dataset = self.load(tmp_path, *(purchase_line(each, each) for each in (1, 100, 37)))
        assert (dataset.name, dataset.n, dataset.official_test) == ("purchase-100", 3, 0)
        assert (dataset.schema.shape, dataset.schema.classes) == ((600,), 100)
        assert raw(dataset.labels).tolist() == [0, 99, 36]
        expected = np.random.default_rng(100).integers(0, 2, 600)
        assert np.array_equal(raw(dataset.features)[1], expected)

    @pytest.mark.contract
    def test_a_bad_line_is_a_null_record_and_changes_no_other(self, tmp_path: Path):
        good = purchase_line(5)
        expected = raw(self.load(tmp_path, good, good).features)[0]
        bad = (
            "", "x", good[:-2], good + ",1", good.replace("0", "7", 1), good.replace(",", ";", 3),
            purchase_line("nan"), purchase_line(-5), purchase_line(""), purchase_line("9" * 50),
        )  # fmt: skip
        for line in bad:
            dataset = self.load(tmp_path, line, good, line, good)
            assert raw(dataset.labels).tolist() == [-1, 4, -1, 4]
            assert np.array_equal(raw(dataset.features)[[1, 3]], [expected, expected])
            assert not raw(dataset.features)[[0, 2]].any()

    @pytest.mark.unit
    def test_a_missing_or_wrong_file_is_named(self, tmp_path: Path):
        with pytest.raises(UsageError, match="dataset_purchase does not exist: unpack"):
            load_dataset("purchase-100", data_root=tmp_path)
        with pytest.raises(UsageError, match="cannot be downloaded by pasearch"):
            load_dataset("purchase-100", data_root=tmp_path, download=True)
        for text in (b"1,0,1\n" * 3, b"", b"\x1f\x8b\x08\x00 packed"):
            (tmp_path / "dataset_purchase").write_bytes(text)
            with pytest.raises(UsageError, match="no line of 601 columns separated by commas"):
                load_dataset("purchase-100", data_root=tmp_path)
