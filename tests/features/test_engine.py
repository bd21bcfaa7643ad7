"""A selection is carried out as planned: every read charged, every release noisy, audited."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audits import ACCEPT, REJECT, WRONG, gaussian_pvalue, geometric_power, geometric_pvalue
from scipy.stats import chisquare
from selections import (
    METHODS,
    WAYS,
    arrays,
    dataset,
    plan_of,
    search_of,
    watch_doors,
    wrap_trainers,
)
from shortcuts import not_shrunk, pmf, points_of

from pasearch.accounting.events import Gaussian, Geometric, RepeatAndSelect
from pasearch.accounting.selection import RunCountDistribution
from pasearch.data import means as means_of
from pasearch.data.array_file import from_arrays
from pasearch.data.means import ROW_NORM, FeatureMeans
from pasearch.data.partitions import Records, UnchargedReadError
from pasearch.data.schema import Schema
from pasearch.errors import BudgetError
from pasearch.features import linear, views, wrappers
from pasearch.features.engine import FeatureSearch, PrivateRecordAccess
from pasearch.features.evolution import Evolution
from pasearch.features.pca import PrincipalComponents
from pasearch.features.selector import SelectionResult
from pasearch.features.trainers import LinearModel, MomentsTrainer
from pasearch.features.views import MAX_NORM_FACTOR, View
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Ledger, PlannedRelease, Receipt
from pasearch.runs.sums import GaussianSum
from pasearch.training import settings
from pasearch.training.metrics import Score

MIDDLE = np.full(6, 0.5)
MASKS = np.array([[1, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 1, 1]], bool)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch):
    """Plans with few steps of DP-SGD are not those that others may have kept."""
    monkeypatch.setattr(settings, "FULL_BATCH_STEPS", 4)
    plan_of.cache_clear()
    yield
    plan_of.cache_clear()


def charges(search: FeatureSearch) -> dict[str, int]:
    return {line: count for line, _, _, count in search.ledger.spent()}


class TestCharges:
    @pytest.mark.contract
    @pytest.mark.parametrize(("method", "more"), [*WAYS, ("pafs", {"number": True})])
    def test_every_read_follows_a_charge_and_every_line_is_spent(
        self, method: str, more: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        plan = plan_of(method, **more)
        search, events = search_of(plan, tmp_path), []
        charge = Ledger._charge

        def charging(ledger: Ledger, line: str, names: list[str], keys: list[str]) -> None:
            charge(ledger, line, names, keys)
            events.append((line, *names))

        monkeypatch.setattr(Ledger, "_charge", charging)
        watch_doors(monkeypatch, events.append)
        search.run()
        assert any(isinstance(each, str) for each in events), "a door was seen to open"
        for before, after in itertools.pairwise(events):
            if isinstance(after, str):
                assert before[1] == after, "what is opened was charged just before"
        limits = {line.name: line.count for line in plan.lines}
        spent = charges(search)
        assert set(spent) == set(limits), "no line is planned and not spent"
        for name, count in spent.items():
            assert count <= limits[name]
            assert method == "pafs" or count == limits[name]

    @pytest.mark.contract
    @pytest.mark.parametrize("method", METHODS)
    def test_a_line_that_lacks_is_a_refusal(
        self, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        plan = plan_of(method)
        for place, lacking in enumerate(plan.lines):
            lines = tuple(line for line in plan.lines if line is not lacking)
            search = search_of(plan, tmp_path, lines=lines)
            with pytest.raises(BudgetError, match=f"no line '{lacking.name}'"):
                search.run()
            assert lacking.name not in charges(search)
            assert place == 0 or charges(search)

    @pytest.mark.contract
    @pytest.mark.usefixtures("few_steps")
    @pytest.mark.parametrize("method", ["all", "subsets"])
    def test_steps_are_charged_as_well(self, method: str, tmp_path: Path):
        plan = plan_of(method, "dpsgd")
        search = search_of(plan, tmp_path)
        search.run()
        assert charges(search) == {line.name: 1 for line in plan.lines}

    @pytest.mark.contract
    def test_a_read_past_the_ledger_is_seen(self, tmp_path: Path):
        search = search_of(plan_of("all"), tmp_path)
        with pytest.raises(UnchargedReadError):
            search._select_partition("train").open(Receipt("test"))

    @pytest.mark.contract
    @pytest.mark.parametrize("method", ["cfs-greedy", "pafs", "subsets"])
    def test_apart_the_choice_reads_slots_of_its_own(self, method: str, tmp_path: Path):
        search = search_of(plan_of(method, search_share=0.5), tmp_path)
        outcome = search.run()
        read = {(line, place) for line, place, _, _ in search.ledger.spent()}
        assert ("final training", "train") in read
        assert {place for _, place in read} >= {"search", "train", "test"}
        assert outcome.chosen.model is None

    @pytest.mark.unit
    @pytest.mark.parametrize("method", ["top", "pafs", "subsets", "cfs-ga"])
    def test_the_same_run_again_releases_and_charges_the_same(self, method: str, tmp_path: Path):
        search = search_of(plan_of(method), tmp_path)
        first, spent = search.run(), charges(search)
        second = search.run()
        assert np.array_equal(first.model.weights, second.model.weights)
        assert (first.test, first.chosen.order) == (second.test, second.chosen.order)
        assert charges(search) == spent

    @pytest.mark.unit
    def test_exact_figures_are_of_public_data_only(self, tmp_path: Path):
        outcome = search_of(plan_of("all"), tmp_path).run()
        assert outcome.exact_points is None
        assert outcome.curve == ()


class TestNoise:
    """What is released, less what is true, against what the ledger charges."""

    @pytest.mark.statistical
    def test_of_the_means(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        """250 runs, six numbers each: power .99 at 2/3 and 3/2 (test_views has the exact one)."""
        not_shrunk(monkeypatch)
        plan = plan_of("all", n=3000)
        search = search_of(plan, tmp_path)
        event = next(line.event for line in search.ledger.lines if line.name == "feature means")
        assert isinstance(event, Gaussian)
        with search._open_line("feature means", "train") as records:
            assert isinstance(records, Records)
            exact = records.x.numpy().astype(np.float64).sum(axis=0)
            slots = len(records)
        released = np.array(
            [replace(search, keys=Keys.from_seed(seed))._release_means() for seed in range(250)]
        )
        assert ((released > 0) & (released < 1)).all()
        noise = (released * slots - exact) / math.sqrt(6) / event.noise_multiplier
        assert gaussian_pvalue(noise) > ACCEPT
        for share in (*WRONG, 0.0):
            assert gaussian_pvalue(noise * share) < REJECT

    @pytest.mark.statistical
    @pytest.mark.parametrize("method", ["pafs", "subsets"])
    def test_of_the_scores(self, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        """2,000 scores of one model; wrong noise is rejected with probability above .999."""
        monkeypatch.setattr(
            PrivateRecordAccess, "_check_keys", lambda self, *given: tuple(given[-1])
        )
        more = {"candidates": 3.0} if method == "subsets" else {}
        search = search_of(plan_of(method, **more), tmp_path)
        event = next(line.event for line in search.ledger.lines if line.name == "score")
        event = event.event if isinstance(event, RepeatAndSelect) else event
        assert isinstance(event, Geometric)
        model = LinearModel(weights=np.eye(2, 6), intercept=np.zeros(2), link="softmax")
        with search._open_line("score", "validation", "trial 0") as records:
            exact = points_of(model, records)
        search._used.clear()
        trials = [f"t {number}" for number in range(2000)]
        found = search.open_access(MIDDLE).score_models([model] * 2000, trials, ["trial 0"])
        noise = np.array(found) - exact
        assert geometric_pvalue(noise, event.epsilon) > ACCEPT
        assert geometric_pvalue(0 * noise, event.epsilon) < REJECT, "exact scores are seen"
        for share in WRONG:
            assert geometric_power(2000, event.epsilon, share) > 0.999
            assert geometric_pvalue(noise, event.epsilon * share) < REJECT

    @pytest.mark.statistical
    def test_of_the_printed_accuracy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        plan = plan_of("all")
        search = search_of(plan, tmp_path)
        model = LinearModel(weights=np.eye(2, 6), intercept=np.zeros(2), link="softmax")
        monkeypatch.setattr(FeatureSearch, "_choose", lambda self, means: SelectionResult(
            view=View.of(means), model=model
        ))  # fmt: skip
        event = search.ledger.lines[-1].event
        assert isinstance(event, Geometric)
        counted: list[list[int]] = []
        honest = Score.of.__func__  # pyright: ignore[reportFunctionMemberAccess]

        def of(cls: type[Score], metric: Any, counts: list[int], *rest: Any) -> Score:
            counted.append(counts)
            return honest(cls, metric, counts, *rest)

        monkeypatch.setattr(Score, "of", classmethod(of))
        released = [replace(search, keys=Keys.from_seed(seed)).run().test for seed in range(400)]
        assert len({*map(tuple, counted)}) == 1, "one model, one set of records"
        noise = np.array([each.cells for each in released]).ravel() - np.tile(counted[0], 400)
        assert geometric_pvalue(noise, event.epsilon) > ACCEPT
        assert geometric_pvalue(0 * noise, event.epsilon) < REJECT
        for share in (1 / 3, 3):
            assert geometric_power(400, event.epsilon, share) > 0.999
            assert geometric_pvalue(noise, event.epsilon * share) < REJECT


class Neighbours:
    """A search on records, and on the same with one of them null; what noise is added to in each.

    The null record stands in its slot as a row that is not finite.
    """

    def __init__(self, method: str, folder: Path, patch: pytest.MonkeyPatch, **more: Any):
        self.search, self.patch = search_of(plan_of(method, n=60, **more), folder), patch
        self.x, self.y = arrays(60)
        # Records at the corners: as long as a row can be.
        self.x[::4] = np.eye(6)[0]
        self.x[1::4] = 1.0

    def summed(self, null: int | None) -> list[np.ndarray]:
        x, found = self.x.copy(), []
        if null is not None:
            x[null] = np.nan
        data = from_arrays(x, self.y, bounds=(0.0, 1.0), classes=2)
        data.partition(self.search.plan.split, np.random.default_rng(7))
        search = replace(self.search, dataset=data)

        def noised(self: GaussianSum, entries: np.ndarray, stream: Any) -> np.ndarray:
            found.append(entries)
            return np.arange(len(entries)) % 7 * 1.0  # what is released depends on no record

        self.patch.setattr(GaussianSum, "_add_noise_to_entries", noised)
        self.patch.setattr(
            PrivateRecordAccess, "train_sets", lambda *_: (_ for _ in ()).throw(Done)
        )
        wrap_trainers(self.patch, "fit", lambda _: lambda *_, **__: (_ for _ in ()).throw(Done))
        with pytest.raises(Done):
            search.run()
        return found

    def moves(self) -> list[float]:
        """How far each sum moves at most, over every record made null."""
        before = self.summed(None)
        moved = [
            [float(np.linalg.norm(a - b)) for a, b in zip(before, self.summed(null), strict=True)]
            for null in range(len(self.x))
        ]
        return np.max(moved, axis=0).tolist()


class Done(Exception):
    """The choice is made."""


class TestSensitivity:
    @pytest.mark.contract
    @pytest.mark.parametrize(("method", "sums"), [
        ("all", 1), ("cfs-greedy", 2), ("top", 2), ("pca", 2),
    ])  # fmt: skip
    def test_a_record_moves_each_sum_by_one_at_most(
        self, method: str, sums: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """And each is attained: means by a record of ones, counts by any, moments by a long row."""
        not_shrunk(monkeypatch)
        moves = Neighbours(method, tmp_path, monkeypatch).moves()
        for most in moves[:sums]:
            assert 0.99 < most <= 1 + 1e-12
        # What noise alone shows is made of what was released: no record moves it.
        assert moves[sums:] == [0.0] * (method == "cfs-greedy")

    @pytest.mark.contract
    @pytest.mark.parametrize(("method", "place"), [("all", 0), ("pca", 1)])
    def test_rows_without_a_bound_move_more(
        self, method: str, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        if method == "all":
            monkeypatch.setattr(Schema, "row_bound", 1.0)
        for place_of in (views, means_of):
            monkeypatch.setattr(
                place_of, "clip_rows",
                lambda x, valid: np.where(valid[:, None], x, 0).astype(float),
            )  # fmt: skip
        assert Neighbours(method, tmp_path, monkeypatch).moves()[place] > 1.05

    @pytest.mark.contract
    def test_a_null_record_that_is_counted_is_seen(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """Centred before it is masked, it adds the square of the means' own row."""
        genuine = View.transform_features

        def counted(self, records):
            return genuine(self, replace(records, valid=records.valid | True))

        near = Neighbours("pca", tmp_path, monkeypatch)
        right = near.summed(3)[1]
        monkeypatch.setattr(View, "transform_features", counted)
        monkeypatch.setattr(
            views, "clip_rows",
            lambda x, valid: np.asarray(x, float)
            / np.maximum(1, np.linalg.norm(x, axis=1))[:, None],
        )  # fmt: skip
        assert np.abs(near.summed(3)[1] - right).max() > 0.01

    @pytest.mark.unit
    def test_divisors_do_not_count_usable_records(self, tmp_path: Path):
        """Half of the slots null: means halve, though every usable record is the same."""
        x, y = np.full((60, 6), 0.8), np.zeros(60, int)
        x[::2] = np.nan
        data = from_arrays(x, y, bounds=(0.0, 1.0), classes=2)
        search = search_of(plan_of("all", n=60), tmp_path, data=data)
        mechanism = FeatureMeans(noise_multiplier=1e-9, row_bound=10.0)
        with search._open_line("feature means", "train") as records:
            share = float(records.valid.float().mean())
            means = mechanism.release(records, search.keys.stream("x"))
        assert means == pytest.approx(0.8 * share, abs=1e-5)
        assert 0.3 < share < 0.7

    @pytest.mark.unit
    def test_principal_rows_are_within_reach(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        caught = []
        genuine = views.clip_rows
        monkeypatch.setattr(
            views, "clip_rows", lambda x, valid: caught.append(x) or genuine(x, valid)
        )
        search = search_of(plan_of("pca"), tmp_path)
        PrincipalComponents().compute_moments(
            search.open_access(MIDDLE), View.of(MIDDLE), search.keys.stream("selection")
        )
        lengths = np.linalg.norm(caught[0], axis=1) * MAX_NORM_FACTOR * ROW_NORM
        assert math.sqrt((lengths**2).mean()) < MAX_NORM_FACTOR * ROW_NORM


class TestPafs:
    @pytest.mark.contract
    @pytest.mark.parametrize("line", ["candidate training", "score"])
    def test_a_plan_for_different_sets_only_is_refused(self, line: str, tmp_path: Path):
        """How many sets differ depends on the records: fewer charges may not suffice."""
        plan = plan_of("pafs", population=6, generations=3)
        search = search_of(plan, tmp_path)
        search.run()
        unique = charges(search)[line]
        fewer = tuple(
            replace(each, count=unique - 1) if each.name == line else each for each in plan.lines
        )
        with pytest.raises(BudgetError, match=f"pays for {unique - 1} releases"):
            search_of(plan, tmp_path, lines=fewer).run()

    @pytest.mark.unit
    def test_a_set_that_comes_again_is_neither_trained_nor_charged_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        trained: list[bytes] = []

        def watching(genuine):
            def watched(self, records, means, masks, streams, **others):
                trained.extend(mask.tobytes() for mask in masks)
                return genuine(self, records, means, masks, streams)

            return watched

        wrap_trainers(monkeypatch, "fit_many", watching)
        search = search_of(plan_of("pafs", population=12, generations=5), tmp_path)
        outcome = search.run()
        assert len(set(trained)) == len(trained) == len(outcome.chosen.trials) < 60
        assert charges(search)["candidate training"] == charges(search)["score"] == len(trained)

    @pytest.mark.unit
    def test_a_generation_of_known_sets_opens_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(Evolution, "tell", lambda self, last, fitness, source: last)
        search = search_of(plan_of("pafs", population=4, generations=4), tmp_path)
        outcome = search.run()
        assert charges(search)["score"] == len(outcome.chosen.trials) <= 4

    @pytest.mark.unit
    def test_the_best_noisy_score_wins_and_all_are_shown(self, tmp_path: Path):
        chosen = search_of(plan_of("pafs"), tmp_path).run().chosen
        scores = [score for _, score in chosen.trials]
        assert chosen.order == chosen.trials[int(np.argmax(scores))][0]
        assert all(isinstance(score, int) for score in scores)
        assert chosen.model is None, "the winner is trained again"

    @pytest.mark.unit
    @pytest.mark.parametrize("number", [False, True])
    def test_second_moments_are_released_once_and_charged_once(
        self, number: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        seen, genuine = [], linear.NoisyMoments.add_noise

        def watched(*arguments):
            found = genuine(*arguments)
            seen.append(found.matrix.tobytes() if len(found.matrix) == 8 else b"final")
            return found

        monkeypatch.setattr(linear.NoisyMoments, "add_noise", watched)
        search = search_of(plan_of("pafs", number=number), tmp_path)
        outcome = search.run()
        count = charges(search)["candidate training"]
        assert count == (1 if number else len(outcome.chosen.trials))
        assert len(set(seen) - {b"final"}) <= int(number), "one matrix for every generation"

    @pytest.mark.unit
    def test_moments_of_their_own_are_refused_by_that_charge(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        plan = plan_of("pafs", number=True)
        monkeypatch.setattr(MomentsTrainer, "shares_release", False)
        with pytest.raises(BudgetError, match="candidate training"):
            search_of(plan, tmp_path).run()


class TestSubsets:
    @pytest.mark.contract
    @pytest.mark.parametrize("number", [False, True])
    def test_candidates_share_no_randomness(
        self, number: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """One set many times: every training and every score has noise of its own."""
        trained, scored = [], []
        stream = Keys.stream

        def watching(genuine):
            def watched(self, records, means, masks, streams, **others):
                found = genuine(self, records, means, masks, streams)
                trained.extend(zip(streams, found, strict=True))
                return found

            return watched

        def named(self, *context):
            if context[0] == "score":
                scored.append(context)
            return stream(self, *context)

        wrap_trainers(monkeypatch, "fit_many", watching)
        monkeypatch.setattr(Keys, "stream", named)
        monkeypatch.setattr(RunCountDistribution, "sample", lambda law, uniform: 6)
        monkeypatch.setattr(
            wrappers, "draw_masks", lambda count, features, source: MASKS[[1] * count]
        )
        search_of(plan_of("subsets", number=number), tmp_path).run()
        assert len({source for source, _ in trained}) == len(trained) == 6
        assert len({model.weights.tobytes() for _, model in trained}) == 6
        assert len(set(scored)) == 6

    @pytest.mark.unit
    def test_the_winner_keeps_the_weights_that_were_scored(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        kept: dict[str, Any] = {}
        trained, scored = PrivateRecordAccess.train_sets, PrivateRecordAccess.score_models
        monkeypatch.setattr(
            PrivateRecordAccess, "train_sets",
            lambda self, *rest: kept.setdefault("models", trained(self, *rest)),
        )  # fmt: skip
        monkeypatch.setattr(
            PrivateRecordAccess, "score_models",
            lambda self, *rest: kept.setdefault("scores", scored(self, *rest)),
        )  # fmt: skip
        monkeypatch.setattr(RunCountDistribution, "sample", lambda law, uniform: 7)
        outcome = search_of(plan_of("subsets"), tmp_path).run()
        best = max(kept["scores"])
        winners = [m for m, s in zip(kept["models"], kept["scores"], strict=True) if s == best]
        assert any(outcome.model is model for model in winners)
        assert outcome.chosen.trials == ()

    @pytest.mark.unit
    def test_ties_are_broken_by_each_run_itself(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(RunCountDistribution, "sample", lambda law, uniform: 3)
        monkeypatch.setattr(wrappers, "draw_masks", lambda count, features, source: MASKS)
        monkeypatch.setattr(
            PrivateRecordAccess, "score_models", lambda self, models, *rest: [5] * 3
        )
        monkeypatch.setattr(PrivateRecordAccess, "train_sets", lambda *_: ["model"] * 3)
        search = search_of(plan_of("subsets"), tmp_path)
        reads = search.open_access(MIDDLE)
        winners = Counter(
            search.plan.choice.selector.choose(reads, Keys.from_seed(seed).stream("s")).order
            for seed in range(300)
        )
        assert chisquare(list(winners.values())).pvalue > 1e-3
        assert len(winners) == 3

    @pytest.mark.statistical
    @pytest.mark.parametrize("law", ["geometric", "logarithmic", "poisson"])
    def test_the_number_of_runs_has_the_charged_law(
        self, law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """2,000 draws; those of a law of 3/2 the mean are rejected."""
        plan = plan_of("subsets", law=law, candidates=4.0)
        reads = search_of(plan, tmp_path).open_access(MIDDLE)

        def stop(count: int, features: int, source: Any):
            raise Counted(count)

        monkeypatch.setattr(wrappers, "draw_masks", stop)
        seen = []
        for seed in range(2000):
            with pytest.raises(Counted) as counted:
                plan.choice.selector.choose(reads, Keys.from_seed(seed).stream("s"))
            seen.append(counted.value.args[0])

        def pvalue(mean: float) -> float:
            charged = RunCountDistribution.from_name(law, mean=mean)
            shares = [pmf(charged, k) for k in range(1, 9)]
            observed = [seen.count(k) for k in range(1, 9)]
            observed.append(len(seen) - sum(observed))
            return float(chisquare(observed, 2000 * np.array([*shares, 1 - sum(shares)])).pvalue)

        assert min(seen) >= 1
        assert pvalue(4.0) > 1e-4
        assert pvalue(6.0) < 1e-12

    @pytest.mark.unit
    def test_one_charge_covers_all_of_them(self, tmp_path: Path):
        search = search_of(plan_of("subsets"), tmp_path)
        search.run()
        assert charges(search) == {
            "feature means": 1, "training": 1, "score": 1, "test accuracy": 1,
        }  # fmt: skip


class Counted(Exception):
    """How many runs were drawn."""


class TestOther:
    @pytest.mark.unit
    def test_pooled_records_have_a_smaller_bound(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        bounds, genuine = [], FeatureMeans.release
        monkeypatch.setattr(
            FeatureMeans, "release",
            lambda self, records, stream: bounds.append((self.row_bound, records.x.shape[1:]))
            or genuine(self, records, stream),
        )  # fmt: skip
        outcome = search_of(plan_of("max-pool"), tmp_path).run()
        assert bounds == [(2.0, (2, 2))]
        assert outcome.model.weights.shape == (2, 4)

    @pytest.mark.unit
    def test_no_more_features_are_asked_for_than_were_estimated(self, tmp_path: Path):
        for method in ("top", "pca", "random", "cfs-greedy"):
            plan = plan_of(method, size=6)
            search = search_of(plan, tmp_path)
            larger: Any = replace(plan.choice.selector, size=60)
            choice = replace(plan.choice, selector=larger)
            chosen = replace(search, plan=replace(plan, choice=choice))
            assert len(chosen.run().chosen.view.columns) == 6

    @pytest.mark.unit
    def test_random_features_depend_on_no_record(self, tmp_path: Path):
        orders = []
        for seed in (0, 1):
            data = from_arrays(*arrays(300, seed=seed), bounds=(0.0, 1.0), classes=2)
            orders.append(search_of(plan_of("random"), tmp_path, data=data).run().chosen.order)
        assert orders[0] == orders[1]

    @pytest.mark.unit
    def test_lines_of_the_ledger_are_the_plans(self, tmp_path: Path):
        plan = plan_of("top")
        assert search_of(plan, tmp_path).ledger.lines == plan.lines
        assert all(isinstance(line, PlannedRelease) for line in plan.lines)

    @pytest.mark.unit
    def test_a_number_is_predicted(self, tmp_path: Path):
        assert dataset(300, number=True).schema.regression
        for method in ("all", "pca", "subsets", "cfs-greedy", "top"):
            model = search_of(plan_of(method, number=True), tmp_path).run().model
            assert model.weights.shape == (1, 6)
