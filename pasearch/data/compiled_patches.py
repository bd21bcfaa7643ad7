"""The loops of `patches` in machine code: what is around the product of patches and patterns.

    columns   an image's patches, each at mean 0 and deviation 1, side by side
    averages  of what exceeds the threshold, by cell of the grid, while the product is in the cache

Nothing is reordered or contracted, and each image is gone through by itself.
"""

from __future__ import annotations

import math

import numpy as np

from pasearch.runs.compiled import compile_loop

compiled = compile_loop(fastmath=False)
single = np.float32
FLOAT32_ZERO = single(0.0)


@compiled
def extract_patches(images, side, least, found):
    """Lay out all patches of images.

    Args:
        images: float32, (images, channels, height, width).
        side: Of a patch.
        least: What is added to a patch's variance.
        found: Where they go, float32, (images x places, channels side^2): by row, then column.
    """
    count, channels, height, width = images.shape
    size = channels * side * side
    place = 0
    for image in range(count):
        for row in range(height - side + 1):
            for column in range(width - side + 1):
                patch = found[place]
                at, total = 0, 0.0
                for channel in range(channels):
                    for down in range(side):
                        line = images[image, channel, row + down]
                        for right in range(side):
                            patch[at] = line[column + right]
                            total += patch[at]
                            at += 1
                mean, square = total / size, 0.0
                for at in range(size):
                    square += (patch[at] - mean) ** 2
                scale = 1.0 / math.sqrt(square / size + least)
                for at in range(size):
                    patch[at] = single((patch[at] - mean) * scale)
                place += 1


@compiled
def average_excess(products, offset, threshold, edges, across, found):
    """Average what exceeds the threshold over the cells of a grid, of both signs.

    Args:
        products: Of all patches and patterns, float32, (images x places, patterns).
        offset: What is taken off each pattern's, float32, (patterns,).
        threshold: A float32.
        edges: Of the grid's cells: where rows begin and end, and columns, int64, (4, cells).
        across: Places of an image: rows and columns.
        found: Where averages go, float32, (images, 2 x patterns, cells of rows, of columns).
    """
    patterns = len(offset)
    rows, width = across
    first, last, left, right = edges[0], edges[1], edges[2], edges[3]
    grid = len(first)
    above = np.empty((grid, grid, patterns), np.float32)
    below = np.empty((grid, grid, patterns), np.float32)
    for image in range(len(found)):
        above[:], below[:] = FLOAT32_ZERO, FLOAT32_ZERO
        for row in range(rows):
            for column in range(width):
                values = products[(image * rows + row) * width + column]
                for i in range(grid):
                    for j in range(grid):
                        if first[i] <= row < last[i] and left[j] <= column < right[j]:
                            _accumulate_excess(values, offset, threshold, above[i, j], below[i, j])
        for i in range(grid):
            for j in range(grid):
                places = single((last[i] - first[i]) * (right[j] - left[j]))
                for k in range(patterns):
                    found[image, k, i, j] = above[i, j, k] / places
                    found[image, patterns + k, i, j] = below[i, j, k] / places


@compiled
def _accumulate_excess(values, offset, threshold, above, below):
    for k in range(len(values)):
        value = values[k] - offset[k]
        above[k] += max(value - threshold, FLOAT32_ZERO)
        below[k] += max(-value - threshold, FLOAT32_ZERO)
