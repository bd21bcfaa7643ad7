"""How good a report says that a model is, and what it tells of a test's table of counts."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
from report.test_html import (
    HOSTILE,
    document,
    page,
    regression,
    table,
)

from pasearch.errors import UsageError
from pasearch.report import score
from pasearch.report.facts import find_result_warnings
from pasearch.report.html import report_html
from pasearch.report.score import Baseline, describe_quality, describe_score, is_below_noise
from pasearch.results import restore_schema
from pasearch.runs.mechanisms import NoisyCounts
from pasearch.training.score_tables import (
    CORRECTNESS_COLUMNS,
    ERROR_COLUMNS,
    LOG_ODDS_COLUMNS,
    LOG_ODDS_EDGES,
    PREDICTION_COLUMNS,
    Table,
    compute_score_measures,
    compute_wilson_interval,
    estimate_lead,
    read_table,
    table_to_json,
)

EPSILON, N = 2.0, 4000


def people(names: list[str], rows: Any, columns: str, of: int = N, **more: Any) -> dict[str, Any]:
    """A run on a table of people, whose test released these counts."""
    made = table({"name": "ill", "kind": "category", "categories": names})
    cells = [int(each) for row in rows for each in row]
    noise = {"mechanism": "two-sided geometric", "epsilon": EPSILON, "standard_deviation": 0.001}
    score = {
        "metric": "accuracy",
        "of": of,
        "noise": noise,
        **table_to_json(cells, columns),
        **more,
    }
    found = read_table(score)
    assert found is not None
    right = int(found.counts[found.is_correct].sum())
    noise["standard_deviation"] = float(np.sqrt(found.is_correct.sum()) * found.noise / of)
    made["dataset"]["slots"]["test"] = of
    made["score"] = {"test": min(1.0, max(0.0, right / of)), "points": right, **score}
    return made


def with_odds(*, shift: float = 2.0, scale: float = 1.0, share: float = 0.25) -> dict[str, Any]:
    """Two classes by how sure the model is; of log-odds `scale` times what they should be."""
    draw = np.random.default_rng(0)
    y = (draw.random(N) < share).astype(int)
    signal = draw.normal(np.where(y == 1, shift / 2, -shift / 2), 1.0)
    odds = scale * (shift * signal + np.log(share / (1 - share)))
    rows = np.zeros((2, len(LOG_ODDS_EDGES) + 1), int)
    np.add.at(rows, (y, np.searchsorted(LOG_ODDS_EDGES, odds)), 1)
    return people(["no", "yes"], rows, LOG_ODDS_COLUMNS)


def answers(outputs: int, hit: float = 0.7, of: int = N) -> np.ndarray:
    """Counts by true class and answer: the later a class, the more records and the fewer errors."""
    weights = np.arange(1, outputs + 1) / sum(range(1, outputs + 1))
    shares = np.linspace(hit - 0.2, min(1.0, hit + 0.2), outputs)
    rows = np.tile(((1 - shares) / outputs)[:, None], outputs) + np.diag(shares)
    return np.round(of * weights[:, None] * rows).astype(int)


def names(count: int) -> list[str]:
    return [f"kind {place}" for place in range(count)]


def right_only(outputs: int, **more: Any) -> dict[str, Any]:
    counts = answers(outputs, of=20 * N)
    hits = np.diag(counts)
    rows = np.stack([counts.sum(axis=1) - hits, hits], axis=1)
    return people(
        names(outputs), rows, CORRECTNESS_COLUMNS, of=20 * N, metric="balanced accuracy", **more
    )


KINDS = {
    "two with odds": with_odds(),
    "two without": people(["no", "yes"], [[2700, 300], [400, 600]], PREDICTION_COLUMNS),
    "five": people(names(5), answers(5), PREDICTION_COLUMNS),
    "twenty": people(names(20), answers(20, of=20 * N), PREDICTION_COLUMNS, of=20 * N),
    "sixty": right_only(60),
}


def told(made: dict[str, Any]) -> dict[str, Any]:
    return compute_score_measures(made["score"], restore_schema(made))


def verdict(made: dict[str, Any]) -> str:
    return str(describe_quality(made, restore_schema(made))["verdict"])


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def constant(most: int, fewer: int, won: int, lost: int) -> dict[str, Any]:
    """Two classes, `most` records of the first: the model wins some of the others, and loses."""
    return people(["no", "yes"], [[most - lost, lost], [fewer - won, won]], PREDICTION_COLUMNS,
                  of=most + fewer)  # fmt: skip


@pytest.mark.unit
class TestVerdict:
    def test_it_is_of_the_most_common_class(self):
        for won, lost, said in [
            (200, 50, "Significantly better than the majority class 'no' (75.0 %)."),
            (
                50,
                50,
                "Not significantly different from the majority class 'no' (75.0 %).",
            ),
            (
                51,
                45,
                "Not significantly different from the majority class 'no' (75.0 %).",
            ),
            (50, 200, "Significantly worse than the majority class 'no' (75.0 %)."),
        ]:
            made = constant(3000, 1000, won, lost)
            assert verdict(made).startswith(said)
            for text in (page(made).text, describe_score(made, restore_schema(made))[1]):
                assert said in text

    def test_a_class_that_only_noise_makes_the_most_common_is_no_rival(self):
        made = people(names(4), np.diag([3, 1, 2, 1]), PREDICTION_COLUMNS, of=40)
        assert "the random baseline (25.0 %)" in verdict(made)
        assert "Majority class" not in page(made).text

    def test_guessing_is_the_rival_where_it_reaches_more(self):
        # Many records that could not be read are in no class, and wrong for all.
        made = people(["no", "yes"], [[1040, 0], [0, 930]], PREDICTION_COLUMNS)
        assert told(made)["most_common"]["value"] == pytest.approx(0.26)
        assert verdict(made).startswith(
            "Not significantly different from the random baseline (50.0 %)."
        )

    def test_a_model_no_better_than_one_answer_may_tell_classes_apart(self):
        made = with_odds(share=0.05, shift=1.0)
        auc = told(made)["auc"]["value"]
        assert verdict(made).startswith("Not significantly different from the majority class 'no'")
        assert f"separate the classes: AUC {auc:.2f} (random 0.5)" in verdict(made)
        assert "pasearch predict RUN" in page(made).text
        made = constant(3000, 1000, 300, 300)
        balanced = percent(told(made)["balanced_accuracy"]["value"])
        assert f"balanced accuracy {balanced} (constant prediction: 50.0 %)" in (verdict(made))

    def test_a_drowned_score_is_compared_with_nothing(self):
        made = people(["no", "yes"], [[5, -2], [1, 3]], PREDICTION_COLUMNS, of=5)
        assert verdict(made).startswith("The test score is below the noise level")
        assert not re.search(
            "Significantly (better|worse)|Not significantly|separate the classes", page(made).text
        )
        found = describe_quality(made, restore_schema(made))
        assert found["rows"][0]["value"] == "unknown"
        assert not found["rows"][0]["bar"], "nor is it drawn"
        assert found["rows"][1]["bar"]
        assert is_below_noise(made["score"])
        assert not is_below_noise(KINDS["five"]["score"])

    def test_records_that_cannot_be_read_are_told_where_they_are_many(self):
        counts = [[300, 20], [30, 250]]
        for of, few in ((640, False), (1800, True)):
            made = people(["no", "yes"], counts, PREDICTION_COLUMNS, of=of)
            told = "Only about 33 % of the test records have a known class" in page(made).text
            assert told == few
            line = describe_score(made, restore_schema(made))[1]
            assert ("`pasearch check` lists them" in line) == few


def with_errors(epsilon: float = 2.0, of: int = 1000) -> dict[str, Any]:
    """A regression whose test released a table of errors."""
    rows = np.zeros((8, 10))
    rows[:4, 3:7] = [[20, 30, 20, 5], [60, 90, 60, 15], [80, 120, 80, 20], [60, 80, 50, 10]]
    rows[4:7, 4:8] = [[40, 30, 20, 5], [20, 20, 20, 5], [10, 15, 10, 5]]
    made = regression()
    cells = [int(each) for row in rows for each in row]
    made["score"] |= {"of": of, "test": 0.07, **table_to_json(cells, ERROR_COLUMNS)}
    made["score"]["noise"] = {"mechanism": "two-sided geometric", "epsilon": epsilon,
                              "standard_deviation": 0.002}  # fmt: skip
    return made


@pytest.mark.statistical
def test_the_lead_errs_as_it_says_and_less_than_two_shares():
    """Over samples and noise: the cells of a table are of the same records."""
    draw, chances = np.random.default_rng(0), np.array([[0.62, 0.08], [0.13, 0.17]])
    noise, of = NoisyCounts(epsilon=0.5).standard_deviation, 1000
    shape = np.exp(-0.5)
    found = []
    for _ in range(2000):
        counts = draw.multinomial(of, chances.ravel()).reshape(2, 2).astype(float)
        counts += draw.geometric(1 - shape, (2, 2)) - draw.geometric(1 - shape, (2, 2))
        found.append(
            estimate_lead(Table(counts=counts, columns=PREDICTION_COLUMNS, noise=noise, of=of))
        )
    values = np.array([each["value"] for each in found])
    errors = np.array([each["error"] for each in found])
    assert values.mean() == pytest.approx(0.09, abs=0.002)
    assert values.std() == pytest.approx(errors.mean(), rel=0.06)
    apart = np.sqrt(0.79 * 0.21 / of + 0.7 * 0.3 / of)
    assert errors.mean() < 0.85 * apart


@pytest.mark.unit
class TestMore:
    def test_the_page_says_what_the_measures_are(self):
        for kind in KINDS:
            made, found = KINDS[kind], told(KINDS[kind])
            text = page(made).text
            good = text.split("More about the test")[1].split("Privacy cost")[0]
            own = {"accuracy": "accuracy", "balanced accuracy": "balanced_accuracy"}
            shown = {"accuracy", "balanced_accuracy"} - {own[made["score"]["metric"]]}
            for name in shown:
                value, error = found[name]["value"], found[name]["error"]
                assert f"{name.replace('_', ' ').capitalize()} {percent(value)} \u00b1" in good
                low, high = compute_wilson_interval(value, error, 1.96)
                assert f"95 % CI {percent(low)} to {percent(high)}" in good
            recalls = [each["value"] for each in found["recall"]]
            for place in np.argsort(recalls, kind="stable")[:10]:
                recall = found["recall"][place]
                row = f"{found['classes'][place]} {percent(found['shares'][place]['value'])} "
                row += f"{percent(recall['value'])} \u00b1 {100 * recall['error']:.1f}"
                if found["precision"] is not None:
                    right = found["precision"][place]
                    row += f" {percent(right['value'])} \u00b1 {100 * right['error']:.1f}"
                assert row in good

    def test_probabilities_that_do_not_come_true_are_named(self):
        for scale, way in [(3.0, "low"), (0.3, "high")]:
            text = page(with_odds(scale=scale)).text
            assert "The predicted probabilities of 'yes' are miscalibrated." in text
            assert f"They are too {way} most clearly near a predicted" in text
            assert "miscalibrated" in text.split("More about the test")[0], "nothing to unfold"
            poor, fine = with_odds(scale=scale), KINDS["two with odds"]
            assert (
                score.describe_miscalibration(poor, restore_schema(poor)).replace("\xa0", " ")
                in text
            )
            assert score.describe_miscalibration(poor, restore_schema(poor)).startswith(
                "The predicted probabilities of 'yes'"
            )
            assert score.describe_miscalibration(fine, restore_schema(fine)) == ""
            good = page(KINDS["two with odds"]).text.split("More about the test")[0]
            assert "calibrated" not in good

    def test_few_classes_have_a_table_of_answers(self):
        made = KINDS["five"]
        found, shown = told(made), page(made)
        counts = found["confusion"]
        for name, row in zip(found["classes"], counts, strict=True):
            assert " ".join([name, *(f"{each:,}" for each in row)]) in shown.text
        assert f"the noise of each count: {found['confusion_error']:.2g}" in shown.text
        assert len(shown.all("td", "hit")) == 5
        faint = sum(each < 2 * found["confusion_error"] for row in counts for each in row)
        assert len(shown.all("td", "soft")) == faint
        (region,) = shown.all("div", "scroll")
        assert region["tabindex"] == "0"
        assert region["aria-label"]

    def test_all_noise_is_said_to_be_unknown(self):
        rows = [[1] + [0] * 19, [0] * 19 + [-1]]
        text = page(people(["no", "yes"], rows, LOG_ODDS_COLUMNS, of=100,
                           metric="area under the ROC curve", test=0.5)).text  # fmt: skip
        assert "Balanced accuracy is not available: every class has too few test records" in text
        assert "Calibration is not available" in text

    def test_an_area_of_the_first_two_of_more_classes_says_nothing_of_all(self):
        made = with_odds()
        made["dataset"]["schema"]["target"]["categories"] = ["no", "yes", "never"]
        made["score"] |= {"metric": "area under the ROC curve", "test": 0.8}
        assert "More about the test" not in page(made).text
        assert any(
            "first two only" in each for each in find_result_warnings(made, restore_schema(made))
        )

    def test_a_table_of_more_classes_than_there_are_is_refused(self):
        made = people(names(5), answers(5), PREDICTION_COLUMNS)
        made["dataset"]["schema"]["target"]["categories"] = ["a", "b"]
        with pytest.raises(UsageError):
            report_html(made)

    def test_a_hostile_class_is_only_text(self):
        for name in [*HOSTILE, "\u202egnp.exe", "two\nlines"]:

            def of(name: str) -> dict[str, Any]:
                made = copy.deepcopy(KINDS["two with odds"])
                made["dataset"]["schema"]["target"]["categories"] = [f"{name} 0", f"{name} 1"]
                return made

            found, harmless = page(of(name)), page(of("harmless"))
            assert [tag for tag, _ in found.elements] == [tag for tag, _ in harmless.elements]
            assert [set(e) for _, e in found.elements] == [set(e) for _, e in harmless.elements]
            line = describe_score(of(name), restore_schema(of(name)))[1]
            for text in (report_html(of(name)), line):
                assert "\u202e" not in text
            assert "\n" not in line
            assert len(line) < 400

    def test_classes_of_arrays_are_their_numbers(self):
        made = document()
        rows = np.diag([18] * 9 + [17])
        made["score"] |= table_to_json([int(each) for each in rows.ravel()], PREDICTION_COLUMNS)
        assert "Majority class ('0') 10.1 %" in page(made).text
        assert made["score"]["of"] == 179


@pytest.mark.statistical
def test_worse_than_one_answer_is_said_seldom_of_a_model_as_good():
    """The most common of many classes is so partly by chance: being ahead of it is no luck."""
    for k, n, epsilon in [(10, 2000, 1.0), (50, 30_000, 2.0)]:
        draw, noise = np.random.default_rng(2), NoisyCounts(epsilon=epsilon).standard_deviation
        worse = naive = 0
        for _ in range(800):
            counts = draw.multinomial(n, np.full(k * k, 1 / k**2)).reshape(k, k).astype(float)
            shape = np.exp(-epsilon)
            counts += draw.geometric(1 - shape, (k, k)) - draw.geometric(1 - shape, (k, k))
            above = estimate_lead(
                Table(counts=counts, columns=PREDICTION_COLUMNS, noise=noise, of=n)
            )
            given = {
                "description": "",
                "at": 0.0,
                "margin": above["value"],
                "error": above["error"],
            }
            worse += Baseline(**given, among=k).is_better
            naive += Baseline(**given).is_better
        assert worse / 800 < 0.04
        assert naive / 800 > 0.1, "without a word about how many there are it is said too often"
