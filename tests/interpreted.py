"""The kernels of a GPU, interpreted on a processor: what they compute, without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pasearch.gpu import bits as gpu
from pasearch.training import trainer


@contextmanager
def kernels() -> Iterator[Any]:
    """Let every device have kernels; where there is a GPU, they are not interpreted, nor tested so.

    Yields:
        The module `pasearch.gpu.kernels`.
    """
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels are compiled here, for a GPU")
    from pasearch.gpu import kernels as gpu_kernels

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "kernels", lambda _: gpu_kernels)
        patch.setattr(trainer, "gpu_code", lambda _: True)
        yield gpu_kernels
