"""The planted bugs of `mutants.py` are those of today's package."""

from __future__ import annotations

import pytest
from mutants import MUTANTS, ROOT, places


@pytest.mark.quick
@pytest.mark.unit
def test_every_mutant_has_one_place_and_tests_that_exist():
    for mutant in MUTANTS:
        assert len(places(mutant)) == 1, f"{mutant.name}: {mutant.old!r} must stand once"
        assert mutant.old != mutant.new
        for file in mutant.tests.split():
            assert (ROOT / "tests" / file).is_file(), f"{mutant.name}: {file}"
