"""The client side of SASL logins: the response to each challenge.

Owns: nothing.
Invariants: no exception contains a password; with SCRAM, the server must also prove that it has the
  password.
Source: RFC 4616 (PLAIN), RFC 5802, RFC 7677 (SCRAM), RFC 7628 (OAUTHBEARER), KIP-84, KIP-255.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from pylog.security.sasl import scram
from pylog.security.errors import AuthenticationFailed

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Generator

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *scram.MECHANISMS)
HANDSHAKE_VERSION = 1  # Of SaslHandshake: tokens are sent in SaslAuthenticate.
NONCE_BYTES = 24
# Limits the CPU time that a hostile server can consume.
ITERATIONS_MAX = 1_000_000


def tokens(mechanism: str, name: str, password: str,
           by_token: bool = False) -> Generator[bytes, bytes, None]:
    """Yield the messages to send, and receive the server's responses. The generator ends with the
    login.

    mechanism: one of MECHANISMS. by_token: SCRAM with a delegation token's id and HMAC (KIP-48).
    Raises AuthenticationFailed, with SCRAM also if the server does not prove that it has the
    password.
    """
    if mechanism == PLAIN:
        return _plain(name, password)
    return _scram(scram.HASHES[scram.MECHANISMS[mechanism]], name, password,
                  ",tokenauth=true" if by_token else "")


def bearer(token: str) -> Generator[bytes, bytes, None]:
    """As tokens(), for OAUTHBEARER with a token. Raises AuthenticationFailed."""
    response = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if response:
        # RFC 7628: the server sends the reason, and fails the login after the client confirmed it.
        yield b"\x01"
        raise AuthenticationFailed(
            f"the broker does not accept the token: {response.decode('utf-8', 'replace')}")


def _plain(name: str, password: str) -> Generator[bytes, bytes, None]:
    yield b"\0%s\0%s" % (name.encode(), password.encode())


def _scram(hash_name: str, name: str, password: str,
           extensions: str) -> Generator[bytes, bytes, None]:
    nonce = secrets.token_urlsafe(NONCE_BYTES)
    escaped = name.replace("=", "=3D").replace(",", "=2C")
    first = f"n={escaped},r={nonce}{extensions}"
    challenge = yield f"n,,{first}".encode()
    try:
        server_first = challenge.decode()
        given = _attributes(server_first)
        salt, iterations = base64.b64decode(given["s"]), int(given["i"])
    except (ValueError, KeyError):
        raise AuthenticationFailed("the broker's challenge cannot be read") from None
    if not given.get("r", "").startswith(nonce):
        raise AuthenticationFailed("the broker's nonce does not continue ours")
    if not 0 < iterations <= ITERATIONS_MAX:
        raise AuthenticationFailed(f"the broker requires {iterations} iterations")
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    final = f"c=biws,r={given['r']}"
    signed = f"{first},{server_first},{final}".encode()
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    verdict = yield f"{final},p={base64.b64encode(proof).decode()}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name)
    # The server must prove that it has the password.
    if not hmac.compare_digest(_verifier(verdict), expected):
        raise AuthenticationFailed("the broker could not prove that it knows the password")


def _verifier(verdict: bytes) -> bytes:
    try:
        return base64.b64decode(_attributes(verdict.decode()).get("v", ""))
    except ValueError:
        return b""


def _attributes(text: str) -> dict[str, str]:
    return dict([part.split("=", 1) for part in text.split(",") if "=" in part])
