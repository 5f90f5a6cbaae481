"""The transaction coordinator on real logs: effects of topic changes."""

import asyncio
from types import SimpleNamespace

from pylog.coordinator.transactions.service import TOPIC, TransactionCoordinator
from pylog.coordinator.transactions.shard import Transactions
from tests.coordinator.runtime.test_runtime import KEYS, NOT_COORDINATOR, Node


def test_coordinator_rejects_requests_after_its_topic_is_deleted(tmp_path):
    async def scenario():
        node = Node(tmp_path, [TOPIC])
        service = TransactionCoordinator(node, None)
        service.start()
        try:
            await node.until(lambda: [len(service.shards()[0]), service.shards()[1]] == [2, False])
            service.topic_deleted("t")
            assert [service.query(key, Transactions.open_tokens)[1] for key in KEYS] == [0, 0]
            node.image = SimpleNamespace(topics={})
            service.topic_deleted(TOPIC)
            assert service.shards() == ([], False)
            assert [service.query(key, Transactions.open_tokens)[1] for key in KEYS] == [
                NOT_COORDINATOR] * 2
        finally:
            await service.stop()
    asyncio.run(scenario())
