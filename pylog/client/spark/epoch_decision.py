"""Decide whether a batch of an exactly-once streaming sink must be written.

Owns: nothing.
Invariants: a batch is written only if it directly follows the last decided one; the last decided
  batch is not written again; any other batch is rejected, because records would be lost or
  duplicated.
Source: Structured Streaming (a batch that runs again has the same number and records); the offset
  and metadata of a Kafka consumer group store the decision.
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
    """The last decided batch.

    batch: -1 before the first. query: Spark's query id, "" if unknown. parts: the transactions of
    the batch, all of which must be committed.
    """

    batch: int = -1
    query: str = ""
    parts: tuple[Prepared, ...] = ()

    def row(self) -> OffsetAndMetadata:
        """Return the decision as an offset: the next batch, with query and packed parts as
        metadata.
        """
        parts = json.dumps(self.parts, separators=(",", ":")).encode()
        packed = base64.b85encode(zlib.compress(parts, 9)).decode()
        return OffsetAndMetadata(self.batch + 1, f"{self.query} {packed}")

    @classmethod
    def of(cls, row: OffsetAndMetadata | None) -> Decision:
        """Parse a decision. row: None if nothing is committed; without metadata if an operator set
        it.
        """
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
        """Return an id that no other attempt has, so no attempt can abort another one's
        transaction.

        Task attempt ids are unique within one driver, and `right` is unique for each planned batch,
        regardless of the driver.
        """
        return f"{sink}-task-{self.number}-{right.producer_id}-{right.epoch}-{self.attempt}"


def is_decided(last: Decision, sink: str, query: str, batch: int) -> bool:
    """Return True if the batch is the last decided one, False if it is the next. Raises
    ConfigError.
    """
    if last.batch >= 0 and last.query not in ("", query):
        raise ConfigError(
            f"exactlyOnceId {sink!r} belongs to the query {last.query}, but this checkpoint to "
            f"{query}: use one id for each checkpoint")
    if batch == last.batch:
        return True
    if batch == last.batch + 1:
        return False
    if last.batch < 0:
        raise ConfigError(
            f"the checkpoint is at batch {batch}, but exactlyOnceId {sink!r} has no recorded "
            f"batch: its "
            f"offset has expired (offsets.retention.minutes), or the query was not exactly once "
            f"before. Commit {batch} as the offset of group {sink!r} if batch {batch} has not been "
            f"written, {batch + 1} if it has")
    raise ConfigError(
        f"the checkpoint is at batch {batch}, but exactlyOnceId {sink!r} has already decided "
        f"batch {last.batch}: it was used with another checkpoint")
