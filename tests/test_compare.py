"""compare_workflows and `pasearch compare`: what they choose, test, print and refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pasearch as api
from pasearch.api import compare as workflows
from pasearch.api.compare import Comparison, Workflow, draw_candidates
from pasearch.cli.app import app
from pasearch.data.partitions import Dataset
from pasearch.errors import PasearchError, UsageError
from pasearch.runs.keys import Keys
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.layers import Dense
from pasearch.spaces.parsing import make_space

TINY = {
    "family": "fcn",
    "choices": {"layers": [0, 1], "units_1": [4, 16], "activation_1": ["tanh", "relu"]},
}
"""Eight genotypes, five candidates: a linear model has no units."""

FEW = {"space": TINY, "repeats": 2, "steps": 12, "device": "cpu", "data_is_public": True}


def compared(data: object = "digits", **more: object) -> Comparison:
    return api.compare_workflows(data, **{**FEW, **more})


def arrays(labels: np.ndarray, x: np.ndarray) -> Dataset:
    """Public arrays whose last 80 records are the test set."""
    from pasearch.data.array_file import from_arrays

    made = from_arrays(x, labels, bounds=(0.0, 1.0), classes=3, public=True)
    return replace(made, official_test=80)


@pytest.fixture(scope="module")
def records() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.random((480, 6)).astype("float32")
    return x, (3 * (0.8 * x[:, 0] + 0.2 * x[:, 1])).astype(int)


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compared()


@pytest.mark.slow
class TestCompare:
    def test_both_workflows_take_the_best_of_the_same_candidates(self, found: Comparison):
        assert len(found.tried) == 5
        by_name = {each.name: each for each in found.tried}
        plain = by_name[found.standard.candidate.describe()].plain
        private = by_name[found.aware.candidate.describe()].private
        assert plain == max(each.plain for each in found.tried)
        assert private == max(each.private for each in found.tried)
        assert sorted(each.parameters for each in found.tried) == [
            each.parameters for each in found.tried
        ]

    def test_the_same_seed_compares_the_same_and_another_does_not(self, found: Comparison):
        assert compared() == found
        assert compared(seed=1).tried != found.tried

    def test_values_and_table_say_the_same(self, found: Comparison):
        values = json.loads(json.dumps(found.to_json()))
        assert values["sentence"] == found.sentence()
        assert found.table().endswith(found.sentence())
        assert [each["parameters"] for each in values["workflows"]] == [
            found.standard.parameters, found.aware.parameters,
        ]  # fmt: skip
        assert Candidate.from_json(values["workflows"][1]["candidate"]) == found.aware.candidate

    def test_workers_do_not_change_it(self, monkeypatch: pytest.MonkeyPatch, found: Comparison):
        seen: list[tuple[int, int]] = []
        monkeypatch.setattr("pasearch.api.compare.MIN_SECONDS_FOR_PROCESSES", 0.0)
        beside = compared(workers=2, on_training=lambda *told: seen.append(told))
        assert beside == found
        done, every = zip(*seen, strict=True)
        assert done == tuple(range(1, len(seen) + 1))
        assert every[0] == 2 * 5 + 4 * 2
        assert every[-1] == done[-1]


@pytest.mark.slow
class TestTheTestRecords:
    def test_have_no_part_in_a_choice(self, records: tuple):
        """Their labels are all wrong, and both workflows choose the same by the same scores."""
        x, y = records
        wrong = y.copy()
        wrong[-80:] = (y[-80:] + 1) % 3
        first, second = (compared(arrays(each, x)) for each in (y, wrong))
        assert first.test == 80
        assert first.tried == second.tried
        for a, b in ((first.standard, second.standard), (first.aware, second.aware)):
            assert a.candidate == b.candidate
            assert min(a.plain) > max(b.plain), "the tests themselves see it"

    def test_are_none_of_those_that_are_trained_on_or_chosen_by(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        seen = []
        genuine = workflows.measure_points

        def spy(study, points, *more, **options):
            seen.append(study.places)
            return genuine(study, points, *more, **options)

        monkeypatch.setattr(workflows, "measure_points", spy)
        compared(repeats=1, steps=2)
        (train, validation), (again, test) = seen
        assert np.array_equal(train, again)
        every = np.concatenate([train, validation, test])
        assert np.array_equal(np.sort(every), np.arange(1797))


@pytest.mark.slow
def test_the_command_prints_a_row_each_and_writes_a_file(tmp_path: Path):
    net = tmp_path / "tiny.toml"
    net.write_text('family = "fcn"\n[choices]\nlayers = [0, 1]\nunits_1 = [4, 16]\n')
    args = ["compare", "digits", "--data-is-public", "--space", str(net), "--repeats", "2",
            "--steps", "10", "--device", "cpu"]  # fmt: skip
    out = tmp_path / "new.json"
    found = CliRunner().invoke(app, [*args, "--out", str(out)])
    assert found.exit_code == 0, found.output
    for said in ("standard (STW)", "privacy-aware (PAW)", "PR: ", "nothing is charged"):
        assert said in found.output
    values = json.loads(out.read_text())
    assert values["sentence"] in found.output
    again = CliRunner().invoke(app, [*args, "--out", str(out)])
    assert isinstance(again.exception, UsageError), "it is there already"
    assert values == json.loads(CliRunner().invoke(app, [*args, "--json"]).stdout)
    quiet = CliRunner().invoke(app, [*args, "--quiet"])
    assert quiet.output.strip() == values["sentence"]


@pytest.mark.unit
class TestCandidates:
    def test_are_all_of_a_small_space_and_each_once(self):
        chosen = make_space(TINY)
        found = draw_candidates(chosen, 10, Keys.from_seed(0).stream("x"))
        assert len(found) == len(set(found)) == 5
        assert found[0] == chosen.candidate(chosen.default_genotype())


def row(name: str, units: int, private: tuple[float, ...], parameters: int = 100) -> Workflow:
    layers = (Dense(units=units),)
    return Workflow(
        name=name, candidate=Candidate(architecture=Architecture(layers=layers)),
        parameters=parameters, private=private, plain=private,
    )  # fmt: skip


def comparison(standard: Workflow, aware: Workflow, metric: str = "accuracy") -> Comparison:
    return Comparison(
        data="made up", train=800, validation=100, test=100, epsilon=2.0, delta=1e-4, signal=50.0,
        metric=metric, space="mine", tried=(), standard=standard, aware=aware,
    )  # fmt: skip


@pytest.mark.unit
class TestSentence:
    def test_the_privacy_aware_one_is_better(self):
        """Table I, MNIST: 93.10 and 94.94 %, 66,762 and 9,610 parameters: 1.84 %, 6.9 times."""
        found = comparison(
            row("STW", 8, (0.930, 0.931, 0.932), 66_762), row("PAW", 4, (0.948, 0.949, 0.951), 9610)
        )
        assert found.gap()[0] == pytest.approx(0.0183, abs=1e-4)
        assert found.ratio == pytest.approx(6.947, abs=1e-3)
        said = found.sentence()
        assert "chosen with privacy in mind is 0.0183 better" in said
        assert said.endswith(
            "; the model chosen with privacy in mind has 0.144 times the parameters."
        )

    def test_the_difference_is_noise(self):
        found = comparison(
            row("STW", 8, (0.90, 0.92, 0.94, 0.91, 0.9)),
            row("PAW", 4, (0.91, 0.91, 0.95, 0.9, 0.91)),
        )  # fmt: skip
        assert "within the noise of 5 trainings" in found.sentence()
        one = comparison(row("STW", 8, (0.5,)), row("PAW", 4, (0.9,)))
        assert "its significance is unknown" in one.sentence()

    def test_a_name_cannot_forge_a_line(self):
        made = comparison(row("STW", 8, (0.9, 0.91)), row("PAW", 4, (0.9, 0.91)))
        assert "\x1b" not in replace(made, data="\x1b[2J\nPrice: 0").table()


@pytest.mark.unit
class TestRefused:
    def test_private_records_are_not_read(self, monkeypatch: pytest.MonkeyPatch):
        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("it was read")

        monkeypatch.setattr(Dataset, "_encode_features", refuse)
        monkeypatch.setattr(Dataset, "completed", refuse)
        with pytest.raises(UsageError):
            compared(data_is_public=False)

    def test_what_cannot_be(self):
        for more, said in [
            ({"space": "nothing"}, "not known"),
            ({"space": {"family": "fcn", "choices": {"units_1": [8]}}}, "one candidate"),
            ({"space": "cnn-paper"}, "does not fit"),
            ({"candidates": 1}, "2 or more"),
            ({"candidates": 2.5}, "integer|whole number"),
            ({"repeats": 0}, "integer|whole number"),
            ({"repeats": True}, "integer|whole number"),
            ({"repeats": 10**6}, "trainings"),
            ({"workers": 0}, "integer|whole number"),
            ({"epsilon": 0.0}, "above 0"),
            ({"epsilon": float("nan")}, "above 0"),
            ({"delta": 0.5}, "below 1/n"),
            ({"seed": -1}, "Seed"),
            ({"steps": 0}, "integer|whole number"),
            ({"batch": 10**6}, "batch"),
            ({"metric": "mae"}, "metric"),
            ({"strategy": "rs"}, "unknown option"),
            ({"budget": 1}, "unknown option"),
            ({"recipe": "dpsgd"}, "unknown option"),
            ({"device": "tpu"}, "Device"),
        ]:
            with pytest.raises(PasearchError, match=said) as raised:
                compared(**more)
            assert raised.value.exit_code == 2

    def test_a_file_that_is_there_or_has_no_folder(self, tmp_path: Path):
        args = ["compare", "digits", "--data-is-public", "--out"]
        for out in (tmp_path, tmp_path / "no" / "new.json"):
            found = CliRunner().invoke(app, [*args, str(out)])
            assert isinstance(found.exception, UsageError)
            assert "out=" in str(found.exception)
