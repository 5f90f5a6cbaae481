"""Checks if a broker's process has ended by connecting to its inter-broker listener.

Owns: the sockets of its probes.
Invariants: only a refused connection proves that the process has ended; a broker that does not
  answer may be slow or unreachable from here.
Source: TCP: a host that is up resets a connection to a port without a listener.
"""

import asyncio

PROBE_S = 1.0
# A process that ends closes its sockets one after another; this listener may be the last of them.
PAUSES_S = (0.0, 0.02, 0.1, 0.4)


async def is_gone(endpoints, listener: str) -> bool:
    """Return True if the broker's listener of that name refuses a connection within 0.6 s.

    endpoints: as the broker registered them (name, host, port and more). Only the inter-broker
    listener is probed: the other advertised addresses are for clients and may be unreachable from
    here.
    """
    probed = [endpoint for endpoint in endpoints if endpoint.name == listener]
    for pause_s in PAUSES_S if probed else ():
        await asyncio.sleep(pause_s)
        for endpoint in probed:
            if await _refuses(endpoint.host, endpoint.port):
                return True
    return False


async def _refuses(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), PROBE_S)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        # A timeout does not prove that the process has ended.
        return False
    writer.close()
    return False
