"""Replication of another node's metadata log, from a simulated controller."""

import asyncio
import contextlib
import errno

import pytest

from pylog.testing.ports import free_port
from pylog._native.log.log import LogDeleted, LogDir
from pylog.config import Settings
from pylog.metadata.image import snapshot
from pylog.metadata.image.image import Image, apply
from pylog.metadata.log.metadata_log import MetadataLog
from pylog.metadata.log.replica_log import ObservedLog
from pylog.metadata.log.fetcher import Observer
from pylog.metadata.image.loader import Tail
from pylog.peer.controllers import Controller, Controllers
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.metadata.controller_model import NOW_MS, ModelController


def topic(number: int):
    return messages.TopicRecord(name=f"t{number}", topic_id=(number + 1).to_bytes(16, "big"))


NO_OP = messages.NoOpRecord


class Following:
    """An observer with its copy below `path`, of these controllers."""

    def __init__(self, path, *controllers):
        self.log = ObservedLog(LogDir(str(path)), None, lambda: NOW_MS)
        self.tail = Tail(Image())
        self.tail.replay(self.log.read_committed(0))
        self.controllers = Controllers({
            model.node_id: Controller(model.node_id, "127.0.0.1", model.port)
            for model in controllers})
        self.observer = Observer(
            self.log, self.tail, self.controllers, node_id=9, cluster_id="c",
            directory_id=bytes(16), settings=Settings({"controller.quorum.fetch.timeout.ms": 2000}))

    async def __aenter__(self):
        self.task = asyncio.create_task(self.observer.run())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def reaches(self, offset: int) -> set:
        """Return the names of the topics when `offset` is in the tail."""
        async with asyncio.timeout(20):
            while self.tail.newest.offset < offset:
                await asyncio.sleep(0.005)
        return set(self.tail.newest.topics)

    async def saves(self, end: int) -> None:
        """Wait until the newest snapshot ends at `end`."""
        async with asyncio.timeout(20):
            while self.log.snapshot_end != end:
                await asyncio.sleep(0.005)


def test_only_committed_records_reach_the_tail(tmp_path):
    async def go():
        async with ModelController() as model:
            model.write(topic(1))
            model.write(topic(2), committed=False)
            async with Following(tmp_path, model) as following:
                assert await following.reaches(0) == {"t1"}
                await asyncio.wait_for(following.observer.caught_up.wait(), 20)
                assert following.log.end_offset == 2
                model.high_watermark = 2
                assert await following.reaches(1) == {"t1", "t2"}

    asyncio.run(go())


def test_transaction_split_over_two_responses_applies_at_its_end(tmp_path):
    async def go():
        async with ModelController() as model:
            model.write(messages.BeginTransactionRecord(name="t"), topic(1))
            async with Following(tmp_path, model) as following:
                assert await following.reaches(1) == set()
                model.write(topic(2), messages.EndTransactionRecord())
                assert await following.reaches(3) == {"t1", "t2"}

    asyncio.run(go())


def test_restart_continues_from_the_local_copy(tmp_path):
    async def go():
        async with ModelController() as model:
            model.write(topic(1))
            async with Following(tmp_path, model) as following:
                await following.reaches(0)
                following.log.close()
            del following
            model.requests.clear()
            model.write(topic(2))
            async with Following(tmp_path, model) as following:
                assert await following.reaches(1) == {"t1", "t2"}
            assert {asked.fetch_offset for asked in model.requests} <= {1, 2}

    asyncio.run(go())


def test_records_that_another_controller_does_not_have_are_truncated(tmp_path):
    async def go():
        async with ModelController() as model:
            model.write(topic(1))
            model.write(topic(2), topic(3), committed=False)
            async with Following(tmp_path, model) as following:
                await following.reaches(0)
                model.cut(1)
                model.leader = 1, 2
                model.write(topic(4))
                assert await following.reaches(1) == {"t1", "t4"}
                assert following.log.end_offset == 2

    asyncio.run(go())


def test_controller_unaware_of_its_own_last_append_truncates_nothing(
        tmp_path, caplog):
    """It may have succeeded although its response was lost."""
    async def go():
        async with ModelController(1, 1) as late, ModelController(2, 2) as active:
            late.write(topic(1))
            active.write(topic(1), epoch=1)
            active.write(topic(2), epoch=1)
            async with Following(tmp_path, active) as following:
                await following.reaches(1)
                following.log.close()
            del following
            active.write(topic(3))
            following = Following(tmp_path, late, active)
            following.log.commit(2)
            async with following:
                assert await following.reaches(2) == {"t1", "t2", "t3"}
                assert following.log.end_offset == 3
        assert late.requests
        assert not [record for record in caplog.records if record.levelname == "ERROR"]

    asyncio.run(go())


def test_controller_unaware_of_its_successor_truncates_nothing(tmp_path):
    async def go():
        async with ModelController(1, 2) as late, ModelController(2, 3) as active:
            for model in late, active:
                model.write(topic(1), epoch=2)
            active.write(topic(2))
            async with Following(tmp_path, active) as following:
                await following.reaches(1)
                following.log.close()
            active.write(topic(3))
            async with Following(tmp_path, late, active) as following:
                assert await following.reaches(2) == {"t1", "t2", "t3"}
                assert following.controllers.epoch == 3
            assert {asked.current_leader_epoch for asked in late.requests} == {3}

    asyncio.run(go())


def test_trimmed_log_is_replaced_by_a_chunked_snapshot(tmp_path):
    async def go():
        async with ModelController() as model:
            image = apply(Image(), [topic(number) for number in range(40)], 39, 1)
            model.end = model.high_watermark = 40
            (tmp_path / "model").mkdir()
            model.become_snapshot(image, str(tmp_path / "model"), 1)
            model.part_bytes = 700
            (tmp_path / "own").mkdir()
            async with Following(tmp_path / "own", model) as following:
                assert len(await following.reaches(39)) == 40
                model.write(topic(99))
                assert len(await following.reaches(40)) == 41
                following.log.close()
            del following
            async with Following(tmp_path / "own", model) as following:
                assert len(following.tail.newest.topics) == 40  # the snapshot
                assert len(await following.reaches(40)) == 41

    asyncio.run(go())


def test_observer_writes_snapshots_and_starts_from_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr(MetadataLog, "records_between_snapshots", 10)

    async def go():
        async with ModelController() as model:
            async with Following(tmp_path, model) as following:
                for number in range(25):
                    model.write(topic(number))
                    await following.reaches(number)
                await following.saves(20)
                assert following.log.start_offset == 20
                following.log.close()
            del following
            model.requests.clear()
            async with Following(tmp_path, model) as following:
                assert len(following.tail.newest.topics) == 20
                model.write(topic(25))
                assert len(await following.reaches(25)) == 26
                assert model.requests[0].fetch_offset == 25

    asyncio.run(go())


def test_observer_saves_a_snapshot_by_size_or_age(tmp_path):
    async def go():
        async with ModelController() as model:
            async with Following(tmp_path, model) as following:
                following.log._snapshot_bytes = 1000
                for number in range(30):
                    model.write(topic(number))
                    await following.reaches(number)
                assert 5 < following.log.snapshot_end < 30
                following.log._snapshot_bytes = 1 << 30
                following.log._snapshot_interval_ms = 60_000
                model.write(topic(30))
                await following.reaches(30)
                assert following.log.snapshot_end < 30
                following.log._snapshot_ms -= 60_000
                model.write(topic(31))
                await following.reaches(31)
                await following.saves(32)

    asyncio.run(go())


def test_observer_continues_if_a_snapshot_does_not_fit(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(MetadataLog, "records_between_snapshots", 10)
    write, tries = snapshot.write, []

    def without_room(*arguments):
        tries.append(arguments)
        if len(tries) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments)
    monkeypatch.setattr(snapshot, "write", without_room)

    async def go():
        async with ModelController() as model:
            async with Following(tmp_path, model) as following:
                for number in range(25):
                    model.write(topic(number))
                    await following.reaches(number)
                await following.saves(20)
            # not with each record
            assert len(tries) == 2

    asyncio.run(go())
    assert "a snapshot could not be written" in caplog.text


def test_snapshot_replaces_an_older_image_completely(tmp_path):
    async def go():
        async with ModelController() as model:
            model.write(topic(1), topic(2))
            (tmp_path / "model").mkdir()
            (tmp_path / "own").mkdir()
            async with Following(tmp_path / "own", model) as following:
                await following.reaches(1)
                image = apply(Image(), [topic(2), topic(3)], 9, 1)
                model.end = model.high_watermark = 10
                model.become_snapshot(image, str(tmp_path / "model"), 1)
                assert await following.reaches(9) == {"t2", "t3"}
                deltas = list(iter(following.tail.take, None))
                assert deltas[-1].topic_ids == {(n + 1).to_bytes(16, "big") for n in (1, 3)}

    asyncio.run(go())


def test_previous_copy_is_released_before_its_replacement_starts(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "own").mkdir()
    copy = ObservedLog(LogDir(str(tmp_path / "own")), None, lambda: NOW_MS)
    former = copy._log
    image = apply(Image(), [topic(1)], 9, 1)
    snapshot.write(str(tmp_path / "model"), snapshot.records_of(image), 10, 1, NOW_MS)
    path, end, epoch = snapshot.newest(str(tmp_path / "model"))
    with open(path, "rb") as file:
        copy.take_snapshot(file.read(), end, epoch)
    assert (copy._log.start_offset, copy._log.end_offset) == (10, 10)
    with pytest.raises(LogDeleted):
        former.flush()


def test_inactive_controller_redirects_to_the_active_one(tmp_path):
    async def go():
        async with ModelController(1) as one, ModelController(2, 7) as two:
            one.leader = 2, 7
            two.write(topic(1))
            async with Following(tmp_path, one, two) as following:
                assert await following.reaches(0) == {"t1"}
                assert following.controllers.active_id == 2

    asyncio.run(go())


def test_active_controller_is_retried_at_once_with_its_epoch(tmp_path):
    async def go():
        async with ModelController(1) as one, ModelController(2) as two, \
                ModelController(3, 7) as three:
            one.leader = two.leader = -1, -1
            three.write(topic(1))
            async with Following(tmp_path, one, two, three) as following:
                assert await following.reaches(0) == {"t1"}
            assert [asked.current_leader_epoch for asked in three.requests[:2]] == [0, 7]
            assert len(one.requests) == len(two.requests) == 1

    asyncio.run(go())


def test_up_to_date_start_does_not_wait(tmp_path):
    async def go():
        # The second start has its own controller: requests of the first may still arrive.
        async with ModelController() as before, ModelController() as model:
            for controller in (before, model):
                controller.write(topic(1))
            async with Following(tmp_path, before) as following:
                await following.reaches(0)
            following.log.close()
            async with Following(tmp_path, model) as following, asyncio.timeout(20):
                await following.observer.caught_up.wait()
                while len(model.waits) < 4:
                    await asyncio.sleep(0.005)
            assert model.waits[0] == 0
            assert min(model.waits[1:]) > 0

    asyncio.run(go())


def test_unreachable_controller_is_replaced_and_found_again(tmp_path):
    async def go():
        async with ModelController(2) as two:
            gone = ModelController(1)
            gone.port = free_port()
            two.write(topic(1))
            async with Following(tmp_path, gone, two) as following:
                assert await following.reaches(0) == {"t1"}

    asyncio.run(go())


@pytest.mark.parametrize("row", [
    {"error_code": ErrorCode.UNKNOWN_SERVER_ERROR}, {"partition_index": 3},
    {"records": b"\0" * 61 + b"garbage", "high_watermark": 5}],
    ids=["an error", "another partition", "no batches"])
def test_unusable_response_is_retried(tmp_path, row):
    async def go():
        async with ModelController() as model:
            model.write(topic(1))
            model.bad = [messages.FetchResponse.PartitionData(**row) for _ in range(3)]
            async with Following(tmp_path, model) as following:
                assert await following.reaches(0) == {"t1"}

    asyncio.run(go())


def test_empty_responses_are_not_retried_in_a_loop(tmp_path):
    async def go():
        async with ModelController() as model:
            model.write(NO_OP())
            async with Following(tmp_path, model) as following:
                await following.reaches(0)
                model.requests.clear()
                await asyncio.sleep(0.5)
                # The model responds immediately: the observer must wait.
                assert len(model.requests) <= 12

    asyncio.run(go())
