"""The start of a classic member's session: the same pauses on Apache Kafka and on brokerd."""

import threading
import time

import pytest

from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.sides import Side, compare
from tests.wire.test_groups import (
    BROKER_SETTINGS, HEARTBEAT, JOIN, OK, SYNC, Talk, _join_fields,
)

__all__ = ["BROKER_SETTINGS"]
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
SESSION_S, REBALANCE_S = 6, 30       # Kafka's group.min.session.timeout.ms is 6 s.
OWN_PAUSE_S, LEADER_PAUSE_S = 3, 7  # before the SyncGroup of the follower, of the leader
VERSION, WAIT_S, REBALANCING = 5, 60, 27
LEADER, FOLLOWER = "instance leader", "instance follower"


class Answer(threading.Thread):
    """Sends one request on a separate connection; result() waits for the response."""

    def __init__(self, side: Side, key: int, **fields):
        super().__init__(daemon=True)
        self._side, self._key, self._fields, self._answer = side, key, fields, None
        self.start()

    def run(self):
        with Connection(self._side.port, wait_s=WAIT_S) as connection:
            self._answer = ask(connection, self._key, VERSION, **self._fields)

    def result(self) -> dict:
        self.join(WAIT_S)
        assert self._answer is not None, "no answer"
        return self._answer


def _join(side: Side, group: str, session_s: int, instance: str, member: str = "") -> Answer:
    return Answer(side, JOIN, **_join_fields(
        group, member, session_timeout=1000 * session_s, rebalance_timeout=1000 * REBALANCE_S,
        group_instance_id=instance))


def _silent_until_the_leader_syncs(side: Side) -> None:
    """The follower waits longer than its session timeout for the response to its SyncGroup. After
    the response it is silent for less than its session timeout, and at last for more.
    """
    talk = Talk(side, "group")
    first = _join(side, talk.group, REBALANCE_S, LEADER).result()["member_id"]
    follower = _join(side, talk.group, SESSION_S, FOLLOWER)

    def beats(member: str, instance: str, generation: int) -> int:
        return ask(side.connection, HEARTBEAT, 4, group_id=talk.group, member_id=member,
                   generation_id=generation, group_instance_id=instance)["error_code"]
    end_s = time.monotonic() + WAIT_S
    while beats(first, LEADER, 1) != REBALANCING:
        assert time.monotonic() < end_s, "the group does not rebalance"
        time.sleep(0.05)
    led = _join(side, talk.group, REBALANCE_S, LEADER, first).result()
    second, generation = follower.result()["member_id"], led["generation_id"]
    for member in (first, second):
        talk.learn(member)
    talk.note("joined", led)
    common = {"group_id": talk.group, "generation_id": generation, "protocol_type": "consumer",
              "protocol_name": "range"}
    time.sleep(OWN_PAUSE_S)
    waiting = Answer(side, SYNC, member_id=second, group_instance_id=FOLLOWER, assignments=[],
                     **common)
    time.sleep(LEADER_PAUSE_S)
    talk.note("leader's sync", Answer(
        side, SYNC, member_id=first, group_instance_id=LEADER, assignments=[
            {"member_id": first, "assignment": b"first"},
            {"member_id": second, "assignment": b"second"}], **common).result())
    talk.note("follower's sync", waiting.result())
    time.sleep(SESSION_S / 2)
    side.note("within the session", beats(second, FOLLOWER, generation))
    time.sleep(SESSION_S + 2)
    side.note("after the session", beats(second, FOLLOWER, generation))
    assert dict(side.answers)["within the session"] == OK


def test_waiting_for_the_leaders_sync_keeps_the_session_alive(kafka, target):
    compare(kafka, target, _silent_until_the_leader_syncs)
