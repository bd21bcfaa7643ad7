"""Noise before the clip: each record's gradient is bounded, made noisy on its own, then clipped.

    g_i  ->  bounded to norm B  ->  + N(0, (sigma B)^2 I)  ->  clipped to norm C;  summed

Every drawn slot adds such a term, a null record's too (of the gradient 0): so nothing but the
sampling coins, which are taken as revealed, tells who is there. sigma is the noise multiplier,
noise over sensitivity B. Lin et al. write the noise as sigma C; theirs is sigma C / B here.

The paper's own order has no B. Then the gradients are not bounded before the noise, and there is no
guarantee: `record_bound=None` is for declared-public data.

Source: Lin et al. ("AC"); proof: docs/guarantees/noise-before-clip.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pasearch.registry import FieldChecks, Registry, Stage
from pasearch.runs.keys import Stream
from pasearch.training.clipping import ClippingMethod, FlatClipping, check_clip_norm
from pasearch.training.noise import Noise, draw_device_normals

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pasearch.training.per_example import Loss, PreparedNetwork
    from pasearch.training.record_sums import SumBuffers

MAX_FORMED_NUMBERS = 2**21
"""Most numbers in the gradients that are formed at once: 8 MiB, which caches hold."""

MAX_FINITE_NORM = 2.0**64
"""The largest norm that counts as finite: its square is the largest float32. Beyond, a factor would
be subnormal and so coarse that a gradient could exceed its bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseBeforeClip(Stage):
    """Noise on each record's bounded gradient, before the clip.

    Args:
        record_bound: B, of a gradient before its noise; None leaves it unbounded: no guarantee.
    """

    name: ClassVar[str] = "noise-before-clip"
    named: ClassVar[bool] = False
    checks: ClassVar[FieldChecks] = {
        "record_bound": lambda name, value: None if value is None else check_clip_norm(name, value)
    }
    record_bound: float | None = 1.0

    def describe(self) -> str:
        bound = self.record_bound
        size = "which is not bounded" if bound is None else f"bounded to norm {bound:g}"
        return f"noise on each record's own gradient, {size} before, and the clip after the noise"


ORDERS = Registry(
    "noise_before_clip", NoiseBeforeClip, "pasearch.training.noise_before_clip",
    default=NoiseBeforeClip.name, example="{ record_bound = 1.0 }",
)  # fmt: skip
ORDERS.register(NoiseBeforeClip)


def sum_noisy_clipped_gradients(
    network: nn.Module | PreparedNetwork,
    x: Tensor,
    loss: Callable[[slice], Loss],
    mask: Tensor,
    *,
    order: NoiseBeforeClip,
    clip: ClippingMethod,
    standard_deviation: float,
    stream: Stream,
    step: int,
    buffers: SumBuffers | None = None,
) -> list[Tensor]:
    """Return the sum over drawn slots of clip(bounded gradient + noise).

    Guarantee: a slot's term depends on its own record and its own noise alone, and its gradient has
    norm at most B before the noise; a null record's, or one that is not finite, is 0 (as is one
    beyond `LARGEST`).

    Network, x, mask and sums are as of `clipped_sum_and_counts`, without views; `loss` goes from a
    slice of the records to their loss. The order has B, or None on public data, and the clip C;
    the standard deviation is that of each coordinate's noise. No two trials share a stream, and no
    two steps of it their noise. The sums are added to the views of `buffers`, if given. Each term
    is private on its own, so their sum is post-processing, however it is rounded.
    """
    import torch

    from pasearch.training.per_example import PreparedNetwork, form_gradients
    from pasearch.training.record_sums import SumBuffers

    prepared = PreparedNetwork.of(network)
    parameters = prepared.parameters
    buffers = SumBuffers(parameters) if buffers is None else buffers
    size = sum(p.numel() for p in parameters)
    total = torch.zeros(size, device=x.device)
    rows = max(1, MAX_FORMED_NUMBERS // size)
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        gradients = form_gradients(prepared, x[part], loss(part))
        usable = mask[part] & torch.isfinite(gradients).all(dim=1)
        gradients.masked_fill_(~usable[:, None], 0.0)
        if order.record_bound is not None:
            bound = FlatClipping(clip_norm=order.record_bound)
            gradients *= bound.factors(_compute_norms(gradients))[:, None]
        for place, row in enumerate(gradients, start):
            own = stream.child("record", place)
            Noise(draw_device_normals(x.device, size, own, step)).add_to([row], standard_deviation)
        total += clip.factors(_compute_norms(gradients)) @ gradients
    sums = total.split([p.numel() for p in parameters])
    for view, part in zip(buffers.views, sums, strict=True):
        view += part.view_as(view)
    return buffers.views


def _compute_norms(rows: Tensor) -> Tensor:
    import torch

    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).to(rows.dtype)
    return norms.masked_fill(norms > MAX_FINITE_NORM, torch.inf)
