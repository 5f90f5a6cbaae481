"""Why a connection could not be made, in words.

Owns: nothing.
Called by: client.connection, client.cluster.
Invariants: (1) what is told says what to look at: the port, TLS, a certificate.
Source: what brokers, HTTP servers and TLS do when they are spoken to in another way.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from pylog.client import login
from pylog.client.errors import AuthenticationError
from pylog.security import outgoing, stores

if TYPE_CHECKING:
    from pylog.client.connection import Connection

CERTIFICATE_SECONDS = 5.0


def how_far(connection: Connection) -> str:
    """How far it got before its time was over."""
    where = f"{connection.host}:{connection.port}: "
    if not connection.connected:
        return where + "no connection"
    if connection.secure and connection.transport is None:
        return where + "connected, but it does not speak TLS"
    without = "" if connection.secure else ", without TLS"
    return f"{where}connected, but it does not answer: is it a broker's port{without}?"


async def distrusted(connection: Connection, failure: ssl.SSLError) -> AuthenticationError:
    """Why TLS failed; of an expired certificate with its date, for which it is looked at again."""
    error = refused(connection, failure)
    if "expired" in str(error) and isinstance(failure, ssl.SSLCertVerificationError):
        day = stores.expiry(await _certificate(connection.host, connection.port))
        return AuthenticationError(f"{error}, on {day}") if day else error
    return error


def refused(connection: Connection, failure: ssl.SSLError) -> AuthenticationError:
    """The same, without a look at the broker's certificate."""
    text = outgoing.explained(failure)
    if text == outgoing.OWN_EXPIRED:
        day = stores.chain_expiry(login.own_chain(connection.settings))
        text += f", on {day}" if day else ""
    return AuthenticationError(f"{connection.host}:{connection.port}: {text}")


async def _certificate(host: str, port: int) -> bytes:
    """A broker's certificate, unchecked, in DER; empty when it cannot be had."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(CERTIFICATE_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
            certificate = writer.get_extra_info("ssl_object").getpeercert(True)
            writer.close()
    except OSError:
        return b""
    return certificate or b""
