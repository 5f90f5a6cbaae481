"""Error messages for failed connections.

Owns: nothing.
Invariants: each message names the likely cause: the port, TLS, or a certificate.
Source: observed reactions of brokers, HTTP servers and TLS to the wrong protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pylog.client.errors import AuthenticationError
from pylog.client.network import login
from pylog.security.tls import outgoing_tls

if TYPE_CHECKING:
    import ssl

    from pylog.client.config.settings import Settings


def connect_progress(host: str, port: int, connected: bool, secure: bool, shook_hands: bool) -> str:
    """Describe how far a connection got before the timeout. shook_hands: with TLS, if secure."""
    where = f"{host}:{port}: "
    if not connected:
        return where + "no connection"
    if secure and not shook_hands:
        return where + "connected, but it does not speak TLS"
    without = "" if secure else ", without TLS"
    return f"{where}connected, but it does not respond; check that it is a broker's port{without}"


async def distrusted(host: str, port: int, settings: Settings,
                     failure: ssl.SSLError) -> AuthenticationError:
    """Return the error of a TLS failure. Fetches an expired certificate again to show its date."""
    return AuthenticationError(f"{host}:{port}: " + await outgoing_tls.distrusted(
        failure, host, port, lambda: login.own_chain(settings)))


def refused(host: str, port: int, settings: Settings,
            failure: ssl.SSLError) -> AuthenticationError:
    """Return the error of a TLS failure without fetching the broker's certificate."""
    text = outgoing_tls.refused(failure, lambda: login.own_chain(settings))
    return AuthenticationError(f"{host}:{port}: {text}")
