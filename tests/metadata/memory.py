"""A metadata log in memory, and its followers, for tests of code above the log interface."""

import asyncio
from types import SimpleNamespace

from pylog.metadata.log.metadata_log import Conflict, MetadataBatch, MetadataLog
from pylog.metadata.service import local_roles
from pylog.server.metadata_publisher import Publisher


class MemoryLog(MetadataLog):
    """Implements the interface's guarantees; `batches` is the log."""

    def __init__(self):
        self.batches = []
        self.end = 0
        self.epoch = 0

    def append(self, records, epoch, expected_end):
        if epoch != self.epoch or expected_end != self.end:
            raise Conflict((epoch, self.epoch, expected_end, self.end))
        self.end += len(records)
        self.batches.append(MetadataBatch(self.end - 1, epoch, list(records)))
        return self.end - 1

    def read(self, offset):
        yield from (batch for batch in self.batches if batch.last_offset >= offset)

    def elect(self, node_id):
        self.epoch += 1
        return self.epoch

    def snapshot(self, records, offset, epoch):
        return None

    def trim(self, offset):
        return None


class NoLogs:
    """Replaces the log manager: records its calls."""

    def __init__(self):
        self.topics = {}
        self.reconfigured = 0

    offline = ()

    @staticmethod
    def is_offline(name, index):
        return True

    @staticmethod
    def discard_branch(topic_id):
        return None

    def create(self, name, topic_id, roles, overrides):
        self.topics[name] = (topic_id, roles, overrides)

    def delete(self, name):
        del self.topics[name]

    def configure(self, name, overrides):
        topic_id, roles, _ = self.topics[name]
        self.topics[name] = (topic_id, roles, overrides)

    def reconfigure(self):
        self.reconfigured += 1

    def assume(self, name, roles, added=()):
        topic_id, _, overrides = self.topics[name]
        self.topics[name] = (topic_id, roles, overrides)


class Followers:
    """Replaces grants and groups: records revoked grants and deleted topics."""

    def __init__(self):
        self.void = []
        self.deleted = []
        self.changed = []

    def remove(self, name):
        self.void.append(name)

    def topic_deleted(self, name):
        self.deleted.append(name)

    def topic_changed(self, topic):
        self.changed.append((topic.name, [state.leader for state in topic.partitions]))


class Unlimited:
    """Replaces client quotas."""

    def __init__(self):
        self.taken = None

    def unresolved(self):
        return []

    def take(self, quotas):
        self.taken = quotas


def metadata_of(tail, settings=None, node_id=1):
    """The part of a MetadataService that a publisher needs, over a tail only."""
    def take_broker_configs(image):
        if settings is not None:
            settings.set_dynamic(*(image.configs.get((4, name), {}) for name in ("", str(node_id))))
    return SimpleNamespace(tail=tail, is_image_due=False, take_broker_configs=take_broker_configs,
                           local_roles=lambda topic: local_roles(topic, node_id))


async def published(publisher, coroutine):
    """Return the coroutine's result, while a publisher applies its committed records."""
    loop = asyncio.get_running_loop()
    publishing, asking = loop.create_task(publisher.run()), loop.create_task(coroutine)
    try:
        await asyncio.wait((publishing, asking), return_when=asyncio.FIRST_COMPLETED)
        # A test that simulates a kill ends the publisher.
        return publishing.result() if publishing.done() else asking.result()
    finally:
        asking.cancel()
        await publisher.stop(publishing)


def publisher_of(metadata, logs, followers=None, quotas=None, node_id=1):
    """Return a Publisher on replacements."""
    followers = followers or Followers()
    return Publisher(node_id, metadata, logs, followers, quotas or Unlimited(), (followers,),
                     lambda: None)
