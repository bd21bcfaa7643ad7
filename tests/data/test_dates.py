"""Dates: read as `strptime` reads them, never an error, and what a column of them becomes."""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta, timezone

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasearch.curator.format_inference import DATE_FORMATS, TIME_FORMATS, infer_date_formats
from pasearch.data import dates
from pasearch.data.column import Column
from pasearch.data.dates import (
    SECONDS_PER_DAY,
    convert_days_to_date,
    count_days_to,
    extract_date_part,
    find_format_problem,
    normalize_day,
    parse_days,
)
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError

PATTERNS = [day + clock for day in DATE_FORMATS for clock in TIME_FORMATS]
MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2068, 12, 31))
ODD = st.one_of(
    st.none(), st.text(), st.integers(), st.floats(), st.binary(max_size=9), st.datetimes(),
    st.dates(), st.text("0123456789-/.: TZ+", max_size=20),
    st.sampled_from(["2024-02-30", "0000-01-01", "9999-12-31", "2024-01-01 24:00", "31/12/9999",
                     10**5000, pd.NaT, pd.NA, np.datetime64("NaT"), object()]),
)  # fmt: skip


def days(moment: datetime) -> float:
    return (moment - datetime(1970, 1, 1)).total_seconds() / SECONDS_PER_DAY


def by_strptime(text: str, pattern: str) -> float:
    try:
        return days(datetime.strptime(text, pattern))
    except ValueError:
        return math.nan


def encoded(column: Column, *values: object) -> dict[str, np.ndarray]:
    cells = np.empty(len(values), object)
    cells[:] = values
    out = np.zeros((len(values), column.width), np.float32)
    column.encode(cells, out=out)
    return dict(zip(column.feature_names(), out.T, strict=True))


class TestFormats:
    @pytest.mark.oracle
    @settings(max_examples=300)
    @given(
        pattern=st.sampled_from([*PATTERNS, "%d%m%Y", "%H:%M:%S.%f %d %m %y", "%Y%m"]),
        moment=MOMENTS,
    )
    def test_what_is_written_is_read_as_strptime_does(self, pattern: str, moment: datetime):
        text = moment.strftime(pattern)
        assert parse_days(text, pattern) == pytest.approx(by_strptime(text, pattern), abs=1e-9)

    @pytest.mark.oracle
    @pytest.mark.parametrize("pattern", ["%d%m%Y", "%Y%m%d", "%d.%m.%y", "%d/%m/%Y %H:%M"])
    @given(text=st.text("0123456789/.: ", min_size=5, max_size=16).map(str.strip))
    def test_any_digits_are_read_as_strptime_does(self, pattern: str, text: str):
        found, known = parse_days(text, pattern), by_strptime(text, pattern)
        assert found == pytest.approx(known, abs=1e-9, nan_ok=True)

    @pytest.mark.oracle
    @given(moment=MOMENTS, mark=st.sampled_from(["T", " "]))
    def test_iso_is_read_whatever_is_declared(self, moment: datetime, mark: str):
        for pattern in (None, "%d.%m.%Y"):
            assert parse_days(moment.isoformat(mark), pattern) == pytest.approx(days(moment))
            assert parse_days(moment.date().isoformat(), pattern) == math.floor(days(moment))

    @pytest.mark.unit
    def test_is_read(self):
        for text, pattern, day in [
            ("2024-1-5", None, "2024-01-05"),
            ("2024-01-31T12:30:59.5+02:00", None, "2024-01-31"),
            ("5112020", "%d%m%Y", "2020-11-05"),
            ("2024-03", "%Y-%m", "2024-03-01"),
            ("01.02.68", "%d.%m.%y", "2068-02-01"),
            ("01.02.69", "%d.%m.%y", "1969-02-01"),
            ("30.02.2024", "%d.%m.%Y", None),
        ]:
            found = parse_days(text, pattern)
            assert (
                math.isnan(found) if day is None else convert_days_to_date(found).isoformat() == day
            )

    @pytest.mark.unit
    def test_what_makes_no_sense_is_said(self):
        for pattern, word in [
            (3, "expected a string"),
            ("", "at least a year and a month"),
            ("%j %Y", "it has %j"),
            ("%Y-%m-%", "it has %:"),
            ("%d.%m.%Y %d", "twice"),
            ("%d.%m.%Y %y", "have the same meaning"),
            ("%d.%m.%Y %I:%M", "require each other"),
        ]:
            assert word in (find_format_problem(pattern) or "")
            with pytest.raises(UsageError, match="Column 'signed': format is"):
                Column(name="signed", lower="2000-01-01", upper="2001-01-01", format=pattern)  # type: ignore[arg-type]

    @pytest.mark.property
    @given(text=st.text(), pattern=st.sampled_from([None, *PATTERNS]))
    def test_no_text_raises(self, text: str, pattern: str | None):
        assert not math.isinf(parse_days(text, pattern))


class TestFitting:
    @pytest.mark.oracle
    @settings(max_examples=300)
    @given(pattern=st.sampled_from(PATTERNS), moments=st.lists(MOMENTS, min_size=1, max_size=20))
    def test_the_format_that_wrote_them_is_among_those_that_fit(
        self, pattern: str, moments: list[datetime]
    ):
        texts = [moment.strftime(pattern) for moment in moments]
        found = infer_date_formats(dict.fromkeys(texts, 1))
        assert pattern in found
        for other in found:
            assert all(not math.isnan(parse_days(text, other)) for text in texts)

    @pytest.mark.unit
    def test_the_day_stands_first_where_nothing_decides(self):
        assert infer_date_formats({"03/04/2020": 9}) == ["%d/%m/%Y", "%m/%d/%Y"]
        assert infer_date_formats({"03/04/2020": 9, "03/14/2020": 1}) == ["%m/%d/%Y"]
        assert infer_date_formats({"2020-03-04": 9, "2020-03-04T12:00": 1}) == [None]

    @pytest.mark.property
    @given(st.dictionaries(st.text(max_size=12), st.integers(1, 9), max_size=6))
    def test_never_raises(self, counts: dict[str, int]):
        assert isinstance(infer_date_formats(counts), list)


class TestBounds:
    @pytest.mark.unit
    def test_are_days(self):
        for given_, day in [
            ("2015-01-31", "2015-01-31"),
            (date(2015, 1, 31), "2015-01-31"),
            (pd.Timestamp("2015-01-31"), "2015-01-31"),
            ("31.01.2015", None),
            (2015, None),
        ]:
            assert normalize_day(given_) == day

    @pytest.mark.oracle
    @given(st.dates())
    def test_are_counted_from_1970(self, day: date):
        number = count_days_to(day.isoformat())
        assert number == (day - date(1970, 1, 1)).days
        assert convert_days_to_date(number) == convert_days_to_date(number + 0.99) == day

    @pytest.mark.unit
    def test_what_makes_no_sense_is_refused(self):
        for declared, word in [
            ({"kind": "date"}, "expected two days"),
            ({"parts": ["day"]}, "expected some of year"),
            ({"low": 0}, "is not valid for kind"),
            ({"kind": "number"}, "key lower is not valid for kind 'number'"),
        ]:
            both = {"lower": "2020-01-01", "upper": "2021-01-01"}
            whole = declared if "expected two" in word else both | declared
            with pytest.raises(UsageError, match=word) as caught:
                Column(name="signed", **whole)
            assert "'signed'" in str(caught.value)


class TestParts:
    @pytest.mark.oracle
    @given(st.lists(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)), max_size=20))
    def test_are_those_of_a_datetime(self, moments: list[datetime]):
        moments = [moment.replace(microsecond=0) for moment in moments]
        found = np.array([*map(days, moments), math.nan])
        for part, want in {
            "year": [m.year for m in moments],
            "month": [m.month - 1 for m in moments],
            "weekday": [m.weekday() for m in moments],
            "hour": [m.hour for m in moments],
        }.items():
            np.testing.assert_array_equal(extract_date_part(found, part), [*want, math.nan])


SIGNED = Column(
    name="signed", lower="2020-01-01", upper="2021-12-31", format="%d.%m.%Y", missing=["-"]
)


class TestColumn:
    @pytest.mark.unit
    def test_becomes_days_year_month_and_weekday(self):
        found = encoded(SIGNED, "01.03.2021", "-", None, "soon", "N/A")
        assert found["signed.days"][0] == pytest.approx((366 + 59) / 731)
        ones = {name for name, values in found.items() if values[0] == 1}
        assert ones >= {"signed.year = 2021", "signed.month = 3", "signed.weekday = Monday"}
        assert len([name for name in ones if ".days" not in name]) == 3
        missing = [name for name in found if name.endswith("missing")]
        assert len(missing) == 4
        for row in range(1, 5):
            assert all(found[name][row] == 1 for name in missing)
            assert sum(values[row] for values in found.values()) == 4

    @pytest.mark.unit
    def test_days_and_years_are_clamped_and_the_month_is_its_own(self):
        found = encoded(SIGNED, "15.06.1999", "15.06.2050", "2021-12-31 23:59:59")
        assert found["signed.days"][0] == 0.0
        assert found["signed.days"][1] == found["signed.days"][2] == pytest.approx(1, abs=1e-4)
        assert found["signed.days"].max() <= 1.0
        assert found["signed.year = 2020"].tolist() == [1, 0, 0]
        assert found["signed.year = 2021"].tolist() == [0, 1, 1]
        assert found["signed.month = 6"].tolist() == [1, 1, 0]

    @pytest.mark.unit
    def test_times_of_frames_are_read(self):
        moment = datetime(2021, 3, 1, 12, 30)
        zone = timezone(timedelta(hours=2))
        kinds = [moment, moment.date(), pd.Timestamp(moment), np.datetime64(moment, "ns"),
                 moment.replace(tzinfo=zone), pd.Timestamp(moment, tz="UTC")]  # fmt: skip
        found = encoded(SIGNED, *kinds, time(12), pd.NaT)
        assert found["signed.month = 3"].tolist() == [1] * 6 + [0, 0]
        assert found["signed.month missing"].tolist() == [0] * 6 + [1, 1]
        frame = pd.DataFrame({"signed": pd.to_datetime(["2021-03-01", None])})
        schema = TableSchema(columns=(SIGNED,), target=Column(name="y", categories=("a", "b")))
        names = list(schema.names)
        rows = schema.encode_new(frame)
        assert rows[:, names.index("signed.month = 3")].tolist() == [1, 0]

    @pytest.mark.property
    @given(
        values=st.lists(ODD, min_size=1, max_size=6),
        parts=st.sets(st.sampled_from(dates.DATE_PARTS)),
    )
    def test_no_cell_raises_and_a_row_depends_on_its_own(self, values: list, parts: set[str]):
        column = Column(
            name="at", lower="1999-05-05", upper="2031-01-01", format="%d/%m/%Y",
            parts=sorted(parts),
        )  # fmt: skip
        together = np.array(list(encoded(column, *values).values()))
        assert np.isfinite(together).all()
        assert together.min() >= 0
        assert together.max() <= 1
        alone = [np.array(list(encoded(column, value).values())) for value in values]
        np.testing.assert_array_equal(together, np.hstack(alone))

    @pytest.mark.property
    @given(values=st.lists(ODD, min_size=1, max_size=6))
    def test_a_row_is_no_longer_than_its_bound(self, values: list):
        schema = TableSchema(columns=(SIGNED,), target=Column(name="y", categories=("a", "b")))
        rows = np.array(list(encoded(SIGNED, *values).values())).T
        assert np.linalg.norm(rows, axis=1).max() <= schema.row_bound + 1e-6
        assert schema.shape == (rows.shape[1],)
        form = schema.row_layout
        assert sum(column.width for column in form.columns) == rows.shape[1]
