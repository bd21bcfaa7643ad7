"""Products that round rows otherwise by where they stand are refused before anything is charged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pasearch import Budget, search_architecture
from pasearch.data.partitions import Records
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.training import row_rounding as products
from pasearch.training.recipe import Recipe
from pasearch.training.row_rounding import check_row_rounding
from pasearch.training.trainer import Training


@pytest.fixture(autouse=True)
def tried_anew() -> Iterator[None]:
    check_row_rounding.cache_clear()
    yield
    check_row_rounding.cache_clear()


def otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch round the last row in another way, as MKL does for some shapes and places."""
    honest = nn.functional.linear

    def linear(*given: Any) -> torch.Tensor:
        out = honest(*given)
        out[-1] = torch.nextafter(out[-1], torch.tensor(9.0))
        return out

    monkeypatch.setattr(nn.functional, "linear", linear)


mkl = pytest.mark.skipif(
    not torch.backends.mkl.is_available(), reason="torch multiplies by another library here"
)


@pytest.mark.contract
def test_rows_are_alike_here():
    check_row_rounding()


@mkl
@pytest.mark.contract
def test_a_training_does_not_begin_where_they_are_not(monkeypatch: pytest.MonkeyPatch):
    otherwise(monkeypatch)
    data = Records(
        x=torch.ones(9, 2), y=torch.arange(9) % 2, valid=torch.ones(9, dtype=torch.bool),
        public=False,
    )  # fmt: skip
    recipe = Recipe(expected_batch_size=3, steps=2, learning_rate=0.1, noise_multiplier=1.0)
    streams = {name: Keys.from_seed(1).stream(name) for name in ("batch", "noise", "dropout")}
    with pytest.raises(UsageError, match="import pasearch before you compute with torch"):
        Training(nn.Sequential(nn.Linear(2, 2)), data, recipe, streams)


@mkl
@pytest.mark.contract
def test_nor_is_anything_of_a_run_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    otherwise(monkeypatch)
    with pytest.raises(UsageError, match="MKL_CBWR=AUTO"):
        search_architecture("digits", budget=Budget(2.0), strategy="fixed", out=tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.unit
def test_other_libraries_are_not_tried(monkeypatch: pytest.MonkeyPatch):
    otherwise(monkeypatch)
    monkeypatch.setattr(products.torch.backends.mkl, "is_available", lambda: False)
    check_row_rounding()
