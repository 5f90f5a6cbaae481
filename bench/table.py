"""The table of bench.vs: one row per metric, with its goal and verdict.

Owns: ROWS, the goals of the capability "a broker that takes, keeps and serves records".
Invariants: a verdict compares metrics of one run only.
"""

from dataclasses import dataclass
from statistics import median

from bench import placement


@dataclass(frozen=True)
class Goal:
    """kind: ratio_max, ratio_min (against Kafka), floor_max (against the bare loop), value_max, or
    own_max (against our metric `of`, or the larger of several with a | between them).
    """

    kind: str
    limit: float
    of: str = ""

    def text(self, unit: str) -> str:
        return {
            "ratio_max": f"≤ {self.limit:g}×",
            "ratio_min": f"≥ {self.limit:g}×",
            "floor_max": f"≤ {self.limit:g}× floor",
            "value_max": f"≤ {self.limit:g} {unit}",
            "own_max": f"≤ {self.limit:g}× " + " or ".join(
                name.partition("_")[0] for name in self.of.split("|")),
        }[self.kind]

    def met(self, figures: dict, key: str) -> bool | None:
        """Return True if the goal is met, None if a metric is missing. `figures` by (side, key)."""
        ours = figures.get(("pylog", key))
        own = [figures.get(("pylog", name)) for name in self.of.split("|")]
        other = {
            "ratio_max": figures.get(("kafka", key)), "ratio_min": figures.get(("kafka", key)),
            "floor_max": figures.get(("floor", key)), "value_max": 1.0,
            "own_max": None if None in own else max(own),
        }[self.kind]
        if ours is None or other is None:
            return None
        limit = self.limit * other
        return ours >= limit if self.kind == "ratio_min" else ours <= limit


@dataclass(frozen=True)
class Row:
    scenario: str
    key: str
    label: str
    unit: str
    goals: tuple[Goal, ...] = ()


def _at_most(limit: float, *more: Goal) -> tuple[Goal, ...]:
    return (Goal("ratio_max", limit), *more)


FLOOR = Goal("floor_max", 1.2)


def _bulk_rows(scenario: str, label: str, produce: tuple[Goal, ...],
               fetch: tuple[Goal, ...]) -> list[Row]:
    return [
        Row(scenario, "mb_s", f"produce {label}", "MB/s"),
        Row(scenario, "cpu_s_per_gb", f"produce {label}, broker CPU", "s/GB", produce),
        Row(scenario, "request_bytes", f"produce {label}, mean request", "B"),
        Row(scenario, "fetch_mb_s", f"read back {label}, librdkafka", "MB/s"),
        Row(scenario, "fetch_cpu_s_per_gb", f"read back {label}, broker CPU", "s/GB", fetch),
        Row(scenario, "raw_fetch_mb_s", f"read back {label}, bare reader", "MB/s"),
        Row(scenario, "raw_fetch_cpu_s_per_gb", f"read back {label}, bare, broker CPU", "s/GB",
            fetch),
        Row(scenario, "rss_mb", f"RSS after {label}", "MB"),
    ]


def _latency_rows(scenario: str, label: str, p99: tuple[Goal, ...] = (),
                  p999: tuple[Goal, ...] = ()) -> list[Row]:
    return [
        Row(scenario, "p50_us", f"{label} p50", "µs"),
        Row(scenario, "p99_us", f"{label} p99", "µs", p99),
        Row(scenario, "p999_us", f"{label} p99.9", "µs", p999),
    ]


def _one_record_rows(scenario: str, label: str) -> list[Row]:
    return [
        Row(scenario, "requests_s", label, "req/s"),
        Row(scenario, "cpu_s_per_million_requests", f"{label}, broker CPU", "s/M req",
            _at_most(0.12)),
        *_latency_rows(scenario, f"{label}, answer"),
    ]


def _frames_rows(scenario: str, label: str) -> list[Row]:
    return [
        Row(scenario, "mb_s", f"bare producer, {label} frames", "MB/s"),
        Row(scenario, "cpu_s_per_gb", f"bare producer, {label} frames, broker CPU", "s/GB",
            (FLOOR,)),
    ]


def _tls_rows(scenario: str, label: str) -> list[Row]:
    loop = Goal("floor_max", 1.3)
    return [
        Row(scenario, "mb_s", f"produce {label}", "MB/s"),
        Row(scenario, "cpu_s_per_gb", f"produce {label}, broker CPU", "s/GB",
            _at_most(0.4, loop)),
        Row(scenario, "fetch_mb_s", f"read back {label}", "MB/s"),
        Row(scenario, "fetch_cpu_s_per_gb", f"read back {label}, broker CPU", "s/GB",
            _at_most(0.3, loop)),
        Row(scenario, "raw_fetch_cpu_s_per_gb", f"read back {label}, bare reader, broker CPU",
            "s/GB", _at_most(0.3, loop)),
    ]


ROWS: list[Row] = [
    *_bulk_rows("produce-1k-rdkafka", "1 KiB rdkafka", _at_most(0.35, FLOOR),
                _at_most(0.6, FLOOR)),
    *_bulk_rows("produce-100-rdkafka", "100 B rdkafka", _at_most(0.25), _at_most(0.35)),
    *_bulk_rows("produce-1k-java", "1 KiB java", _at_most(0.35, FLOOR), _at_most(0.6, FLOOR)),
    *_bulk_rows("produce-100-java", "100 B java", _at_most(0.25), _at_most(0.35)),
    *_bulk_rows("produce-1k-rdkafka-lz4", "1 KiB lz4 rdkafka", (), ()),
    *_bulk_rows("produce-100-rdkafka-lz4", "100 B lz4 rdkafka", (), ()),
    *_bulk_rows("produce-1k-java-lz4", "1 KiB lz4 java", (), ()),
    *_bulk_rows("produce-100-java-lz4", "100 B lz4 java", (), ()),
    *_frames_rows("frames-1m", "1 MB"),
    *_frames_rows("frames-128k", "128 KiB"),
    *_frames_rows("frames-16k", "16 KiB"),
    *_one_record_rows("one-record", "one-record requests, one at a time"),
    *_one_record_rows("one-record-8", "one-record requests, 8 connections"),
    *_one_record_rows("one-record-8x5", "one-record requests, 8 × 5 in flight"),
    *_latency_rows("e2e", "end to end at 500/s", _at_most(0.4), _at_most(0.25)),
    Row("e2e-cold", "cold_p50_us", "the same beside a cold reader p50", "µs"),
    Row("e2e-cold", "cold_p99_us", "the same beside a cold reader p99", "µs",
        (Goal("own_max", 1.2, "alone_p99_us|bare_p99_us"),)),
    Row("e2e-cold", "cold_p999_us", "the same beside a cold reader p99.9", "µs"),
    Row("e2e-cold", "alone_p99_us", "the same, p99 just before without", "µs"),
    Row("e2e-cold", "bare_p99_us", "the same, p99 beside a reader of a bare server", "µs"),
    Row("e2e-cold", "cold_mb_s", "cold reader meanwhile", "MB/s"),
    Row("e2e-cold", "bare_mb_s", "reader of the bare server meanwhile", "MB/s"),
    *_latency_rows("e2e-flush", "end to end at 500/s, flushed"),
    Row("flush-64", "records_s", "acks=all flushed, 64 producers", "rec/s",
        (Goal("ratio_min", 5),)),
    *_latency_rows("flush-64", "acks=all flushed, answer"),
    Row("start-empty", "start_ms", "spawn to first answer, empty", "ms",
        (Goal("value_max", 150),)),
    Row("partitions-10k", "create_s", "many partitions, create", "s"),
    Row("partitions-10k", "clean_start_ms", "many partitions, start clean", "ms",
        (Goal("value_max", 1000),)),
    Row("partitions-10k", "clean_serve_ms", "many partitions, all readable, clean", "ms"),
    Row("partitions-10k", "killed_start_ms", "many partitions, start after kill -9", "ms",
        (Goal("value_max", 5000),)),
    Row("partitions-10k", "killed_serve_ms", "many partitions, all readable, kill -9", "ms"),
    Row("start-empty", "idle_rss_mb", "RSS idle", "MB", (Goal("value_max", 45),)),
    Row("partitions-10k", "partition_kib", "RSS per idle partition", "KiB",
        (Goal("value_max", 4),)),
    Row("partitions-10k", "written_partition_kib", "RSS per partition, one batch in", "KiB"),
    Row("start-empty", "connection_kib", "RSS per idle connection", "KiB",
        (Goal("value_max", 32),)),
    *_tls_rows("tls-1k-rdkafka", "1 KiB rdkafka, TLS"),
    *_tls_rows("tls-1k-java", "1 KiB java, TLS"),
    *_latency_rows("tls-e2e", "end to end at 500/s, TLS, SCRAM, 1,000 ACLs",
                   _at_most(0.4, Goal("own_max", 1.3, "plain_p99_us")),
                   _at_most(0.3, Goal("own_max", 1.3, "plain_p999_us"))),
    Row("tls-e2e", "plain_p99_us", "the same in plain text just before, p99", "µs"),
    Row("tls-e2e", "plain_p999_us", "the same in plain text, p99.9", "µs"),
    Row("tls-acls", "acls_cpu_s", "one-record requests with 10,000 ACLs, broker CPU", "s/M req",
        (Goal("own_max", 1.02, "none_cpu_s"),)),
    Row("tls-acls", "none_cpu_s", "the same without an authorizer", "s/M req"),
    Row("tls-handshakes", "full_per_core", "TLS handshakes per CPU second, full", "1/s",
        (Goal("ratio_min", 3),)),
    Row("tls-handshakes", "resumed_per_core", "TLS handshakes per CPU second, resumed", "1/s",
        (Goal("ratio_min", 3),)),
    Row("tls-handshakes", "p99_us", "another TLS connection beside storms of 1,000, p99", "µs",
        (Goal("own_max", 2, "alone_p99_us"),)),
    Row("tls-handshakes", "alone_p99_us", "the same just before without, p99", "µs"),
    Row("tls-logins", "logins_s", "SCRAM logins offered at 1,000/s, done", "1/s"),
    Row("tls-logins", "login_p99_us", "a login meanwhile, p99", "µs"),
    Row("tls-logins", "login_cpu_us", "broker CPU of a login, heartbeats included", "µs"),
    Row("tls-logins", "p99_us", "heartbeats of a group of 500 beside these logins, p99", "µs"),
    Row("tls-logins", "alone_p99_us", "the same just before without, p99", "µs"),
    Row("tls-idle", "connection_kib", "RSS per idle TLS connection", "KiB",
        (Goal("value_max", 48),)),
]


def number(value: float | None) -> str:
    """Format with three significant digits, grouped by thousands."""
    if value is None:
        return "—"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def medians(samples: dict[str, dict[str, dict[str, list[float]]]], scenario: str) -> dict:
    """Return {(side, key): median} of one scenario."""
    return {
        (side, key): median(values)
        for side, keys in samples.get(scenario, {}).items() for key, values in keys.items()
    }


def verdict(row: Row, figures: dict) -> str:
    results = [goal.met(figures, row.key) for goal in row.goals]
    if not results or None in results:
        return ""
    return "pass" if all(results) else "MISS"


def _ratios(by_side: dict[str, dict[str, list[float]]], key: str) -> list[float]:
    return placement.ratios(by_side.get("pylog", {}).get(key, ()),
                            by_side.get("kafka", {}).get(key, ()))


def is_steady(by_side: dict[str, dict[str, list[float]]]) -> bool:
    """Return True if every CPU ratio of a load is steady, or if it has none."""
    keys = {key for figures in by_side.values() for key in figures if key.startswith("cpu_s")}
    found = [_ratios(by_side, key) for key in keys]
    return all(placement.is_steady(values) for values in found if values)


def _spread(values: list[float]) -> str:
    found = placement.spread(values)
    if found is None:
        return "—"
    return f"{found:.1%}" + ("" if placement.is_steady(values) else " (not steady)")


def _ratio(figures: dict, key: str) -> str:
    kafka, ours = figures.get(("kafka", key)), figures.get(("pylog", key))
    return f"{ours / kafka:.2f}×" if kafka and ours is not None else "—"


def render(samples: dict, kafka_version: str, second: dict) -> str:
    """Return the markdown table of every row with a value. second: samples of another placement,
    whose ratio is shown too. The spread is that of the ratio: see placement.spread.
    """
    lines = [
        f"| figure | unit | Kafka {kafka_version} | pylog | ratio | spread | second ratio | floor "
        "| goal | |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for row in ROWS:
        figures = medians(samples, row.scenario)
        kafka, ours = figures.get(("kafka", row.key)), figures.get(("pylog", row.key))
        if kafka is None and ours is None:
            continue
        goal = ", ".join(goal.text(row.unit) for goal in row.goals)
        lines.append(
            f"| {row.label} | {row.unit} | {number(kafka)} | {number(ours)} | "
            f"{_ratio(figures, row.key)} | "
            f"{_spread(_ratios(samples.get(row.scenario, {}), row.key))} | "
            f"{_ratio(medians(second, row.scenario), row.key)} | "
            f"{number(figures.get(('floor', row.key)))} | {goal} | {verdict(row, figures)} |")
    return "\n".join(lines)
