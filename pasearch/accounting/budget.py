"""Privacy budget of a whole run: (epsilon, delta), with a public default for delta.

The default delta is the largest power of ten strictly below 1/n, where n is the public number of
records including null records. A delta of 1/n or more is refused, because it would allow the
publication of a randomly chosen record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pasearch.accounting.checks import check_fraction, check_positive, check_positive_integer
from pasearch.errors import UsageError


@dataclass(frozen=True, slots=True)
class Budget:
    """Privacy budget of a whole run: for everything that the run reads.

    Args:
        epsilon: Total epsilon, finite and above 0.
        delta: Total delta, in (0, 1). None: `resolve` sets it when n is known.

    Example:
        >>> Budget(epsilon=1.0).resolve(1797)
        Budget(epsilon=1.0, delta=0.0001)
    """

    epsilon: float
    delta: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_positive("epsilon", self.epsilon))
        if self.delta is not None:
            object.__setattr__(self, "delta", check_fraction("delta", self.delta))

    def resolve(self, n: int, name: str = "delta") -> Budget:
        """Make the budget for n records: with a delta that is set and below 1/n.

        Args:
            n: Public number of records, null records included; 1 or above.
            name: Name of the delta in messages.

        Raises:
            UsageError: delta is 1/n or more.

        >>> Budget(1.0).resolve(1000)
        Budget(epsilon=1.0, delta=0.0001)
        """
        n = check_positive_integer("n", n)
        if self.delta is None:
            return replace(self, delta=float(f"1e-{len(str(n))}"))  # 10^k > n iff k digits
        if not self.delta < 1 / n:
            advice = "Omit it or lower it." if name == "delta" else "Lower it."
            raise UsageError(
                f"{name} is {self.delta:g}: with {n:,} records it must be below 1/n = {1 / n:g}, "
                f"because a larger delta allows publishing a record outright. {advice}"
            )
        return self

    def warnings(self, n: int) -> list[str]:
        """List warnings about a budget that gives weak privacy for n records."""
        n, found = check_positive_integer("n", n), []
        if self.epsilon > MAX_USEFUL_EPSILON:
            found.append(
                f"epsilon {self.epsilon:g} gives almost no protection: membership in the data may "
                "be inferred from the result. Common values are 0.1 to 8."
            )
        default = Budget(self.epsilon).resolve(n).delta
        if self.delta is not None and self.delta > 1 / (10 * n) and self.delta != default:
            cautious = 10.0 ** math.floor(math.log10(1 / (10 * n)))
            found.append(
                f"delta {self.delta:g} is above 1/(10 n) = {1 / (10 * n):.2g}; a conservative "
                f"choice is {cautious:g}."
            )
        return found


MAX_USEFUL_EPSILON = 20.0
"""Maximum epsilon without a warning: above it, an attack with 1 % false positives could detect
nearly all members.
"""
