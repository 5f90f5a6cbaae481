"""The offset ranges of a scan and how they are read, with a simulated consumer."""

import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest

from pylog.client.consumer import scan as scanning
from pylog.client.consumer.scan import BATCH_RECORDS_MAX, scan, offset_ranges
from pylog.client.errors import KafkaTimeoutError, UnknownTopicOrPartitionError
from pylog.client.types import OffsetAndTimestamp, TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


class Consumer:
    """known: partition -> (begin, end). times: ms -> partition -> the first offset not older.
    batches: results of polls, each [(partition, offset)]. heard: calls of the scan.
    """

    def __init__(self, known=None, batches=()):
        self.known = {A: (0, 10), B: (5, 8), C: (4, 4)} if known is None else known
        self.times, self.batches, self.heard, self.positions = {}, list(batches), [], {}
        self.settings = None
        metadata = SimpleNamespace(topic_id=lambda topic: b"id")
        self._core = SimpleNamespace(cluster=SimpleNamespace(metadata=metadata))

    def __call__(self, settings):
        self.settings = dict(settings)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.heard.append(("exit",))

    def partitions_for(self, topic, timeout):
        self.heard.append(("partitions_for", topic, timeout))
        if isinstance(self.known, Exception):
            raise self.known
        return [tp.partition for tp in self.known]

    def beginning_offsets(self, parts):
        return {tp: self.known[tp][0] for tp in parts}

    def end_offsets(self, parts):
        return {tp: self.known[tp][1] for tp in parts}

    def offsets_for_times(self, wanted):
        return {tp: None if (found := self.times[at].get(tp)) is None
                else OffsetAndTimestamp(found, at, 0) for tp, at in wanted.items()}

    def assign(self, parts):
        self.heard.append(("assign", parts))

    def seek(self, tp, offset):
        self.positions[tp] = offset

    def position(self, tp):
        return self.positions[tp]

    def pause(self, *parts):
        self.heard.append(("pause", *parts))

    def close(self):
        self.heard.append(("close", threading.current_thread().name))

    def poll_arrow(self, wait_s, records_max, columns):
        self.heard.append(("poll", wait_s, records_max, columns))
        rows = self.batches.pop(0)
        if isinstance(rows, dict):  # Only transaction markers: only the positions advance.
            self.positions |= rows
            rows = []
        return pa.record_batch({
            "topic": pa.array(["t"] * len(rows)),
            "partition": pa.array([tp.partition for tp, _ in rows], pa.int32()),
            "offset": pa.array([offset for _, offset in rows], pa.int64()),
            "value": pa.array([b"%d" % offset for _, offset in rows], pa.binary())})


def rows_of(tp, *offsets):
    return [(tp, offset) for offset in offsets]


def read(monkeypatch, consumer, names=("partition", "offset"), **more):
    """Return [[(partition, offset)]] of each batch of a scan."""
    monkeypatch.setattr(scanning, "Consumer", consumer)
    reader = scan("t", columns=names, bootstrap_servers="b:1", **more)
    return [list(zip(*batch.to_pydict().values())) for batch in reader]


# Offset ranges.

@pytest.mark.parametrize(("since", "until", "partitions", "found"), [
    (None, None, None, {A: (0, 10), B: (5, 8)}), (None, None, [1, 2], {B: (5, 8)}),
    (None, None, [], {}), (1, None, None, {A: (3, 10)}), (2, None, None, {B: (6, 8)}),
    (None, 1, None, {A: (0, 3), B: (5, 8)}), (None, 2, None, {A: (0, 10), B: (5, 6)}),
    (1, 1, None, {}), (2, 1, [1], {B: (6, 8)}), (None, 3, None, {A: (0, 10), B: (5, 8)})])
def test_scan_range_starts_and_ends_at_the_first_records_not_older(
        since, until, partitions, found):
    """At time 1 only A has a record, at 2 only B; at 3 come records after the ends."""
    consumer = Consumer()
    consumer.times = {1: {A: 3}, 2: {B: 6}, 3: {A: 12, B: 9, C: 4}}
    assert offset_ranges(consumer, "t", partitions, since, until) == found


@pytest.mark.parametrize("partitions", [[3], [0, 3], [-1]])
def test_missing_partitions_are_named(partitions):
    with pytest.raises(UnknownTopicOrPartitionError, match=r"t has no partitions \{-?[13]\}"):
        offset_ranges(Consumer(), "t", partitions, None, None)


def late(cause):
    error = KafkaTimeoutError("late")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(("known", "raised"), [
    ({}, UnknownTopicOrPartitionError),
    (late(UnknownTopicOrPartitionError("t")), UnknownTopicOrPartitionError),
    (late(None), KafkaTimeoutError), (late(ValueError()), KafkaTimeoutError)])
def test_missing_topic_is_distinguished_from_unreachable_brokers(known, raised):
    consumer = Consumer(known)
    with pytest.raises(raised) as found:
        offset_ranges(consumer, "t", None, None, None)
    assert type(found.value) is raised
    assert consumer.heard == [("partitions_for", "t", scanning.MISSING_S)]


# Reading.

def test_scan_reads_each_range_and_disconnects(monkeypatch):
    consumer = Consumer({A: (2, 5), B: (7, 9)}, [
        rows_of(A, 2, 3) + rows_of(B, 7), rows_of(A, 4, 5) + rows_of(B, 8)])
    assert read(monkeypatch, consumer) == [[(0, 2), (0, 3), (1, 7)], [(0, 4)], [(1, 8)]]
    assert consumer.positions == {A: 2, B: 7}
    assert [call[0] for call in consumer.heard] == [
        "partitions_for", "exit", "assign", "poll", "poll", "close"]
    assert ("assign", [A, B]) in consumer.heard


def test_partition_at_its_end_is_paused_while_others_continue(monkeypatch):
    consumer = Consumer({A: (0, 1), B: (0, 2)}, [rows_of(A, 0, 1), rows_of(A, 2), rows_of(B, 0, 1)])
    assert read(monkeypatch, consumer) == [[(0, 0)], [(1, 0), (1, 1)]]
    assert [call for call in consumer.heard if call[0] == "pause"] == [("pause", A)]


def test_transaction_markers_at_the_end_advance_the_position(monkeypatch):
    consumer = Consumer({A: (0, 3), B: (0, 2)}, [
        rows_of(A, 0), {A: 2}, {A: 3, B: 1}, rows_of(B, 1)])
    assert read(monkeypatch, consumer) == [[(0, 0)], [(1, 1)]]
    assert consumer.batches == [] and ("pause", A) in consumer.heard


def test_empty_scan_sends_no_fetch(monkeypatch):
    consumer = Consumer({A: (4, 4)})
    assert read(monkeypatch, consumer) == []
    assert [call[0] for call in consumer.heard] == ["partitions_for", "exit"]


def test_a_poll_has_the_columns_that_are_wanted_and_those_that_are_needed(monkeypatch):
    consumer = Consumer({A: (0, 1)}, [rows_of(A, 0)])
    assert read(monkeypatch, consumer, ["value"], batch_records_max=7) == [[(b"0",)]]
    assert ("poll", scanning.POLL_S, 7, {"value", "partition", "offset"}) in consumer.heard
    consumer = Consumer({A: (0, 1)}, [rows_of(A, 0)])
    read(monkeypatch, consumer)
    assert [call[2] for call in consumer.heard if call[0] == "poll"] == [BATCH_RECORDS_MAX]


def test_scan_commits_nothing_and_creates_no_topic_by_default(monkeypatch):
    consumer = Consumer({A: (4, 4)})
    read(monkeypatch, consumer)
    assert (consumer.settings["enable.auto.commit"],
            consumer.settings["allow.auto.create.topics"]) == (False, False)
    read(monkeypatch, consumer, config={"enable.auto.commit": True, "client.id": "x"})
    assert consumer.settings["enable.auto.commit"] is True
    assert (consumer.settings["client.id"], consumer.settings["bootstrap.servers"]) == ("x", "b:1")


def test_a_reader_that_is_dropped_hangs_up(monkeypatch):
    consumer = Consumer({A: (0, 9)}, [rows_of(A, 0), rows_of(A, 1)])
    batches = scanning._batches({}, {A: (0, 9)}, ["offset"], 5, b"id")
    monkeypatch.setattr(scanning, "Consumer", consumer)
    assert next(batches).to_pydict() == {"offset": [0]}
    batches.close()
    assert consumer.heard[-1] == ("close", threading.current_thread().name)


def test_reader_dropped_on_the_client_thread_disconnects_on_another(monkeypatch):
    consumer = Consumer({A: (0, 9)}, [rows_of(A, 0)])
    done = threading.Event()
    close = consumer.close
    consumer.close = lambda: (close(), done.set())
    monkeypatch.setattr(scanning, "Consumer", consumer)
    monkeypatch.setattr(scanning, "Driver", SimpleNamespace(
        shared=lambda: SimpleNamespace(thread=threading.current_thread())))
    batches = scanning._batches({}, {A: (0, 9)}, ["offset"], 5, b"id")
    next(batches)
    batches.close()
    assert done.wait(30)
    assert consumer.heard[-1] == ("close", "pylog-scan-close")
