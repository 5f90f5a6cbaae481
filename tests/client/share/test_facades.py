"""The blocking and the asyncio share consumer: calls to the core, and acknowledgement callbacks,
which run inside a call.
"""

import asyncio
from collections import deque
from types import SimpleNamespace

import pytest

from pylog.client.share import aio_share_consumer, share_consumer
from pylog.client.errors import IllegalStateError
from pylog.client.background_loop import SingleUser
from pylog.client.types import TopicPartition
from pylog.client.config.settings import SHARE_CONSUMER, Settings
from pylog.client.share.record_reader import ShareRecords

T = TopicPartition("t", 0)


class Core:
    """A Sharing. Each call ends with the result of an acknowledgement."""

    def __init__(self):
        self.settings = Settings(SHARE_CONSUMER, {"bootstrap.servers": "b:1", "group.id": "g"})
        self.heard, self.outcomes, self.woken, self.closed = [], deque(), False, True
        self.polling, self.interceptors, self.undelivered = False, [], ()
        self.subscription = SimpleNamespace(topics=["t"], states={T: None})

    def _call(name, result=None):
        async def call(self, *given):
            self.heard.append((name, *given))
            self.outcomes.append(SimpleNamespace(
                tp=T, batches=[SimpleNamespace(first=len(self.heard), last=9)], error=name))
            return result
        return call

    subscribe, unsubscribe, close = _call("subscribe"), _call("unsubscribe"), _call("close")
    poll, commit = _call("poll", []), _call("commit", {T: None})

    def raise_failure(self):
        """Return None."""

    def notify(self):
        self.heard.append(("notify", self.woken))


class Face:
    """Create either consumer; its calls are made without a running loop."""

    def __init__(self, kind):
        self.core, self.told, self.kind = Core(), [], kind
        if kind == "plain":
            made = share_consumer.ShareConsumer.__new__(share_consumer.ShareConsumer)
            made._runner = SimpleNamespace(run=asyncio.run, close_client=asyncio.run)
            made._core = self.core
            made._user = SingleUser("share consumer")
            made._driver = SimpleNamespace(post=lambda call, *given: call(*given))
            made._records = ShareRecords(self.core)
        else:
            made = aio_share_consumer.ShareConsumer.__new__(aio_share_consumer.ShareConsumer)
            made._started = ShareRecords(self.core)
        self.made = made
        made.set_acknowledgement_commit_callback(lambda *given: self.told.append(given))

    def call(self, name, *given):
        found = getattr(self.made, name)(*given)
        return asyncio.run(found) if asyncio.iscoroutine(found) else found


@pytest.fixture(params=["plain", "aio"])
def face(request):
    return Face(request.param)


@pytest.mark.parametrize(("name", "given", "asked", "result"), [
    ("unsubscribe", (), ("unsubscribe",), None), ("poll", (2.0,), ("poll", 2.0), []),
    ("poll", (), ("poll", 0.0), []), ("commit", (3.0,), ("commit", 3.0), {T: None}),
    ("commit", (), ("commit", None), {T: None}), ("close", (4.0,), ("close", 4.0), None),
    ("close", (), ("close", share_consumer.CLOSE_S), None)])
def test_call_reports_acknowledgement_results_before_it_returns(
        face, name, given, asked, result):
    assert face.call(name, *given) == result
    assert face.core.heard == [asked]
    assert face.told == [(T, [(1, 9)], asked[0])] and not face.core.outcomes


def test_columns_are_polled_as_records_are(face):
    batch = face.call("poll_arrow", 1.0, ["offset", "delivery_count"])
    assert batch.num_rows == 0 and batch.schema.names == ["offset", "delivery_count"]
    assert face.core.heard == [("poll", 1.0)] and len(face.told) == 1


def test_without_a_callback_outcomes_are_dropped(face):
    face.made.set_acknowledgement_commit_callback(None)
    face.call("poll")
    assert not face.core.outcomes


def test_a_subscription_is_the_cores(face):
    face.call("subscribe", ["t"])
    assert face.core.heard == [("subscribe", ["t"])]
    assert face.made.subscription() == {"t"} and face.made.assignment() == [T]


def test_wakeup_is_recorded_before_the_poll_wakes(face):
    face.call("wakeup")
    assert face.core.heard == [("notify", True)]


def test_an_asynchronous_consumer_is_started_before_it_is_used_and_may_be_closed_before_that():
    consumer = aio_share_consumer.ShareConsumer(bootstrap_servers="b:1", group_id="g")
    asyncio.run(consumer.close())
    for call in (consumer.subscription, consumer.assignment, consumer.wakeup):
        with pytest.raises(IllegalStateError, match="not started"):
            call()


def test_an_asynchronous_consumer_is_started_once(monkeypatch):
    made = []

    class Sharing:
        def __init__(self, settings):
            made.append(settings)

        async def start(self):
            return Core()

    monkeypatch.setattr(aio_share_consumer, "Sharing", Sharing)

    async def work():
        async with aio_share_consumer.ShareConsumer(
                bootstrap_servers="b:1", group_id="g") as consumer:
            core = consumer._records.core
            assert await consumer.start() is consumer and consumer._records.core is core
        assert core.heard == [("close", share_consumer.CLOSE_S)]

    asyncio.run(work())
    assert len(made) == 1
