"""A model of etcd's member list, and machines without etcd data that run pylog's Joining.

Owns: the member list, and which machine has a member's data.
Invariants: a duplicate brokerd runs only its etcd part: it never gets further while the node with
  its addresses lives; etcd rejects a new member unless all others are connected.
Source: etcd's runtime reconfiguration (strict-reconfig-check).
"""

import asyncio
import itertools
from contextlib import ExitStack, contextmanager
from unittest import mock

from pylog.log.errors import StartError
from pylog.metadata.quorum import etcd_bootstrap, etcd_health, etcd_probe
from pylog.metadata.quorum.etcd_bootstrap import (
    UNHEALTHY, Joining, Policy, hexadecimal, member_name,
)
from pylog.metadata.quorum.etcd_probe import ABSENT, MEMBERS, OTHER, PROBE_S, WAITING, Seen
from pylog.metadata.quorum.etcd_process import Host
from pylog.metadata.quorum.key_value import KeysError, MemberState, Unknown, Unreachable
from tests.sim.keys import ANSWER_SECONDS, Client
from tests.sim.loop import OWNER, Process

CLIENT_PORT, PEER_PORT = 2379, 2380
DUPLICATE = "duplicate"  # The machine of the second node with the same addresses.
RETRY_S = 1.0
SAMPLE_S = 0.1
# Pylog samples connections too, and may miss shorter ones.
CONNECTED_S = 1.0


class Member:
    """An entry of the member list. machine: the host with its data, None without one."""

    def __init__(self, id_: int, address: str, machine: str | None):
        self.id, self.address, self.machine = id_, address, machine
        self.has_run = machine is not None
        self._connected_since: float | None = None
        self.connected_at = float("-inf")  # End of its last connection that lasted CONNECTED_S.

    def sample(self, is_connected: bool, now_s: float) -> None:
        """Record whether another member is connected to it."""
        if not is_connected:
            self._connected_since = None
        elif self._connected_since is None:
            self._connected_since = now_s
        elif now_s - self._connected_since >= CONNECTED_S:
            self.connected_at = now_s

    @property
    def url(self) -> str:
        return f"http://{self.address}:{PEER_PORT}"

    def row(self, node_id: int) -> dict:
        """Return the entry in the format of both of etcd's interfaces."""
        return {"ID": str(self.id), "id": self.id, "peerURLs": [self.url],
                "name": member_name(node_id) if self.has_run else "",
                "clientURLs": [f"http://{self.address}:{CLIENT_PORT}"] if self.has_run else []}


class Members:
    """The member list of a world. It changes only in worlds that have a duplicate node or replace a
    disk.
    """

    def __init__(self, world):
        self._world, self.loop, self.network = world, world.loop, world.network
        # From a separate source, so that other seeds keep their histories.
        self.random = random = world.random_of("members of etcd")
        self.kind = random.choice(("", "", "", "", "duplicate", "disk"))
        # The addresses lead the duplicate node to itself, as with the same host name.
        self.sees_itself = random.random() < 0.7
        # Long enough for the duplicate node to replace the member.
        self.has_long_outage = random.random() < 0.5
        self.starts_after_s = random.uniform(0.0, 3.0)
        self.node_ids = {node.name: node.id for node in world.controllers}
        self.rows = [Member(node.id, node.name, node.name) for node in world.controllers]
        self._ids = itertools.count(100)
        self.listeners: dict = {}  # machine -> Listener
        self.nonces = itertools.count()
        self._removed: set = set()  # Machines with the data of a removed member.
        self.duplicate: Duplicate | None = None
        self.joined = self.refused = 0
        if self.kind == "duplicate":
            self.network.host(DUPLICATE)

    @property
    def machines(self) -> list:
        return [row.machine for row in self.rows]

    def begin(self) -> None:
        """Start sampling the connections between the members."""
        if self.kind:
            self._sample()

    def _sample(self) -> None:
        for row in self.rows:
            row.sample(any(self.is_connected(other, row) for other in self.rows
                           if other is not row), self.loop.time())
        self.loop.call_later(SAMPLE_S, self._sample)

    def is_connected(self, one: Member, other: Member) -> bool:
        return one.machine is not None and other.machine is not None \
            and self.network.reaches(one.machine, other.machine)

    def shown(self) -> tuple:
        return tuple(row.row(self.node_ids[row.address]) for row in self.rows)

    def at(self, address: str) -> Member | None:
        """Return the member at an address that has data."""
        return next((row for row in self.rows if row.address == address
                     and row.machine is not None), None)

    def answers(self, source: str, address: str) -> bool:
        """Return True if a host reaches the member at an address, and that has a leader."""
        row = self.at(address)
        return row is not None and self.network.reaches(source, row.machine) \
            and self._world.etcd.answers(row.machine)

    # ---- changes --------------------------------------------------------------------------------

    def remove(self, id_: int) -> dict:
        """Remove a member. Raises KeysError."""
        row = next((row for row in self.rows if row.id == id_), None)
        if row is None:
            raise KeysError("member not found")
        self._world.watcher.member_removed(row)
        self.rows.remove(row)
        if row.machine is not None:
            self._removed.add(row.machine)
        self._publish()
        return {}

    def add(self, url: str) -> dict:
        """Add a member that has not run. Raises KeysError, Unknown."""
        address = url.partition("://")[2].rpartition(":")[0]
        if any(row.address == address for row in self.rows):
            raise KeysError("Peer URLs already exists")
        if not all(self.is_connected(one, other) for one, other
                   in itertools.combinations(self.rows, 2)):
            raise Unknown(f"etcdserver: {UNHEALTHY}")
        self.rows.append(Member(next(self._ids), address, None))
        self._publish()
        return {}

    def _publish(self) -> None:
        self._world.etcd.members[:] = self.machines

    # ---- machines -------------------------------------------------------------------------------

    def probe(self, address: str) -> Seen:
        """Model of etcd_probe.probe()."""
        source = self.loop.thread_process().host
        self.loop.block(self.random.uniform(0.0005, 0.004))
        machine = address
        if source == DUPLICATE and self.sees_itself and address == self.duplicate.node.name:
            machine = source
        if not self.network.reaches(source, machine):
            self.loop.block(PROBE_S)
            return Seen(ABSENT)
        if machine in self.machines:
            return Seen(MEMBERS, self.shown())
        listener = self.listeners.get(machine)
        if listener is None or not listener.process.alive:
            return Seen(ABSENT)
        return Seen(OTHER) if listener.process.halted else Seen(WAITING, nonce=listener.nonce)

    async def join(self, process) -> bool:
        """Start the etcd of a process's machine; return False if it cannot start."""
        if process.host in self.machines:
            return True
        if process.host in self._removed:
            return False  # An operator moves its directory away: see end().
        node = process.node
        hosts = [Host(id_, name, CLIENT_PORT, PEER_PORT) for name, id_ in self.node_ids.items()]
        policy = Policy(lambda: None, "/pylog/",
                        node.settings["quorum.etcd.replace.after.ms"] / 1000,
                        node.settings["initial.broker.registration.timeout.ms"] / 1000)
        try:
            state = await SimulatedJoining(self, process, hosts, policy).state()
        except StartError:
            self.refused += 1
            return False
        self._world.watcher.member_starts(process, state)
        await asyncio.sleep(self.random.uniform(0.05, 1.0))
        row = next((row for row in self.rows
                    if row.address == node.name and not row.has_run), None)
        if row is None:
            return False
        row.machine, row.has_run = process.host, True
        self.joined += 1
        self._publish()
        return True

    # ---- faults ---------------------------------------------------------------------------------

    def start_duplicate(self, node) -> None:
        """Start a second brokerd with empty directories and a controller's addresses."""
        self.duplicate = Duplicate(node)
        self._world.in_name_of(self.duplicate, self._run_duplicate(self.duplicate))

    async def _run_duplicate(self, duplicate) -> None:
        while not await self.join(duplicate):
            await asyncio.sleep(RETRY_S)

    def lose_data(self, node) -> None:
        """Replace the disk with a powered-off controller's etcd data."""
        for row in self.rows:
            if row.machine == node.name:
                row.machine = None
        self._publish()

    def end(self) -> list:
        """Stop the duplicate node, and empty the directories of removed members. Returns the names
        of their machines.
        """
        if self.duplicate is not None:
            self.duplicate.alive = False
            for row in self.rows:
                if row.machine == DUPLICATE:
                    row.machine = None
            self._publish()
        emptied = sorted(self._removed)
        self._removed.clear()
        return emptied

    @contextmanager
    def replaced(self):
        """Replace what Joining uses of the network and of etcd by this model."""
        with ExitStack() as stack:
            for owner, name, model in (
                    (etcd_bootstrap, "Listener", lambda *_, **__: Listener(self)),
                    (etcd_probe, "probe", lambda host, port, context=None: self.probe(host)),
                    (etcd_probe, "check_free", lambda bind, port: None),
                    (etcd_health, "active_peers", lambda connect: connect.__self__.peers()),
                    (etcd_health, "state_of",
                     lambda address, connect, token: connect.__self__.state_of(address))):
                stack.enter_context(mock.patch.object(owner, name, model))
            yield


class Duplicate(Process):
    """A second brokerd with a controller's addresses and empty directories. node: that controller.
    """

    def __init__(self, node):
        super().__init__(f"duplicate of {node.name}")
        self.node, self.host = node, DUPLICATE


class Listener:
    """Model of etcd_probe.Listener."""

    def __init__(self, members: Members):
        self._members, self.process = members, OWNER.get()
        self.nonce = f"nonce {next(members.nonces)}"

    async def __aenter__(self):
        self._members.listeners[self.process.host] = self
        return self

    async def __aexit__(self, *_):
        if self._members.listeners.get(self.process.host) is self:
            del self._members.listeners[self.process.host]


class SimulatedJoining(Joining):
    """Joining with model clients."""

    def __init__(self, members: Members, process, hosts, policy):
        super().__init__(process.node.id, hosts, policy)
        self._members, self._process = members, process

    def _connect(self, addresses):
        return MemberClient(self._members, self._process, addresses)


class MemberClient(Client):
    """The client of a node without data. addresses: "host:port" of the members that it uses."""

    def __init__(self, members: Members, process, addresses):
        super().__init__(members._world.etcd, process, members.random)
        self._members = members
        self.addresses = addresses
        self.unsure = process.node.unsure

    def _asked(self):
        loop = self._members.loop
        loop.block(self._random.uniform(0.0005, 0.004))
        if not any(self._members.answers(self._process.host, address.partition(":")[0])
                   for address in self.addresses):
            loop.block(ANSWER_SECONDS)
            raise Unreachable("no member answers")

    def read(self, method: str, body: dict) -> dict:
        assert method == "cluster/member/list", method
        self._asked()
        return {"members": list(self._members.shown())}

    def change(self, method: str, body: dict) -> dict:
        return self._changed({
            "cluster/member/remove": lambda: self._members.remove(int(body["ID"])),
            "cluster/member/add": lambda: self._members.add(body["peerURLs"][0]),
            "lease/revoke": lambda: self._revoke(body["ID"]),
        }[method])

    def _revoke(self, lease: int) -> dict:
        ttl, _ = self._store.leases.get(lease, (0, 0.0))
        self._store.leases[lease] = ttl, self._members.loop.time()
        self._store.expire()
        return {}

    def connection(self):
        raise AssertionError("the model connects no sockets")

    def peers(self) -> dict | None:
        """Model of etcd_health.active_peers() for the first address."""
        loop, members = self._members.loop, self._members
        loop.block(self._random.uniform(0.0005, 0.004))
        own = members.at(self.addresses[0].partition(":")[0])
        if own is None or not self._members.network.reaches(self._process.host, own.machine):
            loop.block(ANSWER_SECONDS)
            return None
        return {hexadecimal(row.id): members.is_connected(own, row) for row in members.rows
                if row is not own}

    def state_of(self, address) -> MemberState:
        self._members.loop.block(self._random.uniform(0.0005, 0.004))
        answers = self._members.answers(self._process.host, address.partition(":")[0])
        return MemberState(address, answers, False, self.name, -1,
                           "" if answers else "it does not answer")
