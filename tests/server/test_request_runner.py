"""Handlers' results become responses, closed connections, quotas and counts."""

import asyncio

import pytest

from pylog._native.server.heartbeat_cache import Repeat, Repeats
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.eventloop.end_of_tick import EndOfTick
from pylog.protocol import codec, messages
from pylog.protocol.errors import ProtocolError
from tests.server.support import HEARTBEAT, Reactors, drained, request, request_queue, timed_broker


def test_responses_deferred_to_the_end_of_an_iteration_are_sent_with_its_responses():
    async def scenario():
        tick, left = EndOfTick(), []

        def handler(context, request):
            pending = DeferredResponse(lambda error: error)
            left.append(pending)
            tick.defer(lambda: pending.respond(messages.ApiVersionsResponse()))
            return pending

        reactors = Reactors(request(1, 18, 0), request(2, 18, 0))
        request_queue(reactors, end_of_tick=tick, _18=handler).drain()
        assert len(left) == 2 and sorted(reactors.replies) == [1, 2] and not reactors.unflushed
    asyncio.run(scenario())


def test_response_has_the_correlation_id_of_its_request():
    reactors = Reactors(request(1, 18, 0))
    queue = request_queue(
        reactors, _18=lambda context, request: messages.ApiVersionsResponse())
    asyncio.run(drained(queue))
    frame, close = reactors.replies[1]
    assert not close and codec.decode_response_header(18, 0, frame[4:])[0] == 42


def test_response_of_an_asynchronous_handler_is_sent_when_it_is_done():
    async def handle(context, request):
        await asyncio.sleep(0)
        return messages.ApiVersionsResponse(error_code=35)

    reactors = Reactors(request(1, 18, 99))
    asyncio.run(drained(request_queue(reactors, _18=handle)))
    assert codec.decode_response(18, 0, reactors.replies[1][0], 8).error_code == 35


@pytest.mark.parametrize("fault", [ProtocolError("bad"), KeyError("bug")])
def test_failed_handler_closes_only_its_own_connection(fault):
    def fail(context, request):
        raise fault

    async def fail_later(context, request):
        raise fault

    reactors = Reactors(request(1, 18, 0), request(2, 60, 1, b"\0\1\0"), request(3, 18, 0))
    asyncio.run(drained(request_queue(reactors, _18=fail, _60=fail_later)))
    assert reactors.replies == {token: (None, True) for token in (1, 2, 3)}


def test_response_without_memory_closes_only_its_own_connection():
    class Short(Reactors):
        def queue_reply(self, token, frame, correlation_id, throttle_ms=0):
            if token in (1, 2):
                raise MemoryError("reply")
            super().queue_reply(token, frame, correlation_id, throttle_ms)

    async def scenario():
        pending = DeferredResponse(lambda error: error)
        reactors = Short(request(1, 18, 0), request(2, 12, 0, HEARTBEAT), request(3, 18, 0))
        await drained(request_queue(
            reactors, _18=lambda context, request: messages.ApiVersionsResponse(),
            _12=lambda context, request: pending))
        assert 2 not in reactors.replies
        pending.respond(messages.HeartbeatResponse())
        assert reactors.replies[1] == reactors.replies[2] == (None, True)
        assert reactors.replies[3][0] is not None
    asyncio.run(scenario())


def test_unexpected_kind_of_result_closes_only_its_own_connection():
    def handle(context, request):
        context.cacheable = True
        return DeferredResponse(lambda error: error)

    reactors = Reactors(request(1, 3, 0, bytes(4)), request(2, 18, 0))
    asyncio.run(drained(request_queue(
        reactors, _3=handle, _18=lambda context, request: messages.ApiVersionsResponse())))
    assert reactors.replies[1] == (None, True) and reactors.replies[2][0] is not None


def test_undecodable_body_closes_the_connection():
    reactors = Reactors(request(1, 19, 7, b"\xff\xff\xff"))
    asyncio.run(drained(request_queue(reactors)))
    assert reactors.replies[1] == (None, True)


def _throttle_time_ms(frame: bytes) -> int:
    return codec.decode_response(18, 3, frame, 8).throttle_time_ms


HELLO = b"\x02a\x02b\x00"


def test_handler_time_throttles_the_client():
    broker = timed_broker()

    def handle(context, request):
        broker.clock_ns += 101_000_000
        return messages.ApiVersionsResponse()

    reactors = Reactors(request(1, 18, 3, HELLO))
    asyncio.run(drained(request_queue(reactors, broker, _18=handle)))
    # 1 ms over the quota, which takes 100 ms at one percent.
    assert reactors.throttled[1] == _throttle_time_ms(reactors.replies[1][0]) == 100


def test_waiting_time_of_a_handler_does_not_count():
    broker = timed_broker()

    async def handle(context, request):
        broker.clock_ns += 50_000_000
        done = asyncio.get_running_loop().create_future()

        def finish():
            broker.clock_ns += 5_000_000_000
            done.set_result(None)
        asyncio.get_running_loop().call_soon(finish)
        await done
        broker.clock_ns += 49_000_000
        return messages.ApiVersionsResponse()

    reactors = Reactors(request(1, 18, 3, HELLO), request(2, 18, 3, HELLO))
    asyncio.run(drained(request_queue(reactors, broker, _18=handle)))
    assert reactors.throttled[1] == 0 and reactors.throttled[2] > 0


def test_timed_handler_may_fail_or_handle_an_exception():
    async def fail(context, request):
        await asyncio.sleep(0)
        raise ProtocolError("bad")

    async def catch(context, request):
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, KeyError("known"))
        try:
            await future
        except KeyError:
            return messages.ApiVersionsResponse(error_code=7)

    reactors = Reactors(request(1, 60, 1, b"\0\1\0"), request(2, 18, 3, HELLO))
    asyncio.run(drained(request_queue(reactors, timed_broker(), _60=fail, _18=catch)))
    assert reactors.replies[1] == (None, True)
    assert codec.decode_response(18, 3, reactors.replies[2][0], 8).error_code == 7


def test_handler_may_set_the_throttle_time():
    def handle(context, request):
        context.throttle_ms = 77
        return messages.ApiVersionsResponse()

    reactors = Reactors(request(1, 18, 3, HELLO))
    asyncio.run(drained(request_queue(reactors, _18=handle)))
    assert reactors.throttled[1] == _throttle_time_ms(reactors.replies[1][0]) == 77


def test_clients_of_versions_without_throttle_time_are_muted():
    def handle(context, request):
        context.throttle_ms = 77
        return messages.ApiVersionsResponse()

    reactors = Reactors(request(1, 18, 0))
    asyncio.run(drained(request_queue(reactors, _18=handle)))
    assert reactors.throttled[1] == 77


def test_requests_are_counted_with_queue_time_and_error():
    def fail(context, request):
        raise KeyError("bug")

    async def handle(context, request):
        await asyncio.sleep(0)
        return messages.ApiVersionsResponse(error_code=35)

    for handler, code in ((fail, -1), (handle, 35)):
        reactors = Reactors(request(1, 18, 0))
        asyncio.run(drained(request_queue(reactors, _18=handler)))
        assert reactors.counted == [(18, 600, code)]


@pytest.mark.parametrize("throttle_ms, error, kept", [(0, 0, 1), (5, 0, 0), (0, 35, 0)])
def test_repeatable_response_is_cached_unless_it_is_an_error_or_throttled(
        throttle_ms, error, kept):
    table = Repeats()

    def handle(context, request):
        context.repeat, context.throttle_ms = repeat, throttle_ms
        return messages.ApiVersionsResponse(error_code=error)

    repeat = Repeat(table)
    repeat.offer(1 << 60)
    asyncio.run(drained(request_queue(Reactors(request(1, 18, 0)), _18=handle)))
    assert len(table) == kept
