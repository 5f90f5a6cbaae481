"""ShareFetch in isolation: limits of a session's memory."""

import asyncio
from types import SimpleNamespace

from pylog.api.data.share_fetch import ShareFetchApi
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.share.sessions import Sessions

TOPIC = b"t" * 16
MEMBER = "m" * 22


class Side:
    """The API on a broker without topics, whose sessions have two partitions in total."""

    def __init__(self):
        self.sessions = Sessions(10, partitions_max=2)
        self.ended = []
        self.api = ShareFetchApi(
            SimpleNamespace(sessions=self.sessions, begin_session=self.sessions.begin,
                            end_session=self.end,
                            settings=SimpleNamespace(lock_ms=lambda group_id: 30_000)),
            SimpleNamespace(is_enabled=True), None,
            SimpleNamespace(image=SimpleNamespace(topics_by_id={})), {}, lambda connection: None,
            None)

    def end(self, group_id, member_id):
        self.ended.append(self.sessions.end(group_id, member_id))

    def fetch(self, epoch, *partitions, forgotten=()):
        new = messages.ShareFetchRequest
        context = SimpleNamespace(api_version=1, connection=1)
        return asyncio.run(self.api.fetch(context, new(
            group_id="g", member_id=MEMBER, share_session_epoch=epoch, max_wait_ms=0,
            topics=[new.FetchTopic(topic_id=TOPIC, partitions=[
                new.FetchPartition(partition_index=index) for index in partitions])],
            forgotten_topics_data=[new.ForgottenTopic(
                topic_id=TOPIC, partitions=list(forgotten))])))


def test_session_that_exceeds_the_partition_limit_is_ended():
    side = Side()
    answer = side.fetch(0, 0, 1)
    assert {cell.error_code for topic in answer.responses for cell in topic.partitions} == {
        ErrorCode.UNKNOWN_TOPIC_ID}
    side.ended.clear()
    assert side.fetch(1, 2).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert [session.member_id for session in side.ended] == [MEMBER]
    assert side.fetch(2).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert side.sessions.partition_count == 0


def test_new_session_above_the_partition_limit_is_rejected():
    side = Side()
    assert side.fetch(0, 0, 1, 2).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert len(side.sessions) == side.sessions.partition_count == 0


def test_session_may_replace_forgotten_partitions():
    side = Side()
    assert side.fetch(0, 0, 1).error_code == ErrorCode.NONE
    assert side.fetch(1, forgotten=[0]).error_code == ErrorCode.NONE
    assert side.fetch(2, 2).error_code == ErrorCode.NONE
    assert list(side.sessions.find("g", MEMBER, 3)[0].partitions) == [(TOPIC, 1), (TOPIC, 2)]
