"""Training: plain torch where noise and bound are off, and privacy's rules where they are on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pasearch.data import mapping as precision
from pasearch.data.mapping import full_precision
from pasearch.data.partitions import Records
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.normals import draw_normals
from pasearch.runs.sums import SUM_ROUNDING
from pasearch.spaces.modules import KeyedDropout
from pasearch.training import one_step, training_loop
from pasearch.training.clipping import FlatClipping
from pasearch.training.one_step import compute_noisy_sum
from pasearch.training.optimizers import LearningRateDecay
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import Training, train

N, FEATURES, CLASSES = 24, 5, 3


def records(*, public: bool = False, null: tuple[int, ...] = (), n: int = N) -> Records:
    generator = torch.Generator().manual_seed(2)
    valid = torch.ones(n, dtype=torch.bool)
    valid[list(null)] = False
    return Records(
        x=torch.randn(n, FEATURES, generator=generator),
        y=torch.randint(0, CLASSES, (n,), generator=generator),
        valid=valid,
        public=public,
    )


def network(*extra: nn.Module) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), *extra, nn.Linear(6, CLASSES))


def recipe(**changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "expected_batch_size": 8,
        "steps": 4,
        "learning_rate": 0.5,
        "noise_multiplier": 1.2,
        "bounding": FlatClipping(clip_norm=0.7),
        "average": None,
    }
    return Recipe(**{**settings, **changes})


def streams(trial: int = 0) -> dict[str, Stream]:
    trials = Keys.from_seed(6).stream("trial", trial)
    return {name: trials.child(name) for name in ("batch", "noise", "dropout")}


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def trained(data: Records, made: Recipe, trial: int = 0, model: nn.Module | None = None) -> Tensor:
    model = network() if model is None else model
    train(model, data, made, streams(trial))
    return weights(model)


def noisy_sum(data: Records, made: Recipe, step: int = 0, trial: int = 0) -> Tensor:
    slots = one_step.DeviceRecords(x=data.x, y=data.y, valid=data.valid)
    return torch.cat(
        [each.flatten() for each in compute_noisy_sum(network(), slots, made, streams(trial), step)]
    )


PLAIN: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.5, betas=(0.9, 0.999)),
}


@pytest.mark.oracle
def test_without_noise_and_bound_the_weights_are_plain_torchs():
    for optimizer in PLAIN:
        for chunk in [4096, 5]:
            data = records(public=True)
            made = recipe(optimizer=optimizer, expected_batch_size=N, steps=6, chunk=chunk)
            ours = trained(data, made.with_noise(None))
            plain = network()
            moves = PLAIN[optimizer](plain.parameters())
            for _ in range(6):
                moves.zero_grad()
                functional.cross_entropy(plain(data.x), data.y).backward()
                moves.step()
            assert torch.allclose(ours, weights(plain), atol=1e-5, rtol=1e-5)
            assert not torch.allclose(ours, weights(network()), atol=1e-2)


@pytest.mark.oracle
def test_weight_decay_and_a_falling_rate_are_torchs():
    """Decoupled decay, as AdamW has it; full batches, so that an epoch is a step."""
    for optimizer in PLAIN:
        data = records(public=True)
        made = recipe(
            optimizer=optimizer, expected_batch_size=N, steps=6, weight_decay=0.2,
            learning_rate_schedule=LearningRateDecay(end=0.1, period=4),
        )  # fmt: skip
        ours, plain = trained(data, made.with_noise(None)), network()
        moves = PLAIN[optimizer](plain.parameters())
        start = moves.param_groups[0]["lr"]
        for factor in (1.0, 0.775, 0.55, 0.325, 0.1, 0.1):
            moves.param_groups[0]["lr"] = start * factor
            moves.zero_grad()
            functional.cross_entropy(plain(data.x), data.y).backward()
            with torch.no_grad():
                for parameter in plain.parameters():
                    parameter.mul_(1 - 0.5 * factor * 0.2)
            moves.step()
        assert torch.allclose(ours, weights(plain), atol=1e-5, rtol=1e-5)


@pytest.mark.oracle
def test_a_private_step_is_its_formula():
    """One step of SGD, every part computed apart from the trainer."""
    data, made = records(null=(3,)), recipe(steps=1, optimizer="sgd", expected_batch_size=12)
    model = network()
    chosen = np.zeros(N, dtype=bool)
    generator = streams()["batch"].generator(0)
    chosen[made.make_batching(N).indices(N, generator)] = True
    total = torch.zeros_like(weights(model))
    for i in np.flatnonzero(chosen & data.valid.numpy()):
        loss = functional.cross_entropy(model(data.x[i : i + 1]), data.y[i : i + 1])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        gradient = torch.cat([part.flatten() for part in parts])
        total += gradient * min(1.0, 0.7 / float(gradient.norm()))
    draw_normals(len(total), streams()["noise"]).add_to(total, 1.2 * SUM_ROUNDING * 0.7)
    expected = weights(model) - 0.5 * total / 12
    assert torch.allclose(trained(data, made), expected, atol=5e-5)


@pytest.mark.unit
def test_training_without_noise_is_refused_unless_the_data_is_declared_public():
    for public in [False, None, 1, "yes"]:
        data = Records(**{**vars_of(records()), "public": public})
        with pytest.raises(UsageError, match="data_is_public"):
            train(network(), data, recipe().with_noise(None), streams())


def vars_of(data: Records) -> dict[str, Any]:
    return {name: getattr(data, name) for name in ("x", "y", "valid", "public")}


@pytest.mark.unit
def test_training_without_a_learning_rate_is_refused():
    with pytest.raises(UsageError, match="no learning rate"):
        train(network(), records(), recipe(learning_rate=None), streams())


@pytest.mark.unit
def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(UsageError, match="`batch=24` or less"):
        train(network(), records(), recipe(expected_batch_size=25), streams())


@pytest.mark.contract
def test_an_empty_batch_still_adds_noise_and_steps():
    data = records(n=4000)
    made = recipe(expected_batch_size=1, steps=1, optimizer="sgd")
    found = None
    for step in range(20):
        if len(made.make_batching(4000).indices(4000, streams()["batch"].generator(step))) == 0:
            found = step
            break
    assert found is not None, "no step has an empty batch"
    total = noisy_sum(data, made, step=found)
    alone = torch.zeros_like(total)
    draw_normals(len(total), streams()["noise"], found).add_to(alone, 1.2 * (SUM_ROUNDING * 0.7))
    assert torch.equal(total, alone)
    nobody = Records(**{**vars_of(data), "valid": torch.zeros(4000, dtype=torch.bool)})
    assert not torch.equal(trained(nobody, made), weights(network()))


@pytest.mark.contract
def test_an_empty_batch_without_noise_leaves_the_weights():
    data = records(public=True, n=400)
    made = recipe(expected_batch_size=1, steps=1, optimizer="sgd").with_noise(None)
    empty = [
        trial
        for trial in range(20)
        if len(made.make_batching(400).indices(400, streams(trial)["batch"].generator(0))) == 0
    ]
    assert torch.equal(trained(data, made, trial=empty[0]), weights(network()))


@pytest.mark.contract
def test_the_same_streams_give_the_same_weights_and_other_trials_others():
    for optimizer in PLAIN:
        made = recipe(optimizer=optimizer)
        first = trained(records(), made)
        torch.manual_seed(99)
        assert torch.equal(first, trained(records(), made))
        assert not torch.allclose(first, trained(records(), made, trial=1), atol=1e-3)


@pytest.mark.contract
def test_every_stream_is_used_for_its_purpose_only():
    """Another batch key changes the batch alone: the noise stays."""
    data, made = records(null=tuple(range(N))), recipe()

    def total(**others: Stream) -> Tensor:
        slots = one_step.DeviceRecords(x=data.x, y=data.y, valid=data.valid)
        parts = compute_noisy_sum(network(), slots, made, {**streams(), **others}, 0)
        return torch.cat([part.flatten() for part in parts])

    noise = total()
    assert torch.equal(noise, total(batch=streams(1)["batch"]))
    assert torch.equal(noise, total(dropout=streams(1)["dropout"]))
    assert not torch.allclose(noise, total(noise=streams(1)["noise"]), atol=1e-2)


@pytest.mark.oracle
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_average_is_the_moving_average_of_the_weights(share: float):
    steps = 12
    path: list[Tensor] = [weights(network())]
    model = network()

    def keep(_: int) -> None:
        path.append(weights(model))

    train(model, records(), recipe(steps=steps), streams(), on_step=keep)
    mean = path[0].double()
    for t, each in enumerate(path[1:]):
        decay = min(1 - 1 / max(1.0, share * steps), (1 + t) / (10 + t))
        mean = decay * mean + (1 - decay) * each.double()
    ours = trained(records(), recipe(steps=steps, average=share))
    assert torch.allclose(ours.double(), mean, atol=1e-5)
    assert not torch.allclose(path[-1].double(), mean, atol=1e-4)


@pytest.mark.oracle
def test_a_long_average_looks_a_thousand_times_as_far_as_it_looks_back():
    """It is nearly that of every step, of weights which move as far as its horizon."""
    for steps, every in [(10_000, 1), (40_000, 4), (300_000, 30)]:
        own = training_loop.WeightAverage([torch.zeros(1)], recipe(steps=steps, average=0.1))
        shares = own.shares(np.arange(steps))
        assert np.count_nonzero(shares) == steps // every
        assert [float(own.shares(t)) for t in (0, every - 1)] == [shares[0], shares[every - 1]]
        path = np.sin(np.arange(steps) / (0.1 * steps))
        mean = exact = 0.0
        for t, (weights_now, share) in enumerate(zip(path, shares, strict=True)):
            decay = min(1 - 1 / (0.1 * steps), (1 + t) / (10 + t))
            exact, mean = (
                decay * exact + (1 - decay) * weights_now,
                mean + share * (weights_now - mean),
            )
        assert mean == pytest.approx(exact, abs=2e-3 if every > 1 else 1e-9)
        assert abs(path[-1] - exact) > 0.1


@pytest.mark.contract
def test_null_records_count_in_the_divisor_and_add_nothing():
    made = recipe(expected_batch_size=N, noise_multiplier=None, bounding=None)
    data = records(public=True, null=(0, 7, 8))
    total = noisy_sum(data, made)
    kept = data.valid.nonzero()[:, 0]
    model = network()
    loss = functional.cross_entropy(model(data.x[kept]), data.y[kept], reduction="sum")
    parts = torch.autograd.grad(loss, list(model.parameters()))
    assert torch.allclose(total, torch.cat([part.flatten() for part in parts]), atol=1e-5)
    one_step = recipe(
        expected_batch_size=N, noise_multiplier=None, bounding=None, steps=1, optimizer="sgd"
    )
    assert torch.allclose(trained(data, one_step), weights(network()) - 0.5 * total / N, atol=1e-6)


@pytest.mark.oracle
def test_bounded_gradients_are_multiplied_by_their_classs_share_of_the_largest_weight():
    """Against autograd's own gradients, one record at a time; the bound is not the weights'."""
    for chunk in [4096, 5]:
        data = records(public=True)
        given = (3.0, 6.0, 0.0)
        assert sorted(set(data.y.tolist())) == [0, 1, 2]
        clip = FlatClipping(clip_norm=0.3)
        made = recipe(
            expected_batch_size=N,
            noise_multiplier=1e-9,
            bounding=clip,
            class_weights=given,
            chunk=chunk,
        )
        model, wanted = network(), 0.0
        for x, y in zip(data.x, data.y, strict=True):
            loss = functional.cross_entropy(model(x[None]), y[None])
            own = torch.cat(
                [g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]
            )
            wanted = wanted + own * min(1.0, 0.3 / float(own.norm())) * (given[int(y)] / 6.0)
        found = noisy_sum(data, made)
        assert torch.allclose(found, wanted, atol=1e-4)


@pytest.mark.contract
def test_no_record_weighs_more_than_the_bound_whatever_the_weights():
    made = recipe(
        expected_batch_size=N,
        noise_multiplier=1e-9,
        bounding=FlatClipping(clip_norm=0.01),
        class_weights=(1e6, 1.0, 5.0),
    )
    whole = noisy_sum(records(public=True), made)
    for place in range(N):
        without = noisy_sum(records(public=True, null=(place,)), made)
        assert (whole - without).norm() <= 0.01 * (1 + 1e-4)


@pytest.mark.contract
def test_a_class_without_a_weight_is_not_named_by_an_error():
    """Plans refuse too few weights; a training that has no plan must not tell a record's class."""
    made = recipe(expected_batch_size=N, noise_multiplier=1e-9, class_weights=(1.0, 2.0))
    assert noisy_sum(records(), made).isfinite().all()


def numbers(*, public: bool = False, null: tuple[int, ...] = ()) -> Records:
    """Records with a number to predict."""
    data = records(public=public, null=null)
    y = torch.rand(N, generator=torch.Generator().manual_seed(8))
    return Records(**{**vars_of(data), "y": y.where(data.valid, 0)})


def predictor() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, 1))


@pytest.mark.oracle
def test_a_private_step_towards_numbers_is_its_formula():
    """A loss that set (batch, 1) outputs against (batch,) numbers would mix all records."""
    data, clip = numbers(null=(3, 9)), 0.7
    made = recipe(
        steps=1, optimizer="sgd", expected_batch_size=N, bounding=FlatClipping(clip_norm=clip)
    )
    model = predictor()
    total = torch.zeros_like(weights(model))
    norms = []
    for i in data.valid.nonzero()[:, 0]:
        loss = 0.5 * (model(data.x[i : i + 1])[0, 0] - data.y[i]).square()
        parts = torch.autograd.grad(loss, list(model.parameters()))
        gradient = torch.cat([part.flatten() for part in parts])
        norms.append(float(gradient.norm()))
        total += gradient * min(1.0, clip / norms[-1])
    assert min(norms) < clip < max(norms)
    draw_normals(len(total), streams()["noise"]).add_to(total, 1.2 * SUM_ROUNDING * clip)
    expected = weights(model) - 0.5 * total / N
    assert torch.allclose(trained(data, made, model=model), expected, atol=5e-5)


@pytest.mark.contract
def test_whatever_stands_in_a_null_slot_the_weights_are_the_same():
    for value in [math.nan, math.inf, 1e38, 5.0]:
        for label in [-100, 7, 2**40]:
            made = recipe(expected_batch_size=N)
            data, other = records(null=(5,)), records(null=(5,))
            other.x[5], other.y[5] = value, label
            assert torch.equal(trained(data, made), trained(other, made))


@pytest.mark.contract
def test_a_record_that_is_not_finite_neither_raises_nor_spreads():
    for value in [math.nan, math.inf, -math.inf, 3e38]:
        made = recipe(expected_batch_size=N, steps=1)
        data = records()
        data.x[5] = value
        assert bool(torch.isfinite(trained(data, made)).all())
        if not math.isfinite(value):
            assert torch.equal(noisy_sum(data, made), noisy_sum(records(null=(5,)), made))


@pytest.mark.unit
def test_noise_is_added_once_however_many_chunks_there_are():
    data = records(null=tuple(range(N)))
    noises = [noisy_sum(data, recipe(expected_batch_size=N, chunk=chunk)) for chunk in (1, 4096)]
    assert torch.equal(*noises)


class Centred(nn.Module):
    """Subtracts the batch's mean: records see each other."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class Softened(nn.Module):
    """A softmax over records."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=0)


@pytest.mark.contract
def test_a_network_that_mixes_records_is_refused():
    for mixing in [Centred(), Softened()]:
        with pytest.raises(UsageError, match="a layer mixes records"):
            train(network(mixing), records(), recipe(), streams())


@pytest.mark.contract
def test_a_network_that_validate_refuses_is_not_trained():
    for layer in [nn.BatchNorm1d(6), nn.Dropout(0.5)]:
        model = network(layer)
        before = weights(model)
        with pytest.raises(UsageError, match="cannot be trained privately: 2"):
            train(model, records(), recipe(), streams())
        assert torch.equal(before, weights(model))


@pytest.mark.unit
def test_layers_that_work_record_by_record_are_not_refused():
    train(network(nn.LayerNorm(6), KeyedDropout(0.5)), records(), recipe(), streams())


@pytest.mark.contract
def test_dropout_masks_come_from_the_dropout_stream_and_change_with_the_step():
    data = records()
    made = recipe(expected_batch_size=N, noise_multiplier=1e-9)
    slots = one_step.DeviceRecords(x=data.x, y=data.y, valid=data.valid)

    def total(step: int, trial: int) -> Tensor:
        own = {**streams(), "dropout": streams(trial)["dropout"]}
        return compute_noisy_sum(network(KeyedDropout(0.5)), slots, made, own, step)[0]

    assert torch.equal(total(0, 0), total(0, 0))
    assert not torch.allclose(total(0, 0), total(1, 0), atol=1e-3)
    assert not torch.allclose(total(0, 0), total(0, 1), atol=1e-3)


@pytest.mark.contract
def test_nothing_but_weights_is_left_behind():
    model = network()
    train(model, records(), recipe(optimizer="adam", average=0.5), streams())
    assert all(p.grad is None for p in model.parameters())
    fresh = network()
    assert model.state_dict().keys() == fresh.state_dict().keys()
    for module, other in zip(model.modules(), fresh.modules(), strict=True):
        assert module.__dict__.keys() == other.__dict__.keys()
        assert not module._forward_hooks
        assert not module._backward_hooks
    for parameter in model.parameters():
        assert vars(parameter) == {}


@pytest.mark.contract
def test_gradients_are_forgotten_even_if_the_caller_stops_the_training():
    model = network()

    def stop(finished: int) -> None:
        if finished == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(model, records(), recipe(), streams(), on_step=stop)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.contract
def test_torchs_global_generator_is_neither_read_nor_moved():
    model = network(KeyedDropout(0.5))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    train(model, records(), recipe(), streams())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.unit
def test_on_step_is_told_every_finished_step():
    told: list[int] = []
    train(network(), records(), recipe(steps=5), streams(), on_step=told.append)
    assert told == [1, 2, 3, 4, 5]


@pytest.mark.unit
def test_training_step_by_step_is_training():
    for average in [None, 0.5]:
        made = recipe(average=average)
        model = network()
        training = Training(model, records(), made, streams())
        for _ in range(made.steps):
            training.step()
        training.finish()
        assert torch.equal(weights(model), trained(records(), made))


def switches() -> list[Any]:
    return [getattr(place, name) for place, name, _ in precision._precision_switches()]


@pytest.mark.contract
def test_coarse_products_are_off_within_and_as_they_were_after():
    before = switches()
    exact = [value for _, _, value in precision._precision_switches()]
    coarse = {"ieee": "tf32", False: True}
    try:
        for place, name, value in precision._precision_switches():
            setattr(place, name, coarse[value])
        loose = switches()
        assert loose != exact
        with full_precision():
            assert switches() == exact
        assert switches() == loose
        with pytest.raises(ValueError, match="inside"), full_precision():
            raise ValueError("inside")
        assert switches() == loose
    finally:
        for (place, name, _), value in zip(precision._precision_switches(), before, strict=True):
            setattr(place, name, value)


@pytest.mark.contract
def test_training_inside_autocast_is_the_same():
    plain = trained(records(), recipe())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(plain, trained(records(), recipe()))


@pytest.mark.unit
def test_training_inside_no_grad_is_the_same():
    plain = trained(records(), recipe())
    with torch.no_grad():
        assert torch.equal(plain, trained(records(), recipe()))


@pytest.mark.unit
def test_frozen_parameters_stay():
    model = network()
    model[0].requires_grad_(False)  # pyright: ignore
    before = [p.detach().clone() for p in model.parameters()]
    train(model, records(), recipe(average=0.5), streams())
    same = [torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert same == [True, True, False, False]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_the_sums_are_those_of_the_cpu_but_for_the_noise():
    data = records(public=True, null=(4,))
    made = recipe(expected_batch_size=N, steps=5).with_noise(None)
    model = network()
    train(model, data, made, streams(), device="cuda")
    assert torch.allclose(weights(model).cpu(), trained(data, made), atol=1e-5)
