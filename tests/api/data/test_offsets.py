import asyncio

import pytest

from pylog._native.records import batch
from pylog._native.server.reactor import RequestContext
from pylog.api.data.offsets import Leaders, OffsetsApi
from pylog.protocol import api, codec, messages
from tests.metadata.node import Node

NEW = messages.ListOffsetsRequest
EPOCH = messages.OffsetForLeaderEpochRequest
BASE = 1_700_000_000_000


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    node.create("t", partitions=2, configs={"message.timestamp.after.max.ms": str(2**62)})
    yield node
    node.stop()


def append(node, *times, partition=0, **fields):
    data = batch.build([(b"k", b"v", BASE + time, ()) for time in times], **fields)
    return node.logs.get("t", partition).append(data, node.now_ms())


def ask(node, key, version, request):
    request = codec.decode_request(key, version, codec.encode_request(key, version, request))
    family = OffsetsApi(Leaders(node, node.logs, node.node_id))
    context = RequestContext(token=1, api_key=key, api_version=version)
    answer = family.handlers()[key](context, request)
    if asyncio.iscoroutine(answer):
        async def run():
            return await answer
        answer = asyncio.run(run())
    return codec.decode_response(key, version, codec.encode_response(key, version, answer))


def offsets(node, *timestamps, version=11, isolation=0, partition=0, epoch=-1, topic="t"):
    answers = []
    for timestamp in timestamps:
        answer = ask(node, api.LIST_OFFSETS, version, NEW(isolation_level=isolation, topics=[
            NEW.ListOffsetsTopic(name=topic, partitions=[NEW.ListOffsetsPartition(
                partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)])]))
        row = answer.topics[0].partitions[0]
        answers.append((row.error_code, row.offset, row.timestamp))
    return answers


def test_an_empty_partition_begins_and_ends_at_zero(node):
    assert offsets(node, -1, -2, -3, -4, -5, -6, 0) == [
        (0, 0, -1), (0, 0, -1), (0, -1, -1), (0, 0, -1), (0, -1, -1), (0, -1, -1), (0, -1, -1)]


def test_restarted_former_leader_returns_no_end_offsets(node):
    partition_log = node.logs.get("t", 0)
    partition_log.become_follower(partition_log.leader_epoch + 1)
    assert offsets(node, -1, -2) == [(6, -1, -1), (6, -1, -1)]


def test_special_timestamps_find_the_ends_and_the_newest_record(node):
    append(node, 5, 9, 7)
    append(node, 1)
    assert offsets(node, -1, -2, -3, -4, -5, -6) == [
        (0, 4, -1), (0, 0, -1), (0, 1, BASE + 9), (0, 0, -1), (0, -1, -1), (0, -1, -1)]


@pytest.mark.parametrize("codec_number", range(5))
def test_a_time_is_found_exact_to_the_record(node, codec_number):
    for first in range(0, 100, 5):
        append(node, *range(10 * first, 10 * first + 50, 10), codec=codec_number)
    for target, offset in ((0, 0), (1, 1), (40, 4), (41, 5), (455, 46), (990, 99)):
        assert offsets(node, BASE + target) == [(0, offset, BASE + offset * 10)]
    assert offsets(node, BASE + 991) == [(0, -1, -1)]
    assert offsets(node, 0) == [(0, 0, BASE)]


def test_the_log_start_counts_after_deletion_of_records(node):
    append(node, 1)
    append(node, 2)
    append(node, 3)
    node.logs.get("t", 0).move_start(2)
    assert offsets(node, -2, -1) == [(0, 2, -1), (0, 3, -1)]
    assert offsets(node, BASE) == [(0, 2, BASE + 3)]


@pytest.mark.parametrize("timestamp, since", [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 12)])
def test_a_special_timestamp_before_its_version_is_rejected(node, timestamp, since):
    for version in range(1, 12):
        error = offsets(node, timestamp, version=version)[0][0]
        assert error == (0 if version >= since else 35)


def test_read_committed_ends_at_the_last_stable_offset(node):
    append(node, 1)
    append(node, 2, producer_id=7, producer_epoch=0, base_sequence=0,
           attributes=batch.TRANSACTIONAL)
    append(node, 3)
    assert node.logs.get("t", 0).last_stable_offset == 1
    assert offsets(node, -1) == [(0, 3, -1)]
    assert offsets(node, -1, isolation=1) == [(0, 1, -1)]
    # Offsets at or above the bound are not returned either.
    assert offsets(node, BASE + 2, isolation=1) == [(0, -1, -1)]
    assert offsets(node, BASE + 2) == [(0, 1, BASE + 2)]


def test_unknown_topics_and_partitions_are_reported(node):
    assert offsets(node, -1, topic="no") == [(3, -1, -1)]
    assert offsets(node, -1, partition=2) == [(3, -1, -1)]
    assert offsets(node, -1, partition=-1) == [(3, -1, -1)]


def test_different_leader_epoch_is_reported(tmp_path):
    node = Node(tmp_path)
    node.create("t")
    node.crash()
    node = Node(tmp_path)
    assert node.image.partition("t", 0).leader_epoch == 1
    assert offsets(node, -1, epoch=0) == [(74, -1, -1)]
    assert offsets(node, -1, epoch=1) == [(0, 0, -1)]
    assert offsets(node, -1, epoch=2) == [(75, -1, -1)]
    node.stop()


def test_a_partition_named_twice_is_rejected(node):
    row = NEW.ListOffsetsPartition(partition_index=0, timestamp=-1)
    other = NEW.ListOffsetsPartition(partition_index=1, timestamp=-1)
    answer = ask(node, api.LIST_OFFSETS, 5, NEW(topics=[
        NEW.ListOffsetsTopic(name="t", partitions=[row, other, row])]))
    assert [(p.partition_index, p.error_code) for p in answer.topics[0].partitions] \
        == [(0, 42), (1, 0)]


@pytest.mark.parametrize("version", range(1, 12))
def test_every_version_is_answered(node, version):
    append(node, 1)
    assert offsets(node, -1, -2, BASE, version=version) == [
        (0, 1, -1), (0, 0, -1), (0, 0, BASE + 1)]


def ends(node, epoch, current=-1, version=4, topic="t", partition=0):
    answer = ask(node, api.OFFSET_FOR_LEADER_EPOCH, version, EPOCH(topics=[
        EPOCH.OffsetForLeaderTopic(topic=topic, partitions=[EPOCH.OffsetForLeaderPartition(
            partition=partition, leader_epoch=epoch, current_leader_epoch=current)])]))
    row = answer.topics[0].partitions[0]
    return row.error_code, row.leader_epoch, row.end_offset


@pytest.mark.parametrize("version", range(2, 5))
def test_end_of_each_leader_epoch_is_returned(tmp_path, version):
    node = Node(tmp_path)
    node.create("t")
    append(node, 1, 2)
    node.logs.get("t", 0).flush()
    node.crash()
    node = Node(tmp_path)
    append(node, 3)
    assert ends(node, 0, version=version) == (0, 0, 2)
    assert ends(node, 1, version=version) == (0, 1, 3)
    assert ends(node, 0, current=0, version=version) == (74, -1, -1)
    assert ends(node, 0, current=2, version=version) == (75, -1, -1)
    assert ends(node, 0, topic="no", version=version) == (3, -1, -1)
    node.stop()
