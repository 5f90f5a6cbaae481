"""The log cleaner: which compacted log is next, on how many threads, how fast.

Owns: its threads, the memory of their key maps, cleaner-offset-checkpoint in each log directory.
Invariants: (1) one thread at a time cleans a log; (2) what the checkpoint calls clean has been
  cleaned: it is written after a pass, never before; (3) a log whose pass failed is left alone until
  the next start, and goes on serving; one that found no room or memory is tried again.
Source: Kafka's log cleaner: settings by their names, KIP-354 (max.compaction.lag.ms), KIP-58
  (min.compaction.lag.ms).
"""

import logging
import os
import threading
from collections import namedtuple

from pylog import supervisor
from pylog._native import cleaner
from pylog._native.log import LogDeleted, LogError, StorageError
from pylog.log import checkpoint_files as files

CHECKPOINT = "cleaner-offset-checkpoint"
STEP_BYTES = 4 << 20
MAP_BYTES_MIN = 64 << 10
# Behind the limit, a thread sleeps at most so long before it looks again.
PAUSE_S_MAX = 0.5
# Before the next pass over a log that found no room.
SHORTAGE_MS = 10_000
# Instead of a setting that leaves no room for a key, or no free place.
LOAD_FACTOR = 0.9

log = logging.getLogger("pylog.log.cleaner")

Candidate = namedtuple("Candidate", "topic partition place log config")
Candidate.__doc__ = """A compacted partition: its log, the number of its log directory, its settings
by Kafka's names."""
Choice = namedtuple("Choice", "candidate first_dirty end dirty_bytes ratio")


class Cleaner:
    """Compaction of one node's logs in `disks`, its Directories. candidates: gives the Candidates
    there are now."""

    def __init__(self, settings, now_ms, disks, candidates):
        self._settings = settings
        self._now_ms = now_ms
        self._disks = disks
        self._candidates = candidates
        # (topic, partition) -> offset below which all is clean, once it is loaded
        self._clean_until: dict[tuple[str, int], int] = {}
        self._loaded = False
        self._at_work = set()        # keys of logs that a thread cleans
        self._failed = set()         # keys of logs that are left alone
        self._short_until = {}       # key -> when a log that found no room is tried again
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)   # A log is at work no more.
        self._stopping = threading.Event()
        self._threads = []
        self._began_ms = now_ms()
        self._spent = 0              # bytes since _began_ms, against the limit
        self._totals = {"passes": 0, "bytes_read": 0, "bytes_written": 0, "records_read": 0,
                        "records_kept": 0, "failures": 0}

    def tend(self) -> None:
        """Has as many threads as the setting says, from when there is something to compact."""
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
        """Ends the threads after their step at hand; passes that are not done change nothing."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def forget(self, topic: str) -> None:
        """A topic is gone: another of its name begins dirty, also after a start."""
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
        """Totals since the start, and how many logs are at work on and left alone."""
        with self._lock:
            return {**self._totals, "at_work": len(self._at_work), "left_alone": len(self._failed)}

    def clean_one(self) -> bool:
        """Cleans the log that needs it most. False: none does."""
        choice = self._choose()
        if choice is None:
            return False
        key = choice.candidate.topic, choice.candidate.partition
        try:
            self._clean(choice)
        except (cleaner.Interrupted, LogDeleted):
            # Its segments changed meanwhile: what is dirty now is seen at the next look.
            log.info("a pass was given up", extra={"topic": key[0], "partition": key[1]})
        except Exception as error:
            self._note_failure(choice.candidate, key, error)
        finally:
            with self._lock:
                self._at_work.discard(key)
                self._idle.notify_all()
        return True

    def _note_failure(self, candidate: Candidate, key, error: Exception) -> None:
        """Keeps (3)."""
        is_short = isinstance(error, MemoryError) or isinstance(error, StorageError) \
            and not candidate.log.log_dir.offline
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
            log.error("a log cannot be compacted and is left alone", extra=details,
                      exc_info=None if isinstance(error, LogError) else error)

    def catch_up(self) -> None:
        """Cleans all that is due, and waits for the logs that the threads are at."""
        while True:
            while self.clean_one():
                pass
            with self._lock:
                if not self._at_work:
                    return
                self._idle.wait()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if len(self._threads) > self._settings["log.cleaner.threads"]:
                return
            if not self.clean_one():
                self._stopping.wait(self._settings["log.cleaner.backoff.ms"] / 1000)

    # ---- the choice ---------------------------------------------------------------------------

    def _choose(self) -> Choice | None:
        """The dirtiest log that is due; it is at work from here on (1)."""
        with self._lock:
            self._load_once()
            now_ms, best = self._now_ms(), None
            for candidate in self._candidates():
                key = candidate.topic, candidate.partition
                if key in self._at_work or key in self._failed:
                    continue
                # A clock that was set back puts nothing off.
                if 0 < self._short_until.get(key, 0) - now_ms <= SHORTAGE_MS:
                    continue
                choice = self._look(candidate, key, now_ms)
                if choice is not None and (best is None or choice.ratio > best.ratio):
                    best = choice
            if best is not None:
                # Keeps (1).
                assert (best.candidate.topic, best.candidate.partition) not in self._at_work
                self._at_work.add((best.candidate.topic, best.candidate.partition))
            return best

    def _look(self, candidate: Candidate, key, now_ms: int) -> Choice | None:
        config = candidate.config
        try:
            clean, dirty, first, end, first_ms = cleaner.look(
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
        one_pass = cleaner.CleaningPass(
            candidate.log, cleaner.OffsetMap(*self._map_size(choice)), now_ms=begin_ms,
            first_dirty=choice.first_dirty,
            delete_retention_ms=config["delete.retention.ms"],
            min_compaction_lag_ms=config["min.compaction.lag.ms"],
            segment_bytes=config.get("internal.segment.bytes") or config["segment.bytes"])
        try:
            before, going = 0, True
            while going and not self._stopping.is_set():
                going = one_pass.step(STEP_BYTES)
                done = one_pass.figures()
                moved = done and done["bytes_mapped"] + done["bytes_read"] + done["bytes_written"]
                self._hold_back((moved or 0) - before)
                before = moved or 0
            if not going and done is not None:
                self._note(candidate, done, self._now_ms() - begin_ms)
        finally:
            one_pass.close()

    def _map_size(self, choice: Choice) -> tuple[int, float]:
        """No more memory than the dirty records can need, within the setting's share."""
        load_factor = self._settings["log.cleaner.io.buffer.load.factor"]
        if not 0 < load_factor <= 1:
            load_factor = LOAD_FACTOR
        share = self._settings["log.cleaner.dedupe.buffer.size"] // max(
            1, self._settings["log.cleaner.threads"])
        # One more slot than keys: probing ends at a free one, also where the factor is 1.
        slots = int((choice.end - choice.first_dirty) / load_factor) + 1
        return max(MAP_BYTES_MIN, min(share, slots * cleaner.SLOT_BYTES)), load_factor

    def _hold_back(self, count: int) -> None:
        """Sleeps while all threads together are ahead of log.cleaner.io.max.bytes.per.second.

        As in Kafka, 0 lets nothing through and less than that everything."""
        with self._lock:
            self._spent += count
        while not self._stopping.is_set():
            limit = self._settings["log.cleaner.io.max.bytes.per.second"]
            with self._lock:
                elapsed_s = (self._now_ms() - self._began_ms) / 1000
                ahead_s = self._spent / limit - elapsed_s if limit else PAUSE_S_MAX
                # Also when the setting is no number, or the clock was set back.
                if not ahead_s > 0 or elapsed_s < 0:
                    # Time without work is no credit for later.
                    self._began_ms, self._spent = self._now_ms(), 0
                    return
            self._stopping.wait(min(ahead_s, PAUSE_S_MAX))

    def _note(self, candidate: Candidate, done: dict, took_ms: int) -> None:
        """Keeps (2)."""
        with self._lock:
            # Its topic may be gone, and another have its name.
            if all(other.log is not candidate.log for other in self._candidates()):
                return
            self._clean_until[candidate.topic, candidate.partition] = done["end_offset"]
            self._totals["passes"] += 1
            for name in ("bytes_read", "bytes_written", "records_read", "records_kept"):
                self._totals[name] += done[name]
            self._store(candidate.place)
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
        for _, path in self._disks.usable():
            for key, offset in _clean_below(path).items():
                # A partition that moved may be in the files of both directories.
                found[key] = max(offset, found.get(key, 0))
        return found

    def _store(self, place: int) -> bool:
        here = {(other.topic, other.partition) for other in self._candidates()
                if other.place == place}
        rows = [(*key, offset) for key, offset in self._clean_until.items() if key in here]
        try:
            files.write_offsets(os.path.join(self._disks.paths[place], CHECKPOINT), rows)
            return True
        except OSError as error:
            self._disks.fail(place, error)
            # The next start takes more for dirty than there is.
            log.error("the cleaner's checkpoint could not be written",
                      extra={"reason": error.strerror})
            return False


def _unlink(path: str) -> None:
    """Without the file all is dirty at the next start: that takes no room, and is never wrong."""
    try:
        os.unlink(os.path.join(path, CHECKPOINT))
        files.sync_directory(path)
    except OSError as error:
        log.error("the cleaner's checkpoint could not be removed",
                  extra={"reason": error.strerror})


def _clean_below(path: str) -> dict:
    """The rows of a directory's checkpoint; none when it cannot be read."""
    try:
        return files.read_offsets(os.path.join(path, CHECKPOINT))
    except OSError:
        return {}
