"""Noise: its law, its scale, and that no two steps or streams share it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from pasearch.runs.keys import Keys, Stream
from pasearch.runs.normals import MAX_SINGLE_PIECE_COUNT
from pasearch.training.noise import begin_gaussian_noise, make_cuda_generator

SIGMA, SENSITIVITY = 1.3, 0.25
COUNT = 20_000


def drawn(
    stream: Stream, step: int = 0, *, count: int = COUNT, sigma: float = SIGMA, device: str = "cpu"
) -> np.ndarray:
    """Return the noise alone, laid over tensors of several shapes."""
    sums = [torch.zeros(count // 2, device=device), torch.zeros(count // 20, 10, device=device)]
    begin_gaussian_noise(count, sums[0].device, stream, step)().add_to(sums, sigma * SENSITIVITY)
    return torch.cat([each.flatten() for each in sums]).double().cpu().numpy()


def stream_of(trial: int = 0) -> Stream:
    return Keys.from_seed(8).stream("trial", trial, "noise")


def pvalue(noise: np.ndarray, scale: float) -> float:
    return float(kstest(noise / scale, "norm").pvalue)


@pytest.mark.statistical
def test_the_law_is_normal_of_the_priced_scale_and_other_scales_are_rejected():
    for sigma in [0.4, 1.3, 20.0]:
        noise = drawn(stream_of(), sigma=sigma)
        scale = sigma * SENSITIVITY
        assert pvalue(noise, scale) > 1e-3
        assert pvalue(noise, scale * 2 / 3) < 1e-9
        assert pvalue(noise, scale * 3 / 2) < 1e-9


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return a standard normal number, if the two are independent."""
    return float(first @ second) / (SIGMA * SENSITIVITY) ** 2 / math.sqrt(len(first))


@pytest.mark.statistical
def test_steps_trials_and_coordinates_are_uncorrelated_and_shared_noise_is_seen():
    noise = drawn(stream_of())
    assert abs(correlation(noise, drawn(stream_of(), step=1))) < 4
    assert abs(correlation(noise, drawn(stream_of(1)))) < 4
    assert abs(correlation(noise[1:], noise[:-1])) < 4
    assert abs(correlation(noise[: COUNT // 2], noise[COUNT // 2 :])) < 4
    assert correlation(noise, drawn(stream_of())) > 100


@pytest.mark.unit
def test_noise_is_added_to_what_is_there_in_place():
    start = [torch.full((3,), 5.0), torch.full((2, 2), -1.0)]
    sums = [each.clone() for each in start]
    held = list(sums)
    begin_gaussian_noise(7, torch.device("cpu"), stream_of(), 0)().add_to(sums, SIGMA)
    alone = [torch.zeros(3), torch.zeros(2, 2)]
    begin_gaussian_noise(7, torch.device("cpu"), stream_of(), 0)().add_to(alone, SIGMA)
    for before, after, same, added in zip(start, sums, held, alone, strict=True):
        assert after is same
        assert torch.allclose(after - before, added, atol=1e-6)
        assert (added != 0).all()


@pytest.mark.gpu
@pytest.mark.statistical
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_the_law_is_the_same_and_steps_and_trials_differ():
    noise = drawn(stream_of(), device="cuda")
    scale = SIGMA * SENSITIVITY
    assert pvalue(noise, scale) > 1e-3
    assert pvalue(noise, scale * 2 / 3) < 1e-9
    assert pvalue(noise, scale * 3 / 2) < 1e-9
    assert np.array_equal(noise, drawn(stream_of(), device="cuda"))
    assert abs(correlation(noise, drawn(stream_of(), 1, device="cuda"))) < 4
    assert abs(correlation(noise, drawn(stream_of(1), device="cuda"))) < 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_a_secure_stream_gives_the_cpus_noise_to_the_last_bit():
    """The words are the same, and every rounding is the exact one: no device can tell.

    So it is of few numbers; of more a processor takes the bits in another order.
    """
    stream = Keys.from_seed(8, secure=True).stream("trial", 0, "noise")
    few = drawn(stream, count=MAX_SINGLE_PIECE_COUNT // 20 * 20)
    assert np.array_equal(
        few, drawn(stream, count=MAX_SINGLE_PIECE_COUNT // 20 * 20, device="cuda")
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cudas_generator_begins_where_the_stream_says():
    made = make_cuda_generator(torch.device("cuda"), stream_of(), 3)
    assert (made.initial_seed() % 2**64, made.get_offset()) == stream_of().seed_and_offset(3)


@pytest.mark.unit
def test_a_seed_and_an_offset_are_what_cudas_generator_takes():
    drawn_ = [stream_of(trial).seed_and_offset(step) for trial in range(20) for step in range(20)]
    assert all(0 <= seed < 2**64 and 0 <= offset < 2**63 for seed, offset in drawn_)
    assert all(offset % 4 == 0 for _, offset in drawn_)
    assert len(set(drawn_)) == len({seed for seed, _ in drawn_}) == 400
    for bit in range(2, 63):
        assert {offset >> bit & 1 for _, offset in drawn_} == {0, 1}
