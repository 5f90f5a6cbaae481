"""The table of bench.control: one row per metric, with its goal and verdict.

Owns: ROWS, the goals of the capability "groups, administration and every client".
Invariants: a verdict compares metrics of one run only.
"""

from bench.table import Goal, Row, medians, number, verdict

SIDES = ("kafka", "pylog", "kafka-flush", "pylog-flush")
QUARTER, HALF = Goal("ratio_max", 0.25), Goal("ratio_max", 0.5)

ROWS = [
    Row("metadata", "create_s", "1,000 topics × 10 partitions, create", "s"),
    Row("metadata", "create_cpu_s", "the same, broker CPU", "s"),
    Row("metadata", "answer_bytes", "Metadata of all of them, answer", "B"),
    Row("metadata", "all_per_s", "the same, 1,000 clients", "req/s"),
    Row("metadata", "all_cpu_us", "the same, broker CPU a request", "µs", (QUARTER,)),
    Row("metadata", "all_p99_ms", "the same, p99", "ms"),
    Row("metadata", "few_per_s", "Metadata of ten topics, 1,000 clients", "req/s"),
    Row("metadata", "few_cpu_us", "the same, broker CPU a request", "µs", (QUARTER,)),
    Row("metadata", "few_p99_ms", "the same, p99", "ms"),
    Row("metadata", "rss_mb", "peak RSS after that", "MB"),
    Row("unknown", "s", "Metadata for 100,000 unknown names", "s", (Goal("value_max", 1),)),
    Row("unknown", "cpu_s", "the same, broker CPU", "s"),
    Row("metadata", "alone_p50_us", "end to end at 500/s, p50", "µs"),
    Row("metadata", "few_p50_us", "beside 1,000 Metadata/s of ten topics, p50", "µs"),
    Row("metadata", "all_p50_us", "beside 1,000 Metadata/s of all topics, p50", "µs"),
    Row("metadata", "alone_p99_us", "end to end at 500/s, p99", "µs"),
    Row("metadata", "few_p99_us", "beside 1,000 Metadata/s of ten topics, p99", "µs",
        (Goal("own_max", 1.2, "alone_p99_us"),)),
    Row("metadata", "all_p99_us", "beside 1,000 Metadata/s of all topics, p99", "µs",
        (Goal("own_max", 1.2, "alone_p99_us"),)),
    Row("metadata", "few_storm_per_s", "Metadata of ten topics answered meanwhile", "req/s"),
    Row("metadata", "few_storm_p99_ms", "the same, p99", "ms"),
    Row("metadata", "all_storm_per_s", "Metadata of all topics answered meanwhile", "req/s"),
    Row("metadata", "all_storm_p99_ms", "the same, p99", "ms"),
    Row("heartbeats", "per_core", "heartbeats per CPU second, 10,000 members", "1/s"),
    Row("heartbeats", "per_s", "heartbeats per second", "1/s"),
    Row("consumer-heartbeats", "per_core", "heartbeats per CPU second, new protocol",
        "1/s", (Goal("ratio_min", 2),)),
    Row("consumer-heartbeats", "per_s", "heartbeats per second, new protocol", "1/s"),
    Row("large-group", "s", "500 members stable", "s", (HALF,)),
    Row("large-group", "cpu_s", "the same, broker CPU", "s", (HALF,)),
    Row("large-group", "generations", "the same, generations needed", ""),
    *(row for kind in ("new", "classic") for size in (100, 1000) for row in (
        Row("joining", f"{kind}_{size}_s", f"{size} members of the {kind} protocol join, "
            "until stable", "s", (HALF,)),
        Row("joining", f"{kind}_{size}_idle_s", "the same, without work, the mean of a member", "s",
            (HALF,)),
        Row("joining", f"{kind}_{size}_left_s", "one of them leaves, until stable", "s", (HALF,)),
        Row("joining", f"{kind}_{size}_cpu_s", "broker CPU of both", "s", (HALF,)),
        Row("joining", f"{kind}_{size}_p99_ms", "heartbeats meanwhile, p99", "ms",
            (Goal("value_max", 10),)))),
    Row("commits", "per_s", "commits per second", "1/s", (Goal("ratio_min", 2),)),
    Row("commits", "cpu_s_per_million", "broker CPU per million commits", "s"),
    Row("commits", "p99_ms", "commits, p99", "ms"),
    Row("restart", "fill_s", "1,000,000 offsets committed, 1,000 a request", "s"),
    Row("restart", "fill_cpu_s", "the same, broker CPU", "s"),
    Row("restart", "clean_s", "spawn to correct OffsetFetch, clean", "s",
        (Goal("value_max", 1),)),
    Row("restart", "killed_s", "spawn to correct OffsetFetch, kill -9", "s",
        (Goal("value_max", 1),)),
    Row("restart", "rss_mb", "RSS after that", "MB"),
    Row("share", "whole_per_cpu_s", "share group: records acquired and acknowledged per CPU second",
        "1/s", (Goal("ratio_min", 3),)),
    Row("share", "whole_per_s", "the same, per second", "1/s"),
    Row("share", "mixed_per_cpu_s", "the same, types one by one, every tenth rejected", "1/s",
        (Goal("ratio_min", 3),)),
    Row("share", "mixed_per_s", "the same, per second", "1/s"),
    Row("share", "p50_ms", "share group: produce to delivery, 200/s, p50", "ms"),
    Row("share", "p99_ms", "the same, p99", "ms"),
    Row("start-ids", "fill_s", "100,000 transactional ids made", "s"),
    Row("start-ids", "clean_s", "spawn until every coordinator answers, with 10,000 groups, clean",
        "s", (Goal("value_max", 1),)),
    Row("start-ids", "clean_cpu_s", "the same, broker CPU", "s"),
    Row("start-ids", "killed_s", "the same, kill -9", "s", (Goal("value_max", 1),)),
    Row("start-ids", "killed_cpu_s", "the same, broker CPU", "s"),
    Row("start-ids", "rss_mb", "RSS after that", "MB"),
    Row("transactional", "transactional_cpu_s_per_gb",
        "1 KiB records in transactions of 100 ms, broker CPU", "s/GB",
        (Goal("own_max", 1.05, "idempotent_cpu_s_per_gb"),)),
    Row("transactional", "idempotent_cpu_s_per_gb", "the same without transactions", "s/GB"),
    Row("transactions", "per_s", "transactions of one record, ten producers", "1/s",
        (Goal("ratio_min", 3),)),
    Row("transactions", "cpu_ms", "the same, broker CPU of one", "ms"),
    Row("read-committed", "read_committed_cpu_s_per_gb",
        "read_committed, a fifth aborted, broker CPU", "s/GB",
        (Goal("own_max", 1.02, "read_uncommitted_cpu_s_per_gb"),)),
    Row("read-committed", "read_uncommitted_cpu_s_per_gb", "the same, read_uncommitted", "s/GB"),
]


def _ratio(figures: dict, ours: str, theirs: str, key: str) -> str:
    a, b = figures.get((ours, key)), figures.get((theirs, key))
    return f"{a / b:.2f}×" if a is not None and b else "—"


def render(samples: dict, kafka_version: str) -> str:
    """Return the markdown table of every row that has a value; the flushed sides in the last
    columns.
    """
    lines = [
        f"| figure | unit | Kafka {kafka_version} | pylog | ratio | goal | | Kafka, each flushed "
        "| pylog, flushed | ratio |",
        "|---|---|--:|--:|--:|---|---|--:|--:|--:|",
    ]
    for row in ROWS:
        figures = medians(samples, row.scenario)
        cells = {side: figures.get((side, row.key)) for side in SIDES}
        if all(value is None for value in cells.values()):
            continue
        goal = ", ".join(goal.text(row.unit) for goal in row.goals)
        lines.append(
            f"| {row.label} | {row.unit} | {number(cells['kafka'])} | {number(cells['pylog'])} | "
            f"{_ratio(figures, 'pylog', 'kafka', row.key)} | {goal} | {verdict(row, figures)} | "
            f"{number(cells['kafka-flush'])} | {number(cells['pylog-flush'])} | "
            f"{_ratio(figures, 'pylog-flush', 'kafka-flush', row.key)} |")
    return "\n".join(lines)
