"""Reactors and a broker without sockets, and requests for them."""

import asyncio

from pylog._native.server.reactor import RequestContext
from pylog.config import Settings
from pylog.config.client_quotas import CLIENT_ID, REQUEST_PERCENTAGE, ClientQuotas
from pylog.eventloop.end_of_tick import EndOfTick
from pylog.metadata.image.image import Image, Topic
from pylog.protocol import api
from pylog.server.request_queue import RequestQueue
from pylog.server.services import Services


TOPIC_ID = bytes(range(16))


HEARTBEAT = b"\0\1g" + bytes(4) + b"\0\1m"  # of generation 0


class Reactors:
    """Fake reactors: return given events, and record responses."""

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


def request(token, key, version, body=b""):
    return RequestContext(
        token=token, connection=7, api_key=key, api_version=version, correlation_id=42,
        client_id="client", body=body, local_host="127.0.0.1", local_port=9092,
        peer_host="127.0.0.1", peer_port=50000, began_ns=400)


def services(reactors, broker=None, end_of_tick=None, **handlers):
    """Return the services of a broker. handlers: by API key after an underscore."""
    broker = broker or Broker()
    table = {key: lambda *_: None for key in api.SERVED if key not in (api.PRODUCE, api.FETCH)}
    table.update({int(key[1:]): handler for key, handler in handlers.items()})
    return Services(
        reactors, table, metadata=broker, settings=broker.settings, quotas=broker.quotas,
        grants=broker.grants, install=broker.install, verification=None,
        end_of_tick=end_of_tick or EndOfTick())


def request_queue(*args, **kwargs):
    return RequestQueue(services(*args, **kwargs))


async def drained(queue):
    queue.drain()
    await asyncio.sleep(0.01)


def metadata_request(token, body=b"\0\0\0\0\0", version=4, host="127.0.0.1"):
    return RequestContext(
        token=token, connection=7, api_key=3, api_version=version, correlation_id=token,
        client_id="client", body=body, local_host=host, local_port=9092, peer_host="127.0.0.1",
        peer_port=50000)


def timed_broker(percentage=1.0):
    """A broker whose clients may use one percent of a thread: 100 ms of it in ten seconds."""
    broker = Broker()
    broker.clock_ns = 0
    broker.quotas = ClientQuotas(Settings({}), lambda: broker.clock_ns)
    broker.quotas.take({((CLIENT_ID, None),): {REQUEST_PERCENTAGE: percentage}})
    return broker
