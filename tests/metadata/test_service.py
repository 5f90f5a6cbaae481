import asyncio
import random
import threading

import pytest

from pylog._native.log.log import StorageError
from pylog.config import Settings
from pylog.log.partition_logs import Role
from pylog.metadata.controller import active_controller, decision_queue
from pylog.metadata.image.image import Image, apply
from pylog.metadata.image.loader import Tail
from pylog.metadata.log.metadata_log import MetadataLog
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.memory import MemoryLog, NoLogs, metadata_of, publisher_of

NEW = messages.CreateTopicsRequest
ENDPOINTS = [("PLAINTEXT", "localhost", 9092, 0)]
DIRECTORIES = [bytes(15) + b"\x05"]


class Started:
    """A controller that has registered, its tail, and logs that follow it."""

    def __init__(self, log, clean=True, image=None):
        self.tail = Tail(image or Image())
        self.tail.replay(log.read(self.tail.newest.offset + 1))
        self.logs = NoLogs()
        self.controller = active_controller.ActiveController(
            log, self.tail, self.logs, Settings(), random.Random(7), 1)
        self.controller.become_active(clean)
        self.controller.register(ENDPOINTS, DIRECTORIES)
        self.tail.begin()
        publisher = publisher_of(metadata_of(self.tail), self.logs)
        self.publishing = asyncio.get_running_loop().create_task(publisher.run())

    @property
    def image(self):
        return self.tail.published

    def __getattr__(self, name):
        return getattr(self.controller, name)


async def started(log, clean=True, image=None):
    return Started(log, clean, image)


def request(*names, partitions=1, **fields):
    return NEW(topics=[NEW.CreatableTopic(name=name, num_partitions=partitions,
                                          replication_factor=1) for name in names], **fields)


def folded(log):
    image = Image()
    for batch in log.batches:
        image = apply(image, batch.records, batch.last_offset, batch.epoch)
    return image


def test_a_first_start_formats_registers_and_unfences():
    async def run():
        controller = await started(MemoryLog())
        assert controller.image.features == {
            "metadata.version": 33, "transaction.version": 2, "group.version": 1,
            "share.version": 2, "streams.version": 1}
        broker = controller.image.brokers[1]
        assert not broker.fenced and broker.epoch == 5
    asyncio.run(run())


def test_the_image_is_the_fold_of_the_log_also_after_a_restart():
    async def run():
        log = MemoryLog()
        first = await started(log)
        await first.create_topics(request("a", "b", partitions=3))
        await first.delete_topics([("a", bytes(16))])
        await first.next_producer_id()
        assert first.image == folded(log)
        second = await started(log)
        assert second.image == folded(log)
        assert set(second.image.topics) == {"b"}
        assert second.image.epoch == first.image.epoch + 1
    asyncio.run(run())


def test_a_start_behind_a_stored_image_reads_only_the_tail():
    async def run():
        log = MemoryLog()
        first = await started(log)
        stored = first.image
        await first.create_topics(request("a"))
        del log.batches[:1]  # covered by the stored image
        second = await started(log, image=stored)
        assert "a" in second.image.topics
    asyncio.run(run())


def test_partitions_open_before_the_answer_and_close_with_the_topic():
    async def run():
        controller = await started(MemoryLog())
        results = await controller.create_topics(request("a", partitions=2))
        topic_id, roles, overrides = controller.logs.topics["a"]
        assert topic_id == results[0].topic_id
        assert roles == [Role(True, 0, 1)] * 2 and overrides == {}
        await controller.delete_topics([("a", bytes(16))])
        assert controller.logs.topics == {}
    asyncio.run(run())


def test_producer_ids_are_unique_across_restarts_and_callers():
    async def run():
        log = MemoryLog()
        seen = []
        for _ in range(3):
            controller = await started(log)
            seen += await asyncio.gather(*[controller.next_producer_id() for _ in range(1500)])
        assert len(set(seen)) == len(seen) == 4500
    asyncio.run(run())


def test_only_one_of_two_concurrent_creations_succeeds():
    async def run():
        controller = await started(MemoryLog())
        answers = await asyncio.gather(*[controller.create_topics(request("a")) for _ in range(5)])
        errors = sorted(int(answer[0].error) for answer in answers)
        assert errors == [E.NONE] + [E.TOPIC_ALREADY_EXISTS] * 4
    asyncio.run(run())


def test_an_older_controller_cannot_append():
    async def run():
        log = MemoryLog()
        old = await started(log)
        await started(log)
        before = old.image
        refused, = await old.create_topics(request("a"))
        assert refused.error == E.NOT_CONTROLLER and old.image is before
    asyncio.run(run())


def test_after_an_unclean_stop_leader_epochs_are_higher():
    async def run():
        log = MemoryLog()
        first = await started(log)
        await first.create_topics(request("a", partitions=2))
        clean = await started(log)
        assert clean.image.partition("a", 1).leader_epoch == 0
        unclean = await started(log, clean=False)
        assert unclean.image.partition("a", 1).leader_epoch == 1
    asyncio.run(run())


def test_a_topic_is_never_appended_without_all_of_its_partitions():
    async def run():
        log = MemoryLog()
        controller = await started(log)
        await controller.create_topics(request(*[f"t{n}" for n in range(9)], partitions=1111))
        assert len(controller.image.topics) == 9
        for batch in log.batches[1:]:
            assert type(batch.records[0]).__name__ == "TopicRecord"
        assert len(log.batches) == 2
    asyncio.run(run())


def transaction(*ends):
    begin = messages.BeginTransactionRecord(name="bootstrap")
    feature = messages.FeatureLevelRecord(name="metadata.version", feature_level=33)
    return [begin, feature, *ends]


@pytest.mark.parametrize("ends, features", [
    ([messages.EndTransactionRecord()], {"metadata.version": 33}),
    ([messages.AbortTransactionRecord()], {}), ([], {})])
def test_a_transaction_counts_when_it_ended(ends, features):
    async def run():
        log = MemoryLog()
        log.elect(2)
        for record in transaction(*ends):
            log.append([record], 1, log.end)
        controller = await started(log)
        assert controller.image.features == features
        again = await started(log)
        assert again.image.features == features and again.image.offset == log.end - 1
    asyncio.run(run())


class FullLog(MemoryLog):
    """Accepts this many more appends, then is full; `snapshots`: these fail, too."""

    left = 1 << 30

    def append(self, records, epoch, expected_end):
        if self.left == 0:
            raise StorageError(-1, 56, "no space is left")
        self.left -= 1
        return super().append(records, epoch, expected_end)

    def snapshot(self, records, offset, epoch):
        raise OSError(28, "no space is left")


def test_request_too_large_for_the_disk_is_partly_executed_and_reported(monkeypatch):
    monkeypatch.setattr(decision_queue, "RECORDS_PER_APPEND_MAX", 4)

    async def run():
        log = FullLog()
        controller = await started(log)
        log.left = 2
        results = await controller.create_topics(request(*"abc", partitions=3))
        assert [int(result.error) for result in results] == [0, 0, 56]
        assert set(controller.image.topics) == set(controller.logs.topics) == {"a", "b"}
        monkeypatch.setattr(decision_queue, "RECORDS_PER_APPEND_MAX", 1)
        log.left = 1
        results = await controller.delete_topics([("a", bytes(16)), ("b", bytes(16))])
        assert [int(result.error) for result in results] == [0, 56]
        assert set(controller.image.topics) == set(controller.logs.topics) == {"b"}
    asyncio.run(run())


def test_failed_snapshot_does_not_block_decisions(monkeypatch):
    monkeypatch.setattr(MetadataLog, "records_between_snapshots", 5)

    async def run():
        controller = await started(FullLog())
        for name in "abcdef":
            assert (await controller.create_topics(request(name)))[0].error == 0
        assert set(controller.logs.topics) == set("abcdef")
    asyncio.run(run())


def test_decision_waits_for_the_brokers_own_state():
    """The topic whose disk failed is deleted and re-created before the publisher catches up."""
    async def run():
        controller = await started(MemoryLog())
        assert (await controller.create_topics(request("a")))[0].error == 0
        deciding, tail = controller.controller, controller.tail
        failed = {("a", 0)}
        controller.logs.is_offline = lambda *partition: partition in failed
        create = controller.logs.create

        def create_anew(*args):
            failed.clear()
            create(*args)

        controller.logs.create = create_anew
        # Committed by a caller that does not wait; the publisher has not run yet.
        async with deciding._deciding:
            await deciding._commit(
                [messages.RemoveTopicRecord(topic_id=tail.newest.topics["a"].id)])
        again = [messages.TopicRecord(name="a", topic_id=b"n" * 16), messages.PartitionRecord(
            partition_id=0, topic_id=b"n" * 16, replicas=[1], isr=[1], leader=1, leader_epoch=0,
            partition_epoch=0, removing_replicas=[], adding_replicas=[], directories=[bytes(16)])]
        tail.push(deciding._appended(again))
        await controller.leave_offline([("a", 0)])
        assert controller.image.partition("a", 0).leader == 1
    asyncio.run(run())


def test_a_brokers_setting_is_judged_by_the_settings_that_are_in_force_when_it_is_decided():
    async def run():
        controller = await started(MemoryLog())
        in_force = []
        tail, publishing = controller.tail, controller.tail.applied

        def applied(offset):
            in_force.append(offset)
            publishing(offset)

        tail.applied = applied
        judged = []
        alter = active_controller.configs.alter

        def watched(image, *args):
            judged.append((image.offset, in_force[-1] if in_force else None))
            return alter(image, *args)

        active_controller.configs.alter = watched
        try:
            tail.push(controller.controller._appended([messages.ConfigRecord(
                resource_type=4, resource_name="", name="num.partitions", value="5")]))
            new = messages.IncrementalAlterConfigsRequest
            await controller.alter_configs(new(resources=[new.AlterConfigsResource(
                resource_type=4, resource_name="", configs=[new.AlterableConfig(
                    name="num.partitions", config_operation=0, value="6")])]), True)
        finally:
            active_controller.configs.alter = alter
        (newest, seen), = judged
        assert newest == seen
    asyncio.run(run())


def test_records_of_a_decision_that_is_called_off_are_followed_all_the_same():
    async def run():
        log = MemoryLog()
        controller = await started(log)
        begun, goes_on = threading.Event(), threading.Event()
        append = log.append

        def slow(*args):
            begun.set()
            assert goes_on.wait(30)
            return append(*args)

        log.append = slow
        asking = asyncio.ensure_future(controller.create_topics(request("a")))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        asking.cancel()
        goes_on.set()
        await asyncio.gather(asking, return_exceptions=True)
        assert "a" in controller.tail.newest.topics
        log.append = append
        assert (await controller.create_topics(request("b")))[0].error == 0
        assert folded(log) == controller.image
    asyncio.run(run())


def test_failed_report_of_a_failed_disk_is_repeated():
    async def run():
        log = FullLog()
        controller = await started(log)
        assert (await controller.create_topics(request("a")))[0].error == 0
        log.left = 0
        assert not await controller.leave_offline([("a", 0)])
        log.left = 1
        assert await controller.leave_offline([("a", 0)])
        assert controller.image.partition("a", 0).leader == -1
    asyncio.run(run())


def test_no_snapshot_is_taken_during_a_transaction(monkeypatch):
    monkeypatch.setattr(MetadataLog, "records_between_snapshots", 1)

    async def run():
        log = MemoryLog()
        controller = await started(log)
        taken = []
        log.snapshot = lambda records, offset, epoch: taken.append(offset)
        tail = controller.tail
        for records, count in (([messages.BeginTransactionRecord(name="many")], 0),
                               ([messages.NoOpRecord()], 0),
                               ([messages.EndTransactionRecord()], 1)):
            async with controller.controller._deciding:
                await controller.controller._commit(records)
            assert len(taken) == count, tail.newest.offset
    asyncio.run(run())
