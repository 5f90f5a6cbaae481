"""The order of requests, and how many run in one slice."""

import asyncio

import pytest

from pylog._native.server.grants import READ
from pylog._native.server.reactor import Miss
from pylog.protocol import codec, messages
from pylog.server.scheduling import SLICE_NS
from tests.server.support import (
    HEARTBEAT, Broker, Reactors, metadata_request, request, request_queue,
)


@pytest.mark.parametrize("key, version, beat, answer", [
    (12, 3, messages.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"),
     messages.HeartbeatResponse()),
    (68, 1, messages.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1),
     messages.ConsumerGroupHeartbeatResponse()),
    (76, 1, messages.ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1),
     messages.ShareGroupHeartbeatResponse()),
    (88, 0, messages.StreamsGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1),
     messages.StreamsGroupHeartbeatResponse())])
def test_group_requests_run_before_other_requests(key, version, beat, answer):
    order = []
    clock = iter(range(0, 10**12, SLICE_NS // 3))

    def note(context, request):
        order.append(context.api_key)
        return answer if context.api_key == key else messages.MetadataResponse()

    body = codec.encode_request(key, version, beat)
    reactors = Reactors(
        *[metadata_request(token) for token in range(1, 9)], request(9, key, version, body))
    broker = Broker()
    broker.quotas.clock_ns = lambda: next(clock)

    async def scenario():
        queue = request_queue(reactors, broker, **{"_3": note, f"_{key}": note})
        queue.drain()
        assert order[0] == key and len(order) < 9
        reactors.events = [request(10, key, version, body)]
        await asyncio.sleep(0.05)

    asyncio.run(scenario())
    assert len(reactors.replies) == 10 and not reactors.unflushed
    assert order.count(3) == 8 and order.index(key, 1) < 8


def test_group_requests_run_for_one_slice_at_a_time():
    """Regardless of their number: the first do not wait for the last, nor does the event loop."""
    clock = iter(range(0, 10**12, SLICE_NS // 4))
    order = []

    def note(context, request):
        order.append(context.token)
        return messages.HeartbeatResponse() if context.api_key == 12 \
            else messages.MetadataResponse()

    beats = range(1, 41)
    reactors = Reactors(
        *[request(token, 12, 3, HEARTBEAT + b"\xff\xff") for token in beats],
        metadata_request(41), metadata_request(42), Miss(5, 0, [(b"known", None)], READ))
    broker = Broker()
    broker.quotas.clock_ns = lambda: next(clock)

    async def scenario():
        request_queue(reactors, broker, _12=note, _3=note).drain()
        served, answered = list(order), sorted(reactors.replies)
        others = []
        asyncio.get_running_loop().call_soon(lambda: others.append(len(order)))
        await asyncio.sleep(0.05)
        return served, answered, others

    served, answered, others = asyncio.run(scenario())
    # A few of the first, and one of the requests with lower priority.
    assert sorted(served) == answered and 41 in served and 42 not in served
    assert served[:-1] == list(beats)[:len(served) - 1] and len(served) < 8
    assert reactors.resumed == {5: [0]} and others[0] < 40
    assert [token for token in order if token < 41] == list(beats)
    assert sorted(reactors.replies) == [*beats, 41, 42] and not reactors.unflushed
