"""Files without a header, other separators, compressed ones: the same table as the plain file."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from pasearch.api.request import SearchRequest
from pasearch.cli import main
from pasearch.curator.check import check_table
from pasearch.data.column import Column
from pasearch.data.csv_file import read_table, read_table_with_faults, strip_suffixes
from pasearch.data.lines import BLANK_SEPARATOR, OTHER_SEPARATORS, SEPARATORS, parse_separator
from pasearch.data.sources import load_dataset, load_new_records
from pasearch.data.table_format import read_column_names
from pasearch.data.tables import TableSchema, make_undeclared_schema
from pasearch.errors import UsageError

NAMES = ("age", "job", "pay", "label")
HEADER = b"age,job,pay,label\n"
ROWS = b'33,"cook, old",1.5,yes\n20,nurse,?,no\n\xff,a,b,c\n1,2\n 7 ,,x,no\n'
SCHEMA = TableSchema(
    columns=(
        Column(name="age", low=0, high=90),
        Column(name="job", categories=("cook, old", "nurse")),
        Column(name="pay", low=0, high=9),
    ),
    target=Column(name="label", categories=("no", "yes")),
)


def cells(*table: Any) -> tuple[list[list[str | None]], list[str | None]]:
    path, given = table if len(table) == 2 else (*table, {})
    _, features, labels = read_table(path, **given)
    return features.tolist(), labels.tolist()


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_bytes(HEADER + ROWS)
    return path


def zstandard(content: bytes) -> bytes:
    target = pa.BufferOutputStream()
    with pa.CompressedOutputStream(target, "zstd") as file:
        file.write(content)
    return target.getvalue().to_pybytes()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard,
}  # fmt: skip


@pytest.mark.parametrize("suffix", PACKED)
class TestCompressed:
    @pytest.mark.oracle
    def test_is_the_same_data_set(self, suffix: str, plain: Path):
        packed = plain.with_name("people.CSV" + suffix)
        packed.write_bytes(PACKED[suffix](plain.read_bytes()))
        one, other = load_dataset(str(plain)), load_dataset(str(packed))
        assert one.fingerprint() == other.fingerprint()
        assert (other.name, other.n, other.schema) == ("people", 5, one.schema)
        packed.write_bytes(PACKED[suffix](ROWS))
        assert cells(packed, {"columns": NAMES}) == cells(plain)

    @pytest.mark.unit
    def test_what_is_broken_is_refused_and_tells_nothing(self, suffix: str, tmp_path: Path):
        path = tmp_path / f"x.csv{suffix}"
        draw = np.random.default_rng(0)
        numbers = draw.integers(0, 10**9, (9999, 2)).tolist()
        rows = b"".join(b"%d,%d,secret,yes\n" % tuple(each) for each in numbers)
        whole = PACKED[suffix](HEADER + rows)
        middle = len(whole) // 2
        broken = [HEADER + ROWS, whole[:middle], whole[:-3]]
        if suffix != ".zst":  # which was written without a checksum
            broken.append(whole[:middle] + bytes(40) + whole[middle + 40 :])
        for content in broken:
            path.write_bytes(content)
            with pytest.raises(UsageError, match="cannot be unpacked") as caught:
                load_dataset(str(path))
            assert "secret" not in str(caught.value)
        path.write_bytes(whole)
        assert load_dataset(str(path)).n == 9999


@pytest.mark.unit
def test_the_name_of_a_data_set_is_without_endings():
    for name in ("a.b.csv", "a.b.csv.gz", "a.b.CSV.ZST", "a.b"):
        assert strip_suffixes(Path(name), (".csv",)) == "a.b"
    assert strip_suffixes(Path(".csv"), (".csv",)) == ".csv"


class TestBlanks:
    """Cells with runs of blanks between them, as most old data sets of UCI have them."""

    LINES = (
        b'18.0   8   307.0      130.0\t"chevrolet chevelle"\n',
        b'   15.0   8   350.0      ?      \t"buick, skylark"  \r\n',
        b"36 4 79 58 rabbit\n",
        b"36 4 79\n",
        b"   \n",
        b'36 4 79 58 "open\n',
        b"36 4 79 58 \xff\n",
    )
    CELLS = (
        ["18.0", "8", "307.0", "130.0", "chevrolet chevelle"],
        ["15.0", "8", "350.0", "?", "buick, skylark"],
        ["36", "4", "79", "58", "rabbit"],
        [None] * 5, [None] * 5, [None] * 5, [None] * 5,
    )  # fmt: skip

    @pytest.mark.unit
    @pytest.mark.parametrize("name", ["auto.data", "auto.csv"])
    def test_are_read_without_a_header(self, tmp_path: Path, name: str):
        path = tmp_path / name
        path.write_bytes(b"".join(self.LINES))
        read, features, labels = read_table(path, columns="a,b,c,d,name", separator="space")
        assert [[*row, y] for row, y in zip(features.tolist(), labels.tolist(), strict=True)] == [
            *self.CELLS
        ]
        faults = read_table_with_faults(path, None, read)[3]
        assert [fault is None for fault in faults] == [True] * 3 + [False] * 4
        assert check_table(path, columns="a,b,c,d,name", separator="space").n == 7

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("header", "given", "read"),
        [
            (b"a   b c  d name\n", {}, True),
            (b"  a\tb  c\t d\tname\n", {"separator": "space"}, True),
            (b"a b c d name\n", {"separator": "space"}, True),
            (b"a b c d name\n", {"target": "name"}, True),
            (b"a b c d name\n", {}, False),
            (b"A title of words\n", {}, False),
        ],
    )
    def test_the_header_or_its_names_tell(
        self, tmp_path: Path, header: bytes, given: dict[str, Any], read: bool
    ):
        path = tmp_path / "auto.csv"
        for some in (self.LINES, self.LINES[:1], (b"1,2\n",), (b"1;2\n",)):
            path.write_bytes(header + b"".join(some))
            if not read:
                with pytest.raises(UsageError, match=r"`separator=` \('space'"):
                    read_table(path, **given)
                continue
            schema, features, _ = read_table(path, **given)
            assert [each.name for each in schema.columns] == ["a", "b", "c", "d"]
            if some[0] == self.LINES[0]:
                assert features.tolist() == [row[:4] for row in self.CELLS[: len(some)]]


class TestDeclaredSeparator:
    @pytest.mark.unit
    @pytest.mark.parametrize("first", [b"sep=;\n", b"\xef\xbb\xbfsep=;\r\n", b'"sep=;"\n'])
    def test_stands_above_the_header(self, tmp_path: Path, first: bytes):
        path = tmp_path / "t.csv"
        path.write_bytes(first + b"a,x;b\n1,5;no\n2,5;yes\n3;4;5\n")
        schema, features, labels = read_table(path)
        assert [each.name for each in schema.columns] == ["a,x"]
        assert (features.tolist(), labels.tolist()) == (
            [["1,5"], ["2,5"], [None]], ["no", "yes", None],
        )  # fmt: skip
        wrong = next(p for p in check_table(path).problems if "not as many values" in p.what)
        assert wrong.rows == (5,)
        assert read_table_with_faults(path, None, schema)[3][:2] == [None, None]

    @pytest.mark.unit
    def test_is_a_record_where_there_is_no_header(self, tmp_path: Path):
        path = tmp_path / "t.csv"
        path.write_bytes(b"sep=;\n1,no\n")
        assert cells(path, {"columns": "a,b"}) == ([[None], ["1"]], [None, "no"])


class TestOtherFormats:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("name", "content", "match"),
        [
            ("t.csv", b"PK\x03\x04\n..", "a zip archive: unpack it"),
            (
                "t.csv",
                gzip.compress(b"a,b\n1,2\n", mtime=0),
                r"gzip: rename it so that its name ends in .csv",
            ),
            ("t.csv", bz2.compress(b"a,b\n1,2\n"), r"ends in .csv.bz2"),
            ("t.csv", lzma.compress(b"a,b\n1,2\n"), r"ends in .csv.xz"),
            ("t.csv", b"\x28\xb5\x2f\xfd\n", r"ends in .csv.zst"),
            ("t.csv", b"PAR1\n", r"ends in .parquet"),
            ("t.csv", b"ARROW1\0\0\n", "save it as Parquet"),
            ("t.csv", "a,b\n1,2\n".encode("utf-16"), "UTF-16: save it as CSV UTF-8"),
            ("t.csv", "a,b\n1,2\n".encode("utf-16-le"), "NUL characters, so it is UTF-16"),
            ("t.feather", b"ARROW1", r"read_feather\(path\).to_parquet"),
            ("t.json", b"{}", "JSON: save it"),
            ("t.xlsx", b"PK\x03\x04\n..", "in Excel: Save as"),
        ],
    )
    def test_are_named_with_what_to_do(self, tmp_path: Path, name: str, content: bytes, match: str):
        path = tmp_path / name
        path.write_bytes(content)
        for read in (load_dataset, check_table, lambda data: load_new_records(data, SCHEMA)):
            with pytest.raises(UsageError, match=match):
                read(str(path))

    @pytest.mark.unit
    def test_a_folder_of_partitions(self, tmp_path: Path):
        for year in (2023, 2024):
            folder = tmp_path / "t" / f"year={year}"
            folder.mkdir(parents=True)
            pd.DataFrame({"a": [1.0], "y": ["no"]}).to_parquet(folder / "part-0.parquet")
        for read in (load_dataset, check_table, lambda data: load_new_records(data, SCHEMA)):
            with pytest.raises(
                UsageError, match=r"partitioned table \(year=2023, ...\).*save it as one"
            ):
                read(str(tmp_path / "t"))


class TestSeparators:
    @pytest.mark.oracle
    @pytest.mark.parametrize(
        "separator", [*SEPARATORS, *OTHER_SEPARATORS.replace(BLANK_SEPARATOR, "")]
    )
    @pytest.mark.parametrize("header", [True, False])
    def test_tell_the_same_cells_apart(
        self, separator: str, header: bool, plain: Path, tmp_path: Path
    ):
        other = tmp_path / "other.csv"
        rows = ROWS.replace(b"cook, old", b"COOK").replace(b",", separator.encode())
        rows = rows.replace(b"COOK", b"cook, old").replace(b" 7 ", b"7")
        head = HEADER.replace(b",", separator.encode()) if header else b""
        other.write_bytes(head + rows)
        plain.write_bytes(plain.read_bytes().replace(b" 7 ", b"7"))
        given = {} if header else {"columns": ",".join(NAMES)}
        if separator not in SEPARATORS or not header:
            given["separator"] = separator
        assert cells(other, given) == cells(plain)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("header", "names"),
        [
            ("a;b;c,d", ["a", "b", "c,d"]),
            ("a,b;c", ["a", "b;c"]),
            ('"a;b",c', ["a;b", "c"]),
            ("a\tb c", ["a", "b c"]),
            ("a|b|c,d", ["a", "b", "c,d"]),
        ],
    )
    def test_the_header_alone_tells(self, header: str, names: list[str], tmp_path: Path):
        path, found = tmp_path / "x.csv", set()
        for rows in ("1;2;3\n1;2;3\n", "1,2\n", "1|2|3|4\n", '"\n'):
            path.write_text(f"{header}\n{rows}")
            schema = read_table(path)[0]
            assert [each.name for each in (*schema.columns, schema.target)] == names
            found.add(schema)
        assert len(found) == 1

    @pytest.mark.unit
    def test_tabs_are_usual_in_a_tsv_without_header(self, tmp_path: Path):
        path = tmp_path / "x.tsv.gz"
        path.write_bytes(gzip.compress(b"1\t2\n3,4\t5\n"))
        assert cells(path, {"columns": "a,b"}) == ([["1"], ["3,4"]], ["2", "5"])

    @pytest.mark.unit
    def test_has_names(self):
        assert [parse_separator(each) for each in ("tab", "\\t", "semicolon", "|")] == list(
            "\t\t;|"
        )
        for wrong in ("", "ab", '"', "\n", "1", "a", "é", ".", "-", "\r", 5):
            with pytest.raises(UsageError, match="expected one character"):
                parse_separator(wrong)  # type: ignore[arg-type]


class TestWithoutHeader:
    @pytest.mark.oracle
    @pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
    def test_every_line_is_a_record(self, mark: bytes, plain: Path, tmp_path: Path):
        path, names = tmp_path / "people.data", tmp_path / "names.txt"
        path.write_bytes(mark + ROWS)
        names.write_text("age\n\njob \npay\nlabel\n", encoding="utf-8-sig")
        for columns in (NAMES, list(NAMES), "age, job,pay,label", names, str(names)):
            assert cells(path, {"columns": columns}) == cells(plain)
        one, other = load_dataset(str(plain)), load_dataset(str(path), columns=NAMES)
        assert one.fingerprint() == other.fingerprint()
        assert (other.name, other.n) == ("people", 5)

    @pytest.mark.unit
    def test_a_record_tells_nothing(self, tmp_path: Path):
        path, schemas = tmp_path / "x.csv", set()
        for first in (b"1,2", b"a,b", b"\xff", b'"', b"a,b,c", b"a;b", b"", b"\r1\r", b"x" * 10**6):
            path.write_bytes(first + b"\n1,2\n")
            dataset = load_dataset(str(path), columns="a,b")
            assert dataset.n == 2
            schemas.add(dataset.schema)
        assert len(schemas) == 1

    @pytest.mark.unit
    def test_a_schema_says_so(self, plain: Path, tmp_path: Path):
        data, toml = tmp_path / "people.data", tmp_path / "s.toml"
        data.write_bytes(ROWS.replace(b"cook, old", b"cook").replace(b",", b";"))
        toml.write_text(
            'target = "label"\nheader = false\nseparator = ";"\n[columns.age]\nlow = 0\nhigh = 90\n'
            "[columns.job]\n[columns.pay]\n[columns.label]\n"
        )
        schema = TableSchema.from_toml(toml)
        assert (schema.order, schema.separator) == (NAMES, ";")
        found, features, _ = read_table(data, schema=schema)
        assert features.tolist()[1] == ["20", "nurse", "?"]
        assert TableSchema.from_json(json.loads(json.dumps(found.to_json()))) == found
        toml.write_text(found.to_toml_text())
        assert TableSchema.from_toml(toml) == found
        report = check_table(data, columns=NAMES, separator=";")
        toml.write_text(report.toml())
        assert TableSchema.from_toml(toml).order == NAMES

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ('target = "a"\nheader = 0\n[columns.a]\n[columns.b]', "header is 0"),
            ('target = "a"\nheader = false\n[columns.b]\n[columns.c]', "header = false"),
            ('target = "a"\nheader = false\n[columns.a]', "header = false"),
            ('target = "a"\nseparator = "xy"\n', "separator is 'xy'"),
        ],
    )
    def test_a_bad_schema_is_refused(self, text: str, match: str, tmp_path: Path):
        (tmp_path / "s.toml").write_text(text)
        with pytest.raises(UsageError, match=match):
            TableSchema.from_toml(tmp_path / "s.toml")

    @pytest.mark.unit
    def test_names_that_are_none_are_refused(self):
        for columns, match in [
            ("a", "two columns or more"),
            ("a,,b", "column 2 has no name"),
            (["a", "b", "a"], "columns 1 and 3 have the same name"),
            ([1, 2], "expected the column names"),
            ("none.txt", "does not exist"),
            ([], "two columns or more"),
        ]:
            with pytest.raises(UsageError, match=match):
                read_column_names(columns)
            with pytest.raises(UsageError, match=match):
                SearchRequest("x.csv", columns=columns)


@pytest.mark.unit
def test_a_run_without_header_is_planned_run_and_predicts_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    age = draw.integers(20, 60, 400)
    rows = "".join(f"{a};{'cook' if a % 2 else 'nurse'};{'no' if a < 40 else 'yes'}\n" for a in age)
    Path("people.data.gz").write_bytes(gzip.compress(rows.encode()))
    Path("new.csv").write_text("job,age\ncook,21\nnurse,58\n")
    Path("new.data").write_text("21;cook\n58;nurse\n")
    table = pa.table({"job": ["cook", "nurse"], "age": [21, 58]})
    parquet.write_table(table, "new.parquet")
    form = ["people.data.gz", "--columns", "age,job,label", "--separator", "semicolon"]
    answers = []
    for command in (
        ["check", *form],
        ["plan", "arch", *form, "--eps", "2"],
        ["features", *form, "--eps", "20", "--method", "all", "--quiet", "--out", "run"],
        ["predict", "run", "new.csv"],
        ["predict", "run", "new.data"],
        ["predict", "run", "new.parquet"],
    ):
        monkeypatch.setattr("sys.argv", ["pasearch", *command])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert left.value.code == 0, err
        answers.append(out)
    assert "people: 400 records, 2 columns" in answers[0].replace("people.data.gz", "people")
    assert "400 records" in answers[1]
    assert answers[3] == answers[4] == answers[5]
    assert answers[3].count("\n") == 3
    kept = json.loads(Path("run/private/request.json").read_text())
    assert (kept["columns"], kept["separator"]) == (["age", "job", "label"], ";")
    released = json.loads(Path("run/release/result.json").read_text())["dataset"]["schema"]
    assert (released["order"], released["separator"]) == (kept["columns"], ";")


class TestNewRecords:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        "content",
        [
            HEADER + ROWS,
            ROWS,
            b"pay;job;age\n" + b"1.5;cook, old;33\n?;nurse;20\n\xff\n\n;x;7\n",
        ],
        ids=["with header", "without", "other order"],
    )
    @pytest.mark.parametrize("headed", [True, False])
    def test_are_found_by_name_or_by_place(self, content: bytes, headed: bool, tmp_path: Path):
        path = tmp_path / "people.csv"
        path.write_bytes((HEADER if headed else b"") + ROWS)
        schema, features, _ = read_table(path, schema=SCHEMA, columns=None if headed else NAMES)
        x = np.zeros((5, *schema.shape), np.float32)
        schema.encode(features, out=x)
        (tmp_path / "new.csv").write_bytes(content)
        if headed and content == ROWS:
            with pytest.raises(UsageError, match="looks like a record") as caught:
                load_new_records(str(tmp_path / "new.csv"), schema)
            assert "columns=" not in str(caught.value)
            return
        found = schema.encode_new(load_new_records(str(tmp_path / "new.csv"), schema))
        if content.startswith(b"pay"):
            x[4, schema.names.index("job = other")] = 1
            x[4, schema.names.index("job missing")] = 0
            x[4, schema.names.index("pay missing")] = 1
        assert found.tolist() == x.tolist()

    @pytest.mark.unit
    def test_without_a_header_the_target_may_be_left_out(self, tmp_path: Path):
        path = tmp_path / "people.data"
        path.write_bytes(b"1,no,2\n3,yes,4\n")
        schema, features, _ = read_table(path, "y", columns="a,y,b")
        (tmp_path / "new.data").write_bytes(b"1,2\n3,4\n")
        found = load_new_records(str(tmp_path / "new.data"), schema)
        assert found.tolist() == features.tolist() == [["1", "2"], ["3", "4"]]

    @pytest.mark.unit
    @pytest.mark.parametrize("decimal", [".", ","])
    @pytest.mark.parametrize(
        "header", ["dose", "dose,y", "y;dose", "dose\ty", '"dose"', "\ufeffdose", " dose "]
    )
    def test_of_one_feature_are_read_with_and_without_the_target(
        self, tmp_path: Path, header: str, decimal: str
    ):
        """A line of one column has nothing to take apart: a comma belongs to its number."""
        schema = TableSchema.from_dict({
            "target": "y",
            "decimal": decimal,
            "columns": {"dose": {"low": 0, "high": 10}, "y": {"categories": ["lo", "hi"]}},
        })  # fmt: skip
        path, split = tmp_path / "new.csv", next((c for c in ",;\t" if c in header), "")
        cells = [f"1{decimal}5", "7", "", "NA"]
        if decimal == "," == split or (decimal == "," and '"' in header):
            cells[0] = f'"{cells[0]}"'
        first = header.startswith("y")
        rows = [f"lo{split}{cell}" if first else cell + (split and f"{split}hi") for cell in cells]
        for end in ("\n", "\r\n"):
            path.write_bytes((end.join([header, *rows]) + end).encode())
            found = load_new_records(str(path), schema)
            expected = schema.encode_new(pd.DataFrame({"dose": [1.5, 7.0, None, None]}))
            assert schema.encode_new(found).tolist() == expected.tolist()
        pd.DataFrame({"dose": [1.5, 7.0, None, None]}).to_parquet(tmp_path / "new.parquet")
        found = load_new_records(str(tmp_path / "new.parquet"), schema)
        assert schema.encode_new(found).tolist() == expected.tolist()

    @pytest.mark.unit
    def test_what_is_ignored_need_not_be_there(self, tmp_path: Path):
        schema = make_undeclared_schema(["id", "age", "label"], "label")
        schema = schema.completed({"id": Column(name="id", kind="ignore")})
        (tmp_path / "new.csv").write_text("x,age\n1,33\n1,20\n")
        assert load_new_records(str(tmp_path / "new.csv"), schema)[:, 1].tolist() == ["33", "20"]
        (tmp_path / "new.csv").write_text("x,id\n1,33\n")
        with pytest.raises(UsageError, match="no column 'age'"):
            load_new_records(str(tmp_path / "new.csv"), schema)
