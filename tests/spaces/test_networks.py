"""The papers' own networks in examples/architectures, recurrent and normalised layers, freezing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from pasearch.errors import UsageError
from pasearch.spaces import modules
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import read_candidate
from pasearch.spaces.layers import ACTIVATIONS, Conv, Dense, Embedding, Gru, Lstm, Norm, Pool
from pasearch.training.per_example import validate

FOLDER = Path(__file__).parents[2] / "examples" / "architectures"


def built_counts(network: nn.Module) -> tuple[int, int]:
    parameters = list(network.parameters())
    return (
        sum(p.numel() for p in parameters),
        sum(p.numel() for p in parameters if p.requires_grad),
    )


# (file, a record, outputs, parameters, front end, the line that describes it)
FILES = [
    (
        "papernot-mnist", (28, 28), 10, 26_010, "raw",
        "conv 16 of 8x8 tanh - max pool 2 stride 1 - conv 32 of 4x4 tanh - max pool 2 stride 1 - "
        "dense 32 tanh",
    ),
    (
        "tramer-cifar", (3, 32, 32), 10, 550_570, "raw",
        "conv 32 of 3x3 tanh - conv 32 of 3x3 tanh - max pool 2 - conv 64 of 3x3 tanh - "
        "conv 64 of 3x3 tanh - max pool 2 - conv 128 of 3x3 tanh - conv 128 of 3x3 tanh - "
        "max pool 2 - dense 128 tanh",
    ),
    (
        "lin-cnn", (28, 28), 10, 832 + 51_264 + 3136 * 1024 + 1024 + 10_250, "raw",
        "conv 32 of 5x5 relu - max pool 2 - conv 64 of 5x5 relu - max pool 2 - dense 1024 relu",
    ),
    ("centred-linear", (211,), 2, 424, "centred", "linear"),
    ("whitened-linear", (1500,), 10, 15_010, "whitened_centred:1", "linear"),
    ("lin-lstm", (28, 28), 10, 4 * 128 * (28 + 128 + 1) + 1290, "raw", "lstm 128"),
    ("yu-mnist", (60,), 10, 61_000 + 10_010, "pca:60", "dense 1000 relu"),
    (
        "yu-cancer", (9,), 2, 100 + 220 + 210 + 22, "raw",
        "dense 10 relu - dense 20 relu - dense 10 relu",
    ),
    ("sms-rnn-complex", (150,), 2, 496_978, "raw",
     "embedding 1000 x 50 - lstm 256 - dense 512 relu"),
    ("sms-rnn-simple", (150,), 2, 50_994, "raw", "embedding 1000 x 50 - lstm 4 - dense 16 relu"),
]  # fmt: skip


@pytest.mark.oracle
def test_the_papers_networks():
    for name, shape, outputs, total, front_end, words in FILES:
        file = FOLDER / f"{name}.toml"
        architecture = read_candidate(file).architecture
        assert architecture.describe() == words
        assert architecture.parameters(shape, outputs) == (total, total)
        network = architecture.build(shape, outputs, np.random.default_rng(0))
        assert built_counts(network) == (total, total)
        assert validate(network) == []
        found = network(torch.rand(2, *shape))
        assert found.shape == (2, outputs)
        assert bool(torch.isfinite(found).all())
        assert f"{total:,}" in file.read_text(encoding="utf-8").replace("\n# ", " ")
        candidate = read_candidate(file)
        assert (candidate.architecture, candidate.front_end.text) == (architecture, front_end)


@pytest.mark.contract
def test_every_file_is_tested():
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(row[0] for row in FILES)


EMBEDDED = (150, 50)  # SMS Spam: 150 words, each as 50 numbers; its embedding has 50,000 parameters


@pytest.mark.oracle
def test_the_papers_recurrent_networks_behind_their_embedding():
    for where, layers, frozen, total, trainable in [
        ("Table XXVII", (Lstm(units=256), Dense(units=512)), 0, 446_978, 446_978),
        ("Table XXVIII", (Lstm(units=4), Dense(units=16)), 0, 994, 994),
        ("Table XXXI", (Lstm(units=256), Dense(units=512)), 1, 446_978, 132_610),
    ]:
        architecture = Architecture(layers=layers).freeze_first(frozen)
        assert architecture.parameters(EMBEDDED, 2) == (total, trainable), where
        assert built_counts(architecture.build(EMBEDDED, 2)) == (total, trainable)


@pytest.mark.oracle
def test_the_papers_recurrent_networks_with_their_embedding():
    for where, layers, frozen, total, trainable in [
        ("Table XXVII", (Lstm(units=256), Dense(units=512)), 0, 496_978, 496_978),
        ("Table XXVIII", (Lstm(units=4), Dense(units=16)), 0, 50_994, 50_994),
        ("Table XXXI", (Lstm(units=256), Dense(units=512)), 2, 496_978, 132_610),
    ]:
        architecture = Architecture(layers=(Embedding(tokens=1000, units=50), *layers))
        assert Embedding(tokens=1000, units=50).parameters((150,)) == 50_000
        architecture = architecture.train_last(2) if frozen else architecture
        assert architecture.parameters((150,), 2) == (total, trainable), where
        assert built_counts(architecture.build((150,), 2)) == (total, trainable)


@pytest.mark.unit
def test_recurrent_layers_are_stacked_behind_an_embedding():
    layers = (
        Embedding(tokens=20, units=6),
        Gru(units=5, sequence=True),
        Lstm(units=4, sequence=True),
        Gru(units=3),
    )
    architecture = Architecture(layers=layers)
    assert architecture.shapes((9,)) == [(9,), (9, 6), (9, 5), (9, 4), (3,)]
    network = architecture.build((9,), 2, np.random.default_rng(0))
    assert network(torch.zeros(7, 9)).shape == (7, 2)
    # 3 gates of 5 units, each from 6 + 5 values and one bias.
    assert Gru(units=5).parameters((9, 6)) == 3 * 5 * (6 + 5 + 1)
    assert architecture.describe() == (
        "embedding 20 x 6 - gru 5 all states - lstm 4 all states - gru 3"
    )
    assert Architecture.from_json(architecture.to_json()) == architecture
    assert "sequence" not in Architecture(layers=(Lstm(units=3),)).to_json()[0]


@pytest.mark.oracle
def test_the_papers_lstm_has_one_bias_and_torchs_two():
    assert Lstm(units=256).parameters(EMBEDDED) == 314_368
    assert Lstm(units=256, biases=2).parameters(EMBEDDED) == 315_392
    assert Lstm(units=4).parameters(EMBEDDED) == 880
    assert sum(p.numel() for p in nn.LSTM(50, 256).parameters()) == 315_392


flags = st.booleans()
names = st.sampled_from(ACTIVATIONS)
images = st.lists(
    st.one_of(
        st.builds(
            Conv,
            filters=st.sampled_from([2, 4]),
            kernel=st.integers(2, 3),
            activation=names,
            trainable=flags,
            weight_standardised=flags,
        ),
        st.builds(
            Pool,
            size=st.integers(1, 3),
            average=flags,
            stride=st.one_of(st.none(), st.integers(1, 3)),
        ),
        st.builds(Norm, groups=st.sampled_from([1, 2]), activation=names, trainable=flags),
    ),
    max_size=3,
)
behind = st.lists(
    st.one_of(
        st.builds(Dense, units=st.sampled_from([4, 6]), activation=names, trainable=flags),
        st.builds(Norm, groups=st.sampled_from([1, 2]), activation=names, trainable=flags),
    ),
    max_size=2,
)
memories = st.lists(
    st.builds(Lstm, units=st.sampled_from([2, 4]), biases=st.sampled_from([1, 2]), trainable=flags),
    max_size=1,
)
architectures = st.builds(
    lambda a, b, c: Architecture(layers=(*a, *b, *c)), images, memories, behind
)


@pytest.mark.unit
def test_an_image_is_read_row_by_row():
    network = Architecture(layers=(Lstm(units=5),)).build((2, 6, 7), 3, np.random.default_rng(0))
    assert [type(module) for module in network] == [modules.RowSequence, modules.Lstm, nn.Linear]
    assert network[1].inputs == 14
    flat = Architecture(layers=(Lstm(units=5),)).build((6, 7), 3, np.random.default_rng(0))
    grey = Architecture(layers=(Lstm(units=5),)).build((1, 6, 7), 3, np.random.default_rng(0))
    x = torch.rand(4, 6, 7)
    assert torch.equal(flat(x), grey(x[:, None]))


@pytest.mark.statistical
def test_an_lstm_starts_with_its_forget_gate_open():
    layer = Architecture(layers=(Lstm(units=64, biases=2),)).build(
        (28, 28), 3, np.random.default_rng(0)
    )[0]
    assert [float(part.unique().item()) for part in layer.bias.chunk(4)] == [0.0, 1.0, 0.0, 0.0]
    assert not bool(layer.second_bias.any())
    z = layer.weight.detach().flatten().double() * (28 + 64) ** 0.5
    error = (2.0 / len(z)) ** 0.5
    assert abs(float(z.square().mean()) - 1.0) < 5 * error < abs((2 / 3) ** 2 - 1.0)


class TestJoined:
    """A dense layer whose input goes on beside its output: a linear model and a network in one."""

    WIDE = Architecture(layers=(Dense(units=4, joined=True),))

    @pytest.mark.oracle
    def test_is_a_linear_model_of_the_input_and_the_hidden_layer(self):
        network = self.WIDE.build((3,), 2, np.random.default_rng(0))
        hidden, last = network[0][0], network[1]
        with torch.no_grad():
            last.weight.normal_(generator=torch.Generator().manual_seed(1))
        x = torch.rand(5, 3)
        seen = torch.cat([x, torch.tanh(x @ hidden.weight.T + hidden.bias)], dim=1)
        assert torch.allclose(network(x), seen @ last.weight.T + last.bias, atol=1e-6)

    @pytest.mark.unit
    def test_starts_as_a_linear_model_does_and_its_hidden_layer_at_random(self):
        network = self.WIDE.build((3,), 2, np.random.default_rng(0))
        assert not network[1].weight.any()
        assert network[0][0].weight.std() > 0.2
        deep = Architecture(layers=(Dense(units=4, joined=True), Dense(units=3)))
        # Its output layer does not see the input: at 0 nothing would be learned in one step more.
        assert deep.build((3,), 2, np.random.default_rng(0))[-1].weight.any()

    @pytest.mark.unit
    def test_frozen_has_random_features_with_its_input(self):
        frozen = self.WIDE.freeze_first(1)
        assert frozen.parameters((3,), 2) == (16 + 16, 16)
        assert frozen.describe() == "dense 4 tanh with its input (frozen)"
        assert Architecture.from_json(frozen.to_json()) == frozen

    @pytest.mark.unit
    def test_takes_images_flat(self):
        assert self.WIDE.shapes((2, 3)) == [(2, 3), (10,)]
        assert self.WIDE.build((2, 3), 5)(torch.zeros(7, 2, 3)).shape == (7, 5)


@pytest.mark.unit
def test_an_old_architecture_is_the_same_json_as_ever():
    layers = (Conv(filters=4), Pool(average=True), Dense(units=3))
    old = [
        {
            "kind": "conv", "filters": 4, "kernel": 3, "stride": 1, "padding": "valid",
            "groups": 1, "dilation": 1, "activation": "relu", "trainable": True,
        },
        {"kind": "pool", "size": 2, "average": True},
        {"kind": "dense", "units": 3, "activation": "tanh", "trainable": True, "dropout": 0.0},
    ]  # fmt: skip
    assert Architecture(layers=layers).to_json() == old
    assert Architecture.from_json(old).layers == layers
    new = Architecture(layers=(Conv(filters=4, weight_standardised=True), Pool(size=3, stride=2)))
    assert [set(a) - set(b) for a, b in zip(new.to_json(), old, strict=False)] == [
        {"weight_standardised"},
        {"stride"},
    ]
    assert Architecture.from_json(new.to_json()) == new


@pytest.mark.unit
def test_describes_new_layers():
    layers = (
        Conv(filters=4, activation="linear", weight_standardised=True, trainable=False),
        Norm(groups=2, activation="relu"),
        Pool(size=3, stride=2),
        Lstm(units=8, biases=2, trainable=False),
    )
    assert Architecture(layers=layers).describe() == (
        "weight-standardised conv 4 of 3x3 linear (frozen) - group norm 2 relu - "
        "max pool 3 stride 2 - lstm 8 two biases (frozen)"
    )


CNN = Architecture(layers=(Conv(filters=4), Pool(), Norm(groups=2), Dense(units=8)))


@pytest.mark.unit
def test_any_prefix_can_be_frozen():
    for first, flags in [(0, "111"), (1, "011"), (2, "001"), (3, "000")]:
        frozen = CNN.freeze_first(first)
        found = [layer.trainable for layer in frozen.layers if not isinstance(layer, Pool)]
        assert "".join(str(int(each)) for each in found) == flags
        assert CNN.freeze_first(0) == CNN
        total, trainable = frozen.parameters((1, 8, 8), 3)
        assert built_counts(frozen.build((1, 8, 8), 3)) == (total, trainable)
        assert trainable >= 8 * 3 + 3


@pytest.mark.unit
def test_the_last_layers_are_trained_and_the_first_never():
    for count, flags in [(1, "000"), (2, "001"), (3, "001"), (9, "001")]:
        trained = CNN.train_last(count)
        found = [layer.trainable for layer in trained.layers if not isinstance(layer, Pool)]
        assert "".join(str(int(each)) for each in found) == flags


@pytest.mark.unit
def test_random_weights_training_trains_the_last_two_layers():
    """Table XXIX prints 33,482 for the first of these networks."""
    for hidden, weights in [
        ((1024, 512, 64), 33_482),
        ((128, 64), 64 * 128 + 64 + 650),
        ((64,), 650),
    ]:
        network = Architecture(layers=tuple(Dense(units=units) for units in hidden))
        assert network.train_last(2).parameters((784,), 10)[1] == weights


@pytest.mark.unit
def test_what_is_frozen_stays_frozen():
    layers = (Dense(units=4), Dense(units=3), Dense(units=2, trainable=False))
    found = Architecture(layers=layers).train_last(3)
    assert [layer.trainable for layer in found.layers] == [False, True, False]


@pytest.mark.unit
def test_a_network_without_hidden_layers_has_none_to_freeze():
    for layers in [(), (Pool(),), (Norm(groups=2),)]:
        with pytest.raises(UsageError, match="no hidden layer to freeze"):
            Architecture(layers=layers).train_last(2)


@pytest.mark.unit
def test_more_layers_than_there_are_cannot_be_frozen():
    for first in [4, -1, 1.0, True, "1", None]:
        with pytest.raises(UsageError, match="expected an integer from 0 to 3"):
            CNN.freeze_first(first)  # type: ignore[arg-type]


@pytest.mark.unit
def test_an_activation_is_changed_where_there_is_one():
    layers = (
        Conv(filters=4, activation="linear"),
        Norm(groups=2, activation="relu"),
        Pool(),
        Lstm(units=3),
        Dense(units=8, activation="sigmoid"),
    )
    changed = Architecture(layers=layers).with_activation("tempered_sigmoid:1,2,0.5").layers
    assert [getattr(layer, "activation", None) for layer in changed] == [
        "linear",
        "tempered_sigmoid:1,2,0.5",
        None,
        None,
        "tempered_sigmoid:1,2,0.5",
    ]
    with pytest.raises(UsageError, match="'gelu' is not known"):
        CNN.with_activation("gelu")


@pytest.mark.unit
def test_rate_factor_knows_the_new_layers():
    assert Architecture(layers=(Norm(), Dense(units=128))).learning_rate_factor() == 1.0
    assert Architecture(layers=(Lstm(units=64),)).learning_rate_factor() == 1.0
    assert Architecture(layers=(Lstm(units=64), Dense(units=128))).learning_rate_factor() == 0.7
    assert Architecture(layers=(Norm(activation="sigmoid"),)).learning_rate_factor() == 2.0


@pytest.mark.unit
def test_a_layer_refuses():
    for kind, values, words in [
        (Conv, {"filters": 4, "weight_standardised": 1}, "weight_standardised is 1"),
        (Pool, {"stride": 0}, "stride is 0"),
        (Pool, {"stride": True}, "stride is True"),
        (Norm, {"groups": 0}, "groups is 0"),
        (Norm, {"activation": "gelu"}, "'gelu' is not known"),
        (Norm, {"trainable": 1}, "trainable is 1"),
        (Lstm, {"units": 0}, "units is 0"),
        (Lstm, {"units": 4, "biases": 3}, "biases is 3"),
        (Lstm, {"units": 4, "biases": 0}, "biases is 0"),
        (Gru, {"units": 4, "sequence": 1}, "sequence is 1"),
        (Embedding, {"tokens": 1}, "tokens is 1"),
        (Embedding, {"units": 0}, "units is 0"),
        (Lstm, {"units": 4, "trainable": "no"}, "trainable is 'no'"),
    ]:
        with pytest.raises(UsageError, match=words) as refusal:
            kind(**values)
        assert "expected" in str(refusal.value)


@pytest.mark.unit
def test_records_that_do_not_fit_are_refused():
    for layers, shape, words in [
        ((Lstm(units=4),), (64,), "needs records of rows"),
        ((Lstm(units=4), Lstm(units=4)), (8, 8), "needs records of rows"),
        ((Embedding(),), (8, 8), "needs records of token numbers"),
        ((Norm(groups=3),), (2, 8, 8), "2 channels do not divide into 3 groups"),
        ((Norm(groups=3),), (8,), "8 channels do not divide into 3 groups"),
        ((Norm(groups=8),), (8,), "one number each"),
        (
            (Conv(filters=2, kernel=1, weight_standardised=True),),
            (8, 8),
            "filters of more than one weight",
        ),
        ((Pool(size=3, stride=1),), (2, 8), "does not fit into a side of 2"),
    ]:
        with pytest.raises(UsageError, match=words):
            Architecture(layers=layers).parameters(shape, 3)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "does not exist: expected a TOML file with"),
        ("layers = [", "cannot be read as TOML"),
        ("\xff", "cannot be read as TOML .it is not UTF-8"),
        ("", "has no layers: expected a TOML file with a ..layers.. table"),
        ('front_end = "raw"', "has no layers"),
        ("layers = 3", "is a list of layers, not 3"),
        ("[layers]\nunits = 3", "is a list of layers"),
        ("[[layers]]\nunits = 3", "expected one of dense, conv, pool, norm, embedding, lstm, gru"),
        ('[[layers]]\nkind = "rnn"', "expected one of dense, conv, pool, norm, embedding, lstm"),
        ('[[layers]]\nkind = "lstm"', "'lstm' lacks units"),
        ('[[layers]]\nkind = "lstm"\nunits = 3\nwidth = 2', "no setting width: expected biases"),
        ('[[layers]]\nkind = "lstm"\nunits = 3.0', "units is 3.0"),
        ("layers = []\nlayer = 2", "has unknown keys layer: expected layers"),
    ],
)
def test_a_bad_file_is_refused_by_its_name(tmp_path: Path, text: str | None, words: str):
    file = tmp_path / "mine.toml"
    if text is not None:
        file.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=words) as refusal:
        read_candidate(file)
    assert "mine.toml" in str(refusal.value)
    assert "expected" in str(refusal.value) or "add it" in str(refusal.value) or "list" in words


@pytest.mark.unit
def test_a_folder_is_no_file_and_no_layers_are_a_linear_model(tmp_path: Path):
    with pytest.raises(UsageError, match="is a folder"):
        read_candidate(tmp_path)
    file = tmp_path / "linear.toml"
    file.write_text("layers = []")
    assert read_candidate(file).architecture == Architecture(layers=())
