"""Where a library's product of float32 matrices lies, and what keeps it to one thread.

| whose | how many threads it has | used |
|---|---|---|
| MKL's, within torch | a number for every thread that calls it | where torch has it |
| OpenBLAS', within scipy | one number for the process, so those who call it take turns | else |

Both are `sgemm` of BLAS: columns side by side, and addresses for arguments. MKL takes a tenth less
time of products of a hundred records.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pasearch.errors import UsageError
from pasearch.runs import processor

Block = Callable[[], AbstractContextManager[None]]

_ALONE = threading.Lock()
"""Held while a process has one thread for OpenBLAS."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product of matrices in machine code.

    Args:
        address: Of BLAS' `sgemm`, in this process.
        in_process: Around all of a sum, of however many threads: nobody else's are counted then.
        in_thread: Around the part of each thread.
        of_halves: Of a product of bfloat16 matrices that is so fast that three of them pay for one
            of float32; 0 where there is none.
    """

    address: int
    in_process: Block
    in_thread: Block
    of_halves: int = 0


@cache
def product() -> Product:
    """Return the fastest that there is: the same for one version of torch and kind of machine."""
    return of_torch() or of_scipy()


@cache
def check_alike() -> None:
    """See that MKL rounds a row's products alike wherever it stands: tried, on public numbers.

    Raises:
        UsageError: It does not: what a record adds would depend on how many others are drawn.
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
            f"before you compute with torch; or set {processor.WAY}={processor.ALIKE} before "
            "Python starts. (MKL, which multiplies for torch, takes it before its first product "
            "alone.)"
        )


def of_torch() -> Product | None:
    """Return MKL's product; None where torch was built without it."""
    if not torch.backends.mkl.is_available():
        return None
    for path in sorted((Path(torch.__file__).parent / "lib").glob("*torch_cpu.*")):
        try:
            library = ctypes.CDLL(str(path))
            address = _address(library.sgemm_)
            limit: Any = library.MKL_Set_Num_Threads_Local
        except (OSError, AttributeError):
            continue  # its names are hidden in some builds

        @contextmanager
        def one(limit: Any = limit) -> Iterator[None]:
            before = limit(1)  # 0: what the process has
            try:
                yield
            finally:
                limit(before)

        of_halves = getattr(library, "gemm_bf16bf16f32_", None) if has_tiles() else None
        halves = 0 if of_halves is None else _address(of_halves)
        return Product(address, nullcontext, one, halves) if address else None
    return None


@cache
def has_tiles() -> bool:
    """Whether this processor multiplies tiles of bfloat16 (AMX)."""
    asked = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(asked and asked())


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def of_scipy() -> Product:
    """Return OpenBLAS' product: scipy's, which its own cython modules use."""
    from numba.extending import get_cython_function_address

    address = get_cython_function_address("scipy.linalg.cython_blas", "sgemm")
    return Product(address, _one_thread, nullcontext)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let every library of products have one thread within the block."""
    with _ALONE:
        before = [each.get_num_threads() for each in _libraries()]
        for each in _libraries():
            each.set_num_threads(1)
        try:
            yield
        finally:
            for each, count in zip(_libraries(), before, strict=True):
                each.set_num_threads(count)


@cache
def _libraries() -> list[Any]:
    """Return the libraries of products that a process has loaded, as something sets their threads.

    One that is loaded later is another library's, and is left alone.
    """
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas").lib_controllers
