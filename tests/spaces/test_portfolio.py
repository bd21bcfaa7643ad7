"""A portfolio: a short list of candidates, drawn uniformly, the first of them the default."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from pasearch.data.front_ends import MaxPool, PrincipalComponents, Raw
from pasearch.errors import UsageError
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.layers import Conv, Dense, Pool
from pasearch.spaces.parsing import make_space
from pasearch.spaces.space import Portfolio, Space


def candidate(*units: int, front_end: Any = Raw(), **settings: float) -> Candidate:  # noqa: B008
    layers = tuple(Dense(units=each) for each in units)
    return Candidate(
        architecture=Architecture(layers=layers),
        settings=tuple(settings.items()),
        front_end=front_end,
    )


ENTRIES = (
    candidate(8, learning_rate_scale=2.0),
    candidate(front_end=PrincipalComponents(5)),
    candidate(front_end=MaxPool(2), learning_rate_scale=0.5, steps=40),
    candidate(16, 4, learning_rate_scale=2.0),
)
FIVE = Portfolio(name="best", entries=(*ENTRIES, candidate()))
SHAPE = (6, 6)


class TestDraw:
    @pytest.mark.statistical
    def test_is_uniform(self):
        generator, n = np.random.default_rng(3), 8000
        counts = np.bincount([FIVE.draw(generator)[0] for _ in range(n)], minlength=5)

        def distance(law: np.ndarray) -> float:
            return float(((counts - n * law) ** 2 / (n * law)).sum())

        even = np.full(5, 0.2)
        # The default may not come more often, nor the last one less.
        skewed = [np.array([0.25, *[0.1875] * 4]), np.array([*[0.2125] * 4, 0.15])]
        assert distance(even) < 24  # p below 10^-4 with four degrees of freedom
        assert all(distance(law) > 60 for law in skewed)

    @pytest.mark.unit
    def test_means_an_entry(self):
        generator = np.random.default_rng(1)
        drawn = [FIVE.candidate(FIVE.draw(generator)) for _ in range(200)]
        assert set(drawn) == set(FIVE.entries)
        assert [FIVE.candidate((i,)) for i in range(5)] == list(FIVE.entries)

    @pytest.mark.unit
    def test_no_other_genotype_means_anything(self):
        for genotype in [(), (0, 1), (5,)]:
            with pytest.raises((ValueError, IndexError)):
                FIVE.candidate(genotype)

    @pytest.mark.unit
    def test_an_entry_that_is_there_twice_has_twice_the_probability(self):
        twice = Portfolio(name="t", entries=(*ENTRIES[:2], ENTRIES[1]))
        assert (twice.count(), twice.sizes) == (3, (3,))
        assert twice.candidate((1,)) == twice.candidate((2,))


class TestSpace:
    @pytest.mark.unit
    def test_the_fixed_one_is_the_first(self):
        assert FIVE.default_genotype() == (0,)
        assert FIVE.candidate(FIVE.default_genotype()) == ENTRIES[0]
        assert (FIVE.sizes, FIVE.count()) == ((5,), 5)
        assert isinstance(FIVE, Space)

    @pytest.mark.unit
    def test_settings_and_front_ends_of_every_entry_are_there_once(self):
        assert FIVE.settings() == [
            (("learning_rate_scale", 2.0),), (), (("learning_rate_scale", 0.5), ("steps", 40)),
        ]  # fmt: skip
        assert FIVE.front_ends() == (Raw(), PrincipalComponents(5), MaxPool(2))

    @pytest.mark.unit
    def test_the_range_of_parameters_is_that_of_default_and_largest(self):
        sizes = [each.parameters(SHAPE, 3)[0] for each in FIVE.entries]
        assert sizes == [37 * 8 + 27, 6 * 3, 10 * 3, 37 * 16 + 17 * 4 + 15, 37 * 3]
        assert FIVE.parameter_range(SHAPE, 3) == (sizes[0], max(sizes))

    @pytest.mark.contract
    def test_every_entry_is_a_network_that_runs(self):
        for each in FIVE.entries:
            network = each.build(SHAPE, 3, np.random.default_rng(2))
            x = torch.rand(2, *each.front_end.output_shape(SHAPE))
            assert network(x).shape == (2, 3)

    @pytest.mark.unit
    def test_an_entry_that_does_not_fit_the_records_is_refused(self):
        for entry, words in [
            (candidate(4, front_end=MaxPool(7)), "larger than an image"),
            (Candidate(architecture=Architecture(layers=(Conv(filters=2, kernel=7),))), "7 pixels"),
            (
                Candidate(
                    architecture=Architecture(layers=(Pool(),)), front_end=PrincipalComponents(4)
                ),
                "needs images",
            ),
        ]:
            FIVE.check_fits(SHAPE, 3)
            for place in range(2):
                entries = [ENTRIES[0], ENTRIES[1]]
                entries.insert(place, entry)
                portfolio = Portfolio(name="best", entries=tuple(entries))
                with pytest.raises(UsageError, match=words) as seen:
                    portfolio.check_fits(SHAPE, 3)
                assert "Space 'best' does not fit records of shape (6, 6)" in str(seen.value)

    @pytest.mark.unit
    def test_an_empty_one_is_refused(self):
        with pytest.raises(UsageError, match="'none' is empty"):
            Portfolio(name="none", entries=())
        with pytest.raises(UsageError, match="is empty"):
            make_space({"name": "none", "family": "portfolio", "entries": []})


class TestJson:
    @pytest.mark.unit
    def test_it_comes_back(self):
        values = json.loads(json.dumps(FIVE.to_json()))
        assert values["family"] == "portfolio"
        again = Portfolio.from_json(values)
        assert again == FIVE
        assert make_space(values) == FIVE
        assert [each.describe() for each in again.entries] == [e.describe() for e in FIVE.entries]
        assert make_space(FIVE) is FIVE
