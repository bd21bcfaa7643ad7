"""Feature extractors (front ends): preprocessing of a record before the network.

| text | output | privacy cost |
|---|---|---|
| `raw` | the record | none |
| `max_pool:2` | the maximum of each square of pixels | none |
| `scattering` | a fixed wavelet transform, normalised | none |
| `whitened:1` | scattering and patches, whitened (`data.whitening`) | none |
| `backbone:...` | output of a public backbone network (`data.backbones`) | none |
| `whitened_centred:1` | `whitened` minus its mean | one Gaussian sum |
| `backbone_centred:...` | `backbone` minus its mean | one Gaussian sum |
| `standardise` | features minus their mean, divided by their deviation | one Gaussian sum |
| `centred` | features minus their mean, divided by the root of their deviation | one Gaussian sum |
| `centred_pairs:256` | `centred`, and products of two columns (`data.pairs`) | one Gaussian sum |
| `pca:60` | principal components (Analyze Gauss) | one Gaussian sum |

A front end without a privacy cost transforms each record alone, so it releases nothing. The others
are *fitted*: they release a noisy sum over a partition, once, before the first training, and the
plan charges it. Every candidate then uses the same fit, which is post-processing.

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
"""Maximum number of features d for PCA, whose matrix has d^2 entries."""

MAX_PAIRS = 8192
"""Maximum number of products of two columns."""

SECONDS_PER_NUMBER = 4.5e-7  # scattering transform of one number of an image, two AMD EPYC cores
SECONDS_PER_OPERATION = 1.2e-11  # multiplication or addition in other maps, two AMD EPYC cores
SECONDS_PER_IMAGE = 1e-3  # generation of one synthetic image, one core
MIN_SCATTERING_SIDE = 16  # minimum side of an image for scattering at two scales, pixels


class FrontEnd(Stage):
    """Feature extractor: transforms a record, scaled to [0, 1], into the input of a network.

    A subclass is a frozen dataclass with no field, or with one integer field that has a default.
    """

    __slots__ = ()

    fitted: ClassVar[bool] = False
    """Whether it is fitted to records, by a release that the plan charges."""
    least: ClassVar[int] = 1
    """Minimum of the integer field."""
    costly: ClassVar[bool] = False
    """Whether its output is expensive and therefore stored in the cache."""
    learned: ClassVar[bool] = False
    """Whether it has parameters that do not depend on the run's records. A run stores them, so that
    all its trainings, also after a resume, use the same features."""
    shifts_features: ClassVar[bool] = False
    """Whether its first outputs are the features, each shifted and scaled by itself."""
    version: ClassVar[int] = 1
    """Version of the transformation: a new version makes cached outputs invalid."""

    @property
    def text(self) -> str:
        """String in a search space, such as "max_pool:2", which `parse_front_end` parses."""
        numbers = [getattr(self, name) for name in self.field_names()]
        return ":".join(map(str, [self.name, *numbers]))

    @property
    def first_stage(self) -> FrontEnd | None:
        """The front end applied first, if this one is fitted to the output of another."""
        return None

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Return the output shape for records of this shape.

        Raises:
            UsageError: The front end does not fit records of this shape.
        """

    @abstractmethod
    def module(self, shape: Shape) -> nn.Module:
        """Build the transformation as a module; estimated or learned parameters are not set yet."""

    def build_ready_module(self, shape: Shape) -> nn.Module:
        """Build the transformation with all its parameters; not for `fitted` front ends."""
        return self.module(shape)

    def seconds(self, shape: Shape, records: int) -> float | None:
        """Estimate the time for this number of records on two CPU cores, seconds; None if unknown.

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
            form: Public layout of an encoded record, with a bound of its L2 norm; None: the bound
                is the square root of the number of features.

        Cost: `event(noise_multiplier)`, charged by the caller before the records were opened.
        """
        given = FitInput(
            x=x, valid=valid, noise_multiplier=noise_multiplier, stream=stream, form=form
        )
        return FittedFrontEnd(self, self.fit_module(given))

    def fit_module(self, given: FitInput) -> nn.Module:
        """Build the transformation with privately estimated parameters; only if `fitted`.

        Cost: that of `fit`.
        """
        raise NotImplementedError(f"{self.text} is not fitted.")

    def describe_public_inputs(self) -> str:
        """Describe the inputs that are assumed public, such as a backbone; "" if there are none."""
        return ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class FittedFrontEnd:
    """Front end with all its parameters, ready to transform records.

    Args:
        front_end: Front end.
        module: Transformation of records.
        device: Device of an expensive transformation; cheap ones run on the CPU.
    """

    front_end: FrontEnd
    module: nn.Module
    device: str = "cpu"

    @property
    def first_stage(self) -> FittedFrontEnd | None:
        """First of two stages; None if there is only one."""
        first = self.front_end.first_stage
        return None if first is None else FittedFrontEnd(first, self.module[0], self.device)  # pyright: ignore[reportIndexIssue]

    @property
    def last_module(self) -> nn.Module:
        """Transformation of the last stage."""
        return self.module if self.front_end.first_stage is None else self.module[1]  # pyright: ignore[reportIndexIssue]

    def compose_after(self, before: FittedFrontEnd | None) -> FittedFrontEnd:
        """Combine a first stage and this transformation of its output into one front end.

        Args:
            before: First stage; None: this front end has one stage, and is returned unchanged.
        """
        from torch import nn

        if before is None:
            return self
        return FittedFrontEnd(
            self.front_end, nn.Sequential(before.module, self.module), before.device
        )

    @property
    def used_device(self) -> str:
        """Device on which the transformation runs."""
        return self.device if self.front_end.costly else "cpu"

    @property
    def digest(self) -> str:
        """Hash of the transformation: front ends with equal digests have equal outputs."""
        import numpy as np

        description = f"{self.front_end.text} {self.front_end.version} {self.used_device}"
        found = hashlib.sha256(description.encode())
        for name, value in self.module.state_dict().items():
            found.update(name.encode() + np.ascontiguousarray(value.cpu().numpy()).tobytes())
        return found.hexdigest()


def prepare_front_end(front_end: FrontEnd, shape: Shape, device: str = "cpu") -> FittedFrontEnd:
    """Prepare a front end that is not fitted to records."""
    assert not front_end.fitted
    return FittedFrontEnd(front_end, front_end.build_ready_module(shape), device)


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
        """Build the pooling module; it treats a batch of (height, width) records as channels."""
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
        """Front end whose output is centred; the L2 norm of its output is at most `ROW_NORM`."""

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

    def fit_module(self, given: FitInput) -> nn.Module:
        """Build the centring with a privately estimated mean of every output."""
        from pasearch.data.projections import fit_centring

        return fit_centring(given)


class ShiftedFrontEnd(FrontEnd):
    """Base class of front ends that shift and scale each feature by privately estimated numbers."""

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

    def fit_module(self, given: FitInput) -> nn.Module:
        """Build the map with a privately estimated mean and deviation of every feature."""
        from pasearch.data.projections import fit_standardisation

        return fit_standardisation(given)


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class Centred(ShiftedFrontEnd):
    """Every feature minus its mean, divided by the root of its deviation, both from private means.

    Only means are released, and the schema bounds a record's norm, so they are more accurate than
    those of `standardise`.
    """

    name: ClassVar[str] = "centred"
    description_template: ClassVar[str] = "privately standardised features"

    def fit_module(self, given: FitInput) -> nn.Module:
        """Build the map with a privately estimated mean of every feature."""
        from pasearch.data.projections import build_centring_map, estimate_means

        return build_centring_map(estimate_means(given), given.x.shape[1:])


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class CentredPairs(FrontEnd):
    """The output of `centred` for a row of a table, and products of two of its columns.

    The products are computed from the same private means, so they have no additional privacy cost.

    Args:
        pairs: Number of products, 1 to `MAX_PAIRS`: those with the largest estimated variances.
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

    def fit_module(self, given: FitInput) -> nn.Module:
        """Build the map with a privately estimated mean of every feature."""
        from pasearch.data.pairs import build_pairs_map
        from pasearch.data.projections import estimate_means

        columns = () if given.form is None else given.form.columns
        return build_pairs_map(estimate_means(given), columns, self.pairs)


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class PrincipalComponents(FrontEnd):
    """Coordinates of a record along the principal components of private second moments.

    Args:
        components: Number of components, 1 to `MAX_PCA_FEATURES`; those beyond the number of
            features are 0.
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

    def fit_module(self, given: FitInput) -> nn.Module:
        """Build the projection on the leading eigenvectors of private second moments."""
        from pasearch.data.projections import fit_components

        return fit_components(given, self.components)


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class Scattering(FrontEnd):
    """Scattering transform (J = 2, 8 angles, order 2), normalised in groups of each record."""

    name: ClassVar[str] = "scattering"
    description_template: ClassVar[str] = "scattering coefficients"
    costly: ClassVar[bool] = True

    def output_shape(self, shape: Shape) -> Shape:
        """Return 81 times the number of channels, and a quarter of the height and of the width."""
        *channels, height, width = check_image_shape(self, shape)
        if not min(height, width) >= MIN_SCATTERING_SIDE:
            raise UsageError(
                f"Front end {self.text} needs images of {MIN_SCATTERING_SIDE} x "
                f"{MIN_SCATTERING_SIDE} pixels or more: these records have shape {shape}."
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
    """Scattering and patch features of an image, projected on whitening directions.

    The directions are learned from synthetic images, so they do not depend on the records.

    Args:
        views: Number of views of an image: 1, or 2 to average the outputs for the image and its
            mirror image. 2 suits photographs, but not digits.
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
        """Return the number of whitening directions: one output per direction."""
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
        """Estimate the time of learning the directions and of transforming records, seconds."""
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

    def build_ready_module(self, shape: Shape) -> nn.Module:
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
    """Return the shape of records after checking that they are images.

    Raises:
        UsageError: Records that do not have two or three dimensions.
    """
    if len(shape) not in (2, 3):
        raise UsageError(
            f"Front end {front.text} needs images, (height, width) or (channels, height, width); "
            f"these records have shape {shape}. Use raw, standardise or pca."
        )
    return shape
