"""Secret randomness: one 256-bit key from the operating system, and a derived key per purpose.

    secret(c_1, ..., c_m) = HMAC(... HMAC(HMAC(master, c_1), c_2) ..., c_m)        HMAC-SHA256
    words       AES-256 in counter mode; key = HMAC(secret, purpose), counter = (step, 0)
    generator   Philox; key = the first 128 bits of HMAC(secret, purpose); counter = (0, 0, 0, step)

Noise is computed from words. Other random values (batches, candidates, Bernoulli draws) come from
the generator, which uses words as well in a secure stream. Every element of a context is one HMAC
message, tagged with its type, so two contexts never share a key unless SHA-256 fails. The step is
the counter's highest word: a step would need 2^64 blocks of AES, or 2^192 of Philox, to reach the
next one. There is no state, so a resumed run draws the same values again; for that reason the
stored master key is bound to a fingerprint of all inputs.

Source: docs/rules.md, rule 11; NIST SP 800-38A (counter mode); Salmon et al. 2011 (Philox). Proof:
docs/guarantees/randomness.md.
"""

from __future__ import annotations

import ctypes
import hmac
import itertools
import json
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from pasearch.errors import BudgetError, UsageError
from pasearch.files import read_json
from pasearch.runs.folder import atomic_write, sync_folder

ALL_BOUND_INPUTS = (
    "data, plan, code, versions, threads, device, or the environment variables of numba and BLAS "
    "(NUMBA_..., OPENBLAS_...)"
)
"""List of everything that keys are bound to, for a run that cannot tell which input changed."""

VERSION = 1
BLOCK_WORDS = 256
"""Words that the cipher produces per call."""

_Uint64Function = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)
_Uint32Function = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)
_DoubleFunction = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)
_capsule: Any = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_ZEROS = memoryview(bytes(2**18))


@dataclass(frozen=True, slots=True)
class Stream:
    """The randomness of one purpose: a value, so the same stream always gives the same numbers.

    Guarantee: streams of different contexts, and different steps of a stream, are independent (if
    HMAC-SHA256 and Philox are pseudo-random). A stream contains no key but its own.

    Cost: none, but a stream (and step) serves one input only: use a separate stream for each
        release.
    """

    _secret: bytes = field(repr=False)
    secure: bool = False
    """Whether the cipher is used for batches and Bernoulli draws as well as for noise."""

    def child(self, *context: str | int) -> Stream:
        """Derive the stream of a purpose; `a.child(x, y)` equals `a.child(x).child(y)`.

        Raises:
            UsageError: An element is neither a string nor an integer.
        """
        secret = self._secret
        for element in context:
            secret = _mac(secret, _encode_element(element))
        return Stream(secret, self.secure)

    def random_words(self, step: int = 0, first: int = 0) -> RandomWords:
        """Return the words of a step from an even position on, independent of `generator`."""
        return self._words(b"words", step, first)

    def generator(self, step: int = 0) -> np.random.Generator:
        """Return a NumPy generator (Philox) with this stream's key and the counter of a step.

        The generator of a secure stream uses words: about 350 ns per number.
        """
        if self.secure:
            return np.random.Generator(CipherBits(self._words(b"generator", step)))  # pyright: ignore[reportArgumentType]
        return np.random.Generator(self._philox(b"generator", step))

    def generators(self) -> Callable[[int], np.random.Generator]:
        """Return a faster `generator`: one object that each call moves to another step.

        A new generator takes fifteen times as long.
        """
        if self.secure:
            return self.generator
        source = self._philox(b"generator", 0)
        state, made = source.state, np.random.Generator(source)

        def wound(step: int) -> np.random.Generator:
            state["state"]["counter"][3] = _check_step(step)
            source.state = state
            return made

        return wound

    def integers(self, step: int = 0) -> ExactIntegers:
        """Return a source of exact uniform integers, independent of `generator`."""
        if self.secure:
            return ExactIntegers(self._words(b"integers", step).take)
        return ExactIntegers(self._philox(b"integers", step).random_raw)

    def uniform(self) -> float:
        """Return a number in (0, 1): an odd multiple of 2^-53, so it is exact and never 0 or 1."""
        return (int(self.generator().integers(2**52)) + 0.5) / 2.0**52

    def seed64(self, step: int = 0) -> int:
        """Return 64 random bits, for a name or the seed of another generator."""
        return int.from_bytes(self._number(b"cuda", step)[:8], "big")

    def seed_and_offset(self, step: int = 0) -> tuple[int, int]:
        """Return the arguments of CUDA's generator: a 64-bit key and the first position.

        The position is a multiple of 4 below 2^63. The generator skips to it without computing
        numbers.
        """
        drawn = self._number(b"cuda", step)
        return int.from_bytes(drawn[:8], "big"), int.from_bytes(drawn[8:16], "big") >> 3 << 2

    def first_words(self, count: int) -> FirstRandomWords:
        """Return a faster `random_words` for the first `count` words of each of many steps."""
        return FirstRandomWords(_mac(self._secret, b"pwords"), count)

    def _number(self, purpose: bytes, step: int) -> bytes:
        return _mac(self._secret, b"p" + purpose + _check_step(step).to_bytes(8, "big"))

    def _words(self, purpose: bytes, step: int, first: int = 0) -> RandomWords:
        return RandomWords(_mac(self._secret, b"p" + purpose), _check_step(step), first)

    def _philox(self, purpose: bytes, step: int) -> np.random.Philox:
        key = int.from_bytes(_mac(self._secret, b"p" + purpose)[:16], "big")
        # As one integer: of a list, numpy would pass steps from 2^63 on through float64.
        return np.random.Philox(key=key, counter=_check_step(step) << 192)


class RandomWords:
    """Random 64-bit words in order: the key stream of AES-256 in counter mode.

    Args:
        key: AES key, 32 bytes.
        step: Upper half of the counter, in [0, 2^64).
        first: Index of the first word that `take` returns; even.
    """

    __slots__ = ("_encryptor", "_first", "_key", "_room", "_step")

    def __init__(self, key: bytes, step: int, first: int = 0):
        assert first % 2 == 0, "the cipher returns two words at a time"
        self._key, self._step, self._first = key, step, first
        self._encryptor: Any = None  # created when needed: it takes as long as a thousand words
        self._room = bytearray()

    def take(
        self, count: int, room: bytearray | None = None
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the next words as int64, shape (count,); the next call overwrites them.

        They are written to `room`, if a buffer of at least 8 count + 15 bytes is given.
        """
        size = 8 * count
        if self._encryptor is None:
            counter = self._step.to_bytes(8, "big") + (self._first // 2).to_bytes(8, "big")
            self._encryptor = Cipher(algorithms.AES256(self._key), modes.CTR(counter)).encryptor()
        if room is None:
            if len(self._room) < size + 15:  # the library asks for so much room
                self._room = bytearray(size + 15)
            room = self._room
        zeros = _ZEROS[:size] if size <= len(_ZEROS) else bytes(size)
        self._encryptor.update_into(zeros, room)
        return np.frombuffer(room, dtype="<i8", count=count)

    def at(self, places: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return words by index, counted from the step's first word, in any order."""
        counters = np.empty((len(places), 2), dtype=">u8")
        counters[:, 0], counters[:, 1] = self._step, places >> 1
        cipher = Cipher(algorithms.AES256(self._key), modes.ECB()).encryptor()  # of counters
        words = np.frombuffer(cipher.update(counters.tobytes()), dtype="<i8").reshape(-1, 2)
        return words[np.arange(len(places)), (places & 1).astype(np.intp)]


class FirstRandomWords:
    """The first words of a stream's steps. The cipher is initialised once instead of at every step.

    Args:
        key: AES key, 32 bytes.
        count: Number of words per step.
    """

    __slots__ = ("_counters", "_encryptor", "_given", "_words", "_written")

    def __init__(self, key: bytes, count: int):
        self._counters = np.zeros((-(-count // 2), 2), dtype=">u8")
        self._counters[:, 1] = np.arange(len(self._counters))
        self._given = self._counters.data.cast("B")
        self._written = bytearray(16 * len(self._counters) + 15)  # the library asks for so much
        self._words = np.frombuffer(self._written, dtype="<i8", count=count)
        self._encryptor = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()  # of counters

    def at(self, step: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the words of a step as int64, shape (count,); the next call overwrites them."""
        self._counters[:, 0] = _check_step(step)
        self._encryptor.update_into(self._given, self._written)
        return self._words


class _BitGenFunctions(ctypes.Structure):
    """The C structure `bitgen_t` of NumPy."""

    _fields_ = (
        ("state", ctypes.c_void_p),
        ("next_uint64", _Uint64Function),
        ("next_uint32", _Uint32Function),
        ("next_double", _DoubleFunction),
        ("next_raw", _Uint64Function),
    )


class CipherBits:
    """A bit generator for `numpy.random.Generator` whose random bits come from AES.

    NumPy accepts any object with four C functions in a capsule (its "BitGenerator" interface). Each
    call goes through Python and takes about 0.3 microseconds: fast enough for batches.

    Args:
        words: Source of random words, used for nothing else.
    """

    def __init__(self, words: RandomWords):
        taken = (words.take(BLOCK_WORDS).view("<u8").tolist() for _ in itertools.count())
        word = itertools.chain.from_iterable(taken).__next__
        self._functions = _BitGenFunctions(
            None,
            _Uint64Function(lambda _: word()),
            _Uint32Function(lambda _: word() >> 32),
            _DoubleFunction(lambda _: (word() >> 11) * 2.0**-53),
            _Uint64Function(lambda _: word()),
        )
        self.capsule = _capsule(ctypes.addressof(self._functions), b"BitGenerator", None)
        self.lock = threading.Lock()


class ExactIntegers:
    """Uniform integers without rounding, from 64-bit words.

    Args:
        words: Function from a count to that number of words.
    """

    __slots__ = ("_words",)

    def __init__(self, words: Callable[[int], np.ndarray[Any, Any]]):
        self._words = words

    def draw_below(self, bound: int) -> int:
        """Return a uniform whole number in [0, bound), exactly, by rejection; bound >= 1."""
        if not bound >= 1:
            raise ValueError(f"bound is {bound}: expected 1 or above.")
        bits = (bound - 1).bit_length()
        words, spare = -(-bits // 64), -bits % 64
        while True:
            raw = self._words(words).tobytes() if words else b""
            number = int.from_bytes(raw, "little") >> spare
            if number < bound:
                return number


class Keys:
    """The master key of a run: 256 bits from the operating system.

    Guarantee: never copied or pickled. `reproducible` is True if and only if the key comes from a
        seed; anyone who knows the seed can then compute the noise, so the run is not private.

    Args:
        secure: Whether the cipher is used for batches and Bernoulli draws as well as for noise.
    """

    __slots__ = ("_master", "_path", "reproducible", "secure")

    def __init__(self, *, secure: bool = False) -> None:
        self._master: bytes | None = secrets.token_bytes(32)
        self._path: Path | None = None
        self.reproducible = False
        self.secure = secure

    @classmethod
    def from_seed(cls, seed: int, *, secure: bool = False) -> Keys:
        """Create keys from a seed, for tests and benchmarks only."""
        keys = cls(secure=secure)
        keys._master = _mac(b"pasearch: reproducible, not private", _encode_element(seed))
        keys.reproducible = True
        return keys

    def stream(self, *context: str | int) -> Stream:
        """Return the randomness of one purpose, such as `stream("trial", 3)`.

        Raises:
            UsageError: There is no context, or an element is neither a string nor an integer.
            RuntimeError: The keys were destroyed.
        """
        if self._master is None:
            raise RuntimeError(
                "The keys of the run are destroyed, so no random numbers can be drawn."
            )
        if not context:
            raise UsageError(
                "a stream needs a context that names its purpose, such as ('trial', 3)."
            )
        return Stream(self._master, self.secure).child(*context)

    def save(
        self, path: str | os.PathLike[str], fingerprint: str, parts: Mapping[str, str] | None = None
    ) -> None:
        """Store the keys for a resume in a new file, mode 0600, durable at return.

        Guarantee: the file appears with its whole content, or not at all.

        Args:
            path: Path of the file, which must not exist.
            fingerprint: Hash of every input that the run's releases depend on: data, plan, code,
                versions, device.
            parts: Hash of each kind of input, by its name, so that a refusal can name what changed.

        Raises:
            UsageError: The file exists.
            RuntimeError: The keys were destroyed.
        """
        if self._master is None:
            raise RuntimeError("The keys of the run are destroyed, so they cannot be saved.")
        content = {
            "version": VERSION,
            "bound": _bind_fingerprint(self._master, fingerprint),
            "parts": {
                name: _bind_fingerprint(self._master, each) for name, each in (parts or {}).items()
            },
            "reproducible": self.reproducible,
            "master": self._master.hex(),
        }
        path = Path(path).absolute()
        # The run's ledger is locked, so no other process can create the file in between.
        if os.path.lexists(path):
            raise UsageError(f"{path} exists: keys are never replaced. Resume that run.")
        atomic_write(path, json.dumps(content))
        self._path = path

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], fingerprint: str, parts: Mapping[str, str] | None = None,
        *, secure: bool = False,
    ) -> Keys:  # fmt: skip
        """Load the keys of an interrupted run if every input is unchanged.

        Guarantee: keys are never used with another input than their own. If the fingerprint
            differs, they are destroyed durably before this returns.

        Raises:
            UsageError: The keys are missing (the run ended, or never started), or the file is
                malformed.
            BudgetError: The fingerprint differs.
        """
        path = Path(path).absolute()
        if not os.path.lexists(path):
            raise UsageError(
                f"{path} is missing: the run is finished, or has not started. Start a new run."
            )
        keys = cls(secure=secure)
        keys._path = path
        try:
            content = read_json(path, follow=False)
            keys._master = bytes.fromhex(content["master"])
            keys.reproducible = content["reproducible"]
            bound, kept = content["bound"], content.get("parts") or {}
        except (UsageError, ValueError, KeyError, TypeError):
            raise UsageError(f"{path} is not a key file: start a new run.") from None
        sound = len(keys._master) == 32 and type(keys.reproducible) is bool
        if not sound or (type(bound), type(kept), content.get("version")) != (str, dict, VERSION):
            raise UsageError(f"{path} is not a key file of this version: start a new run.")
        if not hmac.compare_digest(bound, _bind_fingerprint(keys._master, fingerprint)):
            other = [
                name
                for name, each in (parts or {}).items()
                if kept and kept.get(name) != _bind_fingerprint(keys._master, each)
            ]
            keys.destroy()
            # The fingerprint is a function of the records: no digit of it may be shown.
            raise BudgetError(
                f"Not as when the run began: {', '.join(other) or ALL_BOUND_INPUTS}. The same "
                f"noise on another input would cancel, so its keys are now destroyed ({path}). "
                "What the run has spent stays spent: start a new run, with a budget of its own."
            )
        return keys

    def destroy(self) -> None:
        """Forget the master key; overwrite and remove its file. Repeating this is harmless.

        Streams that were derived before still work. Overwriting is durable on the file, but a disk
        or file system that writes elsewhere (flash, copy on write, backups) may keep the old
        blocks.
        """
        self._master = None
        if self._path is None:
            return
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(
                f"{self._path} cannot be destroyed ({error.strerror}): it is not a key file, or "
                "not yours. Delete it, then resume."
            ) from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(os.fstat(file.fileno()).st_size))
            file.flush()
            os.fsync(file.fileno())
        self._path.unlink()
        sync_folder(self._path.parent)

    @classmethod
    def forget(cls, path: str | os.PathLike[str]) -> None:
        """Overwrite and remove stored keys without using them; a missing file is harmless."""
        keys = cls()
        keys._path = Path(path).absolute()
        keys.destroy()

    def __repr__(self) -> str:
        return f"Keys(reproducible={self.reproducible}, destroyed={self._master is None})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("Keys are never copied or pickled: hand a worker its own `stream`.")


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _bind_fingerprint(master: bytes, fingerprint: str) -> str:
    """Compute the tag that binds keys to their inputs; it reveals nothing without the key."""
    return _mac(master, b"f" + fingerprint.encode()).hex()


def _encode_element(element: object) -> bytes:
    """Encode one element of a context. The first byte is its type; purposes start with p."""
    if isinstance(element, str):
        return b"s" + element.encode("utf-8", "surrogatepass")
    if isinstance(element, Integral) and not isinstance(element, bool):
        return b"i" + str(int(element)).encode()
    raise UsageError(
        f"a stream's context has an element of type {type(element).__name__}: expected a string "
        "or an integer."
    )


def _check_step(step: object) -> int:
    if type(step) is int and 0 <= step < 2**64:  # the common case, checked quickly
        return step
    if isinstance(step, bool) or not isinstance(step, Integral) or not 0 <= int(step) < 2**64:
        raise UsageError(f"step is {step!r}: expected an integer in [0, 2^64).")
    return int(step)


def to_int64(number: int) -> int:
    """Convert a 64-bit unsigned integer to the int64 with the same bits."""
    return number - 2**64 if number >= 2**63 else number
