"""Variants of one training: what they are, that the pick is charged, and which one is taken."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pasearch as api
from pasearch.accounting.events import Geometric, PureDP
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Ledger
from pasearch.runs.mechanisms import ExponentialMechanism, NoisyCounts
from pasearch.search import variants
from pasearch.search.variants import VARIANT_LINE
from pasearch.search.weights import Trajectory, set_threshold
from pasearch.training.metrics import METRICS

ACCURACY, BALANCED = METRICS["accuracy"], METRICS["balanced-accuracy"]
OPTIONS = {"strategy": "fixed", "variants": True, "device": "cpu", "seed": 3}


def planned(**more: object) -> api.Plan:
    return api.plan_architecture_search("digits", budget=api.Budget(2.0), **OPTIONS | more)


def network(weight: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    found = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        for each in found.parameters():
            each.mul_(weight)
    return found


def walked(steps: int, made: int | None = None) -> tuple[Trajectory, nn.Module]:
    """A training whose iterate after t steps is t times the first one."""
    kept, last = Trajectory(steps), network()
    for finished in range(1, (made or steps) + 1):
        last = network(float(finished))
        kept.record(finished, last)
    return kept, last


def by_name(outputs: int = 2, steps: int = 20, made: int | None = None) -> dict[str, dict]:
    kept, last = walked(steps, made)
    return dict(
        zip(
            variants.list_variant_names(ACCURACY, outputs),
            kept.make_variants(last, outputs),
            strict=True,
        )
    )


class TestVariants:
    @pytest.mark.oracle
    @pytest.mark.parametrize(
        ("name", "multiple"),
        [
            ("as trained", 20.0), ("after a quarter of the steps", 5.0),
            ("after half of the steps", 10.0), ("after three quarters of the steps", 15.0),
            ("the last iterate", 20.0), ("the mean of the last tenth", 19.5),
            ("the mean of the last half", 15.5),
        ],
    )  # fmt: skip
    def test_iterates_and_their_means(self, name: str, multiple: float):
        first = network().state_dict()
        for key, value in by_name()[name].items():
            assert torch.allclose(value, multiple * first[key], rtol=1e-5)

    @pytest.mark.unit
    def test_odds_are_shifted_and_nothing_else(self):
        found = by_name()
        kept, moved = found["as trained"], found["odds shifted by 0.5"]
        x, net = torch.randn(5, 3), network()
        net.load_state_dict(kept)
        before = net(x)
        net.load_state_dict(moved)
        assert torch.allclose(net(x) - before, torch.tensor([0.0, 0.5]), atol=1e-5)

    @pytest.mark.unit
    def test_small_weights_are_left_out_and_others_kept(self):
        found = by_name()
        kept, pruned = found["as trained"]["0.weight"], found["a third pruned"]["0.weight"]
        assert int((pruned == 0).sum()) == 4
        assert torch.equal(pruned[pruned != 0], kept[pruned != 0])
        assert kept[pruned == 0].abs().max() <= pruned[pruned != 0].abs().min()

    @pytest.mark.unit
    def test_so_many_bits_have_so_many_values(self):
        few = by_name()["4 bits"]["0.weight"]
        steps = few / few.abs().max() * 7
        assert torch.allclose(steps, steps.round(), atol=1e-4)

    @pytest.mark.unit
    def test_what_a_training_that_ended_early_has_not_made_stands_for_itself(self):
        found = by_name(made=8)
        assert torch.equal(found["the last iterate"]["0.weight"], found["as trained"]["0.weight"])
        assert not torch.equal(
            found["after a quarter of the steps"]["0.weight"], found["as trained"]["0.weight"]
        )

    @pytest.mark.unit
    @pytest.mark.parametrize("outputs", [1, 2, 10])
    def test_there_are_as_many_as_are_named_and_most_of_two_classes(self, outputs: int):
        kept, last = walked(4)
        assert len(kept.make_variants(last, outputs)) == len(
            variants.list_variant_names(ACCURACY, outputs)
        )
        assert len(variants.list_variant_names(ACCURACY, outputs)) <= len(
            variants.list_variant_names(ACCURACY, 2)
        )

    @pytest.mark.unit
    def test_a_training_that_failed_has_variants_that_failed(self):
        kept, last = Trajectory(4), network()
        for each in last.parameters():
            each.data.fill_(torch.nan)
        assert len(kept.make_variants(last, 2)) == len(variants.list_variant_names(ACCURACY, 2))


class TestPick:
    @pytest.mark.statistical
    def test_a_sum_is_picked_from_by_the_exponential_mechanism(self):
        noise = variants.make_mechanism(ACCURACY, 1.0)
        assert noise == ExponentialMechanism(epsilon=1.0)
        taken = np.zeros(3)
        for seed in range(1500):
            taken[noise.pick([10, 12, 0], Keys.from_seed(seed).stream(VARIANT_LINE))] += 1
        law = np.exp(np.array([10, 12, 0]) / 2)
        assert taken / 1500 == pytest.approx(law / law.sum(), abs=0.05)

    @pytest.mark.oracle
    def test_a_threshold_is_the_edge_of_the_largest_balanced_accuracy(self):
        draw = np.random.default_rng(0)
        y = draw.random(4000) < 0.05
        odds = draw.normal(-3.0 + 2.5 * y, 1.0)
        cells = np.searchsorted(variants.list_thresholds(), odds, side="left")
        noisy = np.bincount(cells + 20 * y, minlength=40)
        by_hand = [
            ((odds[~y] <= e).mean() + (odds[y] > e).mean()) / 2 for e in variants.list_thresholds()
        ]
        assert variants.choose_threshold(noisy.tolist()) == int(np.argmax(by_hand))
        assert variants.list_thresholds()[variants.choose_threshold([0] * 40)] == 0.0

    @pytest.mark.unit
    def test_thresholds_are_one_release_of_counts(self):
        line = variants.make_lines_of_epsilon(BALANCED, 2)(0.5)[0]
        assert (line.event, line.count) == (Geometric(0.5), 1)
        assert variants.make_mechanism(BALANCED, 0.5) == NoisyCounts(epsilon=0.5)
        moved = set_threshold(network().state_dict(), variants.list_thresholds().index(-1.0))
        net, x = network(), torch.randn(5, 3)
        before = net(x)
        net.load_state_dict(moved)
        assert torch.allclose(net(x) - before, torch.tensor([0.0, 1.0]), atol=1e-5)
        assert (
            variants.list_variant_names(BALANCED, 2)[variants.list_thresholds().index(0.0)]
            == "as trained"
        )

    @pytest.mark.unit
    @pytest.mark.parametrize(("metric", "outputs"), [("auc", 2), ("balanced-accuracy", 3)])
    def test_metrics_that_variants_are_not_compared_by(self, metric: str, outputs: int):
        with pytest.raises(UsageError, match="variants="):
            variants.make_lines_of_epsilon(METRICS[metric], outputs)

    @pytest.mark.unit
    def test_the_plan_has_it_on_validation_and_the_training_keeps_its_budget(self):
        plan, without = planned(), planned(variants=False)
        line = next(line for line in plan.lines if line.name == VARIANT_LINE)
        assert (line.partition, line.count) == ("validation", 1)
        assert isinstance(line.event, PureDP)
        assert plan.split.validation > 0 == without.split.validation
        assert plan.trial_mu == pytest.approx(without.trial_mu, rel=0.02)

    @pytest.mark.unit
    @pytest.mark.parametrize("more", [{"strategy": "rs"}, {"strategy": "paas"}])
    def test_where_validation_is_used_already_it_is_refused(self, more: dict):
        with pytest.raises(UsageError, match="variants="):
            planned(**more)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("more", "picks"),
        [
            ({"metric": "balanced-accuracy"}, True), ({}, False),
            ({"metric": "balanced-accuracy", "variants": False}, False),
            ({"metric": "balanced-accuracy", "classes": 3}, False),
            ({"metric": "balanced-accuracy", "strategy": "rs"}, False),
        ],
        ids=str,
    )  # fmt: skip
    def test_of_two_classes_by_balanced_accuracy_it_is_the_default(self, more: dict, picks: bool):
        x = np.zeros((400, 3), "float32")
        plan = api.plan_architecture_search(
            (x, np.zeros(400, int)), budget=api.Budget(2.0),
            **{"bounds": (0, 1), "classes": 2, "strategy": "fixed", "device": "cpu"} | more,
        )  # fmt: skip
        assert (plan.pick is not None) is picks

    @pytest.mark.unit
    def test_without_privacy_there_is_nothing_to_pay(self):
        with pytest.raises(UsageError, match="variants="):
            planned(strategy="stw", data_is_public=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{}, {"strategy": "insured", "candidates": 2}, {"metric": "brier"}], ids=str
)
def test_a_run_releases_a_variant_and_is_verified(tmp_path: Path, more: dict):
    options = OPTIONS | {"steps": 8} | more
    result = api.search_architecture(
        "digits", budget=api.Budget(2.0), out=tmp_path / "run", **options
    )
    assert result.document["variant"] in variants.list_variant_names(ACCURACY, 10)
    assert not api.verify(tmp_path / "run")[1]
    report = (tmp_path / "run" / "release" / "report.html").read_text()
    assert "by private post-training selection" in report
    path = tmp_path / "run" / "release" / "result.json"
    forged = json.loads(path.read_text()) | {"variant": "another"}
    path.write_text(json.dumps(forged))
    assert any("variant is" in each for each in api.verify(tmp_path / "run")[1])


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["accuracy", "balanced-accuracy"])
def test_it_has_teeth_what_is_released_is_what_the_mechanism_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str
):
    """The noisy answer decides, whatever the exact one would be."""
    monkeypatch.setattr(ExponentialMechanism, "pick", lambda self, points, stream: 3)
    only_high = [0] * 18 + [9, 0] + [0] * 19 + [9]  # the second class lies above the last edge
    monkeypatch.setattr(NoisyCounts, "release", lambda self, counts, stream: only_high)
    x = np.random.default_rng(0).random((400, 3)).astype("float32")
    result = api.search_architecture(
        (x, (x[:, 0] > 0.5).astype(int)), budget=api.Budget(5.0), bounds=(0, 1), classes=2,
        metric=metric, out=tmp_path / "run", **OPTIONS | {"steps": 8},
    )  # fmt: skip
    place = 3 if metric == "accuracy" else len(variants.list_thresholds()) - 1
    assert result.document["variant"] == variants.list_variant_names(METRICS[metric], 2)[place]


@pytest.mark.slow
def test_a_rare_class_is_found_by_another_threshold(tmp_path: Path):
    """By balanced accuracy the threshold moves towards the rare class."""
    draw = np.random.default_rng(0)
    y = (draw.random(4000) < 0.1).astype(int)
    x = np.clip(draw.normal(0.45 + 0.2 * y[:, None], 0.15, (4000, 4)), 0, 1).astype("float32")
    result = api.search_architecture(
        (x, y), budget=api.Budget(3.0), bounds=(0, 1), classes=2, metric="balanced-accuracy",
        out=tmp_path / "run", **OPTIONS,
    )  # fmt: skip
    assert result.document["variant"].startswith("odds shifted by")
    right = result.predict(x) == y
    assert right[y == 1].mean() > 0.6
    assert not api.verify(tmp_path / "run")[1]


@pytest.mark.slow
def test_it_has_teeth_a_pick_without_a_charge_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The line is planned for other records: the ledger opens none of validation for it."""
    lines_of = variants.make_lines_of_epsilon

    def elsewhere(metric, outputs):
        from dataclasses import replace

        return lambda e: [replace(each, partition="test") for each in lines_of(metric, outputs)(e)]

    monkeypatch.setattr(variants, "make_lines_of_epsilon", elsewhere)
    charged = Ledger.charged
    seen: list[str] = []

    def watched(self, line, opened, *, key):
        seen.append(line)
        return charged(self, line, opened, key=key)

    monkeypatch.setattr(Ledger, "charged", watched)
    with pytest.raises(Exception, match=r"validation|line|plan"):
        api.search_architecture(
            "digits", budget=api.Budget(2.0), out=tmp_path / "run", **OPTIONS | {"steps": 4}
        )
    assert seen[-1] == VARIANT_LINE
    assert not (tmp_path / "run" / "release" / "result.json").exists()
