"""Front ends: what their names mean, what comes out, and that a record is mapped alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from pasearch.data import means, whitening
from pasearch.data.front_ends import (
    FRONT_ENDS,
    MAX_PCA_FEATURES,
    Centred,
    CentredPairs,
    FittedFrontEnd,
    MaxPool,
    PrincipalComponents,
    Raw,
    Scattering,
    Standardise,
    Whitened,
    WhitenedCentred,
    prepare_front_end,
)
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.data.means import ROW_NORM
from pasearch.data.projections import TYPICAL_NORM
from pasearch.data.schema import RowLayout
from pasearch.data.whitening import draw_dead_leaves
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys, Stream

VECTORS, IMAGES = [(7,), (60,)], [(8, 8), (9, 7), (1, 10, 11), (3, 8, 9)]
LARGE = [(16, 16), (28, 28), (17, 31), (1, 16, 20), (3, 32, 32)]
KINDS = [kind for kind in FRONT_ENDS.kinds().values() if kind.__module__.startswith("pasearch.")]

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "raw": [*VECTORS, *IMAGES],
    "max_pool:2": [*IMAGES, *LARGE],
    "max_pool:5": [*IMAGES, *LARGE],
    "scattering": LARGE,
    "standardise": [*VECTORS, *IMAGES],
    "centred": [*VECTORS, *IMAGES],
    "centred_pairs:5": VECTORS,
    "whitened:1": LARGE,
    "whitened:2": LARGE,
    "whitened_centred:1": LARGE,
    "pca:1": [*VECTORS, *IMAGES],
    "pca:7": [*VECTORS, *IMAGES],
}
ALONE = [name for name in SHAPES if not parse_front_end(name).fitted]
FITTED = [name for name in SHAPES if parse_front_end(name).fitted]
every = pytest.mark.parametrize(
    ("name", "shape"), [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]
)


@pytest.fixture(scope="module", autouse=True)
def few_made_up() -> Iterator[None]:
    """Directions are learned from 240 images instead of 3,000, and once a shape."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whitening, "MAX_SYNTHETIC_IMAGES", 240)
        patch.setattr(whitening, "learn_directions", cache(whitening.learn_directions.__wrapped__))
        yield


def images(n: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


def whitened_means(x: Tensor, valid: Tensor, sigma: float, stream: Stream) -> np.ndarray[Any, Any]:
    """Return the noisy means before they are shrunk: a front end keeps what follows from them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(means, "shrink_means", lambda noisy, _: noisy)
        return (
            parse_front_end("whitened_centred")
            .fit(x, valid, sigma, stream, RowLayout(bound=1e-3))
            .module.shift.numpy()
        )


def fitted(name: str, shape: tuple[int, ...], noise: float | None = 0.3) -> FittedFrontEnd:
    front = parse_front_end(name)
    if not front.fitted:
        return prepare_front_end(front, shape)
    valid, stream = torch.ones(30, dtype=torch.bool), Keys.from_seed(4).stream("front end", name)
    before = None if front.first_stage is None else prepare_front_end(front.first_stage, shape)
    x = images(30, shape) if before is None else before.module(images(30, shape))
    return front.fit(x, valid, noise, stream).compose_after(before)


class TestText:
    @pytest.mark.unit
    def test_names_a_front_end_and_comes_back(self):
        for text, meant in [
            ("raw", Raw()),
            ("max_pool", MaxPool(2)),
            ("max_pool:7", MaxPool(7)),
            ("scattering", Scattering()),
            ("standardise", Standardise()),
            ("centred", Centred()),
            ("centred_pairs", CentredPairs(256)),
            ("centred_pairs:9", CentredPairs(9)),
            ("whitened", Whitened(1)),
            ("whitened:2", Whitened(2)),
            ("whitened_centred:2", WhitenedCentred(2)),
            ("pca", PrincipalComponents(60)),
            ("pca:1", PrincipalComponents(1)),
            ("pca:300", PrincipalComponents(300)),
        ]:
            found = parse_front_end(text)
            assert found == meant
            assert hash(found) == hash(meant)
            assert parse_front_end(found.text) == found
            assert parse_front_end(found) is found
            assert str(found) == found.text

    @pytest.mark.contract
    def test_every_kind_is_tried_and_has_a_name_of_its_own(self):
        assert {type(parse_front_end(name)) for name in SHAPES} == set(KINDS)
        assert len({kind.name for kind in KINDS}) == len(KINDS)

    @pytest.mark.unit
    def test_others_are_refused_and_those_there_are_named(self):
        for text in [
            "",
            " raw",
            "raw:1",
            "standardise:3",
            "max_pool:",
            "max_pool:1",
            "max_pool:2.0",
            "pca:0",
            "pca:",
            "pca:1e2",
            "pca:\u0663",
            ":",
            None,
            True,
            ["raw"],
        ]:
            with pytest.raises(
                UsageError, match="is not known: expected one of raw, max_pool"
            ) as seen:
                parse_front_end(text)
            assert repr(text) in str(seen.value)
            assert all(kind.name in str(seen.value) for kind in KINDS)


class TestShape:
    @pytest.mark.contract
    @every
    def test_is_the_modules_real_output(self, name: str, shape: tuple):
        front = fitted(name, shape)
        told = front.front_end.output_shape(shape)
        assert front.module(images(3, shape)).shape == (3, *told)
        assert front.module(images(1, shape)).shape == (1, *told)
        assert front.front_end.module(shape)(images(2, shape)).shape == (2, *told)

    @pytest.mark.unit
    def test_records_that_do_not_fit_are_refused(self):
        for name, shape, words in [
            ("max_pool:2", (8,), "needs images"),
            ("max_pool:9", (8, 28), "larger than an image"),
            ("scattering", (15, 28), "16 x 16 pixels or more"),
            ("pca:8", (65, 65), "records have 4,225 features"),
            ("pca:60", (MAX_PCA_FEATURES + 1,), "4,097 features"),
            ("pca:60", (3, 64, 64), "12,288 features"),
        ]:
            with pytest.raises(UsageError, match=words) as seen:
                parse_front_end(name).output_shape(shape)
            assert name in str(seen.value)


class TestAlone:
    """Each record is mapped by itself: that is why a front end changes no price."""

    @pytest.mark.contract
    @every
    def test_the_batch_never_matters(self, name: str, shape: tuple):
        module, x = fitted(name, shape).module, images(5, shape, seed=1)
        together = module(x)
        order = torch.tensor([3, 0, 4, 1, 2])
        # Another batch rounds sums of up to 15,552 products otherwise, whatever the records are.
        atol = 2e-4 if name.startswith("whitened") else 1e-5
        assert torch.allclose(module(x[order]), together[order], atol=atol)
        for i in range(5):
            assert torch.allclose(module(x[i : i + 1])[0], together[i], atol=atol)

    @pytest.mark.contract
    def test_whatever_the_others_are_a_record_is_mapped_alike(self):
        for value in [math.nan, math.inf, 1e30]:
            for name in SHAPES:
                shape = SHAPES[name][-1]
                module, x = fitted(name, shape).module, images(3, shape, seed=1)
                before = module(x).clone()
                x[::2] = value
                after = module(x)
                assert torch.allclose(before[1], after[1], atol=1e-5)
                assert not torch.allclose(before[0], after[0], atol=1e-2)

    @pytest.mark.contract
    def test_nothing_in_it_is_trained_or_remembered(self):
        for name in SHAPES:
            shape = SHAPES[name][-1]
            front = fitted(name, shape)
            before = front.digest
            front.module.train()
            front.module(images(4, shape))
            assert list(front.module.parameters()) == []
            assert front.digest == before


class TestWhat:
    @pytest.mark.oracle
    @pytest.mark.parametrize("shape", [(7, 9), (3, 7, 9)])
    @pytest.mark.parametrize("size", [2, 3])
    def test_max_pool_takes_the_maximum_of_each_square(self, shape: tuple, size: int):
        x = images(2, shape)
        pooled = fitted(f"max_pool:{size}", shape).module(x)
        for i in range(shape[-2] // size):
            for j in range(shape[-1] // size):
                rows, columns = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
                assert pooled[..., i, j].equal(x[..., rows, columns].amax((-2, -1)))

    @pytest.mark.unit
    def test_scattering_has_at_most_the_norm_of_a_raw_record(self):
        for shape in LARGE:
            module = fitted("scattering", shape).module
            found = module(images(4, shape)).flatten(1).norm(dim=1)
            assert ((found > TYPICAL_NORM / 2) & (found < TYPICAL_NORM)).all()
            # An image without contrast is not blown up to that norm.
            assert not module(torch.zeros(2, *shape)).any()


class TestWhitened:
    """Directions of made-up images: public, the same everywhere, at a public norm."""

    @pytest.mark.contract
    @pytest.mark.parametrize("name", ["whitened:1", "whitened:2"])
    @pytest.mark.parametrize("shape", [(28, 28), (3, 32, 32)])
    def test_every_record_has_the_norm_that_a_mean_is_charged_for(self, name: str, shape: tuple):
        module = fitted(name, shape).module
        given = torch.cat([images(6, shape), 1e-6 * images(2, shape), torch.zeros(1, *shape)])
        norms = module(given).norm(dim=1)
        assert (norms <= ROW_NORM * (1 + 1e-5)).all()
        assert (norms[:6] > ROW_NORM * (1 - 1e-3)).all()

    @pytest.mark.oracle
    def test_directions_decorrelate_what_they_were_learned_from(self):
        """Variances L become sqrt(L): of uncorrelated coordinates."""
        shape, many = (16, 16), 240
        module = fitted("whitened:1", shape).module
        generator = np.random.Generator(np.random.Philox(whitening.IMAGE_SEED))
        made_up = torch.from_numpy(draw_dead_leaves(many, 1, *shape, generator))[:, 0]
        z = module.project(made_up).double()
        found = z.T @ z / many
        given = module.compute_features(made_up).double()
        given = given - given.mean(0)
        variances = (torch.linalg.svdvals(given).square() / many)[: len(found)]
        sizes = (variances / variances[0] + whitening.VARIANCE_FLOOR) ** -0.25
        assert z.mean(0).abs().max() < 1e-2 * z.std(0).max()
        assert torch.allclose(found.diagonal(), variances * sizes**2, rtol=0.02, atol=1e-6)
        apart = found - torch.diag(found.diagonal())
        assert apart.abs().max() < 1e-2 * found.diagonal().max()

    @pytest.mark.unit
    def test_two_views_see_an_image_and_its_mirror_image_alike(self):
        x, shape = images(3, (20, 24)), (20, 24)
        both, one = fitted("whitened:2", shape).module, fitted("whitened:1", shape).module
        assert torch.allclose(both(x), both(x.flip(-1)), atol=1e-4)
        assert not torch.allclose(one(x), one(x.flip(-1)), atol=0.1)

    @pytest.mark.unit
    def test_no_record_and_no_global_generator_changes_them(self):
        np.random.seed(1)  # noqa: NPY002 - what must not matter
        torch.manual_seed(1)
        first = fitted("whitened:1", (16, 16)).digest
        whitening.learn_directions.cache_clear()
        np.random.seed(2)  # noqa: NPY002
        torch.manual_seed(2)
        assert fitted("whitened:1", (16, 16)).digest == first

    @pytest.mark.oracle
    def test_centred_is_the_record_less_the_mean_at_the_usual_norm(self):
        shape = (16, 16)
        x = prepare_front_end(parse_front_end("whitened"), shape).module(images(300, shape))
        valid = torch.arange(300) < 200
        found = parse_front_end("whitened_centred").fit(
            x, valid, None, Keys.from_seed(1).stream("x")
        )
        mean = x[:200].double().sum(0) / 300  # the divisor is n, null records included
        scale = ROW_NORM / math.sqrt(ROW_NORM**2 - float(mean.square().sum()))
        assert torch.allclose(found.module(x).double(), (x.double() - mean) * scale, atol=1e-5)

    @pytest.mark.unit
    def test_its_fit_is_noise_of_the_public_norm_whatever_the_schema_allows(self):
        """Sensitivity is `ROW_NORM`: noise of a far smaller one would be a leak."""
        shape, sigma, deviations = (16, 16), 50.0, []
        x = prepare_front_end(parse_front_end("whitened"), shape).module(images(300, shape))
        valid = torch.ones(300, dtype=torch.bool)
        for seed in range(20):
            stream = Keys.from_seed(seed).stream("x")
            noisy = whitened_means(x, valid, sigma, stream)
            deviations.append(float(np.std(noisy - x.numpy().mean(0))) * 300 / ROW_NORM)
        assert sigma * 0.9 < np.mean(deviations) < sigma * 1.1

    @pytest.mark.unit
    @pytest.mark.parametrize("name", ["whitened", "whitened_centred"])
    def test_images_that_are_too_large_are_refused_by_arithmetic_alone(self, name: str):
        with pytest.raises(UsageError, match="too large for it: use scattering"):
            parse_front_end(name).output_shape((3, 600, 600))
        with pytest.raises(UsageError, match="needs images of 16 x 16"):
            parse_front_end(name).output_shape((8, 8))


class TestFit:
    @pytest.mark.contract
    def test_what_knows_no_record_is_ready_and_has_no_fit(self):
        for name in ALONE:
            front, shape = parse_front_end(name), SHAPES[name][-1]
            valid, stream = torch.ones(3, dtype=torch.bool), Keys.from_seed(4).stream("x")
            assert prepare_front_end(front, shape).front_end is front
            with pytest.raises(NotImplementedError, match=f"{name} is not fitted"):
                front.fit(images(3, shape), valid, 1.0, stream)

    @pytest.mark.contract
    def test_a_fit_comes_back_from_its_weights(self):
        for name in SHAPES:
            shape = SHAPES[name][-1]
            front = fitted(name, shape)
            module = front.front_end.module(shape)
            module.load_state_dict(front.module.state_dict())
            x = images(4, shape, seed=3)
            assert module(x).equal(front.module(x))
            assert FittedFrontEnd(front.front_end, module).digest == front.digest

    @pytest.mark.unit
    def test_the_digest_tells_what_it_does(self):
        shape = (16, 16)
        fits = [fitted(name, shape) for name in ("raw", "max_pool:2", "max_pool:3", "scattering")]
        fits += [fitted(name, shape, noise) for name in FITTED for noise in (None, 0.3, 0.4)]
        assert len({each.digest for each in fits}) == len(fits)
        assert fitted("pca:7", shape).digest == fitted("pca:7", shape).digest
        assert all(len(each.digest) == 64 for each in fits)


MEASURED = {
    # Seconds of 70,000 images on two cores of an AMD EPYC; of none, what has to be made first.
    "scattering, 28 x 28": ("scattering", (28, 28), 70_000, 24.0),
    "whitened, 28 x 28": ("whitened", (28, 28), 70_000, 70.0 + 12.2),
    "whitened, 28 x 28, before": ("whitened", (28, 28), 0, 12.2),
    "whitened, 3 x 32 x 32, before": ("whitened", (3, 32, 32), 0, 23.1),
}


class TestTime:
    """About how long a front end takes, for a plan."""

    @pytest.mark.oracle
    @pytest.mark.parametrize("name", MEASURED)
    def test_is_near_what_was_measured(self, name: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(whitening, "MAX_SYNTHETIC_IMAGES", 3000)  # as it is, unless for a test
        text, shape, records, measured = MEASURED[name]
        found = parse_front_end(text).seconds(shape, records)
        assert found is not None
        assert measured / 1.4 < found < 1.4 * measured

    @pytest.mark.unit
    def test_is_nothing_where_little_is_done_and_unknown_where_nobody_says(self):
        for text in ("raw", "max_pool:2", "standardise", "centred", "pca:60"):
            assert parse_front_end(text).seconds((28, 28), 10**9) == 0.0

        class Costly(Raw):
            costly: ClassVar[bool] = True

        assert Costly().seconds((28, 28), 10) is None
