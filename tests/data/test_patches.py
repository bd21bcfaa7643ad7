"""Resemblances of an image's patches to those of made-up images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from pasearch.data import compiled_patches, patches
from pasearch.data.patches import (
    CHANNEL_GROUPS,
    GRID_SIDE,
    MIN_COMPILED_IMAGES,
    OUTPUT_NUMBERS,
    PATCH_SIDE,
    PATTERN_COUNT,
    PatchResemblances,
)
from pasearch.data.threads import use_threads
from pasearch.data.whitening import draw_dead_leaves
from pasearch.errors import MachineError
from pasearch.runs.processor import JIT_SWITCH_VARIABLE


def learned(channels: int = 1, side: int = 17, seed: int = 3) -> tuple[PatchResemblances, Tensor]:
    """Return patches' patterns, and the made-up images that they are of."""
    generator = np.random.Generator(np.random.Philox(seed))
    made = torch.from_numpy(draw_dead_leaves(60, channels, side, side, generator))
    module = PatchResemblances(channels)
    module.learn(made, generator)
    return module, made


def in_code(module: PatchResemblances, images: Tensor) -> Tensor:
    """Return what machine code finds."""
    code = patches.load_compiled_loops()
    assert code is not None
    return module._compute_compiled(images, code)


@pytest.mark.oracle
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("way", [PatchResemblances.__call__, in_code])
def test_every_number_is_the_mean_of_what_exceeds_the_threshold(
    channels: int, way: Callable[[PatchResemblances, Tensor], Tensor]
):
    """Against the formula at the head of the module, patch by patch."""
    module, made = learned(channels)
    image = made[0].double()
    across = made.shape[-1] - PATCH_SIDE + 1
    found = np.zeros((PATTERN_COUNT, across, across))
    for row in range(across):
        for column in range(across):
            patch = image[:, row : row + PATCH_SIDE, column : column + PATCH_SIDE]
            centred = patch - patch.mean()
            deviation = (centred.square().mean() + patches.VARIANCE_OFFSET).sqrt()
            products = (module.patterns.double() * (centred / deviation)).sum((1, 2, 3))
            found[:, row, column] = products - module.offset.flatten().double()
    assert across % GRID_SIDE == 0
    cells = np.concatenate(
        [np.maximum(sign * found - patches.RESEMBLANCE_THRESHOLD, 0) for sign in (1, -1)]
    )
    side = across // GRID_SIDE
    averages = cells.reshape(2 * PATTERN_COUNT, GRID_SIDE, side, GRID_SIDE, side).mean((2, 4))
    groups = averages.reshape(CHANNEL_GROUPS, -1)
    wanted = (groups - groups.mean(1, keepdims=True)) / np.sqrt(groups.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(way(module, made[:1])[0], wanted.ravel(), atol=2e-4)


@pytest.mark.unit
def test_a_record_alone_and_in_any_company_has_the_same_numbers(monkeypatch):
    module, made = learned()
    together = module(made)
    monkeypatch.setattr(patches, "MAX_CHUNK_BYTES", 1)  # one at a time
    assert together.shape == (60, OUTPUT_NUMBERS)
    assert torch.allclose(module(made), together, atol=1e-5)
    assert torch.allclose(module(made[7:8])[0], together[7], atol=1e-5)


@pytest.mark.unit
def test_patterns_are_of_the_images_and_the_generator_alone():
    first, again, other = learned()[0], learned()[0], learned(seed=4)[0]
    assert torch.equal(first.patterns, again.patterns)
    assert not torch.allclose(first.patterns, other.patterns, atol=0.1)
    assert torch.allclose(first.patterns.mean((1, 2, 3)), torch.zeros(PATTERN_COUNT), atol=1e-5)


class TestMachineCode:
    @pytest.mark.oracle
    @pytest.mark.parametrize("shape", [(1, 17, 17), (2, 16, 23), (3, 19, 8), (1, 8, 8)])
    def test_cells_that_share_a_row_are_those_of_torch(self, shape: tuple[int, int, int]):
        generator = np.random.Generator(np.random.Philox(5))
        made = torch.from_numpy(generator.random((7, *shape), dtype=np.float32))
        module = PatchResemblances(shape[0])
        module.learn(made, generator)
        torch.testing.assert_close(
            in_code(module, made), module._compute_resemblances(made), atol=2e-3, rtol=0.0
        )

    @pytest.mark.property
    def test_a_record_has_the_same_bits_in_any_company_and_on_any_number_of_threads(self):
        module, made = learned()
        many = torch.cat([made, made.flip(0), made])[: MIN_COMPILED_IMAGES + 30]
        with use_threads(1):
            alone = module(many)
        for count in (2, 3, 5):
            with use_threads(count):
                assert torch.equal(module(many), alone)
                assert torch.equal(
                    module(many[: MIN_COMPILED_IMAGES + 1]), alone[: MIN_COMPILED_IMAGES + 1]
                )
        assert torch.equal(in_code(module, many[17:18]), alone[17:18])
        others = many.clone()
        others[17] = 0.0
        kept = torch.arange(len(many)) != 17
        assert torch.equal(module(others)[kept], alone[kept])

    @pytest.mark.unit
    def test_loops_that_find_other_numbers_are_an_error(self, monkeypatch: pytest.MonkeyPatch):
        patches.load_compiled_loops.cache_clear()
        for name in ("extract_patches", "average_excess"):
            with monkeypatch.context() as patch:
                patch.setattr(compiled_patches, name, lambda *given: None)
                with pytest.raises(MachineError, match="other numbers"):
                    patches.load_compiled_loops()
        patches.load_compiled_loops.cache_clear()
        assert patches.load_compiled_loops() is compiled_patches

    @pytest.mark.unit
    def test_without_numba_torch_does_it(self, monkeypatch: pytest.MonkeyPatch):
        module, made = learned()
        many = torch.cat([made, made])
        fast = module(many)
        patches.load_compiled_loops.cache_clear()
        with monkeypatch.context() as patch:
            patch.setenv(JIT_SWITCH_VARIABLE, "1")
            slow = module(many)
        patches.load_compiled_loops.cache_clear()
        assert not torch.equal(slow, fast)
        assert torch.allclose(slow, fast, atol=2e-3)
