"""From the reactors' events to handlers and back: decode, route, reply; decide misses.

Owns: the tasks of asynchronous handlers while they run.
Called by: broker, which calls Dispatcher.drain whenever the reactors' descriptor is readable.
Invariants: (1) every request event is answered, once, or its connection is closed; (2) a miss is
  decided from the image as it stands, in one step, so that a grant never outlives its topic; (3)
  where some client's time is limited, the time of handlers counts, but not what they wait for; (4)
  a group's requests wait for no others, and others not longer than SLICE_NS for what the loop has
  to do besides; (5) a lasting answer is given only while the image is the one it was made from;
  (6) what a request names twice is answered once, a long request or answer is worked on in slices,
  and no answer grows beyond control.response.bytes.max; (7) what long requests wait for, a disk or
  another decision, holds up no long ones of another kind: groups', Metadata, the rest.
Source: KIP-511 (ApiVersions in any version), KIP-896 (the versions that are served), KIP-124 and
  KIP-219 (quotas).
"""

import asyncio
import logging
import types
from collections import deque

from pylog._native.grants import READ, WRITE
from pylog._native.message import AnswerTooLong
from pylog.coordinator.service import Pending
from pylog.protocol import api, codec, elements, tables
from pylog.protocol.answers import Answer
from pylog.protocol.elements import ELEMENTS, WHOLE_MAX
from pylog.protocol.errors import ErrorCode, ProtocolError
from pylog.server.turns import Turns

log = logging.getLogger("pylog.dispatch")
requests = logging.getLogger("pylog.request")

ANSWER_UNSUPPORTED_VERSION = 0  # ApiVersions beyond ours is answered in version 0's form.
# A member that is not heard in time loses its partitions: not for others' large questions.
PROMPT = frozenset((api.JOIN_GROUP, api.SYNC_GROUP, api.HEARTBEAT, api.LEAVE_GROUP,
                    api.OFFSET_COMMIT, api.OFFSET_FETCH, api.FIND_COORDINATOR))
PATIENT_MAX = 1024       # Requests taken and not begun.
SLICE_NS = 5_000_000
ANSWERS_LEFT_MAX = 64    # Before the reactors are rung.
LASTING = frozenset((api.METADATA,))
LASTING_BODY_BYTES_MAX = 4096
LASTING_BYTES_MAX = 8 << 20
LONG_MAX = 2                     # Long requests in hand, of each kind (7).
LONG_SLICE_NS = SLICE_NS // 3    # Each kind may have one in a turn of the loop (4).
LONG_BYTES_MAX = 64 << 20        # Of them and of those that wait for their turn, of each kind.
DECODED_BYTES_MAX = 32 << 20     # Memory of a request, or of a piece of one.
UNSURVEYED_BYTES_MAX = 256 << 10 # A longer request is looked through on a thread.

PARTS = (types.GeneratorType, types.AsyncGeneratorType)
_NO_MORE = object()


class Context:
    """What a handler may know of a request besides its message.

    throttle_ms: set by a handler that limits the client by itself. busy_ns: what the handler has
    taken so far. created: topics that the request has made so far. lasting: set by a handler whose
    answer is right for whoever asks the same over the same address, as long as the image stays what
    it is.
    """

    __slots__ = ("api_key", "api_version", "began_ns", "busy_ns", "client_id", "connection",
                 "created", "lasting", "listener", "local_host", "local_port", "parked_ns",
                 "peer_host", "peer_port", "principal", "taken_ns", "throttle_ms")

    def __init__(self, event: tuple):
        (_, _, self.connection, self.listener, self.api_key, self.api_version, _, client_id, _,
         self.local_host, self.local_port, self.peer_host, self.peer_port, self.principal,
         self.began_ns) = event
        self.taken_ns = self.parked_ns = 0
        self.client_id = None if client_id is None else client_id.decode("utf-8", "replace")
        self.throttle_ms = self.busy_ns = self.created = 0
        self.lasting = False


class Lasting:
    """Frames of answers that are given again: by what was asked, and where."""

    def __init__(self):
        self._image = None
        self._answers = {}
        self._bytes = 0

    def find(self, image, key: tuple):
        """The frame that answers `key`, or None. Keeps (5)."""
        if image is not self._image:
            self._image = image
            self._answers.clear()
            self._bytes = 0
        return self._answers.get(key)

    def keep(self, image, key: tuple, frame: bytes) -> None:
        size = len(frame) + len(key[-1])
        if image is not self._image or size > LASTING_BYTES_MAX:
            return
        if self._bytes + size > LASTING_BYTES_MAX:
            self._answers.clear()
            self._bytes = 0
        self._answers[key] = frame
        self._bytes += size


class Dispatcher:
    """Routes events to `handlers`: api key -> handle(broker, context, request), plain or async;
    a plain one may return a Pending of the answer, and either may be a generator of parts of it,
    each of them work for a millisecond or so."""

    def __init__(self, broker, reactors, handlers: dict):
        """broker: gives settings, image, quotas, grants, and what handlers ask it for."""
        assert handlers.keys() | {api.PRODUCE, api.FETCH} == api.SERVED.keys(), sorted(handlers)
        self._broker = broker
        self._reactors = reactors
        self._handlers = handlers
        self._quotas = broker.quotas
        self._elements_max = broker.settings["control.request.elements.max"]
        self._answer_bytes_max = broker.settings["control.response.bytes.max"]
        self._groups_turns, self._metadata_turns, self._other_turns = (
            Turns(broker.quotas.clock_ns, LONG_SLICE_NS, LONG_MAX, LONG_BYTES_MAX)
            for _ in range(3))
        self._tasks: set[asyncio.Task] = set()
        self._lasting = Lasting()
        self._making: dict = {}          # Lasting answers that take long: (image, who waits too).
        self._patient: deque = deque()   # Requests that may wait, oldest first.
        self._left = 0                   # Answers for which the reactors have not been rung.
        self._ringing = False            # It is seen to.
        self._resuming = False

    def drain(self) -> None:
        """Takes every event that is ready, and does of the patient ones what a slice allows.

        What comes meanwhile is taken too, for as long as a slice: what it leaves for the end of
        this turn of the loop, records to append and answers to send, goes in larger batches.
        """
        self._ringing = True
        try:
            self._drain()
        finally:
            # Whatever went wrong, what is answered is sent.
            self._ring()

    def _drain(self) -> None:
        until_ns = self._quotas.clock_ns() + SLICE_NS
        while len(self._patient) < PATIENT_MAX:
            events = self._reactors.poll()
            for event in events:
                if event[0] != "request":
                    self._told(event)
                elif event[4] in PROMPT:
                    self._request(event)
                else:
                    self._patient.append(event)
            if not events or self._quotas.clock_ns() >= until_ns:
                break
        if self._patient:
            self._slice()

    def _slice(self) -> None:
        until_ns = self._quotas.clock_ns() + SLICE_NS
        while self._patient:
            self._request(self._patient.popleft())
            if self._patient and self._quotas.clock_ns() >= until_ns:
                # Keeps (4).
                if not self._resuming:
                    self._resuming = True
                    asyncio.get_running_loop().call_soon(self._resume)
                return

    def _resume(self) -> None:
        self._resuming = False
        self.drain()

    def _told(self, event: tuple) -> None:
        try:
            self._take(event)
        except Exception:
            # A bug of ours: the events that came with it are taken all the same.
            log.exception("an event was not served", extra={"event": event[0]})

    def _take(self, event: tuple) -> None:
        if event[0] == "miss":
            self._miss(event)
        elif event[0] == "quota":
            _, connection, principal, client_id = event
            self._quotas.install(principal, client_id)
            self._reactors.retry(connection)
        elif event[0] == "slow":
            _tell_slow(event[1])

    def _send(self, token: int, frame: bytes, correlation_id: int, throttle_ms: int) -> None:
        """Leaves an answer; the reactors are rung once for those of one turn."""
        self._reactors.queue_reply(token, frame, correlation_id, throttle_ms)
        self._left += 1
        if self._left >= ANSWERS_LEFT_MAX:
            self._left = 0
            self._reactors.flush_replies()
        elif not self._ringing:
            self._ringing = True
            asyncio.get_running_loop().call_soon(self._ring)

    def _ring(self) -> None:
        self._ringing = False
        self._left = 0
        self._reactors.flush_replies()

    def _lasting_key(self, event: tuple):
        """What an answer depends on besides the image; None where it is not worth it."""
        body = event[8]
        if len(body) > LASTING_BODY_BYTES_MAX or self._quotas.timed:
            return None
        # Key, version, listener, the address that was dialled, principal.
        return event[4], event[5], event[3], event[9], event[10], event[13], body

    def _request(self, event: tuple) -> None:
        token, correlation_id, body = event[1], event[6], event[8]
        context = Context(event)
        context.taken_ns = self._reactors.now_ns()
        key = self._lasting_key(event) if event[4] in LASTING else None
        if key is not None:
            frame = self._lasting.find(self._broker.image, key)
            if frame is not None:
                self._send(token, frame, correlation_id, 0)
                self._count(context, context.taken_ns, ErrorCode.NONE)
                return
            making = self._making.get(key)
            if making is not None and making[0] is self._broker.image:
                context.parked_ns = context.taken_ns
                making[1].append((token, context, correlation_id))
                return
        timed = self._quotas.timed
        began_ns = self._quotas.clock_ns() if timed else 0
        try:
            row = ELEMENTS.get(context.api_key)
            if row is not None and len(body) > row.short_bytes_max:
                answer = self._long(context, body)
            else:
                request = self._decode(context, body, row)
                answer = self._handlers[context.api_key](self._broker, context, request)
            if isinstance(answer, PARTS):
                answer = self._in_parts(context, answer)
            if key is not None and context.lasting and not asyncio.iscoroutine(answer):
                self._lasting.keep(self._broker.image, key, codec.response_frame(
                    context.api_key, context.api_version, correlation_id, answer))
        except ProtocolError as error:
            self._refuse(token, context, error)
            return
        except Exception:
            self._fail(token, context)
            return
        if timed:
            context.busy_ns = self._quotas.clock_ns() - began_ns
            if asyncio.iscoroutine(answer):
                answer = _timed(answer, context, self._quotas.clock_ns)
        if isinstance(answer, Pending):
            self._when_done(token, context, correlation_id, answer)
        elif asyncio.iscoroutine(answer):
            context.parked_ns = self._reactors.now_ns()
            if key is not None and context.lasting:
                making = self._making[key] = self._broker.image, []
                finish = self._finish_for_all(
                    token, context, correlation_id, answer, key, making)
            else:
                finish = self._finish(token, context, correlation_id, answer)
            task = asyncio.get_running_loop().create_task(finish)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._reply(token, context, correlation_id, answer)

    def _when_done(self, token, context, correlation_id, pending) -> None:
        if not pending.is_answered:
            context.parked_ns = self._reactors.now_ns()
        pending.then(lambda answer: self._reply(token, context, correlation_id, answer))

    def _decode(self, context: Context, body: bytes, row):
        """The request's message; None for an ApiVersions of a version that nobody can read yet."""
        key, version = context.api_key, context.api_version
        if key == api.API_VERSIONS and not api.is_served(18, version):
            return None
        if row is None:
            return codec.decode_request(key, version, body, 0, DECODED_BYTES_MAX, WHOLE_MAX)
        request = codec.decode_request(key, version, body, 0, DECODED_BYTES_MAX, row.whole_max)
        if elements.repeats(row, request):
            # Keeps (6).
            pieces = self._pieces(context, body)
            pieces.survey()
            request = pieces.next(pieces.leaves)
        return request

    # ---- long requests, long answers ------------------------------------------------------------

    def _pieces(self, context: Context, body: bytes):
        return codec.request_in_pieces(
            context.api_key, context.api_version, body,
            self._elements_max, DECODED_BYTES_MAX, ELEMENTS[context.api_key].whole_max)

    def _answer(self, context: Context) -> Answer:
        return Answer(context.api_key, context.api_version, self._answer_bytes_max)

    def _turns_of(self, api_key: int) -> Turns:
        # Keeps (7): a place is held for as long as its handler waits.
        if api_key in PROMPT:
            return self._groups_turns
        return self._metadata_turns if api_key == api.METADATA else self._other_turns

    async def _long(self, context: Context, body: bytes):
        """The answer to a request that is read and handled a few elements at a time. Keeps (6)."""
        turns = self._turns_of(context.api_key)
        handle = self._handlers[context.api_key]
        row = ELEMENTS[context.api_key]
        async with turns.room(len(body)):
            await turns.next()
            pieces = self._pieces(context, body)
            if pieces is None or not await self._surveyed(turns, pieces, body):
                return await self._answered(
                    context, handle(self._broker, context, self._decode(context, body, row)))
            answer = self._answer(context)
            while (request := pieces.next(row.piece)) is not None:
                await self._add(turns, answer, handle(self._broker, context, request))
                await turns.slice()
            return answer.finished()

    async def _surveyed(self, turns: Turns, pieces, body: bytes) -> bool:
        if len(body) <= UNSURVEYED_BYTES_MAX:
            return pieces.survey()
        found = await asyncio.get_running_loop().run_in_executor(None, pieces.survey)
        await turns.next()
        return found

    async def _answered(self, context: Context, found):
        """The whole answer from what a handler gave."""
        if not isinstance(found, PARTS):
            return await found if asyncio.iscoroutine(found) or isinstance(found, Pending) \
                else found
        answer = self._answer(context)
        await self._add(self._turns_of(context.api_key), answer, found)
        return answer.finished()

    async def _add(self, turns: Turns, answer: Answer, found) -> None:
        """Adds what a handler gave, all of its parts; they may pause with None."""
        if isinstance(found, types.GeneratorType):
            for part in found:
                if part is not None:
                    answer.add(part)
                await turns.slice()
        elif isinstance(found, types.AsyncGeneratorType):
            async for part in found:
                if part is not None:
                    answer.add(part)
                await turns.slice()
        else:
            answer.add(await found if asyncio.iscoroutine(found) or isinstance(found, Pending)
                       else found)

    def _in_parts(self, context: Context, parts):
        """The answer from its parts; a coroutine of it when there is more than one."""
        if isinstance(parts, types.AsyncGeneratorType):
            return self._rest(context, [], parts)
        first = next(parts)
        second = next(parts, _NO_MORE)
        if second is _NO_MORE:
            assert first is not None, context.api_key
            return first
        return self._rest(context, [first, second], parts)

    async def _rest(self, context: Context, begun: list, parts):
        turns = self._turns_of(context.api_key)
        async with turns.room(0):
            answer = self._answer(context)
            for part in begun:
                if part is not None:
                    answer.add(part)
            await turns.next()
            await self._add(turns, answer, parts)
            return answer.finished()

    async def _finish(self, token, context, correlation_id, coroutine) -> bytes | None:
        try:
            answer = await coroutine
        except ProtocolError as error:
            self._refuse(token, context, error)
        except Exception:
            self._fail(token, context)
        else:
            return self._reply(token, context, correlation_id, answer)
        return None

    async def _finish_for_all(
            self, token, context, correlation_id, coroutine, key, making) -> None:
        """Answers those too who ask the same while a long lasting answer is made; keeps it."""
        image, others = making
        try:
            frame = await self._finish(token, context, correlation_id, coroutine)
        finally:
            if self._making.get(key) is making:
                del self._making[key]
        if frame is not None:
            self._lasting.keep(image, key, frame)
        for token, context, correlation_id in others:
            if frame is None:
                self._refuse(token, context, "the same request before it was refused")
            else:
                self._send(token, frame, correlation_id, 0)
                self._count(context, self._reactors.now_ns(), ErrorCode.NONE)

    def _reply(self, token, context, correlation_id, answer) -> bytes | None:
        """Sends an answer. Returns its frame, None when there is none."""
        begun_ns = self._reactors.now_ns()
        version = context.api_version
        if context.api_key == api.API_VERSIONS and not api.is_served(18, version):
            version = ANSWER_UNSUPPORTED_VERSION
        throttle_ms = self._throttle_ms(context)
        if throttle_ms and hasattr(answer, "throttle_time_ms"):
            answer.throttle_time_ms = throttle_ms
        try:
            frame = codec.response_frame(
                context.api_key, version, correlation_id, answer,
                bytes_max=self._answer_bytes_max)
        except AnswerTooLong as error:
            self._refuse(token, context, error)
            return None
        except Exception:
            self._fail(token, context)
            return None
        # Kafka answers at once and leaves the client alone after that, however old its version is.
        self._send(token, frame, correlation_id, throttle_ms)
        self._count(context, begun_ns, getattr(answer, "error_code", 0))
        return frame

    def _throttle_ms(self, context) -> int:
        if not context.busy_ns:
            return context.throttle_ms
        return max(context.throttle_ms, self._quotas.charge_time(
            context.principal, (context.client_id or "").encode(), context.busy_ns))

    def _count(self, context, begun_ns: int, error_code: int) -> None:
        """Where the request's time went; what is awaited counts as parked, work in it too."""
        parked_ns = begun_ns - context.parked_ns if context.parked_ns else 0
        self._reactors.answered(
            context.api_key, context.taken_ns - context.began_ns,
            self._reactors.now_ns() - context.taken_ns - parked_ns, parked_ns, error_code)

    def _refuse(self, token, context, error) -> None:
        log.info("request refused", extra={
            "peer": context.peer_host, "api": context.api_key, "version": context.api_version,
            "reason": str(error)})
        self._reactors.reply(token, None, close=True)
        self._count(context, self._reactors.now_ns(), ErrorCode.INVALID_REQUEST)

    def _fail(self, token, context) -> None:
        """A bug of ours: told in full to the log, to the client by a closed connection."""
        log.exception("request failed", extra={
            "peer": context.peer_host, "api": context.api_key, "version": context.api_version})
        self._reactors.reply(token, None, close=True)
        self._count(context, self._reactors.now_ns(), ErrorCode.UNKNOWN_SERVER_ERROR)

    def _miss(self, event: tuple) -> None:
        _, token, _, _, _, _, principal, topics = event
        decided = [ErrorCode.UNKNOWN_SERVER_ERROR] * len(topics)
        try:
            for place, (name, topic_id) in enumerate(topics):
                decided[place] = self._decide(principal, name, topic_id)
        finally:
            # Keeps (1).
            self._reactors.resume(token, decided)

    def _decide(self, principal: int, name: bytes | None, topic_id: bytes | None) -> int:
        """Installs the grant for one topic, or says with which error code it is refused."""
        broker = self._broker
        if name is not None:
            topic = broker.image.topics.get(name.decode("utf-8", "replace"))
            refusal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topic = broker.image.topics_by_id.get(topic_id)
            refusal = ErrorCode.UNKNOWN_TOPIC_ID
        if topic is None:
            return refusal
        if not broker.install(topic):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        broker.grants.allow(principal, topic.id, READ | WRITE)
        return ErrorCode.NONE


def _tell_slow(slow: dict) -> None:
    """One line of the request log."""
    try:
        name = tables.name_of("request", slow["api_key"]).removesuffix("Request")
    except KeyError:
        name = slow["api_key"]
    requests.warning("slow request", extra={
        "api": name, "version": slow["api_version"],
        "client": slow["client_id"].decode("utf-8", "replace"), "peer": slow["peer"],
        "connection": slow["connection"], "correlation": slow["correlation_id"],
        **{f"{part}_ms": f"{slow[f'{part}_ns'] / 1e6:.3f}"
           for part in ("total", "local", "remote", "send")},
        "request_bytes": slow["request_bytes"], "response_bytes": slow["response_bytes"],
        "left_out": slow["left_out"]})


async def _timed(coroutine, context, clock_ns):
    """The coroutine's result, its steps counted in context.busy_ns (3)."""
    return await _steps(coroutine, context, clock_ns)


@types.coroutine
def _steps(coroutine, context, clock_ns):
    resume, value = coroutine.send, None
    while True:
        began_ns = clock_ns()
        try:
            waited = resume(value)
        except StopIteration as end:
            return end.value
        finally:
            context.busy_ns += clock_ns() - began_ns
        resume, value = coroutine.send, None
        try:
            yield waited
        except BaseException as error:
            # A cancellation too is the coroutine's own affair.
            resume, value = coroutine.throw, error
