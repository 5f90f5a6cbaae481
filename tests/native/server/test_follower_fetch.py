"""Fetch and Produce of a replicated partition, over real reactors.

Covers the responses to followers, the effects of their fetches, and the leaders and nearer replicas
reported to clients.
"""

import select
import threading
import time
import uuid

import pytest

from pylog._native.log.io_pool import IoPool
from pylog._native.log.log import Log, LogDir
from pylog._native.records import batch
from pylog._native.server.grants import FOLLOW, READ, WRITE, Grants
from pylog._native.server.rate_limit import NONE, Throttle
from pylog._native.server.reactor import IsrCandidate, Miss, Reactors, Verify
from pylog.coordinator.runtime.transactional_batches import Marker
from tests.wire import raw
from tests.wire.messages import ask

NOW = 1_700_000_000_000
TOPIC_ID = uuid.UUID(int=77)
LISTENER = 3
VERSIONS = [(0, 3, 13, 9), (1, 4, 18, 12)]
LIMITS = {"request_bytes_max": 1 << 20, "idle_ms_max": -1, "queued_requests_max": 500,
          "fetch_bytes_max": 1 << 20, "sessions_max": 10}
SELF, EPOCH = 1, 5
OUT_OF_RANGE, UNKNOWN_PARTITION, NOT_LEADER, TIMED_OUT = 1, 3, 6, 7
NOT_ENOUGH, NOT_ALLOWED, FENCED, UNKNOWN_EPOCH = 19, 29, 74, 75


def make(count=1):
    return batch.build([(None, b"x", NOW, [])] * count)


class Broker:
    """A partition led by broker 1 with followers 2 and 3, and the reactors that serve it."""

    def __init__(self, path, config=None, *, rack_aware=False, throttle=None):
        self.directory = LogDir(path, 2)
        self.log = Log.open(self.directory, "t", 0, TOPIC_ID, config, now_ms=NOW)
        self.log.become_leader(EPOCH, 2, replicated=True)
        self.log.set_replicas(0, SELF, [(2, 20, True, True), (3, 30, False, False)], 2)
        self.grants = Grants()
        self.install()
        self.grants.set_nodes([(LISTENER, [(1, "one", 9, "r1"), (2, "two", 9, "r2"),
                                           (4, "four", 9, None)])])
        self.reactors = Reactors(
            grants=self.grants, io_pool=IoPool(), network_threads=2, api_versions=VERSIONS,
            rack_aware=rack_aware, throttle=throttle, **LIMITS)
        self.reactors.start()
        self.port = self.reactors.listen(LISTENER, "127.0.0.1", 0, 10)

    def install(self, leader=(SELF, EPOCH), rights=READ | WRITE | FOLLOW):
        self.grants.install("t", TOPIC_ID.bytes, [self.log], leaders=[leader])
        assert self.grants.allow(0, TOPIC_ID.bytes, rights)

    def events(self, wait_s=5.0):
        select.select([self.reactors], [], [], wait_s)
        return self.reactors.poll()


@pytest.fixture
def broker(tmp_path):
    running = Broker(tmp_path)
    yield running
    running.reactors.stop(1000)


@pytest.fixture
def connection(broker):
    with raw.Connection(broker.port) as opened:
        yield opened


def fetched(connection, offset, replica_id=2, *, version=18, broker_epoch=20, last_epoch=-1,
            epoch=-1, wait_ms=0, partition=0, session=(0, -1), whole=False, **more):
    """Fetch and return the partition's row of the response, or with `whole` the whole response."""
    who = {"replica_state": {"replica_id": replica_id, "replica_epoch": broker_epoch}} \
        if version >= 15 else {"replica_id": replica_id}
    named = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "t"}
    answer = ask(connection, raw.FETCH, version, max_wait=wait_ms, min_bytes=1, max_bytes=1 << 20,
                 isolation_level=more.pop("isolation_level", 0), session_id=session[0],
                 session_epoch=session[1],
                 topics=[{**named, "partitions": [{
                     "partition": partition, "current_leader_epoch": epoch, "fetch_offset": offset,
                     "last_fetched_epoch": last_epoch, "log_start_offset": 0,
                     "partition_max_bytes": 1 << 20}]}],
                 forgotten_topics_data=[], rack_id=more.pop("rack_id", ""), **who, **more)
    return answer if whole else answer["responses"][0]["partitions"][0]


def produced(connection, *, acks=-1, version=12, timeout_ms=10000, whole=False):
    body = raw.produce_body(version, "t", [(0, raw.batch([raw.record(value=b"x")]))], acks=acks,
                            timeout_ms=timeout_ms)
    connection.send(raw.frame(raw.header(raw.PRODUCE, version) + body))
    return connection.receive()


def test_follower_reads_beyond_the_high_watermark_and_advances_it(broker, connection):
    broker.log.append(make(10), NOW)
    row = fetched(connection, 0)
    assert (row["error_code"], row["high_watermark"]) == (0, 0)
    assert len(row["records"]) == len(broker.log.read(0))
    row = fetched(connection, 10)
    assert (row["error_code"], row["high_watermark"], row["records"]) == (0, 10, b"")
    assert broker.log.high_watermark == 10
    assert fetched(connection, 10, -1)["high_watermark"] == 10


@pytest.mark.parametrize("asked, error", [
    ({}, 0), ({"broker_epoch": -1}, 0), ({"broker_epoch": 21}, 0), ({"version": 12}, 0),
    ({"broker_epoch": 19}, NOT_LEADER), ({"replica_id": 9}, NOT_LEADER),
    ({"replica_id": 9, "epoch": EPOCH}, UNKNOWN_EPOCH),
    ({"epoch": EPOCH}, 0), ({"epoch": EPOCH + 1}, UNKNOWN_EPOCH), ({"epoch": EPOCH - 1}, FENCED),
    ({"offset": 11}, OUT_OF_RANGE), ({"offset": -1}, OUT_OF_RANGE),
    ({"offset": 5, "last_epoch": EPOCH + 3}, OUT_OF_RANGE),
    ({"partition": 7}, UNKNOWN_PARTITION),
])
def test_each_follower_gets_kafkas_error(broker, connection, asked, error):
    broker.log.append(make(10), NOW)
    assert fetched(connection, asked.pop("offset", 10), **asked)["error_code"] == error


def test_diverging_follower_gets_the_diverging_epoch(broker, connection):
    broker.log.append(make(10), NOW)
    row = fetched(connection, 15, last_epoch=EPOCH)
    assert (row["error_code"], row["records"]) == (0, b"")
    assert (row["diverging_epoch"]["epoch"], row["diverging_epoch"]["end_offset"]) == (EPOCH, 10)
    assert broker.log.followers()[0][2] == -1
    row = fetched(connection, 10, last_epoch=EPOCH)
    assert row["diverging_epoch"]["epoch"] == -1


def test_a_follower_waits_for_the_end_and_a_consumer_for_the_high_watermark(broker, connection):
    with raw.Connection(broker.port) as consumer:
        got = {}

        def wait(name, *asked, **more):
            got[name] = fetched(*asked, wait_ms=20000, **more)

        waits = [threading.Thread(target=wait, args=("follower", connection, 0)),
                 threading.Thread(target=wait, args=("consumer", consumer, 0, -1))]
        for one in waits:
            one.start()
        time.sleep(0.1)
        broker.log.append(make(10), NOW)
        waits[0].join(10)
        assert got["follower"]["records"] and "consumer" not in got
        fetched(connection, 10)
        waits[1].join(10)
        assert got["consumer"]["records"]


def test_acks_all_waits_for_the_isr(broker, connection):
    with raw.Connection(broker.port) as producer:
        body = raw.produce_body(12, "t", [(0, raw.batch([raw.record(value=b"x")]))], acks=-1,
                                timeout_ms=10000)
        producer.send(raw.frame(raw.header(raw.PRODUCE, 12) + body))
        assert fetched(connection, 0, wait_ms=10000)["records"]
        assert producer.quiet(0.1)
        fetched(connection, 1)
        assert b"\x02t\x02\0\0\0\0\0\0" in producer.receive()


def test_acks_all_fails_with_the_next_leader_when_the_leader_resigns(broker, connection):
    body = raw.produce_body(12, "t", [(0, raw.batch([raw.record(value=b"x")]))], acks=-1,
                            timeout_ms=10000)
    connection.send(raw.frame(raw.header(raw.PRODUCE, 12) + body))
    deadline = time.monotonic() + 10
    while broker.log.end_offset == 0:
        assert time.monotonic() < deadline
    broker.log.become_follower(EPOCH + 1)
    # It became leader again in between, and its records may be different by now.
    broker.log.become_leader(EPOCH + 2, 1)
    assert b"\x02t\x02\0\0\0\0\0\x06" in connection.receive()


def test_acks_all_fails_when_the_isr_shrinks(tmp_path):
    broker = Broker(tmp_path, {"min.insync.replicas": 2})
    with raw.Connection(broker.port) as connection:
        broker.log.set_replicas(1, SELF, [(2, 20, False, False), (3, 30, False, False)], 1,
                                ineligible={2, 3})
        assert b"\x02t\x02\0\0\0\0\0\x13" in produced(connection)
    broker.reactors.stop(1000)


def test_throttled_partition_is_not_sent_to_lagging_followers(tmp_path):
    throttle = Throttle(11, 1000)
    broker = Broker(tmp_path, throttle=throttle)
    broker.log.append(make(10), NOW)
    whole = broker.log.read(0)
    with raw.Connection(broker.port) as connection:
        throttle.set(0)
        fetched(connection, 0, 3, broker_epoch=30)
        assert not throttle.is_over(time.monotonic_ns() // 1_000_000)  # It is not counted.
        broker.log.set_throttled(True, False)
        # An in-sync replica is counted but not throttled.
        assert [fetched(connection, 0)["records"] for _ in range(2)] == [whole] * 2
        assert throttle.is_over(time.monotonic_ns() // 1_000_000)
        began_s = time.monotonic()
        row = fetched(connection, 0, 3, broker_epoch=30, wait_ms=200)
        assert (row["error_code"], row["records"], row["high_watermark"]) == (0, b"", 0)
        assert time.monotonic() - began_s >= 0.2  # The response was delayed, without a busy loop.
        assert fetched(connection, 0, -1)["error_code"] == 0
        throttle.set(NONE)
        assert fetched(connection, 0, 3, broker_epoch=30)["records"] == whole
        throttle.set(0)
        broker.log.set_throttled(False, True)
        assert fetched(connection, 0, 3, broker_epoch=30)["records"] == whole
    broker.reactors.stop(1000)


def test_a_follower_that_caught_up_is_reported_once(broker, connection):
    broker.log.append(make(10), NOW)
    fetched(connection, 10)
    fetched(connection, 5, 3, broker_epoch=30)
    assert broker.events(0.1) == []
    fetched(connection, 10, 3, broker_epoch=30)
    [event] = broker.events()
    assert (type(event), event.topic_id, event.partition, event.broker_id) == (
        IsrCandidate, TOPIC_ID.bytes, 0, 3)
    fetched(connection, 10, 3, broker_epoch=30)
    assert broker.events(0.1) == []


def test_replica_fetch_needs_its_own_grant(broker, connection):
    broker.grants.void()
    connection.send(raw.frame(raw.header(raw.FETCH, 13) + raw.fetch_body(
        13, [(TOPIC_ID.bytes, [(0, 0, 100, -1)])], replica_id=2)))
    [event] = broker.events()
    assert (type(event), event.right) == (Miss, FOLLOW)
    broker.grants.allow(0, TOPIC_ID.bytes, READ)
    broker.reactors.resume(event.token, [NOT_ALLOWED])
    assert b"\0\x1d" in connection.receive()
    assert fetched(connection, 0, -1)["error_code"] == 0


def test_incremental_fetch_confirms_omitted_positions(broker, connection):
    broker.log.append(make(10), NOW)
    answer = fetched(connection, 10, session=(0, 0), whole=True)
    before = broker.log.followers()[0][4]
    ask(connection, raw.FETCH, 18, max_wait=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
        session_id=answer["session_id"], session_epoch=1, topics=[], forgotten_topics_data=[],
        rack_id="", replica_state={"replica_id": 2, "replica_epoch": 20})
    row = broker.log.followers()[0]
    assert row[4] > before and row[2] == 10


@pytest.mark.parametrize("version", [12, 16, 18])
def test_fetch_at_the_wrong_broker_returns_the_leader(broker, connection, version):
    broker.log.become_follower(EPOCH + 1)
    broker.install(leader=(2, EPOCH + 1))
    answer = fetched(connection, 0, version=version, whole=True)
    row = answer["responses"][0]["partitions"][0]
    assert row["error_code"] == NOT_LEADER
    told = (2, EPOCH + 1) if version >= 16 else (-1, -1)
    assert (row["current_leader"]["leader_id"], row["current_leader"]["leader_epoch"]) == told
    assert [(node["node_id"], node["host"], node["port"], node["rack"])
            for node in answer.get("node_endpoints", [])] == (
        [(2, "two", 9, "r2")] if version >= 16 else [])


def test_produce_at_the_wrong_broker_returns_the_leader(broker, connection):
    broker.log.become_follower(EPOCH + 1)
    for leader, host in ((2, b"two"), (4, b"four"), (9, None)):
        broker.install(leader=(leader, EPOCH + 1))
        for version in (9, 12):
            answer = produced(connection, version=version)
            assert b"\x02t\x02\0\0\0\0\0\x06" in answer
            told = b"\x01\0\x09" + leader.to_bytes(4, "big") + (EPOCH + 1).to_bytes(4, "big")
            assert (told in answer) == (version >= 10)
            assert host is None or (host in answer) == (version >= 10)


def test_consumers_read_from_a_readable_follower(broker, connection):
    broker.log.append(make(10), NOW)
    fetched(connection, 6)
    broker.log.become_follower(EPOCH + 1)
    assert fetched(connection, 0, -1)["error_code"] == NOT_LEADER
    broker.log.become_follower(EPOCH + 1, readable=True)
    assert fetched(connection, 0, -1, version=10)["error_code"] == NOT_LEADER
    row = fetched(connection, 0, -1)
    assert (row["error_code"], row["high_watermark"]) == (0, 6)
    # There is no record between the two offsets yet, and the fetch may wait for it.
    row = fetched(connection, 8, -1, wait_ms=50)
    assert (row["error_code"], row["records"]) == (0, b"")
    assert fetched(connection, 11, -1)["error_code"] == OUT_OF_RANGE
    waiting = threading.Timer(0.2, broker.log.advance_high_watermark, [10])
    waiting.start()
    assert fetched(connection, 10, -1, wait_ms=300)["high_watermark"] == 10
    waiting.join()


def test_consumer_is_redirected_to_a_replica_in_its_rack(tmp_path):
    broker = Broker(tmp_path, rack_aware=True)
    with raw.Connection(broker.port) as connection:
        broker.log.append(make(10), NOW)
        fetched(connection, 6)
        for rack, offset, preferred in (("r2", 0, 2), ("r2", 7, -1), ("r1", 0, -1), ("", 0, -1),
                                        ("other", 0, -1)):
            row = fetched(connection, offset, -1, rack_id=rack)
            assert (row["error_code"], row["preferred_read_replica"]) == (0, preferred), rack
            assert row["high_watermark"] == 6
        assert fetched(connection, 0, -1, rack_id="r2", wait_ms=20000)["records"] == b""
    broker.reactors.stop(1000)


def test_followers_with_consumers_get_the_high_watermark_immediately(tmp_path):
    broker = Broker(tmp_path, rack_aware=True)
    with raw.Connection(broker.port) as connection:
        broker.log.append(make(10), NOW)
        assert fetched(connection, 10, wait_ms=20000)["high_watermark"] == 10
        begun = time.monotonic()
        assert fetched(connection, 10, wait_ms=300)["high_watermark"] == 10
        assert time.monotonic() - begun >= 0.3
    broker.reactors.stop(1000)


def test_marker_during_a_verification_causes_another_verification(
        broker, connection):
    data = raw.batch([raw.record(value=b"x")], producer_id=7, producer_epoch=1, base_sequence=0,
                     attributes=batch.TRANSACTIONAL)
    body = raw.produce_body(12, "t", [(0, data)], acks=1, transactional_id="tx")

    def verify():
        connection.send(raw.frame(raw.header(raw.PRODUCE, 12) + body))
        event, = broker.events()
        assert type(event) is Verify
        return event.token

    token = verify()
    # A coordinator that took over writes the marker again.
    broker.log.append(Marker(7, 0, 1, True, 2).batch(NOW), NOW, trusted=True)
    broker.reactors.resume(token, [0])
    assert b"\x02t\x02\0\0\0\0" + NOT_ENOUGH.to_bytes(2, "big") in connection.receive()
    broker.reactors.resume(verify(), [0])
    assert b"\x02t\x02\0\0\0\0\0\0" in connection.receive()
