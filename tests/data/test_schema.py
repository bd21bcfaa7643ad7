"""The declared form of records: what is refused, and the way to JSON and back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pasearch.data.schema import Schema
from pasearch.errors import UsageError

GOOD = {"shape": (8, 8), "low": 0.0, "high": 16.0, "classes": 10}


@pytest.mark.unit
@pytest.mark.parametrize(
    "change",
    [
        {"low": float("nan")},
        {"high": float("nan")},
        {"high": float("inf")},
        {"low": -float("inf")},
        {"low": 16.0},
        {"low": 17.0},
        {"low": "0"},
        {"high": None},
        {"low": True},
        {"low": -1.7e308, "high": 1.7e308},
    ],
    ids=str,
)
def test_bounds_that_are_no_interval_are_refused(change: dict):
    with pytest.raises(UsageError, match="low < high"):
        Schema(**(GOOD | change))


@pytest.mark.unit
@pytest.mark.parametrize("classes", [1, 0, -3, 2.5, 10.0, "10", True, None, float("nan")])
def test_fewer_than_two_classes_are_refused(classes: object):
    with pytest.raises(UsageError, match="number of classes"):
        Schema(**(GOOD | {"classes": classes}))


@pytest.mark.unit
@pytest.mark.parametrize("shape", [(), (0,), (8, 0), (-1,), (8.0,), (True,), ("8",)], ids=str)
def test_a_shape_without_features_is_refused(shape: tuple):
    with pytest.raises(UsageError, match="at least one feature"):
        Schema(**(GOOD | {"shape": shape}))


@pytest.mark.unit
def test_numbers_become_plain_python_numbers():
    schema = Schema(
        shape=(np.int64(3),),  # type: ignore[arg-type]
        low=np.float32(-1),  # type: ignore[arg-type]
        high=2,
        classes=np.uint8(4),  # type: ignore[arg-type]
    )
    kinds = [type(v) for v in (schema.low, schema.high, schema.classes, schema.shape[0])]
    assert kinds == [float, float, int, int]
    assert json.loads(json.dumps(schema.to_json())) == {
        "shape": [3], "low": -1.0, "high": 2.0, "classes": 4,
    }  # fmt: skip


@pytest.mark.unit
def test_it_comes_back_from_json():
    schema = Schema(**GOOD)
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@pytest.mark.unit
def test_it_is_a_value():
    schema = Schema(**GOOD)
    with pytest.raises(AttributeError):
        schema.low = 1.0  # type: ignore[misc]
    assert hash(schema) == hash(Schema(**GOOD))
