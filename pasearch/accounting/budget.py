"""The budget of a whole run: (epsilon, delta), with one public default for delta.

Default delta: the largest power of ten strictly below 1/n, n the public number of slots. A delta of
1/n allows a mechanism that publishes one record outright, so it is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pasearch.accounting.checks import check_fraction, check_positive, check_positive_integer
from pasearch.errors import UsageError


@dataclass(frozen=True, slots=True)
class Budget:
    """What the whole run may cost, everything that is looked at included.

    Args:
        epsilon: finite, above 0.
        delta: strictly between 0 and 1, or None: decided by `resolve` once n is known.
    """

    epsilon: float
    delta: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_positive("epsilon", self.epsilon))
        if self.delta is not None:
            object.__setattr__(self, "delta", check_fraction("delta", self.delta))

    def resolve(self, n: int, name: str = "delta") -> Budget:
        """The budget with its delta decided for n slots.

        Args:
            n: number of slots, public, 1 or above.
            name: Of the delta, for messages.

        Raises:
            UsageError: delta is 1/n or more.

        >>> Budget(1.0).resolve(1000)
        Budget(epsilon=1.0, delta=0.0001)
        """
        n = check_positive_integer("n", n)
        if self.delta is None:
            return replace(self, delta=float(f"1e-{len(str(n))}"))  # 10^k > n iff k digits
        if not self.delta < 1 / n:
            advice = "Leave it out, or lower it." if name == "delta" else "Lower it."
            raise UsageError(
                f"{name} is {self.delta:g}, but with {n:,} records it must be below 1/n = "
                f"{1 / n:g}: at 1/n a record may be published outright. {advice}"
            )
        return self

    def warnings(self, n: int) -> list[str]:
        """What a cautious reader would object to, for n slots; never to the default delta."""
        n, found = check_positive_integer("n", n), []
        if self.epsilon > MAX_USEFUL_EPSILON:
            found.append(
                f"epsilon {self.epsilon:g} is so large that it protects nobody: who sees the "
                "result may tell whose records were used. Usual choices are 0.1 to 8."
            )
        usual = Budget(self.epsilon).resolve(n).delta
        if self.delta is not None and self.delta > 1 / (10 * n) and self.delta != usual:
            cautious = 10.0 ** math.floor(math.log10(1 / (10 * n)))
            found.append(
                f"delta {self.delta:g} is above 1/(10 n) = {1 / (10 * n):.2g}: cautious readers "
                f"will want a delta of {cautious:g}."
            )
        return found


MAX_USEFUL_EPSILON = 20.0
"""Above it an attacker who is wrong once in 100 is right nearly always."""
