"""What noise alone would show of a feature, and how the best of some sets is taken."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selections import plan_of, planned, search_of

from pasearch.accounting.budget import Budget
from pasearch.data.array_file import from_arrays
from pasearch.data.partitions import Dataset
from pasearch.data.split import make_split
from pasearch.features import cfs
from pasearch.features.cfs import (
    CFSGenetic,
    CFSGreedy,
    NoisyEntropies,
    cfs_greedy,
    compute_symmetrical_uncertainty,
)
from pasearch.features.contingency import ContingencyTables, JointCounts, make_attributes
from pasearch.features.engine import FeatureSearch
from pasearch.features.selector import make_choice, select_best
from pasearch.features.wrappers import PrivacyAwareFeatureSelection
from pasearch.runs.keys import Keys

WIDTH, RUNS = 30, 10


def unrelated(seed: int, n: int = 3000) -> Dataset:
    """Return records whose features tell nothing of the target."""
    rng = np.random.default_rng(seed)
    return from_arrays(
        rng.random((n, WIDTH)), rng.integers(2, size=n), bounds=(0.0, 1.0), classes=2
    )


def runs(
    folder: Path, merits: str = "tables", epsilon: float = 3.0
) -> list[tuple[np.ndarray, float]]:
    """Return uncertainties and what noise alone would show, of runs on data of their own."""
    plan = planned(
        name="none", schema=unrelated(0).schema, budget=Budget(epsilon, 1e-5),
        split=make_split(3000, scored=False), choice=make_choice("cfs-greedy", merits=merits),
    )  # fmt: skip
    found = []
    for seed in range(RUNS):
        search = search_of(plan, folder, data=unrelated(seed), seed=seed)
        to_class, _, blank = uncertainties(search)
        found.append((to_class, blank))
    return found


def uncertainties(search: FeatureSearch) -> tuple[np.ndarray, np.ndarray, float]:
    selector = search.plan.choice.selector
    assert isinstance(selector, CFSGreedy | CFSGenetic)
    return selector.release_uncertainties(
        search.open_access(np.zeros(0)), search.keys.stream("selection")
    )


def correlations(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return uncertainties of six features at random: with the target, and with each other."""
    rng = np.random.default_rng(seed)
    between = rng.uniform(0.0, 0.9, (6, 6))
    return rng.uniform(0.05, 0.5, 6), (between + between.T) / 2


class TestByMerit:
    @pytest.mark.unit
    def test_stops_where_it_is_told_to(self):
        """Where merits dip and rise again, `until_no_gain` stops before the dip."""
        differ = 0
        for seed in range(40):
            given = correlations(seed)
            chosen = [
                CFSGreedy(until_no_gain=stop)
                .choose_by_uncertainties(np.full(6, 0.5), None, *given, 0.0).order
                for stop in (True, False)
            ]  # fmt: skip
            assert chosen[0] == cfs_greedy(*given, until_no_gain=True).selected
            assert chosen[1] == cfs_greedy(*given).selected
            differ += chosen[0] != chosen[1]
        assert differ

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "own",
        [
            {}, {"population": 30, "generations": 3}, {"alpha": 0.5}, {"p_co": 0.1},
            {"p_mu": 0.0, "p_co": 1.0},
        ],
    )  # fmt: skip
    def test_algorithm_4_runs_with_the_numbers_of_the_choice(
        self, own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ):
        caught: dict[str, Any] = {}
        genuine = cfs.cfs_genetic

        def watched(*arguments: Any, **options: Any) -> Any:
            caught.update(options)
            return genuine(*arguments, **{**options, "population": 30, "generations": 2})

        monkeypatch.setattr(cfs, "cfs_genetic", watched)
        stream = Keys.from_seed(1).stream("selection")
        CFSGenetic(**own).choose_by_uncertainties(np.full(6, 0.5), *correlations(1), 0.0, stream)
        del caught["generator"]
        usual = {"population": 5000, "generations": 10, "alpha": 0.03, "p_co": 0.8, "p_mu": 0.2}
        assert caught == {**usual, **own}


class TestEvolved:
    @pytest.mark.unit
    def test_asks_for_so_many_sets_in_so_many_rounds(self):
        """With mutations alone, hardly any set is met twice."""
        asked: list[int] = []

        def compared(sets: np.ndarray, trials: Any) -> list[int]:
            asked.append(len(sets))
            return [int(each.sum()) for each in sets]

        pafs = PrivacyAwareFeatureSelection(population=9, generations=4, p_co=0.0, p_mu=1.0)
        stream = Keys.from_seed(1).stream("selection")
        found = pafs.evolve_sets(np.full(40, 0.5), None, compared, stream)
        assert asked[0] == 9
        assert len(asked) == 4
        assert len(found.trials) == sum(asked)
        assert len(found.order) == max(points for _, points in found.trials)


class TestBlank:
    @pytest.mark.statistical
    def test_one_in_twenty_features_that_tell_nothing_lies_above_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """300 features: .05 is expected, .02 to .11 accepted; the standard error is .013.

        Power: a quarter of the noise gives .39, which these limits reject with certainty.
        """
        found = runs(tmp_path)
        share = np.mean([(to_class > blank).mean() for to_class, blank in found])
        assert 0.02 < share < 0.11
        genuine, turns = ContingencyTables.release, itertools.cycle((1.0, 4.0))

        def quiet(
            self: ContingencyTables, joint: JointCounts, attributes: Any, stream: Any
        ) -> JointCounts:
            """The first release of a run is of the tables, the second of what tells nothing."""
            less = replace(self, noise_multiplier=self.noise_multiplier / next(turns))
            return genuine(less, joint, attributes, stream)

        monkeypatch.setattr(ContingencyTables, "release", quiet)
        wrong = np.mean([(to_class > blank).mean() for to_class, blank in runs(tmp_path)])
        assert wrong > 0.2

    @pytest.mark.unit
    def test_features_that_tell_the_target_lie_above_it(self, tmp_path: Path):
        plan = plan_of("cfs-greedy", n=3000, budget=Budget(8.0, 1e-5))
        chosen = search_of(plan, tmp_path).choose()
        assert chosen.blank is not None
        assert chosen.to_class is not None
        assert (chosen.to_class[:2] > chosen.blank).all()

    @pytest.mark.contract
    @pytest.mark.parametrize("number", [False, True])
    def test_does_not_move_what_is_released(self, number: bool, tmp_path: Path):
        """The tables are those of the stream that they always had."""
        plan = plan_of("cfs-greedy", number=number)
        search = search_of(plan, tmp_path, seed=4)
        attributes = make_attributes(plan.schema)
        tables = ContingencyTables(noise_multiplier=plan.noise("contingency tables"))
        with search._open_line("contingency tables", "train") as records:
            exact = attributes.count_pairs(records)
        search._used.clear()
        stream = Keys.from_seed(4).stream("selection").child("tables")
        noisy = tables.release(exact, attributes, stream)
        want = compute_symmetrical_uncertainty(noisy, attributes)
        to_class, between, _ = uncertainties(search)
        assert np.array_equal(to_class, want[0])
        assert np.array_equal(between, want[1])

    @pytest.mark.contract
    def test_has_noise_of_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        """The noise of the tables again would cancel: it comes from another stream."""
        streams: list[Any] = []
        genuine = ContingencyTables.release

        def watched(
            self: ContingencyTables, joint: JointCounts, attributes: Any, stream: Any
        ) -> JointCounts:
            streams.append(stream)
            return genuine(self, joint, attributes, stream)

        monkeypatch.setattr(ContingencyTables, "release", watched)
        search_of(plan_of("cfs-greedy"), tmp_path).choose()
        assert len(streams) == len(set(streams)) == 2

    @pytest.mark.unit
    @pytest.mark.parametrize("method", ["cfs-greedy", "cfs-ga"])
    @pytest.mark.parametrize("merits", ["tables", "entropies"])
    def test_is_told_of_each_way(self, method: str, merits: str, tmp_path: Path):
        outcome = search_of(plan_of(method, merits=merits), tmp_path).choose()
        assert outcome.blank is not None
        assert 0.0 < outcome.blank <= 1.0

    @pytest.mark.statistical
    def test_of_entropies_one_in_twenty_lies_above_it_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """300 features, whose target's noise is one number a run: .05 is expected, .2 refused.

        Power: a quarter of the noise simulated gives about .4.
        """
        given: Any = (tmp_path, "entropies", 500.0)
        share = np.mean([(to_class > blank).mean() for to_class, blank in runs(*given)])
        assert share < 0.2
        genuine = NoisyEntropies.simulate_irrelevant_features

        def quiet(self: NoisyEntropies, *arguments: Any) -> np.ndarray:
            return genuine(replace(self, epsilon=4.0 * self.epsilon), *arguments)

        monkeypatch.setattr(NoisyEntropies, "simulate_irrelevant_features", quiet)
        wrong = np.mean([(to_class > blank).mean() for to_class, blank in runs(*given)])
        assert wrong > 0.25

    @pytest.mark.oracle
    def test_independent_tables_keep_marginals_and_tell_nothing(self):
        data = unrelated(3, 500)
        attributes = make_attributes(data.schema)
        public = replace(data, public=True).all_records(None)
        joint = attributes.count_pairs(public)
        drawn = [
            joint.simulate_independent(attributes, np.random.default_rng(seed))
            for seed in range(200)
        ]
        assert all(np.array_equal(d.counts.diagonal(), joint.counts.diagonal()) for d in drawn)
        assert all(np.array_equal(d.counts, d.counts.T) for d in drawn)
        mean = np.mean([d.counts for d in drawn], axis=0)
        alone = replace(joint, counts=np.where(mean > 0, mean, 0.0))
        assert compute_symmetrical_uncertainty(alone, attributes)[0].max() < 0.01
        cells = attributes.owners[:, None] != attributes.owners
        spread = np.var([d.counts for d in drawn], axis=0)[cells] / mean[cells]
        assert np.mean(spread) == pytest.approx(1.0, abs=0.05)


class TestBest:
    SETS = np.array([[1, 1, 1], [1, 0, 0], [0, 1, 1]], bool)

    @pytest.mark.unit
    def test_has_most_points_and_is_the_first_of_them(self):
        for points, order in [
            ([1, 5, 3], (0,)),
            ([5, 5, 5], (0, 1, 2)),
            ([0, 4, 4], (0,)),
            ([-3, -2, -1], (1, 2)),
        ]:
            chosen = select_best(np.full(3, 0.5), self.SETS, points)
            assert chosen.order == order
            assert chosen.view.columns.tolist() == list(order)
            assert chosen.trials == tuple(zip([(0, 1, 2), (0,), (1, 2)], points, strict=True))
