"""Weights of networks: files in a run's private folder, and variants for post-training selection.

Files are written completely or not at all. `search.variants` explains why variants of the weights
have no further privacy cost on the training records.

Source: docs/result.md; docs/rules.md, rules 8 and 10 (weights only).
"""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pasearch.data.front_ends import FrontEnd
from pasearch.errors import UsageError
from pasearch.runs.folder import RunFolder
from pasearch.search.variants import (
    AVERAGE_NAMES,
    CHECKPOINT_NAMES,
    LOG_ODDS_SHIFTS,
    PRUNING_NAMES,
    QUANTISATION_BITS,
    list_thresholds,
)
from pasearch.training.temperature import divide_logits


def front_end_path(folder: RunFolder, front_end: FrontEnd) -> Path:
    """Return the path of the file with the weights of a fitted feature extractor."""
    return folder.private / "front_ends" / f"{front_end.text.replace(':', '-')}.pt"


def load_weights(module: nn.Module, path: Path) -> None:
    """Load the weights of a module from a file of `save_weights`.

    Raises:
        UsageError: The file is damaged, or belongs to another module.
    """
    try:
        module.load_state_dict(read_weights(path))
    except RuntimeError as error:
        raise _make_damage_error(path, error) from None


def read_weights(path: Path) -> Any:
    """Read a file of `write_weights`.

    Raises:
        UsageError: The file is damaged.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - a damaged file may raise any exception
        raise _make_damage_error(path, error) from None


def _make_damage_error(path: Path, error: Exception) -> UsageError:
    """Make the error for a damaged file, without its name, which could identify the winner."""
    return UsageError(
        f"A file of weights in {path.parent} is damaged ({type(error).__name__}), so the run "
        "cannot be finished: start a new one."
    )


def save_weights(module: nn.Module, path: Path, folder: RunFolder) -> None:
    """Write the weights of a module to a file, completely or not at all."""
    write_weights({name: each.cpu() for name, each in module.state_dict().items()}, path, folder)


def write_weights(weights: Any, path: Path, folder: RunFolder) -> None:
    """Write the weights of one or several networks to a file, completely or not at all."""
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    folder.atomic_write(path, buffer.getvalue())


Weights = dict[str, torch.Tensor]  # weights of a network, as its `state_dict`


def set_threshold(weights: Weights, place: int) -> Weights:
    """Return weights with the decision threshold of this index in `list_thresholds`."""
    return _shift_log_odds(weights, -list_thresholds()[place])


class Trajectory:
    """Recorder of the checkpoints and averages of a training's iterates.

    Args:
        steps: Number of planned steps.
        temperature: Divisor of the logits, which is applied to the iterates too; None: 1.
    """

    def __init__(self, steps: int, temperature: float | None = None):
        self._steps, self._temperature = steps, temperature
        self._kept: dict[float, Weights] = {}
        self._sums: dict[float, tuple[int, Weights]] = {}

    @torch.no_grad()
    def record(self, finished: int, network: nn.Module) -> None:
        """Record the iterate after `finished` steps, if a variant needs it."""
        for share in CHECKPOINT_NAMES:
            if finished == max(1, round(share * self._steps)):
                self._kept[share] = _copy_weights(network)
        for share in AVERAGE_NAMES:
            if finished > self._steps - max(1, round(share * self._steps)):
                count, total = self._sums.get(share, (0, {}))
                own = _copy_weights(network)
                summed = {name: total.get(name, 0.0) + own[name].double() for name in own}
                self._sums[share] = count + 1, summed

    @torch.no_grad()
    def make_variants(self, network: nn.Module, outputs: int) -> list[Weights]:
        """Return the weights of all variants, in the order of `list_variant_names`.

        Args:
            network: Trained network. It replaces iterates that a training which ended early did not
                reach.
            outputs: Number of outputs of the network.
        """
        own = _copy_weights(network)
        for weights in (*self._kept.values(), *(total for _, total in self._sums.values())):
            divide_logits(weights, self._temperature)
        found = [own, *(self._kept.get(share, own) for share in CHECKPOINT_NAMES)]
        for share in AVERAGE_NAMES:
            count, total = self._sums.get(share, (0, {}))
            found.append(
                {name: (total[name] / count).to(own[name].dtype) for name in own} if count else own
            )
        if outputs == 2:
            found += [_shift_log_odds(own, shift) for shift in LOG_ODDS_SHIFTS]

        def prune(weights: torch.Tensor, share: float) -> torch.Tensor:
            size = weights.abs().flatten()
            cut = size.kthvalue(max(1, round(share * size.numel()))).values
            return torch.where(weights.abs() > cut, weights, torch.zeros_like(weights))

        def quantise(weights: torch.Tensor, bits: int) -> torch.Tensor:
            scale = weights.abs().max() / (2 ** (bits - 1) - 1)
            return torch.where(scale > 0, (weights / scale).round() * scale, weights)

        # Vectors (biases and scales) stay unchanged, because they are small.
        matrices = {name for name, each in own.items() if each.ndim > 1}
        changes = [partial(prune, share=share) for share in PRUNING_NAMES]
        changes += [partial(quantise, bits=bits) for bits in QUANTISATION_BITS]
        for change in changes:
            found.append({n: change(w) if n in matrices else w for n, w in own.items()})
        return found


def _copy_weights(network: nn.Module) -> Weights:
    """Copy the weights of a network to the CPU."""
    return {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}


def _shift_log_odds(weights: Weights, shift: float) -> Weights:
    """Return weights with `shift` added to the log-odds of the second class."""
    last = list(weights)[-1]
    if weights[last].shape != (2,):  # the last layer has no bias
        return weights
    return {**weights, last: weights[last] + torch.tensor([0.0, shift], dtype=weights[last].dtype)}
