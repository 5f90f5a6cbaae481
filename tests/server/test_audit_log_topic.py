"""The audit log's topic on a simulated cluster."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog._native.records import batch
from pylog.config import ConfigError, Settings
from pylog.peer.errors import PeerError
from pylog.protocol.errors import ErrorCode
from pylog.security.authorization.audit import BYTES_MAX
from pylog.server import audit_log_topic
from pylog.server.audit_log_topic import AuditTopic

NONE = ErrorCode.NONE
NODE_ID, PARTITIONS = 5, 3


class World:
    """written: (partition, [values]) of each batch that the leader accepted. errors: of the next
    appends. batch_lines_max: a longer batch is too large.
    """

    def __init__(self, name="audit"):
        self.written, self.errors, self.batch_lines_max = [], [], 1_000_000
        self.created, self.node_id = [], NODE_ID
        self.settings = Settings({
            "num.partitions": str(PARTITIONS), "default.replication.factor": "2"})
        self.image = SimpleNamespace(topics={}, brokers={1: None})
        self.controller = self
        self.topic = AuditTopic(name, self, self)

    def now_ms(self):
        return 7

    async def create_topics(self, request):
        wanted, = request.topics
        self.created.append((wanted.name, wanted.num_partitions, wanted.replication_factor))
        self.image.topics[wanted.name] = SimpleNamespace(
            name=wanted.name, partitions=[None] * wanted.num_partitions)
        return [SimpleNamespace(error=NONE, message="")]

    async def append(self, topic, index, data):
        values = [value for _, _, _, value, _ in batch.records(data)]
        await asyncio.sleep(0)
        error = self.errors.pop(0) if self.errors else NONE
        if isinstance(error, PeerError):
            raise error
        if len(values) > self.batch_lines_max:
            error = ErrorCode.MESSAGE_TOO_LARGE
        if error == NONE:
            self.written.append((index, values))
        return error


@pytest.fixture
def run(monkeypatch):
    """Run scenario(world), and stop the topic after it."""
    monkeypatch.setattr(audit_log_topic, "AGAIN_SECONDS", 0)

    def run_it(scenario):
        async def whole():
            world = World()
            await scenario(world)
            await world.topic.stop()
            return world
        return asyncio.run(whole())
    return run_it


async def all_taken(topic):
    while topic._waiting:
        await asyncio.sleep(0)


def test_audit_lines_are_ordered_records_including_those_before_the_start(run):
    async def scenario(world):
        world.topic.offer("first")
        world.topic.start()
        await all_taken(world.topic)
        assert world.written == [(NODE_ID % PARTITIONS, [b"first"])]
        for line in ("second", "third \u00e9"):
            assert world.topic.offer(line)
        await all_taken(world.topic)

    world = run(scenario)
    assert world.written[1:] == [(2, [b"second", "third \u00e9".encode()])]
    assert world.created == [("audit", PARTITIONS, 1)]


def test_lines_without_a_leader_are_retried_and_reported_once(run, caplog):
    async def scenario(world):
        world.errors = [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION]
        world.topic.start()
        world.topic.offer("line")
        await all_taken(world.topic)

    assert run(scenario).written == [(2, [b"line"])]
    assert caplog.text.count("cannot write the audit log's topic") == 1


def test_unreachable_leader_is_reported_with_the_reason(run, caplog):
    async def scenario(world):
        world.errors = [PeerError("h2:9093: it rejected the login of node")] * 2
        world.topic.start()
        world.topic.offer("line")
        await all_taken(world.topic)

    assert run(scenario).written == [(2, [b"line"])]
    told, = [record.reason for record in caplog.records if hasattr(record, "reason")]
    assert told == "h2:9093: it rejected the login of node"


def test_a_controller_that_fails_does_not_end_the_writing(run, monkeypatch, caplog):
    async def scenario(world):
        create, tries = world.create_topics, []

        async def failing(request):
            tries.append(request)
            if len(tries) < 3:
                raise OSError("planted")
            return await create(request)

        monkeypatch.setattr(world, "create_topics", failing)
        world.topic.start()
        world.topic.offer("line")
        await all_taken(world.topic)

    assert run(scenario).written == [(2, [b"line"])]
    told, = [record.reason for record in caplog.records if hasattr(record, "reason")]
    assert told == "planted"


def test_oversized_audit_batches_are_split_and_oversized_lines_counted(run):
    async def scenario(world):
        world.batch_lines_max = 1
        for number in range(3):
            world.topic.offer(str(number))
        world.topic.start()
        await all_taken(world.topic)
        assert world.written == [(2, [b"0"]), (2, [b"1"]), (2, [b"2"])]
        world.batch_lines_max = 0
        world.topic.offer("long")
        await all_taken(world.topic)
        assert world.topic.dropped == 1 and len(world.written) == 3

    run(scenario)


def test_lines_without_space_are_rejected_immediately(run, monkeypatch):
    monkeypatch.setattr(audit_log_topic, "LINES_MAX", 2)

    async def scenario(world):
        assert [world.topic.offer(line) for line in "abc"] == [True, True, False]

    run(scenario)


def test_audit_buffer_is_limited_in_bytes(run):
    async def scenario(world):
        size = BYTES_MAX // 2
        offered = [world.topic.offer(end + "é" * (size // 2 - 1)) for end in "abc"]
        assert offered == [True, True, False]
        world.topic.start()
        await all_taken(world.topic)
        assert world.topic.offer("c" * BYTES_MAX)
    run(scenario)


def test_stop_waits_for_pending_lines_and_reports_lost_ones(run, monkeypatch, caplog):
    monkeypatch.setattr(audit_log_topic, "END_SECONDS", 60)

    async def scenario(world):
        world.topic.start()
        world.topic.offer("line")
        await world.topic.stop()
        assert world.written == [(2, [b"line"])]
        monkeypatch.setattr(audit_log_topic, "END_SECONDS", 0)
        world.errors = [ErrorCode.NETWORK_EXCEPTION] * 1_000_000
        world.topic.start()
        world.topic.offer("lost")

    run(scenario)
    left, = [record for record in caplog.records if hasattr(record, "lines")]
    assert (left.lines, left.topic) == (1, "audit")


def test_invalid_topic_name_in_a_setting_is_rejected():
    with pytest.raises(ConfigError, match="audit.log.topic=a b: Topic name is invalid"):
        World("a b")
