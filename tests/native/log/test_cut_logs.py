"""Logs cut off at every byte, and readers that follow a wrong length."""

import os
import time

import pytest

from pylog._native.log import damage_report, log
from pylog._native.records import batch
from tests.native.log.test_damage import files, filled
from tests.native.log.test_damage_upkeep import DAMAGES, SMALL, reopened, closed, numbered, spoil
from tests.native.log.test_log import NOW, make, opened


@pytest.fixture
def directory(tmp_path):
    return log.LogDir(tmp_path, 2)


@pytest.mark.parametrize("left", [9, 12, 16, 17, 24, 60, 61, 62])
def test_incomplete_last_batch_is_truncated_as_short(
        directory, tmp_path, left):
    filled(directory).release()
    file = files(tmp_path)[0]
    position = list(batch.walk(file.read_bytes()))[-1][0]
    os.truncate(file, position + left)
    one = opened(directory)
    told, = damage_report.take(directory)
    assert (told.offset, told.position, told.bytes, told.reason) == (
        one.end_offset, position, left, "a batch that is cut short")
    assert file.stat().st_size == position


@pytest.mark.parametrize("left", [1, 7, 8])
def test_zeroed_last_batch_is_truncated_as_zeros(directory, tmp_path, left):
    filled(directory).release()
    file = files(tmp_path)[0]
    position = list(batch.walk(file.read_bytes()))[-1][0]
    os.truncate(file, position)
    os.truncate(file, position + left)
    opened(directory)
    told, = damage_report.take(directory)
    assert (told.position, told.bytes, told.reason) == (position, left, "zeros")


@pytest.mark.parametrize("step", [1, 1000, 2000, 4000, 1 << 20])
@pytest.mark.parametrize("number", [1, 5, -4])
def test_reader_after_a_wrong_length_gets_bytes_that_begin_with_a_batch(
        directory, tmp_path, number, step):
    saved = closed(numbered(directory))
    file = files(tmp_path)[1]
    count = sum(1 for _ in batch.walk(file.read_bytes()))
    position, broken = spoil(file, number % count, *DAMAGES["long"])
    assert file.stat().st_size - position < 4000 < 2 * file.stat().st_size
    one = reopened(directory, saved, SMALL)
    data = bytes(one.read(broken.base_offset, 1))
    # The reader's hint is the end according to the wrong length, inside another batch.
    at = broken.base_offset + broken.last_offset_delta + 1
    assert len(data) > 12 and at + 2 < one.end_offset
    _, header = next(iter(batch.walk(bytes(one.read(at, step)))))
    assert header.base_offset <= at <= header.base_offset + header.last_offset_delta


def test_rolled_segment_is_flushed_without_a_request(directory, tmp_path):
    one = opened(directory, config={"internal.segment.bytes": 20_000})
    while len(files(tmp_path)) < 2:
        one.append(make(1, size=3_000), NOW)
    base = int(files(tmp_path)[1].stem)
    end_s = time.monotonic() + 30
    while one.flushed_offset < base and time.monotonic() < end_s:
        time.sleep(0.01)
    assert one.flushed_offset >= base
    while files(tmp_path)[0].stat().st_blocks * 512 > 20_000 + 8192 and time.monotonic() < end_s:
        time.sleep(0.01)
    stat = files(tmp_path)[0].stat()
    assert stat.st_blocks * 512 <= stat.st_size + 8192
    index = files(tmp_path)[0].with_suffix(".index")
    assert index.stat().st_size % 8 == 0 and index.stat().st_size < 4096
