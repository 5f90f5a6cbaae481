"""Several brokers that are one cluster, in the test's own process or each in one of its own.

Owns: the brokers.
Called by: tests, through pylog.testing.
Invariants: (1) the first broker is the controller too, and starts first and ends last; (2) each
  broker keeps its ports from start to start.
"""

from __future__ import annotations

import concurrent.futures
from typing import Any

from pylog.testing.broker import Broker
from pylog.testing.disturbances import free_port
from pylog.testing.errors import BrokerFailed

SETTINGS = {"min.insync.replicas": "1", "controller.listener.names": "CONTROLLER",
            "broker.heartbeat.interval.ms": "100", "broker.session.timeout.ms": "3000"}


class Cluster:
    """`with Cluster(3) as cluster`, or start and close. `brokers`: by node id, from 1.

    settings: of all brokers, by Kafka's names, with dots or underscores. processes: a child process
    for each, which can then be killed.
    """

    def __init__(self, count: int = 3, *, settings: dict[str, Any] | None = None,
                 processes: bool = False):
        if count < 1:
            raise BrokerFailed(f"{count} brokers are no cluster")
        self._controller_port = free_port()
        given = {name.replace("_", "."): value for name, value in (settings or {}).items()}
        replicas = min(count, 3)
        self.brokers = {number: Broker(process=processes, settings={
            **SETTINGS, "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas, **given, **self._place(number)})
            for number in range(1, count + 1)}

    def _place(self, number: int) -> dict[str, Any]:
        """What makes a broker this one of the cluster. Keeps (1), (2)."""
        listeners = [f"PLAINTEXT://127.0.0.1:{free_port()}"]
        if number == 1:
            listeners.append(f"CONTROLLER://127.0.0.1:{self._controller_port}")
        return {"node.id": number, "listeners": listeners,
                "advertised.listeners": listeners[:1],
                "process.roles": "broker,controller" if number == 1 else "broker",
                "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}"}

    def start(self) -> Cluster:
        """Returns when all have joined. Raises BrokerFailed."""
        first, *others = self.brokers.values()
        try:
            first.start()
            if others:
                with concurrent.futures.ThreadPoolExecutor(len(others)) as pool:
                    for _ in pool.map(Broker.start, others):
                        pass
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stops all and removes their directories."""
        for broker in reversed(self.brokers.values()):
            broker.close()

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """For a client's bootstrap.servers."""
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values()
                        if broker.running)

    def __getitem__(self, number: int) -> Broker:
        return self.brokers[number]
