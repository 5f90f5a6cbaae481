"""Segment files, verified and printed without a broker: ours, Kafka's, and damaged ones."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pylog._native.records import batch
from tests.tools.support import run, topic_of
from tests.wire import raw
from tests.wire.talk import append

FIRST = "00000000000000000000.log"


def written(path: Path, *batches: bytes, name: str = FIRST) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_bytes(b"".join(batches))
    return path


def batch_at(offset: int, count: int = 3, codec: int = 0) -> bytes:
    return batch.build([(b"k%d" % number, b"v", 1_767_225_600_000 + number, [("h", b"1")])
                        for number in range(count)], base_offset=offset, codec=codec)


def test_a_sound_segment_is_ok(tmp_path):
    written(tmp_path / "t-0", batch_at(0), batch_at(3, codec=4))
    told = run("log", "verify", tmp_path, "--json").json
    assert [(row["batches"], row["records"], row["last_offset"], row["status"]) for row in told] \
        == [(2, 6, 5, "ok")]
    assert run("log", "verify", tmp_path).out == (
        f"SEGMENT                       BATCHES  RECORDS   SIZE  FIRST  LAST  STATUS\n"
        f"t-0/00000000000000000000.log        2        6  {told[0]['bytes']} B      0     5  ok\n"
        f"1 segment, 2 batches, 6 records: no damage\n")


@pytest.mark.parametrize(("damage", "words"), [
    (lambda data: data[:70] + b"\xff" + data[71:], "has a wrong CRC"),
    (lambda data: batch_at(3) + batch_at(0), "comes after offset 5"),
    (lambda data: data[:16] + b"\x07" + data[17:], "unknown magic"),
    (lambda data: data + bytes(100) + data, "zeros followed by data"),
])
def test_damage_sets_the_exit_code(tmp_path, damage, words):
    path = written(tmp_path / "t-0", damage(batch_at(0)))
    ended = run("log", "verify", path, fails=True)
    assert words in ended.err and ended.code == 1
    assert "damaged: 1 of 1 segment" in ended.err


CUT = """
import os, sys
from pathlib import Path
from pylog.tools.segments.segment_file import Segment
from pylog.tools.segments.corrupt_ranges import holes_of
path = Path(sys.argv[1])
with Segment(path) as segment:
    rows = segment.batches()
    first = next(rows)
    os.truncate(path, int(sys.argv[2]))
    assert first["base_offset"] == 0 and len(list(rows)) < 29 or int(sys.argv[2]) > 1 << 20
    assert segment.verify(False, lambda moved: None, 30).faults
assert holes_of(path, 0)[0] <= 30
print("ok")
"""


@pytest.mark.parametrize("left", [0, 100_010, 1_500_000])
def test_segment_truncated_during_a_read_does_not_crash_the_tool(tmp_path, left):
    path = written(tmp_path / "t-0", *[
        batch.build([(b"k", bytes(100_000), 1_767_225_600_000, [])], base_offset=offset)
        for offset in range(30)])
    done = subprocess.run([sys.executable, "-c", CUT, path / FIRST, str(left)],
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_offset_of_valid_batches_after_damage_is_reported(tmp_path):
    broken = bytearray(batch_at(0) + batch_at(3) + batch_at(6))
    broken[len(batch_at(0)) + 16] = 9
    ended = run("log", "verify", written(tmp_path / "t-0", bytes(broken)), fails=True)
    assert "valid batches continue at offset 6" in ended.err


def test_every_damage_of_a_segment_is_reported(tmp_path):
    whole = b"".join(batch_at(3 * number) for number in range(9))
    length = len(batch_at(0))
    for at in (2, 6):
        whole = whole[:at * length] + bytes(length) + whole[(at + 1) * length:]
    ended = run("log", "verify", written(tmp_path / "t-0", whole), "--json", fails=True)
    row, = ended.json
    assert (row["batches"], row["records"]) == (7, 21)
    assert row["faults"] == [
        f"position {at * length}, offset {3 * at}: zeros; {length} bytes, "
        f"then valid batches continue at offset {3 * at + 3}" for at in (2, 6)]


def test_wrong_length_does_not_hide_later_batches(tmp_path):
    for number, length in enumerate((3 * len(batch_at(0)), 1 << 20)):
        broken = bytearray(b"".join(batch_at(3 * at) for at in range(9)))
        broken[len(batch_at(0)) + 8:len(batch_at(0)) + 12] = length.to_bytes(4, "big")
        path = written(tmp_path / f"t-{number}", bytes(broken))
        row, = run("log", "verify", path, "--json", fails=True).json
        assert (row["batches"], len(row["faults"])) == (8, 1)
        assert f"position {len(batch_at(0))}, offset 3: " in row["faults"][0]
        assert "at offset 6" in row["faults"][0]


def test_damage_in_a_running_brokers_directory_is_located(brokerd):
    topic = topic_of(brokerd, 1)
    for _ in range(5):
        append(brokerd.port, topic, raw.batch())
    path = brokerd.data_dir / f"{topic}-0"
    assert run("log", "verify", path).code == 0
    with open(path / FIRST, "r+b") as file:
        length = next(batch.walk(file.read(200)))[1].batch_length + 12
        file.seek(2 * length + 62)
        before = file.read(1)
        file.seek(2 * length + 62)
        file.write(b"\xff")
        file.flush()
        try:
            ended = run("log", "verify", path, fails=True)
        finally:
            # Other tests check the whole directory.
            file.seek(2 * length + 62)
            file.write(before)
    assert f"position {2 * length}, offset 2: has a wrong CRC" in ended.err


def test_files_of_a_running_broker_are_not_reported_as_damaged(tmp_path):
    ahead = written(tmp_path / "a-0", batch_at(0), bytes(5000))
    assert "5000 bytes allocated ahead" in run("log", "verify", ahead).out
    cut = written(tmp_path / "b-0", batch_at(0), batch_at(3)[:70])
    assert "1 ends in a batch cut short" in run("log", "verify", cut).out


def test_a_cut_inside_the_log_and_an_overlap_are_damage(tmp_path):
    path = written(tmp_path / "t-0", batch_at(0), batch_at(3)[:70])
    written(path, batch_at(6), name="00000000000000000006.log")
    assert "not a complete batch" in run("log", "verify", path, fails=True).err
    path = written(tmp_path / "u-0", batch_at(0), batch_at(3))
    written(path, batch_at(5), name="00000000000000000005.log")
    assert "is in the next segment" in run("log", "verify", path, fails=True).err


def test_an_index_that_points_elsewhere_is_found(tmp_path):
    path = written(tmp_path / "t-0", batch_at(0), batch_at(3))
    index = path / FIRST.replace(".log", ".index")
    length = len(batch_at(0))
    index.write_bytes(b"".join(number.to_bytes(4, "big") for number in (5, length)))
    assert run("log", "verify", path).code == 0
    rows = run("log", "dump", path, "--index", "--json").lines
    assert rows == [{"index": "offset", "offset": 5, "position": length}]
    index.write_bytes(b"".join(number.to_bytes(4, "big") for number in (5, length - 1)))
    assert "no batch begins there" in run("log", "verify", path, fails=True).err


def test_valid_batches_after_damage_are_printed_with_an_error_code(tmp_path):
    bad, inflates_not = bytearray(batch_at(0)), bytearray(batch_at(6, codec=1))
    bad[16], inflates_not[61] = 7, inflates_not[61] ^ 0xFF
    path = written(tmp_path / "t-0", bytes(bad), batch_at(3), bytes(inflates_not))
    written(path, batch_at(9), name="00000000000000000009.log")
    for words, key, found in (((), "base_offset", [3, 6, 9]),
                              (("-r",), "offset", [3, 4, 5, 9, 10, 11])):
        ended = run("log", "dump", path, "--json", *words, fails=True)
        assert [row[key] for row in ended.lines] == found and ended.code == 1
        assert "position 0 has an unknown magic" in ended.err


def test_batches_and_records_are_printed(tmp_path):
    path = written(tmp_path / "t-0", batch_at(0), batch_at(3, codec=1))
    rows = run("log", "dump", path, "--json").lines
    assert [(row["base_offset"], row["last_offset"], row["codec"]) for row in rows] == [
        (0, 2, 0), (3, 5, 1)]
    rows = run("log", "dump", path, "--records", "--from", 2, "-n", 2, "--json").lines
    assert rows == [{"offset": offset, "timestamp": 1_767_225_600_000 + offset % 3,
                     "key": f"k{offset % 3}", "value": "v",
                     "headers": [{"key": "h", "value": "1"}]} for offset in (2, 3)]
    assert "codec=gzip" in run("log", "dump", path).out


def test_metadata_log_and_offsets_are_printed_decoded(brokerd):
    topic = topic_of(brokerd, 1)
    append(brokerd.port, topic, raw.batch([raw.record(b"k", b"v")]))
    run("groups", "reset-offsets", f"{topic}-g", "-t", topic, "--to-latest", "--execute",
        broker=brokerd)
    rows = run("log", "dump", "-r", brokerd.data_dir / "__cluster_metadata-0", "--json").lines
    assert topic in [row["value"]["name"] for row in rows if row.get("record") == "TopicRecord"]
    dirs = sorted(brokerd.data_dir.glob("__consumer_offsets-*"))
    rows = run("log", "dump", "-r", *dirs, "--json").lines
    found = [row for row in rows if row.get("record") == "OffsetCommit"
             and row["key"]["topic"] == topic]
    assert found[0]["value"]["offset"] == 1
    assert run("log", "verify", brokerd.data_dir).code == 0


@pytest.mark.kafka
def test_the_files_of_apache_kafka_are_read(kafka, tmp_path):
    topic = topic_of(kafka, 1)
    append(kafka.port, topic, raw.batch([raw.record(b"k", b"v")]))
    own = next(path for path in Path(kafka.data_dir).rglob(f"{topic}-0"))
    shutil.copytree(own, tmp_path / own.name)
    assert "1 batch, 1 record: no damage" in run("log", "verify", tmp_path).out
    metadata = next(path for path in Path(kafka.data_dir).rglob("__cluster_metadata-0"))
    rows = run("log", "dump", "-r", metadata, "--json").lines
    assert topic in [row["value"]["name"] for row in rows if row.get("record") == "TopicRecord"]
