"""What a run reports while it lasts: a bar of the command line, or one line from Python.

The terminal is outside the trust boundary. Under repeat-and-select the number of trainings is not
covered by the price, so nothing that counts trainings or their steps is shown: only that the
search goes on. Otherwise the planned steps are public, and the bar shows the time left.

Source: docs/rules.md, rules 10 and 13.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TextIO

from pasearch import busy
from pasearch.errors import UsageError

SECRET = "Searching. How many trainings it takes is secret, so nothing is shown until it ends.\n"
"""All that may be said of a search under repeat-and-select."""

EVERY = 0.2
"""Seconds between two states of a line."""

SHARE = 10
"""How many percent are between two lines where none can be written anew."""

SELDOM = 15.0
"""Seconds between two lines that nobody asked for: in a file or a pipe."""


class Progress:
    """What an engine reports while it runs. The default is silent.

    Guarantee: under repeat-and-select nothing is called (`heard`), as calls would count trainings.
    """

    def stage(self, line: str) -> None:
        """Called before a line of the plan is paid for and read."""

    def search(self, number: int, finished: int, total: int) -> None:
        """Called before each trial of a round, with how many of its trials are finished."""

    def final(self) -> None:
        """Called before the final training, when there is one."""

    def step(self, finished: int, total: int) -> None:
        """Called after each step of a training."""


def heard(progress: Progress | bool | None, trainings: float | None) -> Progress:
    """Return what is told of a run: nothing where the number of its trainings is secret.

    Args:
        progress: Whom to tell. None: a line, where somebody is looking (in a notebook, on a
            terminal); True: a line in any case; False: nobody.
        trainings: How many are planned; None where that is secret.
    """
    if isinstance(progress, Progress):
        return Progress() if trainings is None else progress
    stream = sys.stderr
    if progress is False or stream is None or not (progress or watched(stream)):
        return Progress()
    shown: Any = CellOutput() if in_notebook(stream) else stream
    if trainings is None:
        shown.write(SECRET)
        return Progress()
    return Line(trainings, shown, anew=watched(stream))


def check(progress: object) -> None:
    """Refuse what is no way to report.

    Raises:
        UsageError: It is none of None, True, False and a `Progress`.
    """
    if progress is not None and not isinstance(progress, (bool, Progress)):
        raise UsageError(
            f"progress is of type {type(progress).__name__}: expected True, False, None (shown in "
            "a notebook and on a terminal), or a pasearch.progress.Progress."
        )


def watched(stream: TextIO) -> bool:
    """Return whether somebody is looking at what is written: a terminal, or a notebook's cell."""
    return in_notebook(stream) or stream.isatty()


def in_notebook(stream: TextIO) -> bool:
    """Return whether what is written goes to the output of a notebook's cell."""
    return type(stream).__module__.startswith("ipykernel")


class CellOutput:
    """One output of a notebook's cell, which each write replaces.

    On stderr every state of a line would be kept, and be shown as an error is.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def write(self, text: str) -> None:
        """Show a text in place of the one before."""
        display = sys.modules["IPython.display"].display  # loaded: this is a notebook's output
        shown = {"text/plain": text.strip()}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def flush(self) -> None:
        """Do nothing: a text is shown at once."""


class Line(Progress):
    """One line that tells how far the planned trainings are, and how long they will still take.

    Args:
        trainings: How many are planned: public.
        stream: Where it is written.
        anew: Whether a line can be written over the last one; otherwise every tenth is a line.
        every: Of lines that stay, the least seconds before one: a short run has none.
    """

    def __init__(self, trainings: float, stream: TextIO, *, anew: bool, every: float = 0.0):
        self._trainings, self._stream, self._anew = max(trainings, 1e-9), stream, anew
        self._text, self._done, self._start = "Training", 0.0, time.monotonic()
        self._told, self._width, self._last, self._ended = 0.0, 0, -SHARE, False
        self._every, self._first = every, (self._start, 0.0)
        if every:
            self._told, self._last = self._start, 0

    def stage(self, line: str) -> None:
        self._text = line.capitalize()

    def search(self, number: int, finished: int, total: int) -> None:
        self._done = number * total + finished
        self._tell(self._done)

    def final(self) -> None:
        if self._done:
            self._done += 1
            self._tell(self._done)

    def step(self, finished: int, total: int) -> None:
        self._tell(self._done + finished / total)

    def _tell(self, done: float) -> None:
        share, now = min(1.0, done / self._trainings), time.monotonic()
        if not self._first[1]:  # what came before the first step says nothing of the pace
            self._first = now, share
        percent, whole = int(100 * share), share >= 1.0
        if self._anew:
            soon = now - self._told < EVERY and not whole
        else:
            soon = (percent < self._last + SHARE and not whole) or now - self._told < self._every
        if self._ended or soon:
            return
        self._told, self._last, self._ended = now, percent, whole
        spent = now - self._start
        if whole:
            left = f"{spent:.1f} s"
        else:
            since, begun = self._first
            pace = (now - since) / (share - begun) if share > begun + 0.02 else None
            left = "begun" if pace is None else f"about {pace * (1 - share):.0f} s left"
        text = f"{self._text}: {percent} % ({left})"
        padded = f"\r{text.ljust(self._width)}" if self._anew else text
        self._width = len(text)
        self._stream.write(padded + ("\n" if whole or not self._anew else ""))
        self._stream.flush()


@contextmanager
def told(trainings: float | None, *, show: bool) -> Iterator[Progress]:
    """Tell of a run within the block: by a bar on a terminal, elsewhere by a line now and then.

    Args:
        trainings: How many are planned; None where that is secret.
        show: False tells nothing.
    """
    stream = sys.stderr
    if show and stream is not None and not stream.isatty():
        hidden = trainings is None
        yield Progress() if hidden else Line(trainings, stream, anew=False, every=SELDOM)
        return
    with Bar(trainings, show=show) as bar:
        yield bar


class Bar(Progress):
    """A bar of planned training steps, or a plain sign of life; use it in a `with` block.

    Args:
        trainings: How many are planned; None where that is secret.
        show: False shows nothing; nor is anything shown where stderr is no terminal.
    """

    def __init__(self, trainings: float | None, *, show: bool):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            ProgressColumn,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Rich
        from rich.text import Text

        class Busy(ProgressColumn):
            """Why it stands still."""

            def render(self, task: Any) -> Text:
                return Text(busy.said())

        self._hidden = trainings is None
        columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}")]
        if not self._hidden:
            columns += [BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn()]
            columns.append(Busy())
        console = Console(stderr=True)  # a file or a pipe would get an empty line
        shown = show and console.is_terminal
        self._rich = Rich(*columns, console=console, transient=True, disable=not shown)
        text = "Searching (how many trainings it takes is secret)" if self._hidden else "Training"
        self._task = self._rich.add_task(text, total=trainings)
        self._done, self._told = 0.0, 0.0

    def __enter__(self) -> Self:
        self._rich.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._rich.stop()

    def stage(self, line: str) -> None:
        if not self._hidden:
            self._rich.update(self._task, description=line.capitalize())

    def search(self, number: int, finished: int, total: int) -> None:
        if not self._hidden:
            self._done = number * total + finished
            self._rich.update(self._task, completed=self._done)

    def final(self) -> None:
        if not self._hidden and self._done:
            self._done += 1
            self._rich.update(self._task, completed=self._done)

    def step(self, finished: int, total: int) -> None:
        now = time.monotonic()
        soon = now - self._told < EVERY and finished < total  # an update takes as long as a step
        if not self._hidden and not soon:
            self._told = now
            self._rich.update(self._task, completed=self._done + finished / total)
