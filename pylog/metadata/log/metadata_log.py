"""The controller's interface to the metadata log, independent of its storage.

Owns: nothing.
Invariants: records have no gaps and one order for all readers; an append is complete or absent, and
  durable when it returns; an append with an older epoch than the newest fails; an append whose
  writer has not read the newest record fails, so that no decision uses an old image.
Source: KIP-500, KIP-595, KIP-630 (snapshots).
"""

from abc import ABC, abstractmethod
from collections import namedtuple

from pylog._native.log.log import LogError
from pylog.metadata.image.record_versions import NEWEST_VERSION

NOT_CONTROLLER = 41  # Kafka's error code

MetadataBatch = namedtuple("MetadataBatch", ("last_offset", "epoch", "records"))
MetadataBatch.__doc__ = "Records of one append; `records` are decoded messages."


class Conflict(LogError):
    """The append lost to another record or a newer controller."""

    def __init__(self, text):
        super().__init__(0, NOT_CONTROLLER, str(text))


class NotController(LogError):
    """This node is not the active controller, or no longer."""

    def __init__(self):
        super().__init__(0, NOT_CONTROLLER, "this node is not the active controller")


class MetadataLog(ABC):
    """A sequence of records without gaps."""

    # The cluster's metadata.version selects record versions. The controller sets it before it
    # appends.
    metadata_version = NEWEST_VERSION
    # The maximum that a start or a follower reads in addition to the snapshot.
    records_between_snapshots = 200_000
    # False if committed records of the current epoch can be missing here.
    is_whole = True

    @property
    def snapshot_end(self) -> int:
        """Return the offset after the newest snapshot, 0 without one."""
        return 0

    def snapshot_is_due(self, offset: int) -> bool:
        """Return True if too many, or too old, records up to `offset` are in no snapshot."""
        return offset + 1 - self.snapshot_end >= self.records_between_snapshots

    @abstractmethod
    def append(self, records: list, epoch: int, expected_end: int) -> int:
        """Append records as the controller of `epoch`, if the log still ends at `expected_end`.

        Returns the offset of the last record. Raises Conflict, LogError's kinds.
        """

    @abstractmethod
    def read(self, offset: int):
        """Yield a MetadataBatch for each append, from the one with `offset` to the end.

        From offset 0 of a trimmed log, the first one is the snapshot.
        """

    @abstractmethod
    def elect(self, node_id: int) -> int:
        """Make this node the controller. Returns its epoch, higher than any before."""

    @abstractmethod
    def snapshot(self, records: list, offset: int, epoch: int) -> None:
        """Save `records` as the state after all records up to and including `offset`."""

    @abstractmethod
    def trim(self, offset: int) -> None:
        """Delete records below `offset`, which a snapshot covers."""
