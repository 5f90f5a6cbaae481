"""Ordered streams between simulated hosts, and their faults.

Owns: the listeners, the connections, the cut routes.
Invariants: ordered delivery: bytes on a connection arrive in order, or the connection ends; cut
  routes: on a cut route nothing arrives until it is restored, neither bytes nor the end of a
  connection; resets: a killed process resets its connections, a host without power sends nothing.
Source: TCP.
"""

import asyncio

from pylog.peer.errors import PeerError
from tests.sim.loop import OWNER

CONNECT_SECONDS = 30.0
DIAL_SECONDS = 5.0
LATENCY_S = (0.0001, 0.001)


class Host:
    """A machine: `name`, and its running process, if any."""

    def __init__(self, name: str):
        self.name = name
        self.powered = True
        self.listeners: dict = {}        # port -> (process, accept)


class End(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network, host, process, protocol):
        super().__init__()
        self.network, self.host, self.process = network, host, process
        self.protocol = protocol
        self.other: End | None = None
        self.open = True
        self._due = 0.0  # Keeps ordered delivery: later bytes arrive no earlier.

    def write(self, data) -> None:
        if self.open and (self.process is None or self.process.alive):
            self.network.send(self, data)

    def close(self) -> None:
        if self.open:
            self.open = False
            self.network.send(self, None)
            self.network.ended(self)

    abort = close

    def is_closing(self) -> bool:
        return not self.open

    def get_extra_info(self, name, default=None):
        return default

    def set_write_buffer_limits(self, high=None, low=None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Network:
    """The network. loop: the simulated one. random: latencies."""

    def __init__(self, loop, random):
        self.loop, self.random = loop, random
        self.hosts: dict = {}
        self.cut: set = set()            # (from, to)
        self._stalled: dict = {}  # (from, to) -> bytes held back by a cut route
        self.latency_s = LATENCY_S
        self.ends: list = []
        self.sent = 0

    def host(self, name: str) -> Host:
        return self.hosts.setdefault(name, Host(name))

    def listen(self, name: str, port: int, process, accept) -> None:
        """Listen on a port. accept: (End) -> the protocol of a new connection."""
        self.host(name).listeners[port] = process, accept

    def reaches(self, source: str, target: str) -> bool:
        """Return True if both directions are intact."""
        return self.hosts[target].powered and self.hosts[source].powered and (
            (source, target) not in self.cut and (target, source) not in self.cut)

    # ---- connections ----------------------------------------------------------------------------

    async def connect(self, process, factory, name, port):
        """Connect like loop.create_connection()."""
        await self._way(process.host, name)
        await self._way(name, process.host)
        here = self._joined(process, name, port)
        here.protocol = factory()
        here.protocol.connection_made(here)
        return here, here.protocol

    def dial(self, process, name, port) -> End:
        """Connect on a thread and return an end without a protocol. Raises PeerError."""
        self.loop.block(2 * self.random.uniform(*self.latency_s))
        left_s, pause_s = DIAL_SECONDS, 0.2
        while left_s > 0 and not self.reaches(process.host, name):
            # TCP retransmits a lost SYN.
            self.loop.block(min(pause_s, left_s))
            left_s -= pause_s
            pause_s *= 2
        try:
            if not self.reaches(process.host, name):
                raise TimeoutError(110, "Connection timed out")
            return self._joined(process, name, port)
        except OSError as error:
            raise PeerError(str(error)) from error

    def _joined(self, process, name, port) -> End:
        owner, accept = self.hosts[name].listeners.get(port, (None, None))
        if owner is None or not owner.alive:
            raise ConnectionRefusedError(111, f"{name}:{port} refuses")
        here, there = End(self, process.host, process, None), End(self, name, owner, None)
        here.other, there.other = there, here
        self.ends += [here, there]
        there.protocol = accept(there)
        return here

    async def _way(self, source: str, target: str) -> None:
        """Wait for the latency of one direction. Raises TimeoutError."""
        until = self.loop.time() + CONNECT_SECONDS
        await asyncio.sleep(self.random.uniform(*self.latency_s))
        pause_s = 0.2
        while (source, target) in self.cut or not self.hosts[target].powered:
            # TCP retransmits a lost SYN.
            if self.loop.time() > until:
                raise TimeoutError(110, "Connection timed out")
            await asyncio.sleep(pause_s)
            pause_s *= 2

    def send(self, end: End, data) -> None:
        """Send bytes. data: None closes the connection."""
        self.sent += 1
        due = max(end._due, self.loop.time() + self.random.uniform(*self.latency_s))
        end._due = due
        self._at(due, end, data)

    def _at(self, due, end, data) -> None:
        # Without an owner: bytes in flight arrive even after their sender died.
        token = OWNER.set(None)
        self.loop.call_at(due, self._arrive, end, data)
        OWNER.reset(token)

    def _arrive(self, end: End, data) -> None:
        way, to = (end.host, end.other.host), end.other
        if way in self.cut or way in self._stalled:
            self._stalled.setdefault(way, []).append((end, data))  # Keeps cut routes.
            return
        if not self.hosts[to.host].powered:
            return
        if not to.process.alive or not to.open:
            if data is not None and end.open:
                end.open = False
                self._deliver(end, None)
            return
        if data is None:
            to.open = False
            self.ended(to)
        self._deliver(to, data)

    def _deliver(self, to: End, data) -> None:
        if not to.process.alive or to.protocol is None:
            return
        token = OWNER.set(to.process)
        self.loop.call_soon(to.protocol.connection_lost if data is None else
                            to.protocol.data_received, data)
        OWNER.reset(token)

    def ended(self, end: End) -> None:
        """Forget a connection whose ends are both closed."""
        if not end.open and not end.other.open:
            self.ends = [kept for kept in self.ends if kept is not end and kept is not end.other]

    # ---- faults ---------------------------------------------------------------------------------

    def sever(self, source: str, target: str) -> None:
        self.cut.add((source, target))

    def heal(self, *ways) -> None:
        """Restore the given routes, or all, and deliver the bytes held back."""
        for way in ways or sorted(self.cut):
            self.cut.discard(way)
            for end, data in self._stalled.pop(way, ()):
                self.send(end, data)

    def reset(self, end: End) -> None:
        """Close a connection at both ends immediately."""
        for side in (end, end.other):
            if side.open:
                side.open = False
                self._deliver(side, None)
        self.ended(end)

    def power_off(self, name: str) -> None:
        """Power off a host without closing its connections."""
        self.hosts[name].powered = False
        for way in self._stalled:
            if way[0] == name:
                self._stalled[way].clear()
        for end in self.ends:
            if end.host == name:
                end.open = False

    def died(self, process) -> None:
        """Reset the connections of a dead process. Keeps resets."""
        for end in [end for end in self.ends if end.process is process]:
            if end.open:
                end.open = False
                self.send(end, None)
        host = self.hosts[process.host]
        host.listeners = {port: (owner, accept) for port, (owner, accept) in
                          host.listeners.items() if owner is not process}
