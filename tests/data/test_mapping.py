"""Records go through a front end in pieces of one size: no number depends on others or threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pasearch.data import mapping
from pasearch.data.mapping import (
    MAX_SMALL_NUMBERS,
    PIECE_SIZES,
    choose_piece_size,
    copy_to_device,
    map_records,
)
from pasearch.data.projections import NormalisedScattering, Projection
from pasearch.data.threads import use_threads
from pasearch.data.whitening import WhitenedImage


def products() -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Products as of `pca`, whose rows a library rounds by how many there are."""
    generator = torch.Generator().manual_seed(1)
    module = Projection(784, 60)
    for each in module.buffers():
        if each.is_floating_point():
            each.copy_(torch.randn(each.shape, generator=generator))
    return module, torch.rand((300, 784), generator=generator)


def scattering() -> tuple[Callable[[Tensor], Tensor], Tensor]:
    images = torch.rand((300, 16, 17), generator=torch.Generator().manual_seed(2))
    return NormalisedScattering((16, 17)), images


@pytest.mark.unit
@pytest.mark.parametrize("count", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("threads_at_hand", [1, 3])
def test_every_piece_has_one_size_and_one_thread(count: int, threads_at_hand: int):
    seen: list[tuple[int, int]] = []

    def make(x: Tensor) -> Tensor:
        seen.append((len(x), torch.get_num_threads()))
        return 2 * x

    x = torch.rand(count, 3, 2)
    with use_threads(threads_at_hand):
        found = map_records(make, x)
        assert torch.get_num_threads() == threads_at_hand
    assert set(seen) == {(128, 1)}
    assert len(seen) == -(-count // 128)
    np.testing.assert_array_equal(found, 2 * x.numpy())


@pytest.mark.property
@pytest.mark.parametrize("front", [products, scattering])
def test_a_record_has_the_same_bits_alone_and_in_any_company_by_any_threads(
    front: Callable[[], tuple[Callable[[Tensor], Tensor], Tensor]],
):
    make, x = front()
    with use_threads(1):
        expected = map_records(make, x)
    for count in (2, 8, 16):
        with use_threads(count):
            for low, high in ((0, 300), (0, 5), (0, 129), (128, 200), (256, 300), (256, 257)):
                assert (map_records(make, x[low:high]) == expected[low:high]).all()
    other = x.clone()
    other[::2] = 0.0
    assert (map_records(make, other)[1::2] == expected[1::2]).all()


@pytest.mark.property
def test_products_have_the_same_bits_at_any_place_so_that_a_disk_may_have_another_order():
    make, x = products()
    expected = map_records(make, x)
    for low, high in ((7, 60), (250, 300), (299, 300), (100, 229)):
        assert (map_records(make, x[low:high]) == expected[low:high]).all()


@pytest.mark.unit
def test_large_records_have_small_pieces():
    assert all(each % 32 == 0 for each in PIECE_SIZES)
    assert (
        choose_piece_size((MAX_SMALL_NUMBERS,)),
        choose_piece_size((3, 224, 224)),
    ) == PIECE_SIZES


@pytest.mark.unit
def test_what_fails_in_a_thread_is_raised():
    def fail(x: Tensor) -> Tensor:
        raise RuntimeError("no memory")

    with use_threads(2), pytest.raises(RuntimeError, match="no memory"):
        map_records(fail, torch.zeros(2 * mapping.PIECE_SIZES[0], 1))


@pytest.mark.unit
def test_a_copy_has_wider_numbers_and_the_original_stays():
    module = nn.Sequential(WhitenedImage((16, 16), 1), nn.BatchNorm1d(3))
    made = copy_to_device(module, "cpu")
    assert {each.dtype for each in made.buffers()} == {torch.float32, torch.int64}
    assert module[0].directions.dtype is torch.float16
    assert made[0].directions.dtype is torch.float32  # type: ignore[index,union-attr]
    assert set(made.state_dict()) == set(module.state_dict())
    x = torch.rand(3, 16, 16)
    assert torch.equal(module[0](x), made[0](x))  # type: ignore[index]
