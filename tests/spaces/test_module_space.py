"""Spaces of a class of the user: hyperparameters by annotation, runs, files without code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

import pasearch
from pasearch import Budget, UsageError
from pasearch.api.binding import PART_NAMES, compute_fingerprint
from pasearch.data.built_in import BuiltIn
from pasearch.data.source import DataDeclaration
from pasearch.spaces import user_modules
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.module_space import module_space
from pasearch.spaces.space import make_space


class Net(nn.Module):
    def __init__(
        self, width: int, norm: Literal["layer", "batch"] = "layer", deep: bool = False,
        rate: float = 0.5, outputs: int = 2,
    ):  # fmt: skip
        super().__init__()
        norms = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}
        self.body = nn.Sequential(
            nn.Flatten(), nn.LazyLinear(width), norms[norm](width), nn.Linear(width, outputs)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def small_space():
    return module_space(Net, width=(8, 16), norm="layer", deep=False)


@pytest.mark.unit
def test_values_are_those_given_those_of_the_type_or_the_default():
    space = module_space(Net, width=range(8, 11), learning_rate_scale=(0.5, 1.0))
    assert dict(space.choices) == {
        "width": (8, 9, 10), "norm": ("layer", "batch"), "deep": (False, True),
        "learning_rate_scale": (0.5, 1.0),
    }  # fmt: skip
    default = space.candidate(space.default_genotype())
    assert default.architecture.describe() == "Net(width=8, norm='layer', deep=False)"
    assert dict(default.settings) == {"learning_rate_scale": 0.5}
    assert len(list(space.iterate_shapes())) == 12
    assert all(space.contains(each) for each in space.iterate_shapes())


@pytest.mark.unit
def test_all_wrong_values_are_named_at_once():
    def make(width: int, rate: float, on: bool, kind: int, steps: int = 3) -> nn.Module: ...

    with pytest.raises(UsageError) as error:
        module_space(make, width=(8.0, True), on=1, norm="x", kind=1, steps=(1, 2))
    for part in (
        "width: 8.0, True; expected int", "rate: give values", "on: 1; expected False | True",
        "norm: is no parameter", "kind: is the name", "steps: is the name",
    ):  # fmt: skip
        assert part in str(error.value)


@pytest.mark.unit
def test_the_number_of_networks_is_limited():
    with pytest.raises(UsageError, match="1,000"):
        module_space(Net, width=range(1, 1002), norm="layer", deep=False)


@pytest.mark.unit
def test_initial_weights_depend_on_the_key_alone():
    def weights(seed: int) -> torch.Tensor:
        candidate = small_space().candidate((0, 0, 0))
        torch.manual_seed(seed)  # the global generator neither decides nor is changed
        network = candidate.build((3, 4), 2, np.random.default_rng(5))
        assert torch.initial_seed() == seed
        return torch.cat([p.flatten() for p in network.parameters()])

    assert torch.equal(weights(1), weights(2))


@pytest.mark.unit
def test_a_plan_names_every_problem_and_its_network_before_data_is_read():
    with pytest.raises(UsageError) as error:
        pasearch.plan_architecture_search(
            "digits", space=module_space(Net, width=8), budget=Budget(2.0)
        )
    assert "(1) body.2 (BatchNorm1d): mixes records" in str(error.value)
    assert "In Net(width=8, norm='batch', deep=False)." in str(error.value)


@pytest.mark.contract
def test_a_run_stores_the_path_of_the_class_and_needs_it_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    result = pasearch.search_architecture(
        "digits", budget=Budget(2.0), space=small_space(), strategy="paas", candidates=2,
        generations=1, steps=20, out=tmp_path / "run",
    )  # fmt: skip
    assert result.document["best"]["layers"][0]["class"].endswith("test_module_space:Net")
    assert pasearch.verify(result.path)[1] == []
    again = pasearch.load_result(result.path)
    digit = [[[0.0] * 8] * 8]
    assert (again.predict(digit) == result.predict(digit)).all()
    assert again.best == result.best == Candidate.from_json(result.document["best"])
    monkeypatch.setattr(user_modules, "_MAKERS", {})
    monkeypatch.delitem(sys.modules, Net.__module__)
    with pytest.raises(UsageError, match=r"needs the class .*which is not imported: run `from"):
        pasearch.load(result.path)


@pytest.mark.unit
def test_a_file_names_only_classes_that_are_imported(monkeypatch: pytest.MonkeyPatch):
    """A result of somebody else must not import or call what it names."""
    for path in ("antigravity:fly", "os:system", "subprocess:Popen", "torch.nn:functional.relu"):
        with pytest.raises(UsageError, match="not imported"):
            Candidate.from_json({"layers": [{"kind": "module", "class": path}]})
    assert "antigravity" not in sys.modules


@pytest.mark.unit
def test_a_space_is_named_by_import_path_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "nets_of_a_user.py").write_text(
        "from torch import nn\n"
        "def linear(bias: bool, outputs: int, shape: tuple[int, ...]):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], outputs, bias))\n"
    )
    (tmp_path / "mine.toml").write_text(
        'class = "nets_of_a_user:linear"\n[choices]\nbias = [true]\nlearning_rate_scale = [2.0]\n'
    )
    monkeypatch.chdir(tmp_path)
    space = make_space("nets_of_a_user:linear")
    assert space.candidate((1,)).parameters((3, 4), 5) == (65, 65)
    assert make_space(tmp_path / "mine.toml").count() == 1
    assert make_space(space.to_json()).to_json() == space.to_json()
    (tmp_path / "mine.toml").write_text('class = "nets_of_a_user:missing"')
    with pytest.raises(UsageError, match="cannot be imported"):
        make_space(tmp_path / "mine.toml")
    with pytest.raises(UsageError, match="cannot be imported"):
        make_space("nets_of_a_user:missing")


@pytest.mark.contract
def test_a_changed_class_is_another_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A resumed run would add the same noise to another sum."""
    text = "from torch import nn\ndef head(outputs: int):\n    return nn.Sequential(nn.Flatten(), "
    file = tmp_path / "nets_to_change.py"
    file.write_text(text + "nn.Linear(64, outputs))\n")
    monkeypatch.chdir(tmp_path)
    plan = pasearch.plan_architecture_search(
        "digits", budget=Budget(2.0), space="nets_to_change:head", strategy="fixed"
    )
    dataset = BuiltIn().load("digits", DataDeclaration())
    before = compute_fingerprint(dataset, plan, "cpu")[1]
    file.write_text(text + "nn.Linear(64, outputs, bias=False))\n")
    after = compute_fingerprint(dataset, plan, "cpu")[1]
    assert [name for name in before if before[name] != after[name]] == [PART_NAMES["code"]]
