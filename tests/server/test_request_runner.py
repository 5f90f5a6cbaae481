"""Events in, answers out, without sockets: routing, refusals, misses."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.config import Settings
from pylog.coordinator.runtime.deferred_reply import Pending
from pylog.eventloop.end_of_tick import EndOfTick
from pylog._native.grants import READ
from pylog._native.reactor import Connected, Miss, RequestContext, Slow, UnknownClient
from pylog._native.repeats import Repeat, Repeats
from pylog.server.response_cache import BYTES_MAX, AnswerCache
from pylog.server.request_runner import SLICE_NS, Dispatcher
from pylog.metadata.image.image import Image, Topic
from pylog.protocol import api, codec, messages
from pylog.protocol.errors import ErrorCode, ProtocolError
from pylog.config.client_quotas import CLIENT_ID, REQUEST_PERCENTAGE, ClientQuotas

TOPIC_ID = bytes(range(16))
HEARTBEAT = b"\0\1g" + bytes(4) + b"\0\1m"   # Of generation 0.


class Reactors:
    """Stands for the native ones: gives out events, takes down answers."""

    def __init__(self, *events):
        self.events, self.replies, self.resumed, self.counted = list(events), {}, {}, []
        self.throttled, self.retried, self.closed = {}, [], []

    def poll(self):
        events, self.events = self.events, []
        return events

    def reply(self, token, frame, close=False, throttle_ms=0):
        assert token not in self.replies, token
        self.replies[token] = (frame, close)
        self.throttled[token] = throttle_ms

    def queue_reply(self, token, frame, correlation_id, throttle_ms=0):
        frame = frame[:4] + correlation_id.to_bytes(4, "big", signed=True) + frame[8:]
        self.reply(token, frame, throttle_ms=throttle_ms)
        self.unflushed = True

    def flush_replies(self):
        self.unflushed = False

    def retry(self, connection):
        self.retried.append(connection)

    def close_connection(self, connection):
        self.closed.append(connection)

    def resume(self, token, errors):
        self.resumed[token] = errors

    def now_ns(self):
        return 1000

    def answered(self, api_key, queue_ns, local_ns, remote_ns, error_code):
        self.counted.append((api_key, queue_ns, error_code))


class Grants:
    def __init__(self):
        self.allowed = []

    def allow(self, principal, topic_id, rights):
        self.allowed.append((principal, topic_id))


class Broker:
    departures = None

    def __init__(self, opened=True):
        topic = Topic("known", TOPIC_ID, ())
        self.image = Image(topics={"known": topic}, topics_by_id={TOPIC_ID: topic})
        self.grants, self.opened = Grants(), opened
        self.settings = Settings({})
        self.quotas = ClientQuotas(self.settings, lambda: 0)

    def install(self, topic):
        return self.opened


def _request(token, key, version, body=b""):
    return RequestContext(
        token=token, connection=7, api_key=key, api_version=version, correlation_id=42,
        client_id="client", body=body, local_host="127.0.0.1", local_port=9092,
        peer_host="127.0.0.1", peer_port=50000, began_ns=400)


def _dispatcher(reactors, broker=None, turn=None, **handlers):
    broker = broker or Broker()
    table = {key: lambda *_: None for key in api.SERVED if key not in (api.PRODUCE, api.FETCH)}
    table.update({int(key[1:]): handler for key, handler in handlers.items()})
    return Dispatcher(
        reactors, table, metadata=broker, settings=broker.settings, quotas=broker.quotas,
        grants=broker.grants, install=broker.install, verification=None,
        turn=turn or EndOfTick())


async def _drained(dispatcher):
    dispatcher.drain()
    await asyncio.sleep(0.01)


def test_what_handlers_leave_for_the_end_of_the_turn_is_sent_with_its_answers():
    async def scenario():
        turn, left = EndOfTick(), []

        def handler(context, request):
            pending = Pending(lambda error: error)
            left.append(pending)
            turn.defer(lambda: pending.answer(messages.ApiVersionsResponse()))
            return pending

        reactors = Reactors(_request(1, 18, 0), _request(2, 18, 0))
        _dispatcher(reactors, turn=turn, _18=handler).drain()
        assert len(left) == 2 and sorted(reactors.replies) == [1, 2] and not reactors.unflushed
    asyncio.run(scenario())


def test_a_plain_handlers_answer_is_sent_with_the_requests_correlation_id():
    reactors = Reactors(_request(1, 18, 0))
    dispatcher = _dispatcher(
        reactors, _18=lambda context, request: messages.ApiVersionsResponse())
    asyncio.run(_drained(dispatcher))
    frame, close = reactors.replies[1]
    assert not close and codec.decode_response_header(18, 0, frame[4:])[0] == 42


def test_an_asynchronous_handlers_answer_is_sent_when_it_is_done():
    async def handle(context, request):
        await asyncio.sleep(0)
        return messages.ApiVersionsResponse(error_code=35)

    reactors = Reactors(_request(1, 18, 99))
    asyncio.run(_drained(_dispatcher(reactors, _18=handle)))
    assert codec.decode_response(18, 0, reactors.replies[1][0], 8).error_code == 35


@pytest.mark.parametrize("fault", [ProtocolError("bad"), KeyError("bug")])
def test_a_handler_that_fails_closes_its_connection_and_no_other(fault):
    def fail(context, request):
        raise fault

    async def fail_later(context, request):
        raise fault

    reactors = Reactors(_request(1, 18, 0), _request(2, 60, 1, b"\0\1\0"), _request(3, 18, 0))
    asyncio.run(_drained(_dispatcher(reactors, _18=fail, _60=fail_later)))
    assert reactors.replies == {token: (None, True) for token in (1, 2, 3)}


def test_an_answer_that_memory_lacks_for_closes_its_connection_and_no_other():
    class Short(Reactors):
        def queue_reply(self, token, frame, correlation_id, throttle_ms=0):
            if token in (1, 2):
                raise MemoryError("reply")
            super().queue_reply(token, frame, correlation_id, throttle_ms)

    async def scenario():
        pending = Pending(lambda error: error)
        reactors = Short(_request(1, 18, 0), _request(2, 12, 0, HEARTBEAT), _request(3, 18, 0))
        await _drained(_dispatcher(
            reactors, _18=lambda context, request: messages.ApiVersionsResponse(),
            _12=lambda context, request: pending))
        assert 2 not in reactors.replies
        pending.answer(messages.HeartbeatResponse())
        assert reactors.replies[1] == reactors.replies[2] == (None, True)
        assert reactors.replies[3][0] is not None
    asyncio.run(scenario())


def test_a_result_that_no_way_is_made_for_closes_its_connection_and_no_other():
    def handle(context, request):
        context.cacheable = True
        return Pending(lambda error: error)

    reactors = Reactors(_request(1, 3, 0, bytes(4)), _request(2, 18, 0))
    asyncio.run(_drained(_dispatcher(
        reactors, _3=handle, _18=lambda context, request: messages.ApiVersionsResponse())))
    assert reactors.replies[1] == (None, True) and reactors.replies[2][0] is not None


def test_a_body_that_cannot_be_read_closes_the_connection():
    reactors = Reactors(_request(1, 19, 7, b"\xff\xff\xff"))
    asyncio.run(_drained(_dispatcher(reactors)))
    assert reactors.replies[1] == (None, True)


def test_a_miss_is_granted_from_the_image_and_refused_by_name_and_by_id():
    reactors = Reactors(Miss(5, 3, [
        (b"known", None), (None, TOPIC_ID), (b"gone", None), (None, bytes(16)), (b"\xff", None),
    ], READ))
    broker = Broker()
    asyncio.run(_drained(_dispatcher(reactors, broker)))
    assert reactors.resumed[5] == [
        ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert broker.grants.allowed == [(3, TOPIC_ID)] * 2


def test_an_event_that_fails_keeps_none_that_came_with_it_back():
    class Failing(Broker):
        def install(self, topic):
            raise RuntimeError("planted")

    reactors = Reactors(
        Miss(5, 3, [(b"gone", None), (b"known", None), (b"gone", None)], READ),
        _request(1, 18, 0))
    asyncio.run(_drained(_dispatcher(
        reactors, Failing(),
        _18=lambda context, request: messages.ApiVersionsResponse())))
    assert reactors.resumed == {5: [3, -1, -1]}
    assert 1 in reactors.replies


def test_a_topic_whose_logs_are_still_opening_has_no_leader_yet():
    reactors = Reactors(Miss(5, 0, [(b"known", None)], READ))
    broker = Broker(opened=False)
    asyncio.run(_drained(_dispatcher(reactors, broker)))
    assert reactors.resumed[5] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert broker.grants.allowed == []


def _metadata(token, body=b"\0\0\0\0\0", version=4, host="127.0.0.1"):
    return RequestContext(
        token=token, connection=7, api_key=3, api_version=version, correlation_id=token,
        client_id="client", body=body, local_host=host, local_port=9092, peer_host="127.0.0.1",
        peer_port=50000)


def _counting(asked, cacheable=True):
    def handle(context, request):
        asked.append(context.local_host)
        context.cacheable = cacheable
        return messages.MetadataResponse(cluster_id=f"answer {len(asked)}")
    return handle


def _cluster_ids(reactors):
    return {token: codec.decode_response(3, 4, frame, 8).cluster_id
            for token, (frame, _) in reactors.replies.items()}


def test_a_cacheable_answer_is_given_again_to_whoever_asks_the_same_at_the_same_address():
    asked = []
    reactors = Reactors(_metadata(1), _metadata(2), _metadata(3, host="10.0.0.1"),
                        _metadata(4, body=b"\xff\xff\xff\xff\0"))
    asyncio.run(_drained(_dispatcher(reactors, _3=_counting(asked))))
    assert _cluster_ids(reactors) == {1: "answer 1", 2: "answer 1", 3: "answer 2", 4: "answer 3"}
    assert [codec.decode_response_header(3, 4, frame[4:])[0]
            for frame, _ in reactors.replies.values()] == [1, 2, 3, 4]


def test_an_answer_is_not_given_again_while_a_broker_may_have_died():
    asked, broker = [], Broker()
    broker.departures = SimpleNamespace(any=True)
    reactors = Reactors(_metadata(1), _metadata(2))
    asyncio.run(_drained(_dispatcher(reactors, broker, _3=_counting(asked))))
    assert _cluster_ids(reactors) == {1: "answer 1", 2: "answer 2"}


def test_a_cached_answer_ends_with_the_image_that_it_was_made_from():
    asked, broker = [], Broker()
    reactors = Reactors(_metadata(1))

    async def scenario():
        dispatcher = _dispatcher(reactors, broker, _3=_counting(asked))
        dispatcher.drain()
        broker.image = Image()
        reactors.events = [_metadata(2)]
        dispatcher.drain()

    asyncio.run(scenario())
    assert _cluster_ids(reactors) == {1: "answer 1", 2: "answer 2"}


def test_an_answer_that_is_not_cacheable_is_made_each_time():
    asked = []
    reactors = Reactors(_metadata(1), _metadata(2))
    asyncio.run(_drained(_dispatcher(reactors, _3=_counting(asked, cacheable=False))))
    assert len(asked) == 2


def test_cached_answers_take_bounded_memory():
    cache, image = AnswerCache(), Image()
    assert cache.find(image, (0, b"")) is None
    for number in range(100):
        cache.add(image, (number, b"k"), b"x" * (BYTES_MAX // 10))
        assert sum(len(frame) for frame in cache._frames.values()) <= BYTES_MAX
    cache.add(image, (100, b"k"), b"x" * (BYTES_MAX + 1))
    assert cache.find(image, (100, b"k")) is None


@pytest.mark.parametrize("key, version, beat, answer", [
    (12, 3, messages.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"),
     messages.HeartbeatResponse()),
    (68, 1, messages.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1),
     messages.ConsumerGroupHeartbeatResponse()),
    (76, 1, messages.ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1),
     messages.ShareGroupHeartbeatResponse()),
    (88, 0, messages.StreamsGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1),
     messages.StreamsGroupHeartbeatResponse())])
def test_a_groups_requests_do_not_wait_for_large_questions(key, version, beat, answer):
    order = []
    clock = iter(range(0, 10**12, SLICE_NS // 3))

    def note(context, request):
        order.append(context.api_key)
        return answer if context.api_key == key else messages.MetadataResponse()

    body = codec.encode_request(key, version, beat)
    reactors = Reactors(
        *[_metadata(token) for token in range(1, 9)], _request(9, key, version, body))
    broker = Broker()
    broker.quotas.clock_ns = lambda: next(clock)

    async def scenario():
        dispatcher = _dispatcher(reactors, broker, **{"_3": note, f"_{key}": note})
        dispatcher.drain()
        assert order[0] == key and len(order) < 9
        reactors.events = [_request(10, key, version, body)]
        await asyncio.sleep(0.05)

    asyncio.run(scenario())
    assert len(reactors.replies) == 10 and not reactors.unflushed
    assert order.count(3) == 8 and order.index(key, 1) < 8


def test_groups_requests_are_answered_a_slices_worth_at_a_time():
    """However many came at once: the first do not wait for the last, nor does the loop."""
    clock = iter(range(0, 10**12, SLICE_NS // 4))
    order = []

    def note(context, request):
        order.append(context.token)
        return messages.HeartbeatResponse() if context.api_key == 12 \
            else messages.MetadataResponse()

    beats = range(1, 41)
    reactors = Reactors(
        *[_request(token, 12, 3, HEARTBEAT + b"\xff\xff") for token in beats],
        _metadata(41), _metadata(42), Miss(5, 0, [(b"known", None)], READ))
    broker = Broker()
    broker.quotas.clock_ns = lambda: next(clock)

    async def scenario():
        _dispatcher(reactors, broker, _12=note, _3=note).drain()
        served, answered = list(order), sorted(reactors.replies)
        others = []
        asyncio.get_running_loop().call_soon(lambda: others.append(len(order)))
        await asyncio.sleep(0.05)
        return served, answered, others

    served, answered, others = asyncio.run(scenario())
    # A few of the first, and one of those that may wait.
    assert sorted(served) == answered and 41 in served and 42 not in served
    assert served[:-1] == list(beats)[:len(served) - 1] and len(served) < 8
    assert reactors.resumed == {5: [0]} and others[0] < 40
    assert [token for token in order if token < 41] == list(beats)
    assert sorted(reactors.replies) == [*beats, 41, 42] and not reactors.unflushed


# ---- quotas -------------------------------------------------------------------------------------


def _timed_broker(percentage=1.0):
    """A broker whose clients may use one percent of a thread: 100 ms of it in ten seconds."""
    broker = Broker()
    broker.clock_ns = 0
    broker.quotas = ClientQuotas(Settings({}), lambda: broker.clock_ns)
    broker.quotas.take({((CLIENT_ID, None),): {REQUEST_PERCENTAGE: percentage}})
    return broker


def _throttle_told(frame: bytes) -> int:
    return codec.decode_response(18, 3, frame, 8).throttle_time_ms


HELLO = b"\x02a\x02b\x00"


def test_an_unknown_client_is_installed_and_its_connection_goes_on():
    reactors, broker = Reactors(UnknownClient(9, 0, b"client")), _timed_broker()
    asyncio.run(_drained(_dispatcher(reactors, broker)))
    assert reactors.retried == [9]
    assert broker.quotas.native.count() == (1, 1)


@pytest.mark.parametrize("event", [
    UnknownClient(9, 0, b"client"), Connected(9, 0, "127.0.0.1")], ids=["quota", "guard"])
def test_a_connection_whose_question_finds_no_answer_ends(monkeypatch, event):
    def fails(*_):
        raise MemoryError("planted")

    reactors, broker = Reactors(event), _timed_broker()
    monkeypatch.setattr(broker.quotas, "install", fails)
    dispatcher = _dispatcher(reactors, broker)
    dispatcher._guard = fails
    asyncio.run(_drained(dispatcher))
    assert reactors.closed == [9] and not reactors.retried


def test_the_time_of_a_handler_throttles_its_client():
    broker = _timed_broker()

    def handle(context, request):
        broker.clock_ns += 101_000_000
        return messages.ApiVersionsResponse()

    reactors = Reactors(_request(1, 18, 3, HELLO))
    asyncio.run(_drained(_dispatcher(reactors, broker, _18=handle)))
    # 1 ms too much, which takes 100 ms at one percent.
    assert reactors.throttled[1] == _throttle_told(reactors.replies[1][0]) == 100


def test_what_a_handler_waits_for_does_not_count():
    broker = _timed_broker()

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

    reactors = Reactors(_request(1, 18, 3, HELLO), _request(2, 18, 3, HELLO))
    asyncio.run(_drained(_dispatcher(reactors, broker, _18=handle)))
    assert reactors.throttled[1] == 0 and reactors.throttled[2] > 0


def test_a_timed_handler_may_fail_and_may_catch():
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

    reactors = Reactors(_request(1, 60, 1, b"\0\1\0"), _request(2, 18, 3, HELLO))
    asyncio.run(_drained(_dispatcher(reactors, _timed_broker(), _60=fail, _18=catch)))
    assert reactors.replies[1] == (None, True)
    assert codec.decode_response(18, 3, reactors.replies[2][0], 8).error_code == 7


def test_a_handler_may_throttle_by_itself():
    def handle(context, request):
        context.throttle_ms = 77
        return messages.ApiVersionsResponse()

    reactors = Reactors(_request(1, 18, 3, HELLO))
    asyncio.run(_drained(_dispatcher(reactors, _18=handle)))
    assert reactors.throttled[1] == _throttle_told(reactors.replies[1][0]) == 77


def test_clients_in_versions_without_the_field_are_muted_all_the_same():
    def handle(context, request):
        context.throttle_ms = 77
        return messages.ApiVersionsResponse()

    reactors = Reactors(_request(1, 18, 0))
    asyncio.run(_drained(_dispatcher(reactors, _18=handle)))
    assert reactors.throttled[1] == 77


def test_requests_are_counted_with_their_queueing_and_their_error():
    def fail(context, request):
        raise KeyError("bug")

    async def handle(context, request):
        await asyncio.sleep(0)
        return messages.ApiVersionsResponse(error_code=35)

    for handler, code in ((fail, -1), (handle, 35)):
        reactors = Reactors(_request(1, 18, 0))
        asyncio.run(_drained(_dispatcher(reactors, _18=handler)))
        assert reactors.counted == [(18, 600, code)]


@pytest.mark.parametrize("throttle_ms, error, kept", [(0, 0, 1), (5, 0, 0), (0, 35, 0)])
def test_an_answer_that_is_offered_again_is_kept_unless_it_is_an_error_or_throttled(
        throttle_ms, error, kept):
    table = Repeats()

    def handle(context, request):
        context.repeat, context.throttle_ms = repeat, throttle_ms
        return messages.ApiVersionsResponse(error_code=error)

    repeat = Repeat(table)
    repeat.offer(1 << 60)
    asyncio.run(_drained(_dispatcher(Reactors(_request(1, 18, 0)), _18=handle)))
    assert len(table) == kept


def test_a_slow_request_is_a_line_of_the_request_log(caplog):
    slow = Slow(
        api_key=1, api_version=11, client_id=b"app", peer="10.0.0.7:5041", connection=7,
        correlation_id=42, total_ns=1_204_551_000, local_ns=412_000, remote_ns=0, send_ns=129_000,
        request_bytes=90, response_bytes=56, left_out=3)
    with caplog.at_level("WARNING", "pylog.request"):
        _dispatcher(Reactors(slow)).drain()
    [line] = caplog.records
    assert (line.api, line.client, line.total_ms, line.left_out) == ("Fetch", "app", "1204.551", 3)


def test_producer_gets_an_error_if_its_partitions_cannot_be_verified(caplog):
    async def verdicts(asked):
        raise RuntimeError("broken")

    resumed = {}
    asked = SimpleNamespace(token=7, partitions=[(b"t", 0), (b"t", 1)])
    dispatcher = SimpleNamespace(_access=None, _verification=SimpleNamespace(verdicts=verdicts),
                                 _reactors=SimpleNamespace(resume=resumed.__setitem__))
    asyncio.run(Dispatcher._verify(dispatcher, asked))
    assert resumed == {7: [ErrorCode.UNKNOWN_SERVER_ERROR] * 2}
    assert "cannot verify the partitions of a transaction" in caplog.text
