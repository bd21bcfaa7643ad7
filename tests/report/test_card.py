"""The privacy card of what was estimated: a released category writes no Markdown of its own."""

from __future__ import annotations

import pytest

from pasearch.report.card import escaped


@pytest.mark.unit
def test_a_category_stays_in_its_line():
    shown = escaped("y: one of p\n\n## Not covered\n\n- nothing: all is private\ud800")
    assert "\n" not in shown
    shown.encode("utf-8")
