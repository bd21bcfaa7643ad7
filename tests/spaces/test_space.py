from __future__ import annotations

import json
import math
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasearch.data.front_ends import PrincipalComponents, Raw, Scattering
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.errors import UsageError
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.layers import Dense
from pasearch.spaces.parsing import make_space
from pasearch.spaces.space import BUILT_IN_NAMES, SearchSpace, Space

SMALL = {
    "family": "fcn",
    "choices": {
        "layers": [1, 2],
        "units_1": [4, 8, 16],
        "activation_1": ["tanh", "relu"],
        "learning_rate_scale": [0.5, 1.0],
        "steps": [10, 20],
    },
    "default": {"units_1": 8, "steps": 20},
}
named = pytest.mark.parametrize("name", BUILT_IN_NAMES)


def shape_of(built: SearchSpace) -> tuple[int, ...]:
    if built.family == "rnn":
        return (40,)
    if built.name == "tables":
        return (30,)
    return (28, 28) if built.family == "fcn" else (1, 28, 28)


@pytest.mark.contract
class TestEveryBuiltInSpace:
    @named
    def test_any_draw_builds_a_network_that_runs(self, name: str):
        import torch

        built, generator = make_space(name), np.random.default_rng(3)
        for _ in range(3):
            candidate = built.candidate(built.draw(generator))
            network = candidate.build(shape_of(built), 10, generator)
            behind = candidate.front_end.output_shape(shape_of(built))
            assert network(torch.rand(2, *behind)).shape == (2, 10)
            assert (
                sum(p.numel() for p in network.parameters())
                == candidate.parameters(shape_of(built), 10)[0]
            )

    @named
    def test_comes_back_from_json(self, name: str):
        built = make_space(name)
        again = SearchSpace.from_dict(json.loads(json.dumps(built.to_json())))
        assert again == built
        assert make_space(built) is built

    @named
    def test_its_default_is_one_of_its_candidates(self, name: str):
        built = make_space(name)
        assert all(
            0 <= i < size for i, size in zip(built.default_genotype(), built.sizes, strict=True)
        )

    @named
    def test_no_candidate_is_larger_than_its_range_says(self, name: str):
        built, generator = make_space(name), np.random.default_rng(5)
        default, largest = built.parameter_range(shape_of(built), 10)
        drawn = [
            built.candidate(built.draw(generator)).parameters(shape_of(built), 10)[0]
            for _ in range(30)
        ]
        assert max(drawn) <= largest
        fixed = built.candidate(built.default_genotype())
        assert fixed.parameters(shape_of(built), 10)[0] == default

    @named
    def test_every_draw_has_settings_that_the_plan_prices(self, name: str):
        built, generator = make_space(name), np.random.default_rng(6)
        priced = set(built.settings())
        assert all(
            built.candidate(built.draw(generator)).settings in priced for _ in range(50)
        )  # fmt: skip

    @named
    def test_every_draw_has_a_front_end_that_the_plan_knows(self, name: str):
        built, generator = make_space(name), np.random.default_rng(6)
        drawn = {built.candidate(built.draw(generator)).front_end for _ in range(50)}
        assert drawn == set(built.front_ends())

    @named
    def test_every_candidate_comes_back_from_json(self, name: str):
        built, generator = make_space(name), np.random.default_rng(7)
        for _ in range(20):
            candidate = built.candidate(built.draw(generator))
            again = Candidate.from_json(json.loads(json.dumps(candidate.to_json())))
            assert again == candidate
            assert hash(again) == hash(candidate)

    @named
    def test_it_fits_the_records_it_is_for(self, name: str):
        make_space(name).check_fits(shape_of(make_space(name)), 10)
        assert isinstance(make_space(name), Space)
        assert make_space(name).count() == math.prod(make_space(name).sizes)


class TestImagesAndTables:
    def test_images_are_scattered_or_raw_and_the_default_is_linear_on_scattering(self):
        built = make_space("images")
        assert built.front_ends() == (Scattering(), Raw())
        default = built.candidate(built.default_genotype())
        assert default.front_end == Scattering()
        assert default.architecture.layers == ()
        assert dict(default.settings) == {"learning_rate_scale": 1.0, "steps_scale": 1.0}
        assert default.parameters((28, 28), 10) == ((81 * 49 + 1) * 10,) * 2
        with pytest.raises(UsageError, match=r"'images' does not fit records of shape \(8, 8\)"):
            built.check_fits((8, 8), 10)

    def test_tables_are_raw_and_the_default_is_linear(self):
        built = make_space("tables")
        assert built.front_ends() == (Raw(),)
        default = built.candidate(built.default_genotype())
        assert default.architecture.layers == ()
        assert default.describe_network() == "linear"
        assert default.parameters((30,), 2) == (62, 62)
        assert default.parameters((30,), 1) == (31, 31)


BEHIND = {
    "family": "fcn",
    "choices": {"front_end": ["raw", "max_pool:2", "pca:5"], "layers": [0, 1], "units_1": [4]},
    "default": {"front_end": "pca:5"},
}


class TestFrontEnds:
    def test_are_a_gene_and_shape_the_network(self):
        built = make_space(BEHIND)
        assert [str(each) for each in built.front_ends()] == ["raw", "max_pool:2", "pca:5"]
        sizes = {
            str(built.candidate((i, 0, 0)).front_end): built.candidate((i, 0, 0)).parameters(
                (6, 7), 3
            )
            for i in range(3)
        }
        assert sizes == {
            "raw": (43 * 3, 43 * 3), "max_pool:2": (10 * 3, 10 * 3), "pca:5": (6 * 3, 6 * 3),
        }  # fmt: skip
        assert built.candidate(built.default_genotype()).front_end == PrincipalComponents(5)
        default, largest = built.parameter_range((6, 7), 3)
        assert (default, largest) == (18, 43 * 4 + 5 * 3)

    def test_a_space_without_the_gene_has_raw_records(self):
        assert make_space("fcn").front_ends() == (Raw(),)
        assert make_space("fcn").candidate(make_space("fcn").default_genotype()).front_end == Raw()

    def test_what_does_not_fit_behind_one_is_refused(self):
        built = make_space(BEHIND)
        built.check_fits((6, 7), 3)
        with pytest.raises(UsageError, match=r"shape \(42,\): .*needs images"):
            built.check_fits((42,), 3)

    def test_convolutions_need_images_behind_it(self):
        choices = {"front_end": ["pca:5"], "blocks": [2], "filters": [2]}
        with pytest.raises(UsageError, match="needs images"):
            make_space({"family": "cnn", "choices": choices}).check_fits((28, 28), 3)
        scattered = {**choices, "front_end": ["max_pool:2"]}
        make_space({"family": "cnn", "choices": scattered}).check_fits((56, 56), 3)

    def test_unknown_ones_are_refused(self):
        for value in ["whiten", "pca:0", "max_pool:1", 3, "raw:2"]:
            with pytest.raises(UsageError, match=r"'front_end': Front end .* is not known"):
                make_space({"family": "fcn", "choices": {"front_end": [value]}})

    def test_a_candidate_says_and_keeps_its_own(self):
        plain = Candidate(architecture=Architecture(layers=(Dense(units=4),)))
        behind = Candidate(architecture=plain.architecture, front_end=parse_front_end("pca:5"))
        assert plain.describe() == "dense 4 tanh"
        assert behind.describe() == "pca:5 - dense 4 tanh"
        assert behind != plain
        assert Candidate.from_json(behind.to_json()) == behind
        # Files from before there were front ends have none.
        assert Candidate.from_json({"layers": plain.architecture.to_json()}) == plain


class TestThePapersSpaces:
    def test_table_xi(self):
        built = make_space("fcn-paper")
        assert dict(built.choices)["units_1"] == (64, 128, 512, 1024, 2048)
        assert dict(built.choices)["units_2"] == (64, 128, 256)
        assert dict(built.choices)["units_3"] == (10, 16, 32, 64)
        assert dict(built.choices)["layers"] == (1, 2, 3)

    def test_table_xii(self):
        built = make_space("cnn-paper")
        choices = dict(built.choices)
        assert choices["blocks"] == (2, 3)
        assert choices["filters"] == (16, 32, 48)
        assert choices["units"] == (32, 64, 128, 512)

    def test_random_weights_training_may_freeze_any_layer(self):
        for name in ["fcn-rwt", "cnn-rwt"]:
            built, generator = make_space(name), np.random.default_rng(1)
            frozen = set()
            for _ in range(60):
                total, trained = built.candidate(built.draw(generator)).architecture.parameters(
                    shape_of(built), 10
                )
                frozen.add(trained < total)
            assert frozen == {True, False}


class TestDraws:
    @pytest.mark.statistical
    def test_are_uniform_gene_by_gene(self):
        built, generator = SearchSpace.from_dict(SMALL), np.random.default_rng(11)
        drawn = np.array([built.draw(generator) for _ in range(6000)])
        for gene, size in enumerate(built.sizes):
            counts = np.bincount(drawn[:, gene], minlength=size)
            expected = len(drawn) / size
            chi2 = ((counts - expected) ** 2 / expected).sum()
            assert chi2 < 20  # p below .0002 for up to three values
            skewed = np.array([1.5, *[(size - 1.5) / (size - 1)] * (size - 1)]) * expected
            assert ((skewed - expected) ** 2 / expected).sum() > 20

    def test_no_layer_at_all_is_a_linear_model(self):
        built = SearchSpace.from_dict(
            {"family": "fcn", "choices": {"layers": [0, 1], "units_1": [8, 16]}}
        )
        assert built.candidate((0, 0)) == built.candidate((0, 1))
        assert built.candidate((0, 0)).architecture.layers == ()
        assert built.candidate((0, 0)).learning_rate_factor() == 1.0
        assert built.parameter_range((5,), 3) == (18, 6 * 16 + 17 * 3)

    def test_units_of_a_layer_that_is_not_there_mean_nothing(self):
        built = SearchSpace.from_dict(
            {"family": "fcn", "choices": {"layers": [1, 2], "units_2": [8, 16]}}
        )
        assert built.candidate((0, 0)) == built.candidate((0, 1))
        assert built.candidate((1, 0)) != built.candidate((1, 1))


class TestSettings:
    def test_are_every_combination_that_changes_the_recipe(self):
        built = SearchSpace.from_dict(SMALL)
        rates, steps = (0.5, 1.0), (10, 20)
        assert set(built.settings()) == {
            (("learning_rate_scale", rate), ("steps", step)) for rate, step in product(rates, steps)
        }

    def test_a_space_without_them_has_the_empty_one(self):
        assert make_space("fcn-paper").settings() == [()]


class TestFiles:
    def test_a_toml_file(self, tmp_path: Path):
        file = tmp_path / "mine.toml"
        file.write_text(
            'family = "fcn"\n[choices]\nlayers = [1, 2]\nunits_1 = [64, 256]\n'
            'activation_1 = ["tanh", "tempered_sigmoid"]\ntrainable_1 = [true, false]\n'
            "learning_rate_scale = {low = 0.5, high = 2.0, log = true}\n[default]\nunits_1 = 256\n"
        )
        built = make_space(file)
        assert built.name == "mine"
        rates = dict(built.choices)["learning_rate_scale"]
        assert rates[0] == 0.5
        assert rates[-1] == pytest.approx(2.0)
        assert rates[len(rates) // 2] == pytest.approx(1.0)
        assert built.candidate(built.default_genotype()).architecture.layers[0].units == 256

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("family = ", "cannot be read as TOML"),
            ('family = "gan"', "family is 'gan'"),
            ('family = "rnn"\n[choices]\ncell = ["relu"]', "expected lstm or gru"),
            ('family = "rnn"\n[choices]\nhead = [-1]', "an integer, or 0 for no layer"),
            ("[choices]\nunits_1 = []", "units_1'.*is empty"),
            ("[choices]\nunits_17 = [1]", "no such gene"),
            ("[choices]\nbatch_size = [1]", "units_1, activation_1, .* Did you mean 'batch'"),
            ("[choices]\nunits_1 = [0]", "integer above 0"),
            ("[choices]\nunits_1 = [2.5]", "integer above 0"),
            ("[choices]\nunits_1 = [true]", "integer above 0"),
            ("[choices]\nunits_1 = 64", "expected a list"),
            ('[choices]\nunits_1 = "64"', "expected a list"),
            ("[choices]\nlayers = [17]", "integer from 0 .a linear model. to 16"),
            ("[choices]\nlayers = [-1]", "integer from 0 .a linear model. to 16"),
            ("[choices]\nlayers = [1.0]", "integer from 0 .a linear model. to 16"),
            ("[choices]\nlayers = [false]", "integer from 0 .a linear model. to 16"),
            ('family = "cnn"\n[choices]\nblocks = [0]', "integer above 0"),
            ('[choices]\nfront_end = ["pca:x"]', "'pca:x' is not known"),
            ('[choices]\nfront_end = "pca:3"', "expected a list"),
            ('[choices]\nactivation_1 = ["swish"]', "swish"),
            ("[choices]\ntrainable_1 = [1]", "true or false"),
            ("[choices]\ndropout = [1.0]", r"\[0, 1\)"),
            ("[choices]\nlearning_rate = [nan]", "above 0"),
            ("[choices]\nlearning_rate = [-1]", "above 0"),
            ("[choices]\nlearning_rate = {low = 1, high = 1}", "low < high"),
            ("[choices]\nlearning_rate = {low = -1, high = 1, log = true}", "low < high"),
            ("[choices]\nlearning_rate = {low = 1, high = 2, step = 1}", "low < high"),
            ("[choices]\nlearning_rate = [1.0]\nlearning_rate_scale = [1.0]", "use learning_rate"),
            ("[choices]\nsteps = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "16 or fewer"),
            ("[choices]\nunits_1 = [4]\n[default]\nunits_1 = 5", "not one of its choices"),
            ("[choices]\nunits_1 = [4]\n[default]\nunits_2 = 5", "not one of its choices"),
            ("choices = 3", "tables"),
            ("colour = 1", "unknown key colour"),
        ],
    )
    def test_of_bad_form_is_refused(self, tmp_path: Path, text: str, words: str):
        file = tmp_path / "bad.toml"
        file.write_text(text)
        with pytest.raises(UsageError, match=words):
            make_space(file)

    def test_an_unknown_name_lists_those_there_are(self):
        for name in ["mlp", "missing.toml", "", "digits.npz"]:
            with pytest.raises(UsageError, match=", ".join(BUILT_IN_NAMES)):
                make_space(name)

    def test_bytes_that_are_no_text_are_refused(self, tmp_path: Path):
        file = tmp_path / "bad.toml"
        file.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(UsageError, match="cannot be read as TOML"):
            make_space(file)


def test_records_that_a_network_of_the_space_does_not_fit_are_refused():
    with pytest.raises(UsageError, match=r"does not fit records of shape \(1, 8, 8\)"):
        make_space("cnn").check_fits((1, 8, 8), 10)
    make_space("cnn").check_fits((1, 28, 28), 10)


@pytest.mark.property
@given(st.floats(1e-6, 1e3), st.floats(1.001, 1e3), st.booleans())
def test_a_range_stays_between_its_ends(low: float, factor: float, log: bool):
    high = low * factor
    given_ = {"learning_rate": {"low": low, "high": high, "log": log}}
    (values,) = dict(SearchSpace.from_dict({"choices": given_}).choices).values()
    assert values[0] == pytest.approx(low)
    assert values[-1] == pytest.approx(high)
    assert all(a <= b for a, b in pairwise(values))
    middle = math.sqrt(low * high) if log else (low + high) / 2
    assert values[len(values) // 2] == pytest.approx(middle)


class TestDeepNetworks:
    """Section VIII-A of Bao et al.: 1 to 16 layers, of one width or of free widths."""

    @pytest.mark.unit
    def test_one_width_is_that_of_all_layers_without_their_own(self):
        space = make_space("fcn-deep")
        assert space.count() == 5 * 3 * 3
        deepest = space.candidate((4, 1, 2)).architecture
        assert deepest.describe() == " - ".join(["dense 128 relu"] * 16)
        mixed = make_space({"choices": {"layers": [3], "units": [64], "units_2": [8]}})
        assert mixed.candidate((0, 0, 0)).architecture.parameters((4,), 2) == (1_546, 1_546)

    @pytest.mark.unit
    def test_of_free_widths_the_narrowest_and_the_widest_are_evaluated(self):
        widths = {f"units_{place}": [32, 8, 64] for place in range(1, 17)}
        space = make_space({"choices": {"layers": [1, 16], **widths}})
        assert space.count() == 2 * 3**16
        units = [{e.units for e in c.architecture.layers} for c in space.iterate_shapes()]
        assert units == [{8}, {64}, {8}, {64}]
        assert space.parameter_range((64,), 10)[1] == 65 * 64 + 15 * 65 * 64 + 65 * 10

    @pytest.mark.unit
    def test_hyperparameters_are_genes(self):
        genes = {"batch": [100, 250], "weight_decay": [0.0, 0.01], "momentum": [0.0, 0.9],
                 "learning_rate_end": [0.1, 1.0], "dropout": [0.0, 0.2]}  # fmt: skip
        space = make_space({"choices": genes})
        own = dict(space.candidate([1] * 5).settings)
        assert own == {"batch": 250, "weight_decay": 0.01, "momentum": 0.9, "learning_rate_end": 1}
        with pytest.raises(UsageError, match="use batch or batch_share, not both"):
            make_space({"choices": {"batch": [1], "batch_share": [1.0]}})
