"""Brokers with several log directories: if one fails, only its partitions move."""

import errno

import pytest

from pylog.client import Admin, NewTopic, Producer
from tests.durability.disk import environment, shim
from tests.fixtures.clusters import Cluster, until
from tests.tools.support import run

PARTITIONS = 6
VICTIM = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three brokers; the disks of the second fail on demand."""
    root = tmp_path_factory.mktemp("directories")
    made = Cluster(root, settings={"broker.session.timeout.ms": 3000})
    for broker in made.brokers.values():
        broker.overrides["log.dirs"] = f"{broker.data_dir},{bad(broker)}"
    victim = made.brokers[VICTIM]
    victim.environment = environment(shim(root), victim.root, None, root / "faults")
    with made:
        yield made


def bad(broker):
    """Return the directory that may fail."""
    return broker.root / "more"


def states(cluster, topic) -> dict:
    """Return partition -> (leader, isr) from a broker that is not involved."""
    told = run("topics", "describe", topic, "--json", broker=cluster.brokers[1]).json[0]
    return {part["partition"]: (part["leader"], part["isr"]) for part in told["partitions"]}


def everything_in_sync(cluster, topic) -> None:
    until(lambda: all(len(isr) == 3 for _, isr in states(cluster, topic).values()), 60,
          cluster.tails())


def write_everywhere(cluster, topic) -> None:
    with Producer({"bootstrap.servers": cluster.brokers[1].bootstrap, "acks": "all",
                   "request.timeout.ms": 5_000, "delivery.timeout.ms": 30_000}) as producer:
        for sent in [producer.send(topic, b"value", partition=index)
                     for index in range(PARTITIONS)]:
            sent.result(30)


@pytest.mark.timeout(120)
def test_failed_directory_affects_only_its_replicas(cluster):
    victim, faults = cluster.brokers[VICTIM], cluster.root / "faults"
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        until(lambda: len(admin.describe_cluster().nodes) == 3)
        admin.create_topics([NewTopic("spread", PARTITIONS, 3)])
    with Admin({"bootstrap.servers": cluster.brokers[1].bootstrap}) as admin:
        until(lambda: "spread" in admin.list_topics())
    everything_in_sync(cluster, "spread")
    lost = {index for index in range(PARTITIONS) if (bad(victim) / f"spread-{index}").exists()}
    assert 0 < len(lost) < PARTITIONS
    write_everywhere(cluster, "spread")

    faults.write_text(f"any {bad(victim)}/ {errno.EIO}\n")
    write_everywhere(cluster, "spread")
    until(lambda: {index for index, (_, isr) in states(cluster, "spread").items()
                   if VICTIM not in isr} == lost, 30, cluster.tails())
    found = states(cluster, "spread")
    assert all(found[index][0] not in (-1, VICTIM) for index in lost)
    told = run("cluster", "explain", f"spread-{min(lost)}", broker=cluster.brokers[1]).out
    assert f"Broker {VICTIM} cannot use the log directory of this replica" in told

    # It starts without the directory and does not re-create its replicas elsewhere.
    victim.stop()
    cluster.start_broker(VICTIM)
    until(lambda: {index for index, (_, isr) in states(cluster, "spread").items()
                   if VICTIM not in isr} == lost, 30, cluster.tails())
    assert not any((victim.data_dir / f"spread-{index}").exists() for index in lost)
    write_everywhere(cluster, "spread")

    faults.unlink()
    victim.stop()
    cluster.start_broker(VICTIM)
    everything_in_sync(cluster, "spread")
    assert "the same on all replicas" in run(
        "cluster", "verify", "spread", broker=cluster.brokers[1]).out
