"""Data augmentation: random views of each record, whose gradients are averaged before clipping.

    g_i = (1 / K) sum over K views v of grad loss(v(x_i))

g_i is clipped, so the sensitivity C is that of one view. A view is the image shifted by up to
`shift` pixels, padded with 0, and possibly mirrored. Views are drawn independently of the data.

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
"""Maximum number of views; each is a forward and backward pass."""


def _check_views(name: str, value: object) -> int:
    """Check a number of views, and return it."""
    views = check_positive_integer(name, value)
    if not views <= MAX_VIEWS:
        raise UsageError(
            f"{name} is {views:,}: expected at most {MAX_VIEWS:,}; a step takes as many times as "
            "long. The usual value is 4."
        )
    return views


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation(Stage):
    """Random shifted and mirrored views of an image.

    Args:
        views: Number of views K, 1 to `MAX_VIEWS`.
        shift: Maximum shift in each direction, pixels, from 0 to the side of the image minus 1.
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
        """Check that records have such views; called before anything is charged.

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
        """Draw K views of every record, (batch * K, ...); those of one record are adjacent.

        Args:
            x: Images, (batch, height, width) or (batch, channels, height, width).
            generator: Random generator, used for this step only.

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
    """Mark the indices that are in [0, size)."""
    return (places >= 0) & (places < size)
