"""Signatures that show who published a `result.json` (ed25519).

    release/result.sig      the signature of result.json, and the public key that verifies it

`result.json` contains the hashes of all other files of `release/`, so one signature covers all of
them. The key in `result.sig` does not show who signed. A reader knows the signer only by comparing
it with a public key that he got from the signer.

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
from typing import Any, Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from pasearch.errors import UsageError
from pasearch.results import find_release
from pasearch.runs.folder import atomic_write, sync_folder

SIGNATURE_FILE = "result.sig"  # name of the file with the signature
SIGNATURE_HEADER = "pasearch signature 1, ed25519"  # first line of this file

MAX_KEY_BYTES = 100_000  # maximum number of bytes that are read of a key or a signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Content of `result.sig`.

    Args:
        key: Public key, 32 bytes.
        value: Signature, 64 bytes.
    """

    key: bytes
    value: bytes

    def text(self) -> str:
        """Format the content of the file."""
        key, value = (base64.b64encode(each).decode() for each in (self.key, self.value))
        return f"{SIGNATURE_HEADER}\npublic key: {key}\nsignature: {value}\n"

    @classmethod
    def read(cls, text: str) -> Signature | None:
        """Parse the content of the file; None if it is not in this format."""
        lines = text.splitlines()
        fields = [line.partition(": ") for line in lines[1:]]
        names = [name for name, _, _ in fields]
        if lines[:1] != [SIGNATURE_HEADER] or names != ["public key", "signature"]:
            return None
        try:
            key, value = (base64.b64decode(each, validate=True) for _, _, each in fields)
        except (binascii.Error, ValueError):
            return None
        found = cls(key=key, value=value)
        return found if len(key) == 32 and len(value) == 64 and found.text() == text else None

    @property
    def fingerprint(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the public key."""
        return hashlib.sha256(self.key).hexdigest()[:16]

    def is_valid(self, content: bytes) -> bool:
        """Check whether this is a signature of the content with the contained key."""
        try:
            Ed25519PublicKey.from_public_bytes(self.key).verify(self.value, content)
        except (InvalidSignature, ValueError):
            return False
        return True


def create_key_pair(path: str | Path) -> Path:
    """Create a private key and its public key, each in a new PEM file.

    Args:
        path: Path of the new file with the private key, which gets mode 0600. The public key is
            written to the same path with the suffix .pub.

    Returns:
        Path of the public key.

    Raises:
        UsageError: One of the files exists, or cannot be written.
    """
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


def read_private_key(path: str | Path) -> Ed25519PrivateKey:
    """Read the private key in a PEM file.

    Raises:
        UsageError: The file is missing, or is not an ed25519 private key without a passphrase.
    """
    return _read_key(path, "private")


def read_public_key(path: str | Path) -> Ed25519PublicKey:
    """Read the public key in a PEM file.

    Raises:
        UsageError: The file is missing, or is not an ed25519 public key.
    """
    return _read_key(path, "public")


def _read_key(path: str | Path, half: Literal["private", "public"]) -> Any:
    """Read the private or the public key in a PEM file."""
    of_signer = half == "public"
    expected = (
        "expected the signer's public key, as `pasearch key` writes it"
        if of_signer
        else "expected a file that `pasearch key` or `openssl genpkey -algorithm ed25519` wrote, "
        "without a passphrase"
    )
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UsageError(f"{path} is not a file: expected a {half} key in PEM format.")
        with open(path, "rb") as stream:
            content = stream.read(MAX_KEY_BYTES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no such name"
        raise UsageError(
            f"{path} cannot be read ({why}): expected a {half} key in PEM format."
        ) from None
    try:
        key: Any = (
            form.load_pem_public_key(content)
            if of_signer
            else form.load_pem_private_key(content, password=None)
        )
    except TypeError:
        raise UsageError(f"{path} has a passphrase, which is not supported: {expected}.") from None
    except (ValueError, UnsupportedAlgorithm):
        other = "private" if of_signer else "public"
        found = f"{other.upper()} KEY".encode() in content
        what = f"a {other} key" if found else f"no {half} key in PEM format"
        raise UsageError(f"{path} contains {what}: {expected}.") from None
    if not isinstance(key, Ed25519PublicKey if of_signer else Ed25519PrivateKey):
        raise UsageError(f"{path} contains a {half} key of another kind: {expected}.")
    return key


def sign(path: str | Path, key: Ed25519PrivateKey) -> Path:
    """Sign the `result.json` of a finished run, and write the signature to `result.sig`.

    A previous signature with the same key is replaced. The file gets the modification time of
    `result.json`, so that the time reveals nothing about the run.

    Args:
        path: Folder of the run, or its `release/` folder.
        key: Private key of the signer.

    Returns:
        Path of `result.sig`.

    Raises:
        UsageError: There is no result, another key has signed it, or the folder is read-only.
    """
    release = find_release(path)
    file, target = release / "result.json", release / SIGNATURE_FILE
    known = key.public_key().public_bytes_raw()
    before = read_signature(release)
    if before is not None and before.key != known:
        raise UsageError(
            f"{target} has another signer's key: remove the file to replace it by your signature."
        )
    signature = Signature(key=known, value=key.sign(file.read_bytes()))
    time = file.stat().st_mtime
    try:
        atomic_write(target, signature.text(), mode=0o644)
    except OSError as error:
        raise UsageError(f"{release} cannot be written to ({error.strerror}).") from None
    for each in (target, release):
        os.utime(each, (time, time))
    sync_folder(release)
    return target


def read_signature(release: Path) -> Signature | None:
    """Read the signature in a `release/` folder; None if there is none.

    Raises:
        UsageError: The file does not contain a signature.
    """
    file = release / SIGNATURE_FILE
    if not os.path.lexists(file):
        return None
    if file.is_symlink() or not file.is_file():
        raise UsageError(f"{SIGNATURE_FILE} is not a regular file.")
    with file.open("rb") as stream:
        content = stream.read(MAX_KEY_BYTES)
    found = Signature.read(content.decode("ascii", errors="replace"))
    if found is None:
        raise UsageError(
            f"{SIGNATURE_FILE} does not contain a signature in the format of pasearch."
        )
    return found


def list_signature_problems(
    release: Path, signer: Ed25519PublicKey | None, content: bytes
) -> list[str]:
    """List the problems with the signature of a release, one sentence each.

    Args:
        release: Folder with `result.json`.
        signer: Public key of the required signature; None accepts any valid signature, or none.
        content: Content of `result.json` that all other checks used.
    """
    try:
        found = read_signature(release)
    except UsageError as error:
        return [str(error)]
    if found is None:
        return [] if signer is None else [f"{SIGNATURE_FILE} is missing: the result is not signed."]
    problems = []
    if signer is not None and signer.public_bytes_raw() != found.key:
        problems.append(
            f"{SIGNATURE_FILE} has another key ({found.fingerprint}) than the given one."
        )
    if not found.is_valid(content):
        problems.append(f"{SIGNATURE_FILE} is not the signature of this result.json.")
    return problems


def describe_signature(release: Path, *, trusted: bool) -> str:
    """Describe the signature of a release that has passed `list_signature_problems`.

    Args:
        release: Folder with `result.json`.
        trusted: Whether the signer's public key was given.
    """
    found = read_signature(release)
    if found is None:
        return (
            "Not signed: these checks show consistency, not authenticity; forged files would also "
            "pass. Ask for a signed result (`pasearch sign`) and the signer's public key."
        )
    if trusted:
        return f"Signed with the given key ({found.fingerprint})."
    return (
        f"Signed with key {found.fingerprint}, whose owner is unknown: a forger can sign, too. "
        "Give the signer's public key (`public_key=`)."
    )
