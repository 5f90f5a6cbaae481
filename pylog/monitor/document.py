"""Generates docs/reference/metrics.md from the table of metrics.

Owns: nothing; the document is generated, never edited.
Invariants: the same table gives the same bytes.
"""

import sys

from pylog.monitor import metrics

_INTRODUCTION = """\
# Metrics

Generated from `pylog/monitor/metrics.py` by `make docs`; do not edit.

`metrics.listener=127.0.0.1:9644` opens an HTTP endpoint (`make run` sets it; by default there is
none). `/metrics` answers a Prometheus scrape, as OpenMetrics 1.0 when the request asks for that and
as Prometheus' text format otherwise, compressed on request:

    scrape_configs:
      - job_name: pylog
        static_configs: [{targets: ["localhost:9644"]}]

With `metrics.token` a request must bring it (Prometheus: `authorization: {credentials_file: …}`),
and with `metrics.ssl.keystore.location` the endpoint speaks TLS (`scheme: https`). An endpoint that
other machines reach without a token is warned of at the start and by `pylog doctor`. A dashboard
for Grafana is in [grafana/pylog.json](../grafana/pylog.json):

![the dashboard](../grafana/pylog.png)

The picture shows the answers of a Prometheus to the dashboard's queries, two minutes of a broker
under load, drawn by `python -m bench.dashboard` rather than by Grafana.

Each thread counts for itself, in native code, and a scrape adds up: it stops neither the reactors
nor the event loop. Counters start at zero with the broker, those of a topic with the topic.
Histograms have a bucket for each power of two: of 4.096 µs to 69 s for times, of 64 bytes to 1 GiB
for sizes.

`/explain/groups` lists consumer groups by their lag, as JSON: at most 10,000 groups and 4 MiB. If
it leaves out groups, `truncated` is true and `left_out` is their number. Metrics and this page also
leave out groups beyond 20,000 committed offsets or 2 Mi characters of group names in total
(`pylog_groups_left_out`). `/explain/group/<id>` shows, as JSON, why a group lags: lag in records
and seconds, rates of the last minute, rebalances of the last five, cold reads, open transactions,
throttling, and the reasons that follow from them, the first one foremost. Its `history` has the
last rebalances, also those before a restart: causes with their members and the reasons that clients
gave, how long each took, and how long its members were without work (in a classic group from
JoinGroup to the answer of SyncGroup, in a consumer group while they had no partition). Each is a
line of the broker's log too.

A request that took longer than `request.log.slow.ms` (1000) is one line of the broker's log, at
most ten a second from each reactor; the next line says how many were left out:

    time=... level=warning logger=pylog.request msg="slow request" api=Produce version=11
      client=app peer=10.0.0.7:50412 connection=4294967296 correlation=7 total_ms=1204.551
      local_ms=0.412 remote_ms=1204.010 send_ms=0.129 request_bytes=16521 response_bytes=56
      left_out=0

`local` is work, `remote` is waiting (for the disk, for the control plane), `send` is sending the
response. The time that a Fetch waits for new records at its client's request does not count.
"""
_SUBJECTS = (
    ("pylog_build", "Which broker"), ("pylog_topic", "Topics"), ("pylog_partition", "Partitions"),
    *[(prefix, "The cluster") for prefix in (
        "pylog_cluster", "pylog_metadata", "pylog_controller", "pylog_quorum")],
    ("pylog_replica", "Replicas"),
    ("pylog_group", "Consumer groups"),
    ("pylog_share", "Share groups"), ("pylog_coordinator", "Consumer groups"),
    ("pylog_request", "Requests"), ("pylog_audit", "Requests"), ("pylog_response", "Requests"),
    *[(prefix, "Connections and reactors") for prefix in (
        "pylog_connections", "pylog_tls", "pylog_network", "pylog_reactor", "pylog_fetch")],
    ("pylog_log", "Logs"), ("pylog_io", "Logs"), ("pylog_cleaner", "Compaction"),
    ("pylog_lmdb", "state.lmdb"),
    *[(prefix, "The process") for prefix in ("process", "pylog_scrape", "pylog_background")])


def document() -> str:
    """Return the whole text of docs/reference/metrics.md."""
    parts, subject = [_INTRODUCTION], None
    for metric in metrics.TABLE.values():
        found = next((title for prefix, title in _SUBJECTS if metric.name.startswith(prefix)),
                     "Others")
        if found != subject:
            subject = found
            parts.append(f"\n## {subject}\n\n| metric | type | labels | meaning |\n"
                         "|---|---|---|---|\n")
        parts.append(f"| {metric.sample} | {metric.type} | {', '.join(metric.labels)} | "
                     f"{metric.help} |\n")
    return "".join(parts)


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        file.write(document())
