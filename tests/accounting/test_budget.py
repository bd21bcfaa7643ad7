from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasearch.accounting.budget import Budget
from pasearch.errors import UsageError

pytestmark = pytest.mark.unit


def test_delta_is_the_largest_power_of_ten_strictly_below_one_over_n():
    for n, delta in [(1, 0.1), (9, 0.1), (10, 0.01), (99, 0.01), (100, 1e-3), (60_000, 1e-5)]:
        assert Budget(1.0).resolve(n).delta == delta


@pytest.mark.property
@given(st.integers(1, 10**12))
def test_the_default_delta_is_below_one_over_n_and_ten_times_it_is_not(n: int):
    delta = Budget(1.0).resolve(n).delta
    assert delta is not None
    assert delta < 1 / n
    assert delta * 10 >= 1 / n * (1 - 1e-9)
    assert math.log10(delta) == pytest.approx(round(math.log10(delta)))


def test_a_bad_epsilon_is_refused():
    for epsilon in [0, -1, math.nan, math.inf, "2", None, True]:
        with pytest.raises(UsageError, match="epsilon"):
            Budget(epsilon)


def test_a_bad_delta_is_refused():
    for delta in [0, 1, -1e-5, math.nan, math.inf, "1e-5", True]:
        with pytest.raises(UsageError, match="delta"):
            Budget(1.0, delta)


def test_a_delta_that_publishes_a_record_is_refused():
    for delta in [1 / 1000, 0.5]:
        with pytest.raises(UsageError, match=r"^delta is .*below 1/n.*Omit it or lower it\.$"):
            Budget(1.0, delta).resolve(1000)
        with pytest.raises(
            UsageError, match=r"^The delta of a ledger is .*below 1/n.*outright\. Lower"
        ):
            Budget(1.0, delta).resolve(1000, "The delta of a ledger")


def test_a_given_delta_is_kept():
    assert Budget(1.0, 1e-7).resolve(1000) == Budget(1.0, 1e-7)


def test_a_delta_near_one_over_n_is_warned_about():
    (warning,) = Budget(1.0, 5e-4).warnings(1000)
    assert "0.0005" in warning
    assert "1/(10 n)" in warning
    assert Budget(1.0, 1e-4).warnings(1000) == []
    assert Budget(1.0).resolve(1000).warnings(1000) == []
