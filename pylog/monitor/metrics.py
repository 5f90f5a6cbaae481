"""Every metric of brokerd: one row each.

Owns: names, types, labels, units and one-line explanations of metrics.
Invariants: (1) names are unique; (2) a metric with a unit ends in it; (3) a counter's samples, not
  its row, end in `_total`; (4) the rows of one subject stand together.
Source: OpenMetrics 1.0; Prometheus' naming practice.

A row: name, type, labels, unit, help. type: counter, gauge, histogram. unit: "" for a pure number.
To add a metric: a row here, and a source that gives its samples (see monitor.collect).
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
     "1; the labels name the broker."),

    # ---- topics: what clients sent and took, of the partitions that are here
    ("pylog_topic_in_bytes", "counter", TOPIC, "bytes", "Record batches appended, as stored."),
    ("pylog_topic_out_bytes", "counter", TOPIC, "bytes", "Record batches in Fetch answers."),
    ("pylog_topic_in_records", "counter", TOPIC, "", "Records appended."),
    ("pylog_topic_in_batches", "counter", TOPIC, "", "Record batches appended."),
    ("pylog_topic_produce_requests", "counter", TOPIC, "",
     "Partitions in Produce requests, refused and repeated ones too."),
    ("pylog_topic_produce_failures", "counter", TOPIC, "",
     "Partitions in Produce requests that were not appended."),
    ("pylog_topic_fetch_requests", "counter", TOPIC, "", "Partitions in Fetch answers."),
    ("pylog_topic_fetch_failures", "counter", TOPIC, "",
     "Partitions in Fetch answers with an error."),
    ("pylog_topic_cold_reads", "counter", TOPIC, "",
     "Ranges that were read from the disk first: they were not in the page cache."),

    # ---- partitions
    ("pylog_partitions", "gauge", (), "", "Partitions that are open here."),
    ("pylog_partitions_offline", "gauge", (), "",
     "Partitions that cannot be served: their log directory failed or they could not be opened."),
    ("pylog_partition_start_offset", "gauge", PARTITION, "", "Log start offset."),
    ("pylog_partition_end_offset", "gauge", PARTITION, "", "Log end offset."),
    ("pylog_partition_high_watermark", "gauge", PARTITION, "", "High watermark."),
    ("pylog_partition_last_stable_offset", "gauge", PARTITION, "",
     "Last stable offset: where the oldest open transaction begins, else the high watermark."),
    ("pylog_partition_size_bytes", "gauge", PARTITION, "bytes", "Bytes in all segments."),
    ("pylog_partition_segments", "gauge", PARTITION, "", "Segments."),

    # ---- the cluster, as this broker knows it: the same number on each of them
    ("pylog_cluster_brokers", "gauge", ("state",), "",
     "Registered brokers: active, fenced (they lead nothing), stopping."),
    ("pylog_cluster_partitions", "gauge", (), "", "Partitions."),
    ("pylog_cluster_partitions_offline", "gauge", (), "", "Partitions that nobody leads."),
    ("pylog_cluster_partitions_moving", "gauge", (), "",
     "Partitions whose replicas are being moved, added or removed."),
    ("pylog_cluster_partitions_led_elsewhere", "gauge", (), "",
     "Partitions that another than their first replica leads."),
    ("pylog_metadata_offset", "gauge", (), "",
     "Offset of the last metadata record that is in force here."),
    ("pylog_controller_epoch", "gauge", (), "",
     "Epoch of that record: it rises with each new active controller."),
    ("pylog_controller_active", "gauge", (), "", "1 where the active controller is."),
    ("pylog_controller_elections", "counter", ("kind",), "",
     "Leaders that this controller elected, since it took over: clean, or unclean ones, that may "
     "lack acknowledged records."),

    # ---- the controllers' quorum, on nodes that are controllers
    ("pylog_quorum_answering", "gauge", (), "",
     "0 while the quorum does not answer this controller: without it nothing is decided."),
    ("pylog_quorum_full", "gauge", (), "",
     "1 when etcd refused the last change for want of room (its alarm NOSPACE): compact and "
     "defragment it, then disarm the alarm."),
    ("pylog_quorum_failures", "counter", (), "",
     "Calls of the quorum that were given up, after all members were tried."),
    ("pylog_quorum_appends", "counter", (), "", "Batches of metadata that were appended here."),
    ("pylog_quorum_append_seconds", "counter", (), "seconds", "What those took together."),
    ("pylog_quorum_member_up", "gauge", MEMBER, "",
     "1 while that member of etcd or ZooKeeper answers this controller and knows a leader."),
    ("pylog_quorum_member_leader", "gauge", MEMBER, "", "1 of the member that leads them."),
    ("pylog_quorum_member_answer_seconds", "gauge", MEMBER, "seconds",
     "What the last question how it is took, unanswered ones too."),
    ("pylog_quorum_member_stored_bytes", "gauge", MEMBER, "bytes",
     "What that member of etcd keeps on its disk; brokerd's own are full at 2 GiB."),

    # ---- replicas; all 0 in a cluster of one broker
    ("pylog_replica_partitions_led", "gauge", (), "", "Partitions led here."),
    ("pylog_replica_partitions_under_min_isr", "gauge", (), "",
     "Partitions led here with fewer replicas in sync than min.insync.replicas: producers with "
     "acks=all are refused."),
    ("pylog_replica_partitions_at_min_isr", "gauge", (), "",
     "Partitions led here that would be so with one replica less."),
    ("pylog_replica_follower_lag_records", "gauge", ("follower",), "",
     "Records that a follower lacks, of the partition led here where it lacks most."),
    ("pylog_replica_follower_lag_seconds", "gauge", ("follower",), "seconds",
     "Since when a follower has not been at the end, of the partition where that is longest."),
    ("pylog_replica_partitions_under_replicated", "gauge", (), "",
     "Partitions led here that have a replica out of sync."),
    ("pylog_replica_isr_shrinks", "counter", (), "",
     "Times that this leader asked to take lagging replicas out of an ISR."),
    ("pylog_replica_isr_expands", "counter", (), "",
     "Times that this leader asked to let a replica into an ISR."),
    ("pylog_replica_isr_refusals", "counter", (), "",
     "Answers of the controller that refused such a change."),
    ("pylog_replica_partitions_followed", "gauge", (), "",
     "Partitions that are fetched from a leader elsewhere."),
    ("pylog_replica_partitions_failed", "gauge", (), "",
     "Partitions that are not fetched since an error of this broker; Kafka's "
     "FailedPartitionsCount."),
    ("pylog_replica_lag_records_max", "gauge", (), "",
     "Records that the one furthest behind its leader's high watermark lacks."),
    ("pylog_replica_in_bytes", "counter", (), "bytes", "Record batches fetched from leaders."),
    ("pylog_replica_connections_lost", "counter", (), "",
     "Connections to leaders that ended, or gave no answer."),
    ("pylog_replica_throttled_out_bytes_per_second", "gauge", (), "",
     "Sent to followers from partitions under leader.replication.throttled.rate."),
    ("pylog_replica_throttled_in_bytes_per_second", "gauge", (), "",
     "Fetched of partitions under follower.replication.throttled.rate."),

    # ---- consumer groups, of the coordinator that is here
    ("pylog_groups", "gauge", ("state",), "", "Groups in each state."),
    ("pylog_groups_left_out", "gauge", (), "",
     "Groups beyond the most that a scrape lists; they are counted in no other metric."),
    ("pylog_group_members", "gauge", GROUP, "", "Members."),
    ("pylog_group_state", "gauge", ("group", "state"), "", "1 for the state that it is in."),
    ("pylog_group_generations", "counter", GROUP, "",
     "Generations, that is rebalances that came to an end; they survive a restart."),
    ("pylog_group_committed_offset", "gauge", GROUP_PARTITION, "", "Committed offset."),
    ("pylog_group_lag_records", "gauge", GROUP_PARTITION, "",
     "Records between the committed offset and the high watermark."),
    ("pylog_group_lag_seconds", "gauge", GROUP_PARTITION, "seconds",
     "Age of the first record that is not committed, by its timestamp; 0 when all are."),
    ("pylog_coordinator_events", "counter", ("event",), "",
     "What befell groups: members joined, left or expired, rebalances begun, how many ms those "
     "that are over took and members were without work meanwhile, generations, offsets committed "
     "or expired, records written."),

    # ---- share groups, of the partitions that are led here
    ("pylog_share_sessions", "gauge", (), "", "Share sessions of members with this broker."),
    ("pylog_share_session_partitions", "gauge", (), "", "Partitions that these sessions fetch."),
    ("pylog_share_partitions", "gauge", (), "",
     "Share partitions whose state is in memory here: a group's for a partition."),
    ("pylog_share_acquired_records", "counter", GROUP, "", "Records handed out, again ones too."),
    ("pylog_share_out_bytes", "counter", GROUP, "bytes", "Record batches in ShareFetch answers."),
    ("pylog_share_acknowledged_records", "counter", ("group", "type"), "",
     "Records by what members said of them: accept, release, reject, renew, gap."),
    ("pylog_share_expired_records", "counter", GROUP, "",
     "Records that were taken back because their time was over."),
    ("pylog_share_in_flight_records", "gauge", GROUP_PARTITION, "",
     "Records that are handed out, free again or archiving."),
    ("pylog_share_in_flight_ranges", "gauge", GROUP_PARTITION, "",
     "Ranges of offsets that are kept apart in memory."),
    ("pylog_share_archiving_records", "gauge", GROUP_PARTITION, "",
     "Records whose dead letter is not written yet; more and more: it cannot be."),
    ("pylog_share_dead_letters", "counter", GROUP, "", "Dead letters written."),
    ("pylog_share_dead_letter_batches", "counter", GROUP, "", "Batches of them."),
    ("pylog_share_dead_letter_failures", "counter", GROUP, "",
     "Batches of dead letters that could not be written; they are tried again."),

    # ---- requests, by the name of their API
    ("pylog_request_seconds", "histogram", API, "seconds",
     "From a request's last byte to its answer's last byte."),
    ("pylog_request_queue_seconds", "histogram", API, "seconds",
     "Until the control plane took it; Produce and Fetch do not queue."),
    ("pylog_request_local_seconds", "histogram", API, "seconds", "At work on it."),
    ("pylog_request_remote_seconds", "histogram", API, "seconds",
     "Parked, of those that were: for the disk, for more records, for other members, for the "
     "control plane's leave."),
    ("pylog_request_send_seconds", "histogram", API, "seconds",
     "From the answer to its last byte in the socket."),
    ("pylog_request_size_bytes", "histogram", API, "bytes", "Request frames."),
    ("pylog_response_size_bytes", "histogram", API, "bytes", "Answers, ranges of files included."),
    ("pylog_request_errors", "counter", ("api", "error"), "",
     "Error codes answered: for each partition of Produce and Fetch, else of the whole answer."),
    ("pylog_requests_in_flight", "gauge", (), "", "Requests that are not answered yet."),
    ("pylog_requests_missed", "counter", (), "",
     "Produce and Fetch requests that had to ask the control plane."),
    ("pylog_requests_abandoned", "counter", (), "", "Requests whose connection ended first."),
    ("pylog_requests_slow", "counter", (), "", "Requests over request.log.slow.ms."),
    ("pylog_requests_throttled", "counter", (), "", "Requests after which a quota held their "
     "client back."),

    ("pylog_audit_dropped", "counter", (), "",
     "Lines that the audit log's file or topic had no room for."),

    # ---- connections and reactors
    ("pylog_connections", "gauge", (), "", "Open connections of clients."),
    ("pylog_connections_accepted", "counter", (), "", "Connections accepted."),
    ("pylog_connections_refused", "counter", (), "",
     "Connections closed unread: over max.connections.per.ip or their address's quota."),
    ("pylog_connections_crowded", "counter", ("answer",), "",
     "Connections for which descriptors were short: refused, or closed for others after they had "
     "been idle."),
    ("pylog_tls_handshakes", "counter", ("end",), "",
     "TLS handshakes by their end: full, resumed (by a ticket), failed."),
    ("pylog_connections_closed", "counter", ("cause",), "",
     "Connections closed: idle (connections.max.idle.ms), stalled (takes nothing of its answer), "
     "late (a frame that does not come to its end), illegal (not a request), other (by the client, "
     "or at a stop)."),
    ("pylog_network_in_bytes", "counter", (), "bytes", "Bytes received from clients."),
    ("pylog_network_out_bytes", "counter", (), "bytes", "Bytes sent to clients."),
    ("pylog_network_sendfile_bytes", "counter", (), "bytes",
     "Of those, what went from the page cache to the socket without a copy."),
    ("pylog_reactor_threads", "gauge", (), "", "Reactors."),
    ("pylog_reactor_round_seconds", "histogram", (), "seconds",
     "Work of a reactor between two sleeps; the sum over time and threads is how busy they are."),
    ("pylog_reactor_waits", "counter", ("cause",), "",
     "Connections made to wait: input (buffers are at their limit), queue (queued.max.requests), "
     "accept (a limit on connections or descriptors)."),
    ("pylog_reactor_input_buffer_bytes", "gauge", (), "bytes",
     "Requests in memory: input buffers, and copies for the control plane."),
    ("pylog_fetch_sessions", "gauge", (), "", "Fetch sessions (KIP-227)."),

    # ---- log directories and the io pool
    ("pylog_log_directory_offline", "gauge", DIRECTORY, "", "1 when it failed."),
    ("pylog_log_directory_free_bytes", "gauge", DIRECTORY, "bytes",
     "Free space of its file system."),
    ("pylog_log_directory_full", "gauge", DIRECTORY, "",
     "1 while produce requests are rejected because less than log.dir.free.bytes.min is free."),
    ("pylog_log_open_files", "gauge", DIRECTORY, "", "Open segment files."),
    ("pylog_log_flush_seconds", "histogram", DIRECTORY, "seconds", "One fdatasync or syncfs."),
    ("pylog_log_flush_groups", "counter", DIRECTORY, "",
     "Group commits; each serves all that waited."),
    ("pylog_log_flush_files", "counter", DIRECTORY, "", "Segment files synced."),
    ("pylog_log_rolls", "counter", DIRECTORY, "", "Segments begun after another."),
    ("pylog_log_shortages", "counter", DIRECTORY, "",
     "Calls that found room, descriptors or memory short; they are tried again."),
    ("pylog_log_segments_deleted", "counter", DIRECTORY, "", "Segments that retention removed."),
    ("pylog_log_damages", "counter", ("directory", "kind"), "",
     "Damage met: cut (ends of logs that held no whole batch, and segments behind them) or kept "
     "(amid good batches, passed over by readers)."),
    ("pylog_log_cut_bytes", "counter", DIRECTORY, "bytes", "Bytes that recoveries cut off."),
    ("pylog_log_recovery_checked_bytes", "counter", DIRECTORY, "bytes",
     "Bytes that recoveries checked after an unclean stop."),
    ("pylog_log_recovery_trusted_bytes", "counter", DIRECTORY, "bytes",
     "Bytes of which recoveries read the headers alone: nothing has changed since the broker that "
     "was killed wrote them."),
    ("pylog_log_recovery_partitions_left", "gauge", (), "",
     "Partitions that are not ready yet after an unclean stop; they answer "
     "NOT_LEADER_OR_FOLLOWER."),
    ("pylog_log_appends", "counter", (), "", "Record batches appended to any log."),
    ("pylog_io_jobs", "counter", (), "", "Jobs that the io pool has done."),
    ("pylog_io_jobs_waiting", "gauge", (), "", "Jobs that wait for a thread of the io pool."),

    # ---- the cleaner of compacted topics
    ("pylog_cleaner_passes", "counter", (), "", "Passes that came to their end."),
    ("pylog_cleaner_read_bytes", "counter", (), "bytes", "Read by them."),
    ("pylog_cleaner_written_bytes", "counter", (), "bytes", "Written anew by them."),
    ("pylog_cleaner_read_records", "counter", (), "", "Records that they looked at."),
    ("pylog_cleaner_kept_records", "counter", (), "", "Records that they kept."),
    ("pylog_cleaner_failures", "counter", (), "", "Passes that failed."),
    ("pylog_cleaner_logs_at_work", "gauge", (), "", "Partitions that are being cleaned."),
    ("pylog_cleaner_logs_left_alone", "gauge", (), "",
     "Partitions that are not cleaned any more, because a pass failed."),

    # ---- state.lmdb
    ("pylog_lmdb_map_bytes", "gauge", (), "bytes", "Address space for state.lmdb: its limit."),
    ("pylog_lmdb_used_bytes", "gauge", (), "bytes", "Bytes of it in use."),
    ("pylog_lmdb_entries", "gauge", (), "", "Entries."),
    ("pylog_lmdb_readers", "gauge", (), "", "Reader slots in use."),

    # ---- the process, by the names that every Prometheus client has
    ("pylog_background_failures", "counter", ("work",), "",
     "Unexpected errors of background work, whose tracebacks are in the log; the work was started "
     "again or reported."),
    ("process_cpu_seconds", "counter", (), "seconds", "User and system time."),
    ("process_resident_memory_bytes", "gauge", (), "bytes",
     "Resident memory; maps of index files count."),
    ("process_virtual_memory_bytes", "gauge", (), "bytes", "Address space."),
    ("process_open_fds", "gauge", (), "", "Open descriptors."),
    ("process_max_fds", "gauge", (), "", "Descriptors that the process may open."),
    ("process_threads", "gauge", (), "", "Threads."),
    ("process_start_time_seconds", "gauge", (), "seconds", "When it started, as Unix time."),
    ("pylog_scrape_seconds", "gauge", (), "seconds", "How long the scrape before this one took."),
)


class Metric:
    """One row with its names."""

    __slots__ = ("help", "labels", "name", "type", "unit")

    def __init__(self, row):
        self.name, self.type, self.labels, self.unit, self.help = row

    @property
    def sample(self) -> str:
        """The name of its samples; a histogram's have a suffix more."""
        return f"{self.name}_total" if self.type == "counter" else self.name


TABLE = {row[0]: Metric(row) for row in METRICS}
assert len(TABLE) == len(METRICS)
SHARES = [name for name in TABLE if name.startswith("pylog_share_")]
