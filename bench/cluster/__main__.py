"""Compare clusters of three brokers.

Usage: `python -m bench.cluster [--only NAME] [--rounds N] [--sides A,B] [--data DIR]`

Owns: the clusters and their directories while it runs.
Invariants: all clusters run at the same time and are loaded one after the other, in an order that
  alternates from round to round; each side gets the same untimed load first; a failed load is
  reported without a result, and the other loads continue; a load begins when the previous load is
  written back and its files are deleted, and it writes to memory that the machine already has (see
  bench.vs): otherwise the next side would pay for it.
Sides: `kafka` and `pylog-cache` acknowledge from the page caches of two machines, the latter with
  replica.flush.before.fetch.enable=false; `pylog` with its defaults acknowledges from two disks;
  `kafka-3s` has the session timeout that `brokerd --cluster` uses.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException

from bench import loads, report
from bench.cluster import failover, losses
from bench.cluster import loads as cluster_loads
from bench.cluster.nodes import Cluster
from bench.cluster.table import render
from bench.kafka import KafkaMissing, kafka_version
from bench.machine import commit_line, machine_line, touch_free_memory
from bench.process import BrokerFailed
from bench.programs import ProgramMissing, cache_dir, load_client, rdkafka_performance

SIDES = {
    "kafka": {}, "pylog": {},
    "pylog-cache": {"replica.flush.before.fetch.enable": "false"},
    "kafka-3s": {"broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500},
}
TOUCHED_BYTES = 32 << 30
PRODUCED_BYTES = 500_000_000
WARM_BYTES = 40_000_000
WARM_TRIES = 5
SETTLE_S = 5.0  # Kafka deletes the files of deleted topics after a second.
FLOOR_BYTES = 500e6
LATENCY_S = 10
KILLS = 10
LOSSES = 5
GONE_WAIT_S = 900.0
IDLE_S = 15
FAILURES = (loads.LoadFailed, BrokerFailed, KafkaMissing, KafkaException, subprocess.TimeoutExpired,
            OSError)

LOADS: dict[str, Callable] = {
    "produce-1k": lambda cluster, topic: cluster_loads.produce(
        cluster, topic, 1024, PRODUCED_BYTES),
    "one-record": lambda cluster, topic: cluster_loads.one_record(cluster, topic, 1, 1, 20_000),
    "one-record-8": lambda cluster, topic: cluster_loads.one_record(cluster, topic, 8, 1, 50_000),
    "one-record-8x5": lambda cluster, topic: cluster_loads.one_record(
        cluster, topic, 8, 5, 100_000),
    "e2e": lambda cluster, topic: cluster_loads.latency(cluster, topic, LATENCY_S),
    "kill-leader": lambda cluster, topic: _seconds(failover.librdkafka(cluster, topic, KILLS)),
    "kill-leader-java": lambda cluster, topic: _seconds(failover.java(cluster, topic, KILLS)),
    "kill-controller": lambda cluster, topic: losses.controller(cluster, topic, LOSSES),
    "kill-quorum": lambda cluster, topic: losses.quorum(cluster, topic, LOSSES),
    "host-gone": lambda cluster, topic: _gone(cluster.name),
    "idle": lambda cluster, topic: cluster_loads.idle(cluster, topic, 1000, IDLE_S),
    "restart": lambda cluster, topic: failover.restart(cluster, topic, 1000),
    "dies": lambda cluster, topic: failover.dies(cluster, topic, 10_000),
}
ONCE = ("kill-leader", "kill-leader-java", "kill-controller", "kill-quorum", "host-gone", "idle",
        "restart", "dies")


def _gone(side: str) -> dict:
    """Start another cluster of this kind, with one machine per node."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.cluster.gone", side, str(LOSSES), json.dumps(SIDES[side])],
        capture_output=True, text=True, timeout=GONE_WAIT_S)
    if done.returncode:
        raise loads.LoadFailed(f"host-gone: {(done.stdout + done.stderr)[-400:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _seconds(values: list[float]) -> dict:
    return {"p50_s": statistics.median(values), "max_s": max(values)}


class Run:
    """One run: collects samples[load][side][key] = [value per round]."""

    def __init__(self, sides: list[str], folder: Path):
        self.folder = folder
        self.clusters = {side: Cluster(side, folder / side, SIDES[side]) for side in sides}
        self.samples: dict = {}
        self.failures: list[str] = []
        self._serial = 0

    def start(self) -> None:
        for cluster in self.clusters.values():
            cluster.start()
            self._warm(cluster)

    def _warm(self, cluster: Cluster) -> None:
        """Run the same untimed load on each side. A cluster that elects leaders rejects some
        requests.
        """
        for _ in range(WARM_TRIES):
            try:
                cluster_loads.produce(cluster, self._topic(), 100, WARM_BYTES)
                cluster_loads.one_record(cluster, self._topic(), 8, 1, 20_000)
                return
            except loads.LoadFailed as failure:
                print(f"  untimed load: {failure}", flush=True)
                time.sleep(SETTLE_S)
        raise BrokerFailed(f"no untimed load came through in {WARM_TRIES} tries")

    def load(self, name: str, turn: int) -> None:
        sides = list(self.clusters)
        for side in sides if turn % 2 == 0 else sides[::-1]:
            self._one(name, side)
        if name == "produce-1k":
            self._keep(name, "floor", "follower_cpu", loads.floor(
                "recv", 1_000_000, 0, FLOOR_BYTES, self.folder))

    def _one(self, name: str, side: str) -> None:
        # Wait until the previous load is written back and its files are deleted.
        time.sleep(SETTLE_S)
        os.sync()
        touch_free_memory(TOUCHED_BYTES)
        begin_s = time.monotonic()
        try:
            figures = LOADS[name](self.clusters[side], self._topic())
        except FAILURES as failure:
            text = " ".join(f"{type(failure).__name__}: {failure}".split())[-500:]
            self.failures.append(f"{name}, {side}: {text}")
            print(f"  {name:16} {side:12} FAILED {text}", flush=True)
            return
        for key, value in figures.items():
            self._keep(name, side, key, value)
        shown = " ".join(f"{key}={value:.4g}" for key, value in figures.items())
        print(f"  {name:16} {side:12} {time.monotonic() - begin_s:5.1f} s  {shown}", flush=True)

    def _keep(self, name: str, side: str, key: str, value: float) -> None:
        self.samples.setdefault(name, {}).setdefault(side, {}).setdefault(key, []).append(value)

    def _topic(self) -> str:
        self._serial += 1
        return f"load-{self._serial}"

    def stop(self) -> None:
        for cluster in self.clusters.values():
            cluster.stop()


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster")
    parser.add_argument("--only", choices=LOADS, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", default="kafka,pylog")
    parser.add_argument("--data", type=Path, help="where the directory of each node is made: a "
                        "folder in a tmpfs leaves the disk out")
    options = parser.parse_args(argv)
    unknown = [side for side in options.sides.split(",") if side not in SIDES]
    if unknown:
        parser.error(f"no side {unknown[0]}; there are {', '.join(SIDES)}")
    return options


def main(argv: list[str]) -> int:
    """Run the chosen loads and print the table. Exit status 1 if a load failed."""
    options = _arguments(argv)
    sides = options.sides.split(",")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        rdkafka_performance()
        for client in ("produce", "fetch", "latency", "floor"):
            load_client(client)
    except ProgramMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    head = [f"`{' '.join(['python -m bench.cluster', *argv])}`, {options.rounds} round(s), "
            f"commit {commit_line()}", machine_line()]
    print("\n".join(head), flush=True)
    parent = options.data or cache_dir()
    parent.mkdir(parents=True, exist_ok=True)
    touch_free_memory(TOUCHED_BYTES)
    folder = Path(tempfile.mkdtemp(prefix="cluster-", dir=parent))
    run = Run(sides, folder)
    try:
        run.start()
        for name in options.only or LOADS:
            for turn in range(1 if name in ONCE else options.rounds):
                run.load(name, turn)
    finally:
        run.stop()
        shutil.rmtree(folder, ignore_errors=True)
        body = [*head, "", render(run.samples, kafka_version(), sides)]
        body += [f"- {line}" for line in run.failures]
        text = "\n".join(body) + "\n"
        report.save(text, {"head": head, "samples": run.samples, "failures": run.failures},
                    "-cluster")
    print(f"\n{text}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
