"""Chains of linear layers: which networks are one, and that their sums are those by hooks."""

from __future__ import annotations

import math

import pytest
import torch
from doubles import Hidden
from torch import Tensor, nn

from pasearch.runs.keys import Stream
from pasearch.spaces.modules import KeyedDropout, SkipConcat, TemperedSigmoid
from pasearch.training.clipping import AutoSClipping, ClippingMethod, FlatClipping
from pasearch.training.dense import check_buffer_parts
from pasearch.training.losses import RecordLoss
from pasearch.training.one_step import reseed_dropout
from pasearch.training.per_example import PreparedNetwork, clipped_sum_and_counts

NETWORKS = {
    "linear": lambda: nn.Sequential(nn.Linear(12, 3)),
    "flattened": lambda: nn.Sequential(nn.Flatten(), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(),
                                       nn.Linear(5, 3)),
    "wide": lambda: nn.Sequential(nn.Linear(12, 300), nn.Tanh(), nn.Linear(300, 257), nn.ReLU(),
                                  nn.Linear(257, 3)),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(12, 6), nn.Tanh()), nn.Linear(6, 3)),
    "without biases": lambda: nn.Sequential(nn.Linear(12, 6, bias=False), nn.Tanh(),
                                            nn.Linear(6, 3, bias=False)),
    "no activation": lambda: nn.Sequential(nn.Linear(12, 6), nn.Linear(6, 3), nn.Tanh()),
    "sigmoid": lambda: nn.Sequential(nn.Linear(12, 6), nn.Sigmoid(), nn.Linear(6, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(12, 6), nn.Sigmoid(), KeyedDropout(0.3),
                                     nn.Linear(6, 9), KeyedDropout(0.5), nn.Linear(9, 3)),
    "dropout of records": lambda: nn.Sequential(nn.Flatten(), KeyedDropout(0.2), nn.Linear(12, 3)),
    "frozen": lambda: nn.Sequential(
        KeyedDropout(0.2), nn.Linear(12, 5).requires_grad_(False), KeyedDropout(0.5),
        nn.Linear(5, 6), nn.Tanh(),
        nn.Linear(6, 9).requires_grad_(False), nn.Sigmoid(), nn.Linear(9, 4, bias=False),
        nn.Linear(4, 3).requires_grad_(False),
    ),
    "tempered": lambda: nn.Sequential(nn.Linear(12, 6), TemperedSigmoid(), nn.Linear(6, 3)),
    "joined": lambda: nn.Sequential(
        nn.Flatten(), SkipConcat(nn.Linear(12, 6), nn.Tanh(), KeyedDropout(0.3)), nn.Linear(18, 5),
        nn.ReLU(), nn.Linear(5, 3),
    ),
    "joined without an activation": lambda: nn.Sequential(SkipConcat(nn.Linear(12, 6)),
                                                          nn.Linear(18, 3, bias=False)),
    "joined and frozen": lambda: nn.Sequential(
        SkipConcat(nn.Linear(12, 6).requires_grad_(False), nn.Sigmoid()), nn.Linear(18, 3)
    ),
}  # fmt: skip


def batch(count: int = 40) -> tuple[Tensor, RecordLoss, Tensor]:
    generator = torch.Generator().manual_seed(4)
    x = 3 * torch.randn(count, 12, generator=generator)
    y = torch.randint(3, (count,), generator=generator)
    return x, RecordLoss(y), torch.rand(count, generator=generator) > 0.2


def both(
    network: nn.Module, bounding: ClippingMethod | None, x: Tensor, loss: RecordLoss, mask: Tensor,
    weights: Tensor | None = None,
) -> list[tuple[list[Tensor], Tensor]]:  # fmt: skip
    found = []
    for each in (network, Hidden(network)):
        reseed_dropout(PreparedNetwork(each), Stream(bytes(32)), 5)
        found.append(clipped_sum_and_counts(each, x, loss, bounding, mask, weights=weights))
    return found


@pytest.mark.unit
def test_the_sums_of_a_chain_are_those_by_hooks():
    for bounding in [FlatClipping(clip_norm=0.7), AutoSClipping(), None]:
        for name in NETWORKS:
            network, (x, loss, mask) = NETWORKS[name](), batch()
            prepared = PreparedNetwork(network)
            assert prepared.dense is not None
            weights = torch.linspace(-0.5, 1.5, len(x))
            (chain, counts), (hooked, others) = both(network, bounding, x, loss, mask, weights)
            assert torch.equal(counts, others)
            for first, second in zip(chain, hooked, strict=True):
                torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


@pytest.mark.unit
def test_a_record_that_is_not_finite_adds_exactly_what_a_null_one_does():
    for value in [math.nan, math.inf, 1e30]:
        for bounding in [FlatClipping(clip_norm=0.7), None]:
            network, (x, loss, mask) = NETWORKS["wide"](), batch()
            mask[:] = True
            absent = mask.clone()
            absent[0] = False
            null, counts = clipped_sum_and_counts(network, x, loss, bounding, absent)
            null = [each.clone() for each in null]
            x[0, 5] = value
            found = clipped_sum_and_counts(network, x, loss, bounding, mask)
            assert all(
                torch.equal(first, second) for first, second in zip(found[0], null, strict=True)
            )
            assert float(found[1]) == (float(counts) - 0.5 if bounding is not None else 0.0)


def with_a_hook() -> nn.Sequential:
    network = NETWORKS["nested"]()
    network[1].register_forward_hook(lambda *given: 2 * given[2])
    return network


def with_a_hook_on_a_flattening() -> nn.Sequential:
    network = NETWORKS["flattened"]()
    network[0].register_forward_hook(lambda *given: 2 * given[2])
    return network


def with_a_hook_on(*places: int) -> nn.Sequential:
    """A joined layer, or one within, whose output a hook changes."""
    module = network = NETWORKS["joined without an activation"]()
    for place in places:
        module = module[place]  # pyright: ignore[reportAssignmentType]
    module.register_forward_hook(lambda *given: 2 * given[2])
    return network


def of_one_layer_twice() -> nn.Sequential:
    layer = nn.Linear(12, 12)
    return nn.Sequential(SkipConcat(layer), nn.Linear(24, 12), layer)


def half_frozen() -> nn.Sequential:
    network = NETWORKS["nested"]()
    network[1].weight.requires_grad_(False)
    return network


@pytest.mark.unit
def test_what_is_no_such_chain_takes_the_general_path():
    for network in [
        with_a_hook(),
        with_a_hook_on_a_flattening(),
        half_frozen(),
        nn.Sequential(nn.Tanh(), nn.Linear(12, 3)),
        nn.Sequential(nn.Linear(12, 3), nn.Tanh(), nn.Tanh(), nn.Linear(3, 3)),
        nn.Sequential(nn.Linear(12, 3), KeyedDropout(0.5), nn.Tanh(), nn.Linear(3, 3)),
        nn.Sequential(nn.Linear(12, 3), KeyedDropout(0.5), KeyedDropout(0.5)),
        nn.Sequential(KeyedDropout(0.5), KeyedDropout(0.5), nn.Linear(12, 3)),
        nn.Sequential(nn.Linear(12, 3).double(), nn.Linear(3, 3)),
        with_a_hook_on(0),
        with_a_hook_on(0, 0),
        of_one_layer_twice(),
        nn.Sequential(SkipConcat(nn.Linear(12, 3))),
        nn.Sequential(SkipConcat(nn.Linear(12, 3)), nn.Tanh(), nn.Linear(15, 3)),
        nn.Sequential(SkipConcat(nn.Linear(12, 3)), KeyedDropout(0.5), nn.Linear(15, 3)),
        nn.Sequential(SkipConcat(nn.Linear(12, 3)), nn.Flatten(), nn.Linear(15, 3)),
        nn.Sequential(SkipConcat(nn.Linear(12, 3), nn.Linear(3, 4)), nn.Linear(16, 3)),
        nn.Sequential(SkipConcat(nn.Tanh(), nn.Linear(12, 3)), nn.Linear(15, 3)),
        nn.Sequential(SkipConcat(), nn.Linear(12, 3)),
        nn.Sequential(nn.Linear(12, 3), SkipConcat(nn.Linear(3, 3)), nn.Linear(6, 3)),
        nn.Sequential(KeyedDropout(0.5), SkipConcat(nn.Linear(12, 3)), nn.Linear(15, 3)),
        nn.Sequential(SkipConcat(SkipConcat(nn.Linear(12, 3)), nn.Linear(15, 3)), nn.Linear(15, 3)),
    ]:
        assert PreparedNetwork(network).dense is None


@pytest.mark.unit
def test_rows_of_several_inputs_take_the_general_path():
    """A linear layer at three places of a record is no linear layer on all of it."""
    dense, flat = (
        PreparedNetwork(NETWORKS["linear"]()).dense,
        PreparedNetwork(NETWORKS["flattened"]()).dense,
    )
    assert dense is not None
    assert flat is not None
    rows, images = torch.zeros(2, 12), torch.zeros(2, 3, 4)
    assert dense.takes(rows)
    assert not dense.takes(images)
    assert flat.takes(rows)
    assert flat.takes(images)


def plain(layer: nn.Module, name: str) -> nn.Module:
    """A layer one of whose parameters is a tensor that nothing trains."""
    value = getattr(layer, name).detach().clone()
    delattr(layer, name)
    setattr(layer, name, value)
    return layer


def with_more(layer: nn.Module) -> nn.Module:
    layer.register_parameter("more", nn.Parameter(torch.zeros(3)))
    return layer


STRANGE = {
    "a bias that is none": lambda layer: plain(layer, "bias"),
    "weights that are none": lambda layer: plain(layer, "weight"),
    "another parameter": with_more,
}


@pytest.mark.unit
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", STRANGE)
def test_a_layer_whose_parameters_are_others_takes_the_general_path(name: str, frozen: bool):
    """A layer's weights are trained or frozen together: one that is half so has no place there."""

    def taken(strange: bool, *modules: nn.Module) -> bool:
        layer = modules[0]
        modules = (STRANGE[name](layer), *modules[1:]) if strange else modules
        if frozen:
            layer.requires_grad_(False)
        chain = nn.Sequential(nn.Linear(12, 3), *modules)
        return PreparedNetwork(chain).dense is not None

    for strange in (False, True):
        assert taken(strange, nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)) is not strange


@pytest.mark.unit
def test_dropout_in_two_places_takes_the_general_path():
    """Each call has a mask of its own."""
    twice = KeyedDropout(0.5)
    for second in (twice, KeyedDropout(0.5)):
        network = nn.Sequential(nn.Linear(12, 8), twice, nn.Linear(8, 8), second, nn.Linear(8, 3))
        assert (PreparedNetwork(network).dense is None) == (second is twice)


@pytest.mark.unit
def test_parts_of_a_buffer_that_meet_or_leave_something_out_are_an_error():
    check_buffer_parts([(4, 2), (0, 4)], 6)
    for parts, count in (
        ([(0, 4), (3, 3)], 6),
        ([(0, 4), (5, 1)], 6),
        ([(0, 4)], 6),
        ([(0, 7)], 6),
    ):
        with pytest.raises(ValueError, match="expected"):
            check_buffer_parts(parts, count)
