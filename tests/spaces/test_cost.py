"""The work of a step: counted by hand, and beside torch's own count."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from pasearch.runs.keys import Keys
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.cost import (
    EAGER_STEP_TIMES,
    EMBEDDING_NUMBERS_MOVED,
    GATE_NUMBERS_MOVED,
    LINEAR_BACKEND_STEP_TIMES,
    MIN_SAVED_SECONDS,
    MIN_SHARED_NUMBERS,
    SHARED_TIME,
    WINDOW_NUMBERS_MOVED,
    count_norm_operations,
    count_positions,
    estimate_seconds,
    measure_step_work,
)
from pasearch.spaces.layers import Conv, Dense, Embedding, Gru, Lstm, Pool

NETWORKS = {
    "linear": (Architecture(layers=()), (50,)),
    "fcn": (Architecture(layers=(Dense(units=300), Dense(units=128))), (784,)),
    "frozen": (Architecture(layers=(Dense(units=300), Dense(units=128))).freeze_first(1), (784,)),
    "cnn": (
        Architecture(
            layers=(
                Pool(size=2), Conv(filters=16, kernel=5), Pool(size=2),
                Conv(filters=32, kernel=3, padding="same"), Dense(units=64),
            )
        ),
        (28, 28),
    ),
    "lstm": (Architecture(layers=(Lstm(units=64),)), (28, 28)),
}  # fmt: skip


@pytest.mark.unit
@pytest.mark.quick
def test_the_work_of_a_linear_model_by_hand():
    found = measure_step_work(Architecture(layers=()), (7,), 3)
    assert (found.features, found.parameters, found.trained) == (7, 24, 24)
    assert (
        found.nonprivate_operations == 2 * 24 * 2
    )  # forward, and the sum: nothing below wants a gradient
    assert found.operations == found.nonprivate_operations + count_norm_operations(24, 1)


@pytest.mark.oracle
def test_torch_counts_as_many_operations_of_a_plain_step():
    """Its count leaves biases out, and takes the input's gradient where nothing below wants it."""
    for name in NETWORKS:
        architecture, shape = NETWORKS[name]
        network = architecture.build(shape, 10, Keys.from_seed(1).stream("start").generator())
        x, y = torch.rand(8, *shape), torch.randint(10, (8,))
        with FlopCounterMode(display=False) as counted:
            cross_entropy(network(x), y, reduction="sum").backward()
        assert measure_step_work(architecture, shape, 10).nonprivate_operations == pytest.approx(
            counted.get_total_flops() / 8, rel=0.05
        )


@pytest.mark.unit
def test_a_norm_takes_the_cheaper_form():
    few, many = count_norm_operations(10_000, 4), count_norm_operations(10_000, 400)
    assert few == 2 * 4**2 * 2 * math.sqrt(10_000)
    assert many == 4 * 10_000
    assert count_norm_operations(10_000, 1) < few


@pytest.mark.unit
def test_places_at_which_weights_are_used():
    assert count_positions(Dense(units=3), (4,)) == 1
    assert count_positions(Conv(filters=2, kernel=5), (1, 28, 28)) == 24 * 24
    assert count_positions(Lstm(units=4), (28, 5)) == 28


LONG = 10**7
"""Steps of a training for which compiled code is loaded whatever it saves."""


@pytest.mark.unit
def test_a_plan_reckons_with_a_step_its_operations_and_its_numbers():
    work = measure_step_work(Architecture(layers=(Dense(units=5),)), (7,), 3)
    assert (work.layers, work.numbers) == (2, 7 + 5 + 3)
    for pace in (LINEAR_BACKEND_STEP_TIMES, EAGER_STEP_TIMES):
        step = 2 * pace.layer + work.trained * pace.trained
        assert pace.seconds(work, 0) == step
        step += 1000 * (work.operations * pace.operation + 15 * pace.number)
        assert pace.seconds(work, 1000) == pytest.approx(step)
    assert estimate_seconds(work, 1000, LONG) == LONG * EAGER_STEP_TIMES.seconds(work, 1000)


@pytest.mark.unit
def test_a_plan_counts_on_the_linear_backend_if_it_saves_what_loading_takes():
    work = measure_step_work(Architecture(layers=()), (7,), 3)
    by_torch, linear = (
        each.seconds(work, 100) for each in (EAGER_STEP_TIMES, LINEAR_BACKEND_STEP_TIMES)
    )
    enough = math.ceil(MIN_SAVED_SECONDS / (by_torch - linear))
    assert estimate_seconds(work, 100, enough + 1) == (enough + 1) * linear
    assert estimate_seconds(work, 100, enough - 1) == (enough - 1) * by_torch


@pytest.mark.unit
def test_a_plan_counts_on_the_linear_backend_for_linear_models_alone():
    frozen = Conv(filters=2, kernel=3, trainable=False)  # applied to all records once a training
    for layers, is_linear in (
        ((), True), ((Dense(units=5, trainable=False),), True), ((frozen, Pool()), True),
        ((Dense(units=5),), False), ((Dense(units=5, joined=True),), False),
        ((Conv(filters=2, kernel=3), Pool()), False), ((frozen, Dense(units=4)), False),
    ):  # fmt: skip
        shape = (1, 6, 6) if layers and isinstance(layers[0], Conv) else (7,)
        work = measure_step_work(Architecture(layers=layers), shape, 3)
        assert work.is_linear is is_linear
        pace = LINEAR_BACKEND_STEP_TIMES if is_linear else EAGER_STEP_TIMES
        assert estimate_seconds(work, 10, LONG) == LONG * pace.seconds(work, 10)


@pytest.mark.unit
def test_many_numbers_have_both_cores():
    work = measure_step_work(Architecture(layers=()), (100,), 3)
    few, many = (MIN_SHARED_NUMBERS - 1) // 100, -(-MIN_SHARED_NUMBERS // 100)
    one, own = (LINEAR_BACKEND_STEP_TIMES.seconds(work, batch) for batch in (few, many))
    assert estimate_seconds(work, few, LONG) == LONG * one
    fixed = LINEAR_BACKEND_STEP_TIMES.seconds(work, 0)
    both = fixed + SHARED_TIME * (own - fixed)
    assert estimate_seconds(work, many, LONG) == pytest.approx(LONG * both)


@pytest.mark.unit
def test_a_convolution_goes_through_its_windows_several_times():
    work = measure_step_work(
        Architecture(layers=(Conv(filters=2, kernel=3), Pool(size=2))), (1, 6, 6), 3
    )
    outputs = 2 * 4 * 4 + 2 * 2 * 2 + 3
    assert work.layers == 2
    values_of_windows = 16 * (9 + 1)  # 9 inputs of each window, and the bias
    assert work.numbers == 36 + outputs + WINDOW_NUMBERS_MOVED * values_of_windows


@pytest.mark.unit
def test_an_lstm_goes_through_its_gates_in_each_step_of_a_sequence():
    work = measure_step_work(Architecture(layers=(Lstm(units=4),)), (28, 5), 3)
    assert work.numbers == 28 * 5 + 4 + 3 + GATE_NUMBERS_MOVED * 28 * 4


@pytest.mark.unit
def test_an_embedding_copies_rows_instead_of_multiplying():
    layers = (Embedding(tokens=1000, units=5), Gru(units=4))
    work = measure_step_work(Architecture(layers=layers), (28,), 3)
    behind = measure_step_work(Architecture(layers=layers[1:]), (28, 5), 3)
    assert work.trained == behind.trained + 5000
    assert work.numbers == 28 + behind.numbers + EMBEDDING_NUMBERS_MOVED * 28 * 5
    # The vectors of the embedding want a gradient, not its 5,000 weights a product.
    assert behind.operations < work.operations < 1.5 * behind.operations


STEPS = {
    # Milliseconds of a step, the median of many on two idle cores: by the linear backend on an
    # Intel Xeon and on an AMD EPYC, and by PyTorch on the latter.
    "digits": ((64,), (64,), 10, 404, None, 1.36),
    "adult, centred pairs": ((), (449,), 2, 43_958, (8.3, 9.03), 23.5),
    "adult, 128 units": ((128,), (193,), 2, 2048, None, 6.31),
    "adult, linear": ((), (193,), 2, 2048, (0.50, 0.37), 1.32),
    "letter, centred pairs": ((), (544,), 26, 18_000, (9.8, 13.2), 23.5),
    "nursery, centred pairs": ((), (299,), 5, 11_664, (2.37, 3.39), 7.55),
    "insurance": ((), (46,), 1, 1204, (0.125, 0.17), 0.67),
    "MNIST's size, 512 and 128 units": ((512, 128), (784,), 10, 2048, None, 34.7),
    "28 steps, an LSTM of 128 units": ((Lstm(units=128),), (28, 28), 10, 100, None, 58.9),
    "28 steps, an LSTM of 32 units": ((Lstm(units=32),), (28, 28), 10, 512, None, 49.3),
}  # fmt: skip


@pytest.mark.oracle
def test_a_plan_is_near_what_was_measured():
    for name in STEPS:
        hidden, shape, classes, batch, measured, by_torch = STEPS[name]
        layers = (Dense(units=each) if isinstance(each, int) else each for each in hidden)
        work = measure_step_work(Architecture(layers=tuple(layers)), shape, classes)
        assert work.is_linear == (measured is not None)
        if measured is not None:
            share = SHARED_TIME if batch * work.features >= MIN_SHARED_NUMBERS else 1.0
            linear = 1e3 * LINEAR_BACKEND_STEP_TIMES.seconds(work, batch, share)
            assert max(measured) / 1.6 < linear < 1.6 * min(measured)
        assert by_torch / 2.1 < 1e3 * EAGER_STEP_TIMES.seconds(work, batch) < 2.1 * by_torch
