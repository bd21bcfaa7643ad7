"""A kernel that leaves the float32 normal numbers of a GPU's noise in memory."""

import triton
import triton.language as tl

from pasearch.gpu.kernels import _cosine_and_sine, _radius


@triton.jit
def normal_numbers(bits, out, N: tl.constexpr):
    """Bits are int32: N of U, and N of V."""
    k = tl.arange(0, N)
    length, turn = tl.load(bits + k) & 0x7FFFFFFF, tl.load(bits + N + k)
    radius = _radius(length)
    cosine, sine = _cosine_and_sine(turn)
    tl.store(out + k, radius * cosine)
    tl.store(out + N + k, radius * sine)
