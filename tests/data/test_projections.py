"""The two fitted front ends: plain moments without noise; one record moves a sum by 1 at most."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from pasearch.accounting.events import Gaussian
from pasearch.data import means, projections
from pasearch.data.front_ends import FittedFrontEnd
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.data.means import ROW_NORM, FitInput
from pasearch.data.projections import (
    MIN_DEVIATION,
    TYPICAL_NORM,
    fit_components,
    fit_standardisation,
)
from pasearch.data.schema import RowLayout
from pasearch.features.views import View
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.sums import GaussianSum, clip_rows

STREAM = Keys.from_seed(3).stream("front end")
FITTED = ["standardise", "centred", "centred_pairs:3", "pca:2"]


def uniform(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    generator = np.random.Generator(np.random.PCG64(seed))
    # Columns of unequal spread, so that no two components are alike.
    spread = np.linspace(1.0, 0.3, math.prod(shape)).reshape(shape)
    return (generator.random((n, *shape)) * spread).astype(np.float32)


def everyone(n: int) -> Tensor:
    return torch.ones(n, dtype=torch.bool)


def fit(
    name: str,
    x: np.ndarray,
    valid: Tensor | None = None,
    noise: float | None = None,
    stream: Stream = STREAM,
) -> FittedFrontEnd:
    valid = everyone(len(x)) if valid is None else valid
    return parse_front_end(name).fit(torch.from_numpy(x), valid, noise, stream)


def weights(front: FittedFrontEnd) -> np.ndarray:
    return np.concatenate([value.numpy().ravel() for value in front.module.state_dict().values()])


Release = tuple[str, float, np.ndarray]


def releases(name: str, x: np.ndarray, valid: Tensor, noise: float | None) -> list[Release]:
    """What a fit hands to `GaussianSum`, which adds nothing here: (kind, noise, sum) each."""
    seen: list[Release] = []

    def recorded(*, noise_multiplier: float) -> Any:
        def keep(kind: str) -> Any:
            def release(total: np.ndarray, stream: Stream) -> np.ndarray:
                seen.append((kind, noise_multiplier, total.copy()))
                return total

            return release

        kinds = {"release": keep("vector"), "release_symmetric": keep("symmetric")}
        return SimpleNamespace(**kinds)

    with pytest.MonkeyPatch.context() as patch:
        for place in (projections, means):
            patch.setattr(place, "GaussianSum", recorded)
        fit(name, x, valid, noise)
    return seen


def released(name: str, x: np.ndarray, valid: Tensor) -> np.ndarray:
    """The entries of the one sum that a fit releases: of a matrix, the upper triangle."""
    ((kind, _, total),) = releases(name, x, valid, 1.0)
    assert kind == ("symmetric" if name.startswith("pca") else "vector")
    return total if kind == "vector" else total[np.triu_indices(len(total))]


class TestWithoutNoise:
    @pytest.mark.oracle
    @pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 3, 4)])
    def test_standardise_has_numpys_mean_and_deviation(self, shape: tuple):
        x = uniform(50, *shape)
        module = fit("standardise", x).module
        deviation = x.astype(float).std(0)
        assert np.allclose(module.shift.numpy(), x.mean(0), atol=1e-6)  # type: ignore[union-attr]
        scale = TYPICAL_NORM / math.sqrt(math.prod(shape)) / deviation
        assert np.allclose(module.scale.numpy(), scale, rtol=1e-4)  # type: ignore[union-attr]
        seen = module(torch.from_numpy(x)).numpy()
        assert np.allclose(seen.mean(0), 0, atol=1e-4)
        assert np.square(seen).sum() / 50 == pytest.approx(TYPICAL_NORM**2, rel=1e-3)

    @pytest.mark.unit
    def test_a_feature_that_does_not_vary_is_not_blown_up(self):
        x = uniform(50, 4)
        x[:, 1], x[:, 2] = 0.25, 0.5 + 1e-4 * x[:, 2]
        module = fit("standardise", x).module
        largest = TYPICAL_NORM / math.sqrt(4) / MIN_DEVIATION
        assert module.scale[1:3].tolist() == pytest.approx([largest] * 2)  # type: ignore[index]
        assert module(torch.from_numpy(x))[:, 1].abs().max() < 1e-4

    @pytest.mark.oracle
    @pytest.mark.parametrize("bound", [None, 1.1])
    def test_centred_is_what_a_view_of_all_features_shows(self, bound: float | None):
        x = (uniform(50, 3, 2) > 0.4).astype(np.float32)
        rows = x.reshape(50, -1)
        held = clip_rows(rows / (bound or math.sqrt(6)), np.ones(50, bool))
        view = View.of(held.sum(axis=0) * (bound or math.sqrt(6)) / 50)
        form = None if bound is None else RowLayout(bound=bound)
        front = parse_front_end("centred").fit(
            torch.from_numpy(x), everyone(50), None, STREAM, form
        )
        seen = front.module(torch.from_numpy(x)).flatten(1).numpy()
        assert np.allclose(seen, (rows - view.shift) * view.scale, atol=1e-5)
        if bound is None:  # means are exact, and features are 0 or 1
            assert math.sqrt((seen**2).sum() / 50) == pytest.approx(ROW_NORM, rel=1e-4)

    @pytest.mark.oracle
    def test_pca_has_numpys_eigenvectors(self):
        for shape in [(5,), (2, 3), (2, 2, 2)]:
            for components in [1, 2, 5]:
                x = uniform(60, *shape)
                rows = x.reshape(60, -1).astype(float)
                rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
                assert (np.linalg.norm(x.reshape(60, -1), axis=1) > 1).any()
                values, vectors = np.linalg.eigh(rows.T @ rows)
                expected = vectors[:, np.argsort(-values)[:components]]
                module = fit(f"pca:{components}", x).module
                found = module.directions.numpy()  # type: ignore[union-attr]
                assert found.shape == expected.shape
                # A direction is known but for its sign.
                assert np.allclose(np.abs((found * expected).sum(0)), 1.0, atol=1e-5)
                assert np.allclose(found.T @ found, np.eye(components), atol=1e-5)
                seen = module(torch.from_numpy(x)).numpy()
                assert np.allclose(seen, x.reshape(60, -1) @ found, atol=1e-5)

    @pytest.mark.contract
    def test_nothing_is_released(self):
        for name in FITTED:
            assert releases(name, uniform(20, 4), everyone(20), None) == []


@pytest.mark.contract
@pytest.mark.parametrize("name", FITTED)
class TestNull:
    @pytest.mark.parametrize("value", [0.0, 0.9, math.nan, math.inf, 1e30])
    def test_records_add_nothing_whatever_stands_there(self, name: str, value: float):
        x, valid = uniform(20, 4), everyone(20)
        valid[[2, 7]] = False
        zeros, other = x.copy(), x.copy()
        zeros[[2, 7]], other[[2, 7]] = 0.0, value
        for noise in (None, 1.3):
            expected = weights(fit(name, zeros, valid, noise))
            assert np.array_equal(weights(fit(name, other, valid, noise)), expected)
            assert np.isfinite(expected).all()
        assert not np.array_equal(weights(fit(name, x, everyone(20))), weights(fit(name, x, valid)))

    def test_nobody_at_all(self, name: str):
        """Then all is noise: a mean that is estimated privately stays where a mean can be."""
        for noise in (None, 5.0):
            nobody = torch.zeros(20, dtype=torch.bool)
            front = fit(name, uniform(20, 4), nobody, noise)
            assert np.isfinite(weights(front)).all()
            if name in ("standardise", "centred", "centred_pairs:3"):
                shift = front.module.shift.numpy()  # type: ignore[union-attr]
                assert ((shift >= 0) & (shift <= 1)).all()
                assert (shift > 0).any() == (noise is not None)


class TestSensitivity:
    """Replacing one record by the null record changes the released entries by 1 at most, in L2."""

    @pytest.mark.property
    @pytest.mark.parametrize("name", FITTED)
    @settings(max_examples=60)
    @given(
        x=arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(2, 6)),
                 elements=st.floats(0, 1, width=32))
    )  # fmt: skip
    def test_of_any_record(self, name: str, x: np.ndarray):
        whole = released(name, x, everyone(len(x)))
        for gone in range(len(x)):
            valid = everyone(len(x))
            valid[gone] = False
            change = np.linalg.norm(whole - released(name, x, valid))
            assert change <= 1 + 1e-12

    @pytest.mark.oracle
    def test_of_the_worst_records(self):
        for name in FITTED:
            for shape in [(3,), (50,), (8, 8), (3, 16, 16)]:
                worst, features = 0.0, math.prod(shape)
                base = uniform(4, *shape, seed=2)
                before = released(name, base, torch.tensor([True, True, True, False]))
                for ones in (1, features // 2, features):
                    base[3] = (np.arange(features) < ones).reshape(shape)
                    change = np.linalg.norm(released(name, base, everyone(4)) - before)
                    assert change <= 1 + 1e-12
                    worst = max(worst, float(change))
                # The bound is met, so no smaller noise would do, and none is wasted.
                assert worst == pytest.approx(1.0, abs=1e-6)


def given(x: np.ndarray, noise: float | None) -> FitInput:
    valid = torch.ones(len(x), dtype=torch.bool)
    return FitInput(x=torch.from_numpy(x), valid=valid, noise_multiplier=noise, stream=STREAM)


class TestNoise:
    @pytest.mark.contract
    def test_one_sum_is_released_at_the_noise_that_is_charged(self):
        for name in FITTED:
            for sigma in [0.5, 3.0]:
                seen = releases(name, uniform(20, 4), everyone(20), sigma)
                assert [noise for _, noise, _ in seen] == [sigma]
                assert GaussianSum(noise_multiplier=sigma).event == Gaussian(noise_multiplier=sigma)

    @pytest.mark.oracle
    def test_moments_are_those_of_the_noisy_sum(self):
        x, n, sigma = uniform(400, 4, 3), 400, 2.0
        rows = x.reshape(n, -1).astype(float)
        total = np.concatenate([rows.sum(0), (rows**2).sum(0)]) / math.sqrt(24)
        noisy = GaussianSum(noise_multiplier=sigma).release(total, STREAM) * math.sqrt(24) / n
        mean = np.clip(noisy[:12], 0, 1)
        deviation = np.sqrt(np.maximum(noisy[12:] - mean**2, MIN_DEVIATION**2))
        affine = fit_standardisation(given(x, sigma))
        assert np.allclose(affine.shift.numpy().ravel(), mean, rtol=1e-5)
        scale = TYPICAL_NORM / math.sqrt(12) / deviation
        assert np.allclose(affine.scale.numpy().ravel(), scale, rtol=1e-4)
        assert not np.allclose(mean, rows.mean(0), atol=1e-3)

    @pytest.mark.oracle
    def test_components_are_those_of_the_noisy_second_moments(self):
        x, sigma = uniform(300, 6) * 0.4, 1.5
        rows = x.astype(float)
        assert (np.linalg.norm(rows, axis=1) < 1).all()
        noise = GaussianSum(noise_multiplier=sigma)
        noisy = noise.release_symmetric(rows.T @ rows, STREAM)
        values, vectors = np.linalg.eigh(noisy)
        expected = vectors[:, np.argsort(-values)[:3]]
        found = fit_components(given(x, sigma), 3)
        overlap = np.abs((found.directions.numpy() * expected).sum(0))
        assert np.allclose(overlap, 1.0, atol=1e-4)
        plain = fit_components(given(x, None), 3)
        assert not np.allclose(np.abs(plain.directions.numpy()), np.abs(expected), atol=1e-3)

    @pytest.mark.statistical
    def test_the_noise_of_a_mean_has_its_scale_and_no_other(self):
        features, n, sigma = 400, 2000, 3.0
        x = uniform(n, features, seed=5)
        x[:] = 0.5 + (x - x.mean(0)) / 4
        shift = fit("standardise", x, noise=sigma).module.shift.numpy()  # type: ignore[union-attr]
        noise = shift - x.astype(float).mean(0)
        expected = sigma * math.sqrt(2 * features) / n
        error = 1 / math.sqrt(2 * features)
        assert abs(noise.std() / expected - 1) < 5 * error
        assert all(abs(noise.std() / (expected * wrong) - 1) > 5 * error for wrong in (2 / 3, 1.5))

    @pytest.mark.contract
    def test_the_stream_decides_everything(self):
        for name in FITTED:
            x = uniform(40, 5)
            first = weights(fit(name, x, noise=1.0))
            torch.manual_seed(9)
            assert np.array_equal(first, weights(fit(name, x, noise=1.0)))
            other = Keys.from_seed(3).stream("another front end")
            assert not np.allclose(first, weights(fit(name, x, noise=1.0, stream=other)), atol=1e-3)

    @pytest.mark.contract
    # What `centred_pairs` keeps are the means of `centred`, and an order that may change.
    @pytest.mark.parametrize("name", [each for each in FITTED if "pairs" not in each])
    def test_one_record_draws_all_noise_afresh(self, name: str):
        """Noise that two inputs shared would cancel between their releases."""
        x = uniform(4000, 5)
        other = x.copy()
        other[0] = 0.0

        def moved(noise: float | None) -> float:
            first, second = (np.abs(weights(fit(name, each, noise=noise))) for each in (x, other))
            return float(np.abs(first / second - 1).max())

        assert moved(100.0) > 0.01 > 2 * moved(None)


@pytest.mark.unit
def test_components_beyond_the_features_are_zero():
    """An estimated table may be narrower than planned: no value may stop the run."""
    x = torch.rand(20, 3)
    fitted = fit_components(given(x.numpy(), None), 5)
    assert fitted(x).shape == (20, 5)
    assert not fitted(x)[:, 3:].any()
    assert fitted(x)[:, :3].any()
