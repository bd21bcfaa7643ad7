"""Data augmentation: several views of each record, whose gradients are averaged before clipping.

    g_i = (1 / K) sum over views v of grad loss(v(x_i)),   then clipped: sensitivity C, as for one

Views are shifts of up to `shift` pixels, padded with 0, and mirror images. They are drawn from the
key of the step, independently of the data.

Source: De et al. 2022 (augmentation multiplicity). Proof: docs/guarantees/bounding.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pasearch.accounting.checks import (
    check_boolean,
    check_nonnegative_integer,
    check_positive_integer,
)
from pasearch.errors import UsageError
from pasearch.registry import FieldChecks, Registry, Stage

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


MAX_VIEWS = 1000
"""Maximum number of views: each is one more forward and backward pass of its record."""


def _check_views(name: str, value: object) -> int:
    views = check_positive_integer(name, value)
    if not views <= MAX_VIEWS:
        raise UsageError(
            f"{name} is {views:,}: expected at most {MAX_VIEWS:,}; a step takes as many times as "
            "long. The usual value is 4."
        )
    return views


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation(Stage):
    """Random shifts and mirror images of an image record.

    Args:
        views: Number of views K, 1 to `MAX_VIEWS`.
        shift: Maximum shift in each direction, pixels, 0 or more; below the image's side
            (`check_fits`).
        flip: Whether half of the views are mirrored left to right.
    """

    name: ClassVar[str] = "shifted-views"
    named: ClassVar[bool] = False
    checks: ClassVar[FieldChecks] = {
        "views": _check_views,
        "shift": check_nonnegative_integer,
        "flip": check_boolean,
    }
    views: int = 4
    shift: int = 2
    flip: bool = False

    def check_fits(self, shape: tuple[int, ...]) -> None:
        """Refuse records that have no such views; called before anything is charged.

        Args:
            shape: Shape of one record after preprocessing.

        Raises:
            UsageError: Records are not images, or a shift is as large as an image.
        """
        if len(shape) not in (2, 3):
            raise UsageError(
                f"augmentation is for images, and these records have shape {tuple(shape)}: "
                "leave it out, or leave out the front end."
            )
        height, width = shape[-2:]
        if not self.shift < min(height, width):
            raise UsageError(
                f"augmentation: shift is {self.shift:,} pixels, and these images have {height} x "
                f"{width}: a view would show nothing. Take {min(height, width) - 1} or less; the "
                "usual value is 2."
            )

    def apply(self, x: Tensor, generator: np.random.Generator) -> Tensor:
        """Compute K views of every record, (batch * K, ...); those of one record are adjacent.

        Args:
            x: Images, (batch, height, width) or (batch, channels, height, width).
            generator: Random generator of this step.

        Raises:
            UsageError: Records are not images, or a shift is as large as an image.
        """
        import torch

        self.check_fits(tuple(x.shape[1:]))
        count, height, width = len(x) * self.views, x.shape[-2], x.shape[-1]
        shifts = torch.from_numpy(
            generator.integers(-self.shift, self.shift, size=(2, count), endpoint=True)
        ).to(x.device)
        rows = torch.arange(height, device=x.device) + shifts[0][:, None]
        columns = torch.arange(width, device=x.device) + shifts[1][:, None]
        inside = _is_inside(rows, height)[:, :, None] & _is_inside(columns, width)[:, None, :]
        rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
        if self.flip:
            mirrored = torch.from_numpy(generator.random(count) < 0.5).to(x.device)
            columns = torch.where(mirrored[:, None], width - 1 - columns, columns)
        images = x if x.ndim == 4 else x[:, None]
        records = torch.arange(len(x), device=x.device).repeat_interleave(self.views)
        channels = torch.arange(images.shape[1], device=x.device)
        views = images[
            records[:, None, None, None],
            channels[None, :, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]
        views = torch.where(inside[:, None], views, torch.zeros_like(views))
        return views if x.ndim == 4 else views[:, 0]

    def describe(self) -> str:
        pixels = "pixel" if self.shift == 1 else "pixels"
        moves = [f"moved by up to {self.shift:,} {pixels}"] if self.shift else []
        moves += ["mirrored at random"] if self.flip else []
        how = f", {' and '.join(moves)}" if moves else ""
        many = f"{self.views:,} views of each record{how}"
        return f"{many}; their gradients averaged before the clip"


AUGMENTATIONS = Registry(
    "augmentation", Augmentation, "pasearch.training.augmentation", default=Augmentation.name,
    example="{ views = 4, shift = 2, flip = false }",
)  # fmt: skip
AUGMENTATIONS.register(Augmentation)


def _is_inside(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)
