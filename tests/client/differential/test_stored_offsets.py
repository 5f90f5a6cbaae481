"""store_offsets() of our client and of librdkafka: the same programs commit the same offsets.

The one difference is asserted here: librdkafka commits a stored offset even if a higher one was
committed explicitly in the meantime.
"""

import time
import uuid

import confluent_kafka
import pytest

from pylog.client import Admin, Consumer, Producer, TopicPartition
from pylog.client.errors import IllegalStateError
from pylog.testing import Broker
from tests.client.differential.execution import SETTINGS

WAIT_S = 30.0
NEVER_MS = 3_600_000
SOON_MS = 50
RECORDS = 20
REFUSED = "refused"


@pytest.fixture(scope="module")
def bootstrap():
    with Broker(settings=SETTINGS, process=True) as made:
        yield made.bootstrap


class Pylog:
    """Our consumer, by the calls that the programs use."""

    def __init__(self, topic, group, settings, hooks):
        self.topic = topic
        self.made = Consumer({**settings, "group.id": group})
        self.made.subscribe([topic], on_revoke=lambda _: hooks(self))

    def poll(self, wait_s):
        return [record.offset for record in self.made.poll(wait_s)]

    def assigned(self):
        return len(self.made.assignment())

    def store(self, offset, partition=0):
        try:
            self.made.store_offsets({TopicPartition(self.topic, partition): offset})
        except IllegalStateError:
            return REFUSED
        return None

    def commit(self, offset=None):
        self.made.commit(None if offset is None else {TopicPartition(self.topic, 0): offset})

    def commit_async(self, offset=None):
        self.made.commit_async(None if offset is None else {TopicPartition(self.topic, 0): offset})

    def seek(self, offset):
        self.made.seek(TopicPartition(self.topic, 0), offset)

    def group_offset(self):
        place = TopicPartition(self.topic, 0)
        found = self.made.committed([place])[place]
        return None if found is None else found.offset

    def unsubscribe(self):
        self.made.unsubscribe()

    def close(self):
        self.made.close()


class Confluent:
    """confluent-kafka's consumer, by the same calls."""

    def __init__(self, topic, group, settings, hooks):
        self.topic = topic
        self.made = confluent_kafka.Consumer({**settings, "group.id": group, "log_level": 0})
        self.made.subscribe([topic], on_revoke=lambda *_: hooks(self))

    def place(self, offset, partition=0):
        return [confluent_kafka.TopicPartition(self.topic, partition, offset)]

    def poll(self, wait_s):
        return [message.offset() for message in self.made.consume(RECORDS, wait_s)
                if message.error() is None]

    def assigned(self):
        return len(self.made.assignment())

    def store(self, offset, partition=0):
        try:
            self.made.store_offsets(offsets=self.place(offset, partition))
        except confluent_kafka.KafkaException:
            return REFUSED
        return None

    def commit(self, offset=None):
        try:
            if offset is None:
                self.made.commit(asynchronous=False)
            else:
                self.made.commit(offsets=self.place(offset), asynchronous=False)
        except confluent_kafka.KafkaException as failure:
            if failure.args[0].code() != confluent_kafka.KafkaError._NO_OFFSET:
                raise

    def commit_async(self, offset=None):
        if offset is None:
            self.made.commit()
        else:
            self.made.commit(offsets=self.place(offset))

    def seek(self, offset):
        self.made.seek(self.place(offset)[0])

    def group_offset(self):
        return self.made.committed(self.place(0), WAIT_S)[0].offset

    def unsubscribe(self):
        self.made.unsubscribe()
        # librdkafka calls the listener in a later poll.
        end_s = time.monotonic() + WAIT_S
        while self.assigned():
            assert time.monotonic() < end_s
            self.made.poll(0.05)

    def close(self):
        self.made.close()


def stores_and_commits(consumer):
    consumer.store(7)
    consumer.commit()


def commits_nothing_stored(consumer):
    consumer.commit()


def closes(consumer):
    consumer.store(7)


def stores_higher(consumer):
    consumer.store(7)
    consumer.commit()
    consumer.store(9)
    consumer.commit()


def stores_lower(consumer):
    consumer.store(9)
    consumer.commit()
    consumer.store(7)
    consumer.commit()


def stores_lower_before_a_commit(consumer):
    consumer.store(9)
    consumer.store(7)
    consumer.commit()


def commits_higher_than_stored(consumer):
    consumer.store(7)
    consumer.commit(9)
    consumer.commit()


def commits_lower_than_stored(consumer):
    consumer.store(9)
    consumer.commit(7)
    consumer.commit()


def stores_during_a_commit(consumer):
    consumer.store(7)
    consumer.commit_async()
    consumer.store(9)
    consumer.commit()


def commits_in_order(consumer):
    for offset in range(1, 15):
        consumer.commit_async(offset)
    consumer.commit(11)


def stores_after_a_seek(consumer):
    consumer.store(7)
    consumer.seek(3)
    consumer.commit()


def stores_for_another_partition(consumer):
    assert consumer.store(7, partition=1) == REFUSED
    consumer.commit()


def unsubscribes(consumer):
    consumer.store(7)
    consumer.unsubscribe()
    assert consumer.store(9) == REFUSED


@pytest.fixture(params=[Pylog, Confluent])
def committed(request, bootstrap):
    """Run a program on a consumer that has read all records; return the committed offset."""
    def run(program, hooks=lambda consumer: None, interval_ms=NEVER_MS, auto=True, protocol=None):
        topic, group = (f"{stem}-{uuid.uuid4().hex[:8]}" for stem in "tg")
        settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest",
                    "enable.auto.commit": auto, "auto.commit.interval.ms": interval_ms,
                    "enable.auto.offset.store": False,
                    **({"group.protocol": protocol} if protocol else {})}
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topics({topic: 1})
            with Producer(bootstrap_servers=bootstrap) as producer:
                for number in range(RECORDS):
                    producer.send(topic, b"%d" % number)
            consumer = request.param(topic, group, settings, hooks)
            end_s, found = time.monotonic() + WAIT_S, []
            while len(found) < RECORDS:
                assert time.monotonic() < end_s
                found += consumer.poll(0.2)
            program(consumer)
            consumer.close()
            place = TopicPartition(topic, 0)
            at = admin.list_consumer_group_offsets(group).get(place)
        return None if at is None else at.offset

    run.client = request.param
    return run


@pytest.mark.parametrize(("program", "offset"), [
    (stores_and_commits, 7), (commits_nothing_stored, None), (closes, 7), (stores_higher, 9),
    (stores_lower, 7), (stores_lower_before_a_commit, 7), (commits_lower_than_stored, 9),
    (stores_during_a_commit, 9), (commits_in_order, 11),
    (stores_after_a_seek, 7), (stores_for_another_partition, None), (unsubscribes, 7),
], ids=lambda given: getattr(given, "__name__", str(given)))
def test_both_clients_commit_the_same_stored_offsets(committed, program, offset):
    assert committed(program) == offset


def test_only_librdkafka_commits_a_stored_offset_after_an_explicit_commit(committed):
    offset = 9 if committed.client is Pylog else 7
    assert committed(commits_higher_than_stored) == offset


@pytest.mark.parametrize("end", ["close", "unsubscribe"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize(("auto", "offset"), [(True, 9), (False, None)])
def test_both_clients_commit_offsets_that_the_listener_stores(
        committed, end, protocol, auto, offset):
    def program(consumer):
        consumer.store(7)
        getattr(consumer, end)()

    assert committed(program, lambda consumer: consumer.store(9), auto=auto,
                     protocol=protocol) == offset


def test_both_clients_commit_stored_offsets_after_the_interval(committed):
    def program(consumer):
        consumer.store(7)
        end_s = time.monotonic() + WAIT_S
        while consumer.group_offset() != 7:
            assert time.monotonic() < end_s
            consumer.poll(0.02)
        consumer.store(9)

    assert committed(program, interval_ms=SOON_MS) == 9
