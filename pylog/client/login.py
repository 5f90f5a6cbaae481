"""What a new connection does before its first request: TLS and SASL.

Owns: nothing.
Called by: client.connection.
Invariants: (1) a password or token never appears in a message of an exception.
Source: RFC 4616 (PLAIN), RFC 5802 and 7677 (SCRAM), RFC 7628 (OAUTHBEARER); Kafka's SaslHandshake
  and SaslAuthenticate.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import ssl
from collections.abc import Callable
from typing import Any

from pylog.client.errors import AuthenticationError, ConfigError
from pylog.client.settings import Settings
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.security import outgoing, stores

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_HANDSHAKE_VERSION = 1  # The version from which tokens travel in SaslAuthenticate.
_ITERATIONS_MAX = 1_000_000  # Above it a broker would only burn the client's time.


def tls(settings: Settings, host: str) -> tuple[ssl.SSLContext | None, str | None]:
    """(context, server name) of a connection; (None, None) without TLS."""
    if not settings["security.protocol"].endswith("SSL"):
        return None, None
    context = settings["ssl.context"]
    if context is None:
        get = _named(settings)
        stamp = stores.stamp(stores.files(get))
        # Made anew for what changes only: it takes milliseconds.
        if settings.tls is None or settings.tls[0] != stamp:
            settings.tls = stamp, _context(settings, get)
        context = settings.tls[1]
    return context, host


def _named(settings: Settings) -> Callable[[str], Any]:
    """The settings by Java's names, for those of librdkafka too."""
    pem = {"ssl.truststore.location": "ssl.ca.location", "ssl.truststore.type": "ssl.ca.location"}

    def get(name: str) -> Any:
        other = pem.get(name)
        if other is not None and settings[other]:
            return "PEM" if name.endswith(".type") else settings[other]
        return settings[name]

    return get


def _context(settings: Settings, get: Callable[[str], Any]) -> ssl.SSLContext:
    try:
        context = outgoing.context(get)
        if settings["ssl.certificate.location"]:
            context.load_cert_chain(
                settings["ssl.certificate.location"], settings["ssl.key.location"],
                settings["ssl.key.password"] or "")
    except (stores.ConfigError, OSError) as failure:
        raise ConfigError(str(failure)) from None
    return context


async def log_in(connection: Any) -> None:
    """Authenticates by SASL where the settings ask for it. Raises AuthenticationError."""
    settings = connection.settings
    if not settings["security.protocol"].startswith("SASL"):
        return
    mechanism = settings["sasl.mechanism"]
    token = await _bearer_token(settings) if mechanism == "OAUTHBEARER" else ""
    connection.hold()
    hello = await connection.send(messages.SaslHandshakeRequest(mechanism=mechanism),
                                  version=_HANDSHAKE_VERSION)
    if hello.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationError("the broker does not take a login now")
    if hello.error_code:
        raise AuthenticationError(
            f"the broker does not offer {mechanism}, only {', '.join(hello.mechanisms)}")
    name, password = settings["sasl.username"], settings["sasl.password"]
    if token:
        done = await _bearer(connection, token)
    elif mechanism == "PLAIN":
        done = await _token(connection, b"\0%s\0%s" % (name.encode(), password.encode()))
    else:
        done = await _scram(connection, _HASHES[mechanism], name, password,
                            ",tokenauth=true" if settings["pylog.sasl.tokenauth"] else "")
    connection.logged_in(done.session_lifetime_ms)


async def _token(connection: Any, token: bytes) -> Any:
    """The answer to one message of a login. Raises AuthenticationError."""
    answer = await connection.send(messages.SaslAuthenticateRequest(auth_bytes=token))
    if answer.error_code:
        raise AuthenticationError(answer.error_message or "the credentials were not accepted")
    return answer


async def _bearer_token(settings: Settings) -> str:
    if settings.tokens is None:
        from pylog.client.tokens import TokenSource

        settings.tokens = TokenSource(settings)
    return await settings.tokens.token()


async def _bearer(connection: Any, token: str) -> Any:
    answer = await _token(connection, f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    if answer.auth_bytes:
        # RFC 7628: the reason comes first, and the failure after the client has seen it.
        reason = answer.auth_bytes.decode("utf-8", "replace")
        await _token(connection, b"\x01")
        raise AuthenticationError(f"the broker does not accept the token: {reason}")
    return answer


async def _scram(connection: Any, hash_name: str, name: str, password: str,
                 extensions: str) -> Any:
    nonce = secrets.token_urlsafe(24)
    escaped = name.replace("=", "=3D").replace(",", "=2C")
    first = f"n={escaped},r={nonce}{extensions}"
    server_first = (await _token(connection, f"n,,{first}".encode())).auth_bytes.decode()
    given = _attributes(server_first)
    if not given.get("r", "").startswith(nonce):
        raise AuthenticationError("the broker's nonce does not continue ours")
    iterations = int(given["i"])
    if not 0 < iterations <= _ITERATIONS_MAX:
        raise AuthenticationError(f"the broker asks for {iterations} iterations")
    salted = hashlib.pbkdf2_hmac(
        hash_name, password.encode(), base64.b64decode(given["s"]), iterations)
    final = f"c=biws,r={given['r']}"
    signed = f"{first},{server_first},{final}".encode()
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature))
    done = await _token(connection, f"{final},p={base64.b64encode(proof).decode()}".encode())
    server_key = hmac.digest(salted, b"Server Key", hash_name)
    expected = hmac.digest(server_key, signed, hash_name)
    proven = base64.b64decode(_attributes(done.auth_bytes.decode()).get("v", ""))
    if not hmac.compare_digest(proven, expected):
        raise AuthenticationError("the broker does not know the password either")
    return done


def _attributes(text: str) -> dict[str, str]:
    return dict([part.split("=", 1) for part in text.split(",") if "=" in part])
