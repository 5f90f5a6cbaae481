"""Share sessions."""

from pylog.protocol.errors import ErrorCode
from pylog.share.sessions import EPOCH_MAX, FINAL, Sessions

T0, T1 = (b"t" * 16, 0), (b"t" * 16, 1)


def test_session_epoch_must_be_the_next_one():
    sessions = Sessions(10)
    session = sessions.begin("g", "m", [T0], 7)
    assert sessions.find("g", "m", 0)[1] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.find("g", "m", 1) == (session, ErrorCode.NONE)
    assert sessions.find("g", "m", 1)[1] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.find("g", "m", 2) == (session, ErrorCode.NONE)
    assert sessions.find("g", "m", FINAL) == (session, ErrorCode.NONE)
    assert sessions.find("g", "x", 1)[1] == ErrorCode.SHARE_SESSION_NOT_FOUND
    session.epoch = EPOCH_MAX
    sessions.find("g", "m", EPOCH_MAX)
    assert session.epoch == 1


def test_sessions_are_limited_and_a_member_has_one():
    sessions = Sessions(1)
    assert sessions.begin("g", "m", [T0], 1) is not None
    assert sessions.begin("g", "n", [T0], 2) is None
    assert sessions.begin("g", "m", [T1], 3) is not None
    assert len(sessions) == 1
    assert sessions.closed(1) == []
    assert [row.member_id for row in sessions.closed(3)] == ["m"]
    assert not sessions.has_group("g")


def test_unchanged_row_is_sent_once_and_again_after_an_error():
    session = Sessions(1).begin("g", "m", [T0, T1], 1)
    assert session.includes(T0, False, 0)
    assert not session.includes(T0, False, 0)
    assert session.includes(T0, False, 6)
    assert session.includes(T0, False, 0)
    assert session.includes(T0, True, 0)
    assert list(session.partitions) == [T1, T0]


def test_all_sessions_together_have_a_limit_of_partitions():
    sessions = Sessions(10, partitions_max=3)
    first = sessions.begin("g", "m", [T0, T1, T1], 1)
    assert sessions.partition_count == 2
    assert sessions.begin("g", "n", [T0, T1], 1) is None
    second = sessions.begin("g", "n", [T0], 1)
    assert sessions.add(second, [T0]) and not sessions.add(second, [T0, T1])
    assert list(second.partitions) == [T0]
    sessions.forget(first, [T0, T0])
    assert sessions.add(second, [T1])
    assert sessions.partition_count == 3


def test_ended_session_releases_its_partitions():
    sessions = Sessions(10, partitions_max=2)
    sessions.begin("g", "m", [T0, T1], 1)
    assert sessions.begin("g", "m", [T1, T0], 2) is not None
    sessions.closed(2)
    assert sessions.partition_count == 0
    assert sessions.begin("g", "n", [T0, T1], 1) is not None


def test_sent_row_does_not_change_the_count():
    sessions = Sessions(1)
    session = sessions.begin("g", "m", [T0, T1], 1)
    assert session.includes(T0, True, 0)
    sessions.end("g", "m")
    assert sessions.partition_count == 0
