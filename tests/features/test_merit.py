"""Merits against plain loops, and noisy entropies: their sensitivity by brute force, their law."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import chi2, kstest, laplace

from pasearch.accounting.accountants import price
from pasearch.accounting.profiles import Array
from pasearch.errors import UsageError
from pasearch.features import cfs
from pasearch.features.cfs import (
    ENTROPY_GRID_STEPS,
    NoisyEntropies,
    compute_merits,
    compute_symmetrical_uncertainty,
    compute_uncertainties,
    entropy_sensitivity,
    published_sensitivity,
)
from pasearch.features.contingency import Attribute, Attributes, JointCounts, count_tables
from pasearch.runs.keys import Keys


def merit(members: Sequence[int], to_class: Array, between: Array) -> float:
    """The merit of one set of features, by their places, each once."""
    masks = np.zeros((1, len(to_class)), bool)
    masks[0, list(members)] = True
    return float(compute_merits(masks, to_class, between)[0])


SMALL = Attributes(
    items=(
        Attribute(
            name="number", size=4, encoding="binned",
            features=((0, 1, 2, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)),
        ),
        Attribute(
            name="job", size=3, encoding="one-hot",
            features=((1, 0, 0), (0, 1, 0), (0, 0, 1)),
        ),
        Attribute(name="word", size=2, encoding="flag", features=((0, 1),)),
        Attribute(name="y", size=2, encoding="class"),
    )
)  # fmt: skip


def random_codes(n: int, seed: int = 0) -> np.ndarray:
    rng = Keys.from_seed(seed).stream("codes").generator()
    base = rng.random(n)
    columns = [size * np.where(rng.random(n) < 0.6, base, rng.random(n)) for size in SMALL.sizes]
    return np.stack(columns, axis=1).astype(np.int16)


def entropy(values: list, n: float) -> float:
    return -math.fsum(c / n * math.log2(c / n) for c in Counter(values).values())


def looped(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Symmetrical uncertainty from each feature's own values, one pair at a time."""
    rows = [row for row in codes.tolist() if min(row) >= 0]
    places = [
        (place, values)
        for place, item in enumerate(SMALL.items)
        for values in (item.features if item.features else (None,))
    ]
    seen = [[r[p] if values is None else values[r[p]] for r in rows] for p, values in places]
    found = np.zeros((len(seen), len(seen)))
    for i, j in itertools.product(range(len(seen)), repeat=2):
        alone = entropy(seen[i], len(rows)), entropy(seen[j], len(rows))
        both = entropy(list(zip(seen[i], seen[j], strict=True)), len(rows))
        if min(alone) > 0:
            found[i, j] = 2 * (1 - both / sum(alone))
    return found[:-1, -1], found[:-1, :-1]


class TestUncertainty:
    @pytest.mark.oracle
    def test_is_that_of_a_loop_over_the_features_own_tables(self):
        for n in [1, 2, 60, 500]:
            codes = random_codes(n, n)
            codes[5::7] = -1
            found, expected = (
                compute_symmetrical_uncertainty(count_tables(codes, SMALL), SMALL),
                looped(codes),
            )
            for each, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(each, other, atol=1e-12)
            assert found[0].shape == (SMALL.width,)

    @pytest.mark.unit
    def test_of_a_copy_is_1_and_of_a_constant_0(self):
        codes = np.array([[0, 0, 0, 0], [0, 1, 1, 1]] * 5)
        to_class, between = compute_symmetrical_uncertainty(count_tables(codes, SMALL), SMALL)
        np.testing.assert_allclose(to_class, [0, 0, 0, 0, 0, 1, 1, 0, 1], atol=1e-12)
        assert between[5, 6] == pytest.approx(1.0)
        assert not between[:5].any()
        nothing = compute_symmetrical_uncertainty(count_tables(np.full((4, 4), -1), SMALL), SMALL)
        assert not nothing[0].any()


class TestMerit:
    TO_CLASS = np.array([0.5, 0.2, 0.4])
    BETWEEN = np.array([[1.0, 0.1, 0.3], [0.1, 1.0, 0.6], [0.3, 0.6, 1.0]])

    @pytest.mark.unit
    def test_is_equation_7(self):
        k, mean, pair = 3, 1.1 / 3, 1.0 / 3
        assert merit([0, 1, 2], self.TO_CLASS, self.BETWEEN) == pytest.approx(
            k * mean / math.sqrt(k + k * (k - 1) * pair)
        )
        assert merit([1], self.TO_CLASS, self.BETWEEN) == pytest.approx(0.2)
        assert merit([], self.TO_CLASS, self.BETWEEN) == 0.0

    @pytest.mark.oracle
    def test_of_many_sets_at_once_is_that_of_each(self):
        to_class, between = compute_symmetrical_uncertainty(
            count_tables(random_codes(300), SMALL), SMALL
        )
        masks = Keys.from_seed(3).stream("m").generator().random((200, SMALL.width)) < 0.4
        masks[0] = False
        found = compute_merits(masks, to_class, between)
        for mask, value in zip(masks, found, strict=True):
            chosen = np.flatnonzero(mask)
            spread = len(chosen) + sum(between[i, j] for i in chosen for j in chosen if i != j)
            expected = to_class[chosen].sum() / math.sqrt(spread) if len(chosen) else 0.0
            assert value == pytest.approx(expected, abs=1e-12)
            assert merit(chosen.tolist(), to_class, between) == pytest.approx(value)


class TestSensitivity:
    @staticmethod
    def bits(counts: tuple[int, ...], n: int) -> float:
        return -math.fsum(c / n * math.log2(c / n) for c in counts if c)

    @pytest.mark.oracle
    def test_every_record_of_every_small_data_set_made_null_or_moved(self):
        """Counts of n slots over up to n values and null."""
        for n in [2, 3, 4, 5, 6]:
            nulled, moved = 0.0, 0.0
            for counts in itertools.product(range(n + 1), repeat=min(n, 4)):
                if not sum(counts) <= n:
                    continue
                here = self.bits(counts, n)
                for gone in np.flatnonzero(counts):
                    fewer = [c - (i == gone) for i, c in enumerate(counts)]
                    nulled = max(nulled, abs(here - self.bits(tuple(fewer), n)))
                    for to in range(len(counts)):
                        other = tuple(c + (i == to) for i, c in enumerate(fewer))
                        moved = max(moved, abs(here - self.bits(other, n)))
            assert nulled == pytest.approx(entropy_sensitivity(n), rel=1e-12)
            assert nulled <= moved <= entropy_sensitivity(n, replace_one=True)
            assert moved <= published_sensitivity(n)

    @pytest.mark.oracle
    def test_every_step_of_a_count(self):
        for n in [7, 50, 200]:
            terms = np.array([self.bits((c,), n) for c in range(n + 1)])
            steps = np.diff(terms)
            assert np.abs(steps).max() == pytest.approx(entropy_sensitivity(n), rel=1e-12)
            apart = steps.max() - steps.min()
            assert apart <= entropy_sensitivity(n, replace_one=True)
            assert apart > 0.97 * entropy_sensitivity(n, replace_one=True)
            assert 1.9 < published_sensitivity(n) / entropy_sensitivity(n, replace_one=True) < 2.4

    @pytest.mark.oracle
    def test_every_entropy_of_a_table_moves_by_that_at_most(self):
        chosen = cfs._group_feature_codes(SMALL)
        worst, step = 0.0, entropy_sensitivity(6) / ENTROPY_GRID_STEPS
        for seed in range(40):
            codes = random_codes(6, seed)
            codes[5] = -1
            joint = count_tables(codes, SMALL)
            here = cfs._compute_entropies(joint, *chosen, records=joint.slots)
            for gone in range(5):
                fewer = codes.copy()
                fewer[gone] = -1
                there = cfs._compute_entropies(count_tables(fewer, SMALL), *chosen, records=6)
                worst = max(worst, float(np.abs(here - there).max()))
                # What the noise is for: whole steps.
                assert (
                    np.abs(np.round(here / step) - np.round(there / step)).max()
                    <= ENTROPY_GRID_STEPS + 2
                )
        assert worst == pytest.approx(entropy_sensitivity(6), rel=1e-9)

    @pytest.mark.unit
    def test_of_no_records_is_refused(self):
        for n in [1, 0, 2.0]:
            with pytest.raises(UsageError, match="n is"):
                entropy_sensitivity(n)  # type: ignore[arg-type]


class TestNoisyEntropies:
    EPSILON = 0.3

    def pvalues(self, noise: np.ndarray, scale: float) -> float:
        """Of Laplace noise: its size (2 |Z| / b is chi-square) and its law, two-sided."""
        total, count = 2 * np.abs(noise).sum() / scale, 2 * noise.size
        size = 2 * min(float(chi2.cdf(total, count)), float(chi2.sf(total, count)))
        return 2 * min(size, float(kstest(noise.ravel(), laplace(scale=scale).cdf).pvalue))

    @pytest.mark.statistical
    def test_the_noise_is_what_the_event_charges_and_other_scales_are_rejected(self):
        """Power: the size of 1,000 exponential numbers has a deviation of 3%."""
        joint = count_tables(random_codes(80), SMALL)
        mechanism = NoisyEntropies(epsilon=self.EPSILON, attributes=SMALL)
        chosen = cfs._group_feature_codes(SMALL)
        exact = cfs._compute_entropies(joint, *chosen, records=joint.slots)
        upper = np.triu_indices(len(exact))
        found = [
            mechanism.release(joint, Keys.from_seed(i).stream("h"))
            for i in range(-(-1000 // mechanism.count))
        ]
        assert all((each == each.T).all() for each in found)
        noise = np.array([(each - exact)[upper] for each in found])
        scale = entropy_sensitivity(80) / self.EPSILON
        assert mechanism.noise_scale(80) == pytest.approx(scale, rel=1e-3)
        assert mechanism.noise_scale(80) > scale
        assert self.pvalues(noise, scale) > 1e-4
        for wrong in (2 / 3, 3 / 2, 1e-6):
            assert self.pvalues(wrong * noise, scale) < 1e-12
        assert noise.shape[1] == mechanism.count

    @pytest.mark.unit
    def test_the_claim_is_more_for_the_same_noise(self):
        mechanism = NoisyEntropies(epsilon=0.05, attributes=SMALL)
        claim = mechanism.claim(n=32561, delta=1e-5)
        one = published_sensitivity(32561) / mechanism.noise_scale(32561)
        assert one == pytest.approx(0.05 * 2.2294, rel=1e-3)
        assert claim.value == pytest.approx(
            one * math.sqrt(110 * math.log(1e5)) + 55 * one * math.expm1(one)
        )
        assert claim.value is not None
        assert claim.value > 2 * price(mechanism.event, 1e-5).epsilon
        assert "2.03 times the necessary one" in claim.describe()

    @pytest.mark.unit
    def test_null_records_count_as_slots(self):
        codes = random_codes(50)
        joint = count_tables(codes, SMALL)
        padded = JointCounts(counts=joint.counts, slots=100)
        mechanism = NoisyEntropies(epsilon=1e9, attributes=SMALL)
        found = mechanism.release(padded, Keys.from_seed(1).stream("h"))
        share = np.bincount(codes[:, -1]) / 100
        assert found[-1, -1] == pytest.approx(-(share * np.log2(share)).sum(), abs=1e-4)

    @pytest.mark.unit
    def test_the_same_is_released_the_same_and_others_share_no_noise(self):
        mechanism = NoisyEntropies(epsilon=0.01, attributes=SMALL)
        stream, codes = Keys.from_seed(1).stream("h"), random_codes(90)
        first = mechanism.release(count_tables(codes, SMALL), stream)
        np.testing.assert_array_equal(first, mechanism.release(count_tables(codes, SMALL), stream))
        codes[0] = -1
        other = mechanism.release(count_tables(codes, SMALL), stream)
        changed = np.abs(first - other)[np.triu_indices(10)] > 10 * entropy_sensitivity(90)
        assert changed.mean() > 0.8

    @pytest.mark.unit
    def test_uncertainties_of_noisy_entropies_stay_in_bounds(self):
        mechanism = NoisyEntropies(epsilon=0.001, attributes=SMALL)
        noisy = mechanism.release(
            count_tables(random_codes(90), SMALL), Keys.from_seed(1).stream("h")
        )
        for each in compute_uncertainties(noisy):
            assert ((each >= 0) & (each <= 1)).all()

    @pytest.mark.unit
    def test_refusals(self):
        with pytest.raises(UsageError, match="epsilon"):
            NoisyEntropies(epsilon=math.nan, attributes=SMALL)
