"""Partitions that move between the log directories of a node, during writes."""

import os
import re
import shutil
import threading
import time
from types import SimpleNamespace

import pytest

from pylog._native.log.log import BatchRefused, StorageError
from pylog._native.records import batch
from pylog.log import manager
from pylog.log import replica_moves
from pylog.log.errors import StartError
from tests.metadata.node import Node, refuse_renames
from tests.native.log.test_compaction import transaction
from tests.native.log.test_damage_upkeep import DAMAGES, spoil, survey


def append(node, topic, key, size=10_000):
    log = node.logs.get(topic, 0)
    record = (b"%d" % key, os.urandom(size), node.now_ms(), ())
    return log.append(batch.build([record], codec=key % 5), node.now_ms())


def content(log):
    rows, offset = [], log.start_offset
    while offset < log.end_offset:
        data = memoryview(log.read(offset))
        for position, header in batch.walk(data):
            rows += [row for row in batch.records(data[position:]) if row[0] >= log.start_offset]
            offset = header.base_offset + header.last_offset_delta + 1
    return rows


def moved(node, topic="t", place=1, wait_s=10):
    end_s = time.monotonic() + wait_s
    while time.monotonic() < end_s:
        changed = node.logs.finish_moves()
        if changed:
            assert changed == [topic]
            return
        time.sleep(0.01)
    raise AssertionError("the move does not end")


@pytest.fixture
def paths(tmp_path):
    return [tmp_path / "one", tmp_path / "two"]


@pytest.fixture
def node(paths):
    made = Node(",".join(map(str, paths)))
    made.create("t")
    yield made
    made.stop()


def test_moves_pause_at_rate_zero_and_continue_later(node):
    node.settings.set_dynamic({replica_moves.RATE: "0"}, {})
    for number in range(5):
        append(node, "t", number)
    node.logs.move("t", 0, 1)
    time.sleep(0.1)
    move, = node.logs.moves.all()
    assert move.lag == 5 and node.logs.finish_moves() == []
    node.settings.set_dynamic({replica_moves.RATE: str(1 << 30)}, {})
    moved(node)


def test_copied_bytes_are_throttled_before_the_next_copy(node):
    for number in range(50):
        append(node, "t", number)
    waits = []
    mover = node.logs.moves
    mover._stopping = SimpleNamespace(
        wait=waits.append, set=lambda: None,
        is_set=lambda: waits.count(replica_moves.PAUSE_S) == 2 or sum(waits) >= 60)
    node.settings.set_dynamic({replica_moves.RATE: "25000"}, {})
    node.logs.move("t", 0, 1)
    mover._thread.join()
    copied = mover.find("t", 0).target.size_bytes
    assert waits[:2] == [replica_moves.PAUSE_S, replica_moves.CHECK_INTERVAL_S]
    assert max(waits) == replica_moves.CHECK_INTERVAL_S
    assert copied / 25_000 == pytest.approx(sum(waits), abs=1)


def test_moved_partition_keeps_its_records_and_accepts_appends(node, paths):
    for number in range(200):
        append(node, "t", number)
    old = node.logs.get("t", 0)
    old.move_start(7)
    before, epoch = content(old), old.leader_epoch
    node.logs.move("t", 0, 1)
    for number in range(200, 220):
        append(node, "t", number)
    moved(node)
    new = node.logs.get("t", 0)
    assert new is not old and node.logs.dir_index("t", 0) == 1
    assert content(new)[:len(before)] == before and len(content(new)) == 213
    assert (new.start_offset, new.high_watermark, new.leader_epoch) == (7, 220, epoch)
    assert append(node, "t", 220) == (220, 220)
    assert (paths[1] / "t-0").is_dir() and not (paths[0] / "t-0").exists()
    assert len(content(old)) == 213
    node.logs.leave_moved()
    assert node.logs.finish_moves() == []
    node.logs.move("t", 0, 0)
    moved(node)
    assert node.logs.dir_index("t", 0) == 0 and node.logs.get("t", 0).end_offset == 221


def test_moved_partitions_neighbours_are_unchanged(node):
    node.create("wide", partitions=3)
    before = [node.logs.get("wide", index) for index in range(3)]
    node.logs.move("wide", 1, 1 - node.logs.dir_index("wide", 1))
    moved(node, "wide")
    after = [node.logs.get("wide", index) for index in range(3)]
    assert (after[0], after[2]) == (before[0], before[2]) and after[1] is not before[1]
    assert node.logs.get("wide", 3) is None


def test_settings_that_change_during_a_move_hold_after_it(node):
    append(node, "t", 1)
    node.logs.move("t", 0, 1)
    node.logs.configure("t", {"max.message.bytes": "1000"})
    moved(node)
    with pytest.raises(BatchRefused):
        append(node, "t", 2)


def test_sequences_of_producers_move_along(node):
    log = node.logs.get("t", 0)

    def produced(sequence):
        record = (b"k", b"v", node.now_ms(), ())
        return batch.build([record], producer_id=5, producer_epoch=0, base_sequence=sequence)

    for sequence in range(4):
        log.append(produced(sequence), node.now_ms())
    node.logs.move("t", 0, 1)
    moved(node)
    log = node.logs.get("t", 0)
    assert log.append(produced(3), node.now_ms())[0] == 3
    assert log.append(produced(4), node.now_ms())[0] == 4


def test_moved_partition_is_found_after_a_stop_and_a_crash(paths):
    for end in ("stop", "crash"):
        node = Node(",".join(map(str, paths)))
        if "t" not in node.image.topics:
            node.create("t")
        place = 1 - node.logs.dir_index("t", 0)
        append(node, "t", 1)
        node.logs.move("t", 0, place)
        moved(node)
        count = len(content(node.logs.get("t", 0)))
        getattr(node, end)()
        node = Node(",".join(map(str, paths)))
        assert node.logs.dir_index("t", 0) == place
        assert len(content(node.logs.get("t", 0))) == count
        node.stop()


def names(paths) -> list[str]:
    return sorted(re.sub("[0-9a-f]{32}", "id", name) for path in paths for name in os.listdir(path)
                  if name.startswith("t-"))


def test_directory_to_delete_after_a_move_has_a_name_that_kafka_accepts(paths):
    """Kafka does not start if there is `t-0.id-delete.id-delete`."""
    node = Node(",".join(map(str, paths)))
    node.create("t")
    append(node, "t", 1)
    node.logs.move("t", 0, 1 - node.logs.dir_index("t", 0))
    moved(node)
    node.logs.leave_moved()
    node.logs.finish_moves()
    assert names(paths) == ["t-0", "t-0.id-delete"]
    node.logs.move("t", 0, 1 - node.logs.dir_index("t", 0))
    node.logs.moves.cancel("t", 0)
    node.delete("t")
    assert names(paths) == ["t-0.id-delete"] * 3
    node.stop()


def test_cancelled_move_changes_nothing(node, paths):
    append(node, "t", 1)
    node.logs.move("t", 0, 1)
    node.logs.move("t", 0, 0)
    assert node.logs.moves.all() == [] and node.logs.finish_moves() == []
    assert append(node, "t", 2) == (1, 1)
    assert not [name for name in os.listdir(paths[1]) if name.endswith("-future")]


def test_crash_during_a_move_leaves_one_complete_copy(paths):
    node = Node(",".join(map(str, paths)))
    node.create("t")
    append(node, "t", 1)
    node.logs.get("t", 0).flush()
    node.crash()
    # Before the switch: the copy is incomplete and is deleted.
    future = paths[1] / f"t-0.{'0' * 32}-future"
    shutil.copytree(paths[0] / "t-0", future)
    node = Node(",".join(map(str, paths)))
    assert node.logs.dir_index("t", 0) == 0 and len(content(node.logs.get("t", 0))) == 1
    node.logs.upkeep(node.now_ms() + 1000)
    assert not future.exists()
    node.crash()
    # After it: the old one has been renamed, only the copy remains.
    os.rename(paths[0] / "t-0", future)
    node = Node(",".join(map(str, paths)))
    assert node.logs.dir_index("t", 0) == 1 and len(content(node.logs.get("t", 0))) == 1
    node.stop()


def test_the_only_copy_of_a_partition_that_a_start_cannot_name_stops_it(paths, monkeypatch):
    node = Node(",".join(map(str, paths)))
    node.create("t")
    append(node, "t", 1)
    node.logs.get("t", 0).flush()
    node.crash()
    os.rename(paths[0] / "t-0", paths[1] / f"t-0.{'0' * 32}-future")
    with monkeypatch.context() as patch:
        refuse_renames(patch, "t-0")
        with pytest.raises(StartError, match="t-0.*planted"):
            Node(",".join(map(str, paths)))
    node = Node(",".join(map(str, paths)))
    assert node.logs.dir_index("t", 0) == 1 and len(content(node.logs.get("t", 0))) == 1
    node.stop()


def test_longest_of_two_copies_after_power_failures_is_used(paths):
    node = Node(",".join(map(str, paths)))
    node.create("t")
    append(node, "t", 1)
    node.logs.get("t", 0).flush()
    old = paths[0] / f"t-0.{'0' * 32}-future"
    shutil.copytree(paths[node.logs.dir_index("t", 0)] / "t-0", paths[0] / "old")
    append(node, "t", 3)
    node.logs.get("t", 0).flush()
    place = paths[node.logs.dir_index("t", 0)]
    node.crash()
    os.rename(place / "t-0", paths[1] / f"t-0.{'1' * 32}-future")
    os.rename(paths[0] / "old", old)
    node = Node(",".join(map(str, paths)))
    assert node.logs.dir_index("t", 0) == 1 and node.logs.get("t", 0).end_offset == 2
    node.logs.upkeep(node.now_ms() + 1000)
    assert not old.exists()
    node.stop()


def test_move_keeps_a_start_offset_within_a_batch(node):
    log = node.logs.get("t", 0)
    rows = [(b"%d" % at, b"v", node.now_ms(), ()) for at in range(3)]
    for _ in range(2):
        log.append(batch.build(rows), node.now_ms())
    node.logs.move_start("t", 0, 4)
    before = content(log)
    assert [row[0] for row in before] == [4, 5]
    node.logs.move("t", 0, 1)
    moved(node)
    log = node.logs.get("t", 0)
    assert (log.start_offset, log.end_offset, content(log)) == (4, 6, before)
    assert log.append(batch.build(rows), node.now_ms()) == (6, 8)


MOVED = {"internal.segment.bytes": "4000", "index.interval.bytes": "300"}


@pytest.mark.parametrize("place", [(1, 3), (0, 0), (2, -1), (-1, -1)],
                         ids=["middle", "begin", "end", "last"])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_partition_moves_with_all_that_can_be_read(paths, how, place, caplog):
    node = Node(",".join(map(str, paths)))
    node.create("t", configs=MOVED)
    log = node.logs.get("t", 0)
    for number in range(60):
        rows = [(b"k%d" % at, b"%d" % number * 40, node.now_ms(), ()) for at in range(2)]
        log.append(batch.build(rows), node.now_ms())
    node.stop()
    file = sorted((paths[0] / "t-0").glob("*.log"))[place[0]]
    spoil(file, place[1], *DAMAGES[how])
    node = Node(",".join(map(str, paths)))
    log = node.logs.get("t", 0)
    survey(log)
    before = survey(log)
    node.logs.move("t", 0, 1)
    append(node, "t", 1)
    with caplog.at_level("WARNING"):
        moved(node)
    new = node.logs.get("t", 0)
    assert new is not log and new.end_offset == 121
    survey(new)
    found = survey(new)
    found[1].pop(120)
    assert found == before
    # No byte outside a batch is left behind.
    if how != "inflate":
        assert any("with its damaged range" in line.message for line in caplog.records)
    node.crash()
    node = Node(",".join(map(str, paths)))
    new = node.logs.get("t", 0)
    survey(new)
    found = survey(new)
    assert found[1].pop(120) and found == before
    assert append(node, "t", 2)[0] == 121
    node.stop()


def test_damaged_range_is_copied_byte_for_byte(node, paths):
    for number in range(60):
        append(node, "t", number, size=300)
    log = node.logs.get("t", 0)
    log.flush()
    file = sorted((paths[0] / "t-0").glob("*.log"))[-1]
    spoil(file, 7, 0, bytes(range(1, 90)))
    log.read(0)
    content = file.read_bytes()[:log.size_bytes]
    node.logs.move("t", 0, 1)
    moved(node)
    assert (paths[1] / "t-0" / file.name).read_bytes()[:len(content)] == content


def test_aborted_transactions_survive_a_move(node):
    log = node.logs.get("t", 0)
    log.become_follower(log.leader_epoch)
    for number in range(6):
        transaction(log, 5, [(b"%d" % number, b"v")], number, commit=number % 2 == 0)
    log.become_leader(log.leader_epoch)
    before = [log.aborted_between(at, at + 1) for at in range(12)]
    assert sum(map(bool, before)) == 6
    node.logs.move("t", 0, 1)
    moved(node)
    new = node.logs.get("t", 0)
    assert new is not log
    assert [new.aborted_between(at, at + 1) for at in range(12)] == before


def wait_until_ready(node, topic="t"):
    end_s = time.monotonic() + 10
    while not node.logs.moves.find(topic, 0).ready and time.monotonic() < end_s:
        time.sleep(0.01)


def test_move_of_a_deleted_topic_does_not_affect_its_successor(node, paths):
    for number in range(20):
        append(node, "t", number)
    node.logs.move("t", 0, 1)
    wait_until_ready(node)
    ready = node.logs.moves.find("t", 0)
    node.delete("t")
    node.create("t")
    # As if the topic was deleted while moves were being finished.
    node.logs.moves._moves["t", 0] = ready
    assert node.logs.finish_moves() == []
    assert node.logs.get("t", 0).end_offset == 0
    assert append(node, "t", 1) == (0, 0)
    assert [path.name for path in paths[1].glob("t-0*") if not path.name.endswith("-delete")] in (
        [], ["t-0"])


def test_deletion_waits_for_a_finishing_move(node, paths, monkeypatch):
    for number in range(20):
        append(node, "t", number)
    node.logs.move("t", 0, 1)
    wait_until_ready(node)
    deleting = []

    def finished(move, now_ms):
        deleting.append(threading.Thread(target=node.logs.delete, args=("t",)))
        deleting[0].start()
        deleting[0].join(0.3)
        replica_moves.finish(move, now_ms)

    monkeypatch.setattr(manager, "finish", finished)
    assert node.logs.finish_moves() == ["t"]
    deleting[0].join(10)
    assert node.logs.get("t", 0) is None
    for path in paths:
        assert not (path / "t-0").exists()


def test_records_deleted_while_a_move_is_finished_stay_deleted(node, monkeypatch):
    for number in range(20):
        append(node, "t", number)
    node.logs.move("t", 0, 1)
    wait_until_ready(node)
    deleting = []

    hand_over = replica_moves.replica_move.hand_over

    def handed_over(source, target, now_ms):
        # The copy's start offset is already determined.
        deleting.append(threading.Thread(target=node.logs.move_start, args=("t", 0, 7)))
        deleting[0].start()
        deleting[0].join(0.3)
        return hand_over(source, target, now_ms)

    monkeypatch.setattr(replica_moves, "replica_move", SimpleNamespace(
        hand_over=handed_over, rename=replica_moves.replica_move.rename,
        copy=replica_moves.replica_move.copy))
    assert node.logs.finish_moves() == ["t"]
    deleting[0].join(10)
    assert node.logs.get("t", 0).start_offset == 7


def fails_once(call):
    """Wrap `call` so that it raises after its first execution."""
    left = [True]

    def failing(*given):
        call(*given)
        if left:
            left.clear()
            raise StorageError(24, 56, "planted")
    return failing


def test_rename_that_fails_after_taking_effect_is_reverted(node, paths, monkeypatch):
    for number in range(20):
        append(node, "t", number)
    node.logs.move("t", 0, 1)
    wait_until_ready(node)
    rename, hand_over = replica_moves.replica_move.rename, replica_moves.replica_move.hand_over
    monkeypatch.setattr(replica_moves, "replica_move", SimpleNamespace(
        hand_over=hand_over, rename=fails_once(rename), copy=replica_moves.replica_move.copy))
    assert node.logs.finish_moves() == []
    assert (paths[0] / "t-0").exists()
    assert append(node, "t", 20) == (20, 20)
    moved(node)
    assert node.logs.dir_index("t", 0) == 1 and node.logs.get("t", 0).end_offset == 21


@pytest.mark.parametrize("error", [StorageError(28, 56, "planted"), RuntimeError("planted")])
def test_unfinished_move_is_retried_and_does_not_block_others(
        node, monkeypatch, error):
    node.create("u")
    for topic in "tu":
        append(node, topic, 1)
        node.logs.move(topic, 0, 1 - node.logs.dir_index(topic, 0))
        wait_until_ready(node, topic)
    with monkeypatch.context() as patched:
        def refused(move, now_ms):
            if move.topic == "t":
                raise error
            replica_moves.finish(move, now_ms)

        patched.setattr(manager, "finish", refused)
        assert node.logs.finish_moves() == ["u"]
    assert append(node, "t", 2) == (1, 1)
    moved(node)
    assert node.logs.get("t", 0).end_offset == 2


def test_an_unfinished_copy_waits_while_a_directory_is_offline(paths, tmp_path):
    """The partition itself may be in that directory."""
    text = ",".join(map(str, paths))
    node = Node(text)
    node.create("t")
    append(node, "t", 1)
    node.logs.move("t", 0, 1)
    moved(node)
    append(node, "t", 2)
    node.crash()
    shutil.copytree(paths[1] / "t-0", paths[0] / f"t-0.{'0' * 32}-future")
    os.rename(paths[1], tmp_path / "away")
    paths[1].write_text("no directory")
    without = Node(text)
    assert without.logs.get("t", 0) is None and without.logs.is_offline("t", 0)
    without.stop()
    paths[1].unlink()
    os.rename(tmp_path / "away", paths[1])
    whole = Node(text)
    assert whole.logs.dir_index("t", 0) == 1 and whole.logs.get("t", 0).end_offset == 2
    whole.stop()
