"""Manages all partition logs of this node: opens them at startup, maintains and closes them.

Owns: every Log, the checkpoint files; log_directories owns the log directories.
Invariants: a partition of a failed directory is offline, and is not created in another one; a
  partition has one Log; a checkpoint never promises more than is on disk; startup trusts a
  directory without recovery only if its clean-shutdown marker is the one in state.lmdb, because
  Kafka may have used the directory since; each directory is checked separately.
Source: Kafka's log directory layout; KIP-858 (several directories).
"""

import logging
import os
import threading
from itertools import chain

from pylog._native.log import Log, LogError, Shortage
from pylog.log import (
    partition_log as partitions,
)
from pylog.log import (
    recovery,
    recovery_hints,
    startup_scan,
    topic_branches,
)
from pylog.log.checkpoint_writer import Checkpointer
from pylog.log.cleaner import Candidate, Cleaner
from pylog.log.log_directories import Directories, remove_tree
from pylog.log.replica_moves import RATE, Move, Moves, directory_name, finish

CHECKPOINT_MS = 60_000

log = logging.getLogger("pylog.log")


class LogManager:
    """The logs of one node. `paths`: its log directories. `stopped`: numbers of the directories
    that were closed cleanly.
    """

    def __init__(self, settings, io_pool, now_ms):
        self.paths = settings.log_dirs
        self.disks = Directories(self.paths, settings, io_pool)
        self.stopped: frozenset[int] = frozenset()
        self._settings = settings
        self._now_ms = now_ms
        self._offline = set()  # (name, index) of partitions that this node cannot serve
        self._without_files = set()  # those of them whose directory works
        self._lost = []  # those that take_failed() has not returned yet
        self._lost_logs = {}  # directory number -> LogDir.lost_logs at the last take_failed()
        self._unopened = {}  # (name, index) -> arguments of partitions to open later
        self._topics = {}  # name -> (topic id, [Log or None]: modified in place, overrides)
        self._place_of = {}  # Log -> directory number, if it is not 0
        self._default_config = None
        self._hints = recovery_hints.Hints(self.disks)
        self.checkpointer = Checkpointer(self.disks, self._hints, self._placed)
        self._upkeep_lock = threading.Lock()
        self._closing = False
        # Due times of retention, checkpoints and producer expiry, in ms.
        self._due: list[int] = []
        self._timed = set()  # Logs with their own flush.ms: checked by every upkeep
        self._left_over = []  # paths of partitions deleted before this start
        self.moves = Moves(now_ms, lambda: settings.value(RATE))
        self._recovery = None  # recovery.Recovery, after an unclean shutdown
        self._lists_lock = threading.Lock()  # protects changes of _topics entries
        self._moved = []  # source Logs of moves, which may still have readers
        self._branches = {}  # topic id -> result of prepare_branch(), until create()
        self.cleaner = Cleaner(settings, now_ms, self.disks, self._compacted)

    # ---- start and stop -------------------------------------------------------------------------

    def open(self) -> None:
        """Open the log directories. Raises StartError as Directories.open."""
        self.disks.open()

    @property
    def directories(self) -> list:
        """Return the LogDirs by number, None if unusable at startup."""
        return self.disks.natives

    def holds_partitions(self) -> bool:
        """Return True if the directories contained partitions of topics at startup."""
        return any(map(startup_scan.is_partition,
                       chain.from_iterable(self.disks.listings)))

    def open_partitions(self, topics, checkpoints: dict, clean: frozenset, store) -> None:
        """Open all partitions of this node, and set aside partition directories without a topic.

        topics: [(name, id, roles, overrides)], roles as in create(). checkpoints: (id, partition)
        -> Checkpoint, from `store`. clean: numbers of the directories where checkpoints are trusted
        and no log file is read. Raises StartError.
        """
        self._store = self.checkpointer.store = store
        now_ms = self._now_ms()
        self._due = [now_ms + self._settings["log.initial.task.delay.ms"], now_ms + CHECKPOINT_MS,
                     now_ms + self._settings["producer.id.expiration.check.interval.ms"]]
        where, self._left_over = startup_scan.find(
            self.disks, {name: id_ for name, id_, _, _ in topics}, clean)
        self._left_over += topic_branches.take_left_over(
            self.disks, {id_: name for name, id_, _, _ in topics}, where)
        plan, anew = [], []
        for name, topic_id, roles, overrides in topics:
            logs = [None] * len(roles)
            self._topics[name] = (topic_id, logs, overrides)
            config = self._config(overrides)
            for index, role in enumerate(roles):
                if role is not None:
                    place = where.pop(f"{name}-{index}", None)
                    checkpoint = checkpoints.pop((topic_id, index), None)
                    if place is None and len(self.disks.usable()) < len(self.paths):
                        # The partition may be in a failed directory: do not create it in another
                        # one.
                        self._lose(name, index)
                        continue
                    if place is None and checkpoint is not None and checkpoint.recovery_point:
                        if partitions.must_have_files(checkpoint, role, config):
                            self._lose_files(name, index, "its directory is missing")
                            continue
                        checkpoint = partitions.without_files(checkpoint)
                        anew.append(((topic_id, index), checkpoint))
                    plan.append((logs, name, topic_id, index, role, config, place, checkpoint))
        self.checkpointer.gone += checkpoints
        if anew:
            store.save(None, anew)
        hinted = {number: self._hints.take(number, {
            (entry[1], entry[3]) for entry in plan if entry[6] == number})
            for number, _ in self.disks.usable()}
        self._set_aside(where)
        self.disks.listings.clear()
        self.disks.look_at_space()
        self._open_all(plan, clean, hinted)

    def move(self, name: str, index: int, place: int) -> None:
        """Start moving a partition to log directory number `place`. Raises LogError.

        finish_moves() completes the move. After a restart, the move begins again from its source.
        """
        partition_log, before = self.get(name, index), self.moves.find(name, index)
        if before is not None and before.place == place:
            return
        self.moves.cancel(name, index)
        if self.place(name, index) == place:
            return
        topic_id, _, overrides = self._topics[name]
        target = Log.open(
            self.directories[place], name, index, topic_id, self._config(overrides),
            now_ms=self._now_ms(), log_start_offset=partition_log.start_offset,
            directory=directory_name(name, index, "future"))
        self.moves.begin(Move(name, index, place, partition_log, target))

    def finish_moves(self) -> list[str]:
        """Complete moves, and open partitions that could not be opened before. Return their topics.
        Blocks.
        """
        changed = self._open_late()
        while self._moved:
            try:
                self._moved.pop().delete(self._now_ms())
            except LogError as error:
                log.error("a moved log could not be removed", extra={"reason": str(error)})
        return changed + [move.topic for move in self.moves.finish_ready(self._finish)]

    def _finish(self, move: Move) -> bool:
        name, index, partition_log = move.topic, move.partition, move.target
        if self.get(name, index) is not move.source:
            # The topic was deleted and may have been created again.
            self.moves.give_up(move)
            return False
        if move.damaged_bytes:
            self.write_checkpoints()
        self._hints.write_start(move.place, (name, index), move.source, partition_log)
        finish(move, self._now_ms())
        before = self._place_of.get(move.source, 0)
        self.disks.loads[before] -= 1
        self.disks.loads[move.place] += 1
        self._place_of[partition_log] = move.place
        self._timed.discard(move.source)
        self._list(name, index, partition_log, None)
        # After _list(), so that a checkpoint being written does not add the row again.
        self._hints.forget([(before, (name, index))])
        self._place_of.pop(move.source, None)
        self._moved.append(move.source)
        return True

    def write_checkpoints(self) -> None:
        """Write a checkpoint, so that recovery after a crash starts behind the copy's damaged bytes
        and does not truncate the copy there.
        """
        with self._upkeep_lock:
            if not self.recovering:
                self.checkpointer.write(self._store)

    def leave_moved(self) -> None:
        """Stop serving from the source logs of moves. Requests that wait there are retried."""
        for partition_log in self._moved:
            partition_log.become_follower(partition_log.leader_epoch)

    def _open_all(self, plan, clean: frozenset, hinted: dict) -> None:
        begin_ms, all_clean = self._now_ms(), len(clean) == len(self.paths)

        def is_clean(entry):
            return all_clean if entry[6] is None else entry[6] in clean

        def open_one(entry):
            _, name, topic_id, index, role, config, place, checkpoint = entry
            trusted = is_clean(entry) and checkpoint is not None and (
                checkpoint.log_end_offset >= 0) and (place is not None or not checkpoint.segments)
            if not trusted:
                checkpoint = partitions.after_crash(
                    checkpoint, hinted.get(place, {}).get((name, index)))
            if place is None:
                place = self.disks.least_loaded()
            if not self._open(place, name, topic_id, index, role, config, checkpoint, trusted) \
                    and checkpoint is not partitions.NOTHING_KNOWN:
                self._hints.set_unread(place, (name, index), checkpoint)

        unclean = []
        for entry in plan:
            unclean.append(entry) if not is_clean(entry) else open_one(entry)
        if unclean:
            self._recovery = recovery.Recovery(
                [(entry[1], entry[6] or 0, entry) for entry in unclean],
                [native for native in self.directories if native is not None],
                self._settings["num.recovery.threads.per.data.dir"], open_one)
            self._recovery.begin()
            recovery.report(self.directories, self.paths)
        if plan:
            log.info("partitions opened", extra={
                "count": len(plan) - self.recovering, "left": self.recovering,
                "clean": len(plan) - len(unclean), "ms": self._now_ms() - begin_ms})

    def _list(self, name: str, index: int, partition_log, config) -> None:
        """Make an opened Log available, with the topic's current settings."""
        with self._lists_lock:
            _, logs, overrides = self._topics[name]
            newest = self._config(overrides)
            if newest is not config:
                partition_log.set_config(newest)
            self._watch(partition_log, newest)
            logs[index] = partition_log

    @property
    def recovering(self) -> int:
        """Return the number of partitions that are not recovered yet."""
        return self._recovery.left if self._recovery is not None else 0

    def take_recovered(self) -> set:
        """Return the topics with partitions that were recovered since the last call."""
        return self._recovery.take_ready() if self._recovery is not None else set()

    def close_partitions(self) -> list:
        """Flush all logs. Return [((topic id, partition), Checkpoint)] of the directories in
        `stopped`.
        """
        self._closing = True
        # If recovery was incomplete, some logs are unverified: write no clean-shutdown marker.
        known = self._recovery is None or self._recovery.stop()
        self.cleaner.stop()
        self.moves.stop()
        with self._upkeep_lock:
            failed = set()
            for number, _ in self.disks.usable():
                try:
                    self.directories[number].settle()
                except LogError as error:
                    failed.add(number)
                    log.error("a log directory could not be flushed", extra={"reason": str(error)})
            entries = self._prepare_close(failed)
            recovery.report(self.directories, self.paths)
            if known:
                self.checkpointer.write_files()
            self.stopped = frozenset(
                number for number, _ in self.disks.usable() if known and number not in failed)
            return [entry for place, entry in entries if place in self.stopped]

    def _prepare_close(self, failed: set) -> list:
        """Return [(directory number, (key, Checkpoint))] of all closed logs. Adds failed
        directories to `failed`.
        """
        entries, now_ms = [], self._now_ms()
        for name, topic_id, index, partition_log in self._all():
            place = self._place_of.get(partition_log, 0)
            if self.disks.online(place) and partition_log.offline:
                # The next start must not trust an older checkpoint of a clean stop.
                entries.append((place, ((topic_id, index), partitions.flushed(partition_log))))
                continue
            if self.is_offline(name, index) or not self.disks.online(place):
                continue
            try:
                partition_log.settle(now_ms)
                entries.append((place, ((topic_id, index), partitions.at_rest(partition_log))))
            except LogError as error:
                failed.add(place)
                log.error("a log could not be closed", extra={"reason": str(error)})
        return entries

    def close(self) -> None:
        """Release the logs and the directories."""
        for logs in (self._topics, self._place_of, self._timed):
            logs.clear()
        self.disks.close()

    # ---- partitions -----------------------------------------------------------------------------

    def get(self, name: str, index: int):
        """Return a partition's Log, or None if this node has none."""
        entry = self._topics.get(name)
        if entry is None or not 0 <= index < len(entry[1]):
            return None
        return entry[1][index]

    def prepare_branch(self, name: str, topic_id: bytes, source: str, cut, overrides: dict) -> None:
        """Prepare the new topic `name` with this id as a branch of `source`; create() publishes it.
        Raises LogError, OSError.
        """
        parts = topic_branches.prepare(
            [(partition_log, self.place(source, index))
             for index, partition_log in enumerate(self._topics[source][1])],
            name, topic_id, cut, self._config(overrides), self._now_ms())
        # Before the topic exists: without a checkpoint, recovery would read the branch from its
        # start and might truncate it.
        try:
            self._store.save(None, [((topic_id, index), part.checkpoint)
                                    for index, part in enumerate(parts)])
        except BaseException:
            topic_branches.discard(parts)
            raise
        self._branches[topic_id] = parts

    def discard_branch(self, topic_id: bytes) -> None:
        """Discard a prepared branch whose topic was not created."""
        parts = self._branches.pop(topic_id, None)
        if parts is not None:
            topic_branches.discard(parts)

    def is_offline(self, name: str, index: int) -> bool:
        """Return True if the partition was in a failed directory, or had lost its files, at the
        last take_failed().
        """
        return (name, index) in self._offline

    def lacks_files(self, name: str, index: int) -> bool:
        """Return True if the partition is offline although its directory works."""
        return (name, index) in self._without_files

    def any_offline(self, name: str) -> bool:
        return any(topic == name for topic, _ in list(self._offline))

    @property
    def offline(self) -> list:
        """Return (name, index) of offline partitions, as of the last take_failed()."""
        return list(self._offline)

    def take_failed(self) -> list:
        """Return (name, index) of partitions that went offline since the last call: their
        directories failed, or another program removed their files.
        """
        failed, lost = set(self.disks.newly_failed()), self._directories_with_losses()
        for name, _, index, partition_log in self._all() if failed or lost else ():
            place = self._place_of.get(partition_log, 0)
            if place in failed:
                self._timed.discard(partition_log)
                self._lose(name, index)
            elif place in lost and self.disks.online(place) and partition_log.offline \
                    and not self.is_offline(name, index):
                self._timed.discard(partition_log)
                self._lose_files(name, index, "another program removed its files")
        found, self._lost = self._lost, []
        return found

    def _directories_with_losses(self) -> set:
        """Return the numbers of directories whose logs lost files since the last call."""
        counts = {number: self.directories[number].lost_logs for number, _ in self.disks.usable()}
        before, self._lost_logs = self._lost_logs, counts
        return {number for number, count in counts.items() if count != before.get(number, 0)}

    def _lose(self, name: str, index: int) -> None:
        self._offline.add((name, index))
        self._lost.append((name, index))

    def _lose_files(self, name: str, index: int, reason: str) -> None:
        """Take a partition offline that has records but no files. It must not become an empty
        leader.
        """
        log.error("a partition is offline; restore its files and restart, or delete the topic, or "
                  "set unclean.leader.election.enable on the topic and restart to continue "
                  "without these records", extra={
                      "topic": name, "partition": index, "reason": reason})
        self._without_files.add((name, index))
        self._lose(name, index)

    def _find(self, name: str, index: int) -> None:
        """The partition is offline no more: it was deleted or opened."""
        self._offline.discard((name, index))
        self._without_files.discard((name, index))

    def create(self, name: str, topic_id: bytes, roles: list, overrides: dict) -> None:
        """Open the partitions of a new topic, or publish those of prepare_branch().

        roles: a partitions.Role per partition, None if this node has no replica. A partition that
        cannot be opened stays offline until the next start.
        """
        config = self._config(overrides)
        branch = self._branches.pop(topic_id, None)
        # First, so that the topic can be deleted even if its logs cannot be opened.
        self._topics[name] = topic_id, [None] * len(roles), overrides
        if branch is not None:
            self._hints.write_branch(name, branch)
            try:
                topic_branches.publish(name, branch)
            except OSError as error:
                log.error("a branch could not be published; the next start publishes it", extra={
                    "topic": name, "reason": error.strerror or str(error)})
                return
        for index, role in enumerate(roles):
            if role is not None:
                place = self.disks.least_loaded() if branch is None else branch[index].place
                known = partitions.NOTHING_KNOWN if branch is None else branch[index].checkpoint
                self._open(place, name, topic_id, index, role, config, known, False)

    def delete(self, name: str) -> None:
        """Rename a topic's partition directories. Their files are deleted after
        file.delete.delay.ms.
        """
        self._wait_ready(name)
        # Complete running moves and opens before the name is released.
        with self.moves.lock:
            for index in range(len(self._topics[name][1])):
                self.moves.cancel(name, index)
            topic_id, logs, _ = self._topics.pop(name)
        self.cleaner.forget(name)
        for index in range(len(logs)):
            self._find(name, index)
            self._unopened.pop((name, index), None)
        self._delete(name, topic_id, [
            (index, partition_log) for index, partition_log in enumerate(logs)
            if partition_log is not None], lambda held: self._hints.forget_topic(name, held))

    def _delete(self, name: str, topic_id: bytes, doomed: list, forget) -> None:
        """Rename [(index, Log)]. forget: called with [(directory number, index)]."""
        held = []
        for index, partition_log in doomed:
            self.checkpointer.forget((topic_id, index))
            self._timed.discard(partition_log)
            place = self._place_of.get(partition_log, 0)
            self.disks.loads[place] -= 1
            held.append((place, index))
            partitions.delete(partition_log, self._now_ms())
        forget(held)
        for _, partition_log in doomed:
            # Not earlier: a concurrent checkpoint would assign the log to directory 0.
            self._place_of.pop(partition_log, None)

    def _wait_ready(self, name: str) -> None:
        if self._recovery is not None:
            self._recovery.wait(name)

    def configure(self, name: str, overrides: dict) -> None:
        """Apply changed topic settings."""
        with self._lists_lock:
            topic_id, logs, _ = self._topics[name]
            self._topics[name] = (topic_id, logs, overrides)
            config = self._config(overrides)
            for partition_log in logs:
                if partition_log is not None:
                    partition_log.set_config(config)
                    self._watch(partition_log, config)

    def reconfigure(self) -> None:
        """Apply changed broker settings to every topic."""
        self._default_config = None
        for name, (_, _, overrides) in list(self._topics.items()):
            self.configure(name, overrides)

    def assume(self, name: str, roles: list, added=()) -> None:
        """Apply roles to a topic's logs, and open new partitions; roles as in create(). added:
        indexes of existing partitions that now have a replica on this node.
        """
        self._wait_ready(name)
        topic_id, logs, overrides = self._topics[name]
        config, known = self._config(overrides), len(logs)
        with self._lists_lock:
            logs += [None] * (len(roles) - known)
        for index, role in enumerate(roles):
            # An older partition without a Log could not be opened: it stays offline.
            if role is not None and logs[index] is not None:
                with self.moves.lock:
                    partitions.assume(logs[index], role)
            elif role is not None and (index >= known or index in added):
                self._open(self.disks.least_loaded(), name, topic_id, index, role, config,
                           partitions.NOTHING_KNOWN, False)

    def drop(self, name: str, indexes) -> None:
        """Delete partitions that no longer have a replica on this node. Their topic remains."""
        self._wait_ready(name)
        topic_id, logs, _ = self._topics[name]
        with self.moves.lock, self._lists_lock:
            dropped = [(index, logs[index]) for index in indexes if logs[index] is not None]
            for index in indexes:
                self.moves.cancel(name, index)
                self._find(name, index)
                self._unopened.pop((name, index), None)
                logs[index] = None
        self._delete(name, topic_id, dropped, lambda held: self._hints.forget(
            [(place, (name, index)) for place, index in held]))

    def by_topic(self) -> list:
        """Return [(topic, its Logs or None)], unordered. Callable from any thread."""
        return [(name, entry[1]) for name, entry in list(self._topics.items())]

    def place(self, name: str, index: int) -> int:
        """Return the number of the log directory that holds the partition."""
        return self._place_of.get(self.get(name, index), 0)

    def move_start(self, name: str, index: int, offset: int) -> int:
        """Delete a partition's records below `offset`. Return the new start offset. Raises
        LogError, and KeyError if the topic is deleted concurrently.
        """
        # A move that completes concurrently would restore the records.
        with self.moves.lock:
            partition_log = self._topics[name][1][index]
            start = partition_log.move_start(offset, self._now_ms())
            with self._hints.lock:
                # After the deletion, the row would apply to the next topic with this name.
                if self.get(name, index) is not partition_log:
                    raise KeyError(name)
                # The records must not reappear after a crash.
                place = self._place_of.get(partition_log, 0)
                self._hints.write_start(place, (name, index), partition_log)
            return start

    def describe(self) -> list:
        """Return (path, offline, [(topic, partition, Log)]) per log directory."""
        rows: list[tuple[str, bool, list]] = [
            (path, not self.disks.online(number), [])
            for number, path in enumerate(self.paths)]
        for name, _, index, partition_log in self._all():
            if not self.lacks_files(name, index):
                rows[self._place_of.get(partition_log, 0)][2].append((name, index, partition_log))
        return rows

    def _open(self, place: int, name: str, topic_id: bytes, index: int, role, config, checkpoint,
              trusted: bool) -> bool:
        """Open a partition's Log and apply its role. Return False if it cannot be opened."""
        assert self.get(name, index) is None, (name, index)  # A partition has one Log.
        self.disks.loads[place] += 1
        where = (self.directories[place], name, index, topic_id, config)
        try:
            if not trusted:
                startup_scan.make_way(self.disks, place, f"{name}-{index}", topic_id)
            if not self._hints.is_free(place, (name, index)):
                raise OSError("checkpoints of a deleted topic have its name")
            partition_log = partitions.open_checked(
                where, role, checkpoint, trusted, self._now_ms())
        except (LogError, OSError) as error:
            log.error("a partition is offline", extra={
                "topic": name, "partition": index, "reason": str(error)})
            if not self.disks.online(place):
                self._lose(name, index)
            elif isinstance(error, (Shortage, OSError)) or (
                    checkpoint is partitions.NOTHING_KNOWN and not trusted):
                # The shortage may end, or the name may become free: try again later.
                self._unopened[name, index] = place, role, checkpoint, trusted
            else:
                # Another replica must lead.
                self._without_files.add((name, index))
                self._lose(name, index)
            return False
        if place:
            self._place_of[partition_log] = place
        partitions.assume(partition_log, role)
        self._list(name, index, partition_log, config)
        return True

    def _open_late(self) -> list:
        """Open partitions whose first attempt failed for a shortage. Return their topics."""
        changed = []
        for (name, index), how in list(self._unopened.items()):
            place, role, checkpoint, trusted = how
            if self.directories[place].short_of_space:
                continue
            # With the lock held, the topic cannot be deleted.
            with self.moves.lock:
                if name not in self._topics or self._unopened.get((name, index)) is not how:
                    continue
                topic_id, _, overrides = self._topics[name]
                del self._unopened[name, index]
                self.disks.loads[place] -= 1
                if self._open(place, name, topic_id, index, role, self._config(overrides),
                              checkpoint, trusted):
                    self._hints.set_read(place, (name, index))
                    changed.append(name)
        return changed

    def _watch(self, partition_log, config) -> None:
        if config["flush.ms"] < partitions.NEVER:
            self._timed.add(partition_log)
        else:
            self._timed.discard(partition_log)

    def _config(self, overrides: dict):
        """Return the native settings of a topic. Topics without overrides share one object."""
        if overrides:
            return partitions.native_config(
                self._settings.topic_config(partitions.usable(overrides)), self._settings)
        if self._default_config is None:
            self._default_config = partitions.native_config(
                self._settings.topic_config({}), self._settings)
        return self._default_config

    def _compacted(self):
        """Yield the candidates of the cleaner."""
        default = "compact" in self._settings.topic_defaults()["cleanup.policy"]
        for name, (_, logs, overrides) in list(self._topics.items()):
            own = overrides.get("cleanup.policy")
            if default if own is None else "compact" in own:
                config = self._config(overrides)
                for index, partition_log in enumerate(logs):
                    if partition_log is not None:
                        place = self._place_of.get(partition_log, 0)
                        yield Candidate(name, index, place, partition_log, config)

    def _set_aside(self, where: dict) -> None:
        """Rename partition directories without a topic in the image. They are not deleted."""
        for name, number in where.items():
            self.disks.set_aside(number, name)
        for number, listing in enumerate(self.disks.listings):
            self._left_over += [os.path.join(self.paths[number], name) for name in listing
                                if name.endswith("-delete")]

    def _all(self):
        """Yield (name, topic id, partition, Log) of each open partition."""
        for name, (topic_id, logs, _) in list(self._topics.items()):
            for index, partition_log in enumerate(logs):
                if partition_log is not None:
                    yield name, topic_id, index, partition_log

    def _placed(self):
        """Yield (directory number, name, topic id, partition, Log) of each open partition."""
        for entry in self._all():
            yield self._place_of.get(entry[3], 0), *entry

    # ---- upkeep ---------------------------------------------------------------------------------

    def upkeep(self, now_ms: int) -> None:
        """Run due retention, rolls, flushes and checkpoints. Call about once per second. Blocks."""
        with self._upkeep_lock:
            if self._closing or not self._due:
                return
            while self._left_over and not self._closing:
                remove_tree(self._left_over.pop())
            interval_ms = self._settings["log.retention.check.interval.ms"]
            every = self._is_due(0, now_ms, max(
                interval_ms, self._settings["log.initial.task.delay.ms"]))
            if every:
                self._due[0] = now_ms + interval_ms
            self.cleaner.tend()
            self.disks.look_at_space()
            recovery.report(self.directories, self.paths)
            self._hints.tend()
            partitions.tend((entry[3] for entry in self._all()) if every else [
                *self._timed, *self._short_of_space()], now_ms, lambda: self._closing)
            expiry_interval_ms = self._settings["producer.id.expiration.check.interval.ms"]
            if self._is_due(2, now_ms, expiry_interval_ms):
                self._due[2] = now_ms + expiry_interval_ms
                partitions.expire_producers(
                    (entry[3] for entry in self._all()), now_ms, lambda: self._closing)
            # Checkpoint files must contain all partitions, so wait for the end of recovery.
            if self._is_due(1, now_ms, CHECKPOINT_MS) and not self.recovering:
                self._due[1] = now_ms + CHECKPOINT_MS
                self.checkpointer.write(self._store)

    def _short_of_space(self) -> list:
        """Return logs on nearly full disks, where retention runs at once."""
        if not any(self.directories[number].short_of_space for number, _ in self.disks.usable()):
            return []
        return [partition_log for *_, partition_log in self._all()
                if partition_log.log_dir.short_of_space and partition_log not in self._timed]

    def _is_due(self, which: int, now_ms: int, interval_ms: int) -> bool:
        # If the clock was set back, a due time beyond the interval counts as due now.
        return not self._due[which] - interval_ms <= now_ms < self._due[which]
