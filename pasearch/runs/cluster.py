"""Execution of works on a Ray cluster. A work is a charged computation; see module `executors`.

    coordinator   puts the data of the works into Ray's object store once, submits the works, and
                  removes the data from the store when all works are done
    worker        a process on a node that runs one work after another

If a worker or node is lost, Ray restarts its work up to three times; then the coordinator runs it.
If the running works take `SLOW_FACTOR` times as long as the slowest finished work, and processors
are idle, a second copy of a work is started on another node. Copies return the same bytes, so the
first result is used.

Anybody who can reach the ports of a cluster without a token can run code there and read the
records. A cluster that is started here requires a secret token, keeps its files in a folder with
mode 0700, and reports no usage statistics.

Source: docs/howto-cluster.md; docs/rules.md, rules 8, 10, 11 and 12.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import os
import platform
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from pasearch.errors import UsageError
from pasearch.runs.executors import Executor, Work
from pasearch.runs.processor import describe_processor

MAX_RETRIES = 3
"""Maximum number of times that Ray restarts a lost work, before the coordinator runs it."""

SLOW_FACTOR = 4.0
"""Running works count as slow after this multiple of the time of the slowest finished work."""

MAX_ANSWER_SECONDS = 10.0
"""Maximum time to wait for the answer of a cluster, or for the end of cancelled works: seconds."""

POLL_SECONDS = 1.0
"""Maximum time to wait for a result before slow works are looked for, seconds."""

REQUIRED_PACKAGES = ("numpy", "ray", "torch")
"""Packages that must have the same versions on all nodes, as must Python and this package."""

QUIET_SETTINGS = {"RAY_DEDUP_LOGS_SKIP_REGEX": ".", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Ray settings that suppress its terminal output, which would reveal progress."""

TOKEN_MODE_VARIABLE = "RAY_AUTH_MODE"
"""Environment variable of Ray; the value "token" makes a cluster require a token."""

NO_TOKEN_RISK = "whoever reaches its ports can run code on it and read the records"
"""Part of messages: the risk of a cluster without a token."""

FOLDER_PREFIX = "pasearch-ray-"
"""Prefix of the folders in which a cluster on this machine keeps its files."""

logger = logging.getLogger(__name__)


ADDRESS_PATTERN = re.compile(r"auto|local|[^\s/]+:\d+")
"""Pattern of the address of a cluster: host:port, auto or local."""


class Cluster(Executor):
    """Executor that runs works on the nodes of a Ray cluster.

    Args:
        workers: Maximum number of parallel works. None: decided by the CPUs of the nodes.
        address: Address host:port of a running cluster, or "auto". None or "local": start a cluster
            on this machine.
        gpus: Number of GPUs per work. 0: works run on CPUs.

    Raises:
        UsageError: Ray is not installed, or the address is malformed.
    """

    name = "ray"
    is_remote = True

    def __init__(self, workers: int | None = None, address: str | None = None, gpus: float = 0.0):
        if importlib.util.find_spec("ray") is None:
            raise UsageError(
                "executor 'ray' requires Ray: pip install 'pasearch[ray]', or use "
                "`executor='process'`."
            )
        if address is not None and not ADDRESS_PATTERN.fullmatch(address):
            raise UsageError(
                f"ray_address is {address!r}: expected host:port or auto. Run pasearch on a node "
                "of the cluster, such as its head."
            )
        self._workers, self.gpus = workers, gpus
        self._address = None if address == "local" else address
        self._folder: str | None = None
        self._connected = False

    def accepts(self, count: int, *, long: bool) -> bool:
        return count > 0

    def __enter__(self) -> Self:
        """Connect to a cluster, or start one on this machine.

        Raises:
            UsageError: No cluster answers at the address.
        """
        own = self._address is None
        how = self._make_own_cluster_settings() if own else {"address": self._address}
        for name, value in QUIET_SETTINGS.items():
            os.environ.setdefault(name, value)
        ray = _import_ray()
        if ray.is_initialized():  # by the user's program, which also ends it
            self._delete_folder()
            self._check_token(ours=False)
            self._resources(ray, 1)
            return self
        try:
            if self._address is not None and self._address != "auto":
                host, _, port = self._address.rpartition(":")  # Ray would try for minutes
                socket.create_connection(
                    (host.strip("[]"), int(port)), timeout=MAX_ANSWER_SECONDS
                ).close()
            with _keep_signal_handler():
                ray.init(**how, configure_logging=False, logging_level="ERROR", log_to_driver=False)
            self._connected = True
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            where = "on this machine" if own else f"at {self._address}"
            raise UsageError(
                f"No Ray cluster {where} could be used ({' '.join(str(error).split())[:200]}): "
                "see `ray status`, and give its address (`ray_address=`)."
            ) from None
        finally:
            if not self._connected:
                self._delete_folder()
        self._check_token(ours=own)
        try:
            self._resources(ray, 1)  # refuse missing GPUs before anything is charged
        except UsageError:
            self.close()
            raise
        return self

    def _check_token(self, *, ours: bool) -> None:
        """Check that the cluster requires a token; if it was not started here, only warn."""
        if os.environ.get(TOKEN_MODE_VARIABLE) == "token":
            return
        if not ours:
            logger.warning(
                f"This Ray cluster asks for no token: {NO_TOKEN_RISK}. Set "
                f"{TOKEN_MODE_VARIABLE}=token on every node (docs/howto-cluster.md)."
            )
            return
        self.close()
        raise UsageError(
            f"The Ray cluster that was begun here asks for no token: {NO_TOKEN_RISK}. It was "
            "ended, and "
            f"nothing was read. Set {TOKEN_MODE_VARIABLE}=token, or do not import Ray before."
        )

    def _make_own_cluster_settings(self) -> dict[str, Any]:
        """Prepare to start a cluster on this machine, and return the arguments of `ray.init`."""
        if TOKEN_MODE_VARIABLE not in os.environ:
            if "ray" not in sys.modules:  # Ray reads this once, when it is imported
                os.environ[TOKEN_MODE_VARIABLE] = "token"
            if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
                os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")
        _delete_leftover_folders()
        # Ray's folder is readable for everybody, so its parent has mode 0700.
        self._folder = tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-")
        return {
            "address": "local",
            "num_cpus": max(self._workers or 1, os.cpu_count() or 1),
            "include_dashboard": False,
            "_temp_dir": f"{self._folder}/ray",
            "_node_ip_address": "127.0.0.1",
        }

    def close(self) -> None:
        """Disconnect from the cluster; end it if it was started here."""
        if self._connected:
            _import_ray().shutdown()
            self._connected = False
        self._delete_folder()

    def _delete_folder(self) -> None:
        """Delete the files of a cluster that was started here."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def run_in_any_order(
        self, works: Sequence[Work], threads: int, room: int
    ) -> Generator[tuple[int, bytes], None, None]:
        ray = _import_ray()
        given = _SubmittedWorks(ray, works, self._resources(ray, threads))
        slow = _SlowWorkDetector()
        try:
            while given.left:
                given.submit_waiting(self._workers)
                for place, ref in given.wait_for_ended():
                    try:
                        result, seconds = ray.get(ref)
                    except ray.exceptions.RayTaskError as error:
                        raise (error.cause or error) from None
                    except ray.exceptions.RayError:
                        if given.has_copy(place):
                            continue
                        logger.info(
                            "A training was lost with its worker: it is repeated on this machine."
                        )
                        result, seconds = works[place].run(), 0.0
                    given.mark_done(place)
                    yield place, result
                    slow.record_end(seconds)  # after `yield`: the caller's time is no delay
                if slow.detect():  # idle processors run second copies
                    nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
                    every = sum(each.get("CPU", 0.0) for each in nodes)
                    slots = int(every // given.resources["num_cpus"])
                    free = min(slots, self._workers or slots) - len(given.running)
                    given.submit_copies(max(0, free))
        finally:
            given.cancel_all()

    def _resources(self, ray: Any, threads: int) -> dict[str, float]:
        """Choose the CPUs and GPUs per work, at most those of the largest node."""
        nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        if self.gpus and not any(each.get("GPU", 0.0) >= self.gpus for each in nodes):
            raise UsageError(
                f"gpus_per_worker is {self.gpus:g}, but no node of the cluster has that many: "
                "leave it out, or see `ray status`."
            )
        most = max(each.get("CPU", 0.0) for each in nodes)
        return {"num_cpus": max(1.0, min(float(threads), most)), "num_gpus": self.gpus}


class _SubmittedWorks:
    """Works that are submitted to a cluster, with the data that they read.

    Args:
        ray: Module `ray`.
        works: All works.
        resources: CPUs and GPUs per work, as Ray options.

    Attributes:
        waiting: Indices of works that are not submitted yet.
        running: Index of the work of each running Ray task; a work may have two tasks.
        cancelled: Cancelled Ray tasks.
        left: Indices of works without a result.
    """

    def __init__(self, ray: Any, works: Sequence[Work], resources: dict[str, float]):
        self._ray, self._works, self.resources = ray, works, resources
        self._do = ray.remote(max_retries=MAX_RETRIES, **resources)(_run_work)
        sources = dict.fromkeys(source for work in works for source in work.reads)
        self._read = {source: ray.put(source.load()) for source in sources}
        self.waiting = deque(range(len(works)))
        self.running: dict[Any, int] = {}
        self.cancelled: list[Any] = []
        self.left = set(self.waiting)

    def submit_waiting(self, most: int | None) -> None:
        """Submit waiting works until `most` are running."""
        while self.waiting and (most is None or len(self.running) < most):
            self._submit(self.waiting.popleft())

    def submit_copies(self, count: int) -> None:
        """Submit a second copy of up to `count` running works."""
        copies = list(self.running.values())
        once = [place for place in copies if copies.count(place) == 1]
        for place in once[:count]:
            self._submit(place, scheduling_strategy="SPREAD")

    def _submit(self, place: int, **how: Any) -> None:
        """Submit a work with further Ray options."""
        work = self._works[place]
        # Ray resolves references that are arguments, but not those inside a dictionary.
        kept = {at: self._read[each] for at, each in enumerate(work.reads) if each.kept}
        read = [self._read[each] for each in work.reads if not each.kept]
        self.running[
            self._do.options(**how).remote(compute_installed_code_hash(), work.do, kept, *read)
        ] = place

    def wait_for_ended(self) -> Iterator[tuple[int, Any]]:
        """Wait up to `POLL_SECONDS`, and yield (index, task) of works that have ended."""
        ready, _ = self._ray.wait(list(self.running), num_returns=1, timeout=POLL_SECONDS)
        for ref in ready:
            place = self.running.pop(ref)
            if place in self.left:
                yield place, ref

    def has_copy(self, place: int) -> bool:
        """Check whether another copy of a lost work is running."""
        return place in self.running.values()

    def mark_done(self, place: int) -> None:
        """Mark a work as done, and cancel its other copy."""
        self.left.discard(place)
        for ref in [ref for ref, other in self.running.items() if other == place]:
            del self.running[ref]
            self.cancelled.append(ref)
            self._ray.cancel(ref, force=True)

    def cancel_all(self) -> None:
        """Cancel running works, and remove the data from the object store.

        A worker ignores a cancellation that arrives before the work. So cancellations are repeated
        until all works have ended.
        """
        left, end = [*self.cancelled, *self.running], time.monotonic() + MAX_ANSWER_SECONDS
        self.running.clear()
        self._read.clear()
        while left and time.monotonic() < end:
            for ref in left:
                self._ray.cancel(ref, force=True)
            _, left = self._ray.wait(left, num_returns=len(left), timeout=POLL_SECONDS)


class _SlowWorkDetector:
    """Detector of slow works: no work has ended for a multiple of the longest time so far."""

    def __init__(self) -> None:
        self._slowest, self._last = 0.0, time.monotonic()

    def record_end(self, seconds: float) -> None:
        """Record that a work has ended, with its duration in seconds."""
        self._slowest, self._last = max(self._slowest, seconds), time.monotonic()

    def detect(self) -> bool:
        """Check whether the running works are slow; if so, restart the clock."""
        quiet = time.monotonic() - self._last
        if not self._slowest or quiet <= max(POLL_SECONDS, SLOW_FACTOR * self._slowest):
            return False
        self._last = time.monotonic()
        return True


def _run_work(
    expected: str, do: Callable[..., bytes], kept: dict[int, Any], *read: Any
) -> tuple[bytes, float]:
    """Run a work on a worker, after a check that the software is that of the coordinator.

    Args:
        expected: `compute_installed_code_hash` of the coordinator.
        do: Function of the work.
        kept: References to data that the worker keeps for its next work, by position.
        read: All other data.

    Returns:
        Result of the work, and its duration in seconds.
    """
    if compute_installed_code_hash() != expected:
        raise UsageError(
            f"{platform.node()} of the Ray cluster has another pasearch, Python, "
            f"{', '.join(REQUIRED_PACKAGES)} or kind of processor than the machine that this run "
            "began on. Change that node, not this machine, whose keys would be destroyed: install "
            "the same there, or take it out. What was charged stays charged; then resume the run."
        )
    start, rest = time.monotonic(), iter(read)
    every = [
        _fetch_cached(kept[place]) if place in kept else next(rest)
        for place in range(len(kept) + len(read))
    ]
    return do(*every), time.monotonic() - start


def _import_ray() -> Any:
    """Import Ray, which is an optional dependency and slow to import."""
    return importlib.import_module("ray")


@lru_cache(maxsize=1)
def _fetch_cached(ref: Any) -> Any:
    """Fetch data from the object store; the last data are kept in memory."""
    return _import_ray().get(ref)


@cache
def compute_installed_code_hash() -> str:
    """Compute a hash of this package's code, the numerical packages and the processor."""
    found = hashlib.sha256(platform.python_version().encode())
    found.update("\n".join(describe_processor()).encode())
    for name in REQUIRED_PACKAGES:
        found.update(f"{name} {version(name)}".encode())
    package = Path(__file__).parent.parent
    for file in sorted(package.rglob("*.py")):
        found.update(str(file.relative_to(package)).encode() + file.read_bytes())
    return found.hexdigest()


@contextmanager
def _keep_signal_handler() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces, after the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _delete_leftover_folders() -> None:
    """Delete the files of clusters whose coordinator was killed; they may contain records."""
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        owner = left.name.removeprefix(FOLDER_PREFIX).split("-")[0]
        ours = left.lstat().st_uid == os.getuid() and not left.is_symlink()
        if ours and owner.isdigit():
            try:
                os.kill(int(owner), 0)  # checks whether the process exists
            except ProcessLookupError:
                shutil.rmtree(left, ignore_errors=True)
            except PermissionError:
                pass
