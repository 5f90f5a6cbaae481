"""Secure a new connection before its first request: TLS and SASL.

Owns: nothing.
Invariants: exception messages never contain a password or token.
Source: Kafka's SaslHandshake and SaslAuthenticate.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Generator
from typing import Any

from pylog.client import blocking
from pylog.client.config.settings import Settings
from pylog.client.errors import AuthenticationError, ConfigError
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.security.sasl import client_exchange, kerberos
from pylog.security.tls import key_stores, outgoing_tls
from pylog.security.errors import AuthenticationFailed


def tls(settings: Settings, host: str) -> tuple[ssl.SSLContext | None, str | None]:
    """Return (context, server name) for a connection; (None, None) without TLS."""
    if not settings["security.protocol"].endswith("SSL"):
        return None, None
    context = settings["ssl.context"]
    if context is None:
        get = _named(settings)
        stamp = key_stores.stamp(key_stores.files(get))
        # Re-created only after a change: it takes milliseconds.
        if settings.tls is None or settings.tls[0] != stamp:
            settings.tls = stamp, _context(settings, get)
        context = settings.tls[1]
    return context, host


def _named(settings: Settings) -> Callable[[str], Any]:
    """Return a lookup of settings by Java's names that also covers librdkafka's names."""
    pem = {"ssl.truststore.location": "ssl.ca.location", "ssl.truststore.type": "ssl.ca.location"}

    def get(name: str) -> Any:
        other = pem.get(name)
        if other is not None and settings[other]:
            return "PEM" if name.endswith(".type") else settings[other]
        return settings[name]

    return get


def _context(settings: Settings, get: Callable[[str], Any]) -> ssl.SSLContext:
    try:
        context = outgoing_tls.context(get)
        if settings["ssl.certificate.location"]:
            context.load_cert_chain(
                settings["ssl.certificate.location"], settings["ssl.key.location"],
                settings["ssl.key.password"] or "")
    except (key_stores.ConfigError, OSError) as failure:
        raise ConfigError(str(failure)) from None
    return context


def own_chain(settings: Settings) -> bytes:
    """Return the client's certificate chain as PEM; empty if it is missing."""
    location = settings["ssl.certificate.location"]
    try:
        return key_stores.own_chain(_named(settings)) or (
            key_stores.pem_file(location) if location else b"")
    except key_stores.ConfigError:
        return b""


async def log_in(connection: Any) -> None:
    """Authenticate with SASL if configured. Raises AuthenticationError."""
    settings = connection.settings
    if not settings["security.protocol"].startswith("SASL"):
        return
    mechanism = settings["sasl.mechanism"]
    token = await settings.tokens.token() if mechanism == "OAUTHBEARER" else ""
    connection.hold()
    hello = await connection.send(messages.SaslHandshakeRequest(mechanism=mechanism),
                                  version=client_exchange.HANDSHAKE_VERSION)
    if hello.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        plain = "SSL" if connection.secure else "PLAINTEXT"
        raise _refused(connection,
                       f"this port does not support SASL: set security.protocol={plain}")
    if hello.error_code:
        raise _refused(connection, f"the broker does not offer {mechanism}, only "
                       f"{', '.join(hello.mechanisms)}")
    if mechanism == kerberos.MECHANISM:
        steps = kerberos.tokens(
            settings["sasl.kerberos.service.name"], connection.host,
            settings["sasl.kerberos.principal"], settings["sasl.kerberos.keytab"])
    elif token:
        steps = client_exchange.bearer(token)
    else:
        steps = client_exchange.tokens(
            mechanism, settings["sasl.username"], settings["sasl.password"],
            by_token=settings["pylog.sasl.tokenauth"])
    connection.logged_in(await _proven(connection, steps, mechanism == kerberos.MECHANISM))


async def _proven(connection: Any, steps: Generator[bytes, bytes, None], blocks: bool) -> int:
    """Authenticate. Returns the session lifetime in ms. blocks: the steps may block on other
    servers. Raises AuthenticationError.
    """
    response = None
    while True:
        try:
            token = await blocking.run(_next, steps, response) if blocks \
                else _next(steps, response)
        except AuthenticationFailed as failed:
            raise _refused(connection, str(failed)) from None
        except key_stores.ConfigError as error:
            raise ConfigError(str(error)) from None
        if token is None:
            assert response is not None  # A login needs at least one response.
            return int(response.session_lifetime_ms)
        response = await connection.send(messages.SaslAuthenticateRequest(auth_bytes=token))
        if response.error_code:
            raise _refused(connection,
                           response.error_message or "the credentials were not accepted")


def _refused(connection: Any, text: str) -> AuthenticationError:
    """Return the error with the broker's address: one of several brokers may be misconfigured."""
    return AuthenticationError(f"{connection.host}:{connection.port}: {text}")


def _next(steps: Generator[bytes, bytes, None], response: Any) -> bytes | None:
    """Return the next token to send, or None at the end."""
    try:
        return next(steps) if response is None else steps.send(response.auth_bytes)
    except StopIteration:
        return None
