"""How many records an undeclared table's columns are estimated from: public numbers decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from selections import table

import pasearch as api
from pasearch.accounting.budget import Budget
from pasearch.api.resolve import MAX_ESTIMATION_SHARE
from pasearch.data.column import Column
from pasearch.data.partitions import Dataset
from pasearch.data.tables import TableSchema


def undeclared(n: int) -> Dataset:
    whole = table(n)
    columns = tuple(Column(name=name) for name in "abcde")
    schema = TableSchema(columns=columns, target=Column(name="y"))
    return replace(whole, schema=schema)


def sizes(data: Dataset, epsilon: float, **more: Any) -> dict[str, int]:
    given = {"strategy": "fixed", **more}
    return api.plan_architecture_search(data, budget=Budget(epsilon), **given).split.sizes()


@pytest.mark.unit
def test_grow_as_the_noise_does_up_to_a_limit():
    shares = [sizes(undeclared(8000), each)["test"] / 8000 for each in (8.0, 1.0, 0.3, 0.15)]
    assert shares[0] == 0.1, "a tenth is enough"
    assert shares == sorted(shares)
    assert 0.1 < shares[2] < shares[3] <= MAX_ESTIMATION_SHARE
    assert sizes(undeclared(8000), 0.05)["test"] == 800, "no share would do: left to the training"
    assert sizes(undeclared(300), 1.0)["test"] == 30


@pytest.mark.unit
def test_are_those_of_the_part_that_is_read():
    found = sizes(undeclared(8000), 0.2, strategy="rs")
    assert found["test"] == 800
    assert found["validation"] == sizes(undeclared(8000), 0.2)["test"]
    assert sum(found.values()) == 8000


@pytest.mark.unit
def test_are_the_usual_ones_where_all_is_declared_or_shares_are_given():
    assert sizes(table(8000), 0.2)["test"] == 800
    assert sizes(undeclared(8000), 0.2, split="0.8,0.1,0.1")["test"] == 800
