"""The partition of a key in an internal topic, and creation of the topic."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.coordinator.runtime.internal_topic import (
    CREATE_TIMEOUT_MS,
    InternalTopic,
    TopicSpec,
    java_hash,
    partition_of,
)
from pylog.protocol.errors import ErrorCode


def naive(text):
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for unit in (int.from_bytes(data[at:at + 2], "big") for at in range(0, len(data), 2)):
        value = 31 * value + unit
    return (value + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("text, expected", [
    ("", 0), ("a", 97), ("ab", 3105), ("hello", 99162322), ("polygenelubricants", -2**31),
    ("\ud83d", 0xD83D), ("\U0001f600", 0xD83D * 31 + 0xDE00)])
def test_internal_topic_partition_hashes_match_kafka(text, expected):
    assert java_hash(text) == naive(text) == expected


def test_any_text_has_javas_hash_and_a_partition(random_source):
    for _ in range(2000):
        text = "".join(chr(random_source.choice((65, 97, 0x7FF, 0xFFFF, 0x10FFFF)))
                       for _ in range(random_source.randrange(12)))
        assert java_hash(text) == naive(text), text
        count = random_source.randrange(1, 60)
        assert partition_of(text, count) == (
            0 if naive(text) == -2**31 else abs(naive(text))) % count
    assert partition_of("polygenelubricants", 50) == 0


# Creation.

NONE, ERROR = ErrorCode.NONE, ErrorCode.INVALID_REPLICATION_FACTOR
EXISTS, LATER = ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.COORDINATOR_NOT_AVAILABLE


class Cluster:
    """A broker's view of `registered` brokers. results: of creations."""

    def __init__(self, results=(NONE,), registered=3, is_single_broker=False, **spec):
        self.asked, self.results = [], list(results)
        self.image = SimpleNamespace(
            topics={}, brokers=dict.fromkeys(range(1, registered + 1)))
        self.settings = SimpleNamespace(is_single_broker=is_single_broker)
        self.controller = SimpleNamespace(create_topics=self._create)
        self.topic = InternalTopic(TopicSpec(
            "__t", 7, spec.get("factor", 3), {"a": "1"}, spec.get("min_insync")), self)

    async def _create(self, request):
        self.asked.append(request)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [SimpleNamespace(error=self.results.pop(0), message="why")]

    def ensure(self, count=1):
        async def work():
            return await asyncio.gather(*[self.topic.ensure() for _ in range(count)])
        return asyncio.run(work())


@pytest.mark.parametrize(("factor", "min_insync", "made"), [
    (3, None, (3, [])), (2, 1, (2, ["1"])), (3, 2, (3, ["2"])), (1, 2, (1, ["1"]))])
def test_topic_has_the_configured_replicas_and_min_isr(factor, min_insync, made):
    cluster = Cluster(factor=factor, min_insync=min_insync)
    assert cluster.ensure() == [NONE]
    (row,) = cluster.asked[0].topics
    configs = {config.name: config.value for config in row.configs}
    assert (row.name, row.num_partitions, row.replication_factor) == ("__t", 7, made[0])
    assert configs.pop("a") == "1" and list(configs.values()) == made[1]
    assert cluster.asked[0].timeout_ms == CREATE_TIMEOUT_MS


def test_the_topic_is_not_created_before_enough_brokers_are_registered(caplog):
    cluster = Cluster(registered=2)
    assert cluster.ensure(2) == cluster.ensure() + [LATER] == [LATER] * 2
    assert cluster.asked == []
    line, = caplog.records  # logged once for all retries
    assert line.topic == "__t" and "factor is 3, registered brokers: 2" in line.reason
    cluster.image.brokers[3] = None
    assert cluster.ensure() == [NONE]
    assert cluster.asked[0].topics[0].replication_factor == 3


def test_single_broker_creates_the_topic_with_one_replica():
    cluster = Cluster(registered=1, is_single_broker=True, min_insync=2)
    assert cluster.ensure() == [NONE]
    (row,) = cluster.asked[0].topics
    assert row.replication_factor == 1 and row.configs[-1].value == "1"


def test_concurrent_requests_create_the_topic_once():
    cluster = Cluster()
    assert cluster.ensure(3) == [NONE] * 3 and len(cluster.asked) == 1


def test_existing_topic_is_not_created():
    cluster = Cluster()
    cluster.image.topics["__t"] = made = SimpleNamespace()
    assert cluster.ensure() == [NONE] and cluster.asked == [] and cluster.topic.current is made


def test_topic_created_concurrently_by_another_broker_is_used(caplog):
    assert Cluster([EXISTS]).ensure() == [NONE] and caplog.text == ""


def test_failed_topic_creation_is_logged_and_retried(caplog):
    cluster = Cluster([ERROR, NONE])
    assert cluster.ensure(2) == [LATER] * 2 and len(cluster.asked) == 1
    line, = caplog.records
    assert (line.topic, line.reason) == ("__t", "why")
    assert cluster.ensure() == [NONE] and len(cluster.asked) == 2


def test_caller_waits_for_a_topic_being_created_even_if_visible():
    cluster = Cluster([ERROR])

    async def work():
        first = asyncio.ensure_future(cluster.topic.ensure())
        await asyncio.sleep(0)
        cluster.image.topics["__t"] = SimpleNamespace()
        return await asyncio.gather(first, cluster.topic.ensure())

    assert asyncio.run(work()) == [LATER] * 2 and len(cluster.asked) == 1


def test_cancelled_waiter_does_not_affect_others():
    cluster = Cluster()

    async def work():
        first, second = (asyncio.ensure_future(cluster.topic.ensure()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(work()) == NONE
