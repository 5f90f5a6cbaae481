"""The controller's decisions when brokers report the log directories of their replicas."""

import pytest

from pylog.metadata.controller.partitions import elections, replica_directories
from pylog.metadata.controller.partitions.partition_change import UNCLEAN
from pylog.metadata.image.image import LOST, NO_LEADER
from pylog.protocol import messages
from tests.metadata.controller.partitions.test_topics import decided
from tests.metadata.controller.test_broker_registration import Cluster

NEW = messages.AssignReplicasToDirsRequest


def report(cluster, broker_id, index, directory):
    """Apply a broker's report of the directory of one replica."""
    records, _ = decided(replica_directories.assign(cluster.rules, NEW(
        broker_id=broker_id, broker_epoch=cluster.image.brokers[broker_id].epoch,
        directories=[NEW.DirectoryData(id=directory, topics=[NEW.TopicData(
            topic_id=cluster.image.topics["t"].id,
            partitions=[NEW.PartitionData(partition_index=index)])])])))
    cluster.take(records)


@pytest.mark.parametrize("keeps_eligible", [True, False])
def test_lost_replica_leaves_the_isr_and_cannot_be_elected(keeps_eligible):
    cluster = Cluster(keeps_eligible).join(1, 2, 3).create((1, 2), (1, 2))
    report(cluster, 1, 0, LOST)
    assert (cluster.state(0).leader, tuple(cluster.state(0).isr)) == (2, (2,))
    assert (cluster.state(1).leader, tuple(cluster.state(1).isr)) == (1, (1, 2))
    report(cluster, 2, 0, LOST)
    assert cluster.state(0).leader == NO_LEADER
    records, _ = decided(elections.elect_leaders(cluster.rules, UNCLEAN, [("t", [0])]))
    assert records == []


@pytest.mark.parametrize("keeps_eligible", [True, False])
def test_lost_replica_leads_again_after_its_files_were_restored(keeps_eligible):
    cluster = Cluster(keeps_eligible).join(1).create((1,))
    directory, = cluster.image.brokers[1].directories
    report(cluster, 1, 0, LOST)
    assert cluster.state(0).leader == NO_LEADER
    report(cluster, 1, 0, directory)
    assert (cluster.state(0).leader, tuple(cluster.state(0).isr)) == (1, (1,))
    assert tuple(cluster.state(0).directories) == (directory,)
