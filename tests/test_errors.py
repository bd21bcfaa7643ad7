"""What an error says of a name that is not known."""

from __future__ import annotations

import pytest

import pasearch as api
from pasearch.errors import UsageError, nearest


@pytest.mark.unit
class TestNearest:
    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ({"data": "dgits"}, "digits"),
            ({"strategy": "insred"}, "insured"),
            ({"space": "fcn-papper"}, "fcn-paper"),
            ({"metric": "acuracy"}, "accuracy"),
            ({"recipe": "dpsdg"}, "dpsgd"),
            ({"space": {"choices": {"front_end": ["scatering"]}}}, "scattering"),
        ],
        ids=str,
    )
    def test_a_slip_of_the_hand_is_answered_with_what_was_meant(self, given: dict, meant: str):
        data = given.pop("data", "digits")
        with pytest.raises(UsageError, match=f"Did you mean '{meant}'"):
            api.plan_architecture_search(data, **given)

    def test_nothing_is_guessed_where_nothing_is_near(self):
        assert nearest("zzz", ("alpha", "beta")) == ""
        assert nearest(3, ()) == ""
