"""The audit log's topic: the same lines as the audit file, each a record with a JSON object.

Owns: the queued lines, and the task that writes them.
Invariants: a full queue never blocks a request: the line is dropped and counted, as for the file;
  all lines of a broker are in one partition, in order; lines whose write is not confirmed are
  retried until the broker stops, so they may be duplicated.
Source: none.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice

from pylog import supervisor
from pylog._native.records import batch
from pylog.config import ConfigError
from pylog.coordinator.runtime.internal_topic import InternalTopic, TopicSpec
from pylog.metadata.controller.partitions.topics import topic_name_fault
from pylog.protocol.errors import ErrorCode
from pylog.security.authorization.audit import LINES_MAX, AuditSink

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog.coordinator.runtime.broker_client import Brokers
    from pylog.coordinator.runtime.internal_topic import Node
    from pylog.protocol.errors import Error

log = logging.getLogger("pylog.audit")

BATCH_BYTES = 256 << 10  # Of one batch.
APPEND_SECONDS = 10.0
AGAIN_SECONDS = 1.0
END_SECONDS = 2.0


class AuditTopic(AuditSink):
    """Writes lines to the topic `name` and creates it if it is missing. Raises ConfigError."""

    def __init__(self, name: str, node: Node, brokers: Brokers):
        super().__init__()
        fault = topic_name_fault(name)
        if fault is not None:
            raise ConfigError(f"audit.log.topic={name}: {fault}")
        self.name = name
        self._node = node
        self._brokers = brokers
        self._topic = InternalTopic(TopicSpec(
            name, node.settings["num.partitions"], node.settings["default.replication.factor"],
            {}), node)
        self._waiting: deque[bytes] = deque()
        self._is_logged = False
        self._more = asyncio.Event()
        self._empty = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start writing queued and new lines. Call on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._more.set()
        self._writing = self._loop.create_task(
            supervisor.restarting("audit topic", self._write))

    async def stop(self) -> None:
        """Write the queued lines for at most END_SECONDS, and log the number that remains."""
        if self._writing is None:
            return
        try:
            async with asyncio.timeout(END_SECONDS):
                while self._waiting:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            log.error("lines of the audit log could not be written to its topic", extra={
                "topic": self.name, "lines": len(self._waiting)})
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)
        self._writing = None

    def offer(self, line: str) -> bool:
        """Queue a line. Return False if the queue is full. Callable from any thread."""
        data = line.encode(errors="backslashreplace")
        if len(self._waiting) >= LINES_MAX or not self._has_room(len(data)):
            return False
        self._waiting.append(data)
        self._came += len(data)
        if self._loop is not None and len(self._waiting) == 1:
            self._loop.call_soon_threadsafe(self._more.set)
        return True

    async def _write(self) -> None:
        most = BATCH_BYTES
        while True:
            if not self._waiting:
                self._more.clear()
                self._empty.set()
                await self._more.wait()
                continue
            lines = self._next(most)
            error = await self._written(lines)
            is_too_large = error == ErrorCode.MESSAGE_TOO_LARGE
            if error == ErrorCode.NONE or is_too_large and len(lines) == 1:
                for _ in lines:
                    self._went += len(self._waiting.popleft())
                self.dropped += is_too_large
                most, self._is_logged = BATCH_BYTES, False
            elif is_too_large:
                most = 0  # One line per batch: the topic's max.message.bytes is small.
            else:
                self._tell(error.name)
                await asyncio.sleep(AGAIN_SECONDS)  # Retry the unconfirmed lines.

    def _tell(self, reason: str) -> None:
        """Log a failure, once until the next success."""
        if not self._is_logged:
            self._is_logged = True
            log.warning("cannot write the audit log's topic; retrying", extra={
                "topic": self.name, "reason": reason})

    def _next(self, most: int) -> list[bytes]:
        """Return the oldest lines, up to `most` bytes but at least one."""
        lines, size = [self._waiting[0]], len(self._waiting[0])
        for line in islice(self._waiting, 1, None):
            size += len(line)
            if size > most:
                break
            lines.append(line)
        return lines

    async def _written(self, lines: list[bytes]) -> Error:
        now_ms = self._node.now_ms()
        data = batch.build([(None, line, now_ms, ()) for line in lines])
        try:
            async with asyncio.timeout(APPEND_SECONDS):
                error = await self._topic.ensure()
                topic = self._topic.current
                if error != ErrorCode.NONE or topic is None:
                    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                # One partition per broker keeps its lines in order.
                index = self._node.node_id % len(topic.partitions)
                return await self._brokers.append(topic, index, data)
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT
        except Exception as failure:
            # For example, the controller cannot write its log. The lines are retried.
            self._tell(str(failure) or type(failure).__name__)
            return ErrorCode.UNKNOWN_SERVER_ERROR
