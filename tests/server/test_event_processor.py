"""Events of the reactors that are not requests."""

import asyncio

import pytest

from pylog._native.server.grants import READ
from pylog._native.server.reactor import Connected, Miss, Slow, UnknownClient
from pylog.protocol import messages
from pylog.server.request_queue import RequestQueue
from tests.server.support import (
    Broker, Reactors, drained, request, request_queue, services, timed_broker,
)


def test_failed_event_does_not_affect_other_events_of_the_poll():
    class Failing(Broker):
        def install(self, topic):
            raise RuntimeError("planted")

    reactors = Reactors(
        Miss(5, 3, [(b"gone", None), (b"known", None), (b"gone", None)], READ),
        request(1, 18, 0))
    asyncio.run(drained(request_queue(
        reactors, Failing(),
        _18=lambda context, request: messages.ApiVersionsResponse())))
    assert reactors.resumed == {5: [3, -1, -1]}
    assert 1 in reactors.replies


def test_unknown_client_is_installed_and_its_connection_continues():
    reactors, broker = Reactors(UnknownClient(9, 0, b"client")), timed_broker()
    asyncio.run(drained(request_queue(reactors, broker)))
    assert reactors.retried == [9]
    assert broker.quotas.native.count() == (1, 1)


@pytest.mark.parametrize("event", [
    UnknownClient(9, 0, b"client"), Connected(9, 0, "127.0.0.1")], ids=["quota", "guard"])
def test_connection_whose_event_fails_is_closed(monkeypatch, event):
    def fails(*_):
        raise MemoryError("planted")

    reactors, broker = Reactors(event), timed_broker()
    monkeypatch.setattr(broker.quotas, "install", fails)
    asyncio.run(drained(RequestQueue(services(reactors, broker)._replace(security=fails))))
    assert reactors.closed == [9] and not reactors.retried


def test_slow_request_is_logged(caplog):
    slow = Slow(
        api_key=1, api_version=11, client_id=b"app", peer="10.0.0.7:5041", connection=7,
        correlation_id=42, total_ns=1_204_551_000, local_ns=412_000, remote_ns=0, send_ns=129_000,
        request_bytes=90, response_bytes=56, left_out=3)
    with caplog.at_level("WARNING", "pylog.request"):
        request_queue(Reactors(slow)).drain()
    [line] = caplog.records
    assert (line.api, line.client, line.total_ms, line.left_out) == ("Fetch", "app", "1204.551", 3)
