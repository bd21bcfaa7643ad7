"""Which way MKL is told to go, and when."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pasearch.runs import processor


@pytest.mark.unit
@pytest.mark.parametrize("of_intel", [True, False])
@pytest.mark.parametrize("before", [None, "COMPATIBLE"])
def test_it_is_told_unless_the_processor_is_of_intel_or_somebody_said_otherwise(
    of_intel: bool, before: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(processor, "_is_intel", lambda: of_intel)
    monkeypatch.setenv(processor.MKL_MODE_VARIABLE, "")  # so that it is taken back
    monkeypatch.delenv(processor.MKL_MODE_VARIABLE)
    if before is not None:
        monkeypatch.setenv(processor.MKL_MODE_VARIABLE, before)
    processor.set_consistent_rounding()
    expected = before or (None if of_intel else processor.MKL_MODE)
    assert os.environ.get(processor.MKL_MODE_VARIABLE) == expected


@pytest.mark.unit
def test_whose_a_processor_is(monkeypatch: pytest.MonkeyPatch):
    """Of Linux's file and Windows' variable."""
    told = {"vendor_id\t: GenuineIntel\n": True, "vendor_id\t: AuthenticAMD\n": False, "": False}
    for text, of_intel in told.items():
        monkeypatch.setattr(processor.Path, "read_text", lambda *_, t=text, **__: t)
        monkeypatch.delenv("PROCESSOR_IDENTIFIER", raising=False)
        assert processor._is_intel() is of_intel
        monkeypatch.setenv("PROCESSOR_IDENTIFIER", "Intel64 Family 6 Model 85, GenuineIntel")
        assert processor._is_intel()


@pytest.mark.unit
def test_it_is_told_before_anything_is_computed():
    env = {name: value for name, value in os.environ.items() if name != processor.MKL_MODE_VARIABLE}
    code = (
        "import os, pasearch\nfrom pasearch.runs import processor\n"
        "print(processor._is_intel() or "
        "os.environ[processor.MKL_MODE_VARIABLE] == processor.MKL_MODE)"
    )
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert found.stdout == "True\n", found.stderr
