"""Draw the dashboard's picture: `python -m bench.dashboard docs/grafana/pylog.png`.

Owns: a broker, a Prometheus that scrapes it and the load on both, for as long as the picture needs.
Invariants: Prometheus evaluates every query of the dashboard as Grafana sends it, and a failed
  query ends the run; the picture shows Prometheus' results.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

from bench.brokers import PylogBroker
from pylog.testing.ports import free_port
from bench.process import die_with_parent

DASHBOARD = Path(__file__).resolve().parents[1] / "docs" / "grafana" / "pylog.json"
SCRAPE_SECONDS, STEP_SECONDS, RATE = 2, 2, "10s"
VARIABLES = {"$__rate_interval": RATE, "$instance": ".*", "$topic": ".*", "$group": ".*",
             "$job": ".*"}
COLUMNS = 24
CONFIG = """\
global: {{scrape_interval: {seconds}s}}
scrape_configs:
  - job_name: pylog
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
UNITS = {"Bps": "B/s", "bytes": "B", "cps": "/s", "reqps": "/s", "s": "s", "short": "",
         "percentunit": ""}


def load(port: int, stop: threading.Event) -> list:
    """Start threads that produce to three topics and consume in two groups, one of them too slowly.
    """
    from confluent_kafka import Consumer, Producer

    def produce():
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "linger.ms": 5,
                             "client.id": "shop", "compression.type": "lz4"})
        begin = time.monotonic()
        while not stop.is_set():
            busy = 3 if 40 < time.monotonic() - begin < 80 else 1
            for number in range(200 * busy):
                producer.produce(("orders", "clicks", "clicks", "audit")[number % 4],
                                 b"x" * (100 + number % 400), key=str(number))
            producer.poll(0)
            stop.wait(0.05)
        producer.flush(10)

    def consume(group, topics, pause_s):
        consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": group,
                             "client.id": group, "auto.offset.reset": "earliest",
                             "auto.commit.interval.ms": 1000})
        consumer.subscribe(topics)
        while not stop.is_set():
            consumer.consume(500, 0.2)
            stop.wait(pause_s)
        consumer.close()

    threads = [threading.Thread(target=produce),
               threading.Thread(target=consume, args=("billing", ["orders", "clicks"], 0.0)),
               threading.Thread(target=consume, args=("reports", ["clicks"], 0.3)),
               threading.Thread(target=consume, args=("reports", ["clicks"], 0.3))]
    for thread in threads:
        thread.start()
    return threads


class Prometheus:
    """Runs a Prometheus below `folder` that scrapes 127.0.0.1:`target`."""

    def __init__(self, binary: str, folder: Path, target: int):
        self.port = free_port()
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(seconds=SCRAPE_SECONDS, port=target))
        with open(folder / "prometheus.log", "wb") as sink:
            self.process = subprocess.Popen(
                [binary, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
                 f"--web.listen-address=127.0.0.1:{self.port}"],
                stdout=sink, stderr=subprocess.STDOUT, preexec_fn=die_with_parent)

    def ask(self, expression: str, begin: float, end: float) -> list:
        """Return [(labels, [(time, value)])]. Raises urllib's HTTPError for an invalid query."""
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        query = urllib.parse.urlencode({"query": expression, "start": begin, "end": end,
                                        "step": STEP_SECONDS})
        url = f"http://127.0.0.1:{self.port}/api/v1/query_range?{query}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = json.load(answer)["data"]["result"]
        return [(row["metric"], [(float(at), float(value)) for at, value in row["values"]])
                for row in found]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def legend(pattern: str, labels: dict) -> str:
    for name, value in labels.items():
        pattern = pattern.replace(f"{{{{{name}}}}}", value)
    return pattern


def draw(panel: dict, axes, lines: list, begin: float) -> None:
    """Draw one panel. lines: [(name, [(time, value)])]."""
    from matplotlib.ticker import EngFormatter, PercentFormatter

    unit = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
    axes.set_title(panel["title"], fontsize=9, loc="left")
    if panel["type"] == "stat":
        axes.axis("off")
        value = lines[0][1][-1][1] if lines else 0.0
        axes.text(0.5, 0.4, EngFormatter(unit, places=1)(value), fontsize=17, ha="center",
                  va="center", color="#37872d")
        return
    if panel["fieldConfig"]["defaults"]["custom"].get("stacking") and lines:
        times = [at for at, _ in lines[0][1]]
        columns = [dict(values) for _, values in lines]
        axes.stackplot([at - begin for at in times],
                       [[column.get(at, 0.0) for at in times] for column in columns],
                       labels=[name for name, _ in lines], alpha=0.6)
    else:
        for name, values in lines:
            axes.plot([at - begin for at, _ in values], [value for _, value in values],
                      linewidth=1, label=name)
    axes.set_ylim(bottom=0)
    percent = panel["fieldConfig"]["defaults"]["unit"] == "percentunit"
    axes.yaxis.set_major_formatter(PercentFormatter(1.0) if percent else EngFormatter(unit))
    if not lines:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color="gray")
    axes.tick_params(labelsize=6.5)
    axes.grid(alpha=0.25)
    if lines:
        axes.legend(fontsize=5.5, ncols=2, loc="upper left", frameon=False)


def picture(dashboard: dict, prometheus: Prometheus, begin: float, end: float, path: Path,
            folder: str) -> None:
    """Draw all panels; `folder` is removed from the displayed names."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = dashboard["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = pyplot.figure(figsize=(15, height * 0.29), layout="none")
    for panel in panels:
        place = panel["gridPos"]
        left, top = place["x"] / COLUMNS, 1 - place["y"] / height
        if panel["type"] == "row":
            figure.text(left + 0.01, top - 0.6 / height, panel["title"], fontsize=11,
                        fontweight="bold")
            continue
        wide, high = place["w"] / COLUMNS, place["h"] / height
        axes = figure.add_axes((left + 0.035, top - high + 1.0 / height, wide - 0.045,
                                high - 2.2 / height))
        lines = [(legend(target["legendFormat"], labels).replace(folder, ""), values)
                 for target in panel["targets"]
                 for labels, values in prometheus.ask(target["expr"], begin, end)]
        lines = [(name, [(at, value) for at, value in values if value == value])
                 for name, values in lines]
        draw(panel, axes, [(name, values) for name, values in lines if values], begin)
    figure.savefig(path, dpi=80)


def main(argv: list[str]) -> int:
    """Run the load, then draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--seconds", type=float, default=120)
    options = parser.parse_args(argv)
    dashboard = json.loads(DASHBOARD.read_text())
    stop, target = threading.Event(), free_port()
    with tempfile.TemporaryDirectory(prefix="dashboard-") as folder:
        broker = PylogBroker(Path(folder) / "data", overrides={
            "metrics.listener": f"127.0.0.1:{target}", "num.partitions": "6",
            "offsets.topic.num.partitions": "8"})
        with broker:
            prometheus = Prometheus(options.prometheus, Path(folder), target)
            begin = time.time()
            threads = load(broker.port, stop)
            try:
                time.sleep(options.seconds)
                picture(dashboard, prometheus, begin + 10, time.time(), options.picture, folder)
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
                prometheus.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
