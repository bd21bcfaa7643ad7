"""Check that the matrix library rounds a row of a product independently of its position.

Source: docs/rules.md, rule 11. Proof: docs/guarantees/dp-sgd.md ("The number of rows").
"""

from __future__ import annotations

from functools import cache

import torch

from pasearch.errors import UsageError
from pasearch.runs import processor


@cache
def check_row_rounding() -> None:
    """Check on public numbers that MKL rounds a row of a product independently of its position.

    Raises:
        UsageError: It does not, so the contribution of a record would depend on other records.
    """
    if not torch.backends.mkl.is_available():
        return
    row, weights = torch.linspace(-1.0, 2.0, 33), torch.linspace(-3.0, 1.0, 9 * 33).view(9, 33)
    places = torch.zeros(64, 33).add_(row.sin_())
    out = torch.nn.functional.linear(places, weights.sin_()[:3])
    back = places[:, :9].contiguous() @ weights
    if not all(bool((each == each[:1]).all()) for each in (out, back)):
        raise UsageError(
            "On this machine torch rounds a record's numbers differently by its place in a batch, "
            "and the guarantee needs that it does not. Start Python again, and import pasearch "
            "before you compute with torch; or set "
            f"{processor.MKL_MODE_VARIABLE}={processor.MKL_MODE} before "
            "Python starts. (MKL, which multiplies for torch, takes it before its first product "
            "alone.)"
        )
