"""What a table of noisy counts tells: scikit-learn's values without noise, its errors with it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import dlaplace
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    precision_score,
    recall_score,
    roc_auc_score,
)

from pasearch.data.schema import Schema
from pasearch.runs.mechanisms import NoisyCounts
from pasearch.training import score_tables as from_cells
from pasearch.training.score_tables import (
    CORRECTNESS_COLUMNS,
    ERROR_COLUMNS,
    ERROR_EDGES,
    LOG_ODDS_COLUMNS,
    LOG_ODDS_EDGES,
    PREDICTION_COLUMNS,
    TARGET_BINS,
    Table,
    compute_error_measures,
    compute_measures,
    compute_score_measures,
    compute_share_error,
    read_table,
    table_to_json,
)

N = 4000


def made(columns: str, n: int = N, outputs: int = 2, seed: int = 0) -> tuple[Any, Any, Any]:
    """True classes, log-odds (or nothing), answers."""
    draw = np.random.default_rng(seed)
    weights = np.arange(1, outputs + 1)
    y = draw.choice(outputs, size=n, p=weights / weights.sum())
    if columns == LOG_ODDS_COLUMNS:
        odds = draw.normal(2.0 * y - 1.0, 2.0)
        return y, odds, (odds > 0).astype(int)
    answer = np.where(draw.random(n) < 0.7, y, draw.integers(outputs, size=n))
    return y, None, answer


def counted(columns: str, y: Any, odds: Any, answer: Any, outputs: int) -> np.ndarray:
    if columns == LOG_ODDS_COLUMNS:
        place, width = np.searchsorted(LOG_ODDS_EDGES, odds, side="left"), len(LOG_ODDS_EDGES) + 1
    elif columns == PREDICTION_COLUMNS:
        place, width = answer, outputs
    else:
        place, width = (answer == y).astype(int), 2
    found = np.zeros((outputs, width))
    np.add.at(found, (y, place), 1)
    return found


def table(counts: Any, columns: str, noise: float = 0.0, of: int | None = None) -> Table:
    counts = np.asarray(counts, float)
    return Table(counts=counts, columns=columns, noise=noise, of=of or int(counts.sum()))


FORMS = [
    (LOG_ODDS_COLUMNS, 2),
    (PREDICTION_COLUMNS, 2),
    (PREDICTION_COLUMNS, 5),
    (CORRECTNESS_COLUMNS, 2),
    (CORRECTNESS_COLUMNS, 5),
]


@pytest.mark.oracle
def test_without_noise_it_is_what_others_compute():
    for columns, outputs in FORMS:
        y, odds, answer = made(columns, outputs=outputs)
        found = compute_measures(table(counted(columns, y, odds, answer, outputs), columns))
        assert found["accuracy"]["value"] == pytest.approx(accuracy_score(y, answer))
        assert found["balanced_accuracy"]["value"] == pytest.approx(
            balanced_accuracy_score(y, answer)
        )
        recalls = [each["value"] for each in found["recall"]]
        assert recalls == pytest.approx(recall_score(y, answer, average=None))
        shares = np.bincount(y) / len(y)
        assert [each["value"] for each in found["shares"]] == pytest.approx(shares)
        assert found["most_common"]["class"] == outputs - 1
        assert found["most_common"]["value"] == pytest.approx(shares.max())
        if columns == CORRECTNESS_COLUMNS and outputs > 2:
            assert found["confusion"] is found["precision"] is None
            assert {"confusion", "precision"} <= set(found["reasons"])
        else:
            assert found["confusion"] == confusion_matrix(y, answer).tolist()
            precisions = [each["value"] for each in found["precision"]]
            assert precisions == pytest.approx(precision_score(y, answer, average=None))
        if columns == LOG_ODDS_COLUMNS:
            assert found["auc"]["value"] == pytest.approx(roc_auc_score(y, odds), abs=0.005)
        else:
            assert found["auc"] is found["calibration"] is None


def told(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every measure of one table, by name."""
    lists = {
        f"{name} {place}": each
        for name in ("recall", "precision", "shares")
        for place, each in enumerate(found[name] or [])
    }
    alone = {name: found[name] for name in ("accuracy", "balanced_accuracy", "auc") if found[name]}
    return {**alone, **lists}


@pytest.mark.statistical
def test_errors_are_those_of_sample_and_noise_together():
    """Over many samples and draws of the noise each value spreads as its error says."""
    for columns, outputs in FORMS:
        for epsilon in [0.5, 4.0]:
            noise, draw = NoisyCounts(epsilon=epsilon).standard_deviation, np.random.default_rng(5)
            found = []
            for seed in range(300):
                counts = counted(columns, *made(columns, 1500, outputs, seed + 1), outputs)
                noisy = counts + dlaplace.rvs(epsilon, size=counts.shape, random_state=draw)
                found.append(told(compute_measures(table(noisy, columns, noise, 1500))))
            for name in found[0]:
                values = np.array([each[name]["value"] for each in found], float)
                error = float(np.median([each[name]["error"] for each in found]))
                assert np.std(values) == pytest.approx(error, rel=0.2), name


@pytest.mark.statistical
def test_noise_that_is_forgotten_is_seen():
    """Teeth of the test above: at a small epsilon the sample alone explains too little."""
    counts = counted(PREDICTION_COLUMNS, *made(PREDICTION_COLUMNS, 300, 5), 5)
    genuine = compute_measures(
        table(counts, PREDICTION_COLUMNS, NoisyCounts(epsilon=0.3).standard_deviation, 300)
    )
    without = compute_measures(table(counts, PREDICTION_COLUMNS, 0.0, 300))
    assert genuine["accuracy"]["error"] > 1.3 * without["accuracy"]["error"]
    assert genuine["recall"][4]["error"] > 1.3 * without["recall"][4]["error"]


class TestFewRecords:
    @pytest.mark.unit
    def test_a_class_below_the_noise_has_no_value_and_a_reason(self):
        found = compute_measures(table([[300, 20], [3, 2]], PREDICTION_COLUMNS, noise=3.0))
        assert found["recall"][0]["value"] == pytest.approx(300 / 320)
        assert found["recall"][1] == {
            "value": None, "error": None, "reason": from_cells.TOO_FEW_RECORDS,
        }  # fmt: skip
        assert found["balanced_accuracy"]["value"] == found["recall"][0]["value"]
        assert "over 1 of 2 classes" in found["balanced_accuracy"]["reason"]
        assert found["precision"][0]["value"] == pytest.approx(300 / 303)
        assert found["precision"][1]["value"] == pytest.approx(2 / 22), "20 others are enough"
        fewer = compute_measures(table([[300, 2], [3, 2]], PREDICTION_COLUMNS, noise=3.0))
        assert "too rarely for the noise" in fewer["precision"][1]["reason"]

    @pytest.mark.unit
    def test_no_class_is_known(self):
        found = compute_measures(table(np.ones((2, 20)), LOG_ODDS_COLUMNS, noise=5.0))
        for each in (found["balanced_accuracy"], found["auc"], *found["recall"]):
            assert each["value"] is None
            assert each["reason"]
        assert found["calibration"] is None
        assert set(found["reasons"]) == {"calibration"}

    @pytest.mark.unit
    def test_counts_below_0_are_shown_as_0_and_shares_stay_shares(self):
        found = compute_measures(table([[40, -3], [-2, 9]], PREDICTION_COLUMNS, noise=1.0, of=40))
        assert found["confusion"] == [[40, 0], [0, 9]]
        assert found["accuracy"]["value"] == 1.0
        assert found["recall"][0]["value"] == 1.0


class TestCalibration:
    @staticmethod
    def groups(n: int, epsilon: float, wrong: float = 1.0) -> list[dict[str, Any]] | None:
        """Of a model whose log-odds are so many times as large as what is true."""
        draw = np.random.default_rng(3)
        odds = draw.normal(0.0, 2.5, size=n)
        y = (draw.random(n) < 1 / (1 + np.exp(-odds))).astype(int)
        counts = counted(LOG_ODDS_COLUMNS, y, wrong * odds, y, 2)
        noisy = counts + dlaplace.rvs(epsilon, size=counts.shape, random_state=draw)
        own = table(noisy, LOG_ODDS_COLUMNS, NoisyCounts(epsilon=epsilon).standard_deviation, n)
        return from_cells.compute_calibration(own)

    @pytest.mark.unit
    def test_of_a_calibrated_model_shares_are_what_is_predicted(self):
        for n, epsilon in [(20_000, 1.0), (2000, 1.0), (2000, 0.2)]:
            found = self.groups(n, epsilon)
            assert found is not None
            off = [(each["share"] - each["predicted"]) / each["error"] for each in found]
            assert np.abs(off).max() < 4.5
            assert [each["high"] for each in found[:-1]] == [each["low"] for each in found[1:]]
            assert found[0]["low"] is found[-1]["high"] is None
            assert [each["predicted"] for each in found] == sorted(e["predicted"] for e in found)
            assert sum(each["records"] for each in found) == pytest.approx(n, rel=0.1)

    @pytest.mark.unit
    def test_one_that_is_too_sure_is_seen(self):
        found = self.groups(20_000, 1.0, wrong=3.0)
        assert found is not None
        off = [(each["share"] - each["predicted"]) / each["error"] for each in found]
        assert np.abs(off).max() > 8

    @pytest.mark.unit
    def test_bins_are_put_together_until_their_noise_is_small(self):
        many, some, few = (self.groups(n, 1.0) for n in (20_000, 1000, 15))
        assert many is not None
        assert some is not None
        assert len(many) == len(LOG_ODDS_EDGES) + 1
        assert 2 <= len(some) < len(many)
        assert few is None
        noise = NoisyCounts(epsilon=1.0).standard_deviation
        for each in some:
            assert noise / each["records"] < from_cells.MAX_GROUP_NOISE


@pytest.mark.unit
def test_it_is_written_and_read_again():
    for columns, outputs in FORMS:
        counts = counted(columns, *made(columns, 200, outputs), outputs).astype(int)
        score = {
            "of": 200,
            "noise": {"epsilon": 2.0},
            **table_to_json(counts.ravel().tolist(), columns),
        }
        again = read_table(json.loads(json.dumps(score)))
        assert again is not None
        assert (again.counts == counts).all()
        assert again.noise == NoisyCounts(epsilon=2.0).standard_deviation
        assert ("edges" in score) == (columns == LOG_ODDS_COLUMNS)
        schema = Schema(shape=(3,), low=0.0, high=1.0, classes=outputs)
        found = compute_score_measures(score, schema)
        assert found["classes"] == [*range(outputs)]
        assert json.loads(json.dumps(found)) == found, "plain values"
        assert compute_score_measures({"of": 200, "noise": {"epsilon": 2.0}}, schema) == {}


@pytest.mark.statistical
def test_the_interval_holds_the_true_share_95_times_in_100():
    for share, n, epsilon in [(0.9, 150, 2.0), (0.5, 60, 1.0), (0.99, 400, 4.0)]:
        draw, held, plain = np.random.default_rng(4), [], []
        noise = NoisyCounts(epsilon=epsilon).standard_deviation
        for _ in range(4000):
            right = draw.binomial(n, share)
            counts = np.diag([right // 2, right - right // 2]) + np.diag([n - right, 0])[:, ::-1]
            noisy = counts + dlaplace.rvs(epsilon, size=(2, 2), random_state=draw)
            found = from_cells.estimate_accuracy(table(noisy, PREDICTION_COLUMNS, noise, n))
            low, high = from_cells.compute_wilson_interval(found["value"], found["error"], 1.96)
            assert 0.0 <= low <= high <= 1.0
            held.append(low <= share <= high)
            plain.append(abs(found["value"] - share) <= 1.96 * found["error"])
        assert np.mean(held) > 0.935
        if share > 0.95:
            assert np.mean(plain) < 0.935, "give or take the error does not hold here"


@pytest.mark.unit
def test_noise_takes_no_mean_error_below_zero():
    """Negative noisy counts at large errors weigh more than the records at small ones."""
    counts = np.zeros((TARGET_BINS, len(ERROR_EDGES) - 1))
    counts[:, 0], counts[:, -1] = 100.0, -20.0
    found = compute_error_measures(table(counts, ERROR_COLUMNS, noise=1.0, of=1000))
    assert found["mean_absolute_error"]["value"] == 0.0
    assert found["mean_absolute_error"]["error"] > 0.0
    counts[:] = 0.0
    counts[0, 0], counts[1:, 0] = -300.0, 100.0
    assert (
        compute_error_measures(table(counts, ERROR_COLUMNS, noise=1.0, of=1000))["median"]["value"]
        >= 0.0
    )


@pytest.mark.statistical
def test_the_error_of_a_share_has_the_noise_of_both_counts():
    noise = np.random.default_rng(0).normal(0.0, 200.0, (2, 100_000))
    shares = (6000 + noise[0]) / (10_000 + noise.sum(axis=0))
    found = compute_share_error(0.6, 10_000, 1, 1, 200.0)
    sample = math.sqrt(0.24 / 10_000)
    assert math.sqrt(found**2 - sample**2) == pytest.approx(float(shares.std()), rel=0.02)
