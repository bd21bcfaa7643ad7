"""`pasearch spaces`: the listing of the built-in search spaces."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pasearch.cli import app
from pasearch.errors import UsageError
from pasearch.spaces.candidate import SETTINGS
from pasearch.spaces.listing import count_architectures, format_space_toml, list_spaces
from pasearch.spaces.parsing import make_space
from pasearch.spaces.portfolio import load_studies
from pasearch.spaces.space import BUILT_IN_SPACES, SearchSpace

SMALL = [name for name in BUILT_IN_SPACES if make_space(name).count() < 700]


@pytest.mark.oracle
@pytest.mark.parametrize("name", SMALL)
def test_architectures_are_counted_as_enumerating_them_does(name: str):
    found = SearchSpace.from_dict(BUILT_IN_SPACES[name], name=name)
    free = [range(len(v)) if gene not in SETTINGS else (0,) for gene, v in found.choices]
    drawn = (found.candidate(genotype) for genotype in itertools.product(*free))
    networks = {(each.architecture, each.front_end) for each in drawn}
    assert count_architectures(found) == len(networks)


@pytest.mark.unit
def test_a_gene_of_a_layer_that_is_missing_does_not_count():
    choices = {"layers": [0, 1, 2], "units_1": [8, 16], "units_2": [8, 16, 32]}
    assert count_architectures(SearchSpace.from_dict({"choices": choices})) == 1 + 2 + 2 * 3
    assert count_architectures(SearchSpace.from_dict({"choices": {"units_1": [8, 16]}})) == 2


@pytest.mark.contract
@pytest.mark.parametrize("name", BUILT_IN_SPACES)
def test_a_space_written_as_a_file_is_read_as_the_same_space(name: str, tmp_path: Path):
    path = tmp_path / f"{name}.toml"
    path.write_text(format_space_toml(list_spaces(name)[name]))
    assert make_space(path) == make_space(name)


@pytest.mark.unit
def test_the_command_lists_every_space_with_its_ranges_and_its_size():
    shown = CliRunner().invoke(app, ["spaces"])
    assert shown.exit_code == 0
    for name, each in list_spaces().items():
        assert f"  {name} " in shown.output
        assert f"{each['architectures']:,} architectures" in shown.output
    assert "24 architectures, 72 candidates" in shown.output  # rnn: three learning rates
    assert "units_1 64, 128, 512, 1024, 2048" in shown.output
    assert (
        sum(len(study.entries) for study in load_studies())
        == list_spaces()["auto"]["architectures"]
    )


@pytest.mark.unit
def test_the_command_prints_json_and_one_space_as_a_file():
    listed = json.loads(CliRunner().invoke(app, ["spaces", "--json"]).output)["spaces"]
    assert set(listed) == {"auto", *BUILT_IN_SPACES}
    one = json.loads(CliRunner().invoke(app, ["spaces", "cnn", "--json"]).output)
    assert one == listed["cnn"]
    assert 'family = "cnn"' in CliRunner().invoke(app, ["spaces", "cnn"]).output


@pytest.mark.unit
def test_a_portfolio_has_no_file():
    with pytest.raises(UsageError, match="'auto' has no file: it is a list of networks"):
        list_spaces("auto")


@pytest.mark.unit
@pytest.mark.parametrize("name", ["nothing", "fcn-papre"])
def test_an_unknown_space_is_refused(name: str):
    with pytest.raises(UsageError, match="expected one of fcn, images"):
        list_spaces(name)
    if name == "fcn-papre":
        with pytest.raises(UsageError, match="Did you mean 'fcn-paper'"):
            list_spaces(name)
