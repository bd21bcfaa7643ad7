"""Privacy calculator: computes one parameter of a DP-SGD training or search from all others.

    one training                 SelfComposition(PoissonGaussian(batch / n, sigma), steps)
    composed trainings           SelfComposition(one training, candidates)
    random number of trainings   RepeatAndSelect(one training, RunCountDistribution(candidates))

Nothing here reads data. The privacy cost of every solution is at most the given epsilon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pasearch.accounting import calibration
from pasearch.accounting.accountants import compute_delta, price
from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import check_positive, check_positive_integer
from pasearch.accounting.events import (
    Event,
    Gaussian,
    PoissonGaussian,
    RepeatAndSelect,
    SelfComposition,
)
from pasearch.accounting.selection import MAX_RUNS, RunCountDistribution
from pasearch.errors import UsageError, suggest_name

COMPOSITION = "composed"
"""Value of `law` for a fixed number of trainings."""
RUN_COUNT_NAMES = (COMPOSITION, *RunCountDistribution.NAMES)
"""All values of `law`."""
SIGMA_RANGE = (1e-2, 1e5)
"""Minimum and maximum noise multiplier of a solution."""
MAX_STEPS = 10_000_000
"""Maximum number of steps, and maximum n of a solution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Parameters of a training or search, one of which was computed.

    Args:
        solved: Name of the computed parameter.
        epsilon: Privacy cost at delta.
        delta: Total delta.
        sigma: Noise multiplier of a step.
        steps: Number of steps of one training.
        batch: Expected batch size, records.
        n: Number of training records.
        candidates: Number of trainings, or its mean. None: one training.
        law: "composed", or the name of the distribution. None: one training.
        accountant: Name of the accountant that computed epsilon.
    """

    solved: str
    epsilon: float
    delta: float
    sigma: float
    steps: int
    batch: int
    n: int
    candidates: float | None
    law: str | None
    accountant: str

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary of JSON values."""
        return asdict(self)

    def describe(self) -> str:
        """Describe the solution in one line; the computed parameter is first."""
        numbers = {
            "epsilon": f"{self.epsilon:.6g}",
            "delta": f"{self.delta:.3g}",
            "sigma": f"{self.sigma:.6g}",
            "steps": f"{self.steps:,}",
            "batch": f"{self.batch:,}",
            "n": f"{self.n:,}",
        }
        if self.candidates is not None:
            numbers["candidates"] = f"{self.candidates:g} ({self.law})"
        first = numbers.pop(self.solved)
        if self.solved == "candidates" and self.candidates == MAX_RUNS:
            first += " (the largest supported; more may fit),"
        rest = ", ".join(f"{name} {value}" for name, value in numbers.items())
        return f"{self.solved} {first}   with {rest}; accountant: {self.accountant}"


def solve(
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    sigma: float | None = None,
    steps: int | None = None,
    batch: int | None = None,
    n: int | None = None,
    candidates: float | None = None,
    law: str | None = None,
) -> list[Solution]:
    """Compute the one parameter that is omitted.

    Args:
        epsilon: Total epsilon, above 0.
        delta: Total delta, in (0, 1).
        sigma: Noise multiplier of a step, above 0.
        steps: Number of steps of one training.
        batch: Expected batch size, records.
        n: Number of records.
        candidates: Number of trainings (composed), or its mean (random). None: if `law` is given,
            the maximum is computed, otherwise there is one training.
        law: One of `RUN_COUNT_NAMES`. None: if `candidates` is given, all of them.

    Returns:
        One solution, or one for each `law`, the lowest epsilon first.

    Raises:
        UsageError: Not exactly one parameter is omitted, or a value is out of its range.
        BudgetError: The cost is above epsilon for all values of the omitted parameter.

    >>> (solution,) = solve(delta=1e-5, sigma=1.0, steps=100, batch=10, n=1000)
    >>> solution.solved, round(solution.epsilon, 2)
    ('epsilon', 0.72)
    """
    given: dict[str, Any] = {
        "epsilon": epsilon, "delta": delta, "sigma": sigma, "steps": steps, "batch": batch, "n": n
    }  # fmt: skip
    missing = [name for name, value in given.items() if value is None]
    if law is not None and law not in RUN_COUNT_NAMES:
        raise UsageError(
            f"law {law!r} is unknown: expected one of {', '.join(RUN_COUNT_NAMES)}."
            f"{suggest_name(law, RUN_COUNT_NAMES)}"
        )
    if law is not None and candidates is None:
        missing.append("candidates")
    if len(missing) != 1:
        raise UsageError(
            f"omitted: {', '.join(missing) or 'nothing'}. Omit exactly one of epsilon, delta, "
            "sigma, steps, batch, n and (with `law=`) candidates: it is solved for."
        )
    (wanted,) = missing
    laws = [law] if law is not None or candidates is None else list(RUN_COUNT_NAMES)
    answers = [_solve_one(wanted, {**given, "candidates": candidates}, each) for each in laws]
    return sorted(answers, key=lambda answer: answer.epsilon)


def _solve_one(wanted: str, given: dict[str, Any], law: str | None) -> Solution:
    """Compute the parameter `wanted` for one `law`."""

    def event(value: Any) -> Event:
        return _build_event({**given, wanted: value}, law)

    if wanted == "epsilon":
        value: Any = price(event(None), given["delta"]).epsilon
    elif wanted == "delta":
        value = compute_delta(event(None), given["epsilon"])
        if not 0 < value < 1:
            raise UsageError(
                f"no delta in (0, 1) gives epsilon {given['epsilon']:g} (found {value:g}): "
                "use another epsilon."
            )
    else:
        value = _solve_within_budget(wanted, given, law, event)
    numbers = {**given, wanted: value}
    found = price(_build_event(numbers, law), numbers["delta"])
    shown = min(found.epsilon, numbers["epsilon"]) if wanted == "delta" else found.epsilon
    return Solution(
        **{**numbers, "epsilon": shown}, solved=wanted, law=law, accountant=found.accountant
    )


def _solve_within_budget(
    wanted: str, given: dict[str, Any], law: str | None, event: Callable[[Any], Event]
) -> Any:
    """Compute a parameter such that the privacy cost is at most epsilon.

    The result is the minimum for sigma and n, and the maximum for the others.
    """
    budget = Budget(given["epsilon"], given["delta"])
    match wanted:
        case "sigma":
            return calibration.calibrate_min(event, budget, *SIGMA_RANGE)
        case "n":
            # More records lower the sampling probability: find the smallest number that fits.
            batch = check_positive_integer("batch", given["batch"])
            return calibration.calibrate_min_count(event, budget, batch, MAX_STEPS)
        case "batch":
            return calibration.calibrate_max_count(
                event, budget, check_positive_integer("n", given["n"])
            )
        case "candidates" if law != COMPOSITION:
            return calibration.calibrate_max(event, budget, 1.001, float(MAX_RUNS))
    return calibration.calibrate_max_count(
        event, budget, MAX_STEPS if wanted == "steps" else MAX_RUNS
    )


def _build_event(numbers: dict[str, Any], law: str | None) -> Event:
    """Make the event of the training or search with these parameters."""
    n = check_positive_integer("n", numbers["n"])
    batch = check_positive_integer("batch", numbers["batch"])
    if not batch <= n:
        raise UsageError(f"batch is {batch}, n is {n}: expected a batch of at most n records.")
    sigma = check_positive("sigma", numbers["sigma"])
    step = Gaussian(sigma) if batch == n else PoissonGaussian(batch / n, sigma)
    if not (steps := check_positive_integer("steps", numbers["steps"])) <= MAX_STEPS:
        raise UsageError(f"steps is {steps:,}: expected at most {MAX_STEPS:,}.")
    one = SelfComposition(step, steps)
    candidates = numbers["candidates"]
    if candidates is None:
        return one
    if law == COMPOSITION:
        if not float(candidates).is_integer():
            raise UsageError(f"candidates is {candidates}: expected an integer.")
        return SelfComposition(
            one, check_positive_integer("candidates", int(candidates), most=MAX_RUNS)
        )
    assert law is not None
    return RepeatAndSelect(one, RunCountDistribution.from_name(law, mean=candidates))
