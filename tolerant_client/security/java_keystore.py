"""Reads Java's own keystore format, JKS, without a JVM.

Laws:
- With a password, the file's digest is checked before any entry is used.
- Nothing is read beyond the end of the file: each length is checked against the bytes that are left.

Wire facts: sun.security.provider.JavaKeyStore (layout, digest) and KeyProtector (private keys) of OpenJDK.
PKCS12 is read by `cryptography`; keytool writes it by default since Java 9, whatever the file name.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from typing import Final

MAGIC: Final = b"\xfe\xed\xfe\xed"

_KEY_ENTRY: Final = 1
_CERTIFICATE_ENTRY: Final = 2
_DIGEST_SIZE: Final = 20
_DIGEST_SALT: Final = b"Mighty Aphrodite"
# AlgorithmIdentifier of KeyProtector: 1.3.6.1.4.1.42.2.17.1.1, in DER.
_PROTECTOR_OID: Final = bytes.fromhex("060a2b060104012a02110101")


class KeystoreError(ValueError):
    """A keystore is damaged, or its password is wrong."""


@dataclass(frozen=True)
class KeyEntry:
    """A private key, still encrypted, and its certificate chain in DER, the key's own certificate first."""

    alias: str
    protected: bytes = field(repr=False)
    chain: tuple[bytes, ...]


@dataclass(frozen=True)
class JavaKeystore:
    """The content of a JKS file: private keys, and trusted certificates (DER)."""

    keys: tuple[KeyEntry, ...]
    certificates: tuple[bytes, ...]


def read_java_keystore(data: bytes, password: str | None) -> JavaKeystore:
    """The entries of a JKS file; its digest is checked if a password is given.

    Raises KeystoreError.
    """
    if password is not None:
        digest = hashlib.sha1(_utf16(password) + _DIGEST_SALT + data[:-_DIGEST_SIZE]).digest()
        if not hmac.compare_digest(digest, data[-_DIGEST_SIZE:]):
            raise KeystoreError("its password is wrong, or the file is damaged")
    reader = _Reader(data[:-_DIGEST_SIZE])
    magic, version, count = reader.take(4), reader.number(), reader.number()
    if magic != MAGIC or version not in (1, 2):
        raise KeystoreError(f"it is not a JKS file of version 1 or 2 (version {version})")
    keys: list[KeyEntry] = []
    certificates: list[bytes] = []
    for _ in range(count):
        tag, alias, _created = reader.number(), reader.text(), reader.take(8)
        if tag == _KEY_ENTRY:
            protected = reader.take(reader.number())
            keys.append(
                KeyEntry(alias, protected, tuple(_certificate(reader, version) for _ in range(reader.number())))
            )
        elif tag == _CERTIFICATE_ENTRY:
            certificates.append(_certificate(reader, version))
        else:
            raise KeystoreError(f"it has an entry of unknown kind {tag}")
    return JavaKeystore(tuple(keys), tuple(certificates))


def open_private_key(protected: bytes, password: str) -> bytes:
    """The PKCS8 DER of a protected key; raises KeystoreError if the password is wrong."""
    outer = _Reader(protected).element(0x30)
    body = _Reader(outer)
    if not body.element(0x30).startswith(_PROTECTOR_OID):
        raise KeystoreError("its private key is encrypted with an unknown algorithm")
    secret = body.element(0x04)
    salt, encrypted, check = secret[:_DIGEST_SIZE], secret[_DIGEST_SIZE:-_DIGEST_SIZE], secret[-_DIGEST_SIZE:]
    key = _utf16(password)
    stream = bytearray()
    block = salt
    while len(stream) < len(encrypted):
        block = hashlib.sha1(key + block).digest()
        stream += block
    plain = bytes(a ^ b for a, b in zip(encrypted, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(key + plain).digest(), check):
        raise KeystoreError("the password of its private key is wrong")
    return plain


def _certificate(reader: _Reader, version: int) -> bytes:
    if version == 2:
        kind = reader.text()
        if kind != "X.509":
            raise KeystoreError(f"it has a certificate of type {kind!r}, not X.509")
    return reader.take(reader.number())


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be")


class _Reader:
    """A read position over bytes; raises KeystoreError at their end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        taken = self._data[self._position : self._position + size]
        if len(taken) != size:
            raise KeystoreError("it ends in the middle of an entry")
        self._position += size
        return taken

    def number(self) -> int:
        value: int = struct.unpack(">I", self.take(4))[0]
        return value

    def text(self) -> str:
        size: int = struct.unpack(">H", self.take(2))[0]
        return self.take(size).decode("utf-8", "replace")

    def element(self, tag: int) -> bytes:
        """The content of the next DER element, which must have `tag`."""
        found, length = self.take(1)[0], self.take(1)[0]
        if found != tag:
            raise KeystoreError("its private key is not encoded as expected")
        if length & 0x80:
            length = int.from_bytes(self.take(length & 0x7F), "big")
        return self.take(length)
