"""The listeners of a simulated node.

Serves brokers and controllers as pylog's handlers do, clients and followers as the native server
does.

Owns: the server's side of each connection.
Invariants: requests of a connection are answered one after the other, in order.
Source: pylog.server.request_runner, csrc/serve.
"""

import asyncio
from types import SimpleNamespace

from pylog._native.log.log import LogError
from pylog._native.records import batch
from pylog.api.cluster.broker_to_controller import LocalController
from pylog.peer.connection import key_of
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.replication.fetching import EARLIEST
from tests.sim import fetchers
from tests.sim.logs import NS
from tests.sim.network import End
from tests.sim.wire import ENSURE, Asked, Consume, Produce, Replied, Transactional

PRODUCE_VERSION = 11
BROKER_PORT, CONTROLLER_PORT = 9092, 9093


class Connection:
    """The server's side of a connection. answer() handles one request after the other."""

    def __init__(self, end: End):
        self.end, self.process = end, end.process
        self.number = self.process.next_connection()
        self._waiting: list = []
        self._task = None

    def data_received(self, asked) -> None:
        self._waiting.append(asked)
        if self._task is None:
            self._task = self.process.node.world.in_name_of(self.process, self._serve())

    async def _serve(self) -> None:
        while self._waiting:
            asked = self._waiting.pop(0)
            answer = await self.answer(asked)
            if answer is not None:
                self.end.write(answer)
        self._task = None

    def connection_lost(self, error) -> None:
        """Let the pending request finish; its response is dropped."""


class ControllerConnection(Connection):
    """A connection to a controller's listener."""

    async def answer(self, asked):
        message = asked.message
        context = SimpleNamespace(connection=self.number, api_version=asked.version,
                                  principal=0, client_id="", throttle_ms=0,
                                  local_host=self.process.host, local_port=CONTROLLER_PORT)
        if callable(message):
            # An admin client's request: (the active controller) -> a coroutine.
            try:
                return Replied(asked.number, await message(LocalController(self.process.metadata)))
            except LogError as error:
                return Replied(asked.number, error)
        self.process.node.world.record_request(self.process.node, message)
        result = self.process.handlers[key_of(message)](context, message)
        if asyncio.iscoroutine(result):
            result = await result
        return Replied(asked.number, result)

    def connection_lost(self, error) -> None:
        super().connection_lost(error)
        controller = self.process.metadata.controller
        if controller is not None:
            controller.connection_closed(self.number)


class BrokerConnection(Connection):
    """A connection to a broker's listener: Fetch of followers, Produce and Fetch of clients."""

    async def answer(self, asked):
        if isinstance(asked, fetchers.FetchAsk):
            return await self._fetched(asked)
        assert isinstance(asked, Asked), asked
        message = asked.message
        if isinstance(message, Produce):
            return Replied(asked.number, await self._produced(message))
        if isinstance(message, Consume):
            return Replied(asked.number, self._consumed(message))
        if isinstance(message, Transactional):
            return Replied(asked.number, await self._written(message))
        if isinstance(message, messages.ListOffsetsRequest):
            return Replied(asked.number, self._ends(message))
        coordinators = self.process.coordinators
        if message is ENSURE:
            return Replied(asked.number, await coordinators.ensure_topics())
        result = coordinators.handlers[key_of(message)](
            SimpleNamespace(api_version=asked.version, connection=self.number, principal=0),
            message)
        return Replied(asked.number, await result if hasattr(result, "__await__") else result)

    def _ends(self, request):
        """Return a log's start or end offset for a follower."""
        topic, = request.topics
        part, = topic.partitions
        log = self.process.logs.get(topic.name, part.partition_index)
        new = messages.ListOffsetsResponse
        row = new.ListOffsetsPartitionResponse(partition_index=part.partition_index)
        if log is None or not log.is_leader:
            row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            row.offset = log.start_offset if part.timestamp == EARLIEST else log.end_offset
        return new(topics=[new.ListOffsetsTopicResponse(name=topic.name, partitions=[row])])

    async def _written(self, wanted) -> int:
        """Append a transactional batch and return an error code as produce.c does."""
        log = self.process.logs.by_id(wanted.topic_id, wanted.index)
        if log is None or not log.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if log.in_sync_count < log.in_sync_count_min:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        _, header = next(batch.walk(wanted.data))
        guard = log.written_by.guard(header.producer_id, header.producer_epoch)
        if guard is not None and not log.written_by.is_verified(
                header.producer_id, header.producer_epoch):
            at = log.topic, wanted.index
            found = await self.process.coordinators.verification.of_produce(
                wanted.transactional_id, header.producer_id, header.producer_epoch, [at],
                PRODUCE_VERSION)
            if found[at]:
                return found[at]
        try:
            log.append_in_transaction(wanted.data, guard)
        except LogError as error:
            return error.code
        return await self._replicated(log, log.end_offset - 1, wanted.wait_s)

    async def _fetched(self, request):
        process, loop = self.process, asyncio.get_running_loop()
        now_ns, refused = int(loop.time() * NS), {}
        for ask in request.asks:
            log = process.logs.by_id(ask.topic_id, ask.index)
            if log is None:
                refused[ask] = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            error, may_join = fetchers.enter(log, ask, request, now_ns)
            if error:
                refused[ask] = error
            if may_join:
                loop.call_soon(process.membership.leadership.may_join, ask.topic_id, ask.index,
                               request.replica_id)
        until = loop.time() + request.wait_s
        while True:
            rows = [fetchers.Row(refused[ask]) if ask in refused else fetchers.read(
                process.logs.by_id(ask.topic_id, ask.index), ask)
                if process.logs.by_id(ask.topic_id, ask.index) is not None
                else fetchers.Row(ErrorCode.UNKNOWN_TOPIC_ID) for ask in request.asks]
            if loop.time() >= until or any(
                    row.error or row.diverging or row.records for row in rows):
                return fetchers.FetchAnswer(request.number, rows)
            await self._grown([process.logs.by_id(ask.topic_id, ask.index)
                               for ask in request.asks], until)

    @staticmethod
    async def _grown(logs, until) -> None:
        """Return when one of the logs changes, or at the time `until`."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        timer = loop.call_at(until, _done, waiter)
        for log in logs:
            if log is not None:
                log.waiters.append(waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    async def _produced(self, wanted):
        """Return (error, offset) as produce.c does."""
        log = self.process.logs.by_id(wanted.topic_id, wanted.index)
        if log is None or not log.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if wanted.acks == -1 and log.in_sync_count < log.in_sync_count_min:
            return ErrorCode.NOT_ENOUGH_REPLICAS, -1
        try:
            offset = log.produce(wanted.payload, wanted.count)
        except LogError as error:
            return error.code, -1
        if wanted.acks != -1:
            return 0, offset
        error = await self._replicated(log, log.end_offset - 1, wanted.wait_s)
        return error, -1 if error else offset

    async def _replicated(self, log, offset, wait_s) -> int:
        """Wait until acks=all may be acknowledged up to an offset. Return 0 or an error."""
        process, loop = self.process, asyncio.get_running_loop()
        resignations, until = log.resignations, loop.time() + wait_s
        loop.call_later(process.flush_s(), log.flush_if_well)
        acked = process.node.world.acks_when
        while loop.time() < until:
            if log.log_dir.offline:
                return ErrorCode.KAFKA_STORAGE_ERROR
            if log.closed or log.resignations != resignations:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            if acked(log, offset) and (log.in_sync_count > 1 or log.flushed_offset > offset):
                if log.maximal_count < log.in_sync_count_min:
                    return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
                return 0
            await self._grown([log], until)
        return ErrorCode.REQUEST_TIMED_OUT

    def _consumed(self, wanted):
        """Return (error, records below the high watermark from an offset on)."""
        log = self.process.logs.by_id(wanted.topic_id, wanted.index)
        if log is None or not log.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, []
        if log.log_dir.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR, []
        if wanted.offset > log.high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE, []
        return 0, log.files.records[wanted.offset:log.high_watermark]


def _done(waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)
