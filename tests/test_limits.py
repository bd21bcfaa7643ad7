"""Upper limits on what is counted: a slip of the hand is told, and nothing is allocated for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pasearch.accounting.checks import (
    MAX_COUNT,
    check_positive_integer,
)
from pasearch.api.request import Request
from pasearch.data import column, tables
from pasearch.data import schema as arrays
from pasearch.data.column import DEFAULT_BINS, Column
from pasearch.data.front_ends import PrincipalComponents
from pasearch.data.schema import Schema
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError
from pasearch.features.selector import make_choice
from pasearch.search.strategy import make_strategy
from pasearch.spaces.architecture import MAX_LAYERS, MAX_PARAMETERS, Architecture
from pasearch.spaces.layers import MAX_LAYER_SIZE, Conv, Dense, Lstm, Norm, Pool
from pasearch.spaces.parsing import make_space
from pasearch.spaces.space import MAX_COMBINATIONS, Portfolio, SearchSpace
from pasearch.training.augmentation import Augmentation
from pasearch.training.encoded.gradients import EncodedClipping
from pasearch.training.encoded.noise import KolmogorovSmirnov
from pasearch.training.recipe import Recipe
from pasearch.training.schedules import StepDecay
from pasearch.training.screening import Annealing

NO_COUNTS: list[Any] = [99_999_999_999_999, 10**18, 10**400, -1, -(10**400), float("nan"),
                        float("inf"), 1e308, "many", [], None]  # fmt: skip
MAKERS: dict[str, Callable[[Any], object]] = {
    "whole": lambda value: check_positive_integer("count", value),
    "batch": lambda value: Recipe(expected_batch_size=value, steps=1),
    "steps": lambda value: Recipe(expected_batch_size=1, steps=value),
    "period": lambda value: StepDecay(rate=0.5, period=value),
    "every": lambda value: Annealing(q0=1.0, mu0=1, every=value),
    "views": lambda value: Augmentation(views=value),
    "vectors": lambda value: EncodedClipping(clip_norm=1.0, vectors=value),
    "cells": lambda value: KolmogorovSmirnov(cells=value if value is not None else -1),
    "components": lambda value: PrincipalComponents(value),
    "units": lambda value: Dense(units=value),
    "filters": lambda value: Conv(filters=value),
    "kernel": lambda value: Conv(filters=1, kernel=value),
    "padding": lambda value: Conv(filters=1, padding=value),
    "size": lambda value: Pool(size=value),
    "groups": lambda value: Norm(groups=value),
    "state": lambda value: Lstm(units=value),
    "classes": lambda value: Schema(shape=(2,), classes=value if value is not None else -1),
    "shape": lambda value: Schema(shape=(value, 2)),
    "population": lambda value: make_choice("pafs", population=value if value is not None else -1),
    "generations": lambda value: make_choice(
        "pafs", generations=value if value is not None else -1
    ),
    "max_categories": lambda value: Request(data="x", max_categories=value),
    "image_side": lambda value: Request(data="x", image_side=value if value is not None else -1),
    "seed": lambda value: Request(
        data="x", seed=value if value not in (None, 99_999_999_999_999, 10**18) else -1
    ),
    "halvings": lambda value: make_strategy(
        "mgrs", law="poisson", generations=value if value is not None else -1
    ),
}


@pytest.mark.unit
def test_what_is_no_count_is_refused_in_a_short_sentence():
    for name in MAKERS:
        for value in NO_COUNTS:
            told = ""
            try:
                MAKERS[name](value)
            except UsageError as error:
                told = str(error)
            assert 0 < len(told) < 700, str(value)[:12]


@pytest.mark.unit
def test_the_most_is_taken():
    assert check_positive_integer("count", MAX_COUNT) == MAX_COUNT
    assert check_positive_integer("count", 7, most=7) == 7
    with pytest.raises(UsageError, match=r"count is 8: expected at most 7, because it is so\."):
        check_positive_integer("count", 8, most=7, why="it is so")
    assert Dense(units=MAX_LAYER_SIZE).units == MAX_LAYER_SIZE


class TestTables:
    @pytest.mark.unit
    def test_bins(self):
        for bins in [99_999_999, 10**18, 10**5000, list(range(10_001))]:
            with pytest.raises(UsageError, match=r"'a': bins: .*at most 10,000, because") as caught:
                Column(name="a", low=0, high=10**6, bins=bins)
            assert len(str(caught.value)) < 300

    @pytest.mark.unit
    def test_categories_and_words(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(column, "MAX_DECLARED_VALUES", 3)
        for key in ("categories", "vocabulary"):
            Column(name="a", **{key: ("x", "y", "z")})  # type: ignore[arg-type]
            with pytest.raises(UsageError, match=f"{key}: 4: expected at most 3"):
                Column(name="a", **{key: ("w", "x", "y", "z")})  # type: ignore[arg-type]

    @pytest.mark.unit
    def test_all_columns_together(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(tables, "MAX_TABLE_FEATURES", 100)
        columns = tuple(Column(name=f"c{i}", low=0, high=1, bins=30) for i in range(4))
        with pytest.raises(
            UsageError, match="A row would be encoded as 128 features: expected at most"
        ):
            TableSchema(columns=columns, target=Column(name="y"))
        TableSchema(columns=columns[:3], target=Column(name="y"))

    @pytest.mark.property
    def test_the_width_is_counted_as_the_names_are(self):
        numbers: list[dict[str, Any]] = [
            {"low": 0, "high": 1, "bins": bins} for bins in (None, 0, 1, 2, 7, [], [0.5])
        ]
        others = {"categories": ()}, {"categories": ("x", "y")}, {"vocabulary": ("x", "y")}
        for given in (*numbers, *others, {"kind": "ignore"}):
            column = Column(name="a", **given)
            assert column.width == len(column.feature_names())
        assert DEFAULT_BINS == 10

    @pytest.mark.unit
    def test_a_malformed_schema_is_refused(self):
        for values in (
            {}, [], None, 3, {"name": "x"}, {"name": "x", "target": 3, "official_test": 0},
            {"name": "x", "target": {"nome": "y"}, "official_test": 0, "columns": []},
            {"name": "x", "target": {"name": "y"}, "official_test": "1", "columns": []},
            {"name": "x", "target": {"name": "y"}, "official_test": 0, "columns": 7},
        ):  # fmt: skip
            with pytest.raises(UsageError):
                TableSchema.from_json(values)
            with pytest.raises(UsageError):
                Schema.from_json(values)


@pytest.mark.unit
def test_the_numbers_of_a_record_are_limited():
    Schema(shape=(arrays.MAX_ARRAY_FEATURES,))
    with pytest.raises(UsageError, match="at most 16,777,216 features"):
        Schema(shape=(arrays.MAX_ARRAY_FEATURES + 1,))


class TestNetworks:
    @pytest.mark.unit
    def test_layers(self):
        layers = (Dense(units=2),) * MAX_LAYERS
        assert len(Architecture(layers=layers).layers) == MAX_LAYERS
        with pytest.raises(UsageError, match="201 layers: expected at most 200"):
            Architecture(layers=(*layers, Dense(units=2)))
        with pytest.raises(UsageError, match="1,000,000 layers"):
            Architecture.from_json([{}] * 10**6)

    @pytest.mark.unit
    def test_weights_are_counted_and_not_allocated(self):
        wide = Architecture(layers=(Dense(units=MAX_LAYER_SIZE), Dense(units=MAX_LAYER_SIZE)))
        with pytest.raises(UsageError, match=f"expected at most {MAX_PARAMETERS:,}"):
            wide.build((8, 8), 10)

    @pytest.mark.unit
    def test_shapes_of_a_space(self):
        choices = {"filters": list(range(1, 200)), "units": list(range(1, 200))}
        with pytest.raises(UsageError, match=f"39,601 shapes.*at most {MAX_COMBINATIONS:,}"):
            make_space({"family": "cnn", "choices": choices})

    @pytest.mark.unit
    def test_settings_of_a_space(self):
        ranges = {"low": 0.5, "high": 2.0}
        choices = {"learning_rate_scale": ranges, "learning_rate_growth": ranges}
        with pytest.raises(UsageError, match="1,050,625 settings of the recipe"):
            make_space({"choices": choices})

    @pytest.mark.unit
    def test_values_of_a_gene_and_entries_of_a_portfolio(self):
        with pytest.raises(UsageError, match="has 5,000 values: expected at most 1,025"):
            SearchSpace.from_dict({"choices": {"units_1": list(range(1, 5001))}})
        with pytest.raises(UsageError, match="5,000 entries"):
            Portfolio.from_json({"entries": [{}] * 5000})
