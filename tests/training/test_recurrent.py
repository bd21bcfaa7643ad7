"""The LSTM: equal to torch's, and its closed-form gradients to those of one record at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from sums import clipped_sum
from torch import Tensor, nn

from pasearch.errors import UsageError
from pasearch.spaces.modules import Lstm, RowSequence
from pasearch.training import layer_rules, per_example
from pasearch.training.clipping import FlatClipping
from pasearch.training.per_example import list_trainable_parameters, validate

# (steps, inputs, units): the Gram form, the product form, one of everything, the papers' own
SHAPES = [(3, 9, 6), (40, 2, 2), (1, 1, 1), (1, 5, 3), (28, 28, 8)]


def made(
    shape: tuple[int, int, int], biases: int = 1, dtype: torch.dtype = torch.float64
) -> tuple[Lstm, Tensor]:
    torch.manual_seed(4)
    steps, inputs, units = shape
    return Lstm(inputs, units, biases).to(dtype), torch.randn(5, steps, inputs, dtype=dtype)


def loss(outputs: Tensor) -> Tensor:
    return (3.0 * outputs).sin().sum(dim=1)


def everyone(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=torch.bool)


def alone(layer: nn.Module, x: Tensor, of: Callable[[Tensor], Tensor] = loss) -> list[Tensor]:
    """One record's gradient, by autograd, flattened."""
    parameters = list_trainable_parameters(layer)
    return [g.flatten() for g in torch.autograd.grad(of(layer(x[None])).sum(), parameters)]


@pytest.mark.oracle
def test_it_is_torchs():
    for shape in SHAPES:
        for biases in [1, 2]:
            layer, x = made(shape, biases)
            inputs = shape[1]
            theirs = nn.LSTM(inputs, shape[2], batch_first=True).double()
            with torch.no_grad():
                theirs.weight_ih_l0.copy_(layer.weight[:, :inputs])
                theirs.weight_hh_l0.copy_(layer.weight[:, inputs:])
                theirs.bias_ih_l0.copy_(layer.bias)
                theirs.bias_hh_l0.zero_() if biases == 1 else theirs.bias_hh_l0.copy_(
                    layer.second_bias
                )
            states, (last, _) = theirs(x)
            assert torch.allclose(layer(x), last[0], atol=1e-12)
            assert torch.allclose(layer.states(layer.projected(x)), states, atol=1e-12)
            ours = sum(p.numel() for p in layer.parameters())
            both = sum(p.numel() for p in theirs.parameters())
            assert ours == both - (4 * shape[2] if biases == 1 else 0)


@pytest.mark.oracle
def test_norms_and_sums_are_those_of_one_record_at_a_time():
    for shape in SHAPES:
        for biases in [1, 2]:
            for frozen in [(), ("weight",), ("bias",), ("second_bias",)]:
                layer, x = made(shape, biases)
                for name, parameter in layer.named_parameters():
                    parameter.requires_grad_(name not in frozen)
                seen = per_example.capture_layers(layer, x, loss)[0]
                kernel = layer_rules.find_rule(layer)
                assert type(kernel) is layer_rules.LstmRule
                gradients = [torch.cat(alone(layer, each)) for each in x]
                squares = torch.stack([g.square().sum() for g in gradients])
                assert torch.allclose(kernel.squared_norms(seen), squares, rtol=1e-10)
                factors = torch.linspace(0.0, 2.0, 5, dtype=torch.float64)
                sums = dict(kernel.weighted_sum(seen, factors))
                assert set(sums) == set(list_trainable_parameters(layer))
                found = torch.cat([sums[p].flatten() for p in list_trainable_parameters(layer)])
                expected = sum(c * g for c, g in zip(factors, gradients, strict=True))
                assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.contract
def test_norms_in_float32_are_never_below_those_of_what_is_summed():
    for shape in SHAPES:
        for size in [1e-6, 1.0, 100.0]:
            layer, x = made(shape, 2, torch.float32)
            seen = per_example.capture_layers(layer, size * x, loss)[0]
            kernel = layer_rules.LstmRule()
            for place, found in enumerate(kernel.squared_norms(seen).sqrt().tolist()):
                only = torch.arange(len(x)) == place
                summed = [each for _, each in kernel.weighted_sum(seen, only.float())]
                norm = math.sqrt(sum(float(each.double().square().sum()) for each in summed))
                # Squares below float32's range are lost: a factor there is that of the norm 0.
                assert norm * (1 - 1e-6) - 1e-18 <= found <= norm * (1 + 1e-3)


@pytest.mark.contract
def test_a_records_gradient_does_not_depend_on_the_others():
    for shape in SHAPES:
        layer, x = made(shape)
        other = x.clone()
        other[1:] = 9.0 * torch.randn_like(other[1:])
        kernel = layer_rules.LstmRule()
        first, second = (per_example.capture_layers(layer, each, loss)[0] for each in (x, other))
        assert torch.allclose(kernel.squared_norms(first)[0], kernel.squared_norms(second)[0])
        for a, b in zip(
            kernel.gradients(first).values(), kernel.gradients(second).values(), strict=True
        ):
            assert torch.allclose(a[0], b[0], rtol=1e-10, atol=1e-14)
            assert not torch.allclose(a[1], b[1])


@pytest.mark.contract
def test_a_step_that_is_not_finite_takes_its_record_out():
    for biases in [1, 2]:
        for value in [math.nan, math.inf, -math.inf]:
            for step in [0, 3, 6]:
                layer, x = made((7, 4, 3), biases, torch.float32)
                network = nn.Sequential(layer, nn.Linear(3, 2))
                mask = everyone(x)
                mask[2] = False
                expected = clipped_sum(network, x, loss, FlatClipping(), mask)
                x[2, step, 1] = value
                sums = clipped_sum(network, x, loss, FlatClipping(), everyone(x))
                assert all(map(torch.equal, sums, expected))


@pytest.mark.unit
def test_saturated_gates_have_finite_gradients():
    layer, x = made((9, 4, 3), 1, torch.float32)
    sums = clipped_sum(layer, 1e6 * x, loss, FlatClipping(clip_norm=0.5), everyone(x))
    assert all(bool(torch.isfinite(each).all()) for each in sums)
    assert math.sqrt(sum(float(each.square().sum()) for each in sums)) <= 0.5 * len(x)


class Doubled(Lstm):
    """A subclass computes otherwise, so the closed form is not for it."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * super().forward(x)


@pytest.mark.oracle
def test_a_subclass_forms_its_gradients():
    torch.manual_seed(0)
    layer, x = Doubled(4, 3).double(), torch.randn(4, 5, 4, dtype=torch.float64)
    assert layer_rules.find_rule(layer) is layer_rules.GENERAL_RULE
    sums = clipped_sum(layer, x, loss, None, everyone(x))
    expected = torch.autograd.grad(loss(layer(x)).sum(), list(layer.parameters()))
    assert all(torch.allclose(a, b) for a, b in zip(sums, expected, strict=True))


@pytest.mark.unit
def test_it_is_accepted_and_torchs_is_told_to_be_replaced_by_it():
    assert validate(nn.Sequential(RowSequence(), Lstm(4, 3))) == []
    assert "pasearch.spaces.modules.Lstm" in validate(nn.LSTM(4, 3))[0]


@pytest.mark.unit
def test_records_that_are_not_sequences_are_refused():
    for shape in [(7, 4), (2, 1, 7, 4)]:
        with pytest.raises(UsageError, match=r"expected \(batch, steps, inputs\)"):
            Lstm(4, 3)(torch.zeros(shape))


@pytest.mark.unit
def test_rows_of_all_channels_are_one_step():
    x = torch.arange(2 * 3 * 4 * 5.0).view(2, 3, 4, 5)
    rows = RowSequence()(x)
    assert rows.shape == (2, 4, 15)
    assert rows[1, 2].tolist() == [*x[1, 0, 2].tolist(), *x[1, 1, 2].tolist(), *x[1, 2, 2].tolist()]
