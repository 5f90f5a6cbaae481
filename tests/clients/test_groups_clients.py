"""confluent-kafka, kcat, kafka-python and aiokafka in groups: join, leave, die, commit, resume."""

import asyncio
import subprocess
import sys
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PyPartition

from tests.wire.talk import create_topic, unique

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": 100,
                   "group.consumer.min.heartbeat.interval.ms": 200,
                   "group.consumer.heartbeat.interval.ms": 200}
PARTITIONS, RECORDS = 4, 200
CLASSIC = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300}
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def topic(target) -> str:
    name = unique("shared")
    create_topic(target.port, name, PARTITIONS)
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(RECORDS):
        producer.produce(name, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(20) == 0
    return name


class Member:
    """A confluent-kafka consumer that records its assigned and revoked partitions."""

    def __init__(self, target, topic: str, group: str, **options):
        self.revoked = 0
        self.values = []
        self.consumer = Consumer({
            "bootstrap.servers": target.bootstrap, "group.id": group,
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
            **({} if "group.protocol" in options else CLASSIC), **options})
        self.consumer.subscribe([topic], on_revoke=self._revoke)

    def _revoke(self, consumer, partitions) -> None:
        self.revoked += len(partitions)

    @property
    def owned(self) -> set:
        return {part.partition for part in self.consumer.assignment()}

    def poll(self, wait_s: float = 0.1) -> None:
        message = self.consumer.poll(wait_s)
        if message is not None and message.error() is None:
            self.values.append(int(message.value()))


def _until(condition, *members, wait_s: float = 30) -> None:
    end_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < end_s, [member.owned for member in members]
        for member in members:
            member.poll()


def _shared(*members) -> bool:
    """Return True if every partition has one owner and every member a partition."""
    owned = [member.owned for member in members]
    return all(owned) and sorted(part for one in owned for part in one) == list(range(PARTITIONS))


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_a_topic_and_take_over_from_each_other(target, topic, strategy):
    group = unique("confluent")
    options = {"partition.assignment.strategy": strategy}
    one = Member(target, topic, group, **options)
    _until(lambda: _shared(one), one)
    two = Member(target, topic, group, **options)
    _until(lambda: _shared(one, two), one, two)
    if strategy == "cooperative-sticky":
        assert one.revoked == PARTITIONS // 2, "it kept what it did not have to give away"
    two.consumer.close()
    _until(lambda: _shared(one), one, wait_s=5)
    one.consumer.close()


def test_members_of_both_group_protocols_share_a_topic(target, topic):
    group = unique("confluent-new")
    new = {"group.protocol": "consumer"}
    one, two = (Member(target, topic, group, **new) for _ in range(2))
    _until(lambda: _shared(one, two), one, two)
    assert one.revoked <= PARTITIONS // 2, "it kept what it did not have to give away"
    old = Member(target, topic, group, **{
        "partition.assignment.strategy": "cooperative-sticky"})
    _until(lambda: _shared(one, two, old), one, two, old)
    for member in (one, two):
        member.consumer.close()
    _until(lambda: _shared(old), old)
    old.consumer.close()


def test_dead_member_is_replaced_after_its_session_timeout(target, topic):
    group = unique("confluent-dead")
    one = Member(target, topic, group)
    program = (
        "import sys, time\nfrom confluent_kafka import Consumer\n"
        "c = Consumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2],"
        " 'session.timeout.ms': 6000})\n"
        "c.subscribe([sys.argv[3]])\n"
        "while True: c.poll(0.1)\n")
    dying = subprocess.Popen([sys.executable, "-c", program, target.bootstrap, group, topic])
    try:
        _until(lambda: len(one.owned) == PARTITIONS // 2, one)
    finally:
        dying.kill()
        dying.wait()
    start_s = time.monotonic()
    _until(lambda: _shared(one), one)
    assert time.monotonic() - start_s < 10
    one.consumer.close()


def test_next_member_continues_at_committed_offsets(target, topic):
    group = unique("confluent-commit")
    one = Member(target, topic, group)
    _until(lambda: len(one.values) == RECORDS, one)
    assert sorted(one.values) == list(range(RECORDS))
    committed = one.consumer.commit(asynchronous=False)
    assert {(part.partition, part.offset) for part in committed} == \
        {(number, RECORDS // PARTITIONS) for number in range(PARTITIONS)}
    told = one.consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 3)], timeout=10)
    assert [part.offset for part in told] == [RECORDS // PARTITIONS] * 2
    one.consumer.seek(TopicPartition(topic, 2, 10))
    _until(lambda: len(one.values) > RECORDS, one)
    assert one.values[RECORDS] == 10 * PARTITIONS + 2
    one.consumer.commit(offsets=[TopicPartition(topic, 1, RECORDS // PARTITIONS - 1)],
                        asynchronous=True)
    one.consumer.close()
    two = Member(target, topic, group)
    _until(lambda: two.values, two)
    two.poll(1)
    assert two.values == [RECORDS - PARTITIONS + 1]
    two.consumer.close()


def test_commit_of_a_removed_member_is_rejected(target, topic):
    group = unique("confluent-late")
    late = Member(target, topic, group, **{"max.poll.interval.ms": 6000})
    _until(lambda: late.values, late)
    other = Member(target, topic, group)
    _until(lambda: _shared(other), other)
    with pytest.raises(KafkaException):
        late.consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    late.consumer.close()
    other.consumer.close()


def test_static_member_returns_without_a_rebalance(target, topic):
    group = unique("confluent-static")
    one = Member(target, topic, group, **{"group.instance.id": "one"})
    two = Member(target, topic, group, **{"group.instance.id": "two"})
    _until(lambda: _shared(one, two), one, two)
    before, revoked = two.owned, one.revoked
    two.consumer.close()
    two = Member(target, topic, group, **{"group.instance.id": "two"})
    _until(lambda: _shared(one, two), one, two)
    assert two.owned == before and one.revoked == revoked
    one.consumer.close()
    two.consumer.close()


def test_kcat_reads_in_a_group_and_resumes(target, topic):
    group = unique("kcat")
    command = ["kcat", "-b", target.bootstrap, "-e", "-q", "-X", "auto.offset.reset=earliest",
               "-G", group, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert sorted(map(int, done.stdout.split())) == list(range(RECORDS))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""


def test_kafka_python_members_share_commit_and_leave(target, topic):
    group = unique("kafka-python")

    def member():
        return KafkaConsumer(topic, bootstrap_servers=target.bootstrap, group_id=group,
                             auto_offset_reset="earliest", enable_auto_commit=False,
                             session_timeout_ms=6000, heartbeat_interval_ms=300)

    one, values = member(), []
    end_s = time.monotonic() + 30
    while len(values) < RECORDS and time.monotonic() < end_s:
        for messages in one.poll(200).values():
            values += [int(message.value) for message in messages]
    assert sorted(values) == list(range(RECORDS))
    one.commit()
    two = member()
    end_s = time.monotonic() + 30
    # The first keeps its partitions until it learns the second's.
    while not len(one.assignment()) == len(two.assignment()) == PARTITIONS // 2 \
            and time.monotonic() < end_s:
        assert one.poll(100) == {}
        assert two.poll(100) == {}
    assert len(one.assignment()) == len(two.assignment()) == PARTITIONS // 2
    part = PyPartition(topic, 0)
    owner = one if part in one.assignment() else two
    owner.commit({part: OffsetAndMetadata(3, "note", -1)})
    assert owner.committed(part) == 3
    one.close()
    end_s = time.monotonic() + 30
    while len(two.assignment()) < PARTITIONS and time.monotonic() < end_s:
        two.poll(100)
    assert len(two.assignment()) == PARTITIONS
    two.close()


def test_aiokafka_reads_commits_and_resumes(target, topic):
    group = unique("aiokafka")

    async def read(count: int) -> list[int]:
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=target.bootstrap, group_id=group,
                                    auto_offset_reset="earliest", enable_auto_commit=False)
        await consumer.start()
        try:
            values = []
            while len(values) < count:
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    values += [int(message.value) for message in messages]
            await consumer.commit()
            return values
        finally:
            await consumer.stop()

    async def scenario():
        assert sorted(await asyncio.wait_for(read(RECORDS), 30)) == list(range(RECORDS))
        producer = AIOKafkaProducer(bootstrap_servers=target.bootstrap)
        await producer.start()
        await producer.send_and_wait(topic, b"999", partition=1)
        await producer.stop()
        assert await asyncio.wait_for(read(1), 30) == [999]

    asyncio.run(scenario())
