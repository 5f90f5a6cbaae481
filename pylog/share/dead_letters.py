"""Dead letters: what a share group gave up, written to the topic that the group names.

Owns: nothing.
Invariants: (1) a letter that is told as written is as durable as an acks=all answer promises;
  (2) letters go only to a topic that allows it; (3) no more than READ_BYTES_MAX and one batch of
  the source is held at a time; (4) a letter that is too long for its topic goes without its record.
Source: KIP-1191 (headers, settings, the letter's partition); that one which cannot be written is
  tried again, and the copied headers, are ours.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pylog._native import batch
from pylog._native.log import Log, LogError
from pylog.coordinator.runtime.broker_client import Brokers
from pylog.coordinator.runtime.internal_topic import CREATE_TIMEOUT_MS, Node
from pylog.coordinator.share.partition_state import ShareKey
from pylog.metadata.image.image import Topic
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.share.group_config import GroupSettings

PREFIX = "__dlq.errors."
REJECTED = "Offset rejected by client."
EXCEEDED = "Offset delivery count exceeded the threshold."
ENABLED = "errors.deadletterqueue.group.enable"
READ_BYTES_MAX = 1 << 20
APPEND_SECONDS = 10.0
RECORD_BYTES = 40     # Of a record besides its key, value and headers, at most,
HEADER_BYTES = 10     # and of a header besides its name and value.
Header = tuple[str, bytes | None]


class DeadLetterError(Exception):
    """Letters could not be written; the text says why."""


class GivenUp(NamedTuple):
    """Offsets first to last, delivered so often, and why they are not delivered again."""

    first: int
    last: int
    deliveries: int
    why: str


class Letter(NamedTuple):
    """A record as it is written; its copy may be left out."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]      # Those of Kafka, PREFIX first.
    copied: tuple[Header, ...] = ()

    @property
    def bytes(self) -> int:
        """At most so many, in a batch."""
        return RECORD_BYTES + len(self.key or b"") + len(self.value or b"") + sum(
            HEADER_BYTES + len(name.encode()) + len(value or b"")
            for name, value in (*self.headers, *self.copied))

    def without_copy(self) -> "Letter":
        return self._replace(key=None, value=None, copied=())


class DeadLetters:
    """node: see internal_topic.Node. records, requests, failures: how many were written since the
    start, in how many appends, and how many appends failed, by group."""

    def __init__(self, node: Node, brokers: Brokers, settings: GroupSettings):
        self.records: dict[str, int] = {}
        self.requests: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self._node = node
        self._brokers = brokers
        self._settings = settings

    async def write(self, key: ShareKey, source: Log, given_up: GivenUp) -> None:
        """Writes the letters of these records; none if the group has no topic for them any more.
        Raises DeadLetterError. Keeps (1)."""
        name = self._settings.dead_letter_topic(key.group_id)
        if not name:
            return
        copies = self._settings.copies_records(key.group_id)
        offset = given_up.first
        while offset <= given_up.last:
            # Keeps (3).
            records, upto = await asyncio.get_running_loop().run_in_executor(
                None, _read, source, offset, given_up.last)
            letters = [letter_of(key, source.topic, given_up, record, copies)
                       for record in records]
            if letters:
                await self._send(key, name, letters)
            offset = upto + 1

    async def _send(self, key: ShareKey, name: str, letters: list[Letter]) -> None:
        topic = await self._topic(name)
        index = key.partition % len(topic.partitions)
        configs = self._node.settings.topic_config(self._node.image.topic_config(name))
        for part in batches_of(letters, configs["max.message.bytes"]):
            now_ms = self._node.now_ms()
            data = batch.build([(letter.key, letter.value, now_ms,
                                 (*letter.headers, *letter.copied)) for letter in part])
            reason = ""
            try:
                async with asyncio.timeout(APPEND_SECONDS):
                    error = await self._brokers.append(topic, index, data)
            except TimeoutError:
                error = ErrorCode.REQUEST_TIMED_OUT
            except PeerError as failure:
                error, reason = ErrorCode.NETWORK_EXCEPTION, str(failure)
            kind = self.requests if error == ErrorCode.NONE else self.failures
            kind[key.group_id] = kind.get(key.group_id, 0) + 1
            if error != ErrorCode.NONE:
                raise DeadLetterError(f"{name}-{index}: {error.name}: {reason or error.message}")
            self.records[key.group_id] = self.records.get(key.group_id, 0) + len(part)

    async def _topic(self, name: str) -> Topic:
        """Keeps (2)."""
        prefix = self._node.settings["errors.deadletterqueue.topic.name.prefix"]
        if name.startswith("__"):
            raise DeadLetterError(f"{name} is an internal topic")
        if not name.startswith(prefix):
            raise DeadLetterError(f"{name} does not begin with {prefix}")
        topic = self._node.image.topics.get(name)
        if topic is None:
            await self._create(name)
            topic = self._node.image.topics.get(name)
            if topic is None:
                raise DeadLetterError(f"{name} was only just created")
        own = self._node.image.topic_config(name)
        if not self._node.settings.topic_config(own)[ENABLED]:
            raise DeadLetterError(f"{name} has not {ENABLED}=true")
        return topic

    async def _create(self, name: str) -> None:
        if not self._node.settings["errors.deadletterqueue.auto.create.topics.enable"]:
            raise DeadLetterError(f"{name} does not exist, and "
                                  "errors.deadletterqueue.auto.create.topics.enable is false")
        new = messages.CreateTopicsRequest
        result, = await self._node.controller.create_topics(new(
            timeout_ms=CREATE_TIMEOUT_MS, topics=[new.CreatableTopic(
                name=name, num_partitions=-1, replication_factor=-1, configs=[
                    new.CreatableTopicConfig(name=ENABLED, value="true"),
                    new.CreatableTopicConfig(name="message.timestamp.type", value="CreateTime")])]))
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise DeadLetterError(f"{name} could not be created: {result.message}")


# ---- letters ------------------------------------------------------------------------------------


class _Record(NamedTuple):
    offset: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] = ()


def letter_of(key: ShareKey, topic: str, given_up: GivenUp, record: _Record,
              copies: bool) -> Letter:
    """The letter of a record of the topic and `key`'s partition."""
    headers = tuple((PREFIX + name, text.encode()) for name, text in (
        ("topic", topic), ("partition", str(key.partition)), ("offset", str(record.offset)),
        ("group", key.group_id), ("delivery.count", str(given_up.deliveries)),
        ("message", given_up.why)))
    if not copies:
        return Letter(None, None, headers)
    # What a record brought along from a dead-letter topic is not true of this one.
    return Letter(record.key, record.value, headers, tuple(
        (name, value) for name, value in record.headers if not name.startswith(PREFIX)))


def batches_of(letters: list[Letter], bytes_max: int) -> Iterator[list[Letter]]:
    """The letters in parts that are batches of at most bytes_max bytes. Keeps (4)."""
    part: list[Letter] = []
    size = batch.HEADER_BYTES
    for letter in letters:
        if batch.HEADER_BYTES + letter.bytes > bytes_max:
            letter = letter.without_copy()
        if part and size + letter.bytes > bytes_max:
            yield part
            part, size = [], batch.HEADER_BYTES
        part.append(letter)
        size += letter.bytes
    if part:
        yield part


def _read(source: Log, first: int, last: int) -> tuple[list[_Record], int]:
    """(records, the last offset that they stand for) from `first` on, up to `last` at most. Of
    what the log does not have any more only the offsets are known. Blocks."""
    start = source.start_offset
    if first < start:
        upto = min(last, start - 1)
        return [_Record(offset) for offset in range(first, upto + 1)], upto
    try:
        data = source.read(first, READ_BYTES_MAX)
    except LogError as error:
        raise DeadLetterError(f"the records could not be read: {error}") from error
    found = []
    upto = last
    for position, header in batch.walk(data):
        if header.base_offset > last:
            break
        upto = header.base_offset + header.last_offset_delta
        if not header.attributes & batch.CONTROL:
            found += [_Record(offset, key, value, headers) for offset, _, key, value, headers
                      in batch.records(memoryview(data)[position:]) if first <= offset <= last]
    else:
        # Behind the last batch that was read there may be others.
        return found, min(upto, last) if data else last
    return found, last
