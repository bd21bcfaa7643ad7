"""How a record's gradient is bounded: by factors that depend on its layers' norms alone.

    Flat(C)              min(1, C / norm)             sensitivity C       Abadi et al. 2016
    AutoS(R, gamma)      R / (norm + gamma)           sensitivity R       Bu et al. 2022 ("AUTO-S")
    PerLayer(C_l)        min(1, C_l / norm_l)         sqrt(sum C_l^2)     McMahan et al. 2018
    AdaptiveQuantile     Flat or PerLayer, whose C_t follows a noisy quantile of the norms:
                         C_(t+1) = C_t exp(-rate (b - quantile))          Andrew et al. 2021;
                         the noisy sum is then multiplied by C_0 / C_t

    b = (sum over the batch of ([norm_i <= C_t] - 1/2) + N(0, s_b^2)) / (q n) + 1/2

Sensitivity is under zero-out adjacency: a record is there, or adds 0; so it is 1/2 for the sum in
b. With z_g on the gradients (in units of C_t) and s_b on the counts, a step is one Gaussian
release of noise multiplier z, z^-2 = z_g^-2 + sum_l (2 s_b)^-2. Here z is given, and
`count_share` says how much of z^-2 the counts take.

Norms are float32, so the divisor is taken (1 + 1e-5) times too large. A norm that is not finite
gets the factor 0.

Source: docs/rules.md, rules 2 and 14. Proof: docs/guarantees/dp-sgd.md (Flat, AutoS),
docs/guarantees/bounding.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from pasearch.accounting.checks import fraction, kind_of, positive
from pasearch.errors import UsageError

if TYPE_CHECKING:
    from pasearch.training.encoded.gradients import Encoded

SLACK = 1.0 + 1e-5
"""How much too large a norm is taken, for the rounding of its computation."""
LEAST_MOVED, MOST_MOVED = 1e-6, 1e6
"""Between which an adaptive bound stays."""
MOST_RATE = 10.0
"""The fastest an adaptive bound may move."""
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

    def within(self, norms: torch.Tensor) -> torch.Tensor:
        """Return whether each norm is within the bound, bool of their shape."""
        return norms <= self.clip_norm

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayer:
    """Clip every layer's part of a record's gradient to a norm of its own.

    Args:
        clip_norm: C, of all layers together, 1e-12 or above: every one of L layers has
            C / sqrt(L), unless `clip_norms` says otherwise.
        clip_norms: C_l of each trainable layer, in the network's order.
    """

    name: ClassVar[str] = "per-layer"
    clip_norm: float = 1.0
    clip_norms: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "clip_norm", _bound("clip_norm", self.clip_norm))
        if self.clip_norms is not None:
            if not isinstance(self.clip_norms, (tuple, list)) or not self.clip_norms:
                raise UsageError(
                    f"clip_norms is {self.clip_norms!r}: expected one number for each trainable "
                    "layer, or None."
                )
            each = tuple(_bound("clip_norms", value) for value in self.clip_norms)
            object.__setattr__(self, "clip_norms", each)
            object.__setattr__(self, "clip_norm", math.sqrt(math.fsum(c * c for c in each)))

    @property
    def sensitivity(self) -> float:
        """C, the root of the sum of the squares; a grain more, for its own rounding."""
        return self.clip_norm * (1 + 1e-12)

    def of_layers(self, count: int) -> torch.Tensor:
        """Return C_l of so many layers, float32 rounded down, (count, 1)."""
        given = self.clip_norms or (self.clip_norm / math.sqrt(count),) * count
        if len(given) != count:
            raise UsageError(
                f"clip_norms has {len(given)} numbers, and the network {count} trainable layers: "
                "give each layer its own, or clip_norm alone."
            )
        return torch.tensor(given, dtype=torch.float32)[:, None] * (1 - 1e-7)

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        """Return each layer's and record's factor, from the norms: both (layers, batch)."""
        bounds = self.of_layers(len(norms)).to(norms.device)
        return _finite(norms, (bounds / (norms * SLACK)).clamp(max=1.0))

    def within(self, norms: torch.Tensor) -> torch.Tensor:
        """Return whether each layer's norm is within its bound, bool, (layers, batch)."""
        return norms <= self.of_layers(len(norms)).to(norms.device)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        each = None if self.clip_norms is None else list(self.clip_norms)
        return {"name": self.name, "clip_norm": self.clip_norm, "clip_norms": each}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveQuantile:
    """Clip to a norm that follows a quantile of the batch's norms, which is bought with noise.

    Args:
        clip_norm: C_0, 1e-12 or above; of all layers together.
        quantile: The share of records that shall lie within the bound, in (0, 1).
        rate: How fast the bound moves, above 0.
        per_layer: Whether every layer has a bound, and a quantile, of its own.
        count_share: The share of the step's 1 / z^2 that the noisy counts take, in (0, 1).
    """

    name: ClassVar[str] = "adaptive"
    clip_norm: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    per_layer: bool = False
    count_share: float = 0.05

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "clip_norm", _bound("clip_norm", self.clip_norm))
        object.__setattr__(self, "rate", positive("rate", self.rate))
        if not self.rate <= MOST_RATE:
            raise UsageError(f"rate is {self.rate}: expected at most {MOST_RATE}; usual is 0.2.")
        for name in ("quantile", "count_share"):
            object.__setattr__(self, name, fraction(name, getattr(self, name)))
        if type(self.per_layer) is not bool:
            raise UsageError(f"per_layer is {self.per_layer!r}: expected true or false.")

    @property
    def sensitivity(self) -> float:
        """C_0: of the first step; later ones have `at(...).sensitivity`."""
        return self.clip_norm

    def start(self, layers: int) -> tuple[float, ...]:
        """Return the first bounds: one, or one a layer."""
        if not self.per_layer:
            return (self.clip_norm,)
        return (self.clip_norm / math.sqrt(layers),) * layers

    def at(self, bounds: tuple[float, ...]) -> Flat | PerLayer:
        """Return the bounding of a step whose bounds are these."""
        if self.per_layer:
            return PerLayer(clip_norms=bounds)
        return Flat(clip_norm=bounds[0])

    def noises(self, noise_multiplier: float, counts: int) -> tuple[float, float]:
        """Return (z_g, s_b): the gradients' noise multiplier, and the counts' noise, in records.

        Guarantee: z_g^-2 + counts (2 s_b)^-2 is at most z^-2.

        Args:
            noise_multiplier: z of the step.
            counts: How many counts a step releases: 1, or one a layer.
        """
        grown = positive("noise_multiplier", noise_multiplier) * (1 + 1e-12)
        gradients = grown / math.sqrt(1.0 - self.count_share)
        return gradients, 0.5 * grown * math.sqrt(counts / self.count_share)

    def moved(
        self, bounds: tuple[float, ...], centred: tuple[float, ...], expected_batch_size: int
    ) -> tuple[float, ...]:
        """Return the next bounds, from the released counts.

        Args:
            bounds: C_t, one or one a layer.
            centred: The noisy sums of [norm_i <= C_t] - 1/2.
            expected_batch_size: q n, a public constant.
        """
        shares = [count / expected_batch_size + 0.5 for count in centred]
        moved = (
            bound * math.exp(-self.rate * (min(max(share, -1.0), 2.0) - self.quantile))
            for bound, share in zip(bounds, shares, strict=True)
        )
        return tuple(min(max(each, LEAST_MOVED), MOST_MOVED) for each in moved)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        names = [field.name for field in fields(self)]
        return {"name": self.name, **{name: getattr(self, name) for name in names}}


Bounding = Flat | AutoS | PerLayer | AdaptiveQuantile
BOUNDINGS: dict[str, type[Bounding]] = {
    kind.name: kind for kind in (Flat, AutoS, PerLayer, AdaptiveQuantile)
}


def bounding_from_json(values: dict[str, Any]) -> Bounding | Encoded:
    """Read what `to_json` wrote.

    Raises:
        UsageError: An unknown name or number.
    """
    if not isinstance(values, dict):
        raise UsageError(f"bounding is {values!r}: expected what `to_json` wrote, or null.")
    from pasearch.training.encoded.gradients import Encoded  # which is above: it starts from `Flat`

    kind, numbers = kind_of("bounding", {**BOUNDINGS, Encoded.name: Encoded}, values)
    if isinstance(numbers.get("clip_norms"), list):
        numbers["clip_norms"] = tuple(numbers["clip_norms"])
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
