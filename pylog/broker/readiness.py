"""The checks behind /readyz: what this broker needs to serve clients.

Owns: the phase of the broker.
Invariants: each check observes the component now: a heartbeat that the active controller answers, a
  read of the quorum, a connection to each listener; a component that cannot be checked in this
  phase is "unknown".
"""

from __future__ import annotations

import asyncio
import os

from pylog.broker import listener_probe
from pylog.eventloop.threads import in_thread
from pylog.log.log_directories import LOCK
from pylog.monitor.health import FAILED, OK, UNKNOWN, Check, Result
from pylog.protocol.counts import counted

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog.config import Settings
    from pylog.log.manager import LogManager
    from pylog.replication.membership import Membership
    from pylog.server.network import Network

STARTING, RUNNING, STOPPING = "starting", "running", "stopping"


class Readiness:
    """The checks of one broker. `phase`: STARTING, RUNNING or STOPPING, set by the broker.

    metadata: as metadata.node creates it. membership: None before the broker runs, and if it is its
    own controller.
    """

    def __init__(self, settings: Settings, metadata: Any, logs: LogManager, network: Network,
                 membership: Callable[[], Membership | None]):
        self._settings = settings
        self._metadata = metadata
        self._logs = logs
        self._network = network
        self._membership = membership
        self.phase = STARTING

    def checks(self) -> dict[str, Check]:
        """Return the checks for the roles of this node."""
        is_broker = "broker" in self._settings["process.roles"]
        found = {
            "lifecycle": Check("read the phase of this process", self._lifecycle),
            "listeners": Check("sent ApiVersions to each listener", self._listeners),
            "recovery": Check("counted the partitions that are still recovering",
                              self._when_open(self._recovery)),
            "log_directories": Check("looked for I/O errors since the start and for the lock files",
                                     self._when_open(self._log_directories))}
        if not self._settings.is_member:
            found["controller"] = Check(
                "called the controller in this process", self._when_running(self._own_controller))
        elif is_broker:
            found["controller"] = Check("sent a heartbeat to the active controller",
                                        self._when_running(self._heartbeat))
            found["registration"] = Check("read the answer to this heartbeat",
                                          self._when_running(self._registration))
        if getattr(self._metadata, "quorum", None) is not None:
            found["quorum"] = Check("read the current epoch and controller from the quorum",
                                    self._when_running(self._quorum))
            if not is_broker:
                found["controller"] = Check("read the active controller from the quorum and "
                                            "connected to it",
                                            self._when_running(self._remote_controller))
        return found

    def _when_running(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Return the check for a component that exists only while the broker runs."""
        async def check() -> Result:
            if self.phase != RUNNING:
                return Result(UNKNOWN, f"not checked: the broker is {self.phase}")
            found: Result = await run()
            return found

        return check

    def _when_open(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Return the check for a component that exists once the log directories are open."""
        async def check() -> Result:
            if self.phase == STARTING:
                return Result(UNKNOWN, f"not checked: the broker is {self.phase}")
            found: Result = await run()
            return found

        return check

    async def _lifecycle(self) -> Result:
        return Result(OK if self.phase == RUNNING else FAILED, self.phase)

    async def _listeners(self) -> Result:
        bound = self._network.bound_ports()
        closed = [listener.name for listener, port in bound if port < 0]
        if closed:
            return Result(FAILED, f"not open: {', '.join(closed)}")
        faults = await asyncio.gather(*[
            listener_probe.fault(self._settings, listener, port) for listener, port in bound])
        problems = [f"{listener.name}: {fault}"
                    for (listener, _), fault in zip(bound, faults, strict=True) if fault]
        if problems:
            return Result(FAILED, "; ".join(problems))
        return Result(OK, f"respond: {', '.join(listener.name for listener, _ in bound)}")

    async def _recovery(self) -> Result:
        left = self._logs.recovering
        return Result(FAILED, f"{counted(left, 'partition')} left") if left else Result(OK, "done")

    async def _log_directories(self) -> Result:
        disks = self._logs.disks
        offline = [path for number, path in enumerate(disks.paths) if not disks.online(number)]
        if offline:
            return Result(FAILED, f"offline: {', '.join(offline)}")
        problems = await in_thread(_unreadable, disks.paths)
        if problems:
            return Result(FAILED, "; ".join(problems))
        return Result(OK, f"{len(disks.paths)} online")

    async def _own_controller(self) -> Result:
        problem = self._metadata.fatal()
        return Result(OK, "in this process") if problem is None else Result(FAILED, problem)

    async def _heartbeat(self) -> Result:
        membership = self._membership()
        assert membership is not None  # This node has the broker role.
        await membership.channel.confirm()
        return Result(OK, f"controller {self._metadata.controllers.active_id} answered")

    async def _registration(self) -> Result:
        membership = self._membership()
        assert membership is not None  # This node has the broker role.
        await membership.channel.confirm()
        if membership.is_unfenced:
            return Result(OK, "unfenced")
        return Result(FAILED, "fenced: the cluster does not send clients to this broker")

    async def _quorum(self) -> Result:
        view = await in_thread(self._view)
        if isinstance(view, str):
            return Result(FAILED, view)
        if view.holder is None:
            return Result(FAILED, f"no controller is active in epoch {view.epoch}")
        return Result(OK, f"controller {view.holder.node_id} is active in epoch {view.epoch}")

    def _view(self) -> Any:
        """Return the quorum's View, or why it cannot be read. Blocks."""
        # Imported here: only a node with the controller role has a quorum.
        from pylog.metadata.quorum.quorum_state import QuorumLost

        try:
            return self._metadata.quorum.read_view()
        except QuorumLost as error:
            return str(error)

    async def _remote_controller(self) -> Result:
        # Imported here: only a node without the broker role needs them.
        from pylog.peer.connection import Peer
        from pylog.peer.errors import PeerError

        if self._metadata.controller is not None:
            return Result(OK, "this node is the active controller")
        view = await in_thread(self._view)
        if isinstance(view, str):
            return Result(UNKNOWN, f"the quorum cannot be read: {view}")
        if view.holder is None:
            return Result(FAILED, "no controller is active")
        _, _, host, port = view.holder
        try:
            peer = await Peer.connect(host, port, "health",
                                      credentials=self._metadata.credentials)
        except PeerError as error:
            return Result(FAILED, str(error))
        peer.close()
        return Result(OK, f"controller {view.holder.node_id} accepted a connection")


def _unreadable(paths: list[str]) -> list[str]:
    """Return what is wrong with log directories that were deleted or cannot be read. Blocks."""
    problems = []
    for path in paths:
        try:
            os.stat(os.path.join(path, LOCK))
        except OSError as error:
            problems.append(f"{path}/{LOCK}: {error.strerror}")
    return problems
