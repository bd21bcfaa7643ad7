"""The declared form of records: what is refused, and the way to JSON and back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pasearch.data.schema import Schema
from pasearch.errors import UsageError

GOOD = {"shape": (8, 8), "low": 0.0, "high": 16.0, "classes": 10}
NUMBER = {"shape": (2,), "low": -1, "high": 3, "regression": True, "target": (-10, 30)}


@pytest.mark.unit
def test_bounds_that_are_no_interval_are_refused():
    for change in [
        {"low": float("nan")},
        {"high": float("nan")},
        {"high": float("inf")},
        {"low": 16.0},
        {"low": "0"},
        {"low": -1.7e308, "high": 1.7e308},
    ]:
        with pytest.raises(UsageError, match="low < high"):
            Schema(**(GOOD | change))


@pytest.mark.unit
def test_fewer_than_two_classes_are_refused():
    for classes in [1, 0, -3, 2.5, 10.0, "10", True, float("nan")]:
        with pytest.raises(UsageError, match="number of classes"):
            Schema(**(GOOD | {"classes": classes}))


@pytest.mark.unit
def test_a_shape_without_features_is_refused():
    for shape in [(), (0,), (8, 0), (-1,), (8.0,), (True,), ("8",)]:
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
        "kind": "arrays", "shape": [3], "low": -1.0, "high": 2.0, "classes": 4,
        "target": None, "regression": False,
    }  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize("values", [GOOD, NUMBER, {"shape": (3,)}, NUMBER | {"target": None}])
def test_it_comes_back_from_json(values: dict):
    schema = Schema(**values)
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    assert hash(again) == hash(schema)


class TestDeclared:
    @pytest.mark.unit
    @pytest.mark.parametrize("change", [{"low": None}, {"high": None}], ids=str)
    def test_bounds_come_together(self, change: dict):
        with pytest.raises(UsageError, match="both or neither"):
            Schema(**(GOOD | change))

    @pytest.mark.unit
    def test_what_is_not_declared_is_named(self):
        for values, undeclared in [
            (GOOD, ()),
            (GOOD | {"classes": None}, ("target",)),
            (GOOD | {"low": None, "high": None}, ("bounds",)),
            ({"shape": (3,)}, ("bounds", "target")),
            (NUMBER, ()),
            (NUMBER | {"target": None}, ("target",)),
            ({"shape": (3,), "regression": True}, ("bounds", "target")),
        ]:
            assert Schema(**values).undeclared == undeclared

    @pytest.mark.unit
    def test_nothing_is_encoded_before_it_is_declared(self):
        x, schema = np.zeros((2, 3)), Schema(shape=(3,))
        with pytest.raises(RuntimeError, match="before the schema is complete"):
            schema.encode(x, out=np.zeros((2, 3), np.float32))
        for regression in (False, True):
            with pytest.raises(RuntimeError, match="before the schema is complete"):
                Schema(shape=(3,), regression=regression).encode_labels(np.zeros(2))

    @pytest.mark.unit
    def test_bounds_of_the_target_that_are_no_interval_are_refused(self):
        for target in [
            (1.0, 1.0),
            (0.0, float("nan")),
            (0.0,),
            "ab",
            (True, 2),
        ]:
            with pytest.raises(UsageError, match="Bounds of the target"):
                Schema(**(NUMBER | {"target": target}))

    @pytest.mark.unit
    def test_classes_and_a_number_exclude_each_other(self):
        with pytest.raises(UsageError, match="has no classes"):
            Schema(**(NUMBER | {"classes": 3}))
        with pytest.raises(UsageError, match="require regression"):
            Schema(**(GOOD | {"target": (0.0, 1.0)}))


class TestRegression:
    LABELS = (-10.0, 30.0, 10.0, -1e300, 1e300, np.nan, np.inf, -np.inf)

    @pytest.mark.unit
    def test_labels_are_clamped_and_scaled_and_not_finite_ones_are_null(self):
        y, valid = Schema(**NUMBER).encode_labels(np.array(self.LABELS))
        assert y.dtype == np.float32
        assert y[:5].tolist() == [0.0, 1.0, 0.5, 0.0, 1.0]
        assert valid.tolist() == [True] * 5 + [False] * 3
        assert ((y >= 0) & (y <= 1)).all()

    @pytest.mark.unit
    @pytest.mark.parametrize("labels", [np.array(["1", "2"]), np.array([True, False]),
                                        np.array([1, 2], object), np.array([1j, 2])])  # fmt: skip
    def test_other_labels_are_refused(self, labels: np.ndarray):
        with pytest.raises(UsageError, match="expected numbers"):
            Schema(**NUMBER).check_arrays("d", np.zeros((2, 2)), labels)

    @pytest.mark.unit
    def test_predictions_come_back_in_the_units_of_the_target(self):
        schema = Schema(**NUMBER)
        scaled = schema.encode_labels(np.array([-10.0, 3.0, 30.0]))[0]
        assert np.allclose(schema.decode_number(scaled), [-10, 3, 30], atol=1e-5)


class TestEncode:
    @pytest.mark.unit
    def test_features_are_clamped_and_scaled_and_not_finite_records_are_told(self):
        x = np.array([[-1, 3], [-9, 1e300], [1, np.nan], [np.inf, 0], [1, -np.inf]])
        out = np.zeros((5, 2), np.float32)
        assert Schema(**NUMBER).encode(x, out=out).tolist() == [True, True, False, False, False]
        assert out[:2].tolist() == [[0, 1], [0, 1]]

    @pytest.mark.unit
    def test_new_records_are_encoded_as_in_training_and_not_finite_ones_are_zero(self):
        x = np.array([[-1.0, 3.0], [5.0, 1.0], [np.nan, 3.0]])
        new = Schema(**NUMBER).encode_new(x)
        assert new.dtype == np.float32
        assert new.tolist() == [[0, 1], [1, 0.5], [0, 0]]
        assert Schema(**NUMBER).encode_new(x[:2].tolist()).tolist() == [[0, 1], [1, 0.5]]

    @pytest.mark.unit
    @pytest.mark.parametrize("records", [np.zeros((3, 3)), np.zeros(2), np.array([["a", "b"]]),
                                         np.array([[None, 1]])])  # fmt: skip
    def test_new_records_of_another_form_are_refused(self, records: np.ndarray):
        with pytest.raises(UsageError, match=r"expected numbers, \(rows, 2\)"):
            Schema(**NUMBER).encode_new(records)
