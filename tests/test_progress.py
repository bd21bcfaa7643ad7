"""What a run tells while it lasts: lines of its plan, shares of planned trainings, or nothing."""

from __future__ import annotations

import importlib
import io
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from selections import arrays

from pasearch import Budget, status_message
from pasearch.api import search as api
from pasearch.api.features import prepare, run
from pasearch.api.lifecycle import Prepared
from pasearch.data import patches
from pasearch.errors import UsageError
from pasearch.progress import (
    MIN_FILE_LINE_SECONDS,
    SECRET_TRAINING_COUNT_MESSAGE,
    Progress,
    ProgressBar,
    ProgressLine,
    resolve_progress,
    show_progress,
)
from pasearch.runs import normals
from pasearch.runs import processor as loops
from pasearch.training import linear_backend, settings

STEPS = 4


class Heard(Progress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.rounds: list[tuple[int, int, int]] = []
        self.steps: list[tuple[int, int]] = []

    def stage(self, line: str) -> None:
        self.stages.append(line)

    def search(self, number: int, finished: int, total: int) -> None:
        self.rounds.append((number, finished, total))

    def step(self, finished: int, total: int) -> None:
        self.steps.append((finished, total))


class PreparedNetwork(ProgressBar):
    """Keeps what its terminal would show."""

    def __init__(self, trainings: float | None):
        super().__init__(trainings, show=False)
        self.shown: list[tuple[str, float]] = []
        update = self._rich.update

        def kept(*arguments: Any, **options: Any) -> None:
            update(*arguments, **options)
            (task,) = self._rich.tasks
            self.shown.append((task.description, task.completed))

        self._rich.update = kept  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "FULL_BATCH_STEPS", STEPS)


def prepared(method: str, **options: Any) -> Prepared:
    given: Any = {"bounds": (0.0, 1.0), "classes": 2, "device": "cpu", "seed": 1, **options}
    return prepare(arrays(), budget=Budget(8.0, 1e-5), method=method, trainer="dpsgd", **given)


@pytest.mark.unit
def test_a_search_for_features_tells_its_lines_and_its_share(tmp_path: Path):
    made, heard = prepared("pafs", population=3, generations=2), Heard()
    run(made, out=tmp_path / "x", progress=heard)
    assert set(heard.stages) == {line.name for line in made.plan.lines}
    assert made.plan.trainings == 3
    assert heard.rounds == [(0, 0, 1), (1, 0, 1), (2, 0, 1)]
    shares = [finished / total for finished, total in heard.steps]
    assert shares.count(1.0) == 3  # a generation, a generation, the final training
    assert heard.steps[-STEPS:] == [(step, STEPS) for step in range(1, STEPS + 1)]


@pytest.mark.unit
def test_the_bar_only_grows_and_ends_full(tmp_path: Path):
    made = prepared("pafs", population=3, generations=2)
    bar = PreparedNetwork(made.plan.trainings)
    run(made, out=tmp_path / "x", progress=bar)
    done = [value for _, value in bar.shown]
    assert done == sorted(done)
    assert done[-1] == made.plan.trainings
    assert bar.shown[-1][0] == "Test accuracy"


@pytest.mark.contract
def test_where_the_number_of_trainings_is_secret_nothing_is_shown(tmp_path: Path):
    made, heard = prepared("subsets", candidates=3.0), Heard()
    assert made.plan.trainings is None
    run(made, out=tmp_path / "x", progress=heard)
    assert heard.stages == heard.rounds == heard.steps == []
    bar = PreparedNetwork(made.plan.trainings)
    bar.search(1, 2, 3)
    bar.step(1, 2)
    bar.stage("training")
    bar.final()
    assert bar.shown == []


@pytest.mark.unit
def test_a_bar_says_why_it_stands_still(monkeypatch: pytest.MonkeyPatch):
    def shown(bar: ProgressBar) -> str:
        console = Console(file=io.StringIO(), width=120)
        console.print(bar._rich.get_renderable())
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]

    bar, secret = ProgressBar(3, show=False), ProgressBar(None, show=False)
    with status_message.show_status(status_message.COMPILING_STATUS):
        assert "compiling" not in shown(bar), "not at once: most often it is only loaded"
        monkeypatch.setattr(status_message, "MIN_DELAY_SECONDS", 0.0)
        assert status_message.COMPILING_STATUS in shown(bar)
        assert "compiling" not in shown(secret), "it would tell that a training has begun"
    assert "compiling" not in shown(bar)


@pytest.mark.unit
def test_both_kinds_of_machine_code_are_said(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(status_message, "MIN_DELAY_SECONDS", 0.0)
    honest = importlib.import_module

    def imported(name: str, *rest: Any) -> Any:
        if name.startswith("pasearch."):
            said.append(status_message.current_status())
        return honest(name, *rest)

    for module, load in (
        (normals, normals.load_compiled), (loops, linear_backend.load_kernel),
        (loops, patches.load_compiled_loops),
    ):  # fmt: skip
        load.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(module.importlib, "import_module", imported)
            assert load() is not None
    assert len(said) >= 3
    assert set(said) == {status_message.COMPILING_STATUS}
    assert status_message.current_status() == ""


@pytest.mark.contract
def test_a_search_for_networks_tells_of_trainings_where_they_are_planned(tmp_path: Path):
    for number, strategy in enumerate(["rs", "mgrs", "fixed"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        x, y = arrays()
        given: Any = {} if strategy == "fixed" else {"candidates": 6.0}
        made, told = api.prepare(
            (x, y), budget=Budget(8.0, 1e-3), strategy=strategy, steps=4, batch=50, seed=1,
            bounds=(0.0, 1.0), classes=2, device="cpu", **given,
        ), Heard()  # fmt: skip
        api.run(made, out=folder / "x", progress=told)
        assert bool(told.steps) == (strategy == "fixed")
        assert (told.rounds == []) == (strategy != "fixed")


@pytest.mark.unit
def test_what_is_said_last_is_said_first_and_may_be_told_when_asked(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(status_message, "MIN_DELAY_SECONDS", 0.0)
    done = 0
    with status_message.show_status("outside"), status_message.show_status(lambda: f"{done} of 3"):
        assert status_message.current_status() == "0 of 3"
        done = 2
        assert status_message.current_status() == "2 of 3"


class TestFromTheCommandLine:
    """A bar on a terminal; in a file or a pipe a line now and then, so a short run has none."""

    @staticmethod
    def lines(monkeypatch: pytest.MonkeyPatch, seconds: float, *, show: bool = True) -> list[str]:
        """Return what is told of a training of 100 steps that takes so long."""
        stream, now = io.StringIO(), 1000.0
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr("time.monotonic", lambda: now)
        with show_progress(1, show=show) as telling:
            telling.stage("training")
            for step in range(1, 101):
                now += seconds / 100
                telling.step(step, 100)
        return stream.getvalue().splitlines()

    @pytest.mark.unit
    def test_a_long_run_has_lines(self, monkeypatch: pytest.MonkeyPatch):
        shown = self.lines(monkeypatch, 3 * MIN_FILE_LINE_SECONDS + 1)
        assert [each.split(" %")[0] for each in shown] == [
            "Training: 33", "Training: 66", "Training: 99",
        ]  # fmt: skip
        assert shown[0].endswith("% (about 31 s left)")
        assert len(self.lines(monkeypatch, 1000 * MIN_FILE_LINE_SECONDS)) == 10, (
            "ten percent lie between two"
        )

    @pytest.mark.unit
    def test_what_came_before_the_first_step_is_no_pace(self, monkeypatch: pytest.MonkeyPatch):
        """A front end, say: the time left is that of steps."""
        stream, now = io.StringIO(), 1000.0
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr("time.monotonic", lambda: now)
        with show_progress(1, show=True) as telling:
            now += 300.0
            for step in range(1, 101):
                now += 1.0
                telling.step(step, 100)
        shown = stream.getvalue().splitlines()
        assert "Training: 55 % (about 45 s left)" in shown

    @pytest.mark.unit
    def test_a_short_run_has_none(self, monkeypatch: pytest.MonkeyPatch):
        assert self.lines(monkeypatch, 0.9 * MIN_FILE_LINE_SECONDS) == []

    @pytest.mark.unit
    def test_nor_has_one_that_is_to_be_quiet(self, monkeypatch: pytest.MonkeyPatch):
        assert self.lines(monkeypatch, 100 * MIN_FILE_LINE_SECONDS, show=False) == []

    @pytest.mark.unit
    @pytest.mark.parametrize("stream", [io.StringIO(), None])
    def test_nor_has_one_whose_number_of_trainings_is_secret_or_without_a_stream(
        self, monkeypatch: pytest.MonkeyPatch, stream: Any
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        with show_progress(None, show=True) as telling:
            for step in range(100):
                telling.step(step, 100)
        assert stream is None or stream.getvalue() == ""
        if stream is not None:
            assert type(telling) is Progress

    @pytest.mark.unit
    def test_a_terminal_has_a_bar(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(sys, "stderr", Terminal())
        with show_progress(3, show=True) as telling:
            assert isinstance(telling, ProgressBar)


class Terminal(io.StringIO):
    """A stream that somebody looks at."""

    def isatty(self) -> bool:
        return True


class TestFromPython:
    """What a call from Python shows without being asked: a line, where somebody looks at it."""

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("stream", "progress", "shown"),
        [
            (Terminal, None, True),
            (io.StringIO, None, False),
            (io.StringIO, True, True),
            (Terminal, False, False),
        ],
    )
    def test_a_line_is_shown_where_somebody_looks(
        self, monkeypatch: pytest.MonkeyPatch, stream: Any, progress: Any, shown: bool
    ):
        monkeypatch.setattr(sys, "stderr", stream())
        assert isinstance(resolve_progress(progress, 3), ProgressLine) is shown

    @pytest.mark.unit
    @pytest.mark.parametrize("trainings", [3, None])
    def test_in_a_notebook_one_output_is_replaced_and_stderr_is_empty(
        self, monkeypatch: pytest.MonkeyPatch, trainings: int | None
    ):
        pytest.importorskip("IPython")
        stream = type("OutStream", (Terminal,), {"__module__": "ipykernel.iostream"})()
        shown: list[tuple[str, str]] = []

        class Handle:
            def update(self, data: dict[str, str], *, raw: bool) -> None:
                shown.append(("update", data["text/plain"]))

        def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
            shown.append(("display", data["text/plain"]))
            return Handle()

        monkeypatch.setattr("IPython.display.display", display)
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr("pasearch.progress.MIN_UPDATE_SECONDS", 0.0)
        line = resolve_progress(None, trainings)
        for step in range(1, 5):
            line.step(step, 4)
            line.search(0, step, 3)
        assert stream.getvalue() == ""
        assert [kind for kind, _ in shown].count("display") == 1
        assert (len(shown) > 3) is (trainings is not None)
        assert all("\r" not in text and text for _, text in shown)

    @pytest.mark.unit
    @pytest.mark.parametrize("progress", [None, True, Heard()])
    def test_of_a_secret_number_of_trainings_one_sentence_is_shown(
        self, monkeypatch: pytest.MonkeyPatch, progress: Any
    ):
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        told = resolve_progress(progress, None)
        assert type(told) is Progress
        told.search(3, 1, 2)
        told.step(4, 5)
        assert stream.getvalue() == (
            "" if isinstance(progress, Progress) else SECRET_TRAINING_COUNT_MESSAGE
        )

    @pytest.mark.unit
    def test_a_line_is_written_anew_and_ends_with_the_last_step(self):
        stream = Terminal()
        line = ProgressLine(2, stream, overwrite=True)
        line.stage("final training")
        line.step(2, 4)
        line.search(0, 1, 1)
        for step in range(1, 5):
            line.step(step, 4)
        line.step(4, 4)
        shown = stream.getvalue()
        assert shown.count("\n") == 1
        assert shown.rstrip().endswith("s)")
        assert shown.startswith("\rFinal training: 25 % (started)")
        assert "100 %" in shown

    @pytest.mark.unit
    def test_in_a_file_every_tenth_is_a_line(self):
        stream = io.StringIO()
        line = ProgressLine(1, stream, overwrite=False)
        for step in range(1, 101):
            line.step(step, 100)
        lines = stream.getvalue().splitlines()
        assert [each.split(" (")[0] for each in lines] == [
            f"Training: {percent} %" for percent in (*range(1, 100, 10), 100)
        ]

    @pytest.mark.unit
    def test_a_run_shows_it_and_can_be_told_not_to(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ):
        made = prepared("all")
        for progress, shown in ((None, True), (False, False)):
            stream = Terminal()
            monkeypatch.setattr(sys, "stderr", stream)
            run(made, out=tmp_path / str(shown), progress=progress)
            assert ("100 %" in stream.getvalue()) is shown

    @pytest.mark.unit
    def test_anything_else_is_refused(self):
        with pytest.raises(UsageError, match="has the type str"):
            prepared("all", progress="bar")
