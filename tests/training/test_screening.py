"""Screening: the rule, energies of sensitivity G, and what charging accepted updates loses."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, norm
from torch import nn

from pasearch.accounting.accountants import compute_delta, price
from pasearch.accounting.events import Gaussian, PureDP, SelfComposition
from pasearch.accounting.published_bounds import fu_theorem_1
from pasearch.data.partitions import Records
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.runs.sums import NoisySum
from pasearch.training.losses import (
    MAX_CROSS_ENTROPY,
    MAX_SQUARED_ERROR,
    compute_mean_loss,
    find_max_loss,
    points_to_mean_loss,
    sum_loss_points,
)
from pasearch.training.metrics import METRICS
from pasearch.training.recipe import Recipe, tune_learning_rate
from pasearch.training.screening import (
    MAX_LOSS_POINTS,
    SCREENINGS,
    Annealing,
    AnnealingState,
    draw_uniform,
)

RULE = Annealing(q0=2.0, mu0=3)


ERROR_GRID = METRICS["mae"].max_points


class TestTheRule:
    def test_a_lower_or_equal_energy_is_taken_whatever_the_coin(self):
        state = AnnealingState(loss=1.0, accepted=50, rejected_in_a_row=1)
        for energy in (0.5, 1.0, -math.inf):
            after, accepted = RULE.decide(state, energy, 1.0)
            assert accepted
            assert after == AnnealingState(loss=energy, accepted=51, rejected_in_a_row=0)

    @pytest.mark.oracle
    def test_a_higher_one_with_the_printed_probability(self):
        for accepted in [1, 2, 7]:
            for rise in [0.01, 0.2, 1.0]:
                state = AnnealingState(loss=1.0, accepted=accepted, rejected_in_a_row=1)
                probability = math.exp(-rise * 2.0 * accepted)
                assert RULE.probability(state, 1.0 + rise) == pytest.approx(probability)
                assert RULE.decide(state, 1.0 + rise, probability * 0.999)[1]
                assert not RULE.decide(state, 1.0 + rise, probability * 1.001)[1]

    def test_what_is_rejected_keeps_the_stored_energy_and_counts(self):
        state = AnnealingState(loss=1.0, accepted=5, rejected_in_a_row=1)
        after, accepted = RULE.decide(state, 9.0, 0.5)
        assert not accepted
        assert after == replace(state, rejected_in_a_row=2)

    def test_after_mu0_rejections_an_update_is_taken_anyway(self):
        state, taken = AnnealingState(loss=0.0, accepted=9), []
        for _ in range(12):
            state, accepted = RULE.decide(state, state.loss + 1e6, 0.5)
            taken.append(accepted)
        assert taken == [False, False, False, True] * 3

    def test_mu0_of_0_takes_all(self):
        state = AnnealingState(loss=0.0, accepted=9)
        assert Annealing(q0=1e9, mu0=0).decide(state, 1e9, 1.0)[1]

    def test_the_temperature_is_q0_at_first_and_then_q0_times_the_accepted(self):
        """Line 1 sets Q = Q0, line 22 sets Q = Q0 tau: 0 if the first update was rejected."""
        first = RULE.start(1.0)
        assert RULE.probability(first, 1.5) == pytest.approx(math.exp(-1.0))
        after, accepted = RULE.decide(first, 1.5, 0.9)
        assert not accepted
        assert RULE.probability(after, 1e9) == 1.0

    def test_an_energy_that_is_no_number_is_the_worst_and_stops_nothing(self):
        state = AnnealingState(loss=1.0, accepted=3)
        for bad in (math.nan, math.inf):
            assert RULE.probability(state, bad) == 0.0
            kept, accepted = RULE.decide(state, bad, 0.5)
            assert not accepted
            assert kept.loss == 1.0
        lost = RULE.start(math.nan)
        assert lost.loss == math.inf
        assert RULE.decide(lost, math.nan, 0.9)[1]
        assert RULE.decide(lost, 3.0, 0.9)[0].loss == 3.0

    @pytest.mark.property
    @given(
        st.floats(0, 1e6),
        st.integers(0, 5),
        st.lists(st.tuples(st.floats(), st.floats(0, 1)), max_size=40),
    )
    def test_any_energies_keep_the_counts_right(self, q0: float, mu0: int, seen):
        rule, taken = Annealing(q0=q0, mu0=mu0), []
        state = rule.start(1.0)
        for energy, toss in seen:
            state, accepted = rule.decide(state, energy, toss)
            taken.append(accepted)
            assert not math.isnan(state.loss)
            assert state.accepted == sum(taken)
            run = next((i for i, each in enumerate(reversed(taken)) if each), len(taken))
            assert state.rejected_in_a_row == run <= mu0

    @pytest.mark.statistical
    def test_coins_take_updates_at_their_rate_and_another_rate_is_rejected(self):
        stream = Keys.from_seed(5).stream("coins")
        state = AnnealingState(loss=0.0, accepted=1)
        rule = Annealing(q0=1.0, mu0=10)
        taken = sum(rule.decide(state, 0.5, draw_uniform(stream, i))[1] for i in range(4000))
        rate = math.exp(-0.5)

        def deviations(expected: float) -> float:
            return abs(taken - 4000 * expected) / math.sqrt(4000 * expected * (1 - expected))

        assert deviations(rate) < 4
        assert deviations(math.exp(-0.5 * 1.2)) > 4


class TestNumbers:
    def test_come_back_from_json(self):
        rule = Annealing(q0=0.5, mu0=4, every=10)
        assert SCREENINGS.from_json(json.loads(json.dumps(rule.to_json()))) == rule

    def test_a_file_of_bad_form_is_refused(self):
        for bad in [
            None,
            [],
            {},
            {"q0": 1.0, "every": 3},
            {"q0": 1.0, "mu0": 3, "every": 1, "more": 1},
        ]:
            with pytest.raises(UsageError, match=r"expected what|lacks|has no"):
                SCREENINGS.from_json(bad)

    def test_a_bad_number_is_refused(self):
        for bad in [-1, math.nan, math.inf, "1", None, True]:
            for name in ("q0", "mu0", "every"):
                with pytest.raises(UsageError, match=name):
                    Annealing(**{"q0": 1.0, "mu0": 3, "every": 1, name: bad})

    def test_a_bad_coin_is_refused(self):
        for bad in [-0.1, 1.1, math.nan, "0.5", None, True]:
            with pytest.raises(UsageError, match="coin"):
                RULE.decide(RULE.start(0.0), 1.0, bad)

    def test_energies_are_one_a_screening_and_the_first(self):
        for steps, every, count in [(1, 1, 2), (10, 1, 11), (10, 3, 4), (9, 3, 4), (2, 5, 1)]:
            rule = Annealing(q0=1.0, mu0=1, every=every)
            screened = sum(rule.is_screened(finished) for finished in range(1, steps + 1))
            assert rule.count_validation_queries(steps) == screened + 1 == count

    def test_all_of_them_are_charged(self):
        queries = Annealing(q0=1.0, mu0=1, every=10).count_validation_queries(100)
        event = NoisySum(epsilon=0.02, most=MAX_LOSS_POINTS).event
        assert SelfComposition(event, queries) == SelfComposition(PureDP(0.02), 11)


def records(n: int = 30, *, number: bool = False, public: bool = False) -> Records:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand((n, 4), generator=generator)
    y = x[:, 0] if number else x[:, :3].argmax(dim=1)
    return Records(x=x, y=y, valid=torch.ones(n, dtype=torch.bool), public=public)


def null(given: Records, slot: int) -> Records:
    x, y, valid = given.x.clone(), given.y.clone(), given.valid.clone()
    x[slot], y[slot], valid[slot] = 0.0, 0, False
    return replace(given, x=x, y=y, valid=valid)


def network(number: bool = False, scale: float = 3.0) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1 if number else 3))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(scale)
    return made


class TestEnergies:
    @pytest.mark.oracle
    def test_a_class_has_its_clipped_and_rounded_cross_entropy(self):
        for scale in [1.0, 3.0]:
            given, made = records(), network(scale=scale)
            with torch.no_grad():
                logs = made.eval()(given.x).log_softmax(dim=1)
            losses = [-float(row[label]) for row, label in zip(logs, given.y, strict=True)]
            by_hand = sum(
                round(MAX_LOSS_POINTS * min(loss, MAX_CROSS_ENTROPY) / MAX_CROSS_ENTROPY)
                for loss in losses
            )
            assert (
                abs(sum_loss_points(made, given) - by_hand) <= 1
            )  # one tie may round the other way
            assert any(loss > MAX_CROSS_ENTROPY for loss in losses) == (scale == 3.0)

    @pytest.mark.oracle
    def test_a_number_has_half_its_clipped_squared_error(self):
        given, made = records(number=True), network(number=True, scale=3.0)
        with torch.no_grad():
            errors = (made.eval()(given.x).squeeze(1) - given.y).tolist()
        losses = [0.5 * error**2 for error in errors]
        by_hand = sum(
            round(MAX_LOSS_POINTS * min(loss, MAX_SQUARED_ERROR) / MAX_SQUARED_ERROR)
            for loss in losses
        )
        assert abs(sum_loss_points(made, given) - by_hand) <= 1
        assert any(loss > MAX_SQUARED_ERROR for loss in losses)

    @pytest.mark.property
    def test_one_record_moves_the_sum_by_g_at_most_and_only_its_own_points(self):
        for number in [False, True]:
            given, made = records(number=number), network(number=number)
            base = sum_loss_points(made, given)
            moves = [base - sum_loss_points(made, null(given, slot)) for slot in range(len(given))]
            assert all(0 <= move <= MAX_LOSS_POINTS for move in moves)
            assert max(moves) == MAX_LOSS_POINTS
            assert sum(moves) == base  # each record's part is whole, and its own

    @pytest.mark.property
    @settings(max_examples=40)
    @given(st.floats(width=32), st.integers(0, 29), st.booleans())
    def test_whatever_a_record_holds_it_adds_from_0_to_g(self, value, slot, number):
        given, made = records(number=number), network(number=number)
        x = given.x.clone()
        x[slot] = value
        changed = replace(given, x=x)
        without = sum_loss_points(made, null(given, slot))
        assert 0 <= sum_loss_points(made, changed) - without <= MAX_LOSS_POINTS

    def test_rounding_after_the_sum_would_be_seen(self):
        """The sum's own rounding lets one record move others' half points: not by this function."""
        given, made = records(), network(scale=1.0)
        parts = [
            sum_loss_points(made, Records(x=given.x[i : i + 1], y=given.y[i : i + 1],
                                        valid=given.valid[i : i + 1], public=False))
            for i in range(len(given))
        ]  # fmt: skip
        assert sum_loss_points(made, given) == sum(parts)
        assert sum_loss_points(made, given, chunk=7) == sum(parts)

    def test_a_network_of_no_numbers_has_the_worst_energy(self):
        made = network()
        with torch.no_grad():
            next(made.parameters()).fill_(math.nan)
        assert sum_loss_points(made, records()) == MAX_LOSS_POINTS * 30
        assert points_to_mean_loss(MAX_LOSS_POINTS * 30, records().y) == MAX_CROSS_ENTROPY

    def test_null_records_add_0_whatever_stands_there(self):
        given = records()
        hidden = replace(given, y=given.y.clone(), valid=torch.zeros(30, dtype=torch.bool))
        hidden.y[3] = 77
        assert sum_loss_points(network(), hidden) == 0

    def test_the_network_is_as_it_was(self):
        for mode in [True, False]:
            made = network().train(mode)
            made[1].eval()
            before = [module.training for module in made.modules()]
            first = sum_loss_points(made, records())
            assert sum_loss_points(made, records()) == first  # no dropout
            assert [module.training for module in made.modules()] == before
            assert all(parameter.requires_grad for parameter in made.parameters())

    def test_points_are_whole_numbers_of_python_and_scaled_by_public_ones(self):
        found = sum_loss_points(network(), records())
        assert type(found) is int
        assert points_to_mean_loss(found, records().y) == pytest.approx(
            found * MAX_CROSS_ENTROPY / (MAX_LOSS_POINTS * 30)
        )
        assert find_max_loss(records(number=True).y) == MAX_SQUARED_ERROR
        assert MAX_LOSS_POINTS == ERROR_GRID  # the noise of a plan is for that sensitivity

    @pytest.mark.statistical
    def test_the_release_is_noisy_and_near(self):
        given, made = records(), network(scale=1.0)
        noise, points = NoisySum(epsilon=0.5, most=MAX_LOSS_POINTS), sum_loss_points(made, given)
        keys = Keys.from_seed(1)
        seen = [
            points_to_mean_loss(noise.release(points, keys.stream("e", i)), given.y)
            for i in range(600)
        ]
        exact = points_to_mean_loss(points, given.y)
        scale = (
            math.sqrt(2) * MAX_CROSS_ENTROPY / (0.5 * 30)
        )  # of Laplace noise of scale G / epsilon
        assert abs(np.mean(seen) - exact) < 4 * scale / math.sqrt(600)
        assert 0.85 < np.std(seen) / scale < 1.15

    def test_without_noise_only_for_public_records(self):
        with pytest.raises(UsageError, match="requires public records"):
            compute_mean_loss(network(), records())
        for claimed in (1, "yes", None):
            with pytest.raises(UsageError, match="requires public records"):
                compute_mean_loss(network(), replace(records(), public=claimed))

    @pytest.mark.oracle
    def test_without_noise_it_is_the_mean_loss(self):
        for number in [False, True]:
            given, made = (
                null(records(number=number, public=True), 4),
                network(number=number).eval(),
            )
            kept = given.valid
            outputs = made(given.x[kept]).detach()
            if number:
                expected = 0.5 * (outputs.squeeze(1) - given.y[kept]).square().mean()
            else:
                expected = nn.functional.cross_entropy(outputs, given.y[kept])
            assert compute_mean_loss(made, given, chunk=7) == pytest.approx(
                float(expected), rel=1e-5
            )
            assert compute_mean_loss(made, replace(given, valid=~kept & kept)) == 0.0


# One weight, one record (there, or null): an update is its value plus noise, N(1, SIGMA^2) or
# N(0, SIGMA^2). The energy is public. It has a well where the weight starts and a valley on either
# side of a ridge around 1/2, so only updates that leap the ridge are taken; the training ends with
# the first of them. It makes at most STEPS updates. Charging accepted updates charges one.
SIGMA, STEPS, RIDGE = 2.0, 50, 4.8
LATER = AnnealingState(loss=0.0, accepted=1)
COLD = Annealing(q0=1e6, mu0=STEPS)


def energy(weight: float) -> float:
    return -1.0 if abs(weight - 0.5) >= RIDGE else 1.0


def one_training(mean: float, generator: np.random.Generator) -> float | None:
    """The released weight; None if no update was taken."""
    state = LATER
    for update, toss in zip(
        generator.normal(mean, SIGMA, STEPS), generator.random(STEPS), strict=True
    ):
        state, accepted = COLD.decide(state, energy(update), toss)
        if accepted:
            return float(update)
    return None


def exact_delta(epsilon: float, steps: int = STEPS, ridge: float = RIDGE) -> float:
    """Of the training, record there against null: the density beyond the ridge grows by `times`."""
    leap = norm.cdf((0.5 - ridge - 1) / SIGMA) + norm.sf((0.5 + ridge - 1) / SIGMA)
    other = norm.cdf((0.5 - ridge) / SIGMA) + norm.sf((0.5 + ridge) / SIGMA)
    assert leap == pytest.approx(other)  # by symmetry: here not even the acceptance rate tells
    times = -math.expm1(steps * math.log1p(-leap)) / leap
    edge = max(0.5 + ridge, 0.5 + SIGMA**2 * epsilon)  # where the loss (2 y - 1) / (2 s^2) exceeds
    there, null_ = norm.sf((edge - 1) / SIGMA), norm.sf(edge / SIGMA)
    return times * (there - math.exp(epsilon) * null_)


class TestChargingOnlyAcceptedUpdates:
    def test_is_exceeded_and_charging_all_of_them_is_not(self):
        for delta in [1e-2, 1e-3, 1e-5]:
            charged = price(Gaussian(SIGMA), delta).epsilon
            assert exact_delta(charged) > 10 * delta
            sound = price(SelfComposition(Gaussian(SIGMA), STEPS), delta).epsilon
            assert exact_delta(sound) <= delta

    @pytest.mark.statistical
    def test_two_worlds_tell_them_apart(self):
        """The event: the released weight is beyond the ridge, on the side of the record."""
        trials, delta = 4000, 1e-2
        generator = np.random.default_rng(7)
        seen = [
            sum((one_training(mean, generator) or 0.0) > 0.5 for _ in range(trials))
            for mean in (1.0, 0.0)
        ]
        low = beta.ppf(5e-4, seen[0], trials - seen[0] + 1)
        high = beta.ppf(1 - 5e-4, seen[1] + 1, trials - seen[1])
        charged = price(Gaussian(SIGMA), delta).epsilon
        sound = price(SelfComposition(Gaussian(SIGMA), STEPS), delta).epsilon
        audited = math.log((low - delta) / high)
        assert charged * 1.05 < audited < sound
        exact = exact_delta(charged)
        assert (
            low - math.exp(charged) * high
            <= exact
            <= compute_delta(SelfComposition(Gaussian(SIGMA), STEPS), charged)
        )

    def test_pure_releases_lose_a_factor_of_two(self):
        """Liu and Talwar 2019: the loss of an accepted release holds that of the acceptance."""
        epsilon, rare = 0.5, 1e-9
        here = np.array([rare * math.exp(epsilon), 0.1, 0.0])
        null_ = np.array([rare, 0.1 * math.exp(epsilon), 0.0])
        here[2], null_[2] = 1 - here.sum(), 1 - null_.sum()
        assert np.abs(np.log(here / null_)).max() <= epsilon + 1e-12
        accepted = here[:2] / here[:2].sum(), null_[:2] / null_[:2].sum()
        assert np.log(accepted[0] / accepted[1]).max() == pytest.approx(2 * epsilon, rel=1e-6)

    def test_the_paper_s_own_theorem_is_exceeded(self):
        claim = fu_theorem_1(
            sampling_probability=1.0, noise_multiplier=SIGMA, accepted=1, delta=1e-5
        ).value
        assert claim is not None
        assert exact_delta(claim, steps=5000, ridge=8.0) > 1e-4
        assert exact_delta(claim, steps=10**6, ridge=10.0) > 1e-2

    def test_a_fixed_number_of_rejections_is_post_processing(self):
        """Over all sequences of three binary updates: the last state costs three at most."""
        epsilon = 0.7
        p = math.exp(epsilon) / (1 + math.exp(epsilon))
        laws = []
        for one in (p, 1 - p):
            law: dict[tuple, float] = {}
            for updates in itertools.product((0, 1), repeat=3):
                state, weight, kept = AnnealingState(loss=0.5, accepted=1), 1.0, -1
                for update in updates:
                    weight *= one if update else 1 - one
                    state, accepted = COLD.decide(state, float(update), 0.5)
                    kept = update if accepted else kept
                key = (kept, state.accepted, state.rejected_in_a_row)
                law[key] = law.get(key, 0.0) + weight
            laws.append(law)
        losses = [abs(math.log(laws[0][key] / laws[1][key])) for key in laws[0]]
        assert epsilon + 1e-9 < max(losses) <= 3 * epsilon + 1e-9


@pytest.mark.unit
def test_a_short_screened_training_has_no_larger_step_than_measured():
    plain = Recipe(expected_batch_size=512, steps=150, noise_multiplier=0.7)
    screened = replace(plain, screening=Annealing(q0=10.0, mu0=10, every=7))
    norm = plain.bounding.sensitivity  # type: ignore[union-attr]
    assert tune_learning_rate(plain, 1.0, 60_000) * norm > 50
    assert tune_learning_rate(screened, 1.0, 60_000) * norm == pytest.approx(6.0)
    long = {"steps": 1500}
    pair = [tune_learning_rate(replace(r, **long), 1.0, 60_000) for r in (plain, screened)]
    assert pair[0] == pair[1], "the default length is not limited"
