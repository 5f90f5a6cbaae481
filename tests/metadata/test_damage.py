"""A metadata log whose batches are whole but whose records are not what they should be."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylog._native import batch
from pylog.log.errors import StartError
from pylog.metadata import snapshots
from pylog.metadata.image import RESOURCE_TOPIC
from pylog.protocol import messages
from tests.metadata.node import Node
from tests.metadata.test_local import topic

ID = bytes(15) + b"\x02"


def values():
    new = messages.RegisterBrokerRecord
    records = [
        messages.FeatureLevelRecord(name="metadata.version", feature_level=30),
        new(broker_id=1, broker_epoch=1, end_points=[
            new.BrokerEndpoint(name="PLAINTEXT", host="h", port=9092)], log_dirs=[ID]),
        *topic(1, 3),
        messages.ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name="t1",
                              name="retention.ms", value="1000"),
        messages.PartitionChangeRecord(partition_id=1, topic_id=ID, isr=[1]),
        messages.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1000),
    ]
    return [snapshots.encoded(record) for record in records]


def damaged(dice, found):
    for _ in range(dice.randrange(1, 4)):
        index = dice.randrange(len(found))
        value = bytearray(found[index])
        kind = dice.randrange(4)
        if not value:
            continue   # Cut away by an earlier turn.
        if kind == 0:
            value[dice.randrange(len(value))] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del value[dice.randrange(len(value)):]
        elif kind == 2:
            value[dice.randrange(len(value)):dice.randrange(len(value))] = dice.randbytes(3)
        else:
            found.insert(dice.randrange(len(found)), found[index])
        found[index] = bytes(value)
    return found


def start_on(path, found):
    """A node whose metadata log holds these record values in one sound batch."""
    node = Node(path)
    log = node.service._log._log
    log.append(batch.build([(None, value, 0, ()) for value in found]), 0, trusted=True)
    log.flush()
    node.crash()
    return Node(path)


def test_sound_records_are_taken(tmp_path):
    path = tmp_path / "n"
    node = start_on(path, values()[2:-1])
    assert len(node.image.topics["t1"].partitions) == 3
    node.stop()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_records_that_do_not_fit_stop_the_start_and_say_so(tmp_path_factory, seed):
    dice = random.Random(seed)
    try:
        node = start_on(tmp_path_factory.mktemp("damaged"), damaged(dice, values()))
    except StartError:
        return
    node.stop()


def test_settings_that_nobody_knows_are_ignored(tmp_path):
    unknown = [messages.ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name="t1",
                                     name=name, value=value)
               for name, value in (("of.a.later.version", "1"), ("retention.ms", "long"))]
    node = start_on(tmp_path, values()[2:6] + [snapshots.encoded(record) for record in unknown])
    assert node.logs.get("t1", 2) is not None
    node.stop()


def test_an_empty_value_stops_the_start(tmp_path):
    with pytest.raises(StartError, match="cannot be read"):
        start_on(tmp_path, [b""])
