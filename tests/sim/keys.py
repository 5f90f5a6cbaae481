"""A model of etcd: keys and leases on several machines, and clients that lose responses.

Owns: the keys.
Invariants: atomicity: a transaction takes effect as a whole at one time, while a majority of the
  members has a leader; lost responses: a client may miss the response of a transaction, which may
  take effect late; leases: a key disappears with its lease.
Source: etcd 3.
"""

import asyncio
import contextlib
from collections import namedtuple

from pylog.metadata.quorum.key_value import (
    Absent, TransactionResult, Delete, Get, Keys, KeysError, MemberState, Put, Row, Unknown,
    Unreachable,
)
from tests.sim.loop import OWNER

ANSWER_SECONDS = 0.5
Entry = namedtuple("Entry", ("value", "lease"))


class Store:
    """The store. members: the host of each member, None for one without data."""

    def __init__(self, network, members):
        self.network, self.loop = network, network.loop
        self.members = members
        self.keys: dict = {}
        self.leases: dict = {}  # id -> (ttl, expiry time)
        self.watches: list = []  # (process, callback)
        self.leaderless_until = 0.0

    def answers(self, name: str) -> bool:
        """Return True if a host reaches a member that belongs to a majority."""
        if self.loop.time() < self.leaderless_until:
            return False
        reaches = self.network.reaches
        for member in self.with_data:
            near = [other for other in self.with_data
                    if other == member and self.network.hosts[other].powered
                    or other != member and reaches(member, other)]
            if len(near) * 2 > len(self.members) and (member == name or reaches(name, member)):
                return True
        return False

    @property
    def with_data(self) -> list:
        return [member for member in self.members if member is not None]

    def read_keys(self, looks) -> list:
        self.expire()
        return [self._rows(look) for look in looks]

    def _rows(self, look) -> list:
        if isinstance(look, Get):
            return [self._row(look.key)] if look.key in self.keys else []
        first = look.folder + look.first
        return [self._row(key) for key in sorted(self.keys)
                if key.startswith(look.folder) and key >= first][:look.count_max]

    def _row(self, key) -> Row:
        return Row(key, self.keys[key].value)

    def transact(self, conditions, changes, looks) -> TransactionResult:
        """Apply a transaction. Keeps atomicity."""
        self.expire()
        if not all(map(self._holds, conditions)):
            return TransactionResult(False, [self._rows(look) for look in looks])
        for change in changes:
            if isinstance(change, Put):
                self.keys[change.key] = Entry(change.value, change.lease)
            elif isinstance(change, Delete):
                self.keys.pop(change.key, None)
        self._stir()
        return TransactionResult(True, [])

    def _holds(self, condition) -> bool:
        entry = self.keys.get(condition.key)
        if isinstance(condition, Absent):
            return entry is None
        return entry is not None and entry.value == condition.value

    def drop(self, conditions, folder, below) -> bool:
        if not all(map(self._holds, conditions)):
            return False
        for key in [key for key in self.keys if folder <= key < folder + below]:
            del self.keys[key]
        return True

    def expire(self) -> None:
        """Delete the keys of expired leases. Keeps leases."""
        now = self.loop.time()
        for lease in [id_ for id_, (_, end) in self.leases.items() if end <= now]:
            del self.leases[lease]
            gone = [key for key, entry in self.keys.items() if entry.lease == lease]
            for key in gone:
                del self.keys[key]
            if gone:
                self._stir()

    def look_after_leases(self) -> None:
        """Expire leases in time and notify watches."""
        if any(map(self.answers, self.with_data)):
            self.expire()
        self.loop.call_later(0.2, self.look_after_leases)

    def _stir(self) -> None:
        self.watches = [watch for watch in self.watches if watch[0].alive]
        for process, stir in self.watches:
            if self.answers(process.host):
                token = OWNER.set(process)
                self.loop.call_later(self.network.random.uniform(0.0003, 0.003), stir)
                OWNER.reset(token)


class Client(Keys):
    """The client of one process: calls block its thread."""

    name = "a model"
    value_bytes_max = 1_200_000

    def __init__(self, store: Store, process, random):
        self._store, self._process, self._random = store, process, random
        self.addresses = [f"{member}:2379" for member in store.with_data]
        self.unsure = 0.0  # Fraction of changes whose response is lost.

    def close(self) -> None:
        pass

    def _asked(self) -> None:
        loop = self._store.loop
        loop.block(self._random.uniform(0.0005, 0.004))
        if not self._store.answers(self._process.host):
            loop.block(ANSWER_SECONDS if self._random.random() < 0.7 else 0.01)
            raise Unreachable("no member answers")

    def _changed(self, change):
        """Apply a change whose response may be lost. Keeps lost responses."""
        self._asked()
        loop, lost = self._store.loop, self._random.random()
        if lost < self.unsure / 2:
            if lost < self.unsure / 4:
                loop.call_later(self._random.uniform(0.001, 2 * ANSWER_SECONDS), _late, change)
            loop.block(self._random.uniform(0.01, ANSWER_SECONDS))
            raise Unknown("lost on its way")
        result = change()
        if lost < self.unsure:
            loop.block(self._random.uniform(0.01, ANSWER_SECONDS))
            raise Unknown("its answer is lost")
        loop.block(self._random.uniform(0.0002, 0.001))
        return result

    def state_of(self, address) -> MemberState:
        answers = self._store.answers(address.partition(":")[0])
        return MemberState(address, answers, False, self.name, -1,
                           "" if answers else "it does not answer")

    def read_keys(self, looks) -> list:
        self._asked()
        found = self._store.read_keys(looks)
        self._store.loop.block(self._random.uniform(0.0002, 0.001))
        return found

    def transact(self, conditions, changes, looks=()) -> TransactionResult:
        return self._changed(lambda: self._store.transact(conditions, changes, looks))

    def drop(self, conditions, folder, below) -> bool:
        return self._changed(lambda: self._store.drop(conditions, folder, below))

    def grant(self, ttl_s: int) -> int:
        def change():
            lease = self._random.getrandbits(48)
            self._store.leases[lease] = ttl_s, self._store.loop.time() + ttl_s
            return lease
        return self._changed(change)

    def keep_alive(self, lease: int) -> int:
        def change():
            known = self._store.leases.get(lease)
            if known is None:
                return 0
            self._store.leases[lease] = known[0], self._store.loop.time() + known[0]
            return known[0]
        return self._changed(change)

    async def watch(self, folder: str, stir) -> None:
        self._store.watches.append((self._process, stir))
        await asyncio.Event().wait()


def _late(change) -> None:
    """Apply a change whose client has given up. Its rejection reaches no client."""
    with contextlib.suppress(KeysError, Unknown):
        change()
