"""Partitions that are opened one by one after an unclean stop, while those that are ready serve.

Owns: the threads that recover, the count of what is left.
Invariants: (1) internal topics come first, and nobody is served before they are ready; (2) of each
  log directory no more than num.recovery.threads.per.data.dir logs are read at once; (3) after
  stop() no thread touches a log.
Source: none; Kafka serves nobody before all its logs are recovered.
"""

import logging
import threading

from pylog import supervisor
from pylog._native import damages

# How long a start waits for all of them: most are done by then, and no client sees an error.
WAIT_S = 1.0
REPORT_S = 5.0

log = logging.getLogger("pylog.log.recovery")


class Recovery:
    """entries: [(name of the topic, directory number, what open_one takes)]. seconds: a clock that
    never goes back."""

    def __init__(self, entries, directories, threads_per_directory: int, open_one):
        self._waiting: dict[int, list] = {}     # directory number -> entries, the next one last
        self._left: dict[str, int] = {}         # topic -> how many of its partitions are not ready
        self._done: list[str] = []              # topics of which a partition became ready
        self._changed = threading.Condition()
        self._directories = directories
        self._open_one = open_one
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
        """Partitions that are not ready."""
        return sum(self._left.values())

    def begin(self) -> None:
        """Starts the threads and waits a moment (WAIT_S); for internal topics until they are ready.

        Raises what open_one raised.
        """
        for thread in self._threads:
            thread.start()
        supervisor.thread_once("recovery-report", self._report).start()
        with self._changed:
            self._changed.wait_for(lambda: not self._left, WAIT_S)
            # Keeps (1).
            self._changed.wait_for(lambda: self._failure is not None or not any(
                name.startswith("__") for name in self._left))
        if self._failure is not None:
            raise self._failure

    def wait(self, topic: str) -> None:
        """Until all partitions of a topic are ready."""
        with self._changed:
            self._changed.wait_for(lambda: topic not in self._left)

    def take_ready(self) -> set:
        """Topics of which a partition became ready since the last call."""
        with self._changed:
            ready, self._done = set(self._done), []
        return ready

    def stop(self) -> bool:
        """Gives up what is under way. Returns whether all were ready. Keeps (3)."""
        with self._changed:
            self._stopped = True
            ready = not self._left
        for directory in self._directories:
            damages.stop_recovery(directory)
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
                self._open_one(entry)
            except Exception as error:
                # begin() raises it; later it is a bug, and the others go on.
                self._failure = error
                log.exception("a recovery failed", extra={"topic": topic})
            with self._changed:
                self._left[topic] -= 1
                assert self._left[topic] >= 0, (topic, self._left[topic])
                if not self._left[topic]:
                    del self._left[topic]
                self._done.append(topic)
                self._changed.notify_all()

    def _report(self) -> None:
        """A line now and then, as long as it lasts."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: not self._left, REPORT_S):
                    return
            log.info("recovering partitions", extra={
                "ready": self.total - self.left, "of": self.total,
                "checked_mb": self._megabytes("recovered_bytes"),
                "trusted_mb": self._megabytes("trusted_bytes")})

    def _megabytes(self, figure: str) -> int:
        return sum(damages.figures(directory)[figure] for directory in self._directories) >> 20


def report(directories, paths) -> None:
    """A line for each damage that was met since the last call."""
    for directory, path in zip(directories, paths, strict=True):
        for damage in damages.take(directory) if directory is not None else ():
            what = {"cut": "the end of a log was cut off: it held no whole batch",
                    "dropped": "a segment was dropped: it followed a cut",
                    "kept": "a log is damaged: readers pass over this"}[damage.kind]
            topic, _, partition = damage.partition.rpartition("-")
            # A torn tail is what a kill leaves; what was on disk before is another matter.
            write = log.warning if damage.kind == "cut" else log.error
            write(what, extra={
                "directory": path, "topic": topic, "partition": partition,
                "segment": f"{damage.segment:020d}.log", "offset": damage.offset,
                "position": damage.position, "bytes": damage.bytes, "reason": damage.reason})
