"""Sums of bounded gradients of a chain of linear layers, in as few calls as its formulas need.

    h_l = phi(h_(l-1) W_l^T + b_l)                       phi: tanh, ReLU, sigmoid or none
    d_L = the loss's gradient,  d_(l-1) = (d_l W_l) * phi'(h_(l-1))
    dropout: what follows phi, and its gradient, times a mask
    joined: the second layer is given [x, h_1], and d_1 is what of its gradient belongs to h_1
    ||g_i||^2 = sum over l of (||h_(l-1),i||^2 + 1) ||d_l,i||^2
    sum_i c_i g_i = (c * d_l)^T h_(l-1)  for every l

The same numbers as the general path has (`per_example`), up to roundings: a small step there takes
longer to be called than to be computed. What the first layer is given does not change during a
training, so its norms are computed once.

Source: Goodfellow 2015. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pasearch.spaces.modules import Joined, KeyedDropout, TemperedSigmoid, sigmoid_
from pasearch.training.losses import LossOf
from pasearch.training.norms import Factors, bounded, norms_along, zero_rows
from pasearch.training.record_sums import BLOCK, SumBuffers

ACTIVATIONS = {
    nn.Tanh: (torch.tanh_, torch.ops.aten.tanh_backward.default),
    nn.ReLU: (torch.relu_, lambda d, h: torch.ops.aten.threshold_backward.default(d, h, 0.0)),
    nn.Sigmoid: (sigmoid_, torch.ops.aten.sigmoid_backward.default),
}
"""In place, and from the gradient of what came out, and that, to the gradient of what went in."""

CODES: dict[type[nn.Module] | None, int] = {None: 0, nn.Tanh: 1, nn.ReLU: 2, nn.Sigmoid: 3}
"""Their codes in the GPU's kernels."""

FLATTEN = repr(nn.Flatten())


class Dense:
    """A chain of linear layers, flattened at most before the first; see `of`.

    Args:
        layers: In order.
        activations: What follows each: a type of `ACTIVATIONS`, or None.
        dropouts: What comes before the first, and then what follows each activation.
        flattened: Whether records are flattened before the first.
        joined: Whether the second is given what the first one is, too, before what that gives.
    """

    def __init__(
        self,
        layers: Sequence[nn.Linear],
        activations: Sequence[type[nn.Module] | None],
        dropouts: Sequence[KeyedDropout | None],
        flattened: bool,
        joined: bool = False,
    ):
        self.flattened, self.joined = flattened, joined
        self.weights = [layer.weight for layer in layers]
        self.biases = [layer.bias for layer in layers]
        self.activations, self.dropouts = list(activations), list(dropouts)
        self.steps = [None if each is None else ACTIVATIONS[each] for each in activations]
        self.trained = [k for k, each in enumerate(self.weights) if each.requires_grad]
        lost = [2.0 * side * torch.finfo(self.weights[k].dtype).tiny
                for k in self.trained for side in reversed(self.weights[k].shape)]  # fmt: skip
        first = self.weights[0]
        plus = [float(self.biases[k] is not None) for k in self.trained]
        self._lost = torch.tensor(lost, dtype=first.dtype, device=first.device)[:, None]
        self._plus = torch.tensor(plus, dtype=first.dtype, device=first.device)[:, None]

    @classmethod
    def of(cls, chain: Sequence[nn.Module]) -> Dense | None:
        """Return a chain of modules as this; None if it is another."""
        first = next((k for k, each in enumerate(chain) if not flattens(each)), len(chain))
        inner = _within(chain[first]) if first < len(chain) else None
        if inner is not None:
            outer, behind = chain[first], chain[first + 1 : first + 2]
            if outer._forward_hooks or outer._forward_pre_hooks:
                return None
            if not behind or type(behind[0]) is not nn.Linear:
                return None  # what is given on is changed, too
            chain = [*chain[:first], *inner, *chain[first + 1 :]]
        if any(each._forward_hooks or each._forward_pre_hooks for each in chain):
            return None
        layers: list[nn.Linear] = []
        activations: list[type[nn.Module] | None] = []
        dropouts: list[KeyedDropout | None] = [None]
        for module in chain[first:]:
            if type(module) is nn.Linear:
                given = layers[-1].out_features if layers else module.in_features
                if inner is not None and len(layers) == 1:
                    given += layers[0].in_features
                if not consistent(module, given) or len(module.weight) != module.out_features:
                    return None
                layers.append(module)
                activations.append(None)
                dropouts.append(None)
            elif dropouts[-1] is not None:
                return None
            elif type(module) is KeyedDropout:
                dropouts[-1] = module
            elif (bent := bent_by(module)) and activations and activations[-1] is None:
                activations[-1] = bent
            else:
                return None
        kinds = {(p.dtype, p.device) for each in layers for p in each.parameters()}
        known = len(kinds) == 1 and any(each.weight.requires_grad for each in layers)
        known &= all_apart(dropouts)
        return cls(layers, activations, dropouts, first > 0, inner is not None) if known else None

    @property
    def widths(self) -> list[int]:
        """Numbers that each layer is given, and that come out at last."""
        return [*(weight.shape[1] for weight in self.weights), self.outputs]

    @property
    def outputs(self) -> int:
        """Numbers that come out at last."""
        return len(self.weights[-1])

    def takes(self, x: Tensor) -> bool:
        """Whether rows like these are one input of the first layer each."""
        return len(x.shape) == 2 or self.flattened

    def squares_of_inputs(self, x: Tensor) -> Tensor:
        """Return the squared norms of what the first layer is given, (batch,)."""
        return norms_along(x.flatten(1), 1).square_()

    @torch.no_grad()
    def sums(
        self,
        x: Tensor,
        loss: LossOf,
        bounding: Factors | None,
        mask: Tensor,
        weights: Tensor | None,
        room: SumBuffers,
        *,
        look: bool = True,
    ) -> Tensor:
        """Add the sum of bounded gradients to a room's totals: see `clipped_sum_and_counts`.

        Args:
            x: Rows, (batch, ...), that it `takes`.
            loss: Of these rows; it may know `squares_of_inputs`, which count without dropout.
            bounding: Not a layered one.
            mask: Of the rows.
            weights: Of the rows, or None.
            room: Buffers of the sum.
            look: As for `norms.bounded`.

        Returns:
            The norms, (batch,), infinite where one is not finite: such a record adds 0.
        """
        inputs, bent, masks = self._forward(x.flatten(1) if x.ndim > 2 else x)
        found = self._lost.new_empty(2 * len(self.trained), len(x))
        norms, gradients, d = list(found.unbind(0)), {}, loss.gradient(inputs[-1])
        lowest = self.trained[0]
        squares = None if lowest or self.dropouts[0] is not None else loss.squares
        for place in reversed(range(lowest, len(self.weights))):
            if (dropout := self.dropouts[place + 1]) is not None:
                d = dropout.dropped(d, masks[place + 1])
            if (step := self.steps[place]) is not None:
                d = step[1](d, bent[place])
            if place in self.trained:
                gradients[place] = d
                norms_along(d, 1, norms.pop())
                of_inputs = norms.pop()
                if place or squares is None:
                    norms_along(inputs[place], 1, of_inputs)
            d = d @ self.weights[place] if place > lowest else d
            if self.joined and place == 1:
                d = d[:, self.weights[0].shape[1] :].contiguous()
        found.square_()
        if squares is not None:
            found[0].copy_(squares)
        of_inputs, of_outputs = found.add_(self._lost).view(-1, 2, len(x)).unbind(1)
        total = of_inputs.add_(self._plus).mul_(of_outputs).sum(dim=0)
        factors, norm, bad = bounded(total.sqrt(), total, bounding, mask, weights, look=look)
        if bad is not None:  # 0 * NaN is NaN: mask first
            inputs = [zero_rows(each, bad) for each in inputs]
            gradients = {place: zero_rows(each, bad) for place, each in gradients.items()}
        for d in gradients.values():
            d.mul_(factors[:, None])
        for low in range(0, len(x), BLOCK):
            block = slice(low, low + BLOCK)
            for place, d in gradients.items():
                weight, bias = self.weights[place], self.biases[place]
                torch.mm(d[block].t(), inputs[place][block], out=room.of[id(weight)])
                if bias is not None:
                    torch.sum(d[block], 0, out=room.of[id(bias)])
            room.add_block()
        return norm

    def _forward(self, x: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
        """Return what layers are given, and what comes out at last; activations; and masks."""
        masks: list[Tensor | None] = [
            None if (first := self.dropouts[0]) is None else first.kept(x)
        ]
        inputs, bent = [x if first is None else first.dropped(x, masks[0])], []
        for weight, bias, step, dropout in zip(
            self.weights, self.biases, self.steps, self.dropouts[1:], strict=True
        ):
            h = nn.functional.linear(inputs[-1], weight, bias)
            bent.append(h if step is None else step[0](h))
            masks.append(None if dropout is None else dropout.kept(h))
            h = h if dropout is None else dropout.dropped(h, masks[-1])
            beside = self.joined and len(inputs) == 1
            inputs.append(torch.cat((inputs[0], h), dim=1) if beside else h)
        return inputs, bent, masks


def place_of(parameter: Tensor, weights: Tensor) -> int:
    """Return where a parameter begins in the flat weights."""
    return (parameter.data_ptr() - weights.data_ptr()) // parameter.element_size()


def check_parts(parts: Sequence[tuple[int, int]], count: int) -> None:
    """See that parts, (place, numbers) each, fill a flat buffer, and none meets another.

    Machine code looks at no end of an array: where it went by other sizes than the buffer's,
    gradients of one layer would be added to those of another.
    """
    behind = 0
    for place, numbers in sorted(parts):
        if place != behind:
            raise ValueError(f"A layer's numbers begin at {place}: expected {behind}.")
        behind = place + numbers
    if behind != count:
        raise ValueError(f"The layers have {behind} numbers: expected {count}.")


def bent_by(module: nn.Module) -> type[nn.Module] | None:
    """Return which of `ACTIVATIONS` a module is; None if it is another.

    2 sigmoid(2 x) - 1, the tempered sigmoid that is usual, is the hyperbolic tangent.
    """
    if type(module) is TemperedSigmoid:
        usual = (module.scale, module.temperature, module.offset) == (2.0, 2.0, 1.0)
        return nn.Tanh if usual else None
    return type(module) if type(module) in ACTIVATIONS else None


def _within(module: nn.Module) -> list[nn.Module] | None:
    """Return what a `Joined` layer calls: one linear layer, and what follows it; None of others."""
    if type(module) is not Joined:
        return None
    inner = list(module)
    linear = [type(each) is nn.Linear for each in inner]
    return inner if linear[:1] == [True] and sum(linear) == 1 else None


def all_apart(dropouts: Sequence[KeyedDropout | None]) -> bool:
    """Whether each comes once: of one in two places, every call would have another mask."""
    there = [id(each) for each in dropouts if each is not None]
    return len(set(there)) == len(there)


def flattens(module: nn.Module) -> bool:
    """Whether a module makes one row of each record, and does nothing else."""
    return type(module) is nn.Flatten and repr(module) == FLATTEN


def consistent(layer: nn.Module, inputs: int, *sides: int) -> bool:
    """Whether a layer's parameters are what follows from what it says of itself, and no more.

    Args:
        layer: Linear, or a convolution without groups.
        inputs: What it is given: numbers, or channels.
        sides: Of a window.
    """
    own, weight, bias = list(layer.parameters()), layer.weight, layer.bias
    told = [each for each in (weight, bias) if each is not None]
    if not all(isinstance(each, nn.Parameter) for each in told) or len(own) != len(told):
        return False  # what is no parameter is not moved, and what is no part of it not used
    assert isinstance(weight, Tensor)
    shaped = weight.shape[1:] == (inputs, *sides)
    shaped &= bias is None or (isinstance(bias, Tensor) and bias.shape == weight.shape[:1])
    return shaped and len({each.requires_grad for each in own}) == 1
