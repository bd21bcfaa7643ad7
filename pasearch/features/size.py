"""How many records a feature selection can take, before one is read.

DP-SGD, second moments, means, tables and picks go through the records in parts. Objective
perturbation needs them all at once, in float64, and several times: so a plan of too many slots and
features is refused.

Source: docs/features.md.
"""

from __future__ import annotations

from pasearch.errors import UsageError

MOST_BYTES = 2**34
"""The most memory that objective perturbation may take, about: 16 GiB."""

COPIES = 6
"""How often it holds all records in float64 at its largest, about."""


def check_objective(slots: int, features: int) -> None:
    """Refuse records that take objective perturbation too much memory.

    Args:
        slots: How many it is fitted to.
        features: The most that a fit sees of each.

    Raises:
        UsageError: About more than `MOST_BYTES`.
    """
    needed = 8 * COPIES * slots * (features + 1)
    if not needed <= MOST_BYTES:
        raise UsageError(
            f"Objective perturbation needs all records at once: {slots:,} slots of {features:,} "
            f"features take about {needed / 2**30:.0f} GiB, expected at most "
            f"{MOST_BYTES / 2**30:.0f}. Take `trainer=dpsgd`, which goes through them in parts, or "
            "fewer features (`method=top`, `k=`)."
        )
