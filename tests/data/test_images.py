"""Images: a folder of files, torchvision's sets; no file stops a load, and no slot is lost."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageFile

from pasearch.accounting.budget import Budget
from pasearch.api.search import plan_architecture_search, search_architecture
from pasearch.cli import main
from pasearch.data import image_folder
from pasearch.data.built_in import TORCHVISION_NAMES
from pasearch.data.image_folder import DEFAULT_IMAGE_SIDE
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.sources import (
    find_readable,
    list_record_names,
    load_dataset,
    load_new_records,
)
from pasearch.errors import UsageError
from pasearch.report.plan import plan_text

RED, BLUE, GREY = (200, 10, 30), (0, 40, 250), (90, 90, 90)


def raw(sealed: object) -> np.ndarray:
    return sealed._array  # type: ignore[attr-defined]


def write(path: Path, colour: tuple | int = GREY, *, mode: str = "RGB", size: tuple = (6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def packed(kind: str) -> bytes:
    file = io.BytesIO()
    noise = np.random.Generator(np.random.PCG64(1)).integers(0, 256, (20, 20, 3), np.uint8)
    Image.fromarray(noise).save(file, kind)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two cats and three dogs, the second dog no image."""
    root = tmp_path / "pets"
    write(root / "dog" / "a.png", RED)
    write(root / "dog" / "c.png", BLUE)
    write(root / "cat" / "b.jpg", GREY)
    write(root / "cat" / "a.png", RED)
    (root / "dog" / "b.png").write_text("no image")
    return root


class TestFolder:
    @pytest.mark.unit
    def test_sub_folders_are_the_classes_in_the_order_of_their_names(self, folder: Path):
        dataset = load_dataset(str(folder))
        assert (dataset.name, dataset.n, dataset.official_test) == ("pets", 5, 0)
        assert dataset.schema.shape == (3, DEFAULT_IMAGE_SIDE, DEFAULT_IMAGE_SIDE)
        assert (dataset.schema.low, dataset.schema.high) == (0.0, 255.0)
        assert (dataset.schema.classes, dataset.schema.undeclared) == (2, ())
        assert not dataset.public
        assert load_dataset(str(folder), public=True).public

    @pytest.mark.unit
    def test_a_file_is_a_slot_in_the_order_of_its_path(self, folder: Path):
        dataset = load_dataset(str(folder))
        pixels = raw(dataset.features)
        assert raw(dataset.labels).tolist() == [0, 0, 1, -1, 1]
        assert pixels.dtype == np.uint8
        for slot, colour in ((0, RED), (2, RED), (3, (0, 0, 0)), (4, BLUE)):
            assert (pixels[slot] == np.array(colour)[:, None, None]).all()
        assert (abs(pixels[1].astype(int) - 90) < 4).all()  # JPEG is inexact

    @pytest.mark.unit
    def test_rows_and_columns_are_not_mixed_up(self, tmp_path: Path):
        """An image that is dark above and light below stays so, in every channel."""
        pixels = np.zeros((4, 10, 3), np.uint8)
        pixels[2:, :, 1] = 250
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            Image.fromarray(pixels).save(tmp_path / name / "x.png")
        seen = raw(load_dataset(str(tmp_path), image_side=8).features)[0]
        assert not seen[[0, 2]].any()
        assert not seen[1, :2].any()
        assert (seen[1, -2:] >= 250).all()

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("mode", "colour"),
        [("L", 90), ("RGBA", (90, 90, 90, 255)), ("LA", (90, 255)), ("P", 90), ("1", 1)],
    )
    @pytest.mark.parametrize("grey", [False, True])
    def test_every_kind_of_image_is_read(
        self, tmp_path: Path, mode: str, colour: tuple | int, grey: bool
    ):
        for name in ("a", "b"):
            write(tmp_path / name / "x.png", colour, mode=mode)
        dataset = load_dataset(str(tmp_path), image_side=4, grey=grey)
        assert raw(dataset.labels).tolist() == [0, 1]
        assert (raw(dataset.features) == raw(dataset.features)[0].flat[0]).all()

    @pytest.mark.unit
    def test_deeper_files_and_other_endings(self, tmp_path: Path):
        write(tmp_path / "a" / "deep" / "er" / "x.PNG", RED)
        write(tmp_path / "b" / "x.bmp", BLUE)
        write(tmp_path / "at the root.png")
        (tmp_path / "b" / "notes.txt").write_text("none of the images")
        dataset = load_dataset(str(tmp_path))
        assert raw(dataset.labels).tolist() == [0, 1]

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("make", "counts"),
        [
            (lambda root: None, "0 subfolders and 0 images"),
            (lambda root: write(root / "x.png"), "0 subfolders and 0 images"),
            (lambda root: write(root / "a" / "x.png"), "1 subfolder and 1 images"),
            (lambda root: [(root / n).mkdir() for n in "ab"], "2 subfolders and 0 images"),
        ],
        ids=["empty", "no folder", "one class", "no file"],
    )
    def test_one_without_classes_or_files_is_refused(
        self, tmp_path: Path, make: Callable, counts: str
    ):
        make(tmp_path)
        with pytest.raises(UsageError, match=counts):
            load_dataset(str(tmp_path))

    @pytest.mark.unit
    def test_one_of_tables_is_none_of_images(self, tmp_path: Path):
        (tmp_path / "b.csv.gz").write_bytes(b"")
        with pytest.raises(
            UsageError, match=r"is a folder with b\.csv\.gz: expected a folder of Parquet"
        ):
            load_dataset(str(tmp_path))
        (tmp_path / "A.CSV").write_text("a,b\n1,2\n")
        with pytest.raises(UsageError, match=r"with 2 data files, such as A\.CSV") as caught:
            load_dataset(str(tmp_path))
        assert f"Name one file, such as {tmp_path / 'A.CSV'};" in str(caught.value)
        assert "hidden folders" not in str(caught.value)


class TestUnreadable:
    BAD: tuple = (
        ("empty.png", b""),
        ("text.jpg", b"<html>not found</html>"),
        ("cut.png", packed("PNG")[:200]),
        ("cut.jpg", packed("JPEG")[:60]),
        ("head.gif", b"GIF89a"),
        ("other.webp", b"RIFF\0\0\0\0WEBPVP8 "),
        ("huge.ppm", b"P6 99999 99999 255\n"),
        ("bytes.bmp", bytes(range(256))),
    )

    @pytest.mark.unit
    @pytest.mark.parametrize(("name", "content"), BAD, ids=[name for name, _ in BAD])
    def test_a_file_that_is_no_image_is_null_in_its_slot(
        self, folder: Path, name: str, content: bytes, capfd: pytest.CaptureFixture
    ):
        whole = load_dataset(str(folder))
        (folder / "dog" / "b.png").unlink()
        (folder / "dog" / f"b {name}").write_bytes(content)
        dataset = load_dataset(str(folder))
        assert np.array_equal(raw(dataset.features), raw(whole.features))
        assert raw(dataset.labels).tolist() == [0, 0, 1, -1, 1]
        assert dataset.schema == whole.schema
        assert capfd.readouterr() == ("", "")

    @pytest.mark.unit
    @pytest.mark.parametrize("kind", ["eps", "group4", "tiff_lzw"])
    def test_what_pillow_would_read_by_another_name_is_not_read(
        self, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture,
    ):  # fmt: skip
        """Of EPS it would start Ghostscript; what is wrong with a TIFF, libtiff writes out."""
        program = folder.parent / "gs"
        program.write_text(f"#!/bin/sh\ntouch {folder.parent}/started\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder.parent}:{os.environ['PATH']}")
        content = io.BytesIO()
        if kind == "eps":
            content.write(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
        else:
            pixels = np.random.default_rng(0).integers(0, 2, (64, 64), np.uint8) * 255
            Image.fromarray(pixels).convert("1").save(content, "TIFF", compression=kind)
        damaged = bytearray(content.getvalue())
        if kind != "eps":
            damaged[12:60] = b"\x55" * 48
        (folder / "dog" / "b.png").write_bytes(bytes(damaged))
        labels = raw(load_dataset(str(folder)).labels).tolist()
        assert labels == [0, 0, 1, -1, 1]
        assert capfd.readouterr() == ("", "")
        assert not (folder.parent / "started").exists()

    @pytest.mark.property
    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP"])
    def test_damaged_bytes_never_stop_a_load(self, tmp_path: Path, kind: str):
        generator, content = np.random.Generator(np.random.PCG64(7)), packed(kind)
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        for number in range(60):
            damaged = bytearray(content)
            # Past the head: a size there may be one that Pillow warns of.
            for place in generator.integers(40, len(content), 5):
                damaged[place] = generator.integers(256)
            file = tmp_path / "ab"[number % 2] / f"{number:02}.{kind.lower()}"
            file.write_bytes(damaged[: generator.integers(40, len(content) + 1)])
        dataset = load_dataset(str(tmp_path), image_side=4)
        labels = raw(dataset.labels)
        assert dataset.n == 60
        assert not raw(dataset.features)[labels == -1].any()
        assert set(labels) <= {-1, 0, 1}
        assert -1 in labels


class TestTorchvision:
    @pytest.mark.unit
    @pytest.mark.parametrize("error", [OSError("full"), RuntimeError("cut"), ValueError, KeyError])
    @pytest.mark.parametrize("name", TORCHVISION_NAMES)
    def test_one_that_cannot_be_read(
        self, name: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        from torchvision import datasets

        def refuse(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(datasets, name.upper(), refuse)
        with pytest.raises(UsageError, match=f"{name} is not in"):
            load_dataset(name, data_root=tmp_path, download=True)

    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Dataset]:
        """Load a set of six training and two test images, in torchvision's own layouts."""
        from torchvision import datasets

        generator = np.random.Generator(np.random.PCG64(2))
        images = generator.integers(0, 256, (8, 3, 32, 32), np.uint8)

        def part(head: bool, download: bool) -> tuple[np.ndarray, np.ndarray]:
            assert download is False
            chosen = slice(0, 6) if head else slice(6, 8)
            return images[chosen], np.arange(8)[chosen]

        def cifar10(root: Path, *, train: bool, download: bool) -> SimpleNamespace:
            x, y = part(train, download)
            return SimpleNamespace(data=x.transpose(0, 2, 3, 1), targets=y.tolist())

        def svhn(root: Path, *, split: str, download: bool) -> SimpleNamespace:
            x, y = part(split == "train", download)
            return SimpleNamespace(data=x, labels=y)

        monkeypatch.setattr(datasets, "CIFAR10", cifar10)
        monkeypatch.setattr(datasets, "SVHN", svhn)

        def load(name: str) -> Dataset:
            dataset = load_dataset(name, data_root=tmp_path)
            assert np.array_equal(raw(dataset.features), images)
            return dataset

        return load

    @pytest.mark.unit
    @pytest.mark.parametrize("name", TORCHVISION_NAMES)
    def test_train_comes_first_then_the_official_test(self, made: Callable, name: str):
        dataset = made(name)
        assert (dataset.name, dataset.n, dataset.official_test) == (name, 8, 2)
        assert (dataset.schema.shape, dataset.schema.classes) == ((3, 32, 32), 10)
        assert (dataset.schema.low, dataset.schema.high) == (0.0, 255.0)
        assert raw(dataset.labels).tolist() == list(range(8))


class TestLarge:
    """What is too large is the null record in its slot: it is measured before it is decoded."""

    @pytest.fixture
    def decoded(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
        """The sizes of the images that are decoded."""
        found, load = [], ImageFile.ImageFile.load

        def watched(self: ImageFile.ImageFile, *arguments: object) -> object:
            found.append(self.size)
            return load(self, *arguments)

        monkeypatch.setattr(ImageFile.ImageFile, "load", watched)
        return found

    @pytest.mark.unit
    @pytest.mark.parametrize("name", ["big.png", "big.bmp", "big.gif", "big.webp", "big.jpg"])
    def test_too_many_pixels_are_a_null_record(
        self, folder: Path, name: str, decoded: list, monkeypatch: pytest.MonkeyPatch
    ):
        write(folder / "dog" / name, RED, size=(500, 90))
        monkeypatch.setattr(image_folder, "MAX_DECODED_PIXELS", 10_000)
        dataset = load_dataset(str(folder))
        assert dataset.n == 6
        names = sorted(["a.png", "b.png", "c.png", name])
        slot = 2 + names.index(name)
        assert raw(dataset.labels)[slot] == -1
        assert not raw(dataset.features)[slot].any()
        assert (raw(dataset.labels) == -1).sum() == 2
        assert all(width * height <= 10_000 for width, height in decoded)

    @pytest.mark.unit
    @pytest.mark.parametrize("progressive", [False, True])
    def test_a_large_jpeg_is_decoded_at_half_its_size(
        self, folder: Path, decoded: list, progressive: bool, monkeypatch: pytest.MonkeyPatch
    ):
        photo = Image.new("RGB", (400, 96), RED)
        photo.save(folder / "dog" / "d.jpg", progressive=progressive)
        monkeypatch.setattr(image_folder, "MAX_DECODED_PIXELS", 10_000)
        dataset = load_dataset(str(folder))
        assert (raw(dataset.labels)[-1] == 1) == (not progressive)
        assert ((200, 48) in decoded) == (not progressive)
        assert (400, 96) not in decoded
        if not progressive:
            pixel = raw(dataset.features)[-1][:, 3, 3].astype(int)
            assert (np.abs(pixel - RED) < 4).all()

    @pytest.mark.unit
    def test_pillow_logs_nothing_of_the_first_image_of_a_process(self, folder: Path):
        """Its modules for file formats, and so their loggers, are loaded with the first image."""
        program = (
            "import logging, sys\n"
            "logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)\n"
            "from pasearch.data.sources import load_dataset\n"
            f"load_dataset({str(folder)!r})\n"
        )
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        assert "STREAM" not in found.stdout

    @pytest.mark.unit
    def test_pillows_own_limit_is_set_and_given_back(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """Pillow refuses more than twice its limit, whatever of it would be decoded."""
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
        dataset = load_dataset(str(folder))
        assert Image.MAX_IMAGE_PIXELS == 10
        assert (raw(dataset.labels) == -1).sum() == 1, "the one that is no image"

    @pytest.mark.unit
    def test_images_that_memory_cannot_hold_are_refused(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(os, "sysconf", lambda _: 100)
        with pytest.raises(UsageError, match=r"5 images of 64 x 64 pixels.*image_side="):
            load_dataset(str(folder), image_side=64)


@pytest.mark.unit
def test_an_idx_file_that_announces_too_much_is_not_unpacked(tmp_path: Path):
    raw_folder = tmp_path / "MNIST" / "raw"
    raw_folder.mkdir(parents=True)
    head = bytes([0, 0, 8, 3]) + b"\xff" * 12
    with gzip.open(raw_folder / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(head + bytes(10**6))
    with pytest.raises(UsageError, match="expected at most 268,435,456"):
        load_dataset("mnist", data_root=tmp_path)
    small = bytes([0, 0, 8, 3]) + (1).to_bytes(4, "big") * 3
    with gzip.open(raw_folder / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(small + bytes(10**7))
    with pytest.raises(UsageError, match="is too long"):
        load_dataset("mnist", data_root=tmp_path)


class TestClassNames:
    """The sub-folders name the classes; what other programs leave in a folder is none of them."""

    JUNK = (
        "__MACOSX/._a.png", "@eaDir/a.png", ".ipynb_checkpoints/a-checkpoint.png", "Thumbs.db",
        ".DS_Store", "cat/@eaDir/a.png/thumb.jpg", "dog/.ipynb_checkpoints/a.png", "dog/._b.png",
        "cat/Thumbs.db", "$RECYCLE.BIN/x.png", "lost+found/y.png", "dog/deep/__MACOSX/a.png",
        "desktop.ini",
    )  # fmt: skip

    @pytest.fixture
    def junk(self, folder: Path) -> Path:
        for name in self.JUNK:
            if Path(name).suffix in (".png", ".jpg"):
                write(folder / name, BLUE)
            else:
                (folder / name).write_text("junk")
        return folder

    @pytest.mark.unit
    def test_are_those_of_the_sub_folders(self, folder: Path):
        schema = load_dataset(str(folder)).schema
        assert schema.decode_class(np.array([1, 0])).tolist() == ["dog", "cat"]
        assert "2 classes (cat, dog)" in schema.describe()
        assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema

    @pytest.mark.unit
    def test_are_one_text_for_each_class(self):
        for names in [("a",), ("a", "a"), ("a", ""), ("a", 1), ("a", "b", "c"), 5]:
            values = Schema(shape=(2,), low=0, high=1, classes=2).to_json()
            assert "class_names" not in values
            with pytest.raises(UsageError):
                Schema.from_json({**values, "class_names": names})

    @pytest.mark.contract
    def test_junk_changes_no_record_and_is_named_in_the_plan(self, folder: Path, junk: Path):
        shutil.copytree(junk, clean := junk.parent / "clean" / junk.name)
        for name in self.JUNK:
            (clean / name).unlink()
        for name in ("__MACOSX", "@eaDir", ".ipynb_checkpoints", "$RECYCLE.BIN", "lost+found",
                     "cat/@eaDir", "dog/.ipynb_checkpoints", "dog/deep"):  # fmt: skip
            shutil.rmtree(clean / name)
        own, other = load_dataset(str(clean)), load_dataset(str(junk))
        assert own.schema == other.schema
        assert (raw(own.features) == raw(other.features)).all()
        assert (raw(own.labels) == raw(other.labels)).all()
        assert own.notes == ()
        plan = plan_architecture_search(str(junk), budget=Budget(3.0), strategy="fixed")
        for name in ("$RECYCLE.BIN", ".DS_Store", "@eaDir", "__MACOSX"):
            assert name in " ".join(other.notes)
        assert "Skipped in the folder" in plan_text(plan, detail="prices")
        # A file that a system makes later does not end a run for good.
        assert (
            plan.to_json()
            == plan_architecture_search(str(clean), budget=Budget(3.0), strategy="fixed").to_json()
        )

    @pytest.mark.unit
    def test_a_name_that_may_tell_of_a_record_is_not_shown(self, folder: Path):
        (folder / "dog" / ".john smith.png").write_text("x")
        (folder / "dog" / "jane doe").write_text("x")
        (folder / "dog" / "jane doe.tiff").write_text("x")
        told = " ".join(load_dataset(str(folder)).notes)
        assert "john" not in told
        assert "jane" not in told
        assert "*.tiff" in told

    @pytest.mark.unit
    def test_images_without_a_class_and_classes_without_an_image_are_named(self, folder: Path):
        write(folder / "loose.png", RED)
        (folder / "emu").mkdir()
        dataset = load_dataset(str(folder))
        assert dataset.schema.class_names == ("cat", "dog", "emu")
        assert any("1 images outside of the subfolders" in each for each in dataset.notes)
        assert any("emu" in each for each in dataset.notes)

    @pytest.mark.unit
    def test_names_in_two_unicode_forms_are_one_class(self, folder: Path):
        write(folder / "Zu\u0308rich" / "a.png", RED)
        write(folder / "Z\u00fcrich" / "b.png", RED)
        dataset = load_dataset(str(folder))
        assert dataset.schema.class_names == ("Z\u00fcrich", "cat", "dog")
        assert raw(dataset.labels).tolist().count(0) == 2

    @pytest.mark.unit
    def test_a_name_that_no_file_can_hold_is_refused(self, folder: Path):
        (folder / "caf\udce9").mkdir()
        with pytest.raises(UsageError, match=r"caf.udce9: the name of this folder.*not UTF-8"):
            load_dataset(str(folder))

    @pytest.mark.unit
    @pytest.mark.parametrize("names", [("train", "test"), ("Training", "val", "Test")])
    def test_parts_of_a_data_set_are_no_classes(self, folder: Path, names: tuple[str, ...]):
        root = folder.parent / "parts"
        for name in names:
            shutil.copytree(folder, root / name)
        with pytest.raises(UsageError, match="no classes: name one of them"):
            load_dataset(str(root))
        assert load_dataset(str(root / names[0])).schema.class_names == ("cat", "dog")
        with pytest.raises(UsageError, match=f"Name the inner folder, {folder.parent}/x/pets"):
            load_dataset(str(shutil.copytree(folder, folder.parent / "x" / folder.name).parent))


class TestNewImages:
    @pytest.mark.unit
    @pytest.mark.parametrize("grey", [True, False])
    def test_are_read_as_those_of_the_data(self, folder: Path, grey: bool):
        dataset = load_dataset(str(folder), image_side=8, grey=grey)
        schema, trained = dataset.schema, raw(dataset.features)
        found = load_new_records(str(folder), schema)
        assert (np.asarray(found) == trained).all()
        names = ["cat/a.png", "cat/b.jpg", "dog/a.png", "dog/b.png", "dog/c.png"]
        assert list_record_names(str(folder)) == names
        assert find_readable(found).tolist() == [name != "dog/b.png" for name in names]
        flat, one = folder / "dog", folder / "dog" / "c.png"
        write(flat / "__MACOSX" / "a.png", RED)
        assert (np.asarray(load_new_records(str(flat), schema)) == trained[2:]).all()
        assert list_record_names(str(flat)) == ["a.png", "b.png", "c.png"]
        assert (np.asarray(load_new_records(str(one), schema)) == trained[4:]).all()
        assert list_record_names(str(one)) == ["c.png"]

    @pytest.mark.unit
    def test_of_no_use_are_refused(self, folder: Path, tmp_path: Path):
        schema = load_dataset(str(folder)).schema
        (tmp_path / "nothing").mkdir()
        with pytest.raises(UsageError, match="holds no image"):
            load_new_records(str(tmp_path / "nothing"), schema)
        with pytest.raises(UsageError, match=r"no\.png does not exist"):
            load_new_records(str(tmp_path / "no.png"), schema)
        for other in (
            load_dataset("digits").schema,
            Schema(shape=(3,), low=0, high=255, classes=2),
        ):
            with pytest.raises(UsageError, match="trained on other records"):
                load_new_records(str(folder), other)

    @pytest.mark.contract
    def test_are_predicted_by_the_names_of_their_folders(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ):  # fmt: skip
        for place in range(20):
            write(folder / "dog" / f"{place}.png", RED)
            write(folder / "cat" / f"{place}.png", BLUE)
        result = search_architecture(
            str(folder), budget=Budget(8.0), strategy="fixed", steps=5, image_side=8, grey=True,
            out=tmp_path / "run", device="cpu",
        )  # fmt: skip
        assert result.classes_.tolist() == ["cat", "dog"]
        with pytest.warns(UserWarning, match="1 of 23 records of .*dog cannot be read"):
            assert set(result.predict(str(folder / "dog"))) <= {"cat", "dog"}
        assert result.document["dataset"]["schema"]["class_names"] == ["cat", "dog"]
        assert "cat" in result.report
        monkeypatch.setattr("sys.argv", ["pasearch", "predict", str(result.path), str(folder)])
        with pytest.raises(SystemExit):
            main()
        printed = capsys.readouterr()
        assert "Nothing is predicted for 1 of 45 images" in printed.err
        head, *lines = printed.out.splitlines()
        assert head == "file,prediction"
        assert {line.split(",")[1] for line in lines} <= {"cat", "dog", ""}
        assert "dog/b.png," in lines
        assert len(lines) == 45
