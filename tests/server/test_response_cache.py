"""Responses that depend only on the metadata image are created once."""

import asyncio
from types import SimpleNamespace

from pylog.metadata.image.image import Image
from pylog.protocol import codec, messages
from pylog.server.response_cache import BYTES_MAX, FrameCache
from tests.server.support import Broker, Reactors, drained, metadata_request, request_queue


def _counting(asked, cacheable=True):
    def handle(context, request):
        asked.append(context.local_host)
        context.cacheable = cacheable
        return messages.MetadataResponse(cluster_id=f"answer {len(asked)}")
    return handle


def _cluster_ids(reactors):
    return {token: codec.decode_response(3, 4, frame, 8).cluster_id
            for token, (frame, _) in reactors.replies.items()}


def test_cached_response_is_sent_for_the_same_request_to_the_same_address():
    asked = []
    reactors = Reactors(
        metadata_request(1), metadata_request(2), metadata_request(3, host="10.0.0.1"),
        metadata_request(4, body=b"\xff\xff\xff\xff\0"))
    asyncio.run(drained(request_queue(reactors, _3=_counting(asked))))
    assert _cluster_ids(reactors) == {1: "answer 1", 2: "answer 1", 3: "answer 2", 4: "answer 3"}
    assert [codec.decode_response_header(3, 4, frame[4:])[0]
            for frame, _ in reactors.replies.values()] == [1, 2, 3, 4]


def test_responses_are_not_cached_while_a_broker_may_have_failed():
    asked, broker = [], Broker()
    broker.departures = SimpleNamespace(any=True)
    reactors = Reactors(metadata_request(1), metadata_request(2))
    asyncio.run(drained(request_queue(reactors, broker, _3=_counting(asked))))
    assert _cluster_ids(reactors) == {1: "answer 1", 2: "answer 2"}


def test_cached_response_is_dropped_with_its_image():
    asked, broker = [], Broker()
    reactors = Reactors(metadata_request(1))

    async def scenario():
        queue = request_queue(reactors, broker, _3=_counting(asked))
        queue.drain()
        broker.image = Image()
        reactors.events = [metadata_request(2)]
        queue.drain()

    asyncio.run(scenario())
    assert _cluster_ids(reactors) == {1: "answer 1", 2: "answer 2"}


def test_uncacheable_response_is_created_for_each_request():
    asked = []
    reactors = Reactors(metadata_request(1), metadata_request(2))
    asyncio.run(drained(request_queue(reactors, _3=_counting(asked, cacheable=False))))
    assert len(asked) == 2


def test_cached_responses_use_bounded_memory():
    cache, image = FrameCache(), Image()
    assert cache.find(image, (0, b"")) is None
    for number in range(100):
        cache.add(image, (number, b"k"), b"x" * (BYTES_MAX // 10))
        assert sum(len(frame) for frame in cache._frames.values()) <= BYTES_MAX
    cache.add(image, (100, b"k"), b"x" * (BYTES_MAX + 1))
    assert cache.find(image, (100, b"k")) is None


def test_equal_requests_share_a_cacheable_response_in_progress():
    asked = []
    broker = Broker()

    def handle(context, request):
        asked.append(1)
        context.cacheable = True
        for number in range(50):
            yield messages.MetadataResponse(cluster_id="c", topics=[
                messages.MetadataResponse.MetadataResponseTopic(name=f"t{number}")])

    reactors = Reactors(metadata_request(1), metadata_request(2))

    async def scenario():
        queue = request_queue(reactors, broker, _3=handle)
        queue.drain()
        await asyncio.sleep(0.05)
        reactors.events = [metadata_request(3)]
        queue.drain()

    asyncio.run(scenario())
    assert len(asked) == 1 and sorted(reactors.replies) == [1, 2, 3]
    for token in (1, 2, 3):
        frame = reactors.replies[token][0]
        assert codec.decode_response_header(3, 4, frame[4:])[0] == token
        assert len(codec.decode_response(3, 4, frame, 8).topics) == 50
