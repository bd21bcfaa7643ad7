"""What follows a layer, in machine code, and the exponential; and what all loops are made with.

exp: the polynomial of Cephes (Moshier 1989); tanh: the fraction that Eigen has (Guennebaud et al.).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from torch import nn

from pasearch.runs.compiled import bits_of, loop, number_of
from pasearch.training.dense import CODES

single, whole, unsigned = np.float32, np.int32, np.uint64

TANH, RELU, SIGMOID = CODES[nn.Tanh], CODES[nn.ReLU], CODES[nn.Sigmoid]

NONE, ONE, TWO, THREE, FOUR = (unsigned(each) for each in range(5))
ZERO, HALF, UNIT = single(0.0), single(0.5), single(1.0)

# Sums may be added up in any order, as a library's products are; NaN and infinity are kept.
sums_of: Any = loop(fastmath={"reassoc", "contract", "nsz", "arcp"})
inlined: Any = njit(inline="always")
# A product and the sum it is added to may be rounded once.
fused: Any = loop(fastmath={"contract"})
# Said in so many words, as what is compiled for a caller takes over the caller's otherwise.
exact: Any = loop(fastmath=False)

MAGIC = single(1.5 * 2**23)
LOG_2_E, LOG_2, LOG_2_REST = single(math.log2(math.e)), single(0.693359375), single(-2.12194440e-4)
LEAST, MOST = single(-87.0), single(88.0)
E0, E1, E2, E3, E4, E5 = (
    single(each)
    for each in (
        1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
        5.0000001201e-1,
    )
)  # fmt: skip
BEYOND = single(7.9053111)
"""From here on float32's hyperbolic tangent is 1, but for a unit."""
P0, P1, P2, P3, P4, P5, P6 = (
    single(each)
    for each in (
        -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-8,
        1.48572235717979e-5, 6.37261928875436e-4, 4.89352455891786e-3,
    )
)  # fmt: skip
Q0, Q1, Q2, Q3 = (
    single(each)
    for each in (1.19825839466702e-6, 1.18534705686654e-4, 2.26843463243900e-3,
                 4.89352518554385e-3)
)  # fmt: skip


@inlined
def fast_exp(x):
    """Return e^x, of -87 to 88; beyond, that of the nearest of them."""
    x = LEAST if x < LEAST else x  # NaN stays what it is
    x = MOST if x > MOST else x
    shifted = x * LOG_2_E + MAGIC  # its last bits are the nearest whole number
    power = shifted - MAGIC
    x = x - power * LOG_2 - power * LOG_2_REST
    p = E0 * x + E1
    p = p * x + E2
    p = p * x + E3
    p = p * x + E4
    p = p * x + E5
    return (p * x * x + x + UNIT) * number_of(
        whole(whole(bits_of(shifted) + whole(127)) << whole(23))
    )


@inlined
def fast_tanh(x):
    """Return the hyperbolic tangent: an odd polynomial over an even one."""
    x = -BEYOND if x < -BEYOND else x  # NaN stays what it is
    x = BEYOND if x > BEYOND else x
    z = x * x
    p = P0 * z + P1
    p = p * z + P2
    p = p * z + P3
    p = p * z + P4
    p = p * z + P5
    p = p * z + P6
    q = Q0 * z + Q1
    q = q * z + Q2
    q = q * z + Q3
    return x * p / q


@exact
def tanh_all(h, low, high):
    """Put the hyperbolic tangents of some numbers in their place."""
    for k in range(low, high):
        h[k] = fast_tanh(h[k])


@fused
def sigmoid_all(h, low, high):
    """Put the sigmoids of some numbers in their place."""
    for k in range(low, high):
        h[k] = HALF * fast_tanh(HALF * h[k]) + HALF


@exact
def activate(kind, bias, h, rows):
    """Add a bias to what came out of a layer, and put it through what follows."""
    outputs = unsigned(len(bias))
    for row in range(NONE, rows):
        at = row * outputs
        for k in range(NONE, outputs):
            h[at + k] += bias[k]
        if kind == RELU:
            for k in range(at, at + outputs):
                h[k] = ZERO if h[k] < ZERO else h[k]  # NaN stays what it is
    if kind == TANH:
        tanh_all(h, NONE, rows * outputs)
    elif kind == SIGMOID:
        sigmoid_all(h, NONE, rows * outputs)


@exact
def bend(kind, h, d, many):
    """Multiply gradients by the derivative of what follows a layer, from what came out."""
    if kind == TANH:
        for k in range(NONE, many):
            d[k] *= UNIT - h[k] * h[k]
    elif kind == SIGMOID:
        for k in range(NONE, many):
            d[k] *= h[k] * (UNIT - h[k])
    elif kind == RELU:
        for k in range(NONE, many):
            d[k] = ZERO if h[k] <= ZERO else d[k]
