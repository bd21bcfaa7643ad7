"""Recurrent layers and embeddings: equal to torch's, or to their formulas; their closed-form
gradients are those of one record at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from pasearch.data.column import TOKEN_SCALE
from pasearch.errors import UsageError
from pasearch.spaces.modules import Gru, Lstm, RowSequence, TokenEmbedding
from pasearch.training import layer_rules, per_example
from pasearch.training.per_example import validate

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
def test_a_gru_is_torchs_where_the_reset_gate_is_open():
    """torch applies that gate after the product, which is the same for a gate of 1."""
    for steps, inputs, units in SHAPES:
        torch.manual_seed(4)
        layer, x = Gru(inputs, units).double(), torch.randn(5, steps, inputs).double()
        theirs = nn.GRU(inputs, units, batch_first=True).double()
        with torch.no_grad():
            layer.weight[:units] = 0.0
            layer.bias[:units] = 40.0
            theirs.weight_ih_l0.copy_(layer.weight[:, :inputs])
            theirs.weight_hh_l0.copy_(layer.weight[:, inputs:])
            theirs.bias_ih_l0.copy_(layer.bias)
            theirs.bias_hh_l0.zero_()
        layer.sequence = True
        assert torch.allclose(layer(x), theirs(x)[0], atol=1e-12)


@pytest.mark.oracle
def test_the_steps_of_a_gru_are_those_of_its_formulas_and_of_autograd():
    for steps, inputs, units in SHAPES:
        torch.manual_seed(5)
        layer = Gru(inputs, units, biases=2).double()
        x, weights = torch.randn(5, steps, inputs).double(), torch.randn(5, steps, units).double()
        with torch.no_grad():
            projected = layer.projected(x)
        given = projected.clone().requires_grad_()
        states = layer.states(given)
        (exact,) = torch.autograd.grad((states * weights).sum(), given)
        with torch.no_grad():
            ours, tape = layer_rules.run_gru_forward(projected, layer.recurrent)
            assert torch.allclose(ours, states, atol=1e-12)
            assert torch.allclose(layer_rules.run_gru_backward(tape, weights), exact, atol=1e-12)


@pytest.mark.contract
def test_an_embedding_is_torchs_with_padding_frozen_at_0():
    layer = TokenEmbedding(4, 3).double()
    x = torch.tensor([[0, 1, 2, 3, 4, 2**17 - 1]]).double() / TOKEN_SCALE
    theirs = nn.Embedding(4, 3, padding_idx=0).double()
    with torch.no_grad():
        theirs.weight.copy_(layer.weight)
        theirs.weight[0] = 0.0
    # Tokens beyond the embedding are the unknown one.
    assert torch.equal(layer(x), theirs(torch.tensor([[0, 1, 2, 3, 1, 1]])))
    assert torch.isnan(layer(torch.full((1, 1), math.nan).double())).all()


@pytest.mark.contract
def test_equal_tokens_of_a_record_add_up_and_padding_does_not_count():
    rule, layer = layer_rules.EmbeddingRule(), TokenEmbedding(9, 2)
    x = torch.tensor([[5, 5, 0, 3], [5, 4, 0, 3]]) / TOKEN_SCALE
    d = torch.tensor([[1.0, 0.0], [1.0, 0.0], [9.0, 9.0], [0.0, 2.0]]).expand(2, 4, 2)
    seen = layer_rules.CapturedLayer(layer, x, d)
    assert rule.squared_norms(seen).tolist() == pytest.approx([4.0 + 4.0, 1.0 + 1.0 + 4.0], 1e-4)
    ((_, total),) = rule.weighted_sum(seen, torch.tensor([1.0, 0.5]))
    assert total[5].tolist() == [2.5, 0.0]
    assert total[0].tolist() == [0.0, 0.0]
    # Terms that cancel leave what their rounding in float32 may hide.
    cancelling = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])[None] * 1e6
    hidden = rule.squared_norms(layer_rules.CapturedLayer(layer, x[:1], cancelling))
    assert 0.1 <= float(hidden.sqrt()) <= 1.0
    # Two rows of one record are one gradient: -d takes it all off.
    views = layer_rules.CapturedLayer(layer, x[:1].repeat(2, 1), torch.cat([d[:1], -d[:1]]), 2)
    assert float(rule.squared_norms(views)) < 1e-9


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
