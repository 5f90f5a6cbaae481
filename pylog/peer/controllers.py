"""The cluster's controllers: where they are, and which of them is active as far as this node knows.

Owns: that knowledge.
Invariants: (1) there is always one to be asked next: the active one while it is known, else each
  voter in turn; (2) an older epoch's leader never takes the place of a newer one's.
Source: KIP-595 (voters), KIP-853 (the addresses that answers name).
"""

import asyncio
from collections import namedtuple

Controller = namedtuple("Controller", ("id", "host", "port"))
UNKNOWN = -1


def voters_of(entries) -> dict:
    """Id -> Controller, of `controller.quorum.voters` (`id@host:port` each, checked before)."""
    found = {}
    for entry in entries:
        id_, _, address = entry.partition("@")
        host, _, port = address.rpartition(":")
        found[int(id_)] = Controller(int(id_), host.strip("[]"), int(port))
    return found


class Controllers:
    """voters: id -> Controller. `active_id`: of the active one, -1 while it is not known. `epoch`:
    the newest that was heard of."""

    def __init__(self, voters: dict):
        assert voters
        self.voters = dict(voters)
        self.active_id = UNKNOWN
        self.epoch = -1
        self._turn = 0
        self._change: asyncio.Future | None = None

    def next(self) -> Controller:
        """Whom to ask (1)."""
        active = self.voters.get(self.active_id)
        if active is not None:
            return active
        return list(self.voters.values())[self._turn % len(self.voters)]

    def learned(self, leader_id: int, epoch: int, endpoints=()) -> bool:
        """Some controller named the leader of an epoch, -1 for none. Whether that changes whom to
        ask. endpoints: (id, host, port), the addresses that came with it."""
        if epoch < self.epoch:
            # Keeps (2).
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
        """Done once some controller names another active one than is known now. It is shared: wait
        for it, and do not cancel it."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def refused(self, controller_id: int) -> None:
        """That one is not the active one. Who leads the newest epoch that was heard of is asked
        again: it is about to take over, or its successor will be heard of."""
        if controller_id != self.active_id:
            self.failed(controller_id)

    def failed(self, controller_id: int) -> None:
        """That one could not be reached: another is asked next."""
        if controller_id == self.active_id:
            self.active_id = UNKNOWN
        if self.next().id == controller_id:
            self._turn += 1
