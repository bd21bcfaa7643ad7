"""Compiled (Numba) loops of `patches`, before and after the product of patches and patterns.

    extract_patches   write an image's patches as rows, each with mean 0 and standard deviation 1
    average_excess    average the excess of the products over the threshold, by grid cell

No floating-point operations are reordered or fused, and each image is processed alone.
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
    """Write all patches of images as rows, standardised to mean 0 and standard deviation 1.

    Args:
        images: Images, float32, (images, channels, height, width).
        side: Side of a patch, pixels.
        least: Constant added to a patch's variance.
        found: Output, float32, (images x positions, channels side^2): by row, then by column.
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
    """Average max(0, s - threshold) and max(0, -s - threshold) over the cells of a grid.

    s is a product of a patch and a pattern minus the pattern's offset.

    Args:
        products: Products of all patches and patterns, float32, (images x positions, patterns).
        offset: Number subtracted for each pattern, float32, (patterns,).
        threshold: Threshold, a float32.
        edges: Bounds of the grid's cells, int64, (4, cells): first row, end row, first column, end
            column.
        across: Numbers of rows and columns of positions in an image.
        found: Output, float32, (images, 2 x patterns, grid rows, grid columns).
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
    """Add the excess of one patch's products over the threshold to a grid cell's sums."""
    for k in range(len(values)):
        value = values[k] - offset[k]
        above[k] += max(value - threshold, FLOAT32_ZERO)
        below[k] += max(-value - threshold, FLOAT32_ZERO)
