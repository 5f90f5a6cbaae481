"""The cluster's controllers: their addresses, and the active controller known to this node.

Owns: that state.
Invariants: next() always returns a controller: the active one if known, else each voter in turn; a
  leader of an older epoch never replaces a newer one.
Source: KIP-595 (voters), KIP-853 (addresses in responses).
"""

import asyncio
from collections import namedtuple

Controller = namedtuple("Controller", ("id", "host", "port"))
UNKNOWN = -1


def voters_of(entries) -> dict:
    """Return {id: Controller} from `controller.quorum.voters` (`id@host:port` each, already
    validated).
    """
    found = {}
    for entry in entries:
        id_, _, address = entry.partition("@")
        host, _, port = address.rpartition(":")
        found[int(id_)] = Controller(int(id_), host.strip("[]"), int(port))
    return found


class Controllers:
    """voters: id -> Controller. `active_id`: of the active controller, -1 if unknown. `epoch`: the
    newest known epoch.
    """

    def __init__(self, voters: dict):
        assert voters
        self.voters = dict(voters)
        self.active_id = UNKNOWN
        self.epoch = -1
        self._turn = 0
        self._change: asyncio.Future | None = None

    def next(self) -> Controller:
        """Return the next controller to use: the active one, else each voter in turn."""
        active = self.voters.get(self.active_id)
        if active is not None:
            return active
        return list(self.voters.values())[self._turn % len(self.voters)]

    def learned(self, leader_id: int, epoch: int, endpoints=()) -> bool:
        """Apply the leader of an epoch, -1 for none, from a controller's response. Returns True if
        next() changes. endpoints: (id, host, port) in the response.
        """
        if epoch < self.epoch:
            # An older epoch's leader never replaces a newer one.
            return False
        before = self.active_id
        if leader_id != UNKNOWN or epoch > self.epoch:
            self.active_id = leader_id
        self.epoch = epoch
        for id_, host, port in endpoints:
            if id_ == leader_id and id_ in self.voters:
                self.voters[id_] = Controller(id_, host, port)
        if self.active_id == before:
            return False
        if self._change is not None:
            self._change.set_result(None)
            self._change = None
        return True

    def change(self) -> asyncio.Future:
        """Return the shared future that completes once another controller becomes active. Wait for
        it, but do not cancel it.
        """
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def refused(self, controller_id: int) -> None:
        """Note that this controller is not active. The leader of the newest epoch is tried again:
        it is about to take over, or its successor will be reported.
        """
        if controller_id != self.active_id:
            self.failed(controller_id)

    def failed(self, controller_id: int) -> None:
        """Note that this controller could not be reached; next() returns another one."""
        if controller_id == self.active_id:
            self.active_id = UNKNOWN
        if self.next().id == controller_id:
            self._turn += 1
