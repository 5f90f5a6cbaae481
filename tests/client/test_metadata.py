"""The picture of the cluster, and what changes it."""

from pylog.client.metadata import Metadata, taken_in, with_leader
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
    picture = taken_in(Metadata(), answer(epoch=5, leader=1), False)
    assert taken_in(picture, answer(epoch=4, leader=2), False).leader("t", 0) == 1
    assert taken_in(picture, answer(epoch=6, leader=2), False).leader("t", 0) == 2


def test_a_topic_made_anew_begins_with_its_own_epochs():
    picture = taken_in(Metadata(), answer(epoch=5, leader=1), False)
    anew = taken_in(picture, answer(epoch=0, leader=2, topic_id=b"2" * 16), False)
    assert anew.leader("t", 0) == 2 and anew.ids == {b"2" * 16: "t"}


def test_a_leader_that_is_not_among_the_brokers_is_none():
    picture = taken_in(Metadata(), answer(leader=2, nodes=(1,)), False)
    assert picture.leader("t", 0) == -1 and picture.partition_count("t") == 1
    assert picture.partition_count("unknown") == 0 and picture.leader("unknown", 0) == -1


def test_a_topic_that_is_gone_is_forgotten():
    picture = taken_in(Metadata(), answer(), False)
    assert "t" not in taken_in(picture, answer(code=3), False).topics
    assert taken_in(picture, RESPONSE(brokers=[]), True).topics == {}


def test_a_passing_error_keeps_what_is_known():
    picture = taken_in(Metadata(), answer(), False)
    assert taken_in(picture, answer(code=5), False).partition_count("t") == 1


def test_a_named_leader_counts_when_it_is_newer_and_known():
    picture = taken_in(Metadata(), answer(epoch=5, leader=1), False)
    assert with_leader(picture, "t", 0, 2, 6).leader("t", 0) == 2
    assert with_leader(picture, "t", 0, 2, 5) is picture
    assert with_leader(picture, "t", 0, 9, 6) is picture
    assert with_leader(picture, "other", 0, 2, 6) is picture
