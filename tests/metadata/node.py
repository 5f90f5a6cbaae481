"""A node on a directory: log manager and metadata service composed as in the broker."""

import asyncio
import errno
import os
import time

from pylog._native.log.io_pool import IoPool
from pylog.config import Settings
from pylog.log.manager import LogManager
from pylog.metadata.service import MetadataService
from pylog.protocol import messages
from tests.metadata.memory import published, publisher_of

NEW = messages.CreateTopicsRequest


class Node:
    """Starts when created; `stop` is a clean stop, `crash` keeps only flushed data."""

    def __init__(self, path, **texts):
        self.settings = Settings({"log.dirs": str(path), **{
            name.replace("_", "."): value for name, value in texts.items()}})
        self.node_id = self.settings["node.id"]
        self.pool = IoPool(2)
        self.logs = LogManager(self.settings, self.pool, self.now_ms)
        self.service = MetadataService(self.settings, self.logs, self.node_id, self.now_ms)
        try:
            self.logs.open()
            self.service.open()
            self.service.register([("PLAINTEXT", "localhost", 9092)])
        except BaseException:
            self.logs.close()
            raise

    @staticmethod
    def now_ms():
        return time.time_ns() // 1_000_000

    @property
    def image(self):
        return self.service.image

    def decide(self, coroutine):
        """Return the result of a controller's coroutine, once it is in force."""
        publisher = publisher_of(self.service, self.logs, node_id=self.node_id)
        return asyncio.run(published(publisher, coroutine))

    def create(self, *names, partitions=1, configs=None):
        """Create topics; return their ids."""
        results = self.decide(self.service.controller.create_topics(NEW(topics=[
            NEW.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=[
                NEW.CreatableTopicConfig(name=key, value=value)
                for key, value in (configs or {}).items()])
            for name in names])))
        assert [result.error for result in results] == [0] * len(names), results
        return [result.topic_id for result in results]

    def delete(self, *names):
        results = self.decide(self.service.controller.delete_topics(
            [(name, bytes(16)) for name in names]))
        assert [result.error for result in results] == [0] * len(names), results

    def producer_id(self):
        return self.decide(self.service.controller.next_producer_id())

    def stop(self):
        self.service.close()
        self.logs.close()

    def crash(self):
        """Release everything as a kill would: nothing is flushed, nothing is marked."""
        for _, _, _, one in self.logs._topics.all():
            one.release()
        self.service._log._log.release()
        self.service.store.close()
        self.logs.close()


def refuse_renames(patch, ending: str) -> None:
    """Let renames to names with this ending fail with ENOSPC."""
    rename = os.rename

    def short(name, goal):
        if str(goal).endswith(ending):
            raise OSError(errno.ENOSPC, "planted")
        rename(name, goal)

    patch.setattr(os, "rename", short)
