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

## Health checks

`/livez` returns 200 while the broker's event loop responds, and 503 after two seconds without a
response. `/readyz` returns 200 if the broker can serve clients, and 503 otherwise. The token and
TLS apply as for `/metrics`. Both work from the start of the process until its end. `/metrics` and
the other pages return 503 before the broker runs and while it shuts down.

    $ pylog health --url http://localhost:9644
    ok       event_loop       responds
    ok       lifecycle        running
    ok       listeners        respond: PLAINTEXT
    ok       recovery         done
    ok       log_directories  1 online
    ok       controller       in this process

The JSON of `/readyz` has each component with its state, a sentence, how it was checked, when, and
how long that took:

    {"status": "ready", "age_ms": 4, "components": {
      "controller": {"state": "ok", "detail": "controller 2 answered",
        "check": "sent a heartbeat to the active controller",
        "checked_at_ms": 1795872669056, "took_ms": 1.8}, ...}}

| component | checked by |
|---|---|
| event_loop | running a callback on the event loop |
| lifecycle | the phase of this process: starting, running, stopping |
| listeners | each listener's response to ApiVersions; the kernel's list if it needs certificates |
| recovery | the number of partitions that are still recovering after an unclean stop |
| log_directories | I/O errors since the start, and the lock files |
| controller | a heartbeat that the active controller answers, or a call if it is in this process |
| registration | the answer to this heartbeat: the cluster may send clients to this broker |
| quorum | on controllers: reading the current controller from etcd or ZooKeeper |

`state` is `ok`, `failed` or `unknown`. A component that could not be checked within two seconds is
`unknown`, and the broker is then not ready. A check starts at most once per second. Requests in
between share its result, and `age_ms` is its age. Set the timeout of a probe to 5 s:

    livenessProbe: {httpGet: {path: /livez, port: 9644}, timeoutSeconds: 5, periodSeconds: 10}
    readinessProbe: {httpGet: {path: /readyz, port: 9644}, timeoutSeconds: 5, periodSeconds: 5}
    startupProbe: {httpGet: {path: /livez, port: 9644}, timeoutSeconds: 5, failureThreshold: 60}

A broker that is its own controller can be busy during its start, while it opens many partitions,
so use a startup probe. A broker without its controller or quorum is not ready although it still
serves the partitions that it leads. `pylog health` is the same check as a command: it exits with 0
if the broker is ready, and with 1 if it is not. Under systemd you do not need it: brokerd itself
reports its readiness to systemd.

## Counters

Each thread counts for itself, in native code, and a scrape adds up: it stops neither the reactors
nor the event loop. Counters start at zero with the broker, those of a topic with the topic.
Histograms have a bucket for each power of two: of 4.096 µs to 69 s for times, of 64 bytes to 1 GiB
for sizes.

`/explain/groups` lists consumer groups by their lag, as JSON: at most 10,000 groups and 4 MiB. If
it leaves out groups, `truncated` is true and `left_out` is their number. Metrics and this page also
leave out groups beyond 20,000 committed offsets or 2 Mi characters of group names in total
(`pylog_groups_omitted`). `/explain/group/<id>` shows, as JSON, why a group lags: lag in records
and seconds, rates of the last minute, rebalances of the last five, cold reads, open transactions,
throttling, and the reasons that follow from them, the first one foremost. Its `history` has the
last rebalances, also those before a restart: causes with their members and the reasons that clients
gave, how long each took, and how long its members were without work (in a classic group from
JoinGroup to the answer of SyncGroup, in a consumer group while they had no partition). Each is a
line of the broker's log too.

A request that took longer than `slow.request.threshold.ms` (1000) is one line of the broker's log,
at most ten a second from each reactor; the next line says how many were left out:

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


_FORMER_NAMES = """
## Former names

These metrics were renamed in 0.1.0. brokerd exports them under both names until the next release.
Use the new names in alerts and dashboards. The label `answer` of pylog_connections_crowded_total is
called `action` in the new metric.

| former name | name |
|---|---|
"""


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
    parts.append(_FORMER_NAMES)
    parts += [f"| {metric.sample} | {metrics.TABLE[name].sample} |\n"
              for name, former in metrics.FORMER_NAMES.items()
              for metric in (metrics.FORMER[former],)]
    return "".join(parts)


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        file.write(document())
