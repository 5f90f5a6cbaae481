"""The broker and the operations that tests can request, on the broker's event loop.

Owns: the pylog.broker.Broker under test and its clocks.
Invariants: every call runs on the broker's event loop; arguments and results can be sent between
  processes; when advance() returns, everything that became due is done.
"""

import asyncio
import errno

from pylog._native.records import batch
from pylog.broker import Broker
from pylog.config import Settings
from pylog.coordinator.groups import describe as group_describe
from pylog.coordinator.groups.classic import protocol as classic_protocol
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.log.checkpoint_files import remove_clean_mark
from pylog.log.errors import StartError
from pylog.metadata.image.image import RESOURCE_TOPIC, is_internal
from pylog.protocol import messages
from pylog.replication.lifecycle import Stage
from pylog.testing import links
from pylog.testing.clock import MovedClock
from pylog.testing.disturbances import Disturbances
from pylog.testing.errors import BrokerFailed, Refused
from pylog.testing.links import Rules
from pylog.testing.records import Record

DRAIN_MS_MAX = 100
READ_BYTES_MAX = 4 << 20
READ_RECORDS_MAX = 1_000_000
NEW_TOPICS = messages.CreateTopicsRequest
# Avoid waits and costs that no test needs. The test's settings take precedence.
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "log.initial.task.delay.ms": "0",
    "log.retention.check.interval.ms": "1000",
}


class Node:
    """One broker. texts: its settings, including log.dirs."""

    def __init__(self, texts: dict):
        self.clock = MovedClock()
        self._texts = {**SETTINGS, **texts}
        self._running: Broker | None = None
        self._disturbances: Disturbances  # Set by begin().
        self._spent: str | None = None  # Why it cannot be reused by another test.
        self._at_first: list | None = None  # State other than topics, at the start.

    @property
    def _broker(self) -> Broker:
        """Return the broker. Only valid between begin() and end()."""
        assert self._running is not None
        return self._running

    # ---- life -----------------------------------------------------------------------------------

    async def begin(self) -> int:
        """Start the broker; return the port of its first listener. Raises BrokerFailed."""
        broker = Broker(Settings(self._texts), self.clock.wall_ms)
        try:
            await broker.begin()
            await broker.joined()
        except (StartError, OSError) as error:
            broker.logs.close()
            raise BrokerFailed(str(error)) from None
        self._running = broker
        # A controller-only node has no client listener.
        port = (broker.network.addresses or broker.network.controller_addresses)[0][2]
        self._disturbances = Disturbances(broker, port, "advertised.listeners" in self._texts)
        await self._disturbances.restore_after_kill()
        self._at_first = self._state()
        return self._disturbances.port

    async def end(self) -> None:
        broker, self._running = self._running, None
        if broker is not None:
            await self._disturbances.take_relay_away()
            await broker.end(DRAIN_MS_MAX)
            # Break the reference cycles: otherwise threads, descriptors and logs would stay until
            # the next garbage collection.
            for part in (broker.groups, broker):
                vars(part).clear()

    async def die(self) -> None:
        """Stop as if killed: nothing is handed over, and the clean shutdown marks are removed."""
        broker = self._broker
        paths = [path for _, path in broker.logs.disks.usable()]
        if broker.membership is not None:
            broker.membership.lifecycle.stage = Stage.STOPPED
        await self.end()
        for path in paths:
            remove_clean_mark(path)

    def _state(self):
        image = self._broker.image
        return [{key: value for key, value in image.configs.items() if key[0] != RESOURCE_TOPIC},
                image.features, *[getattr(image, name) for name in image.__slots__
                                  if name not in _OF_TOPICS]]

    async def reset(self) -> str | None:
        """Restore the initial state for another test; return the reason if that is impossible."""
        broker = self._running
        if self._spent is None and broker is not None and self._state() != self._at_first:
            self._spent = "settings were changed"
        if self._spent is not None or broker is None:
            return self._spent or "it was stopped"
        names = [name for name in broker.image.topics if not is_internal(name)]
        if names:
            await self.delete_topics(names)
        for shard in broker.groups.shards()[0]:
            deleted = [broker.groups.run_in_slices(
                row.group_id, DeferredResponse(lambda code: code), group_describe.delete,
                row.group_id)
                for row in list(group_describe.listed(shard.state_machine, (), ()))]
            for pending in deleted:
                await pending
            if any(group.members for group in shard.state_machine.groups.values()):
                return "a consumer was left behind"
        return None

    async def addresses(self) -> list:
        """Return [(listener name, host, port)]."""
        return self._broker.network.addresses

    # ---- time -----------------------------------------------------------------------------------

    async def advance(self, ms: int, timers: bool) -> None:
        """Move the clocks and do everything that became due."""
        if ms:
            self._spent = "its clock was moved"
        self.clock.move(ms, timers)
        self._broker.network.reactors.set_wall_ahead(self.clock.wall_ahead_ms)
        # Run the loop's timers in the next iteration, and the tasks that they wake in the one
        # after.
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(
            None, _keep_up, self._broker.logs, self.clock.wall_ms())
        await self._broker.groups.runtime.expire()

    async def now_ms(self) -> int:
        return self.clock.wall_ms()

    # ---- faults ---------------------------------------------------------------------------------

    async def add_rule(self, kind: str, api_name, ms: int, count, error_code: int) -> int:
        """Add a relay rule and return its number. Raises BrokerFailed."""
        self._spent = "its network was disturbed"
        return await self._disturbances.add_rule(kind, api_name, ms, count, error_code)

    async def remove_rule(self, number: int) -> None:
        self._disturbances.remove_rule(number)

    async def rule_hits(self, number: int) -> int:
        return self._disturbances.hits(number)

    async def drop_connections(self) -> int:
        return await self._disturbances.drop_connections()

    async def set_disk(self, kind: str) -> None:
        self._spent = "its disk was disturbed"
        self._disturbances.set_disk(kind)

    async def fail_directory(self, number: int) -> None:
        """Take a log directory offline permanently, as after an I/O error."""
        self._spent = "its disk was disturbed"
        self._broker.logs.disks.fail(number, OSError(errno.EIO, "lost by the test"))

    async def cut_links(self, rules: Rules, host_prefix: str) -> None:
        """Apply testing.links rules, for a broker in a child process."""
        links.apply(rules, host_prefix)

    async def clear_faults(self) -> None:
        self._disturbances.set_disk("system")
        await self._disturbances.take_relay_away()

    # ---- topics ---------------------------------------------------------------------------------

    async def create_topic(self, name: str, partitions: int, config: dict, replicas: int) -> None:
        """Create a topic. Raises Refused."""
        result, = await self._broker.controller.create_topics(NEW_TOPICS(topics=[
            NEW_TOPICS.CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=replicas,
                configs=[NEW_TOPICS.CreatableTopicConfig(name=key, value=value)
                         for key, value in config.items()])]))
        if result.error:
            raise Refused(int(result.error), f"topic {name}: {result.message or result.error.name}")

    async def delete_topics(self, names: list) -> None:
        """Delete topics. Raises Refused."""
        results = await self._broker.controller.delete_topics(
            [(name, bytes(16)) for name in names])
        for result in results:
            if result.error:
                raise Refused(int(result.error), f"topic {result.name}: {result.error.name}")

    async def topics(self) -> dict:
        """Return {name: number of partitions}, without internal topics."""
        return {name: len(topic.partitions) for name, topic in self._broker.image.topics.items()
                if not is_internal(name)}

    async def partitions(self, name: str) -> list:
        """Return [(leader, ISR, replicas)] by partition; [] if the topic does not exist."""
        topic = self._broker.image.topics.get(name)
        return [] if topic is None else [
            (state.leader, tuple(state.isr), tuple(state.replicas)) for state in topic.partitions]

    async def ends(self, name: str) -> list:
        """Return [(first offset, high watermark)] by partition."""
        return [(log.start_offset, log.high_watermark) for log in self._logs(name)]

    async def records(self, name: str, partition: int | None) -> list:
        """Return the committed records, by partition and offset. Raises BrokerFailed."""
        logs = self._logs(name)
        wanted = range(len(logs)) if partition is None else [partition]
        loop = asyncio.get_running_loop()
        rows = []
        for index in wanted:
            rows += await loop.run_in_executor(None, _records_of, logs[index], index)
            if len(rows) > READ_RECORDS_MAX:
                raise BrokerFailed(f"{name} holds more than {READ_RECORDS_MAX} records")
        return rows

    async def append(self, name: str, partition: int, rows: list) -> int:
        """Append [(key, value, timestamp or None, headers)]; return the first offset."""
        now_ms = self.clock.wall_ms()
        data = batch.build([(key, value, now_ms if at is None else at, headers)
                            for key, value, at, headers in rows])
        first, _ = self._logs(name)[partition].append(data, now_ms)
        return first

    def _logs(self, name: str) -> list:
        topic = self._broker.image.topics.get(name)
        if topic is None:
            raise BrokerFailed(f"no such topic: {name!r}")
        return [self._broker.logs.get(name, index) for index in range(len(topic.partitions))]

    # ---- groups ---------------------------------------------------------------------------------

    async def groups(self) -> dict:
        """Return {group id: state}."""
        return {row.group_id: row.group_state for shard in self._broker.groups.shards()[0]
                for row in group_describe.listed(shard.state_machine, (), ())}

    async def members(self, group_id: str) -> dict:
        """Return {member id: client id}."""
        group = self._group(group_id)
        return {} if group is None else {
            member.id: member.client_id for member in group.members.values()}

    async def offsets(self, group_id: str) -> dict:
        """Return {(topic, partition): committed offset}."""
        group = self._group(group_id)
        return {} if group is None else {
            partition: entry.offset for partition, entry in group.offsets.items()}

    async def rebalance(self, group_id: str) -> None:
        """Make all members rejoin. Raises BrokerFailed if the group has no members."""
        group = self._group(group_id)
        if group is None or not group.members:
            raise BrokerFailed(f"group {group_id!r} has no members")
        self._step(group_id, classic_protocol.rebalance, group)

    async def expire_session(self, group_id: str, member_id: str | None) -> None:
        """Expire the session of one or all members. Raises BrokerFailed."""
        group = self._group(group_id)
        if group is None or not group.members:
            raise BrokerFailed(f"group {group_id!r} has no members")
        if member_id is not None and member_id not in group.members:
            raise BrokerFailed(f"group {group_id!r} has no member {member_id!r}")
        for id_ in [member_id] if member_id is not None else list(group.members):
            self._step(group_id, classic_protocol.expire_session, group, id_)

    def _group(self, group_id: str):
        return self._broker.groups.query(group_id, GroupShard.find, group_id)[0]

    def _step(self, group_id: str, step, *arguments) -> None:
        self._broker.groups.run(group_id, DeferredResponse(lambda code: None), step, *arguments)


# Image fields that change with topics and restarts, or that _state() compares partially.
_OF_TOPICS = {"topics", "topics_by_id", "configs", "features", "brokers", "next_producer_id",
              "offset", "epoch", "states"}


def _keep_up(logs, now_ms: int) -> None:
    """Run retention, segment rolls and compaction. Blocks."""
    logs.upkeep(now_ms)
    logs.cleaner.catch_up()


def _records_of(log, partition: int) -> list:
    """Return all records of one log. Runs on a worker thread."""
    rows = []
    offset = log.start_offset
    while offset < log.high_watermark:
        data = memoryview(log.read(offset, READ_BYTES_MAX))
        if not data:
            break
        for position, header in batch.walk(data):
            if not header.attributes & batch.CONTROL:
                rows += [Record(partition, at, timestamp, key, value, tuple(headers))
                         for at, timestamp, key, value, headers in batch.records(data[position:])
                         if at >= offset]
            offset = header.base_offset + header.last_offset_delta + 1
    return rows
