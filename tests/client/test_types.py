"""Type checking of programs that use the public names.

A wrong line states its expected error; mypy must report it, and nothing for other lines.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = '''\
import asyncio
from typing import TYPE_CHECKING

import pylog.client
import pylog.testing
from pylog.client import Admin, Consumer, KafkaError, NewTopic, Producer, TopicPartition, aio, scan

if TYPE_CHECKING:
    from pylog.client.options import ConsumerConfig


def right() -> None:
    config: ConsumerConfig = {"bootstrap.servers": "h:9092", "auto.offset.reset": "earliest"}
    with Producer(bootstrap_servers="h:9092", linger_ms=3, acks="all") as producer:
        producer.send("orders", b"value", key=b"key")
        producer.flush()
    with Consumer(config, fetch_min_bytes=10, max_poll_records=5) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        for record in consumer.poll(1.0):
            print(record.offset + 1)
    with Admin(bootstrap_servers=["h:9092"]) as admin:
        admin.create_topics([NewTopic("orders", 6)])
        print(sorted(admin.list_topics()))
    try:
        scan("orders", bootstrap_servers="h:9092")
    except KafkaError as error:
        print(error.code)
    with pylog.testing.Broker() as broker:
        broker.create_topic("orders")


async def asynchronous() -> None:
    async with aio.Producer(bootstrap_servers="h:9092") as producer:
        await producer.send("orders", b"value")


def wrong() -> None:
    Producer(lingr_ms=3)  # type: ignore[call-arg]
    Producer(linger_ms="soon")  # type: ignore[arg-type]
    Producer(acks="most")  # type: ignore[arg-type]
    Producer(group_id="g")  # type: ignore[call-arg]
    Consumer(isolation_level="read")  # type: ignore[arg-type]
    aio.Consumer(grup_id="g")  # type: ignore[call-arg]
    scan("orders", botstrap_servers="h:9092")  # type: ignore[call-arg]
    Admin(bootstrap_servers="h").create_topic("orders")  # type: ignore[attr-defined]
    Admin(bootstrap_servers="h").create_topics(6)  # type: ignore[arg-type]
    pylog.client.Prodcer()  # type: ignore[attr-defined]
    pylog.testing.Brokr()  # type: ignore[attr-defined]
    config: ConsumerConfig = {"fetch.min.byte": 1}  # type: ignore[typeddict-unknown-key]
    print(config)


asyncio.run(asynchronous())
'''


def test_strict_type_checker_accepts_correct_programs_and_rejects_wrong_ones(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = true\nfollow_imports = silent\n"
        "[mypy-pyarrow.*]\nignore_missing_imports = true\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "program.py"], cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
