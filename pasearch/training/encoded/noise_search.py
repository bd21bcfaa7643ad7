"""Ranking of noise distributions by their error at equal privacy cost, before data is read.

    each density on encoded gradients   smallest scale such that the RDP cost of all steps <= budget
    Gaussian, a second time             smallest sigma such that the PLD cost of all steps <= budget
    rank by                             mean absolute error E|noise| (l1); l2 is sqrt(E noise^2)

The accountant needs only the codebook, which bounds the gradient of each record. Accounting by
privacy loss distributions (PLD) supports only the Gaussian, and its cost is lower than by Renyi
divergences (RDP). So another density is better only if it gains more than this difference.

Source: Nasr et al., Fig. 6 (at equal divergence of order 2). Proof: docs/guarantees/encoding.md.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from pasearch.accounting import calibration, densities
from pasearch.accounting.accountants import price
from pasearch.accounting.budget import Budget
from pasearch.accounting.calibration import CalibratedDensity, compare_densities
from pasearch.accounting.densities import Density, Tabulated
from pasearch.accounting.events import PoissonGaussian, SelfComposition
from pasearch.errors import UsageError
from pasearch.training.encoded.gradients import EncodedClipping

logger = logging.getLogger(__name__)

DEFAULT_DENSITIES: tuple[Density, ...] = (
    densities.GaussianNoise(),
    *(densities.StudentT(freedom=freedom) for freedom in (5.0, 9.0, 20.0)),
    *(densities.GeneralisedNormal(power=power) for power in (1.76, 1.5)),
    densities.Logistic(),
    densities.HyperbolicSecant(),
    densities.VarianceGamma(shape=3.0),
    densities.LaplaceNoise(),
    densities.Cauchy(),
)
"""Densities that are ranked by default. The paper uses Student's t with 9 degrees of freedom."""

SEARCH_NOISE_OPTION = "search"
"""Value of the option `noise` that asks for the best-ranked density."""
DENSITY_PARAMETERS = {
    "student-t": "freedom",
    "generalised-normal": "power",
    "variance-gamma": "shape",
}
"""Name of the number after the colon of `noise`, such as in student-t:9, by density."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedDensity:
    """Noise density calibrated to the budget, with its errors.

    Args:
        row: Density with its calibrated scale, for gradients clipped to norm C, and its cost.
        accountant: "RDP" or "PLD" (Gaussian only).
        l1: Mean absolute value of the noise, divided by that of the best Gaussian.
        l2: Standard deviation of the noise, divided by that of the best Gaussian; `inf` if it does
            not exist.
    """

    row: CalibratedDensity
    accountant: str
    l1: float
    l2: float

    @property
    def density(self) -> Density:
        """Calibrated noise density."""
        return self.row.density

    @property
    def price(self) -> float:
        """Privacy cost: epsilon at the budget's delta."""
        return self.row.price

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary of JSON values; an infinite error becomes null."""
        errors = {"l1": self.l1, "l2": self.l2}
        ratios = {name: each if math.isfinite(each) else None for name, each in errors.items()}
        return {**self.row.to_json(), "accountant": self.accountant, **ratios}

    def describe(self) -> str:
        """Describe the density and its errors in one line."""
        name = format_density_name(self.density)
        return f"{name} ({self.accountant}): l1 {self.l1:.4f}, l2 {self.l2:.4f}"


def rank_densities(
    *,
    dimension: int,
    sampling_probability: float,
    steps: int,
    budget: Budget,
    bounding: EncodedClipping | None = None,
    laws: tuple[Density, ...] = DEFAULT_DENSITIES,
) -> list[RankedDensity]:
    """Calibrate densities to equal privacy cost, and sort them by l1 error.

    Args:
        dimension: Number of trained parameters.
        sampling_probability: q, in (0, 1].
        steps: Number of steps, 1 or above.
        budget: Privacy budget with delta set.
        bounding: Settings of the codebook. None: 1,000 vectors of norm 1.
        laws: Densities to rank.

    Returns:
        Calibrated densities, the smallest l1 error first; in addition to `laws` the Gaussian
        accounted for by PLD.

    Raises:
        BudgetError: No noise scale is large enough.
    """
    delta = budget.delta
    assert delta is not None, "resolve the budget first"
    logger.info(
        "Ranking %d noise distributions at equal privacy cost: up to half a minute.", len(laws)
    )
    encoded = bounding or EncodedClipping()
    shifts = encoded.codebook(dimension).envelope()
    rows = compare_densities(laws, shifts, sampling_probability, steps, budget.epsilon, delta)

    def training(sigma: float) -> SelfComposition:
        return SelfComposition(PoissonGaussian(sampling_probability, sigma), steps)

    sigma = calibration.calibrate_min(training, budget, 0.05, 1e6)
    exact = CalibratedDensity(
        density=densities.GaussianNoise(scale=sigma * encoded.sensitivity),
        price=price(training(sigma), delta).epsilon,
    )
    gaussians = [row for row in rows if isinstance(row.density, densities.GaussianNoise)]
    best = min([exact, *gaussians], key=lambda row: row.mean_absolute)
    ranked = [
        RankedDensity(
            row=row,
            accountant="PLD" if row is exact else "RDP",
            l1=row.mean_absolute / best.mean_absolute,
            l2=row.standard_deviation / best.standard_deviation,
        )
        for row in [exact, *rows]
    ]
    return sorted(ranked, key=lambda row: row.l1)


def parse_density(name: str) -> Density:
    """Parse a noise density from the command line: a name, or name:number.

    Args:
        name: Name such as "gaussian", "laplace", "student-t:9" or "generalised-normal:1.5".

    Raises:
        UsageError: The name or number is unknown.

    >>> parse_density("student-t:9")
    StudentT(scale=1.0, freedom=9.0)
    """
    kind, _, number = name.partition(":")
    known = [each for each in densities.DENSITIES if each != Tabulated.name]
    given: dict[str, float] = {}
    try:
        if number:
            given = {DENSITY_PARAMETERS[kind]: float(number)}
    except (KeyError, ValueError):
        kind = ""
    if kind not in known:
        raise UsageError(
            f"noise is {name!r}: expected {SEARCH_NOISE_OPTION}, or one of {', '.join(known)}; "
            f"{', '.join(DENSITY_PARAMETERS)} take a number, such as student-t:9."
        )
    return densities.density_from_json({"name": kind, **given})


def format_density_name(density: Density) -> str:
    """Format a density as the string from which `parse_density` creates it."""
    own = DENSITY_PARAMETERS.get(density.name)
    return density.name if own is None else f"{density.name}:{getattr(density, own):.17g}"
