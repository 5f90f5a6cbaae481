"""Processes the events of the reactors: decodes requests, calls handlers, sends responses, and
decides misses.

Owns: the tasks of asynchronous handlers while they run.
Invariants: one response: each request gets exactly one response, or its connection is closed;
  atomic misses: a miss is decided from the current image in one step, so that no grant outlives its
  topic; request time quotas count the time of handlers, but not the time that they wait; bounded
  slices: group requests run first, and requests of either kind occupy the event loop for at most
  SLICE_NS at a time; all responses pass through _reply(), whatever a handler returns; bounded
  responses: duplicate elements of a request are handled once, long requests and responses are
  processed in slices, and no response exceeds control.response.bytes.max; separate queues: a long
  request that waits for a disk or a decision delays only long requests of the same kind: groups,
  Metadata, others.
Source: KIP-511 (ApiVersions in any version), KIP-896 (supported versions), KIP-124 and KIP-219
  (quotas).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import types
from collections import deque

from pylog import supervisor
from pylog._native.grants import FOLLOW, READ, WRITE
from pylog._native.message import AnswerTooLong
from pylog._native.reactor import (
    Closed, Connected, MayJoin, Miss, RequestContext, Slow, UnknownClient, Unsafe, Verify,
)
from pylog.coordinator.runtime.deferred_reply import Pending
from pylog.eventloop import cpu_time
from pylog.eventloop.fair_slots import FairSlots
from pylog.peer.errors import PeerError
from pylog.protocol import api, codec, elements
from pylog.protocol.answers import Answer
from pylog.protocol.elements import ELEMENTS, WHOLE_MAX
from pylog.protocol.errors import ErrorCode, ProtocolError
from pylog.server import request_log, response_cache
from pylog.server.response_cache import AnswerCache, Making

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from pylog._native.grants import Grants
    from pylog._native.reactor import Event, Reactors
    from pylog.api.handler import Handler
    from pylog.config import Settings
    from pylog.config.client_quotas import ClientQuotas
    from pylog.coordinator.transactions.verification import Verification
    from pylog.eventloop.end_of_tick import EndOfTick
    from pylog.metadata.image.image import Topic
    from pylog.metadata.service import MetadataService
    from pylog.replication.forwarding import Forwarding
    from pylog.security.access import Access
    from pylog.server.connection_security import Guard
    from pylog.server.controller_listeners import ControllerListeners

log = logging.getLogger("pylog.dispatch")

ANSWER_UNSUPPORTED_VERSION = 0  # for unknown versions of ApiVersions (KIP-511)
# A late heartbeat costs a group member its partitions, so these never wait for long requests.
PROMPT = frozenset((
    api.JOIN_GROUP, api.SYNC_GROUP, api.LEAVE_GROUP, api.OFFSET_COMMIT, api.OFFSET_FETCH,
    api.FIND_COORDINATOR, api.HEARTBEAT, api.CONSUMER_GROUP_HEARTBEAT, api.SHARE_GROUP_HEARTBEAT,
    api.STREAMS_GROUP_HEARTBEAT))
QUEUED_MAX = 1024  # Maximum of queued group requests, of other requests, and of events per poll.
SLICE_NS = 5_000_000
QUEUED_REPLIES_MAX = 64  # Before a flush.
CACHED = frozenset((api.METADATA,))
LONG_MAX = 2  # Concurrent long requests of each kind.
LONG_SLICE_NS = SLICE_NS // 3  # All three kinds may run in one slice.
LONG_BYTES_MAX = 64 << 20  # Running or queued, of each kind.
DECODED_BYTES_MAX = 32 << 20  # Decoded size of a request or chunk.
UNSURVEYED_BYTES_MAX = 256 << 10  # Longer requests are checked in a thread.

# Result types of a handler other than a response (pylog.api): parts, and awaitables.
PARTS = frozenset((types.GeneratorType, types.AsyncGeneratorType))
AWAITED = frozenset((types.CoroutineType, Pending))
_NO_MORE = object()


class Dispatcher:
    """Routes requests to `handlers` by api key, and decides misses."""

    def __init__(self, reactors: Reactors, handlers: dict[int, Handler], *,
                 metadata: MetadataService, settings: Settings, quotas: ClientQuotas,
                 grants: Grants, install: Callable[[Topic], bool], verification: Verification,
                 turn: EndOfTick, guard: Callable[[], Guard] | None = None,
                 access: Access | None = None,
                 forwarding: Forwarding | None = None, control: ControllerListeners | None = None,
                 closed: Callable[[Closed], None] | None = None,
                 may_join: Callable[[bytes, int, int], None] | None = None):
        """metadata: has the current image. install: makes a topic available to the data plane;
        returns False while none of its logs is open. guard: returns the connection security,
        created on first use; access: None allows everything. verification: of transactional
        produces. turn: ended after each drain(). forwarding: to a remote controller; None if the
        controller is local. control: the controller listeners, if any. closed: called when a
        connection closes, for connections that requested it. may_join: called when a follower has
        caught up.
        """
        assert handlers.keys() | {api.PRODUCE, api.FETCH} == api.SERVED.keys(), sorted(handlers)
        self._reactors = reactors
        self._handlers = handlers
        self._metadata = metadata
        self._quotas = quotas
        self._grants = grants
        self._install = install
        self._verification = verification
        self._turn = turn
        self._guard = guard
        self._access = access
        self._forwarding = forwarding
        self._may_join = may_join
        self._control = control
        self._closed = closed
        if control is not None:
            control.answer_with(self.answered)
        self._elements_max = settings["control.request.elements.max"]
        self._answer_bytes_max = settings["control.response.bytes.max"]
        self._groups_turns, self._metadata_turns, self._other_turns = (
            FairSlots(quotas.clock_ns, LONG_SLICE_NS, LONG_MAX, LONG_BYTES_MAX)
            for _ in range(3))
        self._tasks: set[asyncio.Task[object]] = set()
        self._cache = AnswerCache()
        self._prompt: deque[RequestContext] = deque()  # Queued requests, oldest first: of groups,
        self._patient: deque[RequestContext] = deque()  # and others.
        self._queued = 0  # Replies since the last flush.
        self._flush_is_due = False  # A flush is scheduled for this loop iteration.
        self._resuming = False

    def drain(self) -> None:
        """Process available events and requests for at most one slice.

        Also takes events that arrive during the slice: work deferred to its end, such as appends
        and responses, then forms larger batches.
        """
        self._flush_is_due = True
        self._turn.begin()
        try:
            self._drain()
        finally:
            # Even after an exception, finish the deferred work and send the responses.
            self._turn.end()
            self._flush()

    def _drain(self) -> None:
        until_ns = self._quotas.clock_ns() + SLICE_NS
        while (self._poll() or self._prompt) and self._quotas.clock_ns() < until_ns:
            while self._prompt and self._quotas.clock_ns() < until_ns:
                self._serve(self._prompt.popleft())
        until_ns = self._quotas.clock_ns() + (SLICE_NS // 5 if self._prompt else SLICE_NS)
        while self._patient:
            self._serve(self._patient.popleft())
            if self._quotas.clock_ns() >= until_ns:
                break
        if (self._prompt or self._patient) and not self._resuming:
            self._resuming = True  # Bounded slices: let other tasks of the event loop run.
            asyncio.get_running_loop().call_soon(self._resume)

    def _poll(self) -> bool:
        """Queue new events. Return False if there are none."""
        if max(len(self._prompt), len(self._patient)) >= QUEUED_MAX:
            return False
        events = self._reactors.poll()
        for event in events:
            if type(event) is not RequestContext:
                self._take(event)
            else:
                (self._prompt if event.api_key in PROMPT else self._patient).append(event)
        return bool(events)

    def _resume(self) -> None:
        self._resuming = False
        self.drain()

    def _take(self, event: Event) -> None:
        """Process an event that is not a request."""
        try:
            if type(event) is Miss:
                self._decide_miss(event)
            elif type(event) is Verify:
                self._spawn(self._verify(event))
            elif type(event) is UnknownClient:
                self._quotas.install(event.principal, event.client_id)
                self._reactors.retry(event.connection)
            elif type(event) is Slow:
                request_log.slow(event)
            elif type(event) is MayJoin and self._may_join is not None:
                self._may_join(event.topic_id, event.partition, event.broker_id)
            elif type(event) is Unsafe:
                request_log.unsafe(event)
            elif type(event) is Connected:
                self._security().connected(event)
            elif type(event) is Closed:
                assert self._closed is not None  # Only connections with set_interest() send it.
                self._closed(event)
        except Exception:
            # A bug. The other events of the poll must still be processed.
            log.exception("an event was not served", extra={"event": type(event).__name__})
            if isinstance(event, UnknownClient | Connected):
                # The connection waits for this response.
                self._reactors.close_connection(event.connection)

    def _send(self, context: RequestContext, frame: bytes, throttle_ms: int) -> None:
        """Queue a response. Responses of one loop iteration are flushed together."""
        self._reactors.queue_reply(context.token, frame, context.correlation_id, throttle_ms)
        self._queued += 1
        if self._queued >= QUEUED_REPLIES_MAX:
            self._queued = 0
            self._reactors.flush_replies()
        elif not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._queued = 0
        self._reactors.flush_replies()

    # ---- a request ------------------------------------------------------------------------------

    def _serve(self, context: RequestContext) -> None:
        assert not context.taken_ns, context.token
        try:
            context.taken_ns = self._reactors.now_ns()
            body = context.take_body()
            if context.api_version < 0:
                self._security().authentication.raw_token(context, body)
                return
            if self._is_forwarded(context, body):
                context.parked_ns = context.taken_ns
                self._spawn(self._forward(context, body))
                return
            key = self._cache_key(context, body) if context.api_key in CACHED else None
            if key is not None and self._serve_from_cache(context, key):
                return
            counts = self._quotas.timed
            began_ns = self._quotas.clock_ns() if counts else 0
            result = self._handle(context, body)
            if context.repeat is not None:
                context.keep_body(body)
            if counts:
                context.busy_ns = self._quotas.clock_ns() - began_ns
                if type(result) is types.CoroutineType:
                    result = cpu_time.timed(result, context, self._quotas.clock_ns)
            if key is not None and context.cacheable:
                self._reply_and_cache(context, result, key)
            else:
                self._conclude(context, result)
        except ProtocolError as error:
            self._refuse(context, error)
        except Exception:
            # Even after a bug, the request gets a response, and the other events are processed.
            self._fail(context)

    def _handle(self, context: RequestContext, body: bytes) -> Any:
        """Return the response or an awaitable."""
        row = ELEMENTS.get(context.api_key)
        if row is not None and len(body) > row.short_bytes_max:
            return self._long(context, body)
        result = self._handler(context)(context, self._decode(context, body, row))
        return self._in_parts(context, result) if type(result) in PARTS else result

    def _handler(self, context: RequestContext) -> Handler:
        """Return the handler. Raises ProtocolError if the listener does not serve the request."""
        if self._control is not None and self._control.is_own(context.listener):
            return self._control.handler(context.api_key)
        if context.api_key not in self._handlers:
            raise ProtocolError("a controller's request on another listener")
        return self._handlers[context.api_key]

    async def answered(self, context: RequestContext, body: bytes) -> bytes:
        """Handle a request from an envelope and return the response frame without its size. Raises
        ProtocolError.
        """
        result = self._handle(context, body)
        answer = await result if type(result) in AWAITED else result
        return codec.response_frame(
            context.api_key, context.api_version, context.correlation_id, answer,
            size_prefix=False, bytes_max=self._answer_bytes_max)

    def _is_forwarded(self, context: RequestContext, body: bytes) -> bool:
        """Return True if the request belongs to a remote controller. Raises ProtocolError."""
        # A request on a controller listener is for this controller, active or not.
        return self._forwarding is not None and not (
            self._control is not None and self._control.is_own(context.listener)) \
            and self._forwarding.takes(context, body)

    async def _forward(self, context: RequestContext, body: bytes) -> None:
        """Forward the request to the active controller."""
        assert self._forwarding is not None
        try:
            frame = await self._forwarding.forward(context, body)
        except PeerError as error:
            self._refuse(context, error)
        except Exception:
            self._fail(context)
        else:
            self._send(context, frame, 0)
            self._count(context, self._reactors.now_ns(), ErrorCode.NONE)

    def _conclude(self, context: RequestContext, result: Any) -> None:
        """Pass a handler's result to _reply(), immediately or when it is available."""
        _WAYS.get(type(result), Dispatcher._reply)(self, context, result)

    def _reply_when_answered(self, context: RequestContext, pending: Pending) -> None:
        if not pending.is_answered:
            context.parked_ns = self._reactors.now_ns()
        pending.then(functools.partial(self._reply, context))

    def _reply_when_finished(self, context: RequestContext, coroutine: Coroutine) -> None:
        context.parked_ns = self._reactors.now_ns()
        self._spawn(self._finish(context, coroutine))

    def _spawn(self, coroutine: Coroutine) -> None:
        task = asyncio.get_running_loop().create_task(supervisor.reporting("requests", coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, context: RequestContext, coroutine: Coroutine) -> bytes | None:
        """Send the coroutine's response. Return the frame, None if it failed."""
        try:
            answer = await coroutine
        except ProtocolError as error:
            self._refuse(context, error)
        except Exception:
            self._fail(context)
        else:
            return self._reply(context, answer)
        return None

    def _decode(self, context: RequestContext, body: bytes, row) -> Any:
        """Decode the request. Return None for an unknown version of ApiVersions."""
        key, version = context.api_key, context.api_version
        if key == api.API_VERSIONS and not api.is_served(18, version):
            return None
        if row is None:
            return codec.decode_request(key, version, body, 0, DECODED_BYTES_MAX, WHOLE_MAX)
        request = codec.decode_request(key, version, body, 0, DECODED_BYTES_MAX, row.whole_max)
        if elements.repeats(row, request):
            # Bounded responses: handle duplicate elements once.
            pieces = self._pieces(context, body)
            pieces.survey()
            request = pieces.next(pieces.leaves)
        return request

    # ---- cached responses -----------------------------------------------------------------------

    def _cache_key(self, context: RequestContext, body: bytes) -> tuple | None:
        """Return what the response depends on besides the image, None if it is not cacheable."""
        if len(body) > response_cache.BODY_BYTES_MAX or self._quotas.timed:
            return None
        if self._metadata.departures is not None and self._metadata.departures.any:
            return None
        return (context.api_key, context.api_version, context.listener, context.local_host,
                context.local_port, context.principal, body)

    def _serve_from_cache(self, context: RequestContext, key: tuple) -> bool:
        image = self._metadata.image
        frame = self._cache.find(image, key)
        if frame is not None:
            self._send(context, frame, 0)
            self._count(context, context.taken_ns, ErrorCode.NONE)
            return True
        if self._cache.join(image, key, context):
            context.parked_ns = context.taken_ns
            return True
        return False

    def _reply_and_cache(self, context: RequestContext, result: Any, key: tuple) -> None:
        image = self._metadata.image
        if type(result) is types.CoroutineType:
            context.parked_ns = self._reactors.now_ns()
            making = self._cache.begin(image, key)
            self._spawn(self._finish_for_all(context, result, key, making))
            return
        assert type(result) not in AWAITED, type(result)
        frame = self._reply(context, result)
        if frame is not None:
            self._cache.add(image, key, frame)

    async def _finish_for_all(
            self, context: RequestContext, coroutine: Coroutine, key: tuple,
            making: Making) -> None:
        """Finish a cacheable response, and send it to all requests that joined it."""
        try:
            frame = await self._finish(context, coroutine)
        finally:
            self._cache.end(key, making)
        if frame is not None:
            self._cache.add(making.image, key, frame)
        for other in making.waiting:
            if frame is None:
                self._refuse(other, "the same request before it was refused")
            else:
                self._send(other, frame, 0)
                self._count(other, self._reactors.now_ns(), ErrorCode.NONE)

    # ---- long requests, long answers ------------------------------------------------------------

    def _pieces(self, context: RequestContext, body: bytes) -> Any:
        return codec.request_in_pieces(
            context.api_key, context.api_version, body,
            self._elements_max, DECODED_BYTES_MAX, ELEMENTS[context.api_key].whole_max)

    def _answer(self, context: RequestContext) -> Answer:
        return Answer(context.api_key, context.api_version, self._answer_bytes_max)

    def _turns_of(self, api_key: int) -> FairSlots:
        # Separate queues: a long request occupies its slot for as long as its handler waits.
        if api_key in PROMPT:
            return self._groups_turns
        return self._metadata_turns if api_key == api.METADATA else self._other_turns

    async def _long(self, context: RequestContext, body: bytes) -> Any:
        """Process a request a few elements at a time, and return the response."""
        turns = self._turns_of(context.api_key)
        handle = self._handler(context)
        row = ELEMENTS[context.api_key]
        async with turns.acquire(len(body)):
            await turns.next()
            pieces = self._pieces(context, body)
            if pieces is None or not await self._surveyed(turns, pieces, body):
                return await self._whole(
                    context, handle(context, self._decode(context, body, row)))
            answer = self._answer(context)
            while (request := pieces.next(row.piece)) is not None:
                await self._add(turns, answer, handle(context, request))
                await turns.slice()
            return answer.finished()

    async def _surveyed(self, turns: FairSlots, pieces, body: bytes) -> bool:
        if len(body) <= UNSURVEYED_BYTES_MAX:
            return pieces.survey()
        found = await asyncio.get_running_loop().run_in_executor(None, pieces.survey)
        await turns.next()
        return found

    async def _whole(self, context: RequestContext, result: Any) -> Any:
        """Return the complete response for a handler's result."""
        if type(result) not in PARTS:
            return await result if type(result) in AWAITED else result
        answer = self._answer(context)
        await self._add(self._turns_of(context.api_key), answer, result)
        return answer.finished()

    async def _add(self, turns: FairSlots, answer: Answer, result: Any) -> None:
        """Add a handler's result with all its parts. A part of None only pauses."""
        if type(result) is types.GeneratorType:
            for part in result:
                if part is not None:
                    answer.add(part)
                await turns.slice()
        elif type(result) is types.AsyncGeneratorType:
            async for part in result:
                if part is not None:
                    answer.add(part)
                await turns.slice()
        else:
            answer.add(await result if type(result) in AWAITED else result)

    def _in_parts(self, context: RequestContext, parts: Any) -> Any:
        """Return the response; a coroutine if there is more than one part."""
        if type(parts) is types.AsyncGeneratorType:
            return self._rest(context, [], parts)
        first = next(parts)
        second = next(parts, _NO_MORE)
        if second is _NO_MORE:
            assert first is not None, context.api_key
            return first
        return self._rest(context, [first, second], parts)

    async def _rest(self, context: RequestContext, begun: list, parts: Any) -> Any:
        turns = self._turns_of(context.api_key)
        async with turns.acquire(0):
            answer = self._answer(context)
            for part in begun:
                if part is not None:
                    answer.add(part)
            await turns.next()
            await self._add(turns, answer, parts)
            return answer.finished()

    # ---- replies --------------------------------------------------------------------------------

    def _reply(self, context: RequestContext, answer: Any) -> bytes | None:
        """Send a response. Return its frame, None if it failed."""
        begun_ns = self._reactors.now_ns()
        version = context.api_version
        if context.api_key == api.API_VERSIONS and not api.is_served(18, version):
            version = ANSWER_UNSUPPORTED_VERSION
        try:
            throttle_ms = self._throttle_ms(context)
            if throttle_ms and hasattr(answer, "throttle_time_ms"):
                answer.throttle_time_ms = throttle_ms
            frame = codec.response_frame(
                context.api_key, version, context.correlation_id, answer,
                bytes_max=self._answer_bytes_max)
            # As in Kafka: respond immediately, then mute the connection, also for old clients.
            if context.closes:
                self._reactors.reply(context.token, frame, close=True)
            else:
                self._send(context, frame, throttle_ms)
                if context.repeat is not None and not throttle_ms and not answer.error_code:
                    context.answer_again(frame)
        except AnswerTooLong as error:
            self._refuse(context, error)
            return None
        except Exception:
            self._fail(context)
            return None
        self._count(context, begun_ns, getattr(answer, "error_code", 0))
        return frame

    def _throttle_ms(self, context: RequestContext) -> int:
        if not context.busy_ns:
            return context.throttle_ms
        return max(context.throttle_ms, self._quotas.charge_time(
            context.principal, (context.client_id or "").encode(), context.busy_ns))

    def _count(self, context: RequestContext, begun_ns: int, error_code: int) -> None:
        """Record the request's time. The time of awaitables counts as parked, including their work.
        """
        parked_ns = begun_ns - context.parked_ns if context.parked_ns else 0
        self._reactors.answered(
            context.api_key, context.taken_ns - context.began_ns,
            self._reactors.now_ns() - context.taken_ns - parked_ns, parked_ns, error_code)

    def _refuse(self, context: RequestContext, error: object) -> None:
        log.info("request refused", extra={
            "peer": context.peer_host, "api": context.api_key, "version": context.api_version,
            "reason": str(error)})
        self._reactors.reply(context.token, None, close=True)
        self._count(context, self._reactors.now_ns(), ErrorCode.INVALID_REQUEST)

    def _fail(self, context: RequestContext) -> None:
        """A bug: log it with its traceback and close the connection."""
        log.exception("request failed", extra={
            "peer": context.peer_host, "api": context.api_key, "version": context.api_version})
        self._reactors.reply(context.token, None, close=True)
        self._count(context, self._reactors.now_ns(), ErrorCode.UNKNOWN_SERVER_ERROR)

    # ---- misses ---------------------------------------------------------------------------------

    def _security(self) -> Guard:
        assert self._guard is not None  # Only Guard enables such events.
        return self._guard()

    def _decide_miss(self, miss: Miss) -> None:
        errors: list[int] = [ErrorCode.UNKNOWN_SERVER_ERROR] * len(miss.topics)
        try:
            for index, (name, topic_id) in enumerate(miss.topics):
                errors[index] = self._grant(miss, name, topic_id)
        finally:
            # Always resume: the connection waits for this response.
            self._reactors.resume(miss.token, errors)

    async def _verify(self, asked: Verify) -> None:
        """Check if partitions are part of the producer's transaction. Always resumes the request.
        """
        verdicts: list[int]
        try:
            if self._access is not None and not self._security().may_write_in(asked):
                verdicts = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * len(asked.partitions)
            else:
                verdicts = await self._verification.verdicts(asked)
        except Exception:
            # Without verdicts the producer would never get a response.
            supervisor.report("requests", "cannot verify the partitions of a transaction")
            verdicts = [ErrorCode.UNKNOWN_SERVER_ERROR] * len(asked.partitions)
        self._reactors.resume(asked.token, verdicts)

    def _grant(self, miss: Miss, name: bytes | None, topic_id: bytes | None) -> int:
        """Install the grant for one topic, in one step from the current image. Return an error
        code.
        """
        image = self._metadata.image
        if name is not None:
            text = name.decode("utf-8", "replace")
            topic = image.topics.get(text)
            refusal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topic = image.topics_by_id.get(topic_id)
            refusal = ErrorCode.UNKNOWN_TOPIC_ID
            text = "" if topic is None else topic.name
        rights = READ | WRITE | FOLLOW
        # An empty name is also checked, because Kafka checks authorization before names. An unknown
        # id has no name to check.
        if self._access is not None and (name is not None or text):
            # An unauthorized client must not learn if the topic exists.
            may = self._security().may(miss, text)
            if may is None:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            if not may:
                return ErrorCode.TOPIC_AUTHORIZATION_FAILED
            rights = miss.right
        if topic is None:
            return refusal
        if not self._install(topic):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._grants.allow(miss.principal, topic.id, rights)
        return ErrorCode.NONE


# The type of a handler's result selects the function; any other type is a response. Not bound
# methods: they would form a reference cycle that keeps a dispatcher alive until garbage collection.
_WAYS: dict[type, Callable[[Dispatcher, RequestContext, Any], object]] = {
    Pending: Dispatcher._reply_when_answered, types.CoroutineType: Dispatcher._reply_when_finished}
