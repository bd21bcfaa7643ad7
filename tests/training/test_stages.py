"""The stages of a DP step together: what they do in a training, cost, and refuse."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from shortcuts import rdp_price
from torch import Tensor, nn

from pasearch.accounting.accountants import price
from pasearch.accounting.budget import Budget
from pasearch.accounting.events import (
    Composition,
    FilteredReleases,
    Gaussian,
    NoisyRecords,
    PoissonGaussian,
    SelfComposition,
    TruncatedPoissonGaussian,
)
from pasearch.accounting.renyi import ORDERS, find_best_order, rdp_curve
from pasearch.data.partitions import Records
from pasearch.errors import UsageError
from pasearch.runs import normals
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.sums import SUM_ROUNDING
from pasearch.training import one_step, screening
from pasearch.training.augmentation import Augmentation
from pasearch.training.clipping import (
    AdaptiveClipping,
    AutoSClipping,
    FlatClipping,
    PerLayerClipping,
)
from pasearch.training.noise_before_clip import NoiseBeforeClip
from pasearch.training.one_step import TrainingState, compute_noisy_sum
from pasearch.training.presets import PRESETS, read_recipe, resolve_preset, stretch_schedule
from pasearch.training.recipe import STAGE_CONFLICTS, Recipe
from pasearch.training.schedules import ExponentialDecay, StepDecay, TimeDecay, ValidationSchedule
from pasearch.training.screening import Annealing
from pasearch.training.trainer import train

N, FEATURES, CLASSES = 40, 5, 3


def records(*, public: bool = False, null: tuple[int, ...] = ()) -> Records:
    generator = torch.Generator().manual_seed(2)
    valid = torch.ones(N, dtype=torch.bool)
    valid[list(null)] = False
    return Records(
        x=torch.randn(N, FEATURES, generator=generator),
        y=torch.randint(0, CLASSES, (N,), generator=generator),
        valid=valid,
        public=public,
    )


def network() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def recipe(**changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "expected_batch_size": 10,
        "steps": 12,
        "learning_rate": 0.5,
        "noise_multiplier": 1.2,
        "bounding": FlatClipping(clip_norm=0.7),
        "optimizer": "sgd",
        "average": None,
    }
    return Recipe(**{**settings, **changes})


def streams(trial: int = 0) -> dict[str, Stream]:
    trials = Keys.from_seed(6).stream("trial", trial)
    return {name: trials.child(name) for name in ("batch", "noise", "dropout")}


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def noisy_sum(
    data: Records, made: Recipe, step: int = 0, state: TrainingState | None = None
) -> Tensor:
    slots = one_step.DeviceRecords(x=data.x, y=data.y, valid=data.valid)
    parts = compute_noisy_sum(network(), slots, made, streams(), step, state=state)
    return torch.cat([each.flatten() for each in parts])


class TestPrice:
    @pytest.mark.unit
    def test_a_schedule_is_charged_epoch_by_epoch_at_its_own_noise(self):
        made = recipe(schedule=StepDecay(rate=0.5, period=2))
        # q = 1/4: four steps an epoch, three epochs, the third at half the noise
        assert made.event(N) == Composition(
            events=(
                SelfComposition(PoissonGaussian(0.25, 1.2), 8),
                SelfComposition(PoissonGaussian(0.25, 0.6), 4),
            )
        )

    @pytest.mark.unit
    def test_reshuffled_batches_cost_a_release_for_every_epoch_that_was_started(self):
        made = recipe(batching="reshuffled", steps=9)
        assert made.event(N) == SelfComposition(Gaussian(1.2), 3)
        falling = recipe(
            batching="reshuffled", steps=9, schedule=ExponentialDecay(rate=math.log(2))
        )
        assert [count for _, count in falling.levels(N)] == [1, 1, 1]
        assert [factor for factor, _ in falling.levels(N)] == pytest.approx([1, 0.5, 0.25])

    @pytest.mark.unit
    def test_a_capped_batch_and_noise_first_have_events_of_their_own(self):
        capped = recipe(batching="truncated", cap=30).event(N)
        assert capped == SelfComposition(TruncatedPoissonGaussian(N, 0.25, 30, 1.2), 12)
        first = recipe(noise_before_clip=NoiseBeforeClip(record_bound=0.5)).event(N)
        assert first == SelfComposition(NoisyRecords(0.25, 1.2), 12)

    @pytest.mark.unit
    def test_noise_first_without_a_bound_has_no_price(self):
        with pytest.raises(UsageError, match="epsilon is infinite"):
            recipe(noise_before_clip=NoiseBeforeClip(record_bound=None)).event(N)

    @pytest.mark.unit
    def test_a_validation_driven_schedule_costs_its_filters_limit(self):
        made = recipe(schedule=ValidationSchedule(rate=0.5, threshold=0.1, average=1, every=1))
        limit = SelfComposition(PoissonGaussian(0.25, 1.2), 12)
        delta = Budget(1.0).resolve(N).delta
        assert made.event(N) == FilteredReleases(limit, find_best_order(limit, delta))
        # Nothing is paid for the orders that are not kept, and they would bind first.
        assert rdp_price(made.event(N), delta).epsilon == pytest.approx(
            rdp_price(FilteredReleases(limit), delta).epsilon, rel=1e-12
        )

    @pytest.mark.unit
    def test_the_dial_gives_noise_that_falls_as_mu_rises(self):
        for stages in [
            {},
            {"schedule": ExponentialDecay(rate=0.1)},
            {"batching": "reshuffled"},
            {"batching": "reshuffled", "schedule": TimeDecay(rate=0.5)},
            {"noise_before_clip": NoiseBeforeClip()},
            {"schedule": ValidationSchedule(rate=0.5, threshold=0.1, average=1, every=1)},
        ]:
            made = recipe(**stages)
            sigmas = [made.compute_noise_multiplier_for_mu(mu, N) for mu in (0.05, 0.5, 2.0)]
            assert sigmas == sorted(sigmas, reverse=True)
            costs = [price(made.with_noise(sigma).event(N), 1e-5).epsilon for sigma in sigmas[::-1]]
            assert costs == sorted(costs, reverse=True)

    @pytest.mark.unit
    def test_too_many_different_noises_are_refused(self):
        made = recipe(schedule=TimeDecay(rate=0.01), expected_batch_size=N, steps=1200)
        with pytest.raises(UsageError, match="1000 different noises"):
            made.event(N)


class TestAdaptive:
    @pytest.mark.contract
    def test_the_bound_of_a_step_comes_from_the_steps_before(self):
        made = recipe(bounding=AdaptiveClipping(clip_norm=0.7))
        state = TrainingState(bounds=(0.01,))
        noisy_sum(records(null=tuple(range(N))), made, state=state)
        quiet = TrainingState(bounds=(0.01,))
        total = noisy_sum(records(null=tuple(range(N))), made, state=quiet)
        first = noisy_sum(records(null=tuple(range(N))), made)
        # noise of the small bound, which is then brought to the first one's scale, as its grid is
        assert torch.allclose(total, first, atol=2.1 * normals.compute_grid_distance(1.2 * 0.7))
        expected = 1.2 * SUM_ROUNDING * 0.7 / math.sqrt(0.95)
        assert quiet.noise_deviation == pytest.approx(expected)


class TestNoiseFirst:
    @pytest.mark.contract
    def test_gradients_that_were_not_bounded_first_are_for_public_data(self):
        made = recipe(noise_before_clip=NoiseBeforeClip(record_bound=None))
        with pytest.raises(UsageError, match="declared public: set record_bound"):
            train(network(), records(), made, streams())
        train(network(), records(public=True), made, streams())


class TestScreening:
    @pytest.mark.contract
    def test_an_update_that_is_not_taken_leaves_weights_and_optimizer_as_they_were(self):
        made = recipe(screening=Annealing(q0=1e9, mu0=1000), optimizer="momentum")
        model, asked = network(), []

        def worse(network: nn.Module, number: int) -> float:
            asked.append(number)
            return -1.0 if number == 1 else float(number)

        train(model, records(), made, streams(), query=worse)
        once = network()
        train(once, records(), recipe(optimizer="momentum", steps=1), streams())
        assert torch.equal(weights(model), weights(once))
        assert asked == list(range(made.count_validation_queries(N)))

    @pytest.mark.contract
    def test_updates_that_are_taken_give_the_weights_of_a_training_without_screening(self):
        made = recipe(screening=Annealing(q0=1.0, mu0=3))
        model, plain = network(), network()
        train(model, records(), made, streams(), query=lambda _, number: -float(number))
        train(plain, records(), recipe(), streams())
        assert torch.equal(weights(model), weights(plain))

    @pytest.mark.contract
    def test_every_k_th_update_is_screened(self):
        made = recipe(screening=Annealing(q0=1.0, mu0=3, every=5))
        asked: list[int] = []
        train(network(), records(), made, streams(), query=lambda _, k: asked.append(k) or 0.0)
        assert asked == [0, 1, 2]
        assert made.count_validation_queries(N) == 3

    @pytest.mark.unit
    def test_energies_are_needed(self):
        with pytest.raises(UsageError, match="requires a validation query"):
            train(network(), records(), recipe(screening=Annealing(q0=1.0, mu0=3)), streams())


class TestValidation:
    SCHEDULE = ValidationSchedule(rate=0.5, threshold=0.1, average=1, every=1)

    @pytest.mark.contract
    def test_training_ends_when_the_filter_is_full_and_never_spends_more(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        spent: list[float] = []
        original = screening.PrivacyFilter.spend

        def spend(self: Any, event: Any) -> None:
            original(self, event)
            spent.append(event.noise_multiplier)

        monkeypatch.setattr(screening.PrivacyFilter, "spend", spend)
        made = recipe(schedule=self.SCHEDULE, steps=40)
        finished: list[int] = []
        train(network(), records(), made, streams(), query=lambda *_: 0.5, on_step=finished.append)
        assert len(spent) == len(finished) < 40
        assert spent[0] == 1.2
        assert spent[-1] < 0.7
        total = sum(rdp_curve(PoissonGaussian(0.25, sigma)) for sigma in spent)
        limit = rdp_curve(SelfComposition(PoissonGaussian(0.25, 1.2), 40))
        kept = ORDERS <= made.event(N).highest_order
        assert 10 < kept.sum() < len(ORDERS)
        assert np.all((total <= limit)[kept])
        delta = Budget(1.0).resolve(N).delta
        fixed = Composition(tuple(PoissonGaussian(0.25, sigma) for sigma in spent))
        assert rdp_price(fixed, delta).epsilon <= rdp_price(made.event(N), delta).epsilon

    @pytest.mark.contract
    def test_rising_accuracies_keep_the_noise_and_all_steps(self):
        made = recipe(schedule=self.SCHEDULE, steps=20)
        model, plain, finished = network(), network(), []
        train(
            model, records(), made, streams(),
            query=lambda _, k: 10.0 * (k + 1), on_step=finished.append,
        )  # fmt: skip
        train(plain, records(), recipe(steps=20), streams())
        assert len(finished) == 20
        assert torch.equal(weights(model), weights(plain))

    @pytest.mark.contract
    def test_without_noise_there_is_nothing_to_limit(self):
        made = recipe(schedule=self.SCHEDULE, steps=20).with_noise(None)
        finished: list[int] = []
        train(
            network(), records(public=True), made, streams(),
            query=lambda *_: 0.5, on_step=finished.append,
        )  # fmt: skip
        assert len(finished) == 20

    @pytest.mark.unit
    def test_accuracies_are_needed(self):
        with pytest.raises(UsageError, match="requires a validation query"):
            train(network(), records(), recipe(schedule=self.SCHEDULE), streams())


class TestRefused:
    @pytest.mark.unit
    def test_what_has_no_proof_together_is_refused(self):
        for stages in [
            {
                "schedule": ValidationSchedule(rate=0.5, threshold=0.1, average=1, every=1),
                "batching": "truncated",
            },
            {
                "schedule": ValidationSchedule(rate=0.5, threshold=0.1, average=1, every=1),
                "batching": "reshuffled",
            },
            {
                "schedule": ValidationSchedule(rate=0.5, threshold=0.1, average=1, every=1),
                "screening": Annealing(q0=1.0, mu0=1),
            },
            {"noise_before_clip": NoiseBeforeClip(), "batching": "reshuffled"},
            {"noise_before_clip": NoiseBeforeClip(), "bounding": AutoSClipping()},
            {
                "noise_before_clip": NoiseBeforeClip(),
                "schedule": ValidationSchedule(rate=0.5, threshold=0.1, average=1, every=1),
            },
            {"noise_before_clip": NoiseBeforeClip(), "optimizer": "adam-corrected"},
            {"noise_before_clip": NoiseBeforeClip(), "augmentation": Augmentation()},
            {"bounding": None, "noise_multiplier": None, "optimizer": "adam-corrected"},
            {"bounding": AdaptiveClipping(), "batching": "reshuffled"},
            {"bounding": AdaptiveClipping(per_layer=True), "optimizer": "adam-corrected"},
            {"cap": 20},
            {"batching": "shuffled"},
        ]:
            with pytest.raises(UsageError):
                recipe(**stages)

    @pytest.mark.contract
    def test_every_conflict_can_happen(self):
        """Each reason refuses something that goes with none of the others alone."""
        assert len(STAGE_CONFLICTS) >= 10
        assert all(reason.endswith(".") for reason in STAGE_CONFLICTS)
        assert not any(conflict(recipe()) for conflict in STAGE_CONFLICTS.values())


class TestStretched:
    @pytest.mark.unit
    def test_a_presets_schedule_ends_where_the_papers_does(self):
        for name in ["dynamic-time", "dynamic-exponential", "dynamic-step", "dynamic-polynomial"]:
            values = read_recipe(name)
            base = recipe(**resolve_preset(values))
            ends = []
            for steps in (400, 1600):  # q = 1/4: 100 and 400 epochs
                made = stretch_schedule(replace(base, steps=steps), values, N)
                ends.append(made.levels(N)[-1][0])
            paper = base.schedule.factor(PRESETS[name].epochs - 1)  # type: ignore[union-attr, operator]
            assert ends == pytest.approx([paper, paper], rel=0.05)

    @pytest.mark.unit
    def test_a_schedule_of_ones_own_is_taken_as_it_is(self):
        values = {"preset": "dynamic-time", "schedule": {"name": "time", "rate": 0.3}}
        made = replace(recipe(**resolve_preset(values)), steps=1600)
        assert stretch_schedule(made, values, N).schedule == TimeDecay(rate=0.3)


class TestFiles:
    @pytest.mark.contract
    def test_files_give_back_what_was_written(self):
        for stages in [
            {},
            {"batching": "truncated", "cap": 35},
            {"bounding": PerLayerClipping(clip_norms=(0.5, 0.2))},
            {"bounding": AdaptiveClipping(per_layer=True)},
            {"noise_before_clip": NoiseBeforeClip(record_bound=0.3)},
            {"schedule": ExponentialDecay(rate=0.1)},
            {"schedule": ValidationSchedule(rate=0.5, threshold=0.1, average=1, every=1)},
            {"screening": Annealing(q0=2.0, mu0=4, every=2)},
            {"augmentation": Augmentation(views=2, flip=True)},
        ]:
            made = recipe(**stages)
            assert Recipe.from_json(json.loads(json.dumps(made.to_json()))) == made

    @pytest.mark.contract
    def test_every_preset_is_a_recipe(self):
        for name in PRESETS:
            made = recipe(**resolve_preset(read_recipe(name)))
            assert made.problems() == []
            assert Recipe.from_json(made.to_json()) == made

    @pytest.mark.unit
    def test_a_file_changes_a_preset(self, tmp_path: Any):
        path = tmp_path / "mine.toml"
        path.write_text('preset = "auto-s"\noptimizer = "adam"\n[schedule]\n'
                        'name = "exponential"\nrate = 0.1\n')  # fmt: skip
        settings = resolve_preset(read_recipe(path))
        assert settings["bounding"] == AutoSClipping(bound=1.0, gamma=0.01)
        assert settings["optimizer"] == "adam"
        assert settings["schedule"] == ExponentialDecay(rate=0.1)

    @pytest.mark.unit
    def test_a_bad_file_is_refused(self, tmp_path: Any):
        for text, match in [
            ("noise_multiplier = 1.0", "calibrated to the budget"),
            ("learning_rat = 1.0", "no field 'learning_rat'"),
            ('preset = "sgd"', "'sgd' is not known"),
            ("= 3", "cannot be read as TOML"),
            ('optimizer = "adamw"', "adamw"),
            ('bounding = { name = "flat", clip = 3 }', "has no clip"),
        ]:
            path = tmp_path / "mine.toml"
            path.write_text(text)
            with pytest.raises(UsageError, match=match):
                read_recipe(path)

    @pytest.mark.unit
    def test_a_name_that_is_neither_is_refused(self):
        for given in ["nothing", "nothing.toml"]:
            with pytest.raises(UsageError, match="nothing"):
                read_recipe(given)
