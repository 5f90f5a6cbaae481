"""Error messages for failed connections.

Owns: nothing.
Invariants: each message names the likely cause: the port, TLS, or a certificate.
Source: observed reactions of brokers, HTTP servers and TLS to the wrong protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pylog.client.errors import AuthenticationError
from pylog.client.network import login
from pylog.security import outgoing

if TYPE_CHECKING:
    import ssl

    from pylog.client.network.connection import Connection


def how_far(connection: Connection) -> str:
    """Describe how far the connection got before the timeout."""
    where = f"{connection.host}:{connection.port}: "
    if not connection.connected:
        return where + "no connection"
    if connection.secure and connection.transport is None:
        return where + "connected, but it does not speak TLS"
    without = "" if connection.secure else ", without TLS"
    return f"{where}connected, but it does not answer: is it a broker's port{without}?"


async def distrusted(connection: Connection, failure: ssl.SSLError) -> AuthenticationError:
    """Return the error of a TLS failure. Fetches an expired certificate again to show its date."""
    return AuthenticationError(f"{connection.host}:{connection.port}: " + await outgoing.distrusted(
        failure, connection.host, connection.port, lambda: login.own_chain(connection.settings)))


def refused(connection: Connection, failure: ssl.SSLError) -> AuthenticationError:
    """Return the error of a TLS failure without fetching the broker's certificate."""
    text = outgoing.refused(failure, lambda: login.own_chain(connection.settings))
    return AuthenticationError(f"{connection.host}:{connection.port}: {text}")
