"""Traces of a broker's start and stop in the metadata log and in state.lmdb."""

import os
import random

import pytest

from pylog._native.log.log import StorageError
from pylog._native.records import batch
from pylog.metadata import service
from pylog.metadata.controller import active_controller
from pylog.metadata.controller.partitions import topics
from pylog.metadata.image import snapshot
from pylog.metadata.image import state_store
from pylog.metadata.image.image import Image, MetadataError, apply
from pylog.metadata.image.loader import Tail
from pylog.metadata.image.state_store import FILE, SUM, Store, StoreError
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from tests.metadata.controller.partitions.test_topics import cluster, create, topic
from tests.metadata.image.test_state_store import image
from tests.metadata.node import Node


def test_a_broker_registers_fenced_and_leads_once_it_is_unfenced():
    empty = Image(offset=7)
    directories = [bytes(15) + b"\x09", bytes(15) + b"\x05"]
    record, = topics.register_broker(
        empty, 4, [("PLAINTEXT", "h", 9092, 0)], "rack", directories, random.Random(1))
    made = apply(empty, [record], 8, 1)
    broker = made.brokers[4]
    assert broker.fenced and not broker.in_controlled_shutdown and not made.broker_is_active(4)
    assert (broker.epoch, broker.rack) == (8, "rack")
    assert broker.directories == tuple(sorted(directories))
    assert broker.features == (("metadata.version", 7, 33), ("transaction.version", 0, 2),
                               ("group.version", 0, 1), ("share.version", 0, 2),
                               ("streams.version", 0, 1))
    change, = topics.unfence_broker(made, 4)
    active = apply(made, [change], 9, 1)
    assert active.broker_is_active(4) and topics.unfence_broker(active, 4) == []


def test_a_broker_in_a_controlled_shutdown_is_unfenced_too():
    made = apply(cluster(), [messages.BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=1, in_controlled_shutdown=1)], 9, 1)
    assert not made.broker_is_active(1) and len(topics.unfence_broker(made, 1)) == 1


def test_eligible_replicas_survive_a_snapshot_and_the_store(tmp_path):
    made, _ = create(cluster(2), topic("t", partitions=3))
    made = apply(made, [messages.PartitionChangeRecord(
        partition_id=index, topic_id=made.topics["t"].id, isr=[1], leader_recovery_state=recovery,
        eligible_leader_replicas=eligible, last_known_elr=last)
        for index, eligible, last, recovery in ((0, [2], [], -1), (1, [], [2], 1))],
        made.offset + 2, 1)
    assert made.topics["t"].partitions[0].eligible_leader_replicas == (2,)
    assert made.topics["t"].partitions[1].last_known_elr == (2,)
    records = snapshot.records_of(made)
    assert apply(Image(), records, made.offset, made.epoch) == made
    snapshot.write(str(tmp_path), records, made.offset + 1, made.epoch, 7)
    assert snapshot.read(snapshot.newest(str(tmp_path))[0]) == records
    store = Store(str(tmp_path))
    store.save(made, [])
    assert store.load_image() == made
    store.close()


def test_empty_lists_of_eligible_replicas_are_omitted():
    kinds = {type(record).__name__: record for record in snapshot.records_of(image())}
    record = kinds["PartitionRecord"]
    assert record.eligible_leader_replicas is None and record.last_known_elr is None


@pytest.mark.parametrize(("error", "call"), [
    (StoreError("no space"), "store"), (OSError(28, "no space"), "marks")])
def test_unclean_stop_leaves_no_checksum(tmp_path, monkeypatch, caplog, error, call):
    node = Node(tmp_path)
    node.create("a")

    def refuse(*args, **fields):
        raise error

    with monkeypatch.context() as patch:
        if call == "store":
            patch.setattr(Store, "save", refuse)
        else:
            patch.setattr(type(node.logs.disks), "write_clean_marks", refuse)
        node.stop()
    assert not (tmp_path / SUM).exists()
    assert any("the shutdown is not clean" in row.getMessage() for row in caplog.records)
    node = Node(tmp_path)
    assert node.image.partition("a", 0).leader_epoch == 1
    node.stop()
    assert (tmp_path / SUM).exists()


def test_a_second_close_does_nothing(tmp_path):
    node = Node(tmp_path)
    node.service.close()
    before = (tmp_path / SUM).read_bytes()
    node.service.close()
    assert (tmp_path / SUM).read_bytes() == before
    node.logs.close()


@pytest.mark.parametrize("less", [0, 1, 4096])
def test_a_file_claims_more_than_it_has_from_its_last_byte_on(tmp_path, less):
    store = Store(str(tmp_path))
    store.save(image(), [])
    store.close()
    path = tmp_path / FILE
    with state_store.lmdb.open(str(path), subdir=False, lock=False, readonly=True) as env:
        used = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    os.truncate(path, used - less)
    assert state_store._claims_more(str(path)) == (less > 0)


def test_the_image_is_stored_after_so_many_records_and_not_before(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "RECORDS_BETWEEN_IMAGES", 8)
    node = Node(tmp_path)
    stored = node.service.store.load_image().offset
    start = node.image.offset
    node.service.save_image()
    assert stored < start == node.service.store.load_image().offset
    assert not node.service.is_image_due
    for number in range(3):
        node.create(f"t{number}")
        due = node.image.offset - start >= 8
        assert due or node.service.store.load_image().offset == start
    assert node.image.offset == start + 6
    node.create("last")
    assert node.service.is_image_due or node.service.store.load_image().offset == start + 8
    node.stop()


def test_failed_image_save_is_logged_and_retried(
        tmp_path, monkeypatch, caplog):
    node = Node(tmp_path)
    node.create("a")

    def refuse(*args, **fields):
        raise StoreError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "save", refuse)
        node.service.save_image()
    assert any(getattr(row, "reason", "") == "planted" for row in caplog.records)
    node.service.save_image()
    assert node.service.store.load_image() == node.image
    node.stop()


def test_stored_image_is_not_within_a_transaction():
    tail = Tail(image())
    assert not tail.published_in_transaction and tail.published == tail.newest == image()


def test_the_offsets_of_a_snapshots_batches_follow_each_other(tmp_path):
    records = [messages.NoOpRecord()] * 2500
    snapshot.write(str(tmp_path), records, 2500, 3, 7)
    data = open(snapshot.newest(str(tmp_path))[0], "rb").read()
    heads = [head for _, head in batch.walk(data)]
    assert [(head.base_offset, head.last_offset_delta + 1, head.attributes & batch.CONTROL)
            for head in heads] == [
        (0, 1, batch.CONTROL), (1, 1000, 0), (1001, 1000, 0), (2001, 500, 0),
        (2501, 1, batch.CONTROL)]
    assert {head.leader_epoch for head in heads} == {3}
    assert snapshot.read(snapshot.newest(str(tmp_path))[0]) == records


def test_failed_feature_write_is_rejected_with_the_disks_error(tmp_path, monkeypatch):
    node = Node(tmp_path)

    def refuse(*args):
        raise StorageError(-1, 56, "planted")

    node.service._log.append = refuse
    monkeypatch.setattr(active_controller.features, "update",
                        lambda *args: [messages.NoOpRecord()])
    with pytest.raises(Refusal) as refused:
        node.decide(node.service.controller.update_features([], False))
    assert refused.value.error == 56
    del node.service._log.append
    node.stop()


def test_brokers_are_fenced_and_unfenced_under_the_epoch_that_they_have():
    made = cluster()
    epoch = made.brokers[1].epoch
    fenced = apply(made, [messages.FenceBrokerRecord(id=1, epoch=epoch)], made.offset + 1, 1)
    assert fenced.brokers[1].fenced and not fenced.broker_is_active(1)
    again = apply(fenced, [messages.UnfenceBrokerRecord(id=1, epoch=epoch)], made.offset + 2, 1)
    assert not again.brokers[1].fenced and again.broker_is_active(1)
    for kind in (messages.FenceBrokerRecord, messages.UnfenceBrokerRecord):
        for id_, other in ((1, epoch + 1), (2, epoch)):
            with pytest.raises(MetadataError):
                apply(again, [kind(id=id_, epoch=other)], made.offset + 3, 1)


def test_broker_leaves_once():
    made = cluster(2)
    left = apply(made, [messages.UnregisterBrokerRecord(broker_id=1)], made.offset + 1, 1)
    assert list(left.brokers) == [2] and not left.broker_is_active(1)
    with pytest.raises(MetadataError):
        apply(left, [messages.UnregisterBrokerRecord(broker_id=1)], made.offset + 2, 1)


@pytest.mark.parametrize("level", [0, 29])
def test_feature_of_level_zero_is_absent(level):
    record = messages.FeatureLevelRecord(name="metadata.version", feature_level=level)
    features = apply(cluster(), [record], 9, 1).features
    assert features.get("metadata.version") == (level or None)


@pytest.mark.parametrize("name", ["t", "", None])
def test_eligible_replicas_are_cleared_in_one_topic_or_in_all(name):
    made, _ = create(cluster(2), topic("t"), topic("u"))
    made = apply(made, [messages.PartitionChangeRecord(
        partition_id=0, topic_id=made.topics[each].id, eligible_leader_replicas=[2],
        last_known_elr=[2]) for each in "tu"], made.offset + 2, 1)
    after = apply(made, [messages.ClearElrRecord(topic_name=name)], made.offset + 1, 1)
    left = {each for each in "tu" if after.partition(each, 0).eligible_leader_replicas}
    assert left == ({"u"} if name else set())
    assert {each for each in "tu" if after.partition(each, 0).last_known_elr} == left


def test_clearing_eligible_replicas_counts_as_a_change_of_the_partitions_that_had_some():
    made, _ = create(cluster(2), topic("t", partitions=2))
    made = apply(made, [messages.PartitionChangeRecord(
        partition_id=0, topic_id=made.topics["t"].id, isr=[1], eligible_leader_replicas=[2])],
        made.offset + 1, 1)
    after = apply(made, [messages.ClearElrRecord(topic_name="")], made.offset + 1, 1)
    assert [state.partition_epoch for state in after.topics["t"].partitions] == [2, 0]
    assert after.topics["t"].partitions[0].eligible_leader_replicas == ()


def test_cordoned_directories_survive_a_snapshot_and_the_store(tmp_path):
    made = apply(cluster(), [messages.BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=1, cordoned_log_dirs=[b"a" * 16])], 9, 1)
    assert made.brokers[1].cordoned == (b"a" * 16,)
    records = snapshot.records_of(made)
    assert apply(Image(), records, made.offset, made.epoch) == made
    store = Store(str(tmp_path))
    store.save(made, [])
    assert store.load_image() == made
    store.close()
