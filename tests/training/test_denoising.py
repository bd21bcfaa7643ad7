"""Denoising and noise of any density: laws, keys, and the weight of what is all noise."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from pasearch.accounting.densities import (
    DENSITIES,
    Cauchy,
    Density,
    GaussianNoise,
    GeneralisedNormal,
    HyperbolicSecant,
    LaplaceNoise,
    Logistic,
    StudentT,
    Tabulated,
    VarianceGamma,
)
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys, Stream
from pasearch.training import noise as plain_noise
from pasearch.training.encoded import noise as laws
from pasearch.training.encoded.noise import (
    TABLE_CELLS,
    UNIT_TAILS,
    KolmogorovSmirnov,
    begin_noise,
    draw_on_generator,
    evaluate_cdf,
    evaluate_cdf_at_edges,
)

KINDS: list[Density] = [
    GaussianNoise(scale=0.7),
    StudentT(scale=1.3, freedom=9.0),
    StudentT(scale=0.2, freedom=2.5),
    Cauchy(scale=0.4),
    LaplaceNoise(scale=2.0),
    HyperbolicSecant(scale=1.1),
    Logistic(scale=0.6),
    GeneralisedNormal(scale=1.4, power=3.0),
    GeneralisedNormal(scale=1.4, power=1.2),
    VarianceGamma(scale=0.5, shape=2.0),
    Tabulated(scale=0.5, knots=(0.0, 1.0, 2.5), log_values=(0.0, -0.5, -3.0)),
]
NAMES = [f"{kind.name}-{n}" for n, kind in enumerate(KINDS)]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=NAMES)
CPU = torch.device("cpu")
COUNT = 20_000


def stream_of(trial: int = 0) -> Stream:
    return Keys.from_seed(6).stream("trial", trial, "noise")


def drawn(
    kind: Density, step: int = 0, trial: int = 0, count: int = COUNT, device: torch.device = CPU
) -> torch.Tensor:
    """Noise alone, as sums get it; the grid and what is beside another density are in it."""
    sums = [torch.zeros(count, device=device)]
    begin_noise(kind, count, device, stream_of(trial), step)().add_to(sums, 1.0)
    return sums[0]


def pvalue(values: torch.Tensor, kind: Density) -> float:
    return float(kstest(values.double().cpu().numpy(), kind.cdf).pvalue)


@pytest.mark.unit
def test_every_density_is_tested():
    assert {kind.name for kind in KINDS} == set(DENSITIES)


# --- laws on tensors


@pytest.mark.oracle
def test_the_distribution_on_tensors_is_the_densitys():
    for kind in KINDS:
        for dtype in [torch.float32, torch.float64]:
            even = np.concatenate([np.linspace(-8, 8, 4001), [-1e6, -300.0, 1e-9, 300.0, 1e6]])
            x = torch.from_numpy(kind.scale * even).to(dtype)
            found = evaluate_cdf(kind, x)
            assert found.dtype == dtype
            gap = float(
                (found.double() - torch.from_numpy(kind.cdf(x.double().numpy()))).abs().max()
            )
            # A curve and its chord both rise within a cell's corners.
            bound = 0.0 if type(kind) in UNIT_TAILS else evaluate_cdf_at_edges(kind, TABLE_CELLS)[1]
            assert gap <= max(bound, 1e-6)
            assert gap <= 2e-6, "the chord is far better than its bound"
            assert bound <= 1e-4
            assert (found.sort().values == found[x.argsort()]).all()


@pytest.mark.statistical
def test_noise_has_the_density_that_is_priced_and_other_scales_are_rejected():
    for kind in KINDS:
        noise = drawn(kind)
        assert noise.dtype == torch.float32
        assert pvalue(noise, kind) > 1e-3
        assert pvalue(noise, kind.with_scale(kind.scale * 2 / 3)) < 1e-9
        assert pvalue(noise, kind.with_scale(kind.scale * 3 / 2)) < 1e-9


@pytest.mark.statistical
def test_torchs_constructions_have_the_density():
    """Those that CUDA uses, drawn on the CPU: the same functions, and here 64 bits of key too."""
    for kind in [kind for kind in KINDS if type(kind) in laws.MAGNITUDE_SAMPLERS]:
        noise = draw_on_generator(
            kind, COUNT, torch.Generator().manual_seed(stream_of().seed64(0) % 2**63)
        )
        assert pvalue(noise, kind) > 1e-3
        assert pvalue(noise, kind.with_scale(kind.scale * 2 / 3)) < 1e-9
        assert pvalue(noise, kind.with_scale(kind.scale * 3 / 2)) < 1e-9
        assert abs(float(noise.sign().mean())) < 5 / math.sqrt(COUNT)


@pytest.mark.statistical
def test_steps_trials_and_coordinates_are_independent():
    for kind in KINDS:
        signs = drawn(kind).sign()
        root = math.sqrt(COUNT)
        assert abs(float(signs @ drawn(kind, step=1).sign())) < 4 * root
        assert abs(float(signs @ drawn(kind, trial=1).sign())) < 4 * root
        assert abs(float(signs[1:] @ signs[:-1])) < 4 * root
        sizes = drawn(kind).abs().argsort().argsort().double()
        pairs = torch.stack([sizes[1:], sizes[:-1]])
        assert abs(float(torch.corrcoef(pairs)[0, 1])) < 5 / root
        assert torch.equal(drawn(kind), drawn(kind))


@pytest.mark.unit
@each_kind
def test_begun_in_a_thread_it_is_the_same_noise(kind: Density, monkeypatch: pytest.MonkeyPatch):
    alone = drawn(kind, count=900)
    monkeypatch.setattr(plain_noise, "MIN_THREAD_NUMBERS", 10)
    begun = [begin_noise(kind, 900, CPU, stream_of(), step) for step in (0, 1)]
    sums = [[torch.zeros(900)] for _ in begun]
    for noise, total in zip(begun, sums, strict=True):
        noise().add_to(total, 1.0)
    assert torch.equal(sums[0][0], alone)
    assert torch.equal(sums[1][0], drawn(kind, step=1, count=900))
    assert not torch.equal(sums[1][0], alone)


@pytest.mark.oracle
def test_gaussian_noise_is_that_of_the_gaussian_recipe():
    kind, sums = GaussianNoise(scale=0.3), [torch.zeros(40), torch.zeros(6, 10)]
    plain_noise.begin_gaussian_noise(100, torch.device("cpu"), stream_of(), 4)().add_to(
        sums, 1.2 * 0.25
    )
    theirs = torch.cat([each.flatten() for each in sums])
    assert torch.equal(drawn(kind, 4, count=100), theirs)


# --- the weight


@pytest.mark.oracle
def test_sorting_gives_the_kolmogorov_smirnov_distance():
    for kind in KINDS:
        for signal in [0.0, 0.3, 20.0]:
            noisy = drawn(kind) + signal * kind.scale * torch.linspace(-1, 1, COUNT) ** 3
            expected = kstest(noisy.double().numpy(), kind.cdf).statistic
            found = float(KolmogorovSmirnov(cells=None).weight(noisy, kind))
            assert found == pytest.approx(expected, abs=3e-6)


@pytest.mark.property
@settings(max_examples=80)
@given(
    place=st.integers(0, len(KINDS) - 1),
    cells=st.sampled_from([2, 7, 64, 4096]),
    count=st.integers(1, 300),
    shift=st.floats(-1e3, 1e3, width=32),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 1e4]),
    seed=st.integers(0, 9),
)
def test_by_cells_it_is_too_small_by_at_most_its_error(
    place: int, cells: int, count: int, shift: float, spread: float, seed: int
):
    kind = KINDS[place]
    generator = torch.Generator().manual_seed(seed)
    noisy = kind.scale * (shift + spread * torch.randn(count, generator=generator))
    exact = float(KolmogorovSmirnov(cells=None).weight(noisy, kind))
    ways = KolmogorovSmirnov(cells=cells)
    found = float(ways.weight(noisy, kind))
    assert -1e-5 <= exact - found <= ways.error(kind) + 1e-5
    assert 0.0 <= found <= 1.0


@pytest.mark.statistical
def test_the_weight_is_near_0_for_noise_and_near_1_for_a_large_signal():
    """Of n draws from their law it is .87 / sqrt(n) on average, and above 2.2 in 1 of 8000."""
    for kind in KINDS:
        for cells in [None, 4096]:
            ways = KolmogorovSmirnov(cells=cells)
            assert ways.error(kind) < 1e-3
            noise = drawn(kind)
            alone = float(ways.weight(noise, kind))
            assert 0.3 / math.sqrt(COUNT) < alone + ways.error(kind)
            assert alone < 2.2 / math.sqrt(COUNT)
            assert float(ways.weight(noise + 1e4 * kind.scale, kind)) > 0.99
            signal = torch.linspace(-1.0, 1.0, COUNT) * kind.scale
            weights = [
                float(ways.weight(noise + heat * signal, kind)) for heat in (0, 1, 3, 10, 100)
            ]
            assert weights == sorted(weights)
            assert 0.4 < weights[-1] <= 0.5, "what is even and wide is half of the line away"


@pytest.mark.unit
def test_the_weight_asks_for_the_noise_that_was_added():
    for cells in [None, 64]:
        noise = drawn(StudentT(scale=0.5))
        right = KolmogorovSmirnov(cells=cells).weight(noise, StudentT(scale=0.5))
        for wrong in (StudentT(scale=1.0), GaussianNoise(scale=0.3)):
            assert KolmogorovSmirnov(cells=cells).weight(noise, wrong) > 3 * right


@pytest.mark.unit
def test_numbers_that_are_not_finite_stop_nothing():
    noisy = torch.tensor([math.nan, math.inf, -math.inf, 0.1])
    for cells in (None, 64):
        KolmogorovSmirnov(cells=cells).weight(noisy, GaussianNoise())


@pytest.mark.contract
def test_settings_survive_json():
    for cells in [None, 2, 512]:
        values = json.loads(json.dumps(KolmogorovSmirnov(cells=cells).to_json()))
        assert values.pop("name") == "kolmogorov-smirnov"
        assert KolmogorovSmirnov(**values) == KolmogorovSmirnov(cells=cells)


@pytest.mark.unit
def test_bad_cells_are_refused():
    for cells in [0, 1, -4, 2.0, True, "9"]:
        with pytest.raises(UsageError, match="cells"):
            KolmogorovSmirnov(cells=cells)  # pyright: ignore[reportArgumentType]


# --- on CUDA

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@cuda
@pytest.mark.gpu
@pytest.mark.statistical
def test_on_cuda_noise_and_weight_are_the_same_law():
    for kind in KINDS:
        device = torch.device("cuda")
        noise = drawn(kind, device=device)
        assert noise.device.type == "cuda"
        assert pvalue(noise, kind) > 1e-3
        assert pvalue(noise, kind.with_scale(kind.scale * 2 / 3)) < 1e-9
        assert torch.equal(noise, drawn(kind, device=device))
        other = drawn(kind, 1, device=device)
        assert abs(float(noise.sign() @ other.sign())) < 4 * math.sqrt(COUNT)
        for cells in (None, 4096):
            ways = KolmogorovSmirnov(cells=cells)
            here, there = ways.weight(noise.cpu(), kind), ways.weight(noise, kind).cpu()
            assert float(here) == pytest.approx(float(there), abs=1e-5)
