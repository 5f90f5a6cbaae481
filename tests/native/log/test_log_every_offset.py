"""Every possible read and lookup of a log, compared with a list of its batches.

Each offset, with sizes one byte around each sum of batches; times around each record's time; each
epoch. The log was just written, stopped cleanly, killed, or lost its indexes.
"""

import random
import struct

import pytest

from pylog._native.log import log
from pylog._native.records import batch
from tests.native.log.test_log import NOW, TOPIC_ID, checkpoint_of

CONFIGS = [
    {"internal.segment.bytes": 1_500, "index.interval.bytes": 200},
    {"internal.segment.bytes": 100_000, "index.interval.bytes": 1},
    {"internal.segment.bytes": 100_000, "index.interval.bytes": 300},
]


class Written:
    """A log with 40 batches in several epochs. rows: (base, last, epoch, times, bytes)."""

    def __init__(self, path, chance, config):
        self.chance, self.path = chance, path
        self.config = {**config, "retention.ms": -1}
        self.directory = log.LogDir(path, 2)
        self.log = self.open()
        self.made, self.epoch = [], 0
        for _ in range(40):
            self.append()
        self.start = 0
        self.look_up()

    def open(self, **saved):
        return log.Log.open(self.directory, "t", 0, TOPIC_ID, self.config, now_ms=NOW, **saved)

    def append(self):
        if not self.made or self.chance.random() < 0.15:
            self.epoch += self.chance.randrange(1, 4)
            self.log.become_leader(self.epoch, in_sync_count=2)
        times = [NOW + self.chance.randrange(200) for _ in range(self.chance.randrange(1, 5))]
        value = bytes(self.chance.choice((1, 20, 300)))
        base, last = self.log.append(
            batch.build([(None, value, time, []) for time in times]), NOW)
        self.made.append((base, last, self.epoch, times))

    def look_up(self):
        """Collect the stored batches and the segments' base offsets."""
        stored = {}
        at = self.log.start_offset
        while at < self.log.end_offset:
            data = self.log.read(at, 1)
            header = batch.header(data) if hasattr(batch, "header") else next(batch.walk(data))[1]
            stored[header.base_offset] = data
            at = header.base_offset + header.last_offset_delta + 1
        self.rows = [(*row, stored[row[0]]) for row in self.made if row[0] in stored]
        self.bases = [base for base, _, _ in struct.iter_unpack("=qqq", self.log.segments())]

    def segment_of(self, offset):
        return max(base for base in self.bases if base <= offset)

    def expected(self, offset, room, end, at_least_one):
        """Return the expected bytes of a read."""
        found, left = [], room
        for base, last, _, _, data in self.rows:
            if last < offset or base >= end or self.segment_of(base) != self.segment_of(offset):
                continue
            if len(data) > left and not (at_least_one and not found):
                break
            found.append(data)
            left -= len(data)
        return b"".join(found)


def stopped_cleanly(one):
    saved = checkpoint_of(one.log)
    one.log.close(NOW)
    one.log = one.open(**saved)


def stopped_hard(one):
    one.log.release()
    one.log = one.open(log_start_offset=one.start)


def without_indexes(one):
    one.log.close(NOW)
    for path in [*one.path.glob("t-0/*.index"), *one.path.glob("t-0/*.timeindex")]:
        path.unlink()
    one.log = one.open(log_start_offset=one.start)


def as_it_is(one):
    pass


@pytest.fixture(params=[as_it_is, stopped_cleanly, stopped_hard, without_indexes],
                ids=lambda how: how.__name__)
def one(request, tmp_path, random_source):
    def made(config, start=0):
        found = Written(tmp_path, random.Random(random_source.random()), config)
        if start:
            found.log.advance_high_watermark(found.log.end_offset)
            found.start = found.log.move_start(start, NOW)
        request.param(found)
        found.log.become_leader(found.epoch, in_sync_count=2)
        found.look_up()
        return found
    return made


@pytest.mark.parametrize("config", CONFIGS, ids=["segments", "dense", "sparse"])
def test_read_returns_as_many_whole_batches_as_fit(one, config):
    found = one(config)
    end = found.log.end_offset
    for watermark in (found.rows[len(found.rows) // 3][0], found.rows[-1][0], end):
        found.log.advance_high_watermark(watermark)
        assert found.log.high_watermark == watermark
        for offset in random.Random(watermark).sample(range(end), min(40, end)):
            for bound, upper in ((log.BOUND_END, end), (log.BOUND_HIGH_WATERMARK, watermark)):
                whole = found.expected(offset, 10**9, upper, True)
                rooms = {0, 1, len(whole), len(whole) - 1, len(whole) + 1}
                rooms |= {position + more for position, _ in batch.walk(whole)
                          for more in (0, 1, -1) if position + more > 0}
                for room in random.Random(offset).sample(sorted(rooms), min(6, len(rooms))):
                    for at_least_one in (True, False):
                        got = found.log.read(offset, room, bound, at_least_one=at_least_one)
                        assert got == found.expected(offset, room, upper, at_least_one), (
                            offset, room, upper, at_least_one)
    assert found.log.read(end) == b""
    for outside in (-1, end + 1):
        with pytest.raises(log.OffsetOutOfRange):
            found.log.read(outside)


@pytest.mark.parametrize("config", CONFIGS, ids=["segments", "dense", "sparse"])
@pytest.mark.parametrize("start", [0, 37])
def test_a_time_is_found_in_the_first_record_that_reaches_it(one, config, start):
    found = one(config, start)
    records = [(base + index, time, epoch) for base, _, epoch, times, _ in found.rows
               for index, time in enumerate(times) if base + index >= start]
    latest = max(time for _, time, _ in records)
    for target in range(NOW - 1, latest + 2):
        first = next((row for row in records if row[1] >= target), None)
        assert found.log.offset_for_time(target) == first, target
    assert found.log.offset_for_time(0) == records[0]
    assert found.log.offset_of_max_time() == next(row for row in records if row[1] == latest)


@pytest.mark.parametrize("start", [0, 37])
def test_every_epoch_ends_where_the_next_one_begins(one, start):
    found = one(CONFIGS[0], start)
    end = found.log.end_offset
    firsts = {}
    for base, last, epoch, _ in found.made:
        if last >= start:
            firsts.setdefault(epoch, max(base, start))
    for offset in range(start, end):
        expected = max(epoch for epoch, first in firsts.items() if first <= offset)
        assert found.log.epoch_of(offset) == expected
    for asked in range(found.epoch + 1):
        below = [epoch for epoch in firsts if epoch <= asked]
        above = [epoch for epoch in firsts if epoch > asked]
        answer = found.log.end_for_epoch(asked)
        assert answer[0] == (max(below) if below else asked), asked
        if below:
            assert answer[1] == (firsts[min(above)] if above else end), asked
        else:  # The remaining offsets lie below the log's start.
            assert answer[1] <= start
    assert found.log.end_for_epoch(-1) == found.log.end_for_epoch(found.epoch + 1) == (-1, -1)
    assert found.log.last_epoch == found.epoch


@pytest.mark.parametrize("config", CONFIGS[:2], ids=["segments", "dense"])
def test_size_is_the_sum_of_segments_and_truncation_keeps_lower_offsets(one, config):
    found = one(config)
    stored = [sum(len(row[4]) for row in found.rows if found.segment_of(row[0]) == base)
              for base in found.bases]
    sizes = [size for _, size, _ in struct.iter_unpack("=qqq", found.log.segments())]
    assert sizes == stored and found.log.size_bytes == sum(stored)
    for base, last, _, _, _ in reversed(found.rows[5:]):
        cut = random.Random(base).randrange(base, last + 1)
        assert found.log.truncate(cut) == base
        assert found.log.end_offset == base
        assert found.log.size_bytes == sum(len(row[4]) for row in found.rows if row[0] < base)
        before = found.rows[[row[0] for row in found.rows].index(base) - 1]
        assert found.log.read(before[0]) == before[4]
        assert found.log.last_epoch == found.epoch or not found.log.is_leader
