"""Manages all partition logs of this node: opens them at startup, creates, moves and closes them.

Owns: every Log, with topic_logs, offline_logs and upkeep; log_directories owns the directories.
Invariants: a partition of a failed directory is offline, and is not created in another one; a
  partition has one Log; a checkpoint never promises more than is on disk; startup trusts a
  directory without recovery only if its clean-shutdown marker is the one in state.lmdb, because
  Kafka may have used the directory since; each directory is checked separately.
Source: Kafka's log directory layout; KIP-858 (several directories).
"""

import logging
import os
from itertools import chain

from pylog._native.log.log import Log, LogError, Shortage
from pylog.log import partition_logs
from pylog.log import recovery, recovery_hints, startup_scan, topic_branches
from pylog.log.checkpoint_writer import Checkpointer
from pylog.log.cleaner import Cleaner
from pylog.log.log_directories import Directories
from pylog.log.offline_logs import OfflineLogs, Postponed
from pylog.log.partition_plan import PartitionPlan
from pylog.log.replica_moves import RATE, Move, Moves, directory_name, finish
from pylog.log.topic_logs import TopicEntry, TopicLogs
from pylog.log.upkeep import Upkeep

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
        self._topics = TopicLogs(settings)
        self._offline = OfflineLogs(self.disks, self._topics)
        self._hints = recovery_hints.Hints(self.disks)
        self.checkpointer = Checkpointer(
            self.disks, self._hints, self._topics.with_directories)
        self.moves = Moves(now_ms, lambda: settings.value(RATE))
        self._recovery = None  # recovery.Recovery, after an unclean shutdown
        self._moved = []  # source Logs of moves, which may still have readers
        self._branches = {}  # topic id -> result of prepare_branch(), until create()
        self.cleaner = Cleaner(settings, now_ms, self.disks, self._topics.compacted)
        self._upkeep = Upkeep(settings, self.disks, self._hints, self._topics, self.cleaner,
                              self.checkpointer, lambda: self.recovering)

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
        self._upkeep.begin(self._now_ms())
        where, left_over = startup_scan.find(
            self.disks, {name: id_ for name, id_, _, _ in topics}, clean)
        left_over += topic_branches.take_left_over(
            self.disks, {id_: name for name, id_, _, _ in topics}, where)
        plans, without_files = self._plan(topics, checkpoints, where)
        self.checkpointer.gone += checkpoints
        if without_files:
            store.save(None, without_files)
        hinted = {number: self._hints.take(number, {
            (plan.name, plan.partition) for plan in plans if plan.directory == number})
            for number, _ in self.disks.usable()}
        self._upkeep.left_over = left_over + self._set_aside(where)
        self.disks.listings.clear()
        self.disks.check_free_space()
        self._open_all(plans, clean, hinted)

    def _plan(self, topics, checkpoints: dict, where: dict) -> tuple:
        """List the topics, and return how to open their partitions: [PartitionPlan], and
        [(key, Checkpoint)] of those whose files are missing.

        topics: see open_partitions(). Removes what is used from `checkpoints` and from `where`
        (directory name -> directory number).
        """
        plans, without_files = [], []
        for name, topic_id, roles, overrides in topics:
            self._topics.entries[name] = TopicEntry(topic_id, [None] * len(roles), overrides)
            config = self._topics.config(overrides)
            for index, role in enumerate(roles):
                if role is None:
                    continue
                directory = where.pop(f"{name}-{index}", None)
                checkpoint = checkpoints.pop((topic_id, index), None)
                if directory is None and len(self.disks.usable()) < len(self.paths):
                    # The partition may be in a failed directory: do not create it in another one.
                    self._offline.lose(name, index)
                    continue
                if directory is None and checkpoint is not None and checkpoint.recovery_point:
                    if partition_logs.must_have_files(checkpoint, role, config):
                        self._offline.lose_files(name, index, "its directory is missing")
                        continue
                    checkpoint = partition_logs.without_files(checkpoint)
                    without_files.append(((topic_id, index), checkpoint))
                plans.append(PartitionPlan(
                    name, topic_id, index, role, config, directory, checkpoint))
        return plans, without_files

    def move(self, name: str, index: int, dir_index: int) -> None:
        """Start moving a partition to log directory number `place`. Raises LogError.

        finish_moves() completes the move. After a restart, the move begins again from its source.
        """
        partition_log, before = self.get(name, index), self.moves.find(name, index)
        if before is not None and before.dir_index == dir_index:
            return
        self.moves.cancel(name, index)
        if self.dir_index(name, index) == dir_index:
            return
        topic_id, _, overrides = self._topics.entries[name]
        target = Log.open(
            self.directories[dir_index], name, index, topic_id, self._topics.config(overrides),
            now_ms=self._now_ms(), log_start_offset=partition_log.start_offset,
            directory=directory_name(name, index, "future"))
        self.moves.begin(Move(name, index, dir_index, partition_log, target))

    def finish_moves(self) -> list[str]:
        """Complete moves, and open partitions that could not be opened before. Return their topics.
        Blocks.
        """
        changed = self._open_postponed()
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
            self.moves.abandon(move)
            return False
        if move.damaged_bytes:
            self.write_checkpoints()
        self._hints.write_start(move.dir_index, (name, index), move.source, partition_log)
        finish(move, self._now_ms())
        before = self._topics.directory_of(move.source)
        self.disks.loads[before] -= 1
        self.disks.loads[move.dir_index] += 1
        self._topics.directories[partition_log] = move.dir_index
        self._topics.timed.discard(move.source)
        self._topics.publish(name, index, partition_log, None)
        # After publish(), so that a checkpoint being written does not add the row again.
        self._hints.forget([(before, (name, index))])
        self._topics.directories.pop(move.source, None)
        self._moved.append(move.source)
        return True

    def write_checkpoints(self) -> None:
        """Write a checkpoint, so that recovery after a crash starts behind the copy's damaged bytes
        and does not truncate the copy there.
        """
        self._upkeep.write_checkpoints()

    def leave_moved(self) -> None:
        """Stop serving from the source logs of moves. Requests that wait there are retried."""
        for partition_log in self._moved:
            partition_log.become_follower(partition_log.leader_epoch)

    def _open_all(self, plans: list, clean: frozenset, hinted: dict) -> None:
        """Open the planned partitions, those of unclean directories on recovery threads. hinted:
        directory number -> {(name, index): Checkpoint} from its text files.
        """
        begin_ms, directory_count = self._now_ms(), len(self.paths)

        def known_of(plan: PartitionPlan) -> partition_logs.Checkpoint:
            if plan.checkpoint is not None and plan.is_trusted(clean, directory_count):
                return plan.checkpoint
            return partition_logs.after_crash(plan.checkpoint, hinted.get(
                plan.directory, {}).get((plan.name, plan.partition)))

        def open_partition(plan: PartitionPlan) -> None:
            trusted, checkpoint = plan.is_trusted(clean, directory_count), known_of(plan)
            directory = self.disks.least_loaded() if plan.directory is None else plan.directory
            if not self._open(directory, plan.name, plan.topic_id, plan.partition, plan.role,
                              plan.config, checkpoint, trusted) \
                    and checkpoint is not partition_logs.NOTHING_KNOWN:
                self._hints.set_unread(directory, (plan.name, plan.partition), checkpoint)

        def recover_partition(plan: PartitionPlan) -> None:
            try:
                open_partition(plan)
            except Exception:
                # After the start no one handles it: another replica must lead.
                self._offline.lose(plan.name, plan.partition, has_directory=True)
                if plan.directory is not None:
                    self._hints.set_unread(
                        plan.directory, (plan.name, plan.partition), known_of(plan))
                raise

        unclean = []
        for plan in plans:
            if plan.is_clean(clean, directory_count):
                open_partition(plan)
            else:
                unclean.append(plan)
        if unclean:
            self._recovery = recovery.Recovery(
                [(plan.name, plan.directory or 0, plan) for plan in unclean],
                [native for native in self.directories if native is not None],
                self._settings["num.recovery.threads.per.data.dir"], recover_partition)
            self._recovery.begin()
            recovery.report(self.directories, self.paths)
        if plans:
            log.info("partitions opened", extra={
                "count": len(plans) - self.recovering, "left": self.recovering,
                "clean": len(plans) - len(unclean), "ms": self._now_ms() - begin_ms})

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
        self._upkeep.closing = True
        # If recovery was incomplete, some logs are unverified: write no clean-shutdown marker.
        known = self._recovery is None or self._recovery.stop()
        self.cleaner.stop()
        self.moves.stop()
        with self._upkeep.lock:
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
            return [entry for dir_index, entry in entries if dir_index in self.stopped]

    def _prepare_close(self, failed: set) -> list:
        """Return [(directory number, (key, Checkpoint))] of all closed logs. Adds failed
        directories to `failed`.
        """
        entries, now_ms = [], self._now_ms()
        for name, topic_id, index, partition_log in self._topics.all():
            dir_index = self._topics.directory_of(partition_log)
            if self.disks.online(dir_index) and partition_log.offline:
                # The next start must not trust an older checkpoint of a clean stop.
                entries.append((
                    dir_index, ((topic_id, index), partition_logs.flushed(partition_log))))
                continue
            if self.is_offline(name, index) or not self.disks.online(dir_index):
                continue
            try:
                partition_log.settle(now_ms)
                entries.append((
                    dir_index, ((topic_id, index), partition_logs.at_rest(partition_log))))
            except LogError as error:
                failed.add(dir_index)
                log.error("a log could not be closed", extra={"reason": str(error)})
        return entries

    def close(self) -> None:
        """Release the logs and the directories."""
        self._topics.clear()
        self.disks.close()

    # ---- partitions -----------------------------------------------------------------------------

    def get(self, name: str, index: int):
        """Return a partition's Log, or None if this node has none."""
        return self._topics.get(name, index)

    def prepare_branch(self, name: str, topic_id: bytes, source: str, cut, overrides: dict) -> None:
        """Prepare the new topic `name` with this id as a branch of `source`; create() publishes it.
        Raises LogError, OSError.
        """
        parts = topic_branches.prepare(
            [(partition_log, self.dir_index(source, index))
             for index, partition_log in enumerate(self._topics.entries[source].logs)],
            name, topic_id, cut, self._topics.config(overrides), self._now_ms())
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
        return self._offline.lacks_files(name, index)

    def any_offline(self, name: str) -> bool:
        return self._offline.has_topic(name)

    @property
    def offline(self) -> list:
        """Return (name, index) of offline partitions, as of the last take_failed()."""
        return self._offline.all()

    def take_failed(self) -> list:
        """Return (name, index) of partitions that went offline since the last call."""
        failed = self._offline.take_failed()
        if any(self.lacks_files(*key) for key in failed):
            # Without a recovery point, a start after a crash would open them empty.
            self._upkeep.request_checkpoint()
        return failed

    def create(self, name: str, topic_id: bytes, roles: list, overrides: dict) -> None:
        """Open the partitions of a new topic, or publish those of prepare_branch().

        roles: a partitions.Role per partition, None if this node has no replica. A partition that
        cannot be opened stays offline until the next start.
        """
        config = self._topics.config(overrides)
        branch = self._branches.pop(topic_id, None)
        # First, so that the topic can be deleted even if its logs cannot be opened.
        self._topics.entries[name] = TopicEntry(topic_id, [None] * len(roles), overrides)
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
                dir_index = self.disks.least_loaded() if branch is None else branch[index].dir_index
                known = partition_logs.NOTHING_KNOWN if branch is None else branch[index].checkpoint
                self._open(dir_index, name, topic_id, index, role, config, known, False)

    def delete(self, name: str) -> None:
        """Rename a topic's partition directories. Their files are deleted after
        file.delete.delay.ms.
        """
        self._wait_ready(name)
        # Complete running moves and opens before the name is released.
        with self.moves.lock:
            for index in range(len(self._topics.entries[name].logs)):
                self.moves.cancel(name, index)
            topic_id, logs, _ = self._topics.entries.pop(name)
        self.cleaner.forget(name)
        for index in range(len(logs)):
            self._offline.forget(name, index)
        self._delete(name, topic_id, [
            (index, partition_log) for index, partition_log in enumerate(logs)
            if partition_log is not None], lambda held: self._hints.forget_topic(name, held))

    def _delete(self, name: str, topic_id: bytes, doomed: list, forget) -> None:
        """Rename [(index, Log)]. forget: called with [(directory number, index)]."""
        held = []
        for index, partition_log in doomed:
            self.checkpointer.forget((topic_id, index))
            self._topics.timed.discard(partition_log)
            dir_index = self._topics.directory_of(partition_log)
            self.disks.loads[dir_index] -= 1
            held.append((dir_index, index))
            partition_logs.delete(partition_log, self._now_ms())
        forget(held)
        for _, partition_log in doomed:
            # Not earlier: a concurrent checkpoint would assign the log to directory 0.
            self._topics.directories.pop(partition_log, None)

    def _wait_ready(self, name: str) -> None:
        if self._recovery is not None:
            self._recovery.wait(name)

    def configure(self, name: str, overrides: dict) -> None:
        """Apply changed topic settings."""
        self._topics.configure(name, overrides)

    def reconfigure(self) -> None:
        """Apply changed broker settings to every topic."""
        self._topics.reconfigure()

    def assume(self, name: str, roles: list, added=()) -> None:
        """Apply roles to a topic's logs, and open new partitions; roles as in create(). added:
        indexes of existing partitions that now have a replica on this node.
        """
        self._wait_ready(name)
        topic_id, logs, overrides = self._topics.entries[name]
        config, known = self._topics.config(overrides), len(logs)
        with self._topics.lock:
            logs += [None] * (len(roles) - known)
        for index, role in enumerate(roles):
            # An older partition without a Log could not be opened: it stays offline.
            if role is not None and logs[index] is not None:
                with self.moves.lock:
                    partition_logs.assume(logs[index], role)
            elif role is not None and (index >= known or index in added):
                self._open(self.disks.least_loaded(), name, topic_id, index, role, config,
                           partition_logs.NOTHING_KNOWN, False)

    def drop(self, name: str, indexes) -> None:
        """Delete partitions that no longer have a replica on this node. Their topic remains."""
        self._wait_ready(name)
        topic_id, logs, _ = self._topics.entries[name]
        with self.moves.lock, self._topics.lock:
            dropped = [(index, logs[index]) for index in indexes if logs[index] is not None]
            for index in indexes:
                self.moves.cancel(name, index)
                self._offline.forget(name, index)
                logs[index] = None
        self._delete(name, topic_id, dropped, lambda held: self._hints.forget(
            [(dir_index, (name, index)) for dir_index, index in held]))

    def by_topic(self) -> list:
        """Return [(topic, its Logs or None)], unordered. Callable from any thread."""
        return self._topics.by_topic()

    def dir_index(self, name: str, index: int) -> int:
        """Return the number of the log directory that holds the partition."""
        return self._topics.directory_of(self.get(name, index))

    def move_start(self, name: str, index: int, offset: int) -> int:
        """Delete a partition's records below `offset`. Return the new start offset. Raises
        LogError, and KeyError if the topic is deleted concurrently.
        """
        # A move that completes concurrently would restore the records.
        with self.moves.lock:
            partition_log = self._topics.entries[name].logs[index]
            start = partition_log.move_start(offset, self._now_ms())
            with self._hints.lock:
                # After the deletion, the row would apply to the next topic with this name.
                if self.get(name, index) is not partition_log:
                    raise KeyError(name)
                # The records must not reappear after a crash.
                dir_index = self._topics.directory_of(partition_log)
                self._hints.write_start(dir_index, (name, index), partition_log)
            return start

    def describe(self) -> list:
        """Return (path, offline, [(topic, partition, Log)]) per log directory."""
        rows: list[tuple[str, bool, list]] = [
            (path, not self.disks.online(number), [])
            for number, path in enumerate(self.paths)]
        for number, name, _, index, partition_log in self._topics.with_directories():
            if not self.lacks_files(name, index):
                rows[number][2].append((name, index, partition_log))
        return rows

    def _open(self, dir_index: int, name: str, topic_id: bytes, index: int, role, config,
              checkpoint, trusted: bool) -> bool:
        """Open a partition's Log and apply its role. Return False if it cannot be opened."""
        assert self.get(name, index) is None, (name, index)  # A partition has one Log.
        self.disks.loads[dir_index] += 1
        where = (self.directories[dir_index], name, index, topic_id, config)
        try:
            if not trusted:
                startup_scan.make_way(self.disks, dir_index, f"{name}-{index}", topic_id)
            if not self._hints.is_free(dir_index, (name, index)):
                raise OSError("checkpoints of a deleted topic have its name")
            partition_log = partition_logs.open_checked(
                where, role, checkpoint, trusted, self._now_ms())
        except (LogError, OSError) as error:
            log.error("a partition is offline", extra={
                "topic": name, "partition": index, "reason": str(error)})
            if not self.disks.online(dir_index):
                self._offline.lose(name, index)
            elif isinstance(error, (Shortage, OSError)) or (
                    checkpoint is partition_logs.NOTHING_KNOWN and not trusted):
                # The shortage may end, or the name may become free: try again later.
                self._offline.postponed[name, index] = Postponed(dir_index, role, checkpoint,
                                                                 trusted)
            else:
                # Another replica must lead.
                self._offline.lose(name, index, has_directory=True)
            return False
        if dir_index:
            self._topics.directories[partition_log] = dir_index
        partition_logs.assume(partition_log, role)
        self._topics.publish(name, index, partition_log, config)
        return True

    def _open_postponed(self) -> list:
        """Open partitions whose first attempt failed for a shortage. Return their topics."""
        changed = []
        for (name, index), how in list(self._offline.postponed.items()):
            if self.directories[how.directory].short_of_space:
                continue
            # With the lock held, the topic cannot be deleted.
            with self.moves.lock:
                if name not in self._topics.entries \
                        or self._offline.postponed.get((name, index)) is not how:
                    continue
                topic_id, _, overrides = self._topics.entries[name]
                del self._offline.postponed[name, index]
                self.disks.loads[how.directory] -= 1
                if self._open(how.directory, name, topic_id, index, how.role,
                              self._topics.config(overrides), how.checkpoint, how.trusted):
                    self._hints.set_read(how.directory, (name, index))
                    changed.append(name)
        return changed

    def _set_aside(self, where: dict) -> list:
        """Rename partition directories without a topic in the image. They are not deleted. Return
        the paths of deleted partitions.
        """
        for name, number in where.items():
            self.disks.set_aside(number, name)
        return [os.path.join(self.paths[number], name)
                for number, listing in enumerate(self.disks.listings) for name in listing
                if name.endswith("-delete")]

    def upkeep(self, now_ms: int) -> None:
        """Run due retention, rolls, flushes and checkpoints. Call about once per second. Blocks."""
        self._upkeep.run(now_ms)
