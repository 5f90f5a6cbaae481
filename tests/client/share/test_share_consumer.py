"""A topic as a queue: ShareConsumer against brokerd, and against Apache Kafka."""

import asyncio
import time

import pytest

from pylog.client import (
    Acknowledge,
    Admin,
    ConfigResource,
    ResourceType,
    ShareConsumer,
    aio,
    errors,
)
from tests.client.support import new_name, new_topic, put, rows
from tests.fixtures.brokers import Brokerd

BROKER_SETTINGS = {"share.coordinator.state.topic.num.partitions": 4,
                   "group.share.min.heartbeat.interval.ms": 500,
                   "group.share.heartbeat.interval.ms": 500}
pytestmark = pytest.mark.timeout(180)
WAIT_S = 60


# A member of a Kafka group receives its assignment with the next heartbeat, five seconds later.
@pytest.fixture(scope="module", params=["pylog", pytest.param(
    "kafka", marks=[pytest.mark.kafka, pytest.mark.slow])])
def broker(request):
    return request.getfixturevalue("brokerd" if request.param == "pylog" else "kafka")


def new_group(broker) -> str:
    """Return a group that starts at the earliest offset."""
    group = new_name("share")
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.incremental_alter_configs(
            {ConfigResource(ResourceType.GROUP, group): {"share.auto.offset.reset": "earliest"}})
    return group


@pytest.fixture
def topic(broker):
    return new_topic(broker)


@pytest.fixture
def member(broker):
    """Create members of one group."""
    group, made = new_group(broker), []

    def make(**settings) -> ShareConsumer:
        one = ShareConsumer(bootstrap_servers=broker.bootstrap, group_id=group, **settings)
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def take(consumer, count: int) -> list:
    """Poll until there are at least `count` records; earlier records are acknowledged or must be.
    """
    found, end_s = [], time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < end_s, f"{len(found)} of {count} records"
        some = consumer.poll(1.0)
        found += some
        if consumer.settings["share.acknowledgement.mode"] == "explicit" and len(found) < count:
            consumer.acknowledge(some)
    return found


def offsets(records) -> list[int]:
    return [record.offset for record in records]


def test_polled_records_are_accepted_by_the_next_poll(broker, topic, member):
    put(broker, topic, rows(30))
    with member() as first:
        first.subscribe([topic])
        found = take(first, 30)
        assert offsets(found) == list(range(30))
        assert [(record.key, record.value) for record in found] == [row[:2] for row in rows(30)]
        assert first.delivery_count(found[-1]) == 1
        assert first.poll(0.5) == []
    put(broker, topic, rows(1, 30))
    with member() as second:
        second.subscribe(topic)
        assert offsets(take(second, 1)) == [30]


def test_close_releases_unaccepted_records_to_another_member(
        broker, topic, member):
    put(broker, topic, rows(10))
    with member() as first:
        first.subscribe([topic])
        take(first, 10)
    with member() as second:
        second.subscribe([topic])
        found = take(second, 10)
        assert offsets(found) == list(range(10))
        assert {second.delivery_count(record) for record in found} == {2}
        assert set(second.commit()) == {(topic, 0)}
        assert second.poll(0.3) == []


def test_commit_during_iteration_accepts_the_returned_records(broker, topic, member):
    put(broker, topic, rows(10))
    with member() as first:
        first.subscribe([topic])
        for record in first:
            if record.offset == 3:
                break
        assert next(iter(first)).offset == 4
        assert list(first.commit().values()) == [None]
        assert next(iter(first)).offset == 5
    with member() as second:
        second.subscribe([topic])
        stream = iter(second)
        assert [next(stream).offset for _ in range(3)] == [5, 6, 7]
        # A poll accepts these, and releases the others, which are delivered again.
        found = take(second, 2)
        assert offsets(found) == [8, 9] and second.delivery_count(found[0]) == 3


def test_each_record_is_accepted_released_or_rejected(broker, topic, member):
    put(broker, topic, rows(9))
    with member(share_acknowledgement_mode="explicit") as consumer:
        consumer.subscribe([topic])
        found = take(consumer, 9)
        consumer.acknowledge(found[:3])
        consumer.acknowledge(found[3:6], Acknowledge.RELEASE)
        with pytest.raises(errors.IllegalStateError, match="3 records"):
            consumer.poll(0.1)
        consumer.acknowledge(found[6:], Acknowledge.REJECT)
        assert list(consumer.commit().values()) == [None]
        again = take(consumer, 3)
        assert offsets(again) == [3, 4, 5]
        assert consumer.delivery_count(again[0]) == 2
        consumer.acknowledge(again)
        assert consumer.poll(0.3) == []
        with pytest.raises(errors.IllegalStateError, match="not acquired"):
            consumer.acknowledge(again)


def test_renewed_record_stays_acquired_until_acknowledged(broker, topic, member):
    put(broker, topic, rows(2))
    with member(share_acknowledgement_mode="explicit") as consumer:
        consumer.subscribe([topic])
        one, other = take(consumer, 2)
        consumer.acknowledge(one, Acknowledge.RENEW)
        consumer.acknowledge(other)
        assert list(consumer.commit().values()) == [None]
        assert consumer.poll(0.1) == []
        consumer.acknowledge(one)
        assert list(consumer.commit().values()) == [None]


def test_acknowledgement_results_are_reported(broker, topic, member):
    put(broker, topic, rows(4))
    told = []
    with member() as consumer:
        consumer.set_acknowledgement_commit_callback(lambda *given: told.append(given))
        consumer.subscribe([topic])
        take(consumer, 4)
        end_s = time.monotonic() + WAIT_S
        while not told:
            assert consumer.poll(0.2) == [] and time.monotonic() < end_s
    assert told == [((topic, 0), [(0, 3)], None)]


def test_records_come_as_columns_with_how_often_they_were_delivered(broker, topic, member):
    put(broker, topic, rows(20))
    with member(share_acknowledgement_mode="explicit") as consumer:
        consumer.subscribe([topic])
        end_s = time.monotonic() + WAIT_S
        while not (batch := consumer.poll_arrow(1.0)).num_rows:
            assert time.monotonic() < end_s
        assert batch.column("offset").to_pylist() == list(range(20))
        assert batch.column("value").to_pylist() == [row[1] for row in rows(20)]
        assert set(batch.column("delivery_count").to_pylist()) == {1}
        consumer.acknowledge(batch.slice(0, 5))
        consumer.acknowledge(batch.slice(5), Acknowledge.RELEASE)
        consumer.commit()
        while not (batch := consumer.poll_arrow(1.0, ["topic", "partition", "offset",
                                                      "delivery_count"])).num_rows:
            assert time.monotonic() < end_s
        # Only a part of the batch was acquired: the rest is omitted.
        assert batch.column("offset").to_pylist() == list(range(5, 20))
        assert set(batch.column("delivery_count").to_pylist()) == {2}
        consumer.acknowledge(batch)


def test_two_members_share_the_records_of_one_partition(broker, topic, member):
    put(broker, topic, rows(200), batch_records=10)
    exact = {"max_poll_records": 10, "share_acquire_mode": "record_limit"}
    first, second = member(**exact), member(**exact)
    seen: dict = {first: [], second: []}
    for consumer in seen:
        consumer.subscribe([topic])
    end_s = time.monotonic() + WAIT_S
    while sum(map(len, seen.values())) < 200:
        assert time.monotonic() < end_s, seen
        for consumer, found in seen.items():
            some = consumer.poll(0.2)
            assert len(some) <= 10
            found += offsets(some)
    assert sorted(seen[first] + seen[second]) == list(range(200))
    assert seen[first] and seen[second]


def test_undeserializable_record_is_released_and_reported_after_valid_ones(
        broker, topic, member):
    put(broker, topic, rows(3))

    def value(data):
        if data == b"value 1":
            raise ValueError("not this one")
        return data.decode()

    with member(value_deserializer=value) as consumer:
        consumer.subscribe([topic])
        assert [record.value for record in take(consumer, 2)] == ["value 0", "value 2"]
        with pytest.raises(errors.SerializationError, match="not this one") as refused:
            consumer.poll(5.0)
        assert refused.value.offset == 1


def test_unsubscribe_releases_records_and_allows_a_new_subscription(
        broker, topic, member):
    put(broker, topic, rows(3))
    with member() as consumer:
        consumer.subscribe([topic])
        take(consumer, 3)
        consumer.unsubscribe()
        assert consumer.assignment() == [] and consumer.subscription() == set()
        consumer.subscribe([topic])
        again = take(consumer, 3)
        assert offsets(again) == [0, 1, 2] and consumer.delivery_count(again[0]) == 2


def test_implicit_consumer_rejects_acknowledgements(broker, topic, member):
    put(broker, topic, rows(1))
    with member() as consumer:
        with pytest.raises(errors.IllegalStateError, match="subscribe"):
            consumer.poll()
        consumer.subscribe([topic])
        with pytest.raises(errors.IllegalStateError, match="explicit"):
            consumer.acknowledge(take(consumer, 1))


def test_waiting_poll_is_woken_from_another_thread(broker, topic, member):
    consumer = member()
    consumer.subscribe([topic])
    consumer.wakeup()
    with pytest.raises(errors.WakeupError):
        consumer.poll(WAIT_S)


def test_settings_that_share_groups_do_not_have_are_rejected():
    with pytest.raises(errors.ConfigError, match="auto.offset.reset"):
        ShareConsumer(bootstrap_servers="localhost:1", group_id="g", auto_offset_reset="earliest")
    with pytest.raises(errors.ConfigError, match="group.id"):
        ShareConsumer(bootstrap_servers="localhost:1")


def test_the_same_calls_are_awaited_with_asyncio(broker, topic, member):
    put(broker, topic, rows(5))
    group = member().settings["group.id"]

    async def work() -> list[int]:
        async with aio.ShareConsumer(bootstrap_servers=broker.bootstrap, group_id=group) as one:
            await one.subscribe(topic)
            found = []
            async for record in one:
                found.append(record.offset)
                if len(found) == 5:
                    break
            assert list((await one.commit()).values()) == [None]
            return found

    assert asyncio.run(asyncio.wait_for(work(), WAIT_S)) == list(range(5))


def test_consumer_continues_after_a_broker_restart(tmp_path):
    with Brokerd(tmp_path, {**BROKER_SETTINGS, "group.share.min.session.timeout.ms": "6000",
                            "auto.create.topics.enable": "true"}) as own:
        topic = new_topic(own)
        group = new_group(own)
        put(own, topic, rows(5))
        with ShareConsumer(bootstrap_servers=own.bootstrap, group_id=group) as consumer:
            consumer.subscribe([topic])
            assert offsets(take(consumer, 5)) == list(range(5))
            consumer.commit()
            own.kill()
            own.start()
            put(own, topic, rows(5, 5))
            assert offsets(take(consumer, 5)) == list(range(5, 10))
