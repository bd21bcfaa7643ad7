"""What a run reports while it lasts, and the bar that shows it on a terminal.

The terminal is outside the trust boundary. Under repeat-and-select the number of trainings is not
covered by the price, so nothing that counts trainings or their steps is shown: only that the
search goes on. Otherwise the planned steps are public, and the bar shows the time left.

Source: docs/rules.md, rules 10 and 13.
"""

from __future__ import annotations

from typing import Any, Self


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


def heard(progress: Progress | None, trainings: float | None) -> Progress:
    """Return what may be told of a run: nothing where the number of its trainings is secret."""
    return Progress() if progress is None or trainings is None else progress


class Bar(Progress):
    """A bar of planned training steps, or a plain sign of life; use it in a `with` block.

    Args:
        trainings: How many are planned; None where that is secret.
        show: False shows nothing; nor is anything shown where stderr is no terminal.
    """

    def __init__(self, trainings: float | None, *, show: bool):
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich

        self._hidden = trainings is None
        columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}")]
        if not self._hidden:
            columns += [BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn()]
        console = Console(stderr=True)  # a file or a pipe would get an empty line
        shown = show and console.is_terminal
        self._rich = Rich(*columns, console=console, transient=True, disable=not shown)
        text = "Searching (how many trainings it takes is secret)" if self._hidden else "Training"
        self._task = self._rich.add_task(text, total=trainings)
        self._done = 0.0

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
        if not self._hidden:
            self._rich.update(self._task, completed=self._done + finished / total)
