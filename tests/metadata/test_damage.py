"""A metadata log with intact batches but invalid records."""

import random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pylog._native.records import batch
from pylog.log.errors import StartError
from pylog.metadata.image import snapshot
from pylog.metadata.image.feature_levels import level_fault
from pylog.metadata.image.image import RESOURCE_TOPIC, MetadataError, apply
from pylog.protocol import messages, records
from pylog.protocol.records import ProtocolError
from tests.metadata.log.test_local_log import topic
from tests.metadata.node import Node

ID = bytes(15) + b"\x02"


def values():
    new = messages.RegisterBrokerRecord
    made = [
        messages.FeatureLevelRecord(name="metadata.version", feature_level=30),
        new(broker_id=1, broker_epoch=1, end_points=[
            new.BrokerEndpoint(name="PLAINTEXT", host="h", port=9092)], log_dirs=[ID]),
        *topic(1, 3),
        messages.ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name="t1",
                              name="retention.ms", value="1000"),
        messages.PartitionChangeRecord(partition_id=1, topic_id=ID, isr=[1]),
        messages.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1000),
    ]
    return [snapshot.encoded(record) for record in made]


def damaged(dice, found):
    for _ in range(dice.randrange(1, 4)):
        index = dice.randrange(len(found))
        value = bytearray(found[index])
        kind = dice.randrange(4)
        if not value:
            continue  # Truncated by an earlier iteration.
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


def written(path, found):
    """Append these record values, in one valid batch, to a node's metadata log. Return the image
    before them.
    """
    node = Node(path)
    before, log = node.image, node.service._log._log
    log.append(batch.build([(None, value, 0, ()) for value in found]), 0, trusted=True)
    log.flush()
    node.crash()
    return before


def start_on(path, found):
    written(path, found)
    return Node(path)


def folded(before, found):
    """Return the image with the records of these values; None if a value is invalid, or contradicts
    the image.
    """
    try:
        decoded = [records.decode_record(value)[1] for value in found]
        return apply(before, decoded, before.offset + len(decoded), before.epoch)
    except (ProtocolError, MetadataError):
        return None


def facts(image):
    """Return the parts of an image to which a start adds nothing."""
    return ({name: (topic.id, len(topic.partitions)) for name, topic in image.topics.items()},
            image.configs, image.features, image.next_producer_id, image.client_quotas,
            set(image.brokers) | {1})


def outcome(path, seed):
    """Start on damaged records and compare with the expected image. Return True if the node
    starts.
    """
    found = damaged(random.Random(seed), values())
    wanted = folded(written(path, found), found)
    if wanted is not None and level_fault(wanted.features):
        with pytest.raises(StartError, match="but this version of brokerd supports"):
            Node(path)
        return False
    if wanted is None:
        with pytest.raises(StartError, match=f"the metadata log in {path} cannot be read: ."):
            Node(path)
        return False
    node = Node(path)
    assert facts(node.image) == facts(wanted)
    node.stop()
    return True


def test_intact_records_are_accepted(tmp_path):
    path = tmp_path / "n"
    node = start_on(path, values()[2:-1])
    assert len(node.image.topics["t1"].partitions) == 3
    node.stop()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
@example(seed=32706)  # Damages the name of a feature.
def test_contradictory_records_stop_the_start_with_a_message(tmp_path_factory, seed):
    outcome(tmp_path_factory.mktemp("damaged"), seed)


def test_some_damages_stop_the_start_and_some_make_other_records(tmp_path):
    found = [outcome(tmp_path / str(seed), seed) for seed in range(12)]
    assert found.count(True) >= 2 and found.count(False) >= 2, found


@pytest.mark.parametrize("spoil", [
    lambda found: found.insert(4, found[0]),  # a topic twice
    lambda found: found.__delitem__(0),  # partitions of a topic that does not exist
    lambda found: found.__setitem__(0, found[0][:-2]),  # a truncated record
    lambda found: found.__setitem__(0, b"\x7f" + found[0][1:]),
])
def test_each_of_these_stops_the_start(tmp_path, spoil):
    found = values()[2:-1]
    spoil(found)
    before = written(tmp_path, found)
    assert folded(before, found) is None
    with pytest.raises(StartError, match="cannot be read"):
        Node(tmp_path)


def test_unknown_settings_are_ignored(tmp_path):
    unknown = [messages.ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name="t1",
                                     name=name, value=value)
               for name, value in (("of.a.later.version", "1"), ("retention.ms", "long"))]
    node = start_on(tmp_path, values()[2:6] + [snapshot.encoded(record) for record in unknown])
    assert node.logs.get("t1", 2) is not None
    node.stop()


def test_an_empty_value_stops_the_start(tmp_path):
    with pytest.raises(StartError, match="cannot be read"):
        start_on(tmp_path, [b""])
