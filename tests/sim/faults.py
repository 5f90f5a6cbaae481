"""Faults of a simulated cluster.

Owns: the active faults.
Invariants: every fault ends by itself, at the latest with over().
Source: none.
"""

from pylog.protocol.api_error import Refusal
from tests.sim.loop import OWNER, Wrong
from tests.sim.network import LATENCY_S


class Faults:
    """Inject faults into a world."""

    def __init__(self, world):
        self._world, self._random = world, world.random
        # Each seed weights the kinds of faults differently.
        kinds = (self._kill, self._cut_power, self._stop, self._halt, self._cut, self._isolate,
                 self._reset, self._slow_network, self._lose_quorum, self._lose_answers,
                 self._slow_disk, self._allocate, self._vanish, self._fill_disk,
                 self._fail_directory, self._set_clock)
        self._kinds = [(kind, self._random.choice((0, 1, 1, 3))) for kind in kinds]
        if world.has_disasters and world.flush_first:
            self._kinds.append((self._cut_all_power, 2))
        if world.has_disasters and not world.coordinates:
            # Transactions do not survive the loss of all records of their coordinator.
            self._kinds.append((self._delete_directory, 2))
        self._timers: list = []

    def next(self) -> None:
        """Inject one more fault."""
        kinds, weights = zip(*self._kinds)
        if any(weights):
            self._random.choices(kinds, weights)[0]()

    def begin(self) -> None:
        """Schedule the fault of etcd's members, if the world has one."""
        members = self._world.members
        if members.kind:
            node = members.random.choice(self._world.controllers)
            self._later(members.starts_after_s, members.starts_after_s,
                        self._duplicate if members.kind == "duplicate" else self._replace_disk,
                        node)

    def over(self) -> None:
        world = self._world
        for timer in self._timers:
            timer.cancel()  # Failures that are still due are cancelled too.
        world.network.latency_s = LATENCY_S
        for host in world.network.hosts.values():
            host.powered = True
        world.network.heal()
        world.etcd.leaderless_until = 0.0
        emptied = world.members.end()
        for node in world.nodes.values():
            if node.name in emptied and node.alive:
                node.kill()
            node.flush_s, node.unsure, node.clock_ms = 0.002, 0.0, 0
            node.disk.is_full = False
            if node.alive and (node.process.stopping or any(
                    directory.offline for directory in node.disk.directories)):
                node.kill()
            if node.alive:
                world.loop.go_on(node.process)
                if node.process.etcd is not None:
                    node.process.etcd.unsure = 0.0
            else:
                node.start()

    def _duplicate(self, node) -> None:
        """Start an empty node with the addresses of a controller, which may fail too."""
        members = self._world.members
        members.start_duplicate(node)
        if members.has_long_outage:
            self._power_off(node)
            self._later(11.0, 14.0, self._start, node)

    def _replace_disk(self, node) -> None:
        """Replace the disk with the etcd data of a controller."""
        self._power_off(node)
        self._world.members.lose_data(node)
        self._later(0.3, 6.0, self._start, node)

    def _power_off(self, node) -> None:
        if node.alive:
            node.kill(silent=True)
        else:
            self._world.network.power_off(node.name)

    def _later(self, least_s, most_s, callback, *arguments) -> None:
        token = OWNER.set(None)
        self._timers.append(self._world.loop.call_later(
            self._random.uniform(least_s, most_s), callback, *arguments))
        OWNER.reset(token)

    def _node(self):
        return self._random.choice(list(self._world.nodes.values()))

    # ---- processes ------------------------------------------------------------------------------

    def _start(self, node) -> None:
        self._world.network.hosts[node.name].powered = True
        if not node.alive:
            node.start()

    def _kill(self) -> None:
        node = self._node()
        if node.alive:
            node.kill()
        self._later(0.05, 5.0, self._start, node)

    def _cut_power(self) -> None:
        world = self._world
        node = self._node() if world.flush_first else world.weak
        if node.alive:
            node.kill(power=True, silent=self._random.random() < 0.5)
        self._later(0.3, 6.0, self._start, node)

    def _cut_all_power(self) -> None:
        """Cut the power of every machine; each comes back at another time."""
        world = self._world
        for node in world.nodes.values():
            if node.alive:
                node.kill(power=True, silent=True)
            else:
                # Nothing has flushed the records that the last process left in the page cache.
                node.disk.forget(self._random)
            self._later(0.3, 8.0, self._start, node)

    def _vanish(self) -> None:
        """Power off a machine without closing its connections."""
        node = self._node()
        if node.alive:
            node.kill(silent=True)
        self._later(0.3, 6.0, self._start, node)

    def _stop(self) -> None:
        node = self._node()
        process = node.process
        if node.alive and not process.stopping and process.metadata is not None and (
                process.membership is not None or "broker" not in node.roles):
            self._world.in_name_of(process, process.leave())
        self._later(1.0, 4.0, self._restart, node, 0)

    def _restart(self, node, tries) -> None:
        if not node.alive:
            self._start(node)
        elif tries < 10 and node.process.stopping:
            self._later(0.5, 1.0, self._restart, node, tries + 1)
        elif node.process.stopping:
            node.kill()
            self._start(node)

    def _halt(self) -> None:
        node = self._node()
        if node.alive and not node.process.halted:
            node.process.halted = True
            self._later(0.3, 7.0, self._world.loop.go_on, node.process)

    # ---- the network ----------------------------------------------------------------------------

    def _cut(self) -> None:
        one, other = self._random.sample([*self._world.network.hosts], 2)
        ways = [(one, other)] if self._random.random() < 0.5 else [(one, other), (other, one)]
        for way in ways:
            self._world.network.sever(*way)
        self._later(0.2, 6.0, self._world.network.heal, *ways)

    def _isolate(self) -> None:
        name = self._node().name
        others = [other for other in self._world.network.hosts if other != name]
        ways = [(name, other) for other in others] + [(other, name) for other in others]
        for way in ways:
            self._world.network.sever(*way)
        self._later(0.2, 6.0, self._world.network.heal, *ways)

    def _reset(self) -> None:
        if self._world.network.ends:
            self._world.network.reset(self._random.choice(self._world.network.ends))

    def _slow_network(self) -> None:
        network = self._world.network
        network.latency_s = (0.001, self._random.choice((0.02, 0.1, 0.4)))
        self._later(0.5, 4.0, setattr, network, "latency_s", LATENCY_S)

    # ---- the quorum and the disks ---------------------------------------------------------------

    def _lose_quorum(self) -> None:
        self._world.etcd.leaderless_until = self._world.loop.time() + self._random.uniform(0.3, 2.5)

    def _lose_answers(self) -> None:
        node = self._random.choice(self._world.controllers)
        self._unsure(node, self._random.uniform(0.1, 0.6))
        self._later(0.5, 4.0, self._unsure, node, 0.0)

    @staticmethod
    def _unsure(node, share: float) -> None:
        node.unsure = share
        if node.alive and node.process.etcd is not None:
            node.process.etcd.unsure = share

    def _slow_disk(self) -> None:
        node = self._node()
        node.flush_s = self._random.uniform(0.05, 1.0)
        self._later(0.5, 4.0, setattr, node, "flush_s", 0.002)

    def _fill_disk(self) -> None:
        node = self._node()
        node.disk.is_full = True
        self._later(0.3, 5.0, setattr, node.disk, "is_full", False)

    def _fail_directory(self) -> None:
        """Fail a directory. The disk loses unflushed records, as without power."""
        world = self._world
        node = self._random.choice(world.brokers) if world.flush_first else world.weak
        if node.alive and node.process.membership is not None:
            node.fail_directory(self._random.choice((0, 1, 1, 1)))
            self._later(2.0, 8.0, self._repair, node)

    def _delete_directory(self) -> None:
        """Delete a log directory's files while the running process has them open."""
        node = self._random.choice(self._world.brokers)
        if node.alive and node.process.membership is not None:
            node.disk.deleted.add(self._random.choice((0, 1, 1, 1)))
            self._later(2.0, 8.0, self._repair, node)

    def _repair(self, node) -> None:
        if node.alive and any(directory.offline for directory in node.disk.directories):
            node.kill()
        self._start(node)

    def _set_clock(self) -> None:
        self._node().clock_ms = self._random.randint(
            -self._world.clock_ms, self._world.clock_ms)

    # ---- requests -------------------------------------------------------------------------------

    def _allocate(self) -> None:
        node = self._random.choice(self._world.brokers)
        if node.alive and node.process.membership is not None:
            self._world.in_name_of(node.process, self._take_producer_id(node.process))

    async def _take_producer_id(self, process) -> None:
        try:
            found = await process.membership.controller.next_producer_id()
        except Refusal:
            return
        if found in self._world.producer_ids:
            raise Wrong(f"the producer id {found} was given out twice")
        self._world.producer_ids.add(found)
