"""Products of two columns: what they are, that they come from means alone, and what they find."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import pasearch as api
from pasearch.accounting.budget import Budget
from pasearch.data import pairs
from pasearch.data.column import Column
from pasearch.data.front_ends import MAX_PAIRS, Centred, CentredPairs
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.data.means import ROW_NORM
from pasearch.data.schema import RowLayout, Schema
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys

STREAM = Keys.from_seed(3).stream("front end")
EDGES = (10.0, 20.0, 60.0)
SCHEMA = TableSchema(
    columns=(
        Column(name="age", low=0.0, high=100.0, bins=EDGES),
        Column(name="note", kind="text", vocabulary=("good", "bad")),
        Column(name="colour", categories=("red", "green")),
        Column(name="place", kind="ignore"),
        Column(name="weight", low=0.0, high=1.0, bins=0),
    ),
    target=Column(name="y", categories=("a", "b")),
)


def cells(n: int = 400, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    table = np.empty((n, 5), object)
    table[:, 0] = np.round(100 * draw.random(n) ** 3, 2)
    table[:, 1] = draw.choice(["a good one", "bad, bad", ""], n)
    table[:, 2] = draw.choice(["red", "green", "blue"], n)
    table[:, 3] = 1
    table[:, 4] = draw.random(n)
    return table


def encoded(table: np.ndarray, schema: TableSchema = SCHEMA) -> torch.Tensor:
    return torch.from_numpy(schema.encode_new(table))


def fitted(x: torch.Tensor, schema: Any = SCHEMA, many: int = 30, noise: float | None = None):
    valid = torch.ones(len(x), dtype=torch.bool)
    return CentredPairs(many).fit(x, valid, noise, STREAM, schema.row_layout).module


def up_its_bins(values: np.ndarray) -> np.ndarray:
    return np.interp(values.astype(float), (0.0, *EDGES, 100.0), (0.0, 0.25, 0.5, 0.75, 1.0))


@pytest.mark.oracle
def test_products_are_those_of_numbers_up_their_bins_and_indicators():
    table = cells()
    x = encoded(table)
    seen = fitted(x)(x).numpy()[:, x.shape[1] :]
    bins = np.digitize(table[:, 0].astype(float), EDGES)
    age = up_its_bins(table[:, 0]) - np.mean((bins + 0.5) / 4)
    weight = table[:, 4].astype(float) - np.mean(table[:, 4].astype(float))
    colours = [(table[:, 2] == name) - np.mean(table[:, 2] == name) for name in ("red", "green")]
    colours.append((table[:, 2] == "blue") - np.mean(table[:, 2] == "blue"))
    wanted = [age * weight] + [own * colour for own in (age, weight) for colour in colours]
    used = [column for column in seen.T if np.any(column)]
    assert len(used) == len(wanted) == 7  # nobody's colour is missing: that part does not vary
    for each in wanted:
        alike = [np.corrcoef(each, column)[0, 1] for column in used]
        assert max(alike) > 1 - 1e-5


@pytest.mark.unit
def test_the_rest_is_what_centred_shows_and_all_together_is_as_long():
    x = encoded(cells())
    seen = fitted(x)(x)
    alone = Centred().fit(x, torch.ones(400, dtype=torch.bool), None, STREAM, SCHEMA.row_layout)
    main = alone.module(x) * (1 - pairs.PRODUCT_NORM_FRACTION) ** 0.5
    assert torch.allclose(seen[:, : x.shape[1]], main, atol=1e-5)
    products = seen[:, x.shape[1] :].square().sum(dim=1).mean()
    assert 0.5 < float(products) / (pairs.PRODUCT_NORM_FRACTION * ROW_NORM**2) < 1.5


@pytest.mark.unit
def test_a_missing_number_has_no_products():
    table = cells()
    module = fitted(encoded(table))
    table[7, 0] = None
    row = module(encoded(table))[7, SCHEMA.shape[0] :]
    table[7, 4] = None
    none = module(encoded(table))[7, SCHEMA.shape[0] :]
    assert row.any()
    assert not none.any()


@pytest.mark.unit
def test_the_products_that_vary_most_are_kept():
    x = encoded(cells())
    all_of_them, three = fitted(x, many=30), fitted(x, many=3)
    variance = all_of_them.weight[:7] ** -4
    assert torch.equal(variance, variance.sort(descending=True).values)
    assert torch.equal(all_of_them.feature[all_of_them.first[:3]], three.feature[three.first[:3]])
    assert three(x).shape == (400, SCHEMA.shape[0] + 3)


@pytest.mark.property
@pytest.mark.parametrize("noise", [None, 0.5, 50.0])
def test_every_pair_is_of_two_columns_that_may_be_paired(noise: float | None):
    x = encoded(cells())
    module = fitted(x, many=30, noise=noise)
    column = {}
    for number, each in enumerate(SCHEMA.row_layout.columns):
        column |= dict.fromkeys(range(each.start, each.start + each.width), number)
    for first, second, weight in zip(module.first, module.second, module.weight, strict=True):
        if weight > 0:
            ends = [column[int(module.feature[place])] for place in (first, second)]
            assert ends[0] != ends[1]
    assert torch.isfinite(module(x)).all()


@pytest.mark.unit
def test_features_of_an_array_are_numbers():
    x = torch.rand(500, 4, generator=torch.Generator().manual_seed(2))
    schema = Schema(shape=(4,), low=0.0, high=1.0, classes=2)
    seen = fitted(x, schema)(x)[:, 4:10]
    wanted = [
        (x[:, i] - x[:, i].mean()) * (x[:, j] - x[:, j].mean())
        for i, j in combinations(range(4), 2)
    ]
    together = np.corrcoef(np.stack([*seen.T.numpy(), *(each.numpy() for each in wanted)]))
    assert (together[:6, 6:].max(axis=1) > 1 - 1e-4).all()


@pytest.mark.statistical
def test_the_fit_releases_the_means_alone(monkeypatch: pytest.MonkeyPatch):
    """Equal means, equal map: nothing else of the records is read."""
    x = encoded(cells())
    means = x.double().mean(0).numpy()
    monkeypatch.setattr(
        "pasearch.data.projections.FeatureMeans.release", lambda self, records, stream: means
    )
    one, other = fitted(x, noise=1.0), fitted(torch.rand_like(x), noise=1.0)
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])


@pytest.mark.unit
@pytest.mark.parametrize("text", ["centred_pairs:0", f"centred_pairs:{MAX_PAIRS + 1}"])
def test_a_number_that_cannot_be_taken_is_refused(text: str):
    with pytest.raises(UsageError):
        parse_front_end(text)


@pytest.mark.slow
def test_two_columns_that_matter_only_together_are_found(tmp_path: Path):
    draw = np.random.default_rng(5)
    table = pd.DataFrame(draw.random((4000, 3)).round(4), columns=["a", "b", "c"])
    table["y"] = np.where((table["a"] > 0.5) == (table["b"] > 0.5), "same", "apart")
    table.to_csv(tmp_path / "table.csv", index=False)
    reached = {}
    for front in ("centred", "centred_pairs"):
        result = api.train(
            tmp_path / "table.csv", target="y", recipe="full-batches", device="cpu", seed=1,
            architecture={"front_end": front, "layers": []}, budget=Budget(3.0),
            out=tmp_path / front,
        )  # fmt: skip
        reached[front] = np.mean(result.predict(table.drop(columns="y")) == table["y"])
    assert reached["centred"] < 0.76, "a sum of functions of one column is right about 3 of 4"
    assert reached["centred_pairs"] > max(0.85, reached["centred"] + 0.2)
    assert RowLayout(bound=1.0).columns == ()
