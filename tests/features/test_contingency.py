"""Tables of counts: against plain loops, their sensitivity by brute force, and their noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from audits import REJECT, WRONG, gaussian_power, gaussian_pvalue
from scipy.stats import beta

from pasearch.accounting.accountants import price
from pasearch.accounting.events import Gaussian
from pasearch.data.column import Column
from pasearch.data.schema import Schema
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError
from pasearch.features import contingency
from pasearch.features.cfs import compute_symmetrical_uncertainty
from pasearch.features.contingency import (
    MAX_CODES,
    Attribute,
    Attributes,
    ContingencyTables,
    JointCounts,
    count_tables,
    make_attributes,
)
from pasearch.runs.keys import Keys

SCHEMA = TableSchema(
    columns=(
        Column(name="age", low=0.0, high=100.0, bins=(18.0, 65.0)),
        Column(name="job", categories=("a", "b")),
        Column(name="id", kind="ignore"),
        Column(name="note", vocabulary=("free", "win")),
        Column(name="height", low=0.0, high=2.0, bins=0),
    ),
    target=Column(name="class", categories=("no", "yes")),
)
ROWS = [
    ["17", "a", "1", "win a prize", "0.1", "no"],
    ["18", "c", "2", "", "1.99", "yes"],
    ["?", "", "3", "free free", "", "no"],
    ["99", "b", "4", "FREE, win", "2.5", "yes"],
    ["40", "a", "5", "none", "-1", "maybe"],
]
CODES = [
    # age, job, free, win, note missing, height, class
    [0, 0, 0, 1, 0, 0, 0],
    [1, 2, 0, 0, 1, 9, 1],
    [3, 3, 1, 0, 0, 10, 0],
    [2, 1, 1, 1, 0, 9, 1],
    [-1] * 7,
]
SMALL = Attributes(
    items=(
        Attribute(name="x", size=3, encoding="one-hot", features=((1, 0, 0), (0, 1, 0), (0, 0, 1))),
        Attribute(name="z", size=2, encoding="flag", features=((0, 1),)),
        Attribute(name="y", size=2, encoding="class"),
    )
)


def encoded(schema: TableSchema, rows: Sequence[Sequence[str | None]]) -> tuple[np.ndarray, ...]:
    cells = np.array(rows, object)
    x = np.zeros((len(rows), *schema.shape), np.float32)
    valid = schema.encode(cells[:, :-1], out=x)
    y, known = schema.encode_labels(cells[:, -1])
    return x, y, valid & known


def random_codes(attributes: Attributes, n: int, seed: int = 0) -> np.ndarray:
    rng = Keys.from_seed(seed).stream("codes").generator()
    base = rng.random(n)
    columns = [
        np.where(rng.random(n) < 0.5, base * size, rng.random(n) * size)
        for size in attributes.sizes
    ]
    return np.stack(columns, axis=1).astype(np.int16)


def looped(codes: np.ndarray, attributes: Attributes) -> np.ndarray:
    starts, counts = np.cumsum((0, *attributes.sizes)), np.zeros((sum(attributes.sizes),) * 2)
    for row in codes:
        if (row < 0).any():
            continue
        for i, j in itertools.product(range(len(row)), repeat=2):
            counts[starts[i] + row[i], starts[j] + row[j]] += 1
    return counts


class TestAttributes:
    @pytest.mark.unit
    def test_of_a_table_are_its_columns_and_words(self):
        found = make_attributes(SCHEMA)
        assert found.names == (
            "age", "job", "note has 'free'", "note has 'win'", "note missing", "height", "class",
        )  # fmt: skip
        assert found.sizes == (4, 4, 2, 2, 2, 11, 2)
        assert found.width == SCHEMA.shape[0] == sum(len(each.features) for each in found.items)
        # The scaled number is 0, as the lower bound is, where it is missing.
        assert found.items[0].features[0] == (0, 1, 2, 0)
        assert found.items[5].features == ((*range(10), 0), (0,) * 10 + (1,))
        assert found.items[1].features[2] == (0, 0, 1, 0)

    @pytest.mark.unit
    def test_codes_come_from_encoded_records_alone(self):
        x, y, valid = encoded(SCHEMA, ROWS)
        found = make_attributes(SCHEMA).codes(*map(torch.from_numpy, (x, y, valid)))
        assert found.dtype == np.int16
        np.testing.assert_array_equal(found, CODES)

    @pytest.mark.unit
    def test_of_arrays_are_tenths(self):
        attributes = make_attributes(Schema(shape=(1, 2), low=0.0, high=1.0, classes=3))
        assert attributes.sizes == (10, 10, 3)
        x = np.array([[[0.0, 1.0]], [[0.1, 0.55]], [[0.0, 0.0]]], np.float32)
        found = attributes.codes(x, np.array([2, 0, 0]), np.array([True, True, False]))
        np.testing.assert_array_equal(found, [[0, 9, 2], [1, 5, 0], [-1, -1, -1]])

    @pytest.mark.unit
    def test_a_number_to_predict_has_ten_bins(self):
        schema = Schema(shape=(1,), low=0.0, high=1.0, target=(0.0, 5.0), regression=True)
        attributes = make_attributes(schema)
        assert attributes.sizes == (10, 10)
        y = np.array([0.0, 0.35, 1.0], np.float32)
        found = attributes.codes(np.zeros((3, 1), np.float32), y, np.ones(3, bool))
        np.testing.assert_array_equal(found[:, 1], [0, 3, 9])

    @pytest.mark.property
    def test_whatever_stands_in_a_record_it_has_one_code_of_each(self):
        for junk in [math.nan, math.inf, -math.inf, -5.0, 1e30]:
            attributes = make_attributes(SCHEMA)
            x = np.full((2, attributes.width), junk, np.float32)
            y = np.array([7, -3])
            found = attributes.codes(x, y, np.array([True, False]))
            assert (found[0] >= 0).all()
            assert (found[0] < attributes.sizes).all()
            assert (found[1] == -1).all()

    @pytest.mark.unit
    def test_other_widths_and_too_many_codes_are_refused(self):
        with pytest.raises(UsageError, match="13 features: expected 14"):
            make_attributes(SCHEMA).codes(np.zeros((1, 13)), np.zeros(1), np.ones(1, bool))
        many = [Attribute(name=str(i), size=2**13, encoding="one-hot") for i in range(3)]
        with pytest.raises(UsageError, match=f"at most {MAX_CODES:,}"):
            Attributes(items=tuple(many))
        with pytest.raises(UsageError, match="besides the target"):
            Attributes(items=SMALL.items[-1:])


def once(attributes: Attributes) -> np.ndarray:
    """Which entries of the matrix are released: each table once."""
    return attributes.owners[:, None] < attributes.owners


class TestCounts:
    @pytest.mark.oracle
    def test_are_those_of_a_plain_loop(self):
        for n in [0, 1, 50]:
            codes = random_codes(SMALL, n)
            codes[::7] = -1
            found = count_tables(codes, SMALL)
            np.testing.assert_array_equal(found.counts, looped(codes, SMALL))
            assert found.slots == n
            halves = count_tables(codes[: n // 2], SMALL) + count_tables(codes[n // 2 :], SMALL)
            np.testing.assert_array_equal(halves.counts, found.counts)
            assert halves.slots == n

    @pytest.mark.oracle
    def test_one_record_moves_tables_over_their_root_by_1(self):
        """Every data set of two records and a null one, every record made null."""
        cells = list(itertools.product(*(range(size) for size in SMALL.sizes)))
        mechanism = ContingencyTables(noise_multiplier=1.0)
        chosen, root = once(SMALL), math.sqrt(mechanism.count_tables(SMALL))
        assert root**2 == pytest.approx(3)
        for first, second in itertools.product(cells, repeat=2):
            codes = np.array([first, second, (-1, -1, -1)])
            whole = count_tables(codes, SMALL).counts
            for gone in range(2):
                fewer = codes.copy()
                fewer[gone] = -1
                moved = (whole - count_tables(fewer, SMALL).counts)[chosen] / root
                assert np.linalg.norm(moved) == pytest.approx(1.0, abs=1e-12)
            fewer = codes.copy()
            fewer[2] = 0  # what a null record would add if it were counted
            assert (count_tables(fewer, SMALL).counts != whole).any()

    @pytest.mark.unit
    def test_a_null_record_is_in_no_cell(self):
        x, y, _ = encoded(SCHEMA, ROWS)
        attributes = make_attributes(SCHEMA)
        # Its features are 0, which would be a code: a record that is not valid is in none.
        codes = attributes.codes(np.zeros_like(x), y, np.zeros(len(x), bool))
        assert not count_tables(codes, attributes).counts.any()


class TestRelease:
    SIGMA = 3.0

    def noise(self, monkeypatch: pytest.MonkeyPatch, times: int) -> np.ndarray:
        """Of each release, the noise of all cells in units of sqrt(T), before post-processing."""
        seen: list[np.ndarray] = []

        def seeing(self: object, noisy: np.ndarray, deviation: float, slots: int) -> np.ndarray:
            seen.append(noisy)
            return noisy

        monkeypatch.setattr(contingency._TableDenoiser, "make_consistent", seeing)
        joint = count_tables(random_codes(SMALL, 90), SMALL)
        mechanism = ContingencyTables(noise_multiplier=self.SIGMA)
        chosen, root = once(SMALL), math.sqrt(mechanism.count_tables(SMALL))
        for i in range(times):
            mechanism.release(joint, SMALL, Keys.from_seed(i).stream("tables"))
        return np.array([(each - joint.counts)[chosen] / root for each in seen])

    @pytest.mark.statistical
    def test_the_noise_is_what_the_event_charges_and_other_scales_are_rejected(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        noise = self.noise(monkeypatch, 400)
        assert noise.shape[1] == 6 + 6 + 4
        charged = ContingencyTables(noise_multiplier=self.SIGMA).event.noise_multiplier
        assert gaussian_pvalue(noise / charged) > 1e-6
        for share in (*WRONG, 1 / math.sqrt(3), 0.0):  # 1 / sqrt(3): the root is forgotten
            assert gaussian_pvalue(share * noise / charged) < REJECT
        assert all(gaussian_power(noise.size, share, 403) > 1 - 1e-9 for share in WRONG)

    def audited(self, monkeypatch: pytest.MonkeyPatch, trials: int = 1500) -> float:
        """The least epsilon that two worlds allow at 99.9%: the cells of one record, added up."""
        monkeypatch.setattr(
            contingency._TableDenoiser, "make_consistent", lambda self, noisy, *_: noisy
        )
        flags = [Attribute(name=str(i), size=2, encoding="flag") for i in range(9)]
        attributes = Attributes(items=(*flags, Attribute(name="y", size=2, encoding="class")))
        mechanism = ContingencyTables(noise_multiplier=self.SIGMA)
        codes = np.array([[1] * 10] + [[0] * 10] * 20)
        fewer = codes.copy()
        fewer[0] = -1
        tables = once(attributes) & (count_tables(codes[:1], attributes).counts > 0)
        seen = []
        for world, rows in enumerate((codes, fewer)):
            exact, streams = (
                count_tables(rows, attributes),
                Keys.from_seed(9).stream("world", world),
            )
            releases = (
                mechanism.release(exact, attributes, streams.child(i)) for i in range(trials)
            )
            # Three quarters of the record's 45 cells, above what most noise adds up to.
            seen.append(sum(each.counts[tables].sum() > 45 * 0.75 for each in releases))
        low = beta.ppf(5e-4, seen[0], trials - seen[0] + 1) if seen[0] else 0.0
        high = beta.ppf(1 - 5e-4, seen[1] + 1, trials - seen[1]) if seen[1] < trials else 1.0
        return max(0.0, math.log((low - 1e-5) / high)) if low > 1e-5 else 0.0

    @pytest.mark.statistical
    @pytest.mark.parametrize("broken", [None, "noise off", "root forgotten"])
    def test_an_audit_sees_what_is_broken(
        self, monkeypatch: pytest.MonkeyPatch, broken: str | None
    ):
        """Power: without the root the worlds are 2.2 deviations apart, not 1/3."""
        charged = price(Gaussian(noise_multiplier=self.SIGMA), 1e-5).epsilon
        if broken == "noise off":
            monkeypatch.setattr(contingency.GaussianSum, "release", lambda self, x, stream: x)
        if broken == "root forgotten":
            monkeypatch.setattr(ContingencyTables, "count_tables", lambda self, attributes: 1)
        assert (self.audited(monkeypatch) > charged) == (broken is not None)

    @pytest.mark.unit
    def test_is_consistent_and_nowhere_negative(self):
        joint = count_tables(random_codes(SMALL, 200), SMALL)
        mechanism = ContingencyTables(noise_multiplier=20.0)
        for i in range(20):
            found = mechanism.release(joint, SMALL, Keys.from_seed(i).stream("tables"))
            counts, starts = found.counts, SMALL.starts
            assert (counts >= 0).all()
            np.testing.assert_array_equal(counts, counts.T)
            totals = np.add.reduceat(np.add.reduceat(counts, starts, 0), starts, 1)
            np.testing.assert_allclose(totals, totals[0, 0], rtol=1e-3)
            assert 1 <= totals[0, 0] < 200 + 1e-9
            own = SMALL.owners[:, None] == SMALL.owners
            assert (counts[own] == np.diag(np.diag(counts))[own]).all()
            assert found.slots == 200

    @pytest.mark.unit
    def test_with_hardly_any_noise_is_the_exact_one(self):
        codes = random_codes(SMALL, 5000)
        codes[::9] = -1
        joint = count_tables(codes, SMALL)
        mechanism = ContingencyTables(noise_multiplier=1e-4)
        found = mechanism.release(joint, SMALL, Keys.from_seed(1).stream("tables"))
        known = found.counts > 0
        np.testing.assert_allclose(found.counts[known], joint.counts[known], rtol=1e-3)

    @pytest.mark.statistical
    def test_marginals_gain_from_every_table_and_dependence_is_not_invented(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        """Of independent columns: the uncertainty that noise alone shows is mostly taken away."""
        items = tuple(Attribute(name=str(i), size=4, encoding="one-hot") for i in range(8))
        attributes = Attributes(items=items)
        rng = Keys.from_seed(5).stream("x").generator()
        joint = count_tables(rng.integers(0, 4, (4000, 8)), attributes)
        mechanism = ContingencyTables(noise_multiplier=20.0)

        def released() -> list[JointCounts]:
            streams = (Keys.from_seed(i).stream("t") for i in range(30))
            return [mechanism.release(joint, attributes, stream) for stream in streams]

        def shown(found: list[JointCounts]) -> float:
            return float(
                np.mean([compute_symmetrical_uncertainty(each, attributes)[0] for each in found])
            )

        shrunk = released()
        errors = [np.diag(each.counts) - np.diag(joint.counts) for each in shrunk]
        # One table's marginal would have a deviation of 2 of its cells.
        assert np.std(errors) < 0.6 * 2 * mechanism.standard_deviation(attributes)
        monkeypatch.setattr(
            contingency._TableDenoiser, "_shrink_tables", lambda self, beyond, deviation: beyond
        )
        assert shown(shrunk) < 0.35 * shown(released())

    @pytest.mark.unit
    def test_the_same_counts_are_released_the_same_and_others_share_no_noise(self):
        mechanism, stream = ContingencyTables(noise_multiplier=2.0), Keys.from_seed(1).stream("t")
        codes = random_codes(SMALL, 300)
        first = mechanism.release(count_tables(codes, SMALL), SMALL, stream).counts
        again = mechanism.release(count_tables(codes, SMALL), SMALL, stream).counts
        codes[0] = -1
        other = mechanism.release(count_tables(codes, SMALL), SMALL, stream).counts
        np.testing.assert_array_equal(first, again)
        assert np.abs(first - other).max() > 1.0

    @pytest.mark.unit
    def test_event_and_refusals(self):
        assert ContingencyTables(noise_multiplier=2).event == Gaussian(noise_multiplier=2.0)
        assert ContingencyTables(noise_multiplier=2.0).standard_deviation(SMALL) == pytest.approx(
            2 * math.sqrt(3)
        )
        for bad in (0, -1.0, math.nan, "1"):
            with pytest.raises(UsageError, match="noise_multiplier"):
                ContingencyTables(noise_multiplier=bad)  # type: ignore[arg-type]
