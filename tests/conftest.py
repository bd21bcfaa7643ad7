"""What all tests share: a floor under the number of tests, so that none is lost unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

MINIMUM = 2800
ROOT = Path(__file__).parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
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
