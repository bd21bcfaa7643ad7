"""Resemblances of an image's patches to those of made-up images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pasearch.data import patches
from pasearch.data.made_up import dead_leaves
from pasearch.data.patches import COUNT, GRID, GROUPS, PATTERNS, SIDE, Patches


def learned(channels: int = 1, side: int = 17, seed: int = 3) -> tuple[Patches, Tensor]:
    """Return patches' patterns, and the made-up images that they are of."""
    generator = np.random.Generator(np.random.Philox(seed))
    made = torch.from_numpy(dead_leaves(60, channels, side, side, generator))
    module = Patches(channels)
    module.learn(made, generator)
    return module, made


@pytest.mark.oracle
@pytest.mark.parametrize("channels", [1, 3])
def test_every_number_is_the_mean_of_what_exceeds_the_threshold(channels: int):
    """Against the formula at the head of the module, patch by patch."""
    module, made = learned(channels)
    image = made[0].double()
    across = made.shape[-1] - SIDE + 1
    found = np.zeros((PATTERNS, across, across))
    for row in range(across):
        for column in range(across):
            patch = image[:, row : row + SIDE, column : column + SIDE]
            centred = patch - patch.mean()
            deviation = (centred.square().mean() + patches.LEAST_VARIANCE).sqrt()
            products = (module.patterns.double() * (centred / deviation)).sum((1, 2, 3))
            found[:, row, column] = products - module.offset.flatten().double()
    assert across % GRID == 0
    cells = np.concatenate([np.maximum(sign * found - patches.THRESHOLD, 0) for sign in (1, -1)])
    side = across // GRID
    averages = cells.reshape(2 * PATTERNS, GRID, side, GRID, side).mean((2, 4))
    groups = averages.reshape(GROUPS, -1)
    wanted = (groups - groups.mean(1, keepdims=True)) / np.sqrt(groups.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(module(made[:1])[0], wanted.ravel(), atol=2e-4)


@pytest.mark.unit
def test_light_that_is_added_changes_nothing():
    module, made = learned()
    darker = made * 0.5
    assert torch.allclose(module(darker), module(darker + 0.3), atol=1e-3)
    assert not torch.allclose(module(made), module(made.flip(-1)), atol=0.1)


@pytest.mark.unit
def test_a_record_alone_and_in_any_company_has_the_same_numbers(monkeypatch):
    module, made = learned()
    together = module(made)
    monkeypatch.setattr(patches, "CHUNK_BYTES", 1)  # one at a time
    assert together.shape == (60, COUNT)
    assert torch.allclose(module(made), together, atol=1e-5)
    assert torch.allclose(module(made[7:8])[0], together[7], atol=1e-5)


@pytest.mark.unit
def test_patterns_are_of_the_images_and_the_generator_alone():
    first, again, other = learned()[0], learned()[0], learned(seed=4)[0]
    assert torch.equal(first.patterns, again.patterns)
    assert not torch.allclose(first.patterns, other.patterns, atol=0.1)
    assert torch.allclose(first.patterns.mean((1, 2, 3)), torch.zeros(PATTERNS), atol=1e-5)


@pytest.mark.unit
def test_images_without_any_contrast_make_finite_patterns():
    module = Patches(1)
    module.learn(torch.zeros(20, 1, 16, 16), np.random.Generator(np.random.Philox(1)))
    assert module.patterns.isfinite().all()
    assert module(torch.ones(2, 1, 16, 16)).isfinite().all()
