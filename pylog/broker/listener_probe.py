"""Connect to a listener of this broker as a client does, for /readyz.

Owns: nothing; each probe closes its connection.
Invariants: a probe has a result within PROBE_S; it causes no failed login and no failed TLS
  handshake, which would be counted and cause alerts.
Source: KIP-511 (ApiVersions before a login).
"""

from __future__ import annotations

import asyncio

from pylog import port_owner
from pylog.config.listeners import TLS_PROTOCOLS
from pylog.eventloop.threads import in_thread
from pylog.peer import dial
from pylog.protocol import api, codec, messages
from pylog.protocol.reasons import reason_of

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    import ssl

    from pylog.config import Settings
    from pylog.config.listeners import Listener

PROBE_S = 1.0
LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
CORRELATION_ID = 1


async def fault(settings: Settings, listener: Listener, port: int) -> str | None:
    """Return why a listener does not serve clients, None if it responded to ApiVersions.

    A listener that requires client certificates only has to be in the kernel's list: it would count
    a connection without a certificate as a failed handshake.
    """
    if _requires_certificates(settings, listener):
        listening = await in_thread(port_owner.listening_ports)
        return None if port in listening else "not in the kernel's list of listening ports"
    frame = codec.request_frame(
        api.API_VERSIONS, 0, CORRELATION_ID, "pylog-health", messages.ApiVersionsRequest())
    try:
        async with asyncio.timeout(PROBE_S):
            context = _context(listener)
            reader, writer = await asyncio.open_connection(
                LOOPBACK.get(listener.host, listener.host), port, ssl=context)
            try:
                writer.write(frame)
                await reader.readexactly(dial.SIZE_BYTES)
                if int.from_bytes(await reader.readexactly(4), "big") != CORRELATION_ID:
                    return "it sent another response"
            finally:
                writer.transport.abort()
    except TimeoutError:
        return f"no response within {PROBE_S:g} s"
    except asyncio.IncompleteReadError:
        return "it closed the connection"
    except OSError as error:
        return reason_of(error)
    return None


def _requires_certificates(settings: Settings, listener: Listener) -> bool:
    if listener.protocol not in TLS_PROTOCOLS:
        return False
    # Imported here, as below: it loads OpenSSL, which not every broker needs.
    from pylog.security.tls import listener_tls

    return bool(listener_tls.getter(settings, listener)("ssl.client.auth") == "required")


def _context(listener: Listener) -> ssl.SSLContext | None:
    """Return a TLS context that accepts any certificate, None for a listener without TLS."""
    if listener.protocol not in TLS_PROTOCOLS:
        return None
    import ssl

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made
