"""Chains of convolutions, poolings and linear layers, as machine code takes them.

A chain is a row of stages, each of which is given what the one before made. What their loops
(`compiled_convolutions`) are told of a stage are the numbers of `NAMES`, in that order.

Source: Bu et al. 2022. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.spaces.modules import KeyedDropout
from pasearch.training.dense import (
    CODES,
    all_apart,
    bent_by,
    consistent,
    flattens,
    laid_out,
    room,
    zeros,
)
from pasearch.training.dropout import bits_for
from pasearch.training.norms import ROUNDINGS

Shape = tuple[int, ...]
Pair = tuple[int, int]
Array = np.ndarray[Any, Any]

LANES = 16
"""Records that lie side by side."""

WIDEST = 2**21
"""Trained numbers of linear layers, at most: they are read anew for every 16 records."""

ROOM = 2**23
"""Numbers of a thread's room, at most."""

STAGES: dict[type[nn.Module], int] = {
    nn.Linear: 0, nn.Conv2d: 1, nn.MaxPool2d: 2, nn.AvgPool2d: 3,
}  # fmt: skip
"""What a stage may be, and what its loops call it."""

NAMES = (
    "kind",
    "channels", "height", "width",  # of what it is given; of a linear layer: its numbers, 1, 1
    "outputs", "high", "wide",  # of what it makes
    "down", "right",  # sides of its windows
    "downward", "rightward",  # from one window to the next
    "above", "beside",  # padding: above the image, and left of it
    "bent",  # the code of what follows
    "trained",  # or frozen, or a pooling
    "weight", "biased", "bias",  # where its weights begin, if it has a bias, and where
    "given", "made",  # where in the room both are
    "met",  # where what a convolution's taps meet is; of a linear layer, if it is given an image
    "formed",  # where its formed gradients are
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A layer with what follows it, or a pooling.

    Args:
        module: One of `STAGES`.
        given: Shape of what it is given of a record: (channels, height, width), or (numbers, 1, 1).
        made: Shape of what it makes, likewise.
        sides: Of its windows: down and to the right, like the two below.
        strides: From one window to the next.
        before: Padding, above the image and left of it.
        of_image: Whether what it is given lies as images do.
        bent: What follows: a type of `CODES`.
        dropout: What follows that.
    """

    module: nn.Module
    given: Shape
    made: Shape
    sides: Pair = (1, 1)
    strides: Pair = (1, 1)
    before: Pair = (0, 0)
    of_image: bool = True
    bent: type[nn.Module] | None = None
    dropout: KeyedDropout | None = None

    @property
    def weight(self) -> Tensor | None:
        """Of the layer; None of a pooling."""
        return getattr(self.module, "weight", None)

    @property
    def bias(self) -> Tensor | None:
        """Of the layer, if it has one."""
        return getattr(self.module, "bias", None)

    @property
    def trained(self) -> bool:
        """Whether it has weights, which are not frozen."""
        return self.weight is not None and self.weight.requires_grad

    @property
    def is_convolution(self) -> bool:
        """Whether it is one."""
        return type(self.module) is nn.Conv2d

    @property
    def places(self) -> int:
        """How many windows there are."""
        return math.prod(self.made[1:])

    @property
    def taps(self) -> int:
        """How many numbers a window has."""
        return self.given[0] * math.prod(self.sides)

    @property
    def gradient(self) -> int:
        """How many numbers a trained convolution's gradient has, of a record."""
        return self.made[0] * (self.taps + 1) if self.is_convolution and self.trained else 0

    @property
    def hiding(self) -> tuple[float, float]:
        """What roundings hide of a convolution's norm, and ||A_i|| over ||x_i|| at most.

        See `norms.positions`.
        """
        hidden = ROUNDINGS * self.places * torch.finfo(torch.float32).eps
        windows = (math.ceil(side / step) for side, step in zip(self.sides, self.strides,
                                                                 strict=True))  # fmt: skip
        return (hidden if self.places > 1 else 0.0), math.sqrt(math.prod(windows))


class Convolutional:
    """A chain with convolutions, which ends with a linear layer; see `of`.

    Args:
        stages: In order.
    """

    def __init__(self, stages: Sequence[Stage]):
        self.stages = stages

    @classmethod
    def of(cls, chain: Sequence[nn.Module] | None, shape: Shape) -> Self | None:
        """Return a chain of modules, on records of a shape, as this; None if it is another."""
        stages: list[Stage] = []
        flat = False
        for module in chain or ():
            if module._forward_hooks or module._forward_pre_hooks:
                return None
            if type(module) is nn.Unflatten and not stages:  # another shape of the same numbers
                shape = tuple(module(torch.empty(1, *shape, device="meta")).shape[1:])
            elif flattens(module):
                flat = True
            elif (bent := bent_by(module)) and stages and _may_be_bent(stages[-1]):
                stages[-1] = replace(stages[-1], bent=bent)
            elif type(module) is KeyedDropout and stages and _may_be_dropped(stages[-1]):
                stages[-1] = replace(stages[-1], dropout=module)
            elif (stage := _stage(module, stages, shape, flat)) is not None:
                stages.append(stage)
            else:
                return None
        found = cls(stages) if _fit(stages) else None
        if found is None or sum(found.sizes) > ROOM or not all_apart(found.dropouts):
            return None
        return found

    @property
    def outputs(self) -> int:
        """Numbers that come out at last."""
        return self.stages[-1].made[0]

    @property
    def dropouts(self) -> list[KeyedDropout | None]:
        """Of every stage."""
        return [each.dropout for each in self.stages]

    def form(self, weights: Tensor) -> tuple[Array, Array, int, Array]:
        """Return what the loops are told, of a network whose flat weights are these.

        Returns:
            The numbers of `NAMES`, uint64, (stages, names); `Stage.hiding`, float64, (stages, 2);
            which stage is the first that is trained; and the weights of those that are frozen.
        """
        sizes = [((each.weight, each.made[0] * each.taps), (each.bias, each.made[0]))
                 for each in self.stages]  # fmt: skip
        places, frozen = laid_out(sizes, weights)
        told = np.array(self._told(places), np.uint64)
        hiding = np.array([each.hiding for each in self.stages])
        lowest = next(k for k, each in enumerate(self.stages) if each.trained)
        return told, hiding, lowest, frozen

    def _told(self, places: Sequence[tuple[int | None, int | None]]) -> list[list[int]]:
        given, made, met, formed = 0, math.prod(self.stages[0].given), 0, 0
        told: list[list[int]] = []
        for each, (weight, bias) in zip(self.stages, places, strict=True):
            numbers = (
                STAGES[type(each.module)], *each.given, *each.made, *each.sides, *each.strides,
                *each.before, CODES[each.bent], each.trained, weight or 0, bias is not None,
                bias or 0, LANES * given, LANES * made,
                LANES * met if each.is_convolution else each.of_image, LANES * formed,
            )  # fmt: skip
            assert len(numbers) == len(NAMES), "one of each"
            told.append([int(each) for each in numbers])
            given, made = made, made + math.prod(each.made)
            if each.is_convolution:
                met, formed = met + each.taps * each.places, formed + each.gradient
        return told

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Numbers of 16 records that a thread keeps.

        Of the stages, for what taps meet, for its gradients in one stage, and of formed gradients.
        """
        convolutions = [each for each in self.stages if each.is_convolution]
        made = sum(math.prod(each.made) for each in self.stages)
        met = [each.taps * each.places for each in convolutions]
        formed = sum(each.gradient for each in convolutions)
        sizes = math.prod(self.stages[0].given) + made, sum(met), max(met), formed
        return sizes[0] * LANES, sizes[1] * LANES, sizes[2] * LANES, sizes[3] * LANES

    def room(self) -> tuple[Any, ...]:
        """Return a thread's own places: see `compiled_convolutions.bounded_sum`."""
        made, *more = self.sizes
        bits = bits_for(self.dropouts, [each.made[0] for each in self.stages])
        usual = room(0, made, LANES, bits)
        return (*usual, *map(zeros, more), np.zeros(4 * LANES))


def _may_be_bent(stage: Stage) -> bool:
    return stage.weight is not None and stage.bent is None and stage.dropout is None


def _may_be_dropped(stage: Stage) -> bool:
    return type(stage.module) is nn.Linear and stage.dropout is None


def _stage(module: nn.Module, before: list[Stage], shape: Shape, flat: bool) -> Stage | None:
    """Return a module as the next stage; None if loops do not know such."""
    given = before[-1].made if before else shape
    if type(module) is nn.Linear and flat and before:
        made, of_image = (module.out_features, 1, 1), type(before[-1].module) is not nn.Linear
        given = (math.prod(given), 1, 1)
        fits = consistent(module, given[0]) and len(module.weight) == made[0]
        fits &= min(given[0], made[0]) > 0  # else torch's
        return Stage(module=module, given=given, made=made, of_image=of_image) if fits else None
    if type(module) not in STAGES or flat or type(module) is nn.Linear or len(given) != 3:
        return None
    sides, strides = _pair(module.kernel_size), _pair(module.stride)
    if type(module) is nn.Conv2d:
        known = module.groups == 1 and module.padding_mode == "zeros"
        known &= consistent(module, given[0], *sides)
        known &= module.in_channels == given[0] and len(module.weight) == module.out_channels
        padding, channels = _padding(module), module.out_channels
    else:
        known = not module.ceil_mode and not getattr(module, "return_indices", False)
        known &= getattr(module, "divisor_override", None) is None
        padding, channels = [_pair(module.padding)] * 2, given[0]
        known &= padding[0] == (0, 0)
    if not known or _pair(getattr(module, "dilation", 1)) != (1, 1):
        return None
    high, wide = (
        (size + low + more - side) // step + 1
        for size, low, more, side, step in zip(given[1:], *padding, sides, strides, strict=True)
    )
    if min(channels, high, wide) < 1:
        return None
    return Stage(
        module=module, given=given, made=(channels, high, wide), sides=sides, strides=strides,
        before=padding[0],
    )  # fmt: skip


def _padding(layer: nn.Conv2d) -> list[Pair]:
    """Return it: above and on the left, below and on the right."""
    if layer.padding == "valid":
        return [(0, 0), (0, 0)]
    if layer.padding == "same":  # of stride 1
        down, right = (side - 1 for side in _pair(layer.kernel_size))
        return [(down // 2, right // 2), (down - down // 2, right - right // 2)]
    return [_pair(layer.padding)] * 2


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _fit(stages: list[Stage]) -> bool:
    """Whether loops pay for a chain, some of which is trained."""
    convolutions = [each for each in stages if each.is_convolution]
    linear = [each.weight for each in stages if type(each.module) is nn.Linear]
    trained = any(each.trained for each in stages)
    ends = bool(stages) and type(stages[-1].module) is nn.Linear
    small = sum(each.numel() for each in linear if each is not None) <= WIDEST
    return bool(convolutions) and trained and ends and small
