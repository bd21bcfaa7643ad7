"""Architectures: the papers' parameter counts, shapes, JSON, and a keyed start."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pasearch.errors import UsageError
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.layers import (
    ACTIVATIONS,
    LAYERS,
    Conv,
    Dense,
    Gru,
    Lstm,
    Norm,
    Pool,
    check_activation,
    make_activation,
)
from pasearch.spaces.parsing import make_space


def dense(*units: int, frozen: Sequence[int] = ()) -> Architecture:
    """A stack of dense layers, some of them (counted from 0) frozen."""
    return Architecture(
        layers=tuple(Dense(units=u, trainable=i not in frozen) for i, u in enumerate(units))
    )


def table_xii(blocks: int, filters: int, units: int) -> Architecture:
    """The network that the space `cnn-paper` makes of these genes."""
    made = make_space({"family": "cnn", "choices": {"blocks": [blocks], "filters": [filters],
                                               "units": [units], "dropout": [0.3]}})  # fmt: skip
    return made.candidate(made.default_genotype()).architecture


LENET = Architecture(
    layers=(
        Conv(filters=6, kernel=5, padding="same"),
        Pool(average=True),
        Conv(filters=16, kernel=5),
        Pool(average=True),
        Dense(units=120),
        Dense(units=84),
    )
)
RWT_CNN = Architecture(
    layers=(
        Conv(filters=32, kernel=5, trainable=False),
        Pool(),
        Conv(filters=64, kernel=3, trainable=False),
        Pool(),
        Dense(units=64),
    )
)
GREY_28, COLOUR_32, GREY_32 = (28, 28), (3, 32, 32), (32, 32)

# (where the paper says it, architecture, shape of a record, classes, all, trainable)
COUNTS = [
    ("Table I, MNIST FCN, privacy-aware", dense(128), (64,), 10, 9_610, 9_610),
    ("Table I, MNIST FCN, standard", dense(512, 64), (64,), 10, 66_762, 66_762),
    ("Table I, Fashion-MNIST FCN, standard", dense(512), (64,), 10, 38_410, 38_410),
    ("Table I, SVHN FCN, privacy-aware", dense(128), (300,), 10, 39_818, 39_818),
    ("Table I, SVHN FCN, standard", dense(512, 128), (300,), 10, 221_066, 221_066),
    ("Table IX, PAW at .34", dense(1024, frozen=[0]), (64,), 10, 76_810, 10_250),
    ("Table IX, STW", dense(2048, 256, 64, frozen=[2]), (64,), 10, 674_762, 658_314),
    ("Table XXI, Purchase-100 FCN", dense(128), (600,), 100, 89_828, 89_828),
    ("Table XXII, Purchase-100 FCN", dense(1024, 256), (600,), 100, 903_524, 903_524),
    ("Table XXIII, CIFAR-10 FCN", dense(64), (300,), 10, 19_914, 19_914),
    ("Table XXIV, CIFAR-10 FCN", dense(2048), (300,), 10, 636_938, 636_938),
    (
        "Table XXIX, MNIST FCN, random weights",
        dense(1024, 512, 64, frozen=[0, 1]), (784,), 10, 1_362_122, 33_482,
    ),
    ("Table VII, the simple model", dense(512, 64), (784,), 10, 435_402, 435_402),
    ("Table XIX, CIFAR-10 CNN", table_xii(3, 16, 512), COLOUR_32, 10, 246_554, 246_554),
    ("Table XX, CIFAR-10 CNN", table_xii(2, 48, 512), COLOUR_32, 10, 1_820_330, 1_820_330),
    ("Table I, SVHN CNN, standard", table_xii(2, 48, 512), GREY_32, 10, 1_817_930, 1_817_930),
    ("Table I, SVHN CNN, privacy-aware", table_xii(2, 16, 512), GREY_32, 10, 600_522, 600_522),
    ("Table I, MNIST CNN, standard", table_xii(2, 48, 64), GREY_28, 10, 197_130, 197_130),
    ("Table XXVI, MNIST CNN", table_xii(2, 16, 64), GREY_28, 10, 56_970, 56_970),
    ("Table XXV, LeNet-5", LENET, GREY_28, 10, 61_706, 61_706),
    # The paper prints 19,328 as trainable: that is the two convolutions, the frozen part.
    ("Table XXX, MNIST CNN, random weights", RWT_CNN, GREY_28, 10, 122_442, 122_442 - 19_328),
]  # fmt: skip


@pytest.mark.oracle
def test_the_papers_parameter_counts():
    for architecture, shape, classes, total, trainable in [row[1:] for row in COUNTS]:
        assert architecture.parameters(shape, classes) == (total, trainable)
        assert built_counts(architecture.build(shape, classes)) == (total, trainable)


@pytest.mark.unit
def test_the_tables_own_layers():
    # Table XIX, layer by layer: shapes (channels first here) and parameters.
    layers = table_xii(3, 16, 512).layers
    shapes = Architecture(layers=layers).shapes(COLOUR_32)
    assert shapes == [
        (3, 32, 32),
        (3, 16, 16),
        (16, 12, 12),
        (16, 6, 6),
        (32, 6, 6),
        (32, 3, 3),
        (48, 3, 3),
        (512,),
    ]
    counts = [layer.parameters(shape) for layer, shape in zip(layers, shapes[:-1], strict=True)]
    assert counts == [0, 1216, 0, 4640, 0, 13872, 221696]


def built_counts(network: nn.Module) -> tuple[int, int]:
    parameters = list(network.parameters())
    return (
        sum(p.numel() for p in parameters),
        sum(p.numel() for p in parameters if p.requires_grad),
    )


activations = st.sampled_from((*ACTIVATIONS, "tempered_sigmoid:1.58,3,0.71"))
flags = st.booleans()
denses = st.builds(
    Dense,
    units=st.integers(1, 9),
    activation=activations,
    trainable=flags,
    dropout=st.sampled_from((0.0, 0.2)),
    joined=flags,
)
convs = st.builds(
    Conv,
    filters=st.integers(1, 4),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.one_of(st.just("valid"), st.integers(0, 2)),
    dilation=st.integers(1, 2),
    activation=activations,
    trainable=flags,
    weight_standardised=flags,
)
same_convs = st.builds(
    Conv, filters=st.integers(1, 4), kernel=st.sampled_from((1, 3, 5)), padding=st.just("same")
)
strides = st.none() | st.integers(1, 3)
pools = st.builds(Pool, size=st.integers(1, 3), average=flags, stride=strides)
norms = st.builds(Norm, groups=st.integers(1, 2), activation=activations, trainable=flags)
memories = st.one_of(
    st.builds(kind, units=st.integers(1, 3), biases=st.integers(1, 2), trainable=flags,
              sequence=flags)
    for kind in (Lstm, Gru)
)  # fmt: skip
architectures = st.builds(
    lambda *parts: Architecture(layers=tuple(layer for part in parts for layer in part)),
    st.lists(st.one_of(convs, same_convs, pools, norms), max_size=3),
    st.lists(memories, max_size=1),
    st.lists(st.one_of(denses, norms), max_size=2),
)
shapes = st.sampled_from([(9, 8), (1, 9, 9), (2, 8, 11)])


@pytest.mark.property
@settings(max_examples=150)
@given(architecture=architectures, shape=shapes)
def test_arithmetic_is_what_torch_builds(architecture: Architecture, shape: tuple[int, ...]):
    try:
        told = architecture.shapes(shape)
    except UsageError as error:
        if not any(
            words in str(error)
            for words in (
                "does not fit",
                "do not divide",
                "one number each",
                "more than one weight",
            )
        ):
            raise
        return
    generator = np.random.default_rng(0)
    network = architecture.build(shape, 3, generator)
    assert built_counts(network) == architecture.parameters(shape, 3)
    assert network(torch.zeros(2, *shape)).shape == (2, 3)
    hidden = Architecture(layers=architecture.layers).build(shape, 3, generator)
    flattened = next(p for p in reversed(list(hidden.modules())) if isinstance(p, nn.Linear))
    assert flattened.in_features == math.prod(told[-1])


@pytest.mark.unit
def test_groups_are_counted():
    grouped = Architecture(layers=(Conv(filters=4, kernel=3, groups=2),))
    assert grouped.parameters((2, 5, 5), 3) == built_counts(grouped.build((2, 5, 5), 3))
    with pytest.raises(UsageError, match="3 channels and 4 filters do not divide into 2 groups"):
        grouped.parameters((3, 5, 5), 3)


@pytest.mark.property
@given(architecture=architectures)
def test_json_round_trip(architecture: Architecture):
    again = Architecture.from_json(architecture.to_json())
    assert again == architecture
    assert hash(again) == hash(architecture)
    assert again.describe() == architecture.describe()


@pytest.mark.unit
def test_describes_itself():
    layers = (Conv(filters=4), Pool(average=True), Pool(), Dense(units=8, trainable=False))
    assert Architecture(layers=layers).describe() == (
        "conv 4 of 3x3 relu - average pool 2 - max pool 2 - dense 8 tanh (frozen)"
    )
    assert Architecture(layers=()).describe() == "linear"
    assert Architecture(layers=()).parameters((3, 2), 5) == (35, 35)


@pytest.mark.unit
def test_a_layer_refuses():
    for kind, values, words in [
        (Dense, {"units": 0}, "units is 0"),
        (Dense, {"units": -3}, "units is -3"),
        (Dense, {"units": 2.0}, "units is 2.0"),
        (Dense, {"units": True}, "units is True"),
        (Dense, {"units": "8"}, "units is '8'"),
        (Dense, {"units": 8, "activation": "gelu"}, "'gelu' is not known"),
        (Dense, {"units": 8, "activation": None}, "None is not known"),
        (Dense, {"units": 8, "dropout": 1.0}, "dropout is 1.0"),
        (Dense, {"units": 8, "dropout": -0.1}, "dropout is -0.1"),
        (Dense, {"units": 8, "dropout": math.nan}, "dropout is nan"),
        (Dense, {"units": 8, "dropout": "a"}, "dropout is 'a'"),
        (Dense, {"units": 8, "dropout": True}, "dropout is True"),
        (Dense, {"units": 8, "joined": 1}, "joined is 1"),
        (Dense, {"units": 8, "trainable": "no"}, "trainable is 'no'"),
        (Conv, {"filters": 0}, "filters is 0"),
        (Conv, {"filters": 4, "kernel": 0}, "kernel is 0"),
        (Conv, {"filters": 4, "stride": 0}, "stride is 0"),
        (Conv, {"filters": 4, "dilation": 0}, "dilation is 0"),
        (Conv, {"filters": 4, "groups": 0}, "groups is 0"),
        (Conv, {"filters": 4, "padding": "full"}, "padding is 'full'"),
        (Conv, {"filters": 4, "padding": -1}, "padding is -1"),
        (Conv, {"filters": 4, "padding": True}, "padding is True"),
        (Conv, {"filters": 4, "padding": "same", "stride": 2}, "requires stride 1"),
        (Conv, {"filters": 4, "trainable": 0}, "trainable is 0"),
        (Pool, {"size": 0}, "size is 0"),
        (Pool, {"average": "max"}, "average is 'max'"),
    ]:
        with pytest.raises(UsageError, match=words) as refusal:
            kind(**values)
        assert "expected" in str(refusal.value) or "requires" in str(refusal.value)


@pytest.mark.unit
def test_json_of_bad_form_is_refused():
    for layers, words in [
        ("dense", "is a list of layers"),
        (None, "is a list of layers"),
        (["dense"], "'dense' is not known: expected one of dense, conv, pool"),
        ([{"kind": "rnn"}], "expected one of dense, conv, pool, norm, embedding, lstm, gru"),
        ([{"kind": ["dense"]}], "expected one of dense, conv, pool"),
        ([{"units": 4}], "expected one of dense, conv, pool"),
        ([{"kind": "dense", "units": 4, "width": 4}], "has no setting width"),
        ([{"kind": "dense"}], "'dense' lacks units"),
        ([{"kind": "conv", "kernel": 3}], "'conv' lacks filters"),
    ]:
        with pytest.raises(UsageError, match=words):
            Architecture.from_json(layers)


@pytest.mark.unit
def test_layers_are_a_tuple_of_layers():
    for layers in [[Dense(units=3)], ("dense",), Dense(units=3)]:
        with pytest.raises(UsageError, match="expected a tuple of Dense"):
            Architecture(layers=layers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("architecture", "shape", "words"),
    [
        (Architecture(layers=(Conv(filters=4),)), (64,), "needs images"),
        (Architecture(layers=(Pool(),)), (64,), "needs images"),
        (Architecture(layers=(Conv(filters=4),)), (1, 1, 8, 8), "needs images"),
        (Architecture(layers=(Dense(units=4), Conv(filters=4))), (8, 8), "needs images"),
        (Architecture(layers=(Conv(filters=4, kernel=9),)), (8, 8), "9 pixels does not fit"),
        (Architecture(layers=(Conv(filters=4, dilation=4),)), (8, 8), "9 pixels does not fit"),
        (Architecture(layers=(Pool(size=9),)), (8, 8), "does not fit into a side of 8"),
    ],
)
@pytest.mark.unit
def test_records_that_do_not_fit_are_refused(
    architecture: Architecture, shape: tuple[int, ...], words: str
):
    for call in (architecture.shapes, lambda s: architecture.parameters(s, 10)):
        with pytest.raises(UsageError, match=words) as refusal:
            call(shape)
        assert "Use " in str(refusal.value)


@pytest.mark.unit
def test_an_unknown_activation_is_refused():
    for name in [
        "",
        "Relu",
        "relu:",
        "tanh:1",
        "tempered_sigmoid:",
        "tempered_sigmoid:1,2",
        "tempered_sigmoid:1,2,3,4",
        "tempered_sigmoid:1,a,2",
        "tempered_sigmoid:1,nan,2",
        "tempered_sigmoid:1,inf,2",
        3,
        None,
        ["relu"],
    ]:
        with pytest.raises(UsageError, match="is not known: expected one of linear, relu, sigmoid"):
            check_activation(name)


@pytest.mark.unit
def test_activations_are_what_their_names_say():
    x = torch.linspace(-4, 4, 17)
    assert make_activation("linear")(x).equal(x)
    assert make_activation("relu")(x).equal(x.clamp(min=0))
    assert make_activation("sigmoid")(x).equal(x.sigmoid())
    assert make_activation("tanh")(x).equal(x.tanh())
    tempered = make_activation("tempered_sigmoid:1.58,3,0.71")(x)
    torch.testing.assert_close(tempered, 1.58 / (1 + torch.exp(-3 * x)) - 0.71)
    for name in ACTIVATIONS:
        check_activation(name)


NETWORKS = [row[1:4] for row in COUNTS if row[4] < 100_000]


@pytest.mark.unit
def test_a_start_is_keyed_and_leaves_torch_s_generator_alone():
    for architecture, shape, classes in NETWORKS:
        before = torch.get_rng_state()
        first = architecture.build(shape, classes, np.random.default_rng(1)).state_dict()
        assert torch.get_rng_state().equal(before)
        torch.manual_seed(5)
        again = architecture.build(shape, classes, np.random.default_rng(1)).state_dict()
        other = architecture.build(shape, classes, np.random.default_rng(2)).state_dict()
        architecture.build(shape, classes)
        assert first.keys() == again.keys()
        assert all(first[name].equal(again[name]) for name in first)
        assert all(not first[name].equal(other[name]) for name in first if name.endswith("weight"))
        assert all(not bool(value.any()) for name, value in first.items() if name.endswith("bias"))


@pytest.mark.statistical
def test_weights_start_with_the_gain_of_their_activation():
    for activation, gain in [("relu", 2.0**0.5), ("tanh", 1.0), ("sigmoid", 4.0), ("linear", 1.0)]:
        layers = (Conv(filters=64, kernel=5, activation=activation), Pool(size=4),
                  Dense(units=256, activation=activation))  # fmt: skip
        network = Architecture(layers=layers).build((3, 12, 12), 2, np.random.default_rng(0))
        for module in (
            m for m in network if isinstance(m, (nn.Conv2d, nn.Linear)) and m.bias is not None
        ):
            scale = gain if module.weight.shape[0] != 2 else 1.0
            inputs = module.weight[0].numel()
            z = module.weight.detach().flatten().double() * inputs**0.5 / scale
            error = (2.0 / len(z)) ** 0.5
            # Five errors away from 1 fails, and 2/3 and 3/2 of the scale would be many more.
            assert abs(float(z.square().mean()) - 1.0) < 5 * error
            if len(z) > 1000:
                assert abs((2 / 3) ** 2 - 1.0) > 5 * error


@pytest.mark.oracle
def test_without_layers_it_is_a_linear_model():
    for shape in [(7,), (3, 4), (2, 3, 4)]:
        for outputs in [1, 3]:
            network = Architecture(layers=()).build(shape, outputs, np.random.default_rng(1))
            (linear,) = (m for m in network.modules() if isinstance(m, nn.Linear))
            x = torch.rand(5, *shape)
            assert torch.allclose(
                network(x), x.flatten(1) @ linear.weight.T + linear.bias, atol=1e-6
            )
            assert built_counts(network) == ((math.prod(shape) + 1) * outputs,) * 2
            assert Architecture.from_json([]) == Architecture(layers=())


@pytest.mark.unit
def test_frozen_layers_stay_as_they_are_and_the_output_layer_never_is_frozen():
    network = dense(8, 4, frozen=[0, 1]).build((5,), 3, np.random.default_rng(0))
    flags = [parameter.requires_grad for parameter in network.parameters()]
    assert flags == [False, False, False, False, True, True]


@pytest.mark.unit
def test_rate_factor_falls_with_depth_and_width():
    assert dense(128).learning_rate_factor() == 1.0
    assert dense(2048).learning_rate_factor() == pytest.approx(0.5)
    assert dense(128, 64).learning_rate_factor() < dense(128).learning_rate_factor()
    assert dense(128, 64, 32).learning_rate_factor() < dense(128, 64).learning_rate_factor()
    assert Architecture(layers=()).learning_rate_factor() == 1.0
    sigmoid = Architecture(layers=(Dense(units=128, activation="sigmoid"),))
    assert sigmoid.learning_rate_factor() == 2.0


def make_linear(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(72, outputs))


@pytest.mark.contract
def test_every_layer_names_itself():
    for kind in LAYERS.values():
        given = {
            "conv": {"filters": 3},
            "module": {"maker": make_linear, "outputs": 4},
            **{each: {"units": 3} for each in ("dense", "lstm", "gru")},
        }
        layer = kind(**given.get(kind.kind, {}))
        shape = (6,) if kind.kind == "embedding" else (2, 6, 6)
        modules = nn.Sequential(*layer.module(shape))
        assert modules(torch.zeros(1, *shape)).shape[1:] == layer.output_shape(shape)
        assert sum(p.numel() for p in modules.parameters()) == layer.parameters(shape)
        assert Architecture.from_json(Architecture(layers=(layer,)).to_json()).layers == (layer,)
