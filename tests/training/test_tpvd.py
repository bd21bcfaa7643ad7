"""TPVD by its formula, and that it tells nothing of privacy."""

from __future__ import annotations

import math

import pytest
import torch
import tpvd as module
from tpvd import tpvd

from pasearch.errors import UsageError

PLAIN = [torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([2.0])]
NOISY = [torch.tensor([[3.0, 5.0], [0.0, 4.0]]), torch.tensor([5.0])]


@pytest.mark.oracle
def test_is_the_mean_of_the_relative_frobenius_distances():
    assert tpvd(PLAIN, NOISY) == pytest.approx((5 / 5 + 3 / 2) / 2)
    assert tpvd(PLAIN, PLAIN) == 0.0


def test_layers_count_alike_whatever_their_size():
    big = [torch.ones(100, 100), torch.ones(1)]
    assert tpvd(big, [big[0], 3 * big[1]]) == pytest.approx(1.0)


def test_the_first_argument_is_the_one_without_noise():
    assert tpvd(NOISY, PLAIN) != pytest.approx(tpvd(PLAIN, NOISY))


def test_components_of_size_0():
    zero = [torch.zeros(2)]
    assert tpvd(zero, zero) == 0.0
    assert tpvd(zero, [torch.ones(2)]) == math.inf
    assert math.isnan(tpvd(zero, [torch.tensor([math.nan, 0.0])]))
    assert math.isnan(tpvd([torch.ones(2)], [torch.tensor([math.nan, 0.0])]))


def test_half_precision_does_not_overflow():
    big = [torch.full((4, 4), 6e4, dtype=torch.float16)]
    assert tpvd(big, [-big[0]]) == pytest.approx(2.0)


def test_is_no_measure_of_privacy_noise_that_hides_nothing_scores_as_high():
    """A public constant added to the weights has the TPVD of Gaussian noise, and hides nothing."""
    weights = [torch.randn(50, 50, generator=torch.Generator().manual_seed(1))]
    noise = torch.randn(50, 50, generator=torch.Generator().manual_seed(2))
    constant = torch.full((50, 50), float(noise.norm()) / 50)
    private = tpvd(weights, [weights[0] + noise])
    assert tpvd(weights, [weights[0] + constant]) == pytest.approx(private, rel=1e-6)
    assert "NOT a measure of privacy" in (module.__doc__ or "")
    assert "no privacy" in (tpvd.__doc__ or "")


def test_other_shapes_are_refused():
    for plain, noisy in [([], []), (PLAIN, PLAIN[:1]), (PLAIN, [PLAIN[1], PLAIN[0]])]:
        with pytest.raises(UsageError, match="same for both"):
            tpvd(plain, noisy)
