"""Why a connection could not be made, in words.

Owns: nothing.
Invariants: (1) what is told says what to look at: the port, TLS, a certificate.
Source: what brokers, HTTP servers and TLS do when they are spoken to in another way.
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
    return AuthenticationError(f"{connection.host}:{connection.port}: " + await outgoing.distrusted(
        failure, connection.host, connection.port, lambda: login.own_chain(connection.settings)))


def refused(connection: Connection, failure: ssl.SSLError) -> AuthenticationError:
    """The same, without a look at the broker's certificate."""
    text = outgoing.refused(failure, lambda: login.own_chain(connection.settings))
    return AuthenticationError(f"{connection.host}:{connection.port}: {text}")
