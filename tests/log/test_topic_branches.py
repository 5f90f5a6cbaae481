"""A branch shares its source's segments, and neither ever damages the other."""

import os
import shutil

import pytest

from pylog._native.records import batch
from pylog.log import topic_branches
from pylog.log.errors import StartError
from pylog.metadata.controller.partitions.topic_branches import AT_OFFSET, AT_TIME, SOURCE
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.metadata.node import Node, refuse_renames
from tests.native.log.test_damage_upkeep import DAMAGES, spoil, survey

TIME = 1_700_000_000_000
SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "200",
         "file.delete.delay.ms": "0", "retention.ms": "-1"}


def append(node, topic, first, count=1, partition=0, **producer):
    """Append batches of three records whose timestamps and values are their offsets."""
    one = node.logs.get(topic, partition)
    for number in range(count):
        base = first + 3 * number
        rows = [(b"k%d" % (offset % 7), b"%d" % offset * 20, TIME + offset, ())
                for offset in range(base, base + 3)]
        more = {**producer, "base_sequence": base} if producer else {}
        assert one.append(batch.build(rows, codec=number % 3, **more), node.now_ms())[0] == base


def request(name, source, partitions=-1, factor=-1, validate_only=False, **options):
    new = messages.CreateTopicsRequest
    configs = {SOURCE: source, **{key.replace("_", "."): value for key, value in options.items()}}
    return new(topics=[new.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor, assignments=[],
        configs=[new.CreatableTopicConfig(name=key, value=value)
                 for key, value in configs.items()])], validate_only=validate_only)


def branch(node, name, source, cut=None, **options):
    at = {} if cut is None else cut
    asked = request(name, source, **options)
    for key, value in at.items():
        asked.topics[0].configs.append(
            messages.CreateTopicsRequest.CreatableTopicConfig(name=key, value=str(value)))
    result, = node.decide(node.service.controller.create_topics(asked))
    return result


def offsets(node, topic, partition=0):
    """Return the values of all records, each checked."""
    one, found = node.logs.get(topic, partition), []
    at = one.start_offset
    while at < one.end_offset:
        data = one.read(at, 1 << 20)
        for position, head in batch.walk(data):
            whole = data[position:position + 12 + head.batch_length]
            assert batch.crc_ok(whole)
            if not head.attributes & batch.CONTROL:
                for offset, timestamp, _, value, _ in batch.records(whole):
                    assert (timestamp, value) == (TIME + offset, b"%d" % offset * 20)
                    found.append(offset)
            at = head.base_offset + head.last_offset_delta + 1
    return found


def inodes(tmp_path, topic):
    return {path.stat().st_ino: path for path in (tmp_path / f"{topic}-0").glob("*.log")
            if path.stat().st_size}


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    made.create("source", configs=dict(SMALL))
    append(made, "source", 0, 40)
    crash, made.crashed = made.crash, False

    def crash_once():
        crash()
        made.crashed = True

    made.crash = crash_once
    yield made
    if not made.crashed:
        made.stop()


def test_a_branch_has_the_records_settings_and_epochs_of_its_source(node, tmp_path):
    assert branch(node, "copy", "source").error == ErrorCode.NONE
    assert offsets(node, "copy") == offsets(node, "source") == list(range(120))
    assert node.image.topic_config("copy") == node.image.topic_config("source")
    assert node.image.topics["copy"].id != node.image.topics["source"].id
    one, other = node.logs.get("source", 0), node.logs.get("copy", 0)
    assert [other.epoch_of(at) for at in (0, 119)] == [one.epoch_of(at) for at in (0, 119)]
    assert other.offset_for_time(TIME + 77)[0] == 77
    assert inodes(tmp_path, "copy").keys() == inodes(tmp_path, "source").keys()
    for name in ("copy", "source"):
        last = max((tmp_path / f"{name}-0").glob("*.log"))
        assert (last.stat().st_nlink, last.stat().st_size) == (1, 0)


def test_branch_and_source_are_independent_across_restarts(node, tmp_path):
    branch(node, "copy", "source")
    append(node, "source", 120, 2)
    append(node, "copy", 120, 1)
    assert (len(offsets(node, "source")), len(offsets(node, "copy"))) == (126, 123)
    node.crash()
    again = Node(tmp_path)
    assert (len(offsets(again, "source")), len(offsets(again, "copy"))) == (126, 123)
    append(again, "copy", 123, 30)
    again.stop()
    again = Node(tmp_path)
    append(again, "source", 126)
    assert (len(offsets(again, "source")), len(offsets(again, "copy"))) == (129, 213)
    again.stop()


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 29, 30, 31, 59, 60, 118, 119, 120, 500])
@pytest.mark.parametrize("by", [AT_OFFSET, AT_TIME])
def test_branch_ends_before_the_requested_record(node, cut, by):
    at = cut if by == AT_OFFSET else TIME + cut
    assert branch(node, "copy", "source", {by: at}).error == ErrorCode.NONE
    end = min(cut, 120)
    assert offsets(node, "copy") == list(range(end))
    assert node.logs.get("copy", 0).end_offset == end
    append(node, "copy", end, 2)
    assert offsets(node, "copy") == list(range(end + 6))
    assert offsets(node, "source") == list(range(120))


def test_branch_starts_at_the_start_of_its_source(node):
    node.logs.get("source", 0).move_start(40, 0)
    branch(node, "copy", "source")
    branch(node, "below", "source", {AT_OFFSET: 5})
    assert node.logs.get("copy", 0).start_offset == 40
    assert offsets(node, "copy")[-1] == 119
    below = node.logs.get("below", 0)
    assert (below.start_offset, below.end_offset) == (40, 40)


def test_branch_inherits_producer_state(node):
    append(node, "source", 120, 5, producer_id=9, producer_epoch=0)
    branch(node, "copy", "source")
    append(node, "copy", 135, 1, producer_id=9, producer_epoch=0)
    rows = [(b"", b"", TIME, ())] * 3
    again = batch.build(rows, producer_id=9, producer_epoch=0, base_sequence=132)
    assert node.logs.get("copy", 0).append(again, node.now_ms())[0] == 132


def test_a_transaction_that_is_open_is_aborted_in_the_branch(node):
    one = node.logs.get("source", 0)
    rows = [(b"k", b"%d" % offset * 20, TIME + offset, ()) for offset in range(120, 123)]
    one.become_follower(1)
    one.append_as_follower(batch.build(
        rows, base_offset=120, producer_id=5, producer_epoch=2, base_sequence=0,
        attributes=batch.TRANSACTIONAL, leader_epoch=0), node.now_ms())
    one.become_leader(1)
    assert branch(node, "copy", "source").error == ErrorCode.NONE
    copy = node.logs.get("copy", 0)
    assert (copy.end_offset, copy.last_stable_offset) == (124, 124)
    assert copy.aborted_between(0, 124) == [(5, 120)]
    assert one.end_offset == 123


def test_branch_and_source_do_not_affect_each_other(node, tmp_path):
    branch(node, "copy", "source")
    branch(node, "third", "copy", {AT_OFFSET: 100})
    # Truncation, retention by size, and deletion, each of a file shared with others.
    node.logs.get("copy", 0).truncate(50)
    append(node, "copy", 48 if node.logs.get("copy", 0).end_offset == 48 else 50, 1)
    node.logs.configure("third", {**SMALL, "retention.bytes": "0"})
    for _ in range(3):
        node.logs.upkeep(node.now_ms() + 10**9)
    assert node.logs.get("third", 0).start_offset == 100
    assert offsets(node, "source") == list(range(120))
    node.logs.delete("source")
    assert offsets(node, "copy")[:48] == list(range(48))


def test_the_name_of_a_branch_that_a_start_finishes_is_on_disk_before_it_serves(
        node, tmp_path, monkeypatch):
    topic_id = branch(node, "copy", "source").topic_id
    node.crash()
    # As if the process was killed between the record and the rename.
    os.rename(tmp_path / "copy-0", tmp_path / f"copy-0.{topic_id.hex()}-stray")
    synced, fsync = [], os.fsync

    def noted(descriptor):
        synced.append((os.fstat(descriptor).st_ino, (tmp_path / "copy-0").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    again = Node(tmp_path)
    assert (tmp_path.stat().st_ino, True) in synced
    assert offsets(again, "copy") == offsets(again, "source")
    again.stop()


def test_a_branch_that_a_start_cannot_name_stops_it_and_is_whole_in_the_next(
        node, tmp_path, monkeypatch):
    topic_id = branch(node, "copy", "source").topic_id
    node.crash()
    os.rename(tmp_path / "copy-0", tmp_path / f"copy-0.{topic_id.hex()}-stray")
    with monkeypatch.context() as patch:
        refuse_renames(patch, "copy-0")
        with pytest.raises(StartError, match="copy-0.*planted"):
            Node(tmp_path)
    assert not (tmp_path / "copy-0").exists()
    again = Node(tmp_path)
    assert offsets(again, "copy") == offsets(again, "source")
    again.stop()


@pytest.mark.parametrize("removed", ["nothing", "the mark"])
def test_kill_during_branch_creation_or_removal_leaves_no_files(
        node, tmp_path, removed, monkeypatch):
    """As if it happened before the first file was created, or during the removal of all."""
    stray = tmp_path / f"copy-0.{'ab' * 16}-stray"
    stray.mkdir()
    if removed == "the mark":
        (stray / "branch").touch()
        (stray / f"{0:020d}.log").touch()
        monkeypatch.setattr("pylog.log.upkeep.remove_tree",
                            lambda path: os.unlink(os.path.join(path, "branch")))
    node.crash()
    again = Node(tmp_path)
    again.logs.upkeep(again.now_ms())
    monkeypatch.undo()
    again.crash()
    again = Node(tmp_path)
    again.logs.upkeep(again.now_ms())
    assert not list(tmp_path.glob("copy-0*"))
    again.stop()


def test_directories_set_aside_by_another_broker_are_kept(node, tmp_path):
    stray = tmp_path / f"gone-0.{'ab' * 16}-stray"
    stray.mkdir()
    (stray / f"{0:020d}.log").touch()
    node.crash()
    again = Node(tmp_path)
    again.logs.upkeep(again.now_ms())
    assert stray.exists()
    again.stop()


def test_damaged_indexes_are_rebuilt_only_for_the_damaged_log(node, tmp_path):
    branch(node, "copy", "source")
    expected = offsets(node, "source")
    for path in (tmp_path / "copy-0").glob("*index"):
        if path.stat().st_nlink > 1:
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data[:-4])
    node.crash()
    again = Node(tmp_path)
    assert offsets(again, "copy") == offsets(again, "source") == expected
    for at in range(120):
        assert again.logs.get("copy", 0).offset_for_time(TIME + at)[0] == at
        assert again.logs.get("source", 0).offset_for_time(TIME + at)[0] == at
    again.stop()


def test_a_tail_that_recovery_cuts_is_cut_in_a_copy(node, tmp_path):
    branch(node, "copy", "source")
    node.crash()
    # Without any checkpoint all batches are read; then damage looks like a torn tail.
    os.unlink(tmp_path / "state.lmdb")
    for path in tmp_path.glob("*checkpoint"):
        path.unlink()
    last = max(inodes(tmp_path, "copy").values())
    data = last.read_bytes()
    at = [position for position, _ in batch.walk(data)][-1]
    copy = tmp_path / "copy-0" / "spoiled"
    copy.write_bytes(data[:at + 70] + b"\xa5\x5a" + data[at + 72:])
    shared = tmp_path / "shared"
    os.rename(copy, last)
    os.link(last, shared)
    spoiled = shared.read_bytes()
    again = Node(tmp_path)
    assert offsets(again, "copy") == list(range(117))
    assert shared.read_bytes() == spoiled and last.stat().st_ino != shared.stat().st_ino
    again.stop()


def test_a_branch_is_in_the_log_directories_of_its_source(tmp_path):
    two = Node(f"{tmp_path / 'one'},{tmp_path / 'other'}")
    two.create("source", partitions=3, configs=dict(SMALL))
    for partition in range(3):
        append(two, "source", 0, 20, partition)
    two.create("more", partitions=1)
    assert branch(two, "copy", "source").error == ErrorCode.NONE
    places = [two.logs.dir_index("source", partition) for partition in range(3)]
    assert sorted(set(places)) == [0, 1]
    assert [two.logs.dir_index("copy", partition) for partition in range(3)] == places
    for partition in range(3):
        assert offsets(two, "copy", partition) == list(range(60))
    two.stop()
    again = Node(f"{tmp_path / 'one'},{tmp_path / 'other'}")
    assert [again.logs.dir_index("copy", partition) for partition in range(3)] == places
    again.stop()


BAD = [
    ({"source": "nobody"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ({"source": "__consumer_offsets"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ({"source": ""}, ErrorCode.INVALID_CONFIG),
    ({"partitions": 2}, ErrorCode.INVALID_PARTITIONS),
    ({"factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
    ({"cut": {AT_OFFSET: "x"}}, ErrorCode.INVALID_CONFIG),
    ({"cut": {AT_TIME: "-5"}}, ErrorCode.INVALID_CONFIG),
    ({"cut": {AT_TIME: "5", AT_OFFSET: "5"}}, ErrorCode.INVALID_CONFIG),
    ({"name": "source"}, ErrorCode.TOPIC_ALREADY_EXISTS),
    ({"no_such_setting": "1"}, ErrorCode.INVALID_CONFIG),
]


@pytest.mark.parametrize(("asked", "error"), BAD)
def test_impossible_branch_is_rejected_with_a_reason(node, tmp_path, asked, error):
    before = sorted(os.listdir(tmp_path))
    result = branch(node, **{"name": "copy", "source": "source", **asked})
    assert result.error == error and result.message
    assert sorted(os.listdir(tmp_path)) == before
    assert "copy" not in node.image.topics


def test_validate_only_creates_nothing(node, tmp_path):
    assert branch(node, "copy", "source", validate_only=True).error == ErrorCode.NONE
    assert not list(tmp_path.glob("copy*"))


def test_settings_of_the_request_come_above_the_sources(node):
    branch(node, "copy", "source", retention_ms="777")
    assert node.image.topic_config("copy") == {**SMALL, "retention.ms": "777"}


class Died(BaseException):
    pass


STEPS = ["link", "mkdir", "rename", "unlink", "copyfile"]


@pytest.mark.parametrize("call", STEPS)
@pytest.mark.parametrize("after", range(3))
def test_crash_leaves_no_branch_or_a_complete_one(
        node, tmp_path, monkeypatch, call, after):
    owner = shutil if call == "copyfile" else os
    real, calls = getattr(owner, call), []

    def dying(*arguments, **options):
        if "copy-0" in str(arguments):
            calls.append(arguments)
            if len(calls) > after:
                raise Died
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, call, dying)
        try:
            branch(node, "copy", "source")
        except Died:
            pass
    node.crash()
    again = Node(tmp_path)
    if "copy" in again.image.topics:
        assert offsets(again, "copy") == list(range(120))
        append(again, "copy", 120)
    else:
        again.logs.upkeep(again.now_ms())
        assert not list(tmp_path.glob("copy*"))
    assert offsets(again, "source") == list(range(120))
    assert not list(tmp_path.glob("*-stray"))
    again.stop()


def test_a_branch_that_cannot_be_linked_is_no_topic(node, tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(18, "Invalid cross-device link")

    with monkeypatch.context() as patch:
        patch.setattr(topic_branches.os, "link", refuse)
        result = branch(node, "copy", "source")
    assert (result.error, "copy" in node.image.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, False)
    assert not list(tmp_path.glob("copy*"))
    assert branch(node, "copy", "source").error == ErrorCode.NONE


@pytest.mark.parametrize("end", [59, 60, 61, 62, 63, 64, 66])
@pytest.mark.parametrize("how", ["length", "zeros", "payload", "long"])
def test_a_branch_of_a_damaged_log_ends_before_its_offset_too(node, tmp_path, how, end):
    node.stop()
    for file in sorted((tmp_path / "source-0").glob("*.log")):
        bases = [head.base_offset for _, head in batch.walk(file.read_bytes())]
        if 60 in bases:
            spoil(file, bases.index(60), *DAMAGES[how])
    node.__init__(tmp_path)
    one = node.logs.get("source", 0)
    survey(one)
    gone, rows = survey(one)
    assert branch(node, "copy", "source", {AT_OFFSET: end}).error == ErrorCode.NONE
    copy = node.logs.get("copy", 0)
    survey(copy)
    found = survey(copy)
    assert found[0] == ([] if end < 63 else gone)
    assert copy.end_offset <= end
    assert {offset: row for offset, row in found[1].items() if offset != 60} == {
        offset: row for offset, row in rows.items() if offset < end and offset != 60}
    assert survey(one) == (gone, rows)


def test_closed_source_partition_is_named_by_its_number():
    with pytest.raises(OSError, match="partition 0 of the source is not open"):
        topic_branches.prepare([(None, 0)], "b", bytes(16), None, {}, TIME)
