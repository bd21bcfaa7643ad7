"""Candidates of a search: an architecture, its front end (preprocessing), and hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasearch.data.front_ends import FrontEnd, Raw
from pasearch.data.front_ends.parsing import parse_front_end, resolve_front_end_text
from pasearch.errors import UsageError
from pasearch.files import read_toml
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.layers import Shape

if TYPE_CHECKING:
    import numpy as np

SETTINGS = (
    "learning_rate", "learning_rate_scale", "learning_rate_growth", "learning_rate_most", "steps",
    "learning_rate_end", "steps_scale", "batch", "batch_share", "average", "clip_norm", "momentum",
    "weight_decay",
)  # fmt: skip
"""Names of the hyperparameters that a candidate may set; `training.settings` applies them to the
training configuration (recipe)."""

PRIVACY_SETTINGS = ("steps", "steps_scale", "batch", "batch_share", "clip_norm")
"""Names of the hyperparameters that can change the privacy cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Configuration of one trial: an architecture, its preprocessing, and hyperparameters.

    Args:
        architecture: Network without its output layer.
        settings: Pairs (name, value) with names from `SETTINGS`. Name "recipe" selects a training
            configuration if a plan has several.
        front_end: Preprocessing (feature extractor) of a record before the network.
    """

    architecture: Architecture
    settings: tuple[tuple[str, float], ...] = ()
    front_end: FrontEnd = Raw()  # noqa: RUF009 - a frozen value

    def parameters(self, shape: Shape, outputs: int) -> tuple[int, int]:
        """Return the numbers of all and of trainable parameters for records of this shape."""
        return self.architecture.parameters(self.front_end.output_shape(shape), outputs)

    def build(self, shape: Shape, outputs: int, generator: np.random.Generator | None = None):
        """Build the network for the front end's output by `Architecture.build`."""
        return self.architecture.build(self.front_end.output_shape(shape), outputs, generator)

    def learning_rate_factor(self) -> float:
        """Return the recommended learning rate relative to that of one layer of 128 tanh units."""
        return self.architecture.learning_rate_factor()

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        return {
            "front_end": self.front_end.text,
            "layers": self.architecture.to_json(),
            "settings": dict(self.settings),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Candidate:
        """Parse the result of `to_json`."""
        settings = values.get("settings", {})
        return cls(
            architecture=Architecture.from_json(values.get("layers")),
            settings=tuple((name, settings[name]) for name in SETTINGS if name in settings),
            front_end=parse_front_end(values.get("front_end", "raw")),
        )

    def describe(self) -> str:
        """Describe the candidate in one line."""
        shown = [(name, value) for name, value in self.settings if name in SETTINGS]
        changes = ", ".join(f"{name} {value:g}" for name, value in shown)
        return self.describe_network() + (f"; {changes}" if changes else "")

    def describe_network(self) -> str:
        """Describe the front end, if any, and the layers."""
        behind = "" if isinstance(self.front_end, Raw) else f"{self.front_end.text} - "
        return behind + self.architecture.describe()


def read_candidate(given: str | Path | Mapping[str, Any] | Candidate) -> Candidate:
    """Read one network with its front end and settings, from a file or a dictionary.

    Args:
        given: Path of a TOML file with `[[layers]]` and, optionally, `front_end` and `settings`; a
            dictionary with the same keys; or a candidate.

    Raises:
        UsageError: A missing or invalid file, or an unknown layer or name.
    """
    if isinstance(given, Candidate):
        return given
    if isinstance(given, Mapping):
        return _read_candidate(given, None)
    values = read_toml(given, EXPECTED_FILE)
    try:
        return _read_candidate(values, Path(given).parent)
    except UsageError as error:
        raise UsageError(f"{given}: {error}") from None


EXPECTED_FILE = "a TOML file with a [[layers]] table for every hidden layer"


def _read_candidate(values: Mapping[str, Any], folder: Path | None) -> Candidate:
    """Parse the keys of a user's file; relative paths begin at `folder`."""
    if "layers" not in values:
        raise UsageError(f"has no layers: expected {EXPECTED_FILE}, or layers = [] for none.")
    if unknown := sorted(set(values) - {"layers", "front_end", "settings", "name"}):
        raise UsageError(
            f"has unknown keys {', '.join(unknown)}: expected layers and, optionally, front_end, "
            "settings and name."
        )
    front = resolve_front_end_text(values.get("front_end", "raw"), folder)
    return Candidate.from_json({**values, "front_end": front})
