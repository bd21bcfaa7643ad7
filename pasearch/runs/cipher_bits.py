"""numpy's generator on words of a cipher: every law that numpy draws, from AES in counter mode.

numpy takes any source that hands it four C functions in a capsule (its "BitGenerator" interface).
Each call of one goes through Python, about a third of a microsecond: fit for batches and coins.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

AT_ONCE = 256
"""Words that are asked of the cipher at once."""

_Word = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)
_Half = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)
_Share = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)
_capsule: Any = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class RandomWords(Protocol):
    """Where bits come from: `keys.Words` is one."""

    def take(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the next random 64-bit words, (count,)."""
        ...


class _Functions(ctypes.Structure):
    """What numpy calls bitgen_t."""

    _fields_ = (
        ("state", ctypes.c_void_p),
        ("next_uint64", _Word),
        ("next_uint32", _Half),
        ("next_double", _Share),
        ("next_raw", _Word),
    )


class CipherBits:
    """A source of random bits for `numpy.random.Generator`.

    Args:
        words: Where they come from; used for nothing else.
    """

    def __init__(self, words: RandomWords):
        word = _each(words).__next__
        self._functions = _Functions(
            None,
            _Word(lambda _: word()),
            _Half(lambda _: word() >> 32),
            _Share(lambda _: (word() >> 11) * 2.0**-53),
            _Word(lambda _: word()),
        )
        self.capsule = _capsule(ctypes.addressof(self._functions), b"BitGenerator", None)
        self.lock = threading.Lock()


def _each(words: RandomWords) -> Iterator[int]:
    while True:
        yield from words.take(AT_ONCE).view("<u8").tolist()
