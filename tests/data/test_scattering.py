"""The scattering transform: equal to two other implementations, and each record for itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pasearch.data.scattering import Scattering, normalize_groups
from pasearch.errors import UsageError

SHAPES = [(28, 28), (32, 32), (3, 32, 32), (30, 45), (17, 31), (8, 8)]
CASES = [
    (shape, scales, angles)
    for shape in SHAPES
    for scales, angles in [(2, 8), (1, 8), (2, 5), (3, 4)]
    if min(shape[-2:]) >= 2 ** (scales + 1)
]
REFUSED = [
    ((7, 28), 2, 8),
    ((28, 7), 2, 8),
    ((15, 28), 3, 8),
    ((784,), 2, 8),
    ((), 2, 8),
    ((0, 28, 28), 2, 8),
    ((1, 1, 28, 28), 2, 8),
    ((28, 28), 0, 8),
    ((28, 28), 2, 0),
]


def images(*shape: int, seed: int = 1) -> Tensor:
    generator = np.random.Generator(np.random.PCG64(seed))
    return torch.from_numpy(generator.random(shape, dtype=np.float32))


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest over paths: orders differ in size, and one must not hide another."""
    axes = (0, 2, 3)
    errors = (found - expected).double().abs().amax(axes) / expected.double().abs().amax(axes)
    return float(errors.max())


def wave(size: int, sigma: float, angle: float, frequency: float, slant: float) -> np.ndarray:
    """A wave under a Gaussian, by its formula in space, on a torus."""
    u = np.arange(-2 * size, 3 * size)
    rows, cols = np.meshgrid(u, u, indexing="ij")
    along = rows * np.cos(angle) + cols * np.sin(angle)
    across = cols * np.cos(angle) - rows * np.sin(angle)
    bell = np.exp(-(along**2 + slant**2 * across**2) / (2 * sigma**2))
    whole = bell * np.exp(1j * frequency * along) * slant / (2 * 3.1415 * sigma**2)
    return whole.reshape(5, size, 5, size).sum(axis=(0, 2))


def morlet(size: int, scale: int, index: int) -> np.ndarray:
    angle = (3 - index) * np.pi / 8
    carried = wave(size, 0.8 * 2**scale, angle, 0.75 * np.pi / 2**scale, 0.5)
    bell = wave(size, 0.8 * 2**scale, angle, 0.0, 0.5)
    return carried - carried.sum() / bell.sum() * bell


def by_definition(image: np.ndarray) -> np.ndarray:
    """Two scales and eight angles of a square image, one convolution at a time."""
    padded = np.pad(image.astype(float), 4, mode="reflect")
    size = len(padded)
    phi = np.fft.fft2(wave(size, 1.6, 0.0, 0.0, 1.0))
    keep = np.r_[: size // 4, size - size // 4 : size]

    def convolve(signal: np.ndarray, filter_hat: np.ndarray, step: int) -> np.ndarray:
        return np.fft.ifft2(np.fft.fft2(signal) * filter_hat)[::step, ::step]

    def average(signal: np.ndarray) -> np.ndarray:
        half = len(signal) < size
        low = phi[np.ix_(keep, keep)] if half else phi
        return convolve(signal, low, 2 if half else 4).real[1:-1, 1:-1]

    psi = [[np.fft.fft2(morlet(size, j, i)) for i in range(8)] for j in range(2)]
    moduli = [[np.abs(convolve(padded, hat, 2**j)) for hat in psi[j]] for j in range(2)]
    second = [np.abs(convolve(fine, hat, 2)) for fine in moduli[0] for hat in psi[1]]
    return np.stack([average(u) for u in [padded, *moduli[0], *moduli[1], *second]])


class TestScattering:
    @pytest.mark.oracle
    def test_equals_its_definition(self):
        batch = images(2, 28, 28)
        expected = torch.from_numpy(np.stack([by_definition(image.numpy()) for image in batch]))
        assert relative_error(Scattering((28, 28))(batch), expected) < 1e-5

    @pytest.mark.oracle
    def test_equals_kymatio(self):
        for shape, scales, angles in CASES:
            name = "kymatio.scattering2d.frontend.torch_frontend"
            kymatio = pytest.importorskip(name, exc_type=ImportError)
            batch = images(3, *shape)
            found = Scattering(shape, scales, angles)(batch)
            expected = kymatio.ScatteringTorch2D(scales, shape[-2:], angles)(batch)
            assert relative_error(found, expected.reshape(found.shape)) < 1e-5

    @pytest.mark.unit
    def test_has_81_paths_a_channel(self):
        for shape in SHAPES:
            module = Scattering(shape)
            channels = shape[0] if len(shape) == 3 else 1
            assert module.output_shape == (81 * channels, shape[-2] // 4, shape[-1] // 4)
            found = module(images(2, *shape))
            assert found.shape == (2, *module.output_shape)
            assert found.dtype == torch.float32
            assert found.is_contiguous()

    @pytest.mark.unit
    def test_a_null_record_has_features_0(self):
        assert not Scattering((28, 28))(torch.zeros(1, 28, 28)).any()

    @pytest.mark.property
    def test_a_record_does_not_see_the_others(self):
        module = Scattering((28, 28))
        batch = images(2 * module.chunk + 3, 28, 28)
        others = images(*batch.shape, seed=2)
        for row in (0, 1, module.chunk, len(batch) - 1):
            changed = others.clone()
            changed[row] = batch[row]
            assert torch.equal(module(changed)[row], module(batch)[row])

    @pytest.mark.property
    def test_a_record_that_is_not_finite_spoils_no_other(self):
        module = Scattering((28, 28))
        batch = images(8, 28, 28)
        spoilt = batch.clone()
        spoilt[3] = torch.nan
        others = [0, 1, 2, 4, 5, 6, 7]
        assert torch.equal(module(spoilt)[others], module(batch)[others])

    @pytest.mark.unit
    def test_refuses_what_it_cannot_scatter(self):
        for shape, scales, angles in REFUSED:
            with pytest.raises(UsageError, match=r"Scattering: .* expected"):
                Scattering(shape, scales, angles)

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_a_gpu_gives_the_same(self):
        batch = images(60, 28, 28)
        module = Scattering((28, 28))
        expected = module(batch)
        assert relative_error(module.cuda()(batch.cuda()).cpu(), expected) < 1e-5


class TestGroupNormalised:
    @pytest.mark.oracle
    @pytest.mark.parametrize("groups", [1, 3, 27, 81])
    def test_equals_the_layer_without_weights(self, groups: int):
        features = images(3, 81, 7, 7)
        layer = torch.nn.GroupNorm(groups, 81, affine=False)
        assert torch.equal(normalize_groups(features, groups), layer(features))

    @pytest.mark.property
    def test_a_record_does_not_see_the_others(self):
        features = images(4, 81, 7, 7)
        changed = images(4, 81, 7, 7, seed=2)
        changed[1] = features[1]
        assert torch.equal(normalize_groups(changed)[1], normalize_groups(features)[1])

    @pytest.mark.unit
    @pytest.mark.parametrize("groups", [0, -1, 2, 82])
    def test_refuses_groups_that_do_not_divide_the_channels(self, groups: int):
        with pytest.raises(UsageError, match="81 channels"):
            normalize_groups(torch.zeros(1, 81, 7, 7), groups)
