"""Follows the active controller's metadata log: fetches it, stores it, and folds committed records.

Owns: the connection to the current controller; the log's end while it runs.
Invariants: only records below the controller's high watermark reach the tail; records that diverge
  from the new controller's log are truncated here, but never committed ones; a pause follows a
  response without data, so that the loop never spins; after any error, the next controller is
  tried, without end.
Source: KIP-595 (Fetch of the metadata log), KIP-630 (FetchSnapshot), KIP-1166 (high watermark in
  the request).
"""

from __future__ import annotations

import asyncio
import logging

from pylog import supervisor
from pylog._native.log.log import LogError
from pylog.eventloop.threads import in_thread
from pylog.metadata.image.image import MetadataError
from pylog.metadata.image.state_store import METADATA_LOG_ID
from pylog.peer.connection import Peer
from pylog.peer.errors import PeerError
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from typing import Any

    from pylog.metadata.image.loader import Tail
    from pylog.metadata.log.replica_log import ObservedLog
    from pylog.peer.controllers import Controllers
    from pylog.peer.credentials import Credentials

TOPIC = "__cluster_metadata"
FETCH_VERSION, SNAPSHOT_VERSION = 18, 1
FETCH_SNAPSHOT = 59
WAIT_MS = 500
SNAPSHOT_BYTES_MAX = 1 << 30
RECORDS_MAX = 1000  # published together
PAUSE_S, PAUSE_MAX_S = 0.02, 1.0
QUICK_S = 0.05  # An empty response that arrives sooner did not come from a long poll.
# Errors of a node that is not the controller, or has not read of its election yet.
MOVED = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH,
                   ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.BROKER_NOT_AVAILABLE))

log = logging.getLogger("pylog.observer")


class Refused(Exception):
    """The controller responded with an error."""

    def __init__(self, code: int):
        super().__init__(ErrorCode.of(code).name)
        self.code = code


class Observer:
    """log_copy: this node's copy of the log; tail: receives committed records; controllers:
    addresses, shared with the channel. directory_id: of the log directory with the copy.
    credentials: for connections to controllers.
    """

    def __init__(self, log_copy: ObservedLog, tail: Tail, controllers: Controllers, *,
                 node_id: int, cluster_id: str, directory_id: bytes, settings: Any,
                 credentials: Credentials | None = None):
        self._credentials = credentials
        self._log = log_copy
        self._tail = tail
        self._controllers = controllers
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._directory_id = directory_id
        self._timeout_s = settings["controller.quorum.request.timeout.ms"] / 1000
        self._bytes_max = settings["controller.quorum.fetch.max.bytes"]
        self._snapshot_bytes = settings["controller.quorum.fetch.snapshot.max.bytes"]
        self._retry_s = settings["controller.quorum.retry.backoff.ms"] / 1000
        self._pause_s = 0.0
        self._reported: str | None = None
        self.caught_up = asyncio.Event()  # set at the initial committed end

    async def run(self) -> None:
        """Follow the log until cancelled; after any error, try the next controller."""
        while True:
            requested = self._controllers.next()
            try:
                peer = await Peer.connect(
                    requested.host, requested.port, f"broker-{self._node_id}-observer",
                    self._timeout_s, self._credentials)
                try:
                    await self._follow(peer, requested.id)
                finally:
                    peer.close()
            except (PeerError, Refused, LogError, MetadataError, OSError, ValueError) as error:
                # ValueError: undecodable records or batches.
                self._controllers.failed(requested.id)
                self._report(requested, error)
            except Exception as error:
                self._controllers.failed(requested.id)
                supervisor.report("metadata observer", "the metadata log could not be followed",
                                  controller=requested.id, reason=str(error))
            self._pause_s = min(max(self._retry_s, PAUSE_S, 2 * self._pause_s), PAUSE_MAX_S)
            await asyncio.sleep(self._pause_s)

    def _report(self, requested, error: Exception) -> None:
        """Log each new reason once. Errors of an election, and its end, are not logged."""
        text = f"{type(error).__name__}: {error}"
        if text != self._reported and not (isinstance(error, Refused) and error.code in MOVED):
            log.warning("cannot fetch the metadata log from a controller; retrying", extra={
                "controller": requested.id, "reason": str(error)})
            self._reported = text

    async def _follow(self, peer: Peer, requested_id: int) -> None:
        """Fetch from one controller until another one is selected."""
        loop = asyncio.get_running_loop()
        version = await peer.newest(api.FETCH, FETCH_VERSION)
        while self._controllers.next().id == requested_id:
            began_s = loop.time()
            response = await peer.call(self._request(), version, self._timeout_s + WAIT_MS / 1000)
            if response.error_code:
                raise Refused(response.error_code)
            row = response.responses[0].partitions[0] if response.responses else None
            if row is None or row.partition_index != 0:
                raise PeerError("the response is for another partition")
            progress = await self._take(peer, row, response.node_endpoints)
            if progress:
                self._pause_s, self._reported = 0.0, None
            elif loop.time() - began_s < QUICK_S:
                # Pause, so that empty responses do not make the loop spin.
                await asyncio.sleep(QUICK_S)

    def _request(self):
        new = messages.FetchRequest
        epoch = self._epoch_known()
        return new(
            cluster_id=self._cluster_id, min_bytes=0,
            # A start needs only the current end, so it does not long poll.
            max_wait_ms=WAIT_MS if self.caught_up.is_set() else 0,
            max_bytes=self._bytes_max, session_id=0, session_epoch=-1,
            replica_state=new.ReplicaState(replica_id=self._node_id),
            topics=[new.FetchTopic(topic_id=METADATA_LOG_ID, partitions=[new.FetchPartition(
                partition=0, current_leader_epoch=epoch, fetch_offset=self._log.end_offset,
                last_fetched_epoch=self._log.last_epoch, partition_max_bytes=self._bytes_max,
                replica_directory_id=self._directory_id,
                high_watermark=self._log.committed)])])

    def _epoch_known(self) -> int:
        """Return the newest known epoch, also from records: an older controller would truncate
        records committed since. At least 0: Kafka's controllers do not accept -1 as an epoch.
        """
        return max(self._controllers.epoch, self._log.last_epoch, 0)

    async def _take(self, peer: Peer, row, endpoints) -> bool:
        """Process one partition's response. Returns True if it brought anything new."""
        leader, epoch = row.current_leader, self._controllers.epoch
        if leader.leader_epoch >= 0:
            self._learn(leader, endpoints)
        if row.error_code == ErrorCode.FENCED_LEADER_EPOCH and self._controllers.epoch > epoch:
            # This peer is the active controller; repeat the request with its epoch.
            return True
        if row.error_code:
            raise Refused(row.error_code)
        if row.snapshot_id.end_offset >= 0:
            await self._fetch_snapshot(peer, row.snapshot_id)
        elif row.diverging_epoch.epoch >= 0:
            before = self._log.end_offset
            await in_thread(self._log.diverged, row.diverging_epoch.epoch,
                            row.diverging_epoch.end_offset)
            return self._log.end_offset != before
        elif not row.records and row.high_watermark <= self._log.committed:
            self._check_caught_up(row.high_watermark)
            return False
        else:
            await self._grow(row.records, row.high_watermark)
        self._check_caught_up(row.high_watermark)
        return True

    def _learn(self, leader, endpoints) -> None:
        if leader.leader_epoch < self._log.last_epoch:
            return  # This controller has not read of its successor yet.
        self._controllers.learned(leader.leader_id, leader.leader_epoch, [
            (node.node_id, node.host, node.port) for node in endpoints])

    async def _grow(self, records, high_watermark: int) -> None:
        """Store records; push only committed ones to the tail."""
        for batch in await in_thread(self._new_records, records, high_watermark):
            self._tail.push(await in_thread(self._tail.fold, batch))
        image = self._tail.newest
        if not self._tail.in_transaction and self._log.snapshot_is_due(image.offset):
            await in_thread(self._log.shorten, image)

    def _new_records(self, records, high_watermark: int) -> list:
        """Append the bytes; return the records that they commit, as MetadataBatches. Blocks."""
        if records:
            self._log.follow(records)
        self._log.commit(high_watermark)
        return list(together(self._log.read_committed(self._tail.newest.offset + 1)))

    def _check_caught_up(self, high_watermark: int) -> None:
        if 0 <= high_watermark <= self._tail.newest.offset + 1:
            self.caught_up.set()

    # ---- snapshots ------------------------------------------------------------------------------

    async def _fetch_snapshot(self, peer: Peer, wanted) -> None:
        """Load the controller's snapshot: the log here ends before the controller's log begins."""
        version = await peer.newest(FETCH_SNAPSHOT, SNAPSHOT_VERSION)
        data = bytearray()
        while True:
            part = await self._snapshot_part(peer, version, wanted, len(data))
            if part.position != len(data) or not 0 <= part.size <= SNAPSHOT_BYTES_MAX \
                    or not part.unaligned_records and len(data) < part.size:
                raise PeerError(f"a snapshot of {part.size} bytes continues at {part.position}, "
                                f"not at {len(data)}")
            data += part.unaligned_records
            if len(data) >= part.size:
                break
        await in_thread(self._log.take_snapshot, data, wanted.end_offset, wanted.epoch)
        batch = await in_thread(lambda: next(self._log.read_committed(0)))
        self._tail.replace(batch)
        log.info("a metadata snapshot was loaded", extra={
            "end": wanted.end_offset, "bytes": len(data)})

    async def _snapshot_part(self, peer: Peer, version: int, wanted, position: int):
        new = messages.FetchSnapshotRequest
        response = await peer.call(new(
            cluster_id=self._cluster_id, replica_id=self._node_id, max_bytes=self._snapshot_bytes,
            topics=[new.TopicSnapshot(name=TOPIC, partitions=[new.PartitionSnapshot(
                partition=0, current_leader_epoch=self._epoch_known(), position=position,
                snapshot_id=new.SnapshotId(end_offset=wanted.end_offset, epoch=wanted.epoch),
                replica_directory_id=self._directory_id)])]), version, self._timeout_s)
        if response.error_code:
            raise Refused(response.error_code)
        part = response.topics[0].partitions[0]
        if part.current_leader.leader_epoch >= 0:
            self._learn(part.current_leader, response.node_endpoints)
        if part.error_code:
            raise Refused(part.error_code)
        return part



def together(batches):
    """Yield MetadataBatches with about RECORDS_MAX records: most contain one record, a no-op."""
    last, records = None, []
    for last in batches:
        records += last.records
        if len(records) >= RECORDS_MAX:
            yield last._replace(records=records)
            last, records = None, []
    if last is not None:
        yield last._replace(records=records)
