from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from pasearch.errors import UsageError
from pasearch.spaces.modules import (
    KeyedDropout,
    Rescale,
    TemperedSigmoid,
    WeightStandardisedConv2d,
)


class TestRescale:
    def test_maps_declared_bounds_to_zero_and_one(self):
        for dtype in [torch.uint8, torch.int64, torch.float32, torch.float64]:
            x = torch.tensor([0, 4, 16], dtype=dtype)
            found = Rescale(0.0, 16.0)(x)
            assert found.dtype == torch.float32
            assert found.tolist() == [0.0, 0.25, 1.0]

    def test_clamps_what_is_outside(self):
        found = Rescale(-1.0, 1.0)(torch.tensor([-9.0, 0.0, float("inf"), 2.0]))
        assert found.tolist() == [0.0, 0.5, 1.0, 1.0]

    def test_narrow_bounds_far_from_zero_lose_nothing(self):
        x = torch.tensor([1.7e9, 1.7e9 + 25, 1.7e9 + 90], dtype=torch.float64)
        found = Rescale(1.7e9, 1.7e9 + 100)(x)
        np.testing.assert_allclose(found.numpy(), [0.0, 0.25, 0.9], rtol=1e-6)


class TestTemperedSigmoid:
    def test_is_tanh_at_its_defaults(self):
        x = torch.linspace(-5, 5, 41)
        torch.testing.assert_close(TemperedSigmoid()(x), torch.tanh(x), rtol=1e-5, atol=1e-6)

    def test_is_its_formula(self):
        x = torch.linspace(-3, 3, 13)
        expected = 1.6 / (1 + torch.exp(-3.0 * x)) - 0.7
        torch.testing.assert_close(TemperedSigmoid(1.6, 3.0, 0.7)(x), expected)


class TestKeyedDropout:
    def test_the_same_key_gives_the_same_mask_whatever_else_is_drawn(self):
        layer, x = KeyedDropout(0.5), torch.ones(40, 40)
        layer.reseed(7)
        first = layer(x)
        torch.rand(100)
        layer.reseed(7)
        assert torch.equal(layer(x), first)
        assert not torch.equal(layer(x), first)  # the second draw of one step
        layer.reseed(8)
        assert not torch.equal(layer(x), first)

    def test_high_bits_of_a_key_count(self):
        layer, x = KeyedDropout(0.5), torch.ones(40, 40)
        layer.reseed(7)
        first = layer(x)
        layer.reseed(7 + 2**40)
        assert not torch.equal(layer(x), first)

    @pytest.mark.statistical
    def test_drops_its_rate_and_keeps_the_mean(self):
        layer, x = KeyedDropout(0.3), torch.ones(300, 300)
        layer.reseed(3)
        found = layer(x)
        dropped = float((found == 0).float().mean())
        error = (0.3 * 0.7 / x.numel()) ** 0.5
        assert abs(dropped - 0.3) < 5 * error
        assert abs(dropped - 0.2) > 5 * error
        assert abs(dropped - 0.45) > 5 * error
        assert found.unique().tolist() == pytest.approx([0.0, 1 / 0.7])

    def test_does_nothing_outside_training_or_at_rate_zero(self):
        x = torch.rand(5, 5)
        assert torch.equal(KeyedDropout(0.5).eval()(x), x)
        for rate in (1.0, -0.1, math.nan):
            with pytest.raises(UsageError, match="dropout rate"):
                KeyedDropout(rate)
        assert torch.equal(KeyedDropout(0.0)(x), x)

    def test_leaves_torch_s_own_generator_alone(self):
        before = torch.get_rng_state()
        layer = KeyedDropout(0.5)
        layer.reseed(1)
        layer(torch.ones(3))
        assert torch.equal(torch.get_rng_state(), before)


class TestWeightStandardisedConv2d:
    def made(self, **settings) -> WeightStandardisedConv2d:
        torch.manual_seed(2)
        return WeightStandardisedConv2d(3, 5, 3, **settings).double()

    @pytest.mark.oracle
    def test_is_the_papers_up_to_its_scale(self):
        layer, x = self.made(padding=1), torch.randn(2, 3, 6, 7, dtype=torch.float64)
        weight = layer.weight.flatten(1)
        deviation = (weight.var(dim=1, unbiased=False, keepdim=True) + layer.eps).sqrt()
        qiao = (weight - weight.mean(dim=1, keepdim=True)) / deviation
        expected = functional.conv2d(x, qiao.view_as(layer.weight) / 27**0.5, padding=1)
        assert torch.allclose(layer(x), expected + layer.bias.view(-1, 1, 1))

    def test_forgets_mean_and_scale_of_a_filter(self):
        layer, x = self.made(bias=False), torch.randn(2, 3, 6, 7, dtype=torch.float64)
        before = layer(x)
        with torch.no_grad():
            layer.weight.mul_(3.0).add_(0.7)
        assert torch.allclose(layer(x), before, rtol=1e-3, atol=1e-3)
        assert not torch.allclose(nn.Conv2d.forward(layer, x), before, rtol=0.1, atol=0.1)

    def test_outputs_have_the_scale_of_the_inputs(self):
        layer = WeightStandardisedConv2d(64, 32, 3, bias=False)
        x = torch.randn(8, 64, 12, 12, generator=torch.Generator().manual_seed(0))
        assert float(layer(x).std().detach()) == pytest.approx(1.0, rel=0.1)
