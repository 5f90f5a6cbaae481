"""Persistence of share state: a coordinator on another broker, and its failovers."""

from types import SimpleNamespace

import pytest

from pylog.coordinator.share.partition_state import Batch, ShareKey
from pylog.metadata.image.image import NO_LEADER
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.share.persister import RETRY_SECONDS, Persister
from tests.client.virtual_time import VirtualTime

KEY = ShareKey("g", b"t" * 16, 0)
HERE, THERE = 1, 2
SESSION_S = 9.0       # broker.session.timeout.ms


class World:
    """A coordinator on another broker. answers: (start time, an error code, or None: the broker
    does not respond), in ascending order.
    """

    def __init__(self, *answers):
        self.time = VirtualTime()
        self.start_s = self.time.now_s
        self.answers = list(answers)
        self.requests = []
        self.persister = Persister(
            SimpleNamespace(leader_of=lambda text: self._now()[1]), self, HERE)

    def _now(self):
        """Return (error code or None, leader) at this time."""
        since = [row for row in self.answers if self.time.now_s - self.start_s >= row[0]]
        code = since[-1][1]
        return code, NO_LEADER if code == ErrorCode.LEADER_NOT_AVAILABLE else THERE

    async def send(self, leader, request, version):
        self.requests.append(request)
        code = self._now()[0]
        if code is None:
            raise PeerError("connection refused")
        new = messages.WriteShareGroupStateResponse
        return new(results=[new.WriteStateResult(topic_id=KEY.topic_id, partitions=[
            new.PartitionResult(partition=0, error_code=code)])])

    def write(self, progress=lambda: (0, 0)):
        return self.time.run(self.persister.write(KEY, 1, 3, progress, [Batch(5, 9, 2, 1)]))[0]

    @property
    def rows(self):
        return [request.topics[0].partitions[0] for request in self.requests]


@pytest.mark.parametrize("code", [
    None, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE])
def test_a_failover_of_the_coordinator_does_not_fail_a_write(code):
    world = World((0, code), (SESSION_S + 1, ErrorCode.NONE))
    assert world.write() == ErrorCode.NONE
    assert world.time.now_s - world.start_s < SESSION_S + 2


def test_write_fails_if_the_coordinator_stays_unavailable():
    world = World((0, None))
    assert world.write() == ErrorCode.NETWORK_EXCEPTION
    assert RETRY_SECONDS <= world.time.now_s - world.start_s < RETRY_SECONDS + 1


def test_an_error_that_does_not_pass_is_returned_at_once():
    world = World((0, ErrorCode.FENCED_LEADER_EPOCH))
    assert world.write() == ErrorCode.FENCED_LEADER_EPOCH
    assert len(world.requests) == 1


def test_retried_write_uses_the_current_start_offset():
    world = World((0, None), (1, ErrorCode.NONE))
    starts = iter(range(100))
    assert world.write(lambda: (next(starts), 0)) == ErrorCode.NONE
    assert [row.start_offset for row in world.rows] == list(range(len(world.rows)))
    assert len(world.rows) > 1
