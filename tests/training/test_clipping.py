"""Bounds: whatever a gradient's norm, scaled it is within the sensitivity."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm as normal
from sums import clipped_sum
from torch import Tensor, nn

from pasearch.errors import UsageError
from pasearch.training.clipping import (
    CLIPPING_METHODS,
    MAX_ADAPTED_NORM,
    MIN_ADAPTED_NORM,
    NORM_SLACK,
    AdaptiveClipping,
    AutoSClipping,
    ClippingMethod,
    FlatClipping,
    PerLayerClipping,
)
from pasearch.training.per_example import (
    PreparedNetwork,
    clipped_sum_and_counts,
    list_trainable_layers,
    list_trainable_parameters,
)

KINDS = [
    FlatClipping(),
    FlatClipping(clip_norm=0.01),
    FlatClipping(clip_norm=40.0),
    AutoSClipping(),
    AutoSClipping(bound=3.0, gamma=1e-6),
]
NAMES = [f"{kind.name}-{kind.sensitivity}" for kind in KINDS]
LARGEST = 2.0**64  # the root of a float32, as every computed norm is
each_kind = pytest.mark.parametrize("kind", KINDS, ids=NAMES)


def scaled(kind: ClippingMethod, norm: float) -> float:
    """Return the norm of a bounded gradient, in double precision."""
    stored = torch.tensor([norm], dtype=torch.float32)
    return stored.double().item() * kind.factors(stored).double().item()


@pytest.mark.property
@pytest.mark.contract
@each_kind
@given(norm=st.floats(0.0, LARGEST, width=32))
def test_any_norm_is_scaled_within_the_sensitivity(kind: ClippingMethod, norm: float):
    assert 0.0 <= scaled(kind, norm) <= kind.sensitivity


@pytest.mark.property
@given(
    norm=st.floats(0.0, LARGEST, width=32),
    clip_norm=st.floats(1e-6, 1e6),
    error=st.floats(-9e-6, 9e-6),
)
def test_a_norm_computed_too_small_is_still_within_the_sensitivity(
    norm: float, clip_norm: float, error: float
):
    true = norm * (1.0 + error)
    stored = torch.tensor([norm], dtype=torch.float32)
    for kind in (FlatClipping(clip_norm=clip_norm), AutoSClipping(bound=clip_norm)):
        factor = kind.factors(stored).double().item()
        # Below the bound Flat multiplies by exactly 1, so there the norm itself stands.
        assert true * factor <= kind.sensitivity * (1 + 1e-12) or true * factor == true <= clip_norm


@pytest.mark.contract
def test_a_norm_that_is_not_finite_gets_the_factor_0():
    for kind in KINDS:
        for norm in [math.inf, math.nan, -math.inf]:
            factors = kind.factors(torch.tensor([norm, 1.0]))
            assert factors[0] == 0.0
            assert factors[1] > 0.0


@pytest.mark.unit
def test_flat_leaves_small_gradients_as_they_are_and_shortens_large_ones_to_the_bound():
    factors = FlatClipping(clip_norm=2.0).factors(torch.tensor([0.0, 1.0, 1.99, 4.0]))
    assert factors[:3].tolist() == [1.0, 1.0, 1.0]
    assert float(factors[3]) == pytest.approx(0.5 / NORM_SLACK, rel=1e-6)


@pytest.mark.unit
def test_auto_s_scales_by_its_formula():
    factors = AutoSClipping(bound=2.0, gamma=0.1).factors(torch.tensor([0.0, 0.1, 10.0]))
    assert factors.tolist() == pytest.approx(
        [20.0, 2.0 / (0.1 * NORM_SLACK + 0.1), 2.0 / (10 * NORM_SLACK + 0.1)], rel=1e-6
    )


@pytest.mark.unit
def test_a_bound_that_is_no_positive_number_is_refused():
    for value in [0.0, -1.0, math.nan, math.inf, True, "1", None]:
        with pytest.raises(UsageError, match="clip_norm"):
            FlatClipping(clip_norm=value)  # pyright: ignore[reportArgumentType]
        with pytest.raises(UsageError, match="bound"):
            AutoSClipping(bound=value)  # pyright: ignore[reportArgumentType]
        with pytest.raises(UsageError, match="gamma"):
            AutoSClipping(gamma=value)  # pyright: ignore[reportArgumentType]


@pytest.mark.unit
def test_a_gamma_below_what_float32_norms_bear_is_refused():
    with pytest.raises(UsageError, match="1e-6 or above"):
        AutoSClipping(gamma=9e-7)
    assert AutoSClipping(gamma=1e-6).gamma == 1e-6


@pytest.mark.contract
def test_a_bound_whose_factor_float32_cannot_hold_is_refused():
    """The factor of AUTO-S would be infinite: a record whose gradient is 0 would add NaN."""
    for kind in (FlatClipping, AutoSClipping):
        (first,) = (name for name in kind.field_names() if name != "gamma")
        with pytest.raises(UsageError, match="at most 1e"):
            kind(**{first: 1e33})
    assert AutoSClipping(bound=1e12, gamma=1e-6).factors(torch.zeros(1)).isfinite().all()


@pytest.mark.unit
def test_a_bound_that_float32_cannot_resolve_is_refused():
    # Squares of 1e-23 are 0 in float32, so a norm of 1e-21 can be computed as 0, and factor 1.
    with pytest.raises(UsageError, match="1e-12 or above"):
        FlatClipping(clip_norm=1e-22)
    with pytest.raises(UsageError, match="1e-12 or above"):
        AutoSClipping(bound=1e-40)
    for kind in (FlatClipping(clip_norm=1e-12), AutoSClipping(bound=1e-12)):
        assert scaled(kind, LARGEST) <= kind.sensitivity


@pytest.mark.unit
def test_json_that_names_no_bounding_is_refused():
    for values, message in [
        ({"name": "psac"}, "unknown"),
        ({"clip_norm": 1.0}, "unknown"),
        ({"name": "flat", "gamma": 0.1}, "has no gamma"),
        ({"name": "flat", "clip_norm": -1.0}, "clip_norm"),
        ("flat", "expected what `to_json` wrote"),
        (["flat"], "expected what `to_json` wrote"),
    ]:
        with pytest.raises(UsageError, match=message):
            CLIPPING_METHODS.from_json(values)  # pyright: ignore[reportArgumentType]


# --- per layer

BATCH = 6


class Crossed(nn.Module):
    """Layers that are used in another order than they are registered in, and one that is not."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 3)
        self.idle = nn.Linear(2, 2)
        self.first = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3, bias=False))


def convolved() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 3), nn.Tanh(), nn.Linear(3, 2)
    )


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (dense, (4,)),
    "convolved": (convolved, (1, 4, 4)),
    "crossed": (Crossed, (4,)),
}
each_net = pytest.mark.parametrize("name", NETS)


def made(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(4)
    build, shape = NETS[name]
    own = torch.linspace(0.5, 3.0, BATCH, dtype=dtype)
    return build().to(dtype), torch.randn(BATCH, *shape, dtype=dtype), own


def wave(own: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda outputs: (outputs.flatten(1) * own[:, None]).sin().sum(dim=1)


def everyone(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=torch.bool)


def used(network: nn.Module) -> list[nn.Module]:
    return [x for x in list_trainable_layers(network) if x is not getattr(network, "idle", None)]


def by_layer(network: nn.Module, tensors: list[Tensor]) -> list[Tensor]:
    """Return each used layer's numbers as one vector, in the order of `list_trainable_layers`."""
    own = {id(p): t for p, t in zip(list_trainable_parameters(network), tensors, strict=True)}
    return [
        torch.cat([own[id(p)].flatten() for p in layer.parameters(recurse=False)])
        for layer in used(network)
    ]


def alone(network: nn.Module, x: Tensor, own: Tensor) -> list[list[Tensor]]:
    """Return each record's gradient by layer, by autograd on a batch of one."""
    parameters = list_trainable_parameters(network)
    found = []
    for i in range(len(x)):
        loss = wave(own[i : i + 1])(network(x[i : i + 1])).sum()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        filled = [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(parameters, gradients, strict=True)
        ]
        found.append(by_layer(network, filled))
    return found


def middles(gradients: list[list[Tensor]]) -> tuple[float, ...]:
    """Return bounds that about half of the records exceed, layer by layer."""
    norms = torch.tensor([[float(g.norm()) for g in each] for each in gradients])
    return tuple(float(column.sort().values[[2, 3]].mean()) for column in norms.T)


@pytest.mark.oracle
@each_net
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
def test_each_layer_is_clipped_to_its_own_bound(name: str, dtype: torch.dtype, tolerance: float):
    network, x, own = made(name, dtype)
    gradients = alone(network, x, own)
    bounds = middles(gradients)
    assert len(set(bounds)) == len(bounds)
    expected = [
        sum(g[k] * min(1.0, bound / (float(g[k].norm()) * NORM_SLACK)) for g in gradients)
        for k, bound in enumerate(bounds)
    ]
    within = [sum(float(g[k].norm()) <= c for g in gradients) for k, c in enumerate(bounds)]
    sums, counts = clipped_sum_and_counts(
        network, x, wave(own), PerLayerClipping(clip_norms=bounds), everyone(x)
    )
    for ours, theirs in zip(by_layer(network, sums), expected, strict=True):
        assert (ours - theirs).norm() <= tolerance * theirs.norm()
    assert counts.tolist() == [number - BATCH / 2 for number in within]
    assert counts.dtype == torch.float64


@pytest.mark.unit
def test_bounds_that_go_by_the_order_of_use_would_be_found(monkeypatch: pytest.MonkeyPatch):
    honest = PreparedNetwork.capture
    monkeypatch.setattr(
        PreparedNetwork, "capture", lambda *given, **named: honest(*given, **named)[::-1]
    )
    with pytest.raises(AssertionError):
        test_each_layer_is_clipped_to_its_own_bound("crossed", torch.float64, 1e-6)


def worst(
    name: str, bounding: PerLayerClipping, scale: float, heat: float, seed: int
) -> list[float]:
    """Return by how much each layer's part of the sum moves when record 0 becomes null."""
    network, x, own = made(name, torch.float32)
    generator = torch.Generator().manual_seed(seed)
    x[0] = torch.randn(x[0].shape, generator=generator) * scale
    mask = everyone(x)
    mask[0] = False
    sums = [
        by_layer(network, clipped_sum(network, x, wave(own * heat), bounding, each))
        for each in (everyone(x), mask)
    ]
    return [float((a.double() - b.double()).norm()) for a, b in zip(*sums, strict=True)]


@pytest.mark.property
@each_net
@settings(max_examples=30)
@given(
    bounds=st.lists(st.sampled_from([1e-3, 0.1, 1.0, 7.0]), min_size=3, max_size=3),
    scale=st.sampled_from([0.0, 1e-20, 1e-3, 1.0, 1e3, 1e20, 1e30]),
    heat=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 2**20),
)
def test_one_record_moves_the_sum_by_at_most_the_root_of_the_sum_of_squares(
    name: str, bounds: list[float], scale: float, heat: float, seed: int
):
    own = tuple(bounds[: len(used(made(name)[0]))])
    bounding = PerLayerClipping(clip_norms=own)
    assert bounding.sensitivity == pytest.approx(math.sqrt(sum(c * c for c in own)), rel=1e-11)
    moved = worst(name, bounding, scale, heat, seed)
    rounding = 1e-6 * BATCH * max(own)  # two float32 sums are compared
    for one, bound in zip(moved, own, strict=True):
        assert one <= bound + rounding
    assert math.hypot(*moved) <= bounding.sensitivity + 3 * rounding


@pytest.mark.unit
def test_the_sensitivity_is_reached_and_a_smaller_claim_would_be_found():
    for name in NETS:
        count = len(used(made(name)[0]))
        for bounding in (
            PerLayerClipping(clip_norms=(0.02, 0.03, 0.01)[:count]),
            PerLayerClipping(clip_norm=0.03),
        ):
            moved = math.hypot(*worst(name, bounding, 1.0, 1e4, 1))
            assert 0.999 * bounding.sensitivity < moved <= bounding.sensitivity * (1 + 1e-5)
            largest = max(float(c) for c in bounding.layer_clip_norms(count))
            assert moved > 1.05 * largest, "as if only the largest bound counted"
        # Each layer clipped to the whole of C is the bug that 1 / sqrt(L) prevents.
        wrong = PerLayerClipping(clip_norms=(0.03,) * count)
        assert (
            math.hypot(*worst(name, wrong, 1.0, 1e4, 1))
            > 1.3 * PerLayerClipping(clip_norm=0.03).sensitivity
        )


@pytest.mark.contract
def test_a_record_that_is_not_finite_adds_exactly_0_to_every_layer():
    for name in NETS:
        for fault in [math.nan, math.inf, -math.inf]:
            network, x, own = made(name, torch.float32)
            mask = everyone(x)
            mask[2] = False
            bounding = PerLayerClipping(clip_norm=0.5)
            expected, counts = clipped_sum_and_counts(network, x, wave(own), bounding, mask)
            x[2].view(-1)[0] = fault
            found, counted = clipped_sum_and_counts(network, x, wave(own), bounding, everyone(x))
            assert all(map(torch.equal, found, expected))
            assert counted.tolist() == [count - 0.5 for count in counts.tolist()]
            # As a null record it is not counted at all.
            found, counted = clipped_sum_and_counts(network, x, wave(own), bounding, mask)
            assert all(map(torch.equal, found, expected))
            assert counted.tolist() == counts.tolist()


@pytest.mark.contract
def test_a_loss_that_is_finite_in_one_layer_only_adds_0_to_all():
    network, x, own = made("dense", torch.float32)
    mask = everyone(x)
    mask[1] = False
    expected = clipped_sum(network, x, wave(own), PerLayerClipping(), mask)
    # The first layer's squares overflow; the last layer's, behind the tanh, do not.
    x[1] = 3e38
    assert all(
        map(
            torch.equal,
            clipped_sum(network, x, wave(own), PerLayerClipping(), everyone(x)),
            expected,
        )
    )


@pytest.mark.property
@given(
    norms=st.lists(st.floats(0.0, LARGEST, width=32), min_size=2, max_size=2),
    bounds=st.lists(st.floats(1e-12, 1e6), min_size=2, max_size=2),
)
def test_any_norms_of_layers_are_scaled_within_the_sensitivity(
    norms: list[float], bounds: list[float]
):
    bounding = PerLayerClipping(clip_norms=tuple(bounds))
    factors = bounding.factors(torch.tensor(norms, dtype=torch.float32)[:, None])
    scaled = [norm * float(factor) for norm, factor in zip(norms, factors[:, 0], strict=True)]
    assert all(one <= bound for one, bound in zip(scaled, bounds, strict=True))
    assert math.hypot(*scaled) <= bounding.sensitivity


@pytest.mark.unit
def test_one_number_is_shared_out_among_the_layers():
    bounding = PerLayerClipping(clip_norm=3.0)
    assert bounding.layer_clip_norms(9).flatten().tolist() == pytest.approx([1.0] * 9, rel=1e-6)
    assert bounding.sensitivity == pytest.approx(3.0)
    given_each = PerLayerClipping(clip_norm=99.0, clip_norms=(3.0, 4.0))
    assert given_each.clip_norm == pytest.approx(5.0)


@pytest.mark.unit
def test_bounds_of_another_number_of_layers_are_refused():
    with pytest.raises(UsageError, match="2 numbers, and the network has 3"):
        PerLayerClipping(clip_norms=(1.0, 2.0)).layer_clip_norms(3)
    network, x, own = made("dense")
    with pytest.raises(UsageError, match="trainable layers"):
        clipped_sum(network, x, wave(own), PerLayerClipping(clip_norms=(1.0, 2.0)), everyone(x))


@pytest.mark.unit
def test_bounds_of_layers_that_are_no_positive_numbers_are_refused():
    for value in [(), [], (0.0, 1.0), (1.0, math.nan), 3.0, "12", (1.0, "1")]:
        with pytest.raises(UsageError, match="clip_norms"):
            PerLayerClipping(clip_norms=value)  # pyright: ignore[reportArgumentType]


# --- adaptive

ADAPTIVE = [
    AdaptiveClipping(),
    AdaptiveClipping(quantile=0.9, rate=0.1, count_share=0.2),
    AdaptiveClipping(per_layer=True, clip_norm=0.3),
]


@pytest.mark.contract
def test_a_bounding_by_layer_or_quantile_survives_json():
    for kind in [*KINDS, *ADAPTIVE, PerLayerClipping(), PerLayerClipping(clip_norms=(0.1, 2.0))]:
        assert CLIPPING_METHODS.from_json(json.loads(json.dumps(kind.to_json()))) == kind


@pytest.mark.unit
@pytest.mark.quick
def test_the_noise_of_one_and_one_is_that_of_the_pin():
    z = math.sqrt(0.8)  # z^-2 = 1 + 1/4
    assert z == pytest.approx(0.894, abs=5e-4)
    gradients, counts = AdaptiveClipping(count_share=0.2).noises(z, 1)
    assert gradients == pytest.approx(1.0, rel=1e-9)
    assert counts == pytest.approx(1.0, rel=1e-9)


@pytest.mark.property
@given(
    z=st.floats(1e-3, 1e3), share=st.floats(1e-6, 0.999), layers=st.integers(1, 500)
)  # fmt: skip
def test_gradients_and_counts_together_have_the_noise_that_is_priced(
    z: float, share: float, layers: int
):
    gradients, counts = AdaptiveClipping(count_share=share).noises(z, layers)
    together = gradients**-2 + layers * (2 * counts) ** -2
    assert together <= z**-2
    assert together == pytest.approx(z**-2, rel=1e-9)
    assert layers * (2 * counts) ** -2 == pytest.approx(share * z**-2, rel=1e-9)


def shift(adaptive: AdaptiveClipping, size: float, plain: float = 0.0) -> float:
    """Return how far one record of that norm moves gradients and counts, in units of their noise.

    With `plain` 1/2 the counts are of 0 and 1, as they would be without the centre.
    """
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    for p in network.parameters():
        nn.init.ones_(p)
    x = torch.tensor([[1.0, 0.0], [0.3, 0.4]])
    mask = torch.tensor([True, True])
    layers = len(list(network.parameters()))
    bounds = adaptive.start(layers)
    z_g, s_b = adaptive.noises(1.3, len(bounds))
    bounding = adaptive.at(bounds)
    worlds = []
    for present in (mask, torch.tensor([False, True])):
        sums, counts = clipped_sum_and_counts(
            network, x, lambda y: y[:, 0] * torch.tensor([size, 1.0]), bounding, present
        )
        counts = counts + plain * int(present.sum())
        gradients = torch.cat([each.flatten() for each in sums]) / (z_g * bounding.sensitivity)
        worlds.append(torch.cat([gradients.double(), counts / s_b]))
    return float((worlds[0] - worlds[1]).norm())


@pytest.mark.property
@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("share", [0.02, 0.2, 0.8])
@settings(max_examples=30)
@given(size=st.one_of(st.floats(0.0, 4.0), st.just(1e30), st.just(math.nan)))
def test_gradients_and_counts_move_together_by_no_more_than_is_priced(
    per_layer: bool, share: float, size: float
):
    adaptive = AdaptiveClipping(per_layer=per_layer, count_share=share)
    assert shift(adaptive, size) <= 1 / 1.3 * (1 + 1e-5)


@pytest.mark.unit
def test_the_price_is_reached_and_counts_of_0_and_1_would_exceed_it():
    for per_layer in [False, True]:
        adaptive = AdaptiveClipping(per_layer=per_layer, count_share=0.2)
        sizes = np.linspace(0.01, 2.0, 100)
        assert max(shift(adaptive, float(size)) for size in sizes) > 0.98 / 1.3
        if per_layer:  # at most one record's bounds are met by both layers at once
            assert max(shift(adaptive, float(size), plain=0.5) for size in sizes) > 1.1 / 1.3
        else:
            exceeded = max(shift(adaptive, float(size), plain=0.5) for size in sizes)
            # z_g^-2 + s_b^-2 where z_g^-2 + (2 s_b)^-2 is charged.
            assert exceeded == pytest.approx(math.sqrt(0.8 + 4 * 0.2) / 1.3, rel=0.02)


@pytest.mark.contract
def test_a_count_changes_by_one_half_when_a_record_becomes_null():
    for name in NETS:
        for per_layer in [False, True]:
            network, x, own = made(name, torch.float32)
            gradients = alone(network, x, own)
            norms = [math.hypot(*(float(g.norm()) for g in each)) for each in gradients]
            flat = FlatClipping(clip_norm=float(np.median(norms)))
            bounding = PerLayerClipping(clip_norms=middles(gradients)) if per_layer else flat
            whole = clipped_sum_and_counts(network, x, wave(own), bounding, everyone(x))[1]
            assert len(whole) == (len(used(network)) if per_layer else 1)
            changes = set()
            for i in range(BATCH):
                mask = everyone(x)
                mask[i] = False
                counts = clipped_sum_and_counts(network, x, wave(own), bounding, mask)[1]
                changes |= set((whole - counts).tolist())
            assert changes == {-0.5, 0.5}
            nobody = clipped_sum_and_counts(network, x, wave(own), bounding, ~everyone(x))[1]
            assert nobody.tolist() == [0.0] * len(whole)


@pytest.mark.unit
def test_bounds_move_by_their_formula():
    adaptive = AdaptiveClipping(quantile=0.6, rate=0.3)
    # 70 of the 100 that were expected lie within, 10 do not: the sum of +-1/2 is 30.
    (moved,) = adaptive.update_clip_norms((2.0,), (30.0,), 100)
    assert moved == pytest.approx(2.0 * math.exp(-0.3 * (0.8 - 0.6)))
    # Half of q n is added whatever came: nobody there reads as one half.
    assert adaptive.update_clip_norms((2.0,), (0.0,), 100)[0] == pytest.approx(
        2.0 * math.exp(0.3 * 0.1)
    )
    both = AdaptiveClipping(per_layer=True).update_clip_norms((1.0, 3.0), (50.0, -50.0), 100)
    assert both == pytest.approx((math.exp(-0.1), 3.0 * math.exp(0.1)))


@pytest.mark.unit
def test_a_bound_stays_a_usable_number_whatever_the_noise():
    for noise in [1e300, -1e300, 1e9, -1e9]:
        adaptive, bounds = AdaptiveClipping(rate=5.0), (1.0,)
        for _ in range(50):
            bounds = adaptive.update_clip_norms(bounds, (noise,), 10)
            assert MIN_ADAPTED_NORM <= bounds[0] <= MAX_ADAPTED_NORM
            adaptive.at(bounds)


@pytest.mark.statistical
def test_the_bound_converges_to_the_quantile_of_the_norms():
    for quantile in [0.3, 0.5, 0.9]:
        for start in [1e-2, 1e2]:
            generator = np.random.default_rng(8)
            adaptive = AdaptiveClipping(clip_norm=start, quantile=quantile, count_share=0.05)
            _, deviation = adaptive.noises(1.0, 1)
            bounds, late = adaptive.start(1), []
            for step in range(600):
                size = generator.binomial(2000, 0.1)
                norms = torch.from_numpy(generator.lognormal(0.5, 0.7, size)).float()
                centred = float((adaptive.at(bounds).within(norms).double() - 0.5).sum())
                noisy = centred + deviation * generator.standard_normal()
                bounds = adaptive.update_clip_norms(bounds, (noisy,), 200)
                if step >= 200:
                    late.append(math.log(bounds[0]))
            target = 0.5 + 0.7 * float(normal.ppf(quantile))
            assert np.mean(late) == pytest.approx(target, abs=0.04)
            for other in (quantile - 0.1, quantile + 0.08):
                assert abs(np.mean(late) - (0.5 + 0.7 * float(normal.ppf(other)))) > 0.08


@pytest.mark.unit
def test_the_bounding_of_a_step_has_the_bounds_of_that_step():
    adaptive = AdaptiveClipping(clip_norm=2.0)
    assert adaptive.start(7) == (2.0,)
    assert adaptive.at((0.7,)) == FlatClipping(clip_norm=0.7)
    layered = AdaptiveClipping(clip_norm=2.0, per_layer=True)
    assert layered.start(4) == (1.0,) * 4
    assert layered.at((3.0, 4.0)) == PerLayerClipping(clip_norms=(3.0, 4.0))
    assert layered.at((3.0, 4.0)).sensitivity == pytest.approx(5.0)


@pytest.mark.unit
def test_a_number_that_an_adaptive_bound_cannot_use_is_refused():
    for name, value in [
        ("quantile", 0.0),
        ("quantile", 1.0),
        ("quantile", math.nan),
        ("quantile", True),
        ("count_share", 0.0),
        ("count_share", 1.0),
        ("count_share", -0.1),
        ("rate", 0.0),
        ("rate", math.inf),
        ("rate", "1"),
        ("clip_norm", 0.0),
        ("clip_norm", 1e-13),
        ("per_layer", 1),
        ("per_layer", "yes"),
        ("per_layer", None),
    ]:
        with pytest.raises(UsageError, match=name):
            AdaptiveClipping(**{name: value})  # pyright: ignore[reportArgumentType]


@pytest.mark.unit
def test_counts_are_never_released_without_noise():
    for value in [0.0, -1.0, math.nan, math.inf, "1"]:
        with pytest.raises(UsageError, match="noise_multiplier"):
            AdaptiveClipping().noises(value, 1)  # pyright: ignore[reportArgumentType]
