"""A candidate's training and its score: one record moves it by one at most, or by the grid."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn

from pasearch.data.front_ends import MaxPool
from pasearch.data.partitions import Records
from pasearch.data.schema import Schema
from pasearch.runs.keys import Keys, Stream
from pasearch.search.candidate_training import (
    FAILED_SCORE,
    compute_score_count,
    has_failed,
    mark_failed,
    train_candidate,
    training_streams,
)
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.layers import Dense
from pasearch.training.metrics import METRICS
from pasearch.training.recipe import Recipe

SCHEMA = Schema(shape=(4,), low=0.0, high=1.0, classes=3)
NUMBER = Schema(shape=(4,), low=0.0, high=1.0, regression=True, target=(-5.0, 20.0))
CANDIDATE = Candidate(architecture=Architecture(layers=(Dense(units=6, activation="tanh"),)))
RECIPE = Recipe(expected_batch_size=10, steps=6, learning_rate=0.5, noise_multiplier=1.0)


def records(n: int = 40) -> Records:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand((n, 4), generator=generator)
    return Records(
        x=x, y=x[:, :3].argmax(dim=1), valid=torch.ones(n, dtype=torch.bool), public=False
    )


def null(given: Records, slot: int) -> Records:
    x, y, valid = given.x.clone(), given.y.clone(), given.valid.clone()
    x[slot], y[slot], valid[slot] = 0.0, 0, False
    return replace(given, x=x, y=y, valid=valid)


def trained(stream: Stream, given: Records | None = None, recipe: Recipe = RECIPE) -> list:
    given = records() if given is None else given
    network = train_candidate(
        CANDIDATE, given, SCHEMA, recipe, training_streams(stream), device="cpu"
    )
    return [value.clone() for value in network.state_dict().values()]


def equal(first: list, second: list) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


ERROR_GRID = METRICS["mae"].max_points


class Answers(nn.Module):
    """A network that answers with what it is given first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot((x[:, 0] * 3).long().clamp(max=2), 3).float()


class TestScore:
    @pytest.mark.unit
    def test_counts_right_answers(self):
        given = records(9)
        answers = (given.x[:, 0] * 3).long()
        assert compute_score_count(Answers(), replace(given, y=answers), device="cpu") == 9
        assert (
            compute_score_count(Answers(), replace(given, y=(answers + 1) % 3), device="cpu") == 0
        )

    @pytest.mark.property
    def test_a_null_record_is_never_right_and_moves_the_count_by_one_at_most(self):
        given = records()
        base = compute_score_count(Answers(), given, device="cpu")
        answers = (given.x[:, 0] * 3).long()
        for slot in range(len(given)):
            fewer = compute_score_count(Answers(), null(given, slot), device="cpu")
            assert base - fewer == int(answers[slot] == given.y[slot])

    @pytest.mark.unit
    @pytest.mark.parametrize("chunk", [1, 7, 40, 100])
    def test_does_not_depend_on_the_chunk(self, chunk: int):
        given = records()
        expected = compute_score_count(Answers(), given, device="cpu")
        assert compute_score_count(Answers(), given, device="cpu", chunk=chunk) == expected

    @pytest.mark.unit
    def test_is_taken_in_evaluation_mode_and_without_gradients(self):
        class Probe(Answers):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                assert not self.training
                assert not torch.is_grad_enabled()
                return super().forward(x)

        compute_score_count(Probe().train(), records(), device="cpu")


class Tells(nn.Module):
    """A network that predicts the number that it is given first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :1]


def numbers(answers: list[float], y: list[float], valid: list[bool] | None = None) -> Records:
    kept = [True] * len(y) if valid is None else valid
    return Records(
        x=torch.tensor(answers)[:, None], y=torch.tensor(y), valid=torch.tensor(kept), public=False
    )


def score(given: Records, chunk: int = 8192) -> int:
    return compute_score_count(Tells(), given, device="cpu", chunk=chunk)


class TestPoints:
    """A number's score: whole points of each record, from 0 to the grid."""

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("answer", "y", "expected"),
        [
            (0.25, 0.25, ERROR_GRID),
            (0.0, 0.25, 75),
            (0.5, 0.25, 75),
            (0.625, 0.25, 62),  # 62.5: points are whole before they are added
            (0.255, 0.25, 99),
            (1.0, 0.0, 0),
            (0.0, 1.0, 0),
            (-3.0, 0.5, 50),  # what is predicted stays within the bounds
            (1e30, 0.5, 50),
        ],
    )
    def test_of_one_record(self, answer: float, y: float, expected: int):
        assert score(numbers([answer], [y])) == expected

    @pytest.mark.unit
    def test_are_added_up_and_null_records_have_none(self):
        given = numbers([0.0, 0.5, 0.625, 9.0], [0.0, 0.25, 0.25, 0.5])
        assert score(given) == 100 + 75 + 62 + 50
        assert score(replace(given, valid=torch.tensor([False, True, True, True]))) == 75 + 62 + 50
        assert score(replace(given, valid=torch.zeros(4, dtype=torch.bool))) == 0
        assert type(score(given)) is int

    @pytest.mark.unit
    @pytest.mark.parametrize("answer", [math.nan, math.inf, -math.inf])
    def test_an_answer_that_is_no_number_is_worst(self, answer: float):
        assert score(numbers([answer], [0.5])) == 0
        assert score(numbers([answer, 0.5], [0.5, 0.5])) == ERROR_GRID

    @pytest.mark.property
    @settings(max_examples=100)
    @drawn(
        rows=st.lists(
            st.tuples(st.floats(-2, 3, width=32) | st.floats(width=32), st.floats(0, 1, width=32)),
            min_size=1,
            max_size=6,
        )
    )
    def test_one_record_moves_them_by_the_grid_at_most(self, rows: list[tuple[float, float]]):
        answers, y = ([row[i] for row in rows] for i in range(2))
        whole = score(numbers(answers, y))
        assert 0 <= whole <= ERROR_GRID * len(rows)
        for gone in range(len(rows)):
            valid = [i != gone for i in range(len(rows))]
            fewer = score(numbers(answers, [v * k for v, k in zip(y, valid, strict=True)], valid))
            assert 0 <= whole - fewer <= ERROR_GRID
            assert whole - fewer == score(numbers([answers[gone]], [y[gone]]))


class TestTraining:
    @pytest.mark.unit
    def test_the_stream_decides_everything(self):
        stream = Keys.from_seed(5).stream("trial", 0)
        state = torch.random.get_rng_state()
        first = trained(stream)
        torch.rand(100)
        assert equal(first, trained(stream))
        torch.random.set_rng_state(state)

    @pytest.mark.unit
    def test_weights_batches_and_noise_have_streams_of_their_own(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        seen = {}

        def keep(network, records, recipe, streams, **others):
            seen.update(streams)
            return iter(())

        monkeypatch.setattr("pasearch.search.candidate_training.run_rounds", keep)
        stream = Keys.from_seed(5).stream("trial", 0)
        trained(stream)
        assert set(seen) == {"weights", "batch", "noise", "dropout"}
        keys = [stream, stream.child("score"), stream.child("tie-break")]
        secrets = {each._secret for each in (*keys, *seen.values())}
        assert len(secrets) == 7

    @pytest.mark.unit
    def test_null_records_change_the_batches_of_nobody(self):
        stream = Keys.from_seed(5).stream("trial", 0)
        still = records()
        nulled = replace(still, valid=torch.zeros(40, dtype=torch.bool))
        recipe = replace(RECIPE, noise_multiplier=1e-6)
        start = CANDIDATE.architecture.build((4,), 3, stream.child("weights").generator())
        moved = trained(stream, nulled, recipe)
        for before, after in zip(start.state_dict().values(), moved, strict=True):
            assert torch.allclose(before, after, atol=1e-4)
        assert not equal(moved, trained(stream, still, recipe))

    @pytest.mark.unit
    def test_a_number_to_predict_is_learnt(self):
        given = records(400)
        given = replace(given, y=(given.x[:, 0] + given.x[:, 1]) / 2)
        recipe = replace(RECIPE, expected_batch_size=100, steps=80, noise_multiplier=0.1)
        streams = training_streams(Keys.from_seed(5).stream("trial", 0))
        start, network = (
            train_candidate(CANDIDATE, given, NUMBER, made, streams, device="cpu")
            for made in (replace(recipe, steps=1, learning_rate=1e-9), recipe)
        )
        assert network(given.x[:3]).shape == (3, 1)
        found, before = (
            compute_score_count(each, given, device="cpu") / 400 for each in (network, start)
        )
        assert found > 85 > before + 5

    @pytest.mark.unit
    def test_the_network_is_built_for_what_is_behind_the_front_end(self):
        schema = Schema(shape=(4, 6), low=0.0, high=1.0, classes=3)
        behind = replace(records(), x=torch.rand(40, 2, 3))
        candidate = replace(CANDIDATE, front_end=MaxPool(2))
        streams = training_streams(Keys.from_seed(5).stream("trial", 0))
        network = train_candidate(candidate, behind, schema, RECIPE, streams, device="cpu")
        assert network(behind.x).shape == (40, 3)
        assert 0 <= compute_score_count(network, behind, device="cpu") <= 40


class TestFailure:
    @pytest.mark.unit
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_one_weight_that_is_not_finite_is_a_failure(self, value: float):
        network = CANDIDATE.architecture.build((4,), 3, np.random.default_rng(0))
        assert not has_failed(network)
        with torch.no_grad():
            next(network.parameters()).view(-1)[2] = value
        assert has_failed(network)

    @pytest.mark.unit
    def test_marking_makes_every_weight_a_failure(self):
        network = mark_failed(CANDIDATE.architecture.build((4,), 3))
        assert has_failed(network)
        assert all(bool(torch.isnan(p).all()) for p in network.parameters())

    @pytest.mark.unit
    def test_the_worst_score_is_below_every_noisy_count(self):
        assert (FAILED_SCORE, 2**62) < (-(10.0**300), 0)
