"""What `pytest -m quick` runs: every pin, a case of each contract, a run of each task."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RUNS = (
    "tests/test_cli.py::TestArch::test_leaves_a_result_and_says_where",
    "tests/test_cli_features.py::TestFeatures::test_leaves_a_result_and_says_where",
    "tests/test_train.py::TestEveryRecipe::test_trains_within_its_budget_and_verifies",
)
"""One of each task, from its data to a result that verifies."""
MOST = 900


def names(items: list[pytest.Item], marker: str) -> set[str]:
    """The functions of which a case has a marker."""
    return {item.nodeid.partition("[")[0] for item in items if item.get_closest_marker(marker)}


@pytest.mark.unit
def test_what_is_quick_is_what_its_page_says(
    request: pytest.FixtureRequest,
):
    items = request.session.items
    if {item.path for item in items} < set(Path(__file__).parent.rglob("test_*.py")):
        pytest.skip("only the whole suite knows of every contract")
    quick = names(items, "quick")
    assert names(items, "contract") - names(items, "slow") <= quick
    pins = [item for item in items if re.search(r"(_|::)pins?(_|\b)", item.nodeid)]
    assert len({item.path for item in pins}) > 4
    for item in pins:
        assert item.get_closest_marker("quick"), item.nodeid
    assert set(RUNS) <= quick
    assert sum(item.get_closest_marker("quick") is not None for item in items) < MOST
