import asyncio
import random

import pytest

from pylog.config import Settings
from pylog.eventloop.slices import in_slices
from pylog.metadata.controller.partitions import topics as controller
from pylog.metadata.image.image import Image, apply
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode as E

NEW = messages.CreateTopicsRequest


def cluster(brokers=1):
    image = apply(Image(), controller.bootstrap(Image()), 0, 1)
    for id_ in range(1, brokers + 1):
        for records in (
                controller.register_broker(image, id_, [("PLAINTEXT", "h", 9092, 0)], None,
                                           [(256 + id_).to_bytes(16, "big")], random.Random(id_)),):
            image = apply(image, records, image.offset + len(records), 1)
        records = controller.unfence_broker(image, id_)
        image = apply(image, records, image.offset + len(records), 1)
    return image


def topic(name="t", partitions=1, factor=1, assignments=None, configs=None):
    return NEW.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor,
        assignments=[NEW.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
                     for index, brokers in assignments or ()],
        configs=[NEW.CreatableTopicConfig(name=key, value=value)
                 for key, value in (configs or {}).items()])


def decided(steps):
    return asyncio.run(in_slices(steps))


def create(image, *topics, settings=None, **fields):
    records, results = decided(controller.create_topics(
        image, NEW(topics=list(topics), **fields), settings or Settings(), random.Random(4)))
    return apply(image, records, image.offset + len(records), 1), results


def error_of(image, *args, **fields):
    after, results = create(image, topic(*args, **fields))
    assert after.topics.keys() == image.topics.keys()
    assert results[0].message
    return results[0].error


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../../etc/passwd", "", "a" * 250, "a b", "a\0",
                                  "a\n", "\u00e9", "\udcff"])
def test_invalid_names_are_rejected(name):
    assert error_of(cluster(), name) == E.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topic_created_by_a_client_is_compacted_by_default(name):
    image, results = create(cluster(), topic(name, partitions=3))
    assert results[0].error == E.NONE and len(image.topics[name].partitions) == 3
    assert image.topic_config(name) == {"cleanup.policy": "compact"}
    image, _ = create(cluster(), topic(name, configs={"cleanup.policy": "delete"}))
    assert image.topic_config(name) == {"cleanup.policy": "delete"}


@pytest.mark.parametrize("name", ["a" * 249, "-lead", "CON", "a.b_c-9"])
def test_unusual_but_legal_names_are_accepted(name):
    image, results = create(cluster(), topic(name))
    assert results[0].error == E.NONE and name in image.topics


def test_names_that_differ_in_dot_and_underscore_collide():
    image, _ = create(cluster(), topic("a.b"))
    assert error_of(image, "a_b") == E.INVALID_TOPIC_EXCEPTION
    _, results = create(cluster(), topic("x.y"), topic("x_y"))
    assert [result.error for result in results] == [E.NONE, E.INVALID_TOPIC_EXCEPTION]


def test_repeated_name_is_rejected_once_and_others_are_created():
    image, results = create(cluster(), topic("a"), topic("a"), topic("b"))
    assert [(r.name, r.error) for r in results] == [("a", E.INVALID_REQUEST), ("b", E.NONE)]
    assert set(image.topics) == {"b"}


def test_an_existing_topic_is_rejected():
    image, _ = create(cluster(), topic("a"))
    assert error_of(image, "a") == E.TOPIC_ALREADY_EXISTS


def test_the_metadata_log_is_no_topic():
    assert error_of(cluster(), "__cluster_metadata") == E.INVALID_REQUEST


@pytest.mark.parametrize("partitions", [0, -5])
def test_partition_counts_below_one_are_rejected(partitions):
    assert error_of(cluster(), partitions=partitions) == E.INVALID_PARTITIONS


@pytest.mark.parametrize("partitions", [2**31 - 1, 100_001])
def test_too_many_partitions_are_rejected(partitions):
    assert error_of(cluster(), partitions=partitions) == E.POLICY_VIOLATION


def test_too_many_topics_in_one_request_are_rejected():
    _, results = create(cluster(), *[topic(f"t{n}") for n in range(10_001)])
    assert {result.error for result in results} == {E.POLICY_VIOLATION} and len(results) == 10_001


@pytest.mark.parametrize("factor", [0, 5, 32767, -2])
def test_invalid_replication_factors_are_rejected(factor):
    assert error_of(cluster(), factor=factor) == E.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("configs", [
    {"no.such.thing": "1"}, {"retention.ms": "soon"}, {"retention.ms": "9" * 32_000},
    {"retention.ms": None}, {"cleanup.policy": "shred"}])
def test_invalid_settings_are_rejected(configs):
    assert error_of(cluster(), configs=configs) == E.INVALID_CONFIG


def test_setting_without_a_value_is_named_in_the_error():
    _, results = create(cluster(), topic(configs={"retention.ms": None, "segment.bytes": None}))
    assert results[0].message == \
        "Null value not supported for topic configs: retention.ms,segment.bytes"


@pytest.mark.parametrize(("topics", "is_refused"), [
    ([topic("a", 4)], False), ([topic("a", 5)], True), ([topic("a", 2), topic("b", 2)], False),
    ([topic("a", 2), topic("b", 3)], True), ([topic("a", -1), topic("b", 1)], False),
    ([topic("a", -1), topic("b", 2)], True), ([topic("a", 0), topic("b", 4)], False),
    ([topic("a", -1, -1, [(n, [1]) for n in range(4)])], False),
    ([topic("a", -1, -1, [(n, [1]) for n in range(5)])], True),
    ([topic("a", -1, -1, [(n, [1]) for n in range(3)]), topic("b", 2)], True),
    ([topic(f"t{n}", 0) for n in range(4)], False), ([topic(f"t{n}", 0) for n in range(5)], True)])
def test_partitions_per_request_are_limited(monkeypatch, topics, is_refused):
    monkeypatch.setattr(controller, "PARTITIONS_PER_REQUEST_MAX", 4)
    _, results = create(cluster(), *topics, settings=Settings({"num.partitions": "3"}))
    assert {result.error == E.POLICY_VIOLATION for result in results} == {is_refused}


def test_new_replica_is_assigned_the_only_directory_or_left_to_the_broker():
    image = cluster(2)
    image = apply(image, [messages.BrokerRegistrationChangeRecord(
        broker_id=2, broker_epoch=image.brokers[2].epoch, log_dirs=[b"a" * 16, b"b" * 16])],
        image.offset + 1, 1)
    assert controller.directory_of(image, 1) == (257).to_bytes(16, "big")
    assert [controller.directory_of(image, id_) for id_ in (2, 9)] == \
        [controller.DIRECTORY_UNASSIGNED] * 2


def test_defaults_come_from_the_broker():
    settings = Settings({"num.partitions": "3"})
    image, results = create(cluster(), topic(partitions=-1, factor=-1), settings=settings)
    assert len(image.topics["t"].partitions) == 3
    assert (results[0].partition_count, results[0].replication_factor) == (3, 1)


def test_topic_settings_become_records():
    image, results = create(cluster(), topic(configs={"retention.ms": "5000"}))
    assert image.topic_config("t") == {"retention.ms": "5000"}
    assert results[0].configs == {"retention.ms": "5000"}


def test_validate_only_writes_no_records():
    image, results = create(cluster(), topic(), validate_only=True)
    assert results[0].error == E.NONE and not image.topics


def test_manual_assignment_is_used_unchanged():
    image, results = create(cluster(3), topic(
        partitions=-1, factor=-1, assignments=[(1, [3, 1]), (0, [2, 3])]))
    assert results[0].error == E.NONE
    assert [state.replicas for state in image.topics["t"].partitions] == [(2, 3), (3, 1)]
    assert [state.leader for state in image.topics["t"].partitions] == [2, 3]


@pytest.mark.parametrize("assignments", [
    [(0, [1]), (0, [2])], [(0, [])], [(0, [1, 1])], [(0, [9])], [(1, [1])], [(0, [1]), (2, [1])],
    [(0, [1]), (1, [1, 2])]])
def test_bad_assignments_are_rejected(assignments):
    assert error_of(cluster(3), partitions=-1, factor=-1, assignments=assignments) \
        == E.INVALID_REPLICA_ASSIGNMENT


def test_assignment_together_with_counts_is_rejected():
    assert error_of(cluster(), partitions=1, factor=-1, assignments=[(0, [1])]) == E.INVALID_REQUEST


def test_replicas_are_spread_over_the_active_brokers():
    image, _ = create(cluster(3), topic(partitions=6, factor=2))
    leaders = [state.leader for state in image.topics["t"].partitions]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
    assert all(len(set(state.replicas)) == 2 for state in image.topics["t"].partitions)


def delete(image, *topics, settings=None):
    records, results = decided(
        controller.delete_topics(image, list(topics), settings or Settings()))
    return apply(image, records, image.offset + len(records), 1), results


def test_topics_go_by_name_and_by_id():
    image, made = create(cluster(), topic("a"), topic("b"), topic("c"))
    image, results = delete(image, ("a", bytes(16)), (None, made[1].topic_id))
    assert [(r.name, r.error) for r in results] == [("a", E.NONE), ("b", E.NONE)]
    assert set(image.topics) == {"c"}


def test_deletion_of_unknown_topics_is_rejected():
    image, _ = create(cluster(), topic("a"))
    unknown = bytes(15) + b"\x77"
    after, results = delete(image, ("b", bytes(16)), (None, unknown), (None, bytes(16)),
                            ("a", unknown))
    assert [r.error for r in results] == [E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID,
                                          E.INVALID_REQUEST, E.INVALID_REQUEST]
    assert after.topics.keys() == image.topics.keys()


def test_a_topic_named_twice_is_not_deleted():
    image, _ = create(cluster(), topic("a"))
    after, results = delete(image, ("a", bytes(16)), ("a", bytes(16)))
    assert [r.error for r in results] == [E.INVALID_REQUEST] and "a" in after.topics


def test_a_topic_named_by_name_and_by_id_is_deleted_once():
    image, made = create(cluster(), topic("a"))
    _, results = delete(image, ("a", bytes(16)), (None, made[0].topic_id))
    assert [r.error for r in results] == [E.NONE, E.INVALID_REQUEST]


def test_deletion_may_be_turned_off():
    image, _ = create(cluster(), topic("a"))
    settings = Settings({"delete.topic.enable": "false"})
    _, results = delete(image, ("a", bytes(16)), settings=settings)
    assert results[0].error == E.TOPIC_DELETION_DISABLED


def test_blocks_of_producer_ids_do_not_overlap():
    image = cluster()
    records, first = controller.allocate_producer_ids(image, 1)
    image = apply(image, records, image.offset + 1, 1)
    _, second = controller.allocate_producer_ids(image, 1)
    assert second.first == first.first + first.count


def test_unclean_start_raises_the_leader_epoch_of_led_partitions():
    image, _ = create(cluster(2), topic(partitions=4))
    records = controller.elect_after_restart(image, 1, clean=False)
    after = apply(image, records, image.offset + len(records), 1)
    assert len(records) == 2
    for old, new in zip(image.topics["t"].partitions, after.topics["t"].partitions, strict=True):
        assert new.leader_epoch == old.leader_epoch + (old.leader == 1)


def test_partition_without_a_leader_gets_an_eligible_one():
    image, _ = create(cluster(2), topic(partitions=3))
    topic_id = image.topics["t"].id
    image = apply(image, [messages.PartitionChangeRecord(
        partition_id=index, topic_id=topic_id, leader=-1, isr=isr,
        eligible_leader_replicas=eligible)
        for index, isr, eligible in ((0, [1], []), (1, [], [1, 2]), (2, [2], [1]))],
        image.offset + 3, 1)
    records = controller.elect_after_restart(image, 1, clean=True)
    image = apply(image, records, image.offset + len(records), 1)
    states = image.topics["t"].partitions
    assert [(s.leader, s.isr, s.eligible_leader_replicas) for s in states] \
        == [(1, (1,), ()), (1, (1,), (2,)), (-1, (2,), (1,))]


def test_last_broker_leads_its_in_sync_partitions_without_waiting():
    image, _ = create(cluster(3), topic(partitions=4))
    topic_id = image.topics["t"].id
    image = apply(image, [messages.PartitionChangeRecord(
        partition_id=index, topic_id=topic_id, leader=leader, replicas=[1, 2, 3], isr=isr,
        eligible_leader_replicas=eligible)
        for index, leader, isr, eligible in (
            (0, 2, [2, 1], []), (1, 1, [1], [2]), (2, 3, [3, 2], []), (3, 1, [1], []))],
        image.offset + 4, 1)
    records = controller.reduce_to_single_broker(image, 1)
    after = apply(image, records, image.offset + len(records), 1)
    assert [(s.leader, s.isr, s.eligible_leader_replicas) for s in after.topics["t"].partitions] \
        == [(1, (1,), ()), (1, (1,), ()), (-1, (3, 2), ()), (1, (1,), ())]
    assert {broker.id: broker.fenced for broker in after.brokers.values()} == {
        1: False, 2: True, 3: True}
    # It became leader of one partition, and the others kept their leader.
    assert [new.leader_epoch - old.leader_epoch for old, new in zip(
        image.topics["t"].partitions, after.topics["t"].partitions, strict=True)] == [1, 0, 1, 0]
    assert not controller.reduce_to_single_broker(after, 1)
