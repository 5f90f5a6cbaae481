"""Compaction of the same records by Apache Kafka and by brokerd."""

import random
import time

import pytest

from pylog._native.records import batch
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.sides import Side
from tests.wire.talk import fetch

pytestmark = pytest.mark.kafka
INCREMENTAL, BROKER, SET, DELETE = 44, 4, 0, 1
MIB = 1 << 20
BASE_MS = 1_700_000_000_000


def _pause_ms(side: Side, value: str | None) -> None:
    with Connection(side.port) as connection:
        answer = ask(connection, INCREMENTAL, 1, validate_only=False, resources=[
            {"resource_type": BROKER, "resource_name": "", "configs": [
                {"name": "log.cleaner.backoff.ms", "value": value,
                 "config_operation": SET if value else DELETE}]}])
    assert answer["responses"][0]["error_code"] == 0, answer


def _content(side: Side, topic: str, end: int) -> list:
    rows, offset = [], 0
    with Connection(side.port) as connection:
        while offset < end:
            data = fetch(connection, topic, offset)["records"]
            for position, header in batch.walk(data):
                found = batch.records(memoryview(data)[position:]) if header.record_count else []
                rows += [(at, key, value and len(value), time_ms)
                         for at, time_ms, key, value, _ in found if at >= offset]
                last = header.base_offset + header.last_offset_delta
            offset = last + 1
    return rows


def _load(side: Side, codec: int) -> tuple[str, int]:
    topic = side.topic("cleaned", cleanup_policy="compact", segment_bytes=MIB,
                       min_cleanable_dirty_ratio="0.01", delete_retention_ms=3_600_000)
    dice, end = random.Random(codec), 0
    for number in range(120):
        rows = [(b"%d" % dice.randrange(50), None if dice.random() < 0.2 else
                 dice.randbytes(dice.randrange(4000)), BASE_MS + number * 10 + at, ())
                for at in range(dice.randrange(1, 9))]
        end = side.append(topic, batch.build(rows, codec=codec)) + len(rows)
    for _ in range(3):
        end = side.append(topic, batch.build([(b"last", dice.randbytes(MIB - 200), BASE_MS, ())]))
    return topic, end + 1


@pytest.mark.timeout(180)
@pytest.mark.parametrize("codec", [0, 3, 4])
def test_the_same_records_stay_as_in_kafka(kafka, target, codec):
    sides = [Side(kafka), Side(target)]
    try:
        for side in sides:
            _pause_ms(side, "100")
        loaded = [_load(side, codec) for side in sides]
        assert loaded[0][1] == loaded[1][1]
        end_s = time.monotonic() + 90
        while time.monotonic() < end_s:
            found = [_content(side, *where) for side, where in zip(sides, loaded, strict=True)]
            keys = [[row[1] for row in rows if row[0] < loaded[0][1] - 3] for rows in found]
            if all(len(some) == len(set(some)) for some in keys) and found[0] == found[1]:
                break
            time.sleep(0.3)
        assert found[0] == found[1]
        assert len(found[0]) < 60
    finally:
        for side in sides:
            _pause_ms(side, None)
