"""Load, validate and report in one command, on a given cluster or on a new broker.

    python -m spark.trial --records 1000000 --sizes 500 --report report.html
    python -m spark.trial --bootstrap host:9092 --topic new --records 1000000 --manifest kept/
    python -m spark.trial --rate 50000 --duration 60 --follow      # latency while it is written

Owns: the broker that it starts, with its data in --data, which it removes at the end.
Invariants: the exit code is the verdict's: 0 good, 1 bad, 2 none; the broker's resource usage is
  reported per phase, from its own process's clocks.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench.brokers import PylogBroker
from bench.kafka import KafkaBroker, KafkaMissing
from bench.machine import machine_line
from bench.process import BrokerFailed, BrokerProcess
from spark import cluster, load, validate
from spark.plan import Outcome, Plan, PlanError
from spark.records import ContentError
from spark.session import SetupError, session
from spark.summary import Expected
from spark.verdict import Verdict

BROKERS = {"pylog": PylogBroker, "kafka": KafkaBroker}
FOLLOW_IDLE_S = 20.0
# Load and stream run in parallel, possibly on few cores.
FOLLOW_MASTER = "local[4]"


def main(argv: list[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    directory = Path(tempfile.mkdtemp(prefix="pylog-trial-", dir=options.data or None))
    broker = None if options.bootstrap else BROKERS[options.broker](directory / "data")
    options.manifest = options.manifest or str(directory / "manifest")
    try:
        if broker is not None:
            broker.start()
            options.bootstrap = broker.bootstrap
        return trial(options, broker)
    except (PlanError, ContentError, SetupError, cluster.ClusterError, KafkaMissing,
            BrokerFailed) as failure:
        print(f"trial: {failure}", file=sys.stderr)
        return 2
    except Exception as failure:  # The first line of an exception that Spark wraps.
        print(f"trial: failed: {cluster.first_line(failure)}", file=sys.stderr)
        return 2
    finally:
        if broker is not None:
            broker.kill()
        if options.keep:
            print(f"trial: kept {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def arguments() -> argparse.ArgumentParser:
    parser = load.arguments("python -m spark.trial", __doc__.partition("\n")[0], alone=False)
    add = parser.add_argument
    add("--broker", choices=sorted(BROKERS), default="pylog",
        help="broker to start without --bootstrap (default: %(default)s)")
    add("--read", choices=validate.ENGINES, default="pylog",
        help="engine of the validation (default: %(default)s)")
    add("--follow", action="store_true",
        help="validate while the load runs, which measures latency from end to end")
    add("--data", default="", metavar="DIRECTORY",
        help="directory for the broker's data (default: /tmp)")
    add("--keep", action="store_true", help="keep the directory with the data and the manifest")
    add("--json", default="", metavar="FILE", help="write the verdict as JSON")
    add("--report", default="", metavar="FILE", help="write the verdict as one HTML file")
    return parser


def trial(options: argparse.Namespace, broker: BrokerProcess | None) -> int:
    plan = load.plan_of(options)
    checks = _checks(options)
    cluster.create_topic(plan.settings, plan.topic, options.partitions)
    master = options.master or (FOLLOW_MASTER if options.follow else "")
    connector = "kafka" in (options.engine, options.read)
    spark = session(f"pylog trial of {plan.topic}", master=master, connector=connector)
    meter = Meter(broker)
    try:
        if options.follow:
            outcome, found, seconds = _beside(spark, plan, options, checks)
            meter.phase("loading and reading", outcome)
        else:
            outcome = load.load(plan, options.manifest, spark=spark)
            print(load.summary_text(outcome), flush=True)
            meter.phase("loading", outcome)
            expected, _ = validate.expectation(checks)
            found, seconds = validate.validate(checks, expected, spark)
            meter.phase("reading", outcome)
    finally:
        spark.stop()
    validate.acknowledged(found, options.manifest)
    validate.report_verdict(checks, found, outcome, seconds, meter.rows)
    return 0 if found.good else 1


def _checks(options: argparse.Namespace) -> argparse.Namespace:
    """Return the validator's arguments."""
    given = ["--bootstrap", options.bootstrap, "--topic", options.topic, "--engine", options.read,
             "--manifest", options.manifest, "--json", options.json, "--report", options.report]
    if options.follow:
        given += ["--follow", str(FOLLOW_IDLE_S)]
    return validate.arguments().parse_args(given)


def _beside(spark: Any, plan: Plan, options: argparse.Namespace, checks: argparse.Namespace
            ) -> tuple[Outcome, Verdict, float]:
    """Load while a stream reads."""
    limits = {number: plan.limit(number) for number in range(plan.generators)}
    if None in limits.values():
        raise PlanError("to follow a load needs --records, or a rate with the duration")
    expected = Expected(plan.content, {key: limit or 0 for key, limit in limits.items()})
    outcomes: list[Any] = []

    def work() -> None:
        try:
            outcomes.append(load.load(plan, options.manifest, spark=spark))
        except Exception as failure:
            outcomes.append(failure)

    loading = threading.Thread(target=work, name="load")
    begins = cluster.ends(plan.settings, plan.topic)
    loading.start()
    try:
        found, seconds = validate.validate(checks, expected, spark, begins=begins,
                                           busy=loading.is_alive)
    finally:
        loading.join()
    if isinstance(outcomes[0], Exception):
        raise outcomes[0]
    print(load.summary_text(outcomes[0]), flush=True)
    return outcomes[0], found, seconds


class Meter:
    """Measures the broker's resource usage per phase. rows: (name, text) for the report."""

    def __init__(self, broker: BrokerProcess | None):
        self.broker = broker
        self.rows = [("machine", machine_line())]
        self._cpu_s = broker.cpu_seconds() if broker else 0.0
        self._begun_s = time.monotonic()

    def phase(self, name: str, outcome: Outcome) -> None:
        if self.broker is None:
            return
        cpu_s, now_s = self.broker.cpu_seconds(), time.monotonic()
        took_s, count = cpu_s - self._cpu_s, max(1, sum(outcome.counts.values()))
        text = (f"{took_s:.1f} s of CPU in {now_s - self._begun_s:.1f} s "
                f"({took_s * 1e6 / count:.2f} µs a record, "
                f"{took_s * 1e9 / max(1, outcome.bytes):.2f} s a GB), at most "
                f"{self.broker.peak_rss_bytes() / 1e6:.0f} MB resident")
        self.rows.append((f"{self.broker.name} {name}", text))
        print(f"  broker, {name}: {text}", flush=True)
        self._cpu_s, self._begun_s = cpu_s, now_s


if __name__ == "__main__":
    sys.exit(main())
