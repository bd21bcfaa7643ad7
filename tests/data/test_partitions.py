"""Slots, splits and the only door to a record: nothing here may depend on a value."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pasearch.accounting.events import Gaussian
from pasearch.data.front_ends import FittedFrontEnd, prepare_front_end
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.data.partitions import (
    Dataset,
    PartitionCells,
    Records,
    SealedArray,
    UnchargedReadError,
)
from pasearch.data.schema import Schema
from pasearch.data.split import PARTITIONS, Split, make_split
from pasearch.errors import BudgetError, UsageError
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Ledger, PlannedRelease, Receipt

SCHEMA = Schema(shape=(2,), low=-1.0, high=3.0, classes=3)
NUMBER = Schema(shape=(2,), low=-1.0, high=3.0, regression=True, target=(-10.0, 30.0))
SPLIT = Split(search=5, train=20, validation=7, test=8)
N = 40


def generator(seed: int = 1) -> np.random.Generator:
    return Keys.from_seed(seed).stream("split").generator()


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    source = np.random.Generator(np.random.PCG64(seed))
    return source.uniform(-1, 3, (N, 2)), source.integers(0, 3, N)


def dataset(
    x: np.ndarray, y: np.ndarray, *, public: bool = False, schema: Schema = SCHEMA
) -> Dataset:
    made = Dataset(name="people", schema=schema, features=x, labels=y, public=public)
    made.partition(SPLIT, generator())
    return made


def read(made: Dataset, name: str) -> Records:
    return made[name].open(Receipt(name))


class TestMakeSplit:
    @pytest.mark.unit
    def test_shares(self):
        assert make_split(1000) == Split(train=800, validation=100, test=100)
        shares = (0.5, 0.2, 0.3)
        assert make_split(1000, shares=shares) == Split(train=500, validation=200, test=300)

    @pytest.mark.unit
    def test_the_papers_split_never_trains_on_official_test_records(self):
        split = make_split(70, official_test=10, paper=True, search_share=0.1)
        slots = split.draw_positions(generator())
        assert set(np.concatenate([slots["search"], slots["train"]])) == set(range(60))
        assert set(np.concatenate([slots["validation"], slots["test"]])) == set(range(60, 70))
        unscored = make_split(70, official_test=10, paper=True, scored=False)
        assert unscored.train == 60

    @pytest.mark.unit
    def test_the_sizes_that_the_paper_prints(self):
        for n, sizes in [
            (48_842, (22_750, 0, 9_750)),
            (286, (191, 0, 95)),
            (5_574, (4_700, 0, 836)),
            (1_338, (1_000, 0, 300)),
            (197_324, (157_750, 5_000, 5_000)),
            (99_289, (42_000, 5_000, 5_000)),
        ]:
            split = make_split(n, paper=True, scored=False)
            assert (split.train, split.validation, split.test) == sizes
            assert (split.n, split.unused, split.fixed_tail) == (n, n - sum(sizes), 0)
            scored = make_split(n, paper=True)
            assert (scored.train + scored.validation, scored.test) == (
                sizes[0] + sizes[1],
                sizes[2],
            )
            assert scored.validation == (sizes[1] or round(0.1 * sizes[0]))

    @pytest.mark.unit
    def test_unused_records_are_in_no_partition(self):
        split = Split(train=50, validation=10, test=20, unused=20)
        slots = split.draw_positions(generator())
        found = np.concatenate([slots[name] for name in PARTITIONS])
        assert split.sizes() == {"train": 50, "validation": 10, "test": 20}
        assert len(set(found)) == len(found) == 80
        assert max(found) > 80, "drawn from all records"

    @pytest.mark.unit
    @pytest.mark.parametrize("n", [100, 569, 699, 70_000])
    def test_other_data_have_no_split_in_the_paper(self, n: int):
        with pytest.raises(UsageError, match=r"no split of .* records: .*Breast Cancer \(286\)"):
            make_split(n, paper=True)

    @pytest.mark.unit
    @pytest.mark.parametrize("scored", [True, False])
    @pytest.mark.parametrize("share", [0.0, 0.3])
    def test_a_kept_test_set_is_measured_on_and_never_trained_or_scored_on(
        self, scored: bool, share: float
    ):
        split = make_split(70, official_test=10, scored=scored, search_share=share)
        slots = split.draw_positions(generator())
        assert set(slots["test"]) == set(range(60, 70))
        others = [slots[name] for name in PARTITIONS if name != "test"]
        assert set(np.concatenate(others)) == set(range(60))
        assert (split.validation, split.search) == (6 * scored, round((60 - 6 * scored) * share))

    @pytest.mark.unit
    def test_shares_that_do_not_add_up(self):
        for shares in [
            (0.8, 0.1, 0.2),
            (0.8, 0.2, 0.0),
            (1.0, 0.0, 0.0),
            (-0.1, 0.6, 0.5),
            (math.nan, 0.1, 0.1),
        ]:
            with pytest.raises(UsageError, match="sum to 1"):
                make_split(100, shares=shares)

    @pytest.mark.unit
    def test_a_search_share_outside_its_range(self):
        for share in [-0.1, 1.0, 1.5, math.nan, math.inf]:
            with pytest.raises(UsageError, match="search_share="):
                make_split(100, search_share=share)

    @pytest.mark.unit
    @pytest.mark.parametrize("n", [1, 2, 3, 4])
    def test_too_few_records(self, n: int):
        with pytest.raises(UsageError, match="too few"):
            make_split(n)

    @pytest.mark.unit
    def test_an_impossible_split(self):
        for sizes in [
            {"train": 0, "test": 5},
            {"train": 5, "test": 5, "search": -1},
            {"train": 5, "test": 5, "unused": 1, "fixed_tail": 5},
            {"train": 5, "validation": 4, "test": 5, "fixed_tail": 4},
        ]:
            with pytest.raises(UsageError):
                Split(**sizes)


class TestSlots:
    @pytest.mark.property
    @settings(max_examples=50)
    @given(
        sizes=st.tuples(
            st.integers(0, 30), st.integers(1, 30), st.integers(0, 30), st.integers(1, 30)
        ),
        fixed=st.sampled_from([(), ("test",), ("validation", "test")]),
        seed=st.integers(0, 2**32),
    )
    def test_every_slot_is_in_exactly_one_partition(self, sizes: tuple, fixed: tuple, seed: int):
        named = dict(zip(PARTITIONS, sizes, strict=True))
        tail = sum(named[name] for name in fixed)
        split = Split(**named, fixed_tail=tail)
        slots = split.draw_positions(generator(seed))
        assert {name: len(part) for name, part in slots.items()} == named
        assert sorted(np.concatenate(list(slots.values()))) == list(range(split.n))
        assert all((slots[name] >= split.n - tail).all() for name in fixed)

    @pytest.mark.statistical
    def test_every_slot_reaches_every_partition_in_its_share(self):
        counts = np.zeros((4, N))
        for seed in range(600):
            slots = SPLIT.draw_positions(generator(seed))
            for row, name in enumerate(PARTITIONS):
                counts[row, slots[name]] += 1
        for row, name in enumerate(PARTITIONS):
            share = getattr(SPLIT, name) / N
            # 160 binomial counts: below 5 standard deviations but for one test in 10^4.
            assert (abs(counts[row] / 600 - share) < 5 * math.sqrt(share * (1 - share) / 600)).all()

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "change",
        [
            lambda x, y: (x[::-1], y[::-1]),
            lambda x, y: (x * 0 + np.nan, y),
            lambda x, y: (x, y * 0 - 7),
            lambda x, y: (x, np.sort(y)),
        ],
        ids=["permuted", "not finite", "null labels", "sorted labels"],
    )
    def test_the_split_sees_no_value(self, change: Callable):
        before = dataset(*arrays())
        after = dataset(*change(*arrays()))
        for name in PARTITIONS:
            assert (before[name]._slots == after[name]._slots).all()
            assert len(before[name]) == len(after[name]) == getattr(SPLIT, name)

    @pytest.mark.unit
    def test_a_split_of_another_size_is_refused(self):
        x, y = arrays()
        made = Dataset(name="people", schema=SCHEMA, features=x, labels=y)
        with pytest.raises(UsageError, match="41 records"):
            made.partition(Split(train=33, test=8), generator())
        with pytest.raises(KeyError, match="call `partition` first"):
            made["train"]


class TestTheDoor:
    @pytest.mark.unit
    def test_a_charge_opens_its_own_partition_only(self, tmp_path: Path):
        made = dataset(*arrays())
        lines = [
            PlannedRelease(
                name="x", partition="train", event=Gaussian(noise_multiplier=1.0), count=1
            )
        ]
        with Ledger.create(tmp_path / "ledger", lines) as ledger:
            with ledger.charged("x", made["train"], key="k") as records:
                assert len(records) == 20
            with (
                pytest.raises(BudgetError, match="no line"),
                ledger.charged("x", made["test"], key="k"),
            ):
                pytest.fail("opened")
            assert [(name, count) for _, name, _, count in ledger.spent()] == [("train", 1)]

    @pytest.mark.unit
    def test_no_charge_no_record(self):
        for receipt in [None, True, "train", Receipt("test"), object()]:
            made = dataset(*arrays())
            with pytest.raises(UnchargedReadError, match="ledger"):
                made["train"].open(receipt)  # type: ignore[arg-type]

    @pytest.mark.unit
    def test_a_look_alike_of_a_receipt_opens_nothing(self):
        class Forged:
            partition = "train"
            active = True

        with pytest.raises(UnchargedReadError):
            dataset(*arrays())["train"].open(Forged())  # type: ignore[arg-type]

    @pytest.mark.unit
    def test_a_closed_receipt_opens_nothing(self):
        made = dataset(*arrays())
        receipt = Receipt("train")
        made["train"].open(receipt)
        receipt.active = False
        with pytest.raises(UnchargedReadError):
            made["train"].open(receipt)

    @pytest.mark.unit
    def test_the_name_that_is_charged_is_the_name_that_is_opened(self):
        with pytest.raises(AttributeError):
            dataset(*arrays())["train"].name = "test"  # type: ignore[misc]

    @pytest.mark.unit
    def test_public_data_goes_through_the_same_door(self):
        made = dataset(*arrays(), public=True)
        assert read(made, "train").public
        with pytest.raises(UnchargedReadError):
            made["train"].open(None)  # type: ignore[arg-type]

    @pytest.mark.unit
    def test_nothing_prints_a_value(self):
        x = np.full((N, 2), 1.234567)
        made = dataset(x, np.full(N, 2))
        shown = [made, made["train"], made.features, read(made, "train"), list(made)]
        assert not any("234567" in repr(each) or "0.5586" in repr(each) for each in shown)

    @pytest.mark.unit
    def test_a_sealed_array_gives_no_value(self):
        sealed = SealedArray(arrays()[0])
        assert (sealed.shape, len(sealed), sealed.dtype) == ((N, 2), N, np.float64)
        for look in (lambda: sealed[0], lambda: iter(sealed), lambda: sealed + 1):  # type: ignore
            with pytest.raises(TypeError):
                look()
        assert SealedArray(sealed).shape == sealed.shape


class TestRecords:
    @pytest.mark.unit
    def test_are_clamped_and_scaled_to_the_unit_interval(self):
        x, y = arrays()
        x[:] = [-9.0, 1.0]
        records = read(dataset(x, y), "train")
        assert records.x.dtype == torch.float32
        assert (records.y.dtype, records.valid.dtype) == (torch.int64, torch.bool)
        assert (records.x == torch.tensor([0.0, 0.5])).all()
        assert records.valid.all()
        assert not records.public

    @pytest.mark.unit
    def test_what_cannot_be_used_is_null_in_its_slot(self):
        for feature, label in [
            (np.nan, 1),
            (0.5, -1),
            (0.5, 3),
            (0.5, 2**62),
            (0.5, -(2**62)),
            (np.nan, -1),
        ]:
            x, y = arrays()
            whole = dataset(x, y)
            slot = int(whole["train"]._slots[3])
            x, y = x.copy(), y.copy()
            x[slot, 1], y[slot] = feature, label
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                broken = dataset(x, y)
                records = read(broken, "train")
            expected = read(whole, "train")
            assert broken.n == N
            assert len(records) == len(expected) == 20
            assert not records.valid[3]
            assert (records.x[3] == 0).all()
            assert records.y[3] == 0
            others = torch.arange(20) != 3
            assert records.valid[others].all()
            assert (records.x[others] == expected.x[others]).all()
            assert (records.y[others] == expected.y[others]).all()

    @pytest.mark.unit
    def test_a_value_too_large_for_float32_is_clamped_not_null(self):
        x, y = arrays()
        x[:] = 1e300
        records = read(dataset(x, y), "train")
        assert records.valid.all()
        assert (records.x == 1).all()

    @pytest.mark.unit
    def test_every_number_type_gives_the_same_records(self):
        for kind in ["u1", "i8", "f2", "f4", ">f4"]:
            _, y = arrays()
            x = np.arange(2 * N).reshape(N, 2) % 3
            expected = read(dataset(x.astype(float), y), "train")
            assert (read(dataset(x.astype(kind), y), "train").x == expected.x).all()


class TestNumbers:
    @pytest.mark.unit
    @pytest.mark.parametrize(("feature", "label"), [(np.nan, 1.0), (0.5, np.nan), (0.5, np.inf)])
    def test_one_record_changes_its_own_slot_only(self, feature: float, label: float):
        x, _ = arrays()
        y = np.linspace(-20.0, 40.0, N)
        whole = dataset(x, y, schema=NUMBER)
        slot = int(whole["train"]._slots[3])
        x[slot, 1], y[slot] = feature, label
        records, expected = read(dataset(x, y, schema=NUMBER), "train"), read(whole, "train")
        others = torch.arange(20) != 3
        assert not records.valid[3]
        assert (float(records.y[3]), float(records.x[3].abs().max())) == (0.0, 0.0)
        for name in ("x", "y", "valid"):
            assert getattr(records, name)[others].equal(getattr(expected, name)[others])


class TestThrough:
    """What a network sees behind a front end, and that the door is the same."""

    SPLIT = Split(train=4, validation=3, test=3)

    def images(self, x: np.ndarray, *, cache: Path | None = None) -> Dataset:
        schema = Schema(shape=(16, 16), low=0.0, high=255.0, classes=3)
        y = np.arange(10) % 3
        made = Dataset(name="d", schema=schema, features=x, labels=y, cache=cache)
        made.partition(self.SPLIT, generator())
        return made

    def pixels(self) -> np.ndarray:
        return np.random.Generator(np.random.PCG64(5)).uniform(0, 255, (10, 16, 16))

    @pytest.mark.unit
    def test_records_are_what_the_front_end_makes_of_them(self):
        for text in ["raw", "max_pool:2", "scattering", "standardise", "pca:3"]:
            made, front = self.images(self.pixels()), self.fitted(text)
            for name in ("train", "validation", "test"):
                raw = read(made, name)
                seen = made[name].with_front_end(front).open(Receipt(name))
                with torch.no_grad():
                    assert torch.allclose(seen.x, front.module(raw.x), atol=1e-5)
                assert seen.x.shape[1:] == front.front_end.output_shape((16, 16))
                assert seen.y.equal(raw.y)
                assert seen.valid.equal(raw.valid)

    def fitted(self, text: str) -> FittedFrontEnd:
        front = parse_front_end(text)
        if not front.fitted:
            return prepare_front_end(front, (16, 16))
        x = torch.rand(20, 16, 16, generator=torch.Generator().manual_seed(1))
        valid, stream = torch.ones(20, dtype=torch.bool), Keys.from_seed(2).stream("front")
        return front.fit(x, valid, 0.5, stream)

    @pytest.mark.unit
    def test_null_records_are_zero_behind_it_as_well(self):
        for text in ["raw", "max_pool:2", "scattering", "standardise", "pca:3"]:
            x = self.pixels()
            slot = int(self.images(x)["train"]._slots[2])
            whole = self.images(x)["train"].with_front_end(self.fitted(text)).open(Receipt("train"))
            x[slot, 3, 3] = np.nan
            seen = self.images(x)["train"].with_front_end(self.fitted(text)).open(Receipt("train"))
            others = torch.arange(4) != 2
            assert seen.valid.tolist() == [True, True, False, True]
            assert not seen.x[2].any()
            assert torch.allclose(seen.x[others], whole.x[others], atol=1e-6)

    @pytest.mark.unit
    @pytest.mark.parametrize("text", ["raw", "max_pool:2", "scattering"])
    @pytest.mark.parametrize(
        "receipt", [None, True, "train", Receipt("test")], ids=["none", "true", "text", "another"]
    )
    def test_no_charge_no_record_and_nothing_computed(
        self, text: str, receipt: object, tmp_path: Path
    ):
        made = self.images(self.pixels(), cache=tmp_path / "cache")
        behind = made["train"].with_front_end(self.fitted(text))
        assert (behind.name, len(behind)) == ("train", 4)
        for closed in (behind, behind.cells()):
            with pytest.raises(UnchargedReadError, match="'train'"):
                closed.open(receipt)  # type: ignore[arg-type]
        assert not (tmp_path / "cache").exists()
        assert made._mapped_features == {}

    @pytest.mark.unit
    def test_a_fit_of_its_own_is_never_taken_for_another(self):
        made = self.images(self.pixels())
        first = self.fitted("pca:3")
        x = torch.rand(20, 16, 16, generator=torch.Generator().manual_seed(9))
        second = parse_front_end("pca:3").fit(
            x, torch.ones(20, dtype=torch.bool), 0.5, Keys.from_seed(2).stream("front")
        )
        seen = [
            made["train"].with_front_end(each).open(Receipt("train")).x for each in (first, second)
        ]
        assert not torch.allclose(*seen, atol=1e-3)


class TestCells:
    @pytest.mark.unit
    def test_are_the_records_in_the_datas_own_units(self):
        x, y = arrays()
        x[7], y[9] = np.nan, 99
        made = dataset(x, y)
        for name in PARTITIONS:
            cells, slots = made[name].cells(), made[name]._slots
            features, labels = cells.open(Receipt(name))
            assert isinstance(cells, PartitionCells)
            assert cells.name == name
            assert np.array_equal(features, x[slots], equal_nan=True)
            assert np.array_equal(labels, y[slots])

    @pytest.mark.unit
    def test_open_under_their_own_charge_only(self, tmp_path: Path):
        made = dataset(*arrays())
        lines = [
            PlannedRelease(
                name="x", partition="test", event=Gaussian(noise_multiplier=1.0), count=1
            )
        ]
        with Ledger.create(tmp_path / "ledger", lines) as ledger:
            with ledger.charged("x", made["test"].cells(), key="k") as (features, labels):
                assert (len(features), len(labels)) == (8, 8)
            with (
                pytest.raises(BudgetError, match="no line"),
                ledger.charged("x", made["train"].cells(), key="k"),
            ):
                pytest.fail("opened")

    @pytest.mark.unit
    def test_are_copies(self):
        x, y = arrays()
        made = dataset(x, y)
        mark = made.fingerprint()
        features, labels = made["train"].cells().open(Receipt("train"))
        features[...], labels[...] = 7, 1
        assert made.fingerprint() == mark

    @pytest.mark.unit
    def test_nothing_prints_a_value(self):
        made = dataset(np.full((N, 2), 1.234567), np.full(N, 2))
        shown = [made["train"].cells(), made["train"].with_front_end(None)]
        assert not any("234567" in repr(each) for each in shown)


class TestCompleted:
    @pytest.mark.unit
    def test_the_schema_is_read_from_all_records_and_nothing_else_changes(self):
        x, y = arrays()
        open_ = Dataset(name="people", schema=Schema(shape=(2,)), features=x, labels=y,
                        official_test=4)  # fmt: skip
        seen: list[np.ndarray] = []

        def complete(schema: Schema, features: np.ndarray, labels: np.ndarray) -> Schema:
            seen.extend([features, labels])
            return SCHEMA

        made = open_.completed(complete)  # type: ignore[arg-type]
        assert (made.schema, open_.schema) == (SCHEMA, Schema(shape=(2,)))
        assert np.array_equal(seen[0], x)
        assert np.array_equal(seen[1], y)
        assert (made.name, made.n, made.official_test, made.public) == ("people", N, 4, False)
        assert made.fingerprint() == open_.fingerprint()
        assert list(made) == []

    @pytest.mark.unit
    def test_it_stays_sealed(self):
        made = dataset(*arrays()).completed(lambda schema, x, y: schema)
        made.partition(SPLIT, generator())
        with pytest.raises(UnchargedReadError):
            made["train"].open(None)  # type: ignore[arg-type]


class TestFingerprint:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        "change",
        [
            lambda x, y: x.__setitem__((39, 1), x[39, 1] + 1e-12),
            lambda x, y: x.__setitem__((0, 0), np.nan),
            lambda x, y: y.__setitem__(17, (y[17] + 1) % 3),
            lambda x, y: x.__setitem__(slice(0, 2), x[1::-1].copy()),
        ],
        ids=["a last digit", "not finite", "a label", "order"],
    )
    def test_one_value_changes_it(self, change: Callable):
        x, y = arrays()
        before = dataset(x, y).fingerprint()
        assert before == dataset(x.copy(), y.copy()).fingerprint()
        change(x, y)
        assert dataset(x, y).fingerprint() != before

    @pytest.mark.unit
    def test_the_form_changes_it(self):
        y = np.zeros(N, int)
        zeros = np.zeros((N, 2))
        marks = {
            dataset(zeros, y).fingerprint(),
            dataset(zeros.astype(np.float32), y).fingerprint(),
            dataset(zeros.astype(np.int64), y).fingerprint(),
            dataset(zeros, y.astype(np.uint8)).fingerprint(),
        }
        assert len(marks) == 4

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("row", "column", "cell"), [(3, 0, "b "), (3, 0, "ab"), (3, 0, None), (0, 1, "1")]
    )
    def test_one_cell_of_a_table_changes_it(self, row: int, column: int, cell: object):
        from pasearch.data.column import Column
        from pasearch.data.tables import TableSchema

        schema = TableSchema(columns=(Column(name="a"), Column(name="b")), target=Column(name="c"))

        def mark(cells: np.ndarray) -> str:
            y = np.array(["x"] * 4, object)
            return Dataset(name="t", schema=schema, features=cells, labels=y).fingerprint()

        cells = np.array([["a", 1], ["b", 2], ["c", 3], ["b", 4]], object)
        changed = cells.copy()
        changed[row, column] = cell
        assert mark(cells) == mark(cells.copy())
        assert mark(cells) != mark(changed)


class TestForm:
    @pytest.mark.unit
    @pytest.mark.parametrize("public", [1, None, "yes", np.True_], ids=repr)
    def test_public_is_said_plainly(self, public: object):
        x, y = arrays()
        with pytest.raises(UsageError, match="expected True or False"):
            Dataset(name="d", schema=SCHEMA, features=x, labels=y, public=public)  # type: ignore[arg-type]

    @pytest.mark.unit
    def test_a_copy_stays_sealed(self):
        again = copy.copy(dataset(*arrays()))
        with pytest.raises(UnchargedReadError):
            again["train"].open(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "x", [np.array([["1.0"], ["alice"]]), np.array([[1.0], ["bob"]], dtype=object)]
)
def test_features_that_are_no_numbers_are_refused_without_naming_one(x: np.ndarray):
    with pytest.raises(UsageError, match="expected numbers") as refused:
        Dataset(
            name="d",
            schema=Schema(shape=(1,), low=0.0, high=1.0, classes=2),
            features=x,
            labels=np.array([0, 1]),
        )
    assert "alice" not in str(refused.value)
    assert "bob" not in str(refused.value)
