"""Dead letters: write records that a share group gave up to the group's dead-letter topic.

Owns: nothing.
Invariants: a successful write is as durable as acks=all promises; letters go only to topics that
  allow it; at most READ_BYTES_MAX plus one batch of the source is in memory at a time; a letter
  that is too large for its topic is written without the record.
Source: KIP-1191 (headers, settings, partition of the letter). Retries and copied headers are
  extensions.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pylog._native.log.log import Log, LogError
from pylog._native.records import batch
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
RECORD_BYTES = 40  # Maximum overhead of a record,
HEADER_BYTES = 10  # and of a header.
Header = tuple[str, bytes | None]


class DeadLetterError(Exception):
    """Raised if letters could not be written; the text is the reason."""


class GivenUp(NamedTuple):
    """A range of offsets with its delivery count and the reason for giving up."""

    first: int
    last: int
    deliveries: int
    why: str


class Letter(NamedTuple):
    """A record of the dead-letter topic. The copy of the original may be missing."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]  # Kafka's, starting with PREFIX.
    copied: tuple[Header, ...] = ()

    @property
    def bytes(self) -> int:
        """Return the maximum size in a batch."""
        return RECORD_BYTES + len(self.key or b"") + len(self.value or b"") + sum(
            HEADER_BYTES + len(name.encode()) + len(value or b"")
            for name, value in (*self.headers, *self.copied))

    def without_copy(self) -> "Letter":
        return self._replace(key=None, value=None, copied=())


class DeadLetters:
    """Writes dead letters.

    records, requests, failures: per group, the numbers of letters written, of successful appends
    and of failed appends since the start. node: see internal_topic.Node.
    """

    def __init__(self, node: Node, brokers: Brokers, settings: GroupSettings):
        self.records: dict[str, int] = {}
        self.requests: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self._node = node
        self._brokers = brokers
        self._settings = settings

    async def write(self, key: ShareKey, source: Log, given_up: GivenUp) -> None:
        """Write the letters of these records. Writes nothing if the group has no dead-letter topic.

        On return the letters are as durable as acks=all promises. Raises DeadLetterError.
        """
        name = self._settings.dead_letter_topic(key.group_id)
        if not name:
            return
        copies = self._settings.copies_records(key.group_id)
        offset = given_up.first
        while offset <= given_up.last:
            # Bounds the memory.
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
        """Return the topic if it allows dead letters, created if needed. Raises DeadLetterError."""
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
                raise DeadLetterError(f"{name} was just created; retrying")
        own = self._node.image.topic_config(name)
        if not self._node.settings.topic_config(own)[ENABLED]:
            raise DeadLetterError(f"{name} does not have {ENABLED}=true")
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
    """Return the letter of a record from `topic` and the partition of `key`."""
    headers = tuple((PREFIX + name, text.encode()) for name, text in (
        ("topic", topic), ("partition", str(key.partition)), ("offset", str(record.offset)),
        ("group", key.group_id), ("delivery.count", str(given_up.deliveries)),
        ("message", given_up.why)))
    if not copies:
        return Letter(None, None, headers)
    # Dead-letter headers of the original describe an earlier failure.
    return Letter(record.key, record.value, headers, tuple(
        (name, value) for name, value in record.headers if not name.startswith(PREFIX)))


def batches_of(letters: list[Letter], bytes_max: int) -> Iterator[list[Letter]]:
    """Split the letters into batches of at most bytes_max bytes.

    A letter that is too large loses its copy of the record.
    """
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
    """Return (records, last offset covered) from `first` on, up to `last` at most. Blocks.

    Offsets that are no longer in the log give records without content.
    """
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
        # Further batches may follow the last one that was read.
        return found, min(upto, last) if data else last
    return found, last
