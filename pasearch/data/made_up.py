"""Made-up images, which are nobody's: discs and rectangles that lie on top of each other.

What photographs, drawings and digits have in common (edges, flat parts, large shapes seldom and
small ones often) such images have too, so what depends on that alone can be learned from them: no
record is read, and nothing is downloaded.

Source: Lee, Mumford and Huang 2001 (dead leaves); Baradad et al. 2021 (learning from them).
"""

from __future__ import annotations

import math

import numpy as np

LEAVES = (8, 40)
"""How many shapes an image has: at least, and below."""


def dead_leaves(
    count: int, channels: int, height: int, width: int, generator: np.random.Generator
) -> np.ndarray:
    """Return made-up images, float32 (count, channels, height, width), in [0, 1].

    Args:
        count: How many.
        channels: 1, or 3 whose values are alike, as of a photograph.
        height: Pixels.
        width: Pixels.
        generator: Where they come from: equal generators make equal images.
    """
    images = np.empty((count, channels, height, width), np.float32)
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    for image in images:
        # Three of ten have a black ground, as scans and digits do.
        image[:] = generator.random() if generator.random() < 0.7 else 0.0
        for _ in range(generator.integers(*LEAVES)):
            shade, inside = _leaf(rows, columns, generator)
            colour = generator.random() + 0.25 * generator.standard_normal(channels)
            image[:, inside] = (np.clip(colour, 0, 1)[:, None] + shade[inside]).astype(np.float32)
    return images.clip(0.0, 1.0)


def _leaf(
    rows: np.ndarray, columns: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return one shape: how much lighter each pixel is towards one end, and which are inside."""
    side = max(rows.shape)
    radius = max(0.7, side * min(0.6, 0.04 * (1.0 - generator.random()) ** -0.6))
    flatness, angle = generator.uniform(0.25, 1.0), math.pi * generator.random()
    x = columns - rows.shape[1] * generator.random()
    y = rows - rows.shape[0] * generator.random()
    along = (x * math.cos(angle) + y * math.sin(angle)) / radius
    across = (y * math.cos(angle) - x * math.sin(angle)) / (radius * flatness)
    if generator.random() < 0.5:
        inside = along**2 + across**2 < 1.0
    else:
        inside = (abs(along) < 1.0) & (abs(across) < 1.0)
    return generator.normal(0.0, 0.3) * along * radius / side, inside
