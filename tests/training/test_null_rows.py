"""What a record adds to a sum does not depend on who else is in its batch, to the bit.

A null record that is drawn makes a batch larger. A library's product rounds a row otherwise where
there are more rows, or fewer, or where the row stands elsewhere; a sum of ReLUs can be made to move
by many bounds for it (docs/guarantees/dp-sgd.md). So the one record of a batch that is not null has
to add the same, however many null ones are in front of it and behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from doubles import start_training
from torch import Tensor, nn

from pasearch.data.mapping import full_precision
from pasearch.data.partitions import Records
from pasearch.gpu.gpu_training import GpuTraining
from pasearch.runs.keys import Keys
from pasearch.spaces.modules import (
    Gru,
    Lstm,
    SkipConcat,
    TemperedSigmoid,
    TokenEmbedding,
    sigmoid,
    sigmoid_,
)
from pasearch.training import linear_backend, one_step, training_loop
from pasearch.training.augmentation import Augmentation
from pasearch.training.batching import Poisson
from pasearch.training.clipping import AutoSClipping, ClippingMethod, FlatClipping, PerLayerClipping
from pasearch.training.one_step import ROW_MULTIPLE
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import Training

N, CLASSES = 700, 3
SIZES = [1, 2, 3, 5, 8, 13, 15, 16, 17, 31, 32, 33, 48, 50, 63, 64, 65, 100, 129, 200, 333]
"""Of batches."""


def chain(*widths: int) -> nn.Sequential:
    """Return linear layers, and ReLUs between them."""
    layers = [nn.Linear(*each) for each in pairwise(widths)]
    modules = [module for layer in layers[:-1] for module in (layer, nn.ReLU())]
    return nn.Sequential(*modules, layers[-1])


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(200, 32), nn.ReLU(),
        nn.Linear(32, CLASSES),
    )  # fmt: skip


def normed() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.Linear(800, CLASSES)
    )


Made = Callable[[], nn.Module]
NETWORKS: dict[str, tuple[Made, tuple[int, ...], int]] = {
    "one layer": (lambda: chain(20, CLASSES), (20,), CLASSES),
    "dense": (lambda: chain(784, 128, CLASSES), (784,), CLASSES),
    "deep": (lambda: chain(784, 512, 256, CLASSES), (784,), CLASSES),
    "of a number": (lambda: chain(784, 128, 1), (784,), 1),
    "narrow first": (lambda: chain(60, 12, 300, CLASSES), (60,), CLASSES),
    "frozen": (
        lambda: nn.Sequential(
            nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64).requires_grad_(False), nn.ReLU(),
            nn.Linear(64, CLASSES),
        ), (784,), CLASSES,
    ),
    "sigmoids": (
        lambda: nn.Sequential(
            nn.Linear(20, 33), nn.Sigmoid(), nn.Linear(33, 7), TemperedSigmoid(1.5, 1.0, 0.5),
            nn.Linear(7, 5), TemperedSigmoid(), nn.Linear(5, CLASSES), nn.Tanh(),
        ), (20,), CLASSES,
    ),
    "of one unit": (lambda: chain(441, 1, 9, CLASSES), (441,), CLASSES),
    "joined": (
        lambda: nn.Sequential(
            SkipConcat(nn.Linear(784, 128), nn.ReLU()), nn.Linear(912, 64), nn.ReLU(),
            nn.Linear(64, CLASSES),
        ), (784,), CLASSES,
    ),
    "a sigmoid": (
        lambda: nn.Sequential(nn.Linear(20, 33), nn.Sigmoid(), nn.Linear(33, CLASSES)), (20,),
        CLASSES,
    ),
    "of many units": (
        lambda: nn.Sequential(nn.Linear(20, 999), nn.Sigmoid(), nn.Linear(999, CLASSES)), (20,),
        CLASSES,
    ),
    "convolutions and sigmoids": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(300, 7), nn.Sigmoid(),
            nn.Linear(7, CLASSES),
        ), (1, 12, 12), CLASSES,
    ),
    "convolutions": (convolutional, (1, 12, 12), CLASSES),
    "normed": (normed, (1, 12, 12), CLASSES),
    "an LSTM": (lambda: nn.Sequential(Lstm(6, 16), nn.Linear(16, CLASSES)), (8, 6), CLASSES),
    "tokens and a GRU": (
        lambda: nn.Sequential(
            # Here nearly all tokens are padding or unknown: rows are what is tested.
            TokenEmbedding(5, 6), Gru(6, 7, sequence=True), Lstm(7, 5), nn.Linear(5, CLASSES)
        ), (8,), CLASSES,
    ),
    "an LSTM of 7": (lambda: nn.Sequential(Lstm(6, 7), nn.Linear(7, CLASSES)), (8, 6), CLASSES),
}  # fmt: skip


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def training(
    name: str, monkeypatch: pytest.MonkeyPatch, *, fast: bool, in_rounds: bool = False, **given: Any
) -> Training:
    """Return a training of records of which all but one are null."""
    made, shape, outputs = NETWORKS[name]
    generator = torch.Generator().manual_seed(4)
    y = torch.randn(N, generator=generator) if outputs == 1 else torch.arange(N) % CLASSES
    valid = torch.zeros(N, dtype=torch.bool)
    valid[0] = True
    x = torch.randn(N, *shape, generator=generator)
    recipe = Recipe(**{
        "expected_batch_size": 64, "steps": 5000, "learning_rate": 0.1, "noise_multiplier": None,
        "bounding": FlatClipping(clip_norm=0.7), "optimizer": "sgd", "average": None, **given,
    })  # fmt: skip
    monkeypatch.setattr(linear_backend, "MIN_SAVED_SECONDS", 0.0 if fast else np.inf)
    monkeypatch.setattr(linear_backend, "MIN_THREAD_RECORDS", 0.1)
    monkeypatch.setattr(training_loop, "MIN_SHARED_BATCH_NUMBERS", 0)
    torch.manual_seed(3)
    streams = {each: Keys.from_seed(1).stream(each) for each in ("batch", "noise", "dropout")}
    records = Records(x=x, y=y, valid=valid, public=True)
    found = start_training(made(), records, recipe, streams, in_rounds=in_rounds)
    assert (found._linear is not None) == fast
    return found


def added(of: Training, size: int, place: int, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return the sum of a batch of so many, in which the one record stands at a place."""
    chosen = np.arange(1, size + 1)
    chosen[place] = 0
    if of._linear is not None:
        monkeypatch.setattr(of._linear, "_batch", lambda step: chosen)
    monkeypatch.setattr(Poisson, "batch", lambda *_: chosen)
    with full_precision():
        if of._linear is not None:
            of._linear.write_sum(0, None, of._state)
        else:
            of._write_torch_sum(0, None, of._state)
    total: Tensor = of._sums.flats[0] + 0.0  # -0 and 0 are one number
    assert 0.0 < float(total.norm()) <= 0.7 * (1 + 1e-6) or not isinstance(
        of._recipe.bounding, FlatClipping
    )
    return total.numpy().tobytes()


def places_of(number: int, size: int) -> set[int]:
    """Return the places that are tried in the batch of a number: its ends, and one more in turn."""
    more = (1, size // 3, size // 2, size - 2)[number % 4]
    return {0, size - 1, min(max(more, 0), size - 1)}


def different(of: Training, monkeypatch: pytest.MonkeyPatch, places: bool = True) -> int:
    """Count the different sums of batches of many sizes, with the one record at many places."""
    found = {
        added(of, size, place, monkeypatch)
        for number, size in enumerate(SIZES)
        for place in sorted(places_of(number, size) if places else {0})
    }
    return len(found)


@pytest.mark.contract
@pytest.mark.parametrize("bounding", [FlatClipping(clip_norm=0.7), AutoSClipping()], ids=repr)
@pytest.mark.parametrize(("threads", "batch"), [(1, 64), (2, 64), (1, 70), (1, 9)])
def test_by_the_linear_backend(
    threads: int, batch: int, bounding: ClippingMethod, monkeypatch: pytest.MonkeyPatch
):
    torch.set_num_threads(threads)
    of = training("one layer", monkeypatch, fast=True, bounding=bounding, expected_batch_size=batch)
    assert different(of, monkeypatch) == 1


SETTINGS: list[dict[str, Any]] = [
    {}, {"bounding": AutoSClipping()}, {"bounding": PerLayerClipping(clip_norm=0.7)},
    {"chunk": 40}, {"chunk": 7},
    {"chunk": 25}, {"expected_batch_size": 3}, {"expected_batch_size": 300},
]  # fmt: skip


@pytest.mark.contract
@pytest.mark.parametrize(("number", "name"), [*enumerate(NETWORKS)])
def test_by_torch(number: int, name: str, monkeypatch: pytest.MonkeyPatch):
    """Every network with the default settings and with two others, which take turns."""
    turn = 2 * number % (len(SETTINGS) - 1)
    failed = [
        given
        for given in [SETTINGS[0], *(SETTINGS[1:] * 2)[turn : turn + 2]]
        if different(training(name, monkeypatch, fast=False, **given), monkeypatch) != 1
    ]
    assert not failed


@pytest.mark.contract
@pytest.mark.parametrize(
    ("threads", "name"),
    [(2, "a sigmoid"), (3, "convolutions and sigmoids"), (4, "of many units"), (4, "a sigmoid")],
)
def test_by_several_threads_of_torch(name: str, threads: int, monkeypatch: pytest.MonkeyPatch):
    """The last numbers of each thread's share are taken by themselves by some of its functions."""
    torch.set_num_threads(threads)
    monkeypatch.setattr(training_loop, "MIN_SHARED_OPERATIONS", 0)
    of = training(name, monkeypatch, fast=False, expected_batch_size=300)
    assert of._team.threads == threads
    assert different(of, monkeypatch) == 1


@pytest.mark.contract
@pytest.mark.parametrize(
    ("threads", "chunk", "name"),
    [(2, 63, "of one unit"), (3, 90, "joined"), (4, 102, "a sigmoid"), (4, 102, "joined")],
)
def test_by_more_threads_than_have_memory(
    name: str, threads: int, chunk: int, monkeypatch: pytest.MonkeyPatch
):
    torch.set_num_threads(threads)
    monkeypatch.setattr(training_loop, "MIN_SHARED_OPERATIONS", 0)
    of = training(name, monkeypatch, fast=False, chunk=chunk)
    assert of._team.threads == threads
    assert different(of, monkeypatch) == 1


@pytest.mark.contract
@pytest.mark.parametrize("chunk", [90, 40])
def test_rounds_in_several_parts(chunk: int, monkeypatch: pytest.MonkeyPatch):
    of = training("deep", monkeypatch, fast=False, chunk=chunk, in_rounds=True)
    assert isinstance(of, GpuTraining)
    rounds = of._rounds
    width, found = rounds._blocks.width, set[bytes]()
    assert width > chunk
    for place in range(width):
        places = torch.arange(1, width + 1)
        places[place] = 0
        real = torch.ones(width, dtype=torch.bool)
        with full_precision():
            rounds._make((places, real), (), 0, None, of._state, careful=True)
        found.add((of._sums.flats[0] + 0.0).numpy().tobytes())
    assert len(found) == 1


@pytest.mark.contract
def test_with_views(monkeypatch: pytest.MonkeyPatch):
    """Views are drawn by the place in a batch, so the record stays where it is."""
    views = Augmentation(views=2, shift=1)
    of = training("convolutions", monkeypatch, fast=False, augmentation=views)
    assert different(of, monkeypatch, places=False) == 1


@pytest.mark.unit
def test_a_part_of_the_batchs_own_size_is_seen(monkeypatch: pytest.MonkeyPatch):
    """Teeth: without filling up, a library's product tells how many null records there are."""
    monkeypatch.setattr(one_step, "pad_if_needed", lambda places, part, vary: (places, None))
    of = training("dense", monkeypatch, fast=False)
    if different(of, monkeypatch) == 1:
        pytest.skip("the products of this machine do not depend on how many rows there are")


@pytest.mark.unit
def test_a_sigmoid_of_a_number_is_the_same_wherever_it_stands():
    """Of rows that are no multiple of 32, too: parts of such are what memory may leave."""
    for threads in [1, 3, 4]:
        for function in [sigmoid, lambda x: sigmoid_(x.clone()), TemperedSigmoid(1.5, 1.0, 0.5)]:
            torch.set_num_threads(threads)
            generator = torch.Generator().manual_seed(1)
            for rows in (1, 16, 80, 112, 1040):
                for width in (1, 5, 7, 33, 300, 1001):
                    one = 2.0 * torch.randn(1, width, generator=generator)
                    found = function(one.repeat(rows, 1))
                    assert torch.equal(found, found[:1].expand(rows, -1))


@pytest.mark.unit
def test_parts_are_whole_where_sizes_vary():
    places = torch.arange(50)
    filled, real = one_step.pad_if_needed(places, 32, vary=True)
    assert real is not None
    assert (len(filled), int(real.sum())) == (64, 50)
    assert torch.equal(filled[:50], places)
    assert not filled[50:].any()
    for part, vary in ((32, False), (25, True), (50, True)):
        same, none = one_step.pad_if_needed(places, part, vary)
        assert none is None
        assert same is places
    recipe = Recipe(expected_batch_size=100, steps=1, learning_rate=0.1, noise_multiplier=1.0)
    assert one_step.choose_part_rows(recipe, 1000, 10**9) == 128
    assert one_step.choose_part_rows(recipe, 1000, 100) == 96
    assert one_step.choose_part_rows(recipe, 1000, 10**9, threads=3) == 192
    assert one_step.choose_part_rows(recipe, 1000, 7) == 32
    assert one_step.choose_part_rows(recipe, 1000, 63, threads=2) == 32
    assert one_step.choose_part_rows(recipe, 1000, 102, threads=4) == 96
    assert one_step.choose_part_rows(recipe, 100, 10**9) == recipe.chunk, "all records: none varies"
    assert ROW_MULTIPLE % 32 == 0, "as many numbers as torch's functions take at once"
