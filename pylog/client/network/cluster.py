"""The client's view of a cluster: leaders, connections to brokers, retries and backoff.

Owns: the latest metadata, the connections, the known coordinators.
Invariants: at most one metadata refresh is in flight; reconnects to a broker wait for its backoff,
  which doubles with each failure; each broker has one connection per channel, and requests that may
  block for long (fetch, join) have separate channels, because a broker responds to a connection's
  requests in order; topic metadata is as recent as the last refresh: topics that are no longer
  requested are forgotten.
Source: KIP-144 (reconnect backoff), KIP-580 (retry backoff), KIP-899 (rebootstrap).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any

from pylog.client.network.connection import SILENCE_S, BufferPool, Connection
from pylog.client.config.durations import rounded
from pylog.client.errors import (
    ClosedError, KafkaConnectionError, KafkaError, KafkaTimeoutError,
    NoBrokersError, error, raise_for,
)
from pylog.client.network.metrics import Metrics, Traffic, age_s, report
from pylog.client.network.log_once import Notices
from pylog.client.network.cluster_metadata import Metadata, PartitionInfo, merged, with_leader
from pylog.client.config.settings import CONSUMER, Settings, servers
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

GROUP, TRANSACTION = 0, 1
MAIN, FETCH, COORDINATOR = "main", "fetch", "coordinator"
ALL_TOPICS_VERSION = 4  # Before it, requesting metadata always may create topics.
COORDINATOR_KEYS_VERSION = 4
COORDINATOR_KEYS_MAX = 1000
JITTER = 0.2
TOPIC_AGAIN_S = 1.0


class Backoff:
    """Exponential backoff with a jitter of 20%."""

    def __init__(self, first_s: float, most_s: float):
        self.first_s, self.most_s = first_s, max(first_s, most_s)
        self.failures = 0

    def next(self) -> float:
        """Return the seconds to wait now."""
        pause_s = min(self.most_s, self.first_s * 2 ** min(self.failures, 30))
        self.failures += 1
        return pause_s * random.uniform(1 - JITTER, 1 + JITTER)

    def reset(self) -> None:
        self.failures = 0


class _BrokerBackoff:
    """The reconnect backoff of a broker."""

    def __init__(self, settings: Settings):
        self.backoff = Backoff(settings.seconds("reconnect.backoff.ms"),
                               settings.seconds("reconnect.backoff.max.ms"))
        self.not_before_s = 0.0


class Cluster:
    """Route requests. Use `async with Cluster(settings) as cluster`, or `start` and `close`."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.process = os.getpid()
        self.loop: asyncio.AbstractEventLoop | None = None  # Set by start().
        self.notices = Notices(f"{settings.role} {settings['client.id']}")
        self.metadata = Metadata()
        self.interest: set[str] = set()
        self.wants_all_topics = False
        self.may_create_topics = settings.values.get("allow.auto.create.topics", True)
        self.pool = BufferPool()
        self.traffic = Traffic()
        self.closed = False
        # Called on the event loop with the new metadata after each change.
        self.watchers: list[Callable[[Metadata], None]] = []
        self._servers = servers(settings["bootstrap.servers"])
        self._connections: dict[tuple[int, str], Connection] = {}
        self._opening: dict[tuple[int, str], asyncio.Task[Connection]] = {}
        self._broker_backoffs: dict[int | tuple[str, int], _BrokerBackoff] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_s = 0.0
        self._lacks_topics = False  # At least one topic of `interest` does not exist.
        self._refresh_requested: asyncio.Event = asyncio.Event()
        self._refresher: asyncio.Task[None] | None = None
        self._reporting: asyncio.Task[None] | None = None

    async def start(self) -> Cluster:
        """Start to keep metadata fresh. The first request connects."""
        if self.settings.idle:
            self.notices.inform("settings of other clients, without effect here: %s",
                                ", ".join(self.settings.idle))
        if self._refresher is None:
            self.loop = asyncio.get_running_loop()
            self._refresher = asyncio.create_task(self._refresh_periodically())
        return self

    def report(self, metrics: Callable[[], Metrics]) -> None:
        """Call stats_cb with the result of `metrics` every statistics.interval.ms."""
        interval_s, function = self.settings.seconds("statistics.interval.ms"), self.settings[
            "stats_cb"]
        if interval_s > 0 and function is not None:
            self._reporting = asyncio.create_task(report(interval_s, function, metrics))

    def traffic_rows(self) -> dict[str, float]:
        """Return the metrics of connections and metadata."""
        return {**self.traffic.rows(), "metadata-age": age_s(self._refreshed_s)}

    async def close(self) -> None:
        """Close every connection; requests in flight fail."""
        self.closed = True
        tasks = [task for task in (self._refresher, self._refreshing, self._reporting,
                                   *self._opening.values()) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def abandon(self, timeout_s: float) -> None:
        """Close for an application that dropped the client."""
        await self.close()

    async def __aenter__(self) -> Cluster:
        return await self.start()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # Metadata

    def add_topics(self, names: Iterable[str]) -> bool:
        """Keep metadata of these topics too. Returns True if any of them is new."""
        new = set(names) - self.interest
        self.interest |= new
        if new:
            self.request_refresh()
        return bool(new)

    def keep_topics(self, names: Iterable[str]) -> bool:
        """Keep metadata of only these topics. Others are not requested, which could create them."""
        names = set(names)
        self.interest &= names
        return self.add_topics(names)

    def request_refresh(self) -> None:
        """Request new metadata soon, without waiting for it."""
        self._refresh_requested.set()

    async def refresh(self, topics: Iterable[str] = ()) -> Metadata:
        """Refresh the metadata of all topics of interest. Raises KafkaError."""
        self.interest |= set(topics)
        # A refresh that started earlier may not include these topics.
        if self._refreshing is not None:
            await asyncio.wait([self._refreshing])
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(_noted)
        await asyncio.shield(self._refreshing)
        return self.metadata

    async def _refresh(self) -> None:
        self._refresh_requested.clear()
        asked_all = self.wants_all_topics
        names = None if asked_all else sorted(self.interest)
        self._apply_metadata(await self.request_metadata(names), asked_all)

    async def every_topic(self) -> Metadata:
        """Request metadata of every topic once. Raises KafkaError."""
        self._apply_metadata(await self.request_metadata(None), True)
        return self.metadata

    async def request_metadata(self, names: list[str] | None) -> Any:
        """Return the response to a Metadata request, without remembering it. names: None for every
        topic. If a broker does not respond, tries the others. Raises KafkaError.
        """
        connection, asked = None, asyncio.get_running_loop().create_future()
        try:
            while not asked.done() and connection is not (found := await self.any_connection()):
                asked.cancel()
                connection, asked = found, self._metadata_of(found, names)
                await asyncio.wait([asked], timeout=SILENCE_S)
            response = await asked
        finally:
            asked.cancel()
        raise_for(response.error_code)
        return response

    def _metadata_of(self, connection: Connection, names: list[str] | None
                     ) -> asyncio.Future[Any]:
        request = messages.MetadataRequest(
            topics=None if names is None else [
                messages.MetadataRequest.MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=self.may_create_topics)
        version = connection.version(messages.MetadataRequest)
        if version < ALL_TOPICS_VERSION:
            request.allow_auto_topic_creation = True
        return connection.send(request, version=version)

    def _apply_metadata(self, response: Any, asked_all: bool) -> None:
        self._refreshed_s = time.monotonic()
        known = self.metadata
        if not asked_all:  # Forgets topics that are no longer requested.
            known = replace(known, topics={name: topic for name, topic in known.topics.items()
                                           if name in self.interest})
        self._show(merged(known, response, asked_all))
        self._notice_topics()
        for node_id, channel in list(self._connections):
            node = self.metadata.nodes.get(node_id)
            connection = self._connections[node_id, channel]
            if node_id >= 0 and node and (node.host, node.port) != (
                    connection.host, connection.port):
                connection.close()  # The broker's address changed.
            elif node_id >= 0 and node is None and connection.is_silent:
                connection.close()  # Other brokers consider it dead: it will not respond.

    def _notice_topics(self) -> None:
        self._lacks_topics = False
        for name in self.interest:
            topic = self.metadata.topics.get(name)
            if topic is None or topic.error_code:
                code = topic.error_code if topic else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                failure = error(code)
                self._lacks_topics = self._lacks_topics or failure.stale_metadata
                self.notices.warn_if_it_stays(("topic", name), "topic %s: %s", name, failure)
            else:
                self.notices.over(("topic", name), "topic %s is there", name)

    def _show(self, metadata: Metadata) -> None:
        self.metadata = metadata
        for watcher in self.watchers:
            watcher(metadata)

    def learn_leader(self, topic: str, partition: int, leader: int, epoch: int) -> None:
        """Record a partition's newer leader that a broker reported (KIP-951)."""
        found = with_leader(self.metadata, topic, partition, leader, epoch)
        if found is not self.metadata:
            self._show(found)

    async def _refresh_periodically(self) -> None:
        age_s = max(self.settings.seconds("metadata.max.age.ms"), 0.1)
        pauses = self.backoff()
        while True:
            # A consumer of a missing topic should start soon after its creation. A producer must
            # not refresh often: its request may re-create a deleted topic.
            soon = self._lacks_topics and self.settings.role == CONSUMER
            again_s = min(age_s, TOPIC_AGAIN_S) if soon else age_s
            left_s = self._refreshed_s + again_s - time.monotonic() if self._refreshed_s \
                else again_s
            try:
                async with asyncio.timeout(max(left_s, 0)):
                    await self._refresh_requested.wait()
            except TimeoutError:
                pass
            self._close_idle()
            try:
                await self.refresh()
            except Exception as failure:
                # Any failure, for example thread exhaustion: only this task keeps metadata fresh.
                if not isinstance(failure, KafkaError):
                    self.notices.fail("metadata", "no new metadata: %s: %s",
                                      type(failure).__name__, failure)
                self._refresh_requested.set()
                await asyncio.sleep(pauses.next())
                continue
            # Limits how often a partition without a leader causes a refresh.
            await asyncio.sleep(self.settings.seconds("retry.backoff.ms"))
            pauses.reset()

    def _close_idle(self) -> None:
        limit_s = self.settings.seconds("connections.max.idle.ms")
        if limit_s < 0:
            return
        for connection in list(self._connections.values()):
            if not connection.request_count and time.monotonic() - connection.used_s > limit_s:
                connection.close()

    def backoff(self) -> Backoff:
        """Return a new backoff for the retries of one request."""
        return Backoff(self.settings.seconds("retry.backoff.ms"),
                       self.settings.seconds("retry.backoff.max.ms"))

    async def topic(self, name: str, timeout_s: float | None = None) -> Any:
        """Return the TopicInfo of a topic, waiting until it is usable. Raises KafkaError."""
        async def query() -> Any:
            found = self.metadata.topics.get(name)
            if found is None or found.error_code:
                await self.refresh([name])
                found = self.metadata.topics.get(name)
            if found is None:
                raise error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, context=name)
            raise_for(found.error_code, context=name)
            return found

        return await self.retry(query, timeout_s)

    async def leader(self, topic: str, partition: int) -> PartitionInfo:
        """Return a partition that has a reachable leader. Raises KafkaError, including retriable
        ones: call it inside `retry`.
        """
        found = self.metadata.partition(topic, partition)
        if found is None or self.metadata.leader(topic, partition) < 0:
            await self.refresh([topic])
            found = self.metadata.partition(topic, partition)
            row = self.metadata.topics.get(topic)
            if row is not None:
                raise_for(row.error_code, context=topic)
            context = f"{topic}-{partition}"
            if found is None:
                raise error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, context=context)
            if self.metadata.leader(topic, partition) < 0:
                raise error(ErrorCode.LEADER_NOT_AVAILABLE, context=context)
        return found

    # Connections

    async def connection(self, node_id: int, channel: str = MAIN) -> Connection:
        """Return an open connection to a broker. Raises KafkaConnectionError or another KafkaError.
        """
        found = self.usable(node_id, channel)
        if found is not None:
            return found
        node = self.metadata.nodes.get(node_id)
        if node is None:
            raise KafkaConnectionError(f"broker {node_id} is not known")
        return await self._opened((node_id, channel), node_id, node.host, node.port)

    async def _opened(self, key: tuple[int, str], broker_key: Any, host: str, port: int
                      ) -> Connection:
        """Open a connection; concurrent callers share it. Keeps one connection per channel."""
        if self.closed:
            raise ClosedError("the client is closed")
        task = self._opening.get(key)
        if task is None:
            task = asyncio.create_task(self._open(key, broker_key, host, port))
            self._opening[key] = task
            task.add_done_callback(lambda _: self._opening.pop(key, None))
            task.add_done_callback(_noted)
        return await asyncio.shield(task)

    def usable(self, node_id: int, channel: str = MAIN) -> Connection | None:
        """Return the connection if it is already open."""
        found = self._connections.get((node_id, channel))
        return found if found is not None and found.usable else None

    async def _open(self, key: tuple[int, str], broker_key: Any, host: str, port: int
                    ) -> Connection:
        made = await self._reach(broker_key, host, port)
        self._connections[key] = made
        return made

    async def _reach(self, broker_key: Any, host: str, port: int) -> Connection:
        reconnect = self._broker_backoffs.get(broker_key)
        if reconnect is None:
            reconnect = self._broker_backoffs[broker_key] = _BrokerBackoff(self.settings)
        pause_s = reconnect.not_before_s - time.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)  # Keeps the reconnect backoff.
        try:
            made = await Connection.open(host, port, self.settings, self.pool, self.traffic)
        except KafkaError as failure:
            reconnect.not_before_s = time.monotonic() + reconnect.backoff.next()
            if failure.stale_metadata and self.metadata.version:
                self.request_refresh()
            say = self.notices.warn if failure.retriable else self.notices.fail
            say(("reach", host, port), "no connection to %s", failure)
            raise
        made.on_silence = lambda: self._fell_silent(made)
        made.on_throttle = lambda: self.notices.warn(
            ("throttled", host, port), "%s:%d throttles this client by a quota, for %g s",
            host, port, made.throttle_ms / 1000)
        reconnect.backoff.reset()
        self.notices.over(("reach", host, port), "connected to %s:%d again", host, port)
        return made

    def _fell_silent(self, connection: Connection) -> None:
        self.notices.warn(("silent", connection.host, connection.port),
                          "%s:%d has not responded for %g s", connection.host, connection.port,
                          SILENCE_S)
        self.request_refresh()

    async def any_connection(self) -> Connection:
        """Return a connection to the broker that can be reached first. Raises NoBrokersError."""
        open_now = [found for (node_id, channel), found in self._connections.items()
                    if found.usable and channel == MAIN]
        if any(not found.is_silent for found in open_now):
            return min(open_now, key=lambda found: (found.is_silent, found.request_count))
        attempts = [self.connection(node_id) for node_id in self._shuffled(self.metadata.nodes)
                    if self.usable(node_id) is None]
        if not open_now:
            attempts += [self._bootstrap_connection(number)
                         for number in self._shuffled(range(len(self._servers)))]
        found, last = await self._first_opened(attempts)
        if found is not None:
            return found
        if open_now:
            return min(open_now, key=lambda found: found.request_count)
        raise NoBrokersError(f"no bootstrap server could be reached: {last}")

    @staticmethod
    def _shuffled(numbers: Iterable[int]) -> list[int]:
        some = sorted(numbers)
        return random.sample(some, len(some))

    async def _bootstrap_connection(self, number: int) -> Connection:
        host, port = self._servers[number]
        return self.usable(-1 - number) or await self._opened(
            (-1 - number, MAIN), (host, port), host, port)

    async def _first_opened(self, attempts: Iterable[Coroutine[Any, Any, Connection]]
                            ) -> tuple[Connection | None, KafkaError | None]:
        """Return the connection that opens first, or None and the last failure.

        The next attempt starts when one fails, or after SILENCE_S: a broker that hangs accepts the
        connection but never responds. Raises KafkaError for a failure that is not retriable.
        """
        left, pending, last = list(attempts), set[asyncio.Task[Connection]](), None
        try:
            while left or pending:
                if left:
                    task = asyncio.create_task(left.pop(0))
                    task.add_done_callback(_noted)
                    pending.add(task)
                done, pending = await asyncio.wait(
                    pending, timeout=SILENCE_S if left else None,
                    return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        return task.result(), None
                    except KafkaError as failure:
                        if not failure.retriable:
                            raise
                        last = failure
        finally:
            for task in pending:
                task.cancel()
            for attempt in left:
                attempt.close()
        return None, last

    # Requests

    async def send(self, node_id: int, message: Any, *, channel: str = MAIN,
                   timeout_s: float | None = None, version_max: int | None = None) -> Any:
        """Send one request to a broker and return its decoded response. Raises KafkaError; no
        retries.
        """
        connection = await self.connection(node_id, channel)
        version = connection.version(type(message), version_max)
        return await connection.send(message, version=version, timeout_s=timeout_s)

    async def send_any(self, message: Any, *, timeout_s: float | None = None) -> Any:
        """Send one request to any broker."""
        connection = await self.any_connection()
        return await connection.send(message, timeout_s=timeout_s)

    async def controller(self) -> int:
        """Return the controller's node id (with KRaft, any broker that forwards requests)."""
        if self.metadata.controller not in self.metadata.nodes:
            await self.refresh()
        if self.metadata.controller not in self.metadata.nodes:
            raise error(ErrorCode.NOT_CONTROLLER)
        return self.metadata.controller

    async def coordinator(self, kind: int, key: str) -> int:
        """Return the node id of the coordinator of a group or transactional id. Call inside
        `retry`.
        """
        found = self._coordinators.get((kind, key))
        if found is not None and found in self.metadata.nodes:
            return found
        connection = await self.any_connection()
        version = connection.version(messages.FindCoordinatorRequest)
        request = messages.FindCoordinatorRequest(key_type=kind)
        if version < COORDINATOR_KEYS_VERSION:
            request.key = key
        else:
            request.coordinator_keys = [key]
        response = await connection.send(request, version=version)
        row = response if version < COORDINATOR_KEYS_VERSION else response.coordinators[0]
        raise_for(row.error_code, row.error_message, f"coordinator of {key!r}")
        if row.node_id not in self.metadata.nodes:
            await self.refresh()
        if row.node_id not in self.metadata.nodes:
            raise error(ErrorCode.COORDINATOR_NOT_AVAILABLE, context=key)
        self._coordinators[kind, key] = row.node_id
        return row.node_id

    async def coordinators(self, kind: int, keys: Iterable[str]) -> dict[str, int | KafkaError]:
        """Return the node id of each coordinator, or why it is unknown; many keys in one request.
        Call inside `retry`.
        """
        found: dict[str, int | KafkaError] = {}
        left = []
        for key in keys:
            node = self._coordinators.get((kind, key), -1)
            if node in self.metadata.nodes:
                found[key] = node
            else:
                left.append(key)
        if not left:
            return found
        connection = await self.any_connection()
        version = connection.version(messages.FindCoordinatorRequest)
        if version < COORDINATOR_KEYS_VERSION:
            nodes = await asyncio.gather(*[self.coordinator(kind, key) for key in left],
                                         return_exceptions=True)
            for key, result in zip(left, nodes):
                if not isinstance(result, int | KafkaError):
                    raise result
                found[key] = result
            return found
        for at in range(0, len(left), COORDINATOR_KEYS_MAX):
            response = await connection.send(messages.FindCoordinatorRequest(
                key_type=kind, coordinator_keys=left[at:at + COORDINATOR_KEYS_MAX]),
                version=version)
            if any(row.node_id not in self.metadata.nodes for row in response.coordinators
                   if not row.error_code):
                await self.refresh()
            for row in response.coordinators:
                if not row.error_code and row.node_id in self.metadata.nodes:
                    found[row.key] = self._coordinators[kind, row.key] = row.node_id
                else:
                    found[row.key] = error(
                        row.error_code or ErrorCode.COORDINATOR_NOT_AVAILABLE, row.error_message,
                        f"coordinator of {row.key!r}")
        return found

    def forget_coordinator(self, kind: int, key: str) -> None:
        """Look the coordinator up again before its next use."""
        self._coordinators.pop((kind, key), None)

    async def retry(self, attempt: Callable[[], Awaitable[Any]],
                    timeout_s: float | None = None) -> Any:
        """Await attempt() until it succeeds, fails permanently, or times out.

        timeout_s: None for default.api.timeout.ms. Raises attempt's exception, or KafkaTimeoutError
        with it as the cause.
        """
        if timeout_s is None:
            timeout_s = self.settings.seconds("default.api.timeout.ms")
        pauses = self.backoff()
        last: KafkaError | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await attempt()
                    except KafkaError as failure:
                        if not failure.retriable or self.closed:
                            raise
                        last = failure
                        if failure.stale_metadata:
                            self.request_refresh()
                        await asyncio.sleep(pauses.next())
        except TimeoutError as ended:
            if isinstance(ended, KafkaError):
                raise
            opening = self.traffic.opening
            why = last or (opening.connect_progress() if opening is not None else "")
            raise KafkaTimeoutError(f"not done within {rounded(timeout_s)}"
                                    f"{f': {why}' if why else ''}") from last


def _noted(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception, so that asyncio does not log it if all waiters were cancelled."""
    if not task.cancelled():
        task.exception()
