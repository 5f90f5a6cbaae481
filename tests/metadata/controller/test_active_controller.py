"""Requests whose records cannot be written, read-only requests, and a controller's first records;
time is virtual.
"""

import asyncio
import logging
import random

import pytest

from pylog._native.log.log import StorageError
from pylog.config import Settings
from pylog.metadata.controller.active_controller import ActiveController
from pylog.metadata.controller.partitions import topics
from pylog.metadata.image import feature_levels
from pylog.metadata.image.image import RESOURCE_BROKER, RESOURCE_TOPIC, Image
from pylog.metadata.image.loader import Tail
from pylog.metadata.log.metadata_log import MetadataBatch
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.memory import MemoryLog, NoLogs
from tests.metadata.virtual import run

NEW, ENDPOINTS, DIRECTORY = messages.CreateTopicsRequest, [("PLAINTEXT", "h", 9092, 0)], b"d" * 16


class Immediate(Tail):
    """Applies committed records immediately."""

    def push(self, delta):
        super().push(delta)
        self.take()
        self.applied(self.published.offset)


class Logs(NoLogs):
    def __init__(self):
        super().__init__()
        self.discarded = []

    def discard_branch(self, topic_id):
        self.discarded.append(topic_id)


class Alone(MemoryLog):
    """A broker that is its own controller. `failure`: raised by each append."""

    failure = None

    def __init__(self):
        super().__init__()
        self.tail, self.logs = Immediate(Image()), Logs()
        self.made = ActiveController(
            self, self.tail, self.logs, Settings(), random.Random(7), 1)
        self.made.become_active(True)
        self.made.register(ENDPOINTS, [DIRECTORY])

    def append(self, records, epoch, expected_end):
        if self.failure is not None:
            raise self.failure
        return super().append(records, epoch, expected_end)

    async def create(self, *names, **fields):
        return await self.made.create_topics(NEW(topics=[
            NEW.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in names], **fields))

    def fails(self):
        self.failure = StorageError(5, E.KAFKA_STORAGE_ERROR, "planted")


def alone(scenario):
    """Run scenario(Alone) with an existing topic `t`."""
    async def go(loop):
        world = Alone()
        assert [result.error for result in await world.create("t")] == [0]
        await scenario(world)
    run(go)


def test_topics_whose_records_cannot_be_written_are_rejected():
    async def go(world):
        world.fails()
        made, known = await world.create("a", "t")
        assert known.error == E.TOPIC_ALREADY_EXISTS and made.error not in (0, known.error)
        assert made.message == "the metadata log could not be written"
        assert made.topic_id in world.logs.discarded
        world.failure = None
        made, = await world.create("a")
        assert made.error == 0 and made.topic_id not in world.logs.discarded

    alone(go)


def test_deletion_with_failed_append_is_rejected_and_stays_rejected():
    async def go(world):
        world.fails()
        gone, unknown = await world.made.delete_topics([("t", bytes(16)), ("x", bytes(16))])
        assert gone.error not in (0, E.UNKNOWN_TOPIC_OR_PARTITION)
        assert unknown.error == E.UNKNOWN_TOPIC_OR_PARTITION and "t" in world.tail.newest.topics
        world.failure = None
        result, = await world.made.delete_topics([("t", bytes(16))])
        assert result.error == 0 and not world.tail.newest.topics

    alone(go)


def altering(*resources, validate_only=False):
    new = messages.IncrementalAlterConfigsRequest
    return new(validate_only=validate_only, resources=[
        new.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[
            new.AlterableConfig(name=key, config_operation=0, value="5000000")])
        for kind, name, key in resources])


@pytest.mark.parametrize(("validate_only", "fails", "is_done"), [
    (False, False, True), (True, False, False), (True, True, False), (False, True, False)])
def test_settings_are_altered_unless_validated_only_or_append_fails(
        validate_only, fails, is_done):
    async def go(world):
        if fails:
            world.fails()
        topic, logger, unknown = await world.made.alter_configs(altering(
            (RESOURCE_TOPIC, "t", "retention.ms"), (8, "1", "x"), (RESOURCE_TOPIC, "u", "y"),
            validate_only=validate_only), True)
        assert logger is None and unknown.error not in (0, E.KAFKA_STORAGE_ERROR)
        assert bool(topic.error) == (fails and not validate_only)
        assert bool(world.tail.newest.topic_config("t")) == is_done

    alone(go)


@pytest.mark.parametrize(("kind", "name", "key", "waits"), [
    (RESOURCE_BROKER, "1", "background.threads", True),
    (RESOURCE_TOPIC, "t", "retention.ms", False)])
def test_broker_settings_are_decided_after_committed_records_are_in_force(kind, name, key, waits):
    async def go(world):
        waited = []

        async def wait(offset):
            waited.append(offset)
        world.tail.wait = wait
        before = world.tail.newest.offset
        await world.made.alter_configs(altering((kind, name, key)), True)
        assert waited == ([before] if waits else []) + (
            [before + 1] if world.tail.newest.offset > before else [])

    alone(go)


@pytest.mark.parametrize(("validate_only", "fails"), [
    (False, False), (True, False), (False, True)])
def test_partitions_are_added_unless_validated_only_or_append_fails(validate_only, fails):
    new = messages.CreatePartitionsRequest

    async def go(world):
        if fails:
            world.fails()
        (name, outcome), = await world.made.create_partitions(new(
            topics=[new.CreatePartitionsTopic(
                name="t", count=3, assignments=None)], validate_only=validate_only))
        assert name == "t" and bool(outcome.error) == fails
        count = len(world.tail.newest.topics["t"].partitions)
        assert count == (1 if validate_only or fails else 3)

    alone(go)


@pytest.mark.parametrize(("validate_only", "fails"), [
    (False, False), (True, False), (False, True)])
def test_quotas_are_altered_unless_validated_only_or_append_fails(validate_only, fails):
    new = messages.AlterClientQuotasRequest

    async def go(world):
        if fails:
            world.fails()
        result, = await world.made.alter_client_quotas(new(validate_only=validate_only, entries=[
            new.EntryData(entity=[new.EntityData(entity_type="user", entity_name="u")], ops=[
                new.OpData(key="producer_byte_rate", value=1.0)])]), ())
        assert bool(result.error) == fails
        assert bool(world.tail.newest.client_quotas) == (not validate_only and not fails)

    alone(go)


@pytest.mark.parametrize(("validate_only", "level"), [(False, 0), (True, 2)])
def test_features_are_updated_unless_validated_only(validate_only, level):
    updates = [messages.UpdateFeaturesRequest.FeatureUpdateKey(
        feature="share.version", max_version_level=0, upgrade_type=2)]

    async def go(world):
        await world.made.update_features(updates, validate_only)
        assert world.tail.newest.features.get("share.version", 0) == level
        world.fails()
        if not validate_only:
            with pytest.raises(Refusal, match="planted"):
                await world.made.update_features(updates, False)

    alone(go)


def test_producer_ids_are_unique_under_concurrency():
    async def go(world):
        before = world.tail.newest.next_producer_id
        ids = await asyncio.gather(*(world.made.next_producer_id() for _ in range(1500)))
        ids += [await world.made.next_producer_id() for _ in range(501)]
        assert sorted(ids) == list(range(before, before + 2001))
        assert world.tail.newest.next_producer_id == before + 3000

    alone(go)


def test_a_block_of_producer_ids_that_was_not_written_is_not_used():
    async def go(world):
        world.fails()
        with pytest.raises(StorageError):
            await world.made.next_producer_id()
        world.failure = None
        assert await world.made.next_producer_id() == 0

    alone(go)


@pytest.mark.parametrize("failure", [
    StorageError(5, E.KAFKA_STORAGE_ERROR, "planted"), RuntimeError("a bug")])
def test_failed_append_of_own_records_is_logged(caplog, failure):
    async def go(world):
        await world.made.cordon([DIRECTORY])
        assert world.tail.newest.brokers[1].cordoned == (DIRECTORY,)
        world.failure = failure
        await world.made.cordon([])
        await world.made.register_again([("OTHER", "h", 1, 0)], [DIRECTORY])
        assert world.tail.newest.brokers[1].cordoned == (DIRECTORY,)
        world.failure = None
        await world.made.register_again([("OTHER", "h", 1, 0)], [DIRECTORY], [DIRECTORY])
        broker = world.tail.newest.brokers[1]
        assert broker.endpoints[0].name == "OTHER" and broker.cordoned == (DIRECTORY,)

    alone(go)
    assert [row.levelno for row in caplog.records
            if row.getMessage() == "this broker cannot be registered"] == [logging.ERROR] * 2


def cluster_of_several(*batches):
    """Return an ActiveController that starts on a log with these records."""
    log, tail = MemoryLog(), Immediate(Image())
    log.elect(9)
    for records in batches:
        log.append(records, 1, log.end)
    tail.replay(log.read(0))
    return log, tail, ActiveController(log, tail, Logs(), Settings(), random.Random(7), 1, "c")


def begun(*batches):
    """Return the names of its first records, and its image then."""
    log, tail, made = cluster_of_several(*batches)
    first = [messages.ConfigRecord(resource_type=4, resource_name="", name="first", value="1")]

    async def go(loop):
        await made.begin(log.elect(1), first)
        made.resign()
    run(go)
    return [type(record).__name__ for batch in log.batches[len(batches):]
            for record in batch.records], tail.newest


def test_a_new_cluster_begins_with_its_features_and_first_records():
    names, image = begun()
    assert names[-1] == "ConfigRecord" and image.configs[4, ""]["first"] == "1"
    assert image.features["metadata.version"] == feature_levels.FEATURES["metadata.version"][1]


def test_existing_cluster_starts_only_by_aborting_an_open_transaction():
    records = topics.bootstrap(Image())
    assert begun(records)[0] == []
    names, image = begun(records, [messages.BeginTransactionRecord(name="t"),
                                   messages.FeatureLevelRecord(name="x", feature_level=1)])
    assert names == ["AbortTransactionRecord"] and "x" not in image.features


def test_initial_credentials_are_ignored_in_an_existing_cluster(caplog):
    first = [messages.ConfigRecord(resource_type=4, resource_name="", name="first", value="1")]
    for is_there in (True, False):
        log, tail, made = cluster_of_several(*([topics.bootstrap(Image())] * is_there))
        made._begin_term(log.elect(1))
        made.register(ENDPOINTS, [DIRECTORY], first=first)
        assert (("first" in tail.newest.configs.get((4, ""), {})) == (not is_there))
        assert tail.newest.broker_is_active(1) and tail.newest.brokers[1].cordoned is None
    assert len([row for row in caplog.records if "credentials are ignored" in row.getMessage()]
               ) == 1


def test_controller_term_begins_after_batches_of_the_previous_controller():
    log, tail, made = cluster_of_several(topics.bootstrap(Image()))
    tail.push(tail.fold(MetadataBatch(tail.newest.offset + 1, 1, [messages.NoOpRecord()])))
    assert not made.is_active and tail.published is tail.newest
