"""A simulated runtime: coordinators without logs.

Owns: nothing.
"""

from types import SimpleNamespace

from pylog.config.settings import Settings
from pylog.protocol.errors import ErrorCode


class Runtime:
    """calls: requests to the runtime, in order. errors: of the next steps, in order; then none.
    results: likewise, return values of steps. epoch: leader epoch, -1 if it does not lead.
    """

    def __init__(self, coordination, node):
        self.coordination, self.node, self.calls = coordination, node, []
        self.errors, self.results, self.epoch, self.served = [], [], 4, []
        self.records_written = 0
        self.topic = SimpleNamespace(current=None, spec=coordination.topic, ensure=self._ensure)

    async def _ensure(self):
        self.calls.append(("ensure",))
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def start(self):
        self.calls.append(("start",))

    async def stop(self):
        self.calls.append(("stop",))

    def topic_changed(self, topic):
        self.calls.append(("topic_changed", topic))

    def topic_deleted(self):
        self.calls.append(("topic_deleted",))

    def step_each(self, step):
        self.calls.append(("step_each", step))

    def run_in_slices(self, key, pending, steps, *arguments):
        return self.run(key, pending, steps, *arguments)

    def run_as_producer(self, index, pending, fault, producer_id, step, *arguments):
        self.calls.append(("as producer", index, fault, producer_id))
        return self.run(index, pending, step, *arguments)

    def producer_at(self, index, producer_id):
        return (index, producer_id, -1, -1), ErrorCode.NONE

    def leader_of(self, key):
        return 1

    def query(self, key, step, *arguments):
        return None, ErrorCode.NONE

    def shards(self):
        return self.served, False

    def epoch_of(self, key):
        return self.epoch

    def run(self, key, pending, step, *arguments):
        self.calls.append(("run", key, step, *arguments))
        error = self.errors.pop(0) if self.errors else ErrorCode.NONE
        if error != ErrorCode.NONE:
            pending.refuse(error)
        else:
            pending.respond(self.results.pop(0) if self.results else ErrorCode.NONE)
        return pending


def node(**settings):
    """Return the broker's interface for a coordinator. settings: with underscores for dots."""
    return SimpleNamespace(
        settings=Settings({name.replace("_", "."): value for name, value in settings.items()}),
        node_id=1, now_ms=lambda: 5_000,
        image=SimpleNamespace(features={}, topics={}, topics_by_id={},
                              partition=lambda topic, index: None))
