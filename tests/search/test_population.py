"""A generation at once: the same as one by one, to the bit; charged before it begins."""

from __future__ import annotations

import pickle
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from search.test_engine import records_of, same, searching, weights

from pasearch.data.partitions import Records, UnchargedReadError
from pasearch.data.shared_records import SharedRecords
from pasearch.data.threads import divide_threads, use_threads
from pasearch.runs.executors import LocalExecutor, ProcessExecutor, Work
from pasearch.search import candidate_training, engine
from pasearch.search.candidate_training import TrainingJob, has_failed, train_in_parallel
from pasearch.search.plan import Plan
from pasearch.training.recipe import Recipe
from pasearch.training.screening import Annealing


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch):
    """Hand every round of two and more over, to so many processes (1: to this one)."""

    def set_up(workers: int) -> None:
        monkeypatch.setattr(engine, "MIN_SECONDS_FOR_PROCESSES", 0.0)
        monkeypatch.setattr(engine, "divide_threads", lambda candidates, at_hand: (1, workers))

    yield set_up
    with ProcessExecutor() as left:  # whatever began some, they end here
        left._begun = True


@pytest.mark.property
@given(candidates=st.integers(1, 100), at_hand=st.integers(1, 256))
def test_all_threads_are_used_and_none_twice(candidates: int, at_hand: int):
    each, workers = divide_threads(candidates, at_hand)
    assert each >= 1 <= workers
    assert at_hand - each < each * workers <= at_hand


ROUNDS = ["rs", "mgrs", "paas", "paas retrained", "portions", "stw", "rs pca"]


@pytest.mark.contract
@pytest.mark.parametrize("way", ROUNDS)
def test_is_what_it_is_one_by_one_to_the_bit(
    tmp_path: Path, way: str, at_once: Any, monkeypatch: pytest.MonkeyPatch
):
    """At once, and in turns, as on a GPU."""
    with use_threads(1), searching(tmp_path / "one", way) as search:
        expected, spent, trials = search.run(), search.ledger.spent(), records_of(search)
    for turns in (True, False):
        with monkeypatch.context() as patch, use_threads(1):
            if turns:
                patch.setattr(engine.SearchEngine, "_interleaves_trainings", lambda _: True)
            else:
                at_once(1)
            with searching(tmp_path / str(turns), way) as search:
                found = search.run()
                assert search.ledger.spent() == spent
                assert records_of(search) == trials
        assert same(found, expected)
        assert found.curve == expected.curve


@pytest.mark.contract
@pytest.mark.slow
@pytest.mark.parametrize("way", ["paas", "stw"])
def test_processes_change_no_bit(tmp_path: Path, way: str, at_once: Any):
    at_once(1)
    with searching(tmp_path / "one", way) as search:
        expected, trials = search.run(), records_of(search)
    at_once(2)
    with searching(tmp_path / "x", way) as search:
        found = search.run()
        assert records_of(search) == trials
    assert same(found, expected)
    assert found.curve == expected.curve


@pytest.mark.contract
@pytest.mark.parametrize("way", ROUNDS)
def test_the_longest_training_of_a_round_comes_first_and_changes_nothing_but_that(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
):
    order: list[tuple[int, float]] = []
    genuine = engine.SearchEngine._run_trial

    def noted(self: Any, asked: Any, trial: int, candidate: Any, trained: Any) -> Any:
        recipe = self.plan.trial_recipe(candidate, asked.shape)
        order.append((asked.number, -self.plan._estimate_seconds(candidate, recipe)))
        return genuine(self, asked, trial, candidate, trained)

    monkeypatch.setattr(engine.SearchEngine, "_run_trial", noted)
    with use_threads(1), searching(tmp_path / "x", way) as search:
        found, spent, trials = search.run(), search.ledger.spent(), records_of(search)
    assert order == sorted(order)
    assert len({seconds for _, seconds in order}) > 1
    monkeypatch.setattr(
        Plan, "sort_longest_first", lambda _, candidates, shape: [*range(len(candidates))]
    )
    with use_threads(1), searching(tmp_path / "as asked", way) as search:
        assert same(search.run(), found)
        assert (search.ledger.spent(), records_of(search)) == (spent, trials)


@pytest.mark.unit
def test_a_bit_that_changes_is_seen(tmp_path: Path, at_once: Any, monkeypatch: Any):
    """Teeth of the two tests above: a job with another's key gives another outcome."""
    at_once(1)
    with searching(tmp_path / "one", "paas") as search:
        expected = search.run()
    genuine = engine.TrainingJob
    monkeypatch.setattr(
        engine,
        "TrainingJob",
        lambda streams, **rest: genuine(
            streams={**streams, "noise": streams["noise"].child("other")}, **rest
        ),
    )
    with searching(tmp_path / "x", "paas") as search:
        assert not same(search.run(), expected)


@pytest.mark.contract
def test_all_are_charged_before_the_first_begins_and_share_no_key(
    tmp_path: Path, at_once: Any, monkeypatch: pytest.MonkeyPatch
):
    at_once(1)
    seen: list[tuple[int, set[Any], list[int]]] = []
    with searching(tmp_path / "x", "paas") as search:

        def watched(jobs: list[TrainingJob], *how: Any) -> Iterator[Any]:
            charged = sum(count for line, *_, count in search.ledger.spent() if "train" in line)
            modes = [stat.S_IMODE(job.records.folder.stat().st_mode) for job in jobs]
            seen.append(
                (charged, {stream for job in jobs for stream in job.streams.values()}, modes)
            )
            return train_in_parallel(jobs, *how)

        monkeypatch.setattr(engine, "train_in_parallel", watched)
        search.run()
        assert not [*search.folder.private.glob("records-*")], "the records' files are gone"
    total = 0
    for charged, streams, modes in seen:
        total += len(modes)
        assert charged == total
        assert len(streams) == 4 * len(modes) >= 8
        assert set(modes) == {0o700}


@pytest.mark.contract
def test_a_worker_receives_the_streams_of_its_own_training_and_of_no_score(
    tmp_path: Path, at_once: Any, monkeypatch: pytest.MonkeyPatch
):
    at_once(1)
    sent: list[tuple[TrainingJob, bytes]] = []

    def recorded(**given: Any) -> Work:
        work = Work(**given)
        sent.append((given["do"], pickle.dumps(work)))
        return work

    monkeypatch.setattr(candidate_training, "Work", recorded)
    with searching(tmp_path / "x", "paas") as search:
        search.run()
        master = search.keys._master
        trials = [search.keys.stream("trial", number) for number in range(len(sent))]
        scores = [trial.child("score") for trial in trials]
        above = [search.keys.stream("trial"), *trials]
    assert master is not None
    assert len(sent) > 3
    for job, pickled in sent:
        for other, _ in sent:
            for stream in other.streams.values():
                assert (stream._secret in pickled) == (other is job)
        assert master not in pickled
        assert not [stream for stream in (*above, *scores) if stream._secret in pickled]
        assert b"ledger" not in pickled.lower()


@pytest.mark.unit
@pytest.mark.parametrize(("gpus", "device"), [(0.0, "cpu"), (0.25, "cuda")])
def test_a_gpu_of_the_cluster_is_used_where_one_was_asked_for(
    tmp_path: Path, gpus: float, device: str, monkeypatch: pytest.MonkeyPatch
):
    class Elsewhere(LocalExecutor):
        is_remote = True

        def accepts(self, count: int, *, long: bool) -> bool:
            return True

    def counted(jobs: list[TrainingJob], *how: Any) -> Iterator[Any]:
        taken.extend(job.device for job in jobs)
        raise KeyboardInterrupt

    taken: list[str] = []
    executor = Elsewhere()
    executor.gpus = gpus
    monkeypatch.setattr(engine, "train_in_parallel", counted)
    with searching(tmp_path / "x", "paas") as search, pytest.raises(KeyboardInterrupt):
        replace(search, executor=executor).run()
    assert taken == [device] * 3


@pytest.mark.contract
@pytest.mark.parametrize("way", ["paas", "rs pca"])
def test_no_training_writes_to_the_records_that_it_shares(
    tmp_path: Path, way: str, at_once: Any, monkeypatch: pytest.MonkeyPatch
):
    """On a cluster all works of a node read one copy."""
    at_once(1)
    genuine, before = SharedRecords.load, dict[Path, list[bytes]]()

    def kept(self: SharedRecords) -> dict[str, np.ndarray]:
        arrays = genuine(self)
        content = [each.tobytes() for each in arrays.values()]
        assert before.setdefault(self.folder, content) == content
        shared.setdefault(self.folder, arrays)
        return shared[self.folder]

    shared: dict[Path, dict[str, np.ndarray]] = {}
    monkeypatch.setattr(SharedRecords, "load", kept)
    with searching(tmp_path / "x", way) as search:
        search.run()
    assert before
    for folder, content in before.items():
        assert [each.tobytes() for each in shared[folder].values()] == content


@pytest.mark.contract
def test_without_a_charge_no_file_is_written(tmp_path: Path):
    with searching(tmp_path / "x", "paas") as search:
        part = search.dataset["train"].with_files(tmp_path)
        with pytest.raises(UnchargedReadError):
            part.open(None)  # type: ignore[arg-type]
        with pytest.raises(UnchargedReadError):
            part.public_records()
        assert not [*tmp_path.glob("tmp*")]


@pytest.mark.contract
@pytest.mark.parametrize("finished", [0, 1, 2])
def test_an_interruption_costs_nothing_twice(
    tmp_path: Path, finished: int, at_once: Any, monkeypatch: pytest.MonkeyPatch
):
    at_once(1)
    with searching(tmp_path / "whole", "paas") as search:
        whole, spent = search.run(), search.ledger.spent()

    def broken(jobs: list[TrainingJob], *how: Any) -> Iterator[Any]:
        yield from train_in_parallel(jobs[:finished], *how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine, "train_in_parallel", broken)
        with (
            pytest.raises(KeyboardInterrupt),
            searching(tmp_path / "x", "paas", stored=True) as search,
        ):
            search.run()
    left = tmp_path / "x" / "private" / "records-of-a-run-that-was-killed"
    left.mkdir()
    with searching(tmp_path / "x", "paas", stored=True) as search:
        assert len(records_of(search)) == finished
        outcome = search.run()
        assert search.ledger.spent() == spent
    assert not left.exists()
    assert same(outcome, whole)


@pytest.mark.unit
@pytest.mark.parametrize("asks", [True, False])
def test_what_asks_for_more_than_records_is_trained_by_this_process(
    tmp_path: Path, asks: bool, at_once: Any, monkeypatch: pytest.MonkeyPatch
):
    """Queries are charged while a training goes on, and a worker cannot charge."""
    at_once(1)
    taken: list[int] = []

    def counted(jobs: list[TrainingJob], *how: Any) -> Iterator[Any]:
        taken.append(len(jobs))
        raise KeyboardInterrupt

    def asking(plan: Plan, candidate: Any, shape: Any) -> Recipe:
        recipe = genuine(plan, candidate, shape)
        return replace(recipe, screening=Annealing(q0=0.1, mu0=1)) if asks else recipe

    genuine = Plan.trial_recipe
    monkeypatch.setattr(engine, "train_in_parallel", counted)
    monkeypatch.setattr(Plan, "trial_recipe", asking)
    with searching(tmp_path / "x", "paas") as search, pytest.raises(KeyboardInterrupt):
        search.run()
    assert taken == [0 if asks else 3]


@pytest.mark.unit
def test_records_are_read_as_they_were_written_and_never_written_back(tmp_path: Path):
    generator = np.random.Generator(np.random.PCG64(1))
    own = Records(
        x=torch.from_numpy(generator.random((5, 2), dtype=np.float32)), y=torch.arange(5),
        valid=torch.tensor([True, True, False, True, True]), public=False,
    )  # fmt: skip
    own.write(tmp_path)
    for _ in range(2):
        found = Records.map_files(tmp_path, public=False)
        assert torch.equal(found.x, own.x)
        assert torch.equal(found.y, own.y)
        assert torch.equal(found.valid, own.valid)
        assert found.public is False
        found.x.zero_()


@pytest.mark.unit
def test_a_training_without_memory_is_a_failed_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from search.test_fitness import CANDIDATE, RECIPE, SCHEMA

    from pasearch.runs.keys import Keys
    from pasearch.search.candidate_training import has_failed, training_streams

    def without(*arguments: Any, **options: Any) -> Any:
        raise MemoryError

    Records(
        x=torch.zeros((4, *SCHEMA.shape)), y=torch.zeros(4, dtype=torch.int64),
        valid=torch.ones(4, dtype=torch.bool), public=False,
    ).write(tmp_path)  # fmt: skip
    monkeypatch.setattr(candidate_training, "train_candidate", without)
    job = TrainingJob(
        candidate=CANDIDATE, schema=SCHEMA, recipe=RECIPE,
        streams=training_streams(Keys.from_seed(1).stream("x")),
        records=SharedRecords(tmp_path, public=False),
    )  # fmt: skip
    ((network, _),) = train_in_parallel([job], 1, 1, LocalExecutor())
    assert has_failed(network)


# Taking turns on a GPU


@pytest.mark.unit
def test_turns_are_turns_and_records_are_moved_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    order: list[int] = []
    moved: list[int] = []
    honest, load = candidate_training.start_candidate_training, SharedRecords.load

    def noted(*given: Any, **more: Any) -> Any:
        place = len(moved_for)
        moved_for.append(given[1])
        network, rounds = honest(*given, **more)

        def watched() -> Iterator[int]:
            for finished in rounds:
                order.append(place)
                yield finished

        return network, watched()

    def loaded(self: SharedRecords) -> Any:
        moved.append(1)
        return load(self)

    moved_for: list[Records] = []
    monkeypatch.setattr(engine.SearchEngine, "_interleaves_trainings", lambda _: True)
    monkeypatch.setattr(candidate_training, "start_candidate_training", noted)
    monkeypatch.setattr(SharedRecords, "load", loaded)
    with searching(tmp_path / "x", "paas") as search:
        search.run()
    first = order[: 3 * 4]
    assert first == [0, 1, 2] * 4
    assert len(moved) < len(moved_for)
    assert len({id(each) for each in moved_for[:3]}) == 1


class Room:
    """A device with room for so many trainings at a time."""

    def __init__(self, most: int, never: int = -1):
        self.most, self.never, self.under_way, self.begun = most, never, 0, 0
        self.ended: list[bool] = []

    def candidate_in_rounds(self, *given: Any, **more: Any) -> Any:
        network, rounds = HONEST(*given, **more)
        place, self.begun = self.begun, self.begun + 1
        if place == self.never:
            self.never_stream = given[4]

        def watched() -> Iterator[int]:
            if self.under_way >= self.most or given[4] == getattr(self, "never_stream", None):
                raise torch.OutOfMemoryError("no room")
            self.under_way += 1
            try:
                yield from rounds
            finally:
                self.under_way -= 1

        return network, watched()

    def in_turns(self, *given: Any) -> Iterator[Any]:
        for network, course in TURNS(*given):
            self.ended.append(has_failed(network))
            yield network, course


HONEST, TURNS = candidate_training.start_candidate_training, engine.train_interleaved


@pytest.mark.contract
@pytest.mark.parametrize("way", ["rs", "paas"])
@pytest.mark.parametrize("at_a_time", [64, 2])
def test_whether_a_training_fails_does_not_depend_on_how_many_there_are(
    tmp_path: Path, way: str, at_a_time: int, monkeypatch: pytest.MonkeyPatch
):
    """Else a lack of memory would turn K into min(K, room), which no selection theorem covers."""
    with use_threads(1), searching(tmp_path / "one", way) as search:
        expected, trials = search.run(), records_of(search)
    room = Room(2)
    monkeypatch.setattr(engine.SearchEngine, "_interleaves_trainings", lambda _: True)
    monkeypatch.setattr(candidate_training, "MAX_INTERLEAVED_TRAININGS", at_a_time)
    monkeypatch.setattr(candidate_training, "start_candidate_training", room.candidate_in_rounds)
    monkeypatch.setattr(engine, "train_interleaved", room.in_turns)
    with use_threads(1), searching(tmp_path / "x", way) as search:
        found = search.run()
        assert records_of(search) == trials
    assert same(found, expected)
    assert not any(room.ended)
    assert room.begun > len(room.ended) or at_a_time == 2


@pytest.mark.unit
def test_between_turns_the_precision_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Scores are taken there: they must not depend on how the network was trained."""
    depth, seen = [0], []

    @contextmanager
    def full_precision() -> Iterator[None]:
        depth[0] += 1
        yield
        depth[0] -= 1

    def watched(*given: Any) -> Iterator[Any]:
        for found in TURNS(*given):
            seen.append(depth[0])
            yield found

    monkeypatch.setattr(engine.SearchEngine, "_interleaves_trainings", lambda _: True)
    monkeypatch.setattr(candidate_training, "full_precision", full_precision)
    monkeypatch.setattr(engine, "train_interleaved", watched)
    with searching(tmp_path / "x", "paas") as search:
        search.run()
    assert seen
    assert set(seen) == {0}


@pytest.mark.unit
def test_one_without_memory_even_alone_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    room = Room(64, never=1)
    monkeypatch.setattr(engine.SearchEngine, "_interleaves_trainings", lambda _: True)
    monkeypatch.setattr(candidate_training, "start_candidate_training", room.candidate_in_rounds)
    monkeypatch.setattr(engine, "train_interleaved", room.in_turns)
    with searching(tmp_path / "x", "paas") as search:
        search.run()
    assert room.ended[:3] == [False, True, False]
    assert not any(room.ended[3:])


# Several GPUs


class Gpus:
    """Made-up GPUs of one machine, on a processor: they note on which of them things happen.

    Args:
        models: One of each.
        libraries: What computes on each.
    """

    def __init__(self, models: str, libraries: str):
        self.models, self.libraries, self.own, self.on = models, libraries, 0, 0
        self.seen: list[int] = []

    def device_count(self) -> int:
        return len(self.models)

    def current_device(self) -> int:
        return self.own

    def get_device_properties(self, number: int) -> Any:
        chip = {"major": 9, "minor": 0, "multi_processor_count": 132, "total_memory": 2**36}
        return SimpleNamespace(name=self.models[number], **chip)

    @contextmanager
    def device(self, number: int) -> Iterator[None]:
        before, self.on = self.on, number
        yield
        self.on = before

    def computing(self, device: str) -> list[str]:
        assert self.models[self.on] == self.models[self.own]
        return [self.libraries[self.on]]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch):
    def set_up(models: str, libraries: str) -> Gpus:
        made = Gpus(models, libraries)
        for name in ("device_count", "current_device", "get_device_properties", "device"):
            monkeypatch.setattr(torch.cuda, name, getattr(made, name))
        monkeypatch.setattr(candidate_training, "list_gpu_library_versions", made.computing)
        return made

    return set_up


@pytest.mark.unit
@pytest.mark.parametrize(
    ("models", "libraries", "own", "expected"),
    [
        ("a", "x", 0, [None]),
        ("aaa", "xxx", 0, [0, 1, 2]),
        ("aaa", "xxx", 1, [1, 0, 2]),
        ("aba", "x?x", 0, [0, 2]),
        ("aba", "xxx", 1, [1]),
        ("aaaa", "xyyx", 0, [0, 3]),
    ],
)  # fmt: skip
def test_only_gpus_that_compute_alike_share_a_generation(
    models: str, libraries: str, own: int, expected: list[int | None], made_up: Any
):
    made_up(models, libraries).own = own
    assert [place.number for place in candidate_training._list_devices("cuda")] == expected
    assert [place.number for place in candidate_training._list_devices("cpu")] == [None]


@pytest.mark.contract
@pytest.mark.parametrize("way", ["rs", "paas", "stw"])
@pytest.mark.parametrize("short", [False, True])
def test_on_several_gpus_trainings_give_what_they_give_one_by_one(
    tmp_path: Path, way: str, short: bool, made_up: Any, monkeypatch: pytest.MonkeyPatch
):
    """All of a training is made where it was dealt, what is made again for want of room too."""
    with use_threads(1), searching(tmp_path / "one", way) as search:
        expected, trials = search.run(), records_of(search)
    made = made_up("aaa", "xxx")
    places: list[list[Any]] = []
    seen: dict[Any, set[int]] = {}

    def begun() -> list[Any]:
        places.append([candidate_training._Device("cpu", number) for number in range(3)])
        return places[-1]

    def in_rounds(*given: Any, **more: Any) -> Any:
        on = seen.setdefault(given[4]["noise"], set())
        on.add(made.on)
        network, rounds = HONEST(*given, **more)

        def watched() -> Iterator[int]:
            if short and more.get("together") is not None and made.on == 1:
                raise torch.OutOfMemoryError("no room")
            for finished in rounds:
                on.add(made.on)
                yield finished

        return network, watched()

    monkeypatch.setattr(engine.SearchEngine, "_interleaves_trainings", lambda _: True)
    monkeypatch.setattr(candidate_training, "_list_devices", lambda _: begun())
    monkeypatch.setattr(candidate_training, "start_candidate_training", in_rounds)
    with use_threads(1), searching(tmp_path / "x", way) as search:
        assert same(search.run(), expected)
        assert records_of(search) == trials
    assert {len(on) for on in seen.values()} == {1}
    assert set.union(*seen.values()) >= {0, 1}
    for generation in places:
        assert all(len(place.moved) <= 1 for place in generation)
    assert made.on == 0


@pytest.mark.unit
def test_a_group_is_given_its_steps_before_the_next_one_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """So a GPU has work of the others meanwhile; and groups are of like size."""
    happened: list[Any] = []
    honest = candidate_training._TrainingInTurn.start_next_round

    def goes_on(turn: Any) -> bool:
        happened.append(turn.group)
        return honest(turn)

    monkeypatch.setattr(candidate_training._TrainingInTurn, "start_next_round", goes_on)
    monkeypatch.setattr(
        candidate_training.TrainingGroup, "run_pending", lambda *_: happened.append("go")
    )
    monkeypatch.setattr(candidate_training, "GPU_QUEUES", 3)
    monkeypatch.setattr(engine.SearchEngine, "_interleaves_trainings", lambda _: True)
    with use_threads(1), searching(tmp_path / "x", "rs") as search:
        search.run()
    parts = [list(part) for kind, part in groupby(happened, lambda each: each == "go")
             if not kind]  # fmt: skip
    assert all(len(set(part)) == 1 for part in parts)
    first = [len(part) for part in parts[:3]]
    assert len({part[0] for part in parts[:3]}) == 3
    assert max(first) - min(first) <= 1


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_on_several_cuda_devices_a_generation_is_what_it_is_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert len(candidate_training._list_devices("cuda")) > 1
    with searching(tmp_path / "x", "paas") as search:
        found = replace(search, device="cuda").run()
    monkeypatch.setattr(
        candidate_training, "_list_devices", lambda _: [candidate_training._Device("cuda", None)]
    )
    with searching(tmp_path / "one", "paas") as search:
        expected = replace(search, device="cuda").run()
    assert same(found, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("way", ["rs", "paas"])
def test_on_cuda_trainings_in_turns_give_what_they_give_one_by_one(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
):
    with searching(tmp_path / "x", way) as search:
        found = replace(search, device="cuda").run()
    monkeypatch.setattr(
        engine.SearchEngine, "_charge_jobs", lambda *_: iter(())
    )  # then each has its own turn
    with searching(tmp_path / "one", way) as search:
        expected = replace(search, device="cuda").run()
    assert found.candidate == expected.candidate
    for one, other in zip(weights(found), weights(expected), strict=True):
        assert torch.allclose(one.cpu(), other.cpu(), atol=1e-5)
