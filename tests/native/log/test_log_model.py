"""Random histories of one log, compared with a list of batches.

The model stores each batch's offsets, time and bytes. The boundaries are compared after every step,
whole reads, reads by time and epoch lookups after many.
"""

import random

import pytest

from pylog._native.log import log
from pylog._native.records import batch
from tests.native.log.test_log import NOW, TOPIC_ID, checkpoint_of

CONFIGS = [
    {"internal.segment.bytes": 3_000, "index.interval.bytes": 200},
    {"internal.segment.bytes": 100_000, "index.interval.bytes": 1},
    {"internal.segment.bytes": 20_000, "index.interval.bytes": 4096, "segment.index.bytes": 120},
]


class Model:
    def __init__(self, chance, path):
        self.chance = chance
        always = {"file.delete.delay.ms": 0, "retention.ms": -1}
        self.config = {**chance.choice(CONFIGS), **always}
        self.directory = log.LogDir(path, 2, open_files_max=4)
        self.batches = []  # (base offset, last offset, records' times, epoch, value)
        self.start = self.end = 0
        self.epoch = 0
        self.now = NOW
        self.sequence = 0
        self.producer = 1
        self.log = None
        self.open({})

    def open(self, saved):
        self.log = log.Log.open(
            self.directory, "t", 0, TOPIC_ID, self.config, now_ms=self.now, **saved
        )
        self.log.become_leader(self.epoch)

    def append(self):
        count = self.chance.randint(1, 6)
        self.now += self.chance.randint(0, 5)
        times = [self.now + self.chance.randint(-3, 3) for _ in range(count)]
        value = self.chance.randbytes(self.chance.choice([1, 50, 50, 700]))
        made = batch.build(
            [(None, value, time, []) for time in times],
            codec=self.chance.choice([0, 0, 0, 1, 2, 3, 4]),
            producer_id=self.producer,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        expected = (self.end, self.end + count - 1)
        assert self.log.append(made, self.now) == expected
        if self.chance.random() < 0.2:
            assert self.log.append(made, self.now) == expected
        self.sequence += count
        self.batches.append((*expected, times, self.epoch, value))
        self.end += count

    def append_many(self):
        for _ in range(self.chance.randint(5, 40)):
            self.append()

    def new_epoch(self):
        self.epoch += self.chance.randint(1, 3)
        self.log.become_leader(self.epoch)

    def truncate(self):
        offset = self.chance.randint(max(self.start, self.end - 40), self.end)
        kept = [b for b in self.batches if b[1] < offset]
        end = kept[-1][1] + 1 if kept else self.start
        if any(b[0] < self.start <= b[1] for b in self.batches) and end <= self.start:
            return  # The start lies inside a batch: the remaining records are unknown to the model.
        self.end = end if offset < self.end else self.end
        assert self.log.truncate(offset) == self.end
        self.batches = [b for b in self.batches if b[1] < self.end]
        self.forget_producer()
        self.new_epoch()

    def move_start(self):
        offset = self.chance.randint(self.start, self.end)
        if self.chance.random() < 0.7:
            offset = min(offset, self.start + 30)
        assert self.log.move_start(offset, self.now) == offset
        self.start = offset
        self.batches = [b for b in self.batches if b[1] >= offset]

    def forget_producer(self):
        self.producer += 1
        self.sequence = 0

    def stop_clean(self):
        self.log.settle(self.now)
        saved = checkpoint_of(self.log)
        self.log.close(self.now)
        self.open(saved)

    def stop_hard(self):
        if self.chance.random() < 0.5:
            self.log.flush()
        point = self.log.recovery_point
        self.log.release()
        known = {"recovery_point": point, "log_start_offset": self.start}
        if self.chance.random() < 0.3:
            known["recovery_point"] = 0
        self.open(known)
        assert self.log.recovery_report()[0] == 0

    def flush(self):
        self.chance.choice([self.log.flush, self.directory.flush, self.directory.settle])()
        assert self.log.flushed_offset == self.end

    def step(self):
        self.chance.choices(
            [self.append, self.append_many, self.new_epoch, self.truncate, self.move_start,
             self.stop_clean, self.stop_hard, self.flush],
            [30, 20, 3, 4, 4, 4, 4, 6])[0]()
        assert (self.log.start_offset, self.log.end_offset) == (self.start, self.end)
        assert self.log.high_watermark == self.log.last_stable_offset == self.end
        assert self.log.flushed_offset <= self.end

    def check(self):
        at, seen = self.start, []
        while at < self.end:
            data = self.log.read(at, self.chance.choice([1, 500, 5_000, 10**6]))
            for position, header in batch.walk(data):
                assert batch.crc_ok(data[position:])
                seen.append((header.base_offset, header.leader_epoch))
                at = header.base_offset + header.last_offset_delta + 1
        assert seen == [(b[0], b[3]) for b in self.batches]
        for _ in range(10):
            if not self.batches:
                return
            base, last, times, epoch, value = self.chance.choice(self.batches)
            offset = self.chance.randint(max(base, self.start), last)
            assert batch.records(self.log.read(offset, 1))[offset - base][3] == value
            assert self.log.epoch_of(offset) == epoch
            target = self.chance.choice(times)
            expected = next((b[0] + i, t, b[3]) for b in self.batches for i, t in enumerate(b[2])
                            if t >= target and b[0] + i >= self.start)
            assert self.log.offset_for_time(target) == expected


@pytest.mark.parametrize("seed", range(8))
def test_random_history_matches_the_model(tmp_path, seed):
    model = Model(random.Random(seed), tmp_path)
    for turn in range(120):
        model.step()
        if turn % 10 == 9:
            model.check()
