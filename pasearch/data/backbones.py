"""Public backbones: networks pretrained on public data, frozen and used as feature extractors.

    front_end = { weights = "backbone.pt", module = "small" }

The output of a backbone is whitened like scattering coefficients (`data.whitening`): it is
projected on directions learned from synthetic images, rescaled, and normalised. Unless
`centred = false`, its privately estimated mean is then subtracted.

The weights come from a file that the user declares public, and they never change. Each record is
transformed alone, so a backbone has no privacy cost. If the weights were trained on the private
records, no guarantee of this package would hold. The privacy card states that they are assumed
public, with the hash of the file.

Source: Tramer and Boneh 2021, section 6 (transfer); De et al. 2022, section 5.
"""

from __future__ import annotations

import hashlib
import io
import math
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from pasearch.accounting.checks import check_positive_integer
from pasearch.data.front_ends import CentredFrontEnd, FrontEnd, Shape
from pasearch.data.whitening import Whitening, count_directions, count_synthetic_images
from pasearch.errors import UsageError
from pasearch.files import check_uncompressed, read_bytes

# Means and standard deviations of red, green and blue: those that torchvision's weights expect.
CHANNEL_MEANS = (0.485, 0.456, 0.406)
CHANNEL_DEVIATIONS = (0.229, 0.224, 0.225)
MAX_WEIGHTS_BYTES = 2**30
"""Maximum size of a file of weights, in bytes."""
MAX_BATCH_PIXELS = 2**21
"""Maximum number of pixels in one pass through a backbone: it limits the memory."""
# Range of the sides of an image for a backbone, pixels.
MIN_IMAGE_SIDE = 16
MAX_IMAGE_SIDE = 512


class SmallConvNet(nn.Module):
    """Network of five convolutions for images with sides of 16 to 64 pixels, with 1152 outputs.

    The outputs are averages of activations: of the second stage over a 4 x 4 grid, and of the third
    stage over a 2 x 2 grid.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(_build_block(3, 24), nn.MaxPool2d(2))
        self.second = nn.Sequential(_build_block(24, 48), _build_block(48, 48))
        self.third = nn.Sequential(nn.MaxPool2d(2), _build_block(48, 96), _build_block(96, 96))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs, (batch, 3, height, width) to (batch, 1152)."""
        middle = self.second(self.first(x))
        last = self.third(middle)
        pooled = functional.adaptive_avg_pool2d
        return torch.cat([pooled(middle, 4).flatten(1), pooled(last, 2).flatten(1)], dim=1)


def _build_block(inputs: int, outputs: int) -> nn.Sequential:
    """Build a 3 x 3 convolution, batch normalisation and ReLU."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())


def _make_torchvision_builder(name: str, head: str) -> Callable[[], nn.Module]:
    """Return a function that builds a torchvision model without its output layers."""

    def build_module() -> nn.Module:
        import torchvision

        module = torchvision.models.get_model(name, weights=None)
        setattr(module, head, nn.Identity())
        return module

    return build_module


MODULES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "small": (SmallConvNet, 1152),
    "resnet18": (_make_torchvision_builder("resnet18", "fc"), 512),
    "resnet34": (_make_torchvision_builder("resnet34", "fc"), 512),
    "resnet50": (_make_torchvision_builder("resnet50", "fc"), 2048),
    "mobilenet_v3_small": (_make_torchvision_builder("mobilenet_v3_small", "classifier"), 576),
    "efficientnet_b0": (_make_torchvision_builder("efficientnet_b0", "classifier"), 1280),
}
"""Function that builds each network, and the number of its outputs per image."""


def build_backbone_module(module: str) -> nn.Module:
    """Build a backbone with random initial weights."""
    return MODULES[check_module_name(module)][0]()


def check_module_name(module: object) -> str:
    """Return the name of a network after checking that it is a key of `MODULES`.

    Raises:
        UsageError: There is no module of that name.
    """
    if not isinstance(module, str) or module not in MODULES:
        raise UsageError(
            f"Backbone {module!r} is not known: expected one of {', '.join(MODULES)} ('small' is "
            "trained by `pasearch pretrain`, the others are models of torchvision)."
        )
    return module


class Backbone(Whitening):
    """Whitened output of a backbone, with norm `ROW_NORM`.

    Guarantee: a record's output depends on that record alone, even if training mode is requested.

    Args:
        shape: Shape of a record, (height, width) or (channels, height, width).
        module: Name of the network, a key of `MODULES`.
        side: Side of the resized images, pixels; 0 does not resize.
    """

    def __init__(self, shape: Shape, module: str, side: int):
        count = MODULES[check_module_name(module)][1]
        super().__init__(shape, count, count_directions(count))
        self.side, self.network = side, build_backbone_module(module).requires_grad_(False)
        self.train(False)
        for name, parameter in list(self.network.named_parameters()):
            *path, last = name.split(".")
            owner = self.network.get_submodule(".".join(path))
            delattr(owner, last)
            owner.register_buffer(last, parameter.detach())  # a buffer is never trained

    def train(self, mode: bool = True) -> Backbone:
        """Stay in evaluation mode: in training mode, batch normalisation would mix records."""
        return super().train(False)

    def compute_features(self, x: Tensor) -> Tensor:
        """Compute the backbone's output before whitening, (batch, *shape) to (batch, outputs)."""
        pixels = self.side**2 or math.prod(self.shape[-2:])
        parts = x.split(max(1, MAX_BATCH_PIXELS // pixels))
        found = [self.network(prepare_images(part, self.shape, self.side)) for part in parts]
        return torch.cat([part.flatten(1) for part in found])


def prepare_images(x: Tensor, shape: Shape, side: int = 0) -> Tensor:
    """Convert images to the input of a backbone: three channels, normalised with public constants.

    Args:
        x: Images, (batch, *shape), in [0, 1]; grey images are repeated in three channels.
        shape: Shape of a record.
        side: Side of the resized images, pixels; 0 does not resize.
    """
    images = x if len(shape) == 3 else x[:, None]
    images = images.expand(-1, 3, -1, -1)
    if side:
        images = functional.interpolate(images, (side, side), mode="bilinear", antialias=True)
    mean, deviation = (
        x.new_tensor(each).view(3, 1, 1) for each in (CHANNEL_MEANS, CHANNEL_DEVIATIONS)
    )
    return (images - mean) / deviation


@dataclass(frozen=True, slots=True)
class PublicBackbone(FrontEnd):
    """Front end that applies a public backbone.

    Its string `text` contains the hash of the weights. The path of their file is stored in
    `_WEIGHTS_PATHS` when the user's table is parsed.

    Args:
        module_name: Name of the network, a key of `MODULES`.
        side: Side of the resized images, pixels; 0 does not resize.
        sha256: SHA-256 hash of the file of weights.
    """

    name: ClassVar[str] = "backbone"
    costly: ClassVar[bool] = True
    learned: ClassVar[bool] = True
    module_name: str
    side: int
    sha256: str

    def describe(self) -> str:
        resized = f" of images resized to {self.side} x {self.side}" if self.side else ""
        return (
            f"the output of a {self.module_name} backbone{resized}, assumed public (SHA-256 "
            f"{self.sha256[:12]})"
        )

    def describe_public_inputs(self) -> str:
        return (
            f"the weights of a {self.module_name} backbone (SHA-256 {self.sha256}), which must not "
            "be trained on these records"
        )

    def output_shape(self, shape: Shape) -> Shape:
        """Return the number of whitening directions: one output per direction."""
        image = (1, *shape) if len(shape) == 2 else shape
        sides = image[1:] if len(image) == 3 else (0,)
        if (
            image[0] not in (1, 3)
            or not MIN_IMAGE_SIDE <= min(sides) <= max(sides) <= MAX_IMAGE_SIDE
        ):
            raise UsageError(
                f"A backbone needs images of 1 or 3 channels with sides of {MIN_IMAGE_SIDE} to "
                f"{MAX_IMAGE_SIDE} pixels: these records have shape {tuple(shape)}."
            )
        return (count_directions(MODULES[self.module_name][1]),)

    def module(self, shape: Shape) -> nn.Module:
        return Backbone(shape, self.module_name, self.side)

    def build_ready_module(self, shape: Shape) -> nn.Module:
        """Build the backbone with its weights, and with directions learned from synthetic images.

        Raises:
            UsageError: The file of weights is unknown in this process, was changed, or does not
                fit.
        """
        made = Backbone(shape, self.module_name, self.side)
        made.network.load_state_dict(_load_weights(self))
        made.learn(count_synthetic_images(max(math.prod(shape), 3 * self.side**2)))
        return made


@dataclass(frozen=True, slots=True)
class CentredBackbone(CentredFrontEnd, PublicBackbone):
    """Front end that subtracts the privately estimated mean from a backbone's output."""

    name: ClassVar[str] = "backbone_centred"

    @property
    def first_stage(self) -> FrontEnd:
        return PublicBackbone(self.module_name, self.side, self.sha256)


BACKBONE_CLASSES = {kind.name: kind for kind in (PublicBackbone, CentredBackbone)}

_WEIGHTS_PATHS: dict[str, Path] = {}
"""Path of each registered file of weights, by its hash."""

REQUIRED_BACKBONE_KEYS = {"weights", "module"}
"""Keys that the table of a backbone must have."""


def parse_backbone_table(table: Mapping[str, Any], folder: Path | None = None) -> PublicBackbone:
    """Parse a user's table that describes a backbone, and check its file of weights.

    Args:
        table: Values of weights and module, and optionally of side and centred.
        folder: Folder of relative paths; None: the current directory.

    Raises:
        UsageError: The table has another key, the file is missing, or the weights do not fit the
            module.
    """
    known = {*REQUIRED_BACKBONE_KEYS, "side", "centred"}
    if set(table) - known or not set(table) >= REQUIRED_BACKBONE_KEYS:
        raise UsageError(
            f"front_end has the keys {', '.join(map(str, table)) or '(none)'}: expected weights "
            "(a file) and module, and optionally side (pixels) and centred (true or false)."
        )
    weights, side, centred = table["weights"], table.get("side", 0), table.get("centred", True)
    if not isinstance(weights, (str, Path)) or not isinstance(centred, bool):
        raise UsageError("front_end: expected a path in `weights`, and true or false in `centred`.")
    if side != 0 and not MIN_IMAGE_SIDE <= check_positive_integer("side", side) <= MAX_IMAGE_SIDE:
        raise UsageError(f"side is {side}: expected {MIN_IMAGE_SIDE} to {MAX_IMAGE_SIDE} pixels.")
    path = ((folder or Path()) / weights).absolute()
    sha256 = hashlib.sha256(_read_weights_file(path)).hexdigest()
    _WEIGHTS_PATHS[sha256] = path
    kind = CentredBackbone if centred else PublicBackbone
    found = kind(check_module_name(table["module"]), side, sha256)
    _load_weights(found)
    return found


def parse_backbone_text(text: str) -> PublicBackbone | None:
    """Parse the string of a backbone's front end; None if it is not such a string."""
    name, *parts = text.split(":")
    if name not in BACKBONE_CLASSES or len(parts) != 3:
        return None
    module, side, sha256 = parts
    sides = ("0", *map(str, range(MIN_IMAGE_SIDE, MAX_IMAGE_SIDE + 1)))
    is_hash = len(sha256) == 64 and set(sha256) <= set(string.hexdigits.lower())
    if module not in MODULES or side not in sides or not is_hash:
        return None
    return BACKBONE_CLASSES[name](module, int(side), sha256)


def _read_weights_file(path: Path) -> bytes:
    return read_bytes(path, "a backbone's weights (.pt)", most=MAX_WEIGHTS_BYTES)


def _load_weights(front_end: PublicBackbone) -> dict[str, Tensor]:
    """Load the weights of a backbone from its file, without those of the removed output layers.

    Raises UsageError if the file is unknown in this process, was changed, or does not fit.
    """
    path = _WEIGHTS_PATHS.get(front_end.sha256)
    if path is None:
        raise UsageError(
            f"The weights of {front_end.text} are not known here: give their file, "
            'front_end = { weights = "...", module = "..." }.'
        )
    content = _read_weights_file(path)
    if hashlib.sha256(content).hexdigest() != front_end.sha256:
        raise UsageError(f"{path} was changed since it was loaded: give it again.")
    try:
        check_uncompressed(content)
        stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - an invalid file may raise anything
        stored = None
    wanted = build_backbone_module(front_end.module_name).state_dict()
    fits = isinstance(stored, dict) and all(
        isinstance(stored.get(name), Tensor) and stored[name].shape == value.shape
        for name, value in wanted.items()
    )
    if not fits:
        raise UsageError(
            f"{path} does not hold the weights of {front_end.module_name}: expected a file "
            "of `pasearch pretrain`, or of torch.save with the module's state_dict()."
        )
    assert isinstance(stored, dict)
    found = {name: stored[name].to(value.dtype) for name, value in wanted.items()}
    if not all(bool(torch.isfinite(value).all()) for value in found.values()):
        raise UsageError(f"{path} has weights that are not finite: train the backbone again.")
    return found
