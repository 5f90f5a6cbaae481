"""Partitions that this node has but cannot serve.

Owns: the list of offline partitions, and of those to open later.
Invariants: take_failed() returns each partition once; a partition with records but without files
  stays offline, so that it does not become an empty leader.
"""

import logging
from typing import NamedTuple

from pylog.log.partition_logs import Checkpoint, Role

log = logging.getLogger("pylog.log")


class Postponed(NamedTuple):
    """How to open a partition later, after a shortage."""

    directory: int
    role: Role
    checkpoint: Checkpoint
    trusted: bool


class OfflineLogs:
    """postponed: (name, index) -> Postponed."""

    def __init__(self, disks, topics):
        self.postponed: dict[tuple[str, int], Postponed] = {}
        self._disks = disks
        self._topics = topics
        self._offline: set = set()  # (name, index)
        self._without_files: set = set()  # Those of them whose directory works.
        self._lost: list = []  # Those that take_failed() has not returned yet.
        self._lost_logs: dict = {}  # Directory number -> its lost_logs at the last take_failed().

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._offline

    def lacks_files(self, name: str, index: int) -> bool:
        """Return True if the partition is offline although its directory works."""
        return (name, index) in self._without_files

    def has_topic(self, name: str) -> bool:
        """Return True if a partition of the topic is offline."""
        return any(topic == name for topic, _ in list(self._offline))

    def all(self) -> list:
        """Return (name, index) of each offline partition."""
        return list(self._offline)

    def lose(self, name: str, index: int, has_directory: bool = False) -> None:
        """Take a partition offline. has_directory: its directory works."""
        if has_directory:
            self._without_files.add((name, index))
        self._offline.add((name, index))
        self._lost.append((name, index))

    def lose_files(self, name: str, index: int, reason: str) -> None:
        """Take a partition offline that has records but no files."""
        log.error("a partition is offline; restore its files and restart, or delete the topic, or "
                  "set unclean.leader.election.enable on the topic and restart to continue "
                  "without these records", extra={
                      "topic": name, "partition": index, "reason": reason})
        self.lose(name, index, has_directory=True)

    def forget(self, name: str, index: int) -> None:
        """Remove a partition that was deleted."""
        self._offline.discard((name, index))
        self._without_files.discard((name, index))
        self.postponed.pop((name, index), None)

    def take_failed(self) -> list:
        """Return (name, index) of partitions that went offline since the last call: their
        directories failed, or another program removed their files.
        """
        failed, lost = set(self._disks.newly_failed()), self._directories_with_losses()
        for name, _, index, partition_log in self._topics.all() if failed or lost else ():
            number = self._topics.directory_of(partition_log)
            if number in failed:
                self._topics.timed.discard(partition_log)
                self.lose(name, index)
            elif number in lost and self._disks.online(number) and partition_log.offline \
                    and (name, index) not in self:
                self._topics.timed.discard(partition_log)
                self.lose_files(name, index, "another program removed its files")
        # A recovery thread may append at the same time.
        found = self._lost[:]
        del self._lost[:len(found)]
        return found

    def _directories_with_losses(self) -> set:
        """Return the numbers of directories whose logs lost files since the last call."""
        counts = {number: self._disks.natives[number].lost_logs
                  for number, _ in self._disks.usable()}
        before, self._lost_logs = self._lost_logs, counts
        return {number for number, count in counts.items() if count != before.get(number, 0)}
