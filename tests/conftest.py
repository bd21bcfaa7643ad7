"""What all tests share: a floor under the number of tests, so that none is lost unnoticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No test is timed: the machine may be slow, or busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Tests run side by side, one a core: each takes one thread of torch, which is not imported yet.
os.environ.setdefault("OMP_NUM_THREADS", "1")

MINIMUM = 7000
ROOT = Path(__file__).parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return  # the workers collect
    whole = config.args == config.getini("testpaths") or config.args == [str(ROOT / "tests")]
    narrowed = config.option.keyword or config.option.markexpr
    if whole and not narrowed and len(session.items) < MINIMUM:
        pytest.exit(f"{len(session.items)} tests were collected: expected {MINIMUM}.", returncode=1)


@pytest.fixture
def mnist_root() -> Path:
    """The folder with real MNIST files; without it the test is skipped."""
    root = SHARED_DATA / "torchvision"
    if not (root / "MNIST" / "raw").is_dir():
        pytest.skip("MNIST is not on this machine")
    return root
