"""Damage in a log is reported with its position, skipped by readers and never truncated.

Damaged tails are truncated, and reported too.
"""

import os
import struct

import pytest

from pylog._native.log import damage_report, log
from pylog._native.records import batch
from tests.native.log.test_log import NOW, checkpoint_of, make, offsets, opened

SMALL = {"internal.segment.bytes": 4_000, "index.interval.bytes": 300}
COUNT = 60


@pytest.fixture
def directory(tmp_path):
    return log.LogDir(tmp_path, 2)


def filled(directory, config=None):
    """Return a log with 60 flushed batches of 2 records."""
    one = opened(directory, config=config)
    for i in range(COUNT):
        one.append(make(2, now=NOW + 10 * i), NOW)
    one.flush()
    return one


def files(tmp_path):
    return sorted((tmp_path / "t-0").glob("*.log"))


def spoil(file, number, at, data):
    """Overwrite the batch `number` of a file from its byte `at` on. Return its header."""
    content = bytearray(file.read_bytes())
    position, header = list(batch.walk(content))[number]
    data = data(content, position) if callable(data) else data
    content[position + at:position + at + len(data)] = data
    file.write_bytes(content)
    return position, header


def length_over_three(content, position):
    length = struct.unpack_from(">i", content, position + 8)[0]
    return struct.pack(">i", 3 * length)


HEADERS = {
    "length": (8, b"\xff" * 4), "magic": (16, b"\x07"), "zeros": (0, bytes(61)),
    "random": (0, bytes(range(7, 107))),
    # Not covered by the checksum: the next offset would be negative.
    "base offset": (0, b"\x7f" + 7 * b"\xff"), "negative base offset": (0, b"\x80"),
}


def starts(one, kind, saved):
    if kind == "clean":
        return saved
    return {"recovery_point": saved["recovery_point"]}


@pytest.mark.parametrize("segment", [1, -1])
@pytest.mark.parametrize("how", HEADERS)
@pytest.mark.parametrize("start", ["clean", "unclean"])
def test_records_after_a_broken_header_are_read(directory, tmp_path, segment, how, start):
    one = filled(directory, SMALL)
    one.settle(NOW)
    saved = starts(one, start, checkpoint_of(one))
    one.close(NOW)
    file = files(tmp_path)[segment]
    position, header = spoil(file, 2, *HEADERS[how])
    before = file.read_bytes()
    for index in (tmp_path / "t-0").glob("*index"):
        index.unlink()
    again = opened(directory, config=SMALL, **saved)
    assert again.end_offset == 2 * COUNT
    base = header.base_offset
    for offset in range(base + 2, 2 * COUNT):
        assert offsets(again.read(offset, 1)) == [offset // 2 * 2]
    with pytest.raises(log.CorruptLog) as caught:
        again.read(base + 1)
    assert caught.value.code == 2
    # A read from an earlier offset ends before it.
    assert offsets(again.read(base - 4)) == [base - 4, base - 2]
    with pytest.raises(log.CorruptLog):
        again.read(base)
    assert again.offset_for_time(NOW + 10 * (COUNT - 1))[0] == 2 * COUNT - 2
    told, = damage_report.take(directory)
    assert told[:6] == ("t-0", int(file.stem), base, position, told.bytes, "kept")
    assert position + told.bytes == list(batch.walk(before[position + told.bytes:]))[0][0] + (
        position + told.bytes)
    assert damage_report.take(directory) == []
    assert file.read_bytes() == before
    assert again.append(make(1), NOW)[0] == 2 * COUNT


@pytest.mark.parametrize("start", ["clean", "unclean"])
def test_wrong_length_hides_no_valid_batch(directory, tmp_path, start):
    one = filled(directory)
    one.settle(NOW)
    saved = starts(one, start, checkpoint_of(one))
    one.close(NOW)
    position, header = spoil(files(tmp_path)[0], 20, 8, length_over_three)
    for index in (tmp_path / "t-0").glob("*index"):
        index.unlink()
    again = opened(directory, **saved)
    for number in range(COUNT):
        if number != 20:
            assert offsets(again.read(2 * number, 1)) == [2 * number]
    told, = damage_report.take(directory)
    assert (told.position, told.offset, told.kind) == (position, header.base_offset, "kept")


def test_damaged_end_below_the_recovery_point_stays_and_appends_continue(
        directory, tmp_path):
    one = filled(directory)
    end = one.end_offset
    one.release()
    file = files(tmp_path)[0]
    position, header = spoil(file, COUNT - 2, 0, bytes(200))
    spoiled = file.read_bytes()[:position] + bytes(file.stat().st_size - position)
    file.write_bytes(spoiled)
    again = opened(directory, recovery_point=end)
    assert again.end_offset == end
    assert file.read_bytes() == spoiled
    assert again.append(make(1), NOW) == (end, end)
    with pytest.raises(log.CorruptLog):
        again.read(header.base_offset)
    assert offsets(again.read(end)) == [end]
    told, = damage_report.take(directory)
    assert (told.kind, told.reason, told.offset) == ("kept", "zeros", header.base_offset)
    again.close(NOW)
    third = opened(directory, recovery_point=end)
    assert third.end_offset == end + 1
    assert offsets(third.read(end)) == [end]


def test_offset_beyond_the_recovery_point_in_flushed_data_is_a_hole(directory, tmp_path):
    one = filled(directory)
    end = one.end_offset
    one.release()
    file = files(tmp_path)[0]
    # Header and content: with only another offset, the batch could be a result of compaction.
    position, header = spoil(file, 20, 0, struct.pack(">q", end + 8))
    spoil(file, 20, 70, b"\xa5\x5a\xff")
    again = opened(directory, recovery_point=end)
    assert again.end_offset == end
    assert offsets(again.read(header.base_offset + 2))[0] == header.base_offset + 2
    with pytest.raises(log.CorruptLog):
        again.read(header.base_offset)


def test_last_offset_beyond_the_recovery_point_does_not_end_the_log(
        directory, tmp_path):
    one = filled(directory)
    end = one.end_offset
    one.release()
    file = files(tmp_path)[0]
    content = bytearray(file.read_bytes())
    position, header = list(batch.walk(content))[20]
    length = struct.unpack_from(">i", content, position + 8)[0]
    # Its last offset, with a matching checksum.
    struct.pack_into(">i", content, position + 23, end + 8)
    struct.pack_into(">I", content, position + 17,
                     batch.crc32c(bytes(content[position + 21:position + 12 + length])))
    file.write_bytes(content)
    again = opened(directory, recovery_point=end)
    assert again.end_offset == end
    assert offsets(again.read(header.base_offset + 2))[0] == header.base_offset + 2


def test_sealed_segment_without_a_first_batch_is_never_sent(directory, tmp_path):
    one = filled(directory, SMALL)
    end = one.end_offset
    one.release()
    first, second = files(tmp_path)[:2]
    spoil(first, 0, 8, b"\xff" * 4)
    again = opened(directory, config=SMALL, recovery_point=end)
    with pytest.raises(log.CorruptLog):
        again.read(0, 1 << 20)
    assert offsets(again.read(2, 1 << 20))[0] == 2
    assert offsets(again.read(int(second.stem), 1 << 20))[0] == int(second.stem)


def test_file_with_an_impossible_offset_as_name_is_ignored(directory, tmp_path):
    filled(directory).release()
    other = tmp_path / "t-0" / "09223372036854775800.log"
    other.write_bytes(b"")
    again = opened(directory)
    assert again.end_offset == 2 * COUNT
    assert again.append(make(1), NOW)[0] == 2 * COUNT
    assert other.exists()


CUTS = {
    "a batch that is cut short": lambda file: os.truncate(file, file.stat().st_size - 7),
    "zeros": lambda file: os.truncate(file, file.stat().st_size + 5_000),
    "bytes that are not a batch": lambda file: file.write_bytes(file.read_bytes() + b"\x05" * 99),
    "a batch with a wrong CRC": lambda file: spoil(file, -1, 70, b"\xa5\x5a\xff"),
}


@pytest.mark.parametrize("reason", CUTS)
def test_truncated_tail_is_reported_with_position_and_reason(directory, tmp_path, reason):
    filled(directory).release()
    file = files(tmp_path)[0]
    CUTS[reason](file)
    size = file.stat().st_size
    again = opened(directory)
    told, = damage_report.take(directory)
    assert told == ("t-0", 0, again.end_offset, file.stat().st_size,
                    size - file.stat().st_size, "cut", reason)
    assert damage_report.figures(directory)["bytes_cut"] == told.bytes
    assert damage_report.figures(directory)["recovered_bytes"] == file.stat().st_size


def test_segments_dropped_after_a_truncation_are_reported(directory, tmp_path):
    filled(directory, SMALL).release()
    count = len(files(tmp_path))
    spoil(files(tmp_path)[1], 2, 70, b"\xa5\x5a\xff")
    opened(directory, config=SMALL)
    told = damage_report.take(directory)
    assert [one.kind for one in told] == ["cut"] + ["dropped"] * (count - 2)


def test_recovery_can_be_cancelled(directory):
    filled(directory).release()
    damage_report.stop_recovery(directory)
    with pytest.raises(log.StorageError):
        opened(directory)
