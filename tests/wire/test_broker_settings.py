"""Broker settings that are read at startup, seen by a client of one broker."""

import contextlib
import os
import socket
import struct
import time

import pytest

from pylog.testing import Broker
from tests.wire import raw
from tests.wire.messages import ask, decode
from tests.wire.raw import Connection, batch, record
from tests.wire.records import batches
from tests.wire.talk import create_topic, fetch, produce, unique

MIB = 1 << 20
COMMIT, FIND, JOIN, DESCRIBE_CONFIGS, LIST_TRANSACTIONS, CONSUMER_HEARTBEAT = \
    8, 10, 11, 32, 66, 68
GROUP, TRANSACTION, SHARE, TOPIC = 0, 1, 2, 2
BAD_SESSION, METADATA_TOO_LARGE, TOO_LARGE, INVALID_TIMESTAMP, UNSUPPORTED = 26, 12, 10, 32, 35
INVALID_TIMEOUT, ID_REQUIRED, GROUP_FULL = 50, 79, 81
RETRIABLE = (3, 14, 15, 16)
SETTINGS = {
    "request.entries.max": 1000,
    "decompressed.batch.bytes.max": 5000,
    "group.coordinator.rebalance.protocols": "classic",
    "group.initial.rebalance.delay.ms": 0,
    "group.max.session.timeout.ms": 7000,
    "group.max.size": 1,
    "log.message.timestamp.after.max.ms": 60_000,
    "log.message.timestamp.before.max.ms": 60_000,
    "max.incremental.fetch.session.cache.slots": 0,
    "offset.metadata.max.bytes": 3,
    "offsets.topic.compression.codec": raw.GZIP,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": 2 * MIB,
    "socket.listen.backlog.size": 37,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.segment.bytes": 3 * MIB,
    "transaction.max.timeout.ms": 5000,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.segment.bytes": 4 * MIB,
}


@pytest.fixture(scope="module")
def broker():
    with Broker(settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def port(broker):
    return int(broker.bootstrap.rpartition(":")[2])


@pytest.fixture(scope="module")
def other_port():
    """Return the port of a broker that differs from the defaults only in checking no records."""
    with Broker(settings={"records.validate.enable": False}) as running:
        yield int(running.bootstrap.rpartition(":")[2])


@pytest.fixture(scope="module", autouse=True)
def coordinators(port):
    with Connection(port) as connection:
        for kind in (GROUP, TRANSACTION):
            settled(connection, FIND, 4, lambda answer: answer["coordinators"][0]["error_code"],
                    key_type=kind, coordinator_keys=["any"])


@pytest.fixture
def connection(port):
    with Connection(port) as opened:
        yield opened


def settled(connection, key: int, version: int, code, /, **fields):
    """Repeat the request until the coordinator is available; return code(response)."""
    end_s = time.monotonic() + 60
    while (found := code(ask(connection, key, version, **fields))) in RETRIABLE:
        assert time.monotonic() < end_s, found
        time.sleep(0.05)
    return found


def join(connection, group: str, session_ms: int, member: str = "") -> dict:
    found = {}

    def code(answer):
        found.update(answer)
        return answer["error_code"]

    settled(connection, JOIN, 5, code, group_id=group, session_timeout=session_ms,
            rebalance_timeout=3000, member_id=member, group_instance_id=None,
            protocol_type="consumer", protocols=[{"name": "range", "metadata": b"m"}])
    return found


def commit(connection, topic: str, group: str, metadata: str) -> int:
    return settled(
        connection, COMMIT, 7, lambda answer: answer["topics"][0]["partitions"][0]["error_code"],
        group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        topics=[{"name": topic, "partitions": [{
            "partition_index": 0, "committed_offset": 1, "committed_leader_epoch": 0,
            "committed_metadata": metadata}]}])


def test_session_timeout_has_the_configured_maximum(connection):
    assert join(connection, unique("g"), 7001)["error_code"] == BAD_SESSION
    assert join(connection, unique("g"), 7000)["error_code"] == ID_REQUIRED


def test_group_has_the_configured_maximum_of_members(connection):
    group = unique("g")
    member = join(connection, group, 7000)["member_id"]
    assert join(connection, group, 7000, member)["error_code"] == 0
    assert join(connection, group, 7000)["error_code"] == GROUP_FULL


def test_metadata_of_an_offset_has_the_configured_maximum(connection, port):
    topic, group = unique("t"), unique("g")
    create_topic(port, topic)

    assert commit(connection, topic, group, "abc") == 0
    assert commit(connection, topic, group, "abcd") == METADATA_TOO_LARGE


def test_transaction_timeout_has_the_configured_maximum(connection):
    def start(timeout_ms: int):
        return settled(connection, raw.INIT_PRODUCER_ID, 4, lambda answer: answer["error_code"],
                       transactional_id=unique("x"), transaction_timeout=timeout_ms,
                       producer_id=-1, producer_epoch=-1)

    assert (start(5000), start(5001)) == (0, INVALID_TIMEOUT)


def test_unused_transactional_id_expires_after_the_configured_time():
    id_, name = unique("x"), "transaction.remove.expired.transaction.cleanup.interval.ms"

    def ids(connection) -> list[str]:
        answer = ask(connection, LIST_TRANSACTIONS, 0, state_filters=[], producer_id_filters=[])
        return [row["transactional_id"] for row in answer["transaction_states"]]

    with Broker(settings={"transactional.id.expiration.ms": 60_000, name: 1000}) as broker, \
            Connection(int(broker.bootstrap.rpartition(":")[2])) as connection:
        settled(connection, FIND, 4, lambda answer: answer["coordinators"][0]["error_code"],
                key_type=TRANSACTION, coordinator_keys=[id_])
        assert settled(connection, raw.INIT_PRODUCER_ID, 4, lambda answer: answer["error_code"],
                       transactional_id=id_, transaction_timeout=5000, producer_id=-1,
                       producer_epoch=-1) == 0
        broker.clock.advance(seconds=50)
        assert ids(connection) == [id_]
        end_s = time.monotonic() + 30
        while ids(connection):
            assert time.monotonic() < end_s
            broker.clock.advance(seconds=5)


def test_committed_offsets_are_compressed_with_the_configured_codec(connection, port):
    topic, group = unique("t"), unique("g")
    create_topic(port, topic)
    assert commit(connection, topic, group, "") == 0
    records = fetch(connection, "__consumer_offsets")["records"]
    assert {one.attributes & 7 for one in batches(bytes(records))} == {raw.GZIP}


def test_listener_has_the_configured_backlog(broker, port):
    """Linux reports the maximum backlog of a listening socket as `tcpi_sacked`."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as opened:
            if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) \
                    and opened.getsockname()[1] == port:
                info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
                found.add(struct.unpack_from("I", info, 28)[0])
    assert found == {37}


def test_unlisted_group_protocol_is_rejected(connection):
    answer = ask(connection, CONSUMER_HEARTBEAT, 0, group_id=unique("g"), member_id="",
                 member_epoch=0, rebalance_timeout=1000, subscribed_topic_names=["t"],
                 topic_partitions=[])
    assert answer["error_code"] == UNSUPPORTED


@pytest.mark.parametrize(("shift_ms", "code"), [
    (0, 0), (-50_000, 0), (50_000, 0), (-70_000, INVALID_TIMESTAMP), (70_000, INVALID_TIMESTAMP)])
def test_timestamps_must_be_near_the_brokers_time(connection, port, shift_ms, code):
    topic = unique("t")
    create_topic(port, topic)
    records = batch([record()], base_timestamp=int(time.time() * 1000) + shift_ms)
    assert produce(connection, topic, records)["error_code"] == code


@pytest.mark.parametrize(("size", "code"), [(4000, 0), (6000, TOO_LARGE)])
def test_decompressed_batch_has_the_configured_maximum(connection, port, size, code):
    topic = unique("t")
    create_topic(port, topic)
    records = batch([record(value=bytes(size))], codec=raw.GZIP)
    assert produce(connection, topic, records)["error_code"] == code


def test_content_of_records_is_not_checked_if_validation_is_disabled(port, other_port):
    found = []
    for side in (other_port, port):
        topic = unique("t")
        create_topic(side, topic)
        with Connection(side) as connection:
            found.append(produce(connection, topic, batch([b"\x7fjunk"]))["error_code"])
    assert found[0] == 0 and found[1] != 0


def test_broker_without_slots_for_fetch_sessions_opens_none(port, other_port):
    found = []
    for side in (port, other_port):
        topic = unique("t")
        create_topic(side, topic)
        with Connection(side) as connection:
            body = raw.fetch_body(11, [(topic, [(0, 0, MIB, -1)])], session_epoch=0)
            answer = decode(raw.FETCH, 11, connection.call(raw.FETCH, 11, body))
            found.append(answer["session_id"] != 0)
    assert found == [False, True]


def test_request_has_the_configured_maximum_of_elements(port):
    rows = [{"name": f"t{number}"} for number in range(1001)]
    with Connection(port) as connection:
        assert len(ask(connection, raw.METADATA, 8, topics=rows[:1000])["topics"]) == 1000
    with Connection(port) as connection:
        with pytest.raises((raw.Closed, OSError)):
            ask(connection, raw.METADATA, 8, topics=rows)


@pytest.mark.parametrize(("kind", "key", "topic", "segment_bytes"), [
    (GROUP, "g", "__consumer_offsets", 2 * MIB),
    (SHARE, "g:AAAAAAAAAAAAAAAAAAAAAQ:0", "__share_group_state", 3 * MIB),
    (TRANSACTION, "x", "__transaction_state", 4 * MIB)])
def test_internal_topic_has_the_configured_segment_size(
        connection, kind, key, topic, segment_bytes):
    settled(connection, FIND, 6, lambda answer: answer["coordinators"][0]["error_code"],
            key_type=kind, coordinator_keys=[key])
    answer = ask(connection, DESCRIBE_CONFIGS, 1, include_synonyms=False, resources=[{
        "resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["segment.bytes"]}])
    assert answer["results"][0]["configs"][0]["value"] == str(segment_bytes)
