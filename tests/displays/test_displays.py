"""Displays draw the numbers that they were given, and can be read without colours."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pasearch import Budget, search_architecture, select_features
from pasearch.crossover.curves import estimate_mean_and_half_width, find_crossover
from pasearch.crossover.report import CrossoverReport
from pasearch.displays import (
    BudgetDisplay,
    CrossoverDisplay,
    FeaturesDisplay,
    ScheduleDisplay,
    TrialsDisplay,
)
from pasearch.errors import UsageError
from pasearch.runs.mechanisms import NoisyCount
from pasearch.training.metrics import METRICS
from pasearch.training.recipe import Recipe
from pasearch.training.schedules import ExponentialDecay

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")
pytestmark = pytest.mark.unit

GENERATOR = np.random.default_rng(0)
X = GENERATOR.random((600, 5)).astype("float32")
Y = (X[:, 0] + 0.5 * X[:, 1] > 0.75).astype(int)
PLAN: dict[str, Any] = {"budget": Budget(epsilon=2.0), "bounds": (0, 1), "classes": 2}


@pytest.fixture(autouse=True)
def no_figure_is_left() -> Iterator[None]:
    yield
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("displays") / "searched"
    return search_architecture((X, Y), strategy="ahead", candidates=2, steps=2, out=out, **PLAN)


@pytest.fixture(scope="module")
def selected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("displays") / "selected"
    return select_features((X, Y), method="cfs-greedy", k=2, out=out, **PLAN)


def report(repeats: int = 4) -> CrossoverReport:
    """Two made-up models, of which the second becomes the better one between .1 and 10."""
    epsilons = (0.1, 0.5, 2.0, 10.0)
    base = np.array([[0.4, 0.3, 0.25, 0.24], [0.7, 0.4, 0.2, 0.1]])
    errors = base[:, :, None] + 0.01 * np.random.default_rng(1).random((2, 4, repeats))
    names = ("_$a$ linear", "fcn")
    return CrossoverReport(
        data="made-up", n=1000, delta=1e-4, metric="1 - accuracy", names=names,
        parameters=(10, 200), epsilons=epsilons, errors=errors,
        plain=np.array([[0.23] * repeats, [0.05] * repeats]),
        crossovers=(find_crossover(errors[0], errors[1], epsilons, names),),
    )  # fmt: skip


def of_trials(rule: str = "composition", **more: Any) -> dict[str, Any]:
    """The fields of a `result.json` that tell of trials."""
    networks = [
        {"front_end": "raw", "layers": [], "settings": {"learning_rate_scale": scale}}
        for scale in (1.0, 2.0, 3.0)
    ]
    return {
        "selection": {"rule": rule}, "strategy": {"name": "mgrs", "judged_by": "accuracy"},
        "score": {"metric": "accuracy"}, "best": networks[1],
        "dataset": {"slots": {"train": 800, "validation": 100}},
        "events": [
            {"name": "score", "partition": "validation", "count": 3,
             "event": {"type": "geometric", "epsilon": 0.5}},
        ],
        "trials": [
            {"parameters": network, "noisy_correct": points}
            for network, points in zip(networks, (70, 85, None), strict=True)
        ],
        **more,
    }  # fmt: skip


def of_recipe(**more: Any) -> dict[str, Any]:
    """The field of a `result.json` that tells of the training."""
    recipe = Recipe(
        expected_batch_size=50, steps=40, learning_rate=0.5, noise_multiplier=4.0,
        schedule=ExponentialDecay(rate=0.1),
    )  # fmt: skip
    return {"recipe": {**recipe.to_json(), "sampling_probability": 0.25, "name": "", **more}}


def every(searched: Any, selected: Any) -> list[Any]:
    return [
        CrossoverDisplay.from_report(report()), TrialsDisplay.from_result(searched),
        BudgetDisplay.from_plan(searched), FeaturesDisplay.from_result(selected),
        ScheduleDisplay.from_result(searched),
    ]  # fmt: skip


def axes_without_pyplot() -> Any:
    from matplotlib.figure import Figure

    return Figure().subplots()


def told(axes: Any) -> str:
    return " ".join(text.get_text() for text in axes.texts)


def legend_of(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


# --- what all displays share


def test_plot_returns_the_display_and_draws_on_the_axes_it_is_given(searched: Any, selected: Any):
    from matplotlib import pyplot

    for display in every(searched, selected):
        axes = axes_without_pyplot()
        assert display.plot(axes) is display
        assert display.ax_ is axes
        assert display.figure_ is axes.figure
    assert pyplot.get_fignums() == []  # pyplot knows of none of them


def test_every_axis_says_what_it_shows_and_in_which_unit(searched: Any, selected: Any):
    units = {"records", "score", "sensitivity", "\N{GREEK SMALL LETTER EPSILON}", "Step", "logit"}
    for display in every(searched, selected):
        axes = display.plot().ax_
        for label in (axes.get_xlabel(), axes.get_ylabel()):
            assert label, type(display)
        both = axes.get_xlabel() + axes.get_ylabel()
        assert any(unit in both for unit in units), both
    assert "mean gradient" in display.learning_rate_ax_.get_ylabel()


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    display = CrossoverDisplay.from_report(report())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'pasearch\[plots\]'"):
        display.plot()


def test_what_is_no_result_is_refused_in_one_sentence(tmp_path: Path):
    for made in [
        BudgetDisplay.from_plan,
        TrialsDisplay.from_result,
        FeaturesDisplay.from_result,
        ScheduleDisplay.from_result,
        CrossoverDisplay.from_report,
    ]:
        for given in ({}, {"recipe": 3, "task": "feature selection"}, {"selection": {}}):
            with pytest.raises(UsageError, match="not well formed"):
                made(given)
        with pytest.raises(UsageError, match="cannot be made from type int"):
            made(3)
        with pytest.raises(UsageError):
            made(tmp_path / "gone")


# --- crossover


def test_the_curves_are_the_reports_numbers():
    given = report()
    display = CrossoverDisplay.from_report(given).plot()
    for line, bands, errors in zip(
        display.lines_, display.ax_.collections, given.errors, strict=True
    ):
        mean, half = estimate_mean_and_half_width(errors)
        np.testing.assert_array_equal(line.get_xdata(), given.epsilons)
        np.testing.assert_allclose(line.get_ydata(), mean, atol=1e-5)
        corners = bands.get_paths()[0].vertices
        for epsilon, low, high in zip(given.epsilons, mean - half, mean + half, strict=True):
            at = corners[np.isclose(corners[:, 0], epsilon), 1]
            np.testing.assert_allclose((at.min(), at.max()), (low, high), atol=2e-5)
    dashed = [each for each in display.ax_.lines if tuple(each.get_ydata()) in {(0.23, 0.23)}]
    assert len(dashed) == 1
    assert display.ax_.get_xscale() == "log"


def test_the_crossover_stands_in_its_shaded_interval():
    given = report()
    display = CrossoverDisplay.from_report(given).plot()
    (found,) = given.crossovers
    (line,) = display.crossing_lines_
    assert line.get_xdata()[0] == pytest.approx(found.epsilon, abs=1e-5)
    (shade,) = display.ax_.patches
    ends = np.array(shade.get_extents().transformed(display.ax_.transData.inverted()))[:, 0]
    np.testing.assert_allclose(ends, (found.low, found.high), atol=1e-4)


def test_a_crossover_is_read_from_its_file_and_its_values(tmp_path: Path):
    values = report().to_json()
    file = tmp_path / "crossover.json"
    file.write_text(json.dumps(values))
    for given in (values, file, str(tmp_path)):
        display = CrossoverDisplay.from_report(given)
        assert display.models[1]["error"] == values["models"][1]["error"]


def test_names_are_drawn_as_they_are_written():
    axes = axes_without_pyplot()
    CrossoverDisplay.from_report(report()).plot(axes)
    assert legend_of(axes)[0] == r" _\$a\$ linear (10 parameters)"  # no formula, not left out


# --- trials


def test_trials_have_their_scores_and_the_noises_deviation():
    display = TrialsDisplay.from_result(of_trials()).plot()
    deviation = NoisyCount(epsilon=0.5).standard_deviation / 100
    assert display.scores == (0.7, 0.85, None)
    assert display.deviations == (pytest.approx(deviation), pytest.approx(deviation), None)
    assert [each.released for each in display.trials] == [False, True, False]
    lines = {tuple(line.get_xdata()) for line in display.ax_.lines}
    assert {(0.7,), (0.85,)} <= lines
    ends = [bar.get_paths()[0].vertices[:, 0] for bar in display.ax_.collections]
    np.testing.assert_allclose(ends[0], (0.7 - deviation, 0.7 + deviation))
    assert told(display.ax_) == "failed"


def test_scores_are_shown_in_the_metrics_own_unit():
    for metric in ["brier", "log-loss", "balanced-accuracy"]:
        own = METRICS[metric]
        document = of_trials(strategy={"name": "mgrs", "judged_by": own.noun})
        display = TrialsDisplay.from_result(document)
        assert display.scores[0] == own.to_metric_value(70 / (100 * own.max_points))
        if not own.is_sum:
            assert display.deviations[0] is None  # of what is made of counts it is not known
            assert len(display.plot().ax_.collections) == 0
            return
        share = own.make_noise(0.5).standard_deviation / (100 * own.max_points)
        assert display.deviations[0] == pytest.approx(abs(own.compute_slope(0.1)) * share)
        assert "lower is better" in display.measure


def test_secret_trials_are_a_sentence_whatever_the_document_holds():
    for rule in ["repeat-and-select", "disjoint portions"]:
        display = TrialsDisplay.from_result(of_trials(rule)).plot()
        assert display.trials == ()
        assert "trials of this run are secret" in told(display.ax_).replace("\n", " ")
        assert not display.ax_.lines


# --- budget


def test_bars_are_the_prices_of_the_partitions(searched: Any):
    display = BudgetDisplay.from_plan(searched.path).plot()
    prices = searched.document["price_by_partition"]
    assert [each.name for each in display.partitions] == list(prices)
    widths = [bar.get_width() for bar in display.bars_]
    assert widths == [each["epsilon"] for each in prices.values()]
    assert display.price == searched.price.epsilon
    for line in searched.document["events"]:
        assert line["name"] in told(display.ax_)


def test_how_many_trainings_a_selection_has_is_secret():
    display = BudgetDisplay.from_plan(priced({"train": 2.0}, "repeat-and-select", 1))
    assert display.partitions[0].lines == ("training, the best of a secret number",)


def priced(prices: dict[str, float], kind: str = "gaussian", count: int = 3) -> dict[str, Any]:
    """The fields of a `result.json` that tell of prices."""
    return {
        "budget": {"epsilon": 2.0, "delta": 1e-5}, "dataset": {"slots": dict.fromkeys(prices, 9)},
        "price_by_partition": {
            name: {"epsilon": epsilon, "accountant": "PLD"} for name, epsilon in prices.items()
        },
        "events": [
            {"name": "training", "partition": name, "count": count, "event": {"type": kind}}
            for name in prices
        ],
    }  # fmt: skip


# --- features


def test_bars_are_the_models_coefficients_the_longest_first(selected: Any):
    display = FeaturesDisplay.from_result(selected).plot()
    weights, names = selected.model.coef_, selected.model.feature_names_
    own = dict(zip(names, weights[1] - weights[0], strict=True))
    assert set(display.names) == set(selected.features)
    assert display.values == tuple(own[name] for name in display.names)
    assert sorted(display.values, key=abs, reverse=True) == list(display.values)
    assert {bar.get_width() for bar in display.ax_.patches} == set(display.values)
    assert display.directions == ("raises the probability of 1", "raises the probability of 0")


def test_a_document_alone_has_what_features_tell(selected: Any):
    display = FeaturesDisplay.from_result(selected.document).plot()
    told_of = {each["feature"]: each["uncertainty"] for each in selected.document["relevance"]}
    assert display.values == tuple(told_of[name] for name in display.names)
    assert display.noise == selected.document["relevance_of_noise"]


def test_a_search_has_no_features(searched: Any):
    with pytest.raises(UsageError, match="architecture search"):
        FeaturesDisplay.from_result(searched)


# --- schedule


def test_noise_and_rate_are_those_of_every_step():
    display = ScheduleDisplay.from_result(of_recipe()).plot()
    noise, rate = display.lines_
    epochs = np.arange(40) // 4  # q = 1/4: four steps are an epoch
    np.testing.assert_array_equal(noise.get_xdata(), np.arange(40))
    np.testing.assert_allclose(noise.get_ydata(), 4.0 * np.exp(-0.1 * epochs))
    np.testing.assert_array_equal(rate.get_ydata(), np.full(40, 0.5))
    assert noise.get_marker() != rate.get_marker()
    assert noise.get_linestyle() != rate.get_linestyle()


def test_a_training_that_ended_early_says_when():
    steered = {"name": "validation", "rate": 0.7, "threshold": 0.01}
    display = ScheduleDisplay.from_result(of_recipe(schedule=steered, steps_made=31)).plot()
    assert "when the validation accuracy stopped rising" in display.ax_.get_title(loc="left")
    assert "ended after 31 steps" in legend_of(display.ax_)


def test_a_model_that_was_trained_in_one_piece_has_no_schedule():
    with pytest.raises(UsageError, match="objective perturbation"):
        ScheduleDisplay.from_result({"recipe": {"trainer": "objective", "epsilon": 1.0}})
