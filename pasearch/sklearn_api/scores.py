"""Scores of a fitted estimator within a ledger: charged before the labels are read, then noisy.

| estimator | released, with two-sided geometric noise | from it |
|---|---|---|
| classifier | number of correct predictions, epsilon | accuracy |
| regressor | sums of squared error, target and squared target, epsilon / 3 each | R squared |

Targets and predictions are scaled to [0, 1] by the target's bounds. A missing target adds 0.

Source: docs/rules.md, rule 9. Proof: docs/guarantees/geometric-scores.md.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np

from pasearch.accounting.events import Pure
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.mechanisms import NoisyCount
from pasearch.runs.shared_ledger import SharedLedger
from pasearch.runs.sums import NoisySum

Array = np.ndarray[Any, Any]

GRID = 10_000
"""Steps of a scaled number in [0, 1] that is summed."""


def charge_score(ledger: str | Path, epsilon: float, n: int) -> Stream:
    """Charge a score to a ledger, and return the random stream of its noise.

    Raises:
        BudgetError: The ledger has no room for it; nothing was read.

    Cost: epsilon, on the ledger.
    """
    SharedLedger.open(ledger).reserve(secrets.token_hex(16), {"score": Pure(epsilon=epsilon)}, n)
    return Keys().stream("score")


def noisy_accuracy(correct: Array, epsilon: float, stream: Stream) -> float:
    """Return the fraction of correct predictions, with noise; it may be below 0 or above 1.

    Args:
        correct: Whether each prediction is correct, bool (n,); private.
        epsilon: Privacy cost, charged already.
        stream: Random stream of the noise.
    """
    noisy = NoisyCount(epsilon=epsilon).release(int(correct.sum()), stream)
    return noisy / len(correct)


def noisy_r_squared(target: Array, predicted: Array, epsilon: float, stream: Stream) -> float:
    """Return R squared, with noise.

    Args:
        target: Scaled to [0, 1], NaN where missing, float (n,); private.
        predicted: Scaled to [0, 1], float (n,).
        epsilon: Privacy cost, charged already.
        stream: Random stream of the noise.
    """
    noise = NoisySum(epsilon=epsilon / 3, most=GRID)
    error, total, squares = (
        noise.release(int(np.rint(GRID * np.nan_to_num(each)).sum()), stream.child(name)) / GRID
        for name, each in (
            ("error", (target - predicted) ** 2), ("total", target), ("squares", target**2),
        )
    )  # fmt: skip
    deviation = squares - total**2 / len(target)
    return 1.0 - error / max(deviation, 1.0 / GRID)
