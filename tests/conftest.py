"""What all tests share: a floor under the number of tests, so that none is lost unnoticed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No test is timed: the machine may be slow, or busy. Examples are the same in every run, so that a
# red test is a change's fault; `pytest --hypothesis-profile=explore` looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("same")

# Tests run side by side, one a core: each takes one thread of torch, which is not imported yet.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Where there is no GPU its kernels are interpreted. Triton asks when it is imported.
if not list(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Where Python keeps no bytecode, every worker would rewrite every assertion: 10 s a worker.
sys.dont_write_bytecode = False

# Hundreds of runs write ledgers and stores to disk, durably: in memory that takes no time.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    tempfile.tempdir = os.environ["TMPDIR"] = str(MEMORY)

MINIMUM = 6500
ROOT = Path(__file__).parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"


@pytest.fixture(autouse=True, scope="session")
def migrations_read_once() -> Iterator[None]:
    """Let Optuna read the thirty versions of its tables once a process, not thrice a run."""
    from optuna.storages._rdb.storage import _VersionManager

    first: list[Any] = []
    read = _VersionManager._create_alembic_script

    def read_once(self: Any) -> Any:
        first[:] = first or [read(self)]
        return first[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_VersionManager, "_create_alembic_script", read_once)
        yield


@pytest.fixture(autouse=True)
def no_fit_so_far() -> None:
    """Let each test's fits be the first ones: from the second one on, they are added up."""
    if (session := sys.modules.get("pasearch.runs.session")) is not None:
        shutil.rmtree(session.session_folder())


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return  # the workers collect
    whole = config.args == config.getini("testpaths") or config.args == [str(ROOT / "tests")]
    narrowed = config.option.keyword or config.option.markexpr
    if whole and not narrowed and len(session.items) < MINIMUM:
        pytest.exit(f"{len(session.items)} tests were collected: expected {MINIMUM}.", returncode=1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the first case of each contract be quick, unless it is slow."""
    seen = set()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if item.get_closest_marker("contract") and name not in seen:
            seen.add(name)
            if not item.get_closest_marker("slow"):
                item.add_marker("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of a quick run, leave out the files that have nothing for it."""
    if config.option.markexpr != "quick" or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    return None if "mark.quick" in text or "mark.contract" in text else True


@pytest.fixture
def mnist_root() -> Path:
    """The folder with real MNIST files; without it the test is skipped."""
    root = SHARED_DATA / "torchvision"
    if not (root / "MNIST" / "raw").is_dir():
        pytest.skip("MNIST is not on this machine")
    return root


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run the command line in an empty folder; return exit code, output, errors."""
    from pasearch.cli import main

    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pasearch", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        out, err = capsys.readouterr()
        return code, out, err

    yield call
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="session", autouse=True)
def stores_of_trials_are_copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A run's new store of trials is a copy of an empty one: Optuna takes 0.2 s to make its tables.

    One that lies elsewhere than in a run's folder, as in the store's own tests, is Optuna's own.
    What the newest form of the tables is, Optuna reads from ten files of its own: here once.
    """
    from pasearch.runs.journal import Journal

    genuine, empty = Journal.__init__, tmp_path_factory.mktemp("stores") / "empty.sqlite"
    newest: list[str] = []

    def read_newest_once() -> None:
        from optuna.storages._rdb.storage import _VersionManager

        read = _VersionManager.get_head_version
        newest.append("")

        def head(self: Any) -> str:
            newest[0] = newest[0] or read(self)
            return newest[0]

        patch.setattr(_VersionManager, "get_head_version", head)

    def copied(self: Journal, place: Any, *study: Any, **new: Any) -> None:
        own = isinstance(place, (str, Path)) and Path(place).parent.name == "private"
        if own and not os.path.lexists(place):
            if not newest:
                read_newest_once()
            if not empty.exists():
                Journal(empty).close()
            shutil.copy(empty, place)
        genuine(self, place, *study, **new)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "__init__", copied)
        yield
