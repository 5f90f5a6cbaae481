"""Opens, closes and maintains the native Log of one partition: its settings and checkpoints.

Owns: nothing; the Log owns its files.
Invariants: without a trusted checkpoint, the log verifies its files.
Source: csrc/log/log.h.
"""

import base64
import logging
import os
from collections import namedtuple

from pylog._native.log.log import CorruptLog, Log, LogDeleted, LogError
from pylog.config import ConfigError, validate_topic_config
from pylog.log import checkpoint_files

NEVER = 2**63 - 1
log = logging.getLogger("pylog.log")

# Broker settings that apply to logs in addition to topic settings.
BROKER_SETTINGS = ("consume.flushed.records.only", "producer.id.expiration.ms",
                   "decompressed.batch.bytes.max",
                   "records.validate.enable", "log.flush.acks.all.enable",
                   "replica.flush.before.fetch.enable", "replica.lag.time.max.ms")

Checkpoint = namedtuple("Checkpoint", (
    "recovery_point", "log_start_offset", "high_watermark", "log_end_offset", "last_epoch",
    "segments"))
Checkpoint.__doc__ = """The state of a partition log at a clean stop or at its last flush.

segments: result of Log.segments. After a flush without a stop, log_end_offset and last_epoch are -1
and segments is empty.
"""

Role = namedtuple("Role", (
    "leads", "leader_epoch", "in_sync_count", "replicated", "is_eligible"), defaults=(False, True))
Role.__doc__ = """A node's role in a partition. in_sync_count: size of the ISR, its own replica
included. replicated: there are other replicas, set with Log.set_replicas. is_eligible: the
controller may elect it: it is in the ISR, an eligible leader replica or the last known one."""

NOTHING_KNOWN = Checkpoint(0, -1, -1, -1, -1, b"")


def native_config(topic_settings: dict, settings) -> dict:
    """Return all settings of a topic's logs, by Kafka's names."""
    return {**topic_settings, **{name: settings[name] for name in BROKER_SETTINGS}}


def usable(overrides: dict) -> dict:
    """Return the valid overrides: a metadata log of another version may contain unknown settings.
    """
    valid = {}
    for name, text in overrides.items():
        try:
            validate_topic_config(name, text)
            valid[name] = text
        except ConfigError as error:
            log.warning("an invalid topic setting is ignored", extra={"reason": str(error)})
    return valid


def open_log(directory, topic: str, partition: int, topic_id: bytes, config: dict,
             checkpoint: Checkpoint, trusted: bool, now_ms: int) -> Log:
    """Open or create a partition's log.

    trusted: the checkpoint is from a clean shutdown, so no file is read; otherwise the log is
    recovered from the recovery point. Raises LogError.
    """
    if trusted:
        return Log.open(directory, topic, partition, topic_id, config, now_ms=now_ms,
                        recovery_point=checkpoint.recovery_point,
                        log_start_offset=checkpoint.log_start_offset,
                        high_watermark=checkpoint.high_watermark, clean=True,
                        segments=checkpoint.segments, log_end_offset=checkpoint.log_end_offset,
                        last_epoch=checkpoint.last_epoch)
    return Log.open(directory, topic, partition, topic_id, config, now_ms=now_ms,
                    recovery_point=checkpoint.recovery_point,
                    log_start_offset=checkpoint.log_start_offset,
                    high_watermark=checkpoint.high_watermark)


def without_files(stored: Checkpoint) -> Checkpoint:
    """Return the checkpoint of a log whose directory is missing."""
    return NOTHING_KNOWN._replace(log_start_offset=stored.log_start_offset)


def must_have_files(stored: Checkpoint, role: Role, config: dict) -> bool:
    """Return True if a replica without files must stay offline: it had records and could become
    leader without them, and the topic does not allow unclean elections.
    """
    return (role.leads or role.is_eligible) and not config["unclean.leader.election.enable"] \
        and stored.recovery_point > max(stored.log_start_offset, 0)


def open_checked(where: tuple, role: Role, checkpoint: Checkpoint, trusted: bool,
                 now_ms: int) -> Log:
    """Open a log as open_log() does. If another program removed its segments, open it empty, unless
    must_have_files(). Raises LogError, OSError.

    where: open_log()'s arguments up to the settings.
    """
    directory, name, index, topic_id, config = where
    try:
        return open_log(directory, name, index, topic_id, config, checkpoint, trusted, now_ms)
    except CorruptLog:
        if trusted or must_have_files(checkpoint, role, config) or any(
                file.endswith((".log", ".log.swap"))
                for file in os.listdir(os.path.join(directory.path, f"{name}-{index}"))):
            raise
    log.error("a partition continues without its records, because its files are missing",
              extra={"topic": name, "partition": index})
    return open_log(directory, name, index, topic_id, config, without_files(checkpoint), False,
                    now_ms)


def after_crash(stored: Checkpoint | None, hinted: Checkpoint | None) -> Checkpoint:
    """Combine checkpoints of the store and the text files, either of which may be newer."""
    if stored is None or hinted is None:
        return stored or hinted or NOTHING_KNOWN
    return NOTHING_KNOWN._replace(
        recovery_point=min(stored.recovery_point, hinted.recovery_point),
        log_start_offset=max(stored.log_start_offset, hinted.log_start_offset),
        high_watermark=max(stored.high_watermark, hinted.high_watermark))


def topic_id_in(path: str) -> bytes | None:
    """Return the topic id in a directory's partition.metadata, None if there is none."""
    try:
        with open(os.path.join(path, "partition.metadata"), encoding="ascii") as file:
            fields = dict(line.split(": ", 1) for line in file.read().splitlines())
        found = base64.urlsafe_b64decode(fields["topic_id"] + "==")
        # A power failure may have left an incomplete file.
        return found if len(found) == 16 else None
    except (OSError, ValueError, KeyError):
        return None


def assume(partition_log, role: Role) -> None:
    """Apply a role from the image to a log, including the ISR size."""
    if not role.leads:
        if partition_log.is_leader or partition_log.leader_epoch != role.leader_epoch:
            # Consumers in its rack may read from it (KIP-392).
            partition_log.become_follower(role.leader_epoch, readable=role.replicated)
        return
    in_sync_count = max(role.in_sync_count, 1)
    leads = partition_log.is_leader and partition_log.leader_epoch == role.leader_epoch
    if role.replicated:
        if not leads:
            partition_log.become_leader(role.leader_epoch, in_sync_count, replicated=True)
    elif not (leads and partition_log.in_sync_count == in_sync_count):
        partition_log.become_leader(role.leader_epoch, in_sync_count)


def delete(partition_log, now_ms: int) -> None:
    """Rename a log's directory. Its files are deleted later."""
    try:
        partition_log.delete(now_ms)
    except LogError as error:
        # The next start finds a directory without a topic.
        log.error("a partition could not be deleted", extra={
            "topic": partition_log.topic, "partition": partition_log.partition,
            "reason": str(error)})


def tend(logs, now_ms: int, is_closing) -> None:
    """Run due retention, rolls and flushes on each log, until is_closing()."""
    for partition_log in logs:
        if is_closing():
            return
        try:
            if not partition_log.offline:
                partition_log.upkeep(now_ms)
        except LogDeleted:
            continue
        except LogError as error:
            log.error("upkeep failed", extra={"reason": str(error)})


def expire_producers(logs, now_ms: int, is_closing) -> None:
    """Forget the producers of each log that have been idle for too long, until is_closing()."""
    for partition_log in logs:
        if is_closing():
            return
        try:
            partition_log.expire_producers(now_ms)
        except LogDeleted:
            continue


def at_rest(log) -> Checkpoint:
    """Return the checkpoint of a log at clean shutdown."""
    # An open transaction requires recovery, which computes the last stable offset.
    if log.open_transaction >= 0:
        return flushed(log)
    found = Checkpoint(log.recovery_point, log.start_offset, log.high_watermark, log.end_offset,
                       log.last_epoch, log.segments())
    assert found.log_start_offset <= found.log_end_offset, found[:5]
    assert found.recovery_point <= found.log_end_offset, found[:5]
    return found


def flushed(log) -> Checkpoint:
    """Return the checkpoint of an open log: the state that is on disk."""
    return Checkpoint(log.recovery_point, log.start_offset, log.high_watermark, -1, -1, b"")


def write_checkpoint_files(path: str, rows) -> None:
    """Write Kafka's checkpoint files of one log directory. rows: [(topic, index, Checkpoint)].
    Raises OSError.
    """
    checkpoint_files.write_offsets(os.path.join(path, checkpoint_files.RECOVERY_POINT), [
        (name, index, known.recovery_point) for name, index, known in rows])
    checkpoint_files.write_offsets(os.path.join(path, checkpoint_files.HIGH_WATERMARK), [
        (name, index, known.high_watermark) for name, index, known in rows
        if known.high_watermark >= 0])
    checkpoint_files.write_offsets(os.path.join(path, checkpoint_files.LOG_START), [
        (name, index, known.log_start_offset) for name, index, known in rows
        if known.log_start_offset > 0])
