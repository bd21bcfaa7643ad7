"""A schema from a frame: the types of its columns decide, and no value is looked at."""

from __future__ import annotations

from io import StringIO
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pasearch
from pasearch import Budget, Schema, UsageError, plan_feature_selection
from pasearch.data.column import Column
from pasearch.data.frames import TYPES_DESCRIPTION, infer_kind
from pasearch.report.plan import feature_plan_text

DECLARED: dict[str, dict[str, Any]] = {
    "age": {"low": 17, "high": 90},
    "job": {"categories": ["cook", "nurse"]},
    "signed": {"lower": "2015-01-01", "upper": "2024-12-31"},
    "grade": {"categories": ["a", "b"]},
    "income": {"categories": ["low", "high"]},
}
GRADE = pd.CategoricalDtype(["a", "b"])


def people(rows: int = 200, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    day = pd.Timestamp("2015-01-01") + pd.to_timedelta(draw.integers(0, 3000, rows), "D")
    age = draw.integers(17, 91, rows)
    return pd.DataFrame(
        {
            "age": age,
            "job": draw.choice(["cook", "nurse"], rows),
            "signed": day,
            "member": draw.choice([True, False], rows),
            "grade": pd.Series(draw.choice(["a", "b"], rows)).astype(GRADE),
            "income": np.where(age > 50, "high", "low"),
        }
    )


class _Unread:
    """Columns as a frame has them, and not one value."""

    def __init__(self, frame: pd.DataFrame):
        self.columns, self.dtypes = frame.columns, frame.dtypes


class TestTypes:
    @pytest.mark.unit
    def test_tell_kinds(self):
        for dtype, kind in [
            ("int8", "number"),
            ("bool", "bool"),
            ("object", None),
            ("category", "category"),
            ("datetime64[ns]", "date"),
        ]:
            assert infer_kind(pd.Series([], dtype=dtype).dtype) == kind

    @pytest.mark.unit
    def test_a_whole_schema(self):
        schema = Schema.from_frame(people(), declared=DECLARED)
        assert schema.complete
        assert schema.columns[:4] == (
            Column(name="age", kind="number", low=17, high=90),
            Column(name="job", categories=("cook", "nurse")),
            Column(name="signed", lower="2015-01-01", upper="2024-12-31"),
            Column(name="member", categories=("False", "True"), case=False),
        )
        assert schema.target == Column(name="income", categories=("low", "high"))
        assert Schema.from_frame(people(), "member", DECLARED).target.name == "member"

    @pytest.mark.unit
    def test_categories_of_a_type_are_used_where_they_are_said_to_be_public(self):
        less = {key: value for key, value in DECLARED.items() if key != "grade"}
        schema = Schema.from_frame(people(), declared=less, categories_are_public=True)
        assert schema.columns[4].categories == ("a", "b")
        marked = less | {"grade": {"missing": ["-"]}}
        schema = Schema.from_frame(people(), declared=marked, categories_are_public=True)
        assert (schema.columns[4].categories, schema.columns[4].missing) == (("a", "b"), ("-",))
        with pytest.raises(UsageError, match=r"'grade' \(category\).*categories"):
            Schema.from_frame(people(), declared=less)

    @pytest.mark.unit
    def test_what_is_left_open_is_named_or_estimated(self):
        with pytest.raises(UsageError) as caught:
            Schema.from_frame(people())
        told = str(caught.value)
        for name in ("age", "job", "signed", "grade", "income"):
            assert f"'{name}'" in told
        assert "'member'" not in told
        schema = Schema.from_frame(people(), estimate=True)
        assert schema.undeclared == ("age", "job", "signed", "grade", "income")
        assert schema.columns[0].kind == "number"
        assert schema.columns[2].kind is None, "days of a date are declared, or it is no date"
        one = Schema.from_frame(people(), declared=DECLARED | {"job": {}})
        assert one.undeclared == ("job",)

    @pytest.mark.unit
    def test_what_makes_no_sense_is_refused(self):
        for arguments, told in [
            ({"declared": {"agee": {"low": 0}}}, "no column 'agee'; did you mean 'age'"),
            ({"declared": {3: {"low": 0}}}, "no column '3'"),
            ({"declared": {"age": {"lo": 0}}}, "unknown key 'lo'; did you mean 'low'"),
            ({"declared": {"age": {"low": 9, "high": 3}}}, "'age'.*low < high"),
            ({"declared": {"age": 3}}, "declared\\['age'\\] is 3: expected a dictionary"),
            ({"declared": {"signed": {"lower": "2015-01-01"}}}, "'signed'.*expected two days"),
            ({"declared": {"income": {"categories": ["low"]}}}, "target and has 1 class"),
            ({"target": "incom"}, "no column 'incom'; did you mean 'income'"),
            ({"target": "signed", "declared": DECLARED}, "is the target and is declared as date"),
        ]:
            with pytest.raises(UsageError, match=told):
                Schema.from_frame(people(), **({"estimate": True} | arguments))


class TestPrivacy:
    @pytest.mark.property
    @given(rows=st.integers(0, 9), seed=st.integers(0, 99))
    def test_frames_of_equal_types_have_equal_schemas(self, rows: int, seed: int):
        frame = people(9).iloc[:0] if rows == 0 else people(rows, seed)
        for arguments in ({"declared": DECLARED}, {"estimate": True}):
            want = Schema.from_frame(people(9), **arguments)
            assert Schema.from_frame(frame, **arguments) == want

    @pytest.mark.unit
    def test_no_value_is_read(self):
        want = Schema.from_frame(people(), declared=DECLARED)
        assert Schema.from_frame(_Unread(people()), declared=DECLARED) == want

    @pytest.mark.unit
    def test_categories_that_records_brought_are_not_used_unasked(self):
        frame = people()
        frame["job"] = frame["job"].astype("category")
        other = frame.assign(job=pd.Series(["spy"] * len(frame)).astype("category"))
        for arguments in ({"declared": DECLARED}, {"estimate": True}):
            assert Schema.from_frame(frame, **arguments) == Schema.from_frame(other, **arguments)


@pytest.mark.unit
def test_a_frame_is_planned_and_trained_with_it(tmp_path):
    frame = people()
    schema = Schema.from_frame(frame, declared=DECLARED)
    result = pasearch.train(
        frame, schema=schema, budget=Budget(8.0), steps=2, device="cpu", out=tmp_path / "run"
    )
    assert not any(name in str(result.document["estimated_privately"]) for name in frame)
    assert len(result.predict(frame)) == len(frame)
    assert result.schema.columns == schema.columns


def read(cell: str, **options: Any) -> pd.DataFrame:
    """A file as pandas reads it, of which one cell is another."""
    rows = [f"{17 + n % 60},{n % 2 == 0},{'ab'[n % 2]}" for n in range(200)]
    text = "age,smoker,label\n" + "\n".join([f"33,{cell},a", *rows])
    return pd.read_csv(StringIO(text), **options)


@pytest.mark.contract
class TestTypesArePublic:
    """Whoever lets pandas choose types by the values has taken them as public, and is told."""

    @staticmethod
    def planned(frame: pd.DataFrame) -> Any:
        return plan_feature_selection(frame, target="label", budget=Budget(2.0))

    def test_of_texts_nothing_is_taken_and_one_cell_changes_no_plan(self):
        options: dict[str, Any] = {"dtype": "str", "keep_default_na": False}
        plans = [self.planned(read(cell, **options)) for cell in ("True", "refused")]
        assert plans[0].assumed_public == plans[1].assumed_public == ()
        assert plans[0].to_json() == plans[1].to_json()

    @pytest.mark.parametrize("cell", ["True", "refused"])
    def test_of_others_they_are_listed(self, cell: str):
        plan = self.planned(read(cell))
        assert plan.assumed_public == (TYPES_DESCRIPTION,)
        text = feature_plan_text(plan)
        assert f"assumed public, so not charged: {TYPES_DESCRIPTION}" in text
        assert "keep_default_na=False" in text
