"""Runs a broker as a process: signals, garbage collection, exit code.

Owns: the broker.
Invariants: the ready callback is called when the broker can answer requests; SIGTERM, SIGINT and
  the loss of all disks end in a clean shutdown.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal

from pylog import supervisor
from pylog.broker.broker import DRAIN_MS_MAX, Broker

log = logging.getLogger("pylog.broker")

# New objects before a garbage collection. A burst of requests creates thousands of short-lived
# objects, so Python's default of 700 costs 5 % of the broker's CPU time (perf, heartbeats of 10,000
# members).
YOUNG_OBJECTS = 20_000
DRAIN_MS_BROKEN = 500


def run(settings, ready=None, first=()) -> int:
    """Run a broker until SIGTERM, SIGINT, or disk failure. Return the exit code.

    ready: called with [(listener name, host, port)] when requests are answered. first: initial
    metadata records of a new cluster. Raises StartError, OSError.
    """
    return asyncio.run(_serve(settings, ready, first))


async def _serve(settings, ready, first) -> int:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(supervisor.executor("worker"))
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker = Broker(settings, first=first)
    if not await _begun(broker, stopping):
        return 0
    if ready is not None:
        ready(broker.network.addresses + broker.network.controller_addresses)
    # Objects created during startup live as long as the process, so exclude them from garbage
    # collection.
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    waits = [asyncio.ensure_future(event.wait()) for event in (stopping, broker.broken)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await broker.end(DRAIN_MS_BROKEN if broker.broken.is_set() else DRAIN_MS_MAX)
    log.info("stopped")
    return 1 if broker.broken.is_set() else 0


async def _begun(broker: Broker, stopping: asyncio.Event) -> bool:
    """Start the broker. Return False if it was stopped before it was ready. Raises StartError,
    OSError.
    """
    if not broker.settings.is_member:
        await broker.begin()
        return True
    stop = asyncio.ensure_future(stopping.wait())
    for step in (broker.begin, broker.joined):
        # Waiting for unreachable controllers can take long.
        going = asyncio.ensure_future(step())
        await asyncio.wait([going, stop], return_when=asyncio.FIRST_COMPLETED)
        if not going.done():
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)
            return False
        going.result()
    stop.cancel()
    return True
