"""A relay between clients and the broker that drops, delays and rejects requests.

Owns: a thread with an event loop, the listening socket, the relayed connections.
Invariants: frames keep their order in both directions; frames that match no rule pass unchanged;
  delays use real time, whatever the broker's clock shows.
Source: Kafka's framing: size, then api key, version and correlation id; in responses size and
  correlation id.
"""

import asyncio
import errno
import itertools
import socket
import struct
import threading

from pylog.protocol import api
from pylog.testing import refusals

DELAY, LOSE_REQUESTS, LOSE_ANSWERS, REFUSE = "delay", "lose requests", "lose answers", "refuse"
ANSWER_ERROR = "answer error"
REQUEST = struct.Struct(">ihhi")
ANSWER = struct.Struct(">ii")
ANSWERS_HELD_MAX = 64
FRAME_BYTES_MAX = 1 << 30
LISTEN_BACKLOG = 128
BIND_ATTEMPTS, BIND_PAUSE_S = 2000, 0.005


class Rule:
    """A relay rule.

    kind: one of the constants above. api_key: None for all APIs. count: how often it applies, None
    without limit. ms: for DELAY. error_code: for ANSWER_ERROR.
    """

    __slots__ = ("api_key", "count", "error_code", "hits", "kind", "ms")

    def __init__(self, kind: str, api_key: int | None, ms: int, count: int | None,
                 error_code: int = 0):
        self.kind, self.api_key, self.ms, self.count = kind, api_key, ms, count
        self.error_code = error_code
        self.hits = 0

    def matches(self, kind: str, api_key: int | None) -> bool:
        """Return True if the rule applies to this frame."""
        return (kind == self.kind and self.api_key in (None, api_key)
                and (self.count is None or self.hits < self.count))

    def applies(self, kind: str, api_key: int | None) -> bool:
        """Return True if the rule applies to this frame, and count it."""
        found = self.matches(kind, api_key)
        self.hits += found
        return found


class Relay:
    """Listens on `port` and connects to the broker on `target`, both on 127.0.0.1.

    Raises OSError.
    """

    def __init__(self, port: int, target: int):
        self._target = target
        self._rules: dict[int, Rule] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task] = set()
        self._socket = _listening(port)
        self._loop = asyncio.SelectorEventLoop()
        self._ended = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pylog-relay", daemon=True)
        self._thread.start()
        self._ready.wait()

    # ---- rules (called from any thread) ---------------------------------------------------------

    def add(self, rule: Rule) -> int:
        """Activate a rule and return its number."""
        number = next(self._numbers)
        self._rules[number] = rule
        return number

    def remove(self, number: int) -> None:
        self._rules.pop(number, None)

    def hits(self, number: int) -> int:
        """Return how many frames or connections a rule has affected."""
        rule = self._rules.get(number)
        return 0 if rule is None else rule.hits

    def rule_for(self, kind: str, api_key: int | None = None) -> Rule | None:
        """Return the first rule that applies, and count it."""
        return next((rule for rule in list(self._rules.values()) if rule.applies(kind, api_key)),
                    None)

    def error_code(self, api_key: int) -> int | None:
        """Return the error code of the next rule for such responses, without counting it."""
        return next((rule.error_code for rule in list(self._rules.values())
                     if rule.matches(ANSWER_ERROR, api_key)), None)

    def close(self) -> None:
        """Close all connections and free the port."""
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join()

    # ---- the thread -----------------------------------------------------------------------------

    def _end(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        server = await asyncio.start_server(self._begin, sock=self._socket)
        self._ready.set()
        await self._ended.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, reader, writer) -> None:
        task = asyncio.get_running_loop().create_task(self._accepted(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accepted(self, reader, writer) -> None:
        if self.rule_for(REFUSE) is not None:
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        await _Connection(self, (reader, writer), there).run()


def _listening(port: int) -> socket.socket:
    """Return a listening socket. Waits until the broker's threads have closed the port."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for left in reversed(range(BIND_ATTEMPTS)):
        try:
            made.bind(("127.0.0.1", port))
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not left:
                made.close()
                raise
            threading.Event().wait(BIND_PAUSE_S)
    made.listen(LISTEN_BACKLOG)
    return made


class _Connection:
    """A client connection and the relay's connection to the broker, each as (reader, writer)."""

    def __init__(self, relay: Relay, client: tuple, broker: tuple):
        self._relay = relay
        self._client, self._broker = client, broker
        self._asked: dict[int, tuple[int, int]] = {}     # correlation id -> api key, version
        self._refused: dict[int, bytes] = {}  # correlation id -> the rejection to send
        self._held: asyncio.Queue = asyncio.Queue(ANSWERS_HELD_MAX)

    def abort(self) -> None:
        self._client[1].transport.abort()
        self._broker[1].transport.abort()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        readers = [loop.create_task(part) for part in (self._requests(), self._answers())]
        try:
            await self._send()
        except OSError:
            return  # Connections may end at any time.
        finally:
            for reader in readers:
                reader.cancel()
            self.abort()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _requests(self) -> None:
        reader, writer = self._client[0], self._broker[1]
        try:
            while True:
                head = await reader.readexactly(REQUEST.size)
                size, api_key, version, correlation_id = REQUEST.unpack(head)
                if not REQUEST.size - 4 <= size <= FRAME_BYTES_MAX:
                    self.abort()
                    return
                body = await reader.readexactly(size + 4 - REQUEST.size)
                if self._relay.rule_for(LOSE_REQUESTS, api_key) is not None:
                    self.abort()
                    return
                frame = head + body
                rule = None if api_key == api.FETCH else self._relay.rule_for(
                    ANSWER_ERROR, api_key)
                if rule is not None:
                    response = refusals.response_to(frame, rule.error_code)
                    if response is None:
                        self.abort()  # As a broker does for acks=0.
                        return
                    self._refused[correlation_id] = response
                    frame = refusals.placeholder(correlation_id)
                self._asked[correlation_id] = api_key, version
                writer.write(frame)
                await writer.drain()
        except asyncio.IncompleteReadError:
            if not writer.is_closing():
                writer.write_eof()
        except OSError:
            self.abort()

    async def _answers(self) -> None:
        reader = self._broker[0]
        try:
            while True:
                head = await reader.readexactly(ANSWER.size)
                size, correlation_id = ANSWER.unpack(head)
                frame = head + await reader.readexactly(size + 4 - ANSWER.size)
                frame = self._refused.pop(correlation_id, frame)
                api_key, version = self._asked.pop(correlation_id, (None, 0))
                if api_key == api.FETCH:
                    frame = self._fetch_response(version, frame)
                if self._relay.rule_for(LOSE_ANSWERS, api_key) is not None:
                    break
                rule = self._relay.rule_for(DELAY, api_key)
                # Responses that wait at the same time are delayed in parallel.
                due_s = asyncio.get_running_loop().time() + (rule.ms / 1000 if rule else 0)
                await self._held.put((due_s, frame))
        except (asyncio.IncompleteReadError, OSError):
            pass  # The broker closed the connection: send its pending responses first.
        else:
            self.abort()
        await self._held.put((0, b""))

    def _fetch_response(self, version: int, frame: bytes) -> bytes:
        """Return the broker's response, or a rejection if a rule applies."""
        error_code = self._relay.error_code(api.FETCH)
        refused = None if error_code is None else refusals.refused_fetch(
            version, frame, error_code)
        if refused is None:
            return frame
        self._relay.rule_for(ANSWER_ERROR, api.FETCH)
        return refused

    async def _send(self) -> None:
        writer = self._client[1]
        loop = asyncio.get_running_loop()
        while True:
            due_s, frame = await self._held.get()
            if due_s > loop.time():
                await asyncio.sleep(due_s - loop.time())
            if not frame:
                return
            writer.write(frame)
            await writer.drain()
