"""Heartbeats beside long requests and long responses, counted in steps of work, not in time."""

import asyncio
import logging

import pytest

from pylog.config import Settings
from pylog.protocol import api, codec, elements, messages, tables
from pylog.server.scheduling import SLICE_NS
from tests.protocol.longest import longest
from tests.server.support import Broker, Reactors, request, request_queue

STEPS_MAX = 8  # A slice is five reads of a clock that advances by a millisecond each.
BEAT = codec.encode_request(12, 3, messages.HeartbeatRequest(
    group_id="g", generation_id=1, member_id="m"))
IN_PIECES = [key for key in elements.ELEMENTS if elements.path_of(
    elements.of(key).request_paths, "request", key, api.SERVED[key][1])]


def _beating(handler, *events, key=None, settings=None, turns=100_000):
    """Run requests with a heartbeat in each iteration of the loop.

    handler(request): a handler's result. Returns (the maximum number of handler steps between two
    heartbeats, the reactors).
    """
    broker, reactors = Broker(), Reactors(*events)
    broker.settings = Settings(settings or {})
    now_ns = 0

    def clock_ns():
        nonlocal now_ns
        now_ns += SLICE_NS // 5
        return now_ns

    broker.quotas.clock_ns = clock_ns
    steps = worst = beats = 0

    def step(context, request):
        nonlocal steps
        steps += 1
        return handler(request)

    def beat(context, request):
        nonlocal steps, worst, beats
        worst, steps, beats = max(worst, steps), 0, beats + 1
        return messages.HeartbeatResponse()

    async def scenario():
        queue = request_queue(reactors, broker, **{f"_{key}": step, "_12": beat})
        wanted = len(events)
        for turn in range(turns):
            reactors.events.append(request(10_000 + turn, 12, 3, BEAT))
            queue.drain()
            if sum(token < 10_000 for token in reactors.replies) == wanted:
                return
            await asyncio.sleep(0)
        raise AssertionError("no end")

    asyncio.run(scenario())
    return worst, reactors


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("key", IN_PIECES)
def test_long_request_delays_a_heartbeat_for_at_most_a_few_steps(key, distinct):
    version = api.SERVED[key][1]
    request_name, response = tables.name_of("request", key), codec.message_class(
        tables.name_of("response", key))
    piece = elements.of(key).slice_elements
    (array, *_), *_ = elements.path_of(elements.of(key).request_paths, "request", key, version)
    sizes = []

    def handle(request):
        sizes.append(len(getattr(request, array)))
        return response()

    for path, body, count in longest(request_name, version, 200_000, 5000, distinct):
        if not path.startswith(array):
            continue
        worst, reactors = _beating(handle, request(1, key, version, body), key=key)
        assert worst <= STEPS_MAX and max(sizes) <= 2 * piece, (path, count, worst, max(sizes))
        assert reactors.replies[1][0] is not None, path


def test_heartbeats_run_between_the_parts_of_a_long_response():
    made = []

    def parts(request):
        for number in range(200):
            made.append(number)
            yield messages.ListGroupsResponse(groups=[
                messages.ListGroupsResponse.ListedGroup(group_id=f"g{number}")])

    def looked():
        beats = []

        def handler(request):
            beats.append(len(made))
            return parts(request)
        return handler

    _, reactors = _beating(looked(), request(1, api.LIST_GROUPS, 0), key=api.LIST_GROUPS)
    answer = codec.decode_response(16, 0, reactors.replies[1][0], 8)
    assert [row.group_id for row in answer.groups] == [f"g{number}" for number in range(200)]
    assert len(reactors.replies) > 200 // STEPS_MAX


def _many_groups(request):
    while True:
        yield messages.ListGroupsResponse(groups=[
            messages.ListGroupsResponse.ListedGroup(group_id="g" * 30_000)])


def test_response_that_grows_too_long_closes_its_connection(caplog):
    caplog.set_level(logging.INFO, "pylog.dispatch")
    _, reactors = _beating(_many_groups, request(1, api.LIST_GROUPS, 0), key=api.LIST_GROUPS,
                           settings={"control.response.bytes.max": "1000000"})
    assert reactors.replies[1] == (None, True)
    line, = caplog.records
    assert line.message == "request refused" and "1000000 bytes" in line.reason


@pytest.mark.parametrize("size", [65_537, 70_000, 10_000_000])
def test_single_response_that_is_too_long_closes_its_connection(size, caplog):
    caplog.set_level(logging.INFO, "pylog.dispatch")
    _, reactors = _beating(
        lambda request: messages.ApiVersionsResponse(api_keys=[
            messages.ApiVersionsResponse.ApiVersion()] * (size // 6 + 1)),
        request(1, api.API_VERSIONS, 0), key=api.API_VERSIONS,
        settings={"control.response.bytes.max": "65536"})
    assert reactors.replies[1] == (None, True) and len(caplog.records) == 1


def test_long_requests_are_answered_in_order():
    body = codec.encode_request(15, 0, messages.DescribeGroupsRequest(
        groups=[f"g{number}" for number in range(1000)]))

    def handle(request):
        return messages.DescribeGroupsResponse()

    _, reactors = _beating(handle, *[request(token, 15, 0, body) for token in range(1, 9)],
                           request(9, 15, 0, codec.encode_request(
                               15, 0, messages.DescribeGroupsRequest(groups=["x"]))), key=15)
    order = [token for token in reactors.replies if token < 10_000]
    assert order == [9, 1, 2, 3, 4, 5, 6, 7, 8]


def test_waiting_long_requests_do_not_delay_groups_and_metadata():
    """Two quota changes with unresolvable names fill all slots of their kind."""
    ends = asyncio.Event()

    async def waits(context, request):
        await ends.wait()
        return messages.AlterClientQuotasResponse()

    async def commits(context, request):
        return messages.OffsetCommitResponse()

    alter = messages.AlterClientQuotasRequest
    many = codec.encode_request(49, 1, alter(entries=[
        alter.EntryData(entity=[alter.EntityData(entity_type="ip", entity_name=f"h{number}")],
                        ops=[alter.OpData(key="k", value=1.0)])
        for number in range(5000)]))
    commit = messages.OffsetCommitRequest
    offsets = codec.encode_request(8, 2, commit(group_id="g", topics=[
        commit.OffsetCommitRequestTopic(name=f"topic-{number}", partitions=[
            commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)])
        for number in range(5000)]))
    metadata = messages.MetadataRequest
    names = codec.encode_request(3, 4, metadata(topics=[
        metadata.MetadataRequestTopic(name=f"topic-{number}") for number in range(5000)]))
    reactors = Reactors(request(1, 49, 1, many), request(2, 49, 1, many),
                        request(3, 8, 2, offsets), request(4, 3, 4, names))

    async def scenario():
        queue = request_queue(
            reactors, _49=waits, _8=commits,
            _3=lambda context, request: messages.MetadataResponse())
        queue.drain()
        async with asyncio.timeout(30):
            while len(reactors.replies) < 2:
                await asyncio.sleep(0.001)
            assert sorted(reactors.replies) == [3, 4]
            ends.set()
            while len(reactors.replies) < 4:
                await asyncio.sleep(0.001)

    asyncio.run(scenario())
