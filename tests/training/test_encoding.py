"""Encoded gradients: what a record adds stays, sorted, below one public vector."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pasearch.accounting.additive import additive_rdp
from pasearch.accounting.densities import GaussianNoise
from pasearch.errors import UsageError
from pasearch.training.encoded import gradients as encoding
from pasearch.training.encoded.codebook import Codebook, make_shifts
from pasearch.training.encoded.gradients import EncodedClipping, encode_by_sorting
from pasearch.training.per_example import form_gradients, list_trainable_parameters

BATCH = 6


class Idle(nn.Module):
    """A layer that is not used, and one without a bias."""

    def __init__(self):
        super().__init__()
        self.idle, self.used = nn.Linear(2, 2), nn.Linear(12, 7, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.LayerNorm(20), nn.Linear(20, 3))


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 20), nn.Tanh(), nn.Linear(20, 3)
    )


def convolved() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 6, 2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 5)
    )


def partly() -> nn.Module:
    network = plain()
    next(iter(network.parameters())).requires_grad_(False)
    list(network.parameters())[3].requires_grad_(False)
    return network


NETS: dict[str, Callable[[], nn.Module]] = {
    "plain": plain,
    "dense": dense,
    "convolved": convolved,
    "partly": partly,
    "idle": Idle,
}
each_net = pytest.mark.parametrize("name", NETS)
ways = pytest.mark.parametrize("exact", [False, True], ids=["keys", "sorted"])


def made(name: str, batch: int = BATCH) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(5)
    return NETS[name](), torch.randn(batch, 12), torch.linspace(0.5, 3.0, batch)


def wave(own: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda outputs: (outputs.flatten(1) * own[:, None]).sin().sum(dim=1)


def everyone(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=torch.bool, device=x.device)


def summed(
    network: nn.Module,
    x: Tensor,
    own: Tensor,
    bounding: EncodedClipping,
    mask: Tensor | None = None,
) -> Tensor:
    sums, _ = bounding.sums(network, x, wave(own), everyone(x) if mask is None else mask)
    assert [each.shape for each in sums] == [p.shape for p in list_trainable_parameters(network)]
    return torch.cat([each.flatten() for each in sums])


def size_of(network: nn.Module) -> int:
    return sum(p.numel() for p in list_trainable_parameters(network))


def dominated(vector: Tensor, codebook: Codebook, slack: float = 0.0) -> bool:
    """Return whether the sorted magnitudes are at most those of one vector, every one of them."""
    ordered = vector.abs().sort(descending=True).values.double().numpy()
    vectors = np.repeat(codebook.values.astype(float), codebook.counts, axis=1)
    return bool((ordered <= vectors + slack).all(axis=1).any())


# --- the codebook


@pytest.mark.contract
def test_a_codebook_is_a_function_of_its_public_seed_alone():
    for make in [Codebook.binned, Codebook.dense]:
        torch.manual_seed(0)
        first = make(500, vectors=20, seed=3)
        torch.manual_seed(1)
        torch.randn(3)
        again, other = make(500, vectors=20, seed=3), make(500, vectors=20, seed=4)
        assert first.values.tobytes() == again.values.tobytes()
        assert first.counts.tobytes() == again.counts.tobytes()
        assert not np.array_equal(first.values, other.values)
        with pytest.raises(ValueError, match="read-only"):
            first.values[0, 0] = 9.0


@pytest.mark.property
@settings(max_examples=60)
@given(
    dimension=st.integers(1, 4000),
    vectors=st.integers(1, 9),
    clip_norm=st.floats(1e-12, 1e6),
    seed=st.integers(0, 99),
)
def test_vectors_are_sorted_and_of_norm_c(
    dimension: int, vectors: int, clip_norm: float, seed: int
):
    for make in (Codebook.binned, Codebook.dense):
        codebook = make(dimension, vectors=vectors, clip_norm=clip_norm, seed=seed)
        assert codebook.values.shape == (vectors, len(codebook.counts))
        assert codebook.dimension == dimension
        assert (codebook.counts >= 1).all()
        assert (codebook.values >= 0).all()
        assert (np.diff(codebook.values.astype(float), axis=1) <= 0).all()
        assert (codebook.norms <= clip_norm).all()
        assert (codebook.norms >= clip_norm * (1 - 1e-6)).all()


@pytest.mark.statistical
def test_a_binned_codebook_has_the_law_of_a_dense_one():
    """Means and spreads by rank, over 400 vectors; a heavier tail (t with 9) is told apart."""
    binned = Codebook.binned(3000, vectors=400)
    whole = np.repeat(binned.values.astype(float), binned.counts, axis=1)
    literal = Codebook.dense(3000, vectors=400, seed=1).values.astype(float)
    heavy = np.abs(np.random.default_rng(1).standard_t(9, size=(400, 3000)))
    heavy[:, ::-1].sort(axis=1)
    heavy /= np.linalg.norm(heavy, axis=1, keepdims=True)

    def far(one: np.ndarray, other: np.ndarray, rank: int) -> float:
        """Return by how many standard errors the means differ, a bin's width allowed for."""
        gap = abs(one[:, rank].mean() - other[:, rank].mean()) - 0.03 * other[:, rank].mean()
        return gap / math.hypot(one[:, rank].std(), other[:, rank].std()) * math.sqrt(400)

    ranks = [0, 1, 4, 20, 100, 500, 1500, 2300]
    assert all(far(whole, literal, rank) < 4 for rank in ranks)
    assert far(whole, heavy, 0) > 10
    assert far(whole, heavy, 1500) > 10
    for rank in (0, 1, 4, 20):
        assert whole[:, rank].std() == pytest.approx(literal[:, rank].std(), rel=0.2)


@pytest.mark.unit
def test_tiny_entries_are_0():
    made = Codebook._of_norm(np.array([[2.0, 1.0, 9e-6]]), np.array([1, 3, 5]), 1.0)
    assert made.values[0, 2] == 0.0
    assert made.values[0, 0] == pytest.approx(2 / math.sqrt(7), rel=1e-6)


@pytest.mark.contract
def test_shifts_are_at_least_the_vectors_and_hardly_more():
    for ratio in [None, 1.001, 1 + 2**-8, 1.5]:
        codebook = Codebook.binned(900, vectors=12, clip_norm=0.3)
        envelope = codebook.envelope(ratio)
        top = np.repeat(envelope.values, envelope.counts)
        for vector in codebook.values:
            shifts = make_shifts(vector, codebook.counts, ratio)
            exact = np.repeat(vector.astype(float), codebook.counts)
            priced = np.repeat(shifts.values, shifts.counts)
            assert len(priced) == codebook.dimension
            assert (priced >= exact).all()
            assert (priced <= exact * (ratio or 1.0) * (1 + 1e-9)).all()
            assert (top >= priced).all()


@pytest.mark.oracle
def test_with_gaussian_noise_shifts_cost_what_their_norm_costs():
    """Without sampling the divergence at order a is a |psi|^2 / (2 sigma^2)."""
    codebook = Codebook.binned(2000, vectors=5, clip_norm=0.5)
    orders = np.array([2.0, 5.0, 16.0])
    shifts = [make_shifts(each, codebook.counts, None) for each in codebook.values]
    found = additive_rdp(GaussianNoise(scale=1.5), shifts, 1.0, orders)
    assert found == pytest.approx(orders * 0.25 / (2 * 1.5**2), rel=2e-3)


@pytest.mark.unit
def test_a_codebook_that_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="fewer vectors"):
        Codebook.dense(10**6, vectors=1000)
    with pytest.raises(UsageError, match="fewer than"):
        Codebook.binned(2**24)
    for ratio in (1.0, 0.5, math.nan):
        with pytest.raises(UsageError, match="ratio"):
            Codebook.binned(9, vectors=2).envelope(ratio)


# --- sorting: the algorithm to the letter


def by_the_book(gradient: list[float], codebook: Codebook) -> list[float]:
    """Algorithm 2, one coordinate at a time."""
    order = sorted(range(len(gradient)), key=lambda i: -abs(gradient[i]))
    vectors = np.repeat(codebook.values.astype(float), codebook.counts, axis=1)
    similar = [
        sum(abs(gradient[i]) * p for i, p in zip(order, psi, strict=True)) / math.hypot(*psi)
        for psi in vectors
    ]
    psi = vectors[int(np.argmax(similar))]
    encoded = [0.0] * len(gradient)
    for rank, i in enumerate(order):
        encoded[i] = min(psi[rank], max(gradient[i], -psi[rank]))
    return encoded


@pytest.mark.oracle
def test_encoding_is_the_papers_algorithm():
    for make in [Codebook.binned, Codebook.dense]:
        for scale in [1e-3, 0.3, 1.0, 50.0]:
            codebook = make(150, vectors=40)
            gradients = (
                torch.randn(9, 150, generator=torch.Generator().manual_seed(2)).double() * scale
            )
            gradients[3:6] = gradients[3:6] ** 3
            gradients[6, ::2] = 0.0
            expected = [by_the_book(row.tolist(), codebook) for row in gradients]
            found = encode_by_sorting(gradients, codebook)
            assert torch.allclose(
                found, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0
            )


@pytest.mark.property
@settings(max_examples=60)
@given(
    power=st.floats(-38, 38),
    shape=st.floats(0.1, 12),
    zeros=st.floats(0, 1),
    seed=st.integers(0, 9),
)
def test_sorted_encodings_are_below_a_vector(power: float, shape: float, zeros: float, seed: int):
    codebook = Codebook.binned(300, vectors=20, clip_norm=0.4)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(4, 300, generator=generator)
    rows = rows.sign() * rows.abs() ** shape * 10.0**power
    rows[torch.rand(rows.shape, generator=generator) < zeros] = 0.0
    found = encode_by_sorting(rows, codebook)
    for row, encoded in zip(rows, found, strict=True):
        assert dominated(encoded, codebook)
        assert not torch.isfinite(row).all() or (encoded.abs() <= row.abs()).all()


@pytest.mark.unit
def test_small_gradients_stay_as_they_are_and_gaussian_ones_reach_the_norm():
    codebook = Codebook.binned(5000, vectors=50)
    row = torch.randn(1, 5000, generator=torch.Generator().manual_seed(1))
    assert torch.equal(encode_by_sorting(row * 1e-5, codebook), row * 1e-5)
    large = encode_by_sorting(row * 40, codebook)
    assert 0.99 < float(large.norm()) <= 1.0
    assert float(nn.functional.cosine_similarity(large, row)) > 0.99


# --- the sum


def spiked(scale: float, kind: str) -> Tensor:
    """Return one record that is as hostile as its kind."""
    x = torch.randn(1, 12, generator=torch.Generator().manual_seed(8))
    if kind == "spike":
        x[0, 1:] *= 1e-6
    if kind == "ties":
        x = x.sign()
    return x * scale


@pytest.mark.contract
@ways
@each_net
@settings(max_examples=15)
@given(
    scale=st.sampled_from([0.0, 1e-30, 1e-4, 1.0, 1e5, 1e18, 1e30]),
    heat=st.sampled_from([1e-6, 1.0, 1e4, 1e15]),
    kind=st.sampled_from(["normal", "spike", "ties"]),
    clip_norm=st.sampled_from([1e-9, 0.25, 1e4]),
)
def test_no_record_adds_more_than_a_vector(
    name: str, exact: bool, scale: float, heat: float, kind: str, clip_norm: float
):
    network, _, _ = made(name)
    bounding = EncodedClipping(clip_norm=clip_norm, vectors=15, exact=exact)
    term = summed(network, spiked(scale, kind), torch.tensor([heat]), bounding)
    assert dominated(term, bounding.codebook(size_of(network)))
    assert float(term.double().norm()) <= clip_norm


@pytest.mark.contract
@ways
@each_net
def test_a_record_to_null_moves_the_sum_by_at_most_a_vector(name: str, exact: bool):
    network, x, own = made(name)
    x[0] *= 1e6
    bounding = EncodedClipping(clip_norm=0.25, vectors=15, exact=exact)
    whole = summed(network, x, own, bounding)
    for i in range(BATCH):
        mask = everyone(x)
        mask[i] = False
        moved = whole - summed(network, x, own, bounding, mask)
        assert dominated(moved, bounding.codebook(size_of(network)), slack=1e-6)
        assert moved.norm() > 0.01


def first_ranks(patch: pytest.MonkeyPatch) -> None:
    """Bound every coordinate by the largest entry."""
    honest = encoding._DeviceCodebook.logs_at
    patch.setattr(
        encoding._DeviceCodebook,
        "logs_at",
        lambda self, ranks, vectors: honest(self, torch.zeros_like(ranks), vectors),
    )


def one_a_key(patch: pytest.MonkeyPatch) -> None:
    honest = encoding._count_levels
    patch.setattr(encoding, "_count_levels", lambda *args: honest(*args).clamp(max=1.0))


def one_layer_after_another(patch: pytest.MonkeyPatch) -> None:
    """Rank each layer's coordinates among themselves."""

    def sums(layers: list, codebook: Codebook, mask: Tensor):
        for layer in layers:
            yield from encoding_ranked([layer], codebook, mask)

    encoding_ranked = encoding._sum_by_ranking
    patch.setattr(encoding, "_sum_by_ranking", sums)


def no_fall(patch: pytest.MonkeyPatch) -> None:
    """Leave the factors as they were wanted."""
    honest = encoding._decrease_to_bounds

    def zeros(buffers: Tensor, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        falls_a, falls_d = honest(buffers, a, d)
        return torch.zeros_like(falls_a), torch.zeros_like(falls_d)

    patch.setattr(encoding, "_decrease_to_bounds", zeros)


@pytest.mark.contract
@pytest.mark.parametrize("plant", [first_ranks, one_a_key, one_layer_after_another, no_fall])
def test_planted_faults_are_found(plant: Callable, monkeypatch: pytest.MonkeyPatch):
    test_a_record_to_null_moves_the_sum_by_at_most_a_vector("plain", False)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test_a_record_to_null_moves_the_sum_by_at_most_a_vector("plain", False)


@pytest.mark.contract
@ways
@each_net
@pytest.mark.parametrize("kind", ["null", "nan", "inf", "overflow", "null nan"])
def test_a_null_record_and_one_that_is_not_finite_add_exactly_0(name: str, exact: bool, kind: str):
    network, x, own = made(name)
    bounding = EncodedClipping(vectors=15, exact=exact)
    mask = everyone(x)
    mask[2] = not kind.startswith("null")
    if "nan" in kind or kind == "inf":
        x[2, 1] = math.nan if "nan" in kind else math.inf
    if kind == "overflow":
        x[2], own[2] = 1e30, 1e30
    gradients = form_gradients(network, x, wave(own))
    if mask[2] and torch.isfinite(gradients[2]).all():
        return  # a tanh made it finite again
    others = x.clone()
    others[2] = 0.0
    without = summed(
        network,
        others,
        own.where(mask, 1.0).clamp(max=9.0),
        bounding,
        mask & (torch.arange(BATCH) != 2),
    )
    assert torch.equal(summed(network, x, own, bounding, mask), without)
    alone = summed(network, x[2:3], own[2:3], bounding, mask[2:3])
    assert torch.equal(alone, torch.zeros_like(alone))


@pytest.mark.contract
def test_a_record_twice_adds_twice_and_depends_on_no_other():
    for exact in [False, True]:
        for name in NETS:
            network, x, own = made(name)
            bounding = EncodedClipping(clip_norm=0.2, vectors=15, exact=exact)
            each = torch.stack(
                [summed(network, x[i : i + 1], own[i : i + 1], bounding) for i in range(BATCH)]
            )
            twice = summed(network, torch.cat([x, x[:1]]), torch.cat([own, own[:1]]), bounding)
            assert torch.allclose(twice, each.sum(dim=0) + each[0], rtol=1e-4, atol=1e-6)
            assert all(p.grad is None for p in network.parameters())


@pytest.mark.oracle
def test_sorted_sums_are_those_of_the_formed_gradients():
    for name in NETS:
        network, x, own = made(name)
        bounding = EncodedClipping(clip_norm=0.2, vectors=15, exact=True)
        rows = form_gradients(network, x, wave(own))
        expected = encode_by_sorting(
            rows, Codebook.dense(rows.shape[1], vectors=15, clip_norm=0.2)
        ).sum(dim=0)
        assert torch.allclose(summed(network, x, own, bounding), expected, atol=1e-6)


@pytest.mark.oracle
def test_keys_come_near_to_sorting():
    for name in NETS:
        for clip_norm in [0.02, 1.0, 1e3]:
            network, x, own = made(name)
            bounding = EncodedClipping(clip_norm=clip_norm, vectors=15)
            rows = form_gradients(network, x, wave(own))
            exact = encode_by_sorting(rows, bounding.codebook(rows.shape[1]))
            for i in range(BATCH):
                found = summed(network, x[i : i + 1], own[i : i + 1], bounding)
                assert float(nn.functional.cosine_similarity(found, exact[i], dim=0)) > 0.98
                assert 0.78 < float(found.norm() / exact[i].norm()) < 1.06


@pytest.mark.unit
def test_inputs_of_0_and_1_are_not_rounded_and_outputs_by_15_percent():
    """Where nothing is clamped: half a quarter of an octave is 9 %, its uneven length 6 %."""
    network = nn.Linear(12, 7)
    x = (torch.rand(1, 12, generator=torch.Generator().manual_seed(1)) > 0.5).float()
    found = summed(network, x, torch.ones(1), EncodedClipping(clip_norm=1e4, vectors=3))
    row = form_gradients(network, x, wave(torch.ones(1)))[0]
    assert torch.allclose(found, row, rtol=0.16, atol=0)
    factors = (found / row)[:84].view(7, 12)
    for each in factors:
        own = each[each.isfinite()]
        assert torch.allclose(own, own[0].expand(len(own)), rtol=1e-6), "one, but for rounding"


def product(inputs: float, outputs: float, zeros: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return one record and its output's gradient: powers of normal numbers, some of them 0."""
    generator = torch.Generator().manual_seed(seed)
    x, d = (torch.randn(size, generator=generator) for size in (40, 30))
    x = x.sign() * x.abs() ** inputs
    x[torch.rand(40, generator=generator) < zeros] = 0.0
    x[0] = 1.0
    return x[None], d.sign() * d.abs() ** outputs


def of_product(x: Tensor, d: Tensor, bounding: EncodedClipping) -> Tensor:
    network = nn.Linear(40, 30, bias=False)
    return bounding.sums(network, x, lambda out: out @ d, everyone(x))[0][0].flatten()


@pytest.mark.contract
@settings(max_examples=60)
@given(
    inputs=st.floats(0.1, 6),
    outputs=st.floats(0.1, 6),
    zeros=st.floats(0, 0.95),
    clip_norm=st.sampled_from([0.01, 1.0, 100.0]),
    seed=st.integers(0, 99),
)
def test_products_with_light_and_heavy_tails_are_below_a_vector(
    inputs: float, outputs: float, zeros: float, clip_norm: float, seed: int
):
    bounding = EncodedClipping(clip_norm=clip_norm, vectors=20)
    x, d = product(inputs, outputs, zeros, seed)
    found, codebook = of_product(x, d, bounding), bounding.codebook(1200)
    assert dominated(found, codebook)
    exact = encode_by_sorting((d[:, None] * x).flatten()[None], codebook)[0]
    if 0.5 <= min(inputs, outputs) and max(inputs, outputs) <= 2:  # not all of one size
        assert float(nn.functional.cosine_similarity(found, exact, dim=0)) > 0.85


@pytest.mark.oracle
def test_the_vector_is_nearest_up_to_the_rounding_to_keys():
    network, x, own = made("plain")
    bounding = EncodedClipping(clip_norm=1.0, vectors=300)
    codebook = bounding.codebook(size_of(network))
    rows = form_gradients(network, x, wave(own)).double().abs().sort(descending=True).values
    whole = np.repeat(codebook.values.astype(float), codebook.counts, axis=1)
    similar = (
        torch.from_numpy(whole / codebook.norms[:, None])
        @ (rows / rows.norm(dim=1, keepdim=True)).T
    )
    chosen: list[Tensor] = []
    honest = encoding._DeviceCodebook.find_nearest

    def noted(self: encoding._DeviceCodebook, counts: Tensor) -> Tensor:
        chosen.append(honest(self, counts))
        return chosen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding._DeviceCodebook, "find_nearest", noted)
        summed(network, x, own, bounding)
    found = similar.T.gather(1, chosen[0][:, None])[:, 0]
    spread = similar.amax(dim=0) - similar.amin(dim=0)
    assert ((similar.amax(dim=0) - found) <= 0.1 * spread).all()
    assert len(set(chosen[0].tolist())) > 1


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("MAX_RECORDS_AT_ONCE", {"cpu": 2}),
        ("MAX_FACTOR_VALUES", {"cpu": 80}),
        ("MAX_FORMED_VALUES", 700),
    ],
)
def test_in_pieces_it_is_the_same_sum(name: str, size: Any, monkeypatch: pytest.MonkeyPatch):
    network, x, own = made("convolved")
    whole = summed(network, x, own, EncodedClipping(vectors=15))
    monkeypatch.setattr(encoding, name, size)
    assert torch.allclose(summed(network, x, own, EncodedClipping(vectors=15)), whole, atol=1e-6)


@pytest.mark.unit
def test_float64_networks_are_encoded_too():
    network, x, own = made("dense")
    bounding = EncodedClipping(clip_norm=0.2, vectors=15)
    single = summed(network, x, own, bounding)
    double = summed(network.double(), x.double(), own.double(), bounding)
    assert double.dtype == torch.float64
    assert torch.allclose(double.float(), single, atol=0.01)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_a_record_adds_at_most_a_vector_and_the_sum_is_near():
    for name in NETS:
        network, x, own = made(name)
        bounding = EncodedClipping(clip_norm=0.2, vectors=15)
        here = summed(network, x, own, bounding)
        network, x, own = network.cuda(), x.cuda(), own.cuda()
        there = summed(network, x, own, bounding).cpu()
        assert float(nn.functional.cosine_similarity(here, there, dim=0)) > 0.98
        for scale in (1e-4, 1.0, 1e6):
            term = summed(network, x[:1] * scale, own[:1], bounding).cpu()
            assert dominated(term, bounding.codebook(size_of(network)))


# --- settings


@pytest.mark.contract
def test_settings_survive_json():
    bounding = EncodedClipping(clip_norm=0.5, vectors=7, seed=2, exact=True)
    values = json.loads(json.dumps(bounding.to_json()))
    assert values.pop("name") == "encoded"
    assert EncodedClipping(**values) == bounding
    assert bounding.sensitivity == 0.5
    assert bounding.codebook(40) is bounding.codebook(40)
    assert bounding.codebook(40).counts.tolist() == [1] * 40


@pytest.mark.unit
def test_bad_settings_are_refused():
    for values, message in [
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": math.nan}, "clip_norm"),
        ({"vectors": 0}, "vectors"),
        ({"vectors": 2.0}, "vectors"),
        ({"seed": -1}, "seed"),
        ({"seed": True}, "seed"),
        ({"exact": 1}, "exact"),
    ]:
        with pytest.raises(UsageError, match=message):
            EncodedClipping(**values)
