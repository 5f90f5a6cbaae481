"""`pylog log repair` on files damaged in every way; brokerd and Kafka can read its output."""

import os
import struct
from pathlib import Path

import pytest

from pylog._native.log import log
from pylog._native.records import batch
from pylog.tools.segments import repair
from tests.fixtures.brokers import Brokerd
from tests.native.log.test_log import NOW, TOPIC_ID
from tests.tools.support import run
from tests.wire import raw
from tests.wire.raw import Connection, record
from tests.wire.records import batches
from tests.wire.talk import append, create_topic, fetch, produce

SMALL = {"internal.segment.bytes": 4_000, "index.interval.bytes": 300}
COUNT = 60      # batches of 2 records


def partition(root: Path, name="t", config=SMALL) -> Path:
    """Create a closed partition of some segments, with a snapshot of the producer state."""
    directory = log.LogDir(root, 2)
    one = log.Log.open(directory, name, 0, TOPIC_ID, config, now_ms=NOW)
    one.become_leader(0)
    for i in range(COUNT):
        rows = [(b"k%d" % n, b"v" * 100, NOW + 10 * i + n, []) for n in range(2)]
        one.append(batch.build(rows, producer_id=9, producer_epoch=0, base_sequence=2 * i), NOW)
    one.close(NOW)
    (root / ".lock").touch()
    return root / f"{name}-0"


def bases(folder: Path) -> list[int]:
    return [header.base_offset for path in sorted(folder.glob("*.log"))
            for _, header in batch.walk(path.read_bytes())]


ALL = list(range(0, 2 * COUNT, 2))


def change(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def tail_cut_short(folder, logs):
    os.truncate(logs[-1], logs[-1].stat().st_size - 9)
    return ALL[:-1]


def tail_of_zeros(folder, logs):
    os.truncate(logs[-1], logs[-1].stat().st_size + 5000)
    return ALL


def tail_with_a_wrong_crc(folder, logs):
    last = list(batch.walk(logs[-1].read_bytes()))[-1][0]
    change(logs[-1], last + 80, b"\xa5\x5a\x01")
    return ALL[:-1]


def missing_indexes(folder, logs):
    for path in folder.glob("*index"):
        path.unlink()
    return ALL


def random_indexes(folder, logs):
    for path in folder.glob("*index"):
        path.write_bytes(os.urandom(path.stat().st_size))
    return ALL


def index_into_the_middle_of_a_batch(folder, logs):
    path = logs[1].with_suffix(".index")
    data = path.read_bytes()
    path.write_bytes(struct.pack(">ii", 1, 7) + data[8:])
    return ALL


def junk_snapshot_and_epochs(folder, logs):
    for path in folder.glob("*.snapshot"):
        path.write_bytes(b"junk" * 9)
    (folder / "leader-epoch-checkpoint").write_text("junk")
    return ALL


def swap_cut_short(folder, logs):
    """Simulate an interrupted merge of two segments."""
    merged = logs[1].with_suffix(".log.swap")
    merged.write_bytes(logs[1].read_bytes() + logs[2].read_bytes())
    logs[1].with_suffix(".index").unlink()
    return ALL


def left_over_files(folder, logs):
    (folder / f"{0:020}.log.deleted").write_bytes(b"x")
    (folder / f"{7:020}.log.cleaned").write_bytes(b"x")
    return ALL


MENDED = [tail_cut_short, tail_of_zeros, tail_with_a_wrong_crc, missing_indexes, random_indexes,
          index_into_the_middle_of_a_batch, junk_snapshot_and_epochs, swap_cut_short,
          left_over_files]


def middle_header(folder, logs):
    place = list(batch.walk(logs[1].read_bytes()))[2]
    change(logs[1], place[0], bytes(61))
    return place[1].base_offset


def middle_crc(folder, logs):
    place = list(batch.walk(logs[1].read_bytes()))[2]
    change(logs[1], place[0] + 80, b"\xa5\x5a\x01")
    return place[1].base_offset


def middle_of_the_last(folder, logs):
    place = list(batch.walk(logs[-1].read_bytes()))[1]
    change(logs[-1], place[0] + 16, b"\x09")
    return place[1].base_offset


def contents(folder: Path) -> dict:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("damage", MENDED, ids=lambda damage: damage.__name__)
def test_repair_previews_and_executes_on_request(tmp_path, damage):
    folder = partition(tmp_path)
    (tmp_path / ".kafka_cleanshutdown").touch()
    expected = damage(folder, sorted(folder.glob("*.log")))
    before = contents(folder)
    ended = run("log", "repair", tmp_path, fails=True)
    assert "add --execute to apply them" in ended.err and ended.code == 1
    assert contents(folder) == before
    run("log", "repair", tmp_path, "--execute")
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert bases(folder) == expected
    assert run("log", "repair", tmp_path).out == "nothing to repair\n"
    run("log", "verify", tmp_path)
    # Producer state and indexes are correct: a duplicate is detected, timestamps are found.
    one = log.Log.open(log.LogDir(tmp_path, 2), "t", 0, TOPIC_ID, SMALL, now_ms=NOW)
    one.become_leader(0)
    assert one.end_offset == expected[-1] + 2
    assert one.offset_for_time(NOW + 10 * 30)[0] == 60
    with pytest.raises(log.SequenceError):
        one.append(batch.build([(None, b"", NOW, [])], producer_id=9, producer_epoch=0,
                               base_sequence=3), NOW)


@pytest.mark.parametrize("damage", [middle_header, middle_crc, middle_of_the_last],
                         ids=lambda damage: damage.__name__)
def test_damage_in_the_middle_stays_unless_removal_is_requested(tmp_path, damage):
    folder = partition(tmp_path)
    gone = damage(folder, sorted(folder.glob("*.log")))
    before = contents(folder)
    ended = run("log", "repair", folder, "--execute", "--json", fails=True)
    assert [(row["action"], row["offset"], row["next_offset"], row["done"])
            for row in ended.json] == [("damage in the middle", gone, gone + 2, False)]
    assert contents(folder) == before
    run("log", "repair", folder, "--execute", "--quarantine")
    assert bases(folder) == [base for base in ALL if base != gone]
    aside, = folder.glob("*.corrupt")
    assert aside.read_bytes() in before[aside.name[:24]]
    run("log", "verify", folder)
    one = log.Log.open(log.LogDir(tmp_path, 2), "t", 0, TOPIC_ID, SMALL, now_ms=NOW,
                       recovery_point=2 * COUNT)
    assert one.end_offset == 2 * COUNT
    assert next(iter(batch.walk(one.read(gone))))[1].base_offset == gone + 2


def test_damaged_record_costs_its_batch_whose_other_records_can_be_printed(tmp_path):
    folder = partition(tmp_path)
    lost = middle_crc(folder, sorted(folder.glob("*.log")))
    run("log", "repair", folder, "--execute", "--quarantine")
    assert bases(folder) == [base for base in ALL if base != lost]
    aside, = folder.glob("*.corrupt")
    first, second = run("log", "dump", "-r", aside, "--json").lines
    assert (first["offset"], second["offset"]) == (lost, lost + 1)
    assert first["value"] != second["value"] == "v" * 100


def test_damaged_log_start_checkpoint_is_not_repaired(tmp_path):
    folder = partition(tmp_path)
    checkpoint = tmp_path / "log-start-offset-checkpoint"
    checkpoint.write_text("rubbish")
    assert repair._start_of(folder) == -1
    checkpoint.write_text("0\n1\nt 0 7\n")
    assert repair._start_of(folder) == 7
    checkpoint.unlink()
    assert repair._start_of(folder) == -1
    assert not list(tmp_path.glob("*.damaged"))


def test_truncated_tail_is_saved_beside_the_log(tmp_path):
    folder = partition(tmp_path)
    last = sorted(folder.glob("*.log"))[-1]
    size = last.stat().st_size
    with open(last, "ab") as file:
        file.write(b"something that is no batch")
    run("log", "repair", folder, "--execute")
    assert last.with_name(f"{last.name}.{size}.corrupt").read_bytes() == \
        b"something that is no batch"


@pytest.mark.parametrize("damage", [*MENDED, middle_header, middle_crc, middle_of_the_last],
                         ids=lambda damage: damage.__name__)
def test_files_shared_with_a_branch_are_not_written_in_place(tmp_path, damage):
    folder = partition(tmp_path)
    damage(folder, sorted(folder.glob("*.log")))
    branch = tmp_path / "branch" / "b-0"
    branch.mkdir(parents=True)
    for path in folder.iterdir():
        if path.suffix in (".log", ".index", ".timeindex"):
            os.link(path, branch / path.name)
    before = contents(branch)
    run("log", "repair", folder, "--execute", "--quarantine")
    run("log", "verify", folder)
    assert contents(branch) == before


class Died(BaseException):
    pass


@pytest.mark.parametrize("call", ["replace", "fsync", "unlink"])
@pytest.mark.parametrize("after", range(3))
@pytest.mark.parametrize("damage", [middle_header, tail_with_a_wrong_crc, swap_cut_short],
                         ids=lambda damage: damage.__name__)
def test_next_repair_completes_an_interrupted_one(tmp_path, monkeypatch, damage, call, after):
    folder = partition(tmp_path)
    gone = damage(folder, sorted(folder.glob("*.log")))
    left = [base for base in ALL if base != gone] if damage is middle_header else gone
    real, calls = getattr(os, call), []

    def dying(*arguments, **options):
        calls.append(arguments)
        if len(calls) > after:
            raise Died
        return real(*arguments, **options)

    roots, folders = repair.folders_of((str(tmp_path),))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, dying)
        try:
            repair.execute(repair.plan(roots, folders, True))
        except Died:
            pass
    run("log", "repair", tmp_path, "--execute", "--quarantine")
    assert bases(folder) == left
    run("log", "verify", tmp_path)


def test_a_directory_in_use_is_rejected(tmp_path):
    with Brokerd(tmp_path / "b") as broker:
        create_topic(broker.port, "t")
        ended = run("log", "repair", broker.data_dir, "--execute", fails=True)
        assert "a broker uses it" in ended.err
        ended = run("log", "repair", broker.data_dir / "t-0", fails=True)
        assert "a broker uses it" in ended.err


def test_a_move_that_was_cut_short_is_undone_or_finished(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    partition(one)
    partition(other, "u")
    copy = other / f"t-0.{'ab' * 16}-future"
    copy.mkdir()
    alone = one / f"v-0.{'cd' * 16}-future"
    (other / "u-0").rename(alone)
    told = run("log", "repair", one, other, "--json", "--all-directories", fails=True).json
    assert {(row["action"], Path(row["path"]).name) for row in told} == {
        ("remove copy", copy.name), ("finish move", alone.name)}
    run("log", "repair", one, other, "--execute", "--all-directories")
    assert not copy.exists() and not alone.exists()
    assert bases(one / "v-0") == ALL


def test_copy_is_not_promoted_while_its_original_may_exist(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    partition(one)
    partition(other, "u")
    copy = other / f"t-0.{'ab' * 16}-future"
    copy.mkdir()
    refused = run("log", "repair", other, "--execute", "--json", fails=True)
    assert "1 copy has no original in these directories" in refused.err
    row, = refused.json
    assert (row["action"], row["done"]) == ("copy without original", False)
    assert copy.exists() and not (other / "t-0").exists()


def filled(broker, topic):
    with Connection(broker.port) as connection:
        for number in range(30):
            rows = [record(b"k", b"%d" % number * 50, offset_delta=delta) for delta in range(2)]
            assert produce(connection, topic, raw.batch(rows), acks=-1)["error_code"] == 0


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_brokerd_and_kafkas_dump_tool_read_repaired_files(tmp_path):
    from bench import kafka

    names = [damage.__name__.replace("_", "-") for damage in (*MENDED, middle_header, middle_crc)]
    with Brokerd(tmp_path) as broker:
        for name in names:
            create_topic(broker.port, name)
            filled(broker, name)
        broker.stop()
        for name, damage in zip(names, (*MENDED, middle_header, middle_crc), strict=True):
            folder = broker.data_dir / f"{name}-0"
            logs = sorted(folder.glob("*.log"))
            if damage in (swap_cut_short, index_into_the_middle_of_a_batch):
                continue
            damage(folder, logs * 2 if len(logs) == 1 else logs)
        run("log", "repair", broker.data_dir, "--execute", "--quarantine")
        files = [str(path) for path in sorted(broker.data_dir.glob("*-*-0/*"))
                 if path.suffix in (".log", ".index", ".timeindex", ".snapshot")]
        ran = kafka.run_tool("org.apache.kafka.tools.DumpLogSegments", "--deep-iteration",
                             "--files", ",".join(files))
        said = ran.stdout + ran.stderr
        assert ran.returncode == 0 and "isvalid: false" not in said
        assert not [line for line in said.lower().splitlines()
                    if "mismatch" in line or "corrupt" in line or "not found" in line]
        broker.start()
        for name in names:
            end = append(broker.port, name, raw.batch())
            found, offset = [], 0
            with Connection(broker.port) as connection:
                while offset <= end:
                    row = fetch(connection, name, offset)
                    got = list(batches(row["records"]))
                    found += [one.base_offset for one in got]
                    offset = got[-1].last_offset + 1
            assert len(found) >= 29 and found[-1] == end, (name, found)
