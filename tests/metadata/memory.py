"""A metadata log in memory, for tests of what stands on the interface."""

from pylog.metadata.log import Conflict, MetadataBatch, MetadataLog


class MemoryLog(MetadataLog):
    """Keeps what the interface promises; `batches` is the log."""

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

    def wait(self, offset):
        assert offset < self.end, (offset, self.end)

    def session(self, node_id):
        return None

    def elect(self, node_id):
        self.epoch += 1
        return self.epoch

    def snapshot(self, records, offset, epoch):
        return None

    def trim(self, offset):
        return None


class NoLogs:
    """Stands in for the log manager: remembers what it was told."""

    def __init__(self):
        self.topics = {}
        self.reconfigured = 0

    def create(self, name, topic_id, roles, overrides):
        self.topics[name] = (topic_id, roles, overrides)

    def delete(self, name):
        del self.topics[name]

    def configure(self, name, overrides):
        topic_id, roles, _ = self.topics[name]
        self.topics[name] = (topic_id, roles, overrides)

    def reconfigure(self):
        self.reconfigured += 1

    def assume(self, name, roles):
        topic_id, _, overrides = self.topics[name]
        self.topics[name] = (topic_id, roles, overrides)
