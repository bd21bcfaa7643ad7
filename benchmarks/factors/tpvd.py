"""TPVD: how far noise moved a network's weights. It is NOT a measure of privacy.

    VD_i = ||W_i - V_i||_F / ||W_i||_F          TPVD = mean over the layers i of VD_i

W are the weights of a training without noise, V those of one with it. Noise that hides nothing (a
public constant, the same noise for all data sets, one layer left alone) moves weights as far as
noise that does, so neither a large value nor a small one says anything of what is revealed.

W has no privacy at all, and TPVD is a function of it: on private data compute neither.

Source: Lin et al., Eq. 16 to 18; docs/rules.md, the row of its claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from pasearch.errors import UsageError

Weights = Sequence[Tensor]
"""One network's weights: a matrix (or any tensor) for each of its components."""


def tpvd(plain: Weights, noisy: Weights) -> float:
    """Return the mean over components of ||W_i - V_i|| / ||W_i||: a diagnostic, no privacy.

    Args:
        plain: W, of the training without noise, which is for declared-public data.
        noisy: V, of the training with noise, of the same shapes.

    Returns:
        0 or above; infinite where W_i is 0 and V_i is not; NaN where weights are.

    Raises:
        UsageError: No components, or other shapes.

    >>> import torch
    >>> tpvd([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 9.0])])
    1.0
    """
    shapes = [tuple(each.shape) for each in plain], [tuple(each.shape) for each in noisy]
    if not shapes[0] or shapes[0] != shapes[1]:
        raise UsageError(
            f"the weights have the shapes {shapes[0]} and {shapes[1]}: expected one component or "
            "more, the same for both. Compare networks of one architecture."
        )
    return math.fsum(map(_difference, plain, noisy)) / len(plain)


def _difference(w: Tensor, v: Tensor) -> float:
    w, v = w.detach().cpu().double(), v.detach().cpu().double()
    moved, size = float((w - v).norm()), float(w.norm())
    if size == 0:
        return moved if not moved > 0 else math.inf
    return moved / size
