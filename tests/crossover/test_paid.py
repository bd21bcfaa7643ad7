"""The interval of a crossover that a grid has measured: how often it holds the true one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pasearch.crossover.curves import find_crossover_of_means

TRUE = 0.3


def covered(models: int, repeats: int, levels: int, spread: float, trials: int = 150) -> float:
    """Return how often it does, of made-up curves that cross once."""
    epsilons = tuple(np.geomspace(0.1, 1.0, levels))
    places = np.log(np.array(epsilons) / TRUE)
    curves = np.stack([np.full(levels, 0.2), 0.2 - 0.05 * places, *[np.full(levels, 0.2)] * 8])
    generator, found = np.random.default_rng(0), 0
    wider = float(stats.t.ppf(0.975, models * (repeats - 1)) / stats.norm.ppf(0.975))
    for _ in range(trials):
        noise = generator.normal(0.0, spread, (models, levels, repeats))
        errors = curves[:models, :, None] + noise
        own = np.sqrt(errors.var(axis=2, ddof=1).mean(axis=0) / repeats)
        means = errors.mean(axis=2)
        each = find_crossover_of_means(means[0], means[1], wider * own, epsilons, ("a", "b"), own)
        found += each.low <= TRUE <= each.high
    return found / trials


@pytest.mark.statistical
def test_an_interval_holds_the_true_crossover_nineteen_times_of_twenty():
    for models, repeats, levels, spread in [
        (2, 2, 5, 0.02),
        (3, 2, 5, 0.02),
        (2, 3, 5, 0.005),
        (3, 5, 10, 0.02),
    ]:
        assert 0.9 <= covered(models, repeats, levels, spread) <= 0.99
