"""Secret randomness: one 256-bit key from the operating system, and a sub-key for every purpose.

    secret(c_1, ..., c_m) = HMAC(... HMAC(HMAC(master, c_1), c_2) ..., c_m)        HMAC-SHA256
    words       AES-256 in counter mode; key = HMAC(secret, purpose), counter = (step, 0)
    generator   Philox; key = the first 128 bits of HMAC(secret, purpose); counter = (0, 0, 0, step)

Noise comes from words. What else is random (batches, candidates, coins) comes from the generator,
which is made of words too in a secure stream. Every element of a context is one HMAC message,
tagged with its type, so two contexts never share a sub-key unless SHA-256 fails. The step fills the
counter's highest word: a step would have to draw 2^64 blocks of AES, or 2^192 of Philox, to reach
the next. Nothing is stateful, so a resumed run draws what it drew before; for that reason the
stored master is bound to a fingerprint of all its inputs.

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
    "data, plan, code, versions, threads, device, or what the environment tells numba and BLAS "
    "(NUMBA_..., OPENBLAS_...)"
)
"""What keys are bound to, where it is not known which part is another."""

VERSION = 1
BLOCK_WORDS = 256
"""Words that are asked of the cipher at once."""

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

    Guarantee: streams of different contexts, and different steps of a stream, are independent (as
    far as HMAC-SHA256 and Philox are pseudo-random). It knows no key but its own and those below.

    Cost: none, but a stream (and step) serves one input only: draw for each release from its own.
    """

    _secret: bytes = field(repr=False)
    secure: bool = False
    """Whether all its randomness comes from the cipher, batches and coins as well as noise."""

    def child(self, *context: str | int) -> Stream:
        """Return the stream of a purpose within this one; `a.child(x, y)` is `a.child(x).child(y)`.

        Raises:
            UsageError: An element that is neither text nor a whole number.
        """
        secret = self._secret
        for element in context:
            secret = _mac(secret, _encode_element(element))
        return Stream(secret, self.secure)

    def random_words(self, step: int = 0, first: int = 0) -> RandomWords:
        """Return this stream's words, independent of `generator`: from one on, an even number."""
        return self._words(b"words", step, first)

    def generator(self, step: int = 0) -> np.random.Generator:
        """Return a generator with this stream's key, at a step's counter: numpy's Philox.

        A secure stream's is made of words: slower, about 350 ns a number.
        """
        if self.secure:
            return np.random.Generator(CipherBits(self._words(b"generator", step)))  # pyright: ignore[reportArgumentType]
        return np.random.Generator(self._philox(b"generator", step))

    def generators(self) -> Callable[[int], np.random.Generator]:
        """Return what gives `generator(step)`: one and the same, which stands until the next call.

        Making a new one takes fifteen times as long.
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
        """Return exact integer randomness, independent of `generator`."""
        if self.secure:
            return ExactIntegers(self._words(b"integers", step).take)
        return ExactIntegers(self._philox(b"integers", step).random_raw)

    def uniform(self) -> float:
        """Return a number in (0, 1): an odd multiple of 2^-53, so exact, and never 0 or 1."""
        return (int(self.generator().integers(2**52)) + 0.5) / 2.0**52

    def seed64(self, step: int = 0) -> int:
        """Return 64 bits, such as a name or the seed of a generator that takes no more."""
        return int.from_bytes(self._number(b"cuda", step)[:8], "big")

    def seed_and_offset(self, step: int = 0) -> tuple[int, int]:
        """Return what CUDA's generator takes: a 64-bit key, and 61 bits of where it begins.

        The second is a multiple of 4 below 2^63: so many numbers are skipped, and not one of them
        is computed.
        """
        drawn = self._number(b"cuda", step)
        return int.from_bytes(drawn[:8], "big"), int.from_bytes(drawn[8:16], "big") >> 3 << 2

    def first_words(self, count: int) -> FirstRandomWords:
        """Return what gives so many `random_words` of any step, for few of each of many steps."""
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
    """Random 64-bit words, in order: the key stream of AES-256 in counter mode.

    Args:
        key: 32 bytes.
        step: In [0, 2^64): the counter's upper half.
        first: Which one `take` begins with, an even number.
    """

    __slots__ = ("_encryptor", "_first", "_key", "_room", "_step")

    def __init__(self, key: bytes, step: int, first: int = 0):
        assert first % 2 == 0, "the cipher gives two words at a time"
        self._key, self._step, self._first = key, step, first
        self._encryptor: Any = None  # it takes as long as a thousand words: not where `at` is asked
        self._room = bytearray()

    def take(
        self, count: int, room: bytearray | None = None
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the next words as signed numbers, (count,): they stand until the next call.

        They lie in the room, if one of 8 count + 15 bytes or more is given.
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
        """Return words by their places, counted from the step's first word, in any order."""
        counters = np.empty((len(places), 2), dtype=">u8")
        counters[:, 0], counters[:, 1] = self._step, places >> 1
        cipher = Cipher(algorithms.AES256(self._key), modes.ECB()).encryptor()  # of counters
        words = np.frombuffer(cipher.update(counters.tobytes()), dtype="<i8").reshape(-1, 2)
        return words[np.arange(len(places)), (places & 1).astype(np.intp)]


class FirstRandomWords:
    """The first words of a stream's steps: the cipher is made ready once, and not at every step.

    Args:
        key: 32 bytes.
        count: How many words of each.
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
        """Return a step's words as signed numbers, (count,): they stand until the next call."""
        self._counters[:, 0] = _check_step(step)
        self._encryptor.update_into(self._given, self._written)
        return self._words


class _BitGenFunctions(ctypes.Structure):
    """What numpy calls bitgen_t."""

    _fields_ = (
        ("state", ctypes.c_void_p),
        ("next_uint64", _Uint64Function),
        ("next_uint32", _Uint32Function),
        ("next_double", _DoubleFunction),
        ("next_raw", _Uint64Function),
    )


class CipherBits:
    """A source of random bits for `numpy.random.Generator`: every law that it draws, from AES.

    numpy takes whatever hands it four C functions in a capsule (its "BitGenerator" interface). Each
    call of one goes through Python, about a third of a microsecond: fit for batches and coins.

    Args:
        words: Where they come from; used for nothing else.
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
    """Uniform whole numbers without rounding, from 64-bit words.

    Args:
        words: From a count to so many words.
    """

    __slots__ = ("_words",)

    def __init__(self, words: Callable[[int], np.ndarray[Any, Any]]):
        self._words = words

    def below(self, bound: int) -> int:
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

    Guarantee: never copied or pickled; `reproducible` is True if and only if it came from a seed,
    and then the noise can be computed by anyone who knows the seed: not private.

    Args:
        secure: Whether batches and coins come from the cipher, as noise does.
    """

    __slots__ = ("_master", "_path", "reproducible", "secure")

    def __init__(self, *, secure: bool = False) -> None:
        self._master: bytes | None = secrets.token_bytes(32)
        self._path: Path | None = None
        self.reproducible = False
        self.secure = secure

    @classmethod
    def from_seed(cls, seed: int, *, secure: bool = False) -> Keys:
        """Return keys that a seed determines: for tests and benchmarks only."""
        keys = cls(secure=secure)
        keys._master = _mac(b"pasearch: reproducible, not private", _encode_element(seed))
        keys.reproducible = True
        return keys

    def stream(self, *context: str | int) -> Stream:
        """Return the randomness of one purpose, such as `stream("trial", 3)`.

        Raises:
            UsageError: No context, or an element that is neither text nor a whole number.
            RuntimeError: The keys were destroyed.
        """
        if self._master is None:
            raise RuntimeError("The run's keys are destroyed: nothing more can be drawn from them.")
        if not context:
            raise UsageError("a stream needs a context, such as ('trial', 3): name its purpose.")
        return Stream(self._master, self.secure).child(*context)

    def save(
        self, path: str | os.PathLike[str], fingerprint: str, parts: Mapping[str, str] | None = None
    ) -> None:
        """Store the keys for a resume: a new file, mode 0600, durable at return.

        Guarantee: the file appears with its whole content, or not at all.

        Args:
            path: Where; it must not exist.
            fingerprint: Hash of everything the run's releases depend on: data, plan, code,
                versions, device.
            parts: Hashes of its parts, by what they are called: so that a refusal can name them.

        Raises:
            UsageError: The file exists.
            RuntimeError: The keys were destroyed.
        """
        if self._master is None:
            raise RuntimeError("The run's keys are destroyed: there is nothing to save.")
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
        # The run's ledger is locked by now, so no other process can make the file in between.
        if os.path.lexists(path):
            raise UsageError(f"{path} exists: keys are never replaced. Resume that run.")
        atomic_write(path, json.dumps(content))
        self._path = path

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], fingerprint: str, parts: Mapping[str, str] | None = None,
        *, secure: bool = False,
    ) -> Keys:  # fmt: skip
        """Take up the keys of an interrupted run, if every input is what it was.

        Guarantee: keys never meet an input other than the one they were made for. If the
        fingerprint differs they are destroyed, durably, before this returns.

        Raises:
            UsageError: No keys there (the run ended, or never started), or not a file of keys.
            BudgetError: The fingerprint differs.
        """
        path = Path(path).absolute()
        if not os.path.lexists(path):
            raise UsageError(
                f"{path} is missing: the run is finished, or never started. Start a new run."
            )
        keys = cls(secure=secure)
        keys._path = path
        try:
            content = read_json(path, follow=False)
            keys._master = bytes.fromhex(content["master"])
            keys.reproducible = content["reproducible"]
            bound, kept = content["bound"], content.get("parts") or {}
        except (UsageError, ValueError, KeyError, TypeError):
            raise UsageError(f"{path} is not a file of keys: start a new run.") from None
        sound = len(keys._master) == 32 and type(keys.reproducible) is bool
        if not sound or (type(bound), type(kept), content.get("version")) != (str, dict, VERSION):
            raise UsageError(f"{path} is not a file of keys of this version: start a new run.")
        if not hmac.compare_digest(bound, _bind_fingerprint(keys._master, fingerprint)):
            other = [
                name
                for name, each in (parts or {}).items()
                if kept and kept.get(name) != _bind_fingerprint(keys._master, each)
            ]
            keys.destroy()
            # The fingerprint is a function of the records: not a digit of it may be shown.
            raise BudgetError(
                f"Not as when the run began: {', '.join(other) or ALL_BOUND_INPUTS}. The same "
                "noise on "
                f"another input would cancel, so its keys are now destroyed ({path}). What the run "
                "has spent stays spent: start a new run, with a budget of its own."
            )
        return keys

    def destroy(self) -> None:
        """Forget the master key, and overwrite and remove its file; again is harmless.

        Streams that were handed out still work. Overwriting is durable on the file, but a disk or
        file system that writes elsewhere (flash, copy on write, backups) may keep the old blocks.
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
                f"{self._path} cannot be destroyed ({error.strerror}): it is no file of keys, or "
                "not yours. Remove it by hand, and then resume."
            ) from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(os.fstat(file.fileno()).st_size))
            file.flush()
            os.fsync(file.fileno())
        self._path.unlink()
        sync_folder(self._path.parent)

    @classmethod
    def forget(cls, path: str | os.PathLike[str]) -> None:
        """Overwrite and remove stored keys without using them; none there is harmless."""
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
    """Return what ties keys to their inputs; without the master key it tells nothing of them."""
    return _mac(master, b"f" + fingerprint.encode()).hex()


def _encode_element(element: object) -> bytes:
    """Encode one element of a context; the first byte is its type, and purposes start with p."""
    if isinstance(element, str):
        return b"s" + element.encode("utf-8", "surrogatepass")
    if isinstance(element, Integral) and not isinstance(element, bool):
        return b"i" + str(int(element)).encode()
    raise UsageError(
        f"a stream's context has an element of type {type(element).__name__}: expected text or a "
        "whole number."
    )


def _check_step(step: object) -> int:
    if type(step) is int and 0 <= step < 2**64:  # nearly always, and quickly told
        return step
    if isinstance(step, bool) or not isinstance(step, Integral) or not 0 <= int(step) < 2**64:
        raise UsageError(f"step is {step!r}: expected a whole number in [0, 2^64).")
    return int(step)


def to_int64(number: int) -> int:
    """Convert an integer of 64 bits to the int64 with the same bits."""
    return number - 2**64 if number >= 2**63 else number
