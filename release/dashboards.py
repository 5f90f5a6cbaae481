"""Generates the Grafana dashboards of each role: broker, cluster, clients, host.

Owns: the tables of panels.
Invariants: panels fill rows of 24 columns from left to right; the same tables give the same bytes.
Source: Grafana's dashboard JSON, schema 38. docs/grafana/pylog.json is the overview of everything.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

COLUMNS, STAT_WIDTH, WIDTH, HEIGHT = 24, 4, 8, 7
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HERE, CLUSTER = 'instance=~"$instance"', 'job=~"$job"'
RATE = "[$__rate_interval]"


class Panel(NamedTuple):
    """queries: {legend: PromQL}. A stat shows one number."""

    title: str
    unit: str
    queries: dict[str, str]
    is_stat: bool = False


def _p99(histogram: str, by: str, more: str = "") -> str:
    return (f"histogram_quantile(0.99, sum by ({by}, le) "
            f"(rate({histogram}_bucket{{{HERE}{more}}}{RATE})))")


def _rate(counter: str, by: str = "", more: str = "") -> str:
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate({counter}{{{HERE}{more}}}{RATE}))"


BROKER: dict[str, list[Panel]] = {
    "Now": [
        Panel("Records in", "cps", {"": _rate("pylog_topic_in_records_total")}, True),
        Panel("Bytes in", "Bps", {"": _rate("pylog_network_in_bytes_total")}, True),
        Panel("Bytes out", "Bps", {"": _rate("pylog_network_out_bytes_total")}, True),
        Panel("Unavailable partitions", "short",
              {"": f"sum(pylog_partitions_offline{{{HERE}}})"}, True),
        Panel("Recovering partitions", "short",
              {"": f"sum(pylog_log_recovery_partitions_remaining{{{HERE}}})"}, True),
        Panel("Started", "dateTimeFromNow",
              {"": f"1000 * max(process_start_time_seconds{{{CLUSTER},{HERE}}})"}, True)],
    "Requests": [
        Panel("Requests by API", "reqps",
              {"{{api}}": _rate("pylog_request_seconds_count", "api")}),
        Panel("Duration, p99", "s", {"{{api}}": _p99(
            "pylog_request_seconds", "api", ',api!~"JoinGroup|SyncGroup"')}),
        Panel("Errors", "cps", {"{{api}} {{error}}": _rate(
            "pylog_request_errors_total", "api, error") + " > 0"}),
        Panel("Waiting, p99", "s", {"{{api}}": _p99("pylog_request_remote_seconds", "api")}),
        Panel("Queue of the control plane, p99", "s", {
            "{{api}}": _p99("pylog_request_queue_seconds", "api")}),
        Panel("Slow and throttled", "cps", {
            "slow": _rate("pylog_requests_slow_total"),
            "throttled": _rate("pylog_requests_throttled_total")})],
    "Network threads": [
        Panel("Busy", "percentunit", {"{{instance}}":
              _rate("pylog_reactor_round_seconds_sum", "instance")
              + f" / sum by (instance) (pylog_reactor_threads{{{HERE}}})"}),
        Panel("Waits", "cps", {"{{cause}}": _rate("pylog_reactor_waits_total", "cause")}),
        Panel("Memory of requests", "bytes", {
            "{{instance}}": f"pylog_reactor_input_buffer_bytes{{{HERE}}}"})],
    "Log directories": [
        Panel("Flush, p99", "s", {"{{instance}} {{directory}}": _p99(
            "pylog_log_flush_seconds", "instance, directory")}),
        Panel("Free space", "bytes", {
            "{{instance}} {{directory}}": f"pylog_log_directory_free_bytes{{{HERE}}}"}),
        Panel("Failed or full", "short", {
            "failed {{directory}}": f"pylog_log_directory_offline{{{HERE}}}",
            "full {{directory}}": f"pylog_log_directory_full{{{HERE}}}"}),
        Panel("Compaction", "Bps", {
            "read": _rate("pylog_cleaner_read_bytes_total"),
            "written": _rate("pylog_cleaner_written_bytes_total")}),
        Panel("Partitions without compaction", "short", {
            "{{instance}}": f"pylog_cleaner_uncleanable_partitions{{{HERE}}}"}),
        Panel("Cold reads", "cps", {
            "{{topic}}": f"topk(10, {_rate('pylog_topic_cold_reads_total', 'topic')})"})],
}

CLUSTER_ROWS: dict[str, list[Panel]] = {
    "Now": [
        Panel("Active brokers", "short",
              {"": f'max(pylog_cluster_brokers{{state="active",{CLUSTER}}})'}, True),
        Panel("Fenced brokers", "short",
              {"": f'max(pylog_cluster_brokers{{state="fenced",{CLUSTER}}})'}, True),
        Panel("Active controllers", "short",
              {"": f"sum(pylog_controller_active{{{CLUSTER}}})"}, True),
        Panel("Offline partitions", "short",
              {"": f"max(pylog_cluster_partitions_offline{{{CLUSTER}}})"}, True),
        Panel("Under min.insync.replicas", "short",
              {"": f"sum(pylog_replica_partitions_under_min_isr{{{CLUSTER}}})"}, True),
        Panel("Under-replicated", "short",
              {"": f"sum(pylog_replica_partitions_under_replicated{{{CLUSTER}}})"}, True)],
    "Controller": [
        Panel("Active controller", "short", {
            "{{instance}}": f"pylog_controller_active{{{CLUSTER}}}"}),
        Panel("Controller epoch", "short", {
            "{{instance}}": f"pylog_controller_epoch{{{CLUSTER}}}"}),
        Panel("Elections", "short", {
            "{{kind}}": f"sum by (kind) (increase(pylog_controller_elections_total{{{CLUSTER}}}"
                        "[5m]))"}),
        Panel("Metadata behind the newest", "short", {
            "{{instance}}": f"scalar(max(pylog_metadata_offset{{{CLUSTER}}})) - "
                            f"pylog_metadata_offset{{{CLUSTER}}}"}),
        Panel("Partitions on the move", "short", {
            "moving": f"max(pylog_cluster_partitions_moving{{{CLUSTER}}})",
            "not led by their first replica":
                f"max(pylog_cluster_non_preferred_leaders{{{CLUSTER}}})"}),
        Panel("Metadata appends", "s", {
            "mean": f"sum(rate(pylog_quorum_append_seconds_total{{{CLUSTER}}}{RATE})) / "
                    f"sum(rate(pylog_quorum_appends_total{{{CLUSTER}}}{RATE}))"})],
    "Quorum (etcd or ZooKeeper)": [
        Panel("Reachable from the controllers", "short", {
            "{{instance}}": f"pylog_quorum_reachable{{{CLUSTER}}}"}),
        Panel("Members", "short", {
            "{{member}}": f"max by (member) (pylog_quorum_member_up{{{CLUSTER}}})"}),
        Panel("Answer time", "s", {
            "{{member}}": f"max by (member) (pylog_quorum_member_response_seconds{{{CLUSTER}}})"}),
        Panel("Stored", "bytes", {
            "{{member}}": f"max by (member) (pylog_quorum_member_stored_bytes{{{CLUSTER}}})"}),
        Panel("Failed calls", "cps", {
            "{{instance}}": f"rate(pylog_quorum_failures_total{{{CLUSTER}}}{RATE})"}),
        Panel("No space", "short", {"{{instance}}": f"pylog_quorum_full{{{CLUSTER}}}"})],
    "Replication": [
        Panel("Followers behind, records", "short", {
            "broker {{follower}}":
                f"max by (follower) (pylog_replica_follower_lag_records{{{CLUSTER}}})"}),
        Panel("Followers behind, time", "s", {
            "broker {{follower}}":
                f"max by (follower) (pylog_replica_follower_lag_seconds{{{CLUSTER}}})"}),
        Panel("ISR changes", "cps", {
            "shrinks": f"sum(rate(pylog_replica_isr_shrinks_total{{{CLUSTER}}}{RATE}))",
            "expansions": f"sum(rate(pylog_replica_isr_expands_total{{{CLUSTER}}}{RATE}))"}),
        Panel("Leaders", "short", {
            "{{instance}}": f"pylog_replica_partitions_led{{{CLUSTER}}}"}),
        Panel("Copied from leaders", "Bps", {
            "{{instance}}": f"rate(pylog_replica_in_bytes_total{{{CLUSTER}}}{RATE})"}),
        Panel("Lost connections and failed partitions", "short", {
            "lost {{instance}}":
                f"increase(pylog_replica_connections_lost_total{{{CLUSTER}}}[5m])",
            "failed {{instance}}": f"pylog_replica_partitions_failed{{{CLUSTER}}}"})],
}

_GROUP = f'{CLUSTER},group=~"$group"'
CLIENTS: dict[str, list[Panel]] = {
    "Now": [
        Panel("Groups", "short", {"": f"sum(pylog_groups{{{CLUSTER}}})"}, True),
        Panel("Oldest uncommitted record", "s",
              {"": f"max(pylog_group_lag_seconds{{{_GROUP}}})"}, True),
        Panel("Lag", "short", {"": f"sum(pylog_group_lag_records{{{_GROUP}}})"}, True),
        Panel("Connections", "short", {"": f"sum(pylog_connections{{{CLUSTER}}})"}, True),
        Panel("Throttled requests", "cps",
              {"": f"sum(rate(pylog_requests_throttled_total{{{CLUSTER}}}{RATE}))"}, True),
        Panel("Groups left out", "short", {"": f"max(pylog_groups_omitted{{{CLUSTER}}})"}, True)],
    "Consumer groups": [
        Panel("Lag in time", "s", {
            "{{group}}": f"topk(10, max by (group) (pylog_group_lag_seconds{{{_GROUP}}}))"}),
        Panel("Lag in records", "short", {
            "{{group}}": f"topk(10, sum by (group) (pylog_group_lag_records{{{_GROUP}}}))"}),
        Panel("Progress", "cps", {
            "{{group}}": "topk(10, sum by (group) (deriv(pylog_group_committed_offset"
                         f"{{{_GROUP}}}[5m])))"}),
        Panel("Members", "short", {
            "{{group}}": f"topk(10, sum by (group) (pylog_group_members{{{_GROUP}}}))"}),
        Panel("Rebalances in 5 minutes", "short", {
            "{{group}}": "topk(10, sum by (group) "
                         f"(increase(pylog_group_generations_total{{{_GROUP}}}[5m])))"}),
        Panel("States", "short", {"{{state}}": f"sum by (state) (pylog_groups{{{CLUSTER}}})"})],
    "Share groups": [
        Panel("Acquired", "cps", {
            "{{group}}": f"sum by (group) (rate(pylog_share_acquired_records_total{{{_GROUP}}}"
                         f"{RATE}))"}),
        Panel("Acknowledged", "cps", {
            "{{group}} {{type}}": "sum by (group, type) "
                                  f"(rate(pylog_share_acknowledged_records_total{{{_GROUP}}}"
                                  f"{RATE}))"}),
        Panel("Expired locks and dead letters", "cps", {
            "expired {{group}}":
                f"sum by (group) (rate(pylog_share_expired_records_total{{{_GROUP}}}{RATE}))",
            "dead {{group}}":
                f"sum by (group) (rate(pylog_share_dead_letters_total{{{_GROUP}}}{RATE}))"})],
    "Topics": [
        Panel("Bytes in", "Bps", {
            "{{topic}}": "topk(10, sum by (topic) "
                         f"(rate(pylog_topic_in_bytes_total{{{CLUSTER}}}{RATE})))"}),
        Panel("Bytes out", "Bps", {
            "{{topic}}": "topk(10, sum by (topic) "
                         f"(rate(pylog_topic_out_bytes_total{{{CLUSTER}}}{RATE})))"}),
        Panel("Rejected partitions", "cps", {
            "{{topic}}": "sum by (topic) "
                         f"(rate(pylog_topic_produce_failures_total{{{CLUSTER}}}{RATE})) > 0"})],
    "Connections": [
        Panel("Accepted and refused", "cps", {
            "accepted": f"sum(rate(pylog_connections_accepted_total{{{CLUSTER}}}{RATE}))",
            "refused": f"sum(rate(pylog_connections_refused_total{{{CLUSTER}}}{RATE}))"}),
        Panel("Closed", "cps", {
            "{{cause}}": f"sum by (cause) (rate(pylog_connections_closed_total{{{CLUSTER}}}"
                         f"{RATE}))"}),
        Panel("TLS handshakes", "cps", {
            "{{end}}": f"sum by (end) (rate(pylog_tls_handshakes_total{{{CLUSTER}}}{RATE}))"})],
}

_PROCESS = f"{CLUSTER},{HERE}"
HOST: dict[str, list[Panel]] = {
    "Now": [
        Panel("CPU", "percentunit",
              {"": f"sum(rate(process_cpu_seconds_total{{{_PROCESS}}}{RATE}))"}, True),
        Panel("Resident memory", "bytes",
              {"": f"sum(process_resident_memory_bytes{{{_PROCESS}}})"}, True),
        Panel("Threads", "short", {"": f"sum(process_threads{{{_PROCESS}}})"}, True),
        Panel("Descriptors in use", "percentunit",
              {"": f"max(process_open_fds{{{_PROCESS}}} / process_max_fds{{{_PROCESS}}})"}, True),
        Panel("Least free space", "bytes",
              {"": f"min(pylog_log_directory_free_bytes{{{HERE}}})"}, True),
        Panel("Background failures", "short",
              {"": f"sum(pylog_background_failures_total{{{HERE}}})"}, True)],
    "Process": [
        Panel("CPU", "percentunit", {
            "{{instance}}": f"rate(process_cpu_seconds_total{{{_PROCESS}}}{RATE})"}),
        Panel("Memory", "bytes", {
            "resident {{instance}}": f"process_resident_memory_bytes{{{_PROCESS}}}",
            "address space {{instance}}": f"process_virtual_memory_bytes{{{_PROCESS}}}"}),
        Panel("Descriptors", "short", {
            "open {{instance}}": f"process_open_fds{{{_PROCESS}}}",
            "limit {{instance}}": f"process_max_fds{{{_PROCESS}}}",
            "segments {{directory}}": f"pylog_log_open_files{{{HERE}}}"}),
        Panel("Threads", "short", {"{{instance}}": f"process_threads{{{_PROCESS}}}"}),
        Panel("io pool", "short", {
            "waiting {{instance}}": f"pylog_io_jobs_waiting{{{HERE}}}",
            "done per second {{instance}}": f"rate(pylog_io_jobs_total{{{HERE}}}{RATE})"}),
        Panel("Background failures in 1 h", "short", {
            "{{work}}": f"increase(pylog_background_failures_total{{{HERE}}}[1h])"})],
    "Disk": [
        Panel("Free space", "bytes", {
            "{{instance}} {{directory}}": f"pylog_log_directory_free_bytes{{{HERE}}}"}),
        Panel("Flush, p50 and p99", "s", {
            "p50 {{directory}}": "histogram_quantile(0.5, sum by (directory, le) "
                                 f"(rate(pylog_log_flush_seconds_bucket{{{HERE}}}{RATE})))",
            "p99 {{directory}}": _p99("pylog_log_flush_seconds", "directory")}),
        Panel("Shortages of space, descriptors, memory", "short", {
            "{{directory}}": f"increase(pylog_log_shortages_total{{{HERE}}}[5m])"}),
        Panel("state.lmdb", "percentunit", {
            "{{instance}}": f"pylog_lmdb_used_bytes{{{HERE}}} / pylog_lmdb_map_bytes{{{HERE}}}"}),
        Panel("Damaged data", "short", {
            "{{kind}} {{directory}}": f"pylog_log_corruptions_total{{{HERE}}}"}),
        Panel("Segments", "cps", {
            "created": f"sum(rate(pylog_log_rolls_total{{{HERE}}}{RATE}))",
            "deleted": f"sum(rate(pylog_log_segments_deleted_total{{{HERE}}}{RATE}))"})],
    "Network": [
        Panel("Bytes", "Bps", {
            "in {{instance}}": _rate("pylog_network_in_bytes_total", "instance"),
            "out {{instance}}": _rate("pylog_network_out_bytes_total", "instance"),
            "of these by sendfile {{instance}}":
                _rate("pylog_network_sendfile_bytes_total", "instance")}),
        Panel("Crowded connections", "cps", {
            "{{action}}": _rate("pylog_connections_over_descriptor_limit_total", "action")}),
        Panel("Duration of a scrape", "s", {"{{instance}}": f"pylog_scrape_seconds{{{HERE}}}"})],
}

DASHBOARDS: dict[str, tuple[str, dict[str, list[Panel]]]] = {
    "broker": ("pylog: broker", BROKER),
    "cluster": ("pylog: cluster and controllers", CLUSTER_ROWS),
    "clients": ("pylog: groups and clients", CLIENTS), "host": ("pylog: host", HOST)}


def dashboard(name: str) -> dict[str, Any]:
    """Return the dashboard of a role as Grafana's JSON."""
    title, rows = DASHBOARDS[name]
    panels: list[dict[str, Any]] = []
    y = 0
    for row, content in rows.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": row, "collapsed": False,
                       "panels": [], "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}})
        y += 1
        x = height = 0
        for panel in content:
            width, height = (STAT_WIDTH, STAT_WIDTH) if panel.is_stat else (WIDTH, HEIGHT)
            if x + width > COLUMNS:
                x, y = 0, y + height
            panels.append(_panel(len(panels) + 1, panel,
                                 {"x": x, "y": y, "w": width, "h": height}))
            x += width
        y += height
    return {"title": title, "uid": f"pylog-{name}", "tags": ["pylog", "kafka"],
            "schemaVersion": 38, "version": 1, "editable": True, "timezone": "browser",
            "refresh": "10s", "time": {"from": "now-30m", "to": "now"},
            "templating": {"list": _variables(name)}, "annotations": {"list": []},
            "panels": panels,
            "links": [{"type": "dashboards", "tags": ["pylog"], "title": "pylog",
                       "asDropdown": True}]}


def _variables(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{
        "name": "datasource", "type": "datasource", "query": "prometheus", "current": {}}]
    queries = {"job": "label_values(pylog_build_info, job)",
               "instance": 'label_values(pylog_build_info{job=~"$job"}, instance)'}
    if name == "clients":
        queries["group"] = "label_values(pylog_group_members, group)"
    for variable, query in queries.items():
        found.append({
            "name": variable, "type": "query", "datasource": SOURCE, "refresh": 2, "multi": True,
            "query": {"query": query, "refId": variable}, "includeAll": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"}})
    return found


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    options: dict[str, Any] = {
        "reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"} \
        if panel.is_stat else {"legend": {"displayMode": "list", "placement": "bottom"},
                               "tooltip": {"mode": "multi", "sort": "desc"}}
    return {
        "id": number, "type": "stat" if panel.is_stat else "timeseries", "title": panel.title,
        "datasource": SOURCE, "gridPos": place, "options": options,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [{"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": query,
                     "legendFormat": legend}
                    for at, (legend, query) in enumerate(panel.queries.items())]}


def text(name: str) -> str:
    """Return the content of a dashboard's file."""
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    for _name in DASHBOARDS:
        (Path(sys.argv[1]) / f"{_name}.json").write_text(text(_name), encoding="utf-8")
