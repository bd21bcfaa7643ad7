"""What layers see and get back: by the rules of a chain, by hooks and by autograd the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from doubles import Hidden
from extensions import extended
from torch import Tensor, nn

from pasearch.data.partitions import Records
from pasearch.data.threads import use_threads
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.spaces.modules import (
    Gru,
    Lstm,
    RowSequence,
    SkipConcat,
    TemperedSigmoid,
    TokenEmbedding,
)
from pasearch.training import training_loop
from pasearch.training.clipping import FlatClipping
from pasearch.training.layer_rules import GENERAL_RULE, RULES, run_lstm_backward, run_lstm_forward
from pasearch.training.losses import RecordLoss, compute_losses
from pasearch.training.per_example import (
    PreparedNetwork,
    clipped_sum_and_counts,
    list_trainable_parameters,
)
from pasearch.training.recipe import Recipe
from pasearch.training.record_sums import SumBuffers, flatten_parameters
from pasearch.training.trainer import Training


def plain() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Sequential(nn.Linear(7, 6), nn.ReLU()),
        nn.Linear(6, 3),
    )  # fmt: skip


def frozen_in_the_middle() -> nn.Sequential:
    network = plain()
    network[3][0].requires_grad_(False)
    return network


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
    )


def recurrent() -> nn.Sequential:
    return nn.Sequential(RowSequence(), Lstm(4, 5), nn.Linear(5, 3))


def wide_and_deep() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), SkipConcat(nn.Linear(12, 4), nn.Tanh()), nn.Linear(16, 3))


NETWORKS = {
    "plain": plain, "frozen": frozen_in_the_middle, "convolutions": convolutions,
    "recurrent": recurrent,
    "stacked": lambda: nn.Sequential(
        RowSequence(), Gru(4, 5, sequence=True), Lstm(5, 3, sequence=True), Gru(3, 2),
        nn.Linear(2, 3),
    ),
    "tokens": lambda: nn.Sequential(nn.Flatten(), TokenEmbedding(3, 4), Gru(4, 3)),
    "wide and deep": wide_and_deep,
    "tempered": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 5),
                                      TemperedSigmoid(3.0, 0.5, 1.0), nn.Linear(5, 3)),
    "pooled": lambda: nn.Sequential(nn.Conv2d(1, 4, 2), nn.Sigmoid(), nn.MaxPool2d(2), nn.Flatten(),
                                    nn.Linear(4, 3)),
    "without closed form": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 2), nn.Softplus(), nn.AvgPool2d(2), nn.GELU(), nn.Flatten(),
        nn.Linear(4, 3),
    ),
    "joined within joined": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(12, 4),
        SkipConcat(nn.Linear(4, 3), SkipConcat(nn.Linear(3, 2), nn.Tanh()), nn.Linear(5, 2)),
        nn.Linear(6, 3),
    ),
}  # fmt: skip


class Add(nn.Module):
    """A layer whose backward pass returns the gradient that it is given."""

    def __init__(self, features: int):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1.0, 1.0, features))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


NETWORKS |= {
    "joined with a layer that passes its gradient on": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(12, 3), SkipConcat(Add(3)), nn.Linear(6, 3)
    ),
    "joined with nothing": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(12, 3), SkipConcat(nn.Identity()), Add(6), nn.Linear(6, 3)
    ),
}


def made(name: str) -> tuple[nn.Module, Tensor, RecordLoss]:
    torch.manual_seed(1)
    x, y = torch.randn(6, 1, 3, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 1, 0])
    return NETWORKS[name]().double(), x, RecordLoss(y)


def sums_of(network: nn.Module, x: Tensor, loss: Callable) -> list[Tensor]:
    mask = torch.tensor([True, True, False, True, True, True])
    return clipped_sum_and_counts(network, x, loss, FlatClipping(clip_norm=0.3), mask)[0]


@pytest.mark.oracle
@pytest.mark.parametrize("name", NETWORKS)
def test_chain_hooks_and_closed_form_give_the_same_sums(name: str):
    network, x, loss = made(name)
    found = sums_of(network, x, loss)
    by_autograd = sums_of(network, x, lambda outputs: compute_losses(outputs, loss.y))
    by_hooks = sums_of(Hidden(network), x, loss)
    assert len(found) == len(list_trainable_parameters(network))
    for one, two, three in zip(found, by_autograd, by_hooks, strict=True):
        assert float(one.abs().max()) > 0
        assert torch.allclose(one, two, rtol=1e-10, atol=1e-14)
        assert torch.allclose(one, three, rtol=1e-10, atol=1e-14)


@pytest.mark.unit
def test_which_networks_are_chains():
    assert all(PreparedNetwork(make())._chain is not None for make in NETWORKS.values())
    assert PreparedNetwork(Hidden(plain()))._chain is None
    shared = nn.Linear(3, 3)
    assert PreparedNetwork(nn.Sequential(shared, nn.Tanh(), shared))._chain is None
    hooked = plain()
    hooked[2].register_forward_hook(lambda *given: 2 * given[2])
    assert PreparedNetwork(hooked)._chain is None


@pytest.mark.contract
def test_a_record_alone_has_the_gradient_that_it_has_among_others():
    """Views of one tensor must not be overwritten, whatever the size of the batch."""
    for name in NETWORKS:
        network, x, loss = made(name)
        mask = torch.ones(1, dtype=torch.bool)
        alone = [torch.zeros_like(p) for p in list_trainable_parameters(network)]
        for row in range(len(x)):
            own = RecordLoss(loss.y[row : row + 1])
            found = clipped_sum_and_counts(
                network, x[row : row + 1], own, FlatClipping(clip_norm=0.3), mask
            )
            alone = [a + b for a, b in zip(alone, found[0], strict=True)]
        everyone = torch.ones(len(x), dtype=torch.bool)
        found = clipped_sum_and_counts(network, x, loss, FlatClipping(clip_norm=0.3), everyone)[0]
        for one, two in zip(alone, found, strict=True):
            assert torch.allclose(one, two, rtol=1e-9, atol=1e-13)


class Grow(nn.Module):
    """A layer that works in place on what the layer before has returned."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2.0).sum(dim=1, keepdim=True) + self.weight


@pytest.mark.contract
def test_a_layer_that_overwrites_its_input_is_refused():
    for hidden in [False, True]:
        network = nn.Sequential(nn.Linear(12, 3), Grow(), nn.Linear(3, 3)).double()
        _, x, loss = made("plain")
        with pytest.raises(UsageError, match="overwritten"):
            sums_of(Hidden(network) if hidden else network, x.flatten(1), loss)


@pytest.mark.oracle
def test_the_gradient_of_a_loss_is_autograds():
    for numbers in [False, True]:
        torch.manual_seed(3)
        outputs = torch.randn(9, 1 if numbers else 4, dtype=torch.float64, requires_grad=True)
        y = torch.rand(9, dtype=torch.float64) if numbers else torch.randint(4, (9,))
        (expected,) = torch.autograd.grad(compute_losses(outputs, y).sum(), outputs)
        assert torch.allclose(RecordLoss(y).gradient(outputs.detach()), expected, atol=1e-14)


@pytest.mark.oracle
def test_the_steps_of_an_lstm_are_those_of_autograd():
    for shape in [(1, 1, 1), (1, 6, 2), (5, 1, 3), (4, 7, 5)]:
        batch, steps, units = shape
        torch.manual_seed(4)
        layer = Lstm(3, units).double()
        gates = layer.projected(torch.randn(batch, steps, 3, dtype=torch.float64)).detach()
        expected = gates.clone().requires_grad_()
        theirs = layer.states(expected)
        weights = torch.randn_like(theirs)
        with torch.no_grad():
            ours, tape = run_lstm_forward(gates, layer.recurrent)
            one = run_lstm_backward(tape, weights)
        assert torch.allclose(ours, theirs, atol=1e-14)
        (two,) = torch.autograd.grad((theirs * weights).sum(), expected)
        assert torch.allclose(one, two, atol=1e-13)


@pytest.mark.unit
def test_buffers_are_flat_and_of_each_kind_their_own():
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2).double(), nn.Linear(2, 2))
    buffers = SumBuffers(list(network.parameters()))
    assert [each.numel() for each in buffers.flats] == [9, 8, 6]
    assert [view.shape for view in buffers.views] == [p.shape for p in network.parameters()]
    buffers.views[1].fill_(5.0)
    assert buffers.flats[0].tolist() == [0.0] * 6 + [5.0] * 3
    buffers.add_block()
    assert buffers.totals[0].tolist() == [0.0] * 6 + [5.0] * 3
    buffers.reset()
    assert not buffers.totals[0].any()


@pytest.mark.unit
def test_flattened_parameters_keep_their_values_and_follow_their_buffer():
    network = plain()
    before = copy.deepcopy(network.state_dict())
    (flat,) = flatten_parameters(list_trainable_parameters(network))
    assert all(torch.equal(before[name], p) for name, p in network.state_dict().items())
    flat.zero_()
    assert not any(p.any() for p in network.parameters())


def training(network: nn.Module) -> Training:
    from types import SimpleNamespace

    records = SimpleNamespace(
        x=torch.randn(40, 1, 3, 4), y=torch.randint(3, (40,)),
        valid=torch.ones(40, dtype=torch.bool), public=False,
    )  # fmt: skip
    recipe = Recipe(
        expected_batch_size=8, steps=3, learning_rate=0.1, noise_multiplier=1.0,
        bounding=FlatClipping(clip_norm=0.25),
    )  # fmt: skip
    keys = Keys.from_seed(1)
    streams = {name: keys.stream(name) for name in ("batch", "noise", "dropout")}
    return Training(network, records, recipe, streams)  # pyright: ignore[reportArgumentType]


@pytest.mark.unit
def test_a_network_that_is_moved_while_it_is_trained_is_refused():
    network = plain()
    running = training(network)
    assert running.step()
    network.double()
    with pytest.raises(UsageError, match="moved or replaced"):
        running.step()


@pytest.mark.unit
def test_a_finished_network_shares_no_buffer():
    network = plain()
    running = training(network)
    running.step()
    running.finish()
    sizes = {p.untyped_storage().nbytes() // 4 - p.numel() for p in network.parameters()}
    assert sizes == {0}
    with pytest.raises(UsageError, match="moved or replaced"):
        running.step()


@pytest.mark.unit
def test_the_largest_product_of_a_record():
    for network, shape, operations in [
        (nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 30)), (12,), 2 * 7 * 30),
        (nn.Linear(4, 5), (3, 4), 2 * 20 * 3),  # at three places of a record
        (
            nn.Sequential(nn.Conv2d(2, 6, 3, groups=2), nn.Flatten(), nn.Linear(54, 2)),
            (2, 5, 5),
            2 * (6 * 9) * 9,
        ),
        (nn.Sequential(Lstm(4, 5), nn.Linear(5, 3)), (3, 4), 2 * (4 + 5) * 4 * 5),
        (nn.Sequential(nn.LayerNorm(4)), (4,), 0),
    ]:
        assert (
            PreparedNetwork(network).count_product_operations(torch.rand(3, *shape)) == operations
        )


@pytest.mark.unit
@pytest.mark.parametrize(
    ("batch", "shared", "moved", "used"),
    [(8, 2 * 12 * 7 * 32, 12 * 32, 1), (64, 2 * 12 * 7 * 32, 12 * 99, 2), (64, 1e9, 12 * 32, 2)],
)
def test_a_small_step_has_one_thread(
    batch: int, shared: float, moved: int, used: int, monkeypatch: pytest.MonkeyPatch
):
    # The largest product of `plain` has 2 * 12 * 7 operations.
    monkeypatch.setattr(training_loop, "MIN_SHARED_OPERATIONS", shared)
    monkeypatch.setattr(training_loop, "MIN_SHARED_BATCH_NUMBERS", moved)
    seen = []
    honest = training_loop.compute_noisy_sum
    monkeypatch.setattr(
        training_loop, "compute_noisy_sum",
        lambda *given, **named: seen.append(torch.get_num_threads()) or honest(*given, **named),
    )  # fmt: skip
    data = Records(
        x=torch.rand(100, 3, 4), y=torch.zeros(100, dtype=torch.int64),
        valid=torch.ones(100, dtype=torch.bool), public=False,
    )  # fmt: skip
    recipe = Recipe(expected_batch_size=batch, steps=1, learning_rate=0.1, noise_multiplier=1.0)
    streams = {name: Keys.from_seed(1).stream(name) for name in ("batch", "noise", "dropout")}
    with use_threads(2):
        Training(plain(), data, recipe, streams).step()
        assert torch.get_num_threads() == 2, "as it was"
    assert seen == [used]


@pytest.fixture
def scale():
    with extended("scale_layer") as module:
        yield module
    RULES.pop(module.Scale)


@pytest.mark.oracle
@pytest.mark.parametrize("views", [1, 3])
def test_a_rule_from_outside_gives_the_sums_of_the_general_rule(scale: ModuleType, views: int):
    torch.manual_seed(5)
    network = nn.Sequential(nn.Linear(4, 6), scale.Scale(6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3
    mask = torch.ones(12 // views, dtype=torch.bool)
    found = []
    for rule in (RULES[scale.Scale], GENERAL_RULE):
        RULES[scale.Scale] = rule
        sums = clipped_sum_and_counts(
            network, x, RecordLoss(y), FlatClipping(clip_norm=0.1), mask, views=views
        )[0]
        found.append([each.clone() for each in sums])
    assert all(torch.allclose(*pair, rtol=1e-10) for pair in zip(*found, strict=True))


@pytest.mark.contract
@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e9])
def test_a_record_alone_is_within_the_bound_by_a_rule_from_outside(scale: ModuleType, size: float):
    network, mask = nn.Sequential(scale.Scale(4), nn.Linear(4, 3)), torch.ones(1, dtype=torch.bool)
    x = size * torch.linspace(-1.0, 2.0, 4)[None]
    sums = clipped_sum_and_counts(
        network, x, RecordLoss(torch.zeros(1, dtype=torch.int64)), FlatClipping(clip_norm=0.1), mask
    )[0]
    norm = sum(float(each.double().square().sum()) for each in sums) ** 0.5
    assert norm <= 0.1
