"""Committed offsets in each version of the request, with a simulated coordinator."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.consumer import offset_requests
from pylog.client.consumer.offset_requests import Identity
from pylog.client.types import OffsetAndMetadata
from pylog.protocol import codec, messages
from tests.client.played_consumer import ONE, OTHER, TWO, picture


class Coordinator:
    """A connection to a coordinator with versions up to `newest`; it responds to encoded requests.
    """

    def __init__(self, newest):
        self.newest, self.stable = newest, None
        self.cluster = SimpleNamespace(
            metadata=picture(), coordinator=self._itself, connection=self._itself)

    async def _itself(self, *_):
        return self

    def version(self, cls, most=None):
        return self.newest if most is None else min(self.newest, most)

    async def send(self, request, version, timeout_s):
        program = codec.program("OffsetFetchRequest", version)
        asked = program.decode(program.encode(request))
        self.stable = asked.require_stable
        answer = messages.OffsetFetchResponse
        if version < offset_requests.GROUPS:
            assert asked.group_id == "g"
            return answer(topics=[
                answer.OffsetFetchResponseTopic(name=topic.name, partitions=[
                    answer.OffsetFetchResponsePartition(
                        partition_index=number, committed_offset=5 + number)
                    for number in topic.partition_indexes]) for topic in asked.topics])
        return answer(groups=[
            answer.OffsetFetchResponseGroup(group_id=group.group_id, topics=[
                answer.OffsetFetchResponseTopics(
                    name=topic.name, topic_id=topic.topic_id, partitions=[
                        answer.OffsetFetchResponsePartitions(
                            partition_index=number, committed_offset=5 + number)
                        for number in topic.partition_indexes]) for topic in group.topics])
            for group in asked.groups])


@pytest.mark.parametrize("version", range(1, 11))
def test_offsets_are_fetched_in_every_version_that_a_coordinator_may_know(version):
    coordinator = Coordinator(version)
    found = asyncio.run(offset_requests.committed(
        coordinator.cluster, Identity("g"), [ONE, TWO, OTHER]))
    assert found == {ONE: OffsetAndMetadata(5), TWO: OffsetAndMetadata(6),
                     OTHER: OffsetAndMetadata(5)}
    # From version 7 on, the response includes open transactions (KIP-447).
    assert coordinator.stable == (version >= 7)
