"""A fetcher with simulated brokers.

Owns: nothing.
Invariants: a fetch stays in `requests` until the test responds to it; there is no socket and only a
  virtual clock.
"""

import asyncio
from types import SimpleNamespace

from pylog._native.records import batch
from pylog.client.config.settings import CONSUMER, Settings
from pylog.client.consumer import fetcher
from pylog.client.consumer.fetch_buffer import FetchBuffer
from pylog.client.consumer.fetcher import Fetcher
from pylog.client.consumer.subscription_state import Subscription
from pylog.client.network import cluster
from pylog.client.network.connection import BufferPool, Frame
from pylog.protocol import api, codec, messages
from tests.client.played_consumer import picture

RESPONSE = messages.FetchResponse


class Pool(BufferPool):
    """Counts the returned buffers."""

    given_back = 0

    def give_back(self, buffer):
        self.given_back += 1


class World:
    """One or two brokers; `requests` wait for the test's response, the newest first."""

    def __init__(self, clock, **settings):
        self.clock, self.requests, self.version, self.refreshes = clock, [], 16, 0
        self.arrivals, self.learnt, self.pool, self.connections = 0, [], Pool(), []
        self.settings = Settings(CONSUMER, **{
            "bootstrap_servers": "x:1", "retry_backoff_ms": 100, "retry_backoff_max_ms": 100,
            **settings})
        self.metadata = picture(epoch=5)
        self.subscription = Subscription(True)
        self.queue = FetchBuffer(1000, False, True)
        self.fetcher = Fetcher(self, self.subscription, self.queue, self._arrived)

    # The parts of Cluster and Connection that the fetcher uses.

    def backoff(self):
        return cluster.Backoff(self.settings.seconds("retry.backoff.ms"),
                               self.settings.seconds("retry.backoff.max.ms"))

    async def connection(self, node, channel):
        self.connections.append((node, channel))
        return SimpleNamespace(version=lambda kind: self.version,
                               send=lambda request, **more: self._send(node, request, **more))

    def request_refresh(self):
        self.refreshes += 1

    def learn_leader(self, *news):
        self.learnt.append(news)

    def _send(self, node, request, version, raw, timeout_s):
        assert raw
        self.requests.append(SimpleNamespace(
            node=node, version=version, timeout_s=timeout_s, it=request,
            at_s=round(self.clock.now_s - 1000, 6),
            future=asyncio.get_running_loop().create_future()))
        return self.requests[-1].future

    def _arrived(self):
        self.arrivals += 1

    # Used by tests.

    def assigned(self, *partitions):
        """Assign partitions at offset 7 and return their states."""
        made = self.subscription.assign(partitions)
        for state in made:
            state.move_to(7)
        return made

    async def fetching(self):
        self.fetcher.poke()
        return await self.soon()

    async def soon(self):
        """Run all pending work and return the newest request."""
        for _ in range(10):
            await asyncio.sleep(0)
        return self.requests[-1] if self.requests else None

    async def answered(self, *rows, session=0, code=0):
        """Respond to the newest request and return the next one."""
        asked = self.requests[-1]
        topics = [RESPONSE.FetchableTopicResponse(
            topic=tp.topic, topic_id=tp.topic.encode() * 16, partitions=[row]) for tp, row in rows]
        body = codec.encode_response(api.FETCH, asked.version, RESPONSE(
            session_id=session, error_code=code, responses=topics))
        frame = Frame(bytearray(body), len(body), self.pool)
        frame.version = asked.version
        asked.future.set_result(frame)
        return await self.soon()


def row(tp, records=b"", code=0, leader=None, **more):
    made = RESPONSE.PartitionData(partition_index=tp.partition, error_code=int(code),
                                  records=records, **more)
    if leader:
        made.current_leader.leader_id, made.current_leader.leader_epoch = leader
    return tp, made


def named(request):
    """Return (topic, partition, offset) of each partition in a request."""
    return [(topic.topic, part.partition, part.fetch_offset)
            for topic in request.it.topics for part in topic.partitions]


def forgotten(request):
    return [(topic.topic, topic.partitions) for topic in request.it.forgotten_topics_data]


def records(base, count=3):
    return batch.build([(None, b"x", 0, [])] * count, base_offset=base)


def fetch_player(virtual_time):
    """fetch(steps, **settings) runs steps(world) on an event loop with a virtual clock."""
    clock = virtual_time(fetcher)

    def run(steps, **settings):
        async def main():
            world = World(clock, **settings)
            try:
                await steps(world)
            finally:
                await world.fetcher.close()
            assert not world.fetcher.nodes

        clock.run(main())

    return run
