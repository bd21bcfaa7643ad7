"""Spaces of a class of the user: hyperparameters by annotation, runs, files without code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
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
from pasearch.registry import describe_source
from pasearch.spaces import user_modules
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.module_space import module_space
from pasearch.spaces.parsing import make_space

Run = Callable[..., tuple[int, str, str]]


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
    with pytest.raises(
        UsageError, match=r"needs the class .*not imported.* use `import=.* run `from"
    ):
        pasearch.load(result.path)


@pytest.mark.unit
def test_a_file_names_only_classes_that_are_imported(monkeypatch: pytest.MonkeyPatch):
    """A result of somebody else must not import or call what it names."""
    for path in ("antigravity:fly", "os:system", "subprocess:Popen", "torch.nn:functional.relu"):
        with pytest.raises(UsageError, match="not imported"):
            Candidate.from_json({"layers": [{"kind": "module", "class": path}]})
    assert "antigravity" not in sys.modules


@pytest.mark.unit
def test_a_space_is_named_by_import_path_and_no_file_imports_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "nets_of_a_user.py").write_text(
        "from torch import nn\n"
        "def linear(bias: bool, outputs: int, shape: tuple[int, ...]):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], outputs, bias))\n"
    )
    (tmp_path / "mine.toml").write_text('class = "nets_of_a_user:linear"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="a file may not import code: name the class"):
        make_space(tmp_path / "mine.toml")
    assert "nets_of_a_user" not in sys.modules
    space = make_space("nets_of_a_user:linear")
    assert space.candidate((1,)).parameters((3, 4), 5) == (65, 65)
    assert make_space(space.to_json()).to_json() == space.to_json()
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


@pytest.mark.contract
def test_a_changed_module_of_the_same_package_is_another_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    helper = tmp_path / "package_of_nets" / "inner" / "parts.py"
    helper.parent.mkdir(parents=True)
    helper.write_text("from torch import nn\nactivation = nn.Tanh\n")
    (tmp_path / "package_of_nets" / "nets.py").write_text(
        "from torch import nn\nfrom package_of_nets.inner.parts import activation\n"
        "def head(outputs: int):\n"
        "    return nn.Sequential(nn.Flatten(), activation(), nn.Linear(64, outputs))\n"
    )
    monkeypatch.chdir(tmp_path)
    plan = pasearch.plan_architecture_search(
        "digits", budget=Budget(2.0), space="package_of_nets.nets:head", strategy="fixed"
    )
    dataset = BuiltIn().load("digits", DataDeclaration())
    before = compute_fingerprint(dataset, plan, "cpu")[1]
    helper.write_text("from torch import nn\nactivation = nn.ReLU\n")
    after = compute_fingerprint(dataset, plan, "cpu")[1]
    assert [name for name in before if before[name] != after[name]] == [PART_NAMES["code"]]


NET = """
from torch import nn
class MyNet(nn.Module):
    def __init__(self, width: int = 16, outputs: int = 2):
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.LazyLinear(width), nn.Tanh(), nn.Linear(width, outputs)
        )
    def forward(self, x):
        return self.body(x)
NotANet = 3
"""


def _forget(name: str) -> None:
    """Leave a module as a new process would find it."""
    sys.modules.pop(name, None)
    for path in [path for path in user_modules._MAKERS if path.startswith(f"{name}:")]:
        del user_modules._MAKERS[path]


@pytest.mark.contract
def test_the_command_line_uses_a_class_that_the_user_names_and_notices_a_change(
    run: Run, tmp_path: Path
):
    file = tmp_path / "mynets.py"
    file.write_text(NET)
    where = "--space", "mynets:MyNet", "--strategy", "fixed", "--steps", 5, "--out", "run"
    assert run("arch", "digits", "--eps", 2, *where)[0] == 0
    card = (tmp_path / "run" / "release" / "privacy-card.md").read_text()
    note = describe_source(sys.modules["mynets"].MyNet)
    assert f"mynets:MyNet {note}" in card
    assert "What the code of the network mynets:MyNet does except computing" in card
    np.savez(tmp_path / "new.npz", x=np.zeros((1, 8, 8)))
    commands = {
        "verify": ("verify", "run"), "report": ("report", "run"),
        "predict": ("predict", "run", "new.npz"),
    }  # fmt: skip
    for command in commands.values():
        _forget("mynets")
        code, _, err = run(*command)
        assert code == 2
        assert "use --import mynets:MyNet" in err
        assert "failed" not in err
        assert "mynets" not in sys.modules
        for name in ("mynets", "mynets:MyNet"):
            _forget("mynets")
            assert run(*command, "--import", name)[0] == 0
    assert "run cannot be verified here. This network needs" in run_without(run, "verify", "run")

    file.write_text(NET.replace("Tanh", "ReLU"))
    _forget("mynets")
    code, _, err = run("verify", "run", "--import", "mynets")
    assert code == 2
    assert "cannot be verified here. The file of the class 'mynets:MyNet' has changed" in err
    with pytest.warns(UserWarning, match=r"'mynets:MyNet' has changed since the run"):
        assert run(*commands["predict"], "--import", "mynets")[0] == 0


def run_without(run: Run, *command: str) -> str:
    _forget("mynets")
    return run(*command)[2]


@pytest.mark.contract
def test_a_class_of_a_script_has_the_name_of_its_file(tmp_path: Path):
    """Another process imports the file to load the run."""
    (tmp_path / "own_nets.py").write_text(
        NET + "if __name__ == '__main__':\n    import pasearch\n"
        "    print(pasearch.module_space(MyNet).to_json()['class'])\n"
        "    from pasearch.spaces.user_modules import _MAKERS, find_maker\n"
        "    _MAKERS.clear()\n    assert find_maker('own_nets:MyNet') is MyNet\n"
    )
    for command in (["own_nets.py"], ["-m", "own_nets"]):
        done = _run_python(tmp_path, *command)
        assert done.stdout.strip() == "own_nets:MyNet", done.stderr
    code = NET + "import pasearch\npasearch.module_space(MyNet)\n"
    assert "MyNet is not defined in a file" in _run_python(tmp_path, "-c", code).stderr
    (tmp_path / "my-nets.py").write_text(code)
    assert "define it at the top level of a file" in _run_python(tmp_path, "my-nets.py").stderr


def _run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(pasearch.__file__).parent.parent)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.unit
def test_what_is_no_class_of_a_network_is_refused(run: Run, tmp_path: Path):
    (tmp_path / "mynets.py").write_text(NET)
    _forget("mynets")
    for name, words in [
        ("mynets:NotANet", "3 is no search space: expected a class of nn.Module"),
        ("mynets.py:MyNet", "write mynets:MyNet, without .py"),
        ("sub/mynets.py:MyNet", "write mynets:MyNet, without .py in the folder sub"),
        ("nonets:MyNet", f"Searched: {tmp_path}, PYTHONPATH"),
    ]:  # fmt: skip
        code, _, err = run("plan", "arch", "digits", "--eps", 2, "--space", name)
        assert code == 2
        assert words in err
    words = r"expected a class of nn\.Module, or a function"
    for wrong in (3, len, int, dict, nn.Linear(2, 2)):
        with pytest.raises(UsageError, match=words):
            make_space(wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(UsageError, match=words):
            module_space(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="outputs: pasearch fills it"):
        module_space(Net, width=8, outputs=5)
    code, out, _ = run("plan", "arch", "--eps", 2, "--space", "mynets:MyNet", "--strategy", "rs")
    assert code == 0
    assert "MyNet() (the only candidate of the space, so strategy rs compares nothing)" in out
    for name in ("auto", "mynets:MyNet"):
        assert f"Space '{name}' has no file: it is a" in run("spaces", name)[2]


class Faulty(nn.Module):
    def __init__(self, fault: Literal["construct", "forward", "flat"], outputs: int = 2):
        super().__init__()
        self.fault, self.last = fault, nn.Linear(100, outputs)
        if fault == "construct":
            self.last = nn.Linear(-1, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.nothing if self.fault == "forward" else x)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("construct", "Faulty(fault='construct') cannot be constructed: RuntimeError: "),
        ("forward", "(AttributeError: 'Faulty' object has no attribute 'nothing')."),
        ("flat", "cannot be multiplied (32x8 and 100x10)); use nn.Flatten, then nn.LazyLinear"),
    ],
)
def test_a_fault_of_the_class_is_told_as_such(fault: str, words: str):
    with pytest.raises(UsageError) as error:
        pasearch.plan_architecture_search(
            "digits", space=module_space(Faulty, fault=fault), budget=Budget(2.0)
        )
    assert words in str(error.value)
    assert "fit records" not in str(error.value)
