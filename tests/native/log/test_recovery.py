"""Recovery of a log after a kill, a power cut or file damage."""

import os
import random
import signal
import struct
import subprocess
import sys
import textwrap

import pytest

from pylog._native.log import log
from pylog._native.records import batch
from tests.native.log.test_log import NOW, TOPIC_ID, checkpoint_of, make, offsets, opened

SMALL = {"internal.segment.bytes": 4_000, "index.interval.bytes": 300}


@pytest.fixture
def directory(tmp_path):
    return log.LogDir(tmp_path, 2)


def filled(directory, count=60, config=None, **producer):
    one = opened(directory, config=config)
    for i in range(count):
        more = dict(producer, base_sequence=2 * i) if producer else {}
        one.append(make(2, now=NOW + 10 * i, **more), NOW)
    return one


def last_file(tmp_path, extension="log"):
    return sorted((tmp_path / "t-0").glob(f"*.{extension}"))[-1]


def read_all(one):
    out, at = b"", one.start_offset
    while data := one.read(at):
        out += data
        *_, (_, h) = batch.walk(data)
        at = h.base_offset + h.last_offset_delta + 1
    return out


def test_all_records_survive_an_unclean_stop(directory):
    one = filled(directory, config=SMALL)
    before = read_all(one)
    one.release()
    again = opened(directory, config=SMALL)
    assert read_all(again) == before
    assert again.end_offset == again.high_watermark == 120
    assert again.recovery_report()[0] == 0
    assert again.append(make(1), NOW) == (120, 120)


@pytest.mark.parametrize("cut", [1, 30, 61, 100, 200, 233])
def test_torn_tail_is_truncated_after_the_last_good_batch(directory, tmp_path, cut):
    one = filled(directory, 10)
    length = one.size_bytes // 10
    one.release()
    file = last_file(tmp_path)
    os.truncate(file, file.stat().st_size - cut)
    again = opened(directory)
    assert again.end_offset == 2 * (10 - 1 - (cut - 1) // length)
    assert again.recovery_report()[0] == (length - cut % length) % length
    assert file.stat().st_size == again.size_bytes
    assert again.append(make(1), NOW)[0] == again.end_offset - 1


@pytest.mark.parametrize("zeros", [1, 60, 61, 5000, 1 << 20])
def test_zeros_after_the_last_batch_are_not_records(directory, tmp_path, zeros):
    filled(directory, 10).release()
    file = last_file(tmp_path)
    os.truncate(file, file.stat().st_size + zeros)
    again = opened(directory)
    assert again.end_offset == 20
    assert again.recovery_report()[0] == zeros
    assert offsets(again.read(18)) == [18]


def test_damage_above_the_recovery_point_ends_the_log_there(directory, tmp_path):
    filled(directory, 60, SMALL).release()
    files = sorted((tmp_path / "t-0").glob("*.log"))
    data = bytearray(files[1].read_bytes())
    third = list(batch.walk(data))[2]
    data[third[0] + 70] ^= 1
    files[1].write_bytes(data)
    again = opened(directory, config=SMALL)
    assert again.end_offset == third[1].base_offset
    assert len(again.segments()) // 24 == 2
    assert again.append(make(1), NOW)[0] == third[1].base_offset


def test_damage_below_the_recovery_point_is_not_truncated(directory, tmp_path):
    one = filled(directory, 60, SMALL)
    one.flush()
    point = one.recovery_point
    one.release()
    files = sorted((tmp_path / "t-0").glob("*.log"))
    for file in (files[0], files[-1]):
        data = bytearray(file.read_bytes())
        data[list(batch.walk(data))[1][0] + 70] ^= 1
        file.write_bytes(data)
    again = opened(directory, config=SMALL, recovery_point=point)
    assert again.end_offset == 120
    assert again.recovery_report()[0] == 0


def test_a_broken_header_below_the_recovery_point_hides_its_batch_only(directory, tmp_path):
    one = filled(directory, 10)
    one.flush()
    one.release()
    file = last_file(tmp_path)
    data = bytearray(file.read_bytes())
    data[8:12] = b"\xff" * 4
    file.write_bytes(data)
    again = opened(directory, recovery_point=20)
    assert again.end_offset == 20
    with pytest.raises(log.CorruptLog):
        again.read(0)
    assert offsets(again.read(2)) == list(range(2, 20, 2))
    assert file.read_bytes() == data


def test_a_segment_that_lost_its_end_ends_the_log(directory, tmp_path):
    filled(directory, 60, SMALL).release()
    files = sorted((tmp_path / "t-0").glob("*.log"))
    kept = list(batch.walk(files[1].read_bytes()))[3][1]
    os.truncate(files[1], list(batch.walk(files[1].read_bytes()))[3][0])
    again = opened(directory, config=SMALL)
    assert again.end_offset == kept.base_offset
    assert again.recovery_report()[0] > 3_000
    assert sorted((tmp_path / "t-0").glob("*.log")) == files[:2]


def damage_missing(file):
    file.unlink()


def damage_short(file):
    os.truncate(file, file.stat().st_size // 2 // 24 * 24)


def damage_odd(file):
    os.truncate(file, file.stat().st_size - 5)


def damage_random(file):
    file.write_bytes(random.Random(4711).randbytes(file.stat().st_size))


def damage_zero(file):
    file.write_bytes(bytes(file.stat().st_size))


def damage_long(file):
    with file.open("ab") as out:
        out.write(bytes(240))


DAMAGES = [damage_missing, damage_short, damage_odd, damage_random, damage_zero, damage_long]


@pytest.mark.parametrize("extension", ["index", "timeindex"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("start", ["clean", "unclean", "unclean above"])
def test_damaged_indexes_are_rebuilt(directory, tmp_path, extension, damage, start):
    one = filled(directory, 80, SMALL)
    one.settle(NOW)
    saved = checkpoint_of(one)
    if start != "clean":
        saved = {"recovery_point": saved["recovery_point"] if start == "unclean" else 0}
    one.close(NOW)
    files = sorted((tmp_path / "t-0").glob(f"*.{extension}"))
    before = [file.read_bytes() for file in files]
    for file in files:
        damage(file)
    again = opened(directory, config=SMALL, **saved)
    for offset in range(0, 160, 3):
        assert offsets(again.read(offset, 1)) == [offset // 2 * 2]
        assert again.offset_for_time(NOW + 10 * (offset // 2)) == (
            offset // 2 * 2,
            NOW + 10 * (offset // 2),
            0,
        )
    again.append(make(1, now=NOW + 10_000), NOW)
    again.close(NOW)
    if start != "clean":
        assert [file.read_bytes() for file in files][:-1] == before[:-1]


def go_back(file):
    """Make two entries in the middle of a time index earlier than all before them."""
    entries = list(struct.iter_unpack(">qi", file.read_bytes()))
    middle = len(entries) // 2
    assert middle + 1 < len(entries)
    # The second is larger than the first: a search that ends there notices nothing.
    for at in (middle, middle + 1):
        entries[at] = (entries[0][0] - 100 + at, entries[at][1])
    file.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in entries))


def test_decreasing_times_in_a_sealed_index_are_found_by_recovery(
        directory, tmp_path):
    one = filled(directory, 40, SMALL)
    one.settle(NOW)
    one.close(NOW)
    go_back(min((tmp_path / "t-0").glob("*.timeindex")))
    again = opened(directory, config=SMALL, recovery_point=80)
    found = [again.offset_for_time(NOW + 10 * number)[0] for number in range(40)]
    assert found == list(range(0, 80, 2))


def test_decreasing_times_in_the_active_index_are_found_by_the_first_append(
        directory, tmp_path):
    config = {"index.interval.bytes": 300}
    one = filled(directory, 12, config)
    one.settle(NOW)
    saved = checkpoint_of(one)
    one.close(NOW)
    go_back(last_file(tmp_path, "timeindex"))
    again = opened(directory, config=config, **saved)
    again.append(make(1, now=NOW + 1000), NOW)
    found = [again.offset_for_time(NOW + 10 * number)[0] for number in range(12)]
    assert found == list(range(0, 24, 2))


def test_producer_state_survives_an_unclean_stop(directory):
    filled(directory, 60, SMALL, producer_id=9, producer_epoch=1).release()
    again = opened(directory, config=SMALL)
    for i in range(55, 60):
        expected = (2 * i, 2 * i + 1)
        again_batch = make(2, producer_id=9, producer_epoch=1, base_sequence=2 * i)
        assert again.append(again_batch, NOW) == expected
    assert again.append(make(1, producer_id=9, producer_epoch=1, base_sequence=120), NOW) == (
        120,
        120,
    )


@pytest.mark.parametrize("start", ["clean", "unclean", "rolled"])
def test_all_five_batches_in_flight_are_recognised_after_a_restart(directory, start):
    one = filled(directory, 61 if start == "rolled" else 60, SMALL, producer_id=9, producer_epoch=1)
    end = one.end_offset
    saved = {"recovery_point": end}
    if start == "clean":
        one.settle(NOW)
        saved = checkpoint_of(one)
    if start == "rolled":
        one.set_config(dict(SMALL, **{"internal.segment.bytes": 1}))
        one.append(make(2, producer_id=9, producer_epoch=1, base_sequence=122), NOW)
        end += 2
    one.close(NOW) if start == "clean" else one.release()
    again = opened(directory, config=SMALL, **saved)
    for first in range(end - 10, end, 2):
        assert again.append(make(2, producer_id=9, producer_epoch=1, base_sequence=first), NOW) == (
            first,
            first + 1,
        )
    with pytest.raises(log.SequenceError):
        again.append(make(2, producer_id=9, producer_epoch=1, base_sequence=end - 12), NOW)


@pytest.mark.parametrize("text", ["", "version: 0\ntopic", "\0" * 43, "version: 0\ntopic_id: AAEC"])
def test_torn_partition_metadata_is_rewritten(directory, tmp_path, text):
    filled(directory, 1).release()
    file = tmp_path / "t-0" / "partition.metadata"
    before = file.read_text()
    file.write_text(text)
    assert opened(directory).end_offset == 2
    assert file.read_text() == before


@pytest.mark.parametrize("damage", [damage_missing, damage_short, damage_random, damage_zero])
def test_producer_state_is_replayed_when_snapshots_are_damaged(directory, tmp_path, damage):
    one = filled(directory, 60, SMALL, producer_id=9, producer_epoch=1)
    one.close(NOW)
    for file in (tmp_path / "t-0").glob("*.snapshot"):
        damage(file)
    again = opened(directory, config=SMALL, recovery_point=120)
    with pytest.raises(log.SequenceError):
        again.append(make(1, producer_id=9, producer_epoch=1, base_sequence=121), NOW)
    with pytest.raises(log.SequenceError):
        again.append(make(1, producer_id=9, producer_epoch=0, base_sequence=120), NOW)
    assert again.append(make(1, producer_id=9, producer_epoch=1, base_sequence=120), NOW) == (
        120,
        120,
    )


def test_snapshots_have_kafkas_format(directory, tmp_path):
    one = opened(directory)
    one.append(make(3, producer_id=9, producer_epoch=2, base_sequence=0), NOW)
    one.close(NOW)
    data = last_file(tmp_path, "snapshot").read_bytes()
    version, crc, count = struct.unpack(">hIi", data[:10])
    assert (version, count) == (1, 1)
    assert crc == batch.crc32c(data[6:])
    entry = struct.unpack(">qhiqiqiq", data[10:])
    assert entry[:5] == (9, 2, 2, 2, 2)
    assert entry[6:] == (-1, -1)
    assert last_file(tmp_path, "snapshot").name == f"{3:020}.snapshot"


@pytest.mark.parametrize(
    "text", [None, "", "junk", "0\n5\n0 0\n", "0\n2\n3 5\n1 9\n", "0\n1\n7 999\n"]
)
def test_the_epoch_file_is_rebuilt_from_the_batches(directory, tmp_path, text):
    one = opened(directory)
    for epoch in (0, 2, 5):
        one.become_leader(epoch)
        one.append(make(10), NOW)
    one.close(NOW)
    file = tmp_path / "t-0" / "leader-epoch-checkpoint"
    file.unlink() if text is None else file.write_text(text)
    again = opened(directory, leader=False)
    assert [again.epoch_of(offset) for offset in (0, 9, 10, 19, 20, 29)] == [0, 0, 2, 2, 5, 5]
    assert again.end_for_epoch(3) == (2, 20)


def test_killed_and_repeated_recovery_has_the_same_result(directory, tmp_path):
    one = filled(directory, 60, SMALL)
    one.release()
    file = last_file(tmp_path)
    os.truncate(file, file.stat().st_size - 10)
    first = opened(directory, config=SMALL, leader=False)
    end, data = first.end_offset, read_all(first)
    first.release()
    for extension in ("index", "timeindex", "snapshot"):
        for file in list((tmp_path / "t-0").glob(f"*.{extension}"))[::2]:
            file.unlink()
    second = opened(directory, config=SMALL, leader=False)
    assert (second.end_offset, read_all(second)) == (end, data)


def test_checkpoint_above_the_end_does_not_reuse_an_offset(directory, tmp_path):
    filled(directory, 10).release()
    again = opened(directory, log_start_offset=50, high_watermark=60, recovery_point=60)
    assert again.start_offset == again.end_offset == 50
    assert again.append(make(1), NOW) == (50, 50)


def test_leftover_files_of_a_crash_are_removed(directory, tmp_path):
    filled(directory, 10).release()
    left = [
        tmp_path / "t-0" / name
        for name in (
            f"{0:020}.log.deleted",
            f"{7:020}.index.deleted",
            "leader-epoch-checkpoint.tmp",
            f"{5:020}.log.cleaned",
        )
    ]
    for file in left:
        file.write_bytes(b"x")
    again = opened(directory)
    assert not any(file.exists() for file in left)
    assert again.end_offset == 20


KILLED = """
    import sys
    from pylog._native.log import log
    from pylog._native.records import batch
    directory = log.LogDir(sys.argv[1], 2)
    one = log.Log.open(directory, "t", 0, bytes(range(16)),
                       {"internal.segment.bytes": 300_000, "index.interval.bytes": 4096}, now_ms=1,
                       recovery_point=int(sys.argv[2]))
    one.become_leader(int(sys.argv[3]))
    first = at = one.end_offset
    while True:
        made = batch.build([(None, b"%020d" % at * 20, 1_700_000_000_000, [])], producer_id=3,
                           producer_epoch=int(sys.argv[3]), base_sequence=at - first)
        base, at = one.append(made, 1)
        at += 1
        sys.stdout.write("%d\\n" % base)
        sys.stdout.flush()
"""


def test_repeated_kills_lose_no_acknowledged_append(tmp_path):
    answered = -1
    for turn in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), "0", str(turn)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(random.Random(turn).randrange(20, 1500)):
            line = child.stdout.readline()
            if not line:
                break
            answered = int(line)
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        answered = max([answered, *(int(x) for x in rest if x.isdigit())])
        child.wait()
    directory = log.LogDir(tmp_path, 2)
    one = log.Log.open(directory, "t", 0, TOPIC_ID, {"internal.segment.bytes": 300_000}, now_ms=NOW)
    seen = [h.base_offset for _, h in batch.walk(read_all(one))]
    assert seen == list(range(one.end_offset))
    assert one.end_offset > answered > 100
    value = batch.records(one.read(answered, 1))[0][3]
    assert value == b"%020d" % answered * 20


def mutate(chance, file):
    data = bytearray(file.read_bytes())
    for _ in range(chance.randint(1, 4)):
        where = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                del data[where:]
            case 1:
                data[where:where] = chance.randbytes(chance.randint(1, 40))
            case 2:
                extremes = [b"\xff" * 8, b"\x7f" + b"\xff" * 7, bytes(8)]
                data[where : where + 8] = chance.choice(extremes)
            case 3 if where < len(data):
                data[where] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


def bodies(data):
    """Return {base offset: the bytes that a batch's checksum covers, and the checksum}."""
    return {header.base_offset: bytes(data[position + 17:position + 12 + header.batch_length])
            for position, header in batch.walk(data)}


def judge(before, offset, data, log_is_whole):
    """Compare the data read with the appended data."""
    try:
        found = [(header, bytes(data[position:position + 12 + header.batch_length]))
                 for position, header in batch.walk(data)]
    except batch.BatchError:
        assert not log_is_whole
        return
    for header, content in found:
        if log_is_whole:
            assert content[17:] == before[header.base_offset], header
        elif len(content) == 12 + header.batch_length and batch.crc_ok(content):
            # The base offset is not covered by a checksum.
            assert content[17:] in before.values(), header
    if log_is_whole and found:
        first = found[0][0]
        assert first.base_offset <= offset <= first.base_offset + first.last_offset_delta


def test_read_checker_detects_a_wrong_batch_and_position(directory):
    one = filled(directory, 4)
    before, data = bodies(read_all(one)), bytearray(one.read(2, 1))
    judge(before, 3, data, True)
    for offset in (1, 4):
        with pytest.raises(AssertionError):
            judge(before, offset, data, True)
    with pytest.raises(AssertionError):
        judge({**before, 2: before[0]}, 2, data, True)
    with pytest.raises(AssertionError):
        judge({0: before[0]}, 2, data, False)
    data[-1] ^= 1
    with pytest.raises(AssertionError):
        judge(before, 2, data, True)
    # A reader detects that by the checksum.
    judge(before, 2, data, False)


def damage_some(chance, folder, kinds):
    files = [file for file in folder.iterdir()
             if file.suffix != ".metadata" and (file.suffix == ".log") <= (kinds == "any")]
    for file in chance.sample(files, chance.randint(1, min(6, len(files)))):
        mutate(chance, file)
        yield file.suffix


def closed_with(directory, chance):
    """Return (how to reopen a closed log, the data appended to it)."""
    one = filled(directory, 60, SMALL, producer_id=9, producer_epoch=1)
    one.become_leader(1)
    one.append(make(1), NOW)
    one.settle(NOW)
    saved, before = checkpoint_of(one), bodies(read_all(one))
    one.close(NOW)
    return (saved, before) if chance.random() < 0.4 else (
        {"recovery_point": chance.choice([0, 60, 121])}, before)


@pytest.mark.parametrize("kinds", ["derived", "any"])
@pytest.mark.parametrize("seed", range(15))
def test_damage_of_any_file_causes_only_errors(tmp_path, seed, kinds):
    chance = random.Random(seed)
    directory = log.LogDir(tmp_path, 2)
    saved, before = closed_with(directory, chance)
    # Derived files are rebuilt without losing or misplacing records.
    whole_log = ".log" not in list(damage_some(chance, tmp_path / "t-0", kinds))
    made = make(1, producer_id=9, producer_epoch=1, base_sequence=120)

    def append():
        base, _ = again.append(made, NOW)
        before[base] = bytes(made[17:])

    def read(offset):
        judge(before, offset, again.read(offset, 400), whole_log)

    try:
        again = opened(directory, config=SMALL, **saved)
        if whole_log:
            assert again.end_offset == 121 and bodies(read_all(again)) == before
        if whole_log and "clean" not in saved:
            # Indexes are checked. Batches have two records, 1 ms apart, and are 10 ms apart.
            times = [NOW + 10 * (offset // 2) + offset % 2 for offset in range(120)]
            assert again.offset_of_max_time()[0] == 119
            for at in sorted(chance.sample(range(592), 40)):
                assert again.offset_for_time(NOW + at)[0] == next(
                    offset for offset, time in enumerate(times) if time >= NOW + at)
        for call in (
            lambda: again.offset_for_time(NOW + chance.randrange(700)),
            again.offset_of_max_time,
            *[lambda o=o: read(o) for o in range(0, 122, 5)],
            append,
            lambda: again.epoch_of(50),
            lambda: again.truncate(100),
            lambda: again.move_start(50),
            again.flush,
            *[lambda o=o: read(o) for o in range(0, 122, 5)],
        ):
            try:
                call()
            except (log.LogError, batch.BatchError):
                pass
        if whole_log:
            # The batch containing the truncation offset was removed with it.
            assert again.start_offset == 50 and 99 <= again.end_offset <= 100
            assert set(bodies(read_all(again))) == set(range(50, again.end_offset, 2))
        again.close(NOW)
    except log.LogError:
        assert not whole_log
