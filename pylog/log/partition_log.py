"""One partition's log as Python opens and closes it: settings and checkpoints in, a native Log out.

Owns: nothing; the Log owns its files.
Invariants: (1) a checkpoint that is not trusted makes the log look at its files.
Source: csrc/log/log.h.
"""

import base64
import logging
import os
from collections import namedtuple

from pylog._native.log import Log, LogDeleted, LogError
from pylog.config import ConfigError, validate_topic_config
from pylog.log import checkpoint_files as files

NEVER = 2**63 - 1
log = logging.getLogger("pylog.log")

# What the broker's settings add to a topic's for its logs.
BROKER_SETTINGS = ("consume.flushed.records.only", "producer.id.expiration.ms",
                   "decompressed.batch.bytes.max",
                   "records.validate.enable", "log.flush.acks.all.enable",
                   "replica.flush.before.fetch.enable", "replica.lag.time.max.ms")

Checkpoint = namedtuple("Checkpoint", (
    "recovery_point", "log_start_offset", "high_watermark", "log_end_offset", "last_epoch",
    "segments"))
Checkpoint.__doc__ = """What a partition log looked like at a clean stop or at its last flush.

segments: as Log.segments gives them. After a mere flush log_end_offset and last_epoch are -1 and
segments is empty.
"""

Role = namedtuple("Role", ("leads", "leader_epoch", "in_sync_count", "replicated"),
                  defaults=(False,))
Role.__doc__ = """A node's part in a partition. in_sync_count: of the ISR, its own replica included.
replicated: there are other replicas, of which the log is told besides (Log.set_replicas)."""

NOTHING_KNOWN = Checkpoint(0, -1, -1, -1, -1, b"")


def native_config(topic_settings: dict, settings) -> dict:
    """All settings of a topic's logs, by Kafka's names."""
    return {**topic_settings, **{name: settings[name] for name in BROKER_SETTINGS}}


def usable(overrides: dict) -> dict:
    """What can be applied: a log that another version wrote may hold settings unknown here."""
    valid = {}
    for name, text in overrides.items():
        try:
            validate_topic_config(name, text)
            valid[name] = text
        except ConfigError as error:
            log.warning("a topic setting is ignored", extra={"reason": str(error)})
    return valid


def open_log(directory, topic: str, partition: int, topic_id: bytes, config: dict,
             checkpoint: Checkpoint, trusted: bool, now_ms: int) -> Log:
    """Opens or creates a partition's log.

    trusted: the checkpoint is a clean stop's, no file is looked at; else the log is read from the
    recovery point on. Raises LogError's kinds.
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
    """What holds of a log whose directory is gone: nothing of it is on disk."""
    return NOTHING_KNOWN._replace(log_start_offset=stored.log_start_offset)


def after_crash(stored: Checkpoint | None, hinted: Checkpoint | None) -> Checkpoint:
    """What holds when either the store or the text files may be newer."""
    if stored is None or hinted is None:
        return stored or hinted or NOTHING_KNOWN
    return NOTHING_KNOWN._replace(
        recovery_point=min(stored.recovery_point, hinted.recovery_point),
        log_start_offset=max(stored.log_start_offset, hinted.log_start_offset),
        high_watermark=max(stored.high_watermark, hinted.high_watermark))


def topic_id_in(path: str) -> bytes | None:
    """The topic id that a directory's partition.metadata names; None when there is none."""
    try:
        with open(os.path.join(path, "partition.metadata"), encoding="ascii") as file:
            fields = dict(line.split(": ", 1) for line in file.read().splitlines())
        found = base64.urlsafe_b64decode(fields["topic_id"] + "==")
        # A power cut may have left a part of it.
        return found if len(found) == 16 else None
    except (OSError, ValueError, KeyError):
        return None


def assume(partition_log, role: Role) -> None:
    """Puts a log into its role of the image, the size of the ISR included."""
    if not role.leads:
        if partition_log.is_leader or partition_log.leader_epoch != role.leader_epoch:
            # Consumers in its rack may be sent here (KIP-392).
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
    """Renames a log's directory away; its files go later."""
    try:
        partition_log.delete(now_ms)
    except LogError as error:
        # The next start finds a directory that no topic has.
        log.error("a partition could not be deleted", extra={
            "topic": partition_log.topic, "partition": partition_log.partition,
            "reason": str(error)})


def tend(logs, now_ms: int, is_closing) -> None:
    """Retention, rolls and flushes that are due, of each log, until is_closing()."""
    for partition_log in logs:
        if is_closing():
            return
        if partition_log.log_dir.offline:
            continue
        try:
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
    """The checkpoint of a log that was closed for a clean stop."""
    # The last stable offset must be known before reads: recovery finds the open transaction.
    if log.open_transaction >= 0:
        return flushed(log)
    found = Checkpoint(log.recovery_point, log.start_offset, log.high_watermark, log.end_offset,
                       log.last_epoch, log.segments())
    assert found.log_start_offset <= found.log_end_offset, found[:5]
    assert found.recovery_point <= found.log_end_offset, found[:5]
    return found


def flushed(log) -> Checkpoint:
    """The checkpoint of a log in use: what a start after a crash may rely on."""
    return Checkpoint(log.recovery_point, log.start_offset, log.high_watermark, -1, -1, b"")


def write_checkpoint_files(path: str, rows) -> None:
    """Kafka's own for one log directory. rows: [(topic, index, Checkpoint)]. Raises OSError."""
    files.write_offsets(os.path.join(path, files.RECOVERY_POINT), [
        (name, index, known.recovery_point) for name, index, known in rows])
    files.write_offsets(os.path.join(path, files.HIGH_WATERMARK), [
        (name, index, known.high_watermark) for name, index, known in rows
        if known.high_watermark >= 0])
    files.write_offsets(os.path.join(path, files.LOG_START), [
        (name, index, known.log_start_offset) for name, index, known in rows
        if known.log_start_offset > 0])
