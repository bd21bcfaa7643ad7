"""What every strategy keeps to: ask and tell, a price known before the first trial, secret K."""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from shortcuts import pmf

from pasearch.accounting.events import Event, Geometric, NoRelease, RepeatAndSelect, event_to_json
from pasearch.accounting.selection import RunCountDistribution
from pasearch.errors import BudgetError, UsageError
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.ledger import Ledger, Receipt
from pasearch.search.candidate_training import FAILED_SCORE
from pasearch.search.randomized import MultiGenerationRandomizedSearch, draw_count
from pasearch.search.strategy import (
    STRATEGIES,
    Fitness,
    FixedStrategy,
    RoundShape,
    SearchState,
    Strategy,
    TrialRound,
    make_strategy,
)
from pasearch.spaces.parsing import make_space
from pasearch.spaces.space import SearchSpace

EVENT = Geometric(epsilon=0.1)


def price(shape: RoundShape) -> Event:
    return EVENT


SPACE = make_space(
    {
        "name": "small",
        "choices": {
            "layers": [1, 2],
            "units_1": [2, 4, 8],
            "activation_1": ["relu", "tanh"],
            "learning_rate_scale": [0.5, 1.0],
            "steps_scale": [0.5, 1.0],
        },
        "default": {"steps_scale": 1.0},
    }
)
SMALL = {
    "fixed": {},
    "rs": {"candidates": 4},
    "mgrs": {"candidates": 6, "generations": 3},
    "paas": {"candidates": 4, "generations": 3},
    "portions": {"candidates": 4},
    "stw": {"candidates": 4, "generations": 2},
    "ahead": {"candidates": 4},
    "insured": {"candidates": 4},
    "grid": {"repeats": 3},
}
SECRET = ("rs", "mgrs")
HIDING = (*SECRET, "portions")


def keyed(seed: int = 0) -> Stream:
    return Keys.from_seed(seed).stream("strategy")


def make(name: str) -> Strategy:
    return make_strategy(name, **SMALL[name])


class Wide:
    """A space so large that a fresh draw never shares a gene with another by chance."""

    sizes = (2**40,) * 20

    def candidate(self, genotype: tuple[int, ...]) -> tuple[int, ...]:
        return genotype

    def draw(self, generator: np.random.Generator) -> tuple[int, ...]:
        return tuple(int(generator.integers(size)) for size in self.sizes)


def play(
    search: Strategy, seed: int = 0, where: SearchSpace = SPACE, scores: int = 1
) -> tuple[SearchState, list[TrialRound]]:
    """Run a strategy on made-up scores, which depend on `scores` and the genotype only."""
    state, rounds = search.init(), []
    while (asked := search.ask(state, where, keyed(seed))) is not None:
        rounds.append(asked)
        fitness = tuple(
            (float(zlib.crc32(repr((scores, genotype)).encode()) % 100), index)
            for index, genotype in enumerate(asked.genotypes)
        )
        state = search.tell(state, asked, fitness)
        assert len(rounds) < 50
    return state, rounds


@pytest.mark.contract
@pytest.mark.parametrize("name", list(STRATEGIES))
class TestEveryStrategy:
    def test_asks_rounds_in_order_until_it_is_done(self, name: str):
        search = make(name)
        state, rounds = play(search)
        assert [each.number for each in rounds] == list(range(len(rounds)))
        assert state.rounds == tuple(rounds)
        assert all(each.genotypes for each in rounds)
        assert search.ask(state, SPACE, keyed()) is None

    def test_draws_candidates_of_the_space(self, name: str):
        _, rounds = play(make(name))
        settings = make(name).settings(SPACE)
        for genotype in (g for each in rounds for g in each.genotypes):
            assert SPACE.candidate(genotype).settings in settings

    def test_the_stream_and_the_scores_decide_everything(self, name: str):
        assert play(make(name), 3) == play(make(name), 3)

    def test_other_keys_search_otherwise(self, name: str):
        searches = {tuple(play(make(name), seed)[1]) for seed in range(8)}
        # grid draws one candidate beside the default, sometimes the same.
        assert len(searches) == {"fixed": 1, "grid": 6}.get(name, 8)

    def test_the_winner_is_the_fittest_of_those_that_may_be_returned(self, name: str):
        search = make(name)
        state, rounds = play(search)
        number, index = search.best(state)
        if name not in ("paas", "stw"):
            assert number == len(rounds) - 1
        if name == "grid":  # by means of repeats: tests/search/test_grid.py
            return
        every = [score for fitness in state.fitness for score, _ in fitness]
        assert state.fitness[number][index][0] == max(
            every if name in ("paas", "stw") else [score for score, _ in state.fitness[-1]]
        )

    def test_which_trial_won_follows_from_the_scores_that_are_shown(self, name: str):
        search = make(name)
        if search.hides_trials:
            return
        for scores in range(5):
            state, rounds = play(search, scores=scores)
            number, index = search.best(state)
            trial = sum(len(each.genotypes) for each in rounds[:number]) + index
            shown = [score for fitness in state.fitness for score, _ in fitness]
            assert trial in search.possible_winners(shown)
            assert len(shown) == search.trials

    def test_a_search_where_all_fail_still_has_a_winner(self, name: str):
        search = make(name)
        state = search.init()
        while (asked := search.ask(state, SPACE, keyed())) is not None:
            fitness = tuple((FAILED_SCORE, index) for index in range(len(asked.genotypes)))
            state = search.tell(state, asked, fitness)
        number, index = search.best(state)
        assert (number, index) == (number, len(state.fitness[number]) - 1)

    def test_the_price_is_known_before_a_trial(self, name: str):
        first = make(name).list_releases(price, "train", "training")
        play(search := make(name))
        assert search.list_releases(price, "train", "training") == first
        places = {search.partition_of_trial("train", trial) for trial in range(4)}
        assert {line.partition for line in first} == places
        assert all(line.name.startswith("training") for line in first)

    def test_all_trials_fit_the_lines_and_no_line_is_left_uncharged(
        self, name: str, tmp_path: Path
    ):
        class Partition:
            def __init__(self, name: str):
                self.name = name

            def open(self, receipt: Receipt) -> None:
                return None

        search = make(name)
        lines = search.list_releases(price, "train", "training")
        _, rounds = play(search)
        trial = 0
        with Ledger.create(tmp_path / "ledger", lines) as ledger:
            for each in rounds:
                for _ in each.genotypes:
                    line, key = search.charge("training", each.number, trial)
                    with ledger.charged(
                        line, Partition(search.partition_of_trial("train", trial)), key=key
                    ):
                        trial += 1
            spent = [(line, event, count) for line, _, event, count in ledger.spent()]
            assert spent == [(line.name, line.event, line.count) for line in lines]
            last = Partition(lines[-1].partition)
            with pytest.raises(BudgetError), ledger.charged("training", last, key="more"):
                pytest.fail("opened")

    def test_its_description_is_plain_and_names_the_law(self, name: str):
        search = make(name)
        document = json.loads(json.dumps(search.summary()))
        rule, words = search.selection_rule, search.describe()
        assert document == {"name": name, "rule": rule, "trainings": words}
        assert search.expected_trainings >= 1
        assert search.quantile(0.999) >= search.expected_trainings

    def test_says_which_trials_may_be_shown(self, name: str):
        assert make(name).hides_trials == (name in HIDING)
        assert make(name).memoised == (name in ("paas", "stw"))


class TestNonAdaptive:
    @pytest.mark.unit
    def test_rs_draws_all_candidates_before_any_score(self):
        for seed in range(10):
            assert play(make("rs"), seed, scores=1)[1] == play(make("rs"), seed, scores=2)[1]
        assert len(play(make("rs"))[1]) == 1

    @pytest.mark.unit
    def test_mgrs_sees_the_winner_of_the_last_round_only(self):
        search = make_strategy("mgrs", candidates=40, generations=2)
        first = search.ask(search.init(), SPACE, keyed())
        assert first is not None
        count = len(first.genotypes)
        assert count > 3

        def following(scores: list[float]) -> TrialRound | None:
            fitness: tuple[Fitness, ...] = tuple((score, 0) for score in scores)
            return search.ask(search.tell(search.init(), first, fitness), SPACE, keyed())

        base = [0.0] * count
        base[1] = 9.0
        losers = [-math.inf if index % 2 == 0 else index / count for index in range(count)]
        losers[1] = 1e9
        assert following(base) == following(losers)
        other = [0.0] * count
        other[2] = 9.0
        winners = first.genotypes[1], first.genotypes[2]
        assert winners[0] != winners[1]
        assert following(base) != following(other)

    @pytest.mark.unit
    def test_the_number_of_trainings_depends_on_no_score(self):
        for name in HIDING:
            counts = {
                tuple(len(each.genotypes) for each in play(make(name), 5, scores=scores)[1])
                for scores in range(6)
            }
            assert len(counts) == 1

    @pytest.mark.unit
    def test_paas_does_adapt_to_every_score(self):
        search = make_strategy("paas", candidates=10, generations=2)
        following = {tuple(play(search, 0, scores=scores)[1]) for scores in range(5)}
        assert len(following) == 5


class TestSecretCount:
    @pytest.mark.unit
    @pytest.mark.parametrize("name", SECRET)
    def test_appears_in_no_description(self, name: str):
        search = make(name)
        before = (
            search.summary(),
            search.to_json(),
            search.list_releases(price, "train", "training"),
        )
        counts = {len(play(search, seed)[1][0].genotypes) for seed in range(30)}
        assert len(counts) > 3
        after = search.summary(), search.to_json(), search.list_releases(price, "train", "training")
        assert after == before

    @pytest.mark.statistical
    @pytest.mark.parametrize(
        "law",
        [
            RunCountDistribution(3.0, 1.0),
            RunCountDistribution(3.0, 0.0),
            RunCountDistribution(2.0, "poisson"),
            RunCountDistribution(6.0, 1.0, cap=4),
        ],
        ids=["geometric", "logarithmic", "poisson", "capped"],
    )
    def test_follows_its_law(self, law: RunCountDistribution):
        draws = 2000
        counts = Counter(draw_count(law, keyed().child("k", n)) for n in range(draws))
        assert min(counts) >= 1
        if law.cap is not None:
            assert max(counts) <= law.cap
        for k in range(1, 8):
            p = pmf(law, k)
            assert abs(counts[k] - draws * p) <= 5 * math.sqrt(draws * p * (1 - p))

    @pytest.mark.unit
    def test_rs_candidates_are_uniform_whatever_the_count(self):
        short, long = (make_strategy("rs", candidates=mean) for mean in (1.5, 60.0))
        one = short.ask(short.init(), SPACE, keyed(2))
        many = long.ask(long.init(), SPACE, keyed(2))
        assert one is not None
        assert many is not None
        assert many.genotypes[: len(one.genotypes)] == one.genotypes


class TestMgrs:
    @pytest.mark.unit
    def test_has_the_papers_generations(self):
        search = make_strategy("mgrs")
        assert isinstance(search, MultiGenerationRandomizedSearch)
        assert [law.base_mean for law in search.laws] == [40.0, 20.0, 10.0]
        assert search.mutation == 0.7
        assert search.expected_trainings == pytest.approx(70.0)

    @pytest.mark.statistical
    def test_descendants_are_mutants_and_fresh_draws_in_the_papers_shares(self):
        search = make_strategy("mgrs", candidates=400, generations=2)
        near = total = 0
        changed = []
        for seed in range(12):
            first = search.ask(search.init(), Wide(), keyed(seed))  # type: ignore[arg-type]
            assert first is not None
            fitness = tuple((float(index == 0), 0) for index in range(len(first.genotypes)))
            state = search.tell(search.init(), first, fitness)
            asked = search.ask(state, Wide(), keyed(seed))  # type: ignore[arg-type]
            assert asked is not None
            winner = first.genotypes[0]
            for genotype in asked.genotypes:
                equal = sum(a == b for a, b in zip(genotype, winner, strict=True))
                near += equal > 0
                total += 1
                if equal:
                    changed.append(20 - equal)
        assert total > 500
        assert abs(near / total - 0.7) < 5 * math.sqrt(0.21 / total)
        redrawn = 1 / (1 - 0.95**20)  # a mutant differs: without any change it is drawn again
        assert abs(np.mean(changed) - redrawn) < 5 * math.sqrt(0.95 / len(changed))

    @pytest.mark.unit
    def test_every_generation_is_a_selection_of_its_own(self):
        search = make("mgrs")
        lines = search.list_releases(price, "train", "score")
        assert [line.name for line in lines] == [f"score, generation {n}" for n in (1, 2, 3)]
        assert [line.event for line in lines] == [
            RepeatAndSelect(event=EVENT, law=RunCountDistribution(mean, 1.0))
            for mean in (6.0, 3.0, 1.5)
        ]

    @pytest.mark.unit
    @pytest.mark.parametrize("change", [{"laws": ()}, {"mutation": 1.1}, {"mutation": math.nan}])
    def test_bad_settings_are_refused(self, change: dict):
        with pytest.raises(UsageError):
            MultiGenerationRandomizedSearch(
                **({"laws": (RunCountDistribution(4.0, 1.0),)} | change)
            )


class TestPrices:
    @pytest.mark.unit
    def test_paas_plans_every_training_though_repeats_are_memoised(self):
        (line,) = make_strategy("paas").list_releases(price, "train", "training")
        assert (line.event, line.count) == (EVENT, 60)

    @pytest.mark.unit
    def test_rs_is_one_selection(self):
        (line,) = make_strategy("rs", law="logarithmic", max_candidates=50).list_releases(
            price, "search", "training"
        )
        assert line.event == RepeatAndSelect(event=EVENT, law=RunCountDistribution(10.0, 0.0, 50))
        assert (line.count, line.partition) == (1, "search")

    @pytest.mark.unit
    def test_fixed_is_one_training_of_the_default(self):
        (line,) = FixedStrategy().list_releases(price, "train", "training")
        assert (line.event, line.count) == (EVENT, 1)
        _, (only,) = play(FixedStrategy())
        assert only.genotypes == (SPACE.default_genotype(),)
        assert FixedStrategy().settings(SPACE) == [
            (("learning_rate_scale", 0.5), ("steps_scale", 1.0))
        ]

    @pytest.mark.unit
    def test_stw_pays_nothing_because_its_data_is_public(self):
        (line,) = make("stw").list_releases(price, "train", "training")
        assert line.event == NoRelease()

    @pytest.mark.unit
    def test_a_secret_counts_law_is_all_its_event_tells(self):
        for name in SECRET:
            for line in make(name).list_releases(price, "train", "training"):
                assert set(event_to_json(line.event)) == {"type", "event", "law"}


class TestTies:
    @pytest.mark.unit
    def test_are_broken_by_each_trials_own_draw(self):
        state = SearchState(fitness=(((7.0, 10), (7.0, 30), (7.0, 20), (1.0, 99)),))
        assert state.winner(0) == 1

    @pytest.mark.unit
    def test_a_score_comes_before_a_tie_break(self):
        state = SearchState(fitness=(((FAILED_SCORE, 2**61), (-500.0, 0), (FAILED_SCORE, 2**62)),))
        assert state.winner(0) == 1


class TestNames:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("name", "setting", "word"),
        [
            ("magic", {}, "magic"),
            ("fixed", {"candidates": 3}, "candidates"),
            ("rs", {"generations": 3}, "generations"),
            ("paas", {"law": "geometric"}, "law"),
            ("stw", {"max_candidates": 3}, "max_candidates="),
            ("rs", {"law": "normal"}, "normal"),
            ("rs", {"candidates": 1}, "mean"),
            ("rs", {"candidates": math.nan}, "mean"),
            ("rs", {"candidates": math.inf}, "mean"),
            ("rs", {"max_candidates": 0}, "max_candidates is 0"),
            ("rs", {"max_candidates": 2.5}, "cap"),
            ("mgrs", {"candidates": 4, "generations": 3}, "candidates is 4: expected above 4"),
            ("mgrs", {"generations": 0}, "generations"),
            ("mgrs", {"candidates": -1}, "candidates"),
            ("paas", {"candidates": 2.5}, "integer"),
            ("paas", {"candidates": 0}, "candidates"),
            ("paas", {"generations": 1.5}, "generations"),
        ],
    )
    def test_bad_settings_say_which(self, name: str, setting: dict, word: str):
        with pytest.raises(UsageError, match=word):
            make_strategy(name, **setting)


@pytest.mark.unit
def test_the_names_of_the_interface_are_those_of_the_code_too():
    from pasearch.api.request import SearchRequest
    from pasearch.api.resolve_search import expand_request
    from pasearch.search.names import ALIASES, show_strategy

    for shown, name in ALIASES.items():
        assert make_strategy(shown) == make_strategy(name)
        assert expand_request(SearchRequest("digits", strategy=shown)).strategy == name
        assert show_strategy(name) == shown
    with pytest.raises(UsageError, match="Did you mean 'successive-halving'"):
        make_strategy("succesive-halving")
