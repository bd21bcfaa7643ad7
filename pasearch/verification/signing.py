"""Signatures: who says that a `result.json` is theirs (ed25519).

    release/result.sig      the signature of result.json, and the public key that it fits

`result.json` holds the digests of all other files of `release/`, so one signature covers them all.
The key in `result.sig` shows that the two fit; whose key it is, only the reader can know, who has
the signer's public key from somewhere else.

Source: RFC 8032 (ed25519), by the package `cryptography`; docs/verify.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pasearch.errors import UsageError
from pasearch.results import release_of
from pasearch.runs.folder import atomic_write, sync_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

NAME = "result.sig"
HEAD = "pasearch signature 1, ed25519"

MAX_BYTES = 100_000
"""Bytes of a key or a signature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What `result.sig` holds.

    Args:
        key: The public key that it was made with, 32 bytes.
        value: The signature, 64 bytes.
    """

    key: bytes
    value: bytes

    def text(self) -> str:
        """Return the file's content."""
        key, value = (base64.b64encode(each).decode() for each in (self.key, self.value))
        return f"{HEAD}\npublic key: {key}\nsignature: {value}\n"

    @classmethod
    def read(cls, text: str) -> Signature | None:
        """Read what `text` wrote; None if it is something else."""
        lines = text.splitlines()
        fields = [line.partition(": ") for line in lines[1:]]
        if lines[:1] != [HEAD] or [name for name, _, _ in fields] != ["public key", "signature"]:
            return None
        try:
            key, value = (base64.b64decode(each, validate=True) for _, _, each in fields)
        except (binascii.Error, ValueError):
            return None
        found = cls(key=key, value=value)
        return found if len(key) == 32 and len(value) == 64 and found.text() == text else None

    @property
    def fingerprint(self) -> str:
        """A short name of the key."""
        return hashlib.sha256(self.key).hexdigest()[:16]

    def fits(self, content: bytes) -> bool:
        """Return whether it is the signature of this content with its own key."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.key).verify(self.value, content)
        except (InvalidSignature, ValueError):
            return False
        return True


def new_key(path: str | Path) -> Path:
    """Write a new private key (mode 0600), and beside it its public key, PATH.pub; return that.

    Raises:
        UsageError: One exists, or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, public = Path(path), Path(f"{path}.pub")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    known = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    for file in (private, public):
        if os.path.lexists(file):
            raise UsageError(f"{file} exists: name a new file for the key.")
    for file, content, mode in ((private, secret, 0o600), (public, known, 0o644)):
        try:
            opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except OSError as error:
            raise UsageError(
                f"{file} cannot be written ({error.strerror}): name another."
            ) from None
        with os.fdopen(opened, "wb") as stream:
            stream.write(content)
    return public


def private_key(path: str | Path) -> Ed25519PrivateKey:
    """Read the private key in a PEM file.

    Raises:
        UsageError: No such file, no private key, one with a passphrase, or not ed25519.
    """
    return _read_key(path, "private")


def public_key(path: str | Path) -> Ed25519PublicKey:
    """Read the public key in a PEM file.

    Raises:
        UsageError: No such file, no public key, or not ed25519.
    """
    return _read_key(path, "public")


def _read_key(path: str | Path, half: Literal["private", "public"]) -> Any:
    """Read one half of a pair of keys, or report the content of the file instead."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ed25519

    of_signer = half == "public"
    kind = ed25519.Ed25519PublicKey if of_signer else ed25519.Ed25519PrivateKey
    expected = (
        "expected the signer's public key, as `pasearch key` writes it"
        if of_signer
        else "expected a file that `pasearch key` or `openssl genpkey -algorithm ed25519` wrote, "
        "without a passphrase"
    )
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UsageError(f"{path} is no file: expected a {half} key, in PEM form.")
        with open(path, "rb") as stream:
            content = stream.read(MAX_BYTES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no such name"
        raise UsageError(
            f"{path} cannot be read ({why}): expected a {half} key, in PEM form."
        ) from None
    try:
        key: Any = (
            form.load_pem_public_key(content)
            if of_signer
            else form.load_pem_private_key(content, password=None)
        )
    except TypeError:
        raise UsageError(
            f"{path} has a passphrase, which cannot be asked for: {expected}."
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        other = "private" if of_signer else "public"
        found = f"{other.upper()} KEY".encode() in content
        what = f"a {other} key" if found else f"no {half} key in PEM form"
        raise UsageError(f"{path} holds {what}: {expected}.") from None
    if not isinstance(key, kind):
        raise UsageError(f"{path} holds a {half} key of another kind: {expected}.")
    return key


def sign(path: str | Path, key: Ed25519PrivateKey) -> Path:
    """Write `result.sig` beside a finished run's `result.json`, in place of one that is there.

    The path is the run's folder, or its `release/` folder; returned is that of `result.sig`, whose
    time is that of `result.json`, so that it tells nothing of the run.

    Raises:
        UsageError: No result is there, another signer's signature is, or the folder cannot be
            written to.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    release = release_of(path)
    file = release / "result.json"
    known = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    before = signature_of(release)
    if before is not None and before.key != known:
        raise UsageError(
            f"{release / NAME} is another signer's: expected none, or one of this key. Remove the "
            "file if yours shall take its place."
        )
    signature = Signature(key=known, value=key.sign(file.read_bytes()))
    target, times = release / NAME, file.stat().st_mtime
    try:
        atomic_write(target, signature.text(), mode=0o644)
    except OSError as error:
        raise UsageError(f"{release} cannot be written to ({error.strerror}).") from None
    for each in (target, release):
        os.utime(each, (times, times))
    sync_folder(release)
    return target


def signature_of(release: Path) -> Signature | None:
    """Return what `result.sig` holds; None if there is none.

    Raises:
        UsageError: It is no signature.
    """
    file = release / NAME
    if not os.path.lexists(file):
        return None
    if file.is_symlink() or not file.is_file():
        raise UsageError(f"{NAME} is no plain file.")
    with file.open("rb") as stream:
        content = stream.read(MAX_BYTES)
    found = Signature.read(content.decode("ascii", errors="replace"))
    if found is None:
        raise UsageError(f"{NAME} holds no signature of this form.")
    return found


def problems_of(release: Path, signer: Ed25519PublicKey | None, content: bytes) -> list[str]:
    """Return what is wrong with a release's signature, one sentence each.

    It must be of the signer; None asks only that one that is there fits. The content is that of
    `result.json`, as it was read for all other checks.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    try:
        found = signature_of(release)
    except UsageError as error:
        return [str(error)]
    if found is None:
        return [] if signer is None else [f"{NAME} is missing: the result is not signed."]
    problems = []
    if signer is not None and signer.public_bytes(Encoding.Raw, PublicFormat.Raw) != found.key:
        problems.append(f"{NAME} is of another key ({found.fingerprint}) than the one given.")
    if not found.fits(content):
        problems.append(f"{NAME} is not the signature of this result.json.")
    return problems


def signed_words(release: Path, *, trusted: bool) -> str:
    """Return what a release's signature tells, of one that has no problem.

    The release is the folder with `result.json`; trusted: the signer's public key was given.
    """
    found = signature_of(release)
    if found is None:
        return (
            "Not signed: somebody who invents the numbers, and makes all files from them, passes "
            "these checks too. Ask for a signed result (`pasearch sign`), and for the signer's "
            "public key."
        )
    if trusted:
        return f"Signed with the key that you gave ({found.fingerprint})."
    return (
        f"Signed by key {found.fingerprint}, whoever has it: a forger signs too. Give the signer's "
        "public key (`public_key=`)."
    )
