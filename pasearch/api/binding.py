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
from typing import TYPE_CHECKING, Any

import pasearch
from pasearch.data.partitions import Dataset
from pasearch.errors import UsageError
from pasearch.files import read_json
from pasearch.registry import extension_files
from pasearch.runs.cluster import Cluster
from pasearch.runs.folder import atomic_write
from pasearch.runs.processor import describe_processor
from pasearch.search.plan import Plan

if TYPE_CHECKING:
    from pasearch.features.plan import FeaturePlan


PACKAGE_FOLDER = Path(pasearch.__file__).parent
"""Whose code a run's keys are bound to: all of it."""

SURROUNDINGS_FILE = "surroundings.json"
"""In `private/`: what surrounded a run when it began."""


PART_NAMES = {
    "request": "what was asked for",
    "code": "the code of pasearch, or of an extension",
    "libraries": "the libraries that multiply matrices",
    "compiler": "what the environment tells numba and BLAS (NUMBA_..., OPENBLAS_...)",
}
"""What parts of a fingerprint are called, where that is not their own name."""


def compute_fingerprint(
    dataset: Dataset,
    plan: Plan | FeaturePlan,
    device: str,
    *public: Dataset | None,
    request: bytes = b"",
) -> tuple[str, dict[str, str]]:
    """Return a hash of everything the run's releases depend on, and those of its parts, by name.

    They stay in `private/`, tied to the run's key.

    Args:
        dataset: Private or declared public.
        plan: Solved.
        device: "cpu" or "cuda".
        public: Further data, declared public.
        request: What was asked for, as it is kept for a resume.
    """
    code = hashlib.sha256()
    for file in [*sorted(PACKAGE_FOLDER.rglob("*.py")), *extension_files()]:
        inside = file.is_relative_to(PACKAGE_FOLDER)
        code.update(str(file.relative_to(PACKAGE_FOLDER) if inside else file).encode() + b"\0")
        code.update(file.read_bytes())
    parts = {
        "data": dataset.fingerprint(),
        "public data": [None if each is None else each.fingerprint() for each in public],
        "plan": plan.to_json(),
        "request": hashlib.sha256(request).hexdigest(),
        "code": code.hexdigest(),
        **describe_surroundings(device),
    }
    named = {PART_NAMES.get(name, f"the {name}"): _hash_json(part) for name, part in parts.items()}
    return _hash_json(parts), named


def _hash_json(part: Any) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()


def describe_surroundings(device: str) -> dict[str, Any]:
    """Return what a run is bound to beside data, plan, request and code: nothing of a record."""
    import torch

    from pasearch.gpu.dense_steps import gpu_library_versions

    return {
        "versions": list_versions(),
        "machine": [platform.machine(), *describe_processor()],
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "libraries": list_blas_libraries() + gpu_library_versions(device),
        "compiler": read_compiler_environment(),
    }


def check_surroundings(private: Path, device: str, *, begun: bool) -> None:
    """Refuse to take a run up under others, before its keys are opened: so they are not destroyed.

    They are public, so this tells nothing of a record. Of a run that has not begun they are noted
    down. Where they cannot be read, the keys' own fingerprint decides.

    Raises:
        UsageError: They differ, and how; or as of `products.check_alike`, on a processor.
    """
    if device == "cpu":
        from pasearch.training.row_rounding import check_row_rounding

        check_row_rounding()
    if not begun:
        atomic_write(private / SURROUNDINGS_FILE, json.dumps(describe_surroundings(device)))
        return
    try:
        before = read_json(private / SURROUNDINGS_FILE, follow=False)
        told = _describe_differences(before, describe_surroundings(device))
    except (UsageError, AttributeError, KeyError, TypeError):
        return
    if told:
        raise UsageError(
            f"{private.parent} is not resumed, because something is not as it was when the run "
            f"began: {'; '.join(told)}. The last digits of a sum would differ, and the run's noise "
            "must not be added to two sums. Nothing was opened, and nothing is lost: set that "
            "back, and give the same command again. If it cannot be set back, start a new run, "
            "with a budget of its own: what this one has spent stays spent."
        )


def _describe_differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return in words what differs."""
    told = [
        f"{name} was {before[kind].get(name, 'not set')}, and is {now[kind].get(name, 'not set')}"
        for kind in ("versions", "compiler")
        for name in sorted({*before[kind], *now[kind]})
        if before[kind].get(name) != now[kind].get(name)
    ]
    then, here = ([each[name] for name in ("threads", "device")] for each in (before, now))
    texts = {
        "threads": f"the threads were {then[0]}, and are {here[0]} (OMP_NUM_THREADS, or how many "
        "cores the process may use)",
        "device": f"the device was {then[1]}, and is {here[1]}",
        "machine": "the processor is another, or torch is built or set otherwise (ATEN_..., "
        "MKL_..., ONEDNN_...)",
    }
    told += [text for name, text in texts.items() if before[name] != now[name]]
    if before["libraries"] != now["libraries"] and not told:
        told.append(
            "the libraries that multiply matrices are others, or have another number of threads "
            "(how many cores the process may use)"
        )
    return told


def read_compiler_environment() -> dict[str, str]:
    """Return what the environment tells numba and BLAS, but where their files are."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("NUMBA_", "OPENBLAS_")) and name != "NUMBA_CACHE_DIR"
    }


def list_blas_libraries() -> list[str]:
    """Return what multiplies matrices here: a sum's last bit may change with it.

    Guarantee: the same in every process of one environment, whatever else was imported before.
    """
    import scipy.linalg  # noqa: F401  (it brings its own library, which must count either way)
    import threadpoolctl
    import torch  # noqa: F401

    found = (each for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas")
    return sorted({str(sorted({**each, "filepath": ""}.items())) for each in found})


@functools.cache
def list_versions(*, cluster: bool = False) -> dict[str, str]:
    """Return the versions of everything a result depends on; of a cluster's run Ray's, too."""
    names = (
        "dp-accounting", "torch", "torchvision", "numpy", "scipy", "scikit-learn",
        "pandas", "pyarrow", "deap", "optuna", "numba", "llvmlite",
        *([Cluster.name] if cluster else []),
    )  # fmt: skip
    found = {name: version(name) for name in names}
    return {"pasearch": pasearch.__version__, "python": platform.python_version(), **found}
