"""Noise first: every drawn slot adds a clipped noisy gradient, and nothing else is there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta
from torch import Tensor, nn

from pasearch.accounting.accountants import price
from pasearch.accounting.events import NoisyRecords
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.runs.normals import draw_normals
from pasearch.training import noise_before_clip
from pasearch.training.clipping import NORM_SLACK, FlatClipping
from pasearch.training.noise_before_clip import ORDERS, NoiseBeforeClip, sum_noisy_clipped_gradients
from pasearch.training.per_example import list_trainable_parameters

BATCH = 5


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3, bias=False))


def convolved() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2))


def partly() -> nn.Module:
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    network[0].weight.requires_grad_(False)
    return network


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (dense, (4,)),
    "convolved": (convolved, (1, 4, 4)),
    "partly": (partly, (4,)),
}
each_net = pytest.mark.parametrize("name", NETS)


def made(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(9)
    build, shape = NETS[name]
    own = torch.linspace(0.5, 3.0, BATCH, dtype=dtype)
    return build().to(dtype), torch.randn(BATCH, *shape, dtype=dtype), own


def wave(own: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda outputs: (outputs.flatten(1) * own[:, None]).sin().sum(dim=1)


def everyone(batch: int = BATCH) -> Tensor:
    return torch.ones(batch, dtype=torch.bool)


STREAM = Keys.from_seed(11).stream("trial", 0, "noise")


def alone(network: nn.Module, x: Tensor, own: Tensor) -> Tensor:
    """Return every record's gradient, by autograd on a batch of one."""
    parameters = list_trainable_parameters(network)
    rows = []
    for i in range(len(x)):
        loss = wave(own[i : i + 1])(network(x[i : i + 1])).sum()
        gradients = torch.autograd.grad(loss, parameters)
        rows.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(rows)


def summed(
    network: nn.Module,
    x: Tensor,
    own: Tensor,
    mask: Tensor,
    *,
    order: NoiseBeforeClip | None = None,
    clip: float = 0.8,
    deviation: float = 0.05,
    step: int = 0,
) -> Tensor:
    sums = sum_noisy_clipped_gradients(
        network,
        x,
        lambda part: wave(own[part]),
        mask,
        order=order or NoiseBeforeClip(record_bound=0.5),
        clip=FlatClipping(clip_norm=clip),
        standard_deviation=deviation,
        stream=STREAM,
        step=step,
    )
    assert [each.shape for each in sums] == [p.shape for p in list_trainable_parameters(network)]
    return torch.cat([each.flatten() for each in sums])


def clipped(row: Tensor, bound: float) -> Tensor:
    return row * min(1.0, bound / max(1e-300, float(row.double().norm()) * NORM_SLACK))


def terms(
    gradients: Tensor, bound: float | None, clip: float, deviation: float, step: int = 0
) -> Tensor:
    """Return each slot's term, by the definition."""
    rows = gradients if bound is None else torch.stack([clipped(g, bound) for g in gradients])
    found = []
    for place, row in enumerate(rows):
        noisy = row.clone()
        draw_normals(len(row), STREAM.child("record", place), step).add_to(noisy, deviation)
        found.append(clipped(noisy, clip))
    return torch.stack(found)


@pytest.mark.oracle
def test_the_sum_is_that_of_clipped_noisy_bounded_gradients():
    for name in NETS:
        for bound in [0.01, 0.5, 100.0, None]:
            for clip, deviation in [(0.8, 0.05), (0.8, 2.0), (50.0, 0.3)]:
                network, x, own = made(name)
                mask = everyone()
                mask[3] = False
                gradients = alone(network, x, own) * mask[:, None]
                expected = terms(gradients, bound, clip, deviation).sum(dim=0)
                found = summed(
                    network, x, own, mask,
                    order=NoiseBeforeClip(record_bound=bound), clip=clip, deviation=deviation,
                )  # fmt: skip
                assert (found - expected).norm() <= 1e-4 * expected.norm()


@pytest.mark.oracle
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_in_pieces_it_is_the_same_sum(rows: int, monkeypatch: pytest.MonkeyPatch):
    network, x, own = made("dense")
    whole = summed(network, x, own, everyone())
    size = sum(p.numel() for p in list_trainable_parameters(network))
    monkeypatch.setattr(noise_before_clip, "MAX_FORMED_VALUES", rows * size)
    assert torch.allclose(summed(network, x, own, everyone()), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.contract
def test_every_drawn_slot_adds_a_term_of_its_own():
    for name in NETS:
        for kind in ["null", "nan", "inf", "null nan"]:
            network, x, own = made(name)
            mask = everyone()
            mask[2] = not kind.startswith("null")
            if kind != "null":
                x[2].view(-1)[-1] = math.inf if kind == "inf" else math.nan
            gradients = alone(network, x, own)
            if not (
                mask[2] and torch.isfinite(gradients[2]).all()
            ):  # a tanh may make it finite again
                gradients[2] = 0.0
            expected = terms(gradients, 0.5, 0.8, 0.05)
            found = summed(network, x, own, mask)
            assert (found - expected.sum(dim=0)).norm() <= 1e-4
            assert expected[2].norm() > 0.05, "the null slot's term is noise, and is there"


@pytest.mark.contract
def test_null_slots_alone_add_as_many_terms_as_they_are():
    network, x, own = made("dense")
    found = summed(network, x, own, ~everyone(), deviation=2.0)
    expected = terms(torch.zeros(BATCH, len(found)), None, 0.8, 2.0)
    assert torch.allclose(found, expected.sum(dim=0), atol=1e-5)
    assert torch.allclose(expected.norm(dim=1), torch.tensor(0.8), rtol=1e-4)


@pytest.mark.property
@each_net
@settings(max_examples=25)
@given(
    scale=st.sampled_from([0.0, 1e-20, 1.0, 1e4, 1e18, 1e30]),
    heat=st.sampled_from([1e-3, 1.0, 1e6, 1e20]),
    bound=st.sampled_from([None, 1e-6, 0.5, 1e6]),
    deviation=st.sampled_from([1e-6, 0.1, 30.0]),
)
def test_a_slots_term_has_norm_at_most_c(
    name: str, scale: float, heat: float, bound: float | None, deviation: float
):
    network, x, own = made(name)
    term = summed(
        network, x[:1] * scale, own[:1] * heat, everyone(1),
        order=NoiseBeforeClip(record_bound=bound), deviation=deviation,
    )  # fmt: skip
    assert float(term.double().norm()) <= 0.8


def before_noise(x: Tensor, own: Tensor, bound: float | None, slope: float = 1.0) -> Tensor:
    """Return what one record adds where noise is next to nothing and the clip wide."""
    torch.manual_seed(9)
    network = nn.Linear(4, 3)
    sums = sum_noisy_clipped_gradients(
        network,
        x,
        lambda part: lambda outputs: slope * (outputs * own[part, None]).sum(dim=1),
        everyone(len(x)),
        order=NoiseBeforeClip(record_bound=bound),
        clip=FlatClipping(clip_norm=1e12),
        standard_deviation=1e-38,
        stream=STREAM,
        step=0,
    )
    return torch.cat([each.flatten() for each in sums]).double()


@pytest.mark.property
@given(
    power=st.floats(-30, 38),
    slope=st.floats(-20, 38),
    bound=st.sampled_from([1e-12, 1e-6, 0.01, 1.0, 1e6]),
)
def test_a_gradient_has_norm_at_most_b_before_its_noise(power: float, slope: float, bound: float):
    x = torch.full((1, 4), 10.0**power)
    assert before_noise(x, torch.ones(1), bound, 10.0**slope).norm() <= bound * (1 + 1e-6)


@pytest.mark.unit
def test_a_gradient_is_unbounded_before_its_noise_only_without_a_record_bound():
    x, own = torch.full((1, 4), 100.0), torch.ones(1)
    assert before_noise(x, own, None).norm() > 300
    assert before_noise(x, own, 1.0).norm() == pytest.approx(1.0, rel=1e-4)
    assert NoiseBeforeClip().record_bound == 1.0


@pytest.mark.statistical
def test_slots_have_independent_noise_of_the_scale_that_is_priced():
    """Two slots, each alone, then both: variances add, and those of 2/3 and 3/2 are told apart."""
    network = nn.Linear(100, 100, bias=False)
    x, own = torch.zeros(2, 100), torch.ones(2)

    def sums(batch: int, step: int) -> np.ndarray:
        drawn = summed(
            network, x[:batch], own[:batch], ~everyone(batch), clip=1e6, deviation=0.7, step=step
        )
        return drawn.double().numpy()

    one = np.concatenate([sums(1, step) for step in range(4)])
    two = np.concatenate([sums(2, step) for step in range(4)])
    error = math.sqrt(2 / len(one))
    assert one.var() == pytest.approx(0.49, rel=5 * error)
    assert two.var() == pytest.approx(0.98, rel=5 * error)
    for share in (2 / 3, 3 / 2):
        assert abs(one.var() / (0.49 * share**2) - 1) > 20 * error
    assert abs(np.corrcoef(one[:10_000], one[10_000:20_000])[0, 1]) < 5 / math.sqrt(10_000)


# --- an audit, with teeth

DELTA, SIGMA, RUNS, LEVEL = 0.05, 1.0, 1000, 0.01


def audited(threshold: float = 4 / 3, runs: int = RUNS) -> float:
    """Return an epsilon that one full step exceeds: slot 0's record is there, or null.

    The attacker knows all other records, and projects the sum on the canary's gradient. The clip
    is wide, so that it hides nothing.
    """
    network = nn.Linear(3, 1, bias=False)
    hits = []
    for present in (False, True):
        found = 0
        for run in range(runs):
            x = torch.tensor([[1000.0, 0.0, 0.0]])
            stream = Keys.from_seed(2 * run + present).stream("trial", 0, "noise")
            (total,) = sum_noisy_clipped_gradients(
                network,
                x,
                lambda _: lambda outputs: outputs[:, 0],
                torch.tensor([present]),
                order=NoiseBeforeClip(record_bound=0.5),
                clip=FlatClipping(clip_norm=1e3),
                standard_deviation=0.5 * SIGMA,
                stream=stream,
                step=0,
            )
            found += float(total[0, 0]) / 0.5 > threshold
        hits.append(found)
    low = float(beta.ppf(LEVEL, hits[1], runs - hits[1] + 1)) if hits[1] else 0.0
    high = float(beta.isf(LEVEL, hits[0] + 1, runs - hits[0])) if hits[0] < runs else 1.0
    return math.log((low - DELTA) / high) if low > DELTA else 0.0


@pytest.mark.statistical
def test_one_full_step_passes_at_its_price_and_the_audit_is_not_idle():
    paid = price(NoisyRecords(1.0, SIGMA), DELTA).epsilon
    assert 0.3 * paid < audited() <= paid


def forget_the_record_bound(patch: pytest.MonkeyPatch) -> None:
    honest = FlatClipping.factors
    patch.setattr(
        FlatClipping,
        "factors",
        lambda self, norms: honest(self, norms) if self.clip_norm > 1 else torch.ones_like(norms),
    )


def forget_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(noise_before_clip.Noise, "add_to", lambda *_: None)


def skip_null_slots(patch: pytest.MonkeyPatch) -> None:
    honest = sum_noisy_clipped_gradients

    def broken(network: nn.Module, x: Tensor, loss: object, mask: Tensor, **settings: object):
        sums = honest(network, x, loss, mask, **settings)  # pyright: ignore
        return [total if bool(mask.any()) else torch.zeros_like(total) for total in sums]

    patch.setitem(audited.__globals__, sum_noisy_clipped_gradients.__name__, broken)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("plant", "threshold", "runs"),
    [(forget_the_record_bound, 4 / 3, RUNS), (forget_noise, 0.9, RUNS // 5)],
)
def test_a_wrong_sum_is_caught(
    plant: Callable, threshold: float, runs: int, monkeypatch: pytest.MonkeyPatch
):
    paid = price(NoisyRecords(1.0, SIGMA), DELTA).epsilon
    plant(monkeypatch)
    assert audited(threshold, runs) > paid


@pytest.mark.unit
def test_null_slots_that_add_nothing_are_caught(monkeypatch: pytest.MonkeyPatch):
    test_null_slots_alone_add_as_many_terms_as_they_are()
    skip_null_slots(monkeypatch)
    with pytest.raises(AssertionError):
        test_null_slots_alone_add_as_many_terms_as_they_are()


@pytest.mark.contract
def test_an_order_survives_json():
    for bound in [None, 0.3, 7.0]:
        order = NoiseBeforeClip(record_bound=bound)
        assert ORDERS.from_json(json.loads(json.dumps(order.to_json()))) == order


@pytest.mark.unit
def test_a_record_bound_that_is_no_usable_number_is_refused():
    for value in [0.0, -1.0, math.nan, math.inf, True, "1", 1e-13]:
        with pytest.raises(UsageError, match=r"record_bound|clip_norm"):
            NoiseBeforeClip(record_bound=value)  # pyright: ignore[reportArgumentType]
        for document in ({"bound": 1.0}, "noise-first", None):
            with pytest.raises(UsageError, match=r"expected what|has no"):
                ORDERS.from_json(document)  # pyright: ignore[reportArgumentType]
