"""Figures of results, as scikit-learn has them: `from_...` takes the numbers, `plot` draws them."""

from __future__ import annotations

from pasearch.displays.budget import BudgetDisplay
from pasearch.displays.crossover import CrossoverDisplay
from pasearch.displays.features import FeaturesDisplay
from pasearch.displays.schedule import ScheduleDisplay
from pasearch.displays.trials import TrialsDisplay

__all__ = [
    "BudgetDisplay",
    "CrossoverDisplay",
    "FeaturesDisplay",
    "ScheduleDisplay",
    "TrialsDisplay",
]
