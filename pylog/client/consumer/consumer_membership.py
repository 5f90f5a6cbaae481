"""Group membership with the KIP-848 protocol: the broker assigns partitions.

Owns: member id and epoch; the heartbeat task; the broker's target assignment.
Invariants: partitions are assigned and revoked only inside `run_pending_work`; after any error a
  heartbeat includes all fields, otherwise only those that changed; a heartbeat reports that
  partitions were revoked only after they were committed and the listener has returned: the broker
  then assigns them to other members.
Source: KIP-848; KIP-1082 (the member generates its id).
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from typing import Any

from pylog.client.consumer.classic_membership import JOIN_SLACK_S, Membership
from pylog.client.consumer.offset_requests import ask_coordinator, refused
from pylog.client.errors import KafkaError
from pylog.client.types import TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

JOINING, LEAVING, LEAVING_STATIC = 0, -1, -2
FIRST_BEAT_S = 3.0

_DROPPED = {int(ErrorCode.UNKNOWN_MEMBER_ID), int(ErrorCode.FENCED_MEMBER_EPOCH)}


class ConsumerMembership(Membership):
    """Membership that uses only ConsumerGroupHeartbeat."""

    def __init__(self, host: Any, group: str):
        super().__init__(host, group)
        self.member_id = _new_id()
        self.generation = JOINING
        self.wanted: list[tuple[bytes, int]] | None = None
        self.beat_s = FIRST_BEAT_S
        self.kick = asyncio.Event()
        self.send_all_fields = True
        self.sent_topics: frozenset[str] | None = None
        self.sent_owned: list[TopicPartition] | None = None
        self.unknown_ids = False
        # The coordinator may have added this member, but has not responded yet.
        self.join_sent = False

    @property
    def has_pending_work(self) -> bool:
        return (self.task is None or self.lost or self.failure is not None
                or self.callback_failure is not None
                or self.wanted is not None and not self.unknown_ids)

    @property
    def is_known(self) -> bool:
        """Return True if the coordinator has this member, or may have it."""
        return self.generation > JOINING or self.join_sent

    def subscription_changed(self) -> None:
        self.kick.set()

    def metadata_changed(self) -> None:
        if self.unknown_ids:
            self.unknown_ids = False
            self.host.notify()

    async def run_pending_work(self) -> None:
        """Apply the assignment from the last heartbeat. Raises KafkaError."""
        self.raise_failure()
        if self.lost:
            self.lost = False
            await self.take(self.owned(), lost=True)
        if self.task is None:
            self.start_beating()
        wanted = self.wanted
        named = None if wanted is None else await self._named(wanted)
        if named is None:
            self.raise_callback_failure()
            return
        if self.wanted is wanted:
            self.wanted = None
        owned = set(self.owned())
        await self.take(owned - named)
        await self.give(named - owned)
        self.kick.set()  # Report revoked partitions only now that the application was notified.
        self.raise_callback_failure()

    async def _named(self, wanted: list[tuple[bytes, int]]) -> set[TopicPartition] | None:
        """Return the partitions by topic name; None while a topic id is unknown."""
        for again in (True, False):
            ids = self.cluster.metadata.ids
            if all(topic_id in ids for topic_id, _ in wanted):
                return {TopicPartition(ids[topic_id], number) for topic_id, number in wanted}
            if again:
                await self.cluster.refresh()
        self.unknown_ids = True
        self.cluster.request_refresh()
        return None

    async def _beat(self) -> None:
        pauses = self.cluster.backoff()
        while True:
            if self.is_late:
                await self.leave()
                self._forget()
                while self.is_late:
                    await self._sleep(self.beat_s)
                continue
            if self.lost:  # Notify the application first.
                await self._sleep(self.beat_s)
                continue
            try:
                await self._beat_once()
                pauses.reset()
            except KafkaError as failure:
                self.send_all_fields = True
                if failure.code in _DROPPED:
                    self._forget()
                elif not failure.retriable:
                    self.fail(failure)
                    if failure.fatal:
                        return
                await asyncio.sleep(pauses.next())
                self.kick.clear()  # The next heartbeat contains every change.
                continue
            await self._sleep(self.beat_s)

    async def _sleep(self, wait_s: float) -> None:
        """Wait for a change, at most wait_s seconds, and consume it.

        A change that stayed set would make the next wait return without yielding to the loop.
        """
        try:
            async with asyncio.timeout(wait_s):
                await self.kick.wait()
        except TimeoutError:
            pass
        self.kick.clear()

    def _forget(self) -> None:
        self.generation = JOINING
        self.join_sent = False
        self.send_all_fields = True
        self.wanted = None
        self.lost = bool(self.owned())
        self.host.notify()

    async def _beat_once(self) -> None:
        topics, owned = self.subscription.topics, self._unreleased()
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.generation)
        if self.send_all_fields:  # All fields after an error, otherwise only changes.
            request.instance_id = self.instance_id
            request.rack_id = self.settings["client.rack"] or None
            request.rebalance_timeout_ms = self.settings["max.poll.interval.ms"]
            request.server_assignor = self.settings["group.remote.assignor"]
        if self.send_all_fields or topics != self.sent_topics:
            request.subscribed_topic_names = sorted(topics)
        if self.send_all_fields or owned != self.sent_owned:
            request.topic_partitions = self._rows(owned)
        response = await self._beat_with(request, topics)
        self.sent_owned = owned
        self.member_id = response.member_id or self.member_id

    def _unreleased(self) -> list[TopicPartition]:
        """Return the partitions that other members must not get yet, also those in revocation."""
        return [] if self.generation == JOINING else sorted(self.subscription.states)

    async def _beat_with(self, request: Any, topics: frozenset[str]) -> Any:
        """Send a heartbeat of either kind of group, apply the response and return it."""
        def build(_: Any) -> tuple[Any, None]:
            self.join_sent = self.join_sent or self.generation == JOINING
            return request, None

        response = await ask_coordinator(self.cluster, self.group, build)
        if response.error_code:
            failure = refused(self.cluster, self.group, response.error_code)
            if response.error_message:
                failure.args = (f"group {self.group!r}: {response.error_message}",)
            raise failure
        self.send_all_fields = False
        self.sent_topics = topics
        self.generation = response.member_epoch
        self.beat_s = response.heartbeat_interval_ms / 1000
        if response.assignment is not None:
            self.unknown_ids = False
            self.wanted = [(row.topic_id, number) for row in response.assignment.topic_partitions
                           for number in row.partitions]
            self.host.notify()
        return response

    def _rows(self, owned: list[TopicPartition]) -> list[Any]:
        rows: dict[str, Any] = {}
        for topic, number in owned:
            row = rows.get(topic)
            if row is None:
                row = rows[topic] = messages.ConsumerGroupHeartbeatRequest.TopicPartitions(
                    topic_id=self.cluster.metadata.topic_id(topic))
            row.partitions.append(number)
        return list(rows.values())

    def commit_refused(self, failure: KafkaError) -> None:
        """Send a heartbeat soon; it will report the error."""
        self.kick.set()

    async def leave(self, reason: str = "") -> None:
        """Leave the group. A static member announces that it will return."""
        if not self.is_known:
            return
        epoch = LEAVING if self.instance_id is None else LEAVING_STATIC
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=epoch,
            instance_id=self.instance_id)
        await self._leave_with(request)

    async def _leave_with(self, request: Any) -> None:
        try:
            await ask_coordinator(self.cluster, self.group, lambda _: (request, None),
                                  timeout_s=JOIN_SLACK_S)
        except KafkaError:
            pass  # The session timeout has the same effect.
        self.generation = JOINING
        self.join_sent = False


def _new_id() -> str:
    """Return a uuid in Kafka's encoding."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
