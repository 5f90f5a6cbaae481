import collections
import zlib

import pytest
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from pylog._native.client.batch_builder import CRC32, MURMUR2
from pylog.client import Producer
from pylog.client.errors import ConfigError
from pylog.client.producer.partitioners import (
    Consistent, Custom, Default, RoundRobin, Sticky, native_code, partitioner,
)
from pylog.testing import Broker

ALL = [0, 1, 2, 3]


def test_the_default_hashes_keys_as_java_does():
    chosen = Default(100)
    for i in range(100):
        key = b"key-%d" % i
        wanted = (murmur2_of_kafka_python(key) & 0x7FFFFFFF) % 4
        # A hash ignores availability.
        assert chosen.choose("t", key, ALL, [3], 10) == wanted


def test_null_keys_are_sticky_and_skip_unavailable_partitions():
    chosen = Default(100)
    places = [chosen.choose("t", None, ALL, [1, 2], 50) for _ in range(20)]
    assert places == [p for pair in zip(places[::2], places[::2]) for p in pair]
    assert set(places) == {1, 2} and all(a != b for a, b in zip(places[::2], places[2::2]))
    assert chosen.choose("t", None, ALL, [3], 50) == 3
    assert {chosen.choose("u", None, ALL, ALL, 1) for _ in range(50)} != set(ALL)


def test_a_partition_with_much_waiting_is_chosen_less():
    chosen = Sticky(1)
    chosen.load = lambda topic, partition: 20 if partition == 0 else 0
    counts = collections.Counter(chosen.choose("t", b"k", ALL, ALL, 1) for _ in range(3000))
    assert counts[0] < 200 and min(counts[p] for p in (1, 2, 3)) > 500


def test_partitions_of_a_stalled_leader_are_avoided():
    chosen = Sticky(1)
    chosen.stalled = lambda topic: {0, 2}
    assert {chosen.choose("t", None, ALL, ALL, 1) for _ in range(100)} == {1, 3}
    chosen.stalled = lambda topic: set(ALL)
    assert {chosen.choose("t", None, ALL, ALL, 1) for _ in range(200)} == set(ALL)


def test_ignored_keys_are_as_null():
    chosen = Default(1000, ignore_keys=True)
    assert len({chosen.choose("t", b"%d" % i, ALL, ALL, 1) for i in range(50)}) == 1


def test_consistent_is_librdkafkas():
    assert Consistent(10).choose("t", b"key", ALL, ALL, 1) == zlib.crc32(b"key") % 4
    assert Consistent(10, empty_too=True).choose("t", None, ALL, [2], 1) == 0
    assert Consistent(10).choose("t", b"", ALL, [2], 1) == 2


def test_round_robin_rotates_per_topic():
    chosen = RoundRobin()
    assert [chosen.choose("t", b"k", ALL, [1, 3], 1) for _ in range(4)] == [1, 3, 1, 3]
    assert chosen.choose("u", b"k", ALL, [1, 3], 1) == 1


@pytest.mark.parametrize("given, kind, code", [
    (None, Default, MURMUR2), ("murmur2_random", Default, MURMUR2),
    ("org.apache.kafka.clients.producer.RoundRobinPartitioner", RoundRobin, None),
    ("consistent_random", Consistent, CRC32), ("uniform", Sticky, None),
    (lambda *_: 2, Custom, None), (RoundRobin(), RoundRobin, None),
])
def test_partitioners_are_named_as_elsewhere(given, kind, code):
    made = partitioner(given, 100)
    assert type(made) is kind and native_code(made) == code
    assert made.choose("t", b"k", ALL, ALL, 1) in ALL


@pytest.mark.parametrize("bad", ["nobody", 5])
def test_invalid_partitioner_is_rejected(bad):
    with pytest.raises(ConfigError):
        partitioner(bad, 100)


@pytest.mark.parametrize("ignores", [False, True])
def test_producer_ignores_keys_if_configured(ignores):
    with Broker() as broker:
        broker.create_topic("t", partitions=8)
        with Producer(bootstrap_servers=broker.bootstrap,
                      **{"partitioner.ignore.keys": ignores}) as producer:
            sent = [producer.send("t", b"v", key=b"%d" % number) for number in range(40)]
            producer.flush(60)
        found = {one.result(60).partition for one in sent}
    assert len(found) == 1 if ignores else len(found) > 4
