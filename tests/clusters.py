"""A real Ray cluster of several nodes on this machine, for tests and benchmarks."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pasearch.runs.cluster import QUIET_SETTINGS

SETTINGS = {
    **QUIET_SETTINGS,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    # A node that is gone is missed after two seconds, not after thirty.
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


@contextmanager
def nodes(count: int, cpus: int = 1, **more: Any) -> Iterator[Any]:
    """Begin a head without CPUs and so many nodes; whoever connects needs its token."""
    folder = tempfile.mkdtemp(prefix="nodes-")
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    known = {name: value for name, value in token.items() if name not in os.environ}
    own = SETTINGS | known | {"RAY_TMPDIR": folder}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        from ray.cluster_utils import Cluster

        store = {"object_store_memory": 2**27}
        head = {"num_cpus": 0, "include_dashboard": False, **store}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(count):
                cluster.add_node(num_cpus=cpus, **store, **more)
            cluster.wait_for_nodes()
            yield cluster
        finally:
            cluster.shutdown()
    finally:
        for name, value in before.items():
            # The token stays: Ray reads it once a process.
            if value is not None:
                os.environ[name] = value
            elif name not in token:
                del os.environ[name]
        shutil.rmtree(folder, ignore_errors=True)


def at_work(cluster: Any) -> list[int]:
    """The processes of a cluster's nodes that do a work now."""
    raylets = {
        own.process.pid for node in cluster.worker_nodes for own in node.all_processes["raylet"]
    }
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            name = (place / "cmdline").read_bytes()
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        if name.startswith(b"ray::_run_work") and parent in raylets:
            found.append(int(place.name))
    return found


def kill_one(cluster: Any) -> bool:
    """Kill a process that does a work now, if there is one."""
    for number in at_work(cluster)[:1]:
        os.kill(number, signal.SIGKILL)
        return True
    return False
