"""Every example in a docstring runs and prints what it says, and every public name has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import pasearch

WITHOUT = {  # results and errors, which the functions return or raise
    "Advice", "BudgetError", "Comparison", "CrossoverReport", "FeatureResult", "PasearchError",
    "SearchResult", "TrainedClassifier", "TrainedRegressor", "UsageError",
}  # fmt: skip


def modules_with_examples() -> list[ModuleType]:
    root = Path(pasearch.__file__).parents[1]
    paths = sorted(Path(pasearch.__file__).parent.rglob("*.py"))
    named = [path.relative_to(root).with_suffix("") for path in paths if ">>> " in path.read_text()]
    return [
        importlib.import_module(".".join(each.parts).removesuffix(".__init__")) for each in named
    ]


@pytest.mark.slow
def test_examples_print_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    for module in modules_with_examples():
        for example in doctest.DocTestFinder().find(module):
            runner.run(example, out=said.append)
    assert not runner.failures, "".join(said)
    assert runner.tries >= 80


@pytest.mark.unit
def test_every_public_name_has_an_example():
    for name in set(pasearch.__all__) - WITHOUT:
        assert ">>> " in (inspect.getdoc(getattr(pasearch, name)) or ""), name
