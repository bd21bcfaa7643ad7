"""Each option is said once: the command line, `--help`, signatures, reference and errors agree."""

from __future__ import annotations

import inspect
import re
import runpy
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import pasearch
from pasearch import Budget, plan_training, search_architecture, select_features, train
from pasearch.api.request import (
    GROUPS,
    FeatureRequest,
    Request,
    SearchRequest,
    TrainRequest,
    accept_request_fields,
    list_options,
)
from pasearch.cli import app
from pasearch.cli.options import GroupedCommand, flag_name, format_flags
from pasearch.errors import UsageError
from pasearch.features.selector import SELECTORS
from pasearch.search.strategy import STRATEGIES
from pasearch.sklearn_api.estimators import (
    PrivateArchitectureSearchClassifier,
    PrivateArchitectureSearchRegressor,
)

TAKEN = (
    "search_architecture", "plan_architecture_search", "train", "plan_training",
    "select_features", "plan_feature_selection",
)  # fmt: skip
"""Functions of a request."""

HELPED = (
    *TAKEN, "advise", "compare_workflows", "load", "load_result", "measure_crossover",
    "pretrain", "resume", "verify",
)  # fmt: skip

ROOT = Path(__file__).parent.parent
TASKS: list[tuple[type[Request], Any]] = [
    (SearchRequest, search_architecture),
    (FeatureRequest, select_features),
    (TrainRequest, train),
]
COMMANDS: Any = typer.main.get_command(app)
PYTHON_ONLY = {"budget", "progress"}


@pytest.mark.contract
@pytest.mark.quick
def test_command_signature_and_docstring_have_the_options_of_the_request():
    for request_, function in TASKS:
        said = {name: (default, option) for name, default, option in list_options(request_)}
        signature = inspect.signature(function).parameters
        assert set(signature) == {"data", *said}
        assert all(signature[name].default == default for name, (default, _) in said.items())
        told = " ".join((function.__doc__ or "").split())
        assert all(f" {name}: {option.help_text}" in told for name, (_, option) in said.items())
        for command, left in (
            (COMMANDS.commands[request_.task], set()),
            (COMMANDS.commands["plan"].commands[request_.task], {"out"}),
        ):
            given = {each.name: each for each in command.params}
            assert isinstance(command, GroupedCommand)
            assert set(said) - PYTHON_ONLY - left <= set(given)
            for name in set(said) - PYTHON_ONLY - left:
                default, option = said[name]
                assert given[name].help == option.help_text
                assert flag_name(name) in given[name].opts
                assert given[name].default in (default, [default])


@pytest.mark.unit
def test_help_is_in_groups(run: Any):
    for task in ["arch", "features", "train"]:
        code, out, _ = run(task, "--help")
        headings = [
            line.rstrip(":") for line in out.splitlines() if re.fullmatch(r"[A-Z][\w ]+:", line)
        ]
        assert code == 0
        assert headings == [*[group for group in GROUPS if group in headings], "Output"]
        assert {"Data", "Budget", "The run"} <= set(headings)


@pytest.mark.contract
@pytest.mark.quick
def test_the_reference_is_what_the_code_says():
    page = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))["page"]()
    assert (ROOT / "docs" / "reference.md").read_text() == page, "run docs/make_reference.py"


@pytest.mark.contract
def test_estimators_have_the_defaults_of_the_request():
    for kind in [PrivateArchitectureSearchClassifier, PrivateArchitectureSearchRegressor]:
        said = {name: default for name, default, _ in list_options(SearchRequest)}
        own = inspect.signature(kind).parameters
        shared = set(own) & set(said) - {"classes"}
        assert len(shared) >= 10
        assert {name: own[name].default for name in shared} == {name: said[name] for name in shared}
        assert own["epsilon"].default == SearchRequest().total.epsilon


@pytest.mark.unit
def test_errors_name_options_as_each_face_has_them():
    told = "leave `search_share=` out, or take `quotes=False`, `regression=True` or `strategy='rs'`"
    error = UsageError(told)
    assert str(error) == told
    assert error.fields == ("search_share", "quotes", "regression", "strategy")
    assert format_flags(told) == (
        "leave --search-share out, or take --no-quotes, --regression or --strategy rs"
    )
    assert format_flags("score_epsilon is -1: wrong") == "--score-eps is -1: wrong"
    assert format_flags("p_co + p_mu is 2: wrong") == "--p-co + --p-mu is 2: wrong"
    assert format_flags("the budget is 3") == "the budget is 3"


@pytest.mark.contract
def test_only_the_command_line_says_flags():
    """A message that Python users read names an option as Python has it.

    The command line takes its options from `request.py`, and the page and the advice of a report
    quote commands.
    """
    assert not [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in sorted((ROOT / "pasearch").rglob("*.py"))
        if "cli" not in file.relative_to(ROOT).parts
        if file.name not in ("request.py", "html.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.search(r"(?<![\w-])--[a-z][a-z-]+", line.split("#")[0])
    ]


@pytest.mark.unit
def test_a_function_takes_data_by_place_and_nothing_else():
    for function in (search_architecture, select_features, train):
        with pytest.raises(UsageError, match=r"as a positional argument: use \w+\(data"):
            function("digits", "target")
        with pytest.raises(UsageError, match=r"epsilon: unknown option.*budget=Budget"):
            function("digits", epsilon=2.0)
    assert accept_request_fields(TrainRequest)(lambda request: request.steps)(steps=7) == 7


@pytest.mark.unit
def test_epsilon_is_1_and_announced_where_none_is_given(run: Any):
    for task in ["arch", "features", "train"]:
        steps = () if task == "features" else ("--steps", 3)
        code, out, _ = run("plan", task, *steps)
        assert code == 0
        assert out.startswith("Budget: epsilon 1 (default; --eps sets it), delta 0.0001, for")
        for flag in ("--eps", "--epsilon"):
            code, out, _ = run(task, flag, 1, "--dry-run", *steps)
            assert code == 0
            assert out.startswith("Budget: epsilon 1, delta 0.0001, for")


class TestFinished:
    """`report` and `predict`, and what every result has."""

    FAST = ("--steps", 3, "--batch", 20, "--seed", 1, "--quiet", "--out", "x")

    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        rows = [f"{i % 50},{'ab'[i % 2]},{'no' if i % 50 < 25 else 'yes'}" for i in range(300)]
        (tmp_path / "t.csv").write_text("\n".join(["age,kind,bought", *rows]) + "\n")
        return tmp_path / "t.csv"

    @pytest.mark.quick
    @pytest.mark.parametrize("task", ["train", "features", "arch"])
    def test_of_a_table(self, run: Any, table: Path, task: str):
        import pasearch

        fast = self.FAST[4:] if task == "features" else self.FAST
        own = ("--strategy", "fixed") if task == "arch" else ()
        assert run(task, table, "--eps", 9, *fast, *own, "--max-categories", 3)[0] == 0
        code, out, _ = run("report", "x")
        assert code == 0
        assert "Test accuracy" in out
        assert out.rstrip().endswith("x/release/report.html")
        code, text, _ = run("predict", "x", table, "--probabilities")
        result = pasearch.load_result("x")
        lines = text.splitlines()
        assert lines[0] == ",".join(
            ["prediction", *(f"probability of {each}" for each in result.classes_)]
        )
        assert [line.split(",")[0] for line in lines[1:]] == result.predict(table).tolist()
        shares = np.array([line.split(",")[1:] for line in lines[1:]], float)
        assert shares.shape == (300, len(result.classes_))
        assert np.allclose(shares.sum(axis=1), 1.0, atol=1e-6)
        assert result.report.startswith("<!DOCTYPE html>")
        assert result.card.startswith("# Privacy card")
        assert result.price.epsilon <= 9
        code, _, err = run("predict", "x", table, "--out", table)
        assert (code, "exists" in err) == (2, True)
        assert run("predict", "x", table, "--out", "p.csv")[0] == 0
        assert Path("p.csv").read_text().splitlines()[1:] == result.predict(table).tolist()
        assert run("verify", "x")[0] == 0

    @pytest.mark.unit
    def test_of_arrays_and_of_what_does_not_fit(self, run: Any, tmp_path: Path, table: Path):
        rng = np.random.default_rng(0)
        np.savez(tmp_path / "a.npz", x=rng.random((200, 3)), y=np.arange(200) % 2)
        given = ("--bounds", 0, 1, "--classes", 2)
        assert run("train", "a.npz", "--eps", 9, *self.FAST, *given)[0] == 0
        code, out, _ = run("predict", "x", "a.npz")
        assert (code, len(out.splitlines())) == (0, 201)
        np.savez(tmp_path / "b.npz", z=np.zeros(3))
        for wrong, word in (("b.npz", "no array x"), ("nowhere.npz", "does not exist")):
            code, _, err = run("predict", "x", wrong)
            assert (code, word in err) == (2, True), err

    @pytest.mark.unit
    def test_a_table_without_a_column_is_refused(self, run: Any, table: Path, tmp_path: Path):
        given = ("--eps", 9, *self.FAST, "--max-categories", 3)
        assert run("train", table, *given)[0] == 0
        (tmp_path / "less.csv").write_text("age,other\n3,a\n4,b\n")
        code, _, err = run("predict", "x", "less.csv")
        assert (code, "no column 'kind'" in err) == (2, True)
        (tmp_path / "document.csv").write_text("%PDF-1.4\n%1 0 obj\n")
        code, _, err = run("predict", "x", "document.csv")
        assert (code, "is not a header of two or more columns" in err) == (2, True)
        assert "--" not in err.partition("document.csv")[2], "an option that predict lacks"
        (tmp_path / "torn.csv").write_text('kind,age\nb,1\n"torn,5\na,2\n')
        code, out, err = run("predict", "x", "torn.csv")
        assert (code, len(out.splitlines())) == (0, 4)
        assert out.splitlines()[2] == '""', "nothing is predicted for what cannot be read"
        assert "Nothing is predicted for 1 of 3 rows, which cannot be read (row 3)" in err
        assert "2 of 3 rows have cells that the model did not understand" in err
        assert "taken as the nearest (rows 2, 4)" in err
        (tmp_path / "whole.csv").write_text("kind,age\nb,20\na,30\n")
        code, out, err = run("predict", "x", "whole.csv")
        assert "column 'age'" not in err, err

    @pytest.mark.unit
    def test_a_number_has_no_classes(self, run: Any, tmp_path: Path):
        import pasearch

        rng = np.random.default_rng(0)
        np.savez(tmp_path / "a.npz", x=rng.random((200, 3)), y=rng.random(200))
        options = ("--bounds", 0, 1, "--regression", "--eps", 9, *self.FAST)
        assert run("train", "a.npz", *options)[0] == 0
        with pytest.raises(UsageError, match="has no classes"):
            _ = pasearch.load_result("x").classes_
        code, _, err = run("predict", "x", "a.npz", "--probabilities")
        assert (code, "has no classes" in err) == (2, True)


@pytest.mark.unit
def test_a_training_is_planned_as_it_is_run():
    x = np.random.default_rng(0).random((200, 3))
    plan = plan_training(
        (x, np.arange(200) % 2), budget=Budget(2.0), bounds=(0.0, 1.0), classes=2, steps=3
    )
    assert plan.strategy.name == "fixed"
    assert plan.price.epsilon <= 2.0


@pytest.mark.contract
def test_who_takes_an_option_is_who_is_said_to():
    """What a request says of strategies and methods, lightly, is what their classes say."""
    for request, registry, taken in (
        (SearchRequest, STRATEGIES, lambda kind: set(kind.request_options)),
        (FeatureRequest, SELECTORS, lambda kind: {each.name for each in fields(kind)}),
    ):
        kinds = registry.kinds()
        shipped = {n: k for n, k in kinds.items() if k.__module__.startswith("pasearch.")}
        assert set(request.among) == set(shipped)
        for option, _, said in list_options(request):
            if said.of:
                takers = {name for name, kind in shipped.items() if option in taken(kind)}
                assert set(said.of) == takers, option


@pytest.mark.contract
def test_help_describes_every_parameter_and_says_what_happens():
    for name in HELPED:
        function = getattr(pasearch, name)
        told, takes = inspect.getdoc(function) or "", inspect.signature(function).parameters
        for parameter in takes:
            assert re.search(rf"^    {parameter}: \S", told, re.MULTILINE), f"{name}: {parameter}"
        for part in ("Args:", "Raises:", "Cost:"):
            assert f"\n{part}" in told, f"{name} has no {part}"
        assert max(map(len, told.splitlines())) <= 100
        if name in TAKEN:
            assert "\nReturns:" in told
            assert f"\n    >>> from pasearch import Budget, {name}\n" in told
            for parameter in takes:
                said = re.search(rf"^    {parameter}: (.*?)(?=^    \w+: |^\S)", told, re.S | re.M)
                assert said, parameter
                words = " ".join(said[1].split())
                assert "default" in words, (
                    f"{name}: {parameter} does not say what is taken otherwise"
                )
