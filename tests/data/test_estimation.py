"""Estimating a schema: what comes out, what it costs, and that an audit sees what costs more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import beta, norm

from pasearch.accounting.budget import Budget
from pasearch.accounting.events import ApproximateDP, Composition, Gaussian
from pasearch.api.search import plan_architecture_search
from pasearch.data import estimation as module
from pasearch.data.column import MAX_COUNTED_WORDS, Column
from pasearch.data.estimation import KIND_TEST_FRACTION, SchemaEstimate, read_public_schema
from pasearch.data.schema import Schema
from pasearch.data.tables import TableSchema, make_undeclared_schema
from pasearch.errors import UsageError
from pasearch.runs import estimates
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.sums import GaussianSum

HEADER = ("age", "job", "code", "label")


def estimate(sigma: float = 5.0, delta: float = 1e-7, most: int = 8) -> SchemaEstimate:
    return SchemaEstimate(noise_multiplier=sigma, delta=delta, most=most)


def stream(*context: int) -> Stream:
    return Keys.from_seed(3).stream("schema", *context)


def table(rows: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    cells = np.empty((rows, 3), object)
    cells[:, 0] = [str(age) for age in draw.integers(17, 91, rows)]
    cells[:, 1] = draw.choice(["cook", "nurse", "smith", "?"], rows, p=[0.5, 0.3, 0.15, 0.05])
    cells[:, 2] = [None] * rows
    cells[0, 1], cells[1, 0] = "spy", "very old"
    labels = draw.choice(np.array(["0", "1", " 2 "], object), rows)
    return cells, labels


class TestTables:
    @pytest.mark.unit
    def test_kinds_bounds_categories_and_classes_are_found(self):
        for i in range(10):
            found = estimate().estimate(
                make_undeclared_schema(HEADER, "label"), *table(), stream(i)
            )
            age, job, code = found.columns
            assert (age.kind, age.low, age.high) == ("number", 16.0, 256.0)
            assert (job.kind, job.categories) == ("category", ("cook", "nurse", "smith"))
            assert (code.kind, code.categories) == ("category", ())
            # Classes are names, even where they look like numbers.
            assert found.target.kind == "category"
            assert sorted(found.target.categories) == ["0", "1", "2"]
            assert found.complete

    @pytest.mark.unit
    def test_what_is_declared_stays_and_a_declared_kind_is_not_asked_for(self):
        schema = TableSchema(
            columns=(
                Column(name="age", kind="category"),
                Column(name="job", categories=("cook",)),
                Column(name="code", kind="number", bins=3),
            ),
            target=Column(name="label", kind="number"),
        )
        cells, labels = table()
        found = estimate(most=3).estimate(schema, cells, labels, stream())
        assert found.columns[0].kind == "category"
        assert found.columns[1] == schema.columns[1]
        assert found.columns[2].bins == 3
        assert found.columns[2].low < found.columns[2].high
        assert (found.target.low, found.target.high) == (0.0, 2.0)

    @pytest.mark.unit
    def test_a_few_slots_give_a_schema_all_the_same(self):
        for rows in [1, 2, 12]:
            for sigma in [0.1, 5.0, 1e4]:
                cells, labels = table()
                for i in range(10):
                    schema = make_undeclared_schema(HEADER, "label")
                    found = estimate(sigma).estimate(schema, cells[:rows], labels[:rows], stream(i))
                    out = np.zeros((rows, *found.shape), np.float32)
                    found.encode(cells[:rows], out=out)
                    assert np.isfinite(out).all()
                    assert found.shape[0] <= schema.max_shape(8)[0]

    @pytest.mark.property
    def test_the_order_of_the_slots_does_not_matter_and_the_keys_do(self):
        cells, labels = table()
        order = np.random.default_rng(1).permutation(len(cells))
        schema, low = make_undeclared_schema(HEADER, "label"), estimate(150.0)
        first = low.estimate(schema, cells, labels, stream(0))
        assert low.estimate(schema, cells[order], labels[order], stream(0)) == first
        assert any(low.estimate(schema, cells, labels, stream(i)) != first for i in range(1, 20))


class TestReading:
    """What is said of how cells are read holds for what is estimated too."""

    @staticmethod
    def found(column: Column, values: list[str], times: int = 400) -> Column:
        cells = np.array(values * times, object)
        schema = TableSchema(columns=(column,), target=Column(name="t", low=0, high=1))
        features, labels = cells[:, None], np.zeros(len(cells))
        free = read_public_schema(schema, features, labels, 8).columns[0]
        kept = estimate().estimate(schema, features, labels, stream()).columns[0]
        assert kept.kind == free.kind
        return free

    @pytest.mark.unit
    def test_numbers_with_commas_are_categories_unless_it_is_said_how_they_are_written(self):
        values = ["1,5", "2,5", "9,25"]
        assert self.found(Column(name="c"), values).kind == "category"
        found = self.found(Column(name="c", decimal=","), values)
        assert (found.kind, found.low, found.high) == ("number", 1.5, 9.25)

    @pytest.mark.unit
    def test_marks_are_in_no_bound_and_no_category(self):
        found = self.found(
            Column(name="c", missing=("-999", "-")), ["1", "5", "6", "9", "-999", "-", "NA"]
        )
        assert (found.kind, found.low, found.high) == ("number", 1, 9)
        found = self.found(Column(name="c", missing=("-",)), ["a", "b", "-", "N/A", "?"])
        assert found.categories == ("a", "b")

    @pytest.mark.unit
    def test_capitals_do_not_matter_where_it_says_so(self):
        column = Column(name="c", kind="category", case=False, missing=("unknown",))
        values = ["Yes", "YES", "yes", "no", "NO", "Unknown", "nan", "NAN"]
        assert self.found(column, values).categories == ("no", "yes")
        # Noise may not tell two spellings of one value apart, nor stop at them.
        cells = np.array(values * 400, object)
        schema = TableSchema(columns=(column,), target=Column(name="t", low=0, high=1))
        for i in range(5):
            kept = estimate().estimate(schema, cells[:, None], np.zeros(len(cells)), stream(i))
            assert set(kept.columns[0].categories or ()) == {"no", "yes"}


class TestVocabulary:
    """Words of texts: counted for at most 16 distinct words of a record."""

    COLUMN = Column(name="c", length=40)

    def found(self, texts: list[str | None], sigma: float, source: Stream, delta: float = 1e-7):
        schema = TableSchema(columns=(self.COLUMN,), target=Column(name="t", low=0, high=1))
        cells = np.array(texts, object)[:, None]
        return estimate(sigma, delta).estimate(schema, cells, np.zeros(len(texts)), source)

    @pytest.mark.unit
    def test_frequent_words_are_found_most_frequent_first_and_rare_ones_are_not(self):
        texts = ["free free prize"] * 400 + ["Free hello"] * 300 + ["spy 1 01"]
        (column,) = self.found(texts, 1.0, stream()).columns
        assert column.vocabulary == ("free", "prize", "hello")
        (read,) = read_public_schema(
            TableSchema(columns=(self.COLUMN,), target=Column(name="t", low=0, high=1)),
            np.array(texts, object)[:, None], np.zeros(len(texts)), 2,
        ).columns  # fmt: skip
        assert read.vocabulary == ("free", "prize", "hello", "01", "1", "spy")

    @pytest.mark.property
    @example(texts=["one two"], more=" ".join(f"word{i}" for i in range(30)))
    @given(texts=st.lists(st.none() | st.text(max_size=60), max_size=4), more=st.text(max_size=200))
    def test_a_record_changes_16_counts_by_1_and_no_text_raises_an_error(self, texts, more):
        cells = np.array([*texts, more], object)
        every, without = self.COLUMN.count_words(cells), self.COLUMN.count_words(cells[:-1])
        moved = every - without
        assert without - every == {}
        assert len(moved) <= MAX_COUNTED_WORDS
        assert set(moved.values()) <= {1}
        (column,) = self.found([*texts, more], 1e-3, stream(), 0.4).columns
        assert column.is_declared
        encoded = np.zeros((len(cells), 40), np.float32)
        column.encode(cells, out=encoded)
        assert encoded.min() >= 0.0
        assert encoded.max() < 1.0

    @pytest.mark.contract
    def test_its_noise_covers_all_words_of_a_record(self, monkeypatch):
        seen: list[estimates.CategoryCounts] = []
        right = estimates.CategoryCounts.release

        def release(self: estimates.CategoryCounts, counts, stream: Stream) -> list[str]:
            seen.append(self)
            assert max(counts.values()) == 2
            return right(self, counts, stream)

        monkeypatch.setattr(estimates.CategoryCounts, "release", release)
        self.found(["a a a b", "a b c"], 5.0, stream(), 1e-6)
        (mechanism,) = seen
        # A record moves 16 counts by 1: 4 in L2 norm. Each unique word leaks with delta / 16.
        assert mechanism.noise_multiplier == 5.0 * math.sqrt(MAX_COUNTED_WORDS)
        assert mechanism.delta == 1e-6 / MAX_COUNTED_WORDS

    @pytest.mark.contract
    def test_a_vocabulary_that_is_not_declared_is_an_item_of_the_plan(self, tmp_path):
        file = tmp_path / "sms.csv"
        file.write_text("label,text\n" + "ham,hello you\nspam,free prize\n" * 300)
        for vocabulary, items in ((None, ["text"]), (["free"], [])):
            column = {"length": 6, **({} if vocabulary is None else {"vocabulary": vocabulary})}
            columns = {"label": {"categories": ["ham", "spam"]}, "text": column}
            plan = plan_architecture_search(
                file, schema={"target": "label", "columns": columns}, space="rnn",
                strategy="fixed", budget=Budget(2.0),
            )  # fmt: skip
            assert list(plan.schema.undeclared) == items
            assert [line.count for line in plan.lines if line.name == "schema"] == [1] * len(items)


class TestArrays:
    SCHEMA = Schema(shape=(2, 3))

    @pytest.mark.unit
    def test_bounds_and_classes_are_found(self):
        draw = np.random.default_rng(2)
        x, y = draw.uniform(0, 255, (2000, 2, 3)), draw.integers(0, 5, 2000)
        x[0, 0, 0] = -1e9
        x[1, 1, 1] = np.nan
        for i in range(10):
            found = estimate().estimate(self.SCHEMA, x, y, stream(i))
            assert 0 <= found.low <= 8
            assert found.high == 256.0
            assert found.classes == 5

    @pytest.mark.unit
    def test_the_number_to_predict_is_bounded(self):
        x, y = np.ones((1000, 2, 3)), np.linspace(-30, 50, 1000)
        found = estimate().estimate(replace(self.SCHEMA, regression=True), x, y, stream())
        assert found.classes is None
        assert found.target == pytest.approx((-32.0, 64 / math.sqrt(2)), rel=0.5)
        declared = replace(self.SCHEMA, low=0.0, high=1.0)
        assert estimate().estimate(declared, x, np.zeros(1000, int), stream()).high == 1.0

    @pytest.mark.unit
    def test_a_few_records_of_any_type_give_a_schema_all_the_same(self):
        for kind in [np.uint8, np.bool_, np.float32, np.int64]:
            for sigma in [0.1, 5.0, 1e4]:
                x, y = np.ones((3, 2, 3), kind), np.zeros(3, np.uint8)
                for i in range(10):
                    found = estimate(sigma).estimate(self.SCHEMA, x, y, stream(i))
                    assert found.low < found.high
                    assert 2 <= found.classes <= 8


class TestPrice:
    @pytest.mark.unit
    def test_is_that_of_a_gaussian_and_a_leak(self):
        estimated = estimate(7.0, 1e-8)
        assert estimated.event == Composition((Gaussian(7.0), ApproximateDP(0.0, 1e-8)))
        assert estimated.to_json() == {"noise_multiplier": 7.0, "delta": 1e-8, "most": 8}

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "numbers", [(0.0, 1e-7, 8), (math.nan, 1e-7, 8), (1.0, 0.0, 8), (1.0, 1e-7, 0)]
    )
    def test_other_numbers_are_refused(self, numbers):
        with pytest.raises(UsageError):
            estimate(*numbers)

    @pytest.mark.contract
    @pytest.mark.parametrize("name", ["number", "category", "undeclared", "label", "regression"])
    def test_no_item_of_a_table_has_less_noise_than_it_pays_for(self, monkeypatch, name: str):
        monkeypatch.setattr(estimates.NumberBins, "has_enough_records", lambda self, slots: True)
        declared = Column(name="x", low=0, high=1)
        by_name = {
            "number": (Column(name="c", kind="number"), declared),
            "category": (Column(name="c", kind="category"), declared),
            "undeclared": (Column(name="c"), declared),
            "label": (replace(declared, name="c"), Column(name="t")),
            "regression": (replace(declared, name="c"), Column(name="t", kind="number")),
        }
        column, target = by_name[name]
        schema = TableSchema(columns=(column,), target=replace(target, name="t"))
        cells, labels = table()
        for features in (cells[:, :1], cells[:, 1:2]):
            spent = self._spent(monkeypatch, schema, features, labels)
            assert spent == pytest.approx(1.0, rel=1e-12)

    @pytest.mark.contract
    @pytest.mark.parametrize("regression", [False, True])
    def test_no_item_of_arrays_has_less_noise_than_it_pays_for(self, monkeypatch, regression: bool):
        x, y = np.ones((50, 4)), np.arange(50) % 3
        both = Schema(shape=(4,), regression=regression)
        assert self._spent(monkeypatch, both, x, y) == pytest.approx(2.0, rel=1e-12)
        bounded = replace(both, low=0.0, high=1.0)
        assert self._spent(monkeypatch, bounded, x, y) == pytest.approx(1.0, rel=1e-12)

    def _spent(self, monkeypatch, schema, x: np.ndarray, y: np.ndarray) -> float:
        """The sum of 1 / sigma^2 over all noise that is drawn, as a share of one item's."""
        seen: list[float] = []
        right = GaussianSum.release

        def release(self: GaussianSum, total: np.ndarray, stream: Stream) -> np.ndarray:
            seen.append((5.0 / self.noise_multiplier) ** 2)
            return right(self, total, stream)

        with monkeypatch.context() as patch:
            patch.setattr(GaussianSum, "release", release)
            estimate(5.0).estimate(schema, x, y, stream())
        return sum(seen)


def audited_mu(kept: Callable[[int, Stream], bool], records: int, trials: int = 700) -> float:
    """The least mu that one record of so many, or one less, allow at 99.9% confidence."""

    def hits(count: int) -> int:
        return sum(kept(count, stream(count, i)) for i in range(trials))

    seen, other = hits(records), hits(records - 1)
    low = beta.ppf(5e-4, seen, trials - seen + 1) if seen else 0.0
    high = beta.ppf(1 - 5e-4, other + 1, trials - other) if other < trials else 1.0
    return float(norm.ppf(low) - norm.ppf(high))


def kind_found(count: int, source: Stream) -> bool:
    """Whether a column of `count` numbers and 8 - count words is said to hold numbers."""
    cells = np.array([*["3"] * count, *[None] * (8 - count)], object)
    schema = TableSchema(columns=(Column(name="c"),), target=Column(name="t", low=0, high=1))
    found = estimate(1.0).estimate(schema, cells[:, None], np.zeros(8), source)
    return found.columns[0].kind == "number"


class TestAuditOfKinds:
    MU = math.sqrt(KIND_TEST_FRACTION)

    @pytest.mark.statistical
    def test_finds_nothing_wrong(self):
        assert audited_mu(kind_found, 5) <= self.MU

    @pytest.mark.statistical
    @pytest.mark.parametrize("factor", [1 / 3, 1e-9])
    def test_sees_noise_that_is_too_small_or_off(self, monkeypatch, factor: float):
        def wrong(*, noise_multiplier: float) -> GaussianSum:
            return GaussianSum(noise_multiplier=factor * noise_multiplier)

        monkeypatch.setattr(module, "GaussianSum", wrong)
        assert audited_mu(kind_found, 5) > self.MU


class TestReadFree:
    @pytest.mark.unit
    def test_reads_what_is_there(self):
        cells, labels = table()
        found = read_public_schema(make_undeclared_schema(HEADER, "label"), cells, labels, 8)
        assert (found.columns[0].low, found.columns[0].high) == (17.0, 90.0)
        assert found.columns[1].categories == ("cook", "nurse", "smith", "spy")
        assert found.target.categories == ("0", "1", "2")
        arrays = read_public_schema(
            Schema(shape=(2,)), np.arange(6.0).reshape(3, 2), np.array([0, 3, 1]), 8
        )
        assert (arrays.low, arrays.high, arrays.classes) == (0.0, 5.0, 4)
