"""Every metric of brokerd, one row each.

Owns: names, types, labels, units and one-line descriptions of metrics.
Invariants: names, present and former, are unique; the name of a metric with a unit ends with the
  unit; a counter's samples, not its row, end with `_total`; the rows of one subject are adjacent.
Source: OpenMetrics 1.0; Prometheus' naming conventions.

A row: name, type, labels, unit, help. type: counter, gauge, histogram. unit: "" for a plain number.
To add a metric, add a row here and a source of samples (see monitor.collect).
"""

TOPIC = ("topic",)
PARTITION = ("topic", "partition")
GROUP = ("group",)
GROUP_PARTITION = ("group", "topic", "partition")
API = ("api",)
DIRECTORY = ("directory",)
MEMBER = ("member",)

METRICS = (
    ("pylog_build_info", "gauge", ("version", "node_id", "cluster_id"), "",
     "1; the labels identify the broker."),

    # ---- topics: bytes and requests of clients, for the partitions on this broker
    ("pylog_topic_in_bytes", "counter", TOPIC, "bytes", "Record batches appended, as stored."),
    ("pylog_topic_out_bytes", "counter", TOPIC, "bytes", "Record batches in Fetch responses."),
    ("pylog_topic_in_records", "counter", TOPIC, "", "Records appended."),
    ("pylog_topic_in_batches", "counter", TOPIC, "", "Record batches appended."),
    ("pylog_topic_produce_requests", "counter", TOPIC, "",
     "Partitions in Produce requests, including rejected and repeated ones."),
    ("pylog_topic_produce_failures", "counter", TOPIC, "",
     "Partitions in Produce requests that were not appended."),
    ("pylog_topic_fetch_requests", "counter", TOPIC, "", "Partitions in Fetch responses."),
    ("pylog_topic_fetch_failures", "counter", TOPIC, "",
     "Partitions in Fetch responses with an error."),
    ("pylog_topic_cold_reads", "counter", TOPIC, "",
     "Ranges that had to be read from disk first because they were not in the page cache."),

    # ---- partitions
    ("pylog_partitions", "gauge", (), "", "Partitions that are open on this broker."),
    ("pylog_partitions_offline", "gauge", (), "",
     "Partitions that cannot be served: their log directory failed or they could not be opened."),
    ("pylog_partition_start_offset", "gauge", PARTITION, "", "Log start offset."),
    ("pylog_partition_end_offset", "gauge", PARTITION, "", "Log end offset."),
    ("pylog_partition_high_watermark", "gauge", PARTITION, "", "High watermark."),
    ("pylog_partition_last_stable_offset", "gauge", PARTITION, "",
     "Last stable offset: the start of the oldest open transaction, or the high watermark."),
    ("pylog_partition_size_bytes", "gauge", PARTITION, "bytes", "Bytes in all segments."),
    ("pylog_partition_segments", "gauge", PARTITION, "", "Segments."),

    # ---- the cluster: the same number on every broker
    ("pylog_cluster_brokers", "gauge", ("state",), "",
     "Registered brokers: active, fenced (they lead no partition), stopping."),
    ("pylog_cluster_partitions", "gauge", (), "", "Partitions."),
    ("pylog_cluster_partitions_offline", "gauge", (), "", "Partitions without a leader."),
    ("pylog_cluster_partitions_moving", "gauge", (), "",
     "Partitions whose replicas are being moved, added or removed."),
    ("pylog_cluster_non_preferred_leaders", "gauge", (), "",
     "Partitions whose leader is not their first replica."),
    ("pylog_metadata_offset", "gauge", (), "",
     "Offset of the last metadata record that this broker has applied."),
    ("pylog_controller_epoch", "gauge", (), "",
     "Epoch of that record. It increases with each new active controller."),
    ("pylog_controller_active", "gauge", (), "", "1 on the active controller."),
    ("pylog_controller_elections", "counter", ("kind",), "",
     "Leader elections by this controller since it became active: clean, or unclean (the new "
     "leader may lack acknowledged records)."),

    # ---- the controllers' quorum, on nodes that are controllers
    ("pylog_quorum_reachable", "gauge", (), "",
     "0 while this controller cannot reach the quorum. Without it, the metadata cannot change."),
    ("pylog_quorum_full", "gauge", (), "",
     "1 after etcd rejected a change because it has no space (alarm NOSPACE): compact and "
     "defragment it, then disarm the alarm."),
    ("pylog_quorum_failures", "counter", (), "",
     "Calls to the quorum that failed on every member."),
    ("pylog_quorum_appends", "counter", (), "", "Metadata batches appended by this controller."),
    ("pylog_quorum_append_seconds", "counter", (), "seconds", "Total time of these appends."),
    ("pylog_quorum_member_up", "gauge", MEMBER, "",
     "1 while this member of etcd or ZooKeeper answers this controller and has a leader."),
    ("pylog_quorum_member_leader", "gauge", MEMBER, "", "1 for the member that is the leader."),
    ("pylog_quorum_member_response_seconds", "gauge", MEMBER, "seconds",
     "Duration of the last status request, including requests that timed out."),
    ("pylog_quorum_member_stored_bytes", "gauge", MEMBER, "bytes",
     "Disk space of this etcd member's data. The limit of an etcd that brokerd runs is 2 GiB."),

    # ---- replicas; all 0 in a cluster of one broker
    ("pylog_replica_partitions_led", "gauge", (), "", "Partitions that this broker leads."),
    ("pylog_replica_partitions_under_min_isr", "gauge", (), "",
     "Partitions that this broker leads with fewer in-sync replicas than min.insync.replicas. "
     "Produce with acks=all fails."),
    ("pylog_replica_partitions_at_min_isr", "gauge", (), "",
     "Partitions that this broker leads with exactly min.insync.replicas in-sync replicas."),
    ("pylog_replica_follower_lag_records", "gauge", ("follower",), "",
     "Records that a follower lacks, for the partition where it lacks most."),
    ("pylog_replica_follower_lag_seconds", "gauge", ("follower",), "seconds",
     "Time since a follower was last caught up, for the partition where that is longest."),
    ("pylog_replica_partitions_under_replicated", "gauge", (), "",
     "Partitions that this broker leads with an out-of-sync replica."),
    ("pylog_replica_isr_shrinks", "counter", (), "",
     "Requests of this leader to remove lagging replicas from an ISR."),
    ("pylog_replica_isr_expands", "counter", (), "",
     "Requests of this leader to add a replica to an ISR."),
    ("pylog_replica_isr_refusals", "counter", (), "",
     "ISR changes that the controller rejected."),
    ("pylog_replica_partitions_followed", "gauge", (), "",
     "Partitions that this broker fetches from another leader."),
    ("pylog_replica_partitions_failed", "gauge", (), "",
     "Partitions that this broker stopped fetching after an error (Kafka's "
     "FailedPartitionsCount)."),
    ("pylog_replica_lag_records_max", "gauge", (), "",
     "Largest lag of a follower partition behind its leader's high watermark, in records."),
    ("pylog_replica_in_bytes", "counter", (), "bytes", "Record batches fetched from leaders."),
    ("pylog_replica_connections_lost", "counter", (), "",
     "Connections to leaders that failed or timed out."),
    ("pylog_replica_throttled_out_bytes_per_second", "gauge", (), "",
     "Bytes per second sent to followers under leader.replication.throttled.rate."),
    ("pylog_replica_throttled_in_bytes_per_second", "gauge", (), "",
     "Bytes per second fetched under follower.replication.throttled.rate."),

    # ---- consumer groups that this broker coordinates
    ("pylog_groups", "gauge", ("state",), "", "Groups in each state."),
    ("pylog_groups_omitted", "gauge", (), "",
     "Groups above the limit of a scrape. No other metric includes them."),
    ("pylog_group_members", "gauge", GROUP, "", "Members."),
    ("pylog_group_state", "gauge", ("group", "state"), "", "1 for the group's current state."),
    ("pylog_group_generations", "counter", GROUP, "",
     "Generations, that is completed rebalances. The count survives a restart."),
    ("pylog_group_committed_offset", "gauge", GROUP_PARTITION, "", "Committed offset."),
    ("pylog_group_lag_records", "gauge", GROUP_PARTITION, "",
     "Records between the committed offset and the high watermark."),
    ("pylog_group_lag_seconds", "gauge", GROUP_PARTITION, "seconds",
     "Age of the first uncommitted record by its timestamp; 0 without lag."),
    ("pylog_coordinator_events", "counter", ("event",), "",
     "Events of groups: members joined, left or expired; rebalances started, the milliseconds "
     "that finished rebalances took and that members spent without work; generations; offsets "
     "committed or expired; records written."),

    # ---- share groups, for the partitions that this broker leads
    ("pylog_share_sessions", "gauge", (), "", "Share sessions with this broker."),
    ("pylog_share_session_partitions", "gauge", (), "", "Partitions that share sessions fetch."),
    ("pylog_share_partitions", "gauge", (), "",
     "Share partitions (a group and a partition) with state in memory."),
    ("pylog_share_acquired_records", "counter", GROUP, "",
     "Records delivered to members, including redeliveries."),
    ("pylog_share_out_bytes", "counter", GROUP, "bytes", "Record batches in ShareFetch responses."),
    ("pylog_share_acknowledged_records", "counter", ("group", "type"), "",
     "Acknowledged records by type: accept, release, reject, renew, gap."),
    ("pylog_share_expired_records", "counter", GROUP, "",
     "Records released because their acquisition lock expired."),
    ("pylog_share_in_flight_records", "gauge", GROUP_PARTITION, "",
     "Records that are acquired, available again, or being archived."),
    ("pylog_share_in_flight_ranges", "gauge", GROUP_PARTITION, "",
     "Offset ranges with separate state in memory."),
    ("pylog_share_archiving_records", "gauge", GROUP_PARTITION, "",
     "Records that wait to be written to the dead-letter topic. A growing number means that "
     "writing fails."),
    ("pylog_share_dead_letters", "counter", GROUP, "", "Records written to dead-letter topics."),
    ("pylog_share_dead_letter_batches", "counter", GROUP, "",
     "Batches written to dead-letter topics."),
    ("pylog_share_dead_letter_failures", "counter", GROUP, "",
     "Batches that could not be written to a dead-letter topic; brokerd retries them."),

    # ---- requests, by the name of their API
    ("pylog_request_seconds", "histogram", API, "seconds",
     "From the request's last byte to the response's last byte."),
    ("pylog_request_queue_seconds", "histogram", API, "seconds",
     "Time in the control plane's queue. Produce and Fetch do not queue."),
    ("pylog_request_local_seconds", "histogram", API, "seconds", "Processing time."),
    ("pylog_request_remote_seconds", "histogram", API, "seconds",
     "Waiting time of requests that waited: for the disk, more records, other members or the "
     "control plane."),
    ("pylog_request_send_seconds", "histogram", API, "seconds",
     "From the complete response to its last byte in the socket."),
    ("pylog_request_size_bytes", "histogram", API, "bytes", "Request frames."),
    ("pylog_response_size_bytes", "histogram", API, "bytes",
     "Responses, including ranges of files."),
    ("pylog_request_errors", "counter", ("api", "error"), "",
     "Error codes in responses: per partition for Produce and Fetch, else per response."),
    ("pylog_requests_in_flight", "gauge", (), "", "Requests without a response yet."),
    ("pylog_requests_missed", "counter", (), "",
     "Produce and Fetch requests that needed the control plane."),
    ("pylog_requests_abandoned", "counter", (), "",
     "Requests whose connection closed before the response."),
    ("pylog_requests_slow", "counter", (), "",
     "Requests that took longer than slow.request.threshold.ms."),
    ("pylog_requests_throttled", "counter", (), "",
     "Requests whose client was throttled by a quota."),

    ("pylog_audit_dropped", "counter", (), "",
     "Audit log lines that were dropped because the file or topic had no space."),

    # ---- connections and reactors
    ("pylog_connections", "gauge", (), "", "Open client connections."),
    ("pylog_connections_accepted", "counter", (), "", "Connections accepted."),
    ("pylog_connections_refused", "counter", (), "",
     "Connections closed without reading: over max.connections.per.ip or the address's quota."),
    ("pylog_connections_over_descriptor_limit", "counter", ("action",), "",
     "Connections affected by a lack of descriptors: refused, or closed after being idle to make "
     "room."),
    ("pylog_tls_handshakes", "counter", ("end",), "",
     "TLS handshakes by result: full, resumed (with a ticket), failed."),
    ("pylog_connections_closed", "counter", ("cause",), "",
     "Connections closed: idle (connections.max.idle.ms), stalled (the client does not read its "
     "response), late (an incomplete frame), illegal (not a request), other (by the client, or "
     "at shutdown)."),
    ("pylog_network_in_bytes", "counter", (), "bytes", "Bytes received from clients."),
    ("pylog_network_out_bytes", "counter", (), "bytes", "Bytes sent to clients."),
    ("pylog_network_sendfile_bytes", "counter", (), "bytes",
     "Bytes of these that were sent from the page cache without a copy."),
    ("pylog_reactor_threads", "gauge", (), "", "Network threads."),
    ("pylog_reactor_round_seconds", "histogram", (), "seconds",
     "Work of a network thread between two waits. The sum over time and threads is their "
     "utilization."),
    ("pylog_reactor_waits", "counter", ("cause",), "",
     "Connections that had to wait: input (buffer limit), queue (queued.max.requests), accept "
     "(limit of connections or descriptors)."),
    ("pylog_reactor_input_buffer_bytes", "gauge", (), "bytes",
     "Memory of requests: input buffers, and copies for the control plane."),
    ("pylog_fetch_sessions", "gauge", (), "", "Fetch sessions (KIP-227)."),

    # ---- log directories and the io pool
    ("pylog_log_directory_offline", "gauge", DIRECTORY, "", "1 after the directory failed."),
    ("pylog_log_directory_free_bytes", "gauge", DIRECTORY, "bytes",
     "Free space of its file system."),
    ("pylog_log_directory_full", "gauge", DIRECTORY, "",
     "1 while produce requests are rejected because less than log.dir.min.free.bytes is free."),
    ("pylog_log_open_files", "gauge", DIRECTORY, "", "Open segment files."),
    ("pylog_log_flush_seconds", "histogram", DIRECTORY, "seconds", "One fdatasync or syncfs."),
    ("pylog_log_flush_groups", "counter", DIRECTORY, "",
     "Group commits; each covers every waiting request."),
    ("pylog_log_flush_files", "counter", DIRECTORY, "", "Segment files synced."),
    ("pylog_log_rolls", "counter", DIRECTORY, "", "Segments created after a previous one."),
    ("pylog_log_shortages", "counter", DIRECTORY, "",
     "Calls that failed for lack of space, descriptors or memory; brokerd retries them."),
    ("pylog_log_segments_deleted", "counter", DIRECTORY, "", "Segments that retention removed."),
    ("pylog_log_corruptions", "counter", ("directory", "kind"), "",
     "Damaged data found: cut (ends of logs without a complete batch, and later segments) or "
     "kept (between good batches; readers skip it)."),
    ("pylog_log_truncated_bytes", "counter", DIRECTORY, "bytes",
     "Bytes that recoveries truncated."),
    ("pylog_log_recovery_checked_bytes", "counter", DIRECTORY, "bytes",
     "Bytes that recoveries checked after an unclean stop."),
    ("pylog_log_recovery_trusted_bytes", "counter", DIRECTORY, "bytes",
     "Bytes for which recoveries read only the headers, because nothing changed since the killed "
     "broker wrote them."),
    ("pylog_log_recovery_partitions_remaining", "gauge", (), "",
     "Partitions that are still recovering after an unclean stop. They return "
     "NOT_LEADER_OR_FOLLOWER."),
    ("pylog_log_appends", "counter", (), "", "Record batches appended, over all logs."),
    ("pylog_io_jobs", "counter", (), "", "Jobs completed by the io pool."),
    ("pylog_io_jobs_waiting", "gauge", (), "", "Jobs waiting for a thread of the io pool."),

    # ---- the cleaner of compacted topics
    ("pylog_cleaner_passes", "counter", (), "", "Completed cleaning passes."),
    ("pylog_cleaner_read_bytes", "counter", (), "bytes", "Bytes that the cleaner read."),
    ("pylog_cleaner_written_bytes", "counter", (), "bytes", "Bytes that the cleaner wrote."),
    ("pylog_cleaner_read_records", "counter", (), "", "Records that the cleaner read."),
    ("pylog_cleaner_retained_records", "counter", (), "", "Records that the cleaner retained."),
    ("pylog_cleaner_failures", "counter", (), "", "Failed cleaning passes."),
    ("pylog_cleaner_active_partitions", "gauge", (), "", "Partitions that are being cleaned."),
    ("pylog_cleaner_uncleanable_partitions", "gauge", (), "",
     "Partitions that are no longer cleaned because a pass failed."),

    # ---- state.lmdb
    ("pylog_lmdb_map_bytes", "gauge", (), "bytes", "Size limit (address space) of state.lmdb."),
    ("pylog_lmdb_used_bytes", "gauge", (), "bytes", "Bytes of state.lmdb in use."),
    ("pylog_lmdb_entries", "gauge", (), "", "Entries."),
    ("pylog_lmdb_readers", "gauge", (), "", "Reader slots in use."),

    # ---- the process, with the standard names of Prometheus clients
    ("pylog_background_failures", "counter", ("work",), "",
     "Unexpected errors in background tasks. The traceback is in the log, and the task was "
     "restarted or reported."),
    ("process_cpu_seconds", "counter", (), "seconds", "User and system time."),
    ("process_resident_memory_bytes", "gauge", (), "bytes",
     "Resident memory, including mapped index files."),
    ("process_virtual_memory_bytes", "gauge", (), "bytes", "Address space."),
    ("process_open_fds", "gauge", (), "", "Open file descriptors."),
    ("process_max_fds", "gauge", (), "", "Limit of file descriptors."),
    ("process_threads", "gauge", (), "", "Threads."),
    ("process_start_time_seconds", "gauge", (), "seconds", "Start time as Unix time."),
    ("pylog_scrape_seconds", "gauge", (), "seconds", "Duration of the previous scrape."),
)


class Metric:
    """One row, with named fields."""

    __slots__ = ("help", "labels", "name", "type", "unit")

    def __init__(self, row):
        self.name, self.type, self.labels, self.unit, self.help = row

    @property
    def sample(self) -> str:
        """Return the name of its samples; a histogram adds suffixes such as `_bucket`."""
        return f"{self.name}_total" if self.type == "counter" else self.name


# Present name -> former name. Both are exported until the next release.
FORMER_NAMES = {
    "pylog_cleaner_active_partitions": "pylog_cleaner_logs_at_work",
    "pylog_cleaner_retained_records": "pylog_cleaner_kept_records",
    "pylog_cleaner_uncleanable_partitions": "pylog_cleaner_logs_left_alone",
    "pylog_cluster_non_preferred_leaders": "pylog_cluster_partitions_led_elsewhere",
    "pylog_connections_over_descriptor_limit": "pylog_connections_crowded",
    "pylog_groups_omitted": "pylog_groups_left_out",
    "pylog_log_corruptions": "pylog_log_damages",
    "pylog_log_recovery_partitions_remaining": "pylog_log_recovery_partitions_left",
    "pylog_log_truncated_bytes": "pylog_log_cut_bytes",
    "pylog_quorum_member_response_seconds": "pylog_quorum_member_answer_seconds",
    "pylog_quorum_reachable": "pylog_quorum_answering",
}
_FORMER_LABELS = {"pylog_connections_crowded": ("answer",)}

TABLE = {row[0]: Metric(row) for row in METRICS}
FORMER = {former: Metric((former, TABLE[name].type, _FORMER_LABELS.get(former, TABLE[name].labels),
                          TABLE[name].unit, f"Former name of {name}."))
          for name, former in FORMER_NAMES.items()}
ALL = {**TABLE, **FORMER}
assert len(ALL) == len(METRICS) + len(FORMER_NAMES)
SHARES = [name for name in TABLE if name.startswith("pylog_share_")]
