"""Clipping methods: they limit the gradient that one record adds to the sum of a step.

    flat         factor min(1, C / norm)                            sensitivity C
    auto-s       factor R / (norm + gamma)                          sensitivity R
    per-layer    factor min(1, C_l / norm_l) for each layer         sensitivity sqrt(sum C_l^2)
    adaptive     flat or per-layer with norms C_t that follow a noisy quantile of gradient norms

The sensitivity holds under zero-out adjacency: a record adds its clipped gradient, or 0. Norms are
computed in float32, so they are multiplied by `NORM_SLACK`. If a norm is not finite, the factor is
0.

Sources: Abadi et al. 2016 (flat); Bu et al. 2022 (AUTO-S); McMahan et al. 2018 (per layer); Andrew
et al. 2021 (adaptive). Rules: docs/rules.md, 2 and 14. Proof: docs/guarantees/dp-sgd.md (flat,
AUTO-S) and bounding.md (per layer, adaptive).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pasearch.accounting.checks import check_boolean, check_fraction, check_positive
from pasearch.errors import UsageError
from pasearch.registry import FieldChecks, Registry, Stage
from pasearch.runs.sums import SUM_ROUNDING

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from pasearch.accounting.additive import Shifts
    from pasearch.training.per_example import Loss, PreparedNetwork
    from pasearch.training.record_sums import SumBuffers

NO_CLIPPING = math.inf, 0.0, 1.0
"""`ClippingMethod.terms` for which all factors are 1."""
NORM_SLACK = 1.0 + 1e-5
"""Factor on a computed norm, for its rounding error."""
MAX_CLIP_NORM = 1e12
"""Maximum clipping norm; with a larger one, factors could exceed float32."""
MIN_CLIP_NORM = 1e-12
"""Minimum clipping norm; with a smaller one, squares and factors could underflow in float32."""
MIN_ADAPTED_NORM = 1e-6
"""Minimum clipping norm of adaptive clipping."""
MAX_ADAPTED_NORM = 1e6
"""Maximum clipping norm of adaptive clipping."""


class ClippingMethod(Stage):
    """Clipping method: it limits the gradient that one record adds to the sum of a step.

    Most methods multiply each gradient by a factor that depends only on its norm. They define
    `terms`, or `factors` if the factor has another form.
    """

    __slots__ = ()

    is_per_layer: ClassVar[bool] = False
    """Whether the gradient of each layer has its own norm and factor."""
    is_adaptive: ClassVar[bool] = False
    """Whether clipping norms change from step to step, by noisy counts."""
    clips_noise: ClassVar[bool] = False
    """Whether noise may be added to the gradient of each record before it is clipped."""
    limits_coordinates: ClassVar[bool] = False
    """Whether every coordinate is limited, as non-Gaussian noise requires."""
    takes_views: ClassVar[bool] = True
    """Whether the mean gradient of several views of a record can be clipped."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Maximum L2 norm of the vector that one record adds to the sum, in exact arithmetic."""

    @property
    def computed_sensitivity(self) -> float:
        """Maximum L2 change by one record of the sum in floating point; noise is relative to it."""
        return SUM_ROUNDING * self.sensitivity

    @property
    def has_uniform_noise(self) -> bool:
        """Whether the noise of a step has the same variance in all coordinates."""
        return True

    @property
    def terms(self) -> tuple[float, float, float] | None:
        """Numbers (top, plus, most) if factors are min(most, top / (norm + plus)); else None.

        Guarantee: norm times factor is at most `sensitivity` if norm + plus is above 0.
        """
        return None

    def factors(self, norms: Tensor) -> Tensor:
        """Compute the factor by which each gradient is multiplied, in the shape of the norms.

        Guarantee: norm times factor is at most `sensitivity`. The factor is 0 if the norm is not
        finite.

        Args:
            norms: Norms of gradients, (batch,); for per-layer methods (layers, batch).
        """
        if self.terms is None:
            raise UsageError(
                f"Clipping method {self.name!r} has no per-record factors: use `sums`."
            )
        top, plus, most = self.terms
        return zero_nonfinite_factors(norms, (top / (norms * NORM_SLACK + plus)).clamp(max=most))

    def within(self, norms: Tensor) -> Tensor | None:
        """Mark the norms that are at most the clipping norm; None if the method counts none."""
        return None

    def sums(
        self,
        network: nn.Module | PreparedNetwork,
        x: Tensor,
        loss: Loss,
        mask: Tensor,
        *,
        views: int = 1,
        weights: Tensor | None = None,
        buffers: SumBuffers | None = None,
        counted: bool = True,
    ) -> tuple[list[Tensor], Tensor]:
        """Compute the sum of clipped gradients, and counts; see `clipped_sum_and_counts`."""
        from pasearch.training.per_example import clipped_sum_and_counts

        return clipped_sum_and_counts(
            network, x, loss, self, mask, views=views, weights=weights, buffers=buffers,
            counted=counted,
        )  # fmt: skip

    def start(self, layers: int) -> tuple[float, ...]:
        """Compute the initial clipping norms of an adaptive method: one, or one per layer."""
        return ()

    def at(self, bounds: tuple[float, ...]) -> ClippingMethod:
        """Make the clipping method of a step of an adaptive method, from its clipping norms."""
        return self

    def noises(self, noise_multiplier: float, counts: int) -> tuple[float, float]:
        """Divide the noise of a step between gradients and counts, for an adaptive method."""
        raise NotImplementedError(f"{self.name} releases no counts")

    def update_clip_norms(
        self, bounds: tuple[float, ...], centred: tuple[float, ...], expected_batch_size: int
    ) -> tuple[float, ...]:
        """Compute the next clipping norms of an adaptive method from the released counts."""
        raise NotImplementedError(f"{self.name} releases no counts")

    def shifts(self, dimension: int) -> Shifts:
        """Compute upper bounds of the sorted magnitudes of a record's clipped gradient."""
        raise NotImplementedError(f"{self.name} does not bound every coordinate")


CLIPPING_METHODS = Registry(
    "bounding", ClippingMethod, "pasearch.training.clipping", "pasearch.training.encoded",
    example='{ name = "flat", clip_norm = 1.0 }',
)  # fmt: skip


def check_clip_norm(name: str, value: object) -> float:
    """Check that a value is a number from `MIN_CLIP_NORM` to `MAX_CLIP_NORM`, and return it.

    Raises:
        UsageError: It is not.
    """
    number = check_positive(name, value)
    if not number <= MAX_CLIP_NORM:
        raise UsageError(
            f"{name} is {number}: expected at most {MAX_CLIP_NORM:g}, so that float32 can hold the "
            "factors of gradients. The default is 1."
        )
    if not number >= MIN_CLIP_NORM:
        raise UsageError(
            f"{name} is {number}: expected {MIN_CLIP_NORM} or above, so that float32 "
            "can represent the squares. The default is 1."
        )
    return number


def zero_nonfinite_factors(norms: Tensor, factors: Tensor) -> Tensor:
    """Replace the factors of norms that are not finite by 0."""
    import torch

    return torch.where(norms < math.inf, factors, 0.0)


def has_factor_terms(bounding: ClippingMethod) -> bool:
    """Check whether the factors of a clipping method are determined by its `terms`."""
    kind, named = type(bounding), bounding.terms is not None
    return named and kind.sums is ClippingMethod.sums and kind.factors is ClippingMethod.factors


@CLIPPING_METHODS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class FlatClipping(ClippingMethod):
    """Clipping of the gradient of each record to norm C, over all layers together.

    Args:
        clip_norm: Clipping norm C, 1e-12 or above.

    >>> FlatClipping(clip_norm=0.5).describe()
    'clipped to norm 0.5'
    """

    name: ClassVar[str] = "flat"
    description_template: ClassVar[str] = "clipped to norm {clip_norm:g}"
    checks: ClassVar[FieldChecks] = {"clip_norm": check_clip_norm}
    clips_noise: ClassVar[bool] = True
    clip_norm: float = 1.0

    @property
    def sensitivity(self) -> float:
        return self.clip_norm

    @property
    def terms(self) -> tuple[float, float, float]:
        return self.clip_norm, 0.0, 1.0

    def within(self, norms: Tensor) -> Tensor:
        return norms <= self.clip_norm


def _check_gamma(name: str, value: object) -> float:
    """Check the constant gamma of AUTO-S, and return it."""
    gamma = check_positive(name, value)
    if not gamma >= 1e-6:
        raise UsageError(
            f"{name} is {gamma}: expected 1e-6 or above, so that a gradient whose norm rounds to 0 "
            "stays bounded. The default is 0.01."
        )
    return gamma


@CLIPPING_METHODS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class AutoSClipping(ClippingMethod):
    """Normalisation of the gradient of each record to about norm R (AUTO-S).

    Args:
        bound: Norm R, 1e-12 or above.
        gamma: Constant in the divisor, 1e-6 or above. It preserves the order of small gradients,
            and limits those whose norm is computed as 0 (below about 1e-22).
    """

    name: ClassVar[str] = "auto-s"
    description_template: ClassVar[str] = (
        "scaled to about norm {bound:g}, large or small (AUTO-S, gamma {gamma:g})"
    )
    checks: ClassVar[FieldChecks] = {"bound": check_clip_norm, "gamma": _check_gamma}
    bound: float = 1.0
    gamma: float = 0.01

    @property
    def sensitivity(self) -> float:
        return self.bound

    @property
    def terms(self) -> tuple[float, float, float]:
        return self.bound, self.gamma, math.inf


@CLIPPING_METHODS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerClipping(ClippingMethod):
    """Clipping of the gradient of each layer, for each record, to a norm of the layer.

    Args:
        clip_norm: Clipping norm C of all layers together, 1e-12 or above.
        clip_norms: Clipping norm C_l of each trainable layer, in the network's order. None:
            C / sqrt(L) for each of L layers.
    """

    name: ClassVar[str] = "per-layer"
    is_per_layer: ClassVar[bool] = True
    clip_norm: float = 1.0
    clip_norms: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", check_clip_norm("clip_norm", self.clip_norm))
        if self.clip_norms is not None:
            if not isinstance(self.clip_norms, (tuple, list)) or not self.clip_norms:
                raise UsageError(
                    f"clip_norms is {self.clip_norms!r}: expected one number for each trainable "
                    "layer, or None."
                )
            each = tuple(check_clip_norm("clip_norms", value) for value in self.clip_norms)
            object.__setattr__(self, "clip_norms", each)
            object.__setattr__(self, "clip_norm", math.sqrt(math.fsum(c * c for c in each)))

    @property
    def sensitivity(self) -> float:
        """Maximum L2 norm that one record adds: C, increased by 1e-12 for rounding."""
        return self.clip_norm * (1 + 1e-12)

    def layer_clip_norms(self, count: int, device: str | torch.device = "cpu") -> Tensor:
        """Compute the clipping norms of `count` layers, float32, rounded down, (count, 1)."""
        import torch

        given = self.clip_norms or (self.clip_norm / math.sqrt(count),) * count
        if len(given) != count:
            raise UsageError(
                f"clip_norms has {len(given)} numbers, and the network has {count} trainable "
                "layers: give one number per layer, or only clip_norm."
            )
        each = [torch.full((1, 1), value, dtype=torch.float32, device=device) for value in given]
        return torch.cat(each) * (1 - 1e-7)

    def factors(self, norms: Tensor) -> Tensor:
        """Compute the factor of each layer's gradient from its norm, both (layers, batch)."""
        bounds = self.layer_clip_norms(len(norms), norms.device)
        return zero_nonfinite_factors(norms, (bounds / (norms * NORM_SLACK)).clamp(max=1.0))

    def within(self, norms: Tensor) -> Tensor:
        return norms <= self.layer_clip_norms(len(norms), norms.device)

    def describe(self) -> str:
        if self.clip_norms is None:
            return f"clipped layer by layer, to norm {self.clip_norm:g} in total"
        each = ", ".join(f"{value:g}" for value in self.clip_norms)
        return f"clipped layer by layer, to norms {each}"


def _check_adaptation_rate(name: str, value: object) -> float:
    """Check the step size of adaptive clipping, and return it."""
    rate = check_positive(name, value)
    if not rate <= 10.0:
        raise UsageError(f"{name} is {rate}: expected at most 10; the default is 0.2.")
    return rate


@CLIPPING_METHODS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClipping(ClippingMethod):
    """Clipping to a norm C_t that follows a privately estimated quantile of the gradient norms.

        C_(t+1) = C_t exp(-rate (b - quantile))
        b = (sum over the batch of ([norm_i <= C_t] - 1/2) + N(0, s_b^2)) / (q n) + 1/2

    b is a noisy estimate of the fraction of records with a norm of at most C_t. A record changes
    the sum in b by at most 1/2. The noisy sum of gradients is multiplied by C_0 / C_t.

    With a noise multiplier z_g for the gradients and noise s_b for each count, a step costs as much
    as one Gaussian release with the noise multiplier z, where z^-2 = z_g^-2 + sum over counts of
    (2 s_b)^-2. z is given, and `count_share` is the fraction of z^-2 that the counts use.

    Args:
        clip_norm: Initial clipping norm C_0 of all layers together, 1e-12 or above.
        quantile: Fraction of records that should have a norm of at most C_t, in (0, 1).
        rate: Step size of the logarithm of the clipping norm, above 0.
        per_layer: Whether each layer has its own clipping norm.
        count_share: Fraction of z^-2 that the noisy counts use, in (0, 1).
    """

    name: ClassVar[str] = "adaptive"
    is_adaptive: ClassVar[bool] = True
    checks: ClassVar[FieldChecks] = {
        "clip_norm": check_clip_norm, "rate": _check_adaptation_rate,
        "quantile": check_fraction, "count_share": check_fraction, "per_layer": check_boolean,
    }  # fmt: skip
    clip_norm: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    per_layer: bool = False
    count_share: float = 0.05

    @property
    def sensitivity(self) -> float:
        """Sensitivity C_0 of the first step; that of later steps is `at(...).sensitivity`."""
        return self.clip_norm

    @property
    def has_uniform_noise(self) -> bool:
        """Whether all layers have the same clipping norm, and therefore the same noise."""
        return not self.per_layer

    def factors(self, norms: Tensor) -> Tensor:
        """Raise an error, because only the method of a single step, `at(...)`, has factors."""
        raise UsageError("Adaptive clipping has no fixed factors: use `at(bounds)`.")

    def start(self, layers: int) -> tuple[float, ...]:
        if not self.per_layer:
            return (self.clip_norm,)
        return (self.clip_norm / math.sqrt(layers),) * layers

    def at(self, bounds: tuple[float, ...]) -> FlatClipping | PerLayerClipping:
        if self.per_layer:
            return PerLayerClipping(clip_norms=bounds)
        return FlatClipping(clip_norm=bounds[0])

    def noises(self, noise_multiplier: float, counts: int) -> tuple[float, float]:
        """Compute z_g and s_b: noise multiplier of the gradients, noise of each count in records.

        Guarantee: z_g^-2 + counts (2 s_b)^-2 is at most z^-2.

        Args:
            noise_multiplier: Noise multiplier z of the step.
            counts: Number of counts that the step releases: 1, or one per layer.
        """
        grown = check_positive("noise_multiplier", noise_multiplier) * (1 + 1e-12)
        gradients = grown / math.sqrt(1.0 - self.count_share)
        return gradients, 0.5 * grown * math.sqrt(counts / self.count_share)

    def update_clip_norms(
        self, bounds: tuple[float, ...], centred: tuple[float, ...], expected_batch_size: int
    ) -> tuple[float, ...]:
        """Compute the clipping norms of the next step.

        Args:
            bounds: Current clipping norms C_t: one, or one per layer.
            centred: Released noisy sums of [norm_i <= C_t] - 1/2, one per clipping norm.
            expected_batch_size: Expected batch size q n.
        """
        shares = [count / expected_batch_size + 0.5 for count in centred]
        moved = (
            bound * math.exp(-self.rate * (min(max(share, -1.0), 2.0) - self.quantile))
            for bound, share in zip(bounds, shares, strict=True)
        )
        return tuple(min(max(each, MIN_ADAPTED_NORM), MAX_ADAPTED_NORM) for each in moved)

    def describe(self) -> str:
        where = "layer by layer, each to a norm" if self.per_layer else "to a norm"
        return (
            f"clipped {where} that follows a noisy quantile of all norms, {self.quantile:g} "
            f"({self.clip_norm:g} at first, rate {self.rate:g}; the noisy counts use "
            f"{100 * self.count_share:g} % of each step's 1 / z^2)"
        )
