"""What the package imports is declared, and what is declared is installed within its caps."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = {
    each.name.lower(): each
    for each in map(Requirement, PROJECT["dependencies"])
}  # fmt: skip
OPTIONAL = {
    Requirement(each).name.lower()
    for name in ("ray", "postgres", "plots", "onnx", "gpu")
    for each in PROJECT["optional-dependencies"][name]
}


def imported(package: Path) -> set[str]:
    """Every module that a package's files import, at the top or inside a function."""
    found = set()
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").split(".")[0])
    return found - set(sys.stdlib_module_names) - {"pasearch", "__future__"}


def undeclared(modules: set[str]) -> set[str]:
    known, places = set(DECLARED) | OPTIONAL, packages_distributions()
    named = {module: {each.lower() for each in places.get(module, [module])} for module in modules}
    return {module for module, names in named.items() if not names & known}


@pytest.mark.contract
def test_every_import_is_declared():
    modules = imported(ROOT / "pasearch")
    assert {"torch", "PIL", "threadpoolctl", "dp_accounting", "numpy"} <= modules
    assert not undeclared(modules)


@pytest.mark.contract
def test_an_undeclared_import_is_seen(tmp_path: Path):
    (tmp_path / "bad.py").write_text("def f():\n    import requests.adapters\n")
    assert undeclared(imported(tmp_path)) == {"requests"}


@pytest.mark.contract
@pytest.mark.parametrize("name", sorted(DECLARED))
def test_what_is_installed_is_within_the_caps(name: str):
    installed = re.sub(r"\+.*", "", version(name))
    assert DECLARED[name].specifier.contains(installed, prereleases=True)


@pytest.mark.contract
@pytest.mark.parametrize("name", ["dp-accounting", "optuna", "torch"])
def test_what_sets_prices_or_samples_is_capped(name: str):
    assert any(each.operator == "<" for each in DECLARED[name].specifier)


@pytest.mark.contract
def test_the_oldest_versions_that_are_tested_are_those_that_are_declared():
    extras = PROJECT["optional-dependencies"]
    every = [*PROJECT["dependencies"], *extras["tools"], *extras["diffprivlib"], *extras["onnx"]]
    least = {
        each.name: bound.version
        for each in map(Requirement, every)
        for bound in each.specifier
        if bound.operator == ">="
    }
    lines = (ROOT / ".ci" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert set(least) <= set(pinned)
    assert {name: Version(pinned[name]) for name in least} == {
        name: Version(bound) for name, bound in least.items()
    }


@pytest.mark.contract
def test_weights_alone_are_safe_to_load():
    assert not DECLARED["torch"].specifier.contains("2.5.1")
