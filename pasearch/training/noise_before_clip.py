"""Per-example noise before clipping: noise is added to the gradient of each record.

    g_i  ->  clip to norm B  ->  add N(0, (sigma B)^2 I)  ->  clip to norm C  ->  sum over the batch

Every sampled record adds such a term; for a null record it is the clipped noise. The privacy
analysis treats the sample as public. sigma is the noise multiplier: the standard deviation of the
noise divided by the sensitivity B. Lin et al. call the standard deviation sigma C, so their sigma
is sigma B / C.

In the paper there is no first clip. Then there is no privacy guarantee, so `record_bound=None` is
allowed for declared-public data only.

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

MAX_FORMED_VALUES = 2**21
"""Maximum number of gradient entries that are formed at once: 8 MiB, which fit into caches."""

MAX_FINITE_NORM = 2.0**64
"""Maximum norm that counts as finite. The clipping factor of a larger norm would be a subnormal
float32, with so few digits that a gradient could exceed its clipping norm.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseBeforeClip(Stage):
    """Settings of noise on the gradient of each record, before it is clipped to norm C.

    Args:
        record_bound: Clipping norm B before the noise. None: no first clip, and no guarantee.
    """

    name: ClassVar[str] = "noise-before-clip"
    named: ClassVar[bool] = False
    checks: ClassVar[FieldChecks] = {
        "record_bound": lambda name, value: None if value is None else check_clip_norm(name, value)
    }
    record_bound: float | None = 1.0

    def describe(self) -> str:
        bound = self.record_bound
        size = "not clipped" if bound is None else f"clipped to norm {bound:g}"
        return f"per-example noise on each gradient ({size} before), then clipping"


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
    """Compute the sum over sampled records of clip(clipped gradient + noise).

    Guarantee: each term depends only on its own record and its own noise. Before the noise, the
    gradient has a norm of at most B; it is 0 for a null record, and if its norm is not finite or
    above `MAX_FINITE_NORM`. Each term is private, so the sum is post-processing, with any rounding.

    Args:
        network: Network accepted by `per_example.validate`.
        x: Records, (batch, ...).
        loss: Function from a slice of the records to their loss function.
        mask: Bool, (batch,); False for null records.
        order: Settings with the clipping norm B before the noise.
        clip: Clipping method after the noise, with norm C.
        standard_deviation: Standard deviation of the noise in each coordinate.
        stream: Random stream of the noise, used by no other trial.
        step: Index of the step, from 0.
        buffers: Buffers to whose views the sums are added. None: new buffers.

    Returns:
        Sums, one tensor per trainable parameter, in the network's order.
    """
    import torch

    from pasearch.training.per_example import PreparedNetwork, form_gradients
    from pasearch.training.record_sums import SumBuffers

    prepared = PreparedNetwork.of(network)
    parameters = prepared.parameters
    buffers = SumBuffers(parameters) if buffers is None else buffers
    size = sum(p.numel() for p in parameters)
    total = torch.zeros(size, device=x.device)
    rows = max(1, MAX_FORMED_VALUES // size)
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
    """Compute the L2 norm of each row; infinite above `MAX_FINITE_NORM`."""
    import torch

    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).to(rows.dtype)
    return norms.masked_fill(norms > MAX_FINITE_NORM, torch.inf)
