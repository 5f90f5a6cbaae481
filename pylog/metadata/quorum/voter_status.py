"""Each controller's position in the metadata log, read from its own etcd member.

Owns: the time of each controller's last response.
Invariants: one query of the members runs at a time, outside the loop, for any number of callers;
  the response of a member without a leader is ignored, because its data may be outdated.
Source: KIP-595, KIP-836 (replica states of DescribeQuorum); etcd's serializable reads.
"""

import asyncio
from collections import namedtuple

from pylog import supervisor
from pylog.eventloop.threads import in_thread
from pylog.metadata.quorum.key_value import KeysError, Unreachable

Voter = namedtuple("Voter", ("id", "end_offset", "heard_ms", "caught_up_ms"), defaults=(-1, -1, -1))
Voter.__doc__ = "A controller's last known state; wall clock, -1 if it never responded."


class Voters:
    """addresses: {node id: address of its etcd}. connect: function from an address to an Etcd. key:
    of the log's end. now_ms: the wall clock.
    """

    def __init__(self, addresses: dict, connect, key: str, now_ms):
        assert addresses
        self._addresses = addresses
        self._connect = connect
        self._key = key
        self._now_ms = now_ms
        self._known = [Voter(node_id) for node_id in addresses]
        self._query: asyncio.Task | None = None

    async def states(self, end: int) -> list:
        """Return the current Voter of each controller. end: the log's end offset, to compare with.
        """
        # Share one query: a hanging member would otherwise take a thread for each caller.
        if self._query is None:
            self._query = asyncio.get_running_loop().create_task(self._fetch(end))
        return await asyncio.shield(self._query)

    async def _fetch(self, end: int) -> list:
        try:
            end_offsets = await in_thread(self._ends)
        finally:
            self._query = None
        now_ms = self._now_ms()
        self._known = [
            voter if found is None else Voter(
                voter.id, found, now_ms, now_ms if found >= end else voter.caught_up_ms)
            for voter, found in zip(self._known, end_offsets, strict=True)]
        return self._known

    def _ends(self) -> list:
        with supervisor.executor("quorum-voters", len(self._addresses)) as pool:
            return list(pool.map(self._end_at, self._addresses.values()))

    def _end_at(self, address: str) -> int | None:
        """Return the log's end in that etcd, None without a valid response."""
        etcd = self._connect(address)
        try:
            row = etcd.get_here(self._key)
            # Check after the read: data read while the member had no leader may be outdated.
            if not etcd.state_of(address).answers:
                return None
        except (KeysError, Unreachable):
            return None
        finally:
            etcd.close()
        return int(row.value) if row is not None else 0
