"""Secret randomness: one 256-bit master key from the operating system, and a key for each purpose.

    secret(c_1, ..., c_m) = HMAC(... HMAC(HMAC(master, c_1), c_2) ..., c_m)        HMAC-SHA256
    words       AES-256 in counter mode; key = HMAC(secret, purpose), counter = (step, 0)
    generator   Philox; key = first 128 bits of HMAC(secret, purpose); counter = (0, 0, 0, step)

c_1, ..., c_m is the context of a stream, such as ("trial", 3, "noise"). Noise is computed from
words. Other random values (batches, candidates, Bernoulli draws) come from the generator; in a
secure stream, the generator uses words as well. Every element of a context is one HMAC message,
tagged with its type, so two contexts never share a key unless SHA-256 is broken. The step is the
highest part of the counter: one step would have to use 2^64 blocks of AES, or 2^192 of Philox, to
reach the next. There is no state, so a resumed run draws the same values again. Therefore the
stored master key is bound to a hash of all inputs (their fingerprint).

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
"""List of all inputs to which keys are bound, for an error that cannot name the changed input."""

VERSION = 1  # of the key file
BLOCK_WORDS = 256
"""Number of words that `CipherBits` takes from the cipher at once."""

_Uint64Function = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)
_Uint32Function = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)
_DoubleFunction = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)
_capsule: Any = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_ZEROS = memoryview(bytes(2**18))  # the encryption of zeros is the key stream


@dataclass(frozen=True, slots=True)
class Stream:
    """Source of the random numbers of one purpose. It has no state: equal calls give equal numbers.

    Guarantee: streams of different contexts, and different steps of a stream, are independent (if
    HMAC-SHA256, AES and Philox are pseudo-random). A stream does not reveal the master key.

    Cost: none. But a step of a stream may be used with one private input only: use a separate
        stream for each release.
    """

    _secret: bytes = field(repr=False)
    secure: bool = False
    """Whether AES is used for batches and Bernoulli draws as well as for noise."""

    def child(self, *context: str | int) -> Stream:
        """Derive the stream of a longer context; `a.child(x, y)` equals `a.child(x).child(y)`.

        Raises:
            UsageError: An element is neither a string nor an integer.
        """
        secret = self._secret
        for element in context:
            secret = _hmac(secret, _encode_element(element))
        return Stream(secret, self.secure)

    def random_words(self, step: int = 0, first: int = 0) -> RandomWords:
        """Make the source of a step's words, starting at the word with the even index `first`."""
        return self._words(b"words", step, first)

    def generator(self, step: int = 0) -> np.random.Generator:
        """Make a NumPy generator (Philox) with this stream's key and the counter of a step.

        The generator of a secure stream uses AES instead; it takes about 350 ns per number.
        """
        if self.secure:
            return np.random.Generator(CipherBits(self._words(b"generator", step)))  # pyright: ignore[reportArgumentType]
        return np.random.Generator(self._philox(b"generator", step))

    def make_generator_function(self) -> Callable[[int], np.random.Generator]:
        """Make a faster replacement of `generator`, for many steps.

        The function returns the same generator object for every step, with the counter of the step,
        in a fifteenth of the time. So a generator is valid until the next call.
        """
        if self.secure:
            return self.generator
        source = self._philox(b"generator", 0)
        state, made = source.state, np.random.Generator(source)

        def set_step(step: int) -> np.random.Generator:
            state["state"]["counter"][3] = _check_step(step)
            source.state = state
            return made

        return set_step

    def integers(self, step: int = 0) -> ExactIntegers:
        """Make a source of exactly uniform integers, independent of `generator`."""
        if self.secure:
            return ExactIntegers(self._words(b"integers", step).take)
        return ExactIntegers(self._philox(b"integers", step).random_raw)

    def uniform(self) -> float:
        """Draw a uniform number in (0, 1), an odd multiple of 2^-53; never 0 or 1."""
        return (int(self.generator().integers(2**52)) + 0.5) / 2.0**52

    def seed64(self, step: int = 0) -> int:
        """Derive a 64-bit integer, for a random name or the seed of another generator."""
        return int.from_bytes(self._derive_bytes(b"cuda", step)[:8], "big")

    def seed_and_offset(self, step: int = 0) -> tuple[int, int]:
        """Derive the arguments of CUDA's generator: a 64-bit key, and an offset of its counter.

        The offset is a multiple of 4 below 2^63.
        """
        drawn = self._derive_bytes(b"cuda", step)
        return int.from_bytes(drawn[:8], "big"), int.from_bytes(drawn[8:16], "big") >> 3 << 2

    def first_words(self, count: int) -> FirstRandomWords:
        """Make a faster replacement of `random_words`: the first `count` words of many steps."""
        return FirstRandomWords(_hmac(self._secret, b"pwords"), count)

    def _derive_bytes(self, purpose: bytes, step: int) -> bytes:
        """Derive 32 bytes for a purpose and a step."""
        return _hmac(self._secret, b"p" + purpose + _check_step(step).to_bytes(8, "big"))

    def _words(self, purpose: bytes, step: int, first: int = 0) -> RandomWords:
        """Make the source of words for a purpose and a step."""
        return RandomWords(_hmac(self._secret, b"p" + purpose), _check_step(step), first)

    def _philox(self, purpose: bytes, step: int) -> np.random.Philox:
        """Make the Philox bit generator for a purpose and a step."""
        key = int.from_bytes(_hmac(self._secret, b"p" + purpose)[:16], "big")
        # The counter is one integer, because NumPy converts a list with numbers >= 2^63 to float64.
        return np.random.Philox(key=key, counter=_check_step(step) << 192)


class RandomWords:
    """Sequence of random 64-bit words: the key stream of AES-256 in counter mode.

    Args:
        key: AES key, 32 bytes.
        step: Upper half of the counter, in [0, 2^64).
        first: Index of the first word that `take` returns; even.
    """

    __slots__ = ("_buffer", "_encryptor", "_first", "_key", "_step")

    def __init__(self, key: bytes, step: int, first: int = 0):
        assert first % 2 == 0, "the cipher returns two words at a time"
        self._key, self._step, self._first = key, step, first
        self._encryptor: Any = None  # created when needed: it takes as long as a thousand words
        self._buffer = bytearray()

    def take(
        self, count: int, buffer: bytearray | None = None
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Get the next words as int64, (count,); the next call overwrites them.

        Args:
            count: Number of words.
            buffer: Buffer of at least 8 count + 15 bytes for the words. None: a buffer of this
                object.
        """
        size = 8 * count
        if self._encryptor is None:
            counter = self._step.to_bytes(8, "big") + (self._first // 2).to_bytes(8, "big")
            self._encryptor = Cipher(algorithms.AES256(self._key), modes.CTR(counter)).encryptor()
        if buffer is None:
            if len(self._buffer) < size + 15:  # `update_into` requires 15 further bytes
                self._buffer = bytearray(size + 15)
            buffer = self._buffer
        zeros = _ZEROS[:size] if size <= len(_ZEROS) else bytes(size)
        self._encryptor.update_into(zeros, buffer)
        return np.frombuffer(buffer, dtype="<i8", count=count)

    def at(self, places: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Get the words of a step with the given indices, in any order; index 0 is its first."""
        counters = np.empty((len(places), 2), dtype=">u8")
        counters[:, 0], counters[:, 1] = self._step, places >> 1
        cipher = Cipher(algorithms.AES256(self._key), modes.ECB()).encryptor()  # of counters
        words = np.frombuffer(cipher.update(counters.tobytes()), dtype="<i8").reshape(-1, 2)
        return words[np.arange(len(places)), (places & 1).astype(np.intp)]


class FirstRandomWords:
    """First words of many steps of a stream; the cipher is initialised once, not for each step.

    Args:
        key: AES key, 32 bytes.
        count: Number of words per step.
    """

    __slots__ = ("_counters", "_encryptor", "_given", "_words", "_written")

    def __init__(self, key: bytes, count: int):
        self._counters = np.zeros((-(-count // 2), 2), dtype=">u8")
        self._counters[:, 1] = np.arange(len(self._counters))
        self._given = self._counters.data.cast("B")
        self._written = bytearray(16 * len(self._counters) + 15)  # `update_into` requires 15 more
        self._words = np.frombuffer(self._written, dtype="<i8", count=count)
        self._encryptor = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()  # of counters

    def at(self, step: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Get the words of a step as int64, (count,); the next call overwrites them."""
        self._counters[:, 0] = _check_step(step)
        self._encryptor.update_into(self._given, self._written)
        return self._words


class _BitGenFunctions(ctypes.Structure):
    """C structure `bitgen_t` of NumPy: the functions of a bit generator."""

    _fields_ = (
        ("state", ctypes.c_void_p),
        ("next_uint64", _Uint64Function),
        ("next_uint32", _Uint32Function),
        ("next_double", _DoubleFunction),
        ("next_raw", _Uint64Function),
    )


class CipherBits:
    """Bit generator for `numpy.random.Generator` whose random bits come from AES.

    NumPy accepts any object with a capsule of C functions (its "BitGenerator" interface). Each call
    runs Python code and takes about 0.3 microseconds, which is fast enough for batches.

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
    """Source of exactly uniform integers.

    Args:
        words: Function from a count to as many random 64-bit words.
    """

    __slots__ = ("_words",)

    def __init__(self, words: Callable[[int], np.ndarray[Any, Any]]):
        self._words = words

    def draw_below(self, bound: int) -> int:
        """Draw a uniform integer in [0, bound), bound >= 1, exactly, by rejection sampling."""
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
    """Master key of a run: 256 bits from the operating system.

    Guarantee: the object cannot be copied or pickled. `reproducible` is True if and only if the key
        comes from a seed. Then anybody who knows the seed can compute the noise, so the run is not
        private.

    Args:
        secure: Whether AES is used for batches and Bernoulli draws as well as for noise.
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
        keys._master = _hmac(b"pasearch: reproducible, not private", _encode_element(seed))
        keys.reproducible = True
        return keys

    def stream(self, *context: str | int) -> Stream:
        """Derive the random stream of one purpose, such as `stream("trial", 3)`.

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
        """Save the master key in a new file with mode 0600, so that the run can be resumed.

        Guarantee: the file is created with its whole content, or not at all. It is on disk when
            this returns.

        Args:
            path: Path of the file, which must not exist.
            fingerprint: Hash of all inputs on which the run's releases depend: data, plan, code,
                versions, device.
            parts: Hash of each kind of input, by its name, so that an error can name the changed
                input.

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
        """Load the master key of an interrupted run, if all inputs are unchanged.

        Guarantee: a key is never used with other inputs than those for which it was saved. If the
            fingerprint differs, the file is destroyed durably before this raises the error.

        Args:
            path: Path of the file.
            fingerprint: Hash of all inputs, as for `save`.
            parts: Hash of each kind of input, as for `save`.
            secure: Whether AES is used for batches and Bernoulli draws as well as for noise.

        Raises:
            UsageError: The file is missing (the run has ended or has not started) or malformed.
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
            # The fingerprint is a hash of private records, so the message must not contain it.
            raise BudgetError(
                f"Not as when the run began: {', '.join(other) or ALL_BOUND_INPUTS}. The same "
                f"noise on another input would cancel, so its keys are now destroyed ({path}). "
                "What the run has spent stays spent: start a new run, with a budget of its own."
            )
        return keys

    def destroy(self) -> None:
        """Delete the master key from memory; overwrite and delete its file. May be repeated.

        Streams that were derived earlier still work. The file is overwritten durably. But flash
        disks, copy-on-write file systems and backups may keep old blocks.
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
        """Overwrite and delete a key file without loading it; a missing file is no error."""
        keys = cls()
        keys._path = Path(path).absolute()
        keys.destroy()

    def __repr__(self) -> str:
        return f"Keys(reproducible={self.reproducible}, destroyed={self._master is None})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("Keys are never copied or pickled: hand a worker its own `stream`.")


def _hmac(key: bytes, message: bytes) -> bytes:
    """Compute HMAC-SHA256, 32 bytes."""
    return hmac.digest(key, message, "sha256")


def _bind_fingerprint(master: bytes, fingerprint: str) -> str:
    """Compute the HMAC of a fingerprint; without the key it reveals nothing about the inputs."""
    return _hmac(master, b"f" + fingerprint.encode()).hex()


def _encode_element(element: object) -> bytes:
    """Encode an element of a context; the first byte is its type (s, i), never p as in purposes."""
    if isinstance(element, str):
        return b"s" + element.encode("utf-8", "surrogatepass")
    if isinstance(element, Integral) and not isinstance(element, bool):
        return b"i" + str(int(element)).encode()
    raise UsageError(
        f"a stream's context has an element of type {type(element).__name__}: expected a string "
        "or an integer."
    )


def _check_step(step: object) -> int:
    """Check that a step is an integer in [0, 2^64), and return it."""
    if type(step) is int and 0 <= step < 2**64:  # the common case, checked quickly
        return step
    if isinstance(step, bool) or not isinstance(step, Integral) or not 0 <= int(step) < 2**64:
        raise UsageError(f"step is {step!r}: expected an integer in [0, 2^64).")
    return int(step)


def to_int64(number: int) -> int:
    """Convert an integer in [0, 2^64) to the int64 with the same bits."""
    return number - 2**64 if number >= 2**63 else number
