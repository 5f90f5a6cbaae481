"""A broker for handlers: the real controller on a metadata log in memory."""

import asyncio
import random
import types
from types import SimpleNamespace

from pylog._native.server.reactor import RequestContext
from pylog.api import registry
from pylog.api.services import ApiServices
from pylog.config import Settings
from pylog.api.security.delegation_tokens import Asker
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.metadata.controller.active_controller import ActiveController
from pylog.metadata.image.image import Image
from pylog.metadata.image.loader import Tail
from pylog.protocol import codec
from pylog.protocol.answers import ResponseWriter
from pylog.security import principals
from pylog.config.client_quotas import ClientQuotas
from tests.metadata.memory import (
    Followers,
    MemoryLog,
    NoLogs,
    metadata_of,
    published,
    publisher_of,
)

ENDPOINTS = [("PLAINTEXT", "registered.example", 9092, 0)]


class Broker:
    """The broker's interface for handlers."""

    departures = voters = None
    standbys: list = []
    replicates = False

    def __init__(self, texts=None, logs=None):
        self.settings = Settings(texts or {})
        self.logs = logs or NoLogs()
        self.node_id = 1
        self.cluster_id = "abcdefghijklmnopqrstuv"
        self.tail = Tail(Image())
        self.controller = ActiveController(
            MemoryLog(), self.tail, self.logs, self.settings, random.Random(3), self.node_id)
        self.followers = Followers()
        self.clock_ns = 0
        self.quotas = ClientQuotas(self.settings, lambda: self.clock_ns)
        self.publisher = publisher_of(
            metadata_of(self.tail, self.settings), self.logs, self.followers, self.quotas)
        self.network = SimpleNamespace(
            listener_name=lambda number: self.settings.listeners[number].name)

    def start(self):
        self.controller.become_active(clean=True)
        self.controller.register(ENDPOINTS, [bytes(15) + b"\x05"])
        self.tail.begin()
        return self

    async def standby_features(self):
        return self.standbys

    @staticmethod
    def now_ms():
        return 1_700_000_000_000

    @property
    def image(self):
        return self.tail.published

    def handlers(self):
        """Return the handlers of every API, with this broker's current state."""
        return registry.handlers(ApiServices(
            settings=self.settings, metadata=self, controller=self.controller,
            logs=self.logs, groups=getattr(self, "groups", None),
            transactions=getattr(self, "transactions", None),
            verification=getattr(self, "verification", None),
            markers=getattr(self, "markers", None), client_quotas=self.quotas,
            listener_name=self.network.listener_name, registered=self.publisher.registered,
            node_id=self.node_id, now_ms=self.now_ms, sharing=lambda: self.sharing,
            watch=lambda connection: None,
            asker=lambda context: Asker(principals.ANONYMOUS, "PLAINTEXT")))

    async def ask(self, key, version, request, **fields):
        """Return the handler's response after encoding and decoding."""
        request = codec.decode_request(key, version, codec.encode_request(key, version, request))
        context = RequestContext(**{
            "token": 1, "api_key": key, "api_version": version, "client_id": "c",
            "local_host": "dialled.example", "local_port": 1234, "peer_host": "p", **fields})
        answer = self.handlers()[key](context, request)
        answer = await answered(key, version, answer)
        return codec.decode_response(key, version, codec.encode_response(key, version, answer))


async def answered(key, version, found):
    """Return the complete response from a handler's result."""
    if isinstance(found, types.CoroutineType | DeferredResponse):
        return await found
    if not isinstance(found, types.GeneratorType | types.AsyncGeneratorType):
        return found
    answer = ResponseWriter(key, version, 1 << 30)
    parts = found if isinstance(found, types.GeneratorType) else [part async for part in found]
    for part in parts:
        if part is not None:
            answer.add(part)
    return answer.finished()


def with_broker(scenario, texts=None, logs=None):
    """Run `await scenario(broker)`."""
    async def run():
        broker = Broker(texts, logs).start()
        return await published(broker.publisher, scenario(broker))
    return asyncio.run(run())
