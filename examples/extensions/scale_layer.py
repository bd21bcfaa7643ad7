"""A layer and its rule: features times trained factors, with norms and sums in closed form.

Record i's gradient is g_i = a_i * d_i: no gradient has to be formed by autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pasearch.training.layer_rules import (
    NO_BUFFERS,
    RULES,
    Buffers,
    CapturedLayer,
    LayerRule,
    ParameterSums,
    bound_squared_row_norms,
    multiply_rows,
)


class Scale(nn.Module):
    """Multiply each feature by a trained factor.

    Args:
        features: Number of features.
    """

    def __init__(self, features: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, features) to the same shape."""
        return x * self.weight


class ScaleRule(LayerRule):
    """The rule of `Scale` for records of one view; of several views the general rule takes over."""

    parameter_names = frozenset({"weight"})

    def count_formed_gradient_values(self, layer: nn.Module, output: Tensor) -> int:
        """Form no gradient that stays in memory."""
        return 0

    def squared_norms(self, captured: CapturedLayer) -> Tensor:
        """Compute ||a_i * d_i||^2."""
        if captured.views > 1:
            return super().squared_norms(captured)
        return bound_squared_row_norms(captured.input * captured.output_gradient)

    def weighted_sum(
        self, captured: CapturedLayer, factors: Tensor, into: Buffers = NO_BUFFERS
    ) -> ParameterSums:
        """Compute the sum of c_i a_i * d_i over rows."""
        if captured.views > 1:
            yield from super().weighted_sum(captured, factors, into)
            return
        layer = captured.layer
        assert isinstance(layer, Scale)
        yield (
            layer.weight,
            (captured.input * multiply_rows(captured.output_gradient, factors)).sum(dim=0),
        )


RULES[Scale] = ScaleRule()
