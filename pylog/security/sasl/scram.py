"""The server side of SCRAM-SHA-256 and SCRAM-SHA-512, and the stored form of a password.

Owns: nothing.
Invariants: an unknown user gets the same responses as a wrong password, with the same salt each
  time, after the same time; the client's final message must contain both nonces and its first
  header (CVE-2024-56128); secrets are compared in constant time.
Source: RFC 5802, RFC 7677, KIP-84.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections import namedtuple

from pylog.security.errors import AuthenticationFailed

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
SALT_BYTES = 26
NONCE_BYTES = 24
REPEATED = ("Authentication failed: the client's nonce is repeated in its last message, against "
            "RFC 5802, as with librdkafka before 2.6.1")
# Kafka's codes of the mechanisms (KIP-554), and the hash function of each.
SHA_256, SHA_512 = 1, 2
MECHANISMS = {"SCRAM-SHA-256": SHA_256, "SCRAM-SHA-512": SHA_512}
HASHES = {SHA_256: "sha256", SHA_512: "sha512"}

# RFC 5802: names contain no NUL; comma and equals sign are escaped as =2C and =3D.
_FIRST = re.compile(
    r"(?P<header>[ny],(?:a=(?P<authzid>[^\0,]+))?,)"
    r"(?P<bare>n=(?P<name>[^\0,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?P<extensions>(?:,[A-Za-z]+=[^\0,]+)*))")
_FINAL = re.compile(
    r"(?P<without>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?:,[A-Za-z]+=[^\0,]+)*),p=(?P<proof>[A-Za-z0-9+/=]+)")
_ESCAPED = re.compile(r"=(?:2C|3D)")

Credential = namedtuple("Credential", ("salt", "stored_key", "server_key", "iterations"))
Credential.__doc__ = "The stored credential of a password."


def credential(mechanism: int, salt: bytes, salted_password: bytes,
               iterations: int) -> Credential:
    """Return the credential for a password that was salted with PBKDF2."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return Credential(salt, hashlib.new(name, client_key).digest(),
                      hmac.digest(salted_password, b"Server Key", name), iterations)


def salted(mechanism: int, password: str, salt: bytes, iterations: int) -> bytes:
    """Apply PBKDF2. Takes some milliseconds."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def random_salt() -> bytes:
    return secrets.token_bytes(SALT_BYTES)


def given_salt(text: str) -> bytes:
    """Return the salt from base64 text. Raises ValueError."""
    return base64.b64decode(text.strip('"'), validate=True)


class Exchange:
    """One login. find(name, extensions): returns a Credential or None. random_bytes(count):
    generates nonces. secret: of this broker process.

    `name` and `extensions` are set after the client's first message.
    """

    def __init__(self, mechanism: int, find: Callable[[str, dict], Credential | None],
                 random_bytes: Callable[[int], bytes], secret: bytes):
        self._hash = HASHES[mechanism]
        self._find = find
        self._random_bytes = random_bytes
        self._secret = secret
        self._first: re.Match[str] | None = None
        self._server_first = ""
        self._nonce = ""
        self._known = False
        self._credential: Credential | None = None
        self.name = ""
        self.extensions: dict[str, str] = {}
        self.is_complete = False

    def step(self, token: bytes) -> bytes:
        """Return the response to a client's message. Raises AuthenticationFailed."""
        try:
            text = token.decode("utf-8")
        except UnicodeDecodeError:
            raise AuthenticationFailed() from None
        if self._first is None:
            return self._begin(text)
        assert not self.is_complete
        return self._finish(text)

    def _begin(self, text: str) -> bytes:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise AuthenticationFailed()
        self.name = _unescaped(found["name"])
        if found["authzid"] is not None and _unescaped(found["authzid"]) != self.name:
            # CVE-2017-12610: a user must not log in as another.
            raise AuthenticationFailed()
        self.extensions = dict(
            part.split("=", 1) for part in found["extensions"].split(",") if part)
        credential = self._find(self.name, self.extensions)
        made_up = self._made_up()  # Always: response times must not reveal users.
        self._known = credential is not None
        self._credential = credential if credential is not None else made_up
        self._nonce = found["nonce"] + base64.b64encode(
            self._random_bytes(NONCE_BYTES)).decode().replace("=", "")
        salt = base64.b64encode(self._credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._first = found
        return self._server_first.encode()

    def _made_up(self) -> Credential:
        # The same salt each time: a new salt would reveal that the user does not exist.
        salt = hmac.digest(self._secret, self.name.encode(), "sha256")[:SALT_BYTES]
        size = hashlib.new(self._hash).digest_size
        return Credential(salt, bytes(size), bytes(size), ITERATIONS_MIN)

    def _finish(self, text: str) -> bytes:
        assert self._first is not None and self._credential is not None
        found = _FINAL.fullmatch(text)
        if found is not None and found["nonce"] == self._first["nonce"] + self._nonce:
            raise AuthenticationFailed(REPEATED)
        # Bind the message to both nonces and the first header.
        if found is None or found["nonce"] != self._nonce \
                or _decoded(found["binding"]) != self._first["header"].encode():
            raise AuthenticationFailed()
        signed = f"{self._first['bare']},{self._server_first},{found['without']}".encode()
        stored_key = self._credential.stored_key
        signature = hmac.digest(stored_key, signed, self._hash)
        proof = _decoded(found["proof"])
        if len(proof) != len(signature):
            raise AuthenticationFailed()
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), stored_key)
        if not (is_right and self._known):
            raise AuthenticationFailed()
        self.is_complete = True
        verifier = hmac.digest(self._credential.server_key, signed, self._hash)
        return b"v=" + base64.b64encode(verifier)


def _unescaped(name: str) -> str:
    if "=" in _ESCAPED.sub("", name):
        raise AuthenticationFailed()
    return _ESCAPED.sub(lambda found: "," if found[0] == "=2C" else "=", name)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed() from None
