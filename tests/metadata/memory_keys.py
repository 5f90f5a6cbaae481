"""Keys in memory, for tests of code above metadata.keys."""

import asyncio
import itertools
import time
from types import SimpleNamespace

from pylog.metadata.quorum.key_value import Keys, MemberState
from tests.sim.keys import Store

LEASES = itertools.count(1)


class MemoryKeys(Keys):
    """A client of a tests.sim.keys.Store. `gone`: the members that do not respond."""

    name = "memory"
    value_bytes_max = 1_200_000

    def __init__(self, store, addresses=("m1", "m2", "m3"), gone=()):
        self.store, self.addresses, self.gone = store, list(addresses), gone

    def close(self):
        pass

    def state_of(self, address):
        is_there = address not in self.gone
        return MemberState(address, is_there, address == "m1", "1", 0,
                           "" if is_there else "it does not answer")

    def read_keys(self, looks):
        return self.store.read_keys(looks)

    def transact(self, conditions, changes, looks=()):
        return self.store.transact(conditions, changes, looks)

    def drop(self, conditions, folder, below):
        return self.store.drop(conditions, folder, below)

    def grant(self, ttl_s):
        lease = next(LEASES)
        self.store.leases[lease] = ttl_s, self.store.loop.time() + ttl_s
        return lease

    def keep_alive(self, lease):
        ttl_s = self.store.leases.get(lease, (0, 0))[0]
        if ttl_s:
            self.store.leases[lease] = ttl_s, self.store.loop.time() + ttl_s
        return ttl_s

    async def watch(self, folder, stir):
        await asyncio.get_running_loop().create_future()


def memory_store(clock=time.monotonic):
    """Return a Store whose leases end by that clock."""
    return Store(SimpleNamespace(loop=SimpleNamespace(time=clock)), [])


class MemoryServers:
    """Like tests.fixtures.etcds.Etcds, for tests that need no processes."""

    addresses = ["m1", "m2", "m3"]

    def __init__(self):
        self.store, self.gone = memory_store(), set()

    def keys(self, ttl_s):
        return MemoryKeys(self.store, self.addresses, self.gone)

    def end_lease(self, keys, lease):
        self.store.leases[lease] = 0, 0

    def leader(self):
        return 1

    def kill(self, number):
        self.gone.add(f"m{number}")

    def start_member(self, number):
        self.gone.discard(f"m{number}")

    def await_leader(self):
        pass
