"""Keys: no two purposes, steps or inputs share randomness, and a key dies with its inputs."""

from __future__ import annotations

import copy
import os
import pickle
import stat
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from pasearch.errors import BudgetError, UsageError
from pasearch.runs.keys import ExactIntegers, Keys, Stream

contexts = st.lists(st.one_of(st.text(max_size=6), st.integers()), min_size=1, max_size=4)


def words(stream: Stream, step: int = 0, size: int = 4) -> tuple[int, ...]:
    return tuple(stream.generator(step).integers(2**64, size=size, dtype=np.uint64).tolist())


def prints(stream: Stream) -> set[object]:
    """Everything that a stream gives out, by purpose and step."""
    steps = (0, 1, 2**32, 2**63, 2**63 + 1, 2**64 - 1)
    return {
        *(words(stream, step) for step in steps),
        *(stream.integers(step).draw_below(2**256) for step in steps),
        *(stream.seed64(step) for step in steps),
    }


@pytest.mark.property
@given(first=contexts, second=contexts)
def test_only_equal_contexts_have_equal_streams(first: list, second: list):
    keys = Keys.from_seed(1)
    assert (keys.stream(*first) == keys.stream(*second)) == (first == second)


@pytest.mark.unit
def test_contexts_that_look_alike_differ():
    for first, second in [
        (("a", 1), ("a1",)),
        (("a", 1), ("a", "1")),
        (("ab", "c"), ("a", "bc")),
        (("a", ""), ("a",)),
        (("", "a"), ("a", "")),
        (("a", -1), ("a", "-1")),
        ((1, 2), (12,)),
        (("trial", 1, 23), ("trial", 12, 3)),
        (("a\0b",), ("a", "b")),
        (("\ud800",), ("?",)),
    ]:
        keys = Keys.from_seed(1)
        assert keys.stream(*first) != keys.stream(*second)
        assert not prints(keys.stream(*first)) & prints(keys.stream(*second))


@pytest.mark.unit
def test_purposes_and_steps_of_a_stream_differ():
    assert len(prints(Keys.from_seed(1).stream("trial", 1))) == 18


@pytest.mark.unit
def test_a_purpose_is_no_context():
    stream = Keys.from_seed(1).stream("x")
    assert not prints(stream) & prints(stream.child("generator"))
    assert not prints(stream) & prints(stream.child("pgenerator"))
    key = stream.generator().bit_generator.state["state"]["key"]
    drawn_from = b"".join(int(word).to_bytes(8, "big") for word in reversed(key))
    assert all(drawn_from != stream.child(word)._secret[:16] for word in ("generator", "integers"))


@pytest.mark.unit
def test_a_child_extends_the_context():
    keys = Keys.from_seed(1)
    assert keys.stream("trial", 3).child("noise") == keys.stream("trial", 3, "noise")
    assert keys.stream("trial", np.int64(3)) == keys.stream("trial", 3)


@pytest.mark.unit
def test_streams_repeat_exactly():
    stream = Keys().stream("trial", 3)
    assert words(stream, 7) == words(stream, 7)
    assert stream.integers().draw_below(10**40) == stream.integers().draw_below(10**40)
    assert stream.seed64(7) == stream.seed64(7)
    assert words(pickle.loads(pickle.dumps(stream)), 7) == words(stream, 7)


@pytest.mark.unit
def test_a_step_never_runs_into_the_next():
    stream = Keys.from_seed(1).stream("noise")
    first = stream.generator(5).bit_generator
    assert isinstance(first, np.random.Philox)
    assert first.state["state"]["counter"].tolist() == [0, 0, 0, 5]
    # 2^192 blocks later, and not before, a step reaches the next one.
    first.advance(2**192 - 1)
    drawn = np.random.Generator(first).integers(2**64, size=8, dtype=np.uint64).tolist()
    assert tuple(drawn[4:]) == words(stream, 6)


@pytest.mark.unit
def test_all_128_bits_of_the_key_matter():
    """A seed cut to 32 or 64 bits (torch.manual_seed on the CPU) would give equal streams."""
    stream = Keys.from_seed(1).stream("noise")
    state = stream.generator().bit_generator.state
    low, high = (int(word) for word in state["state"]["key"])
    drawn = [
        tuple(np.random.Philox(key=(high << 64 | low) ^ 1 << bit).random_raw(4).tolist())
        for bit in (0, 31, 32, 63, 64, 96, 127)
    ]
    assert len({*drawn, words(stream)}) == 8
    assert high.bit_length() > 32
    assert low.bit_length() > 32


@pytest.mark.unit
def test_the_top_bits_of_the_master_matter():
    first, second = bytes(32), bytes([128]) + bytes(31)
    assert not prints(Stream(first).child("a")) & prints(Stream(second).child("a"))
    assert not prints(Stream(bytes(31) + b"\1").child("a")) & prints(Stream(first).child("a"))


@pytest.mark.unit
def test_seeds_for_cuda_use_64_bits():
    seeds = [Keys.from_seed(1).stream("noise").seed64(step) for step in range(256)]
    assert len(set(seeds)) == 256
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert any(seed >= 2**63 for seed in seeds)
    assert all(any(seed >> bit & 1 for seed in seeds) for bit in range(64))


@pytest.mark.unit
def test_a_seed_is_never_the_systems_key():
    for seed in (0, 1, 2**300, -1):
        keys = Keys.from_seed(seed)
        assert keys.reproducible
        assert keys.stream("x") == Keys.from_seed(seed).stream("x")
        assert keys.stream("x") != Keys.from_seed(seed + 1).stream("x")
    fresh = [Keys() for _ in range(3)]
    assert not any(keys.reproducible for keys in fresh)
    assert len({keys.stream("x")._secret for keys in (*fresh, Keys.from_seed(0))}) == 4


@pytest.mark.unit
def test_the_systems_key_has_256_bits(monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr("secrets.token_bytes", lambda size: asked.append(size) or os.urandom(size))
    Keys()
    assert asked == [32]


@pytest.mark.unit
def test_other_elements_are_refused():
    for element in [True, 1.0, None, b"a", np.float32(1), ("a",)]:
        with pytest.raises(UsageError, match="expected a string or an integer"):
            Keys().stream("a", element)  # type: ignore[arg-type]


@pytest.mark.unit
def test_steps_beyond_the_word_are_refused():
    for step in [-1, 2**64, 1.0, True, None]:
        stream = Keys().stream("a")
        for draw in (stream.generator, stream.integers, stream.seed64):
            with pytest.raises(UsageError, match="step is"):
                draw(step)  # type: ignore[arg-type]


@pytest.mark.unit
def test_a_stream_needs_a_purpose():
    with pytest.raises(UsageError, match="names its purpose"):
        Keys().stream()


@pytest.mark.statistical
def test_small_integers_are_uniform():
    for bound in [2, 3, 10]:
        below = Keys.from_seed(3).stream("uniform", bound).integers().draw_below
        counts = Counter(below(bound) for _ in range(30_000))
        assert set(counts) == set(range(bound))
        assert chisquare([counts[value] for value in range(bound)]).pvalue > 1e-4


@pytest.mark.statistical
def test_large_integers_have_no_modulo_bias():
    """At 3/4 of a power of two, `word % bound` would put half of all draws below a third."""
    for bits in (64, 128, 200):
        bound = 3 << (bits - 2)
        below = Keys.from_seed(4).stream("bias", bits).integers().draw_below
        low = sum(below(bound) < bound // 3 for _ in range(4_000))
        assert abs(low - 4_000 / 3) < 4 * np.sqrt(4_000 * 2 / 9)
        assert abs(2_000 - 4_000 / 3) > 20 * np.sqrt(4_000 * 2 / 9)


@pytest.mark.unit
def test_integers_at_the_edges():
    below = ExactIntegers(np.random.Philox(key=1).random_raw).draw_below
    assert below(1) == 0
    assert all(below(2**64) < 2**64 for _ in range(100))
    assert {below(2**64 + 1).bit_length() <= 65 for _ in range(100)} == {True}
    with pytest.raises(ValueError, match="bound is 0"):
        below(0)


@pytest.mark.unit
def test_the_file_is_private_exclusive_and_faithful(tmp_path):
    path = tmp_path / "keys"
    before = os.umask(0)
    try:
        keys = Keys()
        keys.save(path, "aa")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Keys.open(path, "aa").stream("x") == keys.stream("x")
    assert not Keys.open(path, "aa").reproducible
    with pytest.raises(UsageError, match="never replaced"):
        Keys().save(path, "aa")
    assert Keys.open(path, "aa").stream("x") == keys.stream("x")


@pytest.mark.unit
def test_a_seeds_file_says_so(tmp_path):
    Keys.from_seed(5).save(tmp_path / "keys", "aa")
    again = Keys.open(tmp_path / "keys", "aa")
    assert again.reproducible
    assert again.stream("x") == Keys.from_seed(5).stream("x")


@pytest.mark.unit
def test_other_inputs_destroy_the_keys(tmp_path):
    path = tmp_path / "keys"
    Keys().save(path, "aa" * 32)
    with pytest.raises(BudgetError, match="destroyed"):
        Keys.open(path, "bb" * 32)
    assert not path.exists()
    with pytest.raises(UsageError, match="missing"):
        Keys.open(path, "aa" * 32)


@pytest.mark.unit
def test_what_is_other_is_named_and_nothing_of_it(tmp_path):
    path, were = tmp_path / "keys", {"the data": "aa" * 32, "the plan": "bb" * 32}
    Keys().save(path, "cc" * 32, were)
    assert not any(each in path.read_text() for each in were.values()), "hashes are tied to the key"
    assert Keys.open(path, "cc" * 32, were)
    with pytest.raises(BudgetError, match="when the run began: the data") as told:
        Keys.open(path, "dd" * 32, were | {"the data": "ee" * 32})
    assert "the plan" not in str(told.value)
    assert not any(2 * each in str(told.value) for each in ("aa", "bb", "cc", "dd", "ee"))
    assert not path.exists()


@pytest.mark.unit
def test_destroying_overwrites_before_it_unlinks(tmp_path):
    path, link = tmp_path / "keys", tmp_path / "link"
    keys = Keys()
    keys.save(path, "aa")
    link.hardlink_to(path)
    size = link.stat().st_size
    keys.destroy()
    assert not path.exists()
    assert link.read_bytes() == bytes(size)
    with pytest.raises(RuntimeError, match="destroyed"):
        keys.stream("x")
    with pytest.raises(RuntimeError, match="destroyed"):
        keys.save(tmp_path / "other", "aa")
    keys.destroy()


@pytest.mark.unit
def test_writes_are_synced(tmp_path, monkeypatch: pytest.MonkeyPatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd)
    )
    keys = Keys()
    keys.save(tmp_path / "keys", "aa")
    assert Path(synced[0]).name.startswith(".keys.")
    assert synced[1:] == [str(tmp_path)]
    keys.destroy()
    assert synced[2:] == [str(tmp_path / "keys"), str(tmp_path)]


@pytest.mark.unit
def test_a_link_is_not_followed(tmp_path):
    Keys().save(tmp_path / "real", "aa")
    (tmp_path / "keys").symlink_to(tmp_path / "real")
    with pytest.raises(UsageError, match="not a key file"):
        Keys.open(tmp_path / "keys", "aa")
    with pytest.raises(UsageError, match="exists"):
        Keys().save(tmp_path / "keys", "aa")


@pytest.mark.unit
def test_secrets_are_neither_shown_nor_copied():
    keys = Keys()
    assert keys._master is not None
    for shown in (repr(keys), repr(keys.stream("x")), str(keys.stream("x"))):
        assert keys._master.hex() not in shown
        assert "_secret" not in shown
    for action in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="never copied"):
            action(keys)
