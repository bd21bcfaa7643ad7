"""Who trains, as a request says it: an executor, if it has something to do.

Source: docs/howto-cluster.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from pasearch.accounting.checks import positive, whole
from pasearch.errors import UsageError
from pasearch.runs.cluster import Cluster
from pasearch.runs.executors import Automatic, Executor, Local, Processes

EXECUTORS = ("auto", "local", "process", "ray")

MOST_WORKERS = 100_000
"""The most trainings at a time."""


def executor_of(
    name: str = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
    gpus_per_worker: float | None = None,
) -> Executor:
    """Return who trains; nothing is begun or connected before its `with` block.

    Args:
        name: One of `EXECUTORS`.
        workers: How many trainings at a time, at most; None: as many as there is room for.
        ray_address: Of a Ray cluster; None begins one on this machine.
        gpus_per_worker: Of a training on the cluster, a part of one or several; None: no GPU.

    Raises:
        UsageError: No such executor, settings that it has no use for, or Ray is not installed.
    """
    if name not in EXECUTORS:
        raise UsageError(f"executor is {name!r}: expected one of {', '.join(EXECUTORS)}.")
    if workers is not None:
        workers = whole("workers", workers, most=MOST_WORKERS)
    if gpus_per_worker is not None:
        gpus_per_worker = positive("gpus_per_worker", gpus_per_worker)
    if name == "ray":
        return Cluster(workers, ray_address, gpus_per_worker or 0.0)
    for option, value in (("ray_address", ray_address), ("gpus_per_worker", gpus_per_worker)):
        if value is not None:
            raise UsageError(
                f"{option} is {value!r}, and only a Ray cluster has a use for it: take "
                f"`executor='ray'`, or leave `{option}=` out."
            )
    if name == "local":
        if workers is not None and workers > 1:
            raise UsageError(
                f"workers is {workers}, and `executor='local'` trains one by one: leave one out."
            )
        return Local()
    return Processes(workers) if name == "process" else Automatic(workers)


def check_trainers(name: str, device: str, why_none: Mapping[str, str]) -> None:
    """Refuse an executor that would have nothing to do, rather than leave it idle.

    Args:
        name: One of `EXECUTORS`.
        device: "cpu" or "cuda".
        why_none: Why no training would be handed over, by executor; empty where some would.

    Raises:
        UsageError: It was asked for, and would train nothing.
    """
    why = why_none.get(name)
    if why is None and name == Processes.name and device != "cpu":
        why = "on a GPU trainings are made one after another (`device='cpu'` makes them there)"
    if why is not None:
        raise UsageError(
            f"executor is {name!r}, and nothing of this run can be trained by it: {why}. Leave "
            "`executor=` out."
        )
