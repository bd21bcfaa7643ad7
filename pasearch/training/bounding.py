"""How a record's gradient is bounded: by a factor that depends on its norm alone.

    Flat(C)           min(1, C / norm)         sensitivity C      Abadi et al. 2016
    AutoS(R, gamma)   R / (norm + gamma)       sensitivity R      Bu et al. 2022 ("AUTO-S")

Sensitivity is under zero-out adjacency: a record is there, or adds 0. Norms are float32, so the
divisor is taken (1 + 1e-5) times too large. A norm that is not finite gets the factor 0.

Source: docs/rules.md, rules 2 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch

from pasearch.accounting.checks import positive
from pasearch.errors import UsageError

SLACK = 1.0 + 1e-5
"""How much too large a norm is taken, for the rounding of its computation."""
LEAST = 1e-12
"""The smallest bound: below it, squares of gradients and the factors would underflow in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """Clip every record's gradient, all layers together, to norm C.

    Args:
        clip_norm: C, 1e-12 or above.
    """

    name: ClassVar[str] = "flat"
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        """Check the number."""
        object.__setattr__(self, "clip_norm", _bound("clip_norm", self.clip_norm))

    @property
    def sensitivity(self) -> float:
        """C."""
        return self.clip_norm

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        """Return each record's factor, (batch,), from its gradient's norm, (batch,)."""
        return _finite(norms, (self.clip_norm / (norms * SLACK)).clamp(max=1.0))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"name": self.name, "clip_norm": self.clip_norm}


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoS:
    """Scale every record's gradient to norm near R, whatever it was.

    Args:
        bound: R, 1e-12 or above.
        gamma: Keeps the order of small gradients; 1e-6 or above, because a norm below about 1e-22
            is computed as 0.
    """

    name: ClassVar[str] = "auto-s"
    bound: float = 1.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "bound", _bound("bound", self.bound))
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

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        """Return each record's factor, (batch,), from its gradient's norm, (batch,)."""
        return _finite(norms, self.bound / (norms * SLACK + self.gamma))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"name": self.name, "bound": self.bound, "gamma": self.gamma}


Bounding = Flat | AutoS
BOUNDINGS: dict[str, type[Bounding]] = {kind.name: kind for kind in (Flat, AutoS)}


def bounding_from_json(values: dict[str, Any]) -> Bounding:
    """Read what `to_json` wrote.

    Raises:
        UsageError: An unknown name or number.
    """
    if not isinstance(values, dict):
        raise UsageError(f"bounding is {values!r}: expected what `to_json` wrote, or null.")
    numbers = {name: value for name, value in values.items() if name != "name"}
    if values.get("name") not in BOUNDINGS:
        raise UsageError(
            f"Bounding {values.get('name')!r} is unknown: expected one of {', '.join(BOUNDINGS)}."
        )
    kind = BOUNDINGS[values["name"]]
    if unknown := sorted(set(numbers) - {field.name for field in fields(kind)}):
        raise UsageError(f"Bounding {kind.name!r} has no {', '.join(unknown)}: leave that out.")
    return kind(**numbers)


def _bound(name: str, value: object) -> float:
    number = positive(name, value)
    if not number >= LEAST:
        raise UsageError(
            f"{name} is {number}: expected {LEAST} or above, so that float32 can tell which "
            "gradients exceed it. A usual value is 1."
        )
    return number


def _finite(norms: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))
