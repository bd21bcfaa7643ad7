"""numpy's laws on words of a cipher: the same laws, and nothing of Philox."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from pasearch.runs.keys import BLOCK_WORDS, CipherBits, Keys, Stream
from pasearch.training.batching import Poisson


def stream_of(*name: str | int, secure: bool = True) -> Stream:
    return Keys.from_seed(17, secure=secure).stream("secure", *name)


@pytest.mark.statistical
def test_shares_and_whole_numbers_are_uniform():
    generator = stream_of("uniform").generator()
    assert kstest(generator.random(20_000), "uniform").pvalue > 1e-3
    assert kstest(generator.random(20_000, dtype=np.float32), "uniform").pvalue > 1e-3
    for kind in (np.uint8, np.uint32, np.int64):
        seen = np.bincount(generator.integers(0, 100, 20_000, dtype=kind), minlength=100)
        assert chisquare(seen).pvalue > 1e-3


@pytest.mark.statistical
def test_normal_numbers_gammas_and_gaps_have_their_laws():
    generator = stream_of("laws").generator()
    assert kstest(generator.standard_normal(20_000), "norm").pvalue > 1e-3
    assert kstest(generator.standard_gamma(2.5, 20_000), "gamma", args=(2.5,)).pvalue > 1e-3
    assert abs(generator.geometric(0.02, 20_000).mean() - 50) < 5 * 50 / np.sqrt(20_000)
    assert sorted(generator.permutation(50).tolist()) == list(range(50))


@pytest.mark.contract
def test_every_word_is_the_ciphers_in_order():
    words = stream_of("order").random_words()
    given = CipherBits(stream_of("order").random_words())
    drawn = np.random.Generator(given).integers(2**64, size=3 * BLOCK_WORDS, dtype=np.uint64)  # pyright: ignore[reportArgumentType]
    assert drawn.tolist() == words.take(3 * BLOCK_WORDS).view(np.uint64).tolist()


@pytest.mark.unit
def test_a_secure_stream_draws_nothing_from_philox(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Philox was asked")

    plain = stream_of("same", secure=False).generator(3).random(4)
    monkeypatch.setattr(np.random, "Philox", refuse)
    stream = stream_of("same").child("batch")
    assert stream.secure
    batch = Poisson(sampling_probability=0.1).batch(2000, stream, 4)
    assert 100 < len(batch) < 300
    assert 0 < stream.uniform() < 1
    assert 0 <= stream.integers().draw_below(10) < 10
    assert not np.array_equal(plain, stream_of("same").generator(3).random(4))
    with pytest.raises(AssertionError, match="Philox was asked"):
        stream_of("same", secure=False).generator()


@pytest.mark.unit
def test_streams_steps_and_purposes_are_apart_and_repeat():
    first = stream_of("a").generator(1).random(50)
    assert np.array_equal(first, stream_of("a").generator(1).random(50))
    others = [stream_of("a").generator(2), stream_of("b").generator(1)]
    assert not any(np.isin(each.random(50), first).any() for each in others)
