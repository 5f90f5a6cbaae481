"""Several brokers in one cluster, in the test's process or each in a child process.

Owns: the brokers, the controller, and the network faults between them.
Invariants: the controller is a separate node that starts first, stops last and is never disturbed;
  each node keeps its address across restarts; each pair of nodes has two links, one per direction
  of connecting, each with a dedicated listener.
"""

from __future__ import annotations

import concurrent.futures
import secrets
import shutil
import socket
import threading
from typing import Any

from pylog.testing import links
from pylog.testing.broker import Broker
from pylog.testing.errors import BrokerFailed

SETTINGS = {"min.insync.replicas": "1",
            "broker.heartbeat.interval.ms": "100", "broker.session.timeout.ms": "3000"}
CONTROLLER = 0
CLIENT_PORT, LINK_PORT = 9092, 9100
WAIT_S = 30.0
POLL_S = 0.01


class Cluster:
    """A cluster: `with Cluster(3) as cluster`, or start() and close().

    `brokers`: by node id, from 1. settings: of all brokers, by Kafka's names, with dots or
    underscores. processes: use a child process per broker. log_dirs: log directories per broker.
    """

    def __init__(self, count: int = 3, *, settings: dict[str, Any] | None = None,
                 processes: bool = False, log_dirs: int = 1):
        if count < 1:
            raise BrokerFailed(f"a cluster needs more than {count} broker")
        self._count = count
        self._processes = processes
        self._network = _free_network()
        self._deaf: set[tuple[int, int]] = set()  # (receiver, sender)
        self._paused: set[int] = set()
        given = {name.replace("_", "."): value for name, value in (settings or {}).items()}
        replicas = min(count, 3)
        common = {**SETTINGS, "default.replication.factor": replicas,
                  "offsets.topic.replication.factor": replicas,
                  "transaction.state.log.replication.factor": replicas,
                  "share.coordinator.state.topic.replication.factor": replicas, **given}
        self._controller = Broker(process=processes, host=self._host(CONTROLLER), settings={
            **common, **self._place(CONTROLLER)})
        self.brokers = {number: Broker(
            process=processes, host=self._host(number), log_dirs=log_dirs,
            settings={**common, **self._place(number)}) for number in range(1, count + 1)}

    def _host(self, number: int) -> str:
        return f"{self._network}{number + 1}"

    def _link(self, server: int, client: int) -> tuple[str, int]:
        """Return the address on which `server` accepts connections from `client`."""
        return self._host(server), LINK_PORT + client

    def _place(self, number: int) -> dict[str, Any]:
        """Return the settings of one node: its id, role and listeners."""
        names = {client: f"FROM{client}" for client in range(1, self._count + 1)}
        listeners = [f"{name}://{host}:{port}" for client, name in names.items()
                     for host, port in [self._link(number, client)]]
        found: dict[str, Any] = {"node.id": number}
        if number == CONTROLLER:
            host, port = self._link(CONTROLLER, 1)
            return {**found, "process.roles": "controller", "listeners": listeners,
                    "controller.listener.names": list(names.values()),
                    "controller.quorum.voters": f"{CONTROLLER}@{host}:{port}",
                    "listener.security.protocol.map": _plain([*names.values()])}
        listeners.insert(0, f"PLAINTEXT://{self._host(number)}:{CLIENT_PORT}")
        host, port = self._link(CONTROLLER, number)
        return {**found, "process.roles": "broker", "listeners": listeners,
                "advertised.listeners": listeners,
                "inter.broker.listener.name": names[number],
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": _plain(["PLAINTEXT", "CONTROLLER",
                                                          *names.values()]),
                "controller.quorum.voters": f"{CONTROLLER}@{host}:{port}"}

    # ---- life -----------------------------------------------------------------------------------

    def start(self) -> Cluster:
        """Start all nodes and wait until they have joined. Raises BrokerFailed."""
        try:
            self._controller.start()
            with concurrent.futures.ThreadPoolExecutor(self._count) as pool:
                for _ in pool.map(Broker.start, self.brokers.values()):
                    pass
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop all nodes and remove their directories."""
        self.heal()
        with concurrent.futures.ThreadPoolExecutor(self._count) as pool:
            for _ in pool.map(Broker.close, self.brokers.values()):
                pass
        self._controller.close()

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """Return the value for a client's bootstrap.servers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values() if broker.running)

    def __getitem__(self, number: int) -> Broker:
        return self.brokers[number]

    # ---- faults ---------------------------------------------------------------------------------

    def cut(self, one: int, other: int, *, one_way: bool = False) -> None:
        """Drop the traffic between two brokers, or with `one_way` only from `one` to `other`.

        Connections stay open, so requests hang. Clients still reach both brokers.
        """
        self._check(one, other)
        self._deaf |= {(other, one)} if one_way else {(other, one), (one, other)}
        self._apply()

    def isolate(self, number: int) -> None:
        """Cut a broker off from the controller and all other brokers, but not from clients."""
        self._check(number)
        self._deaf |= self._links_of(number)
        self._apply()

    def pause(self, number: int) -> None:
        """Pause a broker like SIGSTOP: its connections stay open, but it does not respond."""
        self._check(number)
        if number not in self._paused:
            self._paused.add(number)
            self._apply()
            self.brokers[number].pause()

    def resume(self, number: int) -> None:
        """Resume a paused broker."""
        self._check(number)
        if number in self._paused:
            self._paused.discard(number)
            self.brokers[number].resume()
            self._apply()

    def kill(self, number: int) -> None:
        """Kill a broker like SIGKILL. `cluster[number].start()` continues from its data on disk."""
        self._check(number)
        self.resume(number)
        self.brokers[number].die()

    def lose_disk(self, number: int, log_dir: int | None = None) -> None:
        """Fail a log directory, numbered from 0, while the broker runs.

        Without a number, or with its only log directory, the broker loses the whole machine: it is
        killed and restarts with empty disks.
        """
        self._check(number)
        broker = self.brokers[number]
        if log_dir is None or len(broker.log_dirs) == 1:
            self.kill(number)
            for path in broker.log_dirs:
                shutil.rmtree(path, ignore_errors=True)
            return
        broker.call("fail_directory", log_dir)

    def heal(self) -> None:
        """End all cuts and pauses. Killed brokers and lost disks stay as they are."""
        for number in list(self._paused):
            self.resume(number)
        self._deaf.clear()
        self._apply()

    def _links_of(self, number: int) -> set[tuple[int, int]]:
        """Return all links between a broker and the other nodes."""
        return {pair for other in (CONTROLLER, *self.brokers) if other != number
                for pair in ((number, other), (other, number))}

    def _check(self, *numbers: int) -> None:
        for number in numbers:
            if number not in self.brokers:
                raise BrokerFailed(f"there is no broker {number}")

    def _apply(self) -> None:
        rules = links.Rules()
        # A stopped process receives nothing anyway.
        still = () if self._processes else self._paused
        for who, to in self._deaf.union(*map(self._links_of, still)):
            if to != CONTROLLER:
                rules.accepted.add(self._link(who, to))
            if who != CONTROLLER:
                rules.dialled.add(self._link(to, who))
                # Otherwise the connection could still be accepted.
                rules.listeners.add(self._link(to, who))
        for number in still:
            rules.accepted.add((self._host(number), CLIENT_PORT))
        if not self._processes:
            links.apply(rules, self._network)
            return
        for node, broker in ((CONTROLLER, self._controller), *self.brokers.items()):
            if broker.running and node not in self._paused:
                broker.call("cut_links", rules, self._network)

    # ---- topics ---------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, replicas: int | None = None,
                     **settings: Any) -> str:
        """Create a topic and wait until it has leaders and all replicas are in sync.

        settings: of the topic, by Kafka's names with underscores. Raises Refused, BrokerFailed.
        """
        reached = self._reached()
        if not reached:
            raise BrokerFailed("no broker of the cluster can be reached")
        reached[0].create_topic(name, partitions, replicas=replicas or min(3, self._count),
                                 **settings)
        self.wait_in_sync(name)
        return name

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the leader of a partition, -1 for none."""
        return self._state(topic, partition)[0]

    def in_sync(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """Return the ISR of a partition, sorted."""
        return tuple(sorted(self._state(topic, partition)[1]))

    def wait_in_sync(self, topic: str, seconds: float = WAIT_S) -> None:
        """Wait until all replicas of a topic are in sync and every reachable broker has that
        metadata.

        Raises BrokerFailed on timeout.
        """
        def is_so() -> bool:
            states = self._controller.call("partitions", topic)
            return bool(states) and all(
                leader >= 0 and len(isr) == len(replicas) for leader, isr, replicas in states
            ) and all(broker.call("partitions", topic) == states for broker in self._reached())

        self.wait_until(is_so, seconds, f"the replicas of {topic} are not in sync")

    @staticmethod
    def wait_until(condition: Any, seconds: float = WAIT_S,
                   words: str = "the condition is not met") -> None:
        """Wait until `condition()` is true. Raises BrokerFailed after `seconds`."""
        for _ in range(max(1, round(seconds / POLL_S))):
            if condition():
                return
            threading.Event().wait(POLL_S)
        raise BrokerFailed(f"{words} after {seconds} s")

    def _state(self, topic: str, partition: int) -> Any:
        states = self._controller.call("partitions", topic)
        if partition >= len(states):
            raise BrokerFailed(f"there is no {topic}-{partition}")
        return states[partition]

    def _reached(self) -> list[Broker]:
        """Return the brokers that the controller can reach."""
        return [broker for number, broker in self.brokers.items()
                if broker.running and number not in self._paused
                and not {(number, CONTROLLER), (CONTROLLER, number)} & self._deaf]


def _plain(names: list[str]) -> str:
    return ",".join(f"{name}:PLAINTEXT" for name in names)


def _free_network() -> str:
    """Return a prefix of loopback addresses that no other cluster uses."""
    while True:
        one, two = secrets.randbelow(254) + 1, secrets.randbelow(256)
        prefix = f"127.{one}.{two}."
        with socket.socket() as probe:
            try:
                probe.bind((f"{prefix}1", LINK_PORT + 1))
            except OSError:
                continue
        return prefix
