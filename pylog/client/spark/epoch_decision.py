"""Which batch a streaming sink that is exactly once has decided last, and what follows from it.

Owns: nothing.
Invariants: (1) a batch is written unless it is the one that was decided last, and only right after
  that one; (2) whatever else a checkpoint asks for is refused: it would be lost or doubled records.
Source: Structured Streaming (a batch that is run again has its number and its records); the offset
  of a Kafka consumer group with its metadata, as the place where a decision is kept.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import NamedTuple

from pylog.client.errors import ConfigError
from pylog.client.producer.transaction_manager import Prepared
from pylog.client.types import OffsetAndMetadata


class Decision(NamedTuple):
    """batch: -1 before the first. query: Spark's id of it, "" when it is not known. parts: the
    transactions that hold the batch, all of which are to be committed."""

    batch: int = -1
    query: str = ""
    parts: tuple[Prepared, ...] = ()

    def row(self) -> OffsetAndMetadata:
        """As an offset: the next batch, with the query and the packed parts as metadata."""
        parts = json.dumps(self.parts, separators=(",", ":")).encode()
        packed = base64.b85encode(zlib.compress(parts, 9)).decode()
        return OffsetAndMetadata(self.batch + 1, f"{self.query} {packed}")

    @classmethod
    def of(cls, row: OffsetAndMetadata | None) -> Decision:
        """row: None where nothing is committed; without metadata where somebody has set it."""
        if row is None:
            return cls()
        query, _, packed = row.metadata.partition(" ")
        if not packed:
            return cls(row.offset - 1)
        parts = json.loads(zlib.decompress(base64.b85decode(packed)))
        return cls(row.offset - 1, query, tuple(Prepared(*part) for part in parts))


class Task(NamedTuple):
    """One attempt of one task. attempt: Spark's task attempt id. Unlike the attempt number, it
    does not start at 0 again when Spark retries a stage."""

    query: str
    batch: int
    number: int
    attempt: int

    def transactional_id(self, sink: str, right: Prepared) -> str:
        """An id that no other attempt has, so no attempt can abort another one's transaction.

        Task attempt ids are unique within one driver, and `right` is unique for each planned
        batch, whichever driver planned it.
        """
        return f"{sink}-task-{self.number}-{right.producer_id}-{right.epoch}-{self.attempt}"


def is_decided(last: Decision, sink: str, query: str, batch: int) -> bool:
    """Whether a batch is the one that was decided last; else it is the next. Raises ConfigError."""
    if last.batch >= 0 and last.query not in ("", query):
        raise ConfigError(
            f"exactlyOnceId {sink!r} belongs to the query {last.query}, and this checkpoint to "
            f"{query}: one id for each checkpoint")
    if batch == last.batch:
        return True
    if batch == last.batch + 1:
        return False
    if last.batch < 0:
        raise ConfigError(
            f"the checkpoint is at batch {batch}, and exactlyOnceId {sink!r} knows of none: its "
            f"offset has expired (offsets.retention.minutes), or the query was not exactly once "
            f"before. Commit {batch} as the offset of group {sink!r} if batch {batch} has not been "
            f"written, {batch + 1} if it has")
    raise ConfigError(
        f"the checkpoint is at batch {batch}, and exactlyOnceId {sink!r} has decided batch "
        f"{last.batch}: this is not the checkpoint that it was used with")
