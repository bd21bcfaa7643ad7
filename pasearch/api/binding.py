"""Fingerprint of a run: its data, plan and request, this code, its libraries and the machine.

An interrupted run is resumed only if all of these are unchanged, because the same noise added to
two different sums would reveal their difference.

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
from pasearch.spaces.user_modules import find_makers

if TYPE_CHECKING:
    from pasearch.features.plan import FeaturePlan


PACKAGE_FOLDER = Path(pasearch.__file__).parent
"""Folder of this package; all its .py files are part of the fingerprint."""

SURROUNDINGS_FILE = "surroundings.json"
"""File in `private/` with the environment of the run at its start."""


PART_NAMES = {
    "request": "the request",
    "code": "the code of pasearch, or of an extension",
    "libraries": "the libraries that multiply matrices",
    "compiler": "environment variables of numba and BLAS (NUMBA_..., OPENBLAS_...)",
}
"""Name of a part of the fingerprint in messages; other parts are named "the <key>"."""


def compute_fingerprint(
    dataset: Dataset,
    plan: Plan | FeaturePlan,
    device: str,
    *public: Dataset | None,
    request: bytes = b"",
) -> tuple[str, dict[str, str]]:
    """Return the hash of everything that the run's releases depend on, and a hash of each part.

    The hashes depend on private data: they are stored in `private/`, bound to the run's keys.

    Args:
        dataset: Private or declared-public data set.
        plan: Calibrated plan.
        device: "cpu" or "cuda".
        public: Further declared-public data sets.
        request: Serialized request, as stored for a resume.
    """
    code = hashlib.sha256()
    makers = find_makers(plan)
    for file in [*sorted(PACKAGE_FOLDER.rglob("*.py")), *extension_files(*makers)]:
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
    """Describe the environment of a run (versions, machine, threads, ...); it reads no record."""
    import torch

    from pasearch.gpu.dense_steps import list_gpu_library_versions

    return {
        "versions": list_versions(),
        "machine": [platform.machine(), *describe_processor()],
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "libraries": list_blas_libraries() + list_gpu_library_versions(device),
        "compiler": read_compiler_environment(),
    }


def check_surroundings(private: Path, device: str, plan: Any, *, begun: bool) -> None:
    """Refuse to resume a run in another environment or with another plan; its keys stay unopened.

    Both are public. They are stored when a run begins. If they cannot be read, the fingerprint of
    the keys decides, and the keys are destroyed if it differs.

    Raises:
        UsageError: The environment or the plan differs; the message names the differences. Also if
            the matrix products of this processor are not reproducible.
    """
    if device == "cpu":
        from pasearch.training.row_rounding import check_row_rounding

        check_row_rounding()
    now = describe_surroundings(device) | {"plan": _hash_json(plan.to_json())}
    if not begun:
        atomic_write(private / SURROUNDINGS_FILE, json.dumps(now))
        return
    try:
        before = read_json(private / SURROUNDINGS_FILE, follow=False)
        told = _describe_differences(before, now)
    except (UsageError, AttributeError, KeyError, TypeError):
        return
    if told:
        raise UsageError(
            f"{private.parent} is not resumed, because something has changed since the run began: "
            f"{'; '.join(told)}. A sum would differ, if only in its last digits, and the run's "
            "noise must not be added to two different sums. Nothing was opened, and nothing is "
            "lost: restore what has changed, and repeat the command. If that is impossible, start "
            "a new run with a separate budget; the budget spent by this run is not refunded."
        )


def _describe_differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Describe each difference between two results of `describe_surroundings` by one phrase."""
    told = [
        f"{name} was {before[kind].get(name, 'not set')}, and is {now[kind].get(name, 'not set')}"
        for kind in ("versions", "compiler")
        for name in sorted({*before[kind], *now[kind]})
        if before[kind].get(name) != now[kind].get(name)
    ]
    then, here = ([each[name] for name in ("threads", "device")] for each in (before, now))
    texts = {
        "threads": f"the number of threads was {then[0]}, and is {here[0]} (OMP_NUM_THREADS, or "
        "the number of cores that the process may use)",
        "device": f"the device was {then[1]}, and is {here[1]}",
        "plan": "the plan differs (the schema, an option, or the number of records has changed)",
        "machine": "the processor differs, or the build or settings of torch do (ATEN_..., "
        "MKL_..., ONEDNN_...)",
    }
    told += [text for name, text in texts.items() if before[name] != now[name]]
    if before["libraries"] != now["libraries"] and not told:
        told.append(
            "the libraries that multiply matrices differ, or their number of threads does "
            "(number of cores that the process may use)"
        )
    return told


def read_compiler_environment() -> dict[str, str]:
    """Return the environment variables NUMBA_... and OPENBLAS_..., except the cache folder."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("NUMBA_", "OPENBLAS_")) and name != "NUMBA_CACHE_DIR"
    }


def list_blas_libraries() -> list[str]:
    """Describe the BLAS libraries of this process; the last bit of a sum may depend on them.

    Guarantee: the same in every process of one environment, whatever was imported before.
    """
    import scipy.linalg  # noqa: F401 - loads its BLAS library, so that it is always listed
    import threadpoolctl
    import torch  # noqa: F401

    found = (each for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas")
    return sorted({str(sorted({**each, "filepath": ""}.items())) for each in found})


@functools.cache
def list_versions(*, cluster: bool = False) -> dict[str, str]:
    """Return the version of Python and of each package that a result depends on.

    Args:
        cluster: Whether to include Ray.
    """
    names = (
        "dp-accounting", "torch", "torchvision", "numpy", "scipy", "scikit-learn",
        "pandas", "pyarrow", "deap", "optuna", "numba", "llvmlite",
        *([Cluster.name] if cluster else []),
    )  # fmt: skip
    found = {name: version(name) for name in names}
    return {"pasearch": pasearch.__version__, "python": platform.python_version(), **found}
