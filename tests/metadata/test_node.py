"""The node's start and stop over real files."""

import glob
import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pylog._native.log.log import DISK_NO_SYNC, CorruptLog, StorageError
from pylog._native.records import batch
from pylog.log import partition_logs
from pylog.log.errors import StartError
from pylog.metadata import service
from pylog.metadata.image.image import Image, apply
from pylog.metadata.image.state_store import Store, StoreError
from pylog.metadata.log.metadata_log import MetadataBatch
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from tests.metadata.node import Node


def folded(node):
    image = Image()
    for stretch in node.service._log.read(0):
        image = apply(image, stretch.records, stretch.last_offset, stretch.epoch)
    return image


def append(node, topic, partition=0, records=3):
    data = batch.build([(b"k", b"v", node.now_ms(), ())] * records)
    return node.logs.get(topic, partition).append(data, node.now_ms())


def test_topics_records_and_settings_survive_a_clean_stop(tmp_path):
    node = Node(tmp_path)
    node.create("a", partitions=3, configs={"retention.ms": "9000"})
    append(node, "a", 1)
    cluster_id = node.service.cluster_id
    node.stop()
    node = Node(tmp_path)
    assert node.service.cluster_id == cluster_id
    assert node.image.topic_config("a") == {"retention.ms": "9000"}
    assert [node.logs.get("a", index).end_offset for index in range(3)] == [0, 3, 0]
    assert node.logs.get("a", 1).recovery_report() == (0, 0)
    assert node.image.partition("a", 1).leader_epoch == 0
    assert append(node, "a", 1) == (3, 5)
    node.stop()


def test_topics_and_flushed_records_survive_a_crash_under_new_leader_epochs(tmp_path):
    node = Node(tmp_path)
    node.create("a", partitions=2)
    append(node, "a", 1)
    node.logs.get("a", 1).flush()
    node.crash()
    node = Node(tmp_path)
    log = node.logs.get("a", 1)
    assert log.end_offset == 3
    assert node.image.partition("a", 1).leader_epoch == 1 and log.leader_epoch == 1
    assert append(node, "a", 1) == (3, 5)
    assert log.end_for_epoch(0) == (0, 3)
    node.stop()


def test_deleting_lmdb_loses_nothing(tmp_path):
    node = Node(tmp_path)
    node.create("a", "b", partitions=2)
    append(node, "a")
    first = node.producer_id()
    node.stop()
    for file in glob.glob(str(tmp_path / "state.lmdb*")):
        os.unlink(file)
    node = Node(tmp_path)
    assert set(node.image.topics) == {"a", "b"}
    assert node.image == folded(node)
    assert node.logs.get("a", 0).end_offset == 3
    assert node.producer_id() > first
    node.stop()


def test_an_image_that_is_not_of_this_log_is_not_believed(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    node = Node(one)
    node.create("a", "b", "c")
    node.stop()
    node = Node(other)
    node.create("x")
    node.stop()
    os.replace(one / "state.lmdb", other / "state.lmdb")
    node = Node(other)
    assert set(node.image.topics) == {"x"}
    node.stop()


def test_outdated_clean_stop_mark_makes_the_start_scan_files(tmp_path):
    node = Node(tmp_path)
    node.create("a")
    append(node, "a")
    node.stop()
    mark = tmp_path / ".kafka_cleanshutdown"
    text = mark.read_text()
    mark.unlink()
    mark.write_text(text)  # As if Kafka had run here and stopped in between.
    node = Node(tmp_path)
    assert node.image.partition("a", 0).leader_epoch == 1
    assert node.logs.get("a", 0).end_offset == 3
    node.stop()


def test_a_clean_stop_leaves_the_checksum_of_its_state(tmp_path):
    Node(tmp_path).stop()
    written = (tmp_path / "state.lmdb.sum").read_bytes()
    node = Node(tmp_path)
    assert not (tmp_path / "state.lmdb.sum").exists()
    node.create("a")
    node.stop()
    assert (tmp_path / "state.lmdb.sum").read_bytes() not in (b"", written)


def test_a_running_node_has_no_clean_mark(tmp_path):
    node = Node(tmp_path)
    node.stop()
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    node = Node(tmp_path)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    node.stop()


def test_a_deleted_topic_stays_deleted_and_its_name_is_free(tmp_path):
    node = Node(tmp_path)
    old, = node.create("a")
    append(node, "a")
    node.delete("a")
    new, = node.create("a")
    assert new != old and append(node, "a") == (0, 2)
    node.crash()
    node = Node(tmp_path)
    assert node.image.topics["a"].id == new
    assert node.logs.get("a", 0).end_offset == 3
    node.stop()


def test_second_broker_on_a_directory_is_rejected(tmp_path):
    node = Node(tmp_path)
    with pytest.raises(StartError, match="another broker"):
        Node(tmp_path)
    node.stop()
    Node(tmp_path).stop()


def test_partitions_without_their_metadata_log_stop_the_start(tmp_path):
    node = Node(tmp_path)
    node.create("a")
    node.stop()
    os.rename(tmp_path / "__cluster_metadata-0", tmp_path.parent / "away")
    with pytest.raises(StartError, match="metadata log"):
        Node(tmp_path)


def test_a_partition_of_no_topic_is_set_aside_not_deleted(tmp_path):
    node = Node(tmp_path)
    node.create("a")
    node.stop()
    (tmp_path / "ghost-0").mkdir()
    (tmp_path / "ghost-0" / "00000000000000000000.log").write_bytes(b"precious")
    node = Node(tmp_path)
    kept, = glob.glob(str(tmp_path / "ghost-0.*-stray"))
    assert os.listdir(kept) == ["00000000000000000000.log"]
    assert node.logs.get("a", 0) is not None
    node.stop()


def test_remains_of_a_deletion_are_removed_by_the_first_upkeep(tmp_path):
    node = Node(tmp_path)
    node.create("a")
    node.delete("a")
    node.crash()
    assert glob.glob(str(tmp_path / "a-0.*-delete"))
    node = Node(tmp_path)
    node.logs.upkeep(node.now_ms())
    assert not glob.glob(str(tmp_path / "a-0*"))
    node.stop()


def test_several_directories_share_the_partitions(tmp_path):
    paths = f"{tmp_path}/a,{tmp_path}/b"
    node = Node(paths)
    node.create("t", partitions=4)
    append(node, "t", 3)
    for _ in range(2):
        assert [len(glob.glob(f"{tmp_path}/{name}/t-*")) for name in "ab"] == [2, 2]
        node.stop()
        node = Node(paths)
        assert node.logs.get("t", 3).end_offset == 3
    node.crash()
    node = Node(paths)
    assert node.logs.get("t", 3).end_offset == 3
    node.stop()


def test_a_directory_of_an_earlier_topic_of_that_name_is_set_aside(tmp_path):
    node = Node(tmp_path)
    node.create("a")
    append(node, "a")
    node.crash()
    os.rename(tmp_path / "a-0", tmp_path / "kept")
    node = Node(tmp_path)
    node.delete("a")
    node.create("a")
    node.crash()
    for old in glob.glob(str(tmp_path / "a-0")):
        os.rename(old, tmp_path.parent / "newer")
    os.rename(tmp_path / "kept", tmp_path / "a-0")
    node = Node(tmp_path)
    assert node.logs.get("a", 0).end_offset == 0
    assert len(glob.glob(str(tmp_path / "a-0.*-stray"))) == 1
    node.stop()


@pytest.mark.parametrize("left", [
    b"", b"version: 0\ntop", b"version: 0\ntopic_id: ", bytes(43)])
def test_a_power_cut_may_take_the_content_of_partition_metadata(tmp_path, left):
    node = Node(tmp_path)
    node.create("a")
    append(node, "a")
    node.logs.get("a", 0).flush()
    node.crash()
    for name in ("a-0", "__cluster_metadata-0"):
        (tmp_path / name / "partition.metadata").write_bytes(left)
    node = Node(tmp_path)
    assert node.logs.get("a", 0).end_offset == 3
    text = (tmp_path / "a-0" / "partition.metadata").read_text()
    assert text.startswith("version: 0\ntopic_id: ")
    node.stop()


def test_unopenable_partition_does_not_affect_others(tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.create("a", partitions=2)
    node.crash()
    opened = partition_logs.open_log

    def refuse(directory, topic, partition, *rest):
        if (topic, partition) == ("a", 0):
            raise CorruptLog(-111, 2, "a-0")
        return opened(directory, topic, partition, *rest)

    monkeypatch.setattr(partition_logs, "open_log", refuse)
    node = Node(tmp_path)
    assert node.logs.get("a", 0) is None and node.logs.get("a", 1).is_leader
    node.delete("a")
    node.stop()


def test_a_disk_that_refuses_appends_is_an_answer(tmp_path):
    node = Node(tmp_path)
    node.create("a")
    node.service._log._log.release()
    results = node.decide(node.service.controller.delete_topics([("a", bytes(16))]))
    assert results[0].error != 0 and "a" in node.image.topics
    node.service.store.close()
    node.logs.close()


def decided(node, call):
    """Return the error code of a decision."""
    def codes(found):
        if isinstance(found, list | tuple) and not hasattr(found, "error"):
            return [code for part in found for code in codes(part)]
        return [int(found.error)] if hasattr(found, "error") else []
    try:
        found = codes(node.decide(call))
    except StorageError as error:
        return error.code
    except Refusal as refusal:
        return int(refusal.error)
    assert len(found) == 1, found
    return found[0]


def decisions(controller):
    new = messages
    settings = new.AlterConfigsRequest
    quotas = new.AlterClientQuotasRequest
    return {
        "create topics": controller.create_topics(new.CreateTopicsRequest(topics=[
            new.CreateTopicsRequest.CreatableTopic(
                name="b", num_partitions=1, replication_factor=1)])),
        "delete topics": controller.delete_topics([("a", bytes(16))]),
        "alter configs": controller.alter_configs(settings(resources=[settings.AlterConfigsResource(
            resource_type=2, resource_name="a",
            configs=[settings.AlterableConfig(name="retention.ms", value="1")])]), False),
        "create partitions": controller.create_partitions(new.CreatePartitionsRequest(topics=[
            new.CreatePartitionsRequest.CreatePartitionsTopic(
                name="a", count=3, assignments=None)])),
        "alter quotas": controller.alter_client_quotas(quotas(entries=[quotas.EntryData(
            entity=[quotas.EntityData(entity_type="user", entity_name="u")],
            ops=[quotas.OpData(key="producer_byte_rate", value=9.0, remove=False)])]), None),
        "producer id": controller.next_producer_id(),
    }


def test_decisions_after_a_failed_flush_return_a_storage_error(tmp_path):
    node = Node(tmp_path)
    node.create("a")
    before = node.image
    node.logs.directories[0].set_disk(DISK_NO_SYNC)
    for _ in range(2):
        codes = {name: decided(node, call)
                 for name, call in decisions(node.service.controller).items()}
        assert codes == dict.fromkeys(codes, 56)
    assert node.image is before
    node.decide(node.service.controller.leave_offline([("a", 0)]))
    node.decide(node.service.register_again([("PLAINTEXT", "localhost", 9092)]))
    node.crash()


def test_branch_that_does_not_fit_in_state_lmdb_is_rejected(tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.create("a")
    append(node, "a")

    def refuse(*args, **fields):
        raise StoreError("no space")

    new = messages.CreateTopicsRequest
    with monkeypatch.context() as patch:
        patch.setattr(Store, "save", refuse)
        assert decided(node, node.service.controller.create_topics(new(topics=[new.CreatableTopic(
            name="b", num_partitions=-1, replication_factor=-1, configs=[
                new.CreatableTopicConfig(name="pylog.branch.source", value="a")])]))) == 56
    assert set(node.image.topics) == {"a"}
    node.stop()


def test_disk_failure_of_a_deleted_topic_does_not_affect_its_successor(tmp_path):
    """It was notified before the topic was deleted and re-created."""
    node = Node(tmp_path)
    node.create("a")
    assert node.decide(node.service.controller.leave_offline([("a", 0)]))
    assert node.image.partition("a", 0).leader == node.node_id
    node.stop()


def test_a_start_after_a_crash_reads_a_bounded_tail(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "RECORDS_BETWEEN_IMAGES", 20)
    node = Node(tmp_path)
    for number in range(20):
        node.create(f"t{number}", partitions=3)
    offset = node.image.offset
    node.crash()
    store = Store(str(tmp_path))
    assert offset - store.load_image().offset < 24
    store.close()
    node = Node(tmp_path)
    assert len(node.image.topics) == 20 and node.image == folded(node)
    node.stop()


class Restarts(RuleBasedStateMachine):
    """Topics are created and deleted, nodes stop and crash: the image always equals the replayed
    log.
    """

    names = st.sampled_from("abcdef")

    @initialize()
    def start(self):
        import tempfile
        self.directory = tempfile.TemporaryDirectory()
        self.node = Node(self.directory.name)
        self.topics = {}

    @rule(name=names, partitions=st.integers(1, 3))
    def create(self, name, partitions):
        if name not in self.topics:
            self.node.create(name, partitions=partitions)
            self.topics[name] = partitions

    @rule(name=names)
    def delete(self, name):
        if self.topics.pop(name, None):
            self.node.delete(name)

    @rule(crash=st.booleans(), forget=st.booleans())
    def restart(self, crash, forget):
        before = self.node.image
        if crash:
            self.node.crash()
        else:
            self.node.stop()
        if forget:
            os.unlink(os.path.join(self.directory.name, "state.lmdb"))
        self.node = Node(self.directory.name)
        assert self.node.image.topics.keys() == before.topics.keys()
        assert self.node.image.epoch > before.epoch

    @rule()
    def producer(self):
        self.node.producer_id()

    @invariant()
    @precondition(lambda self: hasattr(self, "node"))
    def the_image_is_the_fold_and_the_logs_follow_it(self):
        assert self.node.image == folded(self.node)
        assert {name: len(topic.partitions) for name, topic in self.node.image.topics.items()} \
            == self.topics
        for name, count in self.topics.items():
            assert all(self.node.logs.get(name, index).is_leader for index in range(count))

    def teardown(self):
        if hasattr(self, "node"):
            self.node.stop()
            self.directory.cleanup()


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(max_examples=8, stateful_step_count=15, deadline=None)


def test_clean_stop_during_a_transaction_keeps_its_records(tmp_path):
    node = Node(tmp_path)
    node.create("a")
    topic_id, tail, log = b"x" * 16, node.service.tail, node.service._log
    for record in (messages.BeginTransactionRecord(name="many"),
                   messages.TopicRecord(name="void", topic_id=topic_id)):
        offset = log.append([record], log._epoch, tail.newest.offset + 1)
        tail.push(tail.fold(MetadataBatch(offset, log._epoch, [record])))
        node.decide(tail.wait(offset))
    node.stop()
    node = Node(tmp_path)
    node.create("b")
    node.crash()
    # Replaying the complete log gives the same state as the stored image.
    os.unlink(tmp_path / "state.lmdb")
    node = Node(tmp_path)
    assert set(node.image.topics) == {"a", "b"}
    node.stop()


def test_acls_without_an_authorizer_are_logged(tmp_path, caplog):
    node = Node(tmp_path)
    node.create("a")
    node.service._log.append(
        [messages.AccessControlEntryRecord(id=bytes(16), resource_name="a")],
        node.service.controller._epoch, node.image.offset + 1)
    node.stop()
    node = Node(tmp_path)
    assert "every client may do everything" in caplog.text
    node.stop()
