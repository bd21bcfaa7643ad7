"""What an error says of a name that is not known, and of a machine that refuses."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

import pasearch as api
from pasearch.errors import (
    InterruptedRunError,
    UsageError,
    describe_system_error,
    find_closest_name,
    suggest_file,
    suggest_name,
)


@pytest.mark.unit
class TestNearest:
    def test_a_slip_of_the_hand_is_answered_with_what_was_meant(self):
        for given, meant in [
            ({"data": "dgits"}, "digits"),
            ({"strategy": "protected-havling"}, "protected-halving"),
            ({"space": "fcn-papper"}, "fcn-paper"),
            ({"metric": "acuracy"}, "accuracy"),
            ({"recipe": "dpsdg"}, "dpsgd"),
            ({"space": {"choices": {"front_end": ["scatering"]}}}, "scattering"),
        ]:
            data = given.pop("data", "digits")
            with pytest.raises(UsageError, match=f"Did you mean '{meant}'"):
                api.plan_architecture_search(data, **given)

    def test_nothing_is_guessed_where_nothing_is_near(self):
        assert suggest_name("zzz", ("alpha", "beta")) == ""
        assert suggest_name("bogus", ("hours", "zip")) == ""
        assert suggest_name(3, ()) == ""

    def test_capital_letters_are_no_other_name(self):
        assert find_closest_name("EPS", ("eps", "seed")) == "eps"
        assert find_closest_name("age", ("AGE", "job")) == "AGE", "as it is written there"

    def test_letters_in_another_order_and_a_name_that_goes_on_are_near(self):
        assert find_closest_name("fnc", ("fcn", "cnn")) == "fcn"
        assert find_closest_name("batch-size", ("bins", "batch")) == "batch"
        assert find_closest_name("ac", ("accuracy",)) == ""

    def test_a_file_that_is_not_there_is_looked_for_in_its_folder(self, tmp_path: Path):
        (tmp_path / "people.csv").write_text("a,b\n")
        assert suggest_file(tmp_path / "poeple.csv").endswith(f" {tmp_path / 'people.csv'}?")
        for other in ("orders.csv", "people.csv", "gone/people.csv"):
            assert suggest_file(tmp_path / other) == ""


def system(number: int) -> OSError:
    return OSError(number, os.strerror(number), "private/trials/7.pt")


@pytest.mark.unit
class TestSystemWords:
    def test_what_the_machine_refused_is_named_without_a_path(self):
        for error, said in [
            (MemoryError(), "Not enough memory."),
            (system(errno.ENOMEM), "Not enough memory."),
            (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "Not enough memory."),
            (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "Not enough memory."),
            (system(errno.ENOSPC), "The disk is full."),
            (system(errno.EDQUOT), "The disk is full."),
            (sqlite3.OperationalError("database or disk is full"), "The disk is full."),
            (system(errno.EACCES), "Permission to read or write"),
            (system(errno.EROFS), "Permission to read or write"),
            (
                sqlite3.OperationalError("attempt to write a readonly database"),
                "Permission to read or write",
            ),
            (
                sqlite3.OperationalError("unable to open database file"),
                "Permission to read or write",
            ),
            (system(errno.EMFILE), "ulimit -n"),
            (system(errno.EIO), f"({os.strerror(errno.EIO)})"),
            (OSError("odd"), "(OSError)"),
        ]:
            told = describe_system_error(error)
            assert told is not None
            assert said in told
            assert told.endswith((".", ")."))
            assert "trials" not in told

    def test_an_error_of_a_program_is_none(self):
        for error in (
            ValueError("x"), RuntimeError("a bug"), KeyError("x"), KeyboardInterrupt(),
            sqlite3.OperationalError("no such table: charges"),
            sqlite3.DatabaseError("disk is full"),
        ):  # fmt: skip
            assert describe_system_error(error) is None

    def test_a_library_s_error_is_of_the_machine_if_its_cause_is(self):
        try:
            try:
                raise system(errno.ENOSPC)
            except OSError as error:
                raise RuntimeError("the store could not commit") from error
        except RuntimeError as error:
            told = describe_system_error(error)
        assert told is not None
        assert "The disk is full." in told


@pytest.mark.unit
def test_an_interrupted_run_says_what_finishes_it():
    told = str(InterruptedRunError("runs/a"))
    assert "Finish the run with `pasearch resume runs/a`; no result" in told
    assert "with changed data the run cannot be resumed" in told
    assert "with the same command; no result" in str(InterruptedRunError("x", "the same command"))
    assert InterruptedRunError("x").exit_code == 130
