"""AUTO-S: factor R / (norm + gamma), sensitivity R.

Source: Bu et al. 2022. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pasearch.accounting.checks import positive
from pasearch.errors import UsageError
from pasearch.training.bounding.bound import BOUNDINGS, SLACK, Bound, checked_bound, finite


@BOUNDINGS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class AutoS(Bound):
    """Scale every record's gradient to norm near R, whatever it was.

    Args:
        bound: R, 1e-12 or above.
        gamma: Keeps the order of small gradients; 1e-6 or above, because a norm below about 1e-22
            is computed as 0.
    """

    name: ClassVar[str] = "auto-s"
    phrase: ClassVar[str] = (
        "scaled to about norm {bound:g}, large or small (AUTO-S, gamma {gamma:g})"
    )
    bound: float = 1.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "bound", checked_bound("bound", self.bound))
        object.__setattr__(self, "gamma", positive("gamma", self.gamma))
        if not self.gamma >= 1e-6:
            raise UsageError(
                f"gamma is {self.gamma}: expected 1e-6 or above, so that a gradient whose norm "
                "rounds to 0 stays bounded. The usual value is 0.01."
            )

    @property
    def sensitivity(self) -> float:
        """R."""
        return self.bound

    def factors(self, norms: Tensor) -> Tensor:
        """Return each record's factor, (batch,), from its gradient's norm, (batch,)."""
        return finite(norms, self.bound / (norms * SLACK + self.gamma))
