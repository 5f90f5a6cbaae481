"""The partitions that this broker follows: connections to leaders, and the fetchers' notices.

Owns: the native fetchers, one connection for each fetcher thread and leader, the tasks that connect
  and that query a leader's offsets. Runs on the event loop, except connecting and truncating.
Invariants: a partition is followed once; a log is truncated only while its fetcher waits for that,
  and only for the leader that caused it; a pause separates two connection attempts; no native
  object exists before the first partition is followed; nothing is fetched before this run's
  registration is in force, because a leader could not count such a fetch and would get the new
  epoch only after that fetch has waited; no silent end: a partition whose fetches an error stopped
  is fetched again after a pause, and counted as failed until then.
Source: KIP-101, KIP-227, KIP-595, KIP-903; Kafka's ReplicaFetcherManager and ReplicaFetcherThread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial

from pylog import supervisor
from pylog._native.log.log import LogDeleted, LogError, NotLeader, StorageError
from pylog._native.server import replica_fetcher
from pylog.peer.connection import Peer
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.api import LIST_OFFSETS
from pylog.protocol.errors import ErrorCode
from pylog.replication import truncation

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from pylog._native.log.log import Log
    from pylog._native.server.rate_limit import Throttle
    from pylog.peer.credentials import Credentials
    from pylog.peer.dial import Dialled
    from pylog.replication.departures import Departures
    from pylog.replication.roles import Registered

VERSION = 17  # of Fetch
RENEW_SHARE = 0.85  # of a login's lifetime
LIST_OFFSETS_VERSION = 7
EARLIEST, LATEST = -2, -1
RETRY_S = 0.05
STABLE_S = 10.0  # Reconnect without a pause if the connection lasted this long.
# The leader or this follower lacks the newest metadata: the next image resolves it.
PASSING = frozenset((
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REPLICA_NOT_AVAILABLE))

log = logging.getLogger("pylog.fetcher")


class Partition:
    """A followed partition. failed_ns: CLOCK_MONOTONIC of the last local error that stopped its
    fetches; 0: never.
    """

    def __init__(self, topic_id: bytes, name: str, partition: int, partition_log: Log,
                 leader_id: int, leader_epoch: int, followed: replica_fetcher.Followed, link: Link):
        self.topic_id, self.name, self.partition = topic_id, name, partition
        self.log = partition_log
        self.leader_id, self.leader_epoch = leader_id, leader_epoch
        self.followed, self.link = followed, link
        self.failed_ns = 0

    @property
    def has_failed(self) -> bool:
        """Return True if nothing was fetched since the last local error."""
        return self.failed_ns > self.followed.figures()[1]

    def failed(self) -> None:
        self.failed_ns = int(asyncio.get_running_loop().time() * 1e9)


class Link:
    """A fetcher thread's connection to one leader. serial: of the connection. held: number of its
    partitions.
    """

    def __init__(self, thread: int, leader_id: int):
        self.thread, self.leader_id = thread, leader_id
        self.held = self.serial = 0
        self.pause_s = RETRY_S
        self.since_s = 0.0
        self.dialing: asyncio.Task[None] | None = None


class ReplicaFetchers:
    """dial: (host, port) -> Dialled; blocks and raises PeerError. cut: like Checkpointer.cut.
    departures: receives lost and restored connections. credentials: for offset queries, the same as
    dial uses. throttle: of fetched bytes.
    """

    def __init__(self, settings: Any, node_id: int, dial: Callable[[str, int], Dialled],
                 cut: Callable[[bytes, int, Log, truncation.Cut, int], None],
                 departures: Departures, credentials: Credentials | None = None,
                 throttle: Throttle | None = None):
        self._settings = settings
        self._node_id = node_id
        self._dial = dial
        self._cut = cut
        self._credentials = credentials
        self._throttle = throttle
        self._departures = departures
        self._native: replica_fetcher.Fetchers | None = None
        self._broker_epoch = -1
        self._registered = asyncio.Event()
        self._nodes: dict[int, Registered] = {}
        self._partitions: dict[tuple[bytes, int], int] = {}  # values are tokens
        self._by_token: dict[int, Partition] = {}
        self._links: dict[tuple[int, int], Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._token = self._serial = 0

    # ---- followed partitions --------------------------------------------------------------------

    def follow(self, partition_log: Log, topic_id: bytes, topic_name: str, partition: int,
               leader_id: int, leader_epoch: int) -> None:
        """Start copying that leader's records into the log, replacing any previous leader."""
        self.unfollow(topic_id, partition)
        native = self._started()
        thread = native.thread_of(topic_id, partition)
        link = self._links.get((thread, leader_id))
        if link is None:
            link = self._links[thread, leader_id] = Link(thread, leader_id)
            link.dialing = self._begin_connecting(link)
        link.held += 1
        self._token += 1
        followed = native.follow(
            partition_log, topic_id, partition, leader_id, leader_epoch, self._token)
        self._partitions[topic_id, partition] = self._token
        self._by_token[self._token] = Partition(
            topic_id, topic_name, partition, partition_log, leader_id, leader_epoch, followed,
            link)
        assert len(self._partitions) == len(self._by_token), len(self._by_token)

    def unfollow(self, topic_id: bytes, partition: int) -> None:
        """Stop following the partition; no effect if it is not followed."""
        token = self._partitions.pop((topic_id, partition), None)
        if token is None:
            return
        part = self._by_token.pop(token)
        assert self._native is not None, topic_id
        self._native.unfollow(part.followed)
        part.link.held -= 1
        if part.link.held == 0:
            self._drop(part.link)

    def set_nodes(self, nodes: dict[int, Registered]) -> None:
        """Set the inter-broker addresses, by broker id. Reconnects to a broker that registered
        again: its old machine may have failed without closing the connection, which would be waited
        for.
        """
        before, self._nodes = self._nodes, dict(nodes)
        for link in self._links.values():
            if before.get(link.leader_id) not in (None, self._nodes.get(link.leader_id)):
                if link.dialing is not None:
                    link.dialing.cancel()
                    link.dialing, link.since_s = None, 0.0
                self._reconnect(link)

    def set_broker_epoch(self, broker_epoch: int) -> None:
        """Set the epoch of this broker's registration, once it is in force in the image."""
        self._broker_epoch = broker_epoch
        self._registered.set()
        if self._native is not None:
            self._native.set_broker_epoch(broker_epoch)

    def lag(self) -> list:
        """Return [(topic, partition, leader's id, lag behind the leader's high watermark or -1
        without a response, CLOCK_MONOTONIC in ns of the last successful response or 0)]. Any thread
        may call it.
        """
        return [(part.name, part.partition, part.leader_id, *part.followed.figures()[:2])
                for part in list(self._by_token.values())]

    def stats(self) -> dict[str, int]:
        if self._native is None:
            return {}
        return {**self._native.stats(),
                "failed": sum(part.has_failed for part in list(self._by_token.values()))}

    async def close(self) -> None:
        """Stop all fetchers; nothing is appended after that."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._native is None:
            return
        asyncio.get_running_loop().remove_reader(self._native.fileno())
        await asyncio.to_thread(self._native.stop)
        self._native = None
        self._partitions.clear()
        self._by_token.clear()
        self._links.clear()

    def _started(self) -> replica_fetcher.Fetchers:
        """Return the native fetchers, created on the first call."""
        if self._native is None:
            value = self._settings.__getitem__
            self._native = replica_fetcher.Fetchers(
                threads=min(value("num.replica.fetchers"), replica_fetcher.THREADS_MAX),
                replica_id=self._node_id, wait_ms_max=value("replica.fetch.wait.max.ms"),
                bytes_min=value("replica.fetch.min.bytes"),
                bytes_max=value("replica.fetch.response.max.bytes"),
                partition_bytes_max=value("replica.fetch.max.bytes"),
                backoff_ms_max=value("replica.fetch.backoff.ms"),
                answer_ms_max=value("replica.socket.timeout.ms"),
                flush_first=value("replica.flush.before.fetch.enable"),
                throttle=self._throttle)
            self._native.set_broker_epoch(self._broker_epoch)
            self._native.start()
            asyncio.get_running_loop().add_reader(self._native.fileno(), self._take_notices)
        return self._native

    def _begin_connecting(self, link: Link) -> asyncio.Task[None]:
        return self._begin(supervisor.restarting(
            "replica fetcher", partial(self._connect, link), leader=link.leader_id))

    def _begin_repair(self, token: int, part: Partition, work: Coroutine[Any, Any, None]) -> None:
        self._begin(self._repair(token, part, work))

    async def _repair(self, token: int, part: Partition, work: Coroutine[Any, Any, None]) -> None:
        """Run the work that lets a stopped partition be fetched again. After any error, fetching
        resumes later.
        """
        try:
            await work
        except Exception:
            part.failed()
            supervisor.report("replica fetcher", "a replica cannot follow its leader; retrying",
                              topic=part.name, partition=part.partition, leader=part.leader_id)
            await self._resume_later(token)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(
            supervisor.reporting("replica fetcher", work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- connections ----------------------------------------------------------------------------

    async def _connect(self, link: Link) -> None:
        """Connect, retrying until there is a connection."""
        is_logged = False
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() - link.since_s < STABLE_S and link.since_s:
                await self._pause(link)
            link.since_s = loop.time()
            address = self._nodes.get(link.leader_id)
            try:
                made = None if address is None else await self._dialed(
                    (address.host, address.port))
            except PeerError as error:
                made = None
                if not is_logged:
                    log.warning("a leader cannot be reached", extra={
                        "leader": link.leader_id, "reason": str(error)})
                is_logged = True
            if made is not None:
                await self._attach_registered(link, made)
                return

    async def _pause(self, link: Link) -> None:
        """Pause before the next connection attempt."""
        await asyncio.sleep(link.pause_s)
        most = self._settings["replica.fetch.backoff.ms"] / 1000
        link.pause_s = max(min(2 * link.pause_s, most), RETRY_S)

    async def _dialed(self, address: tuple[str, int]) -> Dialled:
        dialing = asyncio.get_running_loop().run_in_executor(None, self._dial, *address)
        try:
            return await asyncio.shield(dialing)
        except asyncio.CancelledError:
            dialing.add_done_callback(_close_dialed)
            raise

    async def _attach_registered(self, link: Link, made: Dialled) -> None:
        """Attach the connection once this run's registration is in force."""
        try:
            await self._registered.wait()
        except asyncio.CancelledError:
            made.socket.close()
            raise
        self._attach(link, made)

    def _attach(self, link: Link, made: Dialled) -> None:
        """Give the connection to the fetcher thread, replacing an earlier one."""
        assert self._native is not None, link.leader_id
        size = self._settings["replica.socket.receive.buffer.bytes"]
        if size > 0:
            made.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        self._serial += 1
        link.serial = self._serial
        link.dialing = None
        self._native.attach(link.thread, link.leader_id, made.socket.detach(), VERSION,
                            self._serial, None if made.tls is None else made.tls.give())
        self._departures.back(link.leader_id)
        if made.login_ms > 0:
            asyncio.get_running_loop().call_later(
                RENEW_SHARE * made.login_ms / 1000, self._log_in_again, link, self._serial)

    def _log_in_again(self, link: Link, serial: int) -> None:
        """Log in on a new connection, which replaces this one once it is ready."""
        if self._links.get((link.thread, link.leader_id)) is link and link.serial == serial \
                and link.dialing is None:
            link.dialing = self._begin_connecting(link)

    def _reconnect(self, link: Link) -> None:
        if link.dialing is None:
            assert self._native is not None, link.leader_id
            self._native.detach(link.thread, link.leader_id)
            link.dialing = self._begin_connecting(link)

    def _drop(self, link: Link) -> None:
        del self._links[link.thread, link.leader_id]
        if link.dialing is not None:
            link.dialing.cancel()
        assert self._native is not None, link.leader_id
        self._native.detach(link.thread, link.leader_id)

    # ---- notices --------------------------------------------------------------------------------

    def check_leaders(self) -> None:
        """Process the pending notices now, without waiting for the event loop."""
        if self._native is not None:
            self._take_notices()

    def _take_notices(self) -> None:
        assert self._native is not None
        for notice in self._native.take():
            try:
                self._take_notice(notice)
            except Exception:
                # Continue: the other notices concern other partitions.
                supervisor.report("replica fetcher", token=notice.token, kind=notice.kind)

    def _take_notice(self, notice: replica_fetcher.Notice) -> None:
        if notice.kind == replica_fetcher.LOST:
            self._lost(notice)
            return
        part = self._by_token.get(notice.token)
        if part is None:
            return
        if notice.kind == replica_fetcher.REFUSED:
            self._refused(part, notice)
        elif notice.kind == replica_fetcher.DIVERGED:
            self._begin_repair(notice.token, part, self._truncate(notice, part))
        elif notice.kind == replica_fetcher.OUT_OF_RANGE:
            self._begin_repair(notice.token, part, self._find_range(notice.token, part))
        else:
            self._failed(notice.token, part, notice)

    def _lost(self, notice: replica_fetcher.Notice) -> None:
        for link in self._links.values():
            if link.serial == notice.token and link.dialing is None:
                log.info("the connection to a leader is lost", extra={
                    "leader": link.leader_id, "error": notice.code})
                self._departures.lost(link.leader_id)
                if asyncio.get_running_loop().time() - link.since_s > STABLE_S:
                    link.pause_s = RETRY_S
                link.dialing = self._begin_connecting(link)

    def _refused(self, part: Partition, notice: replica_fetcher.Notice) -> None:
        if notice.code < 0:
            log.error("records from a leader cannot be appended", extra={
                "topic": part.name, "partition": part.partition, "leader": part.leader_id,
                "error": notice.code})
        elif notice.code not in PASSING:
            log.warning("a leader rejected a fetch", extra={
                "topic": part.name, "partition": part.partition, "leader": part.leader_id,
                "error": ErrorCode.of(notice.code).name})

    def _failed(self, token: int, part: Partition, notice: replica_fetcher.Notice) -> None:
        log.error("a replica cannot follow", extra={
            "topic": part.name, "partition": part.partition, "error": notice.code})
        part.failed()
        # A resource shortage may be over; a failed disk stays failed.
        if not part.log.offline:
            self._begin(self._resume_later(token))

    async def _resume_later(self, token: int) -> None:
        await asyncio.sleep(self._settings["replica.fetch.backoff.ms"] / 1000 + RETRY_S)
        self._resume(token)

    async def _truncate(self, notice: replica_fetcher.Notice, part: Partition) -> None:
        own_epoch, own_end = part.log.end_for_epoch(notice.epoch)
        log_end = part.log.end_offset
        goal = truncation.on_divergence(
            notice.end_offset, notice.epoch, own_epoch, own_end, log_end)
        log.info("a replica diverges from its leader and is truncated", extra={
            "topic": part.name, "partition": part.partition, "leader": part.leader_id,
            "epoch": notice.epoch, "leader_end": notice.end_offset, "end": log_end,
            "truncated_to": goal})
        if goal < part.log.high_watermark:
            log.warning("committed records are truncated because of an unclean election",
                        extra={"topic": part.name, "partition": part.partition,
                               "high_watermark": part.log.high_watermark, "truncated_to": goal})
        await self._apply(notice.token, part, truncation.Cut(goal, None))

    async def _find_range(self, token: int, part: Partition) -> None:
        try:
            start, end = await self._ends_of(part)
        except PeerError as error:
            log.warning("a leader does not report its log's start and end offsets", extra={
                "topic": part.name, "partition": part.partition, "reason": str(error)})
            await asyncio.sleep(RETRY_S)
            self._resume(token)
            return
        cut = truncation.out_of_range(start, end, part.log.end_offset)
        log.warning("a replica is out of its leader's range", extra={
            "topic": part.name, "partition": part.partition, "leader": part.leader_id,
            "leader_start": start, "leader_end": end, "end": part.log.end_offset})
        await self._apply(token, part, cut)

    async def _ends_of(self, part: Partition) -> tuple[int, int]:
        """Return (log start offset, log end offset) of the partition's leader. Raises PeerError."""
        address = self._nodes.get(part.leader_id)
        if address is None:
            raise PeerError(f"broker {part.leader_id} has no address")
        peer = await Peer.connect(address.host, address.port,
                                  client_id=f"broker-{self._node_id}-offsets",
                                  credentials=self._credentials)
        try:
            return await _list_offset(peer, self._node_id, part, EARLIEST), \
                await _list_offset(peer, self._node_id, part, LATEST)
        finally:
            peer.close()

    async def _apply(self, token: int, part: Partition, cut: truncation.Cut) -> None:
        """Truncate for a stopped fetcher, if the partition still follows the leader that caused it.
        """
        if self._by_token.get(token) is not part:
            return
        try:
            await asyncio.to_thread(
                self._cut, part.topic_id, part.partition, part.log, cut, part.leader_epoch)
        except (LogDeleted, NotLeader):
            return  # Deleted, or in another role: the code that changed it unfollows.
        except LogError as error:
            log.error("a replica cannot be truncated", extra={
                "topic": part.name, "partition": part.partition, "reason": str(error)})
            part.failed()
            if isinstance(error, StorageError):
                return
        self._resume(token)

    def _resume(self, token: int) -> None:
        part = self._by_token.get(token)
        if part is not None and self._native is not None:
            self._native.resume(part.followed)


async def _list_offset(peer: Peer, node_id: int, part: Partition, timestamp: int) -> int:
    new = messages.ListOffsetsRequest
    response = await peer.call(new(
        replica_id=node_id, isolation_level=0, topics=[new.ListOffsetsTopic(
            name=part.name, partitions=[new.ListOffsetsPartition(
                partition_index=part.partition, current_leader_epoch=-1,
                timestamp=timestamp)])]),
        await peer.newest(LIST_OFFSETS, LIST_OFFSETS_VERSION))
    rows = [row for topic in response.topics for row in topic.partitions]
    if len(rows) != 1 or rows[0].error_code:
        raise PeerError(f"ListOffsets: {[row.error_code for row in rows]}")
    offset: int = rows[0].offset
    return offset


def _close_dialed(dialing: asyncio.Future[Dialled]) -> None:
    if not dialing.cancelled() and dialing.exception() is None:
        dialing.result().socket.close()
