"""The partitions that this broker leads: their followers, and ISR requests to the controller.

Owns: an Isr for each led partition, the current AlterPartition request.
Invariants: all proposals of one event loop turn share one request, and one request is in flight at
  a time; the high watermark waits for the maximal ISR, so the log gets a proposal before the
  controller does; after a response that decides nothing, there is a pause and the same proposals
  are repeated, because an earlier attempt may have been executed; a partition that is no longer led
  is not proposed, and responses for it are ignored.
Source: KIP-497, KIP-903; Kafka's AlterPartitionManager and ReplicaManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections import namedtuple

from pylog import supervisor
from pylog._native.log.log import LogError
from pylog.metadata.controller.partitions.partition_change import is_online
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.replication.isr import Follower, Isr, LeaderLog

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog.metadata.image.image import Image
    from pylog.replication.channel import ControllerChannel

AGAIN_S, AGAIN_MAX_S = 0.1, 1.0
PARTITIONS_MAX = 1000  # per request

log = logging.getLogger("pylog.replication")

Led = namedtuple("Led", ("name", "log", "isr"))


class Leadership:
    """channel: to the active controller. now_ns: CLOCK_MONOTONIC."""

    def __init__(self, node_id: int, channel: ControllerChannel, settings: Any,
                 now_ns: Callable[[], int]):
        self._node_id = node_id
        self._channel = channel
        self._settings = settings
        self._now_ns = now_ns
        self._led: dict[tuple[bytes, int], Led] = {}
        self._epochs: dict[int, int] = {}  # epochs of the brokers that may be in an ISR
        self._registered: dict[int, int] = {}  # epochs of all brokers
        self._image: Image  # set by take_brokers()
        self._waiting: dict[tuple[bytes, int], Any] = {}  # proposals to send
        self._sending: asyncio.Task | None = None
        self.shrinks = self.expands = self.failures = 0

    @property
    def led(self) -> list[Led]:
        """Return the led partitions. Any thread may call it."""
        return list(self._led.values())

    @property
    def under_replicated(self) -> int:
        """Return the number of led partitions with a replica out of sync. Any thread may call it.
        """
        return sum(len(led.isr.committed) < len(led.isr.replicas) for led in self.led)

    # ---- changes of the image -------------------------------------------------------------------

    def take_brokers(self, image: Image) -> None:
        """Apply broker changes: registration, fencing, failed log directories."""
        self._image = image
        self._epochs = {id_: broker.epoch for id_, broker in image.brokers.items()
                        if image.broker_is_active(id_)}
        self._registered = {id_: broker.epoch for id_, broker in image.brokers.items()}
        for key, led in self._led.items():
            led.isr.brokers_changed()
            self._tell(led)
            if not led.isr.is_whole:
                # A replica that may now join the ISR may already have caught up and be in a long
                # poll.
                self._check(key, led)

    def lead(self, topic: Any, index: int, partition_log: Any) -> None:
        """Start leading a partition, or apply its new replicas or ISR."""
        key, state = (topic.id, index), topic.partitions[index]
        led = self._led.get(key)
        if led is None or led.log is not partition_log:
            led = self._led[key] = Led(topic.name, partition_log, Isr(
                state, self._node_id, lambda id_: self._epoch_of(key, id_), self._now_ns()))
            self._waiting.pop(key, None)
        elif led.isr.follow(state, self._now_ns()):
            self._waiting.pop(key, None)
        self._tell(led)
        self._propose(key, led, led.isr.recovered(self._now_ns()))

    def _epoch_of(self, key: tuple[bytes, int], broker_id: int) -> int | None:
        """Return the epoch of a broker that may be in the ISR and has the disk with its replica
        online, else None.
        """
        led = self._led.get(key)
        return None if led is None or not self._has_disk(led.isr, broker_id) \
            else self._epochs.get(broker_id)

    def _has_disk(self, isr: Isr, broker_id: int) -> bool:
        if len(isr.directories) != len(isr.replicas) or broker_id not in isr.replicas:
            return True
        return is_online(
            self._image, broker_id, isr.directories[isr.replicas.index(broker_id)])

    def rest(self, topic_id: bytes, index: int) -> None:
        """Stop leading a partition; it is not proposed any more."""
        self._led.pop((topic_id, index), None)
        self._waiting.pop((topic_id, index), None)

    def _tell(self, led: Led) -> None:
        """Give the log its followers, so that the high watermark waits for the maximal ISR."""
        isr, registered = led.isr, self._registered
        maximal = isr.maximal
        try:
            led.log.set_replicas(
                isr.partition_epoch, self._node_id,
                [(id_, registered.get(id_, -1), id_ in isr.committed, id_ in maximal)
                 for id_ in isr.replicas],
                len(isr.committed),
                ineligible=[id_ for id_ in isr.replicas if id_ not in self._epochs
                            or not self._has_disk(isr, id_)])
        except LogError as error:
            # The log was closed or is no longer led; the cause is logged elsewhere.
            log.info("a log rejected its new replica set", extra={
                "topic": led.name, "reason": str(error)})

    # ---- progress of followers ------------------------------------------------------------------

    def may_join(self, topic_id: bytes, index: int, broker_id: int) -> None:
        """Propose a follower whose fetch has reached the ISR."""
        led = self._led.get((topic_id, index))
        if led is None:
            return
        for follower in _followers(led.log):
            if follower.broker_id == broker_id:
                self._propose((topic_id, index), led,
                              led.isr.join(follower, _leader_log(led), self._now_ns()))

    def tick(self) -> None:
        """Check all partitions; called every half of replica.lag.time.max.ms, at most one second.
        """
        for key, led in list(self._led.items()):
            if len(led.isr.replicas) > 1:
                self._check(key, led)

    def _check(self, key: tuple[bytes, int], led: Led) -> None:
        """Propose to remove lagging replicas and to add caught-up ones."""
        try:
            if _is_at_rest(led):
                return
            followers, leader_log = _followers(led.log), _leader_log(led)
        except LogError as error:
            # The log was closed. Continue with the other partitions.
            log.info("cannot read the followers' state of a log", extra={
                "topic": led.name, "partition": key[1], "reason": str(error)})
            return
        self._propose(key, led, led.isr.tick(
            followers, leader_log, self._now_ns(),
            self._settings["replica.lag.time.max.ms"] * 1_000_000))

    def _propose(self, key: tuple[bytes, int], led: Led, proposal: Any) -> None:
        if proposal is None:
            return
        if len(proposal.isr) < len(led.isr.committed):
            self.shrinks += 1
        elif len(proposal.isr) > len(led.isr.committed):
            self.expands += 1
        log.info("proposing new in-sync replicas", extra={
            "topic": led.name, "partition": key[1],
            "isr": ",".join(str(id_) for id_, _ in proposal.isr)})
        self._tell(led)
        self._waiting[key] = proposal
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(
                supervisor.reporting("in-sync replicas", self._run()))

    # ---- the controller -------------------------------------------------------------------------

    async def _run(self) -> None:
        """Send proposals until none are left, one request at a time."""
        try:
            pause_s = AGAIN_S
            while self._waiting:
                # Yield once, so that all proposals of this turn share the request.
                await asyncio.sleep(0)
                keys = list(self._waiting)[:PARTITIONS_MAX]
                requested = {key: self._waiting.pop(key) for key in keys}
                try:
                    is_decided = await self._send(requested)
                except Exception:
                    # Without a retry, these partitions would propose nothing more, because they
                    # wait for an outcome.
                    supervisor.report(
                        "in-sync replicas", "new in-sync replicas could not be proposed")
                    self._again(requested)
                    is_decided = False
                if is_decided:
                    pause_s = AGAIN_S
                else:
                    # Pause before repeating proposals.
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, AGAIN_MAX_S)
        finally:
            self._sending = None

    async def _send(self, requested: dict) -> bool:
        """Send one request. Returns False if something must be repeated."""
        try:
            response = await self._channel.call(self._request(requested))
        except PeerError as error:
            log.warning("no response from the controller to new in-sync replicas",
                        extra={"reason": str(error)})
            self._again(requested)
            return False
        if response.error_code:
            self.failures += 1
            log.warning("the controller rejected new in-sync replicas", extra={
                "reason": ErrorCode.of(response.error_code).name})
            if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
                self._channel.send_heartbeats()
            self._again(requested)
            return False
        rows = {(bytes(topic.topic_id), row.partition_index): row
                for topic in response.topics for row in topic.partitions}
        repeated = False
        for key, proposal in requested.items():
            row = rows.get(key)
            code = ErrorCode.UNKNOWN_SERVER_ERROR if row is None else row.error_code
            repeated |= self._on_response(key, proposal, code, row)
        return not repeated

    def _request(self, requested: dict) -> Any:
        new = messages.AlterPartitionRequest
        topics: dict[bytes, list] = {}
        for (topic_id, index), proposal in requested.items():
            topics.setdefault(topic_id, []).append(new.PartitionData(
                partition_index=index, leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch, leader_recovery_state=0,
                new_isr_with_epochs=[new.BrokerState(broker_id=id_, broker_epoch=epoch)
                                     for id_, epoch in proposal.isr]))
        return new(
            broker_id=self._node_id, broker_epoch=self._channel.broker_epoch,
            topics=[new.TopicData(topic_id=topic_id, partitions=rows)
                    for topic_id, rows in topics.items()])

    def _again(self, requested: dict) -> None:
        for key, proposal in requested.items():
            led = self._led.get(key)
            if led is not None and led.isr.proposal is proposal:
                self._waiting.setdefault(key, proposal)

    def _on_response(self, key: tuple[bytes, int], proposal: Any, error: int, row: Any) -> bool:
        """Process one partition's response. Returns True if the proposal is repeated."""
        led = self._led.get(key)
        if led is None:
            return False
        if led.isr.on_response(proposal, error, row, self._now_ns()):
            self._waiting.setdefault(key, proposal)
            return True
        if error:
            self.failures += 1
            log.info("the controller rejected new in-sync replicas", extra={
                "topic": led.name, "partition": key[1], "reason": ErrorCode.of(error).name})
        self._tell(led)
        return False

    async def close(self) -> None:
        """Cancel the current request and send no more."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        self._led.clear()


def _followers(partition_log: Any) -> list:
    return [Follower(id_, epoch, end, caught_up_ns)
            for id_, epoch, end, _, _, caught_up_ns in partition_log.followers()]


def _is_at_rest(led: Led) -> bool:
    """Return True if every replica is in sync and caught up, the common case."""
    if not led.isr.is_whole:
        return False
    rows, end = led.log.followers(), led.log.end_offset
    return all(row[2] == end for row in rows)


def _leader_log(led: Led) -> LeaderLog:
    # The epoch begins where the previous epoch ends.
    _, epoch_start = led.log.end_for_epoch(led.isr.leader_epoch - 1)
    return LeaderLog(led.log.end_offset, led.log.high_watermark, epoch_start)
