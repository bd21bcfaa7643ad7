"""Threads that share a sum: none is at it any more when the call is over, however it ends."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pasearch.runs import processor as module
from pasearch.runs.processor import ThreadTeam


@pytest.mark.unit
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_parts_are_everything_once(threads: int):
    parts: dict[int, range] = {}

    def part(place: int, low: int, high: int) -> None:
        parts[place] = range(low, high)

    for count in (0, 1, 2, 7, 1000):
        parts.clear()
        ThreadTeam(threads).run_divided(count, part)
        assert sorted(parts) == list(range(threads))
        assert [each for place in sorted(parts) for each in parts[place]] == list(range(count))
        sizes = [len(each) for each in parts.values()]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.contract
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_one_raises_is_raised_when_all_have_ended(failing: int):
    team, ended = ThreadTeam(3), []

    def part(place: int) -> None:
        if place == failing:
            raise ValueError(f"part {place}")
        time.sleep(0.05)
        ended.append(place)

    with pytest.raises(ValueError, match=f"part {failing}"):
        team.run_all(part)
    assert sorted(ended) == [each for each in range(3) if each != failing]
    ended.clear()
    team.run_all(ended.append)
    assert sorted(ended) == [0, 1, 2], "it goes on"


@pytest.mark.contract
@pytest.mark.parametrize("begun", [0, 1])
def test_a_part_that_no_thread_could_be_begun_for_is_never_done(
    begun: int, monkeypatch: pytest.MonkeyPatch
):
    team, done = ThreadTeam(3), []
    honest = threading.Thread.start
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if len(started) == begun:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        honest(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start"):
            team.run_all(lambda place: time.sleep(0.1) or done.append(place))
    before = list(done)
    assert len(before) <= begun + 1
    again: list[int] = []
    team.run_all(again.append)
    time.sleep(0.3)
    assert done == before
    assert sorted(again) == [0, 1, 2]


@pytest.mark.contract
def test_an_interrupted_wait_goes_on_until_all_have_ended(monkeypatch: pytest.MonkeyPatch):
    honest, calls, ended = module.wait, [], []

    def wait(others: Any) -> Any:
        calls.append(len(others))
        if len(calls) < 3:
            raise KeyboardInterrupt
        return honest(others)

    monkeypatch.setattr(module, "wait", wait)

    def part(place: int) -> None:
        if place:
            time.sleep(0.2)
            ended.append(place)

    with pytest.raises(KeyboardInterrupt):
        ThreadTeam(3).run_all(part)
    assert sorted(ended) == [1, 2]
    assert len(calls) == 3


@pytest.mark.unit
def test_one_thread_is_the_caller(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ThreadPoolExecutor, "submit", None)
    asked: list[threading.Thread] = []
    ThreadTeam(1).run_all(lambda place: asked.append(threading.current_thread()))
    assert asked == [threading.current_thread()]
