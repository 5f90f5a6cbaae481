"""Group membership with the classic protocol: join, sync, heartbeat, leave.

Owns: member id and generation; the heartbeat task.
Invariants: partitions are assigned and revoked only inside `run_pending_work`, which the
  application's poll drives, so callbacks run only during a poll; an eager member owns nothing while
  it joins, a cooperative one keeps the partitions that it need not give up; a member that the group
  has removed reports `lost` to the application, not `revoked`, because other members may already
  read those partitions.
Source: Kafka's consumer group protocol; KIP-62 (heartbeats), KIP-345 (static members), KIP-394
  (member id required), KIP-429 (cooperative), KIP-792 (generation in the subscription).
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterable
from typing import Any

from pylog.client.consumer import assignors
from pylog.client.consumer.offset_requests import Identity, ask_coordinator, refused
from pylog.client.errors import ConfigError, KafkaError
from pylog.client.network.cluster import COORDINATOR
from pylog.client.types import TopicPartition
from pylog.protocol import codec, messages
from pylog.protocol.errors import ErrorCode, ProtocolError

JOIN = "join"  # Connection channel of requests that block until other members have joined.
PROTOCOL_TYPE = "consumer"
SUBSCRIPTION_VERSION = 3
ASSIGNMENT_VERSION = 3
_GENERATION_VERSION = 2
_LEAVE_MEMBERS_VERSION = 3
JOIN_SLACK_S = 5.0
_INT32 = struct.Struct(">i")

_DROPPED = {int(ErrorCode.UNKNOWN_MEMBER_ID), int(ErrorCode.ILLEGAL_GENERATION)}


class Membership:
    """Shared part of both protocols: polls, callbacks, assigning and revoking partitions."""

    def __init__(self, host: Any, group: str):
        self.host = host
        self.cluster = host.cluster
        self.settings = host.settings
        self.subscription = host.subscription
        self.group = group
        self.instance_id = self.settings.values.get("group.instance.id")
        self.member_id = ""
        self.generation = -1
        self.lost = False
        self.failure: Exception | None = None
        self.callback_failure: BaseException | None = None  # Raised by the listener.
        self.polled_s = time.monotonic()
        self.poll_interval_s = self.settings.seconds("max.poll.interval.ms")
        self.task: asyncio.Task[None] | None = None

    @property
    def identity(self) -> Identity:
        return Identity(self.group, self.member_id, self.generation, self.instance_id)

    @property
    def is_late(self) -> bool:
        """Return True if the application has not polled for longer than max.poll.interval.ms."""
        return not self.host.polling and time.monotonic() - self.polled_s > self.poll_interval_s

    def owned(self) -> list[TopicPartition]:
        return [tp for tp, state in self.subscription.states.items() if not state.revoking]

    async def give(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions; the callback may seek before anything is fetched."""
        given = sorted(partitions)
        self.subscription.add(given)
        await self._call_listener("assigned", given)

    async def take(self, partitions: Iterable[TopicPartition], lost: bool = False) -> None:
        """Revoke partitions; automatic commits include what the listener stores. Reports them as
        lost with `lost`.
        """
        revoked = sorted(partitions)
        if not revoked:
            return
        for tp in revoked:
            self.subscription.states[tp].revoking = True
        if not lost:
            await self.host.commit_before_revoke()
        try:
            await self._call_listener("lost" if lost else "revoked", revoked)
            if not lost:
                await self.host.commit_stored_by_listener()
        finally:
            self.subscription.drop(revoked)

    async def _call_listener(self, what: str, partitions: list[TopicPartition]) -> None:
        """Call the listener. The poll raises the callback's exception only after the rebalance step
        is complete: the group waits for this member, and the partitions are assigned to it.
        """
        try:
            await self.host.call_listener(what, partitions)
        except (Exception, asyncio.CancelledError) as failure:
            task = asyncio.current_task()
            if isinstance(failure, asyncio.CancelledError) and task and task.cancelling():
                raise  # The client cancels this task; the callback did not raise it.
            self.callback_failure = self.callback_failure or failure
            self.host.notify()

    def start_beating(self) -> None:
        self.task = asyncio.create_task(self._beat())
        self.task.add_done_callback(self._ended)

    async def _beat(self) -> None:
        raise AssertionError("each protocol has its own")

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report a bug in the heartbeat task; otherwise the group would seem never to change."""
        failure = None if task.cancelled() else task.exception()
        if isinstance(failure, Exception):
            self.fail(failure)

    def fail(self, failure: Exception) -> None:
        """Make the next poll raise `failure`."""
        self.failure = failure
        self.host.notify()

    def raise_callback_failure(self) -> None:
        """Raise the exception that a callback raised, if any."""
        failure, self.callback_failure = self.callback_failure, None
        if failure is not None:
            raise failure

    def raise_failure(self) -> None:
        self.raise_callback_failure()
        failure = self.failure
        if failure is not None:
            if isinstance(failure, KafkaError) and not failure.fatal:
                self.failure = None
            raise failure

    async def leave(self, reason: str = "") -> None:
        raise AssertionError("each protocol has its own")

    async def end(self) -> None:
        """Stop the heartbeats and leave the group. A heartbeat after leaving would join again."""
        await self.stop()
        await self.leave()

    async def stop(self) -> None:
        task, self.task = self.task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class ClassicMembership(Membership):
    """JoinGroup, SyncGroup, Heartbeat; one member leads the group and assigns."""

    def __init__(self, host: Any, group: str):
        super().__init__(host, group)
        self.assignors = _assignors(self.settings["partition.assignment.strategy"])
        self.cooperative = all(assignor.cooperative for assignor in self.assignors.values())
        self.needs_join = True
        self.stable = False
        self.leads = False
        self.counted: dict[str, int] = {}  # Partition counts in this leader's last assignment.
        self.had: list[TopicPartition] = []
        self.beat_s = self.settings.seconds("heartbeat.interval.ms")
        self.session_s = self.settings.seconds("session.timeout.ms")

    @property
    def has_pending_work(self) -> bool:
        return (self.needs_join or self.lost or self.failure is not None
                or self.callback_failure is not None)

    def subscription_changed(self) -> None:
        self.needs_join = True

    def metadata_changed(self) -> None:
        """Rejoin if this member leads and a topic has more partitions."""
        if self.leads and self.stable and self.counted != self._counts(self.counted):
            self.needs_join = True
            self.host.notify()

    def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        return {topic: self.cluster.metadata.partition_count(topic) for topic in topics}

    async def run_pending_work(self) -> None:
        """Join until the group is stable. Raises KafkaError."""
        self.raise_failure()
        if self.task is None:
            self.start_beating()
        pauses = self.cluster.backoff()
        while self.needs_join or self.lost:
            if self.lost:
                self.lost = False
                self.had = []
                await self.take(self.owned(), lost=True)
            await self._prepare()
            try:
                await self._apply(await self._join())
                pauses.reset()
            except KafkaError as failure:
                self.needs_join = True
                if not self._recovers(failure):
                    raise
                if failure.code != ErrorCode.MEMBER_ID_REQUIRED:
                    await asyncio.sleep(pauses.next())
            except BaseException:
                # An assignor of the application raised: the next poll joins again.
                self.needs_join = True
                raise
        self.raise_callback_failure()

    async def _prepare(self) -> None:
        """Revoke partitions before joining. Heartbeats continue until the application has handled
        it.

        An eager member gives up all partitions, a cooperative one those of unsubscribed topics.
        """
        owned = self.owned()
        if not self.cooperative:
            self.had = owned or self.had
            await self.take(owned)
        else:
            topics = self.subscription.topics
            await self.take([tp for tp in owned if tp.topic not in topics])
        self.stable = False

    def _recovers(self, failure: KafkaError) -> bool:
        """Return True if joining again may help; forget a member id that the group has dropped."""
        if failure.code in _DROPPED:
            self._forget_member(failure.code == ErrorCode.UNKNOWN_MEMBER_ID)
            return True
        return failure.retriable or failure.code in (
            ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.REBALANCE_IN_PROGRESS)

    def _forget_member(self, id_too: bool) -> None:
        self.generation = -1
        self.stable = False
        if id_too:
            self.member_id = ""
        if self.owned():
            self.lost = True
        self.needs_join = True
        self.host.notify()

    async def _join(self) -> list[TopicPartition]:
        """Do one join and sync. Returns this member's partitions."""
        self.needs_join = False
        topics = self.subscription.topics
        timeout_s = self.poll_interval_s + JOIN_SLACK_S
        request = messages.JoinGroupRequest

        def build(connection: Any) -> tuple[Any, None]:
            return request(
                group_id=self.group, session_timeout_ms=self.settings["session.timeout.ms"],
                rebalance_timeout_ms=self.settings["max.poll.interval.ms"],
                member_id=self.member_id, group_instance_id=self.instance_id,
                protocol_type=PROTOCOL_TYPE, protocols=[
                    request.JoinGroupRequestProtocol(name=name, metadata=self._pack(name, topics))
                    for name in self.assignors]), None

        response = await ask_coordinator(self.cluster, self.group, build, channel=JOIN,
                                         timeout_s=timeout_s)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        if response.error_code:
            raise refused(self.cluster, self.group, response.error_code)
        self.member_id, self.generation = response.member_id, response.generation_id
        self.leads = response.leader == response.member_id
        shares: dict[str, list[assignors.Partition]] = {}
        if self.leads and not response.skip_assignment:
            shares = await self._compute_assignment(response)
        elif self.leads:
            self.counted = self._counts(topics)
        return await self._sync(response.protocol_name, shares, timeout_s)

    async def _sync(self, protocol: str, shares: dict[str, list[assignors.Partition]],
                    timeout_s: float) -> list[TopicPartition]:
        request = messages.SyncGroupRequest

        def build(connection: Any) -> tuple[Any, None]:
            return request(
                group_id=self.group, generation_id=self.generation, member_id=self.member_id,
                group_instance_id=self.instance_id, protocol_type=PROTOCOL_TYPE,
                protocol_name=protocol, assignments=[
                    request.SyncGroupRequestAssignment(member_id=id_, assignment=pack(share))
                    for id_, share in shares.items()]), None

        response = await ask_coordinator(self.cluster, self.group, build, channel=JOIN,
                                         timeout_s=timeout_s)
        if response.error_code:
            raise refused(self.cluster, self.group, response.error_code)
        return unpack(response.assignment)

    async def _apply(self, given: list[TopicPartition]) -> None:
        self.stable = True
        self.had = []
        owned, wanted = set(self.owned()), set(given)
        revoked = owned - wanted
        await self.take(revoked)
        await self.give(wanted - owned)
        if self.cooperative and revoked:
            self.needs_join = True  # Lets others get the partitions that were just released.

    def _pack(self, name: str, topics: Iterable[str]) -> bytes:
        """Encode this member's subscription for the assignor `name`."""
        subscription = messages.ConsumerProtocolSubscription
        owned: dict[str, list[int]] = {}
        for topic, number in self.owned():
            owned.setdefault(topic, []).append(number)
        user_data = None
        if self.assignors[name].keeps:
            user_data = (_INT32.pack(self.generation) if self.assignors[name].cooperative
                         else assignors.pack_sticky(self.had, self.generation))
        made = subscription(
            topics=sorted(topics), user_data=user_data, generation_id=self.generation,
            rack_id=self.settings["client.rack"] or None, owned_partitions=[
                subscription.TopicPartition(topic=topic, partitions=numbers)
                for topic, numbers in owned.items()])
        body = codec.program("ConsumerProtocolSubscription", SUBSCRIPTION_VERSION).encode(made)
        return SUBSCRIPTION_VERSION.to_bytes(2, "big") + body

    async def _compute_assignment(self, response: Any) -> dict[str, list[assignors.Partition]]:
        """Assign partitions, as the group's leader."""
        assignor = self.assignors[response.protocol_name]
        members = {row.member_id: _member(row, assignor) for row in response.members}
        topics = {topic for member in members.values() for topic in member.topics}
        if self.cluster.keep_topics(topics):
            await self.cluster.refresh()
        counts = self.counted = self._counts(topics)
        shares = assignor.assign({topic: n for topic, n in counts.items() if n}, members)
        return {id_: shares.get(id_, []) for id_ in members}

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.beat_s)
            if not self.stable:
                continue
            if self.is_late:
                await self.leave("no poll within max.poll.interval.ms")
                self._forget_member(self.instance_id is None)
                continue
            try:
                await self._beat_once()
            except KafkaError as failure:
                if not failure.retriable:
                    self.stable, self.needs_join = False, True
                    self.fail(failure)

    async def _beat_once(self) -> None:
        generation = self.generation

        def build(connection: Any) -> tuple[Any, None]:
            return messages.HeartbeatRequest(
                group_id=self.group, generation_id=generation, member_id=self.member_id,
                group_instance_id=self.instance_id), None

        response = await ask_coordinator(self.cluster, self.group, build, channel=COORDINATOR,
                                         timeout_s=self.session_s)
        code = response.error_code
        if not code or not self.stable or generation != self.generation:
            return
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.needs_join = True
            self.host.notify()
        elif code in _DROPPED:
            self._forget_member(code == ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            raise refused(self.cluster, self.group, code)

    def commit_refused(self, failure: KafkaError) -> None:
        """Handle a rejected commit: the group may have rebalanced without this member."""
        if failure.code in _DROPPED and self.stable:
            self._forget_member(failure.code == ErrorCode.UNKNOWN_MEMBER_ID)

    async def leave(self, reason: str = "") -> None:
        """Leave the group. A static member stays until its session times out."""
        if not self.member_id or self.instance_id is not None:
            return
        request = messages.LeaveGroupRequest

        def build(connection: Any) -> tuple[Any, int]:
            version = connection.version(request)
            if version < _LEAVE_MEMBERS_VERSION:
                return request(group_id=self.group, member_id=self.member_id), version
            member = request.MemberIdentity(
                member_id=self.member_id, reason=reason or "the consumer is being closed")
            return request(group_id=self.group, members=[member]), version

        try:
            await ask_coordinator(self.cluster, self.group, build, timeout_s=JOIN_SLACK_S)
        except KafkaError:
            pass  # The session timeout has the same effect.
        self.stable = False
        self.member_id, self.generation = "", -1


def pack(share: Iterable[assignors.Partition]) -> bytes:
    """Encode an assignment: version, then ConsumerProtocolAssignment."""
    assignment = messages.ConsumerProtocolAssignment
    topics: dict[str, list[int]] = {}
    for topic, number in share:
        topics.setdefault(topic, []).append(number)
    made = assignment(assigned_partitions=[
        assignment.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in topics.items()])
    body = codec.program("ConsumerProtocolAssignment", ASSIGNMENT_VERSION).encode(made)
    return ASSIGNMENT_VERSION.to_bytes(2, "big") + body


def unpack(data: bytes) -> list[TopicPartition]:
    """Decode the partitions of an assignment; empty data gives none. Raises ProtocolError."""
    if not data:
        return []
    version = min(int.from_bytes(data[:2], "big"), ASSIGNMENT_VERSION)
    made = codec.program("ConsumerProtocolAssignment", version).decode(data, 2)
    return [TopicPartition(row.topic, number)
            for row in made.assigned_partitions for number in row.partitions]


def _member(row: Any, assignor: assignors.Assignor) -> assignors.Member:
    """Decode a member's subscription from the JoinGroup response."""
    version = min(int.from_bytes(row.metadata[:2], "big"), SUBSCRIPTION_VERSION)
    try:
        found = codec.program("ConsumerProtocolSubscription", version).decode(row.metadata, 2)
    except ProtocolError as broken:
        raise KafkaError(f"member {row.member_id} sent no subscription: {broken}") from None
    owned = tuple((part.topic, number) for part in found.owned_partitions
                  for number in part.partitions)
    generation = found.generation_id if version >= _GENERATION_VERSION else -1
    user_data = found.user_data
    if user_data and assignor.keeps:
        try:
            if not assignor.cooperative:
                owned, generation = assignors.unpack_sticky(user_data)
            elif version < _GENERATION_VERSION and len(user_data) >= _INT32.size:
                generation = _INT32.unpack_from(user_data)[0]
        except ValueError:
            pass  # As in Kafka: a member with invalid user data counts as owning nothing.
    return assignors.Member(frozenset(found.topics), owned, generation, row.group_instance_id)


def _assignors(names: Iterable[Any]) -> dict[str, assignors.Assignor]:
    """Return assignors by name. Accepts Kafka's class names and Assignor objects too."""
    made = {}
    for name in names:
        if isinstance(name, assignors.Assignor):
            made[name.name] = name
            continue
        short = name.rpartition(".")[2].removesuffix("Assignor")
        plain = {"Range": "range", "RoundRobin": "roundrobin", "Sticky": "sticky",
                 "CooperativeSticky": "cooperative-sticky"}.get(short, name)
        if plain not in assignors.ASSIGNORS:
            raise ConfigError(f"partition.assignment.strategy: no such assignor: {name!r}; "
                              f"allowed are {', '.join(assignors.ASSIGNORS)}")
        made[plain] = assignors.ASSIGNORS[plain]
    if not made:
        raise ConfigError("partition.assignment.strategy is empty", remedy="name an assignor")
    return made
