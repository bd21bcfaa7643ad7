"""A record whose positions or views cancel takes no digits from what the others add.

What is left of it is small, so it is hardly clipped, but while a part of it stands in a float32 sum
the others' terms are rounded to its size: with it and without, their sum would be another.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pasearch.data.column import TOKEN_SCALE
from pasearch.spaces.modules import Gru, Lstm, TokenEmbedding, WeightStandardisedConv2d
from pasearch.training.layer_rules import (
    CapturedLayer,
    Conv2dRule,
    EmbeddingRule,
    GruRule,
    LayerRule,
    LinearRule,
    LstmRule,
    NormRule,
    WeightStandardisedRule,
)

RECORDS, HALF, LARGE = 40, 8, 1e6
Case = tuple[LayerRule, nn.Module, Tensor, Tensor, int]


def halves(*numbers: int) -> Tensor:
    """Each record's numbers twice: in the last one's second half they are to be taken off again."""
    return torch.randn(RECORDS, HALF, *numbers).repeat(1, 2, *(1 for _ in numbers))


def gradients(*numbers: int) -> Tensor:
    d = torch.randn(RECORDS, 2 * HALF, *numbers)
    d[-1] *= LARGE
    d[-1, HALF:] = -d[-1, :HALF]
    return d


def of_lstm(rule: LayerRule) -> Case:
    layer, a, d = Lstm(3, 2), halves(5), gradients(8)
    return rule, layer, a, d, 1


def of_gru(rule: LayerRule) -> Case:
    layer, a, d = Gru(3, 2), halves(5), gradients(6)
    return rule, layer, a, d, 1


def of_tokens(views: int = 1) -> Case:
    """Half of the positions or, of two rows a record, the first and the second row cancel."""
    x = torch.tensor([3, 7]).repeat(RECORDS, HALF) / TOKEN_SCALE
    d = gradients(4)
    if views == 2:
        x, d = x.unflatten(1, (2, HALF)).flatten(0, 1), d.unflatten(1, (2, HALF)).flatten(0, 1)
    return EmbeddingRule(), TokenEmbedding(9, 4), x, d, views


def images(values: Tensor) -> Tensor:
    return values.transpose(1, 2)[..., None].contiguous()


def of_views(rule: LayerRule) -> Case:
    """Two rows a record."""
    a, d = halves(5)[:, [0, HALF]], gradients(4)[:, [0, HALF]]
    return rule, nn.Linear(5, 4), a.flatten(0, 1), d.flatten(0, 1), 2


CASES: dict[str, Callable[[], Case]] = {
    "linear": lambda: (LinearRule(), nn.Linear(5, 4), halves(5), gradients(4), 1),
    "convolution": lambda: (Conv2dRule(), nn.Conv2d(5, 4, 1), images(halves(5)),
                            images(gradients(4)), 1),
    "standardised": lambda: (WeightStandardisedRule(), WeightStandardisedConv2d(5, 4, 1),
                             images(halves(5)), images(gradients(4)), 1),
    "norm": lambda: (NormRule(), nn.GroupNorm(1, 4), images(halves(4)), images(gradients(4)), 1),
    "lstm": lambda: of_lstm(LstmRule()),
    "gru": lambda: of_gru(GruRule()),
    "tokens": of_tokens,
    "views of tokens": lambda: of_tokens(2),
    "views of a linear layer": lambda: of_views(LinearRule()),
    "views of any layer": lambda: of_views(LayerRule()),
    "views of an lstm": lambda: (*of_lstm(LstmRule())[:4], 2),
}  # fmt: skip


def sums(case: Case, factors: Tensor) -> list[Tensor]:
    rule, layer, a, d, views = case
    seen = CapturedLayer(layer, a, d, views)
    if isinstance(layer, Lstm | Gru):
        # As a pass leaves them: step after step.
        steps = (a, d) if isinstance(layer, Lstm) else (a, a, d)
        seen.cache["steps"] = tuple(v.transpose(0, 1).clone().transpose(0, 1) for v in steps)
    if type(rule) is LayerRule:
        rule.squared_norms(seen)  # which keeps the gradients
    found = rule.weighted_sum(seen, factors)
    return [value.detach().clone() for _, value in found]


@pytest.mark.unit
def test_its_cancelling_moves_nobody_elses_digits():
    for name in CASES:
        torch.manual_seed(2)
        case = CASES[name]()
        rows = len(case[2])
        last = torch.arange(rows) >= rows - rows // RECORDS
        found = [sums(case, chosen.float()) for chosen in (torch.ones(rows), ~last, last)]
        for together, others, own in zip(*found, strict=True):
            size = float(torch.cat([others, own]).abs().max())
            assert size > 1.0
            moved = (together.double() - others.double() - own.double()).abs().max()
            assert float(moved) <= 2.0 * torch.finfo(torch.float32).eps * size
