"""What tests ask of the package in fewer words than it has for it."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from pasearch.accounting.accountants import PrivacyCost, _check_event
from pasearch.accounting.checks import check_fraction, check_positive_integer
from pasearch.accounting.densities import Density
from pasearch.accounting.events import Event
from pasearch.accounting.profiles import Array
from pasearch.accounting.renyi import PrivacyFilter, rdp_epsilon
from pasearch.accounting.selection import RunCountDistribution, _compute_pmf
from pasearch.data import means
from pasearch.features.trainers import LinearModel
from pasearch.training.metrics import find_default_metric


@cache
def normal_transform() -> Any:
    """A compiled loop from bits, int32 in groups of U and V, to float32 normal numbers."""
    from numba import njit

    from pasearch.runs import compiled

    pair, group = compiled._normal_pair, compiled.GROUP

    @njit
    def transform(bits, values):
        for low in range(0, len(bits), 2 * group):
            for k in range(low, low + group):
                values[k], values[k + group] = pair(bits[k], bits[k + group])

    return transform


def rdp_price(event: Event, delta: float) -> PrivacyCost:
    """The price by RDP alone."""
    epsilon = rdp_epsilon(_check_event(event), check_fraction("delta", delta))
    return PrivacyCost(epsilon=epsilon, delta=delta, accountant="RDP")


def pmf(law: RunCountDistribution, k: int) -> float:
    """P(K = k), k >= 1."""
    weights = _compute_pmf(law)
    return float(weights[k - 1]) if check_positive_integer("k", k) <= len(weights) else 0.0


def not_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means as they were released, before any post-processing but the clamp."""
    monkeypatch.setattr(means, "shrink_means", lambda noisy, deviation: noisy)


def points_of(model: LinearModel, records: Any) -> int:
    """A linear model's points by the usual metric."""
    metric = find_default_metric(records.y.is_floating_point())
    return metric.compute_points(model.compute_counts(records, metric), len(records))


def fits(held: PrivacyFilter, event: Event) -> bool:
    """Whether a filter would take an event; nothing is spent."""
    return held._fits(held._with(event))


def log_density(density: Density, x: Array) -> Array:
    """Log z(x), float64, of the shape of x."""
    return density.unit_log_density(np.abs(np.asarray(x)) / density.scale) - math.log(density.scale)
