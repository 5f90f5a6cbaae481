"""One scrape: collects all metrics and formats them.

Owns: the labels of partitions, cached between scrapes.
Invariants: the event loop and the reactors are never stopped; data that grows with the number of
  partitions is read and formatted by native code, without the GIL.
Source: pylog/monitor/metrics.py lists every family.

To add metrics to a scrape, add a source to `Collector.sources`: a function without arguments that
returns [(family, [(label values, number)])].
"""

from __future__ import annotations

import contextlib
import os
import resource

from pylog import __version__, supervisor
from pylog.monitor import metrics
from pylog._native.log import damage_report
from pylog._native.server import metrics as native_metrics
from pylog.monitor.page import Page, labels
from pylog.protocol import tables
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog._native.log.io_pool import IoPool
    from pylog._native.server.reactor import Reactors
    from pylog.log.manager import LogManager
    from pylog.metadata.image.state_store import Store
    from pylog.monitor.lag import GroupLags

TOPIC_COLUMNS = (
    ("pylog_topic_in_bytes", "bytes_in"), ("pylog_topic_out_bytes", "bytes_out"),
    ("pylog_topic_in_records", "records_in"), ("pylog_topic_in_batches", "batches_in"),
    ("pylog_topic_produce_requests", "produce_requests"),
    ("pylog_topic_produce_failures", "produce_failures"),
    ("pylog_topic_fetch_requests", "fetch_requests"),
    ("pylog_topic_fetch_failures", "fetch_failures"), ("pylog_topic_cold_reads", "cold_reads"))
PARTITION_COLUMNS = (
    ("pylog_partition_start_offset", "start_offset"),
    ("pylog_partition_end_offset", "end_offset"),
    ("pylog_partition_high_watermark", "high_watermark"),
    ("pylog_partition_last_stable_offset", "last_stable_offset"),
    ("pylog_partition_size_bytes", "size_bytes"), ("pylog_partition_segments", "segments"))
REQUEST_HISTOGRAMS = (
    ("pylog_request_seconds", "total"), ("pylog_request_queue_seconds", "queue"),
    ("pylog_request_local_seconds", "local"), ("pylog_request_remote_seconds", "remote"),
    ("pylog_request_send_seconds", "send"), ("pylog_request_size_bytes", "request_bytes"),
    ("pylog_response_size_bytes", "response_bytes"))
REACTOR_STATS = (
    ("pylog_requests_in_flight", "requests_in_flight"),
    ("pylog_requests_missed", "requests_missed"),
    ("pylog_requests_abandoned", "requests_abandoned"), ("pylog_requests_slow", "requests_slow"),
    ("pylog_requests_throttled", "requests_throttled"),
    ("pylog_connections", "connections"), ("pylog_connections_accepted", "connections_accepted"),
    ("pylog_connections_refused", "connections_refused"), ("pylog_network_in_bytes", "bytes_in"),
    ("pylog_network_out_bytes", "bytes_out"), ("pylog_network_sendfile_bytes", "bytes_sendfile"),
    ("pylog_reactor_input_buffer_bytes", "input_bytes"), ("pylog_fetch_sessions", "fetch_sessions"))
CLOSED = (("idle", "connections_idle"), ("stalled", "connections_stalled"),
          ("late", "frames_late"), ("illegal", "frames_illegal"))
CROWDED = (("refused", "connections_crowded"), ("closed", "connections_evicted"))
WAITS = (("input", "input_waits"), ("queue", "queue_waits"), ("accept", "accept_pauses"))
REPLICA_STATS = (
    ("pylog_replica_partitions_under_replicated", "under_replicated"),
    ("pylog_replica_isr_shrinks", "shrinks"), ("pylog_replica_isr_expands", "expands"),
    ("pylog_replica_isr_refusals", "refusals"), ("pylog_replica_partitions_followed", "followed"),
    ("pylog_replica_partitions_failed", "failed"),
    ("pylog_replica_lag_records_max", "lag"), ("pylog_replica_in_bytes", "batches_bytes"),
    ("pylog_replica_connections_lost", "connections_lost"),
    ("pylog_replica_throttled_out_bytes_per_second", "throttled_leading"),
    ("pylog_replica_throttled_in_bytes_per_second", "throttled_following"))
CLEANER_STATS = (
    ("pylog_cleaner_passes", "passes"), ("pylog_cleaner_read_bytes", "bytes_read"),
    ("pylog_cleaner_written_bytes", "bytes_written"),
    ("pylog_cleaner_read_records", "records_read"),
    ("pylog_cleaner_retained_records", "records_kept"), ("pylog_cleaner_failures", "failures"),
    ("pylog_cleaner_active_partitions", "at_work"),
    ("pylog_cleaner_uncleanable_partitions", "uncleanable"))
DIRECTORY_STATS = (
    ("pylog_log_open_files", "open_files"), ("pylog_log_flush_groups", "flush_groups"),
    ("pylog_log_flush_files", "flush_files"), ("pylog_log_rolls", "rolls"),
    ("pylog_log_segments_deleted", "segments_deleted"), ("pylog_log_shortages", "shortages"))


def error_name(code: int) -> str:
    try:
        return ErrorCode.of(code).name
    except KeyError:
        return str(code)


class Collector:
    """store: state.lmdb. replicas: returns values by the names in REPLICA_STATS, {} in a cluster of
    one broker. cluster: a source; shares: a source of metrics.SHARES, without samples before the
    first share group. audit_dropped: returns the number of dropped audit lines. seconds: a
    monotonic clock.
    """

    def __init__(self, groups: GroupLags, *, logs: LogManager, reactors: Reactors, io_pool: IoPool,
                 store: Store, replicas: Callable[[], dict[str, int]],
                 cluster: Callable[[], list], shares: Callable[[], list],
                 audit_dropped: Callable[[], int], node_id: int, cluster_id: str,
                 seconds: Callable[[], float]):
        self.sources: list[Callable[[], list]] = [cluster]
        self._groups = groups
        self._logs = logs
        self._reactors = reactors
        self._io_pool = io_pool
        self._store = store
        self._replicas = replicas
        self._shares = shares
        self._audit_dropped = audit_dropped
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._seconds = seconds
        # (names and partition counts, label rows of topics, of partitions)
        self._layout: tuple | None = None
        self._took_seconds = 0.0

    def scrape(self, open_metrics: bool) -> tuple[str, bytes]:
        """Return (content type, text)."""
        begin = self._seconds()
        page = Page(open_metrics)
        page.family("pylog_build_info", [((__version__, self._node_id, self._cluster_id), 1)])
        appends = self._partitions(page)
        replicas = self._replicas()
        for family, name in REPLICA_STATS:
            page.single(family, replicas.get(name, 0))
        page.single("pylog_audit_dropped", self._audit_dropped())
        self._groups.write(page)
        shared = dict(self._shares())
        for family in metrics.SHARES:
            page.family(family, shared.get(family, []))
        self._count_requests(page)
        self._count_reactors(page)
        self._directories(page, appends)
        self._lmdb(page)
        self._process(page)
        for source in self.sources:
            for name, samples in source():
                page.family(name, samples)
        page.single("pylog_scrape_seconds", self._took_seconds)
        text = page.value()
        self._took_seconds = self._seconds() - begin
        return page.content_type, text

    # ---- topics and partitions ------------------------------------------------------------------

    def _partitions(self, page) -> int:
        """Write the metrics of topics and partitions; return the number of appended batches."""
        open_logs, boundaries, layout, missing = [], [], [], 0
        for name, logs in self._logs.by_topic():
            indices = [index for index, partition_log in enumerate(logs)
                       if partition_log is not None]
            missing += len(logs) - len(indices)
            open_logs += [logs[index] for index in indices]
            boundaries.append(len(open_logs))
            layout.append((name, len(logs), None if len(indices) == len(logs) else indices))
        topic_rows, partition_rows = self._rows(layout)
        stats = native_metrics.Figures(open_logs)
        sums = stats.sums(boundaries)
        page.columns(topic_rows, sums, TOPIC_COLUMNS)
        offline, = stats.columns("offline")
        page.single("pylog_partitions", len(open_logs))
        page.single("pylog_partitions_offline",
                 sum(offline) + max(0, missing - self._logs.recovering))
        page.columns(partition_rows, stats, PARTITION_COLUMNS)
        batches, = sums.columns("batches_in")
        return sum(batches)

    def _rows(self, layout):
        """Return the labels of all topics and partitions, cached while these do not change."""
        if self._layout is None or self._layout[0] != layout:
            topics = [labels("pylog_topic_in_bytes", name) for name, _, _ in layout]
            partitions = [b'%s,partition="%d"' % (topic, index)
                          for topic, (_, count, some) in zip(topics, layout, strict=True)
                          for index in (range(count) if some is None else some)]
            self._layout = layout, native_metrics.Rows(topics), native_metrics.Rows(partitions)
        return self._layout[1:]

    # ---- requests and reactors ------------------------------------------------------------------

    def _count_requests(self, page) -> None:
        found = native_metrics.requests(self._reactors)
        names = {key: tables.api_name(key) for key in found}
        for family, kind in REQUEST_HISTOGRAMS:
            page.histograms(family, [((names[key],), histograms[kind])
                                     for key, (histograms, _) in found.items()
                                     if any(histograms[kind][1])])
        page.family("pylog_request_errors", [
            ((names[key], error_name(code)), count)
            for key, (_, errors) in found.items() for code, count in errors.items()])

    def _count_reactors(self, page) -> None:
        reactors = self._reactors
        stats = reactors.stats()
        for family, name in REACTOR_STATS:
            page.single(family, stats[name])
        page.family("pylog_connections_over_descriptor_limit", [
            ((reason,), stats[name]) for reason, name in CROWDED])
        resumed = stats["handshakes_resumed"]
        page.family("pylog_tls_handshakes", [
            (("full",), stats["handshakes"] - resumed), (("resumed",), resumed),
            (("failed",), stats["handshakes_failed"])])
        causes = [(cause, stats[name]) for cause, name in CLOSED]
        other = max(0, stats["connections_closed"] - sum(count for _, count in causes))
        page.family("pylog_connections_closed", [
            ((cause,), count) for cause, count in [*causes, ("other", other)]])
        page.single("pylog_reactor_threads", reactors.threads)
        page.histograms("pylog_reactor_round_seconds", [((), native_metrics.rounds(reactors))])
        page.family("pylog_reactor_waits", [((cause,), stats[name]) for cause, name in WAITS])

    # ---- disks ----------------------------------------------------------------------------------

    def _directories(self, page, appends: int) -> None:
        logs = self._logs
        every = list(zip(logs.paths, list(logs.directories), strict=False))
        page.family("pylog_log_directory_offline", [
            ((path,), int(directory is None or directory.offline)) for path, directory in every])
        found = [((path,), directory) for path, directory in every if directory is not None]
        page.family("pylog_log_directory_full", [
            (values, int(directory.short_of_space)) for values, directory in found])
        free = []
        for values, _ in found:
            with contextlib.suppress(OSError):
                disk = os.statvfs(values[0])
                free.append((values, disk.f_bavail * disk.f_frsize))
        page.family("pylog_log_directory_free_bytes", free)
        stats = [(values, directory.stats()) for values, directory in found]
        for family, name in DIRECTORY_STATS:
            page.family(family, [(values, row[name]) for values, row in stats])
        damaged = [(values, damage_report.figures(directory)) for values, directory in found]
        page.family("pylog_log_corruptions", [
            ((*values, kind), row[f"damages_{kind}"])
            for values, row in damaged for kind in ("cut", "kept")])
        for family, name in (("pylog_log_truncated_bytes", "bytes_cut"),
                             ("pylog_log_recovery_checked_bytes", "recovered_bytes"),
                             ("pylog_log_recovery_trusted_bytes", "trusted_bytes")):
            page.family(family, [(values, row[name]) for values, row in damaged])
        page.single("pylog_log_recovery_partitions_remaining", logs.recovering)
        page.histograms("pylog_log_flush_seconds", [
            (values, native_metrics.flushes(directory)) for values, directory in found])
        page.single("pylog_log_appends", appends)
        jobs = self._io_pool.stats()
        page.single("pylog_io_jobs", jobs["done"])
        page.single("pylog_io_jobs_waiting", jobs["waiting"])
        cleaner = logs.cleaner.stats()
        for family, name in CLEANER_STATS:
            page.single(family, cleaner[name])

    def _lmdb(self, page) -> None:
        for name, number in self._store.metrics().items():
            page.single(f"pylog_lmdb_{name}", number)

    # ---- the process ----------------------------------------------------------------------------

    def _process(self, page) -> None:
        page.family("pylog_background_failures", [
            ((work,), count) for work, count in sorted(supervisor.failures().items())])
        for name, number in process_metrics().items():
            page.single(name, number)


def process_metrics() -> dict:
    """Return the process's own metrics from the kernel."""
    with open("/proc/self/stat", "rb") as file:
        # The second field may contain spaces and parentheses.
        fields = file.read().rpartition(b")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    with open("/proc/stat", "rb") as file:
        booted = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
    found = {
        "process_cpu_seconds": (int(fields[11]) + int(fields[12])) / ticks,
        "process_resident_memory_bytes": int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        "process_virtual_memory_bytes": int(fields[20]),
        "process_open_fds": _open_descriptors(),
        "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "process_threads": int(fields[17]),
        "process_start_time_seconds": booted + int(fields[19]) / ticks}
    assert found.keys() <= metrics.TABLE.keys(), found
    return found


def _open_descriptors() -> int:
    # Since Linux 6.2 the directory's size is the count. Before, it is 0, so count the names.
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")) - 1
