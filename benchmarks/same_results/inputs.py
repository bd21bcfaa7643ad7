"""The files that the cases read, made anew for every recording: the same bytes every time.

| file | what |
|---|---|
| `people.csv`, `others.csv` | mixed columns and a class; others are taken for public |
| `houses.csv`, `flats.csv` | the same columns and a number to predict |
| `wide.csv` | 60 columns, of which two tell the class |
| `numbers.npz`, `more.npz` | arrays of five numbers, three classes |
| `cells.npz`, `others-cells.npz` | grey images of 16 x 16 |
| `mnist-like.npz` | grey images of 28 x 28, with an official test set |
| `cifar-like.npz` | images of 3 x 32 x 32 |
| `breast.npz` | nine numbers, two classes |
| `points.npz` | arrays and a number to predict |
| `many.npz` | more records than one forward pass takes |
| `pictures/` | a folder of images |
| `data/MNIST/raw/` | images of 12 x 12 in MNIST's files |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PEOPLE = """target = "pay"
[columns.age]
low = 18
high = 90
[columns.height]
low = 1.4
high = 2.1
bins = [1.6, 1.7, 1.8]
[columns.city]
categories = ["Oslo", "Rome", "Bern"]
[columns.owner]
categories = ["no", "yes"]
[columns.words]
kind = "text"
vocabulary = ["red", "green", "blue"]
[columns.number]
kind = "ignore"
[columns.pay]
categories = ["low", "high"]
"""
HOUSES = PEOPLE.replace('target = "pay"', 'target = "price"').replace(
    '[columns.pay]\ncategories = ["low", "high"]', '[columns.price]\nkind = "number"\n'
    "low = 0\nhigh = 100",
)  # fmt: skip
PARTLY = 'target = "pay"\n[columns.age]\nlow = 18\nhigh = 90\n[columns.number]\nkind = "ignore"\n'
CITIES = ("Oslo", "Rome", "Bern")
HEADER = "age,height,city,owner,words,number"


def write_inputs(folder: Path) -> None:
    """Write every input file into an empty folder."""
    for name, n, seed in (("people", 500, 1), ("others", 300, 2)):
        _write_table(folder / f"{name}.csv", n, seed, number=False)
    for name, n, seed in (("houses", 500, 3), ("flats", 300, 4)):
        _write_table(folder / f"{name}.csv", n, seed, number=True)
    (folder / "people.toml").write_text(PEOPLE)
    (folder / "tested.toml").write_text(PEOPLE.replace("\n", "\nofficial_test = 100\n", 1))
    (folder / "partly.toml").write_text(PARTLY)
    (folder / "houses.toml").write_text(HOUSES)
    _write_wide(folder / "wide.csv", 600)
    for name, n, seed in (("numbers", 400, 5), ("more", 250, 6)):
        _write_arrays(folder / f"{name}.npz", (n, 5), seed, 3)
    for name, n, seed in (("cells", 300, 7), ("others-cells", 200, 8)):
        _write_arrays(folder / f"{name}.npz", (n, 16, 16), seed, 2)
    _write_arrays(folder / "mnist-like.npz", (150, 28, 28), 9, 2, official_test=np.array(30))
    _write_arrays(folder / "cifar-like.npz", (80, 3, 32, 32), 10, 2)
    _write_arrays(folder / "breast.npz", (400, 9), 11, 2)
    _write_arrays(folder / "many.npz", (9000, 5), 15, 3)
    generator = np.random.Generator(np.random.PCG64(12))
    x = generator.random((400, 5))
    np.savez(folder / "points.npz", x=x, y=x[:, 0] - x[:, 1])
    _write_pictures(folder / "pictures")
    _write_idx(folder / "data" / "MNIST" / "raw")


def _write_table(path: Path, n: int, seed: int, *, number: bool) -> None:
    """Write rows of every kind of column; a few cells are missing, odd or out of bounds."""
    generator = np.random.Generator(np.random.PCG64(seed))
    rows = []
    for place in range(n):
        u = generator.random(6)
        age, height = 15 + 80 * u[0], 1.4 + 0.7 * u[1]
        told = 0.6 * u[0] + 0.3 * (u[3] > 0.5) + 0.1 * u[5]
        words = " ".join(
            each for each, bit in zip(("red", "green", "blue"), (1, 2, 4), strict=True)
            if int(8 * u[4]) & bit
        )  # fmt: skip
        cells = [
            f"{age:.1f}",
            f"{height:.2f}",
            CITIES[int(3 * u[2])],
            ("no", "yes")[int(u[3] > 0.5)],
        ]
        if place % 37 == 0:
            cells[place // 37 % 4] = ("", "?", "nan", "Paris")[place // 37 % 4]
        last = f"{100 * told:.2f}" if number else ("low", "high")[int(told > 0.45)]
        rows.append(",".join([*cells, words, str(place), last]))
    path.write_text("\n".join([f"{HEADER},{'price' if number else 'pay'}", *rows]) + "\n")


def _write_wide(path: Path, n: int) -> None:
    generator = np.random.Generator(np.random.PCG64(13))
    x = generator.random((n, 60))
    y = (x[:, 7] + x[:, 41] > 1).astype(int)
    lines = [",".join([*(f"c{i}" for i in range(60)), "y"])]
    for cells, label in zip(x, y, strict=True):
        lines.append(",".join([*(f"{cell:.3f}" for cell in cells), str(label)]))
    path.write_text("\n".join(lines) + "\n")
    declared = [f"[columns.c{i}]\nlow = 0\nhigh = 1\nbins = 0" for i in range(60)]
    text = "\n".join(['target = "y"', *declared, '[columns.y]\ncategories = ["0", "1"]'])
    path.with_suffix(".toml").write_text(text + "\n")


def _write_arrays(
    path: Path, shape: tuple[int, ...], seed: int, classes: int, **more: Array
) -> None:
    generator = np.random.Generator(np.random.PCG64(seed))
    x = generator.random(shape).astype(np.float32)
    flat = x.reshape(len(x), -1)
    y = np.minimum((classes * flat[:, 0]).astype(int), classes - 1)
    marked = flat[:, : flat.shape[1] // 3 + 1]
    marked += 0.5 * (y[:, None] - 0.5 * (classes - 1))
    np.savez(path, x=x, y=y, bounds=np.array([0.0, 1.0]), classes=classes, **more)


def _write_pictures(folder: Path) -> None:
    from PIL import Image

    generator = np.random.Generator(np.random.PCG64(14))
    for label in ("cats", "dogs"):
        (folder / label).mkdir(parents=True)
        for number in range(60):
            pixels = generator.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            pixels[: 10 if label == "cats" else 20] //= 2
            Image.fromarray(pixels).save(folder / label / f"{number:03}.png")
    (folder / "dogs" / "broken.png").write_bytes(b"no image")


def _write_idx(folder: Path) -> None:
    folder.mkdir(parents=True)
    generator = np.random.Generator(np.random.PCG64(16))
    for part, n in (("train", 300), ("t10k", 100)):
        labels = generator.integers(0, 10, n, dtype=np.uint8)
        images = generator.integers(0, 100, (n, 12, 12), dtype=np.uint8)
        images[np.arange(n), labels] += 150
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            (folder / f"{part}-{name}-ubyte").write_bytes(head + array.tobytes())
