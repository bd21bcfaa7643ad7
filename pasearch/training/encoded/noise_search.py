"""Which law of the noise has the least error at equal price: arithmetic, before data is read.

    every law z on encoded gradients:   least scale with  RDP price of all steps <= budget
    the Gaussian once more:             least sigma with  PLD price of all steps <= budget
    rank by                             E|z|  (l1);  beside it sqrt(E z^2)  (l2), Fisher information

A record adds at most a vector of the codebook, so its largest coordinates set the price. Loss
distributions price the Gaussian alone, and lower than Renyi orders do: another law must be better
by more than that difference to be worth its place.

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
from pasearch.accounting.calibration import Comparison, compare
from pasearch.accounting.densities import Density, Tabulated
from pasearch.accounting.events import PoissonGaussian, SelfComposed
from pasearch.errors import UsageError
from pasearch.training.encoded.gradients import Encoded

logger = logging.getLogger(__name__)

LAWS: tuple[Density, ...] = (
    densities.GaussianNoise(),
    *(densities.StudentT(freedom=freedom) for freedom in (5.0, 9.0, 20.0)),
    *(densities.GeneralisedNormal(power=power) for power in (1.76, 1.5)),
    densities.Logistic(),
    densities.HyperbolicSecant(),
    densities.VarianceGamma(shape=3.0),
    densities.LaplaceNoise(),
    densities.Cauchy(),
)
"""What is ranked. The paper has Student's t with 9 degrees of freedom."""

SEARCH = "search"
PARAMETERS = {"student-t": "freedom", "generalised-normal": "power", "variance-gamma": "shape"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A law at the budget's price.

    Args:
        row: The law at its scale, for gradients bounded to norm C, and its price.
        accountant: "RDP", or "PLD" for the Gaussian.
        l1: E|z| over that of the best Gaussian.
        l2: sqrt(E z^2) over that of the best Gaussian; `inf` if there is none.
    """

    row: Comparison
    accountant: str
    l1: float
    l2: float

    @property
    def density(self) -> Density:
        """The law."""
        return self.row.density

    @property
    def price(self) -> float:
        """Epsilon at the budget's delta."""
        return self.row.price

    def to_json(self) -> dict[str, Any]:
        """Return plain values; null for an error that is infinite."""
        ratios = {"l1": _finite(self.l1), "l2": _finite(self.l2)}
        return {**self.row.to_json(), "accountant": self.accountant, **ratios}

    def describe(self) -> str:
        """Return one line."""
        return f"{name_of(self.density)} ({self.accountant}): l1 {self.l1:.4f}, l2 {self.l2:.4f}"


def ranking(
    *,
    dimension: int,
    sampling_probability: float,
    steps: int,
    budget: Budget,
    bounding: Encoded | None = None,
    laws: tuple[Density, ...] = LAWS,
) -> list[Ranked]:
    """Return the laws at equal price, least l1 error first.

    Args:
        dimension: How many numbers are trained.
        sampling_probability: q, in (0, 1].
        steps: How many.
        budget: With its delta known.
        bounding: The codebook's settings; None takes 1,000 vectors of norm 1.
        laws: To be ranked, the Gaussian among them.

    Raises:
        BudgetError: No noise is enough.
    """
    delta = budget.delta
    assert delta is not None, "resolve the budget first"
    logger.info("Ranking %d laws of the noise at equal price: up to half a minute.", len(laws))
    encoded = bounding or Encoded()
    shifts = encoded.codebook(dimension).envelope()
    rows = compare(laws, shifts, sampling_probability, steps, budget.epsilon, delta)

    def training(sigma: float) -> SelfComposed:
        return SelfComposed(PoissonGaussian(sampling_probability, sigma), steps)

    sigma = calibration.smallest(training, budget, 0.05, 1e6)
    exact = Comparison(
        density=densities.GaussianNoise(scale=sigma * encoded.sensitivity),
        price=price(training(sigma), delta).epsilon,
    )
    gaussians = [row for row in rows if isinstance(row.density, densities.GaussianNoise)]
    best = min([exact, *gaussians], key=lambda row: row.mean_absolute)
    ranked = [
        Ranked(
            row=row,
            accountant="PLD" if row is exact else "RDP",
            l1=row.mean_absolute / best.mean_absolute,
            l2=row.standard_deviation / best.standard_deviation,
        )
        for row in [exact, *rows]
    ]
    return sorted(ranked, key=lambda row: row.l1)


def law_of(name: str) -> Density:
    """Return a law by what the command line calls it: a name, or name:number.

    Args:
        name: Such as "gaussian", "laplace", "student-t:9" or "generalised-normal:1.5".

    Raises:
        UsageError: No such law or number.

    >>> law_of("student-t:9")
    StudentT(scale=1.0, freedom=9.0)
    """
    kind, _, number = name.partition(":")
    known = [each for each in densities.DENSITIES if each != Tabulated.name]
    given: dict[str, float] = {}
    try:
        if number:
            given = {PARAMETERS[kind]: float(number)}
    except (KeyError, ValueError):
        kind = ""
    if kind not in known:
        raise UsageError(
            f"noise is {name!r}: expected {SEARCH}, or one of {', '.join(known)}; "
            f"{', '.join(PARAMETERS)} take a number, such as student-t:9."
        )
    return densities.density_from_json({"name": kind, **given})


def name_of(density: Density) -> str:
    """Return what `law_of` reads, for the laws that it knows."""
    own = PARAMETERS.get(density.name)
    return density.name if own is None else f"{density.name}:{getattr(density, own):.17g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
