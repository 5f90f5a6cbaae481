"""Branches: topics whose partitions start as hard links to the segments of another topic.

Owns: directories `<topic>-<partition>.<topic id>-stray` with a file `branch`, until they are
  published.
Invariants: a branch is prepared completely under names without a topic, and published after its
  topic is in the metadata log; after a crash, take_left_over() publishes or discards it; a linked
  file is never modified in place, by either topic (csrc: segment_is_shared); a branch ends exactly
  before the requested offset, even within a batch; open transactions are aborted in the branch,
  because no producer could end them there.
Source: none; Kafka has no equivalent. Kafka ignores directories with this name.
"""

import logging
import os
import re
import struct
from collections import namedtuple

from pylog._native.log import producer_state, replica_move
from pylog._native.log.log import CorruptLog, Log, LogError
from pylog._native.records import batch
from pylog.log import partition_logs
from pylog.log.checkpoint_files import sync_directory
from pylog.log.log_directories import remove_tree

MARK = "branch"
STRAY = re.compile(r"(.+)-(\d+)\.([0-9a-f]{32})-stray")
NAME_BYTES_MAX = 255
# The cleaner or retention may change the list of segments during an attempt.
ATTEMPTS = 16
NEVER = 2**63 - 1
READ_BYTES = 1 << 20

log = logging.getLogger("pylog.log.branches")

Cut = namedtuple("Cut", ("offset", "time_ms"), defaults=(None, None))
Cut.__doc__ = "The end of a branch: an offset, a time, or the source's end (both None)."

Part = namedtuple("Part", ("dir_index", "path", "checkpoint"))
Part.__doc__ = "One prepared partition. place: number of its log directory."

_SEGMENT = struct.Struct("=qqq")
_ABORTED = struct.Struct(">hqqqq")
_PRODUCER = struct.Struct(">qhiqiqiq")


def prepare(sources: list, name: str, topic_id: bytes, cut: Cut, config: dict,
            now_ms: int) -> list:
    """Prepare a branch and return its Parts, on disk. Raises LogError, OSError; leaves no files
    then.

    sources: [(Log or None, number of its log directory)] by partition.
    """
    parts: list = []
    try:
        for index, (source, dir_index) in enumerate(sources):
            if source is None:
                raise OSError(f"partition {index} of the source is not open")
            path = os.path.join(source.log_dir.path, _directory(name, index, topic_id))
            try:
                checkpoint = _prepare_partition(source, path, name, index, topic_id, cut, config,
                                                now_ms)
            except (LogError, OSError):
                remove_tree(_rename_for_deletion(path))
                raise
            parts.append(Part(dir_index, path, checkpoint))
        for root in {os.path.dirname(part.path) for part in parts}:
            sync_directory(root)
    except (LogError, OSError):
        discard(parts)
        raise
    return parts


def _prepare_partition(source: Log, path: str, name: str, index: int, topic_id: bytes, cut: Cut,
                 config: dict, now_ms: int) -> partition_logs.Checkpoint:
    """Link one partition's segments into a new directory."""
    root = os.path.dirname(path)
    replica_move.seal(source, now_ms)
    source.flush()
    start, whole = source.start_offset, source.flushed_offset
    end = max(start, whole if cut == Cut() else min(whole, _offset_of(source, cut)))
    for _ in range(ATTEMPTS):
        remove_tree(path)
        os.mkdir(path)
        with open(os.path.join(path, MARK), "xb"):
            pass
        if _link(source, os.path.join(root, f"{source.topic}-{source.partition}"), path, end):
            break
    else:
        raise OSError(f"the segments of {source.topic}-{source.partition} changed during every "
                      f"attempt")
    # An empty branch has no segment that could be on disk.
    partition_log = Log.open(
        source.log_dir, name, index, topic_id, config, now_ms=now_ms,
        recovery_point=whole if end > start else end, log_start_offset=start, high_watermark=end,
        directory=os.path.basename(path))
    try:
        _end_before(partition_log, source, end, now_ms)
        _abort_open(partition_log, source.leader_epoch, now_ms)
        partition_log.advance_high_watermark(partition_log.end_offset)
        if partition_log.start_offset < start:
            partition_log.move_start(start, now_ms)
        # A Kafka broker that uses the directory later appends to the last segment, even if it is
        # linked. So seal it.
        replica_move.seal(partition_log, now_ms)
        partition_log.settle(now_ms)
        checkpoint = partition_logs.flushed(partition_log)
    finally:
        partition_log.release()
    sync_directory(path)
    return checkpoint


def publish(name: str, parts: list) -> None:
    """Rename prepared partitions to their final names. Call after their topic is in the metadata
    log.
    """
    for index, part in enumerate(parts):
        os.unlink(os.path.join(part.path, MARK))
        os.rename(part.path, os.path.join(os.path.dirname(part.path), f"{name}-{index}"))
    for root in {os.path.dirname(part.path) for part in parts}:
        sync_directory(root)


def discard(parts: list) -> None:
    for part in parts:
        remove_tree(_rename_for_deletion(part.path))


def take_left_over(disks, names: dict, dir_indexes: dict) -> list:
    """Publish branches of existing topics after a crash. Return the paths to delete.

    disks: Directories, with their listings. names: topic id -> name. places: partition directory ->
    number of its log directory; updated. Raises StartError.
    """
    unwanted = []
    for number, listing in enumerate(disks.listings):
        for found in filter(None, map(STRAY.fullmatch, listing)):
            path = os.path.join(disks.paths[number], found[0])
            if not found[0].isascii() or not os.path.isdir(path):
                continue
            name = names.get(bytes.fromhex(found[3]))
            directory = f"{name}-{int(found[2])}"
            mark = os.path.join(path, MARK)
            is_marked = os.path.exists(mark)
            if name is not None and directory not in dir_indexes:
                if is_marked:
                    os.unlink(mark)
                # The new name must be on disk before the partition serves.
                if disks.rename_only_copy(number, found[0], directory):
                    dir_indexes[directory] = number
                    log.info("a branch was finished", extra={"directory": directory})
            # The mark is the first file of a branch, but a kill may have come before it.
            elif is_marked or not os.listdir(path):
                unwanted.append(_rename_for_deletion(path))
    return unwanted


def _rename_for_deletion(path: str) -> str:
    """Rename a directory so that every start deletes it: a kill during deletion may leave it
    without its mark.
    """
    doomed = path.removesuffix("stray") + "delete"
    try:
        os.rename(path, doomed)
    except OSError:
        return path
    return doomed


def _directory(name: str, index: int, topic_id: bytes) -> str:
    tail = f"-{index}.{topic_id.hex()}-stray"
    return name[:NAME_BYTES_MAX - len(tail)] + tail


def _offset_of(source: Log, cut: Cut) -> int:
    if cut.offset is not None:
        return cut.offset
    found = source.offset_for_time(cut.time_ms)
    return NEVER if found is None else found[0]


# ---- files ----------------------------------------------------------------------------------


def _sealed(source: Log, end: int) -> list:
    """Return (base offset, size) of sealed segments with records below `end`."""
    rows = [row[:2] for row in _SEGMENT.iter_unpack(source.segments())]
    return [(base, size) for base, size in rows[:-1] if size and base < end]


def _link(source: Log, folder: str, path: str, end: int) -> bool:
    """Link or copy a partition's files. Return False if its segments changed during the call."""
    # Imported here because it adds 3 ms to startup.
    import shutil

    wanted = _sealed(source, end)
    try:
        for base, size in wanted:
            os.link(os.path.join(folder, f"{base:020d}.log"),
                    os.path.join(path, f"{base:020d}.log"))
            if os.stat(os.path.join(path, f"{base:020d}.log")).st_size != size:
                return False
            for extension in ("index", "timeindex"):
                name = f"{base:020d}.{extension}"
                # A missing index is rebuilt from the batches.
                if os.path.exists(os.path.join(folder, name)):
                    os.link(os.path.join(folder, name), os.path.join(path, name))
            _copy_aborted(os.path.join(folder, f"{base:020d}.txnindex"), path, end)
        for name in os.listdir(folder):
            # Copied, because they are small and modified in place.
            if name == "leader-epoch-checkpoint" or name.endswith(".snapshot") \
                    and name[:20].isdigit() and int(name[:20]) <= source.end_offset:
                shutil.copyfile(os.path.join(folder, name), os.path.join(path, name))
    except FileNotFoundError:
        return False
    return _sealed(source, end) == wanted


def _copy_aborted(file: str, path: str, end: int) -> None:
    """Copy the aborted transactions that end before the branch does."""
    if not os.path.exists(file):
        return
    with open(file, "rb") as read:
        data = read.read()
    whole = data[:len(data) // _ABORTED.size * _ABORTED.size]
    with open(os.path.join(path, os.path.basename(file)), "wb") as written:
        for entry in _ABORTED.iter_unpack(whole):
            if entry[3] < end:
                written.write(_ABORTED.pack(*entry))


# ---- the end --------------------------------------------------------------------------------


def _end_before(partition_log: Log, source: Log, end: int, now_ms: int) -> None:
    """Truncate to whole batches, then append the records of the last batch below `end` again."""
    if partition_log.end_offset <= end:
        return
    partition_log.truncate(end)
    at = partition_log.end_offset
    if at >= end:
        return
    # The batch may start below the log's start offset, where reads fail.
    try:
        data = source.read(max(at, source.start_offset), 1, at_least_one=True)
    except CorruptLog:
        data = b""
    # The rest below `end` is damaged, so the branch ends before it.
    if not data or not batch.crc_ok(data):
        return
    _, head = next(iter(batch.walk(data)))
    remaining = [row for row in batch.records(data) if at <= row[0] < end]
    for run in _runs(remaining):
        first = run[0][0]
        sequence = head.base_sequence
        if sequence >= 0:
            sequence = (sequence + first - head.base_offset) % 2**31
        data = batch.build(
            [(key, value, timestamp, headers) for _, timestamp, key, value, headers in run],
            base_offset=first, codec=head.attributes & batch.CODEC_MASK,
            producer_id=head.producer_id, producer_epoch=head.producer_epoch,
            base_sequence=sequence,
            attributes=head.attributes & ~batch.CODEC_MASK, leader_epoch=head.leader_epoch)
        partition_log.append_as_follower(data, now_ms)


def _runs(rows: list):
    """Yield runs of consecutive offsets: a compacted batch has gaps, but a built batch cannot."""
    run: list = []
    for row in rows:
        if run and row[0] != run[-1][0] + 1:
            yield run
            run = []
        run.append(row)
    if run:
        yield run


def _abort_open(partition_log: Log, leader_epoch: int, now_ms: int) -> None:
    """Abort the open transactions of the branch, with a marker for each."""
    state = partition_log.producers(now_ms)
    rows = [row for row in _PRODUCER.iter_unpack(state[producer_state.HEAD_BYTES:]) if row[7] >= 0]
    for producer_id, epoch, _, _, _, _, coordinator_epoch, _ in sorted(
            rows, key=lambda row: row[7]):
        end = partition_log.end_offset
        # Marker key: version, type 0 (abort). Value: version, coordinator epoch.
        marker = batch.build(
            [(struct.pack(">hh", 0, 0), struct.pack(">hi", 0, max(0, coordinator_epoch)), now_ms,
              ())], base_offset=end, producer_id=producer_id, producer_epoch=epoch,
            attributes=batch.CONTROL | batch.TRANSACTIONAL, leader_epoch=leader_epoch)
        partition_log.append_as_follower(marker, now_ms)
