"""How a start opens each partition.

Owns: nothing.
Invariants: a checkpoint is trusted only if its directory was closed cleanly.
"""

from typing import NamedTuple

from pylog.log.partition_logs import Checkpoint, Role


class PartitionPlan(NamedTuple):
    """directory: its number; None if the partition has no files. checkpoint: the stored one, None
    if there is none.
    """

    name: str
    topic_id: bytes
    partition: int
    role: Role
    config: dict
    directory: int | None
    checkpoint: Checkpoint | None

    def is_clean(self, clean: frozenset, directory_count: int) -> bool:
        """Return True if the directory was closed cleanly. clean: numbers of such directories. A
        partition without files may be in any of the directories.
        """
        if self.directory is None:
            return len(clean) == directory_count
        return self.directory in clean

    def is_trusted(self, clean: frozenset, directory_count: int) -> bool:
        """Return True if the checkpoint describes the files, so that none of them is read."""
        return self.is_clean(clean, directory_count) and self.checkpoint is not None \
            and self.checkpoint.log_end_offset >= 0 \
            and (self.directory is not None or not self.checkpoint.segments)
