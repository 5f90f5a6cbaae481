"""The same requests to Apache Kafka and to brokerd: Produce, ListOffsets, OffsetForLeaderEpoch."""

import time
import uuid

import pytest

from tests.wire import raw
from tests.wire.mixed import BASE_MS, mixed_batches, timestamps_of
from tests.wire.raw import batch, record
from tests.wire.sides import Side, compare, produce

pytestmark = pytest.mark.kafka
LEADER_EPOCH = 23
KEEP = {"retention_ms": -1}
LOG_APPEND_TIME = 0x08      # In a batch's attributes.


def _produce(side: Side, version: int) -> None:
    two, stamped = side.topic("two", 2, **KEEP), side.topic(
        "stamped", message_timestamp_type="LogAppendTime")
    where = side.id_of if version >= 13 else str
    good = batch([record(), record(offset_delta=1)], base_timestamp=BASE_MS)
    bad = batch(crc_xor=1)
    for acks in (1, -1):
        produce(side, f"acks {acks}", version, [(where(two), [(0, good)])], acks=acks)
    produce(side, "two partitions", version, [(where(two), [(0, good), (1, good)])])
    produce(side, "good and bad", version, [(where(two), [(0, good), (1, bad)])])
    produce(side, "unknown partition", version, [(where(two), [(7, good)])])
    unknown = uuid.UUID(int=77).hex if version >= 13 else "no-such-topic"
    produce(side, "unknown topic", version, [(unknown, [(0, good)])])
    produce(side, "known and unknown", version,
            [(where(two), [(0, good)]), (unknown, [(0, good)])])
    produce(side, "acks 5", version, [(where(two), [(0, good)])], acks=5)
    produce(side, "no topics", version, [])
    produce(side, "no partitions", version, [(where(two), [])])
    answer = produce(side, "log append time", version, [(where(stamped), [(0, good)])])
    if answer:
        row = answer["responses"][0]["partition_responses"][0]
        side.answers[-1] = ("log append time", (row["error_code"], row["log_append_time"] > 1e12))
    if version >= 8:
        keyed = side.topic("keyed", cleanup_policy="compact")
        rows = [record(), record(None, offset_delta=1), record(None, offset_delta=2)]
        produce(side, "null keys", version, [(where(keyed), [(0, batch(rows))])])


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_matches_kafka(kafka, target, version):
    compare(kafka, target, _produce, version)


def _append_time_bits(side: Side) -> None:
    """Batches whose producer sets the LogAppendTime bit."""
    for kind in ("CreateTime", "LogAppendTime"):
        topic = side.topic(kind.lower(), message_timestamp_type=kind, **KEEP)
        for codec in (raw.NONE, raw.GZIP):
            for base, newest in ((BASE_MS, BASE_MS), (BASE_MS, -1), (-1, -1), (-1, BASE_MS)):
                data = batch([record(), record(offset_delta=1)], codec=codec,
                             attributes=LOG_APPEND_TIME, base_timestamp=base,
                             max_timestamp=newest)
                label = f"{kind}, codec {codec}, times {base} to {newest}"
                answer = produce(side, label, 8, [(topic, [(0, data)])])
                row = answer["responses"][0]["partition_responses"][0]
                # Responses that accept contain the broker's clock.
                side.answers[-1] = label, row["error_code"]


def test_append_time_bits_are_rejected_as_by_kafka(kafka, target):
    compare(kafka, target, _append_time_bits)


def _re_encoded(side: Side) -> None:
    """Batches that grow when recompressed with the topic's codec, around its limit."""
    rows = [record(value=bytes(100_000))]
    small, plain = batch(rows, codec=raw.ZSTD), batch(rows)
    for codec in ("uncompressed", "gzip", "snappy", "lz4"):
        topic = side.topic(codec, compression_type=codec, max_message_bytes=len(small) + 20)
        produce(side, f"{codec}: grows", 8, [(topic, [(0, small)])])
    for size in (len(plain) - 1, len(plain)):
        topic = side.topic(f"limit {size}".replace(" ", "-"), compression_type="uncompressed",
                           max_message_bytes=size)
        produce(side, f"at a limit of {size}", 8, [(topic, [(0, small)])])
        produce(side, f"plain at a limit of {size}", 8, [(topic, [(0, plain)])])
    zstd = side.topic("shrinks", compression_type="zstd", max_message_bytes=len(plain))
    produce(side, "shrinks", 8, [(zstd, [(0, plain)])])


def test_batches_that_grow_over_the_limit_are_rejected_as_by_kafka(kafka, target):
    compare(kafka, target, _re_encoded)


def _list_offsets(side: Side, version: int) -> None:
    full, empty = side.topic("full", **KEEP), side.topic("empty")
    batches = mixed_batches()
    for records in batches:
        side.append(full, records)

    def offsets(label, topic, *timestamps, isolation=0, **cell):
        for timestamp in timestamps:
            side.ask(f"{label} {timestamp}", raw.LIST_OFFSETS, version, replica_id=-1,
                     isolation_level=isolation, timeout=1000, topics=[{
                         "name": topic, "partitions": [
                             {"partition_index": 0, "timestamp": timestamp, **cell}]}])

    specials = (-1, -2, -3, -4, -5, -6, -7, -100)
    offsets("full", full, *specials)
    offsets("empty", empty, *specials)
    if version >= 2:
        offsets("committed", full, *specials, isolation=1)
    known = timestamps_of(batches)
    around = sorted({moment + step for moment in known for step in (-1, 0, 1)})
    if version not in (1, 7, 11):
        around = around[::9]
    offsets("at", full, 0, 1, *around, known[-1] + 10**6, 2**62)
    offsets("at in empty", empty, 0, BASE_MS)
    if version >= 4:
        for epoch in (-1, 0, 1, 99):
            offsets(f"epoch {epoch}", full, -1, -2, BASE_MS, current_leader_epoch=epoch)
    side.ask("many", raw.LIST_OFFSETS, version, replica_id=-1, timeout=1000, topics=[
        {"name": full, "partitions": [{"partition_index": 0, "timestamp": -1},
                                      {"partition_index": 5, "timestamp": -1}]},
        {"name": "no-such-topic", "partitions": [{"partition_index": 0, "timestamp": -1}]}])
    side.ask("twice", raw.LIST_OFFSETS, version, replica_id=-1, timeout=1000, topics=[
        {"name": full, "partitions": [{"partition_index": 0, "timestamp": -1},
                                      {"partition_index": 0, "timestamp": -2}]}])
    side.ask("none", raw.LIST_OFFSETS, version, replica_id=-1, timeout=1000, topics=[])


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_matches_kafka(kafka, target, version):
    compare(kafka, target, _list_offsets, version)


def _segmented_offsets(side: Side) -> None:
    """Look up times in six segments whose timestamps go backwards, also across segments."""
    topic = side.topic("segmented", segment_bytes=1 << 20, **KEEP)
    jumps = (0, 3_000, -9_000, 500, 500, 12_000, -2_000)
    known = set()
    for turn in range(30):
        base_ms = BASE_MS + turn * 1_000 + jumps[turn % 7]
        deltas = (0, 40, 20, 60)
        rows = [record(value=turn.to_bytes(2, "big") * 25_000, offset_delta=number,
                       timestamp_delta=delta) for number, delta in enumerate(deltas)]
        known.update(base_ms + delta for delta in deltas)
        side.append(topic, batch(rows, base_timestamp=base_ms, max_timestamp=base_ms + 60,
                                 codec=raw.NONE if turn % 3 else raw.LZ4))
    for timestamp in (-3, *sorted({moment + step for moment in known for step in (-1, 0, 1)})):
        side.ask(f"at {timestamp}", raw.LIST_OFFSETS, 7, replica_id=-1, topics=[
            {"name": topic, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}])


def test_list_offsets_across_segments_matches_kafka(kafka, target):
    compare(kafka, target, _segmented_offsets)


def _stamped_offsets(side: Side) -> None:
    """Timestamps chosen by the broker differ; the records that they point to do not."""
    topic = side.topic("stamped", message_timestamp_type="LogAppendTime")
    for _ in range(3):
        side.append(topic, batch([record(), record(offset_delta=1)], base_timestamp=BASE_MS))
        time.sleep(0.01)  # each batch has a different timestamp
    for timestamp in (0, -3, BASE_MS):
        answer = side.ask("", raw.LIST_OFFSETS, 7, replica_id=-1, topics=[
            {"name": topic, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}])
        cell = answer["topics"][0]["partitions"][0]
        side.answers[-1] = (f"at {timestamp}", (cell["error_code"], cell["offset"]))


def test_list_offsets_of_append_time_are_kafkas(kafka, target):
    compare(kafka, target, _stamped_offsets)


def _leader_epochs(side: Side, version: int) -> None:
    full, empty = side.topic("full", 2, **KEEP), side.topic("empty")
    for records in mixed_batches()[:5]:
        side.append(full, records)

    def epoch(label, topic, wanted, current=-1, partition=0):
        side.ask(label, LEADER_EPOCH, version, replica_id=-1, topics=[{
            "topic": topic, "partitions": [{"partition": partition, "leader_epoch": wanted,
                                            "current_leader_epoch": current}]}])

    for topic in (full, empty):
        for wanted in (-1, 0, 1, 99):
            epoch(f"{side.stems[topic]} {wanted}", topic, wanted)
    for current in (-1, 0, 1, 99):
        epoch(f"current {current}", full, 0, current)
    epoch("unknown topic", "no-such-topic", 0)
    epoch("unknown partition", full, 0, partition=9)
    side.ask("none", LEADER_EPOCH, version, replica_id=-1, topics=[])


@pytest.mark.parametrize("version", range(2, 5))
def test_offset_for_leader_epoch_matches_kafka(kafka, target, version):
    compare(kafka, target, _leader_epochs, version)
