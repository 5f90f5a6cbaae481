"""Measure the cost of a metrics scrape: `python -m bench.scrape [--partitions 10000]`.

Owns: one broker with its directory.
Invariants: latency is measured with and without scrapes, alternating, in one run; the page is
  parsed with the Prometheus library before anything is measured.
"""

import argparse
import gzip
import re
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from bench import loads
from bench.brokers import PylogBroker
from bench.control.offsets import _commit
from bench.control.wire import Connection, create_topics, found, replay, run
from pylog.testing.ports import free_port

GROUP_PARTITIONS = 100
TOPIC_PARTITIONS = 100
SCRAPES = 15
ROUNDS = 3
LATENCY_RATE, LATENCY_SECONDS = 500, 8
ACCEPT = {"Accept": "application/openmetrics-text"}


def get(port: int, **headers) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics",
                                     headers={**ACCEPT, **headers})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


async def _fill(port: int, topics: list, groups: int) -> None:
    connection = await Connection.open(port)
    for topic in topics:
        await create_topics(connection, [topic], TOPIC_PARTITIONS)
    for number in range(groups):
        await found(connection, f"g-{number}")
    connection.close()


def fill(broker, partitions: int) -> None:
    """Create topics of TOPIC_PARTITIONS, with records in each partition, and a lagging group per
    topic.
    """
    topics = [f"scraped-{number}" for number in range(partitions // TOPIC_PARTITIONS)]
    run(_fill(broker.port, topics, len(topics)))
    for topic in topics:
        # Offset 7 is committed, so every group lags.
        loads.raw_produce(broker, topic, TOPIC_PARTITIONS, 1, 5, 200, 100,
                          requests=TOPIC_PARTITIONS)
    frames = [_commit(f"g-{number}", topic, range(GROUP_PARTITIONS))
              for number, topic in enumerate(topics)]
    replay(broker, frames, 4, 2, requests=len(frames), error_at=-2)


def measure(broker, port: int, **headers) -> dict:
    """Return wall and CPU time of one scrape, and the times that the broker itself reports."""
    walls, cpus = [], []
    for _ in range(SCRAPES):
        before, begin = broker.cpu_seconds(), time.perf_counter()
        body = get(port, **headers)
        walls.append(time.perf_counter() - begin)
        cpus.append(broker.cpu_seconds() - before)
    text = gzip.decompress(body) if headers else body
    own = float(re.search(rb"^pylog_scrape_seconds (\S+)", text, re.M)[1])
    return {"wall_ms": median(walls) * 1e3, "wall_max_ms": max(walls) * 1e3,
            "cpu_ms": median(cpus) * 1e3, "made_ms": own * 1e3,
            "bytes": len(body), "samples": text.count(b"\n") - text.count(b"\n#")}


def produced(port: int) -> list:
    """Return the broker's histogram of Produce, from last byte in to last byte out."""
    return [(float(bound), int(count)) for bound, count in re.findall(
        rb'^pylog_request_seconds_bucket\{api="Produce",le="([^"]+)"\} (\d+)', get(port), re.M)]


def quantile_us(before: list, after: list, share: float) -> float:
    """Return the upper bound of the bucket that contains this share of the requests between two
    scrapes.
    """
    counts = [(bound, count - earlier) for (bound, count), (_, earlier)
              in zip(after, before or [(0, 0)] * len(after), strict=True)]
    return next(bound for bound, count in counts if count >= share * counts[-1][1]) * 1e6


def latencies(broker, port: int) -> dict:
    """Measure latency with a scrape each second and without, alternating: end to end by a client
    (the scraper uses the machine too), and of Produce by the broker.
    """
    found = {"alone": [], "scraped": []}
    for turn in range(2 * ROUNDS):
        name = ("alone", "scraped")[turn % 2]
        stop = threading.Event()

        def scrape(stop=stop):
            while not stop.wait(1.0):
                get(port, **{"Accept-Encoding": "gzip"})

        scraper = threading.Thread(target=scrape)
        if name == "scraped":
            scraper.start()
        topic = f"latency-{turn}"
        loads.create_topic(broker, topic, 1)
        before = produced(port)
        figures = loads.latency(broker, topic, LATENCY_RATE, LATENCY_SECONDS)
        after = produced(port)
        for key, share in (("p99", 0.99), ("p999", 0.999)):
            figures[f"produce_{key}_us"] = quantile_us(before, after, share)
        found[name].append(figures)
        stop.set()
        if name == "scraped":
            scraper.join()
    return {f"{name}_{key}": median(row[key] for row in rows) for name, rows in found.items()
            for key in ("p50_us", "p99_us", "p999_us", "produce_p99_us", "produce_p999_us")}


def main(argv: list[str]) -> int:
    """Print the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.scrape")
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--no-latency", action="store_true")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="scrape-") as folder:
        port = free_port()
        broker = PylogBroker(Path(folder) / "data", overrides={
            "metrics.listener": f"127.0.0.1:{port}", "log.flush.acks.all.enable": "false",
            "offsets.topic.num.partitions": "8"})
        with broker:
            fill(broker, options.partitions)
            families = list(text_string_to_metric_families(get(port).decode()))
            lagging = sum(sample.value > 0 for family in families for sample in family.samples
                          if family.name == "pylog_group_lag_records")
            print(f"families={len(families)} lagging_partitions={lagging}")
            for name, headers in (("plain", {}), ("gzip", {"Accept-Encoding": "gzip"})):
                print(name, *(f"{key}={value:.5g}"
                              for key, value in measure(broker, port, **headers).items()))
            if not options.no_latency:
                print("latency", *(f"{key}={value:.5g}"
                                   for key, value in latencies(broker, port).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
