"""A broker for handlers: the real controller on a metadata log in memory."""

import asyncio
import random
import types
from types import SimpleNamespace

from pylog import api
from pylog.config import Settings
from pylog.metadata.image import Image
from pylog.metadata.service import Controller
from pylog.protocol import codec
from pylog.protocol.answers import Answer
from pylog.quotas import ClientQuotas
from tests.metadata.memory import MemoryLog, NoLogs

ENDPOINTS = [("PLAINTEXT", "registered.example", 9092, 0)]


class Broker:
    """What a handler sees of the broker."""

    def __init__(self, texts=None, logs=None):
        self.settings = Settings(texts or {})
        self.logs = logs or NoLogs()
        self.node_id = 1
        self.cluster_id = "abcdefghijklmnopqrstuv"
        self.controller = Controller(
            MemoryLog(), self.logs, self.settings, random.Random(3), self.node_id)
        self.changed = []
        self.clock_ns = 0
        self.quotas = ClientQuotas(self.settings, lambda: self.clock_ns)
        self.settings_changes = 0
        self.network = SimpleNamespace(
            listener_name=lambda number: self.settings.listeners[number].name)

    async def start(self):
        self.controller.take_office(Image(), clean=True)
        self.controller.register(ENDPOINTS, [bytes(15) + b"\x05"])
        return self

    async def settings_changed(self):
        self.settings_changes += 1

    @staticmethod
    def now_ms():
        return 1_700_000_000_000

    @property
    def image(self):
        return self.controller.image

    def topic_changed(self, name):
        self.changed.append(name)

    async def ask(self, key, version, request, **fields):
        """The handler's answer after it went through the codec, both ways."""
        request = codec.decode_request(key, version, codec.encode_request(key, version, request))
        context = SimpleNamespace(
            api_version=version, client_id="c", listener=0, local_host="dialled.example",
            local_port=1234, peer_host="p", principal=0, created=0, **fields)
        answer = api.HANDLERS[key](self, context, request)
        answer = await answered(key, version, answer)
        return codec.decode_response(key, version, codec.encode_response(key, version, answer))


async def answered(key, version, found):
    """The whole answer from what a handler gave."""
    if isinstance(found, types.CoroutineType):
        return await found
    if not isinstance(found, types.GeneratorType | types.AsyncGeneratorType):
        return found
    answer = Answer(key, version, 1 << 30)
    parts = found if isinstance(found, types.GeneratorType) else [part async for part in found]
    for part in parts:
        if part is not None:
            answer.add(part)
    return answer.finished()


def with_broker(scenario, texts=None, logs=None):
    """Runs `await scenario(broker)` to its end."""
    async def run():
        return await scenario(await Broker(texts, logs).start())
    return asyncio.run(run())
