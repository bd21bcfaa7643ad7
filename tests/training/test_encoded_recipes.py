"""Encoded gradients and denoising from recipe to result: priced, added, refused and verified.

    residual = noisy sum (the training's own) - encoded sum (noise-free, of the same records)
    F_t(residual) must be uniform, F_t the distribution of the density that step t is charged for

Power: Kolmogorov and Smirnov's distance D between two laws gives p = 2 exp(-2 n D^2), about. With
n = 98,400 residuals a Gaussian of equal variance has D = .018 from Student's t with 9 degrees
of freedom and .06 from Laplace's; 2/3 and 3/2 of the scale are further away. That is tested below.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audits import ACCEPT, REJECT, WRONG
from scipy.stats import kstest
from torch import Tensor, nn
from torch.nn import functional

from pasearch import Budget, verify
from pasearch.accounting.accountants import price
from pasearch.accounting.additive import Shifts
from pasearch.accounting.densities import (
    Cauchy,
    Density,
    GaussianNoise,
    LaplaceNoise,
    StudentT,
)
from pasearch.accounting.events import (
    AdditiveNoise,
    Composition,
    Event,
    SelfComposition,
    event_to_json,
)
from pasearch.api import search as api
from pasearch.data.array_file import from_arrays
from pasearch.data.partitions import Dataset, Records
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys, Stream
from pasearch.training import one_step, trainer
from pasearch.training.augmentation import Augmentation
from pasearch.training.batching import Poisson
from pasearch.training.clipping import AdaptiveClipping, FlatClipping
from pasearch.training.encoded import gradients as encoding
from pasearch.training.encoded import noise as laws
from pasearch.training.encoded.codebook import Codebook
from pasearch.training.encoded.gradients import EncodedClipping, encode_by_sorting
from pasearch.training.encoded.noise import KolmogorovSmirnov
from pasearch.training.noise import Noise
from pasearch.training.noise_before_clip import NoiseBeforeClip
from pasearch.training.per_example import PreparedNetwork, form_gradients, list_trainable_parameters
from pasearch.training.presets import preset_to_toml, read_recipe, resolve_preset
from pasearch.training.recipe import STAGE_CONFLICTS, Recipe
from pasearch.training.record_sums import SumBuffers
from pasearch.training.schedules import ExponentialDecay, UniformSchedule, ValidationSchedule

N, BATCH, FEATURES, UNITS, CLASSES = 24, 6, 160, 60, 3
STEPS, SIGMA = 10, 1.3
DELTA = 1e-4
BOUND = EncodedClipping(clip_norm=0.5, vectors=4)
SHIFTS = Shifts(values=(0.5, 0.25), counts=(2, 8))
T9 = AdditiveNoise(0.1, StudentT(scale=1.5, freedom=9.0), SHIFTS)
BUDGET = Budget(2.0, DELTA)
ENCODED = ("encoded-gaussian", "encoded-student-t", "encoded-laplace")


def recipe_of(**changes: Any) -> Recipe:
    given: dict[str, Any] = {
        "expected_batch_size": BATCH,
        "steps": STEPS,
        "learning_rate": 0.05,
        "noise_multiplier": SIGMA,
        "bounding": BOUND,
        "optimizer": "sgd",
        "average": None,
    }
    return Recipe(**{**given, **changes})


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(FEATURES, UNITS), nn.Tanh(), nn.Linear(UNITS, CLASSES, bias=False)
    )


def size_of(model: nn.Module) -> int:
    return sum(each.numel() for each in list_trainable_parameters(model))


DIMENSION = size_of(network())


def records() -> Records:
    generator = torch.Generator().manual_seed(8)
    valid = torch.ones(N, dtype=torch.bool)
    valid[::5] = False
    return Records(
        x=torch.randn(N, FEATURES, generator=generator),
        y=torch.randint(0, CLASSES, (N,), generator=generator),
        valid=valid,
        public=False,
    )


def streams() -> dict[str, Stream]:
    own = Keys.from_seed(21).stream("trial", 0)
    return {name: own.child(name) for name in ("batch", "noise", "dropout")}


def loss_of(y: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda outputs: functional.cross_entropy(outputs, y, reduction="none")


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.flatten() for each in tensors])


# --- events


@pytest.mark.unit
def test_foreign_types_are_refused():
    for changes in [
        {"density": 1.0},
        {"density": "student-t"},
        {"density": StudentT},
        {"density": StudentT().to_json()},
        {"density": None},
        {"shifts": [0.5]},
        {"shifts": SHIFTS.to_json()},
        {"shifts": np.ones(3)},
        {"shifts": None},
        {"sampling_probability": 0.0},
        {"sampling_probability": 1.5},
        {"sampling_probability": math.nan},
        {"sampling_probability": True},
    ]:
        with pytest.raises(UsageError):
            replace(T9, **changes)


def with_scale(value: object) -> Callable[[dict[str, Any]], Any]:
    return lambda d: d["density"].update(scale=value)


# --- what a recipe is charged, and its density


@pytest.mark.unit
def test_the_noise_has_the_information_of_the_gaussian_it_stands_for():
    for law in [StudentT(freedom=9.0), LaplaceNoise(), Cauchy()]:
        made = recipe_of(noise=law.with_scale(77.0))
        assert made.density(SIGMA) == recipe_of(noise=law).density(SIGMA)
        assert made.density(SIGMA).fisher_information == pytest.approx(1 / (SIGMA * 0.5) ** 2)
        assert recipe_of().density(SIGMA) == GaussianNoise(scale=SIGMA * 0.5)


@pytest.mark.unit
def test_every_step_is_charged_the_density_of_its_own_noise():
    made = recipe_of(noise=StudentT(), schedule=ExponentialDecay(rate=0.3))
    shifts = BOUND.codebook(DIMENSION).envelope()
    found = densities(made.event(N, DIMENSION))
    assert found == [made.density(SIGMA * math.exp(-0.3 * (step // 4))) for step in range(STEPS)]
    assert atoms(made.event(N, DIMENSION)) == {(BATCH / N, shifts)}


@pytest.mark.unit
def test_encoded_gradients_with_gaussian_noise_cost_what_clipped_ones_do():
    for batching in ("poisson", "truncated", "reshuffled"):
        clipped = recipe_of(bounding=FlatClipping(clip_norm=0.5), batching=batching)
        assert recipe_of(batching=batching).event(N) == clipped.event(N)


@pytest.mark.unit
def test_without_the_network_s_size_other_noise_has_no_price():
    with pytest.raises(UsageError, match="depends on the number of trainable parameters"):
        recipe_of(noise=LaplaceNoise()).event(N)


@pytest.mark.contract
@pytest.mark.parametrize("name", [*ENCODED, "denoised-gaussian"])
def test_presets_survive_json_and_their_own_recipe_files(name: str, tmp_path: Path):
    made = Recipe(expected_batch_size=2, steps=3, **resolve_preset({"preset": name}))
    assert Recipe.from_json(json.loads(json.dumps(made.to_json()))) == made
    spelt = preset_to_toml(name).replace("\n# ", "\n")
    file = tmp_path / "own.toml"
    file.write_text(spelt, encoding="utf-8")
    assert tomllib.loads(spelt)["preset"] == name
    again = resolve_preset(read_recipe(file))
    own = resolve_preset({"preset": name})
    assert {key: again[key] for key in own if again.get(key) is not None} == {
        key: value for key, value in own.items() if value is not None
    }


# --- the noise of a training is the charged one


def densities(event: Event) -> list[Density]:
    """Return the density of every release that an event charges, in order."""
    match event:
        case Composition():
            return [each for part in event.events for each in densities(part)]
        case SelfComposition():
            return densities(event.event) * event.count
    assert isinstance(event, AdditiveNoise)
    return [event.density]


def atoms(event: Event) -> set[tuple[float, Shifts]]:
    match event:
        case Composition():
            return {each for part in event.events for each in atoms(part)}
        case SelfComposition():
            return atoms(event.event)
    assert isinstance(event, AdditiveNoise)
    return {(event.sampling_probability, event.shifts)}


def residuals(made: Recipe) -> np.ndarray:
    """Run a training, and return what it added to each step's encoded sum, (steps, coordinates)."""
    model, twin, data, own = network(), network(), records(), streams()
    training = trainer.Training(model, data, made, own)
    found = []
    for step in range(made.steps):
        twin.load_state_dict(model.state_dict())
        assert training.step()
        chosen = torch.from_numpy(made.make_batching(N).batch(N, own["batch"], step))
        clean = torch.zeros(DIMENSION)
        if len(chosen):
            assert isinstance(made.bounding, EncodedClipping)
            x, y, mask = data.x[chosen], data.y[chosen], data.valid[chosen]
            clean = flat(made.bounding.sums(twin, x, loss_of(y), mask)[0])
        noisy = flat(training._sums.views)
        found.append((noisy - clean).double().numpy())
    return np.array(found)


def law_pvalue(made: Recipe) -> float:
    """Return how likely a training's noise is, if its law is that of the charged event."""
    charged = densities(made.event(N, DIMENSION))
    assert len(charged) == made.steps
    rows = zip(charged, residuals(made), strict=True)
    return float(kstest(np.concatenate([each.cdf(row) for each, row in rows]), "uniform").pvalue)


LAWS: dict[str, Recipe] = {
    "student-t": recipe_of(noise=resolve_preset({"preset": "encoded-student-t"})["noise"]),
    # A recipe's noise has no scale: whatever it says, sigma sets it.
    "laplace": recipe_of(
        noise=resolve_preset({"preset": "encoded-laplace"})["noise"].with_scale(3.0)
    ),
    "student-t, falling": recipe_of(noise=StudentT(), schedule=ExponentialDecay(rate=0.3)),
}
each_law = pytest.mark.parametrize("name", LAWS)


def draw_other(patch: pytest.MonkeyPatch, change: Callable[[Density], Density]) -> None:
    honest = laws.begin_noise
    patch.setattr(
        laws, "begin_noise", lambda density, *key, **how: honest(change(density), *key, **how)
    )


def as_gaussian(density: Density) -> Density:
    return GaussianNoise(scale=density.standard_deviation)


@pytest.mark.statistical
def test_the_noise_has_the_charged_law():
    for name in LAWS:
        assert law_pvalue(LAWS[name]) > ACCEPT


@pytest.mark.statistical
@each_law
@pytest.mark.parametrize("share", WRONG, ids=["2/3", "3/2"])
def test_noise_of_another_scale_is_caught(name: str, share: float, monkeypatch: pytest.MonkeyPatch):
    draw_other(monkeypatch, lambda density: density.with_scale(share * density.scale))
    assert law_pvalue(LAWS[name]) < REJECT


@pytest.mark.statistical
@each_law
def test_gaussian_noise_of_equal_variance_is_caught(name: str, monkeypatch: pytest.MonkeyPatch):
    draw_other(monkeypatch, as_gaussian)
    assert law_pvalue(LAWS[name]) < REJECT


@pytest.mark.statistical
def test_no_two_steps_share_their_noise_and_ones_that_do_are_caught(
    monkeypatch: pytest.MonkeyPatch,
):
    def agreement() -> float:
        """Return by how many standard errors the signs of one step agree with the next one's."""
        signs = np.sign(residuals(replace(LAWS["laplace"], steps=4)))
        return max(abs(float(a @ b)) for a, b in pairwise(signs)) / math.sqrt(DIMENSION)

    assert agreement() < 5
    honest = laws.begin_noise

    def half(
        density: Density, count: int, device: torch.device, stream: Stream, step: int, **_: bool
    ) -> Any:
        return honest(density, count, device, stream, step // 2)

    monkeypatch.setattr(laws, "begin_noise", half)
    assert agreement() > 50


@pytest.mark.unit
def test_the_power_of_the_audit():
    """Twice the logarithm that is asked for, at the exact distance of the two laws."""
    count = DIMENSION * STEPS
    x = np.linspace(-12, 12, 20_001)
    for made in LAWS.values():
        assert made.noise is not None
        honest = made.noise.unit
        others = [honest.with_scale(share) for share in WRONG] + [as_gaussian(honest)]
        for other in others:
            distance = np.abs(other.cdf(x) - honest.cdf(x)).max()
            assert 2 * count * distance**2 > 2 * -math.log(REJECT / 2)


# --- what one record can add is what the event charges


def adversary(kind: str) -> tuple[Tensor, Tensor]:
    """Return features and class of one record that does its worst."""
    x = torch.zeros(1, FEATURES)
    match kind:
        case "huge":
            x += 1e4
        case "spike":
            x[0, 7] = 1e6
        case "ties":
            x += torch.tensor([1e3, -1e3]).repeat(FEATURES // 2)
        case "cubes":
            x += 1e4 * torch.randn(FEATURES, generator=torch.Generator().manual_seed(2)) ** 3
    return x, torch.zeros(1, dtype=torch.int64)


def shallow() -> nn.Module:
    """Return a network whose gradient is huge where the features are."""
    return nn.Sequential(nn.Linear(FEATURES, CLASSES))


def silent(patch: pytest.MonkeyPatch) -> None:
    """Take the noise away, and nothing else."""
    patch.setattr(Noise, "add_to", lambda *_: None)


def step_sum(x: Tensor, y: Tensor, mask: Sequence[bool], made: Recipe) -> Tensor:
    """Return one step's sum over all of these slots."""
    slots = one_step.DeviceRecords(x=x, y=y, valid=torch.tensor(mask))
    model = shallow()
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    return flat(one_step.compute_noisy_sum(model, slots, made, streams(), 0))


def excess(moved: Tensor, charged: Event) -> float:
    """Return by how much the sorted magnitudes exceed the shifts of an event, at most."""
    ((_, shifts),) = atoms(charged)
    top = np.repeat(shifts.values, shifts.counts)
    found = moved.abs().sort(descending=True).values.double().numpy()
    assert len(top) <= len(found)
    return float((found - np.pad(top, (0, len(found) - len(top)))).max())


def influence(kind: str = "huge", dimension: int | None = None, exact: bool = False) -> float:
    """Return the excess of what a record adds beside another one that is opposed to it."""
    x, y = adversary(kind)
    bounding = replace(BOUND, exact=exact)
    made = recipe_of(expected_batch_size=2, noise=StudentT(), bounding=bounding)
    x, y = torch.cat([2 * x, x]), torch.cat([1 - y, y])
    moved = step_sum(x, y, [True, True], made) - step_sum(x, y, [False, True], made)
    assert moved.abs().max() > 0
    return excess(moved, made.event(2, dimension or size_of(shallow())))


each_kind = pytest.mark.parametrize("kind", ["huge", "spike", "ties", "cubes"])
ROUNDING = 1e-7
"""Of a difference of two float32 sums, each entry at most 1."""


@pytest.mark.contract
@each_kind
def test_one_record_alone_adds_at_most_the_charged_shifts(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    """Bit by bit: no slack."""
    silent(monkeypatch)
    x, y = adversary(kind)
    made = recipe_of(expected_batch_size=1, noise=LaplaceNoise())
    total = step_sum(x, y, [True], made)
    assert total.abs().max() > 0
    assert excess(total, made.event(1, size_of(shallow()))) <= 0
    assert not step_sum(x, y, [False], made).any()


@pytest.mark.contract
@each_kind
@pytest.mark.parametrize("exact", [False, True], ids=["keys", "sorted"])
def test_a_record_beside_another_moves_the_sum_by_at_most_the_charged_shifts(
    kind: str, exact: bool, monkeypatch: pytest.MonkeyPatch
):
    silent(monkeypatch)
    assert influence(kind, exact=exact) <= ROUNDING


def no_clamp(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        encoding._DeviceCodebook,
        "logs_at",
        lambda self, ranks, vectors: torch.full(ranks.shape, math.inf),
    )


def book_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    """Clamp to the batch's own mean magnitudes, at norm C, instead of to public vectors."""

    def other(
        model: PreparedNetwork, x: Tensor, loss: Any, mask: Tensor, codebook: Codebook,
        buffers: SumBuffers, exact: bool, *_: int,
    ) -> None:  # fmt: skip
        rows = form_gradients(model, x, loss)[mask]
        means = rows.abs().double().sort(dim=1, descending=True).values.mean(dim=0).numpy()
        own = Codebook._of_norm(means[None], np.ones(len(means), dtype=np.int64), 0.5)
        buffers.totals[0].add_(encode_by_sorting(rows, own).sum(dim=0))

    patch.setattr(encoding, "add_encoded_sum", other)


def micro_batches(patch: pytest.MonkeyPatch) -> None:
    """Encode the mean of two records, and sum that."""

    def other(
        model: PreparedNetwork, x: Tensor, loss: Any, mask: Tensor, codebook: Codebook,
        buffers: SumBuffers, exact: bool, *_: int,
    ) -> None:  # fmt: skip
        rows = form_gradients(model, x, loss) * mask[:, None]
        means = rows.reshape(-1, 2, rows.shape[1]).mean(dim=1)
        buffers.totals[0].add_(encode_by_sorting(means, codebook).sum(dim=0))

    patch.setattr(encoding, "add_encoded_sum", other)


def twice(patch: pytest.MonkeyPatch) -> None:
    """Let a record count twice."""
    honest = encoding.add_encoded_sum

    def other(*given: Any) -> None:
        honest(*given)
        honest(*given)

    patch.setattr(encoding, "add_encoded_sum", other)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (no_clamp, "huge"),
        (book_of_the_batch, "spike"),
        (micro_batches, "huge"),
        (micro_batches, "cubes"),
        (twice, "ties"),
    ],
)
def test_a_sum_that_one_record_moves_further_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], kind: str, monkeypatch: pytest.MonkeyPatch
):
    silent(monkeypatch)
    assert influence(kind) <= ROUNDING
    plant(monkeypatch)
    assert influence(kind) > 1e-3


# --- the plan: priced for the networks that are trained


def plan_of(name: Any, space: Any = "fcn", strategy: str = "fixed", **options: Any) -> api.Plan:
    given = {"steps": 4, "batch": 300, **options}
    return api.prepare(
        "digits", budget=BUDGET, strategy=strategy, space=space, recipe=name, **given
    ).plan


def small(name: str, **changes: Any) -> dict[str, Any]:
    """Return a preset with a short codebook."""
    bounding = {"name": "encoded", "vectors": 3}
    return {"preset": name, "bounding": bounding, **changes}


@pytest.mark.unit
def test_a_plan_prices_the_network_that_it_trains():
    for name in ["encoded-student-t", "encoded-laplace"]:
        plan = plan_of(small(name))
        candidate = plan.space.candidate(plan.space.default_genotype())
        model = candidate.build(plan.schema.shape, plan.schema.outputs)
        assert plan.dimensions == (size_of(model),)
        (line,) = [each for each in plan.lines if each.partition == "train"]
        made = plan.trial_recipe(candidate)
        assert line.event == made.event(plan.split.train, size_of(model))
        assert densities(line.event) == [made.density(made.noise_multiplier)] * 4  # type: ignore[arg-type]
        assert 0.99 * BUDGET.epsilon < plan.price.epsilon <= BUDGET.epsilon
        assert price(line.event, DELTA).accountant == "RDP"


@pytest.mark.unit
def test_layers_that_keep_their_start_are_not_priced():
    plan = plan_of({**small("rwt"), "noise": {"name": "laplace"}}, space="auto", strategy="auto")
    candidate = plan.space.candidate(plan.space.default_genotype())
    model = candidate.build(plan.schema.shape, plan.schema.outputs)
    assert size_of(model) < sum(each.numel() for each in model.parameters())
    assert plan.dimensions == (size_of(model),)
    ((_, shifts),) = atoms(plan.lines[0].event)
    assert sum(shifts.counts) == size_of(model)


@pytest.mark.unit
def test_without_noise_nothing_is_encoded_and_nothing_denoised():
    bare = recipe_of(noise=StudentT(), denoising=KolmogorovSmirnov()).with_noise(None)
    assert (bare.bounding, bare.noise, bare.denoising) == (None, None, None)


@pytest.mark.unit
def test_a_portfolio_is_priced_at_the_worst_of_its_networks():
    plan = plan_of(small("encoded-student-t"), space="auto", strategy="rs", candidates=2)
    shape, outputs = plan.schema.shape, plan.schema.outputs
    sizes = {size_of(each.build(shape, outputs)) for each in plan.space.entries}  # type: ignore[attr-defined]
    assert len(sizes) > 1
    assert set(plan.dimensions) == sizes
    (line,) = [each for each in plan.lines if each.name == "training"]
    text = json.dumps(event_to_json(line.event))
    counts = {sum(each["shifts"]["counts"]) for each in found_in(json.loads(text), "additive")}
    assert counts == sizes


def found_in(document: Any, kind: str) -> list[dict[str, Any]]:
    if isinstance(document, list):
        return [hit for each in document for hit in found_in(each, kind)]
    if not isinstance(document, dict):
        return []
    own = [document] if document.get("type") == kind else []
    return own + [hit for each in document.values() for hit in found_in(each, kind)]


@pytest.mark.unit
def test_gaussian_noise_asks_for_no_size_and_costs_the_same_encoded_or_clipped():
    assert plan_of(small("encoded-gaussian")).lines == plan_of("dpsgd").lines
    assert plan_of(small("encoded-gaussian")).dimensions == (None,)


@pytest.mark.unit
def test_a_run_is_verified_from_its_result_alone(tmp_path: Path):
    given: dict[str, Any] = {
        "budget": BUDGET, "strategy": "fixed", "space": "fcn", "seed": 1,
        "recipe": small("encoded-student-t"), "steps": 3, "batch": 200, "device": "cpu",
    }  # fmt: skip
    result = api.search_architecture("digits", out=tmp_path / "run", **given)
    recomputed, problems = verify(tmp_path / "run")
    assert problems == []
    assert recomputed.epsilon == pytest.approx(result.price.epsilon)
    (step,) = found_in(result.document["events"], "additive")
    assert step["density"]["name"] == "student-t"
    assert sum(step["shifts"]["counts"]) == result.document["best"]["trainable_parameters"]
    told = result.document["recipe"]
    assert told["noise"]["freedom"] == 9.0
    file = tmp_path / "run" / "release" / "result.json"
    for change in (
        lambda each: each["density"].update(scale=each["density"]["scale"] * 2 / 3),
        lambda each: each["density"].update(freedom=3.0),
        lambda each: each["shifts"].update(values=[1.1 * v for v in each["shifts"]["values"]]),
        lambda each: each.update(sampling_probability=0.9 * each["sampling_probability"]),
    ):
        document = json.loads(json.dumps(result.document))
        change(*found_in(document["events"], "additive"))
        file.write_text(json.dumps(document), encoding="utf-8")
        assert verify(tmp_path / "run")[1], "a changed event has another price"


# --- denoising


def trained(made: Recipe, data: Records | None = None) -> Tensor:
    model = network()
    trainer.train(model, data or records(), made, streams())
    return flat([p.detach() for p in model.parameters()])


PLAIN = recipe_of(bounding=FlatClipping(clip_norm=0.5))


@pytest.fixture
def weighed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Density, float]]:
    """What every step asked the distance of: the noisy sum, the law, and the answer."""
    seen: list[tuple[Tensor, Density, float]] = []
    honest = KolmogorovSmirnov.weight

    def spy(self: KolmogorovSmirnov, noisy: Tensor, density: Density) -> Tensor:
        found = honest(self, noisy, density)
        seen.append((noisy.clone(), density, float(found)))
        return found

    monkeypatch.setattr(KolmogorovSmirnov, "weight", spy)
    return seen


def factors(made: Recipe) -> list[float]:
    """Return what each step's noisy sum was multiplied by; one number for all coordinates."""
    model = network()
    training = trainer.Training(model, records(), made, streams())
    found = []
    honest = one_step.denoise

    def spy(sums: list[Tensor], *others: Any) -> None:
        before = flat(sums).double()
        honest(sums, *others)
        after = flat(sums).double()
        found.append(float(after @ before / (before @ before)))
        assert torch.allclose(after, found[-1] * before, rtol=1e-5, atol=1e-9)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_step, "denoise", spy)
        for _ in range(made.steps):
            training.step()
    return found


@pytest.mark.unit
def test_off_it_changes_no_bit(monkeypatch: pytest.MonkeyPatch):
    plain = trained(PLAIN)
    assert torch.equal(trained(replace(PLAIN, denoising=None)), plain)
    assert not torch.equal(trained(replace(PLAIN, denoising=KolmogorovSmirnov())), plain)
    # All that it does is one product: by 1, every bit is that of plain DP-SGD.
    monkeypatch.setattr(KolmogorovSmirnov, "weight", lambda *_: torch.tensor(1.0))
    for relative in (False, True):
        denoised = replace(PLAIN, denoising=KolmogorovSmirnov(relative=relative))
        assert torch.equal(trained(denoised), plain)


@pytest.mark.unit
def test_the_paper_s_weight_is_the_distance_itself(weighed: list[tuple[Tensor, Density, float]]):
    found = factors(replace(PLAIN, denoising=KolmogorovSmirnov(relative=False)))
    assert len(found) == STEPS
    assert found == pytest.approx([weight for _, _, weight in weighed], rel=1e-5)
    assert max(found) < 0.5


@pytest.mark.unit
def test_relative_weights_are_divided_by_their_mean_so_far_and_average_about_1(
    weighed: list[tuple[Tensor, Density, float]],
):
    found = factors(replace(PLAIN, steps=40, denoising=KolmogorovSmirnov()))
    weights = [weight for _, _, weight in weighed]
    expected = [w / np.mean(weights[: t + 1]) for t, w in enumerate(weights)]
    assert found == pytest.approx(expected, rel=1e-5)
    assert found[0] == pytest.approx(1.0)
    assert np.mean(found) == pytest.approx(1.0, abs=0.1)
    assert np.ptp(found) > 0.01, "not all the same"


@pytest.mark.unit
@pytest.mark.parametrize(
    "made",
    [PLAIN, LAWS["laplace"], LAWS["student-t, falling"]],
    ids=["gaussian", "laplace", "student-t, falling"],
)
def test_it_compares_with_the_law_that_each_step_added(
    made: Recipe, weighed: list[tuple[Tensor, Density, float]]
):
    trained(replace(made, denoising=KolmogorovSmirnov()))
    sigmas = [made.noise_multiplier_at(step, N) or math.nan for step in range(made.steps)]
    assert [density for _, density, _ in weighed] == [*map(made.drawn_density, sigmas)]
    if made.noise is not None:
        assert [*map(made.density, sigmas)] == densities(made.event(N, DIMENSION))


@pytest.mark.unit
def test_it_sees_noise_and_public_numbers_alone(monkeypatch: pytest.MonkeyPatch):
    """Post-processing: whatever it compares with, price and noisy sums stay as they are."""
    made = replace(PLAIN, denoising=KolmogorovSmirnov())
    sums: list[Tensor] = []
    honest = KolmogorovSmirnov.weight

    def wrong(self: KolmogorovSmirnov, noisy: Tensor, density: Density) -> Tensor:
        sums.append(noisy.clone())
        return honest(self, noisy, LaplaceNoise(scale=9.0))

    priced, first = made.event(N), flat(one_sum(PLAIN))
    monkeypatch.setattr(KolmogorovSmirnov, "weight", wrong)
    one_sum(made)
    assert torch.equal(sums[0], first)
    assert made.event(N) == priced == PLAIN.event(N)


def one_sum(made: Recipe) -> list[Tensor]:
    data = records()
    slots = one_step.DeviceRecords(x=data.x, y=data.y, valid=data.valid)
    return one_step.compute_noisy_sum(network(), slots, made, streams(), 0)


# --- refusals

WATCHED = ValidationSchedule(rate=0.7, threshold=0.01, average=5, period=10)
REFUSED: dict[str, dict[str, Any]] = {
    "needs a bound on every coordinate": {"noise": StudentT(), "bounding": FlatClipping()},
    "Non-Gaussian noise requires batching": {
        "noise": StudentT(),
        "batching": "reshuffled",
    },
    "Non-Gaussian noise requires a data-independent": {
        "noise": LaplaceNoise(),
        "schedule": WATCHED,
    },
    "Bounding 'encoded' requires a recipe without augmentation": {
        "augmentation": Augmentation(views=2, shift=1)
    },
    "requires Gaussian noise without denoising": {
        "denoising": KolmogorovSmirnov(),
        "optimizer": "adam-corrected",
    },
    "Denoising requires a recipe without": {
        "denoising": KolmogorovSmirnov(),
        "noise_before_clip": NoiseBeforeClip(record_bound=1.0),
        "bounding": FlatClipping(),
    },
    "Denoising requires non-adaptive": {
        "denoising": KolmogorovSmirnov(),
        "bounding": AdaptiveClipping(clip_norm=1.0),
    },
    "Denoising requires noise;": {
        "denoising": KolmogorovSmirnov(),
        "bounding": None,
        "noise_multiplier": None,
    },
}


@pytest.mark.contract
def test_what_has_no_proof_is_refused_with_that_reason_alone():
    for words in REFUSED:
        with pytest.raises(UsageError, match="no privacy proof") as caught:
            recipe_of(**REFUSED[words])
        (reason,) = [each for each in STAGE_CONFLICTS if words in each]
        told = str(caught.value)
        assert told == f"This recipe has no privacy proof. {reason}"


@pytest.mark.unit
def test_other_pairs_that_do_not_go_together_are_refused():
    for changes, words in [
        ({"noise": StudentT(), "optimizer": "adam-corrected"}, "requires Gaussian noise"),
        ({"noise": StudentT(), "batching": "truncated"}, "requires batching .poisson."),
        ({"noise_before_clip": NoiseBeforeClip(record_bound=1.0)}, "requires bounding .flat."),
        ({"noise": "student-t"}, "noise is 'student-t'"),
        ({"denoising": True}, "denoising is True"),
    ]:
        with pytest.raises(UsageError, match=words):
            recipe_of(**changes)


@pytest.mark.unit
def test_what_goes_together_is_accepted():
    """The refusals are no wider than their reasons."""
    recipe_of(batching="truncated")
    recipe_of(batching="reshuffled")
    recipe_of(schedule=WATCHED)
    recipe_of(noise=StudentT(), denoising=KolmogorovSmirnov(), optimizer="adam")
    recipe_of(noise=StudentT(), schedule=UniformSchedule()).event(N, DIMENSION)
    assert isinstance(recipe_of(noise=StudentT()).make_batching(N), Poisson)


def open_table() -> Dataset:
    """Return records whose classes and bounds are not declared."""
    generator = np.random.default_rng(0)
    return from_arrays(generator.normal(size=(300, 5)), generator.integers(0, 2, 300))


@pytest.mark.unit
def test_an_undeclared_schema_leaves_the_size_open():
    with pytest.raises(UsageError, match="requires a declared schema"):
        api.prepare(open_table(), budget=BUDGET, strategy="fixed", recipe=small("encoded-laplace"))
    with pytest.raises(UsageError, match="declare the schema, or leave `noise=` out"):
        api.prepare(
            open_table(),
            budget=BUDGET,
            strategy="fixed",
            recipe=small("encoded-gaussian"),
            noise="search",
        )
    found = api.prepare(
        open_table(), budget=BUDGET, strategy="fixed", recipe=small("encoded-gaussian")
    )
    assert found.plan.dimensions == (None,)


@pytest.mark.unit
def test_a_space_has_too_many_sizes():
    with pytest.raises(UsageError, match="networks of space 'fcn' are too many"):
        plan_of(small("encoded-student-t"), strategy="rs", candidates=2)


@pytest.mark.unit
def test_a_law_is_chosen_only_where_gradients_are_encoded():
    for law in ["gaussian", "student-t:9", "search"]:
        for names in ["dpsgd", ["encoded-gaussian", "dpsgd"]]:
            given: dict[str, Any] = {} if isinstance(names, list) else {"strategy": "fixed"}
            with pytest.raises(UsageError, match="each coordinate of a gradient is bounded"):
                api.prepare("digits", budget=BUDGET, recipe=names, noise=law, **given)


# --- the command line

Run = Callable[..., tuple[int, str, str]]


FIXED = ("arch", "--eps", 2, "--strategy", "fixed", "--space", "fcn", "--steps", 3)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--noise", "laplace"), "--recipe encoded-gaussian"),
        (("--noise", "airy", "--recipe", "encoded-gaussian"), "noise is 'airy'"),
        (("--noise", "laplace:3", "--recipe", "encoded-gaussian"), "noise is 'laplace:3'"),
        (("--noise", "student-t:0", "--recipe", "encoded-gaussian"), "freedom"),
        (("--noise", "tabulated", "--recipe", "encoded-gaussian"), "noise is 'tabulated'"),
        (("--noise", "cauchy", "--recipe", "denoised-gaussian"), "each coordinate of a gradient"),
        (("--recipe", "own.toml"), "'micro_batch' requires bounding 'encoded'"),
        (("--recipe", "unbounded.toml"), "needs a bound on every coordinate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_the_command_line_refuses_and_writes_nothing(
    run: Run, tmp_path: Path, more: tuple[str, ...], words: str
):
    (tmp_path / "own.toml").write_text("micro_batch = 2\n", encoding="utf-8")
    (tmp_path / "unbounded.toml").write_text('noise = { name = "laplace" }\n', encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(*FIXED, *more)
    assert code == 2
    assert words in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err
    assert out == ""
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.contract
def test_the_command_line_plans_and_says_the_law(run: Run, tmp_path: Path):
    """`--noise` wins over the recipe's own law, and `gaussian` takes it back."""
    (tmp_path / "own.toml").write_text(
        'preset = "encoded-laplace"\nbounding = { name = "encoded", vectors = 3 }\n'
        'noise = { name = "logistic" }\n',
        encoding="utf-8",
    )
    for law, kind in (("student-t:5", "additive"), ("gaussian", "poisson-gaussian")):
        code, out, _ = run(*FIXED, "--recipe", "own.toml", "--noise", law, "--dry-run", "--json")
        assert code == 0
        planned = json.loads(out)
        (step,) = found_in(planned["lines"], kind)
        assert found_in(planned["lines"], "additive") == [step] * (kind == "additive")
        noise = planned["recipe"]["noise"]
        assert noise == (None if law == "gaussian" else StudentT(freedom=5.0).to_json())
        code, out, _ = run(*FIXED, "--recipe", "own.toml", "--noise", law, "--dry-run")
        assert code == 0
        assert f"noise {law}" in " ".join(out.split())


@pytest.mark.contract
def test_a_law_that_could_draw_what_is_not_priced_is_refused():
    class Sly(StudentT):
        """A law of a known name that draws next to nothing."""

        def draw_unit_magnitude(self, generator: np.random.Generator, size: int) -> np.ndarray:
            return 1e-6 * np.abs(generator.standard_normal(size))

    with pytest.raises(UsageError, match=r"accounting\.densities"):
        AdditiveNoise(0.1, Sly(freedom=9.0), Shifts(values=(1.0,), counts=(1,)))
    with pytest.raises(UsageError, match=r"accounting\.densities"):
        Recipe(
            expected_batch_size=1,
            steps=1,
            noise=Sly(freedom=9.0),
            bounding=EncodedClipping(vectors=3),
        )


@pytest.mark.unit
def test_what_the_papers_claim_for_gaussian_noise_is_not_said_of_another_law():
    schedule = {"name": "exponential", "rate": 0.1}
    small = {"steps": 4, "batch": 20, "strategy": "fixed"}
    for preset, claims in (("encoded-gaussian", 1), ("encoded-student-t", 0)):
        recipe = {"preset": preset, "schedule": schedule}
        plan = api.plan_architecture_search("digits", budget=Budget(4.0), recipe=recipe, **small)
        assert len(plan.list_published_bounds()) == claims


@pytest.mark.unit
def test_other_bad_input_is_told_in_words():
    for options, words in [
        ({"recipe": "encoded-gaussian", "noise": StudentT(freedom=9.0)}, "expected a name"),
        (
            {"recipe": "encoded-student-t", "strategy": "rs", "max_candidates": 4},
            "leave `max_candidates=` out",
        ),
    ]:
        with pytest.raises(UsageError, match=words):
            api.plan_architecture_search("digits", budget=Budget(2.0), **options)
