"""measure_crossover and `pasearch crossover`: what they measure, write and refuse."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pasearch as api
from pasearch.cli.app import app
from pasearch.errors import PasearchError, UsageError

FEW = {"epsilons": "0.5:8:log3", "repeats": 2, "device": "cpu", "steps": 20}


@cache
def measured_by_default() -> api.CrossoverReport:
    return measured()


def measured(models: tuple = ("linear", "fcn"), **more: object) -> api.CrossoverReport:
    return api.measure_crossover("digits", models, **{"data_is_public": True} | FEW | more)


@pytest.mark.slow
class TestMeasure:
    def test_more_epsilon_and_no_noise_have_less_error(self):
        found = measured_by_default()
        assert found.errors.shape == (2, 3, 2)
        means = found.errors.mean(axis=2)
        assert (means[:, 0] > means[:, -1] + 0.05).all()
        assert (found.cost_of_privacy()[:, 0] > 0.02).all()
        assert found.names == ("linear", "fcn"), "the one with fewer parameters first"
        # Two repeats of six tests are too few for a significant difference: the simplest is taken.
        assert found.model_at(0.5) == "linear"
        assert "no significant difference at any epsilon" in found.table()
        assert json.loads(json.dumps(found.to_json()))["best"] == list(found.best)

    def test_the_same_seed_measures_the_same_and_another_does_not(self):
        assert np.array_equal(measured().errors, measured_by_default().errors)
        assert not np.array_equal(measured_by_default().errors, measured(seed=1).errors)

    def test_public_records_stand_for_private_ones_at_their_number(self):
        draw = np.random.default_rng(0)
        x = draw.random((300, 8, 8)).astype("float32") * 16
        found = api.measure_crossover(
            (x, np.arange(300) % 10), ("linear", "fcn"), proxy="digits", bounds=(0, 16),
            classes=10, **FEW,
        )  # fmt: skip
        assert found.n < 300
        assert "similar difficulty" in found.assumes
        assert found.data == "digits"


@pytest.mark.unit
class TestRefused:
    def test_a_grid_that_is_none(self):
        for grid in [
            "1:0.1:log5", "0:1:log5", "1", "1:2:log1", "2,1", "1,1", "a,b", "-1,1", "nan,1",
            "1,inf", [], [1.0], [2.0, 1.0],
        ]:  # fmt: skip
            with pytest.raises(UsageError, match="rising numbers"):
                measured(epsilons=grid)

    def test_models_that_are_none(self):
        for models, said in [
            (("linear",), "two or more"),
            (("linear", "linear"), "same model"),
            (("linear", "tree"), "not known"),
            (("linear", "fcn+nothing"), "Front end"),
            (("linear", "fcn+standardise+pca:3"), "two front ends"),
            (("linear", "missing.toml"), "missing.toml"),
            (("linear", "cnn"), "."),
        ]:
            with pytest.raises(PasearchError, match=said):
                measured(models)

    def test_private_records_are_not_read(self):
        with pytest.raises(UsageError, match="data_is_public"):
            measured(data_is_public=False)


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_a_page(tmp_path: Path):
    args = ["crossover", "digits", "linear", "fcn", "--data-is-public", "--eps-grid", ".5,4",
            "--repeats", "2", "--steps", "10", "--device", "cpu"]  # fmt: skip
    found = CliRunner().invoke(app, [*args, "--out", str(tmp_path / "out")])
    assert found.exit_code == 0, found.output
    assert "no significant difference at any epsilon" in " ".join(found.output.split())
    page = (tmp_path / "out" / "crossover.html").read_text()
    assert "<script" not in page
    assert "Where the best model changes" in page
    values = json.loads((tmp_path / "out" / "crossover.json").read_text())
    assert [each["name"] for each in values["models"]] == ["linear", "fcn"]
    again = CliRunner().invoke(app, [*args, "--out", str(tmp_path / "out")])
    assert again.exit_code != 0


@pytest.mark.unit
def test_names_from_outside_are_escaped():
    from pasearch.report.html import crossover_html

    evil = "<b>net</b>"
    values = {
        "data": evil, "n": 10, "delta": 1e-5, "metric": "1 - accuracy", "repeats": 1,
        "epsilons": [1.0, 2.0], "best": [evil, evil], "taken": [evil, evil], "sentence": evil,
        "assumes": evil,
        "models": [
            {"name": evil, "parameters": 1, "error": [0.1, 0.2], "half_width": [0.0, 0.0],
             "error_without_privacy": 0.1, "cost_of_privacy": [0.0, 0.1]},
        ],
        "crossovers": [{"simple": evil, "complex": evil, "text": evil, "sentence": evil}],
    }  # fmt: skip
    assert evil not in crossover_html(values)


@pytest.mark.slow
class TestSideBySide:
    def test_two_processes_measure_what_one_does(self):
        alone = measured(repeats=4, workers=1)
        beside = measured(repeats=4, workers=2)
        assert alone.errors.size + alone.plain.size > 24, "enough for other processes"
        assert np.array_equal(alone.errors, beside.errors)
        assert np.array_equal(alone.plain, beside.plain)

    def test_an_interrupted_comparison_goes_on_where_it_was(self, tmp_path: Path):
        store, seen = tmp_path / "more" / "trainings.jsonl", []

        def stop(done: int, every: int) -> None:
            if done == 5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            measured(store=store, on_training=stop)
        with store.open("a") as file:
            file.write('{"point": [0, 0')  # it was killed while it wrote
        found = measured(store=store, on_training=lambda done, every: seen.append(done))
        assert seen[0] == 6
        assert np.array_equal(found.errors, measured_by_default().errors)
        with pytest.raises(UsageError, match="another comparison"):
            measured(store=store, seed=1)
        with pytest.raises(UsageError, match="another comparison"):
            measured(("linear", "fcn+rwt"), store=store)

    def test_a_file_of_something_else_is_refused(self, tmp_path: Path):
        store = tmp_path / "trainings.jsonl"
        store.write_text('[1]\n{"point": 1}\n')
        with pytest.raises(UsageError, match="damaged"):
            measured(store=store)


TABLE = """a,b,kind,label
{rows}
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    a, b, kind = draw.random(600), draw.random(600), draw.integers(0, 3, 600)
    label = np.where(a + 0.3 * (kind == 2) > 0.6, "yes", "no")
    rows = "\n".join(
        f"{p:.3f},{q:.3f},{'xyz'[k]},{c}" for p, q, k, c in zip(a, b, kind, label, strict=True)
    )
    path = tmp_path / "table.csv"
    path.write_text(TABLE.format(rows=rows))
    return path


class TestFeatures:
    @pytest.mark.slow
    def test_models_of_some_features_alone(self, table: Path):
        found = api.measure_crossover(
            str(table), ("linear", "linear+columns:b", "linear+numbers", "linear+cfs:2",
                         "linear+random:2", "linear+columns:a,kind"),
            data_is_public=True, **{**FEW, "steps": 60, "epsilons": (0.5, 8.0)},
        )  # fmt: skip
        plain = dict(zip(found.names, found.plain.mean(axis=1), strict=True))
        assert plain["linear+columns:a,kind"] < plain["linear+numbers"] - 0.02
        assert plain["linear+columns:b"] > 0.3 > plain["linear+columns:a,kind"]
        assert plain["linear+cfs:2"] < plain["linear+columns:b"]
        sizes = dict(zip(found.names, found.parameters, strict=True))
        assert sizes["linear+cfs:2"] == sizes["linear+random:2"] == 6

    @pytest.mark.unit
    def test_features_that_are_none(self, table: Path):
        for model, said in [
            ("linear+cfs", "number of features"),
            ("linear+cfs:x", "number of features"),
            ("linear+cfs:99", "have"),
            ("linear+columns:nothing", "no column 'nothing'"),
            ("linear+columns", "names"),
            ("linear+numbers:3", "numbers"),
            ("linear+cfs:2+numbers", "twice"),
            ("linear+cfs:2+standardise", "front end"),
            ("linear+cfs:0", "integer|whole number"),
        ]:
            with pytest.raises(UsageError, match=said):
                api.measure_crossover(str(table), ("linear", model), data_is_public=True, **FEW)
