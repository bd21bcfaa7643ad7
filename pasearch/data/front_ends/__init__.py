"""Front ends: what is done to a record before the network sees it.

| text | what | price |
|---|---|---|
| `raw` | nothing | none |
| `max_pool:2` | the maximum of each square of pixels | none: each record on its own |
| `scattering` | a fixed wavelet transform, normalised | none: each record on its own |
| `whitened:1` | that and patches, in directions of one size (`data.whitening`) | none, likewise |
| `backbone:...` | numbers of a public backbone (`data.backbones`) | none, likewise |
| `whitened_centred:1` | `whitened` minus its mean | one Gaussian sum |
| `backbone_centred:...` | `backbone` minus its mean | one Gaussian sum |
| `standardise` | features minus their mean, divided by their deviation | one Gaussian sum |
| `centred` | features minus their mean, divided by the root of their deviation | one Gaussian sum |
| `centred_pairs:256` | that, and products of two columns (`data.pairs`) | one Gaussian sum |
| `pca:60` | the principal components (Analyze Gauss) | one Gaussian sum |

Those without a price know no record but the one at hand: each maps a record alone, so they change
nothing for the others. The rest are *fitted*: they release a noisy sum over a partition, once,
before the first training, and the plan charges it; every candidate then uses the same fit
(post-processing).

    standardise:  v = (x, x^2) / sqrt(2 d), of norm at most 1 for x in [0, 1]^d;  sum v + noise
    centred:      rows clamped to a public norm B (`data.means`);         sum x + noise
    centred_pairs:    likewise
    whitened_centred, backbone_centred:  likewise, of rows behind the other
    pca:          rows clamped to norm 1, no centring;                    X'X + symmetric noise

Source: Bao et al., sections IV-B and VIII-C (PCA, max pooling); Dwork et al. 2014 (Analyze Gauss);
Tramer and Boneh 2021 (scattering). Proof: docs/guarantees/released-sums.md.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pasearch.accounting.checks import check_positive_integer
from pasearch.accounting.events import Event, Gaussian
from pasearch.data.means import FitInput
from pasearch.data.schema import RowLayout
from pasearch.errors import UsageError
from pasearch.registry import Registry, Stage
from pasearch.runs.keys import Stream

if TYPE_CHECKING:
    from torch import Tensor, nn

Shape = tuple[int, ...]

MAX_PCA_FEATURES = 4096
"""The most features PCA takes: its matrix has the square of that many numbers."""

MAX_PAIRS = 8192
"""The most products of two columns."""

# Seconds of the scattering transform per number of an image, and of other maps per multiplication
# or addition: on two cores of an AMD EPYC.
SECONDS_PER_NUMBER = 4.5e-7
SECONDS_PER_OPERATION = 1.2e-11
# Seconds in which a synthetic image is made, on one core.
SECONDS_PER_IMAGE = 1e-3
# Pixels of the smallest side of an image of which scattering at two scales leaves anything.
MIN_SIDE = 16


class FrontEnd(Stage):
    """A map from a record, scaled to [0, 1], to what a network is given. A frozen value.

    It has no field, or one whole number with a default.
    """

    __slots__ = ()

    fitted: ClassVar[bool] = False
    """Whether it is fitted to records, by a release that the plan charges."""
    least: ClassVar[int] = 1
    """The least number that it may name."""
    costly: ClassVar[bool] = False
    """Whether its output is worth a file in the cache."""
    learned: ClassVar[bool] = False
    """Whether it has numbers of its own, which no record of the run's data decides: a run keeps
    them, so that every training of it, resumed or not, sees equal records."""
    shifts_features: ClassVar[bool] = False
    """Whether it moves and scales every feature by itself; what else it makes stands behind."""
    version: ClassVar[int] = 1
    """Changes when it maps a record otherwise: old files in a cache are then of no use."""

    @property
    def text(self) -> str:
        """How it is written in a space: `front_end` reads it."""
        numbers = [getattr(self, name) for name in self.field_names()]
        return ":".join(map(str, [self.name, *numbers]))

    @property
    def first_stage(self) -> FrontEnd | None:
        """What a record goes through first, where it is fitted to what that makes of records."""
        return None

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape of a record behind it.

        Raises:
            UsageError: It does not fit records of this shape.
        """

    @abstractmethod
    def module(self, shape: Shape) -> nn.Module:
        """Return the map as a module without parameters; a fitted one is not fitted yet."""

    def ready_module(self, shape: Shape) -> nn.Module:
        """Return the map, ready for use; only where not `fitted`."""
        return self.module(shape)

    def seconds(self, shape: Shape, records: int) -> float | None:
        """Return about how long so many records take, on two CPU cores; None where nobody knows.

        Nothing where it costs little; what has to be made before the first record counts too.
        """
        return None if self.costly else 0.0

    def event(self, noise_multiplier: float) -> Event:
        """Return what its fit costs at this noise; only where `fitted`."""
        return Gaussian(noise_multiplier)

    def fit(
        self,
        x: Tensor,
        valid: Tensor,
        noise_multiplier: float | None,
        stream: Stream,
        form: RowLayout | None = None,
    ) -> FittedFrontEnd:
        """Fit it privately to the records of an open partition; only where `fitted`.

        Args:
            x: Records, float32, (slots, *shape), in [0, 1]; behind `first_stage`, if it has one.
            valid: bool, (slots,); a null record adds nothing.
            noise_multiplier: Of the released sum; None on declared-public data.
            stream: The release's own randomness.
            form: Public form of an encoded record; None: a record's norm may be as large as the
                root of its number of features.

        Cost: `event(noise_multiplier)`, charged by the caller before the records were opened.
        """
        given = FitInput(
            x=x, valid=valid, noise_multiplier=noise_multiplier, stream=stream, form=form
        )
        return FittedFrontEnd(self, self.fitted_module(given))

    def fitted_module(self, given: FitInput) -> nn.Module:
        """Estimate the map privately; only where `fitted`. The cost is that of `fit`."""
        raise NotImplementedError(f"{self.text} is not fitted.")

    def describe_public_inputs(self) -> str:
        """Return what it takes as public, in words; nothing for most."""
        return ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class FittedFrontEnd:
    """A front end ready for use.

    Args:
        front_end: What it is.
        module: The map.
        device: Where records go through it, if it is costly; others: on the processor.
    """

    front_end: FrontEnd
    module: nn.Module
    device: str = "cpu"

    @property
    def first_stage(self) -> FittedFrontEnd | None:
        """The first of its two parts, where it has two."""
        first = self.front_end.first_stage
        return None if first is None else FittedFrontEnd(first, self.module[0], self.device)  # pyright: ignore[reportIndexIssue]

    @property
    def last_module(self) -> nn.Module:
        """What maps records that are behind `first_stage`."""
        return self.module if self.front_end.first_stage is None else self.module[1]  # pyright: ignore[reportIndexIssue]

    def compose_after(self, before: FittedFrontEnd | None) -> FittedFrontEnd:
        """Return what was fitted to records behind `first_stage`, as one map from a record."""
        from torch import nn

        if before is None:
            return self
        return FittedFrontEnd(
            self.front_end, nn.Sequential(before.module, self.module), before.device
        )

    @property
    def used_device(self) -> str:
        """Where records go through it."""
        return self.device if self.front_end.costly else "cpu"

    @property
    def digest(self) -> str:
        """A hash of what it does: equal digests map records alike."""
        import numpy as np

        told = f"{self.front_end.text} {self.front_end.version} {self.used_device}"
        found = hashlib.sha256(told.encode())
        for name, value in self.module.state_dict().items():
            found.update(name.encode() + np.ascontiguousarray(value.cpu().numpy()).tobytes())
        return found.hexdigest()


def prepare_front_end(front_end: FrontEnd, shape: Shape, device: str = "cpu") -> FittedFrontEnd:
    """Return a front end that needs no fit; see `FittedFrontEnd`."""
    assert not front_end.fitted
    return FittedFrontEnd(front_end, front_end.ready_module(shape), device)


FRONT_ENDS = Registry("front end", FrontEnd, "pasearch.data.front_ends")


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class Raw(FrontEnd):
    """The record as it is."""

    name: ClassVar[str] = "raw"
    description_template: ClassVar[str] = "the record as it is"

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def module(self, shape: Shape) -> nn.Module:
        from torch import nn

        return nn.Identity()


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class MaxPool(FrontEnd):
    """The maximum over squares of pixels; a remainder at the border is dropped.

    Args:
        size: Side of the square, pixels, 2 or more.
    """

    name: ClassVar[str] = "max_pool"
    description_template: ClassVar[str] = "{size} \u00d7 {size} max pooling"
    least: ClassVar[int] = 2
    size: int = 2

    def __post_init__(self) -> None:
        if not check_positive_integer("size", self.size) >= 2:
            raise UsageError(f"max_pool has size {self.size}: expected 2 or more.")

    def output_shape(self, shape: Shape) -> Shape:
        *channels, height, width = check_image_shape(self, shape)
        sides = height // self.size, width // self.size
        if not min(sides) > 0:
            raise UsageError(f"Front end {self.text} is larger than an image of shape {shape}.")
        return (*channels, *sides)

    def module(self, shape: Shape) -> nn.Module:
        """Return the pooling module; (height, width) counts as one image of a batch of channels."""
        from torch import nn

        return nn.MaxPool2d(self.size)


class CentredFrontEnd(FrontEnd):
    """What another front end makes of records, minus its mean, which is estimated privately."""

    __slots__ = ()

    fitted: ClassVar[bool] = True
    shifts_features: ClassVar[bool] = True
    costly: ClassVar[bool] = False
    learned: ClassVar[bool] = False

    @property
    @abstractmethod
    def first_stage(self) -> FrontEnd:
        """The other: it gives every record the norm `ROW_NORM` at most."""

    def describe(self) -> str:
        return f"{self.first_stage.describe()}, centred"

    def seconds(self, shape: Shape, records: int) -> float | None:
        return self.first_stage.seconds(shape, records)

    def output_shape(self, shape: Shape) -> Shape:
        return self.first_stage.output_shape(shape)

    def module(self, shape: Shape) -> nn.Module:
        from torch import nn

        from pasearch.data.projections import Affine

        return nn.Sequential(self.first_stage.module(shape), Affine(self.output_shape(shape)))

    def fitted_module(self, given: FitInput) -> nn.Module:
        """Estimate the mean of every direction privately; records have a norm of their own."""
        from pasearch.data.projections import fit_centring

        return fit_centring(given)


class ShiftedFrontEnd(FrontEnd):
    """A front end that moves and scales every feature by itself, as records tell it."""

    __slots__ = ()

    fitted: ClassVar[bool] = True
    shifts_features: ClassVar[bool] = True

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def module(self, shape: Shape) -> nn.Module:
        from pasearch.data.projections import Affine

        return Affine(shape)


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class Standardise(ShiftedFrontEnd):
    """Every feature minus its mean, divided by its standard deviation: both estimated privately."""

    name: ClassVar[str] = "standardise"
    description_template: ClassVar[str] = "standardised features"

    def fitted_module(self, given: FitInput) -> nn.Module:
        """Estimate both moments of every feature privately."""
        from pasearch.data.projections import fit_moments

        return fit_moments(given)


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class Centred(ShiftedFrontEnd):
    """Every feature minus its mean, divided by the root of its deviation: from private means.

    Only means are released, with the schema's own bound of a record, so they are nearer than those
    of `standardise`. Their proof is that of the means of `features`.
    """

    name: ClassVar[str] = "centred"
    description_template: ClassVar[str] = "centred features"

    def fitted_module(self, given: FitInput) -> nn.Module:
        """Estimate the mean of every feature privately."""
        from pasearch.data.projections import build_centring_map, estimate_means

        return build_centring_map(estimate_means(given), given.x.shape[1:])


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class CentredPairs(FrontEnd):
    """What `centred` makes of a row of a table, and products of two of its columns.

    They come from the same means, so they cost nothing more.

    Args:
        pairs: How many products: those of columns that vary most.
    """

    name: ClassVar[str] = "centred_pairs"
    description_template: ClassVar[str] = "centred features and {pairs:,} pairs"
    fitted: ClassVar[bool] = True
    shifts_features: ClassVar[bool] = True
    pairs: int = 256

    def __post_init__(self) -> None:
        check_positive_integer("pairs", self.pairs, most=MAX_PAIRS)

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise UsageError(
                f"Front end {self.text} is for rows of a table; these records have shape {shape}. "
                "Take centred, or of images whitened_centred."
            )
        return (shape[0] + self.pairs,)

    def module(self, shape: Shape) -> nn.Module:
        from pasearch.data import pairs

        return pairs.CentredPairs(shape[0], self.pairs)

    def fitted_module(self, given: FitInput) -> nn.Module:
        """Estimate the mean of every feature privately."""
        from pasearch.data.pairs import build_pairs_map
        from pasearch.data.projections import estimate_means

        columns = () if given.form is None else given.form.columns
        return build_pairs_map(estimate_means(given), columns, self.pairs)


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class PrincipalComponents(FrontEnd):
    """The record's coordinates along the leading components of privately estimated moments.

    Args:
        components: Their number, 1 or more; those beyond the number of features are 0.
    """

    name: ClassVar[str] = "pca"
    description_template: ClassVar[str] = "{components:,} principal components"
    fitted: ClassVar[bool] = True
    components: int = 60

    def __post_init__(self) -> None:
        check_positive_integer("components", self.components, most=MAX_PCA_FEATURES)

    def output_shape(self, shape: Shape) -> Shape:
        features = math.prod(shape)
        if not features <= MAX_PCA_FEATURES:
            raise UsageError(
                f"Front end {self.text}: records have {features:,} features: expected at most "
                f"{MAX_PCA_FEATURES:,}. Pool first, or take raw."
            )
        return (self.components,)

    def module(self, shape: Shape) -> nn.Module:
        from pasearch.data.projections import Projection

        return Projection(math.prod(shape), self.components)

    def fitted_module(self, given: FitInput) -> nn.Module:
        """Estimate the second moments privately and keep their leading eigenvectors."""
        from pasearch.data.projections import fit_components

        return fit_components(given, self.components)


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class Scattering(FrontEnd):
    """The scattering transform (J = 2, 8 angles, order 2), then group normalisation a record."""

    name: ClassVar[str] = "scattering"
    description_template: ClassVar[str] = "scattering coefficients"
    costly: ClassVar[bool] = True

    def output_shape(self, shape: Shape) -> Shape:
        """Return (81 times the channels, a quarter of the sides)."""
        *channels, height, width = check_image_shape(self, shape)
        if not min(height, width) >= MIN_SIDE:
            raise UsageError(
                f"Front end {self.text} needs images of {MIN_SIDE} x {MIN_SIDE} pixels or "
                f"more; these records have shape {shape}."
            )
        return (81 * math.prod(channels), height // 4, width // 4)

    def seconds(self, shape: Shape, records: int) -> float:
        return SECONDS_PER_NUMBER * records * math.prod(shape)

    def module(self, shape: Shape) -> nn.Module:
        from pasearch.data.projections import NormalisedScattering

        return NormalisedScattering(shape)


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class Whitened(FrontEnd):
    """Scattering and patches in directions of made-up images, brought to similar sizes.

    Args:
        views: 1, or 2 for the mean of an image and its mirror image: of photographs, not of
            digits, which mirrored are others.
    """

    name: ClassVar[str] = "whitened"
    costly: ClassVar[bool] = True
    learned: ClassVar[bool] = True
    version: ClassVar[int] = 3
    views: int = 1

    def __post_init__(self) -> None:
        if not check_positive_integer("views", self.views) <= 2:
            raise UsageError(
                f"{self.name} has {self.views} views: expected 1, or 2 (an image and its mirror "
                "image)."
            )

    def describe(self) -> str:
        views = f" of {self.views} views (the image and its mirror image)"
        return "whitened scattering coefficients and patches" + views * (self.views > 1)

    def output_shape(self, shape: Shape) -> Shape:
        """Return the number of directions."""
        from pasearch.data.patches import OUTPUT_NUMBERS
        from pasearch.data.whitening import MAX_COEFFICIENTS, count_directions

        coefficients = math.prod(Scattering().output_shape(shape)) + OUTPUT_NUMBERS
        if not coefficients <= MAX_COEFFICIENTS:
            raise UsageError(
                f"Front end {self.text}: images of shape {shape} are too large for it: take "
                "scattering, or smaller images."
            )
        return (count_directions(coefficients),)

    def seconds(self, shape: Shape, records: int) -> float:
        """Return what coefficients and directions take, and before them those of made-up images."""
        from pasearch.data import patches
        from pasearch.data.whitening import count_synthetic_images

        channels, *sides = check_image_shape(self, shape if len(shape) == 3 else (1, *shape))
        places = math.prod(max(0, side - patches.PATCH_SIDE + 1) for side in sides)
        operations = 2.0 * patches.PATTERN_COUNT * patches.PATCH_SIDE**2 * channels * places
        each = SECONDS_PER_NUMBER * math.prod(shape) + SECONDS_PER_OPERATION * operations
        (kept,) = self.output_shape(shape)
        count = math.prod(Scattering().output_shape(shape)) + patches.OUTPUT_NUMBERS
        made = count_synthetic_images(count)
        # On one core: products of all made-up images with each other, and their eigenvectors.
        products = SECONDS_PER_OPERATION * made**2 * (3 * count + 12 * made)
        before = made * (SECONDS_PER_IMAGE + 2 * each) + products
        return before + records * self.views * (each + SECONDS_PER_OPERATION * 2.0 * count * kept)

    def module(self, shape: Shape) -> nn.Module:
        from pasearch.data.whitening import WhitenedImage

        return WhitenedImage(shape, self.views)

    def ready_module(self, shape: Shape) -> nn.Module:
        from pasearch.data.whitening import WhitenedImage, learn_directions

        module = WhitenedImage(shape, self.views)
        module.load_state_dict(learn_directions(tuple(shape)))
        return module


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class WhitenedCentred(CentredFrontEnd):
    """What `whitened` makes of an image, minus its mean, which is estimated privately.

    Args:
        views: As of `whitened`.
    """

    name: ClassVar[str] = "whitened_centred"
    views: int = 1

    def __post_init__(self) -> None:
        Whitened(self.views)

    @property
    def first_stage(self) -> FrontEnd:
        return Whitened(self.views)


def check_image_shape(front: FrontEnd, shape: Shape) -> Shape:
    """Return the shape of records that are images.

    Raises:
        UsageError: They are none.
    """
    if len(shape) not in (2, 3):
        raise UsageError(
            f"Front end {front.text} needs images, (height, width) or (channels, height, width); "
            f"these records have shape {shape}. Take raw, standardise or pca."
        )
    return shape
