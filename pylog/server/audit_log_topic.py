"""The audit log's topic: what the file gets, as records that are a JSON object each.

Owns: the lines that wait to be written there, and the task that writes them.
Invariants: (1) nothing waits for the topic: what there is no room for is counted, as for the file;
  (2) the lines of a broker are in one partition, in order; (3) lines that are not
  known to be written, whatever the reason, are tried again until the broker stops: they may be
  there twice.
Source: none.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice

from pylog import supervisor
from pylog._native import batch
from pylog.config import ConfigError
from pylog.coordinator.runtime.internal_topic import InternalTopic, TopicSpec
from pylog.metadata.controller.partitions.topics import topic_name_fault
from pylog.protocol.errors import ErrorCode
from pylog.security.audit import LINES_MAX, Outlet

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from pylog.coordinator.runtime.broker_client import Brokers
    from pylog.coordinator.runtime.internal_topic import Node
    from pylog.protocol.errors import Error

log = logging.getLogger("pylog.audit")

BATCH_BYTES = 256 << 10      # Of lines that are written at once.
APPEND_SECONDS = 10.0
AGAIN_SECONDS = 1.0
END_SECONDS = 2.0


class AuditTopic(Outlet):
    """Records to the topic called `name`, which is created where it is not. Raises ConfigError."""

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
        self._is_told = False
        self._more = asyncio.Event()
        self._empty = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """On the event loop: what waits by now and comes later is written."""
        self._loop = asyncio.get_running_loop()
        self._more.set()
        self._writing = self._loop.create_task(
            supervisor.restarting("audit topic", self._write))

    async def stop(self) -> None:
        """Gives what still waits END_SECONDS, and says what was left."""
        if self._writing is None:
            return
        try:
            async with asyncio.timeout(END_SECONDS):
                while self._waiting:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            log.error("lines of the audit log are not in its topic", extra={
                "topic": self.name, "lines": len(self._waiting)})
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)
        self._writing = None

    def offer(self, line: str) -> bool:
        """From any thread. Keeps (1)."""
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
                most, self._is_told = BATCH_BYTES, False
            elif is_too_large:
                most = 0     # One at a time: the topic takes less than others do.
            else:
                self._tell(error.name)
                await asyncio.sleep(AGAIN_SECONDS)   # Keeps (3).

    def _tell(self, reason: str) -> None:
        """Once until it works again."""
        if not self._is_told:
            self._is_told = True
            log.warning("the audit log's topic is not written: tried again", extra={
                "topic": self.name, "reason": reason})

    def _next(self, most: int) -> list[bytes]:
        """The oldest lines, of `most` bytes or one."""
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
                # Keeps (2).
                index = self._node.node_id % len(topic.partitions)
                return await self._brokers.append(topic, index, data)
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT
        except Exception as failure:
            # Keeps (3): a controller that cannot write its log, say.
            self._tell(str(failure) or type(failure).__name__)
            return ErrorCode.UNKNOWN_SERVER_ERROR
