"""Turn downloaded data into the x/y files that the command line reads.

CIFAR-10 here was compressed as JPEG (quality 75) on its way: it is named so everywhere, and figures
on it are not comparable with published ones on the lossless images.

Usage: python benchmarks/prepare.py cifar10_jpeg75.npz OUT_DIR
"""

from __future__ import annotations

import argparse
import io
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

NAME = "cifar10-jpeg-q75"


def decoded(packed: np.lib.npyio.NpzFile, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images, uint8 (n, 3, 32, 32), and classes of one part; one JPEG header serves all."""
    head, body = packed["jpeg_header"].tobytes(), packed[f"{part}_bytes"].tobytes()
    ends = np.concatenate([[0], packed[f"{part}_len"].astype(np.int64)]).cumsum()
    images = [
        np.asarray(Image.open(io.BytesIO(head + body[start:end])).convert("RGB"))
        for start, end in pairwise(ends)
    ]
    return np.stack(images).transpose(0, 3, 1, 2), packed[f"{part}_y"]


def main() -> None:
    """Write OUT_DIR/cifar10-jpeg-q75.npz."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packed", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    with np.load(options.packed) as packed:
        parts = [decoded(packed, part) for part in ("train", "test")]
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez(
        options.out / f"{NAME}.npz",
        x=np.concatenate([x for x, _ in parts]),
        y=np.concatenate([y for _, y in parts]).astype(np.int64),
        classes=10,
        official_test=len(parts[1][1]),
        name="CIFAR-10 (JPEG q75)",
    )


if __name__ == "__main__":
    main()
