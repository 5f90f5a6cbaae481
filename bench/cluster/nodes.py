"""Clusters of three, on loopback or on machines of a network: brokerds with their etcds, and Apache
Kafkas.

Owns: the processes, their directories below `root`.
Invariants: every node of either kind is both broker and controller; a node keeps its ports and data
  across restarts; CPU and memory of a node are those of its process and, for a brokerd, its etcd,
  reported separately.
"""

import time
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench.brokers import PylogBroker
from bench.kafka import KafkaBroker, new_cluster_id
from bench.network import Network, address
from pylog.testing.ports import free_port
from bench.process import BrokerFailed, cpu_seconds, rss_bytes

NODES = (1, 2, 3)
JOIN_WAIT_S = 120.0


def children(pid: int) -> list[int]:
    """Return the child processes of `pid` that it has not yet waited for."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in tasks for child in path.read_text().split()]


class PylogNode(PylogBroker):
    """A brokerd of a cluster; on loopback its address for controllers and etcd is 127.0.0.NUMBER.
    `etcd`: its client address.
    """

    etcd = ""

    def _start(self) -> None:
        self.port = self.wanted_port
        self.spawn_brokerd()

    def etcd_pids(self) -> list[int]:
        return children(self.pid)


class KafkaNode(KafkaBroker):
    """A Kafka of a cluster: all its settings are passed explicitly."""

    def _settings(self) -> dict:
        return {"log.dirs": self.data_dir, **self.overrides}

    def _start(self) -> None:
        self.port = self.wanted_port
        self.spawn_kafka()

    def etcd_pids(self) -> list[int]:
        return []


def _pylog_nodes(root: Path, overrides: dict, network: Network | None) -> dict:
    """The same settings as `brokerd --cluster`, except for the ports."""
    clients, peers, control = free_port(), free_port(), free_port()
    inner = {number: f"127.0.0.{number}" if network is None else address(number)
             for number in NODES}
    voters = ",".join(f"{number}@{inner[number]}:{control}" for number in NODES)
    nodes = {}
    for number in NODES:
        port, host = free_port(), "127.0.0.1" if network is None else address(number)
        nodes[number] = PylogNode(root / f"pylog-{number}", port, {
            "node.id": number, "process.roles": "broker,controller",
            "controller.quorum.voters": voters, "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{host}:{port},CONTROLLER://{inner[number]}:{control}",
            "quorum.etcd.client.port": clients, "quorum.etcd.peer.port": peers,
            "default.replication.factor": 3, "min.insync.replicas": 2,
            "broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500, **overrides})
        nodes[number].etcd = f"{inner[number]}:{clients}"
    return nodes


def _kafka_nodes(root: Path, overrides: dict, network: Network | None) -> dict:
    ports = {number: (free_port(), free_port()) for number in NODES}
    hosts = {number: "127.0.0.1" if network is None else address(number) for number in NODES}
    voters = ",".join(f"{number}@{hosts[number]}:{ports[number][1]}" for number in NODES)
    cluster_id = new_cluster_id()
    nodes = {}
    for number, (port, control) in ports.items():
        node = KafkaNode(root / f"kafka-{number}", port, {
            "node.id": number, "process.roles": "broker,controller",
            "controller.quorum.voters": voters, "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{hosts[number]}:{port},"
                         f"CONTROLLER://{hosts[number]}:{control}",
            "advertised.listeners": f"PLAINTEXT://{hosts[number]}:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "default.replication.factor": 3, "min.insync.replicas": 2,
            "group.initial.rebalance.delay.ms": 0, **overrides})
        node.cluster_id = cluster_id
        nodes[number] = node
    return nodes


class Cluster:
    """`nodes` by id. Provides the interface that bench.loads needs for the whole cluster; port and
    process are those of node 1, which leads the partitions that the loads write. network: gives
    each node a separate machine.
    """

    access = None  # Loads connect in plain text.

    def __init__(self, name: str, root: Path, overrides: dict | None = None,
                 network: Network | None = None):
        self.name = name
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        make = _kafka_nodes if name.startswith("kafka") else _pylog_nodes
        self.nodes = make(root, overrides or {}, network)
        for number, node in self.nodes.items() if network is not None else ():
            node.host, node.enter = address(number), network.enter(number)

    def start(self) -> "Cluster":
        for node in self.nodes.values():
            node.start()
        for node in self.nodes.values():
            node.wait_answer(JOIN_WAIT_S)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        end_s = time.monotonic() + JOIN_WAIT_S
        while len(admin.list_topics(timeout=JOIN_WAIT_S).brokers) < len(NODES):
            if time.monotonic() > end_s:
                raise BrokerFailed(f"{self.name}: not all brokers have joined")
            time.sleep(0.1)
        return self

    @property
    def port(self) -> int:
        return self.nodes[1].port

    @property
    def pid(self) -> int:
        return self.nodes[1].pid

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    load_port, load_bootstrap = port, bootstrap

    def cpu(self) -> dict[str, float]:
        """Return CPU seconds by `node-1` … and `etcd` (all three of them)."""
        spent = {f"node-{number}": cpu_seconds(node.pid)
                 for number, node in self.nodes.items() if node.alive()}
        etcds = [pid for node in self.nodes.values() if node.alive() for pid in node.etcd_pids()]
        return {**spent, "etcd": sum(cpu_seconds(pid) for pid in etcds)}

    def cpu_seconds(self) -> float:
        return sum(self.cpu().values())

    def rss(self) -> dict[str, float]:
        """Return MB of the largest node, and of its etcd."""
        return {
            "rss_mb": max(rss_bytes(node.pid) for node in self.nodes.values()) / 1e6,
            "etcd_rss_mb": max((rss_bytes(pid) for node in self.nodes.values()
                                for pid in node.etcd_pids()), default=0) / 1e6,
        }

    def stop(self) -> None:
        """Stop all at once: the last controller has no other to transfer its role to."""
        for node in self.nodes.values():
            if node.alive():
                node.process.terminate()
        end_s = time.monotonic() + 30
        for node in self.nodes.values():
            while node.alive() and time.monotonic() < end_s:
                time.sleep(0.05)
            node.kill()

    def __enter__(self) -> "Cluster":
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *exception) -> None:
        self.stop()
