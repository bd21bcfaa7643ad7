"""The rows of the table: what is trained, on how many made-up records, in batches of how many."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import nn

from pasearch.data.partitions import Records
from pasearch.runs.keys import Keys
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.layers import Conv, Dense, Lstm, Pool

CLIP, SIGMA, RATE = 0.25, 1.0, 0.1


@dataclass(frozen=True, kw_only=True)
class Row:
    """One network, its records and its batch.

    Args:
        name: What `--row` takes.
        title: What the table calls it.
        architecture: Without its output layer.
        shape: Of a record.
        classes: Outputs.
        batch: Expected size.
        records: How many there are: few enough for the memory of a small machine.
        kind: "dense", "cnn" or "lstm": what it must reach differs.
    """

    name: str
    title: str
    architecture: Architecture
    shape: tuple[int, ...]
    classes: int
    batch: int
    records: int
    kind: str = "dense"

    def network(self) -> nn.Module:
        """Return the network, always with the same weights."""
        generator = Keys.from_seed(1).stream("weights").generator()
        network = self.architecture.build(self.shape, self.classes, generator)
        torch.manual_seed(1)
        for parameter in network.parameters():
            if not parameter.any():  # a linear model's start, with which all gradients are alike
                nn.init.normal_(parameter.detach(), std=1.0 / math.prod(self.shape))
        return network

    def without_dropout(self) -> Row:
        """Return the same without dropout, so that all ways can be compared."""
        layers = (replace(each, dropout=0.0) if isinstance(each, Dense) else each
                  for each in self.architecture.layers)  # fmt: skip
        return replace(self, architecture=replace(self.architecture, layers=tuple(layers)))

    @property
    def has_dropout(self) -> bool:
        """Whether a layer has."""
        return any(getattr(each, "dropout", 0.0) for each in self.architecture.layers)

    def data(self, device: str, records: int | None = None) -> Records:
        """Return made-up records."""
        generator, n = torch.Generator().manual_seed(2), records or self.records
        return Records(
            x=torch.rand((n, *self.shape), generator=generator).to(device),
            y=torch.randint(self.classes, (n,), generator=generator).to(device),
            valid=torch.ones(n, dtype=torch.bool, device=device),
            public=False,
        )


def _fcn(*units: int) -> Architecture:
    return Architecture(layers=tuple(Dense(units=each, activation="tanh") for each in units))


LINEAR, FCN, WIDE = _fcn(), _fcn(300, 128), _fcn(300, 128, 1024)
TABLE_XI = Architecture(
    layers=tuple(
        Dense(units=units, activation=activation, dropout=0.2)
        for units, activation in ((512, "relu"), (128, "sigmoid"), (32, "tanh"))
    )
)
"""One of the networks of Table XI: all its activations, and dropout."""
TABLE_XXVI = Architecture(
    layers=(
        Pool(size=2), Conv(filters=16, kernel=5), Pool(size=2),
        Conv(filters=32, kernel=3, padding="same"), Dense(units=64, activation="relu"),
    )
)  # fmt: skip
LSTM = Architecture(layers=(Lstm(units=128),))
SCATTERED = (81 * 7 * 7,)
"""Numbers of a 28 x 28 image behind the scattering transform with its default settings."""


def _row(
    name: str,
    title: str,
    architecture: Architecture,
    shape: tuple[int, ...],
    batch: int,
    *,
    classes: int = 10,
    records: int = 60_000,
    kind: str = "dense",
) -> Row:
    return Row(
        name=f"{name}-{batch}", title=f"{title}, {batch:,}", architecture=architecture,
        shape=shape, classes=classes, batch=batch, records=records, kind=kind,
    )  # fmt: skip


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        _row("logistic", "logistic regression 108 x 2", LINEAR, (108,), 100, classes=2),
        _row("fcn", "FCN 784-300-128-10", FCN, (784,), 100),
        _row("wide", "FCN 784-300-128-1024-10", WIDE, (784,), 100),
        _row("xi", "FCN 784-512-128-32-10 of Table XI", TABLE_XI, (784,), 100),
        _row("scattering", "scattering + linear", LINEAR, SCATTERED, 100, records=20_000),
        _row("cnn", "CNN of Table XXVI", TABLE_XXVI, (28, 28), 256, kind="cnn"),
        _row("lstm", "LSTM, 28 steps of 128 units", LSTM, (28, 28), 100, kind="lstm"),
        _row("fcn", "FCN 784-300-128-10", FCN, (784,), 2048),
        _row("scattering", "scattering + linear", LINEAR, SCATTERED, 2048, records=20_000),
        _row("cnn", "CNN of Table XXVI", TABLE_XXVI, (28, 28), 1024, kind="cnn"),
        _row("cnn", "CNN of Table XXVI", TABLE_XXVI, (28, 28), 100, kind="cnn"),
        _row("cnn", "CNN of Table XXVI", TABLE_XXVI, (28, 28), 2048, kind="cnn"),
    )
}
"""By name, in the table's order. `scattering-2048` is the linear model of the goals too."""

ON_GPU, ON_GPU_ALONE = (
    ("fcn-100", "xi-100", "fcn-2048", "cnn-100", "cnn-2048"),
    ("cnn-100", "cnn-2048"),
)
"""Those that a GPU alone is measured by, if none are named, and all that it is measured by."""


def usual(device: str) -> list[str]:
    """Return the rows of a device."""
    return [name for name in ROWS
            if (name in ON_GPU if device == "cuda" else name not in ON_GPU_ALONE)]  # fmt: skip
