"""Generates the alert rules for Prometheus and the page that explains them.

Owns: the table of alerts.
Invariants: each alert has a heading of its own on the page, and its rule links to that heading; the
  same table gives the same bytes.
Source: Prometheus' alerting rules; Google's SRE book (alerts on symptoms).
"""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

PAGE = "docs/howto/alerts.md"
RULES = "docs/alerts/pylog.rules.yml"
CRITICAL, WARNING = "critical", "warning"
# Restricts the process_* metrics, which every exporter has, to brokers.
BROKERS = "and on (job, instance) pylog_build_info"


class Alert(NamedTuple):
    """expression: PromQL. hold: how long it must be true. summary: what is wrong, with
    Prometheus' templates. meaning, remedy: Markdown for the page, without templates.
    """

    name: str
    severity: str
    expression: str
    hold: str
    summary: str
    meaning: str
    remedy: str


def _new(counter: str, window: str) -> str:
    """Return an expression for counters that increased, including series that are new."""
    return (f"{counter} - {counter} offset {window} > 0\n"
            f"or (({counter} unless {counter} offset {window}) > 0)")


GROUPS: dict[str, tuple[Alert, ...]] = {
    "pylog-broker": (
        Alert("PylogBrokerDown", CRITICAL, 'up{job=~"pylog.*"} == 0', "1m",
              "brokerd {{ $labels.instance }} does not answer scrapes",
              "Prometheus cannot read the broker's metrics endpoint. The process ended, the "
              "machine "
              "is unreachable, or the token or certificate of the scrape is wrong.",
              "Run `pylog health --url http://HOST:9644` and `systemctl status brokerd`. The last "
              "lines of the broker's log name the reason of its end. `up` needs a scrape job whose "
              "name begins with `pylog`."),
        Alert("PylogBrokerRestarts", WARNING,
              f"changes(process_start_time_seconds[30m]) > 2 {BROKERS}", "0m",
              "brokerd {{ $labels.instance }} started {{ $value }} times in 30 minutes",
              "The broker ends and its supervisor starts it again.",
              "Read the last lines of the log before each start. Look for `brokerd stops` and, in "
              "the kernel's log, for the OOM killer (`dmesg`)."),
        Alert("PylogPartitionsUnavailableHere", CRITICAL, "pylog_partitions_offline > 0", "1m",
              "{{ $value }} partitions cannot be served by {{ $labels.instance }}",
              "The broker could not open these partitions, or their log directory failed.",
              "Run `pylog cluster status` and `pylog cluster explain TOPIC-PARTITION`. After you "
              "have replaced a disk, restart the broker: with replicas, it copies the data from "
              "other brokers."),
        Alert("PylogRecoveryTakesLong", WARNING, "pylog_log_recovery_partitions_remaining > 0",
              "15m", "{{ $labels.instance }} is still recovering {{ $value }} partitions",
              "After an unclean stop, the broker checks its logs. Partitions that wait for it "
              "return NOT_LEADER_OR_FOLLOWER.",
              "Wait while `pylog_log_recovery_checked_bytes_total` increases. Raise "
              "`num.recovery.threads.per.data.dir` before the next start if the disk is not busy."),
        Alert("PylogBackgroundFailure", WARNING, _new("pylog_background_failures_total", "15m"),
              "0m", "{{ $labels.work }} failed unexpectedly on {{ $labels.instance }}",
              "A background task of the broker ended with an unexpected error. It was restarted.",
              "The log has the traceback (`work=` names the task). Report it with the output of "
              "`pylog support-bundle`."),
        Alert("PylogAuditLost", CRITICAL, "increase(pylog_audit_dropped_total[10m]) > 0", "0m",
              "{{ $labels.instance }} dropped audit log lines",
              "The audit log's file or topic had no space, so decisions of the authorizer are "
              "missing there.",
              "Make space where `audit.log.file` is, or check the topic in `audit.log.topic`."),
    ),
    "pylog-cluster": (
        Alert("PylogPartitionsOffline", CRITICAL,
              "max by (job) (pylog_cluster_partitions_offline) > 0", "1m",
              "{{ $value }} partitions of {{ $labels.job }} have no leader",
              "No broker serves these partitions: all their in-sync replicas are down.",
              "Run `pylog cluster status`, and start the brokers that it names. Only if their data "
              "is lost, see [Repair a cluster](cluster-repair.md)."),
        Alert("PylogUnderMinIsr", CRITICAL, "pylog_replica_partitions_under_min_isr > 0", "1m",
              "{{ $value }} partitions led by {{ $labels.instance }} have too few in-sync replicas",
              "Producers with `acks=all` get NOT_ENOUGH_REPLICAS, because fewer than "
              "`min.insync.replicas` replicas are in sync.",
              "Run `pylog topics partitions --under-replicated`, and start or repair the brokers "
              "that "
              "are missing in the ISR."),
        Alert("PylogUnderReplicated", WARNING, "pylog_replica_partitions_under_replicated > 0",
              "5m", "{{ $value }} partitions led by {{ $labels.instance }} have a lagging replica",
              "A follower is down or too slow.",
              "Run `pylog cluster explain TOPIC-PARTITION`. If the follower runs, compare "
              "`pylog_replica_follower_lag_records` over time: a constant lag points to a throttle "
              "or a slow disk."),
        Alert("PylogReplicationFailed", WARNING, "pylog_replica_partitions_failed > 0", "2m",
              "{{ $labels.instance }} stopped fetching {{ $value }} partitions",
              "A follower met an error that a retry cannot repair.",
              "Look for the error in the follower's log, then restart that broker."),
        Alert("PylogBrokerFenced", WARNING,
              'max by (job) (pylog_cluster_brokers{state="fenced"}) > 0', "5m",
              "{{ $value }} brokers of {{ $labels.job }} are fenced",
              "A registered broker sends no heartbeats, or is still recovering. It leads nothing.",
              "Start it, or run `pylog cluster forget ID` if it will not return."),
        Alert("PylogMetadataBehind", WARNING,
              "max by (job) (pylog_metadata_offset) - on (job) group_right ()\n"
              "pylog_metadata_offset > 100", "2m",
              "{{ $labels.instance }} lacks {{ $value }} metadata records",
              "The broker does not follow the controller: it knows outdated leaders and topics.",
              "Check the connection from this broker to the controllers. `/readyz` shows whether "
              "the controller answers its heartbeats."),
        Alert("PylogUncleanElection", CRITICAL,
              'increase(pylog_controller_elections_total{kind="unclean"}[15m]) > 0', "0m",
              "a leader without all acknowledged records was elected by {{ $labels.instance }}",
              "`unclean.leader.election.enable` or an operator allowed a replica that was not in "
              "sync to lead. Acknowledged records may be lost.",
              "The controller's log names the partitions. Compare them with their sources, and "
              "turn the setting off again."),
    ),
    "pylog-controller": (
        Alert("PylogNoController", CRITICAL, "sum by (job) (pylog_controller_active) == 0", "1m",
              "{{ $labels.job }} has no active controller",
              "Nothing changes without a controller: no elections, no new topics. Partitions whose "
              "leaders run are still served.",
              "Run `pylog cluster status`. Start a majority of the controllers. The rule needs "
              "scrapes of the controllers in the same job."),
        Alert("PylogSeveralControllers", CRITICAL, "sum by (job) (pylog_controller_active) > 1",
              "2m", "{{ $value }} controllers of {{ $labels.job }} are active at once",
              "Two clusters share a job name, or two nodes have lost sight of each other and the "
              "old controller has not noticed yet.",
              "Give each cluster its own job. Otherwise compare `pylog_controller_epoch`: only the "
              "highest epoch can change metadata."),
        Alert("PylogQuorumLost", CRITICAL, "pylog_quorum_reachable == 0", "1m",
              "controller {{ $labels.instance }} cannot reach the quorum",
              "A majority of etcd or ZooKeeper does not answer, so the metadata cannot change.",
              "Run `pylog cluster status`: it lists each member. Start the members that do not "
              "answer, and check the ports between the controllers."),
        Alert("PylogQuorumFull", CRITICAL, "pylog_quorum_full == 1", "0m",
              "etcd of {{ $labels.instance }} has no space",
              "etcd rejected a change with the alarm NOSPACE.",
              "Make space on its disk, then compact, defragment and disarm: `etcdctl compact`, "
              "`etcdctl defrag`, `etcdctl alarm disarm`."),
        Alert("PylogQuorumMemberDown", WARNING,
              "max by (job, member) (pylog_quorum_member_up) == 0", "2m",
              "quorum member {{ $labels.member }} does not answer",
              "One member of etcd or ZooKeeper is down. The quorum works while a majority runs.",
              "Start it. If its disk is lost, see [Repair a cluster](cluster-repair.md)."),
    ),
    "pylog-disk": (
        Alert("PylogLogDirectoryOffline", CRITICAL, "pylog_log_directory_offline == 1", "0m",
              "log directory {{ $labels.directory }} of {{ $labels.instance }} failed",
              "A write, read or flush returned an I/O error. The broker does not use the directory "
              "until it is restarted.",
              "Check `dmesg` and the disk. Replace it, mount an empty file system at the same path "
              "and restart the broker."),
        Alert("PylogLogDirectoryFull", CRITICAL, "pylog_log_directory_full == 1", "0m",
              "log directory {{ $labels.directory }} of {{ $labels.instance }} has no space",
              "Less than `log.dir.min.free.bytes` is free, so produce requests are rejected.",
              "Delete records (`pylog topics delete-records`), lower `retention.bytes` of the "
              "largest topics, or extend the file system."),
        Alert("PylogDiskFullSoon", WARNING,
              "predict_linear(pylog_log_directory_free_bytes[6h], 86400) < 0", "30m",
              "log directory {{ $labels.directory }} of {{ $labels.instance }} is full in a day",
              "At the growth of the last six hours, the file system has no space in 24 hours.",
              "Compare `pylog topics list` with the retention of the topics."),
        Alert("PylogSlowFlush", WARNING,
              "histogram_quantile(0.99, sum by (job, instance, directory, le)\n"
              "(rate(pylog_log_flush_seconds_bucket[5m]))) > 0.5", "10m",
              "a flush of {{ $labels.directory }} of {{ $labels.instance }} takes {{ $value }} s",
              "Every acknowledged record waits for a flush of this disk.",
              "Run `pylog doctor` on the broker: it measures the disk. Move other load away."),
        Alert("PylogShortage", WARNING, "increase(pylog_log_shortages_total[10m]) > 0", "0m",
              "{{ $labels.instance }} lacks space, descriptors or memory",
              "System calls of the log failed for lack of a resource. The broker retries them.",
              "The log names the resource. `pylog doctor` checks all three."),
        Alert("PylogDamagedRecords", WARNING, 'pylog_log_corruptions_total{kind="kept"} > 0', "0m",
              "damaged data in {{ $labels.directory }} of {{ $labels.instance }}",
              "The broker found damaged batches between good ones. Consumers skip them.",
              "Run `pylog log verify DIRECTORY`. Stop the broker, and run `pylog log repair`, "
              "which "
              "shows the damage before it changes anything."),
        Alert("PylogCompactionStopped", WARNING, "pylog_cleaner_uncleanable_partitions > 0", "0m",
              "{{ $labels.instance }} no longer compacts {{ $value }} partitions",
              "A compaction failed. These partitions only grow until the broker is restarted.",
              "The log names the partition and the reason, for example damaged data or a disk "
              "without space. Repair that, and restart the broker."),
    ),
    "pylog-load": (
        Alert("PylogSlowProduce", WARNING,
              "histogram_quantile(0.99, sum by (job, instance, le)\n"
              '(rate(pylog_request_seconds_bucket{api="Produce"}[5m]))) > 1', "10m",
              "one in a hundred produce requests to {{ $labels.instance }} takes {{ $value }} s",
              "Producers wait for the disk or for followers.",
              "Compare `pylog_request_local_seconds`, `pylog_request_remote_seconds` and "
              "`pylog_log_flush_seconds`. The log has each slow request."),
        Alert("PylogNetworkThreadsBusy", WARNING,
              "sum by (job, instance) (rate(pylog_reactor_round_seconds_sum[5m]))\n"
              "/ sum by (job, instance) (pylog_reactor_threads) > 0.9", "10m",
              "network threads of {{ $labels.instance }} are {{ $value | humanizePercentage }} "
              "busy",
              "The broker is close to the most that its network threads can serve.",
              "Raise `num.network.threads` up to the number of cores, or move leaders to other "
              "brokers with `pylog cluster elect`."),
        Alert("PylogFewDescriptors", WARNING,
              f"process_open_fds / process_max_fds > 0.85 {BROKERS}", "10m",
              "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of its descriptors",
              "At the limit, new connections are refused or idle ones closed.",
              "Raise the limit (`LimitNOFILE=` in the unit, `ulimit -n` elsewhere) and restart."),
        Alert("PylogConnectionsRefused", WARNING,
              "increase(pylog_connections_refused_total[10m]) > 0\n"
              "or increase(pylog_connections_over_descriptor_limit_total"
              '{action="refused"}[10m]) > 0', "5m",
              "{{ $labels.instance }} refuses connections",
              "Clients exceed `max.connections.per.ip`, their quota, or the limit of descriptors.",
              "Find clients that connect in a loop: the log names their addresses."),
        Alert("PylogTlsHandshakesFail", WARNING,
              'increase(pylog_tls_handshakes_total{end="failed"}[10m]) > 50', "10m",
              "{{ $value }} TLS handshakes with {{ $labels.instance }} failed in 10 minutes",
              "Clients distrust the broker's certificate, or the broker theirs. Port scans and TCP "
              "probes count too.",
              "The log has the reason of each failure. `pylog doctor` shows when certificates "
              "expire."),
        Alert("PylogStateAlmostFull", WARNING, "pylog_lmdb_used_bytes / pylog_lmdb_map_bytes > 0.8",
              "10m",
              "state.lmdb of {{ $labels.instance }} is {{ $value | humanizePercentage }} full",
              "The store of committed offsets, groups and metadata is close to its limit.",
              "Delete unused groups (`pylog groups delete`), and lower "
              "`offsets.retention.minutes`."),
    ),
    "pylog-clients": (
        Alert("PylogGroupLag", WARNING, "max by (job, group) (pylog_group_lag_seconds) > 300",
              "10m", "group {{ $labels.group }} is {{ $value | humanizeDuration }} behind",
              "The oldest record that the group has not committed is older than five minutes.",
              "Run `pylog groups explain GROUP`: it names the cause, for example a slow member or "
              "an open transaction. Choose the limit for your applications."),
        Alert("PylogGroupRebalances", WARNING,
              "increase(pylog_group_generations_total[15m]) > 6", "0m",
              "group {{ $labels.group }} rebalanced {{ $value | humanize }} times in 15 minutes",
              "Members join and leave, so the group hardly works.",
              "Run `pylog groups history GROUP`: it shows which members caused them. Often "
              "`max.poll.interval.ms` is too short for the work of one poll."),
        Alert("PylogDeadLettersFail", WARNING,
              "increase(pylog_share_dead_letter_failures_total[10m]) > 0", "5m",
              "dead letters of group {{ $labels.group }} cannot be written",
              "Rejected records stay in memory until the dead-letter topic accepts them.",
              "Check that the topic exists and has enough in-sync replicas: "
              "`pylog share look GROUP`."),
    ),
}
ALERTS = tuple(alert for alerts in GROUPS.values() for alert in alerts)


def rules() -> str:
    """Return the text of the rules file."""
    lines = ["# Generated from release/alerts.py by `make docs`; do not edit.", "groups:"]
    for group, alerts in GROUPS.items():
        lines += [f"  - name: {group}", "    rules:"]
        for alert in alerts:
            lines += [f"      - alert: {alert.name}", "        expr: |-"]
            lines += [f"          {line}" for line in alert.expression.splitlines()]
            lines += [f"        for: {alert.hold}",
                      f"        labels: {{severity: {alert.severity}}}", "        annotations:",
                      f"          summary: {json.dumps(alert.summary)}",
                      f"          remedy: {json.dumps(_plain(alert.remedy))}",
                      f"          page: {PAGE}#{alert.name.lower()}"]
    return "\n".join(lines) + "\n"


def _plain(markdown: str) -> str:
    """Return text without links and code marks."""
    text = markdown.replace("`", "")
    while "](" in text:
        before, _, rest = text.partition("](")
        start = before.rindex("[")
        text = before[:start] + before[start + 1:] + rest.partition(")")[2]
    return text


def page() -> str:
    """Return the text of the page."""
    parts = [f"""\
# Alert on problems

Generated from `release/alerts.py` by `make docs`; do not edit.

[pylog.rules.yml](../alerts/pylog.rules.yml) has {len(ALERTS)} alert rules for Prometheus. Each
alert describes a symptom, names what to do, and links to a section of this page. Load the file, and
scrape each cluster as a separate job whose name begins with `pylog`:

    rule_files: [pylog.rules.yml]
    scrape_configs:
      - job_name: pylog-production
        static_configs: [{{targets: ["h1:9644", "h2:9644", "h3:9644"]}}]

`critical` means that clients are affected or data is at risk. `warning` means that this may follow.
Check a changed file with `promtool check rules pylog.rules.yml`. Metrics do not show when a
certificate expires and how far clocks differ: run `pylog doctor` and `pylog cluster status`
regularly, for example once a day.
"""]
    for group, alerts in GROUPS.items():
        parts.append(f"\n## {group.removeprefix('pylog-').capitalize()}\n")
        for alert in alerts:
            held = "" if alert.hold == "0m" else f", after {alert.hold}"
            expression = "\n".join(f"    {line}" for line in alert.expression.splitlines())
            parts.append(f"\n### {alert.name}\n\n{alert.severity}{held}\n\n{expression}\n\n"
                         f"{alert.meaning}\n\n{alert.remedy}\n")
    return "".join(parts)


if __name__ == "__main__":
    for _path, _text in zip(sys.argv[1:], (rules(), page()), strict=True):
        with open(_path, "w", encoding="utf-8") as _file:
            _file.write(_text)
