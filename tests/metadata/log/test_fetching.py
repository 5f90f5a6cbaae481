"""An observer's requests, targets and timing, and its handling of responses: time is virtual, the
log's copy and the controllers are simulated.
"""

import asyncio
import logging

import pytest

from pylog.config import Settings
from pylog.metadata.image.image import Image
from pylog.metadata.image.loader import Tail
from pylog.metadata.log import fetcher
from pylog.metadata.log.fetcher import Observer, together
from pylog.metadata.log.metadata_log import MetadataBatch
from pylog.peer.controllers import Controller, Controllers
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.virtual import run

FETCH, SNAPSHOT = messages.FetchResponse, messages.FetchSnapshotResponse
SIZE_MAX = 1 << 30


class Copy:
    """The log's copy; `told`: its appends, truncations and trims."""

    def __init__(self):
        self.end_offset, self.last_epoch, self.committed = 0, 0, 0
        self.told, self.batches, self.is_due, self.cuts_to = [], [], False, None

    def follow(self, data):
        self.told.append(("follow", data))
        self.end_offset += 1
        self.batches.append(MetadataBatch(self.end_offset - 1, 1, [messages.NoOpRecord()]))

    def commit(self, high_watermark):
        self.committed = max(self.committed, high_watermark)

    def read_committed(self, offset):
        return iter([batch for batch in self.batches
                     if offset <= batch.last_offset < self.committed])

    def diverged(self, epoch, end_offset):
        self.told.append(("diverged", epoch, end_offset))
        self.end_offset = end_offset if self.cuts_to is None else self.cuts_to

    def snapshot_is_due(self, offset):
        return self.is_due

    def shorten(self, image):
        self.told.append(("shorten", image.offset))

    def take_snapshot(self, data, end_offset, epoch):
        self.told.append(("snapshot", bytes(data), end_offset, epoch))
        self.end_offset = self.committed = end_offset
        self.batches = [MetadataBatch(end_offset - 1, epoch, [])]


class World:
    """answers: the controllers' responses, in order: a response, an exception, or (seconds, one of
    both). Then they do not respond. `asked`: [(time, controller, request, timeout)].
    """

    def __init__(self, monkeypatch, answers=(), voters=(1, 2), **settings):
        self.answers, self.asked, self.dials, self.open = list(answers), [], [], 0
        self.log, self.tail = Copy(), Tail(Image())
        self.controllers = Controllers({id_: Controller(id_, f"h{id_}", 9) for id_ in voters})
        self.observer = Observer(
            self.log, self.tail, self.controllers, node_id=9, cluster_id="c",
            directory_id=b"d" * 16, settings=Settings({
                name.replace("_", "."): value for name, value in settings.items()}))
        monkeypatch.setattr(fetcher, "Peer", self)

    async def connect(self, host, port, client_id, timeout_s, credentials):
        self.dials.append((asyncio.get_running_loop().time(), int(host[1:])))
        if self.answers and self.answers[0] == "no connection":
            self.answers.pop(0)
            raise PeerError("no connection")
        self.open += 1
        return Peer(self, int(host[1:]))

    def follow(self, seconds=60.0, then=lambda world: None):
        """Run for this long."""
        async def go(loop):
            self.began_s = loop.time()
            task = loop.create_task(self.observer.run())
            await asyncio.sleep(seconds)
            assert not task.done()
            task.cancel()
            await asyncio.wait([task])
            assert self.open == 0  # Each connection is closed.

        run(go)
        return self

    @property
    def requests(self):
        """Return the partition of each Fetch."""
        return [request.topics[0].partitions[0] for _, _, request, _ in self.asked]

    def gaps(self, times):
        return [round(after - before, 3) for before, after in zip(times, times[1:])]


class Peer:
    def __init__(self, world, id_):
        self.world, self.id = world, id_

    async def newest(self, api, version):
        return version

    async def call(self, request, version, timeout_s):
        loop, world = asyncio.get_running_loop(), self.world
        world.asked.append((loop.time(), self.id, request, timeout_s))
        if not world.answers:
            await asyncio.get_running_loop().create_future()
        answer = world.answers.pop(0)
        if isinstance(answer, tuple):
            await asyncio.sleep(answer[0])
            answer = answer[1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        self.world.open -= 1


def fetched(leader=(-1, -1), endpoints=(), error=0, **fields):
    """Return a Fetch response of one partition."""
    row = FETCH.PartitionData(**{"high_watermark": 0, "records": b"", **fields})
    row.current_leader = FETCH.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
    return FETCH(error_code=error, node_endpoints=[
        FETCH.NodeEndpoint(node_id=id_, host=host, port=port) for id_, host, port in endpoints],
        responses=[FETCH.FetchableTopicResponse(partitions=[row])])


def grown(high_watermark=1, **fields):
    return fetched(records=b"batch", high_watermark=high_watermark, **fields)


def part(position, size, data, leader=(-1, -1), error=0, all_of_it=0):
    """Return a FetchSnapshot response."""
    return SNAPSHOT(error_code=all_of_it, topics=[SNAPSHOT.TopicSnapshot(partitions=[
        SNAPSHOT.PartitionSnapshot(
            error_code=error, position=position, size=size, unaligned_records=data,
            current_leader=SNAPSHOT.LeaderIdAndEpoch(
                leader_id=leader[0], leader_epoch=leader[1]))])])


def begins_later(end=8, epoch=3):
    return fetched(snapshot_id=FETCH.SnapshotId(end_offset=end, epoch=epoch))


@pytest.mark.parametrize(("backoff", "pauses"), [
    ("20", [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]), ("0", [0.02, 0.04, 0.08]),
    ("300", [0.3, 0.6, 1.0, 1.0]), ("9000", [1.0, 1.0])])
def test_dial_backoff_doubles_up_to_a_second_and_rotates_controllers(
        monkeypatch, backoff, pauses):
    world = World(monkeypatch, ["no connection"] * 8,
                  controller_quorum_retry_backoff_ms=backoff).follow()
    assert world.gaps([at for at, _ in world.dials])[:len(pauses)] == pauses
    assert [id_ for _, id_ in world.dials[:4]] == [1, 2, 1, 2]


def test_backoff_restarts_after_a_useful_response(monkeypatch):
    world = World(monkeypatch, [
        *["no connection"] * 4, grown(), PeerError("gone"), "no connection"]).follow()
    assert world.gaps([at for at, _ in world.dials])[-2:] == pytest.approx([0.02, 0.04], abs=0.01)


@pytest.mark.parametrize(("seconds", "pause"), [(0, 0.05), (0.04, 0.05), (0.06, 0), (0.5, 0)])
def test_fast_empty_response_is_followed_by_a_pause(
        monkeypatch, seconds, pause):
    world = World(monkeypatch, [grown(), (seconds, fetched())]).follow()
    assert world.asked[2][0] - world.asked[1][0] == pytest.approx(seconds + pause)


def test_observer_sends_its_end_and_long_polls_only_when_caught_up(monkeypatch):
    world = World(monkeypatch, [
        grown(high_watermark=2), grown(high_watermark=2), fetched(high_watermark=2)],
        controller_quorum_request_timeout_ms="3000").follow()
    assert [(asked.fetch_offset, asked.high_watermark) for asked in world.requests] == [
        (0, 0), (1, 2), (2, 2), (2, 2)]
    assert [request.max_wait_ms for _, _, request, _ in world.asked] == [0, 0, 500, 500]
    assert {timeout_s for _, _, _, timeout_s in world.asked} == {3.5}
    request, asked = world.asked[0][2], world.requests[0]
    assert (request.cluster_id, request.min_bytes, request.session_epoch) == ("c", 0, -1)
    assert request.replica_state.replica_id == 9
    assert (asked.partition, asked.current_leader_epoch, asked.last_fetched_epoch) == (0, 0, 0)
    assert asked.replica_directory_id == b"d" * 16


@pytest.mark.parametrize(("high_watermark", "caught_up"), [(-1, False), (0, True), (1, False)])
def test_start_is_caught_up_at_the_known_committed_end(
        monkeypatch, high_watermark, caught_up):
    world = World(monkeypatch, [fetched(high_watermark=high_watermark)]).follow()
    assert world.observer.caught_up.is_set() == caught_up


@pytest.mark.parametrize(("log_epoch", "known", "asked"), [
    (0, -1, 0), (4, -1, 4), (4, 6, 6), (4, 3, 4)])
def test_observer_sends_the_newest_known_epoch(monkeypatch, log_epoch, known, asked):
    world = World(monkeypatch, [])
    world.log.last_epoch = log_epoch
    world.controllers.epoch = known
    assert world.follow().requests[0].current_leader_epoch == asked


@pytest.mark.parametrize(("epoch", "active", "known"), [(-1, -1, -1), (2, -1, -1), (3, 2, 3),
                                                        (4, 2, 4)])
def test_only_a_leader_as_new_as_the_records_is_trusted(
        monkeypatch, epoch, active, known):
    world = World(monkeypatch, [
        fetched(leader=(2, epoch), endpoints=[(2, "h22", 7)], high_watermark=-1)])
    world.log.last_epoch = 3
    world.follow()
    assert (world.controllers.active_id, world.controllers.epoch) == (active, known)
    assert [id_ for _, id_ in world.dials] == ([1] if active == -1 else [1, 22])


def test_fenced_request_is_retried_at_once_with_the_new_epoch(monkeypatch):
    world = World(monkeypatch, [
        fetched(leader=(1, 5), error_code=E.FENCED_LEADER_EPOCH, high_watermark=-1)]).follow()
    assert len(world.dials) == 1 and world.requests[1].current_leader_epoch == 5
    assert world.asked[1][0] == world.asked[0][0]


def test_controller_that_fences_without_a_newer_epoch_is_abandoned(monkeypatch):
    answer = fetched(leader=(1, 5), error_code=E.FENCED_LEADER_EPOCH, high_watermark=-1)
    world = World(monkeypatch, [answer, answer]).follow()
    assert [id_ for _, id_ in world.dials] == [1, 2]


@pytest.mark.parametrize("answer", [
    fetched(error=E.INVALID_REQUEST), fetched(error_code=E.UNKNOWN_SERVER_ERROR),
    fetched(partition_index=1), FETCH(responses=[]), PeerError("gone"), OSError(5, "disk"),
    ValueError("damaged"), RuntimeError("a bug")])
def test_another_controller_is_tried_after_any_error(monkeypatch, answer):
    world = World(monkeypatch, [answer]).follow()
    assert [id_ for _, id_ in world.dials] == [1, 2] and not world.observer.caught_up.is_set()


def reports(caplog):
    return [record.getMessage() for record in caplog.records
            if record.levelno >= logging.WARNING]


def test_repeated_fetch_error_is_logged_once(
        monkeypatch, caplog):
    again = [PeerError("a"), PeerError("a")]
    World(monkeypatch, [*again, PeerError("b"), PeerError("a"), grown(), PeerError("a")]).follow()
    assert len(reports(caplog)) == 4


@pytest.mark.parametrize(("code", "count"), [
    (E.NOT_LEADER_OR_FOLLOWER, 0), (E.UNKNOWN_LEADER_EPOCH, 0), (E.UNKNOWN_SERVER_ERROR, 1)])
def test_an_election_is_no_news(monkeypatch, caplog, code, count):
    World(monkeypatch, [fetched(error_code=code)]).follow()
    assert len(reports(caplog)) == count


@pytest.mark.parametrize(("cuts_to", "pauses"), [(1, False), (2, True)])
def test_diverging_records_are_truncated_without_a_busy_loop(
        monkeypatch, cuts_to, pauses):
    world = World(monkeypatch, [
        fetched(diverging_epoch=FETCH.EpochEndOffset(epoch=0, end_offset=1), high_watermark=0)])
    world.log.end_offset, world.log.cuts_to = 2, cuts_to
    world.follow()
    assert world.log.told == [("diverged", 0, 1)]
    assert (world.asked[1][0] - world.asked[0][0] >= 0.05) == pauses
    assert not world.observer.caught_up.is_set()


def test_records_and_high_watermark_may_arrive_separately(
        monkeypatch):
    world = World(monkeypatch, [grown(high_watermark=0), fetched(high_watermark=1)]).follow()
    assert world.log.told == [("follow", b"batch")]
    assert world.tail.newest.offset == 0 and world.observer.caught_up.is_set()


def test_long_log_is_trimmed_but_not_during_a_transaction(monkeypatch):
    world = World(monkeypatch, [grown()])
    world.log.is_due = True
    assert ("shorten", 0) in world.follow().log.told
    world = World(monkeypatch, [fetched(high_watermark=1)])
    world.log.is_due = True
    world.log.batches = [MetadataBatch(0, 1, [messages.BeginTransactionRecord(name="t")])]
    assert world.follow().log.told == [] and world.tail.in_transaction


def test_chunked_snapshot_replaces_the_log(monkeypatch):
    world = World(monkeypatch, [begins_later(), part(0, 5, b"abc"), part(3, 5, b"de")],
                  controller_quorum_request_timeout_ms="3000").follow()
    assert world.log.told == [("snapshot", b"abcde", 8, 3)] and world.tail.newest.offset == 7
    asked = [(request.topics[0].partitions[0], request, timeout_s)
             for _, _, request, timeout_s in world.asked[1:3]]
    assert [row.position for row, _, _ in asked] == [0, 3]
    for row, request, timeout_s in asked:
        assert (row.snapshot_id.end_offset, row.snapshot_id.epoch, row.partition) == (8, 3, 0)
        assert (row.current_leader_epoch, request.replica_id, timeout_s) == (0, 9, 3.0)


def test_empty_snapshot_is_valid(monkeypatch):
    world = World(monkeypatch, [begins_later(), part(0, 0, b"")]).follow()
    assert world.log.told == [("snapshot", b"", 8, 3)]


@pytest.mark.parametrize("answer", [
    part(1, 5, b"abc"), part(0, -1, b"abc"), part(0, SIZE_MAX + 1, b"abc"), part(0, 5, b""),
    part(0, 5, b"abc", error=E.SNAPSHOT_NOT_FOUND),
    part(0, 3, b"abc", all_of_it=E.INVALID_REQUEST)])
def test_invalid_snapshot_chunk_is_rejected_and_another_controller_tried(monkeypatch, answer):
    world = World(monkeypatch, [begins_later(), answer]).follow()
    assert world.log.told == [] and [id_ for _, id_ in world.dials] == [1, 2]


def test_chunk_of_the_largest_snapshot_is_accepted(monkeypatch):
    world = World(monkeypatch, [begins_later(), part(0, SIZE_MAX, b"abc")]).follow()
    assert len(world.dials) == 1 and len(world.asked) == 3


@pytest.mark.parametrize(("leader", "known"), [((2, 6), 6), ((-1, -1), -1), ((2, 0), 0)])
def test_a_parts_leader_is_learned_too(monkeypatch, leader, known):
    world = World(monkeypatch, [
        begins_later(), part(0, 5, b"", leader=leader, error=E.NOT_LEADER_OR_FOLLOWER)]).follow()
    assert world.controllers.epoch == known


@pytest.mark.parametrize(("sizes", "sums"), [
    ([], []), ([1], [1]), ([2, 1], [3]), ([2, 1, 1], [3, 1]), ([2, 2, 3, 1], [4, 3, 1]),
    ([5], [5]), ([1, 1], [2])])
def test_small_batches_are_put_into_force_together(monkeypatch, sizes, sums):
    monkeypatch.setattr(fetcher, "RECORDS_MAX", 3)
    batches, last = [], -1
    for size in sizes:
        last += size
        batches.append(MetadataBatch(last, 4, [messages.NoOpRecord()] * size))
    found = list(together(batches))
    assert [len(batch.records) for batch in found] == sums
    assert [batch.last_offset for batch in found][-1:] == ([last] if sizes else [])


def test_fetch_requests_the_configured_bytes(monkeypatch):
    world = World(monkeypatch, controller_quorum_fetch_max_bytes="54321").follow()
    assert world.asked[0][2].max_bytes == 54_321
    assert world.requests[0].partition_max_bytes == 54_321
