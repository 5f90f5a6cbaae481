"""Records that a share group gives up go to its dead-letter topic, despite failures in between."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from pylog._native.records import batch
from pylog.client import (
    Acknowledge, Admin, ConfigResource, NewTopic, ResourceType, ShareConsumer,
)
from pylog.config import Settings
from pylog.coordinator.share.partition_state import ShareKey
from pylog.share.dead_letters import (
    EXCEEDED, REJECTED, DeadLetterError, DeadLetters, GivenUp, batches_of, letter_of,
)
from tests.client.support import collect, new_name, new_topic, put, reader, rows
from tests.fixtures.brokers import Brokerd

pytestmark = pytest.mark.timeout(180)
SETTINGS = {"share.coordinator.state.topic.num.partitions": 2,
            "group.share.min.heartbeat.interval.ms": 200,
            "group.share.heartbeat.interval.ms": 200}
WAIT_S = 60
GIVEN_UP = GivenUp(5, 9, 3, EXCEEDED)
KEY = ShareKey("g", bytes(16), 2)


class Record:
    def __init__(self, offset, key=b"k", value=b"v", headers=()):
        self.offset, self.key, self.value, self.headers = offset, key, value, headers


def letters(count, value=b"v" * 50, copies=True):
    return [letter_of(KEY, "t", GIVEN_UP, Record(offset, value=value), copies)
            for offset in range(count)]


def test_dead_letter_contains_the_records_offset_and_the_reason():
    letter = letter_of(KEY, "t", GIVEN_UP, Record(7), False)
    assert letter.key is None and letter.value is None and letter.copied == ()
    assert dict(letter.headers) == {
        "__dlq.errors.topic": b"t", "__dlq.errors.partition": b"2", "__dlq.errors.offset": b"7",
        "__dlq.errors.group": b"g", "__dlq.errors.delivery.count": b"3",
        "__dlq.errors.message": b"Offset delivery count exceeded the threshold."}


def test_a_copy_has_the_headers_of_its_record_but_not_those_of_an_earlier_letter():
    letter = letter_of(KEY, "t", GIVEN_UP, Record(7, headers=[
        ("trace", b"1"), ("__dlq.errors.topic", b"another")]), True)
    assert (letter.key, letter.value, letter.copied) == (b"k", b"v", (("trace", b"1"),))


def test_letters_are_parted_so_that_each_batch_fits_its_topic():
    given = letters(20)
    for bytes_max in (500, 1000, 5000):
        parts = list(batches_of(given, bytes_max))
        assert [letter for part in parts for letter in part] == given
        for part in parts:
            built = batch.build([(letter.key, letter.value, 0, letter.headers) for letter in part])
            assert len(built) <= bytes_max


def test_record_too_large_for_a_dead_letter_stays_in_flight():
    part, = batches_of(letters(1, b"v" * 1000), 600)
    assert part == letters(1, copies=False)


@pytest.mark.parametrize(("prefix", "name", "reason"), [
    ("dead.", "dlq.t", "does not begin with dead."), ("dead.", "dead.t", "does not exist"),
    ("", "t", "does not exist")])
def test_name_of_a_dead_letter_topic_begins_with_the_configured_prefix(prefix, name, reason):
    node = SimpleNamespace(image=SimpleNamespace(topics={}), settings=Settings({
        "errors.deadletterqueue.topic.name.prefix": prefix}))
    source = SimpleNamespace(topic="t", start_offset=100)  # The records are no longer there.
    group = SimpleNamespace(dead_letter_topic=lambda id_: name, copies_records=lambda id_: False)
    with pytest.raises(DeadLetterError, match=reason):
        asyncio.run(DeadLetters(node, None, group).write(KEY, source, GIVEN_UP))


# ---- over the wire ------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path):
    with Brokerd(tmp_path / "b", SETTINGS) as started:
        yield started


class Dead:
    """A group with a dead-letter topic, which make() creates."""

    def __init__(self, broker, **configs):
        self.broker = broker
        self.topic = new_topic(broker)
        self.group = new_name("share")
        self.name = new_name("dlq.topic")
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.incremental_alter_configs({ConfigResource(ResourceType.GROUP, self.group): {
                "share.auto.offset.reset": "earliest", "share.delivery.count.limit": "2",
                "errors.deadletterqueue.topic.name": self.name, **configs}})

    def make(self, **configs):
        with Admin(bootstrap_servers=self.broker.bootstrap) as admin:
            admin.create_topics([NewTopic(self.name, 1, 1, configs={
                "errors.deadletterqueue.group.enable": "true", **configs})])

    def member(self):
        found = ShareConsumer(bootstrap_servers=self.broker.bootstrap, group_id=self.group,
                              share_acknowledgement_mode="explicit")
        found.subscribe([self.topic])
        return found

    def give_up(self, count, kind=Acknowledge.REJECT):
        """Let a member acquire and release `count` records."""
        with self.member() as consumer:
            seen, end_s = 0, time.monotonic() + WAIT_S
            while seen < count:
                assert time.monotonic() < end_s, f"{seen} of {count}"
                for record in consumer.poll(0.5):
                    consumer.acknowledge(record, kind)
                    seen += 1
                consumer.commit()

    def letters(self, count):
        with reader(self.broker, self.name) as consumer:
            return collect(consumer, count)


def header(record, name):
    return dict(record.headers)["__dlq.errors." + name].decode()


def test_rejected_and_too_often_released_records_get_a_dead_letter(broker):
    dead = Dead(broker, **{"errors.deadletterqueue.copy.record.enable": "true"})
    dead.make()
    put(broker, dead.topic, rows(2))
    dead.give_up(2)
    put(broker, dead.topic, rows(2, 2))
    dead.give_up(4, Acknowledge.RELEASE)
    found = dead.letters(4)
    assert [(header(record, "offset"), header(record, "delivery.count"),
             header(record, "message")) for record in found] == [
        ("0", "1", REJECTED), ("1", "1", REJECTED), ("2", "2", EXCEEDED), ("3", "2", EXCEEDED)]
    assert [(record.key, record.value) for record in found] == [row[:2] for row in rows(4)]
    assert {(header(record, "topic"), header(record, "group")) for record in found} == {
        (dead.topic, dead.group)}
    assert dict(found[1].headers)["n"] == b"1"


def test_dead_letters_wait_for_their_topic_across_a_kill(broker):
    dead = Dead(broker)
    put(broker, dead.topic, rows(3))
    dead.give_up(3)
    broker.kill()
    broker.start()
    dead.make()
    # The first member makes its broker read the state back.
    put(broker, dead.topic, rows(1, 3))
    dead.give_up(1, Acknowledge.ACCEPT)
    found = dead.letters(3)
    assert [header(record, "offset") for record in found] == ["0", "1", "2"]
    assert {(record.key, record.value) for record in found} == {(None, None)}


def test_dead_letters_are_written_after_the_last_member_left(broker):
    dead = Dead(broker)
    put(broker, dead.topic, rows(3))
    dead.give_up(3)
    dead.make()
    assert len(dead.letters(3)) == 3


def test_dead_letter_topic_is_created_if_auto_creation_is_enabled(tmp_path):
    with Brokerd(tmp_path / "b", {
            **SETTINGS, "errors.deadletterqueue.auto.create.topics.enable": "true"}) as broker:
        dead = Dead(broker)
        put(broker, dead.topic, rows(1))
        dead.give_up(1)
        assert len(dead.letters(1)) == 1
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            resource = ConfigResource(ResourceType.TOPIC, dead.name)
            configs = admin.describe_configs([resource])[resource]
            assert configs["errors.deadletterqueue.group.enable"].value == "true"


def test_pending_records_are_archived_when_the_dead_letter_topic_is_removed(broker):
    dead = Dead(broker)
    put(broker, dead.topic, rows(3))
    dead.give_up(3)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.incremental_alter_configs({ConfigResource(ResourceType.GROUP, dead.group): {
            "errors.deadletterqueue.topic.name": ""}})
    put(broker, dead.topic, rows(1, 3))
    dead.give_up(1, Acknowledge.ACCEPT)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        end_s = time.monotonic() + WAIT_S
        while admin.list_share_group_offsets(dead.group)[dead.topic, 0].lag:
            assert time.monotonic() < end_s
            time.sleep(0.1)
