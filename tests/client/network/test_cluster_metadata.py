"""The client's cluster metadata, and how responses update it."""

from dataclasses import replace

from pylog.client.network.cluster_metadata import (
    Metadata, Node, PartitionInfo, TopicInfo, merged, with_leader,
)
from pylog.protocol import messages

RESPONSE = messages.MetadataResponse


def answer(epoch=5, leader=1, code=0, topic_id=b"1" * 16, nodes=(1, 2)):
    return RESPONSE(
        cluster_id="c", controller_id=1,
        brokers=[RESPONSE.MetadataResponseBroker(node_id=id_, host="h", port=id_) for id_ in nodes],
        topics=[RESPONSE.MetadataResponseTopic(name="t", topic_id=topic_id, error_code=code,
                                               partitions=[] if code else [
            RESPONSE.MetadataResponsePartition(partition_index=0, leader_id=leader,
                                               leader_epoch=epoch)])])


def test_an_older_epoch_does_not_move_a_leader_back():
    picture = merged(Metadata(), answer(epoch=5, leader=1), False)
    assert merged(picture, answer(epoch=4, leader=2), False).leader("t", 0) == 1
    assert merged(picture, answer(epoch=6, leader=2), False).leader("t", 0) == 2


def test_recreated_topic_starts_with_its_own_epochs():
    picture = merged(Metadata(), answer(epoch=5, leader=1), False)
    anew = merged(picture, answer(epoch=0, leader=2, topic_id=b"2" * 16), False)
    assert anew.leader("t", 0) == 2 and anew.ids == {b"2" * 16: "t"}


def test_leader_outside_the_broker_list_is_unknown():
    picture = merged(Metadata(), answer(leader=2, nodes=(1,)), False)
    assert picture.leader("t", 0) == -1 and picture.partition_count("t") == 1
    assert picture.partition_count("unknown") == 0 and picture.leader("unknown", 0) == -1


def test_deleted_topic_is_removed():
    picture = merged(Metadata(), answer(), False)
    assert "t" not in merged(picture, answer(code=3), False).topics
    assert merged(picture, RESPONSE(brokers=[]), True).topics == {}


def test_retriable_error_keeps_known_metadata():
    picture = merged(Metadata(), answer(), False)
    assert merged(picture, answer(code=5), False).partition_count("t") == 1


def test_leader_hint_applies_if_newer_and_its_broker_is_known():
    picture = merged(Metadata(), answer(epoch=5, leader=1), False)
    assert with_leader(picture, "t", 0, 2, 6).leader("t", 0) == 2
    assert with_leader(picture, "t", 0, 2, 5) is picture
    assert with_leader(picture, "t", 0, 9, 6) is picture
    assert with_leader(picture, "other", 0, 2, 6) is picture


def part(index, leader, epoch, **more):
    return RESPONSE.MetadataResponsePartition(partition_index=index, leader_id=leader,
                                              leader_epoch=epoch, **more)


def test_metadata_equals_the_response():
    given = RESPONSE(
        cluster_id="c", controller_id=2,
        brokers=[RESPONSE.MetadataResponseBroker(node_id=2, host="h", port=9, rack="r")],
        topics=[
            RESPONSE.MetadataResponseTopic(
                name="t", topic_id=b"1" * 16, is_internal=True, partitions=[
                    part(1, 2, 3, replica_nodes=[2, 1], isr_nodes=[2], offline_replicas=[1],
                         error_code=9),
                    part(0, -1, -1)]),
            RESPONSE.MetadataResponseTopic(name=None, topic_id=b"9" * 16, error_code=100),
            RESPONSE.MetadataResponseTopic(name="old", topic_id=bytes(16))])
    picture = merged(Metadata(version=7), given, False)
    zero = PartitionInfo("t", 0, -1, -1, (), (), (), 0)
    one = PartitionInfo("t", 1, 2, 3, (2, 1), (2,), (1,), 9)
    assert picture == Metadata(
        8, "c", 2, {2: Node(2, "h", 9, "r")},
        {"t": TopicInfo("t", b"1" * 16, True, 0, {0: zero, 1: one}),
         "old": TopicInfo("old", bytes(16), False, 0, {})}, {b"1" * 16: "t"})
    assert list(picture.topics["t"].partitions) == [0, 1]
    assert picture.partition("t", 1) == one and picture.partition("t", 2) is None
    assert picture.topic_id("t") == b"1" * 16 and picture.topic_id("other") == bytes(16)
    # A response without brokers removes none.
    later = merged(picture, RESPONSE(), False)
    assert later == replace(picture, version=9, cluster_id=later.cluster_id,
                            controller=later.controller)


def test_permanent_error_is_stored_but_a_retriable_one_is_not():
    picture = merged(Metadata(), answer(), False)
    denied = merged(picture, answer(code=29), False)
    assert denied.topics["t"].error_code == 29 and denied.partition_count("t") == 0
    fresh = merged(Metadata(), answer(code=5), False)
    assert fresh.topics["t"].error_code == 5 and fresh.partition_count("t") == 0
    # The deletion of an unknown topic cannot be inferred: the error is reported.
    assert merged(Metadata(), answer(code=3), False).topics["t"].error_code == 3
    for code in (3, 100):
        gone = merged(picture, answer(code=code), False)
        assert "t" not in gone.topics and gone.ids == {}
    # A request for all topics returns only existing ones.
    assert list(merged(picture, answer(code=5), True).topics) == ["t"]


def test_leader_of_the_same_or_an_unknown_epoch_is_accepted():
    picture = merged(Metadata(), answer(epoch=5, leader=1), False)
    assert merged(picture, answer(epoch=5, leader=2), False).leader("t", 0) == 2
    assert merged(picture, answer(epoch=-1, leader=2), False).leader("t", 0) == 2


def test_leader_hint_changes_only_its_partition():
    picture = merged(Metadata(), answer(epoch=5, leader=1), False)
    named = with_leader(picture, "t", 0, 2, 6)
    known = picture.topics["t"]
    moved = known.partitions[0]._replace(leader=2, leader_epoch=6)
    assert named == replace(picture, version=picture.version + 1, topics={
        "t": known._replace(partitions={0: moved})})
    assert with_leader(picture, "t", 1, 2, 6) is picture
