"""The metadata log as the controller sees it: five calls, whatever keeps the records.

Owns: nothing.
Invariants: (1) records are gapless and in one order for everybody; (2) an append is whole or
  absent, and durable when it returns; (3) an append under an epoch that is not the newest fails;
  (4) an append whose writer has not seen the newest record fails, so that decisions never rest on
  an old image.
Source: KIP-500, KIP-595, KIP-630 (snapshots).
"""

from abc import ABC, abstractmethod
from collections import namedtuple

from pylog._native.log import LogError
from pylog.metadata.image.record_versions import NEWEST_VERSION

NOT_CONTROLLER = 41      # Kafka's error code.

MetadataBatch = namedtuple("MetadataBatch", ("last_offset", "epoch", "records"))
MetadataBatch.__doc__ = "Records that were appended together; `records` are decoded messages."


class Conflict(LogError):
    """An append came too late: another record or a newer controller came first."""

    def __init__(self, text):
        super().__init__(0, NOT_CONTROLLER, str(text))


class NotController(LogError):
    """This node does not decide, or no longer: another is the controller."""

    def __init__(self):
        super().__init__(0, NOT_CONTROLLER, "this node is not the active controller")


class MetadataLog(ABC):
    """A gapless sequence of records."""

    # Of the cluster: records are written for it. Its controller sets it before it appends.
    metadata_version = NEWEST_VERSION
    # What a start, or who follows, reads at most beside the snapshot.
    records_between_snapshots = 200_000
    # Whether its end is the log's: no record of this epoch is elsewhere and not here.
    is_whole = True

    @property
    def snapshot_end(self) -> int:
        """The offset after the newest snapshot, 0 without one."""
        return 0

    def snapshot_is_due(self, offset: int) -> bool:
        """Whether much, or something old, of what is up to `offset` is in no snapshot."""
        return offset + 1 - self.snapshot_end >= self.records_between_snapshots

    @abstractmethod
    def append(self, records: list, epoch: int, expected_end: int) -> int:
        """Appends records as the controller of `epoch`, if the log still ends at `expected_end`.

        Returns the offset of the last one. Raises Conflict, LogError's kinds.
        """

    @abstractmethod
    def read(self, offset: int):
        """Yields a MetadataBatch for each append from the one that holds `offset` to the end.

        From offset 0 of a trimmed log, the first one is the snapshot.
        """

    @abstractmethod
    def elect(self, node_id: int) -> int:
        """Makes this node the controller. Returns its epoch, higher than any before."""

    @abstractmethod
    def snapshot(self, records: list, offset: int, epoch: int) -> None:
        """Saves `records` as the state after all records up to and including `offset`."""

    @abstractmethod
    def trim(self, offset: int) -> None:
        """Drops records below `offset`, which a snapshot covers."""
