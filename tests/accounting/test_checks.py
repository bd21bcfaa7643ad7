from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasearch.accounting import checks
from pasearch.errors import UsageError

pytestmark = pytest.mark.unit

NOT_NUMBERS = [
    True, False, None, "2", b"2", 1j, [2.0], np.array([2.0]), np.bool_(True), Decimal("2")
]  # fmt: skip
NUMBERS = [2, 2.0, np.float32(2), np.float64(2), np.int64(2), np.uint8(2), Fraction(2)]
GATES = [
    checks.check_positive,
    checks.check_nonnegative,
    checks.check_probability,
    checks.check_fraction,
]


def test_any_real_number_becomes_a_python_float():
    for value in NUMBERS:
        for gate in [checks.check_positive, checks.check_nonnegative]:
            found = gate("sigma", value)
            assert type(found) is float
            assert found == 2.0


def test_what_is_no_number_is_refused():
    for value in NOT_NUMBERS:
        for gate in [*GATES, checks.check_positive_integer]:
            with pytest.raises(UsageError, match="sigma is"):
                gate("sigma", value)


def test_what_is_not_finite_is_refused():
    for value in [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400]:
        for gate in GATES:
            with pytest.raises(UsageError, match="sigma"):
                gate("sigma", value)


def test_the_ends_of_the_ranges():
    for gate, good, bad in [
        (checks.check_positive, [5e-324, 1e308], [0, 0.0, -0.0, -1, -5e-324]),
        (checks.check_nonnegative, [0, 5e-324, 1e308], [-5e-324, -1]),
        (checks.check_probability, [5e-324, 0.5, 1, 1.0], [0, -0.1, 1.0000000000000002, 2]),
        (checks.check_fraction, [5e-324, 0.5, 1 - 2**-53], [0, 1, 1.0, -0.1, 2]),
    ]:
        for value in good:
            assert gate("x", value) == value
        for value in bad:
            with pytest.raises(UsageError, match=f"x is {value!r}".replace("(", r"\(")):
                gate("x", value)


def test_whole_gives_a_python_int():
    for value in [1, np.int8(1), np.uint64(7), 10**12]:
        assert type(checks.check_positive_integer("steps", value)) is int


def test_whole_refuses_floats_and_what_is_below_one():
    for value in [0, -1, 1.0, 2.5, np.float64(3)]:
        with pytest.raises(UsageError, match="an integer, 1 or above"):
            checks.check_positive_integer("steps", value)


def test_the_message_says_what_where_and_what_to_do():
    with pytest.raises(UsageError) as refused:
        checks.check_positive("noise_multiplier", "2")
    assert str(refused.value) == (
        "noise_multiplier is '2' (str): expected a finite number above 0."
    )


@pytest.mark.property
@given(st.floats())
def test_positive_is_the_same_as_its_definition(value: float):
    if math.isfinite(value) and value > 0:
        assert checks.check_positive("x", value) == value
    else:
        with pytest.raises(UsageError):
            checks.check_positive("x", value)
