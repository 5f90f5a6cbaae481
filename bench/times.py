"""ListOffsets by time on a large topic, pylog beside Apache Kafka: `python -m bench.times`.

The broker assigns the timestamps (LogAppendTime). Queries are for random times between its first
and its last record, one at a time over one connection; indexes are in the page cache.

Owns: the brokers it starts and their directories; an existing topic is only read.
Invariants: the error code of each response is checked.
"""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from bench import loads
from bench.brokers import RELAXED, PylogBroker
from bench.control.wire import Connection, frame, replay, run
from bench.kafka import KafkaBroker, KafkaMissing
from bench.machine import commit_line, machine_line
from bench.programs import cache_dir, load_client
from pylog.protocol import messages

LIST_OFFSETS = 2
VERSION, VERSION_OF_MAX = 1, 7
EARLIEST_TIME, MAX_TIME = 0, -3
RECORD_BYTES = 1024
GOAL_MS = 2


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.times",
                                     description=__doc__.split("\n")[0])
    parser.add_argument("--gb", type=float, default=50)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--batch", type=int, default=900, help="records of 1 KiB in a batch")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--sides", default="kafka,pylog")
    parser.add_argument("--bootstrap", help="a broker that runs, 127.0.0.1:PORT; with --topic")
    parser.add_argument("--topic", default="times")
    parser.add_argument("--quick", action="store_true", help="2 GB, 4,000 requests")
    return parser.parse_args(argv)


class Running:
    """A broker that was started externally: its CPU is not measured."""

    def __init__(self, bootstrap: str):
        self.name = bootstrap
        self.port = int(bootstrap.rpartition(":")[2])

    def cpu_seconds(self) -> float:
        return 0.0


def _question(topic: str, partition: int, time_ms: int):
    ask = messages.ListOffsetsRequest
    return ask(replica_id=-1, topics=[ask.ListOffsetsTopic(name=topic, partitions=[
        ask.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=-1, timestamp=time_ms)])])


async def _span(port: int, topic: str) -> tuple[int, int]:
    """Return the times of partition 0's first and newest record."""
    connection = await Connection.open(port)
    times = []
    for version, asked in ((VERSION, EARLIEST_TIME), (VERSION_OF_MAX, MAX_TIME)):
        answer = await connection.ask(LIST_OFFSETS, version, _question(topic, 0, asked))
        row = answer.topics[0].partitions[0]
        if row.error_code or row.timestamp < 0:
            raise loads.LoadFailed(f"{topic}: error {row.error_code}, time {row.timestamp}")
        times.append(row.timestamp)
    connection.close()
    return times[0], times[1]


def measure(broker, options) -> dict:
    """Return p50_us, p99_us, p999_us, max_us of the responses, cpu_us of the broker for each."""
    topic = options.topic
    first_ms, last_ms = run(_span(broker.port, topic))
    dice = random.Random(1)
    frames = [frame(LIST_OFFSETS, VERSION, _question(topic, dice.randrange(options.partitions),
                                                     dice.randint(first_ms, last_ms)))
              for _ in range(min(options.requests, 4000))]
    # Offset of the error code: after correlation id, topics, name, partitions, index.
    where = 4 + 4 + 2 + len(topic) + 4 + 4
    replay(broker, frames, 1, 1, requests=len(frames), error_at=where)
    done = replay(broker, frames, 1, 1, requests=options.requests, error_at=where)
    figures = {key: done[key] for key in ("p50_us", "p99_us", "p999_us", "max_us") if key in done}
    return figures | {"cpu_us": done["cpu_s"] / done["requests"] * 1e6}


def _filled(broker, options) -> None:
    loads.create_topic(broker, options.topic, options.partitions,
                       {"message.timestamp.type": "LogAppendTime"})
    loads.raw_produce(broker, options.topic, options.partitions, 4, 2, options.batch, RECORD_BYTES,
                      requests=int(options.gb * 1e9 / (options.batch * RECORD_BYTES)))


def _tell(name: str, figures: dict) -> None:
    print(f"  {name:6} " + ", ".join(f"{key} {value:.0f}" for key, value in figures.items()),
          flush=True)


def main(argv: list[str]) -> int:
    """Measure an existing topic, or one on a new broker of each side."""
    options = _arguments(argv)
    if options.quick:
        options.gb, options.requests = 2.0, 4000
    for client in ("produce", "fetch", "replay"):
        load_client(client)
    print(f"`python -m bench.times {' '.join(argv)}`, commit {commit_line()}\n{machine_line()}\n"
          f"goal: p99 below {GOAL_MS * 1000} us", flush=True)
    if options.bootstrap:
        _tell(options.topic, measure(Running(options.bootstrap), options))
        return 0
    cache_dir().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="times-", dir=cache_dir()))
    kinds = {"kafka": (KafkaBroker, {}), "pylog": (PylogBroker, RELAXED)}
    try:
        for side in options.sides.split(","):
            kind, overrides = kinds[side]
            with kind(folder / side, overrides=overrides) as broker:
                _filled(broker, options)
                _tell(side, measure(broker, options))
            shutil.rmtree(folder / side, ignore_errors=True)
    except (loads.LoadFailed, KafkaMissing) as failure:
        print(failure, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
