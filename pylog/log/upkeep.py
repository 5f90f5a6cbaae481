"""Periodic maintenance of logs: retention, rolls, flushes, checkpoints.

Owns: the due times, and the directories of deleted partitions until their files are deleted.
Invariants: checkpoint files contain all partitions, so they are written only after recovery; no
  maintenance runs during and after a clean stop.
Threads: one at a time, by `lock`; request_checkpoint() from any.
"""

import threading

from pylog.log import partition_logs
from pylog.log import recovery
from pylog.log.log_directories import remove_tree

CHECKPOINT_MS = 60_000
RETENTION, CHECKPOINTS, PRODUCERS = range(3)  # Positions of due times.


class Upkeep:
    """recovering: returns the number of partitions that are not recovered yet. left_over: paths of
    partitions that were deleted before this start.
    """

    def __init__(self, settings, disks, hints, topics, cleaner, checkpointer, recovering):
        self.lock = threading.Lock()
        self.closing = False
        self.left_over: list[str] = []
        self._settings = settings
        self._disks = disks
        self._hints = hints
        self._topics = topics
        self._cleaner = cleaner
        self._checkpointer = checkpointer
        self._recovering = recovering
        self._due: list[int] = []  # In ms, by position; empty until begin().

    def begin(self, now_ms: int) -> None:
        """Allow maintenance from now on."""
        self._due = [now_ms + self._settings["log.initial.task.delay.ms"], now_ms + CHECKPOINT_MS,
                     now_ms + self._settings["producer.id.expiration.check.interval.ms"]]

    def run(self, now_ms: int) -> None:
        """Run due retention, rolls, flushes and checkpoints. Blocks."""
        with self.lock:
            if self.closing or not self._due:
                return
            while self.left_over and not self.closing:
                remove_tree(self.left_over.pop())
            self._cleaner.tend()
            self._disks.check_free_space()
            recovery.report(self._disks.natives, self._disks.paths)
            self._hints.tend()
            self._tend_logs(now_ms)
            if self._is_due(CHECKPOINTS, now_ms, CHECKPOINT_MS) and not self._recovering():
                self._due[CHECKPOINTS] = now_ms + CHECKPOINT_MS
                self._checkpointer.write(self._checkpointer.store)

    def write_checkpoints(self) -> None:
        """Write a checkpoint now, unless partitions are still being recovered."""
        with self.lock:
            if not self._recovering():
                self._checkpointer.write(self._checkpointer.store)

    def request_checkpoint(self) -> None:
        """Let the next run() write a checkpoint."""
        if self._due:
            self._due[CHECKPOINTS] = 0

    def _tend_logs(self, now_ms: int) -> None:
        """Run retention, rolls and flushes, and remove idle producers."""
        interval_ms = self._settings["log.retention.check.interval.ms"]
        every = self._is_due(RETENTION, now_ms, max(
            interval_ms, self._settings["log.initial.task.delay.ms"]))
        if every:
            self._due[RETENTION] = now_ms + interval_ms
        partition_logs.tend(self._every() if every else [
            *self._topics.timed, *self._short_of_space()], now_ms, lambda: self.closing)
        interval_ms = self._settings["producer.id.expiration.check.interval.ms"]
        if self._is_due(PRODUCERS, now_ms, interval_ms):
            self._due[PRODUCERS] = now_ms + interval_ms
            partition_logs.expire_producers(self._every(), now_ms, lambda: self.closing)

    def _every(self):
        return (partition_log for *_, partition_log in self._topics.all())

    def _short_of_space(self) -> list:
        """Return logs on nearly full disks, where retention runs at once."""
        if not any(self._disks.natives[number].short_of_space
                   for number, _ in self._disks.usable()):
            return []
        return [partition_log for partition_log in self._every()
                if partition_log.log_dir.short_of_space
                and partition_log not in self._topics.timed]

    def _is_due(self, which: int, now_ms: int, interval_ms: int) -> bool:
        # If the clock was set back, a due time beyond the interval counts as due now.
        return not self._due[which] - interval_ms <= now_ms < self._due[which]
