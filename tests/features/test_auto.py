"""`auto` decides by the schema's form alone, and says why."""

from __future__ import annotations

import pytest
from selections import METHODS

from pasearch.data.schema import Schema
from pasearch.data.tables import make_undeclared_schema
from pasearch.features.auto import MIN_COLUMNS_TO_SELECT, choose_method
from pasearch.features.trainers import TRAINERS


def told(
    *shape: int, method: str = "auto", trainer: str = "auto", k: int | None = None
) -> tuple[str, str, str | None]:
    schema = Schema(shape=shape, low=0.0, high=1.0, classes=2)
    chosen, how, why = choose_method(method, trainer, schema, k)
    if why is not None:
        assert why["chosen"] == f"{chosen}, {how}"
        assert why["expected"] == []
    return chosen, how, None if why is None else why["why"]


@pytest.mark.unit
def test_what_was_asked_for_is_taken_without_a_word():
    for method in METHODS:
        for trainer in TRAINERS:
            assert told(10, method=method, trainer=trainer) == (method, trainer, None)


@pytest.mark.unit
def test_few_columns_and_pixels_take_all_features_and_many_columns_choose():
    for shape, says in (
        (
            (MIN_COLUMNS_TO_SELECT - 1,),
            f"with {MIN_COLUMNS_TO_SELECT - 1} columns, selection is not predicted to improve",
        ),
        ((100, 100), "a single pixel carries little"),
        ((3, 100, 100), "a single pixel carries little"),
    ):
        method, trainer, why = told(*shape)
        assert (method, trainer) == ("all", "dpsgd")
        assert says in (why or "")
    method, trainer, why = told(MIN_COLUMNS_TO_SELECT)
    assert (method, trainer) == ("top", "dpsgd")
    assert "expected to be irrelevant" in (why or "")


@pytest.mark.unit
def test_a_number_of_features_is_a_wish_to_choose():
    method, _, why = told(10, k=3)
    assert method == "top"
    assert "3 features are requested" in (why or "")


@pytest.mark.unit
def test_one_may_be_left_open():
    assert told(10, method="pca")[:2] == ("pca", "dpsgd")
    assert told(10, trainer="objective")[:2] == ("all", "objective")


@pytest.mark.unit
def test_an_undeclared_table_is_judged_by_its_columns():
    for columns, method in [(3, "all"), (MIN_COLUMNS_TO_SELECT + 1, "top")]:
        schema = make_undeclared_schema([*(f"c{number}" for number in range(columns)), "y"], "y")
        assert choose_method("auto", "auto", schema)[0] == method
