"""Bounds: whatever a gradient's norm, scaled it is within the sensitivity."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pasearch.errors import UsageError
from pasearch.training.bounding import SLACK, AutoS, Bounding, Flat, bounding_from_json

KINDS = [
    Flat(),
    Flat(clip_norm=0.01),
    Flat(clip_norm=40.0),
    AutoS(),
    AutoS(bound=3.0, gamma=1e-6),
]
NAMES = [f"{kind.name}-{kind.sensitivity}" for kind in KINDS]
NORMS = [0.0, 1e-45, 1e-38, 1e-30, 1e-6, 0.5, 1.0, 1.0000001, 7.0, 1e10, 2.0**64, 1e30]
LARGEST = 2.0**64  # the root of a float32, as every computed norm is
each_kind = pytest.mark.parametrize("kind", KINDS, ids=NAMES)


def scaled(kind: Bounding, norm: float) -> float:
    """Return the norm of a bounded gradient, in double precision."""
    stored = torch.tensor([norm], dtype=torch.float32)
    return stored.double().item() * kind.factors(stored).double().item()


@pytest.mark.contract
@each_kind
@pytest.mark.parametrize("norm", NORMS)
def test_a_scaled_norm_is_within_the_sensitivity(kind: Bounding, norm: float):
    assert scaled(kind, norm) <= kind.sensitivity


@pytest.mark.property
@pytest.mark.contract
@each_kind
@given(norm=st.floats(0.0, LARGEST, width=32))
def test_any_norm_is_scaled_within_the_sensitivity(kind: Bounding, norm: float):
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
    for kind in (Flat(clip_norm=clip_norm), AutoS(bound=clip_norm)):
        factor = kind.factors(stored).double().item()
        # Below the bound Flat multiplies by exactly 1, so there the norm itself stands.
        assert true * factor <= kind.sensitivity * (1 + 1e-12) or true * factor == true <= clip_norm


@pytest.mark.contract
@each_kind
@pytest.mark.parametrize("norm", [math.inf, math.nan, -math.inf])
def test_a_norm_that_is_not_finite_gets_the_factor_0(kind: Bounding, norm: float):
    factors = kind.factors(torch.tensor([norm, 1.0]))
    assert factors[0] == 0.0
    assert factors[1] > 0.0


@pytest.mark.contract
@each_kind
def test_each_record_has_the_factor_it_has_alone(kind: Bounding):
    norms = torch.tensor(NORMS)
    alone = torch.cat([kind.factors(norm[None]) for norm in norms])
    assert torch.equal(kind.factors(norms), alone)


@pytest.mark.unit
def test_flat_leaves_small_gradients_as_they_are_and_shortens_large_ones_to_the_bound():
    factors = Flat(clip_norm=2.0).factors(torch.tensor([0.0, 1.0, 1.99, 4.0]))
    assert factors[:3].tolist() == [1.0, 1.0, 1.0]
    assert float(factors[3]) == pytest.approx(0.5 / SLACK, rel=1e-6)


@pytest.mark.unit
def test_auto_s_scales_by_its_formula():
    factors = AutoS(bound=2.0, gamma=0.1).factors(torch.tensor([0.0, 0.1, 10.0]))
    assert factors.tolist() == pytest.approx(
        [20.0, 2.0 / (0.1 * SLACK + 0.1), 2.0 / (10 * SLACK + 0.1)], rel=1e-6
    )


@pytest.mark.unit
def test_auto_s_keeps_the_order_of_norms():
    norms = torch.linspace(0.0, 5.0, 50)
    assert ((norms * AutoS().factors(norms)).diff() > 0).all()


@pytest.mark.contract
@each_kind
def test_a_bounding_survives_json(kind: Bounding):
    assert bounding_from_json(json.loads(json.dumps(kind.to_json()))) == kind


@pytest.mark.unit
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, True, "1", None])
def test_a_bound_that_is_no_positive_number_is_refused(value: object):
    with pytest.raises(UsageError, match="clip_norm"):
        Flat(clip_norm=value)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="bound"):
        AutoS(bound=value)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="gamma"):
        AutoS(gamma=value)  # pyright: ignore[reportArgumentType]


@pytest.mark.unit
def test_a_gamma_below_what_float32_norms_bear_is_refused():
    with pytest.raises(UsageError, match="1e-6 or above"):
        AutoS(gamma=9e-7)
    assert AutoS(gamma=1e-6).gamma == 1e-6


@pytest.mark.unit
def test_a_bound_that_float32_cannot_resolve_is_refused():
    # Squares of 1e-23 are 0 in float32, so a norm of 1e-21 can be computed as 0, and factor 1.
    with pytest.raises(UsageError, match="1e-12 or above"):
        Flat(clip_norm=1e-22)
    with pytest.raises(UsageError, match="1e-12 or above"):
        AutoS(bound=1e-40)
    for kind in (Flat(clip_norm=1e-12), AutoS(bound=1e-12)):
        assert scaled(kind, LARGEST) <= kind.sensitivity


@pytest.mark.unit
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "psac"}, "unknown"),
        ({"clip_norm": 1.0}, "unknown"),
        ({"name": "flat", "gamma": 0.1}, "has no gamma"),
        ({"name": "flat", "clip_norm": -1.0}, "clip_norm"),
        ("flat", "expected what `to_json` wrote"),
        (["flat"], "expected what `to_json` wrote"),
    ],
)
def test_json_that_names_no_bounding_is_refused(values: object, message: str):
    with pytest.raises(UsageError, match=message):
        bounding_from_json(values)  # pyright: ignore[reportArgumentType]
