"""Advice before a run: from public numbers alone, with figures that stand where it says."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from doubles import Untouchable

import pasearch
from pasearch.accounting.budget import Budget
from pasearch.api.advise import (
    AGREEMENTS,
    MAX_EPSILON_FROZEN_CNN,
    MAX_EPSILON_FROZEN_FCN,
    MIN_EPSILON_ONE_HOT,
    PAPER_EVIDENCE,
    PROJECT_EVIDENCE,
    QUESTION_TABLE,
    QUESTIONS,
    Advice,
    Command,
    Evidence,
    Facts,
    advise,
    answer_questions,
    format_signal,
    suggest_more_signal,
)
from pasearch.api.request import DATA_OPTIONS, SearchRequest
from pasearch.api.search import plan_architecture_search, prepare_run
from pasearch.cli import app
from pasearch.cli.advise import format_shell_command
from pasearch.data.column import Column
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError
from pasearch.plan_warnings import MIN_SIGNAL
from pasearch.planning import bound_network_form

ROOT = Path(__file__).parent.parent
YES, NO, PART = AGREEMENTS[:3]
UNMEASURED = AGREEMENTS[3]
FIT = (1.1, 8922.4)
"""The paper's alpha and beta of eps = ln(alpha + beta / n), VI-B."""
GUIDE = ROOT / "docs/crossover.md"
COMMANDS: Any = typer.main.get_command(app)
KNOWN = Schema(shape=(5,), low=0.0, high=1.0, classes=3)
WIDE = Schema(shape=(200,), low=0.0, high=1.0, classes=2)


def unreadable(schema: Schema | TableSchema = KNOWN, n: int = 2000) -> Dataset:
    """Data of which the form alone can be seen."""
    table = isinstance(schema, TableSchema)
    shape = (len(schema.columns),) if table else schema.shape
    return Dataset(
        name="people", schema=schema,
        features=Untouchable((n, *shape), "O" if table else "f8"),  # type: ignore[arg-type]
        labels=Untouchable((n,), "O" if table else "i8"),  # type: ignore[arg-type]
    )  # fmt: skip


def columns(count: int, **target: Any) -> TableSchema:
    return TableSchema(
        columns=tuple(Column(name=f"c{place}", low=0.0, high=1.0) for place in range(count)),
        target=Column(name="y", **(target or {"categories": ("a", "b")})),
        name="people",
    )


def table(path: Path, rows: int = 400, *, odd: bool = False) -> Path:
    """Write a table; of the odd one every value is another, most of them unreadable."""
    lines = ["age,work,income"]
    for row in range(rows):
        usual = f"{20 + row % 50},{'ab'[row % 2]},{'yn'[row % 2]}"
        lines.append("inf,?,zzz" if odd else usual)
    path.write_text("\n".join(lines) + "\n")
    return path


def facts(**changes: Any) -> Facts:
    given: dict[str, Any] = {
        "name": "people", "form": "5 features, 3 classes", "kind": "table", "epsilon": 1.0,
        "delta": 1e-5, "records": 2000, "outputs": 3, "known": True, "signal": 40.0, "enough": 1.0,
        "columns": 5, "pixels": False, "table": True, "undeclared": (), "poor": False,
        "public": None, "metric": None, "default": "linear model", "front": "", "hidden": 0,
        "rate": 1.0, "batch": 500.0, "slots": 1800, "steps": 100, "compares": False,
        "why": "The space has a single candidate.", "outside": "",
        "weakest": "10 (wine): the best model has .800, guessing .330",
        "reached": "linear model .800, network .900", "forecast": None,
    }  # fmt: skip
    return Facts(**{**given, **changes})


def forecast(*changes: tuple[str, str]) -> dict[str, Any]:
    """A forecast whose best model changes so, of a small and a large one."""
    return {
        "sentence": "At epsilon 1 the best model is expected to be: small.", "data_sets": 4,
        "epsilons": [0.1, 10.0],
        "models": [{"name": "small", "parameters": 9, "roles": ["released", "simplest"]},
                   {"name": "large", "parameters": 99, "roles": ["largest"]}],
        "crossings": [{"epsilon": 0.5, "low": 0.2, "high": 0.9, "before": before, "after": after}
                      for before, after in changes],
    }  # fmt: skip


def parsed(line: str, tmp_path: Path) -> None:
    """Let the command line itself read a command; plans are made, nothing runs."""
    task, *arguments = shlex.split(line)[1:]
    if task in ("arch", "features"):
        task, arguments = "plan", [task, *arguments]
    command = COMMANDS.commands[task]
    if task == "plan":
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context(task, [*arguments])  # unknown options and wrong types end here


class TestReadsNoValue:
    @pytest.mark.quick
    def test_data_whose_values_raise_still_get_advice(self):
        for schema in [
            KNOWN,
            WIDE,
            columns(4),
            columns(60),
            columns(3, low=0.0, high=9.0),
            Schema(shape=(5,), low=None, high=None, classes=None),
            TableSchema(
                columns=(Column(name="a"), Column(name="b")), target=Column(name="y"), name="people"
            ),
        ]:
            found = advise(unreadable(schema), epsilon=1.0)
            assert found.records == 2000
            assert found.command.call()

    def test_advice_that_read_a_value_would_be_caught(self, monkeypatch: pytest.MonkeyPatch):
        def reading(request: Any, dataset: Any) -> Any:
            np.asarray(dataset.features._array)
            return prepare_run(request, dataset)

        monkeypatch.setattr("pasearch.api.advise.prepare_run", reading)
        with pytest.raises(AssertionError, match="touched"):
            advise(unreadable(), epsilon=1.0)

    def test_two_tables_that_differ_in_values_alone_get_the_same_advice(self, tmp_path: Path):
        first = advise(table(tmp_path / "mine.csv"), epsilon=1.0).to_json()
        second = advise(table(tmp_path / "mine.csv", odd=True), epsilon=1.0).to_json()
        assert first == second
        longer = advise(table(tmp_path / "mine.csv", rows=401), epsilon=1.0).to_json()
        assert longer != first, "the number of records is public, and counts"


class TestFigures:
    """Each figure stands in the file that is named with it, rounded at most."""

    @staticmethod
    def numbers(text: str) -> list[tuple[float, int]]:
        """Every number of a text, and to how many decimals it is written."""
        text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
        found = re.findall(r"(?<![\w.-])[-+]?\d*\.?\d+(?![\w-])", text)
        return [(float(each), len(each.partition(".")[2])) for each in found]

    def missing(self, says: str, text: str) -> list[float]:
        there = np.array([abs(value) for value, _ in self.numbers(text)])
        return [
            value
            for value, decimals in self.numbers(says)
            if not (abs(there - abs(value)) <= 0.5001 * 10.0**-decimals * bool(decimals)).any()
        ]

    def test_ours(self):
        for about in sorted(PROJECT_EVIDENCE):
            evidence = PROJECT_EVIDENCE[about]
            names = re.sub(r"CIFAR-10", "CIFAR", evidence.says)
            assert self.missing(names, (ROOT / evidence.where).read_text()) == []

    def test_a_wrong_figure_would_be_seen(self):
        evidence = PROJECT_EVIDENCE["declared"]
        assert self.missing(evidence.says.replace(".864", ".8651"), Path(
            ROOT / evidence.where).read_text()) == [0.8651]  # fmt: skip

    def test_frozen_layers_and_recipes_are_those_runs(self):
        rows = [json.loads(each) for each in
                (ROOT / PROJECT_EVIDENCE["frozen"].where).read_text().splitlines()]  # fmt: skip
        found = {
            (each["data"], each["recipe"]): each["accuracy"]
            for each in rows
            if each["epsilon"] == 3.0 and each["seed"] == 0 and not each["full"]
            if not each.get("units")  # networks of three hidden layers
        }
        for data, recipe, told in (
            ("mnist", "rwt", 0.855), ("mnist", "dpsgd", 0.904), ("mnist", "default", 0.905),
            ("mnist", "auto-s", 0.906), ("fashion-mnist", "rwt", 0.763),
            ("fashion-mnist", "dpsgd", 0.799),
        ):  # fmt: skip
            assert found[data, recipe] == pytest.approx(told, abs=5.1e-4)
        others = [v for (d, r), v in found.items() if d == "mnist" and r != "default"]
        assert max(others) == found["mnist", "auto-s"]

    def test_studies_state_their_share_of_the_papers_steps(self):
        text = (ROOT / "benchmarks/crossover/README.md").read_text()
        results = ROOT / "benchmarks/crossover/results/runs.jsonl"
        rows = [json.loads(each) for each in results.read_text().splitlines()]
        paper = {"fig-10": 300_000, "table-ix": 300_000, "table-iv": 90_000, "clipping": 210_000}
        for study, steps in paper.items():
            most = max(each["steps"] for each in rows if each["study"] == study)
            assert most < steps / 100
            assert f"{100 * most / steps:.2g} % of the paper's steps" in text.split(study)[-1][:60]
        verdicts = [line.split("|")[2] for line in text.splitlines() if line.startswith("| T")]
        assert any("not measured at the paper's length" in each for each in verdicts)
        for word in ("refuted", "not reproduced"):
            assert not any(word in each for each in verdicts), "needs the paper's own length"

    def test_searches_are_medians_of_those_runs(self):
        path = ROOT / "benchmarks/search_pays/results/runs.jsonl"
        rows = [json.loads(each) for each in path.read_text().splitlines()]
        for arm, told in (
            ("fixed", 0.913), ("portfolio-rs, in place", 0.897), ("paas, in place", 0.760),
            ("portfolio-rs, aside", 0.899), ("mgrs, aside", 0.888), ("paas, aside", 0.888),
        ):  # fmt: skip
            own = [
                each["accuracy"]
                for each in rows
                if (each["data"], each["epsilon"], each["arm"]) == ("digits", 1, arm)
            ]
            assert len(own) == 10
            assert np.median(own) == pytest.approx(told, abs=5.1e-4)

    def test_the_papers_thresholds_are_said_as_they_are_used(self):
        for used, evidence in (
            (MAX_EPSILON_FROZEN_CNN, "frozen"),
            (MAX_EPSILON_FROZEN_FCN, "frozen"),
            (MIN_EPSILON_ONE_HOT, "one-hot"),
            (FIT[0], "signal"),
            (FIT[1], "signal"),
        ):
            assert used in [value for value, _ in self.numbers(PAPER_EVIDENCE[evidence].says)]

    def test_what_the_paper_s_fit_gives(self):
        said = answer_questions(facts())[0].paper.says
        assert "5,514" in said
        assert math.log(FIT[0] + FIT[1] / 5514) == pytest.approx(1.0, abs=1e-4)

    def test_the_plan_s_own_numbers(self):
        plan = plan_architecture_search("digits", budget=Budget(2.0))
        assert plan.trial_mu is not None
        signal = plan.trial_mu * plan.released_slots / bound_network_form(plan.schema, plan.most)[1]
        found = advise("digits", epsilon=2.0)
        assert format_signal(signal) in found.branch("signal").answer
        recipe = plan.trial_recipe(plan.space.candidate(plan.space.default_genotype()))
        assert recipe.learning_rate is not None
        assert f"rate {recipe.learning_rate:.2g}," in found.branch("recipe").answer
        assert plan.auto is not None
        assert plan.auto["why"] in found.branch("search").answer


class TestBranches:
    def test_every_question_is_answered_in_order(self):
        names = [each.name for each in answer_questions(facts())]
        assert names == list(QUESTIONS)
        assert all(
            {"agree", "because", "answer", "advice", "ours"} <= set(row := each | case)
            and row["agree"] in AGREEMENTS
            for each in QUESTION_TABLE
            for case in each["case"]
        ), "every case of the table has all parts"

    def test_every_branch_has_evidence_of_both(self):
        for each in answer_questions(facts()):
            assert each.question == QUESTIONS[each.name]
            assert each.agree in AGREEMENTS
            assert each.because
            assert each.paper.says
            assert each.paper.where
            for own in each.ours:
                assert (ROOT / own.where).is_file(), own.where

    def test_questions_without_a_meaning_are_left_out(self):
        of_images = [
            each.name for each in answer_questions(facts(table=False, kind="image", pixels=True))
        ]
        assert "one-hot" not in of_images
        of_numbers = [each.name for each in answer_questions(facts(kind="regression", outputs=1))]
        assert "rare" not in of_numbers

    def test_a_weak_signal_says_what_would_help(self):
        weak = facts(signal=2.0, enough=3.0, records=1000, outputs=10)
        said = suggest_more_signal(weak)
        for words in ("Do not train yet", "2,500 instead of 1,000", "epsilon (about 3)", "into 4"):
            assert words in said
        assert answer_questions(weak)[0].answer.startswith(NO)
        assert "merge" not in suggest_more_signal(facts(signal=2.0, outputs=2, enough=None))
        assert "declare the classes" in suggest_more_signal(
            facts(signal=2.0, known=False, outputs=32)
        )

    def test_the_limit_of_the_signal_is_the_plan_s(self):
        for signal in [MIN_SIGNAL * 0.99, MIN_SIGNAL]:
            assert facts(signal=signal).learns == (signal >= MIN_SIGNAL)

    def test_simple_below_agrees_with_the_paper_and_complex_below_does_not(self):
        for changes, agree in [
            ((), PART),
            ((("small", "large"),), YES),
            ((("large", "small"),), NO),
            ((("small", "large"), ("large", "small")), PART),
        ]:
            found = {
                each.name: each for each in answer_questions(facts(forecast=forecast(*changes)))
            }
            assert found["complexity"].agree == agree
            assert ("between 0.2 and 0.9" in found["complexity"].answer) == bool(changes)

    def test_batches_are_full_or_a_part_and_never_both(self):
        for batch, told in [
            (1800.0, "all records are in every step"),
            (500.0, "a random part of the records"),
        ]:
            found = {each.name: each for each in answer_questions(facts(batch=batch))}["recipe"]
            assert told in found.advice
            assert ("all 1,800 training records" in found.answer) == (batch == 1800.0)
            assert "full batches" not in found.advice

    def test_without_a_forecast_the_comparison_is_not_known(self):
        found = {
            each.name: each for each in answer_questions(facts(outside="there are 99 classes."))
        }
        assert found["complexity"].agree == UNMEASURED
        assert "99 classes" in found["complexity"].answer

    def test_random_weights(self):
        for epsilon, hidden, answer, agree in [
            (0.3, 1, "either kind", PART),
            (1.0, 1, "fully connected", PART),
            (2.0, 1, "no: epsilon 2", YES),
            (0.3, 0, "no hidden layer", PART),
        ]:
            found = {e.name: e for e in answer_questions(facts(epsilon=epsilon, hidden=hidden))}[
                "frozen"
            ]
            assert answer in found.answer
            assert found.agree == agree

    def test_rare_classes_are_not_known_unless_said(self):
        assert answer_questions(facts())[-1].answer.startswith("not known")
        assert answer_questions(facts(metric="balanced-accuracy"))[-1].answer.startswith(YES)
        assert "threshold" in answer_questions(facts(outputs=2))[-1].advice

    def test_every_kind_of_data_has_evidence_of_its_front_end(self):
        for kind in ("table", "regression", "arrays", "image", "photo"):
            assert isinstance(PROJECT_EVIDENCE[f"front of {kind}"], Evidence)
            assert answer_questions(facts(kind=kind))


class TestCommands:
    def test_many_columns_go_to_features(self):
        for schema, task in [
            (KNOWN, "arch"),
            (WIDE, "features"),
            (columns(4), "arch"),
            (columns(60), "features"),
        ]:
            assert advise(unreadable(schema, 20_000), epsilon=1.0).command.task == task

    def test_no_signal_spends_nothing(self):
        found = advise(unreadable(n=200), epsilon=0.01)
        assert found.command.task == "plan arch"
        assert "Do not train yet" in found.text()

    def test_the_epsilon_that_is_advised_has_signal_enough(self):
        found = advise("digits", epsilon=0.01)
        larger = dict(found.command.options)["epsilon"]
        assert advise("digits", epsilon=larger).branch("signal").answer.startswith(YES)
        assert larger > 0.01

    @pytest.mark.slow
    def test_the_command_is_one_that_the_command_line_takes(self, run: Any, tmp_path: Path):
        for epsilon in (0.01, 2):
            code, out, err = run("advise", "digits", "--eps", epsilon)
            assert code == 0, err
            (line, *others) = [each for each in out.splitlines() if each.startswith("    pasearch")]
            assert len(others) <= 2
            plan = [word for word in shlex.split(line)[1:] if word != "plan"]
            assert run("plan", *plan)[0] == 0, line

    def test_commands_of_a_table_name_its_schema_and_its_public_data(
        self, run: Any, tmp_path: Path
    ):
        table(tmp_path / "a mine.csv")
        table(tmp_path / "public.csv", rows=300)
        code, out, err = run(
            "advise", "a mine.csv", "--eps", 1, "--public", "public.csv", "--delta", 1e-4
        )
        assert code == 0, err
        lines = [each.strip() for each in out.splitlines() if each.startswith("    pasearch")]
        assert lines[0] == (
            "pasearch arch 'a mine.csv' --eps 1 --delta 0.0001 --search-on public.csv"
        )
        assert lines[1].startswith("pasearch crossover 'a mine.csv' linear fcn")
        assert "--proxy public.csv" in lines[1]
        for line in lines:
            parsed(line, tmp_path)

    @pytest.mark.parametrize("poor", [False, True])
    def test_a_schema_is_proposed_first_where_estimates_are_poor(
        self, run: Any, tmp_path: Path, poor: bool
    ):
        table(tmp_path / "mine.csv", rows=60 if poor else 30_000)
        code, out, err = run("advise", "mine.csv", "--eps", 1, "--target", "income")
        assert code == 0, err
        lines = [each.strip() for each in out.splitlines() if each.startswith("    pasearch")]
        check = "pasearch check mine.csv --target income --propose mine.toml"
        assert lines.index(check) == (0 if poor else 1)
        assert run(*shlex.split(check)[1:])[0] == 0
        for line in lines:
            parsed(line, tmp_path)

    def test_what_is_in_memory_gets_a_call_that_works(self):
        data = (np.zeros((3000, 4)), np.zeros(3000, int))
        found = advise(data, epsilon=1.0, delta=1e-5, bounds=(0, 1), classes=2)
        for each in (found.command, *found.alternatives):
            plan = each.call().replace("search_architecture", "plan_architecture_search")
            names = {name: getattr(pasearch, name) for name in pasearch.__all__} | {"data": data}
            assert eval(plan, names).budget == Budget(1.0, 1e-5)
        models = Command(task="crossover", data=None, models=("linear", "fcn"),
                         options=(("proxy", "p.csv"),))  # fmt: skip
        assert models.call() == "measure_crossover(data, ['linear', 'fcn'], proxy='p.csv')"

    def test_a_check_in_python_works(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        path = table(tmp_path / "mine.csv", rows=60)
        command = advise(path, epsilon=1.0, target="work", quotes=False).command
        assert command.task == "check"
        assert "'a', 'b'" in repr(eval(command.call(), {"pasearch": pasearch}).toml()).replace(
            '"', "'"
        )

    def test_labels_with_a_comma_are_passed_in_python_and_left_out_of_a_shell(self, tmp_path: Path):
        path, labels = table(tmp_path / "mine.csv", rows=30_000), ["yes, often", "no"]
        found = advise(path, epsilon=1.0, labels=labels)
        assert f"labels={labels!r}" in found.command.call()
        names = {name: getattr(pasearch, name) for name in pasearch.__all__}
        plan = found.command.call().replace("search_architecture", "plan_architecture_search")
        assert eval(plan, names).schema.outputs == 2
        assert "--labels" not in format_shell_command(found.command)
        parsed(format_shell_command(found.command), tmp_path)
        (said,) = [each for each in found.warnings if "comma" in each]
        assert "`labels=`" in said
        assert "schema (`schema=`)" in said
        plain = advise(path, epsilon=1.0, labels=np.array([-1, 1]))
        assert "labels=[-1, 1]" in plain.command.call()
        assert "--labels=-1,1" in format_shell_command(plain.command)
        parsed(format_shell_command(plain.command), tmp_path)
        assert not [each for each in plain.warnings if "comma" in each]

    def test_flags(self):
        options = (("epsilon", 0.25), ("bounds", (0.0, 255.0)), ("regression", True),
                   ("quotes", False), ("image_side", 64))  # fmt: skip
        line = format_shell_command(Command(task="plan arch", data="a;b.npz", options=options))
        assert line == (
            "pasearch plan arch 'a;b.npz' --eps 0.25 --bounds 0 255 --regression --no-quotes "
            "--image-side 64"
        )


@pytest.fixture(scope="module")
def of_digits() -> Advice:
    return advise("digits", epsilon=2.0)


class TestShown:
    def test_five_lines_sum_it_up(self, of_digits: Advice):
        lines = of_digits.text().splitlines()
        assert [each.split(":")[0] for each in lines[:4]] == [
            "Data", "Signal-to-noise ratio per class", "Model", "Search",
        ]  # fmt: skip
        assert lines[4] == "    search_architecture('digits', budget=Budget(epsilon=2.0))"
        assert (
            of_digits.text(format_shell_command).splitlines()[4]
            == "    pasearch arch digits --eps 2"
        )
        assert lines[5] == ""
        for each in of_digits.branches:
            assert any(line.endswith(each.question) for line in lines)

    def test_the_questions_are_told_where_they_are_asked_for(self, run: Any, of_digits: Advice):
        code, short, _ = run("advise", "digits", "--eps", 2)
        assert code == 0
        assert short.splitlines()[:5] == of_digits.text(format_shell_command).splitlines()[:5]
        assert len(short.splitlines()) < 20
        assert not any(each.question in short for each in of_digits.branches)
        assert short.rstrip().endswith(
            f"Use --verbose for the {len(of_digits.branches)} decisions and their evidence."
        )
        code, whole, _ = run("advise", "digits", "--eps", 2, "--verbose")
        assert code == 0
        assert all(each.question in whole for each in of_digits.branches)
        assert whole.splitlines()[:9] == short.splitlines()[:9]
        assert "Use --verbose" not in whole

    def test_on_a_terminal_lines_are_wrapped_and_commands_are_not(
        self, run: Any, monkeypatch: pytest.MonkeyPatch
    ):
        from pasearch.cli import options

        class Terminal:
            @staticmethod
            def isatty() -> bool:
                return True

        monkeypatch.setattr(options, "sys", type("System", (), {"stdout": Terminal}))
        monkeypatch.setenv("COLUMNS", "70")
        folder = "a-folder-with-quite-a-long-name-" * 3
        _, out, _ = run("advise", "digits", "--eps", 2, "--data-root", folder)
        plain = [each for each in out.splitlines() if not each.startswith("    pasearch ")]
        assert max(map(len, plain)) <= 70
        assert f"    pasearch arch digits --eps 2 --data-root {folder}" in out.splitlines()

    def test_json_has_the_values(self, run: Any, of_digits: Advice):
        code, out, _ = run("advise", "digits", "--eps", 2, "--json")
        assert code == 0
        assert json.loads(out) == json.loads(json.dumps(of_digits.to_json(format_shell_command)))
        first = json.loads(out)["branches"][0]
        assert {"question", "answer", "advice", "ours", "paper", "agree"} <= set(first)

    def test_it_is_public(self):
        assert pasearch.advise is advise
        assert pasearch.Advice is Advice


class TestRefusals:
    def test_bad_input_is_told_with_what_to_do(self, run: Any):
        for arguments, words in [
            (("nowhere.csv", "--eps", 1), "nowhere.csv"),
            (("digits", "--eps", 0), "--eps is 0"),
            (("digits", "--eps", "nan"), "above 0"),
            (("digits",), "--eps"),
            (("digits", "--eps", 1, "--delta", 0.5), "delta"),
            (("digits", "--eps", 1, "--classes", 3), "--classes"),
            (("digits", "--eps", 1, "--metric", "speed"), "speed"),
            (("digits", "--eps", 1, "--public", "digits"), "--public"),
            (("digits", "--eps", 1, "--strategy", "rs"), "--strategy"),
        ]:
            code, out, err = run("advise", *arguments)
            assert code == 2
            assert words in err
            assert "Traceback" not in err
            assert not out

    def test_public_data_of_another_form(self, run: Any, tmp_path: Path):
        table(tmp_path / "mine.csv")
        (tmp_path / "other.csv").write_text("a,b\n1,2\n3,4\n")
        code, _, err = run("advise", "mine.csv", "--eps", 1, "--public", "other.csv")
        assert code == 2
        assert "public data have no column 'age'" in err

    def test_options_of_a_run_are_not_of_its_advice(self):
        with pytest.raises(UsageError, match="strategy"):
            advise("digits", epsilon=1.0, strategy="rs")
        assert set(DATA_OPTIONS) <= {each.name for each in fields(SearchRequest)}


def steps_of_the_guide() -> str:
    """The section with the questions, unfolded."""
    section = GUIDE.read_text().partition("## Decide step by step")[2].partition("\n## ")[0]
    return " ".join(section.split())


class TestGuide:
    def test_in_the_order_of_the_rules(self):
        page = steps_of_the_guide()
        places = [page.index(each) for each in QUESTIONS.values()]
        assert places == sorted(places)

    def test_its_figures_are_those_of_the_rules(self):
        known = " ".join(
            each.says for each in (*PROJECT_EVIDENCE.values(), *PAPER_EVIDENCE.values())
        )
        known += f" {answer_questions(facts())[0].paper.says} 50 {MIN_SIGNAL:g} .003 8 11"
        figures = TestFigures()
        told = re.sub(r"\]\([^)]*\)|CIFAR-10|Fig. \d+", "]", steps_of_the_guide())
        assert figures.missing(told, known) == []
