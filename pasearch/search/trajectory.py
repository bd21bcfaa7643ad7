"""The iterates of a training that are kept while it runs, and the variants that they make.

Post-processing of what the training released: see `search.variants`, which says why.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from pasearch.search.variants import BITS, CHECKPOINTS, MEANS, PRUNED, SHIFTS, edges
from pasearch.training.temperature import divide_logits

Weights = dict[str, torch.Tensor]


def shifted(weights: Weights, place: int) -> Weights:
    """Return the weights of a network whose threshold is at an edge, by its place."""
    return _shifted(weights, -edges()[place])


class Trajectory:
    """What is kept of a training's iterates while it runs.

    Args:
        steps: How many the training is planned to make.
        temperature: What the trainer divides the final logits by; the iterates' are, too.
    """

    def __init__(self, steps: int, temperature: float | None = None):
        self._steps, self._temperature = steps, temperature
        self._kept: dict[float, Weights] = {}
        self._sums: dict[float, tuple[int, Weights]] = {}

    @torch.no_grad()
    def watch(self, finished: int, network: nn.Module) -> None:
        """Keep what is needed of the iterate after so many steps."""
        for share in CHECKPOINTS:
            if finished == max(1, round(share * self._steps)):
                self._kept[share] = _copy(network)
        for share in MEANS:
            if finished > self._steps - max(1, round(share * self._steps)):
                count, total = self._sums.get(share, (0, {}))
                own = _copy(network)
                summed = {name: total.get(name, 0.0) + own[name].double() for name in own}
                self._sums[share] = count + 1, summed

    @torch.no_grad()
    def variants(self, network: nn.Module, outputs: int) -> list[Weights]:
        """Return the weights of every variant, in the order of `names`.

        Args:
            network: As trained. What a training that ended early has not made, stands for itself.
            outputs: Of the network.
        """
        own = _copy(network)
        for weights in (*self._kept.values(), *(total for _, total in self._sums.values())):
            divide_logits(weights, self._temperature)
        found = [own, *(self._kept.get(share, own) for share in CHECKPOINTS)]
        for share in MEANS:
            count, total = self._sums.get(share, (0, {}))
            found.append(
                {name: (total[name] / count).to(own[name].dtype) for name in own} if count else own
            )
        if outputs == 2:
            found += [_shifted(own, shift) for shift in SHIFTS]
        found += [_mapped(own, lambda w, s=share: _pruned(w, s)) for share in PRUNED]
        found += [_mapped(own, lambda w, b=bits: _rounded(w, b)) for bits in BITS]
        return found


def _copy(network: nn.Module) -> Weights:
    return {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}


def _mapped(weights: Weights, change: Callable[[torch.Tensor], torch.Tensor]) -> Weights:
    """Return weights of which the matrices are changed: biases and scales are few."""
    return {name: change(w) if w.ndim > 1 else w for name, w in weights.items()}


def _shifted(weights: Weights, shift: float) -> Weights:
    """Return weights whose log-odds of the second class are larger by so much."""
    last = list(weights)[-1]
    if weights[last].shape != (2,):  # its last layer has no bias
        return weights
    return {**weights, last: weights[last] + torch.tensor([0.0, shift], dtype=weights[last].dtype)}


def _pruned(weights: torch.Tensor, share: float) -> torch.Tensor:
    size = weights.abs().flatten()
    cut = size.kthvalue(max(1, round(share * size.numel()))).values
    return torch.where(weights.abs() > cut, weights, torch.zeros_like(weights))


def _rounded(weights: torch.Tensor, bits: int) -> torch.Tensor:
    scale = weights.abs().max() / (2 ** (bits - 1) - 1)
    return torch.where(scale > 0, (weights / scale).round() * scale, weights)
