"""Steps in rounds, as a GPU makes them: the steps that care would have made, without waiting."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from doubles import start_gpu_training, start_training
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pasearch.data.partitions import Records
from pasearch.gpu import rounds
from pasearch.gpu.gpu_training import GpuTraining
from pasearch.gpu.rounds import BatchBlocks
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.normals import (
    UnrefinedNormals,
    compute_grid_distance,
    count_pairs,
    normals_from_words,
)
from pasearch.runs.sums import SUM_ROUNDING
from pasearch.spaces.modules import KeyedDropout, Lstm
from pasearch.training import trainer, training_loop
from pasearch.training.augmentation import Augmentation
from pasearch.training.clipping import (
    AdaptiveClipping,
    AutoSClipping,
    FlatClipping,
    PerLayerClipping,
)
from pasearch.training.encoded.noise import KolmogorovSmirnov
from pasearch.training.recipe import Recipe
from pasearch.training.schedules import StepDecay
from pasearch.training.trainer import Training, train

N, STEPS, BATCH, SIGMA, CLIP, RATE = 60, 5, 12, 1.3, 0.7, 0.5


def records(*, null: tuple[int, ...] = (), bad: tuple[int, ...] = (), n: int = N) -> Records:
    generator = torch.Generator().manual_seed(2)
    valid = torch.ones(n, dtype=torch.bool)
    valid[list(null)] = False
    x = torch.randn(n, 1, 6, 6, generator=generator)
    x[list(bad)] = math.nan
    y = torch.randint(0, 3, (n,), generator=generator)
    return Records(x=x, y=y, valid=valid, public=False)


def streams(trial: int = 0) -> dict[str, Stream]:
    trials = Keys.from_seed(6).stream("trial", trial)
    return {name: trials.child(name) for name in ("batch", "noise", "dropout")}


def recipe(**changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "expected_batch_size": BATCH, "steps": STEPS, "learning_rate": RATE,
        "noise_multiplier": SIGMA, "bounding": FlatClipping(clip_norm=CLIP), "average": None,
        "optimizer": "sgd",
    }  # fmt: skip
    return Recipe(**{**settings, **changes})


def dense() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3))


def convolutions(*extra: nn.Module) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), *extra, nn.Flatten(),
        nn.Linear(36, 3),
    )  # fmt: skip


class Rows(nn.Module):
    """The rows of an image as the steps of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1, 2)


def recurrent() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(Rows(), Lstm(6, 5), nn.Linear(5, 3))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "dense": dense, "convolutions": convolutions, "recurrent": recurrent,
    "dropout": lambda: convolutions(KeyedDropout(0.3)),
}  # fmt: skip

RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum and an average": {"optimizer": "momentum", "average": 0.5},
    "adam": {"optimizer": "adam", "learning_rate": 0.02},
    "adam-corrected": {"optimizer": "adam-corrected", "learning_rate": 0.02},
    "auto-s": {"bounding": AutoSClipping()},
    "per layer": {"bounding": PerLayerClipping(clip_norm=CLIP)},
    "views": {"augmentation": Augmentation(views=2, shift=1)},
    "class weights": {"class_weights": (1.0, 2.0, 0.5)},
    "denoised": {"denoising": KolmogorovSmirnov()},
    "in parts": {"chunk": 5},
    "capped": {"batching": "truncated"},
    "reshuffled": {"batching": "reshuffled"},
    "everybody": {"expected_batch_size": N},
    "less noise later": {"schedule": StepDecay(rate=0.8, period=1)},
}


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def begun(made: Recipe, model: nn.Module, data: Records, *, rounds: bool = True) -> Training:
    return start_training(model, data, made, streams(), in_rounds=rounds)


def trained(made: Recipe, model: nn.Module, data: Records, *, careful: bool = False) -> Tensor:
    """Return the weights after all steps, made in a round, or each with care."""
    training = begun(made, model, data)
    if careful:
        assert all(training.step() for _ in range(made.steps))
    else:
        assert training.steps(made.steps) == made.steps
    training.finish()
    return weights(model)


def recipe_of(name: str) -> Recipe:
    return recipe(**RECIPES[name])


# What a round computes


def batch_by_hand(step: int, n: int, q: float, width: int, own: Stream) -> list[int]:
    """The slots of a step, gap by gap, in plain arithmetic."""
    block, row = divmod(step, rounds.DEFAULT_DRAWN_STEPS)
    words = (
        own.child("gaps")
        .random_words(block)
        .take(rounds.DEFAULT_DRAWN_STEPS * (width + 1))
        .tolist()
    )
    found, last = [], -1
    for word in words[row * (width + 1) : (row + 1) * (width + 1)]:
        u = ((word % 2**63) + 0.5) / 2.0**63
        last += 1 + math.floor(math.log(u) / math.log1p(-q))
        if last >= n:
            return found
        found.append(last)
    raise AssertionError("the batch has more slots than its padding")


def clipped_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(model(x[None]), y[None])
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*model.parameters()])])
    return gradient * min(1.0, CLIP / float(gradient.norm()))


def by_hand(data: Records, made: Recipe, model: nn.Module) -> Tensor:
    """Every part of every step computed apart from the trainer: one record at a time."""
    own, width = streams(), BatchBlocks(
        made.make_batching(len(data.y)), len(data.y), streams()["batch"], torch.device("cpu")
    ).width  # fmt: skip
    count, scale = len(weights(model)), SIGMA * (SUM_ROUNDING * CLIP)
    for step in range(made.steps):
        total = torch.zeros(count)
        for slot in batch_by_hand(step, len(data.y), BATCH / len(data.y), width, own["batch"]):
            if data.valid[slot] and data.x[slot].isfinite().all():
                total += clipped_gradient(model, data.x[slot], data.y[slot])
        words = torch.from_numpy(
            own["noise"].random_words(step).take(2 * count_pairs(count)).copy()
        )
        noise = normals_from_words(words, count, own["noise"], step).values
        moved = torch.round(
            (total.double() + scale * noise) / compute_grid_distance(scale)
        ) * compute_grid_distance(scale)
        with torch.no_grad():
            start = 0
            for p in model.parameters():
                p -= RATE / BATCH * moved[start : start + p.numel()].view(p.shape).float()
                start += p.numel()
    return weights(model)


@pytest.mark.oracle
def test_a_round_is_its_formula():
    for make in [dense, convolutions]:
        for careful in [False, True]:
            data, made = records(null=(3, 17)), recipe()
            expected = by_hand(data, made, make())
            found = trained(made, make(), data, careful=careful)
            # A sum may be rounded to the next grid point, 2^-7 of a standard deviation away.
            step = STEPS * RATE / BATCH * compute_grid_distance(SIGMA * CLIP)
            assert (found - expected).abs().max() <= step
            assert (found - expected).abs().median() <= 1e-5
            assert not torch.allclose(found, weights(make()), atol=0.05)


@pytest.mark.unit
def test_a_round_makes_the_steps_that_care_makes_to_the_bit():
    for model in NETWORKS:
        for name in RECIPES:
            made = recipe_of(name)
            data = records(null=(5,))
            assert torch.equal(
                trained(made, NETWORKS[model](), data),
                trained(made, NETWORKS[model](), data, careful=True),
            )


@pytest.mark.unit
def test_a_record_that_is_not_finite_adds_nothing():
    for model in NETWORKS:
        made = recipe(expected_batch_size=30)
        bad = trained(made, NETWORKS[model](), records(bad=(1, 8, 30)))
        assert bad.isfinite().all()
        assert torch.equal(
            bad, trained(made, NETWORKS[model](), records(bad=(1, 8, 30)), careful=True)
        )
        null = trained(made, NETWORKS[model](), records(null=(1, 8, 30)))
        assert torch.allclose(bad, null, atol=1e-6)


@pytest.mark.unit
def test_a_norm_that_overflows_in_one_layer_leaves_the_record_out_of_all():
    """Its values are finite, so no sum shows it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.Tanh(), nn.Linear(3, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.01)
    data = records()
    data.x[7] = 1e22  # of which a square is infinite
    made = recipe(bounding=PerLayerClipping(clip_norm=CLIP), expected_batch_size=N, steps=1)
    ours = trained(made, copy.deepcopy(model), data)
    null = trained(made, copy.deepcopy(model), replace(data, valid=torch.arange(N) != 7))
    assert torch.equal(ours, null)


@pytest.mark.unit
def test_a_sum_that_is_not_finite_is_noted_without_noise_too():
    data = records(bad=(1, 8, 30))
    public = Records(x=data.x, y=data.y, valid=data.valid, public=True)
    made = recipe(expected_batch_size=N).with_noise(None)
    assert trained(made, dense(), public).isfinite().all()


@contextmanager
def noted(patch: pytest.MonkeyPatch, at: int) -> Iterator[list[bool]]:
    """Say of one step that it may be wrong, and spoil its sum."""
    honest, calls = UnrefinedNormals.add_to, []

    def add_to(self: UnrefinedNormals, total: Any, scale: float, *, start: int = 0) -> Any:
        wrong = honest(self, total, scale, start=start)
        calls.append(len(calls) == at)
        if calls[-1]:
            total += 100.0
        return wrong | calls[-1]

    with patch.context() as within:
        within.setattr(UnrefinedNormals, "add_to", add_to)
        yield calls


@pytest.mark.unit
def test_a_round_with_a_note_is_undone_and_made_with_care(monkeypatch: pytest.MonkeyPatch):
    for name in ["momentum and an average", "adam-corrected", "denoised"]:
        for at in [0, STEPS - 1]:
            made = recipe_of(name)
            expected = trained(made, dense(), records(), careful=True)
            with noted(monkeypatch, at) as calls:
                assert torch.equal(trained(made, dense(), records()), expected)
            assert calls.count(True) == 1


@pytest.mark.unit
def test_a_note_stays_with_its_round(monkeypatch: pytest.MonkeyPatch):
    made = recipe(steps=3 * STEPS)
    expected, model = trained(made, dense(), records(), careful=True), dense()
    training = begun(made, model, records())
    with noted(monkeypatch, 2) as calls:
        for _ in range(3):
            training.steps(STEPS)
    training.finish()
    assert torch.equal(weights(model), expected)
    assert len(calls) == 3 * STEPS  # care asks otherwise


@pytest.mark.unit
@pytest.mark.parametrize("looks", [None, lambda finished: finished % 7 == 0 or finished == 100])
def test_rounds_end_where_somebody_looks(monkeypatch: pytest.MonkeyPatch, looks: Any):
    seen: list[tuple[int, Tensor]] = []
    model, made = dense(), recipe(steps=100)
    monkeypatch.setattr(trainer, "start_training", start_gpu_training)
    train(
        model, records(), made, streams(), looks=looks,
        on_step=lambda finished: seen.append((finished, weights(model))),
    )  # fmt: skip
    told = [finished for finished, _ in seen]
    assert told[-1] == 100
    expected = range(1, 101) if looks is None else [k for k in range(1, 101) if looks(k)]
    assert set(expected) <= set(told)
    assert len(told) < 100 or looks is None
    careful = begun(made, other := dense(), records())
    for finished in range(1, 101):
        careful.step()
        for at, found in seen:
            assert at != finished or torch.equal(found, weights(other))


@pytest.mark.unit
def test_a_round_may_be_given_step_by_step():
    made, model = recipe(steps=2 * rounds.MAX_STEPS_PER_ROUND + 3), dense()
    training = begun(made, model, records(bad=(4,)))
    for step in range(made.steps):
        training.begin_steps(1)
        if step % rounds.MAX_STEPS_PER_ROUND == rounds.MAX_STEPS_PER_ROUND - 1:
            assert training.end_round() == rounds.MAX_STEPS_PER_ROUND
    assert training.end_round() == 3
    assert training.end_round() == 0
    training.finish()
    assert torch.equal(weights(model), trained(made, dense(), records(bad=(4,)), careful=True))


@pytest.mark.unit
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, GeneratorExit])
def test_steps_that_nobody_has_looked_at_are_taken_back(error: type[BaseException]):
    """Else the weights of a round with a note could be kept by who catches the error."""

    class Stops(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 20:
                raise error
            return x

    data, stops = records(bad=(7,)), Stops()
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3), stops)
    made = recipe(steps=100, expected_batch_size=N)
    training = GpuTraining(model, data, made, streams(), device="cpu", splits=False)
    training.steps(2)
    before, stops.calls = weights(model), 0
    training.begin_steps(10)
    assert not torch.equal(weights(model), before)
    training.undo_round()
    assert torch.equal(weights(model), before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "start_training", start_gpu_training)
        stops.calls = 0
        rounds = trainer.run_rounds(model, data, made, streams(), splits=False)
        with pytest.raises(error):
            for _ in rounds:
                pass
    assert weights(model).isfinite().all()


@pytest.mark.unit
def test_a_round_that_cannot_be_taken_back_leaves_no_weights(monkeypatch: pytest.MonkeyPatch):
    model = dense()
    training = begun(recipe(), model, records())
    training.begin_steps(2)

    def fails(*_: object) -> None:
        raise RuntimeError("the device has failed")

    monkeypatch.setattr(GpuTraining, "_go_back", fails)
    training.undo_round()
    assert weights(model).isnan().all()


@pytest.mark.unit
def test_what_a_captured_step_reads_stays_as_long_as_its_training():
    """A replay reads addresses: what lies there must be the training's own, not a cache's."""
    made = recipe(bounding=PerLayerClipping(clip_norm=CLIP), class_weights=(1.0, 2.0, 0.5))
    training = begun(made, dense(), records())
    shares = training._slots.shares
    assert shares is not None
    for k in range(20):
        begun(recipe(class_weights=(1.0, 2.0, 3.0 + k)), dense(), records()).steps(2)
    assert training._slots.shares is shares
    first, again = (PerLayerClipping(clip_norm=CLIP).layer_clip_norms(2) for _ in range(2))
    assert first.data_ptr() != again.data_ptr()  # made anew in the step: a graph owns its own


# Batches


@pytest.mark.statistical
def test_batches_by_inversion_are_poisson():
    n, q, many = 40, 0.15, 4000
    drawn = BatchBlocks(
        recipe(expected_batch_size=6).make_batching(n), n, streams()["batch"], torch.device("cpu")
    )
    inside = np.zeros((many, n))
    for step in range(many):
        places, real = drawn.draw_full_batch(step)
        inside[step, places[real].numpy()] = 1.0
        assert len(set(places[real].tolist())) == int(real.sum())
    deviation = math.sqrt(q * (1 - q) / many)
    assert np.abs(inside.mean(0) - q).max() < 4.5 * deviation
    together = inside.T @ inside / many - q * q
    off = together[~np.eye(n, dtype=bool)]
    assert np.abs(off).max() < 5.5 * q * (1 - q) / math.sqrt(many)
    sizes = inside.sum(1)
    assert abs(sizes.var() - n * q * (1 - q)) < 5 * n * q * (1 - q) * math.sqrt(2 / many)
    later = (inside[1:] * inside[:-1]).mean(0) - q * q  # steps are independent, blocks too
    assert np.abs(later).max() < 4.5 * q / math.sqrt(many)


@pytest.mark.statistical
def test_a_batch_beyond_its_padding_is_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rounds, "PADDING_DEVIATIONS", -1.0)
    n, q, many = 400, 0.1, 2000
    batching = recipe(expected_batch_size=40).make_batching(n)
    drawn = BatchBlocks(batching, n, streams()["batch"], torch.device("cpu"))
    sizes, beyond, inside = [], 0, np.zeros(n)
    for step in range(many):
        beyond += bool(drawn.get_padded_batch(step).more)
        places, real = drawn.draw_full_batch(step)
        chosen = places[real].numpy()
        assert (np.diff(chosen) > 0).all()
        inside[chosen] += 1
        sizes.append(len(chosen))
    assert 0.3 * many < beyond < 0.6 * many
    assert abs(np.mean(sizes) - n * q) < 5 * math.sqrt(n * q * (1 - q) / many)
    assert abs(np.var(sizes) - n * q * (1 - q)) < 5 * n * q * (1 - q) * math.sqrt(2 / many)
    assert np.abs(inside / many - q).max() < 4.5 * math.sqrt(q * (1 - q) / many)


@pytest.mark.statistical
def test_batches_by_inversion_have_the_sizes_of_poisson_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
):
    """At n 16 and q 1/2, padded to 8: half of all batches go beyond."""
    from scipy.stats import binom, chisquare

    monkeypatch.setattr(rounds, "PADDING_DEVIATIONS", 0.0)
    n, many = 16, 12_800
    batching = recipe(expected_batch_size=8).make_batching(n)
    drawn = BatchBlocks(batching, n, streams()["batch"], torch.device("cpu"))
    sizes, last, eight = np.zeros(n + 1), 0, []
    for step in range(many):
        padded, (places, real) = drawn.get_padded_batch(step), drawn.draw_full_batch(step)
        chosen = places[real].tolist()
        assert bool(padded.more) == (len(chosen) > drawn.width)
        sizes[len(chosen)] += 1
        last += n - 1 in chosen
        if len([each for each in chosen if each < n - 1]) == 8:
            eight.append(n - 1 in chosen)
    expected = many * binom.pmf(np.arange(n + 1), n, 0.5)
    sizes, expected = (
        [*each[3:13], each[:3].sum() + each[13:].sum()] for each in (sizes, expected)
    )
    assert chisquare(sizes, expected).pvalue > 1e-4
    assert abs(last / many - 0.5) < 4.5 * 0.5 / math.sqrt(many)
    assert abs(np.mean(eight) - 0.5) < 4.5 * 0.5 / math.sqrt(len(eight))


@pytest.mark.unit
def test_a_step_beyond_its_padding_has_all_its_records(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rounds, "PADDING_DEVIATIONS", -1.0)
    made, data = recipe(steps=20), records()
    assert torch.equal(trained(made, dense(), data), trained(made, dense(), data, careful=True))
    used = BatchBlocks(made.make_batching(N), N, streams()["batch"], torch.device("cpu"))
    assert any(bool(used.get_padded_batch(step).more) for step in range(20))


@pytest.mark.oracle
def test_gaps_are_the_inverse_of_the_geometric_law():
    import mpmath

    rng = np.random.default_rng(1)
    words = rng.integers(-(2**63), 2**63, size=400)
    for q in (0.5, 0.01, 1e-5):
        found = rounds.convert_to_geometric_gaps(torch.from_numpy(words.copy()), q, 10**9)
        for word, gap in zip(words.tolist(), found.tolist(), strict=True):
            with mpmath.workprec(200):
                u = (mpmath.mpf(word % 2**63) + 0.5) / 2**63
                exact = mpmath.log(u) / mpmath.log1p(-mpmath.mpf(q))
                assert gap == 1 + int(mpmath.floor(exact))


@pytest.mark.unit
def test_other_batches_are_those_of_a_processor():
    for batching in ["truncated", "reshuffled"]:
        made = recipe(batching=batching)
        ours = made.make_batching(N)
        drawn = BatchBlocks(ours, N, streams()["batch"], torch.device("cpu"))
        for step in (0, 4, 5, 63, 64, 130):
            padded = drawn.get_padded_batch(step)
            assert (
                padded.places[padded.real].tolist()
                == ours.batch(N, streams()["batch"], step).tolist()
            )
            assert not padded.places[~padded.real].any()
            assert not bool(padded.more)


# Noise that asks for no more bits


@pytest.mark.oracle
def test_numbers_err_less_than_they_say():
    import mpmath

    rng, count = np.random.default_rng(3), 6 * 64
    words = rng.integers(-(2**63), 2**63, size=2 * count_pairs(count))
    half = len(words) // 2
    words[: half // 3] = (2.0 ** rng.uniform(8, 62, half // 3)).astype(np.int64)
    words[half // 3 : 2 * half // 3] = (
        2**63 - 1 - (2.0 ** rng.uniform(0, 62, half // 3)).astype(int)
    )
    given, stream = torch.from_numpy(words), Stream(bytes(32))
    alone, exact = UnrefinedNormals.of(given, count), normals_from_words(given, count, stream, 0)
    shares = []
    for place in range(count):
        with mpmath.workprec(400):
            error = abs(
                float(exact.compute_exactly(place) - mpmath.mpf(float(alone.values[place])))
            )
        shares.append(error / float(alone.errors[place]))
    assert max(shares) < 0.75
    assert max(shares) > 0.1


@pytest.mark.oracle
def test_a_rounding_in_doubt_is_noted_and_no_other():
    count, scale, stream = 4096, 1.5, Stream(bytes(32))
    words = torch.from_numpy(stream.random_words(0).take(2 * count_pairs(count)).copy())
    alone, exact = UnrefinedNormals.of(words, count), normals_from_words(words, count, stream, 0)
    total = torch.linspace(-30.0, 30.0, count)
    ours, theirs = total.clone(), total.clone()
    assert not bool(alone.add_to(ours, scale))
    exact.add_to(theirs, scale)
    assert torch.equal(ours, theirs)
    grain = compute_grid_distance(scale)
    middle = total.double()
    middle[77] = (math.floor(9.0) + 0.5) * grain - scale * alone.values[77]  # to float64's last bit
    assert bool(alone.add_to(middle.clone(), scale))
    middle[77] += grain * 1e-6
    assert not bool(alone.add_to(middle, scale))


@pytest.mark.unit
def test_a_total_that_cannot_be_rounded_is_noted():
    for value in [math.nan, math.inf, -math.inf, 3e38]:
        stream = Stream(bytes(32))
        alone = UnrefinedNormals.of(
            torch.from_numpy(stream.random_words(0).take(2 * count_pairs(64)).copy()), 64
        )
        total = torch.zeros(64)
        total[5] = value
        assert bool(alone.add_to(total, 1.5)) == (not math.isfinite(value))


@pytest.mark.unit
def test_no_zero_is_negative():
    stream = Stream(bytes(32))
    alone = UnrefinedNormals.of(
        torch.from_numpy(stream.random_words(0).take(2 * count_pairs(4096)).copy()), 4096
    )
    total = -1e-12 * torch.ones(4096)
    alone.add_to(total, 1e-3)
    assert not torch.signbit(total[total == 0]).any()


@pytest.mark.unit
def test_the_ends_of_u_are_noted():
    for length in [0, 1, 2**63 - 1]:
        words = torch.from_numpy(Stream(bytes(32)).random_words(0).take(2 * count_pairs(64)).copy())
        words[3] = length
        assert bool(UnrefinedNormals.of(words, 64).add_to(torch.zeros(64), 1.5))


# Nothing is fetched


class Moves(TorchDispatchMode):
    """Notes what is copied from one device to another."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [each for each in (*args, result) if isinstance(each, Tensor)]
        if "copy" in str(func) and len({each.device.type for each in tensors}) > 1:
            self.found.append(str(func))
        return result


def on_no_device(
    monkeypatch: pytest.MonkeyPatch, made: Recipe, model: nn.Module
) -> tuple[GpuTraining, Moves]:
    """A training on a device without numbers, where nothing can be fetched."""
    monkeypatch.setattr(training_loop, "_check_record_independence", lambda *_: None)
    for place in (rounds,):
        monkeypatch.setattr(
            place, "draw_device_words",
            lambda device, count, *_: torch.empty(count, dtype=torch.int64, device=device),
        )  # fmt: skip
    training = GpuTraining(model, records(), made, streams(), device="meta")
    return training, Moves()


QUIET = [name for name in RECIPES if name not in ("views", "capped", "reshuffled")]


@pytest.mark.unit
def test_no_step_of_a_round_waits_or_is_given_anything(monkeypatch: pytest.MonkeyPatch):
    for model in [name for name in NETWORKS if name != "dropout"]:
        for name in QUIET:
            training, moves = on_no_device(monkeypatch, recipe_of(name), NETWORKS[model]())
            monkeypatch.setattr(
                rounds.Rounds, "pop_uncertain", lambda _: False
            )  # which a round may ask, once
            training.steps(1)  # what is made once a training: a table of class weights, say
            with moves:
                assert training.steps(STEPS - 1) == STEPS - 1
            assert not [each for each in moves.found if name != "everybody"]


@pytest.mark.unit
def test_a_step_with_care_or_the_note_itself_would_wait(monkeypatch: pytest.MonkeyPatch):
    training, _ = on_no_device(monkeypatch, recipe(), dense())
    with pytest.raises((RuntimeError, NotImplementedError)):
        training.step()
    with pytest.raises((RuntimeError, NotImplementedError)):
        training.steps(1)


@pytest.mark.unit
def test_a_recipe_that_asks_in_every_step_is_made_with_care():
    made = recipe(bounding=AdaptiveClipping())
    assert not rounds.can_use_rounds(made)
    assert begun(made, dense(), records()).steps(STEPS) == 1
    with pytest.raises(ValueError, match="waits for the device"):
        GpuTraining(dense(), records(), made, streams(), device="cpu")
    assert begun(recipe(), dense(), records(), rounds=False).steps(STEPS) == 1


# On a GPU


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def on_cuda(made: Recipe, model: nn.Module, *, careful: bool = False) -> tuple[GpuTraining, Tensor]:
    training = GpuTraining(model, records(null=(5,)), made, streams(), device="cuda")
    done = 0
    while done < made.steps:
        done += int(training.step()) if careful else training.steps(made.steps - done)
    training.finish()
    return training, weights(model).cpu()


@pytest.mark.gpu
@cuda
def test_on_cuda_a_round_makes_the_steps_that_care_makes():
    for model in NETWORKS:
        for name in RECIPES:
            made = recipe_of(name)
            training, ours = on_cuda(made, NETWORKS[model]())
            _, theirs = on_cuda(made, NETWORKS[model](), careful=True)
            # A sum of kernels of our own may be rounded to the next grid point.
            rate, scale = made.learning_rate, SIGMA * CLIP
            assert rate is not None
            step = STEPS * rate / made.expected_batch_size * compute_grid_distance(scale)
            tolerance = 1e-5 if training._dense_steps is None else step
            assert torch.allclose(ours, theirs, atol=tolerance)


@pytest.mark.gpu
@cuda
def test_on_cuda_steps_are_captured_once_and_replayed():
    for make in [convolutions, recurrent]:
        made = recipe(steps=200)
        training, ours = on_cuda(made, make())
        graphs = training._rounds._graphs
        assert graphs is not None
        assert graphs.replayed >= 190
        _, again = on_cuda(made, make())
        assert torch.equal(ours, again)


@pytest.mark.gpu
@cuda
def test_on_cuda_no_step_of_a_round_synchronises():
    made = recipe(steps=30)
    training = GpuTraining(convolutions(), records(), made, streams(), device="cuda")
    training.steps(10)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(10, 30):
            training._write_sum_within_memory(
                training._rounds.write_sum, made.noise_multiplier_at(step, N)
            )
            training._update_weights()
    finally:
        torch.cuda.set_sync_debug_mode("default")
