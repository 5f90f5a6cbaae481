"""Misses and verifications are decided from the current image."""

import asyncio
from types import SimpleNamespace

from pylog._native.server.grants import READ
from pylog._native.server.reactor import Miss
from pylog.protocol.errors import ErrorCode
from pylog.server.grant_decisions import GrantDecisions
from tests.server.support import TOPIC_ID, Broker, Reactors, drained, request_queue, services


def test_miss_is_granted_or_denied_from_the_current_image():
    reactors = Reactors(Miss(5, 3, [
        (b"known", None), (None, TOPIC_ID), (b"gone", None), (None, bytes(16)), (b"\xff", None),
    ], READ))
    broker = Broker()
    asyncio.run(drained(request_queue(reactors, broker)))
    assert reactors.resumed[5] == [
        ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert broker.grants.allowed == [(3, TOPIC_ID)] * 2


def test_topic_without_open_logs_has_no_leader():
    reactors = Reactors(Miss(5, 0, [(b"known", None)], READ))
    broker = Broker(opened=False)
    asyncio.run(drained(request_queue(reactors, broker)))
    assert reactors.resumed[5] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert broker.grants.allowed == []


def test_producer_gets_an_error_if_its_partitions_cannot_be_verified(caplog):
    async def verdicts(asked):
        raise RuntimeError("broken")

    reactors = Reactors()
    asked = SimpleNamespace(token=7, partitions=[(b"t", 0), (b"t", 1)])
    decisions = GrantDecisions(services(reactors)._replace(
        verification=SimpleNamespace(verdicts=verdicts)))
    asyncio.run(decisions.verify(asked))
    assert reactors.resumed == {7: [ErrorCode.UNKNOWN_SERVER_ERROR] * 2}
    assert "cannot verify the partitions of a transaction" in caplog.text
