"""Moves replicas between log directories of this node.

Owns: the copying thread, the incomplete copies.
Invariants: until a move is finished, the partition stays in its directory, and an abandoned copy is
  deleted; at most one thread accesses a copy; after each step, the thread pauses for as long as its
  bytes take at the configured rate, which may change in between; a rate of 0 stops all moves; a
  copy has the same records as its source, also after a truncation, and the same role and high
  watermark.
Source: KIP-73, KIP-113; Kafka's directory name `<topic>-<partition>.<id>-future`.
"""

import logging
import os
import re
import threading

from pylog import supervisor
from pylog._native.log import replica_move
from pylog._native.log.log import LogError

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
STEP_BYTES = 8 << 20
PAUSE_S = 0.02
CHECK_INTERVAL_S = 0.5  # How often the rate is checked again.
NAME_BYTES_MAX = 255
FUTURE = re.compile(r"(.+)\.[0-9a-f]{32}-future")
_LOG = re.compile(r"\d{20}\.log")

log = logging.getLogger("pylog.log.moves")


def furthest(folders: list) -> str:
    """Return the copy with the highest end offset, for a partition that has only copies. After a
    power failure, a deleted copy of an earlier move may reappear.
    """
    def end(folder):
        names = [name for name in os.listdir(folder) if _LOG.fullmatch(name)]
        last = max(names, default="")
        return last, os.path.getsize(os.path.join(folder, last)) if last else 0
    return max(folders, key=end)


class Move:
    """Move of one partition: `source` serves requests while `target` in log directory number
    `place` is filled.
    """

    def __init__(self, topic: str, partition: int, dir_index: int, source, target):
        self.topic, self.partition, self.dir_index = topic, partition, dir_index
        self.source, self.target = source, target
        self.ready = False
        self.has_left = False  # the source's directory has been renamed
        self.damaged_bytes = 0  # copied unchanged: not valid batches

    @property
    def lag(self) -> int:
        """Return the number of offsets that the copy lacks."""
        return max(0, self.source.end_offset - self.target.end_offset)


class Moves:
    """All moves of one node. rate: returns bytes per second for all moves together; None:
    unlimited.
    """

    def __init__(self, now_ms, rate=lambda: None):
        self._now_ms = now_ms
        self._rate = rate
        self._moves: dict[tuple, Move] = {}
        self.lock = threading.RLock()  # prevents the completion of moves
        self._stopping = threading.Event()
        self._thread = None

    def all(self) -> list[Move]:
        return list(self._moves.values())

    def find(self, topic: str, partition: int) -> Move | None:
        return self._moves.get((topic, partition))

    def begin(self, move: Move) -> None:
        with self.lock:
            self._moves[move.topic, move.partition] = move
            if self._thread is None or not self._thread.is_alive():
                self._thread = supervisor.thread("log-mover", self._run, self._stopping)
                self._thread.start()

    def cancel(self, topic: str, partition: int) -> None:
        """Cancel a move and delete its copy."""
        with self.lock:
            self._abandon(self._moves.get((topic, partition)))

    def finish_ready(self, finish) -> list[Move]:
        """Call finish_one for each move whose copy has caught up. If it raises, the move continues
        while its source has its name. No move is cancelled during the call. Return the moves for
        which finish_one returned True.
        """
        done = []
        with self.lock:
            for move in [move for move in self._moves.values() if move.ready]:
                del self._moves[move.topic, move.partition]
                try:
                    if finish(move):
                        done.append(move)
                except Exception as error:
                    log.error("a replica could not be moved", extra={
                        "topic": move.topic, "partition": move.partition, "reason": str(error)},
                        exc_info=None if isinstance(error, LogError) else error)
                    if not (move.has_left or move.source.offline or move.target.offline):
                        self.begin(move)
        return done

    def abandon(self, move: Move) -> None:
        """Delete the copy of a move, from within finish_one."""
        self._abandon(move)

    def stop(self) -> None:
        self._stopping.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        with self.lock:
            for move in self.all():
                self._abandon(move)

    def _run(self) -> None:
        owed = 0.0  # bytes to pause for
        while not self._stopping.is_set():
            with self.lock:
                if not self._moves:
                    # The next begin() starts a new thread.
                    self._thread = None
                    return
            rate = self._rate()
            if rate is not None and (owed > 0 or rate == 0):
                # Throttle to the configured rate.
                pause_s = min(owed / rate, CHECK_INTERVAL_S) if rate else CHECK_INTERVAL_S
                self._stopping.wait(pause_s)
                owed -= rate * pause_s
                continue
            moved = 0
            for move in self.all():
                with self.lock:
                    if move in self._moves.values():
                        moved += self._step(move)
            owed = float(moved)
            if moved < STEP_BYTES:
                self._stopping.wait(PAUSE_S)

    def _step(self, move: Move) -> int:
        before = move.target.size_bytes
        try:
            more, damaged = replica_move.copy(move.source, move.target, STEP_BYTES, self._now_ms())
            move.damaged_bytes += damaged
            if not more and not move.ready:
                # Copy and flush the bulk now: hand_over() blocks appends while it copies the rest.
                move.target.flush()
                move.ready = True
        except LogError as error:
            log.error("a replica cannot be moved", extra={
                "topic": move.topic, "partition": move.partition, "reason": str(error)})
            self._abandon(move)
            return 0
        except Exception:
            supervisor.report("log-mover", "a replica cannot be moved", topic=move.topic,
                              partition=move.partition)
            self._abandon(move)
            return 0
        return move.target.size_bytes - before

    def _abandon(self, move: Move | None) -> None:
        if move is None:
            return
        self._moves.pop((move.topic, move.partition), None)
        try:
            move.target.delete(self._now_ms())
        except LogError as error:
            # The next start deletes it.
            log.warning("a copy could not be removed", extra={"reason": str(error)})


def cut(logs, topic_id: bytes, index: int, partition_log, how, leader_epoch: int) -> None:
    """Run Checkpointer.cut() on a log of `logs`, a LogManager. If the log is being moved, its copy
    starts again, so that both have the same records.
    """
    moving = logs.moves
    with moving.lock:
        move = moving.find(partition_log.topic, index)
        if move is None or move.source is not partition_log or how == (None, None):
            logs.checkpointer.cut(topic_id, index, partition_log, how, leader_epoch)
            return
        moving.cancel(move.topic, index)
        try:
            logs.checkpointer.cut(topic_id, index, partition_log, how, leader_epoch)
        finally:
            try:
                logs.move(move.topic, index, move.dir_index)
            except LogError as error:
                log.error("a replica cannot be moved", extra={
                    "topic": move.topic, "partition": index, "reason": str(error)})


def directory_name(topic: str, partition: int | str, kind: str) -> str:
    """Return a directory name of kind "future", "delete" or "stray". Shortens a long topic name."""
    tail = f"-{partition}.{os.urandom(16).hex()}-{kind}"
    return topic[:NAME_BYTES_MAX - len(tail)] + tail


def _take_back(move: Move) -> bool:
    """Restore the source's directory name. Return True on success. Needed even if renaming it
    failed: the rename may have taken effect, and the next start deletes a directory with the other
    name.
    """
    return _restore_name(move.source, f"{move.topic}-{move.partition}")


def _restore_name(partition_log, name: str) -> bool:
    """Rename a log's directory. Return True on success."""
    try:
        replica_move.rename(partition_log, name)
    except LogError as error:
        log.error("a directory could not be renamed", extra={"reason": str(error)})
        return False
    return True


def _rename_copy(move: Move, role: tuple) -> None:
    """Rename the copy to the partition's name. Raises LogError after restoring the source's name
    and role.

    If neither directory can be renamed, the copy serves from its own directory: it has all records,
    and the next start renames it.
    """
    try:
        replica_move.rename(move.target, f"{move.topic}-{move.partition}")
    except LogError as error:
        if move.target.offline:
            # The rename may have taken effect, and a start refuses two directories of one name.
            _restore_name(move.target, directory_name(move.topic, move.partition, "future"))
        if _take_back(move):
            move.has_left = False
            _assume(move.source, *role)
            raise
        log.error("a moved replica keeps the directory of its copy until the next start", extra={
            "topic": move.topic, "partition": move.partition,
            "directory": move.target.log_dir.path, "reason": str(error)})


def _assume(partition_log, leads: bool, leader_epoch: int, in_sync_count: int) -> None:
    """Apply the source's role to a log."""
    if leads:
        partition_log.become_leader(leader_epoch, in_sync_count)
    else:
        # Only replicated partitions have followers. Consumers in its rack may read from it
        # (KIP-392).
        partition_log.become_follower(leader_epoch, readable=True)


def finish(move: Move, now_ms: int) -> None:
    """Replace the source by the copy. Raises LogError: the source remains in use unless it was
    renamed.

    From the hand-over on, the source accepts no appends but remains readable for threads that still
    refer to it. New requests find only the copy. The caller's lock prevents changes of its role and
    truncations; a follower's fetcher does not write to it.
    """
    start = move.source.start_offset
    role = move.source.is_leader, move.source.leader_epoch, move.source.in_sync_count
    move.damaged_bytes += replica_move.hand_over(move.source, move.target, now_ms)
    move.target.advance_high_watermark(move.source.high_watermark)
    try:
        # Releases requests that wait for a flush.
        move.source.flush()
    except LogError as error:
        log.error("a flush failed", extra={"reason": str(error)})
    # A follower fetches missing records from the leader again.
    assert move.target.end_offset == move.source.end_offset or not role[0], (
        move.topic, move.partition, move.target.end_offset, move.source.end_offset)
    try:
        replica_move.rename(move.source, directory_name(move.topic, move.partition, "delete"))
    except LogError:
        _take_back(move)
        _assume(move.source, *role)
        raise
    move.has_left = True
    _rename_copy(move, role)
    _assume(move.target, *role)
    if start > move.target.start_offset:
        move.target.move_start(start, now_ms)
    details = {"topic": move.topic, "partition": move.partition,
               "directory": move.target.log_dir.path}
    if move.damaged_bytes:
        log.warning("a damaged replica was moved with its damaged range",
                    extra={**details, "damaged_bytes": move.damaged_bytes})
    else:
        log.info("a replica was moved", extra=details)
