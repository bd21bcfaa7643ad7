"""By what models are scored: what is counted, what a record moves, and what is shown of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from audits import ACCEPT, REJECT, geometric_pvalue
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from selections import table
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score

import pasearch as api
from pasearch.accounting.budget import Budget
from pasearch.accounting.events import Geometric, PureDP
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.runs.mechanisms import NoisyCounts
from pasearch.training import metrics
from pasearch.training.metrics import (
    METRICS,
    AccuracyByLogOdds,
    AccuracyByPrediction,
    Metric,
    Score,
    find_default_metric,
    find_metric,
    find_metric_by_noun,
)
from pasearch.training.score_tables import LOG_ODDS_EDGES, Table, compute_error_measures

STREAM = Keys.from_seed(3).stream("score")
NUMBERS = [name for name, metric in METRICS.items() if metric.is_for_regression]
every = pytest.mark.parametrize("name", METRICS)


def answers_of(name: str, n: int = 400, outputs: int = 2, seed: int = 0):
    """Answers, what is right, and who is there."""
    draw = np.random.default_rng(seed)
    if name in NUMBERS:
        y = draw.random(n)
        answers = (y + 0.1 * draw.standard_normal(n))[:, None]
        return torch.tensor(answers), torch.tensor(y), torch.ones(n, dtype=torch.bool)
    y = draw.integers(outputs, size=n)
    answers = draw.standard_normal((n, outputs)) + 1.5 * np.eye(outputs)[y]
    return torch.tensor(answers), torch.tensor(y), torch.ones(n, dtype=torch.bool)


def shown(name: str, *given: Any) -> float:
    """What is shown of answers without noise."""
    metric = METRICS[name]
    points = metric.compute_points(metric.compute_counts(*given), len(given[1]))
    return metric.to_metric_value(points / (len(given[1]) * metric.max_points))


class TestValue:
    """What is shown is what others call by that name."""

    @pytest.mark.oracle
    def test_of_accuracy_and_errors(self):
        answers, y, valid = answers_of("accuracy")
        right = float((answers.argmax(1) == y).double().mean())
        assert shown("accuracy", answers, y, valid) == pytest.approx(right)
        answers, y, valid = answers_of("mae")
        error = (answers[:, 0].clamp(0, 1) - y).abs()  # a prediction stays within the bounds
        assert shown("mae", answers, y, valid) == pytest.approx(float(error.mean()), abs=0.011)
        square = math.sqrt(float((error**2).mean()))
        assert shown("rmse", answers, y, valid) == pytest.approx(square, abs=1e-4)

    @pytest.mark.oracle
    def test_of_log_loss(self):
        for outputs in [2, 5]:
            answers, y, valid = answers_of("log-loss", 4000, outputs)
            each = -answers.log_softmax(1)[torch.arange(len(y)), y]
            assert float(each.max()) < metrics.MAX_LOG_LOSS
            assert shown("log-loss", answers, y, valid) == pytest.approx(
                log_loss(y, answers.softmax(1)), abs=1e-4
            )
            worst = torch.where(torch.arange(outputs) == y[:, None], -1e9, 0.0)
            assert shown("log-loss", worst, y, valid) == metrics.MAX_LOG_LOSS

    @pytest.mark.oracle
    def test_of_balanced_accuracy(self):
        answers, y, valid = answers_of("balanced-accuracy", 900, 3)
        rare = (y == 2) & (torch.arange(900) % 5 > 0)
        y = torch.where(rare, 0, y)
        want = balanced_accuracy_score(y, answers.argmax(1))
        assert shown("balanced-accuracy", answers, y, valid) == pytest.approx(want, abs=1e-3)
        assert abs(want - float((answers.argmax(1) == y).double().mean())) > 0.05

    @pytest.mark.oracle
    def test_of_the_area_under_the_curve(self):
        for share in [0.5, 0.03]:
            for shift in [0.0, -3.0]:
                draw = np.random.default_rng(4)
                y = (draw.random(6000) < share).astype(int)
                odds = 1.2 * draw.standard_normal(6000) + 1.5 * y + shift
                answers = torch.tensor(np.column_stack([np.zeros(6000), odds]))
                found = shown("auc", answers, torch.tensor(y), torch.ones(6000, dtype=torch.bool))
                assert found == pytest.approx(roc_auc_score(y, odds), abs=0.008)

    @pytest.mark.unit
    def test_where_nobody_is_there(self):
        for name in METRICS:
            answers, y, _ = answers_of(name)
            nobody = torch.zeros(len(y), dtype=torch.bool)
            metric = METRICS[name]
            counts = metric.compute_counts(answers, y, nobody)
            assert counts == [0] * metric.count_entries(answers.shape[1])
            assert (
                0.0
                <= metric.to_metric_value(metric.compute_points(counts, len(y)) / len(y))
                <= metric.worst
            )

    @pytest.mark.property
    @every
    @given(share=st.floats(0.0, 1.0))
    def test_a_share_comes_back(self, name: str, share: float):
        metric = METRICS[name]
        assert metric.to_share(metric.to_metric_value(share)) == pytest.approx(share, abs=1e-9)
        assert 0.0 <= metric.to_metric_value(share) <= metric.worst
        if 0.05 < share < 0.95:
            moved = abs(metric.to_metric_value(share + 1e-6) - metric.to_metric_value(share)) / 1e-6
            assert moved == pytest.approx(metric.compute_slope(share), rel=1e-3)


class TestSensitivity:
    """Replacing a record by the null record changes one count, by `most` at most."""

    @pytest.mark.property
    @every
    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_of_any_answers(self, name: str, data: st.DataObject):
        metric, outputs = METRICS[name], 1 if name in NUMBERS else 3
        n = data.draw(st.integers(1, 5))
        values = st.floats(width=32) if name in NUMBERS else st.floats(-50, 50, width=32)
        answers = torch.tensor(data.draw(arrays(np.float32, (n, outputs), elements=values)))
        y = torch.tensor(
            data.draw(st.lists(st.floats(0, 1), min_size=n, max_size=n))
            if name in NUMBERS
            else data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
        )
        whole = metric.compute_counts(answers, y, torch.ones(n, dtype=torch.bool))
        assert all(type(each) is int for each in whole)
        assert len(whole) == metric.count_entries(outputs)
        for gone in range(n):
            valid = torch.arange(n) != gone
            moved = np.subtract(whole, metric.compute_counts(answers, y, valid))
            assert np.count_nonzero(moved) <= 1
            assert 0 <= moved.sum() <= metric.max_points

    @pytest.mark.contract
    def test_is_met(self):
        """So the noise is for the sensitivity that is there, and no smaller one would do."""
        for name in METRICS:
            metric = METRICS[name]
            y = torch.tensor([0.5] if name in NUMBERS else [1])
            answers = torch.tensor([[0.5]] if name in NUMBERS else [[-60.0, 60.0]])
            assert sum(metric.compute_counts(answers, y, torch.tensor([True]))) == metric.max_points

    @pytest.mark.contract
    def test_is_what_the_noise_is_for(self):
        for name in METRICS:
            metric = METRICS[name]
            noise = metric.make_noise(0.5)
            assert noise.epsilon == 0.5
            assert noise.event in (Geometric(epsilon=0.5), PureDP(epsilon=0.5))
            spread = METRICS["accuracy"].make_noise(0.5 / metric.max_points).standard_deviation
            assert noise.standard_deviation == pytest.approx(spread)


TABLES = {"odds": (AccuracyByLogOdds(), 2), "answers": (AccuracyByPrediction(), 3)}
tables = pytest.mark.parametrize("name", TABLES)


class TestTables:
    """The accuracy of a test, of a table: the same records are right, and it is one release."""

    @pytest.mark.property
    @tables
    @settings(max_examples=200, deadline=None)
    @given(data=st.data())
    def test_right_cells_are_the_right_answers(self, name: str, data: st.DataObject):
        """To the record: at ties, at zeros of either sign, and where an answer is no number."""
        metric, outputs = TABLES[name]
        n = data.draw(st.integers(1, 6))
        width = data.draw(st.sampled_from([np.float32, np.float64]))
        few = st.sampled_from([0.0, -0.0, 0.5, 1.0, -7.0, 1e-45, math.inf, -math.inf, math.nan])
        answers = torch.tensor(data.draw(arrays(width, (n, outputs), elements=few)))
        y = torch.tensor(data.draw(st.lists(st.integers(0, outputs - 1), min_size=n, max_size=n)))
        valid = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
        counts = metric.compute_counts(answers, y, valid)
        assert len(counts) == metric.count_entries(outputs)
        assert sum(counts) == int(valid.sum())
        assert [metric.compute_points(counts, n)] == METRICS["accuracy"].compute_counts(
            answers, y, valid
        )
        for gone in range(n):
            fewer = metric.compute_counts(answers, y, valid & (torch.arange(n) != gone))
            moved = np.subtract(counts, fewer)
            assert np.count_nonzero(moved) == int(valid[gone])
            assert moved.sum() == int(valid[gone])

    @pytest.mark.unit
    def test_a_tie_is_in_the_last_bin_of_the_first_class(self):
        both, there = torch.tensor([[1.0, 1.0]] * 2), torch.ones(2, dtype=torch.bool)
        counts = np.reshape(
            TABLES["odds"][0].compute_counts(both, torch.tensor([0, 1]), there), (2, -1)
        )
        assert counts[:, len(LOG_ODDS_EDGES) // 2].tolist() == [1, 1]

    @pytest.mark.oracle
    def test_a_share_of_the_cells_is_the_accuracy_and_its_noise_that_of_their_sum(self):
        for name in TABLES:
            metric, outputs = TABLES[name]
            answers, y, valid = answers_of("accuracy", 2000, outputs)
            counts, noise = metric.compute_counts(answers, y, valid), metric.make_noise(1.0)
            right = int((answers.argmax(1) == y).sum())
            assert metric.compute_points(counts, 2000) == right
            found = [Score.of(metric, counts, noise, 2000, STREAM.child(i)) for i in range(500)]
            assert len({each.spread for each in found}) == 1
            points = np.array([each.points for each in found])
            assert np.std(points) / 2000 == pytest.approx(found[0].spread, rel=0.1)
            assert np.mean(points) == pytest.approx(
                right, abs=4 * found[0].spread * 2000 / 500**0.5
            )
            shape = (outputs, -1)
            assert np.reshape(found[0].cells, shape).shape == np.reshape(counts, shape).shape

    @staticmethod
    def pvalue(metric: Metric, outputs: int, epsilon: float) -> float:
        """Of what one record moves, as a share of the noise of a release: it must be one cell's.

        A release tells of a record by the sum of what it moves; its law is that of one cell.
        """
        answers, y, valid = answers_of("accuracy", 60, outputs)
        with_it = np.array(metric.compute_counts(answers, y, valid))
        others = torch.arange(60) > 0
        own = np.flatnonzero(with_it - np.array(metric.compute_counts(answers, y, others)))
        noise = metric.make_noise(epsilon)
        found = np.array([
            np.subtract(metric.add_noise(with_it.tolist(), noise, STREAM.child(i)), with_it)
            for i in range(400)
        ])  # fmt: skip
        return geometric_pvalue(found[:, own].sum(axis=1), epsilon) if len(own) else 1.0

    @pytest.mark.statistical
    def test_what_a_record_moves_has_the_noise_of_one_count(self):
        for name in TABLES:
            assert self.pvalue(*TABLES[name], epsilon=0.7) > ACCEPT

    @pytest.mark.statistical
    @tables
    def test_noise_that_is_off_is_caught(self, name: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(NoisyCounts, "release", lambda self, counts, stream: list(counts))
        assert self.pvalue(*TABLES[name], epsilon=0.7) < REJECT

    @pytest.mark.contract
    @tables
    def test_a_record_in_two_cells_is_caught(self, name: str, monkeypatch: pytest.MonkeyPatch):
        """Its class's cell, and the same one of the other end of the table."""
        metric, outputs = TABLES[name]
        genuine = type(metric).compute_counts
        monkeypatch.setattr(
            type(metric), "compute_counts",
            lambda *given: np.add(genuine(*given), genuine(*given)[::-1]).tolist(),
        )  # fmt: skip
        answers, y, valid = answers_of("accuracy", 60, outputs)
        fewer = metric.compute_counts(answers, y, torch.arange(60) > 0)
        moved = np.subtract(metric.compute_counts(answers, y, valid), fewer)
        assert np.abs(moved).sum() > metric.max_points


class TestWhichTable:
    @pytest.mark.unit
    def test_follows_from_public_numbers(self):
        for outputs, slots, epsilon, columns in [
            (10, 179, 1.0, "answer"),
            (10, 100, 1.0, ""),
            (2, 4884, 1.0, "log-odds"),
            (2, 4884, 0.28, "log-odds"),
            (2, 4884, 0.1, "answer"),
            (2, 40, 1.0, "answer"),
            (2, 1000, 0.28, "log-odds"),
            (2, 20, 0.1, ""),
            (50, 4200, 1.0, "answer"),
            (51, 10**6, 1.0, ""),
            (1, 10**6, 1.0, ""),
        ]:
            usual = find_default_metric(False)
            found = metrics.choose_test_metric(usual, outputs=outputs, slots=slots, epsilon=epsilon)
            assert found.columns == columns
            assert found is usual or columns
            assert found.noun == usual.noun
            assert found.make_noise(epsilon).event == usual.make_noise(epsilon).event, (
                "at the same price"
            )

    @pytest.mark.property
    @settings(max_examples=100, deadline=None)
    @given(st.integers(2, 60), st.integers(20, 10**5), st.floats(0.05, 8.0))
    def test_adds_less_than_the_sample_or_the_classes_are_visible(
        self, outputs: int, slots: int, epsilon: float
    ):
        usual = find_default_metric(False)
        found = metrics.choose_test_metric(usual, outputs=outputs, slots=slots, epsilon=epsilon)
        if not found.columns:
            return
        deviation = found.make_noise(epsilon).standard_deviation
        noise = found.estimate_spread([0] * found.count_entries(outputs), slots, deviation)
        assert noise <= (0.125 if outputs == 2 else 0.4 / math.sqrt(slots)) + 1e-9

    @pytest.mark.unit
    def test_other_metrics_stay(self):
        for name, metric in METRICS.items():
            if name not in ("accuracy", "mae"):
                found = metrics.choose_test_metric(metric, outputs=2, slots=10**6, epsilon=8.0)
                assert found is metric

    @pytest.mark.unit
    def test_a_numeric_target_has_a_table_if_its_noise_is_small(self):
        for slots, epsilon, is_table in [
            (134, 0.289, False),
            (134, 1.0, True),
            (2064, 0.28, True),
            (40, 1.0, False),
        ]:
            found = metrics.choose_test_metric(
                METRICS["mae"], outputs=1, slots=slots, epsilon=epsilon
            )
            assert (found.columns == "error") == is_table
            assert found.noun == "mean absolute error"

    @pytest.mark.oracle
    def test_a_table_of_errors_has_the_error_the_median_and_r2(self):
        draw = np.random.default_rng(0)
        y = draw.beta(2, 5, 20_000)
        answers = np.clip(y + draw.normal(0, 0.1, len(y)), 0, 1)
        valid = torch.ones(len(y), dtype=torch.bool)
        table = metrics.ErrorTable()
        counts = table.compute_counts(torch.tensor(answers)[:, None], torch.tensor(y), valid)
        assert sum(counts) == len(y), "a record is in one cell"
        rows = np.array(counts, float).reshape(8, -1)
        told = compute_error_measures(Table(counts=rows, columns="error", noise=0.0, of=len(y)))
        error = np.abs(answers - y)
        assert told["mean_absolute_error"]["value"] == pytest.approx(error.mean(), rel=0.05)
        assert told["median"]["at"] == pytest.approx(np.median(y), abs=0.01)
        baseline = np.abs(y - np.median(y)).mean()
        assert told["median"]["value"] == pytest.approx(baseline, rel=0.05)
        assert told["r2"]["value"] == pytest.approx(1 - (error**2).mean() / y.var(), abs=0.03)
        assert table.compute_points(counts, len(y)) == round(
            100 * len(y) * (1 - told["mean_absolute_error"]["value"])
        )

    @pytest.mark.statistical
    def test_a_table_of_errors_errs_as_it_says(self):
        """Of noise and sample together: four in five to all of 95 % intervals hold the truth."""
        draw, noise = np.random.default_rng(1), NoisyCounts(epsilon=1.0).standard_deviation
        held = dict.fromkeys(("mean_absolute_error", "median", "lead", "r2"), 0)
        table, truth, tries = metrics.ErrorTable(), {}, 60
        for attempt in range(tries + 1):
            n = 200_000 if not attempt else 1000
            y = draw.beta(2, 5, n)
            answers = np.clip(y + draw.normal(0, 0.1, n), 0, 1)
            own = torch.tensor(answers)[:, None], torch.tensor(y), torch.ones(n, dtype=torch.bool)
            counts = np.array(table.compute_counts(*own), float) + (noise if attempt else 0.0) * (
                draw.normal(size=table.count_entries(1))
            )
            deviation = noise if attempt else 0.0
            found = compute_error_measures(
                Table(counts=counts.reshape(8, -1), columns="error", noise=deviation, of=n)
            )
            if not attempt:
                truth = {name: found[name]["value"] for name in held}
                continue
            for name in held:
                value, error = found[name]["value"], found[name]["error"]
                held[name] += abs(value - truth[name]) <= 1.96 * error
        assert all(0.85 <= each / tries <= 1.0 for each in held.values()), held

    @pytest.mark.unit
    def test_a_target_that_cannot_be_read_is_in_no_cell(self):
        answers, y = torch.full((5, 1), 0.5), torch.tensor([0.1, 0.2, math.nan, 1.0, 0.0])
        valid = torch.tensor([True, True, False, True, True])
        counts = metrics.ErrorTable().compute_counts(answers, y, valid)
        assert sum(counts) == 4
        assert sum(metrics.ErrorTable().compute_counts(answers * math.nan, y, valid)) == 4

    @pytest.mark.unit
    def test_of_one_class_that_was_found_no_metric_fails(self):
        """Fewer than two classes may be estimated: the network then has one output."""
        answers, y = torch.zeros(5, 1), torch.zeros(5, dtype=torch.long)
        counts = METRICS["auc"].compute_counts(answers, y, torch.ones(5, dtype=torch.bool))
        assert counts[0] == sum(counts) == 5
        assert METRICS["auc"].compute_points(counts, 5) == 2


class TestNoise:
    @pytest.mark.statistical
    def test_of_every_cell_has_the_epsilon_that_is_charged(self):
        for epsilon in [0.3, 1.0]:
            mechanism, counts = NoisyCounts(epsilon=epsilon), [7, 0, 300]
            found = np.array([mechanism.release(counts, STREAM.child(str(i))) for i in range(1500)])
            for cell, count in enumerate(counts):
                noise = found[:, cell] - count
                assert geometric_pvalue(noise, epsilon) > ACCEPT
                assert geometric_pvalue(0 * noise, epsilon) < REJECT, "none is seen"
                assert geometric_pvalue(noise, 2 * epsilon) < REJECT, "half is seen"
            assert abs(np.corrcoef((found - counts).T)[0, 1]) < 0.1, "each has its own"

    @pytest.mark.contract
    def test_is_drawn_afresh_where_any_count_is_another(self):
        mechanism = NoisyCounts(epsilon=0.01)
        first, again = (mechanism.release([5, 6], STREAM) for _ in range(2))
        assert first == again
        other = mechanism.release([5, 7], STREAM)
        assert first[0] != other[0]

    @pytest.mark.unit
    def test_its_spread_is_told(self):
        """The deviation that is printed is that of points over many keys, within a third."""
        for name in METRICS:
            metric, n = METRICS[name], 2000
            counts = metric.compute_counts(*answers_of(name, n))
            noise = metric.make_noise(0.5)
            scores = [
                Score.of(metric, counts, noise, n, STREAM.child(str(place))) for place in range(120)
            ]
            seen = float(np.std([each.points for each in scores])) / (n * metric.max_points)
            told = float(np.median([each.spread for each in scores]))
            assert told == pytest.approx(seen, rel=0.33, abs=2 / n)

    @pytest.mark.unit
    def test_alone_is_not_taken_for_classes(self):
        metric = METRICS["balanced-accuracy"]
        counts = [10, 90, 1, 0, 0, 1]
        with_noise = metric.compute_points(counts, 1000, noise=5.0)
        assert with_noise == 900, "two classes have fewer records than noise would show"
        assert metric.compute_points(counts, 1000) == round(1000 * (0.9 + 0.0 + 1.0) / 3)


class TestChoosing:
    @pytest.mark.unit
    def test_by_name(self):
        assert find_metric(None, regression=False, outputs=9) is find_default_metric(False)
        assert find_metric(None, regression=True, outputs=1) is find_default_metric(True)
        for name, metric in METRICS.items():
            assert find_metric(name, regression=name in NUMBERS, outputs=2) is metric
            assert find_metric_by_noun(metric.noun) is metric

    @pytest.mark.unit
    def test_refuses_what_is_not_for_the_data(self):
        for name, regression, outputs, words in [
            ("f1", False, 2, "for classes expected one of accuracy, balanced-accuracy, auc"),
            ("rmse", False, 2, "for classes expected"),
            ("auc", True, 1, "for a regression target expected one of mae, rmse"),
            ("auc", False, 3, "requires two classes, and these data have 3"),
        ]:
            with pytest.raises(UsageError, match=words):
                find_metric(name, regression=regression, outputs=outputs)

    @pytest.mark.unit
    def test_a_noun_that_no_metric_has(self):
        with pytest.raises(UsageError, match="is unknown"):
            find_metric_by_noun("charm")


class TestRuns:
    """Every command scores, chooses, reports and verifies by the metric that is named."""

    @pytest.mark.contract
    @pytest.mark.parametrize(
        ("task", "name"),
        [
            *(("train", name) for name in METRICS), ("arch", "auc"), ("arch", "rmse"),
            ("features", "balanced-accuracy"), ("features", "log-loss"), ("features", "rmse"),
        ],
    )  # fmt: skip
    def test_end_to_end(self, task: str, name: str, tmp_path: Any):
        data = table(600, number=name in NUMBERS)
        given = {"budget": Budget(20.0), "metric": name, "out": tmp_path / "run"}
        if task == "train":
            found = api.train(data, architecture={"layers": []}, steps=5, **given)
        elif task == "arch":
            found = api.search_architecture(
                data, strategy="paas", candidates=3, generations=1, steps=5, **given
            )
        else:
            few = {"population": 2, "generations": 2}
            found = api.select_features(data, method="pafs", **few, **given)
        metric, score = METRICS[name], found.document["score"]
        assert score["metric"] == metric.noun
        if not metric.is_sum:
            told = found.metrics[name.replace("-", "_")]
            assert told["value"] == pytest.approx(found.test_score, abs=1 / score["of"])
            assert told["error"] > score["noise"]["standard_deviation"]
        assert 0.0 <= found.test_score <= metric.worst
        assert api.verify(found.path)[1] == []
        assert metric.noun in (found.path / "release" / "report.html").read_text()

    @pytest.mark.unit
    def test_portions_need_points_that_are_summed(self):
        with pytest.raises(UsageError, match="requires a metric that is a sum over records"):
            api.plan_architecture_search(
                table(3000), budget=Budget(2.0), strategy="portions", candidates=2,
                space={"name": "two", "choices": {"units_1": [4, 8]}}, metric="auc",
            )  # fmt: skip
