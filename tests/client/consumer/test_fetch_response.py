"""The hand-written Fetch response parser agrees with the codec."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylog._native.records import batch
from pylog.client.consumer import fetch_response
from pylog.client.network.connection import BufferPool, Frame
from pylog.protocol import api, codec, messages
from pylog.protocol.errors import ProtocolError

RESPONSE = messages.FetchResponse
INT64 = st.integers(-1, 2**60)
PARTITION = st.builds(
    dict, index=st.integers(0, 10**6), code=st.integers(0, 130), high=INT64, stable=INT64,
    start=INT64, preferred=st.integers(-1, 1000), records=st.none() | st.binary(max_size=300),
    aborted=st.none() | st.lists(st.tuples(INT64, INT64), max_size=3),
    leader=st.none() | st.tuples(st.integers(0, 100), st.integers(0, 100)))
TOPICS = st.lists(st.tuples(st.binary(min_size=16, max_size=16),
                            st.text(st.characters(codec="ascii", categories=["L"]), min_size=1),
                            st.lists(PARTITION, max_size=3)), max_size=3)


def build(topics):
    rows = []
    for topic_id, name, partitions in topics:
        row = RESPONSE.FetchableTopicResponse(topic=name, topic_id=topic_id)
        for one in partitions:
            made = RESPONSE.PartitionData(
                partition_index=one["index"], error_code=one["code"],
                high_watermark=one["high"], last_stable_offset=one["stable"],
                log_start_offset=one["start"], preferred_read_replica=one["preferred"],
                records=one["records"], aborted_transactions=None if one["aborted"] is None else [
                    RESPONSE.AbortedTransaction(producer_id=a, first_offset=b)
                    for a, b in one["aborted"]])
            if one["leader"]:
                made.current_leader.leader_id, made.current_leader.leader_epoch = one["leader"]
            row.partitions.append(made)
        rows.append(row)
    return RESPONSE(throttle_time_ms=7, session_id=9, responses=rows)


def framed(message, version):
    body = codec.encode_response(api.FETCH, version, message)
    frame = Frame(bytearray(body), len(body), BufferPool())
    frame.version = version
    return frame


@pytest.mark.parametrize("version", [4, 11, 12, 13, 16, 18])
@settings(deadline=None)
@given(topics=TOPICS)
def test_every_version_is_read_as_the_codec_reads_it(version, topics):
    message = build(topics)
    if version < 11:
        for topic in message.responses:
            for row in topic.partitions:
                row.preferred_read_replica = -1
    if version < 12:
        for topic in message.responses:
            for row in topic.partitions:
                row.current_leader = RESPONSE.LeaderIdAndEpoch()
    if version < 7:
        message.session_id = 0
    found = fetch_response.read(framed(message, version))
    assert (found.throttle_ms, found.session_id) == (7, message.session_id)
    expected = [(topic, row) for topic in message.responses for row in topic.partitions]
    assert len(found.partitions) == len(expected)
    for one, (topic, row) in zip(found.partitions, expected):
        assert one.topic == (topic.topic_id if version >= 13 else topic.topic)
        assert (one.partition, one.error_code, one.high_watermark, one.last_stable_offset) == (
            row.partition_index, row.error_code, row.high_watermark, row.last_stable_offset)
        assert bytes(one.records) == (row.records or b"")
        assert one.preferred_replica == row.preferred_read_replica
        assert one.aborted == [(a.producer_id, a.first_offset)
                               for a in row.aborted_transactions or ()]
        leader = (row.current_leader.leader_id, row.current_leader.leader_epoch)
        if version >= 12 and leader != (-1, -1):
            assert one.leader == leader


@settings(deadline=None)
@given(topics=TOPICS, cut=st.integers(1, 50), noise=st.binary(max_size=20))
def test_a_damaged_answer_is_rejected_or_read_but_never_beyond_its_end(topics, cut, noise):
    frame = framed(build(topics), 16)
    damaged = bytes(frame.view)[:-cut] + noise
    broken = Frame(bytearray(damaged), len(damaged), BufferPool())
    broken.version = 16
    try:
        found = fetch_response.read(broken)
    except ProtocolError:
        return
    _lies_within(found, damaged)


def _lies_within(found, damaged: bytes) -> None:
    """Each partition consumes bytes: a damaged response cannot yield more partitions, or more
    record bytes, than it has room for.
    """
    least = 2 + 4 + 8 * 3 + 4 + 4  # minimum size of a partition in any version, without its arrays
    assert len(found.partitions) * least <= len(damaged)
    assert sum(len(one.records) for one in found.partitions) <= len(damaged)
    at = 0
    for one in found.partitions:
        # In the order of the response, each after the end of the previous one.
        at = damaged.index(bytes(one.records), at) + len(one.records)
        for pair in one.aborted:
            assert struct.pack(">qq", *pair) in damaged


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
def test_truncated_response_is_rejected(version):
    """Every truncation of a response is rejected: no byte is optional."""
    row = RESPONSE.PartitionData(
        partition_index=1, records=b"r" * 20, high_watermark=7, last_stable_offset=7,
        aborted_transactions=[RESPONSE.AbortedTransaction(producer_id=5, first_offset=3)])
    if version >= 12:
        row.current_leader.leader_id, row.current_leader.leader_epoch = 1, 2
    name = {"topic_id": b"i" * 16} if version >= 13 else {"topic": "t"}
    topic = RESPONSE.FetchableTopicResponse(partitions=[row], **name)
    whole = bytes(framed(RESPONSE(responses=[topic]), version).view)
    assert len(fetch_response.read(framed(RESPONSE(responses=[topic]), version)).partitions) == 1
    for size in range(len(whole)):
        frame = Frame(bytearray(whole[:size]), size, BufferPool())
        frame.version = version
        with pytest.raises(ProtocolError):
            fetch_response.read(frame)


def test_the_end_of_records_is_that_of_the_last_whole_batch():
    rows = [(None, b"x", 0, [])] * 3
    two = batch.build(rows, base_offset=10) + batch.build(rows, base_offset=20)
    assert fetch_response.end_of(memoryview(two)) == 23
    assert fetch_response.end_of(memoryview(two[:-1])) == 13
    assert fetch_response.end_of(memoryview(two[:20])) is None
    assert fetch_response.end_of(memoryview(b"")) is None
