"""Families of networks, what their genes are by default, and the search spaces that have a name.

Source: Bao et al., section VIII-A, Table XI (FCN), Table XII (CNN); the trainable flags are those
of section IX-A (random weights training).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pasearch.spaces.layers import Conv, Dense, Layer, Pool


def _fcn(genes: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Table XI: `layers` dense layers, each with its own width and activation; 0 is linear."""
    return tuple(
        Dense(
            units=genes[f"units_{i}"],
            activation=genes[f"activation_{i}"],
            trainable=genes[f"trainable_{i}"],
            dropout=genes["dropout"],
        )
        for i in range(1, genes["layers"] + 1)
    )


def _cnn(genes: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Table XII: pool 2, then blocks of i * filters filters, 5x5 valid first and 3x3 same after.

    A pooling layer stands between two blocks, none behind the last; then one dense layer.
    """
    layers: list[Layer] = [Pool(size=2)]
    for i in range(1, genes["blocks"] + 1):
        layers.append(
            Conv(
                filters=i * genes["filters"],
                kernel=5 if i == 1 else 3,
                padding="valid" if i == 1 else "same",
                activation=genes["conv_activation"],
                trainable=genes[f"trainable_{i}"],
            )
        )
        if i < genes["blocks"]:
            layers.append(Pool(size=2))
    head = Dense(
        units=genes["units"],
        activation=genes["activation"],
        trainable=genes["trainable_dense"],
        dropout=genes["dropout"],
    )
    return (*layers, head)


FAMILIES = {"fcn": _fcn, "cnn": _cnn}

DEFAULTS: dict[str, dict[str, Any]] = {
    "fcn": {
        "layers": 1,
        **{f"units_{i}": units for i, units in enumerate((128, 64, 32), start=1)},
        **{f"activation_{i}": "tanh" for i in (1, 2, 3)},
        **{f"trainable_{i}": True for i in (1, 2, 3)},
        "dropout": 0.0,
    },
    "cnn": {
        "blocks": 2,
        "filters": 16,
        "units": 64,
        "conv_activation": "relu",
        "activation": "relu",
        **{f"trainable_{i}": True for i in (1, 2, 3)},
        "trainable_dense": True,
        "dropout": 0.0,
    },
}

TABLE_XI: dict[str, tuple[Any, ...]] = {
    "layers": (1, 2, 3),
    "units_1": (64, 128, 512, 1024, 2048),
    "units_2": (64, 128, 256),
    "units_3": (10, 16, 32, 64),
    **{f"activation_{i}": ("relu", "sigmoid", "tanh") for i in (1, 2, 3)},
}

TABLE_XII: dict[str, tuple[Any, ...]] = {
    "blocks": (2, 3),
    "filters": (16, 32, 48),
    "units": (32, 64, 128, 512),
}

_RWT_FCN = {f"trainable_{i}": (True, False) for i in (1, 2, 3)}
_RWT_CNN = {**_RWT_FCN, "trainable_dense": (True, False)}

UNSCALED = {"learning_rate_scale": 1.0, "steps_scale": 1.0}
SCALED = {"learning_rate_scale": (0.5, 1.0, 2.0), "steps_scale": (0.5, 1.0)}

NAMED: dict[str, dict[str, Any]] = {
    "fcn": {
        "family": "fcn",
        "choices": {
            "layers": (1, 2),
            "units_1": (128, 256, 512),
            "units_2": (64, 128),
            **{f"activation_{i}": ("tanh", "relu", "tempered_sigmoid") for i in (1, 2)},
            "learning_rate_scale": (0.8, 1.0, 1.25),
            "steps_scale": (0.5, 1.0),
        },
        "default": {"units_1": 128, "activation_1": "tanh", **UNSCALED},
    },
    "images": {
        "family": "fcn",
        "choices": {
            "front_end": ("scattering", "raw"),
            "layers": (0, 1),
            "units_1": (32, 64, 128),
            "activation_1": ("tanh", "relu"),
            **SCALED,
        },
        "default": UNSCALED,
    },
    "tables": {
        "family": "fcn",
        "choices": {
            "layers": (0, 1, 2),
            "units_1": (16, 32, 64, 128),
            "units_2": (16, 32),
            **{f"activation_{i}": ("tanh", "relu") for i in (1, 2)},
            **SCALED,
        },
        "default": UNSCALED,
    },
    "fcn-paper": {"family": "fcn", "choices": {**TABLE_XI, "dropout": (0.2,)}},
    "fcn-rwt": {"family": "fcn", "choices": {**TABLE_XI, **_RWT_FCN, "dropout": (0.2,)}},
    "cnn": {
        "family": "cnn",
        "choices": {
            "blocks": (2, 3),
            "filters": (16, 32),
            "units": (32, 64, 128),
            "conv_activation": ("tanh", "relu"),
            "activation": ("tanh", "relu"),
            "trainable_1": (True, False),
            "learning_rate_scale": (0.7, 1.0, 1.4),
        },
        "default": {"units": 64, "learning_rate_scale": 1.0},
    },
    "cnn-paper": {"family": "cnn", "choices": {**TABLE_XII, "dropout": (0.3,)}},
    "cnn-rwt": {"family": "cnn", "choices": {**TABLE_XII, **_RWT_CNN, "dropout": (0.3,)}},
}
