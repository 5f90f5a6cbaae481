"""Reads Java key stores (JKS), the default format of keytool before PKCS12.

Owns: nothing.
Invariants: if a password is given, a store whose digest does not match is rejected before its
  entries are read; every length is checked against the remaining bytes.
Source: sun.security.provider.JavaKeyStore and KeyProtector of OpenJDK.
"""

import hashlib
import hmac
import struct

MAGIC = 0xFEEDFEED
VERSIONS = (1, 2)
KEY, TRUSTED = 1, 2
SALT_BYTES = DIGEST_BYTES = 20
ENTRIES_MAX = 10_000
# AlgorithmIdentifier of KeyProtector's own cipher: 1.3.6.1.4.1.42.2.17.1.1, parameters NULL.
PROTECTOR = bytes.fromhex("300e060a2b060104012a021101010500")


class JksError(ValueError):
    """The store cannot be read."""


class _Reader:
    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.at:
            raise JksError("the key store is truncated")
        self.at += count
        return self.data[self.at - count:self.at]

    def number(self, form: str) -> int:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        return self.take(self.number(">H")).decode("utf-8", "replace")

    def certificate(self, version: int) -> bytes:
        if version == 2 and self.text() != "X.509":
            raise JksError("a certificate in the key store is not X.509")
        return self.take(self.number(">I"))


def is_jks(data: bytes) -> bool:
    return data[:4] == struct.pack(">I", MAGIC)


def read(data: bytes, password: str | None, key_password: str | None):
    """Return (private key as PKCS8 or None, its certificate chain, trusted certificates), in DER.
    Raises JksError.
    """
    body = data[:-DIGEST_BYTES]
    reader = _Reader(body)
    if reader.number(">I") != MAGIC:
        raise JksError("it is not a Java key store")
    version = reader.number(">I")
    if version not in VERSIONS:
        raise JksError(f"version {version} of Java key stores is unknown")
    if password is not None:
        _check(body, data[-DIGEST_BYTES:], password)  # Before any entry is read.
    count = reader.number(">I")
    if count > ENTRIES_MAX:
        raise JksError(f"the key store has {count} entries")
    key, chain, trusted = None, [], []
    for _ in range(count):
        kind = reader.number(">I")
        reader.text()
        reader.take(8)  # creation date
        if kind == TRUSTED:
            trusted.append(reader.certificate(version))
        elif kind == KEY:
            locked = reader.take(reader.number(">I"))
            own = [reader.certificate(version) for _ in range(reader.number(">I"))]
            if key is None:
                key, chain = _unlock(locked, key_password or password or ""), own
        else:
            raise JksError("the key store has an entry of an unknown kind")
    return key, chain, trusted


def _check(body: bytes, digest: bytes, password: str) -> None:
    found = hashlib.sha1(_bytes(password) + b"Mighty Aphrodite" + body).digest()
    if not hmac.compare_digest(found, digest):
        raise JksError("the password of the key store is wrong, or the file is damaged")


def _bytes(password: str) -> bytes:
    return password.encode("utf-16-be")


def _unlock(locked: bytes, password: str) -> bytes:
    """Decrypt a key like KeyProtector.recover: the key stream consists of chained SHA-1 digests,
    starting with the salt.
    """
    at = locked.find(PROTECTOR)
    if not 0 <= at < 16:
        raise JksError("the key uses an encryption that Java key stores do not use")
    sealed = _Reader(locked[at + len(PROTECTOR):])
    if sealed.take(1) != b"\x04":
        raise JksError("the key is damaged")
    length = sealed.number(">B")
    if length > 0x80:
        length = int.from_bytes(sealed.take(length & 0x7F), "big")
    data = sealed.take(length)
    if len(data) < SALT_BYTES + DIGEST_BYTES:
        raise JksError("the key is damaged")
    salt, secret, check = data[:SALT_BYTES], data[SALT_BYTES:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    stream, last, word = bytearray(), salt, _bytes(password)
    while len(stream) < len(secret):
        last = hashlib.sha1(word + last).digest()
        stream += last
    key = bytes(a ^ b for a, b in zip(secret, stream))
    if not hmac.compare_digest(hashlib.sha1(word + key).digest(), check):
        raise JksError("the password of the key is wrong")
    return key
