"""Is a broker gone? What its listeners say when they are dialled.

Owns: the sockets of its dials.
Invariants: (1) only a refused dial is a verdict: who does not answer may be slow or far away.
Source: TCP: a host that is up resets a connection to a port that nobody listens on.
"""

import asyncio

DIAL_S = 1.0
# A process that ends closes its sockets one after another: its listener may be the last of them.
PAUSES_S = (0.0, 0.02, 0.1, 0.4)


async def is_gone(endpoints) -> bool:
    """Whether a listener of `endpoints` (host, port and more) refuses a dial, now or in a moment.
    """
    for pause_s in PAUSES_S if endpoints else ():
        await asyncio.sleep(pause_s)
        for endpoint in endpoints:
            if await _refuses(endpoint.host, endpoint.port):
                return True
    return False


async def _refuses(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), DIAL_S)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        # Keeps (1).
        return False
    writer.close()
    return False
