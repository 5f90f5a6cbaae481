"""The table of bench.cluster: one row per metric, with its goal and verdict.

Owns: ROWS, the goals of the capability "several brokers".
Invariants: a verdict compares metrics of one run only.
"""

from bench.table import Goal, Row, medians, number, verdict

QUARTER, FIFTH = Goal("ratio_max", 0.25), Goal("ratio_max", 0.2)
CPU = "CPU s/GB"
MILLION = "CPU s per million"

ROWS = [
    Row("produce-1k", "cpu_s_per_gb", "1 KiB records (librdkafka, 1 MB requests), all processes",
        CPU, (QUARTER,)),
    Row("produce-1k", "leader_cpu", "the same, the leader", CPU),
    Row("produce-1k", "follower_cpu", "the same, each follower", CPU, (Goal("floor_max", 1.2),)),
    Row("produce-1k", "etcd_cpu", "the same, three etcds", CPU),
    Row("produce-1k", "mb_s", "the same", "MB/s"),
    *(row for load, label in (("one-record", "one at a time"), ("one-record-8", "8 connections"),
                              ("one-record-8x5", "8 connections, 5 under way"))
      for row in (
          Row(load, "cpu_s_per_million_requests", f"one-record requests, {label}, all processes",
              MILLION, (FIFTH,)),
          Row(load, "leader_cpu", "the same, the leader", MILLION),
          Row(load, "follower_cpu", "the same, each follower", MILLION),
          Row(load, "requests_s", "the same", "requests/s"),
          Row(load, "p50_us", "the same, p50", "µs"),
          Row(load, "p99_us", "the same, p99", "µs"))),
    Row("e2e", "p50_us", "end to end at 500/s, p50", "µs"),
    Row("e2e", "p99_us", "the same, p99", "µs", (Goal("ratio_max", 0.4),)),
    Row("e2e", "p999_us", "the same, p99.9", "µs"),
    Row("kill-leader", "p50_s", "kill -9 of the leader to the next acknowledgement (librdkafka), "
        "p50", "s", (Goal("value_max", 0.3),)),
    Row("kill-leader", "max_s", "the same, longest", "s", (Goal("value_max", 1.0),)),
    Row("kill-leader-java", "p50_s", "the same (Java client), p50", "s",
        (Goal("value_max", 0.3),)),
    Row("kill-leader-java", "max_s", "the same, longest", "s", (Goal("value_max", 1.0),)),
    Row("kill-controller", "p50_s", "kill -9 of the active controller to the next metadata change, "
        "p50", "s"),
    Row("kill-controller", "max_s", "the same, longest", "s", (Goal("value_max", 1.0),)),
    Row("kill-controller", "pause_s", "the same, longest pause of produce and fetch", "s"),
    Row("kill-controller", "usual_pause_s", "the same, before", "s"),
    Row("kill-quorum", "p50_s", "kill -9 of the etcd that leads to the next metadata change, p50",
        "s"),
    Row("kill-quorum", "max_s", "the same, longest", "s", (Goal("value_max", 1.0),)),
    Row("kill-quorum", "pause_s", "the same, longest pause of produce and fetch", "s"),
    Row("kill-quorum", "usual_pause_s", "the same, before", "s"),
    Row("host-gone", "p50_s", "the host of a leader is cut off to the next acknowledgement, p50",
        "s"),
    Row("host-gone", "without_max_s", "the same, longest", "s", (Goal("value_max", 3.5),)),
    Row("host-gone", "with_controller_max_s", "the same, it had the active controller, longest",
        "s", (Goal("value_max", 3.5),)),
    Row("restart", "in_sync_s", "clean restart to every in-sync set", "s",
        (Goal("value_max", 1.0),)),
    Row("dies", "led_s", "a broker that leads all of many partitions dies: all led elsewhere", "s",
        (Goal("value_max", 2.0),)),
    Row("dies", "in_sync_s", "it starts again, to every in-sync set", "s"),
    Row("idle", "create_s", "1,000 partitions, create", "s"),
    Row("idle", "node_percent", "idle, the busiest broker", "% of a core",
        (Goal("value_max", 1.0),)),
    Row("idle", "etcd_percent", "idle, an etcd", "% of a core", (Goal("value_max", 1.0),)),
    Row("idle", "rss_mb", "idle, the largest broker", "MB"),
    Row("idle", "etcd_rss_mb", "idle, the largest etcd", "MB"),
]


def render(samples: dict, kafka_version: str, sides: list) -> str:
    """Return the markdown table of every row with a value; other sides follow these two."""
    others = [side for side in sides if side not in ("kafka", "pylog")]
    lines = [
        f"| figure | unit | Kafka {kafka_version} | pylog | ratio | goal | | bare loop |"
        + "".join(f" {side} |" for side in others),
        "|---|---|--:|--:|--:|---|---|--:|" + "--:|" * len(others)]
    for row in ROWS:
        figures = medians(samples, row.scenario)
        if all(figures.get((side, row.key)) is None for side in sides):
            continue
        theirs, ours = (figures.get((side, row.key)) for side in ("kafka", "pylog"))
        ratio = f"{ours / theirs:.2f}×" if ours is not None and theirs else "—"
        lines.append(
            f"| {row.label} | {row.unit} | {number(theirs)} | {number(ours)} | {ratio} | "
            f"{', '.join(goal.text(row.unit) for goal in row.goals)} | {verdict(row, figures)} | "
            f"{number(figures.get(('floor', row.key)))} |"
            + "".join(f" {number(figures.get((side, row.key)))} |" for side in others))
    return "\n".join(lines)
