"""A record's path to its partition's batch, its rejections, and close; no broker."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.config.settings import PRODUCER, Settings
from pylog.client.errors import (
    BufferFullError, ClosedError, ConfigError, FatalError, ForkedError, IllegalStateError,
    KafkaError, KafkaTimeoutError, SerializationError,
)
from pylog.client.producer import core as producer_core
from pylog.client.producer.core import Producing, acks_of, header_bytes
from pylog.client.producer.partitioners import Sticky
from tests.client.played_consumer import picture


def settings(**more):
    return Settings(PRODUCER, bootstrap_servers="x:1", **more)


@pytest.fixture
def produce(virtual_time, monkeypatch):
    """produce(steps, **settings) runs steps(producing, clock); nothing is sent."""
    clock = virtual_time(producer_core)
    monkeypatch.setattr(producer_core, "time", SimpleNamespace(
        monotonic=lambda: clock.now_s, time_ns=lambda: 1_234_567_890_123))

    async def idle(self):
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(producer_core.Sender, "run", idle)

    def run(steps, **more):
        async def main():
            made = await Producing(settings(**more)).start()
            made.cluster.metadata = picture(topics=["t", "u"])
            await steps(made, clock)
            await made.close(0)

        clock.run(main())

    return run


def put(core, value=b"v", key=None, topic="t", partition=0, timestamp=5, headers=None,
        on_delivery=None):
    return core.put(topic, key, value, partition, timestamp, headers, on_delivery)


def waiting(core):
    """Return (topic, partition, records) of the open batches."""
    core.accumulator.flushing += 1
    for queue in core.accumulator.queues():
        core.accumulator.close_due(queue, 0.0)
    core.accumulator.flushing -= 1
    return [(one.topic, one.partition, one.count) for one in core.accumulator.pendings()]


def delivered(core, offset=0):
    waiting(core)
    for number, one in enumerate(core.accumulator.pendings()):
        one.queue.ready.clear()
        core.accumulator.complete(one, offset + number)


def test_a_record_waits_in_its_partitions_batch(produce):
    async def steps(core, clock):
        heard = []
        put(core)
        put(core, "text", "key", on_delivery=lambda *given: heard.append(given))
        put(core, None, partition=1)
        last = put(core, timestamp=None, topic="u")
        assert waiting(core) == [("t", 0, 2), ("t", 1, 1), ("u", 0, 1)]
        delivered(core, 7)
        assert heard == [(("t", 0, 8, 5), None)]
        assert last.result(0) == ("u", 0, 9, 1_234_567)

    produce(steps)


@pytest.mark.parametrize("given, kind, words", [
    ({"value": 5}, SerializationError, "the value is of type int"),
    ({"key": 5}, SerializationError, "the key is of type int"),
    ({"headers": [("n", 5)]}, SerializationError, r"headers are \(name, bytes\) pairs"),
    ({"partition": -1}, ValueError, "t has no partition -1"),
    ({"topic": 5}, TypeError, "a topic name must be a str, not 5"),
    ({"timestamp": 5, "value": b"x" * 101}, KafkaError, "101 bytes is over max.request.size"),
    ({"key": b"k", "value": b"x" * 100}, KafkaError, "101 bytes is over max.request.size"),
    ({"headers": [("n", b"")], "value": b"x" * 81}, KafkaError, "a record of 101 bytes")])
def test_unsendable_record_is_rejected_without_waiting(produce, given, kind, words):
    async def steps(core, clock):
        with pytest.raises(kind, match=words):
            put(core, **given)
        assert waiting(core) == [] and core.accumulator.bytes_used == 0

    produce(steps, max_request_size=100)


@pytest.mark.parametrize("given, words", [
    ({"partition": "0"}, "a partition must be a whole number, not '0'"),
    ({"timestamp": "now"}, "a timestamp in ms must be a whole number, not 'now'")])
def test_partitions_and_timestamps_that_are_no_whole_number_are_rejected(produce, given, words):
    async def steps(core, clock):
        row = {"partition": 0, "timestamp": 5, **given}
        with pytest.raises(TypeError, match=words):
            core.prepared("t", b"v", None, row["partition"], row["timestamp"], None, None)

    produce(steps)


def test_record_of_the_maximum_size_is_accepted(produce):
    async def steps(core, clock):
        put(core, b"x" * 100)
        put(core, b"x" * 99, b"k")
        put(core, None, b"k" * 100)
        assert waiting(core)

    produce(steps, max_request_size=100)


def test_header_bytes_are_never_less_than_headers_take():
    assert header_bytes([("ab", b"abc"), ("c", None)]) == 16 + 8 + 12 + 16 + 4
    assert header_bytes({"ab": b"abc"}) == 36 and header_bytes([]) == 0


def test_unknown_topic_or_partition_is_awaited(produce):
    async def steps(core, clock):
        assert put(core, topic="new") == put(core, partition=2) == "metadata"
        assert not isinstance(put(core, partition=1), str)
        assert waiting(core) == [("t", 1, 1)]

    produce(steps)


def test_new_metadata_rebuilds_the_routes(produce):
    async def steps(core, clock):
        put(core)
        assert core.routes
        core.cluster._show(picture(topics=["t"], partitions=3))
        assert not core.routes
        assert not isinstance(put(core, partition=2), str)

    produce(steps)


def test_partition_without_a_leader_is_avoided_unless_requested(produce):
    async def steps(core, clock):
        seen = []
        core.partitioner = producer_core.partitioner(
            lambda topic, key, all_, free: seen.append((all_, free)) or 1, 100)
        made = picture(topics=["t"])
        parts = made.topics["t"].partitions
        parts[0] = parts[0]._replace(leader=9)
        core.cluster._show(made)
        put(core, partition=None)
        parts[1] = parts[1]._replace(leader=9)
        core.cluster._show(made)
        put(core, partition=None)
        assert seen == [([0, 1], [1]), ([0, 1], [0, 1])]

    produce(steps)


def test_key_determines_the_partition_and_null_keys_stick(produce):
    async def steps(core, clock):
        for _ in range(5):
            put(core, partition=None)
        [(_, _, count)] = waiting(core)
        assert count == 5
        delivered(core)
        for number in range(20):
            put(core, key=b"%d" % number, partition=None)
        assert {partition for _, partition, _ in waiting(core)} == {0, 1}

    produce(steps)


def test_full_buffer_blocks_until_space_is_free(produce):
    async def steps(core, clock):
        assert not isinstance(put(core, b"x" * 40_000), str)
        assert put(core, b"x" * 40_000, partition=1) == "memory"
        loop = asyncio.get_running_loop()
        loop.call_later(3, delivered, core)
        await core.wait_for("memory", "t", 0, 60.0)
        assert clock.now_s == 1003
        assert not isinstance(put(core, b"x" * 40_000, partition=1), str)
        with pytest.raises(BufferFullError, match="stayed full for 9.0 s"):
            await core.wait_for("memory", "t", 0, 2.0)
        assert clock.now_s == 1005
        delivered(core)

    produce(steps, buffer_memory=60_000, batch_size=50_000, max_block_ms=9000)


def test_metadata_is_awaited_and_refreshed_if_too_old(produce):
    async def steps(core, clock):
        refreshed = []

        async def topic(name, timeout_s):
            if timeout_s < 1:
                raise KafkaTimeoutError("late")

        async def refresh(names):
            refreshed.append(names)
            core.cluster.metadata = picture(topics=["t"], partitions=3)

        core.cluster.topic, core.cluster.refresh = topic, refresh
        await core.wait_for("metadata", "t", 1, 5.0)
        await core.wait_for("metadata", "t", None, 5.0)
        assert refreshed == []
        await core.wait_for("metadata", "t", 2, 5.0)
        assert refreshed == [["t"]]
        with pytest.raises(ValueError, match="t has no partition 3, only 3"):
            await core.wait_for("metadata", "t", 3, 5.0)
        with pytest.raises(KafkaTimeoutError, match="t: no metadata within .*max.block.ms.*late"):
            await core.wait_for("metadata", "t", 0, 0.5)

    produce(steps)


# Closed and fenced producers.

def test_nothing_is_sent_once_it_cannot_be(produce):
    async def steps(core, clock):
        core.check()
        put(core)
        core.sender.failure = KafkaError("fenced")
        with pytest.raises(KafkaError, match="fenced"):
            core.check()
        core.routes.clear()
        put(core)
        assert not core.routes, "native code would take the short way"
        core.sender.failure = None
        put(core)
        core.mark_forked()
        assert not core.routes
        with pytest.raises(ForkedError):
            core.check()
        core.forked = False
        await core.close(0)
        with pytest.raises(ClosedError):
            core.check()
        put(core)
        assert not core.routes
        core.accumulator.fail_unsent(ClosedError("over"))

    produce(steps)


def test_a_transactional_producer_sends_within_a_transaction_only(produce):
    async def steps(core, clock):
        with pytest.raises(IllegalStateError):
            core.check()

    produce(steps, transactional_id="x")


@pytest.mark.parametrize("failure, more, ends", [
    (FatalError("fenced"), {"transactional_id": "x"}, True), (KafkaError("lost"), {}, True),
    (KafkaError("lost"), {"transactional_id": "x"}, False)])
def test_failure_completes_pending_batches_and_a_fatal_one_the_producer(
        produce, failure, more, ends):
    async def steps(core, clock):
        one = put(core)
        core._fail(failure)
        assert not core.routes and one.exception(0) is failure
        assert (core.sender.failure is failure) == ends

    produce(steps, **more)


def test_internal_error_leaves_no_waiter(produce):
    async def steps(core, clock):
        one = put(core)

        async def fails():
            raise RuntimeError("a fault")

        task = asyncio.create_task(fails())
        await asyncio.wait([task])
        core._ended(task)
        assert "the sender has failed: RuntimeError('a fault')" in str(one.exception(0))

    produce(steps)


# Serializers and interceptors.

def test_serializers_get_only_non_null_values_and_failures_name_the_topic(produce):
    async def steps(core, clock):
        def made(*given):
            return core.prepared(*given, None, None, None, None)[1:3]

        assert made("t", 5, "k") == (b"K", b"t:5")
        assert made("t", None, None) == (None, None)
        with pytest.raises(SerializationError, match="t: odd"):
            made("t", -1, None)
        with pytest.raises(ConfigError, match="kept as it is"):
            made("t", -2, None)

    class Values:
        def serialize(self, topic, data):
            if data == -1:
                raise ValueError("odd")
            if data == -2:
                raise ConfigError("kept as it is")
            return f"{topic}:{data}".encode()

    produce(steps, key_serializer=lambda data: data.upper().encode(), value_serializer=Values())


def test_invalid_serializer_is_rejected():
    with pytest.raises(ConfigError, match="not a serializer: 5"):
        Producing(settings(key_serializer=5))


def test_interceptors_change_records_in_order_and_get_outcomes_before_callbacks(produce):
    heard = []

    class Changes:
        def on_send(self, **given):
            return {"value": given["value"] + b"1", "partition": 1}

        def on_acknowledgement(self, *given):
            heard.append(("interceptor", *given))

    class Only:
        def on_send(self, **given):
            assert given["value"] == b"v1"

    async def steps(core, clock):
        made = core.prepared("t", b"v", b"k", None, 5, None, lambda *given: heard.append(given))
        assert made[:6] == ("t", b"k", b"v1", 1, 5, None)
        made[6]("outcome", None)
        assert heard == [("interceptor", "outcome", None), ("outcome", None)]
        core.acknowledging(None)("outcome", None)
        core.interceptors = [Only()]
        assert core.acknowledging(None) is None

    produce(steps, interceptor_classes=[Changes, Only()])


# Settings.

@pytest.mark.parametrize("given, expected", [
    ({}, (-1, True)), ({"acks": "1"}, (1, False)), ({"acks": "0"}, (0, False)),
    ({"acks": "-1"}, (-1, True)), ({"retries": 0}, (-1, False)), ({"retries": 1}, (-1, True)),
    ({"enable_idempotence": False}, (-1, False)),
    ({"max_in_flight_requests_per_connection": 5}, (-1, True)),
    ({"max_in_flight_requests_per_connection": 6}, (-1, False))])
def test_producer_is_idempotent_if_its_settings_allow_it(given, expected):
    assert acks_of(settings(**given)) == expected


@pytest.mark.parametrize("given, words", [
    ({"enable_idempotence": True, "acks": "1"}, "enable.idempotence=true needs acks=all"),
    ({"enable_idempotence": True, "retries": 0}, "enable.idempotence=true needs acks=all"),
    ({"transactional_id": "x", "acks": "0"}, "enable.idempotence=true needs acks=all"),
    ({"transactional_id": "x", "enable_idempotence": False}, "needs enable.idempotence"),
    ({"delivery_timeout_ms": 1009, "linger_ms": 10, "request_timeout_ms": 1000},
     "delivery.timeout.ms must be at least")])
def test_conflicting_settings_are_rejected(given, words):
    with pytest.raises(ConfigError, match=words):
        acks_of(settings(**given))


def test_a_delivery_has_just_the_time_that_its_parts_take():
    assert acks_of(settings(delivery_timeout_ms=1010, linger_ms=10, request_timeout_ms=1000))
    assert acks_of(settings(linger_ms=119_000, request_timeout_ms=1001))


def test_batches_codec_and_level_are_as_set():
    made = Producing(settings(batch_size=500, max_request_size=400, compression_type="zstd",
                              compression_zstd_level=7))
    assert (made.batch_bytes, made.codec, made.level) == (400, 4, 7)
    made = Producing(settings(batch_size=300, max_request_size=400, compression_type="zstd"))
    assert (made.batch_bytes, made.codec, made.level) == (300, 4, None)
    assert Producing(settings()).level is None


@pytest.mark.parametrize("adaptive", [True, False])
def test_queue_sizes_affect_partition_choice_if_enabled(produce, adaptive):
    async def steps(core, clock):
        assert isinstance(core.partitioner, Sticky)
        assert (core.partitioner.load is not None) == adaptive
        assert (core.partitioner.stalled is not None) == adaptive

    produce(steps, partitioner_adaptive_partitioning_enable=adaptive)


@pytest.mark.parametrize("more, identity, transactions", [
    ({}, True, False), ({"acks": "1"}, False, False), ({"transactional_id": "x"}, True, True)])
def test_producer_allocates_an_id_only_if_needed(produce, more, identity, transactions):
    async def steps(core, clock):
        assert (core.identity is not None, core.transactions is not None) == (
            identity, transactions)
        if not transactions:
            with pytest.raises(IllegalStateError, match="this producer sends no transactions"):
                core.needs_transactions()

    produce(steps, **more)


def test_totals_contain_free_buffer_memory(produce):
    async def steps(core, clock):
        own = core.metrics()["producer-metrics"]
        assert own["buffer-available-bytes"] == own["buffer-total-bytes"] == 60_000
        assert own["batch-size-avg"] == own["records-per-batch-avg"] == 0.0
        put(core, b"x" * 80_000)
        own = core.metrics()["producer-metrics"]
        assert (own["buffer-available-bytes"], own["buffer-total-bytes"]) == (0, 60_000)
        core.sender.counts.batches, core.sender.counts.bytes = 4, 10
        core.sender.counts.records = 6
        own = core.metrics()["producer-metrics"]
        assert (own["batch-size-avg"], own["records-per-batch-avg"]) == (2.5, 1.5)

    produce(steps, buffer_memory=60_000)


# Close.

def test_close_waits_for_sent_records(produce):
    async def steps(core, clock):
        one = put(core)
        asyncio.get_running_loop().call_later(3, delivered, core)
        await core.close()
        assert clock.now_s == 1003 and one.exception(0) is None and core.cluster.closed
        assert not core.routes

    produce(steps)


@pytest.mark.parametrize("timeout_s", [2.0, 0])
def test_close_ends_on_time_and_fails_remaining_records(produce, timeout_s):
    async def steps(core, clock):
        one = put(core)
        await core.close(timeout_s)
        assert clock.now_s == 1000 + timeout_s
        with pytest.raises(ClosedError, match="the producer was closed"):
            one.result(0)
        assert core._task.cancelled() and core.accumulator.pendings() == []

    produce(steps)


def test_abort_fails_unsent_records(produce):
    async def steps(core, clock):
        ended = []
        core.transactions.begin_end = lambda committed: ended.append(committed)

        async def end(committed):
            ended.append(committed)

        core.transactions.end = end
        one = put(core)
        await core.end_transaction(False)
        assert ended == [False, False] and "was aborted" in str(one.exception(0))
        two = put(core)
        asyncio.get_running_loop().call_later(3, delivered, core)
        await core.end_transaction(True)
        assert ended[2:] == [True, True] and clock.now_s == 1003
        assert two.exception(0) is None

    produce(steps, transactional_id="x")
