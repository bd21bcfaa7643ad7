"""A candidate's training and its score: one record moves the score by one at most."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from pasearch.data.partitions import Records
from pasearch.data.schema import Schema
from pasearch.runs.keys import Keys, Stream
from pasearch.search.fitness import WORST, correct, failed, mark_failed, train_candidate
from pasearch.spaces.architecture import Architecture, Dense
from pasearch.spaces.space import Candidate
from pasearch.training.recipe import Recipe

SCHEMA = Schema(shape=(4,), low=0.0, high=1.0, classes=3)
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
    network = train_candidate(CANDIDATE, given, SCHEMA, recipe, stream, device="cpu")
    return [value.clone() for value in network.state_dict().values()]


def equal(first: list, second: list) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class Answers(nn.Module):
    """A network that answers with what it is given first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot((x[:, 0] * 3).long().clamp(max=2), 3).float()


class TestScore:
    @pytest.mark.unit
    def test_counts_right_answers(self):
        given = records(9)
        answers = (given.x[:, 0] * 3).long()
        assert correct(Answers(), replace(given, y=answers), device="cpu") == 9
        assert correct(Answers(), replace(given, y=(answers + 1) % 3), device="cpu") == 0

    @pytest.mark.unit
    def test_is_a_whole_number_of_python(self):
        assert type(correct(Answers(), records(), device="cpu")) is int

    @pytest.mark.property
    def test_a_null_record_is_never_right_and_moves_the_count_by_one_at_most(self):
        given = records()
        base = correct(Answers(), given, device="cpu")
        answers = (given.x[:, 0] * 3).long()
        for slot in range(len(given)):
            fewer = correct(Answers(), null(given, slot), device="cpu")
            assert base - fewer == int(answers[slot] == given.y[slot])

    @pytest.mark.unit
    def test_all_null_scores_nothing(self):
        given = records()
        nothing = replace(given, valid=torch.zeros(40, dtype=torch.bool))
        assert correct(Answers(), nothing, device="cpu") == 0

    @pytest.mark.unit
    @pytest.mark.parametrize("chunk", [1, 7, 40, 100])
    def test_does_not_depend_on_the_chunk(self, chunk: int):
        given = records()
        expected = correct(Answers(), given, device="cpu")
        assert correct(Answers(), given, device="cpu", chunk=chunk) == expected

    @pytest.mark.unit
    def test_is_taken_in_evaluation_mode_and_without_gradients(self):
        class Probe(Answers):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                assert not self.training
                assert not torch.is_grad_enabled()
                return super().forward(x)

        correct(Probe().train(), records(), device="cpu")


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
    def test_global_generators_are_left_alone(self):
        before = torch.random.get_rng_state()
        trained(Keys.from_seed(5).stream("trial", 0))
        assert torch.equal(before, torch.random.get_rng_state())

    @pytest.mark.unit
    def test_no_two_trials_share_a_draw(self):
        keys = Keys.from_seed(5)
        assert not equal(trained(keys.stream("trial", 0)), trained(keys.stream("trial", 1)))

    @pytest.mark.unit
    def test_weights_batches_and_noise_have_streams_of_their_own(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        seen = {}

        def keep(network, records, recipe, streams, **others):
            seen.update(streams)

        monkeypatch.setattr("pasearch.search.fitness.train", keep)
        stream = Keys.from_seed(5).stream("trial", 0)
        trained(stream)
        assert set(seen) == {"batch", "noise", "dropout"}
        keys = [stream, stream.child("weights"), stream.child("score"), stream.child("tie-break")]
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
    def test_steps_are_reported(self):
        steps: list[int] = []
        stream = Keys.from_seed(5).stream("trial", 0)
        train_candidate(
            CANDIDATE, records(), SCHEMA, RECIPE, stream, device="cpu", on_step=steps.append
        )
        assert steps[-1] == RECIPE.steps
        assert steps == sorted(steps)


class TestFailure:
    @pytest.mark.unit
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_one_weight_that_is_not_finite_is_a_failure(self, value: float):
        network = CANDIDATE.architecture.build((4,), 3)
        assert not failed(network)
        with torch.no_grad():
            next(network.parameters()).view(-1)[2] = value
        assert failed(network)

    @pytest.mark.unit
    def test_marking_makes_every_weight_a_failure(self):
        network = mark_failed(CANDIDATE.architecture.build((4,), 3))
        assert failed(network)
        assert all(bool(torch.isnan(p).all()) for p in network.parameters())

    @pytest.mark.unit
    def test_the_worst_score_is_below_every_noisy_count(self):
        assert (WORST, 2**62) < (-(10.0**300), 0)
