"""Read or write the same topics with pylog's client and others in turn, each on one core.

    python -m bench.client                       all clients, 100 B and 1 KiB, plain, lz4, zstd
    python -m bench.client --only "pylog*" --codecs none --sizes 100 --rounds 3
    python -m bench.client --produce             writing instead of reading

Owns: a separate brokerd with its data in a temporary directory.
Invariants: one broker and one set of topics for the whole run; broker and client each have a
  separate core; a value is the best of its rounds, because interference only slows down.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.brokers import CHECKOUT, PylogBroker
from bench.client.readers import PARTITIONS, READERS
from bench.client.records import BATCH_BYTES, values
from bench.client.writers import WRITERS
from bench.machine import machine_line
from pylog._native.records import batch
from pylog.client.config.settings import CODECS, Settings
from pylog.client.network.cluster import Cluster
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

BATCHES_DISTINCT = 24
IN_FLIGHT = 5
TOPIC_BYTES = 1_000_000_000
READER_WAIT_S = 120
BASE = "confluent-kafka"


async def fill(bootstrap: str, topic: str, size: int, codec: str, count: int) -> int:
    """Create a topic of about `count` records and return the exact number."""
    rng = random.Random(size)
    now_ms = time.time_ns() // 10**6  # Otherwise retention deletes old records.
    per_batch = BATCH_BYTES // (size + 12)
    batches = []
    for _ in range(BATCHES_DISTINCT):
        rows = [(None, value, now_ms, ())
                for value in values(per_batch, size, rng)]
        batches.append(batch.build(rows, codec=CODECS.index(codec)))
    async with Cluster(Settings("admin", bootstrap_servers=bootstrap)) as cluster:
        create = messages.CreateTopicsRequest
        answer = await cluster.send_any(create(topics=[create.CreatableTopic(
            name=topic, num_partitions=PARTITIONS, replication_factor=1)]))
        assert answer.topics[0].error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS), answer
        info = await cluster.topic(topic)
        connection = await cluster.connection(info.partitions[0].leader)
        produce = messages.ProduceRequest
        under_way: list = []
        done = 0
        while done < count:
            number = done // per_batch
            future = connection.send(produce(acks=1, timeout_ms=30_000, topic_data=[
                produce.TopicProduceData(name=topic, topic_id=info.id, partition_data=[
                    produce.PartitionProduceData(
                        index=number % PARTITIONS, records=batches[number % BATCHES_DISTINCT])])]))
            under_way.append(future)
            done += per_batch
            if len(under_way) >= IN_FLIGHT:
                answered = await under_way.pop(0)
                assert not answered.responses[0].partition_responses[0].error_code, answered
        await asyncio.gather(*under_way)
    return done


def one(module: str, name: str, core: int, *given) -> dict:
    """Run one client in a separate process and return its results."""
    command = ["taskset", "-c", str(core), sys.executable, "-m", f"bench.client.{module}", name,
               *map(str, given)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True,
                          timeout=READER_WAIT_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{name} failed:\n{done.stdout}{done.stderr}"[-3000:])
    found = json.loads(lines[0])
    return {"rate": found["records"] / found["seconds"],
            "cpu_s_per_million": found["cpu_s"] / found["records"] * 1e6}


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.client",
                                     description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="*", help="clients, as a pattern")
    parser.add_argument("--sizes", default="100,1024")
    parser.add_argument("--codecs", default="none,lz4,zstd")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="at most, for one figure")
    parser.add_argument("--topic-bytes", type=int, default=TOPIC_BYTES)
    parser.add_argument("--produce", action="store_true", help="write instead of read")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--bootstrap", help="a broker that runs already, instead of brokerd")
    return parser.parse_args(argv)


def measure(bootstrap: str, given: argparse.Namespace, core: int) -> list[dict]:
    clients = WRITERS if given.produce else READERS
    names = [name for name in clients if fnmatch.fnmatch(name, given.only)]
    rows = []
    for size in map(int, given.sizes.split(",")):
        for codec in given.codecs.split(","):
            topic = f"bench-{size}-{codec}"
            wanted = given.topic_bytes // size
            count = asyncio.run(fill(bootstrap, topic, size, codec, 0 if given.produce else wanted))
            best: dict[str, dict] = {}
            for turn in range(given.rounds):
                for name in names[::1 if turn % 2 == 0 else -1]:
                    if given.produce:
                        found = one("writers", name, core, bootstrap, topic, codec, size,
                                    given.seconds)
                    else:
                        found = one("readers", name, core, bootstrap, topic, count, given.seconds)
                    known = best.setdefault(name, found)
                    best[name] = {"rate": max(known["rate"], found["rate"]),
                                  "cpu_s_per_million": min(known["cpu_s_per_million"],
                                                           found["cpu_s_per_million"])}
            rows += [{"client": name, "bytes": size, "codec": codec, **best[name]}
                     for name in names]
            report(rows[-len(names):])
    return rows


def report(rows: list[dict]) -> None:
    base = next((row for row in rows if row["client"] == BASE), None)
    print(f"\n{rows[0]['bytes']} B, {rows[0]['codec']}; the last two columns: times {BASE}")
    print("| client | records/s | MB/s | CPU s per million | records/s | records per CPU s |")
    print("|---|--:|--:|--:|--:|--:|")
    for row in rows:
        ratios = "|" if base is None else (
            f"{row['rate'] / base['rate']:.2f} | "
            f"{base['cpu_s_per_million'] / row['cpu_s_per_million']:.2f}")
        print(f"| {row['client']} | {row['rate']:,.0f} | {row['rate'] * row['bytes'] / 1e6:,.0f} | "
              f"{row['cpu_s_per_million']:.3f} | {ratios} |", flush=True)


def main(argv: list[str]) -> int:
    given = parse(argv)
    cores = sorted(os.sched_getaffinity(0))
    print(machine_line())
    if given.bootstrap:
        rows = measure(given.bootstrap, given, cores[-1])
    else:
        with tempfile.TemporaryDirectory(prefix="bench-client-") as root:
            with PylogBroker(Path(root) / "data") as broker:
                # Pin every thread: the reactors are already running.
                for thread in os.listdir(f"/proc/{broker.pid}/task"):
                    os.sched_setaffinity(int(thread), {cores[0]})
                rows = measure(broker.bootstrap, given, cores[-1])
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
