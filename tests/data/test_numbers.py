"""How numbers are written: what each form reads, and which forms a column's texts fit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasearch.curator.format_inference import NUMBER_FORMS, infer_number_forms
from pasearch.data.cells import CellFormat, convert_to_numbers, convert_to_strings
from pasearch.data.column import Column
from pasearch.data.numbers import PLAIN_NUMBER_FORM, NumberForm, build_number_form
from pasearch.errors import UsageError

TEXTS = ("12,300", "12.300", "3,5", "3.5", "1,234.5", "1.234,5")
DECLARED = [
    (PLAIN_NUMBER_FORM, (None, 12.3, None, 3.5, None, None)),
    (NumberForm(".", ","), (12300, 12.3, None, 3.5, 1234.5, None)),
    (NumberForm(","), (12.3, None, 3.5, None, None, None)),
    (NumberForm(",", "."), (12.3, 12300, 3.5, None, None, 1234.5)),
]


def written(value: float, form: NumberForm, decimals: int) -> str:
    """Write a number in a form, by Python's own means."""
    text = f"{value:,.{decimals}f}"
    swapped = {",": form.thousands or "", ".": form.decimal}
    return "".join(swapped.get(each, each) for each in text)


class TestForm:
    @pytest.mark.unit
    def test_reads_what_the_table_says(self):
        for form, numbers in DECLARED:
            for text, number in zip(TEXTS, numbers, strict=True):
                found = form.number(text)
                assert math.isnan(found) if number is None else found == number, text

    @pytest.mark.oracle
    @pytest.mark.parametrize("form", NUMBER_FORMS, ids=str)
    @given(value=st.floats(-1e12, 1e12), decimals=st.integers(0, 6))
    def test_reads_what_is_written_in_it(self, form: NumberForm, value: float, decimals: int):
        assert form.number(written(value, form, decimals)) == float(f"{value:.{decimals}f}")

    @pytest.mark.unit
    def test_whole_groups_or_no_number(self):
        for text, form, number in [
            ("-1.234,5", NumberForm(",", "."), -1234.5),
            ("+7", NumberForm(",", "."), 7.0),
            ("1,5e3", NumberForm(","), 1500.0),
            (",5", NumberForm(","), 0.5),
            ("5,", NumberForm(","), 5.0),
            ("1 234,5", NumberForm(",", " "), 1234.5),
            ("1\u00a0234", NumberForm(",", " "), 1234.0),
            ("1\u202f234", NumberForm(".", " "), 1234.0),
            ("1'234.5", NumberForm(".", "'"), 1234.5),
            ("1\u2019234", NumberForm(".", "'"), 1234.0),
            ("12,34,567", NumberForm(".", ","), 1234567.0),
            ("0,123", NumberForm(".", ","), None),
            ("1,23", NumberForm(".", ","), None),
            ("1,2345", NumberForm(".", ","), None),
            (",123", NumberForm(".", ","), None),
            ("1,234,", NumberForm(".", ","), None),
            ("1.23.4", NumberForm(",", "."), None),
            ("1,2,3", NumberForm(","), None),
            ("", NumberForm(","), None),
            (",", NumberForm(","), None),
            ("nan", PLAIN_NUMBER_FORM, None),
            ("inf", NumberForm(","), None),
            ("1e999", PLAIN_NUMBER_FORM, None),
        ]:
            found = form.number(text)
            assert math.isnan(found) if number is None else found == number

    @pytest.mark.property
    @pytest.mark.parametrize("form", NUMBER_FORMS, ids=str)
    @given(text=st.one_of(st.text(), st.text("0123456789.,' -+eE_\u00a0", max_size=12)))
    def test_never_raises_and_is_never_infinite(self, form: NumberForm, text: str):
        assert not math.isinf(form.number(text))

    @pytest.mark.unit
    def test_other_marks_are_refused(self):
        for decimal, thousands in [
            ("", None),
            (";", None),
            (0, None),
            (".", "."),
            (",", ","),
            (None, "."),
            (".", "_"),
            (".", ""),
            (".", 3),
            ([], None),
        ]:
            with pytest.raises(UsageError, match=r'expected ("\.|one of)'):
                build_number_form(decimal, thousands)


class TestCells:
    @pytest.mark.unit
    def test_no_object_raises_whatever_it_says_of_its_class(self):
        class Proxy:
            @property
            def __class__(self):
                raise RuntimeError("secret 4711")

        cells = np.empty(2, object)
        cells[:] = [Proxy(), "3"]
        assert convert_to_numbers(cells, CellFormat()).tolist()[1] == 3.0
        assert convert_to_strings(cells)[1] == "3"

    def test_a_number_of_a_frame_is_what_it_is(self):
        column = Column(name="x", low=0, high=10, decimal=",", thousands=".")
        cells = np.array([1.5, "1,5", 2, "1.500"], object)
        np.testing.assert_array_equal(
            convert_to_numbers(cells, column.cell_format), [1.5, 1.5, 2, 1500]
        )
        np.testing.assert_array_equal(
            convert_to_numbers(np.array([1.5]), column.cell_format), [1.5]
        )

    @pytest.mark.unit
    def test_a_mark_that_is_a_number_means_every_cell_of_that_value(self):
        column = Column(name="x", low=0, high=10, missing=(-999, "-"))
        cells = np.array(["-999", "-999.0", "-", "N/A", "5", -999, -999.0, None], object)
        found = convert_to_numbers(cells, column.cell_format)
        np.testing.assert_array_equal(found, [np.nan] * 4 + [5] + [np.nan] * 3)
        np.testing.assert_array_equal(
            convert_to_numbers(np.array([-999, 5]), column.cell_format), [np.nan, 5]
        )


class TestFitting:
    @pytest.mark.unit
    def test_the_likeliest_comes_first(self):
        for texts, form in [
            (["1", "2.5"], PLAIN_NUMBER_FORM),
            (["12,300", "950"], NumberForm(".", ",")),
            (["3,5", "4,25"], NumberForm(",")),
            (["1.234,50", "3,5"], NumberForm(",", ".")),
            (["1,234.50", "3.5"], NumberForm(".", ",")),
            (["1 234", "12"], NumberForm(".", " ")),
            (["1 234,5", "12"], NumberForm(",", " ")),
            (["1'234.5", "12"], NumberForm(".", "'")),
            (["cook", "nurse"], None),
            (["01.02.2024", "03.04.2024"], None),
            ([], None),
        ]:
            found = infer_number_forms(dict.fromkeys(texts, 1))
            assert (found[0] if found else None) == form

    @pytest.mark.oracle
    @given(st.dictionaries(st.text("0123456789.,' ", min_size=1, max_size=7), st.integers(1, 9)))
    def test_those_that_read_the_most(self, counts: dict[str, int]):
        def read(form: NumberForm) -> int:
            return sum(n for text, n in counts.items() if math.isfinite(form.number(text)))

        found = infer_number_forms(counts)
        if found and found != [PLAIN_NUMBER_FORM]:
            assert found == [
                form for form in NUMBER_FORMS if read(form) == max(map(read, NUMBER_FORMS))
            ]
        elif found:
            assert read(PLAIN_NUMBER_FORM) == max(map(read, NUMBER_FORMS))
