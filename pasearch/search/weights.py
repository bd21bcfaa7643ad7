"""Weights of networks in a run's private folder: written whole or not at all.

Source: docs/result.md; docs/rules.md, rule 10 (weights only).
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pasearch.errors import UsageError
from pasearch.runs.folder import RunFolder


def load_weights(module: nn.Module, path: Path) -> None:
    """Give a module the weights that `save_weights` wrote.

    Raises:
        UsageError: The file was damaged, or is of another module.
    """
    try:
        module.load_state_dict(read_weights(path))
    except RuntimeError as error:
        raise _damaged(path, error) from None


def read_weights(path: Path) -> Any:
    """Return what `write_weights` wrote.

    Raises:
        UsageError: The file was damaged.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - whatever a damaged file does to a loader
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> UsageError:
    """Return what is said of a damaged file: not which, as only the winner's is read again."""
    return UsageError(
        f"A file of weights in {path.parent} is damaged ({type(error).__name__}), so the run "
        "cannot be finished: start a new one."
    )


def save_weights(module: nn.Module, path: Path, folder: RunFolder) -> None:
    """Write weights so that a crash leaves either all of them or none."""
    write_weights({name: each.cpu() for name, each in module.state_dict().items()}, path, folder)


def write_weights(weights: Any, path: Path, folder: RunFolder) -> None:
    """Write weights, of one network or of several, likewise."""
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    folder.atomic_write(path, buffer.getvalue())
