"""The log cleaner: selects the next log to compact, and limits threads and throughput.

Owns: its threads, the memory of their offset maps, cleaner-offset-checkpoint in each log directory.
Invariants: at most one thread cleans a log; the checkpoint is written after a pass, so offsets
  below it are clean; a log whose pass failed is skipped until the next start, but still serves
  requests; if a pass failed for lack of space or memory, it is retried.
Source: Kafka's log cleaner and its settings, KIP-354 (max.compaction.lag.ms), KIP-58
  (min.compaction.lag.ms).
"""

import logging
import os
import threading
from collections import namedtuple

from pylog import supervisor
from pylog._native.log import compaction
from pylog._native.log.log import LogDeleted, LogError, StorageError
from pylog.log import checkpoint_files

CHECKPOINT = "cleaner-offset-checkpoint"
WORK = "cleaner checkpoints"  # in supervisor.failures()
STEP_BYTES = 4 << 20
MAP_BYTES_MIN = 64 << 10
# Maximum time until a throttled thread checks the limit again.
PAUSE_S_MAX = 0.5
# Retry interval for a log after a shortage of space or memory.
SHORTAGE_MS = 10_000
# Used if the setting is not above 0 and at most 1.
LOAD_FACTOR = 0.9

log = logging.getLogger("pylog.log.cleaner")

Candidate = namedtuple("Candidate", "topic partition dir_index log config")
Candidate.__doc__ = """A compacted partition: its log, the number of its log directory, its settings
by Kafka's names."""
Choice = namedtuple("Choice", "candidate first_dirty end dirty_bytes ratio")


class Cleaner:
    """Compacts the logs of one node in `disks`, its Directories. candidates: yields the current
    Candidates.
    """

    def __init__(self, settings, now_ms, disks, candidates):
        self._settings = settings
        self._now_ms = now_ms
        self._disks = disks
        self._candidates = candidates
        # (topic, partition) -> first dirty offset; after _load_once()
        self._clean_until: dict[tuple[str, int], int] = {}
        self._loaded = False
        self._at_work = set()  # keys of logs being cleaned
        self._failed = set()  # keys of logs to skip
        self._short_until = {}  # key -> retry time after a shortage
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)  # a pass ended
        self._stopping = threading.Event()
        self._threads = []
        self._began_ms = now_ms()
        self._spent = 0  # bytes since _began_ms, for the throttle
        self._totals = {"passes": 0, "bytes_read": 0, "bytes_written": 0, "records_read": 0,
                        "records_kept": 0, "failures": 0}

    def tend(self) -> None:
        """Start threads up to the configured number, once there is a log to compact."""
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if self._stopping.is_set() or not self._settings["log.cleaner.enable"]:
                return
            missing = self._settings["log.cleaner.threads"] - len(self._threads)
            if missing > 0 and next(iter(self._candidates()), None) is not None:
                for _ in range(missing):
                    thread = supervisor.thread("log-cleaner", self._run, self._stopping)
                    self._threads.append(thread)
                    thread.start()

    def stop(self) -> None:
        """Stop the threads after their current step. Incomplete passes change nothing."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def forget(self, topic: str) -> None:
        """Forget a deleted topic, also on disk: a new topic with its name starts dirty."""
        with self._lock:
            self._load_once()
            gone = [key for key in self._clean_until if key[0] == topic]
            for key in gone:
                del self._clean_until[key]
            for number, path in self._disks.usable() if gone else ():
                if not self._store(number):
                    _unlink(path)
            for key in [key for key in self._short_until if key[0] == topic]:
                del self._short_until[key]
            self._failed = {key for key in self._failed if key[0] != topic}

    def stats(self) -> dict[str, int]:
        """Return totals since startup, and the number of logs being cleaned and skipped."""
        with self._lock:
            return {**self._totals, "at_work": len(self._at_work), "uncleanable": len(self._failed)}

    def clean_next(self) -> bool:
        """Clean the log that needs it most. Return False if there is none."""
        choice = self._choose()
        if choice is None:
            return False
        key = choice.candidate.topic, choice.candidate.partition
        try:
            self._clean(choice)
        except (compaction.Interrupted, LogDeleted):
            # Its segments changed during the pass. A later pass cleans it.
            log.info("a cleaning pass was cancelled", extra={"topic": key[0], "partition": key[1]})
        except Exception as error:
            self._note_failure(choice.candidate, key, error)
        finally:
            with self._lock:
                self._at_work.discard(key)
                self._idle.notify_all()
        return True

    def _note_failure(self, candidate: Candidate, key, error: Exception) -> None:
        """Log the failure. Skip the log until the next start, or retry it later after a shortage.
        """
        is_short = isinstance(error, MemoryError) or isinstance(error, StorageError) \
            and not candidate.log.offline
        with self._lock:
            self._totals["failures"] += 1
            if is_short:
                self._short_until[key] = self._now_ms() + SHORTAGE_MS
            else:
                self._failed.add(key)
        details = {"topic": key[0], "partition": key[1], "reason": str(error)}
        if is_short:
            log.warning("a log is compacted later", extra=details)
        else:
            log.error("a log cannot be compacted; skipping it until the next start", extra=details,
                      exc_info=None if isinstance(error, LogError) else error)

    def catch_up(self) -> None:
        """Clean all logs that are due, and wait for the passes of other threads."""
        while True:
            while self.clean_next():
                pass
            with self._lock:
                if not self._at_work:
                    return
                self._idle.wait()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if len(self._threads) > self._settings["log.cleaner.threads"]:
                return
            if not self.clean_next():
                self._stopping.wait(self._settings["log.cleaner.backoff.ms"] / 1000)

    # ---- the choice ---------------------------------------------------------------------------

    def _choose(self) -> Choice | None:
        """Return the dirtiest log that is due, and mark it as being cleaned."""
        with self._lock:
            self._load_once()
            now_ms, best = self._now_ms(), None
            for candidate in self._candidates():
                key = candidate.topic, candidate.partition
                if key in self._at_work or key in self._failed:
                    continue
                # If the clock was set back, do not wait longer than SHORTAGE_MS.
                if 0 < self._short_until.get(key, 0) - now_ms <= SHORTAGE_MS:
                    continue
                choice = self._evaluate(candidate, key, now_ms)
                if choice is not None and (best is None or choice.ratio > best.ratio):
                    best = choice
            if best is not None:
                # At most one thread cleans a log.
                assert (best.candidate.topic, best.candidate.partition) not in self._at_work
                self._at_work.add((best.candidate.topic, best.candidate.partition))
            return best

    def _evaluate(self, candidate: Candidate, key, now_ms: int) -> Choice | None:
        config = candidate.config
        try:
            clean, dirty, first, end, first_ms = compaction.look(
                candidate.log, now_ms=now_ms, first_dirty=self._clean_until.get(key, 0),
                min_compaction_lag_ms=config["min.compaction.lag.ms"])
        except LogError:
            return None
        if not dirty:
            return None
        ratio = dirty / (clean + dirty)
        late = 0 <= first_ms < now_ms - config["max.compaction.lag.ms"]
        if not late and ratio <= config["min.cleanable.dirty.ratio"]:
            return None
        return Choice(candidate, first, end, dirty, ratio)

    # ---- a pass -------------------------------------------------------------------------------

    def _clean(self, choice: Choice) -> None:
        candidate, config, begin_ms = choice.candidate, choice.candidate.config, self._now_ms()
        cleaning_pass = compaction.CleaningPass(
            candidate.log, compaction.OffsetMap(*self._map_size(choice)), now_ms=begin_ms,
            first_dirty=choice.first_dirty,
            delete_retention_ms=config["delete.retention.ms"],
            min_compaction_lag_ms=config["min.compaction.lag.ms"],
            segment_bytes=config.get("internal.segment.bytes") or config["segment.bytes"])
        try:
            before, going = 0, True
            while going and not self._stopping.is_set():
                going = cleaning_pass.step(STEP_BYTES)
                done = cleaning_pass.figures()
                moved = done and done["bytes_mapped"] + done["bytes_read"] + done["bytes_written"]
                self._hold_back((moved or 0) - before)
                before = moved or 0
            if not going and done is not None:
                self._note(candidate, done, self._now_ms() - begin_ms)
        finally:
            cleaning_pass.close()

    def _map_size(self, choice: Choice) -> tuple[int, float]:
        """Return (bytes, load factor) of the offset map: as much as the dirty records can need,
        within this thread's share of the setting.
        """
        load_factor = self._settings["log.cleaner.io.buffer.load.factor"]
        if not 0 < load_factor <= 1:
            load_factor = LOAD_FACTOR
        share = self._settings["log.cleaner.dedupe.buffer.size"] // max(
            1, self._settings["log.cleaner.threads"])
        # One more slot than keys: a probe ends at a free slot, even with a load factor of 1.
        slots = int((choice.end - choice.first_dirty) / load_factor) + 1
        return max(MAP_BYTES_MIN, min(share, slots * compaction.SLOT_BYTES)), load_factor

    def _hold_back(self, count: int) -> None:
        """Sleep while all threads together exceed log.cleaner.io.max.bytes.per.second.

        As in Kafka, 0 blocks all cleaning, and a negative limit disables throttling.
        """
        with self._lock:
            self._spent += count
        while not self._stopping.is_set():
            limit = self._settings["log.cleaner.io.max.bytes.per.second"]
            with self._lock:
                elapsed_s = (self._now_ms() - self._began_ms) / 1000
                ahead_s = self._spent / limit - elapsed_s if limit else PAUSE_S_MAX
                # Also true if the setting is NaN, or if the clock was set back.
                if not ahead_s > 0 or elapsed_s < 0:
                    # Idle time does not allow a later burst.
                    self._began_ms, self._spent = self._now_ms(), 0
                    return
            self._stopping.wait(min(ahead_s, PAUSE_S_MAX))

    def _note(self, candidate: Candidate, done: dict, took_ms: int) -> None:
        """Record a finished pass in the checkpoint."""
        with self._lock:
            # The topic may have been deleted and created again.
            if all(other.log is not candidate.log for other in self._candidates()):
                return
            self._clean_until[candidate.topic, candidate.partition] = done["end_offset"]
            self._totals["passes"] += 1
            for name in ("bytes_read", "bytes_written", "records_read", "records_kept"):
                self._totals[name] += done[name]
            self._store(candidate.dir_index)
        log.info("compacted", extra={
            "topic": candidate.topic, "partition": candidate.partition, "ms": took_ms,
            **{name: done[name] for name in (
                "end_offset", "bytes_read", "bytes_written", "records_read", "records_kept",
                "segments_before", "segments_after")},
            **({"damaged_bytes": done["bytes_damaged"]} if done["bytes_damaged"] else {})})

    # ---- the checkpoint -----------------------------------------------------------------------

    def _load_once(self) -> None:
        if not self._loaded:
            self._clean_until = self._load()
            self._loaded = True

    def _load(self) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        for number, path in self._disks.usable():
            for key, offset in self._clean_below(number, path).items():
                # A moved partition may be in the files of both directories.
                found[key] = max(offset, found.get(key, 0))
        return found

    def _clean_below(self, number: int, path: str) -> dict:
        """Return the rows of a directory's checkpoint. If it cannot be read, report it and return
        none: then its logs are compacted from their start, which is always correct.
        """
        path = os.path.join(path, CHECKPOINT)
        try:
            return checkpoint_files.read_offsets(path)
        except OSError as error:
            self._disks.fail(number, error)
            supervisor.report(WORK, "The cleaner's checkpoint cannot be read. The logs of this "
                              "directory are compacted from their start.", path=path)
            return {}

    def _store(self, dir_index: int) -> bool:
        here = {(other.topic, other.partition) for other in self._candidates()
                if other.dir_index == dir_index}
        rows = [(*key, offset) for key, offset in self._clean_until.items() if key in here]
        try:
            checkpoint_files.write_offsets(
                os.path.join(self._disks.paths[dir_index], CHECKPOINT), rows)
            return True
        except OSError as error:
            self._disks.fail(dir_index, error)
            # The next start cleans more than necessary.
            log.error("the cleaner's checkpoint could not be written",
                      extra={"reason": error.strerror})
            return False


def _unlink(path: str) -> None:
    """Remove the checkpoint. Without it, the next start treats all logs as dirty, which is always
    correct, and removing it needs no disk space.
    """
    try:
        os.unlink(os.path.join(path, CHECKPOINT))
        checkpoint_files.sync_directory(path)
    except OSError as error:
        log.error("the cleaner's checkpoint could not be removed",
                  extra={"reason": error.strerror})

