"""A controlled clock: advancing it runs everything that becomes due."""

import pytest

from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.test_groups import COMMIT, HEARTBEAT, _commit_fields, _member, _ready

HOUR_MS = 3_600_000


def test_broker_time_is_system_time_until_advanced(broker):
    import time

    assert abs(broker.clock.now_ms() - time.time() * 1000) < 5000
    before = broker.clock.now()
    broker.clock.advance(hours=1, seconds=1)
    assert 3601 <= (broker.clock.now() - before).total_seconds() < 3700


def test_a_clock_does_not_go_back(broker):
    with pytest.raises(ValueError, match="forward"):
        broker.clock.advance(hours=-1)


def test_advancing_the_clock_triggers_retention(broker):
    topic = broker.create_topic("t", retention_ms=HOUR_MS)
    topic.append("old")
    broker.clock.advance(minutes=59)
    topic.assert_records(["old"])
    broker.clock.advance(minutes=2)
    topic.assert_empty()
    topic.append("new")
    broker.clock.advance(minutes=59)
    topic.assert_records(["new"])
    assert topic.ends() == [(1, 2)]


def test_committed_offsets_of_an_empty_group_expire(make_broker):
    broker = make_broker(settings={"offsets.retention.minutes": 60})
    broker.create_topic("t")
    _ready(broker.port, "g")
    with Connection(broker.port) as connection:
        ask(connection, COMMIT, 8, **_commit_fields("g", "t", 7))
    assert broker.group("g").offsets() == {("t", 0): 7}
    broker.clock.advance(minutes=59)
    assert broker.group("g").offsets() == {("t", 0): 7}
    broker.clock.advance(minutes=2)
    assert broker.group("g").offsets() == {} and broker.groups() == []


def test_silent_member_expires_with_its_session(broker):
    broker.create_topic("t")
    _ready(broker.port, "g")
    member, _ = _member(broker.port, "g")
    group = broker.group("g")
    assert list(group.members()) == [member] and group.state == "Stable"
    broker.clock.advance(seconds=5)
    assert list(group.members()) == [member]
    broker.clock.advance(hours=1)
    # A group without members and offsets is removed when offsets are next checked.
    assert group.members() == {} and group.state == "Dead"


def test_date_can_be_moved_without_expiring_members(broker):
    topic = broker.create_topic("t", retention_ms=HOUR_MS)
    topic.append("old")
    _ready(broker.port, "g")
    member, generation = _member(broker.port, "g")
    broker.clock.advance(hours=2, timers=False)
    topic.assert_empty()
    with Connection(broker.port) as connection:
        answer = ask(connection, HEARTBEAT, 3, group_id="g", generation_id=generation,
                     member_id=member)
    assert answer["error_code"] == 0


def test_segments_roll_by_the_moved_clock(broker):
    topic = broker.create_topic("t", segment_ms=HOUR_MS, flush_ms=1000)
    topic.append("one")
    broker.clock.advance(hours=2)
    topic.append("two")
    import glob

    assert len(glob.glob(f"{broker.directory}/data/t-0/*.log")) == 2


def test_the_clock_does_not_touch_waits_of_the_data_plane(broker):
    broker.create_topic("t")
    with Connection(broker.port) as connection:
        answer = ask(connection, raw.FETCH, 12, max_wait=50, min_bytes=1, max_bytes=1 << 20,
                     session_id=0, session_epoch=-1, replica_id=-1, topics=[
                         {"topic": "t", "partitions": [{
                             "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0,
                             "last_fetched_epoch": -1, "log_start_offset": -1,
                             "partition_max_bytes": 1 << 20}]}])
    assert answer["error_code"] == 0


def test_stamps_of_the_broker_are_by_the_moved_clock(broker):
    from tests.wire import talk

    topic = broker.create_topic("t", message_timestamp_type="LogAppendTime", retention_ms=HOUR_MS)
    broker.clock.advance(days=1)
    talk.append(broker.port, "t", raw.batch())
    broker.clock.advance(minutes=1)
    row, = topic.records()
    assert 0 <= broker.clock.now_ms() - row.timestamp - 60_000 < 60_000


def test_advancing_the_clock_makes_records_compactable(broker):
    topic = broker.create_topic("t", cleanup_policy="compact", segment_ms=HOUR_MS,
                                min_cleanable_dirty_ratio=0.01)
    for value in "123":
        topic.append(("a", value), ("b", value))
    broker.clock.advance(hours=2)
    topic.assert_records([("a", "3"), ("b", "3")])


def test_clock_of_a_broker_with_a_failed_disk_can_be_advanced(broker):
    from tests.wire import talk

    topic = broker.create_topic("t")
    broker.faults.refuse_fsync()
    with Connection(broker.port) as connection:
        assert talk.produce(connection, "t", raw.batch())["error_code"] == 56
    broker.clock.advance(hours=1)
    broker.restart()
    topic.append("after")
    assert topic.values()[-1] == b"after"
