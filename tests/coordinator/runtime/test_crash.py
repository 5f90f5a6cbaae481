"""kill -9 during commits and rebalances. Checks that acknowledged commits were written, not that
they were flushed: the page cache survives a kill. tests/durability covers flushes for logs.
"""

import threading
import time

import pytest

from tests.clients.test_groups_clients import PARTITIONS, Member, _shared, _until
from tests.fixtures.brokers import Brokerd
from tests.wire.messages import ask
from tests.wire.raw import Closed, Connection
from tests.wire.talk import create_topic
from tests.wire.test_groups import COMMIT, FETCH, _commit_fields, _ready

SETTINGS = {"group.initial.rebalance.delay.ms": 50}
GROUPS, KILLS = 8, 3


@pytest.fixture
def broker(tmp_path):
    with Brokerd(tmp_path, SETTINGS) as broker:
        yield broker


class Committer(threading.Thread):
    """Commits increasing offsets of one group until stopped; `acknowledged` is the last one."""

    def __init__(self, broker, group: str):
        super().__init__(daemon=True)
        self.broker = broker
        self.group = group
        self.sent = self.acknowledged = 0
        self.stopping = False
        self.start()

    def run(self) -> None:
        while not self.stopping:
            try:
                with Connection(self.broker.port, wait_s=5) as connection:
                    while not self.stopping:
                        self._commit(connection)
            except (Closed, OSError):
                time.sleep(0.01)

    def _commit(self, connection) -> None:
        self.sent += 1
        answer = ask(connection, COMMIT, 8, **_commit_fields(self.group, "t", self.sent))
        code = answer["topics"][0]["partitions"][0]["error_code"]
        if code == 0:
            self.acknowledged = self.sent
        else:
            assert code in (14, 15, 16), code
            time.sleep(0.005)


def _committed(committers, count: int) -> None:
    """Wait until each has `count` more commits acknowledged, on machines of any speed."""
    goals = [(committer, committer.acknowledged + count) for committer in committers]
    end_s = time.monotonic() + 60
    while any(committer.acknowledged < goal for committer, goal in goals):
        assert time.monotonic() < end_s, [committer.acknowledged for committer in committers]
        time.sleep(0.01)


def test_no_acknowledged_commit_is_lost_by_kill_9(broker):
    create_topic(broker.port, "t")
    _ready(broker.port, "g0")
    committers = [Committer(broker, f"g{number}") for number in range(GROUPS)]
    for _ in range(KILLS):
        time.sleep(0.5)
        _committed(committers, 3)
        broker.kill()
        broker.start()
    _committed(committers, 11)
    broker.kill()
    for committer in committers:
        committer.stopping = True
        committer.join(10)
        assert not committer.is_alive()
    broker.start()
    for committer in committers:
        _ready(broker.port, committer.group)
        with Connection(broker.port) as connection:
            found = ask(connection, FETCH, 5, group_id=committer.group, topics=[
                {"name": "t", "partition_indexes": [0]}])
        offset = found["topics"][0]["partitions"][0]["committed_offset"]
        assert committer.acknowledged <= offset <= committer.sent
        assert committer.acknowledged > 10


@pytest.mark.timeout(120)
def test_group_recovers_from_kill_9_during_a_rebalance(broker):
    create_topic(broker.port, "t", PARTITIONS)
    members = [Member(broker, "t", "g"), Member(broker, "t", "g")]
    _until(lambda: _shared(*members), *members)
    members.append(Member(broker, "t", "g"))
    for _ in range(5):
        for member in members:
            member.poll(0.02)
    broker.kill()
    broker.start()
    start_s = time.monotonic()
    _until(lambda: _shared(*members), *members)
    # No partition is unassigned longer than a session timeout plus client retries.
    assert time.monotonic() - start_s < 12
    for member in members:
        member.consumer.close()
