"""Feature extractors (front ends): preprocessing of a record before the network.

| text | output | privacy cost |
|---|---|---|
| `raw` | the record | none |
| `max_pool:2` | the maximum of each square of pixels | none: each record is mapped alone |
| `scattering` | a fixed wavelet transform, normalised | none: each record is mapped alone |
| `whitened:1` | scattering and patches, whitened (`data.whitening`) | none: each record is mapped
alone |
| `backbone:...` | output of a public backbone (`data.backbones`) | none: each record is mapped
alone |
| `whitened_centred:1` | `whitened` minus its mean | one Gaussian sum |
| `backbone_centred:...` | `backbone` minus its mean | one Gaussian sum |
| `standardise` | features minus their mean, divided by their deviation | one Gaussian sum |
| `centred` | features minus their mean, divided by the root of their deviation | one Gaussian sum |
| `centred_pairs:256` | `centred`, and products of two columns (`data.pairs`) | one Gaussian sum |
| `pca:60` | principal components (Analyze Gauss) | one Gaussian sum |

Those without a privacy cost map each record alone, so they release nothing. The others are
*fitted*: they release a noisy sum over a partition, once, before the first training, and the plan
charges it. Every candidate then uses the same fit (post-processing).

    standardise:    v = (x, x^2) / sqrt(2 d), of norm at most 1 for x in [0, 1]^d;  sum v + noise
    centred:        rows clipped to a public norm B (`data.means`);                 sum x + noise
    centred_pairs:  the same sum as `centred`
    whitened_centred, backbone_centred:  the same, over the output of the first stage
    pca:            rows clipped to norm 1, without centring;            X'X + symmetric noise

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
"""Maximum number of features for PCA: its matrix has the square of that many entries."""

MAX_PAIRS = 8192
"""Maximum number of products of two columns."""

# Seconds of the scattering transform per number in an image, and of other maps per multiplication
# or addition, on two cores of an AMD EPYC.
SECONDS_PER_NUMBER = 4.5e-7
SECONDS_PER_OPERATION = 1.2e-11
# Seconds per synthetic image, on one core.
SECONDS_PER_IMAGE = 1e-3
# Minimum side of an image for scattering at two scales, pixels.
MIN_SIDE = 16


class FrontEnd(Stage):
    """A map from a record, scaled to [0, 1], to the input of a network. A frozen value.

    It has no field, or one integer field with a default.
    """

    __slots__ = ()

    fitted: ClassVar[bool] = False
    """Whether it is fitted to records, by a release that the plan charges."""
    least: ClassVar[int] = 1
    """Minimum of its integer field."""
    costly: ClassVar[bool] = False
    """Whether its output is stored in the cache, because it is expensive."""
    learned: ClassVar[bool] = False
    """Whether it has parameters that no record of the run determines. A run stores them, so that
    all its trainings, also after a resume, use the same features."""
    shifts_features: ClassVar[bool] = False
    """Whether it shifts and scales every feature alone; its other outputs follow these."""
    version: ClassVar[int] = 1
    """Version of the map: a new one invalidates the files of a cache."""

    @property
    def text(self) -> str:
        """The text in a search space, which `parse_front_end` reads."""
        numbers = [getattr(self, name) for name in self.field_names()]
        return ":".join(map(str, [self.name, *numbers]))

    @property
    def first_stage(self) -> FrontEnd | None:
        """The front end applied first, if this one is fitted to the output of another."""
        return None

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape of the output for a record.

        Raises:
            UsageError: The front end does not fit records of this shape.
        """

    @abstractmethod
    def module(self, shape: Shape) -> nn.Module:
        """Build the map as a module without parameters; a fitted one is not fitted yet."""

    def ready_module(self, shape: Shape) -> nn.Module:
        """Build the map, ready for use; not for `fitted` front ends."""
        return self.module(shape)

    def seconds(self, shape: Shape, records: int) -> float | None:
        """Estimate the seconds for `records` records on two CPU cores; None if unknown.

        The preparation before the first record is included. Cheap front ends return 0.
        """
        return None if self.costly else 0.0

    def event(self, noise_multiplier: float) -> Event:
        """Return the privacy event of the fit at this noise; only for `fitted` front ends."""
        return Gaussian(noise_multiplier)

    def fit(
        self,
        x: Tensor,
        valid: Tensor,
        noise_multiplier: float | None,
        stream: Stream,
        form: RowLayout | None = None,
    ) -> FittedFrontEnd:
        """Fit the front end privately to the records of an open partition; only if `fitted`.

        Args:
            x: Records, float32, (slots, *shape), in [0, 1]; the output of `first_stage`, if it has
                one.
            valid: Mask of records, bool, (slots,); a null record adds nothing.
            noise_multiplier: Noise multiplier of the released sum; None for declared-public data.
            stream: Random stream of this release.
            form: Public form of an encoded record; None bounds a record's norm by the root of its
                number of features.

        Cost: `event(noise_multiplier)`, charged by the caller before the records were opened.
        """
        given = FitInput(
            x=x, valid=valid, noise_multiplier=noise_multiplier, stream=stream, form=form
        )
        return FittedFrontEnd(self, self.fitted_module(given))

    def fitted_module(self, given: FitInput) -> nn.Module:
        """Estimate the map privately; only if `fitted`. The cost is that of `fit`."""
        raise NotImplementedError(f"{self.text} is not fitted.")

    def describe_public_inputs(self) -> str:
        """Describe what is assumed public; empty for most front ends."""
        return ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class FittedFrontEnd:
    """A front end that is ready for use.

    Args:
        front_end: Front end.
        module: The map.
        device: Device of the map, if it is expensive; cheap maps run on the CPU.
    """

    front_end: FrontEnd
    module: nn.Module
    device: str = "cpu"

    @property
    def first_stage(self) -> FittedFrontEnd | None:
        """The first of two stages, or None."""
        first = self.front_end.first_stage
        return None if first is None else FittedFrontEnd(first, self.module[0], self.device)  # pyright: ignore[reportIndexIssue]

    @property
    def last_module(self) -> nn.Module:
        """The map of the last stage."""
        return self.module if self.front_end.first_stage is None else self.module[1]  # pyright: ignore[reportIndexIssue]

    def compose_after(self, before: FittedFrontEnd | None) -> FittedFrontEnd:
        """Combine a first stage with this map, which was fitted to its output, into one map."""
        from torch import nn

        if before is None:
            return self
        return FittedFrontEnd(
            self.front_end, nn.Sequential(before.module, self.module), before.device
        )

    @property
    def used_device(self) -> str:
        """The device on which the map runs."""
        return self.device if self.front_end.costly else "cpu"

    @property
    def digest(self) -> str:
        """A hash of the map: equal digests map records alike."""
        import numpy as np

        description = f"{self.front_end.text} {self.front_end.version} {self.used_device}"
        found = hashlib.sha256(description.encode())
        for name, value in self.module.state_dict().items():
            found.update(name.encode() + np.ascontiguousarray(value.cpu().numpy()).tobytes())
        return found.hexdigest()


def prepare_front_end(front_end: FrontEnd, shape: Shape, device: str = "cpu") -> FittedFrontEnd:
    """Prepare a front end that needs no fit."""
    assert not front_end.fitted
    return FittedFrontEnd(front_end, front_end.ready_module(shape), device)


FRONT_ENDS = Registry("front end", FrontEnd, "pasearch.data.front_ends")


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class Raw(FrontEnd):
    """The unchanged record."""

    name: ClassVar[str] = "raw"
    description_template: ClassVar[str] = "the unchanged record"

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
            raise UsageError(
                f"Front end {self.text} is larger than an image of shape {shape}: use raw."
            )
        return (*channels, *sides)

    def module(self, shape: Shape) -> nn.Module:
        """Build the pooling module; (height, width) counts as one image of a batch of channels."""
        from torch import nn

        return nn.MaxPool2d(self.size)


class CentredFrontEnd(FrontEnd):
    """The output of another front end minus its mean, which is estimated privately."""

    __slots__ = ()

    fitted: ClassVar[bool] = True
    shifts_features: ClassVar[bool] = True
    costly: ClassVar[bool] = False
    learned: ClassVar[bool] = False

    @property
    @abstractmethod
    def first_stage(self) -> FrontEnd:
        """The other front end: it bounds the norm of every record by `ROW_NORM`."""

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
        """Estimate the mean of every direction privately."""
        from pasearch.data.projections import fit_centring

        return fit_centring(given)


class ShiftedFrontEnd(FrontEnd):
    """A front end that shifts and scales every feature alone, with estimated parameters."""

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
    """Every feature minus its mean, divided by its standard deviation, both estimated privately."""

    name: ClassVar[str] = "standardise"
    description_template: ClassVar[str] = "standardised features"

    def fitted_module(self, given: FitInput) -> nn.Module:
        """Estimate both moments of every feature privately."""
        from pasearch.data.projections import fit_moments

        return fit_moments(given)


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class Centred(ShiftedFrontEnd):
    """Every feature minus its mean, divided by the root of its deviation, from private means.

    Only means are released, with the schema's bound on a record's norm, so they are more accurate
    than those of `standardise`. Their proof is that of the means of `pasearch features`.
    """

    name: ClassVar[str] = "centred"
    description_template: ClassVar[str] = "privately standardised features"

    def fitted_module(self, given: FitInput) -> nn.Module:
        """Estimate the mean of every feature privately."""
        from pasearch.data.projections import build_centring_map, estimate_means

        return build_centring_map(estimate_means(given), given.x.shape[1:])


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class CentredPairs(FrontEnd):
    """The output of `centred` for a row of a table, and products of two of its columns.

    Both use the same means, so the products have no additional privacy cost.

    Args:
        pairs: Number of products: those of the columns with the largest variances.
    """

    name: ClassVar[str] = "centred_pairs"
    description_template: ClassVar[str] = (
        "privately standardised features and {pairs:,} pairwise products of columns"
    )
    fitted: ClassVar[bool] = True
    shifts_features: ClassVar[bool] = True
    pairs: int = 256

    def __post_init__(self) -> None:
        check_positive_integer("pairs", self.pairs, most=MAX_PAIRS)

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise UsageError(
                f"Front end {self.text} requires rows of a table: these records have shape "
                f"{shape}. Use centred, or whitened_centred for images."
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
    """The coordinates of a record along the leading components of privately estimated moments.

    Args:
        components: Number of components, 1 or more; those beyond the number of features are 0.
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
                f"{MAX_PCA_FEATURES:,}. Use max_pool or raw."
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
    """The scattering transform (J = 2, 8 angles, order 2), normalised by groups in each record."""

    name: ClassVar[str] = "scattering"
    description_template: ClassVar[str] = "scattering coefficients"
    costly: ClassVar[bool] = True

    def output_shape(self, shape: Shape) -> Shape:
        """Return (81 times the channels, a quarter of the sides)."""
        *channels, height, width = check_image_shape(self, shape)
        if not min(height, width) >= MIN_SIDE:
            raise UsageError(
                f"Front end {self.text} needs images of {MIN_SIDE} x {MIN_SIDE} pixels or "
                f"more: these records have shape {shape}."
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
    """Scattering and patches of an image, whitened along directions of synthetic images.

    Args:
        views: Number of views: 1, or 2 for the mean of an image and its mirror image. 2 suits
            photographs, not digits, whose mirror images are other symbols.
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
                f"Front end {self.text}: images of shape {shape} are too large for it: use "
                "scattering, or smaller images."
            )
        return (count_directions(coefficients),)

    def seconds(self, shape: Shape, records: int) -> float:
        """Estimate the seconds of coefficients and directions, for synthetic images too."""
        from pasearch.data import patches
        from pasearch.data.whitening import count_synthetic_images

        channels, *sides = check_image_shape(self, shape if len(shape) == 3 else (1, *shape))
        places = math.prod(max(0, side - patches.PATCH_SIDE + 1) for side in sides)
        operations = 2.0 * patches.PATTERN_COUNT * patches.PATCH_SIDE**2 * channels * places
        each = SECONDS_PER_NUMBER * math.prod(shape) + SECONDS_PER_OPERATION * operations
        (kept,) = self.output_shape(shape)
        count = math.prod(Scattering().output_shape(shape)) + patches.OUTPUT_NUMBERS
        made = count_synthetic_images(count)
        # On one core: the Gram matrix of all synthetic images, and its eigenvectors.
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
    """The output of `whitened` minus its mean, which is estimated privately.

    Args:
        views: Number of views of `whitened`: 1 or 2.
    """

    name: ClassVar[str] = "whitened_centred"
    views: int = 1

    def __post_init__(self) -> None:
        Whitened(self.views)

    @property
    def first_stage(self) -> FrontEnd:
        return Whitened(self.views)


def check_image_shape(front: FrontEnd, shape: Shape) -> Shape:
    """Return the shape of records if they are images.

    Raises:
        UsageError: They are not images.
    """
    if len(shape) not in (2, 3):
        raise UsageError(
            f"Front end {front.text} needs images, (height, width) or (channels, height, width); "
            f"these records have shape {shape}. Use raw, standardise or pca."
        )
    return shape
