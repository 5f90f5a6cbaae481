"""Converts a topic's log settings from Kafka's names to the native structure.

Owns: nothing.
Invariants: every member of the structure is set.
Source: csrc/log/log.h.
"""

from libc.stdint cimport INT32_MIN
from libc.string cimport memset

from pylog._native.log cimport csrc

from pylog._native.log.log_settings import native_settings


cdef int take_config(dict settings, csrc.log_config *out) except -1:
    values = native_settings(settings)
    memset(out, 0, sizeof(csrc.log_config))
    out.segment_ms = values["segment.ms"]
    out.segment_jitter_ms = values["segment.jitter.ms"]
    out.retention_ms = values["retention.ms"]
    out.retention_bytes = values["retention.bytes"]
    out.file_delete_delay_ms = values["file.delete.delay.ms"]
    out.flush_messages = values["flush.messages"]
    out.flush_ms = values["flush.ms"]
    out.timestamp_before_max_ms = values["message.timestamp.before.max.ms"]
    out.timestamp_after_max_ms = values["message.timestamp.after.max.ms"]
    out.producer_id_expiration_ms = values["producer.id.expiration.ms"]
    out.inflated_bytes_max = values["decompressed.batch.bytes.max"]
    out.segment_bytes = values["segment.bytes"]
    out.segment_index_bytes = values["segment.index.bytes"]
    out.index_interval_bytes = values["index.interval.bytes"]
    out.max_message_bytes = values["max.message.bytes"]
    out.min_insync_replicas = values["min.insync.replicas"]
    out.compression_codec = values["codec"]
    out.compression_level = INT32_MIN if values["level"] is None else values["level"]
    out.log_append_time = values["message.timestamp.type"] == "LogAppendTime"
    out.cleanup_delete = "delete" in values["cleanup.policy"]
    out.cleanup_compact = "compact" in values["cleanup.policy"]
    out.preallocate = values["preallocate"]
    out.walk_records = values["records.validate.enable"]
    out.acks_all_flush = values["log.flush.acks.all.enable"]
    out.flush_before_fetch = values["replica.flush.before.fetch.enable"]
    out.flushed_records_only = values["consume.flushed.records.only"]
    out.replica_lag_ms = values["replica.lag.time.max.ms"]
    return 0
