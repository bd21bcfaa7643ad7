"""Integrals over panels, each by two rules: the second tells how far the first can be off.

Source: Kronrod's 15 points around Gauss's 7; the numbers are mathematical constants.
"""

from __future__ import annotations

import numpy as np

from pasearch.accounting.profiles import Array

KRONROD_NODES = np.array(
    [0.991455371120812639206854697526329, 0.949107912342758524526189684047851,
     0.864864423359769072789712788640926, 0.741531185599394439863864773280788,
     0.586087235467691130294144838258730, 0.405845151377397166906606412076961,
     0.207784955007898467600689403773245]
)  # fmt: skip
KRONROD_WEIGHTS = np.array(
    [0.022935322010529224963732008058970, 0.063092092629978553290700663189204,
     0.104790010322250183839876322541518, 0.140653259715525918745189590510238,
     0.169004726639267902826583426598550, 0.190350578064785409913256402421014,
     0.204432940075298892414161999234649]
)  # fmt: skip
KRONROD_MIDDLE = 0.209482141084727828012999174891714
GAUSS_NODES, GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(7)


def kronrod(edges: Array) -> tuple[Array, Array, Array]:
    """Return nodes and the two rules' weights of Gauss and Kronrod on every panel.

    Args:
        edges: (p + 1,) ascending.

    Returns:
        Nodes, the 15-point rule's weights, and what the 7-point rule's are less: all (p, 15).
    """
    nodes = np.concatenate([-KRONROD_NODES, [0.0], KRONROD_NODES[::-1]])
    weights = np.concatenate([KRONROD_WEIGHTS, [KRONROD_MIDDLE], KRONROD_WEIGHTS[::-1]])
    gauss = np.zeros(15)
    gauss[1::2] = GAUSS_WEIGHTS
    half = np.diff(edges)[:, None] / 2
    middle = ((edges[1:] + edges[:-1]) / 2)[:, None]
    return middle + half * nodes, half * weights, half * (weights - gauss)
