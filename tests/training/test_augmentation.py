"""Views: shifts and mirror images of their own record, and averaged before the bound."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor, nn

from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.spaces.modules import Lstm, WeightStandardisedConv2d
from pasearch.training import layer_rules
from pasearch.training.augmentation import AUGMENTATIONS, MAX_VIEWS, Augmentation
from pasearch.training.clipping import (
    NORM_SLACK,
    AutoSClipping,
    ClippingMethod,
    FlatClipping,
    PerLayerClipping,
)
from pasearch.training.per_example import (
    clipped_sum_and_counts,
    list_trainable_layers,
    list_trainable_parameters,
)


def generator(step: int = 0, name: str = "views") -> np.random.Generator:
    return Keys.from_seed(6).stream("trial", 0, name).generator(step)


def image(*shape: int) -> Tensor:
    """Pixels that are all different, and none 0."""
    return torch.arange(1, math.prod(shape) + 1, dtype=torch.float32).reshape(shape)


def shifted(picture: Tensor, down: int, right: int, mirror: bool) -> Tensor:
    """Return one view, pixel by pixel; 0 where there is none. Slow."""
    picture = picture.flip(-1) if mirror else picture
    height, width = picture.shape[-2:]
    view = torch.zeros_like(picture)
    for i in range(height):
        for j in range(width):
            if 0 <= i + down < height and 0 <= j + right < width:
                view[..., i, j] = picture[..., i + down, j + right]
    return view


@pytest.mark.oracle
def test_views_are_shifts_and_mirror_images_side_by_side():
    for flip in [False, True]:
        for shift in [0, 1, 3]:
            for shape in [(5, 7), (1, 5, 5), (3, 6, 4)]:
                x = image(4, *shape)
                made = Augmentation(views=3, shift=shift, flip=flip)
                views = made.apply(x, generator())
                assert views.shape == (12, *shape)
                drawn = generator()
                moves = drawn.integers(-shift, shift, size=(2, 12), endpoint=True)
                mirrored = drawn.random(12) < 0.5 if flip else np.zeros(12, dtype=bool)
                for k, view in enumerate(views):
                    expected = shifted(
                        x[k // 3], int(moves[0, k]), int(moves[1, k]), bool(mirrored[k])
                    )
                    assert torch.equal(view, expected)


@pytest.mark.statistical
def test_all_shifts_and_both_mirrors_come_alike():
    x = image(1, 5, 6)
    made = Augmentation(views=900, shift=1, flip=True)
    views = torch.cat([made.apply(x, generator(step)) for step in (0, 1)])
    kinds = {
        tuple(shifted(x[0], down, right, mirror).flatten().tolist()): 0
        for down in (-1, 0, 1)
        for right in (-1, 0, 1)
        for mirror in (False, True)
    }
    assert len(kinds) == 18
    for view in views:
        kinds[tuple(view.flatten().tolist())] += 1
    counts = np.array(list(kinds.values()))
    assert chisquare(counts).pvalue > 1e-3
    assert chisquare(np.concatenate([counts[:-1] + counts[-1] / 17, [0]])).pvalue < 1e-9


@pytest.mark.unit
def test_views_come_from_the_key_of_their_step():
    x, made = image(6, 8, 8), Augmentation(views=2, shift=3, flip=True)
    first = made.apply(x, generator(4))
    assert torch.equal(first, made.apply(x, generator(4)))
    assert not torch.equal(first, made.apply(x, generator(5)))
    assert not torch.equal(first, made.apply(x, generator(4, "other")))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    made.apply(x, generator(4))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.contract
def test_views_are_drawn_without_looking_at_a_value():
    made, x = Augmentation(views=3, shift=2, flip=True), image(4, 6, 6)
    other = x.clone()
    other[1] = math.nan
    ours, theirs = made.apply(x, generator()), made.apply(other, generator())
    kept = [k for k in range(12) if k // 3 != 1]
    assert torch.equal(ours[kept], theirs[kept])
    # Where a view has no pixel there is 0, whatever the record holds.
    assert torch.equal(torch.isnan(theirs[3:6]), ours[3:6] != 0)


@pytest.mark.unit
def test_what_is_no_image_is_refused():
    for shape in [(4,), (4, 5), (4, 1, 2, 3, 3)]:
        with pytest.raises(UsageError, match="for images"):
            Augmentation().apply(torch.zeros(shape), generator())


@pytest.mark.unit
def test_a_number_that_views_cannot_use_is_refused():
    for name, value in [
        ("views", 0),
        ("views", MAX_VIEWS + 1),
        ("views", 2.0),
        ("views", True),
        ("views", "4"),
        ("shift", -1),
        ("shift", 1.0),
        ("shift", True),
        ("shift", None),
        ("flip", 1),
        ("flip", "yes"),
        ("flip", None),
    ]:
        with pytest.raises(UsageError, match=name):
            Augmentation(**{name: value})  # pyright: ignore[reportArgumentType]


@pytest.mark.unit
def test_a_shift_that_leaves_nothing_to_see_is_refused():
    for shape in [(5, 7), (7, 5), (3, 5, 7), (9, 5, 5)]:
        Augmentation(shift=4).check_fits(shape)
        with pytest.raises(UsageError, match=r"shift is 5 pixels, .* Take 4 or less"):
            Augmentation(shift=5).check_fits(shape)
        with pytest.raises(UsageError, match="shift is 5 pixels"):
            Augmentation(shift=5).apply(torch.zeros(2, *shape), generator())


@pytest.mark.unit
def test_a_shape_without_pixels_is_refused():
    for shape in [(), (4,), (2, 3, 4, 5)]:
        with pytest.raises(UsageError, match="for images"):
            Augmentation(shift=0).check_fits(shape)


@pytest.mark.contract
def test_an_augmentation_survives_json():
    made = Augmentation(views=8, shift=3, flip=True)
    assert AUGMENTATIONS.from_json(json.loads(json.dumps(made.to_json()))) == made
    for values in ({"views": 4, "zoom": 2}, "views", None):
        with pytest.raises(UsageError, match=r"augmentation is|has no zoom"):
            AUGMENTATIONS.from_json(values)  # pyright: ignore[reportArgumentType]


# --- the average before the bound

BATCH, VIEWS = 5, 3


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 3, bias=False))


def convolved() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)
    )


class Rows(nn.Module):
    """The rows of an image as positions of a linear layer."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 2), nn.Conv1d(6, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x[:, 0]).tanh()).flatten(1)


class Steps(nn.Module):
    """The rows of an image as steps."""

    def __init__(self):
        super().__init__()
        self.norm, self.steps = nn.LayerNorm(6), Lstm(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.steps(self.norm(x[:, 0]))


def standardised() -> nn.Module:
    return nn.Sequential(
        WeightStandardisedConv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 2)
    )


NETS: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "convolved": convolved,
    "rows": Rows,
    "steps": Steps,
    "standardised": standardised,
}
each_net = pytest.mark.parametrize("name", NETS)
BOUNDINGS = [FlatClipping(clip_norm=0.4), AutoSClipping(bound=0.4), PerLayerClipping(clip_norm=0.4)]
each_bounding = pytest.mark.parametrize("bounding", BOUNDINGS, ids=["flat", "auto-s", "per-layer"])


def made(name: str, dtype: torch.dtype = torch.float64, batch: int = BATCH) -> tuple:
    """Return a network, views of records, and each view's own number for the loss."""
    torch.manual_seed(7)
    network = NETS[name]().to(dtype)
    x = torch.randn(batch, 1, 6, 6, dtype=dtype)
    views = Augmentation(views=VIEWS, shift=2, flip=True).apply(x, generator())
    own = torch.linspace(0.5, 2.0, batch, dtype=dtype).repeat_interleave(VIEWS)
    return network, views, own


def wave(own: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda outputs: (outputs.flatten(1) * own[:, None]).sin().sum(dim=1)


def averaged(network: nn.Module, x: Tensor, own: Tensor) -> list[list[Tensor]]:
    """Return each record's mean gradient over its views, by autograd on one view at a time."""
    parameters = list_trainable_parameters(network)
    rows = [
        torch.autograd.grad(wave(own[k : k + 1])(network(x[k : k + 1])).sum(), parameters)
        for k in range(len(x))
    ]
    return [
        [sum(parts) / VIEWS for parts in zip(*rows[i : i + VIEWS], strict=True)]
        for i in range(0, len(x), VIEWS)
    ]


def norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


def everyone(batch: int = BATCH) -> Tensor:
    return torch.ones(batch, dtype=torch.bool)


def bounded(
    network: nn.Module, x: Tensor, own: Tensor, bounding: ClippingMethod | None, mask: Tensor
):
    return clipped_sum_and_counts(network, x, wave(own), bounding, mask, views=VIEWS)


@pytest.mark.oracle
@each_net
def test_a_records_views_are_averaged_and_then_bounded(name: str):
    for dtype, tolerance in [(torch.float64, 1e-6), (torch.float32, 2e-4)]:
        network, x, own = made(name, dtype)
        gradients = averaged(network, x, own)
        norms = [norm(each) for each in gradients]
        bound = sorted(norms)[BATCH // 2] * 1.01
        for bounding in (None, FlatClipping(clip_norm=bound)):
            limit = math.inf if bounding is None else bound
            expected = [torch.zeros_like(p) for p in list_trainable_parameters(network)]
            for each, size in zip(gradients, norms, strict=True):
                factor = min(1.0, limit / (size * NORM_SLACK))
                expected = [e + factor * g for e, g in zip(expected, each, strict=True)]
            sums, counts = bounded(network, x, own, bounding, everyone())
            moved = norm([a - b for a, b in zip(sums, expected, strict=True)])
            assert moved <= tolerance * norm(expected)
            if bounding is not None:
                assert counts.tolist() == [BATCH // 2 + 1 - BATCH / 2]
        apart = clipped_sum_and_counts(
            network, x, wave(own), FlatClipping(clip_norm=bound), everyone(BATCH * VIEWS)
        )[0]
        assert norm([a / VIEWS - b for a, b in zip(apart, expected, strict=True)]) > 0.01 * norm(
            expected
        ), "views that are bounded one by one would pass"


@pytest.mark.oracle
@each_net
def test_each_layer_of_an_average_is_clipped_to_its_own_bound(name: str):
    network, x, own = made(name)
    layers = list_trainable_layers(network)
    bounding = PerLayerClipping(clip_norms=tuple(0.1 * (k + 1) for k in range(len(layers))))
    sums, counts = bounded(network, x, own, bounding, everyone())
    order = {id(p): k for k, p in enumerate(list_trainable_parameters(network))}
    gradients, within = averaged(network, x, own), []
    for layer, bound in zip(layers, bounding.clip_norms or (), strict=True):
        places = [order[id(p)] for p in layer.parameters(recurse=False)]
        sizes = [norm([each[k] for k in places]) for each in gradients]
        within.append(sum(size <= bound for size in sizes) - BATCH / 2)
        for k in places:
            expected = sum(
                min(1.0, bound / (size * NORM_SLACK)) * each[k]
                for size, each in zip(sizes, gradients, strict=True)
            )
            assert torch.allclose(sums[k], expected, rtol=1e-5, atol=1e-7)
    assert counts.tolist() == within


@pytest.mark.property
@each_net
@each_bounding
@settings(max_examples=10)
@given(scale=st.sampled_from([1e-10, 1.0, 1e4, 1e20]), heat=st.sampled_from([1e-3, 1.0, 1e4]))
def test_one_record_of_many_views_moves_the_sum_by_at_most_c(
    name: str, bounding: ClippingMethod, scale: float, heat: float
):
    for batch in [1, BATCH]:
        network, x, own = made(name, torch.float32, batch)
        x[:VIEWS] *= scale
        mask = everyone(batch)
        mask[0] = False
        worlds = [
            bounded(network, x, own * heat, bounding, each) for each in (everyone(batch), mask)
        ]
        moved = norm([a - b for a, b in zip(worlds[0][0], worlds[1][0], strict=True)])
        assert moved <= bounding.sensitivity * (1 + 1e-5)
        assert (worlds[0][1] - worlds[1][1]).abs().max() <= 0.5


@pytest.mark.unit
def test_views_that_are_bounded_one_by_one_and_summed_would_be_found():
    network, x, own = made("dense", torch.float32, 1)
    x[:] = x[0]
    apart = clipped_sum_and_counts(
        network, x, wave(own * 1e3), BOUNDINGS[0], torch.ones(VIEWS, dtype=torch.bool)
    )[0]
    assert norm(apart) > (VIEWS - 0.1) * BOUNDINGS[0].sensitivity
    together = bounded(network, x, own * 1e3, BOUNDINGS[0], everyone(1))[0]
    assert norm(together) == pytest.approx(BOUNDINGS[0].sensitivity, rel=1e-4)


@pytest.mark.contract
@each_net
@each_bounding
def test_a_record_with_one_view_that_is_not_finite_adds_exactly_0(
    name: str, bounding: ClippingMethod
):
    for fault in [math.nan, math.inf]:
        network, x, own = made(name, torch.float32)
        mask = everyone()
        mask[2] = False
        expected, counts = bounded(network, x, own, bounding, mask)
        x[2 * VIEWS + 1].view(-1)[-1] = fault
        null, uncounted = bounded(network, x, own, bounding, mask)
        assert all(map(torch.equal, null, expected))
        assert torch.equal(uncounted, counts)
        found, counted = bounded(network, x, own, bounding, everyone())
        assert all(bool(torch.isfinite(each).all()) for each in found)
        if name != "convolved":  # a stride of the first layer may skip the pixel
            assert all(map(torch.equal, found, expected))
            if not isinstance(bounding, AutoSClipping):
                assert (counts - counted).tolist() == [0.5] * len(counts)


@pytest.mark.unit
def test_views_and_mask_of_other_lengths_are_refused():
    network, x, own = made("dense")
    for mask in (everyone(1), everyone(BATCH * VIEWS), everyone(BATCH - 1)):
        with pytest.raises(ValueError, match="views"):
            bounded(network, x, own, FlatClipping(), mask)


@pytest.mark.oracle
@each_net
def test_an_average_in_pieces_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch):
    network, x, own = made(name)
    whole = bounded(network, x, own, FlatClipping(clip_norm=0.4), everyone())[0]
    monkeypatch.setitem(layer_rules.MAX_UNFOLDED_VALUES, "cpu", 1)
    pieces = bounded(network, x, own, FlatClipping(clip_norm=0.4), everyone())[0]
    assert all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(whole, pieces, strict=True))
