"""The same fetches to Apache Kafka and to brokerd: every offset, limits, long polls, sessions."""

import itertools
import uuid

import pytest

from tests.wire import raw
from tests.wire.mixed import mixed_batches
from tests.wire.raw import batch, record
from tests.wire.sides import Side, compare, fetch, fetch_fields, whole_batches
from tests.wire.talk import produce

pytestmark = pytest.mark.kafka
KEEP = {"retention_ms": -1}
UNKNOWN = uuid.UUID(int=77).hex


def _filled(side: Side, stem: str, batches, partitions: int = 1, **configs) -> str:
    topic = side.topic(stem, partitions, **KEEP, **configs)
    for records in batches:
        side.append(topic, records)
    return topic


def _every_offset(side: Side, version: int, segment_bytes: int) -> None:
    topic = _filled(side, "mixed", mixed_batches(), segment_bytes=segment_bytes)
    end = 0
    for offset in itertools.count():
        cell = {"partition": 0, "fetch_offset": offset}
        for limit in (1, 700, 30000):
            answer = fetch(side, f"offset {offset} limit {limit}", version,
                           [(topic, [{**cell, "partition_max_bytes": limit}])])
        end = answer["responses"][0]["partitions"][0]["high_watermark"]
        if offset >= end:
            break
    fetch(side, "all", version, [(topic, [{"partition": 0, "partition_max_bytes": 1 << 26}])])


@pytest.mark.parametrize("version, segment_bytes", [(11, 1 << 30), (12, 1 << 20), (17, 1 << 30)])
def test_a_fetch_at_every_offset_of_a_mixed_log_returns_kafkas_bytes(kafka, target, version,
                                                                    segment_bytes):
    compare(kafka, target, _every_offset, version, segment_bytes)


def _versions(side: Side, version: int) -> None:
    topic = _filled(side, "mixed", mixed_batches()[:10], partitions=2)
    empty = side.topic("empty")
    unknown = UNKNOWN if version >= 13 else "no-such-topic"

    def one(label, name, cell, **options):
        fetch(side, label, version, [(name, [{"partition": 0, **cell}])], **options)

    for offset in (0, 1, 7, -1, -5, 10**6, 2**63 - 1):
        one(f"offset {offset}", topic, {"fetch_offset": offset})
    one("empty", empty, {})
    one("unknown topic", unknown, {})
    one("unknown partition", topic, {"partition": 9})
    one("partition -1", topic, {"partition": -1})
    for limit in (0, 1, 171, 100000):
        one(f"partition limit {limit}", topic, {"partition_max_bytes": limit})
        one(f"limit {limit}", topic, {}, bytes_max=limit)
    one("committed", topic, {}, isolation=1)
    fetch(side, "three", version, [(topic, [{"partition": 0}, {"partition": 1}]),
                                   (empty, [{"partition": 0}])])
    fetch(side, "known and unknown", version, [(topic, [{"partition": 0}]),
                                               (unknown, [{"partition": 0}])])
    fetch(side, "same partition twice", version, [
        (topic, [{"partition": 0}, {"partition": 0, "fetch_offset": 3}])])
    fetch(side, "nothing", version, [])
    if version >= 9:
        for epoch in (-1, 0, 1, 99):
            one(f"leader epoch {epoch}", topic, {"current_leader_epoch": epoch})
    if version >= 12:
        for epoch, offset in ((-1, 0), (0, 0), (0, 5), (1, 5), (9, 0), (0, 10**6)):
            one(f"last fetched {epoch} at {offset}", topic,
                {"last_fetched_epoch": epoch, "fetch_offset": offset})


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_matches_kafka(kafka, target, version):
    compare(kafka, target, _versions, version)


def _limits(side: Side) -> None:
    """Partitions that share one response, in the order of the request."""
    topic = side.topic("shared", 3, **KEEP)
    one = batch([record(value=bytes(1000))], base_timestamp=10**12)
    for partition in range(3):
        for _ in range(6):
            side.append(topic, one, partition)
    # Limits at batch boundaries: elsewhere Kafka truncates a batch, which uses up bytes of other
    # partitions.
    size = len(one)
    for total in (0, 1, size, 2 * size, 3 * size, 7 * size, 13 * size, 10**6):
        for each in (1, size, 2 * size, 10**6):
            for order in ((0, 1, 2), (2, 1, 0), (1, 0)):
                answer = fetch(side, "", 11, [(topic, [
                    {"partition": partition, "partition_max_bytes": each} for partition in order
                ])], bytes_max=total)
                sizes = {cell["partition_index"]: len(whole_batches(cell["records"] or b""))
                         for cell in answer["responses"][0]["partitions"]}
                side.answers[-1] = (f"total {total} each {each} order {order}", sizes)


def test_byte_limits_across_partitions_match_kafka(kafka, target):
    compare(kafka, target, _limits)


def _long_polls(side: Side, version: int) -> None:
    topic, other = side.topic("polled", **KEEP), side.topic("other", **KEEP)
    records = batch([record(value=bytes(200))], base_timestamp=10**12)
    side.append(topic, records)
    size = len(records)

    def poll(label, rows, bounds_s, after_s=0.1, then=None, **options):
        side.timed(label, raw.FETCH, version, after_s=after_s, then=then, bounds_s=bounds_s,
                   **fetch_fields(side, version, rows, **options))

    at_end = [(topic, [{"partition": 0, "fetch_offset": 1}])]
    poll("data there", [(topic, [{"partition": 0}])], (0, 0.25), wait_ms_max=1000, bytes_min=1)
    poll("no data", at_end, (0.29, 0.6), wait_ms_max=300, bytes_min=1)
    poll("minimum 0", at_end, (0, 0.25), wait_ms_max=1000, bytes_min=0)
    poll("too little", [(topic, [{"partition": 0}])], (0.29, 0.6), wait_ms_max=300,
         bytes_min=size + 1)
    poll("woken", at_end, (0.09, 0.5), then=lambda: side.append(topic, records),
         wait_ms_max=2000, bytes_min=1)
    poll("woken at the minimum", [(topic, [{"partition": 0}])], (0.09, 0.5),
         then=lambda: side.append(topic, records), wait_ms_max=2000, bytes_min=2 * size + 1)
    poll("not woken by another", [(topic, [{"partition": 0, "fetch_offset": 3}])], (0.29, 0.6),
         then=lambda: side.append(other, records), wait_ms_max=300, bytes_min=1)
    poll("beyond the end answers at once", [(topic, [{"partition": 0, "fetch_offset": 99}])],
         (0, 0.25), wait_ms_max=1000, bytes_min=1)
    poll("an unknown partition beside a known one waits",
         [(topic, [{"partition": 0, "fetch_offset": 3}, {"partition": 7}])], (0.29, 0.6),
         wait_ms_max=300, bytes_min=1)
    poll("two partitions, one wakes", [(topic, [{"partition": 0, "fetch_offset": 3}]),
                                       (other, [{"partition": 0, "fetch_offset": 1}])],
         (0.09, 0.5), then=lambda: side.append(other, records), wait_ms_max=2000, bytes_min=1)


@pytest.mark.parametrize("version", [4, 11, 16])
def test_long_polls_wait_and_wake_as_kafkas(kafka, target, version):
    compare(kafka, target, _long_polls, version)


def _session_life(side: Side, version: int) -> None:
    one, two = side.topic("one", 2, **KEEP), side.topic("two", **KEEP)
    records = batch([record()], base_timestamp=10**12)
    side.append(one, records)
    epochs = itertools.count(1)

    def cell(partition=0, offset=0):
        return {"partition": partition, "fetch_offset": offset}

    answer = fetch(side, "new", version, [(one, [cell(), cell(1)])], session_epoch=0)
    session = answer["session_id"]

    def step(label, rows=(), epoch=None, session_id=session, **options):
        epoch = next(epochs) if epoch is None else epoch
        return fetch(side, label, version, rows, session_id=session_id, session_epoch=epoch,
                     **options)

    step("unchanged offsets return the data again")
    step("moved on", [(one, [cell(0, 1)])])
    step("nothing new")
    side.append(one, records)
    step("one has news")
    step("again, not yet moved")
    step("moved", [(one, [cell(0, 2)])])
    step("two added", [(two, [cell()])])
    side.append(two, records)
    side.append(one, records, 1)
    step("two and partition 1 have news")
    step("partition 1 forgotten", [(two, [cell(0, 1)])], forgotten=[(one, [1])])
    side.append(one, records, 1)
    step("forgotten has no news")
    step("an unknown partition is told", [(one, [cell(9)])])
    step("and told again")
    step("forget it", forgotten=[(one, [9])])
    step("out of range is told", [(two, [cell(0, 50)])])
    step("back", [(two, [cell(0, 1)])])
    step("waits for nothing", wait_ms_max=50, bytes_min=1)
    step("wrong epoch", epoch=77)
    step("right epoch still served")
    step("unknown session", epoch=1, session_id=123456)
    step("epoch 0 with the id begins anew", [(two, [cell()])], epoch=0)
    step("the old one is gone", epoch=next(epochs))
    fetch(side, "sessionless", version, [(one, [cell()])])


@pytest.mark.parametrize("version", [7, 9, 11, 12, 13, 16, 18])
def test_a_fetch_session_lives_as_kafkas(kafka, target, version):
    compare(kafka, target, _session_life, version)


def _session_end(side: Side, version: int) -> None:
    one = side.topic("one", **KEEP)
    rows = [(one, [{"partition": 0}])]
    session = fetch(side, "new", version, rows, session_epoch=0)["session_id"]
    fetch(side, "closed by epoch -1", version, rows, session_id=session, session_epoch=-1)
    fetch(side, "gone", version, rows, session_id=session, session_epoch=1)
    other = fetch(side, "new without partitions", version, [], session_epoch=0)["session_id"]
    fetch(side, "its next", version, rows, session_id=other, session_epoch=1)
    last = fetch(side, "one more", version, rows, session_epoch=0)["session_id"]
    fetch(side, "everything forgotten", version, [], session_id=last, session_epoch=1,
          forgotten=[(one, [0])])
    fetch(side, "ended with it", version, rows, session_id=last, session_epoch=2)
    last = fetch(side, "and one more", version, rows, session_epoch=0)["session_id"]
    fetch(side, "named and forgotten at once", version, rows, session_id=last, session_epoch=1,
          forgotten=[(one, [0])])
    if version == 13:
        named = fetch(side, "named", 12, rows, session_epoch=0)["session_id"]
        fetch(side, "ids in a session of names", 13, rows, session_id=named, session_epoch=1)
        by_id = fetch(side, "by id", 13, rows, session_epoch=0)["session_id"]
        fetch(side, "names in a session of ids", 12, rows, session_id=by_id, session_epoch=1)
        told = fetch(side, "unknown id", 13, [(UNKNOWN, [{"partition": 0}])], session_epoch=0)
        fetch(side, "unknown id told again", 13, [], session_id=told["session_id"],
              session_epoch=1)


@pytest.mark.parametrize("version", [7, 12, 13, 17])
def test_a_fetch_session_ends_as_kafkas(kafka, target, version):
    compare(kafka, target, _session_end, version)


def _rewritten(side: Side) -> None:
    """Batches whose header Kafka changes on append."""
    topic = side.topic("odd", **KEEP)
    rows = [record(), record(offset_delta=1, timestamp_delta=50)]
    options = {"base_timestamp": 10**12}
    for records in (
            batch(rows, **options, max_timestamp=10**12 + 999),
            batch(rows, **options, max_timestamp=10**12 + 1),
            batch(rows, **options, max_timestamp=-1),
            batch(rows, **options, max_timestamp=10**12 + 50, leader_epoch=55),
            batch(rows, **options, max_timestamp=10**12 + 50, attributes=8),
            batch(rows, **options, max_timestamp=10**12 + 50, attributes=0x100),
            batch([record(timestamp_delta=-40)], **options, max_timestamp=10**12),
            batch(rows, **options, max_timestamp=10**12 + 999, codec=raw.LZ4)):
        with raw.Connection(side.port) as connection:
            row = produce(connection, topic, records)
        side.note("produce", row)
        fetch(side, "fetch", 11, [(topic, [{"partition": 0,
                                            "fetch_offset": max(0, row["base_offset"])}])])


def test_a_header_that_disagrees_with_its_records_is_stored_as_by_kafka(kafka, target):
    compare(kafka, target, _rewritten)
