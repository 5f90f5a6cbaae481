"""Two states of a topic, and one node's commands for the difference."""

import pytest

from pylog.metadata.image.image import Partition, Topic
from pylog.replication.roles import commands

NODE, ID = 1, bytes(15) + b"\7"


def partition(replicas, leader, leader_epoch=0, partition_epoch=0) -> Partition:
    return Partition(tuple(replicas), tuple(replicas), leader, leader_epoch, partition_epoch, 0, (),
                     (), (), (), ())


def topic(*partitions) -> Topic:
    return Topic("t", ID, partitions)


def named(before, after) -> dict:
    """Return the commands by name, without empty ones."""
    return {name: found for name, found in commands(before, after, NODE)._asdict().items() if found}


def test_new_topic_is_opened_where_this_node_has_replicas():
    after = topic(partition([1, 2], 1), partition([2, 1], 2), partition([2, 3], 2),
                  partition([1, 2], -1))
    assert named(None, after) == {"open": [0, 1, 3], "lead": [0], "follow": [1]}


def test_deleted_topic_is_no_longer_followed():
    before = topic(partition([1, 2], 1), partition([2, 1], 2))
    assert named(before, None) == {"stop": [1], "drop": [0, 1]}


@pytest.mark.parametrize(("old", "new", "wanted"), [
    (partition([1, 2], 1), partition([1, 2], 2, 1, 1), {"follow": [0]}),
    (partition([1, 2], 2), partition([1, 2], 1, 1, 1), {"stop": [0], "lead": [0]}),
    (partition([1, 2], 2), partition([1, 2], -1, 1, 1), {"stop": [0]}),
    (partition([1, 2], -1), partition([1, 2], 2, 1, 1), {"follow": [0]}),
    (partition([1, 2, 3], 2), partition([1, 2, 3], 3, 1, 1), {"stop": [0], "follow": [0]}),
    (partition([1, 2], 2), partition([1, 2], 2, 1, 1), {"stop": [0], "follow": [0]}),
    (partition([1, 2], 2), partition([1, 2], 2, 0, 1), {}),
    (partition([1, 2], 1), partition([1, 2, 3], 1, 0, 1), {"lead": [0]}),
    (partition([2, 3], 2), partition([2, 3, 1], 2, 0, 1), {"open": [0], "follow": [0]}),
    (partition([1, 2], 2), partition([2, 3], 2, 0, 1), {"stop": [0], "drop": [0]}),
    (partition([1, 2], 1), partition([2], 2, 1, 1), {"drop": [0]}),
    (partition([2, 3], 2), partition([2], 2, 0, 1), {}),
], ids=["resigns", "is elected", "loses its leader", "gets a leader", "gets another leader",
        "the same leader, elected again", "only the isr", "replicas of what is led", "is added",
        "is removed", "moved away", "others' affair"])
def test_partition_change_updates_its_role(old, new, wanted):
    assert named(topic(old), topic(new)) == wanted


def test_an_older_partition_epoch_is_no_change():
    assert named(topic(partition([1, 2], 1, 3, 5)), topic(partition([1, 2], 2, 2, 4))) == {}


def test_added_partitions_open_only_new_logs():
    same = partition([1, 2], 1)
    assert named(topic(same), topic(same, partition([1], 1))) == {"open": [1], "lead": [1]}
