"""What a run is bound to: its data, plan and request, this code, its libraries and the machine.

A run that was broken off is taken up where all of these are the same, and nowhere else: noise drawn
twice from one key for two different sums would give both away.

Source: docs/rules.md, rules 11 and 12.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pasearch
from pasearch.data.partitions import Dataset
from pasearch.registry import extension_files
from pasearch.runs.cluster import Cluster
from pasearch.runs.processor import processor
from pasearch.search.plan import Plan

if TYPE_CHECKING:
    from pasearch.features.plan import FeaturePlan


PACKAGE = Path(pasearch.__file__).parent
"""Whose code a run's keys are bound to: all of it."""


def fingerprint(
    dataset: Dataset,
    plan: Plan | FeaturePlan,
    device: str,
    *public: Dataset | None,
    request: bytes = b"",
) -> str:
    """Return a hash of everything the run's releases depend on; it stays in `private/`.

    Args:
        dataset: Private or declared public.
        plan: Solved.
        device: "cpu" or "cuda".
        public: Further data, declared public.
        request: What was asked for, as it is kept for a resume.
    """
    import torch

    code = hashlib.sha256()
    for file in [*sorted(PACKAGE.rglob("*.py")), *extension_files()]:
        inside = file.is_relative_to(PACKAGE)
        code.update(str(file.relative_to(PACKAGE) if inside else file).encode() + b"\0")
        code.update(file.read_bytes())
    parts = {
        "data": dataset.fingerprint(),
        "public data": [None if each is None else each.fingerprint() for each in public],
        "plan": plan.to_json(),
        "request": hashlib.sha256(request).hexdigest(),
        "code": code.hexdigest(),
        "versions": versions(),
        "machine": [platform.machine(), *processor()],
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "libraries": linear_algebra(),
        "compiler": compiler(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def compiler() -> dict[str, str]:
    """Return what the environment tells numba and BLAS, but where their files are."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("NUMBA_", "OPENBLAS_")) and name != "NUMBA_CACHE_DIR"
    }


def linear_algebra() -> list[str]:
    """Return what multiplies matrices here: a sum's last bit may change with it.

    Guarantee: the same in every process of one environment, whatever else was imported before.
    """
    import scipy.linalg  # noqa: F401  (it brings its own library, which must count either way)
    import threadpoolctl
    import torch  # noqa: F401

    found = (each for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas")
    return sorted({str(sorted({**each, "filepath": ""}.items())) for each in found})


@functools.cache
def versions(*, cluster: bool = False) -> dict[str, str]:
    """Return the versions of everything a result depends on; of a cluster's run Ray's, too."""
    names = (
        "dp-accounting", "torch", "torchvision", "numpy", "scipy", "scikit-learn",
        "pandas", "pyarrow", "deap", "optuna", "numba", "llvmlite",
        *([Cluster.name] if cluster else []),
    )  # fmt: skip
    found = {name: version(name) for name in names}
    return {"pasearch": version("pasearch"), "python": platform.python_version(), **found}
