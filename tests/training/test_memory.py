"""Memory of a step: bounded whatever the batch, by parts that add up to the same sum."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import start_training
from torch import Tensor, nn

from pasearch.data.partitions import Records
from pasearch.errors import is_out_of_memory
from pasearch.runs.keys import Keys, Stream
from pasearch.spaces.modules import Lstm
from pasearch.training import memory
from pasearch.training.clipping import FlatClipping
from pasearch.training.memory import (
    COPIES_PER_OUTPUT,
    count_values_per_record,
    limit_rows_in_memory,
)
from pasearch.training.one_step import ROW_MULTIPLE
from pasearch.training.per_example import PreparedNetwork
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import Training

N = 64


def records(n: int = N) -> Records:
    generator = torch.Generator().manual_seed(2)
    return Records(
        x=torch.randn(n, 1, 8, 8, generator=generator),
        y=torch.randint(0, 3, (n,), generator=generator),
        valid=torch.ones(n, dtype=torch.bool), public=False,
    )  # fmt: skip


def recipe(**changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "expected_batch_size": 32, "steps": 4, "learning_rate": 0.5, "noise_multiplier": 1.2,
        "bounding": FlatClipping(clip_norm=0.7), "average": 0.5, "optimizer": "momentum",
    }  # fmt: skip
    return Recipe(**{**settings, **changes})


def streams() -> dict[str, Stream]:
    trial = Keys.from_seed(6).stream("trial", 0)
    return {name: trial.child(name) for name in ("batch", "noise", "dropout")}


class Scarce(nn.Module):
    """Has memory for so many rows."""

    def __init__(self, most: int, error: type[Exception] = torch.OutOfMemoryError):
        super().__init__()
        self.most, self.error = most, error
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.most:
            raise self.error("cannot allocate so many bytes")
        self.seen.append(len(x))
        return x


def network(*more: nn.Module) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), *more, nn.Flatten(), nn.Linear(144, 3)
    )  # fmt: skip


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained(model: nn.Module, made: Recipe, *, in_rounds: bool = False) -> Training:
    training = start_training(model, records(), made, streams(), in_rounds=in_rounds)
    while training._finished < made.steps:
        assert training.steps(made.steps - training._finished)
    training.finish()
    return training


@pytest.mark.oracle
def test_numbers_of_a_record_are_counted():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Tanh())
    assert count_values_per_record(
        PreparedNetwork(linear), torch.zeros(3, 1, 8, 8)
    ) == 64 + COPIES_PER_OUTPUT * (64 + 20)
    # A convolution holds what it gave; its patches have a bound of their own.
    image = nn.Sequential(nn.Conv2d(1, 4, 3))
    assert (
        count_values_per_record(PreparedNetwork(image), torch.zeros(3, 1, 8, 8))
        == 64 + COPIES_PER_OUTPUT * 4 * 36
    )
    # A layer at many positions forms the gradient of each record.
    steps = nn.Sequential(nn.Linear(5, 7))
    assert (
        count_values_per_record(PreparedNetwork(steps), torch.zeros(3, 2, 5))
        == 10 + COPIES_PER_OUTPUT * 14 + 42
    )
    recurrent = nn.Sequential(Lstm(5, 7))
    own = sum(p.numel() for p in recurrent.parameters())
    assert (
        count_values_per_record(PreparedNetwork(recurrent), torch.zeros(3, 2, 5))
        == 10 + COPIES_PER_OUTPUT * 7 + own
    )


@pytest.mark.unit
def test_a_step_in_parts_has_the_same_sum(monkeypatch: pytest.MonkeyPatch):
    for in_rounds in [False, True]:
        for rows in [1, 5, 17]:
            whole = network()
            trained(whole, recipe(), in_rounds=in_rounds)
            least = 3 if in_rounds else ROW_MULTIPLE  # three are made up, for the form
            scarce, one = Scarce(max(rows, least)), torch.zeros(3, 1, 8, 8)
            prepared = PreparedNetwork(parts := network(scarce))
            monkeypatch.setitem(
                memory.MAX_STEP_NUMBERS, "cpu", rows * count_values_per_record(prepared, one)
            )
            assert limit_rows_in_memory(prepared, one, "cpu") == rows
            scarce.seen.clear()
            trained(parts, recipe(), in_rounds=in_rounds)
            assert max(scarce.seen) == max(rows, least)
            assert torch.allclose(weights(whole), weights(parts), atol=1e-5)


@pytest.mark.unit
def test_a_step_that_runs_out_of_memory_is_made_in_parts():
    for in_rounds in [False, True]:
        for error in [torch.OutOfMemoryError, MemoryError, RuntimeError]:
            whole = network()
            trained(whole, recipe(), in_rounds=in_rounds)
            scarce = Scarce(9 if in_rounds else ROW_MULTIPLE + 9, error)
            trained(parts := network(scarce), recipe(), in_rounds=in_rounds)
            assert 3 <= max(scarce.seen) <= 9 if in_rounds else max(scarce.seen) == ROW_MULTIPLE
            assert torch.allclose(weights(whole), weights(parts), atol=1e-5)


@pytest.mark.unit
def test_parts_of_fewer_rows_would_be_rounded_otherwise_so_there_are_none():
    model = network(scarce := Scarce(ROW_MULTIPLE))
    training = Training(model, records(), recipe(), streams())
    scarce.most = ROW_MULTIPLE - 1
    with pytest.raises(torch.OutOfMemoryError):
        training.step()


@pytest.mark.unit
def test_another_error_is_no_matter_of_memory():
    model = network(Scarce(9, ValueError))
    with pytest.raises(ValueError, match="cannot allocate"):
        trained(model, recipe())
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert is_out_of_memory(RuntimeError("Triton Error [CUDA]: out of memory"))


HUGE = r"""
import re, sys
from pathlib import Path
import torch
from torch import nn
from pasearch.data.partitions import Records
from pasearch.runs.keys import Keys
from pasearch.training import memory
from pasearch.training.clipping import FlatClipping
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import Training


def most():  # of this process alone, where `getrusage` begins with its parent's
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

memory.MAX_STEP_NUMBERS["cpu"] = int(sys.argv[1])
n = 1024
x, y = torch.zeros(n, 1, 28, 28), torch.zeros(n, dtype=torch.int64)
data = Records(x=x, y=y, valid=torch.ones(n, dtype=torch.bool), public=False)
recipe = Recipe(expected_batch_size=n, steps=1, learning_rate=.1, noise_multiplier=1.0,
                bounding=FlatClipping(clip_norm=1.0))
network = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(),
                        nn.Conv2d(16, 16, 3, padding=1), nn.Tanh(),
                        nn.Flatten(), nn.Linear(12544, 10))
keys = Keys.from_seed(0)
streams = {name: keys.stream(name) for name in ("batch", "noise", "dropout")}
training = Training(network, data, recipe, streams)
before = most()
training.step()
print((most() - before) // 4)
"""


@pytest.mark.unit
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells it")
def test_a_large_batch_takes_no_more_memory_than_is_held():
    def numbers(held: int) -> int:
        found = subprocess.run(
            [sys.executable, "-c", HUGE, str(held)], capture_output=True, text=True, check=True
        )
        return int(found.stdout)

    assert numbers(2**24) < 2**25
    assert numbers(2**40) > 2**26  # which the whole batch would take


@pytest.mark.unit
def test_memory_is_kept_unless_somebody_has_said_otherwise(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[int, int]] = []

    class Library:
        @staticmethod
        def mallopt(setting: int, value: int) -> int:
            asked.append((setting, value))
            return 1

    for name in list(memory.os.environ):
        if name.startswith(("MALLOC_", "GLIBC_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda path: Library)
    memory.keep_freed_memory.cache_clear()
    assert memory.keep_freed_memory()
    assert memory.keep_freed_memory(), "once a process"
    assert asked == [(-1, memory.MAX_KEPT_BYTES), (-3, memory.MAX_KEPT_PIECE_BYTES)]
    memory.keep_freed_memory.cache_clear()
    with monkeypatch.context() as patch:
        patch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
        assert not memory.keep_freed_memory()
    memory.keep_freed_memory.cache_clear()
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda path: object())
    assert not memory.keep_freed_memory()
    memory.keep_freed_memory.cache_clear()
    assert len(asked) == 2
