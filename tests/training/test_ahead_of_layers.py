"""What a network does before its first layer is done once; pooling is torch's, in another order."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from pasearch.data.partitions import Records
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.spaces.modules import KeyedDropout
from pasearch.training import one_step, per_example, trainer, training_loop
from pasearch.training.augmentation import Augmentation
from pasearch.training.layer_rules import find_rule
from pasearch.training.per_example import split_fixed_modules
from pasearch.training.recipe import Recipe

RECIPE = Recipe(expected_batch_size=12, steps=4, learning_rate=0.1, noise_multiplier=1.0)


def images(count: int = 40) -> Records:
    generator = torch.Generator().manual_seed(1)
    return Records(
        x=torch.rand(count, 10, 10, generator=generator),
        y=torch.randint(3, (count,), generator=generator),
        valid=torch.rand(count, generator=generator) > 0.1,
        public=False,
    )


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 10)), nn.MaxPool2d(2), nn.Conv2d(1, 6, 2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), KeyedDropout(0.0), nn.Linear(24, 3),
    )  # fmt: skip


def trained(model: nn.Module, recipe: Recipe = RECIPE, data: Records | None = None) -> nn.Module:
    streams = {name: Keys.from_seed(3).stream(name) for name in ("batch", "noise", "dropout")}
    trainer.train(model, data or images(), recipe, streams)
    return model


@pytest.mark.unit
def test_a_training_is_the_same_when_nothing_is_done_ahead(monkeypatch: pytest.MonkeyPatch):
    first, second = network(), None
    second = copy.deepcopy(first)
    seen = []
    honest = per_example.PreparedNetwork.__init__

    def watching(self: per_example.PreparedNetwork, model: nn.Module) -> None:
        seen.append(len(list(model.children())))
        honest(self, model)

    monkeypatch.setattr(per_example.PreparedNetwork, "__init__", watching)
    trained(first)
    monkeypatch.setattr(
        training_loop, "split_fixed_modules", lambda model: (nn.Sequential(nn.Tanh()), model)
    )
    monkeypatch.setattr(one_step.DeviceRecords, "apply_modules", lambda *_: None)
    trained(second)
    assert seen == [8, 6, 8], "the whole network is checked before"
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.unit
def test_the_records_are_pooled_once_and_keep_their_slots():
    data = images()
    made = one_step.DeviceRecords.move_to_device("cpu", data.x, data.y, data.valid).apply_modules(
        network()[:2]
    )
    assert made is not None
    assert torch.equal(made.x, network()[:2](data.x))
    assert torch.equal(made.valid, data.valid)
    assert data.x.shape == (40, 10, 10), "the data are as they were"
    flat = one_step.DeviceRecords.move_to_device("cpu", data.x, data.y, data.valid).apply_modules(
        nn.Sequential(nn.Flatten())
    )
    assert flat is not None
    assert flat.x.data_ptr() == data.x.data_ptr(), "another shape takes no memory"


@pytest.mark.unit
def test_what_would_take_much_memory_is_done_at_every_step(monkeypatch: pytest.MonkeyPatch):
    data = images()
    wide = nn.Sequential(nn.Unflatten(1, (1, 10)), nn.AvgPool2d(1))
    slots = one_step.DeviceRecords.move_to_device("cpu", data.x, data.y, data.valid)
    monkeypatch.setattr(one_step, "MAX_BYTES_AHEAD", data.x.nbytes)
    assert slots.apply_modules(wide) is not None
    monkeypatch.setattr(one_step, "MAX_BYTES_AHEAD", data.x.nbytes - 1)
    assert slots.apply_modules(wide) is None


def frozen() -> nn.Sequential:
    """A network whose first convolution keeps its random start (Bao et al., section IX-A)."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Unflatten(1, (1, 10)), nn.MaxPool2d(2), nn.Conv2d(1, 30, 2).requires_grad_(False),
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(30, 5, 2), nn.Tanh(), nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize("held", [2**28, 40 * 120 * 4, 40 * 120 * 4 - 1, 0])
def test_what_is_frozen_before_the_first_trained_layer_is_done_once(
    held: int, monkeypatch: pytest.MonkeyPatch
):
    """Of what takes much memory the last modules are left to every step: pooled, or all of it."""
    monkeypatch.setattr(one_step, "MAX_BYTES_AHEAD", held)
    first, second = frozen(), frozen()
    made = []
    honest = trainer.Training._apply_fixed_modules

    def looking(self: trainer.Training) -> None:
        honest(self)
        made.append((tuple(self._slots.x.shape[1:]), len(list(self._prepared.network.children()))))

    monkeypatch.setattr(trainer.Training, "_apply_fixed_modules", looking)
    trained(first)
    assert made == [((30, 2, 2), 4) if held >= 40 * 120 * 4 else ((1, 5, 5), 7)]
    monkeypatch.setattr(trainer.Training, "_apply_fixed_modules", lambda self: None)
    trained(second)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert torch.equal(first[2].weight, frozen()[2].weight), "it is as it was"


@pytest.mark.unit
def test_a_short_training_does_no_layer_to_all_records():
    streams = {name: Keys.from_seed(3).stream(name) for name in ("batch", "noise", "dropout")}
    for steps, shape in ((4, (30, 2, 2)), (3, (1, 5, 5))):  # of 12 records; there are 40
        training = trainer.Training(frozen(), images(), replace(RECIPE, steps=steps), streams)
        assert tuple(training._slots.x.shape[1:]) == shape


@pytest.mark.unit
def test_views_are_made_of_the_records_themselves(monkeypatch: pytest.MonkeyPatch):
    """A shift of a pooled image is not the pooled image of a shift."""
    asked = []
    monkeypatch.setattr(one_step.DeviceRecords, "apply_modules", lambda *given: asked.append(given))
    trained(network(), replace(RECIPE, augmentation=Augmentation(views=2, shift=1)))
    assert not asked
    trained(network())
    assert asked


@pytest.mark.unit
def test_only_what_is_the_same_at_every_step_is_done_ahead():
    for model, ahead in [
        (network(), 2),
        (nn.Sequential(nn.Sequential(nn.Flatten()), nn.Linear(100, 3)), 1),
        (nn.Sequential(KeyedDropout(0.5), nn.Flatten(), nn.Linear(100, 3)), 0),
        (nn.Sequential(nn.Linear(10, 3), nn.Flatten()), 0),
        (nn.Sequential(nn.Flatten(0, 1), nn.Linear(10, 3)), 0),
        (nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(100, 3)), 2),
        (nn.Sequential(nn.Linear(10, 3).requires_grad_(False), nn.Flatten(), nn.Linear(30, 3)), 2),
        (nn.Sequential(nn.GELU(), nn.Flatten(), nn.Linear(100, 3)), 0),
        (nn.Sequential(nn.Unflatten(0, (1, -1)), nn.MaxPool2d(2), nn.Linear(5, 3)), 0),
        (nn.Linear(10, 3), 0),
    ]:
        done, rest = split_fixed_modules(model)
        assert len(done) == ahead
        assert list(rest.parameters()) == [p for p in model.parameters() if p.requires_grad]


@pytest.mark.unit
def test_a_chain_that_mixes_records_before_its_first_layer_is_refused():
    for ahead, width in [
        ([nn.Flatten(0, 1)], 10),
        (
            [
                nn.Unflatten(0, (1, -1)),
                nn.MaxPool2d((3, 2), stride=(1, 2), padding=(1, 0)),
                nn.Flatten(0, 1),
            ],
            5,
        ),
    ]:
        data = images() if len(ahead) == 1 else replace(images(), x=images().x[:, 0])
        with pytest.raises(UsageError, match="cannot be trained privately"):
            trained(nn.Sequential(*ahead, nn.Linear(width, 3)), data=data)


@pytest.mark.unit
def test_a_module_with_a_hook_is_not_done_ahead():
    model = network()
    model[1].register_forward_hook(lambda *given: 2 * given[2])
    assert split_fixed_modules(model)[1] is model


@pytest.mark.oracle
def test_pooling_is_torchs_to_the_bit():
    """With ties, as a ReLU leaves them, and with numbers that are none."""
    for channels in [1, 3, 4, 9, 16]:
        for module in [
            nn.MaxPool2d(2),
            nn.MaxPool2d(3, stride=1, padding=1),
            nn.MaxPool2d((2, 3), ceil_mode=True),
            nn.MaxPool2d(2, dilation=2),
            nn.MaxPool2d(2, stride=(1, 2)),
        ]:
            generator = torch.Generator().manual_seed(5)
            x = torch.relu(torch.rand(7, channels, 9, 9, generator=generator) - 0.5)
            x[2, 0, 4, 4] = float("nan")
            rule = find_rule(module)
            ours, saved = rule.forward(module, x)
            theirs = module(x.requires_grad_())
            weights = torch.rand(theirs.shape, generator=generator)
            assert torch.equal(ours.nan_to_num(-1.0), theirs.nan_to_num(-1.0))
            (expected,) = torch.autograd.grad(theirs, x, weights)
            assert torch.equal(rule.backward(module, weights, saved), expected)


@pytest.mark.unit
def test_a_module_that_comes_twice_behind_what_is_done_ahead_stays_twice():
    bend = nn.Tanh()
    model = nn.Sequential(nn.Flatten(), nn.Linear(100, 4), bend, nn.Linear(4, 4), bend,
                          nn.Linear(4, 3))  # fmt: skip
    streams = {name: Keys.from_seed(3).stream(name) for name in ("batch", "noise", "dropout")}
    training = trainer.Training(model, images(), RECIPE, streams)
    found = training._prepared.modules
    assert found is not None
    assert [type(each) for each in found] == [type(each) for each in model[1:]]
