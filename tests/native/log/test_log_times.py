"""Lookups by time, exact to the record, compared with a scan of all records.

Across segments, with unordered times, compressed, stamped by the broker, after restarts, compaction
and damage.
"""

import random

import pytest

from pylog._native.log import log
from pylog._native.records import batch
from tests.native.log.test_compaction import cleaned
from tests.native.log.test_log import NOW, checkpoint_of, opened

SMALL = {"internal.segment.bytes": 3_000, "index.interval.bytes": 300}


def fill(one, chance, count, config, now=NOW):
    """Append batches of 1 to 6 records; times increase, jump back, and repeat."""
    for number in range(count):
        base = now + 100 * number + chance.choice((0, 0, 0, -5_000, 7_000))
        rows = [(b"k%d" % chance.randrange(40), chance.randbytes(chance.randrange(120)),
                 base + chance.choice((0, 5, -80, 80)), []) for _ in range(chance.randrange(1, 7))]
        one.append(batch.build(rows, codec=number % 5), now + 100 * number)


def records_of(one):
    """Return [(offset, timestamp)] of all records, as a consumer sees them."""
    found, at = [], one.start_offset
    while at < one.end_offset:
        data = one.read(at, 1 << 20)
        for position, head in batch.walk(data):
            whole = data[position:position + 12 + head.batch_length]
            stamped = head.attributes & batch.LOG_APPEND_TIME
            found += [(row[0], head.max_timestamp if stamped else row[1])
                      for row in batch.records(whole)]
            at = head.base_offset + head.last_offset_delta + 1
    return [row for row in found if row[0] >= one.start_offset]


def check(one):
    rows = records_of(one)
    assert len(rows) > 20
    targets = {time + step for _, time in rows for step in (-1, 0, 1)}
    for target in sorted(targets):
        expected = next(((offset, time) for offset, time in rows if time >= target), None)
        found = one.offset_for_time(target)
        assert (found and found[:2]) == expected, target
    greatest = max(time for _, time in rows)
    # Among records with that time, Kafka returns the first in its batch of the first segment.
    assert one.offset_of_max_time()[:2] in [row for row in rows if row[1] == greatest]


@pytest.mark.parametrize("seed", [1, 4711, 815, 77])
@pytest.mark.parametrize("stamped", ["CreateTime", "LogAppendTime"])
def test_lookup_by_time_returns_the_first_record_at_or_after_it(tmp_path, seed, stamped):
    directory = log.LogDir(tmp_path, 2)
    config = {**SMALL, "message.timestamp.type": stamped}
    one = opened(directory, config=config)
    fill(one, random.Random(seed), 120, config)
    assert len(one.segments()) // 24 > 5
    check(one)
    one.move_start(one.end_offset // 3, NOW)
    check(one)
    one.settle(NOW)
    saved = checkpoint_of(one)
    one.close(NOW)
    again = opened(directory, config=config, **saved)
    check(again)
    again.release()
    check(opened(directory, config=config, log_start_offset=saved["log_start_offset"]))


@pytest.mark.parametrize("seed", [1, 4711])
def test_times_are_exact_after_compaction(tmp_path, seed):
    one = opened(log.LogDir(tmp_path, 2), config={**SMALL, "cleanup.policy": "compact"})
    fill(one, random.Random(seed), 200, SMALL)
    before = len(records_of(one))
    cleaned(one, segment_bytes=3_000)
    assert len(records_of(one)) < before
    check(one)


@pytest.mark.parametrize("seed", [1, 4711])
def test_times_are_exact_after_a_truncation(tmp_path, seed):
    one = opened(log.LogDir(tmp_path, 2), config=SMALL)
    chance = random.Random(seed)
    fill(one, chance, 120, SMALL)
    one.truncate(one.end_offset // 2)
    check(one)
    fill(one, chance, 20, SMALL, NOW + 3_000)
    check(one)
