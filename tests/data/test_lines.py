"""A row is a line and is read alone: no bytes of one row change n, another row, or a run's fate."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pasearch.accounting.budget import Budget
from pasearch.api.search import plan_architecture_search
from pasearch.cli import main
from pasearch.data import lines
from pasearch.data.column import Column
from pasearch.data.csv_file import read_table, read_table_with_faults
from pasearch.data.lines import Fault, LineEndError, LineForm, read_header
from pasearch.data.sources import load_dataset
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError

SCHEMA = TableSchema(
    columns=(
        Column(name="age", low=20, high=60, bins=(30, 40)),
        Column(name="job", categories=("cook", "nurse")),
        Column(name="note", vocabulary=("cat", "£")),
    ),
    target=Column(name="label", categories=("no", "yes")),
)
HEADER = b"age,job,note,label"
GOOD = b'33,cook,"a cat, \xc2\xa35",yes'
ENDS = {"lf": b"\n", "crlf": b"\r\n"}

STRANGE = {
    "utf-16": "é,33,cook,yes".encode("utf-16-le").replace(b"\n", b""),
    "utf-16 with a mark": "33,cook,é,yes".encode("utf-16"),
    "latin-1": "33,cook,é,yes".encode("latin-1"),
    "windows-1252": "33,cook,“€”,yes".encode("cp1252"),
    "shift-jis": "33,cook,日本語,yes".encode("shift-jis"),
    "nul": b"33,cook,a\0b,yes",
    "nuls": b"\0" * 40,
    "mark inside": b"33,\xef\xbb\xbfcook,cat,yes",
    "mark first": b"\xef\xbb\xbf33,cook,cat,yes",
    "overlong": b"33,\xc0\xaf,cat,yes",
    "surrogate": b"33,\xed\xa0\x80,cat,yes",
    "surrogates": b"33,\xed\xa0\xbd\xed\xb8\x80,cat,yes",
    "too high": b"33,\xf4\x90\x80\x80,cat,yes",
    "cut short": b"33,cook,cat,yes\xe2\x82",
    "continuation": b"\x80\x80\x80",
    "open quote": b'33,"cook,cat,yes',
    "open quote first": b'"33,cook,cat,yes',
    "open quote last": b'33,cook,cat,"yes',
    "only a quote": b'"',
    "quotes": b'"""""',
    "text after a quote": b'33,"cook"s,cat,yes',
    "quote inside": b'33,co"ok,cat,yes',
    "other line ends": "33,cook,a\x0b\x0c\x1c\x85\u2028\u2029b,yes".encode(),
    "10 MB": b"33,cook," + b"c" * 10_000_000 + b",yes",
    "10 MB, open": b'33,cook,"' + b"x" * 10_000_000,
    "10 MB of commas": b"," * 10_000_000,
    "5,000 digits": b"9" * 5000 + b",cook,cat,yes",
    "small": b"1e-999999,cook,cat,yes",
    "nan": b"nan,cook,cat,yes",
    "inf": b"-inf,cook,cat,yes",
    "hexadecimal": b"0x1f,cook,cat,yes",
    "underscores": b"3_3,cook,cat,yes",
    "digits of another script": "٣٣,cook,cat,yes".encode(),
    "right to left": "33,\u202ecook\u200f,cat,\u2067yes".encode(),
    "escapes": b"33,\x1b[2Jcook,cat,yes",
    "complex": b"1+2j,cook,cat,1j",
    "empty": b"",
    "blank": b"  \t ",
    "too few": b"33,cook",
    "too many": b"33,cook,cat,yes,yes",
}
"""What a row may be instead of a good one: bytes without a line feed or a carriage return."""


PIECES = [b'"', b",", b"\r", b"\n", b"x", b'1,"x', b'x",1', b"\xff", b"\xc3", b"\xa9", b"\0"]
ROWS = st.one_of(
    st.just(GOOD), st.binary(max_size=40), st.lists(st.sampled_from(PIECES)).map(b"".join),
    st.sampled_from([b'1,cook,"a', b'b",yes', b"1,cook,cat,yes\r", b"1,cook,cat,yes\r\r"]),
)  # fmt: skip


PAIR = [b'33,cook,"a', b'cat",yes']
RECORDS = st.lists(
    st.one_of(
        st.just(PAIR),
        st.just([GOOD, b'20,"nurse",,no', b'"7","a, ""b""",\xc2\xa3,yes']),
        ROWS.map(lambda row: [row.replace(b"\n", b"")]),
    ),
    min_size=1, max_size=6,
).map(lambda parts: [row for part in parts for row in part])  # fmt: skip
"""Records, among them two lines that are one record of `csv` if they are read together."""


def written(path: Path, rows: list[bytes], end: bytes = b"\n") -> Path:
    path.write_bytes(end.join([HEADER, *rows]) + end)
    return path


def alone(row: bytes) -> list[str] | None:
    """What a row is, by csv's own reader of one line."""
    try:
        found = next(csv.reader(io.StringIO(row.decode(), newline=""), strict=True), [])
    except (UnicodeDecodeError, csv.Error):
        return None
    return found if len(found) == 4 else None


class TestNeighbours:
    @pytest.mark.property
    @settings(max_examples=300, deadline=None)
    @given(
        good=RECORDS,
        data=st.data(),
        end=st.sampled_from(list(ENDS.values())),
        block=st.sampled_from([1, 7, 30, lines.BLOCK_BYTES]),
        quotes=st.booleans(),
    )
    def test_a_change_to_one_line_changes_only_its_encoded_record(
        self, good: list[bytes], data: st.DataObject, end: bytes, block: int, quotes: bool,
        tmp_path_factory: pytest.TempPathFactory,
    ):  # fmt: skip
        place = data.draw(st.integers(0, len(good) - 1))
        line = good[place]
        at = data.draw(st.integers(0, len(line)))
        changed = data.draw(
            st.one_of(
                ROWS,
                st.just(line[:at] + b'"' + line[at:]),
                st.just(line[:at] + line[at + 1 :]),
                st.binary(min_size=1, max_size=3).map(lambda part: line[:at] + part + line[at:]),
            )
        ).replace(b"\n", b"")
        path = tmp_path_factory.mktemp("rows") / "x.csv"
        encoded = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lines, "BLOCK_BYTES", block)
            for each in (good, [*good[:place], changed, *good[place + 1 :]]):
                schema, features, labels = read_table(
                    written(path, each, end), schema=SCHEMA, quotes=quotes
                )
                x = np.zeros((len(labels), *schema.shape), np.float32)
                usable = schema.encode(features, out=x)
                columns = [x, usable, *schema.encode_labels(labels)]
                encoded.append([np.delete(column, place, axis=0).tobytes() for column in columns])
        assert encoded[0] == encoded[1]

    @pytest.mark.oracle
    @pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
    def test_a_line_is_what_csv_makes_of_it_alone(self, end: bytes, tmp_path: Path):
        rows = [GOOD, *(row for row in STRANGE.values() if len(row) < 10_000), GOOD]
        _, features, labels = read_table(written(tmp_path / "x.csv", rows, end), schema=SCHEMA)
        want = [alone(row) for row in rows]
        assert [w if w is None else w[:-1] for w in want] == [
            None if row[0] is None else row for row in features.tolist()
        ]
        assert labels.tolist() == [None if w is None else w[-1] for w in want]

    @pytest.mark.unit
    @pytest.mark.parametrize("name", STRANGE)
    def test_a_strange_row_leaves_the_rest(self, name: str, tmp_path: Path):
        rows = [GOOD, STRANGE[name], GOOD]
        for quotes in (True, False):
            path = written(tmp_path / "x.csv", rows)
            schema, features, labels = read_table(path, schema=SCHEMA, quotes=quotes)
            assert len(labels) == 3
            x = np.zeros((3, *schema.shape), np.float32)
            usable = schema.encode(features, out=x)
            known = schema.encode_labels(labels)[1]
            assert np.isfinite(x).all()
            assert ((x >= 0.0) & (x <= 1.0)).all()
            assert (usable[0], usable[2]) == ((known[0], known[2]))
            if quotes:
                assert usable[0]
                assert x[0].tolist() == x[2].tolist()
            assert len(load_dataset(str(path), quotes=quotes).fingerprint()) == 64

    @pytest.mark.unit
    def test_plan_and_exit_code_are_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ):
        monkeypatch.chdir(tmp_path)
        rows, shown = [GOOD, b"20,nurse,,no"] * 100, set()
        names = ["utf-16", "latin-1", "nuls", "surrogate", "open quote", "10 MB, open", "empty"]
        for row in (GOOD, *(STRANGE[name] for name in names)):
            written(tmp_path / "x.csv", [*rows, row])
            monkeypatch.setattr("sys.argv", ["pasearch", "plan", "arch", "x.csv", "--eps", "2"])
            with pytest.raises(SystemExit) as left:
                main()
            shown.add((left.value.code, *capsys.readouterr()))
        assert len(shown) == 1
        assert next(iter(shown))[0] == 0
        assert "201 records" in next(iter(shown))[1]

    @pytest.mark.unit
    def test_a_run_with_every_strange_row_ends_well(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ):
        monkeypatch.chdir(tmp_path)
        small = [row for row in STRANGE.values() if len(row) < 10_000]
        rows = [GOOD, b"20,nurse,,no", *small] * 40 + list(STRANGE.values())
        written(tmp_path / "x.csv", rows)
        for command in (["features"], ["train", "--steps", "3"]):
            options = ["x.csv", "--eps", "8", "--delta", "1e-4", "--quiet", "--out", command[0]]
            monkeypatch.setattr("sys.argv", ["pasearch", *command, *options])
            with pytest.raises(SystemExit) as left:
                main()
            told = capsys.readouterr()
            assert left.value.code == 0, told.err
            assert told.err == ""

    @pytest.mark.unit
    def test_ordinary_quotation_marks_are_asked_for_and_told_of(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ):
        monkeypatch.chdir(tmp_path)
        path, budget = written(tmp_path / "x.csv", [b'33,5",cat,yes'] * 200), Budget(2.0, 1e-4)
        plan = plan_architecture_search(path, budget=budget, quotes=False)
        assert plan.schema.to_json()["quotes"] is False
        assert "quotes" not in plan_architecture_search(path, budget=budget).schema.to_json()
        with pytest.raises(UsageError, match="quotes is 0"):
            plan_architecture_search(path, budget=budget, quotes=0)  # type: ignore[arg-type]
        options = ["x.csv", "--eps", "8", "--no-quotes", "--method", "all", "--out", "y",
                   "--labels", "no,yes"]  # fmt: skip
        monkeypatch.setattr("sys.argv", ["pasearch", "features", *options])
        with pytest.raises(SystemExit) as left:
            main()
        told = capsys.readouterr()
        assert left.value.code == 0, told.err
        assert "quotation marks are ordinary characters" in told.out
        assert json.loads(Path("y/private/request.json").read_text())["quotes"] is False
        document = json.loads(Path("y/release/result.json").read_text())
        assert document["dataset"]["schema"]["quotes"] is False


class TestForm:
    @pytest.mark.unit
    def test_the_header_ends_at_the_first_line_feed(self):
        for start, rest in [
            (b"a,b\n1,2", b"1,2"),
            (b"a,b\r\n1,2", b"1,2"),
            (b"a,b\n\r\r1\r,2\r", b"\r\r1\r,2\r"),
            (b"\xef\xbb\xbfa,b\n1,2", b"1,2"),
            (b"a,b", b""),
        ]:
            file = io.BytesIO(start)
            assert read_header(file, quotes=True)[1] == ["a", "b"]
            assert file.read() == rest

    @pytest.mark.unit
    def test_a_header_with_another_carriage_return_is_refused(self):
        for start in [
            b"a,b\r",
            b"a,b\r1,2\r\n",
            b"\xef\xbb\xbfa,b\r1,2",
            b"\ra,b\n1,2",
        ]:
            with pytest.raises(LineEndError):
                read_header(io.BytesIO(start), quotes=True)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "first", [b"1,yes", b"", b"\xff\0", b'"', b"\xef\xbb\xbf", b"1" * 10**6]
    )
    def test_a_file_of_carriage_returns_is_refused_whatever_its_records_are(
        self, first: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture,
    ):  # fmt: skip
        monkeypatch.chdir(tmp_path)
        answers = set()
        for rows in ([first] + [b"1,yes"] * 299, [b"1,yes"] * 299 + [first], [first] * 300):
            Path("x.csv").write_bytes(b"a,label\r" + b"\r".join(rows) + b"\r")
            monkeypatch.setattr(
                "sys.argv", ["pasearch", "features", "x.csv", "--eps", "2", "--dry-run"]
            )
            with pytest.raises(SystemExit) as left:
                main()
            answers.add((left.value.code, *capsys.readouterr()))
        assert len(answers) == 1
        code, out, err = answers.pop()
        assert (code, out) == (2, "")
        assert "LF or CR LF" in err.replace("\n", " ")

    @pytest.mark.property
    @settings(max_examples=200, deadline=None)
    @given(row=ROWS)
    @example(row=b"\r")
    def test_a_last_record_without_an_end_is_always_one(self, row: bytes):
        row = row.replace(b"\n", b"") or b"x"
        assert len(list(LineForm().rows(io.BytesIO(b"1\n2\n" + row)))) == 3

    @pytest.mark.unit
    def test_a_first_line_without_end_is_no_header(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(lines, "MAX_HEADER_BYTES", 100)
        path = tmp_path / "x.csv"
        path.write_bytes(b"a,b" + b"secret" * 50 + b"\n1,2\n")
        with pytest.raises(UsageError, match="its first line has more than") as caught:
            read_table(path)
        assert "secret" not in str(caught.value)

    @pytest.mark.unit
    def test_faults_are_told_apart_for_the_curator(self, tmp_path: Path):
        rows = [GOOD, b"\xff,1,2,3", b'"1,2,3,4', b"1,2", b"", b'"1"2,3,4,5', GOOD]
        path = written(tmp_path / "x.csv", rows)
        Q = Fault.QUOTES
        _, features, _, faults = read_table_with_faults(path)
        assert faults == [None, Fault.ENCODING, Q, Fault.WIDTH, Fault.EMPTY, Q, None]
        assert [each is None for each in faults] == features.present().tolist()
        assert read_table_with_faults(path, quotes=False)[3][2] is None

    @pytest.mark.property
    def test_a_long_cell_takes_memory_in_proportion(self, tmp_path: Path):
        path = written(tmp_path / "x.csv", [GOOD, STRANGE["10 MB"], STRANGE["10 MB, open"]])
        tracemalloc.start()
        try:
            read_table(path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 12 * 10_000_000
