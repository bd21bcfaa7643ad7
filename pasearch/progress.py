"""Progress of a run: a bar on the command line, or one line in Python.

Whoever sees the terminal may not be trusted with secrets. Under repeat-and-select the number of
trainings is secret, so only a message that the search continues is shown. Under other rules the
planned steps are public, and the finished fraction and the remaining time are shown.

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

SECRET_TRAINING_COUNT_MESSAGE = (
    "Searching. The number of trainings is secret, so no progress is shown.\n"
)
"""The only message of a search under repeat-and-select until it ends."""

MIN_UPDATE_SECONDS = 0.2
"""Minimum time between two updates of a line or a bar, which each take as long as a step."""

LINE_PERCENT = 10
"""Progress between two lines in a file, where no line can be overwritten, in per cent."""

MIN_FILE_LINE_SECONDS = 15.0
"""Minimum time between two lines in a file or a pipe, if progress was not requested, in seconds."""


class Progress:
    """Receiver of progress reports from an engine. This base class ignores them.

    Guarantee: under repeat-and-select a receiver of the user gets no report (`resolve_progress`),
    because reports would reveal the number of trainings.
    """

    def stage(self, line: str) -> None:
        """Receive the name of the plan's line that is charged next, before its records are read."""

    def search(self, number: int, finished: int, total: int) -> None:
        """Receive the number of finished trials of round `number`, before each trial."""

    def final(self) -> None:
        """Receive the start of the final training, if there is one."""

    def step(self, finished: int, total: int) -> None:
        """Receive the number of finished steps of a training, after each step."""


def resolve_progress(progress: Progress | bool | None, trainings: float | None) -> Progress:
    """Return the receiver of a run's progress, silent if the number of trainings is secret.

    Args:
        progress: Receiver of the user; True shows a line, False nothing, and None a line in a
            notebook or on a terminal.
        trainings: Number of planned trainings; None if it is secret.
    """
    if isinstance(progress, Progress):
        return Progress() if trainings is None else progress
    stream = sys.stderr
    if progress is False or stream is None or not (progress or is_interactive(stream)):
        return Progress()
    shown: Any = CellOutput() if is_notebook_output(stream) else stream
    if trainings is None:
        shown.write(SECRET_TRAINING_COUNT_MESSAGE)
        return Progress()
    return ProgressLine(trainings, shown, overwrite=is_interactive(stream))


def check_progress(progress: object) -> None:
    """Refuse a value that is not a receiver of progress.

    Raises:
        UsageError: The value is not None, True, False or a `Progress`.
    """
    if progress is not None and not isinstance(progress, (bool, Progress)):
        raise UsageError(
            f"progress has the type {type(progress).__name__}: expected True, False, None (shown "
            "in a notebook and on a terminal), or a pasearch.progress.Progress."
        )


def is_interactive(stream: TextIO) -> bool:
    """Check whether a stream is a terminal or the output of a notebook cell."""
    return is_notebook_output(stream) or stream.isatty()


def is_notebook_output(stream: TextIO) -> bool:
    """Check whether a stream is the output of a notebook cell."""
    return type(stream).__module__.startswith("ipykernel")


class CellOutput:
    """Output of a notebook cell that shows only the last text.

    On stderr, all texts would stay visible, in the style of errors.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def write(self, text: str) -> None:
        """Show a text instead of the previous one."""
        display = sys.modules["IPython.display"].display  # always loaded in a notebook
        shown = {"text/plain": text.strip()}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def flush(self) -> None:
        """Do nothing, because a text is displayed at once."""


class TrainingFraction(Progress):
    """Base class of receivers that show the finished fraction of the planned trainings.

    Args:
        trainings: Number of planned trainings; public.
    """

    def __init__(self, trainings: float):
        self._trainings, self._done = trainings, 0.0

    def show(self, done: float) -> None:
        """Show the number of finished trainings, such as 2.5 in the middle of the third one."""

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
        overwrite: Whether the line can be overwritten; otherwise a new line is written every
            `LINE_PERCENT` per cent.
        every: Minimum time between two new lines, seconds; a short run then writes none.
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
        if not self._first[1]:  # the pace excludes the time before the first step
            self._first = now, share
        percent, whole = int(100 * share), share >= 1.0
        if self._overwrite:
            soon = now - self._updated < MIN_UPDATE_SECONDS and not whole
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
    """Show the progress of a run on the command line: a bar on a terminal, a few lines otherwise.

    Args:
        trainings: Number of planned trainings; None if it is secret.
        show: Whether to show anything.
    """
    stream = sys.stderr
    if show and stream is not None and not stream.isatty():
        hidden = trainings is None
        yield (
            Progress()
            if hidden
            else ProgressLine(trainings, stream, overwrite=False, every=MIN_FILE_LINE_SECONDS)
        )
        return
    with ProgressBar(trainings, show=show) as bar:
        yield bar


class ProgressBar(TrainingFraction):
    """Progress bar of the planned trainings, or a spinner if their number is secret.

    It is used in a `with` block.

    Args:
        trainings: Number of planned trainings; None if it is secret.
        show: Whether to show anything. If stderr is not a terminal, nothing is shown.
    """

    def __init__(self, trainings: float | None, *, show: bool):
        from rich import progress as rich
        from rich.console import Console
        from rich.text import Text

        class StatusColumn(rich.ProgressColumn):
            """Column with the reason for a long pause."""

            def render(self, task: Any) -> Text:
                return Text(status_message.current_status())

        super().__init__(trainings or 0.0)
        self._hidden, self._updated = trainings is None, 0.0
        columns: list[Any] = [rich.SpinnerColumn(), rich.TextColumn("{task.description}")]
        text = "Searching (the number of trainings is secret)"
        if not self._hidden:
            columns += [rich.BarColumn(), rich.TextColumn("{task.percentage:>3.0f}%")]
            columns += [rich.TimeRemainingColumn(), StatusColumn()]
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
        soon = now - self._updated < MIN_UPDATE_SECONDS and done % 1  # within a training
        if not (self._hidden or soon):
            self._updated = now
            self._rich.update(self._task, completed=done)
