"""Scattering transform of an image: wavelet filters, absolute values and averages, nothing learned.

    S0 = x * φ,    S1 = |x * ψ| * φ,    S2 = ||x * ψ| * ψ'| * φ,    ψ' of a larger scale than ψ

ψ are Morlet wavelets, one for each scale and angle; φ is a Gaussian filter, after which the result
is subsampled. No filter depends on data, and the output of a record depends on that record alone,
so the transform releases nothing.

A convolution is a product of Fourier transforms. Images are small, so a Fourier transform is
computed by two dense matrices, for rows and columns, which also pad or subsample. The batch is the
last axis, and imaginary parts are separate rows or columns, so that all work is products of large
real matrices.

Source: Bruna and Mallat 2013, "Invariant scattering convolution networks"; Oyallon and Mallat 2015,
    "Deep roto-translation scattering". The constants are those of Kymatio (Andreux et al. 2020),
    with which results are published.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pasearch.errors import UsageError

FINEST_WIDTH = 0.8
"""Width of the finest wavelet and of the finest average, pixels; both double with the scale."""
FINEST_FREQUENCY = 3 * math.pi / 4
"""Frequency of the finest wavelet, radians per pixel; it halves with the scale."""
FILTER_GAIN = math.pi / 3.1415
"""Gain of every filter: Kymatio rounds pi where it normalises a Gaussian."""
MAX_CHUNK_BYTES = 2**23
"""Approximate maximum size of an intermediate tensor, bytes: it fits into a processor's cache."""


class Scattering(nn.Module):
    """Module for the scattering transform up to order 2, without weights and without gradient.

    Guarantee: a record's features depend on that record alone.

    Args:
        shape: Shape of a record, (height, width) or (channels, height, width).
        scales: Number of scales J, 1 or above. Features are averages over about 2^J pixels, and
            subsampled by 2^J.
        angles: Number of wavelets per scale, at equal angles over half a turn, 1 or above.

    Raises:
        UsageError: The shape has other axes, or a side below 2^(J + 1) pixels.

    Source: Bruna and Mallat 2013; Oyallon and Mallat 2015.
    """

    def __init__(self, shape: tuple[int, ...], scales: int = 2, angles: int = 8):
        super().__init__()
        if not (scales >= 1 and angles >= 1):
            raise UsageError(f"Scattering: {scales} scales, {angles} angles: expected 1 or above.")
        least = 2 ** (scales + 1)
        if not (len(shape) in (2, 3) and shape[0] >= 1 and min(shape[-2:]) >= least):
            raise UsageError(
                f"Scattering: records have shape {tuple(shape)}: expected (height, width) or "
                f"(channels, height, width), with sides of {least} pixels or more."
            )
        self.shape, self.scales, self.angles = tuple(shape), scales, angles
        self.paths = 1 + scales * angles + math.comb(scales, 2) * angles**2

        paddings = [_build_padding(side, scales) for side in self.shape[-2:]]
        sizes = [len(padding) for padding in paddings]
        self.chunk = max(1, MAX_CHUNK_BYTES // (2 * angles**2 * math.prod(sizes)))
        averages = [
            [_build_average(size, scales, scale) for size in sizes] for scale in range(scales)
        ]
        self.average_input = _MatrixProduct(map(np.matmul, averages[0], paddings))
        self.average = nn.ModuleList(map(_MatrixProduct, averages))
        banks = [_build_morlets(sizes, scale, angles) for scale in range(scales)]
        self.first = _WaveletLayer(
            paddings, (_Wavelets(bank, 0, j) for j, bank in enumerate(banks))
        )
        self.second = nn.ModuleList(
            _WaveletLayer(
                [np.eye(size >> j) for size in sizes],
                (_Wavelets(banks[k], j, k) for k in range(j + 1, scales)),
            )
            for j in range(scales - 1)
        )

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """Shape of a record's features: (channels, height, width)."""
        *channels, height, width = self.shape
        return math.prod(channels) * self.paths, height >> self.scales, width >> self.scales

    @torch.no_grad()
    def forward(self, records: Tensor) -> Tensor:
        """Compute the features of records.

        For each channel of a record: S0, then S1 by scale and angle, then S2.

        Args:
            records: Records, float32, (batch, *shape).

        Returns:
            Features, float32, (batch, *output_shape).

        Raises:
            UsageError: The records have another shape.
        """
        if records.shape[1:] != self.shape:
            raise UsageError(
                f"Scattering: records have shape {tuple(records.shape[1:])}: expected {self.shape}."
            )
        images = records.reshape(-1, *self.shape[-2:])
        features = images.new_empty(len(images), self.paths, *self.output_shape[1:])
        for start in range(0, len(images), self.chunk):
            chunk = slice(start, start + self.chunk)
            features[chunk] = self._scatter(images[chunk].permute(1, 2, 0)).permute(3, 2, 0, 1)
        return features.view(len(records), *self.output_shape)

    def _scatter(self, images: Tensor) -> Tensor:
        """Compute the features of images: (height, width, batch) to (rows, columns, paths, batch).

        Rows and columns are the height and width divided by 2^J.
        """
        form = *self.output_shape[1:], -1, images.shape[-1]
        moduli = self.first(images)
        paths = [self.average_input(images).view(form)]
        paths += [self.average[j](modulus).view(form) for j, modulus in enumerate(moduli)]
        for j, layer in enumerate(self.second):
            deeper = enumerate(layer(moduli[j]), start=j + 1)
            found = torch.cat([self.average[k](modulus) for k, modulus in deeper], dim=-1)
            # The axes of a layer's output are (second wavelet, first wavelet); features reverse it.
            found = found.view(*form[:2], -1, self.angles, form[-1]).transpose(2, 3)
            paths.append(found.reshape(form))
        return torch.cat(paths, dim=2)


def normalize_groups(features: Tensor, groups: int = 27) -> Tensor:
    """Normalise each group of channels of each record to mean 0 and variance 1.

    Guarantee: a record's output depends on that record alone.

    Args:
        features: Features, (batch, channels, height, width).
        groups: Number of groups of neighbouring channels of equal size; 1 or above.

    Raises:
        UsageError: The number of channels is not divisible by the number of groups.

    Source: Wu and He 2018, "Group normalization", without weights.
    """
    channels = features.shape[1]
    if not (groups >= 1 and channels % groups == 0):
        raise UsageError(f"{channels} channels in {groups} groups: expected groups of equal size.")
    return functional.group_norm(features, groups)


class _WaveletLayer(nn.Module):
    """Module that computes |image * ψ| for the wavelets of several scales, one tensor per scale."""

    def __init__(self, paddings: Sequence[np.ndarray], wavelets: Iterable[_Wavelets]):
        super().__init__()
        rows, cols = (np.fft.fft(padding, axis=0) for padding in paddings)
        self.fourier = _MatrixProduct((_interleave_parts(rows)[:, ::2], _stack_parts(cols)))
        self.wavelets = nn.ModuleList(wavelets)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Compute, for each scale, (height / step, width / step, angles * batch) from images."""
        spectrum = self.fourier(images)
        return [wavelets(spectrum) for wavelets in self.wavelets]


class _Wavelets(nn.Module):
    """Module that computes |image * ψ| for the wavelets of one scale.

    The input has 2^start pixels per sample, and the output 2^end pixels per sample.
    """

    psi: Tensor

    def __init__(self, bank: np.ndarray, start: int, end: int):
        super().__init__()
        angles, *sizes = bank.shape
        rows, cols = (size >> start for size in sizes)
        self.step = 2 ** (end - start)
        psi = bank[:, _find_lowest(sizes[0], rows)[:, None], _find_lowest(sizes[1], cols)]
        psi = psi.reshape(angles, self.step, rows // self.step, self.step, cols // self.step)
        psi = psi.transpose(2, 4, 0, 1, 3).reshape(*psi.shape[2::2], angles, -1)
        self.register_buffer("psi", _convert_to_tensor(psi[:, None]), persistent=False)
        rows, cols = (np.fft.ifft(np.eye(size)) / self.step for size in self.psi.shape[:3:2])
        self.inverse = _MatrixProduct((_interleave_parts(rows), _stack_parts(cols)))

    def forward(self, spectrum: Tensor) -> Tensor:
        """Compute |image * ψ| from the image's Fourier transform, real and imaginary parts."""
        batch = spectrum.shape[-1]
        rows, _, cols, angles, aliases = self.psi.shape
        # Subsampling by a step adds the step^2 frequencies that become the same (aliasing).
        aliased = spectrum.view(self.step, rows, 2, self.step, cols, batch)
        aliased = aliased.permute(1, 2, 4, 0, 3, 5).reshape(rows, 2, cols, aliases, batch)
        filtered = (self.psi @ aliased).view(rows, 2 * cols, angles * batch)
        real, imaginary = self.inverse(filtered).chunk(2, dim=1)
        return torch.hypot(real, imaginary)


class _MatrixProduct(nn.Module):
    """Module that computes rows @ image @ colsᵀ for images of shape (height, width, batch)."""

    rows: Tensor
    cols: Tensor

    def __init__(self, matrices: Iterable[np.ndarray]):
        super().__init__()
        for name, matrix in zip(("rows", "cols"), matrices, strict=True):
            # Not saved with a network, because the shape of a record determines it.
            self.register_buffer(name, _convert_to_tensor(matrix), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Multiply all columns at once, then row by row."""
        rows = self.rows @ images.reshape(self.rows.shape[1], -1)
        return self.cols @ rows.view(-1, self.cols.shape[1], images.shape[-1])


def _build_padding(side: int, scales: int) -> np.ndarray:
    """Build the matrix that pads a side by reflection, up to one sample of the features per end."""
    missing = (side // 2**scales + 2) * 2**scales - side
    return np.pad(np.eye(side), ((missing // 2, (missing + 1) // 2), (0, 0)), mode="reflect")


def _build_morlets(sizes: Sequence[int], scale: int, angles: int) -> np.ndarray:
    """Build the Fourier transforms of wavelets ψ(u) = g(u) (exp(i ξ·u) − β), (angles, *sizes).

    They are real. g is a Gaussian, 4 / angles times as wide along ξ as across it; β makes the mean
    of ψ 0.
    """
    width, slant = FINEST_WIDTH * 2**scale, 4 / angles
    rows, cols = (
        _compute_frequencies(sizes[0])[:, None, :, None],
        _compute_frequencies(sizes[1])[:, None],
    )
    bank = np.empty((angles, *sizes))
    for index, psi in enumerate(bank):
        angle = (angles // 2 - 1 - index) * np.pi / angles
        along = rows * np.cos(angle) + cols * np.sin(angle)
        across = (cols * np.cos(angle) - rows * np.sin(angle)) / slant
        wave, envelope = (
            np.exp(-(width**2) / 2 * ((along - centre) ** 2 + across**2)).sum(axis=(2, 3))
            for centre in (FINEST_FREQUENCY / 2**scale, 0)
        )
        psi[:] = FILTER_GAIN * (wave - wave[0, 0] / envelope[0, 0] * envelope)
    return bank


def _build_average(size: int, scales: int, start: int) -> np.ndarray:
    """Build the matrix that filters by φ and subsamples, from 2^start to 2^J pixels per sample."""
    width, kept = FINEST_WIDTH * 2 ** (scales - 1), size >> start
    phi = math.sqrt(FILTER_GAIN) * np.exp(-((width * _compute_frequencies(size)) ** 2) / 2).sum(
        axis=1
    )
    spectrum = phi[_find_lowest(size, kept), None] * np.fft.fft(np.eye(kept))
    # The first sample and the last are padding.
    return np.fft.ifft(spectrum, axis=0).real[:: 2 ** (scales - start)][1:-1]


def _find_lowest(size: int, kept: int) -> np.ndarray:
    """Return the indices of the `kept` lowest frequencies of a Fourier transform."""
    return np.r_[: kept // 2, size - kept // 2 : size]


def _compute_frequencies(size: int) -> np.ndarray:
    """Return the angular frequencies of a Fourier transform and its aliases, (size, periods).

    Several periods are needed because the spectrum of a filter is wider than one.
    """
    return 2 * np.pi * (np.fft.fftfreq(size)[:, None] + np.arange(-3, 4))


def _interleave_parts(matrix: np.ndarray) -> np.ndarray:
    """Convert a complex matrix to real form: each real part, then its imaginary part."""
    return np.kron(np.real(matrix), np.eye(2)) + np.kron(np.imag(matrix), [[0, -1], [1, 0]])


def _stack_parts(matrix: np.ndarray) -> np.ndarray:
    """Convert a complex matrix to real form: all real parts, then all imaginary parts."""
    return np.kron(np.eye(2), np.real(matrix)) + np.kron([[0, -1], [1, 0]], np.imag(matrix))


def _convert_to_tensor(matrix: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(matrix, dtype=np.float32))
