"""All brokers of a cluster lose power at the same time, under writers that use acks=all.

With default settings every acknowledged record must survive. With
replica.flush.before.fetch.enable=false records must be missing, which proves that the test can
fail. The disks come from tests.chaos.power: synced data survives, and optionally a random part of
the rest. etcd writes its own files, which are not recorded and therefore unchanged.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from bench.cluster.nodes import children
from pylog.client import Admin, NewTopic
from tests.chaos.power import Disk
from tests.durability.disk import environment
from tests.durability.load import Writer, check, read_all
from tests.fixtures.clusters import Cluster, until
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.talk import unique

SETTING = "replica.flush.before.fetch.enable"
WAIT_S = 120.0
QUIET_S = 5.0
LOAD_S = 1.5
PARTITIONS = 3


class PoweredCluster:
    """Three brokers with recorded disks."""

    def __init__(self, root, preload, settings=None):
        self._preload = preload
        self.cluster = Cluster(root, settings=settings)
        self._disks = {}
        for number, broker in self.cluster.brokers.items():
            broker.data_dir.mkdir(parents=True)
            self._disks[number] = Disk(broker.data_dir, root / f"records-{number}")

    def start(self):
        for number, broker in self.cluster.brokers.items():
            broker.environment = environment(self._preload, broker.data_dir,
                                             self._disks[number].next_record())
        self.cluster.start()

    def kill(self):
        """Kill all brokers at once, and wait until their etcds have ended."""
        brokers = self.cluster.brokers.values()
        etcds = [pid for broker in brokers for pid in children(broker.pid)]
        for broker in brokers:
            os.kill(broker.pid, signal.SIGKILL)
        for broker in brokers:
            broker.kill()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in etcds), WAIT_S)

    def cut(self, seed):
        """Remove unsynced data from all disks. seed: chooses a surviving part; None: none survives.
        """
        for number, disk in self._disks.items():
            disk.cut(None if seed is None else seed + number)


def leaders(cluster, topic) -> dict[int, int]:
    """Return the port of each partition's leader, or {} until all leaders respond."""
    ports = {number: broker.port for number, broker in cluster.brokers.items()}
    with Connection(ports[1]) as connection:
        row = ask(connection, raw.METADATA, 12, topics=[{"name": topic, "topic_id": None}],
                  allow_auto_topic_creation=False)["topics"][0]
    found = {part["partition_index"]: part["leader_id"] for part in row["partitions"]
             if part["leader_id"] in ports and len(part["isr_nodes"]) >= 2}
    return {index: ports[leader] for index, leader in found.items()} \
        if len(found) == PARTITIONS else {}


def load(cluster, settle) -> tuple[str, list[Writer]]:
    """Start writers to a new topic with one partition on each broker."""
    topic = unique("power")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, replica_assignments={
            0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})])
    ports = until(lambda: leaders(cluster, topic), WAIT_S, f"{topic} has no leaders")
    writers = [Writer(number, ports[number], topic, number, idempotent=number != 1,
                      value_bytes=(100, 400, 2000)[number],
                      codec=(raw.NONE, raw.LZ4, raw.ZSTD)[number], pause_s=0.001).start()
               for number in range(PARTITIONS)]
    time.sleep(settle)
    for writer in writers:
        writer.wait_acked(50, WAIT_S)
    return topic, writers


def rows_of(cluster, topic, partition, end) -> list[tuple[int, bytes]]:
    """Return the records that consumers receive up to offset `end`, or until QUIET_S passes without
    one.
    """
    def read():
        port = leaders(cluster, topic).get(partition)
        try:
            return (read_all(port, topic, partition),) if port else None
        except AssertionError:  # The leader has just changed.
            return None

    (rows,) = until(read, WAIT_S, f"{topic}-{partition} cannot be read")
    since_s = time.monotonic()
    while len(rows) < end and time.monotonic() < since_s + QUIET_S:
        (now,) = until(read, WAIT_S, f"{topic}-{partition} cannot be read")
        since_s = time.monotonic() if len(now) != len(rows) else since_s
        rows = now
        time.sleep(0.1)
    return rows


def run(powered, seed) -> tuple[int, int]:
    """Run one load and power loss; return (acknowledged records, surviving ones)."""
    topic, writers = load(powered.cluster, LOAD_S)
    powered.kill()
    for writer in writers:
        writer.stop()
    powered.cut(seed)
    powered.start()
    found = 0
    for writer in writers:
        end = max(one.base_offset + one.count for one in writer.acked)
        rows = rows_of(powered.cluster, topic, writer.partition, end)
        if len(rows) >= end:
            found += check(writer, rows)
        else:
            found += sum(min(one.count, max(0, len(rows) - one.base_offset))
                         for one in writer.acked)
    return sum(writer.acked_records for writer in writers), found


def rounds(root, preload, seeds, settings=None) -> list[tuple[int, int]]:
    powered = PoweredCluster(root, preload, settings)
    try:
        powered.start()
        return [run(powered, seed) for seed in seeds]
    finally:
        powered.cluster.close()


@pytest.mark.timeout(600)
def test_acknowledged_records_survive_a_power_loss_of_all_brokers(ram, preload, random_source):
    seeds = [None, random_source.randrange(1, 1 << 30)]
    for acknowledged, found in rounds(ram, preload, seeds):
        print(f"acknowledged {acknowledged}, found {found}")
        assert found == acknowledged > 150


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_acknowledged_records_survive_ten_power_losses_of_all_brokers(ram, preload, random_source):
    seeds = [random_source.randrange(1, 1 << 30) if turn % 2 else None for turn in range(10)]
    for acknowledged, found in rounds(ram, preload, seeds):
        print(f"acknowledged {acknowledged}, found {found}")
        assert found == acknowledged > 150


@pytest.mark.timeout(600)
def test_the_same_power_loss_loses_records_without_flush_before_fetch(ram, preload):
    (acknowledged, found), = rounds(ram, preload, [None], {SETTING: "false"})
    print(f"acknowledged {acknowledged}, found {found}")
    assert found < acknowledged
