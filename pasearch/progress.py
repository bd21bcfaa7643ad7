"""Progress of a run: a bar on the command line, or one line in Python.

The terminal is outside the trust boundary. Under repeat-and-select the privacy cost does not cover
the number of trainings, so neither trainings nor steps are counted: only that the search continues
is shown. Otherwise the planned steps are public, and the remaining time is shown.

Source: docs/rules.md, rules 10 and 13.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TextIO

from pasearch import status_message
from pasearch.errors import UsageError

SECRET_COUNT_MESSAGE = "Searching. The number of trainings is secret, so no progress is shown.\n"
"""Message for a search under repeat-and-select, the only one until it ends."""

UPDATE_SECONDS = 0.2
"""Seconds between two updates of a line or a bar, because an update takes as long as a step."""

LINE_PERCENT = 10  # percent between two lines in a file, in which no line can be overwritten

FILE_LINE_SECONDS = 15.0
"""Seconds between two lines in a file or a pipe, if progress was not requested."""


class Progress:
    """Receiver of an engine's progress. The default is silent.

    Guarantee: under repeat-and-select nothing is called (`resolve_progress`), because calls would
    count the trainings.
    """

    def stage(self, line: str) -> None:
        """Called before an item of the plan is charged and its records are read."""

    def search(self, number: int, finished: int, total: int) -> None:
        """Called before each trial of a round, with the number of its finished trials."""

    def final(self) -> None:
        """Called before the final training, if there is one."""

    def step(self, finished: int, total: int) -> None:
        """Called after each step of a training."""


def resolve_progress(progress: Progress | bool | None, trainings: float | None) -> Progress:
    """Return the receiver of a run's progress: a silent one if the number of trainings is secret.

    Args:
        progress: Receiver. None shows a line in a notebook or on a terminal, True always, False
            never.
        trainings: Number of planned trainings; None if it is secret.
    """
    if isinstance(progress, Progress):
        return Progress() if trainings is None else progress
    stream = sys.stderr
    if progress is False or stream is None or not (progress or is_interactive(stream)):
        return Progress()
    shown: Any = CellOutput() if is_notebook_output(stream) else stream
    if trainings is None:
        shown.write(SECRET_COUNT_MESSAGE)
        return Progress()
    return ProgressLine(trainings, shown, overwrite=is_interactive(stream))


def check_progress(progress: object) -> None:
    """Refuse a value that is not a receiver of progress.

    Raises:
        UsageError: The value is none of None, True, False and a `Progress`.
    """
    if progress is not None and not isinstance(progress, (bool, Progress)):
        raise UsageError(
            f"progress has the type {type(progress).__name__}: expected True, False, None (shown "
            "in a notebook and on a terminal), or a pasearch.progress.Progress."
        )


def is_interactive(stream: TextIO) -> bool:
    """Check whether a stream is shown while it is written: on a terminal or in a notebook."""
    return is_notebook_output(stream) or stream.isatty()


def is_notebook_output(stream: TextIO) -> bool:
    """Check whether a stream is the output of a notebook's cell."""
    return type(stream).__module__.startswith("ipykernel")


class CellOutput:
    """An output of a notebook cell that each write replaces.

    On stderr every state of the line would be kept and displayed like an error.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def write(self, text: str) -> None:
        """Show a text instead of the previous one."""
        display = sys.modules["IPython.display"].display  # loaded: this is a notebook's output
        shown = {"text/plain": text.strip()}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def flush(self) -> None:
        """Do nothing, because a text is displayed at once."""


class TrainingFraction(Progress):
    """A receiver that computes the finished fraction of the planned trainings.

    Args:
        trainings: Number of planned trainings; public.
    """

    def __init__(self, trainings: float):
        self._trainings, self._done = trainings, 0.0

    def show(self, done: float) -> None:
        """Show the number of finished trainings, with the finished fraction of the current one."""

    def search(self, number: int, finished: int, total: int) -> None:
        self._done = number * total + finished
        self.show(self._done)

    def final(self) -> None:
        if self._done:
            self._done += 1
            self.show(self._done)

    def step(self, finished: int, total: int) -> None:
        self.show(self._done + finished / total)


class ProgressLine(TrainingFraction):
    """One line with the finished fraction of the planned trainings and the remaining time.

    Args:
        trainings: Number of planned trainings; public.
        stream: Output stream.
        overwrite: Whether the line can be overwritten; otherwise a line is written every
            `LINE_PERCENT`.
        every: Minimum seconds between two permanent lines, so that a short run has none.
    """

    def __init__(self, trainings: float, stream: TextIO, *, overwrite: bool, every: float = 0.0):
        super().__init__(max(trainings, 1e-9))
        self._stream, self._overwrite, self._every = stream, overwrite, every
        self._text, self._start = "Training", time.monotonic()
        self._updated, self._width, self._last, self._ended = 0.0, 0, -LINE_PERCENT, False
        self._first = self._start, 0.0
        if every:
            self._updated, self._last = self._start, 0

    def stage(self, line: str) -> None:
        self._text = line.capitalize()

    def show(self, done: float) -> None:
        share, now = min(1.0, done / self._trainings), time.monotonic()
        if not self._first[1]:  # the time before the first step is not part of the pace
            self._first = now, share
        percent, whole = int(100 * share), share >= 1.0
        if self._overwrite:
            soon = now - self._updated < UPDATE_SECONDS and not whole
        else:
            soon = (
                percent < self._last + LINE_PERCENT and not whole
            ) or now - self._updated < self._every
        if self._ended or soon:
            return
        self._updated, self._last, self._ended = now, percent, whole
        spent = now - self._start
        if whole:
            left = f"{spent:.1f} s"
        else:
            since, begun = self._first
            pace = (now - since) / (share - begun) if share > begun + 0.02 else None
            left = "started" if pace is None else f"about {pace * (1 - share):.0f} s left"
        text = f"{self._text}: {percent} % ({left})"
        padded = f"\r{text.ljust(self._width)}" if self._overwrite else text
        self._width = len(text)
        self._stream.write(padded + ("\n" if whole or not self._overwrite else ""))
        self._stream.flush()


@contextmanager
def show_progress(trainings: float | None, *, show: bool) -> Iterator[Progress]:
    """Show the progress of a run on the command line: a bar on a terminal, else rare lines.

    Args:
        trainings: Number of planned trainings; None if it is secret.
        show: False shows nothing.
    """
    stream = sys.stderr
    if show and stream is not None and not stream.isatty():
        hidden = trainings is None
        yield (
            Progress()
            if hidden
            else ProgressLine(trainings, stream, overwrite=False, every=FILE_LINE_SECONDS)
        )
        return
    with ProgressBar(trainings, show=show) as bar:
        yield bar


class ProgressBar(TrainingFraction):
    """A bar of planned trainings, or a spinner if their number is secret; used in a `with` block.

    Args:
        trainings: Number of planned trainings; None if it is secret.
        show: False shows nothing. Nothing is shown either if stderr is not a terminal.
    """

    def __init__(self, trainings: float | None, *, show: bool):
        from rich import progress as rich
        from rich.console import Console
        from rich.text import Text

        class Busy(rich.ProgressColumn):
            """The reason for a pause."""

            def render(self, task: Any) -> Text:
                return Text(status_message.current_status())

        super().__init__(trainings or 0.0)
        self._hidden, self._updated = trainings is None, 0.0
        columns: list[Any] = [rich.SpinnerColumn(), rich.TextColumn("{task.description}")]
        text = "Searching (the number of trainings is secret)"
        if not self._hidden:
            columns += [rich.BarColumn(), rich.TextColumn("{task.percentage:>3.0f}%")]
            columns += [rich.TimeRemainingColumn(), Busy()]
            text = "Training"
        console = Console(stderr=True)  # a file or a pipe would get an empty line
        shown = show and console.is_terminal
        self._rich = rich.Progress(*columns, console=console, transient=True, disable=not shown)
        self._task = self._rich.add_task(text, total=trainings)

    def __enter__(self) -> Self:
        self._rich.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._rich.stop()

    def stage(self, line: str) -> None:
        if not self._hidden:
            self._rich.update(self._task, description=line.capitalize())

    def show(self, done: float) -> None:
        now = time.monotonic()
        soon = now - self._updated < UPDATE_SECONDS and done % 1  # within a training
        if not (self._hidden or soon):
            self._updated = now
            self._rich.update(self._task, completed=done)
