"""Recovers partitions after an unclean shutdown, while recovered partitions already serve.

Owns: the recovery threads, the number of remaining partitions.
Invariants: internal topics are recovered first, before the broker serves any client; at most
  num.recovery.threads.per.data.dir logs of a log directory are recovered at once; after stop() no
  thread accesses a log.
Source: none; Kafka serves no client before all logs are recovered.
"""

import logging
import os
import threading

from pylog import supervisor
from pylog._native.log import damage_report
from pylog.log.checkpoint_files import DAMAGED

# How long startup waits for all partitions. Most recoveries take less, and then clients see no
# errors.
WAIT_S = 1.0
REPORT_S = 5.0
EPOCHS = "leader-epoch-checkpoint"
# Kinds of work in supervisor.failures().
WORK = "recovery"
EPOCHS_WORK = "leader epoch checkpoints"

log = logging.getLogger("pylog.log.recovery")


class Recovery:
    """entries: [(topic name, directory number, argument of open_one)]. open_one: opens a partition;
    if it raises an exception, it has taken the partition offline.
    """

    def __init__(self, entries, directories, threads_per_directory: int, open_partition):
        self._waiting: dict[int, list] = {}  # directory number -> entries, the next one last
        self._left: dict[str, int] = {}  # topic -> number of partitions not recovered
        self._done: list[str] = []  # topics of recovered partitions
        self._changed = threading.Condition()
        self._directories = directories
        self._open_partition = open_partition
        self._threads = []
        self._stopped = False
        self.total = len(entries)
        self._failure: Exception | None = None
        for entry in sorted(entries, key=lambda entry: not entry[0].startswith("__"),
                            reverse=True):
            self._waiting.setdefault(entry[1], []).append(entry)
            self._left[entry[0]] = self._left.get(entry[0], 0) + 1
        for number, waiting in self._waiting.items():
            for _ in range(min(threads_per_directory, len(waiting))):
                self._threads.append(supervisor.thread_once("recovery", self._run, number))

    @property
    def left(self) -> int:
        """Return the number of partitions that are not recovered."""
        return sum(self._left.values())

    def begin(self) -> None:
        """Start the threads. Wait up to WAIT_S for all topics, and without limit for internal ones.

        Raises the exception of open_one.
        """
        for thread in self._threads:
            thread.start()
        supervisor.thread_once("recovery-report", self._report).start()
        with self._changed:
            self._changed.wait_for(lambda: not self._left, WAIT_S)
            # Internal topics are recovered before the broker serves any client.
            self._changed.wait_for(lambda: self._failure is not None or not any(
                name.startswith("__") for name in self._left))
        if self._failure is not None:
            raise self._failure

    def wait(self, topic: str) -> None:
        """Wait until all partitions of a topic are recovered."""
        with self._changed:
            self._changed.wait_for(lambda: topic not in self._left)

    def take_ready(self) -> set:
        """Return the topics with partitions that were recovered since the last call."""
        with self._changed:
            ready, self._done = set(self._done), []
        return ready

    def stop(self) -> bool:
        """Cancel recovery and wait for the threads. Return True if all partitions were recovered.
        """
        with self._changed:
            self._stopped = True
            ready = not self._left
        for directory in self._directories:
            damage_report.stop_recovery(directory)
        for thread in self._threads:
            thread.join()
        with self._changed:
            self._left.clear()
            self._changed.notify_all()
        return ready

    def _run(self, number: int) -> None:
        waiting = self._waiting[number]
        while True:
            with self._changed:
                if self._stopped or not waiting:
                    return
                topic, _, entry = waiting.pop()
            try:
                self._open_partition(entry)
            except Exception as error:
                # begin() raises it. After begin() it is a bug, and the other partitions continue.
                self._failure = error
                supervisor.report(WORK, "a recovery failed", topic=topic)
            with self._changed:
                self._left[topic] -= 1
                assert self._left[topic] >= 0, (topic, self._left[topic])
                if not self._left[topic]:
                    del self._left[topic]
                self._done.append(topic)
                self._changed.notify_all()

    def _report(self) -> None:
        """Log the progress every REPORT_S."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: not self._left, REPORT_S):
                    return
            log.info("recovering partitions", extra={
                "ready": self.total - self.left, "of": self.total,
                "checked_mb": self._megabytes("recovered_bytes"),
                "trusted_mb": self._megabytes("trusted_bytes")})

    def _megabytes(self, counter: str) -> int:
        return sum(damage_report.figures(directory)[counter]
                   for directory in self._directories) >> 20


def report(directories, paths) -> None:
    """Log each damage found since the last call."""
    for directory, path in zip(directories, paths, strict=True):
        for damage in damage_report.take(directory) if directory is not None else ():
            if damage.kind == "epochs":
                _report_epochs(os.path.join(path, damage.partition, EPOCHS))
                continue
            what = {"cut": "the end of a log was truncated: it held no complete batch",
                    "dropped": "a segment was deleted because the segment before it was truncated",
                    "kept": "a log is damaged; readers skip the damaged range"}[damage.kind]
            topic, _, partition = damage.partition.rpartition("-")
            # A kill leaves a torn tail. Damage of flushed data is more serious.
            write = log.warning if damage.kind == "cut" else log.error
            write(what, extra={
                "directory": path, "topic": topic, "partition": partition,
                "segment": f"{damage.segment:020d}.log", "offset": damage.offset,
                "position": damage.position, "bytes": damage.bytes, "reason": damage.reason})


def _report_epochs(path: str) -> None:
    supervisor.count(EPOCHS_WORK)
    log.error("A leader epoch checkpoint is damaged and was renamed. The broker has read the "
              "epochs from the record batches.", extra={
                  "work": EPOCHS_WORK, "path": path, "renamed_to": path + DAMAGED})
